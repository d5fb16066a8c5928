"""Round trips of random values, with the independent encoder and decoder of reference.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorwire as tw
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
