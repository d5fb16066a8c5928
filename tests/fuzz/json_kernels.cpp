/* The kernels of the JSON reader under libFuzzer, compared with a second, simple JSON reader.

   The generated C++ file of the module is included completely, so that its static functions can be
   called. An interpreter starts once, to initialise the tables of the module; no Python code runs
   after that.

   The first byte of an input chooses the check, the second one its options. The text is at the end
   of its memory block, and numbers are written to a block of the exact size, so that
   AddressSanitizer detects accesses out of bounds. */

#include GENERATED

#include <ctype.h>
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

/* Functions of reader.pyx, scanner.pxd and numbers.pxd in _codec/json. The last ones have a
   version for each type of `Float`: 0 is double, 1 is float. */
#define READER(name) __pyx_f_10tensorwire_6_codec_4json_6reader_##name
#define SCANNER(name) __pyx_f_10tensorwire_6_codec_4json_7scanner_##name
#define NUMBERS(n, name) __pyx_fuse_##n##__pyx_f_10tensorwire_6_codec_4json_7numbers_##name
#define E(name) __pyx_e_10tensorwire_6_codec_4json_7scanner_##name
typedef struct __pyx_t_10tensorwire_6_codec_4json_7scanner_ReadCursor ReadCursor;
typedef struct __pyx_t_10tensorwire_6_codec_4json_7scanner_Keys Keys;
typedef struct __pyx_t_10tensorwire_6_codec_4json_7scanner_Text Text;
typedef struct __pyx_t_10tensorwire_6_codec_4json_7scanner_Number Number;
typedef struct __pyx_t_10tensorwire_6_codec_4json_6reader_ParsedElements ParsedElements;
typedef enum __pyx_t_10tensorwire_6_codec_4json_7scanner_Fault Fault;
typedef unsigned char byte;
typedef std::u32string Points;

static void check_line(bool condition, int line) {
    if (condition) return;
    fprintf(stderr, "json_kernels.cpp: the check in line %d failed\n", line);
    abort();
}
#define CHECK(condition) check_line((condition), __LINE__)

/* --- the second reader: one byte at a time; values are decoded first and checked afterwards --- */

struct Token {  /* an element of a list, or any value without its members */
    char kind;  /* the first byte; '0' for any number, 'N' for NaN and infinities */
    const byte *begin, *end;
    Points points;  /* of a string */
    bool is_integer;
};

struct Judge {
    const byte *p, *end;
    int level, max_level;

    void blanks() { while (p < end && *p && strchr(" \n\r\t", *p)) p++; }
    bool next(char c) {
        blanks();
        if (p == end || *p != (byte)c) return false;
        p++;
        return true;
    }
    bool word(const char *text) {
        for (; *text; text++, p++)
            if (p == end || *p != (byte)*text) return false;
        return true;
    }
    bool digits() {
        const byte *begin = p;
        while (p < end && *p >= '0' && *p <= '9') p++;
        return p > begin;
    }
    bool number(bool *is_integer) {
        if (p < end && *p == '-') p++;
        if (p < end && *p == '0') p++;
        else if (!digits()) return false;
        if (p < end && *p >= '0' && *p <= '9') return false;
        *is_integer = true;
        if (p < end && *p == '.') {
            *is_integer = false;
            p++;
            if (!digits()) return false;
        }
        if (p < end && (*p == 'e' || *p == 'E')) {
            *is_integer = false;
            p++;
            if (p < end && (*p == '+' || *p == '-')) p++;
            if (!digits()) return false;
        }
        return true;
    }
    bool unit(unsigned *value) {
        *value = 0;
        for (int i = 0; i < 4; i++, p++) {
            if (p == end || !isxdigit(*p)) return false;
            *value = *value * 16 + (*p <= '9' ? *p - '0' : (*p | 0x20) - 'a' + 10);
        }
        return true;
    }
    bool string(Points *points) {
        if (p == end || *p != '"') return false;
        p++;
        while (true) {
            unsigned value, low;
            if (p == end || *p < 0x20) return false;
            if (*p == '"') break;
            if (*p == '\\') {
                static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
                p++;
                if (p == end) return false;
                byte name = *p++;
                if (name == 'u') {
                    if (!unit(&value)) return false;
                    if (value >= 0xDC00 && value <= 0xDFFF) return false;
                    if (value >= 0xD800 && value <= 0xDBFF) {
                        if (!word("\\u") || !unit(&low)) return false;
                        if (low < 0xDC00 || low > 0xDFFF) return false;
                        value = 0x10000 + (value - 0xD800) * 0x400 + (low - 0xDC00);
                    }
                } else {
                    const char *found = name ? strchr(names, name) : NULL;
                    if (!found) return false;
                    value = (byte)values[found - names];
                }
            } else if (*p < 0x80) {
                value = *p++;
            } else {
                int n = *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : 2;
                static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
                if (*p < 0xC0 || *p >= 0xF8 || end - p < n) return false;
                value = *p++ & (0xFF >> (n + 1));
                for (int i = 1; i < n; i++, p++) {
                    if ((*p & 0xC0) != 0x80) return false;
                    value = value << 6 | (*p & 0x3F);
                }
                if (value < least[n] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
                    return false;
            }
            points->push_back(value);
        }
        p++;
        return true;
    }
    bool open() {
        if (level == max_level) return false;
        level++;
        p++;
        return true;
    }
    bool value(Token *token) {
        blanks();
        token->begin = p;
        token->is_integer = false;
        if (p == end) return false;
        token->kind = (char)*p;
        bool is_valid;
        if (*p == '"') is_valid = string(&token->points);
        else if (*p == '[') is_valid = list();
        else if (*p == '{') is_valid = object();
        else if (*p == 't') is_valid = word("true");
        else if (*p == 'f') is_valid = word("false");
        else if (*p == 'n') is_valid = word("null");
        else {
            token->kind = '0';
            is_valid = number(&token->is_integer);
        }
        token->end = p;
        return is_valid;
    }
    bool list() {
        Token token;
        if (!open()) return false;
        if (!next(']')) {
            do {
                if (!value(&token)) return false;
            } while (next(','));
            if (!next(']')) return false;
        }
        level--;
        return true;
    }
    bool object() {
        std::set<Points> keys;
        bool is_unique = true;
        if (!open()) return false;
        if (!next('}')) {
            do {
                Points key;
                Token token;
                blanks();
                if (!string(&key) || !next(':') || !value(&token)) return false;
                is_unique = keys.insert(key).second && is_unique;
            } while (next(','));
            if (!next('}')) return false;
        }
        level--;
        return is_unique;
    }
    /* Read nested lists of elements. Complete elements become tokens, even if this fails later. */
    bool elements(std::vector<Token> *tokens, int max_depth) {
        blanks();
        if (p == end || *p != '[' || max_depth == 0 || !open()) return false;
        if (!next(']')) {
            do {
                blanks();
                if (p < end && *p == '[') {
                    if (!elements(tokens, max_depth - 1)) return false;
                    continue;
                }
                Token token;
                const byte *begin = p;
                token.is_integer = false;
                if (word("NaN") || (p = begin, word("Infinity")) || (p = begin, word("-Infinity"))) {
                    token.kind = 'N';
                    token.begin = begin;
                    token.end = p;
                } else {
                    p = begin;
                    if (!value(&token)) return false;
                }
                tokens->push_back(token);
            } while (next(','));
            if (!next(']')) return false;
        }
        level--;
        return true;
    }
};

static std::string utf8(const Points &points) {
    std::string made;
    for (char32_t c : points) {
        if (c < 0x80) { made += (char)c; continue; }
        if (c < 0x800) made += (char)(0xC0 | c >> 6);
        else {
            if (c < 0x10000) made += (char)(0xE0 | c >> 12);
            else {
                made += (char)(0xF0 | c >> 18);
                made += (char)(0x80 | (c >> 12 & 0x3F));
            }
            made += (char)(0x80 | (c >> 6 & 0x3F));
        }
        made += (char)(0x80 | (c & 0x3F));
    }
    return made;
}

/* --- cursors ----------------------------------------------------------------------------------- */

struct Reading {
    ReadCursor cursor;
    Keys keys;
    Reading(const byte *text, Py_ssize_t nbytes, int max_level) {
        READER(begin_reading)(&cursor, &keys, (const char *)text, nbytes, max_level, nbytes);
    }
    ~Reading() { READER(end_reading)(&keys); }
    Fault seen(Fault fault) {
        CHECK(cursor.start <= cursor.position && cursor.position <= cursor.end);
        CHECK(0 <= cursor.level && cursor.level <= cursor.max_level);
        CHECK(0 <= keys.n_keys && keys.n_keys <= keys.capacity);
        if (fault == E(NO_FAULT)) CHECK(cursor.level == 0 && keys.n_keys == 0);
        if (fault == E(TEXT_ENDED)) CHECK(cursor.position == cursor.end);
        if (fault == E(TEXT_ENDED) || fault == E(UNEXPECTED)) CHECK(cursor.expected != NULL);
        return fault;
    }
};

static ReadCursor cut(const Reading &whole, size_t at) {
    ReadCursor tried = whole.cursor;
    if ((size_t)(tried.end - tried.position) > at) tried.end = tried.position + at;
    return tried;
}

/* Skipping accepts the same values as the judge, and a final result on a part of the text is that
   of the whole text. */
static void skips(const byte *text, size_t nbytes, byte option) {
    int max_level = option % 16;
    Reading whole(text, nbytes, max_level), part(text, nbytes, max_level);
    Judge judge = {text, text + nbytes, 0, max_level};
    Token token;
    bool is_valid = judge.value(&token);
    Fault fault = whole.seen(SCANNER(skip_value)(&whole.cursor));
    CHECK((fault == E(NO_FAULT)) == is_valid);
    if (is_valid) CHECK(whole.cursor.position == judge.p);
    ReadCursor tried = cut(part, option);
    Fault again = SCANNER(skip_value)(&tried);
    CHECK(part.cursor.start <= tried.position && tried.position <= tried.end);
    if (READER(is_final)(&tried, &part.cursor, again)) {
        CHECK(again == fault && tried.position == whole.cursor.position);
        CHECK(tried.level == whole.cursor.level);
    } else {
        part.keys.n_keys = 0;
        CHECK(part.seen(SCANNER(skip_value)(&part.cursor)) == fault);
        CHECK(part.cursor.position == whole.cursor.position);
    }
}

/* A string is valid if the judge accepts it, has the same characters, and its unescaped form fits
   into the memory of the escaped one. */
static void strings(const byte *text, size_t nbytes, byte option) {
    Reading whole(text, nbytes, 0), copied(text, nbytes, 0);
    Judge judge = {text, text + nbytes, 0, 0};
    Points points;
    Text found, again;
    judge.blanks();
    bool is_valid = judge.string(&points);
    Fault fault = whole.seen(SCANNER(scan_string)(&whole.cursor, &found));
    CHECK((fault == E(NO_FAULT)) == is_valid);
    byte *memory = (byte *)malloc(nbytes), *end = memory;
    CHECK(copied.seen(SCANNER(copy_string)(&copied.cursor, &end, &again)) == fault);
    CHECK(copied.cursor.position == whole.cursor.position);
    std::string written((char *)memory, end - memory);
    free(memory);
    if (!is_valid) return;
    CHECK(whole.cursor.position == judge.p && found.begin + found.nbytes + 1 == judge.p);
    CHECK(again.begin == found.begin && again.nbytes == found.nbytes);
    CHECK(again.has_escapes == found.has_escapes && again.is_ascii == found.is_ascii);
    std::string meant = utf8(points);
    CHECK(written == meant);
    CHECK(SCANNER(utf8_nbytes_of)(&found) == (Py_ssize_t)meant.size());
    /* What the writer writes for these characters means the same. */
    for (size_t begin = 0; begin < meant.size() + 1; begin += 1 + option) {
        Py_ssize_t n = meant.size() - begin, n_before = option % 9;
        byte *source = (byte *)malloc(n_before + n);
        memset(source, '"', n_before);
        memcpy(source + n_before, meant.data() + begin, n);
        byte *escaped = (byte *)malloc(6 * n + BLOCK_NBYTES + 2);
        byte *stop = escape_text(escaped + 1, source + n_before, n, n_before, 0);
        free(source);
        bool is_cut = n > 0 && ((byte)meant[begin] & 0xC0) == 0x80;
        CHECK((stop == NULL) == is_cut);
        if (stop != NULL) {
            Judge writers = {escaped, stop + 1, 0, 0};
            Points same;
            escaped[0] = *stop = '"';
            CHECK(writers.string(&same) && writers.p == stop + 1);
            CHECK(utf8(same) == meant.substr(begin));
        }
        free(escaped);
    }
    CHECK(SCANNER(equals)(&found, meant.data(), meant.size()) == std::all_of(
        meant.begin(), meant.end(), [&](char c) { return (byte)c < 0x80 || !found.has_escapes; }));
    meant += (char)option;
    CHECK(!SCANNER(equals)(&found, meant.data(), meant.size()));
    meant.resize(meant.size() - 1);
    if (!meant.empty()) CHECK(!SCANNER(equals)(&found, meant.data(), meant.size() - 1));
    /* If a second string follows: keys are ordered by their code points. */
    Text other;
    Points others;
    judge.blanks();
    if (SCANNER(scan_string)(&whole.cursor, &other) == E(NO_FAULT)) {
        CHECK(judge.string(&others));
        int expected = points < others ? -1 : points > others ? 1 : 0;
        int order = SCANNER(compare_keys)(&found.begin, &other.begin);
        CHECK((order > 0) - (order < 0) == expected);
        order = SCANNER(compare_keys)(&other.begin, &found.begin);
        CHECK((order > 0) - (order < 0) == -expected);
    }
}

template <typename Float> static Float nearest(const std::string &text);
template <> double nearest(const std::string &text) { return strtod(text.c_str(), NULL); }
template <> float nearest(const std::string &text) { return strtof(text.c_str(), NULL); }

/* Return the integer. Its magnitude stops growing beyond 2^100. */
static __int128 integer(const Token &token) {
    __int128 value = 0;
    const byte *p = token.begin + (*token.begin == '-');
    for (; p < token.end; p++)
        if (value < (__int128)1 << 100) value = value * 10 + (*p - '0');
    return *token.begin == '-' ? -value : value;
}

/* Return whether a number is an integer in any notation, and its value; 10^30 stands for all that
   are as large. */
static bool integral(const Token &token, __int128 *value) {
    std::string text(token.begin, token.end), digits;
    bool is_negative = text[0] == '-';
    size_t e = std::min(text.find_first_of("eE"), text.size()), point = text.find('.');
    for (size_t i = is_negative; i < e; i++)
        if (text[i] != '.') digits += text[i];
    double power = e < text.size() ? strtod(text.c_str() + e + 1, NULL) : 0;
    double n_zeros = power - (point < e ? (double)(e - point - 1) : 0);
    while (!digits.empty() && digits.back() == '0') digits.pop_back(), n_zeros++;
    digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
    *value = 0;
    if (digits.empty()) return true;
    if (n_zeros < 0) return false;
    bool is_large = (double)digits.size() + n_zeros > 30;
    if (is_large) digits = "1", n_zeros = 30;
    for (char c : digits) *value = *value * 10 + (c - '0');
    for (int i = 0; i < (int)n_zeros; i++) *value *= 10;
    if (is_negative) *value = -*value;
    return true;
}

/* A number is valid if the judge accepts it, and rounds to the same value as in the C library. */
static void numbers(const byte *text, size_t nbytes, byte option) {
    if (nbytes > 0 && *text <= ' ') return;  /* only scan_int64 skips white space */
    Reading whole(text, nbytes, 0), again(text, nbytes, 0);
    Judge judge = {text, text + nbytes, 0, 0};
    Number number;
    Token token;
    token.begin = text;
    bool is_valid = judge.number(&token.is_integer);
    token.end = judge.p;
    Fault fault = whole.seen(SCANNER(scan_number)(&whole.cursor, &number));
    CHECK((fault == E(NO_FAULT)) == is_valid);
    long long small;
    Fault read = again.seen(READER(read_int64)(&again.cursor, &small));
    if (!is_valid) {
        CHECK(read != E(NO_FAULT));
        return;
    }
    CHECK(whole.cursor.position == judge.p && (bool)number.is_integer == token.is_integer);
    if (token.is_integer) {
        __int128 value = integer(token), magnitude = value < 0 ? -value : value;
        CHECK(read == (magnitude >> 63 ? E(OUT_OF_RANGE) : E(NO_FAULT)));
        CHECK(again.cursor.position == judge.p);
        if (read == E(NO_FAULT)) CHECK(small == (long long)value);
        if (number.is_exact) CHECK((__int128)number.digits == magnitude);
    } else {
        CHECK(read == E(WRONG_TYPE) && again.cursor.position == text);
    }
    std::string copy((const char *)text, judge.p - text);
    double wide = 0, wide_expected = nearest<double>(copy);
    float narrow = 0, narrow_expected = nearest<float>(copy);
    fault = NUMBERS(0, nearest_float)(&number, text, judge.p, &wide);
    CHECK(fault == (std::isinf(wide_expected) ? E(OUT_OF_RANGE) : E(NO_FAULT)));
    if (fault == E(NO_FAULT)) CHECK(memcmp(&wide, &wide_expected, 8) == 0);
    fault = NUMBERS(1, nearest_float)(&number, text, judge.p, &narrow);
    CHECK(fault == (std::isinf(narrow_expected) ? E(OUT_OF_RANGE) : E(NO_FAULT)));
    if (fault == E(NO_FAULT)) CHECK(memcmp(&narrow, &narrow_expected, 4) == 0);
}

/* Lists of elements of every kind give the same values as the judge, or its first invalid one. */
static const int ITEMSIZES[] = {8, 4, 1, 1, 2, 4, 8, 1, 2, 4, 8, 0, 0};

static bool element_value(int kind, const Token &token, std::string *made) {
    int itemsize = ITEMSIZES[kind];
    if (kind <= 1) {
        double value;
        float narrow;
        if (token.kind == 'N') {
            value = *token.begin == 'N' ? NAN : *token.begin == '-' ? -INFINITY : INFINITY;
            narrow = (float)value;
        } else if (token.kind == 'n') {
            value = narrow = NAN;
        } else if (token.kind == '0') {
            std::string copy((const char *)token.begin, token.end - token.begin);
            value = nearest<double>(copy);
            narrow = nearest<float>(copy);
            if (kind == 0 ? std::isinf(value) : std::isinf(narrow)) return false;
        } else {
            return false;
        }
        made->append(kind == 0 ? (char *)&value : (char *)&narrow, itemsize);
        return true;
    }
    if (kind == 2) {
        if (token.kind != 't' && token.kind != 'f') return false;
        made->push_back(token.kind == 't');
        return true;
    }
    if (kind <= 10) {
        __int128 value, most, least = 0;
        if (token.kind != '0' || !integral(token, &value)) return false;
        if (kind <= 6) most = ((__int128)1 << (8 * itemsize)) - 1;
        else most = ((__int128)1 << (8 * itemsize - 1)) - 1, least = -most - 1;
        if (value < least || value > most) return false;
        made->append((char *)&value, itemsize);
        return true;
    }
    if (kind == 11) {
        if (token.kind != '"') return false;
        std::string meant = utf8(token.points);
        uint32_t n = (uint32_t)meant.size();
        made->append((char *)&n, 4);
        *made += meant;
    }
    return true;
}

struct Elements_ {
    ParsedElements elements;
    char *memory;
    Elements_(int kind, uint64_t n_expected, byte option) {
        int itemsize = ITEMSIZES[kind];
        memory = (char *)malloc(itemsize * n_expected);
        memset(&elements, 0, sizeof elements);
        elements.itemsize = itemsize;
        elements.target = memory;
        elements.max_depth = 1 + option % 12;
        elements.n_expected = n_expected;
        if (kind == 0) elements.read_list = READER(read_doubles);
        else if (kind == 1) elements.read_list = READER(read_singles);
        else if (kind == 2) elements.read_list = READER(read_bools);
        else if (kind <= 10) elements.read_list = READER(read_integers);
        else if (kind == 11) elements.read_list = READER(read_texts);
        else elements.read_list = READER(skip_elements);
        if (3 <= kind && kind <= 10) {
            elements.most_positive = ~0ULL >> (64 - 8 * itemsize);
            if (kind > 6) {
                elements.most_positive >>= 1;
                elements.most_negative = elements.most_positive + 1;
            }
        }
    }
    ~Elements_() { free(memory); }
    /* Return the elements for a text. The memory for strings is that of `allocate_wire`. */
    ParsedElements from(const ReadCursor *cursor) {
        if (elements.read_list == READER(read_texts)) {
            size_t nbytes = cursor->end - cursor->position;
            nbytes += std::min<size_t>(elements.n_expected, nbytes / 3) + 4;
            memory = (char *)realloc(memory, nbytes);
            elements.element = (byte *)memory;
        }
        return elements;
    }
};

static bool is_nan(int kind, const std::string &values, size_t i) {
    double wide = 0;
    float narrow = 0;
    if (kind == 0) memcpy(&wide, values.data() + i, 8);
    if (kind == 1) memcpy(&narrow, values.data() + i, 4);
    return std::isnan(wide) || std::isnan(narrow);
}

static void lists(const byte *text, size_t nbytes, byte option) {
    if (nbytes < 2) return;
    int kind = option % 13;
    uint64_t n_expected = text[0] % 16;
    byte more = text[1];
    text += 2;
    nbytes -= 2;
    int max_level = more % 14;
    Elements_ read(kind, n_expected, more);
    Judge judge = {text, text + nbytes, 0, max_level};
    judge.blanks();
    if (judge.p == judge.end || *judge.p != '[') return;
    const byte *begin = judge.p;
    Reading whole(text, nbytes, max_level), part(text, nbytes, max_level);
    whole.cursor.position = part.cursor.position = begin;
    std::vector<Token> tokens;
    bool is_valid = judge.elements(&tokens, read.elements.max_depth);
    std::string values;
    size_t bad = 0, stored = 0;  /* the size of the elements up to the expected number */
    while (bad < tokens.size() && element_value(kind, tokens[bad], &values))
        if (++bad <= n_expected) stored = values.size();
    ParsedElements elements = read.from(&whole.cursor);
    Fault fault = whole.seen(elements.read_list(&whole.cursor, &elements));
    if (bad < tokens.size()) {
        CHECK(fault == E(WRONG_TYPE) || fault == E(OUT_OF_RANGE));
        CHECK(elements.n_read == bad && whole.cursor.position == tokens[bad].begin);
    } else if (!is_valid) {
        CHECK(fault != E(NO_FAULT));
    } else {
        CHECK(fault == E(NO_FAULT) && elements.n_read == tokens.size());
        CHECK(whole.cursor.position == judge.p);
        if (kind == 11) {
            CHECK((size_t)(elements.element - (byte *)read.memory) == stored);
            CHECK(!memcmp(read.memory, values.data(), stored));
        } else if (kind < 11) {
            size_t itemsize = ITEMSIZES[kind];
            size_t n = std::min<size_t>(n_expected, tokens.size()) * itemsize;
            for (size_t i = 0; i < n; i += itemsize) {
                if (is_nan(kind, values, i))
                    CHECK(is_nan(kind, std::string(read.memory + i, itemsize), 0));
                else
                    CHECK(!memcmp(read.memory + i, values.data() + i, itemsize));
            }
        }
    }
    /* Read a part of the text, then, unless that result is final, the whole text again. */
    ReadCursor tried = cut(part, more);
    ParsedElements first = read.from(&tried);
    Fault again = first.read_list(&tried, &first);
    CHECK(part.cursor.start <= tried.position && tried.position <= tried.end);
    if (READER(is_final)(&tried, &part.cursor, again)) {
        CHECK(again == fault && tried.position == whole.cursor.position);
        CHECK(first.n_read == elements.n_read);
    } else {
        part.keys.n_keys = 0;
        ParsedElements second = read.from(&part.cursor);
        CHECK(part.seen(second.read_list(&part.cursor, &second)) == fault);
        CHECK(second.n_read == elements.n_read);
        CHECK(part.cursor.position == whole.cursor.position);
    }
}

/* --- libFuzzer --------------------------------------------------------------------------------- */

extern "C" const char *__asan_default_options(void) {
    return "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=1";
}

/* Start the interpreter INTERPRETER, and initialise the module without importing its package. */
extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyConfig_SetBytesString(&config, &config.program_name, INTERPRETER);
    if (PyStatus_Exception(Py_InitializeFromConfig(&config))) return 1;
    PyConfig_Clear(&config);
    CHECK(PyRun_SimpleString(
        "import sys, types, importlib.machinery\n"
        "for name, path in (('', ''), ('._codec', '/_codec'), ('._codec.json', '/_codec/json')):\n"
        "    module = sys.modules['tensorwire' + name] = types.ModuleType('tensorwire' + name)\n"
        "    module.__path__ = ['" PACKAGE "' + path]\n"
        "spec = importlib.machinery.ModuleSpec('tensorwire._codec.json.reader', None)\n") == 0);
    PyObject *spec = PyObject_GetAttrString(PyImport_AddModule("__main__"), "spec");
    PyModuleDef *definition = (PyModuleDef *)PyInit_reader();
    PyObject *module = PyModule_FromDefAndSpec(definition, spec);
    if (module == NULL || PyModule_ExecDef(module, definition) != 0) {
        PyErr_Print();
        abort();
    }
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const byte *data, size_t nbytes) {
    if (nbytes < 2) return 0;
    byte kernel = data[0] % 4, option = data[1];
    size_t n = nbytes - 2;
    byte *text = (byte *)malloc(n);
    memcpy(text, data + 2, n);
    if (kernel == 0) skips(text, n, option);
    else if (kernel == 1) strings(text, n, option);
    else if (kernel == 2) numbers(text, n, option);
    else lists(text, n, option);
    free(text);
    return 0;
}
