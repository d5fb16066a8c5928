"""Write BYTES: convert values of any supported type to length-prefixed wire bytes.

A `Source` wraps the values. The first pass over them computes the size of the wire bytes, and the
second one fills a single allocation of that size. Other code may change the values, or the
attributes of an array, between the passes, and some values while the GIL is held. Each pass
therefore checks the array, and the second one that each element fits the remaining memory.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer)
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_CheckExact
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_New
from cpython.unicode cimport (
    PyUnicode_Check, PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND)
from libc.stdint cimport UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from ..exchange.arrow cimport (
    OFFSETS_32, VIEWS, ArrowLayout, Chunk, Received, invalid_arrow_error)
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
    uint32_t PyUnicode_READ(int kind, const void* data, Py_ssize_t i) noexcept
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    ELEMENT_COST = 20  # see memory.pxd
    LONG_NBYTES = 64 << 10  # from this size on, other threads may run while an element is read


cdef struct ValueBytes:
    const char* data
    int64_t nbytes


cdef class Source:
    """Values to be written as BYTES elements in row-major order, and their shape."""

    def __init__(self, values, tuple shape not None):
        self.values = values
        self.shape = shape

    cdef uint64_t walk(self, Writer* writer) except? 0:
        """Return the size of the wire bytes of all values. With a writer, write them instead."""
        raise NotImplementedError

    cdef bint may_overlap(self, const void* begin, const void* end) except -1:
        """Return whether the values may overlap memory. `walk` was called before."""
        return False


cdef bytes pack(Source source):
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


cdef uint64_t pack_into(Source source, buffer) except? 0:
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


cdef inline uint64_t wire_nbytes(Source source, uint64_t nbytes, Py_ssize_t element) except 0:
    """Return the size of an element with its prefix. Raises EncodeError if it is too long."""
    if nbytes > UINT32_MAX:
        raise too_long_error(source, nbytes, element)
    return PREFIX_NBYTES + nbytes


cdef inline unsigned char* begin_element(Writer* writer, uint64_t nbytes) noexcept nogil:
    """Write the length prefix of an element, and return the address for the element.

    Returns NULL, and writes nothing, if the memory is too small because the values have changed.
    `nbytes` fitted 32 bits when the values were measured. If it no longer does, and there is enough
    memory, the prefix is wrong, but nothing is written beyond the end.
    """
    cdef unsigned char* element
    cdef uint64_t room = writer.end - writer.target
    if room < PREFIX_NBYTES or nbytes > room - PREFIX_NBYTES:
        return NULL
    store_le32(writer.target, <uint32_t>nbytes)
    element = writer.target + PREFIX_NBYTES
    writer.target = element + nbytes
    return element


cdef inline unsigned char* next_element(Writer* writer, uint64_t nbytes) except NULL:
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


# --- objects ---


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
            nbytes = self.value_nbytes(value_at(items, i), i)
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
        cdef ValueBytes span
        cdef Py_ssize_t nbytes
        if locate_plain(&span, <PyObject*>value):
            copy_element(next_element(writer, span.nbytes), span.data, span.nbytes)
            return 0
        if PyUnicode_Check(value):
            return write_str(writer, value)
        if PyByteArray_Check(value):
            nbytes = PyByteArray_GET_SIZE(value)
            if nbytes < LONG_NBYTES and not FREE_THREADED:  # no other thread can resize it
                memcpy(next_element(writer, nbytes), PyByteArray_AS_STRING(value), nbytes)
                return 0
        return write_buffer(writer, value)

    cdef inline Py_ssize_t value_nbytes(self, value, Py_ssize_t element) except -1:
        """Return the size of a value that is not plain. Raises EncodeError for an invalid one."""
        cdef Py_ssize_t nbytes
        if PyUnicode_Check(value):
            nbytes = str_nbytes(value)
            if nbytes == NOT_ENCODABLE:
                raise lone_surrogate_error(self, element, value)
            return nbytes
        if PyByteArray_Check(value):
            return self.note_memory(PyByteArray_AS_STRING(value), PyByteArray_GET_SIZE(value))
        return self.buffer_nbytes(value, element)

    cdef Py_ssize_t buffer_nbytes(self, value, Py_ssize_t element) except -1:
        cdef Py_buffer buffer
        cdef Py_ssize_t nbytes
        if value is None:
            raise element_error(self, element, "is None, which tensors cannot have")
        if not PyMemoryView_Check(value):  # other objects with buffers are arrays or numbers
            raise element_error(self, element, f"is {type(value).__name__}, not bytes or str")
        try:
            PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
        except (BufferError, ValueError):
            raise element_error(
                self, element, "is a memoryview that is released or not contiguous") from None
        nbytes = self.note_memory(buffer.buf, buffer.len)
        PyBuffer_Release(&buffer)
        return nbytes

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
    """Return whether all items of an object array are exactly `bytes` or `str`."""
    cdef Py_ssize_t n_elements = 0
    cdef PyObject** items
    cdef Py_ssize_t i, work = 0
    items = items_of(values, &n_elements)
    for i in range(n_elements):
        collect_work(&work, ELEMENT_COST)
        if items[i] == NULL or not (is_exact_str(items[i]) or is_exact_bytes(items[i])):
            return False
    return True


cdef tuple immutable_values(Source source, Py_ssize_t* nbytes):
    """Return the values as a tuple if all are exactly `bytes` or `str`, and None otherwise.

    `nbytes` is set to the size of their wire bytes.
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
        if item == NULL:
            return None
        set_item(values, i, <object>item)  # first: other threads may run while long text is read
        if is_exact_bytes(item):
            size = bytes_nbytes(item)
        elif not is_exact_str(item):
            return None
        elif is_ascii_str(item):
            size = str_length(item)
        else:
            size = str_nbytes(<object>item)
            if size == NOT_ENCODABLE:
                raise lone_surrogate_error(source, i, <object>item)
            if size >= LONG_NBYTES:
                stop = i + 1
        total += wire_nbytes(source, size, i)
    nbytes[0] = checked_size(total)
    return values


cdef PyObject** items_of(values, Py_ssize_t* n_elements) except? NULL:
    # These are borrowed references. The values own the objects, and no Python code runs while the
    # items of a batch are read: not even a memoryview calls its exporter. In a free-threaded
    # Python, a list is a copy that no other thread has (`flatten` in convert.pyx). An array of
    # objects can only be changed by code that does not follow the rules of numpy.
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


cdef Py_ssize_t str_nbytes(object text) noexcept:
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text), nbytes
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    if n_characters < LONG_NBYTES:
        return measure_text(kind, data, n_characters)
    with nogil:
        nbytes = measure_text(kind, data, n_characters)
    return nbytes


cdef Py_ssize_t measure_text(int kind, const void* data, Py_ssize_t n_characters) noexcept nogil:
    if kind == 1:
        return utf8_nbytes(<const uint8_t*>data, n_characters)
    if kind == 2:
        return utf8_nbytes(<const uint16_t*>data, n_characters)
    return utf8_nbytes(<const uint32_t*>data, n_characters)


cdef int write_str(Writer* writer, object text) except -1:
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


cdef int write_buffer(Writer* writer, object value) except -1:
    """Write a bytearray or a memoryview, which cannot change its size while it is exported."""
    cdef Py_buffer buffer
    if not PyByteArray_Check(value) and not PyMemoryView_Check(value):
        raise modified_error()
    try:
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
    except (BufferError, ValueError):
        raise modified_error() from None
    try:
        if buffer.len > 0:
            copy_element(next_element(writer, buffer.len), <const char*>buffer.buf, buffer.len)
        else:
            next_element(writer, 0)  # the address of an empty buffer may be NULL
    finally:
        PyBuffer_Release(&buffer)
    return 0


# --- numpy arrays of text and bytes ----------------------------------------------------------


ctypedef fused Character:
    char
    uint32_t


@cython.final
cdef class FixedWidth(Source):
    """A contiguous numpy `S` or `U` array in native byte order.

    Trailing NULs are padding, which is not written. numpy limits an item to 2^31 - 1 bytes.
    """

    cdef uint64_t walk(self, Writer* writer) except? 0:
        cdef cnp.ndarray array = <cnp.ndarray?>self.values
        if cnp.PyArray_TYPE(array) == cnp.NPY_STRING:
            array = checked_array(array, cnp.NPY_STRING)
            return walk_fixed_width(self, array, <const char*>cnp.PyArray_DATA(array), writer)
        array = checked_array(array, cnp.NPY_UNICODE)
        return walk_fixed_width(self, array, <const uint32_t*>cnp.PyArray_DATA(array), writer)

    cdef bint may_overlap(self, const void* begin, const void* end) except -1:
        cdef cnp.ndarray array = <cnp.ndarray?>self.values
        cdef const char* data = <const char*>cnp.PyArray_DATA(array)
        return data < <const char*>end and <const char*>begin < data + cnp.PyArray_NBYTES(array)


cdef uint64_t walk_fixed_width(
    FixedWidth source, cnp.ndarray array, const Character* text, Writer* writer
) except? 0:
    cdef Py_ssize_t itemsize = cnp.PyArray_ITEMSIZE(array)
    cdef Py_ssize_t width = itemsize // <Py_ssize_t>sizeof(Character)
    cdef uint64_t total = 0
    cdef Py_ssize_t i, n_characters, nbytes, work = 0
    cdef unsigned char* target
    for i in range(cnp.PyArray_SIZE(array)):
        collect_work(&work, ELEMENT_COST + itemsize)
        n_characters = width
        while n_characters > 0 and text[n_characters - 1] == 0:
            n_characters -= 1
        nbytes = n_characters
        if Character is uint32_t:
            nbytes = utf8_nbytes(text, n_characters)
            if nbytes == NOT_ENCODABLE and writer == NULL:
                raise not_encodable_error(source, i, 4, text, n_characters)
        total += PREFIX_NBYTES + <uint64_t>nbytes
        if writer != NULL:
            target = next_element(writer, nbytes)
            if Character is char:
                copy_element(target, text, nbytes)
            elif write_utf8(target, target + nbytes, text, n_characters) != target + nbytes:
                raise modified_error()
        text += width
    return total


@cython.final
cdef class Strings(Source):
    """A contiguous numpy StringDType array. No `str` objects are created."""

    cdef uint64_t walk(self, Writer* writer) except? 0:
        cdef cnp.ndarray array = <cnp.ndarray?>self.values
        cdef const char* item = <const char*>cnp.PyArray_DATA(array)
        cdef Py_ssize_t itemsize = cnp.PyArray_ITEMSIZE(array)
        cdef Py_ssize_t i = 0, n_elements = cnp.PyArray_SIZE(array)
        cdef PyArray_StringDTypeObject* descr = (
            <PyArray_StringDTypeObject*>cnp.PyArray_DESCR(array))
        cdef npy_string_allocator* allocator
        cdef npy_static_string text
        cdef unsigned char* target
        cdef uint64_t total = 0
        cdef int status = 0
        with nogil:  # see npystring.pxd
            allocator = NpyString_acquire_allocator(descr)
            while i < n_elements:
                status = NpyString_load(allocator, <const npy_packed_static_string*>item, &text)
                if status != 0 or text.size > UINT32_MAX:
                    break
                if writer != NULL:
                    target = begin_element(writer, text.size)
                    if target == NULL:
                        break
                    if text.size > 0:
                        memcpy(target, text.buf, text.size)
                total += PREFIX_NBYTES + text.size
                item += itemsize
                i += 1
            NpyString_release_allocator(allocator)
        if i == n_elements:
            return total
        if status == 1:
            raise element_error(self, i, "is a missing value, which tensors cannot have")
        if status != 0:
            raise element_error(self, i, "cannot be read")
        if text.size > UINT32_MAX:
            raise too_long_error(self, text.size, i)
        raise modified_error()


@cython.final
cdef class WireBytes(Source):

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


# The kinds of sources by the `kind` of a numpy dtype; those of objects may also be in a list.
cdef dict SOURCES = {
    "O": Objects, "S": FixedWidth, "U": FixedWidth, "T": Strings, "wire": WireBytes}


cdef Source source_of(str kind, values, tuple shape):
    return SOURCES[kind](values, shape)


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
                if not locate(&span, chunk, received.layout, i):
                    raise element_error(self, element, "is outside its Arrow buffer")
                total += wire_nbytes(self, span.nbytes, element)
                collect_work(&work, ELEMENT_COST)
                if writer != NULL:
                    target = next_element(writer, span.nbytes)
                    if span.nbytes > 0:  # else its address may be NULL
                        copy_element(target, span.data, span.nbytes)
                        collect_work(&work, span.nbytes)
                element += 1
        return total


cdef inline int64_t offset_at(const void* offsets, ArrowLayout layout, int64_t i) noexcept nogil:
    # memcpy compiles to one load. The interface allows buffers that are not aligned.
    cdef int32_t narrow
    cdef int64_t wide
    if layout == OFFSETS_32:
        memcpy(&narrow, <const int32_t*>offsets + i, sizeof(int32_t))
        return narrow
    memcpy(&wide, <const int64_t*>offsets + i, sizeof(int64_t))
    return wide


cdef inline bint locate(ValueBytes* span, Chunk chunk, ArrowLayout layout, int64_t i) noexcept:
    """Set `span` to element `i`. Return False if the element is not within its buffer."""
    cdef const void** buffers = chunk.elements.buffers
    cdef int64_t begin, end
    if layout == VIEWS:
        return locate_view(
            span, &chunk.elements, <const char*>buffers[1] + i * <int64_t>sizeof(View))
    begin = offset_at(buffers[1], layout, i)
    end = offset_at(buffers[1], layout, i + 1)
    # Another thread may have changed the offsets since they were checked.
    if not chunk.first <= begin <= end <= chunk.last:
        return False
    span.data = <const char*>buffers[2] + begin
    span.nbytes = end - begin
    return True


cdef inline bint locate_view(
    ValueBytes* span, const ArrowArray* array, const char* at
) noexcept nogil:
    cdef int64_t data_nbytes, buffer, offset
    cdef View view
    memcpy(&view, at, sizeof(View))
    span.nbytes = view.nbytes
    if view.nbytes <= INLINE_NBYTES:
        span.data = at + (<const char*>&view.value - <const char*>&view)
        return view.nbytes >= 0
    buffer, offset = view.value.reference.buffer, view.value.reference.offset
    if not 0 <= buffer < array.n_buffers - N_VIEW_BUFFERS or offset < 0 or (
            array.buffers[2 + buffer] == NULL):
        return False
    # The last buffer has the sizes of the data buffers, according to the producer.
    memcpy(&data_nbytes, <const int64_t*>array.buffers[array.n_buffers - 1] + buffer, 8)
    if data_nbytes < 0 or view.nbytes > data_nbytes - offset:
        return False
    span.data = <const char*>array.buffers[2 + buffer] + offset
    return True


cdef Source source_of_received(Received received):
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


cdef element_error(Source source, element, what, expected=None, actual=None):
    shape = source.shape
    index = f" {[int(i) for i in np.unravel_index(element, shape)]}" if len(shape) > 1 else ""
    return EncodeError(
        f"element {element}{index} of {SUBJECT} {what}",
        element=element, expected=expected, actual=actual)


cdef too_long_error(Source source, nbytes, element):
    return element_error(
        source, element, f"is {nbytes} bytes long; the limit is {UINT32_MAX}", UINT32_MAX, nbytes)


cdef lone_surrogate_error(Source source, element, text):
    # The characters are read from memory, because a subclass of str may override its methods.
    return not_encodable_error(
        source, element, PyUnicode_KIND(text), PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text))


cdef not_encodable_error(
    Source source, element, int kind, const void* text, Py_ssize_t n_characters
):
    """Return the error for the first character without a UTF-8 form.

    Another thread may have changed an array: then this may be the last character, a valid one.
    """
    cdef Py_ssize_t at = 0
    cdef uint32_t character = PyUnicode_READ(kind, text, at)
    while at < n_characters - 1 and not (0xD800 <= character <= 0xDFFF or character > 0x10FFFF):
        at += 1
        character = PyUnicode_READ(kind, text, at)
    what = "a lone surrogate" if character <= 0xDFFF else "an invalid code point"
    return element_error(
        source, element,
        f"cannot be encoded as UTF-8: character {at} is {what}, U+{<object>character:04X}")


cdef modified_error():
    return EncodeError("the values were modified while they were encoded")
