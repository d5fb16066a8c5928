"""Wrappers that count the calls of a function, as instrumentation puts them around functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, partialmethod, wraps
from inspect import getattr_static, iscoroutinefunction
from types import ModuleType
from typing import Any

Count = Callable[[], None]


class Proxy:
    """A wrapper as made by the package wrapt: it imitates the type of what it wraps."""

    def __init__(self, wrapped: Any, count: Count) -> None:
        self.__wrapped__, self._count = wrapped, count

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.__wrapped__.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return Proxy(self.__wrapped__.__get__(instance, owner), self._count)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self._count()
        return self.__wrapped__(*arguments, **options)


def closure(function: Any, count: Count) -> Any:
    """Wrap a function, classmethod or staticmethod without copying its name and parameters."""
    inner = getattr(function, "__func__", function)

    def wrapper(*arguments: Any, **options: Any) -> Any:
        count()
        return inner(*arguments, **options)

    async def async_wrapper(*arguments: Any, **options: Any) -> Any:
        count()
        return await inner(*arguments, **options)

    if iscoroutinefunction(inner):
        return async_wrapper
    return wrapper if inner is function else type(function)(wrapper)


def functools_wrapper(function: Any, count: Count) -> Any:
    made = closure(function, count)
    inner = getattr(made, "__func__", made)
    wraps(getattr(function, "__func__", function))(inner)
    return made


def two_wrappers(function: Any, count: Count) -> Any:
    return Proxy(functools_wrapper(function, lambda: None), count)


def partial_wrapper(function: Any, count: Count) -> Any:
    inner = closure(getattr(function, "__func__", function), count)
    make = {classmethod: classmethod, staticmethod: staticmethod}.get(type(function))
    if make is not None:
        return make(partial(inner))
    return partialmethod(inner) if "." in function.__qualname__ else partial(inner)


WRAPPERS = [functools_wrapper, Proxy, closure, two_wrappers, partial_wrapper]


@contextmanager
def wrapped(owner: Any, name: str, wrap: Any, before_call: Count) -> Iterator[None]:
    """Wrap a function of a module or class for the duration of a ``with`` block.

    A function of a module is wrapped in all modules of its package, as if it had been wrapped
    before they imported it.
    """
    original = getattr_static(owner, name)
    wrapper = wrap(original, before_call)
    if not isinstance(owner, ModuleType):
        owners = [owner]
    else:
        package = owner.__name__.partition(".")[0]
        owners = [
            module
            for key, module in sys.modules.items()
            if key.partition(".")[0] == package and vars(module).get(name) is original
        ]
    for each in owners:
        setattr(each, name, wrapper)
    try:
        yield
        assert all(vars(each)[name] is wrapper for each in owners)
    finally:
        for each in owners:
            setattr(each, name, original)
