"""Replacements for functions of KServe."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import asdict
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
from kserve import InferInput, InferOutput, InferRequest, InferResponse
from kserve.constants.constants import GRPC_CONTENT_DATATYPE_MAPPINGS
from kserve.errors import InvalidInput
from kserve.protocol import infer_type
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc
from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest
from kserve.protocol.grpc.servicer import InferenceServicer
from kserve.protocol.rest import v2_endpoints
from kserve.protocol.rest.multiprocess.server import RESTServerProcess
from kserve.protocol.rest.v2_datamodels import ServerMetadataResponse
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils import numpy_codec

from ..._codec.datatypes import DATATYPES, bf16_dtype
from ..patching import Function, Replacement
from ..split import add_infer_handler
from . import convert, server
from .convert import Options
from .grpc_server import PlaneWithViews

_options = Options()


def set_options(options: Options) -> None:
    """Set the options that the replacements use."""
    global _options  # noqa: PLW0603
    _options = options


def replacements(
    install: Callable[..., None], is_installed: Callable[[], bool]
) -> list[Replacement]:
    """Return all replacements. ``install`` is called in the processes that the server starts."""

    def options() -> Options | None:
        return _options if is_installed() else None

    return [
        # BYTES and datatypes
        Replacement(infer_type, "serialize_byte_tensor", replace_serialize_byte_tensor),
        Replacement(infer_type, "deserialize_bytes_tensor", replace_deserialize_bytes_tensor),
        Replacement(infer_type, "get_content", replace_get_content),
        Replacement(infer_type, "_contains_fp16_datatype", replace_contains_fp16_datatype),
        Replacement(numpy_codec, "to_np_dtype", replace_to_np_dtype),
        Replacement(numpy_codec, "from_np_dtype", replace_from_np_dtype),
        # tensors
        Replacement(InferInput, "as_numpy", replace_input_as_numpy),
        Replacement(InferOutput, "as_numpy", replace_output_as_numpy),
        Replacement(InferInput, "set_data_from_numpy", replace_input_set_data_from_numpy),
        Replacement(InferOutput, "set_data_from_numpy", replace_output_set_data_from_numpy),
        # messages
        Replacement(InferRequest, "from_bytes", replace_request_from_bytes),
        Replacement(InferResponse, "from_bytes", replace_response_from_bytes),
        Replacement(InferRequest, "to_rest", replace_request_to_rest),
        Replacement(InferResponse, "to_rest", replace_response_to_rest),
        Replacement(InferRequest, "from_inference_request", replace_from_inference_request),
        # server
        Replacement(
            v2_endpoints, "register_v2_endpoints", partial(replace_register_v2_endpoints, options)
        ),
        Replacement(
            V2Endpoints, "infer", partial(replace_endpoint_infer, options), calls_original=True
        ),
        Replacement(DataPlane, "decode_inference_request", replace_decode_inference_request),
        Replacement(DataPlane, "infer", replace_infer, calls_original=True),
        Replacement(V2Endpoints, "metadata", replace_metadata),
        Replacement(
            grpc_predict_v2_pb2_grpc,
            "add_GRPCInferenceServiceServicer_to_server",
            replace_add_servicer,
            calls_original=True,
        ),
        Replacement(
            RESTServerProcess,
            "__init__",
            partial(replace_process_init, install),
            calls_original=True,
        ),
    ]


# --- BYTES and datatypes -------------------------------------------------------------------------


def replace_serialize_byte_tensor(original: Function) -> Function:
    def serialize_byte_tensor(input_tensor: Any) -> Any:
        return convert.serialize_byte_tensor(input_tensor)

    return serialize_byte_tensor


def replace_deserialize_bytes_tensor(original: Function) -> Function:
    def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
        return convert.deserialize_bytes_tensor(encoded_tensor)

    return deserialize_bytes_tensor


def replace_get_content(original: Function) -> Function:
    def get_content(datatype: str, data: Any) -> Any:
        field = GRPC_CONTENT_DATATYPE_MAPPINGS.get(datatype)
        if field is not None:
            return list(getattr(data, field))
        # As for FP16, there are no typed contents for BF16, only raw contents.
        return [] if datatype == "BF16" else original(datatype, data)

    return get_content


def replace_contains_fp16_datatype(original: Function) -> Function:
    def _contains_fp16_datatype(infer_response: Any) -> bool:
        for output in infer_response.outputs:  # noqa: SIM110 - any() takes longer
            if output._datatype in {"FP16", "BF16"}:
                return True
        return False

    return _contains_fp16_datatype


# The two functions below look up what KServe's functions return. KServe's functions build a table,
# or compare one dtype after the other, in each call.


def replace_to_np_dtype(original: Function) -> Function:
    found = {name: original(name) for name in DATATYPES}
    dtypes = {name: dtype for name, dtype in found.items() if dtype is not None}

    def to_np_dtype(dtype: Any) -> Any:
        known = dtypes.get(dtype)
        if known is not None:
            return known
        return bf16_dtype() if dtype == "BF16" else original(dtype)

    return to_np_dtype


def replace_from_np_dtype(original: Function) -> Function:
    datatypes = {dtype: original(dtype) for dtype in map(np.dtype, "?bhilBHILefdO")}

    def from_np_dtype(np_dtype: Any) -> Any:
        known = datatypes.get(np_dtype)
        if known is not None:
            return known
        return convert.extra_datatype_of(np_dtype) or original(np_dtype)

    return from_np_dtype


# --- tensors -------------------------------------------------------------------------------------


def replace_input_as_numpy(original: Function) -> Function:
    def as_numpy(self: Any) -> Any:
        try:
            if self._raw_data is None:
                return original(self)
            return convert.raw_data_array(self, _options)
        except InvalidInput:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidInput(f"input '{self.name}': {error}") from error

    return as_numpy


def replace_output_as_numpy(original: Function) -> Function:
    def as_numpy(self: Any) -> Any:
        if self._raw_data is None:
            return original(self)
        return convert.raw_data_array(self, _options)

    return as_numpy


def replace_input_set_data_from_numpy(original: Function) -> Function:
    def set_data_from_numpy(self: Any, input_tensor: Any, binary_data: bool = True) -> None:
        convert.set_data(self, input_tensor, binary_data)

    return set_data_from_numpy


def replace_output_set_data_from_numpy(original: Function) -> Function:
    def set_data_from_numpy(self: Any, output_tensor: Any, binary_data: bool = True) -> None:
        convert.set_data(self, output_tensor, binary_data)

    return set_data_from_numpy


# --- messages ------------------------------------------------------------------------------------


def replace_request_from_bytes(original: Function) -> Function:
    def from_bytes(cls: Any, req_bytes: Any, json_length: int, model_name: str) -> Any:
        if json_length == len(req_bytes):  # no binary data: KServe builds lists in less time
            try:
                return original(cls, req_bytes, json_length, model_name)
            except Exception:  # the function below reports it
                pass
        return convert.read_request(cls, req_bytes, json_length, model_name, _options)

    return from_bytes


def replace_response_from_bytes(original: Function) -> Function:
    def from_bytes(cls: Any, res_bytes: Any, json_length: int) -> Any:
        if json_length == len(res_bytes):  # as for requests
            try:
                return original(cls, res_bytes, json_length)
            except Exception:
                pass
        return convert.read_response(cls, res_bytes, json_length, _options)

    return from_bytes


def replace_request_to_rest(original: Function) -> Function:
    def to_rest(self: Any) -> Any:
        return convert.write_request(self)

    return to_rest


def replace_response_to_rest(original: Function) -> Function:
    def to_rest(self: Any) -> Any:
        return convert.write_response(self, _options)

    return to_rest


def replace_from_inference_request(original: Function) -> Function:
    def from_inference_request(cls: Any, request: Any, model_name: str) -> Any:
        message = server.message_of(request)
        if message is None:
            return original(cls, request, model_name)
        return convert.to_infer_request(cls, *message, model_name, _options)

    return from_inference_request


# --- server --------------------------------------------------------------------------------------


# FastAPI keeps the endpoints of a server as they are when the server registers them. The two
# functions below therefore also exist in a server after `uninstall`, and have no effect then.


def replace_register_v2_endpoints(options: server.GetOptions, original: Function) -> Function:
    route_class = server.infer_route_class(options)

    def register_v2_endpoints(app: Any, dataplane: Any, model_repository_extension: Any) -> None:
        original(server.RegisteredApp(app, route_class), dataplane, model_repository_extension)

    return register_v2_endpoints


def replace_endpoint_infer(options: server.GetOptions, original: Function) -> Function:
    encode = DataPlane.encode  # KServe's own function

    async def infer(self: Any, *arguments: Any, **more: Any) -> Any:
        in_use = options()
        if in_use is not None:
            plane = server.PlaneWithText(self.dataplane, encode, in_use)
            self = copy(self)
            self.dataplane = plane
        return await original(self, *arguments, **more)

    infer.__signature__ = signature(original)  # type: ignore[attr-defined]
    return infer


def replace_decode_inference_request(original: Function) -> Function:
    def decode_inference_request(self: Any, body: Any, headers: Any, model_name: str) -> Any:
        if isinstance(body, bytes):
            return server.decode_body(body, headers, model_name, _options)
        return original(self, body, headers, model_name)

    return decode_inference_request


def replace_infer(original: Function) -> Function:
    async def infer(self: Any, model_name: str, request: Any, headers: Any = None) -> Any:
        return await server.infer(partial(original, self), _options, model_name, request, headers)

    return infer


def replace_metadata(original: Function) -> Function:
    async def metadata(self: Any) -> Any:
        found = server.announce_extension(self.dataplane.metadata())
        return ServerMetadataResponse.model_validate(found)

    return metadata


def replace_add_servicer(original: Function) -> Function:
    def add_GRPCInferenceServiceServicer_to_server(servicer: Any, server: Any) -> None:
        original(servicer, server)
        if getattr(type(servicer), "ModelInfer", None) is InferenceServicer.ModelInfer:
            split = copy(servicer)
            split._data_plane = PlaneWithViews(servicer._data_plane, lambda: _options)
            add_infer_handler(server, split.ModelInfer, ModelInferRequest)

    return add_GRPCInferenceServiceServicer_to_server


def replace_process_init(install: Callable[..., None], original: Function) -> Function:
    def __init__(self: Any, sockets: Any, target: Any, log_config_file: str | None = None) -> None:
        target = partial(install_and_run, partial(install, **asdict(_options)), target)
        original(self, sockets, target, log_config_file)

    return __init__


def install_and_run(
    install: Callable[[], None], target: Function, *args: Any, **kwargs: Any
) -> Any:
    """Run the target of a spawned process, in which the integration is not installed yet."""
    install()
    return target(*args, **kwargs)
