"""Client and AsyncClient over gRPC, against a server of grpcio."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc as codec
from support import client_fixtures
from support.client_fixtures import Connect, X, free_port
from support.grpc_server import GrpcServer, grpc
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
