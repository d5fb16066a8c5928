"""``AsgiProtocol``: uvicorn's protocol for ASGI applications, without its gaps in security.

httptools stops parsing after the head of a request with an upgrade. uvicorn then takes the body,
which may arrive later, for the next request. This allows request smuggling behind a proxy. uvicorn
also keeps in memory a head of any length, and any number of requests of a connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import httptools
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .asgi import IS_SILENT
from .body import DEFAULT_RECEIVE_TIMEOUT
from .body_memory import TICK_SECONDS, is_silent, outstanding_nbytes
from .connection import FIRST_REQUEST_SECONDS, RECEIVE_SECONDS
from .errors import ClientDisconnectedError
from .framing import joined_headers
from .receiver import MAX_HEAD_NBYTES, SCRATCH_NBYTES
from .service import GRACE_SECONDS, Service
from .socket_state import PeerState, peer_state, unreceived_nbytes, unsent_nbytes


class AsgiProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit for heads, and upgrades only to WebSockets.

    Clients of ``create_app`` that send no request, or read nothing of a response, are disconnected
    in time.
    """

    transport: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser: Any = None  # while there is no connection
        self.service = service_of(self.app)
        timeout = None if self.service is None else self.service.receive_timeout
        self.receive_timeout = timeout
        # How long a client may read nothing, and how often it is looked at.
        self.unread_seconds = DEFAULT_RECEIVE_TIMEOUT if timeout is None else timeout
        self.look_seconds = min(TICK_SECONDS, self.unread_seconds / 2)
        self.context = copy_context()
        self.head_deadline = math.inf  # of the head that arrives
        self.watching: asyncio.TimerHandle | None = None  # while writing is paused, or longer
        # Bytes that the client had not read at the last look; infinite if something was sent since.
        self.n_unsent = math.inf
        self.n_stalled_looks = 0  # in a row at which this number was not smaller
        self.head_nbytes = 0  # parsed since the message began, or the last part of its body
        self.body_nbytes = 0  # of the last request
        self.parts: list[bytes] = []  # of the body, which have just been parsed
        self.unparsed: Any = memoryview(b"")  # what has been received while requests wait
        self.running: Any = None  # the request that is answered; `cycle` is the last one
        self.polling: asyncio.TimerHandle | None = None  # while requests wait in `pipeline`

    def connection_made(self, transport: Any) -> None:
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        if self.is_tls:
            transport = _TlsTransport(transport, self._start_watch)
        super().connection_made(transport)
        self.parser = _Parser(self)
        self.flow = _Flow(self)
        limit_unsent(transport)
        if self.service is not None:
            seconds = self.timeout_keep_alive or FIRST_REQUEST_SECONDS
            self._expect_request_until(self.loop.time() + seconds)

    # uvicorn limits the time between a response and the first byte of the next request.

    def _expect_request_until(self, deadline: float) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(deadline, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        # After the process was suspended, the event loop runs what is due before it receives.
        close = super().timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(RECEIVE_SECONDS, close)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.running = cycle
        # uvicorn would pass on the variables that an earlier request has set.
        start = super()._start_asgi_task
        self.context.copy().run(start, cycle, partial(self._run, cycle, app))

    async def _run(self, cycle: Any, app: Any, scope: Any, *arguments: Any) -> Any:
        """Run an application. If its response ends early, the client has some time to read it."""
        extensions = scope.setdefault("extensions", {})
        extensions[IS_SILENT] = {"function": self._is_silent}
        try:
            return await app(scope, *arguments)
        finally:
            extensions.pop(IS_SILENT, None)  # it refers to the connection
            is_early = cycle.response_started and not cycle.response_complete
            if is_early and self in self.connections:  # uvicorn closes it now
                self.loop.call_later(GRACE_SECONDS, self._abort)

    def _abort(self) -> None:
        if self in self.connections:  # asyncio cannot abort what is lost
            self.transport.abort()

    # uvicorn tells only the last request that the connection has ended, and only in
    # `connection_lost`, before which uvloop closes the transport.

    def eof_received(self) -> None:
        self._client_has_gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnect()
        self._unset_keepalive_if_required()
        # What refers to this object would keep all memory until a garbage collection.
        self.parser = None
        for timer in (self.watching, self.polling):
            if timer is not None:
                timer.cancel()
        if self.is_tls:
            self.transport.on_close = lambda: None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.n_unsent = math.inf
        if self.receive_timeout is not None:
            self._start_watch()

    def _start_watch(self) -> None:
        if self.watching is None:
            self.watching = self.loop.call_later(self.look_seconds, self._watch)

    def _watch(self) -> None:
        """Disconnect a client that reads nothing of a response, or does not end TLS.

        Looks are counted, and not seconds, because the event loop may have been blocked.
        """
        self.watching = None
        is_closing = self.is_tls and self.transport.is_closing()
        if self not in self.connections or not (is_closing or self.flow.write_paused):
            self.n_unsent = math.inf
            return
        n_before, self.n_unsent = self.n_unsent, unsent_nbytes(self.transport)
        self.n_stalled_looks = self.n_stalled_looks + 1 if self.n_unsent >= n_before else 0
        limit, seconds = self.unread_seconds, self.look_seconds
        if is_closing and self.n_unsent <= 1:  # many clients do not end TLS
            limit = min(limit, GRACE_SECONDS)
        if self.n_stalled_looks * seconds >= limit:
            self._abort()
        else:
            self.watching = self.loop.call_later(seconds, self._watch)

    def send_400_response(self, msg: str) -> None:
        running = self.running
        if running is None or running.response_complete or not running.response_started:
            super().send_400_response(msg)
        else:  # it would be taken for a part of the body
            self.transport.close()
        self._disconnect()

    def _should_upgrade(self) -> bool:
        # The response to the request before would be sent to the WebSocket.
        return self._is_idle and bool(super()._should_upgrade())

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        self.parser = None  # there is no `connection_lost`
        self.unparsed = memoryview(b"")  # uvicorn, too, drops what arrives before its response

    def _disconnect(self) -> None:
        """Forget the requests: they get no response."""
        self.pipeline.clear()
        self.unparsed = memoryview(b"")
        if self.running is not None:
            self.running.disconnected = True
            self.running.message_event.set()

    def _is_silent(self) -> bool:
        """Return whether the client sends nothing more of a body that waits for memory.

        Raises ClientDisconnectedError if the client has gone.
        """
        running, n_outstanding = self.running, self._n_outstanding
        n_unreceived, client = unreceived_nbytes(self.transport), peer_state(self.transport)
        if client is PeerState.GONE or (client and n_outstanding > n_unreceived):
            self._client_has_gone()
        if running.disconnected:
            raise ClientDisconnectedError("the client closed the connection while its body waited")
        n_held = len(running.body)  # uvicorn has received it, and the application has not
        return is_silent(n_held + n_unreceived, n_held + n_outstanding)

    @property
    def _n_outstanding(self) -> int:
        """A lower bound of the bytes of the body that the transport has not received."""
        if not self.running.more_body:
            return 0
        length = self._content_length
        return 1 if length is None else outstanding_nbytes(length - self.body_nbytes, self.is_tls)

    @property
    def _content_length(self) -> int | None:
        """The length of the last request whose head has arrived."""
        return next((int(v) for k, v in self.headers if k == b"content-length"), None)

    def _client_has_gone(self) -> None:
        self._disconnect()
        self.flow.resume_reading()  # until the transport knows it, too
        if self.is_tls:  # asyncio would wait until the client reads the rest
            self.loop.call_soon(self.transport.close)

    def _poll(self) -> None:
        """Look whether the client has gone: uvicorn does not receive while a request waits."""
        self.polling = None
        if self.pipeline and peer_state(self.transport):
            self._client_has_gone()
        elif self.pipeline:
            self.polling = self.loop.call_later(TICK_SECONDS, self._poll)

    def data_received(self, data: bytes) -> None:
        if self.running is not None and self.running.disconnected:
            return
        if self.receive_timeout is not None and self._is_idle:
            self.head_deadline = min(self.head_deadline, self.loop.time() + self.receive_timeout)
        # A TLS transport may pass on more after it was paused.
        self.unparsed = memoryview(b"".join((self.unparsed, data)) if self.unparsed else data)
        self._parse()
        if self.head_deadline < math.inf:
            self._expect_request_until(self.head_deadline)

    def _parse(self) -> None:
        """Parse what has been received, while no request waits for the reply to the one before.

        The parser processes all requests of a piece, which must not be many.
        """
        while self.unparsed and not (self.pipeline or self.transport.is_closing()):
            n = SCRATCH_NBYTES
            if len(self.unparsed) > n and self.headers:  # a body need not be split
                n = max(n, (self._content_length or 0) - self.body_nbytes)
            piece, self.unparsed = self.unparsed[:n], self.unparsed[n:]
            self.head_nbytes += len(piece)
            super().data_received(piece)
            self._pass_on_parts()
            if self.head_nbytes > MAX_HEAD_NBYTES and not self.transport.is_closing():
                self.send_400_response(f"The headers exceed the limit of {MAX_HEAD_NBYTES} bytes.")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._parse()
        self.flow.resume_reading()

    def on_message_begin(self) -> None:
        self.head_nbytes = self.body_nbytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.head_deadline = math.inf
        if self.parser.get_method() == b"CONNECT":  # an upgrade without the header
            raise ValueError("tunnels are not supported")  # the response has status 400
        if not self.ignores_upgrade():
            super().on_headers_complete()
        if self.pipeline and self.polling is None:
            self.polling = self.loop.call_later(TICK_SECONDS, self._poll)

    def on_body(self, body: bytes) -> None:
        self.head_nbytes = 0
        self.body_nbytes += len(body)
        self.parts.append(body)

    def _pass_on_parts(self) -> None:
        """Pass on the parts together: chunks of one byte would take long one by one."""
        if self.parts:
            body, self.parts = b"".join(self.parts), []
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._pass_on_parts()
        if not self.ignores_upgrade():
            super().on_message_complete()

    def ignores_upgrade(self) -> bool:
        """Whether the request is parsed again, without the upgrade (RFC 9110 7.8)."""
        return self.parser.should_upgrade() and not self._should_upgrade()


def service_of(app: Any) -> Service | None:
    """Return the application of ``create_app`` that uvicorn has loaded; None for any other."""
    if isinstance(app, ProxyHeadersMiddleware):  # uvicorn adds it
        app = app.app
    return app if isinstance(app, Service) else None


def limit_unsent(transport: Any) -> None:
    """Make a transport pause the protocol while it has more than one byte to send.

    Until then, it refers to the memory of a response. A TLS transport has copies.
    """
    if transport.get_extra_info("sslcontext") is None:
        transport.set_write_buffer_limits(high=1, low=0)


class _TlsTransport:
    """A transport that is closed once, and calls ``on_close``.

    uvicorn closes some twice. After the second time, asyncio cannot abort a TLS connection.
    """

    def __init__(self, transport: Any, on_close: Callable[[], object]) -> None:
        self._transport = transport
        self.on_close = on_close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()
        self.on_close()


class _Flow(FlowControl):
    """Does not receive while requests wait, or a TLS client of ``create_app`` does not read.

    uvicorn resumes whenever an application receives. TLS itself responds to some messages of the
    client.
    """

    def __init__(self, protocol: AsgiProtocol) -> None:
        super().__init__(protocol.transport)
        self._waiting = protocol.pipeline
        self._needs_reader = protocol.is_tls and protocol.service is not None
        self._resumes = False  # when the client has read

    def resume_reading(self) -> None:
        self._resumes = self._needs_reader and self.write_paused
        if not (self._waiting or self._resumes):
            super().resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._needs_reader and not self.read_paused:
            self._resumes = True
            self.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._resumes:
            self.resume_reading()


class _Parser:
    """A parser of httptools that continues after a request whose upgrade is ignored."""

    def __init__(self, protocol: AsgiProtocol) -> None:
        self._protocol = protocol
        self._start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def _start(self) -> None:
        self._parser: Any = httptools.HttpRequestParser(self._protocol)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn

    def feed_data(self, data: bytes) -> None:
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                protocol = self._protocol
                if not protocol.ignores_upgrade():
                    raise
                rest = rest[upgrade.args[0] :]
                line = protocol.url, self._parser.get_http_version().encode()
                others = joined_headers(pair for pair in protocol.headers if pair[0] != b"upgrade")
                head = b"%b %b HTTP/%b\r\n%b\r\n" % (self._parser.get_method(), *line, others)
                self._start()
                self._parser.feed_data(head)
