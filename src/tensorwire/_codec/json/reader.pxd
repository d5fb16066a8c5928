"""Read JSON values at a cursor; see reader.pyx."""

from libc.stdint cimport uint64_t
from numpy cimport dtype

from ..json.scanner cimport (
    NO_FAULT, Fault, Keys, ReadCursor, Text, next_is, open_level, scan_short_int64,
    scan_short_string, take, unexpected)

cdef enum:
    MAX_INTEGER_DIGITS = 4300  # Python's default; converting text to int takes quadratic time
    MAX_DATA_DEPTH = 100  # nested lists in `data`; a tensor has at most 64 dimensions


cdef void begin_reading(
    ReadCursor* cursor, Keys* keys, const char* text, Py_ssize_t nbytes, int max_level,
    Py_ssize_t max_values) noexcept
cdef void end_reading(Keys* keys) noexcept
cdef int raise_fault(ReadCursor* cursor, Fault fault) except -1
cdef str excerpt(ReadCursor* cursor)
cdef int scan_or_raise(ReadCursor* cursor, Text* text) except -1
cdef Fault read_any_int64(ReadCursor* cursor, long long* value) noexcept
cdef str text_to_str(const Text* text)
cdef int count_value(ReadCursor* cursor) except -1
cdef object read_value(ReadCursor* cursor)
cdef dict read_object(ReadCursor* cursor)
cdef int set_member(ReadCursor* cursor, dict members, const Text* key, value) except -1
cdef int skip_data(ReadCursor* cursor) except -1
cdef Fault read_numbers(
    ReadCursor* cursor, dtype dtype, char* target, uint64_t n_expected, uint64_t* n_read)
cdef bytes read_strings(ReadCursor* cursor, uint64_t n_expected, uint64_t* n_read, Fault* fault)


# These functions are called many times for each tensor. Their usual case is inline. They call
# functions of reader.pyx for the rest.


cdef inline int scan_string_or_raise(ReadCursor* cursor, Text* text) except -1:
    """Set `text` to the string at the cursor. Raises HeaderError if it is not a valid string."""
    return 0 if scan_short_string(cursor, text) else scan_or_raise(cursor, text)


cdef inline int skip_value_or_raise(ReadCursor* cursor) except -1:
    return scan_or_raise(cursor, NULL)


cdef inline bint skip_null(ReadCursor* cursor) except -1:
    """Skip null, which means the same as a missing member. Return False for other values."""
    if not next_is(cursor, c"n"):
        return False
    skip_value_or_raise(cursor)
    return True


cdef inline Fault read_int64(ReadCursor* cursor, long long* value) noexcept:
    """Read an integer. Return WRONG_TYPE for any other value, OUT_OF_RANGE for 2^63 and above.

    OUT_OF_RANGE applies to the magnitude, so -2^63 is out of range too. The cursor advances past an
    integer, even if that is out of range. For WRONG_TYPE, it is at the beginning of the value.
    """
    return NO_FAULT if scan_short_int64(cursor, value) else read_any_int64(cursor, value)


cdef inline int open_level_or_raise(ReadCursor* cursor) except -1:
    """Advance past the opening bracket at the cursor. Raises HeaderError at the limit."""
    cdef Fault fault = open_level(cursor)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef inline bint next_item(ReadCursor* cursor, bint is_first) except -1:
    """Advance to the next item of a list. At its end, skip the bracket and return False."""
    if not is_first and take(cursor, c","):
        return True
    if take(cursor, c"]"):
        cursor.level -= 1
        return False
    if not is_first:
        raise_fault(cursor, unexpected(cursor, "',' or ']'"))
    return True


cdef inline bint next_member(ReadCursor* cursor, Text* key, bint is_first) except -1:
    """Store the key of the next member, and advance to its value. At the end, return False."""
    if is_first or not take(cursor, c","):
        if take(cursor, c"}"):
            cursor.level -= 1
            return False
        if not is_first:
            raise_fault(cursor, unexpected(cursor, "',' or '}'"))
    scan_string_or_raise(cursor, key)
    if not take(cursor, c":"):
        raise_fault(cursor, unexpected(cursor, "':'"))
    return True
