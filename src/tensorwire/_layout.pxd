from libc.stdint cimport uint64_t
from numpy cimport npy_intp


cdef struct Layout:
    int rank
    npy_intp[64] dims
    uint64_t n_elements
    uint64_t nbytes  # n_elements * itemsize


cdef int measure(
    Layout* layout, tuple shape, uint64_t itemsize, limits, kind, name, datatype
) except -1
