"""Datatypes, limits, and the sizes that follow from a datatype and a shape.

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

from .new_objects cimport set_item
from .wire cimport MAX_RANK, WIDEST_ITEMSIZE

from functools import cache
from importlib import import_module
from functools import partial
from operator import index

import numpy as np

from .signatures import constructor_signature

from ..errors import (
    MAX_FOREIGN_TEXT, SUBJECT, EncodeError, HeaderError, LayoutError, format_count, format_number,
    format_shape, format_text)


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


# --- limits ---

cdef object MAX_INT64 = 2 ** 63 - 1
cdef object MAX_NESTING = 1000  # Python's default recursion limit; takes up to 400 KB of stack


@cython.final
cdef class Limits:
    """The limits and options of a decode or encode call. An instance is immutable.

    When decoding, a message that exceeds ``max_rank`` or ``max_elements`` raises LayoutError, and
    one that exceeds another limit HeaderError. When encoding, it raises EncodeError, and the
    options ``check_bool`` and ``bf16_as_uint16`` are not used. No limit applies to the encoders of
    ``tensorwire.grpc``. WIRE.md 11 gives the reason for each limit.

    Parameters
    ----------
    max_header_nbytes : int, default 64 MiB
        Maximum size of the JSON header in bytes, or of a gRPC message besides its tensors. The
        default is also Triton's limit for JSON.
    max_tensors : int, default 4096
        Maximum number of tensors in a message, of requested outputs in a request, and of raw
        contents in a gRPC message.
    max_rank : int, default 64
        Maximum number of dimensions of a tensor, from 0 to 64. numpy does not support more.
    max_name_nbytes : int, default 4096
        Maximum size of the name of a tensor or requested output, in bytes of UTF-8.
    max_nesting : int, default 128
        Maximum nesting depth of lists and objects in the header, from 0 to 1000. Each level takes
        up to 400 bytes of the thread's stack. It does not apply to gRPC messages.
    max_parameters : int, default 1024
        Maximum number of values in all ``parameters`` of a message together, including the items of
        lists and objects in them. Each becomes a Python object.
    max_elements : int, default 2**63 - 1
        Maximum number of elements of all tensors of a message together, according to their shapes.
        With the default, only the size of the body limits it.
    check_bool : bool, default True
        Whether to reject bytes other than 0 and 1 in BOOL tensors. numpy does not support them.
    bf16_as_uint16 : bool, default False
        Whether to return BF16 tensors as arrays of ``<u2``. This does not require ml_dtypes.

    Raises
    ------
    ValueError
        A limit is not an int within its range.
    TypeError
        An option is not a bool.

    Examples
    --------
    >>> import tensorwire as tw
    >>> limits = tw.Limits(max_header_nbytes=10)
    >>> tw.decode_request(b'{"inputs":[]}', limits=limits)
    Traceback (most recent call last):
    tensorwire.errors.HeaderError: the JSON header is 13 bytes long; the limit is 10
    """

    __signature__ = constructor_signature(
        "*, max_header_nbytes: int = 67108864, max_tensors: int = 4096, max_rank: int = 64, "
        "max_name_nbytes: int = 4096, max_nesting: int = 128, max_parameters: int = 1024, "
        "max_elements: int = 9223372036854775807, check_bool: bool = True, "
        "bf16_as_uint16: bool = False"
    )

    def __cinit__(
        self, *, max_header_nbytes=64 << 20, max_tensors=4096, max_rank=MAX_RANK,
        max_name_nbytes=4096, max_nesting=128, max_parameters=1024, max_elements=MAX_INT64,
        check_bool=True, bf16_as_uint16=False,
    ):
        self.max_header_nbytes = checked_limit("max_header_nbytes", max_header_nbytes, MAX_INT64)
        self.max_tensors = checked_limit("max_tensors", max_tensors, MAX_INT64)
        self.max_rank = checked_limit("max_rank", max_rank, MAX_RANK)
        self.max_name_nbytes = checked_limit("max_name_nbytes", max_name_nbytes, MAX_INT64)
        self.max_nesting = checked_limit("max_nesting", max_nesting, MAX_NESTING)
        self.max_parameters = checked_limit("max_parameters", max_parameters, MAX_INT64)
        self.max_elements = checked_limit("max_elements", max_elements, MAX_INT64)
        self.check_bool = checked_option("check_bool", check_bool)
        self.bf16_as_uint16 = checked_option("bf16_as_uint16", bf16_as_uint16)

    def __eq__(self, other):
        if not isinstance(other, Limits):
            return NotImplemented
        return limits_as_tuple(self) == limits_as_tuple(<Limits>other)

    def __hash__(self):
        return hash(limits_as_tuple(self))

    def __reduce__(self):
        # The constructor checks the values: with a max_rank above 64, a Layout would overflow.
        return _unpickled, limits_as_tuple(self)

    def __repr__(self):
        rows = zip(FIELDS, limits_as_tuple(self), limits_as_tuple(Limits()))
        changed = []
        for name, value, default in rows:
            if value != default:
                changed.append(f"{name}={value}")
        return f"Limits({', '.join(changed)})"


cdef tuple FIELDS = (
    "max_header_nbytes", "max_tensors", "max_rank", "max_name_nbytes", "max_nesting",
    "max_parameters", "max_elements", "check_bool", "bf16_as_uint16")


cdef tuple limits_as_tuple(Limits limits):
    return tuple(map(partial(getattr, limits), FIELDS))


DEFAULT_LIMITS = Limits()

UNLIMITED = Limits(
    max_header_nbytes=MAX_INT64, max_tensors=MAX_INT64, max_name_nbytes=MAX_INT64,
    max_parameters=MAX_INT64)
"""For messages whose size another program limits: the receiver, or KServe and MLServer."""


def _unpickled(*values):
    return Limits(**dict(zip(FIELDS, values, strict=True)))


cdef Py_ssize_t checked_limit(name, value, largest) except -1:
    # Other integer types are converted before the comparison. A bool is probably a mistake.
    number = index(value) if hasattr(value, "__index__") else -1
    if isinstance(value, bool) or not 0 <= number <= largest:
        actual = format_number(value) if type(value) is int else type(value).__name__
        raise ValueError(f"{name} must be an int from 0 to {largest}, not {actual}")
    return number


cdef bint checked_option(name, value) except -1:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


# --- the errors of the checks in datatypes.pxd ---


cdef int raise_rank(Py_ssize_t rank, Py_ssize_t max_rank, Way way) except -1:
    raise (EncodeError if way == ENCODING else LayoutError)(
        f"{SUBJECT} has {format_count('dimension', rank)}; the limit is {max_rank}",
        expected=max_rank, actual=rank)


cdef int raise_name_nbytes(Py_ssize_t nbytes, Limits limits, Way way) except -1:
    raise (EncodeError if way == ENCODING else HeaderError)(
        f"the name of {SUBJECT} is {format_count('byte', nbytes)} long; the limit is "
        f"{limits.max_name_nbytes}", expected=limits.max_name_nbytes, actual=nbytes)


cdef int raise_n_elements(uint64_t n_elements, Limits limits, Way way) except -1:
    raise (EncodeError if way == ENCODING else LayoutError)(
        f"the message has {format_count('element', n_elements)} up to {SUBJECT}; the limit is "
        f"{limits.max_elements}", expected=limits.max_elements, actual=n_elements)


cdef int raise_n_entries(str kind, Limits limits, Way way, Py_ssize_t offset) except -1:
    raise (EncodeError if way == ENCODING else HeaderError)(
        f"the message has more than {format_count(kind, limits.max_tensors)}, which is the limit",
        expected=limits.max_tensors, actual=limits.max_tensors + <object>1,
        offset=None if way == ENCODING else offset)


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
