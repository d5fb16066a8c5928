"""The text of a JSON header, written member by member; any value that is not plain by msgspec."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memcpy, memset

import msgspec

from .errors import EncodeError

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const unsigned char* PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    FIRST_CAPACITY = 256
    MAX_DIGITS = 20  # of a signed 64-bit number, with its sign

encode_json = msgspec.json.Encoder().encode


@cython.final
cdef class HeaderText:
    """A header under way. Members and items put the comma before themselves."""

    def __cinit__(self):
        self.is_first = True

    def __dealloc__(self):
        PyMem_Free(self.memory)

    cdef int room(self, Py_ssize_t n_more) except -1:
        """Make sure that `n_more` bytes fit behind what is written."""
        cdef Py_ssize_t capacity
        cdef void* memory
        if n_more <= self.capacity - self.nbytes:
            return 0
        # No overflow: sizes of memory that is there; and with spaces, a first multiple of `align`.
        capacity = max(self.nbytes + n_more, 2 * self.capacity, FIRST_CAPACITY)
        memory = PyMem_Realloc(self.memory, capacity)
        if memory == NULL:
            raise MemoryError()
        self.memory, self.capacity = <char*>memory, capacity
        return 0

    cdef int put(self, const void* text, Py_ssize_t nbytes) except -1:
        self.room(nbytes)
        memcpy(self.memory + self.nbytes, text, nbytes)
        self.nbytes += nbytes
        return 0

    cdef int put_bytes(self, bytes text) except -1:
        return self.put(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef int open(self, bytes opening) except -1:
        """Begin an object or a list: whatever `opening` says, up to its bracket."""
        self.put_bytes(opening)
        self.is_first = True
        return 0

    cdef int close(self, bytes closing) except -1:
        self.put_bytes(closing)
        self.is_first = False
        return 0

    cdef int item(self) except -1:
        """What separates an item or a member from the one before it."""
        if not self.is_first:
            self.room(1)
            self.memory[self.nbytes] = c","
            self.nbytes += 1
        self.is_first = False
        return 0

    cdef int member(self, bytes name, value) except -1:
        """A member called `name`, quotes and colon included; None is not written."""
        if value is None:
            return 0
        self.item()
        self.put_bytes(name)
        if type(value) is str:
            return self.text(value)
        return self.value(value)

    cdef int text(self, str value) except -1:
        """A string: as it is when it is ASCII without what JSON escapes."""
        cdef Py_ssize_t i, n = PyUnicode_GET_LENGTH(value)
        cdef const unsigned char* characters
        cdef char* end
        if not PyUnicode_IS_ASCII(value):
            return self.value(value)
        characters = PyUnicode_1BYTE_DATA(value)
        for i in range(n):
            if characters[i] < 0x20 or characters[i] == c'"' or characters[i] == c"\\":
                return self.value(value)
        self.room(n + 2)
        end = self.memory + self.nbytes
        end[0] = c'"'
        memcpy(end + 1, characters, n)
        end[n + 1] = c'"'
        self.nbytes += n + 2
        return 0

    cdef int number(self, Py_ssize_t value) except -1:
        cdef char[MAX_DIGITS] digits
        cdef int first = MAX_DIGITS
        cdef size_t rest = value if value >= 0 else 0 - <size_t>value
        while True:
            first -= 1
            digits[first] = c"0" + <char>(rest % 10)
            rest //= 10
            if rest == 0:
                break
        if value < 0:
            first -= 1
            digits[first] = c"-"
        return self.put(&digits[first], MAX_DIGITS - first)

    cdef int numbers(self, tuple values) except -1:
        """A list of numbers that fit 64 bits, as the dimensions of a shape do."""
        self.open(b"[")
        for value in values:
            self.item()
            self.number(value)
        return self.close(b"]")

    cdef int value(self, value) except -1:
        """Any value, as msgspec writes it."""
        return self.put_bytes(encoded(value))

    cdef int parameters(self, dict parameters, Py_ssize_t payload_nbytes) except -1:
        """A tensor's parameters, and its binary_data_size unless that is negative, if any."""
        if not parameters and payload_nbytes < 0:
            return 0
        self.item()
        self.open(b'"parameters":{')
        if parameters:
            self.item()
            text = encoded(parameters)
            self.put(PyBytes_AS_STRING(text) + 1, PyBytes_GET_SIZE(text) - 2)  # without braces
        if payload_nbytes >= 0:
            self.item()
            self.put_bytes(b'"binary_data_size":')
            self.number(payload_nbytes)
        return self.close(b"}")

    cdef bytes padded(self, Py_ssize_t align):
        """The whole text, with spaces up to a multiple of `align` bytes."""
        cdef Py_ssize_t n_spaces = -self.nbytes % align
        self.room(n_spaces)
        memset(self.memory + self.nbytes, c" ", n_spaces)
        return PyBytes_FromStringAndSize(self.memory, self.nbytes + n_spaces)


cdef bytes encoded(value):
    try:
        return encode_json(value)
    except UnicodeEncodeError as error:
        raise EncodeError(
            f"the header has a lone surrogate at character {error.start} of "
            f"{error.object[:40]!r}, and no UTF-8 form") from None
    except RecursionError:
        raise EncodeError("the header is nested too deep: a parameter may contain itself") from None
