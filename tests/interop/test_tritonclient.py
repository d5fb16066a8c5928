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


def test_request_of_all_kinds(client: ModuleType) -> None:
    """Tensors are binary, JSON or in shared memory, and names need not be ASCII."""
    inputs = [
        tensor_of(client, F2, "FP32", "\xe9\U0001f600"),
        tensor_of(client, np.array([5], np.int8), "INT8", "B", is_binary=False),
        client.InferInput("C", [4], "FP32").set_shared_memory("region", 16, offset=64),
        tensor_of(client, bytes_array([NOT_TEXT]), "BYTES", "D"),
    ]
    outputs = [
        client.InferRequestedOutput("A"),
        client.InferRequestedOutput("B", binary_data=False),
        client.InferRequestedOutput("C", class_count=3),
        client.InferRequestedOutput("D"),
    ]
    outputs[3].set_shared_memory("region", 8)
    request = request_by(client, inputs, outputs)
    first, second, shared, words = request.inputs
    assert [tensor.name for tensor in request.inputs] == ["\xe9\U0001f600", "B", "C", "D"]
    assert bits(first.as_numpy()) == bits(F2)
    assert second.as_numpy().tolist() == [5]
    region = {"shared_memory_region": "region", "shared_memory_byte_size": 16}
    assert (shared.data, shared.parameters) == (None, {**region, "shared_memory_offset": 64})
    assert words.as_numpy().tolist() == [NOT_TEXT]
    assert [(each.name, each.binary, each.parameters) for each in request.outputs or ()] == [
        ("A", True, {}),
        ("B", False, {}),
        ("C", True, {"classification": 3}),
        ("D", False, {**region, "shared_memory_byte_size": 8}),
    ]
    assert request.parameters == {}


def test_request_parameters(client: ModuleType) -> None:
    """Without listed outputs the client requests all outputs as binary."""
    options: dict[str, Any] = {"sequence_id": "s", "sequence_start": True, "priority": 2}
    options.update(timeout=1000, parameters={"mine": 1.5})
    request = request_by(client, [tensor_of(client, F2, "FP32")], request_id="7\xe9", **options)
    assert request.id == "7\xe9"
    expected = options | {"sequence_end": False, "mine": 1.5, "binary_data_output": True}
    del expected["parameters"]
    assert request.parameters == expected
