"""Read a request from any ASGI server, send it a frame: no framework, no parsing of HTTP."""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from .._codec.datatypes import Limits
from .._codec.decoder import decode_request
from .._codec.memory import BodyBuffer
from .._codec.messages import Frame, InferRequest, TensorSpec
from ..errors import DecodeError, HeaderError, LayoutError, TensorwireError
from ._head import frame_headers, framing

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]

DEFAULT_MAX_BODY = 2**31 - 1
"""Bytes of a request's body, inflated: what Triton accepts, too."""

_DEFAULT_LIMITS = Limits()
_INFLATE_NBYTES = 1 << 20  # inflated at a time, so that a bomb is seen before it bursts
_PIECE_NBYTES = 1 << 20  # sent at a time: what the server has not sent yet stays small
_DRAIN_NBYTES = 16 << 20
_JOIN_NBYTES = 64 << 10  # frames up to this size go out as one message (benchmarks/bench_http.py)


class ClientDisconnected(TensorwireError):
    """The client went away before its body had arrived: there is nobody to answer."""

    status = 499


class UnsupportedEncoding(DecodeError):
    """The body's Content-Encoding is not gzip, deflate or identity."""

    status = 415


# --- in --------------------------------------------------------------------------------------


async def read_request(
    scope: Scope,
    receive: Receive,
    *,
    max_body: int = DEFAULT_MAX_BODY,
    limits: Limits = _DEFAULT_LIMITS,
    raw_input: TensorSpec | None = None,
) -> InferRequest:
    """The request that an ASGI scope brings, as views of one aligned, writable BodyBuffer.

    Chunks go straight into it; ``gzip`` and ``deflate`` bodies are inflated into it, never past
    ``max_body`` bytes. ``limits`` and ``raw_input`` are those of ``decode_request``.

    Raises DecodeError, whose ``status`` is the one to answer with (400; 413 too long, before it is
    read when Content-Length says so; 415 unknown encoding), ClientDisconnected.
    """
    length, content_length, encoding = framing(scope["headers"])
    if encoding:
        buffer = await _read_inflated(encoding, length, receive, max_body)
    else:
        buffer = BodyBuffer(content_length, length, max_nbytes=max_body)
        more = True
        while more:
            message = await receive()
            buffer.write(_chunk(message))
            more = message.get("more_body", False)
        if not buffer.complete:
            raise LayoutError(
                f"the body is shorter than announced: {len(buffer)} bytes, Content-Length is "
                f"{content_length}",
                expected=content_length,
                actual=len(buffer),
            )
    return decode_request(buffer, length, raw_input=raw_input, limits=limits)


def _chunk(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientDisconnected("the client closed the connection before its body had arrived")
    chunk: bytes = message.get("body", b"")
    return chunk


async def _read_inflated(
    encoding: bytes, header_length: int | None, receive: Receive, max_body: int
) -> BodyBuffer:
    """Inflate zlib or gzip data as it arrives; which of the labels it has does not matter."""
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        name = encoding[:40].decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding {name!r} is not known")
    buffer = BodyBuffer(None, header_length, max_nbytes=max_body)
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: either header
    n_read, more = 0, True
    while more:
        message = await receive()
        chunk = _chunk(message)
        _inflate(inflater, chunk, buffer)
        n_read += len(chunk)
        more = message.get("more_body", False)
    if not inflater.eof:
        raise HeaderError(
            f"the compressed body ends too early: its {n_read} bytes are {len(buffer)} inflated"
        )
    return buffer


def _inflate(inflater: Any, chunk: bytes, buffer: BodyBuffer) -> None:
    """In short pieces, for what is left of one is copied each time."""
    for start in range(0, len(chunk), _INFLATE_NBYTES):
        _inflate_piece(inflater, chunk[start : start + _INFLATE_NBYTES], buffer)


def _inflate_piece(inflater: Any, chunk: bytes, buffer: BodyBuffer) -> None:
    try:
        while chunk:
            buffer.write(inflater.decompress(chunk, _INFLATE_NBYTES))
            chunk = inflater.unconsumed_tail
    except zlib.error as error:
        raise HeaderError(
            f"the body cannot be inflated beyond {len(buffer)} bytes: {error}"
        ) from None
    if inflater.unused_data:
        raise HeaderError(
            f"the compressed body goes on after its end, which is at {len(buffer)} bytes inflated"
        )


# --- out -------------------------------------------------------------------------------------


async def send_frame(
    send: Send, frame: Frame, *, status: int = 200, headers: RawHeaders = ()
) -> None:
    """Answer with a frame: its own headers, ``headers``, and its buffers one after another.

    Buffers go in pieces of 1 MiB, and no buffer is joined to another but for frames of up to
    64 KiB, which one message carries sooner than several. uvicorn is given the tensors' own memory,
    which must not change until the client has it; any other server copies.
    """
    own = frame_headers(frame)
    start = {"type": "http.response.start", "status": status, "headers": [*own, *headers]}
    await send(start)
    if len(frame) <= _JOIN_NBYTES:
        await send({"type": "http.response.body", "body": bytes(frame)})
        return
    takes_views = str(getattr(send, "__module__", None)).startswith("uvicorn.")
    last: bytes | memoryview = b""
    for piece in frame.pieces(_PIECE_NBYTES):
        if last:
            await send({"type": "http.response.body", "body": last, "more_body": True})
        last = piece if takes_views else bytes(piece)
    await send({"type": "http.response.body", "body": last})


async def drain(receive: Receive) -> None:
    """Read what a client is about to send before it is told off, up to 16 MiB.

    A server that closes the connection instead may cost the client the answer.
    """
    n_read, more = 0, True
    while more and n_read < _DRAIN_NBYTES:
        message = await receive()
        n_read += len(message.get("body", b""))
        more = message.get("more_body", False)


async def send_error(send: Send, message: str, status: int, headers: RawHeaders = ()) -> None:
    """Answer with ``{"error": message}``."""
    await send_json(send, {"error": message}, status, headers)


async def send_json(send: Send, value: Any, status: int = 200, headers: RawHeaders = ()) -> None:
    """Answer with JSON."""
    body = json.dumps(value).encode()
    own = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    start = {"type": "http.response.start", "status": status, "headers": [*own, *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": body})
