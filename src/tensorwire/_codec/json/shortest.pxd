"""Write integers and floating-point numbers as decimal text, without Python objects.

A floating-point number is written with the fewest digits from which the same number is read back.
If there are several such decimals, the closest one is written. The algorithm is Schubfach
(R. Giulietti, "The Schubfach way to render doubles"): a number `c * 2^q` is multiplied by a power
of ten, so that the interval of decimals that round to it has a width between 1 and 10. The interval
then contains an integer, and at most one multiple of ten. The product is computed with 64 or 128
more bits than the result has. If any of these lower bits is set, the last bit of the result is set
("round to odd"), which preserves the comparisons.

The format is that of Python's `repr`: `0.0001`, `1e-05`, `1.0`, `1e+16`.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..datatypes cimport Float, Integer

cdef extern from *:
    """
    #ifndef __SIZEOF_INT128__
    #error "tensorwire needs a compiler with 128-bit integers: gcc or clang, for a 64-bit machine"
    #endif
    typedef unsigned __int128 tensorwire_uint128;
    """
    ctypedef unsigned long long uint128 "tensorwire_uint128"
    # The word must not be 0.
    int trailing_zeros "__builtin_ctzll"(unsigned long long word) nogil
    uint64_t swapped "__builtin_bswap64"(uint64_t word) nogil
    bint unlikely(bint condition) noexcept nogil

cdef enum:
    # The most bytes that are stored for one number: a sign and the 21 bytes of `write_unsigned`, or
    # a sign and the 23 bytes of `write_decimal`. They include bytes after the end of a text, which
    # the caller overwrites.
    MAX_NUMBER_NBYTES = 24
    # Doubles are multiplied by powers of ten from 10^-293 to 10^324.
    FIRST_POWER = -293
    N_POWERS = 618


cdef struct Power:
    # 10^e in 128 bits, rounded up: 10^e <= (high * 2^64 + low) * 2^(floor(log2(10^e)) - 127).
    uint64_t high
    uint64_t low


cdef struct Tables:
    Power[N_POWERS] powers
    # The digits of 0 to 999 in the lowest three bytes, the first in the lowest, as ASCII. The
    # highest byte is the number of leading zeros. Integers are written in groups of three digits,
    # because a look-up takes less time than the multiplications for the digits.
    uint32_t[1000] groups


cdef struct Decimal:
    # The number is (tens + last / 10) * 10^exponent.
    uint64_t tens  # 15 or 16 digits, or 7 or 8 if single, which may have trailing zeros
    uint64_t last  # one more digit
    int exponent


# --- integers --------------------------------------------------------------------------------


cdef inline char* write_head(char* target, const Tables* tables, uint64_t group) noexcept nogil:
    """Write the first group of an integer, 0 to 999, without leading zeros. Return its end."""
    cdef uint32_t digits = tables.groups[group]
    cdef int n_zeros = digits >> 24
    digits >>= 8 * n_zeros
    memcpy(target, &digits, 4)
    return target + 3 - n_zeros


cdef inline char* write_group(char* target, const Tables* tables, uint64_t group) noexcept nogil:
    """Write another group as three digits, and return its end."""
    memcpy(target, &tables.groups[group], 4)
    return target + 3


cdef inline char* write_below_1e9(
    char* target, const Tables* tables, uint32_t number
) noexcept nogil:
    """Write 1 to 9 digits, and return their end."""
    cdef uint32_t thousands = number // 1000
    if thousands == 0:
        return write_head(target, tables, number)
    if thousands < 1000:
        target = write_head(target, tables, thousands)
    else:
        target = write_head(target, tables, thousands // 1000)
        target = write_group(target, tables, thousands % 1000)
    return write_group(target, tables, number % 1000)


cdef inline char* write_9(char* target, const Tables* tables, uint32_t number) noexcept nogil:
    """Write exactly 9 digits, and return their end."""
    cdef uint32_t thousands = number // 1000
    target = write_group(target, tables, thousands // 1000)
    target = write_group(target, tables, thousands % 1000)
    return write_group(target, tables, number % 1000)


cdef inline char* write_unsigned(
    char* target, const Tables* tables, uint64_t number
) noexcept nogil:
    """Write up to 20 digits, and return their end. One byte more is stored."""
    cdef uint64_t high
    if number < 1000000000:
        return write_below_1e9(target, tables, <uint32_t>number)
    high = number // 1000000000
    if high < 1000000000:
        target = write_below_1e9(target, tables, <uint32_t>high)
    else:  # below 2^64 / 10^9
        target = write_head(target, tables, high // 1000000000)
        target = write_9(target, tables, <uint32_t>(high % 1000000000))
    return write_9(target, tables, <uint32_t>(number % 1000000000))


cdef inline char* write_integer(
    char* target, const Tables* tables, Integer number
) noexcept nogil:
    """Write an integer, and return the end of its text. Stores at most MAX_NUMBER_NBYTES bytes."""
    cdef uint64_t magnitude = <uint64_t>number
    if Integer is int8_t or Integer is int16_t or Integer is int32_t or Integer is int64_t:
        # No branch, because signs are hard to predict. The magnitude of -2^63 only fits unsigned.
        target[0] = c"-"
        target += number < 0
        magnitude = 0 - magnitude if number < 0 else magnitude
    return write_unsigned(target, tables, magnitude)


# --- floating point --------------------------------------------------------------------------


cdef inline uint64_t digits_8(uint32_t number) noexcept nogil:
    """Return the 8 decimal digits of a number below 10^8, each in a byte, the first in the highest.

    The number is split into lanes of 4 digits, then of 2, then of 1: the higher one gets the
    quotient, and the lower one keeps the remainder. The divisions are replaced by multiplications:
    n * 109951163 >> 40 is n // 10000 for all n < 10^8, n * 10486 >> 20 is n // 100 for all
    n < 10000, and n * 103 >> 10 is n // 10 for all n < 100.
    """
    cdef uint64_t lanes = number
    lanes += (lanes * 109951163 >> 40) * ((<uint64_t>1 << 32) - 10000)
    lanes += (lanes * 10486 >> 20 & <uint64_t>0x0000007F0000007F) * ((1 << 16) - 100)
    return lanes + (lanes * 103 >> 10 & <uint64_t>0x000F000F000F000F) * ((1 << 8) - 10)


cdef inline void write_8(char* target, uint64_t digits) noexcept nogil:
    """Write 8 digits as ASCII, the first of them in the lowest byte."""
    digits |= <uint64_t>0x3030303030303030
    memcpy(target, &digits, 8)


cdef inline int floor_log10_2(int q) noexcept nogil:
    """Return floor(log10(2^q)) for |q| <= 1100; `>>` rounds down."""
    return (q * 1262611) >> 22


cdef inline int floor_log10_3_2(int q) noexcept nogil:
    """Return floor(log10(3/4 * 2^q)) for |q| <= 1100."""
    return (q * 1262611 - 524031) >> 22


cdef inline int floor_log2_10(int e) noexcept nogil:
    """Return floor(log2(10^e)) for |e| <= 330."""
    return (e * 1741647) >> 19


cdef inline uint64_t scaled(Power power, uint64_t number, bint is_single) noexcept nogil:
    """Return `number * power / 2^128`, rounded to odd. `number` is below 2^60, 2^31 if single."""
    cdef uint128 low, high
    cdef uint64_t rest
    if is_single:  # 64 bits of the power are enough
        high = <uint128>(power.high + (power.low != 0)) * number
        return <uint64_t>(high >> 64) | (<uint64_t>high >> 32 > 1)
    low = <uint128>power.low * number
    high = <uint128>power.high * number + <uint64_t>(low >> 64)
    rest = <uint64_t>high
    return <uint64_t>(high >> 64) | (rest > 1)


cdef inline uint64_t least_normal(bint is_single) noexcept nogil:
    """Return the least `c` of a number that is not subnormal. It is a power of two."""
    return <uint64_t>1 << (23 if is_single else 52)


cdef inline Decimal shortest_exactly(
    const Tables* tables, uint64_t c, int q, bint is_single
) noexcept nogil:
    """Return the shortest decimal of `c * 2^q`, c > 0, by comparing with both ends of the interval.

    The next smaller number of a power of two is only half as far away as the next larger one. The
    least one that is not subnormal is an exception, but its decimal is the same in both ways.
    """
    cdef Decimal decimal
    cdef bint is_irregular = c == least_normal(is_single)
    cdef uint64_t is_odd = c & 1  # the ends of the interval round to the number if c is even
    cdef int k = floor_log10_3_2(q) if is_irregular else floor_log10_2(q)
    cdef int shift = q + floor_log2_10(-k) + 1  # 1 to 4, since 10^k <= 2^q < 10^(k + 1)
    cdef Power power = tables.powers[-k - FIRST_POWER]
    cdef uint64_t lower = scaled(power, (4 * c - 2 + is_irregular) << shift, is_single) + is_odd
    cdef uint64_t value = scaled(power, 4 * c << shift, is_single)
    cdef uint64_t upper = scaled(power, (4 * c + 2) << shift, is_single) - is_odd
    cdef uint64_t whole = value // 4
    cdef uint64_t tens = whole // 10
    cdef bint is_under = lower <= 40 * tens
    cdef bint is_over = 40 * tens + 40 <= upper
    decimal.exponent = k + 1
    if whole >= 10 and is_under != is_over:  # one multiple of ten is in the interval
        decimal.tens, decimal.last = tens + is_over, 0
    else:
        is_under = lower <= 4 * whole
        is_over = 4 * whole + 4 <= upper
        # If both or neither are in the interval, the closer one is the result, or the even one of
        # two that are equally close.
        if is_under == is_over:
            is_over = value + (whole & 1) > 4 * whole + 2
        decimal.tens, decimal.last = (whole + is_over) // 10, (whole + is_over) % 10
    while decimal.tens < (1000000 if is_single else <uint64_t>100000000000000):  # subnormal
        decimal.tens = 10 * decimal.tens + decimal.last
        decimal.last = 0
        decimal.exponent -= 1
    return decimal


cdef inline Decimal shortest(
    const Tables* tables, uint64_t c, int q, bint is_single
) noexcept nogil:
    """Return the shortest decimal of `c * 2^q`, c > 0.

    The number is divided by a power of ten that is more than the distance of its neighbours, and
    not more than ten times as much. The quotient has an integer part and a fraction of 64 bits. If
    0 or 1 is in the interval around the fraction, the decimal ends there. The interval is narrower
    than 1, so that only the closer of the two can be in it. Otherwise, there is one more digit, and
    the closest one is in the interval, because this is at least 1/10 wide.

    The errors of the fraction and of half the width are below 11 units of 2^-64 together, or 2^25
    if single: that of the power is less than its last bit, and it is multiplied by
    `(c << shift) / 8`, where c << shift is below 2^56, or 2^27 if single. Half the width loses 4
    bits. If an error could change the result, `shortest_exactly` does the work, as for powers of
    two and subnormal numbers. There are no branches for what cannot be predicted.
    """
    cdef Decimal decimal
    cdef int k = floor_log10_2(q) + 1
    cdef int shift = q + floor_log2_10(-k) + 4  # 0 to 3, since 10^(k - 1) <= 2^q < 10^k
    cdef const Power* power = &tables.powers[-k - FIRST_POWER]
    cdef uint128 product = <uint128>power.high * (c << shift)
    cdef uint64_t high = <uint64_t>(product >> 64), low = <uint64_t>product, rest = 0
    cdef uint64_t half_width = power.high >> 4 << shift, fraction, distance, is_over, is_short
    cdef uint64_t error = (<uint64_t>1 << 26) if is_single else 16
    if not is_single:
        rest = <uint64_t>(<uint128>power.low * (c << shift) >> 64)
    low += rest
    high += low < rest
    fraction = high << 61 | low >> 3
    is_over = 0 - (fraction >> 63)  # a mask, as `is_short`
    distance = fraction ^ is_over  # to 0 or 1, whichever is closer
    distance -= half_width  # between -2^63 and 2^63
    product = <uint128>fraction * 10
    low = <uint64_t>product
    if (
        c <= least_normal(is_single)
        or distance + error <= 2 * error  # unsigned: |distance| <= error
        or low - (<uint64_t>1 << 63) + 10 * error <= 20 * error
    ):
        return shortest_exactly(tables, c, q, is_single)
    is_short = 0 - (distance >> 63)
    decimal.tens = (high >> 3) - (is_over & is_short)
    decimal.last = (<uint64_t>(product >> 64) + (low >> 63)) & ~is_short
    decimal.exponent = k
    if is_single and decimal.tens < 1000000:
        decimal.tens = 10 * decimal.tens + decimal.last
        decimal.last = 0
        decimal.exponent -= 1
    return decimal


cdef inline char* write_digits(
    char* target, uint64_t first, uint64_t second, uint64_t last, bint is_single
) noexcept nogil:
    """Write 17 digits, or 9 if single. Return their end."""
    write_8(target, first)
    if not is_single:
        write_8(target + 8, second)
    target += 8 if is_single else 16
    target[0] = <char>(c"0" | last)
    return target + 1


cdef inline char* write_exponent(char* target, char* end, int exponent) noexcept nogil:
    """Complete a number like 1.5e-07, whose digits are `target + 1` to `end`. Return its end."""
    target[0] = target[1]
    target[1] = c"."
    if end == target + 2:
        end = target + 1
    end[0] = c"e"
    end[1] = c"-" if exponent < 0 else c"+"
    end += 2
    if exponent < 0:
        exponent = -exponent
    if exponent >= 100:
        end[0] = <char>(c"0" + exponent // 100)
        end += 1
        exponent %= 100
    end[0] = <char>(c"0" + exponent // 10)
    end[1] = <char>(c"0" + exponent % 10)
    return end + 2


cdef inline char* write_decimal(char* target, Decimal decimal, bint is_single) noexcept nogil:
    """Write a number that is not 0 in the format of Python's `repr`. Return the end of its text.

    First, the 17 digits, or 9 if single, are stored at the places that digits after the point have.
    If the first digit is 0, all of them are stored one byte earlier. A number below 1 gets the
    zeros of "0.000" before them. Then the digits before the point are moved by one byte, which
    makes room for the point. If there are fewer than 8 of them, they are moved in one word. The
    text ends after the last digit that is not 0, or after the first digit after the point if that
    is later.

    Bounds: at most 23 bytes are stored, for 17 digits, a point and "e-308". "0.000" and 17 digits
    take 22 bytes.
    """
    cdef uint64_t least = 10000000 if is_single else <uint64_t>1000000000000000
    cdef int64_t is_below = decimal.tens < least
    cdef int64_t exponent = decimal.exponent + (7 if is_single else 15) - is_below
    cdef int64_t n_zeros, n_before, n_trailing, i
    cdef uint64_t first, second = 0, head, ends, last = decimal.last
    cdef char* digits
    cdef char* end
    if is_single:
        ends = first = digits_8(<uint32_t>decimal.tens)
    else:
        first = digits_8(<uint32_t>(decimal.tens // 100000000))
        ends = second = digits_8(<uint32_t>(decimal.tens % 100000000))
    # A digit has 4 bits, so that the last one fits below the others.
    ends = ends << 4 | last
    if ends != 0:
        n_trailing = trailing_zeros(ends) + 4 >> 3
    else:
        n_trailing = 9 + (trailing_zeros(first) >> 3)
    first = swapped(first)
    second = swapped(second)
    if unlikely(not -4 <= exponent < 16):
        end = write_digits(target + 1 - is_below, first, second, last, is_single)
        return write_exponent(target, end - n_trailing, <int>exponent)
    n_zeros = -exponent & exponent >> 63  # no branch
    n_before = exponent + n_zeros + 1  # digits before the point
    digits = target + 1 + n_zeros - is_below
    end = write_digits(digits, first, second, last, is_single)
    if unlikely(n_before >= 8):
        if is_single:
            write_8(end, 0)
        digits[17] = c"0"
        for i in range(n_before):
            target[i] = target[i + 1]
    else:
        # 7 digits from the first one that is shown on. Those after the point are multiplied by 256.
        head = first << 8 * (1 + n_zeros - is_below) >> 8 | <uint64_t>0x3030303030303030
        head += (head >> 8 * n_before << 8 * n_before) * 255
        memcpy(target, &head, 8)
    target[n_before] = c"."
    return max(end - n_trailing, target + n_before + 2)


cdef inline char* write_decimals(
    char* target, const Tables* tables, uint64_t thousandths
) noexcept nogil:
    """Write three digits without trailing zeros, but at least one. Return their end."""
    cdef uint32_t digits = tables.groups[thousandths]
    memcpy(target, &digits, 4)
    digits &= 0x0F0F0F
    return target + 1 + (digits > 0xFF) + (digits > 0xFFFF)


cdef inline char* write_few(
    char* target, const Tables* tables, uint64_t c, int q, Float number
) noexcept nogil:
    """Write `number`, which is `c * 2^q`, if it has few digits: else return NULL.

    It then is the number closest to an integer below `limit`, divided by `scale`. No two decimals
    with 6 digits, or 15 unless single, round to the same number, so that none is shorter. A power
    of two, whose next smaller number is only half as far away, is exact or too far from an integer.
    """
    cdef uint64_t scale = 1000 if Float is float else 1000000
    cdef uint64_t limit = 1000000 if Float is float else <uint64_t>1000000000000000
    cdef int shift = -q
    cdef uint128 product
    cdef uint64_t low_product, scaled_up, decimals
    if not 0 < shift < 64:  # others are whole numbers, or less than 2^-11
        return NULL
    # The product is in units of 2^q. Half the distance of two numbers is half of `scale`.
    if Float is float:
        low_product = scale * c
        scaled_up = (low_product + ((<uint64_t>1) << (shift - 1))) >> shift
    else:
        product = <uint128>scale * c
        low_product = <uint64_t>product
        product = (product + ((<uint64_t>1) << (shift - 1))) >> shift
        if product >= limit:
            return NULL
        scaled_up = <uint64_t>product
    # Unsigned: |a - b| < scale / 2.
    if scaled_up >= limit or low_product - (scaled_up << shift) + scale // 2 - 1 > scale - 2:
        return NULL
    target = write_unsigned(target, tables, scaled_up // scale)
    decimals = scaled_up % scale
    target[0] = c"."
    target += 1
    if Float is double:
        if decimals % 1000 != 0:
            target = write_group(target, tables, decimals // 1000)
            return write_decimals(target, tables, decimals % 1000)
        decimals //= 1000
    return write_decimals(target, tables, decimals)


cdef inline char* write_float(
    char* target, const Tables* tables, Float number, bint only_few
) noexcept nogil:
    """Write a number of at most MAX_NUMBER_NBYTES, or return NULL if it is not finite.

    With `only_few`, also for most numbers that have more than three digits after the point, or six
    unless single.
    """
    cdef Decimal decimal
    cdef uint64_t hidden = least_normal(Float is float), bits, c
    cdef uint32_t bits32
    cdef int n_bits, biased, q
    if Float is float:
        memcpy(&bits32, &number, 4)
        n_bits = 23
        bits = bits32
        biased = bits32 >> 23 & 0xFF
        q = biased - 150
        if biased == 0xFF:
            return NULL
        target[0] = c"-"
        target += bits32 >> 31
        if bits32 & 0x7FFFFFFF == 0x15AE43FD:
            # Many readers read a double and round it to single precision. The shortest decimal of
            # this number, 7.038531e-26, then becomes its neighbour. One more digit is safe. A check
            # of all numbers found no other.
            memcpy(target, b"7.0385307e-26", 13)
            return target + 13
    else:
        memcpy(&bits, &number, 8)
        n_bits = 52
        biased = bits >> 52 & 0x7FF
        q = biased - 1075
        if biased == 0x7FF:
            return NULL
        target[0] = c"-"
        target += bits >> 63
    c = bits & (hidden - 1) | hidden
    if unlikely(biased == 0):  # subnormal
        c -= hidden
        q += 1
        if c == 0:
            memcpy(target, b"0.0", 3)
            return target + 3
    if not only_few:
        decimal = shortest(tables, c, q, Float is float)
        return write_decimal(target, decimal, Float is float)
    if -n_bits <= q <= 0 and c & (((<uint64_t>1) << -q) - 1) == 0:
        # A whole number below 2^53, or 2^24 if single. Its neighbours are at most 1 away, so that
        # no other whole number rounds to it. Its own digits are therefore the shortest.
        target = write_unsigned(target, tables, c >> -q)
        memcpy(target, b".0", 2)
        return target + 2
    return write_few(target, tables, c, q, number)
