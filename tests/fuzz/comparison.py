"""Functions that compare the results of tensorwire with those of the reference codec."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import reference

MAX_TEXT = 2_000  # characters of an error message
KINDS = (
    *(tw.HeaderError, tw.LayoutError, tw.ElementError),
    *(tw.ErrorResponseError, tw.BodyTooLargeError),
)


def exact(data: bytes) -> Any:
    """Return a writable copy without spare memory, so that ASan detects reads beyond its end.

    A slice allocates exactly its size; other ways to create an array allocate more.
    """
    return array("B", data)[:]


def by_reference(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of the reference codec returns, or its error."""
    try:
        return function(*arguments)
    except reference.WireError as error:
        return error


# --- the result of tensorwire ---


def message_read(message: tw.InferRequest | tw.InferResponse) -> dict[str, Any]:
    """Return a message of tensorwire in the form of `reference.decode`."""
    is_request = isinstance(message, tw.InferRequest)
    outputs = message.outputs if isinstance(message, tw.InferRequest) else None
    return {
        "tensors": [tensor_read(tensor) for tensor in tensors_of(message)],
        "outputs": None
        if not is_request or outputs is None
        else [(output.name, output.binary, dict(output.parameters)) for output in outputs],
        "parameters": dict(message.parameters),
        "id": message.id,
        "model_name": message.model_name,
        "model_version": message.model_version,
    }


def tensors_of(message: tw.InferRequest | tw.InferResponse) -> tuple[tw.Tensor, ...]:
    return message.inputs if isinstance(message, tw.InferRequest) else message.outputs


def tensor_read(tensor: tw.Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
        "values": values_of(tensor),
        "binary": tensor.binary,
        "parameters": dict(tensor.parameters),
    }


def values_of(tensor: tw.Tensor) -> list[Any] | None:
    """Return flat Python values, including NaNs."""
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
    """Check that binary tensors are views of the body, in sequence from `begin` to its end."""
    whole = np.frombuffer(body, np.uint8)
    address, position = whole.ctypes.data, begin
    for tensor in tensors_of(message):
        if not tensor.binary or tensor.data is None:
            continue
        if isinstance(tensor.data, tw.BytesArray):
            view = np.frombuffer(tensor.data.wire, np.uint8)
        else:
            view = tensor.data
        assert view.flags.c_contiguous
        if view.nbytes:  # an empty array may have any address
            assert view.ctypes.data == address + position
            assert view.flags.writeable == whole.flags.writeable
            if not whole.flags.writeable:
                with pytest.raises(ValueError, match="WRITEABLE"):
                    view.setflags(write=True)
        position += view.nbytes
    assert position == len(whole)


def check_error(error: tw.DecodeError, nbytes: int) -> None:
    """Check the class of an error, the length of its text, and its offset."""
    assert type(error) in KINDS
    assert error.status in (400, 413)
    assert len(str(error)) <= MAX_TEXT
    str(error).encode(errors="backslashreplace")
    assert error.offset is None or 0 <= error.offset <= nbytes
    assert error.element is None or error.element >= 0
