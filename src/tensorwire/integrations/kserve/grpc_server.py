"""The responses of KServe's gRPC server, whose raw contents are not in generated messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from kserve import InferResponse
from kserve.protocol import infer_type

from ..split import SplitMessage, Wrapper
from .convert import Options, output_buffer, received_tensor, shallow_copy


class PlaneWithViews(Wrapper):
    """A data plane whose responses become SplitMessages.

    KServe's servicer calls ``to_grpc`` of what the data plane returns. Everywhere else, ``to_grpc``
    returns a generated message.
    """

    def __init__(self, plane: Any, options: Callable[[], Options]) -> None:
        super().__init__(plane)
        self._options = options

    async def infer(self, *arguments: Any, **more: Any) -> tuple[Any, Any]:
        response, headers = await self._wrapped.infer(*arguments, **more)
        if type(response) is InferResponse:
            response = ResponseWithViews(response, self._options())
        return response, headers


class ResponseWithViews(InferResponse):  # type: ignore[misc]  # kserve has no types
    """A copy of a response that becomes a SplitMessage if all its outputs have raw contents.

    ``to_grpc`` is called once.
    """

    outputs: list[Any]

    def __init__(self, response: Any, options: Options) -> None:
        self.__dict__.update(response.__dict__)
        self._codec_options = options

    def to_grpc(self) -> Any:
        is_raw = self._use_binary_outputs or infer_type._contains_fp16_datatype(self)
        if not all(has_raw_contents(output, is_raw) for output in self.outputs):
            return super().to_grpc()
        outputs, contents = [], []
        for output in self.outputs:
            buffer = output_buffer(output, self._codec_options)
            made = shallow_copy(output)
            if made._raw_data is None:  # KServe adds this parameter when it packs an array
                sizes = {"binary_data_size": memoryview(buffer).nbytes}
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
    if received_tensor(output) is not None:
        return is_raw
    if output._raw_data is not None or isinstance(output._data, np.ndarray):
        return True
    return is_raw and bool(output._data)
