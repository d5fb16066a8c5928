"""Replacements for functions of tritonclient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from tritonclient import utils

from ..._codec.bytes.array import decode_bytes
from ...errors import TensorwireError
from ..patching import Function, Replacement, package_of, place
from .convert import (
    SHARED_MEMORY_KEYS,
    HeaderInput,
    array_input_class,
    binary_data,
    byte_array,
    elements_at,
    is_extra_bytes,
    is_reference,
    json_data,
    large_data,
    object_array,
    object_scalar,
    serialized,
    tensor_data,
)
from .sources import RELIES_ON
from .transport import FileBody, Transport, payload_class, receive_rest

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
            Replacement(
                http.InferenceServerClient, "async_infer", replace_async_infer, calls_original=True
            ),
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


def array_input() -> Any:
    input_class = import_module("tritonclient.http").InferInput
    return array_input_class(input_class, "_raw_data", "_get_binary_data")


def replace_http_set_data_from_numpy(original: Function) -> Function:
    array_class = array_input()

    def set_data_from_numpy(self: Any, input_tensor: Any, binary_data: bool = True) -> Any:
        datatype, shape, parameters = self._datatype, self._shape, self._parameters
        raw = numbers = None
        if binary_data:
            raw = tensor_data(self, array_class, input_tensor, datatype, shape)
        else:
            numbers = json_data(input_tensor, datatype, shape)
        if raw is not None or numbers is not None:
            for key in SHARED_MEMORY_KEYS:
                parameters.pop(key, None)
            self._raw_data, self._data = raw, numbers
            if raw is None:
                parameters.pop("binary_data_size", None)
            else:
                parameters["binary_data_size"] = len(raw)
            return self
        if is_extra_bytes(input_tensor) and self.datatype() == "BYTES":
            input_tensor = object_array(input_tensor)
        return original(self, input_tensor, binary_data)

    return set_data_from_numpy


BODY_TYPE: ContextVar[Callable[[list[Any]], Any]] = ContextVar(
    "tensorwire_body_type", default=b"".join
)
"""What creates the body from a list of buffers, in the client's method that runs at present."""


def replace_get_inference_request(original: Function) -> Function:
    array_class = array_input()

    def _get_inference_request(inputs: Any, *arguments: Any, **options: Any) -> Any:
        if not large_data(inputs, array_class):
            return original(inputs, *arguments, **options)
        header, _ = original([HeaderInput(each) for each in inputs], *arguments, **options)
        return BODY_TYPE.get()([header, *binary_data(inputs, array_class)]), len(header)

    return with_signature_of(original, _get_inference_request)


# --- InferenceServerClient -----------------------------------------------------------------------


def replace_infer(original: Function, is_sent_later: bool = False) -> Function:
    """Replace ``infer``, or ``async_infer``, whose request ``is_sent_later``."""
    stub_class = import_module("geventhttpclient").HTTPClient
    transport = Transport("_client_stub", stub_class, ("post", "request"), FileBody)
    body_type = body_type_of(original, "tritonclient.http._client", transport, is_sent_later)

    def infer(self: Any, *arguments: Any, **options: Any) -> Any:
        with during(BODY_TYPE, body_type(self, arguments, options)):
            return original(self, *arguments, **options)

    return with_signature_of(original, infer)


replace_async_infer = partial(replace_infer, is_sent_later=True)


def replace_aio_infer(original: Function) -> Function:
    stub_class = import_module("aiohttp").ClientSession
    transport = Transport("_stub", stub_class, ("post", "_request"), payload_class())
    body_type = body_type_of(original, "tritonclient.http.aio", transport)

    async def infer(self: Any, *arguments: Any, **options: Any) -> Any:
        with during(BODY_TYPE, body_type(self, arguments, options)):
            return await original(self, *arguments, **options)

    return with_signature_of(original, infer)


def body_type_of(
    original: Function, module: str, transport: Transport, is_sent_later: bool = False
) -> Function:
    """Return a function that returns `BODY_TYPE` for the arguments of a client's method.

    This is the type of the transport if it can send the body without joining it. A body that
    ``is_sent_later``, when the method has returned, must not refer to arrays of the program.
    """
    array_class = array_input()
    client_module = import_module(module)
    names = list(signature(original).parameters)[1:]
    compression = "request_compression_algorithm"
    if compression not in names:  # a wrapper with other parameters
        names = ["model_name", "inputs"]

    def body_type(client: Any, arguments: Any, options: dict[str, Any]) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **options}
        data = large_data(given.get("inputs"), array_class)
        if (
            not data
            or len(arguments) > len(names)
            or given.get(compression)
            or client._verbose
            or (is_sent_later and any(map(is_reference, data)))
            or not creates_requests(client_module)
            or not transport.is_plain(client)
        ):
            return b"".join
        return transport.body_type

    return body_type


Value = TypeVar("Value")


@contextmanager
def during(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a variable for the duration of a ``with`` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is closed in another context
            variable.reset(token)


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
