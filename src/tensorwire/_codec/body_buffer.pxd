cdef class BodyBuffer:
    cdef char* memory  # the allocated block
    cdef Py_ssize_t n_mapped  # its size if it is mapped; 0 if it is of PyMem_RawMalloc
    cdef char* data  # the start of the body in the block
    cdef readonly Py_ssize_t capacity  # number of bytes from `data` on that the body may use
    cdef Py_ssize_t header_remainder  # header length modulo ALIGNMENT
    cdef Py_ssize_t n_exports
    cdef readonly Py_ssize_t nbytes
    cdef readonly object content_length
    cdef readonly object max_nbytes

    cdef int check_limit(self, nbytes) except -1
    cdef int allocate(self, nbytes) except -1
    cdef char* aligned(self, char* memory) noexcept
    cdef void copy_in(self, char* target, const void* source, Py_ssize_t nbytes) noexcept
    cdef void count_arrived(self, Py_ssize_t nbytes) noexcept
    cdef int make_room(self, Py_ssize_t n_more) except -1
    cdef int check_growth(self, nbytes) except -1
    cdef int append(self, const void* source, Py_ssize_t nbytes) except -1
