"""The calls of gRPC clients: their number, the time of their messages, and how they end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from ..errors import TensorwireError, format_seconds
from .errors import SHUTTING_DOWN, OverloadedError
from .service import Service

# Names in an error message may have any characters, and each byte becomes up to three in the
# metadata of HTTP/2, which clients limit to 8 KiB.
MAX_DETAILS_NBYTES = 2000
# The limit of messages without tensors; the length of the longest name of a model is added. They
# are read in the event loop.
MAX_SMALL_NBYTES = 4096
# Of a call, as HTTP/2 counts them. By default, grpcio rejects some of more than 8 KiB, at random.
MAX_METADATA_NBYTES = 16 << 10
_METADATA_ENTRY_NBYTES = 32  # RFC 9113, section 6.5.2
N_RESERVED = 16  # connections and calls without inference, beyond limit_concurrency
_EOF_SECONDS = 0.1  # in which a stream ends that has had all responses, during a shutdown
_SMALL_SECONDS = 5.0  # in which a message without tensors must arrive
# The gRPC codes for the statuses of errors. Others are INVALID_ARGUMENT and, from 500, INTERNAL.
CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def check_length(message: bytes, max_nbytes: int) -> None:
    """Raise the error of a message that is too long, whose words clients of grpcio recognize."""
    if len(message) > max_nbytes:
        text = f"SERVER: Received message larger than max ({len(message)} vs. {max_nbytes})"
        raise TensorwireError(text, status=413)


def check_metadata(context: Any) -> None:
    """Raise the error of metadata that are too long.

    grpcio accepts up to 16 MiB from a client that does not acknowledge the limit of the server.
    """
    metadata = context.invocation_metadata() or ()
    nbytes = sum(len(name) + len(value) + _METADATA_ENTRY_NBYTES for name, value in metadata)
    if nbytes > MAX_METADATA_NBYTES:
        text = f"the metadata of the call have {nbytes} bytes; the limit is {MAX_METADATA_NBYTES}"
        raise TensorwireError(text, status=413)


class OpenCalls:
    """The calls of clients, from their start until the response has been sent.

    Each method reads its messages with ``receive``, which limits the time of the only message of a
    call, or with ``read``. Calls with inference ``begin_inference``, and are counted until the task
    of their method ends. Those without are counted while they read their message: grpcio reads it
    completely before its length is known. A shutdown ends streams that wait for a message, and
    other calls after some time. No method is unary for grpcio, which would read the message itself,
    without a limit of time.
    """

    def __init__(self, service: Service, limit_concurrency: int | None = None) -> None:
        self._service = service
        self._limit = limit_concurrency
        self._inferences: set[asyncio.Task[Any]] = set()
        self._n_small = 0  # calls without inference that read their message
        longest_name = max((len(name.encode()) for name in service.models), default=0)
        self.max_small_nbytes = MAX_SMALL_NBYTES + longest_name
        self.open: set[asyncio.Task[Any]] = set()  # the tasks of the methods
        self.n_begun = 0  # since the start
        # Timeouts of streams that wait for a message, and of calls whose message has not arrived.
        self.waiting: set[asyncio.Timeout] = set()
        self.arriving: set[asyncio.Timeout] = set()
        self.is_ending = asyncio.Event()

    def method(self, respond: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return a method for grpcio, whose calls end with the exception that is raised."""

        async def method(_: Any, context: Any) -> Any:
            try:
                check_metadata(context)
                return await respond(context)
            except grpc.aio.InternalError:  # a response cannot be sent: the client is gone
                raise asyncio.CancelledError from None
            except Exception as error:
                return self.fail(context, error)

        return method

    def small_method(self, respond: Callable[[bytes], bytes]) -> Any:
        """Return a method for grpcio with one message and one response, without tensors."""

        async def respond_to(context: Any) -> bytes:
            return respond(await self.receive_small(context))

        return self.method(respond_to)

    def fail(self, context: Any, error: BaseException) -> bytes:
        """Set the error that a call ends with. grpcio then sends an empty message before it.

        ``context.abort`` would raise an exception that is in a reference cycle with the context and
        the frames of the method, so that the message would remain in memory until a garbage
        collection.
        """
        text, status = self._service.describe_failure(error)
        default = grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL
        context.set_code(CODES.get(status, default))
        context.set_details(text.encode()[:MAX_DETAILS_NBYTES].decode(errors="ignore"))
        return b""

    def begin_inference(self) -> None:
        """Begin a call with inference. Raises OverloadedError."""
        self._check_limit(len(self._inferences), 0)
        task = asyncio.current_task()
        assert task is not None
        self.count_inference(task)

    def count_inference(self, task: asyncio.Task[Any]) -> None:
        """Count a task of a call with inference until it ends."""
        self._inferences.add(task)
        task.add_done_callback(self._inferences.discard)

    def _check_limit(self, n_calls: int, n_reserved: int) -> None:
        if self._limit is not None and n_calls >= self._limit + n_reserved:
            error = OverloadedError.by_limit_concurrency(self._limit)
            error.status = 429
            raise error

    async def receive_small(self, context: Any) -> bytes:
        """Wait for the only message of a call without tensors. Raises TensorwireError."""
        self._check_limit(self._n_small, N_RESERVED)
        self._n_small += 1
        try:
            seconds = min(_SMALL_SECONDS, self._service.receive_timeout or math.inf)
            message = await self.receive(context, seconds)
        finally:
            self._n_small -= 1
        check_length(message, self.max_small_nbytes)
        return message

    async def receive(self, context: Any, seconds: float | None) -> bytes:
        """Wait for the only message of a call, of any size. Raises TensorwireError."""
        try:
            async with asyncio.timeout(seconds) as arriving:
                self.arriving.add(arriving)
                message: bytes = await self._read(context)
        except TimeoutError:
            if self.is_ending.is_set():
                raise TensorwireError(str(SHUTTING_DOWN), status=SHUTTING_DOWN.status) from None
            assert seconds is not None
            text = f"the message did not arrive within {format_seconds(seconds)}"
            raise TensorwireError(text, status=408) from None
        finally:
            self.arriving.discard(arriving)
        if message is grpc.aio.EOF:
            raise TensorwireError("the call has no message", status=400)
        return message

    async def read(self, context: Any) -> Any:
        """Wait for the next message of a stream. EOF is its end, or that of the server."""
        is_ending = self.is_ending.is_set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_EOF_SECONDS if is_ending else None) as waiting:
                self.waiting.add(waiting)
                try:
                    message = await self._read(context)
                finally:
                    self.waiting.discard(waiting)
            if message is grpc.aio.EOF or not is_ending:
                return message
        self.fail(context, SHUTTING_DOWN)
        return grpc.aio.EOF

    async def _read(self, context: Any) -> Any:
        task = asyncio.current_task()
        if task is not None and task not in self.open:
            self.open.add(task)
            self.n_begun += 1
            task.add_done_callback(self.open.discard)
        # If this is cancelled, by a timeout or the client, the message is still received. grpcio
        # would never free it.
        reading = asyncio.ensure_future(context.read())
        reading.add_done_callback(_ignore_error)
        await asyncio.wait({reading})  # `shield` logs the error, since Python 3.14
        if context.time_remaining() == 0:
            raise TensorwireError("the deadline has expired", status=504)
        return reading.result()


def _ignore_error(done: asyncio.Future[Any]) -> None:
    """Take the error of a read that nobody waits for; asyncio would log it."""
    if not done.cancelled():
        done.exception()


def end_now(timeouts: set[asyncio.Timeout]) -> None:
    """Let timeouts expire in the next turn of the event loop."""
    for each in timeouts:
        if not each.expired():  # one that has just expired cannot be changed
            each.reschedule(0)
