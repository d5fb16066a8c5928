"""BYTES on their own: a sequence over wire bytes, and wire bytes from values."""

from __future__ import annotations

import mmap
import pickle
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import wire

WORDS = [b"a", b"", b"b\0\0", "é".encode(), b"12345678901234567890"]
WIRE = wire.elements(WORDS)


def grid() -> tuple[tw.BytesTensor, np.ndarray[Any, Any]]:
    """A BYTES tensor of shape [2, 3, 4], and the object array that it should act like."""
    flat = np.empty(24, object)
    flat[:] = [b"x" * (i % 5) + str(i).encode() for i in range(24)]
    array = flat.reshape(2, 3, 4)
    tensor = tw.Tensor("x", array).data
    assert isinstance(tensor, tw.BytesTensor)
    return tensor, array


@pytest.mark.parametrize("count", [None, 5])
def test_a_sequence(count: int | None) -> None:
    tensor = tw.decode_bytes(WIRE, count)
    assert (len(tensor), tensor.shape, tensor.ndim, tensor.size) == (5, (5,), 1, 5)
    assert tensor.nbytes == len(WIRE)
    assert [tensor[i] for i in range(-5, 5)] == WORDS * 2
    assert list(tensor) == tensor.tolist() == WORDS
    assert [bytes(tensor.view(i)) for i in range(5)] == WORDS
    assert tensor.wire == WIRE
    assert b"a" in tensor
    assert repr(tensor) == f"<BytesTensor shape=[5] nbytes={len(WIRE)}>"
    for index in (5, -6):
        with pytest.raises(IndexError, match=f"element {index} is out of range"):
            tensor[index]
        with pytest.raises(IndexError):
            tensor.view(index)


def test_no_elements() -> None:
    tensor = tw.decode_bytes(b"")
    assert (len(tensor), tensor.tolist(), tensor.nbytes) == (0, [], 0)
    assert tensor.as_numpy().shape == tensor.as_numpy("S").shape == (0,)
    assert tensor[:].shape == (0,)


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        np.int64(1),
        (1, 2, 3),
        (-1, -1, -1),
        (0, slice(None), 2),
        slice(1, None),
        slice(None, None, -1),
        slice(5, 2),
        (..., 1),
        (slice(None), 0, slice(1, 3)),
        None,
        (),
        np.array([1, 0, 1]),
        np.array([True, False]),
        (np.array([0, 1]), np.array([2, 0]), 3),
    ],
    ids=str,
)
def test_indexing_is_numpys(index: Any) -> None:
    tensor, array = grid()
    found, expected = tensor[index], array[index]
    if isinstance(expected, bytes):
        assert found == expected
        return
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()
    assert found.wire == wire.elements(expected.ravel().tolist())


@pytest.mark.parametrize("index", [2, (0, 3), (0, 0, 0, 0), (0, 0, 4), 1.5, "x"])
def test_no_such_index(index: Any) -> None:
    tensor, array = grid()
    with pytest.raises(IndexError):
        array[index]
    with pytest.raises(IndexError):
        tensor[index]


def test_view_takes_a_flat_index_or_one_per_dimension() -> None:
    tensor, array = grid()
    for flat in range(-24, 24):
        assert tensor.view(flat) == array.reshape(-1)[flat]
    assert tensor.view((1, -1, 0)) == array[1, -1, 0]
    for index in ((1, 2), (2, 0, 0), (0, 0, -5)):
        with pytest.raises(IndexError):
            tensor.view(index)


def test_rows_are_views_and_choices_are_copies() -> None:
    tensor, _ = grid()
    memory = np.frombuffer(tensor.wire, np.uint8)
    assert np.shares_memory(memory, np.frombuffer(tensor[1].wire, np.uint8))
    assert np.shares_memory(memory, np.frombuffer(tensor[0, 1:].wire, np.uint8))
    assert not np.shares_memory(memory, np.frombuffer(tensor[:, ::2].wire, np.uint8))


def test_whole_arrays() -> None:
    tensor, array = grid()
    assert tensor.as_numpy().tolist() == np.asarray(tensor).tolist() == array.tolist()
    assert tensor.as_strings().tolist() == array.astype(np.dtypes.StringDType()).tolist()
    fixed = tensor.as_numpy("S")
    assert (fixed.dtype, fixed.shape) == (np.dtype("S6"), (2, 3, 4))
    assert fixed.tolist() == array.tolist()
    text = tensor.as_numpy(np.dtypes.StringDType())
    assert text.dtype == np.dtypes.StringDType()
    assert text.tolist() == tensor.as_strings().tolist()
    assert tensor.as_numpy(object) is not tensor.as_numpy(object)
    for dtype in (np.float32, "U", int):
        with pytest.raises(TypeError, match="become object, 'S' or"):
            tensor.as_numpy(dtype)


def test_fixed_width_loses_trailing_nuls() -> None:
    assert tw.decode_bytes(WIRE).as_numpy("S").tolist()[2] == b"b"
    assert tw.decode_bytes(WIRE).as_numpy().tolist()[2] == b"b\0\0"
    assert tw.decode_bytes(wire.elements([b"", b""])).as_numpy("S").tolist() == [b"", b""]


def test_a_scalar() -> None:
    tensor = tw.Tensor("x", np.array(b"one", object)).data
    assert isinstance(tensor, tw.BytesTensor)
    assert (tensor.shape, tensor[()], tensor.tolist()) == ((), b"one", b"one")
    assert tensor.as_numpy().shape == ()
    with pytest.raises(TypeError):
        len(tensor)


def test_equality_is_of_shape_and_elements() -> None:
    one, other = tw.decode_bytes(WIRE), tw.decode_bytes(bytearray(WIRE))
    assert one == other
    assert one != other[:4]
    assert one.reshape((5, 1)) != one
    assert one != WORDS
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_pickle_carries_its_own_bytes_only() -> None:
    tensor, _ = grid()
    part = tensor[0, 0]
    data = pickle.dumps(part)
    assert pickle.loads(data) == part
    assert len(data) < part.nbytes + 200


def test_no_constructor() -> None:
    with pytest.raises(TypeError, match="is made by decode_bytes"):
        tw.BytesTensor()


def test_not_utf8_is_named() -> None:
    tensor = tw.decode_bytes(wire.elements([b"fine", b"ab\xff"]))
    for convert in (tensor.as_strings, lambda: tensor.as_numpy(np.dtypes.StringDType())):
        with pytest.raises(tw.ElementError) as caught:
            convert()
        assert str(caught.value) == (
            "element 1 is not UTF-8: invalid start byte at its byte 2 (body byte 14)"
        )
        assert (caught.value.element, caught.value.offset) == (1, 14)


# --- decode_bytes refuses ---


@pytest.mark.parametrize(
    ("data", "count", "kind", "message"),
    [
        (b"\1", None, tw.ElementError,
         "element 0 is truncated: a length prefix takes 4 bytes, 1 remain (buffer byte 0)"),
        (WIRE + b"\5\0\0\0abc", None, tw.ElementError,
         "element 5 is truncated: its prefix declares 5 bytes, 3 remain (buffer byte 46)"),
        (b"\xff\xff\xff\xff", 1, tw.ElementError,
         "element 0 is truncated: its prefix declares 4294967295 bytes, 0 remain (buffer byte 0)"),
        (WIRE, 6, tw.LayoutError,
         "the buffer does not match its shape: BYTES [6] needs 6 elements, its bytes hold 5"),
        (WIRE, 4, tw.LayoutError,
         "the buffer does not match its shape: the 4 elements of BYTES [4] take 22 bytes, there "
         "are 46 (body byte 22)"),
        (WIRE, 2**61, tw.LayoutError, "the buffer is too large to address: BYTES "
         "[2305843009213693952] passes 2^63 - 1 bytes"),
        (WIRE, 2**50, tw.LayoutError, "the buffer does not match its shape: BYTES "
         "[1125899906842624] needs at least 4503599627370496 bytes, there are 46"),
        (b"", 1, tw.LayoutError,
         "the buffer does not match its shape: BYTES [1] needs at least 4 bytes, there are 0"),
    ],
)  # fmt: skip
def test_refused(data: bytes, count: int | None, kind: type, message: str) -> None:
    with pytest.raises(tw.DecodeError) as caught:
        tw.decode_bytes(data, count)
    assert (type(caught.value), str(caught.value)) == (kind, message)


def test_every_truncation_is_refused() -> None:
    for nbytes in range(len(WIRE)):
        with pytest.raises(tw.DecodeError):
            tw.decode_bytes(WIRE[:nbytes], 5)


def test_wrong_arguments() -> None:
    for count in ("5", 5.0, True):
        with pytest.raises(TypeError):
            tw.decode_bytes(WIRE, count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count is 0 or more"):
        tw.decode_bytes(WIRE, -1)
    with pytest.raises(BufferError):
        tw.decode_bytes(np.zeros(4, np.int32))
    with pytest.raises(TypeError):
        tw.decode_bytes("text")


# --- encode_bytes ---

TEXT = ["a", "", "é", "日本", "🜚x", "\x7f\x80\u07ff\u0800\uffff\U00010000"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (WORDS, WORDS),
        (tuple(WORDS), WORDS),
        ([bytearray(b"ab"), memoryview(b"cd"), np.bytes_(b"ef"), np.str_("gh")],
         [b"ab", b"cd", b"ef", b"gh"]),
        (TEXT, [text.encode() for text in TEXT]),
        ([["a", b"b"], [b"c", "d"]], [b"a", b"b", b"c", b"d"]),
        (np.array(WORDS, object), WORDS),
        (np.array(WORDS * 2, object)[::2], (WORDS * 2)[::2]),
        (np.array([WORDS, WORDS], object).T, [word for word in WORDS for _ in range(2)]),
        (np.array([b"ab", b"", b"c\0d\0"]), [b"ab", b"", b"c\0d"]),
        (np.array([b"ab", b"cde", b"f"])[::-1], [b"f", b"cde", b"ab"]),
        (np.array(TEXT), [text.encode() for text in TEXT]),
        (np.array(TEXT).astype(">U6"), [text.encode() for text in TEXT]),
        (np.array(TEXT, np.dtypes.StringDType()), [text.encode() for text in TEXT]),
        (tw.decode_bytes(WIRE), WORDS),
        (tw.decode_bytes(WIRE)[::2], WORDS[::2]),
        (np.array("scalar", object), [b"scalar"]),
        ([], []),
        (np.empty((0, 3), object), []),
        ([[], []], []),
    ],
)  # fmt: skip
def test_encode(values: Any, expected: list[bytes]) -> None:
    assert tw.encode_bytes(values) == wire.elements(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", None], "element 1 is None, and BYTES has no missing values"),
        (np.array(["a", 5], object), "element 1 is int, not bytes or str"),
        (np.array([["a", "b"], ["c", 1.5]], object), "element 3 [1, 1] is float, not bytes or str"),
        ([["a"], ["b", "c"]], "the list is ragged: item 1 has shape [2], those before it [1]"),
        ([["a"], "b"], "the list is ragged: item 1 is no list"),
        (["a", ["b"]], "element 1 is list, not bytes or str"),
        (["ab", "c\ud800"],
         "element 1 has a lone surrogate, U+D800 at character 1, and no UTF-8 form"),
        (np.array(["ab", "c\udfff"]),
         "element 1 has a lone surrogate, U+DFFF at character 1, and no UTF-8 form"),
        (np.zeros(3), "the array of float64 is not BYTES: those are object, S, U and StringDType"),
    ],
)  # fmt: skip
def test_no_such_elements(values: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError) as caught:
        tw.encode_bytes(values)
    assert message in str(caught.value)
    with pytest.raises(tw.EncodeError):
        tw.Tensor("x", values, datatype="BYTES")


def test_the_tensor_is_named() -> None:
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("text", [["a", "b"], ["c", None]])
    assert str(caught.value) == (
        "element 3 [1, 1] of tensor 'text' is None, and BYTES has no missing values"
    )
    assert (caught.value.tensor, caught.value.element) == ("text", 3)


@pytest.mark.parametrize("values", [5, "text", b"bytes", {"a": 1}, None])
def test_encode_of_the_wrong_type(values: Any) -> None:
    with pytest.raises(TypeError):
        tw.encode_bytes(values)


def test_an_element_of_4_gib_is_refused() -> None:
    memory = mmap.mmap(-1, 2**32)  # virtual; nothing is written, so nothing is backed
    with pytest.raises(tw.EncodeError) as caught:
        tw.encode_bytes(["a", memoryview(memory)])
    assert str(caught.value) == (
        "element 1 is too long: 4294967296 bytes, a length prefix counts to 4294967295"
    )
