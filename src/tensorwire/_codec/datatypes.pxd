from libc.stdint cimport (
    INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t)
from numpy cimport dtype, npy_intp

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


cdef class Limits:
    cdef readonly Py_ssize_t max_header_nbytes
    cdef readonly Py_ssize_t max_tensors
    cdef readonly Py_ssize_t max_rank
    cdef readonly Py_ssize_t max_name_nbytes
    cdef readonly Py_ssize_t max_nesting
    cdef readonly Py_ssize_t max_parameters
    cdef readonly Py_ssize_t max_elements
    cdef readonly bint check_bool
    cdef readonly bint bf16_as_uint16


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


cdef enum Way:
    # Errors are EncodeError, or LayoutError or HeaderError.
    ENCODING
    DECODING


# The limits of a message, while it is encoded or decoded.


cdef inline int check_rank(Py_ssize_t rank, Py_ssize_t max_rank, Way way) except -1:
    return raise_rank(rank, max_rank, way) if rank > max_rank else 0


cdef inline int check_name_nbytes(Py_ssize_t nbytes, Limits limits, Way way) except -1:
    return raise_name_nbytes(nbytes, limits, way) if nbytes > limits.max_name_nbytes else 0


cdef inline int add_elements(
    uint64_t* total, uint64_t n_elements, Limits limits, Way way
) except -1:
    """Add the elements of a tensor to those of the message so far, and check their number.

    Neither number exceeds 2^63 - 1, so the sum does not overflow. A larger sum is cut to that: it
    is the default of `max_elements`, which is no limit.
    """
    total[0] = min(total[0] + n_elements, <uint64_t>INT64_MAX)
    if total[0] > <uint64_t>limits.max_elements:
        raise_n_elements(total[0], limits, way)
    return 0


cdef inline int check_n_entries(
    Py_ssize_t n_before, str kind, Limits limits, Way way, Py_ssize_t offset
) except -1:
    """Check that there may be another tensor or output, which is at `offset` when decoding."""
    return raise_n_entries(kind, limits, way, offset) if n_before >= limits.max_tensors else 0


cdef int raise_rank(Py_ssize_t rank, Py_ssize_t max_rank, Way way) except -1
cdef int raise_name_nbytes(Py_ssize_t nbytes, Limits limits, Way way) except -1
cdef int raise_n_elements(uint64_t n_elements, Limits limits, Way way) except -1
cdef int raise_n_entries(str kind, Limits limits, Way way, Py_ssize_t offset) except -1
cdef tuple dims_as_tuple(const npy_intp* dims, int rank)
cdef int fill_layout(
    Layout* layout, tuple shape, Datatype datatype, Py_ssize_t max_rank, Way way) except -1
cdef tuple shape_to_send(tuple shape, Datatype datatype)
cdef Datatype datatype_named(const unsigned char* name, Py_ssize_t nbytes)
cdef str format_range(Datatype datatype)
cdef too_large_error(Way way, shape, Datatype datatype)
