"""`InferProtocol` on uvicorn: its own behaviour, and what it shares with uvicorn's supervision.

The cases that every server must pass are in test_http_conformance.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import logging
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import Certificate
from support.servers import uvicorn_server
from tensorwire.server import InferProtocol, Model, create_app
from tensorwire.server import uvicorn as server_uvicorn
from tensorwire.server.serve import echo
from tensorwire.server.workers import N_THREADS

pytestmark = [
    pytest.mark.thread_unsafe(reason="the tests share a server"),
    pytest.mark.no_sanitizers(reason="it tests sockets and event loops"),
]

MiB = 1 << 20
certificate = client_fixtures.certificate
BINARY = {"binary_data_output": True}
asgi_paths: list[str] = []  # of the requests that reached the ASGI application
counted: list[int] = []  # calls of the model "count"
released = threading.Event()  # the model "wait" returns when it is set
started = threading.Event()


async def async_echo(request: tw.InferRequest) -> tw.InferResponse:
    await asyncio.sleep(0.001)
    return tw.InferResponse(request.inputs)


def wait(request: tw.InferRequest) -> tw.InferResponse:
    started.set()
    assert released.wait(20)
    return tw.InferResponse(request.inputs)


async def slow(request: tw.InferRequest) -> tw.InferResponse:
    await asyncio.sleep(0.2)
    return tw.InferResponse(request.inputs)


def count(request: tw.InferRequest) -> tw.InferResponse:
    counted.append(1)
    return tw.InferResponse(request.inputs)


async def cancels(request: tw.InferRequest) -> tw.InferResponse:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0.1)
    raise AssertionError("unreachable")


def returns_coroutine(request: tw.InferRequest) -> Any:
    return async_echo(request)


def fail(request: tw.InferRequest) -> Any:
    raise RuntimeError("a secret")


class RecordingApp(type(create_app({}))):  # type: ignore[misc]
    """The application of `create_app`, which records the requests that pass through ASGI."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asgi_paths.append(scope["path"])
        await super().__call__(scope, receive, send)


def make_app(**options: Any) -> Any:
    models: dict[str, Any] = {
        "echo": Model(echo, in_event_loop=True),
        "async": async_echo,
        "thread": echo,
        "wait": wait,
        "slow": slow,
        "cancels": cancels,
        "count": Model(count, in_event_loop=True),
        "coroutine": Model(returns_coroutine, in_event_loop=True),
        "fail": Model(fail, in_event_loop=True),
        "a b/ü%20": echo,
        "a%20b/%C3%BC%2520": echo,  # what a target with the name before looks like
    }
    app = create_app(models, **options)
    app.__class__ = RecordingApp
    return app


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with uvicorn_server(make_app(max_body=64 * MiB), http=InferProtocol) as address:
        yield address


def connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    connection = socket.create_connection((host, int(port)), 20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def request_bytes(model: str, x: Any, headers: str = "", id: str = "") -> bytes:
    request = tw.InferRequest([tw.Tensor("x", x)], id=id or None, parameters=BINARY)
    frame = tw.encode_request(request)
    lines = "".join(f"{name}: {value}\r\n" for name, value in frame.headers.items())
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{lines}{headers}\r\n"
    return head.encode() + bytes(frame)


class Answer:
    """A response that is read from a file."""

    def __init__(self, file: Any) -> None:
        line = file.readline().split(b" ", 2)
        assert line[0] == b"HTTP/1.1", line
        self.status = int(line[1])
        self.headers = http.client.parse_headers(file)
        self.body = file.read(int(self.headers["content-length"]))

    @property
    def response(self) -> tw.InferResponse:
        assert self.status == 200, self.body
        return tw.decode_response(self.body, tw.header_length(self.headers))

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


class Stream:
    """Reads the responses of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.file = connection.makefile("rb")

    def answer(self) -> Answer:
        return Answer(self.file)

    def at_end(self) -> bool:
        """Return whether the server closes the connection."""
        return self.file.read(1) == b""


@pytest.mark.parametrize("model", ["echo", "async", "thread", "coroutine"])
@pytest.mark.parametrize("n", [0, 1, 100_000, 2_000_000])
def test_infer_request_does_not_pass_through_asgi(address: str, model: str, n: int) -> None:
    asgi_paths.clear()
    x = np.arange(n, dtype=np.float32)
    with connect(address) as connection:
        stream = Stream(connection)
        for _ in range(3):
            connection.sendall(request_bytes(model, x, id="7"))
            response = stream.answer().response
            assert np.array_equal(response["x"].as_numpy(), x)
            assert (response.model_name, response.id) == (model, "7")
    assert asgi_paths == []


def test_other_requests_do_not_pass_through_asgi(address: str) -> None:
    asgi_paths.clear()
    connection = http.client.HTTPConnection(address, timeout=20)
    for method, path, status in (
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/models/echo", 200),
        ("GET", "/v2/models/echo/infer", 405),
        ("POST", "/v2/models/nobody/infer", 404),
    ):
        connection.request(method, path)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == status
    assert asgi_paths == []
    connection.close()


@pytest.mark.parametrize(
    "target",
    [
        "/v2/models/a%20b/%C3%BC%2520/infer",
        "/v2/models/a%20b%2F%c3%bc%2520/infer?x=1",
        "/v2/models/%61%20b/%C3%BC%2520/versions/1/infer",
        "http://other/v2/models/a%20b/%C3%BC%2520/infer",
    ],
)
def test_spellings_of_a_target(address: str, target: str) -> None:
    asgi_paths.clear()
    message = request_bytes("echo", np.arange(3)).replace(
        b"/v2/models/echo/infer", target.encode(), 1
    )
    with connect(address) as connection:
        connection.sendall(message)
        assert Stream(connection).answer().response.model_name == "a b/ü%20"
    assert asgi_paths == []


@pytest.mark.parametrize("pieces", [1, 7, 65_536])
def test_body_in_pieces_with_pipelined_successor(address: str, pieces: int) -> None:
    """The bytes after a body that is received directly belong to the next request."""
    big, small = np.arange(1_000_000, dtype=np.float32), np.arange(5, dtype=np.float32)
    text = request_bytes("echo", big) + request_bytes("async", small) + request_bytes("echo", big)
    with connect(address) as connection:
        stream = Stream(connection)
        starts = [0, *(len(text) * i // pieces for i in range(1, min(pieces, 40))), len(text)]

        def send() -> None:
            for start, end in pairwise(starts):
                connection.sendall(text[start:end])

        sender = threading.Thread(target=send)
        sender.start()
        for expected in (big, small, big):
            assert np.array_equal(stream.answer().response["x"].as_numpy(), expected)
        sender.join()


def test_order_of_pipelined_requests(address: str) -> None:
    """Responses have the order of the requests, whichever model is ready first."""
    kinds = ["async", "echo", "thread", "GET", "echo", "nobody", "coroutine", "fail"] * 100
    text = b"".join(
        b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        if kind == "GET"
        else request_bytes(kind, np.arange(3), id=str(i))
        for i, kind in enumerate(kinds)
    )
    with connect(address) as connection:
        stream = Stream(connection)
        sender = threading.Thread(target=connection.sendall, args=(text,))
        sender.start()
        for i, kind in enumerate(kinds):
            answer = stream.answer()
            if kind == "GET":
                assert json.loads(answer.body) == {"live": True}
            elif kind == "nobody":
                assert answer.error == "model 'nobody' is not known"
            elif kind == "fail":
                assert (answer.status, answer.error) == (500, "model 'fail' failed")
            else:
                assert answer.response.id == str(i)
        sender.join()


def test_thousands_of_queued_requests(address: str) -> None:
    """Requests that wait for an earlier one are answered without recursion."""
    n = 3000
    released.clear()
    with connect(address) as connection:
        stream = Stream(connection)
        text = request_bytes("echo", np.arange(1))
        connection.sendall(request_bytes("wait", np.arange(2)))
        sender = threading.Thread(target=connection.sendall, args=(text * n,))
        sender.start()
        time.sleep(0.2)
        released.set()
        assert stream.answer().response["x"].shape == (2,)
        assert all(stream.answer().response["x"].shape == (1,) for _ in range(n))
        sender.join()


def test_garbage_after_a_request_is_rejected_after_the_response(address: str) -> None:
    released.clear()
    with connect(address) as connection:
        stream = Stream(connection)
        connection.sendall(request_bytes("wait", np.arange(2)) + b"\x00garbage\r\n\r\n")
        time.sleep(0.1)
        released.set()
        assert stream.answer().response["x"].shape == (2,)
        answer = stream.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert answer.error == "Invalid HTTP request received."
        assert connection.recv(1) == b""


def test_invalid_chunk_ends_the_request(address: str) -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(address) as connection:
        connection.sendall(head + b"4\r\nabcd\r\nzz\r\n")
        answer = Stream(connection).answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert connection.recv(1) == b""


def test_too_long_body_is_rejected_before_it_arrives(address: str) -> None:
    with connect(address) as connection:
        head = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
        connection.sendall(head.encode())
        answer = Stream(connection).answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        connection.sendall(b"a" * 30_000_000)  # the server discards it, and does not reset
        connection.sendall(b"a" * 69_999_999)
        connection.settimeout(3)
        assert connection.recv(1) == b""


def test_garbage_in_a_body_that_is_discarded(address: str) -> None:
    """The connection is closed at once, because the end of the body will not be found."""
    head = b"POST /nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    n = 17 * MiB
    with connect(address) as connection:
        connection.sendall(head + b"%x\r\n" % n + bytes(n) + b"\r\n")
        answer = Stream(connection).answer()
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        connection.sendall(b"zz\r\n")
        connection.settimeout(3)
        assert connection.recv(1) == b""


def test_body_of_a_rejected_request_is_discarded(address: str) -> None:
    x = np.arange(500_000, dtype=np.float32)
    with connect(address) as connection:
        stream = Stream(connection)
        rejected = request_bytes("echo", x, headers="Content-Encoding: br\r\n")
        connection.sendall(rejected + request_bytes("echo", x[:3]))
        assert stream.answer().status == 415
        assert stream.answer().response["x"].shape == (3,)


def test_header_flood() -> None:
    with uvicorn_server(make_app(), http=InferProtocol) as address, connect(address) as connection:
        connection.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            for i in range(100_000):
                connection.sendall(b"X-%d: 1\r\n" % i)
        with contextlib.suppress(ConnectionResetError):
            assert Stream(connection).answer().status == 431


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"POST /v2/mod", "the headers did not arrive within 0.3 seconds"),
        (
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\nabc",
            "the body did not arrive within 0.3 seconds",
        ),
        (
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
            "the body did not arrive within 0.3 seconds",
        ),
    ],
)
def test_slow_request_is_cut_off(sent: bytes, error: str) -> None:
    app = make_app(receive_timeout=0.3)
    with uvicorn_server(app, http=InferProtocol) as address, connect(address) as connection:
        connection.sendall(sent)
        for _ in range(2):
            time.sleep(0.1)
            connection.sendall(b"a")  # further bytes do not extend the time
        answer = Stream(connection).answer()
        assert (answer.status, answer.error) == (408, error)
        assert connection.recv(1) == b""


def test_client_that_does_not_read_is_disconnected() -> None:
    app = make_app(receive_timeout=0.5)
    x = np.zeros(8 * MiB, np.float32)
    with uvicorn_server(app, http=InferProtocol) as address, connect(address) as connection:
        connection.sendall(request_bytes("echo", x))
        time.sleep(1.6)
        nbytes = 0
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(1 << 20):
                nbytes += len(chunk)
        assert nbytes < x.nbytes  # the rest of the response is lost


def test_half_closed_connection(address: str) -> None:
    released.clear()
    started.clear()
    with connect(address) as connection:
        connection.sendall(request_bytes("wait", np.arange(2)))
        connection.shutdown(socket.SHUT_WR)
        assert started.wait(10)
        time.sleep(0.1)
        released.set()
        answer = Stream(connection).answer()
        assert answer.response["x"].shape == (2,)
        connection.settimeout(3)
        assert connection.recv(1) == b""


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("n_pauses", [0, 1, 4])
def test_keep_alive_timeout(n_pauses: int) -> None:
    """It begins after each response, also if a longer timeout applied to the request."""
    sent = request_bytes("echo", np.arange(2))
    with (
        uvicorn_server(make_app(), http=InferProtocol, timeout_keep_alive=1) as address,
        connect(address) as connection,
    ):
        stream = Stream(connection)
        connection.sendall(sent[:-1])
        time.sleep(0.1)
        connection.sendall(sent[-1:])
        assert stream.answer().status == 200
        for _ in range(n_pauses):
            time.sleep(0.5)
            connection.sendall(sent)
            assert stream.answer().status == 200
        begin = time.monotonic()
        connection.settimeout(5)
        assert connection.recv(1) == b""
        assert 0.5 < time.monotonic() - begin < 4


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("repeated", [b"", b"\r\n", b"\n"], ids=repr)
@pytest.mark.parametrize("after_request", [False, True])
def test_connection_without_a_request_is_closed(
    loop: str, repeated: bytes, after_request: bool
) -> None:
    """Empty lines, which may precede a request, do not keep a connection open."""
    options = {"timeout_keep_alive": 1, "loop": loop}
    with (
        uvicorn_server(make_app(), http=InferProtocol, **options) as address,
        connect(address) as connection,
    ):
        if after_request:
            connection.sendall(request_bytes("echo", np.arange(2)))
            assert Stream(connection).answer().status == 200
        connection.settimeout(0.3)
        begin = time.monotonic()
        while time.monotonic() < begin + 5:
            with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                connection.sendall(repeated)
                if connection.recv(1) == b"":
                    break
        assert 0.9 < time.monotonic() - begin < 3


def test_silent_connections_do_not_exhaust_limit_concurrency() -> None:
    options = {"timeout_keep_alive": 1, "limit_concurrency": 4}
    with (
        uvicorn_server(make_app(), http=InferProtocol, **options) as address,
        contextlib.ExitStack() as stack,
    ):
        for sent in (b"", b"\r\n", b""):
            stack.enter_context(connect(address)).sendall(sent)
        time.sleep(0.2)
        with connect(address) as connection:
            connection.sendall(request_bytes("echo", np.arange(2)))
            answer = Stream(connection).answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
        time.sleep(1.5)
        with connect(address) as connection:
            connection.sendall(request_bytes("echo", np.arange(2)))
            assert Stream(connection).answer().status == 200


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def n_protocols() -> int:
    gc.collect()
    return sum(type(each) is InferProtocol for each in gc.get_objects())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("model", ["wait", "slow"])
def test_closed_connections_are_not_kept(loop: str, model: str) -> None:
    """A reply that is ready after its connection was closed starts no timer."""
    before = n_protocols()
    with uvicorn_server(make_app(), http=InferProtocol, loop=loop) as address:
        released.clear()
        for _ in range(5):
            connection = connect(address)
            connection.sendall(request_bytes(model, np.arange(2)))
            time.sleep(0.05)
            reset(connection)
        released.set()
        deadline = time.monotonic() + 5
        while n_protocols() > before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert n_protocols() == before


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("is_tls", [False, True])
def test_client_that_reads_slowly_gets_large_replies(
    certificate: Certificate, loop: str, is_tls: bool
) -> None:
    """Neither the timeout of unread replies nor that of idle connections ends the connection."""
    app = make_app(receive_timeout=1)
    options: dict[str, Any] = {"loop": loop, "timeout_keep_alive": 1}
    if is_tls:
        options |= {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    x = np.zeros(3 * MiB, np.float32)
    with (
        uvicorn_server(app, http=InferProtocol, **options) as address,
        contextlib.ExitStack() as stack,
    ):
        connection = stack.enter_context(connect(address))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        if is_tls:
            context = certificate.trusting()
            connection = stack.enter_context(
                context.wrap_socket(connection, server_hostname="127.0.0.1")
            )
        connection.sendall(request_bytes("echo", x))
        n_received = 0
        while n_received < x.nbytes:
            n_more = len(connection.recv(10_000))
            assert n_more > 0, f"the connection ended after {n_received} bytes"
            n_received += n_more
            time.sleep(0.002)


OVER_LIMIT = b"%x\r\n%b\r\n" % (MiB, bytes(MiB))
CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("sent", "more", "status"),
    [
        (request_bytes("echo", np.zeros(200_000), "Connection: close\r\n"), b"\r\n", 200),
        (
            request_bytes("echo", np.zeros(200_000), "Connection: close\r\n"),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            200,
        ),
        (CHUNKED + b"Expect: 100-continue\r\n\r\n", OVER_LIMIT * 25, 413),
        (CHUNKED + b"\r\n", OVER_LIMIT * 25, 413),
        (CHUNKED + b"\r\n4\r\nabcd\r\nzz\r\n", bytes(MiB), 400),
        (b"\0", bytes(MiB), 400),
    ],
    ids=["empty line", "request", "too long after 100", "too long", "invalid chunk", "garbage"],
)
def test_unread_input_does_not_destroy_the_last_reply(
    loop: str, sent: bytes, more: bytes, status: int
) -> None:
    with uvicorn_server(make_app(max_body=4 * MiB), http=InferProtocol, loop=loop) as address:
        for _ in range(5):
            with connect(address) as connection:
                stream = Stream(connection)
                connection.sendall(sent)
                if b"Expect" in sent:
                    assert stream.file.readline().startswith(b"HTTP/1.1 100 ")
                    stream.file.readline()
                connection.sendall(more)
                time.sleep(0.05)
                answer = stream.answer()
                assert (answer.status, answer.headers["connection"]) == (status, "close")
                assert stream.at_end()


COUNTED = request_bytes("count", np.arange(2))
WITH_EXPECT = "Expect: 100-continue\r\nContent-Length: 4\r\n"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: 5000\r\n\r\n" + bytes(5000), 413),
        (f"POST /nope HTTP/1.1\r\n{WITH_EXPECT}\r\nbody".encode(), 404),
        (b"GET /v2 HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n", 431),
    ],
    ids=["413", "404 with Expect", "431"],
)
def test_requests_behind_a_rejected_one_are_ignored(
    caplog: pytest.LogCaptureFixture, loop: str, sent: bytes, status: int
) -> None:
    """The rejected request arrives completely, in one segment with its successor."""
    counted.clear()
    with (
        uvicorn_server(make_app(max_body=4000), http=InferProtocol, loop=loop) as address,
        connect(address) as connection,
    ):
        stream = Stream(connection)
        connection.sendall(sent + COUNTED * 2)
        answer = stream.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert stream.at_end()
    assert counted == []
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_requests_behind_one_whose_task_is_cancelled_are_ignored() -> None:
    counted.clear()
    with uvicorn_server(make_app(), http=InferProtocol) as address, connect(address) as connection:
        stream = Stream(connection)
        connection.sendall(request_bytes("cancels", np.arange(2)) + COUNTED)
        answer = stream.answer()
        assert (answer.status, answer.headers["connection"]) == (500, "close")
        assert stream.at_end()
    assert counted == []


@pytest.mark.parametrize("model", ["thread", "async", "echo"])
def test_half_closed_connection_with_a_body_that_is_decoded_in_a_thread(
    address: str, model: str
) -> None:
    tensor = tw.Tensor("x", np.arange(300_000), binary=False)
    frame = tw.encode_request(tw.InferRequest([tensor], parameters=BINARY))
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nContent-Length: {len(frame)}\r\n\r\n"
    with connect(address) as connection:
        connection.sendall(head.encode() + bytes(frame))
        connection.shutdown(socket.SHUT_WR)
        assert Stream(connection).answer().response["x"].shape == (300_000,)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_keep_alive_timeout_of_zero(loop: str) -> None:
    """A connection is closed after the reply to its first request, and not before the request."""
    options = {"timeout_keep_alive": 0, "loop": loop}
    with (
        uvicorn_server(make_app(), http=InferProtocol, **options) as address,
        connect(address) as connection,
    ):
        time.sleep(0.2)
        connection.sendall(request_bytes("echo", np.arange(2)))
        stream = Stream(connection)
        assert stream.answer().status == 200
        assert stream.at_end()


def test_slowly_read_last_replies_log_no_errors(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio does not expect that a transport is closed while it resumes writing."""
    sent = request_bytes("echo", np.zeros(4 * MiB, np.float32), "Connection: close\r\n")
    with uvicorn_server(make_app(), http=InferProtocol, loop="asyncio") as address:
        for _ in range(5):
            with connect(address) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                time.sleep(0.05)
                stream = Stream(connection)
                assert stream.answer().status == 200
                assert stream.at_end()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_limit_concurrency() -> None:
    released.clear()
    with (
        uvicorn_server(make_app(), http=InferProtocol, limit_concurrency=2) as address,
        connect(address) as first,
    ):
        first.sendall(request_bytes("wait", np.arange(2)))
        assert started.wait(10)
        with connect(address) as second, connect(address) as third:
            third.sendall(request_bytes("echo", np.arange(2)))
            assert Stream(third).answer().status == 503
            second.close()
        released.set()
        assert Stream(first).answer().status == 200


def test_limit_concurrency_counts_models_of_clients_that_have_disconnected() -> None:
    """They reset their connections, and the models go on."""
    released.clear()
    with uvicorn_server(make_app(), http=InferProtocol, limit_concurrency=2) as address:
        for _ in range(2):
            started.clear()
            with connect(address) as connection:
                connection.sendall(request_bytes("wait", np.arange(2)))
                assert started.wait(10)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            time.sleep(0.1)
        for status in (503, 200):
            with connect(address) as connection:
                connection.sendall(request_bytes("echo", np.arange(2)))
                assert Stream(connection).answer().status == status
            released.set()
            time.sleep(0.1)


def test_graceful_shutdown_answers_requests_in_flight() -> None:
    released.clear()
    started.clear()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(uvicorn_server(make_app(), http=InferProtocol))
        in_flight, idle = connect(address), connect(address)
        with in_flight, idle:
            stream = Stream(idle)
            idle.sendall(request_bytes("echo", np.arange(2)))
            stream.answer()
            in_flight.sendall(request_bytes("wait", np.arange(2)))
            assert started.wait(10)
            closing = threading.Thread(target=stack.close)
            closing.start()
            idle.settimeout(2)
            assert idle.recv(1) == b""  # an idle connection is closed at once
            released.set()
            answer = Stream(in_flight).answer()
            assert answer.response["x"].shape == (2,)
            assert answer.headers["connection"] == "close"
            closing.join(10)


def test_graceful_shutdown_while_a_body_arrives() -> None:
    sent = request_bytes("echo", np.arange(1000))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(uvicorn_server(make_app(), http=InferProtocol))
        with connect(address) as connection:
            connection.sendall(sent[:-500])
            time.sleep(0.1)
            closing = threading.Thread(target=stack.close)
            closing.start()
            time.sleep(0.3)
            connection.sendall(sent[-500:])
            answer = Stream(connection).answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            closing.join(10)


def test_access_log_with_proxy_headers(caplog: pytest.LogCaptureFixture) -> None:
    """Trailers are not headers, and an invalid request has no line."""
    options = {"access_log": True, "proxy_headers": True, "forwarded_allow_ips": "127.0.0.1"}
    logger = logging.getLogger("uvicorn.access")
    with uvicorn_server(make_app(), http=InferProtocol, **options) as address:
        logger.addHandler(caplog.handler)
        caplog.set_level("INFO", "uvicorn.access")
        with connect(address) as connection:
            stream = Stream(connection)
            headers = "X-Forwarded-For: 192.0.2.7\r\n"
            connection.sendall(request_bytes("echo", np.arange(2), headers))
            assert stream.answer().status == 200
            head = f"GET /v2 HTTP/1.1\r\nHost: x\r\n{headers}Transfer-Encoding: chunked\r\n\r\n"
            trailers = "0\r\nX-Forwarded-For: 198.51.100.9\r\n\r\n"
            connection.sendall(head.encode() + trailers.encode() + b"garbage\r\n\r\n")
            assert (stream.answer().status, stream.answer().status) == (200, 400)
        logger.removeHandler(caplog.handler)
    lines = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert lines == [
        '192.0.2.7:0 - "POST /v2/models/echo/infer HTTP/1.1" 200',
        '192.0.2.7:0 - "GET /v2 HTTP/1.1" 200',
    ]


def test_application_of_another_framework() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await receive()
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b"other"})

    with (
        uvicorn_server(app, http=InferProtocol, lifespan="off") as address,
        connect(address) as connection,
    ):
        connection.sendall(request_bytes("echo", np.arange(2)))
        assert connection.recv(100).startswith(b"HTTP/1.1 202 ")


def test_root_path() -> None:
    app = make_app()
    with (
        uvicorn_server(app, http=InferProtocol, root_path="/prefix") as address,
        connect(address) as connection,
    ):
        connection.sendall(request_bytes("echo", np.arange(2)))
        assert Stream(connection).answer().status == 200


def test_only_the_proxy_headers_middleware_of_uvicorn_is_bypassed() -> None:
    asgi_paths.clear()
    wrapped = ProxyHeadersMiddleware(ProxyHeadersMiddleware(make_app()))
    with uvicorn_server(wrapped, http=InferProtocol) as address, connect(address) as connection:
        connection.sendall(request_bytes("echo", np.arange(2)))
        assert Stream(connection).answer().status == 200
    assert asgi_paths == ["/v2/models/echo/infer"]


def test_client_that_reads_slowly_is_not_disconnected() -> None:
    """A response may take longer than receive_timeout, if there is progress."""
    app = make_app(receive_timeout=0.4)
    x = np.zeros(6 * MiB, np.float32)
    with uvicorn_server(app, http=InferProtocol) as address, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        host, _, port = address.partition(":")
        connection.connect((host, int(port)))
        connection.sendall(request_bytes("echo", x))
        nbytes = 0
        while nbytes < x.nbytes:
            chunk = connection.recv(1 << 20)
            assert chunk
            nbytes += len(chunk)
            time.sleep(1.6 * len(chunk) / x.nbytes)


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_client_that_reads_large_responses_is_not_disconnected(loop: str) -> None:
    """The time without progress is counted for each response."""
    app = make_app(receive_timeout=0.5)
    message = request_bytes("echo", np.zeros(2 * MiB, np.float32))
    with uvicorn_server(app, http=InferProtocol, loop=loop) as address, connect(address) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        stream = Stream(sock)
        deadline = time.monotonic() + 1.8
        while time.monotonic() < deadline:
            sock.sendall(message)
            assert stream.answer().status == 200


@pytest.mark.slow(reason="it waits for timeouts")
def test_keep_alive_timeout_does_not_end_a_pipelined_request() -> None:
    app = make_app()
    released.clear()
    x = np.arange(100_000, dtype=np.float32)
    with uvicorn_server(app, http=InferProtocol, timeout_keep_alive=1) as address:
        with connect(address) as connection:  # the model takes longer than the timeout
            stream = Stream(connection)
            text = request_bytes("echo", np.arange(2)) + request_bytes("wait", np.arange(3))
            connection.sendall(text)
            assert stream.answer().response["x"].shape == (2,)
            time.sleep(1.5)
            released.set()
            assert stream.answer().response["x"].shape == (3,)
            connection.sendall(request_bytes("echo", np.arange(4)))
            assert stream.answer().response["x"].shape == (4,)
        with connect(address) as connection:  # the client takes longer
            stream = Stream(connection)
            text = request_bytes("echo", np.arange(2)) + request_bytes("echo", x)
            connection.sendall(text[:1000])
            for i in range(5):
                time.sleep(0.3)
                connection.sendall(text[1000 + i * 100 : 1100 + i * 100])
            connection.sendall(text[1500:])
            assert stream.answer().response["x"].shape == (2,)
            assert stream.answer().response["x"].shape == x.shape


@pytest.mark.parametrize("model", ["exit", "exit in thread", "exit async"])
def test_model_that_raises_system_exit(model: str) -> None:
    def leave(request: tw.InferRequest) -> Any:
        raise SystemExit(3)

    async def leave_async(request: tw.InferRequest) -> Any:
        raise SystemExit(3)

    app = create_app(
        {
            "exit": Model(leave, in_event_loop=True),
            "exit in thread": leave,
            "exit async": leave_async,
            "echo": echo,
        }
    )
    with uvicorn_server(app, http=InferProtocol) as address, connect(address) as connection:
        stream = Stream(connection)
        path = model.replace(" ", "%20")
        connection.sendall(request_bytes(path, np.arange(2)))
        answer = stream.answer()
        assert (answer.status, answer.error) == (500, f"model {model!r} failed")
        connection.sendall(request_bytes("echo", np.arange(2)))
        assert stream.answer().status == 200


@pytest.mark.parametrize("end", [b"a%d: b\r\n", b"0;extension=%d"])
def test_trailers_and_chunk_extensions_are_limited(address: str, end: bytes) -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(address) as connection:
        connection.sendall(head + b"1\r\n{\r\n0" + (b"\r\n" if end.startswith(b"a") else b";a="))
        n_sent = i = 0
        while not select.select([connection], [], [], 0)[0]:
            i += 1
            n_sent += connection.send((end % i) * 100)
            assert n_sent < 20 * MiB, "the server accepts an endless trailer"
        assert Stream(connection).answer().status == 431


def test_websocket_upgrade_after_a_request() -> None:
    upgrade = (
        b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with (
        uvicorn_server(make_app(), http=InferProtocol, ws="auto") as address,
        connect(address) as connection,
    ):
        stream = Stream(connection)
        connection.sendall(request_bytes("echo", np.arange(2)))
        assert stream.answer().status == 200
        connection.sendall(upgrade)
        assert stream.answer().status == 404  # the upgrade is ignored
        connection.sendall(request_bytes("echo", np.arange(2)))
        assert stream.answer().status == 200


def test_receive_timeout_begins_with_each_request() -> None:
    """A client that is always in the middle of a request is in time."""
    sent = request_bytes("echo", np.arange(2))
    app = make_app(receive_timeout=0.5)
    with uvicorn_server(app, http=InferProtocol) as address, connect(address) as connection:
        stream = Stream(connection)
        connection.sendall(sent[:100])
        for _ in range(6):
            time.sleep(0.2)
            connection.sendall(sent[100:] + sent[:100])
            assert stream.answer().status == 200


def test_time_in_which_reading_is_paused_does_not_count() -> None:
    """A request that waits for its turn is not late, because the server does not read it."""
    released.clear()
    started.clear()
    x = np.arange(1_000_000, dtype=np.float32)
    app = make_app(receive_timeout=0.5)
    with uvicorn_server(app, http=InferProtocol) as address, connect(address) as connection:
        stream = Stream(connection)
        connection.sendall(request_bytes("wait", np.arange(2)))
        assert started.wait(10)
        sender = threading.Thread(target=connection.sendall, args=(request_bytes("echo", x),))
        sender.start()
        time.sleep(1.2)
        released.set()
        assert stream.answer().status == 200
        assert stream.answer().response["x"].shape == x.shape
        sender.join()


@pytest.mark.parametrize(("timeout", "linger"), [(0.5, 30), (30, 0.5)])
def test_slow_body_after_an_early_response(
    timeout: float, linger: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_uvicorn, "_LONG_LINGER_SECONDS", linger)
    app = make_app(receive_timeout=timeout)
    with uvicorn_server(app, http=InferProtocol) as address, connect(address) as connection:
        connection.sendall(b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n")
        stream = Stream(connection)
        connection.sendall(bytes(17 * MiB))
        assert stream.answer().status == 404
        deadline = time.monotonic() + 5
        with pytest.raises(OSError):
            while time.monotonic() < deadline:
                connection.sendall(b"a")
                time.sleep(0.05)
            pytest.fail("the connection stays open")


def test_model_does_not_run_after_the_connection_is_closed() -> None:
    calls: list[int] = []

    def count(request: tw.InferRequest) -> tw.InferResponse:
        calls.append(1)
        return tw.InferResponse(request.inputs)

    app = create_app({"m": Model(count, in_event_loop=True)})
    with uvicorn_server(app, http=InferProtocol) as address, connect(address) as connection:
        message = request_bytes("m", np.arange(2), "Connection: keep-alive\r\n")
        connection.sendall(message.replace(b"HTTP/1.1", b"HTTP/1.0") * 2)
        stream = Stream(connection)
        assert stream.answer().status == 200
        assert stream.at_end()
    assert calls == [1]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("model", ["echo", "thread"])
def test_tls(certificate: Certificate, model: str, loop: str) -> None:
    options = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file, "loop": loop}
    x = np.arange(2_000_000, dtype=np.float32)
    with uvicorn_server(make_app(), http=InferProtocol, **options) as address:
        context = certificate.trusting()
        connection = http.client.HTTPSConnection(address, timeout=20, context=context)
        for sent in (x, x[:3], x):
            frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", sent)], parameters=BINARY))
            path = f"/v2/models/{model}/infer"
            connection.request("POST", path, bytes(frame), headers=frame.headers)
            reply = connection.getresponse()
            length = tw.header_length(reply.headers)
            found = tw.decode_response(reply.read(), length)["x"].as_numpy()
            assert np.array_equal(found, sent)
        connection.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_arrays_are_writable_views_of_one_aligned_buffer(loop: str) -> None:
    seen: list[Any] = []

    def look(request: tw.InferRequest) -> Any:
        seen.append(request["x"].as_numpy())
        return {"y": np.zeros(1, np.float32)}

    app = create_app({"m": Model(look, in_event_loop=True)})
    with (
        uvicorn_server(app, http=InferProtocol, loop=loop) as address,
        connect(address) as connection,
    ):
        stream = Stream(connection)
        for n in (3, 1_000_000):
            connection.sendall(request_bytes("m", np.arange(n, dtype=np.float32)))
            assert stream.answer().status == 200
    for array in seen:
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0
        assert np.array_equal(array, np.arange(len(array)))


@pytest.mark.parametrize("n", [3, 1_000_000], ids=["small", "large"])
@pytest.mark.parametrize("after", ["request", "garbage"])
@pytest.mark.parametrize(
    ("version", "header"),
    [
        (b"HTTP/1.1", "Connection: close\r\n"),
        (b"HTTP/1.0", ""),
        (b"HTTP/1.0", "Connection: keep-alive\r\n"),
    ],
    ids=["close", "1.0", "1.0 with keep-alive"],
)
def test_what_follows_the_last_request_is_ignored(
    address: str,
    version: bytes,
    header: str,
    after: str,
    n: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = request_bytes("thread", np.arange(n, dtype=np.float32), header)
    sent = sent.replace(b"HTTP/1.1", version, 1)
    following = request_bytes("echo", np.arange(2)) if after == "request" else b"\0garbage\r\n\r\n"
    with connect(address) as connection:
        stream = Stream(connection)
        connection.sendall(sent + following)
        assert stream.answer().response["x"].shape == (n,)
        with contextlib.suppress(ConnectionResetError):
            assert stream.at_end()
    assert caplog.records == []


def test_connect_is_the_last_request(address: str) -> None:
    """The bytes after a CONNECT request are not processed as requests."""
    with connect(address) as connection:
        stream = Stream(connection)
        tunnel = b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n"
        connection.sendall(tunnel + request_bytes("echo", np.arange(2)))
        answer = stream.answer()
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        assert stream.at_end()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_continue_is_sent_once(address: str, version: str) -> None:
    """A client with HTTP/1.0 would take it for the response."""
    sent = request_bytes("echo", np.arange(2), "Expect: 100-continue\r\n")
    sent = sent.replace(b"HTTP/1.1", f"HTTP/{version}".encode(), 1)
    head, body = sent[: sent.index(b"\r\n\r\n") + 4], sent[sent.index(b"\r\n\r\n") + 4 :]
    with connect(address) as connection:
        connection.sendall(head)
        for i in range(3):
            time.sleep(0.05)
            connection.sendall(body[i * 20 : i * 20 + 20])
        connection.sendall(body[60:])
        stream = Stream(connection)
        if version == "1.1":
            assert stream.file.readline() == b"HTTP/1.1 100 Continue\r\n"
            assert stream.file.readline() == b"\r\n"
        assert stream.answer().status == 200


def test_limit_max_requests() -> None:
    with uvicorn_server(make_app(), http=InferProtocol, limit_max_requests=3) as address:
        with connect(address) as connection:
            stream = Stream(connection)
            for _ in range(3):
                connection.sendall(request_bytes("echo", np.arange(2)))
                assert stream.answer().status == 200
            connection.settimeout(3)
            assert stream.at_end()
        time.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            connect(address)


def test_date_of_each_response(address: str) -> None:
    with connect(address) as connection:
        stream = Stream(connection)
        dates = set()
        for _ in range(12):
            connection.sendall(request_bytes("echo", np.arange(2)))
            dates.add(stream.answer().headers["date"])
            if len(dates) > 1:
                break
            time.sleep(0.2)
        assert len(dates) == 2


variable: ContextVar[int] = ContextVar("variable", default=0)


@pytest.mark.parametrize("is_reset", [False, True])
def test_reset_contextvars(is_reset: bool) -> None:
    """The option of uvicorn hides the context variables of the connection from a request."""

    def set_variable(request: tw.InferRequest) -> dict[str, Any]:
        variable.set(1)
        return {"y": 1}

    async def get_variable(request: tw.InferRequest) -> dict[str, Any]:
        return {"y": variable.get()}

    app = create_app({"set": Model(set_variable, in_event_loop=True), "get": get_variable})
    with (
        uvicorn_server(app, http=InferProtocol, reset_contextvars=is_reset) as address,
        connect(address) as connection,
    ):
        stream = Stream(connection)
        for model in ("set", "get"):
            connection.sendall(request_bytes(model, np.arange(2)))
            found = stream.answer().response["y"].as_numpy()
        assert found == (0 if is_reset else 1)


# --- with a transport that the test controls ---


class Transport(asyncio.Transport):
    """Keeps what is written. It tells the protocol at once that the client does not read."""

    def __init__(self, protocol: Any, is_paused: bool) -> None:
        super().__init__()
        self.protocol = protocol
        self.is_paused = is_paused
        self.written = b""
        self.is_closed = self.is_aborted = self.has_written_eof = False

    def write_eof(self) -> None:
        self.has_written_eof = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)
        if self.is_paused:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


def protocol_with_transport(
    is_paused: bool = False, config: Any = None, **options: Any
) -> tuple[Any, Transport]:
    """Return a protocol and its transport. An event loop must be running."""
    if config is None:
        config = uvicorn.Config(make_app(**options), log_level="warning")
        config.load()
    protocol = InferProtocol(config, ServerState(), {})
    transport = Transport(protocol, is_paused)
    protocol.connection_made(transport)
    return protocol, transport


def receive(protocol: Any, data: bytes) -> None:
    buffer = protocol.get_buffer(-1)
    buffer[: len(data)] = data
    protocol.buffer_updated(len(data))


@pytest.mark.parametrize("timeout", [None, 0.1])
def test_last_reply_that_is_not_read(
    timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is aborted, also without receive_timeout."""
    monkeypatch.setattr(server_uvicorn, "_LINGER_SECONDS", 0.1)
    monkeypatch.setattr(server_uvicorn, "_LONG_LINGER_SECONDS", 0.1)

    async def main() -> None:
        protocol, transport = protocol_with_transport(receive_timeout=timeout)
        receive(protocol, request_bytes("echo", np.arange(2), "Connection: close\r\n"))
        assert transport.has_written_eof
        assert not transport.is_closed
        await asyncio.sleep(0.15)
        assert transport.is_closed
        assert not transport.is_aborted
        await asyncio.sleep(0.25)
        assert transport.is_aborted

    asyncio.run(main())


def test_client_closes_its_direction_while_an_early_reply_is_sent() -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n"

    async def main() -> None:
        protocol, transport = protocol_with_transport(is_paused=True)
        receive(protocol, head)
        assert transport.written.startswith(b"HTTP/1.1 413 ")
        assert protocol.eof_received() is True
        assert not transport.is_closed
        protocol.resume_writing()
        assert not transport.is_closed  # asyncio does not expect this while it resumes writing
        await asyncio.sleep(0.01)
        assert not protocol.requests
        assert transport.is_closed

    asyncio.run(main())


def test_requests_of_one_chunk_are_answered_in_several_turns() -> None:
    n = 120

    async def main() -> None:
        protocol, transport = protocol_with_transport()
        receive(protocol, b"GET /v2/health/live HTTP/1.1\r\n\r\n" * n)
        assert 0 < transport.written.count(b"HTTP/1.1 200 ") < n
        for _ in range(n):
            await asyncio.sleep(0)
        assert transport.written.count(b"HTTP/1.1 200 ") == n

    asyncio.run(main())


def test_half_closed_connection_whose_call_is_dropped_is_closed() -> None:
    async def main() -> None:
        released.clear()
        protocols = [protocol_with_transport()]
        config = protocols[0][0].config
        for _ in range(N_THREADS):
            protocols.append(protocol_with_transport(config=config))
        for protocol, _ in protocols:
            receive(protocol, request_bytes("wait", np.arange(2)))
        await asyncio.sleep(0)
        protocol, transport = protocols[-1]
        try:
            assert protocol.eof_received() is True
            assert not transport.is_closed
            for _ in range(10):
                await asyncio.sleep(0)
            assert transport.is_closed
            assert transport.written == b""
        finally:
            released.set()

    asyncio.run(main())


@pytest.mark.parametrize("n_sent", [0, 50, 10_000])
def test_lost_connection_is_released(n_sent: int) -> None:
    """Without the garbage collector, and before its timer expires."""

    async def main() -> None:
        protocol, transport = protocol_with_transport()
        receive(protocol, request_bytes("echo", np.arange(100_000))[:n_sent])
        protocol.connection_lost(None)
        found = weakref.ref(protocol)
        del protocol, transport.protocol
        await asyncio.sleep(0)
        assert found() is None

    asyncio.run(main())


def test_connection_is_closed_with_the_reply_to_a_late_request() -> None:
    async def main() -> None:
        protocol, transport = protocol_with_transport(receive_timeout=0.1)
        receive(protocol, request_bytes("echo", np.arange(9))[:-1])
        while not transport.written:
            await asyncio.sleep(0.01)
        assert transport.written.startswith(b"HTTP/1.1 408 ")
        assert transport.has_written_eof

    asyncio.run(asyncio.wait_for(main(), 5))
