"""Zero copy, shown by addresses; lifetimes, shown by weak references; allocations."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc
from support import grpc_cases, reference
from support.lifetimes import Owned, assert_result_keeps_body_alive
from support.memory import address, peak_nbytes
from support.protobuf_wire import delimited
from support.requirements import package
from support.scripts import run_script


def response(**arrays: Any) -> tw.Frame:
    return tw.encode_response(tw.InferResponse([tw.Tensor(k, v) for k, v in arrays.items()]))


PIXELS = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
FRAME = response(pixels=PIXELS, flags=np.array([True, False]), words=["a", "bc"])
WORDS_AT = len(FRAME) - 11
RAW = tw.TensorSpec("x", "UINT8", [-1])


def test_frame_buffers_are_the_arrays() -> None:
    words = tw.Tensor("words", ["a"])
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("p", PIXELS), words]))
    expected = [address(PIXELS), address(words.elements.wire)]
    assert [address(buffer) for buffer in frame.buffers[1:]] == expected
    assert address(tw.encode_raw_request(PIXELS).buffers[0]) == address(PIXELS)


def decoded(body: Any) -> tw.InferResponse:
    return tw.decode_response(body, FRAME.header_length)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "message": decoded,
    "tensor": lambda b: decoded(b)["pixels"],
    "array": lambda b: decoded(b)["pixels"].as_numpy(),
    "slice of the array": lambda b: decoded(b)["pixels"].as_numpy()[1, ::2],
    "BytesArray": lambda b: decoded(b)["words"].data,
    "slice of the BytesArray": lambda b: decoded(b)["words"].elements[1:],
    "view of an element": lambda b: decoded(b)["words"].elements.element(1),
    "wire": lambda b: decoded(b)["words"].elements.wire,
    "frame": lambda b: tw.encode_response(decoded(b)),
    "buffer of a frame": lambda b: tw.encode_response(decoded(b)).buffers[2],
    "chunks of a frame": lambda b: tw.encode_response(decoded(b)).chunks(8),
    "elements": lambda b: tw.decode_bytes(memoryview(b)[WORDS_AT:]),
    "reshaped": lambda b: tw.decode_bytes(memoryview(b)[WORDS_AT:]).reshape((2, 1)),
    "a row": lambda b: tw.decode_bytes(memoryview(b)[WORDS_AT:]).reshape((2, 1))[1],
    "a Tensor of elements": lambda b: tw.Tensor("x", tw.decode_bytes(memoryview(b)[WORDS_AT:])),
    "an iterator": lambda b: iter(tw.decode_bytes(memoryview(b)[WORDS_AT:])),
    "Arrow's capsule": lambda b: decoded(b)["words"].elements.__arrow_c_array__()[1],
    "an Arrow array": lambda b: package("pyarrow").array(decoded(b)["pixels"]),
    "Arrow's capsules of numbers": lambda b: decoded(b)["pixels"].__arrow_c_array__(),
    "an Arrow array of bytes": lambda b: package("pyarrow").array(decoded(b)["words"]),
    "a column of polars": lambda b: package("polars").Series(decoded(b)["words"].data),
    "a DLPack capsule": lambda b: decoded(b)["pixels"].__dlpack__(copy=False),
    "a versioned capsule": lambda b: decoded(b)["pixels"].__dlpack__(max_version=(1, 0)),
    "an array of DLPack": lambda b: np.from_dlpack(decoded(b)["pixels"]),
    "an array of a raw request": lambda b: tw.decode_request(b, 0, raw_input=RAW)["x"].data,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_view_keeps_the_body_alive(view: Callable[[Any], Any]) -> None:
    assert_result_keeps_body_alive(bytes(FRAME), view)


COPIES: dict[str, Callable[[Any], Any]] = {
    "writable copy": lambda m: m["pixels"].as_numpy().copy(),
    "object array": lambda m: m["words"].as_numpy(),
    "element": lambda m: m["words"].data[0],
    "chosen elements": lambda m: m["words"].data[::-1],
    "copy of the BytesArray": lambda m: m["words"].data.copy(),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES.keys())
def test_copy_does_not_keep_the_body_alive(copy: Callable[[tw.InferResponse], Any]) -> None:
    body = Owned(bytes(FRAME))
    weak_reference = weakref.ref(body)
    result = copy(tw.decode_response(body, FRAME.header_length))
    body.append(1)
    del body
    gc.collect()
    assert weak_reference() is None
    assert result is not None


def test_as_numpy_copies_only_if_needed() -> None:
    frame = response(pixels=PIXELS)
    memory = np.zeros(len(frame) + 4, np.uint8)
    at = 1 + -address(memory) % 4  # the header is padded to a multiple of 64 bytes
    body = memory[at : at + len(frame)]
    body[:] = np.frombuffer(bytes(frame), np.uint8)
    tensor = tw.decode_response(body, frame.header_length)["pixels"]
    assert not tensor.as_numpy().flags.aligned
    assert np.array_equal(tensor.as_numpy(), PIXELS)
    aligned = tensor.as_numpy(aligned=True)
    assert aligned.flags.aligned
    assert not np.shares_memory(aligned, tensor.as_numpy())
    assert np.shares_memory(tensor.as_numpy(writable=True), tensor.data)

    read_only = decoded(bytes(FRAME))["pixels"]
    assert np.shares_memory(read_only.as_numpy(aligned=True), read_only.data)
    copied = read_only.as_numpy(writable=True)
    copied[0] = 1
    assert not np.shares_memory(copied, read_only.as_numpy())


@pytest.mark.thread_unsafe(reason="it measures the process")
def test_memory_does_not_depend_on_the_size() -> None:
    requests = [tw.InferRequest({"x": np.zeros(n, np.float32)}) for n in (32, 8 << 20)]
    frames = [tw.encode_request(request) for request in requests]
    bodies = [(bytes(frame), frame.header_length) for frame in frames]

    def decode(body: bytes, header_length: int | None) -> Any:
        return tw.decode_request(body, header_length)["x"].as_numpy()

    encoding = [peak_nbytes(partial(tw.encode_request, request)) for request in requests]
    decoding = [peak_nbytes(partial(decode, *body)) for body in bodies]
    for small, large in (encoding, decoding):
        assert large - small < 512
        assert large < 4096


@pytest.mark.thread_unsafe(reason="it measures the process")
@pytest.mark.parametrize("count", [None, 100_000])
@pytest.mark.parametrize("element", [b"", b"x" * 20])
def test_scanning_bytes_allocates_8_bytes_per_element(element: bytes, count: int | None) -> None:
    n = 100_000
    body = reference.elements([element] * n)
    assert peak_nbytes(lambda: tw.decode_bytes(body, count)) < 8 * n + 4096


FREED_LAST = """
import contextvars
import tensorwire as tw
words = tw.decode_bytes(b"\\1\\0\\0\\0a" * 3_000_000)
contextvars.ContextVar("words").set(words)  # freed when the names of modules are None
del words
"""


@pytest.mark.thread_unsafe(reason="it starts a process")
def test_elements_that_are_freed_at_the_end_of_the_interpreter() -> None:
    done = run_script(FREED_LAST)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.thread_unsafe(reason="it measures the process")
@pytest.mark.parametrize("size", [8, 2**40, None])
@pytest.mark.parametrize("datatype", ["BYTES", "BOOL", "FP32"])
def test_declared_size_allocates_nothing(datatype: str, size: int | None) -> None:
    source: Any = {"parameters": {"binary_data_size": size}} if size else {"data": []}
    entry = {"name": "x", "shape": [2**20, 2**20], "datatype": datatype, **source}
    body, length = reference.message({"inputs": [entry]}, bytes(8) if size else b"")

    def decoding() -> None:
        with pytest.raises(tw.LayoutError):
            tw.decode_request(body, length)

    assert peak_nbytes(decoding) < 64_000


LONG = b"x" * 10_000
IN_JSON = reference.message(
    {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": [LONG.decode()]}]}
)
TYPED = grpc_cases.typed("x", "BYTES", (1,), delimited(8, LONG))


@pytest.mark.thread_unsafe(reason="it measures the process")
@pytest.mark.parametrize(
    "make",
    [
        lambda: tw.encode_bytes([LONG]),
        lambda: tw.encode_request(tw.InferRequest([tw.Tensor("x", [LONG], binary=False)])),
        lambda: tw.decode_request(*IN_JSON)["x"],
        lambda: tw.grpc.decode_request(TYPED)["x"],
    ],
)
def test_bytes_that_the_codec_has_written_are_released(make: Callable[[], Any]) -> None:
    def repeat() -> None:
        for _ in range(30):
            make()

    assert peak_nbytes(repeat) < 15 * len(LONG)


NO_MEMORY = """
import _testcapi, numpy as np, tensorwire as tw
a = np.arange(3)
message = tw.InferRequest({"x": a, "y": a})
for make in (
    lambda: tw.Tensor("t", [a, a]),
    lambda: tw.InferRequest({"x": a, "y": a}),
    lambda: tw.encode_request(message).buffers,
):
    n_failures = 0
    for i in range(200):
        _testcapi.set_nomemory(i, i + 1)
        try:
            make()
        except (MemoryError, tw.TensorwireError):
            n_failures += 1
        finally:
            _testcapi.remove_mem_hooks()
    assert n_failures > 3
"""


@pytest.mark.no_sanitizers(reason="it makes allocations fail")
def test_each_allocation_may_fail() -> None:
    pytest.importorskip("_testcapi")
    assert run_script(NO_MEMORY).stderr == ""
