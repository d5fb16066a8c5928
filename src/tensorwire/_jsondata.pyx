"""JSON tensors read: nested or flat lists become one array, every scalar checked."""

cimport numpy as cnp
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact
from cpython.long cimport (
    PyLong_AsDouble,
    PyLong_AsLongLongAndOverflow,
    PyLong_AsUnsignedLongLong,
    PyLong_CheckExact,
)
from libc.math cimport NAN, isinf
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memcpy

from ._datatypes cimport Datatype
from ._layout cimport Layout, measure
from ._limits cimport Limits
from ._wire cimport WIDEST_ITEMSIZE

import numpy as np

from ._datatypes import BYTES
from .errors import ElementError, HeaderError, LayoutError, shape_text, subject

cnp.import_array()

cdef enum:
    MAX_NESTING = 100  # as Triton; no tensor has more than 64 dimensions

cdef enum Verdict:
    FINE
    WRONG_TYPE
    OUT_OF_RANGE


def flatten(values, kind, name):
    """The scalars of nested lists in row-major order; the very list when it is flat already.

    Raises HeaderError when `values` is no list, or nested too deep.
    """
    if not PyList_CheckExact(values):
        raise HeaderError(
            f"the JSON data of {subject(kind, name)} is {json_text(values)}, not a list",
            tensor=name)
    cdef list flat = <list>values
    for value in flat:
        if PyList_CheckExact(value):
            flat = []
            gather_scalars(flat, <list>values, 1, kind, name)
            break
    return flat


cdef int gather_scalars(list flat, list values, int depth, kind, name) except -1:
    if depth > MAX_NESTING:
        raise HeaderError(
            f"the JSON data of {subject(kind, name)} is nested deeper than {MAX_NESTING} lists",
            tensor=name, expected=MAX_NESTING)
    for value in values:
        if PyList_CheckExact(value):
            gather_scalars(flat, <list>value, depth + 1, kind, name)
        else:
            flat.append(value)
    return 0


cdef int check_count(
    Layout* layout, list scalars, tuple shape, itemsize, Limits limits, kind, name,
    Datatype datatype,
) except -1:
    measure(layout, shape, itemsize, limits, kind, name, datatype)
    if <uint64_t>len(scalars) != layout.n_elements:
        raise LayoutError(
            f"{subject(kind, name)} does not match its shape: {datatype.name} {shape_text(shape)} "
            f"needs {layout.n_elements} elements, its JSON data has {len(scalars)}",
            tensor=name, expected=layout.n_elements, actual=len(scalars))
    return 0


def numbers(list scalars not None, cnp.dtype dtype not None, tuple shape not None,
            Limits limits not None, kind, name, Datatype datatype not None):
    """A new array of `dtype` (any but FP16, BF16) and `shape` from a flat list of JSON scalars.

    Nothing is allocated before the count is known to match. Raises LayoutError (count, shape),
    ElementError (type or range); `null` is NaN in floating point, and refused elsewhere.
    """
    cdef Layout layout
    check_count(&layout, scalars, shape, dtype.itemsize, limits, kind, name, datatype)
    cdef cnp.ndarray array = cnp.PyArray_EMPTY(layout.rank, layout.dims, dtype.type_num, 0)
    cdef char* target = <char*>cnp.PyArray_DATA(array)
    cdef int itemsize = <int>dtype.itemsize
    cdef int64_t low = 0, high = 0
    cdef bint is_unsigned = dtype.kind == c"u"
    cdef bint is_integer = is_unsigned or dtype.kind == c"i"
    cdef bint is_bool = dtype.kind == c"b"
    cdef Verdict verdict
    cdef Py_ssize_t i
    if is_integer:
        bounds = np.iinfo(dtype)
        low, high = bounds.min, min(bounds.max, INT64_MAX)
    for i, value in enumerate(scalars):
        if is_integer:
            verdict = store_integer(target, itemsize, low, high, is_unsigned, value)
        elif is_bool:
            verdict = store_bool(target, value)
        else:
            verdict = store_float(target, itemsize, value)
        if verdict != FINE:
            raise bad_scalar(verdict, value, i, dtype, kind, name, datatype)
        target += itemsize
    return array


cdef Verdict store_integer(
    char* target, int itemsize, int64_t low, int64_t high, bint is_unsigned, object value
) except? OUT_OF_RANGE:
    cdef int overflow = 0
    cdef long long number
    cdef unsigned long long large
    if not PyLong_CheckExact(value):  # exact: True is an int, too
        return WRONG_TYPE
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0 and low <= number <= high:
        memcpy(target, &number, itemsize)  # little-endian: the low bytes come first
        return FINE
    if overflow > 0 and is_unsigned and itemsize == 8:
        try:
            large = PyLong_AsUnsignedLongLong(value)
        except OverflowError:
            return OUT_OF_RANGE
        memcpy(target, &large, itemsize)
        return FINE
    return OUT_OF_RANGE


cdef Verdict store_float(char* target, int itemsize, object value) except? OUT_OF_RANGE:
    cdef double number
    cdef float single
    if PyFloat_CheckExact(value):
        number = PyFloat_AS_DOUBLE(value)
    elif PyLong_CheckExact(value):
        try:
            number = PyLong_AsDouble(value)
        except OverflowError:
            return OUT_OF_RANGE
    elif value is None:
        number = NAN
    else:
        return WRONG_TYPE
    if itemsize == 8:
        memcpy(target, &number, 8)
        return FINE
    single = <float>number
    if isinf(single) and not isinf(number):
        return OUT_OF_RANGE
    memcpy(target, &single, 4)
    return FINE


cdef Verdict store_bool(char* target, object value) noexcept:
    if value is not True and value is not False:
        return WRONG_TYPE
    target[0] = value is True
    return FINE


def texts(list scalars not None, tuple shape not None, Limits limits not None, kind, name):
    """Check that a flat list of JSON scalars is `str` throughout, and as many as `shape` needs.

    Raises LayoutError (count, shape), ElementError (type).
    """
    cdef Layout layout
    cdef Py_ssize_t i
    check_count(&layout, scalars, shape, WIDEST_ITEMSIZE, limits, kind, name, BYTES)
    for i, value in enumerate(scalars):
        if type(value) is not str:
            raise bad_scalar(WRONG_TYPE, value, i, None, kind, name, BYTES)


cdef bad_scalar(Verdict verdict, value, element, dtype, kind, name, Datatype datatype):
    takes = "strings"
    if dtype is not None:
        takes = {"b": "true and false", "f": "numbers"}.get(dtype.kind, "integers")
    if verdict == OUT_OF_RANGE:
        if dtype.kind == "f":
            takes = f"magnitudes up to {np.finfo(dtype).max}"
        else:
            takes = f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
    return ElementError(
        f"element {element} of {subject(kind, name)} does not fit its datatype: {datatype.name} "
        f"takes {takes}, the value is {json_text(value)}",
        tensor=name, element=element,
    )


cdef json_text(value):
    """A scalar from a stranger in bounded space."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if value is None:
        return "null"
    text = repr(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
