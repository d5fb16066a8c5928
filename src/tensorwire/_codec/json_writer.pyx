"""Write the JSON text of a header from front to back to one growing block of memory.

Every string and other value is written with a comma after it. A colon replaces the comma after a
key, the closing bracket of a list or object replaces the last comma in it, and `JsonWriter.finish`
drops the last comma of the text.

The numbers of an array and the text of BYTES elements are written by kernels that use no Python
objects. A kernel writes while there is room for the longest possible element, because another
thread may change the elements at the same time. When there is no more room, the kernel returns, and
is called again after the memory has grown.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_AsUTF8String
from libc.stdint cimport (
    int8_t,
    int16_t,
    int32_t,
    int64_t,
    uint8_t,
    uint16_t,
    uint32_t,
    uint64_t,
)
from libc.string cimport memcpy, memset, strlen

from .bytes_reader cimport Element, Elements, Span, element_at
from .shortest cimport (
    FIRST_POWER,
    MAX_NUMBER_NBYTES,
    N_POWERS,
    Float,
    Integer,
    Power,
    write_float,
    write_integer,
)
from .utf8 cimport sequence_nbytes

from ..errors import EncodeError, format_value, format_count

cnp.import_array()

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const unsigned char* PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    int _PyBytes_Resize(PyObject** text, Py_ssize_t nbytes) except -1

cdef enum:
    # The maximum size of an element of an array with its comma. Numbers are the longest elements.
    MAX_ELEMENT_NBYTES = MAX_NUMBER_NBYTES + 1
    # When a kernel is called, there is room for this many elements, or for all that are left.
    MIN_BATCH = 1024
    # Text is escaped in pieces of this size. A byte becomes at most 6 bytes ("\u0001").
    PIECE_NBYTES = 1024
    # Up to 8 bytes are escaped in one step, so the last step may exceed the piece by 7 bytes.
    MAX_PIECE_NBYTES = 6 * (PIECE_NBYTES + 7)
    # The GIL is released from these sizes on, for which writing takes about 1 ms.
    RELEASE_GIL_FROM_ELEMENTS = 50_000
    RELEASE_GIL_FROM_NBYTES = 1 << 20
    BEFORE_TEXT = -1
    INVALID_UTF8 = -1

cdef enum Status:
    DONE
    FULL  # there may be no room for the next element or piece
    INVALID  # the next element cannot be written

cdef Power[N_POWERS] powers_of_ten
# For each ASCII character: 0 if it is not escaped, "u" if it becomes \u00xx, or else the letter
# that follows the backslash.
cdef char[128] escapes


cdef int fill_tables() except -1:
    """Compute `powers_of_ten` and `escapes`."""
    cdef int i
    for i in range(N_POWERS):
        exponent = <object>i + FIRST_POWER  # a Python int, so that nothing overflows
        # The 128 leading bits, rounded up: 10^e * 2^-s with s = floor(log2(10^e)) - 127.
        if exponent >= 0:
            shift = (10 ** exponent).bit_length() - 128
            value = 10 ** exponent << -shift if shift < 0 else -(-10 ** exponent >> shift)
        else:
            ten = 10 ** -exponent
            value = -(-(1 << ten.bit_length() + 127) // ten)
        powers_of_ten[i].high = value >> 64
        powers_of_ten[i].low = value & 0xFFFF_FFFF_FFFF_FFFF
    memset(escapes, 0, 128)
    memset(escapes, c"u", 0x20)
    for character, letter in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt'):
        escapes[<int>character] = letter


fill_tables()


@cython.final
@cython.freelist(8)
cdef class JsonWriter:
    """JSON text under construction. The `write` methods append a value and a comma."""

    def __cinit__(self):
        self.start = self.cursor.position = self.inline_memory
        self.cursor.end = self.inline_memory + INLINE_CAPACITY

    def __dealloc__(self):
        Py_XDECREF(self.grown)

    # --- memory ---

    cdef int grow(self, Py_ssize_t nbytes) except -1:
        """Make room for `nbytes` more bytes, and for at least twice the bytes written so far."""
        cdef Py_ssize_t n_written = self.cursor.position - self.start
        # No overflow: `nbytes` is a small multiple of the size of something in memory.
        cdef Py_ssize_t capacity = max(n_written + nbytes, 2 * n_written)
        if self.grown == NULL:
            text = PyBytes_FromStringAndSize(NULL, capacity)
            memcpy(PyBytes_AS_STRING(text), self.start, n_written)
            self.grown = new_reference(text)
        else:
            # Resizing may move the bytes object, and deallocates it if there is no memory.
            self.start = self.cursor.position = self.cursor.end = self.inline_memory
            _PyBytes_Resize(&self.grown, capacity)
        self.start = PyBytes_AS_STRING(<object>self.grown)
        self.cursor.position = self.start + n_written
        self.cursor.end = self.start + capacity
        return 0

    cdef bytes finish(self, Py_ssize_t align):
        """Return the text without its last comma, padded with spaces.

        Its size is a multiple of `align` bytes. The writer cannot be used afterwards.
        """
        cdef Py_ssize_t nbytes = self.cursor.position - self.start - 1
        cdef Py_ssize_t n_spaces = -nbytes % align
        cdef PyObject* text
        self.cursor.position -= 1
        reserve(self, n_spaces)
        memset(self.cursor.position, c" ", n_spaces)
        if self.grown == NULL:
            whole = PyBytes_FromStringAndSize(self.start, nbytes + n_spaces)
        else:
            _PyBytes_Resize(&self.grown, nbytes + n_spaces)
            text = self.grown
            self.grown = NULL
            whole = <object>text
            Py_XDECREF(text)
        return whole

    # --- values, each with a comma after it ---

    cdef int close(self, char bracket) except -1:
        """End a list or an object."""
        reserve(self, 2)
        if self.cursor.position[-1] == c",":
            self.cursor.position -= 1
        self.cursor.position[0] = bracket
        self.cursor.position[1] = c","
        self.cursor.position += 2
        return 0

    cdef int write_string(self, str value) except -1:
        """Write a string, which has no lone surrogate."""
        if PyUnicode_IS_ASCII(value):
            return write_quoted(self, PyUnicode_1BYTE_DATA(value), PyUnicode_GET_LENGTH(value))
        utf8 = PyUnicode_AsUTF8String(value)
        return write_quoted(
            self, <const unsigned char*>PyBytes_AS_STRING(utf8), PyBytes_GET_SIZE(utf8))

    cdef int write_int64(self, int64_t value) except -1:
        """Write an integer."""
        reserve(self, MAX_ELEMENT_NBYTES)
        end_element(&self.cursor, write_integer(self.cursor.position, value))
        return 0

    cdef int write_shape(self, tuple shape) except -1:
        """Write a shape, whose dimensions fit in 64 bits."""
        write_literal(self, b"[")
        for dim in shape:
            self.write_int64(dim)
        return self.close(c"]")

    cdef int write_value(self, value, int depth) except -1:
        """Write a value that `own_value` has returned. `depth` lists and objects are open.

        Floating-point numbers that are not finite are written as null, unless `nonfinite` is
        AS_ERROR. Raises EncodeError for such a number, or if a limit is exceeded.
        """
        cdef char* end
        if self.n_values >= self.max_values:
            raise EncodeError(
                f"the parameters have more than {format_count('value', self.max_values)}, which is "
                f"the limit", expected=self.max_values, actual=self.n_values + 1)
        self.n_values += 1
        if value is None:
            return write_literal(self, b"null,")
        if value is True:
            return write_literal(self, b"true,")
        if value is False:
            return write_literal(self, b"false,")
        if type(value) is str:
            return self.write_string(value)
        if type(value) is int:
            return write_any_int(self, value)
        if type(value) is float:
            reserve(self, MAX_ELEMENT_NBYTES)
            end = write_float(self.cursor.position, powers_of_ten, PyFloat_AS_DOUBLE(value))
            if end == NULL and self.nonfinite == AS_ERROR:
                raise EncodeError(
                    f"parameter {format_value(self.parameter)} contains {value}, which JSON cannot "
                    f"represent")
            if end == NULL:
                return write_literal(self, b"null,")
            end_element(&self.cursor, end)
            return 0
        check_depth(self, depth)
        if type(value) is dict:
            write_literal(self, b"{")
            for key, item in (<dict>value).items():
                self.write_string(key)
                self.cursor.position[-1] = c":"
                self.write_value(item, depth + 1)
            return self.close(c"}")
        write_literal(self, b"[")
        for item in <list>value:
            self.write_value(item, depth + 1)
        return self.close(c"]")

    cdef int write_parameters(self, dict parameters, int depth) except -1:
        """Write the parameters of a message or tensor without braces. Errors name the parameter.

        `parameters` was returned by `own_parameters`. `depth` is the number of open lists and
        objects, including the object of the parameters.
        """
        for key, value in parameters.items():
            self.parameter = key
            self.write_string(key)
            self.cursor.position[-1] = c":"
            self.write_value(value, depth)
        return 0

    # --- tensors ---

    cdef Py_ssize_t write_array(self, cnp.ndarray array) except -2:
        """Write the elements of a C-contiguous little-endian array as one flat list.

        The array may be misaligned. `nonfinite` determines how floating-point numbers that are not
        finite are written. If it is AS_ERROR, the index of the first such number is returned.
        Returns -1 if all elements were written.
        """
        cdef ArrayElements elements
        cdef Status status = FULL
        cdef Py_ssize_t n_before
        elements.data = <const char*>cnp.PyArray_DATA(array)
        elements.n = cnp.PyArray_SIZE(array)
        elements.kind = <char>array.descr.kind
        elements.itemsize = <int>cnp.PyArray_ITEMSIZE(array)
        elements.nonfinite = self.nonfinite
        elements.i = 0
        write_literal(self, b"[")
        n_before = self.cursor.position - self.start
        while status == FULL:
            reserve(self, room_for_elements(
                &elements, self.cursor.position - self.start - n_before))
            if elements.n - elements.i < RELEASE_GIL_FROM_ELEMENTS:
                status = write_elements(&self.cursor, &elements)
            else:
                with nogil:
                    status = write_elements(&self.cursor, &elements)
        if status == INVALID:
            return elements.i
        self.close(c"]")
        return -1

    cdef Py_ssize_t write_strings(self, Elements elements) except -2:
        """Write scanned BYTES elements (see bytes_reader.pyx) as one flat list of strings.

        Returns the index of the first element that is not valid UTF-8, or -1 if all are.
        """
        cdef Texts texts
        cdef Status status = FULL
        texts.span = &elements.span
        texts.i = 0
        texts.position = BEFORE_TEXT
        write_literal(self, b"[")
        while status == FULL:
            reserve(self, MAX_PIECE_NBYTES + 3)
            if elements.span.end < RELEASE_GIL_FROM_NBYTES:
                status = write_texts(&self.cursor, &texts)
            else:
                with nogil:
                    status = write_texts(&self.cursor, &texts)
        if status == INVALID:
            return texts.i
        self.close(c"]")
        return -1


# --- helpers of the writer ---


cdef inline PyObject* new_reference(object text) noexcept:
    """Return a new reference to `text`, which the caller owns."""
    Py_INCREF(text)
    return <PyObject*>text


cdef inline void end_element(WriteCursor* cursor, char* end) noexcept nogil:
    """Write the comma after a value that ends at `end`. Room for both was reserved."""
    end[0] = c","
    cursor.position = end + 1


cdef int write_quoted(JsonWriter writer, const unsigned char* text, Py_ssize_t nbytes) except -1:
    """Write valid UTF-8 as a string."""
    cdef Py_ssize_t i = 0, stop
    reserve(writer, nbytes + 3)
    if plain_nbytes(text, nbytes) == nbytes:
        writer.cursor.position[0] = c'"'
        memcpy(writer.cursor.position + 1, text, nbytes)
        writer.cursor.position[nbytes + 1] = c'"'
        end_element(&writer.cursor, writer.cursor.position + nbytes + 2)
        return 0
    write_literal(writer, b'"')
    while i < nbytes:
        stop = min(nbytes, i + PIECE_NBYTES)
        reserve(writer, 6 * (stop - i + 7))
        i = escape(&writer.cursor.position, text, nbytes, i, stop)
        assert i >= 0  # the text is valid UTF-8
    return write_literal(writer, b'",')


cdef int write_any_int(JsonWriter writer, value) except -1:
    """Write an integer of any size that `own_value` accepts."""
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0:
        return writer.write_int64(number)
    try:
        digits = int.__repr__(value).encode()
    except ValueError:  # sys.set_int_max_str_digits() has been called
        raise EncodeError(
            f"parameter {format_value(writer.parameter)} contains an integer of "
            f"{int.bit_length(value)} bits, which Python is set not to convert to text") from None
    return write_literal(writer, digits + b",")


cdef int check_depth(JsonWriter writer, int depth) except -1:
    """Raise EncodeError if no list or object is allowed within `depth` others."""
    if depth >= writer.max_nesting:
        raise EncodeError(
            f"the header is nested too deeply: parameter {format_value(writer.parameter)} contains "
            f"lists or objects on level {depth + 1}; the limit is {writer.max_nesting}",
            expected=writer.max_nesting, actual=depth + 1)
    return 0


# --- numbers: kernels ------------------------------------------------------------------------


cdef struct ArrayElements:
    const char* data
    Py_ssize_t n
    Py_ssize_t i  # index of the next element
    char kind  # b, i, u or f: the `kind` of the numpy dtype
    int itemsize
    Nonfinite nonfinite


cdef Py_ssize_t room_for_elements(
    const ArrayElements* elements, Py_ssize_t n_written
) noexcept nogil:
    """Return the number of bytes to reserve: enough for a batch, and probably for all elements.

    The room for all elements is estimated from the mean length of the elements so far. No overflow:
    there are fewer than 2^48 elements, because each takes at least 1 byte of memory.
    """
    cdef Py_ssize_t n_left = elements.n - elements.i
    cdef Py_ssize_t room = min(n_left, MIN_BATCH) * MAX_ELEMENT_NBYTES
    if elements.i > 0:
        room = max(room, n_left * (n_written // elements.i + 1))
    return room


cdef Status write_elements(WriteCursor* cursor, ArrayElements* elements) noexcept nogil:
    """Write elements from the next one on, while there is room.

    Bounds: no value takes more than MAX_ELEMENT_NBYTES with its comma, and the size of a batch is
    the room divided by that. Each element is loaded once.
    """
    cdef Py_ssize_t n_left, batch
    cdef Status status = DONE
    while status == DONE and elements.i < elements.n:
        n_left = elements.n - elements.i
        batch = min(n_left, (cursor.end - cursor.position) // MAX_ELEMENT_NBYTES)
        if batch < min(n_left, MIN_BATCH):
            return FULL
        status = write_batch(cursor, elements, elements.i + batch)
    return status


cdef Status write_batch(
    WriteCursor* cursor, ArrayElements* elements, Py_ssize_t stop
) noexcept nogil:
    """Write the elements from the next one on, up to index `stop`. There is room for them."""
    if elements.kind == c"f":
        if elements.itemsize == 4:
            return write_floats[float](cursor, elements, stop, 0)
        return write_floats[double](cursor, elements, stop, 0)
    if elements.kind == c"b":
        write_flags(cursor, elements, stop)
    elif elements.kind == c"i":
        if elements.itemsize == 1:
            write_integers[int8_t](cursor, elements, stop, 0)
        elif elements.itemsize == 2:
            write_integers[int16_t](cursor, elements, stop, 0)
        elif elements.itemsize == 4:
            write_integers[int32_t](cursor, elements, stop, 0)
        else:
            write_integers[int64_t](cursor, elements, stop, 0)
    elif elements.itemsize == 1:
        write_integers[uint8_t](cursor, elements, stop, 0)
    elif elements.itemsize == 2:
        write_integers[uint16_t](cursor, elements, stop, 0)
    elif elements.itemsize == 4:
        write_integers[uint32_t](cursor, elements, stop, 0)
    else:
        write_integers[uint64_t](cursor, elements, stop, 0)
    return DONE


cdef void write_flags(WriteCursor* cursor, ArrayElements* elements, Py_ssize_t stop) noexcept nogil:
    """Write booleans. For each, 8 bytes are stored: its text, a comma, and bytes to overwrite.

    There is no branch, because the values cannot be predicted.
    """
    cdef char* target = cursor.position
    cdef uint64_t as_true, as_false, word
    cdef Py_ssize_t i
    cdef bint flag
    memcpy(&as_true, b"true,...", 8)
    memcpy(&as_false, b"false,..", 8)
    for i in range(elements.i, stop):
        flag = elements.data[i] != 0
        word = as_false ^ (as_true ^ as_false) & 0 - <uint64_t>flag
        memcpy(target, &word, 8)
        target += 6 - flag
    cursor.position = target
    elements.i = stop


cdef void write_integers(
    WriteCursor* cursor, ArrayElements* elements, Py_ssize_t stop, Integer number
) noexcept nogil:
    """Write integers. The argument `number` only determines their type; its value is not used."""
    cdef char* target = cursor.position
    cdef const char* data = elements.data
    cdef Py_ssize_t i
    for i in range(elements.i, stop):
        memcpy(&number, data + i * <Py_ssize_t>sizeof(Integer), sizeof(Integer))
        target = write_integer(target, number)
        target[0] = c","
        target += 1
    cursor.position = target
    elements.i = stop


cdef Status write_floats(
    WriteCursor* cursor, ArrayElements* elements, Py_ssize_t stop, Float number
) noexcept nogil:
    """Write floating-point numbers. The argument `number` only determines their type.

    Returns INVALID if the next element is not finite and `nonfinite` is AS_ERROR.
    """
    cdef char* target = cursor.position
    cdef char* end
    cdef const char* data = elements.data
    cdef Py_ssize_t i
    cdef Status status = DONE
    for i in range(elements.i, stop):
        memcpy(&number, data + i * <Py_ssize_t>sizeof(Float), sizeof(Float))
        end = write_float(target, powers_of_ten, number)
        if end == NULL:
            if elements.nonfinite == AS_ERROR:
                status, stop = INVALID, i
                break
            end = write_nonfinite(target, number, elements.nonfinite)
        end[0] = c","
        target = end + 1
    cursor.position = target
    elements.i = stop
    return status


cdef char* write_nonfinite(char* target, double number, Nonfinite nonfinite) noexcept nogil:
    """Write a number that is not finite. Return the end of its text."""
    cdef const char* text = b"null"
    if nonfinite == AS_LITERAL:
        text = b"NaN" if number != number else b"Infinity" if number > 0 else b"-Infinity"
    memcpy(target, text, strlen(text))
    return target + strlen(text)


# --- text: kernels ---------------------------------------------------------------------------


cdef struct Texts:
    const Span* span
    Py_ssize_t i  # index of the next element
    Py_ssize_t position  # of the next byte in the text of that element, or BEFORE_TEXT


cdef Status write_texts(WriteCursor* cursor, Texts* texts) noexcept nogil:
    """Write elements as strings while there is room, from the next piece of the next element on.

    Bounds: before each piece, there is room for MAX_PIECE_NBYTES, a quote before it, and a quote
    and a comma after it. Lengths are differences of offsets, which were validated before.
    """
    cdef Element text
    cdef Py_ssize_t stop
    while texts.i < texts.span.n:
        text = element_at(texts.span, texts.i)
        if cursor.end - cursor.position < MAX_PIECE_NBYTES + 3:
            return FULL
        if texts.position == BEFORE_TEXT:
            cursor.position[0] = c'"'
            cursor.position += 1
            texts.position = 0
        if texts.position < text.nbytes:
            stop = min(text.nbytes, texts.position + PIECE_NBYTES)
            texts.position = escape(&cursor.position, text.data, text.nbytes, texts.position, stop)
            if texts.position < 0:
                return INVALID
        if texts.position == text.nbytes:
            memcpy(cursor.position, b'",', 2)
            cursor.position += 2
            texts.position = BEFORE_TEXT
            texts.i += 1
    return DONE


cdef inline uint64_t not_plain(uint64_t word) noexcept nogil:
    """Return 0 if the 8 bytes of `word` are plain: ASCII that JSON does not escape.

    The high bit of a byte is set in the result if it is set in `word`, if byte - 0x20 borrows, or
    if the byte is a quote or a backslash, because 0 - 1 borrows. A borrow may change the result for
    the bytes above. The result is not 0 in that case, because the byte that borrows has its high
    bit set.
    """
    cdef uint64_t ones = <uint64_t>0x0101010101010101
    return (
        word | (word - 0x20 * ones) | ((word ^ c'"' * ones) - ones) | ((word ^ c"\\" * ones) - ones)
    ) & 0x80 * ones


cdef inline Py_ssize_t plain_nbytes(const unsigned char* text, Py_ssize_t nbytes) noexcept nogil:
    """Return how many bytes at the start of `text` are ASCII that JSON does not escape."""
    cdef Py_ssize_t i = 0
    cdef uint64_t word
    while nbytes - i >= 8:
        memcpy(&word, text + i, 8)
        if not_plain(word):
            break
        i += 8
    while i < nbytes and text[i] < 0x80 and not escapes[text[i]]:
        i += 1
    return i


cdef Py_ssize_t escape(
    char** position, const unsigned char* text, Py_ssize_t nbytes, Py_ssize_t i, Py_ssize_t stop
) noexcept nogil:
    """Write text from index `i` on as the content of a JSON string, until `stop` is reached.

    Returns the index of the next byte, which is up to 7 bytes after `stop` and at most `nbytes`, or
    INVALID_UTF8. Bounds: a step starts before `stop`, reads at most 8 bytes, all before `nbytes`,
    and writes at most 6 bytes for each. A byte is not loaded again between its validation and the
    write, so that the output is valid even if another thread changes the text.
    """
    cdef char* target = position[0]
    cdef uint64_t word
    cdef unsigned char c
    cdef int n
    while i < stop:
        if nbytes - i >= 8:
            memcpy(&word, text + i, 8)
            if not not_plain(word):
                memcpy(target, &word, 8)
                target += 8
                i += 8
                continue
        c = text[i]
        if c >= 0x80:
            # The copy is validated, because another thread may change the text.
            target[0] = <char>c
            if nbytes - i >= 4:
                memcpy(target + 1, text + i + 1, 3)
            else:
                memcpy(target + 1, text + i + 1, nbytes - i - 1)
            n = sequence_nbytes(<const unsigned char*>target, nbytes - i)
            if n == 0:
                return INVALID_UTF8
            target += n
            i += n
            continue
        i += 1
        if not escapes[c]:
            target[0] = <char>c
            target += 1
        elif escapes[c] != c"u":
            target[0] = c"\\"
            target[1] = escapes[c]
            target += 2
        else:
            memcpy(target, b"\\u00", 4)
            target[4] = c"0" + (c >> 4)  # below 0x20
            target[5] = b"0123456789abcdef"[c & 0xF]
            target += 6
    position[0] = target
    return i
