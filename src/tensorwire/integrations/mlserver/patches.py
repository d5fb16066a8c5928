"""Replacements for functions of MLServer.

Methods of the codec classes are replaced, because registries and the signatures of runtimes refer
to the classes. The other methods of the codecs (``encode_input``, ``decode_output``, the request
codecs) call these.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

from mlserver import raw as mlserver_raw
from mlserver.codecs import NumpyCodec
from mlserver.codecs import string as string_codec
from mlserver.codecs.utils import inject_batch_dimension
from mlserver.grpc import converters, dataplane_pb2_grpc
from mlserver.grpc.dataplane_pb2 import ModelInferRequest
from mlserver.grpc.servicers import InferenceServicer
from mlserver.grpc.utils import handle_mlserver_error
from mlserver.handlers import DataPlane
from mlserver.parallel import worker
from mlserver.rest.app import APIRoute
from mlserver.rest.endpoints import Endpoints
from mlserver.types import Datatype

import tensorwire as tw

from ...errors import ElementError, LayoutError, format_count, format_subject
from ...grpc_messages import RAW_OUTPUT_CONTENTS
from ...server.asgi import Receive, Scope, Send
from ..patching import Function, Replacement
from ..rest import replace_metadata
from ..split import SplitMessage, replace_add_servicer
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
    called = partial(Replacement, calls_original=True)
    replace_servicer = partial(
        replace_add_servicer, InferenceServicer, infer_split, ModelInferRequest
    )
    return [
        # REST
        Replacement(APIRoute, "handle", replace_handle, ["data", "outputs", "REST"]),
        # raw gRPC contents
        Replacement(mlserver_raw, "inject_raw", replace_inject_raw, ["data", "raw", "unpack"]),
        Replacement(mlserver_raw, "pack", replace_pack, ["data", "raw", "pack"]),
        called(
            dataplane_pb2_grpc,
            "add_GRPCInferenceServiceServicer_to_server",
            replace_servicer,
            ["gRPC"],
        ),
        # codecs
        Replacement(NumpyCodec, "decode_input", replace_decode_input, ["data", "decode"]),
        Replacement(
            NumpyCodec, "encode_output", replace_encode_output, ["data", "outputs", "encode"]
        ),
        Replacement(
            string_codec, "_decode_input_or_output", replace_decode_strings, ["data", "strings"]
        ),
        # server
        called(DataPlane, "metadata", replace_metadata, ["mlserver.rest.app:APIRoute.handle"]),
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


def replace_decode_input(original: Function) -> Function:
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


def replace_encode_output(original: Function) -> Function:
    def encode_output(cls: Any, name: str, payload: Any, **kwargs: Any) -> Any:
        shape = inject_batch_dimension(list(getattr(payload, "shape", ())))
        output = array_output(name, payload, shape, cls.ContentType)
        return original(cls, name, payload, **kwargs) if output is None else output

    return encode_output


def replace_decode_strings(original: Function) -> Function:
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


def replace_inject_raw(original: Function) -> Function:
    def inject_raw(elems: Any, raw_contents: Any) -> Any:
        empty = [elem for elem in elems if not elem.data]
        if len(empty) != len(raw_contents):
            verb = "has" if len(empty) == 1 else "have"
            raise mlserver_error(
                LayoutError(
                    f"{format_count('tensor', len(empty))} {verb} no contents, but there are raw "
                    f"contents for {len(raw_contents)}",
                    expected=len(empty),
                    actual=len(raw_contents),
                )
            )
        for elem, raw in zip(empty, raw_contents, strict=True):
            data = view_raw_data(elem.name, elem.datatype, elem.shape, raw)
            elem.data = ArrayData.from_array(data)
        return elems

    return inject_raw


def replace_pack(original: Function) -> Function:
    def pack(elem: Any) -> Any:
        data = array_of(elem.data)
        if isinstance(data, tw.BytesArray):
            return bytes(data.wire)
        array = None if data is None else numeric_array(elem)
        if array is not None and array.size == prod(elem.shape):
            return array_bytes(array)
        values = getattr(elem.data, "root", elem.data)
        if elem.datatype == "BYTES" and type(values) is list:
            with suppress(tw.TensorwireError, TypeError):  # MLServer reports it
                return tw.encode_bytes(values)
        return original(elem)

    return pack


FP16 = (Datatype.FP16, Datatype.FP16.value)  # a model may set either


@handle_mlserver_error  # type: ignore[untyped-decorator]  # mlserver has no types
async def infer_split(servicer: Any, request: Any, context: Any) -> Any:
    """Do the same as ``ModelInfer``, with raw contents that are not in generated messages."""
    payload = servicer._InsertHeaders(request, context)
    response = await servicer._data_plane.infer(
        payload=payload, name=request.model_name, version=request.model_version
    )
    servicer._SetTrailingMetadata(response, context)
    # There are no typed contents for FP16.
    has_fp16 = any(output.datatype in FP16 for output in response.outputs)
    if not request.raw_input_contents and not has_fp16:
        return converters.ModelInferResponseConverter.from_types(response)
    response.outputs, contents = converters.extract_raw(response.outputs)
    message = converters.ModelInferResponseConverter.from_types(response)
    return SplitMessage(message, contents, RAW_OUTPUT_CONTENTS)


# --- server --------------------------------------------------------------------------------------


class InstallingWorker(worker.Worker):  # type: ignore[misc]  # mlserver has no types
    """A parallel worker of MLServer that installs the integration in its process."""

    def __init__(self, settings: Any, responses: Any, env: Any = None) -> None:
        super().__init__(settings, responses, env)
        self._options = _PATCH.options()

    def run(self) -> None:
        install(**self._options)
        super().run()


# Uninstalling restores the original under every name in all modules, also in this one.
_INSTALLING = (InstallingWorker,)


def replace_worker(original: type) -> type:
    return _INSTALLING[0]
