"""Errors of the encoder: invalid tensors, messages and arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc
from support import hostile

untyped: Any = tw  # for calls that a type checker rejects
HALF = np.zeros((2, 3), np.float16)
X = tw.Tensor("x", np.zeros(1, np.uint8))
REGION = {"shared_memory_region": "r"}
Out = tw.RequestedOutput


class Own(IntEnum):
    A = 1


LARGEST_OF_FP64 = 2**1024 - 2**970 - 1  # larger ones are rounded to infinity


OF_LISTS: list[tuple[Any, str, str]] = [
    ([1.5, None], "FP16", "element 1 of tensor 'x' must be a number (FP16), not None"),
    ([None], "FP32", "element 0 of tensor 'x' must be a number (FP32), not None"),
    (["1.5"], "FP16", "must be a number (FP16), not '1.5'"),
    ([True], "BF16", "must be a number (BF16), not True"),
    ([1, 1e300], "FP16", "1e+300, which is out of range for FP16 (magnitudes up to 65504.0)"),
    ([-1e39], "BF16", "for BF16 (magnitudes up to 3.3895313892515355e+38)"),
    ([10**400], "FP16", "an integer of 1329 bits, which is out of range for FP16 (magnitudes"),
    ([10**400], "BF16", "an integer of 1329 bits, which is out of range for BF16 (magnitudes"),
    ([0, 2**64], "UINT64", "element 1 of tensor 'x' is an integer of 65 bits, which is out"),
    ([LARGEST_OF_FP64, LARGEST_OF_FP64 + 1], "FP64", "element 1 of tensor 'x' is an integer"),
    ([1, [2]], "FP16", "element 1 of tensor 'x' must be a number (FP16), not list"),
    ([1, True], "INT8", "element 1 of tensor 'x' must be an integer (INT8), not True"),
    ([1, True], "FP32", "element 1 of tensor 'x' must be a number (FP32), not True"),
    ([True, 1], "BOOL", "element 1 of tensor 'x' must be a bool (BOOL), not 1"),
    ([False, 0.0], "BOOL", "element 1 of tensor 'x' must be a bool (BOOL), not 0.0"),
    ([1, 1e39], "FP32", "element 1 of tensor 'x' is 1e+39, which is out of range for FP32 ("),
    ([1, -(10**400)], "FP64", "an integer of 1329 bits, which is out of range for FP64 (mag"),
    ([Own.A], "INT8", "element 0 of tensor 'x' must be an integer (INT8), not Own"),
    ([np.timedelta64(5, "s")], "INT8", "must be an integer (INT8), not timedelta64"),
    ([np.datetime64(5, "ns")], "FP32", "must be a number (FP32), not datetime64"),
]


# --- tensors ---


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (HALF, {"datatype": "FP32"}, "'x' has datatype FP32, but its data is FP16"),
        (HALF, {"datatype": "FLOAT"}, "'x' has an unknown datatype: 'FLOAT'; it must be one of B"),
        (HALF, {"shape": [4]}, "'x' does not match its shape: the shape is [4], but that of the "),
        (HALF, {"shape": [-1, 6]}, "'x' has a negative dimension: shape [-1, 6]"),
        (np.zeros(2, np.complex64), {}, "'x' is an array of complex64, which has no datatype"),
        (None, {}, "the data of tensor 'x' is None: pass an array, or"),
        (None, {"datatype": "FP32"}, "the data of tensor 'x' is None: pass an array, or"),
        (None, {"shape": [1]}, "the data of tensor 'x' is None: pass an array, or"),
        (HALF.view("i2"), {"datatype": "BF16"}, "'x' has datatype BF16, but its data is INT16"),
        ([1, 2], {}, "'x' is a list of numbers: pass an array, or a Tensor with datatype="),
        ((), {}, "'x' is an empty list: pass numpy.empty(0, dtype), or a Tensor with datatype="),
        ([[], []], {}, "'x' is an empty list: pass numpy.empty(0, dtype), or a Tensor with datat"),
        ([None], {}, "'x' is a list of NoneType, not of numbers, arrays, bytes or str"),
        ([HALF, HALF[0]], {}, "item 1 of tensor 'x' is FP16 [3], but item 0 is FP16 [2, 3]: the "),
        ([[HALF], [HALF.astype("f4")]], {}, "item 1 of tensor 'x' is FP32 [2, 3], but item 0 is F"),
        ([np.float32(1), np.int64(2)], {}, "item 1 of tensor 'x' is INT64 [], but item 0 is FP32"),
        ([HALF, [1, 2]], {}, "item 1 of tensor 'x' is list, but the items before it are arrays"),
        ([HALF, None], {}, "item 1 of tensor 'x' is None, but the items before it are arrays"),
        ([[HALF, HALF], [HALF]], {}, "'x' is a ragged list: item 1 has shape [1], but the items"),
        ([HALF, HALF], {"datatype": "FP32"}, "item 0 of tensor 'x' has datatype FP32, but its da"),
        ([np.ma.masked_equal([1, 2], 2)], {}, "item 0 of tensor 'x' is a masked array"),
        ([np.zeros((1,) * 64)] * 2, {}, "'x' has 65 dimensions; the limit is 64"),
        ([HALF, HALF], {"shape": [5]}, "'x' does not match its shape: the shape is [5], but that"),
        (np.zeros(2, [("a", "f4")]), {}, "'x' is an array of [('a', '<f4')], which has no dataty"),
        ([300], {"datatype": "UINT8"}, "is 300, which is out of range for UINT8 (0 to 255)"),
        ([1.5], {"datatype": "INT8"}, "must be an integer (INT8), not 1.5"),
        ([[1], [2, 3]], {"datatype": "INT8"}, "'x' is a ragged list"),
        (np.ma.masked_equal([1, 2], 2), {}, "'x' is a masked array"),
        (np.ma.masked_equal(np.array(["a", "b"], object), "b"), {}, "'x' is a masked array"),
        (["a"], {"datatype": "INT8"}, "must be an integer (INT8), not 'a'"),
        (np.array(["a"]), {"datatype": "INT8"}, "'x' has datatype INT8, but its data is BYTES"),
        *((values, {"datatype": datatype}, message) for values, datatype, message in OF_LISTS),
    ],
)
def test_invalid_tensors_are_rejected(data: Any, options: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("x", data, **options)
    assert message in str(caught.value)


def test_position_of_an_element_in_a_list_of_arrays() -> None:
    rows = [np.array(["a", "b"], object), np.array(["c", 1], object)]
    message = "element 1 of item 1 of tensor 'x' is int, not bytes or str"
    with pytest.raises(tw.EncodeError, match=message) as caught:
        tw.Tensor("x", rows)
    assert (caught.value.tensor, caught.value.element) == ("x", 3)


TOO_LARGE = "is too large to address"


@pytest.mark.parametrize(
    ("datatype", "shape", "message"),
    [
        ("FP32", [-1], "has a negative dimension: shape [-1]"),
        *(("FP32", [n], "has a negative dimension") for n in (-(2**63), -(2**63) - 1, -(2**64))),
        ("FP32", [2**63], f"{TOO_LARGE}: FP32 [9223372036854775808] exceeds 2^63 - 1 bytes"),
        ("FP32", [2, 2**70], f"{TOO_LARGE}: FP32 [2, more than 2^64] exceeds 2^63 - 1 bytes"),
        *(("FP32", shape, TOO_LARGE) for shape in (
            [2**61], [2**31, 2**31], [2**62, 2**62], [0, 2**61])),
        ("INT8", [2**63], f"{TOO_LARGE}: INT8"),
        ("BYTES", [2**59], f"{TOO_LARGE}: BYTES"),
        ("FP32", [1] * 65, "has 65 dimensions; the limit is 64"),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_sent(datatype: Any, shape: list[int], message: str) -> None:
    tensor = tw.Tensor("x", None, datatype=datatype, shape=[1], parameters=REGION)
    makers: list[Any] = [
        lambda: tw.Tensor("x", None, datatype=datatype, shape=shape, parameters=REGION),
        lambda: tensor.replace(shape=shape),
    ]
    for make in makers:
        with pytest.raises(tw.EncodeError) as caught:
            make()
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("datatype", "shape"),
    [
        ("FP32", (2**61 - 1,)),
        ("INT8", (2**31, 2**31)),
        ("INT8", (2**63 - 1,)),
        ("FP32", (0, 2**60)),
    ],
)
def test_largest_shapes(datatype: Any, shape: tuple[int, ...]) -> None:
    tensor = tw.Tensor("x", None, datatype=datatype, shape=shape, parameters=REGION)
    body = bytes(tw.encode_request(tw.InferRequest([tensor])))
    assert tw.decode_request(body)["x"].shape == shape


def test_shape_becomes_ints_and_may_differ_from_that_of_the_array() -> None:
    array = np.arange(6).reshape(2, 3)
    shapes: list[Any] = [(3, 2), [3, 2], (6,), (1, 2, 3), [True, np.int8(6)], [np.int8(1), 6]]
    for shape in shapes:
        tensor = tw.Tensor("x", array, shape=shape)
        assert tensor.tolist() == array.reshape([int(dim) for dim in shape]).tolist()
        assert {type(dim) for dim in tensor.shape} == {int}


@pytest.mark.parametrize("error", [TypeError(), TypeError(5), tw.EncodeError("own")])
def test_error_of_an_argument_is_not_hidden(error: Exception) -> None:
    class Failing:
        def __iter__(self) -> Any:
            raise error

    with pytest.raises(type(error)) as caught:
        tw.Tensor("x", HALF, shape=Failing())  # type: ignore[arg-type]
    assert caught.value is error


# --- messages ---


NO_REGION = "tensor 'x' has no data, and no shared_memory_region among its parameters"
DATA_AND = "tensor 'x' has data, but also the parameter "
REGION_AND_SIZE = "tensor 'x' has a shared_memory_region, but also the parameter binary_data_size"


def in_shared_memory(parameters: Any) -> tw.Tensor:
    return tw.Tensor("x", None, datatype="FP32", shape=[1], parameters=parameters)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tw.InferRequest([]), "a request must have at least one input"),
        (lambda: tw.InferRequest([X, X]), "input 'x' appears twice"),
        (lambda: tw.InferRequest([X, tw.Tensor("y", HALF), X]), "input 'x' appears twice"),
        (lambda: tw.InferResponse([X, X]), "output 'x' appears twice"),
        (lambda: tw.InferRequest([X], [Out("o"), "o"]), "requested output 'o' appears twice"),
        (lambda: tw.Tensor("x\0", HALF), "the name of a tensor contains a NUL: 'x\\x00'"),
        (lambda: Out("o\0"), "the name of an output contains a NUL: 'o\\x00'"),
        (lambda: in_shared_memory(None), NO_REGION),
        (lambda: in_shared_memory({"a": 1}), NO_REGION),
        (lambda: in_shared_memory({"shared_memory_region": 5}), "no shared_memory_region"),
    ],
)
def test_invalid_messages_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError) as caught:
        make()
    assert message in str(caught.value)


def test_raw_request_of_shared_memory_is_rejected() -> None:
    with pytest.raises(tw.EncodeError, match="a raw request contains the data"):
        tw.encode_raw_request(in_shared_memory(REGION))


# --- arguments ---


def test_options_with_invalid_values() -> None:
    with pytest.raises(ValueError, match="selection must be"):
        untyped.encode_response(tw.InferResponse([X]), selection="kserve")
    for align in (0, -1, 2**24 + 1, 2**64, -(2**70)):
        with pytest.raises(ValueError, match="align must be 1 to 16777216, not"):
            tw.encode_request(tw.InferRequest([X]), align=align)
    frame = tw.encode_request(tw.InferRequest([X]), align=1 << 24)
    assert frame.header_length == 1 << 24
    assert tw.decode_request(bytes(frame), frame.header_length)["x"].shape == (1,)


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


WITH_PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda p: tw.InferRequest([tw.Tensor("x", HALF, parameters=p)]),
    "output": lambda p: tw.InferRequest([X], [Out("o", parameters=p)]),
    "request": lambda p: tw.InferRequest([X], parameters=p),
    "response": lambda p: tw.InferResponse([X], parameters=p),
    "nested": lambda p: tw.InferRequest([X], parameters={"k": [p]}),
}


@pytest.mark.parametrize("kind", STRINGS)
@pytest.mark.parametrize("place", WITH_PARAMETERS)
def test_no_member_is_written_twice(kind: type[str], place: str) -> None:
    """A dict contains the key twice if the class denies that they are equal."""
    parameters = {kind("a"): 1, kind("a"): 2}
    expected: Any = nullcontext()
    if len(parameters) == 2:
        expected = pytest.raises(tw.EncodeError, match="the key 'a' appears twice")
    with expected:
        message = WITH_PARAMETERS[place](parameters)
        is_response = isinstance(message, tw.InferResponse)
        frame = (tw.encode_response if is_response else tw.encode_request)(message)
        (tw.decode_response if is_response else tw.decode_request)(
            bytes(frame), frame.header_length
        )


@pytest.mark.parametrize("kind", [str, *STRINGS])
@pytest.mark.parametrize(
    ("key", "make", "message"),
    [
        ("binary_data_size", lambda p: tw.Tensor("x", HALF, parameters=p),
         DATA_AND + "binary_data_size"),
        ("shared_memory_region", lambda p: tw.Tensor("x", ["a"], parameters=p),
         DATA_AND + "shared_memory_region"),
        ("binary_data_size", lambda p: in_shared_memory({**REGION, **p}), REGION_AND_SIZE),
        ("binary_data_output", lambda p: tw.InferRequest([X], parameters=p),
         "binary_data_output of the request must be True or False, not 'r'"),
        ("binary_data", lambda p: Out("o", parameters=p),
         "binary_data of requested output 'o' must be True or False, not str"),
    ],
)  # fmt: skip
def test_reserved_parameters_are_recognised(
    kind: type[str], key: str, make: Any, message: str
) -> None:
    with pytest.raises(tw.EncodeError, match=f"^{message}"):
        tw.InferRequest([X, make({kind(key): "r"})])


@pytest.mark.parametrize("kind", [str, *STRINGS])
def test_binary_of_a_requested_output_replaces_its_parameter(kind: type[str]) -> None:
    cases = (True, None, True), (None, None, None), (False, True, True), (1, True, True)
    for parameter, binary, sent in (*cases, (4, False, False)):
        output = Out("o", binary=binary, parameters={kind("binary_data"): parameter, "k": 1})
        frame = tw.encode_request(tw.InferRequest([X], [output]))
        (back,) = tw.decode_request(bytes(frame), frame.header_length).outputs or ()
        for found in (output, back):
            assert (found.binary, found.parameters) == (sent, {"k": 1})
