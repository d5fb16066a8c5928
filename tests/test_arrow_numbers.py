"""Numbers to and from Arrow: values, addresses, owners, and invalid structs."""

from __future__ import annotations

import ctypes
import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.array_samples import DTYPES, sample
from support.arrow_numbers import NumbersProducer, NumbersStream
from support.arrow_structs import struct_of
from support.lifetimes import Owned
from support.memory import address, leak_of
from support.requirements import optional, package

pa, pl = package("pyarrow"), optional("polars")

ARROW_TYPES = {name: pa.from_numpy_dtype(dtype) for name, dtype in DTYPES.items() if name != "BF16"}
SHAPES = [(), (0,), (1,), (9,), (3, 4), (2, 3, 4), (0, 3), (3, 0), (2, 0, 3)]


def arrow_type_of(datatype: str, shape: tuple[int, ...]) -> Any:
    """Return the type of the rows of a tensor: fixed-size lists for more than one dimension."""
    found = ARROW_TYPES[datatype]
    for dim in reversed(shape[1:]):
        found = pa.list_(found, dim)
    return found


def innermost(array: Any) -> Any:
    """Return the array of the elements of a pyarrow array of nested lists."""
    while pa.types.is_fixed_size_list(array.type):
        array = array.values
    return array


# --- export ---


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("datatype", ARROW_TYPES)
def test_pyarrow_and_polars_read_a_tensor(datatype: str, shape: tuple[int, ...]) -> None:
    """A tensor without dimensions is an Arrow array of one element."""
    array = sample(datatype, shape)
    exported = pa.array(tw.Tensor("x", array))
    exported.validate(full=True)
    assert exported.type == arrow_type_of(datatype, shape)
    assert exported.to_pylist() == array.reshape(shape or (1,)).tolist()
    is_view = array.size and datatype != "BOOL"
    if is_view:
        assert innermost(exported).buffers()[1].address == address(array)
    if 0 not in shape[1:]:  # polars does not support lists of size 0
        series = pl.Series(tw.Tensor("x", array))
        assert series.to_list() == exported.to_pylist()
        if is_view:
            assert address(tw.Tensor("y", series).as_numpy()) == address(array)


def test_schema_is_that_of_the_array() -> None:
    """A requested type is ignored for numbers; test_arrow.py has BYTES."""
    request = pa.float64().__arrow_c_schema__()
    for tensor, expected in (
        (tw.Tensor("x", np.zeros((2, 3), np.int8)), pa.list_(pa.int8(), 3)),
        (tw.Tensor("x", np.zeros(2, "f4")), pa.float32()),
        (tw.Tensor("x", ["a"]), pa.binary_view()),
    ):
        for schema in (tensor.__arrow_c_schema__(), tensor.__arrow_c_array__(request)[0]):
            assert pa.DataType._import_from_c_capsule(schema) == expected


def test_misaligned_tensor_is_not_copied() -> None:
    memory = np.zeros(8 * 5 + 1, np.uint8)
    array = memory[1:].view("<f8")
    array[:] = range(5)
    exported = pa.array(tw.Tensor("x", array))
    assert exported.buffers()[1].address == address(array)
    assert exported.to_pylist() == [0, 1, 2, 3, 4]
    assert address(tw.Tensor("x", exported).as_numpy()) == address(array)
    assert pl.Series(tw.Tensor("x", array)).to_list() == [0, 1, 2, 3, 4]  # a copy


REGION = {"shared_memory_region": "r"}
BF16 = "tensor 'x' is BF16, which Arrow does not support: convert it to FP32 first"
NOT_EXPORTED: list[tuple[tw.Tensor, str]] = [
    (tw.Tensor("x", np.zeros(2, np.uint16), datatype="BF16"), BF16),
    (tw.Tensor("x", sample("BF16")), BF16),
    (tw.Tensor("x", None, datatype="FP32", shape=[2], parameters=REGION), "tensor 'x' is in sha"),
    (tw.Tensor("x", np.zeros((0, 2**31), np.uint8)), "tensor 'x' has a dimension of 2147483648"),
]


@pytest.mark.parametrize(("tensor", "message"), NOT_EXPORTED)
def test_tensors_that_cannot_be_exported(tensor: tw.Tensor, message: str) -> None:
    exports: list[Callable[[], Any]] = [tensor.__arrow_c_array__]
    if tensor.data is not None:
        exports.append(tensor.__arrow_c_schema__)
    for export in exports:
        with pytest.raises(tw.TensorwireError, match=f"^{message}") as caught:
            export()
        assert caught.value.tensor == "x"


def test_child_of_an_exported_array_can_be_moved_out() -> None:
    """A consumer may keep the elements of lists after it has released the lists."""
    body = Owned(np.arange(6, dtype=np.int32))
    alive = weakref.ref(body)
    tensor = tw.Tensor("x", np.frombuffer(body, np.int32).reshape(2, 3))
    schema_capsule, array_capsule = tensor.__arrow_c_array__()
    for kind, owner in (("schema", schema_capsule), ("array", array_capsule)):
        root = struct_of(owner, kind)
        inner = type(root).from_address(ctypes.c_void_p.from_address(root.children).value)
        moved = type(root).from_buffer_copy(inner)
        inner.release = None
        release(root)
        assert root.release is None
        if kind == "schema":
            assert moved.format == b"i"
            release(moved)
        else:
            elements = moved
    del tensor, body, schema_capsule, array_capsule
    gc.collect()
    data = ctypes.c_void_p.from_address(elements.buffers + 8).value or 0
    assert alive() is not None
    assert list((ctypes.c_int32 * elements.length).from_address(data)) == [0, 1, 2, 3, 4, 5]
    release(elements)
    gc.collect()
    assert alive() is None


LISTS = tw.Tensor("x", np.zeros((2, 3, 4), np.int32))
UNUSED: dict[str, Callable[[], Any]] = {
    "schema": LISTS.__arrow_c_schema__,
    "array": LISTS.__arrow_c_array__,
    "array of BYTES": tw.decode_bytes(bytes(8)).__arrow_c_array__,
    "imported array": lambda: tw.Tensor("y", pa.array(LISTS)),
    "imported stream": lambda: tw.Tensor("y", pa.chunked_array([pa.array(LISTS)] * 2)),
}


@pytest.mark.no_sanitizers(reason="it measures memory")
@pytest.mark.thread_unsafe(reason="it measures the process")
@pytest.mark.parametrize("work", UNUSED.values(), ids=UNUSED.keys())
def test_structs_do_not_leak(work: Callable[[], Any]) -> None:
    assert not leak_of(work, 200)


def release(struct: Any) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(struct.release)(ctypes.addressof(struct))


# --- import ---


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape], ids=str)
@pytest.mark.parametrize("datatype", ARROW_TYPES)
def test_numbers_and_lists(datatype: str, shape: tuple[int, ...]) -> None:
    expected = sample(datatype, shape)
    array = pa.array(expected.tolist(), arrow_type_of(datatype, shape))
    tensor = tw.Tensor("x", array)
    assert (tensor.datatype, tensor.shape) == (datatype, shape)
    assert tensor.as_numpy().dtype == expected.dtype
    np.testing.assert_array_equal(tensor.as_numpy(), expected)
    if expected.size and datatype != "BOOL":
        assert address(tensor.as_numpy()) == innermost(array).buffers()[1].address
        assert not tensor.as_numpy().flags.writeable


@pytest.mark.parametrize("datatype", ARROW_TYPES)
def test_slices(datatype: Any) -> None:
    expected = sample(datatype, (40, 3))
    flat = pa.array(expected.reshape(-1), ARROW_TYPES[datatype])
    lists = pa.FixedSizeListArray.from_arrays(flat[6:], 3)[2:]
    for start, stop in ((0, 36), (0, 0), (1, 36), (5, 9), (7, 8), (36, 36)):
        tensor = tw.Tensor("x", lists[start:stop])
        np.testing.assert_array_equal(tensor.as_numpy(), expected[4 + start : 4 + stop])
        found = tw.Tensor("x", flat[start:stop]).as_numpy()
        np.testing.assert_array_equal(found, expected.reshape(-1)[start:stop])
    nested = tw.Tensor("x", pa.FixedSizeListArray.from_arrays(lists[1:], 5)[3:])
    np.testing.assert_array_equal(nested.as_numpy(), expected[20:].reshape(-1, 5, 3))


@pytest.mark.parametrize("datatype", ARROW_TYPES)
def test_chunks_are_copied_once_and_a_single_one_is_not(datatype: str) -> None:
    expected = sample(datatype, (20,))
    flat = pa.array(expected, ARROW_TYPES[datatype])
    of_pyarrow = pa.chunked_array([flat[:3], flat[3:3], flat[3:17], flat[17:]])
    for several in (of_pyarrow, pl.Series(flat[:7]).append(pl.Series(flat[7:]))):
        found = tw.Tensor("x", several).as_numpy()
        np.testing.assert_array_equal(found, expected)
        assert found.flags.writeable  # it is a copy
    single = tw.Tensor("x", pa.chunked_array([flat[:0], flat[1:], flat[:0]])).as_numpy()
    np.testing.assert_array_equal(single, expected[1:])
    if datatype != "BOOL":
        assert address(single) == flat.buffers()[1].address + single.itemsize
    assert tw.Tensor("x", pa.chunked_array([], flat.type)).shape == (0,)


def test_shape_and_datatype_are_checked() -> None:
    array = pa.array(range(6), pa.uint16())
    assert tw.Tensor("x", array, shape=[2, 3]).as_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tw.Tensor("x", array, datatype="BF16").datatype == "BF16"
    for values, arguments, message in (
        (array, {"datatype": "FP32"}, "has datatype FP32, but its data is UINT16"),
        (array.cast(pa.int16()), {"datatype": "BF16"}, "has datatype BF16, but its data is INT16"),
        (array, {"shape": [4]}, "does not match its shape"),
    ):
        with pytest.raises(tw.EncodeError, match=f"tensor 'x' {message}"):
            tw.Tensor("x", values, **arguments)


def test_lists_of_text_are_bytes_with_several_dimensions() -> None:
    lists = pa.array([["a", "b"], ["c", "d"], ["e", "f"]], pa.list_(pa.string(), 2))
    tensor = tw.Tensor("x", lists[1:])
    assert (tensor.datatype, tensor.shape) == ("BYTES", (2, 2))
    assert tensor.as_numpy().tolist() == [[b"c", b"d"], [b"e", b"f"]]
    assert tw.encode_bytes(lists) == tw.encode_bytes(["a", "b", "c", "d", "e", "f"])


FLAGS = pa.array([True, None, *[False] * 20, None])
PAIRS = pa.list_(pa.int8(), 2)
NESTED = pa.list_(pa.list_(pa.int8(), 1), 2)
# What the message says, the element, and the values.
NULLS: list[tuple[str, int | None, Any]] = [
    ("3 nulls|element 1", 1, pa.array([1, None, 3, None, None])),
    ("1 null|element 20", 20, FLAGS[2:]),
    ("2 nulls|element 4", 4, pa.chunked_array([[1, 2], [3, 4, None], [None]])),
    ("1 null|element 1", 1, lambda: pl.Series([1.5, None])),
    ("1 null|element 3 [1, 1]", 3, pa.array([[1, 2], [3, None]], PAIRS)),
    ("2 null lists|at [1]", None, pa.array([[1, 2], None, None], PAIRS)),
    ("1 null list|at [1, 1]", None, pa.array([[[1], [2]], [[3], None]], NESTED)),
    ("1 null list|at [1]", None, pa.array([["a"], None], pa.list_(pa.string(), 1))),
]


@pytest.mark.parametrize(("text", "element", "values"), NULLS)
def test_nulls_are_counted_and_located(text: str, element: int | None, values: Any) -> None:
    what, place = text.split("|")
    message = f"tensor 'x' contains {what}, which tensors cannot have; the first is {place}"
    with pytest.raises(tw.EncodeError, match=f"^{re.escape(message)}$") as caught:
        tw.Tensor("x", values() if callable(values) else values)
    assert (caught.value.tensor, caught.value.element) == ("x", element)


@pytest.mark.parametrize("null_count", [-1, 1])
@pytest.mark.parametrize("offset", [0, 2, 6])
@pytest.mark.parametrize("element", [None, 0, 1, 3])
def test_nulls_in_the_elements_of_lists(element: int | None, offset: int, null_count: int) -> None:
    """Two lists of 2 elements, after an offset in both arrays. All elements outside are null."""
    elements = {"offset": offset, "length": 7, "null_count": null_count}
    producer = NumbersProducer(2, (2,), array_changes={0: {"offset": 1}, 1: elements})
    first = offset + 2
    bits = sum(1 << i for i in range(first, first + 4) if i - first != element)
    validity = ctypes.create_string_buffer(bits.to_bytes(4, "little"))
    producer.buffers[1][0] = ctypes.addressof(validity)
    if element is None:
        found = tw.Tensor("x", producer).as_numpy()
        assert found.reshape(-1).tolist() == list(range(first, first + 4))
        return
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("x", producer)
    assert caught.value.element == element


@pytest.mark.parametrize("start", range(9))
def test_null_at_any_place_of_a_slice(start: int) -> None:
    """Eight elements are checked at once where they are in one byte."""
    for null in range(start, 30):
        array = pa.array([None if i == null else i for i in range(30)], pa.int8())[start:]
        with pytest.raises(tw.EncodeError) as caught:
            tw.Tensor("x", array)
        assert caught.value.element == null - start


OTHER_TYPES = {
    "of format 'tsu:' (timestamp)": pa.array([1], pa.timestamp("us")),
    "of format 'tdD' (date)": pa.array([1], pa.date32()),
    "of format 'ttn' (time)": pa.array([1], pa.time64("ns")),
    "of format 'tDs' (duration)": pa.array([1], pa.duration("s")),
    "of format 'd:5,2' (decimal)": pa.array([1], pa.decimal128(5, 2)),
    "of format 'w:2' (fixed-size binary)": pa.array([b"ab"], pa.binary(2)),
    "of format '+vl' (list of variable size)": pa.array([[1]], pa.list_view(pa.int8())),
    "of format '+s' (struct or table)": pa.array([{"a": 1}]),
    "of format 'n' (null)": pa.nulls(2),
    "of format 'tdm' (date)": pa.array([[None]], pa.list_(pa.date64(), 1)),
    "with a dictionary": pa.array([1, 1]).dictionary_encode(),
}
CONVERT = "convert it to numbers, bytes or text first"
REPLACE = (
    "replace the indices by the values first, for example with dictionary_decode() of pyarrow or "
    "cast() of polars"
)


@pytest.mark.parametrize("what", OTHER_TYPES)
def test_types_without_a_datatype(what: str) -> None:
    problem = f": {REPLACE}" if "dictionary" in what else f", which has no datatype: {CONVERT}"
    message = f"tensor 'x' is an Arrow array {what}{problem}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        tw.Tensor("x", OTHER_TYPES[what])


def test_array_is_moved_and_released_with_the_last_view() -> None:
    producer = NumbersProducer()
    tensor = tw.Tensor("x", producer)
    assert tensor.as_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert address(tensor.as_numpy()) == ctypes.addressof(producer.data)
    assert producer.arrays[0].release is None  # as the interface prescribes
    with pytest.raises(tw.EncodeError, match="is an Arrow array that has already been consumed"):
        producer.schemas[0].release = producer.arrays[1].release
        tw.Tensor("x", producer)
    frame = tw.encode_request(tw.InferRequest([tensor]))
    row = tensor.as_numpy()[1]
    del tensor
    gc.collect()
    assert producer.n_releases == 0
    del row
    gc.collect()
    assert producer.n_releases == 0
    assert bytes(frame.buffers[1]) == bytes(producer.data)[:24]
    del frame
    gc.collect()
    assert producer.n_releases == 1


@pytest.mark.parametrize("arguments", [(0,), (16, (), b"b")], ids=["empty", "booleans"])
def test_copied_and_empty_arrays_are_released_at_once(arguments: tuple[Any, ...]) -> None:
    producer = NumbersProducer(*arguments)
    tensor = tw.Tensor("x", producer)
    assert producer.n_releases == 1
    assert tensor.shape[0] == arguments[0]


def test_arrays_need_no_data_if_they_are_empty() -> None:
    fields = {"buffers": ctypes.addressof(NO_BUFFERS)}
    for producer in (
        NumbersProducer(0, (), array_changes={0: fields}),
        NumbersProducer(5, (0,), array_changes={1: fields}),
    ):
        tensor = tw.Tensor("x", producer)
        assert tensor.shape == (producer.arrays[0].length, 0)[: len(producer.arrays)]
        assert producer.n_releases == 1


NO_BUFFERS = (ctypes.c_void_p * 2)(None, None)
MANY = 2**31 - 1
# The changed fields by the index of the struct: 0 for the lists, 1 for the numbers in them.
INVALID_ARRAYS: dict[str, Any] = {
    "its length is -1 and its offset is 0": {1: {"length": -1}},
    f"its offset 0 and length {2**62} add up to {2**62} elements; the": {0: {"length": 2**62}},
    "its lists require 6 elements, but there are 5": {1: {"length": 5}},
    "its lists require 9 elements, but there are 6": {0: {"offset": 1}},
    "its lists require 21 elements, but there are 6": {0: {"offset": 5}},
    "its null count is 7, but its length is 6": {1: {"null_count": 7}},
    "it has 1 nulls, but no validity buffer": {0: {"null_count": 1}},
    "it has 0 children, not 1": {0: {"n_children": 0}},
    "it has 2 children, not 1": {0: {"n_children": 2}},
    "its array of lists has no elements": {0: {"children": None}},
    "the elements of its lists were released": {1: {"release": None}},
    "it has 1 children, not 0": {1: {"n_children": 1}},
    "it has a dictionary, but its schema has none": {1: {"dictionary": 8}},
    "it has 2 buffers, not 1": {0: {"n_buffers": 2}},
    "it has 3 buffers, not 2": {1: {"n_buffers": 3}},
    "it has 0 buffers, not 2": {1: {"n_buffers": 0}},
    "its list of 2 buffers is NULL": {1: {"buffers": None}},
    "it has 6 elements, but its data buffer": {1: {"buffers": ctypes.addressof(NO_BUFFERS)}},
}
INVALID_SCHEMAS: dict[str, Any] = {
    "its schema of lists has 0 children, not 1": {0: {"n_children": 0}},
    "its schema of lists has 1 children, not 1": {0: {"children": None}},
    "its schema has the format '+w:-1'": {0: {"format": b"+w:-1"}},
    "its schema has the format '+w:'": {0: {"format": b"+w:"}},
    "its schema has the format '+w:2147483648'": {0: {"format": b"+w:2147483648"}},
    "its schema has the format '+w:999": {0: {"format": b"+w:" + b"9" * 5000}},
    "its schema has no format": {1: {"format": None}},
}


INVALID, TOO_MANY = "is an invalid Arrow array: ", "its lists have more than 2^63 - 1 elements"
FAR = {0: {"offset": 2**58, "length": 1}, 1: {"length": 2**59 - 2}}
# What the message says, how often the array is released, and the arguments of the producer.
REJECTED: list[tuple[str, int, tuple[Any, ...], dict[str, Any]]] = [
    *((INVALID + text, 1, (), {"array_changes": row}) for text, row in INVALID_ARRAYS.items()),
    *((INVALID + text, 0, (), {"schema_changes": row}) for text, row in INVALID_SCHEMAS.items()),
    (INVALID + TOO_MANY, 1, (2, (MANY, 3)), {"array_changes": {0: {"length": 2**50}}}),
    (INVALID + TOO_MANY, 1, (0, (MANY,)), {"array_changes": FAR}),  # an overflow after the offset
    ("is an Arrow array with more than 64 dimensions", 0, (1, (1,) * 64), {}),
    ("is too large to address: INT32", 1, (2**40, (0, MANY)), {}),
    ("is an Arrow schema that has already", 0, (), {"schema_changes": {1: {"release": None}}}),
]


@pytest.mark.parametrize(("message", "n_releases", "arguments", "changes"), REJECTED)
def test_invalid_structs_are_rejected_and_released(
    message: str, n_releases: int, arguments: Any, changes: Any
) -> None:
    producer = NumbersProducer(*arguments, **changes)
    with pytest.raises(tw.EncodeError) as caught:
        tw.Tensor("x", producer)
    assert str(caught.value).startswith(f"tensor 'x' {message}")
    assert producer.n_releases == n_releases


def test_stream_is_released_with_its_schema_and_its_arrays() -> None:
    producers = [NumbersProducer(n) for n in (2, 0, 1)]
    stream = NumbersStream(producers)
    tensor = tw.Tensor("x", stream)
    assert tensor.as_numpy().tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert stream.n_released_schemas == 1
    del tensor
    gc.collect()
    assert [producer.n_releases for producer in producers] == [1, 1, 1]


def test_stream_that_fails_after_an_array() -> None:
    stream = NumbersStream([NumbersProducer()], is_failing=True)
    with pytest.raises(tw.EncodeError, match="failed: no reason given"):
        tw.Tensor("x", stream)
    assert (stream.n_released_schemas, stream.producers[0].n_releases) == (1, 1)


@pytest.mark.parametrize("n_chunks", [17, 33])
def test_rows_of_all_chunks_overflow(n_chunks: int) -> None:
    """The rows are empty lists, which need no memory. Their number exceeds 2^63, or 2^64."""
    changes = {0: {"length": (1 << 59) - 2}, 1: {"length": 0}}
    chunks = [NumbersProducer(0, (0,), array_changes=changes) for _ in range(n_chunks)]
    with pytest.raises(tw.EncodeError, match="its chunks have more than 2\\^63 - 1 elements"):
        tw.Tensor("x", NumbersStream(chunks))


def test_lists_of_64_dimensions() -> None:
    assert tw.Tensor("x", NumbersProducer(1, (1,) * 63)).shape == (1,) * 64


@pytest.mark.parametrize("i", [0, 1])
def test_child_that_is_null_is_rejected(i: int) -> None:
    """`i` is 0 for the schema, and 1 for the array."""
    producer = NumbersProducer()
    producer.children[i][0] = None
    message = ("its schema of lists has 1", "its array of lists has no elements")[i]
    with pytest.raises(tw.EncodeError, match=INVALID + message):
        tw.Tensor("x", producer)
