"""KServe's requests and responses, from a body and to one."""

from __future__ import annotations

import uuid
from math import isfinite
from typing import Any

import orjson
from kserve import InferInput, InferOutput
from kserve.errors import InvalidInput
from kserve.protocol.infer_type import RequestedOutput, to_http_parameters
from numpy import ndarray

from ..._codec.decoder import PeerTensor, read_peer_message
from ..._codec.encoder import write_peer_json
from ...errors import DecodeError, EncodeError
from .options import Options
from .tensors import (
    Buffer,
    InputOnWire,
    OnWire,
    OutputOnWire,
    json_array,
    json_list,
    listed,
    on_wire,
    plain_list,
    read_list,
    set_data,
    wire_bytes,
)

NOT_IN_JSON = ("FP16", "BF16")
SCALARS = (str, bool, int, float)


# --- from a body -----------------------------------------------------------------------------


def read_request(
    cls: type[Any], body: Any, json_length: int, model_name: str, options: Options
) -> Any:
    """A request whose tensors are arrays until someone asks for their lists.

    Raises InvalidInput for whatever is wrong with it.
    """
    try:
        request, entries, parameters = read_peer_message(body, json_length, True, options.limits)
    except DecodeError as error:
        raise InvalidInput(str(error)) from error
    check_unique(entries, "input")
    return cls(
        model_name=model_name,
        request_id=request.id,
        parameters=parameters[0],
        infer_inputs=[
            read_tensor(entry, InferInput, InputOnWire, model_name, options) for entry in entries
        ],
        request_outputs=requested_outputs(request.outputs, parameters[1:]),
        model_version=request.model_version,
    )


def read_response(cls: type[Any], body: Any, json_length: int, options: Options) -> Any:
    """A response, as ``read_request`` makes requests."""
    try:
        response, entries, parameters = read_peer_message(body, json_length, False, options.limits)
    except DecodeError as error:
        raise InvalidInput(str(error)) from error
    check_unique(entries, "output")
    return cls(
        model_name=response.model_name,
        model_version=response.model_version,
        response_id=response.id,
        parameters=parameters[0],
        infer_outputs=[
            read_tensor(entry, InferOutput, OutputOnWire, response.model_name, options)
            for entry in entries
        ],
    )


class JsonRequest:
    """A request that is JSON as a whole, and that KServe takes as it is."""

    def __init__(
        self, request: Any, entries: list[PeerTensor], parameters: list[dict[str, Any] | None]
    ) -> None:
        self.request = request
        self.entries = entries
        self.parameters = parameters

    def infer_request(self, cls: type[Any], model_name: str, options: Options) -> Any:
        """What KServe's ``from_inference_request`` makes of it, but for the lists."""
        parameters: list[dict[str, Any] | None] = [own or {} for own in self.parameters[1:]]
        return cls(
            request_id=self.request.id,
            model_name=model_name,
            infer_inputs=[
                InputOnWire.over(entry, entry.parameters or {}, options) for entry in self.entries
            ],
            parameters=self.parameters[0],
            request_outputs=requested_outputs(self.request.outputs or None, parameters),
        )


def read_json_request(body: bytes, options: Options) -> JsonRequest | None:
    """A request that is JSON as a whole.

    None for what KServe is to read itself, because it may see it in another way, or has its own
    answer: all that is malformed or not of the protocol, and JSON data that is not of its datatype
    and shape, which numpy may convert.
    """
    try:
        request, entries, parameters = read_peer_message(
            body, len(body), True, options.json_limits, needs_arrays=True
        )
    except DecodeError:
        return None
    for entry in entries:
        if entry.tensor is None or entry.text is None or not are_scalars(entry.parameters):
            return None
    if not all(map(are_scalars, parameters)):
        return None
    return JsonRequest(request, entries, parameters)


def are_scalars(parameters: dict[str, Any] | None) -> bool:
    """Whether KServe takes these parameters in JSON, none of them being a list, object or null."""
    return not parameters or all(type(value) in SCALARS for value in parameters.values())


def check_unique(entries: list[PeerTensor], kind: str) -> None:
    """Raise InvalidInput for two tensors of one name."""
    if len({entry.name for entry in entries}) < len(entries):
        names = [entry.name for entry in entries]
        name = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{kind} '{name}' appears twice")


def requested_outputs(
    outputs: list[Any] | None, parameters: list[dict[str, Any] | None]
) -> list[Any] | None:
    """KServe's, whose parameters include the one that says how the output travels."""
    if outputs is None:
        return None
    made = []
    for output, own in zip(outputs, parameters, strict=True):
        framed = own if output.binary is None else {**(own or {}), "binary_data": output.binary}
        made.append(RequestedOutput(output.name, framed))
    return made


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
    if entry.text is None and entry.tensor is None:
        raise InvalidInput(
            f"'data' field is missing for {kind} '{entry.name}' for model '{model_name}'"
        )
    if entry.text is not None and kind == "input" and entry.datatype.upper() in NOT_IN_JSON:
        raise InvalidInput(
            f"Receiving {entry.datatype.upper()} data via JSON is not supported. "
            f"Please use the binary data format for input {entry.name}"
        )
    if entry.tensor is not None:
        return lazy.over(entry, entry.parameters, options)
    assert entry.text is not None
    data = read_list(bytes(entry.text), options)
    return in_json(entry.name, list(entry.shape), entry.datatype, data, entry.parameters)


# --- to a body -------------------------------------------------------------------------------


def write_request(request: Any) -> tuple[bytes | dict[str, Any], int | None]:
    """Body and header length; the JSON's tree and None when nothing is binary.

    Binary are the inputs whose data was set so. Raises InvalidInput.
    """
    entries, buffers = [], []
    for tensor in request.inputs:
        raw = tensor._raw_data
        data = listed(tensor)
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
        check_present(tensor, response)
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


def write_json_response(response: Any) -> bytes | None:
    """The text that KServe's REST endpoint sends for a response in which all is JSON.

    None where an output is binary, and for what that endpoint does not send as it is: whatever it
    converts or rejects, NaN and infinities. Raises what ``write_response`` raises.
    """
    entries = []
    for tensor, is_binary in selected(response):
        if is_binary:
            return None
        check_present(tensor, response)
        array = json_array(tensor)
        if array.size and tensor.datatype in NOT_IN_JSON:
            raise not_in_json("output", tensor)
        parameters = to_http_parameters(tensor.parameters) if tensor.parameters else {}
        parameters.pop("binary_data_size", None)
        if not (is_text(tensor.name) and are_dimensions(tensor.shape) and are_plain(parameters)):
            return None
        entries.append(
            {
                "name": tensor.name,
                "shape": tensor.shape,
                "datatype": tensor.datatype,
                "parameters": parameters or None,
                "data": array if writable(array) else plain_list(array),
            }
        )
    parameters = to_http_parameters(response.parameters) if response.parameters else None
    version = response.model_version
    if not (
        is_text(response.id)
        and is_text(response.model_name)
        and (version is None or is_text(version))
        and are_plain(parameters)
    ):
        return None
    try:
        return write_peer_json(
            {
                "model_name": response.model_name,
                "model_version": version,
                "id": response.id,
                "parameters": parameters,
                "outputs": entries,
            },
            "error",
        )
    except (EncodeError, TypeError):
        return None


def is_text(value: Any) -> bool:
    return type(value) is str


def are_dimensions(shape: Any) -> bool:
    return type(shape) is list and all(type(dim) is int for dim in shape)


def are_plain(parameters: dict[str, Any] | None) -> bool:
    """Whether KServe sends these parameters as they are."""
    return not parameters or all(
        type(key) is str
        and type(value) in SCALARS
        and not (type(value) is float and not isfinite(value))
        for key, value in parameters.items()
    )


def check_present(tensor: Any, response: Any) -> None:
    """Raise InvalidInput for an output without data."""
    if tensor._raw_data is None and on_wire(tensor) is None and tensor.data is None:
        raise missing("output", tensor.name, response.model_name)


def writable(array: Any) -> bool:
    """Whether our writer takes the array; others become a list first."""
    return type(array) is ndarray and array.dtype.kind in "biuf" and array.dtype.isnative


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
