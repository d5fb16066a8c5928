"""The target for BodyBuffer: any sequence of calls."""

from __future__ import annotations

import numpy as np

import tensorwire as tw
from fuzz.comparison import check_error, exact

SIZES = (62, 126, 998, 4_094, 65_535, 131_071, 2**62, 2**63 - 1, 2**64)
CHUNK = bytes(range(256)) * 600
MAX_CALLS = 20


def bodybuffer(data: bytes) -> None:
    """Check that a buffer has the written bytes, is aligned, and enforces its limits.

    The input has the numbers for the constructor, one byte each, and then calls of two bytes each.
    """
    options, calls = data[:4].ljust(4, b"\0"), data[4:]
    content_length = number(options[1]) if options[0] & 1 else None
    header_length = number(options[2]) if options[0] & 2 else None
    max_nbytes = number(options[3]) if options[0] & 4 else None
    try:
        buffer = tw.BodyBuffer(content_length, header_length, max_nbytes=max_nbytes)
    except tw.HeaderError as error:
        assert error.status == 413
        assert content_length is not None
        assert content_length >= 2**62 or (max_nbytes is not None and content_length > max_nbytes)
        return
    assert content_length is None or max_nbytes is None or content_length <= max_nbytes
    Run(buffer, content_length, header_length or 0, max_nbytes).calls(calls)


def number(byte: int) -> int:
    """Return the byte itself if it is below 128, otherwise one of SIZES plus 0 to 2."""
    return byte if byte < 128 else SIZES[byte % len(SIZES)] + byte % 3


class Run:
    """A buffer, and a plain bytearray with the expected content."""

    def __init__(
        self,
        buffer: tw.BodyBuffer,
        content_length: int | None,
        header_length: int,
        max_nbytes: int | None,
    ) -> None:
        self.buffer, self.model, self.views = buffer, bytearray(), list[memoryview]()
        self.content_length, self.max_nbytes = content_length, max_nbytes
        self.header_length = header_length

    def calls(self, calls: bytes) -> None:
        actions = (
            self.write,
            self.write,
            self.receive,
            self.create_view,
            self.release_views,
            self.advance,
        )
        for i in range(0, min(len(calls), 2 * MAX_CALLS) - 1, 2):
            actions[calls[i] % len(actions)](number(calls[i + 1]) % len(CHUNK))
            self.check()
        assert bytes(self.buffer) == self.model
        for view in self.views:
            assert self.model.startswith(view)

    def check(self) -> None:
        assert len(self.buffer) == self.buffer.nbytes == len(self.model)
        assert bytes(memoryview(self.buffer)[-100:]) == self.model[-100:]
        assert self.buffer.complete is (self.content_length in (None, len(self.model)))
        if self.model:
            address = np.frombuffer(memoryview(self.buffer), np.uint8).ctypes.data
            assert (address + self.header_length) % 64 == 0

    def fits(self, nbytes: int) -> bool:
        bounds = [bound for bound in (self.content_length, self.max_nbytes) if bound is not None]
        return len(self.model) + nbytes <= min(bounds, default=2**62)

    def write(self, nbytes: int) -> None:
        begin = len(self.model) % 256
        chunk = CHUNK[begin : begin + nbytes]
        try:
            self.buffer.write(exact(chunk))
        except tw.DecodeError as error:
            check_error(error, len(self.model) + (self.content_length or 0))
            assert not self.fits(nbytes)
        except BufferError:
            assert self.views
            assert self.content_length is None
        else:
            assert self.fits(nbytes)
            self.model += chunk

    def receive(self, nbytes: int) -> None:
        try:
            remaining = self.buffer.remaining()
        except BufferError:
            assert self.views
            assert self.content_length is None
            return
        if self.content_length is None:
            assert len(remaining) > 0
        else:
            assert len(remaining) == self.content_length - len(self.model)
        remaining[:nbytes] = received = CHUNK[: min(nbytes, len(remaining))]
        try:
            self.buffer.advance(len(received))
        except tw.HeaderError as error:
            assert error.status == 413
            assert not self.fits(len(received))
        else:
            assert self.fits(len(received))
            self.model += received

    def advance(self, nbytes: int) -> None:
        """Check that `advance` rejects more bytes than the buffer has room for."""
        try:
            self.buffer.advance(nbytes + 2**40)
        except ValueError:
            return
        raise AssertionError(nbytes)

    def create_view(self, _: int) -> None:
        self.views = [*self.views[-2:], memoryview(self.buffer)]

    def release_views(self, _: int) -> None:
        self.views.clear()
