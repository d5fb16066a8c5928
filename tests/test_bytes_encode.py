"""encode_bytes: any array or list of bytes and text as BYTES elements."""

from __future__ import annotations

import ctypes
import mmap
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference
from support.bytes_elements import WIRE, WORDS
from tensorwire._codec.bytes.writer import are_exact


def misaligned(array: Any) -> Any:
    return np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(array.dtype)


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
           "cannot have") for value in (None, np.nan, object())),
    ],
)  # fmt: skip
def test_invalid_elements_are_rejected(values: Any, message: str) -> None:
    """Also if the elements are kept until they are encoded, for a tensor with JSON data."""
    calls: list[Callable[[], Any]] = [
        lambda: tw.encode_bytes(values),
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
    unpaired = np.array(["a" * 500, "b"])
    unpaired.view(np.uint32)[500] = 0xD800
    missing = np.array(["a" * 500, None], np.dtypes.StringDType(na_object=None))
    released = memoryview(b"a")
    released.release()
    long = bytearray(100_000)
    for values in (["a", None], [b"a" * 500, "\ud800"], [long, released], unpaired, missing):
        with pytest.raises(tw.EncodeError, match="element 1 of the argument"):
            tw.encode_bytes(values)
    long.append(0)  # it is not exported any more


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has no __buffer__")
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="this Python copies lists"
)
def test_item_that_changes_the_list_while_it_is_read() -> None:
    class Clearing(bytearray):
        def __buffer__(self, flags: int) -> memoryview:
            values.clear()
            return memoryview(b"abc")

    values: list[Any] = [b"a", Clearing(), *[bytes(70_000)] * 3]
    with pytest.raises(tw.EncodeError, match="the values were modified while they were encoded"):
        tw.encode_bytes(values)


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


@pytest.mark.parametrize("character", ["\x7f", "\xe9", "\u20ac", "\U0001f600"])
def test_text_at_the_end_of_the_memory(character: str) -> None:
    """The kernels write whole words, except where the memory ends."""
    for n_before in range(20):
        for n_after in (0, 1, 7, 8, 9):
            text = "a" * n_before + character + "b" * n_after
            wire = reference.elements([text.encode()])
            for values in ([text], np.array([text]), ["x" * 1000, text]):
                assert tw.encode_bytes(values)[-len(wire) :] == wire


# --- used by the integrations ---


def test_are_exact_accepts_only_bytes_and_str() -> None:
    plain = np.array([b"a", "b", "\xe9", b""], object)
    assert are_exact(plain)
    assert are_exact(plain[:0])
    subclass = type("Text", (str,), {})
    for value in (None, 1, np.str_("a"), np.bytes_(b"a"), subclass("a"), bytearray(b"a")):
        odd = plain.copy()
        odd[3] = value
        assert not are_exact(odd)
    assert not are_exact(np.empty(2, object))
    others: list[Any] = [plain[::2], np.array([b"a"]), np.zeros(3), ["a"], None]
    for other in others:
        with pytest.raises((ValueError, TypeError), match=r"must be contiguous, aligned|ndarray"):
            are_exact(other)
