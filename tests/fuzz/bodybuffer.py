"""A check of BodyBuffer: any sequence of calls, compared with a bytearray."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorwire as tw
from fuzz.comparison import check_error, exact

CHUNK = bytes(range(256)) * 600


def check_calls(
    content_length: int | None,
    header_length: int | None,
    max_nbytes: int | None,
    calls: list[tuple[str, int]],
) -> None:
    """A buffer has the written bytes, is aligned, and enforces its limits."""
    try:
        buffer = tw.BodyBuffer(content_length, header_length, max_nbytes=max_nbytes)
    except tw.BodyTooLargeError as error:
        assert error.status == 413
        assert content_length is not None
        assert content_length >= 2**62 or (max_nbytes is not None and content_length > max_nbytes)
        return
    assert content_length is None or max_nbytes is None or content_length <= max_nbytes
    run = Run(buffer, content_length, max_nbytes)
    for name, nbytes in calls:
        getattr(run, name)(nbytes % len(CHUNK))
        run.check(header_length or 0)
    assert bytes(buffer) == run.model
    assert all(run.model.startswith(view) for view in run.views)


class Run:
    """A buffer, and a plain bytearray with the expected content."""

    def __init__(self, buffer: tw.BodyBuffer, *bounds: int | None) -> None:
        self.buffer, self.model, self.views = buffer, bytearray(), list[memoryview]()
        self.content_length = bounds[0]
        self.most = min([bound for bound in bounds if bound is not None], default=2**62)

    def check(self, header_length: int) -> None:
        assert len(self.buffer) == self.buffer.nbytes == len(self.model)
        assert bytes(memoryview(self.buffer)[-100:]) == self.model[-100:]
        assert self.buffer.complete is (self.content_length in (None, len(self.model)))
        if self.model:
            address = np.frombuffer(memoryview(self.buffer), np.uint8).ctypes.data
            assert (address + header_length) % 64 == 0

    def write(self, nbytes: int) -> None:
        begin = len(self.model) % 256
        self.add(CHUNK[begin : begin + nbytes], lambda chunk: self.buffer.write(exact(chunk)))

    def receive(self, nbytes: int) -> None:
        try:
            remaining = self.buffer.remaining()
        except BufferError:
            return self.check_kept()
        if self.content_length is None:
            assert len(remaining) > 0
        else:
            assert len(remaining) == self.content_length - len(self.model)
        remaining[:nbytes] = received = CHUNK[: min(nbytes, len(remaining))]
        return self.add(received, lambda chunk: self.buffer.advance(len(chunk)))

    def add(self, chunk: bytes, call: Any) -> None:
        fits = len(self.model) + len(chunk) <= self.most
        try:
            call(chunk)
        except tw.DecodeError as error:
            check_error(error, len(self.model) + (self.content_length or 0))
            assert not fits
        except BufferError:
            self.check_kept()
        else:
            assert fits
            self.model += chunk

    def check_kept(self) -> None:
        """Only a view keeps the memory of a growing buffer where it is."""
        assert self.views
        assert self.content_length is None

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
