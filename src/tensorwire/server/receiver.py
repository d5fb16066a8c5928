"""The client's side of an HTTP/1.1 connection: received bytes to requests, without I/O.

llhttp (httptools) parses HTTP.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools

from ..errors import TensorwireError
from .body import RequestBody
from .errors import OverloadedError
from .framing import Head, find_head_problem, joined_headers
from .http_exchange import Exchange
from .service import DeferredReply, Route, Service, error_reply
from .states import BODY, CLOSED, HEAD, IDLE, IGNORED, INPUT_OVER

# How much is received at once: the parser processes all requests in it, which must not be many.
SCRATCH_NBYTES = 16 << 10
# If at least this many bytes of a body are missing, they are received without the HTTP parser. A
# new parser is created afterwards, which costs more than the copy of fewer bytes.
_DIRECT_FROM_NBYTES = 16 << 10
# Small chunks of a body take long to parse. If a read has more, the connection waits for the next
# turn of the event loop. uvloop would read up to 32 times in a turn.
MAX_PARTS_PER_READ = 256
MAX_HEAD_NBYTES = 64 << 10  # also of trailers; may be exceeded by one read
_MAX_HEADERS = 256
_MAX_TARGET_NBYTES = 16 << 10  # before 0.7, httptools parsed at most 64 KiB correctly
_BODY_HEADERS = (b"content-length", b"transfer-encoding")


class _Scratch(threading.local):
    """The memory that the connections of an event loop receive into, one after another."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SCRATCH_NBYTES))


_scratch = _Scratch()


class Request(Exchange):
    """A request on a connection. If its head is invalid or late, it is empty, and rejected."""

    method = b""
    url = b""
    http_version = "1.1"
    may_send_body = False
    """Whether the client has been told to send the body, if it waits for that."""
    is_received = False
    """Whether the whole request has arrived."""


class Receiver:
    """Parses the requests of a connection.

    ``requests`` are those whose head has arrived and whose reply has not been sent, in their order.
    ``is_message_complete`` says whether the newest one has arrived completely. No request follows
    it if the client has said so (``client_closes``) or the server wants to close the connection
    (``server_closes``).
    ``find_overload`` is called for each valid head: if it returns an error, no model is called.
    ``wake`` is that of the requests.
    """

    def __init__(
        self,
        service: Service,
        wake: Callable[[], object],
        find_overload: Callable[[], OverloadedError | None] | None = None,
    ) -> None:
        self._service = service
        self._wake = wake
        self._find_overload = find_overload
        self.requests: deque[Request] = deque()
        self.state = IDLE
        self.client_closes = self.server_closes = False
        self.is_message_complete = False
        self._head = head = Head(_MAX_HEADERS)
        self.on_url = head.on_url
        self.on_header = head.on_header
        self._parser: Any = httptools.HttpRequestParser(self)
        self._direct: RequestBody | None = None  # its body, if it is received without the parser
        # What has arrived since the last data of a body: a head, trailers or headers of chunks.
        self._head_nbytes = 0
        self.n_parts = 0  # of bodies, in what was received last
        self._parts: list[bytes] = []  # those that have not been written yet

    def buffer(self) -> memoryview:
        """Return the memory for what arrives next. `receive` takes the number of bytes."""
        if self._direct is None:
            return _scratch.view
        if self._direct.is_waiting:  # a TLS transport may have received more before it stopped
            return _scratch.view[: self.n_missing]
        try:
            return self._direct.remaining()
        except TensorwireError as error:  # there is no memory
            self.reject(error)
            return _scratch.view

    def receive(self, nbytes: int) -> None:
        body = self._direct
        self.n_parts = 0
        if self.state in INPUT_OVER:
            return
        if body is None:
            self._parse(_scratch.view[:nbytes])
            if self._parts:
                self._write_parts()
        else:
            if body.is_waiting:
                body.write(_scratch.view[:nbytes])
            else:
                body.buffer.advance(nbytes)
            if self.n_missing == 0:
                self._direct = None
                # The old parser is in the middle of the body.
                self._parser = httptools.HttpRequestParser(self)
                self._complete()
        if self.state is BODY:
            self.continue_body()

    def continue_body(self) -> None:
        """Provide memory for the next step, and receive a large body without the parser.

        A body gets memory when its request is the first one: before, at most one read is received.
        """
        request = self.requests[0]
        has_room = request.take_step()
        if request is not self.requests[-1] or self.state is not BODY:
            return
        body = request.body
        if request.is_rejected:
            self.ignore_rest()
        elif has_room and body is not None and self.n_missing >= _DIRECT_FROM_NBYTES:
            self._direct = body

    @property
    def n_missing(self) -> int:
        """The number of bytes of the body that have not arrived; 1 if that is not known."""
        if self.state is not BODY:
            return 0
        body = self.requests[-1].body
        length = None if body is None else body.framing.content_length
        return 1 if body is None or length is None else length - body.n_arrived

    def forget(self) -> None:
        """The connection is lost. Break the reference cycles."""
        self._parser = self._find_overload = None
        self._wake = lambda: None

    def ignore_rest(self) -> None:
        """Discard what else arrives."""
        if self.state is not CLOSED:
            self.state = IGNORED
        self._direct = None

    def end_of_input(self) -> None:
        """The client sends nothing more. Forget a request that will not arrive completely."""
        if self.state is BODY:
            self.requests.pop().close()
        self.state = CLOSED
        self._direct = None

    def reject(self, error: TensorwireError) -> None:
        """Reply with an error to the request that arrives, and accept no further bytes."""
        if self.state is BODY:
            self.requests[-1].reject(error)
        else:
            request = Request(self._service, error_reply(str(error), error.status), ())
            request.reject(error)
            self.requests.append(request)
        self.is_message_complete = False
        self.ignore_rest()

    def _parse(self, data: memoryview | bytes) -> None:
        """Parse received bytes, and apply the limits to a request that has not arrived yet."""
        self._head_nbytes += len(data)
        while True:
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                if self.state is not BODY or self.requests[-1].is_rejected:
                    self.ignore_rest()
                    return
                data = self._head_to_replay() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                if self.state not in INPUT_OVER:
                    self.reject(TensorwireError("Invalid HTTP request received.", status=400))
                return
        if self._head_nbytes > MAX_HEAD_NBYTES and self.state in (HEAD, BODY):
            text = f"the headers or trailers exceed the limit of {MAX_HEAD_NBYTES} bytes"
            self.reject(TensorwireError(text, status=431))

    def _head_to_replay(self) -> bytes:
        """Return what to parse instead of the head of a request whose upgrade is ignored.

        The server may ignore an upgrade (RFC 9110 7.8), but httptools then does not parse the body.
        A new parser does, after a head with only the headers that say how long the body is.
        """
        headers = self.requests[-1].headers
        lines = joined_headers(pair for pair in headers if pair[0] in _BODY_HEADERS)
        self._parser = httptools.HttpRequestParser(self)
        return b"POST / HTTP/1.1\r\n%b\r\n" % lines

    # The parser also calls these methods for trailers, for a head that is replayed, and for what
    # follows the last request in a read: so they look at the state first.

    def on_message_begin(self) -> None:
        """Callback of the parser: a message begins."""
        if self.state is IDLE:
            self.state = HEAD
            self.is_message_complete = False
            self._head.begin()
            self._head_nbytes = 0  # the read may also contain other requests

    def on_headers_complete(self) -> None:
        """Callback of the parser: the headers are complete."""
        if self.state is not HEAD:
            return
        parser = self._parser
        url, headers = self._head.end()
        method, version = parser.get_method(), parser.get_http_version()
        if version == "1.0" or method == b"CONNECT" or not parser.should_keep_alive():
            self.client_closes = True
        route: Route | None = None
        if method == b"POST":
            route = self._service.infer_routes.get(url)
        if route is None:
            route = self._find_route(method, url)
        request = Request(self._service, route, headers, self._wake)
        request.method, request.url, request.http_version = method, url, version
        self.state = BODY
        self.requests.append(request)
        problem = find_head_problem(headers, version, _MAX_HEADERS)
        if problem is not None:
            text, status = problem
            request.reject(TensorwireError(text, status=status))
        elif self._find_overload is not None and (error := self._find_overload()) is not None:
            if isinstance(route, DeferredReply):  # health checks, for example
                self.server_closes = True
            else:
                request.reject(error)

    def _find_route(self, method: bytes, url: bytes) -> Route:
        if len(url) > _MAX_TARGET_NBYTES:
            text = f"the request target is {len(url)} bytes long; the limit is "
            return error_reply(f"{text}{_MAX_TARGET_NBYTES}", 414)
        try:
            path = httptools.parse_url(url).path or b"/"
        except httptools.HttpParserInvalidURLError:  # the authority of CONNECT
            path = url
        return self._service.route(method.decode(), unquote(path.decode("ascii")))

    def on_body(self, body: bytes) -> None:
        """Callback of the parser: a part of the body."""
        self._head_nbytes = 0
        self.n_parts += 1
        if self.n_parts > 1:
            self._parts.append(body)
        elif self.state is BODY:
            self.requests[-1].write(body)

    def _write_parts(self) -> None:
        """Write the parts together: chunks of one byte would take long one by one."""
        data, self._parts = b"".join(self._parts), []
        if self.state is BODY:
            self.requests[-1].write(data)

    def on_message_complete(self) -> None:
        """Callback of the parser: the message is complete."""
        if self.state is not BODY or self._parser.should_upgrade():
            return  # the body of an upgrade follows: see `_head_to_replay`
        if self._parts:
            self._write_parts()
        if not self._parser.should_keep_alive():  # also because of a trailer
            self.client_closes = True
        self._complete()

    def _complete(self) -> None:
        request = self.requests[-1]
        request.is_received = self.is_message_complete = True
        if request.body is not None and request.body.has_steps and request is self.requests[0]:
            request.take_step()  # for the last chunk
        is_last = self.client_closes or self.server_closes or request.is_rejected
        self.state = IGNORED if is_last else IDLE
