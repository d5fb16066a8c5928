"""The replacements for functions of tritonclient, and those for BYTES."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from tritonclient import utils

from ..._codec.bytes.array import decode_bytes
from ...errors import TensorwireError
from ..patching import Function, Replacement
from .convert import elements_at, object_scalar, serialized


def replacements() -> list[Replacement]:
    """Return the replacements in those modules of tritonclient that can be imported."""
    found = [
        Replacement(utils, "serialize_byte_tensor", replace_serialize_byte_tensor),
        Replacement(utils, "deserialize_bytes_tensor", replace_deserialize_bytes_tensor),
    ]
    if module := import_if_usable("tritonclient.utils.shared_memory"):
        found.append(
            Replacement(module, "get_contents_as_numpy", replace_get_contents, ["shared memory"])
        )
    for kind in ("http", "grpc"):
        if import_if_usable(f"tritonclient.{kind}"):
            ours = import_module(f"{__package__}.{kind}")
            found += ours.replacements(import_if_usable(f"tritonclient.{kind}.aio"))
    return found


def import_if_usable(name: str) -> ModuleType | None:
    """Import a module. Returns None if the import fails, in which case no program can use it.

    All exceptions are caught, because tritonclient and protobuf do not only raise ImportError for
    versions that they do not support.
    """
    try:
        return import_module(name)
    except Exception:
        return None


def replace_serialize_byte_tensor(original: Function) -> Function:
    def serialize_byte_tensor(input_tensor: Any) -> Any:
        wire = serialized(input_tensor)
        return original(input_tensor) if wire is None else object_scalar(wire)

    return serialize_byte_tensor


def replace_deserialize_bytes_tensor(original: Function) -> Function:
    def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
        try:
            if memoryview(encoded_tensor).shape == (len(encoded_tensor),):
                return decode_bytes(encoded_tensor).as_numpy()
        except (TensorwireError, TypeError, BufferError):
            pass
        return original(encoded_tensor)

    return deserialize_bytes_tensor


def replace_get_contents(original: Function) -> Function:
    def get_contents_as_numpy(shm_handle: Any, datatype: Any, shape: Any, offset: Any = 0) -> Any:
        if datatype in (np.object_, np.bytes_):
            try:
                return elements_at(shm_handle._mpsm_handle.buf, shape, offset)
            except (TensorwireError, AttributeError, TypeError, ValueError, OverflowError):
                pass
        return original(shm_handle, datatype, shape, offset)

    return get_contents_as_numpy
