"""Decimal text of integers and of floating-point numbers. No Python object is touched.

A floating-point number is written with the fewest digits that read back as the same number, and
of those the digits closest to it. The algorithm is Schubfach (R. Giulietti, "The Schubfach way to
render doubles"): a number `c * 2^q` is multiplied by a power of ten so that the interval of
decimals which round to it has a width between 1 and 10, hence contains an integer and at most one
multiple of ten. The product is computed in 64 or 128 bits more than the result has, and every bit
below the result is folded into the last one ("round to odd"), which preserves the comparisons.

The text is that of Python's `repr`: `0.0001`, `1e-05`, `1.0`, `1e+16`.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    typedef unsigned __int128 tensorwire_uint128;

    static const char tensorwire_digit_pairs[] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
        "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
        "8081828384858687888990919293949596979899";
    """
    ctypedef unsigned long long uint128 "tensorwire_uint128"
    const char* DIGIT_PAIRS "tensorwire_digit_pairs"

cdef enum:
    # The longest texts: of 64-bit integers "-9223372036854775808", of a double
    # "-2.2250738585072014e-308"; in fixed notation "-0.00012345678901234567" and
    # "-1234567890123456.0" are shorter.
    MAX_NUMBER_NBYTES = 24
    MAX_DIGITS = 20  # of an unsigned 64-bit integer
    # The powers of ten that doubles are multiplied by: 10^-292 to 10^324.
    FIRST_POWER = -292
    N_POWERS = 617

ctypedef fused Integer:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t

ctypedef fused Float:
    float
    double


cdef struct Power:
    # 10^e in 128 bits, rounded up: 10^e <= (high * 2^64 + low) * 2^(floor(log2(10^e)) - 127).
    uint64_t high
    uint64_t low


cdef struct Decimal:
    uint64_t digits  # at most 17 of them
    int exponent  # the number is digits * 10^exponent


# --- integers --------------------------------------------------------------------------------


cdef inline int n_digits(uint64_t number) noexcept nogil:
    """Decimal digits of `number`, 1 for 0."""
    cdef int n = 1
    while number >= 10000:
        number //= 10000
        n += 4
    if number >= 100:
        return n + 2 + (number >= 1000)
    return n + (number >= 10)


cdef inline void write_8(char* target, uint32_t number) noexcept nogil:
    """Exactly 8 digits of a number below 10^8."""
    cdef uint32_t high = number // 10000, low = number % 10000
    memcpy(target, DIGIT_PAIRS + 2 * (high // 100), 2)
    memcpy(target + 2, DIGIT_PAIRS + 2 * (high % 100), 2)
    memcpy(target + 4, DIGIT_PAIRS + 2 * (low // 100), 2)
    memcpy(target + 6, DIGIT_PAIRS + 2 * (low % 100), 2)


cdef inline char* write_below_10000(char* target, uint32_t number) noexcept nogil:
    cdef uint32_t high = number // 100
    if high != 0:
        if high >= 10:
            memcpy(target, DIGIT_PAIRS + 2 * high, 2)
            target += 2
        else:
            target[0] = <char>(c"0" + high)
            target += 1
        memcpy(target, DIGIT_PAIRS + 2 * (number % 100), 2)
        return target + 2
    if number >= 10:
        memcpy(target, DIGIT_PAIRS + 2 * number, 2)
        return target + 2
    target[0] = <char>(c"0" + number)
    return target + 1


cdef inline char* write_below_1e8(char* target, uint32_t number) noexcept nogil:
    cdef uint32_t low
    if number < 10000:
        return write_below_10000(target, number)
    target = write_below_10000(target, number // 10000)
    low = number % 10000
    memcpy(target, DIGIT_PAIRS + 2 * (low // 100), 2)
    memcpy(target + 2, DIGIT_PAIRS + 2 * (low % 100), 2)
    return target + 4


cdef inline char* write_unsigned(char* target, uint64_t number) noexcept nogil:
    """Write up to MAX_DIGITS digits; returns where they end."""
    cdef uint64_t high
    if number < 100000000:
        return write_below_1e8(target, <uint32_t>number)
    high = number // 100000000
    if high < 100000000:
        target = write_below_1e8(target, <uint32_t>high)
    else:  # below 2^64 / 10^16 = 1845
        target = write_below_10000(target, <uint32_t>(high // 100000000))
        write_8(target, <uint32_t>(high % 100000000))
        target += 8
    write_8(target, <uint32_t>(number % 100000000))
    return target + 8


cdef inline char* write_integer(char* target, Integer number) noexcept nogil:
    """Write up to MAX_NUMBER_NBYTES; returns where the text ends."""
    cdef uint64_t magnitude = <uint64_t>number
    if Integer is int8_t or Integer is int16_t or Integer is int32_t or Integer is int64_t:
        if number < 0:
            target[0] = c"-"
            target += 1
            magnitude = 0 - magnitude  # unsigned: also the magnitude of -2^63
    return write_unsigned(target, magnitude)


# --- floating point --------------------------------------------------------------------------


cdef inline int floor_log10_2(int q) noexcept nogil:
    """floor(log10(2^q)) for |q| <= 1100: `>>` rounds down."""
    return (q * 1262611) >> 22


cdef inline int floor_log10_3_2(int q) noexcept nogil:
    """floor(log10(3/4 * 2^q)) for |q| <= 1100."""
    return (q * 1262611 - 524031) >> 22


cdef inline int floor_log2_10(int e) noexcept nogil:
    """floor(log2(10^e)) for |e| <= 330."""
    return (e * 1741647) >> 19


cdef inline uint64_t scaled(Power power, uint64_t number, bint is_single) noexcept nogil:
    """`number * power / 2^128`, rounded to odd. `number` is below 2^60, or 2^31 if single."""
    cdef uint128 low, high
    cdef uint64_t rest
    if is_single:  # 64 bits of the power are enough
        high = <uint128>(power.high + (power.low != 0)) * number
        return <uint64_t>(high >> 64) | (<uint64_t>high >> 32 > 1)
    low = <uint128>power.low * number
    high = <uint128>power.high * number + <uint64_t>(low >> 64)
    rest = <uint64_t>high
    return <uint64_t>(high >> 64) | (rest > 1)


cdef inline Decimal shortest(
    const Power* powers, uint64_t c, int q, bint is_irregular, bint is_single
) noexcept nogil:
    """The shortest decimal of `c * 2^q`, c > 0; trailing zeros are still among its digits.

    `is_irregular`: the next smaller number is only half as far as the next greater one.
    """
    cdef Decimal decimal
    cdef uint64_t is_odd = c & 1  # the bounds of the interval round to the number if c is even
    cdef int k = floor_log10_3_2(q) if is_irregular else floor_log10_2(q)
    cdef int shift = q + floor_log2_10(-k) + 1  # 1 to 4, since 10^k <= 2^q < 10^(k + 1)
    cdef Power power = powers[-k - FIRST_POWER]
    cdef uint64_t lower = scaled(power, (4 * c - 2 + is_irregular) << shift, is_single) + is_odd
    cdef uint64_t value = scaled(power, 4 * c << shift, is_single)
    cdef uint64_t upper = scaled(power, (4 * c + 2) << shift, is_single) - is_odd
    cdef uint64_t whole = value // 4
    cdef uint64_t tens
    cdef bint is_under, is_over
    if whole >= 10:  # a multiple of ten, if there is one in the interval
        tens = whole // 10
        is_under = lower <= 40 * tens
        is_over = 40 * tens + 40 <= upper
        if is_under != is_over:
            decimal.digits = tens + is_over
            decimal.exponent = k + 1
            return decimal
    is_under = lower <= 4 * whole
    is_over = 4 * whole + 4 <= upper
    if is_under == is_over:  # both, or neither: the closer one, the even one of two
        is_over = value > 4 * whole + 2 or (value == 4 * whole + 2 and whole & 1)
    decimal.digits = whole + is_over
    decimal.exponent = k
    return decimal


cdef inline void strip_zeros(Decimal* decimal) noexcept nogil:
    """Move trailing zeros from the digits, at most 16 of 17, to the exponent."""
    if decimal.digits % 100000000 == 0:
        decimal.digits //= 100000000
        decimal.exponent += 8
    if decimal.digits % 10000 == 0:
        decimal.digits //= 10000
        decimal.exponent += 4
    if decimal.digits % 100 == 0:
        decimal.digits //= 100
        decimal.exponent += 2
    while decimal.digits % 10 == 0:
        decimal.digits //= 10
        decimal.exponent += 1


cdef inline char* write_decimal(char* target, Decimal decimal) noexcept nogil:
    """Write digits that are not 0, in the notation of Python's `repr`.

    At most 17 digits, and "0.000" before or "." and "e-308" among them: 22 bytes.
    """
    cdef int n, point, i, exponent
    cdef char* end
    if decimal.digits % 10 == 0:
        strip_zeros(&decimal)
    n = n_digits(decimal.digits)
    point = n + decimal.exponent  # digits in front of the decimal point
    if -4 < point <= 0:  # 0.00ddd
        memcpy(target, b"0.000", 5)
        return write_unsigned(target + 2 - point, decimal.digits)
    if n <= point <= 16:  # ddd00.0
        end = write_unsigned(target, decimal.digits)
        memset(end, c"0", point - n)
        end += point - n
        memcpy(end, b".0", 2)
        return end + 2
    # The digits go one byte further, and those before the point come back.
    end = write_unsigned(target + 1, decimal.digits)
    if 0 < point <= 16:  # dd.ddd
        for i in range(point):
            target[i] = target[i + 1]
        target[point] = c"."
        return end
    target[0] = target[1]  # d.ddde+dd
    if n == 1:
        end = target + 1
    else:
        target[1] = c"."
    exponent = point - 1
    end[0] = c"e"
    end[1] = c"-" if exponent < 0 else c"+"
    end += 2
    if exponent < 0:
        exponent = -exponent
    if exponent >= 100:
        end[0] = <char>(c"0" + exponent // 100)
        end += 1
        exponent %= 100
    memcpy(end, DIGIT_PAIRS + 2 * exponent, 2)
    return end + 2


cdef inline char* write_float(char* target, const Power* powers, Float number) noexcept nogil:
    """Write a finite number, up to MAX_NUMBER_NBYTES; returns NULL for one that is not finite."""
    cdef Decimal decimal
    cdef uint64_t bits, fraction, c
    cdef uint32_t bits32
    cdef int n_bits, biased, q
    if Float is float:
        memcpy(&bits32, &number, 4)
        n_bits = 23
        bits = bits32
        biased = bits32 >> 23 & 0xFF
        q = -149
        if biased == 0xFF:
            return NULL
        if bits32 >> 31:
            target[0] = c"-"
            target += 1
    else:
        memcpy(&bits, &number, 8)
        n_bits = 52
        biased = bits >> 52 & 0x7FF
        q = -1074
        if biased == 0x7FF:
            return NULL
        if bits >> 63:
            target[0] = c"-"
            target += 1
    fraction = c = bits & (((<uint64_t>1) << n_bits) - 1)
    if biased != 0:  # not subnormal
        c |= (<uint64_t>1) << n_bits
        q += biased - 1
    if c == 0:
        memcpy(target, b"0.0", 3)
        return target + 3
    if -n_bits <= q <= 0 and c & (((<uint64_t>1) << -q) - 1) == 0:
        # A whole number below 2^53 (2^24). Its neighbours are at most 1 away, so that no other
        # whole number rounds to it: its own digits are the shortest.
        target = write_unsigned(target, c >> -q)
        memcpy(target, b".0", 2)
        return target + 2
    decimal = shortest(powers, c, q, fraction == 0 and biased > 1, Float is float)
    return write_decimal(target, decimal)
