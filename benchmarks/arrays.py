"""The arrays that are measured, and comparisons of what a contender returns with what was sent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

DATATYPES = {"|b1": "BOOL", "<f4": "FP32", "<f8": "FP64", "<i8": "INT64", "|O": "BYTES"}
DTYPES = {datatype: np.dtype(dtype) for dtype, datatype in DATATYPES.items()}


def datatype_of(array: Array) -> str:
    return DATATYPES[array.dtype.str]


def floats(n: int) -> Array:
    """Return 0, 1, 2 ... 2047, 0, 1 ... as FP32."""
    return (np.arange(n) % 2048).astype("<f4")


def bools(n: int) -> Array:
    """Return True, False, False, True, False ..."""
    return np.equal(np.arange(n) % 3, 0)


def texts(n: int, low: int, high: int) -> NDArray[np.object_]:
    """Return ``n`` elements of ``low`` to ``high`` bytes, with uniformly distributed lengths."""
    rng = np.random.default_rng(7)
    letters = rng.integers(97, 123, high, np.uint8).tobytes()
    return objects([letters[:length] for length in rng.integers(low, high, n, endpoint=True)])


def numbers(datatype: str, n: int) -> Array:
    """Return random elements for JSON: floats with all digits, integers of the whole range."""
    rng = np.random.default_rng(7)
    if datatype == "INT64":
        return rng.integers(-(1 << 63), (1 << 63) - 1, n, np.int64)
    return rng.standard_normal(n).astype(DTYPES[datatype])


def few_digits(n: int) -> Array:
    """Return random FP32 with two digits before and after the decimal point."""
    return (np.random.default_rng(7).integers(1000, 10_000, n) / 100).astype("<f4")


def json_response(array: Array) -> bytes:
    """Return a response whose only tensor is JSON."""
    values = array.tolist()
    if array.dtype == np.float32:  # servers write the shortest text that reads back as this float
        values = [float(str(value)) for value in array]
    entry = {"name": "x", "datatype": datatype_of(array), "shape": [len(array)], "data": values}
    header = {"model_name": "m", "outputs": [entry]}
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def objects(elements: list[Any]) -> NDArray[np.object_]:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def check(found: Array, sent: Array) -> None:
    """Raise AssertionError unless the arrays are equal. ``str`` elements equal their UTF-8."""
    if sent.dtype.kind == "O":
        is_same = found.shape == sent.shape and as_bytes(found) == as_bytes(sent)
    else:
        is_same = found.dtype == sent.dtype and np.array_equal(found, sent)
    assert is_same, "the result differs from what was sent"


def as_bytes(array: Array) -> list[bytes]:
    return [e.encode() if isinstance(e, str) else e for e in np.ravel(array).tolist()]


def read_elements(array: Array) -> None:
    """Read every element of an array of numbers once."""
    np.bitwise_xor.reduce(array.view(f"u{array.itemsize}"), axis=None)
