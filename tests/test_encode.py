"""encode_request, encode_response and encode_raw_request, checked by the independent decoder."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import cases, reference
from support.case_types import INTEGERS
from support.requirements import optional
from tensorwire._codec import datatypes

ml_dtypes = optional("ml_dtypes")

ENCODABLE = [case for case in cases.VALID if case.encodable]
NUMPY = {name: row.dtype for name, row in datatypes.DATATYPES.items()}


def array_of(expected: cases.ExpectedTensor) -> Any:
    """Return the array that a user would pass for a tensor of the tables."""
    if expected.values is None:
        return None
    if expected.datatype == "BYTES":
        array = np.empty(len(expected.values), object)
        array[:] = expected.values
    elif expected.datatype == "BF16":
        array = np.array(expected.values, np.float32).astype(ml_dtypes.bfloat16)
    else:
        array = np.array(expected.values, NUMPY[expected.datatype])
    return array.reshape(expected.shape)


def message_of(case: cases.Valid) -> Any:
    tensors = [
        tw.Tensor(t.name, array_of(t), datatype=t.datatype, shape=t.shape, parameters=t.parameters,
                  binary=t.binary)
        for t in case.tensors
    ]  # fmt: skip
    members: dict[str, Any] = {"id": case.message_id, "parameters": case.parameters}
    members |= {"model_name": case.model_name, "model_version": case.model_version}
    if case.kind == "response":
        return tw.InferResponse(tensors, **members)
    outputs = [tw.RequestedOutput(o, binary=b, parameters=p) for o, b, p in case.outputs or ()]
    return tw.InferRequest(tensors, None if case.outputs is None else outputs, **members)


def encode(message: tw.InferRequest | tw.InferResponse, **options: Any) -> tw.Frame:
    if isinstance(message, tw.InferRequest):
        return tw.encode_request(message, **options)
    return tw.encode_response(message, **options)


@pytest.mark.parametrize("align", [1, 64])
@pytest.mark.parametrize("case", ENCODABLE, ids=lambda case: case.id)
def test_encoded_message_decodes_to_the_same_values(case: cases.Valid, align: int) -> None:
    frame = encode(message_of(case), align=align)
    decoded = reference.decode(bytes(frame), frame.header_length, case.kind)
    assert [tensor.pop("name") for tensor in decoded["tensors"]] == [t.name for t in case.tensors]
    assert cases.same(
        [tuple(tensor.values()) for tensor in decoded["tensors"]],
        [(t.datatype, t.shape, t.values, t.binary, t.parameters) for t in case.tensors],
    )
    assert decoded["parameters"] == case.parameters
    assert decoded["id"] == case.message_id
    if frame.header_length is not None:
        assert frame.header_length % align == 0
    body = bytes(frame)
    assert body == b"".join(frame) == b"".join(frame.buffers)
    assert len(frame) == len(body) == int(frame.headers["Content-Length"])
    assert tw.header_length(frame.headers) == frame.header_length
    has_bytes = any(t.binary and t.values for t in case.tensors)
    assert (frame.header_length is not None) == has_bytes
    kind = "application/octet-stream" if has_bytes else "application/json"
    assert frame.headers["Content-Type"] == kind


def test_example_of_the_protocol_documentation() -> None:
    """The request example of Triton's documentation (WIRE.md 9), whose bytes are in cases.py."""
    case = next(case for case in cases.VALID if case.id == "9 Triton request")
    frame = tw.encode_request(message_of(case), align=1)
    assert frame.header_length is not None and case.header_length is not None
    assert bytes(frame)[frame.header_length :] == case.body[case.header_length :]
    assert json_of(frame) == json.loads(case.body[: case.header_length])


# --- arrays that have to be converted ---


@pytest.mark.parametrize(
    ("data", "datatype"),
    [
        *(
            ([[1, 2], [3, 4]], "UINT32"),
            ([1.5, 2, -3], "FP32"),
            ([True, False], "BOOL"),
            ([], "INT8"),
        ),
        *(
            ([[1, np.int8(2)], [np.int64(-3), 4]], each)
            for each in ("FP16", "BF16", "FP32", "INT8")
        ),
        *(([np.float32("inf")], each) for each in ("FP16", "BF16", "FP32")),
    ],
)
def test_lists_of_numbers(data: Any, datatype: Any) -> None:
    tensor = tw.Tensor("x", data, datatype=datatype)
    assert tensor.as_numpy().tolist() == data
    assert tensor.datatype == datatype


@pytest.mark.parametrize("datatype", INTEGERS)
def test_lists_of_the_least_and_the_largest_integers(datatype: Any) -> None:
    least, most = INTEGERS[datatype]
    assert tw.Tensor("x", [least, most], datatype=datatype).as_numpy().tolist() == [least, most]
    for value in (least - 1, most + 1, -(2**63) - 1, 2**63 + most, 2**64, -(2**64)):
        with pytest.raises(tw.EncodeError, match=rf"element 2 .* {datatype} \({least} to {most}\)"):
            tw.Tensor("x", [0, np.int8(1), value], datatype=datatype)


# --- JSON ---


def json_of(frame: tw.Frame) -> Any:
    return json.loads(bytes(frame)[: frame.header_length])


def test_lists_of_arrays() -> None:
    torch, row = optional("torch"), np.arange(3, dtype=np.float32)
    words = np.array(["a", "bc"])
    rows = [row, row.astype(">f4"), row[::-1].copy()[::-1]]
    for made in (rows, tuple(rows), [tw.Tensor("r", row)] * 3, [list(row)] * 3):
        tensor = tw.Tensor("x", made)
        assert (tensor.datatype, tensor.tolist()) == ("FP32", [[0, 1, 2]] * 3)
    assert not np.shares_memory(tw.Tensor("x", [row]).data, row)
    assert tw.Tensor("x", [[row, row]], datatype="FP32", shape=[6]).tolist() == [0, 1, 2] * 2
    for texts in (words, words.astype("S"), words.astype(object), tw.Tensor("w", words)):
        tensor = tw.Tensor("x", [[texts, texts]] * 2, binary=False)
        assert (tensor.datatype, tensor.tolist()) == ("BYTES", [[[b"a", b"bc"]] * 2] * 2)
    assert tw.Tensor("x", [[np.bool_(True)], [np.bool_(False)]]).tolist() == [[True], [False]]
    halves = [np.zeros(2, ml_dtypes.bfloat16), np.zeros(2, "u2")]
    for parts in (halves, halves[::-1], [tw.Tensor("b", halves[1], datatype="BF16")] * 2):
        datatype: Any = "BF16" if parts[0] is not parts[1] else None
        tensor = tw.Tensor("x", parts, datatype=datatype)
        assert (tensor.datatype, tensor.shape) == ("BF16", (2, 2))
    for array in (torch.arange(3.0), torch.tensor(1.0)):
        tensor = tw.Tensor("x", [array, array])
        assert (tensor.datatype, tensor.shape) == ("FP32", (2, *array.shape))


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32"])
def test_lists_do_not_depend_on_the_error_state_of_numpy(datatype: Any) -> None:
    with np.errstate(all="raise"):
        assert tw.Tensor("x", [1e-320, 0.1], datatype=datatype).as_numpy()[0] == 0
        with pytest.raises(tw.EncodeError, match="element 1 of tensor 'x' is 1e"):
            tw.Tensor("x", [0, 1e300], datatype=datatype)


def test_output_in_a_region_has_no_default_for_binary_data() -> None:
    """Triton rejects an output with both."""
    output = tw.RequestedOutput("y", parameters={"shared_memory_region": "r"})
    request = tw.InferRequest([X], [output], parameters={"binary_data_output": True})
    assert b'"binary_data":' not in bytes(tw.encode_request(request))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_numbers_in_parameters(number: float) -> None:
    output = tw.RequestedOutput("y", parameters={"k": number})
    cannot = f"parameter 'k' contains {number}, which JSON cannot represent"
    for request in (
        tw.InferRequest([X], parameters={"k": number}),
        tw.InferRequest([X], [output]),
    ):
        for nonfinite in ("null", "literal"):
            frame = tw.encode_request(request, nonfinite=nonfinite)
            assert b'{"k":null}' in bytes(frame)
        with pytest.raises(tw.EncodeError, match=f"^{cannot}$") as caught:
            tw.encode_request(request, nonfinite="error")
        assert caught.value.tensor == ("y" if request.outputs else None)
        if np.isnan(number):
            assert b'{"k":null}' in bytes(tw.encode_request(request))
        else:
            with pytest.raises(tw.EncodeError, match=f"^{cannot}: nonfinite='null' sends null$"):
                tw.encode_request(request)


# --- selection of outputs, and of those that are binary (WIRE.md 7) ---

A, B = tw.Tensor("a", np.zeros(2, np.float32)), tw.Tensor("b", np.ones(3, np.int64))
X = tw.Tensor("x", np.zeros(1, np.uint8))
ALL = {"binary_data_output": True}
Out = tw.RequestedOutput


@pytest.mark.parametrize(
    ("outputs", "parameters", "spec", "triton"),
    [
        (None, {}, {"a": False, "b": False}, None),
        (None, ALL, {"a": True, "b": True}, None),
        ([], ALL, {"a": True, "b": True}, None),
        ([("b", None)], {}, {"b": False}, None),
        ([("b", True)], {}, {"b": True}, None),
        ([("b", None), ("a", None)], ALL, {"a": True, "b": True}, {"a": False, "b": False}),
        ([("b", False), ("a", None)], ALL, {"a": True, "b": False}, {"a": False, "b": False}),
        ([("a", True)], {"binary_data_output": False}, {"a": True}, None),
    ],
)
def test_selection_of_outputs(outputs: Any, parameters: Any, spec: Any, triton: Any) -> None:
    requested = None if outputs is None else [Out(name, binary=binary) for name, binary in outputs]
    request = tw.InferRequest([X], requested, parameters=parameters)
    options = tw.ResponseOptions(requested, binary=parameters.get("binary_data_output", False))
    cases = itertools.product(
        (request, options, pickle.loads(pickle.dumps(options)), copy.copy(options)),
        (("spec", spec), ("triton", triton or spec)),
    )
    for asked, (selection, expected) in cases:
        frame = tw.encode_response(
            tw.InferResponse([A, B]),
            asked,
            selection=selection,
        )
        decoded = tw.decode_response(bytes(frame), frame.header_length)
        assert {tensor.name: tensor.binary for tensor in decoded.outputs} == expected


def test_binary_data_output_is_repeated_on_every_listed_output() -> None:
    request = tw.InferRequest([X], [Out("a"), Out("b", binary=False)], parameters=ALL)
    decoded = json_of(tw.encode_request(request))
    assert [output["parameters"] for output in decoded["outputs"]] == [
        {"binary_data": True},
        {"binary_data": False},
    ]
    assert decoded["parameters"] == ALL


def test_unknown_requested_output_is_rejected() -> None:
    request = tw.InferRequest([X], [Out("c")])
    with pytest.raises(tw.EncodeError) as caught:
        tw.encode_response(tw.InferResponse([A, B]), request)
    assert str(caught.value) == "the request asks for output 'c', but the response has ['a', 'b']"
    assert caught.value.status == 400


def test_response_repeats_the_request_id() -> None:
    request = tw.InferRequest([X], id="seven")
    own = tw.InferResponse([A], id="own")
    for asked in (request, tw.ResponseOptions(id="seven")):
        assert json_of(tw.encode_response(tw.InferResponse([A]), asked))["id"] == "seven"
        assert json_of(tw.encode_response(own, asked))["id"] == "own"


def test_response_to_a_raw_request_is_binary() -> None:
    request = tw.decode_request(b"\1\2", 0, raw_input=tw.TensorSpec("x", "UINT8", [-1]))
    frame = tw.encode_response(tw.InferResponse([A, B]), request)
    decoded = tw.decode_response(bytes(frame), frame.header_length)
    assert [tensor.binary for tensor in decoded.outputs] == [True, True]


# --- raw requests ---


@pytest.mark.parametrize(
    ("array", "body"),
    [
        (np.array([1, 2], ">u2"), b"\1\0\2\0"),
        (b"427", b"427"),
        ("é", "é".encode()),
        (np.array([b"427"], object), b"427"),
        (["x"], b"x"),
        (tw.decode_bytes(b"\2\0\0\0ab"), b"ab"),
        (b"", b""),
        (np.zeros(0, np.float32), b""),
        (tw.Tensor("t", np.array([7], np.uint8)), b"\7"),
        (tw.Tensor("x", np.array([0x3FC0], np.uint16), datatype="BF16"), b"\xc0\x3f"),
    ],
)
def test_raw_request(array: Any, body: bytes) -> None:
    frame = tw.encode_raw_request(array)
    assert bytes(frame) == body
    assert frame.header_length == 0
    assert frame.headers == {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": "0",
        "Content-Length": str(len(body)),
    }


@pytest.mark.parametrize("elements", [[], [b"a", b"b"]])
def test_raw_request_of_bytes_has_one_element(elements: list[bytes]) -> None:
    tensor = tw.decode_bytes(reference.elements(elements))
    with pytest.raises(tw.EncodeError, match=f"has one element, .* has {len(elements)}"):
        tw.encode_raw_request(tensor)


def test_raw_element_gets_a_prefix_and_is_forwarded_without_it() -> None:
    body = bytearray(b"an image")
    request = tw.decode_request(body, 0, raw_input=tw.TensorSpec("x", "BYTES", [1]))
    body.clear()  # it is copied
    assert request["x"].elements.wire == reference.elements([b"an image"])
    (buffer,) = tw.encode_raw_request(request["x"]).buffers
    assert (bytes(buffer), memoryview(buffer).readonly) == (b"an image", True)
