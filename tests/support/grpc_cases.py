"""Tables of gRPC messages: ways to send the same request, and messages that are rejected."""

from __future__ import annotations

from typing import Any, NamedTuple

from support import reference
from support.protobuf_wire import (
    END_GROUP,
    START_GROUP,
    VARINT,
    delimited,
    fixed32,
    fixed64,
    group,
    integer,
    nested_groups,
    packed,
    tag,
    varint,
)


def entry(name: str = "x", datatype: str = "UINT8", shape: Any = (2,), *more: bytes) -> bytes:
    """Return the value of a field 5, the entry of a tensor."""
    return b"".join(
        (delimited(1, name), delimited(2, datatype), packed(3, shape) if shape else b"", *more)
    )


def tensor(name: str = "x", datatype: str = "UINT8", shape: Any = (2,), *more: bytes) -> bytes:
    return delimited(5, entry(name, datatype, shape, *more))


def parameter(number: int, key: str, *value: bytes) -> bytes:
    """Return an entry of the map of parameters that is field `number`."""
    return delimited(number, delimited(1, key), delimited(2, *value))


def typed(name: str, datatype: str, shape: Any, *contents: bytes) -> bytes:
    return tensor(name, datatype, shape, delimited(5, *contents))


# The fields of a message without tensors
KINDS = {
    1: ("name", str),
    2: ("names", [str]),
    3: ("ready", bool),
    4: ("items", [{1: ("name", str), 2: ("dims", [int])}]),
}

# --- the same request, sent in many ways ---------------------------------------------------------

# The inputs "x", UINT8 [1, 2], and "y", BYTES [1], with a parameter; the output "o".
X, Y = b"\1\2", reference.elements([b"abc"])
RAW = delimited(7, X) + delimited(7, Y)
ENTRY_X, ENTRY_Y = entry("x", "UINT8", (1, 2)), entry("y", "BYTES", (1,))
KEY = parameter(4, "k", integer(2, 5))
OUTPUT = delimited(6, delimited(1, "o"))
HEAD = delimited(1, "m") + delimited(3, "7") + KEY
INPUTS = delimited(5, ENTRY_X) + delimited(5, ENTRY_Y)
REQUEST = HEAD + INPUTS + OUTPUT + RAW
UNKNOWN = (
    integer(9, 2**64 - 1), fixed64(10, 1.5), delimited(11, b"\xff"), fixed32(12, 1.5),
    group(13, integer(1, 1), group(13, delimited(1, "x"))), integer(2**29 - 1, 0),
)  # fmt: skip
OTHER_TYPES = (  # known numbers with other wire types
    integer(1, 1), fixed64(3, 1.5), integer(4, 1), fixed32(5, 1.5), integer(6, 1), integer(7, 1),
    group(5, delimited(1, "z")),
)  # fmt: skip
INTEGER = integer(2, 5)


def with_parameter(*fields: bytes) -> bytes:
    """Return the request with this entry of a map instead of KEY."""
    return REQUEST.replace(KEY, delimited(4, *fields))


def with_x(*fields: bytes) -> bytes:
    """Return the request with this entry of "x"."""
    return REQUEST.replace(delimited(5, ENTRY_X), delimited(5, *fields))


NAME_X, TYPE_X, SHAPE_X = delimited(1, "x"), delimited(2, "UINT8"), packed(3, (1, 2))

SAME = {
    "as usual": REQUEST,
    "backwards": RAW + OUTPUT + INPUTS + HEAD,
    "interleaved": b"".join(
        (delimited(7, X), delimited(5, ENTRY_X), OUTPUT, delimited(7, Y), delimited(5, ENTRY_Y))
    ) + HEAD,
    **{f"unknown field {i} first": field + REQUEST for i, field in enumerate(UNKNOWN)},
    "unknown fields last": REQUEST + b"".join(UNKNOWN),
    "unknown fields in an input": with_x(*UNKNOWN, ENTRY_X, *UNKNOWN),
    "unknown fields in an output": REQUEST.replace(
        OUTPUT, delimited(6, *UNKNOWN, delimited(1, "o"))
    ),
    "unknown fields in a value": with_parameter(delimited(1, "k"), delimited(2, INTEGER, *UNKNOWN)),
    **{f"other type {i}": REQUEST + field for i, field in enumerate(OTHER_TYPES)},
    "other types in an input": with_x(
        integer(1, 1), ENTRY_X, integer(2, 1), fixed32(3, 1), integer(4, 1), fixed64(5, 1)
    ),
    "other types in an output": REQUEST.replace(
        OUTPUT, delimited(6, integer(1, 1), delimited(1, "o"), fixed32(2, 1))
    ),
    "other types in a value": with_parameter(
        delimited(1, "k"), delimited(2, INTEGER, fixed64(1, 1), fixed64(2, 1), integer(3, 1),
                                     integer(4, 1), fixed32(4, 1), delimited(5, b"\1")),
    ),
    "100 levels of groups": nested_groups(100) + REQUEST,
    "100 levels in an input": with_x(nested_groups(99), ENTRY_X),
    "100 levels in a value": with_parameter(
        delimited(1, "k"), delimited(2, nested_groups(98), INTEGER)
    ),
    "model_name twice": delimited(1, "n") + REQUEST,
    "id twice": delimited(3, "6") + REQUEST,
    "name twice": with_x(delimited(1, "w\0"), ENTRY_X),
    "datatype twice, first an unknown one": with_x(delimited(2, "STRING"), ENTRY_X),
    "key twice": with_parameter(delimited(1, "j"), delimited(1, "k"), delimited(2, INTEGER)),
    "parameter twice": parameter(4, "k", integer(1, 1)) + REQUEST,
    "value twice": with_parameter(
        delimited(1, "k"), delimited(2, delimited(3, "text")), delimited(2, INTEGER)
    ),
    "value before key": with_parameter(delimited(2, INTEGER), delimited(1, "k")),
    "value merged with an empty one": with_parameter(
        delimited(1, "k"), delimited(2, INTEGER), delimited(2)
    ),
    "two kinds of value": with_parameter(
        delimited(1, "k"), delimited(2, integer(1, 1), delimited(3, "text"), INTEGER)
    ),
    "entry of a map with an unknown field": REQUEST + delimited(
        4, delimited(1, "j"), integer(3, 1), delimited(2, INTEGER)
    ),
    "entry of a map with a key of another type": REQUEST + delimited(
        4, integer(1, 1), delimited(2, INTEGER)
    ),
    "entry of a map with a group": REQUEST + delimited(4, group(1), delimited(2, INTEGER)),
    "shape, single dimensions": with_x(NAME_X, integer(3, 1), TYPE_X, integer(3, 2)),
    "shape, packed and single": with_x(packed(3, (1,)), NAME_X, TYPE_X, integer(3, 2)),
    "shape, packed twice": with_x(packed(3, (1,)), NAME_X, packed(3, ()), TYPE_X, packed(3, (2,))),
    "shape, varints of 10 bytes": with_x(
        NAME_X, TYPE_X, delimited(3, varint(1, 9), b"\x82" + b"\x80" * 8 + b"\x7e")
    ),
    "tags of 5 bytes": tag(1, 2, 4) + b"\1m" + REQUEST,
    "length of 10 bytes": delimited(1, "m", n_more=9) + REQUEST,
    "value of 10 bytes": with_parameter(delimited(1, "k"), delimited(2, integer(2, 5, 9))),
    "contents without elements": with_x(ENTRY_X, delimited(5), delimited(5, packed(4, ()))),
    "contents with unknown fields": with_x(ENTRY_X, delimited(5, *UNKNOWN)),
    "contents of other types": with_x(
        ENTRY_X, delimited(5, fixed32(1, 1), fixed64(6, 1), fixed32(7, 1), integer(8, 1),
                           fixed64(4, 1), integer(6, 1)),
    ),
}  # fmt: skip


# --- messages that are rejected ------------------------------------------------------------------


class Rejected(NamedTuple):
    """A message, and its error with all attributes."""

    id: str
    message: bytes
    error: str
    text: str
    offset: int | None = None
    expected: int | None = None
    actual: int | None = None
    element: int | None = None
    tensor: str | None = None
    kind: str = "request"


def malformed(id: str, message: bytes, offset: int, problem: str, **more: Any) -> Rejected:
    text = f"the gRPC message is malformed: {problem} (byte {offset})"
    return Rejected(id, message, "HeaderError", text, offset, **more)


def not_utf8(path: str, message: bytes, offset: int, **more: Any) -> Rejected:
    text = f"{path} is not valid UTF-8 (byte {offset})"
    return Rejected(f"not UTF-8: {path}", message, "HeaderError", text, offset, **more)


def header(id: str, message: bytes, text: str, **more: Any) -> Rejected:
    return Rejected(id, message, "HeaderError", text, **more)


def layout(id: str, message: bytes, text: str, expected: int | None, **more: Any) -> Rejected:
    return Rejected(id, message, "LayoutError", text, expected=expected, **more)


END, LONG = "ends inside a field", "has an integer of more than 10 bytes"
NUMBER, DEEP = "has a field with an invalid number", "is nested too deeply; the limit is 100 levels"
GROUP = "has the end of a group that was not begun"
BAD = b"a\xff"  # not UTF-8 from the second byte on
CUT = b"\x08"  # a field without a value

MALFORMED = (
    malformed("tag cut off", b"\x80", 0, f"it {END}"),
    malformed("varint cut off", REQUEST + CUT, len(REQUEST), f"it {END}"),
    malformed("long varint cut off", tag(9, VARINT) + b"\x80" * 9, 0, f"it {END}"),
    malformed("8 bytes cut off", fixed64(9, 1)[:-1], 0, f"it {END}"),
    malformed("4 bytes cut off", fixed32(9, 1)[:-1], 0, f"it {END}"),
    malformed("length cut off", tag(9, 2) + b"\x80", 0, f"it {END}"),
    malformed("length 1 too large", delimited(9, "abc", length=4), 0, f"it {END}"),
    malformed("length 2^31 - 1", delimited(9, length=2**31 - 1), 0, f"it {END}"),
    *(
        malformed(f"length {n}", delimited(9, length=n), 0,
                  "it has a field that is longer than 2147483647 bytes")
        for n in (2**31, 2**32 + 1, 2**63, 2**64 - 1)
    ),
    malformed("varint of 11 bytes", integer(9, 1, 10), 0, f"it {LONG}"),
    malformed("length of 11 bytes", delimited(9, n_more=10), 0, f"it {LONG}"),
    malformed("tag of 11 bytes", tag(9, VARINT, 10) + b"\0", 0, f"it {LONG}"),
    malformed("tag of 6 bytes", tag(9, VARINT, 5) + b"\0", 0, f"it {NUMBER}"),
    malformed("tag of 33 bits", varint(2**32) + b"\0", 0, f"it {NUMBER}"),
    malformed("number 0", b"\0\0", 0, f"it {NUMBER}"),
    *(
        malformed(f"wire type {n}", tag(9, n) + b"\0", 0,
                  "it has a field with an unknown wire type")
        for n in (6, 7)
    ),
    malformed("group without an end", tag(9, START_GROUP) + integer(1, 1), 0, f"it {END}"),
    malformed("group with another end", group(9, end=10), 0, f"it {GROUP}"),
    malformed("group in a group with another end", group(9, group(8, end=9)), 0, f"it {GROUP}"),
    malformed("end of a group", tag(9, END_GROUP), 0, f"it {GROUP}"),
    malformed("group with a field cut off", group(9, delimited(1, length=9)), 0, f"it {END}"),
    malformed("101 levels of groups", nested_groups(101), 0, f"it {DEEP}"),
    malformed("101 levels in an input", tensor("x", "UINT8", (2,), nested_groups(100)), 16,
              f"inputs[0] {DEEP}"),
    malformed("101 levels in a value", parameter(4, "k", nested_groups(99)), 9,
              f"parameters {DEEP}"),
    malformed("input cut off", INPUTS + delimited(5, CUT), len(INPUTS) + 2, f"inputs[2] {END}"),
    malformed("output cut off", OUTPUT + delimited(6, CUT), len(OUTPUT) + 2, f"outputs[1] {END}"),
    malformed("parameters cut off", delimited(4, CUT), 2, f"parameters {END}"),
    malformed("parameters of an input cut off", delimited(5, NAME_X, delimited(4, CUT)), 7,
              f"inputs[0].parameters {END}"),
    malformed("contents cut off", typed("x", "UINT8", (2,), CUT), 17, f"inputs[0].contents {END}"),
    malformed("packed dimension cut off", delimited(5, NAME_X, delimited(3, b"\1\x80")), 5,
              f"inputs[0].shape {END}"),
    malformed("packed dimension of 11 bytes", delimited(5, NAME_X, delimited(3, varint(1, 10))), 5,
              f"inputs[0].shape {LONG}"),
    malformed("packed integer cut off", typed("x", "UINT8", (1,), delimited(4, b"\1\x80")), 17,
              f"inputs[0].contents {END}"),
    malformed("packed integer of 11 bytes",
              typed("x", "UINT8", (2,), delimited(4, b"\1", varint(1, 10))), 20,
              f"inputs[0].contents {LONG}"),
    malformed("packed integer of 11 bytes after too many and another field",
              typed("x", "INT8", (1,), delimited(6, bytes(4)),
                    delimited(2, b"\1\1", varint(1, 10))), 26, f"inputs[0].contents {LONG}"),
    malformed("packed floats cut off", typed("x", "FP32", (1,), delimited(6, bytes(5))), 16,
              f"inputs[0].contents {END}"),
    malformed("packed doubles cut off", typed("x", "FP64", (1,), delimited(7, bytes(15))), 16,
              f"inputs[0].contents {END}"),
    malformed("input cut off after contents",
              typed("x", "UINT8", (1,), packed(4, (1,))) + delimited(5, CUT), 22,
              f"inputs[1] {END}"),
    malformed("field cut off after inputs", INPUTS + CUT, len(INPUTS), f"it {END}"),
    malformed("field cut off after inputs, outputs and parameters",
              INPUTS + OUTPUT + KEY + CUT, len(INPUTS + OUTPUT + KEY), f"it {END}"),
    malformed("stream cut off", delimited(2, CUT), 2, f"it {END}", kind="stream"),
    not_utf8("model_name", delimited(1, BAD), 3),
    not_utf8("model_version", delimited(2, BAD), 3),
    not_utf8("id", delimited(3, BAD), 3),
    not_utf8("inputs[0].name", delimited(5, delimited(1, BAD)), 5),
    not_utf8("inputs[0].datatype", delimited(5, delimited(2, BAD)), 5),
    not_utf8("parameters.key", delimited(4, delimited(1, BAD)), 5),
    not_utf8("parameters.string_param", parameter(4, "", delimited(3, BAD)), 9),
    not_utf8("inputs[0].parameters.key", delimited(5, delimited(4, delimited(1, BAD))), 7),
    not_utf8("outputs[0].name", delimited(6, delimited(1, BAD)), 5),
    not_utf8("error_message", delimited(1, BAD), 3, kind="stream"),
    *(
        not_utf8("model_name", delimited(1, b"ab" + text), 4)._replace(id=f"not UTF-8: {text!r}")
        for text in (b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80")
    ),
)  # fmt: skip

SHARED = parameter(4, "shared_memory_region", delimited(3, "r"))
ONE_OF = "must have exactly one of contents, raw_input_contents and shared_memory_region, but has"

AGAINST_A_RULE = (
    header("no inputs", b"", "the request has no inputs"),
    header("unknown datatype", tensor("x", "STRING") + RAW,
           "input 'x' has an unknown datatype: 'STRING'", tensor="x"),
    header("no datatype", delimited(5, delimited(1, "x")),
           "input 'x' has an unknown datatype: ''", tensor="x"),
    header("a longer name of a datatype", tensor("x", "UINT8\0"),
           "input 'x' has an unknown datatype: 'UINT8\\x00'", tensor="x"),
    header("NUL in a name", tensor("x\0"), "the name of input 'x\\x00' contains a NUL",
           tensor="x\0"),
    header("NUL in the name of an output", delimited(6, delimited(1, "\0")),
           "the name of output '\\x00' contains a NUL", tensor="\0"),
    header("long name", tensor("€" * 1366), f"the name of input '{'€' * 80}'... is 4098 bytes "
           "long; the limit is 4096", expected=4096, actual=4098, tensor="€" * 1366),
    header("two inputs with the same name", tensor("x", "UINT8", (0,)) * 2,
           "input 'x' appears twice", tensor="x"),
    header("two outputs with the same name", INPUTS + OUTPUT * 2 + RAW,
           "output 'o' appears twice", tensor="o"),
    header("binary_data is a number", delimited(6, delimited(1, "o"),
                                                parameter(2, "binary_data", integer(2, 1))),
           "binary_data of output 'o' must be true or false, not 1", tensor="o"),
    header("binary_data_output is text",
           parameter(4, "binary_data_output", delimited(3, "x")) + INPUTS + RAW,
           "binary_data_output of the request must be true or false, not 'x'"),
    header("region is a number",
           tensor("x", "UINT8", (2,), parameter(4, "shared_memory_region", integer(2, 1))),
           "shared_memory_region of input 'x' must be a string, not 1", tensor="x"),
    layout("negative dimension", tensor("x", "UINT8", (-2,)),
           "input 'x' has a negative dimension: shape [-2]", 0, actual=-2, tensor="x"),
    layout("65 dimensions", tensor("x", "UINT8", (1,) * 65),
           "input 'x' has 65 dimensions; the limit is 64", 64, actual=65, tensor="x"),
    layout("1000 dimensions", tensor("x", "UINT8", (1,) * 1000),
           "input 'x' has 1000 dimensions; the limit is 64", 64, actual=1000, tensor="x"),
    layout("too large to address", tensor("x", "FP32", (2**31, 2**30)),
           "input 'x' is too large to address: FP32 [2147483648, 1073741824] exceeds 2^63 - 1 "
           "bytes", 2**63 - 1, tensor="x"),
    header("no contents", INPUTS, f"input 'x' {ONE_OF} none", tensor="x"),
    header("no contents, response", delimited(5, ENTRY_X),
           "output 'x' must have exactly one of contents, raw_output_contents and "
           "shared_memory_region, but has none", tensor="x", kind="response"),
    header("contents and raw contents", typed("x", "UINT8", (1,), packed(4, (1,))) + RAW[:4],
           "input 'x' has both contents and raw_input_contents", tensor="x"),
    header("contents and a region",
           tensor("x", "UINT8", (1,), SHARED, delimited(5, packed(4, (1,)))),
           f"input 'x' {ONE_OF} contents and shared_memory_region", tensor="x"),
    layout("fewer raw contents than inputs", INPUTS + delimited(7, X),
           "the message has 1 raw content, but 2 inputs outside of shared memory", 2, actual=1),
    layout("more raw contents than inputs", tensor("x", "UINT8", (2,), SHARED) + RAW,
           "the message has 2 raw contents, but 0 inputs outside of shared memory", 0, actual=2),
    layout("raw contents and contents of different inputs",
           typed("x", "UINT8", (1,), packed(4, (1,))) + delimited(5, ENTRY_Y) + delimited(7, Y),
           "the message has 1 raw content, but 2 inputs outside of shared memory", 2, actual=1),
    layout("raw contents too short", tensor("x", "FP32", (2,)) + delimited(7, bytes(7)),
           "input 'x' does not match its datatype: FP32 [2] requires 8 bytes, but its binary data "
           "has 7", 8, actual=7, tensor="x"),
    layout("raw contents too long, response", tensor("x", "FP16", (2,)) + delimited(6, bytes(5)),
           "output 'x' does not match its datatype: FP16 [2] requires 4 bytes, but its binary data "
           "has 5", 4, actual=5, tensor="x", kind="response"),
    Rejected("truncated element", tensor("x", "BYTES", (1,)) + delimited(7, Y[:-1]), "ElementError",
             "element 0 of input 'x' is truncated: its prefix declares 3 bytes, but 2 remain (body "
             "byte 17)", 17, 3, 2, 0, "x"),
    layout("fewer elements in raw contents", tensor("x", "BYTES", (2,)) + delimited(7, Y * 2 + Y),
           "input 'x' does not match its shape: it has 2 elements of 14 bytes in total, but there "
           "are 21 (body byte 31)", 14, actual=21, element=2, tensor="x", offset=31),
    Rejected("BOOL 2", tensor("x", "BOOL") + delimited(7, b"\1\2"), "ElementError",
             "element 1 of input 'x' must be 0 or 1 (BOOL), not 2 (body byte 17)", 17, 1, 2, 1,
             "x"),
    header("contents of another field", typed("x", "INT64", (1,), packed(2, (1,))),
           "input 'x' is INT64, which can only be sent as int64_contents, but has int_contents",
           tensor="x"),
    header("FP16 in contents", typed("x", "FP16", (1,), delimited(6, bytes(4))),
           "input 'x' is FP16, which can only be sent as raw contents, but has fp32_contents",
           tensor="x"),
    header("BF16 in contents", typed("x", "BF16", (1,), delimited(8, "ab")),
           "input 'x' is BF16, which can only be sent as raw contents, but has bytes_contents",
           tensor="x"),
    header("two fields of contents", typed("x", "BOOL", (1,), packed(1, (1,)), integer(3, 0)),
           "input 'x' is BOOL, which can only be sent as bool_contents, but has int64_contents",
           tensor="x"),
    layout("fewer elements than the shape", typed("x", "INT8", (3,), packed(2, (1, 2))),
           "input 'x' does not match its shape: INT8 [3] requires 3 elements, but its int_contents "
           "have 2", 3, actual=2, tensor="x"),
    layout("more elements than the shape", typed("x", "BYTES", (), delimited(8), delimited(8)),
           "input 'x' does not match its shape: BYTES [] requires 1 element, but its "
           "bytes_contents have 2", 1, actual=2, tensor="x"),
    layout("more elements than the shape, one out of range",
           typed("x", "INT8", (2,), packed(2, (1, 300, 2))),
           "input 'x' does not match its shape: INT8 [2] requires 2 elements, but its "
           "int_contents have 3", 2, actual=3, tensor="x"),
    header("elements of two fields, one out of range",
           typed("x", "INT8", (2,), packed(2, (300, 1)), delimited(6, bytes(4))),
           "input 'x' is INT8, which can only be sent as int_contents, but has fp32_contents",
           tensor="x"),
    *(
        Rejected(f"{datatype} {value}", typed("x", datatype, (2,), packed(number, (0, value))),
                 "ElementError", f"element 1 of input 'x' is {value}, which is out of range for "
                 f"{datatype} ({low} to {high}) (byte {15 + len(datatype)})", 15 + len(datatype),
                 element=1, tensor="x")
        for datatype, number, low, high in (("INT8", 2, -128, 127), ("INT16", 2, -32768, 32767),
                                            ("UINT8", 4, 0, 255), ("UINT16", 4, 0, 65535))
        for value in (high + 1, *([low - 1] if low else [2**32 - 1]))
    ),
    Rejected("two integers out of range", typed("x", "INT8", (3,), packed(2, (1, 300, -300))),
             "ElementError", "element 1 of input 'x' is 300, which is out of range for INT8 (-128 "
             "to 127) (byte 19)", 19, element=1, tensor="x"),
    Rejected("INT8 that is not packed",
             typed("x", "INT8", (2,), integer(2, 1), integer(2, 128)), "ElementError",
             "element 1 of input 'x' is 128, which is out of range for INT8 (-128 to 127) (byte "
             "19)", 19, element=1, tensor="x"),
    Rejected("error of a server", delimited(1, "no such model"), "ErrorResponseError",
             "the server returned an error: no such model", kind="stream"),
    Rejected("error of a server and a response",
             delimited(2, delimited(3, "7")) + delimited(1, "no"), "ErrorResponseError",
             "the server returned an error: no", kind="stream"),
)  # fmt: skip

REJECTED = (*MALFORMED, *AGAINST_A_RULE)
