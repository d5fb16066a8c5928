"""Faults of connections: which requests are sent again, signals, truncated TLS, slow names."""

from __future__ import annotations

import asyncio
import contextlib
import errno
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
from typing import Any

import numpy as np
import pytest
import uvloop

from support import client_fixtures
from support.client_fixtures import (
    BODY,
    GOOD,
    HEADERS,
    Certificate,
    Connect,
    TlsScripted,
    X,
    chunked,
    connect_to,
)
from support.memory import takes
from support.servers import HOST, Scripted, http
from support.threads import in_thread
from tensorwire.client import AsyncClient, Client, InferenceServerError, Progress, Timeout
from tensorwire.client.aio import LoopBackend
from tensorwire.client.connection import Connection, Connector
from tensorwire.client.limits import Deadline
from tensorwire.client.requests import Request
from tensorwire.client.responses import ResponseReader
from tensorwire.client.sync import BlockingBackend, blocking

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
certificate, tls = client_fixtures.certificate, client_fixtures.tls

CHUNKED = HEADERS | {"Transfer-Encoding": "chunked"}
CHUNKS = chunked(BODY, len(BODY))

Answer = Callable[[socket.socket], None]


# --- which requests are sent again ---


class KeepsOne(TlsScripted):
    """Answers the first request of each connection, and then calls ``end`` instead of reading."""

    def __init__(self, end: Answer, certificate: Certificate | None) -> None:
        super().__init__([GOOD], certificate)
        self.end = end

    def serve(self, connection: socket.socket) -> None:
        super().serve(connection)
        if self.n_connections == 1:
            self.end(connection)


def close_without_reading(connection: socket.socket) -> None:
    """A part of the request has arrived, of which the server reads nothing."""
    select.select([connection], [], [], 5)


def reset_without_reading(connection: socket.socket) -> None:
    close_without_reading(connection)
    reset(connection)


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


def close_tls(connection: ssl.SSLSocket) -> None:
    """Send close_notify, and do not wait for that of the client."""
    connection.setblocking(False)
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.unwrap()


def read_and_reset(connection: socket.socket) -> None:
    read(connection)
    reset(connection)


def read_and_close(connection: socket.socket) -> None:
    read(connection)


def read_and_close_politely(connection: socket.socket) -> None:
    """With TLS, the last message is close_notify."""
    read(connection)
    if isinstance(connection, ssl.SSLSocket):
        close_tls(connection)


def answer_in_part(connection: socket.socket) -> None:
    read(connection)
    connection.sendall(b"H")


def answer_in_part_and_reset(connection: socket.socket) -> None:
    answer_in_part(connection)
    time.sleep(0.1)
    reset(connection)


def stay_silent(connection: socket.socket) -> None:
    read(connection)
    time.sleep(0.5)


# What happens to a kept connection after some of the request was sent, and whether the request may
# be sent again.
ENDS: dict[Answer, bool] = {
    close_without_reading: True,
    reset_without_reading: True,
    read_a_part: True,
    read_and_reset: True,
    read_and_close: True,
    read_and_close_politely: True,
    answer_in_part: False,
    answer_in_part_and_reset: False,
    stay_silent: False,
}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the clients, which take no time."""
    found: list[float] = []

    async def sleep(_: Any, seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(BlockingBackend, "sleep", sleep)
    monkeypatch.setattr(LoopBackend, "sleep", sleep)
    return found


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_request_on_a_kept_connection_that_fails(
    connect: Connect, end: Answer, tls: Certificate | None, pauses: list[float]
) -> None:
    """A GET is sent again, but a POST only with a retry, because its model may have run."""
    error = TimeoutError if end is stay_silent else ConnectionError
    timeout = 0.3 if end is stay_silent else 60

    def is_answered(client: Any, method: str) -> bool:
        if method == "GET":
            return bool(client.is_ready())
        try:
            client.infer("m", {"x": X})
        except error:
            return False
        return True

    calls = [("GET", 0), ("POST", 0)]
    if ENDS[end]:
        calls.append(("POST", 1))
    for method, retries in calls:
        is_resent = ENDS[end] and (method == "GET" or retries > 0)
        server = KeepsOne(end, tls)
        with connect_to(server, connect, timeout=timeout, retries=retries) as client:
            client.is_ready()
            assert is_answered(client, method) == is_resent
        assert server.n_connections == 1 + is_resent, (method, retries)
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


def test_connection_that_is_closed_after_a_part_of_the_request_was_read(connect: Connect) -> None:
    """The server has read a part of the body, and may have processed it."""
    is_sent_in_part, is_closed = threading.Event(), threading.Event()

    def read_what_has_arrived(connection: socket.socket) -> None:
        while True:
            is_last = is_sent_in_part.is_set()
            if select.select([connection], [], [], 0.1)[0]:
                connection.recv(1 << 20)
            elif is_last:
                break
        connection.close()
        is_closed.set()

    def wait(progress: Progress) -> None:
        if 0 < progress.sent_nbytes < progress.request_nbytes:
            is_sent_in_part.set()
            assert is_closed.wait(5)

    server = KeepsOne(read_what_has_arrived, None)
    with connect_to(server, connect) as client:
        client.is_ready()
        data = np.zeros(32 << 20, np.int8)
        with pytest.raises(ConnectionError, match="before it responded"):
            client.infer("m", {"x": data}, on_progress=wait)
        assert server.n_connections == 1


@contextlib.contextmanager
def connection_over(kind: Callable[..., socket.socket]) -> Iterator[tuple[Connection, Any]]:
    """Yield a connection of the client with a socket of this kind, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    with theirs, kind(fileno=ours.detach()) as sock:
        yield Connection(sock, BlockingBackend(), None), theirs


receive = blocking(Connection._receive)(None)
exchange = blocking(Connection.exchange)(None)
REQUEST = Request("POST", "/", b"POST / HTTP/1.1\r\n\r\n", (), 19)


@pytest.mark.parametrize("error", [BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError])
def test_sending_that_has_to_wait(error: type[Exception]) -> None:
    class Busy(socket.socket):
        is_busy = True

        def send(self, data: Any, *_: Any) -> int:
            if self.is_busy:
                raise error
            return super().send(data)

    with connection_over(Busy) as (connection, _):
        connection.is_tls = True
        window = [b"request"]
        assert (connection._send_window(window), window) == (0, [b"request"])
        connection.socket.is_busy = False  # type: ignore[attr-defined]
        assert (connection._send_window(window), window) == (7, [])


def test_tls_that_fails_while_a_request_is_sent() -> None:
    """The connection has ended, of which receiving tells more."""

    class Tls(socket.socket):
        def send(self, *_: Any) -> int:
            raise ssl.SSLEOFError(8, "EOF occurred in violation of protocol")

    with connection_over(Tls) as (connection, peer):
        connection.is_tls = True
        peer.close()
        with pytest.raises(ConnectionError, match="before it responded"):
            exchange(connection, REQUEST, Deadline(Timeout()), None)


# --- signals ---


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """Interrupt the main thread every 20 ms, as a sampling profiler does."""
    received: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: received.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        yield received
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wait_1_second(_: socket.socket) -> None:
    time.sleep(1)


def drip(connection: socket.socket) -> None:
    for i in range(20):
        connection.sendall(GOOD[i : i + 1])
        time.sleep(0.05)


def send_in_part(connection: socket.socket) -> None:
    connection.sendall(GOOD[:-10])
    time.sleep(1)


class NeverReads(Scripted):
    def serve(self, connection: socket.socket) -> None:
        time.sleep(1)


class ReadsSlowly(Scripted):
    """It does not exceed the read timeout."""

    def serve(self, connection: socket.socket) -> None:
        while connection.recv(1 << 18):
            time.sleep(0.02)


class FullQueue(Scripted):
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


LARGE = np.zeros(32 << 20, np.int8)


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize(
    ("make", "answer", "data", "scheme", "timeout", "expired"),
    [
        (Scripted, wait_1_second, X, "http", Timeout(read=0.3), "read"),
        (Scripted, wait_1_second, X, "http", Timeout(read=0.3, total=5), "read"),
        (Scripted, send_in_part, X, "http", Timeout(read=0.3), "read"),
        (Scripted, drip, X, "http", Timeout(total=0.3), "total"),
        (Scripted, drip, X, "http", Timeout(read=1, total=0.3), "total"),
        (NeverReads, b"", LARGE, "http", Timeout(read=0.3), "read"),
        (NeverReads, b"", LARGE, "http", Timeout(total=0.3), "total"),
        (ReadsSlowly, b"", LARGE, "http", Timeout(read=2, total=0.3), "total"),
        (FullQueue, b"", X, "http", Timeout(connect=0.3), "connect"),
        (FullQueue, b"", X, "http", Timeout(total=0.3), "total"),
        (NeverReads, b"", X, "https", Timeout(connect=0.3), "connect"),
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
    with make([answer]) as server, connect(f"{scheme}://{server.address}") as client:
        fails = pytest.raises(TimeoutError, match=rf"0\.3 seconds \({expired} timeout\)")
        with takes(0.29, 0.9), fails:
            client.infer("m", {"x": data}, timeout=timeout)
    assert len(signals) > 5


@pytest.mark.slow(reason="it waits for timeouts")
def test_signals_do_not_extend_the_wait_for_a_connection(signals: list[int]) -> None:
    with (
        Scripted([wait_1_second]) as server,
        Client(server.address, connections=1) as client,
        in_thread(client.is_ready),
    ):
        time.sleep(0.1)
        with takes(0.29, 0.8), pytest.raises(TimeoutError, match="total timeout"):
            client.infer("m", {"x": X}, timeout=Timeout(total=0.3))
    assert len(signals) > 5


class Interrupt(BaseException):
    pass


@pytest.fixture
def alarm() -> Iterator[Callable[[float], Any]]:
    """A function that lets a signal handler raise Interrupt after some seconds."""

    def interrupt(*_: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_connecting_that_a_signal_handler_aborts(alarm: Callable[[float], Any]) -> None:
    """The socket is closed. Otherwise there would be a ResourceWarning, which is an error."""
    with FullQueue([]) as server, Client(server.address) as client:
        alarm(0.1)
        with pytest.raises(Interrupt) as caught:
            client.infer("m", {"x": X})
        traceback.clear_frames(caught.tb)
        del caught
        gc.collect()


@pytest.mark.slow(reason="it waits for timeouts")
# The handler may be called before the first step of a coroutine, of which Python warns.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_call_that_a_signal_handler_aborts(alarm: Callable[[float], Any]) -> None:
    """The connection is not used again, so that the next call does not get the wrong response."""
    generator = random.Random(1)
    n_aborted = 0

    def answer(connection: socket.socket) -> None:
        time.sleep(0.002)
        connection.sendall(http(b'{"name":"%d"}' % len(server.heads)))

    with Scripted([answer] * 1000) as server, Client(server.address, connections=1) as client:
        for _ in range(200):
            try:
                alarm(generator.uniform(0.0001, 0.003))
                client.server_metadata()
                alarm(0)
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

    def interrupt(*_: Any) -> None:
        raise Interrupt

    answer = http(CHUNKS, CHUNKED, length="")
    with Scripted([answer]) as server, connect(server.address, retries=1) as client:
        with monkeypatch.context() as patched, pytest.raises(Interrupt):
            patched.setattr(ResponseReader, name, interrupt)
            client.infer("m", {"x": X})
        assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert server.n_connections == 2


# --- operations of the socket ---


def test_timeout_of_the_kernel(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not reported as that of the client."""
    failed = TimeoutError(errno.ETIMEDOUT, "the host does not respond")

    async def fail(*_: Any) -> None:
        raise failed

    monkeypatch.setattr(Connection, "connect", fail)
    fails = pytest.raises(TimeoutError, match="the host does not respond")
    with connect("127.0.0.1:1") as client, fails:
        client.infer("m", {"x": X})


class FakeTls(ssl.SSLSocket):
    """TLS that must receive before it can send, and that receives messages without data."""

    def __init__(self, fileno: int) -> None:
        socket.socket.__init__(self, fileno=fileno)

    def pending(self) -> int:
        return 0

    def send(self, *_: Any) -> int:
        raise ssl.SSLWantReadError

    def recv_into(self, *_: Any) -> int:
        raise ssl.SSLWantReadError


def test_total_timeout_while_tls_always_has_bytes() -> None:
    """OpenSSL has decrypted bytes that the client has not read yet."""

    class Flooded(FakeTls):
        def pending(self) -> int:
            return 1

    with connection_over(Flooded) as (connection, _):
        deadline = Deadline(Timeout(total=0.05))
        with pytest.raises(TimeoutError, match="total timeout"):
            for _ in range(100):
                time.sleep(0.002)
                receive(connection, deadline, None)


def test_tls_that_always_has_bytes_is_read_in_parts() -> None:
    """Otherwise a server that sends fast would keep an event loop from doing anything else.

    The socket itself has no bytes: OpenSSL has decrypted them before.
    """

    class Fast(FakeTls):
        n_received = 0

        def pending(self) -> int:
            return 1

        def recv_into(self, buffer: Any, *_: Any) -> int:
            data = head if self.n_received == 0 else bytes(16 << 10)
            buffer[: len(data)] = data
            self.n_received += len(data)
            return len(data)

    head = http(b"", HEADERS, length=64 << 20)
    with connection_over(Fast) as (connection, _):
        receive(connection, Deadline(Timeout(read=0.1)), None)
        assert 1 << 20 <= connection.socket.n_received < 2 << 20  # type: ignore[attr-defined]


@pytest.mark.slow(reason="it waits for timeouts")
def test_tls_that_must_receive_before_it_can_send() -> None:
    """The client does not poll for what it cannot do, again and again."""
    with connection_over(FakeTls) as (connection, _):
        connection.is_tls = True
        used = time.process_time()
        with pytest.raises(TimeoutError, match="read timeout"):
            exchange(connection, REQUEST, Deadline(Timeout(read=1)), None)
        assert time.process_time() - used < 0.5


def test_read_timeout_while_tls_messages_have_no_data() -> None:
    """Such as tickets of sessions, which a server may send without end."""
    with connection_over(FakeTls) as (connection, peer):
        connection.transferred_at = time.monotonic()
        peer.send(b"TLS")
        with pytest.raises(TimeoutError, match="read timeout"):
            for _ in range(100):
                time.sleep(0.005)
                receive(connection, Deadline(Timeout(read=0.1)), None)


# --- calls that are cancelled ---


@pytest.mark.slow(reason="it makes thousands of calls")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_call_that_is_cancelled_at_any_time(loop: Any, tls: Certificate | None) -> None:
    """The next calls use other connections, and the event loop reports no errors."""
    reported: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: reported.append(error))
        for n_iterations in range(25):
            async with async_client(server) as client:
                call = asyncio.ensure_future(client.server_metadata())
                for _ in range(n_iterations):
                    await asyncio.sleep(0)
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call
                for metadata in await asyncio.gather(*(client.server_metadata() for _ in range(3))):
                    assert metadata == {"name": "x"}

    server = Threaded([http(b'{"name":"x"}')] * 9, tls)
    with server, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert reported == []


def async_client(server: TlsScripted) -> AsyncClient:
    if server.certificate is None:
        return AsyncClient(server.address)
    trusting = server.certificate.trusting()
    return AsyncClient(f"https://{server.address}", ssl_context=trusting)


class Threaded(TlsScripted):
    """Serves each connection in a thread."""

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                threading.Thread(target=self.serve_one, args=(connection,), daemon=True).start()

    def serve_one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self.serve(connection)


class NeverEnds(Threaded):
    """Performs the TLS handshake, and then waits until the client closes the connection.

    It does not answer the close_notify of the client.
    """

    def __init__(self, certificate: Certificate | None) -> None:
        super().__init__([], certificate)
        self.is_closed = threading.Event()

    def serve_one(self, connection: socket.socket) -> None:
        connection.settimeout(2)
        try:
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
                connection = socket.socket(fileno=connection.detach())
                connection.settimeout(2)
            with connection:
                while connection.recv(1 << 16):
                    pass
        except TimeoutError:
            return
        except OSError:  # the client has reset it, or closed it within the TLS handshake
            connection.close()
        self.is_closed.set()


@pytest.mark.parametrize("n_iterations", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connection_of_a_call_that_is_cancelled_is_closed_at_once(
    loop: Any, tls: Certificate | None, n_iterations: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if TLS is not established yet, or the server does not end it."""
    reported: list[Any] = []
    establish = Connector._establish

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: reported.append(error))

        async def cancel_later(call: Any) -> None:
            for _ in range(n_iterations or 0):
                await asyncio.sleep(0)
            call.cancel()

        async def establish_and_cancel(*arguments: Any) -> None:
            if n_iterations is not None:
                tasks.append(asyncio.ensure_future(cancel_later(call)))
            await establish(*arguments)
            if n_iterations is None:  # when the connection, and TLS, has been established
                call.cancel()

        tasks: list[Any] = []
        monkeypatch.setattr(Connector, "_establish", establish_and_cancel)
        async with async_client(server) as client:
            call = asyncio.ensure_future(client.server_metadata())
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(server.is_closed.wait, 3)

    server = NeverEnds(tls)
    with server, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert reported == []


# --- TLS that ends without close_notify ---


class EndsTls(TlsScripted):
    """Sends an answer, and ends the stream with or without close_notify."""

    def __init__(self, answer: bytes, certificate: Certificate, is_closed: bool) -> None:
        super().__init__([answer], certificate)
        self.is_closed = is_closed

    def read(self, connection: socket.socket) -> bool:
        read(connection)
        return True

    def serve(self, connection: socket.socket) -> None:
        super().serve(connection)
        if self.is_closed and isinstance(connection, ssl.SSLSocket):
            close_tls(connection)


GZIPPED = HEADERS | {"Content-Encoding": "gzip"}


@pytest.mark.parametrize("is_closed", [False, True], ids=["truncated", "closed"])
@pytest.mark.parametrize(
    ("answer", "is_complete"),
    [
        (b"", False),
        (b"HTTP/1.1 200 OK\r\nA: b", False),
        (http(BODY, HEADERS), True),
        (http(BODY[:-1], HEADERS, length=len(BODY)), False),
        (http(b"", HEADERS, length=len(BODY)), False),
        (http(CHUNKS, CHUNKED, length=""), True),
        (http(CHUNKS[:-1], CHUNKED, length=""), False),
        (http(CHUNKS[:-5], CHUNKED, length=""), False),
        (http(BODY, HEADERS, length=""), None),
        (http(gzip.compress(BODY), GZIPPED, length=""), None),
    ],
)
def test_end_of_tls(
    connect: Connect,
    certificate: Certificate,
    answer: bytes,
    is_complete: bool | None,
    is_closed: bool,
) -> None:
    """A body that ends with the connection is only complete if TLS was closed (None)."""
    with connect_to(EndsTls(answer, certificate, is_closed), connect) as client:
        if is_complete or (is_complete is None and is_closed):
            assert np.array_equal(client.infer("m", {"x": X})["x"].data, X)
        else:
            with pytest.raises(ConnectionError, match="the server closed the connection before"):
                client.infer("m", {"x": X})


@pytest.mark.parametrize("data", [X, LARGE], ids=["sent", "sending"])
@pytest.mark.parametrize(
    "answer",
    [
        http(BODY[:-1], HEADERS, length=len(BODY)),
        http(CHUNKS[:-1], CHUNKED, length=""),
        http(BODY, HEADERS, length=""),
        http(gzip.compress(BODY), GZIPPED, length=""),
    ],
)
def test_response_that_ends_with_a_reset(connect: Connect, answer: bytes, data: Any) -> None:
    """It is not complete, also if its body ends with the connection."""

    class Resets(Scripted):
        def serve(self, connection: socket.socket) -> None:
            connection.recv(100_000)
            connection.sendall(answer)
            time.sleep(0.05)
            reset(connection)

    fails = pytest.raises(ConnectionError)
    with Resets([]) as server, connect(server.address) as client, fails:
        client.infer("m", {"x": data})


@pytest.mark.parametrize("is_closed", [False, True], ids=["truncated", "closed"])
@pytest.mark.parametrize("length", ["", 900])
def test_end_of_tls_in_an_error_response(
    connect: Connect, certificate: Certificate, is_closed: bool, length: Any
) -> None:
    """The status and the start of the message are reported, as without TLS."""
    answer = http(b"no GPU", status="500 Internal Server Error", length=length)
    fails = pytest.raises(InferenceServerError, match=r": status 500: no GPU$")
    with connect_to(EndsTls(answer, certificate, is_closed), connect) as client, fails:
        client.infer("m", {"x": X})


# --- names that are looked up slowly ---

# uvloop calls the function of the C library itself
python_connect = pytest.mark.parametrize("connect", [Client, client_fixtures.Awaited])


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    found = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    return found


class Resolver:
    """Replaces ``socket.getaddrinfo``: "slow.test" takes a second, other names do not exist."""

    def __init__(self) -> None:
        self.original = socket.getaddrinfo
        self.n_lookups = 0

    def getaddrinfo(self, host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("flags", 0) & socket.AI_NUMERICHOST or host == HOST:
            return self.original(host, port, *arguments, **named)
        self.n_lookups += 1
        if host == "slow.test":
            time.sleep(0.8)
            return self.original(HOST, port, *arguments, **named)
        raise socket.gaierror(socket.EAI_NONAME, "unknown")


@pytest.mark.slow(reason="it waits for timeouts")
@python_connect
@pytest.mark.parametrize(
    ("timeout", "expired"), [(Timeout(connect=0.2), "connect"), (Timeout(total=0.2), "total")]
)
def test_timeouts_include_the_lookup_of_the_host(
    connect: Connect, resolver: Resolver, timeout: Timeout, expired: str, signals: list[int]
) -> None:
    with Scripted([GOOD]) as server:
        port = server.address.partition(":")[2]
        with connect(f"slow.test:{port}", timeout=timeout) as client:
            with takes(0.4, 0.75):
                for _ in range(2):
                    with pytest.raises(TimeoutError, match=rf"0\.2 seconds \({expired} timeout\)"):
                        client.infer("m", {"x": X})
            # the lookup that has begun is not repeated by the blocking client
            assert resolver.n_lookups == (1 if isinstance(client, Client) else 2)
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


@python_connect
@pytest.mark.parametrize("timeout", [5, None])
def test_name_that_does_not_exist(connect: Connect, resolver: Resolver, timeout: Any) -> None:
    with connect("none.test", timeout=timeout) as client:
        for n in range(2):  # it may exist later
            with pytest.raises(ConnectionError, match="unknown") as caught:
                client.infer("m", {"x": X})
            assert isinstance(caught.value.__cause__, socket.gaierror)
            assert resolver.n_lookups == n + 1


@python_connect
def test_host_with_several_addresses(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address is tried if there is no connection to the one before."""
    lookup = socket.getaddrinfo
    refused = lookup(HOST, client_fixtures.free_port(), type=socket.SOCK_STREAM)
    with Scripted([GOOD]) as server, FullQueue([]) as full:
        silent = lookup(HOST, full.listening.getsockname()[1], type=socket.SOCK_STREAM)

        def look_up(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
            return [*refused, *silent, *lookup(host, port, *arguments, **named)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        with connect(server.address, timeout=Timeout(connect=0.2)) as client:
            assert client.infer("m", {"x": X})["x"].shape == X.shape
    gc.collect()  # a socket that was not closed causes a warning, which is an error


# --- the clock ---


class AheadOfTime(asyncio.SelectorEventLoop):
    """Its clock advances whenever it is read, so timers are early; that of uvloop is coarse."""

    n_read = 0

    def time(self) -> float:
        self.n_read += 1
        return super().time() + self.n_read * 0.005


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize(
    ("timeout", "expired"),
    [
        (Timeout(read=5, total=0.3), "longer than 0.3 seconds (total timeout)"),
        (Timeout(read=0.3, total=5), "for 0.3 seconds (read timeout)"),
        (Timeout(read=0.3, total=0.3), "longer than 0.3 seconds (total timeout)"),
    ],
)
def test_timeout_that_is_reported_has_expired(timeout: Timeout, expired: str) -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address, timeout=timeout) as client:
            with takes(0.3, 1), pytest.raises(TimeoutError) as caught:
                await client.infer("m", {"x": X})
            assert expired in str(caught.value)

    with Scripted([wait_1_second]) as server, asyncio.Runner(loop_factory=AheadOfTime) as runner:
        runner.run(main(server.address))
