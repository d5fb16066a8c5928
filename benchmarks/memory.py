"""`python -m benchmarks.memory MODULE OPERATION CONTENDER KIND`: print copies and peak as JSON.

Both are numbers of bytes for each byte of a tensor of 16 MB. *copied* is what the call writes to
memory that it has allocated, of whichever allocator: the kernel counts one page fault for each page
of it. *peak* is the growth of the resident memory while the call runs, with its result. A fresh
process makes both exact: its large allocations are not in pages that it has used before.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import resource
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from .arrays import Array, floats, numbers, objects, texts

PR_SET_THP_DISABLE, M_MMAP_THRESHOLD = 41, -3
ARRAYS: dict[str, tuple[Callable[[], Array], Callable[[], Array]]] = {  # the first one warms up
    "FP32": (lambda: floats(32), lambda: floats(4_000_000)),
    "BYTES": (lambda: texts(32, 100, 300), lambda: texts(80_000, 100, 300)),
    "JSON FP32": (lambda: numbers("FP32", 32), lambda: numbers("FP32", 4_000_000)),
    "JSON BYTES": (lambda: objects(["a text"] * 32), lambda: strings(400_000)),
}


def strings(n: int) -> Array:
    """Return ``n`` different strings of 40 characters."""
    return objects([f"{i:040}" for i in range(n)])


def count(run: Callable[[], Any], nbytes: int) -> dict[str, float]:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # else one fault may be for 2 MiB
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 17)  # else freed memory may be used again
    gc.collect()
    libc.malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"this kernel does not reset the peak of a process: {error}")
    resident, faults = status("VmRSS"), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = run()
    n_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    grown = status("VmHWM") - resident
    del kept
    found = {"copied": n_faults * mmap.PAGESIZE / nbytes, "peak": max(0, grown) / nbytes}
    return {name: round(value, 2) for name, value in found.items()}


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def nbytes_of(array: Array) -> int:
    return sum(map(len, array)) if array.dtype.kind == "O" else array.nbytes


def main() -> None:
    source, operation, contender, kind = sys.argv[1:]
    prepare = import_module(f"benchmarks.{source}").OPERATIONS[operation]
    small, large = (make() for make in ARRAYS[kind])
    try:
        with prepare(contender, small) as run:
            run()
        with prepare(contender, large) as run:
            answer: dict[str, Any] = count(run, nbytes_of(large))
    except pytest.skip.Exception as reason:
        answer = {"skipped": str(reason)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
