"""Pickle protocol 5: tensors are out-of-band buffers, which are not copied."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.requirements import package
from tensorwire._codec import messages

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


def address(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def address_of(tensor: tw.Tensor) -> int:
    data = tensor.data
    if isinstance(data, tw.BytesArray):
        return address(data.wire)
    assert data is not None
    return int(data.ctypes.data)


def bf16() -> np.ndarray[Any, Any]:
    ml_dtypes = package("ml_dtypes")
    return np.arange(BIG).astype(ml_dtypes.bfloat16)


def built() -> tw.InferRequest:
    inputs = [tw.Tensor("x", FLOATS, parameters={"k": 1}), tw.Tensor("words", WORDS)]
    return tw.InferRequest(inputs, [tw.RequestedOutput("y", binary=True)], id="7")


def decoded(memory: Callable[[bytes], Any]) -> tw.InferRequest:
    frame = tw.encode_request(built())
    return tw.decode_request(memory(bytes(frame)), frame.header_length)


# --- nothing is copied ---


@pytest.mark.parametrize("memory", [bytes, bytearray])
def test_decoded_request(memory: Callable[[bytes], Any]) -> None:
    request = decoded(memory)
    back = back_from(request)
    assert (back.id, back.outputs[0].name) == ("7", "y")
    for before, after in zip(request.inputs, back.inputs, strict=True):
        assert address_of(after) == address_of(before)
    assert back["x"].data.flags.writeable == (memory is bytearray)
    assert back["words"].data.element(0).readonly == (memory is bytes)
    assert back["words"].data.tolist() == WORDS
    assert np.array_equal(back["x"].data, FLOATS)


def test_constructed_response() -> None:
    response = tw.InferResponse([tw.Tensor("x", FLOATS), tw.Tensor("words", WORDS)], id="7")
    back = back_from(response)
    assert address_of(back["x"]) == FLOATS.ctypes.data
    assert address_of(back["words"]) == address_of(response["words"])


def test_loaded_message_can_be_encoded() -> None:
    before, after = tw.encode_request(built()), tw.encode_request(back_from(decoded(bytearray)))
    length = len(bytes(after)) - (after.header_length or 0)
    assert bytes(after)[-length:] == bytes(before)[-length:]


@pytest.mark.parametrize(
    "parameters",
    [
        '{"shared_memory_region":null}',
        '{"shared_memory_region":null,"shared_memory_offset":null}',
        '{"binary_data_size":null,"binary_data":null,"binary_data_output":null}',
        '{"binary_data":5,"binary_data_output":[]}',
        '{"":null,"k":[1e9,{"k":null}]}',
        "null",
    ],
)
def test_decoded_members_are_valid_arguments(parameters: str) -> None:
    """A message can be copied and changed whatever another program has sent."""
    item = f'{{"name":"","datatype":"INT8","shape":[1],"data":[5],"parameters":{parameters}}}'
    output = '{"name":"","parameters":{"binary_data":null,"shared_memory_region":null}}'
    request = tw.decode_request(f'{{"inputs":[{item}],"outputs":[{output}]}}'.encode())
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
    response = tw.decode_response(f'{{"outputs":[{item}]}}'.encode())
    assert back_from(response)[""].parameters == tensor.parameters


def test_bfloat16() -> None:
    tensor = tw.Tensor("x", bf16())
    back = back_from(tensor)
    assert (address_of(back), back.data.dtype) == (address_of(tensor), bf16().dtype)
    assert (back.datatype, back.shape) == ("BF16", (BIG,))


def test_bfloat16_as_uint16() -> None:
    tensor = tw.Tensor("x", np.arange(BIG, dtype=np.uint16), datatype="BF16")
    back = back_from(tensor)
    assert (address_of(back), back.data.dtype) == (address_of(tensor), tensor.as_numpy().dtype)


def test_misaligned_array() -> None:
    """The view at an odd address of a body is the out-of-band buffer."""
    body = bytes(1) + FLOATS.tobytes()
    array = np.frombuffer(body, np.float32, offset=1)
    tensor = tw.Tensor("x", array)
    back = back_from(tensor)
    assert not array.flags.aligned
    assert address_of(back) == array.ctypes.data


def test_raw_element_gets_no_length_prefix() -> None:
    """The only element of a raw request is pickled as it is in the body."""
    image = b"\xff" * BIG
    request = tw.decode_request(image, 0, raw_input=tw.TensorSpec("image", "BYTES", [1]))
    data, (buffer,) = out_of_band(request)
    back = pickle.loads(data, buffers=[buffer])["image"].data
    assert buffer.raw().nbytes == BIG
    assert address(back.element(0)) == address(image)
    assert back == request["image"].data
    assert back_from(back[:0]).tolist() == []


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


def test_rows_of_an_array() -> None:
    data, (buffer,) = out_of_band(tw.Tensor("x", FLOATS[1:3]))
    assert buffer.raw().nbytes == FLOATS.nbytes // 2
    assert pickle.loads(data, buffers=[buffer]).shape == (2, BIG // 4)


def test_tensor_in_two_messages_is_one_buffer() -> None:
    tensor = tw.Tensor("words", WORDS)
    _, buffers = out_of_band([tw.InferRequest([tensor]), tw.InferResponse([tensor])])
    assert len(buffers) == 1


# --- small tensors, and tensors without data ---


@pytest.mark.parametrize(
    ("data", "datatype", "shape"),
    [
        (np.float32(2.5).reshape(()), "FP32", ()),
        (np.empty((0, 3), np.int8), "INT8", (0, 3)),
        (np.empty((2, 0), np.bool_), "BOOL", (2, 0)),
        (np.array(b"word", object), "BYTES", ()),
        (np.empty((3, 0), object), "BYTES", (3, 0)),
        ([[b"a", b""], [b"", b"b"]], "BYTES", (2, 2)),
    ],
)
@pytest.mark.parametrize("protocol", range(2, 6))
def test_small_tensors(data: Any, datatype: Any, shape: tuple[int, ...], protocol: int) -> None:
    tensor = tw.Tensor("x", data, datatype=datatype)
    for back in (pickle.loads(pickle.dumps(tensor, protocol)), back_from(tensor)):
        assert (back.datatype, back.shape, back.data.shape) == (datatype, shape, shape)
        assert back.as_numpy().tolist() == tensor.as_numpy().tolist()


def test_small_bfloat16() -> None:
    for array in (bf16()[:0].reshape(0, 2), bf16()[3].reshape(())):
        for protocol in range(2, 6):
            back = pickle.loads(pickle.dumps(tw.Tensor("x", array), protocol))
            assert (back.shape, back.data.dtype) == (array.shape, array.dtype)
            assert back.data.tolist() == array.tolist()


def test_tensor_in_shared_memory() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 24}
    tensor = tw.Tensor("x", None, datatype="FP32", shape=[2, 3], parameters=region)
    back = back_from(tensor)
    assert (back.data, back.shape, back.parameters) == (None, (2, 3), region)


@pytest.mark.parametrize("memory", [bytes, bytearray])
def test_in_band_pickle_is_one_copy(memory: Callable[[bytes], Any]) -> None:
    """The copy is writable if the original is."""
    back = pickle.loads(pickle.dumps(decoded(memory), protocol=5))
    assert back["words"].data.tolist() == WORDS
    assert back["words"].data.element(0).readonly == (memory is bytes)
    assert back["x"].data.flags.writeable == (memory is bytearray)


def test_copy_shares_memory_and_deepcopy_does_not() -> None:
    """``copy`` shares a tensor's memory, ``deepcopy`` shares none."""
    tensor = tw.Tensor("words", WORDS)
    assert copy.copy(tensor).data is tensor.data
    assert address_of(copy.deepcopy(tensor)) != address_of(tensor)


def test_modified_buffer_is_rejected() -> None:
    """The loaded bytes are scanned again, because they may have changed."""
    data, (buffer,) = out_of_band(tw.decode_bytes(tw.encode_bytes([b"abc", b"d"])))
    wire = bytearray(buffer.raw())
    wire[0] = 200
    with pytest.raises(tw.ElementError, match="element 0 of the body is truncated"):
        pickle.loads(data, buffers=[wire])
    with pytest.raises(
        tw.LayoutError, match="at least 8 bytes are required for 2 BYTES elements, but there are 5"
    ):
        pickle.loads(data, buffers=[wire[7:]])


# --- other processes ---


def answer_over_pipe(pipe: Connection) -> None:
    """Run in another process: load the message, and return its tensors and their addresses."""
    data = pipe.recv_bytes()
    buffers = [bytearray(pipe.recv_bytes()) for _ in range(pipe.recv())]
    answer_with(pipe, data, buffers, writable=True)


def answer_over_shared_memory(pipe: Connection) -> None:
    data, name, extents = pipe.recv()
    memory = SharedMemory(name)
    assert memory.buf is not None
    buffers = [memory.buf[begin:end].toreadonly() for begin, end in extents]
    answer_with(pipe, data, buffers, writable=False)
    buffers.clear()
    memory.close()


def answer_with(pipe: Connection, data: bytes, buffers: list[Any], *, writable: bool) -> None:
    request = pickle.loads(data, buffers=buffers)
    assert [address_of(tensor) for tensor in request.inputs] == [
        address(buffer) for buffer in buffers
    ]
    assert request["x"].data.flags.writeable == writable
    pipe.send((float(request["x"].data.sum()), request["words"].data.tolist()))


def exchange(answer: Callable[[Connection], None], send: Callable[[Connection], None]) -> Any:
    """Send the message to another process, and return its answer."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,))
    process.start()
    theirs.close()
    try:
        send(ours)
        assert ours.poll(60)
        answered = ours.recv()
        process.join(20)
        assert process.exitcode == 0
        return answered
    finally:
        process.kill()
        process.join()
        ours.close()


EXPECTED = (float(FLOATS.sum()), WORDS)


def test_through_a_pipe() -> None:
    data, buffers = out_of_band(decoded(bytearray))

    def send(pipe: Connection) -> None:
        pipe.send_bytes(data)
        pipe.send(len(buffers))
        for buffer in buffers:
            pipe.send_bytes(buffer.raw())

    assert exchange(answer_over_pipe, send) == EXPECTED


def test_through_shared_memory() -> None:
    data, buffers = out_of_band(decoded(bytes))
    ends = np.cumsum([buffer.raw().nbytes for buffer in buffers]).tolist()
    extents = list(zip([0, *ends], ends, strict=False))
    memory = SharedMemory(create=True, size=ends[-1])
    assert memory.buf is not None
    try:
        for buffer, (begin, end) in zip(buffers, extents, strict=True):
            memory.buf[begin:end] = buffer.raw()
        sent = (data, memory.name, extents)
        assert exchange(answer_over_shared_memory, lambda pipe: pipe.send(sent)) == EXPECTED
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize(("data", "dtype"), [("text", np.dtype("u2")), (np.zeros(1), "u2")])
def test_invalid_pickles_of_tensors_are_rejected(data: Any, dtype: Any) -> None:
    module: Any = messages
    with pytest.raises(TypeError, match="a pickled tensor must have an array and a dtype"):
        module._unpickled_tensor("x", "BF16", (1,), data, {}, True, dtype)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_frames(protocol: int) -> None:
    frame = tw.encode_request(tw.InferRequest({"x": FLOATS, "words": WORDS}))
    loaded = pickle.loads(pickle.dumps(frame, protocol))
    assert (bytes(loaded), loaded.header_length) == (bytes(frame), frame.header_length)


def test_buffers_of_frames_are_out_of_band() -> None:
    frame = tw.encode_request(tw.InferRequest({"x": FLOATS, "words": WORDS}))
    loaded = back_from(frame)
    assert loaded.headers == frame.headers
    assert list(map(address, loaded.buffers)) == list(map(address, frame.buffers))
