/* The numbers of the JSON reader in C and C++: tables, and the conversion of decimal numbers to
   doubles and floats. Nothing here uses Python.

   `nearest_double` rounds any number of up to 19 digits and a moderate exponent. `parse_float`
   rounds any number, with the C++ library. Both round correctly: to the nearest double or float,
   half to even. */

#ifndef TENSORWIRE_JSON_NUMBERS_H
#define TENSORWIRE_JSON_NUMBERS_H

#include <float.h>
#include <stdint.h>
#include <string.h>

/* ONES * b is a word with b in each of its 8 bytes. */
#define ONES 0x0101010101010101ULL

static const double SIGNS[2] = {1.0, -1.0};

static const uint64_t INTEGER_POWERS_OF_10[9] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

/* The value of a larger exponent is not needed: no text has enough digits to make up for it. */
#define MAX_EXPONENT ((int64_t)100000000000000000)

/* 10^22 is the largest power of ten that a double represents exactly. */
#define MAX_EXACT_EXPONENT 22
static const double POWERS_OF_10[23] = {
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* A double represents every integer up to 2^53 exactly. The bound is lower, so that numbers of 16
   digits, which most doubles need, all take the same path: a processor could not predict which of
   them are above 2^53. */
#define MAX_EXACT_INTEGER 1000000000000000ULL

/* 5^n for every n for which it fits in 64 bits. */
static const unsigned long long POWERS_OF_5[28] = {
    1ULL, 5ULL, 25ULL, 125ULL, 625ULL, 3125ULL, 15625ULL, 78125ULL, 390625ULL, 1953125ULL,
    9765625ULL, 48828125ULL, 244140625ULL, 1220703125ULL, 6103515625ULL, 30517578125ULL,
    152587890625ULL, 762939453125ULL, 3814697265625ULL, 19073486328125ULL, 95367431640625ULL,
    476837158203125ULL, 2384185791015625ULL, 11920928955078125ULL, 59604644775390625ULL,
    298023223876953125ULL, 1490116119384765625ULL, 7450580596923828125ULL};
#define MAX_EXPONENT_OF_5 27

/* floor(2^127 / d), where d is 5^n shifted left until its highest bit is set; n > 0. */
static const unsigned long long RECIPROCALS_OF_5[28] = {
    0, 0xccccccccccccccccULL, 0xa3d70a3d70a3d70aULL, 0x83126e978d4fdf3bULL, 0xd1b71758e219652bULL,
    0xa7c5ac471b478423ULL, 0x8637bd05af6c69b5ULL, 0xd6bf94d5e57a42bcULL, 0xabcc77118461cefcULL,
    0x89705f4136b4a597ULL, 0xdbe6fecebdedd5beULL, 0xafebff0bcb24aafeULL, 0x8cbccc096f5088cbULL,
    0xe12e13424bb40e13ULL, 0xb424dc35095cd80fULL, 0x901d7cf73ab0acd9ULL, 0xe69594bec44de15bULL,
    0xb877aa3236a4b449ULL, 0x9392ee8e921d5d07ULL, 0xec1e4a7db69561a5ULL, 0xbce5086492111aeaULL,
    0x971da05074da7beeULL, 0xf1c90080baf72cb1ULL, 0xc16d9a0095928a27ULL, 0x9abe14cd44753b52ULL,
    0xf79687aed3eec551ULL, 0xc612062576589ddaULL, 0x9e74d1b791e07e48ULL};

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
            (unsigned __int128)digits * RECIPROCALS_OF_5[-exponent] >> 64);
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

#ifdef __cplusplus
#include <charconv>
#include <math.h>
#include <stdlib.h>

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

#endif

#endif
