/* UTF-8, 16 bytes at a time. Nothing here uses Python.

   A `Block` is a vector type of gcc and clang. Its operators become SIMD instructions where there
   are any, and scalar code elsewhere. The two operations without an operator, `marks_of` and
   BYTES_BEFORE, have a version for SSE2, which every x86-64 processor has, one for NEON, and one in
   plain C, which TENSORWIRE_NO_SIMD selects. */

#ifndef TENSORWIRE_UTF8_H
#define TENSORWIRE_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK_NBYTES 16
typedef unsigned char Block __attribute__((vector_size(BLOCK_NBYTES)));

/* The bytes that have a property: one bit for each, the lowest for the first byte. */
typedef uint64_t Marks;

#if defined(__SSE2__) && !defined(TENSORWIRE_NO_SIMD)
#include <emmintrin.h>
/* Mark the bytes whose high bit is set. */
static inline Marks high_bits(Block block) {
    return (Marks)(unsigned)_mm_movemask_epi8((__m128i)block);
}
/* Mark the bytes that are 0xFF. All others are 0. */
static inline Marks marks_of(Block flags) { return high_bits(flags); }
/* The block that begins n bytes before `block`. The n bytes before it are the last of `previous`. */
#define BYTES_BEFORE(previous, block, n) \
    ((Block)_mm_or_si128(_mm_slli_si128((__m128i)(block), n), \
                         _mm_srli_si128((__m128i)(previous), BLOCK_NBYTES - (n))))

#elif defined(__aarch64__) && !defined(TENSORWIRE_NO_SIMD)
#include <arm_neon.h>
static inline Marks marks_of(Block flags) {
    static const unsigned char weights[BLOCK_NBYTES] = {
        1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t bits = vandq_u8((uint8x16_t)flags, vld1q_u8(weights));
    bits = vpaddq_u8(bits, bits);  /* sums of neighbours: of 2, 4 and then 8 bytes */
    bits = vpaddq_u8(bits, bits);
    bits = vpaddq_u8(bits, bits);
    return vgetq_lane_u16(vreinterpretq_u16_u8(bits), 0);
}
static inline Marks high_bits(Block block) {
    return marks_of((Block)vcltzq_s8(vreinterpretq_s8_u8((uint8x16_t)block)));
}
#define BYTES_BEFORE(previous, block, n) \
    ((Block)vextq_u8((uint8x16_t)(previous), (uint8x16_t)(block), BLOCK_NBYTES - (n)))

#else
static inline Marks high_bits(Block block) {
    /* The high bit of byte i is moved to bit 8 i, and the product moves that to bit 56 + i. Its
       other terms are at bits that differ from these and from each other, so nothing is carried.
       The machine is little-endian: on other machines, importing the package raises ImportError. */
    uint64_t words[2];
    int i;
    memcpy(words, &block, BLOCK_NBYTES);
    for (i = 0; i < 2; i++)
        words[i] = (words[i] >> 7 & 0x0101010101010101ULL) * 0x0102040810204080ULL >> 56;
    return words[0] | words[1] << 8;
}
static inline Marks marks_of(Block flags) { return high_bits(flags); }
static inline Block bytes_before(Block previous, Block block, int n) {
    unsigned char both[2 * BLOCK_NBYTES];
    memcpy(both, &previous, BLOCK_NBYTES);
    memcpy(both + BLOCK_NBYTES, &block, BLOCK_NBYTES);
    memcpy(&block, both + BLOCK_NBYTES - n, BLOCK_NBYTES);
    return block;
}
#define BYTES_BEFORE(previous, block, n) bytes_before(previous, block, n)
#endif

/* Return the index of the first byte that is marked. There is one. */
static inline int first_mark(Marks marks) { return __builtin_ctzll(marks); }

/* Return a block of equal bytes. */
static inline Block each(unsigned char c) {
    Block block = {c, c, c, c, c, c, c, c, c, c, c, c, c, c, c, c};
    return block;
}

/* How many bytes a text needs for a word of 8, by its size. A table, because compilers make a branch
   of a comparison. */
static const unsigned char MISSING_NBYTES[BLOCK_NBYTES] = {8, 7, 6, 5, 4, 3, 2, 1};

/* Return the next 16 bytes of a text, of which `nbytes`, at least 1, are left. Bytes after the text
   are replaced by 0. `n_before` bytes before it can be read, and no others. If they suffice for a
   whole word, short texts need no other branch, because their sizes are hard to predict.

   The words may overlap. They are shifted twice, because a shift by 64 is undefined. */
static inline Block load_padded(const unsigned char *text, ptrdiff_t nbytes, ptrdiff_t n_before) {
    typedef uint64_t Words __attribute__((vector_size(BLOCK_NBYTES)));
    uint64_t first, last = 0;
    uint32_t low, high;
    int n_missing, n_more;
    Block block;
    if (__builtin_expect(nbytes >= BLOCK_NBYTES, 1)) {
        memcpy(&block, text, BLOCK_NBYTES);
        return block;
    }
    n_missing = MISSING_NBYTES[nbytes];
    if (n_before >= n_missing) {
        n_more = n_missing + (int)nbytes - 8;
        memcpy(&first, text - n_missing, 8);
        memcpy(&last, text + nbytes - 8, 8);
        first >>= 8 * n_missing;
        last = last >> 8 * (7 - n_more) >> 8;
    } else if (nbytes >= 4) {
        memcpy(&low, text, 4);
        memcpy(&high, text + nbytes - 4, 4);
        first = low | (uint64_t)high << 8 * (nbytes - 4);
    } else {
        first = text[0] | (uint64_t)text[nbytes / 2] << 8 * (nbytes / 2)
                | (uint64_t)text[nbytes - 1] << 8 * (nbytes - 1);
    }
    return (Block)(Words){first, last};
}

/* --- bytes to characters and back ------------------------------------------------------------- */

/* Return 255 for the bytes of a block that violate RFC 3629, and 0 for the others. `previous` is
   the block before it, or 0. A sequence is checked when its last byte is seen, so what a block ends
   with is checked with the next block.

   A byte must continue a sequence if it follows the first byte of one of 2 or more bytes (C0 and
   above), is the second after that of one of 3 or more (E0), or the third after one of 4 (F0).
   All others must not. The bytes C0, C1 and F5 to FF never occur. The second byte has a narrower
   range after E0 and F0 (no overlong forms), ED (no surrogates) and F4 (nothing past U+10FFFF). */
static inline Block utf8_errors(Block previous, Block block) {
    Block one = BYTES_BEFORE(previous, block, 1);
    Block two = BYTES_BEFORE(previous, block, 2);
    Block three = BYTES_BEFORE(previous, block, 3);
    Block follows = (Block)((one >= each(0xC0)) | (two >= each(0xE0)) | (three >= each(0xF0)));
    Block continues = (Block)((block & each(0xC0)) == each(0x80));
    Block never = (Block)(((block & each(0xFE)) == each(0xC0)) | (block >= each(0xF5)));
    Block low = (Block)(((one == each(0xE0)) & (block < each(0xA0)))
                        | ((one == each(0xF0)) & (block < each(0x90))));
    Block high = (Block)(((one == each(0xED)) & (block >= each(0xA0)))
                         | ((one == each(0xF4)) & (block >= each(0x90))));
    return (follows ^ continues) | never | low | high;
}

/* Return whether a text is valid UTF-8. */
static inline int is_utf8(const unsigned char *text, ptrdiff_t nbytes) {
    Block previous = each(0), errors = each(0), block;
    ptrdiff_t i;
    for (i = 0; i < nbytes; i += BLOCK_NBYTES) {
        block = load_padded(text + i, nbytes - i, i);
        errors |= utf8_errors(previous, block);
        previous = block;
    }
    /* A sequence that the end of the text cuts is an error of the first byte after it. If that is
       not in the last block, it is in the next one. */
    return !marks_of(errors | utf8_errors(previous, each(0)));
}

/* Write a code point as 1 to 4 bytes of UTF-8. Return the end of the text. 4 bytes are written: there
   is no branch, because the sizes of characters are hard to predict. */
static inline unsigned char *write_character(unsigned char *target, uint32_t c) {
    static const uint32_t leads[5] = {0, 0, 0x80C0u, 0x8080E0u, 0x808080F0u};
    int nbytes = 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    /* Groups of 6 bits. The first byte of the text is the lowest one. */
    uint32_t bytes = (c & 0x3F) << 24 | (c & 0xFC0) << 10 | (c & 0x3F000) >> 4 | c >> 18;
    bytes = bytes >> 8 * (4 - nbytes) | leads[nbytes];
    bytes = c < 0x80 ? c : bytes;
    memcpy(target, &bytes, 4);
    return target + nbytes;
}

/* --- text in which Python stores a character in one byte (U+0000 to U+00FF) --------------------- */

/* Return how many of 8 characters take 2 bytes of UTF-8. */
static inline int n_two_bytes(const unsigned char *text) {
    uint64_t word;
    memcpy(&word, text, 8);
    return (int)((word >> 7 & 0x0101010101010101ULL) * 0x0101010101010101ULL >> 56);
}

/* Do the work of `write_character`. 2 bytes are written. */
static inline unsigned char *write_one(unsigned char *target, unsigned char c) {
    unsigned is_two = c >> 7, two = 0x80C0u | c >> 6 | (c & 0x3Fu) << 8;
    uint16_t bytes = (uint16_t)(c ^ ((two ^ c) & (0u - is_two)));
    memcpy(target, &bytes, 2);
    return target + 1 + is_two;
}

/* Write the first of 8 characters up to one that takes 2 bytes, and that. Advance `target`. Return
   the number of characters. 9 bytes are written at most. There is no branch, because the distances
   between such characters are hard to predict. */
static inline int write_up_to_eight(unsigned char **target, const unsigned char *text) {
    uint64_t word;
    int n;
    memcpy(&word, text, 8);
    memcpy(*target, &word, 8);
    /* If there is none, this is the last one. */
    n = __builtin_ctzll((word & 0x8080808080808080ULL) | 1ULL << 63) >> 3;
    *target = write_one(*target + n, text[n]);
    return n + 1;
}

#endif
