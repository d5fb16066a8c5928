"""The connections of a client."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .options import Deadline
from .sync import Backend

if TYPE_CHECKING:
    from .connection import Connection

_LOST_SECONDS = 1.0  # how often a call that waits looks for leases that were lost


class Lease:
    """The right of one call to use a connection of the pool, or to open one.

    It ends at the latest when the last reference to it is gone: a signal handler may raise an
    exception between any two instructions, also before a call can keep what it has acquired. There
    is no ``__del__`` for this, because an exception in it would be lost.
    """

    __slots__ = ("__weakref__", "begun", "connection")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.begun: Any = None  # a future of the backend, if the call waits for the lease


class Pool:
    """Up to ``size`` connections. The idle connection that was used last is used first.

    A call that acquires a lease gets it with or without a connection. If all are in use, it waits
    in a queue. Connections that were idle for ``idle_timeout`` seconds are closed when a lease
    begins or ends.

    The lock is held for a few operations only, and never while a call waits. A signal handler may
    close the client while its own thread holds the lock.
    """

    def __init__(self, backend: Backend, size: int, idle_timeout: float | None) -> None:
        self.backend = backend
        self.lock = threading.RLock()
        self.size = size
        self.idle: deque[Connection] = deque()
        self.idle_timeout = idle_timeout
        self.leases: dict[int, weakref.ref[Lease]] = {}  # those in use, by their ids
        self.waiting: deque[Lease] = deque()
        self.is_closed = False
        self.pid = os.getpid()

    async def acquire(self, deadline: Deadline) -> Lease:
        """Return a lease. If it has no connection, the caller must connect."""
        self.backend.check()
        lease = Lease()
        with self.lock:
            self._check_open()
            self._close_expired()
            if self._has_free():
                self._begin(lease)
                return lease
            lease.begun = self.backend.new_future()
            self.waiting.append(lease)
        try:
            while True:
                seconds, _ = deadline.limit("total")
                seconds = min(_LOST_SECONDS, seconds or _LOST_SECONDS)
                if await self.backend.wait_for(lease.begun, seconds):
                    break
                self._serve()
            self._check_open()
        except BaseException:
            with self.lock, suppress(ValueError):
                self.waiting.remove(lease)
            self.release(lease, lease.connection)  # it may have begun in the meantime
            raise
        return lease

    def _has_free(self) -> bool:
        if len(self.leases) >= self.size:
            self.leases = {key: ref for key, ref in self.leases.items() if ref() is not None}
        return len(self.leases) < self.size

    def _begin(self, lease: Lease) -> None:
        self.leases[id(lease)] = weakref.ref(lease)
        if self.idle:
            lease.connection = self.idle.pop()

    def _serve(self) -> None:
        """Begin the leases of calls that wait."""
        with self.lock:
            while self.waiting and self._has_free():
                lease = self.waiting.popleft()
                self._begin(lease)
                lease.begun.set_result(None)

    def release(self, lease: Lease, connection: Connection | None) -> None:
        """End a lease, and keep its connection, which is None if it was closed."""
        if self.pid != os.getpid():  # a thread of the parent process may have had the lock
            return
        with self.lock:
            if connection is not None and self.is_closed:
                connection.close()
            elif connection is not None:
                connection.idle_since = time.monotonic()
                self.idle.append(connection)
            lease.connection = None
            self.leases.pop(id(lease), None)
            self._serve()
            self._close_expired()

    def _close_expired(self) -> None:
        if self.idle_timeout is None or not self.idle:
            return
        oldest = time.monotonic() - self.idle_timeout
        while self.idle and self.idle[0].idle_since < oldest:
            self.idle.popleft().close()

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("the client is closed")

    async def close(self) -> None:
        """Close the idle connections. The other calls close theirs when they end."""
        with self.lock:
            self.is_closed = True
            while self.idle:
                self.idle.pop().close()
            while self.waiting:
                self.waiting.popleft().begun.set_result(None)
        await self.backend.end_calls()

    def forget(self) -> None:
        """Close the idle connections of an event loop that has ended, or of the parent process.

        A thread of the parent process may have had the lock, so it is not used. A connection
        of the parent process stays open there.
        """
        for connection in self.idle:
            connection.close()
