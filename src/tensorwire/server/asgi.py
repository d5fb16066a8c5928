"""Serve with ASGI: read inference requests, and send frames and other replies.

``read_request``, ``send_frame`` and ``send_error`` can be used in any ASGI application, with or
without a framework. ``respond`` is the ASGI side of the application of ``create_app``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .._codec.datatypes import Limits
from .._codec.decoder import decode_request
from .._codec.memory import BodyBuffer
from .._codec.messages import Frame, InferRequest, TensorSpec
from ..errors import TensorwireError
from .body import (
    DEFAULT_MAX_BODY,
    MAX_DISCARDED_NBYTES,
    ClientDisconnected,
    ReceiveTimeout,
    finish_body,
    open_body,
)
from .framing import Framing, frame_headers
from .model import ServedModel
from .service import CLOSE, RawHeaders, Reply, Service, error_reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_DEFAULT_LIMITS = Limits()
# Send in chunks, so that the server does not have to buffer a whole response.
_CHUNK_NBYTES = 1 << 20
# One message is faster than several for frames up to this size (benchmarks/bench_http.py).
_MAX_JOINED_NBYTES = 64 << 10


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
    framing = Framing(scope["headers"])
    body = await receive_body(framing, receive, max_body)
    return decode_request(body, framing.header_length, raw_input=raw_input, limits=limits)


async def receive_body(framing: Framing, receive: Receive, max_body: int | None) -> BodyBuffer:
    """Receive the body of a request, and decompress it. Raises DecodeError, ClientDisconnected."""
    body = open_body(framing, max_body)
    more = True
    while more:
        message = await receive()
        body.write(_body_of(message))
        more = message.get("more_body", False)
    return finish_body(body)


def _body_of(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientDisconnected("the client closed the connection before the whole body arrived")
    body: bytes = message.get("body", b"")
    return body


async def discard_body(receive: Receive) -> None:
    """Read and discard at most 16 MiB of a body, before an error response is sent."""
    n_read, more = 0, True
    while more and n_read < MAX_DISCARDED_NBYTES:
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
        returns. With ``zero_copy``, it must not change until the server has sent the response.
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
    await send_reply(send, error_reply(message, status, headers))


async def send_reply(send: Send, reply: Reply) -> None:
    """Send a response with a small body."""
    start = {"type": "http.response.start", "status": reply.status, "headers": reply.headers}
    await send(start)
    await send({"type": "http.response.body", "body": reply.body})


# --- the application -----------------------------------------------------------------------------


async def respond(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to an ASGI event."""
    if scope["type"] == "http":
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        model = service.infer_model(scope["method"], path)
        if model is not None:
            await _infer(service, model, scope, receive, send)
            return
        reply = service.reply(scope["method"], path)
        if _expects_continue(scope) or not await _discard_in_time(service, receive):
            reply.headers.append(CLOSE)
        await send_reply(send, reply)
    elif scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})


async def _discard_in_time(service: Service, receive: Receive) -> bool:
    """Discard the body of a request. Returns whether it arrived in time."""
    timeouts = service.receive_timeouts
    task = timeouts.start()
    try:
        try:
            await discard_body(receive)
        finally:
            timeouts.stop(task)
    except ReceiveTimeout:
        return False
    return True


async def _infer(
    service: Service, model: ServedModel, scope: Scope, receive: Receive, send: Send
) -> None:
    timeouts = service.receive_timeouts
    try:
        framing = Framing(scope["headers"])
        task = timeouts.start()
        try:
            body = await receive_body(framing, receive, service.max_body)
        finally:
            timeouts.stop(task)
    except ClientDisconnected:
        return
    except TensorwireError as error:  # a part of the body may not have been read
        close = error.status == 408 or _expects_continue(scope) or _has_ambiguous_length(scope)
        await send_error(send, str(error), error.status, [CLOSE] if close else ())
        return
    try:
        result = model.infer(body, framing.header_length)
        frame = result if isinstance(result, Frame) else await result
    except TensorwireError as error:
        await send_error(send, str(error), error.status)
    else:
        await send_frame(send, frame, zero_copy=service.zero_copy)


def _expects_continue(scope: Scope) -> bool:
    """Return whether the client waits for ``100 Continue``, which servers send on a receive."""
    return any(
        name == b"expect" and value.strip().lower() == b"100-continue"
        for name, value in scope["headers"]
    )


def _has_ambiguous_length(scope: Scope) -> bool:
    """Return whether the request has both Content-Length and Transfer-Encoding (see Framing)."""
    names = {name for name, _ in scope["headers"]}
    return b"transfer-encoding" in names and b"content-length" in names


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
