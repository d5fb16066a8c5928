"""How the blocking client waits: with ``poll``, or ``select`` under eventlet and on Windows."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from .errors import CLOSED
from .options import Deadline

POLLIN: int = getattr(select, "POLLIN", 1)
POLLOUT: int = getattr(select, "POLLOUT", 4)
_MAX_SECONDS = 2_000_000  # poll accepts at most 2^31 milliseconds

Result = TypeVar("Result")


def complete(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that is never suspended, such as those of the blocking client."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("the coroutine was suspended")


class PollWatcher:
    """Waits with ``poll``, which Python repeats with the remaining time after a signal."""

    def __init__(self, sock: socket.socket) -> None:
        self.fd = sock.fileno()
        self.poller = select.poll()

    async def wait(self, events: int, seconds: float | None) -> int:
        """Return the events (POLLIN, POLLOUT) that have happened, or 0 after about ``seconds``."""
        self.poller.register(self.fd, events)
        found = self.poller.poll(None if seconds is None else min(seconds, _MAX_SECONDS) * 1000)
        return found[0][1] if found else 0

    def close(self) -> None:
        """Release the socket, before it is closed."""


class SelectWatcher(PollWatcher):
    """Waits with ``select``: eventlet removes ``poll``, and Windows has none."""

    def __init__(self, sock: socket.socket) -> None:
        self.fd = sock.fileno()

    async def wait(self, events: int, seconds: float | None) -> int:
        readers = [self.fd] if events & POLLIN else []
        writers = [self.fd] if events & POLLOUT else []
        timeout = None if seconds is None else min(seconds, _MAX_SECONDS)
        # On Windows, a connection that cannot be established is an exceptional condition.
        readable, writable, failed = select.select(readers, writers, writers, timeout)
        return (POLLIN if readable else 0) | (POLLOUT if writable or failed else 0)


class Backend:
    """How a client waits: it blocks the thread of a call. ``LoopBackend`` suspends a task."""

    is_async = False

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended: Any = threading.Event()  # when the client is closed
        self.lookup: Future[Any] | None = None

    def is_lost(self) -> bool:
        """Return whether the event loop has ended. Raises RuntimeError if it runs elsewhere."""
        return False

    def check(self) -> None:
        """Raise RuntimeError if the caller cannot use this backend."""

    async def end_calls(self) -> None:
        """End the calls of a client that is closed, if they cannot return."""
        self.ended.set()

    def watch(self, sock: socket.socket, user: object) -> Any:
        """Return an object that waits for a socket. ``user`` lives as long as it is watched."""
        return PollWatcher(sock) if hasattr(select, "poll") else SelectWatcher(sock)

    def new_future(self) -> Any:
        return Future()

    async def wait_for(self, future: Any, seconds: float) -> bool:
        """Return whether a future is done, at the latest after ``seconds``."""
        with suppress(TimeoutError):
            future.result(seconds)
        return bool(future.done())

    async def sleep(self, seconds: float) -> None:
        """Wait before another attempt. Raises ConnectionError if the client is closed meanwhile."""
        if self.ended.wait(seconds):
            raise ConnectionError(CLOSED)

    async def run(
        self, is_slow: bool, function: Callable[..., Result], *arguments: Any, **named: Any
    ) -> Result:
        """Call a function, in a thread if it is slow and would block an event loop."""
        return function(*arguments, **named)

    async def look_up(self, host: str, port: int, deadline: Deadline) -> list[Any]:
        """Return the results of ``getaddrinfo``, which has no timeout. Raises OSError.

        It is called in a thread, which does not keep the program alive. A call that needs the
        addresses while this thread runs waits for it. A client therefore has at most one such
        thread, also if the name servers do not respond.
        """
        seconds, step = deadline.limit("connect")
        with self.lock:
            lookup = self.lookup
            if lookup is None or lookup.done():
                lookup = Future()
                lookup.set_running_or_notify_cancel()  # a task that is cancelled does not cancel it
                threading.Thread(target=_look_up, args=(lookup, host, port), daemon=True).start()
                self.lookup = lookup  # not before: the thread may be impossible to start
        try:
            found = await self.result_of(lookup, seconds)
        except TimeoutError:
            raise deadline.timeout_error(step) from None
        if isinstance(found, Exception):
            raise type(found)(*found.args)  # an exception belongs to one thread
        addresses: list[Any] = found
        return addresses

    async def result_of(self, future: Future[Result], seconds: float | None) -> Result:
        """Return what another thread sets as the result. Raises TimeoutError."""
        return future.result(None if seconds is None else min(seconds, _MAX_SECONDS))


def _look_up(lookup: Future[Any], host: str, port: int) -> None:
    found: Any
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except Exception as error:
        found = error.with_traceback(None)  # it would refer to the future
    lookup.set_result(found)
