"""``InferProtocol``: an HTTP/1.1 protocol for uvicorn that serves an application without ASGI.

Pass it to uvicorn's ``http`` option. The protocol receives a body straight into its ``BodyBuffer``,
calls the model, and writes the frame to the transport. There is no scope, no event and, for a model
with ``in_event_loop``, no task. llhttp (httptools) parses HTTP.

uvicorn manages processes, sockets, TLS, signals and logs. From its ``Server``, a protocol gets the
configuration and the state: the sets of open connections and of running tasks, for which a graceful
shutdown waits, the default headers and the number of requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

from .._codec.memory import BodyBuffer
from ..errors import TensorwireError, format_seconds
from .body import GRACE_SECONDS, ClientDisconnectedError
from .exchange import Exchange
from .framing import expects_continue, joined_headers
from .memory import OverloadedError
from .service import SHUTTING_DOWN, LateReply, Reply, Route, Service, error_reply

try:
    import httptools
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

    from .uvicorn_asgi import AsgiProtocol
except ModuleNotFoundError as error:
    raise ImportError(
        f"InferProtocol requires {error.name}: pip install 'tensorwire[serve]'"
    ) from None

# The parser processes all requests in a chunk at once, so a chunk must not contain too many.
_SCRATCH_NBYTES = 16 << 10
# If at least this many bytes of a body are missing, they are received without the HTTP parser. A
# new parser is created afterwards, which costs more than the copy of fewer bytes.
_DIRECT_FROM_NBYTES = 16 << 10
_MAX_REPLIES_PER_TURN = 50  # then other connections have their turn
_MAX_HEAD_NBYTES = 64 << 10  # and one chunk
_MAX_HEADERS = 256
_MAX_TARGET_NBYTES = 16 << 10  # before 0.7, httptools parsed at most 64 KiB correctly
# After the last reply, the connection stays open until the client closes it, at most for this time,
# and what arrives is discarded. If it was closed while data arrives, the client might not get the
# reply. The time is longer if the client is probably still sending.
_LINGER_SECONDS = 1.0
_LONG_LINGER_SECONDS = 10.0
# During a shutdown, idle connections stay open for this time, because a request may be on its way.
_LAST_REQUEST_SECONDS = 1.0
# A connection beyond limit_concurrency closes the one that is idle for the longest time. If none is
# idle, this many connections more are accepted, which get replies to requests without inference.
_N_RESERVED_CONNECTIONS = 16
_FIRST_REQUEST_SECONDS = 5.0  # until the first request begins, if timeout_keep_alive is 0
# A frame up to this size is joined and written with its head. A larger one is written in pieces:
# each when the transport has sent enough of the previous one. A TLS transport encrypts a piece at
# once, and does not count it as unsent.
_MAX_JOINED_NBYTES = 64 << 10
_PIECE_NBYTES = 1 << 20
_TLS_PIECE_NBYTES = 64 << 10
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_BODY_HEADERS = (b"content-length", b"transfer-encoding")

logger = logging.getLogger("uvicorn.error")
access_logger = logging.getLogger("uvicorn.access")


class _Scratch(threading.local):
    """The memory that the connections of an event loop receive into, one after another."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_SCRATCH_NBYTES))


_scratch = _Scratch()


class State(Enum):
    """What a connection waits for, which determines its deadline."""

    IDLE = auto()  # the beginning of the next request
    RECEIVING = auto()  # the rest of the next request
    READY = auto()  # its turn: the next request has arrived
    RUNNING = auto()  # the reply to a request
    SENDING = auto()  # the client, which has not read enough of a reply
    LINGERING = auto()  # the client, which closes the connection after the last reply
    CLOSING = auto()  # the transport, which sends what it has, and closes the connection
    CLOSED = auto()  # nothing


# In Python 3.11, an attribute of an Enum class takes as long as a call.
IDLE, RECEIVING, READY, RUNNING, SENDING, LINGERING, CLOSING, CLOSED = State
_BEFORE_READY = (IDLE, RECEIVING)


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request on a connection, from its first byte to its reply."""

    method: bytes = b""  # empty until the head is complete, or if it is invalid
    url: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    http_version: str = "1.1"
    keep_alive: bool = False
    sent_continue: bool = False
    is_received: bool = False  # the whole request has arrived
    exchange: Exchange = field(init=False)  # when the head is complete


class InferProtocol(asyncio.BufferedProtocol):
    """An HTTP protocol for uvicorn that serves the application of ``create_app`` without ASGI.

    uvicorn creates an instance for each connection. ASGI middleware does not see the requests.
    Connections are never upgraded: a request with an ``Upgrade`` header is answered like any other,
    and there are no WebSockets. For any other application, uvicorn's own protocol for httptools is
    used, with a limit for headers.

    Examples
    --------
    >>> import uvicorn
    >>> from tensorwire.server import InferProtocol
    >>> uvicorn.run("module:app", http=InferProtocol)                    # doctest: +SKIP
    """

    def __new__(cls, config: Any, *args: Any, **options: Any) -> Any:
        if not config.loaded:
            config.load()
        if service_of(config.loaded_app) is None:
            return AsgiProtocol(config, *args, **options)
        return super().__new__(cls)

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        service = service_of(config.loaded_app)
        assert service is not None
        self.service = service
        self.config = config
        self.server_state = server_state
        self.loop: asyncio.AbstractEventLoop = _loop or asyncio.get_running_loop()
        self.has_access_log = access_logger.hasHandlers()
        # Each request has a copy: it does not see the variables that another one has set.
        is_reset = getattr(config, "reset_contextvars", False)  # not in all versions
        self.context = Context() if is_reset else copy_context()
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.client: Any = None
        self.is_tls = False
        self.is_excess = False  # there were more than limit_concurrency connections
        self.state = IDLE
        # The time that the client has in this state, until the deadline is set. The timer is not
        # moved whenever the deadline changes: when it expires early, it begins again.
        self.seconds: float | None = None
        self.since = math.inf  # when the client got this time
        self.deadline = math.inf
        self.timer: asyncio.TimerHandle | None = None
        # The requests whose replies have not been sent, in their order. The last one may still
        # arrive.
        self.requests: deque[QueuedRequest] = deque()
        # Receiving.
        self.parser: Any = httptools.HttpRequestParser(self)
        self.arriving: QueuedRequest | None = None
        self.headers: list[tuple[bytes, bytes]] | None = None  # while its head arrives
        self.direct: BodyBuffer | None = None  # its body, if it is received without the parser
        # Received without body data after the chunk in which a request begins: its head, its
        # trailers and the headers of chunks.
        self.head_nbytes = 0
        self.is_reading_paused = False
        self.is_ended = False  # what arrives is discarded
        self.is_eof = False  # the client has closed the connection, or its sending direction
        self.is_shutting_down = False
        # Sending.
        self.is_writing_paused = False
        self.pieces: Iterator[memoryview] = iter(())  # the rest of the reply
        self.n_unsent = 0  # bytes in the write buffer when the deadline was set

    # --- callbacks of the transport --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # those of uvloop are not subclasses
        connections, limit = self.server_state.connections, self.config.limit_concurrency
        connections.add(self)
        n, replace = len(connections), self._replace_idle
        if limit is not None and n > limit and not replace(connections, _LAST_REQUEST_SECONDS):
            self.is_excess = True
            if n > limit + _N_RESERVED_CONNECTIONS and not (
                _abort_one(connections) or replace(connections, 0)
            ):
                # To count it.
                self.service.describe_failure(OverloadedError.by_limit_concurrency(limit))
                self.transport.abort()
                return
        peer = transport.get_extra_info("peername")
        self.client = peer[:2] if isinstance(peer, tuple) else None  # a Unix socket has none
        self.is_tls = self.transport.get_extra_info("sslcontext") is not None
        self._enter(IDLE, self.config.timeout_keep_alive or _FIRST_REQUEST_SECONDS)
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self.state, self.seconds = CLOSED, None
        self.server_state.connections.discard(self)
        for request in self.requests:
            request.exchange.thread_call.disconnect()
            request.exchange.close()
        if self.timer is not None:
            self.timer.cancel()
        self.requests.clear()
        self.pieces = iter(())
        self.parser = self.arriving = self.direct = self.timer = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return _scratch.view if self.direct is None else self.direct.remaining()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_ended or self.transport.is_closing():
            return
        body = self.direct
        if body is None:
            self._parse(_scratch.view[:nbytes])
        else:
            body.advance(nbytes)
            if body.complete:
                self.direct = None
                # The old parser is in the middle of the body.
                self.parser = httptools.HttpRequestParser(self)
                self._complete_request()
        if self.state in _BEFORE_READY:
            self._await_next()
        if self.state is READY:
            if not self.requests[0].exchange.is_immediate:
                self._advance()
                return
            # First receive what other connections have received. Clients that get several replies
            # at once send several requests at once, so that there are fewer system calls.
            self.loop.call_soon(self._advance)
            if len(self.requests) == 1:
                return
        self._settle()

    def eof_received(self) -> bool:
        """Return whether to keep the transport open, because a reply has not been sent yet.

        The client may still read replies. But probably it has closed the connection, so calls that
        wait for a thread are dropped.
        """
        self._advance()
        self.is_eof = self.is_ended = True
        for request in self.requests:
            request.exchange.thread_call.disconnect()
        is_replying = self.state in (RUNNING, SENDING) and len(self.requests) == 1
        if self.requests and self.requests[-1] is self.arriving and not is_replying:
            self.requests.pop().exchange.close()  # it will not arrive completely
        if self.requests and not self.is_tls:  # a TLS connection cannot be half-closed
            self.requests[-1].keep_alive = False
            return True
        self._close()
        return False

    def pause_writing(self) -> None:
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        # Not at once: asyncio does not expect that this closes the transport.
        self.loop.call_soon(self._resume_sending)

    def shutdown(self) -> None:
        """Close the connection after the replies to the requests whose head has arrived.

        uvicorn calls this when it shuts down. From now on, the client has GRACE_SECONDS for what
        the connection waits for. An idle connection accepts one more request.
        """
        self.is_shutting_down = True
        if self.requests:
            last = self.requests[-1]
            last.keep_alive = False
            self.is_ended = self.is_ended or last.is_received
        if self.state is IDLE:
            self._enter(IDLE, _LAST_REQUEST_SECONDS)
            self._settle()
        elif self.state in (RECEIVING, SENDING, CLOSING):
            self._enter(self.state, self.timeout)
            self._settle()

    # --- states and deadlines --------------------------------------------------------------------

    @property
    def timeout(self) -> float:
        """The time in which the client must send a request, and must read something of a reply."""
        timeout = self.service.receive_timeout or math.inf
        return min(timeout, GRACE_SECONDS) if self.is_shutting_down else timeout

    def _enter(self, state: State, seconds: float) -> None:
        """Change to a state that waits for the client. `_settle` sets the deadline."""
        self.state, self.seconds = state, seconds

    def _await_next(self) -> None:
        """Enter the state in which the next request is."""
        request = self.requests[0] if self.requests else None
        if request is None and self.arriving is None:
            if self.state is not IDLE:
                self._enter(IDLE, self.config.timeout_keep_alive)
            return
        if request is not None and (
            request.exchange.is_rejected
            or (request.is_received and not request.exchange.is_waiting)
        ):
            self.state = READY
            return
        if self.state is not RECEIVING:
            self._enter(RECEIVING, self.timeout)
        if request is not None and not (request.sent_continue or request.exchange.is_waiting):
            request.sent_continue = True
            if request.http_version != "1.0" and expects_continue(request.headers):
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _replace_idle(self, connections: set[Any], seconds: float) -> bool:
        """Close the connection that has been idle for the longest time, and for these seconds.

        Return whether there is one.
        """
        latest = self.loop.time() - seconds
        idle = [each for each in connections if each.is_idle and each.since <= latest]
        if idle:
            min(idle, key=lambda each: each.since)._close()
        return bool(idle)

    @property
    def is_idle(self) -> bool:
        """Whether the connection waits for a request, or for the rest of its head."""
        return self.state in _BEFORE_READY and not self.requests

    def _close(self) -> None:
        self.transport.close()
        timeout = self.timeout
        self._enter(CLOSING, timeout if timeout < math.inf else _LONG_LINGER_SECONDS)
        self._settle()

    def _settle(self) -> None:
        """Receive no further chunk while several requests or a body wait, and set the deadline."""
        is_waiting = len(self.requests) > 1 or (
            bool(self.requests) and self.requests[0].exchange.is_waiting
        )
        if self.is_reading_paused != is_waiting and not self.transport.is_closing():
            self.is_reading_paused = is_waiting
            if self.is_reading_paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        if self.seconds is not None:
            self._set_deadline(self.seconds)
            self.seconds = None

    def _set_deadline(self, seconds: float) -> None:
        self.since = self.loop.time()
        self.deadline = self.since + seconds
        if self.timer is not None and self.timer.when() > self.deadline:
            self.timer.cancel()
            self.timer = None
        self._start_timer()

    def _start_timer(self) -> None:
        if self.timer is None and self.deadline < math.inf:
            self.timer = self.loop.call_at(self.deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self.timer = None
        if self.deadline > self.loop.time():
            self._start_timer()
            return
        if self.state is SENDING:
            n_unsent = self.transport.get_write_buffer_size()
            if n_unsent == self.n_unsent:
                self.transport.abort()
            else:
                self.n_unsent = n_unsent
                self._set_deadline(self.timeout)
        elif self.state is CLOSING:
            self.transport.abort()
        elif self.state in (IDLE, LINGERING):
            self._close()
        elif self.state is RECEIVING:
            self._reject_late()
            self._await_next()
            self._advance()

    # --- receiving -------------------------------------------------------------------------------

    def _parse(self, data: memoryview) -> None:
        """Parse received bytes, and apply the limits to a request that has not arrived yet."""
        self.head_nbytes += len(data)
        while True:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._replay_head()
            except httptools.HttpParserError:
                if not self.is_ended:
                    logger.warning("Invalid HTTP request received.")
                    self._reject(TensorwireError("Invalid HTTP request received.", status=400))
                return
        request = self.arriving
        if request is None:
            return
        if self.head_nbytes > _MAX_HEAD_NBYTES:
            text = f"the headers or trailers exceed the limit of {_MAX_HEAD_NBYTES} bytes"
            self._reject(TensorwireError(text, status=431))
        elif request.method:
            self._receive_directly(request)

    def _receive_directly(self, request: QueuedRequest) -> None:
        """Receive a large rest of a body without the parser."""
        body = request.exchange.body
        if body is None or body.is_waiting:
            return
        length = body.framing.content_length
        if length and length - len(body.buffer) >= _DIRECT_FROM_NBYTES:
            self.direct = body.buffer

    def _resume_request(self) -> None:
        """Callback of an exchange: there is memory for the body."""
        if self.state is CLOSED:
            return
        if self.arriving is not None and self.arriving.method:
            self._receive_directly(self.arriving)
        if self.state is RECEIVING:
            self._enter(RECEIVING, self.timeout)
            self._await_next()
            self._advance()

    def _replay_head(self) -> None:
        """Continue after the head of a request with an upgrade, which is ignored (RFC 9110 7.8).

        httptools does not parse the body of such a request. A new parser does, after the same head
        without the upgrade.
        """
        headers = () if self.arriving is None else self.arriving.headers
        lines = joined_headers(pair for pair in headers if pair[0] in _BODY_HEADERS)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)

    # The parser also calls these methods for trailers and for a head that is replayed, and for what
    # follows the last request in a chunk, where no request arrives.

    def on_message_begin(self) -> None:
        """Callback of the parser: a message begins."""
        if self.arriving is None and not self.is_ended:
            self.arriving = QueuedRequest()
            self.headers = self.arriving.headers
            self.head_nbytes = 0  # the chunk may also contain other requests

    def on_url(self, url: bytes) -> None:
        """Callback of the parser: a part of the target."""
        if self.arriving is not None and self.headers is not None:
            self.arriving.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Callback of the parser: a header or a trailer."""
        headers = self.headers
        if headers is not None and len(headers) <= _MAX_HEADERS:
            headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Callback of the parser: the headers are complete."""
        request, parser = self.arriving, self.parser
        if request is None or self.headers is None:
            return
        self.headers = None
        request.method = method = parser.get_method()
        request.http_version = version = parser.get_http_version()
        is_last = version == "1.0" or method == b"CONNECT"
        request.keep_alive = (
            not is_last and not self.is_shutting_down and parser.should_keep_alive()
        )
        route = self._route(request)
        # Keyword arguments would take longer.
        request.exchange = Exchange(
            self.service, route, request.headers, None, self._resume_request
        )
        limit, state = self.config.limit_concurrency, self.server_state
        if limit is not None and self.is_excess:
            self.is_excess = len(state.connections) > limit
        if len(request.headers) > _MAX_HEADERS:
            text = f"the request has more than {_MAX_HEADERS} headers"
            request.exchange.reject(TensorwireError(text, status=431))
        elif self.is_excess or (limit is not None and len(state.tasks) >= limit):
            if isinstance(route, LateReply):  # health checks, for example
                request.keep_alive = False
            else:
                request.exchange.reject(OverloadedError.by_limit_concurrency(limit))
        self.requests.append(request)

    def _route(self, request: QueuedRequest) -> Route:
        url = request.url
        if request.method == b"POST":
            model = self.service.infer_routes.get(url)
            if model is not None:
                return model
        if len(url) > _MAX_TARGET_NBYTES:
            text = f"the request target is {len(url)} bytes long; the limit is "
            return error_reply(f"{text}{_MAX_TARGET_NBYTES}", 414)
        try:
            path = httptools.parse_url(url).path or b"/"
        except httptools.HttpParserInvalidURLError:  # the authority of CONNECT
            path = url
        return self.service.route(request.method.decode(), unquote(path.decode("ascii")))

    def on_body(self, body: bytes) -> None:
        """Callback of the parser: a part of the body."""
        self.head_nbytes = 0
        if self.arriving is not None:
            self.arriving.exchange.write(body)

    def on_message_complete(self) -> None:
        """Callback of the parser: the message is complete."""
        if self.arriving is None or self.parser.should_upgrade():
            return  # the body of an upgrade follows: see `_replay_head`
        if not self.parser.should_keep_alive():  # also because of a trailer
            self.arriving.keep_alive = False
        self._complete_request()

    def _complete_request(self) -> None:
        request, self.arriving = self.arriving, None
        assert request is not None
        request.is_received = True
        if request.exchange.is_rejected or not request.keep_alive:
            self.is_ended = True  # RFC 9112 9.6

    def _reject(self, error: TensorwireError) -> None:
        """Reply with an error to the request that arrives, and accept no further bytes."""
        request = self.arriving
        if request is None or not request.method:
            request = QueuedRequest()
            request.exchange = Exchange(self.service, error_reply(str(error), error.status), ())
            self.requests.append(request)
        request.exchange.reject(error)
        self._end_receiving()

    def _reject_late(self) -> None:
        waiting = [each for each in self.requests if each.exchange.is_waiting]
        request = waiting[0] if waiting else self.arriving
        assert request is not None
        timeout = self.service.receive_timeout
        if self.is_shutting_down and not request.method:
            self._reject(SHUTTING_DOWN)
        elif request.method:
            if self.is_shutting_down:
                request.exchange.reject(SHUTTING_DOWN)
            else:
                request.exchange.reject_late()
            self._end_receiving()
        elif timeout is not None:
            message = f"the headers did not arrive within {format_seconds(timeout)}"
            self._reject(TensorwireError(message, status=408))

    def _end_receiving(self) -> None:
        self.is_ended = True
        self.arriving = self.direct = None

    # --- replies ---------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Reply to the requests in their order, as far as possible.

        A reply may be sent at once. The loop replaces a recursion, because thousands of requests
        may be waiting.
        """
        n_replies = 0
        try:
            while self.state is READY and not self.transport.is_closing():
                if n_replies == _MAX_REPLIES_PER_TURN:
                    self.loop.call_soon(self._advance)
                    break
                n_replies += 1
                self._reply(self.requests[0])
        except BaseException:
            self.transport.abort()
            raise
        self._settle()

    def _reply(self, request: QueuedRequest) -> None:
        self.state = RUNNING
        context = self.context.copy()
        reply = context.run(request.exchange.reply)
        if isinstance(reply, Reply):
            self._send(request, reply)
            return
        # A graceful shutdown waits for the task.
        task = self.loop.create_task(self._reply_later(request, reply), context=context)
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    async def _reply_later(self, request: QueuedRequest, awaitable: Awaitable[Reply]) -> None:
        try:
            reply = await awaitable
        except ClientDisconnectedError:
            if self.state is not CLOSED:
                self._close()
            return
        except asyncio.CancelledError as error:
            # A graceful shutdown takes too long, or a model has cancelled its own task.
            if self.state is CLOSED:
                return
            if self.is_shutting_down:
                subject = "; ".join(getattr(error, "__notes__", ())) or request.url.decode()
                logger.warning("the shutdown has cancelled a request: %s", subject)
            reply = self.service.failure_reply(SHUTTING_DOWN if self.is_shutting_down else error)
            request.keep_alive = False
        try:
            self._send(request, reply)
        except BaseException:  # of a handler of the log, for example
            self.transport.abort()
            raise
        self._advance()

    def _send(self, request: QueuedRequest, reply: Reply) -> None:
        """Write a reply. The transport refers to large buffers until the client has read them."""
        transport, body = self.transport, reply.body
        if transport.is_closing():
            return
        if request.exchange.is_rejected:
            request.keep_alive = False
        if self.has_access_log and request.method:
            self._log(request, reply)
        if not request.keep_alive:
            reply = reply.closing()
        headers = (*self.server_state.default_headers, *reply.headers())
        head = b"%b%b\r\n" % (_STATUS_LINES[reply.status], joined_headers(headers))
        if request.method == b"HEAD":
            transport.write(head)
        elif len(body) > _MAX_JOINED_NBYTES:
            transport.write(head)
            self.pieces = reply.chunks(_TLS_PIECE_NBYTES if self.is_tls else _PIECE_NBYTES)
        else:
            transport.write(head + bytes(body))
        self._continue_sending()

    def _continue_sending(self) -> None:
        while not self.is_writing_paused:
            piece = next(self.pieces, None)
            if piece is None:
                self._end_request()
                return
            self.transport.write(piece)
        self._enter(SENDING, self.timeout)  # the next reply waits, which bounds the memory
        self.n_unsent = self.transport.get_write_buffer_size()

    def _resume_sending(self) -> None:
        if self.state is SENDING and not self.is_writing_paused:
            self._continue_sending()
            self._advance()

    def _end_request(self) -> None:
        """The reply to the first request has been sent: end the connection if it is the last."""
        request = self.requests.popleft()
        request.exchange.close()
        self.server_state.total_requests += 1
        if request.keep_alive:
            self._await_next()
            return
        self._end_receiving()
        for each in self.requests:
            each.exchange.thread_call.disconnect()
            each.exchange.close()
        self.requests.clear()
        if self.is_eof or (self.is_tls and request.is_received):
            self._close()
            return
        seconds = _LINGER_SECONDS if request.is_received else _LONG_LINGER_SECONDS
        self._enter(LINGERING, min(seconds, self.timeout))
        if not self.is_tls:
            self.transport.write_eof()

    def _log(self, request: QueuedRequest, reply: Reply) -> None:
        scope: Any = {"type": "http", "client": self.client, "headers": request.headers}
        if self.config.proxy_headers:  # find the address that a proxy has forwarded
            proxy_headers = ProxyHeadersMiddleware(_no_app, self.config.forwarded_allow_ips)
            with suppress(StopIteration):
                proxy_headers(scope, None, None).send(None)  # type: ignore[arg-type]
        client = ":".join(map(str, scope["client"] or ()))
        target, version = request.url.decode("ascii"), request.http_version
        access_logger.info(
            '%s - "%s %s HTTP/%s" %d',
            *(client, request.method.decode(), target, version, reply.status),
            extra={"nbytes": 0 if request.method == b"HEAD" else len(reply.body)},
        )


def _abort_one(connections: set[Any]) -> bool:
    """Abort a connection that only waits for its client after the last reply, if there is one."""
    for each in connections:
        if each.state in (LINGERING, CLOSING):
            each.transport.abort()
            each.state = CLOSED
            return True
    return False


def service_of(app: Any) -> Service | None:
    """Return the application of ``create_app`` that uvicorn has loaded; None for any other."""
    if isinstance(app, ProxyHeadersMiddleware):  # uvicorn adds it
        app = app.app
    return app if isinstance(app, Service) else None


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    """Do nothing. The middleware for proxy headers needs an application to call."""
