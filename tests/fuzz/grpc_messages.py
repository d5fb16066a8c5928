"""gRPC messages as trees of fields: valid ones, and changes that a reader must understand.

A field is a list: number, wire type, value, and the kind of message that the value is, or None. The
value of such a message, and of a group, is a list of fields. The value of a field that has a length
is `bytes`. Others are integers. `bytes` in the place of a field are written as they are.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from support import reference
from support.protobuf_wire import (
    DELIMITED,
    END_GROUP,
    FIXED32,
    FIXED64,
    START_GROUP,
    VARINT,
    nested_groups,
    tag,
    varint,
)

Fields = list[Any]

# The fields of each kind of message that are messages.
MESSAGES: dict[str | None, dict[int, str]] = {
    "request": {4: "entry", 5: "tensor", 6: "output"},
    "response": {4: "entry", 5: "tensor"},
    "stream": {2: "response"},
    "metadata": {4: "specification", 5: "specification"},
    "tensor": {4: "entry", 5: "contents"},
    "output": {2: "entry"},
    "entry": {2: "value"},
}
KINDS = ("request", "response", "stream", "metadata")
RAW = {"request": 7, "response": 6}  # the field with raw contents
CONTENTS = {  # the field with the elements of a datatype
    **{"BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4},
    **{"UINT32": 4, "UINT64": 5, "FP32": 6, "FP64": 7, "BYTES": 8},
}
DATATYPES = sorted(reference.DATATYPES)
NAMES = (*("", "x", "y", "zz", "z\u20ac", "shared_memory_region", "binary_data", "classification"),
         *("binary_data_output", "binary_data_size", "a\0", "n" * 300))  # fmt: skip
NOT_UTF8 = (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"x\x80y")
NUMBERS = (
    *(0, 1, 2, 3, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33 + 1),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 128, 2**64 - 129, 2**64 - 2**31, 2**64 - 2**15),
)


# --- valid messages ------------------------------------------------------------------------------


def generated(kind: str, chooser: random.Random) -> Fields:
    """Return a message which is usually valid."""
    if kind == "stream":
        fields = [] if chooser.random() < 0.8 else [text(1, "out of order")]
        return [*fields, [2, DELIMITED, generated("response", chooser), "response"]]
    fields = [text(i, name(chooser)) for i in (1, 2, 3) if chooser.random() < 0.3]
    if kind == "metadata":
        fields += [text(2, name(chooser)) for _ in range(chooser.randrange(3))]
        for number in (4, 5) * chooser.randrange(3):
            dims = [chooser.choice((-1, 1, 2**40)) for _ in range(chooser.randrange(3))]
            members = [text(1, name(chooser)), text(2, "FP32"), *integers(3, dims, chooser)]
            fields.append([number, DELIMITED, members, "specification"])
        return fields
    fields += parameters(4, chooser)
    is_raw, contents = chooser.random() < 0.6, []
    for i in range(chooser.choice((1, 1, 1, 2, 3))):
        members, raw = tensor(f"{name(chooser)}{i}", is_raw, chooser)
        fields.append([5, DELIMITED, members, "tensor"])
        contents += raw
    fields += contents if kind == "request" else [[6, *raw[1:]] for raw in contents]
    if kind == "request" and chooser.random() < 0.2:
        for i in range(chooser.randrange(3)):
            output = [text(1, f"{name(chooser)}{i}"), *parameters(2, chooser)]
            fields.append([6, DELIMITED, output, "output"])
    return fields


def name(chooser: random.Random) -> str:
    return chooser.choice(NAMES) if chooser.random() < 0.1 else "x"


def text(number: int, value: str) -> Fields:
    return [number, DELIMITED, value.encode(), None]


def integers(number: int, values: list[int], chooser: random.Random) -> list[Fields]:
    """Return a repeated field of integers, packed or not."""
    if chooser.random() < 0.3:
        return [[number, VARINT, value, None] for value in values]
    return [[number, DELIMITED, b"".join(map(varint, values)), None]] if values else []


def parameters(number: int, chooser: random.Random) -> list[Fields]:
    entries = []
    while chooser.random() < 0.25:
        key = chooser.choice(NAMES) if chooser.random() < 0.3 else "k"
        value = parameter(chooser)
        entries.append([number, DELIMITED, [text(1, key), [2, DELIMITED, value, "value"]], "entry"])
    return entries


def parameter(chooser: random.Random) -> list[Fields]:
    number = chooser.randrange(6)
    if number == 0:
        return []
    if number == 3:
        return [text(3, chooser.choice(NAMES))]
    if number == 4:
        return [[4, FIXED64, chooser.getrandbits(64), None]]
    return [[number, VARINT, chooser.choice(NUMBERS), None]]


def tensor(name: str, is_raw: bool, chooser: random.Random) -> tuple[list[Fields], list[Fields]]:
    """Return the fields of a tensor's entry, and its raw contents."""
    datatype = chooser.choice(DATATYPES)
    dims = [chooser.choice((0, 1, 2, 3)) for _ in range(chooser.choice((0, 1, 1, 1, 2)))]
    fields = [text(1, name), text(2, datatype), *integers(3, dims, chooser)]
    fields += parameters(4, chooser)
    count = reference.element_count(datatype, dims)
    if is_raw:
        return fields, [[7, DELIMITED, raw_contents(datatype, count, chooser), None]]
    number = CONTENTS.get(datatype, 1)
    members: list[Fields]
    if datatype == "BYTES":
        members = [
            [8, DELIMITED, chooser.randbytes(chooser.randrange(4)), None] for _ in range(count)
        ]
    elif datatype in ("FP32", "FP64"):
        size, wire_type = (4, FIXED32) if datatype == "FP32" else (8, FIXED64)
        members = [[number, DELIMITED, chooser.randbytes(size * count), None]]
        if chooser.random() < 0.3:
            bits = [chooser.getrandbits(8 * size) for _ in range(count)]
            members = [[number, wire_type, value, None] for value in bits]
    else:
        is_small = chooser.random() < 0.8
        values = [chooser.choice(NUMBERS[: 5 if is_small else None]) for _ in range(count)]
        members = integers(number, values, chooser)
    return [*fields, [5, DELIMITED, members, "contents"]], []


def raw_contents(datatype: str, count: int, chooser: random.Random) -> bytes:
    if datatype == "BYTES":
        return reference.elements([chooser.randbytes(chooser.randrange(4)) for _ in range(count)])
    if datatype == "BOOL":
        return bytes(chooser.randrange(2) for _ in range(count))
    return chooser.randbytes(count * reference.SIZES[datatype])


# --- changes -------------------------------------------------------------------------------------


def changed(kind: str, fields: Fields, chooser: random.Random) -> None:
    """Make one change to a message, or to one that it contains."""
    kinds_and_fields = list(messages_in(kind, fields))
    # The outermost message has many fields that contain others: choose it less often.
    chosen_kind, chosen = chooser.choice(kinds_and_fields)
    at = chooser.randrange(len(chosen) + 1)
    places = [i for i, field in enumerate(chosen) if type(field) is list]
    change: Callable[..., None] = chooser.choice(CHANGES if places else INSERTIONS)
    if change in INSERTIONS:
        change(chosen, at, chosen_kind, chooser)
    else:
        change(chosen, chooser.choice(places), chosen_kind, chooser)


def messages_in(kind: str | None, fields: Fields) -> Iterator[tuple[str | None, Fields]]:
    yield kind, fields
    for field in fields:
        if type(field) is list and type(field[2]) is list:
            yield from messages_in(field[3], field[2])


def any_number(kind: str | None, chooser: random.Random) -> int:
    """Return the number of a field, which may be unknown."""
    if chooser.random() < 0.7:
        return chooser.randrange(1, 10)
    return chooser.choice((0, 15, 16, 1000, 2**28, 2**29 - 1, 2**29, 2**32, 2**60))


def add_unknown(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    """Add a field of any number and wire type, which may be one that is known."""
    number, wire_type = any_number(kind, chooser), chooser.randrange(8)
    value: Any = chooser.choice(NUMBERS)
    if wire_type == DELIMITED:
        value = chooser.randbytes(chooser.randrange(5))
    elif wire_type == START_GROUP:
        value = []
    fields.insert(at, [number, wire_type, value, None])


def add_group(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    """Add a group in many levels, or one without an end or with another end."""
    number = any_number(kind, chooser)
    made = nested_groups(chooser.choice((1, 2, 50, *range(94, 102))))
    if chooser.random() < 0.3:
        made = tag(number, START_GROUP) + chooser.choice((b"", b"\x08\1", tag(3, END_GROUP)))
    fields.insert(at, made)


def add_generated(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    """Add fields of a message of the same kind, or of a part of one."""
    more: Fields = []
    if kind == "tensor":
        more = tensor("w", chooser.random() < 0.5, chooser)[0]
    elif kind == "entry":
        more = [text(1, "k"), [2, DELIMITED, parameter(chooser), "value"]]
    elif kind == "value":
        more = parameter(chooser)
    elif kind in KINDS:
        more = generated(kind or "", chooser)
    fields[at:at] = chooser.sample(more, min(len(more), 2)) if chooser.random() < 0.7 else more


def repeat(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    fields.insert(chooser.randrange(len(fields) + 1), copied(fields[at]))


def copied(field: Any) -> Any:
    if type(field) is bytes:
        return field
    value = [copied(item) for item in field[2]] if type(field[2]) is list else field[2]
    return [field[0], field[1], value, *field[3:]]


def drop(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    del fields[at]


def shuffle(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    chooser.shuffle(fields)


def split(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    """Send a message, or a packed field, in two parts."""
    field = fields[at]
    if field[1] != DELIMITED:
        return
    where = chooser.randrange(len(field[2]) + 1)
    second = [field[0], DELIMITED, field[2][where:], field[3]]
    field[2] = field[2][:where]
    fields.insert(chooser.randrange(at, len(fields)) + 1, second)


def unpack(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    """Change a packed field to single ones, or a single one to a packed field."""
    number, wire_type, value, *_ = fields[at]
    if wire_type == VARINT:
        fields[at] = [number, DELIMITED, varint(value), None]
    elif wire_type in (FIXED32, FIXED64):
        nbytes = 4 if wire_type == FIXED32 else 8
        fields[at] = [
            number,
            DELIMITED,
            (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little"),
            None,
        ]
    elif type(value) is bytes:
        fields[at : at + 1] = [[number, VARINT, byte, None] for byte in value]


def renumber(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    fields[at][0] = any_number(kind, chooser)


def retype(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    field = fields[at]
    field[1] = chooser.randrange(8)
    if field[1] == DELIMITED and type(field[2]) is int:
        field[2] = varint(field[2])
    elif field[1] == START_GROUP:
        field[2] = field[2] if type(field[2]) is list else []
    elif field[1] != DELIMITED and type(field[2]) is not int:
        field[2] = chooser.choice(NUMBERS)


def revalue(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    field = fields[at]
    if type(field[2]) is int:
        field[2] = chooser.choice(NUMBERS)
    elif type(field[2]) is bytes:
        value, where = field[2], chooser.randrange(len(field[2]) + 1)
        new = (
            value[:where] + chooser.choice(NOT_UTF8) + value[where:],
            value[:where] + chooser.randbytes(1) + value[where + 1 :],
            value[:where],
            chooser.choice(NAMES).encode(),
            chooser.choice(DATATYPES).encode(),
            varint(chooser.choice(NUMBERS)),
        )
        field[2] = chooser.choice(new)


def overlong(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    """Write the tag, and the value or length, with more bytes than they need."""
    field = fields[at]
    del field[4:]
    field += [chooser.choice((0, 0, 1, 3, 4, 5)), chooser.choice((0, 1, 4, 8, 9, 10))]


def wrong_length(fields: Fields, at: int, kind: str | None, chooser: random.Random) -> None:
    field = fields[at]
    if field[1] == DELIMITED:
        del field[4:]
        field += [
            0,
            0,
            chooser.choice((-2, -1, 1, 2, 1000, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 9)),
        ]


INSERTIONS = (add_unknown, add_group, add_generated)
CHANGES = (
    *(*INSERTIONS, repeat, repeat, drop, shuffle, shuffle, split, split, unpack),
    *(renumber, retype, revalue, revalue, overlong, wrong_length),
)


# --- bytes ---------------------------------------------------------------------------------------


def written(fields: Fields) -> bytes:
    return b"".join(map(written_field, fields))


def written_field(field: Any) -> bytes:
    if type(field) is bytes:
        return field
    number, wire_type, value, _, n_tag, n_value, error = (*field, 0, 0, 0)[:7]
    front = tag(number, wire_type, n_tag)
    if wire_type == VARINT:
        return front + varint(value, n_value)
    if wire_type == DELIMITED:
        data = written(value) if type(value) is list else value
        return front + varint(max(len(data) + error, 0), n_value) + data
    if wire_type == START_GROUP:
        return front + written(value) + tag(number, END_GROUP)
    if wire_type == FIXED64:
        return front + struct.pack("<Q", value % (1 << 64))
    return front + struct.pack("<I", value % (1 << 32)) if wire_type == FIXED32 else front


def parsed(kind: str | None, data: bytes) -> Fields:
    """Return the tree of a message. What cannot be read is one field of bytes at the end."""
    fields: Fields = []
    position = 0
    while position < len(data):
        try:
            number_and_type, at = read_varint(data, position)
            number, wire_type = number_and_type >> 3, number_and_type & 7
            value: Any
            if wire_type in (VARINT, DELIMITED):
                value, at = read_varint(data, at)
                if wire_type == DELIMITED:
                    data[at + value - 1 if value else at - 1]  # raises IndexError beyond the end
                    value, at = data[at : at + value], at + value
            elif wire_type in (FIXED32, FIXED64):
                nbytes = 4 if wire_type == FIXED32 else 8
                data[at + nbytes - 1]
                value, at = int.from_bytes(data[at : at + nbytes], "little"), at + nbytes
            else:
                raise IndexError
        except IndexError:
            return [*fields, data[position:]]
        position = at
        inner = MESSAGES.get(kind, {}).get(number) if wire_type == DELIMITED else None
        fields.append([number, wire_type, parsed(inner, value) if inner else value, inner])
    return fields


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] >= 0x80:
        value |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | data[position] << shift, position + 1


def random_bytes_changed(data: bytes, chooser: random.Random) -> bytes:
    """Change, insert or remove a byte, or cut the data off."""
    at = chooser.randrange(len(data) + 1)
    if chooser.random() < 0.1:
        return data[:at]
    new = chooser.choice((b"", chooser.randbytes(1), b"\x80", b"\xff", b"\0", b"\1"))
    return data[:at] + new + data[at + chooser.randrange(2) :]


def random_message(kind: str, chooser: random.Random) -> bytes:
    """Return a message, valid or not."""
    fields = generated(kind, chooser)
    for _ in range(chooser.choice((0, 1, 1, 2, 3, 6))):
        changed(kind, fields, chooser)
    data = written(fields)
    if chooser.random() < 0.15:
        data = random_bytes_changed(data, chooser)
    return data
