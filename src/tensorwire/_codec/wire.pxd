"""The wire format of BYTES: length prefixes, and the elements between them. Checked products.

No Python objects.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef enum:
    MAX_RANK = 64  # numpy's NPY_MAXDIMS
    PREFIX_NBYTES = 4  # the size of the length prefix of a BYTES element
    WIDEST_ITEMSIZE = 16  # the largest itemsize of a numpy array of BYTES: that of StringDType


cdef inline uint32_t load_le32(const unsigned char* source) noexcept nogil:
    """Return a little-endian integer from any address."""
    # memcpy compiles to one load, and allows any alignment. The machine is little-endian: on other
    # machines, importing the package raises ImportError.
    cdef uint32_t value
    memcpy(&value, source, 4)
    return value


cdef inline void store_le32(unsigned char* target, uint32_t value) noexcept nogil:
    """Store a little-endian integer at any address."""
    memcpy(target, &value, 4)


cdef inline void store_low_bytes(
    void* target, uint64_t value, Py_ssize_t itemsize
) noexcept nogil:
    """Store the low bytes of an integer as an element of 1, 2, 4 or 8 bytes at any address."""
    if itemsize == 8:  # sizes that the compiler knows
        memcpy(target, &value, 8)
    elif itemsize == 4:
        memcpy(target, &value, 4)
    elif itemsize == 2:
        memcpy(target, &value, 2)
    else:
        (<unsigned char*>target)[0] = <unsigned char>value


cdef inline bint multiply(uint64_t* product, uint64_t factor) noexcept nogil:
    """Multiply `product` by `factor`. Return False if the result would exceed 2^63 - 1.

    In that case, `product` does not change.
    """
    if factor != 0 and product[0] > <uint64_t>INT64_MAX // factor:
        return False
    product[0] *= factor
    return True


cdef struct Scan:
    # The result of `scan_prefixes`.
    uint64_t position  # where the last complete element ends
    uint64_t n_elements  # number of complete elements
    uint32_t declared  # value of the last length prefix that was read
    bint is_truncated  # the next element is not complete


cdef inline Scan scan_prefixes(
    const unsigned char* data, uint64_t nbytes, int64_t* starts, uint64_t capacity, int64_t base
) noexcept nogil:
    """Scan until there are `capacity` elements, or no complete one follows in `data`.

    Unless `starts` is NULL, `starts[i]` is set to `base` plus the position of the prefix of element
    i. Bounds: position <= nbytes always holds. In both comparisons, each number that is subtracted
    is known not to exceed the number before it, so that the unsigned differences do not wrap. Each
    prefix is loaded once: if another thread writes to the memory, the positions may be wrong, but
    they are within the tensor.
    """
    cdef Scan scan
    cdef uint64_t position = 0, i = 0
    cdef uint32_t length = 0
    scan.is_truncated = False
    while i < capacity and position < nbytes:
        if nbytes - position < PREFIX_NBYTES:
            scan.is_truncated = True
            break
        length = load_le32(data + position)
        if length > nbytes - position - PREFIX_NBYTES:
            scan.is_truncated = True
            break
        if starts != NULL:
            starts[i] = base + <int64_t>position
        position += PREFIX_NBYTES + <uint64_t>length
        i += 1
    scan.position = position
    scan.n_elements = i
    scan.declared = length
    return scan


cdef struct Element:
    # The memory of one element, without a prefix.
    const unsigned char* data
    Py_ssize_t nbytes


cdef struct Span:
    # Scanned elements, which follow one another.
    const unsigned char* data  # the body
    const int64_t* starts  # the offset of the prefix of each element in the body
    Py_ssize_t n
    Py_ssize_t end  # offset where the last element ends


cdef inline Element element_at(const Span* span, Py_ssize_t i) noexcept nogil:
    cdef Element element
    cdef Py_ssize_t begin = <Py_ssize_t>span.starts[i] + PREFIX_NBYTES
    cdef Py_ssize_t stop = <Py_ssize_t>span.starts[i + 1] if i + 1 < span.n else span.end
    element.data = span.data + begin
    element.nbytes = stop - begin
    return element


cdef inline Py_ssize_t begin_of(const Span* span) noexcept nogil:
    """Return the offset of the first prefix in the body, or the end if there are no elements."""
    return <Py_ssize_t>span.starts[0] if span.n > 0 else span.end


cdef inline Py_ssize_t span_nbytes(const Span* span) noexcept nogil:
    """Return the size of all elements with their prefixes."""
    return span.end - begin_of(span)
