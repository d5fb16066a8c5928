"""The walk over the length prefixes of BYTES elements. No Python object is touched."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._wire cimport PREFIX_NBYTES, load_le32


cdef enum Fault:
    NONE
    SHORT_PREFIX
    SHORT_PAYLOAD


cdef struct Walk:
    uint64_t position    # of the element where the walk stopped, from the start of the tensor
    uint64_t n_elements  # walked whole
    uint32_t declared    # what the last prefix said
    Fault fault


cdef inline void walk(
    Walk* walked, const unsigned char* data, uint64_t nbytes,
    int64_t* starts, uint64_t capacity, int64_t base,
) noexcept nogil:
    """Go on from `walked` until `capacity` elements, the end of `data`, or a fault.

    `starts[i]` becomes `base` plus the position of element i's prefix, unless `starts` is NULL.
    Bounds: position <= nbytes always. Both comparisons subtract what is known to fit, in unsigned
    64 bit, so nothing wraps; a prefix is loaded once, so that a writer in another thread can make
    the walk wrong but never leave the tensor.
    """
    cdef uint64_t position = walked.position
    cdef uint64_t i = walked.n_elements
    cdef uint32_t length = 0
    walked.fault = NONE
    while i < capacity and position < nbytes:
        if nbytes - position < PREFIX_NBYTES:
            walked.fault = SHORT_PREFIX
            break
        length = load_le32(data + position)
        if length > nbytes - position - PREFIX_NBYTES:
            walked.fault = SHORT_PAYLOAD
            break
        if starts != NULL:
            starts[i] = base + <int64_t>position
        position += PREFIX_NBYTES + <uint64_t>length
        i += 1
    walked.position = position
    walked.n_elements = i
    walked.declared = length
