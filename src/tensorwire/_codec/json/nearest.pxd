"""Convert scanned JSON numbers to the nearest double or float, half to even, or to an integer.

For doubles and floats, numbers of up to 19 digits and a moderate exponent, which are nearly all,
take one of two short paths. `parse_float` converts the others.
"""

cimport cython
from libc.float cimport FLT_MAX, FLT_MIN
from libc.math cimport fabs
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from ..datatypes cimport Float
from ..json.scanner cimport (
    MAX_DIGITS, NO_FAULT, NO_MEMORY, OUT_OF_RANGE, WRONG_TYPE, Fault, Number, ReadCursor,
    append_digits)


cdef extern from "json/numbers.h":
    const double* SIGNS
    const double* POWERS_OF_10
    int64_t MAX_EXACT_EXPONENT
    uint64_t MAX_EXACT_INTEGER
    int64_t MAX_EXPONENT_OF_5
    double nearest_double(unsigned long long digits, int exponent) noexcept nogil
    # Return 1; or 0 if the number is out of the range of the type; or -1 if there is no memory.
    int parse_float[T](
        const unsigned char* first, const unsigned char* last, T* value) noexcept nogil

cdef enum:
    DECIMAL_NBYTES = 48  # `scan_decimal` reads fewer bytes


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
        if bits & 0x1FFFFFFF != 0x10000000 and (FLT_MIN <= fabs(wide) <= FLT_MAX or wide == 0):
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
        # The magnitude is below 10^(n_digits + exponent), and at least a tenth of that.
        if number.n_digits + number.exponent > 0:
            return OUT_OF_RANGE
        value[0] = -0.0 if number.is_negative else 0.0
    return NO_FAULT


@cython.cdivision(True)  # no divisor is zero
cdef inline Fault exact_magnitude(
    const Number* number, const unsigned char* begin, const unsigned char* end, uint64_t* magnitude
) noexcept nogil:
    """Compute the magnitude of a scanned number, whose text is `begin` to `end`, if it is integral.

    A fraction and an exponent do not matter: 1.0, 1e2 and 100e-2 are integers. Returns WRONG_TYPE
    if a fraction remains, and OUT_OF_RANGE if the magnitude exceeds 64 bits.

    If digits were dropped, `digits` has 19 digits, so that it is at least 10^18. An exponent of 2
    or more makes the number too large, and of the dropped digits at most the first one can count.
    Both loops run at most 20 times: a number other than 0 has at most 19 zeros at its end, and
    exceeds 64 bits when it is multiplied by 10^20.
    """
    cdef uint64_t digits = number.digits
    cdef int64_t exponent = number.exponent
    cdef int64_t n_dropped = 0
    cdef unsigned char first_dropped = c"0"
    if not number.is_exact:
        n_dropped = dropped_digits(begin, end, &first_dropped)
    if n_dropped > 0:
        if n_dropped > exponent:
            return WRONG_TYPE
        if exponent > 1 or digits > (<uint64_t>-1 - (first_dropped - c"0")) // 10:
            return OUT_OF_RANGE
        digits = digits * 10 + (first_dropped - c"0")
        exponent = 0
    while exponent < 0 and digits != 0:
        if digits % 10 != 0:
            return WRONG_TYPE
        digits //= 10
        exponent += 1
    while exponent > 0 and digits != 0:
        if digits > <uint64_t>-1 // 10:
            return OUT_OF_RANGE
        digits *= 10
        exponent -= 1
    magnitude[0] = digits
    return NO_FAULT


cdef inline int64_t dropped_digits(
    const unsigned char* position, const unsigned char* end, unsigned char* first
) noexcept nogil:
    """Return the number of digits that `scan_number` dropped, without the zeros at their end.

    The text of the number is `position` to `end`. `first` is set to the first dropped digit.
    """
    cdef int64_t n_digits = 0, n_dropped = 0  # significant digits
    while position < end and position[0] | 0x20 != c"e":
        if <unsigned char>(position[0] - c"0") < 10 and (n_digits > 0 or position[0] != c"0"):
            n_digits += 1
            if n_digits == MAX_DIGITS + 1:
                first[0] = position[0]
            if n_digits > MAX_DIGITS and position[0] != c"0":
                n_dropped = n_digits - MAX_DIGITS
        position += 1
    return n_dropped
