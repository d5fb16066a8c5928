"""Client and AsyncClient over gRPC, against a server of grpcio."""

from __future__ import annotations

import pickle
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc as codec
from support import client_fixtures
from support.client_fixtures import Connect, X, free_port
from support.grpc_server import GrpcServer, grpc
from support.servers import Scripted
from tensorwire.client import AsyncClient, Client, InferenceServerError, Progress, Timeout

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
certificate = client_fixtures.certificate


@pytest.fixture(scope="module")
def server() -> Iterator[GrpcServer]:
    with GrpcServer() as found:
        yield found


@pytest.fixture
def client(connect: Connect, server: GrpcServer) -> Iterator[Any]:
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


def test_infer(client: Any, server: GrpcServer) -> None:
    inputs = [tw.Tensor("x", X), tw.Tensor("words", ["a", "bc"]), tw.Tensor("none", X[:0])]
    response = client.infer("echo", inputs, id="7", parameters={"more": 1}, version="3")
    assert np.array_equal(response["x"].as_numpy(), X)
    assert response["words"].as_numpy().tolist() == [b"a", b"bc"]
    assert response["none"].shape == (0,)
    assert (response.id, response.model_name, response.model_version) == ("7", "echo", "3")
    assert response.parameters["saw"] == "more"  # and not binary_data_output
    assert client.infer("echo", {"x": X}, version=3).model_version == "3"


def test_outputs_and_requests_of_the_caller(client: Any) -> None:
    inputs = {"x": X, "y": X[:2]}
    assert list(client.infer("echo", inputs, ["y"])) == ["y"]
    request = tw.InferRequest(inputs, ["y"], id="mine", parameters={"more": 1}, model_name="other")
    response = client.infer("echo", request)
    assert (list(response), response.id, response.model_name) == (["y"], "mine", "echo")
    response = client.infer("echo", request, ["x"], id="9", parameters={"most": 2})
    assert (list(response), response.id) == (["x"], "9")
    assert response.parameters["saw"] == "more,most"


def test_requests_are_numbered(client: Any) -> None:
    assert [client.infer("echo", {"x": X}).id for _ in range(3)] == ["1", "2", "3"]
    assert client.infer("echo", {"x": X}, id=None).id is None


def test_lists_of_numbers(client: Any, server: GrpcServer) -> None:
    before = len(server.calls)
    for _ in range(2):
        assert client.infer("declared", {"x": [1, 2]})["y"].tolist() == [2, 4]
    methods = [method for method, _ in server.calls[before:]]
    assert methods == ["ModelMetadata", "ModelInfer", "ModelInfer"]
    with pytest.raises(ValueError, match="metadata of model 'echo' does not declare"):
        client.infer("echo", {"x": [1]})


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


def test_headers_are_metadata(connect: Connect, server: GrpcServer) -> None:
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
    client: Any, server: GrpcServer, headers: dict[str, str], message: str
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
    calls = [
        lambda m, v: client.infer(m, {"x": X}, version=v),
        client.model_metadata,
        client.is_ready,
        lambda m, v: client.wait_until_ready(1, m, v),
    ]
    for call in calls:
        for model, version in (("", None), ("m", "")):
            with pytest.raises(ValueError, match="of a model must not be ''"):
                call(model, version)
        with pytest.raises(TypeError, match=r"^the name of a model must be a str, not int$"):
            call(3, None)
    assert client.infer("a b/\u00fc..", {"x": X}).model_name == "a b/\u00fc.."


def test_infer_raw_requires_http(client: Any) -> None:
    with pytest.raises(ValueError, match="infer_raw requires HTTP"):
        client.infer_raw("declared", X)


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

    with pytest.raises(ConnectionError, match="^mine$"):
        client.infer("echo", message, on_progress=fail)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client: Any, server: GrpcServer, algorithm: Any) -> None:
    sizes: list[int] = []
    options: dict[str, Any] = {
        "request_compression_algorithm": algorithm,
        "response_compression_algorithm": "gzip",
        "on_progress": lambda progress: sizes.append(progress.sent_nbytes),
    }
    assert client.infer("echo", {"x": X}, **options)["x"].shape == X.shape
    assert sizes[0] > X.nbytes  # before compression
    with pytest.raises(ValueError, match="must be 'gzip'"):
        client.infer("echo", {"x": X}, request_compression_algorithm="br")


# --- encoded requests ---


def test_encoded_request_is_sent_repeatedly(client: Any, server: GrpcServer) -> None:
    request = tw.InferRequest({"x": X}, id="7", model_name="echo", model_version="1")
    message = codec.encode_request(request)
    for _ in range(3):
        response = client.infer("echo", message, version="1")
        assert (response.id, response["x"].shape) == ("7", X.shape)
        assert server.messages[-1] == message
    invalid: list[dict[str, Any]] = [{"id": "8"}, {"outputs": ["x"]}, {"parameters": {}}]
    for options in invalid:
        with pytest.raises(TypeError, match="encoded bytes: .* must be passed to encode_request"):
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
    client: Any, server: GrpcServer, name: Any, version: Any, call: Any
) -> None:
    request = tw.InferRequest({"x": X}, model_name=name, model_version=version)
    before = len(server.calls)
    with pytest.raises(ValueError, match=r"^the encoded request has model_name .* the call is for"):
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
def test_status_of_an_error(client: Any, server: GrpcServer, code: str) -> None:
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


def test_long_text_of_an_error(client: Any) -> None:
    with pytest.raises(InferenceServerError) as caught:
        client.infer("status", {"x": X}, parameters={"code": "INTERNAL", "details": "a" * 3000})
    assert caught.value.message == "a" * 2000


def test_method_that_the_server_does_not_have(connect: Connect) -> None:
    with GrpcServer({"ServerMetadata": None}) as server, connect(server.url) as client:
        with pytest.raises(InferenceServerError, match="Method not found") as caught:
            client.server_metadata()
    assert caught.value.status == 501


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"])
def test_retries(connect: Connect, code: str) -> None:
    n_failed = []

    def fails_twice(message: bytes, context: Any) -> bytes:
        if len(n_failed) < 2:
            n_failed.append(message)
            context.abort(getattr(grpc.StatusCode, code), "try again")
        return codec.encode_response(tw.InferResponse({"x": X}))

    with GrpcServer({"ModelInfer": fails_twice}) as server:
        with connect(server.url, retries=2) as client:
            started = time.perf_counter()
            assert client.infer("m", {"x": X})["x"].shape == X.shape
            assert 0.14 < time.perf_counter() - started < 3
            assert len(server.calls) == 3
        n_failed.clear()
        with connect(server.url, retries=1) as client:
            with pytest.raises(InferenceServerError, match="try again"):
                client.infer("m", {"x": X})
        assert len(server.calls) == 5


def test_other_errors_are_not_retried(connect: Connect, server: GrpcServer) -> None:
    before = len(server.messages)
    with connect(server.url, retries=3) as client:
        for code in ("INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND"):
            with pytest.raises(InferenceServerError):
                client.infer("status", {"x": X}, parameters={"code": code, "details": ""})
    assert len(server.messages) == before + 3


def test_connection_that_is_refused(connect: Connect) -> None:
    with connect(f"grpc://127.0.0.1:{free_port()}", timeout=20) as client:
        started = time.perf_counter()
        for _ in range(3):
            with pytest.raises(ConnectionError, match=r"^ModelInfer grpc://.*refused"):
                client.infer("m", {"x": X})
        assert time.perf_counter() - started < 1


def test_name_that_is_unknown(connect: Connect) -> None:
    with connect("grpc://host.invalid:8001", timeout=5, trust_env=False) as client:
        with pytest.raises(ConnectionError, match=r"host\.invalid"):
            client.infer("m", {"x": X})


RAW = {
    "closes": lambda c: None,
    "garbage": lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3),
    "closes later": lambda c: (c.sendall(b"\0\0\0\4\0\0\0\0\0"), c.recv(1 << 16)),
    "goes away": lambda c: (
        c.sendall(b"\0\0\0\4\0\0\0\0\0"),
        c.recv(1 << 16),
        time.sleep(0.1),
        c.recv(1 << 16),
        c.sendall(b"\0\0\x08\7\0\0\0\0\0" + b"\0\0\0\1\0\0\0\0"),
    ),
    "resets the stream": lambda c: (
        c.sendall(b"\0\0\0\4\0\0\0\0\0"),
        c.recv(1 << 16),
        c.sendall(b"\0\0\x04\3\0\0\0\0\1" + b"\0\0\0\2"),
    ),
}


@pytest.mark.parametrize("name", RAW)
def test_server_that_does_not_respond_with_a_status(connect: Connect, name: str) -> None:
    class Raw(Scripted):
        def serve(self, connection: socket.socket) -> None:
            RAW[name](connection)

    with Raw([]) as server, connect(f"grpc://{server.address}", timeout=20) as client:
        with pytest.raises(ConnectionError, match=r"^ModelInfer grpc://"):
            client.infer("m", {"x": X})


def test_invalid_response(connect: Connect) -> None:
    garbage = b"\x2a\xff\xff"
    answers = {name: lambda *_: garbage for name in ("ModelInfer", "ModelMetadata", "ModelReady")}
    with GrpcServer(answers) as server, connect(server.url, retries=3) as client:
        for call in (
            lambda: client.infer("m", {"x": X}),
            lambda: client.model_metadata("m"),
            lambda: client.is_ready("m"),
            lambda: client.wait_until_ready(5, "m"),
        ):
            with pytest.raises(tw.DecodeError, match="malformed"):
                call()
        assert len(server.calls) == 4


def test_limits(connect: Connect, server: GrpcServer) -> None:
    with connect(server.url, limits=tw.Limits(max_tensors=1)) as client:
        with pytest.raises(tw.HeaderError, match="more than 1 output"):
            client.infer("echo", {"x": X, "y": X})
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


# --- sizes ---


def test_messages_above_four_megabytes(client: Any) -> None:
    array = np.arange(5 << 20, dtype=np.uint8)
    assert np.array_equal(client.infer("echo", {"x": array})["x"].data, array)


@pytest.mark.parametrize("is_own", [False, True])
def test_response_above_max_body(connect: Connect, server: GrpcServer, is_own: bool) -> None:
    options: dict[str, Any] = {"max_body": 1000, "retries": 3}
    if is_own:
        options["channel"] = lambda library: library.insecure_channel(server.address)
    with connect_with_channel(connect, server.url, options) as client:
        assert client.infer("echo", {"x": X[:10]})["x"].shape == (10,)
        before = len(server.calls)
        for _ in range(2):
            with pytest.raises(tw.DecodeError, match="long; the limit is 1000$") as caught:
                client.infer("echo", {"x": X})
            assert (caught.value.status, caught.value.expected) == (413, 1000)
            assert 4000 < (caught.value.actual or 0) < 4200
        assert len(server.calls) == before + 2
        with pytest.raises(tw.DecodeError, match="long; the limit is 1000$"):
            next(client.stream("repeat", [{"x": X}]))


def test_request_above_a_limit(connect: Connect) -> None:
    with GrpcServer(**{"grpc.max_receive_message_length": 1000}) as server:
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


def test_max_body_of_the_options(connect: Connect, server: GrpcServer) -> None:
    for max_body in (None, (1 << 31) - 1, 1 << 31, 1 << 70):
        with connect(server.url, max_body=max_body) as client:
            assert client.infer("echo", {"x": X})["x"].shape == X.shape


# --- timeouts ---


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        (0.2, "no response after 0.2 seconds (read timeout)"),
        (Timeout(read=0.2, total=5), "no response after 0.2 seconds (read timeout)"),
        (Timeout(total=0.2), "the call took longer than 0.2 seconds (total timeout)"),
    ],
)
def test_timeouts(connect: Connect, server: GrpcServer, timeout: Any, message: str) -> None:
    before = len(server.calls)
    with connect(server.url, retries=3) as client:
        started = time.perf_counter()
        with pytest.raises(TimeoutError, match=re.escape(f"ModelInfer {server.url}: {message}")):
            client.infer("slow", {"x": X}, timeout=timeout)
        assert 0.19 < time.perf_counter() - started < 2
        assert len(server.calls) == before + 1
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


@pytest.mark.parametrize("timeout", [None, 9e14, Timeout(connect=1e-9, total=1e12)])
def test_timeouts_that_do_not_expire(connect: Connect, server: GrpcServer, timeout: Any) -> None:
    with connect(server.url, timeout=timeout) as client:
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


def test_server_that_never_responds(connect: Connect) -> None:
    """It accepts connections, and sends nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        with connect(url, timeout=Timeout(read=0.2)) as client:
            with pytest.raises(TimeoutError):
                client.infer("m", {"x": X})
        started = time.perf_counter()
        with connect(url, timeout=Timeout(connect=0.3, read=20)) as client:
            with pytest.raises(ConnectionError, match="failed to connect"):
                client.infer("m", {"x": X})
        assert time.perf_counter() - started < 5
