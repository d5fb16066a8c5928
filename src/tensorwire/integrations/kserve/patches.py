"""Replacements for functions of KServe."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import numpy as np
from kserve import InferInput, InferOutput, InferResponse
from kserve.errors import InvalidInput
from kserve.protocol import infer_type
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc
from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest
from kserve.protocol.grpc.servicer import InferenceServicer
from kserve.protocol.rest.multiprocess.server import RESTServerProcess
from kserve.protocol.rest.server import RESTServer
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils import numpy_codec

from ..._codec.bytes.array import decode_bytes
from ..._codec.bytes.writer import are_exact
from ..._codec.datatypes import bf16_dtype
from ..._codec.messages.convert import encode_bytes
from ...errors import DecodeError, EncodeError
from ..patching import Function, Replacement
from ..rest import replace_metadata
from ..split import replace_add_servicer
from . import _PATCH, _install_and_run
from .convert import read_response
from .grpc_server import infer_split
from .route import InferRoute, functions_of

# The route does what KServe's endpoint does. Of the routers of Starlette and FastAPI, it relies on
# what they document: the first route that matches gets the request.
ROUTE = ("codec", "inputs", "outputs", "REST")


def replacements() -> list[Replacement]:
    called = partial(Replacement, calls_original=True)
    replace_servicer = partial(
        replace_add_servicer, InferenceServicer, infer_split, ModelInferRequest
    )
    return [
        # BYTES
        called(InferInput, "set_data_from_numpy", replace_set_data),
        called(InferOutput, "set_data_from_numpy", replace_set_data),
        Replacement(infer_type, "serialize_byte_tensor", replace_serialize_byte_tensor),
        Replacement(infer_type, "deserialize_bytes_tensor", replace_deserialize_bytes_tensor),
        # BF16
        called(numpy_codec, "to_np_dtype", replace_to_np_dtype),
        called(numpy_codec, "from_np_dtype", replace_from_np_dtype),
        Replacement(infer_type, "get_content", replace_get_content),
        called(infer_type, "_contains_fp16_datatype", replace_contains_fp16_datatype),
        # the servers
        called(RESTServer, "_register_endpoints", replace_register, ROUTE),
        called(V2Endpoints, "metadata", replace_metadata, ["metadata"]),
        called(
            grpc_predict_v2_pb2_grpc,
            "add_GRPCInferenceServiceServicer_to_server",
            replace_servicer,
            ["codec", "inputs", "outputs", "gRPC"],
        ),
        called(RESTServerProcess, "__init__", replace_process_init, ["worker"]),
        # the REST client
        Replacement(InferResponse, "from_bytes", replace_response_from_bytes, ["codec", "outputs"]),
    ]


# --- the servers ---------------------------------------------------------------------------------


def replace_register(original: Function) -> Function:
    # Functions that other code puts in place after the installation are not bypassed.
    infer, own = V2Endpoints.infer, functions_of(DataPlane)

    # The public function for v2 is called later: each request would be compared with the routes of
    # v1 first.
    def _register_endpoints(self: Any, app: Any) -> None:
        position = len(app.router.routes)
        original(self, app)
        # The route is after those that the program has added. If the application has dependencies,
        # such as authentication, FastAPI has to call them before an endpoint.
        if V2Endpoints.infer is infer and not app.router.dependencies:
            app.router.routes.insert(position, InferRoute(app, self.dataplane, own))

    return _register_endpoints


def replace_process_init(original: Function) -> Function:
    def __init__(self: Any, sockets: Any, target: Any, log_config_file: str | None = None) -> None:
        run = partial(_install_and_run, _PATCH.options(), target)
        original(self, sockets, run, log_config_file)

    return __init__


# --- the REST client -----------------------------------------------------------------------------


def replace_response_from_bytes(original: Function) -> Function:
    def from_bytes(cls: Any, res_bytes: Any, json_length: int) -> Any:
        if json_length < len(res_bytes):  # there is binary data
            try:
                return read_response(cls, res_bytes, json_length)
            except DecodeError as error:
                raise InvalidInput(str(error)) from error
        return original(cls, res_bytes, json_length)

    return from_bytes


# --- BYTES and BF16 ------------------------------------------------------------------------------


def replace_set_data(original: Function) -> Function:
    @wraps(original)  # an input and an output have other names for the array
    def set_data_from_numpy(self: Any, *arguments: Any, **options: Any) -> Any:
        named = {name: with_objects(each) for name, each in options.items()}
        return original(self, *map(with_objects, arguments), **named)

    return set_data_from_numpy


def with_objects(value: Any) -> Any:
    """Convert text of kind ``U`` or StringDType, which KServe does not serialize, to objects."""
    is_text = isinstance(value, np.ndarray) and value.dtype.kind in "UT"
    return value.astype(object) if is_text else value


def replace_serialize_byte_tensor(original: Function) -> Function:
    def serialize_byte_tensor(input_tensor: Any) -> Any:
        if type(input_tensor) is np.ndarray and input_tensor.dtype == object and input_tensor.size:
            elements = np.ascontiguousarray(input_tensor)
            try:
                if are_exact(elements):
                    scalar = np.empty((), dtype=object)
                    scalar[()] = encode_bytes(elements)
                    return scalar
            except EncodeError:  # an unpaired surrogate
                pass
        return original(input_tensor)

    return serialize_byte_tensor


def replace_deserialize_bytes_tensor(original: Function) -> Function:
    def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
        try:
            return decode_bytes(encoded_tensor).as_numpy()
        except DecodeError as error:
            raise InvalidInput(str(error)) from error

    return deserialize_bytes_tensor


def replace_to_np_dtype(original: Function) -> Function:
    def to_np_dtype(dtype: Any) -> Any:
        found = original(dtype)
        return bf16_dtype() if found is None and dtype == "BF16" else found

    return to_np_dtype


def replace_from_np_dtype(original: Function) -> Function:
    def from_np_dtype(np_dtype: Any) -> Any:
        found = original(np_dtype)
        is_bf16 = found is None and np_dtype == bf16_dtype()
        return "BF16" if is_bf16 else found

    return from_np_dtype


def replace_get_content(original: Function) -> Function:
    def get_content(datatype: str, data: Any) -> Any:
        # As for FP16, there are no typed contents for BF16, only raw contents.
        return [] if datatype == "BF16" else original(datatype, data)

    return get_content


def replace_contains_fp16_datatype(original: Function) -> Function:
    def _contains_fp16_datatype(infer_response: Any) -> bool:
        return original(infer_response) or any(
            output._datatype == "BF16" for output in infer_response.outputs
        )

    return _contains_fp16_datatype
