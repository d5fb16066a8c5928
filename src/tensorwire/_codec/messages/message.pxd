cdef class RequestedOutput:
    cdef readonly str name
    cdef readonly object binary  # True, False or None
    cdef dict _parameters
    cdef bint is_made


cdef class Message:
    cdef object __weakref__
    cdef tuple tensors
    cdef dict by_name  # the tensors by their names; None if there is at most one
    cdef tuple requested  # the outputs that a request selects, or None
    cdef readonly str id
    cdef readonly str model_name
    cdef readonly str model_version
    cdef dict _parameters
    cdef bint is_made


cdef class InferRequest(Message):
    pass


cdef class InferResponse(Message):
    pass


cdef class ResponseOptions:
    cdef readonly tuple outputs
    cdef readonly bint binary
    cdef readonly str id


cdef RequestedOutput new_output(str name, binary, dict parameters)
cdef Message new_message(bint is_request)
cdef dict items_by_name(tuple items, str kind, type error_class)
cdef binary_data_output(InferRequest request)
