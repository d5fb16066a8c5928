"""What is exchanged in KServe, and for what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kserve import InferInput, InferOutput, InferRequest, InferResponse
from kserve.errors import InvalidInput
from kserve.protocol import infer_type
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.rest.multiprocess.server import RESTServerProcess
from kserve.protocol.rest.v2_datamodels import ServerMetadataResponse
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils import numpy_codec
from starlette.requests import Request

from ..._codec.datatypes import bf16_dtype
from ...errors import DecodeError
from ..patching import Replacement
from . import messages, serving, tensors
from .options import Options

Made = Callable[..., Any]


def replacements(
    options: Callable[[], Options], install: Callable[[Options], None]
) -> list[Replacement]:
    """``options``: those in force; ``install``: what a spawned process calls with them."""

    def read_request(original: Made) -> Made:
        def from_bytes(cls: Any, req_bytes: Any, json_length: int, model_name: str) -> Any:
            return messages.read_request(cls, req_bytes, json_length, model_name, options())

        return from_bytes

    def read_response(original: Made) -> Made:
        def from_bytes(cls: Any, res_bytes: Any, json_length: int) -> Any:
            return messages.read_response(cls, res_bytes, json_length, options())

        return from_bytes

    def write_request(original: Made) -> Made:
        def to_rest(self: Any) -> Any:
            return messages.write_request(self)

        return to_rest

    def write_response(original: Made) -> Made:
        def to_rest(self: Any) -> Any:
            return messages.write_response(self, options())

        return to_rest

    def input_array(original: Made) -> Made:
        def as_numpy(self: Any) -> Any:
            try:
                if self._raw_data is None:
                    return original(self)
                return tensors.raw_array(self, "input", options())
            except InvalidInput:
                raise
            except (DecodeError, ValueError, TypeError, OverflowError) as error:
                raise InvalidInput(f"input '{self.name}': {error}") from error

        return as_numpy

    def output_array(original: Made) -> Made:
        def as_numpy(self: Any) -> Any:
            if self._raw_data is None:
                return original(self)
            return tensors.raw_array(self, "output", options())

        return as_numpy

    def convert_request(original: Made) -> Made:
        def from_inference_request(cls: Any, request: Any, model_name: str) -> Any:
            found = serving.found_in(request)
            if found is None:
                return original(cls, request, model_name)
            return found.infer_request(cls, model_name, options())

        return from_inference_request

    def read_body(original: Made) -> Made:
        async def json(self: Any) -> Any:
            found = await serving.read_body(self, options())
            return await original(self) if found is None else found

        return json

    def encode(original: Made) -> Made:
        def encode(
            self: Any, model_name: Any, response: Any, headers: Any, req_attributes: dict[str, Any]
        ) -> Any:
            if isinstance(response, InferResponse):
                found = serving.encode_json(response, headers)
                if found is not None:
                    return found
            return original(self, model_name, response, headers, req_attributes)

        return encode

    def decode(original: Made) -> Made:
        def decode_inference_request(self: Any, body: Any, headers: Any, model_name: str) -> Any:
            if isinstance(body, bytes):
                return serving.decode_request(body, headers, model_name, options())
            return original(self, body, headers, model_name)

        return decode_inference_request

    def start_process(original: Made) -> Made:
        def __init__(
            self: Any, sockets: Any, target: Any, log_config_file: str | None = None
        ) -> None:
            child = serving.InChild(target, partial(install, options()))
            original(self, sockets, child, log_config_file)

        return __init__

    return [
        Replacement(infer_type, "serialize_byte_tensor", serializer),
        Replacement(infer_type, "deserialize_bytes_tensor", deserializer),
        Replacement(infer_type, "get_content", content),
        Replacement(infer_type, "_contains_fp16_datatype", needs_raw),
        Replacement(numpy_codec, "to_np_dtype", to_dtype),
        Replacement(numpy_codec, "from_np_dtype", from_dtype),
        Replacement(InferInput, "as_numpy", input_array),
        Replacement(InferOutput, "as_numpy", output_array),
        Replacement(InferInput, "set_data_from_numpy", input_setter),
        Replacement(InferOutput, "set_data_from_numpy", output_setter),
        Replacement(InferRequest, "from_bytes", read_request),
        Replacement(InferResponse, "from_bytes", read_response),
        Replacement(InferRequest, "to_rest", write_request),
        Replacement(InferResponse, "to_rest", write_response),
        Replacement(InferRequest, "from_inference_request", convert_request),
        Replacement(Request, "json", read_body),
        Replacement(DataPlane, "decode_inference_request", decode),
        Replacement(DataPlane, "encode", encode),
        Replacement(V2Endpoints, "metadata", announcer),
        Replacement(RESTServerProcess, "__init__", start_process),
    ]


def input_setter(original: Made) -> Made:
    def set_data_from_numpy(self: Any, input_tensor: Any, binary_data: bool = True) -> None:
        tensors.set_data(self, input_tensor, binary_data)

    return set_data_from_numpy


def output_setter(original: Made) -> Made:
    def set_data_from_numpy(self: Any, output_tensor: Any, binary_data: bool = True) -> None:
        tensors.set_data(self, output_tensor, binary_data)

    return set_data_from_numpy


def serializer(original: Made) -> Made:
    def serialize_byte_tensor(input_tensor: Any) -> Any:
        return tensors.serialize(input_tensor)

    return serialize_byte_tensor


def deserializer(original: Made) -> Made:
    def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
        return tensors.deserialize(encoded_tensor)

    return deserialize_bytes_tensor


def content(original: Made) -> Made:
    def get_content(datatype: str, data: Any) -> Any:
        return [] if datatype == "BF16" else original(datatype, data)  # raw, as FP16

    return get_content


def needs_raw(original: Made) -> Made:
    def _contains_fp16_datatype(infer_response: Any) -> bool:
        return any(output.datatype in messages.NOT_IN_JSON for output in infer_response.outputs)

    return _contains_fp16_datatype


def to_dtype(original: Made) -> Made:
    def to_np_dtype(dtype: Any) -> Any:
        return bf16_dtype() if dtype == "BF16" else original(dtype)

    return to_np_dtype


def from_dtype(original: Made) -> Made:
    def from_np_dtype(np_dtype: Any) -> Any:
        return tensors.our_datatype_of(np_dtype) or original(np_dtype)

    return from_np_dtype


def announcer(original: Made) -> Made:
    async def metadata(self: Any) -> Any:
        found = serving.announced(self.dataplane.metadata())
        return ServerMetadataResponse.model_validate(found)

    return metadata
