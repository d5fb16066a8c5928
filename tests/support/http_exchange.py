"""HTTP over a raw socket: send exact bytes, and read responses strictly.

A client library neither sends malformed requests nor notices malformed responses. ``Connection``
does both. It raises ``InvalidResponse`` if a server sends anything that RFC 9112 does not allow.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import h11
import numpy as np

import tensorwire as tw

HOST = "127.0.0.1"
TIMEOUT = 5.0  # seconds


class InvalidResponse(Exception):
    """The server sent bytes that are not an HTTP/1.1 response."""


class Closed(Exception):
    """The server closed or reset the connection before a response, or within one."""


@dataclass
class Response:
    """A complete response."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes
    n_interim: int = 0  # the number of 100 Continue before it

    @property
    def message(self) -> tw.InferResponse:
        """The inference response in the body."""
        assert self.status == 200, self.body[:500]
        return tw.decode_response(self.body, tw.header_length(self.headers))

    @property
    def error(self) -> str:
        """The message of an error of the application."""
        assert self.headers["content-type"] == "application/json"
        return str(json.loads(self.body)["error"])

    @property
    def closes(self) -> bool:
        """Whether the server announces that it closes the connection."""
        return self.headers.get("connection", "").lower() == "close"


class Connection:
    """A connection to a server on the loopback interface."""

    def __init__(self, port: int, timeout: float = TIMEOUT, receive_nbytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_nbytes:  # a small receive buffer, for clients that do not read
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_nbytes)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect((HOST, port))
        except OSError:
            self.socket.close()
            raise
        self.received = bytearray()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        self.socket.close()

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.socket = context.wrap_socket(self.socket, server_hostname=HOST)

    # --- sending -------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes. A server may respond and close the connection before it has read them."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def send_in_parts(self, parts: list[bytes], pause: float) -> None:
        """Send each part in a separate packet."""
        for part in parts:
            self.send(part)
            time.sleep(pause)

    def shut_down(self) -> None:
        """Close the sending direction."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # --- receiving -----------------------------------------------------------------------------

    def receive(self) -> bool:
        """Receive more bytes. Returns False at the end of the stream."""
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            return False
        self.received += data
        return bool(data)

    def read_until(self, end: bytes) -> bytes:
        """Read up to `end`, and return the bytes before it."""
        start = 0
        while (found := self.received.find(end, start)) < 0:
            start = max(0, len(self.received) - len(end))
            if not self.receive():
                raise Closed(f"after {bytes(self.received[:200])!r}")
        data = bytes(self.received[:found])
        del self.received[: found + len(end)]
        return data

    def read(self, method: str = "POST") -> Response:
        """Read the response to a request. Interim responses are only counted."""
        reader = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target="/", headers=[("Host", "tests")])
        for sent in (request, h11.EndOfMessage()):  # what was sent may be no request for h11
            reader.send(sent)
        found, body = Response(0, {}, b""), bytearray()
        is_open = self.received or self.receive()
        while True:
            reader.receive_data(bytes(self.received))
            self.received.clear()
            while (event := next_event(reader, is_open)) is not h11.NEED_DATA:
                if isinstance(event, h11.InformationalResponse):
                    if event.status_code != 100:
                        raise InvalidResponse(f"unexpected interim response {event.status_code}")
                    found.n_interim += 1
                elif isinstance(event, h11.Response):
                    found.status, found.headers = event.status_code, headers_of(event)
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    self.received += reader.trailing_data[0]
                    return replace(found, body=bytes(body))
            is_open = self.receive()

    def ask(self, data: bytes) -> Response:
        """Send a POST request, and read the response."""
        self.send(data)
        return self.read()

    def at_end(self) -> bool:
        """Return whether the stream ends. Raises ConnectionResetError if the server resets it."""
        return not self.received and self.socket.recv(1) == b""

    def is_closed(self, timeout: float) -> bool:
        """Wait for the end of the stream. Raises InvalidResponse if other bytes arrive."""
        if self.received:
            raise InvalidResponse(f"bytes after the response: {bytes(self.received[:200])!r}")
        previous = self.socket.gettimeout()
        self.socket.settimeout(timeout)
        try:
            ended = not self.receive()
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(previous)
        if not ended:
            raise InvalidResponse(f"bytes after the response: {bytes(self.received[:200])!r}")
        return True


def connect(address: str) -> Connection:
    return Connection(int(address.rpartition(":")[2]), timeout=20)


def next_event(reader: h11.Connection, is_open: object) -> Any:
    try:
        return reader.next_event()
    except h11.RemoteProtocolError as error:
        raise (InvalidResponse if is_open else Closed)(str(error)) from error


def headers_of(event: h11.Response) -> dict[str, str]:
    """Return the headers, which must be different, and say where the body ends."""
    headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
    framings = [each for each in ("content-length", "transfer-encoding") if each in headers]
    if len(headers) < len(event.headers) or len(framings) > 1:
        raise InvalidResponse(f"a header twice, or two lengths: {event.headers}")
    is_closed = headers.get("connection", "").lower() == "close"
    if not (framings or is_closed or event.status_code in (204, 304)):
        raise InvalidResponse("a body without a length")
    return headers


# --- requests --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Echo:
    """An inference request whose response must contain the same id and numbers."""

    id: str
    numbers: tuple[int, ...]
    body: bytes
    header_length: int

    @property
    def headers(self) -> list[str]:
        return [self.length_header, f"Content-Length: {len(self.body)}"]

    @property
    def length_header(self) -> str:
        return f"Inference-Header-Content-Length: {self.header_length}"

    def check(self, response: Response) -> None:
        """Raise AssertionError unless the response belongs to this request."""
        assert response.status == 200, (self.id, response.status, response.body[:300])
        found = tw.decode_response(response.body, tw.header_length(response.headers))
        assert found.id == self.id, (self.id, found.id)
        names = [tensor.name for tensor in found.outputs]
        assert names == ["x"], (self.id, names)
        values = found["x"].as_numpy()
        assert values.shape == (len(self.numbers),), (self.id, values.shape)
        assert np.array_equal(values, np.array(self.numbers, np.int64)), (self.id, values)


def echo(id: str = "one", numbers: tuple[int, ...] = (1, -2, 3)) -> Echo:
    frame = tw.encode_request(
        tw.InferRequest(
            [tw.Tensor("x", np.array(numbers, np.int64))],
            id=id,
            parameters={"binary_data_output": True},
        )
    )
    assert frame.header_length is not None
    return Echo(id, numbers, bytes(frame), frame.header_length)


def head(start: str, headers: list[str] | None = None) -> bytes:
    """Return a request head: the first line, a Host header, and `headers`."""
    return "\r\n".join([start, "Host: tests", *(headers or []), "", ""]).encode("latin-1")


def post(model: str, request: Echo, headers: list[str] | None = None) -> bytes:
    """Return the bytes of an inference request. `headers` replaces its own headers."""
    start = f"POST /v2/models/{model}/infer HTTP/1.1"
    return head(start, request.headers if headers is None else headers) + request.body


def chunked(body: bytes, sizes: tuple[int, ...] = (), end: bytes = b"0\r\n\r\n") -> bytes:
    """Return `body` in chunks of the given sizes; the last chunk contains the rest."""
    parts, start = [], 0
    for size in (*sizes, len(body) - sum(sizes)):
        parts.append(b"%x\r\n%b\r\n" % (size, body[start : start + size]))
        start += size
    return b"".join(parts) + end
