"""Inference calls of other packages' gRPC servers, whose raw contents are not in the message.

Generated classes copy raw contents several times. The fields of a message may have any order, so
the raw contents of a request are taken out before the generated class parses the rest, and those of
a response are appended to what the generated class has serialized.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from .._codec.protobuf_reader import split_field
from .._codec.protobuf_writer import append_fields
from ..grpc_messages import RAW_INPUT_CONTENTS, RAW_OUTPUT_CONTENTS, SERVICE


class SplitMessage:
    """A generated message, with raw contents that are not in it. Its attributes are the message's.

    Parameters
    ----------
    message
        A ModelInferRequest or ModelInferResponse.
    contents
        The raw contents, as buffers.
    """

    def __init__(self, message: Any, contents: list[Any]) -> None:
        self._message = message
        self.raw_input_contents = self.raw_output_contents = contents

    def __getattr__(self, name: str) -> Any:
        if name == "_message" or name.startswith("__"):  # copy and pickle ask before __init__
            raise AttributeError(name)
        return getattr(self._message, name)


def add_infer_handler(
    server: Any, model_infer: Callable[[Any, Any], Awaitable[Any]], request_class: Any
) -> None:
    """Let a server call ``model_infer`` for ModelInfer instead of a servicer that was added before.

    It takes a ``request_class`` or, if there are raw contents, a SplitMessage. It returns a
    generated message or a SplitMessage.
    """

    def read(message: bytes) -> Any:
        head, contents = split_field(message, RAW_INPUT_CONTENTS)
        request = request_class.FromString(head)
        return SplitMessage(request, contents) if contents else request

    handler = grpc.unary_unary_rpc_method_handler(model_infer, read, write)
    if hasattr(server, "add_registered_method_handlers"):  # since grpcio 1.64
        server.add_registered_method_handlers(SERVICE, {"ModelInfer": handler})


def write(response: Any) -> Any:
    if not isinstance(response, SplitMessage):
        return response.SerializeToString()
    head = response.SerializeToString()
    return append_fields(head, RAW_OUTPUT_CONTENTS, response.raw_output_contents)
