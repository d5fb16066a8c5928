"""What HTTP headers say about a body: header names, media types, the length of the JSON header."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, Protocol

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
