"""Calls over gRPC, on a channel of grpcio.

grpcio takes and returns serialized messages as ``bytes``. It connects, and speaks HTTP/2 and TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import ssl
import threading
import time
import traceback
import weakref
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

try:
    import grpc
except ImportError:
    raise ImportError("a gRPC client requires grpcio: pip install 'tensorwire[grpc]'") from None

import tensorwire as tw

from .._codec.datatypes import UNLIMITED
from .._codec.protobuf_reader import (
    decode_response,
    read_message,
    read_names,
    read_stream_response,
)
from .._codec.protobuf_writer import encode_request, write_message
from ..arguments import check_type
from ..errors import format_seconds, format_value
from ..grpc_messages import (
    MODEL_METADATA_RESPONSE,
    MODEL_REQUEST,
    NO_FIELDS,
    READY_RESPONSE,
    SERVER_METADATA_RESPONSE,
    SERVICE,
    STREAM_ERROR,
    Fields,
)
from .addresses import Server
from .errors import InferenceServerError, connection_error, server_error
from .limits import Deadline, Timeout
from .requests import Algorithm, Compressed, Headers, ProgressReporter, check_headers
from .sync import BlockingBackend, complete

if TYPE_CHECKING:
    from .connection import Backend

_MAX_NBYTES = 2**31 - 1  # of a message of protobuf, and the largest value of a channel's option
_MAX_SECONDS = 1e9  # grpcio takes a much later deadline for one that has expired
_MAX_BACKOFF_MS = 1000  # how long grpcio waits at most before it tries to connect again
# What grpc.aio reports if it cannot write a request of a stream, before or after the status of the
# server, which it then replaces. The status follows at once if it has not arrived.
_WRITE_FAILED = "Internal error from Core"
_STATUS_SECONDS = 1.0
_CLOSED = "the client was closed during the call"

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
# grpcio reports a failed connection with codes that a server may also send. Only the text differs.
_CONNECTION_CODES = ("UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED")
_CONNECTION_FAILED = re.compile(
    r"Stream removed|failed to connect|connections to all backends failing|empty address list"
    r"|errors resolving|DNS resolution failed|Socket closed|recvmsg|sendmsg|Connection reset"
    r"|Broken pipe|GOAWAY|Transport closed|No status received|keepalive|ping timeout"
    r"|Failed to create channel|Received RST_STREAM"
)
_TOO_LARGE = re.compile(
    r"(CLIENT|SERVER): (Sent|Received) message larger than max \((\d+) vs\. (\d+)\)"
)
# What new versions of grpcio report for a compressed message, on either side.
_DECOMPRESSED_TOO_LARGE = "Decompressed message larger than max"
_RESERVED_HEADERS = {"connection", "host", "te", "user-agent"}
_METADATA_KEY = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
_METADATA_VALUE = re.compile(r"[ -~]*")


class GrpcRequest(NamedTuple):
    """A serialized request, and the fields of its response unless that has tensors."""

    method: str
    url: str
    message: bytes
    metadata: tuple[tuple[str, str], ...]
    model: str | None
    fields: Fields = NO_FIELDS
    compression: grpc.Compression | None = None

    @property
    def nbytes(self) -> int:
        return len(self.message)


class GrpcBody(NamedTuple):
    """A serialized response."""

    message: bytes
    fields: Fields

    def decode(self, limits: tw.Limits) -> tw.InferResponse:
        return decode_response(self.message, limits=limits)

    def parse_metadata(self, limits: tw.Limits) -> dict[str, Any]:
        return read_message(self.message, self.fields, limits)


class ForkState:
    """Whether this process can use grpcio.

    A thread of grpcio waits for the calls of ``grpc.aio``, and may do so after the last channel was
    closed. In a child process that was forked after its start, every call of grpcio hangs or
    crashes, and no timeout ends it.
    """

    def __init__(self) -> None:
        self.has_used_aio = False
        self.is_usable = True
        os.register_at_fork(after_in_child=self.begin_child)

    def begin_child(self) -> None:
        self.is_usable = not self.has_used_aio


class Channel:
    """The channel of a client in one process. ``is_owned`` is false for one of the caller."""

    def __init__(self, backend: Backend, channel: Any, is_owned: bool) -> None:
        self.backend = backend
        self.channel = channel
        self.is_owned = is_owned
        self.is_async = isinstance(channel, grpc.aio.Channel)
        self.is_closed = False
        self.methods: dict[str, Any] = {}
        self.calls: weakref.WeakSet[Any] = weakref.WeakSet()  # streams, and those of AsyncClient
        self.lock = threading.Lock()  # of `calls`
        if self.is_async:
            _fork_state.has_used_aio = True

    def check(self) -> None:
        self.backend.check()
        if self.is_closed:
            raise RuntimeError("the client is closed")

    async def call(self, request: GrpcRequest, seconds: float | None) -> bytes:
        """Return the response to a request. Raises RpcError."""
        method = self.methods.get(request.method)
        if method is None:
            method = self.methods[request.method] = self.channel.unary_unary(
                f"/{SERVICE}/{request.method}"
            )
        result: Any = self.begin(method, request.message, request, seconds)
        if self.is_async:
            self.add(result)
            result = await result
        message: bytes = result
        return message

    def begin(self, method: Any, messages: Any, request: GrpcRequest, seconds: float | None) -> Any:
        """Call a method of the channel. Raises RpcError, and RuntimeError if it is closed."""
        try:
            return method(
                messages,
                timeout=None if seconds is None or seconds > _MAX_SECONDS else seconds,
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

    def add(self, call: Any) -> None:
        """Add a call that ``close`` cancels."""
        with self.lock:
            self.calls.add(call)

    def close(self) -> Awaitable[None] | None:
        """Close the channel, unless the caller has made it. All calls end."""
        self.is_closed = True
        self.backend.end_calls()
        with self.lock:
            calls = list(self.calls)
        for call in calls:
            call.cancel()
        closing: Awaitable[None] | None = self.channel.close() if self.is_owned else None
        return closing

    def forget(self) -> None:
        pass


_fork_state = ForkState()


class GrpcTransport:
    """Builds gRPC requests, and sends them on a channel. See ``Transport``."""

    has_raw_requests = False

    def __init__(
        self,
        server: Server,
        headers: dict[str, str],
        timeout: Timeout,
        max_body: int | None,
        limits: tw.Limits,
        *,
        connections: int,
        idle_timeout: float | None,
        ssl_context: ssl.SSLContext | None,
        trust_env: bool,
        channel: grpc.Channel | grpc.aio.Channel | None,
    ) -> None:
        if ssl_context is not None:
            raise ValueError(
                "ssl_context requires an https:// URL: pass a channel with other credentials"
            )
        if channel is not None and not isinstance(channel, grpc.Channel | grpc.aio.Channel):
            raise TypeError(f"channel must be a channel of grpcio, not {type(channel).__name__}")
        self.server = server
        self.max_body = max_body
        self.limits = limits
        self.channel = channel
        self.pid = os.getpid()
        own = [v for k, v in headers.items() if k.lower() == "user-agent"]
        self.metadata = _check_metadata(
            {k: v for k, v in headers.items() if k.lower() != "user-agent"}
        )
        max_nbytes = -1 if max_body is None or max_body > _MAX_NBYTES else max_body
        connect_ms = min((timeout.connect or _MAX_SECONDS) * 1000, _MAX_NBYTES)
        self.options = [
            ("grpc.primary_user_agent", own[-1] if own else f"tensorwire/{tw.__version__}"),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", max_nbytes),
            ("grpc.min_reconnect_backoff_ms", int(connect_ms)),  # the timeout of one attempt
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", _MAX_BACKOFF_MS),
            ("grpc.use_local_subchannel_pool", 1),  # connections of its own
            ("grpc.enable_http_proxy", int(bool(trust_env))),
        ]

    def new_pool(self, backend: Backend) -> Channel:
        if not _fork_state.is_usable:
            raise RuntimeError(
                "this process cannot use gRPC: its parent process had used grpc.aio when it forked"
            )
        is_async = not isinstance(backend, BlockingBackend)
        if self.channel is not None:
            if os.getpid() != self.pid:
                raise RuntimeError("the channel of the caller belongs to its parent process")
            if isinstance(self.channel, grpc.aio.Channel) != is_async:
                kind = "AsyncClient must be a grpc.aio" if is_async else "Client must be a grpc"
                raise TypeError(f"the channel of a {kind}.Channel")
            return Channel(backend, self.channel, is_owned=False)
        if self.server.socket_path is not None:
            target = f"unix:{quote(self.server.socket_path)}"
        else:
            host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
            target = f"dns:///{quote(host, safe='[]:')}:{self.server.port}"
        library = grpc.aio if is_async else grpc
        if self.server.is_tls:
            made = library.secure_channel(target, grpc.ssl_channel_credentials(), self.options)
        else:
            made = library.insecure_channel(target, self.options)
        return Channel(backend, made, is_owned=True)

    # --- requests ---

    def _request(
        self,
        method: str,
        message: bytes,
        headers: Headers | None,
        model: str | None,
        fields: Fields = NO_FIELDS,
        compression: grpc.Compression | None = None,
    ) -> GrpcRequest:
        metadata = self.metadata
        if headers is not None:
            metadata = {**metadata, **_check_metadata(headers)}
        return GrpcRequest(
            method, self.server.origin, message, tuple(metadata.items()), model, fields, compression
        )

    def metadata_request(
        self, model: str | None, version: str | None, headers: Headers | None
    ) -> GrpcRequest:
        if model is None:
            return self._request("ServerMetadata", b"", headers, None, SERVER_METADATA_RESPONSE)
        message = _model_message(model, version)
        return self._request("ModelMetadata", message, headers, model, MODEL_METADATA_RESPONSE)

    def readiness_request(
        self, model: str | None, version: str | None, headers: Headers | None
    ) -> GrpcRequest:
        if model is None:
            return self._request("ServerReady", b"", headers, None, READY_RESPONSE)
        message = _model_message(model, version)
        return self._request("ModelReady", message, headers, model, READY_RESPONSE)

    def encode(
        self,
        model: str,
        version: str | None,
        tensors: Any,
        outputs: Any,
        id: str | None,
        parameters: Mapping[str, Any],
        binary_inputs: bool,
        binary_outputs: bool,
    ) -> bytes:
        name, version = _checked_model(model, version)
        return encode_request(
            tw.InferRequest(
                tensors,
                outputs,
                id=id,
                model_name=name,
                model_version=version or None,
                parameters=parameters,
            )
        )

    def check_encoded(self, model: str, version: str | None, message: tw.Frame | bytes) -> bytes:
        """Return the message, which must be for the model and version of the call."""
        if isinstance(message, tw.Frame):
            raise TypeError(
                f"the inputs are a Frame, which is sent over HTTP, but the URL is "
                f"{self.server.origin}: pass the bytes of tensorwire.grpc.encode_request"
            )
        if len(message) > _MAX_NBYTES:
            raise tw.EncodeError(
                f"the gRPC message is {len(message)} bytes long; the limit is {_MAX_NBYTES}",
                expected=_MAX_NBYTES,
                actual=len(message),
            )
        wanted = _checked_model(model, version)
        name, own_version, _ = read_names(message, UNLIMITED)
        if (name, own_version) != wanted:
            raise ValueError(
                f"the encoded request is for model {format_value(name)} (version "
                f"{format_value(own_version)}), but the call is for {format_value(wanted[0])} "
                f"(version {format_value(wanted[1])}): pass model_name to InferRequest"
            )
        return message

    async def compress(self, message: bytes, algorithm: Algorithm, backend: Backend) -> Compressed:
        return Compressed(algorithm, message, None)  # grpcio does it

    def infer_request(
        self,
        model: str,
        version: str | None,
        headers: Headers | None,
        message: bytes | Compressed,
        accept: Algorithm | None = None,
    ) -> GrpcRequest:
        compression = None
        if isinstance(message, Compressed):
            compression = getattr(grpc.Compression, message.algorithm.capitalize())
            message = message.body
        return self._request("ModelInfer", message, headers, model, compression=compression)

    # --- calls ---

    async def attempt(
        self,
        channel: Channel,
        request: GrpcRequest,
        deadline: Deadline,
        progress: ProgressReporter | None,
    ) -> GrpcBody:
        """Send a request, and return the response."""
        channel.check()
        if progress is not None:
            progress.restart()
        try:
            seconds, step = deadline.limit("read")
        except TimeoutError as error:
            raise connection_error(request, error) from None
        started = time.monotonic()
        try:
            message = await channel.call(request, seconds)
        except grpc.RpcError as error:
            code, text = error.code().name, error.details() or ""
            if _has_expired(code, started, seconds):
                raise connection_error(request, _timeout_error(deadline, step)) from error
            raise self.error(channel, request, code, text) from error
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            raise connection_error(request, ConnectionError(_CLOSED)) from None
        self._check_nbytes(len(message))
        if request.fields is READY_RESPONSE and not read_message(message, READY_RESPONSE)["ready"]:
            raise _server_error(request, 503, "not ready")
        if progress is not None:
            progress.sent(request.nbytes)
            progress.received(len(message), len(message), True)
        return GrpcBody(message, request.fields)

    async def explain(
        self, channel: Channel, request: GrpcRequest, error: InferenceServerError
    ) -> None:
        pass

    def _check_nbytes(self, nbytes: int) -> None:
        if self.max_body is not None and nbytes > self.max_body:
            raise _too_long_error(nbytes, self.max_body)

    def error(self, channel: Channel, request: GrpcRequest, code: str, text: str) -> Exception:
        """Return the exception for a status other than OK and an expired deadline."""
        error = self._size_error(request, text) if code == "RESOURCE_EXHAUSTED" else None
        if error is not None:
            return error
        if code == "CANCELLED" and channel.is_closed:
            return connection_error(request, ConnectionError(_CLOSED))
        if code in _CONNECTION_CODES and _CONNECTION_FAILED.match(text):
            return connection_error(request, ConnectionError(text))
        return _server_error(request, _STATUSES.get(code, 500), text)

    def _size_error(self, request: GrpcRequest, text: str) -> Exception | None:
        """Return the exception for a message above a limit of grpcio; None for another text."""
        if text == _DECOMPRESSED_TOO_LARGE:
            if request.compression is not None:  # the server has rejected it
                return _server_error(request, 413, text)
            problem = "the response is longer than the limit after decompression"
            return tw.HeaderError(problem, expected=self.max_body, status=413)
        found = _TOO_LARGE.search(text)
        if found is None:
            return None
        side, direction, actual, limit = found.groups()
        if side == "SERVER":
            return _server_error(request, 413, text)
        if direction == "Received":
            return _too_long_error(int(actual), int(limit))
        return tw.EncodeError(
            f"the gRPC message is {actual} bytes long; the limit of the channel is {limit}",
            expected=int(limit),
            actual=int(actual),
        )

    def open_stream(
        self,
        channel: Channel,
        model: str,
        headers: Headers | None,
        deadline: Deadline,
        requests: Any,
        encode: Callable[[Any], Coroutine[Any, Any, bytes]],
    ) -> StreamCall:
        channel.check()
        kinds = (Iterable, AsyncIterable) if channel.is_async else Iterable
        one = isinstance(requests, Mapping | tw.InferRequest | tw.Frame | str | bytes)
        if one or not isinstance(requests, kinds):
            raise TypeError(
                f"requests must be an iterable of inputs, not {type(requests).__name__}"
            )
        request = self._request("ModelStreamInfer", b"", headers, model)
        return StreamCall(self, channel, request, deadline, requests, encode)

    def decode_stream(self, request: GrpcRequest, message: bytes) -> tw.InferResponse:
        """Return a response of a stream. Raises InferenceServerError and DecodeError."""
        self._check_nbytes(len(message))
        text, response = read_stream_response(message, self.limits)
        if response is not None:
            return response
        error = _server_error(request, 500, text or "")
        for failed in read_message(message, STREAM_ERROR)["infer_response"]:
            error.id = failed["id"] or None
        raise error


class StreamCall:
    """A call of ModelStreamInfer. grpcio encodes and sends its requests in a thread or a task."""

    def __init__(
        self,
        transport: GrpcTransport,
        channel: Channel,
        request: GrpcRequest,
        deadline: Deadline,
        requests: Any,
        encode: Callable[[Any], Coroutine[Any, Any, bytes]],
    ) -> None:
        self.transport = transport
        self.channel = channel
        self.request = request
        self.deadline = deadline
        self.encode = encode
        self.is_closed = self.has_ended = False
        self.error: BaseException | None = None  # of the caller's requests
        self.call: Any = None
        self.started = time.monotonic()
        self.seconds, _ = deadline.limit("total")
        messages: Any = self._messages_of_a_task(requests)
        if not channel.is_async:
            messages = self._messages_of_a_thread(iter(requests))
        method = channel.channel.stream_stream(f"/{SERVICE}/{request.method}")
        self.call = channel.begin(method, messages, request, self.seconds)
        channel.add(self.call)
        self.responses = self.call
        if channel.is_async:
            self.responses = self.call.__aiter__()
            # The callback must not refer to this object, or only the garbage collector would
            # release it.
            self.status = asyncio.get_running_loop().create_future()
            self.call.add_done_callback(functools.partial(_note_status, self.status))
        if self.error is not None:  # it was found before there was a call to cancel
            self.call.cancel()

    def _messages_of_a_thread(self, requests: Iterator[Any]) -> Iterator[bytes]:
        try:
            for inputs in requests:
                yield complete(self.encode(inputs))
        except GeneratorExit:
            raise
        except BaseException as error:
            inputs = None
            self._fail(error)

    async def _messages_of_a_task(self, requests: Any) -> AsyncIterator[bytes]:
        try:
            if isinstance(requests, AsyncIterable):
                async for inputs in requests:
                    yield await self.encode(inputs)
            else:
                for inputs in requests:
                    yield await self.encode(inputs)
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as error:
            inputs = None
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the call. The next ``read`` raises the error of the caller's requests."""
        self.error = error
        if self.call is not None:
            self.call.cancel()

    async def read(self) -> tw.InferResponse | None:
        """Return the next response, or None at the end."""
        if self.has_ended:
            return None
        failure: Exception | None = None
        try:
            if self.channel.is_async:
                message = await anext(self.responses)
            else:
                message = next(self.responses)
            return self.transport.decode_stream(self.request, message)
        except (StopIteration, StopAsyncIteration):
            pass
        except grpc.RpcError as error:
            failure = self._failure(*await self._status_of(error))
            if failure is not None:
                failure.__cause__ = error
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            failure = connection_error(self.request, ConnectionError(_CLOSED))
        self.has_ended = True
        raised, self.error = self.error, None
        if raised is None and not self.is_closed:
            raised = failure
        try:
            if raised is not None:
                raise raised
            return None
        finally:
            del raised, failure  # the exception refers to this frame

    async def _status_of(self, error: Any) -> tuple[str, str]:
        """Return the code and the text with which the call has ended."""
        if self.channel.is_async and error.details() == _WRITE_FAILED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STATUS_SECONDS):
                    status: tuple[str, str] = await self.status
                    return status
        return error.code().name, error.details() or ""

    def _failure(self, code: str, text: str) -> Exception | None:
        if code == "OK":
            return None
        if _has_expired(code, self.started, self.seconds):
            return connection_error(self.request, self.deadline.timeout_error("total"))
        return self.transport.error(self.channel, self.request, code, text)

    def close(self) -> None:
        self.is_closed = True
        if not self.has_ended:
            self.call.cancel()


# --- requests and errors -------------------------------------------------------------------------


def _check_metadata(headers: Headers) -> dict[str, str]:
    """Return headers as metadata. Raises ValueError and TypeError."""
    found: dict[str, str] = {}
    for name, value in check_headers(headers).items():
        key = name.lower()
        if key in _RESERVED_HEADERS:
            raise ValueError(f"the HTTP header {name} cannot be passed: grpcio sets it")
        if not _METADATA_KEY.fullmatch(key):
            raise ValueError(f"the name of an HTTP header cannot be sent over gRPC: {name[:80]!r}")
        if not _METADATA_VALUE.fullmatch(value):
            raise ValueError(
                f"the value of the HTTP header {name} cannot be sent over gRPC: {value[:80]!r}"
            )
        found[key] = value
    return found


def _checked_model(model: str, version: str | None) -> tuple[str, str]:
    """Return the name and version of a model as they are sent; "" is no version."""
    check_type("the name of a model", model, str, "a str")
    if not model:
        raise ValueError("the name of a model must not be ''")
    if version is None:
        return model, ""
    if not str(version):
        raise ValueError("the version of a model must not be ''")
    return model, str(version)


def _model_message(model: str, version: str | None) -> bytes:
    name, sent_version = _checked_model(model, version)
    return write_message({"name": name, "version": sent_version}, MODEL_REQUEST)


def _server_error(request: GrpcRequest, status: int, text: str) -> InferenceServerError:
    error = server_error(request.method, request.url, status, text)
    error.model = request.model
    return error


def _too_long_error(nbytes: int, limit: int) -> tw.HeaderError:
    return tw.HeaderError(
        f"the response is {nbytes} bytes long; the limit is {limit}",
        expected=limit,
        actual=nbytes,
        status=413,
    )


def _has_expired(code: str, started: float, seconds: float | None) -> bool:
    """Return whether the deadline of the call has expired, and not one of the server."""
    if seconds is None or code != "DEADLINE_EXCEEDED":
        return False
    return time.monotonic() - started >= seconds - 0.01


def _note_status(status: asyncio.Future[tuple[str, str]], call: Any) -> None:
    """Note the status of the server, which grpc.aio replaces if it ends a call during a write."""
    code, text = complete(call.code()).name, complete(call.details()) or ""
    if text != _WRITE_FAILED and not status.done():
        status.set_result((code, text))


def _timeout_error(deadline: Deadline, step: Any) -> TimeoutError:
    if step == "total":
        return deadline.timeout_error("total")
    duration = format_seconds(deadline.timeout.read or 0)
    return TimeoutError(f"no response after {duration} (read timeout)")


def _is_task_cancelled() -> bool:
    """Return whether CancelledError is for the task, and not for the call, which was closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
