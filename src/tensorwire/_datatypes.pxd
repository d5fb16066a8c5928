from numpy cimport dtype


cdef class Datatype:
    cdef readonly str name
    cdef readonly Py_ssize_t itemsize
    cdef readonly dtype dtype
    cdef readonly bint in_json
