"""decode_request and decode_response with valid and malformed messages from tables."""

from __future__ import annotations

import json
import random
import sys
import sysconfig
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorwire as tw
from support import cases, reference
from support.requirements import package
from tensorwire._codec.views import view_tensor


def decode(kind: str, body: Any, header_length: Any) -> Any:
    if kind == "request":
        return tw.decode_request(body, header_length)
    return tw.decode_response(body, header_length)


def tensors_of(message: tw.InferRequest | tw.InferResponse) -> tuple[tw.Tensor, ...]:
    return message.inputs if isinstance(message, tw.InferRequest) else message.outputs


def values_of(tensor: tw.Tensor) -> list[Any] | None:
    """Return the flat Python values of a tensor, as in the tables."""
    if tensor.data is None:
        return None
    if tensor.datatype == "BF16":
        package("ml_dtypes")
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


def test_header_ends_within_a_number() -> None:
    """The digits that follow the header are not read."""
    head = b'{"inputs":[{"name":"x","datatype":"INT8","parameters":{"binary_data_size":3},"shape":['
    for n_digits in range(1, 20):
        header = head + b"1" * n_digits
        with pytest.raises(tw.HeaderError, match="',' or ']'") as caught:
            tw.decode_request(header + b"1]}]}" + bytes(40), len(header))
        assert caught.value.offset == len(header)


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
    with pytest.raises(TypeError, match="header length"):
        decode(case.kind, case.body, [convert(case.header_length)])


# --- names, which a cache keeps for later messages ---


def names_of(names: list[str], *, ascii_only: bool = False) -> list[str]:
    """Return the names of a message with one empty tensor for each."""
    entries = [{"name": name, "datatype": "INT8", "shape": [0], "data": []} for name in names]
    header = json.dumps({"outputs": entries}, ensure_ascii=ascii_only).encode()
    return list(tw.decode_response(header))


def test_any_names_of_successive_messages() -> None:
    """More names than the cache has slots, of all sizes, and with common beginnings."""
    chooser = random.Random(4)
    alphabets = ["ab", "xyz01_", "a\u00e9\u20ac\U0001f600", 'a\n\\"b', "\x7f~ "]
    for _ in range(60):
        names = {
            "".join(chooser.choices(alphabet, k=n)) for alphabet in alphabets for n in range(1, 40)
        }
        names |= {f"output_{chooser.randrange(5000)}" for _ in range(50)}
        chosen = sorted(names)
        assert names_of(chosen) == chosen
        assert names_of(chosen, ascii_only=True) == chosen


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="there is no cache without the GIL"
)
@pytest.mark.parametrize("name", ["x1", "input_ids", "a" * 32])
def test_a_short_name_is_the_object_of_the_previous_message(name: str) -> None:
    first, second = names_of([name])[0], names_of([name])[0]
    assert first is second
    longer = "b" * 33  # longer names are not cached
    assert names_of([longer])[0] is not names_of([longer])[0]


def test_cached_names_take_a_limited_amount_of_memory() -> None:
    def decode_many(n: int) -> None:
        for i in range(n):
            names_of([f"name_{i:010}_{'x' * 10}"])

    decode_many(5_000)
    before = sys.getallocatedblocks()
    decode_many(20_000)
    assert sys.getallocatedblocks() - before < 2_000


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


@pytest.mark.parametrize(
    ("body", "dims"),
    [(bytes(9), [-1]), (bytes(9), [2]), (bytes(7), [-1]), (bytes(7), [2]), (bytes(4), [-1, 0])],
)
def test_raw_body_that_does_not_fill_the_input(body: bytes, dims: list[int]) -> None:
    with pytest.raises(tw.LayoutError, match=f"a raw body of {len(body)} bytes does not fill"):
        tw.decode_request(body, 0, raw_input=tw.TensorSpec("x", "FP32", dims))


def test_rank_of_a_raw_request() -> None:
    spec = tw.TensorSpec("x", "BYTES", [1] * 64, batching=True)
    with pytest.raises(tw.LayoutError, match="has 65 dimensions; the limit is 64"):
        tw.decode_request(b"x", 0, raw_input=spec)


# --- a tensor over a whole buffer, as in a gRPC message ---


@pytest.mark.parametrize(
    ("datatype", "shape", "buffer", "values"),
    [
        ("INT16", (2,), b"\1\0\2\0", [1, 2]),
        ("BOOL", (2,), b"\0\1", [False, True]),
        ("BYTES", (2,), reference.elements([b"a", b"bc"]), [b"a", b"bc"]),
    ],
)
def test_view_of_a_buffer(datatype: str, shape: Any, buffer: bytes, values: list[Any]) -> None:
    tensor = view_tensor(buffer, "x", datatype, shape, tw.Limits())
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, shape)
    assert tensor.as_numpy().tolist() == values
    for changed in (buffer[:-1], buffer + b"\0"):
        with pytest.raises(tw.DecodeError):
            view_tensor(changed, "x", datatype, shape, tw.Limits())


def test_view_of_a_buffer_with_an_invalid_bool() -> None:
    with pytest.raises(tw.ElementError, match="element 1"):
        view_tensor(b"\0\2", "x", "BOOL", (2,), tw.Limits())
    assert view_tensor(b"\0\2", "x", "BOOL", (2,), tw.Limits(check_bool=False)).shape == (2,)


# --- the position of an error ---

SIZED = '{"name":"%s","datatype":"%s","shape":[%s],"parameters":{"binary_data_size":%s}}'
JSON = '{"inputs":[{"name":"x","datatype":"%s","shape":[2],"data":%s}]}'
HEAD = JSON[:-1] % ("INT8", "[1,2]")


class Position(NamedTuple):
    """Where an error is in a message. `...` means the size of the body up to there, or of it all.

    In `text`, the JSON header, ¦ marks the error. Without a mark, it is at `offset` in `blob`, the
    bytes after the header.
    """

    text: str
    error: type[tw.DecodeError]
    blob: bytes = b""
    offset: int = 0
    element: int | None = None
    expected: Any = None
    actual: Any = None


def binary(datatype: str, dims: object, size: object, blob: bytes = b"") -> Any:
    """Return the fields `text` and `blob` of a message with such a tensor after a UINT8 [2]."""
    entries = SIZED % ("a", "UINT8", 2, 2), SIZED % ("x", datatype, dims, size)
    return {"text": f'{{"inputs":[{",".join(entries)}]}}', "blob": b"ab" + blob}


ELEMENT, LAYOUT, HEADER = tw.ElementError, tw.LayoutError, tw.HeaderError
POSITIONS = {
    "BYTES beyond the body": Position(
        **binary("BYTES", 1, 9, b"\1\0\0\0c"), error=LAYOUT, offset=2, expected=9, actual=5),
    "numbers beyond the body": Position(
        **binary("FP32", 2, 8, b"1234"), error=LAYOUT, offset=2, expected=8, actual=4),
    "one byte too few": Position(
        **binary("FP32", 2, 8, b"1234567"), error=LAYOUT, offset=2, expected=8, actual=7),
    "one byte of BYTES too few": Position(
        **binary("BYTES", 1, 6, b"\1\0\0\0c"), error=LAYOUT, offset=2, expected=6, actual=5),
    "bytes after the last tensor": Position(
        **binary("INT8", 2, 2, b"123"), error=LAYOUT, offset=4, expected=..., actual=...),
    "BOOL": Position(
        **binary("BOOL", 3, 3, b"\0\1\2"),
        error=ELEMENT, offset=4, element=2, expected=1, actual=2),
    "length prefix": Position(
        **binary("BYTES", 2, 9, b"\3\0\0\0cde\0\0"),
        error=ELEMENT, offset=9, element=1, expected=4, actual=2),
    "truncated element": Position(
        **binary("BYTES", 1, 6, b"\5\0\0\0cd"),
        error=ELEMENT, offset=2, element=0, expected=5, actual=2),
    "too few elements": Position(
        **binary("BYTES", 3, 12, b"\x08\0\0\0cdefghij"),
        error=LAYOUT, offset=14, element=1, expected=3, actual=1),
    "no room for the elements": Position(
        **binary("BYTES", 2, 5, b"\1\0\0\0c"), error=LAYOUT, offset=2, expected=8, actual=5),
    "too many elements": Position(
        **binary("BYTES", 1, 10, b"\1\0\0\0c\1\0\0\0d"),
        error=LAYOUT, offset=7, element=1, expected=5, actual=10),
    "negative size": Position(**binary("INT8", 2, "¦-2"), error=LAYOUT, expected=0, actual=-2),
    "size of 2^63": Position(
        **binary("INT8", 2, f"¦{2**63}"), error=LAYOUT, expected=2**63 - 1, actual=2**63),
    "size of another type": Position(**binary("INT8", 2, '¦"2"'), error=HEADER),
    "element": Position(JSON % ("INT8", "[1,¦300]"), ELEMENT, element=1),
    "nested element": Position(JSON % ("BYTES", '[["a"],¦7]'), ELEMENT, element=1),
    "number": Position(JSON % ("FP64", "[1,¦1e400]"), ELEMENT, element=1),
    "long number": Position(JSON % ("FP32", f"[1,¦1{'0' * 50}.5]"), ELEMENT, element=1),
    "data of another type": Position(JSON % ("INT8", "¦7"), HEADER),
    "literal": Position(JSON % ("BOOL", "[true,¦fals]"), HEADER),
    "data nested too deeply": Position(
        JSON % ("INT8", "[" * 100 + "¦["), HEADER, expected=100),
    "nested too deeply": Position(
        HEAD + ',"u":' + "[" * 127 + "¦[", HEADER, expected=128, actual=129),
    "name of another type": Position('{"inputs":[{"name":¦5}]}', HEADER),
    "dimension of another type": Position('{"inputs":[{"name":"x","shape":[1,¦"2"]}]}', HEADER),
    "incomplete entry": Position('{"inputs":[{"name":"x"}¦]}', HEADER),
    "binary_data of another type": Position(
        HEAD + ',"outputs":[{"name":"o","parameters":{"binary_data":¦1}}]}', HEADER),
    "member twice": Position('{"inputs":[{"name":"x",¦"name":"x"}]}', HEADER),
    "unknown member twice": Position(HEAD + ',"u":1,"v":2,¦"u":3}', HEADER),
    "UTF-8": Position(HEAD + ',"id":"abcdefé¦\udcffab"}', HEADER),
    "control character": Position(HEAD + ',"id":"abcdefgh¦\x1fab"}', HEADER),
    "escape": Position(HEAD + ',"id":"abcdefgh¦\\x"}', HEADER),
    "half of a surrogate pair": Position(HEAD + ',"id":"¦\\udc00\\udc00"}', HEADER),
    "text after the header": Position(HEAD + "}  ¦x", HEADER),
}  # fmt: skip


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS.keys())
def test_position_of_an_error(position: Position) -> None:
    before, mark, after = position.text.partition("¦")
    header = (before + after).encode(errors="surrogateescape")
    body = header + position.blob
    offset = len(before.encode() if mark else header) + position.offset
    with pytest.raises(tw.DecodeError) as caught:
        tw.decode_request(body, len(header))
    error = caught.value
    assert (type(error), error.offset, error.element) == (position.error, offset, position.element)
    assert error.expected == (offset if position.expected is ... else position.expected)
    assert error.actual == (len(body) if position.actual is ... else position.actual)


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


def test_released_buffer_is_rejected() -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(BufferError, match="the body cannot be read"):
        tw.decode_request(view)


@pytest.mark.parametrize("value", [2, 3, 4, 128, 255])
@pytest.mark.parametrize("position", [0, 32_767, 32_768, 65_535, 65_536, 70_000])
def test_first_invalid_bool_is_reported(position: int, value: int) -> None:
    """The elements are checked in blocks."""
    body = bytearray(70_001)
    body[position] = value
    body[-1] = max(body[-1], 2)
    spec = tw.TensorSpec("x", "BOOL", [-1])
    with pytest.raises(tw.ElementError, match=f"element {position} of") as caught:
        tw.decode_request(body, 0, raw_input=spec)
    assert (caught.value.actual, caught.value.offset) == (body[position], position)
