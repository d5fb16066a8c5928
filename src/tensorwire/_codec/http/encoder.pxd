from ..messages.message cimport InferResponse


cdef int check_listed(dict listed, InferResponse response) except -1
