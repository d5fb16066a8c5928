"""decode_request and decode_response with valid and malformed messages from tables.

The binary data follow the header in one buffer, or are in other buffers (the argument `data`).
"""

from __future__ import annotations

import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from fuzz.comparison import message_read, values_of
from support import cases, reference
from support.requirements import package
from tensorwire._codec.messages.decoding import view_tensor


def decode(kind: str, body: Any, header_length: Any = None, **options: Any) -> Any:
    function: Any = tw.decode_request if kind == "request" else tw.decode_response
    return function(body, header_length, **options)


WRAPPERS: list[Any] = [bytearray, memoryview, lambda body: np.array(bytearray(body))]


def split(case: cases.Valid | cases.Malformed) -> tuple[bytes, bytes] | None:
    """Return the header and the data of a message, unless the header length is malformed."""
    n = len(case.body) if case.header_length is None else case.header_length
    if not isinstance(n, int) or not 0 < n <= len(case.body):
        return None
    return case.body[:n], case.body[n:]


@pytest.mark.parametrize("case", cases.VALID, ids=lambda case: case.id)
def test_valid_message(case: cases.Valid) -> None:
    header, data = split(case) or (b"", b"")
    expected = [
        (t.name, t.datatype, t.shape, t.values, t.binary, t.parameters) for t in case.tensors
    ]
    members = {"parameters": case.parameters, "id": case.message_id}
    members |= {"model_name": case.model_name, "model_version": case.model_version}
    for message in (
        decode(case.kind, case.body, case.header_length),
        decode(case.kind, header, data=data),
        *(decode(case.kind, wrap(case.body), case.header_length) for wrap in WRAPPERS),
    ):
        assert [*message.values()] == [message[tensor.name] for tensor in case.tensors]
        found = message_read(message)
        tensors = [tuple(tensor.values()) for tensor in found.pop("tensors")]
        assert cases.same(tensors, expected)
        outputs = None if case.outputs is None else list(case.outputs)
        assert found == members | {"outputs": outputs}


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
    assert ("twice in one object" in str(error)) == case.id.startswith("J24")
    if (shown := re.search(r" \((?:body )?byte (\d+)\)$", str(error))) is not None:
        assert error.offset == int(shown[1])
    if (parts := split(case)) is not None:
        with pytest.raises(tw.DecodeError) as caught:
            decode(case.kind, parts[0], data=parts[1])
        assert type(caught.value) is type(error)
        assert "body byte" not in str(caught.value)


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
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="this Python has no cache of names"
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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, "0, which means a raw binary request, but no raw_i"),
        (tw.TensorSpec("x", "FP32", [-1]), "a raw body of 1 byte does not fill"),
        (tw.TensorSpec("x", "BYTES", [1] * 64, batching=True), "65 dimensions; the limit is 64"),
    ],
)
def test_errors_of_raw_requests(spec: tw.TensorSpec | None, message: str) -> None:
    with pytest.raises(tw.LayoutError, match=message):
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
    for wrong in (buffer[:-1], buffer + b"\0", *([b"\0\2"] if datatype == "BOOL" else [])):
        with pytest.raises(tw.DecodeError):
            view_tensor(wrong, "x", datatype, shape, tw.Limits())
    view_tensor(b"\0\2", "x", "BOOL", (2,), tw.Limits(check_bool=False))


# --- the position of an error, beyond the errors of error_messages.py ---

SIZED = '{"name":"%s","datatype":"%s","shape":[%s],"parameters":{"binary_data_size":%s}}'
JSON = '{"inputs":[{"name":"x","datatype":"%s","shape":[2],"data":%s}]}'
HEAD = JSON[:-1] % ("INT8", "[1,2]")
ELEMENT, LAYOUT, HEADER = tw.ElementError, tw.LayoutError, tw.HeaderError


def check_error(header: bytes, data: bytes, kind: type, offset: int, attributes: Any) -> None:
    with pytest.raises(tw.DecodeError) as caught:
        tw.decode_request(header + data, len(header))
    error = caught.value
    assert (type(error), error.offset) == (kind, offset)
    assert (error.element, error.expected, error.actual) == attributes


NOTHING, TOO_LARGE = (None, None, None), (None, 2**63 - 1, 2**63)


@pytest.mark.parametrize(
    ("datatype", "n", "size", "data", "error", "offset", "attributes"),
    [
        ("BYTES", 1, 9, b"\1\0\0\0c", LAYOUT, 0, (None, 9, 5)),
        ("FP32", 2, 8, b"1234", LAYOUT, 0, (None, 8, 4)),
        ("FP32", 2, 8, b"1234567", LAYOUT, 0, (None, 8, 7)),
        ("BYTES", 1, 6, b"\1\0\0\0c", LAYOUT, 0, (None, 6, 5)),
        ("BOOL", 3, 3, b"\0\1\2", ELEMENT, 2, (2, 1, 2)),
        ("BYTES", 2, 9, b"\3\0\0\0cde\0\0", ELEMENT, 7, (1, 4, 2)),
        ("BYTES", 1, 6, b"\5\0\0\0cd", ELEMENT, 0, (0, 5, 2)),
        ("BYTES", 3, 12, b"\x08\0\0\0cdefghij", LAYOUT, 12, (1, 3, 1)),
        ("BYTES", 2, 5, b"\1\0\0\0c", LAYOUT, 0, (None, 8, 5)),
        ("BYTES", 1, 10, b"\1\0\0\0c\1\0\0\0d", LAYOUT, 5, (1, 5, 10)),
    ],
)
def test_position_of_an_error_in_the_second_tensor(
    datatype: str, n: int, size: int, data: bytes, error: type, offset: int, attributes: Any
) -> None:
    entries = SIZED % ("a", "UINT8", 2, 2), SIZED % ("x", datatype, n, size)
    header = f'{{"inputs":[{",".join(entries)}]}}'.encode()
    check_error(header, b"ab" + data, error, len(header) + 2 + offset, attributes)


@pytest.mark.parametrize(
    ("text", "error", "attributes"),
    [
        (f'{{"inputs":[{SIZED % ("x", "INT8", 2, "¦-2")}]}}', LAYOUT, (None, 0, -2)),
        (f'{{"inputs":[{SIZED % ("x", "INT8", 2, f"¦{2**63}")}]}}', LAYOUT, TOO_LARGE),
        (JSON % ("BYTES", '[["a"],¦7]'), ELEMENT, (1, None, None)),
        (JSON % ("FP32", f"[1,¦1{'0' * 50}.5]"), ELEMENT, (1, None, None)),
        (JSON % ("BOOL", "[true,¦fals]"), HEADER, NOTHING),
        (JSON % ("INT8", "[" * 100 + "¦["), HEADER, (None, 100, None)),
        (HEAD + ',"u":' + "[" * 127 + "¦[", HEADER, (None, 128, 129)),
        ('{"inputs":[{"name":¦5}]}', HEADER, NOTHING),
        ('{"inputs":[{"name":"x","shape":[1,¦"2"]}]}', HEADER, NOTHING),
        ('{"inputs":[{"name":"x"}¦]}', HEADER, NOTHING),
        (HEAD + ',"outputs":[{"name":"o","parameters":{"binary_data":¦1}}]}', HEADER, NOTHING),
        (HEAD + ',"id":"abcdefgh¦\\x"}', HEADER, NOTHING),
        (HEAD + "}  ¦x", HEADER, NOTHING),
    ],
)
def test_position_of_an_error_in_the_header(text: str, error: type, attributes: Any) -> None:
    """The character ¦ marks the position."""
    before, _, after = text.partition("¦")
    check_error((before + after).encode(), b"", error, len(before.encode()), attributes)


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


# --- header and data in separate buffers ---

X = np.arange(6, dtype=np.float32).reshape(2, 3)
TENSORS = {"x": X, "empty": np.zeros((0, 2), np.int64), "words": ["a", "bcd"]}
FRAME = tw.encode_request(tw.InferRequest(TENSORS | {"flags": np.array([True, False])}))
TEXT, *PARTS = [bytes(buffer) for buffer in FRAME.buffers]
DATA = b"".join(PARTS)


def check(request: tw.InferRequest) -> None:
    assert list(request) == ["x", "empty", "words", "flags"]
    assert np.array_equal(request["x"].as_numpy(), X)
    assert request["empty"].shape == (0, 2)
    assert request["words"].elements.tolist() == [b"a", b"bcd"]
    assert request["flags"].tolist() == [True, False]


@pytest.mark.parametrize(
    "data",
    [
        *(DATA, [DATA], PARTS, tuple(PARTS), [PARTS[0] + PARTS[1], PARTS[2]], iter(PARTS)),
        [b"", PARTS[0], b"", b"", PARTS[1] + PARTS[2], b""],
        [np.frombuffer(PARTS[0], np.uint8), bytearray(PARTS[1]), memoryview(PARTS[2])],
    ],
)
@pytest.mark.thread_unsafe(reason="one of the arguments is an iterator")
def test_data_in_one_or_several_buffers(data: Any) -> None:
    check(tw.decode_request(TEXT, data=data))


def test_tensors_are_views_of_their_buffers() -> None:
    header = memoryview(bytearray(TEXT))
    first, second, third = bytearray(PARTS[0]), PARTS[1], bytearray(PARTS[2])
    request = tw.decode_request(header, data=[first, second, third])
    header[:] = bytes(len(header))  # the header was copied
    first[:4] = np.float32(7).tobytes()
    x = request["x"].as_numpy()
    assert x[0, 0] == 7
    x[0, 1] = 8
    assert np.frombuffer(bytes(first[4:8]), np.float32)[0] == 8
    assert request["words"].elements.element(0).readonly
    assert request["flags"].as_numpy().flags.writeable
    for buffer in (first, third):
        with pytest.raises(BufferError):
            buffer.append(0)
    del request
    third.append(0)  # an array keeps only its own buffer
    with pytest.raises(BufferError):
        first.append(0)
    del x
    first.append(0)


def test_zeromq() -> None:
    """The recipe of the manual: the parts of a message are the buffers of a frame."""
    zmq = package("zmq")
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        for socket in (one, two):
            socket.linger = 0
            socket.rcvtimeo = 10_000
        one.connect(f"tcp://127.0.0.1:{two.bind_to_random_port('tcp://127.0.0.1')}")
        one.send_multipart(FRAME.buffers, copy=False)
        header, *data = two.recv_multipart(copy=False)
        request = tw.decode_request(header, data=data)
        check(request)
        assert np.shares_memory(request["x"].as_numpy(), np.frombuffer(data[0], np.uint8))
        del data, header
        check(request)


def ends_inside(data: str, tensor: str, expected: int, actual: int) -> str:
    return f"{data} ends inside input '{tensor}': it requires {expected} bytes, but {actual} remain"


@pytest.mark.parametrize(
    ("data", "message", "buffer", "offset", "expected", "actual"),
    [
        (DATA + b"xy", "data has 2 bytes after the last tensor", "data", 38, 38, 40),
        (DATA[:-1], ends_inside("data", "flags", 2, 1), "data", 36, 2, 1),
        ([*PARTS[:2], b"\1\2"], "element 1 of input 'flags' must be 0 or 1 (BOOL), not 2",
         "data[2]", 1, 1, 2),
        ([DATA[:10], DATA[10:]], ends_inside("data[0]", "x", 24, 10), "data[0]", 0, 24, 10),
        ([*PARTS[:2], PARTS[2][:1], PARTS[2][1:]], ends_inside("data[2]", "flags", 2, 1),
         "data[2]", 0, 2, 1),
        ([*PARTS, b"", b"xyz", b"abc"], "data[4] has 3 bytes after the last tensor", "data[4]",
         0, 0, 3),
        ([], ends_inside("data[0]", "x", 24, 0), "data[0]", 0, 24, 0),
        ([PARTS[0]], ends_inside("data[0]", "words", 12, 0), "data[0]", 24, 12, 0),
    ],
)  # fmt: skip
def test_errors_name_the_buffer(
    data: Any, message: str, buffer: str, offset: int, expected: int, actual: int
) -> None:
    with pytest.raises(tw.DecodeError) as caught:
        tw.decode_request(TEXT, data=data)
    error = caught.value
    assert str(error) == f"{message} ({buffer} byte {offset})"
    assert (error.offset, error.expected, error.actual) == (offset, expected, actual)


def test_names_of_tensors_are_not_changed_in_errors() -> None:
    name = "(body byte 1)"
    header, flags = tw.encode_request(tw.InferRequest({name: np.array([True, True])})).buffers
    assert bytes(flags) == b"\1\1"
    with pytest.raises(
        tw.ElementError, match=r"of input '\(body byte 1\)' .*\(data\[0\] byte 1\)$"
    ):
        tw.decode_request(header, data=[b"\1\3"])


def test_errors_that_are_found_later_name_the_buffer() -> None:
    tensors = [tw.Tensor("a", X), tw.Tensor("b", [b"ok", b"no\xff"])]
    header, *parts = tw.encode_request(tw.InferRequest(tensors)).buffers
    words = tw.decode_request(header, data=parts)["b"]
    with pytest.raises(tw.ElementError, match=r"at its byte 2 \(data\[1\] byte 12\)$"):
        words.as_strings()


def test_errors_in_the_header_have_offsets_of_the_header() -> None:
    for data in (DATA, bytes(len(TEXT) + 1)):
        with pytest.raises(tw.HeaderError, match=r"by 1 more byte \(byte \d+\)$") as caught:
            tw.decode_request(TEXT + b"x", data=data)
        assert caught.value.offset == len(TEXT)
    with pytest.raises(tw.HeaderError, match=r"^the JSON header is empty$"):
        tw.decode_request(b"", data=DATA)
    with pytest.raises(tw.HeaderError, match=r"JSON header is \d+ bytes long; the limit is 5"):
        tw.decode_request(TEXT, data=DATA, limits=tw.Limits(max_header_nbytes=5))
    with pytest.raises(tw.ErrorResponseError, match="the server returned an error: busy"):
        tw.decode_response(b'{"error": "busy"}', data=b"")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1]", "x"])
def test_which_of_two_errors_is_reported(number: str) -> None:
    """A malformed header matters more than the element before it; NaN is not malformed."""
    words = '{"name":"w","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":4}}'
    numbers = f'{{"name":"x","shape":[1],"datatype":"FP32","data":[{number}]}}'
    header = f'{{"inputs":[{words},{numbers}]}}'.encode()
    error = tw.HeaderError if number in ("1]", "x") else tw.ElementError
    with pytest.raises(error):
        tw.decode_request(header + b"\xff\xff\xff\xff", len(header))


def test_an_incomplete_body_buffer_is_rejected() -> None:
    body = tw.BodyBuffer(len(DATA))
    body.write(DATA[:-1])
    with pytest.raises(tw.LayoutError, match=r"^data is incomplete"):
        tw.decode_request(TEXT, data=body)
    body.write(DATA[-1:])
    check(tw.decode_request(TEXT, data=body))


def test_iterator_that_fails_or_changes_the_header() -> None:
    header = bytearray(TEXT)

    def hostile() -> Iterator[Any]:
        with pytest.raises(BufferError):
            header.clear()
        header[:] = bytes(len(header))
        yield DATA

    check(tw.decode_request(header, data=hostile()))

    def failing() -> Iterator[Any]:
        yield PARTS[0]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tw.decode_request(TEXT, data=failing())
