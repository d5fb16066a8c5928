from libc.stdint cimport uint32_t, uint64_t

from ._wire cimport PREFIX_NBYTES, store_le32


cdef class Source:
    cdef object values
    cdef tuple shape
    cdef object name

    cdef uint64_t measure(self) except? 0
    cdef int fill(self, Writer* writer) except -1
    cdef bint overlaps(self, const void* begin, const void* end) except -1


cdef struct Writer:
    unsigned char* target
    unsigned char* end


cdef inline unsigned char* begin_element(Writer* writer, uint64_t nbytes) noexcept nogil:
    """Write a prefix and make room for the element behind it, which the caller writes.

    Returns NULL, and writes nothing, when there is no room: the values have changed. The caller has
    checked that `nbytes` fits 32 bits, unless there is no such room.
    """
    cdef unsigned char* payload
    cdef uint64_t room = writer.end - writer.target
    if room < PREFIX_NBYTES or nbytes > room - PREFIX_NBYTES:
        return NULL
    store_le32(writer.target, <uint32_t>nbytes)
    payload = writer.target + PREFIX_NBYTES
    writer.target = payload + nbytes
    return payload


cdef inline bint overlap(
    const void* data, uint64_t nbytes, const void* begin, const void* end
) noexcept nogil:
    """Whether `nbytes` bytes from `data` have any in common with those from `begin` to `end`."""
    return nbytes > 0 and begin < end and (
        <const char*>data < <const char*>end and <const char*>begin < <const char*>data + nbytes)


cdef changed()
cdef too_long(nbytes, element, tuple shape, name)
cdef place(element, tuple shape, name)
