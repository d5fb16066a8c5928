from libc.stdint cimport uint32_t, uint64_t

from ..exchange.arrow cimport Received
from ..wire cimport PREFIX_NBYTES, store_le32


cdef class Source:
    cdef object values
    cdef readonly tuple shape

    cdef uint64_t walk(self, Writer* writer) except? 0
    cdef bint may_overlap(self, const void* begin, const void* end) except -1


cdef Source source_of_received(Received received)
cdef tuple immutable_values(Source source, Py_ssize_t* nbytes)


cdef struct Writer:
    unsigned char* target
    unsigned char* end


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
