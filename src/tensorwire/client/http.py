"""Calls over HTTP: their requests, and the exchange on the connections of a pool."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import tensorwire as tw

from .._codec.http.decoder import decode_response_in_regions
from .._codec.json.reader import read_json
from .._codec.limits import UNLIMITED
from .._codec.signatures import Nonfinite
from ..compression import compress
from ..errors import InferenceServerError, format_value
from ..http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE
from ..sizes import MAX_QUICK_JSON_NBYTES, MAX_QUICK_MESSAGE_NBYTES, PIECE_NBYTES
from .addresses import ServerAddress, authority, find_proxy
from .connection import Connection, Connector
from .errors import (
    HOW_TO_SEND_JSON,
    MAY_REQUIRE_TLS,
    Operation,
    server_error,
    too_long_error,
)
from .options import Call, ClientOptions
from .pool import Lease, Pool
from .requests import (
    Encoding,
    Endpoint,
    Headers,
    HttpRequest,
    Target,
    check_headers,
    check_path,
    dump_json,
    model_path,
    remember,
)
from .responses import ResponseReader, first_value
from .sync import Backend

# The headers of a body, and the end of the head.
_JSON_HEADERS = f"Content-Type: {JSON_TYPE}\r\nContent-Length: %d\r\n\r\n".encode()
_BINARY_HEADERS = (
    f"Content-Type: {BINARY_TYPE}\r\n{HEADER_LENGTH}: %d\r\nContent-Length: %d\r\n\r\n"
).encode()
_CREDENTIALS = re.compile(r"//[^/?#]*@")
_MAX_NESTING = tw.Limits().max_nesting
_REJECTED = (400, 415, 422)  # the statuses of a server that may not read binary data
# Of a successful response: the body, the length of its JSON header, the status and the headers.
ResponseBody = tuple[tw.BodyBuffer, int | None, int, dict[bytes, list[bytes]]]


class HttpAdapter:
    """Builds HTTP requests, and sends them on the connections of a pool."""

    binary_parameters: Mapping[str, Any] = {"binary_data_output": True}

    def __init__(self, server: ServerAddress, options: ClientOptions) -> None:
        if options.channel is not None:
            raise ValueError(f"channel requires a grpc:// or grpcs:// URL, not {server.origin}")
        self.server = server
        self.options = options
        self.headers = {"User-Agent": f"tensorwire/{tw.__version__}"}
        context = None
        if server.is_tls:
            context = options.ssl_context or ssl.create_default_context()
        proxy = find_proxy(server) if options.trust_env else None
        self.connector = Connector(server, proxy, context, options.max_body_nbytes)
        self.via = self.at = ""
        if not server.has_port and proxy is None:
            self.at = f" (at port {server.port}: the URL has no port)"
        if proxy is not None:
            self.via = f" (through the proxy http://{authority(proxy)} of {proxy.variable})"
        self.may_require_tls = not (server.is_tls or server.socket_path or proxy)
        self.target_prefix = ""
        if proxy is not None and context is None:  # it only passes TLS on
            self.target_prefix = server.origin
            if proxy.authorization is not None:
                self.headers["Proxy-Authorization"] = proxy.authorization
        self.headers |= options.headers  # which replace these in `_head`
        self.heads: dict[Any, tuple[Operation, str, bytes]] = {}
        self.reads_binary = False  # whether the server has accepted a binary request

    def new_pool(self, backend: Backend) -> Pool:
        return Pool(backend, self.options.connections, self.options.idle_timeout)

    # --- requests ---

    def _head(self, method: str, path: str, headers: Headers | None, accept: str) -> bytes:
        """Return the head of a request without the headers of the body."""
        by_name = {"host": ("Host", self.server.host_header)}
        for name, value in (*self.headers.items(), *check_headers(headers).items()):
            by_name[name.lower()] = (name, value)
        by_name["accept-encoding"] = ("Accept-Encoding", accept)
        target = f"{self.target_prefix}{self.server.prefix}{path}"
        lines = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in by_name.values()), ""]
        return "\r\n".join(lines).encode("latin-1")

    def _operation(self, method: str, path: str, target: Target) -> Operation:
        url = f"{self.server.origin}{self.server.prefix}{path}"
        return Operation(method, url, target.model, self.via, self.at)

    def _get(self, path: str, target: Target, reader: Callable[..., Any] | None) -> HttpRequest:
        head = self._head("GET", path, target.headers, "identity") + b"\r\n"
        return HttpRequest(self._operation("GET", path, target), head, reader=reader)

    def metadata_request(self, target: Target) -> HttpRequest:
        path = "/v2" if target.model is None else model_path(target)
        return self._get(path, target, partial(_read_json, kind=dict, subject="the metadata"))

    def readiness_request(self, target: Target) -> HttpRequest:
        path = "/v2/health" if target.model is None else model_path(target)
        return self._get(f"{path}/ready", target, None)

    def endpoint_request(
        self, endpoint: Endpoint, target: Target, parameters: Mapping[str, Any]
    ) -> HttpRequest:
        if endpoint == "index":
            return self.json_request(target, "POST", "/v2/repository/index", {}, list)
        is_for_all = endpoint == "stats" and target.model is None
        path = "/v2/models" if is_for_all else model_path(target)
        if endpoint in ("config", "stats"):
            return self.json_request(target, "GET", f"{path}/{endpoint}", None, dict)
        path = f"{path.replace('/v2', '/v2/repository', 1)}/{endpoint}"
        operation = self._operation("POST", path, target)
        parameters = {
            name: dump_json(value, operation) if isinstance(value, dict) else value
            for name, value in parameters.items()
        }
        return self.json_request(target, "POST", path, {"parameters": parameters})

    def json_request(
        self, target: Target, method: str, path: str, body: Any, kind: type = object
    ) -> HttpRequest:
        check_path(method, path, f"{self.server.origin}{self.server.prefix}")
        operation = self._operation(method, path.partition("?")[0], target)
        head = self._head(method, path, target.headers, "identity")
        reader = partial(_read_json, kind=kind)
        if body is None:
            head += b"\r\n" if method in ("GET", "DELETE") else b"Content-Length: 0\r\n\r\n"
            return HttpRequest(operation, head, reader=reader)
        text = dump_json(body, operation).encode()
        head += _JSON_HEADERS % len(text)
        return HttpRequest(operation, head, (text,), len(text), reader=reader)

    async def encode(
        self, _: Target, request: tw.InferRequest, nonfinite: Nonfinite | None, backend: Backend
    ) -> tw.Frame:
        # Writing JSON is slow. Binary data is sent from the memory of the arrays.
        is_slow = sum(x.nbytes for x in request.inputs if not x.binary) > MAX_QUICK_JSON_NBYTES
        return await backend.run(
            is_slow, tw.encode_request, request, nonfinite=nonfinite, limits=UNLIMITED
        )

    def encode_raw(self, array: Any) -> tw.Frame:
        return tw.encode_raw_request(array)

    def check_encoded(self, target: Target, message: tw.Frame | bytes) -> tw.Frame:
        if isinstance(message, bytes):
            raise TypeError(
                f"the inputs are bytes, which are sent over gRPC, but the URL is "
                f"{self.server.origin}: pass a Frame of tensorwire.encode_request"
            )
        return message

    async def infer_request(
        self, target: Target, frame: tw.Frame, encoding: Encoding, backend: Backend
    ) -> HttpRequest:
        key = target.key
        cached = self.heads.get(key)
        if cached is None:
            path = f"{model_path(target)}/infer"
            operation = self._operation("POST", path, target)
            # identity: compressing a response takes Triton more time than it saves (WIRE.md 8)
            cached = operation, path, self._head("POST", path, None, "identity")
            remember(self.heads, key, cached)
        operation, path, head = cached
        compression, accepted = encoding.algorithms
        if target.headers is not None or accepted:
            head = self._head("POST", path, target.headers, accepted or "identity")
        # Unlike those of frame.buffers, these memoryviews are not shared with other threads.
        # tuple(frame) would first allocate len(frame) items, one for each byte.
        buffers: tuple[Any, ...] = tuple(iter(frame))
        nbytes = len(frame)
        if compression:
            body = await backend.run(
                nbytes > PIECE_NBYTES, compress, frame.chunks(PIECE_NBYTES), compression
            )
            buffers, nbytes = (body,), len(body)
            head += b"Content-Encoding: %b\r\n" % compression.encode()
        is_binary = frame.header_length is not None
        if is_binary:
            head += _BINARY_HEADERS % (frame.header_length, nbytes)
        else:
            head += _JSON_HEADERS % nbytes
        return HttpRequest(operation, head, buffers, nbytes, is_binary, tw.decode_response)

    # --- responses ---

    async def read(self, request: HttpRequest, body: ResponseBody, backend: Backend) -> Any:
        if request.reader is None:
            return None
        buffer, header_length, status, headers = body
        limits = self.options.limits
        json_nbytes = len(buffer) if header_length is None else header_length
        reader = request.reader
        if request.regions:
            reader = partial(decode_response_in_regions, regions=request.regions)
        is_slow = json_nbytes > MAX_QUICK_JSON_NBYTES or len(buffer) > MAX_QUICK_MESSAGE_NBYTES
        try:
            return await backend.run(is_slow, reader, buffer, header_length, limits=limits)
        except tw.DecodeError as error:
            is_about_data = isinstance(error, tw.LayoutError | tw.ElementError)
            if error.expected is None and not is_about_data:  # nor about a limit
                start, content_type = _format_start(buffer), first_value(headers, b"content-type")
                kind = (
                    f"Content-Type {format_value(content_type)}"
                    if content_type
                    else "no Content-Type"
                )
                error.args = (f"{error} (status {status}, {kind}, {start})",)
            raise

    # --- the exchange ---

    async def attempt(self, pool: Pool, request: HttpRequest, call: Call) -> ResponseBody:
        """Send a request on a connection of the pool or a new one, and return the response."""
        lease: Lease | None = None
        connection: Connection | None = None
        kept: Connection | None = None
        reader: ResponseReader | None = None
        try:
            lease = await pool.acquire(call.deadline)
            connection = lease.connection
            if connection is not None and connection.is_open():
                try:
                    reader = await connection.exchange(request, call)
                except OSError as error:
                    if pool.is_closed or not connection.may_repeat(request, error, call):
                        raise
            if reader is None:
                if connection is not None:
                    connection.close()
                connection = await self.connector.connect(pool.backend, call.deadline)
                pool.backend.check()
                try:
                    reader = await connection.exchange(request, call)
                except ConnectionError as error:
                    is_lost = not pool.is_closed and connection.reader.n_received == 0
                    if self.may_require_tls and is_lost:
                        raise ConnectionError(f"{error} ({MAY_REQUIRE_TLS} https://)") from error
                    raise
            self.may_require_tls = False  # it has responded
            if reader.reusable:
                kept = connection
            if reader.buffer is None:
                raise self._response_error(request, reader)
            self.reads_binary |= request.is_binary
            buffer, reader.buffer = reader.buffer, None
            return buffer, reader.header_length, reader.status, reader.headers
        finally:
            if connection is not None and kept is None:
                connection.close()
            if lease is not None:
                pool.release(lease, kept)

    def open_stream(self, open_pool: Any, call: Call, requests: Any, encode: Any) -> NoReturn:
        raise ValueError(f"stream requires a grpc:// or grpcs:// URL, not {self.server.origin}")

    def _response_error(self, request: HttpRequest, reader: ResponseReader) -> InferenceServerError:
        message = _error_text(bytes(reader.error_body))
        status, hint = reader.status, ""
        if request.is_binary and status in _REJECTED and not self.reads_binary:
            hint = f"if the server reads only JSON, {HOW_TO_SEND_JSON}"
        elif (location := first_value(reader.headers, b"location")) is not None:
            location = _CREDENTIALS.sub("//", re.split("[?#]", location)[0])
            hint = f"Location {format_value(location)}; redirects are not followed"
        error = server_error(status, message or reader.reason.decode("latin-1"), hint)
        retry_after = first_value(reader.headers, b"retry-after") or ""
        if retry_after.isdecimal() and len(retry_after) < 10:
            error.retry_after = float(retry_after)
        return error


def _error_text(body: bytes) -> str:
    try:  # whatever the Content-Type is: Triton sends JSON errors as text/plain (WIRE.md 8)
        members = read_json(body, _MAX_NESTING)
        text = members["error"] if "error" in members else members["detail"]  # of FastAPI
        if isinstance(text, list):
            text = "; ".join(map(_format_detail, text))
        if isinstance(text, str):
            return text
    except (ValueError, TypeError, LookupError):
        pass
    return body.decode("utf-8", "replace").strip()


def _format_detail(detail: dict[str, Any]) -> str:
    message: str = detail["msg"]
    path = ".".join(map(str, detail.get("loc", ())))
    return f"{path}: {message}" if path else message


def _read_json(
    buffer: tw.BodyBuffer,
    _: int | None,
    *,
    limits: tw.Limits,
    kind: type,
    subject: str = "the response",
) -> Any:
    """Return the JSON value of a response, within the limits of a JSON header.

    It must be of a kind, such as dict. If it may be any, it is None for an empty body.
    """
    nbytes = len(buffer)
    if nbytes > limits.max_header_nbytes:
        raise too_long_error(tw.DecodeError, subject, nbytes, limits.max_header_nbytes)
    if nbytes == 0 and kind is object:
        return None
    try:
        value = read_json(bytes(buffer), limits.max_nesting)
        if not isinstance(value, kind):
            raise tw.DecodeError(f"it is not a JSON {'object' if kind is dict else 'array'}")
    except tw.DecodeError as error:
        raise tw.DecodeError(f"{subject} is invalid: {error}") from None
    return value


def _format_start(body: tw.BodyBuffer) -> str:
    start = bytes(memoryview(body)[:1000])
    if start.startswith(b"\x1f\x8b"):
        return "gzip data without Content-Encoding"
    return f"text {format_value(' '.join(start.decode('utf-8', 'replace').split()))}"
