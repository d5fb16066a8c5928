"""The connections of a client."""

from __future__ import annotations

import threading
import time
from collections import deque

from .connection import Backend, Connection, Waiter
from .limits import Deadline


class Pool:
    """Up to ``size`` connections. The idle connection that was used last is used first.

    A call that acquires a slot gets it with or without a connection. If all slots are in use, it
    waits in a queue. Connections that were idle for ``idle_timeout`` seconds are closed when
    another connection is acquired or released.

    The lock is held for a few operations only, and never while a call waits.
    """

    def __init__(self, backend: Backend, size: int, idle_timeout: float | None) -> None:
        self.backend = backend
        self.lock = threading.RLock()  # a signal handler may close the client
        self.idle: deque[Connection] = deque()
        self.idle_timeout = idle_timeout
        self.n_free = size  # number of slots that are neither in use nor have an idle connection
        self.waiting: deque[Waiter] = deque()
        self.is_closed = False

    async def acquire(self, deadline: Deadline) -> Connection | None:
        """Take a slot. Returns its idle connection, or None if the caller must connect."""
        self.backend.check()
        with self.lock:
            self._check_open()
            self._close_expired()
            if self.idle:
                return self.idle.pop()
            if self.n_free > 0:
                self.n_free -= 1
                return None
            waiter = self.backend.new_waiter()
            self.waiting.append(waiter)
        try:
            seconds, step = deadline.limit("total")
            if not await waiter.wait(seconds):
                raise deadline.timeout_error(step)
            self._check_open()
        except BaseException:
            self._leave(waiter)
            raise
        return waiter.connection

    def _leave(self, waiter: Waiter) -> None:
        """Remove a call from the queue, or release the slot that it has already got."""
        with self.lock:
            if waiter in self.waiting:
                self.waiting.remove(waiter)
                return
        self.release(waiter.connection)

    def release(self, connection: Connection | None) -> None:
        """Return a slot with its connection, or without one if it was closed."""
        with self.lock:
            if connection is not None and self.is_closed:
                connection.close()
                connection = None
            if self.waiting:
                waiter = self.waiting.popleft()
                waiter.connection = connection
                waiter.wake()
            elif connection is None:
                self.n_free += 1
            else:
                connection.idle_since = time.monotonic()
                self.idle.append(connection)
            self._close_expired()

    def _close_expired(self) -> None:
        if self.idle_timeout is None or not self.idle:
            return
        oldest = time.monotonic() - self.idle_timeout
        while self.idle and self.idle[0].idle_since < oldest:
            self.idle.popleft().close()
            self.n_free += 1

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("the client is closed")

    def close(self) -> None:
        """Close the idle connections. The other calls close theirs when they end."""
        with self.lock:
            self.is_closed = True
            while self.idle:
                self.idle.pop().close()
                self.n_free += 1
            while self.waiting:
                self.n_free -= 1  # the waiting call releases a slot
                self.waiting.popleft().wake()
        self.backend.end_calls()

    def forget(self) -> None:
        """Close the copies of the idle sockets that a child process has inherited.

        A thread of the parent process may have had the lock, and its event loop is not that of the
        child process, so neither is used. The connections of the parent process stay open.
        """
        for connection in self.idle:
            connection.socket.close()
