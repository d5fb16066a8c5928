"""JSON as a tree that keeps duplicate keys, the text of numbers, and bytes that are not UTF-8."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

INVALID = 0x10FF00  # in the tree, an invalid byte is this code point plus the byte
SURROGATE = re.compile("[\ud800-\udfff]")


def _keep(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    invalid = error.object[error.start : error.end]
    return "".join(chr(INVALID + byte) for byte in invalid), error.end


codecs.register_error("tensorwire.keep", _keep)


class Literal:
    """A number, NaN or an infinity, as written."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class Members(list[list[Any]]):
    """A JSON object as [key, value] pairs in their order, including duplicate keys."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and list.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def get(self, key: str) -> Any:
        """Return the first value of this key, or None."""
        return next((value for own, value in self if own == key), None)

    def set(self, key: str, value: Any) -> None:
        """Replace the first value of this key, or add it."""
        for member in self:
            if member[0] == key:
                member[1] = value
                return
        self.append([key, value])

    def drop(self, *keys: str) -> None:
        self[:] = [member for member in self if member[0] not in keys]


def obj(**values: Any) -> Members:
    return Members([key, value] for key, value in values.items())


def read(text: bytes) -> Any:
    """Parse JSON into a tree. Raise ValueError or RecursionError for invalid JSON."""
    return json.loads(
        text.decode("utf-8", "tensorwire.keep"),
        object_pairs_hook=lambda pairs: Members(map(list, pairs)),
        parse_int=Literal,
        parse_float=Literal,
        parse_constant=Literal,
    )


def write(tree: Any) -> bytes:
    """Write the tree as text without white space."""
    text = SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", _text(tree))
    return text.encode() if is_text(text) else raw_bytes(text)


def _text(tree: Any) -> str:
    if isinstance(tree, Members):
        return "{" + ",".join([f"{_text(key)}:{_text(value)}" for key, value in tree]) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_text, tree)) + "]"
    return tree.text if isinstance(tree, Literal) else json.dumps(tree, ensure_ascii=False)


def raw_bytes(string: str) -> bytes:
    """Return the bytes of a string of the tree, including those of lone surrogates."""
    return b"".join(
        bytes([ord(character) - INVALID])
        if ord(character) >= INVALID
        else character.encode("utf-8", "surrogatepass")
        for character in string
    )


def is_text(string: str) -> bool:
    """Return whether a string of the tree has no invalid bytes."""
    return not string or ord(max(string)) < INVALID


def items(tree: Any, key: str) -> list[Members]:
    """Return the objects in the list with this key of the root."""
    found = tree.get(key) if isinstance(tree, Members) else None
    return [item for item in found if isinstance(item, Members)] if type(found) is list else []


def parameter(item: Members, key: str) -> Any:
    """Return a parameter of the root, an input or an output, or None."""
    parameters = item.get("parameters")
    return parameters.get(key) if isinstance(parameters, Members) else None


def set_parameter(item: Members, key: str, value: Any) -> None:
    if not isinstance(item.get("parameters"), Members):
        item.set("parameters", Members())
    item.get("parameters").set(key, value)


def size(item: Members) -> int:
    """Return the declared size of a tensor's binary data if it is an integer, or 0."""
    literal = parameter(item, "binary_data_size")
    is_number = isinstance(literal, Literal) and literal.text.isdecimal()
    return int(literal.text) if is_number else 0
