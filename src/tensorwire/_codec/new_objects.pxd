"""Bytes objects, str objects and tuples that are being filled, to which nothing else refers."""

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.string cimport memcpy

from .borrowed cimport bytes_data
from .gil cimport count_or_release_gil_unless_short, take_gil

cdef extern from "Python.h":
    PyObject* owned_bytes "PyBytes_FromStringAndSize"(
        const char* text, Py_ssize_t nbytes) except NULL
    int _PyBytes_Resize(PyObject** text, Py_ssize_t nbytes) except -1
    void Py_SET_SIZE(PyObject* text, Py_ssize_t nbytes)
    str PyUnicode_DecodeLatin1(const char* text, Py_ssize_t n_characters, const char* errors)
    str PyUnicode_New(Py_ssize_t n_characters, unsigned int largest)
    unsigned char* PyUnicode_1BYTE_DATA(object text)

cdef enum:
    INLINE_CAPACITY = 448  # bytes of memory inside `NewBytes`: enough for most headers


cdef struct NewBytes:
    # Bytes that are being written from front to back. The struct must not move, because `start`,
    # `position` and `end` may point into it. It owns `grown`, which has to be cleared at the end.
    char* start
    char* position  # where the next byte is written
    char* end  # of the memory
    PyObject* grown  # a bytes object; NULL while the bytes are in `inline_memory`
    char[INLINE_CAPACITY] inline_memory


cdef inline void begin_bytes(NewBytes* output) noexcept:
    output.start = output.position = output.inline_memory
    output.end = output.inline_memory + INLINE_CAPACITY
    output.grown = NULL


cdef inline int reserve(NewBytes* output, Py_ssize_t nbytes) except -1:
    """Make room for `nbytes` more bytes."""
    if nbytes > output.end - output.position:
        grow(output, nbytes)
    return 0


cdef inline int grow(NewBytes* output, Py_ssize_t nbytes) except -1:
    """Make room for `nbytes` more bytes, and for at least half of the bytes written so far.

    After an error, nothing may be written any more. No overflow: `nbytes` is at most some thousand
    times the size of something in memory.
    """
    cdef Py_ssize_t n_written = output.position - output.start
    cdef Py_ssize_t capacity = n_written + max(nbytes, n_written // 2)
    if output.grown == NULL:
        output.grown = owned_bytes(NULL, capacity)
        memcpy(bytes_data(output.grown), output.start, n_written)
    else:
        _PyBytes_Resize(&output.grown, capacity)
    output.start = bytes_data(output.grown)
    output.position, output.end = output.start + n_written, output.start + capacity
    return 0


cdef inline bytes finished_bytes(NewBytes* output):
    """Return the bytes. Nothing may be written any more."""
    cdef Py_ssize_t nbytes = output.position - output.start
    cdef PyObject* grown = output.grown
    if grown == NULL:
        return PyBytes_FromStringAndSize(output.start, nbytes)
    output.grown = NULL
    return shrunk_bytes(grown, nbytes)


cdef inline bytes shrunk_bytes(PyObject* new_bytes, Py_ssize_t nbytes):
    """Set the size of a bytes object, and return it. The only reference to it is taken over.

    Up to a third of its memory is not returned. glibc keeps memory of the size that was freed last
    for the next object, but gets a larger amount from the kernel each time, and touching new pages
    takes several times as long as writing a text. So what is freed has to be what was allocated.
    """
    cdef Py_ssize_t capacity = PyBytes_GET_SIZE(<object>new_bytes)
    cdef bytes shrunk
    if capacity - nbytes > capacity // 3:
        _PyBytes_Resize(&new_bytes, nbytes)  # frees it after an error
    else:
        Py_SET_SIZE(new_bytes, nbytes)
        bytes_data(new_bytes)[nbytes] = 0
    shrunk = <bytes>new_bytes
    Py_DECREF(shrunk)  # the reference that was taken over
    return shrunk


cdef inline str ascii_str(const unsigned char* text, Py_ssize_t nbytes):
    """Return a copy of bytes as a str. Unless they are known to be ASCII, check the result.

    Other threads may run meanwhile.
    """
    cdef str copy
    if nbytes < 2 and (nbytes == 0 or text[0] < 0x80):  # shared objects: do not write to them
        return PyUnicode_DecodeLatin1(<const char*>text, nbytes, NULL)
    copy = PyUnicode_New(nbytes, 127)
    released = count_or_release_gil_unless_short(nbytes)
    memcpy(PyUnicode_1BYTE_DATA(copy), text, nbytes)
    take_gil(released)
    return copy


cdef inline void set_item(tuple items, Py_ssize_t i, item) noexcept:
    """Set an item of a tuple of PyTuple_New for the first time."""
    Py_INCREF(item)  # PyTuple_SET_ITEM steals one reference
    PyTuple_SET_ITEM(items, i, item)
