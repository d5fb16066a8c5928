"""Replacements for functions of tritonclient.http and tritonclient.http.aio.

The client's methods choose the type of the body, by BODY_TYPE, and the function that creates
requests makes a body of this type.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, wraps
from inspect import signature
from types import ModuleType
from typing import Any

import geventhttpclient
from geventhttpclient.response import HTTPSocketPoolResponse
from tritonclient.http import InferenceServerClient, InferInput, InferResult, _client, _utils
from tritonclient.http._infer_result import json

from ..patching import Function, Replacement
from .bodies import FileBody, HttpLibrary, payload_class, receive_rest
from .calls import creates_requests, setting
from .convert import (
    SHARED_MEMORY_KEYS,
    HeaderInput,
    array_input_class,
    binary_data,
    byte_array,
    is_extra_bytes,
    is_reference,
    json_data,
    large_data,
    object_array,
    tensor_data,
)

ARRAY_INPUT = array_input_class(InferInput, "_raw_data", "_get_binary_data")

BODY_TYPE: ContextVar[Callable[[list[Any]], Any]] = ContextVar(
    "tensorwire_body_type", default=b"".join
)
"""What creates the body from a list of buffers, in the client's method that runs at present."""


def replacements(aio: ModuleType | None) -> list[Replacement]:
    """Return the replacements in tritonclient.http and, if it can be imported, its ``aio``."""
    client, called = InferenceServerClient, partial(Replacement, calls_original=True)
    replace_async_infer = partial(replace_infer, is_sent_later=True)
    found = [
        Replacement(
            InferInput, "set_data_from_numpy", replace_set_data, ["HTTP inputs", "datatypes"]
        ),
        Replacement(
            _utils, "_get_inference_request", replace_get_inference_request, ["HTTP inputs"]
        ),
        called(client, "infer", replace_infer, ["HTTP requests", "HTTP client"]),
        called(client, "async_infer", replace_async_infer, ["HTTP requests", "HTTP client"]),
        Replacement(InferResult, "__init__", replace_result_init, ["HTTP results"]),
    ]
    if aio:
        replace = partial(replace_aio_infer, aio)
        relies_on = ["HTTP requests", "HTTP aio"]
        found.append(called(aio.InferenceServerClient, "infer", replace, relies_on))
    return found


# --- requests ------------------------------------------------------------------------------------


def replace_set_data(original: Function) -> Function:
    def set_data_from_numpy(self: Any, input_tensor: Any, binary_data: bool = True) -> Any:
        datatype, shape, parameters = self._datatype, self._shape, self._parameters
        raw = numbers = None
        if binary_data:
            raw = tensor_data(self, ARRAY_INPUT, input_tensor, datatype, shape)
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


def replace_get_inference_request(original: Function) -> Function:
    @wraps(original)
    def _get_inference_request(inputs: Any, *arguments: Any, **options: Any) -> Any:
        if not large_data(inputs, ARRAY_INPUT):
            return original(inputs, *arguments, **options)
        header, _ = original([HeaderInput(each) for each in inputs], *arguments, **options)
        return BODY_TYPE.get()([header, *binary_data(inputs, ARRAY_INPUT)]), len(header)

    return _get_inference_request


# --- calls ---------------------------------------------------------------------------------------


def replace_infer(original: Function, is_sent_later: bool = False) -> Function:
    """Replace ``infer``, or ``async_infer``, whose request ``is_sent_later``."""
    stub_class = geventhttpclient.HTTPClient
    library = HttpLibrary("_client_stub", stub_class, ("post", "request"), FileBody)
    body_type = body_type_of(original, _client, library, is_sent_later)
    return setting(BODY_TYPE, body_type, original)


def replace_aio_infer(aio: ModuleType, original: Function) -> Function:
    library = HttpLibrary("_stub", aio.aiohttp.ClientSession, ("post", "_request"), payload_class())
    return setting(BODY_TYPE, body_type_of(original, aio, library), original, is_async=True)


def body_type_of(
    original: Function, module: ModuleType, library: HttpLibrary, is_sent_later: bool = False
) -> Function:
    """Return a function that returns `BODY_TYPE` for the arguments of a client's method.

    This is the type of the library if it can send the body without joining it. A body that
    ``is_sent_later``, when the method has returned, must not refer to arrays of the program.
    """
    names = list(signature(original).parameters)[1:]
    compression = "request_compression_algorithm"
    if compression not in names:  # a wrapper with other parameters
        names = ["model_name", "inputs"]

    def body_type(client: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **options}
        data = large_data(given.get("inputs"), ARRAY_INPUT)
        if (
            not data
            or len(arguments) > len(names)
            or given.get(compression)
            or client._verbose
            or (is_sent_later and any(map(is_reference, data)))
            or not creates_requests(module)
            or not library.is_plain(client)
        ):
            return b"".join
        return library.body_type

    return body_type


# --- responses -----------------------------------------------------------------------------------


def replace_result_init(original: Function) -> Function:
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
            elif type(response) is HTTPSocketPoolResponse and type(header) is bytes:
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
