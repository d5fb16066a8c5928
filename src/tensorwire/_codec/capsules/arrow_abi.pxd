"""The structs of the Arrow C data interface."""

from libc.stdint cimport int32_t, int64_t


cdef enum:
    NULLABLE = 2  # flag of a schema
    INLINE_NBYTES = 12  # maximum size of an element that is stored in its view
    # A view array has these buffers besides its data: validity, views, sizes of the data.
    N_VIEW_BUFFERS = 3
    # An array with offsets has these buffers: validity, offsets, data.
    N_OFFSET_BUFFERS = 3


cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema*) noexcept nogil
    void* private_data


cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray*) noexcept nogil
    void* private_data


cdef struct ArrowArrayStream:
    int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept nogil
    int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept nogil
    const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
    void (*release)(ArrowArrayStream*) noexcept nogil
    void* private_data


# The view of an element in a binary view or string view array. An element of up to 12 bytes is
# stored in the view. For a longer one, the view has its first four bytes and its position in a data
# buffer.
cdef struct LongView:
    char[4] prefix
    int32_t buffer
    int32_t offset


cdef union ViewValue:
    char[12] inline
    LongView reference


cdef struct View:
    int32_t nbytes
    ViewValue value
