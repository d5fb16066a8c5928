"""The C kernels under libFuzzer, compared with simpler implementations. No interpreter runs.

The first byte chooses the kernel. The input is at the end of its memory block, and output is
written to a block of its exact size, so that AddressSanitizer detects accesses out of bounds.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport abort, free, malloc
from libc.string cimport memcmp, memcpy

from tensorwire._codec.utf8 cimport (
    NOT_ENCODABLE,
    CodeUnit,
    is_ascii,
    is_valid_utf8,
    utf8_nbytes,
    write_utf8,
)
from tensorwire._codec.wire cimport Scan, multiply, scan_prefixes, store_le32

cdef extern from *:
    """
    typedef unsigned __int128 uint128;
    """
    ctypedef unsigned long long uint128


cdef public int LLVMFuzzerTestOneInput(const uint8_t* data, size_t nbytes) noexcept nogil:
    if nbytes == 0:
        return 0
    cdef uint8_t kernel = data[0] % 6
    cdef uint8_t* rest = <uint8_t*>malloc(nbytes - 1)  # aligned, like the text of a str
    memcpy(rest, data + 1, nbytes - 1)
    if kernel == 0:
        scans(rest, nbytes - 1)
    elif kernel == 1:
        validates(rest, nbytes - 1)
    elif kernel == 2:
        encodes[uint8_t](<const uint8_t*>rest, <Py_ssize_t>nbytes - 1)
    elif kernel == 3:
        encodes[uint16_t](<const uint16_t*>rest, (<Py_ssize_t>nbytes - 1) // 2)
    elif kernel == 4:
        encodes[uint32_t](<const uint32_t*>rest, (<Py_ssize_t>nbytes - 1) // 4)
    else:
        multiplies(rest, nbytes - 1)
    free(rest)
    return 0


cdef void check(bint condition) noexcept nogil:
    if not condition:
        abort()


cdef void scans(const uint8_t* data, uint64_t nbytes) noexcept nogil:
    """Check that the same elements are found as by a reader of single bytes."""
    cdef uint64_t capacity, n = 0, position = 0, length
    cdef bint is_truncated = False
    cdef Scan scan
    cdef int64_t* starts
    if nbytes < 1:
        return
    capacity, data, nbytes = data[0], data + 1, nbytes - 1
    starts = <int64_t*>malloc(capacity * sizeof(int64_t))
    scan = scan_prefixes(data, nbytes, starts, capacity, 1000)
    while n < capacity and position < nbytes:
        if position + 4 > nbytes:
            is_truncated = True
            break
        length = data[position] + 256 * (data[position + 1] + 256 * (
            data[position + 2] + 256 * <uint64_t>data[position + 3]))
        if position + 4 + length > nbytes:
            is_truncated = True
            check(scan.declared == length)
            break
        check(starts[n] == 1000 + <int64_t>position)
        position += 4 + length
        n += 1
    check(scan.is_truncated == is_truncated and scan.n_elements == n)
    check(scan.position == position)
    scan = scan_prefixes(data, nbytes, NULL, capacity, 0)
    check(scan.is_truncated == is_truncated and scan.n_elements == n)
    check(scan.position == position)
    free(starts)


cdef Py_ssize_t decoded(const uint8_t* text, Py_ssize_t nbytes, uint32_t* point) noexcept nogil:
    """Return the number of bytes of the code point at `text`, or 0 if it is not valid UTF-8."""
    cdef Py_ssize_t n, i
    cdef uint32_t least
    if text[0] < 0x80:
        point[0] = text[0]
        return 1
    if text[0] & 0xE0 == 0xC0:
        n, least, point[0] = 2, 0x80, text[0] & 0x1F
    elif text[0] & 0xF0 == 0xE0:
        n, least, point[0] = 3, 0x800, text[0] & 0x0F
    elif text[0] & 0xF8 == 0xF0:
        n, least, point[0] = 4, 0x10000, text[0] & 0x07
    else:
        return 0
    if n > nbytes:
        return 0
    for i in range(1, n):
        if text[i] & 0xC0 != 0x80:
            return 0
        point[0] = point[0] << 6 | (text[i] & 0x3F)
    if point[0] < least or point[0] > 0x10FFFF or 0xD800 <= point[0] <= 0xDFFF:
        return 0
    return n


cdef void validates(const uint8_t* text, Py_ssize_t nbytes) noexcept nogil:
    """Check the tests for UTF-8 and for ASCII; write the code points back."""
    cdef uint32_t* points = <uint32_t*>malloc(nbytes * sizeof(uint32_t))
    cdef uint8_t* written
    cdef Py_ssize_t position = 0, n_points = 0, n, i
    cdef bint ascii = True
    for i in range(nbytes):
        ascii = ascii and text[i] < 0x80
    check(is_ascii(text, nbytes) == ascii)
    while position < nbytes:
        n = decoded(text + position, nbytes - position, points + n_points)
        if n == 0:
            break
        position += n
        n_points += 1
    check(is_valid_utf8(text, nbytes) == (position == nbytes))
    check(utf8_nbytes(<const uint32_t*>points, n_points) == position)
    written = <uint8_t*>malloc(position)
    check(write_utf8(written, written + position, <const uint32_t*>points, n_points)
          == written + position)
    check(memcmp(written, text, position) == 0)
    free(written)
    free(points)


cdef void encodes(const CodeUnit* text, Py_ssize_t n_characters) noexcept nogil:
    """Check that the text is written as UTF-8 of the measured size, never beyond the memory."""
    cdef Py_ssize_t nbytes = utf8_nbytes(text, n_characters)
    cdef Py_ssize_t position = 0, n = 0, i
    cdef uint8_t* written
    cdef uint32_t point
    for i in range(n_characters):
        if 0xD800 <= <uint32_t>text[i] <= 0xDFFF or <uint32_t>text[i] > 0x10FFFF:
            check(nbytes == NOT_ENCODABLE)
            nbytes = n_characters  # as if the text had changed since it was measured
            written = <uint8_t*>malloc(nbytes)
            write_utf8(written, written + nbytes, text, n_characters)
            free(written)
            return
    written = <uint8_t*>malloc(nbytes)
    check(write_utf8(written, written + nbytes, text, n_characters) == written + nbytes)
    check(is_valid_utf8(written, nbytes))
    for i in range(n_characters):
        n = decoded(written + position, nbytes - position, &point)
        check(n > 0 and point == text[i])
        position += n
    check(position == nbytes)
    free(written)
    written = <uint8_t*>malloc(nbytes // 2)
    if nbytes > 0:
        check(write_utf8(written, written + nbytes // 2, text, n_characters) == NULL)
    free(written)


cdef void multiplies(const uint8_t* data, uint64_t nbytes) noexcept nogil:
    """Check that the product equals that of 128 bits, or is unchanged if it overflows."""
    cdef uint64_t product = 1, before, factor
    cdef uint128 wide
    while nbytes >= 8:
        memcpy(&factor, data, 8)
        factor >>= data[0] & 63  # numbers of every size
        before, wide = product, product
        wide *= factor
        if multiply(&product, factor):
            check(wide <= <uint128>INT64_MAX and product == <uint64_t>wide)
        else:
            check(wide > <uint128>INT64_MAX and product == before)
        data, nbytes = data + 8, nbytes - 8
    cdef uint8_t prefix[4]
    store_le32(prefix, <uint32_t>product)
    check(prefix[0] == (product & 255) and prefix[3] == (product >> 24 & 255))
