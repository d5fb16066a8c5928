cdef class HeaderText:
    cdef char* memory
    cdef Py_ssize_t nbytes  # written
    cdef Py_ssize_t capacity
    cdef bint is_first  # of its object or list: no comma before it

    cdef int room(self, Py_ssize_t n_more) except -1
    cdef int put(self, const void* text, Py_ssize_t nbytes) except -1
    cdef int put_bytes(self, bytes text) except -1
    cdef int open(self, bytes opening) except -1
    cdef int close(self, bytes closing) except -1
    cdef int item(self) except -1
    cdef int member(self, bytes name, value) except -1
    cdef int text(self, str value) except -1
    cdef int number(self, Py_ssize_t value) except -1
    cdef int numbers(self, tuple values) except -1
    cdef int value(self, value) except -1
    cdef int parameters(self, dict parameters, Py_ssize_t payload_nbytes) except -1
    cdef bytes padded(self, Py_ssize_t align)
