"""``InferProtocol``: an HTTP protocol for uvicorn that answers inference requests itself.

Pass it to uvicorn's ``http`` option. A ``POST`` to the infer endpoint of a model does not travel
through ASGI: the protocol receives the body into a ``BodyBuffer``, calls the model, and writes the
frame to the transport. There is no scope, no event and, for a model with ``in_event_loop``, no
task. The rest of a large body is received from the socket straight into the buffer.

All other requests, and all requests to an application that ``create_app`` did not create, are
handled by the base class, which calls the ASGI application. llhttp (httptools) parses HTTP.

The base class keeps a queue of pipelined requests, and the state that uvicorn needs for a graceful
shutdown. ``InferExchange`` therefore has the attributes of uvicorn's ``RequestResponseCycle`` that
the base class uses, and is started by ``_start_asgi_task``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import get_client_addr

from .._codec.memory import BodyBuffer
from .._codec.messages import Frame
from ..errors import TensorwireError
from .body import MAX_DISCARDED_NBYTES, CompressedBody, finish_body, open_body
from .framing import Framing, frame_head
from .model import ServedModel
from .service import CLOSE, Reply, Service, error_reply

# If at least this many bytes of a body are missing, they are received without the HTTP parser. For
# fewer bytes, setting another protocol on the transport costs more than the copy.
_DIRECT_FROM_NBYTES = 64 << 10
_MAX_HEAD_NBYTES = 64 << 10
# After the reply to a request whose body is too large to be discarded, the connection stays open
# for this time. If it was closed at once, a client that is still sending might not get the reply.
_LINGER_SECONDS = 10.0
# A frame up to this size is joined and written with its head. For a larger one, writelines costs
# less than the copy.
_MAX_JOINED_NBYTES = 64 << 10


class InferExchange:
    """An inference request and its response on one connection."""

    def __init__(
        self, protocol: InferProtocol, model: ServedModel, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.protocol = protocol
        self.model = model
        self.headers = headers
        self.url = protocol.url
        self.http_version = protocol.parser.get_http_version()
        self.header_length: int | None = None
        # None after an error, and from the call of the model on.
        self.body: BodyBuffer | CompressedBody | None = None
        self.error: TensorwireError | None = None
        self.discarded_nbytes = 0  # the part of the body that arrived after the error
        self.expects_continue = protocol.expect_100_continue
        self.has_turn = False  # the responses to all earlier requests have been sent
        self.is_received = False  # the whole request has arrived
        self.is_answered = False  # the response has been passed to the transport
        # attributes of uvicorn's RequestResponseCycle
        self.keep_alive = self.http_version != "1.0" and protocol.parser.should_keep_alive()
        self.response_complete = False
        self.disconnected = False
        self.message_event = self  # the base class calls message_event.set()
        try:
            framing = Framing(headers)
            self.header_length = framing.header_length
            self.body = open_body(framing, protocol.service.max_body)
        except TensorwireError as error:
            self.error = error
            if self.expects_continue or error.status == 413:
                self.keep_alive = False

    def set(self) -> None:
        """Do nothing. uvicorn wakes the receive function of an ASGI application here."""

    def start(self) -> None:
        """Begin this exchange: the responses to all earlier requests have been sent."""
        self.has_turn = True
        if not self.is_received and self.protocol.receive_timer is not None:
            self.protocol.start_receive_timer()  # reading was paused until now
        if self.is_received or (self.error is not None and not self.keep_alive):
            self.run()
        elif self.expects_continue and self.error is None and self.http_version != "1.0":
            self.protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def receive(self, chunk: bytes) -> None:
        """Append a chunk to the body, or discard it after an error."""
        if self.body is not None:
            try:
                self.body.write(chunk)
            except TensorwireError as error:
                self.body, self.error = None, error
        elif not self.is_answered:
            self.discarded_nbytes += len(chunk)
            if self.discarded_nbytes > MAX_DISCARDED_NBYTES:
                self.keep_alive = False
                if self.has_turn:
                    self.run()

    def receive_end(self) -> None:
        """The whole request has arrived: run the model if it is the turn of this exchange."""
        self.is_received = True
        if self.is_answered:  # the rest of the body has been discarded
            self.protocol.transport.close()
        elif self.has_turn:
            self.run()

    def reject(self, error: TensorwireError) -> None:
        """Reply with an error before the request has arrived, and close the connection."""
        self.body, self.error, self.keep_alive = None, self.error or error, False
        self.is_received = True  # do not wait for the rest
        if self.has_turn:
            self.run()

    def run(self) -> None:
        """Run the model, and send the response."""
        model = self.model
        if self.protocol.transport.is_closing():  # an earlier response has closed the connection
            self.is_answered = self.response_complete = True
            return
        try:
            if self.error is not None:
                raise self.error
            assert self.body is not None
            body = finish_body(self.body)
            self.body = None  # the memory is released with the last array of the request
            result = model.infer(body, self.header_length)
        except TensorwireError as error:
            self.send_reply(error_reply(str(error), error.status))
            return
        except Exception as error:
            self.send_failure(error)
            return
        if isinstance(result, Frame):
            self.send_frame(result)
        else:
            self.protocol.create_task(self.send_result(result))

    async def send_result(self, result: Awaitable[Frame]) -> None:
        """Await the frame of the response, and send it."""
        try:
            frame = await result
        except TensorwireError as error:
            self.send_reply(error_reply(str(error), error.status))
        except Exception as error:
            self.send_failure(error)
        except BaseException:  # the task is cancelled
            self.protocol.transport.abort()
            raise
        else:
            self.send_frame(frame)

    def send_frame(self, frame: Frame) -> None:
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        head = self.protocol.begin_response(200, self) + frame_head(frame) + end
        if len(frame) <= _MAX_JOINED_NBYTES:
            self.protocol.write(self, [b"".join((head, *frame.buffers))])
        else:
            self.protocol.write(self, [head, *frame.buffers])

    def send_reply(self, reply: Reply) -> None:
        head = self.protocol.begin_response(reply.status, self)
        self.protocol.write(self, [reply_bytes(head, reply, self.keep_alive)])

    def send_failure(self, error: Exception) -> None:
        """Log an unexpected exception, and close the connection after the response."""
        self.protocol.logger.error("Exception in an inference request\n", exc_info=error)
        self.keep_alive = False
        self.send_reply(error_reply("internal server error", 500))


def reply_bytes(head: bytes, reply: Reply, keep_alive: bool) -> bytes:
    """Return a response. ``head`` has its status line and the default headers of the server."""
    lines = [b"%b: %b\r\n" % header for header in reply.headers]
    if not keep_alive:
        lines.append(b"%b: %b\r\n" % CLOSE)
    return b"".join((head, *lines, b"\r\n", reply.body))


class BodyReceiver(asyncio.BufferedProtocol):
    """Receives the rest of a body from the transport into its buffer, without the HTTP parser."""

    def __init__(self, protocol: InferProtocol, exchange: InferExchange, body: BodyBuffer) -> None:
        self.protocol = protocol
        self.exchange = exchange
        self.body = body

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.body.remaining()

    def buffer_updated(self, nbytes: int) -> None:
        self.body.advance(nbytes)
        if self.body.complete:
            self.protocol.resume_parsing()
            self.exchange.receive_end()

    def eof_received(self) -> bool:
        return self.protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()


class InferProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which answers inference requests without ASGI.

    uvicorn creates an instance for each connection. Middleware does not see inference requests.

    Examples
    --------
    >>> import uvicorn
    >>> from tensorwire.server.uvicorn import InferProtocol
    >>> uvicorn.run("module:app", http=InferProtocol)                    # doctest: +SKIP
    """

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        app = self.app
        self.proxy_headers: ProxyHeadersMiddleware | None = None
        if isinstance(app, ProxyHeadersMiddleware):
            self.proxy_headers = ProxyHeadersMiddleware(_no_app, config.forwarded_allow_ips)
            app = app.app
        self.service: Any = app if isinstance(app, Service) else None
        self.targets = app.infer_targets if isinstance(app, Service) else {}
        self.is_receiving = False  # a request has begun, but its end has not arrived
        self.is_receiving_head = False  # the end of its head has not arrived either
        self.has_body_data = False  # some has arrived since the last change of head_nbytes
        # Received without body data after the chunk in which the request begins: its head, its
        # trailers and the headers of chunks.
        self.head_nbytes: int | None = None
        self.receive_timer: asyncio.TimerHandle | None = None
        self.progress_timer: asyncio.TimerHandle | None = None
        self.unsent: InferExchange | None = None  # the client has not read enough of its response
        self.is_rejecting = False  # no further request is accepted, because one was invalid
        self.last_reply = b""  # sent after the responses to earlier requests
        self.idle_since: float | None = None  # the time of the last response; None during a request
        self.n_completed = 0  # responses after which the next request has not been started yet
        self.is_starting_next = False
        self._default_headers: Any = None
        self._default_lines = b""

    # --- receiving -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.is_rejecting:
            return
        super().data_received(data)
        if self.is_receiving and self.service is not None:
            self._continue_receiving(len(data))

    def _continue_receiving(self, nbytes: int) -> None:
        """Apply the limits to a request that has not arrived completely."""
        if self.receive_timer is None:
            self.start_receive_timer()
        if self.has_body_data:
            self.head_nbytes, self.has_body_data = 0, False
        else:
            # The chunk in which the head begins may also contain other requests.
            self.head_nbytes = 0 if self.head_nbytes is None else self.head_nbytes + nbytes
            if self.head_nbytes > _MAX_HEAD_NBYTES:
                message = f"the headers or trailers are longer than {_MAX_HEAD_NBYTES} bytes"
                self._close_with_error(message, 431)
                return
        if self.is_receiving_head:
            return
        exchange: Any = self.cycle
        if type(exchange) is not InferExchange or not exchange.has_turn:
            return
        body = exchange.body
        if (
            isinstance(body, BodyBuffer)
            and body.content_length is not None
            and body.content_length - len(body) >= _DIRECT_FROM_NBYTES
        ):
            self.transport.set_protocol(BodyReceiver(self, exchange, body))

    def resume_parsing(self) -> None:
        """Parse the next request: a BodyReceiver has received the rest of a body."""
        self._end_receiving()
        # The state of the old parser is in the middle of the body.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.transport.set_protocol(self)

    def on_message_begin(self) -> None:
        # The response to an earlier request in the same chunk has started this timer.
        self._unset_keepalive_if_required()
        # The scope is only created for a request that goes through ASGI.
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.is_receiving = self.is_receiving_head = True
        self.has_body_data = False
        self.head_nbytes = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_receiving_head:  # a trailer
            return
        name = name.lower()
        if name == b"expect" and value.strip().lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.is_receiving_head = False
        model = self._infer_model()
        if model is None or self._is_overloaded():
            url, headers, expect = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()  # creates the scope
            self.url, self.expect_100_continue = url, expect
            self.headers.extend(headers)
            super().on_headers_complete()
            return
        previous = self.cycle
        exchange: Any = InferExchange(self, model, self.headers)
        self.cycle = exchange
        if previous is None or previous.response_complete:
            exchange.start()
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _infer_model(self) -> ServedModel | None:
        """Return the model of an inference request; None for any other request."""
        if self.parser.get_method() != b"POST" or self.parser.should_upgrade():
            return None
        model = self.targets.get(self.url)
        if model is None and self.service is not None:
            path = httptools.parse_url(self.url).path
            model = self.service.infer_model("POST", unquote(path.decode("ascii")))
        return model

    def _is_overloaded(self) -> bool:
        """Return whether limit_concurrency is reached. The base class replies in that case."""
        limit = self.limit_concurrency
        return limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit)

    def on_body(self, body: bytes) -> None:
        self.has_body_data = True
        cycle: Any = self.cycle
        # For a websocket upgrade, the cycle is still that of the previous request.
        if type(cycle) is InferExchange and not self.parser.should_upgrade():
            cycle.receive(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._end_receiving()
        cycle: Any = self.cycle
        if type(cycle) is InferExchange and not self.parser.should_upgrade():
            cycle.receive_end()
        else:
            super().on_message_complete()

    def _end_receiving(self) -> None:
        self.is_receiving = False
        if self.receive_timer is not None:
            self.receive_timer.cancel()
            self.receive_timer = None

    def start_receive_timer(self) -> None:
        """Begin the time in which the rest of a request must arrive."""
        seconds = self.service.receive_timeouts.seconds
        if self.receive_timer is not None:
            self.receive_timer.cancel()
            self.receive_timer = None
        if seconds is not None:
            self.receive_timer = self.loop.call_later(seconds, self._reject_late_request)

    def _reject_late_request(self) -> None:
        """Reply that a request did not arrive in time, and close the connection."""
        self.receive_timer = None
        cycle: Any = self.cycle
        if self.flow.read_paused:  # the request waits for its turn
            self.start_receive_timer()
        elif self.is_receiving_head:
            self._close_with_error("the headers did not arrive in time", 408)
        elif type(cycle) is InferExchange:
            if cycle.is_answered:
                self.transport.close()
            else:
                cycle.reject(self.service.receive_timeouts.error())
        elif cycle.response_complete:  # the application has replied without reading the body
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Reply to a request that the HTTP parser rejected, and close the connection."""
        self._close_with_error(msg, 400)

    def _close_with_error(self, message: str, status: int) -> None:
        """Send an error reply after the replies to earlier requests, and close the connection."""
        self.is_rejecting = True
        self._end_receiving()
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            is_waiting = False
        elif type(cycle) is InferExchange:
            if not cycle.is_received:
                cycle.reject(TensorwireError(message, status=status))
                return
            is_waiting = True
        else:
            is_waiting = not cycle.more_body
        reply = error_reply(message, status)
        self.last_reply = reply_bytes(self._start_of_head(status), reply, keep_alive=False)
        if is_waiting:
            self.flow.pause_reading()
        else:
            self._send_last_reply()

    def _send_last_reply(self) -> None:
        self.transport.write(self.last_reply)
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the transport open, because a response has not been sent yet."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or self.scheme == "https":
            return False
        if not (cycle.is_received if type(cycle) is InferExchange else not cycle.more_body):
            return False
        cycle.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_receiving()
        self._end_sending()
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    # --- responding ------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if type(cycle) is InferExchange:
            cycle.start()
        else:
            super()._start_asgi_task(cycle, app)

    def create_task(self, coroutine: Any) -> None:
        """Run a coroutine in a task that a graceful shutdown waits for."""
        context = Context() if getattr(self.config, "reset_contextvars", False) else None
        task = self.loop.create_task(coroutine, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def begin_response(self, status: int, exchange: InferExchange) -> bytes:
        """Log the request, and return the status line and the default headers of the server."""
        if self.access_log:
            self.access_logger.info(
                '%s - "%s %s HTTP/%s" %d',
                get_client_addr(self._client_scope(exchange.headers)),
                "POST",
                exchange.url.decode("ascii"),
                exchange.http_version,
                status,
            )
        return self._start_of_head(status)

    def _start_of_head(self, status: int) -> bytes:
        headers = self.server_state.default_headers  # a new list every second, for the date
        if headers is not self._default_headers:
            self._default_headers = headers
            self._default_lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return STATUS_LINE[status] + self._default_lines

    def _client_scope(self, headers: list[tuple[bytes, bytes]]) -> Any:
        """Return a scope with the address of the client, which a proxy may have forwarded."""
        scope: Any = {"type": "http", "client": self.client, "headers": headers}
        if self.proxy_headers is not None:
            with suppress(StopIteration):
                self.proxy_headers(scope, None, None).send(None)  # type: ignore[arg-type]
        return scope

    def write(self, exchange: InferExchange, buffers: Sequence[Any]) -> None:
        """Send a response. The transport refers to large buffers until the client has read them."""
        exchange.is_answered = True
        if self.transport.is_closing():
            exchange.response_complete = True
            return
        if len(buffers) == 1:
            self.transport.write(buffers[0])
        else:
            self.transport.writelines(buffers)
        if self.flow.write_paused:  # the next response waits, which bounds the memory
            self.unsent = exchange
            self._check_progress(self.transport.get_write_buffer_size() + 1)
        else:
            self.finish(exchange)

    def _check_progress(self, previous_nbytes: int) -> None:
        """Abort the connection if the client has read nothing since the previous check."""
        self.progress_timer = None
        seconds = self.service.receive_timeouts.seconds
        if self.unsent is None or seconds is None:
            return
        unsent_nbytes = self.transport.get_write_buffer_size()
        if unsent_nbytes >= previous_nbytes:
            self.transport.abort()
        else:
            self.progress_timer = self.loop.call_later(seconds, self._check_progress, unsent_nbytes)

    def _end_sending(self) -> None:
        self.unsent = None
        if self.progress_timer is not None:
            self.progress_timer.cancel()
            self.progress_timer = None

    def resume_writing(self) -> None:
        super().resume_writing()
        exchange = self.unsent
        self._end_sending()
        if exchange is not None:
            self.finish(exchange)

    def finish(self, exchange: InferExchange) -> None:
        """End an exchange whose response has been sent."""
        exchange.response_complete = True
        if not exchange.keep_alive:
            if exchange.is_received or exchange.expects_continue:
                self.transport.close()
            else:
                self._end_receiving()
                self.receive_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """Start the next request, or the keep-alive timer."""
        # The response to the next request may be sent at once. The loop replaces the recursion,
        # because there may be thousands of requests in the queue.
        self.n_completed += 1
        if self.is_starting_next:
            return
        self.is_starting_next = True
        try:
            while self.n_completed > 0:
                self.n_completed -= 1
                self._start_next()
        finally:
            self.is_starting_next = False
        if self.last_reply and self.cycle.response_complete:
            self._send_last_reply()

    def _start_next(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            if not self.pipeline:
                self.flow.resume_reading()
            self._start_asgi_task(cycle, app)
            return
        self.flow.resume_reading()
        self.idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._start_keep_alive_timer(self.timeout_keep_alive)

    # --- the keep-alive timer ---

    # The timer is not cancelled and started again for each request, which costs 5 us. When it
    # expires, it begins again if the connection has not been idle for the whole time.

    def _start_keep_alive_timer(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def _unset_keepalive_if_required(self) -> None:
        self.idle_since = None

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self.idle_since is None:  # a request is in progress; its end starts the timer
            return
        seconds = self.idle_since + self.timeout_keep_alive - self.loop.time()
        if seconds > 0:
            self._start_keep_alive_timer(seconds)
        else:
            super().timeout_keep_alive_handler()


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    """Do nothing. The middleware for proxy headers needs an application to call."""
