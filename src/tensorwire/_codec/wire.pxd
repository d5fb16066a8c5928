"""Length prefixes and checked sizes. These functions use no Python objects."""

from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef enum:
    MAX_RANK = 64  # numpy's NPY_MAXDIMS
    PREFIX_NBYTES = 4  # size of the length prefix of a BYTES element
    WIDEST_ITEMSIZE = 16  # largest itemsize of a numpy array of BYTES, that of StringDType


cdef inline uint32_t load_le32(const unsigned char* source) noexcept nogil:
    # memcpy compiles to one load, and allows any address. The machine is little-endian: on others,
    # importing the package raises ImportError.
    cdef uint32_t value
    memcpy(&value, source, 4)
    return value


cdef inline void store_le32(unsigned char* target, uint32_t value) noexcept nogil:
    memcpy(target, &value, 4)


cdef inline bint multiply(uint64_t* product, uint64_t factor) noexcept nogil:
    """Multiply in place. Returns False, and does nothing, if the result would exceed 2^63 - 1."""
    if factor != 0 and product[0] > <uint64_t>INT64_MAX // factor:
        return False
    product[0] *= factor
    return True


cdef enum ScanFault:
    NO_SCAN_FAULT
    SHORT_PREFIX
    SHORT_ELEMENT


cdef struct Scan:
    # Progress and result of `scan_prefixes`.
    uint64_t position    # of the next element, from the start of the tensor
    uint64_t n_elements  # that are complete
    uint32_t declared    # value of the last length prefix
    ScanFault fault


cdef inline void scan_prefixes(
    Scan* scan, const unsigned char* data, uint64_t nbytes,
    int64_t* starts, uint64_t capacity, int64_t base,
) noexcept nogil:
    """Continue `scan` up to `capacity` elements, the end of `data`, or a fault.

    `starts[i]` becomes `base` plus the position of the prefix of element i, unless `starts` is
    NULL. Bounds: position <= nbytes always holds. Both comparisons subtract numbers that are known
    to be smaller, in unsigned 64 bit, so that nothing wraps. Each prefix is loaded once: if another
    thread writes to the memory, the result may be wrong, but stays within the tensor.
    """
    cdef uint64_t position = scan.position
    cdef uint64_t i = scan.n_elements
    cdef uint32_t length = 0
    scan.fault = NO_SCAN_FAULT
    while i < capacity and position < nbytes:
        if nbytes - position < PREFIX_NBYTES:
            scan.fault = SHORT_PREFIX
            break
        length = load_le32(data + position)
        if length > nbytes - position - PREFIX_NBYTES:
            scan.fault = SHORT_ELEMENT
            break
        if starts != NULL:
            starts[i] = base + <int64_t>position
        position += PREFIX_NBYTES + <uint64_t>length
        i += 1
    scan.position = position
    scan.n_elements = i
    scan.declared = length
