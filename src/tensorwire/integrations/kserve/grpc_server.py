"""The responses of KServe's gRPC server, whose raw contents are not in generated messages."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from kserve import InferResponse
from kserve.protocol import infer_type
from kserve.utils.utils import generate_uuid

from ..split import SplitMessage, Wrapper
from .convert import output_buffer


class PlaneWithViews(Wrapper):
    """A data plane whose responses become SplitMessages.

    KServe's servicer calls ``to_grpc`` of what the data plane returns. Everywhere else, ``to_grpc``
    returns a generated message.
    """

    async def infer(self, model_name: str, request: Any, headers: Any = None) -> tuple[Any, Any]:
        # They are read before the model is called, because the model may change the request.
        request_id, is_raw = request.id, request.use_binary_outputs
        response, more_headers = await self._wrapped.infer(
            model_name=model_name, request=request, headers=headers
        )
        if type(response) is InferResponse:
            response = ResponseWithViews(response, request_id, is_raw)
        return response, more_headers


class ResponseWithViews(InferResponse):  # type: ignore[misc]  # kserve has no types
    """A copy of a response that becomes a SplitMessage if all its outputs have raw contents.

    The response to a request with raw contents has raw contents. ``to_grpc`` is called once.
    """

    id: str
    outputs: list[Any]
    _use_binary_outputs: bool

    def __init__(self, response: Any, request_id: str, is_raw: bool) -> None:
        self.__dict__.update(response.__dict__)
        self.id = self.id or request_id or generate_uuid()
        self._use_binary_outputs = is_raw or self._use_binary_outputs

    def to_grpc(self) -> Any:
        is_raw = self._use_binary_outputs or infer_type._contains_fp16_datatype(self)
        if not all(has_raw_contents(output, is_raw) for output in self.outputs):
            return super().to_grpc()
        outputs, contents = [], []
        for output in self.outputs:
            buffer = output_buffer(output)
            made = copy(output)
            if made._raw_data is None:  # KServe adds this parameter when it packs an array
                sizes = {"binary_data_size": len(buffer)}
                made.parameters = {**(output.parameters or {}), **sizes}
            made._data, made._raw_data = None, b""
            outputs.append(made)
            contents.append(buffer)
        self.outputs = outputs
        message = super().to_grpc()
        message.ClearField("raw_output_contents")
        return SplitMessage(message, contents)


def has_raw_contents(output: Any, is_raw: bool) -> bool:
    """Return whether KServe sends an output as raw contents. ``is_raw`` is that of the response."""
    if output._raw_data is not None or isinstance(output.data, np.ndarray):
        return True
    return is_raw and bool(output.data)
