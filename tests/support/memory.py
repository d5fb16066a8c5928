"""Addresses, the memory that the process uses, and the time that code takes."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tensorwire import TensorwireError

LIBC = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)
MALLINFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class InUse(NamedTuple):
    n_blocks: int  # of Python's memory, which include all objects
    malloc_nbytes: int  # of glibc's malloc; 0 with another C library


def in_use() -> InUse:
    """Collect garbage, and return what is in use."""
    gc.collect()
    return InUse(sys.getallocatedblocks(), malloc_nbytes())


EXPECTED_ERRORS = (TensorwireError, TypeError, ValueError, BufferError, KeyError, IndexError)
N_WARM = 30  # calls that fill caches and free lists


def call(work: Callable[[], object], n_calls: int) -> None:
    """Call a function repeatedly, and ignore the errors that this package raises."""
    for _ in range(n_calls):
        with suppress(*EXPECTED_ERRORS):
            work()


def leak_of(work: Callable[[], object], n_calls: int) -> str:
    """Describe what calls leak repeatedly, if it is at least half a block for each of them.

    A cache that grows once is not a leak.
    """
    leak = ""
    for _ in range(3):
        call(work, N_WARM)
        before = in_use()
        call(work, n_calls)
        after = in_use()
        n_blocks = after.n_blocks - before.n_blocks
        nbytes = after.malloc_nbytes - before.malloc_nbytes
        if n_blocks > n_calls // 2:
            leak = f"{n_blocks} blocks in {n_calls} calls"
        elif nbytes > 64 * n_calls + 20_000:
            leak = f"{nbytes} bytes of malloc in {n_calls} calls"
        else:
            return ""
    return leak


def resident_nbytes() -> int:
    """Return the resident memory of the process; 0 without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except FileNotFoundError:
        return 0


def status_nbytes(name: str, process: int | str = "self") -> int:
    """Return a size from the status of a process: "VmRSS", or "VmHWM" for the largest VmRSS."""
    [line] = re.findall(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(line) * 1024


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO.split()]


def malloc_nbytes() -> int:
    mallinfo = getattr(LIBC, "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def address(memory: Any) -> int:
    """Return the address of an array, or of another object that has a buffer."""
    array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, np.uint8)
    return int(array.ctypes.data)


def peak_nbytes(work: Callable[[], object]) -> int:
    """Return the most memory that Python and numpy allocate during a call, with its result."""
    gc.collect()
    tracemalloc.start()
    try:
        result = work()
        peak = tracemalloc.get_traced_memory()[1]
        del result
        return peak
    finally:
        tracemalloc.stop()


@contextmanager
def takes(at_least: float, at_most: float) -> Iterator[None]:
    """Check how many seconds a ``with`` block takes."""
    started = time.perf_counter()
    yield
    assert at_least <= time.perf_counter() - started <= at_most


def cpu_seconds(work: Callable[[], object], n_times: int) -> float:
    """Return the shortest CPU time of this thread for a call, without garbage collections."""
    seconds = []
    gc.disable()
    try:
        for _ in range(n_times):
            before = time.thread_time()
            work()
            seconds.append(time.thread_time() - before)
    finally:
        gc.enable()
    return min(seconds)
