"""Requests over gRPC, and the channel of grpcio on which they are sent.

grpcio takes and returns serialized messages as ``bytes``. It connects, and speaks HTTP/2 and TLS.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote

try:
    import grpc
except ImportError:
    raise ImportError("a gRPC client requires grpcio: pip install 'tensorwire[grpc]'") from None

import tensorwire as tw

from .. import grpc_messages as messages
from .._codec.grpc.reader import (
    decode_response,
    decode_response_in_regions,
    read_fields,
    read_names,
)
from .._codec.grpc.writer import encode_request, write_fields
from .._codec.limits import UNLIMITED
from .._codec.signatures import Nonfinite
from ..arguments import check_type
from ..errors import format_value
from ..sizes import MAX_QUICK_MESSAGE_NBYTES
from .addresses import ServerAddress, authority
from .errors import Operation, server_error, too_long_error
from .grpc_channels import MAX_SECONDS, Channel, GrpcRequest, check_process
from .grpc_streams import AsyncStreamCall, Encode, StreamCall
from .options import MAX_INT32, Call, ClientOptions
from .requests import (
    Encoding,
    Endpoint,
    Headers,
    Target,
    check_headers,
    check_text,
    dump_json,
)
from .sync import Backend

_ENDPOINTS: dict[Endpoint, tuple[str, messages.Fields]] = {
    "config": ("ModelConfig", messages.TRITON_CONFIG_RESPONSE),
    "stats": ("ModelStatistics", messages.TRITON_STATISTICS_RESPONSE),
    "index": ("RepositoryIndex", messages.REPOSITORY_INDEX_RESPONSE),
    "load": ("RepositoryModelLoad", messages.LOAD_RESPONSE),
    "unload": ("RepositoryModelUnload", messages.LOAD_RESPONSE),
}
_MAX_BACKOFF_MS = 1000  # how long grpcio waits at most before it tries to connect again
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # as grpcio reads them
_VIA = " (through the proxy in {}, unless no_proxy lists the host)"
_RESERVED_HEADERS = {"connection", "host", "te", "user-agent"}
_METADATA_KEY = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
_NOT_IN_METADATA = re.compile(r"[^ -~]")


class GrpcAdapter:
    """Builds gRPC requests, and sends them on a channel of grpcio."""

    binary_parameters: Mapping[str, Any] = {}  # all tensors are binary

    def __init__(self, server: ServerAddress, options: ClientOptions) -> None:
        if options.ssl_context is not None:
            raise ValueError(
                "ssl_context requires an https:// URL: pass a channel with other credentials"
            )
        if not isinstance(options.channel, grpc.Channel | grpc.aio.Channel | None):
            kind = type(options.channel).__name__
            raise TypeError(f"channel must be a channel of grpcio, not {kind}")
        self.server = server
        self.options = options
        self.pid = os.getpid()
        headers = dict(options.headers)
        user_agent = f"tensorwire/{tw.__version__}"
        for name in [name for name in headers if name.lower() == "user-agent"]:
            user_agent = headers.pop(name)
        self.metadata = _check_metadata(headers)
        max_body_nbytes = (
            MAX_INT32 + 1 if options.max_body_nbytes is None else options.max_body_nbytes
        )
        connect_ms = min((options.timeout.connect or MAX_SECONDS) * 1000, MAX_INT32)
        self.channel_options = [
            ("grpc.primary_user_agent", user_agent),
            ("grpc.max_send_message_length", -1),
            (
                "grpc.max_receive_message_length",
                -1 if max_body_nbytes > MAX_INT32 else max_body_nbytes,
            ),
            ("grpc.min_reconnect_backoff_ms", int(connect_ms)),  # the timeout of one attempt
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", _MAX_BACKOFF_MS),
            ("grpc.use_local_subchannel_pool", 1),  # connections of its own
            ("grpc.enable_http_proxy", int(bool(options.trust_env))),
        ]

    def new_pool(self, backend: Backend) -> Channel:
        check_process()
        channel = self.options.channel
        library = grpc.aio if backend.is_async else grpc
        via = ""
        if channel is None:
            if self.options.trust_env and self.server.socket_path is None:
                names = [name for name in _PROXIES if os.environ.get(name)]
                via = _VIA.format(names[0]) if names else ""
            if self.server.is_tls:
                credentials = grpc.ssl_channel_credentials()
                channel = library.secure_channel(self._address(), credentials, self.channel_options)
            else:
                channel = library.insecure_channel(self._address(), self.channel_options)
        elif os.getpid() != self.pid:
            raise RuntimeError("the channel of the caller belongs to its parent process")
        elif not isinstance(channel, library.Channel):
            client = "AsyncClient" if backend.is_async else "Client"
            raise TypeError(f"{client} requires a {library.__name__}.Channel")
        return Channel(backend, self.options, channel, via)

    def _address(self) -> str:
        if self.server.socket_path is not None:
            return f"unix:{quote(self.server.socket_path)}"
        return f"dns:///{quote(authority(self.server), safe='[]:')}"

    # --- requests ---

    def _request(
        self, method: str, target: Target, message: bytes = b"", **members: Any
    ) -> GrpcRequest:
        metadata = self.metadata
        if target.headers is not None:
            metadata = {**metadata, **_check_metadata(target.headers)}
        operation = Operation(method, self.server.origin, target.model)
        return GrpcRequest(operation, message, tuple(metadata.items()), **members)

    def metadata_request(self, target: Target) -> GrpcRequest:
        fields = messages.MODEL_METADATA_RESPONSE
        if target.model is None:
            fields = messages.SERVER_METADATA_RESPONSE
        return self._query("Metadata", target, fields)

    def readiness_request(self, target: Target) -> GrpcRequest:
        return self._query("Ready", target, messages.READY_RESPONSE)

    def endpoint_request(
        self, endpoint: Endpoint, target: Target, parameters: Mapping[str, Any]
    ) -> GrpcRequest:
        method, fields = _ENDPOINTS[endpoint]
        message = b""
        if endpoint in ("config", "stats"):
            is_for_all = endpoint == "stats" and target.model is None
            name, version = ("", "") if is_for_all else _checked_model(target)
            message = write_fields({"name": name, "version": version}, messages.MODEL_REQUEST)
        elif endpoint != "index":
            operation = Operation(method, self.server.origin, target.model)
            entries = []
            for key, value in parameters.items():
                text = dump_json(value, operation) if isinstance(value, dict) else value
                kind = "bool_param" if text is True else "string_param"
                sent = {"bool_param": None, "string_param": None, kind: text}
                entries.append({"key": key, "value": [sent]})
            values = {"model_name": _checked_model(target)[0], "parameters": entries}
            message = write_fields(values, messages.LOAD_REQUEST)
        return self._request(method, target, message, fields=fields)

    def json_request(self, target: Target, method: str, path: str, body: Any) -> NoReturn:
        raise ValueError(f"request_json requires an HTTP URL, not {self.server.origin}")

    def _query(self, what: str, target: Target, fields: messages.Fields) -> GrpcRequest:
        if target.model is None:
            return self._request(f"Server{what}", target, fields=fields)
        name, version = _checked_model(target)
        message = write_fields({"name": name, "version": version}, messages.MODEL_REQUEST)
        return self._request(f"Model{what}", target, message, fields=fields)

    async def encode(
        self, target: Target, request: tw.InferRequest, _: Nonfinite | None, backend: Backend
    ) -> bytes:
        name, version = _checked_model(target)
        request = request.replace(model_name=name, model_version=version or None)
        is_slow = sum(x.nbytes for x in request.inputs) > MAX_QUICK_MESSAGE_NBYTES
        return await backend.run(is_slow, encode_request, request)

    def encode_raw(self, array: Any) -> NoReturn:
        raise ValueError("infer_raw requires HTTP: gRPC has no raw binary requests")

    def check_encoded(self, target: Target, message: tw.Frame | bytes) -> bytes:
        """Return the message, which must be for the model and version of the call."""
        if isinstance(message, tw.Frame):
            raise TypeError(
                f"the inputs are a Frame, which is sent over HTTP, but the URL is "
                f"{self.server.origin}: pass the bytes of tensorwire.grpc.encode_request"
            )
        if len(message) > messages.MAX_MESSAGE_NBYTES:
            raise too_long_error(
                tw.EncodeError, "the gRPC message", len(message), messages.MAX_MESSAGE_NBYTES
            )
        wanted = _checked_model(target)
        name, own_version, _ = read_names(message, UNLIMITED)
        if (name, own_version) != wanted:
            raise ValueError(
                f"the encoded request is for model {format_value(name)} (version "
                f"{format_value(own_version)}), but the call is for {format_value(wanted[0])} "
                f"(version {format_value(wanted[1])}): pass model_name to InferRequest"
            )
        return message

    async def infer_request(
        self, target: Target, message: bytes, encoding: Encoding, _: Backend
    ) -> GrpcRequest:
        algorithm = encoding.algorithms[0]
        if algorithm == "zstd":
            raise ValueError("gRPC has no compression algorithm 'zstd'")
        compression = getattr(grpc.Compression, algorithm.capitalize()) if algorithm else None
        return self._request("ModelInfer", target, message, compression=compression)

    # --- responses ---

    async def read(self, request: GrpcRequest, message: bytes, backend: Backend) -> Any:
        is_slow, limits = len(message) > MAX_QUICK_MESSAGE_NBYTES, self.options.limits
        if request.fields is messages.NO_FIELDS:
            decode = decode_response
            if request.regions:
                decode = partial(decode_response_in_regions, regions=request.regions)
            return await backend.run(is_slow, decode, message, limits=limits)
        found = await backend.run(is_slow, read_fields, message, request.fields, limits)
        if request.fields is messages.READY_RESPONSE and not found["ready"]:
            raise server_error(503, "not ready")
        return _as_over_http(found)

    # --- calls ---

    async def attempt(self, channel: Channel, request: GrpcRequest, call: Call) -> bytes:
        channel.check()
        nbytes = len(request.message)
        call.progress.start(nbytes)
        try:
            seconds, step = call.deadline.limit("read")
            end = None if seconds is None else time.monotonic() + seconds
            message = await channel.call(request, seconds)
        except grpc.RpcError as error:
            status = error.code().name, error.details() or ""
            raise channel.call_error(request, status, call.deadline, step, end) from error
        channel.check_length(message)
        call.progress.sent(nbytes)
        call.progress.received(len(message), len(message), True)
        return message

    def open_stream(
        self, open_pool: Callable[[], Channel], call: Call, requests: Any, encode: Encode
    ) -> StreamCall:
        channel = open_pool()
        channel.check()
        kinds = (Iterable, AsyncIterable) if channel.backend.is_async else Iterable
        one = isinstance(requests, Mapping | tw.InferRequest | tw.Frame | str | bytes)
        if one or not isinstance(requests, kinds):
            raise TypeError(
                f"requests must be an iterable of inputs, not {type(requests).__name__}"
            )
        request = self._request("ModelStreamInfer", call.target)
        kind = AsyncStreamCall if channel.backend.is_async else StreamCall
        return kind(channel, request, call, requests, encode)


def _as_over_http(found: dict[str, Any]) -> Any:
    """Return what a message without tensors contains in the form of the JSON of Triton."""
    for config in found.get("config", ()):
        for tensor in (*config["input"], *config["output"]):
            number = tensor["data_type"]
            tensor["data_type"] = dict(enumerate(messages.DATA_TYPES)).get(number, number)
        entries = config["parameters"]
        return {**config, "parameters": {each["key"]: _last(each["value"]) for each in entries}}
    for model in found.get("model_stats", ()):
        durations = _last(model["inference_stats"]).items()
        model["inference_stats"] = {name: _last(each) for name, each in durations}
    return found.get("models", found)


def _last(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return messages[-1] if messages else {}


def _check_metadata(headers: Headers) -> dict[str, str]:
    """Return headers as metadata. Raises ValueError and TypeError."""
    found: dict[str, str] = {}
    for name, value in check_headers(headers).items():
        key = name.lower()
        if key in _RESERVED_HEADERS:
            raise ValueError(f"the HTTP header {name} cannot be passed: grpcio sets it")
        if not _METADATA_KEY.fullmatch(key):
            raise ValueError(f"the name of an HTTP header cannot be sent over gRPC: {name[:80]!r}")
        subject = f"the value of the HTTP header {name}"
        check_text(subject, value, _NOT_IN_METADATA, "cannot be sent over gRPC")
        found[key] = value
    return found


def _checked_model(target: Target) -> tuple[str, str]:
    """Return the name and version of a model as they are sent; "" is no version."""
    check_type("the name of a model", target.model, str, "a str")
    model, version = target.key
    if not model:
        raise ValueError("the name of a model must not be ''")
    return model, version or ""
