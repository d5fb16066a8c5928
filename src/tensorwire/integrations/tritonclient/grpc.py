"""Replacements for functions of tritonclient.grpc.

The tensors of a request are not copied into its message. `RawRequest` keeps them beside it, and
they are appended when the message is serialized: fields may have any order. The other way round, a
response is parsed without its raw contents, of which `RawResponse` has views. All other code gets
the complete messages of the generated classes.

tritonclient sends and receives through a stub, whose methods belong to grpcio. The client's methods
replace a method of the stub by one that can also send a `RawRequest`, if grpcio alone handles its
messages: another serializer or an interceptor expects complete messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
from tritonclient.grpc import (
    InferenceServerClient,
    InferInput,
    InferResult,
    _client,
    _infer_stream,
    _utils,
    service_pb2,
    service_pb2_grpc,
)

from ..._codec.grpc.reader import split_field
from ..._codec.grpc.writer import append_fields
from ...errors import EncodeError
from ...grpc_messages import INFER_RESPONSE, RAW_INPUT_CONTENTS, RAW_OUTPUT_CONTENTS
from ..patching import Function, Replacement
from .calls import creates_requests, during, setting
from .convert import (
    SHARED_MEMORY_KEYS,
    HeaderInput,
    array_input_class,
    is_extra_bytes,
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
        Replacement(InferResult, "as_numpy", replace_as_numpy),
        Replacement(InferResult, "get_response", replace_get_response),
        Replacement(
            _infer_stream._InferStream, "_enqueue_request", replace_enqueue, ["stream queue"]
        ),
        called(client, "infer", infer, GRPC_CALL),
        called(client, "async_infer", infer, GRPC_CALL),
        called(client, "start_stream", replace_start_stream, [*GRPC_CALL, "stream results"]),
        called(
            client,
            "async_stream_infer",
            partial(setting, IS_RAW, has_raw_stream),
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


class RawMessage:
    """A message without its raw contents. Its attributes are those of the complete message."""

    __slots__ = ()

    def message(self) -> Any:
        """Return the complete message, as an object of a generated class."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message(), name)

    def __str__(self) -> str:
        return str(self.message())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.message().__reduce_ex__(protocol)


class RawRequest(RawMessage):
    """A ModelInferRequest. ``contents`` follow the message ``head``: `bytes` or flat arrays."""

    __slots__ = ("contents", "head")

    def __init__(self, head: Any, contents: Sequence[Any]) -> None:
        self.head = head
        self.contents = contents

    @property
    def parameters(self) -> Any:
        """Return the parameters, which tritonclient extends for streams."""
        return self.head.parameters

    def message(self) -> Any:
        self.head.raw_input_contents.extend(map(bytes, self.contents))
        self.contents = ()
        return self.head

    def serialized(self) -> bytes:
        return append_fields(self.head.SerializeToString(), RAW_INPUT_CONTENTS, self.contents)


class RawResponse(RawMessage):
    """A ModelInferResponse. ``contents`` are views of ``whole``, the serialized message."""

    __slots__ = ("contents", "head", "whole")

    def __init__(self, head: Any, contents: list[memoryview], whole: Any) -> None:
        self.head = head
        self.contents = contents
        self.whole = whole

    @property
    def outputs(self) -> Any:
        return self.head.outputs

    def message(self) -> Any:
        whole = self.whole  # another thread may set it to None
        if whole is not None:
            self.head = parse_response(whole)
            self.whole = None
        return self.head


class RawStreamResponse(RawMessage):
    """A ModelStreamInferResponse whose ``infer_response`` is a `RawResponse`."""

    __slots__ = ("error_message", "infer_response", "whole")

    def __init__(self, error_message: str, infer_response: RawResponse, whole: bytes) -> None:
        self.error_message = error_message
        self.infer_response = infer_response
        self.whole = whole

    def message(self) -> Any:
        return parse_stream_response(self.whole)


def serialize(request: Any) -> bytes:
    """Serialize a request, unless `replace_enqueue` has done that already."""
    if type(request) is RawRequest:
        return request.serialized()
    serialized: bytes = request if type(request) is bytes else serialize_request(request)
    return serialized


def read_response(message: Any) -> Any:
    """Return a ModelInferResponse. If it has raw contents, it is a `RawResponse`."""
    head, contents = split_field(message, RAW_OUTPUT_CONTENTS)
    parsed = parse_response(head)
    return RawResponse(parsed, contents, message) if contents else parsed


def read_stream_response(message: bytes) -> Any:
    """Return a ModelStreamInferResponse, in which `read_response` has read the response."""
    head, responses = split_field(message, INFER_RESPONSE)
    if len(responses) == 1:  # several are merged
        response = read_response(responses[0])
        if type(response) is RawResponse:
            error_message = parse_stream_response(head).error_message
            return RawStreamResponse(error_message, response, message)
    return parse_stream_response(message)


# --- methods of a stub ---------------------------------------------------------------------------

IS_RAW: ContextVar[bool] = ContextVar("tensorwire_is_raw", default=False)
"""Whether the method of the client that runs at present can send a `RawRequest`."""

RAW_STREAMS: WeakSet[Any] = WeakSet()
"""The streams of clients that can send a `RawRequest`."""

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


READERS = {  # grpcio's and ours, for each method
    "ModelInfer": (parse_response, read_response),
    "ModelStreamInfer": (parse_stream_response, read_stream_response),
}


def can_be_raw(client: Any, name: str, module: ModuleType) -> bool:
    """Return whether a client of this module can send a `RawRequest` through a method of its stub.

    The method is changed if possible. A stub or method that a program has replaced remains the
    same.
    """
    stub = getattr(client, "_client_stub", None)
    if type(stub) is not service_pb2_grpc.GRPCInferenceServiceStub or not creates_requests(module):
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


def replace_start_stream(original: Function) -> Function:
    @wraps(original)
    def start_stream(self: Any, *arguments: Any, **options: Any) -> Any:
        is_raw = can_be_raw(self, "ModelStreamInfer", _client)
        with during(IS_RAW, is_raw):
            started = original(self, *arguments, **options)
        if is_raw:
            RAW_STREAMS.add(self._stream)
        return started

    return start_stream


def has_raw_stream(client: Any, *_: Any) -> bool:
    return client._stream in RAW_STREAMS and creates_requests(_client)


def replace_enqueue(original: Function) -> Function:
    def _enqueue_request(self: Any, request: Any) -> Any:
        # Another thread takes the request from the queue. Serialize it before, so that the program
        # may modify its arrays when `async_stream_infer` has returned.
        if type(request) is RawRequest:
            with suppress(EncodeError):  # too large: the thread reports this to the callback
                request = request.serialized()
        return original(self, request)

    return _enqueue_request


def replace_get_inference_request(original: Function) -> Function:
    @wraps(original)
    def _get_inference_request(model_name: Any, inputs: Any, *others: Any, **options: Any) -> Any:
        contents = raw_contents(inputs)
        if contents is None:
            return original(model_name, inputs, *others, **options)
        headers = [HeaderInput(each) for each in inputs]
        request = RawRequest(original(model_name, headers, *others, **options), contents)
        return request if IS_RAW.get() else request.message()

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


def replace_as_numpy(original: Function) -> Function:
    def as_numpy(self: Any, name: Any) -> Any:
        response = self._result
        if type(response) is RawResponse:
            views = SimpleNamespace(outputs=response.outputs, raw_output_contents=response.contents)
            self = SimpleNamespace(_result=views)
        return original(self, name)

    return as_numpy


def replace_get_response(original: Function) -> Function:
    def get_response(self: Any, as_json: bool = False) -> Any:
        response = self._result
        if type(response) is RawResponse:
            self = SimpleNamespace(_result=response.message())
        return original(self, as_json)

    return get_response
