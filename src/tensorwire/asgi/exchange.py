"""Read inference requests and send frames in any ASGI application, with or without a framework."""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from .._codec.datatypes import Limits
from .._codec.decoder import decode_request
from .._codec.memory import BodyBuffer
from .._codec.messages import Frame, InferRequest, TensorSpec
from ..errors import DecodeError, HeaderError, LayoutError, TensorwireError, plural
from ._headers import frame_headers, parse_framing

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]

DEFAULT_MAX_BODY = 2**31 - 1
"""Default limit of a request body in bytes, after decompression. It is also Triton's limit."""

_DEFAULT_LIMITS = Limits()
# Decompress in steps, so that a body that expands beyond max_body is rejected early.
_INFLATE_NBYTES = 1 << 20
# Send in chunks, so that the server does not have to buffer a whole response.
_CHUNK_NBYTES = 1 << 20
# One message is faster than several for frames up to this size (benchmarks/bench_http.py).
_MAX_JOINED_NBYTES = 64 << 10
_MAX_DISCARDED_NBYTES = 16 << 20


class ClientDisconnected(TensorwireError):
    """The client closed the connection before the whole body had arrived.

    No response can be sent. ``status`` is 499.
    """

    status = 499


class UnsupportedEncoding(DecodeError):
    """The Content-Encoding of the body is not gzip, deflate or identity. ``status`` is 415."""

    status = 415


# --- requests ------------------------------------------------------------------------------------


async def read_request(
    scope: Scope,
    receive: Receive,
    *,
    max_body: int = DEFAULT_MAX_BODY,
    limits: Limits = _DEFAULT_LIMITS,
    raw_input: TensorSpec | None = None,
) -> InferRequest:
    """Read and decode the inference request of an ASGI scope.

    Parameters
    ----------
    scope : mapping
        The ASGI scope of the HTTP request. Only its ``headers`` are used.
    receive : callable
        The ASGI receive callable. The body must not have been read before.
    max_body : int, default 2**31 - 1
        Maximum length of the body in bytes, after decompression.
    limits : Limits, optional
        The limits for ``decode_request``.
    raw_input : TensorSpec, optional
        The input that the model declares, which is required for raw binary requests (WIRE.md 5).

    Returns
    -------
    InferRequest
        Its binary tensors are writable views of one ``BodyBuffer``, which the body was received or
        decompressed into. The first binary tensor is aligned to 64 bytes if the request has a
        header length. The buffer is released with the last view.

    Raises
    ------
    DecodeError
        The body is not a valid request. The ``status`` of the exception is the HTTP status to
        respond with: 400, 413 (longer than ``max_body``; raised before the body is read if
        Content-Length is too large) or 415 (``UnsupportedEncoding``).
    ClientDisconnected
        The client closed the connection before the whole body had arrived.

    Examples
    --------
    An ASGI application that returns its inputs:

    >>> import tensorwire as tw
    >>> from tensorwire.asgi import read_request, send_error, send_frame
    >>> async def app(scope, receive, send):
    ...     try:
    ...         request = await read_request(scope, receive, max_body=1 << 20)
    ...     except tw.DecodeError as error:
    ...         await send_error(send, str(error), error.status)
    ...     else:
    ...         response = tw.InferResponse(request.inputs)
    ...         await send_frame(send, tw.encode_response(response, request))
    """
    length, content_length, encoding = parse_framing(scope["headers"])
    if encoding:
        buffer = await _read_compressed(encoding, length, receive, max_body)
    else:
        buffer = BodyBuffer(content_length, length, max_nbytes=max_body)
        more = True
        while more:
            message = await receive()
            buffer.write(_body_of(message))
            more = message.get("more_body", False)
        if not buffer.complete:
            raise LayoutError(
                f"the body is shorter than announced: {plural('byte', len(buffer))}, "
                f"Content-Length is {content_length}",
                expected=content_length,
                actual=len(buffer),
            )
    return decode_request(buffer, length, raw_input=raw_input, limits=limits)


def _body_of(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientDisconnected("the client closed the connection before the whole body arrived")
    body: bytes = message.get("body", b"")
    return body


async def _read_compressed(
    encoding: bytes, header_length: int | None, receive: Receive, max_body: int
) -> BodyBuffer:
    """Decompress the body as it arrives.

    zlib detects whether the data has a zlib or a gzip header. Therefore zlib data with the encoding
    ``gzip`` is accepted, and gzip data with the encoding ``deflate``.
    """
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        name = encoding[:40].decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding {name!r} is not known")
    buffer = BodyBuffer(None, header_length, max_nbytes=max_body)
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: detect the header
    n_read, more = 0, True
    while more:
        message = await receive()
        chunk = _body_of(message)
        _inflate(inflater, chunk, buffer)
        n_read += len(chunk)
        more = message.get("more_body", False)
    if not inflater.eof:
        raise HeaderError(
            f"the compressed body is truncated after {plural('byte', n_read)} "
            f"({plural('byte', len(buffer))} decompressed)"
        )
    return buffer


def _inflate(inflater: Any, chunk: bytes, buffer: BodyBuffer) -> None:
    # zlib copies the unconsumed rest of its input at every step, which would take quadratic time
    # for a large chunk. Therefore the input is split as well.
    for start in range(0, len(chunk), _INFLATE_NBYTES):
        _inflate_slice(inflater, chunk[start : start + _INFLATE_NBYTES], buffer)


def _inflate_slice(inflater: Any, chunk: bytes, buffer: BodyBuffer) -> None:
    try:
        while chunk:
            buffer.write(inflater.decompress(chunk, _INFLATE_NBYTES))
            chunk = inflater.unconsumed_tail
    except zlib.error as error:
        raise HeaderError(
            f"the compressed body is invalid after {plural('decompressed byte', len(buffer))}: "
            f"{error}"
        ) from None
    if inflater.unused_data:
        raise HeaderError(
            f"the compressed body is followed by other data: it ends after "
            f"{plural('decompressed byte', len(buffer))}"
        )


async def discard_body(receive: Receive) -> None:
    """Read and discard at most 16 MiB of a body, before an error response is sent.

    If the server closes the connection while the client is still sending the body, the client may
    not receive the response.
    """
    n_read, more = 0, True
    while more and n_read < _MAX_DISCARDED_NBYTES:
        message = await receive()
        n_read += len(message.get("body", b""))
        more = message.get("more_body", False)


# --- responses -----------------------------------------------------------------------------------


async def send_frame(
    send: Send,
    frame: Frame,
    *,
    status: int = 200,
    headers: RawHeaders = (),
    zero_copy: bool = False,
) -> None:
    """Send a frame as the HTTP response.

    Frames of up to 64 KiB are sent as one message. The buffers of larger frames are sent in chunks
    of at most 1 MiB, without joining them first.

    Parameters
    ----------
    send : callable
        The ASGI send callable.
    frame : Frame
        The encoded response. The memory of its tensors must not change until this function
        returns. With ``zero_copy``, it must not change until the client has the response.
    status : int, default 200
        The HTTP status.
    headers : iterable of (bytes, bytes), optional
        Additional headers, with names in lower case. Content-Type, Content-Length and
        Inference-Header-Content-Length are those of the frame (WIRE.md 1).
    zero_copy : bool, default False
        Whether to send memoryviews of the tensors. ASGI requires ``bytes``, so by default each
        chunk is copied before it is sent. uvicorn also accepts memoryviews.

    Examples
    --------
    >>> import asyncio
    >>> import tensorwire as tw
    >>> from tensorwire.asgi import send_frame
    >>> async def send(message):
    ...     print(message["type"], len(message.get("body", b"")))
    >>> response = tw.InferResponse([tw.Tensor("y", [1, 2], datatype="INT8")])
    >>> frame = tw.encode_response(response)
    >>> len(frame)
    130
    >>> asyncio.run(send_frame(send, frame))
    http.response.start 0
    http.response.body 130
    """
    all_headers = [*frame_headers(frame), *headers]
    start = {"type": "http.response.start", "status": status, "headers": all_headers}
    await send(start)
    if len(frame) <= _MAX_JOINED_NBYTES:
        await send({"type": "http.response.body", "body": bytes(frame)})
        return
    last: bytes | memoryview = b""
    for chunk in frame.chunks(_CHUNK_NBYTES):
        if last:
            await send({"type": "http.response.body", "body": last, "more_body": True})
        last = chunk if zero_copy else bytes(chunk)
    await send({"type": "http.response.body", "body": last})


async def send_error(send: Send, message: str, status: int, headers: RawHeaders = ()) -> None:
    """Send an error response with the JSON body ``{"error": message}``.

    Parameters
    ----------
    send : callable
        The ASGI send callable.
    message : str
        The error message.
    status : int
        The HTTP status; the ``status`` of a ``TensorwireError`` is suitable.
    headers : iterable of (bytes, bytes), optional
        Additional headers, with names in lower case.

    Examples
    --------
    >>> import asyncio
    >>> from tensorwire.asgi import send_error
    >>> async def send(message):
    ...     print(message.get("status") or message["body"])
    >>> asyncio.run(send_error(send, "the queue is full", 503))
    503
    b'{"error": "the queue is full"}'
    """
    await send_json(send, {"error": message}, status, headers)


async def send_json(send: Send, value: Any, status: int = 200, headers: RawHeaders = ()) -> None:
    """Send a response whose body is ``value`` as JSON."""
    body = json.dumps(value).encode()
    all_headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    start = {"type": "http.response.start", "status": status, "headers": all_headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
