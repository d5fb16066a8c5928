"""Client and AsyncClient over gRPC, against a server of grpcio."""

from __future__ import annotations

import asyncio
import pickle
import queue
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc as codec
from support import client_fixtures
from support.client_fixtures import FORK, Connect, X, fail_without_keeping_the_input, free_port
from support.grpc_scripted_servers import ScriptedServer
from support.http2_client import (
    END_HEADERS,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    frame,
    literal,
)
from support.lifetimes import without_gc
from support.memory import peak_nbytes, takes
from support.requirements import package
from support.scripts import run_script
from support.servers import Scripted
from support.threads import Places, in_thread, wait_for
from tensorwire.cli import main
from tensorwire.client import (
    AsyncClient,
    Client,
    InferenceServerError,
    Progress,
    Timeout,
    grpc_channels,
    grpc_streams,
)
from tensorwire.client import grpc as client_grpc

grpc = package("grpc")

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
certificate = client_fixtures.certificate


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as found:
        yield found


@pytest.fixture
def client(connect: Connect, server: ScriptedServer) -> Iterator[Any]:
    with connect(server.url, timeout=20) as found:
        yield found


@contextmanager
def connect_with_channel(connect: Connect, url: str, options: dict[str, Any]) -> Iterator[Any]:
    """Connect with the channel that `options["channel"]` makes, in the loop of an AsyncClient."""
    make = options.pop("channel", None)
    if connect is Client or make is None:
        with connect(url, channel=make and make(grpc), **options) as client:
            yield client
        return
    with connect(url) as client:

        async def main() -> AsyncClient:
            return AsyncClient(url, channel=make(grpc.aio), **options)

        client.client = client.runner.run(main())
        yield client


# --- requests and responses ---


def test_infer(client: Any, server: ScriptedServer) -> None:
    inputs = [tw.Tensor("x", X), tw.Tensor("words", ["a", "bc"]), tw.Tensor("none", X[:0])]
    response = client.infer("echo", inputs, id="7", parameters={"more": 1}, version="3")
    assert np.array_equal(response["x"].as_numpy(), X)
    assert response["words"].as_numpy().tolist() == [b"a", b"bc"]
    assert response["none"].shape == (0,)
    assert (response.id, response.model_name, response.model_version) == ("7", "echo", "3")
    assert response.parameters["saw"] == "more"  # and not binary_data_output
    assert client.infer("echo", {"x": X}, version=3).model_version == "3"
    assert list(client.infer("echo", {"x": X, "y": X}, ["y"])) == ["y"]


def test_infinities_are_exact_whatever_is_chosen_for_json(client: Any) -> None:
    array = np.array([np.inf, -np.inf, np.nan, 1])
    for options in ({}, {"nonfinite": "null"}, {"nonfinite": "error", "binary_inputs": False}):
        received = client.infer("echo", {"x": array}, **options)["x"].as_numpy()
        assert np.array_equal(received, array, equal_nan=True)


def test_metadata(client: Any) -> None:
    found = client.server_metadata()
    assert found == {"name": "test", "version": "1", "extensions": ["a", "b"]}
    found = client.model_metadata("declared", "1")
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    assert (found["versions"], found["platform"]) == (["1", "2"], "p")


def test_readiness(client: Any, connect: Connect) -> None:
    assert client.is_ready()
    assert client.is_ready("echo", "1")
    assert not client.is_ready("loading")
    assert not client.is_ready("nobody")
    client.wait_until_ready(5, "echo")
    message = (
        r"^model 'loading' is not ready after 0.2 seconds; last seen: ModelReady .*: not ready"
    )
    with pytest.raises(TimeoutError, match=message):
        client.wait_until_ready(0.2, "loading")
    with connect(f"grpc://127.0.0.1:{free_port()}") as nowhere:
        assert nowhere.is_ready() is False


def test_headers_are_metadata(connect: Connect, server: ScriptedServer) -> None:
    headers = {"X-Tenant": "9", "User-Agent": "mine", "Authorization": "Bearer a"}
    with connect(server.url, headers=headers) as client:
        client.infer("echo", {"x": X}, headers={"x-tenant": "10", "X-B.c_d": "a b"})
        _, sent = server.calls[-1]
        assert (sent["x-tenant"], sent["x-b.c_d"], sent["authorization"]) == (
            ("10", "a b", "Bearer a")
        )
        assert sent["user-agent"].startswith("mine grpc-python")
        client.is_ready()
        assert server.calls[-1][1]["x-tenant"] == "9"
    with connect(server.url) as client:
        client.is_ready()
    assert server.calls[-1][1]["user-agent"].startswith(f"tensorwire/{tw.__version__} ")


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"X": "\u00e9"}, "the value of the HTTP header X cannot be sent over gRPC"),
        ({"X": "a\tb"}, "the value of the HTTP header X cannot be sent over gRPC"),
        ({"X": "a\r\nb: c"}, "the value of the HTTP header X is invalid"),
        ({"x!": "a"}, "the name of an HTTP header cannot be sent over gRPC: 'x!'"),
        ({"Data-Bin": "a"}, "the name of an HTTP header cannot be sent over gRPC: 'Data-Bin'"),
        ({"grpc-timeout": "1S"}, "the name of an HTTP header cannot be sent over gRPC"),
        ({"Host": "other"}, "the HTTP header Host cannot be passed: grpcio sets it"),
        ({"Content-Type": "a"}, "the HTTP header Content-Type cannot be passed"),
    ],
)
def test_headers_that_cannot_be_sent(
    client: Any, server: ScriptedServer, headers: dict[str, str], message: str
) -> None:
    before = len(server.calls)
    for call in (
        lambda: client.infer("echo", {"x": X}, headers=headers),
        lambda: client.is_ready(headers=headers),
        lambda: client.stream("echo", [], headers=headers),
        lambda: Client(server.url, headers=headers),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert len(server.calls) == before


def test_model_names(client: Any) -> None:
    for call in (lambda m, v: client.infer(m, {"x": X}, version=v), client.is_ready):
        for model, version in (("", None), ("m", "")):
            with pytest.raises(ValueError, match="of a model must not be ''"):
                call(model, version)
        with pytest.raises(TypeError, match=r"^the name of a model must be a str, not int$"):
            call(3, None)
    assert client.infer("a b/\u00fc..", {"x": X}).model_name == "a b/\u00fc.."


def test_methods_of_the_other_transport(client: Any, connect: Connect) -> None:
    with pytest.raises(ValueError, match="infer_raw requires HTTP"):
        client.infer_raw("declared", X)
    message = "stream requires a grpc:// or grpcs:// URL, not http"
    with connect("localhost:1") as http, pytest.raises(ValueError, match=message):
        http.stream("m", [])


def test_progress(client: Any) -> None:
    calls: list[Progress] = []
    message = codec.encode_request(tw.InferRequest({"x": X}, model_name="echo"))
    client.infer("echo", message, on_progress=calls.append)
    n_sent, n_received = calls[-1].sent_nbytes, calls[-1].received_nbytes
    assert calls == [
        Progress(len(message), len(message), 0, None),
        Progress(n_sent, n_sent, n_received, n_received),
    ]

    def fail(_: Progress) -> None:
        raise ConnectionError("mine")

    with pytest.raises(ConnectionError, match=r"^mine$"):
        client.infer("echo", message, on_progress=fail)


def test_compression_of_grpcio(server: ScriptedServer) -> None:
    chosen: list[Any] = []

    class Records(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc, name-defined]
        def intercept_unary_unary(self, proceed: Any, details: Any, message: Any) -> Any:
            chosen.append(details.compression)
            return proceed(details, message)

    with grpc.insecure_channel(server.address) as channel:
        recorded = grpc.intercept_channel(channel, Records())
        with Client(server.url, channel=recorded) as client:
            for algorithm in (None, "gzip", "deflate"):
                client.infer("echo", {"x": X}, request_compression_algorithm=algorithm)
    assert chosen == [None, grpc.Compression.Gzip, grpc.Compression.Deflate]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client: Any, server: ScriptedServer, algorithm: Any) -> None:
    sizes: list[int] = []
    options: dict[str, Any] = {
        "request_compression_algorithm": algorithm,
        "response_compression_algorithm": "gzip",
        "on_progress": lambda progress: sizes.append(progress.sent_nbytes),
    }
    assert client.infer("echo", {"x": X}, **options)["x"].shape == X.shape
    assert sizes[0] > X.nbytes  # before compression


# --- encoded requests ---


def test_encoded_request_is_sent_repeatedly(client: Any, server: ScriptedServer) -> None:
    request = tw.InferRequest({"x": X}, id="7", model_name="echo", model_version="1")
    message = codec.encode_request(request)
    for _ in range(3):
        response = client.infer("echo", message, version="1")
        assert (response.id, response["x"].shape) == ("7", X.shape)
        assert server.messages[-1] == message
    invalid: list[dict[str, Any]] = [{"id": "8"}, {"outputs": ["x"]}, {"parameters": {}}]
    for options in invalid:
        with pytest.raises(TypeError, match=r"encoded bytes: .* must be passed to encode_request"):
            client.infer("echo", message, version="1", **options)


@pytest.mark.parametrize(
    ("name", "version", "call"),
    [
        ("echo", "1", ("echo", None)),
        ("echo", None, ("echo", "1")),
        ("echo", "1", ("echo", "2")),
        (None, None, ("echo", None)),
        ("other", None, ("echo", None)),
    ],
)
def test_encoded_request_for_another_model(
    client: Any, server: ScriptedServer, name: Any, version: Any, call: Any
) -> None:
    request = tw.InferRequest({"x": X}, model_name=name, model_version=version)
    before = len(server.calls)
    with pytest.raises(ValueError, match=r"^the encoded request is for .* the call is for"):
        client.infer(call[0], codec.encode_request(request), version=call[1])
    assert len(server.calls) == before


def test_encoded_request_that_is_not_a_message(client: Any) -> None:
    with pytest.raises(tw.HeaderError, match="the gRPC message is malformed"):
        client.infer("echo", b"\x0a\xff")
    frame = tw.encode_request(tw.InferRequest({"x": X}))
    with pytest.raises(
        TypeError, match=r"a Frame, which is sent over HTTP, .*grpc\.encode_request"
    ):
        client.infer("echo", frame)
    with Client("localhost:1") as http, pytest.raises(TypeError, match="sent over gRPC"):
        http.infer("echo", b"")


def test_message_over_two_gigabytes(client: Any) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 31

    with pytest.raises(tw.EncodeError, match="2147483648 bytes long; the limit is 2147483647") as e:
        client.infer("echo", Huge())
    assert (e.value.actual, e.value.expected) == (1 << 31, (1 << 31) - 1)


# --- errors ---

STATUSES = {
    **{"CANCELLED": 499, "UNKNOWN": 500, "INVALID_ARGUMENT": 400, "DEADLINE_EXCEEDED": 504},
    **{"NOT_FOUND": 404, "ALREADY_EXISTS": 409, "PERMISSION_DENIED": 403, "DATA_LOSS": 500},
    **{"RESOURCE_EXHAUSTED": 429, "FAILED_PRECONDITION": 400, "ABORTED": 409, "INTERNAL": 500},
    **{"OUT_OF_RANGE": 400, "UNIMPLEMENTED": 501, "UNAVAILABLE": 503, "UNAUTHENTICATED": 401},
}


@pytest.mark.parametrize("code", STATUSES)
def test_status_of_an_error(client: Any, server: ScriptedServer, code: str) -> None:
    parameters = {"code": code, "details": "no \u00fc"}
    with pytest.raises(InferenceServerError, match=f"^ModelInfer {server.url}: status ") as caught:
        client.infer("status", {"x": X}, parameters=parameters)
    error = caught.value
    assert (error.status, error.message) == (STATUSES[code], "no \u00fc")
    assert (error.url, error.model, error.retry_after) == (server.url, "status", None)
    assert error.__cause__ is not None
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, copy.model, str(copy)) == (error.status, "status", str(error))
    assert client.infer("echo", {"x": X})["x"].shape == X.shape
    assert len(STATUSES) == len(grpc.StatusCode) - 1


def test_connection_that_is_refused(connect: Connect) -> None:
    with connect(f"grpc://127.0.0.1:{free_port()}", timeout=20) as client, takes(0, 1):
        for _ in range(3):
            with pytest.raises(ConnectionError, match=r"^ModelInfer grpc://.*refused"):
                client.infer("m", {"x": X})


def stream_reset(code: int) -> bytes:
    return frame(RST_STREAM, 0, 1, code.to_bytes(4, "big"))


EMPTY_SETTINGS = frame(SETTINGS)
GO_AWAY = frame(GOAWAY, payload=bytes(8))
RESPONSE_FIELDS = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
RESPONSE_HEAD = frame(HEADERS, END_HEADERS, 1, RESPONSE_FIELDS)


class Raw(Scripted):
    """Sends bytes, and receives in between. Then it closes or resets the connection."""

    def __init__(self, *sent: bytes, is_reset: bool = False) -> None:
        super().__init__([])
        self.sent = sent
        self.is_reset = is_reset

    def __enter__(self) -> Any:
        super().__enter__()
        return f"grpc://{self.address}"

    def serve(self, connection: socket.socket) -> None:
        for i, data in enumerate(self.sent):
            if i > 0:
                time.sleep(0.1)
                connection.recv(1 << 16)
            connection.sendall(data)
        time.sleep(0.1)  # closing may discard what the client has not received yet
        if self.is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def balanced(library: Any) -> Any:
    """Return a channel of the caller to a port where nothing listens."""
    options = [("grpc.lb_policy_name", "round_robin")]
    return library.insecure_channel(f"127.0.0.1:{free_port()}", options)


# How a connection fails: the URL or a server, and the options of the client.
FAILURES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "all backends refuse": (lambda: nullcontext("grpc://named:1"), {"channel": balanced}),
    "name is unknown": (lambda: nullcontext("grpc://host.invalid:1"), {"trust_env": False}),
    "no Unix socket": (lambda: nullcontext("grpc+unix:/none/none"), {}),
    "closes": (Raw, {}),
    "HTTP/1": (lambda: Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3), {}),
    "closes later": (lambda: Raw(EMPTY_SETTINGS, b""), {}),
    "resets the connection": (lambda: Raw(EMPTY_SETTINGS, b"", is_reset=True), {}),
    "goes away": (lambda: Raw(EMPTY_SETTINGS, GO_AWAY), {}),
    "refuses the stream": (lambda: Raw(EMPTY_SETTINGS, stream_reset(7)), {}),
    "responds in part": (lambda: Raw(EMPTY_SETTINGS, RESPONSE_HEAD), {}),
}


@pytest.mark.parametrize("name", FAILURES)
def test_connection_that_fails(connect: Connect, name: str) -> None:
    """The text of the installed grpcio is that of a failed connection, and not of a server."""
    make, options = FAILURES[name]
    with make() as url, connect_with_channel(connect, url, {"timeout": 20, **options}) as client:
        for _ in range(2):
            with pytest.raises(ConnectionError, match=f"^ModelInfer {re.escape(url)}: ") as caught:
                client.infer("m", {"x": X})
            cause: Any = caught.value.__cause__
            assert cause.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("code", "status"), [(0, 500), (2, 500), (8, 499), (11, 429), (12, 403)])
def test_stream_that_is_reset(connect: Connect, code: int, status: int) -> None:
    """It has the status of its code in HTTP/2."""
    with (
        Raw(EMPTY_SETTINGS, stream_reset(code)) as url,
        connect(url, timeout=20) as client,
        pytest.raises(InferenceServerError, match=f": status {status}: ") as caught,
    ):
        client.infer("m", {"x": X})
    assert caught.value.status == status


@pytest.mark.parametrize(
    "text", ["", "busy", "Socket closed", "failed to connect to all addresses"]
)
@pytest.mark.parametrize(
    ("code", "n_calls"),
    [
        ("UNAVAILABLE", 2),
        ("RESOURCE_EXHAUSTED", 2),
        ("INTERNAL", 1),
        ("UNKNOWN", 1),
        ("CANCELLED", 1),
    ],
)
def test_retries_depend_on_the_code(connect: Connect, code: str, n_calls: int, text: str) -> None:
    """A server may send any text, also that of a failed connection."""

    def reject(message: bytes, context: Any) -> Any:
        context.abort(getattr(grpc.StatusCode, code), text)

    with ScriptedServer({"ModelInfer": reject}) as server, connect(server.url, retries=1) as client:
        with pytest.raises((InferenceServerError, ConnectionError)) as caught:
            client.infer("m", {"x": X})
        assert len(server.calls) == n_calls
    if code != "UNAVAILABLE":
        assert isinstance(caught.value, InferenceServerError)
        assert caught.value.message == text


def test_url_of_the_other_protocol(connect: Connect, server: ScriptedServer) -> None:
    with connect(f"http://{server.address}", timeout=20) as client:
        for call in (client.server_metadata, lambda: client.infer("m", {"x": np.zeros(1 << 20)})):
            with pytest.raises(ConnectionError, match=r": the server speaks .* use a grpc:// URL$"):
                call()
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    with (
        Scripted([answer]) as http,
        connect(f"grpc://{http.address}", timeout=20) as client,
        pytest.raises(ConnectionError, match=r": the server speaks .* use an http:// URL$"),
    ):
        client.infer("m", {"x": X})


def test_invalid_response(connect: Connect) -> None:
    garbage = b"\x2a\xff\xff"
    answers: dict[str, Any] = {
        name: lambda *_: garbage for name in ("ModelInfer", "ModelMetadata", "ModelReady")
    }
    with ScriptedServer(answers) as server, connect(server.url, retries=3) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.infer("m", {"x": X}),
            lambda: client.model_metadata("m"),
            lambda: client.is_ready("m"),
            lambda: client.wait_until_ready(5, "m"),
        ]
        for call in calls:
            with pytest.raises(tw.DecodeError, match="malformed"):
                call()
        assert len(server.calls) == 4


def test_limits(connect: Connect, server: ScriptedServer) -> None:
    with connect(server.url, limits=tw.Limits(max_tensors=1)) as client:
        with pytest.raises(tw.HeaderError, match="more than 1 output"):
            client.infer("echo", {"x": X, "y": X})
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


# --- sizes ---


def test_messages_above_four_megabytes(client: Any) -> None:
    array = np.arange(5 << 20, dtype=np.uint8)
    assert np.array_equal(client.infer("echo", {"x": array})["x"].data, array)


@pytest.mark.parametrize("is_own", [False, True])
def test_response_above_max_body(connect: Connect, server: ScriptedServer, is_own: bool) -> None:
    options: dict[str, Any] = {"max_body": 1000, "retries": 3}
    if is_own:
        options["channel"] = lambda library: library.insecure_channel(server.address)
    with connect_with_channel(connect, server.url, options) as client:
        assert client.infer("echo", {"x": X[:10]})["x"].shape == (10,)
        before = len(server.calls)
        for _ in range(2):
            with pytest.raises(tw.DecodeError, match=r"long; the limit is 1000$") as caught:
                client.infer("echo", {"x": X})
            assert (caught.value.status, caught.value.expected) == (413, 1000)
            assert 4000 < (caught.value.actual or 0) < 4200
        assert len(server.calls) == before + 2
        with pytest.raises(tw.DecodeError, match=r"long; the limit is 1000$"):
            next(client.stream("repeat", [{"x": X}]))


def test_request_above_a_limit(connect: Connect) -> None:
    with ScriptedServer(max_nbytes=1000) as server:
        with connect(server.url, retries=3) as client:
            with pytest.raises(InferenceServerError, match="larger than max") as caught:
                client.infer("echo", {"x": X})
            assert caught.value.status == 413
        options = [("grpc.max_send_message_length", 500)]
        channel = {"channel": lambda lib: lib.insecure_channel(server.address, options)}
        with connect_with_channel(connect, server.url, channel) as client:
            message = "the gRPC message is 40.. bytes long; the limit of the channel is 500"
            with pytest.raises(tw.EncodeError, match=message) as too_long:
                client.infer("echo", {"x": X})
        assert (too_long.value.expected, (too_long.value.actual or 0) > 4000) == (500, True)


def test_limit_in_the_words_of_a_server(connect: Connect) -> None:
    """It is no error of the client, and its numbers may have thousands of digits."""

    def reject(message: bytes, context: Any) -> Any:
        text = f"CLIENT: Sent message larger than max ({'9' * 5000} vs. 4)"
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    with (
        ScriptedServer({"ModelInfer": reject}) as server,
        connect(server.url) as client,
        pytest.raises(InferenceServerError, match="larger than max") as caught,
    ):
        client.infer("echo", {"x": X})
    assert caught.value.status == 429


@pytest.mark.parametrize("is_request", [False, True])
def test_compressed_message_above_a_limit(connect: Connect, is_request: bool) -> None:
    """New versions of grpcio do not report which side has rejected it, and how long it is."""
    zeros = np.zeros(100_000)

    def answer(message: bytes, context: Any) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return codec.encode_response(tw.InferResponse({"y": zeros}))

    with (
        ScriptedServer({"ModelInfer": answer}, max_nbytes=10_000) as server,
        connect(server.url, max_body=10_000, retries=3) as client,
        pytest.raises((InferenceServerError, tw.HeaderError)) as caught,
    ):
        if is_request:
            client.infer("m", {"x": zeros}, request_compression_algorithm="gzip")
        else:
            client.infer("m", {"x": X[:1]})
    assert isinstance(caught.value, InferenceServerError) == is_request
    assert caught.value.status == 413


# --- timeouts ---


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        (0.2, "no response after 0.2 seconds (read timeout)"),
        (Timeout(read=0.2, total=5), "no response after 0.2 seconds (read timeout)"),
        (Timeout(total=0.2), "the call took longer than 0.2 seconds (total timeout)"),
    ],
)
def test_timeouts(connect: Connect, server: ScriptedServer, timeout: Any, message: str) -> None:
    before = len(server.calls)
    with connect(server.url, retries=3) as client:
        fails = pytest.raises(TimeoutError, match=re.escape(f"ModelInfer {server.url}: {message}"))
        with takes(0.19, 2), fails:
            client.infer("slow", {"x": X}, timeout=timeout)
        assert len(server.calls) == before + 1
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": None},
        {"timeout": 9e14},
        {"timeout": Timeout(connect=1e-9, total=1e12)},
        {"max_body": None},
        {"max_body": (1 << 31) - 1},
        {"max_body": 1 << 31},
        {"max_body": 1 << 70},
    ],
)
def test_limits_that_grpcio_does_not_have(
    connect: Connect, server: ScriptedServer, options: dict[str, Any]
) -> None:
    with connect(server.url, **options) as client:
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


@pytest.mark.slow(reason="it waits for timeouts")
def test_server_that_never_responds(connect: Connect) -> None:
    """It accepts connections, and sends nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        with connect(url, timeout=Timeout(read=0.2)) as client, pytest.raises(TimeoutError):
            client.infer("m", {"x": X})
        fails = pytest.raises(ConnectionError, match="failed to connect")
        with connect(url, timeout=Timeout(connect=0.3, read=20)) as client, takes(0, 5), fails:
            client.infer("m", {"x": X})


# --- channels ---


def test_channel_of_the_caller(connect: Connect, server: ScriptedServer) -> None:
    made: list[Any] = []

    def make(library: Any) -> Any:
        made.append(library.insecure_channel(server.address))
        return made[0]

    with connect_with_channel(connect, "grpc://named:1", {"channel": make}) as client:
        assert client.infer("echo", {"x": X})["x"].shape == X.shape
        with pytest.raises(InferenceServerError, match=r"^ModelInfer grpc://named:1: status 404"):
            client.infer("status", {"x": X}, parameters={"code": "NOT_FOUND", "details": ""})
        client.close()
        with pytest.raises(RuntimeError, match=r"^the client is closed$"):
            client.infer("echo", {"x": X})
        method = made[0].unary_unary("/inference.GRPCInferenceService/ServerReady")
        if connect is Client:
            assert method(b"") == b"\x08\x01"
            made[0].close()
        else:

            async def use() -> None:
                assert await method(b"") == b"\x08\x01"
                await made[0].close()

            client.runner.run(use())


def test_channel_that_the_caller_has_closed(connect: Connect, server: ScriptedServer) -> None:
    made: list[Any] = []

    def make(library: Any) -> Any:
        made.append(library.insecure_channel(server.address))
        return made[0]

    with connect_with_channel(connect, server.url, {"channel": make}) as client:
        client.infer("echo", {"x": X})
        closing = made[0].close()
        if connect is not Client:
            client.runner.run(closing)
        calls: list[Callable[[], Any]] = [
            lambda: client.infer("echo", {"x": X}),
            lambda: client.stream("repeat", []),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="closed"):
                call()


def test_channel_of_the_wrong_kind(server: ScriptedServer) -> None:
    with grpc.insecure_channel(server.address) as channel:

        async def main() -> None:
            async with AsyncClient(server.url, channel=channel) as client:
                with pytest.raises(TypeError, match=r"^AsyncClient requires a grpc\.aio\.Channel$"):
                    await client.is_ready()
            async with grpc.aio.insecure_channel(server.address) as other:
                fails = pytest.raises(TypeError, match=r"^Client requires a grpc\.Channel$")
                with Client(server.url, channel=other) as blocking, fails:
                    blocking.is_ready()

        asyncio.run(main())
        wrong: Any = server.address
        with pytest.raises(TypeError, match="channel must be a channel of grpcio, not str"):
            Client(server.url, channel=wrong)
        with pytest.raises(ValueError, match="channel requires a grpc:// or grpcs:// URL"):
            Client("localhost", channel=channel)
        with pytest.raises(TypeError, match="a channel of the caller cannot be pickled"):
            pickle.dumps(Client(server.url, channel=channel))


def test_certificates_require_a_channel() -> None:
    with pytest.raises(ValueError, match="ssl_context requires an https:// URL"):
        Client("grpcs://localhost", ssl_context=ssl.create_default_context())


def test_unix_socket(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "a b%41.sock"
    with (
        ScriptedServer(address=f"unix:{quote(str(path))}"),
        connect(f"grpc+unix:{quote(str(path))}") as c,
    ):
        assert c.infer("echo", {"x": X})["x"].shape == X.shape
    fails = pytest.raises(ConnectionError, match="No such file")
    with connect(f"grpc+unix:{tmp_path / 'none'}") as nowhere, fails:
        nowhere.infer("echo", {"x": X})


def test_tls(
    connect: Connect, certificate: client_fixtures.Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, chain = Path(certificate.key).read_bytes(), Path(certificate.file).read_bytes()
    serving = grpc.ssl_server_credentials([(key, chain)])
    with ScriptedServer(credentials=serving) as server:
        trusting = {
            "channel": lambda library: library.secure_channel(
                server.address, grpc.ssl_channel_credentials(chain)
            )
        }
        url = f"grpcs://{server.address}"
        with connect_with_channel(connect, url, trusting) as client:
            assert client.infer("echo", {"x": X})["x"].shape == X.shape
        with connect(url) as client, pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY"):
            client.infer("echo", {"x": X})
        with connect(server.url) as plain, pytest.raises(ConnectionError):
            plain.infer("echo", {"x": X})
        if connect is Client:
            command = [sys.executable, "-m", "tensorwire", "infer", url, "echo", "--input"]
            done = subprocess.run(
                [*command, "x:FP32=1", "--ca-file", certificate.file],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.stdout == "x  FP32  [1]\n[1.]\n", done.stderr


def test_restarted_server(connect: Connect) -> None:
    with ScriptedServer() as first:
        client_of = connect(first.url, retries=4)
        with client_of as client:
            client.infer("echo", {"x": X})
            first.server.stop(0).wait()
            with ScriptedServer(address=first.address) as second:
                assert client.infer("echo", {"x": X})["x"].shape == X.shape
                assert len(second.calls) == 1


@pytest.mark.slow(reason="it waits for timeouts")
def test_wait_for_a_server_that_starts(connect: Connect) -> None:
    port = free_port()
    started: list[ScriptedServer] = []

    def start() -> None:
        started.append(ScriptedServer(address=f"127.0.0.1:{port}").__enter__())

    timer = threading.Timer(0.3, start)
    timer.start()
    with connect(f"grpc://127.0.0.1:{port}") as client, takes(0.25, 3):
        client.wait_until_ready(10)
    timer.join()
    started[0].__exit__()


# --- closing, cancelling, signals, processes ---


def test_closed_client(connect: Connect, server: ScriptedServer) -> None:
    for n_calls in (0, 1):
        with connect(server.url) as client:
            for _ in range(n_calls):
                client.infer("echo", {"x": X})
            client.close()
            for call in (
                lambda: client.infer("echo", {"x": X}),
                client.is_ready,
                lambda: client.stream("repeat", []),
            ):
                with pytest.raises(RuntimeError, match=r"^the client is closed$"):
                    call()
            client.close()


def test_close_during_a_call_of_another_thread() -> None:
    with ScriptedServer() as server:
        client = Client(server.url, retries=3)

        def close() -> None:
            server.has_begun.wait(5)
            client.close()

        fails = pytest.raises((ConnectionError, RuntimeError), match=r"client (was|is) closed")
        with in_thread(close), fails:
            client.infer("slow", {"x": X})
        assert len(server.calls) == 1


@pytest.mark.parametrize("is_own", [False, True])
def test_close_during_a_call_of_another_task(is_own: bool) -> None:
    async def main(server: ScriptedServer) -> None:
        channel = grpc.aio.insecure_channel(server.address) if is_own else None
        client = AsyncClient(server.url, channel=channel)
        calls = [asyncio.create_task(client.infer("slow", {"x": X})) for _ in range(2)]
        await asyncio.to_thread(server.has_begun.wait, 5)
        stream = client.stream("repeat", [tw.InferRequest({"x": X}, parameters={"hang": True})])
        await anext(stream)
        calls.append(asyncio.ensure_future(anext(stream)))
        await asyncio.sleep(0.1)
        await client.close()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, ConnectionError)
            assert str(result).endswith("the client was closed during the call")
        if channel is not None:
            await channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"")
            await channel.close()

    with ScriptedServer() as server:
        asyncio.run(main(server))
        wait_for(lambda: server.n_cancelled == 3)


def test_cancelled_task() -> None:
    async def main(server: ScriptedServer) -> None:
        async with AsyncClient(server.url, retries=3) as client:
            call = asyncio.create_task(client.infer("slow", {"x": X}))
            await asyncio.to_thread(server.has_begun.wait, 5)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.infer("slow", {"x": X})
            assert (await client.infer("echo", {"x": X}))["x"].shape == X.shape

    with ScriptedServer() as server:
        asyncio.run(main(server))
        wait_for(lambda: server.n_cancelled == 2)
        assert len(server.calls) == 3


def test_client_of_another_event_loop(server: ScriptedServer) -> None:
    client = AsyncClient(server.url)
    asyncio.run(client.is_ready())
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        asyncio.run(client.is_ready())


def test_signal_during_a_call() -> None:
    """A handler that raises ends the call, and the server sees that."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with ScriptedServer() as server, Client(server.url) as client:

            def send() -> None:
                server.has_begun.wait(5)
                time.sleep(0.1)  # until grpcio has stored the call
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

            with in_thread(send), takes(0, 1.5), pytest.raises(Interrupted):
                client.infer("slow", {"x": X})
            wait_for(lambda: server.n_cancelled == 1)
            assert client.infer("echo", {"x": X})["x"].shape == X.shape
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("kind", "option", "status", "n_calls"),
    [
        ("sync", "", 0, 3),
        ("async", "", 7, 2),
        ("sync", "channel of the caller", 7, 2),
        ("async", "another client", 7, 2),
    ],
)
def test_fork(kind: str, option: str, status: int, n_calls: int) -> None:
    """The child process has a channel of its own, and the parent process keeps its channel.

    It cannot use gRPC if a channel of grpc.aio was opened before, even if it is closed. The channel
    of the caller is not its own.
    """
    with ScriptedServer() as server:
        done = run_script(FORK, server.url, kind, option)
        assert done.returncode == status, done.stderr
        assert len(server.calls) == n_calls


# --- the event loop ---


@pytest.mark.parametrize(("nbytes", "place"), [(1 << 20, "the loop"), (4 << 20, "a thread")])
def test_large_messages_are_processed_in_a_thread(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, nbytes: int, place: str
) -> None:
    places = Places(monkeypatch)
    places.note(client_grpc, "encode_request")
    places.note(grpc_channels, "decode_response")
    places.note(grpc_streams, "read_stream_response")

    async def main() -> None:
        places.loop = asyncio.get_running_loop()
        inputs = {"x": np.zeros(nbytes, np.uint8)}
        async with AsyncClient(server.url) as client:
            assert (await client.infer("echo", inputs))["x"].nbytes == nbytes
            async for response in client.stream("echo", [inputs]):
                assert response["x"].nbytes == nbytes

    asyncio.run(main())
    names = ("encode_request", "decode_response", "encode_request", "read_stream_response")
    assert places.noted == [f"{name} in {place}" for name in names]


def test_task_that_is_cancelled_while_a_response_is_decoded(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends, as if no response had arrived."""
    has_begun, may_end = threading.Event(), threading.Event()

    def read(message: bytes, limits: tw.Limits) -> Any:
        has_begun.set()
        may_end.wait(10)
        return codec.decode_stream_response(message)

    monkeypatch.setattr(grpc_streams, "read_stream_response", read)

    async def main() -> None:
        inputs = tw.InferRequest({"x": np.zeros(4 << 20, np.uint8)}, parameters={"hang": True})
        async with AsyncClient(server.url) as client:
            stream = client.stream("repeat", [inputs])
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.to_thread(has_begun.wait, 10)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            may_end.set()
            assert [response async for response in stream] == []

    asyncio.run(main())


# --- memory ---


def test_request_is_copied_once() -> None:
    """Into the message. What grpcio allocates is not traced."""
    array = np.zeros(32 << 20, np.uint8)
    with Client(f"grpc://127.0.0.1:{free_port()}") as client:

        def call() -> None:
            with pytest.raises(ConnectionError):
                client.infer("m", {"x": array})

        assert array.nbytes < peak_nbytes(call) < 1.01 * array.nbytes


def test_retries_of_a_large_request_take_no_more_memory() -> None:
    def reject(message: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, "try again")
        raise AssertionError

    array = np.zeros(32 << 20, np.uint8)
    message = codec.encode_request(tw.InferRequest({"x": array}, model_name="m"))
    peaks = []

    def call(client: Client) -> None:
        with pytest.raises(InferenceServerError, match="try again"):
            client.infer("m", message)

    with ScriptedServer({"ModelInfer": reject}) as server:
        for retries in (0, 2):
            with Client(server.url, retries=retries) as client:
                peaks.append(peak_nbytes(partial(call, client)))
        assert len(server.calls) == 1 + 3
    assert peaks[1] < 1.1 * peaks[0]


def test_failed_call_does_not_keep_its_input() -> None:
    with Client(f"grpc://127.0.0.1:{free_port()}") as client:
        fail_without_keeping_the_input(lambda inputs: client.infer("m", inputs))


# --- streams ---


def request(**parameters: Any) -> tw.InferRequest:
    return tw.InferRequest({"x": X[:3]}, parameters=parameters)


def test_stream(client: Any, server: ScriptedServer) -> None:
    requests = [{"x": X}, [tw.Tensor("x", X)], {"x": [1, 2]}, request(), encoded("repeat")]
    responses = client.stream("repeat", iter(requests), headers={"X-A": "1"})
    assert iter(responses) is responses
    found = [(response.id, response["x"].shape) for response in responses]
    assert found == [("1", (1000,)), ("2", (1000,)), ("3", (2,)), ("4", (3,)), ("enc", (3,))]
    assert ("ModelStreamInfer", "1") in [(name, sent.get("x-a")) for name, sent in server.calls]
    assert list(responses) == []
    assert list(client.stream("repeat", [])) == []


def encoded(model: str) -> bytes:
    return codec.encode_request(request().replace(model_name=model, id="enc"))


def test_several_responses_to_a_request(client: Any) -> None:
    responses = client.stream("repeat", [request(n=3), request(n=0), request(n=2)])
    found = [(response.id, int(response["i"].as_numpy()[0])) for response in responses]
    assert found == [("1", 0), ("1", 1), ("1", 2), ("3", 0), ("3", 1)]


def items_of(queued: queue.Queue[Any], client: Any) -> Any:
    """Return an iterable of the items up to None. It does not block an event loop."""

    async def items() -> AsyncIterator[Any]:
        while (item := await asyncio.to_thread(queued.get)) is not None:
            yield item

    return iter(queued.get, None) if isinstance(client, Client) else items()


def test_responses_arrive_between_the_requests(client: Any) -> None:
    requests: queue.Queue[Any] = queue.Queue()
    responses = client.stream("repeat", items_of(requests, client))
    for value in (1.0, 2.0, 3.0):
        requests.put({"x": np.array([value])})
        assert next(responses)["x"].tolist() == [value]
    requests.put(None)
    assert list(responses) == []


def test_error_of_one_request(client: Any) -> None:
    """The iterator continues with the response to the next request."""
    requests = [request(), request(error="no \u00fc"), request(), request(error="x"), request()]
    responses = client.stream("repeat", requests)
    assert next(responses).id == "1"
    with pytest.raises(InferenceServerError, match=r"^ModelStreamInfer grpc://.*: no \u00fc$") as e:
        next(responses)
    error = e.value
    assert (error.message, error.model, error.id) == ("no \u00fc", "repeat", "2")
    assert (error.status, pickle.loads(pickle.dumps(error)).id) == (500, "2")
    assert next(responses).id == "3"
    with pytest.raises(InferenceServerError, match=r": x$"):
        next(responses)
    assert [response.id for response in responses] == ["5"]


@pytest.mark.parametrize("code", ["NOT_FOUND", None])
def test_server_that_ends_a_stream_while_requests_are_sent(connect: Connect, code: Any) -> None:
    """Its status is reported, and not that a request could not be written."""

    def answer(messages: Any, context: Any) -> Iterator[bytes]:
        next(messages)
        yield codec.encode_stream_response(tw.InferResponse({"x": X}))
        if code is not None:
            context.abort(getattr(grpc.StatusCode, code), "aborted")

    with ScriptedServer({"ModelStreamInfer": answer}) as server, connect(server.url) as client:
        for _ in range(10):
            responses = client.stream("m", [{"x": np.zeros(1 << 18)}] * 20)
            assert next(responses)["x"].shape == X.shape
            if code is not None:
                with pytest.raises(InferenceServerError, match="status 404: aborted"):
                    next(responses)
            assert list(responses) == []


def test_invalid_response_of_a_stream(connect: Connect) -> None:
    good = codec.encode_stream_response(tw.InferResponse({"x": X}))

    def answer(messages: Any, context: Any) -> Iterator[bytes]:
        yield from (b"\x12\x02\x2a\xff", good)

    with ScriptedServer({"ModelStreamInfer": answer}) as server, connect(server.url) as client:
        responses = client.stream("m", [])
        with pytest.raises(tw.DecodeError, match="malformed"):
            next(responses)
        assert next(responses)["x"].shape == X.shape
        assert list(responses) == []


def test_error_of_the_requests(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is raised as it is, and ends the call."""

    def requests() -> Iterator[Any]:
        yield request(hang=True)  # the server only continues when the call is cancelled
        raise KeyError("mine")

    for failing, error in (
        (requests(), KeyError),
        ([{"x": X}, 3], TypeError),
        ([b"\x0a"], tw.HeaderError),
        ([codec.encode_request(request().replace(model_name="other"))], ValueError),
        ([{"x": ["a", 1]}], (TypeError, ValueError)),
    ):
        responses = client.stream("repeat", failing, timeout=Timeout(total=3))
        with takes(0, 2), pytest.raises(error):
            list(responses)
        assert list(responses) == []
    assert caplog.text == ""


def test_error_of_the_requests_does_not_keep_them(client: Any) -> None:
    arrays: list[Any] = []

    def requests() -> Iterator[Any]:
        array = np.zeros(1000)
        arrays.append(weakref.ref(array))
        yield {"x": array}
        del array
        raise KeyError("mine")

    with without_gc():
        with pytest.raises(KeyError):
            list(client.stream("echo", requests()))
        wait_for(lambda: arrays[0]() is None)


@pytest.mark.parametrize("requests", [{"x": X}, request(), b"", "x", None, X[0]])
def test_requests_that_are_not_an_iterable_of_inputs(client: Any, requests: Any) -> None:
    with pytest.raises(TypeError, match="requests must be an iterable of inputs, not "):
        client.stream("repeat", requests)


def test_total_timeout_of_a_stream(client: Any) -> None:
    timeout = Timeout(read=0.01, total=0.3)
    with takes(0.29, 2):
        responses = client.stream("repeat", [request(hang=True)], timeout=timeout)
        next(responses)
        with pytest.raises(TimeoutError, match=r"the call took longer than 0\.3 seconds"):
            next(responses)
    assert list(responses) == []


@pytest.mark.parametrize("end", ["close", "delete", "leave"])
def test_stream_that_is_left(connect: Connect, end: str) -> None:
    """The server sees that the call is cancelled, also while the requests have not ended."""
    requests: queue.Queue[Any] = queue.Queue()
    requests.put(request(hang=True))
    with ScriptedServer() as server, connect(server.url) as client:
        responses = client.stream("repeat", items_of(requests, client))
        if end == "leave":
            for _ in responses:
                break
            del responses, _
        else:
            next(responses)
        if end == "close":
            responses.close()
            assert list(responses) == []
            responses.close()
        elif end == "delete":
            del responses
        wait_for(lambda: server.n_cancelled == 1)
        requests.put(None)
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


def test_close_of_a_client_ends_its_streams(server: ScriptedServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for client in (Client(server.url), Client(server.url, channel=channel)):
            responses = client.stream("repeat", [request(hang=True)])
            next(responses)
            threading.Timer(0.1, client.close).start()
            with pytest.raises(ConnectionError, match="the client was closed during the call"):
                next(responses)
            assert list(responses) == []


def test_stream_that_another_thread_closes(server: ScriptedServer) -> None:
    with Client(server.url) as client, client.stream("repeat", [request(hang=True)]) as responses:
        next(responses)
        threading.Timer(0.1, responses.close).start()
        assert list(responses) == []


def test_cancelled_task_that_reads_a_stream() -> None:
    async def main(server: ScriptedServer) -> None:
        async with (
            AsyncClient(server.url) as client,
            client.stream("repeat", [request(hang=True)]) as responses,
        ):
            await anext(responses)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(responses)
            assert [response async for response in responses] == []

    with ScriptedServer() as server:
        asyncio.run(main(server))
        wait_for(lambda: server.n_cancelled == 1)


def test_streams_of_a_server_that_is_not_there(connect: Connect) -> None:
    with connect(f"grpc://127.0.0.1:{free_port()}", retries=3) as client:
        with pytest.raises(ConnectionError, match="refused"):
            next(client.stream("m", [{"x": X}]))
        with pytest.raises((ConnectionError, InferenceServerError)):
            list(client.stream("m", [{"x": [1]}]))  # the metadata cannot be requested


# --- the command ---


def test_infer_command(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", server.url, "declared", "--input", "x=[1, 2]"]) == 0
    assert "y  FP32  [2]\n[2. 4.]" in capsys.readouterr().out
    assert main(["infer", server.url, "nobody", "--input", "x=[1, 2]"]) == 1
    assert "model 'nobody' is not known" in capsys.readouterr().err
    arguments = ["infer", server.url, "echo", "--random", "--shape", "x:FP32=3", "--repeat", "5"]
    assert main([*arguments, "--concurrency", "2"]) == 0
