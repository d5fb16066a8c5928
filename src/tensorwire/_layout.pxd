"""Dimensions become an element count and a byte count, checked."""

from libc.stdint cimport uint64_t
from numpy cimport npy_intp

from ._datatypes cimport Datatype
from ._limits cimport Limits
from ._wire cimport MAX_RANK, multiply


cdef struct Layout:
    int rank
    npy_intp[MAX_RANK] dims
    uint64_t n_elements
    uint64_t nbytes  # n_elements * itemsize


cdef inline bint count_elements(Layout* layout, uint64_t itemsize) noexcept nogil:
    """Fill the counts from `rank` and `dims`, none of which is negative.

    False when the product of the dimensions that are not zero and of `itemsize` passes 2^63 - 1:
    numpy computes that product even for an empty array.
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


cdef int measure(
    Layout* layout, tuple shape, uint64_t itemsize, Limits limits, kind, name, Datatype datatype
) except -1


cdef tuple shape_to_send(tuple shape, Datatype datatype, name)
