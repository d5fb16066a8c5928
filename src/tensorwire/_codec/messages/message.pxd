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
cdef int check_listed(dict listed, InferResponse response) except -1
cdef int check_options(options) except -1


# What an InferRequest, ResponseOptions or None says about the response.

cdef inline tuple requested_by(options):
    if type(options) is InferRequest:
        return (<InferRequest>options).requested
    return None if options is None else (<ResponseOptions>options).outputs


cdef inline bint is_binary_for(options):
    if type(options) is InferRequest:
        return binary_data_output(<InferRequest>options) is True
    return options is not None and (<ResponseOptions>options).binary


cdef inline str id_for(InferResponse response, options):
    if response.id is not None or options is None:
        return response.id
    if type(options) is InferRequest:
        return (<InferRequest>options).id
    return (<ResponseOptions>options).id
