"""``python -m benchmarks.counts [--write]``: count the instructions of hot paths with callgrind.

Counts do not depend on the load of the machine. They depend on the versions of Python and of the
compiler, which are therefore the keys of the baseline, `counts.json`; ``--write`` stores the counts
there. One process counts all cases: each is called ``CALLS`` times between two client requests to
callgrind.
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

from .arrays import Arrays, floats, json_response, numbers, texts
from .contenders import CODECS, joined, our_decode

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "counts.json"
CALLS, WARM_UP = 20, 100  # Python specialises its bytecode in the first calls
# The cost of one element is the difference between these numbers of elements.
FEW, MANY = 10_000, 30_000
FEW_JSON, MANY_JSON = 100, 300  # about 1 KB and 3 KB of JSON

REQUESTS = """\
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


class Missing(Exception):
    """A program or a baseline is missing; the text says which."""


def decoding(arrays: Arrays) -> Callable[[], Any]:
    return partial(our_decode, *CODECS["tensorwire"].body_of(arrays), list(arrays))


def encoding(arrays: Arrays) -> Callable[[], Any]:
    def encode() -> tw.Frame:
        tensors = []
        for name, array in arrays.items():
            tensors.append(tw.Tensor(name, array, binary=True))
        return tw.encode_request(tw.InferRequest(tensors))

    return encode


def several(n_tensors: int) -> Arrays:
    return {f"x{i}": floats(32) for i in range(n_tensors)}


def header_of_50() -> Callable[[], Any]:
    """Decode a response with an id and parameters, without reading a tensor."""
    parameters = {"weight": 2, "temperature": 0.7, "user": "somebody", "stream": False}
    response = tw.InferResponse(
        several(50), model_name="m", id="request-1234", parameters=parameters
    )
    return partial(tw.decode_response, *joined(tw.encode_response(response)))


def scanning(n_elements: int) -> Callable[[], Any]:
    return partial(tw.decode_bytes, tw.encode_bytes(texts(n_elements, 0, 40)), n_elements)


def making_objects(n_elements: int) -> Callable[[], Any]:
    return tw.decode_bytes(tw.encode_bytes(texts(n_elements, 0, 40)), n_elements).as_numpy


def packing(n_elements: int) -> Callable[[], Any]:
    return partial(tw.encode_bytes, texts(n_elements, 0, 40))


def reading_json(n_elements: int) -> Callable[[], Any]:
    text = json_response(numbers("FP32", n_elements))
    return partial(our_decode, text, None, ["x"])


def writing_json(n_elements: int) -> Callable[[], Any]:
    array = numbers("FP32", n_elements)
    return lambda: tw.encode_response(
        tw.InferResponse([tw.Tensor("x", array, binary=False)], model_name="m")
    )


# These cases are counted per call.
CASES: dict[str, Callable[[], Callable[[], Any]]] = {
    "decode 1 KB": lambda: decoding({"x": floats(256)}),
    "decode 16 MB": lambda: decoding({"x": floats(4 << 20)}),
    "decode 50 tensors": lambda: decoding(several(50)),
    "decode header of 50 tensors": header_of_50,
    "encode 1 KB": lambda: encoding({"x": floats(256)}),
    "encode 16 MB": lambda: encoding({"x": floats(4 << 20)}),
}
# These cases are counted per element.
PER_ELEMENT: dict[str, tuple[Callable[[int], Callable[[], Any]], int, int]] = {
    "BYTES scan, per element": (scanning, FEW, MANY),
    "BYTES to objects, per element": (making_objects, FEW, MANY),
    "BYTES from objects, per element": (packing, FEW, MANY),
    "decode 1 KB JSON FP32, per element": (reading_json, FEW_JSON, MANY_JSON),
    "encode 1 KB JSON FP32, per element": (writing_json, FEW_JSON, MANY_JSON),
}


def key() -> str:
    """Return the key of the baseline: Python's minor and gcc's major version. Raises Missing."""
    try:
        gcc = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True, check=True)
    except OSError as error:
        raise Missing(f"no gcc: {error}") from None
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"Python {minor}, gcc {gcc.stdout.strip().partition('.')[0]}"


def baseline() -> dict[str, float]:
    """Return the stored counts. Raises Missing if there are none for this Python and compiler."""
    stored: dict[str, dict[str, float]] = json.loads(BASELINE.read_text())
    if key() not in stored:
        known = "; ".join(stored)
        raise Missing(f"no baseline for {key()}, only for {known}: python -m benchmarks.counts")
    return stored[key()]


def counted() -> dict[str, float]:
    """Count the instructions of each case. Raises Missing."""
    if shutil.which("valgrind") is None:
        raise Missing("valgrind is not installed")
    with TemporaryDirectory(prefix="tensorwire-counts-") as folder:
        library = compiled(Path(folder))
        options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        command = ["valgrind", "-q", *options, sys.executable, "-m", "benchmarks.counts"]
        # A fixed hash seed and one BLAS thread make the counts reproducible.
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
            raise RuntimeError(f"valgrind exited with {run.returncode}:\n{run.stderr[-2000:]}")
        totals = dict(total(path) for path in Path(folder).glob("out.*"))
    counts = {name: totals[name] / CALLS for name in CASES}
    for name, (_, few, many) in PER_ELEMENT.items():
        more = totals[f"{name} {many}"] - totals[f"{name} {few}"]
        counts[name] = more / CALLS / (many - few)
    return counts


def compiled(folder: Path) -> Path:
    """Compile the client requests to a library. Raises Missing."""
    source, library = folder / "requests.c", folder / "requests.so"
    source.write_text(REQUESTS)
    command = ["gcc", "-shared", "-fPIC", str(source), "-o", str(library)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Missing(f"no gcc: {error}") from None
    if run.returncode:
        raise Missing(f"valgrind's header cannot be compiled: {run.stderr.splitlines()[0]}")
    return library


def total(path: Path) -> tuple[str, int]:
    """Return the case and the number of instructions from one output file of callgrind."""
    text = path.read_text()
    name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
    instructions = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    if name is None or instructions is None:
        return "", 0  # the file for instructions after the last case
    return name[1], int(instructions[1])


def count(library: str) -> None:
    """Run each case between two client requests. The process runs under valgrind."""
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
