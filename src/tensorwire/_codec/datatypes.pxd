from libc.stdint cimport uint64_t
from numpy cimport dtype, npy_intp

from .wire cimport MAX_RANK, multiply


cdef class Datatype:
    cdef readonly str name
    cdef readonly Py_ssize_t itemsize
    cdef readonly dtype dtype
    cdef readonly bint in_json


cdef class Limits:
    cdef readonly Py_ssize_t max_header_nbytes
    cdef readonly Py_ssize_t max_tensors
    cdef readonly Py_ssize_t max_rank
    cdef readonly Py_ssize_t max_name_nbytes
    cdef readonly Py_ssize_t max_nesting
    cdef readonly Py_ssize_t max_elements
    cdef readonly bint check_bool
    cdef readonly bint bf16_as_uint16


cdef struct Layout:
    # The dimensions of a tensor, and the counts that follow from them.
    int rank
    npy_intp[MAX_RANK] dims
    uint64_t n_elements
    uint64_t nbytes  # n_elements * itemsize


cdef inline bint count_elements(Layout* layout, uint64_t itemsize) noexcept nogil:
    """Compute the counts from `rank` and `dims`, none of which is negative.

    Returns False if the product of `itemsize` and of all dimensions other than 0 exceeds
    2^63 - 1. Empty arrays are included, because numpy computes that product for them, too.
    """
    cdef uint64_t span = itemsize
    cdef bint is_empty = False
    cdef int axis
    for axis in range(layout.rank):
        if layout.dims[axis] == 0:
            is_empty = True
        elif not multiply(&span, <uint64_t>layout.dims[axis]):
            return False
    layout.nbytes = 0 if is_empty else span
    layout.n_elements = 0 if is_empty else span // itemsize
    return True


cdef int measure(Layout* layout, tuple shape, Datatype datatype, Py_ssize_t max_rank) except -1
cdef tuple shape_to_send(tuple shape, Datatype datatype)
