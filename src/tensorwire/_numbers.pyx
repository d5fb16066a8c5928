"""Lists of Python numbers, as callers hand them over, become arrays; every number is checked."""

cimport numpy as cnp
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport (
    PyLong_AsDouble,
    PyLong_AsLongLongAndOverflow,
    PyLong_AsUnsignedLongLong,
    PyLong_CheckExact,
)
from libc.math cimport isinf
from libc.stdint cimport INT64_MAX, int64_t
from libc.string cimport memcpy

from ._datatypes cimport Datatype

import numpy as np

from .errors import EncodeError

cnp.import_array()

cdef enum Verdict:
    FINE
    WRONG_TYPE
    OUT_OF_RANGE


def numbers(list scalars not None, Datatype datatype not None, name):
    """A new array, of one dimension, from a list of int, float or bool objects.

    ``datatype``: any that JSON has, but BYTES. Raises EncodeError, which names the tensor ``name``
    and the element, for a value of another type or out of range.
    """
    cdef cnp.dtype dtype = datatype.dtype
    cdef cnp.npy_intp n_elements = len(scalars)
    cdef cnp.ndarray array = cnp.PyArray_EMPTY(1, &n_elements, dtype.type_num, 0)
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
    # The conversions below run no code of the caller's, who could change the list meanwhile.
    for i in range(n_elements):
        value = scalars[i]
        if is_integer:
            verdict = store_integer(target, itemsize, low, high, is_unsigned, value)
        elif is_bool:
            verdict = store_bool(target, value)
        else:
            verdict = store_float(target, itemsize, value)
        if verdict != FINE:
            raise bad_scalar(verdict, value, i, datatype, name)
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


cdef bad_scalar(Verdict verdict, value, element, Datatype datatype, name):
    dtype = <object>datatype.dtype
    if verdict == WRONG_TYPE:
        takes = {"b": "booleans", "f": "numbers"}.get(dtype.kind, "integers")
    elif dtype.kind == "f":
        takes = f"magnitudes up to {np.finfo(dtype).max}"
    else:
        takes = f"{np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
    if type(value) is int and value.bit_length() > 128:
        shown = f"an int of {value.bit_length()} bits"
    else:
        shown = f"{value!r:.60}" if type(value) in (int, float, bool, str, type(None)) else (
            type(value).__name__)
    return EncodeError(
        f"element {element} of tensor {name!r} does not fit its datatype: {datatype.name} takes "
        f"{takes}, the value is {shown}",
        tensor=name, element=element,
    )
