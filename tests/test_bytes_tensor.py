"""BYTES on their own: a sequence over wire bytes, and wire bytes from values."""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import wire
from tensorwire import _elements, _pack
from tensorwire._body import Body

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
        with pytest.raises(IndexError, match=f"index {index} is out of range for a dimension of 5"):
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
         "are 46 (buffer byte 22)"),
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


# --- StringDType, without str objects in between ---


class Missing:
    """A value that numpy takes for missing."""


STRING_DTYPES = [
    np.dtypes.StringDType(),
    np.dtypes.StringDType(coerce=False),
    np.dtypes.StringDType(na_object=None),
    np.dtypes.StringDType(na_object=np.nan),
]
LONG_AND_SHORT = ["", "a", "é" * 7, "x" * 15, "y" * 16, "z" * 300, "a\0b\0", "🜚" * 99]


@pytest.mark.parametrize("dtype", STRING_DTYPES, ids=str)
def test_strings_to_the_wire(dtype: Any) -> None:
    array = np.array(LONG_AND_SHORT * 3, dtype)
    expected = [text.encode() for text in LONG_AND_SHORT * 3]
    assert tw.encode_bytes(array) == wire.elements(expected)
    assert tw.encode_bytes(array[::-2]) == wire.elements(expected[::-2])
    grid = array.reshape(4, 6).T
    assert tw.Tensor("x", grid).shape == (6, 4)
    assert tw.encode_bytes(grid) == wire.elements([text.encode() for text in grid.ravel().tolist()])


def test_strings_from_the_wire() -> None:
    tensor = tw.decode_bytes(tw.encode_bytes(LONG_AND_SHORT * 3)).reshape((4, 6))
    array = tensor.as_numpy(np.dtypes.StringDType())
    assert (array.dtype, array.shape) == (np.dtypes.StringDType(), (4, 6))
    assert array.ravel().tolist() == LONG_AND_SHORT * 3
    array[0, 0] = "it is a copy"
    assert tensor[0, 0] == b""
    assert tw.encode_bytes(tensor.as_numpy(np.dtypes.StringDType())) == tensor.wire


@pytest.mark.parametrize("na_object", [None, np.nan, Missing()])
def test_missing_strings_are_refused(na_object: Any) -> None:
    dtype = np.dtypes.StringDType(na_object=na_object)
    array = np.array([["a", "b"], ["c", na_object]], dtype)
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("text", array)
    assert str(caught.value) == (
        "element 3 [1, 1] of tensor 'text' is missing, and BYTES has no missing values"
    )
    assert (caught.value.tensor, caught.value.element) == ("text", 3)


# Every boundary of the ranges in RFC 3629, on both sides, and in every place of a word.
EDGES_OF_UTF8 = [
    "00", "7f", "80", "bf", "c0 80", "c1 bf", "c2 80", "c2 7f", "c2 c0", "df bf", "e0 9f 80",
    "e0 a0 80", "e0 a0 7f", "ec 80 80", "ed 9f bf", "ed a0 80", "ee 80 80", "ef bf bf", "ef bf c0",
    "f0 8f bf bf", "f0 90 80 80", "f0 90 80 7f", "f3 bf bf bf", "f4 8f bf bf", "f4 90 80 80",
    "f5 80 80 80", "f8 88 80 80 80", "fe", "ff", "c2", "e1 80", "f1 80 80", "e1 80 41",
    "f1 80 80 41",
]  # fmt: skip


@pytest.mark.parametrize("edge", EDGES_OF_UTF8)
@pytest.mark.parametrize("before", [0, 1, 3, 4, 7, 8, 9, 17])
def test_utf8_is_what_python_says(edge: str, before: int) -> None:
    for after in (0, 1, 8, 11):
        data = b"a" * before + bytes.fromhex(edge) + b"z" * after
        tensor = tw.decode_bytes(wire.elements([b"first", data]))
        try:
            expected = data.decode()
        except UnicodeDecodeError as error:
            with pytest.raises(tw.ElementError) as caught:
                tensor.as_numpy(np.dtypes.StringDType())
            assert caught.value.element == 1
            assert caught.value.offset == 13 + error.start
        else:
            assert tensor.as_numpy(np.dtypes.StringDType()).tolist()[1] == expected


# --- memory that is used again ---


@pytest.mark.parametrize("values", [WORDS, np.array(WORDS, object), tw.decode_bytes(WIRE)])
def test_encode_into(values: Any) -> None:
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
    assert str(caught.value) == "the elements take 46 bytes, the buffer has 45"
    assert (caught.value.expected, caught.value.actual) == (46, 45)
    assert small == b"\xee" * 45
    with pytest.raises(BufferError):
        tw.encode_bytes_into(values, bytes(99))
    with pytest.raises(TypeError):
        tw.encode_bytes_into(values, "text")


def test_encode_into_the_same_memory() -> None:
    buffer = bytearray(WIRE)
    assert tw.encode_bytes_into(tw.decode_bytes(buffer)[1:], buffer) == len(WIRE) - 5
    assert buffer[:-5] == WIRE[5:]


# --- memory that somebody writes to meanwhile ---


@pytest.mark.thread_unsafe(reason="it sets what holds for the process")
@pytest.mark.parametrize("release_from", [0, 1 << 62])
def test_a_body_that_changes_while_it_is_scanned(release_from: int) -> None:
    """Whatever the scan sees, it stays within the body: elements or an error come out."""
    body = bytearray(wire.elements([b"x" * (i % 40) for i in range(20_000)]))
    done = threading.Event()

    def scribble() -> None:
        rng = np.random.default_rng(1)
        view = np.frombuffer(body, np.uint8)
        while not done.is_set():
            places = rng.integers(0, len(body), 2_000)
            kept = view[places].copy()
            view[places] = rng.integers(0, 256, 2_000, np.uint8)
            view[places] = kept

    thread = threading.Thread(target=scribble)
    before = _elements.set_release_gil_from(release_from)
    thread.start()
    try:
        verdicts = set()
        for _ in range(200):
            try:
                tensor = tw.decode_bytes(body)
            except tw.DecodeError:
                verdicts.add("refused")
            else:
                assert sum(map(len, tensor.tolist())) + 4 * len(tensor) == len(body)
                assert tw.decode_bytes(tw.encode_bytes(tensor[::2])).shape == tensor[::2].shape
                verdicts.add("taken")
    finally:
        done.set()
        thread.join()
        _elements.set_release_gil_from(before)
    assert verdicts


def longest_wait(work: Callable[[], Any]) -> float:
    """How long a thread that only looks at the clock was kept from it while ``work`` ran."""
    waits = [0.0]
    done = threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not done.is_set():
            now = time.perf_counter()
            waits[0] = max(waits[0], now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    work()
    done.set()
    thread.join()
    return waits[0]


@pytest.mark.thread_unsafe(reason="it measures how long others wait")
def test_a_long_scan_lets_other_threads_run() -> None:
    body = bytes(4 << 25)  # 32M empty elements: 50 ms and more
    held, free = [], []
    for _ in range(3):
        before = _elements.set_release_gil_from(1 << 62)
        held.append(longest_wait(lambda: tw.decode_bytes(body, 1 << 25)))
        _elements.set_release_gil_from(before)
        free.append(longest_wait(lambda: tw.decode_bytes(body, 1 << 25)))
    assert min(free) < min(held) / 2


@pytest.mark.thread_unsafe(reason="it takes the memory of the machine")
def test_an_element_of_3_gb() -> None:
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 10 << 30:
        pytest.skip("needs 10 GiB of free memory")
    n = 3_000_000_000
    element = bytes(n)
    encoded = tw.encode_bytes([element, b"tail"])
    assert len(encoded) == n + 12
    tensor = tw.decode_bytes(encoded, 2)
    assert (len(tensor.view(0)), tensor[1]) == (n, b"tail")


# --- what reviewers found ---


def test_rows_cost_what_they_hold() -> None:
    """Iterating [n, 1] is linear: no index array of the whole tensor is made for each row."""
    tensor = tw.decode_bytes(bytes(4 * 20_000)).reshape((20_000, 1))
    tracemalloc.start()
    assert [row.shape for row in tensor] == [(1,)] * 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    assert tensor[np.int64(-1)].tolist() == [b""]
    assert tracemalloc.get_traced_memory()[1] - before < 4_000
    tracemalloc.stop()
    assert peak < 8_000_000


def test_views_leak_no_reference() -> None:
    tensor = tw.decode_bytes(WIRE)
    request = tw.InferRequest([tw.Tensor("x", np.zeros(3))])
    before = sys.getrefcount(None)
    for _ in range(1_000):
        tensor.view(0)
        tw.encode_request(request)
        memoryview(tw.BodyBuffer(5))
    assert abs(sys.getrefcount(None) - before) < 100


def test_the_shape_cannot_be_forged() -> None:
    tensor = tw.decode_bytes(WIRE)
    with pytest.raises(AttributeError):
        tensor.shape = (5_000,)  # type: ignore[misc]


def test_misaligned_arrays() -> None:
    for array in (np.array(["abé", "x"]), np.array([b"ab", b"c"])):
        memory = np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:]
        misaligned = memory.view(array.dtype)
        assert tw.encode_bytes(misaligned) == tw.encode_bytes(array)


def test_what_is_no_code_point() -> None:
    array = np.array([0x41, 0x110000], np.uint32).view("U2")
    with pytest.raises(tw.EncodeError) as caught:
        tw.encode_bytes(array)
    assert str(caught.value) == (
        "element 0 has no code point, U+110000 at character 1, and no UTF-8 form"
    )


def test_memoryviews_that_cannot_be_read() -> None:
    released = memoryview(b"abc")
    released.release()
    for view in (released, memoryview(b"abcd")[::2]):
        with pytest.raises(tw.EncodeError) as caught:
            tw.encode_bytes(["a", view])
        assert str(caught.value) == (
            "element 1 is a memoryview that is released, or not contiguous"
        )


def test_lists_without_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: Any = "x"
    for _ in range(2_000):
        deep = [deep]
    for values in (endless, deep):
        for datatype in ("BYTES", "FP32", None):
            with pytest.raises(tw.EncodeError):
                tw.Tensor("x", values, datatype=datatype)


# --- for the integrations --------------------------------------------------------------------


def test_the_bytes_of_the_next_elements() -> None:
    body = Body(b"??" + tw.encode_bytes([b"a", b"", b"bc"]) + b"\xff\xff\xff\xff?")
    assert [_elements.nbytes_of(body, 2, n, "region", None) for n in range(4)] == [0, 5, 9, 15]
    assert _elements.nbytes_of(body, body.nbytes, 0, "region", None) == 0
    for n_elements, offset in ((4, 2), (1 << 62, 2), (1, body.nbytes), (1, body.nbytes - 3)):
        with pytest.raises(tw.ElementError, match=r"^element \d is truncated: .* \(region byte "):
            _elements.nbytes_of(body, offset, n_elements, "region", None)


def test_nothing_but_bytes_and_str() -> None:
    class Text(str):
        pass

    plain = np.array([b"a", "b", "\xe9", b""], object)
    assert _pack.all_plain(plain)
    assert _pack.all_plain(plain[:0])
    for value in (None, 1, np.str_("a"), np.bytes_(b"a"), Text("a"), bytearray(b"a")):
        odd = plain.copy()
        odd[3] = value
        assert not _pack.all_plain(odd)
    assert not _pack.all_plain(np.empty(2, object))
    others: list[Any] = [plain[::2], np.array([b"a"]), np.zeros(3)]
    for other in others:
        with pytest.raises(ValueError, match="not a contiguous, aligned array of objects"):
            _pack.all_plain(other)
    nothings: list[Any] = [["a"], None]
    for nothing in nothings:
        with pytest.raises(TypeError):
            _pack.all_plain(nothing)
