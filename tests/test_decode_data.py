"""decode_request and decode_response with the header and the binary data in separate buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import cases
from support.requirements import package
from tensorwire.http import parse_header_length

X = np.arange(6, dtype=np.float32).reshape(2, 3)
TENSORS = [
    tw.Tensor("x", X),
    tw.Tensor("empty", np.zeros((0, 2), np.int64)),
    tw.Tensor("words", ["a", "bcd"]),
    tw.Tensor("flags", np.array([True, False])),
]
FRAME = tw.encode_request(tw.InferRequest(TENSORS))
HEADER, *PARTS = [bytes(buffer) for buffer in FRAME.buffers]
DATA = b"".join(PARTS)


def decode(kind: str, header: Any, data: Any) -> tw.InferRequest | tw.InferResponse:
    return (tw.decode_request if kind == "request" else tw.decode_response)(header, data=data)


def check(request: tw.InferRequest) -> None:
    assert list(request) == ["x", "empty", "words", "flags"]
    assert np.array_equal(request["x"].as_numpy(), X)
    assert request["empty"].shape == (0, 2)
    assert request["words"].elements.tolist() == [b"a", b"bcd"]
    assert request["flags"].tolist() == [True, False]


@pytest.mark.parametrize(
    "data",
    [
        DATA,
        [DATA],
        PARTS,
        tuple(PARTS),
        [PARTS[0] + PARTS[1], PARTS[2]],
        [b"", PARTS[0], b"", b"", PARTS[1] + PARTS[2], b""],
        [np.frombuffer(PARTS[0], np.uint8), bytearray(PARTS[1]), memoryview(PARTS[2])],
        iter(PARTS),
    ],
)
def test_data_in_one_or_several_buffers(data: Any) -> None:
    check(tw.decode_request(HEADER, data=data))


@pytest.mark.parametrize("case", cases.VALID, ids=lambda case: case.id)
def test_same_message_as_joined(case: cases.Valid) -> None:
    n = len(case.body) if case.header_length is None else parse_header_length(case.header_length)
    message = decode(case.kind, case.body[:n], case.body[n:])
    assert list(message) == [tensor.name for tensor in case.tensors]
    for tensor, expected in zip(message.values(), case.tensors, strict=True):
        assert (tensor.datatype, tensor.shape) == (expected.datatype, expected.shape)
        if tensor.data is not None and tensor.datatype != "BF16":
            values = tensor.as_numpy().reshape(-1).tolist()
            assert cases.same(values, expected.values)


@pytest.mark.parametrize("case", cases.MALFORMED, ids=lambda case: case.id)
def test_malformed_message_is_rejected(case: cases.Malformed) -> None:
    n = len(case.body) if case.header_length is None else case.header_length
    if not isinstance(n, int) or not 0 < n <= len(case.body):
        return  # the header length is what is malformed
    with pytest.raises(tw.DecodeError) as caught:
        decode(case.kind, case.body[:n], case.body[n:])
    assert "body byte" not in str(caught.value)


def test_tensors_are_views_of_their_buffers() -> None:
    header = memoryview(bytearray(HEADER))
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


# --- errors ---

BOOLS = tw.encode_request(
    tw.InferRequest([tw.Tensor("x", X), tw.Tensor("(body byte 1)", np.array([True, True]))])
)


def ends_inside(data: str, tensor: str, expected: int, actual: int) -> str:
    return f"{data} ends inside input '{tensor}': it requires {expected} bytes, but {actual} remain"


@pytest.mark.parametrize(
    ("data", "message", "buffer", "offset", "expected", "actual"),
    [
        (
            *(DATA + b"xy", "data has 2 bytes after the last tensor"),
            *("data", len(DATA), len(DATA), len(DATA) + 2),
        ),
        (DATA[:-1], ends_inside("data", "flags", 2, 1), "data", len(DATA) - 2, 2, 1),
        (
            *([*PARTS[:2], b"\1\2"], "element 1 of input 'flags' must be 0 or 1 (BOOL), not 2"),
            *("data[2]", 1, 1, 2),
        ),
        ([DATA[:10], DATA[10:]], ends_inside("data[0]", "x", 24, 10), "data[0]", 0, 24, 10),
        (
            *([*PARTS[:2], PARTS[2][:1], PARTS[2][1:]], ends_inside("data[2]", "flags", 2, 1)),
            *("data[2]", 0, 2, 1),
        ),
        (
            *([*PARTS, b"", b"xyz", b"abc"], "data[4] has 3 bytes after the last tensor"),
            *("data[4]", 0, 0, 3),
        ),
        ([], ends_inside("data[0]", "x", 24, 0), "data[0]", 0, 24, 0),
        ([PARTS[0]], ends_inside("data[0]", "words", 12, 0), "data[0]", 24, 12, 0),
    ],
)
def test_errors_name_the_buffer(
    data: Any, message: str, buffer: str, offset: int, expected: int, actual: int
) -> None:
    with pytest.raises(tw.DecodeError) as caught:
        tw.decode_request(HEADER, data=data)
    error = caught.value
    assert str(error) == f"{message} ({buffer} byte {offset})"
    assert (error.offset, error.expected, error.actual) == (offset, expected, actual)


def test_names_of_tensors_are_not_changed_in_errors() -> None:
    header, x, flags = BOOLS.buffers
    assert bytes(flags) == b"\1\1"
    with pytest.raises(tw.ElementError) as caught:
        tw.decode_request(header, data=[x, b"\1\3"])
    assert str(caught.value) == (
        "element 1 of input '(body byte 1)' must be 0 or 1 (BOOL), not 3 (data[1] byte 1)"
    )


def test_errors_that_are_found_later_name_the_buffer() -> None:
    tensors = [tw.Tensor("a", X), tw.Tensor("b", [b"ok", b"no\xff"])]
    header, *parts = tw.encode_request(tw.InferRequest(tensors)).buffers
    words = tw.decode_request(header, data=parts)["b"]
    with pytest.raises(tw.ElementError, match=r"at its byte 2 \(data\[1\] byte 12\)$"):
        words.as_strings()


def test_errors_in_the_header_have_offsets_of_the_header() -> None:
    for data in (DATA, bytes(len(HEADER) + 1)):
        with pytest.raises(tw.HeaderError, match=r"by 1 more byte \(byte \d+\)$") as caught:
            tw.decode_request(HEADER + b"x", data=data)
        assert caught.value.offset == len(HEADER)
    with pytest.raises(tw.HeaderError, match=r"^the JSON header is empty$"):
        tw.decode_request(b"", data=DATA)
    with pytest.raises(tw.HeaderError, match=r"JSON header is \d+ bytes long; the limit is 5"):
        tw.decode_request(HEADER, data=DATA, limits=tw.Limits(max_header_nbytes=5))
    with pytest.raises(tw.HeaderError, match="the server returned an error: busy"):
        tw.decode_response(b'{"error": "busy"}', data=b"")


@pytest.mark.parametrize("length", [len(HEADER), 0, "5"])
def test_header_length_and_data_exclude_each_other(length: Any) -> None:
    for function in (tw.decode_request, tw.decode_response):
        with pytest.raises(TypeError, match="header_length and data exclude each other"):
            function(HEADER, length, data=DATA)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "^data must be a bytes-like object or an iterable of them, not int$"),
        ([DATA, None], r"^data\[1\] must be a bytes-like object, not NoneType$"),
        ([5], r"^data\[0\] must be a bytes-like object, not int$"),
        ("text", r"^data\[0\] must be a bytes-like object, not str$"),
        ([b"", [DATA]], r"^data\[1\] must be a bytes-like object, not list$"),
    ],
)
def test_data_of_a_wrong_type(data: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tw.decode_request(HEADER, data=data)


@pytest.mark.parametrize(
    ("wrap", "name"), [(lambda part: part, "data"), (lambda part: [b"", part], r"data\[1\]")]
)
def test_data_in_an_unsuitable_buffer(wrap: Any, name: str) -> None:
    for part, message in (
        (np.arange(8, dtype=np.float32), f"^the items of {name} must be 1 byte long, not 4"),
        (np.zeros((4, 4), np.uint8)[:, ::2], f"^{name} cannot be read: "),
    ):
        with pytest.raises(BufferError, match=message):
            tw.decode_request(HEADER, data=wrap(part))


def test_an_incomplete_body_buffer_is_rejected() -> None:
    body = tw.BodyBuffer(len(DATA))
    body.write(DATA[:-1])
    with pytest.raises(tw.LayoutError, match=r"^data is incomplete"):
        tw.decode_request(HEADER, data=body)
    body.write(DATA[-1:])
    check(tw.decode_request(HEADER, data=body))


def test_iterator_that_fails_or_changes_the_header() -> None:
    header = bytearray(HEADER)

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
        tw.decode_request(HEADER, data=failing())
