"""Hypothesis strategies for gRPC messages as trees of fields: valid ones, and changes of them.

A field is a list: number, wire type, value, and the kind of message that the value is, or None; a
changed one has more (`written_field`). The value of a message, and of a group, is a list of fields.
The value of another field with a length is `bytes`. Others are integers. `bytes` in the place of a
field are written as they are.
"""

from __future__ import annotations

import copy
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
from support.strategies import DATATYPES, NOT_UTF8, Choices, chosen, wire

Fields = list[Any]
Change = Callable[[Choices, Fields, int, "str | None"], Any]

KINDS = ("request", "response", "stream", "metadata")
RAW = {"request": 7, "response": 6}  # the field with raw contents
CONTENTS = {  # the field with the elements of a datatype
    **{"BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4},
    **{"UINT32": 4, "UINT64": 5, "FP32": 6, "FP64": 7, "BYTES": 8},
}
NAMES = (*("x", "", "y", "zz", "z\u20ac", "shared_memory_region", "binary_data", "classification"),
         *("binary_data_output", "binary_data_size", "a\0", "n" * 300))  # fmt: skip
INTEGERS = (
    *(0, 1, 2, 3, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33 + 1),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 128, 2**64 - 129, 2**64 - 2**31, 2**64 - 2**15),
)
DIMS: tuple[list[int], ...] = ([2], [1], [0], [3], [], [1, 2], [2, 0])

# --- valid messages ------------------------------------------------------------------------------


def fields_of(c: Choices, kind: str | None) -> Fields:
    """Return the fields of a valid message of this kind, or of a part of one."""
    if kind == "stream":
        error = [text(1, "out of order")] if c.chance(20) else []
        return [*error, [2, DELIMITED, fields_of(c, "response"), "response"]]
    if kind == "tensor":
        return tensor(c, "w", c.chance(50))[0]
    if kind == "entry":
        return [text(1, "k"), [2, DELIMITED, value(c), "value"]]
    if kind not in KINDS:
        return value(c) if kind == "value" else []
    fields = [text(i, name(c)) for i in (1, 2, 3) if c.chance(25)]
    if kind == "metadata":
        fields += [text(2, name(c)) for _ in range(c.below(3))]
        for number in (4, 5) * c.below(3):
            dims = [c.of([-1, 1, 2**40]) for _ in range(c.below(3))]
            members = [text(1, name(c)), text(2, "FP32"), *integers(c, 3, dims)]
            fields.append([number, DELIMITED, members, "specification"])
        return fields
    is_raw, contents = c.chance(60), []
    for i in range(c.of([1, 1, 1, 2, 3])):
        members, raw = tensor(c, f"{name(c)}{i}", is_raw)
        fields.append([5, DELIMITED, members, "tensor"])
        contents += raw
    fields += [[RAW[kind], DELIMITED, raw, None] for raw in contents]
    if kind == "request" and c.chance(20):
        for i in range(c.below(3)):
            output = [text(1, f"{name(c)}{i}"), *parameters(c, 2)]
            fields.append([6, DELIMITED, output, "output"])
    return [*fields, *parameters(c, 4)]


def name(c: Choices) -> str:
    return c.of(NAMES) if c.chance(10) else "x"


def text(number: int, value: str) -> Fields:
    return [number, DELIMITED, value.encode(), None]


def integers(c: Choices, number: int, values: list[int]) -> list[Fields]:
    """Return a repeated field of integers, packed or not."""
    if c.chance(30):
        return [[number, VARINT, value, None] for value in values]
    return [[number, DELIMITED, b"".join(map(varint, values)), None]] if values else []


def parameters(c: Choices, number: int) -> list[Fields]:
    def entry() -> Fields:
        key = c.of(NAMES) if c.chance(40) else "k"
        return [number, DELIMITED, [text(1, key), [2, DELIMITED, value(c), "value"]], "entry"]

    return c.some(entry, 25)


def value(c: Choices) -> list[Fields]:
    number = c.below(6)
    if number == 0:
        return []
    if number == 3:
        return [text(3, c.of(NAMES))]
    if number == 4:
        return [[4, FIXED64, c.word(), None]]
    return [[number, VARINT, c.of(INTEGERS), None]]


def tensor(c: Choices, name: str, is_raw: bool) -> tuple[list[Fields], list[bytes]]:
    """Return the fields of a tensor's entry, and its raw contents."""
    datatype, dims = c.of(DATATYPES), c.of(DIMS)
    fields = [text(1, name), text(2, datatype), *integers(c, 3, dims), *parameters(c, 4)]
    count = reference.element_count(datatype, dims)
    if is_raw:
        return fields, [wire(c, datatype, count)]
    number, members = CONTENTS.get(datatype, 1), []
    if datatype == "BYTES":
        members = [[8, DELIMITED, c.data(c.below(4)), None] for _ in range(count)]
    elif datatype in ("FP32", "FP64"):
        itemsize, wire_type = (4, FIXED32) if datatype == "FP32" else (8, FIXED64)
        members = [[number, DELIMITED, c.data(itemsize * count), None]]
        if c.chance(30):
            members = [[number, wire_type, c.word(), None] for _ in range(count)]
    else:
        some = INTEGERS[:5] if c.chance(80) else INTEGERS
        members = integers(c, number, [c.of(some) for _ in range(count)])
    return [*fields, [5, DELIMITED, members, "contents"]], []


# --- changes -------------------------------------------------------------------------------------


def messages_in(kind: str | None, fields: Fields) -> Iterator[tuple[str | None, Fields]]:
    yield kind, fields
    for field in fields:
        if type(field) is list and type(field[2]) is list:
            yield from messages_in(field[3], field[2])


def change(c: Choices, kind: str, fields: Fields) -> None:
    """Make one change to a message, or to one that it contains."""
    own_kind, own = c.of(list(messages_in(kind, fields)))
    places = [i for i, field in enumerate(own) if type(field) is list]
    way = c.below(len(CHANGES) if places else N_INSERTIONS)
    CHANGES[way](c, own, c.of(places) if places else 0, own_kind)


def any_number(c: Choices) -> int:
    """Return the number of a field, which may be unknown."""
    if c.chance(70):
        return 1 + c.below(9)
    return c.of([0, 15, 16, 1000, 2**28, 2**29 - 1, 2**29, 2**32, 2**60])


def add_unknown(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    """Add a field of any number and wire type, which may be one that is known."""
    number, wire_type = any_number(c), c.below(8)
    made: Any = c.of(INTEGERS)
    if wire_type in (DELIMITED, START_GROUP):
        made = c.data(c.below(5)) if wire_type == DELIMITED else []
    fields.insert(at, [number, wire_type, made, None])


def add_group(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    """Add a group in many levels, or one without an end or with another end."""
    made = nested_groups(c.of([1, 2, 50, *range(94, 102)]))
    if c.chance(30):
        made = tag(any_number(c), START_GROUP) + c.of([b"", b"\x08\1", tag(3, END_GROUP)])
    fields.insert(at, made)


def add_fields(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    """Add fields of another message of the same kind."""
    more = fields_of(c, kind)
    begin = c.below(len(more) + 1)
    fields[at:at] = more[begin : begin + 2] if c.chance(70) else more


def split(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    """Send a message, or a packed field, in two parts."""
    field = fields[at]
    if field[1] == DELIMITED:
        where = c.below(len(field[2]) + 1)
        second = [field[0], DELIMITED, field[2][where:], field[3]]
        field[2] = field[2][:where]
        fields.insert(at + 1 + c.below(len(fields) - at), second)


def unpack(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    """Change a packed field to single ones, or a single one to a packed field."""
    number, wire_type, value, *_ = fields[at]
    if wire_type == VARINT:
        fields[at] = [number, DELIMITED, varint(value), None]
    elif wire_type in (FIXED32, FIXED64):
        fields[at] = [number, DELIMITED, fixed(wire_type, value), None]
    elif type(value) is bytes:
        fields[at : at + 1] = [[number, VARINT, byte, None] for byte in value]


def retype(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    field = fields[at]
    field[1] = c.below(8)
    if field[1] == DELIMITED and type(field[2]) is int:
        field[2] = varint(field[2])
    elif field[1] == START_GROUP:
        field[2] = field[2] if type(field[2]) is list else []
    elif field[1] != DELIMITED and type(field[2]) is not int:
        field[2] = c.of(INTEGERS)


def revalue(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    old = fields[at][2]
    if type(old) is int:
        fields[at][2] = c.of(INTEGERS)
    elif type(old) is bytes:
        where, way = c.below(len(old) + 1), c.below(6)
        fields[at][2] = (
            old[:where] + c.of(NOT_UTF8) + old[where:],
            old[:where] + bytes([c.below(256)]) + old[where + 1 :],
            old[:where],
            c.of(NAMES).encode(),
            c.of(DATATYPES).encode(),
            varint(c.of(INTEGERS)),
        )[way]


def overlong(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    """Write the tag, and the value or length, with more bytes than they need."""
    fields[at][4:] = [c.of([0, 0, 1, 3, 4, 5]), c.of([0, 1, 4, 8, 9, 10])]


def wrong_length(c: Choices, fields: Fields, at: int, kind: str | None) -> None:
    if fields[at][1] == DELIMITED:
        errors = (-2, -1, 1, 2, 1000, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 9)
        fields[at][4:] = [0, 0, c.of(errors)]


N_INSERTIONS = 3
CHANGES: tuple[Change, ...] = (
    *(add_unknown, add_group, add_fields, split, split, unpack, retype, revalue, revalue),
    *(overlong, wrong_length, *[lambda c, fields, *_: c.shuffle(fields)] * 2),
    *[lambda c, fields, at, _: fields.insert(c.below(len(fields) + 1), copy.deepcopy(fields[at]))]
    * 2,
    lambda c, fields, at, _: fields.pop(at),
    lambda c, fields, at, _: fields[at].__setitem__(0, any_number(c)),
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
    return front + fixed(wire_type, value) if wire_type in (FIXED32, FIXED64) else front


def fixed(wire_type: int, value: int) -> bytes:
    nbytes = 4 if wire_type == FIXED32 else 8
    return (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")


def grpc_message(c: Choices) -> tuple[str, bytes]:
    """Return the kind of a message, and a message with up to six changes."""
    kind = c.of(["request", "request", "response", "response", "stream", "metadata"])
    fields = fields_of(c, kind)
    for _ in range(c.of([0, 1, 1, 2, 3, 6])):
        change(c, kind, fields)
    data = written(fields)
    if c.chance(15):  # change, insert or remove a byte, or cut the data off
        at, new = c.below(len(data) + 1), c.of([b"", b"\x80", b"\xff", b"\0", b"\1", b"\x7f"])
        data = data[:at] if c.chance(10) else data[:at] + new + data[at + c.below(2) :]
    return kind, data


messages = chosen(grpc_message)
