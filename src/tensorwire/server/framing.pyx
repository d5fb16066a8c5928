"""Parse the HTTP headers of requests, and build the HTTP headers of frames."""

from .._codec.messages.frame cimport Frame

from ..errors import DecodeError
from ..http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE, header_length

# The names of the headers that Framing uses.
FRAMING_HEADERS = (
    "content-length", "content-type", "content-encoding", "transfer-encoding",
    HEADER_LENGTH.lower(),
)
cdef bytes HEADER_LENGTH_NAME = HEADER_LENGTH.lower().encode()
# Media types that have the header length as a parameter are longer than this (WIRE.md 1).
cdef Py_ssize_t PLAIN_TYPE_NBYTES = len(BINARY_TYPE)
cdef tuple BINARY = (b"content-type", BINARY_TYPE.encode())
cdef tuple JSON = (b"content-type", JSON_TYPE.encode())


class AmbiguousLengthError(DecodeError):
    """The headers do not determine where the body of a request ends."""


cdef class Framing:
    """What the HTTP headers of a request say about its body (WIRE.md 1).

    The names of the headers are in lower case. Raises AmbiguousLengthError, and HeaderError if the
    header length is not a number, or there are two different ones.
    """

    cdef readonly object header_length  # None if the headers do not declare it
    cdef readonly object content_length  # None if there is no Content-Length
    cdef readonly bytes encoding  # in lower case; empty if there is none or it is `identity`

    def __init__(self, headers):
        cdef bytes name, value
        cdef bytes encoding = b""
        cdef list length_headers = []
        cdef bint has_transfer_encoding = False
        for name, value in headers:
            if name == b"content-length":
                length = parse_digits(value.strip(b" \t"))
                if length is None:
                    shown = value[:40].decode("latin-1")
                    raise AmbiguousLengthError(f"Content-Length is not a number: {shown!r}")
                if self.content_length is not None and self.content_length != length:
                    # Proxies may disagree on which one counts (RFC 9110, section 8.6).
                    raise AmbiguousLengthError(
                        "the request has two values of Content-Length, "
                        f"{self.content_length} and {length}",
                        expected=self.content_length, actual=length)
                self.content_length = length
            elif name == HEADER_LENGTH_NAME or (
                name == b"content-type"
                and len(value) > PLAIN_TYPE_NBYTES
                and (b"json-header-size" in (lower := value.lower())
                     or lower.startswith(b"multipart/"))
            ):
                length_headers.append((name, value))
            elif name == b"content-encoding":
                value = value.strip().lower()
                if value not in (b"", b"identity"):
                    encoding = encoding + b", " + value if encoding else value
            elif name == b"transfer-encoding":
                has_transfer_encoding = True
        self.encoding = encoding
        if has_transfer_encoding and self.content_length is not None:
            # Proxies may disagree on where such a body ends (RFC 9112, section 6.1).
            raise AmbiguousLengthError(
                "the request has both Content-Length and Transfer-Encoding")
        if len(length_headers) == 1:
            self.header_length = parse_digits(length_headers[0][1])
        if self.header_length is None and length_headers:
            # in a media type, with blanks, malformed, or declared more than once
            self.header_length = header_length(length_headers)


cdef class Head:
    """The target and the headers of a request, which a parser of httptools passes on in parts.

    Trailers, and what is parsed before ``begin`` or after ``end``, are ignored. So are headers
    after number ``max_headers`` + 1, because a short one takes many times its length.
    """

    cdef bytes target
    cdef list headers  # None if no head arrives
    cdef Py_ssize_t max_headers

    def __cinit__(self, Py_ssize_t max_headers):
        self.max_headers = max_headers

    def begin(self):
        self.target, self.headers = b"", []

    def on_url(self, bytes part not None):
        if self.headers is not None:
            self.target += part

    def on_header(self, bytes name not None, bytes value not None):
        if self.headers is not None and len(self.headers) <= self.max_headers:
            self.headers.append((name.lower(), value))

    def end(self):
        """Return the target, and the headers with names in lower case."""
        found = self.target, self.headers
        self.headers = None
        return found


cdef parse_digits(bytes value):
    """Return the value of 1 to 20 ASCII digits (2^64 has 20 digits). None for any other text."""
    return int(value) if value.isdigit() and len(value) <= 20 else None


def expects_continue(headers):
    """Return whether a client waits for ``100 Continue`` before it sends the body."""
    return any(
        name == b"expect" and value.strip().lower() == b"100-continue" for name, value in headers)


def find_head_problem(headers, str version, Py_ssize_t max_headers):
    """Return the text and the status of the error of a request head; None if it has none.

    Parsers accept what these checks reject (RFC 9112, sections 2.3, 3.2 and 6.1). ``version`` is
    that of the protocol, and the names of the headers are in lower case.
    """
    cdef bytes name, value
    cdef Py_ssize_t n_hosts = 0
    if version != "1.1" and version != "1.0":
        return f"HTTP/{version} is not supported: send HTTP/1.1", 505
    if len(headers) > max_headers:
        return f"the request has more than {max_headers} headers", 431
    for name, value in headers:
        if name == b"host":
            n_hosts += 1
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            shown = value[:40].decode("latin-1")
            return f"Transfer-Encoding {shown!r} is not supported: send 'chunked'", 501
    if n_hosts > 1 or n_hosts == 0 and version == "1.1":
        return f"the request must have one Host header, not {n_hosts}", 400
    return None


def joined_headers(headers):
    """Return headers as HTTP/1.1 sends them, each with the end of its line."""
    cdef list parts = []
    cdef bytes name, value
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    return b"".join(parts)


def frame_headers(Frame frame not None):
    """Return the HTTP headers of a frame as a list of (name, value) pairs of bytes."""
    cdef tuple content_length = (b"content-length", b"%d" % frame.nbytes)
    if frame.header_length is None:
        return [JSON, content_length]
    return [BINARY, content_length, (HEADER_LENGTH_NAME, b"%d" % frame.header_length)]
