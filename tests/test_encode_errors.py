"""Errors of the encoder: invalid tensors, messages and arguments."""

from __future__ import annotations

from contextlib import nullcontext
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from fuzz import hostile

untyped: Any = tw  # for calls that a type checker rejects
HALF = np.zeros((2, 3), np.float16)
X = tw.Tensor("x", np.zeros(1, np.uint8))


# --- tensors ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tw.Tensor("x", HALF, datatype="FP32"),
            "'x' has datatype FP32, but its data is FP16",
        ),
        (
            lambda: untyped.Tensor("x", HALF, datatype="FLOAT"),
            "'x' has an unknown datatype: 'FLOAT'; it must be one of BOOL, UINT8, ",
        ),
        (
            lambda: tw.Tensor("x", HALF, shape=[4]),
            "'x' does not match its shape: the shape is [4], but that of the data is [2, 3]",
        ),
        (
            lambda: tw.Tensor("x", HALF, shape=[-1, 6]),
            "'x' has a negative dimension: shape [-1, 6]",
        ),
        (
            lambda: tw.Tensor("x", np.zeros(2, np.complex64)),
            "'x' is an array of complex64, which has no datatype",
        ),
        (lambda: tw.Tensor("x", None), "'x' has no data: a tensor in shared memory requires"),
        (lambda: tw.Tensor("x", None, datatype="FP32"), "'x' has no data: a tensor in shared"),
        (lambda: tw.Tensor("x", None, shape=[1]), "'x' has no data: a tensor in shared memory"),
        (
            lambda: tw.Tensor("x", HALF.view(np.int16), datatype="BF16"),
            "'x' has datatype BF16, but its data is INT16",
        ),
        (
            lambda: tw.Tensor("x", [1, 2]),
            "'x' is a list of numbers: pass an array, or a Tensor with datatype=",
        ),
        (
            lambda: tw.Tensor("x", [300], datatype="UINT8"),
            "is 300, which is out of range for UINT8 (0 to 255)",
        ),
        (lambda: tw.Tensor("x", [1.5], datatype="INT8"), "must be an integer (INT8), not 1.5"),
        (lambda: tw.Tensor("x", [[1], [2, 3]], datatype="INT8"), "'x' is a ragged list"),
        (lambda: tw.Tensor("x\0", HALF), "contains a NUL"),
        (lambda: tw.Tensor("x", np.ma.masked_equal([1, 2], 2)), "'x' is a masked array"),
        (lambda: tw.Tensor("x", ["a"], datatype="INT8"), "must be an integer (INT8), not 'a'"),
        (
            lambda: tw.Tensor("x", np.array(["a"]), datatype="INT8"),
            "'x' has datatype INT8, but its data is BYTES",
        ),
    ],
)
def test_invalid_tensors_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize("data", ["text", b"bytes", 5, object(), {1: 2}])
def test_data_of_wrong_type_is_rejected(data: Any) -> None:
    with pytest.raises(TypeError, match="the data of tensor 'x' must be an array, a list or"):
        tw.Tensor("x", data)


class Own(IntEnum):
    A = 1


MAX_INTEGER_OF_FP64 = 2**1024 - 2**970 - 1  # larger ones are rounded to infinity


@pytest.mark.parametrize(
    ("values", "datatype", "message"),
    [
        ([1.5, None], "FP16", "element 1 of tensor 'x' must be a number (FP16), not None"),
        ([None], "FP32", "element 0 of tensor 'x' must be a number (FP32), not None"),
        (["1.5"], "FP16", "must be a number (FP16), not '1.5'"),
        ([True], "BF16", "must be a number (BF16), not True"),
        (
            [1, 1e300],
            "FP16",
            "is 1e+300, which is out of range for FP16 (magnitudes up to 65504.0)",
        ),
        ([-1e39], "BF16", "for BF16 (magnitudes up to 3.3895313892515355e+38)"),
        (
            [10**400],
            "FP16",
            "is an integer of 1329 bits, which is out of range for FP16 (magnitudes",
        ),
        (
            [10**400],
            "BF16",
            "is an integer of 1329 bits, which is out of range for BF16 (magnitudes",
        ),
        (
            [-128, 127, 128],
            "INT8",
            "element 2 of tensor 'x' is 128, which is out of range for INT8",
        ),
        ([0, 2**64], "UINT64", "element 1 of tensor 'x' is an integer of 65 bits, which is out"),
        (
            [MAX_INTEGER_OF_FP64, MAX_INTEGER_OF_FP64 + 1],
            "FP64",
            "element 1 of tensor 'x' is an in",
        ),
        ([1, [2]], "FP16", "element 1 of tensor 'x' must be a number (FP16), not list"),
        ([1, True], "INT8", "element 1 of tensor 'x' must be an integer (INT8), not True"),
        ([1, True], "FP32", "element 1 of tensor 'x' must be a number (FP32), not True"),
        ([True, 1], "BOOL", "element 1 of tensor 'x' must be a bool (BOOL), not 1"),
        ([False, 0.0], "BOOL", "element 1 of tensor 'x' must be a bool (BOOL), not 0.0"),
        (
            [1, 1e39],
            "FP32",
            "element 1 of tensor 'x' is 1e+39, which is out of range for FP32 (mag",
        ),
        ([1, -(10**400)], "FP64", "an integer of 1329 bits, which is out of range for FP64 (mag"),
        (
            [Own.A],
            "INT8",
            "element 0 of tensor 'x' must be an integer (INT8), not Own",
        ),
        ([np.timedelta64(5, "s")], "INT8", "must be an integer (INT8), not timedelta64"),
        ([np.datetime64(5, "ns")], "FP32", "must be a number (FP32), not datetime64"),
        ([np.zeros(2), np.ones(2)], "FP32", "element 0 of tensor 'x' must be a number (FP32)"),
    ],
)
def test_lists_of_other_objects_are_rejected(values: Any, datatype: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("x", values, datatype=datatype)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([-1], "has a negative dimension: shape [-1]"),
        ([-(2**63)], "has a negative dimension"),
        ([-(2**63) - 1], "has a negative dimension"),
        ([-(2**64)], "has a negative dimension"),
        ([2**63], "is too large to address: FP32 [9223372036854775808] exceeds 2^63 - 1 bytes"),
        ([2**64], "is too large to address"),
        ([2**61], "is too large to address"),
        ([2**31, 2**31], "is too large to address"),
        ([0, 2**61], "is too large to address"),
        ([1] * 65, "has 65 dimensions; the limit is 64"),
    ],
)
def test_shapes_that_cannot_be_sent(shape: list[int], message: str) -> None:
    region = {"shared_memory_region": "r"}
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("x", None, datatype="FP32", shape=shape, parameters=region)
    assert message in str(caught.value)
    assert tw.Tensor("x", None, datatype="INT8", shape=[2**31, 2**31], parameters=region).shape


def test_shape_becomes_ints() -> None:
    shapes: list[Any] = [[True, np.int8(2)], [True, 2], [np.int8(1), 2]]
    for shape in shapes:
        tensor = tw.Tensor("x", np.zeros(2), shape=shape)
        assert [type(dim) for dim in tensor.shape] == [int, int]


def test_shape_may_differ_from_that_of_the_array() -> None:
    array = np.arange(6).reshape(2, 3)
    for shape in [(3, 2), [3, 2], (6,), (1, 2, 3)]:
        assert tw.Tensor("x", array, shape=shape).tolist() == array.reshape(shape).tolist()


@pytest.mark.parametrize("error", [TypeError(), TypeError(5), tw.EncodeError("own")])
def test_error_of_an_argument_is_not_hidden(error: Exception) -> None:
    class Failing:
        def __iter__(self) -> Any:
            raise error

    with pytest.raises(type(error)) as caught:
        tw.Tensor("x", HALF, shape=Failing())  # type: ignore[arg-type]
    assert caught.value is error


def test_more_dimensions_than_numpy_supports() -> None:
    with pytest.raises(tw.EncodeError, match="has 65 dimensions; the limit is 64"):
        tw.Tensor("x", [b"a"], shape=[1] * 65)


# --- messages ---


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (lambda: [], "a request has at least one input"),
        (lambda: [X, X], "input 'x' appears twice"),
        (lambda: [X, tw.Tensor("y", HALF), X], "input 'x' appears twice"),
        (
            lambda: [tw.Tensor("x", HALF, parameters={"binary_data_size": 12})],
            "tensor 'x' has data, but also the parameter binary_data_size",
        ),
        (
            lambda: [tw.Tensor("x", ["a"], parameters={"shared_memory_region": "r"})],
            "tensor 'x' has data, but also the parameter shared_memory_region",
        ),
        (
            lambda: [tw.Tensor("x", None, datatype="FP32", shape=[1])],
            "tensor 'x' has no data, and no shared_memory_region among its parameters",
        ),
        (
            lambda: [tw.Tensor("x", None, datatype="FP32", shape=[1], parameters={"a": 1})],
            "tensor 'x' has no data, and no shared_memory_region among its parameters",
        ),
        (lambda: [in_shared_memory(shared_memory_region=5)], "no shared_memory_region"),
        (
            lambda: [in_shared_memory(shared_memory_region="r", binary_data_size=4)],
            "tensor 'x' has a shared_memory_region, but also the parameter binary_data_size",
        ),
        (
            lambda: [tw.Tensor("\ud800", HALF)],
            "the name of a tensor has a lone surrogate at character 0",
        ),
    ],
)
def test_invalid_requests_are_rejected(tensors: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError) as caught:
        tw.InferRequest(tensors())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        tw.RequestedOutput,
        lambda text: tw.InferRequest([X], id=text),
        lambda text: tw.InferRequest([X], model_name=text),
        lambda text: tw.InferResponse([X], model_version=text),
        lambda text: tw.Tensor("x", HALF, parameters={text: 1}),
        lambda text: tw.Tensor("x", HALF, parameters={"k": text}),
        lambda text: tw.InferRequest([X], parameters={"k": [{"a": text}]}),
        lambda text: tw.InferRequest([X], parameters={"k": [{text: 1}]}),
    ],
)
def test_lone_surrogates_are_rejected(make: Any) -> None:
    with pytest.raises(tw.EncodeError, match="has a lone surrogate at character 1, which UTF-8"):
        make("é\udc00")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (object(), TypeError, "'k' of .* contains an object of type object, which JSON"),
        ([{"a": {5}}], TypeError, "parameter 'k' of .* contains an object of type set, which JSON"),
        (
            {5: 1},
            TypeError,
            "keys of a JSON object must be str, parameter 'k' of .* contains one of type int",
        ),
        (b"bytes", TypeError, "parameter 'k' of .* contains an object of type bytes"),
        (np.timedelta64(5, "s"), TypeError, "'k' of .* contains an object of type timedelta64"),
        pytest.param(
            10**4300,
            tw.EncodeError,
            "parameter 'k' of .* contains an integer of 14285 bits; the limit is 4300",
            id="int",
        ),
        pytest.param([-(10**4300)], tw.EncodeError, "an integer of 14285 bits", id="item"),
    ],
)
def test_parameters_that_json_cannot_represent(value: Any, error: Any, message: str) -> None:
    for make in (
        lambda p: tw.Tensor("x", HALF, parameters=p),
        lambda p: tw.RequestedOutput("y", parameters=p),
        lambda p: tw.InferRequest([X], parameters=p),
        lambda p: tw.InferResponse([X], parameters=p),
    ):
        with pytest.raises(error, match=message):
            make({"k": value})


def test_nesting_of_parameters_is_limited() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(
        tw.EncodeError, match="parameter 'k' of the message is nested too deeply"
    ) as caught:
        tw.InferRequest([X], parameters={"k": value})
    assert (caught.value.expected, caught.value.actual) == (1000, 1001)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tw.RequestedOutput("o\0"), "the name of an output contains a NUL: 'o\\x00'"),
        (
            lambda: tw.RequestedOutput("o", parameters={"binary_data": 1}),
            "binary_data of requested output 'o' must be True or False, not int",
        ),
        (
            lambda: tw.InferRequest([X], [tw.RequestedOutput("o"), "o"]),
            "requested output 'o' appears twice",
        ),
        (
            lambda: tw.InferRequest([X], parameters={"binary_data_output": "yes"}),
            "binary_data_output of the request must be True or False, not 'yes'",
        ),
        (lambda: tw.InferResponse([X, X]), "output 'x' appears twice"),
    ],
)
def test_invalid_outputs_and_parameters_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError) as caught:
        make()
    assert message in str(caught.value)


def in_shared_memory(**parameters: Any) -> tw.Tensor:
    return tw.Tensor("x", None, datatype="FP32", shape=[1], parameters=parameters)


def test_raw_request_of_shared_memory_is_rejected() -> None:
    with pytest.raises(tw.EncodeError, match="a raw request contains the data"):
        tw.encode_raw_request(in_shared_memory(shared_memory_region="r"))


# --- arguments ---


def test_arguments_of_wrong_python_types() -> None:
    for call in (tw.encode_request, tw.encode_response):
        with pytest.raises(TypeError):
            call("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tw.encode_request(tw.InferResponse([X]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="selection must be"):
        tw.encode_response(tw.InferResponse([X]), selection="kserve")  # type: ignore[arg-type]
    for align in (0, -1, 2**24 + 1, 2**64):
        with pytest.raises(ValueError, match="align must be 1 to"):
            tw.encode_request(tw.InferRequest([X]), align=align)


@pytest.mark.parametrize(
    "make",
    [
        lambda: untyped.Tensor("x", HALF, shape=[2.0, 3.0]),
        lambda: untyped.Tensor("x", HALF, shape="23"),
        lambda: untyped.Tensor("x", HALF, binary="no"),
        lambda: untyped.Tensor("x", HALF, binary=0),
        lambda: untyped.Tensor("x", HALF, binary=1),
        lambda: untyped.Tensor("x", HALF, parameters="ab"),
        lambda: untyped.RequestedOutput("o", binary="yes"),
        lambda: untyped.TensorSpec("x", "FP32", [2.7]),
        lambda: untyped.TensorSpec("x", "FP32", [2], batching="no"),
        lambda: untyped.InferRequest(["x"]),
        lambda: untyped.InferRequest([X], [5]),
        lambda: untyped.InferRequest([X], "o"),
        lambda: untyped.InferResponse([X, None]),
    ],
)
def test_encoder_arguments_of_wrong_types(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


# --- strings whose comparisons, hashes and conversions are wrong ---

STRINGS = [hostile.Str, hostile.UnequalStr, hostile.EqualStr]


@pytest.mark.parametrize("kind", STRINGS)
def test_strings_of_messages_are_exact(kind: type[str]) -> None:
    """Constructors use the characters of a subclass of str, not its methods."""
    parameters = {kind("key"): kind("value")}
    tensor = tw.Tensor(kind("x"), HALF, parameters=parameters)
    output = tw.RequestedOutput(kind("y"), parameters=parameters)
    texts = {"id": kind("i"), "model_name": kind("m"), "model_version": kind("v")}
    messages: list[Any] = [
        tw.InferRequest([tensor], [output], parameters=parameters, **texts),
        tw.InferResponse([tensor], parameters=parameters, **texts),
    ]
    for named in (tensor, output, tw.TensorSpec(kind("s"), "FP16", [1])):
        assert type(named.name) is str
    for message in messages:
        found = [message.id, message.model_name, message.model_version]
        assert [(type(text), text) for text in found] == [(str, "i"), (str, "m"), (str, "v")]
        assert message[kind("x")] is tensor
        assert kind("x") in message
    items: list[Any] = [tensor, output, *messages]
    for item in items:
        ((key, value),) = item.parameters.items()
        assert (type(key), key, type(value), value) == (str, "key", str, "value")
    frame = tw.encode_request(messages[0])
    decoded = tw.decode_request(bytes(frame), frame.header_length)
    assert decoded.outputs is not None
    assert (decoded.id, decoded.inputs[0].name, decoded.outputs[0].name) == ("i", "x", "y")


def twice(kind: type[str], key: str) -> dict[Any, Any]:
    """Return a dict that contains the key twice if `kind` denies that they are equal."""
    return {kind(key): 1, kind(key): 2}


@pytest.mark.parametrize("kind", STRINGS)
@pytest.mark.parametrize("place", ["tensor", "output", "request", "response", "nested"])
def test_no_member_is_written_twice(kind: type[str], place: str) -> None:
    parameters: dict[str, Any] = {kind("a"): 1, kind("a"): 2}
    is_twice = len(parameters) == 2
    if place == "nested":
        parameters = {"k": [parameters]}
    given = {place: parameters}
    with (
        pytest.raises(tw.EncodeError, match="the key 'a' appears twice")
        if is_twice
        else nullcontext()
    ):
        tensor = tw.Tensor("x", HALF, parameters=given.get("tensor"))
        output = tw.RequestedOutput("o", parameters=given.get("output"))
        request = tw.InferRequest(
            [tensor], [output], parameters=given.get("request", given.get("nested"))
        )
        response = tw.InferResponse([tensor], parameters=given.get("response"))
        frame = tw.encode_request(request)
        tw.decode_request(bytes(frame), frame.header_length)
        frame = tw.encode_response(response)
        tw.decode_response(bytes(frame), frame.header_length)


@pytest.mark.parametrize("kind", STRINGS)
@pytest.mark.parametrize(
    ("key", "make", "message"),
    [
        (
            "binary_data_size",
            lambda p: tw.InferRequest([tw.Tensor("x", HALF, parameters=p)]),
            "tensor 'x' has data, but also the parameter binary_data_size",
        ),
        (
            "shared_memory_region",
            lambda p: tw.InferRequest([tw.Tensor("x", HALF, parameters=p)]),
            "tensor 'x' has data, but also the parameter shared_memory_region",
        ),
        (
            "binary_data_size",
            lambda p: tw.InferRequest([in_shared_memory(shared_memory_region="r", **p)]),
            "tensor 'x' has a shared_memory_region, but also the parameter binary_data_size",
        ),
        (
            "binary_data_output",
            lambda p: tw.InferRequest([X], parameters=p),
            "binary_data_output of the request must be True or False, not 'r'",
        ),
        (
            "binary_data",
            lambda p: tw.InferRequest([X], [tw.RequestedOutput("o", parameters=p)]),
            "binary_data of requested output 'o' must be True or False, not str",
        ),
    ],
)
def test_reserved_parameters_are_recognised(
    kind: type[str], key: str, make: Any, message: str
) -> None:
    with pytest.raises(tw.EncodeError, match=message):
        make({kind(key): "r"})


def test_binary_of_a_requested_output_replaces_its_parameter() -> None:
    for kind in STRINGS:
        output = tw.RequestedOutput("o", binary=True, parameters={kind("binary_data"): 1})
        frame = tw.encode_request(tw.InferRequest([X], [output]))
        back = tw.decode_request(bytes(frame), frame.header_length)
        assert back.outputs is not None
        assert (back.outputs[0].binary, back.outputs[0].parameters) == (True, {})
