"""The memory of an application for the bodies of requests, which is limited."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import TensorwireError, format_count

UNCOUNTED_NBYTES = 64 << 10
"""A body up to this size is not counted: the limits of connections and requests are enough."""

_CGROUPS = Path("/sys/fs/cgroup")


def available_nbytes() -> int:
    """Return the memory of the machine, or the lowest limit of the process and its cgroups.

    What the process has already counts only against the limit of its address space, which also
    limits memory that is never used, such as that of stacks and libraries.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        with suppress(OSError):  # not Linux
            n_pages = int(Path("/proc/self/statm").read_text().split()[0])
            address_space -= n_pages * os.sysconf("SC_PAGE_SIZE")
        limits.append(max(1, address_space))
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

    @classmethod
    def by_limit_concurrency(cls, limit: int) -> OverloadedError:
        return cls(
            f"the server is overloaded: limit_concurrency is {limit}", limit="limit_concurrency"
        )


class BodyMemory:
    """The number of bytes that the bodies of an application may have together.

    A body that does not fit waits until enough others have ended, in the order of arrival; only
    small ones that fit pass the others. One that is larger than the limit waits until it is alone.
    """

    def __init__(self, max_nbytes: int) -> None:
        self.max_nbytes: int = max_nbytes
        self.lock: threading.Lock = threading.Lock()  # it may run in several event loops
        self.nbytes: int = 0
        self.waiting: deque[Reservation] = deque()


class Reservation:
    """The part of a ``BodyMemory`` that a request has.

    ``resume`` is called in the event loop when there is the memory for which it has waited.
    """

    def __init__(self, memory: BodyMemory, resume: Callable[[], object]) -> None:
        self._memory: BodyMemory = memory
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it waits
        self._resume = resume
        self._nbytes = 0
        self._missing_nbytes = 0  # what it waits for

    def reserve(self, nbytes: int, may_wait: bool) -> bool:
        """Reserve more memory, and return whether it is there.

        Otherwise, it waits for the memory, or the method raises OverloadedError.
        """
        memory = self._memory
        with memory.lock:
            self._missing_nbytes = nbytes
            is_next = not (may_wait and memory.waiting) or nbytes <= memory.max_nbytes // 64
            if is_next and self._grant():
                return True
            if may_wait:
                self._loop = asyncio.get_running_loop()
                memory.waiting.append(self)
                return False
            self._missing_nbytes = 0
        raise self.overloaded_error()

    def _grant(self) -> bool:
        memory, missing = self._memory, self._missing_nbytes
        fits = memory.nbytes == self._nbytes or memory.nbytes + missing <= memory.max_nbytes
        if fits:
            memory.nbytes += missing
            self._nbytes += missing
            self._missing_nbytes = 0
        return fits

    def resize(self, nbytes: int) -> None:
        """Change the size to that of a body that is in memory already, and no longer wait."""
        memory, granted = self._memory, []
        nbytes = nbytes if nbytes > UNCOUNTED_NBYTES else 0
        with memory.lock:
            if self._missing_nbytes:
                memory.waiting.remove(self)
                self._missing_nbytes = 0
            memory.nbytes += nbytes - self._nbytes
            self._nbytes = nbytes
            while memory.waiting and memory.waiting[0]._grant():
                granted.append(memory.waiting.popleft())
        for each in granted:
            assert each._loop is not None
            with suppress(RuntimeError):  # its event loop is closed
                each._loop.call_soon_threadsafe(each._resume)

    def release(self) -> None:
        self.resize(0)

    async def wait_for(self, nbytes: int, timeout: float | None) -> None:
        """Reserve memory, and wait until it is there. Raises OverloadedError."""
        has_memory = asyncio.Event()
        self._resume = has_memory.set
        if nbytes > UNCOUNTED_NBYTES and not self.reserve(nbytes, may_wait=True):
            try:
                async with asyncio.timeout(timeout):
                    await has_memory.wait()
            except TimeoutError:
                raise self.overloaded_error() from None

    def overloaded_error(self) -> OverloadedError:
        return OverloadedError(
            "the server is overloaded: the limit is "
            f"{format_count('byte', self._memory.max_nbytes)} of requests in progress",
            limit="max_body_memory",
        )
