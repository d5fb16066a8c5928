"""BYTES from and to StringDType arrays, and the validation of UTF-8."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference
from support.bytes_elements import utf8_sequences


class MissingValue:
    """A value that numpy uses as the missing value of an array."""


STRING_DTYPES = [
    np.dtypes.StringDType(),
    np.dtypes.StringDType(coerce=False),
    np.dtypes.StringDType(na_object=None),
    np.dtypes.StringDType(na_object=np.nan),
]
LONG_AND_SHORT = ["", "a", "é" * 7, "x" * 15, "y" * 16, "z" * 300, "a\0b\0", "🜚" * 99]


@pytest.mark.parametrize("dtype", STRING_DTYPES, ids=str)
def test_encode_stringdtype_arrays(dtype: Any) -> None:
    array = np.array(LONG_AND_SHORT * 3, dtype)
    expected = [text.encode() for text in LONG_AND_SHORT * 3]
    assert tw.encode_bytes(array) == reference.elements(expected)
    assert tw.encode_bytes(array[::-2]) == reference.elements(expected[::-2])
    grid = array.reshape(4, 6).T
    assert tw.Tensor("x", grid).shape == (6, 4)
    assert tw.encode_bytes(grid) == reference.elements(
        [text.encode() for text in grid.ravel().tolist()]
    )


def test_decode_to_stringdtype() -> None:
    tensor = tw.decode_bytes(tw.encode_bytes(LONG_AND_SHORT * 3)).reshape((4, 6))
    array = tensor.as_numpy(np.dtypes.StringDType())
    assert (array.dtype, array.shape) == (np.dtypes.StringDType(), (4, 6))
    assert array.ravel().tolist() == LONG_AND_SHORT * 3
    array[0, 0] = "it is a copy"
    assert tensor[0, 0] == b""
    assert tw.encode_bytes(tensor.as_numpy(np.dtypes.StringDType())) == tensor.wire


@pytest.mark.parametrize("na_object", [None, np.nan, MissingValue()])
def test_missing_value_is_rejected(na_object: Any) -> None:
    dtype = np.dtypes.StringDType(na_object=na_object)
    array = np.array([["a", "b"], ["c", na_object]], dtype)
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("text", array)
    assert str(caught.value) == (
        "element 3 [1, 1] of tensor 'text' is a missing value, which tensors cannot have"
    )
    assert (caught.value.tensor, caught.value.element) == ("text", 3)


@pytest.mark.parametrize("n_before", [0, 1, 3, 4, 7, 8, 9, 17])
def test_utf8_validation_agrees_with_python(n_before: int) -> None:
    """At all offsets within 8 bytes, which are validated at once."""
    chooser = random.Random(n_before)
    for sequence in utf8_sequences():
        data = b"a" * n_before + sequence + b"z" * chooser.choice((0, 1, 8, 11))
        tensor = tw.decode_bytes(reference.elements([b"first", data]))
        try:
            expected = data.decode()
        except UnicodeDecodeError as error:
            with pytest.raises(tw.ElementError) as caught:
                tensor.as_numpy(np.dtypes.StringDType())
            assert (caught.value.element, caught.value.offset) == (1, 13 + error.start), data
        else:
            assert tensor.as_numpy(np.dtypes.StringDType()).tolist()[1] == expected


@pytest.mark.parametrize("sequence", ["c3", "e2 82", "f0 9f 98"])
def test_sequence_is_not_completed_by_the_next_element(sequence: str) -> None:
    """The length prefix of the next element begins with a byte that could follow."""
    tensor = tw.decode_bytes(reference.elements([b"a" + bytes.fromhex(sequence), b"b" * 0x80]))
    with pytest.raises(tw.ElementError, match="element 0 of the array is not valid UTF-8"):
        tensor.as_numpy(np.dtypes.StringDType())
    values = tw.Tensor("x", tensor, binary=False)
    with pytest.raises(tw.EncodeError, match="element 0 of input 'x' is not valid UTF-8"):
        tw.encode_request(tw.InferRequest([values]))


def test_invalid_utf8_is_reported_with_element_and_offset() -> None:
    tensor = tw.decode_bytes(reference.elements([b"fine", b"ab\xff"]))
    for convert in (tensor.as_strings, lambda: tensor.as_numpy(np.dtypes.StringDType())):
        with pytest.raises(tw.ElementError) as caught:
            convert()
        assert str(caught.value) == (
            "element 1 of the array is not valid UTF-8: invalid start byte at its byte 2 "
            "(body byte 14)"
        )
        assert (caught.value.element, caught.value.offset) == (1, 14)


def test_errors_name_the_tensor_that_is_converted() -> None:
    tensor = tw.Tensor("text", [b"a", b"\xff"])
    string = np.dtypes.StringDType()
    conversions: list[Any] = [tensor.as_strings, lambda: np.asarray(tensor, string)]
    own: list[Any] = [tensor.elements.as_strings, lambda: np.asarray(tensor.elements, string)]
    for convert in conversions:
        with pytest.raises(tw.ElementError, match="element 1 of tensor 'text' is not") as caught:
            convert()
        assert caught.value.tensor == "text"
    for convert in own:
        with pytest.raises(tw.ElementError, match="element 1 of the array is not valid UTF-8"):
            convert()
