# distutils: language = c++
# distutils: extra_compile_args = -std=c++17
"""Read JSON text strictly, as RFC 8259 and UTF-8 define it.

There is one extension: `data` of a tensor may contain NaN, Infinity and -Infinity. Duplicate keys,
deep nesting and numbers out of range are errors.

The first part of this file contains kernels that work on a `ReadCursor`. They use no Python
objects; the only exception is `grow_wire`, which acquires the GIL. On an error they return a
`Fault`, and leave the cursor at the byte that caused it. Bounds: every read of a byte follows a
comparison of `position` with `end`, or of the number of bytes between them with the number that is
read, and nothing moves `position` past `end`. Only functions that read a validated string again
need no such comparison: they stop at its end. The text must not change while it is read, so the
caller copies it if another thread could write to it.

The second part creates Python objects, and raises a HeaderError for a fault. The numbers and
strings in the `data` of a tensor do not become objects: `read_numbers` writes numbers to the memory
of an array, and `read_strings` writes strings as the length-prefixed bytes of a BYTES tensor. Long
`data` and long values that are skipped are read without the GIL. A first attempt keeps the GIL and
reads at most SHORT_NBYTES bytes. If the value does not end there, it is read again from its
beginning without the GIL.

An object must not contain a key twice, because two readers could then interpret the same message
differently. A dict detects duplicates itself. For objects that are skipped, pointers to the keys
are kept on a stack until the object ends. Then they are sorted, and neighbours are compared. This
takes 8 bytes per key. It needs no hash table, in which a sender could provoke collisions.
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

from ..errors import HeaderError, format_count

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

    /* 5^n for every n for which it fits in 64 bits. */
    static const unsigned long long POWERS_OF_5[28] = {
        1ULL, 5ULL, 25ULL, 125ULL, 625ULL, 3125ULL, 15625ULL, 78125ULL, 390625ULL, 1953125ULL,
        9765625ULL, 48828125ULL, 244140625ULL, 1220703125ULL, 6103515625ULL, 30517578125ULL,
        152587890625ULL, 762939453125ULL, 3814697265625ULL, 19073486328125ULL, 95367431640625ULL,
        476837158203125ULL, 2384185791015625ULL, 11920928955078125ULL, 59604644775390625ULL,
        298023223876953125ULL, 1490116119384765625ULL, 7450580596923828125ULL};
    #define MAX_EXPONENT_OF_5 27

    /* floor(2^127 / d), where d is 5^n shifted left until its highest bit is set. */
    static unsigned long long reciprocals[28];
    static void fill_reciprocals(void) {
        for (int n = 1; n <= MAX_EXPONENT_OF_5; n++) {
            unsigned long long d = POWERS_OF_5[n] << __builtin_clzll(POWERS_OF_5[n]);
            reciprocals[n] = (unsigned long long)(((unsigned __int128)1 << 127) / d);
        }
    }

    /* Return the double nearest to digits * 10^exponent, for digits > 0 and
       |exponent| <= MAX_EXPONENT_OF_5.

       The number is converted to quotient * 2^binary. The highest of the 64 bits of `quotient` is
       set, and `remainder` is not 0 if any lower bits were cut off. Rounding to the 53 bits of a
       double, half to even, depends on nothing else. The result is between 1e-27 and 2^64 * 1e27,
       so it is neither subnormal nor infinite.

       For a negative exponent, the number is first multiplied by a reciprocal instead of being
       divided. The reciprocal is too small by less than 1. The product of 128 bits is therefore too
       small by less than 2^64, and its high half by less than 2: V - 2 < quotient < V, where V is
       the true quotient, between 2^62 and 2^64. If the quotient has 63 bits, both are doubled:
       V - 4 < quotient < V. In the lowest 11 bits, which are rounded, 0x400 is one half. If they
       are not 0x3FC to 0x3FF, V and the quotient are on the same side of one half, and V is not
       exactly one half. Otherwise (for one number in 512 and every tie) the number is divided. */
    static inline double nearest_double(unsigned long long digits, int exponent) {
        int shift = __builtin_clzll(digits), binary = exponent - shift, is_short;
        unsigned long long quotient, remainder = 1, mantissa, cut, bits;
        unsigned __int128 wide;
        double value, scale;
        digits <<= shift;
        if (exponent < 0) {
            unsigned long long divisor = POWERS_OF_5[-exponent];
            shift = __builtin_clzll(divisor);
            quotient = (unsigned long long)(
                (unsigned __int128)digits * reciprocals[-exponent] >> 64);
            is_short = !(quotient >> 63);
            if (__builtin_expect(((quotient << is_short) & 0x7FC) == 0x3FC, 0)) {
                divisor <<= shift;
                wide = (unsigned __int128)digits << 63;
                quotient = (unsigned long long)(wide / divisor);
                remainder = (unsigned long long)(wide % divisor);
                /* Doubling a quotient of 63 bits may lose the lowest bit, but then the remainder is
                   not 0, which has the same effect on the rounding. */
                is_short = !(quotient >> 63);
            }
            binary += shift - 63 - is_short;
            quotient <<= is_short;
        } else {
            unsigned long long factor = POWERS_OF_5[exponent];
            shift = __builtin_clzll(factor);
            wide = (unsigned __int128)digits * (factor << shift);  /* at least 2^126 */
            binary += 64 - shift;
            if (!(wide >> 127)) { wide <<= 1; binary--; }
            quotient = (unsigned long long)(wide >> 64);
            remainder = (unsigned long long)wide;
        }
        mantissa = quotient >> 11;
        cut = quotient & 0x7FF;
        /* No branches: they could not be predicted, because half of all numbers are rounded up. */
        mantissa += (cut > 0x400) | ((cut == 0x400) & ((remainder != 0) | (mantissa & 1)));
        value = (double)(long long)mantissa;  /* exact, since at most 2^53; so is the product */
        bits = (unsigned long long)(binary + 11 + 1023) << 52;  /* 2^(binary + 11) */
        memcpy(&scale, &bits, 8);
        return value * scale;
    }

    #if defined(__cpp_lib_to_chars) && !defined(TENSORWIRE_NO_CHARCONV)

    /* Parse a JSON number, and round it correctly. Return 1; or 0 if it is out of the range of the
       type; or -1 if there is no memory, which some libraries need for many digits. */
    template <typename Float>
    static int parse_float(const unsigned char *first, const unsigned char *last, Float *value) {
        std::errc error = std::from_chars((const char *)first, (const char *)last, *value).ec;
        return error == std::errc() ? 1 : error == std::errc::result_out_of_range ? 0 : -1;
    }

    #else
    /* strtod and strtof also round correctly in the C libraries of all supported platforms. The
       decimal point must not depend on the locale of the process. */

    #include <locale.h>
    #if defined(__APPLE__)
    #include <xlocale.h>
    #endif
    #if defined(__GLIBC__) || defined(__APPLE__)
    static locale_t c_locale(void) {
        static locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        return c;
    }
    static void to_float(const char *text, double *value) {
        *value = strtod_l(text, NULL, c_locale());
    }
    static void to_float(const char *text, float *value) {
        *value = strtof_l(text, NULL, c_locale());
    }
    #elif defined(__linux__)  /* musl: the decimal point is '.' in all locales */
    static void to_float(const char *text, double *value) { *value = strtod(text, NULL); }
    static void to_float(const char *text, float *value) { *value = strtof(text, NULL); }
    #else
    #error "There is no code for this platform's C library, and <charconv> lacks floating point."
    #endif

    template <typename Float>
    static int parse_float(const unsigned char *first, const unsigned char *last, Float *value) {
        char small[128];
        size_t nbytes = (size_t)(last - first);
        char *text = nbytes < sizeof small ? small : (char *)malloc(nbytes + 1);
        if (text == NULL) return -1;
        memcpy(text, first, nbytes);
        text[nbytes] = 0;  /* strtod needs a terminator */
        to_float(text, value);
        if (text != small) free(text);
        return !isinf(*value) && *value != 0;  /* 0 means underflow: zeros are handled elsewhere */
    }

    #endif
    """
    int MAX_EXPONENT_OF_5
    void fill_reciprocals() noexcept nogil
    double nearest_double(unsigned long long digits, int exponent) noexcept nogil
    int parse_float[T](
        const unsigned char* first, const unsigned char* last, T* value) noexcept nogil

ctypedef fused Float:
    double
    float

cdef enum:
    SHORT_NBYTES = 128 << 10  # reading any JSON of this size takes at most about 1 ms
    WORK_PER_TURN = 10_000  # until the GIL is released briefly; a Python object counts as 1
    BYTES_PER_WORK = 16  # bytes of JSON that count as 1 if no objects are created
    MAX_DIGITS = 19  # any number of 19 digits fits in 64 bits
    DECIMAL_NBYTES = 48  # `scan_decimal` reads fewer bytes
    MAX_EXPONENT = 1 << 30  # larger exponents are beyond any double, so their value is not needed
    MAX_EXCERPT_NBYTES = 60  # of a value in an error message
    MAX_EXACT_EXPONENT = 22  # 10^22 is the largest power of ten that a double represents exactly

fill_reciprocals()

# A double represents every integer up to 2^53 exactly. The bound is lower, so that numbers of 16
# digits, which most doubles need, all take the same path: a processor could not predict which of
# them are above 2^53.
cdef uint64_t MAX_EXACT_INTEGER = 10 ** 15
cdef double[2] SIGNS
SIGNS[:] = [1.0, -1.0]
cdef double MIN_NORMAL = 2.0 ** -126  # the smallest normal float
cdef double MAX_FLOAT = (2 - 2.0 ** -23) * 2.0 ** 127
cdef double[23] POWERS_OF_10
POWERS_OF_10[:] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
]

cdef uint64_t[9] INTEGER_POWERS_OF_10
INTEGER_POWERS_OF_10[:] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000]

cdef extern from *:
    """
    #define ONES 0x0101010101010101ULL  /* ONES * b is a word with b in each of its 8 bytes */
    """
    const uint64_t ONES
    int ctz "__builtin_ctzll"(unsigned long long bits) noexcept nogil


# --- strings -------------------------------------------------------------------------------------


cdef inline uint64_t mark_special(uint64_t word) noexcept nogil:
    """Mark the quotes, backslashes and control characters in `word` with 0x80 in the result.

    All other bytes of the result are 0, unless a borrow marks a byte wrongly. This only happens
    above a byte that is marked correctly. The lowest mark is therefore always correct, and a result
    of 0 means that there are no such characters.
    """
    cdef uint64_t quotes = word ^ (ONES * c'"')
    cdef uint64_t backslashes = word ^ (ONES * c"\\")
    return (
        ((quotes - ONES) & ~quotes) | ((backslashes - ONES) & ~backslashes)
        | ((word - ONES * 0x20) & ~word)
    ) & (ONES * 0x80)


cdef Fault scan_any_string(ReadCursor* cursor, Text* text) noexcept nogil:
    """Do the work of `scan_string` for any string, 8 bytes at a time."""
    cdef const unsigned char* position
    cdef const unsigned char* end = cursor.end
    cdef uint64_t word, special, high_bits = 0
    cdef Py_ssize_t invalid
    cdef Fault fault
    if not next_is(cursor, c'"'):
        return unexpected(cursor, "a string")
    position = cursor.position + 1
    text.begin = position
    text.has_escapes = False
    while True:
        while end - position >= 8:
            memcpy(&word, position, 8)
            # The word may pass the end of the string. At worst, ASCII is validated as UTF-8 below.
            high_bits |= word & (ONES * 0x80)
            special = mark_special(word)
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


cdef Fault scan_escape(ReadCursor* cursor) noexcept nogil:
    """Validate the escape at the cursor, or both of a surrogate pair, and advance past it."""
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
    """Return the value of four hexadecimal digits, or -1 if one of the bytes is not a digit."""
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


cdef inline uint32_t next_character(const unsigned char** position) noexcept nogil:
    """Return the next code point of a validated string, escaped or not, and advance past it."""
    cdef const unsigned char* raw = position[0]
    cdef uint32_t unit = raw[0]
    if unit == c"\\":
        position[0] = raw + 2
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
        position[0] = raw + 6
        unit = hex_unit(raw + 2)
        if 0xD800 <= unit <= 0xDBFF:
            position[0] = raw + 12
            unit = 0x10000 + ((unit - 0xD800) << 10) + (hex_unit(raw + 8) - 0xDC00)
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


cdef Py_ssize_t unescape(unsigned char* target, const Text* text) noexcept nogil:
    """Write a validated string with its escapes resolved. Return the number of bytes.

    They are at most `text.nbytes`: an escape of 2 bytes becomes 1 byte, an escape of 6 bytes at
    most 3, and a surrogate pair of 12 bytes becomes 4.
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
    """Return the number of bytes that `unescape` would write."""
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


cdef bint equals_escaped(const Text* text, const char* word, Py_ssize_t nbytes) noexcept nogil:
    """Do the work of `equals` for a string that may have escapes."""
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef Py_ssize_t i
    for i in range(nbytes):
        if raw == end or next_character(&raw) != <unsigned char>word[i]:
            return False
    return raw == end


# --- keys of objects that are skipped ------------------------------------------------------------


cdef Fault push_key(ReadCursor* cursor, const unsigned char* begin) noexcept nogil:
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


cdef Fault pop_keys(ReadCursor* cursor, Py_ssize_t first) noexcept nogil:
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


cdef int compare_keys(const void* one, const void* other) noexcept nogil:
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
    """Return whether there is a byte at `position`, and it is a digit."""
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


cdef Fault scan_number(ReadCursor* cursor, Number* number) noexcept nogil:
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


cdef inline bint scan_decimal(ReadCursor* cursor, Number* number) noexcept nogil:
    """Do the work of `scan_number` for the usual form: digits, a point, digits, and no exponent.

    Returns False for any other form, and if fewer than DECIMAL_NBYTES of text are left. The caller
    then calls `scan_number`. Bounds: at most a sign, 8 digits, a point and MAX_DIGITS digits are
    accepted, and at most 8 bytes are read after the last accepted byte. This is less than
    DECIMAL_NBYTES in total.
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


cdef Fault scan_int64(ReadCursor* cursor, long long* value) noexcept nogil:
    """Read an integer. Return WRONG_TYPE for any other value, OUT_OF_RANGE for 2^63 and above.

    OUT_OF_RANGE applies to the magnitude, so -2^63 is out of range too. The cursor advances past an
    integer, even if that is out of range. For WRONG_TYPE, it is at the beginning of the value.
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
        value[0] = digits  # the usual case
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
    """Compute the double nearest to a scanned number. Return False if this needs `parse_float`.

    `parse_float` is needed if digits were dropped, or if the exponent is too large or too small. A
    product or quotient of two exact doubles is correct, because it is rounded only once.
    """
    cdef int64_t exponent = number.exponent
    if not number.is_exact:
        return False
    if number.digits <= MAX_EXACT_INTEGER and -MAX_EXACT_EXPONENT <= exponent <= MAX_EXACT_EXPONENT:
        value[0] = <double>number.digits
        if exponent < 0:
            value[0] /= POWERS_OF_10[-exponent]
        else:
            value[0] *= POWERS_OF_10[exponent]
    elif number.digits == 0:
        value[0] = 0.0
    elif -MAX_EXPONENT_OF_5 <= exponent <= MAX_EXPONENT_OF_5:
        value[0] = nearest_double(number.digits, <int>exponent)
    else:
        return False
    value[0] *= SIGNS[number.is_negative]  # no branch, because signs are hard to predict
    return True


cdef inline bint is_large(const Number* number) noexcept nogil:
    """Return whether a number that is out of range is too large, rather than too small.

    Its magnitude is below 10^(n_digits + exponent), and at least a tenth of that.
    """
    return number.n_digits + number.exponent > 0


cdef inline bint exact_single(const Number* number, float* value) noexcept nogil:
    """Compute the float nearest to a scanned number. Return False if this needs `parse_float`.

    The nearest double rounds to the nearest float, unless the double is halfway between two floats:
    the number itself may then be above, below or exactly halfway. The 29 bits that a float does not
    have show whether the double is halfway. For subnormal floats and beyond the range of floats,
    other bits would show it, so that only zero and the normal range are handled here.
    """
    cdef double wide
    cdef uint64_t bits
    if exact_double(number, &wide):
        memcpy(&bits, &wide, 8)
        if bits & 0x1FFFFFFF != 0x10000000 and (MIN_NORMAL <= fabs(wide) <= MAX_FLOAT or wide == 0):
            value[0] = <float>wide
            return True
    return False


cdef inline Fault nearest_float(
    const Number* number, const unsigned char* begin, const unsigned char* end, Float* value
) noexcept nogil:
    """Compute the double or float nearest to a scanned number, whose text is `begin` to `end`.

    Returns OUT_OF_RANGE if the number is too large. A number that is too small becomes zero.
    """
    cdef int parsed
    cdef bint is_exact
    if Float is double:
        is_exact = exact_double(number, value)
    else:
        is_exact = exact_single(number, value)
    if is_exact:
        return NO_FAULT
    parsed = parse_float(begin, end, value)
    if parsed < 0:
        return NO_MEMORY
    if parsed == 0:
        if is_large(number):
            return OUT_OF_RANGE
        value[0] = -0.0 if number.is_negative else 0.0
    return NO_FAULT


# --- skipping ------------------------------------------------------------------------------------


cdef Fault skip_literal(ReadCursor* cursor, const char* literal) noexcept nogil:
    """Advance past `literal`, which is expected at the cursor."""
    cdef Py_ssize_t nbytes = strlen(literal)
    if cursor.end - cursor.position < nbytes or memcmp(cursor.position, literal, nbytes) != 0:
        return unexpected(cursor, literal)
    cursor.position += nbytes
    return NO_FAULT


cdef Fault open_level(ReadCursor* cursor) noexcept nogil:
    """Advance past the opening bracket at the cursor. Return TOO_DEEP if that is not allowed."""
    if cursor.level == cursor.max_level:
        return TOO_DEEP
    cursor.level += 1
    cursor.position += 1
    return NO_FAULT


cdef Fault scan_key(ReadCursor* cursor, Text* key) noexcept nogil:
    """Validate the key at the cursor, and advance past it and its colon."""
    cdef Fault fault = scan_string(cursor, key)
    if fault == NO_FAULT and not take(cursor, c":"):
        return unexpected(cursor, "':'")
    return fault


cdef Fault skip_value(ReadCursor* cursor) noexcept nogil:
    """Validate the value at the cursor, and advance past it."""
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


cdef Fault skip_list(ReadCursor* cursor) noexcept nogil:
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


cdef Fault skip_object(ReadCursor* cursor) noexcept nogil:
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


cdef struct ParsedElements:
    # How the elements of a tensor are read, and where they are written.
    Fault (*read_list)(ReadCursor* cursor, ParsedElements* elements) noexcept nogil
    char* target  # where the next element is written
    Py_ssize_t itemsize
    int max_depth  # maximum number of nested lists
    uint64_t n_read
    uint64_t n_expected
    # Only for integers: the largest magnitudes in the range of the datatype.
    uint64_t most_positive
    uint64_t most_negative
    # Only for strings: a bytes object of `capacity` bytes without other references, and the number
    # of bytes that were written to it.
    PyObject* wire
    Py_ssize_t capacity
    Py_ssize_t nbytes


ctypedef Fault (*ReadElement)(ReadCursor* cursor, ParsedElements* elements) noexcept nogil


cdef inline Fault read_list(
    ReadCursor* cursor, ParsedElements* elements, ReadElement read
) noexcept nogil:
    """Read nested lists of elements in row-major order. The cursor is at the first bracket.

    `read` reads one element to `target`. It is a constant in each caller, so that the compiler
    generates a separate loop for each kind of element.

    ParsedElements beyond `n_expected` are validated and counted. They are all written to the same 8
    bytes, which are aligned for any element. If an element causes a fault, `n_read` is its index.
    """
    cdef int depth = 0
    cdef bint may_close = False  # after an opening bracket: the list may be empty
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


cdef inline Fault wrong_type_or_unexpected(ReadCursor* cursor, const char* expected) noexcept nogil:
    """Return WRONG_TYPE if another value may begin at the cursor, else UNEXPECTED or TEXT_ENDED."""
    if cursor.position < cursor.end and (
        cursor.position[0] == c"-" or c"0" <= cursor.position[0] <= c"9"
        or cursor.position[0] in b'"{tfnNI'
    ):
        return WRONG_TYPE
    return unexpected(cursor, expected)


cdef inline Fault read_integer(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    """Read an integer in the range of the datatype."""
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
        return wrong_type_or_unexpected(cursor, "an integer")
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
    # Little-endian: the low bytes come first. A number in range does not need the others.
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


cdef Fault out_of_range_or_wrong_type(ReadCursor* cursor) noexcept nogil:
    """Return the fault of a number that is too long, or that may have a fraction or an exponent.

    The cursor stays at the beginning of the number, unless the number is malformed.
    """
    cdef const unsigned char* begin = cursor.position
    cdef Number number
    cdef Fault fault = scan_number(cursor, &number)
    if fault != NO_FAULT:
        return fault
    cursor.position = begin
    return OUT_OF_RANGE if number.is_integer else WRONG_TYPE


cdef inline Fault read_double(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    """Read a number in the usual form, or else call `read_any_float`."""
    cdef const unsigned char* begin = cursor.position
    cdef double* target = <double*>elements.target
    cdef Number number
    if scan_decimal(cursor, &number) and exact_double(&number, target):
        return NO_FAULT
    cursor.position = begin
    return read_any_float(cursor, target)


cdef inline Fault read_single(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    """Read a number in the usual form, or else call `read_any_float`."""
    cdef const unsigned char* begin = cursor.position
    cdef float* target = <float*>elements.target
    cdef Number number
    if scan_decimal(cursor, &number) and exact_single(&number, target):
        return NO_FAULT
    cursor.position = begin
    return read_any_float(cursor, target)


cdef Fault read_any_float(ReadCursor* cursor, Float* target) noexcept nogil:
    """Read a number in any form, NaN, an infinity or null."""
    cdef const unsigned char* begin = cursor.position
    cdef double special = 0
    cdef Number number
    cdef Fault fault
    if not begins_number(cursor):
        fault = read_nonfinite(cursor, &special)
        target[0] = <Float>special
        return fault
    fault = scan_number(cursor, &number)
    if fault == NO_FAULT:
        fault = nearest_float(&number, begin, cursor.position, target)
        if fault != NO_FAULT:
            cursor.position = begin
    return fault


cdef inline bint begins_number(const ReadCursor* cursor) noexcept nogil:
    """Return whether a number begins at the cursor. -Infinity does not count as a number."""
    cdef const unsigned char* position = cursor.position
    if position < cursor.end and position[0] == c"-":
        return position + 1 == cursor.end or position[1] != c"I"
    return is_digit(position, cursor.end)


cdef Fault read_nonfinite(ReadCursor* cursor, double* value) noexcept nogil:
    """Read NaN, Infinity or -Infinity, which some servers write, or null, which means NaN."""
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
    return wrong_type_or_unexpected(cursor, "a number")


cdef inline Fault read_bool(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    """Read true or false."""
    if cursor.position < cursor.end and cursor.position[0] == c"t":
        elements.target[0] = 1
        return skip_literal(cursor, "true")
    if cursor.position < cursor.end and cursor.position[0] == c"f":
        elements.target[0] = 0
        return skip_literal(cursor, "false")
    return wrong_type_or_unexpected(cursor, "true or false")


cdef inline Fault skip_element(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    """Validate an element of any datatype, NaN and Infinity included, and advance past it."""
    cdef double special
    if cursor.position < cursor.end and cursor.position[0] in b"NI-" and not begins_number(cursor):
        return read_nonfinite(cursor, &special)
    return skip_value(cursor)


cdef inline Fault read_string(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    """Read a string, and write it as a BYTES element: a length prefix and the unescaped text."""
    cdef Text text
    cdef Py_ssize_t nbytes
    cdef unsigned char* target
    cdef Fault fault
    if cursor.position == cursor.end or cursor.position[0] != c'"':
        return wrong_type_or_unexpected(cursor, "a string")
    fault = scan_string(cursor, &text)
    if fault != NO_FAULT:
        return fault
    if PREFIX_NBYTES + text.nbytes > elements.capacity - elements.nbytes:
        if not grow_wire(elements, PREFIX_NBYTES + text.nbytes):
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
    # This macro only computes an address, so it can be used without the GIL.
    char* address_of "PyBytes_AS_STRING"(PyObject* bytes) noexcept nogil


cdef Fault read_doubles(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    return read_list(cursor, elements, read_double)


cdef Fault read_singles(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    return read_list(cursor, elements, read_single)


cdef Fault read_integers(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    return read_list(cursor, elements, read_integer)


cdef Fault read_bools(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    return read_list(cursor, elements, read_bool)


cdef Fault skip_elements(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    return read_list(cursor, elements, skip_element)


cdef Fault read_texts(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    return read_list(cursor, elements, read_string)


cdef bint grow_wire(ParsedElements* elements, Py_ssize_t n_more) noexcept with gil:
    """Make room for `n_more` bytes. Return False if there is no memory.

    No overflow: every term is the size of something in memory, or half of such a size.
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


cdef int raise_fault(ReadCursor* cursor, Fault fault) except -1:
    """Raise HeaderError for a fault at the cursor, or MemoryError for NO_MEMORY."""
    cdef Py_ssize_t offset = cursor.position - cursor.start
    if fault == NO_MEMORY:
        raise MemoryError
    if fault == TOO_DEEP:
        raise HeaderError(
            f"the JSON is nested too deep: level {cursor.max_level + 1} begins at byte {offset}, "
            f"at most {cursor.max_level} are accepted",
            offset=offset, expected=cursor.max_level, actual=cursor.max_level + 1)
    if fault == TOO_MANY_VALUES:
        raise HeaderError(
            f"the parameters have more than {format_count('value', cursor.max_values)}: the next "
            f"one begins at byte {offset}",
            offset=offset, expected=cursor.max_values, actual=cursor.max_values + 1)
    if fault == DUPLICATE_KEY:
        raise HeaderError(
            f"the JSON header has the member {excerpt(cursor)} twice in one object (byte {offset})",
            offset=offset)
    if fault == NOT_UTF8:
        raise HeaderError(f"the JSON header is not UTF-8 (byte {offset})", offset=offset)
    if fault == CONTROL_CHARACTER:
        what = f"a string has a control character, U+{cursor.position[0]:04X}, without an escape"
    elif fault == BAD_ESCAPE:
        what = "a string has an invalid escape"
    elif fault == LONE_SURROGATE:
        what = "a string has half of a surrogate pair"
    elif fault in (OUT_OF_RANGE, TOO_MANY_DIGITS):
        what = f"the number {excerpt(cursor)} is out of range"
    else:
        what = f"expected {cursor.expected.decode()}, found {describe_next_byte(cursor)}"
    raise HeaderError(f"the JSON header is malformed: {what} (byte {offset})", offset=offset)


cdef str describe_next_byte(ReadCursor* cursor):
    """Return a description of the byte at the cursor for an error message."""
    if cursor.position == cursor.end:
        return "its end"
    byte = cursor.position[0]
    return repr(chr(byte)) if 0x20 <= byte < 0x7F else f"the byte 0x{byte:02X}"


cdef str excerpt(ReadCursor* cursor):
    """Return the JSON text of the value at the cursor, abbreviated. The cursor does not move.

    Raises HeaderError if the value is not valid JSON.
    """
    cdef ReadCursor ahead = cursor[0]
    cdef Py_ssize_t n_keys = cursor.keys.n_keys
    cdef Fault fault
    with nogil:
        fault = skip_element(&ahead, NULL)
    cursor.keys.n_keys = n_keys  # after a fault, the keys of open objects are still on the stack
    if fault != NO_FAULT:
        raise_fault(&ahead, fault)
    cdef Py_ssize_t nbytes = ahead.position - cursor.position
    if nbytes <= MAX_EXCERPT_NBYTES:
        return cursor.position[:nbytes].decode("utf-8", "replace")
    return cursor.position[:MAX_EXCERPT_NBYTES].decode("utf-8", "ignore") + f"... ({nbytes} bytes)"


cdef str text_to_str(const Text* text):
    """Return a validated string as a Python str."""
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef Py_ssize_t n_characters = 0, i
    cdef uint32_t character = 0, largest = 0
    cdef void* data
    cdef int kind
    cdef str result
    # Shorter strings are shared objects of CPython, which must not be written to.
    if text.is_ascii and not text.has_escapes and text.nbytes > 1:
        result = PyUnicode_New(text.nbytes, 127)
        memcpy(PyUnicode_1BYTE_DATA(result), text.begin, text.nbytes)
        return result
    if not text.has_escapes and text.nbytes < SHORT_NBYTES:
        return PyUnicode_DecodeUTF8(<const char*>text.begin, text.nbytes, NULL)
    # The length is computed first, so that no more memory is allocated than the str needs.
    while raw < end:
        character = next_character(&raw)
        largest = max(largest, character)
        n_characters += 1
    if n_characters == 1:
        return chr(character)
    result = PyUnicode_New(n_characters, largest)
    kind, data = PyUnicode_KIND(result), PyUnicode_DATA(result)
    raw = text.begin
    for i in range(n_characters):
        PyUnicode_WRITE(kind, data, i, next_character(&raw))
    return result


cdef int count_value(ReadCursor* cursor) except -1:
    """Raise HeaderError if no further value may become a Python object."""
    if cursor.n_values_left <= 0:
        skip_blanks(cursor)
        raise_fault(cursor, TOO_MANY_VALUES)
    cursor.n_values_left -= 1
    return 0


cdef object read_value(ReadCursor* cursor):
    """Return the value at the cursor as Python's `json` would, and advance past it."""
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
        return text_to_str(&text)
    if first == c"-" or c"0" <= first <= c"9":
        return read_number_value(cursor)
    if first == c"{":
        return read_object(cursor)
    if first == c"[":
        return read_list_value(cursor)
    fault = skip_value(cursor)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return True if first == c"t" else False if first == c"f" else None


cdef object read_number_value(ReadCursor* cursor):
    """Return the number at the cursor as an int or a float."""
    cdef const unsigned char* begin = cursor.position
    cdef Number number
    cdef double value
    cdef Fault fault = scan_number(cursor, &number)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    if not number.is_integer:
        fault = nearest_float(&number, begin, cursor.position, &value)
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


cdef int open_level_or_raise(ReadCursor* cursor) except -1:
    """Advance past the opening bracket at the cursor. Raises HeaderError if it is too deep."""
    cdef Fault fault = open_level(cursor)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef bint next_item(ReadCursor* cursor, bint is_first) except -1:
    """Advance to the next item of a list. Return False if the list has ended.

    The cursor is then after its closing bracket.
    """
    if take(cursor, c"]"):
        cursor.level -= 1
        return False
    if not is_first and not take(cursor, c","):
        raise_fault(cursor, unexpected(cursor, "',' or ']'"))
    return True


cdef bint next_member(ReadCursor* cursor, Text* key, bint is_first) except -1:
    """Advance to the value of the next member, and store its key. Return False if there is none.

    The cursor is then after the closing bracket of the object.
    """
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


cdef list read_list_value(ReadCursor* cursor):
    """Return the list at the cursor. The cursor is at its opening bracket."""
    cdef list items = []
    open_level_or_raise(cursor)
    while next_item(cursor, len(items) == 0):
        count_value(cursor)
        items.append(read_value(cursor))
    return items


cdef dict read_object(ReadCursor* cursor):
    """Return the object at the cursor as a dict. The cursor is at its opening bracket."""
    cdef dict members = {}
    cdef Text key
    open_level_or_raise(cursor)
    while next_member(cursor, &key, len(members) == 0):
        count_value(cursor)
        set_member(cursor, members, &key, read_value(cursor))
    return members


cdef int set_member(ReadCursor* cursor, dict members, const Text* key, value) except -1:
    """Add a member. Raises HeaderError if there already is a member of that name."""
    cdef Py_ssize_t before = len(members)
    members[text_to_str(key)] = value
    if len(members) == before:
        cursor.position = key.begin - 1
        raise_fault(cursor, DUPLICATE_KEY)
    return 0


# --- with the GIL, or without it if this takes long ----------------------------------------------


cdef inline ReadCursor begin_attempt(const ReadCursor* cursor) noexcept nogil:
    """Return a copy of the cursor for an attempt: it ends after at most SHORT_NBYTES."""
    cdef ReadCursor attempt = cursor[0]
    if attempt.end - attempt.position > SHORT_NBYTES:
        attempt.end = attempt.position + SHORT_NBYTES
    return attempt


cdef inline bint is_final(
    const ReadCursor* attempt, const ReadCursor* cursor, Fault fault
) noexcept nogil:
    """Return whether the result of an attempt is also the result for the whole text.

    It may differ if the attempt stopped at its own end, or if it returned a fault, because that end
    may have caused the fault.
    """
    return (
        attempt.end == cursor.end or (fault == NO_FAULT and attempt.position < attempt.end)
        or fault == NO_MEMORY
    )


cdef inline void accept(ReadCursor* cursor, const ReadCursor* attempt) noexcept:
    """Advance the cursor to where an attempt ended, and count its work."""
    count_work(cursor, (attempt.position - cursor.position) // BYTES_PER_WORK)
    cursor.position, cursor.level = attempt.position, attempt.level
    cursor.expected = attempt.expected


cdef void count_work(ReadCursor* cursor, Py_ssize_t n) noexcept:
    """Count work that was done with the GIL held, and release the GIL briefly after much of it."""
    cursor.work += n
    if cursor.work >= WORK_PER_TURN:
        cursor.work = 0
        with nogil:
            pass


cdef int skip_value_or_raise(ReadCursor* cursor) except -1:
    """Validate the value at the cursor, of any type, and advance past it. Raises HeaderError."""
    cdef ReadCursor attempt = begin_attempt(cursor)
    cdef Py_ssize_t n_keys = cursor.keys.n_keys
    cdef Fault fault = skip_value(&attempt)
    if is_final(&attempt, cursor, fault):
        accept(cursor, &attempt)
    else:
        cursor.keys.n_keys = n_keys
        with nogil:
            fault = skip_value(cursor)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef int skip_data(ReadCursor* cursor) except -1:
    """Validate the nested lists at the cursor, and advance past them. Raises HeaderError.

    They are the `data` of a tensor whose datatype is not known yet.
    """
    cdef ParsedElements elements
    elements.read_list = skip_elements
    elements.target = NULL
    elements.itemsize, elements.max_depth = 0, cursor.max_level
    elements.n_read = elements.n_expected = elements.nbytes = 0
    cdef Fault fault = read_elements(cursor, &elements)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef Fault read_elements(ReadCursor* cursor, ParsedElements* elements):
    """Read nested lists of elements, without the GIL if this takes long."""
    cdef ReadCursor attempt = begin_attempt(cursor)
    cdef char* target = elements.target
    cdef Py_ssize_t n_keys = cursor.keys.n_keys
    cdef Fault fault = elements.read_list(&attempt, elements)
    if is_final(&attempt, cursor, fault):
        accept(cursor, &attempt)
        return fault
    elements.target, elements.n_read, elements.nbytes = target, 0, 0
    cursor.keys.n_keys = n_keys
    with nogil:
        fault = elements.read_list(cursor, elements)
    return fault


cdef Fault read_numbers(
    ReadCursor* cursor, cnp.dtype dtype, char* target, uint64_t n_expected, uint64_t* n_read
):
    """Read the nested lists of numbers or booleans at the cursor to aligned memory.

    `target` has room for `n_expected` elements of `dtype`, which is the dtype of any numeric
    datatype or BOOL, but not of FP16 or BF16. Further elements are validated and counted in
    `n_read`, but not stored. For WRONG_TYPE and OUT_OF_RANGE, the cursor is at an element, and
    `n_read` is its index.
    """
    cdef ParsedElements elements
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


cdef bytes read_strings(ReadCursor* cursor, uint64_t n_expected, uint64_t* n_read, Fault* fault):
    """Read the nested lists of strings at the cursor. Return the wire bytes of a BYTES tensor.

    If there is a `fault`, the result is None. The faults are those of `read_numbers`; OUT_OF_RANGE
    means a string of 2^32 bytes or more. The caller has checked that the text is long enough for
    `n_expected` elements.
    """
    cdef ParsedElements elements
    cdef bytes wire
    elements.read_list = read_texts
    elements.target = NULL
    elements.itemsize, elements.max_depth = 0, MAX_DATA_DEPTH
    elements.n_read, elements.n_expected, elements.nbytes = 0, n_expected, 0
    # An estimate, which `grow_wire` corrects. It is not 0, because the object b"" is shared.
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
    """Return the value of a JSON text as Python's `json` would. Raises HeaderError.

    `max_level` is the maximum number of nested lists and objects.
    """
    cdef ReadCursor cursor
    cdef Keys keys
    # A text has fewer values than bytes, so their number is not limited.
    begin_reading(
        &cursor, &keys, PyBytes_AS_STRING(text), len(text), max_level, len(text))
    try:
        value = read_value(&cursor)
        skip_blanks(&cursor)
        if cursor.position != cursor.end:
            raise_fault(&cursor, unexpected(&cursor, "its end"))
        return value
    finally:
        end_reading(&keys)


cdef void begin_reading(
    ReadCursor* cursor, Keys* keys, const char* text, Py_ssize_t nbytes, int max_level,
    Py_ssize_t max_values,
) noexcept:
    """Set the cursor to the beginning of a text, and `keys` to an empty stack.

    The text must not move or change while the cursor is used, and `keys` must not move. Call
    `end_reading` afterwards.
    """
    cursor.start = cursor.position = <const unsigned char*>text
    cursor.end = cursor.start + nbytes
    cursor.level = 0
    cursor.max_level = max_level
    cursor.max_values = cursor.n_values_left = max_values
    cursor.work = 0
    cursor.expected = NULL
    cursor.keys = keys
    keys.begins = NULL
    keys.n_keys = keys.capacity = 0


cdef void end_reading(Keys* keys) noexcept:
    """Free the memory of the stack of keys."""
    PyMem_RawFree(keys.begins)
