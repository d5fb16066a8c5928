"""Replacements for functions of tritonclient.grpc.

The tensors of a request are not copied into its message: it is a `SplitMessage`, to which they are
appended when it is serialized. The other way round, a response is a `SplitMessage` with views of
its tensors. All other code gets the complete messages of the generated classes.

tritonclient sends and receives through a stub, whose methods belong to grpcio. The client's methods
replace a method of the stub by one that can also send a `SplitMessage`, if grpcio alone handles its
messages: another serializer or an interceptor expects complete messages.
"""

from __future__ import annotations

from contextvars import ContextVar
from copy import copy
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
from tritonclient.grpc import (
    InferenceServerClient,
    InferInput,
    InferResult,
    _client,
    _utils,
    service_pb2,
    service_pb2_grpc,
)

from ..._codec.grpc.reader import split_field
from ...grpc_messages import INFER_RESPONSE, RAW_INPUT_CONTENTS, RAW_OUTPUT_CONTENTS
from ..patching import Function, Replacement
from ..split import SplitMessage, read_split, serialize
from .calls import creates_requests, setting
from .convert import (
    SHARED_MEMORY_KEYS,
    HeaderInput,
    array_input_class,
    is_extra_bytes,
    is_reference,
    object_array,
    tensor_data,
)

ARRAY_INPUT = array_input_class(InferInput, "_raw_content", "_get_content")

# Looking up a method of a generated class takes half as long as parsing a small message with it.
serialize_request = service_pb2.ModelInferRequest.SerializeToString
parse_response = service_pb2.ModelInferResponse.FromString
parse_stream_response = service_pb2.ModelStreamInferResponse.FromString

GRPC_CALL = ("gRPC requests", "gRPC results")


def replacements(aio: ModuleType | None) -> list[Replacement]:
    """Return the replacements in tritonclient.grpc and, if it can be imported, its ``aio``."""
    client, called = InferenceServerClient, partial(Replacement, calls_original=True)
    infer = set_raw("ModelInfer", _client)
    found = [
        Replacement(
            InferInput, "set_data_from_numpy", replace_set_data, ["gRPC inputs", "datatypes"]
        ),
        Replacement(
            _utils, "_get_inference_request", replace_get_inference_request, ["gRPC inputs"]
        ),
        Replacement(InferResult, "get_response", replace_get_response),
        called(client, "infer", infer, GRPC_CALL),
        called(client, "async_infer", infer, GRPC_CALL),
        called(
            client,
            "start_stream",
            set_raw("ModelStreamInfer", _client),
            [*GRPC_CALL, "stream results"],
        ),
        called(
            client,
            "async_stream_infer",
            partial(setting, IS_RAW, can_be_queued),
            ["gRPC requests", "stream requests"],
        ),
    ]
    if aio:
        client, infer = aio.InferenceServerClient, set_raw("ModelInfer", aio, is_async=True)
        # grpcio creates a task that reads the requests of a stream. The task inherits IS_RAW.
        stream_infer = set_raw("ModelStreamInfer", aio)
        found += [
            called(client, "infer", infer, GRPC_CALL),
            called(client, "stream_infer", stream_infer, GRPC_CALL),
        ]
    return found


# --- messages ------------------------------------------------------------------------------------

read_response = partial(read_split, parse_response, RAW_OUTPUT_CONTENTS)


def read_stream_response(message: bytes) -> Any:
    """Read a ModelStreamInferResponse. If it has raw contents, it is an imitation of the class."""
    head, responses = split_field(message, INFER_RESPONSE)
    if len(responses) == 1:  # several are merged
        response = read_response(responses[0])
        if type(response) is SplitMessage:
            error_message = parse_stream_response(head).error_message
            return SimpleNamespace(error_message=error_message, infer_response=response)
    return parse_stream_response(message)


# --- methods of a stub ---------------------------------------------------------------------------

IS_RAW: ContextVar[bool | Literal["later"]] = ContextVar("tensorwire_is_raw", default=False)
"""Whether the method of the client that runs at present can send a `SplitMessage`.

It is "later" if another thread serializes the message when the method has returned.
"""

GRPCIO = ("grpc._channel", "grpc.aio._channel")
"""The modules of grpcio's methods, except for those of `grpc.intercept_channel`."""


class StubMethod:
    """A method of a stub. ``plain`` is that of grpcio, and ``raw`` has our serializers.

    Calls that are not made by a method of the client are the same as before.
    """

    __slots__ = ("plain", "raw")

    def __init__(self, plain: Any, read: Function) -> None:
        self.plain = plain
        # There is no public way to create it for the same channel.
        self.raw = copy(plain)
        self.raw._request_serializer = serialize
        self.raw._response_deserializer = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return (self.raw if IS_RAW.get() else self.plain)(*arguments, **options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        return (self.raw if IS_RAW.get() else self.plain).future(*arguments, **options)


READERS: dict[str, tuple[Function, Function]] = {  # grpcio's and ours, for each method
    "ModelInfer": (parse_response, read_response),
    "ModelStreamInfer": (parse_stream_response, read_stream_response),
}


def can_be_raw(client: Any, name: str, module: ModuleType) -> bool:
    """Return whether a client of this module can send a `SplitMessage` through a stub method.

    The method is changed if possible. A stub or method that a program has replaced remains the
    same. A verbose client prints complete messages.
    """
    stub = getattr(client, "_client_stub", None)
    if (
        type(stub) is not service_pb2_grpc.GRPCInferenceServiceStub
        or client._verbose
        or not creates_requests(module)
    ):
        return False
    method, (parse, read) = vars(stub).get(name), READERS[name]
    if type(method) is StubMethod:
        return True
    if (
        type(method).__module__ not in GRPCIO
        or getattr(method, "_request_serializer", None) != serialize_request
        or getattr(method, "_response_deserializer", None) != parse
        or getattr(method, "_interceptors", None)  # of asyncio
    ):
        return False
    setattr(stub, name, StubMethod(method, read))
    return True


# --- InferenceServerClient -----------------------------------------------------------------------


def set_raw(name: str, module: ModuleType, **options: Any) -> Function:
    """Return the factory for a method of clients, which calls the stub's method with a name."""

    def is_raw(client: Any, *_: Any) -> bool:
        return can_be_raw(client, name, module)

    return partial(setting, IS_RAW, is_raw, **options)


def can_be_queued(client: Any, *_: Any) -> bool | Literal["later"]:
    """Return "later" if the stream of a client was started by a method that can be raw."""
    call = getattr(client._stream, "_response_iterator", None)
    is_raw = getattr(call, "_response_deserializer", None) is read_stream_response
    return "later" if is_raw and creates_requests(_client) else False


def replace_get_inference_request(original: Function) -> Function:
    @wraps(original)
    def _get_inference_request(model_name: Any, inputs: Any, *others: Any, **options: Any) -> Any:
        contents = raw_contents(inputs)
        if contents is None:
            return original(model_name, inputs, *others, **options)
        headers = [HeaderInput(each) for each in inputs]
        head = original(model_name, headers, *others, **options)
        is_raw = IS_RAW.get()
        if is_raw == "later":  # the program may modify its arrays before
            contents = [bytes(raw) if is_reference(raw) else raw for raw in contents]
        request = SplitMessage(head, contents, RAW_INPUT_CONTENTS)
        return request if is_raw else request.complete()

    return _get_inference_request


def raw_contents(inputs: Any) -> list[Any] | None:
    """Return a list with the data of the inputs that have any.

    Returns None if tritonclient has to read an input: subclasses may override ``_get_content``.
    """
    if not isinstance(inputs, list | tuple):
        return None
    contents = []
    for each in inputs:
        if type(each) not in (InferInput, ARRAY_INPUT):
            return None
        raw = each._raw_content
        if type(raw) is bytes or type(raw) is np.ndarray:
            contents.append(raw)
        elif raw is not None:
            return None
    return contents


# --- InferInput and InferResult ------------------------------------------------------------------


def replace_set_data(original: Function) -> Function:
    def set_data_from_numpy(self: Any, input_tensor: Any) -> Any:
        message = self._input
        data = tensor_data(self, ARRAY_INPUT, input_tensor, message.datatype, message.shape)
        if data is not None:
            if parameters := message.parameters:
                for key in SHARED_MEMORY_KEYS:
                    parameters.pop(key, None)
            self._raw_content = data
            return self
        if is_extra_bytes(input_tensor) and self.datatype() == "BYTES":
            input_tensor = object_array(input_tensor)
        return original(self, input_tensor)

    return set_data_from_numpy


def replace_get_response(original: Function) -> Function:
    def get_response(self: Any, as_json: bool = False) -> Any:
        response = self._result
        if type(response) is SplitMessage:
            self = SimpleNamespace(_result=response.complete())
        return original(self, as_json)

    return get_response
