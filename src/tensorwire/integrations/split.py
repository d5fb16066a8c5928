"""Inference calls of other packages' gRPC servers, whose raw contents are not in the message.

Generated classes copy raw contents several times. The fields of a message may have any order, so
the raw contents of a request are taken out before the generated class parses the rest, and those of
a response are appended to what the generated class has serialized.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from .._codec.grpc.reader import split_field
from .._codec.grpc.writer import append_fields
from ..grpc_messages import RAW_INPUT_CONTENTS, RAW_OUTPUT_CONTENTS, SERVICE
from .patching import Function


class SplitMessage:
    """A ModelInferRequest or ModelInferResponse without its raw contents, and these as buffers.

    Its attributes are those of the message.
    """

    def __init__(self, message: Any, contents: list[Any]) -> None:
        self._message = message
        self.raw_input_contents = self.raw_output_contents = contents

    def __getattr__(self, name: str) -> Any:
        if name == "_message" or name.startswith("__"):  # copy and pickle ask before __init__
            raise AttributeError(name)
        return getattr(self._message, name)


def replace_add_servicer(
    servicer_class: Any,
    infer: Callable[[Any, Any, Any], Awaitable[Any]],
    request_class: Any,
    original: Function,
) -> Function:
    """Return a replacement of ``original``, which adds a servicer to a server.

    The server then calls ``infer`` instead of the ModelInfer of ``servicer_class``. ``infer`` takes
    the servicer, a request and its context. The request is a ``request_class`` or, if there are raw
    contents, a SplitMessage. It returns a generated message or a SplitMessage.
    """
    model_infer = servicer_class.ModelInfer  # not a wrapper that other code adds later

    def read(message: bytes) -> Any:
        head, contents = split_field(message, RAW_INPUT_CONTENTS)
        request = request_class.FromString(head)
        return SplitMessage(request, contents) if contents else request

    def add_GRPCInferenceServiceServicer_to_server(servicer: Any, server: Any) -> None:
        original(servicer, server)
        is_own = getattr(type(servicer), "ModelInfer", None) is model_infer
        if is_own and hasattr(server, "add_registered_method_handlers"):  # since grpcio 1.64
            handler = grpc.unary_unary_rpc_method_handler(partial(infer, servicer), read, write)
            server.add_registered_method_handlers(SERVICE, {"ModelInfer": handler})

    return add_GRPCInferenceServiceServicer_to_server


def write(response: Any) -> Any:
    head = response.SerializeToString()
    if not isinstance(response, SplitMessage):
        return head
    return append_fields(head, RAW_OUTPUT_CONTENTS, response.raw_output_contents)
