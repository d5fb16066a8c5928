"""Code that runs while objects are created: it finds them, or changes what they are made from."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc

pytestmark = pytest.mark.thread_unsafe(reason="it uses the garbage collector of the process")

KINDS = (tw.Tensor, tw.InferRequest, tw.InferResponse, tw.RequestedOutput, tw.TensorSpec, tw.Frame)
REQUEST = tw.InferRequest(
    [
        tw.Tensor("x", np.arange(6.0).reshape(2, 3), parameters={"k": 1}),
        tw.Tensor("words", ["a", "b"], binary=False),
        tw.Tensor("flags", [True, False], datatype="BOOL"),
    ],
    [tw.RequestedOutput("y", parameters={"k": 1})],
    id="7",
    parameters={"p": "q"},
)
RESPONSE = tw.InferResponse(REQUEST.inputs, model_name="m")
FRAME = tw.encode_request(REQUEST)
BODY = bytes(FRAME)
GRPC = tw.grpc.encode_request(REQUEST)
GRPC_RESPONSE = tw.grpc.encode_response(RESPONSE)


def state(value: Any) -> str:
    """Return everything that a message or a part of it shows."""
    if isinstance(value, tw.Tensor):
        return repr((value, value.nbytes, value.binary, dict(value.parameters), value.tolist()))
    if isinstance(value, tw.InferRequest):
        return repr((value, value.id, value.outputs, dict(value.parameters)))
    if isinstance(value, tw.InferResponse):
        return repr((value, value.model_name, dict(value.parameters)))
    return repr((value, bytes(value) if isinstance(value, tw.Frame) else None))


def of_this_package() -> list[Any]:
    """Return the messages and their parts that the collector knows, also as items of lists."""
    known = gc.get_objects()
    lists = (each for each in known if type(each) in (list, tuple))
    return [each for items in (known, *lists) for each in items if type(each) in KINDS]


@contextmanager
def collecting(callback: Callable[[], object]) -> Iterator[None]:
    """Call a function in each garbage collection, which is as frequent as possible."""

    def collected(phase: str, info: dict[str, int]) -> None:
        gc.disable()
        if phase == "stop":
            callback()
        gc.enable()

    thresholds = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*thresholds)
        gc.enable()


FRAME_OF: Any = tw.Frame  # other buffers than those of its stub are accepted, too
WORK: dict[str, Callable[[], Any]] = {
    "decode_request": lambda: tw.decode_request(BODY, FRAME.header_length),
    "raw request": lambda: tw.decode_request(
        b"1234", 0, raw_input=tw.TensorSpec("x", "FP32", [-1])
    ),
    "raw BYTES": lambda: tw.decode_request(b"1234", 0, raw_input=tw.TensorSpec("x", "BYTES", [1])),
    "gRPC request": lambda: tw.grpc.decode_request(GRPC),
    "gRPC response": lambda: tw.grpc.decode_response(GRPC_RESPONSE),
    "frame": lambda: (frame := tw.encode_request(REQUEST), frame.buffers),
    "replace": lambda: REQUEST.replace(id="8"),
    "constructors": lambda: tw.InferRequest({"x": np.arange(3), "y": ["a", "b"]}, ["z"]),
    "response": lambda: tw.InferResponse({"x": np.arange(3)}, parameters={"k": [1, [2]]}),
    "own frame": lambda: FRAME_OF((bytearray(8), b"ab"), 8),
}


@pytest.mark.parametrize("name", WORK)
def test_visible_objects_are_complete(name: str) -> None:
    known = of_this_package()
    seen: dict[int, tuple[Any, str]] = {}

    def look() -> None:
        for each in of_this_package():
            if id(each) not in seen and not any(each is other for other in known):
                seen[id(each)] = each, state(each)

    with collecting(look):
        result = WORK[name]()
    assert result is not None
    for each, before in seen.values():
        assert state(each) == before


@pytest.mark.parametrize(
    "fails",
    [
        lambda: tw.decode_request(
            b'{"parameters":{"binary_data_output":5},"inputs":['
            b'{"name":"a","shape":[1],"datatype":"INT8","data":[1]}]}'
        ),
        lambda: tw.grpc.decode_request(GRPC[: -len(b"\x02\x01\x00")]),
        lambda: tw.InferRequest([REQUEST["x"], REQUEST["x"]], parameters={"k": {"l": [1]}}),
        lambda: tw.TensorSpec("x", "FP32", (-dim for dim in range(9))),
        lambda: FRAME_OF((bytearray(8), np.zeros((2, 2))[:, 0]), 8),
    ],
)
def test_rejected_objects_cannot_be_found(fails: Callable[[], object]) -> None:
    known = {id(each) for each in of_this_package()}
    kept: list[Any] = []
    with (
        collecting(lambda: kept.extend(of_this_package())),
        pytest.raises((ValueError, BufferError)),
    ):
        fails()
    found = {type(each) for each in kept if id(each) not in known}
    assert found <= {tw.Tensor, tw.RequestedOutput}  # parts, which are complete


def test_another_thread_does_not_find_a_tensor_without_data() -> None:
    """The decoder releases the GIL while it reads the elements of BYTES."""
    frame = tw.encode_request(tw.InferRequest({"many": ["xxx"] * 1_000_000}))
    body, is_over = bytes(frame), threading.Event()

    def decode() -> None:
        while not is_over.is_set():
            tw.decode_request(body, frame.header_length)

    thread = threading.Thread(target=decode)
    thread.start()
    try:
        for _ in range(30):
            found = [each for each in of_this_package() if type(each) is tw.Tensor]
            assert all(each.data is not None for each in found if each.name == "many")
    finally:
        is_over.set()
        thread.join()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="collections run between bytecodes")
@pytest.mark.parametrize("n", range(1, 4))
@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_array_that_changes_in_a_collection(change: str, n: int) -> None:
    array = np.arange(8, dtype=np.int8).reshape((1,) * 23 + (8,))
    kept: list[Any] = []

    def change_it() -> None:
        kept.append(None)
        if len(kept) == n and change == "shape":
            array.shape = (8,)
            # They take the memory of the former dimensions.
            kept.extend(np.broadcast_to(np.int8(0), (1,) * 23 + (4096,)) for _ in range(3))
        elif len(kept) == n:
            array.dtype = np.dtype(np.float64)  # type: ignore[misc]

    with collecting(change_it):
        tensor = tw.Tensor("x", array)
    assert tensor.nbytes == tensor.as_numpy().nbytes == 8
    frame = tw.encode_request(tw.InferRequest([tensor]))
    found = tw.decode_request(bytes(frame), frame.header_length)["x"]
    assert (found.datatype, found.shape) == (tensor.datatype, tensor.shape)


class Capsule:
    """A producer that exports the same DLPack capsule again."""

    def __init__(self) -> None:
        self.capsule: Any = np.arange(6.0).__dlpack__(max_version=(1, 0))

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize("n", range(1, 6))
def test_dlpack_capsule_that_is_consumed_in_a_collection(n: int) -> None:
    producer = Capsule()
    n_collections = 0
    consumed: list[Any] = []

    def consume() -> None:
        nonlocal n_collections
        n_collections += 1
        if n_collections == n and "used" not in repr(producer.capsule):
            consumed.append(np.from_dlpack(producer).tolist())

    with collecting(consume):
        try:
            tensor = tw.Tensor("x", producer)
        except tw.EncodeError as error:
            assert "has already been consumed" in str(error)
            return
    assert consumed == []
    assert tensor.tolist() == list(range(6))


def test_buffers_of_a_frame_belong_to_the_caller() -> None:
    made = FRAME_OF((bytearray(b"abc"), memoryview(b"de")), None)
    for frame in (tw.encode_request(tw.InferRequest({"x": np.arange(3)})), made):
        before = bytes(frame)
        for buffer in frame.buffers:
            if isinstance(buffer, memoryview):
                buffer.release()
        assert b"".join(frame) == b"".join(frame.chunks(7)) == bytes(frame) == before
    memory = bytearray(10)
    frame = FRAME_OF((memory,), None)
    with pytest.raises(BufferError):
        memory.clear()
    view = memoryview(memory)
    other = FRAME_OF((view,), None)
    view.release()
    assert bytes(other) == bytes(frame) == bytes(10)
