from libc.stdint cimport int64_t
from numpy cimport ndarray, npy_intp

from ..capsules.arrow_abi cimport ArrowArray
from ..datatypes cimport Datatype
from ..wire cimport MAX_RANK


cdef enum ArrowLayout:
    NUMBERS
    OFFSETS_32
    OFFSETS_64
    VIEWS


cdef class Chunk:
    cdef ArrowArray array
    # The elements: `array` itself, or its child if it is an array of lists. The offset and the
    # length are those of the elements that belong to the lists. The struct does not own memory.
    cdef ArrowArray elements
    # The first and the last offset into the data buffer of BYTES. The bytes between are assumed to
    # exist. Set by `check_offsets` of arrow_bytes.
    cdef int64_t first
    cdef int64_t last


cdef class Received:
    cdef Datatype element_type
    cdef ArrowLayout layout  # of the elements
    # Elements may be nested in lists of fixed size. The sizes are in row-major order.
    cdef int n_lists
    cdef int64_t[MAX_RANK] list_sizes
    cdef list chunks
    cdef int64_t n_rows  # of all chunks
    # The nulls of the outermost array that has any.
    cdef int64_t n_nulls
    cdef int null_level  # number of lists around them
    cdef int64_t first_null  # index of the first one
    cdef tuple shape


cdef Received receive(values, bint only_bytes)
cdef ndarray numbers_of(Received received)
cdef invalid_arrow_error(what)

cdef void drop_reference(void* owned) noexcept nogil
cdef new_schema(bytes format, const npy_intp* dims, int rank)
cdef array_capsule(ArrowArray** array)
cdef export_schema(ndarray array, Datatype element_type, str name)
cdef export_array(ndarray array, Datatype element_type)
