"""The exceptions for what grpcio reports."""

from __future__ import annotations

import re

import tensorwire as tw

from .errors import Operation, too_long_error

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
    r"(?P<side>CLIENT|SERVER): (?P<direction>Sent|Received) message larger than max "
    r"\((?P<actual>\d{1,20}) vs\. (?P<limit>\d{1,20})\)"
)
# What grpcio 1.85 reports for a compressed message, on either side.
_DECOMPRESSED_TOO_LARGE = "Decompressed message larger than max"
# What grpc.aio reports if it cannot write a request of a stream, before or after the status of the
# server, which it then replaces.
WRITE_FAILED = "Internal error from Core"


def status_error(
    operation: Operation, code: str, text: str, is_compressed: bool, max_body: int | None
) -> Exception:
    """Return the exception for a status other than OK. ``is_compressed`` is about the request."""
    if code == "RESOURCE_EXHAUSTED":
        if text == _DECOMPRESSED_TOO_LARGE and not is_compressed:
            problem = "the response is longer than the limit after decompression"
            return tw.HeaderError(problem, expected=max_body, status=413)
        found = _TOO_LARGE.search(text)
        if text == _DECOMPRESSED_TOO_LARGE or (found and found["side"] == "SERVER"):
            return operation.server_error(413, text)
        if found:
            actual, limit = int(found["actual"]), int(found["limit"])
            if found["direction"] == "Received":
                return response_length_error(actual, limit)
            whose = "limit of the channel"
            return too_long_error(tw.EncodeError, "the gRPC message", actual, limit, whose)
    if code == "UNAVAILABLE" and text.startswith(_CONNECTION_FAILED):
        if _HTTP1 in text:
            text = "the server speaks HTTP/1, and not gRPC: use an http:// URL"
        return operation.connection_error(ConnectionError(text))
    return operation.server_error(_STATUSES.get(code, 500), text)


def response_length_error(nbytes: int, limit: int) -> tw.HeaderError:
    return too_long_error(tw.HeaderError, "the response", nbytes, limit, status=413)
