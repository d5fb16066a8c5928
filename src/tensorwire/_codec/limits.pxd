from libc.stdint cimport INT64_MAX, uint64_t

cdef enum:
    # The largest `max_nesting`, and the limit for `parameters` of callers. 1000 is Python's default
    # recursion limit. So many levels take up to 400 KB of stack.
    MAX_NESTING = 1000


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


cdef enum Way:
    # Errors are EncodeError, or LayoutError or HeaderError.
    ENCODING
    DECODING


# The checks of a message, while it is encoded or decoded.


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
