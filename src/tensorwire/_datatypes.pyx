"""The table of datatypes (WIRE.md 2), and the way from a name or a numpy dtype into it."""

cimport cython
cimport numpy as cnp

from functools import cache
from importlib import import_module

import numpy as np


@cython.final
cdef class Datatype:
    """One row: the protocol's name, bytes per element on the wire, and how it stands in numpy.

    ``itemsize`` is 0 for BYTES, whose elements carry their own lengths. ``dtype`` is always
    little-endian, and None for BYTES and for BF16 (see ``bf16_dtype``).
    """

    def __init__(self, str name, Py_ssize_t itemsize, cnp.dtype dtype, bint in_json=True):
        self.name = name
        self.itemsize = itemsize
        self.dtype = dtype
        self.in_json = in_json

    def __repr__(self):
        return f"<Datatype {self.name}>"


cdef Datatype fixed(name, code, in_json=True):
    return Datatype(name, np.dtype(code).itemsize, np.dtype(code), in_json)


DATATYPES = {
    row.name: row
    for row in (
        fixed("BOOL", "?"),
        fixed("UINT8", "u1"),
        fixed("UINT16", "<u2"),
        fixed("UINT32", "<u4"),
        fixed("UINT64", "<u8"),
        fixed("INT8", "i1"),
        fixed("INT16", "<i2"),
        fixed("INT32", "<i4"),
        fixed("INT64", "<i8"),
        fixed("FP16", "<f2", in_json=False),
        Datatype("BF16", 2, None, in_json=False),
        fixed("FP32", "<f4"),
        fixed("FP64", "<f8"),
        Datatype("BYTES", 0, None, in_json=True),
    )
}

BYTES = DATATYPES["BYTES"]
RAW_BF16 = np.dtype("<u2")

BY_DTYPE = {
    row.dtype: row for row in DATATYPES.values() if row.dtype is not None
}


@cache
def bf16_dtype():
    """The bfloat16 dtype of the ml_dtypes package, or ``None`` where that is not installed."""
    try:
        ml_dtypes = import_module("ml_dtypes")  # optional, and 10 ms to import
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def datatype_of(cnp.dtype dtype not None):
    """The row of a numeric numpy dtype in any byte order, or ``None`` when it has none."""
    row = BY_DTYPE.get(dtype)
    if row is not None:
        return row
    if dtype.kind == "V" and dtype.name == "bfloat16":
        return DATATYPES["BF16"]
    return BY_DTYPE.get(dtype.newbyteorder("<"))
