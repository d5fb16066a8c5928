"""What the encoders of HTTP and gRPC messages share: what a request says about its response."""

from ..messages.message cimport InferRequest, InferResponse, ResponseOptions

from ...errors import EncodeError, format_names, format_value


cdef int check_options(options) except -1:
    """Raise TypeError unless the argument ``request`` of ``encode_response`` has the right type."""
    kind = type(options)
    if kind is not InferRequest and kind is not ResponseOptions and options is not None:
        raise TypeError(
            f"request must be an InferRequest or ResponseOptions, not {kind.__name__}")
    return 0


cdef int check_listed(dict listed, InferResponse response) except -1:
    missing = []
    for name in listed:
        if name not in response:
            missing.append(name)
    if missing:
        raise EncodeError(
            f"the request asks for output {format_value(min(missing))}, but the response has "
            f"{format_names(list(response))}",
            tensor=min(missing), status=400)
    return 0
