"""What reference.py says of a message, what tensorwire says, and whether that is the same."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

import tensorwire as tw
from support import reference

MAX_TEXT = 1_000  # characters of an error message


def exact(data: bytes) -> Any:
    """A writable copy that ends where its memory does: a byte read beyond it is seen by ASan.

    (A slice allocates what it needs, the other ways to make an array more.)
    """
    return array("B", data)[:]


def message_said(
    body: bytes, header_length: Any, kind: str
) -> dict[str, Any] | reference.WireError:
    """What reference.py reads, or why it rejects the message."""
    try:
        return reference.decode(body, header_length, kind)
    except reference.WireError as error:
        return error


# --- what tensorwire says ------------------------------------------------------------------------


def message_read(message: tw.InferRequest | tw.InferResponse) -> dict[str, Any]:
    """The message in the form of ``reference.decode``."""
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
