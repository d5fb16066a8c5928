cdef class Frame:
    cdef readonly tuple buffers
    cdef readonly object header_length  # int or None
    cdef Py_ssize_t nbytes


cdef Frame new_frame(tuple buffers, header_length, Py_ssize_t nbytes)
