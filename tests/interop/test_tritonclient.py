"""tritonclient as a library without a server: it reads our frames, and we read its bodies."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import (
    DTYPES,
    JSON_DATATYPES,
    NOT_TEXT,
    Array,
    binary_sample,
    bits,
    bytes_array,
    json_sample,
)
from interop.triton_models import DATATYPES
from support.tritonclient_comparison import module

F2 = np.array([1, 2], np.float32)
FORMS = [(datatype, is_binary) for datatype in DATATYPES for is_binary in (True, False)
         if is_binary or datatype in JSON_DATATYPES]  # fmt: skip


@pytest.fixture(scope="module")
def client() -> ModuleType:
    return module("http", "http")


def tensor_of(
    client: ModuleType, array: Array, datatype: str, name: str = "INPUT0", is_binary: bool = True
) -> Any:
    """Return an InferInput with its data."""
    tensor = client.InferInput(name, list(array.shape), datatype)
    return tensor.set_data_from_numpy(array, binary_data=is_binary)


def request_by(
    client: ModuleType, inputs: list[Any], outputs: list[Any] | None = None, **options: Any
) -> tw.InferRequest:
    """Decode the body that the client creates from its objects."""
    generate = client.InferenceServerClient.generate_request_body
    body, header_length = generate(inputs, outputs=outputs, **options)
    request: tw.InferRequest = tw.decode_request(body, header_length)
    return request


def read_by(client: ModuleType, frame: tw.Frame) -> Any:
    """Return the InferResult that the client creates from our frame."""
    parse = client.InferenceServerClient.parse_response_body
    return parse(bytes(frame), header_length=frame.header_length)


@pytest.mark.parametrize(("datatype", "is_binary"), FORMS)
def test_datatype(client: ModuleType, datatype: str, is_binary: bool) -> None:
    """In both directions. The client returns str for BYTES as JSON."""
    whole = binary_sample(datatype) if is_binary else json_sample(datatype)
    for sent in (whole, np.empty((0, 3), DTYPES[datatype])):
        request = request_by(client, [tensor_of(client, sent, datatype, is_binary=is_binary)])
        [found] = request.inputs
        assert (found.name, found.datatype, found.binary) == ("INPUT0", datatype, is_binary)
        assert (found.parameters, request.outputs) == ({}, None)
        assert bits(found.as_numpy()) == bits(sent)
        response = tw.InferResponse([tw.Tensor("OUTPUT0", sent, binary=is_binary)])
        frame = tw.encode_response(response, nonfinite="literal")
        result = read_by(client, frame)
        assert result.get_output("OUTPUT0")["datatype"] == datatype
        received = result.as_numpy("OUTPUT0")
        if datatype == "BYTES" and not is_binary:
            received = bytes_array([text.encode() for text in received.flat]).reshape(sent.shape)
        assert bits(received) == bits(sent)


# --- its requests ----------------------------------------------------------------------------


def test_json_request_with_fp16(client: ModuleType) -> None:
    """The client writes it (it rejects only BF16 itself); tensorwire and Triton reject it."""
    tensor = tensor_of(client, np.ones(1, np.float16), "FP16", is_binary=False)
    with pytest.raises(tw.HeaderError, match="'INPUT0' has JSON data, but FP16"):
        request_by(client, [tensor])


def test_request_with_all_kinds_of_inputs(client: ModuleType) -> None:
    """The inputs are binary, JSON, in shared memory, or have a name that is not ASCII."""
    shared = client.InferInput("C", [4], "FP32").set_shared_memory("region", 16, offset=64)
    inputs = [
        tensor_of(client, F2, "FP32", "\xe9\U0001f600"),
        tensor_of(client, np.array([5], np.int8), "INT8", "B", is_binary=False),
        shared,
        tensor_of(client, bytes_array([NOT_TEXT]), "BYTES", "D"),
    ]
    request = request_by(client, inputs)
    assert [tensor.name for tensor in request.inputs] == ["\xe9\U0001f600", "B", "C", "D"]
    assert bits(request["\xe9\U0001f600"].as_numpy()) == bits(F2)
    assert request["B"].as_numpy().tolist() == [5]
    assert request["C"].data is None
    assert request["C"].parameters == {
        "shared_memory_region": "region",
        "shared_memory_byte_size": 16,
        "shared_memory_offset": 64,
    }
    assert request["D"].as_numpy().tolist() == [NOT_TEXT]


def test_requested_outputs(client: ModuleType) -> None:
    shared = client.InferRequestedOutput("D")
    shared.set_shared_memory("region", 8)
    outputs = [
        client.InferRequestedOutput("A"),
        client.InferRequestedOutput("B", binary_data=False),
        client.InferRequestedOutput("C", class_count=3),
        shared,
    ]
    request = request_by(client, [tensor_of(client, F2, "FP32")], outputs)
    assert request.outputs is not None
    assert [(output.name, output.binary, output.parameters) for output in request.outputs] == [
        ("A", True, {}),
        ("B", False, {}),
        ("C", True, {"classification": 3}),
        ("D", False, {"shared_memory_region": "region", "shared_memory_byte_size": 8}),
    ]
    assert request.parameters == {}


def test_request_parameters(client: ModuleType) -> None:
    """Without listed outputs the client requests all outputs as binary."""
    options: dict[str, Any] = {"request_id": "7\xe9", "sequence_id": "s", "sequence_start": True}
    options.update(priority=2, timeout=1000, parameters={"mine": 1.5})
    request = request_by(client, [tensor_of(client, F2, "FP32")], **options)
    assert request.id == "7\xe9"
    assert request.parameters == {
        "binary_data_output": True,
        **{"sequence_id": "s", "sequence_start": True, "sequence_end": False},
        **{"priority": 2, "timeout": 1000, "mine": 1.5},
    }


# --- our responses ---------------------------------------------------------------------------


def test_response_with_all_kinds_of_outputs(client: ModuleType) -> None:
    """Each tensor is found at its offset, after an empty one, one in JSON, and a padded header."""
    arrays = [np.array([True]), F2.reshape(2, 1), F2[:0], bytes_array([b"x", NOT_TEXT]), F2 + 1]
    outputs = [
        tw.Tensor(f"OUTPUT{i}", array, binary=i != 1, parameters={"i": i})
        for i, array in enumerate(arrays)
    ]
    response = tw.InferResponse(outputs, id="7", model_name="\xe9", parameters={"p": True})
    frame = tw.encode_response(response)
    assert bytes(frame)[: frame.header_length].endswith(b" ")
    result = read_by(client, frame)
    for i, array in enumerate(arrays):
        assert bits(result.as_numpy(f"OUTPUT{i}")) == bits(array)
        assert result.get_output(f"OUTPUT{i}")["parameters"]["i"] == i
    members = ("id", "model_name", "parameters")
    found = result.get_response()
    assert [found[member] for member in members] == ["7", "\xe9", {"p": True}]
