"""Serve with RSGI, the interface of granian: the application of ``create_app`` without ASGI."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from .._codec.messages import Frame
from ..errors import TensorwireError
from .body import MAX_DISCARDED_NBYTES, ReceiveTimeout, finish_body, open_body
from .framing import FRAMING_HEADERS, Framing
from .model import ServedModel
from .service import CLOSE, Reply, Service, error_reply

# A body up to this size is received as one object. A larger body is received in chunks, because a
# call for each chunk costs less than another copy of the body. A response is always sent as one
# object, because granian does not wait for the client between the chunks of a response.
_MAX_JOINED_NBYTES = 64 << 10
# The names as granian and as Framing expect them.
_HEADER_NAMES = [(name, name.encode()) for name in FRAMING_HEADERS]


def respond(service: Service, scope: Any, protocol: Any) -> Awaitable[None]:
    """Return a coroutine that responds to an RSGI request."""
    if scope.proto == "http":
        model = service.infer_model(scope.method, scope.path)
        if model is not None:
            return _infer(service, model, scope, protocol)
    return _respond(service, scope, protocol)


async def _respond(service: Service, scope: Any, protocol: Any) -> None:
    """Respond to a request that is not an inference request."""
    if scope.proto != "http":
        protocol.close(1000)
        return
    reply = service.reply(scope.method, scope.path)
    if not await _discard_body(service, scope, protocol):
        reply.headers.append(CLOSE)
    _send(protocol, reply)


async def _infer(service: Service, model: ServedModel, scope: Any, protocol: Any) -> None:
    timeouts = service.receive_timeouts
    try:
        headers = scope.headers
        framing = Framing(
            [
                (raw_name, value.encode("latin-1"))
                for name, raw_name in _HEADER_NAMES
                for value in headers.get_all(name)
            ]
        )
        body = open_body(framing, service.max_body)
    except TensorwireError as error:
        is_discarded = error.status != 413 and await _discard_body(service, scope, protocol)
        _send(protocol, error_reply(str(error), error.status, [] if is_discarded else [CLOSE]))
        return
    try:
        task = timeouts.start()
        try:
            if framing.content_length and framing.content_length <= _MAX_JOINED_NBYTES:
                body.write(await protocol())
            else:
                # If a chunked body is malformed, granian ends the iteration without an error. The
                # decoder then rejects the message, unless it is complete by its own lengths.
                async for chunk in protocol:
                    body.write(chunk)
        finally:
            timeouts.stop(task)
        result = model.infer(finish_body(body), framing.header_length)
        frame = result if isinstance(result, Frame) else await result
    except ProtocolClosed:  # the client closed the connection before the body was complete
        return
    except TensorwireError as error:
        close = [CLOSE] if error.status == 408 else []
        _send(protocol, error_reply(str(error), error.status, close))
    else:
        protocol.response_bytes(200, list(frame.headers.items()), bytes(frame))


async def _discard_body(service: Service, scope: Any, protocol: Any) -> bool:
    """Discard a body that has not been read.

    Returns False if the client waits for ``100 Continue``, or the body is longer than 16 MiB or
    does not arrive in time.
    """
    if scope.headers.get("expect") is not None:
        return False
    n_read = 0
    timeouts = service.receive_timeouts
    task = timeouts.start()
    try:
        try:
            async for chunk in protocol:
                n_read += len(chunk)
                if n_read > MAX_DISCARDED_NBYTES:
                    return False
        finally:
            timeouts.stop(task)
    except ReceiveTimeout:
        return False
    return True


def _send(protocol: Any, reply: Reply) -> None:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
    protocol.response_bytes(reply.status, headers, reply.body)
