"""The errors of calls: responses that are not successful, and connections that fail."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import tensorwire as tw

from ..errors import InferenceServerError, format_count

CLOSED = "the client was closed during the call"
MAY_REQUIRE_TLS = "if the server requires TLS, the URL must begin with"
HOW_TO_SEND_JSON = "call infer with binary_inputs=False"
CallError: TypeAlias = OSError | tw.TensorwireError
_MAX_MESSAGE_LENGTH = 2000
_MAX_REASON_LENGTH = 500


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
    kind: type[tw.DecodeError | tw.EncodeError],
    subject: str,
    nbytes: int,
    limit: int,
    limit_name: str = "limit",
) -> tw.TensorwireError:
    length = format_count("byte", nbytes)
    text = f"{subject} is {length} long; the {limit_name} is {limit}"
    return kind(text, expected=limit, actual=nbytes)
