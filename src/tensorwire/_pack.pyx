"""BYTES written: values of any kind become length-prefixed wire bytes, in two passes.

A Source first measures its values, then fills one allocation of that size. Memory that other
threads may write to without the GIL is among the values, so filling checks every element against
the room that is left: what changed in between is an error, never a write past the end.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    Py_buffer,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check, PyByteArray_GET_SIZE
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_Check,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast_ITEMS
from cpython.unicode cimport (
    PyUnicode_Check,
    PyUnicode_CheckExact,
    PyUnicode_DATA,
    PyUnicode_GET_LENGTH,
    PyUnicode_KIND,
)
from libc.stdint cimport UINT32_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from ._npystring cimport (
    NpyString_acquire_allocator,
    NpyString_load,
    NpyString_release_allocator,
    PyArray_StringDTypeObject,
    npy_packed_static_string,
    npy_static_string,
    npy_string_allocator,
)
from ._utf8 cimport NO_UTF8, utf8_nbytes, write_utf8
from ._wire cimport PREFIX_NBYTES

import numpy as np

from .errors import EncodeError, subject

cnp.import_array()

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    UNSUITABLE = -2  # neither bytes-like nor str
    UNREADABLE = -3  # a memoryview that is released, or not contiguous


cdef class Source:
    """Values on their way to the wire. `shape` and `name` (or None) serve the error messages."""

    def __init__(self, values, tuple shape not None, name):
        self.values = values
        self.shape = shape
        self.name = name

    cdef uint64_t measure(self) except? 0:
        """Wire bytes of all values, prefixes included. Raises EncodeError with the element."""
        raise NotImplementedError

    cdef int fill(self, Writer* writer) except -1:
        """Write all values, each through `begin_element`."""
        raise NotImplementedError

    cdef bint overlaps(self, const void* begin, const void* end) except -1:
        """Whether `fill` would read what it has written, if it wrote from `begin` to `end`.

        Called after `measure`.
        """
        return False


def pack(Source source not None):
    """The wire bytes of `source`: one allocation, filled once."""
    cdef Writer writer
    cdef uint64_t nbytes = source.measure()
    if nbytes > <uint64_t>PY_SSIZE_T_MAX:  # elements may be the same memory again and again
        raise MemoryError(f"the elements take {nbytes} bytes")
    wire = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>nbytes)
    writer.target = <unsigned char*>PyBytes_AS_STRING(wire)
    writer.end = writer.target + nbytes
    fill_exactly(source, &writer)
    return wire


def pack_into(Source source not None, buffer):
    """Write the wire bytes of `source` to the start of a writable buffer; returns their number.

    Nothing is written when they do not fit. Values that lie in the buffer itself are packed into
    memory of their own first, as they were before the call.
    """
    cdef Writer writer
    cdef Py_buffer view
    cdef uint64_t nbytes
    # Before the values are measured, because a class may export its buffer with Python code.
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        nbytes = source.measure()
        if nbytes > <uint64_t>view.len:
            raise EncodeError(
                f"the elements take {nbytes} bytes, the buffer has {view.len}",
                tensor=source.name, expected=nbytes, actual=view.len)
        writer.target = <unsigned char*>view.buf
        writer.end = writer.target + nbytes
        if source.overlaps(writer.target, writer.end):
            wire = pack(source)
            if <uint64_t>PyBytes_GET_SIZE(wire) != nbytes:
                raise changed()
            memcpy(writer.target, PyBytes_AS_STRING(wire), nbytes)
        else:
            fill_exactly(source, &writer)
    finally:
        PyBuffer_Release(&view)
    return nbytes


cdef int fill_exactly(Source source, Writer* writer) except -1:
    source.fill(writer)
    if writer.target != writer.end:
        raise changed()
    return 0


# --- objects ---------------------------------------------------------------------------------


@cython.final
cdef class Objects(Source):
    """A list, or a contiguous object array, of bytes, str, bytearray or memoryview."""

    cdef bint has_buffers  # whether any of them may be changed through a buffer

    cdef PyObject** items(self, Py_ssize_t* n_elements) except? NULL:
        """As `items_of`; another thread may have changed a list since its shape was taken."""
        cdef PyObject** items = items_of(self.values, n_elements)
        cdef Py_ssize_t n_expected = 1
        for dim in self.shape:
            n_expected *= <Py_ssize_t>dim
        if n_elements[0] != n_expected:
            raise changed()
        return items

    cdef uint64_t measure(self) except? 0:
        cdef Py_ssize_t n_elements = 0
        cdef PyObject** items = self.items(&n_elements)
        cdef uint64_t total = 0
        cdef Py_ssize_t i, nbytes
        self.has_buffers = False
        for i in range(n_elements):
            value = value_at(items, i)
            nbytes = value_nbytes(value, &self.has_buffers)
            if nbytes < 0:
                raise unsuitable(value, nbytes, i, self.shape, self.name)
            if <uint64_t>nbytes > UINT32_MAX:
                raise too_long(nbytes, i, self.shape, self.name)
            total += PREFIX_NBYTES + <uint64_t>nbytes
        return total

    cdef int fill(self, Writer* writer) except -1:
        cdef Py_ssize_t n_elements = 0
        cdef PyObject** items = self.items(&n_elements)
        cdef unsigned char* target
        cdef Py_ssize_t i, nbytes
        for i in range(n_elements):
            value = value_at(items, i)
            nbytes = value_nbytes(value, &self.has_buffers)  # negative: more than there is room
            target = begin_element(writer, nbytes)
            if target == NULL:
                raise changed()
            write_value(target, value, nbytes)
        return 0

    cdef bint overlaps(self, const void* begin, const void* end) except -1:
        cdef Py_ssize_t n_elements = 0
        cdef PyObject** items
        cdef Py_buffer buffer
        cdef Py_ssize_t i
        cdef bint found
        if not self.has_buffers:
            return False
        items = self.items(&n_elements)
        for i in range(n_elements):
            value = value_at(items, i)
            if PyBytes_Check(value) or PyUnicode_Check(value):
                continue
            PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
            found = overlap(buffer.buf, buffer.len, begin, end)
            PyBuffer_Release(&buffer)
            if found:
                return True
        return False


def all_plain(cnp.ndarray values not None):
    """Whether an object array holds nothing but `bytes` and `str`, and no subclass.

    Raises ValueError for an array that is not contiguous, not aligned, or of anything else.
    """
    cdef Py_ssize_t n_elements = 0
    cdef PyObject** items
    cdef Py_ssize_t i
    if cnp.PyArray_TYPE(values) != cnp.NPY_OBJECT or not cnp.PyArray_ISCARRAY_RO(values):
        raise ValueError("not a contiguous, aligned array of objects")
    items = items_of(values, &n_elements)
    for i in range(n_elements):
        value = value_at(items, i)
        if not PyBytes_CheckExact(value) and not PyUnicode_CheckExact(value):
            return False
    return True


cdef PyObject** items_of(values, Py_ssize_t* n_elements) except? NULL:
    # Borrowed references. The values own the objects, and while they are walked no Python code
    # runs that could exchange them: a memoryview, too, answers without asking its exporter.
    if PyList_CheckExact(values):
        n_elements[0] = PyList_GET_SIZE(values)
        return PySequence_Fast_ITEMS(values)
    n_elements[0] = cnp.PyArray_SIZE(<cnp.ndarray?>values)
    return <PyObject**>cnp.PyArray_DATA(<cnp.ndarray>values)


cdef inline object value_at(PyObject** items, Py_ssize_t i):
    return <object>items[i] if items[i] != NULL else None  # numpy reads NULL as None, too


cdef inline Py_ssize_t value_nbytes(object value, bint* has_buffers) except -4:
    """Wire bytes of one value without its prefix, or why it has none.

    Sets `has_buffers` for a value that others may write to.
    """
    if PyBytes_Check(value):
        return PyBytes_GET_SIZE(value)
    if PyUnicode_Check(value):
        return PyUnicode_GET_LENGTH(value) if PyUnicode_IS_ASCII(value) else text_nbytes(value)
    has_buffers[0] = True
    if PyByteArray_Check(value):
        return PyByteArray_GET_SIZE(value)
    return buffer_nbytes(value)


cdef Py_ssize_t buffer_nbytes(object value) except -4:
    cdef Py_buffer buffer
    cdef Py_ssize_t nbytes
    if not PyMemoryView_Check(value):  # other exporters of buffers are arrays, or numbers
        return UNSUITABLE
    try:
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    except (BufferError, ValueError):
        return UNREADABLE
    nbytes = buffer.len
    PyBuffer_Release(&buffer)
    return nbytes


cdef Py_ssize_t text_nbytes(object text) noexcept:
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text)
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    if kind == 1:
        return utf8_nbytes(<const uint8_t*>data, n_characters)
    if kind == 2:
        return utf8_nbytes(<const uint16_t*>data, n_characters)
    return utf8_nbytes(<const uint32_t*>data, n_characters)


cdef inline int write_value(unsigned char* target, object value, Py_ssize_t nbytes) except -1:
    if PyBytes_Check(value):
        memcpy(target, PyBytes_AS_STRING(value), nbytes)
    elif PyUnicode_Check(value):
        if PyUnicode_IS_ASCII(value):
            memcpy(target, PyUnicode_DATA(value), nbytes)
        else:
            write_text(target, nbytes, value)
    elif PyByteArray_Check(value):
        memcpy(target, PyByteArray_AS_STRING(value), nbytes)
    else:
        write_buffer(target, value, nbytes)
    return 0


cdef void write_text(unsigned char* target, Py_ssize_t nbytes, object text) noexcept:
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text)
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    if kind == 1:
        write_utf8(target, nbytes, <const uint8_t*>data, n_characters)
    elif kind == 2:
        write_utf8(target, nbytes, <const uint16_t*>data, n_characters)
    else:
        write_utf8(target, nbytes, <const uint32_t*>data, n_characters)


cdef int write_buffer(unsigned char* target, object value, Py_ssize_t nbytes) except -1:
    cdef Py_buffer buffer
    PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    if buffer.len > 0:  # an empty buffer may be at no address
        memcpy(target, buffer.buf, min(nbytes, buffer.len))
    PyBuffer_Release(&buffer)
    return 0


# --- numpy arrays of text and bytes ----------------------------------------------------------


@cython.final
cdef class FixedWidth(Source):
    """A contiguous numpy `S` array; trailing NULs are padding there, and dropped."""

    cdef uint64_t measure(self) except? 0:
        cdef const char* data = <const char*>cnp.PyArray_DATA(<cnp.ndarray?>self.values)
        cdef Py_ssize_t width = cnp.PyArray_ITEMSIZE(<cnp.ndarray>self.values)
        cdef uint64_t total = 0
        cdef Py_ssize_t i
        for i in range(cnp.PyArray_SIZE(<cnp.ndarray>self.values)):
            total += PREFIX_NBYTES + <uint64_t>unpadded(data + i * width, width)
        return total

    cdef int fill(self, Writer* writer) except -1:
        cdef const char* data = <const char*>cnp.PyArray_DATA(<cnp.ndarray?>self.values)
        cdef Py_ssize_t width = cnp.PyArray_ITEMSIZE(<cnp.ndarray>self.values)
        cdef unsigned char* target
        cdef Py_ssize_t i, nbytes
        for i in range(cnp.PyArray_SIZE(<cnp.ndarray>self.values)):
            nbytes = unpadded(data + i * width, width)
            target = begin_element(writer, nbytes)
            if target == NULL:
                raise changed()
            memcpy(target, data + i * width, nbytes)
        return 0

    cdef bint overlaps(self, const void* begin, const void* end) except -1:
        return array_overlaps(<cnp.ndarray?>self.values, begin, end)


cdef bint array_overlaps(cnp.ndarray array, const void* begin, const void* end) except -1:
    """Of a contiguous array."""
    return overlap(cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array), begin, end)


cdef inline Py_ssize_t unpadded(const char* data, Py_ssize_t width) noexcept nogil:
    while width > 0 and data[width - 1] == 0:
        width -= 1
    return width


@cython.final
cdef class Unicode(Source):
    """A contiguous native numpy `U` array; trailing NULs are padding there, and dropped."""

    cdef uint64_t measure(self) except? 0:
        cdef const uint32_t* data = <const uint32_t*>cnp.PyArray_DATA(<cnp.ndarray?>self.values)
        cdef Py_ssize_t width = cnp.PyArray_ITEMSIZE(<cnp.ndarray>self.values) // 4
        cdef uint64_t total = 0
        cdef Py_ssize_t i, nbytes
        for i in range(cnp.PyArray_SIZE(<cnp.ndarray>self.values)):
            nbytes = utf8_nbytes(data + i * width, unpadded_text(data + i * width, width))
            if nbytes < 0:
                raise no_utf8(data + i * width, width, i, self.shape, self.name)
            if <uint64_t>nbytes > UINT32_MAX:
                raise too_long(nbytes, i, self.shape, self.name)
            total += PREFIX_NBYTES + <uint64_t>nbytes
        return total

    cdef int fill(self, Writer* writer) except -1:
        cdef const uint32_t* data = <const uint32_t*>cnp.PyArray_DATA(<cnp.ndarray?>self.values)
        cdef Py_ssize_t width = cnp.PyArray_ITEMSIZE(<cnp.ndarray>self.values) // 4
        cdef unsigned char* target
        cdef Py_ssize_t i, n_characters, nbytes
        for i in range(cnp.PyArray_SIZE(<cnp.ndarray>self.values)):
            n_characters = unpadded_text(data + i * width, width)
            nbytes = utf8_nbytes(data + i * width, n_characters)
            target = begin_element(writer, nbytes)  # negative: more than there is room for
            if target == NULL:
                raise changed()
            write_utf8(target, nbytes, data + i * width, n_characters)
        return 0

    cdef bint overlaps(self, const void* begin, const void* end) except -1:
        return array_overlaps(<cnp.ndarray?>self.values, begin, end)


cdef inline Py_ssize_t unpadded_text(const uint32_t* text, Py_ssize_t width) noexcept nogil:
    while width > 0 and text[width - 1] == 0:
        width -= 1
    return width


cdef enum LoadFault:
    LOADED
    UNLOADABLE  # missing, or an error of numpy's
    TOO_LONG
    CHANGED


cdef struct Loading:
    uint64_t nbytes  # on the wire, of the elements before the fault
    Py_ssize_t element  # where it stopped
    LoadFault fault
    int status  # numpy's, of an element that is UNLOADABLE
    uint64_t size  # of an element that is TOO_LONG


cdef Loading load_strings(
    npy_string_allocator* allocator, const char* packed, Py_ssize_t itemsize,
    Py_ssize_t n_elements, Writer* writer,
) noexcept nogil:
    """Measure the items of a StringDType array, and write them when there is a writer."""
    cdef Loading loading
    cdef npy_static_string text
    cdef unsigned char* target
    cdef Py_ssize_t i
    loading.nbytes = loading.size = 0
    loading.element = 0
    loading.fault = LOADED
    loading.status = 0
    for i in range(n_elements):
        loading.element = i
        loading.status = NpyString_load(
            allocator, <const npy_packed_static_string*>(packed + i * itemsize), &text)
        if loading.status != 0:
            loading.fault = UNLOADABLE
            break
        if text.size > UINT32_MAX:
            loading.fault = TOO_LONG
            loading.size = text.size
            break
        loading.nbytes += PREFIX_NBYTES + text.size
        if writer != NULL:
            target = begin_element(writer, text.size)
            if target == NULL:
                loading.fault = CHANGED
                break
            if text.size > 0:
                memcpy(target, text.buf, text.size)
    return loading


@cython.final
cdef class Strings(Source):
    """A numpy StringDType array of any strides, whose UTF-8 is copied without `str` objects."""

    cdef uint64_t measure(self) except? 0:
        return self.walk(NULL)

    cdef int fill(self, Writer* writer) except -1:
        self.walk(writer)
        return 0

    cdef uint64_t walk(self, Writer* writer) except? 0:
        """Wire bytes of all strings; they are written, too, when there is a writer.

        The GIL is released while the array's allocator is locked, also while it is waited for.
        """
        cdef cnp.ndarray array = <cnp.ndarray?>self.values
        cdef const char* packed = <const char*>cnp.PyArray_DATA(array)
        cdef Py_ssize_t itemsize = cnp.PyArray_ITEMSIZE(array)
        cdef Py_ssize_t n_elements = cnp.PyArray_SIZE(array)
        cdef PyArray_StringDTypeObject* descr = (
            <PyArray_StringDTypeObject*>cnp.PyArray_DESCR(array))
        cdef npy_string_allocator* allocator
        cdef Loading loading
        with nogil:
            allocator = NpyString_acquire_allocator(descr)
            loading = load_strings(allocator, packed, itemsize, n_elements, writer)
            NpyString_release_allocator(allocator)
        if loading.fault == LOADED:
            return loading.nbytes
        if loading.fault == UNLOADABLE:
            raise missing(loading.status, loading.element, self.shape, self.name)
        if loading.fault == TOO_LONG:
            raise too_long(loading.size, loading.element, self.shape, self.name)
        raise changed()


@cython.final
cdef class Wire(Source):
    """Wire bytes that are there already: a flat memoryview."""

    cdef uint64_t measure(self) except? 0:
        return len(self.values)

    cdef int fill(self, Writer* writer) except -1:
        cdef Py_buffer buffer
        cdef Py_ssize_t room = writer.end - writer.target
        PyObject_GetBuffer(self.values, &buffer, PyBUF_SIMPLE)
        if room > 0 and buffer.len > 0:  # the two may be the same memory
            memmove(writer.target, buffer.buf, min(room, buffer.len))
        writer.target += min(room, buffer.len)
        PyBuffer_Release(&buffer)
        return 0


# --- the words -------------------------------------------------------------------------------


cdef place(element, tuple shape, name):
    index = f" {[int(i) for i in np.unravel_index(element, shape)]}" if len(shape) > 1 else ""
    of = f" of {subject('tensor', name)}" if name is not None else ""
    return f"element {element}{index}{of}"


cdef unsuitable(value, problem, element, tuple shape, name):
    what = f"is {type(value).__name__}, not bytes or str"
    if problem == NO_UTF8:
        value = str.__str__(value)  # whose characters a subclass may not exchange
        at = next(i for i, c in enumerate(value) if "\ud800" <= c <= "\udfff")
        what = no_utf8_text(ord(value[at]), at)
    elif problem == UNREADABLE:
        what = "is a memoryview that is released, or not contiguous"
    elif value is None:
        what = "is None, and BYTES has no missing values"
    return EncodeError(f"{place(element, shape, name)} {what}", tensor=name, element=element)


cdef no_utf8(const uint32_t* text, Py_ssize_t width, element, tuple shape, name):
    cdef Py_ssize_t at = 0
    while at < width - 1 and not (0xD800 <= text[at] <= 0xDFFF or text[at] > 0x10FFFF):
        at += 1
    return EncodeError(
        f"{place(element, shape, name)} {no_utf8_text(text[at], at)}", tensor=name, element=element)


cdef no_utf8_text(code_point, at):
    what = "a lone surrogate" if code_point <= 0xDFFF else "no code point"
    return f"has {what}, U+{code_point:04X} at character {at}, and no UTF-8 form"


cdef missing(status, element, tuple shape, name):
    what = "is missing, and BYTES has no missing values" if status == 1 else "cannot be read"
    return EncodeError(f"{place(element, shape, name)} {what}", tensor=name, element=element)


cdef too_long(nbytes, element, tuple shape, name):
    return EncodeError(
        f"{place(element, shape, name)} is too long: {nbytes} bytes, a length prefix counts to "
        f"{UINT32_MAX}",
        tensor=name, element=element, expected=UINT32_MAX, actual=nbytes,
    )


cdef changed():
    return EncodeError("the values changed while they were packed")
