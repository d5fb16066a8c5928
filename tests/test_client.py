"""Client and AsyncClient against a real server: requests, responses and memory."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import GOOD, Connect, MiB, X, free_port, seen
from support.requirements import package
from support.scripts import run_script
from support.servers import Scripted
from tensorwire.client import AsyncClient, Client
from tensorwire.client.requests import Request

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client


# --- requests and responses ---


def test_infer(client: Any) -> None:
    inputs = [tw.Tensor("x", X), tw.Tensor("words", ["a", "bc"]), tw.Tensor("none", X[:0])]
    response = client.infer("echo", inputs, id="7", parameters={"more": 1})
    assert np.array_equal(response["x"].as_numpy(), X)
    assert response["words"].as_numpy().tolist() == [b"a", b"bc"]
    assert response["none"].shape == (0,)
    assert all(tensor.binary for tensor in response.outputs)
    assert (response.id, response.model_name) == ("7", "echo")
    assert response.parameters["saw"] == ("binary_data_output", "more")


def test_requested_outputs(client: Any) -> None:
    inputs = {"x": X, "y": X[:2]}
    assert [(t.name, t.binary) for t in client.infer("echo", inputs, ["y"]).outputs] == [
        ("y", True)
    ]
    response = client.infer("echo", inputs, ["x", tw.RequestedOutput("y", binary=False)])
    assert [(t.name, t.binary) for t in response.outputs] == [("x", True), ("y", False)]
    response = client.infer("echo", inputs, binary_outputs=False)
    assert [t.binary for t in response.outputs] == [False, False]
    own = client.infer("echo", inputs, parameters={"binary_data_output": False})
    assert [t.binary for t in own.outputs] == [False, False]
    with pytest.raises(TypeError, match="outputs must be an iterable of names"):
        client.infer("echo", inputs, "y")


def test_fields_of_an_infer_request_are_sent(client: Any) -> None:
    parameters = {"more": 1, "binary_data_output": False}
    request = tw.InferRequest({"x": X, "y": X}, ["y"], id="mine", parameters=parameters)
    response = client.infer("echo", request)
    assert (list(response), response["y"].binary, response.id) == (["y"], False, "mine")
    assert response.parameters["saw"] == ("binary_data_output", "more")
    response = client.infer(
        "echo", request, ["x"], id="other", parameters={"binary_data_output": True}
    )
    assert (list(response), response["x"].binary, response.id) == (["x"], True, "other")
    assert client.infer("echo", request.replace(id=None)).id.isdigit()


def test_tensors_of_a_mapping_have_its_names(client: Any) -> None:
    first = client.infer("echo", {"a": tw.Tensor("x", X)})
    assert list(first) == ["a"]
    assert list(client.infer("echo", first)) == ["a"]


def test_infer_raw(client: Any) -> None:
    response = client.infer_raw("declared", X)
    assert response["y"].binary
    assert np.array_equal(response["y"].as_numpy(), X * 2)
    assert seen[-1]["inference-header-content-length"] == "0"


def test_arrays_are_aligned_and_writable(client: Any) -> None:
    for n in (1, 31, 1000, MiB + 3):
        array = client.infer("echo", {"x": np.ones(n, np.float32)})["x"].data
        assert array.ctypes.data % 64 == 0
        assert array.flags.writeable
        assert array.sum() == n


def test_request_headers(client: Any) -> None:
    client.infer("echo", {"x": np.zeros(MiB, np.float32)}, headers={"X-Tenant": "9"})
    sent = seen[-1]
    assert sent["x-tenant"] == "9"
    assert sent["accept-encoding"] == "identity"
    assert sent["user-agent"] == f"tensorwire/{tw.__version__}"
    assert int(sent["content-length"]) > 4 * MiB
    assert "transfer-encoding" not in sent
    client.infer("echo", {"x": X}, headers={"User-Agent": "mine"})
    assert seen[-1]["user-agent"] == "mine"
    for name in ("content-length", "Content-Length", "Transfer-Encoding"):
        with pytest.raises(
            ValueError, match=f"the HTTP header {name} cannot be passed: the client sets it"
        ):
            client.infer("echo", {"x": X}, headers={name: "3"})


def test_model_names_and_versions_are_quoted_in_the_url(client: Any) -> None:
    versions = ((None, ""), ("1", "/versions/1"), (1, "/versions/1"), ("1", "/versions/1"))
    for version, path in (*versions, (None, "")):
        client.infer("echo", {"x": X}, version=version)
        assert seen[-1]["path"] == f"/v2/models/echo{path}/infer"
    with Scripted([GOOD]) as server, type(client)(f"http://{server.address}/pre/") as other:
        other.infer("a b/ü?", {"x": X}, version="1/2")
        expected = "post /pre/v2/models/a%20b%2f%c3%bc%3f/versions/1%2f2/infer http/1.1"
        assert server.heads[0].startswith(expected)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_model_names_and_versions_that_are_not_part_of_a_path(client: Any, name: str) -> None:
    """Servers and proxies remove such segments, also if the dots are quoted."""
    before = len(seen)
    for model, version in ((name, None), (name, "1"), ("echo", name)):
        calls = [
            lambda m, v: client.infer(m, {"x": X}, version=v),
            lambda m, v: client.infer(m, {"x": [1.0]}, version=v),
            lambda m, v: client.infer_raw(m, X, version=v),
            client.model_metadata,
            client.is_ready,
            lambda m, v: client.wait_until_ready(1, m, v),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=f"of a model must not be '{name}', which cannot"):
                call(model, version)
    with pytest.raises(TypeError, match=r"^the name of a model must be a str, not int$"):
        client.infer(3, {"x": X})
    assert len(seen) == before
    for accepted in ("...", ".a", "a.", " "):
        assert not client.is_ready(accepted)
    assert seen[-4]["path"] == "/v2/models/.../ready"


def test_metadata(client: Any) -> None:
    assert "binary_tensor_data" in client.server_metadata()["extensions"]
    metadata = client.model_metadata("declared", "1")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]


def test_readiness(client: Any, connect: Connect) -> None:
    assert client.is_ready()
    assert client.is_ready("echo")
    assert client.is_ready("echo", "1")
    assert not client.is_ready("nobody")
    with connect(f"127.0.0.1:{free_port()}") as nowhere:
        assert nowhere.is_ready() is False


def test_requests_are_not_limited(connect: Connect) -> None:
    """The limits apply only to received messages."""
    name = "x" * (tw.Limits().max_name_nbytes + 1)
    with Scripted([GOOD]) as server, connect(server.address) as client:
        client.infer("m", {name: X})


@pytest.mark.parametrize("max_nbytes", [1, 7, 100, 1 << 20])
def test_pieces_of_a_request(max_nbytes: int) -> None:
    """One send operation gets at most `max_nbytes` bytes and at most 64 pieces."""
    buffers: tuple[Any, ...] = (
        b"",
        b"ab" * 500,
        *(b"%d" % i for i in range(300)),
        memoryview(bytes(range(256))),
    )
    request = Request("POST", "/", b"head", buffers, 1 << 17)
    windows = list(request.windows(max_nbytes))
    assert b"".join(b"".join(window) for window in windows) == b"".join((b"head", *buffers))
    for i, window in enumerate(windows):
        assert sum(map(len, window if i else window[1:])) <= max_nbytes
        assert 0 < len(window) <= 64


# --- the module ---


HTTPTOOLS = "ImportError: an HTTP client requires httptools: pip install 'tensorwire[client]'"
GRPCIO = "ImportError: a gRPC client requires grpcio: pip install 'tensorwire[grpc]'"


@pytest.mark.parametrize(
    ("missing", "script", "expected"),
    [
        ("httptools", "Client('localhost')", HTTPTOOLS),
        ("httptools", "AsyncClient('localhost')", HTTPTOOLS),
        ("httptools", "main(['infer', 'localhost', 'm'])", HTTPTOOLS.partition(": ")[2]),
        ("httptools", "Client('grpc://127.0.0.1:1').is_ready()", ""),
        ("grpc", "Client('grpc://localhost')", GRPCIO),
        ("grpc", "Client('localhost'); AsyncClient('localhost')", ""),
    ],
)
def test_package_that_is_missing(missing: str, script: str, expected: str) -> None:
    package("grpc")
    done = run_script(
        f"import sys; sys.modules['{missing}'] = None;"
        "from tensorwire.cli import main; from tensorwire.client import AsyncClient, Client;"
        f"{script}"
    )
    last_line = "".join(done.stderr.strip().splitlines()[-1:])
    assert last_line.endswith(expected) if expected else not last_line


def test_client_does_not_import_asyncio() -> None:
    done = run_script(
        "import sys, tensorwire.client as c; print('httptools' in sys.modules);"
        "sys.modules['httptools'] = type(sys)('httptools');"  # it imports asyncio itself
        "vars(sys.modules['httptools']).update("
        "HttpParserCallbackError=None, HttpParserError=None, HttpParserUpgrade=None, "
        "HttpResponseParser=None);"
        "c.Client; print('tensorwire.client.sync' in sys.modules, 'asyncio' in sys.modules)"
    )
    assert done.stdout.split() == ["False", "True", "False"]


def test_both_clients_have_the_same_signatures() -> None:
    names = [name for name in dir(Client) if not name.startswith("_")]
    assert names == [name for name in dir(AsyncClient) if not name.startswith("_")]
    for name in ("__init__", *(name for name in names if name not in ("close", "stream"))):
        sync, asynchronous = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.signature(sync) == inspect.signature(asynchronous)
    # The types of the requests and responses of a stream differ.
    sync_stream, stream = (
        [(p.name, p.kind, p.default) for p in inspect.signature(kind.stream).parameters.values()]
        for kind in (Client, AsyncClient)
    )
    assert sync_stream == stream
    assert json.dumps(repr(Client("localhost:8000/x/"))) == '"<Client of http://localhost:8000/x>"'
