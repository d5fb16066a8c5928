"""Threads for work of this package that would block an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")

_executor: ThreadPoolExecutor | None = None  # made on first use


def in_thread(function: Callable[..., Result], *arguments: Any) -> Awaitable[Result]:
    """Call a function of this package in a thread of this package.

    It does not wait for models, or for the default threads of the event loop: a program may have
    filled them with calls that wait for this one. If no thread can be started, the function is
    called in the event loop. It would be too late for an error: the model may have run already.
    """
    global _executor  # noqa: PLW0603
    call = [function, *arguments]
    executor = _executor = _executor or ThreadPoolExecutor(thread_name_prefix="tensorwire-codec")
    try:
        return asyncio.wrap_future(executor.submit(_call, call))
    except RuntimeError:
        call.clear()  # the executor has queued it
        _forget_threads()
        executor.shutdown(wait=False)  # it would count the thread that drops the call as idle
        return _in_event_loop(function, *arguments)


def _call(call: list[Any]) -> Any:
    function, *arguments = call
    return function(*arguments)


async def _in_event_loop(function: Callable[..., Result], *arguments: Any) -> Result:
    return function(*arguments)


def _forget_threads() -> None:
    global _executor  # noqa: PLW0603
    _executor = None


os.register_at_fork(after_in_child=_forget_threads)
