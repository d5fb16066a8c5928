"""Streams over gRPC. grpcio iterates over the requests in a thread, or in a task of grpc.aio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import grpc

import tensorwire as tw

from .._codec.grpc.reader import read_fields, read_stream_response
from ..grpc_messages import STREAM_ERROR
from ..sizes import MAX_QUICK_MESSAGE_NBYTES
from .errors import CallError, server_error
from .grpc_channels import (
    WRITE_FAILED,
    Channel,
    GrpcRequest,
    GrpcStatus,
    is_cancelled,
    unless_closed,
)
from .options import Call
from .sync import complete

Encode = Callable[[Any], Coroutine[Any, Any, bytes]]
_STATUS_SECONDS = 1.0  # how long to wait for the status of the server after WRITE_FAILED
_POLL_SECONDS = 0.005  # to see it


class StreamCall:
    """A call of ModelStreamInfer whose requests are encoded in a thread of grpcio."""

    def __init__(
        self, channel: Channel, request: GrpcRequest, call: Call, requests: Any, encode: Encode
    ) -> None:
        self.channel = channel
        self.request = request
        self.deadline = call.deadline
        self.encode = encode
        self.is_closed = self.has_ended = False
        self.error: BaseException | None = None  # of the caller's requests
        self.rpc: Any = None
        seconds, _ = call.deadline.limit("total")
        self.end = None if seconds is None else time.monotonic() + seconds
        method = channel.channel.stream_stream(request.path)
        self.rpc = channel.begin(method, self.messages(requests), request, seconds)
        channel.add(self.rpc)
        if self.error is not None:  # it was found before there was an RPC to cancel
            self.rpc.cancel()

    def messages(self, requests: Any) -> Any:
        """Iterate over the encoded requests, and pass exceptions to ``fail``."""
        try:
            for inputs in requests:
                yield complete(self.encode(inputs))
        except GeneratorExit:
            raise
        except BaseException as error:
            inputs = None
            self.fail(error)

    async def next_message(self) -> bytes | None:
        message: bytes | None = next(self.rpc, None)
        return message

    async def decode(self, message: bytes) -> tw.InferResponse:
        try:
            return await self.channel.backend.run(
                len(message) > MAX_QUICK_MESSAGE_NBYTES, self._decode, message
            )
        except asyncio.CancelledError:
            self.close()  # as if the task had been cancelled before the response arrived
            raise

    async def status_of(self, error: Any) -> GrpcStatus:
        return error.code().name, error.details() or ""

    def fail(self, error: BaseException) -> None:
        """End the call. The next ``read`` raises the error of the caller's requests."""
        self.error = error
        if self.rpc is not None:
            self.rpc.cancel()

    async def read(self) -> tw.InferResponse | None:
        if self.has_ended:
            return None
        failure: CallError | None = None
        try:
            message = await self.next_message()
            if message is not None:
                return await self.decode(message)
        except tw.TensorwireError as error:
            raise self.request.operation.named(error)  # noqa: B904 - it is the same error
        except grpc.RpcError as error:
            status = await self.status_of(error)
            if status[0] != "OK":
                failure = self.channel.call_error(
                    self.request, status, self.deadline, "total", self.end
                )
                failure.__cause__ = error
        except ConnectionError as error:
            failure = error
            is_late = self.end is not None and time.monotonic() >= self.end
            if is_late and not self.channel.is_closed:  # grpc.aio has cancelled the call itself
                failure = self.deadline.timeout_error("total")
        self.has_ended = True
        raised, self.error = self.error, None
        if raised is None and failure is not None and not self.is_closed:
            raised = self.request.operation.named(failure)
        try:
            if raised is not None:
                raise raised
            return None
        finally:
            del raised, failure  # the exception refers to this frame

    def _decode(self, message: bytes) -> tw.InferResponse:
        self.channel.check_length(message)
        text, response = read_stream_response(message, self.channel.options.limits)
        if response is not None:
            return response
        error = server_error(500, text or "")
        for failed in read_fields(message, STREAM_ERROR)["infer_response"]:
            error.id = failed["id"] or None
        raise error

    def close(self) -> None:
        self.is_closed = True
        if not self.has_ended:
            self.rpc.cancel()


class AsyncStreamCall(StreamCall):
    """A stream whose requests are encoded in a task of grpcio."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.responses = aiter(self.rpc)
        # The callback must not refer to this object, or only the garbage collector would release
        # it.
        self.status = asyncio.get_running_loop().create_future()
        self.rpc.add_done_callback(functools.partial(_note_status, self.status))

    async def messages(self, requests: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[bytes]:
        try:
            if isinstance(requests, AsyncIterable):
                async for inputs in requests:
                    yield await self.encode(inputs)
            else:
                for inputs in requests:
                    yield await self.encode(inputs)
        except GeneratorExit:
            raise
        except BaseException as error:
            inputs = None
            if is_cancelled(error):  # by grpcio, at the end of the call
                raise
            self.fail(error)

    async def next_message(self) -> bytes | None:
        if self.channel.backend.is_lost():  # asyncio.run has closed the iterator of grpcio
            raise ConnectionError("the event loop of the stream has ended")
        return await unless_closed(anext(self.responses, None))

    async def status_of(self, error: Any) -> GrpcStatus:
        if error.details() == WRITE_FAILED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STATUS_SECONDS):
                    # If the status comes after that, grpc.aio does not call back again.
                    while not self.status.done():
                        await asyncio.sleep(_POLL_SECONDS)
                        if self.rpc.done():
                            _note_status(self.status, self.rpc)
                    status: GrpcStatus = self.status.result()
                    return status
        return await super().status_of(error)


def _note_status(status: asyncio.Future[GrpcStatus], rpc: Any) -> None:
    """Note the status of the server, which grpc.aio replaces if it ends an RPC during a write."""
    code, text = complete(rpc.code()).name, complete(rpc.details()) or ""
    if text != WRITE_FAILED and not status.done():
        status.set_result((code, text))
