"""The buffers of a frame as an asynchronous iterator."""

from __future__ import annotations

from collections.abc import AsyncIterator


async def one_by_one(
    buffers: tuple[bytes | memoryview, ...],
) -> AsyncIterator[bytes | memoryview]:
    # Not in the compiled module: clients recognise only generators of Python, which they do not
    # send again after a redirect.
    for buffer in buffers:
        yield buffer
