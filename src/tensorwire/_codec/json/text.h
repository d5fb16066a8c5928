/* The content of JSON strings, in blocks of utf8.h: copy it up to the next character that is or must
   be escaped. Nothing here uses Python.

   Text is written to JSON by `copy_usual` and `copy_blocks` up to the first window with a character
   that is escaped or not ASCII, and from there by `escape_any`. The latter alone would do, but takes
   1.4 to 3.4 times as long for text that needs neither, of 0 to 16 and of 16 to 64 bytes (4.0 ns
   instead of 2.8, and 7.6 instead of 2.2, on an x86-64 processor). */

#ifndef TENSORWIRE_JSON_TEXT_H
#define TENSORWIRE_JSON_TEXT_H

#include "utf8.h"

/* Mark the characters that a string contains only with a backslash, and backslashes. */
static inline Marks special_characters(Block block) {
    return marks_of(
        (Block)((block == each('"')) | (block == each('\\')) | (block < each(0x20))));
}

/* Return 255 for these, and for bytes that are not ASCII.

   Bit 1 is inverted, and the bytes are compared as signed numbers. A quote (0x22) is then 0x20,
   control characters are less than 0x20, and bytes that are not ASCII are negative. All other
   characters are greater than 0x20. */
static inline Block unusual_characters(Block block) {
    typedef signed char SignedBlock __attribute__((vector_size(BLOCK_NBYTES)));
    return (Block)((block == each('\\'))
                   | ((SignedBlock)(block ^ each(0x02)) < (SignedBlock)each(0x21)));
}

/* The character that follows a backslash in a string, and what it means; 0 for all others. */
static const unsigned char ESCAPED[256] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, '"', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '/',
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '\\', 0, 0, 0,
    0, 0, '\b', 0, 0, 0, '\f', 0, 0, 0, 0, 0, 0, 0, '\n', 0,
    0, 0, '\r', 0, '\t'};

/* Return the size of a string if it is shorter than two blocks, ASCII and without escapes, as most
   keys are, or else -1. The text begins after its first quote. No bytes from `end` on are read. */
static inline int short_string(const unsigned char *text, const unsigned char *end) {
    Block block;
    Marks unusual;
    int i, begin;
    for (begin = 0; begin < 2 * BLOCK_NBYTES && end - text >= begin + BLOCK_NBYTES;
         begin += BLOCK_NBYTES) {
        memcpy(&block, text + begin, BLOCK_NBYTES);
        unusual = marks_of(unusual_characters(block));
        if (unusual) {
            i = begin + first_mark(unusual);
            return text[i] == '"' ? i : -1;
        }
    }
    return -1;
}

#define N_BLOCKS 4
#define WINDOW_NBYTES (N_BLOCKS * BLOCK_NBYTES)  /* as many as Marks has bits */
#define HALF_NBYTES (WINDOW_NBYTES / 2)

/* Copy at most WINDOW_NBYTES bytes of a text, of which `left` are left. Return the end of the copy.
   If a whole window is left, the bytes after the copy may be written, too, up to its size. */
static inline unsigned char *copy_part(
    unsigned char *target, const unsigned char *text, int nbytes, ptrdiff_t left
) {
    if (left >= WINDOW_NBYTES) {
        memcpy(target, text, HALF_NBYTES);
        if (nbytes > HALF_NBYTES) memcpy(target + HALF_NBYTES, text + HALF_NBYTES, HALF_NBYTES);
    } else {
        memcpy(target, text, (size_t)nbytes);
    }
    return target + nbytes;
}

#define NOT_ASCII 1
#define HAS_ESCAPES 2

/* Advance `text` to the first character of a string that needs attention: the quote at its end, a
   control character, or a backslash that begins \uXXXX or nothing valid; or to `end`. Escapes of two
   bytes are passed. Return what was passed: NOT_ASCII, HAS_ESCAPES, both or neither (0); or -1 if it
   is not UTF-8, or cut in a sequence. The invalid sequence then begins in the window at `text`, or in
   the 3 bytes before it.

   What was passed is written to `*target`, which is advanced, with its escapes resolved. If `target`
   is NULL, nothing is written. The text must not change.

   Bounds: the target has room for as many bytes as are left of the text. No more are written than
   were passed, and `copy_part` writes no more than are left of the text at that place.

   The characters that need attention are found in a whole window, and then passed, because their
   number is hard to predict: a processor guesses wrong once for each window. */
static inline int unescape_text(
    unsigned char **target, const unsigned char **text, const unsigned char *end
) {
    const unsigned char *position = *text;
    unsigned char *written = target == NULL ? NULL : *target;
    Block previous = each(0), window[N_BLOCKS];
    Marks stops, stop, errors, own, high = 0;
    ptrdiff_t left;
    int i, begin, passed = 0;
    while ((left = end - position) > 0) {
        *text = position;
        stops = own = errors = 0;
        for (i = 0; i < N_BLOCKS; i++) {
            begin = i * BLOCK_NBYTES;
            window[i] = left > begin ? load_padded(position + begin, left - begin, begin) : each(0);
            /* The zeros after the end of the text are control characters. */
            stops |= special_characters(window[i]) << begin;
            own |= high_bits(window[i]) << begin;
        }
        /* From the first bytes that are not ASCII on, all are validated: which windows are not ASCII
           is hard to predict. */
        if (own | high) {
            for (i = 0; i < N_BLOCKS; i++) {
                errors |= marks_of(utf8_errors(previous, window[i])) << i * BLOCK_NBYTES;
                previous = window[i];
            }
        }
        begin = 0;  /* the index of the first byte that was not passed */
        while (stops) {
            i = first_mark(stops);
            stop = stops & (0 - stops);
            if (written != NULL) written = copy_part(written, position + begin, i - begin, left - begin);
            if (left - i < 2 || position[i] != '\\' || ESCAPED[position[i + 1]] == 0) {
                /* A sequence that is cut by this character is an error there. */
                if (errors & (stop | (stop - 1))) return -1;
                if (high | (own & (stop - 1))) passed |= NOT_ASCII;
                *text = position + i;
                if (target != NULL) *target = written;
                return passed;
            }
            passed |= HAS_ESCAPES;
            if (written != NULL) *written++ = ESCAPED[position[i + 1]];
            begin = i + 2;
            /* The second byte of the escape does not count. It may be the first one after the
               window. Then the bytes before it are taken for those before the next one, when that
               is validated. This is correct, because the escape is ASCII. */
            stops &= ~(stop | stop << 1);
        }
        if (errors) return -1;
        high |= own;
        if (written != NULL && begin < WINDOW_NBYTES)
            written = copy_part(written, position + begin, WINDOW_NBYTES - begin, left - begin);
        position += begin > WINDOW_NBYTES ? begin : WINDOW_NBYTES;
    }
    *text = position;
    if (high) {
        if (marks_of(utf8_errors(previous, each(0)))) return -1;
        passed |= NOT_ASCII;
    }
    if (target != NULL) *target = written;
    return passed;
}

/* Return the value of four hexadecimal digits, or -1 if one of the bytes is not a digit.

   The sums set the high bit of a byte from a limit on: 0x30 + 0x50 and 0x3A + 0x46 are 0x80, and so
   on. A byte that is not ASCII is no digit: both of its sums have the high bit, or the first one has
   wrapped, as it does before the second one, even if that has a carry. So all bytes are ASCII if all
   are digits, and then nothing is carried. */
static inline int hex_unit(const unsigned char *digits) {
    uint32_t word, lower, is_digit, is_letter;
    memcpy(&word, digits, 4);
    lower = word | 0x20202020u;
    is_digit = (word + 0x50505050u) & ~(word + 0x46464646u);  /* from 0x30 to 0x39 */
    is_letter = (lower + 0x1F1F1F1Fu) & ~(lower + 0x19191919u);  /* from 0x61 to 0x66 */
    if (((is_digit | is_letter) & 0x80808080u) != 0x80808080u) return -1;
    word = (word & 0x0F0F0F0Fu) + 9 * (word >> 6 & 0x01010101u);
    return (int)((word & 0xF) << 12 | (word >> 8 & 0xF) << 8 | (word >> 16 & 0xF) << 4 | word >> 24);
}

/* Read the escape \uXXXX, or two of a surrogate pair, that a text begins with. Return its size in
   bytes; 0 if it is no such escape; or -1 if it is half of a pair. `nbytes`, at least 1, are left.
   If the escape is valid, no bytes after it are used. */
static inline int read_unicode_escape(
    const unsigned char *text, ptrdiff_t nbytes, uint32_t *character
) {
    int unit = nbytes >= 6 && text[1] == 'u' ? hex_unit(text + 2) : -1, low;
    if (unit < 0) return 0;
    *character = (uint32_t)unit;
    if ((unit & 0xF800) != 0xD800) return 6;
    if (unit >= 0xDC00 || nbytes < 12 || text[6] != '\\' || text[7] != 'u') return -1;
    low = hex_unit(text + 8);
    if (low < 0xDC00 || low > 0xDFFF) return -1;
    *character = 0x10000u + (uint32_t)((unit - 0xD800) << 10 | (low - 0xDC00));
    return 12;
}

/* The character that follows a backslash for each character that needs one; 'u' if \u00xx follows. */
static const unsigned char ESCAPES[128] = {
    'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b', 't', 'n', 'u', 'f', 'r', 'u', 'u',
    'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u',
    0, 0, '"', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '\\'};

/* Write a character that needs a backslash. Return the end of the text: at most 6 bytes. */
static inline unsigned char *write_escape(unsigned char *target, unsigned char c) {
    target[0] = '\\';
    target[1] = ESCAPES[c];
    if (target[1] != 'u') return target + 2;
    target[2] = target[3] = '0';
    target[4] = (unsigned char)('0' + (c >> 4));
    target[5] = (unsigned char)"0123456789abcdef"[c & 0xF];
    return target + 6;
}

/* Do the work of `escape_text` for any text. */
static inline unsigned char *escape_any(
    unsigned char *target, const unsigned char *text, ptrdiff_t nbytes, ptrdiff_t n_before,
    int is_valid
) {
    unsigned char copy[2 * BLOCK_NBYTES] = {0};
    Block previous = each(0), block;
    Marks stops, high = 0;
    ptrdiff_t i;
    int n, begin, stop;
    for (i = 0; i < nbytes; i += BLOCK_NBYTES) {
        block = load_padded(text + i, nbytes - i, n_before + i);
        memcpy(target, &block, BLOCK_NBYTES);
        stops = special_characters(block);
        high |= is_valid ? 0 : high_bits(block);
        /* A sequence that is cut by the end of the text is an error of the zeros after it. */
        if (high && marks_of(utf8_errors(previous, block))) return NULL;
        previous = block;
        if (!stops) {
            target += BLOCK_NBYTES;
            continue;
        }
        n = BLOCK_NBYTES;
        if (nbytes - i < n) {
            n = (int)(nbytes - i);
            stops &= ((Marks)1 << n) - 1;  /* the zeros after the end do not count */
        }
        begin = 0;
        if (stops) memcpy(copy, &block, BLOCK_NBYTES);
        while (stops) {
            stop = first_mark(stops);
            target = write_escape(target + (stop - begin), copy[stop]);
            begin = stop + 1;
            memcpy(target, copy + begin, BLOCK_NBYTES);
            stops &= stops - 1;
        }
        target += n - begin;
    }
    if (high && marks_of(utf8_errors(previous, each(0)))) return NULL;
    return target;
}

/* Copy a block. Return its unusual characters. */
static inline Block copy_block(unsigned char *target, const unsigned char *text) {
    Block block;
    memcpy(&block, text, BLOCK_NBYTES);
    memcpy(target, &block, BLOCK_NBYTES);
    return unusual_characters(block);
}

/* Copy the first and the last block of a text, and those at two offsets. Return whether there are
   unusual characters in them. */
static inline int copy_blocks(
    unsigned char *target, const unsigned char *text, ptrdiff_t second, ptrdiff_t third,
    ptrdiff_t nbytes
) {
    ptrdiff_t last = nbytes - BLOCK_NBYTES;
    return marks_of(copy_block(target, text) | copy_block(target + second, text + second)
                    | copy_block(target + third, text + third)
                    | copy_block(target + last, text + last)) != 0;
}

/* Copy a text of 1 to 15 bytes. 16 bytes are written. Return whether it has unusual characters. */
static inline int copy_short(
    unsigned char *target, const unsigned char *text, ptrdiff_t nbytes, ptrdiff_t n_before
) {
    Block block = load_padded(text, nbytes, n_before);
    memcpy(target, &block, BLOCK_NBYTES);
    /* The zeros after the end do not count. */
    return (marks_of(unusual_characters(block)) & (((Marks)1 << nbytes) - 1)) != 0;
}

/* Copy a text of less than WINDOW_NBYTES bytes. Return whether it has no unusual characters. The
   `n_before` bytes before the text can be read. The target has room for 16 bytes more than the text. */
static inline int copy_usual(
    unsigned char *target, const unsigned char *text, ptrdiff_t nbytes, ptrdiff_t n_before
) {
    ptrdiff_t second, third;
    if (nbytes < BLOCK_NBYTES)
        return nbytes == 0 || !copy_short(target, text, nbytes, n_before);
    second = nbytes < 2 * BLOCK_NBYTES ? 0 : BLOCK_NBYTES;
    third = nbytes < 2 * BLOCK_NBYTES ? 0 : nbytes - 2 * BLOCK_NBYTES;
    return !copy_blocks(target, text, second, third, nbytes);
}

/* Write a text as the content of a string. Return the end of what was written, or NULL if the text
   is not UTF-8, which is not checked if `is_valid`. `n_before` bytes before the text can be read.

   A byte becomes at most 6, and blocks are written: the target has room for 6 `nbytes` + 16 bytes.
   A block is loaded once, and then only its copy is used, so that the result is valid even if
   another thread changes the text.

   The sizes of texts are hard to predict. Therefore, 4 blocks are copied and checked at once. If the
   text ends within them, some of them overlap, and the same bytes are written twice. */
static inline unsigned char *escape_text(
    unsigned char *target, const unsigned char *text, ptrdiff_t nbytes, ptrdiff_t n_before,
    int is_valid
) {
    const ptrdiff_t last = nbytes - WINDOW_NBYTES;
    ptrdiff_t i;
    if (nbytes < WINDOW_NBYTES) {
        if (copy_usual(target, text, nbytes, n_before)) return target + nbytes;
        return escape_any(target, text, nbytes, n_before, is_valid);
    }
    for (i = 0; i < last + WINDOW_NBYTES; i += WINDOW_NBYTES) {
        if (i > last) i = last;
        if (copy_blocks(target + i, text + i, BLOCK_NBYTES, 2 * BLOCK_NBYTES, WINDOW_NBYTES))
            return escape_any(target + i, text + i, nbytes - i, n_before + i, is_valid);
    }
    return target + nbytes;
}

#endif
