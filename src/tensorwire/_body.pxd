from cpython.buffer cimport Py_buffer

from numpy cimport dtype, ndarray

from ._datatypes cimport Datatype
from ._limits cimport Limits


cdef class Body:
    cdef Py_buffer buffer
    cdef const unsigned char* data
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint readonly

    cdef int check_extent(self, Py_ssize_t offset, Py_ssize_t nbytes, kind, name) except -1
    cdef array(
        self, dtype dtype, tuple shape, Py_ssize_t offset, Py_ssize_t nbytes,
        Limits limits, kind, name, Datatype datatype)


cdef payload(ndarray array, dtype dtype, tuple shape, name)
