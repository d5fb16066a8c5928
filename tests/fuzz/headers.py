"""A check of `header_length`, with a second reader of the HTTP headers."""

from __future__ import annotations

from typing import Any

import tensorwire as tw
from fuzz.comparison import check_error

NAME = "inference-header-content-length"
MEDIA_TYPES = tuple(
    f"application/vnd.{gateway}-triton.binary+json" for gateway in ("sagemaker", "vertex-ai")
)
MAX_DIGITS = 20
MAX_ITEMS = 9
LOWER = {ord(c): ord(c) + 32 for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def check_header_length(fields: list[tuple[str, str]], form: int = 0) -> None:
    """All headers agree on one length, or on none, or HeaderError is raised.

    The form is that of the argument: pairs of str, a dict of them, pairs of bytes, or a mixed dict.
    """
    if form % 2:
        fields = list(dict(fields).items())
    headers: Any = dict(fields) if form == 1 else fields
    if form == 2:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    elif form == 3:
        headers = {name: value.encode("latin-1") for name, value in fields}
    lengths = announced(fields)
    try:
        found = tw.header_length(headers)
    except tw.HeaderError as error:
        check_error(error, 0)
        assert None in lengths or len(lengths) > 1
        return
    assert None not in lengths
    assert lengths == (set() if found is None else {found})


def announced(headers: list[tuple[str, str]]) -> set[int | None]:
    """Return every declared length (WIRE.md 1). None represents a length that is not a number."""
    lengths: set[int | None] = set()
    for name, value in headers:
        key = lowered(name)
        if key == NAME:
            items = value.split(",")
            lengths |= {number(item.strip(" \t")) for item in items}
            if len(items) > MAX_ITEMS:
                lengths.add(None)
        elif key == "content-type":
            media_type, *parameters = value.split(";")
            if lowered(media_type.strip(" \t")) in MEDIA_TYPES:
                for parameter in parameters:
                    key, _, text = parameter.partition("=")
                    if lowered(key.strip(" \t")) == "json-header-size":
                        lengths.add(number(unquoted(text.strip(" \t"))))
    return lengths


def unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text.startswith('"') and text.endswith('"') else text


def lowered(text: str) -> str:
    """Convert ASCII letters to lower case; other characters in a header's name have no case."""
    return text.translate(LOWER)


def number(text: str) -> int | None:
    if not 1 <= len(text) <= MAX_DIGITS or any(c not in "0123456789" for c in text):
        return None
    return int(text)
