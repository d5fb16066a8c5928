cdef class Limits:
    cdef readonly Py_ssize_t max_header_nbytes
    cdef readonly Py_ssize_t max_tensors
    cdef readonly Py_ssize_t max_rank
    cdef readonly Py_ssize_t max_name_nbytes
    cdef readonly Py_ssize_t max_nesting
    cdef readonly Py_ssize_t max_elements
    cdef readonly bint check_bool
    cdef readonly bint bf16_as_uint16
