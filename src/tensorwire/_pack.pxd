from libc.stdint cimport uint64_t


cdef class Source:
    cdef object values
    cdef tuple shape
    cdef object name

    cdef uint64_t measure(self) except? 0
    cdef int fill(self, Writer* writer) except -1


cdef struct Writer:
    unsigned char* target
    unsigned char* end


cdef unsigned char* begin_element(Writer* writer, uint64_t nbytes) except NULL
cdef too_long(nbytes, element, tuple shape, name)
cdef place(element, tuple shape, name)
