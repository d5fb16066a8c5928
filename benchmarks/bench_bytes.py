"""BYTES tensors: conversions in both directions, and decoding while another thread is busy."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .contenders import module, struct_elements, struct_objects
from .measure import as_bytes, marked, measure, measuring
from .workloads import BYTES, QUICK, message_of, texts

STRINGS = np.dtypes.StringDType()


@dataclass(frozen=True)
class Elements:
    """The same elements in all forms that are the input of a step."""

    wire: bytes
    objects: NDArray[np.object_]

    @cached_property
    def tensor(self) -> tw.BytesArray:
        return tw.decode_bytes(self.wire, len(self.objects))

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Return the offset of each element's length prefix."""
        nbytes = [4 + len(element) for element in self.objects]
        return np.cumsum([0, *nbytes[:-1]], dtype=np.int64)

    @cached_property
    def c_loop(self) -> tuple[Callable[..., int], tuple[int, int, int], NDArray[np.int64]]:
        """Return the C function, its arguments, and its result, which was written before."""
        wire, found = np.frombuffer(self.wire, np.uint8), np.full(len(self.objects), -1)
        return scan_library().scan, (wire.ctypes.data, wire.nbytes, found.ctypes.data), found

    @cached_property
    def texts(self) -> NDArray[np.object_]:
        return self.tensor.as_strings()

    @cached_property
    def strings(self) -> NDArray[Any]:
        return self.tensor.as_numpy(STRINGS)

    @cached_property
    def fixed(self) -> NDArray[np.bytes_]:
        return self.tensor.as_numpy("S")

    @cached_property
    def arrow(self) -> Any:
        return pyarrow().array(self.tensor)


def pyarrow() -> Any:
    return module("pyarrow")


def triton_utils() -> Any:
    return module("tritonclient.utils")


def triton_objects(elements: Elements) -> Any:
    return triton_utils().deserialize_bytes_tensor(elements.wire)


def triton_pack(values: Any) -> Any:
    return triton_utils().serialize_byte_tensor(values).item()


def texts_of(objects: NDArray[np.object_]) -> list[str]:
    return [element.decode() for element in objects.tolist()]


# --- a lower limit of the scan, in C ---

SCAN_SOURCE = r"""
#include <stdint.h>
#include <string.h>

/* Check each length prefix and store its offset. Returns the number of elements, or -1. */
int64_t scan(const unsigned char *data, int64_t nbytes, int64_t *offsets) {
    int64_t offset = 0, n = 0;
    while (offset < nbytes) {
        uint32_t length;
        if (nbytes - offset < 4) return -1;
        memcpy(&length, data + offset, 4);
        if (length > nbytes - offset - 4) return -1;
        offsets[n++] = offset;
        offset += 4 + (int64_t)length;
    }
    return n;
}
"""


@cache
def scan_library() -> Any:
    """Compile the scan. Raises OSError or CalledProcessError without a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "scan.c"), Path(folder, "scan.so")
        source.write_text(SCAN_SOURCE)
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", source, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.scan.restype = ctypes.c_int64
    loaded.scan.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    return loaded


def c_scan(elements: Elements) -> NDArray[np.int64]:
    scan, arguments, found = elements.c_loop
    assert scan(*arguments) == len(found)
    return found


# --- the steps ---

# Each step is measured with tensorwire; with tritonclient, if it has the step; with "naive", the
# Python code that a user would write without the step; and with a limit, which is a C loop over the
# same bytes. To add a step, add an entry.
STEPS: dict[str, dict[str, Callable[[Elements], Any]]] = {
    "scan": {
        "tensorwire": lambda e: tw.decode_bytes(e.wire, len(e.objects)),
        "tritonclient": triton_objects,
        "limit (C loop)": c_scan,
    },
    "scan, count unknown": {
        "tensorwire": lambda e: tw.decode_bytes(e.wire),
        "tritonclient": triton_objects,
        "limit (C loop)": c_scan,
    },
    "to objects": {
        "tensorwire": lambda e: e.tensor.as_numpy(),
        "tritonclient": triton_objects,
        "naive": lambda e: struct_objects(e.wire),
    },
    "to str": {
        "tensorwire": lambda e: e.tensor.as_strings(),
        "tritonclient": lambda e: texts_of(triton_objects(e)),
        "naive": lambda e: texts_of(struct_objects(e.wire)),
    },
    "to StringDType": {
        "tensorwire": lambda e: e.tensor.as_numpy(STRINGS),
        "tritonclient": lambda e: np.array(texts_of(triton_objects(e)), STRINGS),
        "naive": lambda e: np.array(texts_of(e.tensor.as_numpy()), STRINGS),
    },
    "to S": {
        "tensorwire": lambda e: e.tensor.as_numpy("S"),
        "tritonclient": lambda e: triton_objects(e).astype("S"),
        "naive": lambda e: e.tensor.as_numpy().astype("S"),
    },
    "to Arrow": {
        "tensorwire": lambda e: pyarrow().array(e.tensor),
        "tritonclient": lambda e: pyarrow().array(triton_objects(e)),
        "naive": lambda e: pyarrow().array(e.tensor.tolist()),
    },
    "from objects": {
        "tensorwire": lambda e: tw.encode_bytes(e.objects),
        "tritonclient": lambda e: triton_pack(e.objects),
        "naive": lambda e: struct_elements(e.objects),
    },
    "from str": {
        "tensorwire": lambda e: tw.encode_bytes(e.texts),
        "tritonclient": lambda e: triton_pack(e.texts),
        "naive": lambda e: struct_elements(
            np.array([t.encode() for t in e.texts.tolist()], object)
        ),
    },
    "from StringDType": {
        "tensorwire": lambda e: tw.encode_bytes(e.strings),
        "tritonclient": lambda e: triton_pack(e.strings.astype(object)),
        "naive": lambda e: tw.encode_bytes(e.strings.tolist()),
    },
    "from S": {
        "tensorwire": lambda e: tw.encode_bytes(e.fixed),
        "tritonclient": lambda e: triton_pack(e.fixed),
        "naive": lambda e: tw.encode_bytes(e.fixed.tolist()),
    },
    "from Arrow": {
        "tensorwire": lambda e: tw.encode_bytes(e.arrow),
        "tritonclient": lambda e: triton_pack(np.array(e.arrow.to_pylist(), object)),
        "naive": lambda e: tw.encode_bytes(e.arrow.to_pylist()),
    },
}

ROWS = [(step, contender) for step, contenders in STEPS.items() for contender in contenders]


@lru_cache(1)
def elements_of(workload: str) -> Elements:
    (array,) = message_of(workload).arrays.values()
    return Elements(tw.encode_bytes(array), array)


def check(found: Any, elements: Elements) -> None:
    """Compare wire bytes, offsets, or elements in any container."""
    if isinstance(found, bytes):
        assert found == elements.wire
    elif isinstance(found, np.ndarray) and found.dtype == np.int64:
        assert found.tolist() == elements.offsets.tolist()
    else:
        values = found.to_pylist() if hasattr(found, "to_pylist") else list(found)
        assert as_bytes(np.array(values, object)) == elements.objects.tolist()


@pytest.mark.parametrize(("step", "contender"), ROWS)
@pytest.mark.parametrize("workload", marked(BYTES, quick=QUICK))
def test_bytes(benchmark: BenchmarkFixture, workload: str, step: str, contender: str) -> None:
    elements, run = elements_of(workload), STEPS[step][contender]
    with measuring(benchmark, workload, step, contender, n_elements=len(elements.objects)):
        measure(benchmark, lambda found: check(found, elements), run, elements)


# --- while another thread is busy ---

# A scan of 500,000 small elements or more releases the GIL. If another thread runs Python code, the
# scan then waits for up to a switch interval (5 ms) to get the GIL back. A shorter scan does not
# wait.
COUNTS = {f"{n:,} elements": n for n in (1 << 14, 1 << 17, 1 << 19, 1 << 21)}


@pytest.fixture(params=["no other thread", "a busy thread"])
def other_thread(request: pytest.FixtureRequest) -> Iterator[str]:
    """Start a thread that runs Python code until the test ends, or no thread."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            sum(range(100))

    thread = threading.Thread(target=run)
    if request.param == "a busy thread":
        thread.start()
    yield request.param
    stopped.set()
    if thread.ident is not None:
        thread.join()


@pytest.mark.parametrize("workload", marked(COUNTS, quick={"524,288 elements"}))
def test_scan(benchmark: BenchmarkFixture, workload: str, other_thread: str) -> None:
    n_elements = COUNTS[workload]
    wire = tw.encode_bytes(texts(n_elements, 0, 40))
    with measuring(benchmark, "scan with and without another thread", workload, other_thread):
        benchmark(tw.decode_bytes, wire, n_elements)
