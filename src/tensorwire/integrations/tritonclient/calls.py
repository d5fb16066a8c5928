"""What the calls over HTTP and over gRPC have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import ModuleType
from typing import TypeVar

from ..functions import package_of, place

Value = TypeVar("Value")


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
