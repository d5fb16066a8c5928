"""The body of a request: its memory, its limit, decompression, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .._codec.datatypes import Limits
from .._codec.http.decoder import decode_request
from .._codec.memory import BodyBuffer
from .._codec.messages.message import InferRequest
from .._codec.messages.tensor import TensorSpec
from ..compression import STEP_NBYTES, CompressionError, Decompressor, is_supported
from ..errors import DecodeError, HeaderError, LayoutError, TensorwireError, format_count
from ..threads import in_thread
from .framing import Framing
from .memory import UNCOUNTED_NBYTES

DEFAULT_MAX_BODY = 2**31 - 1
"""Default limit of a request body in bytes, after decompression. It is also Triton's limit."""

DEFAULT_RECEIVE_TIMEOUT = 300.0
"""Default time in seconds in which the whole body of a request must arrive."""

GRACE_SECONDS = 5.0
"""Time that a client has during a shutdown to send the rest of a request, or to read a response."""

# Larger JSON is read and written in a thread, and larger lists are converted there. Larger messages
# are read in a thread, because their BYTES and BOOL elements are checked one by one. Larger gRPC
# responses are written in a thread, because they are copied. Up to these sizes, this takes up to
# about 2 ms.
MAX_JSON_NBYTES = 64 << 10
MAX_BODY_NBYTES = 2 << 20


class ClientDisconnectedError(TensorwireError):
    """The client closed the connection before its request had arrived or begun to be processed.

    No response can be sent. ``status`` is 499.
    """

    status = 499


class UnsupportedEncodingError(DecodeError):
    """The Content-Encoding of the body is not supported. ``status`` is 415.

    The supported ones are gzip, deflate, identity and, with Python 3.14 or ``tensorwire[zstd]``,
    zstd.
    """

    status = 415


class ReceiveTimeoutError(DecodeError):
    """The body did not arrive in time. ``status`` is 408."""

    status = 408


class RequestBody:
    """The body of a request, as its HTTP headers describe it.

    It is received into ``buffer``; a compressed body remains compressed there. ``reserve`` is
    called with the number of bytes for which memory is needed, and whether the body may wait for
    it. It returns whether there is memory. If not, ``is_waiting`` is true until ``resume`` is
    called, and what is written before is kept outside the buffer. Raises HeaderError with status
    413 if Content-Length exceeds ``max_body``, and UnsupportedEncodingError.
    """

    buffer: BodyBuffer

    def __init__(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        max_body: int | None,
        reserve: Callable[[int, bool], bool] | None = None,
    ) -> None:
        framing = Framing(headers)
        self.framing: Framing = framing
        self.max_body = max_body
        if framing.encoding and not is_supported(framing.encoding):
            name = framing.encoding[:40].decode("latin-1")
            raise UnsupportedEncodingError(f"Content-Encoding {name!r} is not supported")
        self.is_waiting: bool = False
        self._reserve = reserve
        self._reserved_nbytes = UNCOUNTED_NBYTES
        self._held: list[bytes] = []  # what arrives while the body waits
        length = framing.content_length or 0
        if length > UNCOUNTED_NBYTES and (max_body is None or length <= max_body):
            self._provide(length)
        if not self.is_waiting:
            self._allocate()

    def _provide(self, nbytes: int, may_wait: bool = True) -> None:
        """Reserve memory for this number of bytes in total."""
        if nbytes > self._reserved_nbytes and self._reserve is not None:
            nbytes = max(nbytes, 2 * self._reserved_nbytes)
            self.is_waiting = not self._reserve(nbytes - self._reserved_nbytes, may_wait)
            self._reserved_nbytes = nbytes

    def _allocate(self) -> None:
        framing = self.framing
        self.buffer = BodyBuffer(
            framing.content_length, framing.header_length, max_nbytes=self.max_body
        )

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a chunk. Raises HeaderError and OverloadedError."""
        if not self.is_waiting and self.framing.content_length is None:
            # A body that has memory does not wait: two of them could wait for each other.
            may_wait = self._reserved_nbytes == UNCOUNTED_NBYTES
            self._provide(len(self.buffer) + len(chunk), may_wait)
        if self.is_waiting:
            self._held.append(bytes(chunk))
        else:
            self.buffer.write(chunk)

    def resume(self) -> None:
        """Continue when there is memory for the body. Raises HeaderError."""
        self.is_waiting = False
        if self.framing.content_length is not None:
            self._allocate()
        held, self._held = self._held, []
        for chunk in held:
            self.write(chunk)

    @property
    def is_slow_to_decode(self) -> bool:
        nbytes, framing = self.buffer.nbytes, self.framing
        json_nbytes = nbytes if framing.header_length is None else framing.header_length
        return bool(framing.encoding) or json_nbytes > MAX_JSON_NBYTES or nbytes > MAX_BODY_NBYTES

    async def decode_without_blocking(
        self, limits: Limits, raw_input: TensorSpec | None = None
    ) -> InferRequest:
        """Decode the request, in a thread if it is slow. Raises DecodeError."""
        if not self.is_slow_to_decode:
            return self.decode(limits, raw_input)
        request: InferRequest = await in_thread(self.decode, limits, raw_input)
        return request

    def decode(self, limits: Limits, raw_input: TensorSpec | None = None) -> InferRequest:
        """Decode the request, after the end of the body. Raises DecodeError."""
        body = self.buffer
        if not body.complete:
            raise LayoutError(
                f"the body is shorter than Content-Length: {format_count('byte', len(body))} "
                f"arrived, but Content-Length is {body.content_length}",
                expected=body.content_length,
                actual=len(body),
            )
        if self.framing.encoding:
            body = self._decompress()
        return decode_request(body, self.framing.header_length, raw_input=raw_input, limits=limits)

    def _decompress(self) -> BodyBuffer:
        """Return the decompressed bytes.

        This takes up to 3 ns per decompressed byte. Raises HeaderError, with status 413 if the
        result is longer than ``max_body``, and OverloadedError.
        """
        body = self.buffer
        result = BodyBuffer(None, self.framing.header_length, max_nbytes=self.max_body)
        decompressor = Decompressor(self.framing.encoding)
        compressed = memoryview(body)
        try:
            for start in range(0, len(compressed), STEP_NBYTES):
                for piece in decompressor.pieces(compressed[start : start + STEP_NBYTES]):
                    self._provide(len(body) + len(result) + len(piece), may_wait=False)
                    result.write(piece)
        except CompressionError as error:
            raise HeaderError(
                "the compressed body is invalid after "
                f"{format_count('decompressed byte', len(result))}: {error}"
            ) from None
        if not decompressor.is_complete:
            raise HeaderError(
                f"the compressed body is truncated after {format_count('byte', len(body))} "
                f"({format_count('byte', len(result))} decompressed)"
            )
        return result
