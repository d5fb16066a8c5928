"""The HTTP headers of a message: names, media types, and the length of the JSON header."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Protocol

from .errors import HeaderError, format_number, format_value

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
EXTENSION = "binary_tensor_data"

# The media types of SageMaker and Vertex AI have the header length as a parameter (WIRE.md 1).
_GATEWAY_TYPES = (
    "application/vnd.sagemaker-triton.binary+json",
    "application/vnd.vertex-ai-triton.binary+json",
)
_WHITESPACE = " \t"  # of HTTP headers; str.strip() without arguments removes more
_MAX_DIGITS = 20  # 2^64 has 20 digits
_MAX_ITEMS = 9  # of a list


class HasItems(Protocol):
    """A mapping, or the headers of an HTTP library, which may contain a name more than once."""

    def items(self) -> Iterable[tuple[str | bytes, str | bytes]]: ...


def header_length(headers: HasItems | Iterable[tuple[str | bytes, str | bytes]]) -> int | None:
    """Return the length of the JSON header that the HTTP headers of a message declare.

    The length is the value of ``Inference-Header-Content-Length``, or a parameter of the media
    types of SageMaker and Vertex AI (WIRE.md 1).

    Parameters
    ----------
    headers : mapping or iterable of pairs
        HTTP headers as ``str`` or ``bytes``. The case of names does not matter.

    Returns
    -------
    int or None
        The length in bytes, which is 0 for a raw binary request (WIRE.md 5). None if the headers
        declare no length: then the whole body is JSON.

    Raises
    ------
    HeaderError
        A length is not a number, the headers contain different lengths, or the body is multipart.
    TypeError
        ``headers`` cannot be iterated over, or a name or value has the wrong type.

    Examples
    --------
    >>> import tensorwire as tw
    >>> tw.header_length({"Inference-Header-Content-Length": "93", "Content-Length": "112"})
    93
    >>> tw.header_length([(b"content-type", b"application/json")]) is None
    True
    """
    pairs = headers.items() if hasattr(headers, "items") else headers
    found: int | None = None
    is_multipart = False
    for key, value in pairs:
        name = _decode_latin1(key).lower()
        length: int | None
        if name == HEADER_LENGTH.lower():
            length = parse_header_length(value)
        elif name == "content-type":
            media_type = _decode_latin1(value)
            is_multipart = media_type.lower().startswith("multipart/")
            length = _gateway_length(media_type)
        else:
            continue
        if length is not None:
            found = _same_length(found, length)
    if found is None and is_multipart:
        raise HeaderError("the body is multipart, which is no message: send JSON or binary data")
    return found


def _decode_latin1(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise TypeError(f"HTTP headers must be str or bytes, not {type(value).__name__}")
    return value


def _gateway_length(media_type: str) -> int | None:
    """Return the header length in the media type of a gateway, or None."""
    name, _, parameters = media_type.partition(";")
    if name.strip(_WHITESPACE).lower() not in _GATEWAY_TYPES:
        return None
    found = None
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip(_WHITESPACE).lower() != "json-header-size":
            continue
        value = value.strip(_WHITESPACE)
        is_quoted = len(value) >= 2 and value[0] == value[-1] == '"'
        length = _parse_digits(value[1:-1] if is_quoted else value)
        found = _same_length(found, length)
    return found


def _same_length(found: int | None, length: int) -> int:
    """Return ``length``. Raises HeaderError if another one was found before."""
    if found is not None and found != length:
        raise HeaderError(
            f"the headers declare two header lengths, {format_number(found)} and "
            f"{format_number(length)}",
            expected=found,
            actual=length,
        )
    return length


def parse_header_length(value: int | str | bytes) -> int:
    """Return a header length as an int.

    Text must consist of 1 to 20 ASCII digits, which blanks may surround. A proxy may have joined
    repeated headers to a list, whose items must be equal (WIRE.md 1). Raises HeaderError for other
    text and for negative integers, and TypeError for other types.
    """
    if isinstance(value, bytes) and value.isdigit() and len(value) <= _MAX_DIGITS:
        return int(value)
    if isinstance(value, str | bytes):
        found: int | None = None
        for item in _decode_latin1(value).split(",", _MAX_ITEMS - 1):
            found = _same_length(found, _parse_digits(item.strip(_WHITESPACE)))
        assert found is not None  # split returns at least one item
        return found
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"a header length must be int, str or bytes, not {type(value).__name__}")
    length = index(value)
    if length < 0:
        raise HeaderError(
            f"{HEADER_LENGTH} is negative: {format_number(length)}", expected=0, actual=length
        )
    return length


def _parse_digits(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise HeaderError(f"{HEADER_LENGTH} is not a number: {format_value(text)}")
    return int(text)
