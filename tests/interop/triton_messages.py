"""Messages for the differential test with Triton: the case tables, edge cases, and a strategy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import tensorwire as tw
from interop.triton_models import ANY, DATATYPES, MODELS, N_SLOTS, RANKS, slot
from support import reference, strategies
from support.cases import MALFORMED, RAW_MALFORMED, RAW_VALID, VALID
from support.json_tree import Literal, Members, is_text, items, obj, parameter, read, write
from support.malformed import GOOD, N
from support.strategies import Choices


@dataclass(frozen=True)
class Message:
    """A body, the value of its header length field, its model, and how to decode it.

    `raw_input` declares the input of a model with one input, which accepts raw requests.
    """

    id: str
    body: bytes
    header_length: str | None
    model: str = ANY
    raw_input: tw.TensorSpec | None = None

    def parts(self) -> tuple[bytes, bytes]:
        """Return the JSON and the bytes after it. Raise ValueError for an invalid length."""
        length = len(self.body) if self.header_length is None else int(self.header_length)
        if not 0 <= length <= len(self.body):
            raise ValueError(f"a header length of {length}")
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


def extent(item: Members) -> int:
    """Return the bytes that the dimensions need, ignoring zeros; a BYTES element counts 16."""
    shape, datatype = item.get("shape"), item.get("datatype")
    dims = [number(dim) for dim in shape] if type(shape) is list else []
    nbytes = reference.SIZES.get(datatype, 16) if isinstance(datatype, str) else 16
    return math.prod(dim for dim in dims if dim) * nbytes


def number(literal: Any) -> int:
    """Return a dimension, or 0 if it is not an integer that Triton accepts."""
    text = literal.text if isinstance(literal, Literal) else ""
    return int(text) if text.isdecimal() and len(text) < 30 else 0


# --- the messages of the tables ------------------------------------------------------------------


def base_messages() -> list[Message]:
    """Return the cases of the tables that can be sent over HTTP to an existing model."""
    messages = []
    row: Any
    for row in (*VALID, *MALFORMED):
        length = row.header_length
        text = length.decode("latin-1") if isinstance(length, bytes) else length
        if isinstance(text, str) and ("\n" in text or max(text, default="") > "\xff"):
            continue  # HTTP cannot carry it
        found = fitted(Message(row.id, row.body, None if text is None else str(text)))
        messages += found if row in VALID else found[:1]
    return [*messages, *edge_messages(), *raw_messages()]


def edge_messages() -> list[Message]:
    """Return messages that the tables lack and that changes rarely produce."""

    def one(id: str, datatype: str, shape: list[int], data: list[Any], **more: Any) -> Message:
        entry = reference.entry("x", datatype, shape, None)
        entry.header["data"] = data
        return Message(id, reference.request([entry], **more)[0], None)

    fp32 = ("FP32", [2], [1.0, 2.0])
    classes, region = {"classification": 2}, {"shared_memory_region": "in"}
    found = [
        one("K1 classification", *fp32, outputs=[{"name": "x", "parameters": classes}]),
        one("S1 shared memory output", *fp32, outputs=[{"name": "x", "parameters": region}]),
        one("X6 NUL in a parameter's name", *fp32, parameters={"binary_data_output\0": True}),
        one("a shape beyond memory", "INT8", [2**61], [1]),
        one("J2 empty BF16 as JSON", "BF16", [0], []).changed(all_binary),
        one("C15 a shape of no bytes", "BYTES", [2**63, 2], ["a"]).changed(all_binary),
        one("1e400 in an unknown member", *fp32, unknown=0).changed(
            lambda tree: tree.set("unknown", Literal("1e400"))
        ),
        one("J5 Inf", *fp32).changed(
            lambda tree: tree.get("inputs")[0].set("data", [Literal("-Inf"), Literal("-NaN")])
        ),
    ]
    found = [message.changed(fit_names) for message in found]
    length = f"{2**32 + len(found[0].body)}"
    return [*found, replace(found[0], id="a length past 2^32", header_length=length)]


def fitted(message: Message) -> list[Message]:
    """Return the case for the model `any`, with all outputs binary and as requested."""
    if message.body == GOOD and message.header_length is not None:  # a row of odd lengths
        named = replace(message, header_length=str(N)).changed(fit_names)
        length = message.header_length.replace(str(N), str(named.header_length))
        return [replace(named, header_length=length)]
    request = message.changed(as_request)
    return [request.changed(all_binary).changed(fit_names), request.changed(fit_names)]


def raw_messages() -> list[Message]:
    specs = {
        (datatype, tuple(dims), model.max_batch_size > 0): model.name
        for model in MODELS
        if len(model.tensors) == 1
        for datatype, dims in model.tensors
    }
    found = []
    row: Any
    for row in (*RAW_VALID, *RAW_MALFORMED):
        model = specs.get((row.datatype, row.dims, row.batching))
        if model is not None:
            spec = tw.TensorSpec("INPUT0", row.datatype, row.dims, batching=row.batching)
            lengths = ("0", None) if not row.body else ("0", "-0", "0x5", "abc", "")
            found += [Message(row.id, row.body, length, model, spec) for length in lengths]
    return found


def as_request(tree: Any) -> None:
    """Convert a response's outputs into the inputs of a request."""
    is_response = isinstance(tree, Members) and tree.get("inputs") is None
    if is_response and any(item.get("shape") is not None for item in every(tree, "outputs")):
        for member in tree:
            member[0] = "inputs" if member[0] == "outputs" else member[0]


def all_binary(tree: Any) -> None:
    """Request binary outputs, unless the message already has a choice."""
    if isinstance(tree, Members) and not tree.get("parameters") and not tree.get("outputs"):
        tree.drop("parameters")
        tree.append(["parameters", obj(binary_data_output=True)])


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


def every(tree: Members, key: str) -> Iterator[Members]:
    """Yield the objects in all lists with this key, including duplicate keys."""
    for own, value in tree:
        if own == key and type(value) is list:
            yield from (item for item in value if isinstance(item, Members))


# --- the strategy --------------------------------------------------------------------------------

BASES = base_messages()
IDS = {row.id for row in VALID}
BASES_VALID = [message for message in BASES if message.id in IDS]
CHANGES = [change for change in strategies.TREE_CHANGES if change is not strategies.change_name]


def message(c: Choices) -> Message | None:
    """Return a message of the tables or a valid one of the strategies, usually with changes."""
    if c.chance(40):
        tree, blob = strategies.message_tree(c, "request")
        made = Message("random", b"", None).of(write(tree), blob).changed(fit_names)
    else:
        made = c.of(c.of([BASES, BASES_VALID]))
    is_raw, with_bytes = made.raw_input is not None, c.below(10) < 3
    for _ in range(c.of([1, 1, 1, 1, 2, 3]) if made.id != "random" or c.chance(75) else 0):
        with suppress(ValueError):
            text, blob = made.parts()
            if not is_raw and not with_bytes:
                made = made.changed(lambda tree: change(tree, c)).changed(fit_names)
            elif c.chance(40):
                made = made.of(strategies.changed_text(text, c), blob)
            elif c.chance(67):
                made = made.of(text, strategies.changed_blob(blob, c))
            else:
                length = c.of([None, None, *strategies.lengths(len(text), len(made.body))])
                made = replace(made, header_length=length)
    if not is_raw and c.chance(8):
        made = made.changed(lambda tree: change(tree, c, [strategies.change_name]))
    # A restart of the server costs as much as 1000 messages.
    is_sent = not needs_too_much_memory(made) and (not may_stop_triton(made) or c.chance(1))
    return replace(made, id=f"{made.id} ~") if is_sent else None


def change(tree: Any, c: Choices, changes: Any = CHANGES) -> None:
    if isinstance(tree, Members):
        strategies.change_tree(tree, c, changes)


def needs_too_much_memory(message: Message) -> bool:
    """Return whether Triton, which allocates by the shape, would need too much memory."""
    tree = message.tree()
    entries = every(tree, "inputs") if isinstance(tree, Members) else ()
    return any(2**24 < extent(item) < 2**60 and parameter(item, "binary_data_size") is None
               for item in entries)  # fmt: skip


def may_stop_triton(message: Message) -> bool:
    entries = items(message.tree(), "inputs")
    shapes = [item.get("shape") for item in entries]
    has_many = any(type(shape) is list and len(shape) > 32 for shape in shapes)
    return has_many or any(extent(item) >= 2**60 for item in entries)


messages = strategies.chosen(message).filter(bool)
