"""Pickles of messages and tensors. With protocol 5, tensors are buffers, which are not copied.

test_combinations.py pickles tensors of all shapes.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.memory import address
from support.requirements import package
from tensorwire._codec.messages import tensor as compiled
from tensorwire.server.errors import OverloadedError

BIG = 1 << 18
SMALL = 1000  # bytes that a pickle may have in addition to its tensors
WORDS = [b"a", b"", b"\xff" * 300, b"\0"] * 1000
FLOATS = np.arange(BIG, dtype=np.float32).reshape(4, -1)


def out_of_band(what: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(what, protocol=5, buffer_callback=buffers.append), buffers


def back_from(what: Any) -> Any:
    """Pickle an object, and load it over the same memory; the pickle itself must be small."""
    data, buffers = out_of_band(what)
    assert len(data) < SMALL
    return pickle.loads(data, buffers=buffers)


def address_of(tensor: tw.Tensor) -> int:
    data = tensor.data
    if isinstance(data, tw.BytesArray):
        return address(data.wire)
    assert data is not None
    return int(data.ctypes.data)


def request_in(memory: Callable[[bytes], Any] | None) -> tw.InferRequest:
    """Return a decoded request, or one that was made from arrays."""
    inputs = [tw.Tensor("x", FLOATS, parameters={"k": 1}), tw.Tensor("words", WORDS)]
    outputs = [tw.RequestedOutput("y", binary=True, parameters={"classification": 2})]
    versions = {"model_name": "m", "model_version": "1"}
    request = tw.InferRequest(inputs, outputs, id="7", parameters={"priority": 1}, **versions)
    if memory is None:
        return request
    frame = tw.encode_request(request)
    return tw.decode_request(memory(bytes(frame)), frame.header_length)


def assert_equal(back: tw.InferRequest, is_writable: bool | None = None) -> None:
    assert (back.id, back.model_name, back.model_version) == ("7", "m", "1")
    assert back.parameters == {"priority": 1}
    (output,) = back.outputs or ()
    assert (output.name, output.binary, output.parameters) == ("y", True, {"classification": 2})
    x, words = back["x"], back["words"].elements
    assert (x.parameters, x.binary, words.tolist()) == ({"k": 1}, True, WORDS)
    assert np.array_equal(x.as_numpy(), FLOATS)
    if is_writable is not None:
        assert x.as_numpy().flags.writeable is is_writable is not words.element(0).readonly


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("memory", [None, bytes, bytearray])
def test_pickle_with_data_is_one_copy(memory: Any, protocol: int) -> None:
    """With protocol 5, the copy is writable if the original is."""
    back = pickle.loads(pickle.dumps(request_in(memory), protocol))
    assert_equal(back, memory is bytearray if memory and protocol == 5 else None)


# --- nothing is copied ---


@pytest.mark.parametrize("memory", [bytes, bytearray])
def test_decoded_request(memory: Callable[[bytes], Any]) -> None:
    request = request_in(memory)
    back = back_from(request)
    assert_equal(back, memory is bytearray)
    assert list(map(address_of, back.inputs)) == list(map(address_of, request.inputs))


TENSORS: dict[str, Callable[[], tw.Tensor]] = {
    "numbers": lambda: tw.Tensor("x", FLOATS),
    "BYTES": lambda: tw.Tensor("x", WORDS),
    "BF16": lambda: tw.Tensor("x", np.arange(BIG).astype(package("ml_dtypes").bfloat16)),
    "BF16 as uint16": lambda: tw.Tensor("x", np.arange(BIG, dtype=np.uint16), datatype="BF16"),
    "at an odd address of a body": lambda: tw.Tensor(
        "x", np.frombuffer(bytes(1) + FLOATS.tobytes(), np.float32, offset=1)
    ),
    "rows": lambda: tw.Tensor("x", FLOATS[1:3]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name: str) -> None:
    tensor = TENSORS[name]()
    response = tw.InferResponse([tensor], id="7")
    _, buffers = out_of_band([tw.InferRequest([tensor]), response])
    assert [buffer.raw().nbytes for buffer in buffers] == [tensor.nbytes]
    back = back_from(response)["x"]
    assert (back.datatype, back.shape) == (tensor.datatype, tensor.shape)
    assert address_of(back) == address_of(tensor)
    assert back.as_numpy().dtype == tensor.as_numpy().dtype


PARAMETERS = [
    '{"shared_memory_region":null}',
    '{"shared_memory_region":null,"shared_memory_offset":null}',
    '{"binary_data_size":null,"binary_data":null,"binary_data_output":null}',
    '{"binary_data":5,"binary_data_output":[]}',
    '{"":null,"k":[1e9,{"k":null}]}',
    "null",
]


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_decoded_members_are_valid_arguments(parameters: str) -> None:
    """A message can be copied and changed whatever another program has sent."""
    item = f'{{"name":"","datatype":"INT8","shape":[1],"data":[5],"parameters":{parameters}}}'
    output = '{"name":"","parameters":{"binary_data":null,"shared_memory_region":null}}'
    request = tw.decode_request(f'{{"inputs":[{item}],"outputs":[{output}]}}'.encode())
    response = tw.decode_response(f'{{"outputs":[{item}]}}'.encode())
    (tensor,), (requested,) = request.inputs, request.outputs or ()
    for found in (tensor.replace(), copy.deepcopy(tensor), back_from(tensor)):
        assert (found.parameters, found.tolist()) == (tensor.parameters, [5])
    for other in (requested.replace(), copy.deepcopy(requested), back_from(requested)):
        assert (other.parameters, other.binary) == (requested.parameters, None)
    for message in (request, request.replace(inputs={"z": tensor}), back_from(request)):
        frame = tw.encode_request(message)
        decoded = tw.decode_request(bytes(frame), frame.header_length)
        assert decoded.inputs[0].parameters == tensor.parameters
        assert b'"parameters":{}' not in bytes(frame)
    assert back_from(response)[""].parameters == tensor.parameters


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_reduce_returns_parameters_of_its_own(protocol: int) -> None:
    """A pickler, or another caller of ``__reduce_ex__``, cannot change the message with them."""
    nested = {"a": {"b": [1]}}
    tensor = tw.Tensor("x", [1], datatype="INT8", parameters=nested)
    output = tw.RequestedOutput("y", parameters=nested)
    request = tw.InferRequest([tensor], [output], parameters=nested)
    response = tw.InferResponse([tensor], parameters=nested)
    for value in (tensor, output, request, response):
        pending: list[Any] = list(value.__reduce_ex__(protocol))
        while pending:
            item = pending.pop()
            if isinstance(item, tuple):
                pending += item
            elif isinstance(item, dict):
                pending += item.values()
                item["new"] = 2
            elif isinstance(item, list):
                item.append(3)
        assert value.parameters == {"a": {"b": [1]}}


# --- only the bytes of the slice ---


@pytest.mark.parametrize("part", [slice(0, 0), slice(3, 5), slice(3998, None), slice(None)])
def test_slice_contains_only_its_own_bytes(part: slice) -> None:
    tensor = tw.decode_bytes(tw.encode_bytes(WORDS))[part]
    data, (buffer,) = out_of_band(tensor)
    assert len(data) < SMALL
    assert buffer.raw().nbytes == tensor.nbytes
    assert pickle.loads(data, buffers=[buffer]).tolist() == WORDS[part]


def test_selection_is_copied_once() -> None:
    chosen = tw.decode_bytes(tw.encode_bytes(WORDS))[::2]
    assert address(back_from(chosen).wire) == address(chosen.wire)


# --- tensors without data, and pickles with all data ---


def test_tensor_in_shared_memory() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 24}
    tensor = tw.Tensor("x", None, datatype="FP32", shape=[2, 3], parameters=region)
    back = back_from(tensor)
    assert (back.data, back.shape, back.parameters) == (None, (2, 3), region)


def test_modified_buffer_is_rejected() -> None:
    """The loaded bytes are scanned again, because they may have changed."""
    data, (buffer,) = out_of_band(tw.decode_bytes(tw.encode_bytes([b"abc", b"d"])))
    wire = bytearray(buffer.raw())
    wire[0] = 200
    with pytest.raises(tw.ElementError, match="element 0 of the body is truncated"):
        pickle.loads(data, buffers=[wire])
    with pytest.raises(tw.LayoutError, match="at least 8 bytes are required for 2 BYTES elements"):
        pickle.loads(data, buffers=[wire[7:]])


# --- invalid pickles, errors and frames ---


@pytest.mark.parametrize(("data", "dtype"), [("text", np.dtype("u2")), (np.zeros(1), "u2")])
def test_invalid_pickles_of_tensors_are_rejected(data: Any, dtype: Any) -> None:
    module: Any = compiled
    with pytest.raises(TypeError, match="a pickled tensor must have an array and a dtype"):
        module._unpickled_tensor("x", "BF16", (1,), data, {}, True, dtype)


def test_error_with_an_attribute_of_its_own() -> None:
    error = OverloadedError.by_limit_concurrency(5)
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.limit) == (str(error), "limit_concurrency")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_frames(protocol: int) -> None:
    frame = tw.encode_request(tw.InferRequest({"x": FLOATS, "words": WORDS}))
    loaded = pickle.loads(pickle.dumps(frame, protocol))
    assert (bytes(loaded), loaded.header_length) == (bytes(frame), frame.header_length)
    if protocol == 5:
        loaded = back_from(frame)
        assert loaded.headers == frame.headers
        assert list(map(address, loaded.buffers)) == list(map(address, frame.buffers))


def test_pickled_buffers_export_no_memoryview() -> None:
    """CPython 3.11 crashes if it collects a memoryview that is exported."""
    request = request_in(bytes)
    for what in (request, request["words"].data, tw.Tensor("x", WORDS), tw.encode_request(request)):
        _, buffers = out_of_band(what)
        assert memoryview not in [type(buffer.raw().obj) for buffer in buffers]


def test_buffers_of_frames_export_no_memoryview() -> None:
    """CPython 3.11 crashes if it collects a memoryview that is exported."""
    frame = tw.encode_request(request_in(None))
    data, buffers = out_of_band(frame)
    views = [memoryview(bytes(4) + buffer.raw())[4:] for buffer in buffers]
    back = pickle.loads(data, buffers=[pickle.PickleBuffer(view) for view in views])
    assert bytes(back) == bytes(frame)
    found = [buffer for buffer in back.buffers if isinstance(buffer, memoryview)]
    assert len(found) >= 2
    assert memoryview not in [type(buffer.obj) for buffer in found]
    for shape in ([2, 3], [6]):
        array = np.arange(6, dtype="f4").data.cast("B").cast("f", shape)
        parts: Any = (pickle.PickleBuffer(array),)
        buffer: Any = tw.Frame(parts, None).buffers[0]
        assert type(buffer.obj) is not memoryview
        assert bytes(buffer) == array.tobytes()
