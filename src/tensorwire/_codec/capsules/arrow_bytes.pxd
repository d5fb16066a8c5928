"""Arrow arrays of BYTES; see arrow_bytes.pyx."""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from ..capsules.arrow cimport OFFSETS_32, VIEWS, ArrowLayout, Chunk, Received
from ..capsules.arrow_abi cimport INLINE_NBYTES, N_VIEW_BUFFERS, ArrowArray, View
from ..wire cimport Element, Span


cdef tuple export_elements(owner, const Span* span, requested)
cdef int check_offsets(Received received) except -1


cdef inline int64_t offset_at(const void* offsets, ArrowLayout layout, int64_t i) noexcept nogil:
    # memcpy compiles to one load. The interface allows buffers that are not aligned.
    cdef int32_t narrow
    cdef int64_t wide
    if layout == OFFSETS_32:
        memcpy(&narrow, <const int32_t*>offsets + i, sizeof(int32_t))
        return narrow
    memcpy(&wide, <const int64_t*>offsets + i, sizeof(int64_t))
    return wide


cdef inline bint locate(Element* found, Chunk chunk, ArrowLayout layout, int64_t i) noexcept:
    """Set `found` to element `i` of received bytes. Return False if it is not within its buffer."""
    cdef const void** buffers = chunk.elements.buffers
    cdef int64_t begin, end
    if layout == VIEWS:
        return locate_view(
            found, &chunk.elements, <const unsigned char*>buffers[1] + i * <int64_t>sizeof(View))
    begin = offset_at(buffers[1], layout, i)
    end = offset_at(buffers[1], layout, i + 1)
    # Another thread may have changed the offsets since they were checked.
    if not chunk.first <= begin <= end <= chunk.last:
        return False
    found.data = <const unsigned char*>buffers[2] + begin
    found.nbytes = end - begin
    return True


cdef inline bint locate_view(
    Element* found, const ArrowArray* array, const unsigned char* at
) noexcept nogil:
    cdef int64_t data_nbytes, buffer, offset
    cdef View view
    memcpy(&view, at, sizeof(View))
    found.nbytes = view.nbytes
    if view.nbytes <= INLINE_NBYTES:
        found.data = at + (<const char*>&view.value - <const char*>&view)
        return view.nbytes >= 0
    buffer, offset = view.value.reference.buffer, view.value.reference.offset
    if not 0 <= buffer < array.n_buffers - N_VIEW_BUFFERS or offset < 0 or (
            array.buffers[2 + buffer] == NULL):
        return False
    # The last buffer has the sizes of the data buffers, according to the producer.
    memcpy(&data_nbytes, <const int64_t*>array.buffers[array.n_buffers - 1] + buffer, 8)
    if data_nbytes < 0 or view.nbytes > data_nbytes - offset:
        return False
    found.data = <const unsigned char*>array.buffers[2 + buffer] + offset
    return True
