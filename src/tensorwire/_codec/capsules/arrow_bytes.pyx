"""The Arrow C data interface for BYTES: binary and string arrays, with offsets or views.

Arrays of other packages, which `receive` of arrow.pyx has taken over: `check_offsets` checks their
buffers, and then `locate` finds each element. Arrays for other packages: `export_elements`.
"""

cimport cython
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.string cimport memcpy

from ..capsules.arrow cimport (
    VIEWS, ArrowLayout, Chunk, Received, array_capsule, drop_reference, invalid_arrow_error,
    new_schema)
from ..capsules.arrow_abi cimport (
    INLINE_NBYTES, N_OFFSET_BUFFERS, N_VIEW_BUFFERS, ArrowArray, ArrowSchema, View)
from ..gil cimport TEXT_COST, count_or_release_gil, take_gil
from ..utf8 cimport are_valid_utf8, is_valid_utf8
from ..wire cimport PREFIX_NBYTES, Element, Span, element_at, span_nbytes

from ...errors import EncodeError


# --- import ---


cdef int check_offsets(Received received) except -1:
    """Check the buffers of each chunk, and set `first` and `last`. Raises EncodeError."""
    for chunk in received.chunks:
        check_offsets_of_chunk(<Chunk?>chunk, received.layout)
    return 0


cdef int check_offsets_of_chunk(Chunk chunk, ArrowLayout layout) except -1:
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


# --- export ---


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


cdef tuple export_elements(owner, const Span* span, requested):
    """Return `arrow_schema` and `arrow_array` capsules; see `BytesArray.__arrow_c_array__`.

    `owner` owns the memory of the span.
    """
    cdef bytes format = requested_format(requested)
    cdef ExportedArray exported = exported_array(owner, span)
    cdef ArrowArray* array = NULL
    capsule = array_capsule(&array)
    if not exported.build(format):
        format = b"vz"
        exported = exported_array(owner, span)
        exported.build(format)
    array.length = span.n
    array.n_buffers = exported.n_buffers
    array.buffers = exported.buffers
    array.private_data = <void*>exported
    array.release = release_array
    Py_INCREF(exported)  # released with the array
    return new_schema(format, NULL, 1), capsule


cdef ExportedArray exported_array(owner, const Span* span):
    cdef ExportedArray exported = ExportedArray.__new__(ExportedArray)
    exported.owner, exported.span = owner, span[0]
    return exported


cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef void* exported = array.private_data
    array.release = NULL
    drop_reference(exported)


# There is no tp_clear, because the consumer may release the array after a cycle was cleared.
@cython.final
@cython.no_gc_clear
cdef class ExportedArray:
    """The memory of an exported array, and a reference to the owner of what its views refer to.

    The offsets of views into a data buffer are signed 32-bit numbers. A body of 2 GiB or more is
    therefore exported as several data buffers, each of which begins at an element.
    """

    cdef object owner
    cdef Span span
    cdef View* views
    cdef void* offsets
    cdef unsigned char* data  # a copy of the elements, for offsets
    cdef const void** buffers
    cdef int64_t* data_nbytes
    cdef Py_ssize_t n_data
    cdef Py_ssize_t n_buffers

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
        return (not is_text or are_valid_utf8(&self.span)) and self.build_views()

    cdef bint build_offsets(self, Py_ssize_t offset_nbytes, bint is_text) except -1:
        cdef const Span* span = &self.span
        # No overflow: each element has a prefix of 4 bytes, and the elements are in memory.
        cdef Py_ssize_t nbytes = span_nbytes(span) - span.n * PREFIX_NBYTES
        cdef bint is_valid
        if offset_nbytes == sizeof(int32_t) and nbytes > INT32_MAX:
            return False
        self.offsets = PyMem_RawMalloc((span.n + 1) * offset_nbytes)
        self.data = <unsigned char*>PyMem_RawMalloc(max(nbytes, 1))
        self.buffers = <const void**>PyMem_RawCalloc(N_OFFSET_BUFFERS, sizeof(void*))
        if self.offsets == NULL or self.data == NULL or self.buffers == NULL:
            raise MemoryError
        released = count_or_release_gil(span.n * TEXT_COST + nbytes)
        is_valid = self.copy(span, offset_nbytes, is_text)
        take_gil(released)
        if not is_valid:
            return False
        self.buffers[1], self.buffers[2] = self.offsets, self.data
        self.n_buffers = N_OFFSET_BUFFERS
        self.owner = None  # the copy does not need it
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
        cdef const Span* span = &self.span
        cdef Element element
        cdef Py_ssize_t i
        # A new data buffer begins at an element that would end more than 2^31 - 1 bytes after the
        # start of the current one. Any two consecutive data buffers therefore cover at least
        # 2^31 - 1 bytes, which limits their number.
        cdef Py_ssize_t room = 2 + 2 * (span_nbytes(span) // INT32_MAX)
        self.views = <View*>PyMem_RawCalloc(max(span.n, 1), sizeof(View))
        self.buffers = <const void**>PyMem_RawCalloc(N_VIEW_BUFFERS + room, sizeof(void*))
        self.data_nbytes = <int64_t*>PyMem_RawCalloc(room, sizeof(int64_t))
        if self.views == NULL or self.buffers == NULL or self.data_nbytes == NULL:
            raise MemoryError
        self.buffers[1] = self.views
        released = count_or_release_gil(span.n * TEXT_COST)
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
