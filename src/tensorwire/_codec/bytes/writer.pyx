"""Write BYTES: convert values of any supported type to length-prefixed wire bytes.

A `Source` has the values, and writes them to a block of memory that grows. Other code may change
some values at any time, even while the GIL is held. An element is therefore measured just before it
is written, and no more is written than there is room for.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_Check
from cpython.list cimport PyList_CheckExact
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.ref cimport Py_CLEAR
from cpython.sequence cimport PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_New
from cpython.unicode cimport (
    PyUnicode_Check, PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND)
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..capsules.arrow cimport Chunk, Received
from ..capsules.arrow_bytes cimport check_offsets, locate
from ..borrowed cimport (
    bytes_data, bytes_nbytes, is_ascii_str, is_bytes, is_exact_bytes, is_exact_str, is_str,
    str_data, str_kind, str_length)
from ..bytes.npystring cimport (
    NpyString_acquire_allocator, NpyString_load, NpyString_release_allocator,
    PyArray_StringDTypeObject, npy_packed_static_string, npy_static_string, npy_string_allocator)
from ..gil cimport (
    ITEM_COST, LONG_NBYTES, TEXT_COST, collect_work, count_or_release_gil_unless_short, count_work,
    end_of_batch, take_gil, write_memory)
from ..new_objects cimport NewBytes, begin_bytes, finished_bytes, reserve, set_item
from ..utf8 cimport NOT_ENCODABLE, utf8_nbytes, write_utf8
from ..wire cimport PREFIX_NBYTES, Element, store_le32

import numpy as np

from ...errors import SUBJECT, EncodeError

cnp.import_array()

cdef extern from "Python.h":
    bint likely(bint condition) noexcept
    uint32_t PyUnicode_READ(int kind, const void* data, Py_ssize_t i) noexcept
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    LARGE_NBYTES = 32 << 20  # a block of this size can grow without a copy


cdef class Source:
    """Values to be written as BYTES elements in row-major order, and their shape."""

    def __cinit__(self, values, tuple shape not None):
        self.values = values
        self.shape = shape
        self.n_elements = 1
        for dim in shape:
            self.n_elements *= <Py_ssize_t>dim

    cdef int write(self, NewBytes* output) except -1:
        raise NotImplementedError


cdef bytes pack(Source source):
    cdef NewBytes output
    begin_bytes(&output)
    try:
        source.write(&output)
        return finished_bytes(&output)
    finally:
        Py_CLEAR(output.grown)


cdef inline Py_ssize_t wire_nbytes(Source source, uint64_t nbytes, Py_ssize_t element) except -1:
    """Return the size of an element with its prefix. Raises EncodeError if it is too long."""
    if nbytes > UINT32_MAX:
        raise too_long_error(source, nbytes, element)
    return PREFIX_NBYTES + <Py_ssize_t>nbytes


cdef int reserve_for_all(
    NewBytes* output, Source source, Py_ssize_t nbytes, Py_ssize_t n_read
) except -1:
    """Make room for `nbytes`, and probably for all later elements, by the mean size so far.

    `n_read` elements are written or will take the `nbytes`. They may be the long ones, so the
    estimate is limited. A large block grows without a copy.
    """
    cdef double mean = (<double>(output.position - output.start) + nbytes) / n_read
    cdef double n_later = 1.03 * mean * (source.n_elements - n_read)
    return reserve(output, nbytes + <Py_ssize_t>min(max(n_later, 0), <double>LARGE_NBYTES))


cdef inline unsigned char* next_element(
    NewBytes* output, Source source, uint64_t nbytes, Py_ssize_t i
) except NULL:
    """Write the length prefix of element `i`, and return the address for the element."""
    cdef Py_ssize_t size = wire_nbytes(source, nbytes, i)
    cdef unsigned char* target
    if size > output.end - output.position:
        reserve_for_all(output, source, size, i + 1)
    target = <unsigned char*>output.position
    store_le32(target, <uint32_t>nbytes)
    output.position += size
    return target + PREFIX_NBYTES


cdef inline int write_element(
    NewBytes* output, Source source, const void* data, Py_ssize_t nbytes, Py_ssize_t i
) except -1:
    cdef unsigned char* target = next_element(output, source, nbytes, i)
    if nbytes > 0:  # else the address may be NULL
        released = count_or_release_gil_unless_short(nbytes)
        memcpy(target, data, nbytes)
        take_gil(released)
    return 0


# --- objects ---


@cython.final
cdef class Objects(Source):
    """A list, tuple or contiguous object array of bytes, str, bytearray or memoryview."""

    cdef int write(self, NewBytes* output) except -1:
        cdef PyObject** items
        cdef Py_ssize_t i = 0, stop = 0, n_before
        while i < self.n_elements:
            if i < stop:
                items = self.items()  # located again whenever other code may have run
            else:
                stop = end_of_batch(i, self.n_elements, ITEM_COST)
                items = self.items()
                self.reserve_batch(items, i, stop, output)
            n_before = output.position - output.start
            i = write_plain(items, i, stop, output)
            if i < stop:
                self.write_value(value_at(items, i), i, output)
                i += 1
            count_work(output.position - output.start - n_before)
        return 0

    cdef PyObject** items(self) except? NULL:
        """Return the items as borrowed references. Raises EncodeError if their number changed.

        The values own the objects until other threads or Python code can run. In a free-threaded
        Python, a list is a copy that no other thread has (`flatten` in convert.pyx). An array of
        objects can only be changed by code that does not follow the rules of numpy.
        """
        cdef cnp.ndarray array
        cdef PyObject** items
        cdef Py_ssize_t n_elements
        if PyList_CheckExact(self.values) or PyTuple_CheckExact(self.values):
            n_elements = PySequence_Fast_GET_SIZE(self.values)
            items = PySequence_Fast_ITEMS(self.values)
        else:
            array = checked_array(self.values, cnp.NPY_OBJECT)
            n_elements, items = cnp.PyArray_SIZE(array), <PyObject**>cnp.PyArray_DATA(array)
        if n_elements != self.n_elements:
            raise modified_error()
        return items

    cdef int reserve_batch(
        self, PyObject** items, Py_ssize_t i, Py_ssize_t stop, NewBytes* output
    ) except -1:
        """Make room for the plain values of a batch, and probably for all later values."""
        cdef Py_ssize_t nbytes = 0
        cdef Element found
        for i in range(i, stop):
            if locate_plain(&found, items[i]):
                nbytes += wire_nbytes(self, found.nbytes, i)
        if nbytes > output.end - output.position:
            reserve_for_all(output, self, nbytes, stop)
        return 0

    cdef int write_value(self, value, Py_ssize_t i, NewBytes* output) except -1:
        cdef Element found
        cdef Py_buffer buffer
        if PyUnicode_Check(value) and not is_ascii_str(<PyObject*>value):
            return write_str(output, self, value, i)
        if locate_plain(&found, <PyObject*>value):
            return write_element(output, self, found.data, found.nbytes, i)
        if value is None:
            raise element_error(self, i, "is None, which tensors cannot have")
        # Other objects with buffers are arrays or numbers.
        if not PyMemoryView_Check(value) and not PyByteArray_Check(value):
            raise element_error(self, i, f"is {type(value).__name__}, not bytes or str")
        try:
            PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
        except (BufferError, ValueError):
            raise element_error(
                self, i,
                f"is a {type(value).__name__} that is released or not contiguous") from None
        try:
            return write_element(output, self, buffer.buf, buffer.len, i)
        finally:
            PyBuffer_Release(&buffer)


cdef Py_ssize_t write_plain(
    PyObject** items, Py_ssize_t i, Py_ssize_t stop, NewBytes* output
) noexcept:
    """Write bytes and str while there is room. Return the index of the first item that remains.

    About LONG_NBYTES are written at most, because no other thread can run meanwhile.
    """
    cdef unsigned char* target = <unsigned char*>output.position + PREFIX_NBYTES
    cdef const unsigned char* end = target + min(
        output.end - output.position - PREFIX_NBYTES, <Py_ssize_t>LONG_NBYTES)
    cdef Element found
    while i < stop:
        if locate_plain(&found, items[i]):
            if found.nbytes > end - target:
                break
            memcpy(target, found.data, found.nbytes)
        else:
            found.nbytes = write_short_text(target, end, items[i])
            if found.nbytes < 0:
                break
        store_le32(target - PREFIX_NBYTES, <uint32_t>found.nbytes)
        target += found.nbytes + PREFIX_NBYTES
        i += 1
    output.position = <char*>target - PREFIX_NBYTES
    return i


cdef inline Py_ssize_t write_short_text(
    unsigned char* target, const unsigned char* end, PyObject* value
) noexcept:
    """Write a str, and return its size, or -1 if it is long, not UTF-8, or there is no room.

    -1 is also returned for other objects.
    """
    cdef Py_ssize_t nbytes
    if value == NULL or not is_str(value) or str_length(value) >= LONG_NBYTES:
        return -1
    nbytes = measure_text(str_kind(value), str_data(value), str_length(value))
    if nbytes == NOT_ENCODABLE or nbytes > end - target:
        return -1
    write_text(target, end, str_kind(value), str_data(value), str_length(value))
    return nbytes


def are_exact(cnp.ndarray values not None):
    """Return whether all items of an object array are exactly `bytes` or `str`."""
    cdef PyObject** items = Objects(values, (values.size,)).items()
    cdef Py_ssize_t i, work = 0
    for i in range(values.size):
        collect_work(&work, ITEM_COST)
        if items[i] == NULL or not (is_exact_str(items[i]) or is_exact_bytes(items[i])):
            return False
    return True


cdef tuple immutable_values(Source source, Py_ssize_t* nbytes):
    """Return the values as a tuple if all are exactly `bytes` or `str`, and None otherwise.

    `nbytes` is set to the size of their wire bytes.
    """
    cdef Py_ssize_t n_elements = source.n_elements
    cdef uint64_t total = 0
    cdef PyObject** items
    cdef PyObject* item
    cdef Py_ssize_t i, size, stop = 0
    cdef tuple values
    if type(source) is not Objects:
        return None
    nbytes[0] = 0
    items = (<Objects>source).items()
    if n_elements == 0:
        return ()
    values = PyTuple_New(n_elements)
    for i in range(n_elements):
        if i == stop:
            stop = end_of_batch(i, n_elements, ITEM_COST)
            items = (<Objects>source).items()
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
    if total > <uint64_t>PY_SSIZE_T_MAX:  # a list may contain the same object many times
        raise MemoryError(f"the elements take {total} bytes")
    nbytes[0] = <Py_ssize_t>total
    return values


cdef cnp.ndarray checked_array(values, int type_num):
    """Return `values`. Raises ValueError unless it is a contiguous, aligned, native array."""
    cdef cnp.ndarray array = <cnp.ndarray?>values
    if cnp.PyArray_TYPE(array) != type_num or not cnp.PyArray_ISCARRAY_RO(array):
        raise ValueError(
            f"the array must be contiguous, aligned and in native byte order: {array.dtype}")
    return array


cdef inline bint locate_plain(Element* found, PyObject* value) noexcept:
    """Set `found` to the memory of bytes or an ASCII str, which never changes, or return False."""
    if value == NULL:
        return False
    if likely(is_bytes(value)):
        found.data, found.nbytes = <unsigned char*>bytes_data(value), bytes_nbytes(value)
        return True
    if is_str(value) and is_ascii_str(value):
        found.data, found.nbytes = <unsigned char*>str_data(value), str_length(value)
        return True
    return False


cdef inline object value_at(PyObject** items, Py_ssize_t i):
    return <object>items[i] if items[i] != NULL else None  # numpy treats NULL as None


cdef Py_ssize_t str_nbytes(object text) noexcept:
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text), nbytes
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    released = count_or_release_gil_unless_short(n_characters)
    nbytes = measure_text(kind, data, n_characters)
    take_gil(released)
    return nbytes


cdef Py_ssize_t measure_text(int kind, const void* data, Py_ssize_t n_characters) noexcept nogil:
    if kind == 1:
        return utf8_nbytes(<const uint8_t*>data, n_characters)
    if kind == 2:
        return utf8_nbytes(<const uint16_t*>data, n_characters)
    return utf8_nbytes(<const uint32_t*>data, n_characters)


cdef int write_str(NewBytes* output, Source source, object text, Py_ssize_t i) except -1:
    """Write a str that is not ASCII."""
    cdef Py_ssize_t n_characters = PyUnicode_GET_LENGTH(text), nbytes = str_nbytes(text)
    cdef void* data = PyUnicode_DATA(text)
    cdef int kind = PyUnicode_KIND(text)
    cdef unsigned char* target
    if nbytes == NOT_ENCODABLE:
        raise lone_surrogate_error(source, i, text)
    target = next_element(output, source, nbytes, i)
    released = count_or_release_gil_unless_short(n_characters)
    write_text(target, output.end, kind, data, n_characters)
    take_gil(released)
    return 0


cdef void write_text(
    unsigned char* target, const void* end, int kind, const void* data, Py_ssize_t n_characters
) noexcept nogil:
    cdef const unsigned char* limit = <const unsigned char*>end
    if kind == 1:
        write_utf8(target, limit, <const uint8_t*>data, n_characters)
    elif kind == 2:
        write_utf8(target, limit, <const uint16_t*>data, n_characters)
    else:
        write_utf8(target, limit, <const uint32_t*>data, n_characters)


# --- numpy arrays of text and bytes ----------------------------------------------------------


@cython.final
cdef class FixedWidth(Source):
    """A contiguous numpy `S` or `U` array in native byte order.

    Trailing NULs are padding, which is not written. numpy limits an item to 2^31 - 1 bytes.
    """

    cdef int write(self, NewBytes* output) except -1:
        cdef cnp.ndarray array = <cnp.ndarray?>self.values
        cdef bint is_text = cnp.PyArray_TYPE(array) == cnp.NPY_UNICODE
        array = checked_array(array, cnp.NPY_UNICODE if is_text else cnp.NPY_STRING)
        cdef const char* item = <const char*>cnp.PyArray_DATA(array)
        cdef Py_ssize_t itemsize = cnp.PyArray_ITEMSIZE(array)
        cdef Py_ssize_t i, nbytes, work = 0
        for i in range(cnp.PyArray_SIZE(array)):
            collect_work(&work, TEXT_COST + itemsize)
            if is_text:
                self.write_characters(<const uint32_t*>item, itemsize // 4, i, output)
            else:
                nbytes = itemsize
                while nbytes > 0 and item[nbytes - 1] == 0:
                    nbytes -= 1
                write_element(output, self, item, nbytes, i)
            item += itemsize
        return 0

    cdef inline int write_characters(
        self, const uint32_t* text, Py_ssize_t n_characters, Py_ssize_t i, NewBytes* output
    ) except -1:
        cdef Py_ssize_t nbytes
        cdef unsigned char* target
        while n_characters > 0 and text[n_characters - 1] == 0:
            n_characters -= 1
        nbytes = utf8_nbytes(text, n_characters)
        if nbytes == NOT_ENCODABLE:
            raise not_encodable_error(self, i, 4, text, n_characters)
        target = next_element(output, self, nbytes, i)
        # Another thread may write to the array meanwhile.
        if target + nbytes != write_utf8(
                target, <unsigned char*>output.end, text, n_characters):
            raise modified_error()
        return 0


@cython.final
cdef class Strings(Source):
    """A contiguous numpy StringDType array. No `str` objects are created."""

    cdef int write(self, NewBytes* output) except -1:
        cdef cnp.ndarray array = <cnp.ndarray?>self.values
        cdef const char* item = <const char*>cnp.PyArray_DATA(array)
        cdef Py_ssize_t itemsize = cnp.PyArray_ITEMSIZE(array)
        cdef Py_ssize_t i = 0, n_elements = cnp.PyArray_SIZE(array)
        cdef PyArray_StringDTypeObject* descr = (
            <PyArray_StringDTypeObject*>cnp.PyArray_DESCR(array))
        cdef npy_string_allocator* allocator
        cdef npy_static_string text
        cdef unsigned char* target
        cdef int status = 0
        while i < n_elements:
            with nogil:  # see npystring.pxd
                allocator = NpyString_acquire_allocator(descr)
                target = <unsigned char*>output.position
                while i < n_elements:
                    status = NpyString_load(allocator, <const npy_packed_static_string*>item, &text)
                    if status != 0 or text.size > UINT32_MAX or (
                            PREFIX_NBYTES + text.size > <size_t>(output.end - <char*>target)):
                        break
                    store_le32(target, <uint32_t>text.size)
                    target += PREFIX_NBYTES
                    if text.size > 0:
                        memcpy(target, text.buf, text.size)
                    target += text.size
                    item += itemsize
                    i += 1
                output.position = <char*>target
                NpyString_release_allocator(allocator)
            if status == 1:
                raise element_error(self, i, "is a missing value, which tensors cannot have")
            if status != 0:
                raise element_error(self, i, "cannot be read")
            if i < n_elements:
                reserve_for_all(output, self, wire_nbytes(self, text.size, i), i + 1)
        return 0


@cython.final
cdef class WireBytes(Source):

    cdef int write(self, NewBytes* output) except -1:
        cdef Py_buffer buffer
        PyObject_GetBuffer(self.values, &buffer, PyBUF_SIMPLE)
        try:
            reserve(output, buffer.len)
            if buffer.len > 0:  # else the address may be NULL
                output.position = <char*>write_memory(
                    <unsigned char*>output.position, buffer.buf, buffer.len)
        finally:
            PyBuffer_Release(&buffer)
        return 0


# By the `kind` of a numpy dtype. "O" is also the kind of lists and tuples.
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

    cdef int write(self, NewBytes* output) except -1:
        cdef Received received = <Received?>self.values
        cdef Chunk chunk
        cdef Element found
        cdef int64_t i
        cdef Py_ssize_t work = 0, n_written = 0
        for item in received.chunks:
            chunk = <Chunk?>item
            for i in range(chunk.elements.offset, chunk.elements.offset + chunk.elements.length):
                if not locate(&found, chunk, received.layout, i):
                    raise element_error(self, n_written, "is outside its Arrow buffer")
                collect_work(&work, TEXT_COST + found.nbytes)
                write_element(output, self, found.data, found.nbytes, n_written)
                n_written += 1
        return 0


cdef Source source_of_received(Received received):
    check_offsets(received)
    return ArrowSource(received, received.shape)


# --- errors ----------------------------------------------------------------------------------


cdef element_error(Source source, element, what, expected=None, actual=None):
    shape = source.shape
    index = f" {list(map(int, np.unravel_index(element, shape)))}" if len(shape) > 1 else ""
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
