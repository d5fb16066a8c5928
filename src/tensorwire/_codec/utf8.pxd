"""Validate, measure and write UTF-8, without Python objects."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from .gil cimport count_or_release_gil, take_gil
from .wire cimport Element, Span, element_at, span_nbytes


cdef extern from "utf8.h":
    bint is_utf8(const unsigned char* text, Py_ssize_t nbytes) noexcept nogil
    unsigned char* write_character(unsigned char* target, uint32_t character) noexcept nogil
    int n_two_bytes(const unsigned char* text) noexcept nogil
    unsigned char* write_one(unsigned char* target, unsigned char character) noexcept nogil
    int write_up_to_eight(unsigned char** target, const unsigned char* text) noexcept nogil

cdef enum:
    NOT_ENCODABLE = -1
    N_SUMMED = 64  # characters, so that no sum of `utf8_nbytes` overflows

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


cdef inline bint is_valid_utf8(const unsigned char* text, Py_ssize_t nbytes) noexcept nogil:
    return is_ascii(text, nbytes) or is_utf8(text, nbytes)


cdef inline bint are_all_utf8(const Span* span) noexcept nogil:
    cdef Py_ssize_t i
    cdef Element element
    for i in range(span.n):
        element = element_at(span, i)
        if not is_valid_utf8(element.data, element.nbytes):
            return False
    return True


cdef inline bint are_valid_utf8(const Span* span) noexcept:
    """Do the same for all elements. Other threads may run meanwhile."""
    cdef bint are_valid
    released = count_or_release_gil(span_nbytes(span))
    are_valid = are_all_utf8(span)
    take_gil(released)
    return are_valid


cdef inline Py_ssize_t whole_characters(const unsigned char* text, Py_ssize_t n) noexcept nogil:
    """Return `n`, or up to 3 less so that a text of more bytes is not cut in a valid character.

    `n` is at least 3. The first byte of a character is followed by at most 3 that continue it.
    """
    cdef Py_ssize_t cut = n
    while cut > n - 3 and text[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


cdef inline Py_ssize_t utf8_nbytes(const CodeUnit* text, Py_ssize_t n_characters) noexcept nogil:
    """Return the size of `text` as UTF-8, or NOT_ENCODABLE if a character has no UTF-8 form.

    No overflow: `n_more` is at most 3 for each of N_SUMMED characters. All variables of the inner
    loop have the width of a character, so that compilers can generate vector code.
    """
    cdef Py_ssize_t nbytes = n_characters, i = 0, stop
    cdef CodeUnit c, n_more, invalid = 0
    if CodeUnit is uint8_t:
        while n_characters - i >= 8:
            nbytes += n_two_bytes(text + i)
            i += 8
    while i < n_characters:
        stop = min(n_characters, i + N_SUMMED)
        n_more = 0
        while i < stop:
            c = text[i]
            n_more += c >= 0x80
            if CodeUnit is not uint8_t:
                n_more += c >= 0x800
                invalid |= (c & <CodeUnit>0xFFFFF800) == 0xD800  # surrogates
            if CodeUnit is uint32_t:
                n_more += c >= 0x10000
                invalid |= c > 0x10FFFF
            i += 1
        nbytes += n_more
    return NOT_ENCODABLE if invalid else nbytes


cdef inline unsigned char* write_utf8(
    unsigned char* target, const unsigned char* end, const CodeUnit* text, Py_ssize_t n_characters
) noexcept nogil:
    """Write `text` as UTF-8. Return the end of what was written, or NULL if `end` is before it.

    Bounds: while there is room for what the functions write, they write to the target, and then to
    other memory, from which the bytes of a character are copied if there is room for them.
    """
    cdef Py_ssize_t i = 0, nbytes
    cdef unsigned char[4] last
    if CodeUnit is uint8_t:
        while n_characters - i >= 8 and end - target >= 9:
            i += write_up_to_eight(&target, text + i)
        while i < n_characters and end - target >= 2:
            target = write_one(target, text[i])
            i += 1
    else:
        while i < n_characters and end - target >= 4:
            target = write_character(target, text[i])
            i += 1
    while i < n_characters:
        nbytes = write_character(last, text[i]) - last
        if end - target < nbytes:
            return NULL
        memcpy(target, last, nbytes)
        target += nbytes
        i += 1
    return target
