"""Parse the HTTP headers of ASGI requests, and build the HTTP headers of frames."""

from .._codec.messages cimport Frame

from ..errors import HeaderError
from ..http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE, header_length

cdef bytes HEADER_LENGTH_NAME = HEADER_LENGTH.lower().encode()
# Media types that have the header length as a parameter are longer than this (WIRE.md 1).
cdef Py_ssize_t PLAIN_TYPE_NBYTES = len(BINARY_TYPE)
cdef tuple BINARY = (b"content-type", BINARY_TYPE.encode())
cdef tuple JSON = (b"content-type", JSON_TYPE.encode())


def parse_framing(headers):
    """Parse the headers that describe the body of a request (WIRE.md 1).

    Parameters
    ----------
    headers : iterable of (bytes, bytes)
        The ``headers`` of an ASGI scope. Names are in lower case.

    Returns
    -------
    header_length : int or None
        Length of the JSON header in bytes; None if the headers do not declare it.
    content_length : int or None
        Length of the body in bytes; None if there is no Content-Length.
    encoding : bytes
        The Content-Encoding in lower case; empty if there is none or it is ``identity``.

    Raises
    ------
    HeaderError
        A length is not a number, or the headers declare two different header lengths.
    """
    cdef bytes name, value
    cdef bytes encoding = b""
    cdef list length_headers = []
    content_length = length = None
    for name, value in headers:
        if name == b"content-length":
            content_length = parse_digits(value)
            if content_length is None:
                shown = value[:40].decode("latin-1")
                raise HeaderError(f"Content-Length is not a number: {shown!r}")
        elif name == HEADER_LENGTH_NAME or (
            name == b"content-type"
            and len(value) > PLAIN_TYPE_NBYTES
            and b"json-header-size" in value.lower()
        ):
            length_headers.append((name, value))
        elif name == b"content-encoding":
            value = value.strip().lower()
            if value not in (b"", b"identity"):
                encoding = encoding + b", " + value if encoding else value
    if len(length_headers) == 1:
        length = parse_digits(length_headers[0][1])
    if length is None and length_headers:  # in a media type, malformed, or sent more than once
        length = header_length(length_headers)
    return length, content_length, encoding


cdef parse_digits(bytes value):
    """Return the value of 1 to 20 ASCII digits (2^64 has 20 digits). None for any other text."""
    cdef const unsigned char* text = value
    cdef Py_ssize_t i, number = 0
    if not 0 < len(value) <= 18:  # 18 digits cannot overflow a Py_ssize_t
        return int(value) if len(value) in (19, 20) and value.isdigit() else None
    for i in range(len(value)):
        if not c"0" <= text[i] <= c"9":
            return None
        number = 10 * number + (text[i] - c"0")
    return number


def frame_headers(Frame frame not None):
    """Return the HTTP headers of a frame as the (name, value) pairs of ASGI."""
    cdef tuple content_length = (b"content-length", f"{frame.nbytes}".encode())
    cdef Py_ssize_t length
    if frame.header_length is None:
        return [JSON, content_length]
    length = frame.header_length
    return [BINARY, content_length, (HEADER_LENGTH_NAME, f"{length}".encode())]
