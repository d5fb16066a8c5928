/* The JSON reader under libFuzzer: a text that is read in part and then as a whole.

   Long texts are read without the GIL, and again with it unless the result is final. The first
   reading may end anywhere in the text. Either the result is final, and then it is that of the whole
   text, or the second reading has this result. The values are compared with the reference codec by
   the target "request", whose texts are shorter than those that the reader reads twice.

   The generated C++ file of the module is included completely, so that its static functions can be
   called. An interpreter starts once, to initialise the tables of the module; no Python code runs
   after that.

   The first byte of an input chooses the check, the next ones its options. The text is at the end
   of its memory block, and elements are written to a block of the exact size, so that
   AddressSanitizer detects accesses out of bounds. */

#include GENERATED

#include <algorithm>
#include <string>

/* Functions of reader.pyx and scanner.pxd in _codec/json. */
#define READER(name) __pyx_f_10tensorwire_6_codec_4json_6reader_##name
#define SCANNER(name) __pyx_f_10tensorwire_6_codec_4json_7scanner_##name
#define E(name) __pyx_e_10tensorwire_6_codec_4json_7scanner_##name
typedef struct __pyx_t_10tensorwire_6_codec_4json_7scanner_ReadCursor ReadCursor;
typedef struct __pyx_t_10tensorwire_6_codec_4json_7scanner_Keys Keys;
typedef struct __pyx_t_10tensorwire_6_codec_4json_6reader_ParsedElements ParsedElements;
typedef enum __pyx_t_10tensorwire_6_codec_4json_7scanner_Fault Fault;
typedef unsigned char byte;

static void check_line(bool condition, int line) {
    if (condition) return;
    fprintf(stderr, "json_kernels.cpp: the check in line %d failed\n", line);
    abort();
}
#define CHECK(condition) check_line((condition), __LINE__)

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

/* Return whether the result of reading a part is final. If it is not, forget the keys of objects. */
static bool is_final(Reading &part, const ReadCursor &tried, Fault fault) {
    CHECK(part.cursor.start <= tried.position && tried.position <= part.cursor.end);
    if (READER(is_final)((ReadCursor *)&tried, &part.cursor, fault)) return true;
    part.keys.n_keys = 0;
    return false;
}

static void check_same(Fault fault, const ReadCursor &cursor, Fault other, const ReadCursor &whole) {
    CHECK(fault == other && cursor.position == whole.position && cursor.level == whole.level);
}

/* Skip any value. */
static void skips(const byte *text, size_t nbytes, byte option, byte at) {
    Reading whole(text, nbytes, option), part(text, nbytes, option);
    Fault fault = whole.seen(SCANNER(skip_value)(&whole.cursor));
    ReadCursor tried = cut(part, at);
    Fault again = SCANNER(skip_value)(&tried);
    if (is_final(part, tried, again)) {
        check_same(again, tried, fault, whole.cursor);
    } else {
        again = part.seen(SCANNER(skip_value)(&part.cursor));
        check_same(again, part.cursor, fault, whole.cursor);
    }
}

/* Lists of elements of every kind. */
static const int ITEMSIZES[] = {8, 4, 1, 1, 2, 4, 8, 1, 2, 4, 8, 0, 0};

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
    /* Return the bytes that have been written. */
    std::string written(const ParsedElements &read) const {
        if (read.read_list == READER(read_texts)) return {memory, (char *)read.element};
        return {memory, memory + read.itemsize * std::min<uint64_t>(read.n_read, read.n_expected)};
    }
};

static void lists(const byte *text, size_t nbytes, byte option, byte at) {
    if (nbytes < 2) return;
    uint64_t n_expected = text[0] % 16;
    Elements_ read(option % 13, n_expected, text[1]);
    Reading whole(text + 2, nbytes - 2, text[1] % 14), part(text + 2, nbytes - 2, text[1] % 14);
    if (nbytes == 2 || text[2] != '[') return;
    ParsedElements elements = read.from(&whole.cursor);
    Fault fault = whole.seen(elements.read_list(&whole.cursor, &elements));
    std::string values = fault == E(NO_FAULT) ? read.written(elements) : "";
    ReadCursor tried = cut(part, at);
    ParsedElements second = read.from(&tried);
    Fault again = second.read_list(&tried, &second);
    if (is_final(part, tried, again)) {
        check_same(again, tried, fault, whole.cursor);
    } else {
        second = read.from(&part.cursor);
        again = part.seen(second.read_list(&part.cursor, &second));
        check_same(again, part.cursor, fault, whole.cursor);
    }
    CHECK(second.n_read == elements.n_read);
    CHECK(fault != E(NO_FAULT) || read.written(second) == values);
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
    if (nbytes < 3) return 0;
    size_t n = nbytes - 3;
    byte *text = (byte *)malloc(n);
    memcpy(text, data + 3, n);
    (data[0] % 2 ? lists : skips)(text, n, data[1] % 16, data[2]);
    free(text);
    return 0;
}
