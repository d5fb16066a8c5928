"""The exceptions for what grpcio reports."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import tensorwire as tw

from .errors import CLOSED, connection_error, server_error, too_long_error

if TYPE_CHECKING:
    from .grpc_channels import Channel, GrpcRequest

_STATUSES = {  # those of the other codes are 500
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}

# --- the texts of grpcio -------------------------------------------------------------------------

# A failed connection is UNAVAILABLE, which a server may also send. The debug string of the error is
# the same in both cases, and the state of the channel changes before or after the call ends. So the
# beginning of the text chooses the exception. Both exceptions are retried.
_CONNECTION_FAILED = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "empty address list",
    "DNS resolution failed",
    "errors resolving",
    "Stream removed",  # grpcio 1.85 puts it before the others below
    "Socket closed",
    "Transport closed",
    "recvmsg:",
    "sendmsg:",
    "GOAWAY received",
    "Received RST_STREAM",
    "keepalive timeout",
    "ping timeout",
)
_HTTP1 = "http1.x server"
# A message above a limit is RESOURCE_EXHAUSTED. A server may send this text, too, with longer
# numbers than int() accepts.
_TOO_LARGE = re.compile(
    r"(CLIENT|SERVER): (Sent|Received) message larger than max \((\d{1,20}) vs\. (\d{1,20})\)"
)
# What grpcio 1.85 reports for a compressed message, on either side.
_DECOMPRESSED_TOO_LARGE = "Decompressed message larger than max"
# What grpc.aio reports if it cannot write a request of a stream, before or after the status of the
# server, which it then replaces.
WRITE_FAILED = "Internal error from Core"


def call_error(channel: Channel, request: GrpcRequest, code: str, text: str) -> Exception:
    """Return the exception for a status other than OK and an expired deadline."""
    if code == "RESOURCE_EXHAUSTED":
        error = _size_error(request, text, channel.options.max_body)
        if error is not None:
            return error
    if code == "CANCELLED" and channel.is_closed:
        return connection_error(request, ConnectionError(CLOSED))
    if code == "UNAVAILABLE" and text.startswith(_CONNECTION_FAILED):
        if _HTTP1 in text:
            text = "the server speaks HTTP/1, and not gRPC: use an http:// URL"
        return connection_error(request, ConnectionError(text))
    return server_error(request, _STATUSES.get(code, 500), text)


def _size_error(request: GrpcRequest, text: str, max_body: int | None) -> Exception | None:
    """Return the exception for a message above a limit of grpcio; None for another text."""
    if text == _DECOMPRESSED_TOO_LARGE:
        if request.compression is not None:  # the server has rejected it
            return server_error(request, 413, text)
        problem = "the response is longer than the limit after decompression"
        return tw.HeaderError(problem, expected=max_body, status=413)
    found = _TOO_LARGE.search(text)
    if found is None:
        return None
    side, direction, actual, limit = found.groups()
    if side == "SERVER":
        return server_error(request, 413, text)
    if direction == "Received":
        return response_length_error(int(actual), int(limit))
    whose = "limit of the channel"
    return too_long_error(tw.EncodeError, "the gRPC message", int(actual), int(limit), whose)


def response_length_error(nbytes: int, limit: int) -> tw.HeaderError:
    """Return the exception for a response that is longer than the limit."""
    return too_long_error(tw.HeaderError, "the response", nbytes, limit, status=413)


def has_expired(code: str, started: float, seconds: float | None) -> bool:
    """Return whether the deadline of the call has expired, and not one of the server."""
    if seconds is None or code != "DEADLINE_EXCEEDED":
        return False
    return time.monotonic() - started >= seconds - 0.01
