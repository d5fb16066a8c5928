from libc.stdint cimport uint64_t
from numpy cimport npy_intp

from ._datatypes cimport Datatype
from ._limits cimport Limits
from ._wire cimport MAX_RANK


cdef struct Layout:
    int rank
    npy_intp[MAX_RANK] dims
    uint64_t n_elements
    uint64_t nbytes  # n_elements * itemsize


cdef int measure(
    Layout* layout, tuple shape, uint64_t itemsize, Limits limits, kind, name, Datatype datatype
) except -1


cdef tuple shape_to_send(tuple shape, Datatype datatype, name)
