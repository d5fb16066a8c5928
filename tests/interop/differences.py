"""The differences between tensorwire and Triton, one row each; WIRE.md 10 describes the same.

A difference is explained if it disappears when its row rewrites the message. Most rows rewrite it
into the message that Triton understands: our result for the rewritten message must equal Triton's
result for the original. With `is_resent`, both sides get the rewritten message and must agree. The
few rows without a rewriting function are for messages that Triton's backend rejects, that stop it,
or that need resources it does not have. Ids such as J24 are those of WIRE.md 10.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from interop.triton_messages import Message, Verdict, extent, fit_names, n_dims, number
from interop.triton_models import RANKS
from support import reference
from support.json_tree import (
    SURROGATE,
    Literal,
    Members,
    is_text,
    items,
    parameter,
    raw_bytes,
    set_parameter,
    size,
)

Node = Any
Rewrite = Callable[[Message], Message]
ANYTHING = "*"


@dataclass(frozen=True)
class Difference:
    """`ours` and `theirs` are patterns for the error, or None if that side accepts.

    The numbers in `why` are sections of WIRE.md.
    """

    id: str
    why: str
    ours: str | None
    theirs: str | None
    rewrite: Rewrite | None = None
    is_resent: bool = False
    is_lossless: bool = True  # our result is the same before and after
    condition: Callable[[Members], bool] | None = None  # that one of the inputs meets

    def apply(self, message: Message) -> Message:
        return message if self.rewrite is None else self.rewrite(message)

    def applies_to(self, message: Message, mine: Verdict, theirs: Verdict) -> bool:
        inputs = items(as_triton_reads(message).tree(), "inputs") if self.condition else []
        is_met = self.condition is None or any(map(self.condition, inputs))
        return is_met and matches(self.ours, mine) and matches(self.theirs, theirs)


def as_triton_reads(message: Message) -> Message:
    """Return the message as JSON. In Triton, a NUL ends the text (B16); Inf is a number (J5)."""
    return text(full_names_of_infinities)(text(truncated_at_nul)(message))


def matches(pattern: str | None, verdict: Verdict) -> bool:
    if pattern == ANYTHING:
        return True
    if pattern is None:
        return verdict.what != "rejected"  # the server accepts what only its backend rejects
    return verdict.what != "accepted" and re.search(pattern, verdict.text) is not None


# --- what the rows do with a message, without changing other parts of it --------------------------


def tree(change: Callable[[Node], Any]) -> Rewrite:
    return lambda message: message.changed(change)


def each_input(change: Callable[[Members], Any]) -> Rewrite:
    return tree(lambda root: [change(item) for item in items(root, "inputs")])


def each_entry(change: Callable[[Members], Any]) -> Rewrite:
    """Change each input and requested output."""
    return tree(lambda root: [change(item) for item in entries(root)])


def entries(root: Node) -> list[Members]:
    return items(root, "inputs") + items(root, "outputs")


def text(change: Callable[[bytes], bytes]) -> Rewrite:
    def rewrite(message: Message) -> Message:
        try:
            old, blob = message.parts()
        except ValueError:
            return message
        new = change(old)
        return message if new == old else message.of(new, blob)

    return rewrite


def as_atoi_reads(pattern: str) -> Rewrite:
    """Write a header length of this pattern as the number that atoi returns."""

    def rewrite(message: Message) -> Message:
        length = message.read_length()
        is_meant = re.fullmatch(pattern, message.header_length or "") and length is not None
        return replace(message, header_length=str(length)) if is_meant else message

    return rewrite


def raw_request(message: Message) -> Message:
    """B8, B11, B12: atoi returns 0 if there are no digits. R7: so does an empty body."""
    length = message.header_length
    is_raw = message.read_length() == 0 and (length is not None or not message.body)
    return replace(message, header_length="0") if is_raw else message


def lenient_bools(message: Message) -> Message:
    """R14: accept any byte."""
    return replace(message, check_bool=b'"BOOL"' not in message.body and message.raw_input is None)


def truncated_at_nul(text: bytes) -> bytes:
    return text.partition(b"\0")[0]


def full_names_of_infinities(text: bytes) -> bytes:
    """J5: replace Inf and -NaN by Infinity and NaN."""
    text = re.sub(rb"(?<=[\[,:\s])(-?)Inf(?=[\s,\]}])", rb"\1Infinity", text)
    return re.sub(rb"(?<=[\[,:\s])-NaN(?=[\s,\]}])", b"NaN", text)


def children(node: Node) -> list[Node]:
    if isinstance(node, Members):
        return [value for _, value in node]
    return node if isinstance(node, list) else []


def replace_children(node: Node, change: Callable[[Node], Node]) -> None:
    """Replace the values of an object or of a list."""
    if isinstance(node, Members):
        for member in node:
            member[1] = change(member[1])
    elif isinstance(node, list):
        node[:] = map(change, node)


def first_of_equal_keys(node: Node) -> None:
    if isinstance(node, Members):
        kept = dict(reversed(node))
        node[:] = [[key, kept.pop(key)] for key, _ in list(node) if key in kept]
    for child in children(node):
        first_of_equal_keys(child)


def zero_for_nan(root: Node) -> None:
    """J5: replace NaN and infinities outside FP32 and FP64 data by 0."""
    data = [id(item.get("data")) for item in with_json(root, FLOATS)]

    def change(node: Node, is_data: bool) -> Node:
        if isinstance(node, Literal) and not is_data:
            return Literal("0") if node.text.lstrip("-") in ("NaN", "Infinity") else node
        is_data = id(node) in data or (is_data and type(node) is list)
        replace_children(node, lambda child: change(child, is_data))
        return node

    change(root, False)


def without_odd_model(root: Node) -> None:
    if isinstance(root, Members):
        root.drop(*(k for k in ("model_name", "model_version") if not isinstance(root.get(k), str)))


def without_odd_parameters(item: Members) -> None:
    if not isinstance(item.get("parameters"), Members):
        item.drop("parameters")


def truncate_strings(item: Members) -> None:
    for key in ("name", "datatype"):
        if isinstance(item.get(key), str):
            item.set(key, item.get(key).partition("\0")[0])


def without_repeated_outputs(root: Node) -> None:
    kept = {str(item.get("name")): item for item in reversed(items(root, "outputs"))}
    if kept:
        root.set("outputs", [o for o in items(root, "outputs") if o is kept[str(o.get("name"))]])


def is_empty(item: Members) -> bool:
    shape = item.get("shape")
    return type(shape) is list and (Literal("0") in shape or Literal("-0") in shape)


def empty_data(item: Members) -> None:
    """J18, J19: replace any data of an empty tensor by an empty list."""
    has_data = any(key == "data" for key, _ in item)
    if is_empty(item) and has_data and parameter(item, "binary_data_size") is None:
        item.set("data", [])


def empty_binary_data(root: Node) -> None:
    for item in with_json(root, reference.BINARY_ONLY):
        if is_empty(item):
            item.drop("data")
            set_parameter(item, "binary_data_size", Literal("0"))


FLOATS = ("FP32", "FP64")
NARROW = {f"{sign}INT{n}": n for sign in ("", "U") for n in (8, 16, 32)}
INTEGERS = (*NARROW, "INT64", "UINT64")


def with_json(root: Node, datatypes: Collection[str]) -> list[Members]:
    """Return the inputs of these datatypes with JSON data."""
    inputs = [item for item in items(root, "inputs") if item.get("datatype") in datatypes]
    return [item for item in inputs if type(item.get("data")) is list]


def in_data(datatypes: Collection[str], change: Callable[[Node, str], Node]) -> Rewrite:
    """Change each value in the JSON data of these datatypes."""

    def changed(value: Node, datatype: str) -> Node:
        if type(value) is list:
            return [changed(item, datatype) for item in value]
        return change(value, datatype)

    def rewrite(root: Node) -> None:
        for item in with_json(root, datatypes):
            item.set("data", changed(item.get("data"), item.get("datatype")))

    return tree(rewrite)


def infinity(value: Node, _: str) -> Node:
    """J7: doubles beyond the range of FP32 become infinities."""
    if isinstance(value, Literal) and not math.isnan(float(value.text)):
        single = nearest("FP32", value.text)
        if math.isinf(single):
            return Literal("Infinity" if single > 0 else "-Infinity")
    return value


def wrapped(value: Node, datatype: str) -> Node:
    """J8: integers that are out of range wrap around."""
    n, is_signed = NARROW[datatype], datatype[0] == "I"
    if isinstance(value, Literal) and re.fullmatch(r"-?\d+" if is_signed else r"\d+", value.text):
        offset = 2 ** (n - 1) if is_signed else 0
        return Literal(str((int(value.text) + offset) % 2**n - offset))
    return value


def without_a_point(value: Node, _: str) -> Node:
    if isinstance(value, Literal) and re.fullmatch(r"-?\d.*[.eE].*", value.text):
        number = reference.integral(value.text)
        return value if number is None else Literal(str(number))
    return value


def flatten(item: Members) -> None:
    data = item.get("data")
    if type(data) is list and depth(data) > 100:
        item.set("data", flat(data))


def depth(node: Node) -> int:
    return 1 + max(map(depth, node), default=0) if type(node) is list else 0


def flat(data: list[Node]) -> list[Node]:
    return [leaf for v in data for leaf in (flat(v) if type(v) is list else [v])]


def shallow(node: Node, n_levels: int = 128) -> Node:
    """Replace lists and objects below this level, which Triton does not read, by null."""
    if n_levels == 0 and isinstance(node, list):
        return None
    replace_children(node, lambda child: shallow(child, n_levels - 1))
    return node


def one_for_scalar(item: Members) -> None:
    if item.get("shape") == []:
        item.set("shape", [Literal("1")])


def without_null(root: Node) -> None:
    if isinstance(root, Members):
        root.drop(*(key for key in ("id", "parameters", "outputs") if root.get(key) is None))
    keys = ("binary_data", "binary_data_output")
    for item in [root, *entries(root)]:
        drop_parameters(item, lambda key, value: key in keys and value is None)


def without_null_source(item: Members) -> None:
    if item.get("data") is None:
        item.drop("data")
    sources = ("binary_data_size", "shared_memory_region")
    drop_parameters(item, lambda key, value: key in sources and value is None)


def drop_parameters(item: Node, is_meant: Callable[[str, Node], bool]) -> None:
    parameters = item.get("parameters") if isinstance(item, Members) else None
    if isinstance(parameters, Members):
        parameters[:] = [[key, value] for key, value in parameters if not is_meant(key, value)]


def without_request_parameters(is_meant: Callable[[str, Node], bool]) -> Rewrite:
    return tree(lambda root: drop_parameters(root, is_meant))


def is_reserved(key: str, _: Node) -> bool:
    own = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")
    return key in own or key.startswith("triton_")


def is_odd(key: str, value: Node) -> bool:
    return not is_reserved(key, value) and (value is None or isinstance(value, list))


def without_output_parameters(*keys: str) -> Rewrite:
    def rewrite(root: Node) -> None:
        for output in items(root, "outputs"):
            drop_parameters(output, lambda key, _: key in keys)

    return tree(rewrite)


SHARED_MEMORY = [f"shared_memory_{part}" for part in ("region", "byte_size", "offset")]


def with_declared_names_and_ranks(root: Node) -> None:
    """Use the names and ranks that the model `any` declares."""
    for item in items(root, "inputs"):
        shape = item.get("shape")
        if type(shape) is list and len(shape) not in (0, *RANKS):
            leading = math.prod(map(number, shape[:-4]))
            item.set("shape", [Literal(str(leading)), *shape[-4:]])
    names = [item.get("name") for item in items(root, "inputs")]
    if outputs := items(root, "outputs"):
        root.set("outputs", [output for output in outputs if output.get("name") in names])
    fit_names(root)


def without_huge_numbers(node: Node) -> Node:
    if isinstance(node, Literal):
        if zero := re.fullmatch(r"(-?)0(\.0+)?[eE].*", node.text):
            return Literal(f"{zero[1]}0.0")
        is_huge = node.text[-1].isdigit() and math.isinf(float(node.text))
        return Literal("0") if is_huge else node
    replace_children(node, without_huge_numbers)
    return node


def sent_binary(message: Message, is_meant: Callable[[Node], bool]) -> Message:
    """Send BYTES, FP32 and FP64 tensors as binary data if such a value is in their JSON."""
    blobs: list[bytes] = []

    def change(root: Node) -> None:
        rest = message.parts()[1]
        for item in items(root, "inputs"):
            n = size(item)
            blobs.append(rest[:n])
            rest = rest[n:]
            datatype, data = item.get("datatype"), item.get("data")
            if datatype not in ("BYTES", *FLOATS) or type(data) is not list:
                continue
            values = flat(data)
            if not any(map(is_meant, values)):
                continue
            try:
                blobs.append(packed(datatype, values))
            except (ValueError, TypeError, AttributeError):
                continue
            item.drop("data")
            set_parameter(item, "binary_data_size", Literal(str(len(blobs[-1]))))
        blobs.append(rest)

    new = message.changed(change)
    return message if new is message else new.of(new.parts()[0], b"".join(blobs))


def packed(datatype: str, values: list[Node]) -> bytes:
    if datatype == "BYTES":
        return reference.elements([raw_bytes(value) for value in values])
    return reference.pack(datatype, [nearest(datatype, value.text) for value in values])


def nearest(datatype: str, text: str) -> float:
    is_single = datatype == "FP32" and math.isfinite(float(text))
    return reference._nearest_single(text) if is_single else float(text)


def without_invalid_utf8(message: Message) -> Message:
    """Y16, Y17: send strings that are not UTF-8 as binary data, or replace them."""
    message = sent_binary(message, is_not_utf8)
    return message.changed(replace_invalid)


def is_not_utf8(value: Node) -> bool:
    return isinstance(value, str) and (not is_text(value) or bool(SURROGATE.search(value)))


def replace_invalid(node: Node) -> None:
    for member in node if isinstance(node, list) else []:
        replace_invalid(member)
    if isinstance(node, list):
        node[:] = ["?" if is_not_utf8(value) else value for value in node]


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
    if not any(item.get("datatype") == "BYTES" for item in items(root, "inputs")):
        return
    for item in [root, *items(root, "outputs")]:
        key = "binary_data_output" if item is root else "binary_data"
        if item.get("parameters") is None or isinstance(item.get("parameters"), Members):
            set_parameter(item, key, True)


# --- the rows ------------------------------------------------------------------------------------

STOPPED = "not healthy|the server ended"

DIFFERENCES = (
    # accepted by Triton
    Difference("B9, B10 text after the digits", "a length has only digits (1)",
               "Content-Length is not a number|two header lengths", None,
               as_atoi_reads(r"(?s)(?![0-9]*$)\s*[+-]?0*[1-9].*")),
    Difference("B7 a length of more than 31 bits", "it exceeds the body (1)",
               "Content-Length is .*, but the body has", None, as_atoi_reads("[0-9]{10,}")),
    Difference("a length of more than 20 digits", "no length needs so many (1)",
               "Content-Length is not a number", None, as_atoi_reads("[0-9]{10,}")),
    Difference("B8, B11, B12 no digits", "a typo must not change the meaning (1)",
               "Content-Length is not a number|two header lengths", None, raw_request),
    Difference("R7 empty body", "0 must be explicit (1)", "header is empty", None, raw_request),
    Difference("J23 byte order mark", "not allowed in transmitted JSON (3)", "malformed", None,
               text(lambda text: text.removeprefix(b"\xef\xbb\xbf"))),
    Difference("B16 NUL after the JSON", "not JSON (3)", "malformed", None, text(truncated_at_nul)),
    Difference("J5 Inf, -Inf, -NaN", "no server is known to write them (4)", "malformed", None,
               text(full_names_of_infinities)),
    Difference("Y16, Y17 invalid UTF-8", "not JSON (3, 4)", "not (valid )?UTF-8|malformed|deep",
               None, without_invalid_utf8),
    Difference("J5 NaN outside FP data", "not JSON (3)", "malformed|must be", None,
               tree(zero_for_nan)),
    Difference("J24 equal keys", "all readers must read the same message (3)", ANYTHING, ANYTHING,
               tree(first_of_equal_keys), is_lossless=False),
    Difference("C39 model_name, model_version", "a string is required (3)", "must be a string",
               None, tree(without_odd_model)),
    Difference("X3 parameters of an input or output", "an object is required (3)",
               "must be an object", None, each_entry(without_odd_parameters)),
    Difference("X6 NUL in a name or datatype", "two names could become equal (3)",
               "contains a NUL|unknown datatype", None, each_entry(truncate_strings)),
    Difference("C25 duplicate output", "as newer versions of Triton (3)", "appears twice", None,
               tree(without_repeated_outputs)),
    Difference("J18, J19 data of an empty tensor", "data and shape contradict each other (3, 4)",
               "JSON data|has none|must be|out of range", None, each_input(empty_data)),
    Difference("J1, J2 empty FP16 and BF16 as JSON", "no JSON form (4)",
               "can only be sent as binary data", None, tree(empty_binary_data)),
    Difference("J7 FP32 out of range", "the value would change (4)", "out of range for FP32", None,
               in_data(("FP32",), infinity)),
    Difference("J8 integers out of range", "the value would change (4)", "out of range for U?INT",
               None, in_data(NARROW, wrapped)),
    Difference("X19 more than 100 nested lists", "as newer versions of Triton (4)", "deep", None,
               each_input(flatten)),
    Difference("more than 128 levels", "a parser recurses on the thread's stack (11)",
               "nested too deeply", None, tree(shallow)),
    Difference("R14 BOOL bytes above 1", "invalid in numpy (2)", "must be 0 or 1", None,
               lenient_bools),
    # accepted by Triton's front end; rejected by its backend, or the backend stops
    Difference("Y4, Y6 truncated last element", "must not depend on the model (3)",
               "is truncated: its prefix declares", "incomplete string data"),
    Difference("a shape that overflows", "the tensor does not exist (3)", "", STOPPED,
               condition=lambda item: extent(item) >= 2**63),
    Difference("C15 a shape that overflows to an empty one", "the tensor does not exist (3)",
               "too large to address|can only be sent as binary data", None,
               condition=lambda item: extent(item) >= 2**63),
    Difference("a shape beyond the memory, with data", "a declared shape allocates nothing (4)", "",
               STOPPED, condition=lambda item: 2**32 <= extent(item) < 2**63),
    Difference("65 dimensions", "numpy has at most 64 (3)", "", STOPPED,
               condition=lambda item: n_dims(item) > 64),
    # rejected by Triton
    Difference("X6 NUL in a parameter's name", "any name is accepted (3)", None,
               "non-existing object member|was not found",
               without_request_parameters(lambda key, _: "\0" in key), True),
    Difference("1e400 in an unknown member, 0e999", "not converted (3); zero (4)", None,
               "Number too big", tree(without_huge_numbers), True),
    Difference("C17 rank 0", "a scalar has one element (3)", None, r"got \[\]",
               each_input(one_for_scalar), True),
    Difference("J14 null", "NaN (4)", None, "non-number",
               in_data(FLOATS, lambda v, _: Literal("NaN") if v is None else v), True),
    Difference("J10 integers with a point or an exponent", "no value changes (4)", None,
               "non-(un)?signed-integer|Number too big", in_data(INTEGERS, without_a_point), True),
    Difference("null members", "absent (3)", None, "", tree(without_null), True),
    Difference("null sources", "absent (3)", None, "only one of", each_input(without_null_source),
               True),
    Difference("X4 lists, objects and null as request parameters", "any JSON is accepted (10)",
               None, "has invalid type", without_request_parameters(is_odd), True),
    Difference("Triton's own parameters", "checked by the server, not the codec", None,
               "sequence|priority|timeout|reserved", without_request_parameters(is_reserved), True),
    Difference("shared memory input", "looked up by the server, not the codec", None,
               "shared.memory",
               condition=lambda item: parameter(item, "shared_memory_region") is not None),
    Difference("shared memory output", "looked up by the server, not the codec", None,
               "shared.memory", without_output_parameters(*SHARED_MEMORY), True),
    Difference("K1 classification", "done by the server, not the codec", None, ANYTHING,
               without_output_parameters("classification"), True),
    Difference("Y8 BYTES as JSON, invalid UTF-8", "not JSON (4)", "is not valid UTF-8", None,
               tree(all_outputs_binary), True),
    Difference("decimals", "nearest (4)", None, None, exact_decimals, True),
    Difference("-0 for FP32 and FP64", "the sign is kept (4)", None, None,
               in_data(FLOATS, lambda v, _: Literal("-0.0") if v == Literal("-0") else v), True),
    Difference("names and ranks of the model", "a property of the model, not of the format", None,
               "unexpected|data-type is", tree(with_declared_names_and_ranks), True),
)  # fmt: skip
