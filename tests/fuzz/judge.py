"""What wire.py says of a message, what tensorwire says, and whether that is the same."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any

import numpy as np

import tensorwire as tw
import wire

MAX_TEXT = 1_000  # characters of an error message
DEEP = 128  # lists and objects within each other: the default of Limits.max_nesting

TOP = {
    "request": {"inputs", "outputs", "id", "model_name", "model_version", "parameters"},
    "response": {"outputs", "id", "model_name", "model_version", "parameters"},
}
ENTRY = {"name", "shape", "datatype", "parameters", "data"}
REQUESTED = {"name", "parameters"}


def exact(data: bytes) -> Any:
    """A writable copy that ends where its memory does: a byte read beyond it is seen by ASan.

    (A slice allocates what it needs, the other ways to make an array more.)
    """
    return array("B", data)[:]


def message_said(
    body: bytes, header_length: Any, kind: str, is_accepted: bool
) -> dict[str, Any] | wire.WireError:
    """What wire.py reads, or why it refuses.

    Unknown members are skipped unread in most messages, and in some they are not (WIRE.md 3). So a
    message that was accepted is read a second time without them.
    """
    try:
        return wire.decode(body, header_length, kind)
    except wire.WireError as error:
        if not is_accepted:
            return error
        split = len(body) if header_length is None else int(header_length)
        text = known_members(body[:split], kind)
        if text is None:
            return error
    try:
        return wire.decode(text + body[split:], len(text), kind)
    except wire.WireError as error:
        return error


class OutOfRange:
    """Stands for a number that no double can hold; it has no JSON form."""


def known_members(text: bytes, kind: str) -> bytes | None:
    """The JSON without its unknown members, in which invalid UTF-8 and any number may stand."""
    try:
        tree = json.loads(
            text.decode("utf-8", "surrogateescape"), parse_float=_float, parse_int=_int
        )
        if type(tree) is not dict:
            return None
        tree = {key: value for key, value in tree.items() if key in TOP[kind]}
        for key, known in (
            ("inputs", ENTRY),
            ("outputs", REQUESTED if kind == "request" else ENTRY),
        ):
            if type(tree.get(key)) is list:
                tree[key] = [_only(known, entry) for entry in tree[key]]
        return json.dumps(tree, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        return None


def _only(known: set[str], entry: Any) -> Any:
    if type(entry) is not dict:
        return entry
    return {key: value for key, value in entry.items() if key in known}


def _float(text: str) -> Any:
    number = float(text)
    return OutOfRange if math.isinf(number) else number


def _int(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return OutOfRange


def has_equal_keys(text: bytes) -> bool:
    """Whether an object has a key twice. Each value has to be of its member's type (WIRE.md 3)."""
    found = False

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        made = dict(pairs)
        found = found or len(made) < len(pairs)
        return made

    try:
        json.loads(text.decode(), object_pairs_hook=collect)
    except (ValueError, RecursionError):
        return False
    return found


def is_deep(text: bytes) -> bool:
    return text.count(b"[") + text.count(b"{") > DEEP


# --- what tensorwire says ------------------------------------------------------------------------


def message_read(message: tw.InferRequest | tw.InferResponse) -> dict[str, Any]:
    """The message in the form of ``wire.decode``."""
    is_request = isinstance(message, tw.InferRequest)
    outputs = message.outputs if isinstance(message, tw.InferRequest) else None
    return {
        "tensors": [tensor_read(tensor) for tensor in tensors_of(message)],
        "outputs": None
        if not is_request or outputs is None
        else [(output.name, output.binary, output.parameters) for output in outputs],
        "parameters": message.parameters,
        "id": message.id,
        "model_name": message.model_name,
        "model_version": message.model_version,
    }


def tensors_of(message: tw.InferRequest | tw.InferResponse) -> list[tw.Tensor]:
    return message.inputs if isinstance(message, tw.InferRequest) else message.outputs


def tensor_read(tensor: tw.Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
        "values": values_of(tensor),
        "binary": tensor.binary,
        "parameters": tensor.parameters,
    }


def values_of(tensor: tw.Tensor) -> list[Any] | None:
    """Flat Python values; NaN among them."""
    if tensor.data is None:
        return None
    array = tensor.as_numpy()
    assert array.shape == tensor.shape
    array = array.reshape(-1)
    if tensor.datatype == "BF16":
        if array.dtype == np.uint16:  # Limits(bf16_as_uint16=True)
            array = (array.astype("<u4") << 16).view("<f4")
        array = array.astype("<f4")
    values: list[Any] = array.tolist()
    return values


def check_views(message: tw.InferRequest | tw.InferResponse, body: Any, begin: int) -> None:
    """Binary tensors are the body itself, one behind the other from ``begin`` to its end."""
    whole = np.frombuffer(body, np.uint8)
    address, position = whole.ctypes.data, begin
    for tensor in tensors_of(message):
        if not tensor.binary or tensor.data is None:
            continue
        if isinstance(tensor.data, tw.BytesTensor):
            view = np.frombuffer(tensor.data.wire, np.uint8)
        else:
            view = tensor.data
        assert view.flags.c_contiguous
        if view.nbytes:  # nothing may be anywhere
            assert view.ctypes.data == address + position
            assert view.flags.writeable == whole.flags.writeable
        position += view.nbytes
    assert position == len(whole)


def check_error(error: tw.DecodeError, nbytes: int) -> None:
    """A refusal is one of the three kinds, in bounded words, about a place that is there."""
    assert type(error) in (tw.HeaderError, tw.LayoutError, tw.ElementError)
    assert error.status in (400, 413)
    assert len(str(error)) <= MAX_TEXT
    str(error).encode(errors="backslashreplace")
    assert error.offset is None or 0 <= error.offset <= nbytes
    assert error.element is None or error.element >= 0
