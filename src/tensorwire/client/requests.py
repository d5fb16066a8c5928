"""What a call sends: the arguments of ``infer`` and their checks, HTTP requests, and progress."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, get_args
from urllib.parse import quote, unquote

import tensorwire as tw

from .._codec.signatures import Nonfinite
from ..arguments import check_type
from ..compression import find_zstd
from ..errors import format_value
from ..sizes import MAX_JOINED_NBYTES, PIECE_NBYTES
from .errors import Operation

_MAX_PIECES = 64  # maximum number of buffers that are sent with one system call
_RESERVED_HEADERS = {
    "accept-encoding",
    "content-encoding",
    "content-length",
    "content-type",
    "inference-header-content-length",
    "transfer-encoding",
}
_NOT_IN_NAME = re.compile(r"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")  # RFC 9110 5.6.2
_NOT_IN_PATH = re.compile(r"[^A-Za-z0-9\-._~!$&'()*+,;=:@/?%]")  # RFC 3986 3.3 and 3.4
_NOT_IN_VALUE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class AutoId(enum.Enum):
    """The type of ``AUTO_ID``."""

    AUTO_ID = "AUTO_ID"

    def __repr__(self) -> str:
        return "AUTO_ID"


AUTO_ID: Literal[AutoId.AUTO_ID] = AutoId.AUTO_ID
"""The default ``id`` of a request: the client numbers its requests, beginning with ``"1"``."""

MAX_CACHED = 1000  # entries of each cache of a client

Headers = Mapping[str, str]
Id = str | Literal[AutoId.AUTO_ID] | None
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Endpoint = Literal["config", "stats", "index", "load", "unload"]
Algorithm = Literal["gzip", "deflate", "zstd"]
Algorithms = tuple[Algorithm | None, Algorithm | None]  # of the request and of the response


class DataFrame(Protocol):
    """A data frame of pandas or polars, or a table or record batch of pyarrow."""

    @property
    def columns(self) -> Any: ...


Inputs = tw.Frame | bytes | tw.InferRequest | Mapping[str, Any] | Iterable[tw.Tensor] | DataFrame


class Names(Protocol):
    """Any collection of outputs but a str, in which no other objects can be searched for."""

    def __iter__(self) -> Iterator[str | tw.RequestedOutput]: ...
    def __contains__(self, item: object, /) -> bool: ...


Outputs = Names | Iterator[str | tw.RequestedOutput]


class Encoding(NamedTuple):
    """How the inputs of a request are encoded and sent: arguments of ``infer``."""

    outputs: Outputs | None = None
    id: Id = AUTO_ID
    parameters: Mapping[str, Any] | None = None
    binary_inputs: bool | None = None
    binary_outputs: bool | None = None
    nonfinite: Nonfinite | None = None
    algorithms: Algorithms = (None, None)


def with_options(parameters: Mapping[str, Any] | None, **options: Any) -> Mapping[str, Any] | None:
    """Return parameters with the options that have been chosen: they are not 0, "" or False.

    Raises ValueError for an option that the parameters contain, too.
    """
    if parameters is not None:
        check_type("parameters", parameters, Mapping, "a mapping")
    chosen = {name: value for name, value in options.items() if value}
    for name in chosen:
        if parameters and name in parameters:
            raise ValueError(f"{name} must not be passed both as an argument and in parameters")
    return {**chosen, **(parameters or {})} if chosen else parameters


class Target(NamedTuple):
    """What a request is for, and the headers of the call. Without a model, it is for the server."""

    model: str | None
    version: str | None
    headers: Headers | None

    @property
    def key(self) -> tuple[str | None, str | None]:
        """The model and its version: 1 and "1" are the same, and "" is none."""
        return self.model, None if self.version is None else str(self.version) or None


NO_TARGET = Target(None, None, None)


def remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Add an entry to a cache, which is emptied when it is full."""
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[key] = value


Regions = dict[str, dict[str, Any]]
"""The parameters of outputs that are requested in regions of shared memory, by their names."""


def regions_of(outputs: Iterable[tw.RequestedOutput] | None) -> Regions:
    """Return the regions of requested outputs."""
    found: Regions = {}
    for output in outputs or ():
        parameters = output.parameters
        if "shared_memory_region" in parameters:
            keys = [key for key in parameters if key.startswith("shared_memory_")]
            found[output.name] = {key: parameters[key] for key in keys}
    return found


class HttpRequest(NamedTuple):
    """An HTTP request: the bytes of its head and the buffers of its body."""

    operation: Operation
    head: bytes
    buffers: tuple[Any, ...] = ()
    nbytes: int = 0
    is_binary: bool = False  # whether it contains binary tensors
    reader: Callable[..., Any] | None = None  # of the body of the response, and its header length
    regions: Regions | None = None

    def windows(self, max_nbytes: int) -> Iterator[list[Any]]:
        """Iterate over lists of views of head and body, each with at most ``max_nbytes`` bytes."""
        if self.nbytes <= MAX_JOINED_NBYTES:
            yield [b"".join((self.head, *self.buffers))]
            return
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


class CallbackError(BaseException):
    """Has an exception of ``on_progress``, so that no handler takes it for one of a connection."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class ProgressReporter:
    """Calls ``on_progress`` about once per MiB, and at the end of each direction."""

    def __init__(self, callback: OnProgress | None) -> None:
        self.callback = callback
        self.last = Progress(0, 0, 0, None)

    def start(self, request_nbytes: int) -> None:
        """Begin at 0: the request is sent from its beginning, perhaps once more."""
        if self.callback is not None:
            self.last = Progress(0, request_nbytes, 0, None)

    def sent(self, nbytes: int) -> None:
        if self.callback is not None:
            last = self.last
            if nbytes - last.sent_nbytes >= PIECE_NBYTES or nbytes == last.request_nbytes:
                self._report(self.callback, last._replace(sent_nbytes=nbytes))

    def received(self, nbytes: int, content_length: int | None, complete: bool) -> None:
        if self.callback is not None:
            last = self.last
            if complete or nbytes - last.received_nbytes >= PIECE_NBYTES:
                progress = last._replace(received_nbytes=nbytes, response_nbytes=content_length)
                self._report(self.callback, progress)

    def _report(self, callback: OnProgress, progress: Progress) -> None:
        self.last = progress
        try:
            callback(progress)
        except BaseException as error:
            raise CallbackError(error) from None


NO_PROGRESS = ProgressReporter(None)


# --- heads ---------------------------------------------------------------------------------------


def model_path(target: Target) -> str:
    model, version = target.key
    path = f"/v2/models/{_quote_segment(model, 'name')}"
    return path if version is None else f"{path}/versions/{_quote_segment(version, 'version')}"


def _quote_segment(value: Any, what: str) -> str:
    # Quoting the dots does not help: many servers and proxies take %2E%2E for "..".
    check_type(f"the {what} of a model", value, str, "a str")
    if value in ("", ".", ".."):
        raise ValueError(
            f"the {what} of a model must not be {value!r}, which cannot be a part of a URL path"
        )
    return quote(value, safe="")


def check_path(method: Any, path: Any, url: str) -> None:
    """Raise ValueError unless a request can be sent to a path, with a query, below a URL."""
    check_type("method", method, str, "a str")
    check_type("path", path, str, "a str")
    methods = get_args(Method)
    if method not in methods:
        raise ValueError(f"{method[:80]!r} {url}: the method must be one of {', '.join(methods)}")
    path_only = path.partition("?")[0]
    segments = {unquote(segment) for segment in path_only.split("/")}
    if not path.startswith("/") or path.startswith("//") or segments & {".", ".."}:
        raise ValueError(
            f"{method} {url}: the path {format_value(path_only)} is not under the URL: it must "
            "begin with one / and have no segment . or .."
        )
    check_text(f"{method} {url}: the path", path, _NOT_IN_PATH, "is invalid")


def dump_json(value: Any, operation: Operation) -> str:
    """Return a value of the caller as JSON. Raises EncodeError."""
    try:
        return json.dumps(value, allow_nan=False, default=_as_dict)
    except (TypeError, ValueError, RecursionError) as error:
        text = f"the body cannot be written as JSON: {error}"
        raise operation.named(tw.EncodeError(text)) from None


def _as_dict(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def check_headers(headers: Headers | None) -> dict[str, str]:
    """Return a copy of the headers, as strings whose methods are those of ``str``."""
    found: dict[str, str] = {}
    if headers is None:
        return found
    check_type("headers", headers, Mapping, "a mapping of str to str")
    for key, item in headers.items():
        check_type("the name of an HTTP header", key, str, "a str")
        name = str.__str__(key)
        if not name:
            raise ValueError("the name of an HTTP header must not be empty")
        check_text("the name of an HTTP header", name, _NOT_IN_NAME, "is invalid")
        check_type(f"the value of the HTTP header {name[:80]!r}", item, str, "a str")
        value = str.__str__(item)
        if name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"the HTTP header {name} cannot be passed: the client sets it")
        check_text(f"the value of the HTTP header {name}", value, _NOT_IN_VALUE, "is invalid")
        found[name] = value
    return found


def check_text(subject: str, text: str, forbidden: re.Pattern[str], problem: str) -> None:
    """Raise ValueError for a forbidden character. The rest of the text may be a secret."""
    if found := forbidden.search(text):
        position = found.start()
        raise ValueError(f"{subject} {problem}: character {found[0]!r} at position {position}")


def check_algorithms(algorithms: Algorithms) -> None:
    for algorithm in algorithms:
        if algorithm not in (None, "gzip", "deflate", "zstd"):
            raise ValueError(
                "the compression algorithm must be 'gzip', 'deflate', 'zstd' or None, not "
                f"{algorithm!r}"
            )
    if "zstd" in algorithms and find_zstd() is None:
        raise ImportError(
            "zstd requires Python 3.14 or backports.zstd: pip install 'tensorwire[zstd]'"
        )
