"""C primitives under everything else: loads and checked products. No Python object is touched."""

from libc.stdint cimport INT64_MAX, uint32_t, uint64_t
from libc.string cimport memcpy


cdef enum:
    MAX_RANK = 64  # numpy's NPY_MAXDIMS
    PREFIX_NBYTES = 4  # of a BYTES element: its length
    WIDEST_ITEMSIZE = 16  # that numpy would need for a BYTES element: one of StringDType


cdef inline uint32_t load_le32(const unsigned char* source) noexcept nogil:
    # memcpy, because a prefix may lie at any address; it compiles to one load.
    # The package refuses to be imported on big-endian machines.
    cdef uint32_t value
    memcpy(&value, source, 4)
    return value


cdef inline void store_le32(unsigned char* target, uint32_t value) noexcept nogil:
    memcpy(target, &value, 4)


cdef inline bint multiply(uint64_t* product, uint64_t factor) noexcept nogil:
    """Multiply in place; False, and nothing done, when the result would pass 2^63 - 1."""
    if factor != 0 and product[0] > <uint64_t>INT64_MAX // factor:
        return False
    product[0] *= factor
    return True
