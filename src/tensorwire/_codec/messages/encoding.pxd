from ..messages.message cimport (
    InferRequest, InferResponse, ResponseOptions, binary_data_output)

cdef int check_options(options) except -1
cdef int check_listed(dict listed, InferResponse response) except -1


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
