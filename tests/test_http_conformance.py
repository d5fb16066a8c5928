"""Unusual HTTP for every server: malformed, slow, pipelined and interrupted requests.

Each test runs against a process of each server of ``support/http_servers.py``. The requests are
exact bytes. ``support/http_cases.py`` has the cases that need only one exchange.
"""

from __future__ import annotations

import json
import random
import socket
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support import http_cases
from support.http_cases import (
    CASES,
    CHUNKED,
    EXPECT,
    INFER,
    INVALID,
    UPGRADE_LINES,
    Case,
    encoded,
    get,
)
from support.http_exchange import (
    TIMEOUT,
    Closed,
    Connection,
    Echo,
    Response,
    chunked,
    echo,
    head,
    post,
)
from support.http_models import BIG_NBYTES, RECEIVE_TIMEOUT
from support.http_servers import BY_NAME, TRANSPORTS, Server, Transport, running
from support.memory import takes
from support.threads import in_thread, wait_for

pytestmark = [
    pytest.mark.thread_unsafe(reason="the tests share servers"),
    pytest.mark.no_sanitizers(reason="it measures the memory of processes"),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this machine has no /proc"),
]

MB = 1_000_000


def parameter(transport: Transport, *more: Case) -> object:
    """Return the parameter for a server. On each change, one of each interface is tested."""
    marks = []
    if transport.name not in ("asgi-httptools", "fast"):
        marks.append(pytest.mark.nightly(reason="another server with the same interface is tested"))
    id = "-".join([transport.name, *(case.id for case in more)])
    return pytest.param(transport, *more, id=id, marks=marks)


# For tests of what other servers do without the application, and not always as RFC 9112 requires.
OF_INFER_PROTOCOL = pytest.mark.parametrize("started", [parameter(BY_NAME["fast"])], indirect=True)
OF_SERVE = pytest.mark.parametrize(
    "started", [parameter(BY_NAME[name]) for name in ("fast", "asgi-httptools")], indirect=True
)


class Running:
    """The server that was started last. pytest may ask for it again after each test."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.server: Server | None = None

    def start(self, transport: Transport) -> Server:
        if self.server is None or self.server.name != transport.name:
            self.server = None
            self.stack.close()
            self.server = self.stack.enter_context(running(transport))
            check_new_connection(self.server)
            wait_for_connections(self.server, 0)
        return self.server


@pytest.fixture(scope="module")
def last() -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(stack)


@pytest.fixture(scope="module", params=[parameter(each) for each in TRANSPORTS])
def started(request: pytest.FixtureRequest, last: Running) -> Server:
    return last.start(request.param)


@pytest.fixture
def server(started: Server) -> Iterator[Server]:
    """The server. After the test, it must answer, and its log has no unexpected exception."""
    yield started
    check_new_connection(started)
    before, *others = started.new_log().split("Traceback (most recent call last):")
    for traceback in others:
        is_expected = before.rstrip().endswith("failed") or "cancels_itself" in traceback
        assert is_expected, f"{before[-500:]}{traceback}"
        before = traceback


def check_new_connection(server: Server) -> None:
    with Connection(server.port) as connection:
        check_next(connection)


def check_next(connection: Connection) -> None:
    """Check that the connection can be used for another request."""
    request = echo(f"next {random.getrandbits(40)}", (random.getrandbits(60),))
    request.check(connection.ask(post("echo", request)))


def resident_nbytes(server: Server) -> int:
    """Return the memory of the server without garbage and free memory.

    hypercorn keeps the messages of a closed connection in reference cycles.
    """
    if server.name == "hypercorn":
        with Connection(server.port) as connection:
            assert connection.ask(post("memory", echo())).status == 200
    return server.resident_nbytes()


@contextmanager
def several(server: Server, n: int, receive_nbytes: int = 0) -> Iterator[list[Connection]]:
    """Open `n` connections, and close those that are still open at the end."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(Connection(server.port, receive_nbytes=receive_nbytes))
            for _ in range(n)
        ]


def wait_for_connections(server: Server, n: int, timeout: float = 10.0) -> None:
    wait_for(lambda: server.n_connections() == n, timeout)


def post_in_chunks(request: Echo, *sizes: int) -> bytes:
    return head(INFER, [request.length_header, CHUNKED]) + chunked(request.body, sizes)


# --- one exchange --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("started", "case"),
    [parameter(each, case) for each in TRANSPORTS for case in CASES if case.is_for(each.name)],
    indirect=["started"],
)
def test_case(server: Server, case: Case) -> None:
    expected, is_of_server = case.outcome, case.outcome is INVALID and server.name != "fast"
    with Connection(server.port) as connection:
        connection.send(case.sent)
        responses = [connection.read(case.method) for _ in expected.statuses]
        assert tuple(response.status for response in responses) == expected.statuses
        if server.name != "hypercorn":  # which sends 100 Continue before it calls the application
            assert all(response.n_interim == 0 for response in responses)
        for response in responses:
            if response.status >= 400 and case.method != "HEAD" and not is_of_server:
                assert expected.error in response.error
            elif "inference-header-content-length" in response.headers:
                http_cases.ONE.check(response)
        if expected.stays_open:
            check_next(connection)
        elif expected.stays_open is not None:
            assert connection.is_closed(2)


# --- compressed responses ------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("nbytes", [2_000, 100_000, 1_500_000])
def test_compressed_response(server: Server, coding: str, nbytes: int) -> None:
    """The body has the length that the headers declare, also if it hardly becomes smaller."""
    numbers = np.frombuffer(random.randbytes(nbytes), np.int64)
    requests = [echo(f"{i}", tuple(numbers[i:].tolist())) for i in range(2)]
    with Connection(server.port, timeout=30) as connection:
        for request in requests:
            accept = f"Accept-Encoding: br, {coding};q=0.5"
            connection.send(post("echo", request, [*request.headers, accept]))
        for request in requests:
            response = connection.read()
            assert response.headers["content-encoding"] == coding
            assert response.headers["vary"].lower() == "accept-encoding"
            body = zlib.decompress(response.body, 31 if coding == "gzip" else 15)
            request.check(replace(response, body=body))
        response = connection.ask(post("echo", requests[0]))
        assert "content-encoding" not in response.headers
        assert response.headers["vary"].lower() == "accept-encoding"
        requests[0].check(response)


# --- Expect: 100-continue ------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["Content-Length", "chunked"])
def test_expect_continue(server: Server, framing: str) -> None:
    """The server sends 100 Continue once, before it receives the body, which has several parts."""
    request = echo()
    lines, body = request.headers, request.body
    if framing == "chunked":
        lines, body = [request.length_header, CHUNKED], chunked(body, (5, 7))
    with Connection(server.port) as connection:
        connection.send(head(INFER, [*lines, EXPECT]))
        assert connection.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        connection.send_in_parts([body[:20], body[20:40], body[40:]], 0.02)
        response = connection.read()
        assert response.n_interim == 0
        request.check(response)
        check_next(connection)


@OF_INFER_PROTOCOL
def test_no_continue_for_http_1_0(server: Server) -> None:
    """An HTTP/1.0 client would take 100 Continue for the response (RFC 9110 10.1.1)."""
    request = echo()
    sent = head(INFER.replace("1.1", "1.0"), [*request.headers, EXPECT])
    with Connection(server.port) as connection:
        connection.send_in_parts([sent, request.body], 0.1)
        response = connection.read()
        request.check(response)
        assert response.n_interim == 0


# --- Upgrade -------------------------------------------------------------------------------------


@OF_SERVE
@pytest.mark.parametrize("name", UPGRADE_LINES)
@pytest.mark.parametrize("framing", ["Content-Length", "chunked"])
def test_upgrade_with_a_body_that_arrives_later(server: Server, name: str, framing: str) -> None:
    """The body of a request whose upgrade is ignored is not taken for the next request."""
    body = get("/v2/health/live")  # not a message
    lines = [UPGRADE_LINES[name], f"Content-Length: {len(body)}"]
    if framing == "chunked":
        lines[1], body = CHUNKED, chunked(body)
    with Connection(server.port) as connection:
        connection.send_in_parts([head(INFER, lines), body], 0.1)
        assert connection.read().status == 400
        check_next(connection)


@OF_SERVE
def test_requests_behind_upgrades(server: Server) -> None:
    """Thousands of them in one chunk neither get lost nor exhaust the stack."""
    upgrade = head("GET /v2/health/live HTTP/1.1", [UPGRADE_LINES["h2c"]])
    with Connection(server.port) as connection:
        connection.send(upgrade * 1500)
        assert {connection.read().status for _ in range(1500)} == {200}
        check_next(connection)


@pytest.mark.parametrize("started", [parameter(BY_NAME["asgi-httptools"])], indirect=True)
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"CONNECT /v2 HTTP/1.1\r\nHost: a\r\n\r\n", "Invalid HTTP request received."),
        (b"GET /v2 HTTP/1.1\r\n" + b"A: b\r\n" * 200_000, "The headers exceed the limit of 65536"),
    ],
)
def test_heads_that_uvicorn_accepts(server: Server, sent: bytes, text: str) -> None:
    with Connection(server.port) as connection:
        answer = connection.ask(sent)
    assert answer.status == 400
    assert answer.body.decode().startswith(text)


# --- rejections before the body ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "lines", "status"),
    [
        (INFER, [], 413),
        ("POST /v2/models/unknown/infer HTTP/1.1", [], 404),
        ("PUT /v2/models/echo/infer HTTP/1.1", [], 405),
        (INFER, ["Content-Encoding: br"], 415),
        (INFER, ["Inference-Header-Content-Length: x"], 400),
    ],
)
@pytest.mark.parametrize("framing", ["Content-Length", "chunked"])
def test_a_rejection_while_the_body_is_sent(
    server: Server, start: str, lines: list[str], status: int, framing: str
) -> None:
    """A client that sends the whole body first can read the response.

    Afterwards the server has either closed the connection or skipped the body.
    """
    body = bytes(12 << 20)
    if framing == "chunked":
        sent = head(start, [*lines, CHUNKED]) + chunked(body, (1 << 20,) * 11)
    else:
        sent = head(start, [*lines, f"Content-Length: {len(body)}"]) + body
    with Connection(server.port) as connection:
        response = connection.ask(sent)
        assert response.status == status
        assert response.error
        if response.closes:
            assert connection.is_closed(2)
            return
        with suppress(Closed):
            check_next(connection)


def test_a_rejected_body_without_an_end(server: Server) -> None:
    """The server does not read a body of any size before it rejects the request."""
    lines = ["Inference-Header-Content-Length: x", CHUNKED]
    sent = head(INFER, lines)
    sent += chunked(bytes(24 << 20), (1 << 20,) * 23, end=b"")
    with Connection(server.port, timeout=0.9 * RECEIVE_TIMEOUT) as connection:

        def send() -> None:
            with suppress(OSError):  # the server may stop reading
                connection.send(sent)

        with in_thread(send):
            try:
                response = connection.read()
            finally:
                connection.socket.close()
        assert response.status == 400
        assert "Inference-Header-Content-Length" in response.error


# --- data in several parts, and pipelining -------------------------------------------------------


def test_pipelining(server: Server) -> None:
    """500 requests that are sent at once are answered in order, also behind slow models."""
    models = {0: "sleep", 20: "sleep_in_thread", 40: "echo_in_thread"}

    def send(i: int, request: Echo) -> bytes:
        if i % 10 == 3:
            return get(f"/v2/models/unknown-{i}")
        if i % 10 == 5:
            return get("/v2/models/echo", "HEAD")
        if i % 10 == 7:
            lines = [f"Inference-Header-Content-Length: x{i}", "Content-Length: 3"]
            return head(INFER, lines) + b"abc"
        return post_in_chunks(request, 4) if i % 10 == 8 else post(models.get(i, "echo"), request)

    def check(i: int, request: Echo, response: Response) -> None:
        if i % 10 == 3:
            assert (response.status, f"unknown-{i}" in response.error) == (404, True)
        elif i % 10 == 5:
            assert response.status == 200
        elif i % 10 == 7:
            assert (response.status, f"x{i}" in response.error) == (400, True)
        else:
            request.check(response)

    requests = [echo(f"request {i}", (i, i * i)) for i in range(500)]
    sent = b"".join(send(i, request) for i, request in enumerate(requests))
    with Connection(server.port) as connection:
        with in_thread(connection.send, sent):
            for i, request in enumerate(requests):
                check(i, request, connection.read("HEAD" if i % 10 == 5 else "POST"))
        check_next(connection)


def test_pipelined_reply_is_made_when_it_is_sent(server: Server) -> None:
    """Otherwise thousands of small requests, sent at once, would make all their replies at once."""
    path = "/v2/models/echo_in_thread/stats"
    request = echo()

    def n_requests(connection: Connection) -> int:
        (found,) = json.loads(connection.read().body)["model_stats"]
        return int(found["inference_count"])

    with Connection(server.port) as connection:
        connection.send(get(path, "GET"))
        n = n_requests(connection)
        connection.send((post("echo_in_thread", request) + get(path, "GET")) * 2)
        for i in (1, 2):
            request.check(connection.read())
            assert n_requests(connection) == n + i


# --- connections that end early ------------------------------------------------------------------


@OF_INFER_PROTOCOL
@pytest.mark.parametrize("model", ["sleep", "sleep_in_thread", "big"])
def test_half_closed(server: Server, model: str) -> None:
    """A client that closes its sending direction after the request gets the response."""
    request = echo()
    with Connection(server.port) as connection:
        connection.send(post(model, request))
        connection.shut_down()
        response = connection.read()
        if model == "big":
            assert len(response.body) > BIG_NBYTES
        else:
            request.check(response)
        assert connection.is_closed(2)


CUT = echo("cut", tuple(range(100)))
CUT_SENT = post("echo", CUT)
CUTS = {
    "before the first byte": b"",
    "in the first line": CUT_SENT[:10],
    "in the headers": CUT_SENT[:60],
    "after the headers": CUT_SENT[: -len(CUT.body)],
    "in the body": CUT_SENT[: -len(CUT.body) // 2],
    "before the last byte": CUT_SENT[:-1],
    "in a large body": head(INFER, ["Content-Length: 1000000"]) + bytes(600_000),
    "before the last chunk": head(INFER, [CUT.length_header, CHUNKED]) + chunked(CUT.body, end=b""),
    "in a chunk": head(INFER, [CHUNKED]) + b"64\r\nabc",
}


@pytest.mark.parametrize("cut", CUTS)
def test_incomplete_requests(server: Server, cut: str) -> None:
    """The server releases the connection. It may send an error response first."""
    wait_for_connections(server, 0)
    with several(server, 9) as connections:
        for connection in connections:
            connection.send(CUTS[cut])
        wait_for_connections(server, 9)
        for half_closed, closed, reset in zip(*[iter(connections)] * 3, strict=True):
            half_closed.shut_down()
            closed.socket.close()
            reset.reset()
        # hypercorn waits for its keep-alive timeout; the others must not wait for receive_timeout
        timeout = 10.0 if server.name == "hypercorn" else 0.9 * RECEIVE_TIMEOUT
        wait_for_connections(server, 0, timeout)
        for connection in connections[::3]:
            while connection.receive():
                continue
            assert not connection.received or connection.read().status >= 400


# --- slow clients --------------------------------------------------------------------------------


def send_too_slowly(server: Server, sent: bytes, parts: list[bytes], error: str) -> None:
    with Connection(server.port) as connection:
        connection.send(sent)
        with in_thread(connection.send_in_parts, parts, 0.1):
            with takes(0.9 * RECEIVE_TIMEOUT, RECEIVE_TIMEOUT + 2):
                response = connection.read()
            assert (response.status, response.closes) == (408, True)
            assert response.error == f"{error} did not arrive within {RECEIVE_TIMEOUT:g} seconds"
            assert connection.is_closed(2)


@pytest.mark.slow(reason="it waits for timeouts")
def test_slow_requests(server: Server) -> None:
    """A client that sends the body too slowly gets 408. A slow client that is in time gets 200."""
    request = echo()
    length = head(INFER, request.headers)
    n_late = round(RECEIVE_TIMEOUT * 10) + 5
    slow = [bytes([byte]) for byte in request.body[:n_late]]
    slow_zip = [bytes([byte]) for byte in http_cases.ZIPPED[:n_late]]
    chunked_head = head(INFER, [request.length_header, CHUNKED])
    late = [
        (length, slow, "the body"),
        (length, [], "the body"),
        (head(INFER, ["Content-Length: 1000000"]) + bytes(500_000), slow, "the body"),
        (chunked_head, [b"1\r\n%b\r\n" % part for part in slow], "the body"),
        (encoded("gzip", bytes(1000))[:-1000], slow_zip, "the body"),
    ]
    if server.name == "fast":
        late.append((length[:45], [b"a"] * n_late, "the headers"))
    with ThreadPoolExecutor(len(late)) as pool:
        calls = [pool.submit(send_too_slowly, server, *each) for each in late]
        with Connection(server.port) as connection:
            connection.send(length)
            size = len(request.body) // 8 + 1
            parts = [request.body[i : i + size] for i in range(0, len(request.body), size)]
            connection.send_in_parts(parts, 0.1)
            request.check(connection.read())
            check_next(connection)
        for call in calls:
            call.result()


@pytest.mark.slow(reason="it waits for timeouts")
def test_clients_that_do_not_read_a_large_response(server: Server) -> None:
    """The memory of the server has one copy of each response, and other clients are answered."""
    before = server.resident_nbytes()
    n = 8
    with (
        several(server, n - 1, receive_nbytes=4096) as connections,
        Connection(server.port) as reader,
    ):
        for connection in (*connections, reader):
            connection.send(post("big", echo()))
        for connection in (*connections, reader):
            connection.socket.recv(1, socket.MSG_PEEK)
        peak, deadline = 0, time.monotonic() + RECEIVE_TIMEOUT / 2
        while time.monotonic() < deadline:
            peak = max(peak, server.resident_nbytes() - before)
            time.sleep(0.02)
        check_new_connection(server)
        assert peak < n * BIG_NBYTES + 80 * MB
        response = reader.read()
        assert response.body[-BIG_NBYTES:].count(7) == BIG_NBYTES
    wait_for(lambda: resident_nbytes(server) - before < 60 * MB, 30)


@OF_INFER_PROTOCOL
@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize(("first", "size"), [("echo", 300), ("echo", 100_000), ("never", 300)])
def test_clients_that_pipeline_without_reading(server: Server, first: str, size: int) -> None:
    """The server stops reading, so its memory does not grow with the number of requests."""
    request = echo("request", tuple(range(size)))
    sent = post("echo", request)
    before = server.resident_nbytes()
    with Connection(server.port, timeout=0.5, receive_nbytes=4096) as connection:
        connection.send(post(first, request))
        n_sent, view = 0, memoryview(sent * max(1, (1 << 18) // len(sent)))
        while True:
            try:
                n_sent += connection.socket.send(view[n_sent % len(view) :])
            except TimeoutError:
                break
            assert server.resident_nbytes() - before < 40 * MB
            assert n_sent < 25 * MB, "the server reads requests without sending responses"
        check_new_connection(server)
        if first == "never":
            return
        connection.socket.settimeout(TIMEOUT)
        rest = -n_sent % len(sent)
        with in_thread(connection.send, sent[len(sent) - rest :]):
            for _ in range(1 + (n_sent + rest) // len(sent)):
                request.check(connection.read())
        check_next(connection)
