"""KServe's gRPC method ``ModelInfer``, with the raw contents beside the generated messages."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from kserve import InferRequest, InferResponse
from kserve.errors import InvalidInput
from kserve.protocol import infer_type
from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferResponse
from kserve.utils.utils import generate_uuid, to_headers

from ...grpc_messages import RAW_OUTPUT_CONTENTS
from ..split import SplitMessage
from .convert import check_raw_data, output_buffer


async def infer_split(servicer: Any, request: Any, context: Any) -> Any:
    """Do the same as ``ModelInfer``, but check raw contents, and respond to them with raw contents.

    Raises InvalidInput, for which KServe's interceptor sets the code INVALID_ARGUMENT.
    """
    headers = to_headers(context)
    servicer.validate_grpc_request(request)
    infer_request = InferRequest.from_grpc(request)
    for tensor, raw in zip(infer_request.inputs, request.raw_input_contents, strict=False):
        check_raw_data("input", tensor, raw, InvalidInput)
    # They are read before the model is called, because the model may change the request.
    request_id, is_raw = infer_request.id, infer_request.use_binary_outputs
    response, _ = await servicer._data_plane.infer(
        model_name=request.model_name, request=infer_request, headers=headers
    )
    if type(response) is InferResponse:
        return to_message(response, request_id, is_raw)
    if isinstance(response, InferResponse):
        return response.to_grpc()
    if isinstance(response, ModelInferResponse):
        return response
    members = {name: response[name] for name in ("id", "model_name", "outputs")}
    return ModelInferResponse(**members)


def to_message(response: Any, request_id: str, is_raw: bool) -> Any:
    """Convert a response to a SplitMessage, if all its outputs have raw contents."""
    response = copy(response)
    response.id = response.id or request_id or generate_uuid()
    response._use_binary_outputs = is_raw or response._use_binary_outputs
    is_raw = response._use_binary_outputs or infer_type._contains_fp16_datatype(response)
    if not all(has_raw_contents(output, is_raw) for output in response.outputs):
        return response.to_grpc()
    outputs, contents = [], []
    for output in response.outputs:
        buffer = output_buffer(output)
        made = copy(output)
        if made._raw_data is None:  # KServe adds this parameter when it packs an array
            sizes = {"binary_data_size": len(buffer)}
            made.parameters = {**(output.parameters or {}), **sizes}
        made._data, made._raw_data = None, b""
        outputs.append(made)
        contents.append(buffer)
    response.outputs = outputs
    message = response.to_grpc()
    message.ClearField("raw_output_contents")
    return SplitMessage(message, contents, RAW_OUTPUT_CONTENTS)


def has_raw_contents(output: Any, is_raw: bool) -> bool:
    """Return whether KServe sends an output as raw contents. ``is_raw`` is that of the response."""
    if output._raw_data is not None or isinstance(output.data, np.ndarray):
        return True
    return is_raw and bool(output.data)
