"""What both clients say and understand: no I/O, and no HTTP library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import tensorwire as tw

from .._codec.json_reader import read_json

DEFAULT_TIMEOUT = 60.0
"""Seconds without progress; of tritonclient, too."""

DEFAULT_MAX_BODY = 2**31 - 1
"""Bytes of a response's body."""

ERROR_NBYTES = 64 << 10  # read of an error's body
PIECE_NBYTES = 1 << 20  # sent at a time: a timeout is one of progress, not of a whole tensor
_MESSAGE_LENGTH = 2000
_REASON_LENGTH = 500
_JOIN_NBYTES = 64 << 10  # frames up to this size: one send is sooner than several
_DEFAULT_LIMITS = tw.Limits()
_OWN_HEADERS = {
    "accept-encoding",
    "content-encoding",
    "content-length",
    "content-type",
    "inference-header-content-length",
    "transfer-encoding",
}

Inputs = Iterable[tw.Tensor] | Mapping[str, Any]
Outputs = Iterable[str | tw.RequestedOutput]
Headers = Mapping[str, str]


class InferenceServerError(tw.TensorwireError):
    """The server answered with an error: ``status`` is its HTTP status, the text its own."""


class Call(NamedTuple):
    """One HTTP request, without its connection."""

    method: str
    path: str
    headers: dict[str, str]
    frame: tw.Frame | None = None

    @property
    def body(self) -> bytes | Iterator[Any] | None:
        """The frame's own memory piece by piece, joined only when it is small."""
        if self.frame is None:
            return None
        return (
            bytes(self.frame)
            if len(self.frame) <= _JOIN_NBYTES
            else self.frame.pieces(PIECE_NBYTES)
        )


class BaseClient:
    """The server's address, and how its calls are made and its answers read."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float | None,
        max_body: int | None,
        limits: tw.Limits | None,
        headers: Headers | None,
        connections: int,
    ) -> None:
        if connections < 1:  # urllib3 would wait for one forever, aiohttp open any number
            raise ValueError(f"connections are 1 or more, not {connections}")
        self.origin, self.prefix = parse_url(url)
        self.timeout = checked_timeout(timeout)
        self.max_body = max_body
        self.limits = limits or _DEFAULT_LIMITS
        self.headers = {"User-Agent": f"tensorwire/{tw.__version__}"} | checked(headers)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.origin}{self.prefix}>"

    def call(
        self, method: str, path: str, headers: Headers | None, frame: tw.Frame | None = None
    ) -> Call:
        # identity: a compressed tensor costs the server ten times what it saves (WIRE.md 8)
        framing = {} if frame is None else frame.headers
        own = {**self.headers, **checked(headers), **framing, "Accept-Encoding": "identity"}
        return Call(method, self.prefix + path, own, frame)

    def infer_call(
        self, model: str, version: str | None, headers: Headers | None, frame: tw.Frame
    ) -> Call:
        return self.call("POST", f"{model_path(model, version)}/infer", headers, frame)

    def ready_call(self, model: str | None, version: str | None) -> Call:
        if model is None:
            return self.call("GET", "/v2/health/ready", None)
        return self.call("GET", f"{model_path(model, version)}/ready", None)

    def answer(self, length: int | None, headers: Iterable[tuple[str, str]]) -> Answer:
        """Memory for a response, aligned for its tensors. Raises HeaderError when too long."""
        pairs = list(headers)
        for key, value in pairs:
            if key.lower() == "content-encoding" and value.strip().lower() not in ("", "identity"):
                raise tw.HeaderError(f"the response has Content-Encoding {value[:40]!r}: unasked")
        header_length = tw.header_length(pairs)
        return Answer(tw.BodyBuffer(length, header_length, max_nbytes=self.max_body), header_length)


class Answer(NamedTuple):
    """The body of a good response, which may be under way."""

    body: tw.BodyBuffer
    header_length: int | None

    def message(self, limits: tw.Limits) -> tw.InferResponse:
        return tw.decode_response(self.body, self.header_length, limits=limits)

    def json(self, limits: tw.Limits) -> dict[str, Any]:
        """The body as metadata, which is held to the bounds of a message's JSON."""
        if len(self.body) > limits.max_header_nbytes:
            raise tw.HeaderError(
                f"the metadata is too long: {len(self.body)} bytes, at most "
                f"{limits.max_header_nbytes} are accepted",
                expected=limits.max_header_nbytes,
                actual=len(self.body),
            )
        try:
            metadata = read_json(bytes(self.body), limits.max_nesting)
        except tw.HeaderError as error:
            raise tw.HeaderError(f"the metadata cannot be read: {error}") from None
        if not isinstance(metadata, dict):
            raise tw.HeaderError("the metadata cannot be read: it is not a JSON object")
        return metadata


# --- requests --------------------------------------------------------------------------------


def parse_url(url: str) -> tuple[str, str]:
    """A server's URL as its origin and the path in front of ``/v2``. Raises ValueError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not the http or https URL of a server: {url!r}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("the URL of a server has no query, no fragment and no credentials")
    if parts.port == 0:
        raise ValueError(f"port 0 is no server's: {url!r}")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def model_path(model: str, version: str | None = None) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def checked(headers: Headers | None) -> dict[str, str]:
    """The caller's headers. Raises ValueError for one that the frame decides."""
    for name in headers or ():
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"{name} is set by the client itself")
    return dict(headers or {})


def checked_timeout(seconds: float | None) -> float | None:
    """Raises ValueError for no time at all, which aiohttp takes for as long as it lasts."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"a timeout is a number of seconds above 0, or None, not {seconds}")
    return seconds


def encode(
    inputs: Inputs,
    outputs: Outputs | None,
    binary_outputs: bool,
    id: str | None,
    parameters: Mapping[str, Any] | None,
) -> tw.Frame:
    """The frame of a request; ``parameters`` may say something else of binary outputs."""
    if isinstance(inputs, Mapping):
        inputs = [
            value if isinstance(value, tw.Tensor) else tw.Tensor(name, value)
            for name, value in inputs.items()
        ]
    if isinstance(outputs, str):
        raise TypeError("outputs are a list of names, not one str")
    wanted = None
    if outputs is not None:
        wanted = [tw.RequestedOutput(o) if isinstance(o, str) else o for o in outputs]
    asked = {"binary_data_output": True} if binary_outputs else {}
    request = tw.InferRequest(inputs, wanted, id=id, parameters={**asked, **(parameters or {})})
    return tw.encode_request(request)


# --- errors ----------------------------------------------------------------------------------


def failure(call: Call, origin: str, error: Exception) -> str:
    """The words for a transport that failed; the library's own may hold a whole answer."""
    reason = str(error)[:_REASON_LENGTH] or type(error).__name__
    return f"{call.method} {origin}{call.path}: {reason}"


def server_error(status: int, reason: str | None, body: bytes) -> InferenceServerError:
    """The error that an answer is: its ``{"error": ...}`` whatever its type, else its text."""
    try:
        message = read_json(body, _DEFAULT_LIMITS.max_nesting)["error"]
        if not isinstance(message, str):
            raise TypeError
    except (ValueError, TypeError, LookupError):
        message = body.decode("utf-8", "replace").strip()
    message = message[:_MESSAGE_LENGTH] or f"HTTP status {status} {reason or ''}".rstrip()
    return InferenceServerError(message, status=status)
