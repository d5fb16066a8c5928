"""Serve with RSGI, the interface of granian: the application of ``create_app`` without ASGI."""

from __future__ import annotations

from typing import Any

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from .._codec.memory import BodyBuffer
from .._codec.messages import Frame
from ..errors import TensorwireError
from .body import finish_body, open_body
from .framing import FRAMING_HEADERS, Framing
from .model import ServedModel
from .service import Reply, Service, error_reply

# A body up to this size is received as one object. For a larger one, another copy of all its bytes
# costs more than a call for each chunk.
_MAX_JOINED_NBYTES = 64 << 10
# A frame up to this size is sent as one object.
_MAX_SENT_NBYTES = 1 << 20
_CHUNK_NBYTES = 1 << 20
_FRAMING_HEADERS = [(name, name.encode()) for name in FRAMING_HEADERS]
_MAX_DISCARDED_NBYTES = 16 << 20


async def respond(service: Service, scope: Any, protocol: Any) -> None:
    """Respond to an RSGI request."""
    if scope.proto != "http":
        protocol.close(1000)
        return
    model = service.infer_model(scope.method, scope.path)
    if model is not None:
        await _infer(service, model, scope, protocol)
        return
    await _reject(scope, protocol, service.reply(scope.method, scope.path))


async def _infer(service: Service, model: ServedModel, scope: Any, protocol: Any) -> None:
    try:
        headers = scope.headers
        framing = Framing(
            (raw_name, value.encode("latin-1"))
            for name, raw_name in _FRAMING_HEADERS
            for value in headers.get_all(name)
        )
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
    with service.receive_timeouts:
        if (framing.content_length or _MAX_JOINED_NBYTES + 1) <= _MAX_JOINED_NBYTES:
            body.write(await protocol())
        else:
            async for chunk in protocol:
                body.write(chunk)
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
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
    protocol.response_bytes(reply.status, headers, reply.body)


async def _send_frame(protocol: Any, frame: Frame) -> None:
    headers = list(frame.headers.items())
    if len(frame) <= _MAX_SENT_NBYTES:
        protocol.response_bytes(200, headers, bytes(frame))
        return
    stream = protocol.response_stream(200, headers)
    try:
        for chunk in frame.chunks(_CHUNK_NBYTES):
            await stream.send_bytes(bytes(chunk))
    except ProtocolClosed:  # the client closed the connection
        return
