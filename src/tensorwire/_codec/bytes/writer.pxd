from ..capsules.arrow cimport Received
from ..new_objects cimport NewBytes


cdef class Source:
    cdef object values
    cdef readonly tuple shape
    cdef Py_ssize_t n_elements

    cdef int write(self, NewBytes* output) except -1


cdef Source source_of(str kind, values, tuple shape)
cdef Source source_of_received(Received received)
cdef bytes pack(Source source)
cdef tuple immutable_values(Source source, Py_ssize_t* nbytes)
cdef modified_error()
