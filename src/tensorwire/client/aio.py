"""How the asynchronous client waits: in the event loop of asyncio or uvloop."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from ..threads import in_thread
from .errors import CLOSED
from .sync import POLLIN, POLLOUT, Backend, Result


class LoopWatcher:
    """Waits in the event loop, which refers to this object while it watches the socket."""

    def __init__(self, sock: socket.socket, user: object, backend: LoopBackend) -> None:
        self.user: object = user
        self.backend = backend
        self.loop = backend.loop
        self.fd = sock.fileno()
        self.watched = 0
        self.future: asyncio.Future[int] | None = None

    async def wait(self, events: int, seconds: float | None) -> int:
        if self.backend.ended.done():
            raise ConnectionError(CLOSED)
        future: asyncio.Future[int] = self.loop.create_future()
        self.future = future
        self._watch(events)
        # The timer may be early, because the clock of the event loop may be coarser or ahead.
        timer = None if seconds is None else self.loop.call_later(seconds, self._happened, 0)
        try:
            return await future
        finally:
            self.future = None
            if timer is not None:
                timer.cancel()

    def _watch(self, events: int) -> None:
        loop = self.loop
        for event, add, remove in (
            (POLLIN, loop.add_reader, loop.remove_reader),
            (POLLOUT, loop.add_writer, loop.remove_writer),
        ):
            # An event is added again, which costs no system call, because uvloop removes it after
            # an error of the socket.
            if events & event:
                try:
                    add(self.fd, self._happened, event)
                except RuntimeError:  # uvloop has closed its handle for the socket
                    remove(self.fd)
                    add(self.fd, self._happened, event)
            elif self.watched & event:
                remove(self.fd)
        self.watched = events

    def _happened(self, events: int) -> None:
        if self.future is None:  # the connection is idle: is_open sees what has arrived
            self._watch(0)
        elif not self.future.done():
            self.future.set_result(events)

    def close(self) -> None:
        self._watch(0)
        self.user = None  # otherwise only the garbage collector would release it


class LoopBackend(Backend):
    """Suspends the task of a call."""

    is_async = True

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.watchers: weakref.WeakSet[LoopWatcher] = weakref.WeakSet()
        self.ended = self.loop.create_future()

    def is_lost(self) -> bool:
        if self.loop is asyncio.get_running_loop():
            return False
        if self.loop.is_running():
            raise RuntimeError(
                "the client is used by another event loop, which still runs: make an AsyncClient "
                "for each event loop, or use a Client"
            )
        return True

    def check(self) -> None:
        if self.is_lost() or self.ended.done():
            raise RuntimeError("the client is closed")

    async def end_calls(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        for watcher in list(self.watchers):
            if watcher.future is not None and not watcher.future.done():
                watcher.future.set_exception(ConnectionError(CLOSED))
        await asyncio.sleep(0)  # the calls close their connections
        await asyncio.sleep(0)  # asyncio.wait needs another turn to end the calls that have none

    def watch(self, sock: socket.socket, user: object) -> LoopWatcher:
        try:
            self.loop.remove_reader(sock.fileno())  # it has none
        except NotImplementedError:
            raise RuntimeError(
                f"AsyncClient cannot wait for sockets in a {type(self.loop).__name__}: run it with "
                "asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)"
            ) from None
        watcher = LoopWatcher(sock, user, self)
        self.watchers.add(watcher)
        return watcher

    def new_future(self) -> asyncio.Future[None]:
        return self.loop.create_future()

    async def wait_for(self, future: Any, seconds: float) -> bool:
        await asyncio.wait({future}, timeout=seconds)
        return bool(future.done())

    async def sleep(self, seconds: float) -> None:
        await asyncio.wait({self.ended}, timeout=seconds)
        if self.ended.done():
            raise ConnectionError(CLOSED)

    async def run(
        self, is_slow: bool, function: Callable[..., Result], *arguments: Any, **named: Any
    ) -> Result:
        if not is_slow:
            return function(*arguments, **named)
        return await in_thread(partial(function, *arguments, **named))

    async def result_of(self, future: Future[Result], seconds: float | None) -> Result:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(future)
