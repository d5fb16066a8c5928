"""A cursor over JSON text, and the functions that read at the cursor; see json_reader.pyx."""

from libc.stdint cimport uint64_t
from libc.string cimport memcmp
from numpy cimport dtype


cdef extern from *:
    """
    /* 1 for ASCII bytes that a string may contain unescaped: not control characters, quotes and
       backslashes. */
    static const unsigned char PLAIN[256] = {
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    """
    const unsigned char* PLAIN

cdef enum:
    SHORT_STRING = 24  # bytes; longer strings are scanned 8 bytes at a time
    MAX_INTEGER_DIGITS = 4300  # Python's default; converting text to int takes quadratic time
    MAX_DATA_DEPTH = 100  # nested lists in `data`; a tensor has at most 64 dimensions

cdef enum Fault:
    NO_FAULT
    # The text is not JSON. The cursor is at the offending byte. For TEXT_ENDED and UNEXPECTED, the
    # cursor's `expected` describes what would be valid there.
    TEXT_ENDED
    UNEXPECTED
    CONTROL_CHARACTER
    BAD_ESCAPE
    LONE_SURROGATE
    NOT_UTF8
    # The text may be JSON, but breaks another rule. The cursor is at the beginning of the value, or
    # of the key, unless the docstring of a function states otherwise.
    TOO_DEEP
    TOO_MANY_VALUES
    DATA_TOO_DEEP
    DUPLICATE_KEY
    WRONG_TYPE
    OUT_OF_RANGE
    TOO_MANY_DIGITS
    NO_MEMORY


cdef struct Keys:
    # A stack of pointers to the keys of the objects that are being skipped. The keys of the
    # innermost object are on top. The stack is not a part of the cursor, because cursors are
    # copied, and the memory of the stack may be reallocated.
    const unsigned char** begins
    Py_ssize_t n_keys
    Py_ssize_t capacity


cdef struct ReadCursor:
    const unsigned char* start
    const unsigned char* position  # always start <= position <= end
    const unsigned char* end
    int level  # number of open lists and objects
    int max_level
    Py_ssize_t max_values  # of lists and objects that become Python objects
    Py_ssize_t n_values_left
    Py_ssize_t work  # done since the GIL was last released; see `count_work`
    const char* expected  # what would be valid, for an error message; see `Fault`
    Keys* keys


cdef struct Text:
    # The text between the quotes of a validated string.
    const unsigned char* begin
    Py_ssize_t nbytes
    bint is_ascii
    bint has_escapes


cdef inline void skip_blanks(ReadCursor* cursor) noexcept nogil:
    """Advance past white space."""
    cdef const unsigned char* position = cursor.position
    while position < cursor.end and position[0] <= 0x20 and (
        position[0] == c" " or position[0] == c"\n" or position[0] == c"\r"
        or position[0] == c"\t"
    ):
        position += 1
    cursor.position = position


cdef inline bint next_is(ReadCursor* cursor, unsigned char byte) noexcept nogil:
    """Skip white space. Return whether the next byte is `byte`."""
    skip_blanks(cursor)
    return cursor.position < cursor.end and cursor.position[0] == byte


cdef inline bint take(ReadCursor* cursor, unsigned char byte) noexcept nogil:
    """Skip white space, and then `byte` if it is next. Return whether `byte` was skipped."""
    if not next_is(cursor, byte):
        return False
    cursor.position += 1
    return True


cdef inline Fault scan_string(ReadCursor* cursor, Text* text) noexcept nogil:
    """Validate the string at the cursor, and advance past its closing quote.

    Later reads of `text` need no checks: it is valid UTF-8, and its escapes are valid. Short ASCII
    strings without escapes, such as most keys, are handled here. All other strings are scanned
    again from their beginning by `scan_any_string`.
    """
    cdef const unsigned char* position
    cdef const unsigned char* last
    if next_is(cursor, c'"'):
        position = cursor.position + 1
        last = cursor.end if cursor.end - position < SHORT_STRING else position + SHORT_STRING
        text.begin = position
        while position < last and PLAIN[position[0]]:
            position += 1
        if position < last and position[0] == c'"':
            text.nbytes = position - text.begin
            text.is_ascii, text.has_escapes = True, False
            cursor.position = position + 1
            return NO_FAULT
    return scan_any_string(cursor, text)


cdef inline Fault unexpected(ReadCursor* cursor, const char* expected) noexcept nogil:
    """Store what was expected at the cursor, and return TEXT_ENDED or UNEXPECTED."""
    cursor.expected = expected
    return TEXT_ENDED if cursor.position == cursor.end else UNEXPECTED


cdef inline bint equals(const Text* text, const char* word, Py_ssize_t nbytes) noexcept nogil:
    """Return whether a validated string, its escapes resolved, equals `nbytes` bytes of ASCII."""
    if text.has_escapes:
        return equals_escaped(text, word, nbytes)
    return text.nbytes == nbytes and memcmp(text.begin, word, nbytes) == 0


# --- kernels: no Python objects ------------------------------------------------------------------

cdef bint equals_escaped(const Text* text, const char* word, Py_ssize_t nbytes) noexcept nogil
cdef Fault scan_any_string(ReadCursor* cursor, Text* text) noexcept nogil
cdef Fault scan_int64(ReadCursor* cursor, long long* value) noexcept nogil
cdef Fault skip_literal(ReadCursor* cursor, const char* literal) noexcept nogil
cdef Fault push_key(ReadCursor* cursor, const unsigned char* begin) noexcept nogil
cdef Fault pop_keys(ReadCursor* cursor, Py_ssize_t first) noexcept nogil

# --- with the GIL --------------------------------------------------------------------------------

cdef void begin_reading(
    ReadCursor* cursor, Keys* keys, const char* text, Py_ssize_t nbytes, int max_level,
    Py_ssize_t max_values) noexcept
cdef void end_reading(Keys* keys) noexcept
cdef void count_work(ReadCursor* cursor, Py_ssize_t n) noexcept
cdef int raise_fault(ReadCursor* cursor, Fault fault) except -1
cdef str excerpt(ReadCursor* cursor)
cdef int open_level_or_raise(ReadCursor* cursor) except -1
cdef bint next_item(ReadCursor* cursor, bint is_first) except -1
cdef bint next_member(ReadCursor* cursor, Text* key, bint is_first) except -1
cdef str text_to_str(const Text* text)
cdef Py_ssize_t utf8_nbytes_of(const Text* text) noexcept nogil
cdef int count_value(ReadCursor* cursor) except -1
cdef object read_value(ReadCursor* cursor)
cdef dict read_object(ReadCursor* cursor)
cdef int set_member(ReadCursor* cursor, dict members, const Text* key, value) except -1
cdef int skip_value_or_raise(ReadCursor* cursor) except -1
cdef int skip_data(ReadCursor* cursor) except -1
cdef Fault read_numbers(
    ReadCursor* cursor, dtype dtype, char* target, uint64_t n_expected, uint64_t* n_read)
cdef bytes read_strings(ReadCursor* cursor, uint64_t n_expected, uint64_t* n_read, Fault* fault)
