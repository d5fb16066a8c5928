"""Scan JSON text strictly, as RFC 8259 and UTF-8 define it: strings, numbers and whole values.

The functions work on a `ReadCursor` and use no Python objects. On an error they return a `Fault`,
and leave the cursor at the byte that caused it. Bounds: every read of a byte follows a comparison
of `position` with `end`, or of the number of bytes between them with the number that is read, and
nothing moves `position` past `end`. Only functions that read a validated string again need no such
comparison: they stop at its end. The text must not change while it is read, so the caller copies it
if another thread could write to it.

An object must not contain a key twice, because two readers could then interpret the same message
differently. For objects that are skipped, pointers to the keys are kept on a stack until the object
ends. Then they are sorted, and neighbours are compared. This takes 8 bytes per key. It needs no
hash table, in which a sender could provoke collisions.
"""

from cpython.mem cimport PyMem_RawRealloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, strlen

from ..gil cimport LONG_NBYTES
from ..utf8 cimport write_character


cdef extern from "json/numbers.h":
    const uint64_t ONES
    const uint64_t* INTEGER_POWERS_OF_10
    int64_t MAX_EXPONENT
    int ctz "__builtin_ctzll"(unsigned long long bits) noexcept nogil

cdef extern from "json/text.h":
    const Py_ssize_t WINDOW_NBYTES
    enum:
        NOT_ASCII
        HAS_ESCAPES
    const unsigned char* ESCAPED
    int short_string(const unsigned char* text, const unsigned char* end) noexcept nogil
    int unescape_text(
        unsigned char** target, const unsigned char** text, const unsigned char* end) noexcept nogil
    int read_unicode_escape(
        const unsigned char* text, Py_ssize_t nbytes, uint32_t* character) noexcept nogil

cdef extern from *:
    bint unlikely(bint condition) noexcept nogil

cdef enum:
    MAX_DIGITS = 19  # any number of 19 digits fits in 64 bits

cdef enum Fault:
    NO_FAULT
    # The text is not JSON. The cursor is at the offending byte. For TEXT_ENDED and UNEXPECTED, the
    # cursor's `expected` describes what would be valid there.
    TEXT_ENDED
    UNEXPECTED
    CONTROL_CHARACTER
    BAD_ESCAPE
    LONE_SURROGATE
    NOT_UTF8  # the invalid sequence begins at the cursor, or less than WINDOW_NBYTES + 3 after it
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


ctypedef void (*CountWork)(Py_ssize_t cost) noexcept nogil


cdef struct ReadCursor:
    const unsigned char* start
    const unsigned char* position  # always start <= position <= end
    const unsigned char* end
    int level  # number of open lists and objects
    int max_level
    Py_ssize_t max_values  # of lists and objects that become Python objects
    Py_ssize_t n_values_left
    const char* expected  # what would be valid, for an error message; see `Fault`
    bint is_header  # or other JSON, for an error message
    Keys* keys
    CountWork count_work  # that of gil.pxd; NULL without the GIL


cdef struct Text:
    # The text between the quotes of a validated string.
    const unsigned char* begin
    Py_ssize_t nbytes
    bint is_ascii
    bint has_escapes


cdef inline void skip_blanks(ReadCursor* cursor) noexcept nogil:
    cdef const unsigned char* position = cursor.position
    while position < cursor.end and position[0] <= 0x20 and (
        position[0] == c" " or position[0] == c"\n" or position[0] == c"\r"
        or position[0] == c"\t"
    ):
        position += 1
        if unlikely(position - cursor.position == LONG_NBYTES):
            cursor.position = position
            if cursor.count_work != NULL:
                cursor.count_work(LONG_NBYTES)
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


cdef inline bint scan_short_string(ReadCursor* cursor, Text* text) noexcept nogil:
    """Do the work of `scan_string` for a short string that is ASCII without escapes, as keys are.

    Returns False, and skips only white space, if there is no such string.
    """
    if not next_is(cursor, c'"'):
        return False
    text.begin = cursor.position + 1
    text.nbytes = short_string(text.begin, cursor.end)
    if text.nbytes < 0:
        return False
    text.is_ascii, text.has_escapes = True, False
    cursor.position = text.begin + text.nbytes + 1
    return True


cdef inline Fault scan_string(ReadCursor* cursor, Text* text) noexcept nogil:
    """Validate the string at the cursor, and advance past its closing quote.

    Later reads of `text` need no checks: it is valid UTF-8, and its escapes are valid.
    """
    return NO_FAULT if scan_short_string(cursor, text) else copy_string(cursor, NULL, text)


cdef inline Fault unexpected(ReadCursor* cursor, const char* expected) noexcept nogil:
    """Store what was expected at the cursor, and return TEXT_ENDED or UNEXPECTED."""
    cursor.expected = expected
    return TEXT_ENDED if cursor.position == cursor.end else UNEXPECTED


cdef inline bint equals(const Text* text, const char* word, Py_ssize_t nbytes) noexcept nogil:
    """Return whether a validated string, its escapes resolved, equals `nbytes` bytes of ASCII."""
    if text.has_escapes:
        return equals_escaped(text, word, nbytes)
    return text.nbytes == nbytes and memcmp(text.begin, word, nbytes) == 0


# --- strings -------------------------------------------------------------------------------------


cdef inline Fault copy_string(
    ReadCursor* cursor, unsigned char** target, Text* text
) noexcept nogil:
    """Do the work of `scan_string`, and write the string with its escapes resolved.

    `target` points to the address to write to, and is advanced to the end of what was written. If
    it is NULL, nothing is written. Bounds: the target has room for as many bytes as are left of the
    text. What is written is no longer than what was read, because an escape of 2 bytes becomes 1
    byte, one of 6 bytes at most 3, and a surrogate pair of 12 bytes 4. `write_character` may write
    4 bytes, and was called for at least 6.
    """
    cdef const unsigned char* position
    cdef const unsigned char* begin
    cdef const unsigned char* end = cursor.end
    cdef int found, n
    cdef uint32_t character
    if not next_is(cursor, c'"'):
        return unexpected(cursor, "a string")
    text.begin = position = cursor.position + 1
    text.is_ascii, text.has_escapes = True, False
    while True:
        begin = position
        found = unescape_text(target, &position, end)
        if found < 0:
            cursor.position = max(begin, position - 3)
            while begin < cursor.position < position and cursor.position[0] & 0xC0 == 0x80:
                cursor.position += 1  # the rest of a valid sequence
            return NOT_UTF8
        if found & NOT_ASCII:
            text.is_ascii = False
        if found & HAS_ESCAPES:
            text.has_escapes = True
        if position < end and position[0] == c'"':
            break
        cursor.position = position
        if position == end:
            return unexpected(cursor, "the end of a string")
        if position[0] != c"\\":
            return CONTROL_CHARACTER
        text.has_escapes = True
        while True:
            n = read_unicode_escape(position, end - position, &character)
            if n <= 0:
                break
            position += n
            if target != NULL:
                target[0] = write_character(target[0], character)
            if position == end or position[0] != c"\\":
                break
        if position == cursor.position:
            return BAD_ESCAPE if n == 0 else LONE_SURROGATE
    text.nbytes = position - text.begin
    cursor.position = position + 1
    return NO_FAULT


cdef inline uint32_t next_character(const unsigned char** position) noexcept nogil:
    """Return the next code point of a validated string, escaped or not, and advance past it."""
    cdef const unsigned char* raw = position[0]
    cdef uint32_t unit = raw[0]
    if unit == c"\\":
        if raw[1] != c"u":
            position[0] = raw + 2
            return ESCAPED[raw[1]]
        position[0] = raw + read_unicode_escape(raw, 12, &unit)
        return unit
    if unit < 0x80:
        position[0] = raw + 1
    elif unit < 0xE0:
        position[0] = raw + 2
        unit = (unit & 0x1F) << 6 | (raw[1] & 0x3F)
    elif unit < 0xF0:
        position[0] = raw + 3
        unit = (unit & 0x0F) << 12 | (raw[1] & 0x3F) << 6 | (raw[2] & 0x3F)
    else:
        position[0] = raw + 4
        unit = (unit & 0x07) << 18 | (raw[1] & 0x3F) << 12 | (raw[2] & 0x3F) << 6 | (raw[3] & 0x3F)
    return unit


cdef inline Py_ssize_t utf8_nbytes_of(const Text* text) noexcept nogil:
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef uint32_t character
    cdef Py_ssize_t nbytes = 0
    if not text.has_escapes:
        return text.nbytes
    while raw < end:
        character = next_character(&raw)
        nbytes += 1 + (character >= 0x80) + (character >= 0x800) + (character >= 0x10000)
    return nbytes


cdef inline bint equals_escaped(
    const Text* text, const char* word, Py_ssize_t nbytes
) noexcept nogil:
    """Do the work of `equals` for a string that may have escapes."""
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef Py_ssize_t i
    for i in range(nbytes):
        if raw == end or next_character(&raw) != <unsigned char>word[i]:
            return False
    return raw == end


# --- keys of objects that are skipped ------------------------------------------------------------


cdef inline Fault push_key(ReadCursor* cursor, const unsigned char* begin) noexcept nogil:
    """Push a pointer to the first byte of a key, after its opening quote."""
    cdef Keys* keys = cursor.keys
    cdef Py_ssize_t capacity
    cdef void* grown
    if keys.n_keys == keys.capacity:
        capacity = keys.capacity + (keys.capacity >> 1) + 16
        grown = PyMem_RawRealloc(keys.begins, capacity * sizeof(void*))
        if grown == NULL:
            return NO_MEMORY
        keys.begins, keys.capacity = <const unsigned char**>grown, capacity
    keys.begins[keys.n_keys] = begin
    keys.n_keys += 1
    return NO_FAULT


cdef inline Fault pop_keys(ReadCursor* cursor, Py_ssize_t first) noexcept nogil:
    """Pop the keys of an object, which are those from index `first` on.

    Returns DUPLICATE_KEY if two of them are equal; the cursor is then at the later one.
    """
    cdef Keys* keys = cursor.keys
    cdef const unsigned char** own = keys.begins + first
    cdef Py_ssize_t n = keys.n_keys - first
    cdef Py_ssize_t i
    keys.n_keys = first
    if n < 2:
        return NO_FAULT
    qsort(own, n, sizeof(void*), compare_keys)
    for i in range(1, n):
        if compare_keys(&own[i - 1], &own[i]) == 0:
            cursor.position = max(own[i - 1], own[i]) - 1
            return DUPLICATE_KEY
    return NO_FAULT


cdef inline int compare_keys(const void* one, const void* other) noexcept nogil:
    """Compare two validated keys by their code points, for `qsort`.

    Bounds: each key ends at a quote that is not escaped. The bytes of UTF-8 have the same order as
    the code points. Where one key has an escape, both pointers are at the beginning of a character,
    because the bytes before were equal, or belonged to complete characters.
    """
    cdef const unsigned char* a = (<const unsigned char**>one)[0]
    cdef const unsigned char* b = (<const unsigned char**>other)[0]
    cdef uint32_t x, y
    while True:
        while a[0] == b[0] and a[0] != c'"' and a[0] != c"\\":
            a += 1
            b += 1
        if a[0] == c'"' or b[0] == c'"':
            return <int>(b[0] == c'"') - <int>(a[0] == c'"')
        if a[0] != c"\\" and b[0] != c"\\":
            return -1 if a[0] < b[0] else 1
        x, y = next_character(&a), next_character(&b)
        if x != y:
            return -1 if x < y else 1


# --- numbers -------------------------------------------------------------------------------------


cdef struct Number:
    # If `is_exact`, the magnitude is `digits` * 10^`exponent`.
    uint64_t digits  # the first significant digits, at most MAX_DIGITS, as an integer
    int n_digits
    bint is_exact  # no digit was dropped
    bint is_negative
    bint is_integer  # without a fraction and an exponent
    int64_t exponent


cdef inline bint is_digit(const unsigned char* position, const unsigned char* end) noexcept nogil:
    return position < end and <unsigned char>(position[0] - c"0") < 10


cdef inline int append_digits(
    const unsigned char* position, int max_digits, uint64_t* digits
) noexcept nogil:
    """Append the digits at `position` to `digits`, up to the first byte that is not a digit.

    The next 8 bytes must exist, and no others are read. At most `max_digits` digits, which is not
    negative, are appended. Returns their number.

    A byte is a digit if its high half is 3, and is still 3 after 6 is added. A carry can only come
    from a byte that is not a digit, and only changes bytes after it. The digits are moved to the
    high end of the word, after zeros, and combined to lanes of 2, 4 and 8 digits. The sums fit in
    their lanes: 9 * 10 + 9 < 2^8, 99 * 100 + 99 < 2^16.

    The only branch is for 8 digits, because any other number of digits is hard to predict.
    """
    cdef uint64_t word, others
    cdef int n = 8
    memcpy(&word, position, 8)
    others = (
        ((word & ONES * 0xF0) | (((word + ONES * 0x06) & ONES * 0xF0) >> 4)) ^ ONES * 0x33
    )
    if others != 0 or max_digits < 8:
        n = min(<int>(ctz(others | <uint64_t>1 << 63) >> 3), max_digits)
        word = word << 4 * (8 - n) << 4 * (8 - n)  # twice, because a shift by 64 is undefined
    word &= ONES * 0x0F
    word = (word * 10 + (word >> 8)) & <uint64_t>0x00FF00FF00FF00FF
    word = (word * 100 + (word >> 16)) & <uint64_t>0x0000FFFF0000FFFF
    word = (word * 10000 + (word >> 32)) & <uint64_t>0xFFFFFFFF
    digits[0] = digits[0] * INTEGER_POWERS_OF_10[n] + word
    return n


cdef inline Fault scan_number(ReadCursor* cursor, Number* number) noexcept nogil:
    """Validate the number at the cursor, and advance past it.

    No overflow: `n_digits` is at most MAX_DIGITS, so that `digits` fits in 64 bits. `exponent` is
    the sum of numbers of bytes, which are below 2^62, and of the exponent in the text, whose
    magnitude is limited to 10 * MAX_EXPONENT.
    """
    cdef const unsigned char* position = cursor.position
    cdef const unsigned char* end = cursor.end
    cdef const unsigned char* begin  # of the digits
    cdef int64_t exponent = 0, written_exponent = 0
    cdef uint64_t digits = 0
    cdef int n_digits = 0, n
    cdef bint is_negative = position < end and position[0] == c"-"
    cdef bint is_exact = True, is_integer = True, is_negative_exponent
    position += is_negative
    if not is_digit(position, end):
        cursor.position = position
        return unexpected(cursor, "a digit")
    begin = position
    while end - position >= 8:
        n = append_digits(position, MAX_DIGITS - n_digits, &digits)
        n_digits += n
        position += n
        if n < 8:
            break
    while is_digit(position, end):
        if n_digits < MAX_DIGITS:
            digits = digits * 10 + (position[0] - c"0")
            n_digits += 1
        else:
            is_exact = False
            exponent += 1
        position += 1
    if position - begin > 1 and begin[0] == c"0":
        cursor.position = begin + 1
        return unexpected(cursor, "no digit after a leading zero")
    n_digits -= begin[0] == c"0"  # a zero before the point is not significant
    if position < end and position[0] == c".":
        is_integer = False
        position += 1
        if not is_digit(position, end):
            cursor.position = position
            return unexpected(cursor, "a digit")
        # Zeros before the first other digit are not significant.
        while position < end and position[0] == c"0" and digits == 0:
            exponent -= 1
            position += 1
        while end - position >= 8:
            n = append_digits(position, MAX_DIGITS - n_digits, &digits)
            n_digits += n
            exponent -= n
            position += n
            if n < 8:
                break
        while is_digit(position, end):
            if n_digits < MAX_DIGITS:
                digits = digits * 10 + (position[0] - c"0")
                n_digits += 1
                exponent -= 1
            else:
                is_exact = False
            position += 1
    if position < end and position[0] | 0x20 == c"e":
        is_integer = False
        position += 1
        is_negative_exponent = position < end and position[0] == c"-"
        if is_negative_exponent or (position < end and position[0] == c"+"):
            position += 1
        if not is_digit(position, end):
            cursor.position = position
            return unexpected(cursor, "a digit")
        while is_digit(position, end):
            if written_exponent < MAX_EXPONENT:
                written_exponent = written_exponent * 10 + (position[0] - c"0")
            position += 1
        exponent += -written_exponent if is_negative_exponent else written_exponent
    cursor.position = position
    number.digits, number.n_digits, number.exponent = digits, n_digits, exponent
    number.is_exact, number.is_integer, number.is_negative = is_exact, is_integer, is_negative
    return NO_FAULT


cdef inline bint scan_short_int64(ReadCursor* cursor, long long* value) noexcept nogil:
    """Read an integer of a few digits without a sign, up to the comma or bracket after it.

    Returns False, and skips only white space, if there is no such integer.
    """
    cdef const unsigned char* position
    cdef uint64_t digits
    cdef unsigned char byte
    skip_blanks(cursor)
    position = cursor.position
    if cursor.end - position < MAX_DIGITS or not 1 <= <unsigned char>(position[0] - c"0") < 10:
        return False
    digits = 0
    while is_digit(position, cursor.position + MAX_DIGITS - 1):
        digits = digits * 10 + (position[0] - c"0")
        position += 1
    byte = position[0]  # exists: at most MAX_DIGITS - 1 bytes precede it
    if byte != c"," and byte != c"]" and byte != c"}":
        return False
    value[0] = digits
    cursor.position = position
    return True


# --- skipping ------------------------------------------------------------------------------------


cdef inline Fault skip_literal(ReadCursor* cursor, const char* literal) noexcept nogil:
    cdef Py_ssize_t nbytes = strlen(literal)
    if cursor.end - cursor.position < nbytes or memcmp(cursor.position, literal, nbytes) != 0:
        return unexpected(cursor, literal)
    cursor.position += nbytes
    return NO_FAULT


cdef inline Fault open_level(ReadCursor* cursor) noexcept nogil:
    """Advance past the opening bracket at the cursor. Return TOO_DEEP if that is not allowed."""
    if cursor.level == cursor.max_level:
        return TOO_DEEP
    cursor.level += 1
    cursor.position += 1
    return NO_FAULT


cdef inline Fault skip_value(ReadCursor* cursor) noexcept nogil:
    cdef Text text
    cdef Number number
    cdef unsigned char first
    skip_blanks(cursor)
    if cursor.position == cursor.end:
        return unexpected(cursor, "a value")
    first = cursor.position[0]
    if first == c'"':
        return scan_string(cursor, &text)
    if first == c"{":
        return skip_object(cursor)
    if first == c"[":
        return skip_list(cursor)
    if first == c"t":
        return skip_literal(cursor, "true")
    if first == c"f":
        return skip_literal(cursor, "false")
    if first == c"n":
        return skip_literal(cursor, "null")
    if first == c"-" or c"0" <= first <= c"9":
        return scan_number(cursor, &number)
    return unexpected(cursor, "a value")


cdef inline Fault skip_list(ReadCursor* cursor) noexcept nogil:
    cdef Fault fault = open_level(cursor)
    if fault != NO_FAULT:
        return fault
    if not take(cursor, c"]"):
        while True:
            fault = skip_value(cursor)
            if fault != NO_FAULT:
                return fault
            if take(cursor, c"]"):
                break
            if not take(cursor, c","):
                return unexpected(cursor, "',' or ']'")
    cursor.level -= 1
    return NO_FAULT


cdef inline Fault skip_object(ReadCursor* cursor) noexcept nogil:
    cdef Py_ssize_t first = cursor.keys.n_keys
    cdef Text key
    cdef Fault fault = open_level(cursor)
    if fault != NO_FAULT:
        return fault
    if not take(cursor, c"}"):
        while True:
            fault = scan_string(cursor, &key)
            if fault == NO_FAULT and not take(cursor, c":"):
                fault = unexpected(cursor, "':'")
            if fault == NO_FAULT:
                fault = push_key(cursor, key.begin)
            if fault == NO_FAULT:
                fault = skip_value(cursor)
            if fault != NO_FAULT:
                return fault
            if take(cursor, c"}"):
                break
            if not take(cursor, c","):
                return unexpected(cursor, "',' or '}'")
    cursor.level -= 1
    return pop_keys(cursor, first)
