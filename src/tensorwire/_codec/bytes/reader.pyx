"""Read BYTES: scan the length prefixes once, and convert the elements on request.

`scan_elements` validates all length prefixes, and returns the offset of each prefix in the body.
The other functions take an `Elements`, which has these offsets and the end of the last element. The
length of an element is computed from two offsets. Its prefix is not read again.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..bytes.npystring cimport (
    NpyString_acquire_allocator, NpyString_pack, NpyString_release_allocator,
    PyArray_StringDTypeObject, npy_packed_static_string, npy_string_allocator)
from ..gil cimport (
    ITEM_COST, LONG_NBYTES, TEXT_COST, copied_bytes, count_or_release_gil, count_work, end_of_batch,
    take_gil)
from ..held_buffer cimport HeldBuffer
from ..new_objects cimport PyUnicode_1BYTE_DATA, ascii_str
from ..utf8 cimport is_ascii, is_valid_utf8
from ..wire cimport (
    PREFIX_NBYTES, Element, Scan, Span, element_at, scan_prefixes, span_nbytes, store_le32)

import numpy as np

from ...errors import SUBJECT, ElementError, LayoutError, format_count

cnp.import_array()

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    # The maximum size of a numpy `S` array is the larger of two limits: a number of bytes, and a
    # multiple of the size of the wire bytes.
    MAX_PADDED_NBYTES = 64 << 20
    MAX_PADDED_MULTIPLE = 64


# --- scanning ---


cdef Scan scan_all(
    const unsigned char* data, uint64_t nbytes, int64_t* starts, uint64_t capacity, int64_t base
) noexcept:
    cdef Scan scan
    cdef uint64_t most = min(capacity, nbytes // PREFIX_NBYTES)  # elements
    # An element of 2 KiB or more is a cache miss.
    released = count_or_release_gil(max(2 * most, 2 * ITEM_COST * min(most, nbytes // 2048)))
    scan = scan_prefixes(data, nbytes, starts, capacity, base)
    take_gil(released)
    return scan


@cython.final
@cython.no_gc_clear  # a BytesArray may use the memory after a cycle was cleared
cdef class Elements:
    def __dealloc__(self):
        count_work(self.span.n)


cdef Elements new_elements(HeldBuffer body, cnp.ndarray starts, Py_ssize_t end):
    """Return elements with prefixes at the offsets `starts`, the last of which ends at `end`."""
    cdef Elements elements = Elements.__new__(Elements)
    elements.body = body
    elements.starts = starts
    elements.span.data = body.data
    elements.span.starts = <const int64_t*>cnp.PyArray_DATA(starts)
    elements.span.n = cnp.PyArray_SIZE(starts)
    elements.span.end = end
    return elements


cdef Elements scan_elements(
    HeldBuffer body, uint64_t n_elements, Py_ssize_t offset, Py_ssize_t nbytes
):
    """Validate `n_elements` elements that fill the `nbytes` bytes of the body from `offset`.

    The offsets of their prefixes are only allocated if the bytes, which exist, have room for this
    number of prefixes.
    """
    cdef Scan scan
    cdef cnp.npy_intp n_starts
    cdef cnp.ndarray starts
    if n_elements > <uint64_t>nbytes // PREFIX_NBYTES:
        raise LayoutError(
            f"{SUBJECT} does not match its shape: at least {PREFIX_NBYTES * <object>n_elements} "
            f"bytes are required for {format_count('BYTES element', n_elements)}, but there are "
            f"{nbytes}",
            offset=offset, expected=PREFIX_NBYTES * <object>n_elements, actual=nbytes)
    n_starts = <cnp.npy_intp>n_elements
    starts = cnp.PyArray_EMPTY(1, &n_starts, cnp.NPY_INT64, 0)
    count_work(8 * n_starts)
    scan = scan_all(
        body.data + offset, nbytes, <int64_t*>cnp.PyArray_DATA(starts), n_elements, offset)
    if scan.is_truncated:
        raise truncated_element_error(body, &scan, offset, nbytes)
    if scan.n_elements < n_elements:
        raise LayoutError(
            f"{SUBJECT} does not match its shape: it has {format_count('element', n_elements)}, "
            f"but its bytes have {scan.n_elements}",
            element=scan.n_elements, offset=offset + scan.position,
            expected=n_elements, actual=scan.n_elements)
    if scan.position < <uint64_t>nbytes:
        raise LayoutError(
            f"{SUBJECT} does not match its shape: it has {format_count('element', n_elements)} of "
            f"{format_count('byte', scan.position)} in total, but there are {nbytes} "
            f"{body.format_position(offset + scan.position)}",
            element=n_elements, offset=offset + scan.position,
            expected=scan.position, actual=nbytes)
    cnp.PyArray_CLEARFLAGS(starts, cnp.NPY_ARRAY_WRITEABLE)
    return new_elements(body, starts, offset + nbytes)


cdef uint64_t count_elements(HeldBuffer body) except? 0:
    """Return the number of BYTES elements that fill the body, without allocating memory."""
    cdef uint64_t more_than_fit = <uint64_t>body.nbytes // PREFIX_NBYTES + 1
    cdef Scan scan = scan_all(body.data, body.nbytes, NULL, more_than_fit, 0)
    if scan.is_truncated:
        raise truncated_element_error(body, &scan, 0, body.nbytes)
    return scan.n_elements


def elements_nbytes(HeldBuffer body not None, Py_ssize_t n_elements):
    """Return the size in bytes of the first `n_elements` elements of the body."""
    assert n_elements >= 0
    cdef Scan scan = scan_all(body.data, body.nbytes, NULL, n_elements, 0)
    if scan.n_elements < <uint64_t>n_elements:
        raise truncated_element_error(body, &scan, 0, body.nbytes)
    return scan.position


cdef truncated_element_error(HeldBuffer body, Scan* scan, Py_ssize_t offset, Py_ssize_t nbytes):
    element, position = scan.n_elements, offset + scan.position
    remaining = nbytes - scan.position
    if remaining < PREFIX_NBYTES:
        return ElementError(
            f"element {element} of {SUBJECT} is truncated: a length prefix has 4 bytes, but "
            f"{remaining} remain {body.format_position(position)}",
            element=element, offset=position, expected=PREFIX_NBYTES, actual=remaining)
    remaining -= PREFIX_NBYTES
    return ElementError(
        f"element {element} of {SUBJECT} is truncated: its prefix declares "
        f"{format_count('byte', scan.declared)}, but {remaining} remain "
        f"{body.format_position(position)}",
        element=element, offset=position, expected=scan.declared, actual=remaining)


# --- conversion of scanned elements to arrays [n_elements] ---


cdef element_bytes(Elements elements, Py_ssize_t i):
    cdef Element found = element_at(&elements.span, i)
    return copied_bytes(found.data, found.nbytes)


cdef Py_ssize_t end_of_objects(const Span* span, Py_ssize_t first) noexcept:
    """Return where a batch of elements that become objects ends; see `end_of_batch`."""
    cdef Py_ssize_t stop = end_of_batch(first, span.n, ITEM_COST)
    cdef Py_ssize_t nbytes
    while True:
        nbytes = (span.starts[stop] if stop < span.n else span.end) - span.starts[first]
        if nbytes <= LONG_NBYTES or stop == first + 1:
            count_work(min(nbytes, <Py_ssize_t>LONG_NBYTES))
            return stop
        stop = first + (stop - first) // 2


cdef elements_as_objects(Elements elements):
    cdef cnp.npy_intp n = elements.span.n
    cdef cnp.ndarray array = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_OBJECT)
    cdef PyObject** items = <PyObject**>cnp.PyArray_DATA(array)  # all NULL; numpy owns them
    cdef Element element
    cdef Py_ssize_t i = 0, stop = 0
    while stop < n:
        i, stop = stop, end_of_objects(&elements.span, stop)
        if stop == i + 1:  # it may be long
            store_item(items + i, element_bytes(elements, i))
            continue
        for i in range(i, stop):
            element = element_at(&elements.span, i)
            store_item(
                items + i, PyBytes_FromStringAndSize(<const char*>element.data, element.nbytes))
    return array


cdef elements_as_str(Elements elements):
    cdef cnp.npy_intp n = elements.span.n
    cdef cnp.ndarray array = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_OBJECT)
    cdef PyObject** items = <PyObject**>cnp.PyArray_DATA(array)
    cdef Element element
    cdef Py_ssize_t i = 0, stop = 0
    try:
        while stop < elements.span.n:
            stop = end_of_objects(&elements.span, stop)
            while i < stop:
                element = element_at(&elements.span, i)
                store_item(items + i, decode_utf8(element.data, element.nbytes))
                i += 1
    except UnicodeDecodeError:
        raise not_utf8_error(elements, i) from None
    return array


cdef inline str decode_utf8(const unsigned char* data, Py_ssize_t nbytes):
    """Decode a copy of UTF-8, which no other thread can change."""
    cdef str text = ascii_str(data, nbytes)
    if is_ascii(PyUnicode_1BYTE_DATA(text), nbytes):
        return text
    return PyUnicode_DecodeUTF8(<const char*>PyUnicode_1BYTE_DATA(text), nbytes, NULL)


cdef inline void store_item(PyObject** slot, object item) noexcept:
    Py_INCREF(item)
    slot[0] = <PyObject*>item


cdef not_utf8_error(Elements elements, Py_ssize_t element):
    cdef Element found = element_at(&elements.span, element)
    cdef Py_ssize_t offset = found.data - elements.span.data
    reason, at = "it was modified", 0  # if the element is valid now
    try:
        bytes(elements.body.view(offset, found.nbytes)).decode()  # a copy, which cannot change
    except UnicodeDecodeError as error:
        reason, at = error.reason, error.start
    return ElementError(
        f"element {element} of {SUBJECT} is not valid UTF-8: {reason} at its byte {at} "
        f"{elements.body.format_position(offset + at)}", element=element, offset=offset + at)


cdef elements_as_stringdtype(Elements elements):
    cdef cnp.ndarray array = np.empty(elements.span.n, np.dtypes.StringDType())
    cdef char* item = <char*>cnp.PyArray_DATA(array)
    cdef Py_ssize_t itemsize = cnp.PyArray_ITEMSIZE(array)
    cdef PyArray_StringDTypeObject* descr = <PyArray_StringDTypeObject*>cnp.PyArray_DESCR(array)
    cdef npy_string_allocator* allocator
    cdef Element element
    cdef const Span* span = &elements.span
    cdef Py_ssize_t i = 0
    cdef bint is_text = True
    with nogil:  # see npystring.pxd
        allocator = NpyString_acquire_allocator(descr)
        while i < span.n:
            element = element_at(span, i)
            is_text = is_valid_utf8(element.data, element.nbytes)
            if not is_text or NpyString_pack(
                allocator, <npy_packed_static_string*>item, <const char*>element.data,
                element.nbytes,
            ) != 0:
                break
            item += itemsize
            i += 1
        NpyString_release_allocator(allocator)
    if i == span.n:
        return array
    if not is_text:
        raise not_utf8_error(elements, i)
    raise MemoryError(f"numpy could not allocate element {i} of {element.nbytes} bytes")


cdef elements_as_fixed_width(Elements elements):
    """Raises ElementError if a long element would make the array much larger than the body."""
    cdef Py_ssize_t n_elements = elements.span.n
    cdef Py_ssize_t widest, width
    if n_elements == 0:
        return np.zeros(0, "S1")  # numpy has no S0 arrays
    released = count_or_release_gil(2 * n_elements)
    widest = widest_element(&elements.span)
    take_gil(released)
    width = max(1, element_at(&elements.span, widest).nbytes)
    # No overflow: the wire bytes are in memory, so 64 times their number fits in 64 bits.
    if width > (
        max(MAX_PADDED_NBYTES, MAX_PADDED_MULTIPLE * span_nbytes(&elements.span))
        // n_elements
    ):
        raise ElementError(
            f"element {widest} of {SUBJECT} is too long for a numpy S array: all {n_elements} "
            f"elements would have its width of {width} bytes", element=widest, actual=width)
    cdef cnp.ndarray array = np.zeros(n_elements, f"S{width}")
    cdef char* target = <char*>cnp.PyArray_DATA(array)
    released = count_or_release_gil(n_elements * (TEXT_COST + width))
    write_padded(target, width, &elements.span)
    take_gil(released)
    return array


cdef Py_ssize_t widest_element(const Span* span) noexcept nogil:
    cdef Py_ssize_t widest = 0, width = 0, i
    cdef Element element
    for i in range(span.n):
        element = element_at(span, i)
        if element.nbytes > width:
            width, widest = element.nbytes, i
    return widest


cdef void write_padded(char* target, Py_ssize_t width, const Span* span) noexcept nogil:
    cdef Element element
    cdef Py_ssize_t i
    for i in range(span.n):
        element = element_at(span, i)
        memcpy(target + i * width, element.data, element.nbytes)


cdef gather_elements(Elements elements, cnp.ndarray chosen):
    """Return new wire bytes of the elements at valid indices, a contiguous array of int64."""
    # Not a typed memoryview: each module that cimports this one would contain the code for them.
    cdef const int64_t* indices = <const int64_t*>cnp.PyArray_DATA(chosen)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(chosen)
    cdef Py_ssize_t nbytes
    cdef unsigned char* target
    released = count_or_release_gil(n * TEXT_COST)
    nbytes = measure_chosen(&elements.span, indices, n)
    take_gil(released)
    if nbytes < 0:
        raise MemoryError("the elements take more than 2^63 - 1 bytes")
    wire = PyBytes_FromStringAndSize(NULL, nbytes)
    target = <unsigned char*>PyBytes_AS_STRING(wire)
    released = count_or_release_gil(n * TEXT_COST + nbytes)
    write_chosen(target, &elements.span, indices, n)
    take_gil(released)
    return wire


cdef Py_ssize_t measure_chosen(
    const Span* span, const int64_t* indices, Py_ssize_t n
) noexcept nogil:
    """Return the size of the wire bytes of elements, or -1 if it exceeds 2^63 - 1."""
    cdef Py_ssize_t nbytes = 0, i
    cdef Element element
    for i in range(n):
        element = element_at(span, indices[i])
        # An element may be chosen many times. It is in memory, so that the sum does not overflow.
        if PREFIX_NBYTES + element.nbytes > PY_SSIZE_T_MAX - nbytes:
            return -1
        nbytes += PREFIX_NBYTES + element.nbytes
    return nbytes


cdef void write_chosen(
    unsigned char* target, const Span* span, const int64_t* indices, Py_ssize_t n
) noexcept nogil:
    cdef Element element
    cdef Py_ssize_t i
    for i in range(n):
        element = element_at(span, indices[i])
        # The prefix is computed from the offsets, because the one in the body may have changed.
        store_le32(target, <uint32_t>element.nbytes)
        memcpy(target + PREFIX_NBYTES, element.data, element.nbytes)
        target += PREFIX_NBYTES + element.nbytes
