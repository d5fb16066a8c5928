"""The head of an ASGI message: what a request's headers say of its body, a frame's own headers."""

from .._codec.messages cimport Frame

from ..errors import HeaderError
from ..http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE, header_length

cdef bytes HEADER_LENGTH_NAME = HEADER_LENGTH.lower().encode()
cdef Py_ssize_t PLAIN = len(BINARY_TYPE)  # a type that also holds a length is longer
cdef tuple BINARY = (b"content-type", BINARY_TYPE.encode())
cdef tuple JSON = (b"content-type", JSON_TYPE.encode())


def framing(headers):
    """Header length, content length and encoding (empty: none), of ASGI's lower-case headers.

    Each length is None when it was not announced. Raises HeaderError.
    """
    cdef bytes name, value
    cdef bytes encoding = b""
    cdef list lengths = []
    content_length = length = None
    for name, value in headers:
        if name == b"content-length":
            content_length = digits(value)
            if content_length is None:
                shown = value[:40].decode("latin-1")
                raise HeaderError(f"Content-Length is not a number: {shown!r}")
        elif name == HEADER_LENGTH_NAME or (
            name == b"content-type" and len(value) > PLAIN and b"json-header-size" in value.lower()
        ):
            lengths.append((name, value))
        elif name == b"content-encoding":
            value = value.strip().lower()
            if value not in (b"", b"identity"):
                encoding = encoding + b", " + value if encoding else value
    if len(lengths) == 1:
        length = digits(lengths[0][1])
    if length is None and lengths:  # a gateway's, a malformed one, or more than one
        length = header_length(lengths)
    return length, content_length, encoding


cdef digits(bytes value):
    """The number that up to 20 ASCII digits say, as those of 2^64; else None."""
    cdef const unsigned char* text = value
    cdef Py_ssize_t i, number = 0
    if not 0 < len(value) <= 18:  # what a Py_ssize_t holds for sure
        return int(value) if len(value) in (19, 20) and value.isdigit() else None
    for i in range(len(value)):
        if not c"0" <= text[i] <= c"9":
            return None
        number = 10 * number + (text[i] - c"0")
    return number


def frame_headers(Frame frame not None):
    """A frame's own headers, as ASGI has them: Content-Type and the two lengths."""
    cdef tuple content_length = (b"content-length", f"{frame.nbytes}".encode())
    cdef Py_ssize_t length
    if frame.header_length is None:
        return [JSON, content_length]
    length = frame.header_length
    return [BINARY, content_length, (HEADER_LENGTH_NAME, f"{length}".encode())]
