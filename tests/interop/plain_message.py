"""A message as it stands on the wire, and its JSON as a tree that keeps what JSON readers lose."""

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

INVALID = 0x10FF00  # a byte that is no UTF-8 stands in the tree as this code point plus the byte
SURROGATE = re.compile("[\ud800-\udfff]")
DIGITS = re.compile(r"[ \t\n\v\f\r]*([+-]?\d+)")


def _keep(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    invalid = error.object[error.start : error.end]
    return "".join(chr(INVALID + byte) for byte in invalid), error.end


codecs.register_error("tensorwire.keep", _keep)


@dataclass(frozen=True)
class Literal:
    """A number, or NaN and its like, as it is spelt."""

    text: str


class Members(list[list[Any]]):
    """A JSON object: [key, value] in the order of the text, equal keys included."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and list.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def get(self, key: str) -> Any:
        """The first value of this key, or None."""
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
    """The tree; a ValueError or RecursionError where Python finds no JSON in UTF-8 or nearly so."""
    return json.loads(
        text.decode("utf-8", "tensorwire.keep"),
        object_pairs_hook=lambda pairs: Members(map(list, pairs)),
        parse_int=Literal,
        parse_float=Literal,
        parse_constant=Literal,
    )


def write(tree: Any) -> bytes:
    """The tree as text, without white space."""
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
    """The bytes of a string of a tree, as Triton has them: also of lone surrogates."""
    return b"".join(
        bytes([ord(character) - INVALID])
        if ord(character) >= INVALID
        else character.encode("utf-8", "surrogatepass")
        for character in string
    )


def members(tree: Any, key: str) -> list[Members]:
    """The objects in the list that is this member of the root."""
    found = tree.get(key) if isinstance(tree, Members) else None
    return [item for item in found if isinstance(item, Members)] if type(found) is list else []


def parameter(item: Members, key: str) -> Any:
    """A parameter of the root, an input or an output, or None."""
    parameters = item.get("parameters")
    return parameters.get(key) if isinstance(parameters, Members) else None


def size(item: Members) -> int:
    """The bytes that this input has in the body, if that is what it says."""
    literal = parameter(item, "binary_data_size")
    is_number = isinstance(literal, Literal) and literal.text.isdecimal()
    return int(literal.text) if is_number else 0


def extent(item: Members) -> int:
    """The bytes that the dimensions of an input ask for, but for its zeros; BYTES count as 16."""
    shape, datatype = item.get("shape"), item.get("datatype")
    dims = [number(dim) for dim in shape] if type(shape) is list else []
    nbytes = reference.SIZES.get(datatype, 16) if isinstance(datatype, str) else 16
    return math.prod(dim for dim in dims if dim) * nbytes


def n_dims(item: Members) -> int:
    shape = item.get("shape")
    return len(shape) if type(shape) is list else 0


def number(literal: Any) -> int:
    """A dimension; 0 where it is no integer that Triton takes."""
    text = literal.text if isinstance(literal, Literal) else ""
    return int(text) if text.isdecimal() and len(text) < 30 else 0


@dataclass(frozen=True)
class Message:
    """A body, what the header says of its length, the model it is for, and how we are to read it.

    `raw_input` is the declaration of a model with one input, to which raw requests can go.
    """

    id: str
    body: bytes
    header_length: str | None
    model: str = "any"
    raw_input: tw.TensorSpec | None = None
    check_bool: bool = True

    def read_length(self) -> int | None:
        """The header length as Triton reads it: what C's atoi makes of the text."""
        if self.header_length is None:
            return len(self.body)
        digits = DIGITS.match(self.header_length)
        length = max(-(2**63), min(int(digits[1][:5000]), 2**63 - 1)) if digits else 0
        length = (length + 2**31) % 2**32 - 2**31  # an int of C
        return length if 0 <= length <= len(self.body) else None

    def parts(self) -> tuple[bytes, bytes]:
        """The JSON, and the bytes behind it; a ValueError where the length is wrong."""
        length = self.read_length()
        if length is None:
            raise ValueError(f"a header length of {self.header_length}")
        return self.body[:length], self.body[length:]

    def tree(self) -> Any:
        """The JSON as a tree, or None."""
        try:
            return read(self.parts()[0])
        except (ValueError, RecursionError):
            return None

    def of(self, text: bytes, blob: bytes) -> Message:
        """The same message with other parts."""
        is_silent = self.header_length is None and not blob
        return replace(self, body=text + blob, header_length=None if is_silent else str(len(text)))

    def changed(self, change: Callable[[Any], None]) -> Message:
        """The message whose tree was changed in place; itself where it has none, or no change."""
        tree = self.tree()
        if tree is None:
            return self
        new = copy.deepcopy(tree)
        change(new)
        return self if new == tree else self.of(write(new), self.parts()[1])
