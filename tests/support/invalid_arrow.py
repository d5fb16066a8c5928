"""Arrow producers with invalid structs: arrays of two strings, or of numbers in lists.

Only fields that a consumer can check are changed. The sizes of the buffers are not among them,
because the interface does not carry them for binary and string arrays.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from support.arrow_numbers import NumbersProducer, TextProducer

if TYPE_CHECKING:
    from support.strategies import Choices


_LONG = b"a string that is longer than twelve bytes"

# The changed fields of the schema and of the array. The first producer is valid.
FIELD_CHANGES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({"release": None}, {}),
    ({"format": None}, {}),
    ({"format": b"\xff"}, {}),
    ({"format": b"i"}, {}),
    ({"format": b""}, {}),
    ({"n_children": 1}, {}),
    ({}, {"release": None}),
    ({}, {"length": -1}),
    ({}, {"offset": -1}),
    ({}, {"length": -(2**63)}),
    ({}, {"offset": -(2**63)}),
    ({}, {"length": 2**63 - 1, "offset": 2}),
    ({}, {"length": 2, "offset": 2**63 - 1}),
    ({}, {"n_buffers": 0}),
    ({}, {"n_buffers": 1}),
    ({}, {"n_buffers": 2}),
    ({}, {"n_buffers": -1}),
    ({}, {"n_children": 1}),
    ({}, {"n_children": -1}),
    ({}, {"buffers": None}),
    ({}, {"null_count": 3}),
    ({}, {"null_count": -1}),
    ({}, {"null_count": 0}),
    ({}, {"length": 0}),
    ({}, {"length": 1, "offset": 1}),
)
# The offsets of the two strings, within a buffer of 6 bytes. The producer's last offset is the
# length of the buffer, so that the others can be checked.
OFFSETS = ((0, 1, 6), (1, 0, 1), (0, 5, 1), (-1, 0, 1), (0, -5, 1), (0, 0, 0))
# The fields of the second string's view: length, buffer, offset.
VIEWS = (
    *((len(_LONG), 0, 0), (len(_LONG) + 1, 0, 0), (len(_LONG), 1, 0), (len(_LONG), -1, 0)),
    *((len(_LONG), 0, 1), (len(_LONG), 0, -1), (-1, 0, 0), (-(2**31), 0, 0), (2**31 - 1, 0, 0)),
)
FORMATS = (b"z", b"u", b"Z", b"U", b"vz", b"vu")


class InvalidProducer(TextProducer):
    """A producer of two strings, of which the second one has invalid offsets or an invalid view."""

    def __init__(self, format: bytes, change: int, detail: int) -> None:
        of_schema, of_array = FIELD_CHANGES[change % len(FIELD_CHANGES)]
        fields: dict[str, Any] = {"length": 2, "offsets": OFFSETS[detail % len(OFFSETS)]}
        if format in (b"vz", b"vu"):
            nbytes, buffer, offset = VIEWS[detail % len(VIEWS)]
            self.views = (ctypes.c_int32 * 8)(1, ord("x"), 0, 0, nbytes, 0, buffer, offset)
            self.long = ctypes.create_string_buffer(_LONG, len(_LONG))
            self.sizes = (ctypes.c_int64 * 1)(len(_LONG))
            buffers: tuple[Any, ...] = (self.views, self.long, self.sizes)
            self.pointers = (ctypes.c_void_p * 4)(None, *map(ctypes.addressof, buffers))
            fields |= {"n_buffers": 4, "buffers": ctypes.addressof(self.pointers)}
        super().__init__(format, **fields | of_array)
        for key, value in of_schema.items():
            setattr(self.schema, key, value)


NUMBER_FORMATS = (b"b", b"c", b"C", b"s", b"S", b"i", b"I", b"e", b"f", b"g", b"l", b"L")
LIST_SIZES: tuple[tuple[int, ...], ...] = ((), (3,), (0,), (1, 2), (2, 0), (0, 2**31 - 1))
LIST_FORMATS = (b"+w:", b"+w:-1", b"+w:9999999999", b"+w:2147483648", b"+w:1x", b"+l", b"n")


def invalid_numbers(format: int, sizes: int, change: int, level: int) -> NumbersProducer:
    """Return a producer of numbers in lists, with the changed fields in one of its structs.

    Arrays of lists without children and schemas of lists without sizes are among them. There are
    12 * 4 bytes of memory, enough for two rows of any of the types.
    """
    list_sizes = LIST_SIZES[sizes % len(LIST_SIZES)]
    where = level % (len(list_sizes) + 1)
    is_list = where < len(list_sizes)
    of_schema, of_array = FIELD_CHANGES[change % len(FIELD_CHANGES)]
    if "format" in of_schema and is_list:
        of_schema = {"format": LIST_FORMATS[level % len(LIST_FORMATS)]}
    elif of_array.get("n_children", 0) == 1 and is_list:
        of_array = ({"children": None}, {"n_children": 2}, {"n_children": 0})[level % 3]
    elif of_array == {"length": 1, "offset": 1} and where:
        of_array = {"release": None}
    elif of_schema.get("n_children") == 1 and is_list:
        of_schema = {"children": None}
    return NumbersProducer(
        2,
        list_sizes,
        NUMBER_FORMATS[format % len(NUMBER_FORMATS)],
        schema_changes={where: of_schema},
        array_changes={where: of_array},
    )


def producer(c: Choices) -> InvalidProducer | NumbersProducer:
    """Return any of the producers."""
    change = c.below(len(FIELD_CHANGES))
    if c.chance(50):
        return InvalidProducer(c.of(FORMATS), change, c.below(len(OFFSETS) * len(VIEWS)))
    sizes, level = c.below(len(LIST_SIZES)), c.below(len(LIST_FORMATS))
    return invalid_numbers(c.below(len(NUMBER_FORMATS)), sizes, change, level)
