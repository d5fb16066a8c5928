"""BytesArray to Arrow without copying elements; BYTES from every Arrow type of bytes or text."""

from __future__ import annotations

import ctypes
import mmap
import re
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference
from support.arrow_numbers import NumbersStream, TextProducer
from support.memory import peak_nbytes
from support.requirements import optional, package

pa = package("pyarrow")
pl = optional("polars")

# Lengths around the 12 bytes that a view stores inline; empty; with NULs. The last is not UTF-8.
TEXT = [b"", b"a", b"x" * 11, b"y" * 12, b"z" * 13, "é🜚".encode() * 9, b"a\0b\0", b"w" * 70_000]
ANY = [*TEXT, b"\xff\xfe" * 9]

OUTSIDE = "of the argument is outside its Arrow buffer"
CONSUMED = "^tensor 'x' is an Arrow {} that has already been consumed: its capsule is released$"


def tensor_of(elements: list[bytes]) -> tw.BytesArray:
    return tw.decode_bytes(reference.elements(elements))


# --- BytesArray to Arrow ---


def exported(elements: Any, requested: Any) -> Any:
    """Return the array that pyarrow imports for a requested type."""
    request = None if requested is None else requested.__arrow_c_schema__()
    array = pa.Array._import_from_c_capsule(*elements.__arrow_c_array__(request))
    array.validate(full=True)
    return array


@pytest.mark.parametrize("requested", [pa.string(), pa.large_binary()], ids=str)
def test_elements_of_a_requested_type_with_offsets_are_copied(requested: Any) -> None:
    memory = bytearray(reference.elements([b"before", b"x" * 100]))
    elements = tw.decode_bytes(memory)
    array = exported(elements, requested)
    del elements
    memory.clear()  # a BufferError if the array had the memory
    assert array[1].as_py() in ("x" * 100, b"x" * 100)


def test_data_buffers_are_the_body() -> None:
    body = reference.elements(ANY)
    array = pa.array(tw.decode_bytes(body))
    begin = np.frombuffer(body, np.uint8).ctypes.data
    _, views, *data = array.buffers()
    assert views.size == 16 * len(ANY)
    assert all(begin <= buffer.address < begin + len(body) for buffer in data)
    assert data[0].address == begin + body.index(b"z" * 13)  # the first long element


@pytest.mark.thread_unsafe(reason="it measures the process")
def test_export_allocates_16_bytes_per_element() -> None:
    n = 50_000
    tensor = tensor_of([b"x" * 40] * n)
    tensor.__arrow_c_array__()
    assert 16 * n <= peak_nbytes(tensor.__arrow_c_array__) < 16 * n + 2048


def huge_body(lengths: list[int]) -> tuple[mmap.mmap, list[int]]:
    """Return a body of several GiB with only few pages in memory, and the element offsets."""
    body = mmap.mmap(-1, sum(lengths) + 4 * len(lengths))
    position, starts = 0, []
    for i, length in enumerate(lengths):
        body[position : position + 4] = length.to_bytes(4, "little")
        starts.append(position + 4)
        body[position + 4 : position + 8] = i.to_bytes(4, "little")
        position += 4 + length
    return body, starts


G = 1 << 30


@pytest.mark.parametrize(
    ("lengths", "n_buffers"),
    [
        ([G, G - 5], 1),  # 2^31 - 1 bytes, with the prefix in between
        ([G, G - 4], 2),
        ([G, G - 5, 20], 2),
        ([G, G, G, 20], 3),
        ([2**31 - 1, 20, 2**31 - 1], 3),
        ([13] * 3 + [2**31 - 1, 2**31 - 1], 3),
    ],
)
def test_export_uses_several_data_buffers_above_2_gib(lengths: list[int], n_buffers: int) -> None:
    body, starts = huge_body(lengths)
    array = pa.array(tw.decode_bytes(body))
    _, views, *data = array.buffers()
    assert len(data) == n_buffers
    begin = np.frombuffer(body, np.uint8).ctypes.data
    fields = np.frombuffer(views, "<i4").reshape(-1, 4)
    for (nbytes, prefix, buffer, offset), length, start, i in zip(
        fields.tolist(), lengths, starts, range(99), strict=False
    ):
        assert (nbytes, prefix) == (length, i)
        assert data[buffer].address + offset == begin + start
        assert offset + length <= data[buffer].size


def test_element_too_long_for_a_view_is_rejected() -> None:
    body, _ = huge_body([20, 2**31])
    message = "^element 1 is 2147483648 bytes long; the limit for an Arrow view is 2147483647$"
    with pytest.raises(tw.EncodeError, match=message):
        pa.array(tw.decode_bytes(body))


def test_more_bytes_than_offsets_of_32_bits_can_address() -> None:
    body, _ = huge_body([G, G])
    assert exported(tw.decode_bytes(body), pa.binary()).type == pa.binary_view()


# --- Arrow to BYTES ---


@pytest.mark.parametrize("elements", [TEXT, []], ids=["text", "empty"])
def test_streams(elements: list[bytes]) -> None:
    text = [each.decode() for each in elements]
    for values in (
        pa.chunked_array([text[:3], text[3:]], pa.string()),
        pa.chunked_array([text] if text else [], pa.large_binary()),
        *(pl.Series(elements, dtype=pl.Binary), pl.Series(text, dtype=pl.String)),
        pl.Series(TEXT + elements)[len(TEXT) :],
    ):
        assert tw.encode_bytes(values) == reference.elements(elements)
        assert tw.Tensor("x", values, shape=(len(text), 1)).shape == (len(text), 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1, 2]), "of format 'l', not one of binary,"),
        (pa.array(["a", "a"]).dictionary_encode(), "with a dictionary,"),
        (pa.nulls(2), "of format 'n'"),
        (pa.table({"x": ["a"]}), "of format '+s'"),
        (pa.chunked_array([[1.5]]), "of format 'g'"),
    ],
)
def test_other_arrow_types_are_rejected(values: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError, match=re.escape(f"argument is an Arrow array {message}")):
        tw.encode_bytes(values)


def test_element_of_4_gib_is_rejected() -> None:
    memory = mmap.mmap(-1, 2**32 + 1)  # pages that are not written take no memory
    offsets = np.array([0, 1, 2**32 + 1], np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(memory)]
    array = pa.Array.from_buffers(pa.large_binary(), 2, buffers)
    with pytest.raises(tw.EncodeError, match=r"element 1 .* is 4294967296 bytes long"):
        tw.encode_bytes(array)


@pytest.mark.parametrize(
    "view", [(20, 0, 0, 13), (20, 0, 1, 0), (20, 0, -1, 0), (20, 0, 0, -1), (-5, 0, 0, 0)]
)
def test_view_outside_its_buffer_is_rejected(view: tuple[int, ...]) -> None:
    def encode(*views: tuple[int, ...]) -> bytes:
        buffers = [None, pa.py_buffer(np.array(views, "<i4")), pa.py_buffer(b"x" * 32)]
        return tw.encode_bytes(pa.Array.from_buffers(pa.binary_view(), len(views), buffers))

    good = (20, 0, 0, 12)
    assert encode(good) == reference.elements([b"x" * 20])
    with pytest.raises(tw.EncodeError, match=f"element 1 {OUTSIDE}"):
        encode(good, view)


@pytest.mark.parametrize("reason", ["the disk is gone", None])
def test_failing_stream_raises_with_its_message(reason: str | None) -> None:
    stream = NumbersStream([], error=None if reason is None else reason.encode())
    message = f"^the Arrow stream of tensor 'x' failed: {reason or 'no reason given'}$"
    with pytest.raises(tw.EncodeError, match=message):
        tw.Tensor("x", stream)
    assert stream.n_releases == 1


@pytest.mark.parametrize("i", [0, 1])
def test_stream_without_callbacks_is_rejected(i: int) -> None:
    stream = NumbersStream([])
    stream.stream[i] = None
    with pytest.raises(tw.EncodeError, match="its stream has no get_schema or get_next"):
        tw.Tensor("x", stream)
    assert stream.n_releases == 1


# --- invalid producers and consumed capsules ---


@pytest.mark.parametrize("layout", [b"u", b"z", b"U", b"Z"])
def test_array_is_moved_and_released_once(layout: bytes) -> None:
    producer = TextProducer(layout)
    tensor = tw.Tensor("x", producer)
    assert tensor.as_numpy().tolist() == [b"a", b"bc", b"def"]
    assert producer.n_releases == 1
    assert producer.array.release is None  # as the interface prescribes
    with pytest.raises(tw.EncodeError, match=CONSUMED.format("array")):
        tw.Tensor("x", producer)
    assert producer.n_releases == 1


@pytest.mark.parametrize("layout", [b"u", b"z", b"U", b"Z"])
@pytest.mark.parametrize("null_count", [-1, 1])
def test_null_that_the_producer_has_counted_or_not(layout: bytes, null_count: int) -> None:
    for bits, element in ((b"\x05", 1), (b"\x03", 2), (b"\xff", None)):
        producer = TextProducer(layout, null_count=null_count)
        validity = ctypes.create_string_buffer(bits)
        producer.buffers[0] = ctypes.addressof(validity)
        if element is None:
            assert tw.Tensor("x", producer).as_numpy().tolist() == [b"a", b"bc", b"def"]
            continue
        with pytest.raises(tw.EncodeError, match=r"contains [12] nulls?") as caught:
            tw.Tensor("x", producer)
        assert caught.value.element == element


INVALID_FIELDS: dict[str, dict[str, Any]] = {  # test_arrow_numbers.py has more
    "its length is 3 and its offset is -2": {"offset": -2},
    f"its offset {2**62} and length {2**62} add up to {2**63} elements; the limit": dict.fromkeys(
        ("offset", "length"), 2**62
    ),
    "its null count is -2": {"null_count": -2},
    "it has 2 buffers, not 3": {"n_buffers": 2},
    "it has 3 elements, but its buffer of offsets or views is NULL": {"has_offsets": False},
    "its data ends at 6, and its data buffer is NULL": {"has_data": False},
    "its data begins at -1 and ends at 6": {"offsets": (-1, 1, 3, 6)},
    "its data begins at 3 and ends at 1": {"offsets": (3, 1, 2, 1)},
    f"element 1 {OUTSIDE}": {"offsets": (0, 4, 3, 6)},
    f"element 0 {OUTSIDE}": {"offsets": (0, 7, 7, 6)},
}


@pytest.mark.parametrize("message", INVALID_FIELDS)
@pytest.mark.parametrize("layout", [b"u", b"Z"])
def test_invalid_array_fields_are_rejected(message: str, layout: bytes) -> None:
    producer = TextProducer(layout, **INVALID_FIELDS[message])
    with pytest.raises(tw.EncodeError, match=re.escape(message)):
        tw.encode_bytes(producer)
    assert producer.n_releases == 1


def test_invalid_view_arrays_are_rejected() -> None:
    views, data = (ctypes.c_int32 * 4)(20, 0, 0, 0), ctypes.create_string_buffer(20)
    view, text = ctypes.addressof(views), ctypes.addressof(data)

    def sized(nbytes: int, data: int | None = text) -> dict[str, Any]:
        sizes = (ctypes.c_int64 * 1)(nbytes)
        kept.append(sizes)
        return with_buffers(None, view, data, ctypes.addressof(sizes))

    def with_buffers(*addresses: int | None) -> dict[str, Any]:
        buffers = (ctypes.c_void_p * 4)(*addresses)
        kept.append(buffers)
        return {"length": 1, "n_buffers": 4, "buffers": ctypes.addressof(buffers)}

    kept: list[Any] = []
    for fields, message in (
        ({"n_buffers": 2}, "it has 2 buffers, not 3"),
        ({"has_offsets": False}, "it has 3 elements, but its buffer of offsets or views is NULL"),
        (with_buffers(None, view, text, None), "its data buffers have no sizes"),
        (sized(-(2**63)), f"element 0 {OUTSIDE}"),
        (sized(20, data=None), f"element 0 {OUTSIDE}"),
    ):
        producer = TextProducer(b"vu", **fields)
        with pytest.raises(tw.EncodeError, match=message):
            tw.encode_bytes(producer)
        assert producer.n_releases == 1
    assert tw.encode_bytes(TextProducer(b"vu", **sized(20))) == reference.elements([bytes(20)])


@pytest.mark.parametrize("data", [True, False])
def test_empty_elements_need_no_data(data: bool) -> None:
    assert tw.encode_bytes(TextProducer(offsets=(0, 0, 0, 0), has_data=data)) == bytes(12)
    assert tw.encode_bytes(TextProducer(length=0, has_offsets=False, has_data=data)) == b""


def test_unreadable_schemas_are_rejected() -> None:
    producer = TextProducer()
    producer.schema.release = None
    with pytest.raises(tw.EncodeError, match="is an Arrow schema that has already been consumed"):
        tw.encode_bytes(producer)
    assert producer.n_releases == 0  # the producer remains its owner
    with pytest.raises(tw.EncodeError, match="its schema has no format"):
        tw.encode_bytes(TextProducer(format=None))


def exporting(method: str, exported: Any) -> Any:
    """Return an object that returns `exported` from a method of Arrow."""
    return type("Exporting", (), {method: lambda self, requested_schema=None: exported})()


PRODUCER = TextProducer()
SCHEMA, ARRAY = PRODUCER.__arrow_c_array__()
PAIR = "^__arrow_c_array__ must return a tuple of two capsules, not"
CAPSULE = "^__arrow_c_array__ must return an 'arrow_(schema|array)' capsule, not"
STREAM = "^__arrow_c_stream__ must return an 'arrow_array_stream' capsule, not"


@pytest.mark.parametrize(
    ("message", "exported"),
    [
        *((PAIR, value) for value in (None, (), (1,), (1, 2, 3), [1, 2], 5)),
        *((CAPSULE, pair) for pair in ((ARRAY, SCHEMA), (SCHEMA, SCHEMA), (None, ARRAY))),
        *((CAPSULE, (SCHEMA, 5)), *((STREAM, value) for value in (None, ARRAY, 5))),
    ],
)
def test_exports_of_wrong_types_are_rejected(message: str, exported: Any) -> None:
    method = "__arrow_c_stream__" if message == STREAM else "__arrow_c_array__"
    with pytest.raises(TypeError, match=message):
        tw.encode_bytes(exporting(method, exported))


def test_requested_schema_must_be_a_schema() -> None:
    tensor, producer = tensor_of(TEXT), TextProducer()
    schema, array = producer.__arrow_c_array__()
    values: tuple[Any, ...] = (5, "text", array)
    for value in values:
        with pytest.raises(TypeError, match="requested schema must be an 'arrow_schema' capsule,"):
            tensor.__arrow_c_array__(value)
    for format in (b"", b"u:", b"uu", b"+s", b"v", b"\xff" * 1000):
        producer.schema.format = format
        given, _ = tensor.__arrow_c_array__(schema)
        assert pa.DataType._import_from_c_capsule(given) == pa.binary_view()
    for field, problem in (("format", "has no format"), ("release", "has been released")):
        setattr(producer.schema, field, None)
        with pytest.raises(tw.EncodeError, match=f"the requested Arrow schema {problem}"):
            tensor.__arrow_c_array__(schema)


def test_consumed_stream_is_rejected() -> None:
    values = pa.chunked_array([pa.array(["a", "b"])])
    by_us, by_others = (
        exporting("__arrow_c_stream__", values.__arrow_c_stream__()) for _ in range(2)
    )
    assert tw.encode_bytes(by_us) == reference.elements([b"a", b"b"])
    pa.chunked_array(by_others)
    for producer in (by_us, by_others):
        with pytest.raises(tw.EncodeError, match=CONSUMED.format("stream")):
            tw.Tensor("x", producer)
