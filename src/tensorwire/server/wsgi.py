"""Arrays in WSGI applications, such as those of Flask and Django.

``read_tensors`` returns the arrays, strings and JSON values of a request, and ``TensorResponse``
sends them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from .._codec.limits import DEFAULT_LIMITS, Limits
from .._codec.messages.tensor import TensorSpec
from ..arguments import check_type
from ..sizes import DEFAULT_MAX_BODY_NBYTES, PIECE_NBYTES
from .body import RequestBody
from .errors import ClientDisconnectedError
from .framing import FRAMING_HEADERS
from .values import FRAME_HEADERS, Content, frame_of, values_of

__all__ = ["TensorResponse", "read_tensors"]

# WSGI has these two headers without the prefix HTTP_.
_PLAIN_HEADERS = ("CONTENT_TYPE", "CONTENT_LENGTH")


def read_tensors(
    environ: dict[str, Any],
    *,
    inputs: Sequence[TensorSpec] = (),
    max_body_nbytes: int = DEFAULT_MAX_BODY_NBYTES,
    limits: Limits = DEFAULT_LIMITS,
) -> dict[str, Any]:
    """Read the arrays, strings and JSON values of an inference request.

    Parameters
    ----------
    environ : dict
        The WSGI environment: ``request.environ`` in Flask and Django. The body must not have been
        read before. What the request asks for is kept in it, for ``TensorResponse``.
    inputs, max_body_nbytes, limits
        As for ``tensorwire.server.starlette.read_tensors``.

    Returns
    -------
    dict
        The inputs and parameters by name, as those of ``starlette.read_tensors``.

    Raises
    ------
    DecodeError, RequestError
        The request is not valid. Its ``status`` is the HTTP status to respond with: 400, 413 or
        415.
    ClientDisconnectedError
        The client closed the connection before the body had arrived.

    Examples
    --------
    A WSGI application that doubles an array:

    >>> import json
    >>> import tensorwire as tw
    >>> from tensorwire.server.wsgi import TensorResponse, read_tensors
    >>> def app(environ, start_response):
    ...     try:
    ...         values = read_tensors(environ, inputs=[tw.TensorSpec("x", "FP32", [-1])])
    ...         response = TensorResponse({"y": values["x"] * 2}, environ)
    ...     except tw.TensorwireError as error:
    ...         start_response(f"{error.status} Error", [("Content-Type", "application/json")])
    ...         return [json.dumps({"error": str(error)}).encode()]
    ...     return response(environ, start_response)
    """
    body = RequestBody(_headers(environ), max_body_nbytes)
    for chunk in _chunks(environ, body.framing.content_length):
        body.buffer.write(chunk)
    return values_of(body.decode(limits), inputs, environ)


def _headers(environ: dict[str, Any]) -> Iterator[tuple[bytes, bytes]]:
    for name in FRAMING_HEADERS:
        key = name.upper().replace("-", "_")
        value = environ.get(key if key in _PLAIN_HEADERS else f"HTTP_{key}")
        if value:  # some servers set an empty CONTENT_LENGTH
            yield name.encode(), value.encode("latin-1", "replace")


def _chunks(environ: dict[str, Any], content_length: int | None) -> Iterator[bytes]:
    """Read the body. Without Content-Length, only some servers let the application find its end."""
    remaining = content_length
    if remaining is None:
        remaining = sys.maxsize if environ.get("wsgi.input_terminated") else 0
    stream = environ["wsgi.input"]
    try:
        while chunk := stream.read(min(remaining, PIECE_NBYTES)):
            yield chunk
            remaining -= len(chunk)
    except (OSError, ValueError) as error:  # a ValueError of cheroot: a chunk has been cut off
        raise ClientDisconnectedError("the client closed the connection") from error


class TensorResponse:
    """A response with arrays, strings and JSON values: a WSGI application.

    Parameters
    ----------
    content : mapping, InferResponse or Frame
        The values by name, as for ``tensorwire.server.starlette.TensorResponse``. The memory of the
        arrays must not change until it is sent.
    environ : dict, optional
        The WSGI environment, from which ``read_tensors`` has read the request. The response has the
        outputs that the request asks for, as that of ``starlette.TensorResponse``.
    status : int, default 200
        The HTTP status.
    headers : iterable of (str, str), optional
        Additional headers. Content-Type, Content-Length and Inference-Header-Content-Length are
        those of the frame (WIRE.md 1).

    Attributes
    ----------
    frame : Frame
        The encoded response, with its headers.

    Raises
    ------
    RequestError
        Its ``status`` is 400: the request asks for an output that does not exist, or for JSON that
        cannot represent an output: FP16, BF16, or BYTES that are not UTF-8.
    EncodeError, TypeError
        A value cannot be sent.
    ValueError
        HTTP does not define ``status``, or ``read_tensors`` has not read the request.
    """

    def __init__(
        self,
        content: Content,
        environ: dict[str, Any] | None = None,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        if environ is not None:
            check_type("environ", environ, dict, "a WSGI environment")
        self.frame = frame_of(content, environ)
        self.status = HTTPStatus(status)
        self.headers = tuple(headers)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        others = (pair for pair in self.headers if pair[0].lower() not in FRAME_HEADERS)
        headers = [*self.frame.headers.items(), *others]
        start_response(f"{self.status.value} {self.status.phrase}", headers)
        return map(bytes, self.frame.chunks(PIECE_NBYTES))  # WSGI requires bytes


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
