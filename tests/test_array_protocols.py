"""Which protocol of an object is used for the data of a Tensor, and images, which have several."""

from __future__ import annotations

import array
import ctypes
import mmap
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tensorwire as tw
from support.memory import address
from support.requirements import optional
from tensorwire._codec.messages.convert import CONVERSIONS

Image = optional("PIL.Image")
pa = optional("pyarrow")

# --- images ---

MODES = [
    *("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB"),
    *("HSV", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"),
]


def image_of(mode: str, size: tuple[int, int] = (5, 3)) -> Any:
    """Return an image whose pixels differ, with values that need all bits."""
    image = Image.new(mode, size)
    n_bytes = len(image.tobytes())
    image.frombytes(bytes(i * 37 % 251 for i in range(n_bytes)))
    return image


@pytest.mark.parametrize("mode", MODES)
def test_image_is_the_array_of_numpy(mode: str) -> None:
    image = image_of(mode)
    expected = np.asarray(image)
    if mode == "1":  # numpy reads bytes of 0 and 255 as bool
        expected = expected.view(np.uint8) != 0
    assert expected.shape[:2] == (3, 5)
    tensor = tw.Tensor("x", image)
    assert np.array_equal(tensor.as_numpy(), expected, equal_nan=mode == "F")
    assert tensor.datatype == tw.Tensor("x", expected).datatype
    assert tw.Tensor("x", image, datatype=tensor.datatype).shape == expected.shape


def test_large_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has several blocks of memory in Pillow. Its pixels are copied once."""
    image = Image.new("RGB", (3000, 3000), (1, 2, 3))
    image.putpixel((2999, 2998), (4, 5, 6))
    expected = np.asarray(image)
    tobytes = Mock(side_effect=image.tobytes)
    monkeypatch.setattr(image, "tobytes", tobytes)
    tensor = tw.Tensor("x", image)
    assert tobytes.call_count == 1
    assert (tensor.datatype, tensor.shape) == ("UINT8", (3000, 3000, 3))
    assert np.array_equal(tensor.as_numpy(), expected)


# --- which protocol is used ---


def test_manual_and_docstring_have_the_table() -> None:
    rows = [f"| {i} | {row.accepted} | {row.converted} |" for i, row in enumerate(CONVERSIONS, 1)]
    page = Path(__file__).parents[1] / "docs" / "guide" / "arrays.md"
    assert "\n".join(rows) in page.read_text()
    items = [f"{i}. {row.accepted}: {row.converted}." for i, row in enumerate(CONVERSIONS, 1)]
    docstring = " ".join((tw.Tensor.__doc__ or "").split())
    assert " ".join(items).replace("`", "``") in docstring


NUMBERS = np.array([1.5, 2.5, 3.5], np.float32)


class Exporter:
    """Exports another array to Arrow, which must not be used if a subclass describes memory."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return pa.array([7, 8]).__arrow_c_array__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.chunked_array([[7], [8]]).__arrow_c_stream__()


class WithInterface(Exporter):
    __array_interface__ = NUMBERS.__array_interface__


class WithStruct(Exporter):
    @property
    def __array_struct__(self) -> Any:
        return NUMBERS.__array_struct__


class Delegates(Exporter):
    """A wrapper, for example of an image that is opened later."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__array_"):
            raise AttributeError(name)
        return getattr(NUMBERS, name)


class WithDtype(Exporter):
    """A column of pandas with a dtype of numpy, which can only be exported with pyarrow."""

    dtype = NUMBERS.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return NUMBERS

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise ImportError("pyarrow is not installed")


class WithBuffer(Exporter, array.array):  # type: ignore[type-arg]
    pass


WITH_ATTRIBUTE: Any = Exporter()
WITH_ATTRIBUTE.__array_interface__ = NUMBERS.__array_interface__
DESCRIBED = {
    "interface": WithInterface(),
    "struct": WithStruct(),
    "attribute": WITH_ATTRIBUTE,
    "delegated": Delegates(),
    "dtype": WithDtype(),
    "buffer": WithBuffer("f", NUMBERS.tolist()),
}


@pytest.mark.parametrize("data", DESCRIBED.values(), ids=DESCRIBED)
def test_memory_that_numpy_reads_is_not_read_by_arrow(data: Any) -> None:
    tensor = tw.Tensor("x", data)
    assert (tensor.datatype, tensor.as_numpy().tolist()) == ("FP32", NUMBERS.tolist())
    assert address(tensor.as_numpy()) == address(np.asarray(data))  # it is not copied
    with pytest.raises(tw.EncodeError, match="the argument is an array of float32, not BYTES"):
        tw.encode_bytes(data)


def test_columns_are_read_by_arrow() -> None:
    """numpy converts them: to NaN for a null, and to objects for text."""

    class Column(Exporter):
        dtype = "int64"

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise AssertionError("a column is not converted by numpy")

    assert tw.Tensor("x", Column()).as_numpy().tolist() == [7, 8]
    assert tw.Tensor("x", pa.array(["a", "b"])).elements.as_strings().tolist() == ["a", "b"]


def test_buffers_of_the_standard_library() -> None:
    for data in (
        array.array("d", [1, 2]),
        (ctypes.c_double * 2)(1, 2),
        (ctypes.c_double.__ctype_be__ * 2)(1, 2),
    ):
        assert tw.Tensor("x", data).as_numpy().tolist() == [1, 2]
    tensor = tw.Tensor("x", mmap.mmap(-1, 4096))
    assert (tensor.datatype, tensor.shape) == ("UINT8", (4096,))


def test_bytes_of_true_elements_in_the_memory_of_other_packages() -> None:
    class Mask:
        def __init__(self, memory: Any) -> None:
            self.__array_interface__ = memory.view(bool).__array_interface__

    for memory in (
        np.array([[0, 255], [1, 2]], np.uint8),
        np.arange(12, dtype=np.uint8).reshape(3, 4)[:, ::2],
        np.zeros((0, 3), np.uint8),
    ):
        tensor = tw.Tensor("x", Mask(memory))
        assert tensor.as_numpy().view(np.uint8).tolist() == (memory != 0).tolist()
    valid = np.array([True, False])
    assert address(tw.Tensor("x", Mask(valid)).as_numpy()) == address(valid)


def test_text_that_an_array_protocol_describes() -> None:
    words = np.array(["a", "bc"])

    class Words:
        __array_interface__ = words.__array_interface__

    class Objects:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return words.astype(object)

    for data in (Words(), Objects()):
        tensor = tw.Tensor("x", data)
        assert tensor.elements.as_strings().tolist() == ["a", "bc"]
        assert tw.encode_bytes(data) == tensor.elements.wire
