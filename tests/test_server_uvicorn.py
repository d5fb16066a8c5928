"""`InferProtocol` on uvicorn: its own behaviour, and what it shares with uvicorn's supervision.

The cases that every server must pass are in test_http_conformance.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import select
import socket
import ssl
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

import tensorwire as tw
from support import asgi_requests, client_fixtures
from support.client_fixtures import Certificate
from support.http_exchange import Connection, connect, head
from support.http_models import cancels_itself
from support.servers import uvicorn_server
from support.threads import wait_for
from tensorwire.cli.models import echo
from tensorwire.server import (
    InferProtocol,
    Model,
    asgi,
    client_calls,
    create_app,
    socket_state,
    uvicorn_asgi,
    uvicorn_connections,
    uvicorn_handshakes,
)
from tensorwire.server import connection as server_connection
from tensorwire.server import uvicorn as server_uvicorn
from tensorwire.server.asgi import App
from tensorwire.server.body_memory import BodyMemory, Reservation
from tensorwire.server.http_exchange import Exchange
from tensorwire.server.receiver import SCRATCH_NBYTES
from tensorwire.server.socket_state import PeerState
from tensorwire.server.states import LINGERING
from tensorwire.server.uvicorn_asgi import AsgiProtocol
from tensorwire.server.uvicorn_connections import N_RESERVED_CONNECTIONS, connections_of
from tensorwire.server.uvicorn_handshakes import accept_tls
from tensorwire.threads import N_THREADS

pytestmark = [
    pytest.mark.thread_unsafe(reason="the tests share a server"),
    pytest.mark.no_sanitizers(reason="it tests sockets and event loops"),
]

MiB = 1 << 20
PACKAGE = str(Path(tw.__file__).parent)
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


def returns_coroutine(request: tw.InferRequest) -> Any:
    return async_echo(request)


@pytest.fixture(autouse=True)
def _recorded_asgi_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    call = App.__call__

    async def record(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asgi_paths.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(App, "__call__", record)


def make_app(**options: Any) -> Any:
    models: dict[str, Any] = {
        "echo": Model(echo, in_event_loop=True),
        "async": async_echo,
        "thread": echo,
        "wait": wait,
        "slow": slow,
        "cancels": cancels_itself,
        "count": Model(count, in_event_loop=True),
        "coroutine": Model(returns_coroutine, in_event_loop=True),
    }
    return create_app(models, **options)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with uvicorn_server(make_app(max_body_nbytes=64 * MiB), http=InferProtocol) as address:
        yield address


def recorded_losses(http: Any) -> Any:
    """Patch a protocol with a mock of ``connection_lost``, which is returned as a context."""
    wraps = http.connection_lost
    return patch.object(http, "connection_lost", autospec=True, side_effect=wraps)


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connection(address: str) -> Iterator[Connection]:
    with connect(address) as found:
        yield found


@contextmanager
def connected(app: Any = None, **options: Any) -> Iterator[Connection]:
    """Serve an application, by default that of `make_app`, and connect to it."""
    options.setdefault("http", InferProtocol)
    with uvicorn_server(app or make_app(), **options) as address, connect(address) as connection:
        yield connection


def request_bytes(model: str, x: Any, headers: str = "", id: str = "") -> bytes:
    request = tw.InferRequest([tw.Tensor("x", x)], id=id or None, parameters=BINARY)
    frame = tw.encode_request(request)
    lines = "".join(f"{name}: {value}\r\n" for name, value in frame.headers.items())
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{lines}{headers}\r\n"
    return head.encode() + bytes(frame)


SMALL, WAIT, COUNTED = (request_bytes(model, np.arange(2)) for model in ("echo", "wait", "count"))


@pytest.mark.parametrize("model", ["echo", "async", "thread", "coroutine"])
@pytest.mark.parametrize("n", [0, 1, 100_000, 2_000_000])
def test_infer_request_does_not_pass_through_asgi(
    connection: Connection, model: str, n: int
) -> None:
    asgi_paths.clear()
    x = np.arange(n, dtype=np.float32)
    for _ in range(3):
        connection.send(request_bytes(model, x, id="7"))
        response = connection.read().message
        assert np.array_equal(response["x"].as_numpy(), x)
        assert (response.model_name, response.id) == (model, "7")
    for target, status in (("GET /v2/health/live", 200), ("POST /v2/models/unknown/infer", 404)):
        assert connection.ask(head(f"{target} HTTP/1.1", ["Content-Length: 0"])).status == status
    assert asgi_paths == []


def test_garbage_in_a_body_that_is_discarded(connection: Connection) -> None:
    """The connection is closed at once, because the end of the body will not be found."""
    head = b"POST /nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    n = 17 * MiB
    answer = connection.ask(head + b"%x\r\n" % n + bytes(n) + b"\r\n")
    assert (answer.status, answer.headers["connection"]) == (404, "close")
    connection.send(b"zz\r\n")
    connection.socket.settimeout(3)
    assert connection.at_end()


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("repeated", [b"", b"\r\n"], ids=repr)
@pytest.mark.parametrize("n_requests", [0, 1, 4])
def test_keep_alive_timeout(loop: str, repeated: bytes, n_requests: int) -> None:
    """It begins after each response, also if a longer timeout applied to the request.

    Empty lines, which may precede a request, do not keep a connection open.
    """
    with connected(timeout_keep_alive=1, loop=loop) as connection:
        for _ in range(n_requests):
            time.sleep(0.4)
            connection.send(SMALL[:-1])
            time.sleep(0.1)
            assert connection.ask(SMALL[-1:]).status == 200
        connection.socket.settimeout(0.3)
        begin = time.monotonic()
        while time.monotonic() < begin + 5:
            with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                connection.send(repeated)
                if connection.at_end():
                    break
        assert 0.9 < time.monotonic() - begin < 3


def test_limit_concurrency_counts_connections() -> None:
    with uvicorn_server(make_app(), http=InferProtocol, limit_concurrency=3) as address:
        with contextlib.ExitStack() as stack:
            for sent in (b"", b"\r\n", SMALL):
                connection = stack.enter_context(connect(address))
                connection.send(sent)
            assert connection.read().status == 200
            for sent, status in (
                (SMALL, 503),
                (b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", 200),
            ):
                connection = stack.enter_context(connect(address))
                answer = connection.ask(sent)
                assert (answer.status, answer.headers["connection"]) == (status, "close")
                if status == 503:
                    assert answer.error == "the server is overloaded: limit_concurrency is 3"
        time.sleep(0.2)
        with connect(address) as connection:
            assert connection.ask(SMALL).status == 200


def test_chunked_uploads_do_not_wait_for_each_other() -> None:
    app = create_app({"echo": echo}, max_body_memory_nbytes=1_000_000)
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with (
        uvicorn_server(app, http=InferProtocol) as address,
        connect(address) as first,
        connect(address) as second,
    ):
        for connection in (first, second):
            connection.send(head + b"%x\r\n%b\r\n" % (300_000, bytes(300_000)))
        wait_for(lambda: app.body_memory.nbytes >= 600_000, 10)  # both have a part of the memory
        for connection in (first, second):
            connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (600_000, bytes(600_000)))
        assert sorted(each.read().status for each in (first, second)) == [400, 400]


def n_protocols() -> int:
    gc.collect()
    return sum(type(each) is InferProtocol for each in gc.get_objects())


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("model", ["wait", "slow"])
def test_closed_connections_are_not_kept(loop: str, model: str) -> None:
    """A reply that is ready after its connection was closed starts no timer."""
    before = n_protocols()
    with uvicorn_server(make_app(), http=InferProtocol, loop=loop) as address:
        released.clear()
        for _ in range(5):
            connection = connect(address)
            connection.send(request_bytes(model, np.arange(2)))
            time.sleep(0.05)
            connection.reset()
        released.set()
        wait_for(lambda: n_protocols() <= before, 5)


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("http", [InferProtocol, AsgiProtocol])
@pytest.mark.parametrize("is_tls", [False, True])
def test_client_that_reads_slowly_gets_large_replies(
    certificate: Certificate, loop: str, is_tls: bool, http: Any
) -> None:
    """Neither the timeout of unread replies nor that of idle connections ends the connection."""
    app = make_app(receive_timeout=1)
    options: dict[str, Any] = {"loop": loop, "timeout_keep_alive": 1, "http": http}
    if is_tls:
        options |= {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    x = np.zeros(3 * MiB, np.float32)
    with connected(app, **options) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        if is_tls:
            connection.start_tls(certificate.trusting())
        connection.send(request_bytes("echo", x))
        n_received = 0
        while n_received < x.nbytes:
            n_more = len(connection.socket.recv(10_000))
            assert n_more > 0, f"the connection ended after {n_received} bytes"
            n_received += n_more
            time.sleep(0.002)


@pytest.mark.slow(reason="it measures the time of the processor")
def test_incomplete_request_takes_no_processor_time(loop: str) -> None:
    with connected(loop=loop) as connection:
        connection.send(SMALL[:-1])
        time.sleep(0.2)
        begin = time.process_time()
        time.sleep(1)
        assert time.process_time() - begin < 0.5


CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
OVER_LIMIT = (b"%x\r\n%b\r\n" % (MiB, bytes(MiB))) * 25
CLOSE = request_bytes("echo", np.zeros(200_000), "Connection: close\r\n")


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize(
    ("sent", "more", "status"),
    [
        (CLOSE, b"\r\n", 200),
        (CLOSE, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (CHUNKED + b"Expect: 100-continue\r\n\r\n", OVER_LIMIT, 413),
        (CHUNKED + b"\r\n", OVER_LIMIT, 413),
        (CHUNKED + b"\r\n4\r\nabcd\r\nzz\r\n", bytes(MiB), 400),
        (b"\0", bytes(MiB), 400),
    ],
    ids=["empty line", "request", "too long after 100", "too long", "invalid chunk", "garbage"],
)
def test_unread_input_does_not_destroy_the_last_reply(
    loop: str, sent: bytes, more: bytes, status: int
) -> None:
    with uvicorn_server(
        make_app(max_body_nbytes=4 * MiB), http=InferProtocol, loop=loop
    ) as address:
        for _ in range(5):
            with connect(address) as connection:
                connection.send(sent)
                if b"Expect" in sent:
                    assert connection.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
                connection.send(more)
                time.sleep(0.05)
                answer = connection.read()
                assert (answer.status, answer.headers["connection"]) == (status, "close")
                assert connection.at_end()


def test_keep_alive_timeout_of_zero(loop: str) -> None:
    """A connection is closed after the reply to its first request, and not before the request."""
    options = {"timeout_keep_alive": 0, "loop": loop}
    with connected(**options) as connection:
        time.sleep(0.2)
        assert connection.ask(SMALL).status == 200
        assert connection.at_end()


def test_limit_concurrency_counts_models_of_clients_that_have_disconnected() -> None:
    """They reset their connections, and the models go on."""
    released.clear()
    with uvicorn_server(make_app(), http=InferProtocol, limit_concurrency=2) as address:
        for _ in range(2):
            started.clear()
            with connect(address) as connection:
                connection.send(WAIT)
                assert started.wait(10)
                connection.reset()
            time.sleep(0.1)
        for status in (503, 200):
            with connect(address) as connection:
                assert connection.ask(SMALL).status == status
            released.set()
            time.sleep(0.1)


def test_access_log_with_proxy_headers(caplog: pytest.LogCaptureFixture) -> None:
    """Trailers are not headers, and an invalid request has no line."""
    options = {"access_log": True, "proxy_headers": True, "forwarded_allow_ips": "127.0.0.1"}
    logger = logging.getLogger("uvicorn.access")
    with uvicorn_server(make_app(), http=InferProtocol, **options) as address:
        logger.addHandler(caplog.handler)
        caplog.set_level("INFO", "uvicorn.access")
        with connect(address) as connection:
            headers = "X-Forwarded-For: 192.0.2.7\r\n"
            assert connection.ask(request_bytes("echo", np.arange(2), headers)).status == 200
            head = f"GET /v2 HTTP/1.1\r\nHost: x\r\n{headers}Transfer-Encoding: chunked\r\n\r\n"
            trailers = "0\r\nX-Forwarded-For: 198.51.100.9\r\n\r\n"
            connection.send(head.encode() + trailers.encode() + b"garbage\r\n\r\n")
            assert (connection.read().status, connection.read().status) == (200, 400)
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

    with connected(app, lifespan="off") as connection:
        connection.send(SMALL)
        assert connection.socket.recv(100).startswith(b"HTTP/1.1 202 ")


@pytest.mark.parametrize("is_read", [True, False])
def test_response_of_another_framework_that_ends_early(
    is_read: bool, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets what was sent, or the connection ends some time later."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(16 * MiB), "more_body": True})
            raise ValueError

    monkeypatch.setattr(uvicorn_asgi, "GRACE_SECONDS", 20 if is_read else 0.01)
    with recorded_losses(AsgiProtocol) as lost, connected(app, loop=loop) as connection:
        connection.send(SMALL)
        if is_read:
            assert sum(map(len, iter(lambda: connection.socket.recv(MiB), b""))) > 16 * MiB
        else:
            wait_for(lambda: lost.called)


def test_garbage_behind_a_part_of_a_response_of_another_framework(loop: str) -> None:
    """The response 400 would be taken for the rest of the body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            length = [(b"content-length", b"1000")]
            await send({"type": "http.response.start", "status": 200, "headers": length})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass

    with connected(app, loop=loop) as connection:
        connection.send(SMALL)
        received = b""
        while not received.endswith(b"part"):
            received += connection.socket.recv(1000)
        connection.send(b"garbage\r\n\r\n")
        assert connection.socket.recv(1000) == b""


def test_upgrade_to_a_websocket_behind_a_request(loop: str) -> None:
    """The WebSocket would get the response to the request. So it is an ordinary request."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(0.1)
            length = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 202, "headers": length})
            await send({"type": "http.response.body", "body": b""})

    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    upgrade += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    with connected(app, loop=loop, ws="auto") as connection:
        connection.send(SMALL + upgrade)
        received = b""
        while received.count(b"\r\n\r\n") < 2:
            received += connection.socket.recv(1000) or b"\r\n\r\n" * 2
    assert received.count(b"HTTP/1.1 202 ") == 2


@pytest.mark.parametrize("end", ["shut_down", "reset", "garbage"])
def test_asgi_connection_that_ends_while_a_pipelined_request_runs(
    loop: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn closes the connection, and writes nothing to it."""
    logger = logging.getLogger("uvicorn.error")
    with uvicorn_server(make_app(), http=AsgiProtocol, loop=loop) as address:
        logger.addHandler(caplog.handler)
        with connect(address) as connection:
            connection.send(request_bytes("slow", np.arange(2)) * 2)
            if end == "garbage":
                connection.send(b"garbage\r\n\r\n")
            else:
                getattr(connection, end)()
            while end != "reset" and connection.receive():
                pass
    logger.removeHandler(caplog.handler)
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("is_tls", [False, True])
def test_asgi_request_whose_client_leaves_while_its_next_request_waits(
    certificate: Certificate, loop: str, is_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn does not receive then, so the transport does not tell."""
    monkeypatch.setattr(uvicorn_asgi, "TICK_SECONDS", 0.01)
    received = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "http" and "http.disconnect" not in received:
            received.append((await receive())["type"])

    options = {"loop": loop}
    if is_tls:
        options |= {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    with recorded_losses(AsgiProtocol) as lost, connected(app, **options) as connection:
        if is_tls:
            connection.start_tls(certificate.trusting())
        connection.send(SMALL)
        wait_for(lambda: bool(received))
        connection.send(SMALL)
        connection.shut_down()  # without the message that ends TLS
        wait_for(lambda: lost.called)
    assert received == ["http.request", "http.disconnect"]


def test_asgi_requests_that_a_client_sends_at_once(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few of them wait, and the rest has not been parsed."""
    n, n_waiting, complete = 5000, [], AsgiProtocol.on_response_complete

    def note_and_complete(self: AsgiProtocol) -> None:
        n_waiting.append(len(self.pipeline))
        complete(self)

    monkeypatch.setattr(AsgiProtocol, "on_response_complete", note_and_complete)
    asked = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        uvicorn_server(make_app(), http=AsgiProtocol, loop=loop) as address,
        connect(address) as connection,
    ):
        sending = threading.Thread(target=connection.send, args=(asked * n,))
        sending.start()
        received = b""
        while received.count(b"HTTP/1.1 200 ") < n:
            received += connection.socket.recv(MiB)
        sending.join()
    assert max(n_waiting) <= SCRATCH_NBYTES // len(asked) + 1


def test_only_the_proxy_headers_middleware_of_uvicorn_is_bypassed() -> None:
    asgi_paths.clear()
    wrapped = ProxyHeadersMiddleware(ProxyHeadersMiddleware(make_app()))
    with connected(wrapped) as connection:
        assert connection.ask(SMALL).status == 200
    assert asgi_paths == ["/v2/models/echo/infer"]


@pytest.mark.parametrize("end", [b"a%d: b\r\n", b"0;extension=%d"])
def test_trailers_and_chunk_extensions_are_limited(connection: Connection, end: bytes) -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.send(head + b"1\r\n{\r\n0" + (b"\r\n" if end.startswith(b"a") else b";a="))
    n_sent = i = 0
    while not select.select([connection.socket], [], [], 0)[0]:
        i += 1
        n_sent += connection.socket.send((end % i) * 100)
        assert n_sent < 20 * MiB, "the server accepts an endless trailer"
    assert connection.read().status == 431


@pytest.mark.parametrize("model", ["echo", "thread"])
def test_tls(certificate: Certificate, model: str, loop: str) -> None:
    options = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file, "loop": loop}
    x = np.arange(2_000_000, dtype=np.float32)
    with connected(**options) as connection:
        connection.start_tls(certificate.trusting())
        for sent in (x, x[:3], x):
            connection.send(request_bytes(model, sent))
            assert np.array_equal(connection.read().message["x"].as_numpy(), sent)


@pytest.mark.parametrize(
    "sent",
    [
        request_bytes("thread", np.zeros(2_000_000, np.float32)) + SMALL,
        request_bytes("async", np.zeros(3)) * 60,
    ],
    ids=["large", "pipelined"],
)
def test_tls_client_that_leaves_while_the_server_does_not_receive(
    sent: bytes, certificate: Certificate, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio would discard what is sent, with a line in the log for each piece."""
    options = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file, "loop": loop}
    with connected(**options) as connection:
        logging.getLogger("asyncio").addHandler(caplog.handler)
        connection.start_tls(certificate.trusting())
        connection.send(sent)
        connection.shut_down()
        while connection.receive():
            pass
    logging.getLogger("asyncio").removeHandler(caplog.handler)
    assert caplog.records == []


@pytest.fixture
def tls_options(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of a server whose TLS is that of `serve`. The system buffers little for it."""
    start = uvicorn.Server.startup

    async def startup(server: uvicorn.Server, sockets: Any = None) -> None:
        accept_tls(server.config)
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        await start(server, sockets)

    monkeypatch.setattr(uvicorn.Server, "startup", startup)
    return {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("http", [InferProtocol, AsgiProtocol])
@pytest.mark.parametrize("client", ["pauses", "reads nothing", "ends TLS", "leaves"])
def test_rest_of_a_reply_over_tls(
    client: str,
    http: Any,
    loop: str,
    certificate: Certificate,
    tls_options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has passed it to the transport. Then it, or the client, closes the connection.

    By default, asyncio drops the rest after 30 seconds, also while the client reads.
    """
    monkeypatch.setattr(asyncio.constants, "SSL_SHUTDOWN_TIMEOUT", 0.2)  # type: ignore[attr-defined]
    x = np.zeros(400_000, np.uint8)
    app = make_app(receive_timeout=2)
    with (
        recorded_losses(http) as lost,
        uvicorn_server(app, http=http, loop=loop, timeout_keep_alive=0.5, **tls_options) as address,
        Connection(int(address.rpartition(":")[2]), receive_nbytes=1 << 16) as connection,
    ):
        connection.start_tls(certificate.trusting())
        is_last = client in ("pauses", "reads nothing")
        connection.send(request_bytes("thread", x, "Connection: close\r\n" * is_last))
        time.sleep(0.5)
        if client == "pauses":
            assert np.array_equal(connection.read().message["x"].as_numpy(), x)
        elif not is_last:
            connection.send(request_bytes("slow", x[:3]))
            time.sleep(0.05)
            with contextlib.suppress(OSError):  # the server does not end TLS
                if client == "ends TLS":
                    connection.socket.unwrap()  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):  # it has disconnected already
                connection.shut_down()
        wait_for(lambda: lost.called)


@pytest.mark.parametrize("http", [InferProtocol, AsgiProtocol])
def test_silent_tls_handshakes_are_limited(
    certificate: Certificate, http: Any, loop: str, tls_options: dict[str, Any]
) -> None:
    """A new one ends the oldest."""
    options = {"http": http, "limit_concurrency": 20, "loop": loop, **tls_options}
    with uvicorn_server(make_app(), **options) as address:
        silent = [connect(address) for _ in range(50)]
        with connect(address) as connection:
            connection.start_tls(certificate.trusting())
            assert connection.ask(SMALL).status == 200
        for each in silent[:30]:
            with contextlib.suppress(ConnectionResetError):
                assert each.socket.recv(1) == b""
        for each in silent:
            each.socket.close()


@pytest.mark.parametrize("http", [InferProtocol, AsgiProtocol])
def test_slow_tls_clients_are_paused(
    certificate: Certificate,
    http: Any,
    loop: str,
    tls_options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that sends key updates would block the event loop for seconds."""
    monkeypatch.setattr(uvicorn_handshakes, "_SLOW_SECONDS", 0)  # everything is slow
    protocol = uvicorn_handshakes._MeasuredTls
    received: list[int] = []
    is_reading: list[bool] = []
    receive = protocol.buffer_updated

    def buffer_updated(self: Any, nbytes: int) -> None:
        receive(self, nbytes)
        if nbytes > 4096:
            received.append(nbytes)
            is_reading.append(self._transport.is_reading())

    monkeypatch.setattr(protocol, "buffer_updated", buffer_updated)
    x = np.arange(500_000)
    request = request_bytes("async", x)
    with (
        uvicorn_server(make_app(), http=http, loop=loop, **tls_options) as address,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(3) as pool,
    ):
        clients = [stack.enter_context(connect(address)) for _ in range(3)]
        for client in clients:
            client.start_tls(certificate.trusting())
        replies = list(pool.map(lambda client: client.ask(request), clients))
    for reply in replies:
        assert np.array_equal(reply.message["x"].as_numpy(), x)
    assert max(received[1:]) <= 1 << 14
    assert not any(is_reading)


def test_tls_collects_little_while_the_protocol_does_not_read(
    certificate: Certificate,
    loop: str,
    tls_options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the protocol reads again, TLS decrypts all of it at once, and nothing measures that."""
    protocol = uvicorn_handshakes._MeasuredTls
    collected: list[int] = []
    receive = protocol.buffer_updated

    def buffer_updated(self: Any, nbytes: int) -> None:
        if not (self.plain_transport is None or self.plain_transport.is_reading()):
            collected.append(nbytes)
        receive(self, nbytes)

    monkeypatch.setattr(protocol, "buffer_updated", buffer_updated)
    x = np.arange(500_000)
    with (
        uvicorn_server(make_app(), http=InferProtocol, loop=loop, **tls_options) as address,
        connect(address) as connection,
    ):
        connection.start_tls(certificate.trusting())
        connection.send(request_bytes("slow", x[:3]) * 2)
        time.sleep(0.05)
        connection.send(request_bytes("async", x))
        for _ in range(2):
            connection.read()
        assert np.array_equal(connection.read().message["x"].as_numpy(), x)
    assert 1 << 16 <= sum(collected) <= 1 << 17


@pytest.mark.parametrize("protocol", [InferProtocol, AsgiProtocol])
def test_memory_of_ended_tls_connections(
    certificate: Certificate, loop: str, tls_options: dict[str, Any], protocol: type
) -> None:
    """It is free without a garbage collection, also after a handshake that fails or is aborted."""
    options = {"http": protocol, "loop": loop, "limit_concurrency": 2, **tls_options}
    with uvicorn_server(make_app(), **options) as address:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                with connect(address) as connection:
                    connection.start_tls(certificate.trusting())
                    assert connection.ask(SMALL).status == 200
                with connect(address) as connection:
                    connection.send(b"GET / HTTP/1.1\r\n\r\n")
                    with contextlib.suppress(ConnectionResetError):
                        while connection.socket.recv(100):
                            pass
                aborted = contextlib.suppress(ConnectionResetError)
                with connect(address) as silent, connect(address), connect(address), aborted:
                    assert silent.socket.recv(1) == b""
            names = {protocol.__name__, "TlsHandshake", "SSLProtocol"}
            wait_for(lambda: not names & {type(each).__name__ for each in gc.get_objects()})
        finally:
            gc.enable()


async def test_slow_tls_clients_wait_as_long_as_they_took() -> None:
    slow_clients = uvicorn_handshakes._SlowClients()
    transports = [Transport(None, is_paused=False) for _ in range(4)]
    transports[1].pause_reading()  # TLS has paused it
    began = time.monotonic()
    for each in transports:
        slow_clients.wait(each, 0.05)
    found: list[tuple[int, ...]] = [(0, 2, 3)]
    while len(found[-1]) > 1:
        waiting = tuple(n for n, each in enumerate(transports) if not each.is_reading())
        if waiting != found[-1]:
            found.append(waiting)
        await asyncio.sleep(0.001)
    assert found[1:] == [(0, 1, 2, 3), (1, 2, 3), (1, 3), (1,)]
    assert time.monotonic() - began >= 0.14


@pytest.mark.parametrize("client_leaves", [True, False])
async def test_handshakes_that_do_not_begin(
    client_leaves: bool, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shutdown does not wait for them: the second one ends the first, and is ended, too."""
    monkeypatch.setattr(uvicorn_handshakes, "GRACE_SECONDS", 0)
    state = ServerState()
    files = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    config = configuration(limit_concurrency=1, http=InferProtocol, **files)
    end_handshakes = accept_tls(config)
    make_protocol: Any = config.http_protocol_class
    gc.disable()
    try:
        for _ in range(2):
            handshake = make_protocol(config=config, server_state=state, app_state={})
            transport = Transport(handshake, is_paused=False)
            handshake.connection_made(transport)
        handshaking = connections_of(state, 1).handshaking
        assert len(handshaking) == 1
        if client_leaves:
            handshake.connection_lost(None)
        else:
            end_handshakes()
            await turns(3)
        assert not handshaking
        await turns(3)
        assert transport.is_aborted is not client_leaves
    finally:
        gc.enable()


async def test_request_that_arrives_with_the_end_of_a_handshake(certificate: Certificate) -> None:
    app = make_app(max_body_memory_nbytes=1 << 20)  # the memory of the body grows
    files = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    config = configuration(app, http=InferProtocol, **files)
    accept_tls(config)
    make_protocol: Any = config.http_protocol_class
    handshake = make_protocol(config=config, server_state=ServerState(), app_state={})
    handshake.data_received(request_bytes("echo", np.arange(100_000)))
    transport = Transport(handshake._protocol, is_paused=False)
    handshake._protocol.connection_made(transport)
    handshake._pass_received_to(handshake._protocol)
    await turns(3)
    assert transport.written.startswith(b"HTTP/1.1 200 ")


async def test_transport_is_closed_once() -> None:
    """For example, a timer expires while the client does not read what is left."""
    protocol, transport = protocol_with_transport()
    protocol.connection.close(protocol.loop.time())
    protocol.settle()
    protocol.settle()
    assert transport.is_closed


@pytest.mark.parametrize("is_closed", [True, False])
def test_timer_after_the_socket_is_lost(is_closed: bool) -> None:
    """A TLS transport of uvloop has none then, until it tells that the connection is lost."""
    lost = None
    if is_closed:
        lost = socket.socket()
        lost.close()
    names = ["get_extra_info", "get_write_buffer_size"]
    transport = Mock(names, get_extra_info=lambda _: lost, get_write_buffer_size=lambda: 0)
    assert not socket_state.peer_state(transport)
    assert socket_state.unreceived_nbytes(transport) == math.inf
    assert socket_state.unsent_nbytes(transport) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
@pytest.mark.parametrize("is_reset", [True, False])
def test_unsent_bytes_of_a_client_that_has_gone(is_reset: bool) -> None:
    """Linux counts them after a reset. If both directions have been closed, they are still sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with client, accepted:
        accepted.setblocking(False)
        n_sent = accepted.send(bytes(1 << 24))
        if is_reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        else:
            client.shutdown(socket.SHUT_WR)
            accepted.shutdown(socket.SHUT_WR)
        names = ["get_extra_info", "get_write_buffer_size"]
        transport = Mock(names, get_extra_info=lambda _: accepted, get_write_buffer_size=lambda: 10)
        assert n_sent < 1 << 24
        wait_for(lambda: (socket_state.unsent_nbytes(transport) == 0) is is_reset)


async def test_unsent_bytes_of_a_tls_transport_of_asyncio(certificate: Certificate) -> None:
    """Most of them are in the transport below, which it does not count."""
    server, client = socket.socketpair()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.file, certificate.key)
    trusting = ssl.create_default_context(cafile=certificate.file)
    trusting.check_hostname = False

    def begin() -> ssl.SSLSocket:
        connection = trusting.wrap_socket(client)
        assert connection.recv(1) == b"x"
        return connection

    reading = asyncio.create_task(asyncio.to_thread(begin))
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, server, ssl=context)
    transport.write(b"x")
    with await reading:
        transport.write(bytes(100_000))
        await turns(5)
        transport.write(bytes(200_000))
        await turns(5)
        assert socket_state.unsent_nbytes(transport) > 300_000
        transport.abort()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
@pytest.mark.parametrize("is_reset", [True, False])
def test_what_a_socket_tells_of_its_client(family: int, is_reset: bool, tmp_path: Path) -> None:
    """A Unix socket that is closed cannot be read, either."""
    with socket.socket(family) as server, socket.socket(family) as client:
        server.bind(("127.0.0.1", 0) if family == socket.AF_INET else str(tmp_path / "socket"))
        server.listen()
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        transport = Mock(get_extra_info=lambda _: accepted)
        assert not socket_state.peer_state(transport)
        if is_reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        else:
            client.shutdown(socket.SHUT_WR)
        with accepted:
            wait_for(lambda: socket_state.peer_state(transport) > 0)
            is_gone = socket_state.peer_state(transport) is socket_state.PeerState.GONE
            assert is_gone is is_reset


def with_full_memory() -> tuple[Any, Reservation]:
    """Return an application whose memory is used up, and the reservation that has it."""
    app = make_app(max_body_memory_nbytes=MiB)
    other = Reservation(app.body_memory)
    assert other.request(2 * MiB)
    other.complete()
    return app, other


def is_waited_for(memory: BodyMemory) -> bool:
    return any(each.missing_nbytes for each in memory._arriving)


@pytest.mark.parametrize("http", [InferProtocol, AsgiProtocol])
@pytest.mark.parametrize("nbytes", [66_500, 1 << 20])
def test_client_that_resets_the_connection_while_its_body_waits(
    nbytes: int, http: Any, loop: str
) -> None:
    """The rest of the body may have arrived, but is not received."""
    app, _ = with_full_memory()
    memory = app.body_memory
    with connected(app, http=http, loop=loop) as connection:
        connection.send(request_bytes("thread", np.zeros(nbytes, np.uint8)))
        wait_for(lambda: is_waited_for(memory))
        connection.reset()
        wait_for(lambda: not memory._arriving, 5)


@pytest.mark.parametrize("end", ["leaves", "is silent"])
def test_client_over_asgi_whose_body_does_not_arrive_while_it_waits(
    end: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "TICK_SECONDS", 0.1)
    app, _ = with_full_memory()
    memory = app.body_memory
    sent = request_bytes("thread", np.zeros(MiB, np.uint8))
    with connected(app, http=AsgiProtocol, loop=loop) as connection:
        connection.send(sent[:70_000])
        wait_for(lambda: is_waited_for(memory))
        if end == "leaves":
            connection.shut_down()
            wait_for(lambda: not memory._arriving, 5)
            assert not connection.receive()
        else:
            answer = connection.read()
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            assert "arrives too slowly" in answer.error
    assert not memory._arriving


@pytest.mark.parametrize("is_tls", [False, True])
def test_client_over_asgi_that_does_not_read_a_reply(
    is_tls: bool, certificate: Certificate, loop: str
) -> None:
    models = {"large": lambda request: {"y": np.zeros(32 * MiB, np.uint8)}}
    app = create_app(models, receive_timeout=0.2)
    options: dict[str, Any] = {"http": AsgiProtocol, "loop": loop}
    if is_tls:
        options |= {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    with (
        recorded_losses(AsgiProtocol) as lost,
        connected(app, **options) as connection,
    ):
        if is_tls:
            connection.start_tls(certificate.trusting())
        connection.send(request_bytes("large", np.zeros(1)))
        wait_for(lambda: lost.called)


def test_middleware_over_asgi_that_reads_ahead(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is receiving already when the body begins to wait for memory."""
    monkeypatch.setattr(asgi, "TICK_SECONDS", 0.1)
    app, other = with_full_memory()

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        messages = asyncio.Queue[Any]()

        async def receive_all() -> None:
            more = True
            while more:
                message = await receive()
                messages.put_nowait(message)
                more = message["more_body"]

        receiving = asyncio.ensure_future(receive_all())
        await app(scope, messages.get, send)
        await receiving

    sent = request_bytes("thread", np.zeros(MiB, np.uint8))
    with connected(middleware, http=AsgiProtocol, loop=loop, lifespan="off") as connection:
        connection.send(sent[:70_000])
        wait_for(lambda: is_waited_for(app.body_memory))
        time.sleep(0.3)
        connection.send(sent[70_000:])
        other.release()
        assert connection.read().status == 200


@pytest.mark.parametrize("sent", [b"", b"\r\n", SMALL[:10]], ids=["nothing", "lines", "a part"])
def test_client_over_asgi_that_sends_no_request(sent: bytes, loop: str) -> None:
    app = make_app(receive_timeout=0.3)
    options: dict[str, Any] = {"http": AsgiProtocol, "timeout_keep_alive": 1, "loop": loop}
    with connected(app, **options) as connection:
        began = time.monotonic()
        while sent and not select.select([connection.socket], [], [], 0.1)[0]:
            connection.send(sent[:1])  # which does not prolong the time
            sent = sent[1:] or b"\n"
            assert time.monotonic() - began < 3
        assert not connection.receive()


@pytest.mark.slow(reason="it waits for timeouts")
def test_idle_tls_client_that_does_not_close(certificate: Certificate, loop: str) -> None:
    options = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file, "loop": loop}
    before = n_protocols()
    with connected(timeout_keep_alive=1, **options) as connection:
        connection.start_tls(certificate.trusting())
        assert connection.ask(request_bytes("echo", np.zeros(3))).status == 200
        wait_for(lambda: n_protocols() <= before, 6)


def test_idle_tls_client_during_a_shutdown_over_asgi(
    certificate: Certificate, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn closes its connection, but the client does not. It does not delay the end."""
    monkeypatch.setattr(uvicorn_asgi, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(uvicorn_asgi, "TICK_SECONDS", 0.1)
    options: dict[str, Any] = {"http": AsgiProtocol, "timeout_keep_alive": 0.1, "loop": loop}
    options |= {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    with contextlib.ExitStack() as clients:
        with uvicorn_server(make_app(), **options) as address:
            idle, running = (clients.enter_context(connect(address)) for _ in range(2))
            for each in (idle, running):
                each.start_tls(certificate.trusting())
                assert each.ask(SMALL).status == 200
            running.send(request_bytes("slow", np.arange(2)))
            assert not idle.receive()
            began = time.monotonic()
        assert time.monotonic() - began < 3
        assert running.read().status == 200


def test_asgi_tls_connection_that_is_closed_twice(
    certificate: Certificate, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application fails after its last response. The shutdown then waits for other requests."""
    monkeypatch.setattr(uvicorn_asgi, "GRACE_SECONDS", 0.1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            is_last = scope["path"] == "/last"
            await asyncio.sleep(0 if is_last else 0.4)
            head = [(b"content-length", b"0"), *[(b"connection", b"close")] * is_last]
            await send({"type": "http.response.start", "status": 202, "headers": head})
            await send({"type": "http.response.body", "body": b""})
            if is_last:
                raise ValueError

    options: dict[str, Any] = {"http": AsgiProtocol, "loop": loop}
    options |= {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    with contextlib.ExitStack() as clients:
        with uvicorn_server(app, **options) as address:
            last, other = (clients.enter_context(connect(address)) for _ in range(2))
            for each in (last, other):
                each.start_tls(certificate.trusting())
            last.send(b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n")
            assert last.read().status == 202
            other.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            began = time.monotonic()
        assert time.monotonic() - began < 3
        assert other.read().status == 202


def with_header(line: bytes, sent: bytes) -> bytes:
    return sent.replace(b"Host: x\r\n", b"Host: x\r\n" + line + b"\r\n", 1)


def http_1_0(sent: bytes) -> bytes:
    return sent.replace(b"HTTP/1.1", b"HTTP/1.0", 1)


THREAD, LARGE = (request_bytes("thread", np.arange(n)) for n in (3, 500_000))
REJECTED = (
    b"POST /nope HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody"
)
LAST_REQUESTS = {
    "close": (with_header(b"Connection: close", THREAD), 200),
    "close, large": (with_header(b"Connection: close", LARGE), 200),
    "HTTP/1.0": (http_1_0(THREAD), 200),
    "HTTP/1.0, large": (http_1_0(LARGE), 200),
    "HTTP/1.0 with keep-alive": (http_1_0(with_header(b"Connection: keep-alive", THREAD)), 200),
    "CONNECT": (b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n", 404),
    "rejected with Expect": (REJECTED, 404),
    "too many headers": (b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 300 + b"\r\n", 431),
    "task that is cancelled": (request_bytes("cancels", np.arange(2)), 500),
}


@pytest.mark.parametrize("following", [2 * COUNTED, b"\0garbage\r\n\r\n"], ids=["requests", "0"])
@pytest.mark.parametrize(("sent", "status"), LAST_REQUESTS.values(), ids=LAST_REQUESTS)
def test_what_follows_the_last_request_is_ignored(
    sent: bytes, status: int, following: bytes, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It arrives in one segment with the request."""
    counted.clear()
    with connected(loop=loop) as connection:
        answer = connection.ask(sent + following)
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        with contextlib.suppress(ConnectionResetError):
            assert connection.at_end()
    assert counted == []
    assert {record.name for record in caplog.records} <= {"tensorwire.server"}


def test_limit_max_requests() -> None:
    with uvicorn_server(make_app(), http=InferProtocol, limit_max_requests=3) as address:
        with connect(address) as connection:
            for _ in range(3):
                assert connection.ask(SMALL).status == 200
            connection.socket.settimeout(3)
            assert connection.at_end()
        time.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            connect(address)


@pytest.mark.slow(reason="it waits for timeouts")
def test_date_of_each_response(connection: Connection) -> None:
    first = connection.ask(SMALL).headers["date"]
    wait_for(lambda: connection.ask(SMALL).headers["date"] != first)


# --- with a transport that the test controls ---


class Transport(asyncio.Transport):
    """Keeps what is written. It tells the protocol at once that the client does not read."""

    def __init__(self, protocol: Any, is_paused: bool, **extra: Any) -> None:
        super().__init__(extra)
        self.protocol = protocol
        self.is_paused = is_paused
        self.written = b""
        self.n_unsent = 0  # what remains of each write
        self.high = 64 << 10
        self.is_closed = self.is_aborted = self.has_written_eof = False
        self.is_receiving = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)
        if self.is_paused or self.n_unsent > self.high:
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or self.high

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def write_eof(self) -> None:
        self.has_written_eof = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        assert not self.is_closed, "asyncio cannot abort TLS that was closed twice"
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def is_reading(self) -> bool:
        return self.is_receiving

    def pause_reading(self) -> None:
        self.is_receiving = False

    def resume_reading(self) -> None:
        self.is_receiving = True


def configuration(app: Any = None, **options: Any) -> uvicorn.Config:
    config = uvicorn.Config(app or make_app(), log_level="warning", **options)
    config.load()
    return config


def protocol_with_transport(
    is_paused: bool = False,
    config: Any = None,
    state: Any = None,
    http: Any = InferProtocol,
    **options: Any,
) -> tuple[Any, Transport]:
    """Return a protocol and its transport. An event loop must be running."""
    config = config or configuration(make_app(**options))
    protocol = http(config, state or ServerState(), {})
    transport = Transport(protocol, is_paused)
    protocol.connection_made(transport)
    return protocol, transport


def two_of_one_server() -> list[tuple[Any, Transport]]:
    """Return two protocols: a model in the event loop runs when both have been read."""
    state = ServerState()
    return [protocol_with_transport(state=state) for _ in range(2)]


def receive(protocol: Any, data: bytes) -> None:
    while data:
        buffer = protocol.get_buffer(-1)
        n = min(len(buffer), len(data))
        buffer[:n], data = data[:n], data[n:]
        del buffer
        protocol.buffer_updated(n)


async def turns(n: int = 1) -> None:
    """Let the event loop run what is due, and what that makes due."""
    for _ in range(n):
        await asyncio.sleep(0)


variable: ContextVar[int] = ContextVar("variable", default=0)


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_reset_contextvars(is_async: bool, is_reset: bool) -> None:
    """The option of uvicorn hides the context variables of the connection from a request."""

    seen = []

    def see(request: tw.InferRequest) -> dict[str, Any]:
        seen.append(variable.get())
        variable.set(7)  # the next request does not see this
        return {}

    async def async_see(request: tw.InferRequest) -> dict[str, Any]:
        return see(request)

    model = async_see if is_async else Model(see, in_event_loop=True)
    config = configuration(create_app({"m": model}), reset_contextvars=is_reset)
    variable.set(5)
    protocol, _ = protocol_with_transport(config=config)
    request = request_bytes("m", np.arange(2))
    receive(protocol, request)
    await turns(3)
    receive(protocol, 2 * request)
    await turns(20)
    assert seen == 3 * [0 if is_reset else 5]


async def test_context_variables_of_a_request_over_asgi() -> None:
    """The next request does not see them, also if it is pipelined."""
    seen = []

    async def model(request: tw.InferRequest) -> dict[str, Any]:
        seen.append(variable.get())
        variable.set(7)
        return {}

    variable.set(5)
    config = configuration(create_app({"m": model}))
    protocol, _ = protocol_with_transport(config=config, http=AsgiProtocol)
    protocol.data_received(2 * request_bytes("m", np.arange(2)))
    await turns(50)
    protocol.data_received(request_bytes("m", np.arange(2)))
    await turns(50)
    assert seen == [5, 5, 5]


@pytest.mark.parametrize("http", [InferProtocol, AsgiProtocol])
async def test_small_chunks_do_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, http: Any
) -> None:
    """Those of a read are written together, and InferProtocol has one such read in a turn."""
    kind, name = (Exchange, "write") if http is InferProtocol else (HttpToolsProtocol, "on_body")
    n_writes, write = 0, getattr(kind, name)

    def count(self: Any, body: bytes) -> None:
        nonlocal n_writes
        n_writes += 1
        write(self, body)

    monkeypatch.setattr(kind, name, count)
    protocol, transport = protocol_with_transport(http=http)
    head, body = request_bytes("echo", np.arange(10_000)).split(b"\r\n\r\n", 1)
    head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    to_send = head + b"\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n"
    pass_on = receive if http is InferProtocol else http.data_received
    while to_send:
        n_before = n_writes
        while to_send and transport.is_receiving:
            data, to_send = to_send[:SCRATCH_NBYTES], to_send[SCRATCH_NBYTES:]
            pass_on(protocol, data)
        assert http is AsgiProtocol or n_writes <= n_before + 2
        await turns()
    await turns(50)
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert transport.written.endswith(body[-80_000:])
    assert n_writes < 100


async def test_memory_of_a_reply_whose_end_has_not_been_sent() -> None:
    """The transport refers to the whole reply."""
    protocol, transport = protocol_with_transport()
    transport.n_unsent = 1000
    receive(protocol, request_bytes("echo", np.arange(100_000)))
    await turns()
    assert protocol.connection.requests[0].has_memory
    transport.n_unsent = 0
    protocol.resume_writing()
    await turns(2)
    assert protocol.service.body_memory.nbytes == 0


async def test_replies_of_a_connection_in_a_turn_are_limited() -> None:
    """Also if it receives the next requests when one reply of the first ones remains."""
    protocol, transport = protocol_with_transport()
    for _ in range(50):
        if transport.is_receiving:
            receive(protocol, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 600)
        transport.written = b""
        await turns()
        assert 0 < transport.written.count(b"HTTP/1.1 404") <= 50


async def test_ready_requests_are_received_before_one_is_answered() -> None:
    """A model with in_event_loop runs when the other connections have been read."""
    pairs = two_of_one_server()
    for protocol, _ in pairs:
        receive(protocol, SMALL)
    assert [transport.written for _, transport in pairs] == [b"", b""]
    await turns()
    for _, transport in pairs:
        assert transport.written.startswith(b"HTTP/1.1 200 ")


async def test_request_that_waits_for_its_turn_has_no_deadline() -> None:
    """A model may block the event loop for any time before its turn."""
    (protocol, transport), _ = two_of_one_server()
    receive(protocol, SMALL[:-1])
    receive(protocol, SMALL[-1:])
    protocol._tick()  # the timer of the previous state expires
    await turns()
    assert transport.written.count(b"HTTP/1.1 200 ") == 1
    # until the next request
    assert protocol.connection.deadline > protocol.loop.time()
    assert protocol.timer is not None


async def test_request_that_arrived_while_the_process_was_suspended() -> None:
    """The event loop runs what is due before it receives."""
    protocol, transport = protocol_with_transport()
    protocol.connection.deadline = 0.0
    protocol.timer._run()
    receive(protocol, SMALL)
    assert transport.written.startswith(b"HTTP/1.1 200 ")


async def test_client_closes_its_direction_before_its_request_has_its_turn() -> None:
    (protocol, transport), _ = two_of_one_server()
    receive(protocol, SMALL)
    assert protocol.eof_received() is False
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert transport.is_closed


async def test_reading_is_paused_while_requests_wait_for_their_turn() -> None:
    (protocol, transport), _ = two_of_one_server()
    receive(protocol, SMALL)
    assert not protocol.is_reading_paused
    receive(protocol, 2 * SMALL)
    assert protocol.is_reading_paused
    await turns()
    assert not protocol.is_reading_paused
    assert transport.written.count(b"HTTP/1.1 200 ") == 3


@pytest.mark.parametrize(
    ("model", "failing"),
    [
        ("echo", (InferProtocol, "_log")),
        ("async", (InferProtocol, "_log")),
        ("async", (Exchange, "_reply_later")),
    ],
)
async def test_reply_that_cannot_be_sent(
    model: str, failing: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of a log handler, for example, ends the connection, and not the server."""

    def fail(*_: Any) -> None:
        raise RuntimeError("the log is full")

    async def fail_later(*_: Any) -> None:
        fail()

    owner, name = failing
    monkeypatch.setattr(owner, name, fail if name == "_log" else fail_later)
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: errors.append(found))
    (protocol, transport), _ = two_of_one_server()
    protocol.all_connections.has_access_log = True
    receive(protocol, request_bytes(model, np.arange(2)))
    while not transport.is_aborted:
        await asyncio.sleep(0.001)
    await turns(5)
    gc.collect()  # the task
    assert [str(found["exception"]) for found in errors] == ["the log is full"]
    assert not protocol.server_state.tasks


@pytest.mark.parametrize("timeout", [None, 0.1])
async def test_last_reply_that_is_not_read(
    timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is aborted, also without receive_timeout."""
    monkeypatch.setattr(server_connection, "DEFAULT_RECEIVE_TIMEOUT", 0.1)
    protocol, transport = protocol_with_transport(receive_timeout=timeout)
    receive(protocol, request_bytes("echo", np.arange(2), "Connection: close\r\n"))
    await turns()
    assert transport.has_written_eof
    assert not transport.is_closed
    async with asyncio.timeout(5):
        while not transport.is_aborted:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("http", [InferProtocol, AsgiProtocol])
async def test_tls_client_that_reads_nothing_sends_nothing(http: Any) -> None:
    """TLS itself responds to some messages, such as those that ask for other parameters."""
    config = configuration()
    protocol = http(config, ServerState(), {})
    transport = Transport(protocol, is_paused=False, sslcontext=config)
    protocol.connection_made(transport)
    assert transport.is_receiving
    protocol.pause_writing()
    await turns()
    assert not transport.is_receiving
    protocol.resume_writing()
    await turns()
    assert transport.is_receiving


async def test_client_that_has_read_a_part_of_a_reply_has_more_time() -> None:
    protocol, transport = protocol_with_transport(is_paused=True)
    receive(protocol, SMALL)
    await turns()
    for is_read in (True, False):
        assert not transport.is_aborted
        if is_read:
            transport.written = transport.written[1:]
        protocol.connection.since -= 1000
        protocol.connection.deadline = protocol.loop.time()
        protocol._tick()  # the timer expires
    assert transport.is_aborted


async def test_last_reply_to_a_client_that_has_reset_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operating system tells when the server closes its direction."""

    def fail(_: Transport) -> None:
        raise OSError("Transport endpoint is not connected")

    monkeypatch.setattr(Transport, "write_eof", fail)
    protocol, transport = protocol_with_transport()
    receive(protocol, request_bytes("echo", np.arange(2), "Connection: close\r\n"))
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert protocol.timer_at == protocol.connection.deadline < math.inf


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("timeout", [None, 30])
async def test_shutdown_does_not_wait_for_a_client(
    is_sent: bool, timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends half of a request, or does not read the reply."""
    monkeypatch.setattr(server_uvicorn, "GRACE_SECONDS", 0.1)
    sent = request_bytes("echo", np.zeros(1 << 18, np.uint8))
    protocol, transport = protocol_with_transport(is_paused=is_sent, receive_timeout=timeout)
    for start in range(0, len(sent) if is_sent else len(sent) // 2, 10_000):
        receive(protocol, sent[start : start + 10_000])
    await turns(20)
    protocol.shutdown()
    assert not transport.is_closed
    await asyncio.sleep(0.15)
    if is_sent:
        assert transport.is_aborted
        return
    assert transport.written.startswith(b"HTTP/1.1 503 ")
    assert b"the server is shutting down" in transport.written
    await asyncio.sleep(0.15)
    assert transport.is_closed


async def test_connection_that_is_made_after_the_shutdown() -> None:
    """A TLS handshake may end late. uvicorn waits for it, and the next request is the last one."""
    first, _ = protocol_with_transport()
    state = first.server_state
    late = InferProtocol(first.config, state, {})
    failed = InferProtocol(first.config, state, {})  # its handshake fails
    for each in list(state.connections):
        each.shutdown()
    first.connection_lost(None)
    await turns()
    assert state.connections  # of the handshakes
    transport = Transport(late, False)
    late.connection_made(transport)
    receive(late, 2 * SMALL)
    await turns(3)
    assert transport.written.count(b"HTTP/1.1 200 ") == 1
    assert b"connection: close" in transport.written
    late.connection_lost(None)
    del failed
    await asyncio.sleep(0.25)
    assert not state.connections


async def test_first_connection_that_is_made_after_the_shutdown() -> None:
    """uvicorn waits until it has ended, although nothing tells it of the shutdown."""
    only, _ = protocol_with_transport()
    assert only in only.server_state.connections
    only.connection_lost(None)
    assert not only.server_state.connections


async def test_silent_connections_beyond_the_limit_are_closed() -> None:
    config, state = configuration(limit_concurrency=3), ServerState()
    pairs = [protocol_with_transport(config=config, state=state) for _ in range(100)]
    n_open = sum(not transport.is_closed for _, transport in pairs)
    assert n_open <= 3 + N_RESERVED_CONNECTIONS


async def test_idle_client_within_the_limit_while_others_connect() -> None:
    """In its first second, those beyond the limit are closed, although they are newer."""
    config, state = configuration(limit_concurrency=3), ServerState()
    protocol, transport = protocol_with_transport(config=config, state=state)
    receive(protocol, SMALL)
    await turns(3)
    transport.written = b""  # the client reads the reply
    others = [protocol_with_transport(config=config, state=state)[1] for _ in range(50)]
    assert not (transport.is_closed or transport.is_aborted)
    assert sum(each.is_closed for each in others) >= 50 - 3 - N_RESERVED_CONNECTIONS


async def test_request_that_has_arrived_while_the_event_loop_was_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection, which seems to be idle, does not make room for a new one."""
    config, state = configuration(limit_concurrency=3), ServerState()
    pairs = [protocol_with_transport(config=config, state=state) for _ in range(3)]
    for protocol, _ in pairs:
        protocol.connection.since -= 2
    waiting = pairs[0][1]
    monkeypatch.setattr(
        uvicorn_connections, "unreceived_nbytes", lambda each: 9 * (each is waiting)
    )
    for _ in range(50):
        protocol_with_transport(config=config, state=state)
    assert not (waiting.is_closed or waiting.is_aborted)
    assert all(transport.is_closed for _, transport in pairs[1:])


async def test_client_that_reads_a_reply_does_not_make_room_for_a_new_one() -> None:
    config, state = configuration(limit_concurrency=3), ServerState()
    pairs = [protocol_with_transport(config=config, state=state) for _ in range(3)]
    for protocol, _ in pairs:
        protocol.connection.since -= 2
    reading = pairs[0][1]
    reading.written = b"unread"
    for _ in range(50):
        protocol_with_transport(config=config, state=state)
    assert not (reading.is_closed or reading.is_aborted)
    assert all(transport.is_closed for _, transport in pairs[1:])


async def test_unfinished_bodies_beyond_the_limit_do_not_stop_others() -> None:
    """Its requests need no body. The first three connections stay open."""
    config, state = configuration(limit_concurrency=3), ServerState()
    pairs = [protocol_with_transport(config=config, state=state) for _ in range(3)]
    for protocol, _ in pairs:
        receive(protocol, SMALL[:-1])
    for _ in range(50):
        protocol, _ = protocol_with_transport(config=config, state=state)
        receive(protocol, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    protocol, transport = protocol_with_transport(config=config, state=state)
    receive(protocol, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    await turns(2)
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert not any(transport.is_closed for _, transport in pairs)


async def test_connection_that_takes_the_place_of_one_beyond_the_limit() -> None:
    """It is beyond the limit, too. Otherwise, requests without an end would fill the reserve."""
    config, state = configuration(limit_concurrency=3), ServerState()

    def connect() -> tuple[Any, Any]:
        return protocol_with_transport(config=config, state=state)

    for _ in range(3):
        receive(connect()[0], SMALL[:-1])
    for _ in range(N_RESERVED_CONNECTIONS):
        silent, _ = connect()
        silent.connection.since -= 2
        protocol, transport = connect()
        assert not silent.connection.may_be_closed
        receive(protocol, SMALL[:-1])
        await turns(2)
        assert transport.written.startswith(b"HTTP/1.1 503 ")
        transport.written = b""  # the client reads it
    protocol, transport = connect()
    receive(protocol, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    await turns(2)
    assert transport.written.startswith(b"HTTP/1.1 200 ")


async def test_closed_connections_whose_clients_read_nothing_are_limited() -> None:
    """A new connection closes an idle one, which is open while its client has unread replies."""
    config, state = configuration(limit_concurrency=3), ServerState()
    pairs = []
    for _ in range(50):
        protocol, transport = protocol_with_transport(config=config, state=state)
        protocol.connection.since -= 2
        pairs.append(transport)
    n_open = sum(not transport.is_aborted for transport in pairs)
    assert n_open <= 3 + N_RESERVED_CONNECTIONS


async def test_connections_that_end_and_are_read_slowly_leave_room_for_health_checks() -> None:
    config, state = configuration(limit_concurrency=3), ServerState()
    for n in range(3 + N_RESERVED_CONNECTIONS):
        protocol, transport = protocol_with_transport(config=config, state=state)
        receive(protocol, request_bytes("echo", np.arange(1000), "Connection: close\r\n"))
        await turns(2)
        assert protocol.connection.state is LINGERING
        assert transport.written[9:12] == (b"200" if n < 3 else b"503")
        if n >= 3:
            transport.written = b""  # the client need not read it: its system has it
    protocol, transport = protocol_with_transport(config=config, state=state)
    receive(protocol, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    await turns(2)
    assert transport.written.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("is_last", [True, False])
async def test_client_that_reads_a_reply_while_there_are_too_many_connections(
    is_last: bool,
) -> None:
    """Its connection is not aborted: a TLS transport would drop the rest of the reply."""
    config, state = configuration(limit_concurrency=3), ServerState()
    protocol, transport = protocol_with_transport(config=config, state=state)
    receive(protocol, request_bytes("echo", np.arange(2), "Connection: close\r\n" * is_last))
    await turns(2)
    protocol.connection.since -= 2
    others = [protocol_with_transport(config=config, state=state)[1] for _ in range(50)]
    assert not transport.is_aborted
    for each in others:
        each.written = b"unread"
    for _ in range(2):  # first, an idle one is closed
        protocol.connection.since -= 3  # it has stopped reading
        protocol_with_transport(config=config, state=state)
    assert transport.is_aborted


@pytest.mark.parametrize("seconds", [0, 1])
async def test_request_that_arrives_while_a_short_grace_period_ends(seconds: int) -> None:
    """Its client gets 503 before uvicorn stops the event loop."""
    config = configuration(timeout_graceful_shutdown=seconds)
    protocol, transport = protocol_with_transport(config=config)
    receive(protocol, SMALL[:-1])
    protocol.shutdown()
    assert protocol.connection.deadline <= protocol.loop.time() + seconds
    protocol.connection.tick(protocol.connection.deadline)
    protocol._advance()
    assert transport.written.startswith(b"HTTP/1.1 503 ")


async def test_task_that_a_shutdown_cancels_before_it_begins() -> None:
    protocol, transport = protocol_with_transport()
    state = protocol.server_state
    for each in list(state.connections):
        each.shutdown()
    receive(protocol, request_bytes("async", np.arange(2)))
    (task,) = state.tasks
    task.cancel("Task cancelled, timeout graceful shutdown exceeded")
    await turns(3)
    assert transport.written.startswith(b"HTTP/1.1 503 ")
    assert (transport.has_written_eof, state.tasks) == (True, set())


async def test_client_closes_its_direction_while_an_early_reply_is_sent() -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n"
    protocol, transport = protocol_with_transport(is_paused=True)
    receive(protocol, head)
    await turns()
    assert transport.written.startswith(b"HTTP/1.1 413 ")  # the rest is not received
    assert protocol.eof_received() is False
    assert transport.is_closed
    assert not transport.is_aborted  # it sends what is left


async def test_requests_of_one_chunk_are_answered_in_several_turns() -> None:
    n = 120
    protocol, transport = protocol_with_transport()
    receive(protocol, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" * n)
    await turns()
    assert 0 < transport.written.count(b"HTTP/1.1 200 ") < n
    await turns(n)
    assert transport.written.count(b"HTTP/1.1 200 ") == n


@pytest.mark.parametrize("n_requests", [1, 2])
@pytest.mark.parametrize("gone_seconds", [0, 60])
async def test_half_closed_connection_whose_call_waits(
    gone_seconds: float, n_requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed without a reply, but not at once: its client may wait for the reply.

    The transport does not tell if there are two requests, because it does not receive.
    """
    monkeypatch.setattr(client_calls, "GONE_SECONDS", gone_seconds)
    released.clear()
    config = configuration()
    protocols = [protocol_with_transport(config=config) for _ in range(N_THREADS + 1)]
    for protocol, _ in protocols:
        receive(protocol, n_requests * WAIT)
    await asyncio.sleep(0)
    protocol, transport = protocols[-1]
    try:
        if n_requests == 1:
            assert protocol.eof_received() is True
        else:
            assert protocol.connection.deadline <= protocol.loop.time() + 1
            monkeypatch.setattr(server_uvicorn, "peer_state", lambda _: PeerState.CLOSED)
            protocol._tick()
        assert not transport.is_closed
        await turns(10)
        assert transport.is_closed is (gone_seconds == 0)
    finally:
        released.set()
    for each, _ in protocols:
        while each.server_state.tasks:
            await asyncio.gather(*each.server_state.tasks)
    assert transport.written.count(b"HTTP/1.1 200 ") == (n_requests if gone_seconds else 0)


@pytest.mark.parametrize("runs", [True, False])
async def test_memory_of_a_request_whose_connection_closes(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is released when the model returns, or its call is dropped, before the end of the data."""
    monkeypatch.setattr(client_calls, "GONE_SECONDS", 0)
    released.clear()
    config = configuration()
    busy = [protocol_with_transport(config=config)[0] for _ in range(0 if runs else N_THREADS)]
    for each in busy:
        receive(each, WAIT)
    await asyncio.sleep(0)
    protocol, transport = protocol_with_transport(config=config)
    receive(protocol, request_bytes("wait", np.arange(50_000)))
    memory = protocol.service.body_memory
    assert memory.nbytes > 0
    if runs:  # a TLS client closes the connection
        protocol.connection.close(protocol.loop.time())
        protocol.settle()
    else:
        assert protocol.eof_received() is True
        await turns(10)
    assert transport.is_closed
    assert (memory.nbytes > 0) is runs
    released.set()
    for each in (protocol, *busy):
        await asyncio.gather(*each.server_state.tasks)
    assert memory.nbytes == 0


@pytest.mark.parametrize("model", ["slow", "wait"])
def test_request_whose_event_loop_was_closed_is_not_counted(model: str) -> None:
    """A program may stop the event loop of its server, and use the application again."""
    app = make_app()
    released.clear()

    async def begin() -> None:
        protocol, _ = protocol_with_transport(config=configuration(app))
        receive(protocol, request_bytes(model, np.arange(50_000)))
        await turns(3)
        assert app.body_memory.nbytes > 0

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task is destroyed while it is pending
    loop.run_until_complete(begin())
    loop.close()
    del loop
    released.set()
    wait_for(lambda: not app.threads._n_running)  # its call refers to the task
    gc.collect()
    wait_for(lambda: not (app.body_memory.nbytes or app.concurrency.requests))


async def test_generator_exit_of_a_future() -> None:
    """Python closes the coroutines that wait, so that there is no reply. The client must know."""

    async def model(_: Any) -> Any:
        loop = asyncio.get_running_loop()
        failed = loop.create_future()
        loop.call_soon(failed.set_exception, GeneratorExit())
        return await failed

    protocol, transport = protocol_with_transport(config=configuration(create_app({"m": model})))
    receive(protocol, request_bytes("m", np.arange(2)))
    [task] = protocol.server_state.tasks
    await turns(5)
    assert isinstance(task.exception(), GeneratorExit)
    assert transport.is_aborted
    assert protocol.server_state.tasks == set()


@pytest.mark.parametrize("n_sent", [0, 50, 10_000])
async def test_lost_connection_is_released(n_sent: int) -> None:
    """Without the garbage collector, and before its timer expires."""
    protocol, transport = protocol_with_transport()
    receive(protocol, request_bytes("echo", np.arange(100_000))[:n_sent])
    protocol.connection_lost(None)
    found = weakref.ref(protocol)
    del protocol, transport.protocol
    await asyncio.sleep(0)
    assert found() is None


async def test_lost_connection_is_not_aborted() -> None:
    """asyncio cannot abort a transport that was closed before it had sent everything."""
    protocol, transport = protocol_with_transport(is_paused=True)
    receive(protocol, request_bytes("echo", np.zeros(10)))
    protocol.eof_received()
    protocol.resume_writing()
    protocol.connection_lost(None)
    with patch.object(transport, "abort") as abort:
        await turns(2)
    abort.assert_not_called()
    over_asgi = Mock(connections=set())
    AsgiProtocol._abort(over_asgi)
    over_asgi.transport.abort.assert_not_called()


async def test_shutdown_cancels_a_request_whose_client_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for its reply, so the log does not name it."""
    protocol, transport = protocol_with_transport()
    receive(protocol, request_bytes("slow", np.arange(2)))
    await turns(3)
    protocol.connection_lost(None)
    protocol.all_connections.shutdown()
    warnings: list[Any] = []
    monkeypatch.setattr(server_uvicorn.logger, "warning", lambda *found: warnings.append(found))
    for task in protocol.server_state.tasks:
        task.cancel()
    await turns(3)
    assert (protocol.server_state.tasks, transport.written, warnings) == (set(), b"", [])


IN_LOOP = Model(echo, in_event_loop=True)


@pytest.mark.parametrize(
    ("is_asgi", "model", "limit"),
    [
        *((False, IN_LOOP, 44), (False, asgi_requests.async_echo, 51), (False, echo, 60)),
        *((True, IN_LOOP, 24), (True, asgi_requests.async_echo, 27), (True, echo, 36)),
    ],
)
async def test_calls_for_a_small_request(is_asgi: bool, model: Any, limit: int) -> None:
    """Its time is mostly that of calls. Those of functions of this package are counted."""
    config = configuration(create_app({"m": model}))
    protocol, transport = protocol_with_transport(config=config)
    sent, n_calls = request_bytes("m", np.arange(2)), 0

    async def answer() -> None:
        transport.written = b""
        if is_asgi:
            await asgi_requests.exchange(config.app, **asgi_requests.inference("m"))
            return
        receive(protocol, sent)
        while not transport.written:
            await asyncio.sleep(0)

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal n_calls
        n_calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    await answer()
    sys.setprofile(count)
    try:
        await answer()
    finally:
        sys.setprofile(None)
    assert n_calls <= limit
