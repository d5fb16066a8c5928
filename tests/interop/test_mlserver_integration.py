"""MLServer with the integration, through its servers, and compared with MLServer alone."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop import environment, hostile_bodies, programs
from interop.samples import (
    NOT_TEXT,
    TEXTS,
    binary_sample,
    bits,
    bytes_array,
    json_sample,
)
from interop.triton_server import free_ports
from support.requirements import optional
from support.tritonclient_comparison import module
from tensorwire.client import Client, InferenceServerError

urllib3 = optional("urllib3")

INSIDE = ["inside_mlserver_codecs.py", "inside_mlserver_json.py", "inside_mlserver_wrappers.py"]
INSIDE_SECONDS = 400.0
DATATYPES = [
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64"),
]
F2 = np.array([1, 2], np.float32)
X = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}
TYPES = {"Content-Type": "application/json"}

RUNTIME = Path(__file__).with_name("mlserver_runtime.py")
START_SECONDS = 120.0

COMMANDS = {
    "command": (["bin/python", "-m", "tensorwire.integrations.mlserver"], {}),
    "runtime": (["bin/mlserver"], {"TENSORWIRE_INSTALL": "1"}),
}
"""How the integration is installed: by our command, or by the module of the runtime."""

MODELS: dict[str, dict[str, Any]] = {
    "echo": {"implementation": "mlserver_runtime.Echo"},
    "raw": {"implementation": "mlserver_runtime.Raw"},
    "negate": {
        "implementation": "mlserver_runtime.Negate",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    },
    "batched": {
        "implementation": "mlserver_runtime.Echo",
        "max_batch_size": 2,
        "max_batch_time": 0.2,
    },
}


@contextmanager
def mlserver(python: Path, folder: Path, how: str, n_workers: int = 0) -> Iterator[str]:
    """Run MLServer on the loopback interface; `how` is one of COMMANDS. Yield its address."""
    ports = free_ports(3)
    write_models(folder, ports, n_workers)
    (program, *arguments), variables = COMMANDS[how]
    command = [str(python.parents[1] / program), *arguments, "start", "."]
    environ = environment.clean_environ() | variables
    with programs.started(command, folder / "log", cwd=folder, env=environ) as process:
        http = f"127.0.0.1:{ports[0]}"
        # A server also reports that it is ready before it begins to load its models.
        programs.wait_until_ready([http], process, START_SECONDS, list(MODELS))
        yield http


def write_models(folder: Path, ports: list[int], n_workers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(RUNTIME, folder)
    names = ("http_port", "grpc_port", "metrics_port")
    # With debug, which is the default, the response to a failure would be a traceback.
    settings = {"host": "127.0.0.1", "parallel_workers": n_workers, "debug": False}
    settings.update(zip(names, ports, strict=True))
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, model in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "model-settings.json").write_text(json.dumps({"name": name, **model}))


@pytest.fixture(scope="session")
def python() -> Path:
    return programs.interpreter("mlserver")


@pytest.fixture(scope="module", params=["command", "runtime"])
def server(
    request: pytest.FixtureRequest, python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Run with the integration, installed in both ways."""
    with mlserver(python, tmp_path_factory.mktemp(request.param), request.param) as running:
        yield running


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(f"http://{server}") as made:
        yield made


def post(server: str, model: str, message: Any, headers: dict[str, str] = TYPES) -> tuple[int, Any]:
    """Return status and JSON of the response; a `message` of bytes is sent unchanged."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    url = f"http://{server}/v2/models/{model}/infer"
    with urllib3.PoolManager(retries=False) as pool:
        answer = pool.request("POST", url, body=body, headers=headers)
    return answer.status, json.loads(answer.data)


@pytest.mark.parametrize("file", INSIDE)
def test_in_the_process_of_mlserver(python: Path, tmp_path: Path, file: str) -> None:
    """Run the tests inside_mlserver_*.py, which use MLServer's classes directly."""
    # MLServer itself causes warnings, because it uses deprecated functions of pydantic.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning"]
    command = [str(python), "-m", "pytest", *options, str(Path(__file__).with_name(file))]
    programs.run(command, tmp_path, INSIDE_SECONDS)


# --- binary tensors ---


def test_server_metadata_announces_binary_data(client: Client) -> None:
    assert client.server_metadata()["extensions"] == ["binary_tensor_data"]


@pytest.mark.parametrize("model", ["echo", "raw"])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_numeric_tensors(client: Client, datatype: str, model: str) -> None:
    """Arrays are equal bit for bit; lists lose the payloads of NaNs."""
    sent = (binary_sample if model == "echo" else json_sample)(datatype)
    received = client.infer(model, {"x": sent})["x"]
    assert received.binary
    if model == "raw" and sent.dtype.kind == "f":
        np.testing.assert_array_equal(received.as_numpy(), sent)
    else:
        assert bits(received.as_numpy()) == bits(sent)


@pytest.mark.parametrize(("model", "values"), [("echo", TEXTS), ("raw", [*TEXTS, NOT_TEXT])])
def test_bytes_arrays(client: Client, model: str, values: list[bytes]) -> None:
    sent = bytes_array(values)
    received = client.infer(model, {"t": sent})["t"]
    assert received.binary
    assert received.as_numpy().tolist() == values


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (1,), (3, 1, 2)])
def test_shapes(client: Client, shape: tuple[int, ...]) -> None:
    sent = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    assert bits(client.infer("echo", {"x": sent})["x"].as_numpy()) == bits(sent)


def test_model_may_modify_its_input(client: Client) -> None:
    """The input is the memory of the received body."""
    response = client.infer("negate", {"x": F2})
    assert response["y"].as_numpy().ravel().tolist() == [-1, -2]
    assert response["facts"].as_numpy().tolist()[0] == [b"False"]  # no copy: a view of the body


def test_raw_request(client: Client) -> None:
    """The model's settings declare its input."""
    request = client.infer_raw("negate", F2)
    assert request["y"].as_numpy().ravel().tolist() == [-1, -2]
    with pytest.raises(InferenceServerError, match="no raw_input is declared") as caught:
        client.infer_raw("echo", F2)
    assert caught.value.status == 400


def test_ids_and_parameters(client: Client) -> None:
    tensor = tw.Tensor("x", F2, parameters={"content_type": "np", "mine": 1})
    response = client.infer("echo", [tensor], id="7", parameters={"yours": True})
    assert response.id == "7"
    assert response.model_name == "echo"
    assert response["x"].parameters == {"content_type": "np"}


# --- compressed requests ---


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_compressed_requests(server: str, encoding: str) -> None:
    """MLServer itself decompresses gzip."""
    url = f"http://{server}/v2/models/echo/infer"
    for is_binary in (False, True):
        tensors = [tw.Tensor("x", F2, binary=is_binary)]
        request = tw.InferRequest(tensors, parameters={"binary_data_output": True})
        frame = tw.encode_request(request)
        body = gzip.compress(bytes(frame)) if encoding == "gzip" else bytes(frame)
        headers = {**frame.headers, "Content-Encoding": encoding, "Accept-Encoding": "gzip"}
        headers["Content-Length"] = str(len(body))
        with urllib3.PoolManager() as pool:
            answer = pool.request("POST", url, body=body, headers=headers)
        response = tw.decode_response(answer.data, tw.header_length(answer.headers))
        assert response["x"].binary
        assert response["x"].as_numpy().tolist() == [1, 2]


# --- tritonclient ---


def test_tritonclient(server: str) -> None:
    http = module("http", "http")
    image, texts = np.arange(6, dtype=np.float32).reshape(2, 3), bytes_array(TEXTS)
    with http.InferenceServerClient(server) as triton:
        for are_binary in (True, False):
            inputs = [http.InferInput("x", [2, 3], "FP32"), http.InferInput("t", [5], "BYTES")]
            for tensor, array in zip(inputs, [image, texts], strict=True):
                tensor.set_data_from_numpy(array, binary_data=are_binary)
            for outputs in (None, [http.InferRequestedOutput("x"), http.InferRequestedOutput("t")]):
                result = triton.infer("echo", inputs, outputs=outputs)
                assert bits(result.as_numpy("x")) == bits(image)
                assert result.as_numpy("t").tolist() == TEXTS
                assert "data" not in result.get_output("x")


# --- errors ---

BINARY = {"Content-Type": "application/octet-stream"}
LENGTH = "Inference-Header-Content-Length"


def header(**changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    return json.dumps({"inputs": [{**tensor, **changes}]}).encode()


INVALID = [
    pytest.param(header() + F2.tobytes(), None, "Content-Length missing", id="no header length"),
    pytest.param(
        header() + F2.tobytes(), "abc", "is not a number", id="header length is not a number"
    ),
    pytest.param(header() + F2.tobytes(), "9999", "9999", id="header length beyond the body"),
    pytest.param(
        header() + F2.tobytes()[:-1], ..., "the body ends inside input 'x'", id="body too short"
    ),
    pytest.param(header() + F2.tobytes() + b"x", ..., "1 ", id="trailing bytes"),
    pytest.param(
        header(shape=[3]) + F2.tobytes(), ..., "requires 12 bytes", id="shape does not fit"
    ),
    pytest.param(header(datatype="FP33") + F2.tobytes(), ..., "FP33", id="unknown datatype"),
    pytest.param(header(datatype="BF16", shape=[4]) + F2.tobytes(), ..., "BF16", id="BF16"),
    pytest.param(
        header(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8}),
        ...,
        "shared memory",
        id="shared memory",
    ),
    pytest.param(
        header(parameters={"binary_data_size": 8, "content_type": 5}) + F2.tobytes(),
        ...,
        "content_type",
        id="content_type is not a string",
    ),
    pytest.param(b"[]", 2, "must be an object", id="not an object"),
]


@pytest.mark.parametrize("spelled", [str, str.upper])
def test_header_length_in_the_media_type(server: str, spelled: Callable[[str], str]) -> None:
    """The media type may be in upper or lower case."""
    kind = f"application/vnd.sagemaker-triton.binary+json; json-header-size={len(header())}"
    body = header() + F2.tobytes()
    status, answer = post(server, "echo", body, headers={"Content-Type": spelled(kind)})
    assert (status, answer["outputs"][0]["data"]) == (200, F2.tolist())


@pytest.mark.parametrize(("body", "length", "message"), INVALID)
def test_invalid_requests_give_status_400(
    server: str, body: bytes, length: Any, message: str
) -> None:
    """The error has MLServer's format, and the server continues."""
    if length is ...:
        length = body.index(b"}]}") + 3
    headers = BINARY if length is None else {**BINARY, LENGTH: str(length)}
    status, answer = post(server, "echo", body, headers=headers)
    assert status == 400, answer
    assert message in answer["error"]
    assert post(server, "echo", {"inputs": [X]})[0] == 200


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_malformed_bodies(server: str, encoding: str) -> None:
    with hostile_bodies.sender(f"http://{server}/v2/models/echo/infer") as send:
        for body, headers in hostile_bodies.malformed():
            content = gzip.compress(body) if encoding == "gzip" else body
            status, error = send(content, {**headers, "Content-Encoding": encoding})
            assert (status, bool(error)) == (400, True), (body, headers)


@pytest.mark.parametrize("server", ["runtime"], indirect=True)
def test_bodies_that_are_too_long(server: str) -> None:
    """The module of the runtime sets the limit."""
    with hostile_bodies.sender(f"http://{server}/v2/models/echo/infer") as send:
        for bodies in (hostile_bodies.too_long, hostile_bodies.gzip_bombs):
            for body, headers in bodies():
                status, error = send(body, headers)
                assert status == 413, error
                assert f"the limit is {hostile_bodies.MAX_BODY}" in error


def test_other_errors(client: Client, server: str) -> None:
    with pytest.raises(InferenceServerError, match="Model who not found") as caught:
        client.infer("who", {"x": F2})
    assert caught.value.status == 404
    with pytest.raises(InferenceServerError, match=r"not (valid )?UTF-8") as caught:
        client.infer("echo", {"t": bytes_array([NOT_TEXT])})
    assert caught.value.status == 400
    headers = {**BINARY, LENGTH: "9", "Content-Encoding": "br"}
    status, answer = post(server, "echo", b"x" * 9, headers=headers)
    assert (status, answer) == (415, {"error": "Content-Encoding 'br' is not supported"})
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("t", bytes_array([NOT_TEXT]))]))
    status, answer = post(server, "raw", bytes(frame), headers=frame.headers)
    assert status == 400
    assert "cannot be sent as JSON" in answer["error"]


# --- other features of MLServer ---


def test_adaptive_batching(server: str) -> None:
    """MLServer joins the lists of two requests into one for the model."""

    def infer(value: float) -> list[Any]:
        with Client(f"http://{server}") as client:
            sent = np.full((1, 3), value, np.float32)
            return client.infer("batched", {"x": sent})["x"].as_numpy().tolist()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(infer, [1.0, 2.0])) == [[[1.0] * 3], [[2.0] * 3]]


@pytest.mark.parametrize("how", ["command", "runtime"])
def test_parallel_workers(python: Path, tmp_path: Path, how: str) -> None:
    """Messages are pickled to processes that MLServer spawns, with the integration installed."""
    with (
        mlserver(python, tmp_path, how, n_workers=1) as parallel,
        Client(f"http://{parallel}") as client,
    ):
        sent = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "t": bytes_array(TEXTS)}
        received = client.infer("echo", sent)
        assert bits(received["x"].as_numpy()) == bits(sent["x"])
        assert received["t"].as_numpy().tolist() == TEXTS
        negated = client.infer("negate", {"x": F2})
        assert negated["y"].as_numpy().ravel().tolist() == [-1, -2]
        with pytest.raises(InferenceServerError, match=r"not (valid )?UTF-8") as caught:
            client.infer("echo", {"t": bytes_array([NOT_TEXT])})
        assert caught.value.status == 400
        assert post(parallel, "echo", {"inputs": [X]})[0] == 200
