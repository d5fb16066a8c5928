from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from numpy cimport dtype, npy_intp

from .limits cimport Way
from .wire cimport MAX_RANK, multiply

# The elements of numeric datatypes in C.

ctypedef fused Integer:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t

ctypedef fused Float:
    float
    double


cdef class Datatype:
    cdef readonly str name
    cdef readonly Py_ssize_t itemsize
    cdef readonly dtype dtype
    cdef readonly bint in_json
    cdef bytes before_shape  # of an entry of JSON: the datatype, and the key of the shape


cdef struct Layout:
    # The dimensions of a tensor, and its number of elements and bytes.
    int rank
    npy_intp[MAX_RANK] dims
    uint64_t n_elements
    uint64_t nbytes  # n_elements * itemsize


cdef inline bint set_counts(Layout* layout, uint64_t itemsize) noexcept nogil:
    """Set `n_elements` and `nbytes` from `rank` and `dims`.

    Returns False if the product of `itemsize` and of all dimensions other than 0 exceeds 2^63 - 1.
    That is so if a dimension is negative, because it is at least 2^63 as an unsigned integer.
    This also applies to empty arrays, because numpy computes the same product for them.
    """
    cdef uint64_t product = itemsize
    cdef bint is_empty = False
    cdef int axis
    for axis in range(layout.rank):
        if layout.dims[axis] == 0:
            is_empty = True
        elif not multiply(&product, <uint64_t>layout.dims[axis]):
            return False
    layout.nbytes = 0 if is_empty else product
    layout.n_elements = 0 if is_empty else product // itemsize
    return True


cdef tuple dims_as_tuple(const npy_intp* dims, int rank)
cdef int fill_layout(
    Layout* layout, tuple shape, Datatype datatype, Py_ssize_t max_rank, Way way) except -1
cdef tuple shape_to_send(tuple shape, Datatype datatype)
cdef Datatype datatype_named(const unsigned char* name, Py_ssize_t nbytes)
cdef str format_range(Datatype datatype)
cdef too_large_error(Way way, shape, Datatype datatype)
