"""Frame: sending it with http.client and sockets, and its properties."""

from __future__ import annotations

import gc
import socket
import sys
import sysconfig
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.threads import in_thread

FRAME = tw.encode_request(
    tw.InferRequest([tw.Tensor("x", np.arange(70_000, dtype=np.int32)), tw.Tensor("y", ["a"])])
)


def received(send: Callable[[socket.socket], None]) -> bytes:
    """Return what a function sends to a slow receiver."""
    near, far = socket.socketpair()
    data = bytearray()

    def receive() -> None:
        while chunk := far.recv(1 << 16):
            data.extend(chunk)
            time.sleep(0.0005)

    with far, in_thread(receive), near:
        send(near)
    return bytes(data)


@pytest.mark.parametrize(("n_tensors", "timeout"), [(1, 10.0), (1500, None)])
def test_frame_is_sent_by_the_file_of_a_socket(n_tensors: int, timeout: float | None) -> None:
    """More buffers than ``sendmsg`` accepts, and more bytes than fit into a socket's buffer."""
    arrays = [np.full(4_000_000 // n_tensors, i, np.float32) for i in range(n_tensors)]
    frame = tw.encode_request(tw.InferRequest({f"x{i}": a for i, a in enumerate(arrays)}))

    def send(near: socket.socket) -> None:
        near.settimeout(timeout)
        with near.makefile("wb") as stream:
            stream.writelines(frame)

    assert received(send) == bytes(frame)


def test_frame_is_a_container_of_buffers() -> None:
    assert list(FRAME) == list(FRAME.buffers)
    assert len(FRAME) == sum(map(len, FRAME))
    assert b"".join(FRAME) == bytes(FRAME)
    assert repr(FRAME) == f"<Frame of {len(FRAME)} bytes in 3 buffers, header_length=192>"
    empty = tw.encode_raw_request(np.zeros(0, np.int8))
    assert (len(empty), bool(empty)) == (0, True)


def test_chunks() -> None:
    for most in (7, 1000, 280_000, 1 << 30):
        chunks = list(FRAME.chunks(most))
        assert b"".join(chunks) == bytes(FRAME)
        assert max(map(len, chunks)) <= most
    memory = [np.frombuffer(chunk, np.uint8) for chunk in FRAME.chunks(1000)]
    assert np.shares_memory(memory[1], np.frombuffer(FRAME.buffers[1], np.uint8))
    assert list(tw.encode_raw_request(np.zeros(0, np.int8)).chunks(10)) == []
    assert list(tw.Frame((b"abc", b"d"), None).chunks(1)) == [b"a", b"b", b"c", b"d"]
    for size in (0, -1):
        with pytest.raises(ValueError, match="max_nbytes must be 1 or more, not"):
            FRAME.chunks(size)


def test_buffers_are_read_only() -> None:
    for buffer in FRAME.buffers[1:]:
        assert isinstance(buffer, memoryview)
        assert (buffer.readonly, buffer.format, buffer.ndim) == (True, "B", 1)


def test_buffers_of_other_items_become_bytes() -> None:
    numbers = np.arange(6, dtype=np.int32)
    buffers: list[Any] = [numbers, numbers.data, numbers.reshape(2, 3).data, bytearray(24)]
    for buffer in buffers:
        frame = tw.Frame((b"ab", buffer), 2)
        assert (len(frame), len(bytes(frame))) == (26, 26)
        assert frame.headers["Content-Length"] == "26"
        assert bytes(frame) == b"ab" + bytes(buffer) == b"".join(frame.chunks(3))
    assert len(tw.Frame((np.zeros((0, 4), np.int32).data,), None)) == 0
    strided: list[Any] = [numbers[::2], numbers.data[::2], memoryview(b"abcdef")[::-1]]
    for buffer in (*strided, np.zeros((4, 4), np.int8)[:, ::2]):
        with pytest.raises(BufferError, match="cannot be sent as bytes"):
            tw.Frame((buffer,), None)


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="this Python collects garbage later"
)
@pytest.mark.thread_unsafe(reason="it changes when the garbage collector runs")
def test_buffers_are_read_while_they_are_made() -> None:
    """Making them may start the garbage collector, and that may run any Python code."""
    tensors = [tw.Tensor(f"x{i}", np.arange(4)) for i in range(100)]
    frame = tw.encode_request(tw.InferRequest(tensors))
    n_references = sum(map(sys.getrefcount, tensors))
    found: list[Any] = []

    def read(phase: str, info: object) -> None:
        if len(found) < 3:
            found.append(None)
            found[-1] = frame.buffers

    threshold = gc.get_threshold()
    gc.callbacks.append(read)
    gc.set_threshold(1)
    try:
        found.append(frame.buffers)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(read)
    assert len(found) >= 2, "the garbage collector did not run"
    for buffers in found:
        assert b"".join(buffers) == bytes(frame)
    assert sum(map(sys.getrefcount, tensors)) == n_references


@pytest.mark.parametrize("read", [False, True])
def test_cycle_of_a_frame_is_collected(read: bool) -> None:
    """The garbage collector knows the tuple of the tensors, and that of the buffers."""

    class Buffer(bytearray):
        frame: tw.Frame

    sent = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.arange(4))]))
    buffer = Buffer(bytes(sent))
    frame = tw.encode_request(tw.decode_request(buffer, sent.header_length))
    buffer.frame = frame
    if read:
        assert len(frame.buffers) == 2
    released = weakref.ref(buffer)
    del buffer, frame
    assert released() is not None
    gc.collect()
    assert released() is None
