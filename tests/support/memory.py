"""The memory that the process uses."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import NamedTuple

MALLINFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class InUse(NamedTuple):
    n_blocks: int  # of Python's memory, which include all objects
    malloc_nbytes: int  # of glibc's malloc; 0 with another C library


def in_use() -> InUse:
    """Collect garbage, and return what is in use."""
    gc.collect()
    return InUse(sys.getallocatedblocks(), malloc_nbytes())


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO.split()]


def malloc_nbytes() -> int:
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)
