"""Validate, measure and write UTF-8, without Python objects."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    NOT_ENCODABLE = -1
    ALL_VALID = -1

ctypedef fused CodeUnit:
    uint8_t
    uint16_t
    uint32_t


cdef inline bint is_ascii(const unsigned char* text, Py_ssize_t nbytes) noexcept nogil:
    """Return whether all bytes are ASCII. The last word may overlap the one before it."""
    cdef uint64_t bits = 0
    cdef uint64_t word
    cdef uint32_t half
    cdef Py_ssize_t i = 0
    if nbytes >= 8:
        while i <= nbytes - 8:
            memcpy(&word, text + i, 8)
            bits |= word
            i += 8
        memcpy(&word, text + nbytes - 8, 8)
        return (bits | word) & <uint64_t>0x8080808080808080 == 0
    if nbytes >= 4:
        memcpy(&half, text, 4)
        bits = half
        memcpy(&half, text + nbytes - 4, 4)
        return (bits | half) & <uint64_t>0x80808080 == 0
    for i in range(nbytes):
        bits |= text[i]
    return bits & 0x80 == 0


cdef inline int sequence_nbytes(const unsigned char* text, Py_ssize_t nbytes) noexcept nogil:
    """Return the length of the sequence that `text` begins with (RFC 3629), or 0 if it is invalid.

    `nbytes`, at least 1, are left in `text`. The second byte has a narrower range after E0 (no
    overlong forms), ED (no surrogates), F0 (no overlong forms) and F4 (nothing past U+10FFFF).
    """
    cdef unsigned char first = text[0], low = 0x80, high = 0xBF
    cdef int n, i
    if first < 0x80:
        return 1
    if 0xC2 <= first <= 0xDF:
        n = 2
    elif 0xE0 <= first <= 0xEF:
        n = 3
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    elif 0xF0 <= first <= 0xF4:
        n = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        return 0
    if nbytes < n or not low <= text[1] <= high:
        return 0
    for i in range(2, n):
        if text[i] & 0xC0 != 0x80:
            return 0
    return n


cdef inline Py_ssize_t first_invalid(const unsigned char* text, Py_ssize_t nbytes) noexcept nogil:
    """Return the index where the first invalid sequence of `text` starts, or ALL_VALID."""
    cdef Py_ssize_t i = 0
    cdef uint64_t eight
    cdef int n
    if is_ascii(text, nbytes):  # the usual case
        return ALL_VALID
    while i < nbytes:
        if nbytes - i >= 8:
            memcpy(&eight, text + i, 8)
            if eight & <uint64_t>0x8080808080808080 == 0:
                i += 8
                continue
        n = sequence_nbytes(text + i, nbytes - i)
        if n == 0:
            return i
        i += n
    return ALL_VALID


cdef inline Py_ssize_t utf8_nbytes(const CodeUnit* text, Py_ssize_t n_characters) noexcept nogil:
    """Return the size of `text` as UTF-8, or NOT_ENCODABLE if a character has no UTF-8 form."""
    cdef Py_ssize_t nbytes = n_characters
    cdef Py_ssize_t i
    cdef CodeUnit c
    for i in range(n_characters):
        c = text[i]
        nbytes += c >= 0x80
        if CodeUnit is not uint8_t:
            if 0xD800 <= c <= 0xDFFF:
                return NOT_ENCODABLE
            nbytes += c >= 0x800
        if CodeUnit is uint32_t:
            if c > 0x10FFFF:
                return NOT_ENCODABLE
            nbytes += c >= 0x10000
    return nbytes


cdef inline void write_utf8(
    unsigned char* target, Py_ssize_t nbytes, const CodeUnit* text, Py_ssize_t n_characters
) noexcept nogil:
    """Write `text` as UTF-8; `nbytes` is the result of `utf8_nbytes`.

    At most `nbytes` bytes are written, even if another thread has changed `text` since then.
    """
    cdef unsigned char* end = target + nbytes
    cdef Py_ssize_t i
    cdef uint32_t c
    for i in range(n_characters):
        c = text[i]
        if end - target < 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000):
            return
        if c < 0x80:
            target[0] = <unsigned char>c
            target += 1
        elif c < 0x800:
            target[0] = <unsigned char>(0xC0 | c >> 6)
            target[1] = <unsigned char>(0x80 | c & 0x3F)
            target += 2
        elif c < 0x10000:
            target[0] = <unsigned char>(0xE0 | c >> 12)
            target[1] = <unsigned char>(0x80 | c >> 6 & 0x3F)
            target[2] = <unsigned char>(0x80 | c & 0x3F)
            target += 3
        else:
            target[0] = <unsigned char>(0xF0 | c >> 18)
            target[1] = <unsigned char>(0x80 | c >> 12 & 0x3F)
            target[2] = <unsigned char>(0x80 | c >> 6 & 0x3F)
            target[3] = <unsigned char>(0x80 | c & 0x3F)
            target += 4
