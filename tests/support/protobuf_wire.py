"""An independent writer of the wire format of protobuf, which can also write what is invalid."""

from __future__ import annotations

import struct
from typing import Any

VARINT, FIXED64, DELIMITED, START_GROUP, END_GROUP, FIXED32 = range(6)


def varint(value: int, n_more: int = 0) -> bytes:
    """Return an integer of 64 bits, with `n_more` bytes that do not change its value."""
    value %= 1 << 64
    groups = []
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    if n_more:
        return bytes([*groups, value | 0x80, *[0x80] * (n_more - 1), 0])
    return bytes([*groups, value])


def tag(number: int, wire_type: int, n_more: int = 0) -> bytes:
    return varint(number << 3 | wire_type, n_more)


def integer(number: int, value: int, n_more: int = 0) -> bytes:
    return tag(number, VARINT) + varint(value, n_more)


def delimited(
    number: int, *parts: bytes | str, length: int | None = None, n_more: int = 0
) -> bytes:
    """Return a field with a length, which may be a wrong one."""
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    declared = len(data) if length is None else length
    return tag(number, DELIMITED) + varint(declared, n_more) + data


def fixed32(number: int, value: float) -> bytes:
    return tag(number, FIXED32) + struct.pack("<f", value)


def fixed64(number: int, value: float) -> bytes:
    return tag(number, FIXED64) + struct.pack("<d", value)


def group(number: int, *parts: bytes, end: int | None = None) -> bytes:
    """Return a group; `end` is the number of its end if that is wrong."""
    last = tag(number if end is None else end, END_GROUP)
    return tag(number, START_GROUP) + b"".join(parts) + last


def nested_groups(n: int) -> bytes:
    """Return a group in a group, and so on, in `n` levels."""
    return tag(9, START_GROUP) * n + tag(9, END_GROUP) * n


def packed(number: int, values: Any) -> bytes:
    return delimited(number, *(varint(value) for value in values))
