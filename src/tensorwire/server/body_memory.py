"""The memory of an application for the bodies of requests, which is limited."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import format_count
from .errors import OverloadedError

UNCOUNTED_NBYTES = 64 << 10
"""A body up to this size is not counted: the limits of connections and requests are enough."""

TICK_SECONDS = 1.0
"""A transport calls ``BodyMemory.tick`` after this time while one of its bodies waits."""

# While others wait, a body with memory is given up if less than UNCOUNTED_NBYTES of it arrive in
# this number of ticks. A body that waits is given up if, in as many ticks in a row, its socket has
# less than _MIN_UNRECEIVED_NBYTES for the server. Ticks are counted, and not seconds, because the
# event loop may have been blocked for any time.
_N_TICKS = 5
PERIOD_SECONDS = _N_TICKS * TICK_SECONDS
_MIN_UNRECEIVED_NBYTES = 16 << 10  # fewer than the operating system keeps of any connection
_MAX_N_AHEAD = 16  # how many bodies may allocate a step that is not counted: a quarter of the limit
_MAX_TLS_BUFFER_NBYTES = 1 << 20  # what a TLS transport may have received after it was paused

_CGROUPS = Path("/sys/fs/cgroup")
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


def outstanding_nbytes(n_missing: int, is_tls: bool) -> int:
    """Return a lower bound of the missing bytes of a body that the transport has not received."""
    return max(0, n_missing - _MAX_TLS_BUFFER_NBYTES) if is_tls else n_missing


def is_silent(n_unreceived: float, n_outstanding: int) -> bool:
    """Return whether a client sends nothing more of a body that waits for memory.

    ``n_unreceived`` is the number of bytes that the operating system has for the transport.
    """
    return n_unreceived < min(_MIN_UNRECEIVED_NBYTES, n_outstanding)


def allocatable_nbytes() -> list[int]:
    """Return how much more the process may allocate, for each of its limits.

    They also limit memory that is never used, such as that of stacks and libraries.
    """
    if os.name == "nt":  # Windows has no limits of processes
        return []
    import resource  # noqa: PLC0415

    found = []
    for limit, field in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):  # a field of statm
        nbytes = resource.getrlimit(limit)[0]
        if nbytes != resource.RLIM_INFINITY:
            with suppress(OSError):  # not Linux
                n_pages = int(Path("/proc/self/statm").read_text().split()[field])
                nbytes -= n_pages * os.sysconf("SC_PAGE_SIZE")
            found.append(max(1, nbytes))
    return found


def is_unused_memory_counted() -> bool:
    """Return whether the operating system limits what is allocated, rather than what is used."""
    with suppress(OSError, ValueError):  # not Linux
        if int(_OVERCOMMIT.read_text()) == 2:
            return True
    return bool(allocatable_nbytes())


def available_nbytes() -> int:
    """Return the memory of the machine, or the lowest limit of the process and its cgroups.

    Memory that the process uses already is subtracted from its own limits, and not from others.
    """
    if os.name == "nt":
        return 4 << 30
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *allocatable_nbytes()]
    groups = ""
    with suppress(OSError):  # not Linux
        groups = Path("/proc/self/cgroup").read_text(errors="replace")
    for line in filter(None, groups.split("\n")):
        _, controllers, path = line.split(":", 2)
        folder, names = _CGROUPS, ["memory.max", "memory.high"]
        if "memory" in controllers.split(","):  # version 1
            folder, names = _CGROUPS / "memory", ["memory.limit_in_bytes"]
        elif controllers:
            continue
        group = folder / path.lstrip("/")
        for each in (parent / name for parent in (group, *group.parents) for name in names):
            with suppress(OSError, ValueError):  # there is no such file, or the limit is "max"
                limits.append(int(each.read_text()))
    return min(limits)


def default_nbytes() -> int:
    """Return half of the available memory, which the processes of a server share.

    WEB_CONCURRENCY is the variable with which uvicorn and others are told their number.
    """
    n_processes = os.environ.get("WEB_CONCURRENCY", "")
    return available_nbytes() // 2 // max(1, int(n_processes) if n_processes.isdigit() else 1)


class BodyMemory:
    """The number of bytes that the bodies of an application may have together.

    A body gets its memory in steps, as it arrives. A step that does not fit waits until requests
    have ended, and younger bodies wait behind it. But the oldest body that arrives gets its step if
    all others are within the limit, which it may exceed itself: otherwise, bodies might wait for
    each other, or for a model that has a small one. Bodies that are decompressed cannot wait. For
    them alone, the limit is an eighth higher. A body that receives too little while others wait is
    given up. All methods may be called in any thread, and none of them waits.

    Messages of gRPC are not counted. They cannot wait, because they have arrived when their length
    is known, and so bodies that wait for their end might wait for ever.
    """

    def __init__(self, max_nbytes: int) -> None:
        self.max_nbytes: int = max_nbytes
        self.spare_nbytes: int = max_nbytes // 8
        """How much more bodies may have together when they are decompressed."""
        self.step_nbytes: int = max(max_nbytes // 64, UNCOUNTED_NBYTES)
        """The largest step of a body that has less. Others may double."""
        self.counts_unused: bool = is_unused_memory_counted()
        self.nbytes: int = 0
        self.decompressed_nbytes: int = 0
        """The part of ``nbytes`` that bodies have taken when they were decompressed."""
        self.n_refused: int = 0
        """How many times there was no memory for bytes that were decompressed."""
        self._lock = threading.Lock()
        # The reservations of bodies that are not complete, the oldest first.
        self._arriving: dict[Reservation, None] = {}
        self._ahead: set[Reservation] = set()  # those that have allocated more than is counted
        # Those that have ended since the lock was taken, and whether their memory is released.
        self._ended: deque[tuple[Reservation, bool]] = deque()
        self._next_tick = 0.0
        self._n_ticks = 0

    def is_needed(self, n_refused: int) -> bool:
        """Whether a body waits, or one was refused since ``n_refused`` had this value."""
        if self.n_refused != n_refused:
            return True
        with self._locked():
            return any(each.missing_nbytes for each in self._arriving)

    def tick(self, now: float) -> None:
        """Give up the bodies that receive too little. A transport calls it while a body waits."""
        with self._locked():
            if now < self._next_tick:
                return
            self._next_tick = now + TICK_SECONDS
            self._n_ticks += 1
            if self._n_ticks < _N_TICKS:
                return
            self._n_ticks = 0
            given_up = [each for each in self._arriving if not each.mark_progress()]
            for each in given_up:
                each.is_given_up = True
        for each in given_up:
            each.wake()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._free_and_grant()

    def _end(self, reservation: Reservation, is_released: bool) -> None:
        """End a reservation now or, if a thread has the lock, as soon as that is released.

        This does not wait for the lock: a garbage collection, which may run while a thread has it,
        ends the requests of an event loop that was closed.
        """
        self._ended.append((reservation, is_released))
        self._free_and_grant()

    def _free_and_grant(self) -> None:
        """Free what has ended, and grant the steps that fit then, from the oldest body on.

        This is called after each end, and each time the lock has been released.
        """
        while self._ended and self._lock.acquire(blocking=False):
            granted = []
            try:
                while self._ended:
                    reservation, is_released = self._ended.popleft()
                    self._arriving.pop(reservation, None)
                    self._ahead.discard(reservation)
                    if is_released:
                        reservation.free()
                for each in self._arriving:
                    if each.missing_nbytes:
                        if not each.grant():
                            break
                        granted.append(each)
            finally:
                self._lock.release()
            for each in granted:
                each.wake()


class Reservation:
    """The part of a ``BodyMemory`` that the body of a request has.

    ``wake`` is called, in any thread, when the memory that ``request`` has refused is there, and
    when a body that receives too little is given up. ``n_arrived`` returns how many bytes of the
    body have arrived.
    """

    def __init__(
        self,
        memory: BodyMemory,
        wake: Callable[[], object] = lambda: None,
        n_arrived: Callable[[], int] = lambda: 0,
    ) -> None:
        self._memory: BodyMemory = memory
        self.step_nbytes: int = memory.step_nbytes
        self.wake: Callable[[], object] = wake
        self._n_arrived = n_arrived
        self._n_seen = 0  # bytes that had arrived when the progress was looked at
        self.nbytes: int = 0
        self.missing_nbytes: int = 0
        """What the body waits for."""
        self.is_given_up: bool = False
        """Whether the body arrives too slowly, or not at all, and must be rejected."""
        self._n_silent_ticks = 0
        self._decompressed_nbytes = 0

    def allocate_ahead(self) -> int:
        """Return how much a body may allocate that it does not use yet, and that is not counted.

        Few bodies may: the blocks of many would divide the heap, so that memory which is freed
        between them could not be used again.
        """
        memory = self._memory
        if memory.counts_unused:
            return 0
        with memory._locked():
            if len(memory._ahead) >= _MAX_N_AHEAD and self not in memory._ahead:
                return 0
            memory._ahead.add(self)
        return self.step_nbytes

    def request(self, nbytes: int) -> bool:
        """Ask for memory for this number of bytes in total, and return whether it is there.

        If not, the body waits for it. A body that waits may ask again.
        """
        memory = self._memory
        arriving = memory._arriving
        with memory._locked():
            arriving.setdefault(self)
            is_first = not any(each.missing_nbytes for each in arriving)
            self.missing_nbytes = max(0, nbytes - self.nbytes)
            waiting = next(each for each in arriving if each is self or each.missing_nbytes)
            if (waiting is self or not self.missing_nbytes) and self.grant():
                return True
            if is_first:
                memory._n_ticks = 0  # from now on, bodies must make progress
                for each in arriving:
                    each.mark_progress()
            return False

    def grant(self) -> bool:
        """Grant what is missing if it fits. The caller has the lock."""
        memory = self._memory
        others_nbytes = memory.nbytes - self.nbytes
        others_nbytes -= min(memory.decompressed_nbytes, memory.spare_nbytes)
        nbytes = others_nbytes + self.nbytes + self.missing_nbytes
        # The last eighth is for bodies that have memory already: otherwise, new ones would take all
        # of it. Several bodies go on together, so that silent ones are given up in one period.
        limit = memory.max_nbytes - (0 if self.nbytes else memory.max_nbytes // 8)
        fits = nbytes <= limit or not self.missing_nbytes
        if self is next(iter(memory._arriving), None):  # the oldest one
            fits = fits or others_nbytes <= memory.max_nbytes
        if fits and self.missing_nbytes:
            memory.nbytes += self.missing_nbytes
            self.nbytes += self.missing_nbytes
            self.missing_nbytes = 0
            self._n_seen = self._n_arrived() - UNCOUNTED_NBYTES  # a step counts as progress
            self._n_silent_ticks = 0
        return fits

    def tick(self, is_silent: bool) -> None:
        """Give up a body that waits if its client sends nothing more. A transport calls this."""
        self._n_silent_ticks = self._n_silent_ticks + 1 if is_silent else 0
        if self._n_silent_ticks >= _N_TICKS:
            self.is_given_up = True

    def mark_progress(self) -> bool:
        """Return whether enough has arrived since the last call, or the body waits."""
        n_arrived = self._n_arrived()
        n_more, self._n_seen = n_arrived - self._n_seen, n_arrived
        return n_more >= UNCOUNTED_NBYTES or self.missing_nbytes > 0

    def extend(self, needed: int, wanted: int = 0) -> int:
        """Take more memory for the decompressed bytes of a complete body, and return how much.

        If there is room, it is what is wanted. Raises OverloadedError if neither the memory nor its
        spare part has room for what is needed.
        """
        memory = self._memory
        with memory._locked():
            room = memory.max_nbytes + memory.spare_nbytes - memory.nbytes
            room = max(room, memory.spare_nbytes - memory.decompressed_nbytes)
            if room < needed:
                memory.n_refused += 1
                raise self.overloaded_error()
            nbytes = min(max(needed, wanted), room)
            memory.nbytes += nbytes
            self.nbytes += nbytes
            memory.decompressed_nbytes += nbytes
            self._decompressed_nbytes += nbytes
        return nbytes

    def keep(self, nbytes: int, capacity: int) -> None:
        """Release what a body does not need after it was decompressed, to a block of this size."""
        if self._memory.counts_unused:
            nbytes = capacity
        rest = Reservation(self._memory)
        with self._memory._locked():
            rest.nbytes = max(0, self.nbytes - nbytes)
            rest._decompressed_nbytes = max(0, self._decompressed_nbytes - nbytes)
            self.nbytes -= rest.nbytes
            self._decompressed_nbytes -= rest._decompressed_nbytes
        rest.release()

    def complete(self) -> None:
        """Keep the memory of a body that has arrived. The next body is the oldest now."""
        self._memory._end(self, is_released=False)

    def release(self) -> None:
        """Release the memory. The body does not take any more."""
        self._memory._end(self, is_released=True)

    def free(self) -> None:
        """Free the memory. The caller has the lock."""
        self._memory.nbytes -= self.nbytes
        self._memory.decompressed_nbytes -= self._decompressed_nbytes
        self.nbytes = self.missing_nbytes = self._decompressed_nbytes = 0

    def overloaded_error(self) -> OverloadedError:
        limit = format_count("byte", self._memory.max_nbytes)
        problem = f"the limit is {limit} of requests in progress"
        return OverloadedError.by("max_body_memory_nbytes", problem)
