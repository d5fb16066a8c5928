"""The table of datatypes (WIRE.md 2), and the way from a name or a numpy dtype into it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Datatype:
    """One row: the protocol's name, bytes per element on the wire, and how it stands in numpy."""

    name: str
    itemsize: int  # 0: BYTES, whose elements carry their own lengths
    dtype: np.dtype[Any] | None  # always little-endian; None: BYTES, or BF16 (see ``bf16_dtype``)
    in_json: bool


def _fixed(name: str, dtype: str, in_json: bool = True) -> Datatype:
    return Datatype(name, np.dtype(dtype).itemsize, np.dtype(dtype), in_json)


DATATYPES: dict[str, Datatype] = {
    row.name: row
    for row in (
        _fixed("BOOL", "?"),
        _fixed("UINT8", "u1"),
        _fixed("UINT16", "<u2"),
        _fixed("UINT32", "<u4"),
        _fixed("UINT64", "<u8"),
        _fixed("INT8", "i1"),
        _fixed("INT16", "<i2"),
        _fixed("INT32", "<i4"),
        _fixed("INT64", "<i8"),
        _fixed("FP16", "<f2", in_json=False),
        Datatype("BF16", 2, None, in_json=False),
        _fixed("FP32", "<f4"),
        _fixed("FP64", "<f8"),
        Datatype("BYTES", 0, None, in_json=True),
    )
}

BYTES = DATATYPES["BYTES"]
RAW_BF16 = np.dtype("<u2")

_BY_DTYPE: dict[np.dtype[Any], Datatype] = {
    row.dtype: row for row in DATATYPES.values() if row.dtype is not None
}


@cache
def bf16_dtype() -> np.dtype[Any] | None:
    """The bfloat16 dtype of the ml_dtypes package, or ``None`` where that is not installed."""
    try:
        import ml_dtypes  # noqa: PLC0415 - optional, and 10 ms to import
    except ImportError:
        return None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def datatype_of(dtype: np.dtype[Any]) -> Datatype | None:
    """The row of a numeric numpy dtype in any byte order, or ``None`` when it has none."""
    row = _BY_DTYPE.get(dtype)
    if row is not None:
        return row
    if dtype.kind == "V" and dtype.name == "bfloat16":
        return DATATYPES["BF16"]
    return _BY_DTYPE.get(dtype.newbyteorder("<"))
