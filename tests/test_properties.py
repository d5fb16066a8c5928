"""Round trips of random values, with the independent encoder and decoder of reference.py."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorwire as tw
from fuzz import hostile
from support import reference
from support.scale import scaled
from tensorwire._codec import datatypes

DTYPES = [row.dtype for row in datatypes.DATATYPES.values() if row.dtype is not None]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
TEXT_ARRAYS = SHAPES.flatmap(
    lambda shape: hnp.arrays(object, shape, elements=st.binary(max_size=14))
)
TENSORS = st.lists(st.tuples(st.one_of(ARRAYS, TEXT_ARRAYS), st.booleans()), min_size=1, max_size=5)


def can_be_json(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "biu" or array.dtype in ("<f4", "<f8")


@settings(max_examples=scaled(300), deadline=None)
@given(TENSORS)
def test_round_trip(tensors: list[tuple[Any, bool]]) -> None:
    request = tw.InferRequest(
        tw.Tensor(f"t{i}", array, binary=binary or not can_be_json(array))
        for i, (array, binary) in enumerate(tensors)
    )
    frame = tw.encode_request(request, nonfinite="literal")
    body = bytes(frame)
    back = tw.decode_request(body, frame.header_length)
    expected = reference.decode(body, frame.header_length, "request")["tensors"]
    for (array, _), tensor, independent in zip(tensors, back.inputs, expected, strict=True):
        assert tensor.shape == array.shape == independent["shape"]
        assert repr(tensor.as_numpy().tolist()) == repr(array.tolist())
        assert repr(tensor.as_numpy().reshape(-1).tolist()) == repr(independent["values"])


@settings(max_examples=scaled(300), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=20), st.text(max_size=8)), max_size=30))
def test_bytes_round_trip(values: list[Any]) -> None:
    expected = [v.encode() if isinstance(v, str) else v for v in values]
    encoded = tw.encode_bytes(values)
    assert encoded == reference.elements(expected)
    assert tw.decode_bytes(encoded).tolist() == expected
    assert tw.decode_bytes(encoded, len(values)).tolist() == expected


# Lengths around those that Arrow stores in a view and numpy in a string, and a 16-bit limit.
LENGTHS = st.sampled_from([0, 1, 7, 8, 11, 12, 13, 15, 16, 255, 256, 65_535, 65_536])
CHARACTERS = st.characters(exclude_categories=["Cs"])  # no surrogates, which have no UTF-8 form
TRIMMED = st.text(CHARACTERS, max_size=6).map(lambda text: text.rstrip("\0"))
ELEMENTS = st.one_of(
    st.text(CHARACTERS, max_size=9), st.builds(lambda n, c: c * n, LENGTHS, CHARACTERS)
)
SOURCES: dict[str, Any] = {
    "list of str": lambda array: array.ravel().tolist(),
    "object array": lambda array: array,
    "bytes": lambda array: [text.encode() for text in array.ravel().tolist()],
    "bytearray": lambda array: [bytearray(text.encode()) for text in array.ravel().tolist()],
    "memoryview": lambda array: [memoryview(text.encode()) for text in array.ravel().tolist()],
    "StringDType": lambda array: array.astype(np.dtypes.StringDType()),
    "fortran": np.asfortranarray,
    "strided": lambda array: np.repeat(array, 2, axis=0)[::2] if array.ndim else array,
    "BytesTensor": lambda array: tw.Tensor("x", array).data,
}


@settings(max_examples=scaled(200), deadline=None)
@given(SHAPES.flatmap(lambda shape: hnp.arrays(object, shape, elements=ELEMENTS)), st.data())
def test_all_source_types_give_the_same_bytes(array: Any, data: st.DataObject) -> None:
    expected = reference.elements([text.encode() for text in array.ravel().tolist()])
    name = data.draw(st.sampled_from(sorted(SOURCES)))
    assert tw.encode_bytes(SOURCES[name](array)) == expected
    tensor = tw.decode_bytes(expected, array.size).reshape(array.shape)
    assert tensor.tolist() == tw.Tensor("x", array).as_numpy().tolist()
    strings = tensor.as_numpy(np.dtypes.StringDType())
    assert strings.tolist() == tensor.as_strings().tolist() == array.tolist()


@settings(max_examples=scaled(200), deadline=None)
@given(hnp.arrays("U6", SHAPES, elements=TRIMMED))
def test_fixed_width_arrays_lose_trailing_nuls(array: Any) -> None:
    """numpy itself does the same."""
    expected = [text.encode() for text in array.ravel().tolist()]
    assert (
        tw.encode_bytes(array) == tw.encode_bytes(array.T.copy().T) == reference.elements(expected)
    )
    raw = np.frombuffer(array.tobytes(), "S24")
    assert tw.encode_bytes(raw) == reference.elements(raw.tolist())


def outcome(decode: Any, error_class: type[Exception]) -> Any:
    """Return the flat values or the class of the error; other exceptions fail the test."""
    try:
        return decode()
    except error_class as error:
        return type(error).__name__


@settings(max_examples=scaled(500), deadline=None)
@given(st.binary(max_size=24), st.integers(0, 4))
def test_random_bytes_decode_as_by_the_reference(data: bytes, count: int) -> None:
    """Any bytes decode to the same elements as with reference.py, or both raise an error."""
    ours = outcome(lambda: tw.decode_bytes(data, count).tolist(), tw.DecodeError)
    theirs = outcome(lambda: reference.unpack("BYTES", data, count), reference.WireError)
    assert isinstance(ours, str) == isinstance(theirs, str)
    if not isinstance(ours, str):
        assert ours == theirs


@settings(max_examples=scaled(500), deadline=None)
@given(st.data())
def test_changed_byte_is_decoded_or_rejected_as_by_the_reference(data: st.DataObject) -> None:
    frame = tw.encode_request(
        tw.InferRequest([tw.Tensor("x", [b"ab", b"", b"c"]), tw.Tensor("y", [1], datatype="INT8")]),
        align=1,
    )
    body = bytearray(bytes(frame))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    ours = outcome(
        lambda: [
            tensor.as_numpy().reshape(-1).tolist()
            for tensor in tw.decode_request(body, frame.header_length).inputs
        ],
        tw.DecodeError,
    )
    theirs = outcome(
        lambda: [
            tensor["values"]
            for tensor in reference.decode(bytes(body), frame.header_length, "request")["tensors"]
        ],
        reference.WireError,
    )
    if isinstance(theirs, str):
        # The content of an unknown member is skipped, even if it is not UTF-8 (WIRE.md 3).
        assert isinstance(ours, str) or not bytes(body[: frame.header_length]).isascii()
    else:
        assert ours == theirs


# --- what the encoder returns, the decoder accepts ---

STRING_CLASSES = [hostile.Str, hostile.UnequalStr, hostile.EqualStr]
RESERVED = ["binary_data_size", "shared_memory_region", "binary_data", "binary_data_output"]
TEXTS = st.one_of(
    st.sampled_from([*RESERVED, "x", "y", "é", "", "\ud800", "a\0", "😀" * 3]), st.text(max_size=3)
)
# A text as str, and as subclasses whose comparisons, hashes and conversions are wrong.
STRINGS = st.builds(lambda kind, text: kind(text), st.sampled_from([str, *STRING_CLASSES]), TEXTS)
JSON_VALUES = st.recursive(
    st.one_of(
        STRINGS,
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.sampled_from(
            [None, True, False, hostile.Int(3), hostile.Float(0.5), hostile.Integer(7)]
        ),
        st.sampled_from([np.int8(1), np.bool_(True), np.float16(2)]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(STRINGS, inner, max_size=3),
        st.dictionaries(STRINGS, inner, max_size=3).map(hostile.Dict),
    ),
    max_leaves=6,
)
PARAMETERS = st.one_of(st.none(), st.dictionaries(STRINGS, JSON_VALUES, max_size=3))
SENT_TENSORS = st.fixed_dictionaries(
    {
        "data": st.one_of(ARRAYS, TEXT_ARRAYS, st.none()),
        "binary": st.booleans(),
        "parameters": PARAMETERS,
        "changes": PARAMETERS,  # are made after the tensor was created
    }
)
SENT_LIMITS: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            "max_header_nbytes": st.integers(0, 1000),
            "max_tensors": st.integers(0, 4),
            "max_rank": st.integers(0, 4),
            "max_name_nbytes": st.integers(0, 8),
            "max_nesting": st.integers(0, 8),
            "max_parameters": st.integers(0, 6),
            "max_elements": st.integers(0, 20),
        },
    ),
)


def plain(value: Any) -> Any:
    """Return what a reader of JSON sees of a value that was written to JSON."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in dict(value).items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(np.generic.item(value))
    if isinstance(value, float):
        return float.__add__(value, 0.0) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool) else int.__add__(value, 0)


def sent_tensor(name: str, fields: dict[str, Any]) -> tw.Tensor:
    data = fields["data"]
    shape: Any = {} if data is not None else {"datatype": "FP32", "shape": [2, 3]}
    tensor = tw.Tensor(
        name, data, parameters=fields["parameters"], binary=fields["binary"], **shape
    )
    for key, value in (fields["changes"] or {}).items():
        tensor.parameters[key] = value
    return tensor


@settings(max_examples=scaled(1000), deadline=None)
@given(st.data())
def test_decoder_accepts_what_the_encoder_returns(data: st.DataObject) -> None:
    limits = tw.Limits(bf16_as_uint16=True, check_bool=False, **data.draw(SENT_LIMITS))
    names = data.draw(st.lists(STRINGS, max_size=3))
    requested = data.draw(st.none() | st.lists(STRINGS, max_size=3))
    strings = data.draw(st.tuples(*[st.none() | STRINGS] * 3))
    parameters = data.draw(PARAMETERS)
    is_request = data.draw(st.booleans())
    members: dict[str, Any] = dict(
        zip(("id", "model_name", "model_version"), strings, strict=True), parameters=parameters
    )
    try:
        tensors = [sent_tensor(name, data.draw(SENT_TENSORS)) for name in names]
        asked = tw.InferRequest(
            tensors,
            requested
            and [
                tw.RequestedOutput(
                    name, binary=data.draw(st.sampled_from([None, True])), parameters=parameters
                )
                for name in requested
            ],
            **members,
        )
        answer = tw.InferResponse(tensors, **members)
        frame = (
            tw.encode_request(asked, limits=limits)
            if is_request
            else tw.encode_response(
                answer, asked if data.draw(st.booleans()) else None, limits=limits
            )
        )
    except tw.EncodeError as error:
        event(" ".join(re.sub("'.*'|[0-9]+", "", str(error)).split()[-4:]))
        return
    decode: Any = tw.decode_request if is_request else tw.decode_response
    decoded = decode(bytes(frame), frame.header_length, limits=limits)
    event("encoded")
    if is_request:
        sent = plain(parameters or {})
        assert repr(decoded.parameters) == repr(sent)
        assert [tensor.name for tensor in decoded] == [plain(name) for name in names]
        assert [decoded.id, decoded.model_name, decoded.model_version] == plain(list(strings))
