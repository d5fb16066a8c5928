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
from contextlib import suppress

# A frame of a module of this package, with debugging symbols or without.
PACKAGE = re.compile(r"\(in .*/tensorwire/|__pyx_\w*tensorwire")
OPTIONS = ["--error-limit=no", "--num-callers=40", "--track-origins=no", "--leak-check=no"]


def work() -> None:
    """Run inside valgrind: make each call, and read all elements of the messages."""
    import tensorwire as tw  # noqa: PLC0415
    from stress import leaks  # noqa: PLC0415
    from support.memory import EXPECTED_ERRORS  # noqa: PLC0415

    n_read = n_calls = 0
    for cases in leaks.ENTRY_POINTS.values():
        for _, call in cases:
            n_calls += 1
            with suppress(*EXPECTED_ERRORS):
                found = call()
                if isinstance(found, tw.InferRequest | tw.InferResponse):
                    data = [each for each in found.values() if each.data is not None]
                    n_read += sum(len(tensor.as_numpy().tobytes()) for tensor in data)
    print(f"{n_calls} calls, {n_read} bytes read")


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
    """Return the errors in compiled code of this package, or in functions that it calls.

    The frames behind Python code that it calls do not count: CPython's interpreter loop has many
    errors under valgrind.
    """
    found = []
    for block in re.split(r"\n==[0-9]+== \n", report):
        innermost = block.partition("_PyEval_EvalFrameDefault")[0].splitlines()
        if any(PACKAGE.search(line) for line in innermost if re.search(" (at|by) 0x", line)):
            found.append(block)
    return found


if __name__ == "__main__":
    main()
