"""The rewriting functions of differences.py: each returns a message without one difference.

A function does not change other parts of the message. Ids such as J24 are those of
WIRE.md 10.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from interop.message_generator import fit_names, is_text
from interop.plain_message import (
    Literal,
    Members,
    Message,
    members,
    number,
    parameter,
    raw_bytes,
    size,
)
from interop.triton_models import RANKS
from support import reference

Node = Any


def tree(change: Callable[[Node], None]) -> Callable[[Message], Message]:
    return lambda message: message.changed(change)


def text(change: Callable[[bytes], bytes]) -> Callable[[Message], Message]:
    def rewrite(message: Message) -> Message:
        try:
            old, blob = message.parts()
        except ValueError:
            return message
        new = change(old)
        return message if new == old else message.of(new, blob)

    return rewrite


# --- the header length ---


def only_leading_digits(message: Message) -> Message:
    """B9, B10: keep the leading digits, because atoi stops after them."""
    value = message.header_length or ""
    is_read = not re.fullmatch("[0-9]*", value) and message.read_length()
    return as_read(message) if is_read else message


def wrapped_length(message: Message) -> Message:
    """B7, and more than 20 digits: wrap the length, because atoi returns a 32-bit int."""
    value = message.header_length or ""
    return as_read(message) if re.fullmatch("[0-9]{10,}", value) else message


def as_read(message: Message) -> Message:
    length = message.read_length()
    return message if length is None else replace(message, header_length=str(length))


def raw_request_without_digits(message: Message) -> Message:
    """B8, B11, B12: send a raw request, because atoi returns 0 if there are no digits."""
    is_raw = message.header_length is not None and message.read_length() == 0
    return replace(message, header_length="0") if is_raw else message


def empty_body(message: Message) -> Message:
    is_raw = message.header_length is None and not message.body
    return replace(message, header_length="0") if is_raw else message


def lenient_bools(message: Message) -> Message:
    """R14: accept any byte."""
    return replace(message, check_bool=b'"BOOL"' not in message.body and message.raw_input is None)


# --- the JSON text ---


def without_order_mark(text: bytes) -> bytes:
    return text.removeprefix(b"\xef\xbb\xbf")


def truncated_at_nul(text: bytes) -> bytes:
    return text.partition(b"\0")[0]


def full_names_of_infinities(text: bytes) -> bytes:
    """J5: replace Inf and -NaN by Infinity and NaN."""
    text = re.sub(rb"(?<=[\[,:\s])(-?)Inf(?=[\s,\]}])", rb"\1Infinity", text)
    return re.sub(rb"(?<=[\[,:\s])-NaN(?=[\s,\]}])", b"NaN", text)


# --- the JSON tree ---


def first_of_equal_keys(node: Node) -> None:
    """J24: keep the first of equal keys."""
    if isinstance(node, Members):
        seen: set[str] = set()
        node[:] = [m for m in node if not (m[0] in seen or seen.add(m[0]))]  # type: ignore[func-returns-value]
    for child in children(node):
        first_of_equal_keys(child)


def zero_for_nan(root: Node) -> None:
    """J5: replace NaN and infinities outside FP32 and FP64 data by 0."""
    data = [id(item.get("data")) for item in with_json(root, ("FP32", "FP64"))]

    def change(node: Node, is_data: bool) -> None:
        if not isinstance(node, list):
            return
        for i, child in enumerate(node):
            value = child[1] if isinstance(node, Members) else child
            if isinstance(value, Literal) and not is_data and is_word(value):
                if isinstance(node, Members):
                    child[1] = Literal("0")
                else:
                    node[i] = Literal("0")
            inner = type(value) is list and is_data and not isinstance(node, Members)
            change(value, id(value) in data or inner)

    change(root, False)


def is_word(value: Literal) -> bool:
    return value.text.lstrip("-") in ("NaN", "Infinity")


def children(node: Node) -> list[Node]:
    if isinstance(node, Members):
        return [value for _, value in node]
    return node if isinstance(node, list) else []


def tensors_and_outputs(root: Node) -> list[Members]:
    return members(root, "inputs") + members(root, "outputs")


def without_odd_parameters(root: Node) -> None:
    """X3: remove parameters that are not an object."""
    for item in tensors_and_outputs(root):
        if not isinstance(item.get("parameters"), Members):
            item.drop("parameters")


def without_odd_model(root: Node) -> None:
    """C39: remove a model name or version that is not a string."""
    for key in ("model_name", "model_version"):
        if isinstance(root, Members) and not isinstance(root.get(key), str):
            root.drop(key)


def truncated_names(root: Node) -> None:
    """X6: truncate names at a NUL."""
    for item in tensors_and_outputs(root):
        if isinstance(item.get("name"), str):
            item.set("name", item.get("name").partition("\0")[0])


def without_repeated_outputs(root: Node) -> None:
    """C25: keep the first output of each name."""
    names: set[str] = set()
    kept = []
    for item in members(root, "outputs"):
        if item.get("name") not in names:
            kept.append(item)
        names.add(item.get("name"))
    if kept:
        root.set("outputs", kept)


def is_empty(item: Members) -> bool:
    shape = item.get("shape")
    return type(shape) is list and (Literal("0") in shape or Literal("-0") in shape)


def without_data_of_empty_tensors(root: Node) -> None:
    """J18, J19: replace any data of an empty tensor by an empty list."""
    for item in members(root, "inputs"):
        has_data = any(key == "data" for key, _ in item)
        if is_empty(item) and has_data and parameter(item, "binary_data_size") is None:
            item.set("data", [])


def empty_binary_data(root: Node) -> None:
    """J1, J2: send empty FP16 and BF16 tensors as binary data."""
    for item in with_json(root, reference.BINARY_ONLY):
        if is_empty(item):
            item.drop("data")
            set_parameter(item, "binary_data_size", Literal("0"))


def set_parameter(item: Members, key: str, value: Node) -> None:
    """Set a parameter of an input, which has an object of parameters afterwards."""
    if not isinstance(item.get("parameters"), Members):
        item.set("parameters", Members())
    item.get("parameters").set(key, value)


def with_json(root: Node, datatypes: Collection[str]) -> list[Members]:
    """Return the inputs of these datatypes with JSON data."""
    return [
        item
        for item in members(root, "inputs")
        if item.get("datatype") in datatypes and type(item.get("data")) is list
    ]


def replaced(data: list[Node], change: Callable[[Node], Node]) -> list[Node]:
    return [replaced(v, change) if type(v) is list else change(v) for v in data]


def in_data(datatypes: Collection[str], change: Callable[[Node], Node]) -> Callable[[Node], None]:
    """Return a function that changes each value in the JSON data of these datatypes."""

    def rewrite(root: Node) -> None:
        for item in with_json(root, datatypes):
            item.set("data", replaced(item.get("data"), change))

    return rewrite


def _infinity(value: Node) -> Node:
    if isinstance(value, Literal) and math.isfinite(number := float(value.text)):
        try:
            struct.pack("<f", number)
        except OverflowError:
            return Literal("-Infinity" if number < 0 else "Infinity")
    return value


# J7: replace doubles beyond the range of FP32 by infinities.
infinities = in_data(("FP32",), _infinity)


NARROW = {f"{sign}INT{n}": n for sign in ("", "U") for n in (8, 16, 32)}


def wrapped(root: Node) -> None:
    """J8: wrap integers that are out of range."""
    for item in with_json(root, tuple(NARROW)):
        n, is_signed = NARROW[item.get("datatype")], item.get("datatype")[0] == "I"

        def change(value: Node, n: int = n, is_signed: bool = is_signed) -> Node:
            if isinstance(value, Literal) and re.fullmatch(r"-?\d+", value.text):
                offset = 2 ** (n - 1) if is_signed else 0
                if is_signed or not value.text.startswith("-"):
                    return Literal(str((int(value.text) + offset) % 2**n - offset))
            return value

        item.set("data", replaced(item.get("data"), change))


def flattened(root: Node) -> None:
    for item in members(root, "inputs"):
        data = item.get("data")
        if type(data) is list and depth(data) > 100:
            item.set("data", flat(data))


def depth(node: Node) -> int:
    return 1 + max(map(depth, node), default=0) if type(node) is list else 0


def flat(data: list[Node]) -> list[Node]:
    return [leaf for v in data for leaf in (flat(v) if type(v) is list else [v])]


# --- messages that Triton rejects ---


def one_for_scalar(root: Node) -> None:
    """C17: replace rank 0 by shape [1]."""
    for item in members(root, "inputs"):
        if item.get("shape") == []:
            item.set("shape", [Literal("1")])


FLOATS = ("FP32", "FP64")
# J14: replace null by NaN.
nan_for_null = in_data(FLOATS, lambda value: Literal("NaN") if value is None else value)


INTEGERS = (*NARROW, "INT64", "UINT64")


def _without_a_point(value: Node) -> Node:
    if isinstance(value, Literal) and re.fullmatch(r"-?\d.*[.eE].*", value.text):
        number = reference.integral(value.text)
        return value if number is None else Literal(str(number))
    return value


def _without_exponent(value: Node) -> Node:
    found = isinstance(value, Literal) and re.fullmatch(r"(-?)0(\.0+)?[eE].*", value.text)
    return Literal(f"{found[1]}0.0") if found else value


# J10: write integers without a point and an exponent.
integers_without_a_point = in_data(INTEGERS, _without_a_point)
zero_without_exponent = in_data(FLOATS, _without_exponent)
minus_zero_with_a_point = in_data(
    FLOATS, lambda value: Literal("-0.0") if value == Literal("-0") else value
)


def without_null(root: Node) -> None:
    if isinstance(root, Members):
        for key in ("id", "parameters", "outputs"):
            if root.get(key) is None:
                root.drop(key)
    for item in [root, *tensors_and_outputs(root)]:
        for key in ("binary_data", "binary_data_output"):
            if isinstance(item, Members) and parameter(item, key) is None:
                drop_parameter(item, key)


def drop_parameter(item: Members, key: str) -> None:
    if isinstance(item.get("parameters"), Members):
        item.get("parameters").drop(key)


def without_null_source(root: Node) -> None:
    for item in members(root, "inputs"):
        if item.get("data") is None:
            item.drop("data")
        for key in ("binary_data_size", "shared_memory_region"):
            if parameter(item, key) is None:
                drop_parameter(item, key)


RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")


def is_reserved(key: str) -> bool:
    return key in RESERVED or key.startswith("triton_")


def keep_request_parameters(root: Node, is_kept: Callable[[str, Node], bool]) -> None:
    """Remove the other parameters of the request."""
    if isinstance(root, Members) and isinstance(root.get("parameters"), Members):
        parameters = root.get("parameters")
        parameters[:] = [[key, value] for key, value in parameters if is_kept(key, value)]


def without_odd_request_parameters(root: Node) -> None:
    def is_kept(key: str, value: Node) -> bool:
        return is_reserved(key) or not (value is None or isinstance(value, list))

    keep_request_parameters(root, is_kept)


def without_reserved_parameters(root: Node) -> None:
    keep_request_parameters(root, lambda key, _: not is_reserved(key))


def without_shared_memory_outputs(root: Node) -> None:
    for item in members(root, "outputs"):
        for key in ("region", "byte_size", "offset"):
            drop_parameter(item, f"shared_memory_{key}")


def without_classification(root: Node) -> None:
    for item in members(root, "outputs"):
        drop_parameter(item, "classification")


def with_declared_names_and_ranks(root: Node) -> None:
    """Use the names and ranks that the model `any` declares."""
    if not isinstance(root, Members):
        return
    for item in members(root, "inputs"):
        shape = item.get("shape")
        if type(shape) is list and len(shape) not in (0, *RANKS):
            leading = math.prod(map(number, shape[:-4]))
            item.set("shape", [Literal(str(leading)), *shape[-4:]])
    names = [item.get("name") for item in members(root, "inputs")]
    if members(root, "outputs"):
        outputs = [o for o in members(root, "outputs") if o.get("name") in names]
        root.set("outputs", outputs)
    fit_names(root)


def without_nul_parameters(root: Node) -> None:
    """X6: remove parameters with a NUL in their name."""
    keep_request_parameters(root, lambda key, _: "\0" not in key)


def shallow(node: Node, n_levels: int = 128) -> None:
    """Remove lists and objects below this level; Triton does not read them."""
    if not isinstance(node, list):
        return
    pairs = isinstance(node, Members)
    for i, member in enumerate(node):
        value = member[1] if pairs else member
        if n_levels > 1:
            shallow(value, n_levels - 1)
        elif isinstance(value, list) and pairs:
            member[1] = None
        elif isinstance(value, list):
            node[i] = None


def without_huge_numbers(node: Node) -> None:
    for member in node if isinstance(node, list) else []:
        without_huge_numbers(member)
    if isinstance(node, list):
        node[:] = [Literal("0") if is_huge(value) else value for value in node]


def is_huge(value: Node) -> bool:
    is_number = isinstance(value, Literal) and value.text[-1].isdigit()
    return is_number and math.isinf(float(value.text))


# --- from JSON to binary ---


def sent_binary(message: Message, is_meant: Callable[[Node], bool]) -> Message:
    """Send BYTES, FP32 and FP64 tensors as binary data if such a value is in their JSON."""
    blobs: list[bytes] = []

    def change(root: Node) -> None:
        rest = message.parts()[1]
        for item in members(root, "inputs"):
            n = size(item)
            blobs.append(rest[:n])
            rest = rest[n:]
            data = item.get("data")
            if item.get("datatype") not in ("BYTES", "FP32", "FP64") or type(data) is not list:
                continue
            values = flat(data)
            if not any(map(is_meant, values)):
                continue
            try:
                blob = packed(item.get("datatype"), values)
            except (ValueError, TypeError, AttributeError):
                continue
            item.drop("data")
            set_parameter(item, "binary_data_size", Literal(str(len(blob))))
            blobs.append(blob)
        blobs.append(rest)

    new = message.changed(change)
    return message if new is message else new.of(new.parts()[0], b"".join(blobs))


def packed(datatype: str, values: list[Node]) -> bytes:
    if datatype == "BYTES":
        return reference.elements([raw_bytes(value) for value in values])
    return reference.pack(datatype, [float(value.text) for value in values])


def without_invalid_utf8(message: Message) -> Message:
    """Y16, Y17: send strings that are not UTF-8 as binary data, or replace them."""
    message = sent_binary(message, lambda v: isinstance(v, str) and not is_utf8(v))
    return message.changed(replace_invalid)


def is_utf8(string: str) -> bool:
    return is_text(string) and not any("\ud800" <= character <= "\udfff" for character in string)


def replace_invalid(node: Node) -> None:
    for member in node if isinstance(node, list) else []:
        if isinstance(member, str):
            continue
        replace_invalid(member)
    if isinstance(node, list):
        node[:] = [v if not isinstance(v, str) or is_utf8(v) else "?" for v in node]


def exact_decimals(message: Message) -> Message:
    return sent_binary(message, lambda v: isinstance(v, Literal) and is_hard(v.text))


def is_hard(text: str) -> bool:
    """Return whether a decimal is not an exact integer times an exact power of ten."""
    found = re.fullmatch(r"-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", text)
    if not found:
        return False
    fraction = found[2] or ""
    digits = (found[1] + fraction).lstrip("0")
    return len(digits) > 15 or abs(int(found[3] or 0) - len(fraction)) > 22


def all_outputs_binary(root: Node) -> None:
    """Y8: request all outputs as binary."""
    if any(item.get("datatype") == "BYTES" for item in members(root, "inputs")):
        for item in [root, *members(root, "outputs")]:
            if item.get("parameters") is None:
                item.set("parameters", Members())
            if isinstance(item.get("parameters"), Members):
                key = "binary_data_output" if item is root else "binary_data"
                item.get("parameters").drop(key)
                item.get("parameters").append([key, True])
