"""BYTES written: values of any kind become length-prefixed wire bytes, in two passes.

The first pass adds up the sizes, the second fills one allocation. Both hold the GIL and run no
Python code in between, so what was measured is what is written.
"""

cimport numpy as cnp
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check, PyByteArray_GET_SIZE
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_Check,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast_ITEMS
from cpython.unicode cimport PyUnicode_Check, PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND
from libc.stdint cimport UINT32_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ._wire cimport PREFIX_NBYTES, store_le32

import numpy as np

from .errors import EncodeError, subject

cnp.import_array()

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)

cdef enum:
    LONE_SURROGATE = -1

ctypedef fused CodeUnit:
    uint8_t
    uint16_t
    uint32_t


cdef Py_ssize_t utf8_nbytes(const CodeUnit* text, Py_ssize_t n_characters) noexcept nogil:
    """Bytes that `text` takes as UTF-8, or LONE_SURROGATE. `text` holds whole code points."""
    cdef Py_ssize_t nbytes = n_characters
    cdef Py_ssize_t i
    cdef CodeUnit c
    for i in range(n_characters):
        c = text[i]
        nbytes += c >= 0x80
        if CodeUnit is not uint8_t:
            if 0xD800 <= c <= 0xDFFF:
                return LONE_SURROGATE
            nbytes += c >= 0x800
        if CodeUnit is uint32_t:
            nbytes += c >= 0x10000
    return nbytes


cdef unsigned char* write_utf8(
    unsigned char* target, const CodeUnit* text, Py_ssize_t n_characters
) noexcept nogil:
    """Write what `utf8_nbytes` measured; returns the end."""
    cdef Py_ssize_t i
    cdef uint32_t c
    for i in range(n_characters):
        c = text[i]
        if c < 0x80:
            target[0] = <unsigned char>c
            target += 1
        elif c < 0x800:
            target[0] = <unsigned char>(0xC0 | c >> 6)
            target[1] = <unsigned char>(0x80 | c & 0x3F)
            target += 2
        elif c < 0x10000:
            target[0] = <unsigned char>(0xE0 | c >> 12)
            target[1] = <unsigned char>(0x80 | c >> 6 & 0x3F)
            target[2] = <unsigned char>(0x80 | c & 0x3F)
            target += 3
        else:
            target[0] = <unsigned char>(0xF0 | c >> 18)
            target[1] = <unsigned char>(0x80 | c >> 12 & 0x3F)
            target[2] = <unsigned char>(0x80 | c >> 6 & 0x3F)
            target[3] = <unsigned char>(0x80 | c & 0x3F)
            target += 4
    return target


cdef Py_ssize_t text_nbytes(object text) noexcept:
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text)
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    if PyUnicode_IS_ASCII(text):
        return n_characters
    if kind == 1:
        return utf8_nbytes(<const uint8_t*>data, n_characters)
    if kind == 2:
        return utf8_nbytes(<const uint16_t*>data, n_characters)
    return utf8_nbytes(<const uint32_t*>data, n_characters)


cdef void write_text(unsigned char* target, object text) noexcept:
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text)
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    if PyUnicode_IS_ASCII(text):
        memcpy(target, data, n_characters)
    elif kind == 1:
        write_utf8(target, <const uint8_t*>data, n_characters)
    elif kind == 2:
        write_utf8(target, <const uint16_t*>data, n_characters)
    else:
        write_utf8(target, <const uint32_t*>data, n_characters)


cdef enum:
    UNSUITABLE = -2  # not bytes-like and not str


cdef Py_ssize_t value_nbytes(object value) except -3:
    """Wire bytes of one value without its prefix, LONE_SURROGATE, or UNSUITABLE."""
    cdef Py_buffer buffer
    cdef Py_ssize_t nbytes
    if PyBytes_Check(value):
        return PyBytes_GET_SIZE(value)
    if PyUnicode_Check(value):
        return text_nbytes(value)
    if PyByteArray_Check(value):
        return PyByteArray_GET_SIZE(value)
    if not PyMemoryView_Check(value):
        return UNSUITABLE
    PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    nbytes = buffer.len
    PyBuffer_Release(&buffer)
    return nbytes


cdef int write_value(unsigned char* target, object value, Py_ssize_t nbytes) except -1:
    cdef Py_buffer buffer
    if PyBytes_Check(value):
        memcpy(target, PyBytes_AS_STRING(value), nbytes)
    elif PyUnicode_Check(value):
        write_text(target, value)
    elif PyByteArray_Check(value):
        memcpy(target, PyByteArray_AS_STRING(value), nbytes)
    else:
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
        memcpy(target, buffer.buf, nbytes)
        PyBuffer_Release(&buffer)
    return 0


cdef uint64_t add_element(
    uint64_t total, object value, Py_ssize_t element, tuple shape, name
) except? 0:
    cdef Py_ssize_t nbytes = value_nbytes(value)
    if nbytes < 0:
        raise unsuitable(value, nbytes, element, shape, name)
    if <uint64_t>nbytes > UINT32_MAX:
        raise too_long(nbytes, element, shape, name)
    return total + PREFIX_NBYTES + <uint64_t>nbytes


def pack_objects(values, tuple shape not None, name):
    """Wire bytes of a list, or a contiguous object array, of bytes, str, bytearray or memoryview.

    `shape` and `name` (or None) only serve the message of the EncodeError.
    """
    # Borrowed references: `values` owns the objects, and nothing below runs Python code that
    # could exchange them (a memoryview answers for its memory without asking the exporter again).
    cdef PyObject** items
    cdef Py_ssize_t n_elements
    if PyList_CheckExact(values):
        items = PySequence_Fast_ITEMS(values)
        n_elements = PyList_GET_SIZE(values)
    else:
        items = <PyObject**>cnp.PyArray_DATA(<cnp.ndarray?>values)
        n_elements = cnp.PyArray_SIZE(values)
    cdef uint64_t total = 0
    cdef Py_ssize_t i, nbytes
    for i in range(n_elements):
        total = add_element(total, value_at(items, i), i, shape, name)
    wire = PyBytes_FromStringAndSize(NULL, total)
    cdef unsigned char* target = <unsigned char*>PyBytes_AS_STRING(wire)
    for i in range(n_elements):
        value = value_at(items, i)
        nbytes = value_nbytes(value)
        store_le32(target, <uint32_t>nbytes)
        write_value(target + PREFIX_NBYTES, value, nbytes)
        target += PREFIX_NBYTES + nbytes
    return wire


cdef inline object value_at(PyObject** items, Py_ssize_t i):
    return <object>items[i] if items[i] != NULL else None  # numpy reads NULL as None, too


def pack_fixed(cnp.ndarray values not None):
    """Wire bytes of a contiguous numpy `S` array; trailing NULs are padding there, and dropped."""
    cdef const char* data = <const char*>cnp.PyArray_DATA(values)
    cdef Py_ssize_t width = cnp.PyArray_ITEMSIZE(values)
    cdef Py_ssize_t n_elements = cnp.PyArray_SIZE(values)
    cdef uint64_t total = 0
    cdef Py_ssize_t i, nbytes
    for i in range(n_elements):
        total += PREFIX_NBYTES + unpadded(data + i * width, width)
    wire = PyBytes_FromStringAndSize(NULL, total)
    cdef unsigned char* target = <unsigned char*>PyBytes_AS_STRING(wire)
    for i in range(n_elements):
        nbytes = unpadded(data + i * width, width)
        store_le32(target, <uint32_t>nbytes)
        memcpy(target + PREFIX_NBYTES, data + i * width, nbytes)
        target += PREFIX_NBYTES + nbytes
    return wire


cdef inline Py_ssize_t unpadded(const char* data, Py_ssize_t width) noexcept nogil:
    while width > 0 and data[width - 1] == 0:
        width -= 1
    return width


def pack_unicode(cnp.ndarray values not None, tuple shape not None, name):
    """Wire bytes (UTF-8) of a contiguous native numpy `U` array; trailing NULs are dropped."""
    cdef const uint32_t* data = <const uint32_t*>cnp.PyArray_DATA(values)
    cdef Py_ssize_t width = cnp.PyArray_ITEMSIZE(values) // 4
    cdef Py_ssize_t n_elements = cnp.PyArray_SIZE(values)
    cdef uint64_t total = 0
    cdef Py_ssize_t i, n_characters, nbytes
    for i in range(n_elements):
        nbytes = utf8_nbytes(data + i * width, unpadded_text(data + i * width, width))
        if nbytes < 0:
            raise unsuitable(values.flat[i], nbytes, i, shape, name)
        total += PREFIX_NBYTES + nbytes
    wire = PyBytes_FromStringAndSize(NULL, total)
    cdef unsigned char* target = <unsigned char*>PyBytes_AS_STRING(wire)
    cdef unsigned char* end
    for i in range(n_elements):
        n_characters = unpadded_text(data + i * width, width)
        end = write_utf8(target + PREFIX_NBYTES, data + i * width, n_characters)
        store_le32(target, <uint32_t>(end - target - PREFIX_NBYTES))
        target = end
    return wire


cdef inline Py_ssize_t unpadded_text(const uint32_t* text, Py_ssize_t width) noexcept nogil:
    while width > 0 and text[width - 1] == 0:
        width -= 1
    return width


cdef place(element, shape, name):
    index = f" {[int(i) for i in np.unravel_index(element, shape)]}" if len(shape) > 1 else ""
    of = f" of {subject('tensor', name)}" if name is not None else ""
    return f"element {element}{index}{of}"


cdef unsuitable(value, problem, element, shape, name):
    what = f"is {type(value).__name__}, not bytes or str"
    if problem == LONE_SURROGATE:
        at = next(i for i, c in enumerate(value) if "\ud800" <= c <= "\udfff")
        what = f"has a lone surrogate, U+{ord(value[at]):04X} at character {at}, and no UTF-8 form"
    elif value is None:
        what = "is None, and BYTES has no missing values"
    return EncodeError(f"{place(element, shape, name)} {what}", tensor=name, element=element)


cdef too_long(nbytes, element, shape, name):
    return EncodeError(
        f"{place(element, shape, name)} is too long: {nbytes} bytes, a length prefix counts to "
        f"{UINT32_MAX}",
        tensor=name, element=element, expected=UINT32_MAX, actual=nbytes,
    )
