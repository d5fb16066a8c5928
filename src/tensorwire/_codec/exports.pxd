from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE, Py_buffer


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


cdef exported_bytes(object owner, const char* data, Py_ssize_t nbytes)
