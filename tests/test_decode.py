"""decode_request and decode_response with valid and malformed messages from tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import cases


def decode(kind: str, body: Any, header_length: Any) -> Any:
    if kind == "request":
        return tw.decode_request(body, header_length)
    return tw.decode_response(body, header_length)


def tensors_of(message: tw.InferRequest | tw.InferResponse) -> list[tw.Tensor]:
    return message.inputs if isinstance(message, tw.InferRequest) else message.outputs


def values_of(tensor: tw.Tensor) -> list[Any] | None:
    """Return the flat Python values of a tensor, as in the tables."""
    if tensor.data is None:
        return None
    if tensor.datatype == "BF16":
        pytest.importorskip("ml_dtypes", reason="pip install '.[test]'")
        return tensor.as_numpy().astype(np.float32).reshape(-1).tolist()
    return tensor.as_numpy().reshape(-1).tolist()


@pytest.mark.parametrize("case", cases.VALID, ids=lambda case: case.id)
def test_valid_message(case: cases.Valid) -> None:
    message = decode(case.kind, case.body, case.header_length)
    tensors = tensors_of(message)
    assert [tensor.name for tensor in tensors] == [tensor.name for tensor in case.tensors]
    for tensor, expected in zip(tensors, case.tensors, strict=True):
        assert (tensor.datatype, tensor.shape) == (expected.datatype, expected.shape)
        assert cases.same(values_of(tensor), expected.values)
        assert (tensor.binary, tensor.parameters) == (expected.binary, expected.parameters)
        assert message[expected.name] is tensor
    assert message.parameters == case.parameters
    assert message.id == case.message_id
    assert (message.model_name, message.model_version) == (case.model_name, case.model_version)
    if case.kind == "request":
        outputs = message.outputs
        assert case.outputs == (
            None if outputs is None else tuple((o.name, o.binary, o.parameters) for o in outputs)
        )


@pytest.mark.parametrize("case", cases.MALFORMED, ids=lambda case: case.id)
def test_malformed_message_is_rejected(case: cases.Malformed) -> None:
    with pytest.raises(tw.DecodeError) as caught:
        decode(case.kind, case.body, case.header_length)
    error = caught.value
    if case.error != "DecodeError":
        assert type(error).__name__ == case.error, str(error)
    assert error.status == 400
    assert len(str(error)) < 600
    if case.message.endswith("..."):
        assert str(error).startswith(case.message[:-3])
    elif case.message:
        assert str(error) == case.message


@pytest.mark.parametrize("case", cases.VALID, ids=lambda case: case.id)
def test_message_truncated_at_every_byte_is_rejected(case: cases.Valid) -> None:
    for nbytes in range(len(case.body)):
        if case.header_length is None and not case.body[nbytes:].strip():
            continue  # only the white space after the JSON is missing
        with pytest.raises(tw.DecodeError):
            decode(case.kind, case.body[:nbytes], case.header_length)


@pytest.mark.parametrize("tail", [b"\0", b"x", bytes(64)], ids=["NUL", "x", "64 NULs"])
@pytest.mark.parametrize("case", cases.VALID, ids=lambda case: case.id)
def test_message_with_trailing_bytes_is_rejected(case: cases.Valid, tail: bytes) -> None:
    with pytest.raises(tw.DecodeError):
        decode(case.kind, case.body + tail, case.header_length)


def aligned_buffer(body: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(body), np.uint8)


@pytest.mark.parametrize("wrap", [bytearray, memoryview, aligned_buffer])
@pytest.mark.parametrize("case", cases.VALID[:20], ids=lambda case: case.id)
def test_body_of_any_buffer_type(case: cases.Valid, wrap: Any) -> None:
    for tensor, expected in zip(
        tensors_of(decode(case.kind, wrap(case.body), case.header_length)),
        case.tensors,
        strict=True,
    ):
        assert cases.same(values_of(tensor), expected.values)


@pytest.mark.parametrize("convert", [str, lambda n: str(n).encode(), np.int64], ids=str)
def test_header_length_as_text_or_numpy_integer(convert: Any) -> None:
    case = next(case for case in cases.VALID if case.header_length is not None)
    assert decode(case.kind, case.body, convert(case.header_length)).id == case.message_id


# --- raw binary requests ---


@pytest.mark.parametrize("case", cases.RAW_VALID, ids=lambda case: case.id)
@pytest.mark.parametrize("header_length", [0, "0", b"0"])
def test_valid_raw_request(case: cases.RawValid, header_length: Any) -> None:
    spec = tw.TensorSpec(case.name, case.datatype, case.dims, case.batching)
    request = tw.decode_request(case.body, header_length, raw_input=spec)
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == (case.name, case.datatype, case.shape)
    assert cases.same(values_of(tensor), case.values)
    assert request.parameters == {"binary_data_output": True}  # all outputs are requested as binary


@pytest.mark.parametrize("case", cases.RAW_MALFORMED, ids=lambda case: case.id)
def test_malformed_raw_request_is_rejected(case: cases.RawMalformed) -> None:
    spec = tw.TensorSpec("x", case.datatype, case.dims, case.batching)
    with pytest.raises(tw.DecodeError) as caught:
        tw.decode_request(case.body, 0, raw_input=spec)
    assert type(caught.value).__name__ == case.error, str(caught.value)


def test_raw_request_without_declared_input_is_rejected() -> None:
    with pytest.raises(
        tw.HeaderError, match="is 0, which means a raw binary request, but no raw_input"
    ):
        tw.decode_request(b"1234", 0)


# --- invalid arguments ---


@pytest.mark.parametrize("body", [None, "text", 5, [1]])
def test_body_of_wrong_type_is_rejected(body: Any) -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        tw.decode_request(body)


@pytest.mark.parametrize(
    "body",
    [
        np.zeros(8, np.float32),
        np.zeros(8, np.uint16).data,
        np.zeros(8, np.uint8)[::2],
        memoryview(bytes(8))[::2],
        np.asfortranarray(np.zeros((2, 4), np.uint8)),
    ],
    ids=["float32", "uint16", "strided array", "strided memoryview", "fortran"],
)
def test_body_must_be_contiguous_bytes(body: Any) -> None:
    with pytest.raises(BufferError):
        tw.decode_response(body)


@pytest.mark.parametrize("header_length", [True, 1.0, [1], object()])
def test_header_length_of_wrong_type_is_rejected(header_length: Any) -> None:
    with pytest.raises(TypeError, match="header length"):
        tw.decode_request(b"{}", header_length)


def test_raw_input_of_wrong_type_is_rejected() -> None:
    with pytest.raises(TypeError):
        tw.decode_request(b"", 0, raw_input="x")  # type: ignore[arg-type]


# --- regression tests ---


@pytest.mark.parametrize(
    "text",
    [
        '"inputs":[%(tensor)s],"id":"%(s)s"',
        '"inputs":[%(tensor)s],"model_name":"%(s)s"',
        '"inputs":[%(tensor)s],"parameters":{"%(s)s":1}',
        '"inputs":[%(tensor)s],"parameters":{"k":"%(s)s"}',
        '"inputs":[%(tensor)s],"outputs":[{"name":"%(s)s"}]',
        '"inputs":[{"name":"%(s)s","shape":[0],"datatype":"FP32","data":[]}]',
        '"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["%(s)s"]}]',
        '"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":'
        '{"shared_memory_region":"%(s)s"}}]',
    ],
)
def test_lone_surrogates_are_rejected_everywhere(text: str) -> None:
    tensor = '{"name":"x","shape":[0],"datatype":"FP32","data":[]}'
    good, bad = (
        "{" + text % {"tensor": tensor, "s": string} + "}"
        for string in (r"a\ud83d\ude00b", r"a\ud800b")
    )
    assert tw.decode_request(good.encode()).inputs
    with pytest.raises(tw.HeaderError):
        tw.decode_request(bad.encode())


def test_limits_apply_to_raw_requests() -> None:
    spec = tw.TensorSpec("x", "BYTES", [1] * 64, batching=True)
    with pytest.raises(tw.LayoutError, match="has 65 dimensions, at most 64"):
        tw.decode_request(b"x", 0, raw_input=spec)


def test_released_buffer_is_rejected() -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(BufferError, match="the body cannot be read"):
        tw.decode_request(view)


@pytest.mark.parametrize("position", [0, 32_767, 32_768, 65_535, 65_536, 70_000])
def test_first_invalid_bool_is_reported(position: int) -> None:
    """The elements are checked in blocks."""
    body = bytearray(70_001)
    body[position] = 7
    body[-1] = max(body[-1], 2)
    spec = tw.TensorSpec("x", "BOOL", [-1])
    with pytest.raises(tw.ElementError, match=f"element {position} of") as caught:
        tw.decode_request(body, 0, raw_input=spec)
    assert (caught.value.actual, caught.value.offset) == (body[position], position)
