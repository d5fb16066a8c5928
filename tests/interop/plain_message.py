"""A message as bytes, and its JSON as a tree that keeps duplicate keys and number literals."""

from __future__ import annotations

import codecs
import copy
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorwire as tw
from support import reference

INVALID = 0x10FF00  # in the tree, an invalid byte is this code point plus the byte
SURROGATE = re.compile("[\ud800-\udfff]")
DIGITS = re.compile(r"[ \t\n\v\f\r]*([+-]?\d+)")


def _keep(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    invalid = error.object[error.start : error.end]
    return "".join(chr(INVALID + byte) for byte in invalid), error.end


codecs.register_error("tensorwire.keep", _keep)


@dataclass(frozen=True)
class Literal:
    """A number, NaN or an infinity, as written."""

    text: str


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

    def drop(self, key: str) -> None:
        self[:] = [member for member in self if member[0] != key]


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
    if not any(ord(character) >= INVALID for character in text):
        return text.encode()
    return b"".join(
        bytes([ord(character) - INVALID]) if ord(character) >= INVALID else character.encode()
        for character in text
    )


def _text(tree: Any) -> str:
    if isinstance(tree, Members):
        return "{" + ",".join(f"{_text(key)}:{_text(value)}" for key, value in tree) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_text, tree)) + "]"
    return tree.text if isinstance(tree, Literal) else json.dumps(tree, ensure_ascii=False)


def raw_bytes(string: str) -> bytes:
    """Return the bytes of a string as Triton has them, including lone surrogates."""
    return b"".join(
        bytes([ord(character) - INVALID])
        if ord(character) >= INVALID
        else character.encode("utf-8", "surrogatepass")
        for character in string
    )


def members(tree: Any, key: str) -> list[Members]:
    """Return the objects in the list with this key of the root."""
    found = tree.get(key) if isinstance(tree, Members) else None
    return [item for item in found if isinstance(item, Members)] if type(found) is list else []


def parameter(item: Members, key: str) -> Any:
    """Return a parameter of the root, an input or an output, or None."""
    parameters = item.get("parameters")
    return parameters.get(key) if isinstance(parameters, Members) else None


def size(item: Members) -> int:
    """Return the declared byte size of this input if it is an integer."""
    literal = parameter(item, "binary_data_size")
    is_number = isinstance(literal, Literal) and literal.text.isdecimal()
    return int(literal.text) if is_number else 0


def extent(item: Members) -> int:
    """Return the bytes that the dimensions need, ignoring zeros; a BYTES element counts 16."""
    shape, datatype = item.get("shape"), item.get("datatype")
    dims = [number(dim) for dim in shape] if type(shape) is list else []
    nbytes = reference.SIZES.get(datatype, 16) if isinstance(datatype, str) else 16
    return math.prod(dim for dim in dims if dim) * nbytes


def n_dims(item: Members) -> int:
    shape = item.get("shape")
    return len(shape) if type(shape) is list else 0


def number(literal: Any) -> int:
    """Return a dimension, or 0 if it is not an integer that Triton accepts."""
    text = literal.text if isinstance(literal, Literal) else ""
    return int(text) if text.isdecimal() and len(text) < 30 else 0


@dataclass(frozen=True)
class Message:
    """A body, the value of its header length field, its model, and how to decode it.

    `raw_input` declares the input of a model with one input, which accepts raw requests.
    """

    id: str
    body: bytes
    header_length: str | None
    model: str = "any"
    raw_input: tw.TensorSpec | None = None
    check_bool: bool = True

    def read_length(self) -> int | None:
        """Return the header length as Triton reads it, with C's atoi."""
        if self.header_length is None:
            return len(self.body)
        digits = DIGITS.match(self.header_length)
        length = max(-(2**63), min(int(digits[1][:5000]), 2**63 - 1)) if digits else 0
        length = (length + 2**31) % 2**32 - 2**31  # wraps around like an int in C
        return length if 0 <= length <= len(self.body) else None

    def parts(self) -> tuple[bytes, bytes]:
        """Return the JSON and the bytes after it. Raise ValueError for an invalid length."""
        length = self.read_length()
        if length is None:
            raise ValueError(f"a header length of {self.header_length}")
        return self.body[:length], self.body[length:]

    def tree(self) -> Any:
        """Return the JSON as a tree, or None."""
        try:
            return read(self.parts()[0])
        except (ValueError, RecursionError):
            return None

    def of(self, text: bytes, blob: bytes) -> Message:
        """Return the same message with other parts."""
        is_silent = self.header_length is None and not blob
        return replace(self, body=text + blob, header_length=None if is_silent else str(len(text)))

    def changed(self, change: Callable[[Any], None]) -> Message:
        """Return the message after changing its tree in place, or itself if it has no tree."""
        tree = self.tree()
        if tree is None:
            return self
        new = copy.deepcopy(tree)
        change(new)
        return self if new == tree else self.of(write(new), self.parts()[1])
