"""Mutations that keep most of an input valid, so that it reaches the code after the parser.

A quarter of the mutations are libFuzzer's own, which do not depend on the format.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from fuzz import grpc_messages
from fuzz.targets import N_CHOICES
from support import reference

CHOOSER = random.Random()  # seeded for each mutation, because creating one is slower
Bytewise = Callable[[bytes, int], bytes]
DATATYPES = (*sorted(reference.DATATYPES), "STRING", "fp32", "")
NUMBERS = (
    *(0, 1, 2, 3, 4, 5, 8, 16, 64, 65, 100, 255, 256, -1, 2**15, 2**16, 2**31 - 1, 2**31),
    *(2**32 - 1, 2**32, 2**53 + 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30),
)
SCALARS: tuple[Any, ...] = (
    *(*NUMBERS[:8], None, True, False, 0.5, -0.0, 1e39, 5e-324, 1e308, float("nan"), float("inf")),
    *("", "x", "\xe9", "\0", "\U0001f642", "\ud800", [], {}, [[]], {"k": 1}),
)
MEMBERS = (
    *("name", "datatype", "shape", "parameters", "data", "inputs", "outputs", "id", "zz", "error"),
    *("model_name", "model_version", "binary_data_size", "binary_data", "binary_data_output"),
    "shared_memory_region",
)
TOKENS = (
    *(b"NaN", b"Infinity", b"-Infinity", b"null", b"1e400", b"-0", b"-0.0", b"01", b"1" * 4400),
    *(rb'"\ud800"', rb'"\ud83d\ude00"', b'"\xff"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf", b"\0"),
    *(b" ", b"\n", b",", b"]", b"}", b"[" * 101, b"1E5", b"0.1", b"18446744073709551616"),
)


def mutated(target: str, data: bytes, max_nbytes: int, seed: int, bytewise: Bytewise) -> bytes:
    """Return a mutated copy of at most `max_nbytes`."""
    mutate = MUTATORS.get(target)
    if mutate is None:
        return bytewise(data, max_nbytes)
    chooser = CHOOSER
    chooser.seed(seed)
    if chooser.random() < 0.25:
        return bytewise(data, max_nbytes)
    for _ in range(chooser.choice((1, 1, 2, 4))):
        data = mutate(data, chooser, bytewise)
    return data[:max_nbytes]


# --- messages ------------------------------------------------------------------------------------

CHANGES = ("choices", "prefixes", "prefixes", "token", "bytes", *("header",) * 5)


def message(data: bytes, chooser: random.Random, bytewise: Bytewise) -> bytes:
    """Make one change to the header or the bytes after it, and usually correct the length."""
    front, body = bytearray(data[:N_CHOICES].ljust(N_CHOICES, b"\0")), data[N_CHOICES:]
    length = len(body) if front[0] % 8 == 0 else int.from_bytes(front[1:3], "little")
    text, blob = body[:length], body[length:]
    if chooser.random() < 0.2:
        text, blob = fresh(chooser)
    change = chooser.choice(CHANGES)
    if change == "choices":
        front[chooser.randrange(N_CHOICES)] = chooser.randrange(256)
    elif change == "prefixes":
        blob = prefixes(blob, chooser)
    elif change == "token":
        at = chooser.randrange(len(text) + 1)
        text = text[:at] + chooser.choice(TOKENS) + text[at + chooser.choice((0, 0, 1)) :]
    elif change == "bytes" and text:
        text = bytewise(text, len(text) + 64)
    else:
        text, blob = header(text, blob, chooser)
    if chooser.random() < 0.9:
        front[1:3] = min(len(text), 2**16 - 1).to_bytes(2, "little")
        if blob and front[0] % 8 == 0:
            front[0] += 1 + chooser.randrange(3)
    return bytes(front) + text + blob


def header(text: bytes, blob: bytes, chooser: random.Random) -> tuple[bytes, bytes]:
    """Change a value of the JSON; drop, add or duplicate a member; or add a tensor."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return fresh(chooser)
    key = chooser.choice(("inputs", "outputs"))
    if chooser.random() < 0.3 and type(tree) is dict and type(tree.get(key)) is list:
        entry, own = tensor(chooser)
        tree[key].append(entry)
        return written(tree), blob + own
    places = list(places_in(tree))
    owner, key = chooser.choice(places) if places else ({}, "")
    kind = chooser.randrange(6)
    if not places:
        return json.dumps(chooser.choice(SCALARS)).encode(), blob
    if kind == 0:
        del owner[key]
    elif kind == 1:
        owner[key] = other(owner[key], chooser)
    elif kind == 2:
        owner[key] = chooser.choice(SCALARS)
    elif kind == 3 and type(owner) is dict:
        owner[chooser.choice(MEMBERS)] = owner[key]
    elif kind == 4 and type(owner) is dict:
        return doubled(tree, owner, key, chooser), blob
    elif type(owner) is list:
        owner.insert(chooser.randrange(len(owner) + 1), owner[key])
    else:
        owner[key] = other(owner[key], chooser)
    return written(tree), blob


def places_in(tree: Any) -> Any:
    """Yield every (container, key) of a JSON tree."""
    items = tree.items() if type(tree) is dict else enumerate(tree) if type(tree) is list else ()
    for key, value in items:
        yield tree, key
        yield from places_in(value)


def other(value: Any, chooser: random.Random) -> Any:
    """Return a value of the same type, usually a neighbour or a limit."""
    choices: tuple[Any, ...] = (value,)
    if type(value) is bool:
        choices = (not value,)
    elif type(value) is int:
        choices = (value + 1, value - 1, 2 * value, -value, chooser.choice(NUMBERS))
    elif type(value) is float:
        choices = (-value, value * 1e40, value / 3, value + 0.1)
    elif type(value) is str and value in reference.DATATYPES:
        choices = DATATYPES
    elif type(value) is str:
        choices = (value + "x", value[:-1], "\xe9" + value, value + "\0", "x", value * 2)
    elif type(value) is list:
        choices = ([value], value * 2, value[::-1], value[:-1], [*value, 1], [])
    return chooser.choice(choices)


def doubled(tree: Any, owner: Any, key: str, chooser: random.Random) -> bytes:
    """Return the JSON with an additional member of the same name before this one."""
    value = owner[key]
    owner[key] = {"<here>": 0}
    text = written(tree)
    one, two = written(other(value, chooser)), written(value)
    if chooser.random() < 0.5:
        one = written(chooser.choice(SCALARS))
    return text.replace(b'{"<here>": 0}', one + b"," + written(key) + b":" + two)


def written(tree: Any) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode(errors="surrogatepass")


def fresh(chooser: random.Random) -> tuple[bytes, bytes]:
    """Return the JSON and the binary data of a new valid message."""
    tensors = [tensor(chooser) for _ in range(chooser.choice((1, 1, 2, 3)))]
    members = {"id": "1", "model_name": "m", "parameters": {"a": 1, "binary_data_output": True}}
    tree: dict[str, Any] = {key: members[key] for key in members if chooser.random() < 0.3}
    tree[chooser.choice(("inputs", "outputs"))] = [entry for entry, _ in tensors]
    if "inputs" in tree and chooser.random() < 0.3:
        tree["outputs"] = [{"name": "o", "parameters": {"binary_data": True}}, {"name": "p"}]
    return written(tree), b"".join(blob for _, blob in tensors)


def tensor(chooser: random.Random) -> tuple[dict[str, Any], bytes]:
    """Return a valid tensor of a few values, binary or JSON."""
    datatype = chooser.choice(sorted(reference.DATATYPES))
    shape = [chooser.choice((0, 1, 1, 2, 3)) for _ in range(chooser.randrange(4))]
    count = reference.element_count(datatype, shape)
    values: list[Any] = [chooser.choice((0, 1)) for _ in range(count)]
    if datatype == "BYTES":
        values = [chooser.choice((b"", b"a", b"\0", "é".encode())) for _ in range(count)]
    elif datatype == "BOOL":
        values = [bool(value) for value in values]
    binary = datatype in reference.BINARY_ONLY or chooser.random() < 0.7
    name = f"t{chooser.randrange(10_000)}"
    return reference.entry(name, datatype, shape, values, binary)


# --- BYTES ---------------------------------------------------------------------------------------


def prefixes(blob: bytes, chooser: random.Random) -> bytes:
    """Change a length prefix, add or remove elements, truncate the data, or append bytes."""
    starts, position = [0], 0
    while position + 4 <= len(blob) and len(starts) < 64:
        position += 4 + int.from_bytes(blob[position : position + 4], "little")
        if position > len(blob):
            break
        starts.append(position)
    at = chooser.choice(starts)
    element = reference.elements([chooser.choice((b"", b"a", b"\xc3\xa9", b"\0\0", b"z" * 13))])
    kind = chooser.randrange(5)
    if kind == 0:
        return blob[:at] + element + blob[at:]
    if kind == 1:
        return blob[:at] + blob[chooser.choice(starts) :]
    if kind == 2:
        return blob[: chooser.randrange(len(blob) + 1)]
    if kind == 3:
        return blob + chooser.randbytes(chooser.randrange(1, 6))
    length = int.from_bytes(blob[at : at + 4], "little")
    room = max(len(blob) - at - 4, 0)
    length = chooser.choice(
        (length + 1, length - 1, room, room + 1, 0, 2**31, 2**32 - 1, 2**32 - 4)
    )
    return blob[:at] + (length % 2**32).to_bytes(4, "little") + blob[at + 4 :]


def elements(data: bytes, chooser: random.Random, bytewise: Bytewise) -> bytes:
    """Change the elements, and sometimes the options and the count before them."""
    front, blob = data[:3].ljust(3, b"\0"), prefixes(data[3:], chooser)
    if chooser.random() < 0.2:
        front = bytes([chooser.randrange(4), chooser.randrange(8), 0])
    return front + blob


# --- gRPC messages -------------------------------------------------------------------------------


def grpc_message(data: bytes, chooser: random.Random, bytewise: Bytewise) -> bytes:
    """Change a field of the message, or sometimes the choices before it or all of it."""
    choices = data[:1] or b"\0"
    if chooser.random() < 0.1:
        choices = chooser.randbytes(1)
    kind = grpc_messages.KINDS[choices[0] % 4]
    fields = grpc_messages.parsed(kind, data[1:])
    if chooser.random() < 0.1:
        fields = grpc_messages.generated(kind, chooser)
    grpc_messages.changed(kind, fields, chooser)
    return choices + grpc_messages.written(fields)


MUTATORS: dict[str, Callable[[bytes, random.Random, Bytewise], bytes]] = {
    "request": message,
    "response": message,
    "decode_bytes": elements,
    "grpc": grpc_message,
}
