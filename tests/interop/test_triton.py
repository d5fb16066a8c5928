"""tensorwire against a live Triton: it accepts our requests, and we read its responses.

Ids such as A3 or R10 are those of WIRE.md 10 and support/cases.py. test_differential.py sends the
messages of these tables, valid and malformed, and compares the shapes of raw requests and the
outputs that are selected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import JSON_DATATYPES, Array, binary_sample, bits, json_sample
from interop.triton_models import DATATYPES, MODELS, identity
from interop.triton_server import Reply, TritonServer, running_triton
from support.threads import wait_for
from tensorwire.client import Client, InferenceServerError

HEADER_LENGTH = "Inference-Header-Content-Length"
F2 = np.array([1, 2], np.float32)


def send(triton: TritonServer, model: str, frame: tw.Frame) -> Reply:
    """Send a frame with its headers and buffers."""
    return triton.post(f"/v2/models/{model}/infer", frame.buffers, frame.headers)


@contextmanager
def registered(triton: TritonServer, memory: SharedMemory) -> Iterator[None]:
    """Register a region of shared memory under its own name, and delete it at the end."""
    path = f"/v2/systemsharedmemory/region/{memory.name}"
    body = json.dumps({"key": f"/{memory.name}", "offset": 0, "byte_size": memory.size}).encode()
    try:
        assert triton.post(f"{path}/register", [body], {}).status == 200
        yield
    finally:
        triton.post(f"{path}/unregister", [b""], {})
        memory.unlink()


def request_of(
    array: Array, is_binary: bool = True, is_output_binary: bool = True
) -> tw.InferRequest:
    """Return a request for one tensor, in the given forms."""
    tensor = tw.Tensor("INPUT0", array, binary=is_binary)
    return tw.InferRequest([tensor], [tw.RequestedOutput("OUTPUT0", binary=is_output_binary)])


def answer(reply: Reply) -> tw.InferResponse:
    """Decode the response, of any status."""
    response: tw.InferResponse = tw.decode_response(reply.body, tw.header_length(reply.headers))
    return response


def output(reply: Reply) -> tw.Tensor:
    """Return the only output of a response."""
    assert reply.status == 200, reply.body
    [tensor] = answer(reply).outputs
    assert tensor.name == "OUTPUT0"
    return tensor


def server_message(reply: Reply) -> str:
    """Return the error message of a rejected request."""
    assert reply.status >= 400, reply.body
    message: str = json.loads(reply.body)["error"]
    return message


# --- datatypes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "is_binary"),
    [*((datatype, True) for datatype in DATATYPES), *((each, False) for each in JSON_DATATYPES)],
)
def test_datatype(triton: TritonServer, datatype: str, is_binary: bool) -> None:
    """B3 and Y9: an empty binary tensor needs no header length in either direction.

    As JSON, Triton reads many decimals of FP64 with an error of up to 2 units in the last place.
    The sample has no such decimals. Its NaN and infinities are bare tokens (J5).
    """
    whole = binary_sample(datatype) if is_binary else json_sample(datatype)
    for sent in (whole, whole[:0]):
        request = request_of(sent, is_binary, is_binary)
        assert request.inputs[0].datatype == datatype
        frame = tw.encode_request(request, nonfinite="literal")
        reply = send(triton, identity(datatype), frame)
        assert (HEADER_LENGTH in frame.headers) == (is_binary and sent.size > 0)
        assert (HEADER_LENGTH.lower() in reply.headers) == (is_binary and sent.size > 0)
        received = output(reply)
        assert (received.datatype, received.binary) == (datatype, is_binary)
        assert bits(received.as_numpy()) == bits(sent)


# --- which outputs are binary ----------------------------------------------------------------


@pytest.mark.parametrize("default", [None, False, True])
@pytest.mark.parametrize("own", [None, False, True, "unlisted"])
def test_requested_form_of_outputs(triton: TritonServer, own: Any, default: bool | None) -> None:
    """A1 to A3, X10: for a listed output, Triton only uses its own parameter, so we write it."""
    request = request_of(F2).replace(
        outputs=[tw.RequestedOutput("OUTPUT0", binary=own)] if own != "unlisted" else None,
        parameters={} if default is None else {"binary_data_output": default},
    )
    received = output(send(triton, "identity_fp32", tw.encode_request(request)))
    assert received.binary == (own if isinstance(own, bool) else bool(default))


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_client_with_an_output_in_shared_memory(triton: TritonServer, scheme: str) -> None:
    port = triton.port if scheme == "http" else triton.grpc_port
    with closing(SharedMemory(create=True, size=64)) as memory, registered(triton, memory):
        parameters = {"shared_memory_region": memory.name, "shared_memory_byte_size": F2.nbytes}
        outputs = [tw.RequestedOutput("OUTPUT0", parameters=parameters)]
        with Client(f"{scheme}://{triton.host}:{port}") as client:
            response = client.infer(identity("FP32"), {"INPUT0": F2}, outputs)
        assert response["OUTPUT0"].shape == F2.shape
        assert response["OUTPUT0"].data is None
        assert response["OUTPUT0"].parameters == parameters
        assert memory.buf is not None
        assert bytes(memory.buf[: F2.nbytes]) == F2.tobytes()


@pytest.fixture(scope="module")
def controlled(triton_folder: Path) -> Iterator[TritonServer]:
    """A Triton that loads models when it is asked to."""
    options = ["--model-control-mode=explicit"]
    with running_triton(triton_folder, MODELS[:1], more_options=options) as server:
        yield server


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_client_controls_models(controlled: TritonServer, scheme: str) -> None:
    port = controlled.port if scheme == "http" else controlled.grpc_port
    name = identity("BOOL")
    with Client(f"{scheme}://{controlled.host}:{port}") as client:
        assert {each["name"] for each in client.repository_index()} == {name, "any"}
        client.load_model(name)
        assert client.infer(name, {"INPUT0": [True]})["OUTPUT0"].tolist() == [True]
        with pytest.raises(InferenceServerError, match=r'FP64.*: INPUT0.astype\("bool"\)\)$'):
            client.infer(name, {"INPUT0": np.zeros(1)})
        wait_for(lambda: client.statistics(name)["model_stats"][0]["inference_count"] == 1)
        [found] = client.statistics(name)["model_stats"]
        assert (found["name"], found["version"]) == (name, "1")
        assert found["inference_stats"]["success"]["count"] == 1
        assert found["inference_stats"]["queue"]["ns"] > 0
        config = client.model_config(name)
        assert (config["max_batch_size"], config["backend"]) == (0, "python")
        assert config["input"][0]["data_type"] == "TYPE_BOOL"
        parameters = {"names": {"string_value": "a,b"}}
        client.load_model(name, config={**config, "parameters": parameters, "max_batch_size": 4})
        found = client.model_config(name)
        assert (found["max_batch_size"], found["parameters"]) == (4, parameters)
        client.unload_model(name, unload_dependents=True)
        states = {each["name"]: each.get("state") for each in client.repository_index()}
        assert states[name] in ("UNAVAILABLE", "UNLOADING")
        with pytest.raises(InferenceServerError, match="failed to load 'absent'"):
            client.load_model("absent")


def test_client_reads_and_changes_settings(controlled: TritonServer) -> None:
    with Client(f"{controlled.host}:{controlled.port}") as client:
        assert client.request_json("POST", "/v2/logging", {"log_verbose_level": 1})
        assert client.request_json("GET", "/v2/logging")["log_verbose_level"] == 1
        assert client.request_json("GET", "/v2/systemsharedmemory/status") == []


@pytest.mark.parametrize(
    ("model", "datatype", "shape", "headers", "status"),
    [
        ("absent", "FP32", [2], {}, 404),  # C35; text/plain
        ("identity_fp16", "FP16", [4], {}, 400),  # J3 FP16 as JSON; text/plain
        ("matrix", "FP32", [2], {}, 400),  # C18 wrong rank
        ("batching", "FP32", [9, 2], {}, 400),  # X16 batch too large
        ("identity_fp32", "FP32", [-2], {}, 500),  # C12 negative dimension
        ("identity_fp32", "FP32", [2], {"Content-Encoding": "br"}, 501),  # Z5 unknown encoding
    ],
)
def test_error_responses(
    triton: TritonServer,
    model: str,
    datatype: str,
    shape: list[int],
    headers: dict[str, str],
    status: int,
) -> None:
    """The error contains the server's message, for any status and content type."""
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape}
    text = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 8}}]}).encode()
    headers = {HEADER_LENGTH: str(len(text)), **headers}
    reply = triton.post(f"/v2/models/{model}/infer", [text, F2.tobytes()], headers)
    assert reply.status == status
    with pytest.raises(tw.ErrorResponseError) as caught:
        answer(reply)
    assert str(caught.value).endswith(f": {server_message(reply)}")
