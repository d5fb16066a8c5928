"""Replacements for functions of MLServer.

The methods of the codec classes are replaced, not the classes, because registries and the
signatures of runtimes refer to the classes. The other methods of the codecs (``encode_input``,
``decode_output``, the request codecs) call the replaced methods.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from math import prod
from typing import Any

from mlserver import raw as mlserver_raw
from mlserver.codecs import NumpyCodec
from mlserver.codecs import string as string_codec
from mlserver.codecs.utils import inject_batch_dimension
from mlserver.grpc import converters, dataplane_pb2_grpc
from mlserver.grpc.converters import ModelInferRequestConverter, ModelInferResponseConverter
from mlserver.grpc.dataplane_pb2 import ModelInferRequest
from mlserver.grpc.servicers import InferenceServicer
from mlserver.handlers import DataPlane
from mlserver.parallel import worker
from mlserver.rest.app import APIRoute
from mlserver.rest.endpoints import Endpoints
from mlserver.types import InferenceRequest, RequestInput

import tensorwire as tw

from ...errors import ElementError, LayoutError, format_count, format_subject
from ...http import EXTENSION
from ...server.asgi import Receive, Scope, Send
from ..patching import Function, Replacement
from ..split import SplitMessage, Wrapper, add_infer_handler
from . import _PATCH, install
from .convert import (
    ArrayData,
    array_bytes,
    array_of,
    array_output,
    mlserver_error,
    numeric_array,
    view_raw_data,
)
from .server import respond


def replacements() -> list[Replacement]:
    return [
        # REST
        Replacement(APIRoute, "handle", replace_handle),
        # raw gRPC contents
        Replacement(ModelInferRequestConverter, "to_types", replace_to_types),
        Replacement(mlserver_raw, "pack", replace_pack),
        Replacement(
            ModelInferResponseConverter, "from_types", replace_from_types, calls_original=True
        ),
        Replacement(
            dataplane_pb2_grpc,
            "add_GRPCInferenceServiceServicer_to_server",
            replace_add_servicer,
            calls_original=True,
        ),
        # codecs
        Replacement(NumpyCodec, "decode_input", replace_numpy_decode_input),
        Replacement(NumpyCodec, "encode_output", replace_numpy_encode_output),
        Replacement(string_codec, "_decode_input_or_output", replace_decode_input_or_output),
        # server
        Replacement(DataPlane, "metadata", replace_metadata, calls_original=True),
        Replacement(worker, "Worker", replace_worker),
    ]


# --- REST ----------------------------------------------------------------------------------------


def replace_handle(original: Function) -> Function:
    infer = Endpoints.infer  # also the endpoint of the paths that end in generate

    async def handle(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        is_infer = getattr(self.endpoint, "__func__", None) is infer
        if is_infer and scope["method"] == "POST":
            await respond(self, original, scope, receive, send)
        else:
            await original(self, scope, receive, send)

    return handle


# --- codecs --------------------------------------------------------------------------------------


def replace_numpy_decode_input(original: Function) -> Function:
    def decode_input(cls: Any, request_input: Any) -> Any:
        data, shape = array_of(request_input.data), request_input.shape
        if isinstance(data, tw.BytesArray) and data.size == prod(shape):
            return data.as_numpy("S").reshape(shape)
        array = numeric_array(request_input)
        if array is None:
            return original(cls, request_input)
        # As without the codec, the array is aligned and writable.
        is_suitable = array.flags.aligned and array.flags.writeable
        return (array if is_suitable else array.copy()).reshape(shape)

    return decode_input


def replace_numpy_encode_output(original: Function) -> Function:
    def encode_output(cls: Any, name: str, payload: Any, **kwargs: Any) -> Any:
        shape = inject_batch_dimension(list(getattr(payload, "shape", ())))
        output = array_output(name, payload, shape, cls.ContentType)
        return original(cls, name, payload, **kwargs) if output is None else output

    return encode_output


def replace_decode_input_or_output(original: Function) -> Function:
    def _decode_input_or_output(input_or_output: Any) -> Any:
        data = array_of(input_or_output.data)
        if not isinstance(data, tw.BytesArray):
            return original(input_or_output)
        try:
            return data.as_strings().reshape(-1).tolist()
        except ElementError as error:
            message = f"{format_subject('tensor', input_or_output.name)}: {error}"
            raise mlserver_error(ElementError(message)) from error

    return _decode_input_or_output


# --- raw gRPC contents ---------------------------------------------------------------------------


def replace_to_types(original: Function) -> Function:
    def to_types(cls: Any, pb_object: Any) -> Any:
        raw_contents = pb_object.raw_input_contents
        if not raw_contents:
            return original(cls, pb_object)
        request = InferenceRequest.model_construct(
            id=pb_object.id,
            parameters=converters.ParametersConverter.to_types(pb_object.parameters),
            inputs=inputs_of(pb_object.inputs, raw_contents),
        )
        if pb_object.outputs:
            to_output = converters.InferRequestedOutputTensorConverter.to_types
            request.outputs = [to_output(output) for output in pb_object.outputs]
        return request

    return to_types


def inputs_of(tensors: Any, raw_contents: Any) -> list[Any]:
    """Convert the inputs of a gRPC request. Raises MLServerError (status 400).

    Each tensor without typed contents gets the next raw contents, and all of these must be used.
    """
    n_empty = sum(not tensor.contents.ListFields() for tensor in tensors)
    if n_empty != len(raw_contents):
        verb = "has" if n_empty == 1 else "have"
        raise mlserver_error(
            LayoutError(
                f"{format_count('tensor', n_empty)} {verb} no contents, but there are raw "
                f"contents for {len(raw_contents)}",
                expected=n_empty,
                actual=len(raw_contents),
            )
        )
    contents = iter(raw_contents)
    return [
        converters.InferInputTensorConverter.to_types(tensor)
        if tensor.contents.ListFields()
        else raw_input(tensor, next(contents))
        for tensor in tensors
    ]


ALL_FIELDS = set(RequestInput.model_fields)  # one set for all inputs, which have all fields


def raw_input(tensor: Any, raw: bytes | memoryview) -> Any:
    shape = list(tensor.shape)
    return RequestInput.model_construct(
        ALL_FIELDS,
        name=tensor.name,
        shape=shape,
        datatype=tensor.datatype,
        parameters=converters.ParametersConverter.to_types(tensor.parameters),
        data=ArrayData.from_array(view_raw_data(tensor.name, tensor.datatype, shape, raw)),
    )


def replace_pack(original: Function) -> Function:
    def pack(elem: Any) -> Any:
        data, array = array_of(elem.data), numeric_array(elem)
        if isinstance(data, tw.BytesArray):
            return bytes(data.wire)
        if array is not None and array.size == prod(elem.shape):
            return array_bytes(array)
        values = getattr(elem.data, "root", elem.data)
        if elem.datatype == "BYTES" and type(values) is list:
            with suppress(tw.TensorwireError, TypeError):  # MLServer reports it
                return tw.encode_bytes(values)
        return original(elem)

    return pack


class SplitResult(Wrapper):
    """What a model returned for a call of the gRPC server. Its attributes are the response's."""


class SplittingPlane(Wrapper):
    """A data plane whose ``infer`` returns SplitResults, which become SplitMessages."""

    async def infer(self, *arguments: Any, **more: Any) -> SplitResult:
        return SplitResult(await self._wrapped.infer(*arguments, **more))


def replace_from_types(original: Function) -> Function:
    def from_types(cls: Any, type_object: Any, use_raw: bool = False) -> Any:
        if not isinstance(type_object, SplitResult):
            return original(cls, type_object, use_raw)
        response = type_object._wrapped
        if not use_raw:
            return original(cls, response)
        response.outputs, contents = converters.extract_raw(response.outputs)
        return SplitMessage(original(cls, response), contents)

    return from_types


def replace_add_servicer(original: Function) -> Function:
    def add_GRPCInferenceServiceServicer_to_server(servicer: Any, server: Any) -> None:
        original(servicer, server)
        if getattr(type(servicer), "ModelInfer", None) is InferenceServicer.ModelInfer:
            split = copy(servicer)
            split._data_plane = SplittingPlane(servicer._data_plane)
            add_infer_handler(server, split.ModelInfer, ModelInferRequest)

    return add_GRPCInferenceServiceServicer_to_server


# --- server --------------------------------------------------------------------------------------


def replace_metadata(original: Function) -> Function:
    async def metadata(self: Any) -> Any:
        found = await original(self)
        if EXTENSION not in found.extensions:
            found.__dict__["extensions"] = [*found.extensions, EXTENSION]  # without validation
        return found

    return metadata


class InstallingWorker(worker.Worker):  # type: ignore[misc]  # mlserver has no types
    """A parallel worker of MLServer that installs the integration in its process."""

    def __init__(self, settings: Any, responses: Any, env: Any = None) -> None:
        super().__init__(settings, responses, env)
        self._untested = _PATCH.untested

    def run(self) -> None:
        install(untested=self._untested)
        super().run()


# Uninstalling restores the original under every name in all modules, also in this one.
_INSTALLING = (InstallingWorker,)


def replace_worker(original: type) -> type:
    return _INSTALLING[0]
