"""The channel of a client in one process, and the exceptions for what grpcio reports."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
import traceback
import weakref
from collections.abc import Awaitable
from typing import Any, NamedTuple

import grpc

import tensorwire as tw

from ..errors import format_seconds
from ..grpc_messages import NO_FIELDS, SERVICE, Fields
from .errors import CLOSED, MAY_REQUIRE_TLS, CallError, Operation, server_error, too_long_error
from .options import ClientOptions, Deadline, Step
from .requests import Regions
from .sync import Backend, Result

MAX_SECONDS = 1e9  # grpcio takes a much later deadline for one that has expired
_STATUSES = {  # those of the other codes are 500
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}

# --- the texts of grpcio -------------------------------------------------------------------------

# A failed connection is UNAVAILABLE, which a server may also send. The debug string of the error is
# the same in both cases, and the state of the channel changes before or after the call ends. So the
# beginning of the text chooses the exception. Both exceptions are retried.
_CONNECTION_FAILED = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "empty address list",
    "DNS resolution failed",
    "errors resolving",
    "Stream removed",  # grpcio 1.85 puts it before the others below
    "Socket closed",
    "Transport closed",
    "recvmsg:",
    "sendmsg:",
    "GOAWAY received",
    "Received RST_STREAM",
    "keepalive timeout",
    "ping timeout",
)
_HTTP1 = "http1.x server"
_LOST = re.compile("recvmsg:|Socket closed|closed")
_NOT_TLS = "WRONG_VERSION_NUMBER"
# A message above a limit is RESOURCE_EXHAUSTED. A server may send this text, too, with longer
# numbers than int() accepts.
_TOO_LARGE = re.compile(
    r"(?P<side>CLIENT|SERVER): (?P<direction>Sent|Received) message larger than max "
    r"\((?P<actual>\d{1,20}) vs\. (?P<limit>\d{1,20})\)"
)
# What grpcio 1.85 reports for a compressed message, on either side.
_DECOMPRESSED_TOO_LARGE = "Decompressed message larger than max"
# What grpc.aio reports if it cannot write a request of a stream, before or after the status of the
# server, which it then replaces.
WRITE_FAILED = "Internal error from Core"


GrpcStatus = tuple[str, str]  # the name of a code, and a text


class GrpcRequest(NamedTuple):
    """A serialized request, and the fields of its response unless that has tensors."""

    operation: Operation
    message: bytes
    metadata: tuple[tuple[str, str], ...]
    fields: Fields = NO_FIELDS
    compression: grpc.Compression | None = None
    regions: Regions | None = None

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.operation.method}"


_users_of_aio: set[int] = set()  # the processes: this one and those that it was forked from


def check_process() -> None:
    """Raise RuntimeError if this process cannot use grpcio.

    A thread of grpcio waits for the calls of ``grpc.aio``, and may do so after the last channel was
    closed. In a child process that was forked after its start, every call of grpcio hangs or
    crashes, and no timeout ends it.
    """
    if _users_of_aio - {os.getpid()}:
        raise RuntimeError(
            "this process cannot use gRPC: its parent process had used grpc.aio when it forked"
        )


class Channel:
    """The channel of a client in one process.

    ``close`` cancels the RPCs in ``rpcs``: the streams and, with ``grpc.aio``, all others, too.
    """

    def __init__(self, backend: Backend, options: ClientOptions, channel: Any, via: str) -> None:
        self.backend = backend
        self.via = via  # which proxy is used, for the errors of connections
        self.options = options
        self.channel = channel
        self.is_closed = False
        self.rpcs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.Lock()  # of `rpcs`
        if backend.is_async:
            _users_of_aio.add(os.getpid())

    def check(self) -> None:
        self.backend.check()
        if self.is_closed:
            raise RuntimeError("the client is closed")

    async def call(self, request: GrpcRequest, seconds: float | None) -> bytes:
        method = self.channel.unary_unary(request.path)
        result = self.begin(method, request.message, request, seconds)
        if self.backend.is_async:
            self.add(result)
            result = await unless_closed(result)
        message: bytes = result
        return message

    def begin(self, method: Any, messages: Any, request: GrpcRequest, seconds: float | None) -> Any:
        """Call a method of the channel. Raises RpcError, and RuntimeError if it is closed."""
        try:
            return method(
                messages,
                timeout=None if seconds is None or seconds > MAX_SECONDS else seconds,
                metadata=request.metadata,
                compression=request.compression,
            )
        except (ValueError, grpc.aio.UsageError) as error:
            self.check()
            raise RuntimeError(str(error)) from None  # the caller has closed its channel
        except grpc.RpcError:
            raise
        except BaseException as error:  # of a signal handler
            # grpcio cancels a call when nothing refers to it any more, not even the frames of its
            # own functions, to which the exception refers.
            traceback.clear_frames(error.__traceback__)
            raise

    def add(self, rpc: Any) -> None:
        with self.lock:
            self.rpcs.add(rpc)

    def check_length(self, message: bytes) -> None:
        """Raise BodyTooLargeError at the limit, which only a channel of ours has."""
        limit = self.options.max_body_nbytes
        if limit is not None and len(message) > limit:
            raise too_long_error(tw.BodyTooLargeError, "the response", len(message), limit)

    def call_error(
        self,
        request: GrpcRequest,
        status: GrpcStatus,
        deadline: Deadline,
        step: Step,
        end: float | None,
    ) -> CallError:
        """Return the exception for a status other than OK of a call that had to end at ``end``."""
        code, text = status
        if code == "CANCELLED" and self.is_closed:
            return ConnectionError(CLOSED)
        # Otherwise it was a deadline of the server.
        if code == "DEADLINE_EXCEEDED" and end is not None and time.monotonic() >= end - 0.01:
            if step == "read":
                duration = format_seconds(deadline.timeout.read or 0)
                return TimeoutError(f"no response after {duration} (read timeout)")
            return deadline.timeout_error(step)
        return self._status_error(request, code, text)

    def _status_error(self, request: GrpcRequest, code: str, text: str) -> CallError:
        if code == "RESOURCE_EXHAUSTED":
            if text == _DECOMPRESSED_TOO_LARGE and request.compression is None:
                problem = "the response is longer than the limit after decompression"
                return tw.BodyTooLargeError(problem, expected=self.options.max_body_nbytes)
            found = _TOO_LARGE.search(text)
            if text == _DECOMPRESSED_TOO_LARGE or (found and found["side"] == "SERVER"):
                return server_error(413, text)
            if found:
                actual, limit = int(found["actual"]), int(found["limit"])
                if found["direction"] == "Received":
                    return too_long_error(tw.BodyTooLargeError, "the response", actual, limit)
                whose = "limit of the channel"
                return too_long_error(tw.EncodeError, "the gRPC message", actual, limit, whose)
        if code == "UNAVAILABLE" and text.startswith(_CONNECTION_FAILED):
            if _HTTP1 in text:
                text = "the server speaks HTTP/1, and not gRPC: use an http:// URL"
            elif _NOT_TLS in text:
                text = "the server does not use TLS: use a grpc:// URL"
            elif text.startswith(_CONNECTION_FAILED[0]) and _LOST.search(text):
                is_ours = self.options.channel is None
                if is_ours and not self.via and request.operation.url.startswith("grpc:"):
                    text += f" ({MAY_REQUIRE_TLS} grpcs://)"
            return ConnectionError(text + self.via)
        return server_error(_STATUSES.get(code, 500), text)

    async def close(self) -> None:
        """Cancel the RPCs that were added, and close the channel unless it is the caller's."""
        self.is_closed = True
        with self.lock:
            rpcs = list(self.rpcs)
        for rpc in rpcs:
            rpc.cancel()
        if self.options.channel is None:
            closing = self.channel.close()
            if self.backend.is_async:
                await closing
        await self.backend.end_calls()

    def forget(self) -> None:
        pass


async def unless_closed(result: Awaitable[Result]) -> Result:
    """Wait for an RPC of grpcio. Raises ConnectionError if the client was closed meanwhile."""
    try:
        return await result
    except asyncio.CancelledError as error:
        if is_cancelled(error):
            raise
        raise ConnectionError(CLOSED) from None  # `close` has cancelled the RPC, and not the task


def is_cancelled(error: BaseException) -> bool:
    """Return whether the error is the cancellation of the running task."""
    task = asyncio.current_task()
    is_ours = task is not None and task.cancelling() > 0
    return is_ours and isinstance(error, asyncio.CancelledError)
