"""tritonclient as a library without a server: it reads our frames, and we read its bodies."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import (
    BINARY_ONLY,
    DTYPES,
    JSON_DATATYPES,
    NOT_TEXT,
    TEXTS,
    Array,
    binary_sample,
    bits,
    bytes_array,
    json_sample,
)
from interop.triton_models import DATATYPES
from support.requirements import skip_or_fail

F2 = np.array([1, 2], np.float32)


@pytest.fixture(scope="module")
def client() -> ModuleType:
    """Import tritonclient.http. If it is not installed, skip, or fail in CI."""
    try:
        return import_module("tritonclient.http")
    except (ImportError, RuntimeError) as error:  # RuntimeError: installed without its [http]
        skip_or_fail("tritonclient", f"tritonclient[http] cannot be imported: {error}")
        raise


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


# --- its requests ----------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", DATATYPES)
def test_binary_request(client: ModuleType, datatype: str) -> None:
    sent = binary_sample(datatype)
    request = request_by(client, [tensor_of(client, sent, datatype)])
    [tensor] = request.inputs
    assert (tensor.name, tensor.datatype, tensor.binary) == ("INPUT0", datatype, True)
    assert (tensor.parameters, request.outputs) == ({}, None)
    assert bits(tensor.as_numpy()) == bits(sent)


@pytest.mark.parametrize("datatype", JSON_DATATYPES)
def test_json_request(client: ModuleType, datatype: str) -> None:
    sent = json_sample(datatype)
    request = request_by(client, [tensor_of(client, sent, datatype, is_binary=False)])
    [tensor] = request.inputs
    assert (tensor.datatype, tensor.binary) == (datatype, False)
    assert bits(tensor.as_numpy()) == bits(sent)


def test_json_request_with_fp16(client: ModuleType) -> None:
    """The client writes it (it rejects only BF16 itself); tensorwire and Triton reject it."""
    tensor = tensor_of(client, np.ones(1, np.float16), "FP16", is_binary=False)
    with pytest.raises(tw.HeaderError, match="'INPUT0' has JSON data, but FP16"):
        request_by(client, [tensor])


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize(
    ("array", "expected"),
    [
        pytest.param(bytes_array([b"a", b"b\xc3\xa9"]).reshape(2, 1), ["a", "b\xe9"], id="bytes"),
        pytest.param(np.array([["a"], ["b\xe9"]], object), ["a", "b\xe9"], id="str"),
        pytest.param(np.array([[b"ab"], [b"c"]]), ["ab", "c"], id="S2"),
        pytest.param(np.array([["x", "y"]], object).T, ["x", "y"], id="transposed"),
    ],
)
def test_bytes_request(
    client: ModuleType, array: Array, expected: list[str], is_binary: bool
) -> None:
    request = request_by(client, [tensor_of(client, array, "BYTES", is_binary=is_binary)])
    [tensor] = request.inputs
    assert isinstance(tensor.data, tw.BytesArray)
    assert tensor.data.as_strings().tolist() == [[text] for text in expected]


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "BYTES"])
def test_empty_request(client: ModuleType, datatype: str, is_binary: bool) -> None:
    empty = np.empty((2, 0), DTYPES[datatype])
    [tensor] = request_by(client, [tensor_of(client, empty, datatype, is_binary=is_binary)]).inputs
    assert tensor.binary == is_binary
    assert bits(tensor.as_numpy()) == bits(empty)


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


@pytest.mark.parametrize("align", [1, 64])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_binary_response(client: ModuleType, datatype: str, align: int) -> None:
    sent = binary_sample(datatype)
    response = tw.InferResponse([tw.Tensor("OUTPUT0", sent)], model_name="m")
    result = read_by(client, tw.encode_response(response, align=align))
    assert result.get_output("OUTPUT0")["datatype"] == datatype
    assert bits(result.as_numpy("OUTPUT0")) == bits(sent)


@pytest.mark.parametrize("datatype", [name for name in JSON_DATATYPES if name != "BYTES"])
def test_json_response(client: ModuleType, datatype: str) -> None:
    sent = json_sample(datatype)
    response = tw.InferResponse([tw.Tensor("OUTPUT0", sent, binary=False)])
    result = read_by(client, tw.encode_response(response, nonfinite="literal"))
    assert bits(result.as_numpy("OUTPUT0")) == bits(sent)


def test_json_response_with_bytes(client: ModuleType) -> None:
    """The client returns str for JSON and bytes for binary data."""
    response = tw.InferResponse([tw.Tensor("OUTPUT0", bytes_array(TEXTS), binary=False)])
    result = read_by(client, tw.encode_response(response))
    assert result.as_numpy("OUTPUT0").tolist() == [text.decode() for text in TEXTS]


def test_json_response_with_null(client: ModuleType) -> None:
    """Our default for NaN and infinities; the client reads all of them as NaN."""
    sent = np.array([1, np.nan, np.inf], np.float32)
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("OUTPUT0", sent, binary=False)]))
    received = read_by(client, frame).as_numpy("OUTPUT0")
    assert np.array_equal(received, np.array([1, np.nan, np.nan], np.float32), equal_nan=True)


@pytest.mark.parametrize("model_name", [None, "m", "a longer name", "\xe9"])
def test_padded_header(client: ModuleType, model_name: str | None) -> None:
    response = tw.InferResponse([tw.Tensor("OUTPUT0", F2)], model_name=model_name)
    frame = tw.encode_response(response)
    body, length = bytes(frame), frame.header_length
    assert length is not None
    assert length % 64 == 0
    assert body[:length].endswith(b" ")
    result = client.InferResult.from_response_body(body, header_length=length)
    assert bits(result.as_numpy("OUTPUT0")) == bits(F2)
    assert result.get_response().get("model_name") == model_name


@pytest.mark.parametrize("datatype", DATATYPES)
def test_empty_response(client: ModuleType, datatype: str) -> None:
    """The response has neither binary data nor a header length."""
    empty = np.empty((0, 3), DTYPES[datatype])
    frame = tw.encode_response(tw.InferResponse([tw.Tensor("OUTPUT0", empty)]))
    assert frame.header_length is None
    assert bits(read_by(client, frame).as_numpy("OUTPUT0")) == bits(empty)


def test_response_with_all_kinds_of_outputs(client: ModuleType) -> None:
    """Each tensor is found at its offset, after an empty one and one in JSON."""
    arrays = [np.array([True]), F2.reshape(2, 1), F2[:0], bytes_array([b"x", NOT_TEXT]), F2 + 1]
    outputs = [
        tw.Tensor(f"OUTPUT{i}", array, binary=i != 1, parameters={"i": i})
        for i, array in enumerate(arrays)
    ]
    response = tw.InferResponse(outputs, id="7", parameters={"p": True})
    result = read_by(client, tw.encode_response(response))
    for i, array in enumerate(arrays):
        assert bits(result.as_numpy(f"OUTPUT{i}")) == bits(array)
        assert result.get_output(f"OUTPUT{i}")["parameters"]["i"] == i
    assert result.get_response()["id"] == "7"
    assert result.get_response()["parameters"] == {"p": True}


# --- requests and responses ------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [None, [True, False], [False, True], [True, True]])
def test_request_and_response(client: ModuleType, wanted: list[bool] | None) -> None:
    """The response has the forms that the client requested."""
    arrays = [F2, bytes_array(TEXTS[1:])]
    inputs = [
        tensor_of(client, array, datatype, f"INPUT{i}")
        for i, (array, datatype) in enumerate(zip(arrays, ["FP32", "BYTES"], strict=True))
    ]
    outputs = wanted and [
        client.InferRequestedOutput(f"OUTPUT{i}", binary_data=is_binary)
        for i, is_binary in enumerate(wanted)
    ]
    request = request_by(client, inputs, outputs, request_id="7")
    echo = [tw.Tensor(f"OUTPUT{i}", tensor.data) for i, tensor in enumerate(request.inputs)]
    result = read_by(client, tw.encode_response(tw.InferResponse(echo), request))
    forms = ["data" not in output for output in result.get_response()["outputs"]]
    assert forms == (wanted or [True, True])
    assert bits(result.as_numpy("OUTPUT0")) == bits(F2)
    strings = [text if forms[1] else text.decode() for text in TEXTS[1:]]
    assert result.as_numpy("OUTPUT1").tolist() == strings
    assert result.get_response()["id"] == "7"


@pytest.mark.parametrize("datatype", BINARY_ONLY)
def test_request_for_fp16_and_bf16_as_json(client: ModuleType, datatype: str) -> None:
    """The client can request them as JSON; the response is an error with status 400."""
    array = np.ones(2, DTYPES[datatype])
    outputs = [client.InferRequestedOutput("OUTPUT0", binary_data=False)]
    request = request_by(client, [tensor_of(client, array, datatype)], outputs)
    with pytest.raises(tw.EncodeError) as caught:
        tw.encode_response(tw.InferResponse([tw.Tensor("OUTPUT0", array)]), request)
    assert caught.value.status == 400
