"""What the calls over HTTP and over gRPC have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar

from ..functions import package_of, place
from ..patching import Function

Value = TypeVar("Value")


def setting(
    variable: ContextVar[Value],
    value: Callable[[Any, tuple[Any, ...], dict[str, Any]], Value],
    original: Function,
    *,
    is_async: bool = False,
) -> Function:
    """Replace a method of a client by one that sets a variable while ``original`` runs.

    ``value`` returns the value for the client and for the arguments of a call.
    """

    @wraps(original)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        with during(variable, value(self, arguments, options)):
            return original(self, *arguments, **options)

    @wraps(original)
    async def call_async(self: Any, *arguments: Any, **options: Any) -> Any:
        with during(variable, value(self, arguments, options)):
            return await original(self, *arguments, **options)

    return call_async if is_async else call


@contextmanager
def during(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a variable for the duration of a ``with`` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is closed in another context
            variable.reset(token)


def creates_requests(module: ModuleType) -> bool:
    """Return whether our function creates the requests in a module.

    A wrapper around it, by which a program has replaced it, expects complete requests.
    """
    creator = place(vars(module).get("_get_inference_request"))
    return creator is not None and package_of(creator) == package_of(__name__)
