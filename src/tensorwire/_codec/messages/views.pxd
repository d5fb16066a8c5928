from ..datatypes cimport Datatype, Layout, Limits
from ..memory cimport Body
from ..messages.message cimport InferRequest
from ..messages.tensor cimport Tensor


cdef Datatype datatype_named(const unsigned char* name, Py_ssize_t nbytes)
cdef Tensor tensor_of_body(Body source, str name, str datatype, tuple shape, Limits limits)
cdef int view_body(
    Tensor tensor, Layout* layout, Body body, Py_ssize_t offset, Py_ssize_t nbytes, Limits limits
) except -1
cdef bint has_shared_memory(dict parameters) except -1
cdef int check_request(InferRequest request) except -1
cdef int check_name(Py_ssize_t nbytes, bint has_nul, Limits limits) except -1
cdef unknown_datatype_error(str name)
