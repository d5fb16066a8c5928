from cpython.buffer cimport Py_buffer


cdef class HeldBuffer:
    cdef Py_buffer buffer  # released, and obj is NULL, if `held_view` is set
    cdef object held_view  # a memoryview to which nothing else refers, or None
    cdef const unsigned char* data
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint readonly
    cdef str name  # in error messages; None for "the body"

    cdef str subject(self)
    cdef str format_position(self, Py_ssize_t offset)
    cdef bint is_bytes(self) noexcept
    cdef int check_range(self, Py_ssize_t offset, Py_ssize_t nbytes) except -1
