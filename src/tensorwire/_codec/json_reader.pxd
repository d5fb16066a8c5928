"""A cursor over JSON text, and what can be read at it; see json_reader.pyx."""

from libc.stdint cimport uint64_t
from libc.string cimport memcmp
from numpy cimport dtype


cdef extern from *:
    """
    /* Whether a byte is ASCII that may stand in a string, and is neither quote nor backslash. */
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
    SHORT_STRING = 24  # bytes; longer ones are scanned by words
    MAX_DATA_DEPTH = 100  # lists within each other in `data`; no tensor has more than 64 dimensions

cdef enum Fault:
    NO_FAULT
    # The text is not JSON. The cursor stands at the byte; `expected` names what would be valid.
    TEXT_ENDED
    UNEXPECTED
    CONTROL_CHARACTER
    BAD_ESCAPE
    LONE_SURROGATE
    NOT_UTF8
    # The text may be JSON, but breaks another rule. The cursor stands where the value begins.
    TOO_DEEP
    DATA_TOO_DEEP
    DUPLICATE_KEY
    WRONG_TYPE
    OUT_OF_RANGE
    TOO_MANY_DIGITS
    NO_MEMORY


cdef struct Keys:
    # A stack of pointers to the keys of the objects that are being skipped, innermost object last.
    # It is not a part of the cursor, because cursors are copied, and the memory may move.
    const unsigned char** begins
    Py_ssize_t n_keys
    Py_ssize_t capacity


cdef struct Cursor:
    const unsigned char* start
    const unsigned char* position  # start <= position <= end, always
    const unsigned char* end
    int level  # lists and objects that are open
    int max_level
    Py_ssize_t work  # done since other threads had their turn; see `count_work`
    const char* expected  # by the text that has a fault
    Keys* keys


cdef struct Text:
    # What stands between the quotes of a string that was validated.
    const unsigned char* begin
    Py_ssize_t nbytes
    bint is_ascii
    bint has_escapes


cdef inline void skip_blanks(Cursor* cursor) noexcept nogil:
    cdef const unsigned char* position = cursor.position
    while position < cursor.end and position[0] <= 0x20 and (
        position[0] == c" " or position[0] == c"\n" or position[0] == c"\r"
        or position[0] == c"\t"
    ):
        position += 1
    cursor.position = position


cdef inline bint at(Cursor* cursor, unsigned char byte) noexcept nogil:
    """Skip white space. Return whether the next byte is `byte`."""
    skip_blanks(cursor)
    return cursor.position < cursor.end and cursor.position[0] == byte


cdef inline bint take(Cursor* cursor, unsigned char byte) noexcept nogil:
    """Skip white space, and `byte` if it is next. Return whether it was."""
    if not at(cursor, byte):
        return False
    cursor.position += 1
    return True


cdef inline Fault scan_string(Cursor* cursor, Text* text) noexcept nogil:
    """Validate the string at the cursor, and step behind its closing quote.

    The text between the quotes is UTF-8 then, with escapes that can be followed blindly. Short
    strings of ASCII without escapes, as most keys are, end here; others are looked at again.
    """
    cdef const unsigned char* position
    cdef const unsigned char* last
    if at(cursor, c'"'):
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


cdef inline Fault unexpected(Cursor* cursor, const char* expected) noexcept nogil:
    """The fault of a cursor that does not stand at what is expected."""
    cursor.expected = expected
    return TEXT_ENDED if cursor.position == cursor.end else UNEXPECTED


cdef inline bint says(const Text* text, const char* word, Py_ssize_t nbytes) noexcept nogil:
    """Whether a validated string is an ASCII word of so many bytes, however it is escaped."""
    if text.has_escapes:
        return says_escaped(text, word, nbytes)
    return text.nbytes == nbytes and memcmp(text.begin, word, nbytes) == 0


# --- kernels: they touch no Python object --------------------------------------------------------

cdef bint says_escaped(const Text* text, const char* word, Py_ssize_t nbytes) noexcept nogil
cdef Fault scan_any_string(Cursor* cursor, Text* text) noexcept nogil
cdef Fault scan_int64(Cursor* cursor, long long* value) noexcept nogil
cdef Fault skip_literal(Cursor* cursor, const char* literal) noexcept nogil
cdef Fault push_key(Cursor* cursor, const unsigned char* begin) noexcept nogil
cdef Fault pop_keys(Cursor* cursor, Py_ssize_t first) noexcept nogil

# --- with the GIL --------------------------------------------------------------------------------

cdef void begin_reading(
    Cursor* cursor, Keys* keys, const char* text, Py_ssize_t nbytes, int max_level) noexcept
cdef void end_reading(Keys* keys) noexcept
cdef void count_work(Cursor* cursor, Py_ssize_t n) noexcept
cdef int raise_fault(Cursor* cursor, Fault fault) except -1
cdef str excerpt(Cursor* cursor)
cdef int open_at(Cursor* cursor) except -1
cdef bint next_item(Cursor* cursor, bint is_first) except -1
cdef bint next_member(Cursor* cursor, Text* key, bint is_first) except -1
cdef str string_of(const Text* text)
cdef Py_ssize_t utf8_nbytes_of(const Text* text) noexcept nogil
cdef object read_value(Cursor* cursor)
cdef dict read_object(Cursor* cursor)
cdef int set_member(Cursor* cursor, dict members, const Text* key, value) except -1
cdef int skip_any(Cursor* cursor) except -1
cdef int skip_data(Cursor* cursor) except -1
cdef Fault read_numbers(
    Cursor* cursor, dtype dtype, char* target, uint64_t n_expected, uint64_t* n_read)
cdef bytes read_strings(Cursor* cursor, uint64_t n_expected, uint64_t* n_read, Fault* fault)
