"""Run all cases of the tables under valgrind's memcheck.

`PYTHONPATH=tests python -m stress.memcheck` takes some minutes. The exit code is 1 if a call of
this package accesses invalid memory or depends on uninitialised memory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

# A frame of a module of this package, with debugging symbols or without.
PACKAGE = re.compile(r"\(in .*/tensorwire/|__pyx_\w*tensorwire")
OPTIONS = ["--error-limit=no", "--num-callers=40", "--track-origins=no", "--leak-check=no"]


def work() -> None:
    """Run inside valgrind: decode each message from `bytes` of its exact size and read every
    element.
    """
    import tensorwire as tw  # noqa: PLC0415
    from stress import leaks  # noqa: PLC0415

    n_read = n_calls = 0
    for cases in leaks.ENTRY_POINTS.values():
        for _, call in cases:
            n_calls += 1
            with suppress(*leaks.EXPECTED_ERRORS):
                found = call()
                if isinstance(found, tw.InferRequest | tw.InferResponse):
                    n_read += sum(read(tensor) for tensor in found.values())
    print(f"{n_calls} calls, {n_read} bytes read")


def read(tensor: Any) -> int:
    return 0 if tensor.data is None else len(tensor.as_numpy().tobytes())


def main() -> None:
    if sys.argv[1:] == ["inside"]:
        work()
        return
    if shutil.which("valgrind") is None:
        sys.exit("memcheck: valgrind is not installed")
    # Python's own allocator would hide the ends of blocks from valgrind.
    environment = os.environ | {"PYTHONMALLOC": "malloc"}
    command = ["valgrind", *OPTIONS, sys.executable, "-m", "stress.memcheck", "inside"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    found = ours(done.stderr)
    if done.returncode or not done.stdout:
        found.append(done.stderr[-2000:])
    summary = done.stderr.strip().splitlines()[-1]
    print(f"{summary}; {len(found)} of them in a call of this package")
    sys.exit("\n\n".join(found) or None)


def ours(report: str) -> list[str]:
    """Return the errors in compiled code of this package, or in functions it calls.

    Errors of Python code that it calls are excluded: CPython's interpreter loop has many under
    valgrind.
    """
    blocks = re.split(r"\n==[0-9]+== \n", report)
    return [block for block in blocks if any(PACKAGE.search(frame) for frame in innermost(block))]


def innermost(block: str) -> Iterator[str]:
    """Yield the frames of an error up to the first that runs Python code."""
    for line in block.splitlines():
        if "_PyEval_EvalFrameDefault" in line:
            return
        if " at 0x" in line or " by 0x" in line:
            yield line


if __name__ == "__main__":
    main()
