"""Convert between the requests, responses and tensor data of MLServer and those of tensorwire.

``ArrayData`` takes the place of MLServer's ``TensorData``. Binary data is read into it, the codecs
return and accept it, and responses are written from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np
import orjson
from mlserver.codecs.json import encode_to_json_bytes
from mlserver.errors import MLServerError
from mlserver.types import (
    Datatype,
    InferenceRequest,
    InferenceResponse,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
    TensorData,
)
from numpy.typing import NDArray
from pydantic import ValidationError

import tensorwire as tw

from ..._codec.datatypes import DATATYPES
from ..._codec.limits import UNLIMITED
from ..._codec.messages.decoding import view_tensor
from ...errors import EncodeError, LayoutError, TensorwireError, format_subject, name_tensor
from ..rest import flat_numbers

Array = NDArray[Any]
Data = Array | tw.BytesArray

# The rows of the table of datatypes. Unvalidated tensors may have a string or a Datatype.
ELEMENT_TYPES = {
    key: DATATYPES[member.value] for member in Datatype for key in (member, member.value)
}
DATATYPES_BY_DTYPE = {each.dtype: each.name for each in ELEMENT_TYPES.values() if each.dtype}
# Values that orjson and pydantic write differently are left to pydantic.
ORJSON_OPTIONS = (
    orjson.OPT_SERIALIZE_NUMPY
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def mlserver_error(error: TensorwireError) -> Exception:
    """Return an error with whose message and status MLServer's servers respond."""
    return MLServerError(str(error), error.status)  # type: ignore[no-any-return]


# --- ArrayData -----------------------------------------------------------------------------------


class ArrayData(TensorData):  # type: ignore[misc]  # mlserver has no types
    """A TensorData that keeps an array or BytesArray until its list is used.

    The list is ``root``. Everything that reads it (iteration, indexing, JSON, gRPC contents, other
    codecs, batching) gets the flat list that MLServer itself would have. It is built on first
    access; after that, the list is authoritative.
    """

    @classmethod
    def from_array(cls, data: Data, nan_as_none: bool = False) -> ArrayData:
        """Create an ArrayData of elements in any shape, which are not copied.

        With ``nan_as_none``, the list has None for NaN, as in the lists of MLServer's NumpyCodec.
        """
        made: ArrayData = cls.__new__(cls)
        set_state(made, {"array": data, "nan_as_none": nan_as_none})
        return made

    def __len__(self) -> int:
        data = array_of(self)
        if isinstance(data, np.ndarray) and data.dtype.kind == "S":
            return 1
        return len(self.root) if data is None else data.size

    def __eq__(self, other: object) -> bool:
        return self.root == other.root if isinstance(other, TensorData) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as for all pydantic models that are not frozen

    def __copy__(self) -> ArrayData:
        """Return a copy with a list or array of its own, as pydantic does."""
        made: ArrayData = type(self).__new__(type(self))
        set_state(made, {name: copy(value) for name, value in self.__dict__.items()})
        return made


def set_state(data: ArrayData, state: dict[str, Any]) -> None:
    """Set the attributes as unpickling does, which is the way around validation."""
    data.__setstate__({"__dict__": state, "__pydantic_fields_set__": {"root"}})


def get_root(self: ArrayData) -> Any:
    """Return the list, which is built on first access."""
    state = self.__dict__
    array = state.get("array")  # None if the list is set, perhaps by another thread
    if array is not None:
        set_root(self, list_of(array, state["nan_as_none"]))
    return state["root"]


def set_root(self: ArrayData, value: Any) -> None:
    """Set the list, and release the array."""
    state = self.__dict__
    state["root"] = value  # first, for other threads that read the state
    state.pop("array", None)


# It is set here because pydantic would treat a property in the body of the class as the default
# value of the field.
ArrayData.root = property(get_root, set_root)


def array_of(data: Any) -> Data | None:
    """Return the array or BytesArray of an ArrayData whose list is not built, otherwise None."""
    return data.__dict__.get("array") if type(data) is ArrayData else None


def list_of(data: Data, nan_as_none: bool) -> list[Any]:
    """Return the flat list that MLServer itself would have.

    For an array of kind ``S``, its only element is the memory of the whole array.
    """
    if isinstance(data, tw.BytesArray):
        return data.as_numpy().ravel().tolist()
    kind = data.dtype.kind
    if kind == "S":
        return [data.tobytes()]
    values: list[Any] = data.ravel().tolist()
    if nan_as_none and kind == "f" and np.isnan(data).any():
        return [None if value != value else value for value in values]  # noqa: PLR0124
    return values


def numeric_array(element: Any) -> Array | None:
    """Return the array of an input or output, in any shape.

    Returns None if there is no array, or if its dtype is not that of the datatype.
    """
    data, found = array_of(element.data), ELEMENT_TYPES.get(element.datatype)
    is_numeric = isinstance(data, np.ndarray) and found is not None and found.dtype == data.dtype
    return data if is_numeric else None  # type: ignore[return-value]


# --- what models return --------------------------------------------------------------------------


def array_output(name: str, array: Any, shape: list[int], content_type: str) -> Any:
    """Return the ResponseOutput of an array, or None if MLServer has to convert or reject it.

    The array is copied, because the model may change it before the response is sent. The copy is a
    bytes object, which becomes raw gRPC contents without another copy.
    """
    if type(array) is not np.ndarray:
        return None
    dtype = array.dtype
    datatype = DATATYPES_BY_DTYPE.get(dtype)
    if datatype is None and not (dtype.kind == "S" and dtype.itemsize):
        return None
    return ResponseOutput(
        name=name,
        shape=shape,
        datatype=datatype or "BYTES",
        parameters=Parameters(content_type=content_type),
        data=ArrayData.from_array(np.frombuffer(array.tobytes(), dtype), nan_as_none=True),
    )


# --- raw gRPC contents ---------------------------------------------------------------------------


def view_raw_data(name: str, datatype: Any, shape: list[int], raw: bytes | memoryview) -> Data:
    """Return raw contents as the data of a tensor. Raises MLServerError (status 400).

    The number of BYTES elements may differ from the shape, because MLServer's NumpyCodec sends all
    elements as a single one.
    """
    try:
        if datatype not in ELEMENT_TYPES:
            raise LayoutError(f"has the datatype {str(datatype)[:40]!r}, {SUPPORTED}")
        if datatype == "BYTES":
            return tw.decode_bytes(raw)
        data = view_tensor(raw, name, datatype, tuple(shape), UNLIMITED).data
    except TensorwireError as error:
        name_tensor(error, "tensor", name)
        raise mlserver_error(error) from error
    assert data is not None
    return data


SUPPORTED = f"which MLServer does not support; it supports {', '.join(Datatype.__members__)}"


def array_bytes(array: Array) -> bytes:
    """Return the elements in binary form, without a copy if they are those of a bytes object."""
    base: Any = array.base
    if type(base) is bytes and len(base) == array.nbytes and array.flags.c_contiguous:
        return base
    return array.tobytes()


# --- requests ------------------------------------------------------------------------------------


def to_inference_request(request: tw.InferRequest) -> InferenceRequest:
    """Convert a request without copying its tensors. Raises LayoutError and MLServerError."""
    try:
        return InferenceRequest(
            id=request.id,
            parameters=to_parameters(request.parameters),
            inputs=[to_request_input(tensor) for tensor in request.inputs],
            outputs=request.outputs and [to_request_output(output) for output in request.outputs],
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MLServerError(f"{where} of the request: {first['msg']}") from error


def to_request_input(tensor: tw.Tensor) -> RequestInput:
    """Convert a tensor of a request with a header length. Raises LayoutError."""
    if tensor.datatype not in ELEMENT_TYPES or tensor.data is None:
        problem = f"has the datatype {tensor.datatype}, {SUPPORTED}"
        if tensor.data is None:
            problem = "is in shared memory, which MLServer does not support"
        subject = format_subject("input", tensor.name)
        raise LayoutError(f"{subject} {problem}", tensor=tensor.name)
    data = ArrayData.from_array(tensor.data)
    if isinstance(tensor.data, tw.BytesArray) and not tensor.binary:
        data = TensorData(tensor.data.as_strings().reshape(-1).tolist())  # str, as in JSON requests
    return RequestInput(
        name=tensor.name,
        shape=tensor.shape,
        datatype=tensor.datatype,
        parameters=to_parameters(tensor.parameters),
        data=data,
    )


def to_request_output(output: tw.RequestedOutput) -> RequestOutput:
    parameters = dict(output.parameters)
    if output.binary is not None:
        parameters["binary_data"] = output.binary
    return RequestOutput(name=output.name, parameters=to_parameters(parameters))


def to_parameters(parameters: Mapping[str, Any]) -> Parameters | None:
    return Parameters.model_validate(dict(parameters)) if parameters else None


# --- responses -----------------------------------------------------------------------------------


def binary_selection(request: InferenceRequest) -> Callable[[str], bool]:
    """Return a function that returns whether the output with a name is binary (WIRE.md 7)."""
    default = flag(request.parameters, "binary_data_output", False)
    listed = {
        output.name: flag(output.parameters, "binary_data", default)
        for output in request.outputs or ()
    }
    return lambda name: listed.get(name, default)


def flag(parameters: Parameters | None, name: str, default: bool) -> bool:
    """Return the value of a parameter, or the default if it is missing or null."""
    value = getattr(parameters, name, None)
    return default if value is None else value is True


def write_response(response: InferenceResponse, is_binary: Callable[[str], bool]) -> tw.Frame:
    """Write a response with all outputs of the model. Raises EncodeError."""
    try:
        message = tw.InferResponse(
            [to_tensor(output, is_binary(output.name)) for output in response.outputs],
            model_name=response.model_name,
            model_version=response.model_version,
            id=response.id,
            parameters=response.parameters.model_dump() if response.parameters else None,
        )
    except TypeError as error:
        raise EncodeError(str(error)) from error
    return tw.encode_response(message, limits=UNLIMITED)


def to_tensor(output: Any, is_binary: bool) -> tw.Tensor:
    """Convert an output, without a copy if it has an array. Raises EncodeError and TypeError."""
    data: Any = array_of(output.data)
    if data is None:
        data = getattr(output.data, "root", output.data)
        if not isinstance(data, list | np.ndarray):
            data = [data]  # MLServer treats such a value as the only element
    return tw.Tensor(
        output.name,
        data,
        datatype=getattr(output.datatype, "value", output.datatype),
        shape=output.shape,
        parameters=output.parameters.model_dump() if output.parameters else None,
        binary=is_binary,
    )


def write_json_response(response: InferenceResponse) -> bytes:
    """Write a response as JSON text, from arrays where the model has returned arrays.

    MLServer's own functions write the rest, or report why it has no JSON form.
    """
    try:
        tree = response.model_dump(mode="json", exclude={"outputs": {"__all__": {"data"}}})
        for entry, output in zip(tree["outputs"], response.outputs, strict=True):
            entry["data"] = json_data(output)
        text: bytes = orjson.dumps(tree, None, ORJSON_OPTIONS)
    except (AttributeError, TypeError, ValueError):
        text = encode_to_json_bytes(response.model_dump(mode="json"))
    return text


def json_data(output: ResponseOutput) -> Any:
    """Return the data of an output for orjson, which writes NaN and infinities as null.

    Raises ValueError for BYTES that are not valid UTF-8.
    """
    data: Any = array_of(output.data)
    if isinstance(data, np.ndarray) and data.dtype.kind in "biuf":
        return flat_numbers(data)
    if isinstance(data, tw.BytesArray):
        return data.as_strings().reshape(-1).tolist()
    values = getattr(output.data, "root", output.data)
    if output.datatype == "BYTES" and type(values) is list:
        return [value.decode() if type(value) is bytes else value for value in values]
    return values
