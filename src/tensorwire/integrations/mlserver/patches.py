"""Replacements for functions of MLServer.

The methods of the codec classes are replaced, not the classes, because registries and the
signatures of runtimes refer to the classes. The other methods of the codecs (``encode_input``,
``decode_output``, the request codecs) call the replaced methods.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from math import prod
from typing import Any, ClassVar

from mlserver import raw as mlserver_raw
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.codecs import string as string_codec
from mlserver.codecs.utils import inject_batch_dimension
from mlserver.grpc import converters, dataplane_pb2_grpc
from mlserver.grpc.converters import ModelInferResponseConverter
from mlserver.grpc.dataplane_pb2 import ModelInferRequest
from mlserver.grpc.servicers import InferenceServicer
from mlserver.handlers import DataPlane
from mlserver.parallel import worker
from mlserver.rest.app import APIRoute

import tensorwire as tw

from ...errors import ElementError, LayoutError, format_count, format_subject
from ...http import EXTENSION
from ...server.asgi import Receive, Scope, Send
from ..patching import Function, Replacement
from ..split import SplitMessage, Wrapper, add_infer_handler
from .convert import (
    DATATYPES_BY_DTYPE,
    SHORT_RAW_NBYTES,
    SHORT_TEXTS,
    ArrayData,
    array_bytes,
    array_of,
    copy_payload,
    encode_texts,
    is_flat,
    list_array,
    list_data,
    list_raw_data,
    mlserver_error,
    numeric_array,
    pack_list,
    response_output,
    text_of,
    texts_of_list,
    view_raw_data,
)
from .server import answer_binary, answer_json, is_binary, is_infer


def replacements(install: Callable[[], None]) -> list[Replacement]:
    """Return all replacements. ``install`` is called in each parallel worker as it starts."""
    return [
        # codecs
        Replacement(NumpyCodec, "decode_input", replace_numpy_decode_input),
        Replacement(NumpyCodec, "encode_output", replace_numpy_encode_output),
        Replacement(string_codec, "_decode_input_or_output", replace_decode_input_or_output),
        Replacement(StringCodec, "encode_output", replace_string_encode_output),
        # raw gRPC contents
        Replacement(mlserver_raw, "inject_raw", replace_inject_raw),
        Replacement(mlserver_raw, "unpack", replace_unpack),
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
        # server
        Replacement(APIRoute, "handle", replace_handle, inherited=True),
        Replacement(DataPlane, "metadata", replace_metadata, calls_original=True),
        Replacement(worker, "Worker", partial(replace_worker, install)),
    ]


# --- codecs --------------------------------------------------------------------------------------


def replace_numpy_decode_input(original: Function) -> Function:
    def decode_input(cls: Any, request_input: Any) -> Any:
        data = array_of(request_input.data)
        if data is None:
            array = list_array(request_input)
            return original(cls, request_input) if array is None else array
        is_json = text_of(request_input.data) is not None
        if isinstance(data, tw.BytesArray) and data.size == prod(request_input.shape):
            if is_json:  # MLServer returns an array of str
                return original(cls, request_input)
            return data.as_numpy("S").reshape(request_input.shape)
        array = numeric_array(request_input)
        if array is None:
            return original(cls, request_input)
        # As without the codec, the array is aligned and writable and, for JSON data, a new one in
        # each call.
        if is_json or not (array.flags.aligned and array.flags.writeable):
            array = array.copy()
        return array.reshape(request_input.shape)

    return decode_input


def replace_numpy_encode_output(original: Function) -> Function:
    def encode_output(cls: Any, name: str, payload: Any, **kwargs: Any) -> Any:
        data = copy_payload(payload) if type(name) is str else None
        if data is None:
            return original(cls, name, payload, **kwargs)
        return response_output(
            name,
            DATATYPES_BY_DTYPE.get(payload.dtype, "BYTES"),
            inject_batch_dimension(list(payload.shape)),
            ArrayData.from_array(data, nan_as_none=True),
            cls.ContentType,
        )

    return encode_output


def replace_decode_input_or_output(original: Function) -> Function:
    def _decode_input_or_output(input_or_output: Any) -> Any:
        data = array_of(input_or_output.data)
        if data is None:
            values = input_or_output.data.root
            return texts_of_list(values) if type(values) is list else original(input_or_output)
        text = text_of(input_or_output.data)
        if not isinstance(data, tw.BytesArray):
            return original(input_or_output)
        if text is not None and (data.size <= SHORT_TEXTS or not is_flat(text)):
            return original(input_or_output)
        try:
            return data.as_strings().reshape(-1).tolist()
        except ElementError as error:
            message = f"{format_subject('tensor', input_or_output.name)}: {error}"
            raise mlserver_error(ElementError(message)) from error

    return _decode_input_or_output


def replace_string_encode_output(original: Function) -> Function:
    def encode_output(
        cls: Any, name: str, payload: Any, use_bytes: bool = True, **kwargs: Any
    ) -> Any:
        is_list = use_bytes and type(payload) is list and type(name) is str
        data = encode_texts(payload) if is_list else None
        if data is None:
            return original(cls, name, payload, use_bytes, **kwargs)
        return response_output(name, "BYTES", [len(payload), 1], data, cls.ContentType)

    return encode_output


# --- raw gRPC contents ---------------------------------------------------------------------------


def replace_inject_raw(original: Function) -> Function:
    def inject_raw(elems: Any, raw_contents: Any) -> Any:
        # Each tensor without contents gets the next raw contents, and all of these must be used.
        empty = [elem for elem in elems if not elem.data]
        if len(empty) != len(raw_contents):
            verb = "has" if len(empty) == 1 else "have"
            raise mlserver_error(
                LayoutError(
                    f"{format_count('tensor', len(empty))} {verb} no contents, but there "
                    f"are raw contents for {len(raw_contents)}",
                    expected=len(empty),
                    actual=len(raw_contents),
                )
            )
        for elem, raw in zip(empty, raw_contents, strict=True):
            if len(raw) > SHORT_RAW_NBYTES:
                elem.data = ArrayData.from_array(view_raw_data(elem, raw))
            else:
                elem.data = list_data(list_raw_data(elem, raw))
        return elems

    return inject_raw


def replace_unpack(original: Function) -> Function:
    def unpack(elem: Any, raw: Any) -> Any:
        return list_raw_data(elem, raw)

    return unpack


def replace_pack(original: Function) -> Function:
    def pack(elem: Any) -> Any:
        data = array_of(elem.data)
        if data is None:
            packed = pack_list(elem)
            return original(elem) if packed is None else packed
        if isinstance(data, tw.BytesArray):
            return bytes(data.wire)
        array = numeric_array(elem)
        if array is not None and array.size == prod(elem.shape):
            return array_bytes(array)
        return original(elem)

    return pack


class SplitResult(Wrapper):
    """What a model returned for a call of the gRPC server. Its attributes are the response's."""

    def __init__(self, response: Any) -> None:
        super().__init__(response)
        self.outputs = response.outputs


class SplittingPlane(Wrapper):
    """A data plane whose ``infer`` returns SplitResults, which become SplitMessages."""

    async def infer(self, *arguments: Any, **more: Any) -> SplitResult:
        return SplitResult(await self._wrapped.infer(*arguments, **more))


def replace_from_types(original: Function) -> Function:
    def from_types(cls: Any, type_object: Any, use_raw: bool = False) -> Any:
        if not (use_raw and isinstance(type_object, SplitResult)):
            return original(cls, type_object, use_raw)
        type_object.outputs, contents = converters.extract_raw(type_object.outputs)
        return SplitMessage(original(cls, type_object), contents)

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


def replace_handle(original: Function) -> Function:
    async def handle(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_infer(self.endpoint) or scope["method"] != "POST":
            await original(self, scope, receive, send)
        elif is_binary(scope["headers"]):
            await answer_binary(self.endpoint, scope, receive, send)
        else:
            await answer_json(self, original, scope, receive, send)

    return handle


def replace_metadata(original: Function) -> Function:
    async def metadata(self: Any) -> Any:
        found = await original(self)
        if EXTENSION not in found.extensions:
            found.__dict__["extensions"] = [*found.extensions, EXTENSION]  # without validation
        return found

    return metadata


class InstallingWorker(worker.Worker):  # type: ignore[misc]  # mlserver has no types
    """A parallel worker of MLServer that installs the integration in its process."""

    install: ClassVar[Callable[[], None]]

    def __init__(self, settings: Any, responses: Any, env: Any = None) -> None:
        super().__init__(settings, responses, env)
        self._install = type(self).install  # pickled with the worker, unlike the class attribute

    def run(self) -> None:
        self._install()
        super().run()


# Uninstalling restores the original under every name in all modules, also in this one.
_INSTALLING = (InstallingWorker,)


def replace_worker(install: Callable[[], None], original: type) -> type:
    (replacement,) = _INSTALLING
    replacement.install = staticmethod(install)
    return replacement
