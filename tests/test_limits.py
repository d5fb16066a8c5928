"""Limits of the decoder and the encoder: at and above each limit; invalid limits; nesting."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference
from tensorwire._codec.datatypes import bf16_dtype
from tensorwire._codec.limits import UNLIMITED

REQUEST = tw.InferRequest(
    [
        tw.Tensor("aß", np.array([True, False]).reshape(2, 1, 1)),
        tw.Tensor("b", [b"", b"x", b"yz"]),
        tw.Tensor("c", [1, 2], datatype="INT8", binary=False),
        tw.Tensor("d", np.zeros(0, np.int8)),
    ],
    ["öö", "o"],
    parameters={"deep": [[["[[{"]]], "object": {"null": None}},
)
N = 448  # bytes of its header


def limits(**bounds: Any) -> tw.Limits:
    return tw.Limits(**bounds)


@pytest.mark.parametrize(
    ("name", "edge", "error", "message"),
    [
        ("max_header_nbytes", N, tw.HeaderError, f"header is {N} bytes long; the limit is {N - 1}"),
        ("max_tensors", 4, tw.HeaderError, "the message has more than 3 inputs, which is the lim"),
        ("max_rank", 3, tw.LayoutError, "input 'aß' has 3 dimensions; the limit is 2"),
        ("max_nesting", 5, tw.HeaderError, "nested too deeply.*; the limit is 4"),
        ("max_name_nbytes", 4, tw.HeaderError, "name of output 'öö' is 4 bytes long; the limit is"),
        ("max_parameters", 6, tw.HeaderError, "more than 5 values, which is the limit"),
        ("max_elements", 7, tw.LayoutError, "has 7 elements up to input 'c'; the limit is 6"),
    ],
)
def test_value_at_and_above_the_limit(
    name: str, edge: int, error: type[tw.DecodeError], message: str
) -> None:
    frame = tw.encode_request(REQUEST)
    for value in (edge, edge + 1):
        bounds = limits(**{name: value})
        assert bytes(tw.encode_request(REQUEST, limits=bounds)) == bytes(frame)
        assert len(tw.decode_request(bytes(frame), N, limits=bounds)) == 4
    below = limits(**{name: edge - 1})
    with pytest.raises(tw.EncodeError, match=message) as encoding:
        tw.encode_request(REQUEST, limits=below)
    with pytest.raises(error, match=message) as decoding:
        tw.decode_request(bytes(frame), N, limits=below)
    for caught in (encoding.value, decoding.value):
        assert (caught.expected, caught.actual) == (edge - 1, edge)


def test_limits_apply_to_responses() -> None:
    body, n = reference.response([reference.entry("x", "INT8", [200], list(range(100)) * 2)])
    bounds: dict[str, Any]
    for bounds, message in (
        ({"max_header_nbytes": 50}, "the JSON header is [0-9]+ bytes long; the limit is 50"),
        ({"max_tensors": 0}, "the message has more than 0 outputs"),
        ({"max_rank": 0}, "output 'x' has 1 dimension; the limit is 0"),
        ({"max_elements": 199}, "the message has 200 elements up to output 'x'; the limit is 199"),
    ):
        with pytest.raises(tw.DecodeError, match=message):
            tw.decode_response(body, n, limits=limits(**bounds))


@pytest.mark.parametrize("value", [1, np.int8(1), np.float32(1), np.bool_(True)])
def test_each_value_counts_once_when_encoding(value: Any) -> None:
    tensor = tw.Tensor("x", np.zeros(1), parameters={"p": [value] * 3})
    request = tw.InferRequest([tensor])
    tw.encode_request(request, limits=tw.Limits(max_parameters=4))
    with pytest.raises(tw.EncodeError, match="more than 3 values"):
        tw.encode_request(request, limits=tw.Limits(max_parameters=3))


def test_binary_data_of_requested_outputs_is_no_parameter() -> None:
    requested = [tw.RequestedOutput(str(i), binary=True) for i in range(5)]
    request = tw.InferRequest([tw.Tensor("x", np.zeros(1))], requested)
    bounds = tw.Limits(max_parameters=0)
    frame = tw.encode_request(request, limits=bounds)
    decoded = tw.decode_request(bytes(frame), frame.header_length, limits=bounds)
    assert [output.binary for output in decoded.outputs or []] == [True] * 5


@pytest.mark.parametrize(
    ("make", "message", "expected", "actual"),
    [
        (lambda: ["n" * 100_000], "is 100000 bytes long; the limit is 4096", 4096, 100_000),
        (lambda: ["😀" * 1025], "is 4100 bytes long; the limit is 4096", 4096, 4100),
        (lambda: map(str, range(5000)), "the message has more than 4096 ", 4096, 4097),
        (lambda: ["n" * 4096, "😀" * 1024, *map(str, range(4094))], None, None, None),
    ],
    ids=["name", "characters", "tensors", "at the limits"],
)
@pytest.mark.parametrize("place", ["inputs", "requested outputs", "outputs"])
def test_default_limits_of_the_encoder_and_the_decoder(
    place: str, make: Any, message: str | None, expected: int | None, actual: int | None
) -> None:
    names = list(make())
    sent: Any = tw.InferRequest([tw.Tensor("x", np.zeros(1))], names)
    encode: Any = tw.encode_response if place == "outputs" else tw.encode_request
    decode: Any = tw.decode_response if place == "outputs" else tw.decode_request
    if place != "requested outputs":
        kind: Any = tw.InferResponse if place == "outputs" else tw.InferRequest
        sent = kind([tw.Tensor(name, np.zeros(1, np.int8)) for name in names])
    if message is None:
        frame = encode(sent)
        decode(bytes(frame), frame.header_length)
        return
    with pytest.raises(tw.EncodeError, match=message) as caught:
        encode(sent)
    assert (caught.value.expected, caught.value.actual) == (expected, actual)
    frame = encode(sent, limits=UNLIMITED)
    with pytest.raises(tw.HeaderError, match=message):
        decode(bytes(frame), frame.header_length)
    assert decode(bytes(frame), frame.header_length, limits=UNLIMITED)


@pytest.mark.thread_unsafe(reason="it changes the interpreter")
def test_integers_of_more_digits_than_decoders_read() -> None:
    """Python's own limit, which applies when text is converted, can be disabled."""

    def request(number: int) -> tw.InferRequest:
        return tw.InferRequest([tw.Tensor("x", [b"a"])], parameters={"n": number})

    before = sys.get_int_max_str_digits()
    try:
        for max_digits in (before, 0):
            sys.set_int_max_str_digits(max_digits)
            for number in (10**4300 - 1, -(10**4299)):
                frame = tw.encode_request(request(number))
                back = tw.decode_request(bytes(frame), frame.header_length)
                assert back.parameters == {"n": number}
            for number in (10**4301 - 1, -(10**4300)):
                with pytest.raises(tw.EncodeError, match=r"'n' of .* of 1428\d bits; the limit"):
                    request(number)
        sys.set_int_max_str_digits(640)
        with pytest.raises(tw.EncodeError, match=r"'n' .* 2127 bits, which Python is set not to"):
            tw.encode_request(request(10**640))
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("name", ["a", "\x80", "\u07ff", "\u0800", "\uffff", "\U00010000"])
def test_max_name_nbytes_counts_utf8(name: str) -> None:
    n = len(name.encode())
    for text in (name, json.dumps(name)[1:-1]):  # as it is, and escaped
        tensor = f'{{"name":"{text}","shape":[1],"datatype":"INT8","data":[1]}}'
        body = f'{{"inputs":[{tensor}]}}'.encode()
        assert tw.decode_request(body, limits=tw.Limits(max_name_nbytes=n)).inputs[0].name == name
        with pytest.raises(tw.HeaderError, match=f"is {n} bytes? long; the limit is {n - 1}$"):
            tw.decode_request(body, limits=tw.Limits(max_name_nbytes=n - 1))


# --- elements ---


@pytest.mark.parametrize("datatype", ["INT8", "BYTES"])
def test_max_elements_of_a_raw_request(datatype: Any) -> None:
    spec = tw.TensorSpec("x", datatype, [1] if datatype == "BYTES" else [-1])
    (body, n) = (b"text", 1) if datatype == "BYTES" else (b"text", 4)
    assert tw.decode_request(body, 0, raw_input=spec, limits=tw.Limits(max_elements=n)).inputs
    with pytest.raises(
        tw.LayoutError, match=f"has {n} elements? up to input 'x'; the limit is {n - 1}$"
    ):
        tw.decode_request(body, 0, raw_input=spec, limits=tw.Limits(max_elements=n - 1))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([2**60], "1152921504606846976 elements up to"),
        ([2**62, 2**62], "too large to address"),
        ([1] * 64, "1 element up to"),
        ([5, -2], "negative dimension"),
    ],
    ids=str,
)
def test_max_elements_in_shared_memory(shape: list[int], message: str) -> None:
    """The elements are counted from the shape, because the body has no bytes of them."""
    region = {"shared_memory_region": "r"}
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": region}
    body = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(tw.LayoutError, match=message):
        tw.decode_request(body, limits=tw.Limits(max_elements=0))


def test_elements_of_several_tensors_are_not_limited_by_default() -> None:
    region = {"shared_memory_region": "r"}
    large = [
        tw.Tensor(name, None, datatype="INT8", shape=[2**63 - 1], parameters=region)
        for name in "abc"
    ]
    body = bytes(tw.encode_request(tw.InferRequest(large)))
    assert tw.decode_request(body)["c"].shape == (2**63 - 1,)
    few = tw.Limits(max_elements=2**63 - 2)
    with pytest.raises(tw.EncodeError, match="up to input 'a'; the limit is 9223372036854775806"):
        tw.encode_request(tw.InferRequest(large), limits=few)
    with pytest.raises(tw.LayoutError, match="up to input 'a'; the limit is 9223372036854775806"):
        tw.decode_request(body, limits=few)


# --- nesting ---


HEAD = '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[%s]}],'
NO_BRACKETS = r"\"[{" * 300
IN_SEQUENCE = ["[" + "[],[1]," * 200 + "{}]", "[" + '{},{"a":1},' * 200 + "[]]"]
ROWS = ",".join(["[1]"] * 900)


@pytest.mark.parametrize(
    "text",
    [
        HEAD % 1 + f'"id":"{"[{" * 300}","z":{{"{NO_BRACKETS}":[]}}}}',
        *(HEAD % 1 + f'"z":{value}}}' for value in IN_SEQUENCE),
        *(HEAD % 1 + f'"parameters":{{"p":{value}}}}}' for value in IN_SEQUENCE),
        *(HEAD % "NaN" + f'"z":{value}}}' for value in IN_SEQUENCE),
        f'{{"inputs":[{{"name":"x","shape":[900,1],"datatype":"INT8","data":[{ROWS}]}}]}}',
        f'{{"inputs":[{{"data":[{ROWS}],"name":"x","shape":[900],"datatype":"INT8"}}]}}',
    ],
    ids=range(9),
)
def test_brackets_that_do_not_nest(text: str) -> None:
    """Brackets in strings and in sequence do not count."""
    assert len(tw.decode_request(text.encode()).inputs) == 1


# --- conversions that are much larger than the received bytes ---


def test_conversion_to_s_with_one_long_element() -> None:
    """The array may take 64 MiB, or 64 times the received bytes if that is more."""

    def as_s(n_elements: int, width: int) -> Any:
        elements = reference.elements([b"x" * width] + [b"y"] * (n_elements - 1))
        return tw.decode_bytes(elements).as_numpy("S")

    assert as_s(65536, 1024).dtype == np.dtype("S1024")  # 64 MiB
    with pytest.raises(tw.ElementError) as caught:
        as_s(65536, 1025)
    assert str(caught.value) == (
        "element 0 of the array is too long for a numpy S array: all 65536 elements would have its "
        "width of 1025 bytes"
    )
    assert (caught.value.element, caught.value.actual) == (0, 1025)
    assert as_s(64, 2 << 20).nbytes == 128 << 20  # 64 times 2 MiB, and less than 64 times the wire
    with pytest.raises(tw.ElementError):
        as_s(65, 2 << 20)


# --- check_bool and bf16_as_uint16 ---

BF16, N_BF16 = reference.request([reference.entry("b", "BF16", [1], [1.0])])


def test_bf16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    bf16_dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    try:
        with pytest.raises(tw.DecodeError, match="requires the ml_dtypes package") as caught:
            tw.decode_request(BF16, N_BF16)
        assert (type(caught.value), caught.value.tensor) == (tw.DecodeError, "b")
        with pytest.raises(tw.EncodeError, match="requires the ml_dtypes package"):
            tw.Tensor("x", [1.5], datatype="BF16")
    finally:
        bf16_dtype.cache_clear()


# --- Limits itself ---


def test_limits_are_values() -> None:
    assert repr(tw.Limits()) == "Limits()"
    assert tw.Limits() == tw.Limits(max_nesting=128) != "Limits()"
    names = "header_nbytes", "tensors", "rank", "name_nbytes", "nesting", "parameters", "elements"
    changed: dict[str, Any] = {f"max_{name}": i for i, name in enumerate(names)}
    changed |= {"check_bool": False, "bf16_as_uint16": True}
    limits, shown = tw.Limits(**changed), ", ".join(f"{k}={v}" for k, v in changed.items())
    assert repr(limits) == f"Limits({shown})"
    for same in (tw.Limits(**changed), pickle.loads(pickle.dumps(limits))):
        assert (same, hash(same)) == (limits, hash(limits))
        assert {name: getattr(same, name) for name in changed} == changed
    for name in changed:
        assert tw.Limits(**{k: v for k, v in changed.items() if k != name}) != limits
