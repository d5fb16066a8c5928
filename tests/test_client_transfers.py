"""Large requests and responses of the clients: early responses, compression, progress, memory."""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import (
    BODY,
    GOOD,
    Certificate,
    Connect,
    MiB,
    TlsScripted,
    X,
    connect_to,
    fail_without_keeping_the_input,
    seen,
)
from support.memory import peak_nbytes
from support.servers import Scripted, http
from tensorwire.client import Client, InferenceServerError, Progress, responses
from tensorwire.client import http as http_calls
from tensorwire.client.connection import Connection
from tensorwire.client.requests import ProgressReporter, Target
from tensorwire.client.requests import compress as compress_frame
from tensorwire.http import HEADER_LENGTH

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client
certificate, tls = client_fixtures.certificate, client_fixtures.tls

LARGE = np.zeros(64 * MiB, np.int8)


# --- responses before the end of the request ---

REJECTION = http(b'{"error": "too long"}', status="413 Content Too Large")


class RejectsEarly(TlsScripted):
    """Reads the head and the first bytes of the body, and then sends the answer."""

    def read(self, connection: socket.socket) -> bool:
        # Otherwise the kernel may delay the answer, and discard it when the socket is closed.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.recv(1 << 16)
        time.sleep(0.02)
        return True


def closes(connection: socket.socket) -> None:
    connection.sendall(REJECTION)
    if isinstance(connection, ssl.SSLSocket):
        # asyncio drops a response that it has not received when it notices the reset connection.
        time.sleep(0.05)


def sends_slowly(connection: socket.socket) -> None:
    connection.sendall(REJECTION[:-10])
    time.sleep(0.1)
    connection.sendall(REJECTION[-10:])


@pytest.mark.parametrize("answer", [closes, sends_slowly])
def test_rejection_while_the_request_is_sent(
    connect: Connect, answer: Any, tls: Certificate | None
) -> None:
    """The status and the message of the server are reported, and the connection is closed."""
    server = RejectsEarly([answer], tls)
    with connect_to(server, connect, timeout=5) as client:
        for n in range(3):
            with pytest.raises(InferenceServerError, match="too long") as caught:
                client.infer("m", {"x": LARGE})
            assert caught.value.status == 413
            assert server.n_connections == n + 1


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("rest", [b"", REJECTION[-10:]], ids=["complete", "in part"])
def test_rejection_by_a_server_that_continues_to_read(
    connect: Connect, tls: Certificate | None, rest: bytes
) -> None:
    """The client stops sending, and closes the connection after the end of the response."""
    n_read = []

    def reject_and_read(connection: socket.socket) -> None:
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

    server = RejectsEarly([reject_and_read], tls)
    with connect_to(server, connect, timeout=5) as client:
        with pytest.raises(InferenceServerError, match="too long"):
            client.infer("m", {"x": LARGE})
        client.is_ready()  # an event loop closes connections only while it runs
    assert 0 <= n_read[0] < 32 * MiB


def test_rejection_that_is_only_noticed_when_sending_fails(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has sent its response and closed the connection between two send operations."""

    def wait(self: Any, *arguments: Any) -> Any:
        time.sleep(0.1)
        return send_window(self, *arguments)

    send_window = Connection._send_window
    monkeypatch.setattr(Connection, "_send_window", wait)
    with connect_to(RejectsEarly([closes], None), connect, timeout=5) as client:
        with pytest.raises(InferenceServerError, match="too long") as caught:
            client.infer("m", {"x": LARGE})
        assert caught.value.status == 413

        def stop(progress: Progress) -> None:
            if progress.received_nbytes:
                raise TimeoutError("stop")

        with pytest.raises(TimeoutError, match=r"^stop$"):
            client.infer("m", {"x": LARGE}, on_progress=stop)


def test_success_before_the_end_of_the_request(connect: Connect) -> None:
    """The rest of the request is sent: the server may still read it."""

    class Early(Scripted):
        def read(self, connection: socket.socket) -> bool:
            connection.recv(1 << 16)
            connection.sendall(GOOD[:1000])
            n_left = 8 * MiB - (1 << 16)
            while n_left > 0:
                n_left -= len(connection.recv(1 << 20))
            return True

    with Early([GOOD[1000:]]) as server, connect(server.address, timeout=5) as client:
        assert np.array_equal(client.infer("m", {"x": LARGE[: 8 * MiB]})["x"].data, X)


# --- compression ---


@pytest.mark.parametrize("n_values", [100, MiB])
def test_large_request_is_compressed_in_a_thread(
    n_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def record(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return compress_frame(*arguments)

    monkeypatch.setattr(http_calls, "compress", record)
    with Scripted([GOOD]) as server, client_fixtures.Awaited(server.address) as client:
        data = np.zeros(n_values, np.float32)
        client.infer("m", {"x": data}, request_compression_algorithm="gzip")
    assert threads == [n_values == MiB]


@pytest.mark.parametrize("name", ["request", "response"])
def test_unknown_compression_algorithm(client: Any, name: str) -> None:
    options = {f"{name}_compression_algorithm": "br"}
    with pytest.raises(ValueError, match="must be 'gzip', 'deflate', 'zstd' or None, not 'br'"):
        client.infer("echo", {"x": X}, **options)


# --- progress ---


def test_progress(client: Any) -> None:
    calls: list[Progress] = []
    array = np.zeros(8 * MiB, np.int8)
    client.infer("echo", {"x": array}, on_progress=calls.append)
    request_nbytes = int(seen[-1]["content-length"])
    sending = [call for call in calls if call.received_nbytes == 0]
    receiving = calls[len(sending) :]
    assert 8 <= len(sending) <= 20
    assert 3 <= len(receiving) <= 20
    assert sending[-1] == Progress(request_nbytes, request_nbytes, 0, None)
    assert receiving[-1].received_nbytes == receiving[-1].response_nbytes
    assert receiving[-1].received_nbytes > array.nbytes
    assert all(call.sent_nbytes == call.request_nbytes == request_nbytes for call in receiving)
    for numbers in ([c.sent_nbytes for c in sending], [c.received_nbytes for c in receiving]):
        assert numbers == sorted(set(numbers))


def test_progress_of_small_pieces() -> None:
    """It is reported about once per MiB, also if the pieces that arrive are small."""
    reports: list[Progress] = []
    reporter = ProgressReporter(reports.append, 1000)
    for nbytes in range(0, 4 * MiB + 1, MiB // 16):
        reporter.received(nbytes, 4 * MiB, nbytes == 4 * MiB)
    assert [report.received_nbytes for report in reports] == [MiB, 2 * MiB, 3 * MiB, 4 * MiB]


def test_progress_of_small_messages(client: Any) -> None:
    calls: list[Progress] = []
    response = client.infer_raw("declared", X, on_progress=calls.append)
    assert response["y"].shape == X.shape
    assert calls[0] == Progress(X.nbytes, X.nbytes, 0, None)
    assert len(calls) == 2
    assert calls[1].received_nbytes == calls[1].response_nbytes


@pytest.mark.parametrize("nbytes", [1000, 4 * MiB])
def test_progress_of_a_repeated_request(connect: Connect, nbytes: int) -> None:
    """The numbers begin at 0 again."""
    calls: list[Progress] = []
    answers = [http(b'{"error": "busy"}', {"Connection": "keep-alive"}, "503 Busy"), GOOD]

    def answer(connection: socket.socket) -> None:
        connection.sendall(answers.pop(0))

    # The second request has a new connection if the first one was not known to be sent completely.
    with Scripted([answer, answer]) as server, connect(server.address, retries=1) as client:
        client.infer("m", {"x": np.zeros(nbytes, np.int8)}, on_progress=calls.append)
    n_received = [call.received_nbytes for call in calls]
    second = next(i for i, n in enumerate(n_received) if n) + 1
    assert n_received[second] == 0
    assert [c.sent_nbytes for c in calls[second:]] == sorted(c.sent_nbytes for c in calls[second:])
    assert calls[second].response_nbytes is None
    assert calls[-1].received_nbytes == len(BODY)


def test_function_for_progress_is_released(connect: Connect) -> None:
    class Report:
        def __call__(self, progress: Progress) -> None:
            return

    report = Report()
    released = weakref.ref(report)
    with Scripted([GOOD]) as server, connect(server.address) as client:
        client.infer("m", {"x": X}, on_progress=report)
        del report
        assert released() is None


class Stop(Exception):
    pass


@pytest.mark.parametrize("error", [Stop, BrokenPipeError, TimeoutError])
@pytest.mark.parametrize("when", ["sending", "sent", "receiving", "received"])
def test_exception_of_the_progress_function(connect: Connect, error: Any, when: str) -> None:
    """It is raised unchanged, the call is not repeated, and the connection is closed."""
    array = np.zeros(8 * MiB, np.int8)
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("x", array)]))
    response = http(bytes(frame), {HEADER_LENGTH: str(frame.header_length)})
    is_received_in_part = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(response[: 3 * MiB])
        is_received_in_part.wait(5)  # otherwise the client may receive everything at once
        connection.sendall(response[3 * MiB :])

    def stop(progress: Progress) -> None:
        is_sent = progress.sent_nbytes == progress.request_nbytes
        is_received = progress.received_nbytes == progress.response_nbytes
        if progress.received_nbytes > 0:
            is_received_in_part.set()
        if when == {
            (False, False): "sending",
            (True, False): "receiving" if progress.received_nbytes else "sent",
            (True, True): "received",
        }.get((is_sent, is_received)):
            raise error("stop")

    with Scripted([GOOD, answer]) as server, connect(server.address, retries=1) as client:
        client.infer("m", {"x": X})
        with pytest.raises(error, match=r"^stop$"):
            client.infer("m", {"x": array}, on_progress=stop)
        is_received_in_part.set()
        assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert (server.n_connections, len(server.heads)) == (2, 3)


# --- memory ---


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

    parse = responses.ResponseReader.on_body
    monkeypatch.setattr(responses.ResponseReader, "on_body", on_body)
    answers = [GOOD, answer if direction == "response" else GOOD]
    server = TlsScripted(answers, tls)
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


def test_frame_of_many_buffers(client: Any) -> None:
    """More buffers than one system call accepts, of many sizes."""
    array = np.random.default_rng(1).integers(0, 255, MiB, np.uint8)
    parameters = {"binary_data_output": True}
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", array)], parameters=parameters))
    body = memoryview(bytes(frame))
    cuts = [0, *sorted({i * i % len(body) for i in range(5000)} - {0}), len(body)]
    pieces = tuple(body[i:j] for i, j in itertools.pairwise(cuts))
    response = client.infer("echo", tw.Frame(pieces, frame.header_length))
    assert len(pieces) > 2048
    assert np.array_equal(response["x"].data, array)


@pytest.mark.slow(reason="it waits for timeouts")
def test_slow_reader_and_slow_sender(connect: Connect) -> None:
    """The socket buffers are full most of the time, and pieces are sent in part."""
    received = bytearray()

    class Slow(Scripted):
        def read(self, connection: socket.socket) -> bool:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            while len(received) < expected:
                received.extend(connection.recv(100_000))
                if len(received) % 5 == 0:
                    time.sleep(0.001)
            return True

        def serve(self, connection: socket.socket) -> None:
            if self.read(connection):
                for start in range(0, len(GOOD), 61):
                    connection.sendall(GOOD[start : start + 61])

    array = np.random.default_rng(1).integers(0, 255, 24 * MiB, np.uint8)
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", array)]))
    expected = len(frame)
    server = Slow([b""])
    server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with server, connect(server.address, timeout=20) as client:
        head_nbytes = len(client_head(client, frame))
        expected += head_nbytes
        assert np.array_equal(client.infer("m", frame)["x"].data, X)
    assert bytes(received[head_nbytes:]) == bytes(frame)


def client_head(client: Any, frame: tw.Frame) -> bytes:
    base = getattr(client, "client", client)
    head: bytes = base._transport.infer_request(Target("m", None, None), frame).head
    return head


@pytest.mark.parametrize("end", ["refused", "reset"])
def test_failed_call_does_not_keep_its_input(end: str) -> None:
    class Resets(Scripted):
        def read(self, connection: socket.socket) -> bool:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False

    with Resets([]) as server:
        url = server.address if end == "reset" else f"127.0.0.1:{client_fixtures.free_port()}"
        with Client(url) as client:
            fail_without_keeping_the_input(lambda inputs: client.infer("m", inputs))
