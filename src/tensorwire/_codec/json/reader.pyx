# distutils: language = c++
# distutils: extra_compile_args = -std=c++17
"""Turn JSON text into Python objects and the memory of tensors.

There is one extension of JSON: `data` of a tensor may contain NaN, Infinity and -Infinity.

The numbers and strings in the `data` of a tensor do not become objects: `read_numbers` writes
numbers to the memory of an array, and `read_strings` writes strings as the length-prefixed bytes of
a BYTES tensor. The functions that read them use no Python objects. Other values become objects. A
fault raises a HeaderError.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_FromLongLong
from cpython.mem cimport PyMem_RawFree
from cpython.object cimport PyObject
from cpython.ref cimport Py_CLEAR
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_KIND
from libc.math cimport INFINITY, NAN
from libc.stdint cimport INT64_MAX, UINT32_MAX, int64_t, uint32_t, uint64_t

from ..borrowed cimport bytes_data
from ..datatypes cimport Float
from ..gil cimport ITEM_COST, TEXT_COST, PyThreadState, count_or_release_gil, count_work, take_gil
from ..json.nearest cimport (
    exact_double, exact_magnitude, exact_single, nearest_float, scan_decimal)
from ..json.scanner cimport (
    BAD_ESCAPE, CONTROL_CHARACTER, DATA_TOO_DEEP, DUPLICATE_KEY, LONE_SURROGATE, MAX_DIGITS,
    NO_FAULT, NO_MEMORY, NOT_UTF8, OUT_OF_RANGE, TOO_DEEP, TOO_MANY_DIGITS, TOO_MANY_VALUES,
    WINDOW_NBYTES, WRONG_TYPE, CountWork, Fault, Keys, Number, ReadCursor, Text, append_digits,
    copy_string, is_digit, next_character, open_level, scan_number, scan_string, skip_blanks,
    skip_literal, skip_value, take, unexpected)
from ..new_objects cimport PyUnicode_New, ascii_str, owned_bytes, shrunk_bytes
from ..wire cimport PREFIX_NBYTES, store_le32, store_low_bytes

from ...errors import HeaderError, format_count

cnp.import_array()

cdef extern from "Python.h":
    void PyUnicode_WRITE(int kind, void* data, Py_ssize_t index, uint32_t character) nogil

cdef enum:
    MAX_ATTEMPT_NBYTES = 128 << 10  # reading any JSON of this size takes at most about 1 ms
    MAX_EXCERPT_NBYTES = 60  # of a value in an error message


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
    # Only for strings: where the next element is written, in the memory of `wire`, a bytes object
    # without other references.
    unsigned char* element
    PyObject* wire


ctypedef Fault (*ReadElement)(ReadCursor* cursor, ParsedElements* elements) noexcept nogil


cdef inline Fault read_list(
    ReadCursor* cursor, ParsedElements* elements, ReadElement read
) noexcept nogil:
    """Read nested lists of elements in row-major order. The cursor is at the first bracket.

    `read` reads one element to `target`. It is a constant in each caller, so that the compiler
    generates a separate loop for each kind of element.

    Elements beyond `n_expected` are validated and counted. They are all written to the same 8
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
    """Read an integer in the range of the datatype.

    Digits are read here. A number with a fraction or an exponent, and one of more digits than fit
    in 64 bits, is left to `read_any_integer`.
    """
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
            return read_any_integer(cursor, elements)
        digits = digits * 10 + digit
        position += 1
    if position < end and (position[0] == c"." or position[0] | 0x20 == c"e"):
        return read_any_integer(cursor, elements)
    if not store_integer(elements, digits, is_negative):
        return OUT_OF_RANGE
    cursor.position = position
    return NO_FAULT


cdef inline bint store_integer(
    ParsedElements* elements, uint64_t magnitude, bint is_negative
) noexcept nogil:
    """Store an integer as the next element. Return False if the datatype does not have it."""
    if magnitude > (elements.most_negative if is_negative else elements.most_positive):
        return False
    if is_negative:
        magnitude = 0 - magnitude  # two's complement
    store_low_bytes(elements.target, magnitude, elements.itemsize)  # in range: the others are equal
    return True


cdef Fault read_any_integer(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    """Read a number in any form. If it is no integer in range, the cursor does not move."""
    cdef const unsigned char* begin = cursor.position
    cdef uint64_t magnitude = 0
    cdef Number number
    cdef Fault fault = scan_number(cursor, &number)
    if fault != NO_FAULT:
        return fault
    fault = exact_magnitude(&number, begin, cursor.position, &magnitude)
    if fault == NO_FAULT and not store_integer(elements, magnitude, number.is_negative):
        fault = OUT_OF_RANGE
    if fault != NO_FAULT:
        cursor.position = begin
    return fault


cdef inline Fault read_double(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
    cdef const unsigned char* begin = cursor.position
    cdef double* target = <double*>elements.target
    cdef Number number
    if scan_decimal(cursor, &number) and exact_double(&number, target):
        return NO_FAULT
    cursor.position = begin
    return read_any_float(cursor, target)


cdef inline Fault read_single(ReadCursor* cursor, ParsedElements* elements) noexcept nogil:
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
    """Read a string, and write it as a BYTES element: a length prefix and the unescaped text.

    Bounds: see `allocate_wire`. Elements beyond `n_expected` are all written to the same memory.
    """
    cdef Text text
    cdef unsigned char* begin = elements.element + PREFIX_NBYTES
    cdef unsigned char* end = begin
    cdef Fault fault
    if cursor.position == cursor.end or cursor.position[0] != c'"':
        return wrong_type_or_unexpected(cursor, "a string")
    fault = copy_string(cursor, &end, &text)
    if fault != NO_FAULT:
        return fault
    if end - begin > <Py_ssize_t>UINT32_MAX:
        cursor.position = text.begin - 1
        return OUT_OF_RANGE
    if elements.n_read < elements.n_expected:
        store_le32(elements.element, <uint32_t>(end - begin))
        elements.element = end
    return NO_FAULT


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


# --- with the GIL: values ------------------------------------------------------------------------


cdef int raise_fault(ReadCursor* cursor, Fault fault) except -1:
    cdef Py_ssize_t offset = cursor.position - cursor.start
    text = "the JSON header" if cursor.is_header else "the JSON"
    if fault == NO_MEMORY:
        raise MemoryError
    if fault == TOO_DEEP:
        raise HeaderError(
            f"the JSON is nested too deeply; the limit is {cursor.max_level} levels "
            f"(byte {offset})",
            offset=offset, expected=cursor.max_level, actual=cursor.max_level + 1)
    if fault == TOO_MANY_VALUES:
        raise HeaderError(
            f"the parameters have more than {format_count('value', cursor.max_values)}, which is "
            f"the limit (byte {offset})",
            offset=offset, expected=cursor.max_values, actual=cursor.max_values + 1)
    if fault == DUPLICATE_KEY:
        raise HeaderError(
            f"the member {excerpt(cursor)} appears twice in one object of {text} (byte {offset})",
            offset=offset)
    if fault == NOT_UTF8:
        try:
            # 3 bytes more, so that the sequence is cut only if it is at the end.
            cursor.position[:min(cursor.end - cursor.position, WINDOW_NBYTES + 6)].decode()
        except UnicodeDecodeError as error:
            offset += error.start
        raise HeaderError(f"{text} is not UTF-8 (byte {offset})", offset=offset)
    if fault == CONTROL_CHARACTER:
        what = f"a string has a control character, U+{cursor.position[0]:04X}, without an escape"
    elif fault == BAD_ESCAPE:
        what = "a string has an invalid escape"
    elif fault == LONE_SURROGATE:
        what = "a string has half of a surrogate pair"
    elif fault in (OUT_OF_RANGE, TOO_MANY_DIGITS):
        what = f"the number {excerpt(cursor)} is out of range"
    else:
        what = f"expected {cursor.expected.decode()}, found {format_next_byte(cursor)}"
    raise HeaderError(f"{text} is malformed: {what} (byte {offset})", offset=offset)


cdef str format_next_byte(ReadCursor* cursor):
    if cursor.position == cursor.end:
        return "its end"
    byte = cursor.position[0]
    return repr(chr(byte)) if 0x20 <= byte < 0x7F else f"the byte 0x{byte:02X}"


cdef str excerpt(ReadCursor* cursor):
    """Return the JSON text of the value at the cursor, abbreviated. Raises HeaderError."""
    cdef ReadCursor ahead = cursor[0]
    cdef Fault fault
    released = begin_long_read(&ahead)
    fault = skip_element(&ahead, NULL)
    end_long_read(&ahead, released)
    if fault != NO_FAULT:
        raise_fault(&ahead, fault)
    cdef Py_ssize_t nbytes = ahead.position - cursor.position
    if nbytes <= MAX_EXCERPT_NBYTES:
        return cursor.position[:nbytes].decode("utf-8", "replace")
    return cursor.position[:MAX_EXCERPT_NBYTES].decode("utf-8", "ignore") + f"... ({nbytes} bytes)"


cdef str text_to_str(const Text* text):
    cdef Py_ssize_t n_characters = 0
    cdef uint32_t largest = 0
    cdef const unsigned char* raw = text.begin
    cdef void* data
    cdef int kind
    cdef str result
    if text.is_ascii and not text.has_escapes:
        return ascii_str(text.begin, text.nbytes)
    # The length is computed first, so that no more memory is allocated than the str needs.
    released = count_or_release_gil(TEXT_COST * text.nbytes)
    n_characters = measure_characters(text, &largest)
    take_gil(released)
    if n_characters == 1:
        return chr(next_character(&raw))
    result = PyUnicode_New(n_characters, largest)
    kind, data = PyUnicode_KIND(result), PyUnicode_DATA(result)
    released = count_or_release_gil(TEXT_COST * text.nbytes)
    write_characters(kind, data, text)
    take_gil(released)
    return result


cdef Py_ssize_t measure_characters(const Text* text, uint32_t* largest) noexcept nogil:
    """Return the number of characters of a validated string, and set `largest` to the largest."""
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef Py_ssize_t n_characters = 0
    while raw < end:
        largest[0] = max(largest[0], next_character(&raw))
        n_characters += 1
    return n_characters


cdef void write_characters(int kind, void* data, const Text* text) noexcept nogil:
    cdef const unsigned char* raw = text.begin
    cdef const unsigned char* end = raw + text.nbytes
    cdef Py_ssize_t i = 0
    while raw < end:
        PyUnicode_WRITE(kind, data, i, next_character(&raw))
        i += 1


cdef Fault read_any_int64(ReadCursor* cursor, long long* value) noexcept:
    cdef const unsigned char* begin
    cdef Number number
    cdef Fault fault
    skip_blanks(cursor)
    begin = cursor.position
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


cdef int count_value(ReadCursor* cursor) except -1:
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
    count_work(ITEM_COST)
    skip_blanks(cursor)
    first = cursor.position[0] if cursor.position < cursor.end else 0
    if first == c'"':
        scan_string_or_raise(cursor, &text)
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
    cdef const unsigned char* begin = cursor.position
    cdef Py_ssize_t n_digits
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
    n_digits = cursor.position - begin - number.is_negative
    if n_digits <= MAX_INTEGER_DIGITS:
        count_work(3 * TEXT_COST * n_digits)  # at most: the time is quadratic
        try:
            return int(begin[:cursor.position - begin])
        except ValueError:  # sys.set_int_max_str_digits() may allow fewer
            pass
    cursor.position = begin
    raise_fault(cursor, TOO_MANY_DIGITS)


cdef list read_list_value(ReadCursor* cursor):
    cdef list items = []
    open_level_or_raise(cursor)
    while next_item(cursor, len(items) == 0):
        count_value(cursor)
        items.append(read_value(cursor))
    return items


cdef dict read_object(ReadCursor* cursor):
    cdef dict members = {}
    cdef Text key
    open_level_or_raise(cursor)
    while next_member(cursor, &key, len(members) == 0):
        count_value(cursor)
        set_member(cursor, members, &key, read_value(cursor))
    return members


cdef int set_member(ReadCursor* cursor, dict members, const Text* key, value) except -1:
    cdef Py_ssize_t before = len(members)
    members[text_to_str(key)] = value
    if len(members) == before:
        cursor.position = key.begin - 1
        raise_fault(cursor, DUPLICATE_KEY)
    return 0


# --- values whose size is not known before they are read ----------------------------------------

# The GIL is released before a long operation (gil.pxd), but only reading a value shows how long it
# is. So a value is first read up to MAX_ATTEMPT_NBYTES. If it does not end there, it is long, and
# is read again from its beginning.


cdef inline ReadCursor begin_attempt(const ReadCursor* cursor) noexcept nogil:
    """Return a copy of the cursor for an attempt: it ends after at most MAX_ATTEMPT_NBYTES."""
    cdef ReadCursor attempt = cursor[0]
    if attempt.end - attempt.position > MAX_ATTEMPT_NBYTES:
        attempt.end = attempt.position + MAX_ATTEMPT_NBYTES
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
    count_work(TEXT_COST * (attempt.position - cursor.position))
    cursor.position, cursor.level = attempt.position, attempt.level
    cursor.expected = attempt.expected


cdef inline PyThreadState* begin_long_read(ReadCursor* cursor) noexcept:
    """Count the work for the rest of the text, or release the GIL if that is long."""
    cursor.count_work = NULL
    return count_or_release_gil(TEXT_COST * (cursor.end - cursor.position))


cdef inline void end_long_read(ReadCursor* cursor, PyThreadState* released) noexcept:
    take_gil(released)
    cursor.count_work = <CountWork><void*>count_work


cdef inline Fault scan(ReadCursor* cursor, Text* text) noexcept nogil:
    return skip_value(cursor) if text == NULL else scan_string(cursor, text)


cdef int scan_or_raise(ReadCursor* cursor, Text* text) except -1:
    """Validate the string at the cursor, or any value if `text` is NULL, and advance past it."""
    cdef ReadCursor attempt = begin_attempt(cursor)
    cdef Py_ssize_t n_keys = cursor.keys.n_keys
    cdef Fault fault = scan(&attempt, text)
    if is_final(&attempt, cursor, fault):
        accept(cursor, &attempt)
    else:
        cursor.keys.n_keys = n_keys
        released = begin_long_read(cursor)
        fault = scan(cursor, text)
        end_long_read(cursor, released)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef int skip_data(ReadCursor* cursor) except -1:
    """Validate the nested lists at the cursor: the `data` of a tensor of a datatype to come."""
    cdef ParsedElements elements
    elements.read_list = skip_elements
    elements.target = NULL
    elements.wire = NULL
    elements.itemsize, elements.max_depth = 0, cursor.max_level
    elements.n_read = elements.n_expected = 0
    cdef Fault fault = read_elements(cursor, &elements)
    if fault != NO_FAULT:
        raise_fault(cursor, fault)
    return 0


cdef Fault read_elements(ReadCursor* cursor, ParsedElements* elements):
    """Read nested lists of elements. There is no attempt if they are more than it can contain."""
    cdef ReadCursor attempt = begin_attempt(cursor)
    cdef char* target = elements.target
    cdef Py_ssize_t n_keys = cursor.keys.n_keys
    cdef Fault fault
    # An element takes at least a character and a comma.
    if elements.n_expected <= <uint64_t>MAX_ATTEMPT_NBYTES // 2:
        allocate_wire(elements, &attempt)
        fault = elements.read_list(&attempt, elements)
        if is_final(&attempt, cursor, fault):
            accept(cursor, &attempt)
            return fault
    elements.target, elements.n_read = target, 0
    cursor.keys.n_keys = n_keys
    allocate_wire(elements, cursor)
    released = begin_long_read(cursor)
    fault = elements.read_list(cursor, elements)
    end_long_read(cursor, released)
    return fault


cdef int allocate_wire(ParsedElements* elements, const ReadCursor* cursor) except -1:
    """Allocate memory for all strings up to the end of the cursor, unless there are numbers.

    Bounds: before the content of element i, i + 1 prefixes and the content of i others are written.
    Their text, which is not shorter, 3 i quotes and commas, a bracket and a quote are read. So at
    most 4 (i + 1) - (3 i + 2) = i + 2 more bytes are written than read, and `copy_string` requires
    no more room than is left of the text. i is at most `n_expected`, and less than a third of the
    text. Memory that is not used is never touched, and `read_strings` frees it.
    """
    cdef Py_ssize_t nbytes = cursor.end - cursor.position
    cdef Py_ssize_t n_elements = min(<Py_ssize_t>elements.n_expected, nbytes // 3)
    if elements.read_list != read_texts:
        return 0
    Py_CLEAR(elements.wire)
    elements.wire = owned_bytes(NULL, nbytes + n_elements + PREFIX_NBYTES)
    elements.element = <unsigned char*>bytes_data(elements.wire)
    return 0


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
    elements.wire = NULL
    elements.target, elements.max_depth = target, MAX_DATA_DEPTH
    elements.n_read, elements.n_expected = 0, n_expected
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
    elements.read_list = read_texts
    elements.target = NULL
    elements.itemsize, elements.max_depth = 0, MAX_DATA_DEPTH
    elements.n_read, elements.n_expected = 0, n_expected
    elements.wire = NULL
    fault[0] = read_elements(cursor, &elements)
    n_read[0] = elements.n_read
    if fault[0] != NO_FAULT:
        Py_CLEAR(elements.wire)
        return None
    return shrunk_bytes(elements.wire, <char*>elements.element - bytes_data(elements.wire))


def read_json(bytes text not None, int max_level):
    """Return the value of a text of at most `max_level` levels. Raises HeaderError."""
    cdef ReadCursor cursor
    cdef Keys keys
    # A text has fewer values than bytes, so their number is not limited.
    begin_reading(
        &cursor, &keys, PyBytes_AS_STRING(text), len(text), max_level, len(text))
    cursor.is_header = False
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
    """Set the cursor to the beginning of a header, and `keys` to an empty stack.

    The text must not move or change while the cursor is used, and `keys` must not move. Call
    `end_reading` afterwards.
    """
    cursor.start = cursor.position = <const unsigned char*>text
    cursor.end = cursor.start + nbytes
    cursor.level = 0
    cursor.max_level = max_level
    cursor.max_values = cursor.n_values_left = max_values
    cursor.expected = NULL
    cursor.is_header = True
    cursor.count_work = <CountWork><void*>count_work
    cursor.keys = keys
    keys.begins = NULL
    keys.n_keys = keys.capacity = 0


cdef void end_reading(Keys* keys) noexcept:
    PyMem_RawFree(keys.begins)
