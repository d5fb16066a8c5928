"""Checks of all conversions of a BytesArray, and all ways to create one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tensorwire as tw
from fuzz.comparison import check_error, exact
from support import reference

STRINGS = np.dtypes.StringDType()


def check_export(
    items: list[bytes], shape: tuple[int, ...], index: Any, maker: Any, export: Any, rest: bytes
) -> None:
    """Each conversion has all elements, or reports the first unsupported element."""
    source, tensor = maker(items, shape)
    assert (tensor.size, tensor.nbytes) == (len(items), sum(map(len, items)) + 4 * len(items))
    export(tensor, items, index if export is selection else rest)
    del tensor
    source.append(0)  # raises BufferError if any view of it remains


def shaped(items: list[Any], shape: tuple[int, ...]) -> Any:
    """Return an object array; numpy's own conversion would drop trailing NULs."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


# --- how a tensor is created ---------------------------------------------------------------------


def whole(items: list[bytes], shape: tuple[int, ...]) -> tuple[Any, tw.BytesArray]:
    source = exact(reference.elements(items))
    return source, tw.decode_bytes(source, len(items)).reshape(shape)


def within(items: list[bytes], shape: tuple[int, ...]) -> tuple[Any, tw.BytesArray]:
    """Return rows between two others."""
    source = exact(reference.elements([b"before", *items, b"behind"]))
    return source, tw.decode_bytes(source)[1:-1].reshape(shape)


def packed(items: list[bytes], shape: tuple[int, ...]) -> tuple[Any, tw.BytesArray]:
    """Return a tensor encoded by tensorwire, which is scanned when it is first read."""
    tensor = tw.Tensor("x", shaped(items, shape)).data
    assert isinstance(tensor, tw.BytesArray)
    return exact(b""), tensor


def kept(items: list[bytes], shape: tuple[int, ...]) -> tuple[Any, tw.BytesArray]:
    """Return values that are encoded when their bytes are needed: JSON does not need them."""
    tensor = tw.Tensor("x", shaped(items, shape), binary=False).data
    assert isinstance(tensor, tw.BytesArray)
    return exact(b""), tensor


def raw(items: list[bytes], shape: tuple[int, ...]) -> tuple[Any, tw.BytesArray]:
    """Return the element of a raw request, which has no prefix."""
    if len(items) != 1:
        return chosen(items, shape)
    source = exact(items[0])
    spec = tw.TensorSpec("x", "BYTES", shape)
    tensor = tw.decode_request(source, 0, raw_input=spec).inputs[0].data
    assert isinstance(tensor, tw.BytesArray)
    return source, tensor


def chosen(items: list[bytes], shape: tuple[int, ...]) -> tuple[Any, tw.BytesArray]:
    """Return elements selected in another order."""
    tensor = tw.decode_bytes(exact(reference.elements(items[::-1])))[::-1]
    return exact(b""), tensor.reshape(shape)


def pickled(items: list[bytes], shape: tuple[int, ...]) -> tuple[Any, tw.BytesArray]:
    """Return the tensor after pickling with out-of-band buffers of exact size."""
    source, tensor = raw(items, shape)
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(tensor, 5, buffer_callback=buffers.append)
    received = exact(b"".join(bytes(buffer.raw()) for buffer in buffers))
    del tensor, buffers
    source.append(0)
    loaded: tw.BytesArray = pickle.loads(text, buffers=[received])
    return received, loaded


def from_arrow(items: list[bytes], shape: tuple[int, ...]) -> tuple[Any, tw.BytesArray]:
    kinds = (pa.binary(), pa.large_binary(), pa.binary_view())
    array = pa.array([b"before", *items], kinds[len(items) % 3])[1:]
    chunked = pa.chunked_array([array[:1], array[1:]]) if len(items) % 2 else array
    encoded = tw.encode_bytes(chunked)
    assert encoded == reference.elements(items)
    source = exact(encoded)
    return source, tw.decode_bytes(source).reshape(shape)


MAKERS: list[Callable[[list[bytes], tuple[int, ...]], tuple[Any, tw.BytesArray]]] = [
    *(whole, within, packed, kept, raw, chosen, pickled, from_arrow)
]

# --- conversions ---


def elements(tensor: tw.BytesArray, items: list[bytes], rest: bytes) -> None:
    """Check objects, views, wire bytes and comparisons."""
    n = len(items)
    array = tensor.as_numpy()
    assert (array.shape, array.reshape(-1).tolist()) == (tensor.shape, items)
    assert tensor.tolist() == shaped(items, tensor.shape).tolist()
    assert np.asarray(tensor).reshape(-1).tolist() == items
    assert [bytes(tensor.element(i)) for i in range(n)] == items
    assert [tensor.element(i) for i in range(-n, 0)] == items
    assert [tensor[index] for index in np.ndindex(tensor.shape)] == items
    for outside in (n, -n - 1):
        with pytest.raises(IndexError):
            tensor.element(outside)
    assert bytes(tensor.wire) == reference.elements(items) == tw.encode_bytes(tensor)
    copy = tensor.copy()
    assert copy == tensor
    assert copy.tolist() == tensor.tolist()
    other = tw.decode_bytes(reference.elements([*items[:-1], rest[:8]]) if items else b"")
    assert (tensor.reshape((n,)) == other) is (n == 0 or items[-1] == rest[:8])


def selection(tensor: tw.BytesArray, items: list[bytes], index: Any) -> None:
    """Check that indexing equals that of a numpy object array, including errors."""
    expected: Any
    try:
        expected = shaped(items, tensor.shape)[index]
    except IndexError:
        expected = None
    try:
        found = tensor[index]
    except IndexError:
        assert expected is None
        return
    assert expected is not None
    if isinstance(expected, np.ndarray):
        assert found.shape == expected.shape
        assert found.tolist() == expected.tolist()
        assert bytes(found.wire) == reference.elements(expected.reshape(-1).tolist())
    else:
        assert found == expected


def fixed_width(tensor: tw.BytesArray, items: list[bytes], rest: bytes) -> None:
    """Convert to S and back; numpy drops trailing NULs."""
    array = tensor.as_numpy("S")
    trimmed = [item.rstrip(b"\0") for item in items]
    assert array.reshape(-1).tolist() == trimmed
    assert array.dtype.itemsize == max(1, *map(len, items), 1)
    assert tw.encode_bytes(array) == reference.elements(trimmed)


def texts(items: list[bytes]) -> list[str] | int:
    """Return the elements as text, or the index of the first that is not UTF-8."""
    found = []
    for i, item in enumerate(items):
        try:
            found.append(item.decode())
        except UnicodeDecodeError:
            return i
    return found


def strings(tensor: tw.BytesArray, items: list[bytes], rest: bytes) -> None:
    """Convert to str and to StringDType, and back."""
    expected = texts(items)
    convert: Callable[[], Any]
    for convert in (tensor.as_strings, lambda: tensor.as_numpy(STRINGS)):
        try:
            array = convert()
        except tw.ElementError as error:
            check_error(error, sum(map(len, items)) + 4 * len(items) + 10)  # of `within`
            assert error.element == expected
            continue
        assert (array.shape, array.reshape(-1).tolist()) == (tensor.shape, expected)
        nested = array.tolist() if array.ndim else [array.item()]
        assert tw.encode_bytes(array) == tw.encode_bytes(nested) == reference.elements(items)


def unicode(tensor: tw.BytesArray, items: list[bytes], rest: bytes) -> None:
    """Convert a `U` array of any 32-bit values; code points are encoded as UTF-8."""
    words = np.frombuffer(exact(b"".join(items) + bytes(4)), "<u4", len(b"".join(items)) // 4)
    width = rest[0] % 5 + 1 if rest else 1
    words = words[: len(words) // width * width]
    array = words.view(f"U{width}") if len(words) else np.zeros(0, f"U{width}")
    rows = [row[: max(np.flatnonzero(row), default=-1) + 1] for row in words.reshape(-1, width)]
    expected = []
    for i, row in enumerate(rows):
        if any(0xD800 <= c <= 0xDFFF or c > 0x10FFFF for c in row):
            try:
                tw.encode_bytes(array)
            except tw.EncodeError as error:
                assert error.element == i
                return
            raise AssertionError(f"element {i} has no UTF-8 form")
        expected.append("".join(map(chr, row)).encode())
    assert tw.encode_bytes(array) == reference.elements(expected)


def arrow(tensor: tw.BytesArray, items: list[bytes], rest: bytes) -> None:
    """Export as each type that a consumer may request; text only if all elements are UTF-8."""
    as_text = texts(items)
    texts_of_arrow = (pa.string_view(), pa.string(), pa.large_string())
    others = (pa.binary_view(), pa.binary(), pa.large_binary(), pa.int64(), pa.null())
    for requested in (None, *texts_of_arrow, *others):
        schema = () if requested is None else (requested.__arrow_c_schema__(),)
        array = pa.Array._import_from_c_capsule(*tensor.__arrow_c_array__(*schema))
        array.validate(full=True)
        found = (array.type, array.to_pylist())
        if requested in (pa.binary(), pa.large_binary()):
            assert found == (requested, items)
        elif requested in texts_of_arrow and isinstance(as_text, list):
            assert found == (requested, as_text)
        else:
            assert found == (pa.binary_view(), items)
        assert tw.encode_bytes(array) == reference.elements(items)
        assert tw.encode_bytes(array[1:]) == reference.elements(items[1:])


def mixed(tensor: tw.BytesArray, items: list[bytes], rest: bytes) -> None:
    """Encode values of all kinds."""
    values = [
        (bytes, bytearray, memoryview)[rest[i % len(rest)] % 3 if rest else 0](item)
        for i, item in enumerate(items)
    ]
    assert tw.encode_bytes(values) == reference.elements(items)


def through_a_message(tensor: tw.BytesArray, items: list[bytes], rest: bytes) -> None:
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", tensor), tw.Tensor("y", tensor)]))
    body = bytes(frame)
    decoded = reference.decode(body, frame.header_length, "request")["tensors"]
    assert [one["values"] for one in decoded] == [items, items]
    read = tw.decode_request(body, frame.header_length)
    assert read["y"].data == tensor
    json_request = tw.InferRequest([tw.Tensor("x", tensor, binary=False)])
    expected = texts(items)
    try:
        frame = tw.encode_request(json_request)
    except tw.EncodeError as error:
        assert error.element == expected
        return
    assert isinstance(expected, list)
    read = tw.decode_request(bytes(frame))
    assert read["x"].data == tensor
    assert read["x"].as_numpy().reshape(-1).tolist() == items


EXPORTS: list[Callable[[tw.BytesArray, list[bytes], Any], None]] = [
    *(elements, selection, fixed_width, strings, unicode, arrow, mixed, through_a_message)
]
