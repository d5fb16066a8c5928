"""The asynchronous client: it waits in the event loop of asyncio or uvloop."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import AsyncIterable, Callable, Iterable
from select import POLLIN, POLLOUT
from typing import TYPE_CHECKING, Any, Self, TypeVar

import tensorwire as tw

from ..threads import in_thread
from .calls import Calls, Inputs
from .errors import CLOSED
from .limits import Deadline, Timeout
from .requests import Headers, Target
from .sync import Client

if TYPE_CHECKING:
    from .connection import Connection
    from .grpc_streams import Stream

Result = TypeVar("Result")


class LoopWatcher:
    """Waits in the event loop, which refers to the connection while it watches its socket."""

    def __init__(self, connection: Connection, backend: LoopBackend) -> None:
        self.connection: Connection | None = connection
        self.backend = backend
        self.loop = backend.loop
        self.fd = connection.socket.fileno()
        self.watched = 0
        self.future: asyncio.Future[int] | None = None

    async def wait(self, events: int, seconds: float | None) -> int:
        if self.backend.is_ended:
            raise ConnectionError(CLOSED)
        future = self.future = self.loop.create_future()
        self._watch(events)
        # The timer may be early, because the clock of the event loop may be coarser or ahead.
        timer = None if seconds is None else self.loop.call_later(seconds, self._happened, 0)
        try:
            happened: int = await future
            return happened
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

    def end_call(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(ConnectionError(CLOSED))

    def close(self) -> None:
        self._watch(0)
        self.connection = None  # otherwise only the garbage collector would release it


class LoopBackend:
    """Suspends the task of a call. See ``BlockingBackend``."""

    is_async = True

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.watchers: weakref.WeakSet[LoopWatcher] = weakref.WeakSet()
        self.is_ended = False

    def check(self) -> None:
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("the client belongs to another event loop, which used it first")
        if self.is_ended:
            raise RuntimeError("the client is closed")

    def end_calls(self) -> None:
        self.is_ended = True
        for watcher in list(self.watchers):
            watcher.end_call()

    def watch(self, connection: Connection) -> LoopWatcher:
        watcher = LoopWatcher(connection, self)
        self.watchers.add(watcher)
        return watcher

    def new_future(self) -> asyncio.Future[None]:
        return self.loop.create_future()

    async def wait_for(self, future: asyncio.Future[None], seconds: float) -> bool:
        await asyncio.wait({future}, timeout=seconds)
        return future.done()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        result: Result = await in_thread(function, *arguments)
        return result

    async def look_up(self, host: str, port: int, deadline: Deadline) -> list[Any]:
        seconds, step = deadline.limit("connect")
        try:
            async with asyncio.timeout(seconds):
                return await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise deadline.timeout_error(step) from None


class AsyncClosing:
    """Is closed at the end of an ``async with`` block."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncClient(Calls, AsyncClosing):
    """An asynchronous client for a server of the Open Inference Protocol.

    It has the same parameters and methods as ``Client``, and raises the same exceptions. It runs on
    asyncio and uvloop. A client belongs to the event loop in which it is first used. It connects on
    the first call. If a call is cancelled, its connection is closed. ``on_progress`` is a function
    that does not block, and not a coroutine function. Large messages are read and written in a
    thread.

    Examples
    --------
    >>> from tensorwire.client import AsyncClient
    >>> async def classify(url, image):
    ...     async with AsyncClient(url) as client:
    ...         response = await client.infer("resnet", {"image": image})
    ...         return response["scores"].as_numpy()
    """

    _new_backend = LoopBackend

    def stream(
        self,
        model: str,
        requests: Iterable[Inputs] | AsyncIterable[Inputs],
        *,
        version: str | None = None,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> AsyncResponseStream:
        return AsyncResponseStream(
            self._open_stream(Target(model, version, headers), requests, timeout)
        )

    stream.__doc__ = Client.stream.__doc__

    async def close(self) -> None:
        """Close all connections. Calls that have not returned end with an exception.

        It is a ConnectionError or RuntimeError. A ``channel`` of the caller stays open, but the
        calls of this client on it end, too.
        """
        closing = self._close_pool()
        if closing is not None:
            await closing
        await asyncio.sleep(0)  # the calls close their connections
        await asyncio.sleep(0)  # asyncio.wait needs another turn to end the calls that have none


class AsyncResponseStream(AsyncClosing):
    """The responses of ``AsyncClient.stream``: an asynchronous iterator of InferResponse.

    As a ``ResponseStream``, but the call is also cancelled if the task that waits for a response
    is.

    Examples
    --------
    >>> from tensorwire.client import AsyncClient
    >>> async def answers(url, prompts):
    ...     async with AsyncClient(url) as client:
    ...         async for response in client.stream("llm", prompts):
    ...             print(response.id, response["text"].as_strings())
    """

    def __init__(self, call: Any) -> None:  # made by the client: its type is not public
        self._call: Stream = call

    def __aiter__(self) -> AsyncResponseStream:
        return self

    async def __anext__(self) -> tw.InferResponse:
        response = await self._call.read()
        if response is None:
            raise StopAsyncIteration
        return response

    async def close(self) -> None:
        """Cancel the call, unless it has ended. The iterator then ends."""
        self._call.close()

    def __del__(self) -> None:
        self._call.close()
