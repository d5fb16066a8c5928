"""The parts of the clients that perform no I/O: options, requests, retries and errors."""

from __future__ import annotations

import enum
import fcntl
import itertools
import os
import random
import re
import socket
import sys
import termios
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union
from urllib.parse import quote, urlsplit

import numpy as np

import tensorwire as tw

from .._codec.datatypes import UNLIMITED
from .._codec.json_reader import read_json
from ..arguments import check_integer, check_seconds, check_type
from ..errors import format_count, format_seconds
from ..http import BINARY_TYPE, HEADER_LENGTH, JSON_TYPE

DEFAULT_TIMEOUT = 60.0
"""Default timeout in seconds, as in tritonclient."""

DEFAULT_MAX_BODY = 2**31 - 1
"""Default limit of a response body in bytes, after decompression."""

RESPONSE_LIMITS = tw.Limits(
    max_header_nbytes=2**31 - 1,
    max_tensors=2**31 - 1,
    max_name_nbytes=2**31 - 1,
    max_parameters=2**31 - 1,
)
"""Default limits of the clients for ``decode_response``.

They do not limit the header, the names, the parameters and the number of tensors further than
``max_body`` does.
"""

PIECE_NBYTES = 1 << 20  # the read timeout applies to sending each piece, not to a whole tensor
_MAX_PIECES = 64  # maximum number of buffers that are sent with one system call
MAX_JOINED_NBYTES = 64 << 10  # one send is faster than several for frames up to this size
_MAX_MESSAGE_LENGTH = 2000
_MAX_REASON_LENGTH = 500
_MAX_CACHED = 1000  # entries of each cache of a client
_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 10.0
_MAX_RETRY_AFTER_SECONDS = 60
_LAST_ATTEMPT_SECONDS = 0.02  # minimum duration of an attempt of wait_until_ready
RESEND_SECONDS = 1.0  # a reset after this time is not taken for that of a connection closed before
_RETRIED_STATUSES = (429, 502, 503, 504)
_RESERVED_HEADERS = {
    "accept-encoding",
    "content-encoding",
    "content-length",
    "content-type",
    "inference-header-content-length",
    "transfer-encoding",
}
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 5.6.2
_NOT_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"


class AutoId(enum.Enum):
    """The type of ``AUTO_ID``."""

    AUTO_ID = "AUTO_ID"

    def __repr__(self) -> str:
        return "AUTO_ID"


AUTO_ID: Literal[AutoId.AUTO_ID] = AutoId.AUTO_ID
"""The default ``id`` of a request: the client numbers its requests, beginning with ``"1"``."""

Inputs = tw.Frame | Mapping[str, Any] | Iterable[Any]
Outputs = Iterable[str | tw.RequestedOutput]
Headers = Mapping[str, str]
Id = str | Literal[AutoId.AUTO_ID] | None
Algorithm = Literal["gzip", "deflate"]


class Progress(NamedTuple):
    """How much of a call has been transferred, for ``on_progress``.

    Attributes
    ----------
    sent_nbytes, request_nbytes : int
        Number of bytes of the request body that have been sent, and its size.
    received_nbytes : int
        Number of bytes of the response body that have been received.
    response_nbytes : int or None
        The size of the response body; None if it is not known yet, or the server does not send it.

    Examples
    --------
    >>> from tensorwire.client import Progress
    >>> progress = Progress(1 << 20, 64 << 20, 0, None)
    >>> f"{progress.sent_nbytes / progress.request_nbytes:.1%} sent"
    '1.6% sent'
    """

    sent_nbytes: int
    request_nbytes: int
    received_nbytes: int
    response_nbytes: int | None


OnProgress = Callable[[Progress], object]


class InferenceServerError(tw.TensorwireError):
    """The server responded with an HTTP status that is not 2xx.

    Attributes
    ----------
    status : int
        The HTTP status of the response.
    retry_after : float or None
        The number of seconds in the Retry-After header of the response. None if there is none.

    Notes
    -----
    ``str(error)`` is the error message of the server, shortened to 2000 characters: the ``error``
    member of a JSON body, or the text of any other body.

    Examples
    --------
    >>> from tensorwire.client import Client, InferenceServerError
    >>> client = Client("localhost:8000")
    >>> try:                                              # doctest: +SKIP
    ...     client.infer("no such model", {"x": [1.0]})
    ... except InferenceServerError as error:
    ...     print(error.status, error)
    404 model 'no such model' is not known
    """

    retry_after: float | None = None


# --- timeouts ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """The timeouts of a call, in seconds. None means no timeout.

    Parameters
    ----------
    connect : float or None, default 60.0
        Maximum duration of establishing a connection, including TLS, for each address of the host.
        Looking up the addresses may take as long.
    read : float or None, default 60.0
        Maximum duration of each single send or receive operation. A request is sent in pieces of at
        most 1 MiB.
    total : float or None, default None
        Maximum duration of the whole call, including the wait for a free connection, retries and
        the pauses between them. It does not include encoding, compressing and decoding.

    Raises
    ------
    ValueError
        A timeout is not a positive number.
    TypeError
        A timeout is neither a number nor None.

    Examples
    --------
    >>> from tensorwire.client import Client, Timeout
    >>> client = Client("localhost:8000", timeout=Timeout(connect=1, total=30))
    >>> client.timeout
    Timeout(connect=1, read=60.0, total=30)
    """

    connect: float | None = DEFAULT_TIMEOUT
    read: float | None = DEFAULT_TIMEOUT
    total: float | None = None

    def __post_init__(self) -> None:
        check_seconds("connect", self.connect)
        check_seconds("read", self.read)
        check_seconds("total", self.total)


def as_timeout(timeout: float | Timeout | None) -> Timeout:
    if isinstance(timeout, Timeout):
        return timeout
    check_seconds("timeout", timeout)
    return Timeout(connect=timeout, read=timeout)


Step = Literal["connect", "read", "total"]
"""What a wait is for, and the name of the timeout that ends it."""


class Deadline:
    """The timeouts of one call, with the time at which its total timeout expires."""

    __slots__ = ("at", "timeout")

    def __init__(self, timeout: Timeout) -> None:
        self.timeout = timeout
        self.at = None if timeout.total is None else time.monotonic() + timeout.total

    def limit(self, step: Step, since: float | None = None) -> tuple[float | None, Step]:
        """Return how many seconds a step may still take, and which timeout expires then.

        The step began at ``since``, by default now. Raises TimeoutError if no time remains. The
        timeouts are only compared here, and with one clock. The clock of an event loop may be
        coarser or ahead, so it cannot tell which timeout has expired.
        """
        now = time.monotonic()
        seconds: float | None = None if step == "total" else getattr(self.timeout, step)
        if seconds is not None and since is not None:
            seconds -= now - since
        if self.at is not None and (seconds is None or self.at - now <= seconds):
            seconds, step = self.at - now, "total"
        if seconds is not None and seconds <= 0:
            raise self.timeout_error(step)
        return seconds, step

    def timeout_error(self, step: Step) -> TimeoutError:
        """Return the exception for a timeout that has expired."""
        duration = format_seconds(getattr(self.timeout, step))
        if step == "total":
            return TimeoutError(f"the call took longer than {duration} (total timeout)")
        if step == "connect":
            return TimeoutError(f"no connection after {duration} (connect timeout)")
        return TimeoutError(f"no data was transferred for {duration} (read timeout)")


# --- retries -------------------------------------------------------------------------------------


def retry_delay(error: Exception, attempt: int, deadline: Deadline) -> float | None:
    """Return how many seconds to wait before a call is repeated. None if the error is final.

    ``attempt`` counts the retries from 0.
    """
    delay: float
    retry_after = error.retry_after if isinstance(error, InferenceServerError) else None
    if isinstance(error, InferenceServerError) and error.status not in _RETRIED_STATUSES:
        return None
    if retry_after is not None:
        delay = retry_after
        if delay > _MAX_RETRY_AFTER_SECONDS:
            return None
    else:
        delay = min(_FIRST_DELAY_SECONDS * 2.0 ** min(attempt, 10), _MAX_DELAY_SECONDS)
        delay *= random.uniform(0.5, 1.0)
    if deadline.at is not None and time.monotonic() + delay >= deadline.at:
        return None
    return delay


class ReadinessWait:
    """The state of ``wait_until_ready``: the remaining time, and what was last seen."""

    def __init__(self, model: str | None, timeout: float) -> None:
        self.subject = "the server" if model is None else f"model {model[:80]!r}"
        self.seconds = timeout
        check_seconds("timeout", timeout, or_none=False)
        self.end = time.monotonic() + self.seconds
        self.delay = 0.02
        self.last_seen: Exception | None = None

    def timeout(self, timeout: Timeout) -> Timeout:
        """Return the timeouts of the next attempt."""
        remaining = max(self.end - time.monotonic(), 0.001)
        total = remaining if timeout.total is None else min(timeout.total, remaining)
        return Timeout(connect=timeout.connect, read=timeout.read, total=total)

    def next_delay(self, error: Exception) -> float:
        """Return the pause before the next attempt. Raises TimeoutError if no time remains."""
        if self.last_seen is None or not isinstance(error, TimeoutError):
            self.last_seen = error
        remaining = self.end - time.monotonic() - _LAST_ATTEMPT_SECONDS
        if remaining <= 0:
            seen = str(self.last_seen)
            if isinstance(self.last_seen, InferenceServerError):
                seen = f"status {self.last_seen.status}: {seen}"
            raise TimeoutError(
                f"{self.subject} is not ready after {format_seconds(self.seconds)}; last seen: "
                f"{seen}"
            ) from self.last_seen
        delay = min(self.delay * random.uniform(0.5, 1.0), remaining)
        self.delay = min(self.delay * 2, 1.0)
        return delay


# --- kept connections that the server has closed -------------------------------------------------


def read_eof(reader: Any, sock: Any, is_sent: bool, is_truncated: bool) -> None:
    """Process the end of the stream.

    ``is_sent`` is false if some bytes of the request were not passed to the kernel; for
    ``is_truncated`` see ``ResponseReader.eof``. Raises ConnectionError if the response is not
    complete; this is a ConnectionResetError if the server has not read the whole request. Raises
    HeaderError if only its compressed body is incomplete.
    """
    if reader.n_received == 0 and not (is_sent and _is_received(sock)):
        raise ConnectionResetError("the server closed the connection before it read the request")
    reader.eof(is_truncated)


def _is_received(sock: Any) -> bool:
    """Return whether the server may have received everything, at the end of its stream.

    If the server closes the connection before the request arrives, the client gets the end of the
    stream, and a reset for the request that it has sent. ``recv`` then returns the end of the
    stream, also if the reset has arrived. But the end of the stream acknowledges all bytes that
    arrived before it was sent, so bytes that are not acknowledged arrived later.
    """
    try:
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            return False
        unacknowledged = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # the socket was closed, or the system is not Linux
        return True
    return int.from_bytes(unacknowledged, sys.byteorder) == 0


def may_resend(request: Request, reader: Any, error: OSError, started: float) -> bool:
    """Return whether a request is sent once more, on a new connection (RFC 9110 9.2.2).

    It was sent at ``started`` on a kept connection, which has failed. The server may have closed
    the connection before the request arrived. A reset within RESEND_SECONDS is taken as the sign of
    that, although a server may also read a request and then reset the connection. In other cases,
    only a GET is sent again, because a model could run twice.
    """
    if isinstance(error, TimeoutError) or reader.n_received > 0:
        return False
    if request.method == "GET":
        return True
    is_reset = isinstance(error, ConnectionResetError | BrokenPipeError)
    return is_reset and time.monotonic() - started < RESEND_SECONDS


# --- requests ------------------------------------------------------------------------------------


class Request(NamedTuple):
    """An HTTP request: the bytes of its head and the buffers of its body."""

    method: str
    path: str
    head: bytes
    buffers: tuple[Any, ...] = ()
    nbytes: int = 0

    def joined(self) -> bytes:
        """Return head and body as one buffer."""
        return b"".join((self.head, *self.buffers))

    def windows(self, max_nbytes: int = PIECE_NBYTES) -> Iterator[list[Any]]:
        """Iterate over lists of views of head and body, for ``sendmsg``.

        The views in a list have at most ``max_nbytes`` bytes in total. The body is not copied.
        """
        window: list[Any] = [self.head]
        room = max_nbytes
        for buffer in self.buffers:
            view = memoryview(buffer)
            while len(view) > 0:
                if room == 0 or len(window) == _MAX_PIECES:
                    yield window
                    window, room = [], max_nbytes
                window.append(view[:room])
                view = view[room:]
                room -= len(window[-1])
        yield window


class ProgressReporter:
    """Calls ``on_progress`` about once per MiB, and at the end of each direction."""

    def __init__(self, callback: OnProgress, request_nbytes: int) -> None:
        self.callback = callback
        self.request_nbytes = request_nbytes
        self.error: BaseException | None = None
        self.restart()

    def restart(self) -> None:
        """Set all numbers to 0: the request is sent from its beginning."""
        self.last = Progress(0, self.request_nbytes, 0, None)

    def sent(self, nbytes: int) -> None:
        last = self.last
        if nbytes - last.sent_nbytes >= PIECE_NBYTES or nbytes == self.request_nbytes:
            self._report(last._replace(sent_nbytes=nbytes))

    def received(self, nbytes: int, content_length: int | None, complete: bool) -> None:
        last = self.last
        if complete or nbytes - last.received_nbytes >= PIECE_NBYTES:
            self._report(last._replace(received_nbytes=nbytes, response_nbytes=content_length))

    def _report(self, progress: Progress) -> None:
        self.last = progress
        try:
            self.callback(progress)
        except BaseException as error:
            self.error = error  # an OSError of the callback is not an error of the connection
            raise


class ResponseBody(NamedTuple):
    """The body of a successful response, and the length of its JSON header."""

    buffer: tw.BodyBuffer
    header_length: int | None

    def decode(self, limits: tw.Limits) -> tw.InferResponse:
        return tw.decode_response(self.buffer, self.header_length, limits=limits)

    def parse_metadata(self, limits: tw.Limits) -> dict[str, Any]:
        """Parse a body that is a JSON object, within the limits of a JSON header."""
        nbytes = len(self.buffer)
        if nbytes > limits.max_header_nbytes:
            raise tw.HeaderError(
                f"the metadata is {format_count('byte', nbytes)} long; the limit is "
                f"{limits.max_header_nbytes}",
                expected=limits.max_header_nbytes,
                actual=nbytes,
            )
        try:
            metadata = read_json(bytes(self.buffer), limits.max_nesting)
        except tw.HeaderError as error:
            raise tw.HeaderError(f"the metadata is invalid: {error}") from None
        if not isinstance(metadata, dict):
            raise tw.HeaderError("the metadata is invalid: it is not a JSON object")
        return metadata


clients: weakref.WeakSet[BaseClient] = weakref.WeakSet()
"""All clients, for ``_after_fork``."""


def _after_fork() -> None:
    for client in list(clients):
        client._forget_connections()


os.register_at_fork(after_in_child=_after_fork)

InputSpecs = list[tuple[str, Any]]  # names and datatypes of a model's metadata; Tensor checks them
"""The names and datatypes of the inputs of a model."""

NormalizedInputs = Union[tw.Frame, Mapping[str, Any], list[tw.Tensor], "Positional"]
"""The inputs of a call after ``normalize_inputs``."""


class BaseClient:
    """Base class of the clients: stores their options, and builds requests."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float | Timeout | None,
        max_body: int | None,
        limits: tw.Limits | None,
        headers: Headers | None,
        connections: int,
        retries: int,
        ssl_context: Any,
    ) -> None:
        connections = check_integer("connections", connections, minimum=1)
        retries = check_integer("retries", retries, minimum=0)
        if max_body is not None:
            max_body = check_integer("max_body", max_body, minimum=0)
        if limits is not None:
            check_type("limits", limits, tw.Limits, "a Limits object")
        self._options = {
            "url": url,
            "timeout": timeout,
            "max_body": max_body,
            "limits": limits,
            "headers": headers,
            "connections": connections,
            "retries": retries,
            "ssl_context": ssl_context,
        }
        self.server: Server = parse_url(url)
        self.timeout: Timeout = as_timeout(timeout)
        self.max_body = max_body
        self.limits: tw.Limits = RESPONSE_LIMITS if limits is None else limits
        self.headers: dict[str, str] = {
            "User-Agent": f"tensorwire/{tw.__version__}",
            **check_headers(headers),
        }
        self.retries = retries
        self._default_deadline = Deadline(self.timeout) if self.timeout.total is None else None
        self._ids = itertools.count(1)
        self._heads: dict[tuple[str, str | None], tuple[str, bytes]] = {}
        self._specs: dict[tuple[str, str | None], InputSpecs] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.server.origin}{self.server.prefix}>"

    def _forget_connections(self) -> None:
        """Start without connections in a child process, which must not use those of its parent."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_client, (type(self), self._options)

    def _deadline(self, timeout: float | Timeout | None) -> Deadline:
        if timeout is not None:
            return Deadline(as_timeout(timeout))
        return self._default_deadline or Deadline(self.timeout)

    def _head(self, method: str, path: str, headers: Headers | None, accept: str) -> bytes:
        """Return the head of a request without the headers of the body."""
        by_name = {"host": ("Host", self.server.host_header)}
        for name, value in (*self.headers.items(), *check_headers(headers).items()):
            by_name[name.lower()] = (name, value)
        by_name["accept-encoding"] = ("Accept-Encoding", accept)
        lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in by_name.values()), ""]
        return "\r\n".join(lines).encode("latin-1")

    def _request(self, path: str, headers: Headers | None = None) -> Request:
        """Return a GET request."""
        path = self.server.prefix + path
        return Request("GET", path, self._head("GET", path, headers, "identity") + b"\r\n")

    def _readiness_request(self, model: str | None, version: str | None) -> Request:
        if model is None:
            return self._request("/v2/health/ready")
        return self._request(f"{model_path(model, version)}/ready")

    def _infer_request(
        self,
        model: str,
        version: str | None,
        headers: Headers | None,
        frame: tw.Frame,
        compressed: Compressed | None = None,
        response_compression: Algorithm | None = None,
    ) -> Request:
        key = (model, version)
        cached = self._heads.get(key)
        if cached is None:
            path = f"{self.server.prefix}{model_path(model, version)}/infer"
            # identity: compressing a response takes Triton more time than it saves (WIRE.md 8)
            cached = path, self._head("POST", path, None, "identity")
            if len(self._heads) >= _MAX_CACHED:
                self._heads.clear()
            self._heads[key] = cached
        path, head = cached
        if headers is not None or response_compression:
            accept = response_compression or "identity"
            head = self._head("POST", path, headers, accept)
        # Unlike those of frame.buffers, these memoryviews are not shared with other threads.
        # tuple(frame) would first allocate len(frame) items, one for each byte.
        buffers = tuple(iter(frame))
        nbytes = len(frame)
        header_length = frame.header_length
        if compressed is not None:
            head += b"Content-Encoding: %b\r\n" % compressed.algorithm.encode()
            buffers = (compressed.body,)
            nbytes = len(compressed.body)
        if header_length is None:
            head += b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (_JSON_TYPE, nbytes)
        else:
            head += _BINARY_HEADERS % (header_length, nbytes)
        return Request("POST", path, head, buffers, nbytes)

    def _response_error(self, reader: Any) -> InferenceServerError:
        """Return the exception for the error response that a ResponseReader has read."""
        reason = reader.reason.decode("latin-1")
        error = server_error(reader.status, reason, reader.error_body)
        if reader.retry_after and reader.retry_after.isdigit() and len(reader.retry_after) < 10:
            error.retry_after = float(reader.retry_after)
        return error

    def _encode(
        self,
        inputs: NormalizedInputs,
        specs: InputSpecs | None,
        outputs: Outputs | None,
        binary_outputs: bool,
        id: Id,
        parameters: Mapping[str, Any] | None,
    ) -> tw.Frame:
        """Encode the arguments of ``infer``.

        ``specs`` are required for Positional inputs. A ``binary_data_output`` in ``parameters``
        takes precedence over ``binary_outputs``.
        """
        if isinstance(inputs, tw.Frame):
            if outputs is not None or parameters is not None or isinstance(id, str):
                raise TypeError(
                    "the inputs are an encoded Frame: outputs, id and parameters must be passed "
                    "to encode_request"
                )
            return inputs
        all_parameters: dict[str, Any] = {"binary_data_output": True} if binary_outputs else {}
        if isinstance(inputs, tw.InferRequest):
            all_parameters.update(inputs.parameters)
            outputs = inputs.outputs if outputs is None else outputs
            id = inputs.id if id is AUTO_ID and inputs.id is not None else id
            inputs = list(inputs.inputs)
        if parameters:
            all_parameters.update(parameters)
        request = tw.InferRequest(
            inputs.tensors(specs or []) if isinstance(inputs, Positional) else inputs,
            outputs,
            id=str(next(self._ids)) if id is AUTO_ID else id,
            parameters=all_parameters,
        )
        return tw.encode_request(request, limits=UNLIMITED)

    def _cache_specs(self, model: str, version: str | None, metadata: dict[str, Any]) -> InputSpecs:
        specs = input_specs(model, metadata)
        if len(self._specs) >= _MAX_CACHED:
            self._specs.clear()
        self._specs[model, version] = specs
        return specs


_JSON_TYPE = JSON_TYPE.encode()
_BINARY_HEADERS = (
    f"Content-Type: {BINARY_TYPE}\r\n{HEADER_LENGTH}: %d\r\nContent-Length: %d\r\n\r\n"
).encode()


def _new_client(kind: type[BaseClient], options: dict[str, Any]) -> BaseClient:
    return kind(**options)


class Server(NamedTuple):
    """The address of a server."""

    is_tls: bool
    host: str
    port: int
    host_header: str
    origin: str
    prefix: str  # the path before /v2


def parse_url(url: str) -> Server:
    """Split the URL of a server. Raises ValueError and TypeError."""
    check_type("url", url, str, "a str")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ValueError(f"the URL of a server is invalid: {url!r} ({error})") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"the URL of a server must be http or https, and have a host: {url!r}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("the URL of a server must not have a query, a fragment or credentials")
    if port == 0:
        raise ValueError(f"the URL of a server must not have port 0: {url!r}")
    try:
        host = parts.hostname.encode("idna").decode("ascii")  # getaddrinfo does the same
    except UnicodeError:
        host = ""
    if not re.fullmatch(r"[A-Za-z0-9._~%:-]+", host):
        raise ValueError(f"the host of a URL is invalid: {url!r}")
    is_tls = parts.scheme == "https"
    bracketed = f"[{host}]" if ":" in host else host
    netloc = bracketed if port is None else f"{bracketed}:{port}"
    return Server(
        is_tls,
        host,
        port or (443 if is_tls else 80),
        netloc,
        f"{parts.scheme}://{netloc}",
        quote(parts.path.rstrip("/"), safe=_PATH_CHARACTERS),
    )


def model_path(model: str, version: str | None = None) -> str:
    """Return the path of a model. Raises ValueError if no path can contain its name or version."""
    path = f"/v2/models/{_quote_segment(model, 'name')}"
    return path if version is None else f"{path}/versions/{_quote_segment(str(version), 'version')}"


def _quote_segment(value: str, what: str) -> str:
    # Quoting the dots does not help: many servers and proxies take %2E%2E for "..".
    check_type(f"the {what} of a model", value, str, "a str")
    if value in ("", ".", ".."):
        raise ValueError(
            f"the {what} of a model must not be {value!r}, which cannot be a part of a URL path"
        )
    return quote(value, safe="")


def check_headers(headers: Headers | None) -> dict[str, str]:
    """Return a copy of the headers.

    Raises ValueError for headers that the client itself sets, and for invalid names and values.
    Raises TypeError unless the argument is a mapping of str to str.
    """
    if headers is None:
        return {}
    check_type("headers", headers, Mapping, "a mapping of str to str")
    for name, value in headers.items():
        check_type("the name of an HTTP header", name, str, "a str")
        check_type(f"the value of the HTTP header {name[:80]!r}", value, str, "a str")
        if name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"the HTTP header {name} cannot be passed: the client sets it")
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"the name of an HTTP header is invalid: {name[:80]!r}")
        if _NOT_IN_VALUE.search(value) or not all(ord(c) < 256 for c in value):
            raise ValueError(f"the value of the HTTP header {name} is invalid: {value[:80]!r}")
    return dict(headers)


def check_algorithm(algorithm: str | None) -> None:
    if algorithm not in (None, "gzip", "deflate"):
        raise ValueError(
            f"the compression algorithm must be 'gzip', 'deflate' or None, not {algorithm!r}"
        )


class Compressed(NamedTuple):
    """A compressed request body."""

    algorithm: Algorithm
    body: bytes


def compress(frame: tw.Frame, algorithm: Algorithm) -> Compressed:
    wbits = zlib.MAX_WBITS | (16 if algorithm == "gzip" else 0)  # 16: with the header of gzip
    deflater = zlib.compressobj(wbits=wbits)
    chunks = [deflater.compress(piece) for piece in frame.chunks(PIECE_NBYTES)]
    return Compressed(algorithm, b"".join((*chunks, deflater.flush())))


class Positional(NamedTuple):
    """Inputs without names."""

    arrays: list[Any]

    def tensors(self, specs: InputSpecs) -> list[tw.Tensor]:
        """Return the inputs with the names and datatypes of the model's inputs."""
        if len(self.arrays) != len(specs):
            names = ", ".join(repr(name[:80]) for name, _ in specs[:20])
            raise ValueError(
                f"inputs has {format_count('array', len(self.arrays))}, but the model takes "
                f"{format_count('input', len(specs))}: {names}"
            )
        return [
            tw.Tensor(name, array, datatype=datatype)
            for array, (name, datatype) in zip(self.arrays, specs, strict=True)
        ]


def normalize_inputs(inputs: Inputs) -> NormalizedInputs:
    """Return inputs without names as Positional, Tensors as a list, and other inputs unchanged.

    Raises TypeError if ``inputs`` is a single array, or mixes Tensors with inputs without names.
    """
    if isinstance(inputs, dict | tw.Frame | Mapping):
        return inputs
    if isinstance(inputs, np.ndarray | str | bytes | tw.Tensor | tw.BytesArray):
        raise TypeError(
            f"inputs must be a mapping, a list or a Frame, not {type(inputs).__name__}: "
            "pass a single input as [array] or {name: array}"
        )
    found = list(inputs)
    n_tensors = sum(isinstance(value, tw.Tensor) for value in found)
    if n_tensors == len(found):
        return found
    if n_tensors > 0:
        raise TypeError("inputs must be either all Tensors or all arrays without names")
    return Positional(found)


def input_specs(model: str, metadata: dict[str, Any]) -> InputSpecs:
    """Return the inputs that the metadata of a model declares. Raises HeaderError."""
    try:
        specs = [(spec["name"], spec["datatype"]) for spec in metadata["inputs"]]
        if not specs or not all(isinstance(value, str) for spec in specs for value in spec):
            raise TypeError
    except (TypeError, LookupError):
        raise tw.HeaderError(
            f"the metadata of model {model[:80]!r} does not have the names and datatypes of its "
            "inputs: pass the inputs as {name: array}"
        ) from None
    return specs


# --- errors --------------------------------------------------------------------------------------


def connection_error(request: Request, server: Server, error: OSError) -> OSError:
    """Return the ConnectionError or TimeoutError for a failed exchange."""
    kind = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
    reason = str(error)[:_MAX_REASON_LENGTH] or type(error).__name__
    return kind(f"{request.method} {server.origin}{request.path}: {reason}")


def server_error(status: int, reason: str | None, body: bytes) -> InferenceServerError:
    """Return the exception for an error response.

    The Content-Type is ignored, because Triton sends JSON errors as ``text/plain`` (WIRE.md 8).
    """
    try:
        message = read_json(body, RESPONSE_LIMITS.max_nesting)["error"]
        if not isinstance(message, str):
            raise TypeError
    except (ValueError, TypeError, LookupError):
        message = body.decode("utf-8", "replace").strip()
    message = message[:_MAX_MESSAGE_LENGTH] or f"HTTP status {status} {reason or ''}".rstrip()
    return InferenceServerError(message, status=status)
