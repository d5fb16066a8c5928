"""Datatypes, the limits of a decode call, and the sizes that follow from a datatype and a shape.

The table of datatypes is that of WIRE.md 2. A shape is checked by the same rules in both directions
(WIRE.md 3): `measure` checks one that was received, `shape_to_send` one that a user has given.
"""

cimport cython
cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport uint64_t

from .wire cimport MAX_RANK, WIDEST_ITEMSIZE, multiply

from functools import cache
from importlib import import_module
from operator import index

import numpy as np

from ..errors import SUBJECT, EncodeError, LayoutError, number_text, shape_text


@cython.final
cdef class Datatype:
    """A datatype of the protocol: its name, bytes per element, and numpy dtype.

    ``itemsize`` is 0 for BYTES, whose elements have lengths of their own. ``dtype`` is always
    little-endian, and None for BYTES and for BF16 (see ``bf16_dtype``). ``in_json`` is False for
    a datatype that JSON cannot carry.
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

RAW_BF16 = np.dtype("<u2")

BY_DTYPE = {
    row.dtype: row for row in DATATYPES.values() if row.dtype is not None
}


@cache
def bf16_dtype():
    """The bfloat16 dtype of the ml_dtypes package, or ``None`` if that is not installed."""
    try:
        ml_dtypes = import_module("ml_dtypes")  # optional, and 10 ms to import
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def datatype_of(cnp.dtype dtype not None):
    """The Datatype of a numeric numpy dtype in any byte order, or ``None`` if there is none."""
    row = BY_DTYPE.get(dtype)
    if row is not None:
        return row
    if dtype.kind == "V" and dtype.name == "bfloat16":
        return DATATYPES["BF16"]
    return BY_DTYPE.get(dtype.newbyteorder("<"))


# --- limits ---

cdef object MAX_INT64 = 2 ** 63 - 1
cdef object MAX_NESTING = 1000  # Python's own limit, and 400 KB of a thread's stack


@cython.final
cdef class Limits:
    """The limits and options of a decode call. An instance is immutable.

    A message that exceeds a limit raises HeaderError, or LayoutError if the limit is one of shapes.
    WIRE.md 11 gives the reason for each limit.

    Parameters
    ----------
    max_header_nbytes : int
        Size of the JSON header in bytes. The default of 64 MiB is that of Triton.
    max_tensors : int
        Number of tensors in a message, and of requested outputs in a request.
    max_rank : int
        Number of dimensions of a tensor; at most 64, which is numpy's limit.
    max_name_nbytes : int
        Size of the name of a tensor or of a requested output, in bytes of UTF-8.
    max_nesting : int
        Depth to which lists and objects of the header may be nested; at most 1000. Each level takes
        up to 400 bytes of the thread's stack.
    max_elements : int
        Number of elements of all tensors of a message together, according to their shapes. By
        default, only the size of the body limits it.
    check_bool : bool
        Reject bytes of BOOL tensors other than 0 and 1, which numpy's bool arrays do not support.
    bf16_as_uint16 : bool
        Return BF16 tensors as arrays of ``<u2``, for which ml_dtypes is not needed.

    Raises
    ------
    ValueError
        A limit is not an int within its range, or an option is not a bool.

    Examples
    --------
    >>> import tensorwire as tw
    >>> limits = tw.Limits(max_tensors=16)
    >>> tw.decode_request(b'{"inputs":[]}', limits=limits)
    Traceback (most recent call last):
    tensorwire.errors.HeaderError: the request has no inputs
    """

    def __init__(
        self, *, max_header_nbytes=64 << 20, max_tensors=4096, max_rank=MAX_RANK,
        max_name_nbytes=4096, max_nesting=128, max_elements=MAX_INT64,
        check_bool=True, bf16_as_uint16=False,
    ):
        self.max_header_nbytes = checked_limit("max_header_nbytes", max_header_nbytes, MAX_INT64)
        self.max_tensors = checked_limit("max_tensors", max_tensors, MAX_INT64)
        self.max_rank = checked_limit("max_rank", max_rank, MAX_RANK)
        self.max_name_nbytes = checked_limit("max_name_nbytes", max_name_nbytes, MAX_INT64)
        self.max_nesting = checked_limit("max_nesting", max_nesting, MAX_NESTING)
        self.max_elements = checked_limit("max_elements", max_elements, MAX_INT64)
        self.check_bool = checked_option("check_bool", check_bool)
        self.bf16_as_uint16 = checked_option("bf16_as_uint16", bf16_as_uint16)

    def __reduce__(self):
        # The constructor checks the state: a rank above MAX_RANK would overflow a Layout.
        return _unpickled, (
            self.max_header_nbytes, self.max_tensors, self.max_rank, self.max_name_nbytes,
            self.max_nesting, self.max_elements, self.check_bool, self.bf16_as_uint16,
        )

    def __repr__(self):
        return (
            f"Limits(max_header_nbytes={self.max_header_nbytes}, max_tensors={self.max_tensors}, "
            f"max_rank={self.max_rank}, max_name_nbytes={self.max_name_nbytes}, "
            f"max_nesting={self.max_nesting}, max_elements={self.max_elements}, "
            f"check_bool={self.check_bool}, bf16_as_uint16={self.bf16_as_uint16})"
        )


def _unpickled(
    max_header_nbytes, max_tensors, max_rank, max_name_nbytes, max_nesting, max_elements,
    check_bool, bf16_as_uint16,
):
    return Limits(
        max_header_nbytes=max_header_nbytes, max_tensors=max_tensors, max_rank=max_rank,
        max_name_nbytes=max_name_nbytes, max_nesting=max_nesting, max_elements=max_elements,
        check_bool=check_bool, bf16_as_uint16=bf16_as_uint16)


cdef Py_ssize_t checked_limit(name, value, largest) except -1:
    # Other integer types are converted before they are compared. A bool is taken for a mistake.
    number = int(index(value)) if hasattr(value, "__index__") else -1
    if isinstance(value, bool) or not 0 <= number <= largest:
        actual = number_text(value) if type(value) is int else type(value).__name__
        raise ValueError(f"{name} must be an int from 0 to {largest}, not {actual}")
    return number


cdef bint checked_option(name, value) except -1:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {type(value).__name__}")
    return value


# --- shapes ---


cdef int measure(Layout* layout, tuple shape, Datatype datatype, Py_ssize_t max_rank) except -1:
    """Fill `layout` from the shape of a received tensor. Raises LayoutError.

    `max_rank` is at most the 64 dimensions that a Layout has room for, because `Limits` allows no
    more.
    """
    cdef int overflow = 0
    cdef long long dim
    cdef Py_ssize_t axis
    cdef Py_ssize_t rank = len(shape)
    if rank > max_rank:
        raise LayoutError(
            f"{SUBJECT} has {rank} dimensions, at most {max_rank} are accepted",
            expected=max_rank, actual=rank)
    for axis in range(rank):
        dim = PyLong_AsLongLongAndOverflow(shape[axis], &overflow)
        if dim < 0 and shape[axis] < 0:  # -1 is also returned for an overflow
            raise LayoutError(
                f"{SUBJECT} has a negative dimension: shape {shape_text(shape)}",
                expected=0, actual=shape[axis])
        if overflow != 0:
            raise too_large(LayoutError, shape, datatype)
        layout.dims[axis] = dim
    layout.rank = <int>rank
    if not count_elements(layout, datatype.itemsize or WIDEST_ITEMSIZE):
        raise too_large(LayoutError, shape, datatype)
    return 0


cdef tuple shape_to_send(tuple shape, Datatype datatype):
    """Return the shape of a tensor to send as exact ints, checked by the rules of `measure`.

    Raises EncodeError; TypeError if `shape` is None or has a dimension that is not an integer.
    """
    cdef uint64_t span = datatype.itemsize or WIDEST_ITEMSIZE
    cdef int overflow = 0
    cdef long long dim
    cdef Py_ssize_t axis, rank
    if shape is None:
        raise TypeError(f"the shape of {SUBJECT} is None, not a tuple of ints")
    rank = len(shape)
    if rank > MAX_RANK:
        raise EncodeError(
            f"{SUBJECT} has {rank} dimensions, numpy supports at most {MAX_RANK}",
            expected=MAX_RANK, actual=rank)
    for axis in range(rank):
        if type(shape[axis]) is not int:
            return shape_to_send(as_ints(shape), datatype)
        dim = PyLong_AsLongLongAndOverflow(shape[axis], &overflow)
        if overflow < 0 or (overflow == 0 and dim < 0):
            raise EncodeError(
                f"{SUBJECT} has a negative dimension: {shape_text(shape)}",
                expected=0, actual=shape[axis])
        if overflow > 0 or (dim > 0 and not multiply(&span, <uint64_t>dim)):
            raise too_large(EncodeError, shape, datatype)
    return shape


cdef tuple as_ints(tuple shape):
    try:
        return tuple([int(index(dim)) for dim in shape])
    except TypeError as error:
        raise TypeError(f"the shape of {SUBJECT} is not a tuple of ints: {error}") from None


cdef too_large(kind_of_error, shape, Datatype datatype):
    return kind_of_error(
        f"{SUBJECT} is too large to address: {datatype.name} {shape_text(shape)} exceeds "
        f"2^63 - 1 bytes", expected=2 ** 63 - 1)
