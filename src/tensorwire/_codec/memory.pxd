from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE, Py_buffer
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define TENSORWIRE_FREE_THREADED 1
    #else
    #define TENSORWIRE_FREE_THREADED 0
    #endif
    """
    const bint FREE_THREADED "TENSORWIRE_FREE_THREADED"  # Python was built without the GIL


cdef class Body:
    cdef Py_buffer buffer  # released, and obj is NULL, if `owner` or `memory` is set
    cdef object memory  # a memoryview to which nothing else refers, or None
    cdef Body owner  # the Body that this is a view of, or None
    cdef const unsigned char* data
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint readonly
    cdef str name  # in error messages; None for "the body"

    cdef str subject(self)
    cdef str place(self, Py_ssize_t offset)
    cdef bytes immutable_bytes(self, Py_ssize_t nbytes)
    cdef bint is_bytes(self) noexcept
    cdef bint contains(self, const unsigned char* data, Py_ssize_t nbytes) noexcept
    cdef int check_range(self, Py_ssize_t offset, Py_ssize_t nbytes) except -1
    cdef int check_bool(self, Py_ssize_t offset, uint64_t nbytes) except -1


cdef exported_bytes(object owner, const char* data, Py_ssize_t nbytes)
cdef separate_view(buffer)
cdef void drop_reference(void* owned) noexcept nogil


cdef inline int export_bytes(
    Py_buffer* buffer, object owner, const void* data, Py_ssize_t nbytes, bint readonly, int flags
) except -1:
    """Fill the Py_buffer for `__getbuffer__` of an object that exports flat bytes.

    PyBuffer_FillInfo would leak the None that Cython has put into `buffer.obj`.
    """
    if readonly and flags & PyBUF_WRITABLE:
        raise BufferError("the memory is read-only")
    buffer.obj = owner
    buffer.buf = <void*>data
    buffer.len = nbytes
    buffer.itemsize = 1
    buffer.readonly = readonly
    buffer.ndim = 1
    buffer.format = NULL
    if flags & PyBUF_FORMAT:
        buffer.format = b"B"
    buffer.shape = &buffer.len if flags & PyBUF_ND else NULL
    buffer.strides = &buffer.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
    buffer.suboffsets = NULL
    buffer.internal = NULL
    return 0
