"""An independent implementation of the binary tensor data extension, with struct and json only.

It is slow and simple on purpose, and written from WIRE.md. It writes the messages of cases.py, and
tests and fuzz targets compare its `decode` with the real decoder. Therefore it imports neither
tensorwire nor numpy. Section numbers are those of WIRE.md.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

FORMATS = {  # section 2; BOOL is first read as a number, to detect other bytes than 0 and 1
    "BOOL": "B",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
SIZES = {name: struct.calcsize("<" + code) for name, code in FORMATS.items()} | {"BF16": 2}
DATATYPES = frozenset(SIZES) | {"BYTES"}
BINARY_ONLY = frozenset({"FP16", "BF16"})  # section 4: no JSON form

INT64_MAX = 2**63 - 1
MAX_RANK = 64  # as in numpy
MAX_NESTING = 100  # of lists in data: section 4
MAX_LEVEL = 128  # of lists and objects anywhere: section 11
MAX_DIGITS = 20  # section 1
MAX_ITEMS = 9
REFERENCE_SIZE = 16  # bytes per BYTES element in the largest array that a user can request

REQUIRED: Any = object()


class WireError(ValueError):
    """A malformed message. The subclasses have the names of tensorwire's errors."""


class HeaderError(WireError):
    """The header length, the JSON, or a missing, mistyped or forbidden member."""


class ErrorResponseError(WireError):
    """The error of a server."""


class LayoutError(WireError):
    """A size, shape or count that does not fit the bytes."""


class ElementError(WireError):
    """An invalid element of a BYTES, BOOL or JSON tensor."""


# --- values to bytes -----------------------------------------------------------------------------


def pack(datatype: str, values: Sequence[Any]) -> bytes:
    """Return the binary form of flat row-major values."""
    if datatype == "BYTES":
        return elements(values)
    if datatype == "BF16":
        return b"".join(_bf16(value) for value in values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def elements(items: Sequence[bytes]) -> bytes:
    """Encode BYTES elements, each with its little-endian 32-bit length."""
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def _bf16(value: float) -> bytes:
    low, high = struct.unpack("<2s2s", struct.pack("<f", value))
    if low != b"\0\0":
        raise ValueError(f"{value!r} has no exact BF16 form")
    return bytes(high)


# --- bytes to values -----------------------------------------------------------------------------


def unpack(datatype: str, data: bytes, count: int) -> list[Any]:
    """Decode exactly `count` values as plain Python objects."""
    if datatype == "BYTES":
        return _walk(data, count)
    if len(data) != count * SIZES[datatype]:
        raise LayoutError(f"{count} of {datatype} in {len(data)} bytes")
    if datatype == "BF16":
        data, datatype = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, 2 * count, 2)), "FP32"
    values = list(struct.unpack(f"<{count}{FORMATS[datatype]}", data))
    if datatype == "BOOL":
        return [_bool(value) for value in values]
    return values


def _bool(byte: int) -> bool:
    if byte > 1:
        raise ElementError(f"BOOL byte {byte}")
    return byte == 1


def _walk(data: bytes, count: int) -> list[bytes]:
    if count > len(data) // 4:
        raise LayoutError(f"{count} BYTES elements do not fit in {len(data)} bytes")
    items: list[bytes] = []
    position = 0
    while position < len(data):
        payload = position + 4
        if payload > len(data):
            raise ElementError(f"the prefix of element {len(items)} is truncated")
        position = payload + int.from_bytes(data[payload - 4 : payload], "little")
        if position > len(data):
            raise ElementError(f"element {len(items)} ends at {position} of {len(data)}")
        items.append(data[payload:position])
    if len(items) != count:
        raise LayoutError(f"{len(items)} BYTES elements instead of {count}")
    return items


def element_count(datatype: str, shape: Sequence[int]) -> int:
    """Return the product of a shape; `[]` has one element."""
    if len(shape) > MAX_RANK or any(dim < 0 for dim in shape):
        raise LayoutError(f"no array has the shape {shape}")
    # Python's integers do not wrap. The zeros are left out because numpy multiplies the other
    # dimensions of an empty array as well, and rejects it if its strides would overflow.
    extent = math.prod(dim for dim in shape if dim) * SIZES.get(datatype, REFERENCE_SIZE)
    if extent > INT64_MAX:
        raise LayoutError(f"{shape} of {datatype} overflows")
    return math.prod(shape)


# --- write messages -------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A tensor in a message: its JSON object, and its bytes in the body."""

    header: dict[str, Any]
    blob: bytes = b""


def entry(
    name: str,
    datatype: str,
    shape: Sequence[int],
    values: Sequence[Any] | None = None,
    binary: bool = True,
    *,
    parameters: dict[str, Any] | None = None,
) -> Entry:
    """Return one input or output. If there are no values, it has no data, as in shared memory."""
    header: dict[str, Any] = {"name": name, "shape": list(shape), "datatype": datatype}
    own = dict(parameters or {})
    blob = b""
    if values is not None and binary:
        blob = pack(datatype, values)
        own["binary_data_size"] = len(blob)
    if own:
        header["parameters"] = own
    if values is not None and not binary:
        header["data"] = [item.decode() if datatype == "BYTES" else item for item in values]
    return Entry(header, blob)


def message(
    header: dict[str, Any], blob: bytes = b"", *, align: int = 1, indent: int | None = None
) -> tuple[bytes, int | None]:
    """Return a body and its header length, which is None if no bytes follow the JSON (section 1).

    `align` pads the JSON with spaces (section 6).
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(header, indent=indent, separators=separators, ensure_ascii=False).encode()
    text += b" " * (-len(text) % align)
    return text + blob, len(text) if blob else None


def request(
    entries: Sequence[Entry], *, align: int = 1, indent: int | None = None, **members: Any
) -> tuple[bytes, int | None]:
    """Return a request with these inputs; `members` are further members of the JSON object."""
    header = {"inputs": [item.header for item in entries]} | members
    return message(header, b"".join(item.blob for item in entries), align=align, indent=indent)


def response(
    entries: Sequence[Entry], *, align: int = 1, indent: int | None = None, **members: Any
) -> tuple[bytes, int | None]:
    """Return a response with these outputs; `members` are further members of the JSON object."""
    header = members | {"outputs": [item.header for item in entries]}
    return message(header, b"".join(item.blob for item in entries), align=align, indent=indent)


# --- read messages --------------------------------------------------------------------------------


def decode(body: bytes, header_length: int | str | bytes | None, kind: str) -> dict[str, Any]:
    """Return all content of a message, or raise WireError.

    The keys are `tensors` (dicts of name, datatype, shape, values, binary, parameters), `outputs`
    (None or triples of name, binary, parameters), `parameters`, `id`, `model_name` and
    `model_version`.
    """
    split = _split(header_length, len(body))
    header = _parse(body[:split])
    key = "inputs" if kind == "request" else "outputs"
    _check_header(header, key)
    entries = _entries(header, key)
    if kind == "request" and not entries:
        raise HeaderError("inputs is empty")
    rest = body[split:]
    tensors = []
    for item in entries:
        tensor, rest = _tensor(item, rest, kind)
        tensors.append(tensor)
    if rest:
        raise LayoutError(f"{len(rest)} bytes follow the last tensor")
    parameters = _get(header, "parameters", dict, {})
    if kind == "request":
        _get(parameters, "binary_data_output", bool, None)
    return {
        "tensors": tensors,
        "outputs": _requested(header) if kind == "request" else None,
        "parameters": parameters,
        "id": _get(header, "id", str, None),
        "model_name": _get(header, "model_name", str, None),
        "model_version": _get(header, "model_version", str, None),
    }


def decode_raw(
    body: bytes, datatype: str, dims: Sequence[int], batching: bool = False
) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape and the values of a raw binary request (section 5)."""
    shape = ([1] if batching else []) + list(dims)
    if datatype == "BYTES":
        if any(dim != 1 for dim in shape):
            raise LayoutError(f"a raw BYTES input is one element, not {dims}")
        return tuple(shape), [body]  # the element itself, without a prefix (R10)
    if shape.count(-1) > 1:
        raise LayoutError(f"{dims} has two variable dimensions")
    if -1 in shape:
        step = math.prod(dim for dim in shape if dim != -1) * SIZES[datatype]
        if step == 0 or len(body) % step:
            raise LayoutError(f"{len(body)} bytes do not fill {dims} of {datatype}")
        shape[shape.index(-1)] = len(body) // step
    return tuple(shape), unpack(datatype, body, element_count(datatype, shape))


def _split(header_length: int | str | bytes | None, body_length: int) -> int:
    if header_length is None:
        return body_length
    if isinstance(header_length, bytes):
        header_length = header_length.decode("latin-1")
    if isinstance(header_length, str):
        # isdigit accepts digits of other scripts; int accepts signs, white space and underscores.
        items = [item.strip(" \t") for item in header_length.split(",")]
        if len(items) > MAX_ITEMS or not all(
            item.isascii() and item.isdigit() and len(item) <= MAX_DIGITS for item in items
        ):
            raise HeaderError(f"header length {header_length[:20]!r}")
        lengths = {int(item) for item in items}
        if len(lengths) > 1:
            raise HeaderError(f"header lengths {lengths}")
        header_length = lengths.pop()
    if not 0 <= header_length <= body_length:
        raise HeaderError(f"header length {header_length} of a body of {body_length}")
    return header_length


def _parse(text: bytes) -> dict[str, Any]:
    try:
        # Decoded here, because json.loads detects UTF-16 in bytes and skips a byte order mark
        decoded = text.decode("utf-8")
        header = _READER.decode(decoded)
        if "\\u" in decoded:
            _check_surrogates(header)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"not JSON: {error}") from error
    if _depth(decoded) > MAX_LEVEL:
        raise HeaderError("nested too deeply")
    if type(header) is not dict:
        raise HeaderError("the JSON is not an object")
    return header


class Number:
    """A JSON number. Its range is checked where it is used, not in unknown members."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def is_integer(self) -> bool:
        return not any(c in self.text for c in ".eE")


_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?)(\d+))?")


def integral(text: str) -> int | None:
    """Return the value of a number if it is an integer; 10^30 stands for all that are as large."""
    found = _NUMBER.fullmatch(text)
    assert found is not None
    minus, whole, fraction, power_sign, power = found.groups(default="")
    digits = (whole + fraction).strip("0")
    if not digits:
        return 0
    # No text has 10^17 zeros, so that longer powers need not be exact.
    n_zeros = int((power.lstrip("0") or "0")[:18]) * (-1 if power_sign == "-" else 1)
    n_zeros += len(whole + fraction) - len((whole + fraction).rstrip("0")) - len(fraction)
    if n_zeros < 0:
        return None
    magnitude = int(digits) * 10**n_zeros if len(digits) + n_zeros <= 30 else 10**30
    return -magnitude if minus else magnitude


class Bare(float):
    """NaN, Infinity or -Infinity, which JSON does not have."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return made


_READER = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=Bare, object_pairs_hook=_unique
)
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def _check_surrogates(tree: Any) -> None:
    """Reject an escape for half of a surrogate pair, which has no UTF-8 form."""
    if type(tree) is str:
        tree.encode()
    elif type(tree) is list:
        for item in tree:
            _check_surrogates(item)
    elif type(tree) is dict:
        for key, item in tree.items():
            key.encode()
            _check_surrogates(item)


def _depth(text: str) -> int:
    """Return the depth of nested lists and objects."""
    if text.count("[") + text.count("{") <= MAX_LEVEL:
        return 0
    level = deepest = 0
    for token in _TOKENS.findall(text):
        level += (token in "[{") - (token in "]}")
        deepest = max(deepest, level)
    return deepest


def _check_bare(tree: Any) -> None:
    """Reject NaN and infinities outside data."""
    if type(tree) is Bare:
        raise HeaderError(f"{tree} outside of data")
    for item in tree.values() if type(tree) is dict else tree if type(tree) is list else ():
        _check_bare(item)


def _check_data(tree: Any) -> None:
    """Check the elements of JSON data (sections 3 and 4)."""
    for item in tree:
        if type(item) is list:
            _check_data(item)
        elif type(item) is not Bare:
            _check_bare(item)


def _check_header(header: dict[str, Any], key: str) -> None:
    for name, value in header.items():
        if name != key or type(value) is not list:
            _check_bare(value)
            continue
        for item in value:
            for member, inner in item.items() if type(item) is dict else (("", item),):
                if member == "data" and type(inner) is list:
                    _check_data(inner)
                else:
                    _check_bare(inner)


def _plain(tree: Any) -> Any:
    """Return a value as Python's json would, for values that are not data."""
    if type(tree) is list:
        return [_plain(item) for item in tree]
    if type(tree) is dict:
        return {key: _plain(item) for key, item in tree.items()}
    if type(tree) is not Number:
        return tree
    try:
        value = int(tree.text) if tree.is_integer else float(tree.text)
    except ValueError as error:  # too many digits for int
        raise HeaderError(f"{tree.text:.40} is out of range") from error
    if math.isinf(value):
        raise HeaderError(f"{tree.text:.40} is out of range")
    return value


def _get(owner: dict[str, Any], key: str, kind: type, default: Any = REQUIRED) -> Any:
    value = owner.get(key)
    if key != "data":
        value = _plain(value)
    if value is None:  # section 3: null means absent
        if default is REQUIRED:
            raise HeaderError(f"{key} is missing")
        return default
    if type(value) is not kind:  # not isinstance, which accepts true as a size
        raise HeaderError(f"{key} is {value!r:.40}, not {kind.__name__}")
    return value


def _entries(header: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries: Any = header.get(key)
    if entries is None and key == "outputs" and type(header.get("error")) is str:
        raise ErrorResponseError
    if type(entries) is not list:
        raise HeaderError(f"{key} is missing, or not a list")
    if any(type(item) is not dict for item in entries):
        raise HeaderError(f"{key} has an entry that is not an object")
    names = [_get(item, "name", str) for item in entries]
    if any("\0" in name for name in names):  # X6: a C string ends at a NUL
        raise HeaderError("NUL in a name")
    if len(set(names)) < len(names):
        raise HeaderError(f"{key} has a duplicate name")
    return entries


def _requested(header: dict[str, Any]) -> list[tuple[str, bool | None, dict[str, Any]]] | None:
    if header.get("outputs") is None:
        return None
    outputs = []
    for item in _entries(header, "outputs"):
        parameters = _get(item, "parameters", dict, {})
        binary = _get(parameters, "binary_data", bool, None)
        outputs.append((item["name"], binary, _without(parameters, "binary_data")))
    return outputs


def _without(parameters: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != key}


def _tensor(item: dict[str, Any], rest: bytes, kind: str) -> tuple[dict[str, Any], bytes]:
    """Return one tensor, and the rest of the body."""
    datatype = _get(item, "datatype", str)
    shape = _get(item, "shape", list)
    if datatype not in DATATYPES or any(type(dim) is not int for dim in shape):
        raise HeaderError(f"{shape} of {datatype!r}")
    parameters = _get(item, "parameters", dict, {})
    data = _get(item, "data", list, None)
    size = _get(parameters, "binary_data_size", int, None)
    region = _get(parameters, "shared_memory_region", str, None)
    count = element_count(datatype, shape)
    forms = sum(form is not None for form in (data, size, region))
    # OVMS writes an empty output without any of the three sources of data (section 3)
    if forms != 1 and not (forms == 0 and kind == "response" and count == 0):
        raise HeaderError(f"{forms} of data, binary_data_size and shared_memory_region")
    values: list[Any] | None = None
    if data is not None:
        values = _from_json(datatype, data, count)
    elif region is None:
        blob, rest = _take(rest, size or 0)
        values = unpack(datatype, blob, count)
    tensor = {
        "name": item["name"],
        "datatype": datatype,
        "shape": tuple(shape),
        "values": values,
        "binary": data is None and region is None,
        "parameters": _without(parameters, "binary_data_size"),
    }
    if region is None:  # null is the same as no region
        tensor["parameters"].pop("shared_memory_region", None)
    return tensor, rest


def _take(rest: bytes, size: int) -> tuple[bytes, bytes]:
    if not 0 <= size <= len(rest):
        raise LayoutError(f"binary_data_size {size}, {len(rest)} bytes remain")
    return rest[:size], rest[size:]


def _from_json(datatype: str, data: list[Any], count: int) -> list[Any]:
    if datatype in BINARY_ONLY:
        raise HeaderError(f"{datatype} as JSON")
    flat: list[Any] = []
    pending = [(item, 1) for item in reversed(data)]  # an explicit stack instead of recursion
    while pending:
        item, depth = pending.pop()
        if type(item) is list:
            if depth == MAX_NESTING:
                raise HeaderError(f"more than {MAX_NESTING} nested lists")
            pending.extend((inner, depth + 1) for inner in reversed(item))
        else:
            flat.append(item)
    if len(flat) != count:
        raise LayoutError(f"{len(flat)} JSON scalars instead of {count}")
    return [_scalar(datatype, item) for item in flat]


def _scalar(datatype: str, item: Any) -> Any:
    if datatype == "BYTES" and type(item) is str:
        return item.encode()
    if datatype == "BOOL" and type(item) is bool:
        return item
    if datatype in ("FP32", "FP64"):
        if item is None or type(item) is Bare:  # section 4: some programs write NaN as null
            return math.nan if item is None else float(item)
        if type(item) is Number:
            value = (_nearest_single if datatype == "FP32" else float)(item.text)
            if math.isinf(value):
                raise ElementError(f"{item.text:.40} is out of range")
            return value
    elif datatype not in ("BYTES", "BOOL") and type(item) is Number:
        code = "<" + FORMATS[datatype]
        try:  # struct checks the type and the range
            return struct.unpack(code, struct.pack(code, integral(item.text)))[0]
        except struct.error as error:
            raise ElementError(f"{item.text:.40} is not a valid {datatype}") from error
    raise ElementError(f"{item!r:.40} in a {datatype} tensor")


def _nearest_single(text: str) -> float:
    """Return the FP32 value nearest to a decimal number, rounded once, ties to even."""
    value = float(text)
    if not 1e-60 < abs(value) < 1e60:
        return math.copysign(0.0 if abs(value) < 1 else math.inf, value)
    exact = abs(Fraction(text))
    try:
        bits = int.from_bytes(struct.pack("<f", abs(value)), "little")
    except OverflowError:
        bits = 0x7F7FFFFF  # the largest finite number
    single: dict[int, Fraction] = {}
    for near in range(max(bits - 1, 0), bits + 2):
        (number,) = struct.unpack("<f", near.to_bytes(4, "little"))
        single[near] = Fraction(2**128) if math.isinf(number) else Fraction(number)
    best = min(single, key=lambda near: (abs(single[near] - exact), near & 1))
    return math.copysign(struct.unpack("<f", best.to_bytes(4, "little"))[0], value)
