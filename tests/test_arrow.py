"""BYTES to Arrow without copying the payload, and back from every Arrow type of bytes or text."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import wire
from lifetimes import Owned, assert_held_until_it_goes

MISSING = "pip install '.[test]' for pyarrow, polars and duckdb"
if os.environ.get("CI"):
    import duckdb
    import polars as pl
    import pyarrow as pa
else:
    pa = pytest.importorskip("pyarrow", reason=MISSING)
    pl = pytest.importorskip("polars", reason=MISSING)
    duckdb = pytest.importorskip("duckdb", reason=MISSING)

# Around the 12 bytes that stand in the view itself, empty, NULs, and no UTF-8 at the end.
TEXT = [b"", b"a", b"x" * 11, b"y" * 12, b"z" * 13, "é🜚".encode() * 9, b"a\0b\0", b"w" * 70_000]
ANY = [*TEXT, b"\xff\xfe" * 9]


def tensor_of(elements: list[bytes]) -> tw.BytesTensor:
    return tw.decode_bytes(wire.elements(elements))


# --- out ---


def test_pyarrow_reads_the_elements() -> None:
    array = pa.array(tensor_of(ANY))
    array.validate(full=True)
    assert array.type == pa.binary_view()
    assert array.null_count == 0
    assert array.to_pylist() == ANY
    assert array.cast(pa.binary()).to_pylist() == ANY


def test_text_is_string_view_on_request() -> None:
    array = pa.array(tensor_of(TEXT), type=pa.string_view())
    array.validate(full=True)
    assert array.type == pa.string_view()
    assert array.to_pylist() == [text.decode() for text in TEXT]
    with pytest.raises(tw.ElementError, match="element 8 is not UTF-8: invalid start byte at"):
        pa.array(tensor_of(ANY), type=pa.string_view())


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()])
def test_any_text_type_asks_for_text(text: Any) -> None:
    schema, _ = tensor_of(TEXT).__arrow_c_array__(text.__arrow_c_schema__())
    assert pa.DataType._import_from_c_capsule(schema) == pa.string_view()


@pytest.mark.parametrize("asked", [None, pa.binary(), pa.int32(), pa.binary_view()])
def test_anything_else_gets_bytes(asked: Any) -> None:
    request = None if asked is None else asked.__arrow_c_schema__()
    schema, _ = tensor_of(ANY).__arrow_c_array__(request)
    assert pa.DataType._import_from_c_capsule(schema) == pa.binary_view()


def test_polars_and_duckdb_read_the_elements() -> None:
    tensor = tensor_of(ANY)
    assert pl.Series(pl.from_arrow(tensor)).to_list() == ANY
    assert pl.Series(tensor).to_list() == ANY
    table = pa.table({"x": tensor, "t": pa.array(tensor_of([*TEXT, b"-"]), type=pa.string_view())})
    with duckdb.connect() as connection:
        connection.register("elements", table)
        found = connection.sql("select octet_length(x), strlen(t) from elements").fetchall()
    assert found == [(len(x), len(t)) for x, t in zip(ANY, [*TEXT, b"-"], strict=True)]


@pytest.mark.parametrize("elements", [[], [b""], [b"", b""], [b"x" * 12], [b"x" * 13]])
def test_small_arrays(elements: list[bytes]) -> None:
    array = pa.array(tensor_of(elements))
    array.validate(full=True)
    assert array.to_pylist() == elements
    assert pl.Series(tensor_of(elements)).to_list() == elements


def test_the_data_buffer_is_the_body() -> None:
    body = wire.elements(ANY)
    array = pa.array(tw.decode_bytes(body))
    begin = np.frombuffer(body, np.uint8).ctypes.data
    _, views, *data = array.buffers()
    assert views.size == 16 * len(ANY)
    assert all(begin <= buffer.address < begin + len(body) for buffer in data)
    assert data[0].address == begin + body.index(b"z" * 13)  # the first that is not in its view


def test_slices_and_dimensions() -> None:
    tensor = tensor_of(ANY[:8])
    assert pa.array(tensor[3:7]).to_pylist() == ANY[3:7]
    assert pa.array(tensor[::2]).to_pylist() == ANY[:8:2]
    assert pa.array(tensor.reshape((2, 2, 2))).to_pylist() == ANY[:8]  # row-major
    assert pa.array(tensor.reshape((4, 2))[:, 1]).to_pylist() == ANY[1:8:2]


def test_the_element_of_a_raw_request() -> None:
    spec = tw.TensorSpec("x", "BYTES", [1])
    tensor = tw.decode_request(b"z" * 40, 0, raw_input=spec)["x"].data
    assert pa.array(tensor).to_pylist() == [b"z" * 40]


@pytest.mark.parametrize("consume", [pa.array, pl.from_arrow, lambda t: t.__arrow_c_array__()])
def test_the_array_holds_the_body_and_lets_go(consume: Callable[[Any], Any]) -> None:
    assert_held_until_it_goes(wire.elements(ANY), lambda body: consume(tw.decode_bytes(body)))


def test_a_refused_export_lets_go() -> None:
    body = Owned(wire.elements([b"\xff" * 20]))
    with pytest.raises(tw.ElementError):
        pa.array(tw.decode_bytes(body), type=pa.string_view())
    gc.collect()
    body.append(0)


@pytest.mark.thread_unsafe(reason="it measures the process")
def test_an_export_takes_16_bytes_an_element() -> None:
    n = 50_000
    tensor = tensor_of([b"x" * 40] * n)
    tensor.__arrow_c_array__()
    tracemalloc.start()
    held = tensor.__arrow_c_array__()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 16 * n <= peak < 16 * n + 2048
    del held


def huge_body(lengths: list[int]) -> tuple[mmap.mmap, list[int]]:
    """A body of many GiB of which only the touched pages exist; and where the elements stand."""
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
def test_several_data_buffers_past_2_gib(lengths: list[int], n_buffers: int) -> None:
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


def test_an_element_too_long_for_a_view() -> None:
    body, _ = huge_body([20, 2**31])
    with pytest.raises(tw.EncodeError) as caught:
        pa.array(tw.decode_bytes(body))
    assert str(caught.value) == (
        "element 1 is too long for an Arrow view: 2147483648 bytes, of which 2147483647 are "
        "possible"
    )


# --- in ---

BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]


@pytest.mark.parametrize("arrow_type", BYTES_TYPES + TEXT_TYPES, ids=str)
def test_every_type_of_bytes_and_text(arrow_type: Any) -> None:
    elements = ANY if arrow_type in BYTES_TYPES else TEXT
    array = pa.array(elements, type=arrow_type)
    for part, expected in ((array, elements), (array[3:], elements[3:]), (array[2:2], [])):
        assert tw.encode_bytes(part) == wire.elements(expected)
        tensor = tw.Tensor("x", part)
        assert (tensor.datatype, tensor.shape) == ("BYTES", (len(expected),))
        assert tensor.as_numpy().tolist() == expected


@pytest.mark.parametrize(
    "values",
    [
        pa.chunked_array([pa.array(TEXT[:3], pa.binary()), pa.array(TEXT[3:], pa.binary())]),
        pa.chunked_array([], pa.string()),
        pl.Series(TEXT),
        pl.Series([text.decode() for text in TEXT]),
        pl.Series(TEXT * 2)[len(TEXT) :],
    ],
    ids=["chunked", "no chunks", "polars binary", "polars text", "polars slice"],
)
def test_streams(values: Any) -> None:
    expected = TEXT if len(values) else []
    assert tw.encode_bytes(values) == wire.elements(expected)
    assert tw.Tensor("x", values, shape=(len(expected), 1)).shape == (len(expected), 1)


def test_there_and_back_without_python_objects() -> None:
    tensor = tensor_of(ANY)
    assert tw.encode_bytes(pa.array(tensor)) == tensor.wire


@pytest.mark.parametrize("arrow_type", BYTES_TYPES + TEXT_TYPES, ids=str)
def test_nulls_are_refused_by_index(arrow_type: Any) -> None:
    array = pa.array([b"a"] * 9 + [None, b"b"], type=arrow_type)
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("x", array[2:])
    assert str(caught.value) == ("element 7 of tensor 'x' is null, and BYTES has no missing values")
    assert (caught.value.element, caught.value.tensor) == (7, "x")
    assert tw.encode_bytes(array[:9]) == wire.elements([b"a"] * 9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1, 2]), "the Arrow array is of format 'l', not binary,"),
        (pa.array(["a", "a"]).dictionary_encode(), "the Arrow array is dictionary-encoded,"),
        (pa.nulls(2), "the Arrow array is of format 'n'"),
        (pa.table({"x": ["a"]}), "the Arrow array is of format '+s'"),
        (pl.Series([1.5]), "the Arrow array is of format 'g'"),
    ],
)
def test_other_types_are_refused(values: Any, message: str) -> None:
    with pytest.raises(tw.EncodeError) as caught:
        tw.encode_bytes(values)
    assert message in str(caught.value)


def test_numbers_go_through_numpy() -> None:
    tensor = tw.Tensor("x", pa.array([1.5, 2.5], pa.float32()))
    assert (tensor.datatype, tensor.as_numpy().tolist()) == ("FP32", [1.5, 2.5])
    assert tw.Tensor("x", pl.Series([1, 2])).datatype == "INT64"


class Forged:
    """An array whose views lie: what a library with a bug would export."""

    def __init__(self, views: bytes) -> None:
        self.array = pa.Array.from_buffers(
            pa.binary_view(), len(views) // 16, [None, pa.py_buffer(views), pa.py_buffer(b"x" * 32)]
        )

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.array.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "view", [(20, 0, 0, 13), (20, 0, 1, 0), (20, 0, -1, 0), (20, 0, 0, -1), (-5, 0, 0, 0)]
)
def test_a_view_never_leaves_its_buffer(view: tuple[int, ...]) -> None:
    good = np.array((20, 0, 0, 12), "<i4").tobytes()
    with pytest.raises(tw.EncodeError, match="element 1 lies outside its Arrow buffer"):
        tw.encode_bytes(Forged(good + np.array(view, "<i4").tobytes()))
    assert tw.encode_bytes(Forged(good)) == wire.elements([b"x" * 20])


class FailingStream:
    """A stream that answers every call with EIO, and says why or not."""

    def __init__(self, reason: bytes | None) -> None:
        fail = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        say = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        self.text = None if reason is None else ctypes.create_string_buffer(reason)
        at = None if self.text is None else ctypes.addressof(self.text)
        release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self.n_releases = 0
        self.calls = (
            fail(lambda *_: 5),
            fail(lambda *_: 5),
            say(lambda _: at),
            release(self.released),
        )
        addresses = [ctypes.cast(call, ctypes.c_void_p).value for call in self.calls]
        self.stream = (ctypes.c_void_p * 5)(*addresses, None)

    def released(self, at: int) -> None:
        self.n_releases += 1
        (ctypes.c_void_p * 5).from_address(at)[3] = None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.stream), STREAM_NAME, None)


STREAM_NAME = b"arrow_array_stream"  # a capsule keeps the pointer, so it must stay


@pytest.mark.parametrize(
    ("reason", "text"), [(b"the disk is gone", "the disk is gone"), (None, "no reason given")]
)
def test_a_failing_stream_is_told(reason: bytes | None, text: str) -> None:
    stream = FailingStream(reason)
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("x", stream)
    assert stream.n_releases == 1
    assert str(caught.value) == f"Arrow stream 'x' failed: {text}"
