"""Encoding gRPC messages: the bytes, what the generated classes read, and errors."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc
from support import grpc_cases as cases
from support.memory import peak_nbytes
from support.protobuf_wire import delimited, fixed64, integer, packed
from tensorwire._codec.grpc import reader, writer
from tensorwire.grpc_messages import RAW_INPUT_CONTENTS

X = tw.Tensor("x", np.array([1, 2], np.uint8))
INT8 = np.zeros(1, np.int8)
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def shared(name: str, **parameters: Any) -> tw.Tensor:
    parameters = {"shared_memory_region": "r", **parameters}
    return tw.Tensor(name, None, datatype="FP32", shape=(4,), parameters=parameters)


def request(*tensors: tw.Tensor, **members: Any) -> bytes:
    return tw.grpc.encode_request(tw.InferRequest(tensors, **members))


# --- the bytes -----------------------------------------------------------------------------------

MESSAGES = {
    "a tensor": (request(X), cases.tensor() + delimited(7, b"\1\2")),
    "empty names": (
        request(X.replace(name=""), model_name="", model_version="", id=""),
        delimited(5, delimited(2, "UINT8"), packed(3, (2,)))
        + delimited(7, b"\1\2"),
    ),
    "shared memory": (
        request(shared("s"), X, shared("t")),
        cases.tensor("s", "FP32", (4,), cases.SHARED) + cases.tensor()
        + cases.tensor("t", "FP32", (4,), cases.SHARED) + delimited(7, b"\1\2"),
    ),
    "parameters": (
        request(X, parameters={"a": None, "b": True, "c": -1, "d": 2**64 - 1, "e": "é", "f": -0.1}),
        cases.parameter(4, "a") + cases.parameter(4, "b", integer(1, 1))
        + cases.parameter(4, "c", integer(2, -1)) + cases.parameter(4, "d", integer(5, 2**64 - 1))
        + cases.parameter(4, "e", delimited(3, "é")) + cases.parameter(4, "f", fixed64(4, -0.1))
        + cases.tensor() + delimited(7, b"\1\2"),
    ),
    "JSON data": (
        request(tw.Tensor("x", np.array([1, 2], np.uint8), binary=False)),
        cases.tensor() + delimited(7, b"\1\2"),
    ),
    "a response of a stream": (
        tw.grpc.encode_stream_response(tw.InferResponse([X], id="7")),
        delimited(2, delimited(3, "7") + cases.tensor() + delimited(6, b"\1\2")),
    ),
    "a response with options": (
        tw.grpc.encode_response(
            tw.InferResponse({"a": [b""], "x": X}), tw.ResponseOptions(["x"], id="7")
        ),
        delimited(3, "7") + cases.tensor() + delimited(6, b"\1\2"),
    ),
    "an empty response of a stream": (
        tw.grpc.encode_stream_response(tw.InferResponse([])), delimited(2),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("encoded", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_bytes(encoded: bytes, expected: bytes) -> None:
    assert type(encoded) is bytes
    assert encoded == expected


@pytest.mark.parametrize("n", [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21])
def test_sizes_where_a_varint_becomes_longer(n: int) -> None:
    array = np.arange(n, dtype=np.uint8)
    encoded = request(tw.Tensor("x" * min(n, 20_000), array), id="i" * min(n, 20_000))
    again = tw.grpc.decode_request(encoded, limits=tw.Limits(max_name_nbytes=20_000))
    [tensor] = again.inputs
    assert tensor.shape == (n,) and np.array_equal(tensor.as_numpy(), array)


@pytest.mark.thread_unsafe(reason="it measures the process")
def test_data_is_copied_once() -> None:
    """There is one allocation, of the size of the message."""
    array = np.zeros(1 << 22, np.uint8)
    made = tw.InferRequest([tw.Tensor("x", array)])
    encoded = tw.grpc.encode_request(made)
    peak = peak_nbytes(lambda: tw.grpc.encode_request(made))
    assert len(encoded) < peak < len(encoded) + 1000
    array[:] = 1
    assert not any(encoded[-100:])


# --- responses -----------------------------------------------------------------------------------

RESPONSE = tw.InferResponse({"a": INT8, "b": INT8, "c": INT8})


@pytest.mark.parametrize(
    ("outputs", "sent"), [(None, "abc"), ([], "abc"), (["c", "a"], "ac"), (["b"], "b")]
)
@pytest.mark.parametrize(
    ("encode", "decode"),
    [
        (tw.grpc.encode_response, tw.grpc.decode_response),
        (tw.grpc.encode_stream_response, tw.grpc.decode_stream_response),
    ],
)
def test_request_selects_the_outputs(
    outputs: list[str] | None, sent: str, encode: Callable[..., bytes], decode: Callable[..., Any]
) -> None:
    response = decode(encode(RESPONSE, tw.InferRequest([X], outputs, id="7")))
    assert "".join(response) == sent
    assert response.id == "7"
    own = tw.InferResponse([], id="8")
    assert decode(encode(own, tw.InferRequest([X], id="7"))).id == "8"
    with pytest.raises(tw.EncodeError, match="'z'") as caught:
        encode(RESPONSE, tw.InferRequest([X], ["z"]))
    assert caught.value.status == 400


# --- errors --------------------------------------------------------------------------------------

VALUES = {
    "list": ([1], "a list"),
    "object": ({"a": 1}, "an object"),
    "64 bits and a sign": (-(2**63) - 1, "an integer of 64 bits"),
    "65 bits": (2**64, "an integer of 65 bits"),
}


@pytest.mark.parametrize(("value", "what"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("place", ["the request", "input 'x'", "output 'o'", "the response"])
def test_parameters_that_cannot_be_sent(value: Any, what: str, place: str) -> None:
    parameters = {"fine": 1, "k": value}
    which = {place: parameters}
    message: Any = tw.InferRequest(
        [X.replace(parameters=which.get("input 'x'"))],
        [tw.RequestedOutput("o", parameters=which.get("output 'o'"))],
        parameters=which.get("the request"),
    )
    encode: Any = tw.grpc.encode_request
    if place == "the response":
        message, encode = tw.InferResponse([X], parameters=parameters), tw.grpc.encode_response
    with pytest.raises(tw.EncodeError) as caught:
        encode(message)
    end = "; gRPC messages have integers of 64 bits"
    if type(value) is not int:
        end = ", which gRPC messages cannot contain"
    assert str(caught.value) == f"parameter 'k' of {place} is {what}{end}"
    assert caught.value.status == 500
    assert caught.value.tensor == (place.split("'")[1] if "'" in place else None)


LARGE = np.zeros(2**30, np.uint8)  # no memory is used before it is read


def test_message_of_2_gib() -> None:
    """The size is known before any memory is allocated."""
    large = {"x": LARGE, "y": LARGE}
    expected = 2 * (2**30 + 1 + 5) + 2 * len(cases.tensor("x", "UINT8", (2**30,)))
    calls: list[tuple[Any, Any, int]] = [
        (tw.grpc.encode_request, tw.InferRequest(large), expected),
        (tw.grpc.encode_response, tw.InferResponse(large), expected),
        (tw.grpc.encode_stream_response, tw.InferResponse(large), expected + 6),
    ]
    for encode, message, actual in calls:
        with pytest.raises(tw.EncodeError) as caught:
            encode(message)
        error = caught.value
        assert str(error) == f"the gRPC message is {actual} bytes long; the limit is 2147483647"
        assert (error.expected, error.actual) == (2**31 - 1, actual)
    with pytest.raises(tw.EncodeError, match="is 2147483664 bytes long"):
        writer.append_fields(b"head", RAW_INPUT_CONTENTS, [LARGE, LARGE])


@pytest.mark.slow(reason="it makes 262,144 tensors")
@pytest.mark.no_sanitizers(reason="it reserves more address space than they leave")
def test_sum_of_sizes_does_not_overflow() -> None:
    """Many tensors can be views of the same memory, which may only be reserved."""
    try:
        reserved = mmap.mmap(-1, 1 << 46, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    except (OSError, OverflowError) as error:
        pytest.skip(f"this machine cannot reserve 64 TiB: {error}")
    n = 1 << 18  # times 2^46 is 2^64
    tensor = tw.Tensor("x", np.frombuffer(reserved, np.uint8))
    with pytest.raises(tw.EncodeError, match="bytes long; the limit is 2147483647"):
        request(*(tensor.replace(name=str(i)) for i in range(n)))
    with pytest.raises(tw.EncodeError, match="bytes long; the limit is 2147483647"):
        writer.append_fields(b"", RAW_INPUT_CONTENTS, [reserved] * n)


# --- the messages without tensors, and raw contents -----------------------------------------------


def test_small_messages() -> None:
    """The fuzz target compares other ones with protobuf."""
    empty: dict[str, Any] = {"name": "", "names": [], "ready": False, "items": []}
    values = empty | {"ready": True, "names": ["a", ""]}
    written = writer.write_fields(values, cases.KINDS)
    assert written == delimited(2, "a") + delimited(2) + integer(3, 1)
    assert reader.read_fields(written, cases.KINDS) == values
    assert writer.write_fields(empty, cases.KINDS) == b""
    assert reader.read_fields(b"", cases.KINDS) == empty
    # A 0 is written, because a field may be optional. None is not.
    integers = {1: ("a", int), 2: ("b", int), 3: ("c", int)}
    written = writer.write_fields({"a": 0, "b": None, "c": -300}, integers)
    assert written == integer(1, 0) + integer(3, -300)
