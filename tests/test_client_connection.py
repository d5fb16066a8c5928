"""Connections to HTTP servers: sending, receiving, TLS, timeouts, signals, resent requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import random
import select
import signal
import socket
import ssl
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import (
    BODY,
    GOOD,
    HEADERS,
    LOOPS,
    Certificate,
    Connect,
    MiB,
    TlsScripted,
    X,
    app,
    chunked,
    connect_to,
    seen,
)
from support.memory import peak_nbytes, takes
from support.serve_process import free_port
from support.servers import HOST, Scripted, http, play, uvicorn_server
from support.threads import in_thread, wait_for
from tensorwire.client import AsyncClient, Client, InferenceServerError, Timeout
from tensorwire.client.aio import LoopBackend
from tensorwire.client.connection import Connection
from tensorwire.client.errors import Operation
from tensorwire.client.options import Call, Deadline
from tensorwire.client.requests import Encoding, HttpRequest, Target
from tensorwire.client.responses import ResponseReader
from tensorwire.client.sync import POLLIN, POLLOUT, Backend, PollWatcher, complete

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
certificate, tls = client_fixtures.certificate, client_fixtures.tls

CHUNKED = HEADERS | {"Transfer-Encoding": "chunked"}
CHUNKS = chunked(BODY, len(BODY))
GZIPPED = HEADERS | {"Content-Encoding": "gzip"}
LARGE = np.zeros(64 * MiB, np.int8)


class Reading(TlsScripted):
    """Plays an answer for each connection without reading a request before."""

    def __init__(self, answer: Any, certificate: Certificate | None = None) -> None:
        super().__init__([], certificate)
        self.serve = partial(play, answer=answer)  # type: ignore[method-assign]


def test_tls(connect: Connect, certificate: Certificate) -> None:
    options = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    with uvicorn_server(app, **options) as address:
        before = len(seen)
        large = np.arange(3 * MiB, dtype=np.float32)
        with connect(f"https://{address}", ssl_context=certificate.trusting()) as client:
            for array in (X, large, X):
                assert np.array_equal(client.infer("echo", {"x": array})["x"].as_numpy(), array)
        assert len({call["peer"] for call in seen[before:]}) == 1
        fails = pytest.raises(ConnectionError, match=r"(?i)certificate")
        with connect(f"https://{address}") as client, fails:
            client.infer("echo", {"x": X})


def test_waiting_without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll", raising=False)  # as eventlet does
    with Scripted([http(b'{"name":"x"}')] * 2) as server, Client(server.address) as client:
        assert client.server_metadata() == client.server_metadata() == {"name": "x"}
    one, two = socket.socketpair()
    with one, two:
        watcher = Backend().watch(one, None)
        assert complete(watcher.wait(POLLIN, 0.01)) == 0
        two.send(b"a")
        assert complete(watcher.wait(POLLIN, 5)) == POLLIN
        assert complete(watcher.wait(POLLOUT, None)) == POLLOUT


def test_server_that_has_responded_does_not_require_tls(connect: Connect) -> None:
    closing = http(BODY, HEADERS | {"Connection": "close"})
    with Scripted([closing]) as server, connect(server.address) as client:
        client.infer("m", {"x": X})
        server.answers = [b""]
        with pytest.raises(ConnectionError, match=r"before it responded$"):
            client.infer("m", {"x": X})


# --- which requests are sent again ---


class KeepsOne(TlsScripted):
    """Answers the first request of each connection, and then plays ``end`` instead of reading."""

    def __init__(self, end: Any, certificate: Certificate | None = None) -> None:
        super().__init__([GOOD], certificate)
        self.end = end

    def serve(self, connection: socket.socket) -> None:
        super().serve(connection)
        if self.n_connections == 1:
            play(connection, self.end)


def close_without_reading(connection: socket.socket) -> None:
    """A part of the request has arrived, of which the server reads nothing."""
    select.select([connection], [], [], 5)


def read_a_part(connection: socket.socket) -> None:
    socket.socket.recv(connection, 100)  # also with TLS: bytes of the socket


def read(connection: socket.socket) -> None:
    """Read a whole request, of which the body is shorter than 8000 bytes."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(8000)
    head, _, body = received.partition(b"\r\n\r\n")
    _, has_body, length = head.partition(b"\r\nContent-Length: ")
    n_body = int(length.split()[0]) if has_body else 0
    while len(body) < n_body:
        body += connection.recv(8000)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def close_tls(connection: socket.socket) -> None:
    """Send close_notify, and do not wait for that of the client."""
    if isinstance(connection, ssl.SSLSocket):
        connection.setblocking(False)
        with contextlib.suppress(ssl.SSLWantReadError):
            connection.unwrap()


# What happens to a kept connection after some of the request was sent, and whether the request may
# be sent again.
ENDS: dict[str, tuple[Any, bool]] = {
    "closed without reading": (close_without_reading, True),
    "a part is read": (read_a_part, True),
    "closed": (read, True),
    "reset": ((read, reset), True),
    "closed politely": ((read, close_tls), True),
    "answered in part": ((read, b"H"), False),
    "silent": ((read, 0.3), False),
}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the clients, which take no time."""
    found: list[float] = []

    async def sleep(_: Any, seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(Backend, "sleep", sleep)
    monkeypatch.setattr(LoopBackend, "sleep", sleep)
    return found


@pytest.mark.parametrize("name", ENDS)
def test_request_on_a_kept_connection_that_fails(
    connect: Connect, name: str, tls: Certificate | None, pauses: list[float]
) -> None:
    """A GET is sent again, but a POST only with a retry, because its model may have run."""
    end, may_be_resent = ENDS[name]
    error = TimeoutError if name == "silent" else ConnectionError
    timeout = 0.2 if name == "silent" else 60

    def is_answered(client: Any, data: Any) -> bool:
        if data is None:
            return bool(client.is_ready())
        try:
            client.infer("m", {"x": data})
        except error:
            return False
        return True

    calls: list[tuple[Any, int]] = [(None, 0), (X, 0)]  # what is sent, and the retries
    if may_be_resent:
        calls.append((X, 1))
    if end is close_without_reading:
        calls.append((LARGE, 0))  # it fails before all of it has been sent
    for data, retries in calls:
        is_resent = may_be_resent and (data is None or retries > 0)
        server = KeepsOne(end, tls)
        with connect_to(server, connect, timeout=timeout, retries=retries) as client:
            client.is_ready()
            assert is_answered(client, data) == is_resent
        assert server.n_connections == 1 + is_resent, retries
    assert pauses == []


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("n_values", [1, 1 << 20])
def test_kept_connection_that_is_reset_before_anything_is_sent(
    connect: Connect, n_values: int, tls: Certificate | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has found the connection open, and the first send fails: a POST is repeated."""

    def wait(connection: Connection) -> bool:
        select.select([connection.socket], [], [], 5)
        return True

    monkeypatch.setattr(Connection, "is_open", wait)
    server = KeepsOne(reset, tls)
    with connect_to(server, connect) as client:
        client.is_ready()
        assert client.infer("m", {"x": np.zeros(n_values)})["x"].shape == X.shape
        assert server.n_connections == 2


def test_retry_of_a_kept_connection_opens_another(pauses: list[float]) -> None:
    """Other kept connections may fail for the same reason. Only further retries have pauses."""

    class LosesAll(Scripted):
        """Resets its first two connections when one of them has a second request."""

        def run(self) -> None:
            kept = [self.listening.accept()[0] for _ in range(2)]
            for connection in kept:
                self.read(connection)
            for connection in kept:
                connection.sendall(GOOD)
            select.select(kept, [], [], 5)
            for connection in kept:
                reset(connection)
                connection.close()
            super().run()

    with LosesAll([GOOD]) as server, Client(server.address, retries=1) as client:
        with in_thread(client.is_ready):
            client.is_ready()
        assert len(client._open_pool().idle) == 2
        assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert (len(server.heads), server.n_connections, pauses) == (3, 1, [])


# --- responses before the end of the request ---

REJECTION = http(b'{"error": "too long"}', status="413 Content Too Large")


def begin_to_read(connection: socket.socket) -> None:
    """Read the head and the first bytes of the body."""
    # Otherwise the kernel may delay the answer, and discard it when the socket is closed.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.recv(1 << 16)
    time.sleep(0.02)


@pytest.mark.parametrize(
    "answer",
    [  # with TLS, asyncio drops what it has not received when it notices the reset connection
        (begin_to_read, REJECTION, 0.05),
        (begin_to_read, REJECTION[:-10], 0.1, REJECTION[-10:]),
    ],
    ids=["at once", "slowly"],
)
def test_rejection_while_the_request_is_sent(
    connect: Connect, answer: Any, tls: Certificate | None
) -> None:
    """The status and the message of the server are reported, and the connection is closed."""
    server = Reading(answer, tls)
    with connect_to(server, connect, timeout=5) as client:
        for n in range(3):
            with pytest.raises(InferenceServerError, match="status 413: too long"):
                client.infer("m", {"x": LARGE})
            assert server.n_connections == n + 1


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("rest", [b"", REJECTION[-10:]], ids=["complete", "in part"])
def test_rejection_by_a_server_that_continues_to_read(
    connect: Connect, tls: Certificate | None, rest: bytes
) -> None:
    """The client stops sending, and closes the connection after the end of the response."""
    n_read = []

    def reject_and_read(connection: socket.socket) -> None:
        begin_to_read(connection)
        connection.sendall(REJECTION.removesuffix(rest))
        connection.settimeout(0.3 if rest else 3)
        nbytes = 0
        try:
            while chunk := connection.recv(1 << 20):
                nbytes += len(chunk)
        except TimeoutError:
            if rest:
                connection.sendall(rest)
            else:
                nbytes = -1  # the client has not closed the connection
        except OSError:
            pass
        n_read.append(nbytes)

    with connect_to(Reading(reject_and_read, tls), connect, timeout=5) as client:
        with pytest.raises(InferenceServerError, match="too long"):
            client.infer("m", {"x": LARGE})
        client.is_ready()  # an event loop closes connections only while it runs
    assert 0 <= n_read[0] < 32 * MiB


def test_success_before_the_end_of_the_request(connect: Connect) -> None:
    """The rest of the request is sent: the server may still read it."""

    def respond_early(connection: socket.socket) -> None:
        n_left = 8 * MiB - len(connection.recv(1 << 16))
        connection.sendall(GOOD[:1000])
        while n_left > 0:
            n_left -= len(connection.recv(1 << 20))
        connection.sendall(GOOD[1000:])

    with Reading(respond_early) as server, connect(server.address, timeout=5) as client:
        assert np.array_equal(client.infer("m", {"x": LARGE[: 8 * MiB]})["x"].data, X)


# --- memory and slow peers ---


@pytest.mark.parametrize("direction", ["request", "response"])
def test_large_messages_are_not_copied(
    connect: Connect, tls: Certificate | None, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a message of 64 MiB, only the memory of a response is allocated."""
    head, *payload = tw.encode_response(tw.InferResponse([tw.Tensor("x", LARGE)])).buffers
    nbytes = len(head) + LARGE.nbytes
    headers = {"Inference-Header-Content-Length": str(len(head))}

    def answer(connection: socket.socket) -> None:
        connection.sendall(http(b"", headers, length=nbytes) + bytes(head))
        connection.sendall(payload[0])

    n_parsed = 0

    def on_body(self: Any, chunk: bytes) -> None:
        nonlocal n_parsed
        n_parsed += len(chunk)
        parse(self, chunk)

    parse = ResponseReader.on_body
    monkeypatch.setattr(ResponseReader, "on_body", on_body)
    server = TlsScripted([GOOD, answer if direction == "response" else GOOD], tls)
    inputs = [tw.Tensor(f"{i}", LARGE[: MiB * 16]) for i in range(4)]
    with connect_to(server, connect) as client:
        client.infer("m", {"x": X})

        def call() -> None:
            response = client.infer("m", {"x": X} if direction == "response" else inputs)
            assert response["x"].shape == (LARGE if direction == "response" else X).shape

        peak = peak_nbytes(call)
        if direction == "response":
            peak -= nbytes
        else:
            assert server.body_nbytes[-1] > 64 * MiB
    assert peak < 6 * MiB
    assert n_parsed < 256 << 10


@pytest.mark.slow(reason="it waits for timeouts")
def test_slow_reader_and_slow_sender(connect: Connect) -> None:
    """The read timeout applies to each piece: the whole request and response may take longer.

    The socket buffers are full most of the time, and pieces are sent in part.
    """
    received = bytearray()

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        while len(received) < expected:
            received.extend(chunk := connection.recv(1 << 20))
            time.sleep(1.2 * len(chunk) / expected)
        for start in range(0, len(GOOD), 61):
            connection.sendall(GOOD[start : start + 61])
            time.sleep(1.2 * 61 / len(GOOD))

    array = np.random.default_rng(1).integers(0, 255, 24 * MiB, np.uint8)
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", array)]))
    server = Reading(serve)
    with connect(server.address, timeout=0.6) as client:
        adapter = getattr(client, "client", client)._adapter
        request = adapter.infer_request(Target("m", None, None), frame, Encoding(), None)
        head_nbytes = len(complete(request).head)
        expected = head_nbytes + len(frame)
        with server, takes(1.8, 20):
            assert np.array_equal(client.infer("m", frame)["x"].data, X)
    assert bytes(received[head_nbytes:]) == bytes(frame)


# --- timeouts and signals ---


@pytest.fixture
def alarm() -> Iterator[Callable[..., None]]:
    """A function that sets the handler of SIGALRM, and when and how often the signal arrives."""
    before = signal.getsignal(signal.SIGALRM)

    def set_alarm(handler: Callable[..., object], seconds: float, interval: float = 0) -> None:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)

    try:
        yield set_alarm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def signals(alarm: Callable[..., None]) -> list[int]:
    """Interrupt the main thread every 20 ms, as a sampling profiler does."""
    received: list[int] = []
    alarm(lambda *_: received.append(1), 0.02, 0.02)
    return received


DRIPPING = tuple(step for i in range(20) for step in (GOOD[i : i + 1], 0.05))


def read_slowly(connection: socket.socket) -> None:
    """Read without exceeding the read timeout."""
    while connection.recv(1 << 18):
        time.sleep(0.02)


class FullQueue(Reading):
    """A server whose queue of connections is full, so that connecting takes forever."""

    def __enter__(self) -> FullQueue:
        self.listening.listen(0)
        self.waiting = [socket.socket() for _ in range(3)]
        for client in self.waiting:
            client.setblocking(False)
            client.connect_ex(self.listening.getsockname())
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (self.listening, *self.waiting):
            opened.close()


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize(
    ("make", "answer", "data", "scheme", "timeout", "expired"),
    [
        (Reading, 1.0, X, "http", Timeout(read=0.3, total=5), "read"),
        (Reading, DRIPPING, X, "http", Timeout(read=1, total=0.3), "total"),
        (Reading, 1.0, LARGE, "http", Timeout(read=0.3), "read"),
        (Reading, 1.0, LARGE, "http", Timeout(total=0.3), "total"),
        (Reading, read_slowly, LARGE, "http", Timeout(read=2, total=0.3), "total"),
        (FullQueue, None, X, "http", Timeout(connect=0.3), "connect"),
        (FullQueue, None, X, "http", Timeout(total=0.3), "total"),
        (Reading, 1.0, X, "https", Timeout(connect=0.3), "connect"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_timeouts(
    connect: Connect,
    signals: list[int],
    make: Any,
    answer: Any,
    data: Any,
    scheme: str,
    timeout: Timeout,
    expired: str,
) -> None:
    """Signals that interrupt the client do not extend them."""
    with make(answer) as server, connect(f"{scheme}://{server.address}") as client:
        fails = pytest.raises(TimeoutError, match=rf"0\.3 seconds \({expired} timeout\)")
        with takes(0.29, 0.9), fails:
            client.infer("m", {"x": data}, timeout=timeout)
    assert len(signals) > 5


class Refusing(Reading):
    """A server that does not listen any more."""

    def __enter__(self) -> Refusing:
        self.listening.close()
        return self

    def __exit__(self, *_: object) -> None:
        pass


def infer(client: Any, data: Any = X) -> None:
    client.infer("m", {"x": data}, timeout=Timeout(total=0.25))


@pytest.mark.parametrize(
    ("make", "url", "call"),
    [
        (Reading, "http://{}", infer),
        (Reading, "http://{}", lambda client: infer(client, LARGE[: 16 * MiB])),
        (Reading, "https://{}", infer),
        (FullQueue, "http://{}", infer),
        (Refusing, "http://{}", lambda client: client.wait_until_ready(timeout=0.25)),
        (Reading, "http://slow.test", infer),
    ],
    ids=["response", "sending", "handshake", "connecting", "readiness", "lookup"],
)
def test_waiting_takes_no_time_of_the_cpu(
    connect: Connect, resolver: Resolver, make: Any, url: str, call: Any
) -> None:
    server = make(0.3)
    with server, connect(url.format(server.address)) as client:
        before = time.thread_time()
        with pytest.raises(TimeoutError):
            call(client)
        assert time.thread_time() - before < 0.05


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("timeout", [Timeout(read=0.4), Timeout(total=0.4)])
def test_timeouts_begin_with_each_call(connect: Connect, timeout: Timeout) -> None:
    answers: list[Any] = [GOOD, (0.2, GOOD), 1.0]
    with Scripted(answers) as server, connect(server.address, timeout=timeout) as client:
        client.infer("m", {"x": X})
        time.sleep(0.5)
        client.infer("m", {"x": X})
        with takes(0.39, 0.9), pytest.raises(TimeoutError, match=r"0\.4 seconds"):
            client.infer("m", {"x": X})
        assert server.n_connections == 1


class AheadOfTime(asyncio.SelectorEventLoop):
    """Its clock advances whenever it is read, so timers are early; that of uvloop is coarse."""

    n_read = 0

    def time(self) -> float:
        self.n_read += 1
        return super().time() + self.n_read * 0.005


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize(
    "timeout", [Timeout(total=0.3), Timeout(read=0.3, total=5), Timeout(read=0.3, total=0.3)]
)
def test_timeout_that_is_reported_has_expired(timeout: Timeout) -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address, timeout=timeout) as client:
            expired = "total" if timeout.total == 0.3 else "read"
            with takes(0.3, 1), pytest.raises(TimeoutError, match=f"{expired} timeout"):
                await client.infer("m", {"x": X})

    with Scripted([1.0]) as server, asyncio.Runner(loop_factory=AheadOfTime) as runner:
        runner.run(main(server.address))


class Interrupt(BaseException):
    pass


def interrupt(*_: Any) -> None:
    raise Interrupt


def test_connecting_that_a_signal_handler_aborts(alarm: Callable[..., None]) -> None:
    """The socket is closed. Otherwise there would be a ResourceWarning, which is an error."""
    with FullQueue(None) as server, Client(server.address) as client:
        alarm(interrupt, 0.1)
        with pytest.raises(Interrupt) as caught:
            client.infer("m", {"x": X})
        traceback.clear_frames(caught.tb)
        del caught
        gc.collect()


@pytest.mark.slow(reason="it waits for timeouts")
# The handler may be called before the first step of a coroutine, or before anything refers to a new
# socket. Python warns of both.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_call_that_a_signal_handler_aborts(alarm: Callable[..., None]) -> None:
    """The connection is not used again, so that the next call does not get the wrong response."""
    generator = random.Random(1)
    n_aborted = 0

    def answer(connection: socket.socket) -> None:
        time.sleep(0.002)
        connection.sendall(http(b'{"name":"%d"}' % len(server.heads)))

    with Scripted([answer] * 1000) as server, Client(server.address, connections=1) as client:
        for _ in range(200):
            try:
                alarm(interrupt, generator.uniform(0.0001, 0.003))
                client.server_metadata()
                alarm(interrupt, 0)
            except Interrupt:
                n_aborted += 1
            n_before = len(server.heads)
            assert int(client.server_metadata()["name"]) > n_before
        assert n_aborted > 50
        assert server.n_connections >= n_aborted // 2


CALLBACKS = [name for name in dir(ResponseReader) if name.startswith("on_")]


@pytest.mark.parametrize("name", CALLBACKS)
def test_signal_handler_that_raises_an_exception_in_a_callback_of_the_parser(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for an error of the response, which could be repeated."""

    answer = http(CHUNKS, CHUNKED, length="")
    with Scripted([answer]) as server, connect(server.address, retries=1) as client:
        with monkeypatch.context() as patched, pytest.raises(Interrupt):
            patched.setattr(ResponseReader, name, interrupt)
            client.infer("m", {"x": X})
        assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert server.n_connections == 2


# --- operations of the socket ---


@contextlib.contextmanager
def connection_over(kind: Callable[..., socket.socket]) -> Iterator[tuple[Connection, Any]]:
    """Yield a connection of the client with a socket of this kind, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    with theirs, kind(fileno=ours.detach()) as sock:
        connection = Connection(sock, Backend(), None, Deadline(Timeout()))
        connection.is_tls = True
        yield connection, theirs


REQUEST = HttpRequest(Operation("POST", "/"), b"POST / HTTP/1.1\r\n\r\n", (), 19)


@pytest.mark.parametrize("error", [BlockingIOError, ssl.SSLWantWriteError])
def test_sending_that_has_to_wait(error: type[Exception]) -> None:
    class Busy(socket.socket):
        def send(self, *_: Any) -> int:
            raise error

    with connection_over(Busy) as (connection, _):
        window = [b"request"]
        assert (connection._send_window(window), window) == (0, [b"request"])


@pytest.mark.parametrize(
    ("received", "is_open"),
    [(ssl.SSLWantReadError(), True), (ssl.SSLZeroReturnError(), False), (b"a", False)],
    ids=["session ticket", "end", "data"],
)
def test_tls_bytes_on_an_idle_connection(received: Any, is_open: bool) -> None:
    class Tls(socket.socket):
        """A socket that has received a session ticket, the end of the stream, or data."""

        def recv(self, *_: Any) -> bytes:
            if isinstance(received, Exception):
                raise received
            return bytes(received)

    with connection_over(Tls) as (connection, _):
        assert connection.is_open() == is_open


class FakeTls(ssl.SSLSocket):
    """TLS that must receive before it can send, and that receives messages without data."""

    n_pending = 0

    def __init__(self, fileno: int) -> None:
        socket.socket.__init__(self, fileno=fileno)

    def pending(self) -> int:
        return self.n_pending

    def send(self, *_: Any) -> int:
        raise ssl.SSLWantReadError

    def recv_into(self, *_: Any) -> int:
        raise ssl.SSLWantReadError


@pytest.mark.parametrize(
    ("n_pending", "timeout", "expired"),
    [
        (1, Timeout(total=0.05), "total"),  # OpenSSL has decrypted bytes that were not read yet
        (0, Timeout(read=0.05), "read"),  # such as tickets of sessions, sent without end
    ],
)
def test_timeouts_while_tls_has_bytes_without_data(
    n_pending: int, timeout: Timeout, expired: str
) -> None:
    with connection_over(FakeTls) as (connection, peer):
        connection.socket.n_pending = n_pending  # type: ignore[attr-defined]
        connection.transferred_at = time.monotonic()
        peer.send(b"TLS")
        connection.deadline = Deadline(timeout)
        with pytest.raises(TimeoutError, match=f"{expired} timeout"):
            for _ in range(100):
                time.sleep(0.002)
                complete(connection._receive())


def test_tls_that_always_has_bytes_is_read_in_parts() -> None:
    """Otherwise a server that sends fast would keep an event loop from doing anything else.

    The socket itself has no bytes: OpenSSL has decrypted them before.
    """

    class Fast(FakeTls):
        n_received, n_pending = 0, 1

        def recv_into(self, buffer: Any, *_: Any) -> int:
            data = head if self.n_received == 0 else bytes(16 << 10)
            buffer[: len(data)] = data
            self.n_received += len(data)
            return len(data)

    head = http(b"", HEADERS, length=64 << 20)
    with connection_over(Fast) as (connection, _):
        complete(connection._receive())
        assert 1 << 20 <= connection.socket.n_received < 2 << 20  # type: ignore[attr-defined]


def test_tls_that_must_receive_before_it_can_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does not poll for what it cannot do, again and again."""
    events: list[int] = []
    wait = PollWatcher.wait

    async def note(self: PollWatcher, event: int, seconds: float | None) -> int:
        events.append(event)
        return await wait(self, event, seconds)

    monkeypatch.setattr(PollWatcher, "wait", note)
    fails = pytest.raises(TimeoutError, match="read timeout")
    with connection_over(FakeTls) as (connection, _), fails:
        complete(connection.exchange(REQUEST, Call(Deadline(Timeout(read=0.1)))))
    assert events == [select.POLLIN] * len(events)
    assert len(events) < 5


# --- calls that are cancelled ---


class Threaded(TlsScripted):
    """Serves each connection in a thread. It does not answer the close_notify of the client."""

    n_open = 0

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                self.n_open += 1
                threading.Thread(target=self.serve_one, args=(connection,), daemon=True).start()

    def serve_one(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            self.serve(connection)
        connection = socket.socket(fileno=connection.detach())
        connection.settimeout(5)
        with connection, contextlib.suppress(ConnectionError):
            while connection.recv(1 << 16):
                pass
            self.n_open -= 1

    def client(self) -> AsyncClient:
        if self.certificate is None:
            return AsyncClient(self.address)
        return AsyncClient(f"https://{self.address}", ssl_context=self.certificate.trusting())


@pytest.mark.parametrize("loop", LOOPS)
def test_call_that_is_cancelled_at_any_time(loop: Any, tls: Certificate | None) -> None:
    """Its connection is closed at once, also if TLS is not established yet or does not end.

    The next calls use other connections, and the event loop reports no errors.
    """
    reported: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: reported.append(error))
        for n_iterations in (*range(6), 8, 12, 16, 20, 24, 28):
            async with server.client() as client:
                call = asyncio.ensure_future(client.server_metadata())
                for _ in range(n_iterations):
                    await asyncio.sleep(0 if n_iterations < 16 else 0.0002)
                if call.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await call
                    await asyncio.to_thread(wait_for, lambda: server.n_open == 0)
                for metadata in await asyncio.gather(*(client.server_metadata() for _ in range(3))):
                    assert metadata == {"name": "x"}

    server = Threaded([http(b'{"name":"x"}')] * 9, tls)
    with server, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert reported == []


# --- connections that end within a response ---


def ends(answer: bytes, end: str, certificate: Certificate | None) -> Reading:
    """A server that sends an answer, and ends with or without close_notify, or with a reset."""

    def begin(connection: socket.socket) -> None:
        connection.recv(100_000)

    steps = {"truncated": (read, answer), "closed": (read, answer, close_tls)}
    return Reading({**steps, "reset": (begin, answer, 0.05, reset)}[end], certificate)


LOST = "the server closed the connection before"
NO_GPU = "500 Internal Server Error"
# An answer, and what is expected if TLS is not closed, and if it is: the error, or "" for success.
# A body that ends with the connection is only complete if TLS was closed.
ANSWERS: list[tuple[bytes, str, str]] = [
    (b"", LOST, LOST),
    (b"HTTP/1.1 200 OK\r\nA: b", LOST, LOST),
    (http(BODY, HEADERS), "", ""),
    (http(b"", HEADERS, length=len(BODY)), LOST, LOST),
    (http(CHUNKS, CHUNKED, length=""), "", ""),
    (http(CHUNKS[:-5], CHUNKED, length=""), LOST, LOST),
    (http(b"no GPU", status=NO_GPU, length=""), "500: no GPU$", "500: no GPU$"),
    (http(b"no GPU", status=NO_GPU, length=900), "500: no GPU$", "500: no GPU$"),
]
INCOMPLETE_UNLESS_CLOSED = [
    (http(BODY[:-1], HEADERS, length=len(BODY)), LOST, LOST),
    (http(CHUNKS[:-1], CHUNKED, length=""), LOST, LOST),
    (http(BODY, HEADERS, length=""), LOST, ""),
    (http(gzip.compress(BODY), GZIPPED, length=""), LOST, ""),
]


@pytest.mark.parametrize("end", ["truncated", "closed"])
@pytest.mark.parametrize(("answer", "truncated", "closed"), ANSWERS + INCOMPLETE_UNLESS_CLOSED)
def test_end_of_tls(
    connect: Connect, certificate: Certificate, answer: bytes, truncated: str, closed: str, end: str
) -> None:
    expected = truncated if end == "truncated" else closed
    with connect_to(ends(answer, end, certificate), connect) as client:
        if not expected:
            assert np.array_equal(client.infer("m", {"x": X})["x"].data, X)
        else:
            error = ConnectionError if expected == LOST else InferenceServerError
            with pytest.raises(error, match=expected):
                client.infer("m", {"x": X})


@pytest.mark.parametrize("data", [X, LARGE], ids=["sent", "sending"])
@pytest.mark.parametrize("answer", [answer for answer, _, _ in INCOMPLETE_UNLESS_CLOSED])
def test_response_that_ends_with_a_reset(connect: Connect, answer: bytes, data: Any) -> None:
    """It is not complete, also if its body ends with the connection."""
    with connect_to(ends(answer, "reset", None), connect) as client, pytest.raises(ConnectionError):
        client.infer("m", {"x": data})


# --- names that are looked up slowly ---


class Resolver:
    """Replaces ``socket.getaddrinfo``: "slow.test" takes two seconds, other names do not exist."""

    def __init__(self) -> None:
        self.original = socket.getaddrinfo
        self.n_lookups = 0

    def getaddrinfo(self, host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("flags", 0) & socket.AI_NUMERICHOST or host == HOST:
            return self.original(host, port, *arguments, **named)
        self.n_lookups += 1
        self.is_daemon = threading.current_thread().daemon
        if host == "slow.test":
            time.sleep(2)
            return self.original(HOST, port, *arguments, **named)
        raise socket.gaierror(socket.EAI_NONAME, "unknown")


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    found = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    return found


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize(
    ("timeout", "expired"), [(Timeout(connect=0.2), "connect"), (Timeout(total=0.2), "total")]
)
def test_timeouts_include_the_lookup_of_the_host(
    connect: Connect, resolver: Resolver, timeout: Timeout, expired: str, signals: list[int]
) -> None:
    with Scripted([GOOD]) as server:
        port = server.address.partition(":")[2]
        with connect(f"slow.test:{port}", timeout=timeout) as client:
            with takes(0.4, 1.9):
                for _ in range(2):
                    with pytest.raises(TimeoutError, match=rf"0\.2 seconds \({expired} timeout\)"):
                        client.infer("m", {"x": X})
            assert resolver.n_lookups == 1  # the lookup that has begun is not repeated
            assert client.infer("m", {"x": X}, timeout=5)["x"].shape == X.shape


@pytest.mark.slow(reason="it waits for timeouts")
def test_lookup_whose_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls look the name up again, and do not wait for this thread."""

    def fail(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with Scripted([GOOD]) as server:
        url = server.address.replace(HOST, "localhost")
        with Client(url, timeout=2) as client:
            with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="new thread"):
                patched.setattr(threading.Thread, "start", fail)
                client.infer("m", {"x": X})
            assert client.infer("m", {"x": X})["x"].shape == X.shape


@pytest.mark.parametrize("timeout", [5, None])
def test_name_that_does_not_exist(connect: Connect, resolver: Resolver, timeout: Any) -> None:
    with connect("none.test", timeout=timeout) as client:
        for n in range(2):  # it may exist later
            with pytest.raises(ConnectionError, match="unknown") as caught:
                client.infer("m", {"x": X})
            assert isinstance(caught.value.__cause__, socket.gaierror)
            assert resolver.n_lookups == n + 1
        assert resolver.is_daemon  # it does not keep the program alive


def test_host_with_several_addresses(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address is tried if there is no connection to the one before."""
    lookup = socket.getaddrinfo
    refused = lookup(HOST, free_port(), type=socket.SOCK_STREAM)
    with Scripted([GOOD]) as server, FullQueue(None) as full:
        silent = lookup(HOST, full.listening.getsockname()[1], type=socket.SOCK_STREAM)

        def look_up(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
            return [*refused, *silent, *lookup(host, port, *arguments, **named)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        with connect(server.address, timeout=Timeout(connect=0.2)) as client:
            assert client.infer("m", {"x": X})["x"].shape == X.shape
    gc.collect()  # a socket that was not closed causes a warning, which is an error
