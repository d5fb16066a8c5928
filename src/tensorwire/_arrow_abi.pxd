"""The Arrow C data interface: structs that every Arrow library lays out alike."""

from libc.stdint cimport int32_t, int64_t


cdef enum:
    INLINE_NBYTES = 12  # of an element, in a view


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


# One element of a (binary or string) view array. Up to 12 bytes stand in the view itself; of longer
# elements their first four, and where the whole stands in one of the data buffers.
cdef struct LongView:
    char[4] prefix
    int32_t buffer
    int32_t offset


cdef union ViewPayload:
    char[12] inline
    LongView elsewhere


cdef struct View:
    int32_t nbytes
    ViewPayload payload
