"""The JSON header: its length, its schema (which is its validation), and how it is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from operator import index
from typing import Any, Protocol, TypeVar

import msgspec

from .errors import HeaderError, number_text

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
EXTENSION = "binary_tensor_data"

# Gateways that carry the header length in the media type instead (WIRE.md 1).
_GATEWAY_TYPES = (
    "application/vnd.sagemaker-triton.binary+json",
    "application/vnd.vertex-ai-triton.binary+json",
)

# `None` is not told from absence (WIRE.md 3), and not written of an OutputEntry, the only one that
# is written. gc=False: they live for one call, and nothing refers back to them.


class TensorEntry(msgspec.Struct, gc=False):
    """One entry of ``inputs`` in a request, or of ``outputs`` in a response."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None
    data: Any = None


class OutputEntry(msgspec.Struct, omit_defaults=True, gc=False):
    """One entry of ``outputs`` in a request, read or written."""

    name: str
    parameters: dict[str, Any] | None = None


class RequestHeader(msgspec.Struct, gc=False):
    """The JSON of a request."""

    inputs: list[TensorEntry]
    id: str | None = None
    model_name: str | None = None
    model_version: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[OutputEntry] | None = None


class ResponseHeader(msgspec.Struct, gc=False):
    """The JSON of a response."""

    outputs: list[TensorEntry]
    model_name: str | None = None
    model_version: str | None = None
    id: str | None = None
    parameters: dict[str, Any] | None = None


decode_request_header = msgspec.json.Decoder(RequestHeader).decode
decode_response_header = msgspec.json.Decoder(ResponseHeader).decode

_Header = TypeVar("_Header", RequestHeader, ResponseHeader)


# --- the header's length ---------------------------------------------------------------------


class HasItems(Protocol):
    """A mapping, or the headers of an HTTP library that may hold a name twice."""

    def items(self) -> Iterable[tuple[Any, Any]]: ...


def header_length(headers: HasItems | Iterable[tuple[Any, Any]]) -> int | None:
    """The length of the JSON header in bytes as HTTP headers announce it; ``None``: all is JSON.

    ``headers`` is a mapping or an iterable of pairs, of ``str`` or ``bytes``, in any case. The
    length stands in ``Inference-Header-Content-Length``, or in the media type of SageMaker and
    Vertex AI. Raises HeaderError when it is no number, or when two places disagree (WIRE.md 1).
    """
    pairs = headers.items() if hasattr(headers, "items") else headers
    found: int | None = None
    for key, value in pairs:
        name = _text(key).lower()
        length: int | None
        if name == HEADER_LENGTH.lower():
            length = parse_header_length(value)
        elif name == "content-type":
            length = _gateway_length(_text(value))
        else:
            continue
        if length is not None:
            found = _agreeing(found, length)
    return found


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise TypeError(f"HTTP headers are str or bytes, not {type(value).__name__}")
    return value


_BLANKS = " \t"  # of HTTP; Python's strip takes others, too


def _gateway_length(media_type: str) -> int | None:
    kind, _, parameters = media_type.partition(";")
    if kind.strip(_BLANKS).lower() not in _GATEWAY_TYPES:
        return None
    found = None
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip(_BLANKS).lower() != "json-header-size":
            continue
        value = value.strip(_BLANKS)
        is_quoted = len(value) >= 2 and value[0] == value[-1] == '"'
        length = parse_header_length(value[1:-1] if is_quoted else value)
        found = _agreeing(found, length)
    return found


def _agreeing(found: int | None, length: int) -> int:
    if found is not None and found != length:
        raise HeaderError(
            f"the header length is announced twice, as {found} and as {length}",
            expected=found,
            actual=length,
        )
    return length


_MAX_DIGITS = 20  # of 2^64


def parse_header_length(value: int | str | bytes) -> int:
    """The header length as a number: an int of 0 or more, or ASCII digits and nothing else."""
    if isinstance(value, bytes) and value.isdigit() and len(value) <= _MAX_DIGITS:
        return int(value)
    if isinstance(value, str | bytes):
        return _parse_digits(_text(value))
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"a header length is int, str or bytes, not {type(value).__name__}")
    length = index(value)
    if length < 0:
        raise HeaderError(
            f"{HEADER_LENGTH} is negative: {number_text(length)}", expected=0, actual=length
        )
    return length


def _parse_digits(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
        raise HeaderError(f"{HEADER_LENGTH} is not a number: {shown}")
    return int(text)


# --- reading ---------------------------------------------------------------------------------


def read_tolerantly(
    text: bytes, schema: type[_Header], error: Exception, whole_body: bool
) -> _Header:
    """Read the JSON that the strict decoder refused with ``error``.

    Bare NaN and Infinity are accepted, as Triton writes them. Anything else raises HeaderError with
    the byte or the member that is wrong, or with a server's own message when the JSON is that.
    """
    if b"NaN" in text or b"Infinity" in text:
        try:
            tree = json.loads(text.decode(), parse_float=_in_range)
            if b"\\ud" in text.lower():  # a surrogate, which must not stand alone
                json.dumps(tree, ensure_ascii=False).encode()
            return msgspec.convert(tree, schema)
        except (ValueError, RecursionError) as second:
            error = second
    raise _refuse(text, error, whole_body) from None


def _in_range(text: str) -> float:
    number = float(text)
    if math.isinf(number):  # as msgspec: only the literal Infinity is infinite
        raise ValueError("number out of range")
    return number


def _refuse(text: bytes, error: Exception, whole_body: bool) -> HeaderError:
    """The words for what a parser did not like."""
    if isinstance(error, RecursionError):
        return HeaderError("the JSON header is nested too deep")
    if isinstance(error, msgspec.ValidationError):
        return _server_error(text) or HeaderError(
            f"the JSON header does not fit the protocol: {error}"
        )
    if not text.strip():
        return HeaderError("the JSON header is empty", offset=0)
    reason, offset = f"malformed: {_reason(error)}", _position(error, len(text))
    if isinstance(error, UnicodeDecodeError):  # whose position is within one string
        try:
            text.decode()
        except UnicodeDecodeError as whole:
            reason, offset = f"not UTF-8: {whole.reason}", whole.start
    # What tensor bytes behind the JSON look like to a parser that was not told where it ends.
    is_overrun = whole_body and ("UTF-8" in reason or "trailing" in reason)
    hint = f" (is {HEADER_LENGTH} missing?)" if is_overrun else ""
    return HeaderError(f"the JSON header is {reason} at byte {offset}{hint}", offset=offset)


_BYTE = re.compile(r" \(byte ([0-9]+)\)$")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg.replace("Extra data", "trailing characters").removesuffix(" at")
    if isinstance(error, UnicodeEncodeError):
        return "a lone surrogate"
    reason = _BYTE.sub("", str(error)).removeprefix("JSON is malformed: ")
    return reason.replace("Input data was truncated", "it ends too early")


def _position(error: Exception, nbytes: int) -> int:
    if isinstance(error, json.JSONDecodeError):
        return len(error.doc[: error.pos].encode())
    found = _BYTE.search(str(error))
    return int(found[1]) if found else nbytes  # truncated input: at its end


class _ServerError(msgspec.Struct):
    error: str


def _server_error(text: bytes) -> HeaderError | None:
    try:
        message = msgspec.json.decode(text, type=_ServerError).error
    except (ValueError, RecursionError):
        return None
    return HeaderError(f"the body is a server's error, not a message: {message[:500]}")
