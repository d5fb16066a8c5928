cdef class Frame:
    cdef bytes header  # the JSON header; None in a raw request, and if the caller made the buffers
    cdef tuple tensors  # whose memory follows the header
    cdef tuple parts  # HeldBuffers of the caller's buffers; None if an encoder made the frame
    cdef readonly object header_length  # int or None
    cdef Py_ssize_t nbytes
    cdef bint is_made


cdef Frame new_frame(bytes header, tuple tensors, header_length, Py_ssize_t nbytes)
