"""Convert between the messages of KServe and those of tensorwire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from kserve import InferInput, InferOutput, InferRequest
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol.infer_type import RequestedOutput, to_http_parameters
from kserve.protocol.rest.v2_datamodels import InferenceResponse
from kserve.utils.utils import generate_uuid
from numpy.typing import NDArray

import tensorwire as tw

from ..._codec.datatypes import BY_DTYPE
from ..._codec.json.reader import read_json
from ..._codec.limits import UNLIMITED
from ..._codec.messages.decoding import view_tensor
from ...errors import DecodeError, ElementError, LayoutError, format_subject, name_tensor
from ...http import HEADER_LENGTH, JSON_TYPE
from ..rest import flat_numbers, has_binary_data

Array = NDArray[Any]
Buffer = bytes | memoryview
Parameters = dict[str, Any]

NOT_IN_JSON = ("FP16", "BF16")
PARAMETER_TYPES = (str, bool, int, float)


# --- received tensors ----------------------------------------------------------------------------


class JsonData:
    """The ``data`` of the tensors in the JSON of a message, as the lists that KServe gives a model.

    The JSON is parsed again when the first list is used: most models only use arrays.
    """

    def __init__(self, text: Any, member: str) -> None:
        self._text = text
        self._member = member  # the name of the list of tensors
        self._tensors: Any = None

    def of(self, index: int) -> Any:
        """Return the data of a tensor."""
        if self._tensors is None:
            self._tensors = parse_json(bytes(self._text))[self._member]
        return self._tensors[index]["data"]

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonData, (bytes(self._text), self._member)


def parse_json(text: bytes) -> Any:
    """Return the value of JSON text that was validated."""
    try:
        return read_json(text, UNLIMITED.max_nesting)
    except DecodeError:  # NaN or Infinity, which are accepted only in the data of FP32 and FP64
        return json.loads(text)


class ReceivedTensor:
    """An InferInput or InferOutput that keeps the received array until its list is used.

    The first access to ``data`` builds the list, which is authoritative from then on.
    """

    _tensor: tw.Tensor | None = None
    _list: Any = None
    _json: JsonData | None = None  # None for binary data
    _index: int

    @classmethod
    def of(cls, tensor: tw.Tensor, parameters: Parameters, data: JsonData, index: int) -> Any:
        """Create the tensor with a number ``index`` in its message. Raises LayoutError."""
        if tensor.data is None:
            subject = format_subject("tensor", tensor.name)
            raise LayoutError(f"{subject} is in shared memory, which KServe does not support")
        made: Any = cls(tensor.name, list(tensor.shape), tensor.datatype, None, parameters)  # type: ignore[call-arg]
        made._tensor = tensor
        if not tensor.binary:
            made._json, made._index = data, index
        return made

    # KServe's classes, and other code that uses their attributes, keep the data in `_data`.
    @property
    def _data(self) -> Any:
        tensor = self._tensor
        if tensor is not None:
            # The list is set before the tensor is released, for threads that read it meanwhile.
            if self._json is None:
                array = strings(tensor) if tensor.datatype == "BYTES" else tensor.as_numpy()
                self._list = array.ravel().tolist()
            else:
                self._list = self._json.of(self._index)
            self._tensor = None
        return self._list

    @_data.setter
    def _data(self, data: Any) -> None:
        self._list = data
        self._tensor = None

    def as_numpy(self) -> Array:
        """Return the data as an array in ``shape``, which is writable and aligned.

        It is a view of the body for numeric binary data that is aligned in a writable body, and
        otherwise a new array in each call.
        """
        tensor = self._tensor
        if tensor is None:
            from_list: Array = super().as_numpy()  # type: ignore[misc]
            return from_list
        if tensor.datatype == "BYTES":
            array = strings(tensor)
        elif self._json is None:
            array = tensor.as_numpy(aligned=True, writable=True)
        else:
            array = tensor.as_numpy().copy()
        return array.reshape(self._shape)  # type: ignore[attr-defined]


class ReceivedInput(ReceivedTensor, InferInput):  # type: ignore[misc]
    """An input of a request."""


class ReceivedOutput(ReceivedTensor, InferOutput):  # type: ignore[misc]
    """An output of a response."""


def strings(tensor: tw.Tensor) -> Array:
    """Return BYTES as an array of ``str``, or of ``bytes`` if any element is not UTF-8."""
    try:
        return tensor.as_strings()
    except ElementError:
        return tensor.as_numpy()


# --- requests ------------------------------------------------------------------------------------


def read_request(body: Any, header_length: int | None, name: str) -> tuple[tw.InferRequest, Any]:
    """Decode a request for the model with a name, and convert it to KServe's InferRequest.

    Raises DecodeError.
    """
    is_json = header_length is None
    # KServe's own code would read JSON that exceeds the limits, which takes longer.
    limits = UNLIMITED if is_json else tw.Limits()
    request = tw.decode_request(body, header_length, limits=limits)
    convert = scalars if is_json else dict  # KServe validates only JSON
    data = JsonData(memoryview(body)[:header_length], "inputs")
    inputs = [
        ReceivedInput.of(tensor, convert(tensor.parameters), data, index)
        for index, tensor in enumerate(request.inputs)
    ]
    outputs = []
    for output in request.outputs or ():
        parameters = convert(output.parameters)
        if output.binary is not None:
            parameters["binary_data"] = output.binary
        outputs.append(RequestedOutput(output.name, parameters))
    return request, InferRequest(
        model_name=name,
        request_id=request.id,
        parameters=convert(request.parameters) or None,
        infer_inputs=inputs,
        request_outputs=outputs or None,
    )


def is_binary(body: Any, header_length: int | None) -> bool:
    """Return whether a request has binary data, so that KServe's own code must not read it."""
    if header_length is not None:
        return True
    try:
        return has_binary_data(json.loads(bytes(body)))
    except (ValueError, RecursionError):
        return False


def scalars(parameters: Mapping[str, Any]) -> Parameters:
    """Return parameters as a dict. Raises DecodeError for values that KServe has to validate."""
    found = dict(parameters)
    for value in found.values():
        if type(value) not in PARAMETER_TYPES:
            raise DecodeError("a parameter is a list, an object or null")
    return found


# --- responses -----------------------------------------------------------------------------------


def read_response(cls: Any, body: Any, header_length: int) -> Any:
    """Create an InferResponse from a body with binary data. Raises DecodeError."""
    response = tw.decode_response(body, header_length, limits=UNLIMITED)
    data = JsonData(memoryview(body)[:header_length], "outputs")
    return cls(
        model_name=response.model_name,
        response_id=response.id,
        parameters=dict(response.parameters) or None,
        infer_outputs=[
            ReceivedOutput.of(tensor, dict(tensor.parameters), data, index)
            for index, tensor in enumerate(response.outputs)
        ],
    )


def write_response(response: Any, request: tw.InferRequest) -> tuple[bytes, dict[str, str]]:
    """Return the body of a response, and its HTTP headers.

    Raises InvalidInput and InferenceError as KServe does, for outputs that cannot be sent.
    """
    selected = select_outputs(response, request)
    has_binary = any(is_binary for _, is_binary in selected)
    entries: list[dict[str, Any]] = []
    buffers: list[Buffer] = []
    for output, is_binary in selected:
        is_received = isinstance(output, ReceivedTensor)  # its list is not built for this
        if not is_received and output.data is None and output._raw_data is None:
            raise InvalidInput(
                f"'data' field is missing for output '{output.name}' for model "
                f"'{response.model_name}'"
            )
        entry = {"name": output.name, "shape": output.shape, "datatype": output.datatype}
        parameters = to_http_parameters(output.parameters) if output.parameters else {}
        parameters.pop("binary_data_size", None)
        if is_binary:
            buffer = output_buffer(output)
            buffers.append(buffer)
            parameters["binary_data_size"] = len(buffer)
        if parameters:
            entry["parameters"] = parameters
        if not is_binary:
            entry["data"] = json_data(output)
        entries.append(entry)
    tree: Parameters = {
        "id": response.id or request.id or generate_uuid(),
        "model_name": response.model_name,
        "model_version": response.model_version,
        "outputs": entries,
    }
    if response.parameters:
        tree["parameters"] = to_http_parameters(response.parameters)
    if not has_binary:
        tree = validated(tree)
    text: bytes = orjson.dumps(tree, option=orjson.OPT_SERIALIZE_NUMPY)
    if not has_binary:
        return text, {"content-type": JSON_TYPE}
    return b"".join([text, *buffers]), {HEADER_LENGTH: str(len(text))}


def validated(tree: Parameters) -> Parameters:
    """Return a JSON response as KServe's endpoint sends it. Its data is not validated."""
    without_data = [{**entry, "data": []} for entry in tree["outputs"]]
    found: Parameters
    found = InferenceResponse.model_validate({**tree, "outputs": without_data}).model_dump()
    for entry, with_data in zip(found["outputs"], tree["outputs"], strict=True):
        entry["data"] = with_data["data"]
    return found


def select_outputs(response: Any, request: tw.InferRequest) -> list[tuple[Any, bool]]:
    """Return the outputs to send, each with whether it is binary.

    The request decides. If it says nothing, the arguments that the model passed to InferResponse
    apply. An output without ``binary_data`` follows ``binary_data_output`` (WIRE.md 7).
    """
    stated = request.parameters.get("binary_data_output")
    default = response._use_binary_outputs if stated is None else stated
    if request.outputs:
        wanted = [(output.name, output.binary) for output in request.outputs]
    elif response._requested_outputs:
        chosen = response._requested_outputs
        wanted = [(o.name, o.binary_data if stated is None else stated) for o in chosen]
    else:
        return [(output, default) for output in response.outputs]
    found = []
    for name, is_binary in wanted:
        output = response.get_output_by_name(name)
        if output is None:
            raise InvalidInput(
                f"Unexpected inference output '{name}' for model '{response.model_name}'"
            )
        found.append((output, default if is_binary is None else is_binary))
    return found


def output_array(output: Any) -> Array:
    """Return the data of an output as an array."""
    if not isinstance(output, ReceivedTensor) and isinstance(output.data, np.ndarray):
        return output.data
    array: Array = output.as_numpy()
    return array


def output_buffer(output: Any) -> Buffer:
    """Return the bytes of an output that is sent binary, copied only if necessary."""
    raw = output._raw_data
    if raw is not None and not isinstance(output.data, np.ndarray):
        check_raw_data("output", output, raw, InferenceError)
        return raw  # type: ignore[no-any-return]
    array = output_array(output)
    if is_plain(array, output):
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return converted(output, array, binary_data=True)._raw_data  # type: ignore[no-any-return]


def json_data(output: Any) -> Any:
    """Return the data of an output that is sent in JSON: an array of numbers or a flat list."""
    array = output_array(output)
    if output.datatype in NOT_IN_JSON and array.size:
        raise InvalidInput(
            f"Sending {output.datatype} data via JSON is not supported. Please use the binary data "
            f"format for output {output.name}"
        )
    if is_plain(array, output):
        return flat_numbers(array)
    return converted(output, array, binary_data=False)._data


def is_plain(array: Array, output: Any) -> bool:
    """Return whether an array of numbers has the datatype and the shape of its output."""
    datatype = BY_DTYPE.get(array.dtype) if type(array) is np.ndarray else None
    return (
        datatype is not None
        and datatype.name == output.datatype != "BYTES"
        and array.shape == tuple(output.shape)
    )


def converted(output: Any, array: Array, *, binary_data: bool) -> Any:
    """Return an output to which KServe's own function has set an array, or has rejected it."""
    made = InferOutput(output.name, output.shape, output.datatype)
    made.set_data_from_numpy(array, binary_data=binary_data)
    return made


def check_raw_data(kind: str, tensor: Any, raw: Buffer, error_class: type[Exception]) -> None:
    """Raise the error if datatype, shape and raw data of an input or output do not match."""
    try:
        view_tensor(raw, tensor.name, tensor.datatype, tuple(tensor.shape), UNLIMITED)
    except DecodeError as error:
        name_tensor(error, kind, tensor.name)
        raise error_class(str(error)) from error
