"""Work of this package that would block an event loop, in the threads of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


def in_thread(function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
    """Call a function of this package in a thread of the event loop's own pool.

    It does not wait for models, whose calls may take long. If no thread can be started, the
    function is called in the event loop, because the model may have run already.
    """
    call = [function, *arguments]
    try:
        return asyncio.get_running_loop().run_in_executor(None, _call, call)
    except RuntimeError:
        call.clear()  # the executor has queued it
        return _in_event_loop(function, *arguments)


def _call(call: list[Any]) -> Any:
    function, *arguments = call
    return function(*arguments)


async def _in_event_loop(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
