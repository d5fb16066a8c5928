"""`HeldBuffer`: the memory of a buffer, such as a received body, which is not copied.

A tensor or array over the memory keeps a reference to the `HeldBuffer`, which keeps a reference to
the object that exports the memory.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject

from .body_buffer cimport BodyBuffer
from .exports cimport export_bytes

from ..errors import MAX_FOREIGN_TEXT, SUBJECT, LayoutError, format_count, format_text

cdef unsigned char no_data = 0  # an empty buffer points here, so that no pointer is NULL


# There is no tp_clear, because views of the memory may be used after a cycle was cleared. The
# trashcan limits the use of the C stack if buffers own each other through memoryviews, for example.
@cython.final
@cython.freelist(8)
@cython.no_gc_clear
@cython.trashcan(True)
cdef class HeldBuffer:
    """The memory of a C-contiguous buffer of bytes, which is not copied.

    The buffer is exported until the last view of this object is released, because arrays over the
    memory have this object as their base. A `bytearray` cannot be resized until then.

    Raises TypeError if `source` has no buffer, and BufferError if the buffer is not contiguous or
    has items of several bytes. `name` is its name in error messages; None for "the body".
    """

    def __cinit__(self, source, str name=None):
        self.name = name
        if not PyObject_CheckBuffer(source):
            raise TypeError(
                f"{self.subject()} must be a bytes-like object, not {type(source).__name__}")
        try:
            PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        except ValueError as error:  # from numpy and released memoryviews, instead of BufferError
            raise BufferError(
                f"{self.subject()} cannot be read: {format_text(error, MAX_FOREIGN_TEXT)}"
            ) from None
        if self.buffer.itemsize != 1:
            raise BufferError(
                f"the items of {self.subject()} must be 1 byte long, not {self.buffer.itemsize}: "
                f"pass memoryview(...).cast('B')")
        announced = source.content_length if type(source) is BodyBuffer else None
        if announced is not None and self.buffer.len != announced:
            raise LayoutError(
                f"{self.subject()} is incomplete: {self.buffer.len} of {announced} bytes have "
                f"arrived",
                expected=announced, actual=self.buffer.len)
        self.data = <const unsigned char*>self.buffer.buf if self.buffer.len > 0 else &no_data
        self.nbytes = self.buffer.len
        self.readonly = self.buffer.readonly
        if <PyObject*>self.buffer.obj != NULL and type(self.buffer.obj) is memoryview:
            # CPython crashes if its garbage collector clears a memoryview that is exported: the
            # view is released a second time with the export. A new view needs no export.
            self.held_view = PyMemoryView_FromObject(self.buffer.obj)
            PyBuffer_Release(&self.buffer)

    def __dealloc__(self):
        # Does nothing if there is no export, because buffer.obj is NULL then.
        PyBuffer_Release(&self.buffer)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        export_bytes(buffer, self, self.data, self.nbytes, self.readonly, flags)

    def __len__(self):
        return self.nbytes

    cdef str subject(self):
        return "the body" if self.name is None else self.name

    cdef str format_position(self, Py_ssize_t offset):
        return f"({'body' if self.name is None else self.name} byte {offset})"

    cdef bint is_bytes(self) noexcept:
        """Return whether it is that of a `bytes` object, which nothing can write to."""
        cdef PyObject* exporter = <PyObject*>self.buffer.obj  # NULL for a memoryview
        return exporter != NULL and PyBytes_CheckExact(<object>exporter) and (
            <const unsigned char*>PyBytes_AS_STRING(<object>exporter) == self.data)

    def view(self, Py_ssize_t offset, Py_ssize_t nbytes):
        """Return a flat memoryview of `nbytes` bytes from `offset`. The caller has checked both."""
        assert 0 <= offset <= self.nbytes and 0 <= nbytes <= self.nbytes - offset
        return PyMemoryView_FromObject(self)[offset:offset + nbytes]

    cdef int check_range(self, Py_ssize_t offset, Py_ssize_t nbytes) except -1:
        """Raise LayoutError unless it has `nbytes` (0 or more) bytes from `offset`."""
        if nbytes > self.nbytes - offset:
            remaining = self.nbytes - offset
            raise LayoutError(
                f"{self.subject()} ends inside {SUBJECT}: it requires "
                f"{format_count('byte', nbytes)}, but {remaining} remain "
                f"{self.format_position(offset)}",
                offset=offset, expected=nbytes, actual=remaining)
        return 0
