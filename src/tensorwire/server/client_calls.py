"""Calls in threads for a request. They are dropped if they wait while the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ..threads import ThreadCall, Threads
from .errors import ClientDisconnectedError, OverloadedError, log

# A client that has only closed its sending direction still gets its response if its calls wait for
# a thread for less than this time.
GONE_SECONDS = 1.0


class ClientCall(ThreadCall):
    """A call for a request, one at a time, which is dropped if it waits while the client is gone.

    ``wait_for_disconnect`` is an async function that returns when the client disconnects. A
    transport that calls ``disconnect`` or ``cancel`` itself does not have it.
    """

    wait_for_disconnect: Callable[[], Awaitable[object]] | None = None
    is_cancelled: bool = False  # the client does not wait for the response
    _is_disconnected = False

    def cancel(self) -> None:
        """Drop the call if it waits for a thread: the client certainly does not wait for it."""
        self.is_cancelled = True
        self._drop()

    def disconnect(self) -> None:
        """Drop the call unless it gets a thread within GONE_SECONDS."""
        self._is_disconnected = True
        if self._job is not None:
            loop = self._future.get_loop()
            loop.call_later(GONE_SECONDS, self._drop_if_current, self._future)

    def _drop_if_current(self, future: asyncio.Future[None]) -> None:
        if future is self._future:  # and not that of an earlier call for the request
            self._drop()

    def _drop(self) -> None:
        text = "the client closed the connection before its request was processed"
        self.drop(ClientDisconnectedError(text))

    async def run(self, threads: Threads, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread. Raises ClientDisconnectedError if it is dropped."""
        try:
            is_waiting = self.start(threads, function, *arguments)
        except RuntimeError as error:
            log.error("no thread can be started: %s", error)
            raise OverloadedError.by("threads", "no thread can be started") from None
        return await self._await_result(is_waiting)

    async def in_thread(
        self, function: Callable[..., Any], *arguments: Any, threads: Threads
    ) -> Any:
        """Do what ``threads.in_thread`` does. Raises ClientDisconnectedError if it is dropped."""
        is_waiting = None
        with suppress(RuntimeError):
            is_waiting = self.start(threads, function, *arguments)
        return function(*arguments) if is_waiting is None else await self._await_result(is_waiting)

    async def _await_result(self, is_waiting: bool) -> Any:
        if not is_waiting:
            return await self.result()
        watcher = None
        if self.is_cancelled:
            self._drop()
        elif self._is_disconnected:  # since the call before
            self.disconnect()
        elif self.wait_for_disconnect is not None:
            watcher = asyncio.create_task(self._watch(self.wait_for_disconnect))
        try:
            return await self.result()
        finally:
            if watcher is not None:
                with suppress(RuntimeError):  # the event loop is closed
                    watcher.cancel()

    async def _watch(self, wait_for_disconnect: Callable[[], Awaitable[object]]) -> None:
        with suppress(Exception):  # of middleware; the call then runs in any case
            await wait_for_disconnect()
            self.disconnect()
