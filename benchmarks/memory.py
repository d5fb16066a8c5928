"""What a process has at its most: `python -m benchmarks.memory DIRECTION WORKLOAD CONTENDER`.

Prints, as JSON, by how many bytes its memory grows at the most while it encodes or decodes, the
result included. All memory is counted, whoever asked for it; the kernel keeps the peak.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .contenders import CONTENDERS
from .missing import Missing, Unsupported
from .workloads import message_of

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WARM_UP = "128 B FP32"  # what is imported or compiled by the first call is not counted


def require(nbytes: int) -> None:
    """Raises Unsupported when so much memory is not to be had without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = 1024 * next(int(line.split()[1]) for line in lines if "MemAvailable" in line)
    if nbytes > available:
        raise Unsupported(f"needs {nbytes >> 20} MB of memory, {available >> 20} MB are free")


def status(field: str) -> int:
    """VmRSS or VmHWM, in bytes."""
    lines = STATUS.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def peak_of(run: Callable[[], Any]) -> int:
    """By how much the memory of this process grows, at the most."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        RESET.write_text("5")
    except OSError as error:
        raise Missing(f"the kernel does not let a process reset its peak: {error}") from None
    before = status("VmRSS")
    kept = run()
    peak = status("VmHWM")
    del kept
    return max(0, peak - before)


def job(direction: str, workload: str, contender: str) -> Callable[[], Any]:
    """What is measured, ready to run."""
    way, message = CONTENDERS[contender], message_of(workload)
    way.accept(message)
    if direction == "encode":
        encode, prepared = way.encoder(), way.prepare(message)
        return lambda: encode(prepared)
    decode, (body, header_length) = way.decoder(), way.body_of(message)
    names = list(message.arrays)
    return lambda: decode(body, header_length, names)


def main(direction: str, workload: str, contender: str) -> None:
    try:
        with CONTENDERS[contender].setting():
            job(direction, WARM_UP, contender)()
            answer: dict[str, Any] = {"peak_nbytes": peak_of(job(direction, workload, contender))}
    except Missing as reason:
        answer = {"missing": str(reason)}
    except Unsupported as reason:
        answer = {"cannot": str(reason)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
