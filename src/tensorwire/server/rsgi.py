"""Serve with RSGI, the interface of granian: the application of ``create_app`` without ASGI."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

from .._codec.memory import BodyBuffer
from .._codec.messages import Frame
from ..errors import TensorwireError
from .body import finish_body, open_body, receive_timeout
from .framing import Framing, frame_headers
from .model import ServedModel
from .service import RawHeaders, Reply, Service, error_reply

# A body up to this size is received as one object, and a response is sent as one object.
_MAX_JOINED_NBYTES = 1 << 20
_CHUNK_NBYTES = 1 << 20
_MAX_DISCARDED_NBYTES = 16 << 20


async def respond(service: Service, scope: Any, protocol: Any) -> None:
    """Respond to an RSGI request."""
    if scope.proto != "http":
        protocol.close(1000)
        return
    path = unquote(scope.path)
    model = service.infer_model(scope.method, path)
    if model is not None:
        await _infer(service, model, scope, protocol)
        return
    await _reject(scope, protocol, service.reply(scope.method, path))


async def _infer(service: Service, model: ServedModel, scope: Any, protocol: Any) -> None:
    try:
        framing = Framing(_raw_headers(scope))
        body = await _receive(framing, protocol, service)
    except TensorwireError as error:  # a part of the body may not have been read
        if error.status == 408:
            _send(protocol, error_reply(str(error), 408, [(b"connection", b"close")]))
        else:
            await _reject(scope, protocol, error_reply(str(error), error.status))
        return
    try:
        frame = await model.infer(body, framing.header_length)
    except TensorwireError as error:
        _send(protocol, error_reply(str(error), error.status))
    else:
        await _send_frame(protocol, frame)


async def _receive(framing: Framing, protocol: Any, service: Service) -> BodyBuffer:
    """Receive the body of a request, and decompress it. Raises DecodeError."""
    body = open_body(framing, service.max_body)
    try:
        async with asyncio.timeout(service.receive_timeout):
            if (framing.content_length or _MAX_JOINED_NBYTES + 1) <= _MAX_JOINED_NBYTES:
                body.write(await protocol())
            else:
                async for chunk in protocol:
                    body.write(chunk)
    except TimeoutError:
        raise receive_timeout(service.receive_timeout) from None
    return finish_body(body)


async def _reject(scope: Any, protocol: Any, reply: Reply) -> None:
    """Reply to a request whose body has not been read."""
    if scope.headers.get("expect") is None:
        n_read = 0
        async for chunk in protocol:
            n_read += len(chunk)
            if n_read > _MAX_DISCARDED_NBYTES:
                break
    else:
        reply.headers.append((b"connection", b"close"))
    _send(protocol, reply)


def _send(protocol: Any, reply: Reply) -> None:
    protocol.response_bytes(reply.status, _text_headers(reply.headers), reply.body)


async def _send_frame(protocol: Any, frame: Frame) -> None:
    headers = _text_headers(frame_headers(frame))
    if len(frame) <= _MAX_JOINED_NBYTES:
        protocol.response_bytes(200, headers, bytes(frame))
        return
    stream = protocol.response_stream(200, headers)
    for chunk in frame.pieces(_CHUNK_NBYTES):
        await stream.send_bytes(bytes(chunk))


def _raw_headers(scope: Any) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in scope.headers.items()
    ]


def _text_headers(headers: RawHeaders) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
