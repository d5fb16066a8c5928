"""Replacements for functions of tritonclient."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
from tritonclient import utils

from ..._codec.bytes_array import decode_bytes
from ...errors import TensorwireError
from ..patching import Function, Replacement, package_of, place
from .convert import (
    SHARED_MEMORY_KEYS,
    HeaderInput,
    binary_data,
    byte_array,
    elements_at,
    is_extra_bytes,
    object_array,
    object_scalar,
    refer_to_arrays,
    referring_class,
    serialized,
    tensor_data,
)
from .sources import RELIES_ON
from .transport import FileBody, Transport, TransportInputs, payload_class, receive_rest

__all__ = ["RELIES_ON", "replacements"]


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
            Replacement(http_utils, "_get_inference_request", replace_get_inference_request),
            Replacement(http.InferenceServerClient, "infer", replace_infer, calls_original=True),
            Replacement(http.InferResult, "__init__", replace_result_init),
        ]
    if aio := import_if_usable("tritonclient.http.aio"):
        found.append(
            Replacement(aio.InferenceServerClient, "infer", replace_aio_infer, calls_original=True)
        )
    if import_if_usable("tritonclient.grpc"):
        from .grpc import replacements as grpc_replacements  # noqa: PLC0415 - imports grpcio

        found += grpc_replacements(import_if_usable("tritonclient.grpc.aio"))
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


def referring_input() -> Any:
    input_class = import_module("tritonclient.http").InferInput
    return referring_class(input_class, "_raw_data", "_get_binary_data")


def replace_http_set_data_from_numpy(original: Function) -> Function:
    referring = referring_input()

    def set_data_from_numpy(self: Any, input_tensor: Any, binary_data: bool = True) -> Any:
        if binary_data is True and type(self._shape) is list:
            data = tensor_data(self, referring, input_tensor, self._datatype, self._shape)
            if data is not None:
                parameters = self._parameters
                for key in SHARED_MEMORY_KEYS:
                    parameters.pop(key, None)
                self._data = None
                self._raw_data = data
                parameters["binary_data_size"] = len(data)
                return self
        if is_extra_bytes(input_tensor) and self.datatype() == "BYTES":
            input_tensor = object_array(input_tensor)
        return original(self, input_tensor, binary_data)

    return set_data_from_numpy


def replace_get_inference_request(original: Function) -> Function:
    referring = referring_input()

    def _get_inference_request(inputs: Any, *arguments: Any, **options: Any) -> Any:
        if not refer_to_arrays(inputs, referring):
            return original(inputs, *arguments, **options)
        header, _ = original([HeaderInput(each) for each in inputs], *arguments, **options)
        join = inputs.body_type if type(inputs) is TransportInputs else b"".join
        return join([header, *binary_data(inputs, referring)]), len(header)

    return with_signature_of(original, _get_inference_request)


# --- InferenceServerClient -----------------------------------------------------------------------


def replace_infer(original: Function) -> Function:
    stub_class = import_module("geventhttpclient").HTTPClient
    transport = Transport("_client_stub", stub_class, ("post", "request"), FileBody)
    with_inputs_to_send = sending(original, "tritonclient.http._client", transport)

    def infer(self: Any, *arguments: Any, **options: Any) -> Any:
        arguments, options = with_inputs_to_send(self, arguments, options)
        return original(self, *arguments, **options)

    return with_signature_of(original, infer)


def replace_aio_infer(original: Function) -> Function:
    stub_class = import_module("aiohttp").ClientSession
    transport = Transport("_stub", stub_class, ("post", "_request"), payload_class())
    with_inputs_to_send = sending(original, "tritonclient.http.aio", transport)

    async def infer(self: Any, *arguments: Any, **options: Any) -> Any:
        arguments, options = with_inputs_to_send(self, arguments, options)
        return await original(self, *arguments, **options)

    return with_signature_of(original, infer)


def sending(original: Function, module: str, transport: Transport) -> Function:
    """Return a function that marks the inputs in the arguments of ``infer``, if possible.

    They become `TransportInputs` if the transport can send the body without joining it. All other
    arguments remain as they are, because ``original`` may be a wrapper that reads them.
    """
    referring = referring_input()
    client_module = import_module(module)
    names = list(signature(original).parameters)[1:]
    compression = "request_compression_algorithm"
    if compression not in names:  # a wrapper with other parameters
        names = ["model_name", "inputs"]

    def with_inputs_to_send(client: Any, arguments: Any, options: dict[str, Any]) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **options}
        inputs = given.get("inputs")
        if (
            type(inputs) is not list
            or not refer_to_arrays(inputs, referring)
            or len(arguments) > len(names)
            or given.get(compression)
            or client._verbose
            or not creates_requests(client_module)
            or not transport.is_plain(client)
        ):
            return arguments, options
        marked = TransportInputs(inputs, transport.body_type)

        def with_marked(value: Any) -> Any:
            return marked if value is inputs else value

        return map(with_marked, arguments), {key: with_marked(options[key]) for key in options}

    return with_inputs_to_send


def creates_requests(module: ModuleType) -> bool:
    """Return whether our function creates the requests in a module.

    A wrapper around it, by which a program has replaced it, expects complete requests.
    """
    creator = place(vars(module).get("_get_inference_request"))
    return creator is not None and package_of(creator) == package_of(__name__)


def with_signature_of(original: Function, replacement: Any) -> Function:
    replacement.__signature__ = signature(original)
    return replacement  # type: ignore[no-any-return]


# --- InferResult ---------------------------------------------------------------------------------


def replace_result_init(original: Function) -> Function:
    json = import_module("tritonclient.http._infer_result").json
    transport_response = import_module("geventhttpclient.response").HTTPSocketPoolResponse

    def __init__(self: Any, response: Any, verbose: Any) -> None:
        header_length = response.get("Inference-Header-Content-Length")
        is_compressed = response.get("Content-Encoding") in ("gzip", "deflate")
        if is_compressed or header_length is None:
            original(self, response, verbose)
        else:
            # The same steps as those of the original, which defines a class in each call.
            header = response.read(length=int(header_length))
            if verbose:
                print(header)
            result = self._result = json.loads(header)
            offsets = self._output_name_to_buffer_map = {}
            rest = None
            body = getattr(response, "response_body_", None)  # of `from_response_body`
            if type(body) is bytes:
                rest = byte_array(body)[response.offset_ :]
            elif type(response) is transport_response and type(header) is bytes:
                rest = receive_rest(response)
            self._buffer = response.read() if rest is None else rest
            position = 0
            for output in result["outputs"]:
                parameters = output.get("parameters")
                nbytes = None if parameters is None else parameters.get("binary_data_size")
                if nbytes is not None:
                    offsets[output["name"]] = position
                    position += nbytes
        buffer = vars(self).get("_buffer")
        if type(buffer) is bytes:
            self._buffer = byte_array(buffer)

    return __init__
