"""Hypothesis strategies for the inputs of the codec, valid, damaged and hostile.

The properties in test_properties.py, the fuzz targets and the differential tests draw from them. A
damaged message is a valid one with a few changes, so that it reaches the code after the parser.

A function with a parameter `c` makes its decisions by `Choices`. It becomes a strategy with
`chosen`.
"""

from __future__ import annotations

import copy
import random
import struct
from array import array as memory
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

import tensorwire as tw
from support import reference
from support.json_tree import Literal, Members, items, obj, parameter, set_parameter, size, write

T = TypeVar("T")
Strategy = st.SearchStrategy[Any]
DATATYPES = sorted(reference.DATATYPES)
WORDS = st.binary(min_size=8, max_size=8)  # of a large range of integers, small ones are likely


@lru_cache(None)
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


class Choices:
    """What hypothesis draws, as choices of a generator. They shrink to the first of all items."""

    def __init__(self, draw: Callable[[Strategy], Any]) -> None:
        self.draw = draw

    def below(self, n: int) -> int:
        value: int = self.draw(_below(n)) if n > 1 else 0
        return value

    def of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def word(self) -> int:
        return int.from_bytes(self.draw(WORDS))

    def data(self, nbytes: int) -> bytes:
        """Return bytes that repeat after eight, because each drawn byte takes time."""
        repeated: bytes = self.draw(WORDS) * (nbytes // 8 + 1) if nbytes else b""
        return repeated[:nbytes]

    def some(self, make: Callable[[], T], percent: int, most: int = 4) -> list[T]:
        """Return a list that goes on with this chance after each item."""
        made: list[T] = []
        while len(made) < most and self.chance(percent):
            made.append(make())
        return made

    def shuffle(self, values: list[Any]) -> None:
        for i in range(min(len(values) - 1, 8)):
            j = i + self.below(len(values) - i)
            values[i], values[j] = values[j], values[i]


def chosen(make: Callable[..., Any], *arguments: Any) -> Strategy:
    """Return the strategy for what a function makes by choices."""
    return _chosen(make, arguments)


@st.composite
def _chosen(draw: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return make(Choices(draw), *arguments)


def run_examples(test: Any, n: int, seed: int) -> None:
    """Run a test on examples of random bytes, which takes less time than hypothesis itself."""
    for i in range(n):
        test.hypothesis.fuzz_one_input(random.Random(f"{seed} {i}").randbytes(4000))


# --- BYTES, text and arrays ----------------------------------------------------------------------

TEXTS = [
    *(b"", b"a", b"\0", b"na\xc3\xafve", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b'"\\\n\x7f'),
    *(b"eleven char", b"twelve chars", b"thirteen char", b"a\0b\0", b"z" * 40),
]
NOT_UTF8 = [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"x\x80y"]
LENGTHS = (0, 1, 3, 4, 5, 255, 2**16, 2**24, 2**31, 2**32 - 4, 2**32 - 1)

SHORT = st.binary(max_size=20)
texts = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "a" * 100, "é€", "\U0001f600", "a\udc00b", '"\\\n'])
)


def element(c: Choices) -> bytes:
    made: bytes = c.draw(SHORT) if c.chance(15) else c.of([*TEXTS, *TEXTS, *NOT_UTF8])
    return made


def some_elements(c: Choices) -> list[bytes]:
    made = [element(c) for _ in range(c.below(8))]
    return [item * (1 + c.below(300)) for item in made] if c.chance(10) else made


elements = chosen(some_elements)


def indexed(c: Choices) -> tuple[list[bytes], tuple[int, ...], Any]:
    """Return elements, the shape of an array of them, and an index of this array."""
    made = some_elements(c)
    n = len(made)
    shapes: list[tuple[int, ...]] = [(n,), (1, n), (n, 1), *([()] if n == 1 else [])]
    shape = c.of([*shapes, *((k, n // k) for k in (2, 3) if n % k == 0)])
    parts = [index_part(c, dim) for dim in shape[: c.below(len(shape) + 1)]]
    if sum(part is ... for part in parts) > 1:
        parts = [part for part in parts if part is not ...]
    return made, shape, parts[0] if len(parts) == 1 else tuple(parts)


indexed_elements = chosen(indexed)


def index_part(c: Choices, dim: int) -> Any:
    """Return an integer, a slice, a list, a mask or an ellipsis."""
    kind, ends = c.below(8), (0, 1, -1, 2, -2, dim, -dim - 1, 127)
    if kind < 2:
        return c.of(ends)
    if kind < 5:
        return slice(*(c.of(ends) or None for _ in range(3)))
    if kind == 5:
        return [c.of(ends) for _ in range(c.below(4))]
    return ... if kind == 6 else np.arange(dim) % (1 + c.below(3)) == 0


def elements_and_count(c: Choices) -> tuple[bytes, int | None]:
    """Return encoded elements, usually with one change, and how many of them are expected."""
    own = some_elements(c)
    wire, count = reference.elements(own), len(own)
    if c.chance(70):
        wire = changed_elements(wire, c)
    counts = [count, count, None, None, count + 1, count - 1 if count else 0, 0, 2**40, 2**62]
    return wire, c.of(counts)


damaged_elements = chosen(elements_and_count)


def changed_elements(wire: bytes, c: Choices) -> bytes:
    """Change a length prefix, add or remove elements, truncate the bytes, or append some."""
    starts, position = [0], 0
    while position + 4 <= len(wire) and len(starts) < 64:
        position += 4 + int.from_bytes(wire[position : position + 4], "little")
        if position > len(wire):
            break
        starts.append(position)
    at, way = c.of(starts), c.below(6)
    if way == 0:
        return wire[:at] + reference.elements([c.of(TEXTS)]) + wire[at:]
    if way == 1:
        return wire[:at] + wire[c.of(starts) :]
    if way == 2:
        return wire[: c.below(len(wire) + 1)]
    if way == 3:
        return wire + c.data(1 + c.below(5))
    length, room = int.from_bytes(wire[at : at + 4], "little"), max(len(wire) - at - 4, 0)
    length = c.of([length + 1, length - 1, room, room + 1, *LENGTHS]) % 2**32
    return wire[:at] + length.to_bytes(4, "little") + wire[at + 4 :]


DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
PATTERNS = [  # of eight bytes: edges of integers and floats
    *(struct.pack("<Q", 2**e - 1) for e in range(0, 65, 4)),
    *(struct.pack("<Q", 2**e) for e in range(3, 64, 4)),
    *(struct.pack("<d", x) for x in (0.1, -0.0, 5e-324, 1.7e308, 1e16, 1e22, 2.0**53, np.inf)),
    *(struct.pack("<2f", *x) for x in ((0.1, -0.0), (1e-45, 3.4e38), (1 / 3, 1e10), (1, np.nan))),
]


def array(c: Choices) -> Any:
    """Return numbers of a datatype that JSON has. They may be misaligned, or cross batches."""
    dtype, offset = np.dtype(c.of(DTYPES)), c.below(2)
    content = b"".join(c.of(PATTERNS) if c.chance(50) else c.data(8) for _ in range(c.below(6)))
    n = max(len(content) - offset, 0) // dtype.itemsize
    own = memory("B", content[: offset + n * dtype.itemsize])[:]  # nothing follows the array
    made = np.frombuffer(own, dtype, n, offset) if n else np.zeros(0, dtype)
    return np.tile(made, 1 + c.below(5000) // max(n, 1)) if c.chance(20) else made


arrays = chosen(array)

# --- JSON ----------------------------------------------------------------------------------------

NUMBERS: list[str] = """
0 1 -1 2 8 1.0 1e2 -0 -0.0 127 128 -128 -129 255 256 65535 65536 2147483647 2147483648 -2147483648
-2147483649 4294967295 4294967296 9223372036854775807 9223372036854775808 -9223372036854775808
18446744073709551615 18446744073709551616 0.1 1e39 1e400 1e-400 0.30000000000000004 1e23
123456789.123456789e-30 16777217.00000000001 9007199254740993 3.4028235677973366e38 100e-2 5e-1
18446744073709551615.0 0e99999999999 NaN Infinity -Infinity -NaN Inf -Inf 01 .5 1. +1 1e
""".split()  # noqa: SIM905 - a list would take a line for each
STRINGS = [
    *("", "a", "8", "FP32", "BYTES", "x\0y", "é", "€\U0001f600", '"\\/\n', "\ud800", "a\udc00b")
]
KEYS = ("name", "shape", "datatype", "parameters", "data", "inputs", "outputs", "id", "model_name")
FRAMING = ("binary_data_size", "binary_data", "binary_data_output", "shared_memory_region")
RESERVED = ("classification", "priority", "timeout", "sequence_id", "sequence_end", "triton_x", "p")
SCALARS: list[Any] = [None, True, False, *STRINGS, *map(Literal, NUMBERS)]
LEVELS = (99, 100, 101, *range(124, 129))  # around the limits for data and for all values
TOKENS = (
    *(b",", b'"', b"{", b"}", b"[", b"]", b":", b"\\", b"0", b"9", b"-", b"e", b".", b"/", b" "),
    *(b"\0", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\t", b"\n", b"\x01", b"\x7f", b"null", b"01"),
    *(rb'"\ud800"', rb'"\ud83d\ude00"', rb"\u0061", b'"\xed\xa0\x80"', b"NaN", b"-Infinity"),
    *(b"1e400", b"1" * 4400, b"[" * 101, b"18446744073709551616", b"true", b'"a":1,'),
)


def number(c: Choices, datatype: str) -> Literal:
    """Return a number that is in no table, and usually in the range of the datatype."""
    sign = c.of(["", "-"]) if datatype[0] != "U" else ""
    if datatype[:2] != "FP":  # an integer in any notation
        bits, zeros = 8 * reference.SIZES[datatype] - 1, "0" * c.below(4)
        digits = str(c.word() >> 64 - bits + c.below(bits))
        forms = [f"{digits}.{zeros}", f"{digits}{zeros}e-{len(zeros)}"] if zeros else [digits]
        return Literal(sign + c.of(forms))
    digits, power = str(c.word() >> (c.below(64) if c.chance(50) else 0)), c.below(100) - 50
    at = c.below(len(digits)) + 1
    text = (digits[:at].lstrip("0") or "0") + ("." if digits[at:] else "") + digits[at:]
    exponent = c.of(["", "", f"e{power // 3}", f"E{power // 3:+}"])
    return Literal(sign + text + (f"e{7 * power}" if c.chance(4) else exponent))


def json_value(c: Choices, depth: int) -> Any:
    """Return a tree of this depth at most."""
    if depth and c.chance(40):
        children = [json_value(c, depth - 1) for _ in range(c.below(3))]
        return Members([c.of(KEYS), v] for v in children) if c.chance(50) else children
    return c.of(SCALARS)


def parameter_value(c: Choices) -> Any:
    """Return a value as `json` of the standard library reads it; some are nested deeply."""
    value, is_list = plain_json(c, 3), c.chance(50)
    for _ in range(c.of(LEVELS) if c.chance(15) else 0):
        value = [value] if is_list else {"k": value}
    return value


def plain_json(c: Choices, depth: int) -> Any:
    kind = c.below(7 if depth else 5)
    if kind == 0:
        return c.of([None, True, False])
    if kind < 3:
        value = c.word() - 2**63
        return c.of([value, value << 60, value >> 50, np.float64(value).item() / 3])
    if kind < 5:
        return c.of(STRINGS[:-2])
    children = [plain_json(c, depth - 1) for _ in range(c.below(4))]
    return children if kind == 5 else {c.of(STRINGS[:-2]): child for child in children}


parameters = chosen(parameter_value)

# --- messages of the binary extension ------------------------------------------------------------


class Body(NamedTuple):
    """The JSON, the bytes after it, and the header length that is declared."""

    text: bytes
    blob: bytes
    length: int | str | bytes | None

    @property
    def whole(self) -> bytes:
        return self.text + self.blob


SHAPES: tuple[list[int], ...] = (
    *([], [1], [2], [3], [0], [1, 1], [2, 2], [1, 3], [2, 0], [0, 3], [1, 2, 1], [2, 1, 3]),
)


def readable(datatype: str) -> list[Any]:
    """Return the values that are valid elements in the JSON data of a datatype."""

    def is_read(value: Any) -> bool:
        entry = obj(name="x", shape=[Literal("1")], datatype=datatype, data=[value])
        try:
            reference.decode(write(obj(inputs=[entry])), None, "request")
        except reference.WireError:
            return False
        return True

    return [value for value in SCALARS if is_read(value)]


ELEMENTS = {datatype: readable(datatype) for datatype in DATATYPES}


def tensor(c: Choices, name: str) -> tuple[Members, bytes]:
    """Return the entry of a valid tensor, and its binary data."""
    datatype, shape = c.of(DATATYPES), c.of(SHAPES)
    entry = obj(name=name, shape=[Literal(str(dim)) for dim in shape], datatype=datatype)
    count, form = reference.element_count(datatype, shape), c.below(12)
    blob = b""
    if form == 11:
        entry.append(["parameters", obj(shared_memory_region="in")])
    elif form > 5 or datatype in reference.BINARY_ONLY:
        blob = wire(c, datatype, count)
        entry.append(["parameters", obj(binary_data_size=Literal(str(len(blob))))])
    else:
        values = ELEMENTS[datatype]
        is_float = datatype in ("FP32", "FP64")
        data = [
            number(c, datatype) if is_float and c.chance(30) else c.of(values) for _ in range(count)
        ]
        entry.append(["data", data])
    if c.chance(10):
        set_parameter(entry, c.of(["a", "", "é", *RESERVED]), json_value(c, 2))
    if c.chance(20):
        c.shuffle(entry)
    return entry, blob


def wire(c: Choices, datatype: str, count: int) -> bytes:
    """Return binary data, which are rarely damaged."""
    is_damaged = c.chance(8)
    if datatype == "BYTES":
        made = reference.elements([c.of([*TEXTS, *NOT_UTF8]) for _ in range(count)])
        return changed_elements(made, c) if is_damaged else made
    data = c.data(count * reference.SIZES[datatype])
    if datatype == "BOOL":
        data = bytes(byte & 1 for byte in data)
        return data[:-1] + c.of([b"\2", b"\xff"]) if is_damaged and data else data
    return data


def message_tree(c: Choices, kind: str) -> tuple[Members, bytes]:
    """Return the header of a valid message as a tree, and the bytes after it."""
    made = [tensor(c, f"t{i}") for i in range(1 + c.below(3))]
    entries = [entry for entry, _ in made]
    tree = obj(**{"inputs" if kind == "request" else "outputs": entries})
    if kind == "request" and c.chance(30):
        chosen_outputs(tree, c)
    if c.chance(30):
        value = ["binary_data_output", True] if c.chance(70) else [c.of(STRINGS), c.of(SCALARS)]
        tree.append(["parameters", Members([value])])
    if c.chance(20):
        tree.insert(c.below(2), [c.of(["id", "model_name", "model_version"]), c.of(STRINGS[:-2])])
    return tree, b"".join(blob for _, blob in made)


def change_size(tree: Members, c: Choices) -> None:
    item = c.of([i for i in tensors(tree) if parameter(i, "binary_data_size")])
    n = size(item)
    sizes = [n - 1, n + 1, n + 4, 0, 2 * n, -n, -1, 2**31, 2**32 + n, 2**63, 2**64 - 1, 2**64 + n]
    others = [str(n), Literal(f"{n}.0"), True, None, [n], Members()]
    set_parameter(item, "binary_data_size", c.of([*(Literal(str(n)) for n in sizes), *others]))


def change_shape(tree: Members, c: Choices) -> None:
    shape = c.of([s for item in tensors(tree) if type(s := item.get("shape")) is list])
    i, way = c.below(len(shape) + 1), c.below(7)
    n = int(shape[min(i, len(shape) - 1)].text) if shape else 1
    dims = [0, 1, n - 1, n + 1, -n, -1, 2**31, 2**32, 2**32 + n, 2**61, 2**62 + n, 2**63, 2**64 - 1]
    odd: list[Any] = [*map(Literal, NUMBERS), True, None, "2", []]
    value = c.of([*(Literal(str(dim)) for dim in dims), *dims, *odd])
    value = Literal(str(value)) if type(value) is int else value
    if way < 3 and shape:
        shape[i % len(shape)] = value
    elif way < 4:
        shape[i:i] = [Literal("1")] * c.of([1, 1, 63, 64, 65])
    elif way == 4:
        del shape[i % len(shape)]
    elif way == 5:
        shape.reverse()
    else:
        shape[:] = [Literal(str(2**32)), Literal(str(2**32)), *shape][: 1 + c.below(5)]


def change_datatype(tree: Members, c: Choices) -> None:
    item = c.of(tensors(tree))
    old = str(item.get("datatype"))
    odd = [old.lower(), "FP8", "STRING", "", old + " ", old + "\0", None, Literal("1")]
    item.set("datatype", c.of([*DATATYPES, *odd]))


def change_data(tree: Members, c: Choices) -> None:
    data = c.of([d for item in tensors(tree) if type(d := item.get("data")) is list])
    i, way = c.below(len(data)), c.below(8)
    if way < 3:
        data[i] = c.of([*SCALARS, [], Members()])
    elif way == 3:
        data.insert(i, c.of([data[i], *SCALARS, [], Members()]))
    elif way == 4:
        del data[i]
    elif way == 5:
        data[i:] = [data[i:]]
    elif way == 6:
        data[i] = c.of(data)
    else:
        for _ in range(c.of([2, *LEVELS])):
            data[:] = [data[:]]


def change_parameters(tree: Members, c: Choices) -> None:
    owner = c.of([tree, *items(tree, "inputs"), *items(tree, "outputs")])
    if c.chance(15):
        owner.set("parameters", c.of([[], None, "p", Literal("1"), True, Members(), [[]]]))
        return
    if owner.get("parameters") is None:
        owner.set("parameters", Members())
    values: list[Any] = [
        True,
        False,
        None,
        "true",
        "in",
        [],
        Members(),
        *map(Literal, NUMBERS[:12]),
    ]
    owner.get("parameters").append([c.of([*FRAMING, *RESERVED, "x\0y"]), c.of(values)])
    if c.chance(30):
        c.shuffle(owner.get("parameters"))


def change_members(tree: Members, c: Choices) -> None:
    """Add, drop, repeat, rename or reorder the members of an object."""
    owner, way = c.of(objects(tree)), c.below(6)
    if way == 0:
        owner.insert(c.below(len(owner) + 1), [c.of(KEYS), json_value(c, 2)])
        return
    i = c.below(len(owner))
    if way == 1:
        del owner[i]
    elif way < 4:
        value = copy.deepcopy(owner[i][1]) if c.chance(40) else json_value(c, 1)
        owner.insert(c.below(len(owner) + 1), [owner[i][0], value])
    elif way == 4:
        key = owner[i][0]
        owner[i][0] = c.of([*KEYS, *FRAMING, key.upper(), key + "\0", "unknown"])
    else:
        c.shuffle(owner)


def change_type(tree: Members, c: Choices) -> None:
    c.of(c.of(objects(tree)))[1] = json_value(c, 2)


def change_depth(tree: Members, c: Choices) -> None:
    value, owner = json_value(c, 1), c.of(objects(tree))
    for _ in range(c.of(LEVELS)):
        value = [value]
    owner.append(["unknown", value])


def change_list(tree: Members, c: Choices) -> None:
    """Delete, repeat or reorder tensors or requested outputs."""
    values = c.of([v for v in (tree.get("inputs"), tree.get("outputs")) if v])
    i, way = c.below(len(values)), c.below(3)
    if way == 0:
        del values[i]
    elif way == 1:
        values.insert(c.below(len(values) + 1), copy.deepcopy(values[i]))
    else:
        c.shuffle(values)


def chosen_outputs(tree: Members, c: Choices) -> None:
    names = [item.get("name") for item in items(tree, "inputs")]
    outputs = [obj(name=c.of([*names, "o"])) for _ in range(c.below(3))]
    for output in outputs:
        if c.chance(70):
            output.append(["parameters", obj(binary_data=c.of([True, False, None]))])
    tree.set("outputs", outputs)


def change_name(tree: Members, c: Choices) -> None:
    item = c.of([*items(tree, "inputs"), *items(tree, "outputs")])
    names = [other.get("name") for other in tensors(tree)]
    item.set("name", c.of([*names, item.get("name") + "\0z", "x" * 300, None, *STRINGS]))


def tensors(tree: Members) -> list[Members]:
    return items(tree, "inputs") or items(tree, "outputs")


def objects(tree: Any) -> list[Members]:
    """Return every object of the tree that has members."""
    children = [value for _, value in tree] if isinstance(tree, Members) else tree
    below = [o for child in children if isinstance(child, list) for o in objects(child)]
    return [tree, *below] if isinstance(tree, Members) and tree else below


# What a change raises if the message lacks the part that it would change.
NOT_APPLICABLE = (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError)
TREE_CHANGES: Sequence[Callable[[Members, Choices], None]] = (
    *(change_size, change_shape, change_shape, change_datatype, change_data, change_data),
    *(change_parameters, change_members, change_type, change_depth, change_list, chosen_outputs),
    *(change_name, change_depth),
)


def change_tree(tree: Members, c: Choices, changes: Any = TREE_CHANGES) -> None:
    with suppress(*NOT_APPLICABLE):
        c.of(changes)(tree, c)


def changed_text(text: bytes, c: Choices) -> bytes:
    i, way = c.below(len(text) + 1), c.below(6)
    if way < 3:
        return text[:i] + c.of(TOKENS) + text[i + c.of([0, 0, 1, 2]) :]
    if way == 3:
        return c.of([b"\xef\xbb\xbf", b" ", b"\0"]) + text
    if way == 4:
        return text + c.of([b" ", b"\n", b"\0", b"\0\0\0\0", b"x", b"{}", b"\xff"])
    return text[:i]


def changed_blob(blob: bytes, c: Choices) -> bytes:
    i, way = c.below(len(blob) + 1), c.below(5)
    if way < 2:
        return changed_elements(blob, c)
    if way == 2:
        return blob[:i] + c.of([b"\0", b"\1", b"\2", b"\xff"]) + blob[i + 1 :]
    return blob[:i] if way == 3 else blob[:i] + c.data(1 + c.below(8)) + blob[i:]


def lengths(n: int, total: int) -> list[str]:
    """Return valid and invalid texts for a header length of n."""
    numbers = (n, n - 1, n + 1, 0, -n, total, n + 2**31, n + 2**32, 2**63, 2**64 + n)
    written = "{:020}|{:021}|+{}| {}|{} |\t{}|{0}, {0}|{0},1|{}junk|{}.0|{}e0|0x{:x}||abc|²|-0|{},|"
    written += ",".join(["{0}"] * 10)
    return [*map(str, numbers), *(text.format(n) for text in written.split("|"))]


def length_of(c: Choices, text: bytes, blob: bytes) -> int | str | bytes | None:
    """Return a header length, usually the correct one, in the forms that the decoder accepts."""
    n, form = len(text), c.below(20)
    if form < 6 and not blob:
        return None
    if form < 14:
        return n
    if form < 17:
        return str(n) if form < 16 else str(n).encode()
    if form == 17:
        total = n + len(blob)
        return c.of([n - 1, n + 1, 0, -1, -n, total, total + 1, 2**31, 2**63, 2**64])
    text_form = c.of(lengths(n, n + len(blob)))
    return text_form if form == 18 else text_form.encode("latin-1")


def message(c: Choices, kind: str) -> Body:
    """Return a message, valid or with up to three changes."""
    tree, blob = message_tree(c, kind)
    ways = [c.below(5) for _ in range(c.of([0, 1, 1, 1, 2, 3]))]
    if 0 in ways:
        old, blob = len(blob), changed_blob(blob, c)
        binary = [item for item in tensors(tree) if size(item)]
        if binary and c.chance(80):
            nbytes = size(binary[-1]) + len(blob) - old
            set_parameter(binary[-1], "binary_data_size", Literal(str(nbytes)))
    for way in ways:
        if way > 1:
            change_tree(tree, c)
    text = write(tree)
    if 1 in ways:
        text = changed_text(text, c)
    if c.chance(5):
        text += b" " * c.below(64)
    return Body(text, blob, length_of(c, text, blob))


requests, responses = chosen(message, "request"), chosen(message, "response")


def json_tensor(c: Choices) -> bytes:
    """Return a request of one JSON tensor with many elements, of which one may be invalid."""
    datatype, n = c.of(sorted(reference.DATATYPES - reference.BINARY_ONLY)), 1 + c.below(30)
    data = [c.of(ELEMENTS[datatype]) for _ in range(n)]
    if datatype not in ("BOOL", "BYTES"):
        data = [number(c, datatype) for _ in range(n)]
    if c.chance(30):
        data[c.below(n)] = c.of(SCALARS)
    shape = [Literal(str(n))]
    return write(obj(inputs=[obj(name="x", shape=shape, datatype=datatype, data=data)]))


json_tensors = chosen(json_tensor)

DIMS: tuple[tuple[int, ...], ...] = (
    *((-1,), (), (1,), (4,), (-1, 3), (2, -1, 2), (1, 1)),
    *((0,), (-1, 0), (-1, -1), (-1, 2**32, 2**32), (2**61, -1)),
)
SPECS = [
    tw.TensorSpec("raw", datatype, dims, batching)  # type: ignore[arg-type]
    for datatype in DATATYPES
    for dims in DIMS
    for batching in (False, True)
]


def raw_request(c: Choices) -> tuple[tw.TensorSpec, bytes]:
    """Return the specification of an input, and a body, which often fits."""
    spec = c.of(SPECS)
    step = reference.SIZES.get(spec.datatype, 1) * c.of([1, 1, 3, 4])
    body = c.data(max(step * c.below(5) + c.of([0, 0, 0, 1, -1]), 0))
    return spec, bytes(byte & 1 for byte in body) if c.chance(60) else body


raw_requests = chosen(raw_request)

# --- HTTP headers --------------------------------------------------------------------------------

HEADER_NAMES = (
    *("Inference-Header-Content-Length", "inference-header-content-length", "Content-Type"),
    *("content-type", "INFERENCE-HEADER-CONTENT-LENGTH", "inference-header-content-lengtH ", "x"),
    *("\xc7ontent-type", "Inference-Header-Content-Length\xad", ""),
)
TYPES = [f"application/vnd.{name}-triton.binary+json" for name in ("sagemaker", "vertex-ai")]
TYPES += [TYPES[0].upper(), TYPES[0] + " ", TYPES[1] + "x", "application/json", ""]
PARAMETERS = [";json-header-size={}", '; JSON-Header-Size = "{}" ', ";json-header-size", ";a=b", ""]
PARAMETERS += [';json-header-size="{}', ";json-header-size=;q=1", ";json-header-size={};q=1"]


def header_field(c: Choices) -> tuple[str, str]:
    name, value = c.of(HEADER_NAMES), c.of(lengths(c.of([7, 7, 93]), 100))
    if name.lower() == "content-type":
        more = [c.of(PARAMETERS).replace("{}", value) for _ in range(c.below(3))]
        value = c.of(TYPES) + "".join(more)
    return name, value


headers = chosen(lambda c: [header_field(c) for _ in range(c.below(4))])

# --- calls of a BodyBuffer -----------------------------------------------------------------------

SIZES = (0, 1, 5, 62, 63, 64, 126, 127, 128, 998, 4094, 4096, 65535, 65537, 131071, 131072)
BOUNDS = (*SIZES, 2**62, 2**63 - 1, 2**64)
CALLS = ("write", "write", "receive", "create_view", "release_views", "advance")


def buffer_calls(c: Choices) -> tuple[Any, ...]:
    """Return the arguments of a BodyBuffer, and the names and sizes of calls."""
    bounds = [c.of(BOUNDS if c.chance(20) else SIZES) if c.chance(50) else None for _ in range(3)]
    return (*bounds, [(c.of(CALLS), c.of(SIZES)) for _ in range(c.below(20))])


buffers = chosen(buffer_calls)
