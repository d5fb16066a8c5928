from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, strlen
from numpy cimport ndarray

from ..bytes.array cimport BytesArray
from ..new_objects cimport NewBytes, reserve


cdef enum Nonfinite:
    # How NaN, Infinity and -Infinity are written.
    AS_NULL
    AS_LITERAL
    AS_ERROR
    NAN_AS_NULL  # infinities as errors


cdef struct JsonWriter:
    # JSON text under construction. The struct must not move, because `output` may point into it. It
    # owns `output`, and borrows the other objects.
    NewBytes output
    PyObject* limits  # a Limits object
    Py_ssize_t n_values  # that `write_value` has written
    Nonfinite nonfinite
    PyObject* parameter  # the name of the parameter that is being written, for error messages


cdef void begin_writer(JsonWriter* writer) noexcept
cdef void release_writer(JsonWriter* writer) noexcept
cdef bytes finish(JsonWriter* writer, Py_ssize_t align)

# The functions below append a value and a comma.
cdef int write_string(JsonWriter* writer, str value) except -1
cdef int write_int64(JsonWriter* writer, int64_t value) except -1
cdef uint64_t write_shape(JsonWriter* writer, tuple shape) except? 0
cdef int write_parameters(JsonWriter* writer, dict parameters, int depth) except -1
cdef Py_ssize_t write_array(JsonWriter* writer, ndarray array) except -2
cdef Py_ssize_t write_strings(JsonWriter* writer, BytesArray array) except -2


cdef inline int write_literal(JsonWriter* writer, const char* text) except -1:
    """Write text without escaping it."""
    return write_raw(writer, text, <Py_ssize_t>strlen(text))


cdef inline int write_raw(JsonWriter* writer, const char* text, Py_ssize_t nbytes) except -1:
    reserve(&writer.output, nbytes)
    memcpy(writer.output.position, text, nbytes)
    writer.output.position += nbytes
    return 0


cdef inline int close(JsonWriter* writer, char bracket) except -1:
    """End a list or an object."""
    reserve(&writer.output, 2)
    if writer.output.position[-1] == c",":
        writer.output.position -= 1
    writer.output.position[0] = bracket
    writer.output.position[1] = c","
    writer.output.position += 2
    return 0
