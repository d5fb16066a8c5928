"""Serve with ASGI: read inference requests, and send frames and other replies.

``read_request``, ``send_frame`` and ``send_error`` can be used in any ASGI application, with or
without a framework. ``App`` is ``create_app``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from types import CoroutineType, coroutine
from typing import Any

from .._codec.limits import DEFAULT_LIMITS, Limits
from .._codec.messages.frame import Frame
from .._codec.messages.message import InferRequest
from .._codec.messages.tensor import TensorSpec
from ..sizes import DEFAULT_MAX_BODY_NBYTES, MAX_JOINED_NBYTES, PIECE_NBYTES
from .body import RequestBody
from .body_memory import PERIOD_SECONDS, TICK_SECONDS
from .errors import SHUTTING_DOWN, ClientDisconnectedError, log
from .http_exchange import Exchange
from .service import RawHeaders, Reply, Service, error_reply

# With this text, uvicorn cancels the requests when a graceful shutdown takes too long.
_UVICORN_SHUTDOWN = ("Task cancelled, timeout graceful shutdown exceeded",)

# An extension of the scopes of `AsgiProtocol`: its "function" tells whether a client sends nothing
# more of a body that waits for memory.
IS_SILENT = "tensorwire.is_silent"

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]


# --- requests ------------------------------------------------------------------------------------


async def read_request(
    scope: Scope,
    receive: Receive,
    *,
    max_body_nbytes: int = DEFAULT_MAX_BODY_NBYTES,
    limits: Limits = DEFAULT_LIMITS,
    raw_input: TensorSpec | None = None,
) -> InferRequest:
    """Read and decode the inference request of an ASGI scope.

    Parameters
    ----------
    scope : mapping
        The ASGI scope of the HTTP request. Only its ``headers`` are used.
    receive : callable
        The ASGI receive callable. The body must not have been read before.
    max_body_nbytes : int, default 2**31 - 1
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
        respond with: 400, 413 (longer than ``max_body_nbytes``; raised before the body is read if
        Content-Length is too large) or 415 (``UnsupportedEncodingError``).
    ClientDisconnectedError
        The client closed the connection before the whole body had arrived.

    Examples
    --------
    An ASGI application that returns its inputs:

    >>> import tensorwire as tw
    >>> from tensorwire.server import read_request, send_error, send_frame
    >>> async def app(scope, receive, send):
    ...     try:
    ...         request = await read_request(scope, receive, max_body_nbytes=1 << 20)
    ...     except tw.DecodeError as error:
    ...         await send_error(send, str(error), error.status)
    ...     else:
    ...         response = tw.InferResponse(request.inputs)
    ...         await send_frame(send, tw.encode_response(response, request))
    """
    body = RequestBody(scope["headers"], max_body_nbytes)
    more = True
    while more:
        chunk, more = chunk_of(await receive())
        body.buffer.write(chunk)
    return await body.read_slowly(body.decode, limits, raw_input)


def chunk_of(message: AsgiMessage) -> tuple[bytes, bool]:
    """Return a chunk of a body, and whether there are more. Raises ClientDisconnectedError."""
    if message["type"] == "http.disconnect":
        raise ClientDisconnectedError(
            "the client closed the connection before the whole body arrived"
        )
    return message.get("body", b""), message.get("more_body", False)


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
    >>> from tensorwire.server import send_frame
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
    await _send_reply(send, Reply(status, frame, tuple(headers)), zero_copy)


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
    >>> from tensorwire.server import send_error
    >>> async def send(message):
    ...     print(message.get("status") or message["body"])
    >>> asyncio.run(send_error(send, "the queue is full", 503))
    503
    b'{"error": "the queue is full"}'
    """
    await _send_reply(send, error_reply(message, status, headers))


async def _send_reply(send: Send, reply: Reply, zero_copy: bool = False) -> None:
    headers, body = reply.headers(), reply.body
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if len(body) <= MAX_JOINED_NBYTES:
        await send({"type": "http.response.body", "body": bytes(body)})
        return
    for chunk in reply.chunks(PIECE_NBYTES):
        sent = chunk if zero_copy else bytes(chunk)
        await send({"type": "http.response.body", "body": sent, "more_body": True})
    # uvicorn waits here until the client has received the last chunk, which refers to its memory.
    await send({"type": "http.response.body", "body": b""})


# --- the application -----------------------------------------------------------------------------


class App(Service):
    """An ASGI application that serves models by name.

    A model must not modify an array after returning it: responses are sent from its memory. The
    page "Endpoints and applications" of the manual lists the endpoints, and the statuses of errors,
    whose body is ``{"error": ...}``. A model chooses text and status with ``RequestError``. Any
    other exception of a model is logged by the logger ``tensorwire.server`` and is not sent.

    Parameters
    ----------
    models : mapping of str to callable or Model
        A callable is the ``function`` of a ``Model``.
    max_body_nbytes : int, default 2**31 - 1
        Maximum length of a request body in bytes, before and after decompression.
    limits : Limits, optional
        The limits for ``decode_request``.
    selection : {"spec", "triton"}, default "spec"
        The rule that determines which outputs are binary; see ``encode_response``.
    nonfinite : {"null", "literal", "error"}, default "null"
        How to write NaN and infinities in outputs that are sent as JSON; see ``encode_request``.
        With "error", the response is an error with status 500. Binary outputs and gRPC are exact.
    receive_timeout : float or None, default 300.0
        Time in seconds in which the whole body of a request must arrive. None means no limit.
        ``tensorwire serve`` and ``InferProtocol`` limit the time of the headers, too, and
        disconnect a client that reads nothing of its response for this time. Over gRPC, it is the
        time for the message of a call.
    max_concurrency : int, default 1000
        Maximum number of inference requests of a process that have arrived and are in progress or
        wait for a thread. Requests whose body is arriving or whose response is being sent are not
        counted. Further requests are rejected with status 503. A request that waits for a thread is
        dropped up to two seconds after its client disconnects. Requests to a model with
        ``in_event_loop`` that returns at once are not counted.
    max_body_memory_nbytes : int, optional
        Maximum number of bytes of all HTTP request bodies together that have arrived, arrive or are
        decompressed, until the response was sent. Bodies of up to 64 KiB are not counted. A body
        for which there is no memory waits, and gets status 503 after ``receive_timeout``, as the
        section "Memory" of the manual says. The default is half of the memory of the machine, its
        cgroup or the process, divided by the variable WEB_CONCURRENCY (the number of processes) if
        it is set.
    zero_copy : bool, default False
        Whether to send large ASGI responses as memoryviews of the arrays; see ``send_frame``.
    compress_responses : bool, default False
        Whether to compress inference responses with gzip, deflate or zstd if the client asks for it
        with Accept-Encoding. Responses of less than 1 KiB and errors are not compressed. Most
        floating-point data hardly becomes smaller, and gzip is slower than most networks.
    metrics : bool, default False
        Whether to serve metrics for Prometheus at ``GET /metrics``, which requires
        prometheus_client. They are in its default registry.

    Raises
    ------
    ImportError
        ``metrics`` is true, and prometheus_client is not installed.
    TypeError, ValueError
        An argument, a model or its name has the wrong type or value.

    Examples
    --------
    >>> from tensorwire import TensorSpec
    >>> from tensorwire.server import Model, create_app
    >>> def double(request):
    ...     return {"y": request["x"].as_numpy() * 2}
    >>> app = create_app({"double": Model(double, [TensorSpec("x", "FP32", [-1])])})

    Serve it with ``tensorwire serve module:app``, or with any ASGI server, for example
    ``uvicorn --http h11 --ws none module:app``.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to an ASGI event."""
        if scope["type"] != "http":
            await _respond_to_server(scope["type"], receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        route = self.route(scope["method"], path)
        exchange = _Exchange(self, route, scope["headers"])
        exchange.receive = receive
        if exchange.takes_context and (client := scope.get("client")) is not None:
            exchange.client = tuple(client)
        is_replying = False
        try:
            if not exchange.is_rejected:  # otherwise, the client waits for 100 Continue
                message: AsgiMessage | Awaitable[AsgiMessage] | None = _begin(receive)
                # Usually, the whole body is there already, and needs no timeout.
                if type(message) is dict and "body" in message and not message.get("more_body"):
                    exchange.write(message["body"])
                    message = None
                if message is not None or not exchange.take_step():
                    is_silent = (scope.get("extensions") or {}).get(IS_SILENT)
                    await exchange.receive_body(message, is_silent and is_silent["function"])
            reply = exchange.reply()
            if type(reply) is not Reply:
                reply = await reply
            if exchange.is_rejected:
                reply = reply.closing()
            is_replying = True
            is_counted = exchange._reserved is not None and exchange.has_memory
            sending = partial(self._send_in_time, send) if is_counted else send
            await _send_reply(sending, reply, self.zero_copy)
        except ClientDisconnectedError:
            return
        except asyncio.CancelledError as error:
            if error.args != _UVICORN_SHUTDOWN:  # middleware may cancel the request, for example
                raise
            subject = "; ".join(getattr(error, "__notes__", ())) or path
            log.warning("the shutdown has cancelled a request: %s", subject)
            if not is_replying:
                await _send_reply(send, self.failure_reply(SHUTTING_DOWN).closing())
        finally:
            exchange.close()

    async def _send_in_time(self, send: Send, message: AsgiMessage) -> None:
        """Send a message, unless that takes too long while others need memory.

        Raises ClientDisconnectedError: the client has not read the previous part of the reply.
        """
        call_later = asyncio.get_running_loop().call_later
        timer: asyncio.TimerHandle
        n_refused = self.body_memory.n_refused

        def check() -> None:
            nonlocal timer, n_refused
            if self.body_memory.is_needed(n_refused):
                timeout.reschedule(0)
            else:
                n_refused = self.body_memory.n_refused
                timer = call_later(PERIOD_SECONDS, check)

        timer = call_later(PERIOD_SECONDS, check)
        try:
            async with asyncio.timeout(None) as timeout:
                await send(message)
        except TimeoutError:
            if timeout.expired():
                raise ClientDisconnectedError("the client does not read the reply") from None
            raise
        finally:
            timer.cancel()


async def _respond_to_server(kind: str, receive: Receive, send: Send) -> None:
    """Respond to an event that is no request."""
    if kind == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
    elif kind == "websocket":  # the server responds with status 403
        await send({"type": "websocket.close", "code": 1000})


class _Exchange(Exchange):
    """A request whose body arrives in messages, of which one is usually enough."""

    receive: Receive
    _loop: asyncio.AbstractEventLoop | None = None
    _has_changed: asyncio.Event
    _timeout: asyncio.Timeout | None = None
    _is_silent: Callable[[], bool] | None

    async def receive_body(
        self,
        message: AsgiMessage | Awaitable[AsgiMessage] | None,
        is_silent: Callable[[], bool] | None,
    ) -> None:
        """Receive the rest of a body, from this message on if there is one.

        While the body waits for memory, ``is_silent`` tells whether the client has sent nothing
        more, or raises ClientDisconnectedError. Not every server provides it.
        """
        self._is_silent = is_silent
        self._has_changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        more = message is not None
        try:
            async with asyncio.timeout(self._service.receive_timeout) as timeout:
                self._timeout = timeout
                await self._await_memory()
                while more and not self.is_rejected:
                    message = self.receive() if message is None else message
                    if isawaitable(message):
                        message = await message
                    chunk, more = chunk_of(message)
                    message = None
                    self.write(chunk)
                    await self._await_memory()
        except TimeoutError:
            if not timeout.expired():  # of the receive function of middleware
                raise
            self.take_step()  # if the body has been given up, this rejects it
            if not self.is_rejected:
                self.reject_late()
        finally:
            self._timeout = None  # it refers to the task: a cancelled one would be in a cycle

    async def _await_memory(self) -> None:
        while not self.take_step():
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._has_changed.wait()
            except TimeoutError:
                is_silent = self._is_silent is not None and self._is_silent()
                self.tick(asyncio.get_running_loop().time(), is_silent)
            self._has_changed.clear()

    def wake(self) -> None:
        if self._loop is not None:  # otherwise, `receive_body` has not begun
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._continue)

    def _continue(self) -> None:
        self._has_changed.set()
        if self.is_given_up and self._timeout is not None:
            with suppress(RuntimeError):  # it has just expired
                self._timeout.reschedule(0)  # the body may wait for a message

    async def wait_for_disconnect(self) -> None:
        message = await self.receive()
        if message["type"] != "http.disconnect":  # middleware may repeat the request
            await asyncio.get_running_loop().create_future()


def _begin(receive: Receive) -> AsgiMessage | Awaitable[AsgiMessage]:
    """Return the next message if it is there already, and otherwise an awaitable of it."""
    awaitable = receive()
    if type(awaitable) is not CoroutineType:
        return awaitable
    try:
        return _rest_of(awaitable, awaitable.send(None))
    except StopIteration as end:
        found: AsgiMessage = end.value
        return found


@coroutine
def _rest_of(
    begun: CoroutineType[Any, Any, AsgiMessage], future: Any
) -> Generator[Any, None, AsgiMessage]:
    """Continue a coroutine that has begun and waits for a future of asyncio."""
    try:
        while True:
            try:
                yield future
            except BaseException as error:
                future = begun.throw(error)
            else:
                future = begun.send(None)
    except StopIteration as end:
        found: AsgiMessage = end.value
        return found
