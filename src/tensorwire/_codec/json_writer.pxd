from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, strlen
from numpy cimport ndarray

from .bytes_array cimport BytesArray
from .datatypes cimport Limits

cdef enum:
    INLINE_CAPACITY = 448  # bytes of memory inside the writer: enough for most headers


cdef enum Nonfinite:
    # How NaN, Infinity and -Infinity are written.
    AS_NULL
    AS_LITERAL
    AS_ERROR
    NAN_AS_NULL  # infinities as errors


cdef struct WriteCursor:
    char* position  # where the next byte is written
    char* end  # of the memory


cdef class JsonWriter:
    cdef WriteCursor cursor
    cdef char* start  # of the text
    cdef PyObject* grown  # a bytes object with the text; NULL while it is in `inline_memory`
    cdef char[INLINE_CAPACITY] inline_memory
    cdef Limits limits
    cdef Py_ssize_t n_values  # that `write_value` has written
    cdef Nonfinite nonfinite
    cdef str parameter  # the name of the parameter that is being written, for error messages
    # The message of the header; see encoder.pyx.
    cdef str kind  # the kind of the tensors: "input" or "output"
    cdef Py_ssize_t n_tensors
    cdef uint64_t n_elements  # of all tensors so far
    cdef tuple parts  # of the frame: the header, and the binary tensors that are not empty
    cdef Py_ssize_t n_parts  # the items of `parts` after these, and the header, are not set yet
    cdef Py_ssize_t nbytes  # of the binary tensors

    cdef int grow(self, Py_ssize_t nbytes) except -1
    cdef int write_string(self, str value) except -1
    cdef int write_int64(self, int64_t value) except -1
    cdef uint64_t write_shape(self, tuple shape) except? 0
    cdef int write_value(self, value, int depth) except -1
    cdef int write_parameters(self, dict parameters, int depth) except -1
    cdef Py_ssize_t write_array(self, ndarray array) except -2
    cdef Py_ssize_t write_strings(self, BytesArray array) except -2
    cdef bytes finish(self, Py_ssize_t align)


cdef inline int reserve(JsonWriter writer, Py_ssize_t nbytes) except -1:
    """Make room for `nbytes` more bytes."""
    if nbytes > writer.cursor.end - writer.cursor.position:
        writer.grow(nbytes)
    return 0


cdef inline int write_literal(JsonWriter writer, const char* text) except -1:
    """Write text without escaping it."""
    return write_plain(writer, text, <Py_ssize_t>strlen(text))


cdef inline int write_plain(JsonWriter writer, const char* text, Py_ssize_t nbytes) except -1:
    reserve(writer, nbytes)
    memcpy(writer.cursor.position, text, nbytes)
    writer.cursor.position += nbytes
    return 0


cdef inline int close(JsonWriter writer, char bracket) except -1:
    """End a list or an object."""
    reserve(writer, 2)
    if writer.cursor.position[-1] == c",":
        writer.cursor.position -= 1
    writer.cursor.position[0] = bracket
    writer.cursor.position[1] = c","
    writer.cursor.position += 2
    return 0
