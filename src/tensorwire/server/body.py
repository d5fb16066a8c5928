"""Collect the body of a request as it arrives: limits, decompression, and their errors."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

from .._codec.memory import BodyBuffer
from ..errors import DecodeError, HeaderError, LayoutError, TensorwireError, plural
from .framing import Framing

DEFAULT_MAX_BODY = 2**31 - 1
"""Default limit of a request body in bytes, after decompression. It is also Triton's limit."""

DEFAULT_RECEIVE_TIMEOUT = 300.0
"""Default time in seconds in which the whole body of a request must arrive."""

# Up to this size, the body of a rejected request is discarded before the reply. If a server closes
# the connection while the client is still sending, the client may not receive the reply.
MAX_DISCARDED_NBYTES = 16 << 20

# How often the timer of ReceiveTimeouts runs in the time for one body.
_N_TICKS = 16

# Decompress in steps, so that a body that expands beyond max_body is rejected early.
_INFLATE_NBYTES = 1 << 20


class ClientDisconnected(TensorwireError):
    """The client closed the connection before the whole body had arrived.

    No response can be sent. ``status`` is 499.
    """

    status = 499


class UnsupportedEncoding(DecodeError):
    """The Content-Encoding of the body is not gzip, deflate or identity. ``status`` is 415."""

    status = 415


class ReceiveTimeout(DecodeError):
    """The body did not arrive in time. ``status`` is 408."""

    status = 408


class ReceiveTimeouts:
    """Limits the time in which tasks receive the bodies of requests.

    A task calls ``start`` before it receives a body, and ``stop`` in a ``finally`` clause. All
    tasks share one timer, which runs 16 times in the limited time, because a timer for each
    request, such as ``asyncio.timeout``, costs up to 17 us of CPU time (granian, 2026). A task may
    take 1/16 of the time longer.

    Parameters
    ----------
    seconds : float or None
        The time for one body. None means no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        if seconds is not None and not seconds > 0:
            raise ValueError(f"receive_timeout must be positive or None, not {seconds}")
        self.seconds = seconds
        self._tick = 0  # how often the timer has run
        self._started: dict[asyncio.Task[Any] | None, int] = {}  # the tick in which a task started
        self._expired: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> asyncio.Task[Any] | None:
        """Limit the time of the current task. Return the argument for ``stop``."""
        if self.seconds is None:
            return None
        task = asyncio.current_task()
        assert task is not None
        self._started[task] = self._tick
        if self._timer is None or self._loop is not task.get_loop():
            self._start_timer()
        return task

    def stop(self, task: asyncio.Task[Any] | None) -> None:
        """End the limit. Raises ReceiveTimeout if the task was cancelled because of it."""
        if self._started.pop(task, None) is None and task in self._expired:
            self._expired.discard(task)
            task.uncancel()
            raise self.error() from None

    def error(self) -> ReceiveTimeout:
        return ReceiveTimeout(f"the body did not arrive within {self.seconds:g} seconds")

    def _start_timer(self) -> None:
        assert self.seconds is not None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self.seconds / _N_TICKS, self._cancel_expired)

    def _cancel_expired(self) -> None:
        self._timer = None
        self._tick += 1
        for task, tick in list(self._started.items()):  # the oldest first
            # A task has waited for at least one tick less than this difference.
            if self._tick - tick <= _N_TICKS:
                self._start_timer()
                return
            del self._started[task]
            assert task is not None
            if not task.done():
                self._expired.add(task)
                task.cancel()


class CompressedBody:
    """Decompresses a body as it arrives.

    zlib detects whether the data has a zlib or a gzip header. Therefore zlib data with the encoding
    ``gzip`` is accepted, and gzip data with the encoding ``deflate``.
    """

    def __init__(self, header_length: int | None, max_body: int | None) -> None:
        self.buffer = BodyBuffer(None, header_length, max_nbytes=max_body)
        self._inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: detect the header
        self._n_read = 0

    def write(self, chunk: bytes) -> None:
        """Decompress a chunk. Raises HeaderError."""
        self._n_read += len(chunk)
        # zlib copies the unconsumed rest of its input at every step, which would take quadratic
        # time for a large chunk. Therefore the input is split as well.
        for start in range(0, len(chunk), _INFLATE_NBYTES):
            self._inflate(chunk[start : start + _INFLATE_NBYTES])

    def _inflate(self, chunk: bytes) -> None:
        inflater = self._inflater
        try:
            while chunk:
                self.buffer.write(inflater.decompress(chunk, _INFLATE_NBYTES))
                chunk = inflater.unconsumed_tail
        except zlib.error as error:
            raise HeaderError(
                "the compressed body is invalid after "
                f"{plural('decompressed byte', len(self.buffer))}: {error}"
            ) from None
        if inflater.unused_data:
            raise HeaderError(
                "the compressed body is followed by other data: it ends after "
                f"{plural('decompressed byte', len(self.buffer))}"
            )

    def finish(self) -> BodyBuffer:
        """Return the decompressed body. Raises HeaderError if it is not complete."""
        if not self._inflater.eof:
            raise HeaderError(
                f"the compressed body is truncated after {plural('byte', self._n_read)} "
                f"({plural('byte', len(self.buffer))} decompressed)"
            )
        return self.buffer


def open_body(framing: Framing, max_body: int | None) -> BodyBuffer | CompressedBody:
    """Return an object whose ``write`` method takes the chunks of the body.

    Raises HeaderError with status 413 if Content-Length exceeds ``max_body``, and
    UnsupportedEncoding.
    """
    encoding = framing.encoding
    if not encoding:
        return BodyBuffer(framing.content_length, framing.header_length, max_nbytes=max_body)
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        name = encoding[:40].decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding {name!r} is not supported")
    return CompressedBody(framing.header_length, max_body)


def finish_body(body: BodyBuffer | CompressedBody) -> BodyBuffer:
    """Return the buffer of a body after its last chunk. Raises DecodeError if it is truncated."""
    if isinstance(body, CompressedBody):
        return body.finish()
    if not body.complete:
        raise LayoutError(
            f"the body is shorter than announced: {plural('byte', len(body))}, "
            f"Content-Length is {body.content_length}",
            expected=body.content_length,
            actual=len(body),
        )
    return body
