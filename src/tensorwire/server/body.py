"""The body of a request: its memory, its limit, decompression, and their errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .._codec.body_buffer import BodyBuffer
from .._codec.http.decoder import decode_request
from .._codec.limits import Limits
from .._codec.messages.message import InferRequest
from .._codec.messages.tensor import TensorSpec
from ..compression import Decompressor, is_supported
from ..errors import BodyTooLargeError, DecompressionError, LayoutError, format_count
from ..sizes import MAX_QUICK_MESSAGE_NBYTES, PIECE_NBYTES
from ..threads import (
    DECOMPRESSING,
    READING,
    READING_DECOMPRESSED,
    InThread,
    in_thread,
    read_without_blocking,
)
from .body_memory import UNCOUNTED_NBYTES, Reservation
from .errors import UnsupportedEncodingError
from .framing import Framing

Result = TypeVar("Result")

# A body of known length may get this many times the memory of what has arrived. Others get twice.
MAX_GROWTH = 20

DEFAULT_RECEIVE_TIMEOUT = 300.0
"""Default time in seconds in which a request must arrive, and the client must read something."""


class RequestBody:
    """The body of a request, as its HTTP headers describe it.

    It is received into ``buffer``; a compressed body remains compressed there.

    With a ``reservation``, a body that may exceed UNCOUNTED_NBYTES ``has_steps``: it gets its
    memory as it arrives. What arrives is passed to ``write``, or received into ``remaining``. The
    transport then calls ``take_step``, and again, when the reservation is woken, if the result was
    False. In between, ``is_waiting`` is true, and what is written is kept outside the buffer.
    ``reservation`` is a function that returns the reservation of the body.

    Raises BodyTooLargeError if Content-Length exceeds ``max_body_nbytes``,
    UnsupportedEncodingError, and what ``Framing`` raises.
    """

    buffer: BodyBuffer
    is_waiting: bool = False
    _allowed_nbytes = 0  # how much of a body with steps may be in the buffer
    _n_held = 0

    def __init__(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        max_body_nbytes: int,
        reservation: Callable[[], Reservation] | None = None,
    ) -> None:
        framing = Framing(headers)
        self.framing: Framing = framing
        self.is_compressed: bool = bool(framing.encoding)
        self.max_body_nbytes = max_body_nbytes
        if framing.encoding and not is_supported(framing.encoding):
            name = framing.encoding[:40].decode("latin-1")
            raise UnsupportedEncodingError(f"Content-Encoding {name!r} is not supported")
        self._reservation = reservation
        length = framing.content_length
        self.has_steps: bool = reservation is not None and (
            length is None or length > UNCOUNTED_NBYTES
        )
        if self.has_steps and (length is None or length <= max_body_nbytes):
            self._held: list[bytes] = []  # what has arrived and is not in the buffer
            limit = max_body_nbytes if length is None else length
            self.buffer = BodyBuffer(None, framing.header_length, max_nbytes=limit)
        else:
            self.buffer = BodyBuffer(length, framing.header_length, max_nbytes=max_body_nbytes)
            self._allowed_nbytes = length or 0

    @property
    def n_arrived(self) -> int:
        return self.buffer.nbytes + self._n_held

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a chunk. Raises BodyTooLargeError and LayoutError."""
        n_arrived = self.n_arrived + len(chunk)
        length = self.framing.content_length
        if length is not None and n_arrived > length:
            raise LayoutError(
                f"the body exceeds Content-Length: {n_arrived} bytes have arrived, but "
                f"Content-Length is {length}",
                offset=length,
                expected=length,
                actual=n_arrived,
            )
        if n_arrived > self.max_body_nbytes:
            BodyBuffer(n_arrived, max_nbytes=self.max_body_nbytes)  # raises the error
        is_counted = length is not None or n_arrived > UNCOUNTED_NBYTES
        if n_arrived <= self._allowed_nbytes or not (self.has_steps and is_counted):
            if length is None and n_arrived == len(chunk):
                self.buffer.reserve(n_arrived)  # not more: many pipelined requests may wait
            self.buffer.write(chunk)
        else:
            self._held.append(bytes(chunk))
            self._n_held += len(chunk)

    def take_step(self) -> bool:
        """Provide the memory of the next step, and return whether it is there.

        Raises BodyTooLargeError if the process has no memory.
        """
        length = self.framing.content_length
        is_full = length is not None and self.buffer.nbytes == self._allowed_nbytes < length
        if self.has_steps and (self._n_held or is_full):
            nbytes = self._next_step(self._allowed_nbytes, self.n_arrived, length)
            assert self._reservation is not None
            self.is_waiting = nbytes > UNCOUNTED_NBYTES and not self._reservation().request(nbytes)
            if not self.is_waiting:
                self._allowed_nbytes = nbytes
                if self._held:
                    self._allocate()
                for chunk in self._held:
                    self.buffer.write(chunk)
                self._held, self._n_held = [], 0
        return not self.is_waiting

    def remaining(self) -> memoryview:
        """Return the memory for what arrives next, after ``take_step``.

        The memory grows here, because the event loop has the previous view while it calls a
        protocol. Raises BodyTooLargeError if the process has no memory.
        """
        self._allocate()
        return self.buffer.remaining()[: self._allowed_nbytes - self.buffer.nbytes]

    def _allocate(self) -> None:
        """Allocate the memory that is allowed, and at first more, so that few bytes are copied."""
        nbytes, length = self._allowed_nbytes, self.framing.content_length
        if self.buffer.capacity < nbytes:
            if length is not None and self._reservation is not None:
                nbytes = max(nbytes, min(length, self._reservation().allocate_ahead()))
            self.buffer.reserve(nbytes)

    def _next_step(self, allowed_nbytes: int, needed: int, length: int | None) -> int:
        """Return how much may arrive after the next step."""
        nbytes = max(needed, 2 * allowed_nbytes, UNCOUNTED_NBYTES)
        if length is None or self._reservation is None:
            return max(needed, min(nbytes, self.max_body_nbytes))
        step_nbytes = self._reservation().step_nbytes
        # One byte more than what is there: asyncio takes an empty buffer for the end of a TLS
        # connection. More than 64 KiB may be there before the first step, after a TLS handshake.
        return min(length, max(nbytes, needed + 1, min(MAX_GROWTH * allowed_nbytes, step_nbytes)))

    def reading_nbytes(self) -> int:
        """Return how many bytes take time to decode, or any number above the limits for that."""
        nbytes, json_nbytes = self.buffer.nbytes, self.framing.header_length
        if self.is_compressed or nbytes > MAX_QUICK_MESSAGE_NBYTES:
            return sys.maxsize
        return nbytes if json_nbytes is None else json_nbytes

    async def read_slowly(
        self, function: Callable[..., Result], *arguments: Any, run: InThread = in_thread
    ) -> Result:
        """Decompress the body, and call a function that decodes it, in threads if that is slow.

        ``run`` is that of ``read_without_blocking``.
        """
        threads = READING
        if self.is_compressed:
            await run(self._decompress, threads=DECOMPRESSING)
            threads = READING_DECOMPRESSED
        nbytes = self.reading_nbytes()
        return await read_without_blocking(nbytes, function, *arguments, threads=threads, run=run)

    def decode(self, limits: Limits, raw_input: TensorSpec | None = None) -> InferRequest:
        """Decode the request, after the end of the body. Raises DecodeError."""
        if self.is_compressed:
            self._decompress()
        elif not self.framing.encoding:
            self._check_length()
        header_length = self.framing.header_length
        return decode_request(self.buffer, header_length, raw_input=raw_input, limits=limits)

    def _check_length(self) -> None:
        n_arrived, length = self.buffer.nbytes, self.framing.content_length
        if length is not None and n_arrived != length:
            raise LayoutError(
                f"the body is shorter than Content-Length: {format_count('byte', n_arrived)} "
                f"arrived, but Content-Length is {length}",
                expected=length,
                actual=n_arrived,
            )

    def _decompress(self) -> None:
        """Replace the body by the decompressed bytes.

        This takes up to 3 ns per decompressed byte. Raises DecompressionError, BodyTooLargeError if
        the result is longer than ``max_body_nbytes`` or there is no memory, and OverloadedError.
        """
        self._check_length()
        body = self.buffer
        result = BodyBuffer(None, self.framing.header_length, max_nbytes=self.max_body_nbytes)
        compressed = memoryview(body)
        try:
            decompressor = Decompressor(self.framing.encoding)
            for start in range(0, len(compressed), PIECE_NBYTES):
                for piece in decompressor.pieces(compressed[start : start + PIECE_NBYTES]):
                    self._extend(result, result.nbytes + len(piece))
                    result.write(piece)
        except MemoryError:
            problem = "there is no memory to decompress the body"
            raise BodyTooLargeError(problem, status=503) from None
        except DecompressionError as error:
            raise DecompressionError(
                "the compressed body is invalid after "
                f"{format_count('decompressed byte', len(result))}: {error}"
            ) from None
        if not decompressor.is_complete:
            raise DecompressionError(
                f"the compressed body is truncated after {format_count('byte', len(body))} "
                f"({format_count('byte', len(result))} decompressed)"
            )
        self.buffer, self.is_compressed = result, False
        if self._reservation and (self.has_steps or result.capacity > UNCOUNTED_NBYTES):
            self._reservation().keep(result.nbytes, result.capacity)

    def _extend(self, result: BodyBuffer, needed: int) -> None:
        """Provide memory for the decompressed bytes. Raises OverloadedError."""
        if self._reservation is None or not result.capacity < needed <= self.max_body_nbytes:
            return
        capacity = self._next_step(result.capacity, needed, None)
        if capacity > UNCOUNTED_NBYTES:
            counted = result.capacity if result.capacity > UNCOUNTED_NBYTES else 0
            capacity = counted + self._reservation().extend(needed - counted, capacity - counted)
        result.reserve(capacity)
