"""The body of a request: its memory, its limit, decompression, and their errors."""

from __future__ import annotations

import zlib

from .._codec.memory import BodyBuffer
from ..errors import DecodeError, HeaderError, LayoutError, TensorwireError, format_count
from .framing import Framing

DEFAULT_MAX_BODY = 2**31 - 1
"""Default limit of a request body in bytes, after decompression. It is also Triton's limit."""

DEFAULT_RECEIVE_TIMEOUT = 300.0
"""Default time in seconds in which the whole body of a request must arrive."""

# Decompress in steps, so that a body that expands beyond max_body is rejected early.
_INFLATE_NBYTES = 1 << 20


class ClientDisconnectedError(TensorwireError):
    """The client closed the connection before its request had arrived or begun to be processed.

    No response can be sent. ``status`` is 499.
    """

    status = 499


class UnsupportedEncodingError(DecodeError):
    """The Content-Encoding of the body is not gzip, deflate or identity. ``status`` is 415."""

    status = 415


class ReceiveTimeoutError(DecodeError):
    """The body did not arrive in time. ``status`` is 408."""

    status = 408


def open_body(framing: Framing, max_body: int | None) -> BodyBuffer:
    """Return the buffer that a body is received into; a compressed body remains compressed.

    Raises HeaderError with status 413 if Content-Length exceeds ``max_body``, and
    UnsupportedEncodingError.
    """
    if framing.encoding not in (b"", b"gzip", b"x-gzip", b"deflate"):
        name = framing.encoding[:40].decode("latin-1")
        raise UnsupportedEncodingError(f"Content-Encoding {name!r} is not supported")
    return BodyBuffer(framing.content_length, framing.header_length, max_nbytes=max_body)


def check_complete(body: BodyBuffer) -> None:
    """Raise LayoutError if a body that has ended is shorter than Content-Length."""
    if not body.complete:
        raise LayoutError(
            f"the body is shorter than Content-Length: {format_count('byte', len(body))} arrived, "
            f"but Content-Length is {body.content_length}",
            expected=body.content_length,
            actual=len(body),
        )


def decompress(body: BodyBuffer, framing: Framing, max_body: int | None) -> BodyBuffer:
    """Return the decompressed bytes of a body, or the body itself if it is not compressed.

    This takes up to 3 ns per decompressed byte. zlib detects whether the data has a zlib or a gzip
    header. Therefore zlib data with the encoding ``gzip`` is accepted, and gzip data with the
    encoding ``deflate``. Raises HeaderError, with status 413 if the result is longer than
    ``max_body``.
    """
    if not framing.encoding:
        return body
    result = BodyBuffer(None, framing.header_length, max_nbytes=max_body)
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: detect the header
    compressed = memoryview(body)
    try:
        # zlib copies the unconsumed rest of its input at every step, which would take quadratic
        # time for a large input. Therefore the input is split as well.
        for start in range(0, len(compressed), _INFLATE_NBYTES):
            chunk: bytes | memoryview = compressed[start : start + _INFLATE_NBYTES]
            while chunk:
                if inflater.eof:
                    raise HeaderError(
                        "the compressed body is followed by other data: it ends after "
                        f"{format_count('decompressed byte', len(result))}"
                    )
                result.write(inflater.decompress(chunk, _INFLATE_NBYTES))
                chunk = inflater.unused_data or inflater.unconsumed_tail
    except zlib.error as error:
        raise HeaderError(
            "the compressed body is invalid after "
            f"{format_count('decompressed byte', len(result))}: {error}"
        ) from None
    if not inflater.eof:
        raise HeaderError(
            f"the compressed body is truncated after {format_count('byte', len(body))} "
            f"({format_count('byte', len(result))} decompressed)"
        )
    return result
