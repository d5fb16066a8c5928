"""Write BYTES: convert values of any supported type to length-prefixed wire bytes.

A `Source` wraps the values. The first pass over them computes the size of the wire bytes, and the
second one fills a single allocation of that size. Other threads may write to some kinds of values
without the GIL. The second pass therefore checks that each element fits the remaining memory, and
raises an error for an element that has grown.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer)
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check, PyByteArray_GET_SIZE
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE)
from cpython.list cimport PyList_CheckExact
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_New
from cpython.unicode cimport (
    PyUnicode_Check, PyUnicode_CheckExact, PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND)
from libc.stdint cimport UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from ..exchange.arrow cimport (
    OFFSETS_32, VIEWS, ArrowLayout, Chunk, Received, invalid_arrow_error, receive)
from ..exchange.arrow_abi cimport INLINE_NBYTES, N_VIEW_BUFFERS, ArrowArray, View
from ..memory cimport FREE_THREADED, collect_work, count_work, end_of_batch, keeps_gil, write_memory
from ..bytes.npystring cimport (
    NpyString_acquire_allocator, NpyString_load, NpyString_release_allocator,
    PyArray_StringDTypeObject, npy_packed_static_string, npy_static_string, npy_string_allocator)
from ..new_objects cimport set_item
from ..utf8 cimport NOT_ENCODABLE, utf8_nbytes, write_utf8
from ..wire cimport PREFIX_NBYTES, store_le32

import numpy as np

from ...errors import SUBJECT, EncodeError, format_count

cnp.import_array()

cdef extern from "Python.h":
    # For borrowed references, which Cython would otherwise count.
    bint is_bytes "PyBytes_Check"(PyObject* value) noexcept
    char* bytes_data "PyBytes_AS_STRING"(PyObject* value) noexcept
    Py_ssize_t bytes_nbytes "PyBytes_GET_SIZE"(PyObject* value) noexcept
    bint is_str "PyUnicode_Check"(PyObject* value) noexcept
    bint is_exact_bytes "PyBytes_CheckExact"(PyObject* value) noexcept
    bint is_exact_str "PyUnicode_CheckExact"(PyObject* value) noexcept
    bint is_ascii_str "PyUnicode_IS_ASCII"(PyObject* value) noexcept
    void* str_data "PyUnicode_DATA"(PyObject* value) noexcept
    Py_ssize_t str_length "PyUnicode_GET_LENGTH"(PyObject* value) noexcept
    uint32_t PyUnicode_READ_CHAR(object text, Py_ssize_t i)
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    ELEMENT_COST = 20  # see memory.pxd
    LONG_NBYTES = 64 << 10  # from this size on, other threads may run while an element is read
    NOT_BYTES_OR_STR = -2
    UNREADABLE = -3  # a memoryview that is released or not contiguous


cdef struct ValueBytes:
    const char* data
    int64_t nbytes


cdef class Source:
    """Values to be written as BYTES elements in row-major order, and their shape."""

    def __init__(self, values, tuple shape not None):
        self.values = values
        self.shape = shape

    cdef uint64_t walk(self, Writer* writer) except? 0:
        """Return the size of the wire bytes of all values. With a writer, write them instead.

        Raises EncodeError.
        """
        raise NotImplementedError

    cdef bint may_overlap(self, const void* begin, const void* end) except -1:
        """Return whether the values may overlap the memory from `begin` to `end`.

        Call it after `walk`.
        """
        return False


def pack(Source source not None):
    """Return the wire bytes of `source` as new `bytes`."""
    cdef Writer writer
    cdef Py_ssize_t nbytes = checked_size(source.walk(NULL))
    wire = PyBytes_FromStringAndSize(NULL, nbytes)
    writer.target = <unsigned char*>PyBytes_AS_STRING(wire)
    writer.end = writer.target + nbytes
    fill_exactly(source, &writer)
    return wire


cdef Py_ssize_t checked_size(uint64_t nbytes) except -1:
    if nbytes > <uint64_t>PY_SSIZE_T_MAX:  # a list may contain the same object many times
        raise MemoryError(f"the elements take {nbytes} bytes")
    return <Py_ssize_t>nbytes


def pack_into(Source source not None, buffer):
    """Write the wire bytes of `source` to the start of a writable buffer, and return their number.

    Nothing is written if they do not fit. If the memory of the values may overlap with the buffer,
    the wire bytes are written to other memory first. Raises BufferError for a buffer whose items
    are not bytes, because the items may be pointers to objects.
    """
    cdef Writer writer
    cdef Py_buffer view
    cdef uint64_t nbytes
    # The buffer is exported before the values are measured, because that may run Python code.
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if view.itemsize != 1:
            raise BufferError(
                f"the items of the buffer must be 1 byte long, not {view.itemsize}: pass "
                f"memoryview(buffer).cast('B')")
        nbytes = source.walk(NULL)
        if nbytes > <uint64_t>view.len:
            raise EncodeError(
                f"the elements take {format_count('byte', nbytes)}, but the buffer has {view.len}",
                expected=nbytes, actual=view.len)
        writer.target = <unsigned char*>view.buf
        writer.end = writer.target + nbytes
        if source.may_overlap(writer.target, writer.end):
            wire = pack(source)
            if <uint64_t>PyBytes_GET_SIZE(wire) != nbytes:
                raise modified_error()
            memcpy(writer.target, PyBytes_AS_STRING(wire), nbytes)
        else:
            fill_exactly(source, &writer)
    finally:
        PyBuffer_Release(&view)
    return nbytes


cdef inline uint64_t wire_nbytes(
    Source source, uint64_t nbytes, Py_ssize_t element
) except 0:
    """Return the size of an element with its prefix. Raises EncodeError if it is too long."""
    if nbytes > UINT32_MAX:
        raise too_long_error(nbytes, element, source.shape)
    return PREFIX_NBYTES + nbytes


cdef inline unsigned char* next_element(Writer* writer, uint64_t nbytes) except NULL:
    """Write the prefix of an element, and return the address for the element."""
    cdef unsigned char* target = begin_element(writer, nbytes)
    if target == NULL:
        raise modified_error()
    return target


cdef inline void copy_element(unsigned char* target, const char* data, Py_ssize_t nbytes) noexcept:
    if nbytes < LONG_NBYTES:
        memcpy(target, data, nbytes)
    else:
        write_memory(target, data, nbytes)


cdef int fill_exactly(Source source, Writer* writer) except -1:
    source.walk(writer)
    if writer.target != writer.end:
        raise modified_error()
    return 0


# --- objects ---------------------------------------------------------------------------------


@cython.final
cdef class Objects(Source):
    """A list, tuple or contiguous object array of bytes, str, bytearray or memoryview."""

    # The values that are buffers, to which others may write, are between these addresses.
    cdef const char* lowest
    cdef const char* highest

    cdef PyObject** items(self, Py_ssize_t* n_elements) except? NULL:
        """Return the items and their number. Raises EncodeError unless it matches the shape."""
        cdef PyObject** items = items_of(self.values, n_elements)
        cdef Py_ssize_t n_expected = 1
        for dim in self.shape:
            n_expected *= <Py_ssize_t>dim
        if n_elements[0] != n_expected:
            raise modified_error()
        return items

    cdef uint64_t walk(self, Writer* writer) except? 0:
        # Other threads may run between batches. Another thread may change a list then, so the items
        # are located again for each batch.
        cdef Py_ssize_t n_elements = 0, i = 0, stop
        cdef PyObject** items = self.items(&n_elements)
        cdef const unsigned char* begin
        cdef uint64_t total = 0
        while i < n_elements:
            stop = end_of_batch(i, n_elements, ELEMENT_COST)
            items = self.items(&n_elements)
            if writer == NULL:
                i = self.measure_batch(items, i, stop, &total)
                continue
            begin = writer.target
            i = self.write_batch(items, i, stop, writer)
            count_work(writer.target - begin)
        return total

    cdef Py_ssize_t measure_batch(
        self, PyObject** items, Py_ssize_t first, Py_ssize_t stop, uint64_t* total
    ) except -1:
        """Add the sizes of elements to `total`. Return the index of the next one.

        Other threads may run while long text is read, whose element is then the last one.
        """
        cdef Py_ssize_t i, nbytes
        cdef uint64_t subtotal = 0
        cdef ValueBytes span
        for i in range(first, stop):
            if locate_plain(&span, items[i]):
                subtotal += wire_nbytes(self, span.nbytes, i)
                continue
            value = value_at(items, i)
            nbytes = value_nbytes(value, self)
            if nbytes < 0:
                raise invalid_value_error(value, nbytes, i, self.shape)
            subtotal += wire_nbytes(self, nbytes, i)
            if nbytes >= LONG_NBYTES:
                stop = i + 1
                break
        total[0] += subtotal
        return stop

    cdef Py_ssize_t write_batch(
        self, PyObject** items, Py_ssize_t first, Py_ssize_t stop, Writer* writer
    ) except -1:
        """Write elements, about LONG_NBYTES at most. Return the index of the next one.

        Other threads may run while a long element is written, which is then the last one.
        """
        cdef unsigned char* target = writer.target
        cdef unsigned char* pause = target + min(
            writer.end - target, <Py_ssize_t>LONG_NBYTES)
        cdef Py_ssize_t i
        cdef ValueBytes span
        for i in range(first, stop):
            if locate_plain(&span, items[i]) and span.nbytes <= pause - target - PREFIX_NBYTES:
                store_le32(target, <uint32_t>span.nbytes)
                memcpy(target + PREFIX_NBYTES, span.data, span.nbytes)
                target += PREFIX_NBYTES + span.nbytes
                continue
            writer.target = target
            self.write_value(value_at(items, i), writer)
            target = writer.target
            if target >= pause:
                return i + 1
        writer.target = target
        return stop

    cdef int write_value(self, value, Writer* writer) except -1:
        cdef Py_ssize_t nbytes
        cdef ValueBytes span
        if locate_plain(&span, <PyObject*>value):
            copy_element(next_element(writer, span.nbytes), span.data, span.nbytes)
        elif PyUnicode_Check(value):
            pack_text(writer, value)
        else:
            nbytes = value_nbytes(value, self)
            # A negative size is a huge unsigned number, which does not fit.
            pack_buffer(next_element(writer, nbytes), value, nbytes)
        return 0

    cdef bint may_overlap(self, const void* begin, const void* end) except -1:
        return self.lowest < <const char*>end and <const char*>begin < self.highest

    cdef Py_ssize_t note_memory(self, const void* data, Py_ssize_t nbytes) noexcept:
        """Include the memory of a buffer in the addresses. Return its size."""
        cdef const char* begin = <const char*>data
        if nbytes > 0:  # else the address may be NULL
            if self.lowest == NULL or begin < self.lowest:
                self.lowest = begin
            if begin + nbytes > self.highest:
                self.highest = begin + nbytes
        return nbytes


def all_plain(cnp.ndarray values not None):
    """Return whether all items of an object array are exactly `bytes` or `str`.

    Raises ValueError if the array is not contiguous, not aligned or not one of objects.
    """
    cdef Py_ssize_t n_elements = 0
    cdef PyObject** items
    cdef Py_ssize_t i, work = 0
    items = items_of(values, &n_elements)
    for i in range(n_elements):
        collect_work(&work, ELEMENT_COST)
        value = value_at(items, i)
        if not PyBytes_CheckExact(value) and not PyUnicode_CheckExact(value):
            return False
    return True


cdef tuple immutable_values(Source source, Py_ssize_t* nbytes):
    """Return the values as a tuple if all are exactly `bytes` or `str`, and None otherwise.

    `nbytes` is set to the size of their wire bytes. Raises EncodeError for a value that cannot be
    encoded.
    """
    cdef Py_ssize_t n_elements = 0
    cdef uint64_t total = 0
    cdef PyObject** items
    cdef PyObject* item
    cdef Py_ssize_t i, size, stop = 0
    cdef tuple values
    if type(source) is not Objects:
        return None
    items = (<Objects>source).items(&n_elements)
    nbytes[0] = 0
    if n_elements == 0:
        return ()
    values = PyTuple_New(n_elements)
    for i in range(n_elements):
        if i == stop:
            stop = end_of_batch(i, n_elements, ELEMENT_COST)
            items = (<Objects>source).items(&n_elements)  # see `Objects.walk`
        item = items[i]
        if item == NULL or not (is_exact_str(item) or is_exact_bytes(item)):
            return None
        set_item(values, i, <object>item)  # first: other threads may run while long text is read
        if is_exact_bytes(item):
            size = bytes_nbytes(item)
        elif is_ascii_str(item):
            size = str_length(item)
        else:
            size = str_nbytes(<object>item)
            if size < 0:
                raise invalid_value_error(<object>item, size, i, source.shape)
            if size >= LONG_NBYTES:
                stop = i + 1
        total += wire_nbytes(source, size, i)
    nbytes[0] = checked_size(total)
    return values


cdef PyObject** items_of(values, Py_ssize_t* n_elements) except? NULL:
    # These are borrowed references. The values own the objects, and no Python code runs while the
    # items of a batch are read: not even a memoryview calls its exporter. In a free-threaded
    # Python, a list is a copy that no other thread has (`flatten` in messages/convert.pyx). An
    # array of objects can only be changed by code that does not follow the rules of numpy.
    if PyList_CheckExact(values) or PyTuple_CheckExact(values):
        n_elements[0] = PySequence_Fast_GET_SIZE(values)
        return PySequence_Fast_ITEMS(values)
    cdef cnp.ndarray array = checked_array(values, cnp.NPY_OBJECT)
    n_elements[0] = cnp.PyArray_SIZE(array)
    return <PyObject**>cnp.PyArray_DATA(array)


cdef cnp.ndarray checked_array(values, int type_num):
    """Return `values`. Raises ValueError unless it is a contiguous, aligned, native array."""
    cdef cnp.ndarray array = <cnp.ndarray?>values
    if cnp.PyArray_TYPE(array) != type_num or not cnp.PyArray_ISCARRAY_RO(array):
        raise ValueError(
            f"the array must be contiguous, aligned and in native byte order: {array.dtype}")
    return array


cdef inline bint locate_plain(ValueBytes* span, PyObject* value) noexcept:
    """Set `span` to the memory of bytes or of an ASCII str. Return False for other values.

    These are the usual values, and neither their size nor their memory changes.
    """
    if value == NULL:
        return False
    if is_bytes(value):
        span.data, span.nbytes = bytes_data(value), bytes_nbytes(value)
        return True
    if is_str(value) and is_ascii_str(value):
        span.data, span.nbytes = <const char*>str_data(value), str_length(value)
        return True
    return False


cdef inline object value_at(PyObject** items, Py_ssize_t i):
    return <object>items[i] if items[i] != NULL else None  # numpy treats NULL as None


cdef inline Py_ssize_t value_nbytes(object value, Objects values) except -4:
    """Return the size of a value that is not plain, or a negative number for an invalid value."""
    if PyUnicode_Check(value):
        return str_nbytes(value)
    if PyByteArray_Check(value):
        return values.note_memory(PyByteArray_AS_STRING(value), PyByteArray_GET_SIZE(value))
    return buffer_nbytes(value, values)


cdef Py_ssize_t buffer_nbytes(object value, Objects values) except -4:
    cdef Py_buffer buffer
    cdef Py_ssize_t nbytes
    if not PyMemoryView_Check(value):  # other objects with buffers are arrays or numbers
        return NOT_BYTES_OR_STR
    try:
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    except (BufferError, ValueError):
        return UNREADABLE
    nbytes = values.note_memory(buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)
    return nbytes


cdef Py_ssize_t str_nbytes(object text) noexcept:
    """Return the size of a str as UTF-8, or NOT_ENCODABLE."""
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text), nbytes
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    if n_characters < LONG_NBYTES:
        return measure_text(kind, data, n_characters)
    with nogil:
        nbytes = measure_text(kind, data, n_characters)
    return nbytes


cdef Py_ssize_t measure_text(
    int kind, const void* data, Py_ssize_t n_characters
) noexcept nogil:
    if kind == 1:
        return utf8_nbytes(<const uint8_t*>data, n_characters)
    if kind == 2:
        return utf8_nbytes(<const uint16_t*>data, n_characters)
    return utf8_nbytes(<const uint32_t*>data, n_characters)


cdef int pack_text(Writer* writer, object text) except -1:
    """Write a str, which cannot change, and then its size, which fitted 32 bits."""
    cdef unsigned char* begin = next_element(writer, 0)
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text)
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    cdef unsigned char* end
    if n_characters < LONG_NBYTES:
        end = write_text(begin, writer.end, kind, data, n_characters)
    else:
        with nogil:
            end = write_text(begin, writer.end, kind, data, n_characters)
    if end == NULL:  # other values have grown
        raise modified_error()
    store_le32(begin - PREFIX_NBYTES, <uint32_t>(end - begin))
    writer.target = end
    return 0


cdef unsigned char* write_text(
    unsigned char* target, const unsigned char* end, int kind, const void* data,
    Py_ssize_t n_characters,
) noexcept nogil:
    if kind == 1:
        return write_utf8(target, end, <const uint8_t*>data, n_characters)
    if kind == 2:
        return write_utf8(target, end, <const uint16_t*>data, n_characters)
    return write_utf8(target, end, <const uint32_t*>data, n_characters)


cdef int pack_buffer(unsigned char* target, object value, Py_ssize_t nbytes) except -1:
    """Write a bytearray or a memoryview. Raises EncodeError if its size is no longer `nbytes`."""
    cdef Py_buffer buffer
    cdef bint is_changed
    # A long one, and any in a free-threaded Python, could be resized by another thread.
    if PyByteArray_Check(value) and nbytes < LONG_NBYTES and not FREE_THREADED:
        memcpy(target, PyByteArray_AS_STRING(value), nbytes)
        return 0
    PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    is_changed = buffer.len != nbytes
    if nbytes > 0 and not is_changed:  # the address of an empty buffer may be NULL
        copy_element(target, <const char*>buffer.buf, nbytes)
    PyBuffer_Release(&buffer)
    if is_changed:
        raise modified_error()
    return 0


# --- numpy arrays of text and bytes ----------------------------------------------------------


@cython.final
cdef class FixedWidth(Source):
    """A contiguous numpy `S` array. Trailing NULs are padding, which is not written."""

    cdef uint64_t walk(self, Writer* writer) except? 0:
        cdef cnp.ndarray array = checked_array(self.values, cnp.NPY_STRING)
        cdef const char* data = <const char*>cnp.PyArray_DATA(array)
        cdef Py_ssize_t width = cnp.PyArray_ITEMSIZE(array)
        cdef uint64_t total = 0
        cdef Py_ssize_t i, nbytes, work = 0
        for i in range(cnp.PyArray_SIZE(array)):
            collect_work(&work, ELEMENT_COST + width)
            nbytes = unpadded(data + i * width, width)
            total += PREFIX_NBYTES + <uint64_t>nbytes
            if writer != NULL:
                copy_element(next_element(writer, nbytes), data + i * width, nbytes)
        return total

    cdef bint may_overlap(self, const void* begin, const void* end) except -1:
        return array_overlaps(<cnp.ndarray?>self.values, begin, end)


cdef bint array_overlaps(cnp.ndarray array, const void* begin, const void* end) except -1:
    """Return whether a contiguous array overlaps the memory from `begin` to `end`."""
    cdef const char* data = <const char*>cnp.PyArray_DATA(array)
    return data < <const char*>end and <const char*>begin < data + cnp.PyArray_NBYTES(array)


cdef inline Py_ssize_t unpadded(const char* data, Py_ssize_t width) noexcept nogil:
    while width > 0 and data[width - 1] == 0:
        width -= 1
    return width


@cython.final
cdef class Unicode(Source):
    """A contiguous numpy `U` array in native byte order. Trailing NULs are padding."""

    cdef uint64_t walk(self, Writer* writer) except? 0:
        cdef cnp.ndarray array = checked_array(self.values, cnp.NPY_UNICODE)
        cdef const uint32_t* data = <const uint32_t*>cnp.PyArray_DATA(array)
        cdef Py_ssize_t width = cnp.PyArray_ITEMSIZE(array) // 4
        cdef uint64_t total = 0
        cdef Py_ssize_t i, n_characters, nbytes, work = 0
        cdef unsigned char* target
        for i in range(cnp.PyArray_SIZE(array)):
            collect_work(&work, ELEMENT_COST + 4 * width)
            n_characters = unpadded_text(data + i * width, width)
            nbytes = utf8_nbytes(data + i * width, n_characters)
            if writer != NULL:
                target = next_element(writer, nbytes)
                if write_utf8(
                    target, target + nbytes, data + i * width, n_characters
                ) != target + nbytes:
                    raise modified_error()
                continue
            if nbytes < 0:
                raise invalid_text_error(data + i * width, width, i, self.shape)
            total += wire_nbytes(self, nbytes, i)
        return total

    cdef bint may_overlap(self, const void* begin, const void* end) except -1:
        return array_overlaps(<cnp.ndarray?>self.values, begin, end)


cdef inline Py_ssize_t unpadded_text(const uint32_t* text, Py_ssize_t width) noexcept nogil:
    while width > 0 and text[width - 1] == 0:
        width -= 1
    return width


cdef enum LoadFault:
    LOADED
    UNLOADABLE  # missing, or numpy returned an error
    TOO_LONG
    CHANGED


cdef struct LoadResult:
    uint64_t nbytes  # size of the elements before the fault, prefixes included
    Py_ssize_t element  # the one with the fault
    LoadFault fault
    int status  # what numpy returned for an UNLOADABLE element
    uint64_t size  # size of a TOO_LONG element


cdef LoadResult load_strings(
    npy_string_allocator* allocator, const char* packed, Py_ssize_t itemsize,
    Py_ssize_t n_elements, Writer* writer,
) noexcept nogil:
    """Measure the items of a StringDType array, and write them if there is a writer."""
    cdef LoadResult result
    cdef npy_static_string text
    cdef unsigned char* target
    cdef Py_ssize_t i
    result.nbytes = result.size = 0
    result.element = 0
    result.fault = LOADED
    result.status = 0
    for i in range(n_elements):
        result.element = i
        result.status = NpyString_load(
            allocator, <const npy_packed_static_string*>(packed + i * itemsize), &text)
        if result.status != 0:
            result.fault = UNLOADABLE
            break
        if text.size > UINT32_MAX:
            result.fault = TOO_LONG
            result.size = text.size
            break
        result.nbytes += PREFIX_NBYTES + text.size
        if writer != NULL:
            target = begin_element(writer, text.size)
            if target == NULL:
                result.fault = CHANGED
                break
            if text.size > 0:
                memcpy(target, text.buf, text.size)
    return result


@cython.final
cdef class Strings(Source):
    """A contiguous numpy StringDType array. No `str` objects are created."""

    cdef uint64_t walk(self, Writer* writer) except? 0:
        # The GIL is released while the allocator is acquired, and until it is released.
        cdef cnp.ndarray array = <cnp.ndarray?>self.values
        cdef const char* packed = <const char*>cnp.PyArray_DATA(array)
        cdef Py_ssize_t itemsize = cnp.PyArray_ITEMSIZE(array)
        cdef Py_ssize_t n_elements = cnp.PyArray_SIZE(array)
        cdef PyArray_StringDTypeObject* descr = (
            <PyArray_StringDTypeObject*>cnp.PyArray_DESCR(array))
        cdef npy_string_allocator* allocator
        cdef LoadResult result
        with nogil:
            allocator = NpyString_acquire_allocator(descr)
            result = load_strings(allocator, packed, itemsize, n_elements, writer)
            NpyString_release_allocator(allocator)
        if result.fault == LOADED:
            return result.nbytes
        if result.fault == UNLOADABLE:
            what = "cannot be read"
            if result.status == 1:
                what = "is a missing value, which tensors cannot have"
            raise EncodeError(
                f"{format_element(result.element, self.shape)} {what}", element=result.element)
        if result.fault == TOO_LONG:
            raise too_long_error(result.size, result.element, self.shape)
        raise modified_error()


@cython.final
cdef class WireBytes(Source):
    """Wire bytes of a BytesArray, as a flat memoryview."""

    cdef uint64_t walk(self, Writer* writer) except? 0:
        cdef Py_buffer buffer
        cdef Py_ssize_t nbytes
        PyObject_GetBuffer(self.values, &buffer, PyBUF_SIMPLE)
        nbytes = buffer.len
        if writer != NULL and nbytes > 0:
            # There is room: the size of a memoryview does not change. The two may overlap.
            if keeps_gil(nbytes):
                memmove(writer.target, buffer.buf, nbytes)
            else:
                with nogil:
                    memmove(writer.target, buffer.buf, nbytes)
            writer.target += nbytes
        PyBuffer_Release(&buffer)
        return nbytes


# --- Arrow arrays and streams -----------------------------------------------------------------


@cython.final
cdef class ArrowSource(Source):
    """An Arrow array (Received) of (large) binary or string, or of binary or string views.

    Its chunks have passed `check_offsets`. Each element is checked when it is read: offsets must
    not decrease and must stay between the first and the last one; a view must stay within its
    buffer.
    """

    cdef bint may_overlap(self, const void* begin, const void* end) except -1:
        return True

    cdef uint64_t walk(self, Writer* writer) except? 0:
        cdef Received received = <Received?>self.values
        cdef Chunk chunk
        cdef ValueBytes span
        cdef unsigned char* target
        cdef uint64_t total = 0
        cdef int64_t i, element = 0
        cdef Py_ssize_t work = 0
        for item in received.chunks:
            chunk = <Chunk?>item
            for i in range(chunk.elements.offset, chunk.elements.offset + chunk.elements.length):
                if is_null(&chunk.elements, i):
                    raise EncodeError(
                        f"{format_element(element, self.shape)} is null, which tensors cannot have",
                        element=element)
                locate(&span, chunk, received.layout, i)
                if span.nbytes < 0:
                    raise EncodeError(
                        f"{format_element(element, self.shape)} is outside its Arrow buffer",
                        element=element)
                total += wire_nbytes(self, span.nbytes, element)
                collect_work(&work, ELEMENT_COST)
                if writer != NULL:
                    target = next_element(writer, span.nbytes)
                    if span.nbytes > 0:  # else its address may be NULL
                        copy_element(target, span.data, span.nbytes)
                        collect_work(&work, span.nbytes)
                element += 1
        return total


cdef inline bint is_null(const ArrowArray* array, int64_t i) noexcept nogil:
    cdef const uint8_t* validity = <const uint8_t*>array.buffers[0]
    if validity == NULL or array.null_count == 0:
        return False
    return not validity[i >> 3] >> (i & 7) & 1


cdef inline int64_t offset_at(const void* offsets, ArrowLayout layout, int64_t i) noexcept nogil:
    # memcpy compiles to one load. The interface allows buffers that are not aligned.
    cdef int32_t narrow
    cdef int64_t wide
    if layout == OFFSETS_32:
        memcpy(&narrow, <const int32_t*>offsets + i, sizeof(int32_t))
        return narrow
    memcpy(&wide, <const int64_t*>offsets + i, sizeof(int64_t))
    return wide


cdef inline void locate(ValueBytes* span, Chunk chunk, ArrowLayout layout, int64_t i) noexcept:
    """Set `span` to element `i`. Its size is negative if the element is not within its buffer."""
    cdef const void** buffers = chunk.elements.buffers
    cdef int64_t begin, end
    if layout == VIEWS:
        locate_view(span, &chunk.elements, <const char*>buffers[1] + i * <int64_t>sizeof(View))
        return
    begin = offset_at(buffers[1], layout, i)
    end = offset_at(buffers[1], layout, i + 1)
    # Another thread may have changed the offsets since they were checked.
    if not chunk.first <= begin <= end <= chunk.last:
        span.nbytes = -1
        return
    span.data = <const char*>buffers[2] + begin
    span.nbytes = end - begin


cdef inline void locate_view(
    ValueBytes* span, const ArrowArray* array, const char* at
) noexcept nogil:
    cdef int64_t n_data = array.n_buffers - N_VIEW_BUFFERS
    cdef int64_t data_nbytes, buffer, offset
    cdef View view
    memcpy(&view, at, sizeof(View))
    span.nbytes = view.nbytes
    if view.nbytes <= INLINE_NBYTES:
        span.data = at + (<const char*>&view.value - <const char*>&view)
        return
    buffer, offset = view.value.reference.buffer, view.value.reference.offset
    if not 0 <= buffer < n_data or offset < 0 or array.buffers[2 + buffer] == NULL:
        span.nbytes = -1
        return
    data_nbytes = size_of_data(array, buffer)
    if data_nbytes < 0 or view.nbytes > data_nbytes - offset:
        span.nbytes = -1
        return
    span.data = <const char*>array.buffers[2 + buffer] + offset


cdef inline int64_t size_of_data(const ArrowArray* array, int64_t buffer) noexcept nogil:
    """Return the size of a data buffer of a view array, according to its producer."""
    cdef int64_t nbytes
    memcpy(&nbytes, <const int64_t*>array.buffers[array.n_buffers - 1] + buffer, sizeof(int64_t))
    return nbytes


def arrow_source(values):
    """Return a Source of an object that exports an Arrow array or stream of bytes or text.

    The array or stream is consumed. See `receive` for the errors, and for what cannot be checked.
    """
    return source_of_received(receive(values, True))


cdef Source source_of_received(Received received):
    """Return a Source of bytes or text. Raises EncodeError if the offsets are invalid."""
    for chunk in received.chunks:
        check_offsets(<Chunk?>chunk, received.layout)
    return ArrowSource(received, received.shape)


cdef int check_offsets(Chunk chunk, ArrowLayout layout) except -1:
    """Check the buffers of bytes or text, and set `first` and `last`. Raises EncodeError."""
    cdef const ArrowArray* array = &chunk.elements
    if array.length == 0:
        return 0
    if array.buffers[1] == NULL:
        raise invalid_arrow_error(
            f"it has {array.length} elements, but its buffer of offsets or views is NULL")
    if layout == VIEWS:
        if array.n_buffers > N_VIEW_BUFFERS and array.buffers[array.n_buffers - 1] == NULL:
            raise invalid_arrow_error("its data buffers have no sizes")
        return 0
    chunk.first = offset_at(array.buffers[1], layout, array.offset)
    chunk.last = offset_at(array.buffers[1], layout, array.offset + array.length)
    if not 0 <= chunk.first <= chunk.last:
        raise invalid_arrow_error(f"its data begins at {chunk.first} and ends at {chunk.last}")
    if chunk.first < chunk.last and array.buffers[2] == NULL:
        raise invalid_arrow_error(f"its data ends at {chunk.last}, and its data buffer is NULL")
    return 0


# --- errors ----------------------------------------------------------------------------------


cdef format_element(element, tuple shape):
    index = f" {[int(i) for i in np.unravel_index(element, shape)]}" if len(shape) > 1 else ""
    return f"element {element}{index} of {SUBJECT}"


cdef invalid_value_error(value, problem, element, tuple shape):
    what = f"is {type(value).__name__}, not bytes or str"
    if problem == NOT_ENCODABLE:
        # The characters are read from memory, because a subclass of str may override its methods.
        at = next(i for i in range(PyUnicode_GET_LENGTH(value)) if is_not_encodable(value, i))
        what = format_not_encodable(PyUnicode_READ_CHAR(value, at), at)
    elif problem == UNREADABLE:
        what = "is a memoryview that is released or not contiguous"
    elif value is None:
        what = "is None, which tensors cannot have"
    return EncodeError(f"{format_element(element, shape)} {what}", element=element)


cdef bint is_not_encodable(object text, Py_ssize_t i):
    cdef uint32_t character = PyUnicode_READ_CHAR(text, i)
    return 0xD800 <= character <= 0xDFFF or character > 0x10FFFF


cdef invalid_text_error(const uint32_t* text, Py_ssize_t width, element, tuple shape):
    cdef Py_ssize_t at = 0
    while at < width - 1 and not (0xD800 <= text[at] <= 0xDFFF or text[at] > 0x10FFFF):
        at += 1
    return EncodeError(
        f"{format_element(element, shape)} {format_not_encodable(text[at], at)}", element=element)


cdef format_not_encodable(code_point, at):
    what = "a lone surrogate" if code_point <= 0xDFFF else "an invalid code point"
    return f"cannot be encoded as UTF-8: character {at} is {what}, U+{code_point:04X}"


cdef too_long_error(nbytes, element, tuple shape):
    return EncodeError(
        f"{format_element(element, shape)} is {nbytes} bytes long; the limit is {UINT32_MAX}",
        element=element, expected=UINT32_MAX, actual=nbytes)


cdef modified_error():
    return EncodeError("the values were modified while they were encoded")
