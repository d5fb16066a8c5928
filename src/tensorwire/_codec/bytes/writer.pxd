from libc.stdint cimport uint64_t

from ..exchange.arrow cimport Received


cdef class Source:
    cdef object values
    cdef readonly tuple shape

    cdef uint64_t walk(self, Writer* writer) except? 0
    cdef bint may_overlap(self, const void* begin, const void* end) except -1


cdef Source source_of(str kind, values, tuple shape)
cdef Source source_of_received(Received received)
cdef bytes pack(Source source)
cdef uint64_t pack_into(Source source, buffer) except? 0
cdef tuple immutable_values(Source source, Py_ssize_t* nbytes)


cdef struct Writer:
    unsigned char* target
    unsigned char* end
