"""``python -m benchmarks.counts [--write]``: instructions of the hot paths, counted by valgrind.

Counts do not depend on what else the machine does. They do on the Python and the compiler, which
therefore key the baseline, `counts.json`; ``--write`` puts what was counted there. One process
counts all cases: between two client requests to callgrind, a case is called CALLS times.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorwire as tw

from .contender import response_of
from .contenders import OURS, our_decode
from .json_ways import body_of, elements, header_message, json_response, writer
from .missing import Missing
from .workloads import Message, floats, one, texts

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "counts.json"
CALLS, WARM_UP = 20, 100  # Python specialises its bytecode in the first calls
FEW, MANY = 10_000, 30_000  # elements: a cost per element is a difference
FEW_JSON, MANY_JSON = 100, 300  # about 1 KB and 3 KB of JSON

REQUESTS = """\
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def decoding(message: Message) -> Callable[[], Any]:
    return partial(our_decode, *response_of(message), list(message.arrays))


def encoding(message: Message) -> Callable[[], Any]:
    assert OURS.encode is not None
    return partial(OURS.encode, OURS.prepare(message))


def header_of_50() -> Callable[[], Any]:
    """A response with all members, none of whose tensors is read."""
    message, envelope = header_message(50, is_full=True)
    return partial(tw.decode_response, *body_of(message, envelope, is_request=False))


def scanning(n_elements: int) -> Callable[[], Any]:
    return partial(tw.decode_bytes, tw.encode_bytes(texts(n_elements, 0, 40)), n_elements)


def materialising(n_elements: int) -> Callable[[], Any]:
    return tw.decode_bytes(tw.encode_bytes(texts(n_elements, 0, 40)), n_elements).as_numpy


def packing(n_elements: int) -> Callable[[], Any]:
    return partial(tw.encode_bytes, texts(n_elements, 0, 40))


def reading_json(n_elements: int) -> Callable[[], Any]:
    text = json_response(elements("FP32", n_elements), "FP32")
    return partial(our_decode, text, None, ["x"])


def writing_json(n_elements: int) -> Callable[[], Any]:
    return writer("tensorwire", elements("FP32", n_elements), "FP32")


# What is counted for one call.
CASES: dict[str, Callable[[], Callable[[], Any]]] = {
    "decode 1 KB": lambda: decoding(one(floats(256))),
    "decode 16 MB": lambda: decoding(one(floats(4 << 20))),
    "decode 50 tensors": lambda: decoding(Message({f"x{i}": floats(32) for i in range(50)})),
    "decode header of 50 tensors": header_of_50,
    "encode 1 KB": lambda: encoding(one(floats(256))),
    "encode 16 MB": lambda: encoding(one(floats(4 << 20))),
}
# What is counted for one element, as the difference between two numbers of elements.
PER_ELEMENT: dict[str, tuple[Callable[[int], Callable[[], Any]], int, int]] = {
    "BYTES scan, an element": (scanning, FEW, MANY),
    "BYTES to objects, an element": (materialising, FEW, MANY),
    "BYTES from objects, an element": (packing, FEW, MANY),
    "decode 1 KB JSON FP32, an element": (reading_json, FEW_JSON, MANY_JSON),
    "encode 1 KB JSON FP32, an element": (writing_json, FEW_JSON, MANY_JSON),
}


def key() -> str:
    """Of the baseline: Python's minor version and the compiler's major one. Raises Missing."""
    try:
        gcc = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True, check=True)
    except OSError as error:
        raise Missing(f"no gcc: {error}") from None
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"Python {minor}, gcc {gcc.stdout.strip().partition('.')[0]}"


def baseline() -> dict[str, float]:
    """What was counted before. Raises Missing where it was not, with this Python and compiler."""
    stored: dict[str, dict[str, float]] = json.loads(BASELINE.read_text())
    if key() not in stored:
        known = "; ".join(stored)
        raise Missing(f"no baseline for {key()}, but for {known}: python -m benchmarks.counts")
    return stored[key()]


def counted() -> dict[str, float]:
    """Instructions by case. Raises Missing."""
    if shutil.which("valgrind") is None:
        raise Missing("valgrind is not installed")
    with TemporaryDirectory(prefix="tensorwire-counts-") as folder:
        library = compiled(Path(folder))
        options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        command = ["valgrind", "-q", *options, sys.executable, "-m", "benchmarks.counts"]
        # One hash seed and one thread: the same dictionaries and the same waits in every run.
        environ = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        run = subprocess.run(
            [*command, "--count", str(library)],
            cwd=HERE.parent,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise RuntimeError(f"valgrind ends with {run.returncode}:\n{run.stderr[-2000:]}")
        totals = dict(total(path) for path in Path(folder).glob("out.*"))
    counts = {name: totals[name] / CALLS for name in CASES}
    for name, (_, few, many) in PER_ELEMENT.items():
        more = totals[f"{name} {many}"] - totals[f"{name} {few}"]
        counts[name] = more / CALLS / (many - few)
    return counts


def compiled(folder: Path) -> Path:
    """The requests to callgrind, as a library. Raises Missing."""
    source, made = folder / "requests.c", folder / "requests.so"
    source.write_text(REQUESTS)
    command = ["gcc", "-shared", "-fPIC", str(source), "-o", str(made)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Missing(f"no gcc: {error}") from None
    if run.returncode:
        raise Missing(f"valgrind's header cannot be compiled: {run.stderr.splitlines()[0]}")
    return made


def total(path: Path) -> tuple[str, int]:
    """The case and the instructions of one of callgrind's files."""
    text = path.read_text()
    name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
    instructions = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    if name is None or instructions is None:
        return "", 0  # what comes after the last case
    return name[1], int(instructions[1])


def count(library: str) -> None:
    """Within valgrind: run every case between two requests."""
    requests = ctypes.CDLL(library)
    gc.disable()
    jobs = dict(CASES)
    for name, (make, few, many) in PER_ELEMENT.items():
        jobs |= {f"{name} {n}": partial(make, n) for n in (few, many)}
    for name, case in jobs.items():
        call = case()
        for _ in range(WARM_UP):
            call()
        requests.start()
        for _ in range(CALLS):
            call()
        requests.stop(name.encode())


def main() -> None:
    if sys.argv[1:2] == ["--count"]:
        count(sys.argv[2])
        return
    try:
        counts = {name: float(f"{n:.4g}") for name, n in counted().items()}
    except Missing as reason:
        sys.exit(f"counts: {reason}")
    for name, n in counts.items():
        print(f"{name}: {n:,.4g} instructions")
    if sys.argv[1:] == ["--write"]:
        stored = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
        BASELINE.write_text(json.dumps({**stored, key(): counts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
