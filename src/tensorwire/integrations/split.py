"""gRPC messages of other packages, split into the generated message and the raw contents.

Generated classes copy raw contents several times. The fields of a message may have any order, so
the raw contents of a received message are taken out before the generated class parses the rest, and
those of a message to send are appended to what the generated class has serialized.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import methodcaller
from threading import Lock
from typing import Any

import grpc

from .._codec.grpc.reader import split_field
from .._codec.grpc.writer import append_fields
from ..grpc_messages import RAW_INPUT_CONTENTS, RAW_OUTPUT_CONTENTS, SERVICE
from .patching import Function

RAW_CONTENTS_NAMES = {
    RAW_INPUT_CONTENTS: "raw_input_contents",
    RAW_OUTPUT_CONTENTS: "raw_output_contents",
}


class SplitMessage:
    """A ModelInferRequest or ModelInferResponse, and its raw contents as buffers.

    ``number`` is that of the field for the raw contents. All attributes are those of the message:
    fields can be read and assigned at once, and for everything else the message is completed.
    """

    def __init__(self, message: Any, contents: Sequence[Any], number: int) -> None:
        state = vars(self)
        state["_message"], state["_number"], state["_completing"] = message, number, Lock()
        state[RAW_CONTENTS_NAMES[number]] = contents

    def complete(self) -> Any:
        """Copy the raw contents to the message, an object of the generated class; return it."""
        state, name = vars(self), RAW_CONTENTS_NAMES[self._number]
        with self._completing:
            if name in state:
                field = getattr(self._message, name)
                try:
                    field.extend(map(bytes, state[name]))
                except BaseException:  # no memory
                    del field[:]
                    raise
                state["_views"] = tuple(state[name])  # before threads look for them
                del state[name]
        return self._message

    def SerializeToString(self, **options: Any) -> bytes:
        with self._completing:
            missing = vars(self).get(RAW_CONTENTS_NAMES[self._number], ())
            head = self._message.SerializeToString(**options)
        return append_fields(head, self._number, missing)

    def __getattr__(self, name: str) -> Any:
        is_field = name in self._message.DESCRIPTOR.fields_by_name
        value = getattr(self._message if is_field else self.complete(), name)
        if name == RAW_CONTENTS_NAMES[self._number] and len(value) == len(self._views):
            return self._views  # otherwise, the program has changed the complete message
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._message, name, value)

    def __repr__(self) -> str:
        return repr(self.complete())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.complete().__reduce_ex__(protocol)


serialize = methodcaller("SerializeToString")
"""Serialize a generated message or a SplitMessage."""


def read_split(parse: Callable[[Any], Any], number: int, message: Any) -> Any:
    """Parse a message. If it has fields with the number of raw contents, it is a SplitMessage."""
    head, contents = split_field(message, number)
    parsed = parse(head)
    return SplitMessage(parsed, contents, number) if contents else parsed


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

    read_request = partial(read_split, request_class.FromString, RAW_INPUT_CONTENTS)

    def add_GRPCInferenceServiceServicer_to_server(servicer: Any, server: Any) -> None:
        original(servicer, server)
        is_own = getattr(type(servicer), "ModelInfer", None) is model_infer
        if is_own and hasattr(server, "add_registered_method_handlers"):  # since grpcio 1.64
            handler = grpc.unary_unary_rpc_method_handler(
                partial(infer, servicer), read_request, serialize
            )
            server.add_registered_method_handlers(SERVICE, {"ModelInfer": handler})

    return add_GRPCInferenceServiceServicer_to_server
