"""The errors of the server.

``Service.describe_failure`` has the text and status of each, and ``grpc_calls`` the codes of gRPC.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from ..arguments import check_type
from ..errors import DecodeError, DecompressionError, TensorwireError, format_value

log = logging.getLogger("tensorwire.server")
ERROR_STATUSES = frozenset(status for status in HTTPStatus if status >= 400)


class RequestError(TensorwireError):
    """A model cannot answer a request, and the client receives the reason.

    A model raises it. It is not logged.

    Parameters
    ----------
    text : str
        The text of the error. If it is empty, it is the phrase of the status.
    status : int, default 400
        The HTTP status, 400 to 599. gRPC clients receive the code for it.
    tensor : str, optional
        The name of the input or output that the error is about.

    Raises
    ------
    TypeError
        ``text`` is not a str, or ``status`` is not an integer.
    ValueError
        ``status`` is not the status of an error.

    Examples
    --------
    >>> from tensorwire.server import RequestError
    >>> def classify(request):
    ...     image = request["image"]
    ...     if image.shape[0] < 32:
    ...         raise RequestError(f"the image has {image.shape[0]} rows: 32 are required", 422)
    ...     return {"label": 0}
    """

    status = 400

    def __init__(self, text: str, status: int = 400, *, tensor: str | None = None) -> None:
        check_type("text", text, str, "a str")
        if status not in ERROR_STATUSES:
            raise ValueError(f"status must be that of an error, not {format_value(status)}")
        # gRPC and JSON in UTF-8 cannot contain lone surrogates. In a stream of gRPC, an empty text
        # would not be an error.
        sent = text.encode(errors="backslashreplace").decode() or HTTPStatus(status).phrase
        super().__init__(sent, tensor=tensor, status=int(status))


class InputError(RequestError):
    """The inputs of a request are not those that the model or the route takes.

    An input is missing or unexpected, or its datatype or shape is not the declared one.
    """


class InvalidOutputError(TensorwireError):
    """A model failed, or returned something other than the outputs that it declares."""


class ClientDisconnectedError(TensorwireError):
    """The client closed the connection before its request had arrived or begun to be processed.

    No response can be sent. ``status`` is 499.
    """

    status = 499


class UnsupportedEncodingError(DecompressionError):
    """The Content-Encoding of the body is not supported. ``status`` is 415.

    The supported ones are gzip, deflate, identity and, with Python 3.14 or ``tensorwire[zstd]``,
    zstd.
    """

    status = 415


class ReceiveTimeoutError(DecodeError):
    """The body did not arrive in time. ``status`` is 408."""

    status = 408


class OverloadedError(TensorwireError):
    """A limit of what the server does at once is reached. ``status`` is 503."""

    status = 503
    limit: str = ""
    """The name of the option with the limit."""

    @classmethod
    def by(cls, limit: str, problem: str) -> OverloadedError:
        error = cls(f"the server is overloaded: {problem}")
        error.limit = limit
        return error

    @classmethod
    def by_limit_concurrency(cls, limit: int) -> OverloadedError:
        return cls.by("limit_concurrency", f"limit_concurrency is {limit}")


SHUTTING_DOWN = TensorwireError("the server is shutting down", status=503)
