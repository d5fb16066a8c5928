"""Arrays with edge values of each datatype, for tests against other programs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from interop.triton_models import DATATYPES

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    **{f"UINT{8 * nbytes}": np.dtype(f"<u{nbytes}") for nbytes in (1, 2, 4, 8)},
    **{f"INT{8 * nbytes}": np.dtype(f"<i{nbytes}") for nbytes in (1, 2, 4, 8)},
    **{f"FP{8 * nbytes}": np.dtype(f"<f{nbytes}") for nbytes in (2, 4, 8)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(object),
}
BINARY_ONLY = ("FP16", "BF16")
JSON_DATATYPES = [datatype for datatype in DATATYPES if datatype not in BINARY_ONLY]

TEXTS = [b"", b"\0", b"a\0b\0", b'"\\/\n\x01\x7f', "\xe9\u20ac\U0001f600".encode()]
NOT_TEXT = b"\xff\xfe\0"


def bytes_array(values: list[bytes]) -> Array:
    """Return an object array. numpy's own conversion of a list would drop trailing NULs."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def binary_sample(datatype: str) -> Array:
    """Return values, including those that only binary data preserves, such as NaN payloads."""
    if datatype == "BYTES":
        return bytes_array([*TEXTS, NOT_TEXT])
    dtype = DTYPES[datatype]
    if datatype != "BOOL" and dtype.itemsize <= 2:
        every_pattern = np.arange(1 << 8 * dtype.itemsize)
        return every_pattern.astype(f"<u{dtype.itemsize}").view(dtype)
    if dtype.kind == "f":
        return np.concatenate([json_sample(datatype), _odd_nans(dtype)])
    return json_sample(datatype)


def json_sample(datatype: str) -> Array:
    """Return the smallest, largest and other edge values that JSON can carry."""
    dtype = DTYPES[datatype]
    if datatype == "BYTES":
        return bytes_array(TEXTS)
    if datatype == "BOOL":
        return np.array([False, True, True])
    if dtype.kind == "f":
        reals = np.finfo(dtype)
        finite = [reals.min, -1.5, -0.0, 0.0, reals.smallest_subnormal, reals.tiny, 0.1, reals.max]
        return np.array([*finite, np.inf, -np.inf, np.nan], dtype)
    integers = np.iinfo(dtype)
    return np.array([integers.min, 0, 1, integers.max], dtype)


def _odd_nans(dtype: np.dtype[Any]) -> Array:
    """Return a signalling NaN, and a negative NaN with all payload bits set."""
    word = np.dtype(f"<u{dtype.itemsize}")
    infinity = np.array(np.inf, dtype).view(word)
    return np.array([infinity + 1, np.iinfo(word).max], word).view(dtype)


def bits(array: Array) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    """Return a value that is equal for arrays that are equal bit for bit."""
    is_object = array.dtype == np.dtype(object)
    return array.dtype, array.shape, array.tolist() if is_object else array.tobytes()
