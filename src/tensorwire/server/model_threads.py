"""The calls of synchronous models, and of work for a request, in threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ..threads import ThreadCall, Threads
from .errors import ClientDisconnectedError, OverloadedError

log = logging.getLogger("tensorwire.server")


class ModelCall(ThreadCall):
    """A call for a request, one at a time, which does not begin if the client is gone by then.

    ``wait_for_disconnect`` is an async function that returns when the client disconnects. A
    transport that calls ``disconnect`` or ``cancel`` itself does not have it.
    """

    wait_for_disconnect: Callable[[], Awaitable[object]] | None = None
    is_cancelled: bool = False  # the client does not wait for the response
    _is_disconnected = False

    def cancel(self) -> None:
        """Cancel the call unless it runs: the client certainly does not wait for the response."""
        self.is_cancelled = True
        self.disconnect()

    def disconnect(self) -> None:
        """Cancel the call if it waits for a thread.

        If no call waits for long, it is not cancelled: a client that has only closed its sending
        direction gets the response.
        """
        self._is_disconnected = True
        self.drop(
            ClientDisconnectedError(
                "the client closed the connection before its request was processed"
            )
        )

    async def run(self, threads: Threads, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread. Raises ClientDisconnectedError if the call was cancelled."""
        try:
            is_waiting = self.start(threads, function, *arguments)
        except RuntimeError as error:
            log.error("no thread can be started: %s", error)
            raise OverloadedError.by("threads", "no thread can be started") from None
        return await self._await_result(is_waiting)

    async def in_thread(
        self, function: Callable[..., Any], *arguments: Any, threads: Threads
    ) -> Any:
        """Do what ``threads.in_thread`` does, unless the client is gone while the call waits.

        Raises ClientDisconnectedError.
        """
        is_waiting = None
        with suppress(RuntimeError):
            is_waiting = self.start(threads, function, *arguments)
        return function(*arguments) if is_waiting is None else await self._await_result(is_waiting)

    async def _await_result(self, is_waiting: bool) -> Any:
        if not is_waiting:
            return await self.result()
        watcher = None
        if self._is_disconnected:  # since the call before
            self.disconnect()
        elif self.wait_for_disconnect is not None:
            watcher = asyncio.create_task(self._watch(self.wait_for_disconnect))
        try:
            return await self.result()
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _watch(self, wait_for_disconnect: Callable[[], Awaitable[object]]) -> None:
        with suppress(Exception):  # of middleware; the call then runs in any case
            await wait_for_disconnect()
            self.disconnect()
