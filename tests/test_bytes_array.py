"""decode_bytes, and BytesArray: a sequence of elements over the received bytes, and its UTF-8."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference
from support.bytes_elements import WIRE, WORDS
from support.memory import peak_nbytes
from support.threads import repeating
from tensorwire._codec.bytes.reader import elements_nbytes
from tensorwire._codec.held_buffer import HeldBuffer

STRING = np.dtypes.StringDType()


def grid() -> tuple[tw.BytesArray, np.ndarray[Any, Any]]:
    """Return a BYTES tensor of shape [2, 3, 4] and the object array it should behave like."""
    flat = np.empty(24, object)
    flat[:] = [b"x" * (i % 5) + str(i).encode() for i in range(24)]
    array = flat.reshape(2, 3, 4)
    tensor = tw.Tensor("x", array).data
    assert isinstance(tensor, tw.BytesArray)
    return tensor, array


@pytest.mark.parametrize("count", [None, 5])
def test_one_dimensional_tensor_is_a_sequence(count: int | None) -> None:
    tensor = tw.decode_bytes(WIRE, count)
    assert (len(tensor), tensor.shape, tensor.ndim, tensor.size) == (5, (5,), 1, 5)
    assert tensor.nbytes == len(WIRE)
    assert list(tensor) == [tensor[i] for i in range(-5, 0)] == WORDS
    assert b"a" in tensor
    assert repr(tensor) == f"<BytesArray shape=[5] nbytes={len(WIRE)}>"
    for index in (5, -6):
        with pytest.raises(IndexError, match=f"index {index} is out of range for a dimension of 5"):
            tensor[index]
        with pytest.raises(IndexError):
            tensor.element(index)


INDICES: list[Any] = [
    *(0, -1, np.int64(1), None, (), [], (1, 2, 3), (-1, -1, -1), (..., 1), (1, ..., 2, 3)),
    *(slice(1, None), slice(None, None, -1), slice(5, 2), slice(1, 0), slice(0, -2)),
    *((0, slice(None), 2), (slice(None), 0, slice(1, 3)), (None, 0, None, slice(2, 2))),
    (slice(None, None, -1), slice(1, 2), slice(None, None, 2)),
    (slice(None), [2, 0], slice(None, None, -1)),
    *(np.array([1, 0, 1]), np.array([True, False]), np.broadcast_to(np.int64(1), (2, 2))),
    *((0, 0, np.array([0, 2, 1, 3])), (1, np.array([2, 1, 0])), (np.ones((2, 3), bool), 1)),
    *(slice(2**70, None, 2**70), (slice(-(2**70), 2**70), 1)),
    (np.array([0, 1]), np.array([2, 0]), 3),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_agrees_with_numpy(index: Any) -> None:
    tensor, array = grid()
    found, expected = tensor[index], array[index]
    if isinstance(expected, bytes):
        assert found == expected
        return
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()
    assert found.wire == reference.elements(expected.ravel().tolist())


@pytest.mark.parametrize("shape", [(24,), (1, 24, 1), (2, 3, 4), (4, 6), (1,) * 61 + (2, 3, 4)])
def test_reshape(shape: tuple[int, ...]) -> None:
    tensor, array = grid()
    found = tensor.reshape(shape)
    assert (found.shape, found.tolist()) == (shape, array.reshape(shape).tolist())
    assert tw.decode_bytes(b"").reshape((0, 2**58)).shape == (0, 2**58)


def test_contiguous_rows_are_views_and_other_selections_copies() -> None:
    tensor, _ = grid()
    memory = np.frombuffer(tensor.wire, np.uint8)
    assert np.shares_memory(memory, np.frombuffer(tensor[1].wire, np.uint8))
    assert np.shares_memory(memory, np.frombuffer(tensor[0, 1:].wire, np.uint8))
    assert not np.shares_memory(memory, np.frombuffer(tensor[:, ::2].wire, np.uint8))


@pytest.mark.thread_unsafe(reason="it measures the memory of the process")
@pytest.mark.parametrize(
    ("index", "n_selected"),
    [
        *(((0, 0), 1), ((5,), 100), ((-1, -1), 1), ((0, slice(5, 7)), 2), ((slice(3, 5), 7), 2)),
        ((slice(0, 10_000, 2_500), slice(None, None, 50)), 8),
        *(((..., 3, 4), 1), ((None, 3, 4, None), 1), ([7], 100), (([7, 9], [1, 2]), 2)),
    ],
    ids=str,
)
def test_cost_of_an_index_does_not_depend_on_the_size(index: Any, n_selected: int) -> None:
    tensor = tw.decode_bytes(bytes(4 * 1_000_000)).reshape((10_000, 100))
    found = tensor[index]
    assert (1 if isinstance(found, bytes) else found.size) == n_selected
    assert peak_nbytes(lambda: tensor[index]) < 10_000 + 100 * n_selected


@pytest.mark.thread_unsafe(reason="it measures the memory of the process")
def test_iterating_rows_allocates_linearly() -> None:
    """For [n, 1], no index array of the whole tensor is created for each row."""
    tensor = tw.decode_bytes(bytes(4 * 20_000)).reshape((20_000, 1))
    assert peak_nbytes(lambda: [row.shape for row in tensor]) < 8_000_000
    assert [row.shape for row in tensor] == [(1,)] * 20_000
    assert peak_nbytes(lambda: [tensor[np.int64(-1)]]) < 4_000


@pytest.mark.parametrize("sequence", [b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98"])
def test_sequence_is_not_completed_by_the_next_element(sequence: bytes) -> None:
    """The length prefix of the next element begins with a byte that could follow."""
    tensor = tw.decode_bytes(reference.elements([b"a" + sequence, b"b" * 0x80]))
    with pytest.raises(tw.ElementError, match="element 0 of the array is not valid UTF-8"):
        tensor.as_numpy(STRING)
    values = tw.Tensor("x", tensor, binary=False)
    with pytest.raises(tw.EncodeError, match="element 0 of input 'x' is not valid UTF-8"):
        tw.encode_request(tw.InferRequest([values]))


def test_invalid_utf8_is_reported_with_tensor_element_and_offset() -> None:
    tensor = tw.Tensor("text", tw.decode_bytes(reference.elements([b"fine", b"ab\xff"])))
    elements = tensor.elements
    conversions: list[tuple[str | None, Callable[[], Any]]] = [
        *(("text", call) for call in (tensor.as_strings, lambda: np.asarray(tensor, STRING))),
        *((None, call) for call in (elements.as_strings, lambda: np.asarray(elements, STRING))),
        (None, lambda: elements.as_numpy(STRING)),
    ]
    for name, convert in conversions:
        with pytest.raises(tw.ElementError) as caught:
            convert()
        error = caught.value
        assert str(error) == (
            f"element 1 of {'the array' if name is None else 'tensor ' + repr(name)} is not valid "
            "UTF-8: invalid start byte at its byte 2 (body byte 14)"
        )
        assert (error.tensor, error.element, error.offset) == (name, 1, 14)


def test_scalar() -> None:
    tensor = tw.Tensor("x", np.array(b"one", object)).data
    assert isinstance(tensor, tw.BytesArray)
    assert (tensor.shape, tensor[()], tensor.tolist()) == ((), b"one", b"one")
    assert tensor.as_numpy().shape == ()
    with pytest.raises(TypeError):
        len(tensor)


def test_equality_compares_shape_and_elements() -> None:
    one, other = tw.decode_bytes(WIRE), tw.decode_bytes(bytearray(WIRE))
    assert one == other
    assert tw.decode_bytes(tw.BodyBuffer()) == tw.decode_bytes(b"")
    assert one != other[:4]
    assert one.reshape((5, 1)) != one
    assert one != WORDS
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


# --- errors of decode_bytes ---


SHORT = "element 0 of the body is truncated: "
MISMATCH = "the body does not match its shape: "


@pytest.mark.parametrize(
    ("data", "count", "kind", "message"),
    [
        (b"\1", None, tw.ElementError,
         SHORT + "a length prefix has 4 bytes, but 1 remain (body byte 0)"),
        (b"\xff\xff\xff\xff", 1, tw.ElementError,
         SHORT + "its prefix declares 4294967295 bytes, but 0 remain (body byte 0)"),
        (WIRE, 6, tw.LayoutError, MISMATCH + "it has 6 elements, but its bytes have 5"),
        (WIRE, 4, tw.LayoutError, MISMATCH +
         "it has 4 elements of 22 bytes in total, but there are 46 (body byte 22)"),
        (WIRE, 2**50, tw.LayoutError, MISMATCH + "at least 4503599627370496 bytes are required for "
         "1125899906842624 BYTES elements, but there are 46"),
        (WIRE, 2**64, tw.LayoutError, MISMATCH + "at least more than 2^64 bytes are required for "
         "more than 2^64 BYTES elements, but there are 46"),
    ],
)  # fmt: skip
def test_invalid_buffers_are_rejected(
    data: bytes, count: int | None, kind: type, message: str
) -> None:
    with pytest.raises(tw.DecodeError) as caught:
        tw.decode_bytes(data, count)
    assert (type(caught.value), str(caught.value)) == (kind, message)


# --- memory that another thread writes to ---


def test_objects_of_long_elements() -> None:
    """They are made in batches of up to 64 KiB of elements, or of one."""
    words = [b"x" * 70_000, b"a", b"y" * 40_000, b"z" * 40_000]
    assert tw.decode_bytes(reference.elements(words)).tolist() == words


def test_lengths_come_from_the_scan() -> None:
    """Prefixes that change after the scan change neither the lengths nor the other elements."""
    body = bytearray(WIRE)
    tensor = tw.decode_bytes(body)
    starts = [tensor.wire.nbytes - tensor[i:].nbytes for i in range(len(tensor))]
    for start in starts:
        body[start : start + 4] = b"\xff\xff\xff\x7f"
    assert tensor.tolist() == WORDS
    assert [bytes(tensor.element(i)) for i in range(len(tensor))] == WORDS
    assert tensor[::2].tolist() == WORDS[::2]
    assert tensor.as_strings().tolist() == [word.decode() for word in WORDS]


@pytest.mark.thread_unsafe(reason="it starts threads")
def test_body_that_changes_during_the_scan() -> None:
    """The scan stays within the body: the result is elements or a DecodeError."""
    n_words = 2 << 20  # so many elements are scanned without the GIL
    body = bytearray(4 * n_words)
    words = np.frombuffer(body, np.uint32)

    def rewrite() -> None:
        """Make the elements empty or 4 bytes long, one after the other, and start again."""
        words[::2] = 4
        words[::2] = 0

    n_rejected = 0
    with repeating(rewrite):
        for _ in range(200):
            try:
                tensor = tw.decode_bytes(body)
            except tw.DecodeError:  # the elements were counted before the change
                n_rejected += 1
            else:
                assert sum(map(len, tensor.tolist())) + 4 * len(tensor) == len(body)
            if n_rejected == 20:
                break
    assert n_rejected > 0


# --- more than 2 GiB ---


@pytest.mark.nightly(reason="it copies 3 GB")
@pytest.mark.thread_unsafe(reason="it takes the memory of the machine")
@pytest.mark.no_sanitizers(reason="it takes 6 GB there")
def test_element_of_3_gb() -> None:
    # macOS does not say how much memory is free.
    n_pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
    if n_pages * os.sysconf("SC_PAGE_SIZE") < 10 << 30:
        pytest.skip("this machine has less than 10 GiB of free memory")
    n = 3_000_000_000
    element = bytes(n)
    encoded = tw.encode_bytes([element, b"tail"])
    assert len(encoded) == n + 12
    tensor = tw.decode_bytes(encoded, 2)
    assert (len(tensor.element(0)), tensor[1]) == (n, b"tail")


# --- used by the integrations ---


def test_nbytes_of_the_first_elements() -> None:
    memory = tw.encode_bytes([b"a", b"", b"bc"]) + b"\xff\xff\xff\xff?"
    assert [elements_nbytes(HeldBuffer(memory), n) for n in range(4)] == [0, 5, 9, 15]
    assert elements_nbytes(HeldBuffer(b""), 0) == 0
    for n_elements, rest in ((4, memory), (1 << 62, memory), (1, b""), (1, b"\0\0\0")):
        with pytest.raises(tw.ElementError, match=r"^element \d of .* is truncated: "):
            elements_nbytes(HeldBuffer(rest), n_elements)
