"""BodyBuffer: alignment, limits, and memory that is allocated as bytes arrive."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

import tensorwire as tw
from support.memory import address, leak_of, resident_nbytes

FRAME = tw.encode_request(tw.InferRequest({"x": np.arange(50_000.0), "y": ["a"]}), align=1)
BODY = bytes(FRAME)
N = FRAME.header_length or 0


def test_more_bytes_than_content_length_are_rejected() -> None:
    buffer = tw.BodyBuffer(10)
    buffer.write(b"12345678")
    with pytest.raises(tw.LayoutError) as caught:
        buffer.write(b"abc")
    assert str(caught.value) == (
        "the body exceeds Content-Length: 11 bytes have arrived, but Content-Length is 10"
    )
    assert (caught.value.expected, caught.value.actual, caught.value.offset) == (10, 11, 10)
    assert (len(buffer), buffer.complete, len(buffer.remaining())) == (8, False, 2)
    for nbytes in (3, -1):
        with pytest.raises(ValueError, match="cannot have arrived: there is memory for 2"):
            buffer.advance(nbytes)
    buffer.write(b"90")
    assert (bytes(buffer), len(buffer.remaining())) == (b"1234567890", 0)


@pytest.mark.parametrize("cut", [1, 100, len(BODY) - 1])
def test_fewer_bytes_than_content_length_are_incomplete(cut: int) -> None:
    buffer = tw.BodyBuffer(len(BODY), N)
    buffer.write(BODY[:cut])
    assert not buffer.complete
    assert repr(buffer) == f"<BodyBuffer with {cut} of {len(BODY)} bytes>"
    message = f"^the body is incomplete: {cut} of {len(BODY)} bytes have arrived$"
    with pytest.raises(tw.LayoutError, match=message) as caught:
        tw.decode_request(buffer, N)
    assert (caught.value.expected, caught.value.actual) == (len(BODY), cut)


TOO_LONG = [
    (11, 10, "^the body is 11 bytes long; the limit is 10$"),
    *((absurd, None, "there is no memory for") for absurd in (2**62, 2**63, 10**30)),
]


@pytest.mark.parametrize(("content_length", "max_nbytes", "message"), TOO_LONG)
def test_content_length_is_limited(
    content_length: int, max_nbytes: int | None, message: str
) -> None:
    limits = {} if max_nbytes is None else {"max_nbytes": max_nbytes}
    with pytest.raises(tw.BodyTooLargeError, match=message) as caught:
        tw.BodyBuffer(content_length, **limits)
    assert caught.value.status == 413
    with pytest.raises(tw.LayoutError, match="negative: -1"):
        tw.BodyBuffer(-1, **limits)


@pytest.mark.thread_unsafe(reason="it measures the process")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this machine has no /proc")
def test_large_content_length_allocates_nothing() -> None:
    before = resident_nbytes()
    buffers = [tw.BodyBuffer(1 << 30, 100) for _ in range(2)]
    assert resident_nbytes() - before < 8 << 20
    buffers[0].write(bytes(100))
    assert resident_nbytes() - before < 16 << 20


@pytest.mark.no_sanitizers(reason="it measures memory")
@pytest.mark.thread_unsafe(reason="it measures the process")
def test_memory_is_freed_when_a_body_becomes_large() -> None:
    chunk = bytes(3 << 20)

    def grow() -> None:
        buffer = tw.BodyBuffer()
        buffer.write(chunk)
        buffer.write(chunk)

    assert not leak_of(grow, 20)


@pytest.mark.no_sanitizers(reason="they replace malloc")
@pytest.mark.thread_unsafe(reason="it limits the process")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this machine has no /proc")
def test_large_body_grows_without_copying() -> None:
    """A copy would block an event loop for a second, and need the memory of both."""
    import resource  # noqa: PLC0415 - not on Windows

    body = tw.BodyBuffer(None, 100)
    body.reserve(512 << 20)
    body.write(b"start")
    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (n_pages * resource.getpagesize() + (320 << 20), limits[1])
    )
    try:
        body.reserve(768 << 20)
        with pytest.raises(tw.BodyTooLargeError):
            body.reserve(2**61)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    body.write(b", end")
    assert bytes(body) == b"start, end"
    assert (address(body) + 100) % 64 == 0


@pytest.mark.no_sanitizers(reason="they replace malloc")
@pytest.mark.thread_unsafe(reason="it measures the process")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this machine has no /proc")
def test_first_byte_of_a_large_body_takes_little_memory() -> None:
    """A huge page would take 2 MiB for it."""

    def resident_nbytes() -> int:
        n_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return n_pages * resource.getpagesize()

    import resource  # noqa: PLC0415 - not on Windows

    n_reserved = 33 << 20
    before = resident_nbytes()
    bodies = [tw.BodyBuffer(None) for _ in range(20)]
    for body in bodies:
        body.reserve(n_reserved)
        body.write(b"x")
    assert resident_nbytes() - before < 20 << 16
    bodies[0].write(bytes(n_reserved - 1))
    assert bytes(bodies[0]) == b"x" + bytes(n_reserved - 1)


def test_buffer_with_views_cannot_grow() -> None:
    buffer = tw.BodyBuffer(None)
    buffer.write(bytes(1000))
    view = memoryview(buffer)
    buffer.write(bytes(1000))  # there is room
    assert len(view) == 1000
    with pytest.raises(BufferError, match="cannot grow while views of it exist"):
        buffer.write(bytes(1 << 20))
    assert len(buffer) == 2000
    view.release()
    buffer.write(bytes(1 << 20))
    room = buffer.remaining()
    with pytest.raises(BufferError):
        buffer.write(bytes(1 << 22))
    room.release()


def test_remaining_follows_a_buffer_that_grows() -> None:
    """The object that a memoryview was created from outlives the view."""
    buffer = tw.BodyBuffer(None)
    with buffer.remaining() as room:
        maker = room.obj
    buffer.write(b"x" * (9 << 20))
    with memoryview(maker) as again:
        assert again.nbytes == 64 << 10
        assert address(again) == address(buffer)


@pytest.mark.parametrize("n", [100, 3 << 20])
def test_writing_a_view_of_the_buffer_itself(n: int) -> None:
    """Source and target may overlap, with and without the GIL."""
    rng = np.random.default_rng(n)
    buffer = tw.BodyBuffer(4 * n)
    buffer.write(b"ab")
    room = buffer.remaining()
    room[:] = rng.bytes(len(room))
    expected = bytes(room[1:n])
    buffer.write(room[1:n])
    assert bytes(buffer) == b"ab" + expected
    buffer.write(buffer)
    assert bytes(buffer) == 2 * (b"ab" + expected)


def test_chunk_larger_than_memory_is_rejected() -> None:
    buffer = tw.BodyBuffer()
    buffer.write(b"x")
    memory = bytearray(1)
    endless = (ctypes.c_char * (2**63 - 1)).from_address(address(memory))
    with pytest.raises(tw.BodyTooLargeError, match="is no memory for 9223372036854775807 more"):
        buffer.write(endless)
    assert bytes(buffer) == b"x"
