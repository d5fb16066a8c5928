"""encode_bytes and encode_bytes_into: any array or list of bytes and text as BYTES elements."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference
from support.bytes_elements import WIRE, WORDS
from tensorwire._codec.bytes.writer import all_plain


def misaligned(array: Any) -> Any:
    return np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(array.dtype)


class MissingValue:
    """A value that numpy uses as the missing value of an array."""


TEXT = ["a", "", "é", "日本", "🜚x", "\x7f\x80\u07ff\u0800\uffff\U00010000"]
LONG = ["é" * 7, "x" * 15, "y" * 16, "z" * 300, "a\0b\0", "🜚" * 99]
STRING = np.dtypes.StringDType()
STRING_DTYPES: list[Any] = [STRING, np.dtypes.StringDType(coerce=False)]
STRING_DTYPES += [np.dtypes.StringDType(na_object=value) for value in (None, np.nan)]


def encoded(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (WORDS, WORDS),
        (tuple(WORDS), WORDS),
        ([bytearray(b"ab"), memoryview(b"cd"), np.bytes_(b"ef"), np.str_("gh")],
         [b"ab", b"cd", b"ef", b"gh"]),
        (TEXT, encoded(TEXT)),
        (["天" * 40_000], ["天".encode() * 40_000]),
        ([["a", b"b"], [b"c", "d"]], [b"a", b"b", b"c", b"d"]),
        (np.array(WORDS, object), WORDS),
        (np.array(WORDS * 2, object)[::2], (WORDS * 2)[::2]),
        (np.array([WORDS, WORDS], object).T, [word for word in WORDS for _ in range(2)]),
        (np.array([b"ab", b"", b"c\0d\0"]), [b"ab", b"", b"c\0d"]),
        (np.array([b"ab", b"cde", b"f"])[::-1], [b"f", b"cde", b"ab"]),
        (np.array([b"ab\0", b"c"], "V3"), [b"ab\0", b"c\0\0"]),
        (np.array(TEXT), encoded(TEXT)),
        (np.array(TEXT).astype(">U6"), encoded(TEXT)),
        (misaligned(np.array(["abé", "x"])), ["abé".encode(), b"x"]),
        (misaligned(np.array([b"ab", b"c"])), [b"ab", b"c"]),
        *((array, encoded(array.ravel().tolist()))
          for texts in (np.array((TEXT + LONG) * 2, dtype) for dtype in STRING_DTYPES)
          for array in (texts, texts[::-2], texts.reshape(4, 6).T)),
        (tw.decode_bytes(WIRE), WORDS),
        (tw.decode_bytes(WIRE)[::2], WORDS[::2]),
        (np.array("scalar", object), [b"scalar"]),
        ([], []),
        (np.empty((0, 3), object), []),
        ([[], []], []),
    ],
)  # fmt: skip
def test_encode(values: Any, expected: list[bytes]) -> None:
    assert tw.encode_bytes(values) == reference.elements(expected)


UTF8 = "of the argument cannot be encoded as UTF-8: character 1 is"
RELEASED = memoryview(b"abc")
RELEASED.release()


def missing(value: Any) -> Any:
    """Return an array with a missing value, which this object stands for."""
    dtype = np.dtypes.StringDType(na_object=value)
    return np.array([["a", "b"], ["c", value]], dtype)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", None], "element 1 of the argument is None, which tensors cannot have"),
        (np.array(["a", 5], object), "element 1 of the argument is int, not bytes or str"),
        (np.array([["a", "b"], ["c", 1.5]], object),
         "element 3 [1, 1] of the argument is float, not bytes or str"),
        ([["a"], ["b", "c"]], "the argument is a ragged list: item 1 has shape [2], but the items "
         "before it have shape [1]"),
        ([["a"], "b"], "the argument is a ragged list: item 1 is not a list"),
        (["a", ["b"]], "element 1 of the argument is list, not bytes or str"),
        (["ab", "c\ud800"], f"element 1 {UTF8} a lone surrogate, U+D800"),
        (["é", "天", "🜚\ud800"], f"element 2 {UTF8} a lone surrogate, U+D800"),
        (np.array(["ab", "c\udfff"]), f"element 1 {UTF8} a lone surrogate, U+DFFF"),
        (np.array([0x41, 0x110000], np.uint32).view("U2"),
         f"element 0 {UTF8} an invalid code point, U+110000"),
        *((np.ma.MaskedArray(data, [False, True]), "the argument is a masked array")
          for data in (["a", "b"], [b"a", b"b"], np.array(["a", "b"], object))),
        (np.zeros(3),
         "the argument is an array of float64, not BYTES: those are object, S, U, V and Strin"),
        *((["a", view],
           "element 1 of the argument is a memoryview that is released or not contiguous")
          for view in (RELEASED, memoryview(b"abcd")[::2])),
        *((missing(value), "element 3 [1, 1] of the argument is a missing value, which tensors "
           "cannot have") for value in (None, np.nan, MissingValue())),
    ],
)  # fmt: skip
def test_invalid_elements_are_rejected(values: Any, message: str) -> None:
    """Also if the elements are kept until they are encoded, for a tensor with JSON data."""
    calls: list[Callable[[], Any]] = [
        lambda: tw.encode_bytes(values),
        lambda: tw.encode_bytes_into(values, bytearray(99)),
        *(lambda b=b: tw.Tensor("x", values, datatype="BYTES", binary=b) for b in (True, False)),
    ]
    for call in calls:
        with pytest.raises(tw.EncodeError) as caught:
            call()
        if caught.value.tensor is None:
            assert message in str(caught.value)
        elif caught.value.element is not None:
            assert message.replace("the argument", "tensor 'x'") in str(caught.value)


def test_items_of_an_object_array_that_are_not_set() -> None:
    array = np.empty(2, object)
    array[0] = "a"
    ctypes.memset(array.ctypes.data + 8, 0, 8)  # as numpy does for new memory: None
    for binary in (True, False):
        with pytest.raises(tw.EncodeError, match="element 1 of tensor 'x' is None"):
            tw.Tensor("x", array, binary=binary)


@pytest.mark.parametrize("values", [5, "text", b"bytes", {"a": 1}, None])
def test_arguments_of_wrong_types(values: Any) -> None:
    with pytest.raises(TypeError):
        tw.encode_bytes(values)


def test_element_of_4_gib_is_rejected() -> None:
    memory = mmap.mmap(-1, 2**32)  # pages that are not written take no memory
    with pytest.raises(tw.EncodeError, match=r"element 1 .* is 4294967296 bytes long; the"):
        tw.encode_bytes(["a", memoryview(memory)])


@pytest.mark.parametrize(
    "convert",
    [list, np.array, lambda texts: np.array(texts, STRING), lambda texts: np.array(texts, object)],
)
@pytest.mark.parametrize("characters", ["a", "é", "日本", "🜚x"])
def test_elements_of_growing_and_shrinking_sizes(convert: Any, characters: str) -> None:
    for sizes in (range(300), range(300, 0, -1), [70_000, *[1] * 9, 70_000]):
        texts = [characters * size for size in sizes]
        assert tw.encode_bytes(convert(texts)) == reference.elements(encoded(texts))


def test_short_elements_after_a_long_one() -> None:
    """The first element must not determine how much memory is allocated for the others."""
    long = memoryview(bytes(1 << 20))
    wire = tw.encode_bytes([long, *["a"] * 1_000_000])
    assert (wire[:4], wire[4 + len(long) :]) == (b"\0\0\x10\0", b"\1\0\0\0a" * 1_000_000)


def test_errors_after_valid_elements() -> None:
    """A buffer is not written to before all elements have been encoded."""
    unpaired = np.array(["a" * 500, "b"])
    unpaired.view(np.uint32)[500] = 0xD800
    missing = np.array(["a" * 500, None], np.dtypes.StringDType(na_object=None))
    released = memoryview(b"a")
    released.release()
    long = bytearray(100_000)
    for values in (["a", None], [b"a" * 500, "\ud800"], [long, released], unpaired, missing):
        buffer = bytearray(200_000)
        with pytest.raises(tw.EncodeError, match="element 1 of the argument"):
            tw.encode_bytes_into(values, buffer)
        assert not any(buffer)
    long.append(0)  # it is not exported any more


def test_bytes_are_not_another_datatype() -> None:
    for data in (tw.decode_bytes(WIRE), np.array(["a"]), np.array([b"a"]), np.array(["a"], "O")):
        with pytest.raises(tw.EncodeError, match="'x' has datatype FP32, but its data is BYTES"):
            tw.Tensor("x", data, datatype="FP32")


@pytest.mark.parametrize(("item", "datatype"), [("a", "BYTES"), (1, "INT8")])
def test_nesting_of_lists(item: Any, datatype: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    lists = [item]
    for _ in range(2000):
        lists.append([lists[-1]])
    assert tw.Tensor("x", lists[64], datatype=datatype).shape == (1,) * 64
    for values in (lists[65], lists[-1], endless):
        for kind in (datatype, None):
            with pytest.raises(tw.EncodeError, match=r"limit is 64 levels|list of numbers"):
                tw.Tensor("x", values, datatype=kind)


# --- encoding into existing memory ---


@pytest.mark.parametrize("values", [WORDS, np.array(WORDS, object), tw.decode_bytes(WIRE)])
def test_encode_bytes_into(values: Any) -> None:
    for extra in (0, 5):
        buffer = bytearray(b"\xee" * (len(WIRE) + extra))
        assert tw.encode_bytes_into(values, buffer) == len(WIRE)
        assert buffer == WIRE + b"\xee" * extra
    target = np.zeros(len(WIRE), np.uint8)
    tw.encode_bytes_into(values, target)
    assert target.tobytes() == WIRE
    small = bytearray(b"\xee" * (len(WIRE) - 1))
    with pytest.raises(tw.EncodeError) as caught:
        tw.encode_bytes_into(values, small)
    assert str(caught.value) == "the elements take 46 bytes, but the buffer has 45"
    assert (caught.value.expected, caught.value.actual) == (46, 45)
    assert small == b"\xee" * 45
    pointers = np.full(99, b"a", object)  # would be freed
    for wide in (np.zeros(99, np.int32), np.zeros(99, np.uint16), np.zeros(99, "S4"), pointers):
        with pytest.raises(BufferError, match="items of"):
            tw.encode_bytes_into(values, wide)
    assert pointers.tolist() == [b"a"] * 99
    wrong: list[Any] = ["text", bytes(99)]
    for target in wrong:
        with pytest.raises((TypeError, BufferError)):
            tw.encode_bytes_into(values, target)


@pytest.mark.parametrize("character", ["\x7f", "\xe9", "\u20ac", "\U0001f600"])
def test_text_is_not_written_beyond_its_end(character: str) -> None:
    """The kernels write whole words, except where the memory ends."""
    for n_before in range(20):
        for n_after in (0, 1, 7, 8, 9):
            text = "a" * n_before + character + "b" * n_after
            wire = reference.elements([text.encode()])
            for values in ([text], np.array([text])):
                buffer = bytearray(b"\xee" * (len(wire) + 16))
                assert tw.encode_bytes_into(values, buffer) == len(wire)
                assert buffer == wire + b"\xee" * 16


def test_encode_bytes_into_the_memory_of_the_values() -> None:
    buffer = bytearray(WIRE)
    assert tw.encode_bytes_into(tw.decode_bytes(buffer)[1:], buffer) == len(WIRE) - 5
    assert buffer[:-5] == WIRE[5:]


def elements_in(memory: bytearray) -> dict[str, Any]:
    """Return values of several types whose elements are in `memory`, of 60 bytes."""
    flat = np.frombuffer(memory, np.uint8)
    return {
        "list of memoryviews": [memoryview(memory)[:20], memoryview(memory)[10:30]],
        "memoryview after the target": [b"a" * 20, memoryview(memory)[40:]],
        "memoryview inside the target": [b"a" * 20, memoryview(memory)[15:35]],
        "memoryview before the target": [memoryview(memory)[:20], b"a"],
        "bytearray": [b"a", memory],
        "object array": np.array([memoryview(memory)[:20], b"x"], object),
        "S": flat[:40].view("S8"),
        "S inside the target": flat[4:44].view("S8"),
        "U": flat[:32].view("U4"),
    }


@pytest.mark.parametrize("start", [0, 4, 10])
@pytest.mark.parametrize("kind", elements_in(bytearray(60)))
def test_values_that_overlap_the_target(kind: str, start: int) -> None:
    """The values are encoded as they were before the call."""
    memory = bytearray(b"0\0\0\0" * 15)
    values = elements_in(memory)[kind]
    expected = tw.encode_bytes(values)
    target = memoryview(memory)[start : start + len(expected)]
    if kind == "bytearray":
        target = memoryview(memory)[:0]
        with pytest.raises(tw.EncodeError, match="take 69 bytes, but the buffer has 0"):
            tw.encode_bytes_into(values, target)
        return
    assert tw.encode_bytes_into(values, target) == len(expected)
    assert target == expected


def test_empty_values_into_empty_buffer() -> None:
    nowhere = tw.BodyBuffer()
    empty: list[Any] = [[], np.empty(0, "S3"), tw.decode_bytes(nowhere), tw.decode_bytes(b"")]
    for values in empty:
        assert tw.encode_bytes_into(values, nowhere) == 0
    assert tw.encode_bytes([memoryview(nowhere)]) == bytes(4)


# --- used by the integrations ---


def test_all_plain_accepts_only_bytes_and_str() -> None:
    plain = np.array([b"a", "b", "\xe9", b""], object)
    assert all_plain(plain)
    assert all_plain(plain[:0])
    subclass = type("Text", (str,), {})
    for value in (None, 1, np.str_("a"), np.bytes_(b"a"), subclass("a"), bytearray(b"a")):
        odd = plain.copy()
        odd[3] = value
        assert not all_plain(odd)
    assert not all_plain(np.empty(2, object))
    others: list[Any] = [plain[::2], np.array([b"a"]), np.zeros(3), ["a"], None]
    for other in others:
        with pytest.raises((ValueError, TypeError), match=r"must be contiguous, aligned|ndarray"):
            all_plain(other)
