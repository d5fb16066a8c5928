"""Our messages as MLServer's, and its answers as frames and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlserver.codecs.json import encode_to_json_bytes
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
from numpy import isfinite, ndarray
from pydantic import ValidationError

import tensorwire as tw

from ..._codec.decoder import PeerTensor, read_peer_message
from ..._codec.encoder import write_peer_json
from ...errors import DecodeError, EncodeError, LayoutError, subject
from .data import ArrayData, array_of, refusal, tensor_of, text_of, validated

# MLServer limits neither; what passes the other limits is read by MLServer itself.
UNLIMITED = 2**63 - 1
JSON_LIMITS = tw.Limits(
    max_header_nbytes=UNLIMITED, max_tensors=UNLIMITED, max_name_nbytes=UNLIMITED
)
DATATYPES = frozenset(Datatype.__members__)
SHORT = 1 << 16  # bytes of a body that is sooner searched than its arrays are
INTEGERS = range(-(2**63), 2**64)  # that orjson reads as such

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


def json_request(body: bytes) -> InferenceRequest | None:
    """A request that is JSON as a whole, whose data become arrays.

    None for what MLServer is to read itself, because it may see it in another way, or has its own
    answer: all that is malformed or not of the protocol, and data that is not of its datatype and
    shape, which a codec may convert.
    """
    try:
        request, entries, parameters = read_peer_message(
            body, len(body), True, JSON_LIMITS, needs_arrays=True
        )
    except DecodeError:
        return None
    if not (_are_readable(entries, body) and all(map(_is_plain, parameters))):
        return None
    try:
        members: dict[str, Any] = {"inputs": [_json_input(entry) for entry in entries]}
        if request.id is not None:
            members["id"] = request.id
        if parameters[0] is not None:
            members["parameters"] = parameters[0]
        if request.outputs is not None:
            found = zip(request.outputs, parameters[1:], strict=True)
            members["outputs"] = [_json_output(output, own) for output, own in found]
        return InferenceRequest(**members)
    except ValidationError:
        return None


def _are_readable(entries: list[PeerTensor], body: bytes) -> bool:
    """Whether the data of all entries is JSON, and arrays can stand for it."""
    for entry in entries:
        if entry.tensor is None or entry.datatype not in DATATYPES:
            return False
        if entry.tensor.binary or not _is_plain(entry.parameters):
            return False
    # null is JSON, NaN and Infinity are not. Both become numbers that are not finite.
    if len(body) > SHORT and all(map(_is_finite, entries)):
        return True
    # A single letter is found much faster, and most bodies have neither.
    return (b"N" not in body or b"NaN" not in body) and (
        b"I" not in body or b"Infinity" not in body
    )


def _is_finite(entry: PeerTensor) -> bool:
    assert entry.tensor is not None
    data = entry.tensor.data
    return not isinstance(data, ndarray) or data.dtype.kind != "f" or bool(isfinite(data).all())


def _is_plain(value: Any) -> bool:
    """Whether all readers of JSON see the same in a value: its integers fit 64 bits."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return type(value) is not int or value in INTEGERS


def _json_input(entry: PeerTensor) -> RequestInput:
    """What validation would make of the entry. It has been validated, but for its parameters."""
    assert entry.tensor is not None
    assert entry.tensor.data is not None
    members: dict[str, Any] = {
        "name": entry.name,
        "shape": list(entry.shape),
        "datatype": entry.datatype,
        "parameters": None,
        "data": ArrayData.over(entry.tensor.data, source=entry),
    }
    fields = {"name", "shape", "datatype", "data"}
    if entry.parameters is not None:
        members["parameters"] = Parameters.model_validate(entry.parameters)
        fields.add("parameters")
    made: RequestInput = validated(RequestInput, members, fields)
    return made


def _json_output(output: Any, parameters: dict[str, Any] | None) -> RequestOutput:
    if output.binary is not None:
        parameters = {**(parameters or {}), "binary_data": output.binary}
    if parameters is None:
        return RequestOutput(name=output.name)
    return RequestOutput(name=output.name, parameters=parameters)


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


def json_of(response: InferenceResponse) -> bytes | None:
    """The JSON text of a response, from its arrays; None where it has none, or is not writable."""
    if not any(_is_array(output.data) for output in response.outputs):
        return None
    tree = response.model_dump(mode="json", exclude={"outputs": {"__all__": {"data"}}})
    for entry in (tree, *tree["outputs"]):
        if "parameters" in entry:  # which may have values of any kind
            entry["parameters"] = encode_to_json_bytes(entry["parameters"])
    for entry, output in zip(tree["outputs"], response.outputs, strict=True):
        if _is_array(output.data):
            entry["data"] = array_of(output.data)
        else:
            dumped = output.model_dump(mode="json", include={"data"})
            entry["data"] = encode_to_json_bytes(dumped["data"])
    try:
        return write_peer_json(tree, "null")
    except (EncodeError, TypeError):
        return None


def _is_array(data: Any) -> bool:
    """Whether the data is an array whose list would have the same elements."""
    found = array_of(data)
    if isinstance(found, ndarray):
        return found.dtype.kind in "biuf"
    return found is not None and text_of(data) is None
