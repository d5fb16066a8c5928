from cpython.buffer cimport Py_buffer


cdef class Body:
    cdef Py_buffer buffer
    cdef const unsigned char* data
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint readonly

    cdef int check_extent(self, Py_ssize_t offset, Py_ssize_t nbytes, kind, name) except -1
