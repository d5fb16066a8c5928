"""Messages for the differential test: the case tables, edge cases, and seeded mutations of them."""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import tensorwire as tw
from interop.plain_message import (
    Literal,
    Members,
    Message,
    extent,
    members,
    n_dims,
    parameter,
    read,
    size,
    write,
)
from interop.triton_models import DATATYPES, MODELS, N_SLOTS, RANKS, slot
from support import reference
from support.cases import (
    MALFORMED,
    RAW_MALFORMED,
    RAW_VALID,
    VALID,
    Malformed,
    RawMalformed,
    RawValid,
    Valid,
)
from support.malformed import GOOD, N

Random = random.Random
LITERALS = (
    "0 1 -1 2 8 1.0 1e2 -0 127 128 255 256 65536 2147483648 -2147483649 4294967296 1e39 1e400 "
)
LITERALS += "9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616 0.1 "
LITERALS += "0.30000000000000004 123456789.123456789e-30 NaN Infinity -Infinity -NaN Inf -Inf 01 .5"
NUMBERS = [Literal(text) for text in LITERALS.split()]
STRINGS = ["", "a", "8", "FP32", "BYTES", "x\0y", "é", "\ud800", "a\udc00b", chr(0x10FFFF)]
KEYS = ("name", "shape", "datatype", "parameters", "data", "inputs", "outputs", "id", "model_name")
FRAMING = ("binary_data_size", "binary_data", "binary_data_output", "shared_memory_region")
RESERVED = ("classification", "priority", "timeout", "sequence_id", "sequence_end", "triton_x", "p")
CONTROL = [b"\0", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\t", b" ", b"\n", b"\x01", b"\x7f"]
SYNTAX = [b",", b'"', b"{", b"}", b"[", b"]", b":", b"\\", b"0", b"9", b"-", b"e", b".", b"/"]
TAILS = (b"\0", b"\0\0\0\0", b"x", b" ", b"\n", b"{}", b"\xff")
PREFIXES = (0, 1, 4, 255, 2**16, 2**24, 2**31, 2**32 - 4, 2**32 - 1)
WORDS = ("", "abc", "0x5", "-0", "+0", "00", "-1", "value", "99999999999", "1e3")


# --- the messages of the tables ------------------------------------------------------------------


def base_messages() -> list[Message]:
    """Yield the cases of the tables that can be sent over HTTP to an existing model."""
    messages = []
    rows: tuple[Valid | Malformed, ...] = (*VALID, *MALFORMED)
    for row in rows:
        length = row.header_length
        if isinstance(length, bytes):
            length = length.decode("latin-1")
        with suppress(ValueError):  # a header that HTTP cannot carry
            length = None if length is None else sendable(str(length))
            found = fitted(Message(row.id, row.body, length))
            messages += found if isinstance(row, Valid) else found[:1]
    return [*messages, *edge_messages(), *raw_messages()]


def edge_messages() -> list[Message]:
    """Yield messages that the tables lack and that mutations rarely produce."""
    fp32 = [reference.entry("x", "FP32", [2], [1.0, 2.0], False)]
    classes = [{"name": "x", "parameters": {"classification": 2}}]
    huge, _ = reference.request([reference.entry("x", "INT8", [2**61], [1], False)])
    body, _ = reference.request(fp32, outputs=classes)
    text = reference.entry("x", "BYTES", [2**63, 2], [b"a"], False)
    region = [{"name": "x", "parameters": {"shared_memory_region": "in"}}]
    nul = {"binary_data_output\0": True}
    empty = b'{"inputs":[{"name":"x","shape":[0],"datatype":"BF16","data":[]}]}'
    found = [
        Message("K1 classification", body, None),
        Message("a shape beyond memory", huge, None),
        Message("J2 empty BF16 as JSON", empty, None).changed(all_binary),
        Message("C15 a shape of no bytes", reference.request([text])[0], None).changed(all_binary),
        Message("S1 shared memory output", reference.request(fp32, outputs=region)[0], None),
        Message("X6 NUL in a parameter's name", reference.request(fp32, parameters=nul)[0], None),
        Message("1e400 in an unknown member", body[:-1] + b',"unknown":1e400}', None),
    ]
    found = [message.changed(fit_names) for message in found]
    return [
        *found,
        replace(found[0], id="a length past 2^32", header_length=f"{2**32 + len(found[0].body)}"),
    ]


def fitted(message: Message) -> list[Message]:
    """Yield the case for the model `any`, with all outputs binary and as requested."""
    if message.body == GOOD and message.header_length is not None:  # a row of odd lengths
        named = replace(message, header_length=str(N)).changed(fit_names)
        length = message.header_length.replace(str(N), str(named.header_length))
        return [replace(named, header_length=length)]
    request = message.changed(as_request)
    return [request.changed(all_binary).changed(fit_names), request.changed(fit_names)]


def sendable(length: str) -> str:
    """Return a header's value, or raise ValueError if HTTP cannot carry it."""
    length.encode("latin-1")
    if "\n" in length:
        raise ValueError("a line break")
    return length


def raw_messages() -> list[Message]:
    specs = {
        (datatype, tuple(dims), model.max_batch_size > 0): model.name
        for model in MODELS
        if len(model.tensors) == 1
        for datatype, dims in model.tensors
    }
    found = []
    rows: tuple[RawValid | RawMalformed, ...] = (*RAW_VALID, *RAW_MALFORMED)
    for row in rows:
        model = specs.get((row.datatype, row.dims, row.batching))
        if model is not None:
            spec = tw.TensorSpec("INPUT0", row.datatype, row.dims, batching=row.batching)
            lengths = ("0", None) if not row.body else ("0", "-0", "0x5", "abc", "")
            found += [Message(row.id, row.body, length, model, spec) for length in lengths]
    return found


def as_request(tree: Any) -> None:
    """Convert a response's outputs into the inputs of a request."""
    if isinstance(tree, Members) and tree.get("inputs") is None:
        entries = [item for key, value in tree if key == "outputs" and type(value) is list
                   for item in value if isinstance(item, Members)]  # fmt: skip
        if any(item.get("shape") is not None for item in entries):
            for member in tree:
                member[0] = "inputs" if member[0] == "outputs" else member[0]


def all_binary(tree: Any) -> None:
    """Request binary outputs, unless the message already has a choice."""
    if isinstance(tree, Members) and not tree.get("parameters") and not tree.get("outputs"):
        tree.drop("parameters")
        tree.append(["parameters", Members([["binary_data_output", True]])])


def fit_names(tree: Any) -> None:
    """Rename inputs and outputs to those of the model `any`; keep the characters after a NUL."""
    if not isinstance(tree, Members):
        return
    names: dict[str, str] = {}
    used: dict[tuple[str, int], int] = {}
    for item in every(tree, "inputs"):
        old, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape")
        if not isinstance(old, str) or not is_text(old):
            continue
        datatype = datatype if datatype in DATATYPES else "FP32"
        rank = len(shape) if type(shape) is list else 1
        kind = datatype, rank if rank in RANKS else 1
        own, nul, tail = old.partition("\0")
        if own not in names:
            names[own] = slot(*kind, used.get(kind, 0) % N_SLOTS)
            used[kind] = used.get(kind, 0) + 1
        item.set("name", names[own] + nul + tail)
    fresh = iter([*names.values()] * 2)
    outputs: dict[str, str] = {}
    for item in every(tree, "outputs"):
        old = item.get("name")
        if isinstance(old, str) and names:
            own, nul, tail = old.partition("\0")
            if own not in outputs:
                outputs[own] = next(fresh, own)
            item.set("name", outputs[own] + nul + tail)


def is_text(string: str) -> bool:
    return all(ord(character) < 0x10FF00 for character in string)


def every(tree: Members, key: str) -> Iterator[Members]:
    """Yield the objects in all lists with this key, including duplicate keys."""
    for own, value in tree:
        if own == key and type(value) is list:
            yield from (item for item in value if isinstance(item, Members))


# --- messages of our own -------------------------------------------------------------------------


def random_message(rng: Random) -> Message:
    """Return a valid message of one to four tensors, binary or JSON, of any datatype."""
    entries = [random_entry(rng, f"t{i}") for i in range(rng.randint(1, 4))]
    options: dict[str, Any] = {"parameters": {"binary_data_output": rng.random() < 0.7}}
    if rng.random() < 0.3:
        options["outputs"] = [
            {"name": f"t{i}", "parameters": {"binary_data": rng.random() < 0.7}}
            for i in range(rng.randint(1, len(entries)))
        ]
    body, length = reference.request(entries, align=rng.choice([1, 64]), **options)
    message = Message("random", body, None if length is None else str(length))
    return message.changed(fit_names)


def random_entry(rng: Random, name: str) -> reference.Entry:
    datatype = rng.choice(DATATYPES)
    shape = [rng.choice([0, 1, 1, 2, 2, 3, 5]) for _ in range(rng.randint(1, 5))]
    values = [random_value(rng, datatype) for _ in range(reference.element_count(datatype, shape))]
    binary = datatype in reference.BINARY_ONLY or rng.random() < 0.6
    return reference.entry(name, datatype, shape, values, binary)


def random_value(rng: Random, datatype: str) -> Any:
    if datatype == "BYTES":
        return "".join(rng.choices('aé\0"\\/😀\n', k=rng.randint(0, 9))).encode()
    if datatype in ("BOOL", "BF16"):
        return rng.random() < 0.5
    code = "<" + reference.FORMATS[datatype]
    if datatype in ("FP16", "FP32"):
        return struct.unpack(code, struct.pack(code, rng.uniform(-9, 9)))[0]
    if datatype == "FP64":
        return rng.choice([rng.uniform(-9, 9), rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300)])
    return struct.unpack(code, rng.randbytes(struct.calcsize(code)))[0]


# --- mutations of the tree -----------------------------------------------------------------------


def mutated_size(tree: Members, rng: Random) -> None:
    item = rng.choice([i for i in members(tree, "inputs") if parameter(i, "binary_data_size")])
    n = size(item)
    sizes = [n - 1, n + 1, n + 4, 0, 2 * n, -n, -1, 2**31, 2**32 + n, 2**63, 2**64 - 1, 2**64 + n]
    others = [str(n), Literal(f"{n}.0"), True, None, [n], Members()]
    value = rng.choice([*(Literal(str(number)) for number in sizes), *others])
    item.get("parameters").set("binary_data_size", value)


def mutated_shape(tree: Members, rng: Random) -> None:
    shape = rng.choice(members(tree, "inputs")).get("shape")
    i = rng.randrange(len(shape) + 1)
    n = int(shape[min(i, len(shape) - 1)].text) if shape else 1
    dims = [0, 1, n - 1, n + 1, -n, -1, 2**31, 2**32, 2**32 + n, 2**61, 2**62 + n, 2**63, 2**64 - 1]
    odd: list[Any] = [*NUMBERS, True, None, "2", []]
    value = rng.choice([*(Literal(str(dim)) for dim in dims), *odd])
    way = rng.choice(["replace", "replace", "insert", "one", "delete", "swap", "wrap"])
    if way == "replace":
        shape[i % len(shape)] = value
    elif way in ("insert", "one"):
        shape.insert(i, value if way == "insert" else Literal("1"))
    elif way == "delete":
        del shape[i % len(shape)]
    elif way == "swap":
        shape.reverse()
    else:
        shape[:] = [Literal(str(2**32)), Literal(str(2**32)), *shape][: rng.randint(1, 5)]


def mutated_datatype(tree: Members, rng: Random) -> None:
    item = rng.choice(members(tree, "inputs"))
    old = str(item.get("datatype"))
    odd = [old.lower(), "FP8", "STRING", "", old + " ", None, Literal("1")]
    item.set("datatype", rng.choice([*DATATYPES, *odd]))


def mutated_data(tree: Members, rng: Random) -> None:
    data = rng.choice([d for item in members(tree, "inputs") if (d := item.get("data"))])
    values: list[Any] = [*NUMBERS, *NUMBERS, *STRINGS, None, True, False, [], Members()]
    i = rng.randrange(len(data))
    way = rng.choice(["replace", "replace", "replace", "insert", "delete", "nest", "deep", "swap"])
    if way == "replace":
        data[i] = rng.choice(values)
    elif way == "insert":
        data.insert(i, rng.choice([data[i], data[i], *values]))
    elif way == "delete":
        del data[i]
    elif way == "nest":
        data[i:] = [data[i:]]
    elif way == "swap":
        data[i] = copy.deepcopy(rng.choice(data))
    else:
        for _ in range(rng.choice([2, 98, 99, 100, 101, 150])):
            data[:] = [data[:]]


def mutated_parameters(tree: Members, rng: Random) -> None:
    owner = rng.choice([tree, *members(tree, "inputs"), *members(tree, "outputs")])
    if rng.random() < 0.15:
        owner.set("parameters", rng.choice([[], None, "p", Literal("1"), True, Members(), [[]]]))
        return
    if owner.get("parameters") is None:
        owner.set("parameters", Members())
    key = rng.choice([*FRAMING, *RESERVED])
    values: list[Any] = [True, False, True, False, None, "true", "in", [], Members(), *NUMBERS[:6]]
    owner.get("parameters").append([key, rng.choice(values)])
    if rng.random() < 0.3:
        rng.shuffle(owner.get("parameters"))


def mutated_members(tree: Members, rng: Random) -> None:
    """Drop, add, repeat, rename or reorder the members of an object."""
    owner = rng.choice(objects(tree))
    way = rng.choice(["drop", "add", "repeat", "repeat", "rename", "shuffle"])
    if way == "add":
        owner.insert(rng.randint(0, len(owner)), [rng.choice(KEYS), random_json(rng, 2)])
        return
    member = rng.choice(owner)
    if way == "drop":
        owner.remove(member)
    elif way == "repeat":
        value = copy.deepcopy(member[1]) if rng.random() < 0.4 else random_json(rng, 1)
        owner.insert(rng.randint(0, len(owner)), [member[0], value])
    elif way == "rename":
        member[0] = rng.choice([*KEYS, *FRAMING, member[0].upper(), member[0] + "\0", "unknown"])
    else:
        rng.shuffle(owner)


def mutated_type(tree: Members, rng: Random) -> None:
    rng.choice(rng.choice(objects(tree)))[1] = random_json(rng, 2)


def mutated_list(tree: Members, rng: Random) -> None:
    """Delete, duplicate or reorder inputs or requested outputs."""
    items = rng.choice([v for v in (tree.get("inputs"), tree.get("outputs")) if v])
    way = rng.choice(["delete", "repeat", "shuffle"])
    if way == "delete":
        items.remove(rng.choice(items))
    elif way == "repeat":
        items.insert(rng.randint(0, len(items)), copy.deepcopy(rng.choice(items)))
    else:
        rng.shuffle(items)


def mutated_outputs(tree: Members, rng: Random) -> None:
    names = [item.get("name") for item in members(tree, "inputs")]
    outputs = [Members([["name", rng.choice([*names, *names, "o"])]]) for _ in range(2)]
    for output in outputs:
        if rng.random() < 0.7:
            value = rng.choice([True, False, True, False, None])
            output.append(["parameters", Members([["binary_data", value]])])
    tree.set("outputs", rng.choice([outputs, outputs[:1], [], None]))


def mutated_name(tree: Members, rng: Random) -> None:
    item = rng.choice([*members(tree, "inputs"), *members(tree, "outputs")])
    other = rng.choice(members(tree, "inputs")).get("name")
    odd = [other, item.get("name") + "\0z", "x", None, Literal("1")]
    item.set("name", rng.choice([*odd, *STRINGS]))


def objects(tree: Any) -> list[Members]:
    """Return every object of the tree that has members."""
    children = [value for _, value in tree] if isinstance(tree, Members) else tree
    below = [o for child in children if isinstance(child, list) for o in objects(child)]
    return [tree, *below] if isinstance(tree, Members) and tree else below


def random_json(rng: Random, depth: int) -> Any:
    if depth and rng.random() < 0.4:
        children = [random_json(rng, depth - 1) for _ in range(rng.randint(0, 2))]
        is_list = rng.random() < 0.5
        return children if is_list else Members([rng.choice(KEYS), child] for child in children)
    return rng.choice([None, True, False, *STRINGS, *NUMBERS])


TREE: Sequence[Callable[[Members, Random], None]] = (
    *(mutated_size, mutated_shape, mutated_datatype, mutated_data, mutated_data),
    *(mutated_parameters, mutated_members, mutated_type, mutated_list, mutated_outputs),
)


# --- mutations of the bytes ----------------------------------------------------------------------


def mutated_text(message: Message, rng: Random) -> Message:
    text, blob = message.parts()
    i, n = rng.randrange(len(text) + 1), rng.choice([0, 0, 1, 1, 2])
    way = rng.choice(["edit", "edit", "head", "tail", "tail", "cut"])
    if way == "edit":
        text = text[:i] + rng.choice([*CONTROL, *SYNTAX]) + text[i + n :]
    elif way == "head":
        text = rng.choice(CONTROL) + text
    elif way == "tail":
        text += rng.choice(TAILS)
    else:
        text = text[:i]
    return message.of(text, blob)


def mutated_blob(message: Message, rng: Random) -> Message:
    text, blob = message.parts()
    i = rng.randrange(len(blob))
    way = rng.choice(["prefix", "prefix", "byte", "cut", "tail", "delete"])
    if way == "prefix":
        n = rng.choice([*PREFIXES, *range(12)])
        blob = blob[:i] + struct.pack(rng.choice("<<<>") + "I", n) + blob[i + 4 :]
    elif way == "byte":
        blob = blob[:i] + bytes([rng.choice([0, 1, 2, 255])]) + blob[i + 1 :]
    elif way == "cut":
        blob = blob[:i]
    elif way == "delete":
        blob = blob[:i] + blob[i + 1 :]
    else:
        blob += rng.randbytes(rng.randint(1, 8))
    return message.of(text, blob)


def mutated_length(message: Message, rng: Random) -> Message:
    n = len(message.parts()[0])
    numbers = [n - 1, n + 1, 0, -n, n + 2**32, n + 2**31, 2**64 + n, len(message.body)]
    variants = [f"{n}junk", f"{n}.0", f"+{n}", f" {n}", f"{n} ", f"0{n}", f"{n}, {n}", f"{n}e0"]
    length = rng.choice([None, None, *map(str, numbers), *variants, *WORDS])
    return replace(message, header_length=length)


# The exceptions of a mutation if the message lacks the part that it would change.
NOT_APPLICABLE = (
    *(ValueError, IndexError, AttributeError, TypeError, RecursionError, ZeroDivisionError),
)
BYTES = (mutated_text, mutated_text, mutated_blob, mutated_blob, mutated_length)


def mutated(message: Message, rng: Random) -> Message:
    """Apply one to three mutations. A changed tree gets valid names, or rarely a mutated one."""
    is_raw = message.raw_input is not None
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        with suppress(*NOT_APPLICABLE):
            if is_raw or rng.random() < 0.3:
                message = rng.choice(BYTES)(message, rng)
            else:
                message = changed(message, rng.choice(TREE), rng)
                message = message.changed(fit_names)
    if not is_raw and rng.random() < 0.08:
        with suppress(*NOT_APPLICABLE):
            message = changed(message, mutated_name, rng)
    return message


def changed(message: Message, change: Callable[[Members, Random], None], rng: Random) -> Message:
    text, blob = message.parts()
    tree = read(text)
    change(tree, rng)
    return message.of(write(tree), blob)


def messages(seed: int, n: int) -> Iterator[Message]:
    """Yield `n` messages: the tables, then mutations. The same seed gives the same messages."""
    bases = base_messages()
    valid = [message for message in bases if message.id in {row.id for row in VALID}]
    yield from bases[:n]
    for i in range(max(0, n - len(bases))):
        rng = Random(f"{seed} {i}")
        base = random_message(rng) if rng.random() < 0.4 else rng.choice(rng.choice([bases, valid]))
        message = base if base.id == "random" and rng.random() < 0.1 else mutated(base, rng)
        if not needs_too_much_memory(message) and (
            rng.random() < 0.03 or not may_stop_triton(message)
        ):
            yield replace(message, id=f"{base.id} ~{i}")


def needs_too_much_memory(message: Message) -> bool:
    """Return whether Triton, which allocates by the shape, would need too much memory."""
    tree = message.tree()
    entries = every(tree, "inputs") if isinstance(tree, Members) else ()
    return any(2**24 < extent(item) < 2**60 and parameter(item, "binary_data_size") is None
               for item in entries)  # fmt: skip


def may_stop_triton(message: Message) -> bool:
    """Return whether the message may stop Triton; a restart costs as much as 1000 messages."""
    return any(
        extent(item) >= 2**60 or n_dims(item) > 32 for item in members(message.tree(), "inputs")
    )
