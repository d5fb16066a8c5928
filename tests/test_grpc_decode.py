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
from support.protobuf_wire import delimited, fixed64, integer, packed
from support.requirements import optional
from support.threads import repeating
from tensorwire._codec.grpc import reader
from tensorwire.grpc_messages import RAW_INPUT_CONTENTS

pb: Any = optional("tritonclient.grpc.service_pb2")

DECODERS: dict[str, Callable[..., Any]] = {
    "request": tw.grpc.decode_request,
    "response": tw.grpc.decode_response,
    "stream": tw.grpc.decode_stream_response,
}
RAW_BF16 = tw.Limits(bf16_as_uint16=True)
NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    **{f"UINT{n}": [0, 1, 2**n - 1] for n in (8, 16, 32, 64)},
    **{f"INT{n}": [-(2 ** (n - 1)), -1, 2 ** (n - 1) - 1] for n in (8, 16, 32, 64)},
    "FP16": [0.5, -65504.0, NAN],
    "BF16": [0.5, -1.0, NAN],
    "FP32": [0.5, 2.0**-149, NAN],
    "FP64": [0.1, 5e-324, NAN],
    "BYTES": [b"", b"\xff\0", b"z" * 200],
}
FIELDS = {  # of InferTensorContents
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def only_tensor(message: Any, **limits: Any) -> tw.Tensor:
    """Return the tensor of a request that has one."""
    [tensor] = tw.grpc.decode_request(message, limits=tw.Limits(**limits)).inputs
    return tensor


def values_of(tensor: tw.Tensor) -> list[Any]:
    array = tensor.as_numpy().reshape(-1)
    if tensor.datatype == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    values: list[Any] = array.tolist()
    return values


# --- datatypes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", VALUES)
@pytest.mark.parametrize("kind", ["request", "response"])
def test_raw_and_typed_contents(datatype: str, kind: str) -> None:
    raw = delimited(7 if kind == "request" else 6, reference.pack(datatype, VALUES[datatype]))
    messages = [(cases.tensor("x", datatype, (1, 3)) + raw, True)]
    if datatype in FIELDS:
        message = pb.ModelInferRequest() if kind == "request" else pb.ModelInferResponse()
        entries = message.inputs if kind == "request" else message.outputs
        entry = entries.add(name="x", datatype=datatype, shape=[1, 3])
        getattr(entry.contents, FIELDS[datatype]).extend(VALUES[datatype])
        messages.append((message.SerializeToString(), False))
    for encoded, is_raw in messages:
        tensor = DECODERS[kind](encoded, limits=RAW_BF16)["x"]
        assert (tensor.datatype, tensor.shape, tensor.binary) == (datatype, (1, 3), is_raw)
        assert repr(values_of(tensor)) == repr(VALUES[datatype])
        assert datatype == "BYTES" or tensor.as_numpy().flags.writeable != is_raw


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 64])
@pytest.mark.parametrize("is_raw", [True, False])
def test_shapes(shape: tuple[int, ...], is_raw: bool) -> None:
    n = int(np.prod(shape))
    contents = b"" if is_raw else delimited(5, packed(4, [7] * n))
    message = cases.tensor("x", "UINT8", shape, contents)
    tensor = only_tensor(message + (delimited(7, b"\7" * n) if is_raw else b""))
    assert (tensor.shape, tensor.as_numpy().tolist()) == (shape, np.full(shape, 7).tolist())
    for datatype in ("FP32", "BF16", "BYTES", "BOOL") if n == 0 else ():  # without contents
        tensor = only_tensor(cases.tensor("x", datatype, shape), bf16_as_uint16=True)
        assert tensor.as_numpy().shape == shape


PACKED = packed(2, (1, 2, 3))
TYPED = {  # the elements 1, 2, 3 in the contents of an INT8 tensor
    "packed": delimited(5, PACKED),
    "single": delimited(5, integer(2, 1), integer(2, 2), integer(2, 3)),
    "mixed": delimited(5, integer(2, 1), packed(2, (2,)), packed(2, ()), integer(2, 3)),
    "contents twice": delimited(5, packed(2, (1,))) + delimited(5, packed(2, (2, 3))),
    "contents twice, a field between": (
        delimited(5, integer(2, 1)) + integer(9, 1) + delimited(5) + delimited(5, packed(2, (2, 3)))
    ),
    "upper half of the integers": delimited(5, packed(2, (1 | 7 << 32, 2 + 2**63, 3 - 2**32))),
    "integers of 10 bytes": delimited(5, integer(2, 1, 9), integer(2, 2, 9), integer(2, 3, 9)),
    "contents of another type": integer(5, 1) + delimited(5, PACKED) + fixed64(5, 1),
    "other types": delimited(5, fixed64(2, 1), PACKED, integer(8, 1), integer(6, 1), integer(9, 1)),
}


@pytest.mark.parametrize("contents", TYPED.values(), ids=TYPED)
def test_forms_of_typed_contents(contents: bytes) -> None:
    assert values_of(only_tensor(cases.tensor("x", "INT8", (3,), contents))) == [1, 2, 3]


def test_bools_are_all_integers_but_0() -> None:
    contents = delimited(5, packed(1, (0, 1, 2, 2**32, 2**63)))
    array = only_tensor(cases.tensor("x", "BOOL", (5,), contents)).as_numpy()
    assert array.view(np.uint8).tolist() == [0, 1, 1, 1, 1]


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


@pytest.mark.parametrize("message", cases.SAME.values(), ids=cases.SAME)
@pytest.mark.parametrize("wrap", [bytes, bytearray])
def test_the_same_request(message: bytes, wrap: Callable[[bytes], Any]) -> None:
    request = tw.grpc.decode_request(wrap(message))
    assert (request.model_name, request.model_version, request.id) == ("m", None, "7")
    assert request.parameters == {"k": 5}
    assert [(t.name, t.datatype, t.shape, t.parameters) for t in request.inputs] == [
        ("x", "UINT8", (1, 2), {}),
        ("y", "BYTES", (1,), {}),
    ]
    assert [values_of(tensor) for tensor in request.inputs] == [[1, 2], [b"abc"]]
    assert request.outputs is not None
    assert [(o.name, o.binary, o.parameters) for o in request.outputs] == [("o", None, {})]


def test_message_cut_off_at_every_byte() -> None:
    for nbytes in range(1, len(cases.REQUEST)):
        with pytest.raises(tw.DecodeError):
            tw.grpc.decode_request(cases.REQUEST[:nbytes])


def test_response_in_two_parts() -> None:
    parts = cases.tensor("x"), cases.tensor("y") + delimited(3, "7") + delimited(6, b"\1\2")
    stream = delimited(2, parts[0]) + integer(2, 1) + delimited(2, parts[1], delimited(6, b"\3\4"))
    response = tw.grpc.decode_stream_response(stream)
    assert {name: values_of(response[name]) for name in response} == {"x": [1, 2], "y": [3, 4]}
    assert response.id == "7"


def test_fields_that_are_empty_or_occur_twice() -> None:
    for decode in (tw.grpc.decode_response, tw.grpc.decode_stream_response):
        response = decode(b"")
        assert (response.outputs, response.model_name, response.parameters) == ((), None, {})
    error, read = reader.read_stream_response(delimited(1) + delimited(2))
    assert error is None and read is not None
    texts = delimited(1, "m") + delimited(2, "1") + delimited(3, "7") + delimited(1, "n")
    response = tw.grpc.decode_response(texts + delimited(3))
    assert (response.model_name, response.model_version, response.id) == ("n", "1", None)
    entries = delimited(4) + delimited(4, delimited(1, "k")) + delimited(4, delimited(2, b"\x10\1"))
    assert tw.grpc.decode_response(entries).parameters == {"": 1, "k": None}


def test_bool_parameters_are_all_integers_but_0() -> None:
    """test_grpc_encode.py has parameters of all types, which it also decodes."""
    request = tw.grpc.decode_request(
        cases.INPUTS + cases.RAW + cases.parameter(4, "p", integer(1, 2**40))
    )
    assert request.parameters["p"] is True


def test_framing_parameters() -> None:
    """binary_data_size is ignored; a region without a value is like none."""
    more = cases.parameter(4, "binary_data_size", integer(2, 77))
    more += cases.parameter(4, "shared_memory_region") + cases.parameter(4, "k", integer(2, 1))
    tensor = only_tensor(cases.tensor("x", "UINT8", (2,), more) + delimited(7, b"\1\2"))
    assert tensor.parameters == {"k": 1}
    assert values_of(tensor) == [1, 2]


@pytest.mark.parametrize("value", [True, False])
def test_binary_data(value: bool) -> None:
    options = integer(1, int(value))
    output = delimited(6, delimited(1, "o"), cases.parameter(2, "binary_data", options))
    request = tw.grpc.decode_request(
        cases.INPUTS + output + cases.RAW + cases.parameter(4, "binary_data_output", options)
    )
    assert request.outputs is not None
    assert (request.outputs[0].binary, request.outputs[0].parameters) == (value, {})
    assert request.parameters == {"binary_data_output": value}


@pytest.mark.parametrize("is_first", [True, False])
def test_shared_memory(is_first: bool) -> None:
    """An input in shared memory has no raw contents, whatever its place is."""
    shared = cases.tensor("s", "FP32", (10**6,), cases.SHARED)
    other = cases.tensor("x")
    entries = shared + other if is_first else other + shared
    request = tw.grpc.decode_request(entries + delimited(7, b"\1\2"))
    assert request["s"].data is None
    assert request["s"].parameters == {"shared_memory_region": "r"}
    assert values_of(request["x"]) == [1, 2]


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


def test_bytes_of_bool_that_are_not_checked() -> None:
    message = cases.tensor("x", "BOOL") + delimited(7, b"\1\2")
    assert only_tensor(message, check_bool=False).as_numpy().view(np.uint8).tolist() == [1, 2]


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


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
def test_arguments(decode: Callable[..., Any]) -> None:
    calls: list[tuple[type[Exception], tuple[Any, ...], dict[str, Any]]] = [
        *((TypeError, (wrong,), {}) for wrong in (None, "text", 5, [1])),
        *((TypeError, (b"",), {"limits": wrong}) for wrong in (None, 5)),
        (TypeError, (b"", tw.Limits()), {}),
        *(
            (BufferError, (memory,), {})
            for memory in (np.zeros(4, np.uint8)[::2], np.zeros(4, np.int32))
        ),
    ]
    for error, arguments, options in calls:
        with pytest.raises(error):
            decode(*arguments, **options)


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
    assert_result_keeps_body_alive(PICTURE, lambda body: tw.grpc.decode_request(body)["x"].data)


def test_typed_contents_do_not_keep_the_message() -> None:
    memory = bytearray(cases.typed("x", "FP32", (2,), delimited(6, bytes(8))))
    array = only_tensor(memory).as_numpy()
    memory.append(0)
    assert array.tolist() == [0, 0]


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
    end = time.monotonic() + 0.2
    results: set[Any] = set()

    def write() -> None:
        for value in (other, first):
            for position in range(begin, begin + 20 * step, step):
                memory[position : position + len(value)] = value

    with repeating(write):
        while time.monotonic() < end:
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


@pytest.mark.parametrize("message", cases.SAME.values(), ids=cases.SAME)
def test_split(message: bytes) -> None:
    head, contents = reader.split_field(message, RAW_INPUT_CONTENTS)
    assert [bytes(content) for content in contents] == [cases.X, cases.Y]
    assert address(contents[0]) in range(address(message), address(message) + len(message))
    assert isinstance(head, bytes) and len(head) == len(message) - len(cases.RAW)
    assert reader.split_field(head, RAW_INPUT_CONTENTS) == (head, [])


@pytest.mark.parametrize("message", [cases.INPUTS, cases.RAW + b"\x80", b""])
def test_split_returns_other_messages_as_they_are(message: bytes) -> None:
    head, contents = reader.split_field(message, RAW_INPUT_CONTENTS)
    assert head is message and contents == []
