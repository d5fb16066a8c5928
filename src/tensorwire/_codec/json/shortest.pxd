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

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #ifndef __SIZEOF_INT128__
    #error "tensorwire needs a compiler with 128-bit integers: gcc or clang, for a 64-bit machine"
    #endif
    typedef unsigned __int128 tensorwire_uint128;
    """
    ctypedef unsigned long long uint128 "tensorwire_uint128"
    # The word must not be 0.
    int leading_zeros "__builtin_clzll"(unsigned long long word) nogil

cdef enum:
    # The most bytes that are stored for one number: a sign and the 21 bytes of `write_unsigned`, or
    # a sign and the 23 bytes of `write_decimal`. They include bytes after the end of a text, which
    # the caller overwrites.
    MAX_NUMBER_NBYTES = 24
    # Doubles are multiplied by powers of ten from 10^-292 to 10^324.
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


cdef struct Tables:
    Power[N_POWERS] powers
    # The digits of 0 to 999 in the lowest three bytes, the first in the lowest, as ASCII. The
    # highest byte is the number of leading zeros. Integers are written in groups of three digits,
    # because a look-up takes less time than the multiplications for the digits.
    uint32_t[1000] groups


cdef struct Decimal:
    # The number is digits * 10^exponent.
    uint64_t digits  # an integer of at most 17 digits, which may have trailing zeros
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
    """Return the 8 decimal digits of a number below 10^8, each in a byte, the first in the lowest.

    The number is split into lanes of 4 digits, then of 2, then of 1. The divisions are replaced by
    multiplications: n * 10486 >> 20 is n // 100 for all n < 10000, and n * 103 >> 10 is n // 10 for
    all n < 100.
    """
    cdef uint64_t fours = number // 10000 | <uint64_t>(number % 10000) << 32
    cdef uint64_t hundreds = fours * 10486 >> 20 & <uint64_t>0x0000007F0000007F
    cdef uint64_t twos = hundreds | (fours - 100 * hundreds) << 16
    cdef uint64_t tens = twos * 103 >> 10 & <uint64_t>0x000F000F000F000F
    return tens | (twos - 10 * tens) << 8


cdef inline void write_8(char* target, uint64_t digits) noexcept nogil:
    """Write 8 digits, in the form that `digits_8` returns, as ASCII."""
    digits |= <uint64_t>0x3030303030303030  # ASCII
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


cdef inline Decimal shortest_exactly(
    const Tables* tables, uint64_t c, int q, bint is_irregular, bint is_single
) noexcept nogil:
    """Return the shortest decimal of `c * 2^q`, c > 0, by comparing with both ends of the interval.

    `is_irregular` means that the next smaller number is only half as far away as the next larger
    one.
    """
    cdef Decimal decimal
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
    decimal.exponent = k
    if whole >= 10 and is_under != is_over:  # one multiple of ten is in the interval
        decimal.digits = 10 * (tens + is_over)
        return decimal
    is_under = lower <= 4 * whole
    is_over = 4 * whole + 4 <= upper
    # If both or neither are in the interval, the closer one is the result, or the even one of two
    # that are equally close.
    if is_under == is_over:
        is_over = value + (whole & 1) > 4 * whole + 2
    decimal.digits = whole + is_over
    return decimal


cdef inline Decimal shortest(
    const Tables* tables, uint64_t c, int q, bint is_irregular, bint is_single
) noexcept nogil:
    """Return the shortest decimal of `c * 2^q`, c > 0.

    One product is enough, unless its error could change the result because a multiple of ten is
    very close to an end of the interval, or the product is very close to halfway between two
    integers. `shortest_exactly` handles these cases, irregular numbers and products below 10.

    The product consists of `whole` and a fraction of 64 bits. The error of the fraction is less
    than 1 unit, or 2^28 units if single: the error of the power is less than its last bit, and it
    is multiplied by `c << shift`. Fractions are compared in units of 2^-60, so that 0 to 10 fit in
    64 bits.
    """
    cdef Decimal decimal
    cdef int k = floor_log10_2(q)
    cdef int shift = q + floor_log2_10(-k) + 1
    cdef Power power = tables.powers[-k - FIRST_POWER]
    cdef uint128 product
    cdef uint64_t whole, fraction, tens, under, over, half_width
    cdef uint64_t error = (<uint64_t>1 << 25) if is_single else 4  # several times the bound
    cdef uint64_t ten = <uint64_t>10 << 60, half = <uint64_t>1 << 59
    cdef bint is_under, is_over
    if is_single:
        product = <uint128>(power.high + (power.low != 0)) * (c << shift)
    else:
        product = <uint128>power.low * (c << shift) >> 64
        product += <uint128>power.high * (c << shift)
    whole = <uint64_t>(product >> 64)
    fraction = <uint64_t>product >> 4
    tens = whole // 10
    half_width = power.high >> (5 - shift)
    under = (whole - 10 * tens << 60) + fraction  # the distance from the multiple of ten below
    over = ten - under
    if (
        is_irregular or whole < 10
        or (under - half_width + error <= 2 * error)  # unsigned: |a - b| <= error
        or (over - half_width + error <= 2 * error)
        or (fraction - half + error <= 2 * error)
    ):
        return shortest_exactly(tables, c, q, is_irregular, is_single)
    # The interval is at most 10 wide, so it contains at most one multiple of ten. It is at least 1
    # wide, so it contains the closest integer. No branch, because it could not be predicted.
    is_under = under < half_width
    is_over = over < half_width
    decimal.digits = 10 * (tens + is_over) if is_under or is_over else whole + (fraction > half)
    decimal.exponent = k
    return decimal


cdef inline int n_significant(uint64_t digits) noexcept nogil:
    """Return the number of digits before the trailing zeros in a result of `digits_8`."""
    return 8 - (leading_zeros(digits | 1) >> 3) if digits != 0 else 0


cdef inline char* write_decimal(char* target, Decimal decimal, bint is_single) noexcept nogil:
    """Write a number that is not 0 in the format of Python's `repr`. Return the end of its text.

    The digits are scaled to 17 digits, or to 9 if single: the first digit, the middle 8, and unless
    single the last 8. All of them are stored at their places. The text ends after the last digit
    that is not a trailing zero.

    Bounds: at most 23 bytes are stored, for 17 digits, a point and "e-308". "0.000" and 17 digits
    take 22 bytes.
    """
    cdef uint64_t first, middle, last = 0, head, mask, moved
    cdef int exponent, i, n
    cdef uint64_t scaled_up = decimal.digits
    cdef uint64_t least = 100000000 if is_single else <uint64_t>10000000000000000
    cdef int point = decimal.exponent + (9 if is_single else 17)  # digits before the point
    cdef bint is_below = scaled_up < least
    # No branch for the first step, or the first two if single, because normal numbers have 16 or 17
    # digits, or 7 to 9 if single.
    scaled_up = 10 * scaled_up if is_below else scaled_up
    point -= is_below
    if is_single:
        is_below = scaled_up < least
        scaled_up = 10 * scaled_up if is_below else scaled_up
        point -= is_below
    while scaled_up < least:
        scaled_up *= 10
        point -= 1
    if is_single:
        first = scaled_up // 100000000
        middle = digits_8(<uint32_t>(scaled_up % 100000000))
        n = 1 + n_significant(middle)
    else:
        last = digits_8(<uint32_t>(scaled_up % 100000000))
        scaled_up //= 100000000
        first = scaled_up // 100000000
        middle = digits_8(<uint32_t>(scaled_up % 100000000))
        n = 9 + n_significant(last) if last != 0 else 1 + n_significant(middle)
    first += c"0"
    if -4 < point <= 0:  # 0.00ddd
        memcpy(target, b"0.000", 5)
        target += 2 - point
        target[0] = <char>first
        write_8(target + 1, middle)
        if not is_single:
            write_8(target + 9, last)
        return target + n
    if n <= point <= 16:  # ddd00.0
        target[0] = <char>first
        write_8(target + 1, middle)
        write_8(target + 9, last)  # zeros if single
        memcpy(target + point, b".0", 2)
        return target + point + 2
    # The point is between digits. Those after it are stored one byte further to the right.
    write_8(target + 2, middle)
    if not is_single:
        write_8(target + 10, last)
    if 0 < point <= 16:  # dd.ddd
        # The first 8 bytes are the digits before the point, the point, and digits after it.
        head = first | (middle | <uint64_t>0x3030303030303030) << 8
        if point < 8:
            mask = ((<uint64_t>1) << 8 * point) - 1
            moved = (head & ~mask) << 8
            head = head & mask | <uint64_t>c"." << 8 * point | moved
            memcpy(target, &head, 8)
        else:
            target[0] = <char>first
            for i in range(1, point):
                target[i] = target[i + 1]
            target[point] = c"."
        return target + n + 1
    target[0] = <char>first  # d.ddde+dd
    target[1] = c"."
    target += n + 1 if n > 1 else 1
    exponent = point - 1
    target[0] = c"e"
    target[1] = c"-" if exponent < 0 else c"+"
    target += 2
    if exponent < 0:
        exponent = -exponent
    if exponent >= 100:
        target[0] = <char>(c"0" + exponent // 100)
        target += 1
        exponent %= 100
    target[0] = <char>(c"0" + exponent // 10)
    target[1] = <char>(c"0" + exponent % 10)
    return target + 2


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
        q = -1074
        if biased == 0x7FF:
            return NULL
        target[0] = c"-"
        target += bits >> 63
    fraction = c = bits & (((<uint64_t>1) << n_bits) - 1)
    if biased != 0:  # not subnormal
        c |= (<uint64_t>1) << n_bits
        q += biased - 1
    if c == 0:
        memcpy(target, b"0.0", 3)
        return target + 3
    if -n_bits <= q <= 0 and c & (((<uint64_t>1) << -q) - 1) == 0:
        # A whole number below 2^53, or 2^24 if single. Its neighbours are at most 1 away, so that
        # no other whole number rounds to it. Its own digits are therefore the shortest.
        target = write_unsigned(target, tables, c >> -q)
        memcpy(target, b".0", 2)
        return target + 2
    if only_few:
        return write_few(target, tables, c, q, number)
    decimal = shortest(tables, c, q, fraction == 0 and biased > 1, Float is float)
    return write_decimal(target, decimal, Float is float)
