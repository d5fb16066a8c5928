"""Our messages as MLServer's, and its answers as frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlserver.errors import MLServerError
from mlserver.types import (
    Datatype,
    InferenceRequest,
    InferenceResponse,
    Parameters,
    RequestInput,
    RequestOutput,
    TensorData,
)
from pydantic import ValidationError

import tensorwire as tw

from ...errors import EncodeError, LayoutError, subject
from .data import ArrayData, refusal, tensor_of

# --- in --------------------------------------------------------------------------------------


def inference_request(request: tw.InferRequest) -> InferenceRequest:
    """The request over the same memory; MLServerError, status 400, for what MLServer has not."""
    try:
        return InferenceRequest(
            id=request.id,
            parameters=_parameters(request.parameters),
            inputs=[_request_input(tensor) for tensor in request.inputs],
            outputs=request.outputs and [_request_output(output) for output in request.outputs],
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MLServerError(f"{where} of the request: {first['msg']}") from error


def _request_input(tensor: tw.Tensor) -> RequestInput:
    if tensor.datatype not in Datatype.__members__:
        raise _unknown(
            tensor, f"is {tensor.datatype}: MLServer has {', '.join(Datatype.__members__)}"
        )
    if tensor.data is None:
        raise _unknown(tensor, "lives in shared memory, which MLServer does not read")
    data = ArrayData.over(tensor.data)
    if isinstance(tensor.data, tw.BytesTensor) and not tensor.binary:
        data = TensorData(tensor.data.as_strings().reshape(-1).tolist())  # as JSON's elsewhere
    return RequestInput(
        name=tensor.name,
        shape=tensor.shape,
        datatype=tensor.datatype,
        parameters=_parameters(tensor.parameters),
        data=data,
    )


def _unknown(tensor: tw.Tensor, problem: str) -> Exception:
    text = f"{subject('input', tensor.name)} {problem}"
    return refusal(LayoutError(text, tensor=tensor.name))


def _request_output(output: Any) -> RequestOutput:
    own = {} if output.binary is None else {"binary_data": output.binary}
    return RequestOutput(name=output.name, parameters=_parameters({**output.parameters, **own}))


def _parameters(parameters: dict[str, Any]) -> Parameters | None:
    return Parameters.model_validate(parameters) if parameters else None


# --- out -------------------------------------------------------------------------------------


def selection(request: InferenceRequest) -> Callable[[str], bool]:
    """Whether the request wants an output of that name binary (WIRE.md 7)."""
    default = _flag(request.parameters, "binary_data_output", False)
    listed = {
        output.name: _flag(output.parameters, "binary_data", default)
        for output in request.outputs or ()
    }
    return lambda name: listed.get(name, default)


def wants_binary(request: InferenceRequest) -> bool:
    """Whether any output may be wanted binary."""
    is_wanted = selection(request)
    names = [output.name for output in request.outputs or ()]
    return any(map(is_wanted, names)) or _flag(request.parameters, "binary_data_output", False)


def _flag(parameters: Parameters | None, name: str, default: bool) -> bool:
    value = getattr(parameters, name, None)
    return default if value is None else value is True


def frame_of(response: InferenceResponse, is_binary: Callable[[str], bool]) -> tw.Frame | None:
    """All outputs of the model, in the forms that were asked for; None when all go as JSON.

    Raises EncodeError.
    """
    if not any(is_binary(output.name) for output in response.outputs):
        return None
    try:
        outputs = [tensor_of(output, is_binary(output.name)) for output in response.outputs]
    except TypeError as error:
        raise EncodeError(str(error)) from error
    return tw.encode_response(
        tw.InferResponse(
            outputs,
            model_name=response.model_name,
            model_version=response.model_version,
            id=response.id,
            parameters=response.parameters.model_dump() if response.parameters else None,
        )
    )
