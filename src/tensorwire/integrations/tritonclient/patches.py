"""Replacements for functions of tritonclient."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from tritonclient import utils

from ..._codec.bytes_tensor import decode_bytes
from ...errors import TensorwireError
from ..patching import Function, Replacement
from .convert import (
    VIEW_FROM_NBYTES,
    BodyResponse,
    ReferencedArray,
    ReferencingInput,
    byte_array,
    elements_at,
    is_extra_bytes,
    is_large_array,
    object_array,
    packed_array,
    serialized,
)


def replacements() -> list[Replacement]:
    """Return the replacements in those modules of tritonclient that can be imported."""
    found = [
        Replacement(utils, "serialize_byte_tensor", replace_serialize_byte_tensor),
        Replacement(utils, "deserialize_bytes_tensor", replace_deserialize_bytes_tensor),
    ]
    if shared_memory := import_if_usable("tritonclient.utils.shared_memory"):
        found.append(
            Replacement(shared_memory, "get_contents_as_numpy", replace_get_contents_as_numpy)
        )
    if http := import_if_usable("tritonclient.http"):
        http_utils = import_module("tritonclient.http._utils")
        found += [
            Replacement(http.InferInput, "set_data_from_numpy", replace_http_set_data_from_numpy),
            Replacement(http.InferInput, "_get_binary_data", replace_get_binary_data),
            Replacement(http_utils, "_get_inference_request", replace_get_inference_request),
            Replacement(http.InferResult, "__init__", replace_result_init),
            Replacement(http.InferResult, "from_response_body", replace_from_response_body),
        ]
    if grpc := import_if_usable("tritonclient.grpc"):
        found.append(
            Replacement(grpc.InferInput, "set_data_from_numpy", replace_grpc_set_data_from_numpy)
        )
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


# --- BYTES ---------------------------------------------------------------------------------------


def replace_serialize_byte_tensor(original: Function) -> Function:
    def serialize_byte_tensor(input_tensor: Any) -> Any:
        wire = serialized(input_tensor)
        if wire is None:
            return original(input_tensor)
        if not wire:
            return np.empty([0], object)
        scalar = np.empty((), object)
        scalar[()] = wire
        return scalar

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


def replace_get_contents_as_numpy(original: Function) -> Function:
    def get_contents_as_numpy(shm_handle: Any, datatype: Any, shape: Any, offset: Any = 0) -> Any:
        if datatype in (np.object_, np.bytes_):
            try:
                return elements_at(shm_handle._mpsm_handle.buf, shape, offset)
            except (TensorwireError, AttributeError, TypeError, ValueError, OverflowError):
                pass
        return original(shm_handle, datatype, shape, offset)

    return get_contents_as_numpy


# --- InferInput ----------------------------------------------------------------------------------


def replace_http_set_data_from_numpy(original: Function) -> Function:
    def set_data_from_numpy(self: Any, input_tensor: Any, binary_data: bool = True) -> Any:
        if self.datatype() == "BYTES":
            if is_extra_bytes(input_tensor):
                convert = packed_array if binary_data else object_array
                input_tensor = convert(input_tensor)
        elif binary_data and is_large_array(input_tensor):
            input_tensor = input_tensor.view(ReferencedArray)
        return original(self, input_tensor, binary_data)

    return set_data_from_numpy


def replace_grpc_set_data_from_numpy(original: Function) -> Function:
    def set_data_from_numpy(self: Any, input_tensor: Any) -> Any:
        if self.datatype() == "BYTES" and is_extra_bytes(input_tensor):
            input_tensor = packed_array(input_tensor)
        return original(self, input_tensor)

    return set_data_from_numpy


def replace_get_binary_data(original: Function) -> Function:
    def _get_binary_data(self: Any) -> Any:
        raw = original(self)
        return raw.tobytes() if type(raw) is np.ndarray else raw

    return _get_binary_data


def replace_get_inference_request(original: Function) -> Function:
    infer_input_class = import_module("tritonclient.http").InferInput

    def joinable(infer_input: Any) -> Any:
        # A subclass may override _get_binary_data.
        is_referencing = (
            type(infer_input) is infer_input_class and type(infer_input._raw_data) is np.ndarray
        )
        return ReferencingInput(infer_input) if is_referencing else infer_input

    def _get_inference_request(
        inputs: Any,
        request_id: Any,
        outputs: Any,
        sequence_id: Any,
        sequence_start: Any,
        sequence_end: Any,
        priority: Any,
        timeout: Any,
        custom_parameters: Any,
    ) -> Any:
        return original(
            [joinable(infer_input) for infer_input in inputs],
            request_id,
            outputs,
            sequence_id,
            sequence_start,
            sequence_end,
            priority,
            timeout,
            custom_parameters,
        )

    return _get_inference_request


# --- InferResult ---------------------------------------------------------------------------------


def replace_result_init(original: Function) -> Function:
    def __init__(self: Any, response: Any, verbose: Any) -> None:
        original(self, response, verbose)
        buffer = vars(self).get("_buffer")
        if type(buffer) is bytes and len(buffer) >= VIEW_FROM_NBYTES:
            self._buffer = byte_array(buffer)

    return __init__


def replace_from_response_body(original: Function) -> Function:
    def from_response_body(
        cls: Any,
        response_body: Any,
        verbose: bool = False,
        header_length: Any = None,
        content_encoding: Any = None,
    ) -> Any:
        if type(response_body) is not bytes:
            return original(cls, response_body, verbose, header_length, content_encoding)
        return cls(BodyResponse(response_body, header_length, content_encoding), verbose)

    return from_response_body
