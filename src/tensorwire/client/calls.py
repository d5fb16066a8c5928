"""The parts of the clients that perform no I/O: requests, response bodies and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import tensorwire as tw

from .._codec.json_reader import read_json
from ..errors import plural

DEFAULT_TIMEOUT = 60.0
"""Default timeout in seconds, as in tritonclient."""

DEFAULT_MAX_BODY = 2**31 - 1
"""Default limit of a response body in bytes."""

ERROR_NBYTES = 64 << 10  # maximum number of bytes read from the body of an error response
CHUNK_NBYTES = 1 << 20  # the timeout applies to sending each chunk, not to a whole tensor
_MAX_MESSAGE_LENGTH = 2000
_MAX_REASON_LENGTH = 500
_MAX_JOINED_NBYTES = 64 << 10  # one send is faster than several for frames up to this size
_DEFAULT_LIMITS = tw.Limits()
_RESERVED_HEADERS = {
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
    """The server responded with an HTTP status that is not 2xx.

    Attributes
    ----------
    status : int
        The HTTP status of the response.

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


class Request(NamedTuple):
    """An HTTP request without the address of the server."""

    method: str
    path: str
    headers: dict[str, str]
    frame: tw.Frame | None = None

    @property
    def body(self) -> bytes | Iterator[Any] | None:
        """Return the frame in chunks, or joined if it is small. None if there is no frame."""
        if self.frame is None:
            return None
        if len(self.frame) <= _MAX_JOINED_NBYTES:
            return bytes(self.frame)
        return self.frame.chunks(CHUNK_NBYTES)


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
                f"the metadata is too long: {plural('byte', nbytes)}, at most "
                f"{limits.max_header_nbytes} are accepted",
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


class BaseClient:
    """Base class of the clients: stores their options, and builds requests and response bodies."""

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
        # With 0, urllib3 would wait for a connection forever, and aiohttp would open any number.
        if connections < 1:
            raise ValueError(f"connections must be 1 or more, not {connections}")
        self.origin, self.prefix = parse_url(url)
        self.timeout = check_timeout(timeout)
        self.max_body = max_body
        self.limits = limits or _DEFAULT_LIMITS
        self.headers = {"User-Agent": f"tensorwire/{tw.__version__}"} | check_headers(headers)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.origin}{self.prefix}>"

    def _request(
        self, method: str, path: str, headers: Headers | None = None, frame: tw.Frame | None = None
    ) -> Request:
        # identity: compressing a response takes Triton more time than it saves (WIRE.md 8)
        all_headers = {
            **self.headers,
            **check_headers(headers),
            **({} if frame is None else frame.headers),
            "Accept-Encoding": "identity",
        }
        return Request(method, self.prefix + path, all_headers, frame)

    def _infer_request(
        self, model: str, version: str | None, headers: Headers | None, frame: tw.Frame
    ) -> Request:
        return self._request("POST", f"{model_path(model, version)}/infer", headers, frame)

    def _readiness_request(self, model: str | None, version: str | None) -> Request:
        if model is None:
            return self._request("GET", "/v2/health/ready")
        return self._request("GET", f"{model_path(model, version)}/ready")

    def _response_body(
        self, content_length: int | None, headers: Iterable[tuple[str, str]]
    ) -> ResponseBody:
        """Return a ResponseBody with an empty buffer, aligned for the tensors of the body.

        Raises HeaderError if the body is compressed, or ``content_length`` exceeds ``max_body``.
        """
        pairs = list(headers)
        for key, value in pairs:
            if key.lower() == "content-encoding" and value.strip().lower() not in ("", "identity"):
                raise tw.HeaderError(
                    f"the response has Content-Encoding {value[:40]!r}, which was not requested"
                )
        header_length = tw.header_length(pairs)
        buffer = tw.BodyBuffer(content_length, header_length, max_nbytes=self.max_body)
        return ResponseBody(buffer, header_length)


# --- requests ------------------------------------------------------------------------------------


def parse_url(url: str) -> tuple[str, str]:
    """Split the URL of a server into its origin and the path before ``/v2``. Raises ValueError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"the URL of a server must be http or https, and have a host: {url!r}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("the URL of a server must not have a query, a fragment or credentials")
    if parts.port == 0:
        raise ValueError(f"the URL of a server must not have port 0: {url!r}")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def model_path(model: str, version: str | None = None) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def check_headers(headers: Headers | None) -> dict[str, str]:
    """Return a copy of the headers. Raises ValueError for headers that the client itself sets."""
    for name in headers or ():
        if name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"{name} is set by the client itself")
    return dict(headers or {})


def check_timeout(seconds: float | None) -> float | None:
    """Return the timeout. Raises ValueError for 0, which means no timeout in aiohttp."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"timeout must be a positive number of seconds or None, not {seconds}")
    return seconds


def encode(
    inputs: Inputs,
    outputs: Outputs | None,
    binary_outputs: bool,
    id: str | None,
    parameters: Mapping[str, Any] | None,
) -> tw.Frame:
    """Encode the arguments of ``infer``.

    A ``binary_data_output`` in ``parameters`` takes precedence over ``binary_outputs``.
    """
    if isinstance(inputs, Mapping):
        inputs = [
            value if isinstance(value, tw.Tensor) else tw.Tensor(name, value)
            for name, value in inputs.items()
        ]
    if isinstance(outputs, str):
        raise TypeError("outputs must be a list of names, not a str")
    requested = None
    if outputs is not None:
        requested = [tw.RequestedOutput(o) if isinstance(o, str) else o for o in outputs]
    default = {"binary_data_output": True} if binary_outputs else {}
    request = tw.InferRequest(
        inputs, requested, id=id, parameters={**default, **(parameters or {})}
    )
    return tw.encode_request(request)


# --- errors --------------------------------------------------------------------------------------


def connection_error_text(request: Request, origin: str, error: Exception) -> str:
    """Return the message of the exception for a failed exchange.

    The message of the HTTP library is shortened, because it may contain a whole response.
    """
    reason = str(error)[:_MAX_REASON_LENGTH] or type(error).__name__
    return f"{request.method} {origin}{request.path}: {reason}"


def server_error(status: int, reason: str | None, body: bytes) -> InferenceServerError:
    """Return the exception for an error response.

    The Content-Type is ignored, because Triton sends JSON errors as ``text/plain`` (WIRE.md 8).
    """
    try:
        message = read_json(body, _DEFAULT_LIMITS.max_nesting)["error"]
        if not isinstance(message, str):
            raise TypeError
    except (ValueError, TypeError, LookupError):
        message = body.decode("utf-8", "replace").strip()
    message = message[:_MAX_MESSAGE_LENGTH] or f"HTTP status {status} {reason or ''}".rstrip()
    return InferenceServerError(message, status=status)
