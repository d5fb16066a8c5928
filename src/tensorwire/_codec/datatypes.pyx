"""Datatypes, and the sizes that follow from a datatype and a shape.

The table of datatypes is that of WIRE.md 2. The rules for shapes are the same in both directions
(WIRE.md 3): `fill_layout` checks a received shape and a shape from a user.
"""

cimport cython
cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_FromSsize_t
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_New
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from .limits cimport ENCODING, Way, check_rank
from .new_objects cimport set_item
from .wire cimport MAX_RANK, WIDEST_ITEMSIZE

from functools import cache
from importlib import import_module
from operator import index

import numpy as np


from ..errors import (
    MAX_FOREIGN_TEXT, SUBJECT, EncodeError, LayoutError, format_shape, format_text)


@cython.final
cdef class Datatype:
    """A datatype of the protocol: its name, bytes per element, and numpy dtype.

    ``itemsize`` is 0 for BYTES, whose elements have different lengths. ``dtype`` is little-endian.
    It is None for BYTES and for BF16 (see ``bf16_dtype``). ``in_json`` is False for a datatype that
    cannot be sent as JSON.
    """

    def __cinit__(self, str name, Py_ssize_t itemsize, cnp.dtype dtype, bint in_json=True):
        self.name = name
        self.itemsize = itemsize
        self.dtype = dtype
        self.in_json = in_json
        self.before_shape = f'"datatype":"{name}","shape":['.encode()


cdef Datatype numeric(name, code, in_json=True):
    return Datatype(name, np.dtype(code).itemsize, np.dtype(code), in_json)


DATATYPES = {
    each.name: each
    for each in (
        numeric("BOOL", "?"),
        numeric("UINT8", "u1"),
        numeric("UINT16", "<u2"),
        numeric("UINT32", "<u4"),
        numeric("UINT64", "<u8"),
        numeric("INT8", "i1"),
        numeric("INT16", "<i2"),
        numeric("INT32", "<i4"),
        numeric("INT64", "<i8"),
        numeric("FP16", "<f2", in_json=False),
        Datatype("BF16", 2, None, in_json=False),
        numeric("FP32", "<f4"),
        numeric("FP64", "<f8"),
        Datatype("BYTES", 0, None),
    )
}

# The table of datatypes in C: each name as an integer of 8 bytes, and a borrowed reference.
cdef struct NamedDatatype:
    uint64_t name
    PyObject* datatype

cdef enum:
    N_DATATYPES = 14
cdef NamedDatatype[N_DATATYPES] NAMED_DATATYPES
assert len(DATATYPES) == N_DATATYPES
for number, element_type in enumerate(DATATYPES.values()):
    NAMED_DATATYPES[number].name = int.from_bytes(element_type.name.encode(), "little")
    NAMED_DATATYPES[number].datatype = <PyObject*>element_type
del number, element_type


cdef Datatype datatype_named(const unsigned char* name, Py_ssize_t nbytes):
    """Return the Datatype with a name in UTF-8, or None."""
    cdef uint64_t word = 0
    cdef int i
    if 0 < nbytes <= 8 and name[nbytes - 1] != 0:  # a NUL would be like the bytes after the name
        memcpy(&word, name, nbytes)
        for i in range(N_DATATYPES):
            if word == NAMED_DATATYPES[i].name:
                return <Datatype>NAMED_DATATYPES[i].datatype
    return None


RAW_BF16 = np.dtype("<u2")
BF16_MAX = (2 - 2 ** -7) * 2.0 ** 127

BY_DTYPE = {each.dtype: each for each in DATATYPES.values() if each.dtype is not None}


@cache
def bf16_dtype():
    """Return the bfloat16 dtype of the ml_dtypes package, or None if it is not installed."""
    try:
        ml_dtypes = import_module("ml_dtypes")  # optional; importing it takes 10 ms
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def datatype_of(cnp.dtype dtype not None):
    """Return the Datatype of a numpy dtype of numbers in any byte order, or None."""
    element_type = BY_DTYPE.get(dtype)
    if element_type is not None:
        return element_type
    if dtype.kind == "V" and dtype.name == "bfloat16":
        return DATATYPES["BF16"]
    return BY_DTYPE.get(dtype.newbyteorder("<"))


cdef str format_range(Datatype datatype):
    """Return the name of a datatype of numbers, and the numbers that it can represent."""
    if datatype.dtype is None:
        return f"{datatype.name} (magnitudes up to {BF16_MAX})"
    if datatype.dtype.kind == c"f":
        return f"{datatype.name} (magnitudes up to {np.finfo(datatype.dtype).max})"
    limits = np.iinfo(datatype.dtype)
    return f"{datatype.name} ({limits.min} to {limits.max})"


# --- shapes ---


cdef tuple dims_as_tuple(const npy_intp* dims, int rank):
    cdef int axis
    cdef tuple shape = PyTuple_New(rank)
    for axis in range(rank):
        set_item(shape, axis, PyLong_FromSsize_t(dims[axis]))
    return shape


cdef int fill_layout(
    Layout* layout, tuple shape, Datatype datatype, Py_ssize_t max_rank, Way way
) except -1:
    """Fill `layout`, which has room for 64 dimensions, from a shape of exact ints.

    `max_rank` is at most 64, because `Limits` allows no more.
    """
    cdef int overflow = 0
    cdef long long dim
    cdef Py_ssize_t axis
    cdef Py_ssize_t rank = len(shape)
    check_rank(rank, max_rank, way)
    for axis in range(rank):
        dim = PyLong_AsLongLongAndOverflow(shape[axis], &overflow)
        if overflow < 0 or (overflow == 0 and dim < 0):
            raise (EncodeError if way == ENCODING else LayoutError)(
                f"{SUBJECT} has a negative dimension: shape {format_shape(shape)}",
                expected=0, actual=shape[axis])
        layout.dims[axis] = dim  # -1 for 2^63 and above, which `set_counts` rejects
    layout.rank = <int>rank
    if not set_counts(layout, datatype.itemsize or WIDEST_ITEMSIZE):
        raise too_large_error(way, shape, datatype)
    return 0


cdef tuple shape_to_send(tuple shape, Datatype datatype):
    """Return the shape of a tensor to send as exact ints."""
    cdef Layout layout
    try:
        shape = tuple(map(index, shape))
    except TypeError as error:
        shown = format_text(error, MAX_FOREIGN_TEXT)
        raise TypeError(f"the shape of {SUBJECT} is not a tuple of ints: {shown}") from None
    fill_layout(&layout, shape, datatype, MAX_RANK, ENCODING)
    return shape


cdef too_large_error(Way way, shape, Datatype datatype):
    return (EncodeError if way == ENCODING else LayoutError)(
        f"{SUBJECT} is too large to address: {datatype.name} {format_shape(shape)} exceeds "
        f"2^63 - 1 bytes", expected=2 ** 63 - 1)
