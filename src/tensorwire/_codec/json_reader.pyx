# distutils: language = c++
# distutils: extra_compile_args = -std=c++17
"""Read JSON text once, strictly: RFC 8259 and UTF-8, nothing more and nothing less.

The lower half consists of kernels over a `Cursor`. They touch no Python object, and return a
`Fault`: the cursor then stands at the byte in question. Every read of a byte is behind a comparison
of `position` with `end` (or with the number of bytes between them), and nothing moves `position`
past `end`. The text must not change while it is read: the caller copies it where another thread
could write to it.

The upper half makes Python objects, and turns a fault into a HeaderError. The numbers and strings
of a tensor's `data` do not become objects: `read_numbers` writes them to the memory of an array,
and `read_strings` as the length-prefixed bytes of a BYTES tensor. What takes long is read without
the GIL: a value is first tried with the GIL within the next SHORT_NBYTES bytes, and where it does
not end there, it is read again from its beginning without.

An object must not have the same key twice, because two readers of one message could then see two
different messages. Dictionaries notice it themselves. For objects that are skipped, the positions
of the keys are kept on a stack until the object ends, sorted then, and neighbours are compared:
this takes 8 bytes for a key, and no hash that a sender could attack.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_Clear
from cpython.long cimport PyLong_FromLongLong
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport INFINITY, NAN, fabs
from libc.stdint cimport INT64_MAX, UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, strlen

from .utf8 cimport ALL_VALID, first_invalid, write_utf8
from .wire cimport PREFIX_NBYTES, store_le32

from ..errors import HeaderError

cnp.import_array()

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** bytes, Py_ssize_t nbytes)
    str PyUnicode_New(Py_ssize_t n_characters, unsigned int largest)
    unsigned char* PyUnicode_1BYTE_DATA(object text)
    int PyUnicode_KIND(object text)
    void* PyUnicode_DATA(object text)
    void PyUnicode_WRITE(int kind, void* data, Py_ssize_t index, uint32_t character)

cdef extern from *:
    """
    #include <math.h>
    #include <stdlib.h>
    #include <string.h>
    #include <charconv>

    #if defined(__SIZEOF_INT128__)

    /* 5^n for every n whose power fits 64 bits. */
    static const unsigned long long FIVES[28] = {
        1ULL, 5ULL, 25ULL, 125ULL, 625ULL, 3125ULL, 15625ULL, 78125ULL, 390625ULL, 1953125ULL,
        9765625ULL, 48828125ULL, 244140625ULL, 1220703125ULL, 6103515625ULL, 30517578125ULL,
        152587890625ULL, 762939453125ULL, 3814697265625ULL, 19073486328125ULL, 95367431640625ULL,
        476837158203125ULL, 2384185791015625ULL, 11920928955078125ULL, 59604644775390625ULL,
        298023223876953125ULL, 1490116119384765625ULL, 7450580596923828125ULL};
    #define MAX_FIVES 27

    /* floor(2^127 / d) for d = 5^n, shifted left until its highest bit is set. */
    static unsigned long long reciprocals[28];
    static void fill_reciprocals(void) {
        for (int n = 1; n <= MAX_FIVES; n++) {
            unsigned long long d = FIVES[n] << __builtin_clzll(FIVES[n]);
            reciprocals[n] = (unsigned long long)(((unsigned __int128)1 << 127) / d);
        }
    }

    /* The double nearest to digits * 10^exponent, for digits > 0 and |exponent| <= MAX_FIVES.

       The number is brought to the form quotient * 2^binary, where `quotient` has 64 bits and its
       highest bit set, and `remainder` is not 0 if anything was cut off behind it. This is all that
       the rounding to the 53 bits of a double, half to even, depends on. The result is between
       1e-27 and 2^64 * 1e27: neither a subnormal number nor an infinity.

       Instead of a division, there is a multiplication by a reciprocal first. The reciprocal is too
       small by less than 1, so the product of 128 bits by less than 2^64, and its high half by less
       than 2: V - 2 < quotient < V, where V is the true quotient, between 2^62 and 2^64. If it has
       63 bits, it is doubled: V - 4 < quotient < V. Of its lowest 11 bits, 0x400 is a half. If they
       are not 0x3FC to 0x3FF, V and the quotient are on the same side of the half, and V is not the
       half itself. Otherwise, once in 512 numbers and for every tie, it is divided. */
    static inline double nearest_double(unsigned long long digits, int exponent) {
        int shift = __builtin_clzll(digits), binary = exponent - shift, is_short;
        unsigned long long quotient, remainder = 1, mantissa, cut, bits;
        unsigned __int128 wide;
        double value, scale;
        digits <<= shift;
        if (exponent < 0) {
            unsigned long long divisor = FIVES[-exponent];
            shift = __builtin_clzll(divisor);
            quotient = (unsigned long long)(
                (unsigned __int128)digits * reciprocals[-exponent] >> 64);
            is_short = !(quotient >> 63);
            if (__builtin_expect(((quotient << is_short) & 0x7FC) == 0x3FC, 0)) {
                divisor <<= shift;
                wide = (unsigned __int128)digits << 63;
                quotient = (unsigned long long)(wide / divisor);
                remainder = (unsigned long long)(wide % divisor);
                is_short = !(quotient >> 63);  /* the bit that is missing is in the remainder */
            }
            binary += shift - 63 - is_short;
            quotient <<= is_short;
        } else {
            unsigned long long factor = FIVES[exponent];
            shift = __builtin_clzll(factor);
            wide = (unsigned __int128)digits * (factor << shift);  /* 2^126 and more */
            binary += 64 - shift;
            if (!(wide >> 127)) { wide <<= 1; binary--; }
            quotient = (unsigned long long)(wide >> 64);
            remainder = (unsigned long long)wide;
        }
        mantissa = quotient >> 11;
        cut = quotient & 0x7FF;
        /* Without branches, as half of all numbers are rounded up. */
        mantissa += (cut > 0x400) | ((cut == 0x400) & ((remainder != 0) | (mantissa & 1)));
        value = (double)(long long)mantissa;  /* at most 2^53, so exact; and so is the product */
        bits = (unsigned long long)(binary + 11 + 1023) << 52;  /* 2^(binary + 11) */
        memcpy(&scale, &bits, 8);
        return value * scale;
    }

    #else
    #define MAX_FIVES -1
    static void fill_reciprocals(void) {}
    static double nearest_double(unsigned long long digits, int exponent) { return 0; }
    #endif

    #if defined(__cpp_lib_to_chars) && !defined(TENSORWIRE_NO_CHARCONV)

    /* Parse a JSON number, correctly rounded. 1, or 0: it is beyond the range of the type, or -1:
       there is no memory, which some libraries need for many digits. */
    template <typename Float>
    static int parse_float(const unsigned char *first, const unsigned char *last, Float *value) {
        std::errc error = std::from_chars((const char *)first, (const char *)last, *value).ec;
        return error == std::errc() ? 1 : error == std::errc::result_out_of_range ? 0 : -1;
    }

    #else  /* strtod and strtof round correctly, too, in the C library of every platform we know */

    #include <locale.h>
    #ifdef __APPLE__
    #include <xlocale.h>
    #endif

    static inline void to_float(const char *text, double *value, locale_t c) {
        *value = strtod_l(text, NULL, c);
    }
    static inline void to_float(const char *text, float *value, locale_t c) {
        *value = strtof_l(text, NULL, c);
    }
    template <typename Float>
    static int parse_float(const unsigned char *first, const unsigned char *last, Float *value) {
        static locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);  /* '.' everywhere */
        char small[128];
        size_t nbytes = (size_t)(last - first);
        char *text = nbytes < sizeof small ? small : (char *)malloc(nbytes + 1);
        if (text == NULL) return -1;
        memcpy(text, first, nbytes);
        text[nbytes] = 0;  /* which strtod needs, and the number does not have */
        to_float(text, value, c_locale);
        if (text != small) free(text);
        return !isinf(*value) && *value != 0;  /* exact_double reads zeros: 0 is an underflow */
    }

    #endif
    """
    int MAX_FIVES
    void fill_reciprocals() noexcept nogil
    double nearest_double(unsigned long long digits, int exponent) noexcept nogil
    int parse_double "parse_float<double>"(
        const unsigned char* first, const unsigned char* last, double* value) noexcept nogil
    int parse_single "parse_float<float>"(
        const unsigned char* first, const unsigned char* last, float* value) noexcept nogil

cdef enum:
    SHORT_NBYTES = 128 << 10  # of JSON: up to about a millisecond, however dense
    WORK_PER_TURN = 10_000  # before other threads get their turn; in terms of Python objects
    BYTES_PER_WORK = 16  # of JSON that is read without making objects of it
    MAX_DIGITS = 19  # any number of so many digits fits 64 bits
    DECIMAL_NBYTES = 48
    MAX_INTEGER_DIGITS = 4300  # Python's own default: converting text takes quadratic time
    MAX_EXPONENT = 1 << 30  # larger ones are not told apart: they exceed any double either way
    MAX_EXCERPT = 60  # characters of a value in an error message
    EXACT_POWERS = 22  # 10^22 is the largest power of ten that a double holds exactly

fill_reciprocals()

# Every integer up to 2^53 is a double. The bound is lower, so that 16 digits, which most doubles
# need, always take the same way: a processor cannot predict on which side of 2^53 they are.
cdef uint64_t EXACT_DIGITS = 10 ** 15
cdef double[2] SIGNS
SIGNS[:] = [1.0, -1.0]
cdef double MIN_NORMAL = 2.0 ** -126  # of a float
cdef double MAX_FLOAT = (2 - 2.0 ** -23) * 2.0 ** 127
cdef double[23] POWERS
POWERS[:] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
]

cdef uint64_t[9] TENS
TENS[:] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000]

cdef extern from *:
    """
    #define ONES 0x0101010101010101ULL  /* times a byte: that byte in each byte of a word */
    """
    const uint64_t ONES
    int ctz "__builtin_ctzll"(unsigned long long bits) noexcept nogil


# --- strings -------------------------------------------------------------------------------------


cdef inline uint64_t first_special(uint64_t word) noexcept nogil:
    """Mark the quotes, backslashes and control characters among eight bytes by their high bit.

    A borrow may mark a byte wrongly, but only above one that is marked rightly: the lowest mark is
    exact, and no mark means that there is no such byte.
    """
    cdef uint64_t quotes = word ^ (ONES * c'"')
    cdef uint64_t backslashes = word ^ (ONES * c"\\")
    return (
        ((quotes - ONES) & ~quotes) | ((backslashes - ONES) & ~backslashes)
        | ((word - ONES * 0x20) & ~word)
    ) & (ONES * 0x80)


cdef Fault scan_any_string(Cursor* cursor, Text* text) noexcept nogil:
    """`scan_string` for any string, eight bytes at a time."""
    cdef const unsigned char* position
    cdef const unsigned char* end = cursor.end
    cdef uint64_t word, special, high_bits = 0
    cdef Py_ssize_t invalid
    cdef Fault fault
    if not at(cursor, c'"'):
        return unexpected(cursor, "a string")
    position = cursor.position + 1
    text.begin = position
    text.has_escapes = False
    while True:
        while end - position >= 8:
            memcpy(&word, position, 8)
            high_bits |= word & (ONES * 0x80)  # perhaps of bytes behind the string: no harm
            special = first_special(word)
            if special != 0:
                position += ctz(special) >> 3
                break
            position += 8
        while position < end and position[0] >= 0x20 and position[0] != c'"' and (
            position[0] != c"\\"
        ):
            high_bits |= position[0] & 0x80
            position += 1
        if position == end:
            cursor.position = position
            return unexpected(cursor, "the end of a string")
        if position[0] == c'"':
            break
        cursor.position = position
        if position[0] < 0x20:
            return CONTROL_CHARACTER
        text.has_escapes = True
        fault = scan_escape(cursor)
        if fault != NO_FAULT:
            return fault
        position = cursor.position
    text.nbytes = position - text.begin
    text.is_ascii = high_bits == 0
    cursor.position = position + 1
    if high_bits != 0:
        invalid = first_invalid(text.begin, text.nbytes)
        if invalid != ALL_VALID:
            cursor.position = text.begin + invalid
            return NOT_UTF8
    return NO_FAULT


cdef Fault scan_escape(Cursor* cursor) noexcept nogil:
    """Validate the escape at the cursor, of a surrogate pair both halves, and step behind it."""
    cdef const unsigned char* position = cursor.position
    cdef Py_ssize_t remaining = cursor.end - position
    cdef int unit, low
    if remaining < 2:
        return BAD_ESCAPE
    if position[1] != c"u":
        if position[1] not in b'"\\/bfnrt':
            return BAD_ESCAPE
        cursor.position += 2
        return NO_FAULT
    unit = hex_unit(position + 2) if remaining >= 6 else -1
    if unit < 0:
        return BAD_ESCAPE
    if not 0xD800 <= unit <= 0xDFFF:
        cursor.position += 6
        return NO_FAULT
    if unit >= 0xDC00 or remaining < 12 or position[6] != c"\\" or position[7] != c"u":
        return LONE_SURROGATE
    low = hex_unit(position + 8)
    if not 0xDC00 <= low <= 0xDFFF:
        return LONE_SURROGATE
    cursor.position += 12
    return NO_FAULT


cdef inline int hex_unit(const unsigned char* digits) noexcept nogil:
    """The value of four hexadecimal digits, or -1."""
    cdef int value = 0
    cdef int i
    cdef unsigned char digit
    for i in range(4):
        digit = digits[i]
        if c"0" <= digit <= c"9":
            value = value * 16 + digit - c"0"
        elif c"a" <= digit | 0x20 <= c"f":
            value = value * 16 + (digit | 0x20) - c"a" + 10
        else:
            return -1
    return value


cdef inline uint32_t next_character(const unsigned char** at_byte) noexcept nogil:
    """The code point at a byte of validated string text, escaped or not; moves behind it."""
    cdef const unsigned char* raw = at_byte[0]
    cdef uint32_t unit = raw[0]
    if unit == c"\\":
        at_byte[0] = raw + 2
        unit = raw[1]
        if unit == c"b":
            return 8
        if unit == c"f":
            return 12
        if unit == c"n":
            return 10
        if unit == c"r":
            return 13
        if unit == c"t":
            return 9
        if unit != c"u":
            return unit
        at_byte[0] = raw + 6
        unit = hex_unit(raw + 2)
        if 0xD800 <= unit <= 0xDBFF:
            at_byte[0] = raw + 12
            unit = 0x10000 + ((unit - 0xD800) << 10) + (hex_unit(raw + 8) - 0xDC00)
        return unit
    if unit < 0x80:
        at_byte[0] = raw + 1
    elif unit < 0xE0:
        at_byte[0] = raw + 2
        unit = (unit & 0x1F) << 6 | (raw[1] & 0x3F)
    elif unit < 0xF0:
        at_byte[0] = raw + 3
        unit = (unit & 0x0F) << 12 | (raw[1] & 0x3F) << 6 | (raw[2] & 0x3F)
    else:
        at_byte[0] = raw + 4
        unit = (unit & 0x07) << 18 | (raw[1] & 0x3F) << 12 | (raw[2] & 0x3F) << 6 | (raw[3] & 0x3F)
    return unit


cdef Py_ssize_t unescape(unsigned char* target, const Text* text) noexcept nogil:
    """Write a validated string without its escapes; returns its bytes, at most `text.nbytes`.

    An escape of 2 bytes becomes one byte, of 6 bytes at most three, of 12 bytes four.
    """
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef unsigned char* begin = target
    cdef uint32_t character
    cdef Py_ssize_t nbytes
    while raw < end:
        if raw[0] != c"\\":
            target[0] = raw[0]
            target += 1
            raw += 1
            continue
        character = next_character(&raw)
        nbytes = 1 + (character >= 0x80) + (character >= 0x800) + (character >= 0x10000)
        write_utf8[uint32_t](target, nbytes, &character, 1)
        target += nbytes
    return target - begin


cdef Py_ssize_t utf8_nbytes_of(const Text* text) noexcept nogil:
    """What `unescape` would write."""
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


cdef bint says_escaped(const Text* text, const char* word, Py_ssize_t nbytes) noexcept nogil:
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef Py_ssize_t i
    for i in range(nbytes):
        if raw == end or next_character(&raw) != <unsigned char>word[i]:
            return False
    return raw == end


# --- keys of objects that are skipped ------------------------------------------------------------


cdef Fault push_key(Cursor* cursor, const unsigned char* begin) noexcept nogil:
    """Remember where the text of a key begins, behind its quote."""
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


cdef Fault pop_keys(Cursor* cursor, Py_ssize_t first) noexcept nogil:
    """Forget the keys of an object, from the `first` of them; DUPLICATE_KEY when two are equal."""
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


cdef int compare_keys(const void* one, const void* other) noexcept nogil:
    """Order two validated keys by their characters; both end at a quote that is not escaped.

    Bytes of UTF-8 have the order of the characters. Where one key has an escape, both are at the
    beginning of a character, because all bytes before were equal, or parts of whole characters.
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
    # The value is `digits` * 10^`exponent`, with the sign, where no digit was dropped.
    uint64_t digits  # the first MAX_DIGITS significant ones
    int n_digits
    bint is_exact
    bint is_negative
    bint is_integer  # neither a fraction nor an exponent
    int64_t exponent


cdef inline bint is_digit(const unsigned char* position, const unsigned char* end) noexcept nogil:
    return position < end and <unsigned char>(position[0] - c"0") < 10


cdef inline int append_digits(
    const unsigned char* position, int room, uint64_t* digits
) noexcept nogil:
    """Append the digits among the next eight bytes, which exist, up to the first other byte.

    At most `room` of them, which is not negative. Returns their number. A digit is a byte whose
    high half is 3, and still is when 6 is added: a carry can only come from a byte that is no
    digit, into bytes behind it. The digits are moved to the high end of the word, behind zeros, and
    joined to pairs, to fours and to eight. Sums of a factor and its neighbour stay within their
    lanes: 9 * 10 + 9 < 2^8, 99 * 100 + 99 < 2^16.
    The only branch is for eight digits, because any other number of them is hard to predict.
    """
    cdef uint64_t word, others
    cdef int n = 8
    memcpy(&word, position, 8)
    others = (
        ((word & ONES * 0xF0) | (((word + ONES * 0x06) & ONES * 0xF0) >> 4)) ^ ONES * 0x33
    )
    if others != 0 or room < 8:
        n = min(<int>(ctz(others | <uint64_t>1 << 63) >> 3), room)
        word = word << 4 * (8 - n) << 4 * (8 - n)  # twice, because a shift by 64 is undefined
    word &= ONES * 0x0F
    word = (word * 10 + (word >> 8)) & <uint64_t>0x00FF00FF00FF00FF
    word = (word * 100 + (word >> 16)) & <uint64_t>0x0000FFFF0000FFFF
    word = (word * 10000 + (word >> 32)) & <uint64_t>0xFFFFFFFF
    digits[0] = digits[0] * TENS[n] + word
    return n


cdef Fault scan_number(Cursor* cursor, Number* number) noexcept nogil:
    """Validate the number at the cursor, and step behind it.

    `n_digits` stays within MAX_DIGITS, so `digits` within 64 bits. `exponent` is a sum of counts of
    bytes, which are below 2^62, and of at most ten times MAX_EXPONENT.
    """
    cdef const unsigned char* position = cursor.position
    cdef const unsigned char* end = cursor.end
    cdef const unsigned char* begin  # of the digits
    cdef int64_t exponent = 0, written = 0
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
    n_digits -= begin[0] == c"0"  # not significant
    if position < end and position[0] == c".":
        is_integer = False
        position += 1
        if not is_digit(position, end):
            cursor.position = position
            return unexpected(cursor, "a digit")
        while position < end and position[0] == c"0" and digits == 0:  # not significant
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
            if written < MAX_EXPONENT:
                written = written * 10 + (position[0] - c"0")
            position += 1
        exponent += -written if is_negative_exponent else written
    cursor.position = position
    number.digits, number.n_digits, number.exponent = digits, n_digits, exponent
    number.is_exact, number.is_integer, number.is_negative = is_exact, is_integer, is_negative
    return NO_FAULT


cdef inline bint scan_decimal(Cursor* cursor, Number* number) noexcept nogil:
    """`scan_number` for the usual form: some digits, a point, some digits, and no exponent.

    Returns False where anything else stands, or where the text may end soon; the caller then begins
    anew with `scan_number`. There are at most a sign, 8 digits, a point and MAX_DIGITS digits, and
    no read goes further than 8 bytes behind the last byte that was accepted: less than
    DECIMAL_NBYTES in all.
    """
    cdef const unsigned char* position = cursor.position
    cdef const unsigned char* point
    cdef uint64_t digits = 0
    cdef int n_digits = 1, n
    if cursor.end - position < DECIMAL_NBYTES:
        return False
    number.is_negative = position[0] == c"-"
    position += number.is_negative
    if position[1] == c"." and <unsigned char>(position[0] - c"0") < 10:
        digits = position[0] - c"0"
    else:
        n_digits = append_digits(position, 8, &digits)
        if n_digits == 0 or position[0] == c"0" or position[n_digits] != c".":
            return False
    point = position + n_digits
    position = point + 1
    while True:
        n = append_digits(position, MAX_DIGITS - n_digits, &digits)
        n_digits += n
        position += n
        if n < 8:
            break
    if position == point + 1 or <unsigned char>(position[0] - c"0") < 10 or (
        position[0] | 0x20 == c"e"
    ):
        return False
    number.digits, number.n_digits, number.exponent = digits, n_digits, point + 1 - position
    number.is_exact, number.is_integer = True, False
    cursor.position = position
    return True


cdef Fault scan_int64(Cursor* cursor, long long* value) noexcept nogil:
    """Read an integer. WRONG_TYPE for any other value; OUT_OF_RANGE for magnitudes from 2^63.

    The cursor steps behind an integer, even when it is out of range. Where there is none, it stays.
    """
    cdef const unsigned char* begin
    cdef const unsigned char* position
    cdef uint64_t digits = 0
    cdef Number number
    cdef Fault fault
    skip_blanks(cursor)
    begin = position = cursor.position
    while is_digit(position, cursor.end) and position - begin < MAX_DIGITS - 1:
        digits = digits * 10 + (position[0] - c"0")
        position += 1
    if position > begin and position < cursor.end and begin[0] != c"0" and (
        position[0] == c"," or position[0] == c"]" or position[0] == c"}"
    ):
        value[0] = digits  # as nearly all are
        cursor.position = position
        return NO_FAULT
    if begin == cursor.end or not (begin[0] == c"-" or is_digit(begin, cursor.end)):
        return WRONG_TYPE
    fault = scan_number(cursor, &number)
    if fault != NO_FAULT:
        return fault
    if not number.is_integer:
        cursor.position = begin
        return WRONG_TYPE
    if not number.is_exact or number.digits > <uint64_t>INT64_MAX:
        return OUT_OF_RANGE
    value[0] = -<int64_t>number.digits if number.is_negative else <int64_t>number.digits
    return NO_FAULT


@cython.cdivision(True)  # no divisor is zero
cdef inline bint exact_double(const Number* number, double* value) noexcept nogil:
    """The nearest double of a number that was scanned whole and is not too large, with its sign.

    A product or quotient of two doubles that are exact is rounded once.
    """
    cdef int64_t exponent = number.exponent
    if not number.is_exact:
        return False
    if number.digits <= EXACT_DIGITS and -EXACT_POWERS <= exponent <= EXACT_POWERS:
        value[0] = <double>number.digits
        if exponent < 0:
            value[0] /= POWERS[-exponent]
        else:
            value[0] *= POWERS[exponent]
    elif number.digits == 0:
        value[0] = 0.0
    elif -MAX_FIVES <= exponent <= MAX_FIVES:
        value[0] = nearest_double(number.digits, <int>exponent)
    else:
        return False
    value[0] *= SIGNS[number.is_negative]  # without a branch, as signs are hard to predict
    return True


cdef inline bint is_large(const Number* number) noexcept nogil:
    """Whether a number that is out of range is too large, rather than too small.

    Its magnitude is below 10^(n_digits + exponent), and not below a tenth of that.
    """
    return number.n_digits + number.exponent > 0


cdef inline Fault double_of(
    const Number* number, const unsigned char* begin, const unsigned char* end, double* value
) noexcept nogil:
    """The nearest double of a scanned number, or OUT_OF_RANGE."""
    cdef int parsed
    if exact_double(number, value):
        return NO_FAULT
    parsed = parse_double(begin, end, value)
    if parsed < 0:
        return NO_MEMORY
    if parsed == 0:
        if is_large(number):
            return OUT_OF_RANGE
        value[0] = -0.0 if number.is_negative else 0.0
    return NO_FAULT


cdef inline bint exact_single(const Number* number, float* value) noexcept nogil:
    """The nearest float of a scanned number, if the nearest double is known and decides it.

    The nearest double decides the float, too, unless it is the middle between two floats: then the
    number may be on either side of it, or on it. That is told by the 29 bits that a float does not
    have. The middles between subnormal floats, and what a float cannot hold, have other bits, so
    only the normal range of a float is decided here.
    """
    cdef double wide
    cdef uint64_t bits
    if exact_double(number, &wide):
        memcpy(&bits, &wide, 8)
        if bits & 0x1FFFFFFF != 0x10000000 and (MIN_NORMAL <= fabs(wide) <= MAX_FLOAT or wide == 0):
            value[0] = <float>wide
            return True
    return False


cdef inline Fault single_of(
    const Number* number, const unsigned char* begin, const unsigned char* end, float* value
) noexcept nogil:
    """The nearest float of a scanned number, or OUT_OF_RANGE."""
    cdef int parsed
    if exact_single(number, value):
        return NO_FAULT
    parsed = parse_single(begin, end, value)
    if parsed < 0:
        return NO_MEMORY
    if parsed == 0:
        if is_large(number):
            return OUT_OF_RANGE
        value[0] = -0.0 if number.is_negative else 0.0
    return NO_FAULT


# --- skipping ------------------------------------------------------------------------------------


cdef Fault skip_literal(Cursor* cursor, const char* literal) noexcept nogil:
    """Step behind `literal`, which is expected at the cursor."""
    cdef Py_ssize_t nbytes = strlen(literal)
    if cursor.end - cursor.position < nbytes or memcmp(cursor.position, literal, nbytes) != 0:
        return unexpected(cursor, literal)
    cursor.position += nbytes
    return NO_FAULT


cdef Fault open_level(Cursor* cursor) noexcept nogil:
    """Step behind the bracket at the cursor."""
    if cursor.level == cursor.max_level:
        return TOO_DEEP
    cursor.level += 1
    cursor.position += 1
    return NO_FAULT


cdef Fault scan_key(Cursor* cursor, Text* key) noexcept nogil:
    """Validate the key at the cursor, and step behind it and its colon."""
    cdef Fault fault = scan_string(cursor, key)
    if fault == NO_FAULT and not take(cursor, c":"):
        return unexpected(cursor, "':'")
    return fault


cdef Fault skip_value(Cursor* cursor) noexcept nogil:
    """Validate the value at the cursor, and step behind it."""
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


cdef Fault skip_list(Cursor* cursor) noexcept nogil:
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


cdef Fault skip_object(Cursor* cursor) noexcept nogil:
    cdef Py_ssize_t first = cursor.keys.n_keys
    cdef Text key
    cdef Fault fault = open_level(cursor)
    if fault != NO_FAULT:
        return fault
    if not take(cursor, c"}"):
        while True:
            fault = scan_key(cursor, &key)
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


# --- the data of a tensor ------------------------------------------------------------------------


cdef struct Elements:
    # Elements on their way from JSON to memory.
    Fault (*read_list)(Cursor* cursor, Elements* elements) noexcept nogil
    char* target  # of the next element
    Py_ssize_t itemsize
    int max_depth  # lists within each other
    uint64_t n_read
    uint64_t n_expected
    # Of integers only: the largest magnitudes.
    uint64_t most_positive
    uint64_t most_negative
    # Of strings only: a bytes object of `capacity` bytes that is not shared with anybody.
    PyObject* wire
    Py_ssize_t capacity
    Py_ssize_t nbytes


ctypedef Fault (*ReadElement)(Cursor* cursor, Elements* elements) noexcept nogil


cdef inline Fault read_list(Cursor* cursor, Elements* elements, ReadElement read) noexcept nogil:
    """Read lists within lists, row-major. The cursor stands at the first bracket.

    `read` reads one element to `target`. It is a constant in each caller, so that the compiler
    makes a loop of its own for each kind of element.

    Elements beyond `n_expected` are validated and counted, and all written to the same 8 bytes,
    which are aligned for any element.
    On a fault of one element, `n_read` is its index.
    """
    cdef int depth = 0
    cdef bint may_close = False  # an empty list
    cdef Fault fault
    cdef uint64_t surplus
    while True:
        skip_blanks(cursor)
        if cursor.position < cursor.end and cursor.position[0] == c"[":
            if depth == elements.max_depth:
                return DATA_TOO_DEEP
            fault = open_level(cursor)
            if fault != NO_FAULT:
                return fault
            depth += 1
            may_close = True
            continue
        if not (may_close and cursor.position < cursor.end and cursor.position[0] == c"]"):
            if elements.n_read >= elements.n_expected:
                elements.target = <char*>&surplus
            fault = read(cursor, elements)
            if fault != NO_FAULT:
                return fault
            elements.target += elements.itemsize
            elements.n_read += 1
        while not take(cursor, c","):
            if not take(cursor, c"]"):
                return unexpected(cursor, "',' or ']'")
            cursor.level -= 1
            depth -= 1
            if depth == 0:
                return NO_FAULT
        may_close = False


cdef inline Fault other_type(Cursor* cursor, const char* expected) noexcept nogil:
    """WRONG_TYPE where something else begins that could be a value, or UNEXPECTED."""
    if cursor.position < cursor.end and (
        cursor.position[0] == c"-" or c"0" <= cursor.position[0] <= c"9"
        or cursor.position[0] in b'"{tfnNI'
    ):
        return WRONG_TYPE
    return unexpected(cursor, expected)


cdef inline Fault read_integer(Cursor* cursor, Elements* elements) noexcept nogil:
    cdef const unsigned char* position = cursor.position
    cdef const unsigned char* end = cursor.end
    cdef bint is_negative = position < end and position[0] == c"-"
    cdef uint64_t digits = 0
    cdef int n_digits = 0, n
    cdef unsigned char digit
    position += is_negative
    if not is_digit(position, end):
        if is_negative and not (position < end and position[0] == c"I"):
            cursor.position = position
            return unexpected(cursor, "a digit")
        return other_type(cursor, "an integer")
    if position[0] == c"0" and is_digit(position + 1, end):
        cursor.position = position + 1
        return unexpected(cursor, "no digit after a leading zero")
    while end - position >= 8:
        n = append_digits(position, MAX_DIGITS - n_digits, &digits)
        n_digits += n
        position += n
        if n < 8:
            break
    while is_digit(position, end):
        digit = position[0] - c"0"
        n_digits += 1
        if n_digits > MAX_DIGITS and (
            n_digits > MAX_DIGITS + 1 or digits > (<uint64_t>-1 - digit) // 10
        ):
            return out_of_range_or_wrong_type(cursor)
        digits = digits * 10 + digit
        position += 1
    if position < end and (position[0] == c"." or position[0] | 0x20 == c"e"):
        return out_of_range_or_wrong_type(cursor)
    if digits > (elements.most_negative if is_negative else elements.most_positive):
        return OUT_OF_RANGE
    if is_negative:
        digits = 0 - digits  # two's complement
    # Little-endian: the low bytes come first, and of a number in range the others say nothing.
    if elements.itemsize == 8:
        memcpy(elements.target, &digits, 8)
    elif elements.itemsize == 4:
        memcpy(elements.target, &digits, 4)
    elif elements.itemsize == 2:
        memcpy(elements.target, &digits, 2)
    else:
        elements.target[0] = <char>digits
    cursor.position = position
    return NO_FAULT


cdef Fault out_of_range_or_wrong_type(Cursor* cursor) noexcept nogil:
    """What a long number is; the cursor stays where it begins, unless it is no number."""
    cdef const unsigned char* begin = cursor.position
    cdef Number number
    cdef Fault fault = scan_number(cursor, &number)
    if fault != NO_FAULT:
        return fault
    cursor.position = begin
    return OUT_OF_RANGE if number.is_integer else WRONG_TYPE


cdef inline Fault read_double(Cursor* cursor, Elements* elements) noexcept nogil:
    cdef const unsigned char* begin = cursor.position
    cdef Number number
    if scan_decimal(cursor, &number) and exact_double(&number, <double*>elements.target):
        return NO_FAULT
    cursor.position = begin
    return read_any_double(cursor, elements)


cdef Fault read_any_double(Cursor* cursor, Elements* elements) noexcept nogil:
    cdef const unsigned char* begin = cursor.position
    cdef double* target = <double*>elements.target
    cdef Number number
    cdef Fault fault
    if not begins_number(cursor):
        return read_special(cursor, target)
    fault = scan_number(cursor, &number)
    if fault == NO_FAULT:
        fault = double_of(&number, begin, cursor.position, target)
        if fault != NO_FAULT:
            cursor.position = begin
    return fault


cdef inline Fault read_single(Cursor* cursor, Elements* elements) noexcept nogil:
    cdef const unsigned char* begin = cursor.position
    cdef Number number
    if scan_decimal(cursor, &number) and exact_single(&number, <float*>elements.target):
        return NO_FAULT
    cursor.position = begin
    return read_any_single(cursor, elements)


cdef Fault read_any_single(Cursor* cursor, Elements* elements) noexcept nogil:
    cdef const unsigned char* begin = cursor.position
    cdef float* target = <float*>elements.target
    cdef double special = 0
    cdef Number number
    cdef Fault fault
    if not begins_number(cursor):
        fault = read_special(cursor, &special)
        target[0] = <float>special
        return fault
    fault = scan_number(cursor, &number)
    if fault == NO_FAULT:
        fault = single_of(&number, begin, cursor.position, target)
        if fault != NO_FAULT:
            cursor.position = begin
    return fault


cdef inline bint begins_number(const Cursor* cursor) noexcept nogil:
    """Whether a number stands at the cursor, rather than another value (-Infinity among them)."""
    cdef const unsigned char* position = cursor.position
    if position < cursor.end and position[0] == c"-":
        return position + 1 == cursor.end or position[1] != c"I"
    return is_digit(position, cursor.end)


cdef Fault read_special(Cursor* cursor, double* value) noexcept nogil:
    """NaN, Infinity and -Infinity, as some servers write them, and null, which is NaN."""
    if cursor.position < cursor.end:
        if cursor.position[0] == c"n":
            value[0] = NAN
            return skip_literal(cursor, "null")
        if cursor.position[0] == c"N":
            value[0] = NAN
            return skip_literal(cursor, "NaN")
        if cursor.position[0] == c"I":
            value[0] = INFINITY
            return skip_literal(cursor, "Infinity")
        if cursor.position[0] == c"-":
            value[0] = -INFINITY
            return skip_literal(cursor, "-Infinity")
    return other_type(cursor, "a number")


cdef inline Fault read_bool(Cursor* cursor, Elements* elements) noexcept nogil:
    if cursor.position < cursor.end and cursor.position[0] == c"t":
        elements.target[0] = 1
        return skip_literal(cursor, "true")
    if cursor.position < cursor.end and cursor.position[0] == c"f":
        elements.target[0] = 0
        return skip_literal(cursor, "false")
    return other_type(cursor, "true or false")


cdef inline Fault skip_element(Cursor* cursor, Elements* elements) noexcept nogil:
    """Any value, or what only floating point has; the datatype is not known yet."""
    cdef double special
    if cursor.position < cursor.end and cursor.position[0] in b"NI-" and not begins_number(cursor):
        return read_special(cursor, &special)
    return skip_value(cursor)


cdef inline Fault read_string(Cursor* cursor, Elements* elements) noexcept nogil:
    """Write a string as an element of BYTES: its length, and its text without escapes."""
    cdef Text text
    cdef Py_ssize_t nbytes
    cdef unsigned char* target
    cdef Fault fault
    if cursor.position == cursor.end or cursor.position[0] != c'"':
        return other_type(cursor, "a string")
    fault = scan_string(cursor, &text)
    if fault != NO_FAULT:
        return fault
    if PREFIX_NBYTES + text.nbytes > elements.capacity - elements.nbytes:
        if not grow(elements, PREFIX_NBYTES + text.nbytes):
            return NO_MEMORY
    target = <unsigned char*>address_of(elements.wire) + elements.nbytes
    nbytes = text.nbytes
    if text.has_escapes:
        nbytes = unescape(target + PREFIX_NBYTES, &text)
    else:
        memcpy(target + PREFIX_NBYTES, text.begin, nbytes)
    if <uint64_t>nbytes > UINT32_MAX:
        cursor.position = text.begin - 1
        return OUT_OF_RANGE
    store_le32(target, <uint32_t>nbytes)
    elements.nbytes += PREFIX_NBYTES + nbytes
    return NO_FAULT


cdef extern from "Python.h":
    PyObject* owned_bytes "PyBytes_FromStringAndSize"(const char* text, Py_ssize_t nbytes)
    # The macro, which reads no reference count: without the GIL it is only an address.
    char* address_of "PyBytes_AS_STRING"(PyObject* bytes) noexcept nogil


cdef Fault read_doubles(Cursor* cursor, Elements* elements) noexcept nogil:
    return read_list(cursor, elements, read_double)


cdef Fault read_singles(Cursor* cursor, Elements* elements) noexcept nogil:
    return read_list(cursor, elements, read_single)


cdef Fault read_integers(Cursor* cursor, Elements* elements) noexcept nogil:
    return read_list(cursor, elements, read_integer)


cdef Fault read_bools(Cursor* cursor, Elements* elements) noexcept nogil:
    return read_list(cursor, elements, read_bool)


cdef Fault skip_elements(Cursor* cursor, Elements* elements) noexcept nogil:
    return read_list(cursor, elements, skip_element)


cdef Fault read_texts(Cursor* cursor, Elements* elements) noexcept nogil:
    return read_list(cursor, elements, read_string)


cdef bint grow(Elements* elements, Py_ssize_t n_more) noexcept with gil:
    """Make room for `n_more` bytes; False when there is no memory.

    No overflow: both are sizes of memory that exists, or a fraction of one.
    """
    cdef Py_ssize_t capacity = max(
        elements.nbytes + n_more, elements.capacity + (elements.capacity >> 1))
    if _PyBytes_Resize(&elements.wire, capacity) != 0:
        PyErr_Clear()
        elements.capacity = 0
        return False
    elements.capacity = capacity
    return True


# --- with the GIL: values ------------------------------------------------------------------------


cdef int raise_fault(Cursor* cursor, Fault fault) except -1:
    """Raise the HeaderError of a fault that the cursor stands at; MemoryError for NO_MEMORY."""
    cdef Py_ssize_t offset = cursor.position - cursor.start
    if fault == NO_MEMORY:
        raise MemoryError
    if fault == TOO_DEEP:
        raise HeaderError(
            f"the JSON is nested too deep: level {cursor.max_level + 1} begins at byte {offset}, "
            f"at most {cursor.max_level} are accepted",
            offset=offset, expected=cursor.max_level, actual=cursor.max_level + 1)
    if fault == DUPLICATE_KEY:
        raise HeaderError(
            f"the JSON header has the member {excerpt(cursor)} twice in one object (byte {offset})",
            offset=offset)
    if fault == NOT_UTF8:
        raise HeaderError(f"the JSON header is not UTF-8 (byte {offset})", offset=offset)
    if fault == CONTROL_CHARACTER:
        what = f"a string has a control character, U+{cursor.position[0]:04X}, without an escape"
    elif fault == BAD_ESCAPE:
        what = "a string has an escape that JSON does not know"
    elif fault == LONE_SURROGATE:
        what = "a string has half of a surrogate pair"
    elif fault in (OUT_OF_RANGE, TOO_MANY_DIGITS):
        what = f"the number {excerpt(cursor)} is out of range"
    else:
        what = f"expected {cursor.expected.decode()}, found {found(cursor)}"
    raise HeaderError(f"the JSON header is malformed: {what} (byte {offset})", offset=offset)


cdef str found(Cursor* cursor):
    """What stands at the cursor, for an error message."""
    if cursor.position == cursor.end:
        return "its end"
    byte = cursor.position[0]
    return repr(chr(byte)) if 0x20 <= byte < 0x7F else f"the byte 0x{byte:02X}"


cdef str excerpt(Cursor* cursor):
    """The JSON text of the value at the cursor, abbreviated; the cursor stays.

    Raises HeaderError when it is not JSON.
    """
    cdef Cursor ahead = cursor[0]
    cdef Py_ssize_t n_keys = cursor.keys.n_keys
    cdef Fault fault
    with nogil:
        fault = skip_element(&ahead, NULL)
    cursor.keys.n_keys = n_keys  # a fault leaves those of objects that were open
    if fault != NO_FAULT:
        raise_fault(&ahead, fault)
    cdef Py_ssize_t nbytes = ahead.position - cursor.position
    if nbytes <= MAX_EXCERPT:
        return cursor.position[:nbytes].decode("utf-8", "replace")
    return cursor.position[:MAX_EXCERPT].decode("utf-8", "ignore") + f"... ({nbytes} bytes)"


cdef str string_of(const Text* text):
    """A validated string as Python has it."""
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef Py_ssize_t n_characters = 0, i
    cdef uint32_t character = 0, largest = 0
    cdef void* data
    cdef int kind
    cdef str made
    if text.is_ascii and not text.has_escapes and text.nbytes > 1:  # shorter ones are shared
        made = PyUnicode_New(text.nbytes, 127)
        memcpy(PyUnicode_1BYTE_DATA(made), text.begin, text.nbytes)
        return made
    if not text.has_escapes and text.nbytes < SHORT_NBYTES:
        return PyUnicode_DecodeUTF8(<const char*>text.begin, text.nbytes, NULL)
    # Measured first, so that no more memory is used than the string has at last.
    while raw < end:
        character = next_character(&raw)
        largest = max(largest, character)
        n_characters += 1
    if n_characters == 1:
        return chr(character)
    made = PyUnicode_New(n_characters, largest)
    kind, data = PyUnicode_KIND(made), PyUnicode_DATA(made)
    raw = text.begin
    for i in range(n_characters):
        PyUnicode_WRITE(kind, data, i, next_character(&raw))
    return made


cdef object read_value(Cursor* cursor):
    """The value at the cursor as Python's json would make it; the cursor steps behind it."""
    cdef Text text
    cdef Fault fault
    cdef unsigned char first
    count_work(cursor, 1)
    skip_blanks(cursor)
    first = cursor.position[0] if cursor.position < cursor.end else 0
    if first == c'"':
        fault = scan_string(cursor, &text)
        if fault != NO_FAULT:
            raise_fault(cursor, fault)
        return string_of(&text)
    if first == c"-" or c"0" <= first <= c"9":
        return number_value(cursor)
    if first == c"{":
        return read_object(cursor)
    if first == c"[":
        return list_value(cursor)
    fault = skip_value(cursor)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return True if first == c"t" else False if first == c"f" else None


cdef object number_value(Cursor* cursor):
    cdef const unsigned char* begin = cursor.position
    cdef Number number
    cdef double value
    cdef Fault fault = scan_number(cursor, &number)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    if not number.is_integer:
        fault = double_of(&number, begin, cursor.position, &value)
        if fault != NO_FAULT:
            cursor.position = begin
            raise_fault(cursor, fault)
        return value
    if number.is_exact and number.digits <= <uint64_t>INT64_MAX:
        return PyLong_FromLongLong(
            -<int64_t>number.digits if number.is_negative else <int64_t>number.digits)
    if cursor.position - begin - number.is_negative <= MAX_INTEGER_DIGITS:
        try:
            return int(begin[:cursor.position - begin])
        except ValueError:  # sys.set_int_max_str_digits() may allow fewer
            pass
    cursor.position = begin
    raise_fault(cursor, TOO_MANY_DIGITS)


cdef int open_at(Cursor* cursor) except -1:
    """Step behind the bracket at the cursor. Raises HeaderError where that is too deep."""
    cdef Fault fault = open_level(cursor)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef bint next_item(Cursor* cursor, bint is_first) except -1:
    """Step to the next item of a list; False when the list has ended, and behind its bracket."""
    if take(cursor, c"]"):
        cursor.level -= 1
        return False
    if not is_first and not take(cursor, c","):
        raise_fault(cursor, unexpected(cursor, "',' or ']'"))
    return True


cdef bint next_member(Cursor* cursor, Text* key, bint is_first) except -1:
    """Step to the value of the next member, and give its key; False behind the object's end."""
    cdef Fault fault
    if take(cursor, c"}"):
        cursor.level -= 1
        return False
    if not is_first and not take(cursor, c","):
        raise_fault(cursor, unexpected(cursor, "',' or '}'"))
    fault = scan_key(cursor, key)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return True


cdef list list_value(Cursor* cursor):
    cdef list items = []
    open_at(cursor)
    while next_item(cursor, len(items) == 0):
        items.append(read_value(cursor))
    return items


cdef dict read_object(Cursor* cursor):
    """The object at the cursor, which stands at its bracket."""
    cdef dict members = {}
    cdef Text key
    open_at(cursor)
    while next_member(cursor, &key, len(members) == 0):
        set_member(cursor, members, &key, read_value(cursor))
    return members


cdef int set_member(Cursor* cursor, dict members, const Text* key, value) except -1:
    """Add a member, or raise HeaderError when there is one of that name."""
    cdef Py_ssize_t before = len(members)
    members[string_of(key)] = value
    if len(members) == before:
        cursor.position = key.begin - 1
        raise_fault(cursor, DUPLICATE_KEY)
    return 0


# --- with the GIL, or without where it takes long ------------------------------------------------


cdef inline Cursor short_try(const Cursor* cursor) noexcept nogil:
    """A cursor over the same text that ends after SHORT_NBYTES at the latest."""
    cdef Cursor tried = cursor[0]
    if tried.end - tried.position > SHORT_NBYTES:
        tried.end = tried.position + SHORT_NBYTES
    return tried


cdef inline bint is_final(const Cursor* tried, const Cursor* cursor, Fault fault) noexcept nogil:
    """Whether a try says the same as a reading of the whole text would.

    It does not when it stopped at its own end, and may not when that end made something a fault.
    """
    return (
        tried.end == cursor.end or (fault == NO_FAULT and tried.position < tried.end)
        or fault == NO_MEMORY
    )


cdef inline void accept(Cursor* cursor, const Cursor* tried) noexcept:
    count_work(cursor, (tried.position - cursor.position) // BYTES_PER_WORK)
    cursor.position, cursor.level, cursor.expected = tried.position, tried.level, tried.expected


cdef void count_work(Cursor* cursor, Py_ssize_t n) noexcept:
    """Count what was done with the GIL held; after much of it, let other threads have a turn."""
    cursor.work += n
    if cursor.work >= WORK_PER_TURN:
        cursor.work = 0
        with nogil:
            pass


cdef int skip_any(Cursor* cursor) except -1:
    """Validate the value at the cursor, whatever it is, and step behind it. Raises HeaderError."""
    cdef Cursor tried = short_try(cursor)
    cdef Py_ssize_t n_keys = cursor.keys.n_keys
    cdef Fault fault = skip_value(&tried)
    if is_final(&tried, cursor, fault):
        accept(cursor, &tried)
    else:
        cursor.keys.n_keys = n_keys
        with nogil:
            fault = skip_value(cursor)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef int skip_data(Cursor* cursor) except -1:
    """Validate the lists at the cursor, whose datatype is not known yet, and step behind them."""
    cdef Elements elements
    elements.read_list = skip_elements
    elements.target = NULL
    elements.itemsize, elements.max_depth = 0, cursor.max_level
    elements.n_read = elements.n_expected = elements.nbytes = 0
    cdef Fault fault = read_elements(cursor, &elements)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef Fault read_elements(Cursor* cursor, Elements* elements):
    """Read lists of elements, without the GIL when it takes long."""
    cdef Cursor tried = short_try(cursor)
    cdef char* target = elements.target
    cdef Py_ssize_t n_keys = cursor.keys.n_keys
    cdef Fault fault = elements.read_list(&tried, elements)
    if fault == NO_MEMORY or is_final(&tried, cursor, fault):
        accept(cursor, &tried)
        return fault
    elements.target, elements.n_read, elements.nbytes = target, 0, 0
    cursor.keys.n_keys = n_keys
    with nogil:
        fault = elements.read_list(cursor, elements)
    return fault


cdef Fault read_numbers(
    Cursor* cursor, cnp.dtype dtype, char* target, uint64_t n_expected, uint64_t* n_read
):
    """Read the lists of numbers, or of true and false, at the cursor to aligned memory.

    `target` has room for `n_expected` elements of `dtype`, any of the table but FP16 and BF16. More
    of them are validated, and counted in `n_read`. For a fault of one element, WRONG_TYPE or
    OUT_OF_RANGE, the cursor stands at it and `n_read` is its index.
    """
    cdef Elements elements
    cdef char kind = dtype.kind
    elements.itemsize = dtype.itemsize
    if kind == c"f":
        elements.read_list = read_doubles if elements.itemsize == 8 else read_singles
    elif kind == c"b":
        elements.read_list = read_bools
    else:
        elements.read_list = read_integers
        elements.most_positive = <uint64_t>-1 >> (64 - 8 * elements.itemsize)
        elements.most_negative = 0
        if kind == c"i":
            elements.most_positive >>= 1
            elements.most_negative = elements.most_positive + 1
    elements.target, elements.max_depth = target, MAX_DATA_DEPTH
    elements.n_read, elements.n_expected, elements.nbytes = 0, n_expected, 0
    cdef Fault fault = read_elements(cursor, &elements)
    n_read[0] = elements.n_read
    return fault


cdef bytes read_strings(Cursor* cursor, uint64_t n_expected, uint64_t* n_read, Fault* fault):
    """Read the lists of strings at the cursor as the wire bytes of a BYTES tensor.

    Faults are those of `read_numbers`, and OUT_OF_RANGE is a string of 2^32 bytes and more; the
    result is None then. The caller has checked that the text may hold `n_expected` elements.
    """
    cdef Elements elements
    cdef bytes wire
    elements.read_list = read_texts
    elements.target = NULL
    elements.itemsize, elements.max_depth = 0, MAX_DATA_DEPTH
    elements.n_read, elements.n_expected, elements.nbytes = 0, n_expected, 0
    # A first guess; `grow` corrects it. At least one byte, because b"" is shared.
    elements.capacity = 64 + PREFIX_NBYTES * <Py_ssize_t>n_expected
    elements.wire = owned_bytes(NULL, elements.capacity)
    if elements.wire == NULL:
        raise MemoryError
    fault[0] = read_elements(cursor, &elements)
    n_read[0] = elements.n_read
    if fault[0] == NO_FAULT and _PyBytes_Resize(&elements.wire, elements.nbytes) != 0:
        raise MemoryError
    if elements.wire == NULL:
        return None
    wire = <bytes>elements.wire
    Py_DECREF(wire)  # the reference that `elements` owned
    return wire if fault[0] == NO_FAULT else None


def read_json(bytes text not None, int max_level):
    """The value that is `text`, as Python's json would make it. Raises HeaderError.

    ``max_level``: lists and objects within each other, at most.
    """
    cdef Cursor cursor
    cdef Keys keys
    begin_reading(&cursor, &keys, PyBytes_AS_STRING(text), len(text), max_level)
    try:
        value = read_value(&cursor)
        skip_blanks(&cursor)
        if cursor.position != cursor.end:
            raise_fault(&cursor, unexpected(&cursor, "its end"))
        return value
    finally:
        end_reading(&keys)


cdef void begin_reading(
    Cursor* cursor, Keys* keys, const char* text, Py_ssize_t nbytes, int max_level
) noexcept:
    """Put the cursor at the beginning of a text, which must stay where it is and as it is.

    So must `keys`, which become empty, and need `end_reading`.
    """
    cursor.start = cursor.position = <const unsigned char*>text
    cursor.end = cursor.start + nbytes
    cursor.level = 0
    cursor.max_level = max_level
    cursor.work = 0
    cursor.expected = NULL
    cursor.keys = keys
    keys.begins = NULL
    keys.n_keys = keys.capacity = 0


cdef void end_reading(Keys* keys) noexcept:
    """Release what skipping has allocated."""
    PyMem_RawFree(keys.begins)
