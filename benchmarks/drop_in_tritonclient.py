"""What programs do with tritonclient, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorwire as tw

from .contender import module
from .contenders import triton_decode, triton_encode, triton_inputs
from .drop_in import Case
from .workloads import Message, floats, one, texts


def response(*arrays: Any) -> tuple[bytes, int | None, list[str]]:
    """A response's body, its header length and the names of its outputs."""
    tensors = [tw.Tensor(f"y{i}", array) for i, array in enumerate(arrays)]
    frame = tw.encode_response(tw.InferResponse(tensors))
    return bytes(frame), frame.header_length, [tensor.name for tensor in tensors]


def region(elements: Any) -> tuple[Any, tuple[int, ...]]:
    """A handle of shared memory that has the elements, and room for more; and their shape."""
    memory = memoryview(tw.encode_bytes(elements) + bytes(4096))
    return SimpleNamespace(_mpsm_handle=SimpleNamespace(buf=memory)), elements.shape


def serialize(elements: Any) -> Any:
    return module("tritonclient.utils").serialize_byte_tensor(elements).item()


def deserialize(wire: bytes) -> Any:
    return module("tritonclient.utils").deserialize_bytes_tensor(wire)


def read_region(made: tuple[Any, tuple[int, ...]]) -> Any:
    shared_memory = module("tritonclient.utils.shared_memory")
    return shared_memory.get_contents_as_numpy(made[0], np.object_, made[1])


def build(message: Message) -> Any:
    """An InferInput with its data, and the body of a request with it."""
    return triton_encode(triton_inputs(message.parts))


def parse(made: tuple[bytes, int | None, list[str]]) -> Any:
    """The InferResult of a body, and each of its outputs."""
    return triton_decode(*made)


SHORT, LONG = "300k x 0-40 B", "100k x 100-300 B"

CASES = {
    f"serialize {SHORT}": Case(lambda: texts(300_000, 0, 40), serialize),
    f"serialize {LONG}": Case(lambda: texts(100_000, 100, 300), serialize),
    f"serialize str {SHORT}": Case(
        lambda: tw.decode_bytes(tw.encode_bytes(texts(300_000, 0, 40))).as_strings(), serialize
    ),
    f"deserialize {SHORT}": Case(lambda: tw.encode_bytes(texts(300_000, 0, 40)), deserialize),
    f"deserialize {LONG}": Case(lambda: tw.encode_bytes(texts(100_000, 100, 300)), deserialize),
    f"shared memory {SHORT}": Case(lambda: region(texts(300_000, 0, 40)), read_region),
    "request body 128 B FP32": Case(lambda: one(floats(32)), build),
    "request body 1 MB FP32": Case(lambda: one(floats(250_000)), build),
    "request body 40 MB FP32": Case(lambda: one(floats(10_000_000)), build),
    f"request body BYTES {SHORT}": Case(lambda: one(texts(300_000, 0, 40)), build),
    "response 128 B FP32": Case(lambda: response(floats(32)), parse),
    "response 1 MB FP32": Case(lambda: response(floats(250_000)), parse),
    "response 100 MB FP32": Case(lambda: response(floats(25_000_000)), parse),
    "response 2 x 40 MB FP32": Case(lambda: response(*[floats(10_000_000)] * 2), parse),
    f"response BYTES {SHORT}": Case(lambda: response(texts(300_000, 0, 40)), parse),
}
