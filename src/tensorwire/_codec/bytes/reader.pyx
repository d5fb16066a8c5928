"""Read BYTES: scan the length prefixes once, and convert the elements on request.

`scan_elements` validates all length prefixes, and returns the offset of each prefix in the body.
The other functions take an `Elements`, which has these offsets and the end of the last element. The
length of an element is computed from two offsets. Its prefix is not read again.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..capsules.arrow cimport array_capsule, new_schema
from ..capsules.arrow_abi cimport (
    INLINE_NBYTES, N_OFFSET_BUFFERS, N_VIEW_BUFFERS, ArrowArray, ArrowSchema, View)
from ..gil cimport (
    ITEM_COST, LONG_NBYTES, TEXT_COST, copied_bytes, count_work, drop_reference, end_of_batch,
    release_gil, release_gil_if_long, take_gil)
from ..body cimport Body
from ..bytes.npystring cimport (
    NpyString_acquire_allocator, NpyString_pack, NpyString_release_allocator,
    PyArray_StringDTypeObject, npy_packed_static_string, npy_string_allocator)
from ..utf8 cimport is_ascii, is_valid_utf8
from ..wire cimport PREFIX_NBYTES, Scan, scan_prefixes, store_le32

import numpy as np

from ...errors import SUBJECT, ElementError, EncodeError, LayoutError, format_count

cnp.import_array()

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    str PyUnicode_New(Py_ssize_t nbytes, int max_character)
    unsigned char* PyUnicode_1BYTE_DATA(object text)

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
    released = release_gil(max(2 * most, 2 * ITEM_COST * min(most, nbytes // 2048)))
    scan = scan_prefixes(data, nbytes, starts, capacity, base)
    take_gil(released)
    return scan


@cython.final
@cython.no_gc_clear  # a BytesArray may use the memory after a cycle was cleared
cdef class Elements:
    def __dealloc__(self):
        count_work(self.span.n)


cdef Elements new_elements(Body body, cnp.ndarray starts, Py_ssize_t end):
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
    Body body, uint64_t n_elements, Py_ssize_t offset, Py_ssize_t nbytes
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


cdef uint64_t count_elements(Body body) except? 0:
    """Return the number of BYTES elements that fill the body, without allocating memory."""
    cdef uint64_t more_than_fit = <uint64_t>body.nbytes // PREFIX_NBYTES + 1
    cdef Scan scan = scan_all(body.data, body.nbytes, NULL, more_than_fit, 0)
    if scan.is_truncated:
        raise truncated_element_error(body, &scan, 0, body.nbytes)
    return scan.n_elements


def elements_nbytes(Body body not None, Py_ssize_t n_elements):
    """Return the size in bytes of the first `n_elements` elements of the body."""
    assert n_elements >= 0
    cdef Scan scan = scan_all(body.data, body.nbytes, NULL, n_elements, 0)
    if scan.n_elements < <uint64_t>n_elements:
        raise truncated_element_error(body, &scan, 0, body.nbytes)
    return scan.position


cdef truncated_element_error(Body body, Scan* scan, Py_ssize_t offset, Py_ssize_t nbytes):
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


cdef Py_ssize_t begin_objects(const Span* span, Py_ssize_t first) noexcept:
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
        i, stop = stop, begin_objects(&elements.span, stop)
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
            stop = begin_objects(&elements.span, stop)
            while i < stop:
                element = element_at(&elements.span, i)
                store_item(items + i, decode_utf8(element.data, element.nbytes))
                i += 1
    except UnicodeDecodeError:
        raise not_utf8_error(elements, i) from None
    return array


cdef inline str decode_utf8(const unsigned char* data, Py_ssize_t nbytes):
    """Decode a copy of UTF-8, which no other thread can change."""
    cdef str text
    if nbytes <= 1:  # such strings are shared objects of CPython, which must not be written to
        return PyUnicode_DecodeUTF8(<const char*>data, nbytes, NULL)
    text = PyUnicode_New(nbytes, 127)
    released = release_gil_if_long(nbytes)
    memcpy(PyUnicode_1BYTE_DATA(text), data, nbytes)
    take_gil(released)
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
    released = release_gil(2 * n_elements)
    widest = widest_element(&elements.span)
    take_gil(released)
    width = max(1, element_at(&elements.span, widest).nbytes)
    # No overflow: the wire bytes are in memory, so 64 times their number fits in 64 bits.
    if width > (
        max(MAX_PADDED_NBYTES, MAX_PADDED_MULTIPLE * (elements.span.end - begin_of(elements)))
        // n_elements
    ):
        raise ElementError(
            f"element {widest} of {SUBJECT} is too long for a numpy S array: all {n_elements} "
            f"elements would have its width of {width} bytes", element=widest, actual=width)
    cdef cnp.ndarray array = np.zeros(n_elements, f"S{width}")
    cdef char* target = <char*>cnp.PyArray_DATA(array)
    released = release_gil(n_elements * (TEXT_COST + width))
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
    released = release_gil(n * TEXT_COST)
    nbytes = measure_chosen(&elements.span, indices, n)
    take_gil(released)
    if nbytes < 0:
        raise MemoryError("the elements take more than 2^63 - 1 bytes")
    wire = PyBytes_FromStringAndSize(NULL, nbytes)
    target = <unsigned char*>PyBytes_AS_STRING(wire)
    released = release_gil(n * TEXT_COST + nbytes)
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


# --- Arrow export ---


# The Arrow types of BYTES by their formats: the sizes of their offsets. Views have none.
cdef dict OFFSET_NBYTES = {b"vz": 0, b"vu": 0, b"z": 4, b"u": 4, b"Z": 8, b"U": 8}


def arrow_schema(bytes format not None):
    return new_schema(format, NULL, 1)


cdef bytes requested_format(requested):
    """Return the format for a requested schema, a capsule or None: binary view for other types."""
    cdef ArrowSchema* schema
    cdef bytes format
    if requested is None:
        return b"vz"
    if not PyCapsule_IsValid(requested, "arrow_schema"):
        raise TypeError(
            f"a requested schema must be an 'arrow_schema' capsule, not {type(requested).__name__}")
    schema = <ArrowSchema*>PyCapsule_GetPointer(requested, "arrow_schema")
    if schema.release == NULL:
        raise EncodeError("the requested Arrow schema has been released")
    if schema.format == NULL:
        raise EncodeError("the requested Arrow schema has no format")
    format = schema.format
    return format if format in OFFSET_NBYTES else b"vz"


cdef tuple export_elements(Elements elements, requested):
    """Return `arrow_schema` and `arrow_array` capsules; see `BytesArray.__arrow_c_array__`."""
    cdef bytes format = requested_format(requested)
    cdef ExportedArray exported = ExportedArray(elements)
    cdef ArrowArray* array = NULL
    capsule = array_capsule(&array)
    if not exported.build(format):
        format = b"vz"
        exported = ExportedArray(elements)
        exported.build(format)
    array.length = elements.span.n
    array.n_buffers = exported.n_buffers
    array.buffers = exported.buffers
    array.private_data = <void*>exported
    array.release = release_array
    Py_INCREF(exported)  # released with the array
    return new_schema(format, NULL, 1), capsule


cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef void* exported = array.private_data
    array.release = NULL
    drop_reference(exported)


cdef bint are_utf8(Elements elements) noexcept:
    cdef bint are_valid
    released = release_gil(elements.span.end - begin_of(elements))
    are_valid = are_all_utf8(&elements.span)
    take_gil(released)
    return are_valid


cdef bint are_all_utf8(const Span* span) noexcept nogil:
    cdef Py_ssize_t i
    cdef Element element
    for i in range(span.n):
        element = element_at(span, i)
        if not is_valid_utf8(element.data, element.nbytes):
            return False
    return True


# There is no tp_clear, because the consumer may release the array after a cycle was cleared.
@cython.final
@cython.no_gc_clear
cdef class ExportedArray:
    """The owner of the memory of an exported array, and of the elements to which views refer.

    The offsets of views into a data buffer are signed 32-bit numbers. A body of 2 GiB or more is
    therefore exported as several data buffers, each of which begins at an element.
    """

    cdef Elements elements
    cdef View* views
    cdef void* offsets
    cdef unsigned char* data  # a copy of the elements, for offsets
    cdef const void** buffers
    cdef int64_t* data_nbytes
    cdef Py_ssize_t n_data
    cdef Py_ssize_t n_buffers

    def __cinit__(self, Elements elements not None):
        self.elements = elements

    def __dealloc__(self):
        PyMem_RawFree(self.views)
        PyMem_RawFree(self.offsets)
        PyMem_RawFree(self.data)
        PyMem_RawFree(self.buffers)
        PyMem_RawFree(self.data_nbytes)

    cdef bint build(self, bytes format) except -1:
        """Make the buffers of a type, once. Return False if it cannot represent the elements."""
        cdef bint is_text = format.lower().endswith(b"u")
        cdef Py_ssize_t offset_nbytes = OFFSET_NBYTES[format]
        if offset_nbytes > 0:
            return self.build_offsets(offset_nbytes, is_text)
        return (not is_text or are_utf8(self.elements)) and self.build_views()

    cdef bint build_offsets(self, Py_ssize_t offset_nbytes, bint is_text) except -1:
        cdef const Span* span = &self.elements.span
        # No overflow: each element has a prefix of 4 bytes, and the elements are in memory.
        cdef Py_ssize_t nbytes = span.end - begin_of(self.elements) - span.n * PREFIX_NBYTES
        cdef bint is_valid
        if offset_nbytes == sizeof(int32_t) and nbytes > INT32_MAX:
            return False
        self.offsets = PyMem_RawMalloc((span.n + 1) * offset_nbytes)
        self.data = <unsigned char*>PyMem_RawMalloc(max(nbytes, 1))
        self.buffers = <const void**>PyMem_RawCalloc(N_OFFSET_BUFFERS, sizeof(void*))
        if self.offsets == NULL or self.data == NULL or self.buffers == NULL:
            raise MemoryError
        released = release_gil(span.n * TEXT_COST + nbytes)
        is_valid = self.copy(span, offset_nbytes, is_text)
        take_gil(released)
        if not is_valid:
            return False
        self.buffers[1], self.buffers[2] = self.offsets, self.data
        self.n_buffers = N_OFFSET_BUFFERS
        self.elements = None  # the copy does not need them
        return True

    cdef bint copy(self, const Span* span, Py_ssize_t offset_nbytes, bint is_text) noexcept nogil:
        """Copy the elements to `data`, one after the other, and store their offsets.

        Returns False if `is_text` is true, and an element is not valid UTF-8. The copy is
        validated, because another thread may change the body.
        """
        cdef Py_ssize_t position = 0, i
        cdef Element element
        for i in range(span.n + 1):
            if offset_nbytes == sizeof(int64_t):
                (<int64_t*>self.offsets)[i] = position
            else:
                (<int32_t*>self.offsets)[i] = <int32_t>position
            if i < span.n:
                element = element_at(span, i)
                memcpy(self.data + position, element.data, element.nbytes)
                if is_text and not is_valid_utf8(self.data + position, element.nbytes):
                    return False
                position += element.nbytes
        return True

    cdef bint build_views(self) except -1:
        cdef const Span* span = &self.elements.span
        cdef Element element
        cdef Py_ssize_t i
        # A new data buffer begins at an element that would end more than 2^31 - 1 bytes after the
        # start of the current one. Any two consecutive data buffers therefore cover at least
        # 2^31 - 1 bytes, which limits their number.
        cdef Py_ssize_t room = 2 + 2 * ((span.end - begin_of(self.elements)) // INT32_MAX)
        self.views = <View*>PyMem_RawCalloc(max(span.n, 1), sizeof(View))
        self.buffers = <const void**>PyMem_RawCalloc(N_VIEW_BUFFERS + room, sizeof(void*))
        self.data_nbytes = <int64_t*>PyMem_RawCalloc(room, sizeof(int64_t))
        if self.views == NULL or self.buffers == NULL or self.data_nbytes == NULL:
            raise MemoryError
        self.buffers[1] = self.views
        released = release_gil(span.n * TEXT_COST)
        i = self.write_views(span)
        take_gil(released)
        if i < span.n:
            element = element_at(span, i)
            raise EncodeError(
                f"element {i} is {element.nbytes} bytes long; the limit for an Arrow view is "
                f"{INT32_MAX}",
                element=i, expected=INT32_MAX, actual=element.nbytes)
        self.buffers[2 + self.n_data] = self.data_nbytes
        self.n_buffers = N_VIEW_BUFFERS + self.n_data
        return True

    cdef Py_ssize_t write_views(self, const Span* span) noexcept nogil:
        """Write the views, and return their number. A view cannot describe the next element."""
        cdef const unsigned char* data = NULL  # where the current data buffer begins
        cdef View* view
        cdef Element element
        cdef Py_ssize_t i
        for i in range(span.n):
            element = element_at(span, i)
            if element.nbytes > INT32_MAX:
                return i
            view = self.views + i  # all zero, as the format requires for unused bytes
            view.nbytes = <int32_t>element.nbytes
            if element.nbytes <= INLINE_NBYTES:
                memcpy(view.value.inline, element.data, element.nbytes)
                continue
            if data == NULL or element.data + element.nbytes - data > INT32_MAX:
                data = element.data
                self.buffers[2 + self.n_data] = data
                self.n_data += 1
            self.data_nbytes[self.n_data - 1] = element.data + element.nbytes - data
            memcpy(view.value.reference.prefix, element.data, 4)
            view.value.reference.buffer = <int32_t>(self.n_data - 1)
            view.value.reference.offset = <int32_t>(element.data - data)
        return span.n
