"""Write the JSON text of a header from front to back to one growing block of memory.

Every string and other value is written with a comma after it. A colon replaces the comma after a
key, the closing bracket of a list or object replaces the last comma in it, and `finish` drops the
last comma of the text.

The numbers of an array and the text of BYTES elements are written by kernels that use no Python
objects. A kernel writes while there is room for the longest possible element, because another
thread may change the elements at the same time. When there is no more room, the kernel returns, and
is called again after the memory has grown.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_CLEAR
from cpython.sequence cimport PySequence_Fast_ITEMS
from cpython.unicode cimport PyUnicode_AsUTF8String
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset, strlen

from ..borrowed cimport (
    bytes_data, bytes_nbytes, is_ascii_str, is_exact_str, str_data, str_kind, str_length)
from ..bytes.array cimport BytesArray
from ..bytes.reader cimport Elements
from ..datatypes cimport Float, Integer
from ..gil cimport TEXT_COST, count_or_release_gil, count_work, take_gil
from ..new_objects cimport NewBytes, begin_bytes, finished_bytes, reserve
from ..json.shortest cimport (
    FIRST_POWER, MAX_NUMBER_NBYTES, N_POWERS, Tables, write_float, write_integer)
from ..limits cimport Limits
from ..utf8 cimport whole_characters, write_utf8
from ..wire cimport Element, Span, element_at

from ...errors import EncodeError, format_value, format_count

cnp.import_array()

cdef extern from "json/text.h":
    Py_ssize_t WINDOW_NBYTES
    bint copy_usual(
        unsigned char* target, const unsigned char* text, Py_ssize_t nbytes, Py_ssize_t n_before
    ) noexcept nogil
    unsigned char* escape_text(
        unsigned char* target, const unsigned char* text, Py_ssize_t nbytes, Py_ssize_t n_before,
        bint is_valid
    ) noexcept nogil

cdef enum:
    # The maximum size of an element of an array with its comma. Numbers are the longest elements.
    MAX_ELEMENT_NBYTES = MAX_NUMBER_NBYTES + 1
    # When a kernel is called, there is room for this many elements, or for all that are left.
    MIN_BATCH = 1024
    # Text is escaped in slices of at most this size. Before each, there is this much room: a byte
    # becomes at most 6, and `escape_text` writes blocks; there may be two quotes and a comma.
    SLICE_NBYTES = 1024
    SLICE_ROOM = 6 * SLICE_NBYTES + 16 + 3
    SLICE_CHARACTERS = 256  # which take at most SLICE_NBYTES of UTF-8
    BEFORE_TEXT = -1

cdef enum Outcome:
    DONE
    FULL  # there may be no room for the next element or slice
    INVALID  # the next element cannot be written

cdef Tables tables


cdef int fill_tables() except -1:
    """Compute the powers of ten, and the digits of the numbers below 1000."""
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
        tables.powers[i].high = value >> 64
        tables.powers[i].low = value & 0xFFFF_FFFF_FFFF_FFFF
    for i in range(1000):
        digits = f"{i:03}".encode()
        tables.groups[i] = int.from_bytes(digits, "little") | (3 - len(str(i))) << 24


fill_tables()


# --- memory ---


cdef void begin_writer(JsonWriter* writer) noexcept:
    """Prepare for writing. Whatever happens afterwards, `release_writer` must be called."""
    begin_bytes(&writer.output)
    writer.n_values = 0


cdef void release_writer(JsonWriter* writer) noexcept:
    Py_CLEAR(writer.output.grown)


cdef bytes finish(JsonWriter* writer, Py_ssize_t align):
    """Return the text without its last comma, padded to a multiple of `align` bytes, once."""
    cdef Py_ssize_t n_spaces
    writer.output.position -= 1
    n_spaces = -(writer.output.position - writer.output.start) % align
    reserve(&writer.output, n_spaces)
    memset(writer.output.position, c" ", n_spaces)
    writer.output.position += n_spaces
    return finished_bytes(&writer.output)


# --- values, each with a comma after it ---

cdef int write_string(JsonWriter* writer, str value) except -1:
    cdef PyObject* text = <PyObject*>value
    if is_ascii_str(text):
        return write_quoted(writer, <const unsigned char*>str_data(text), str_length(text))
    utf8 = PyUnicode_AsUTF8String(value)
    return write_quoted(
        writer, <const unsigned char*>PyBytes_AS_STRING(utf8), PyBytes_GET_SIZE(utf8))


cdef int write_key(JsonWriter* writer, str key) except -1:
    write_string(writer, key)
    writer.output.position[-1] = c":"
    return 0


cdef int write_int64(JsonWriter* writer, int64_t value) except -1:
    reserve(&writer.output, MAX_ELEMENT_NBYTES)
    end_element(&writer.output, write_integer(writer.output.position, &tables, value))
    return 0


cdef uint64_t write_shape(JsonWriter* writer, tuple shape) except? 0:
    """Write the dimensions of a shape and the bracket after them, and return their product.

    No overflow: they were checked when the tensor was made.
    """
    cdef uint64_t n_elements = 1
    cdef int64_t dim
    reserve(&writer.output, len(shape) * MAX_ELEMENT_NBYTES)
    for item in shape:
        dim = item
        n_elements *= <uint64_t>dim
        end_element(&writer.output, write_integer(writer.output.position, &tables, dim))
    close(writer, c"]")
    return n_elements


cdef int write_value(JsonWriter* writer, value, int depth) except -1:
    """Write a value that `own_value` has returned. `depth` lists and objects are open.

    Numbers that are not finite are written as null, unless `nonfinite` makes them errors.
    """
    cdef char* end
    cdef Py_ssize_t limit = (<Limits>writer.limits).max_parameters
    if writer.n_values >= limit:
        raise EncodeError(
            f"the parameters have more than {format_count('value', limit)}, which is the limit",
            expected=limit, actual=writer.n_values + 1)
    writer.n_values += 1
    if value is None:
        return write_literal(writer, b"null,")
    if value is True:
        return write_literal(writer, b"true,")
    if value is False:
        return write_literal(writer, b"false,")
    if type(value) is str:
        return write_string(writer, value)
    if type(value) is int:
        return write_any_int(writer, value)
    if type(value) is float:
        reserve(&writer.output, MAX_ELEMENT_NBYTES)
        end = write_float(writer.output.position, &tables, PyFloat_AS_DOUBLE(value), False)
        if end == NULL and is_error(PyFloat_AS_DOUBLE(value), writer.nonfinite):
            hint = ": nonfinite='null' sends null" if writer.nonfinite == NAN_AS_NULL else ""
            raise EncodeError(
                f"parameter {format_value(<str>writer.parameter)} contains {value}, which JSON "
                f"cannot represent{hint}")
        if end == NULL:
            return write_literal(writer, b"null,")
        end_element(&writer.output, end)
        return 0
    limit = (<Limits>writer.limits).max_nesting
    if depth >= limit:
        raise EncodeError(
            f"the header is nested too deeply: parameter {format_value(<str>writer.parameter)} "
            f"contains lists or objects on level {depth + 1}; the limit is {limit}",
            expected=limit, actual=depth + 1)
    if type(value) is dict:
        write_literal(writer, b"{")
        for key, item in (<dict>value).items():
            write_key(writer, key)
            write_value(writer, item, depth + 1)
        return close(writer, c"}")
    write_literal(writer, b"[")
    for item in <list>value:
        write_value(writer, item, depth + 1)
    return close(writer, c"]")


cdef int write_parameters(JsonWriter* writer, dict parameters, int depth) except -1:
    """Write what `own_parameters` returned, without braces. `depth` includes the open one."""
    for key, value in parameters.items():
        writer.parameter = <PyObject*>key
        write_key(writer, key)
        write_value(writer, value, depth)
    return 0


# --- tensors ---

cdef Py_ssize_t write_array(JsonWriter* writer, cnp.ndarray array) except -2:
    """Write the elements of a C-contiguous little-endian array, which may be misaligned, as a list.

    Returns the index of the first element that is an error according to `nonfinite`, or -1.
    """
    cdef ArrayElements elements
    cdef Outcome outcome = FULL
    cdef Py_ssize_t n_before, n_left, n_written, room
    elements.data = <const char*>cnp.PyArray_DATA(array)
    elements.n = cnp.PyArray_SIZE(array)
    elements.kind = <char>array.descr.kind
    elements.itemsize = <int>cnp.PyArray_ITEMSIZE(array)
    elements.nonfinite = writer.nonfinite
    elements.i = 0
    write_literal(writer, b"[")
    n_before = writer.output.position - writer.output.start
    while outcome == FULL:
        # Enough for a batch, and probably for all elements, by the mean length of those so far. No
        # overflow: there are fewer than 2^48, because each takes at least 1 byte of memory.
        n_left = elements.n - elements.i
        room = min(n_left, MIN_BATCH) * MAX_ELEMENT_NBYTES
        if elements.i > 0:
            n_written = writer.output.position - writer.output.start - n_before
            room = max(room, n_left * (n_written // elements.i + 1))
        reserve(&writer.output, room)
        released = count_or_release_gil(2 * TEXT_COST * elements.n)
        outcome = write_elements(&writer.output, &elements)
        take_gil(released)
    if outcome == INVALID:
        return elements.i
    close(writer, c"]")
    return -1


cdef Py_ssize_t write_strings(JsonWriter* writer, BytesArray array) except -2:
    """Write BYTES elements as one flat list of strings.

    Returns the index of the first element that is not valid UTF-8, or -1 if all are.
    """
    cdef ElementTexts texts
    # The array may get others from another thread. These references keep them alive.
    cdef tuple values = array.values_or_none()
    cdef Elements elements = array.scanned() if values is None else None
    cdef Py_ssize_t nbytes = array.nbytes
    cdef Outcome outcome = FULL
    memset(&texts, 0, sizeof(texts))
    texts.position = BEFORE_TEXT
    if elements is not None:
        texts.span = elements.span
    else:
        texts.values, texts.span.n = PySequence_Fast_ITEMS(values), len(values)
    write_literal(writer, b"[")
    # Enough for the quotes and commas, and some escapes.
    reserve(&writer.output, nbytes + nbytes // 8 + SLICE_ROOM)
    while outcome == FULL:
        released = count_or_release_gil(nbytes)
        outcome = write_texts(&writer.output, &texts)
        take_gil(released)
        if outcome == FULL:
            reserve(&writer.output, SLICE_ROOM)
    if outcome == INVALID:
        return texts.i
    close(writer, c"]")
    return -1


# --- helpers of the writer ---


cdef inline void end_element(NewBytes* output, char* end) noexcept nogil:
    """Write the comma after a value that ends at `end`. Room for both was reserved."""
    end[0] = c","
    output.position = end + 1


cdef int write_quoted(JsonWriter* writer, const unsigned char* text, Py_ssize_t nbytes) except -1:
    cdef unsigned char* target
    cdef Py_ssize_t i = 0, n
    write_literal(writer, b'"')
    while True:
        n = nbytes - i
        if n > SLICE_NBYTES:
            n = whole_characters(text + i, SLICE_NBYTES)
        reserve(&writer.output, 6 * n + SLICE_ROOM - 6 * SLICE_NBYTES)
        target = escape_text(<unsigned char*>writer.output.position, text + i, n, i, True)
        i += n
        if i == nbytes:
            break
        count_work(n)
        writer.output.position = <char*>target
    memcpy(target, b'",', 2)
    writer.output.position = <char*>target + 2
    return 0


cdef int write_any_int(JsonWriter* writer, value) except -1:
    """Write an integer of any size that `own_value` accepts."""
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0:
        return write_int64(writer, number)
    try:
        digits = int.__repr__(value).encode()
    except ValueError:  # sys.set_int_max_str_digits() has been called
        raise EncodeError(
            f"parameter {format_value(<str>writer.parameter)} contains an integer of "
            f"{int.bit_length(value)} bits, which Python is set not to convert to text") from None
    count_work(3 * TEXT_COST * len(digits))  # at most: the time is quadratic
    return write_literal(writer, digits + b",")


# --- numbers: kernels ------------------------------------------------------------------------


cdef struct ArrayElements:
    const char* data
    Py_ssize_t n
    Py_ssize_t i  # index of the next element
    char kind  # b, i, u or f: the `kind` of the numpy dtype
    int itemsize
    Nonfinite nonfinite


cdef Outcome write_elements(NewBytes* output, ArrayElements* elements) noexcept nogil:
    """Write elements from the next one on, while there is room.

    Bounds: no value takes more than MAX_ELEMENT_NBYTES with its comma, and the size of a batch is
    the room divided by that. The text of an element comes from one load of its memory.
    """
    cdef Py_ssize_t n_left, batch
    cdef Outcome outcome = DONE
    while outcome == DONE and elements.i < elements.n:
        n_left = elements.n - elements.i
        batch = min(n_left, (output.end - output.position) // MAX_ELEMENT_NBYTES)
        if batch < min(n_left, MIN_BATCH):
            return FULL
        outcome = write_batch(output, elements, elements.i + batch)
    return outcome


cdef Outcome write_batch(
    NewBytes* output, ArrayElements* elements, Py_ssize_t stop
) noexcept nogil:
    """Write the elements from the next one on, up to index `stop`. There is room for them."""
    if elements.kind == c"f":
        if elements.itemsize == 4:
            return write_floats[float](output, elements, stop, 0)
        return write_floats[double](output, elements, stop, 0)
    if elements.kind == c"b":
        write_flags(output, elements, stop)
    elif elements.kind == c"i":
        if elements.itemsize == 1:
            write_integers[int8_t](output, elements, stop, 0)
        elif elements.itemsize == 2:
            write_integers[int16_t](output, elements, stop, 0)
        elif elements.itemsize == 4:
            write_integers[int32_t](output, elements, stop, 0)
        else:
            write_integers[int64_t](output, elements, stop, 0)
    elif elements.itemsize == 1:
        write_integers[uint8_t](output, elements, stop, 0)
    elif elements.itemsize == 2:
        write_integers[uint16_t](output, elements, stop, 0)
    elif elements.itemsize == 4:
        write_integers[uint32_t](output, elements, stop, 0)
    else:
        write_integers[uint64_t](output, elements, stop, 0)
    return DONE


cdef void write_flags(NewBytes* output, ArrayElements* elements, Py_ssize_t stop) noexcept nogil:
    """Write booleans. For each, 8 bytes are stored: its text, a comma, and bytes to overwrite.

    There is no branch, because the values cannot be predicted.
    """
    cdef char* target = output.position
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
    output.position = target
    elements.i = stop


cdef void write_integers(
    NewBytes* output, ArrayElements* elements, Py_ssize_t stop, Integer number
) noexcept nogil:
    """Write integers. The argument `number` only determines their type; its value is not used."""
    cdef char* target = output.position
    cdef const char* data = elements.data
    cdef Py_ssize_t i
    for i in range(elements.i, stop):
        memcpy(&number, data + i * <Py_ssize_t>sizeof(Integer), sizeof(Integer))
        target = write_integer(target, &tables, number)
        target[0] = c","
        target += 1
    output.position = target
    elements.i = stop


cdef Outcome write_floats(
    NewBytes* output, ArrayElements* elements, Py_ssize_t stop, Float number
) noexcept nogil:
    """Write floating-point numbers. The argument `number` only determines their type.

    Numbers with few digits usually follow each other, so that one in 32 of the others is tried.
    Returns INVALID if the next element is not finite, and an error according to `nonfinite`.
    """
    cdef Outcome outcome = DONE
    while outcome == DONE and elements.i < stop:
        write_few_digits(output, elements, stop, number)
        outcome = write_all_digits(output, elements, min(stop, elements.i + 32), number)
    return outcome


cdef void write_few_digits(
    NewBytes* output, ArrayElements* elements, Py_ssize_t stop, Float number
) noexcept nogil:
    """Write numbers up to the first one that has many digits, or is not finite."""
    cdef char* target = output.position
    cdef char* end
    cdef const char* data = elements.data
    cdef Py_ssize_t i = elements.i
    while i < stop:
        memcpy(&number, data + i * <Py_ssize_t>sizeof(Float), sizeof(Float))
        end = write_float(target, &tables, number, True)
        if end == NULL:
            break
        end[0] = c","
        target = end + 1
        i += 1
    output.position = target
    elements.i = i


cdef Outcome write_all_digits(
    NewBytes* output, ArrayElements* elements, Py_ssize_t stop, Float number
) noexcept nogil:
    """Write numbers with any digits. See `write_floats`."""
    cdef char* target = output.position
    cdef char* end
    cdef const char* data = elements.data
    cdef Py_ssize_t i
    cdef Outcome outcome = DONE
    for i in range(elements.i, stop):
        memcpy(&number, data + i * <Py_ssize_t>sizeof(Float), sizeof(Float))
        end = write_float(target, &tables, number, False)
        if end == NULL:
            if is_error(number, elements.nonfinite):
                outcome, stop = INVALID, i
                break
            end = write_nonfinite(target, number, elements.nonfinite)
        end[0] = c","
        target = end + 1
    output.position = target
    elements.i = stop
    return outcome


cdef inline bint is_error(double number, Nonfinite nonfinite) noexcept nogil:
    """Return whether a number that is not finite must not be written."""
    return nonfinite == AS_ERROR or (nonfinite == NAN_AS_NULL and number == number)


cdef char* write_nonfinite(char* target, double number, Nonfinite nonfinite) noexcept nogil:
    """Write a number that is not finite. Return the end of its text."""
    cdef const char* text = b"null"
    if nonfinite == AS_LITERAL:
        text = b"NaN" if number != number else b"Infinity" if number > 0 else b"-Infinity"
    memcpy(target, text, strlen(text))
    return target + strlen(text)


# --- text: kernels ---------------------------------------------------------------------------


cdef struct ElementText:
    # An element: bytes, or the characters of a str that is not ASCII.
    const unsigned char* data
    Py_ssize_t size  # in bytes or characters
    int width  # of a character in bytes; 0 for bytes
    const unsigned char* readable  # the start of the memory that `data` belongs to


cdef struct ElementTexts:
    PyObject** values  # the elements, if they are objects; else NULL
    Span span  # the elements; of objects, only their number
    Py_ssize_t i  # index of the next element
    Py_ssize_t position  # of the next byte or character of that element, or BEFORE_TEXT


cdef inline ElementText text_at(const ElementTexts* texts, Py_ssize_t i) noexcept nogil:
    cdef ElementText text
    cdef Element element
    cdef PyObject* value
    text.width = 0
    if texts.values == NULL:
        element = element_at(&texts.span, i)
        text.data, text.size, text.readable = element.data, element.nbytes, texts.span.data
        return text
    value = texts.values[i]
    text.readable = <const unsigned char*>value
    if not is_exact_str(value):
        text.data, text.size = <const unsigned char*>bytes_data(value), bytes_nbytes(value)
        return text
    text.data, text.size = <const unsigned char*>str_data(value), str_length(value)
    if not is_ascii_str(value):
        text.width = str_kind(value)
    return text


cdef Outcome write_texts(NewBytes* output, ElementTexts* texts) noexcept nogil:
    """Write elements as strings while there is room, from the next slice of the next element on."""
    cdef unsigned char* target = <unsigned char*>output.position
    cdef const unsigned char* end = <const unsigned char*>output.end
    cdef unsigned char* written
    cdef Outcome outcome = DONE
    cdef ElementText text
    cdef Py_ssize_t position = texts.position, i = texts.i, n
    while True:
        if position == BEFORE_TEXT:
            i = write_usual_texts(&target, end, texts, i)
        if i == texts.span.n:
            break
        if end - target < SLICE_ROOM:
            outcome = FULL
            break
        text = text_at(texts, i)
        if position == BEFORE_TEXT:
            target[0] = c'"'
            target += 1
            position = 0
        n = text.size - position
        if text.width == 0:
            if n > SLICE_NBYTES:
                n = whole_characters(text.data + position, SLICE_NBYTES)
            written = escape_text(
                target, text.data + position, n, text.data + position - text.readable, False)
        else:
            n = min(n, <Py_ssize_t>SLICE_CHARACTERS)
            written = escape_characters(target, &text, position, n)
        if written == NULL:
            outcome = INVALID
            break
        target = written
        position += n
        if position == text.size:
            memcpy(target, b'",', 2)
            target += 2
            position = BEFORE_TEXT
            i += 1
    output.position = <char*>target
    texts.position, texts.i = position, i
    return outcome


cdef Py_ssize_t write_usual_texts(
    unsigned char** cursor, const unsigned char* end, const ElementTexts* texts, Py_ssize_t i
) noexcept nogil:
    """Write elements that need no escapes while there is room, from element `i` on.

    Returns the index of the next element, which may be long, not ASCII or with escapes. The loop
    is a function of its own so that the compiler can keep its variables in registers.
    """
    cdef unsigned char* target = cursor[0]
    cdef ElementText text
    while i < texts.span.n and end - target >= SLICE_ROOM:
        text = text_at(texts, i)
        if text.width != 0 or text.size >= WINDOW_NBYTES:
            break
        target[0] = c'"'
        if not copy_usual(target + 1, text.data, text.size, text.data - text.readable):
            break
        target += 1 + text.size
        memcpy(target, b'",', 2)
        target += 2
        i += 1
    cursor[0] = target
    return i


cdef unsigned char* escape_characters(
    unsigned char* target, const ElementText* text, Py_ssize_t position, Py_ssize_t n
) noexcept nogil:
    """Write `n` characters of a str, at most SLICE_CHARACTERS. Return the end of the text."""
    cdef unsigned char[8 + SLICE_NBYTES] copy
    cdef unsigned char* utf8 = copy + 8
    cdef unsigned char* end = copy + sizeof(copy)
    memset(copy, 0, 8)  # `escape_text` can read what is before a text
    if text.width == 1:
        end = write_utf8(utf8, end, <const uint8_t*>text.data + position, n)
    elif text.width == 2:
        end = write_utf8(utf8, end, <const uint16_t*>text.data + position, n)
    else:
        end = write_utf8(utf8, end, <const uint32_t*>text.data + position, n)
    return escape_text(target, utf8, end - utf8, utf8 - copy, True)
