"""The errors of calls: responses that are not successful, and connections that fail."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import tensorwire as tw

from ..errors import format_count

CLOSED = "the client was closed during the call"
MAY_REQUIRE_TLS = "if the server requires TLS, the URL must begin with"
HOW_TO_SEND_JSON = "call infer with binary_inputs=False"
CallError: TypeAlias = OSError | tw.TensorwireError
_MAX_MESSAGE_LENGTH = 2000
_MAX_REASON_LENGTH = 500


class InferenceServerError(tw.TensorwireError):
    """The server responded with an HTTP status that is not 2xx, or with a gRPC status of an error.

    Attributes
    ----------
    status : int
        The HTTP status of the response, or the one that corresponds to a gRPC status: 404 for
        NOT_FOUND, for example. 500 for an error in a stream, which has no status.
    message : str
        The error message of the server, shortened to 2000 characters: the ``error`` member of a
        JSON body, or the text of any other body.
    model : str or None
        The name of the model. None if the request does not concern a model.
    retry_after : float or None
        The number of seconds in the Retry-After header of the response. None if there is none.
    id : str or None
        The id of the request that has failed, for an error in a stream that names it.

    Examples
    --------
    >>> from tensorwire.client import Client, InferenceServerError
    >>> client = Client("localhost:8000")
    >>> try:                                              # doctest: +SKIP
    ...     client.infer("resnet50", {"x": np.ones(3)})
    ... except InferenceServerError as error:
    ...     print(error.status, error.model, error.message)
    404 resnet50 model 'resnet50' is not known: the models are ['resnet18']
    """

    message: str = ""
    model: str | None = None
    retry_after: float | None = None
    id: str | None = None


class Operation(NamedTuple):
    """What a request asks of the server: the subject of every error of its call."""

    method: str  # of HTTP, or of the gRPC service
    url: str
    model: str | None = None
    via: str = ""  # which proxy is used
    at: str = ""  # which port is used, if the URL has none

    def named(self, error: CallError) -> Exception:
        """Return the exception for an error whose text does not begin with the method and URL."""
        named: Exception = error
        reason = str(error)
        if isinstance(error, OSError):
            kind = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
            reason = (reason[:_MAX_REASON_LENGTH] or type(error).__name__) + self.at
            named = kind()
            named.__cause__ = error.__cause__ or error
        else:
            error.url = self.url
            if isinstance(error, InferenceServerError):
                error.model = self.model
        named.args = (f"{self.method} {self.url}: {reason}{self.via}",)
        return named


def server_error(status: int, message: str, hint: str = "") -> InferenceServerError:
    message = message[:_MAX_MESSAGE_LENGTH]
    text = f"status {status}: {message}" if message else f"status {status}"
    error = InferenceServerError(f"{text} ({hint})" if hint else text, status=status)
    error.message = message
    return error


def too_long_error(
    kind: type[tw.HeaderError | tw.EncodeError],
    subject: str,
    nbytes: int,
    limit: int,
    limit_name: str = "limit",
    status: int | None = None,
) -> tw.TensorwireError:
    length = format_count("byte", nbytes)
    text = f"{subject} is {length} long; the {limit_name} is {limit}"
    return kind(text, expected=limit, actual=nbytes, status=status)
