"""A check of BodyBuffer: any sequence of calls, compared with a bytearray."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

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
    most = min([n for n in (content_length, max_nbytes) if n is not None], default=2**62)
    try:
        buffer = tw.BodyBuffer(content_length, header_length, max_nbytes=max_nbytes)
    except tw.BodyTooLargeError as error:
        assert error.status == 413
        assert content_length is not None and content_length >= min(2**62, most + 1)
        return
    assert content_length in (None, most)
    model, views = bytearray(), list[memoryview]()

    def append(chunk: bytes, call: Callable[[bytes], None]) -> None:
        nonlocal model
        fits = len(model) + len(chunk) <= most
        try:
            call(chunk)
        except tw.DecodeError as error:
            check_error(error, len(model) + (content_length or 0))
            assert not fits
        except BufferError:  # only a view keeps the memory of a growing buffer where it is
            assert views and content_length is None
        else:
            assert fits
            model += chunk

    def receive(nbytes: int) -> None:
        with buffer.remaining() as view:
            n = len(view)
            view[:nbytes] = received = CHUNK[: min(nbytes, n)]
        assert n > 0 if content_length is None else n == content_length - len(model)
        append(received, lambda chunk: buffer.advance(len(chunk)))

    for name, nbytes in [(name, n % len(CHUNK)) for name, n in calls]:
        if name == "write":
            append(CHUNK[len(model) % 256 :][:nbytes], lambda chunk: buffer.write(exact(chunk)))
        elif name == "receive":
            try:
                receive(nbytes)
            except BufferError:
                assert views and content_length is None
        elif name == "advance":  # more bytes than there is room for
            with pytest.raises(ValueError, match="cannot have arrived"):
                buffer.advance(nbytes + 2**40)
        else:
            views = [*views[-2:], memoryview(buffer)] if name == "create_view" else []
        assert len(buffer) == buffer.nbytes == len(model)
        assert bytes(memoryview(buffer)[-100:]) == model[-100:]
        assert buffer.complete is (content_length in (None, len(model)))
        if model:
            address = np.frombuffer(memoryview(buffer), np.uint8).ctypes.data
            assert (address + (header_length or 0)) % 64 == 0
    assert bytes(buffer) == model
    assert all(model.startswith(view) for view in views)
