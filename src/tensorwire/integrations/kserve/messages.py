"""KServe's requests and responses, from a body and to one."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
from kserve import InferInput, InferOutput
from kserve.errors import InvalidInput
from kserve.protocol.infer_type import RequestedOutput, to_http_parameters
from numpy import ndarray

from ..._decode import PeerTensor, read_peer_message
from ..._json_reader import read_json
from ...errors import DecodeError
from .options import Options
from .tensors import (
    Buffer,
    InputOnWire,
    OnWire,
    OutputOnWire,
    json_list,
    on_wire,
    set_data,
    wire_bytes,
)

NOT_IN_JSON = ("FP16", "BF16")


# --- from a body -----------------------------------------------------------------------------


def read_request(
    cls: type[Any], body: Any, json_length: int, model_name: str, options: Options
) -> Any:
    """A request whose tensors are arrays until someone asks for their lists.

    Raises InvalidInput for whatever is wrong with it.
    """
    try:
        request, entries = read_peer_message(body, json_length, True, options.limits)
    except DecodeError as error:
        raise InvalidInput(str(error)) from error
    outputs = request.outputs
    return cls(
        model_name=model_name,
        request_id=request.id,
        parameters=request.parameters or None,
        infer_inputs=[
            read_tensor(entry, InferInput, InputOnWire, model_name, options) for entry in entries
        ],
        request_outputs=(
            None if outputs is None else [RequestedOutput(o.name, framed(o)) for o in outputs]
        ),
        model_version=request.model_version,
    )


def read_response(cls: type[Any], body: Any, json_length: int, options: Options) -> Any:
    """A response, as ``read_request`` makes requests."""
    try:
        response, entries = read_peer_message(body, json_length, False, options.limits)
    except DecodeError as error:
        raise InvalidInput(str(error)) from error
    return cls(
        model_name=response.model_name,
        model_version=response.model_version,
        response_id=response.id,
        parameters=response.parameters or None,
        infer_outputs=[
            read_tensor(entry, InferOutput, OutputOnWire, response.model_name, options)
            for entry in entries
        ],
    )


def framed(output: Any) -> dict[str, Any] | None:
    """The parameters of a requested output, with the one that says how it travels."""
    if output.binary is None:
        return output.parameters or None
    return {**output.parameters, "binary_data": output.binary}


def read_tensor(
    entry: PeerTensor,
    in_json: type[Any],
    lazy: type[OnWire],
    model_name: str | None,
    options: Options,
) -> Any:
    """A tensor over its array; one that KServe takes, and that has no array, over its list.

    Raises InvalidInput for a tensor without data, and where KServe allows no JSON. Where there is
    JSON data, a size beside it counts for nothing, as in KServe.
    """
    kind = "input" if in_json is InferInput else "output"
    shape = list(entry.shape)
    if entry.text is None and entry.tensor is None:
        raise InvalidInput(
            f"'data' field is missing for {kind} '{entry.name}' for model '{model_name}'"
        )
    if entry.text is not None and kind == "input" and entry.datatype in NOT_IN_JSON:
        raise InvalidInput(
            f"Receiving {entry.datatype} data via JSON is not supported. Please use the binary "
            f"data format for input {entry.name}"
        )
    if entry.tensor is not None:
        return lazy.over(entry, shape, options)
    assert entry.text is not None
    data = read_json(bytes(entry.text), options.limits.max_nesting)
    return in_json(entry.name, shape, entry.datatype, data, entry.parameters)


# --- to a body -------------------------------------------------------------------------------


def write_request(request: Any) -> tuple[bytes | dict[str, Any], int | None]:
    """Body and header length; the JSON's tree and None when nothing is binary.

    Binary are the inputs whose data was set so. Raises InvalidInput.
    """
    entries, buffers = [], []
    for tensor in request.inputs:
        raw = tensor._raw_data
        data = tensor.data if on_wire(tensor) is None else json_list(tensor)
        if data is None and raw is None:
            raise missing("input", tensor.name, request.model_name)
        if isinstance(data, ndarray):
            set_data(tensor, data, False)
            data, raw = tensor.data, None
        if data and raw:
            raise InvalidInput(
                f"Both 'data' and 'raw_data' fields are set for input '{tensor.name}' for model "
                f"'{request.model_name}'"
            )
        if data and tensor.datatype in NOT_IN_JSON:
            raise not_in_json("input", tensor)
        is_binary = not data and raw is not None
        if is_binary:
            buffers.append(raw)
        entries.append(entry_of(tensor, len(raw) if is_binary else None, data))
    tree: dict[str, Any] = {
        "id": request.id or str(uuid.uuid4()),
        "model_name": request.model_name,
        "inputs": entries,
    }
    if request.request_outputs:
        tree["outputs"] = [requested(output) for output in request.request_outputs]
    if request.parameters:
        tree["parameters"] = to_http_parameters(request.parameters)
    return joined(tree, buffers)


def write_response(response: Any, options: Options) -> tuple[bytes | dict[str, Any], int | None]:
    """The same of a response. Binary are the outputs that were asked for so.

    What is encoded already, or came so, is not encoded again. InferenceError for an output whose
    data is not of its datatype and shape.
    """
    entries, buffers = [], []
    for tensor, is_binary in selected(response):
        if tensor._raw_data is None and on_wire(tensor) is None and tensor.data is None:
            raise missing("output", tensor.name, response.model_name)
        if is_binary:
            wire = wire_bytes(tensor, options)
            buffers.append(wire)
            entries.append(entry_of(tensor, len(wire), None))
            continue
        data = json_list(tensor)
        if data and tensor.datatype in NOT_IN_JSON:
            raise not_in_json("output", tensor)
        entries.append(entry_of(tensor, None, data))
    tree = {
        "id": response.id,
        "model_name": response.model_name,
        "model_version": response.model_version,
        "outputs": entries,
    }
    if response.parameters:
        tree["parameters"] = to_http_parameters(response.parameters)
    return joined(tree, buffers)


def selected(response: Any) -> list[tuple[Any, bool]]:
    """The outputs to send, and whether each is binary.

    KServe's rule: the word for the whole request does not hold for outputs that are listed.
    """
    if not response._requested_outputs:
        return [(output, response._use_binary_outputs) for output in response.outputs]
    found = []
    for wanted in response._requested_outputs:
        output = response.get_output_by_name(wanted.name)
        if output is None:
            raise InvalidInput(
                f"Unexpected inference output '{wanted.name}' for model '{response.model_name}'"
            )
        found.append((output, wanted.binary_data))
    return found


def entry_of(tensor: Any, nbytes: int | None, data: Any) -> dict[str, Any]:
    """The JSON entry of a tensor: of ``nbytes`` behind the JSON, or with its data."""
    entry = {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype}
    parameters = to_http_parameters(tensor.parameters) if tensor.parameters else {}
    if nbytes is None:
        parameters.pop("binary_data_size", None)
    else:
        parameters["binary_data_size"] = nbytes
    if parameters:
        entry["parameters"] = parameters
    if nbytes is None:
        entry["data"] = data
    return entry


def requested(output: Any) -> dict[str, Any]:
    """The JSON entry of an output that is asked for."""
    if not output.parameters:
        return {"name": output.name}
    return {"name": output.name, "parameters": to_http_parameters(output.parameters)}


def joined(
    tree: dict[str, Any], buffers: list[Buffer]
) -> tuple[bytes | dict[str, Any], int | None]:
    """What ``to_rest`` returns."""
    if not buffers:
        return tree, None
    text = orjson.dumps(tree)
    return b"".join([text, *buffers]), len(text)


def missing(kind: str, name: str, model_name: str) -> Exception:
    error: Exception = InvalidInput(
        f"'data' field is missing for {kind} '{name}' for model '{model_name}'"
    )
    return error


def not_in_json(kind: str, tensor: Any) -> Exception:
    error: Exception = InvalidInput(
        f"Sending {tensor.datatype} data via JSON is not supported. Please use the binary data "
        f"format for {kind} {tensor.name}"
    )
    return error
