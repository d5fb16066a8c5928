"""The memory of an application for the bodies of requests, which is limited."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from pathlib import Path

from ..errors import TensorwireError, format_count

UNCOUNTED_NBYTES = 64 << 10
"""A body up to this size is not counted: the limits of connections and requests are enough."""

_CGROUPS = Path("/sys/fs/cgroup")


def available_nbytes() -> int:
    """Return the memory of the machine, or the lowest limit of the process and its cgroups."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    files = [_CGROUPS / "memory" / "memory.limit_in_bytes"]  # version 1, in a container
    with suppress(OSError, ValueError):  # not Linux, or version 1
        [line] = Path("/proc/self/cgroup").read_text().splitlines()
        group = _CGROUPS / line.removeprefix("0::/")
        files += [each / "memory.max" for each in (group, *group.parents)]
    for file in files:
        with suppress(OSError, ValueError):  # there is no such file, or the limit is "max"
            limits.append(int(file.read_text()))
    return min(limits)


def default_nbytes() -> int:
    """Return half of the available memory, which the processes of a server share.

    WEB_CONCURRENCY is the variable with which uvicorn and others are told their number.
    """
    n_processes = os.environ.get("WEB_CONCURRENCY", "")
    return available_nbytes() // 2 // max(1, int(n_processes) if n_processes.isdigit() else 1)


class OverloadedError(TensorwireError):
    """A limit of what the server does at once is reached. ``status`` is 503."""

    status = 503

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit
        """The name of the option with the limit."""


class BodyMemory:
    """The number of bytes that the bodies of an application may have together.

    A body that does not fit waits until enough others have ended, in the order of arrival. One that
    is larger than the limit waits until it is alone.
    """

    def __init__(self, max_nbytes: int) -> None:
        self.max_nbytes = max_nbytes
        self._lock = threading.Lock()  # an application may run in several event loops
        self._nbytes = 0
        self._waiting: deque[Reservation] = deque()

    def _fits(self, reservation: Reservation, nbytes: int) -> bool:
        return self._nbytes == reservation.nbytes or self._nbytes + nbytes <= self.max_nbytes

    def reserve(self, reservation: Reservation, nbytes: int, may_wait: bool) -> bool:
        with self._lock:
            fits = self._fits(reservation, nbytes) and not (may_wait and self._waiting)
            if fits:
                self._nbytes += nbytes
                reservation.nbytes += nbytes
            elif may_wait:
                reservation.missing_nbytes = nbytes
                self._waiting.append(reservation)
            return fits

    def resize(self, reservation: Reservation, nbytes: int) -> None:
        granted = []
        with self._lock:
            if reservation.missing_nbytes:
                self._waiting.remove(reservation)
                reservation.missing_nbytes = 0
            self._nbytes += nbytes - reservation.nbytes
            reservation.nbytes = nbytes
            while self._waiting and self._fits(first := self._waiting[0], first.missing_nbytes):
                granted.append(self._waiting.popleft())
                self._nbytes += first.missing_nbytes
                first.nbytes += first.missing_nbytes
                first.missing_nbytes = 0
        for each in granted:
            each.notify()


class Reservation(ABC):
    """The part of a ``BodyMemory`` that a request has."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.nbytes = 0
        self.missing_nbytes = 0
        """Number of bytes that it waits for."""

    @abstractmethod
    def notify(self) -> None:
        """Continue: there is the memory for which it has waited. Any thread may call this."""

    def reserve(self, nbytes: int, may_wait: bool) -> bool:
        """Reserve more memory, and return whether it is there.

        Otherwise, it waits for the memory, or the method raises OverloadedError.
        """
        is_there = self._memory.reserve(self, nbytes, may_wait)
        if not is_there and not may_wait:
            raise self.overloaded_error()
        return is_there

    def resize(self, nbytes: int) -> None:
        """Change the size to that of a body that is in memory already, and no longer wait."""
        self._memory.resize(self, nbytes if nbytes > UNCOUNTED_NBYTES else 0)

    def release(self) -> None:
        if self.nbytes or self.missing_nbytes:
            self.resize(0)

    def overloaded_error(self) -> OverloadedError:
        return OverloadedError(
            "the server is overloaded: the limit is "
            f"{format_count('byte', self._memory.max_nbytes)} of requests in progress",
            limit="max_body_memory",
        )


class AwaitedReservation(Reservation):
    """A reservation that a coroutine waits for."""

    def __init__(self, memory: BodyMemory) -> None:
        super().__init__(memory)
        self._loop = asyncio.get_running_loop()
        self._has_memory = asyncio.Event()

    def notify(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._has_memory.set)

    async def wait_for(self, nbytes: int, timeout: float | None) -> None:
        """Reserve memory, and wait until it is there. Raises OverloadedError."""
        if nbytes <= UNCOUNTED_NBYTES or self.reserve(nbytes, may_wait=True):
            return
        try:
            async with asyncio.timeout(timeout):
                await self._has_memory.wait()
        except TimeoutError:
            raise self.overloaded_error() from None
        finally:
            self._has_memory.clear()
