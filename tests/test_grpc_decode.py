"""Decoding gRPC messages: the wire format of protobuf, the rules of the protocol, and views."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc
from support import grpc_cases as cases
from support import reference
from support.lifetimes import assert_result_keeps_body_alive
from support.memory import address
from support.protobuf_wire import delimited, integer, packed
from support.threads import repeating
from tensorwire._codec.grpc import reader
from tensorwire.grpc_messages import RAW_INPUT_CONTENTS

DECODERS: dict[str, Callable[..., Any]] = {
    "request": tw.grpc.decode_request,
    "response": tw.grpc.decode_response,
    "stream": tw.grpc.decode_stream_response,
}


def only_tensor(message: Any, **limits: Any) -> tw.Tensor:
    """Return the tensor of a request that has one."""
    [tensor] = tw.grpc.decode_request(message, limits=tw.Limits(**limits)).inputs
    return tensor


def values_of(tensor: tw.Tensor) -> list[Any]:
    return list(tensor.as_numpy().reshape(-1).tolist())


# --- datatypes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "field"), [("INT64", 3), ("FP64", 7), ("FP32", 6), ("BYTES", 8)]
)
def test_large_typed_contents(datatype: str, field: int) -> None:
    """They are read without the GIL."""
    values: list[Any] = [5, -6] * 100_000
    if datatype == "INT64":
        contents = packed(field, values)
    elif datatype == "BYTES":
        values = [b"five5", b""] * 100_000
        contents = b"".join(delimited(field, value) for value in values)
    else:
        contents = delimited(field, reference.pack(datatype, values))
    contents = contents + integer(15, 0) * (1 << 19)
    tensor = only_tensor(cases.typed("x", datatype, (200_000,), contents))
    assert values_of(tensor) == values


# --- the wire format of protobuf -----------------------------------------------------------------


def test_outputs_in_shared_memory() -> None:
    """Each has an empty raw content, by which clients count; or none, as other servers do."""
    parameters = {"shared_memory_region": "r"}
    shared = tw.Tensor("s", None, datatype="FP32", shape=(4,), parameters=parameters)
    message = tw.grpc.encode_response(tw.InferResponse([shared, tw.Tensor("x", ["a"])]))
    content = delimited(6, b"\1\0\0\0a")
    assert message.endswith(delimited(6, b"") + content)
    for found in (message, message.replace(delimited(6, b"") + content, content)):
        response = tw.grpc.decode_response(found)
        assert (response["s"].data, response["x"].tolist()) == (None, [b"a"])
    with pytest.raises(tw.HeaderError, match="but has raw_output_contents and shared_memory"):
        tw.grpc.decode_response(message.replace(delimited(6, b"") + content, content * 2))


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases.REJECTED, ids=lambda case: case.id)
def test_error(case: cases.Rejected) -> None:
    memory = bytearray(case.message)
    for message in (case.message, memory):
        with pytest.raises(tw.DecodeError) as caught:
            DECODERS[case.kind](message)
        error = caught.value
        assert (type(error).__name__, str(error)) == (case.error, case.text)
        found = (error.offset, error.expected, error.actual, error.element, error.tensor)
        assert found == (case.offset, case.expected, case.actual, case.element, case.tensor)
        assert error.status == 400
    del caught, error
    memory.append(0)  # no view of it remains


def test_error_of_a_stream_is_cut() -> None:
    with pytest.raises(tw.ErrorResponseError) as caught:
        tw.grpc.decode_stream_response(delimited(1, "é" * 10_000))
    assert caught.value.message == f"{'é' * 500}..."
    assert str(caught.value) == f"the server returned an error: {caught.value.message}"


WHICH = "which is the limit"
KEY = cases.KEY
# The limit, its value, the position of the error, its text, and the message.
LIMITS: list[tuple[str, int, int | None, str, bytes]] = [
    ("max_tensors", 1, len(delimited(5, cases.ENTRY_X)),
     f"the message has more than 1 input, {WHICH}", cases.INPUTS + cases.RAW),
    ("max_tensors", 1, len(delimited(7, cases.X)),
     f"the message has more than 1 raw content, {WHICH}", cases.RAW + cases.tensor()),
    ("max_tensors", 1, len(cases.OUTPUT), f"the message has more than 1 requested output, {WHICH}",
     cases.OUTPUT + delimited(6, delimited(1, "p")) + cases.tensor()),
    ("max_parameters", 2, 33, f"the parameters have more than 2 values, {WHICH} (byte 33)",
     KEY + cases.tensor("x", "UINT8", (2,), KEY, KEY)),
    ("max_parameters", 1, 4, f"the parameters have more than 1 value, {WHICH} (byte 4)",
     delimited(4, integer(3, 1)) * 2),  # they have no key
    ("max_rank", 1, None, "input 'x' has 2 dimensions; the limit is 1",
     cases.tensor("x", "UINT8", (1, 2))),
    ("max_name_nbytes", 2, None, "the name of input 'é€' is 5 bytes long; the limit is 2",
     cases.tensor("é€")),
    ("max_name_nbytes", 2, None, "the name of output 'abc' is 3 bytes long; the limit is 2",
     delimited(6, delimited(1, "abc"))),
    ("max_elements", 3, None, "the message has 4 elements up to input 'y'; the limit is 3",
     cases.tensor("x") + cases.tensor("y")),
    ("max_elements", 1, None, "the message has 2 elements up to input 'x'; the limit is 1",
     cases.tensor("x", "UINT8", (2,), cases.SHARED)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "most", "offset", "text", "message"), LIMITS, ids=range(len(LIMITS))
)
def test_limit(name: str, most: int, offset: int | None, text: str, message: bytes) -> None:
    def decode(limit: int | None) -> None:
        limits: dict[str, Any] = {name: limit}
        tw.grpc.decode_request(message, limits=tw.Limits(**limits))

    with pytest.raises(tw.DecodeError) as caught:
        decode(most)
    error = caught.value
    assert (str(error), error.expected, error.offset) == (text, most, offset)
    assert error.actual is not None and error.actual > most
    try:  # with a limit of this number, there is no error, or another one
        decode(error.actual)
    except tw.DecodeError as other:
        assert str(other) != text


def test_limit_of_what_is_not_data() -> None:
    """Every byte of fields and text counts, but not the data of tensors, nor what is skipped."""
    data, unknown = b"\1\2", b"x" * 50
    head = delimited(1, "modèle") + cases.tensor() + delimited(7, data) + delimited(99, unknown)
    n = len(head) - len(data) - len(unknown)
    assert values_of(only_tensor(head, max_header_nbytes=n, max_nesting=0)) == [1, 2]
    with pytest.raises(tw.HeaderError) as caught:
        only_tensor(head, max_header_nbytes=n - 1)
    error = caught.value
    assert (error.expected, error.actual, error.offset) == (n - 1, n, head.index(unknown) - 3)
    assert str(error) == (
        f"the gRPC message has more than {n - 1} bytes besides its tensors, which is the limit "
        f"(byte {error.offset})"
    )


@pytest.mark.parametrize("read", ["decode_request", "read_names", "read_fields"])
def test_many_small_fields_are_limited(read: str) -> None:
    """64 MiB of fields without tensors, whatever reads them."""
    message = b"\xb8\x06\x01" * 23_000_000
    function = getattr(reader, read)
    arguments: dict[str, list[Any]] = {"read_fields": [{}], "read_names": [tw.Limits()]}
    with pytest.raises(tw.HeaderError, match="more than 67108864 bytes besides its tensors"):
        function(message, *arguments.get(read, []))


@pytest.mark.parametrize("character", ["a", "é", "€", "\U0001f600"])
def test_long_text(character: str) -> None:
    """It is validated in pieces of at most 64 KiB, which end between characters."""
    text = f"-{character * 100_000}"
    assert reader.read_names(delimited(3, text), tw.Limits())[2] == text
    for end in range(65_530, 65_542):
        invalid = text.encode()[:end] + b"\xff" * 100
        with pytest.raises(UnicodeDecodeError) as expected:
            invalid.decode()
        message = delimited(3, invalid)
        with pytest.raises(tw.HeaderError, match="id is not valid UTF-8") as found:
            reader.read_names(message, tw.Limits())
        assert found.value.offset == len(message) - len(invalid) + expected.value.start


def test_names_are_read_without_tensors() -> None:
    message = cases.tensor() + delimited(3, "7") + delimited(1, "wrong") + delimited(1, "m")
    limits = tw.Limits(max_header_nbytes=15)
    assert reader.read_names(message, limits) == ("m", "", "7")
    assert reader.read_names(b"", limits) == ("", "", "")
    with pytest.raises(tw.HeaderError, match=r"model_version is not valid UTF-8 \(byte 2\)"):
        reader.read_names(b"\x12\x01\xff", limits)
    with pytest.raises(tw.HeaderError, match="more than 14 bytes besides its tensors"):
        reader.read_names(message, tw.Limits(max_header_nbytes=14))


# --- memory --------------------------------------------------------------------------------------

PIXELS = np.arange(24, dtype=np.float32)
PICTURE = cases.tensor("x", "FP32", (24,)) + delimited(7, PIXELS.tobytes())
AT = len(PICTURE) - PIXELS.nbytes


def test_raw_contents_are_views() -> None:
    array = only_tensor(PICTURE).as_numpy()
    assert array.ctypes.data == address(PICTURE) + AT
    assert not array.flags.writeable
    words = cases.tensor("x", "BYTES", (1,)) + delimited(7, cases.Y)
    data = only_tensor(words).data
    assert isinstance(data, tw.BytesArray)
    assert address(data.element(0)) == address(words) + len(words) - 3


@pytest.mark.parametrize("wrap", [bytearray, lambda b: memoryview(bytearray(b))])
def test_views_of_writable_memory_are_writable(wrap: Callable[[bytes], Any]) -> None:
    memory = wrap(PICTURE)
    array = only_tensor(memory).as_numpy()
    array[0] = 7
    assert bytes(memory[AT : AT + 4]) == np.float32(7).tobytes()


def test_views_keep_the_message_alive() -> None:
    assert_result_keeps_body_alive(PICTURE, lambda body: only_tensor(body).as_numpy())


def test_typed_contents_do_not_keep_the_message() -> None:
    memory = bytearray(cases.typed("x", "FP32", (2,), delimited(6, bytes(8))))
    array = only_tensor(memory).as_numpy()
    memory.append(0)
    assert (array.tolist(), array.flags.writeable) == ([0, 0], True)


N = 1 << 20
CHANGING = {
    "the last byte of an integer": (packed(2, [1] * N), "INT8", b"\1", b"\x81", 9),
    "an element becomes an unknown field": (
        delimited(8) * N, "BYTES", delimited(8), integer(9, 0), 10),
    "a length": (delimited(8, b"\x42\0") * N, "BYTES", b"\2\x42\0\x42", b"\4\x42\0\x42", 10),
    "a float becomes an unknown field": (delimited(6, bytes(4)) * N, "FP32", b"\x32", b"\x3a", 9),
}  # fmt: skip


@pytest.mark.thread_unsafe(reason="it starts threads")
@pytest.mark.parametrize(
    ("contents", "datatype", "first", "other", "step"), CHANGING.values(), ids=CHANGING
)
def test_memory_that_another_thread_changes(
    contents: bytes, datatype: str, first: bytes, other: bytes, step: int
) -> None:
    """The contents are read without the GIL. There is an error or a result, but nothing else."""
    memory = bytearray(cases.typed("x", datatype, (N,), contents))
    begin = memory.rindex(first, 0, 200)
    results: set[Any] = set()

    def write() -> None:
        for value in (other, first):
            for position in range(begin, begin + 20 * step, step):
                memory[position : position + len(value)] = value

    with repeating(write):
        end = time.monotonic() + 0.2
        while not results or time.monotonic() < end:
            try:
                tensor = only_tensor(memory)
                results.add(tensor.as_numpy().shape)
                if isinstance(tensor.data, tw.BytesArray):
                    assert reference.elements(tensor.data.tolist()) == tensor.data.wire
            except tw.DecodeError as error:
                results.add(type(error))
    assert results


def test_text_of_mutable_memory_is_copied() -> None:
    memory = bytearray(delimited(1, "né") + cases.tensor() + delimited(7, b"\1\2"))
    request = tw.grpc.decode_request(memory)
    memory[2:5] = b"abc"
    assert request.model_name == "né"


# --- the messages without tensors ----------------------------------------------------------------

END = "the gRPC message is malformed: it ends inside a field"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\x80", f"{END} (byte 0)"),
        (delimited(2, b"\xff"), "names is not valid UTF-8 (byte 2)"),
        (delimited(4, packed(2, (1,))[:-1] + b"\x80"), f"{END} (byte 2)"),
    ],
)
def test_errors_of_small_messages(message: bytes, text: str) -> None:
    with pytest.raises(tw.HeaderError) as caught:
        reader.read_fields(message, cases.KINDS)
    assert str(caught.value) == text


# --- splitting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [cases.INPUTS, cases.RAW + b"\x80", b""])
def test_split_returns_other_messages_as_they_are(message: bytes) -> None:
    head, contents = reader.split_field(message, RAW_INPUT_CONTENTS)
    assert head is message and contents == []
