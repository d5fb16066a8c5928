"""Convert between the requests, responses and tensor data of MLServer and those of tensorwire.

``ArrayData`` takes the place of MLServer's ``TensorData`` and keeps an array until its list is
used. Requests are read into it, the codecs return and accept it, and responses are written from it.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import isnan, prod
from typing import Any

import numpy as np
import orjson
from mlserver.codecs.json import decode_from_bytelike_json_to_dict, encode_to_json_bytes
from mlserver.codecs.string import decode_str
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
from pydantic import BaseModel, ValidationError

import tensorwire as tw

from ..._codec.datatypes import DATATYPES
from ..._codec.views import view_tensor
from ...errors import (
    DecodeError,
    EncodeError,
    LayoutError,
    TensorwireError,
    format_subject,
    name_tensor,
)
from ..json_data import DataText, Header, flat_numbers, has_numbers, plain

Array = NDArray[Any]
Data = Array | tw.BytesArray

# MLServer does not limit these. MLServer itself reads bodies that exceed the other limits.
NO_LIMIT = 2**63 - 1
JSON_LIMITS = tw.Limits(
    max_header_nbytes=NO_LIMIT,
    max_tensors=NO_LIMIT,
    max_name_nbytes=NO_LIMIT,
    max_parameters=NO_LIMIT,
)

MLSERVER_DATATYPES = frozenset(Datatype.__members__)
# The rows of the table of datatypes. Unvalidated tensors may have a string or a Datatype.
ROWS = {key: DATATYPES[member.value] for member in Datatype for key in (member, member.value)}
DATATYPES_BY_DTYPE = {row.dtype: row.name for row in ROWS.values() if row.dtype is not None}
# The format letter and the size of an element, for `struct`. BOOL is missing, because its bytes
# have to be checked.
STRUCT_FORMATS = {
    key: (row.dtype.char, row.itemsize)
    for key, row in ROWS.items()
    if row.dtype is not None and row.name != "BOOL"
}
RAW_LIMITS = tw.Limits(max_parameters=NO_LIMIT)
SHORT_BODY_NBYTES = 1 << 16
# Up to these sizes, lists are faster than arrays, and `sum` is faster than a function of numpy.
SHORT_TEXTS = 16  # elements
SHORT_RAW_NBYTES = 128
SHORT_LIST = 256  # elements
ORJSON_INTEGERS = range(-(2**63), 2**64)  # the integers that orjson reads as integers


def mlserver_error(error: TensorwireError) -> Exception:
    """Return an MLServerError with the message and the status of an error.

    MLServer's REST and gRPC servers respond with this status.
    """
    return MLServerError(str(error), error.status)  # type: ignore[no-any-return]


def construct(
    model: Any, state: dict[str, Any], fields: set[str], extra: dict[str, Any] | None = None
) -> Any:
    """Create an object of a pydantic model from valid values.

    ``fields`` has the names of the fields that are set. ``extra`` has the values of the parameters
    that the model does not declare, or is None if it does not allow any.
    """
    instance = model.__new__(model)
    instance.__dict__.update(state)
    set_fields(instance, fields)
    set_extra(instance, extra)
    set_private(instance, None)
    return instance


# The setters of pydantic's slots are called directly, which is faster than `object.__setattr__`.
set_fields, set_extra, set_private = (
    vars(BaseModel)[f"__pydantic_{name}__"].__set__ for name in ("fields_set", "extra", "private")
)


# --- ArrayData -----------------------------------------------------------------------------------


class ArrayData(TensorData):  # type: ignore[misc]  # mlserver has no types
    """A TensorData that keeps an array or BytesArray until its list is used.

    The list is ``root``. Everything that reads it (iteration, indexing, JSON, gRPC contents, other
    codecs, batching) gets the list that MLServer itself would have: for JSON data the list that was
    sent, otherwise a flat list. It is built on first access; after that, the list is authoritative.
    The array is not copied. It keeps a reference to the memory that it views.
    """

    @classmethod
    def from_array(
        cls, data: Data, nan_as_none: bool = False, source: DataText | bytes | None = None
    ) -> ArrayData:
        """Create an ArrayData.

        Parameters
        ----------
        data
            The elements, in any shape.
        nan_as_none
            Whether the list has None for NaN, as in the lists of MLServer's NumpyCodec.
        source
            The JSON text that ``data`` was read from. None for other data.
        """
        array_data: ArrayData = cls.__new__(cls)
        state = array_data.__dict__
        state["array"], state["nan_as_none"], state["source"] = data, nan_as_none, source
        set_fields(array_data, {"root"})
        return array_data

    def __len__(self) -> int:
        data = array_of(self)
        if data is None or self.__dict__["source"] is not None:
            return len(self.root)
        return 1 if is_one_element(data) else data.size

    def __eq__(self, other: object) -> bool:
        return self.root == other.root if isinstance(other, TensorData) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as for all pydantic models that are not frozen

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [next(iter(self.__dict__.items()))]

    def __copy__(self) -> ArrayData:
        data = array_of(self)
        if data is None:
            return super().__copy__()  # type: ignore[no-any-return]
        return ArrayData.from_array(data, self.__dict__["nan_as_none"], self.__dict__["source"])

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> ArrayData:
        data, text = array_of(self), text_of(self)
        if data is None:
            return super().__deepcopy__(memo)  # type: ignore[no-any-return]
        return ArrayData.from_array(copy.deepcopy(data, memo), self.__dict__["nan_as_none"], text)

    def __reduce__(self) -> tuple[Any, ...]:
        data, text = array_of(self), text_of(self)
        if data is None:
            return TensorData, (self.root,)
        return ArrayData.from_array, (data, self.__dict__["nan_as_none"], text)


def get_root(self: ArrayData) -> Any:
    """Return the list, which is built on first access."""
    state = self.__dict__
    if "root" in state:
        return state["root"]
    if state["source"] is None:
        root = flat_list(state["array"], state["nan_as_none"])
    else:
        root = decode_from_bytelike_json_to_dict(bytes(state["source"]))
    set_root(self, root)
    return root


def set_root(self: ArrayData, value: Any) -> None:
    """Set the list, and release the array."""
    object.__setattr__(self, "__dict__", {"root": value})


# It is set here because pydantic would treat a property in the body of the class as the default
# value of the field.
ArrayData.root = property(get_root, set_root)


def array_of(data: Any) -> Data | None:
    """Return the array or BytesArray of an ArrayData whose list is not built, otherwise None."""
    return data.__dict__.get("array") if type(data) is ArrayData else None


def text_of(data: Any) -> DataText | bytes | None:
    """Return the JSON text that an ArrayData was read from, or None for any other data."""
    return data.__dict__.get("source") if type(data) is ArrayData else None


def is_flat(text: DataText | bytes) -> bool:
    """Return whether the JSON text of a list has no nested lists.

    The result may also be False if a string contains a bracket.
    """
    return b"[" not in bytes(text)[1:]


def flat_list(data: Data, nan_as_none: bool) -> list[Any]:
    """Return the flat list that MLServer itself would have."""
    if isinstance(data, tw.BytesArray):
        return data.as_numpy().reshape(-1).tolist()
    if is_one_element(data):
        return [data.tobytes()]
    values: list[Any] = data.reshape(-1).tolist()
    if nan_as_none and data.dtype.kind == "f" and has_nan(values, data):
        return [None if value != value else value for value in values]  # noqa: PLR0124
    return values


def has_nan(values: list[float], data: Array) -> bool:
    """Return whether an array has a NaN. ``values`` are its elements."""
    # The sum is also NaN if there are infinities of both signs.
    is_short = len(values) <= SHORT_LIST
    return not (is_short and not isnan(sum(values))) and bool(np.isnan(data).any())


def is_one_element(data: Data) -> bool:
    """Return whether MLServer's list has a single element, as for arrays of kind ``S``.

    The element is the memory of the whole array.
    """
    return isinstance(data, np.ndarray) and data.dtype.kind == "S"


# --- the data of inputs and outputs --------------------------------------------------------------


def datatype_of(element: Any) -> str:
    """Return the datatype of a RequestInput or ResponseOutput, which may be unvalidated.

    Raises ValueError for a datatype that MLServer does not have.
    """
    row = ROWS.get(element.datatype)
    if row is None:
        raise ValueError(f"MLServer does not have the datatype {element.datatype!r}")
    return row.name


def numeric_array(element: Any) -> Array | None:
    """Return the array of an input or output, in any shape.

    Returns None if there is no array, or if its dtype is not that of the datatype.
    """
    data = array_of(element.data)
    if not isinstance(data, np.ndarray):
        return None
    row = ROWS.get(element.datatype)
    return data if row is not None and row.dtype == data.dtype else None


def array_from_list(values: Any, datatype: str, shape: list[int]) -> Array | None:
    """Convert a flat list of numbers. Returns None if MLServer has to convert or reject it.

    The struct module, which MLServer uses, checks and converts the numbers.
    """
    dtype = DATATYPES[datatype].dtype
    if not isinstance(values, list) or dtype is None or len(values) != prod(shape):
        return None
    if dtype.char == "?":  # struct converts all objects to bool
        return None
    try:
        return np.frombuffer(struct.pack(f"{len(values)}{dtype.char}", *values), dtype)
    except (struct.error, TypeError, ValueError, OverflowError):
        return None


def to_tensor(element: Any, is_binary: bool) -> tw.Tensor:
    """Convert an input or output to a Tensor, without a copy if it has an array.

    Raises EncodeError and TypeError.
    """
    datatype: Any = datatype_of(element)  # a str, which `Tensor` checks
    data: Any = array_of(element.data)
    if data is None:
        values = getattr(element.data, "root", element.data)
        if not isinstance(values, list | np.ndarray):
            data = [values]  # MLServer treats such a value as the only element
        else:
            numbers = array_from_list(values, datatype, element.shape)
            data = values if numbers is None else numbers
    parameters = element.parameters.model_dump() if element.parameters else None
    return tw.Tensor(
        element.name,
        data,
        datatype=datatype,
        shape=element.shape,
        parameters=parameters,
        binary=is_binary,
    )


def copy_payload(payload: Any) -> Data | None:
    """Copy the data that a model passes to a codec. The copy is read-only and flat.

    Returns None if MLServer has to convert or reject the data.

    The copy is necessary because the model may change the array before the response is sent. It is
    a bytes object, which becomes raw gRPC contents without another copy.
    """
    if type(payload) is not np.ndarray:
        return None
    dtype = payload.dtype
    if dtype in DATATYPES_BY_DTYPE or (dtype.kind == "S" and dtype.itemsize):
        return np.frombuffer(payload.tobytes(), dtype)
    return pack_texts(payload) if dtype.kind == "U" else None


def pack_texts(texts: Any) -> tw.BytesArray | None:
    """Convert text to a BytesArray. Returns None if MLServer has to reject it."""
    try:
        packed = tw.Tensor("", texts, datatype="BYTES").data
    except (TensorwireError, TypeError):
        return None
    assert isinstance(packed, tw.BytesArray)
    return packed


def encode_texts(texts: list[Any]) -> TensorData | None:
    """Convert a list of text. Returns None if MLServer has to convert or reject it."""
    if len(texts) <= SHORT_TEXTS:
        with suppress(AttributeError, UnicodeEncodeError):  # bytes, or text that MLServer rejects
            return list_data([text.encode("utf-8") for text in texts])
    packed = pack_texts(texts)
    if packed is None or packed.shape != (len(texts),):
        return None
    return ArrayData.from_array(packed)


def list_data(values: list[Any]) -> TensorData:
    """Create a TensorData of a list."""
    made = TensorData.__new__(TensorData)
    made.__dict__["root"] = values
    set_fields(made, {"root"})
    return made


def list_array(element: Any) -> Array | None:
    """Convert the list of an input or output to an array, as MLServer's NumpyCodec does.

    Returns None for BYTES and unknown datatypes.
    """
    row = ROWS.get(element.datatype)
    if row is None or row.dtype is None:
        return None
    values = getattr(element.data, "root", element.data)
    return np.array(values, row.dtype).reshape(element.shape)


def texts_of_list(values: list[Any]) -> list[Any]:
    """Decode the elements of a list, as MLServer's StringCodec does."""
    return [
        value
        if type(value) is str
        else value.decode()
        if type(value) is bytes
        else decode_str(value)
        for value in values
    ]


def response_output(
    name: str, datatype: str, shape: list[int], data: TensorData, content_type: str
) -> ResponseOutput:
    """Create a ResponseOutput from valid values."""
    parameters = construct(
        Parameters, {"content_type": content_type, "headers": None}, {"content_type"}, {}
    )
    members = {
        "name": name, "shape": shape, "datatype": datatype, "parameters": parameters, "data": data,
    }  # fmt: skip
    made: ResponseOutput = construct(ResponseOutput, members, set(members))
    return made


# --- raw gRPC contents ---------------------------------------------------------------------------


def view_raw_data(element: Any, raw: bytes | memoryview) -> Data:
    """Return raw contents as the data of an input or output. Raises MLServerError (status 400).

    The number of BYTES elements may differ from the shape, because MLServer's NumpyCodec sends all
    elements as a single one.
    """
    try:
        datatype = known_datatype(element)
        if datatype == "BYTES":
            return tw.decode_bytes(raw)
        data = view_tensor(raw, element.name, datatype, tuple(element.shape), RAW_LIMITS).data
    except TensorwireError as error:
        name_tensor(error, "tensor", element.name)
        raise mlserver_error(error) from error
    assert data is not None
    return data


def known_datatype(element: Any) -> str:
    """Return the datatype of an input or output. Raises LayoutError."""
    try:
        return datatype_of(element)
    except ValueError:
        raise LayoutError(
            f"{format_subject('tensor', element.name)} has the datatype "
            f"{str(element.datatype)[:40]!r}, which MLServer does not support; it supports "
            f"{', '.join(Datatype.__members__)}",
            tensor=element.name,
        ) from None


def array_bytes(array: Array) -> bytes:
    """Return the elements in binary form, without a copy if they are those of a bytes object."""
    base: Any = array.base
    if type(base) is bytes and len(base) == array.nbytes and array.flags.c_contiguous:
        return base
    return array.tobytes()


def list_raw_data(element: Any, raw: bytes | memoryview) -> list[Any]:
    """Return raw contents as a flat list. Raises MLServerError (status 400)."""
    is_bytes = element.datatype == "BYTES" and len(raw) >= 4
    if is_bytes and int.from_bytes(raw[:4], "little") == len(raw) - 4:  # a single element
        return [bytes(raw[4:])]  # MLServer's codecs accept bytes, but no memoryview
    if len(raw) <= SHORT_RAW_NBYTES:
        letter, itemsize = STRUCT_FORMATS.get(element.datatype, ("", 0))
        shape = element.shape
        n_elements = prod(shape)
        is_whole = itemsize > 0 and n_elements * itemsize == len(raw)
        # Two negative dimensions may have a product that matches.
        if is_whole and (len(shape) == 1 or all(length >= 0 for length in shape)):
            return list(struct.unpack(f"{n_elements}{letter}", raw))
    return flat_list(view_raw_data(element, raw), nan_as_none=False)


def pack_list(element: Any) -> bytes | None:
    """Convert the list of an input or output to raw contents.

    Returns None if MLServer has to convert or reject it. Raises struct.error, as MLServer does.
    """
    values, row = getattr(element.data, "root", element.data), ROWS.get(element.datatype)
    if row is None:
        return None
    if row.dtype is not None:
        return struct.pack(f"{prod(element.shape)}{row.dtype.char}", *values)
    try:
        return tw.encode_bytes(values) if type(values) is list else None
    except (TensorwireError, TypeError):
        return None


# --- requests ------------------------------------------------------------------------------------


def to_inference_request(request: tw.InferRequest) -> InferenceRequest:
    """Convert a request without copying its tensors. Raises MLServerError with status 400."""
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
    """Convert a tensor of a request with a header length. Raises MLServerError."""
    if tensor.datatype not in MLSERVER_DATATYPES:
        raise unsupported(
            tensor,
            f"has the datatype {tensor.datatype}, which MLServer does not support; it supports "
            f"{', '.join(Datatype.__members__)}",
        )
    if tensor.data is None:
        raise unsupported(tensor, "is in shared memory, which MLServer does not support")
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


def unsupported(tensor: tw.Tensor, problem: str) -> Exception:
    """Return the MLServerError for an input that MLServer does not support."""
    message = f"{format_subject('input', tensor.name)} {problem}"
    return mlserver_error(LayoutError(message, tensor=tensor.name))


def to_request_output(output: tw.RequestedOutput) -> RequestOutput:
    """Convert a requested output. Its ``binary`` becomes the parameter ``binary_data``."""
    parameters = plain(output.parameters)
    if output.binary is not None:
        parameters["binary_data"] = output.binary
    if not parameters:
        return RequestOutput(name=output.name)
    return RequestOutput(name=output.name, parameters=parameters)


def to_parameters(parameters: Mapping[str, Any]) -> Parameters | None:
    """Convert parameters. Returns None if there are none."""
    return Parameters.model_validate(plain(parameters)) if parameters else None


def read_json_request(body: bytes) -> InferenceRequest | None:
    """Read a request that is entirely JSON. Returns None if MLServer has to read it.

    MLServer reads all requests that it may interpret differently or reject with its own error.
    These are malformed requests, and requests whose JSON data does not match its datatype and
    shape: a codec of MLServer may convert such data.
    """
    try:
        request = tw.decode_request(body, limits=JSON_LIMITS)
    except DecodeError:
        return None
    if not are_readable(request, body):
        return None
    header = Header(body, len(body), b"inputs")
    inputs = enumerate(request.inputs)
    try:
        members: dict[str, Any] = {
            "inputs": [json_request_input(tensor, DataText(header, i)) for i, tensor in inputs]
        }
        if request.id is not None:
            members["id"] = request.id
        if request.parameters:
            members["parameters"] = plain(request.parameters)
        if request.outputs is not None:
            members["outputs"] = [to_request_output(output) for output in request.outputs]
        return InferenceRequest(**members)
    except ValidationError:
        return None


def are_readable(request: tw.InferRequest, body: bytes) -> bool:
    """Return whether all data is JSON that MLServer would convert to the same arrays."""
    for tensor in request.inputs:
        if tensor.data is None or tensor.binary or tensor.datatype not in MLSERVER_DATATYPES:
            return False
    parameters = [request.parameters, *(tensor.parameters for tensor in request.inputs)]
    parameters += [output.parameters for output in request.outputs or ()]
    if not all(map(has_64_bit_integers, parameters)):
        return False
    # MLServer accepts null, but neither NaN nor Infinity. This codec reads all three as non-finite
    # numbers, so only the text distinguishes them. Searching a short body is faster than checking
    # its arrays. Searching for one letter is faster than searching for a word, and most bodies have
    # neither letter.
    if len(body) > SHORT_BODY_NBYTES and all(map(is_finite, request.inputs)):
        return True
    return (b"N" not in body or b"NaN" not in body) and (
        b"I" not in body or b"Infinity" not in body
    )


def is_finite(tensor: tw.Tensor) -> bool:
    """Return whether a tensor has no NaN and no infinity."""
    data = tensor.data
    if not isinstance(data, np.ndarray) or data.dtype.kind != "f":
        return True
    return bool(np.isfinite(data).all())


def has_64_bit_integers(value: Any) -> bool:
    """Return whether all integers in a JSON value fit 64 bits, so that all readers agree on it."""
    if isinstance(value, Mapping):
        return all(map(has_64_bit_integers, value.values()))
    if isinstance(value, tuple):
        return all(map(has_64_bit_integers, value))
    return type(value) is not int or value in ORJSON_INTEGERS


def json_request_input(tensor: tw.Tensor, text: DataText) -> RequestInput:
    """Create the RequestInput of a JSON tensor. Only its parameters still need validation."""
    assert tensor.data is not None
    members: dict[str, Any] = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "datatype": tensor.datatype,
        "parameters": to_parameters(tensor.parameters),
        "data": ArrayData.from_array(tensor.data, source=text),
    }
    fields = {"name", "shape", "datatype", "data"}
    if tensor.parameters:
        fields.add("parameters")
    request_input: RequestInput = construct(RequestInput, members, fields)
    return request_input


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


def write_response(
    response: InferenceResponse, is_binary: Callable[[str], bool]
) -> tw.Frame | None:
    """Write a response with all outputs of the model as a Frame. Raises EncodeError.

    Returns None if no output is binary.
    """
    if not any(is_binary(output.name) for output in response.outputs):
        return None
    try:
        outputs = [to_tensor(output, is_binary(output.name)) for output in response.outputs]
    except TypeError as error:
        raise EncodeError(str(error)) from error
    return tw.encode_response(
        tw.InferResponse(
            outputs,
            model_name=response.model_name,
            model_version=response.model_version,
            id=response.id,
            parameters=response.parameters.model_dump() if response.parameters else None,
        ),
        limits=JSON_LIMITS,
    )


def write_json_response(response: InferenceResponse) -> bytes | None:
    """Write a response as JSON text.

    Returns None if it has no arrays, or if MLServer has to write it.
    """
    if not any(has_json_writer(output.data) for output in response.outputs):
        return None
    tree = response.model_dump(mode="json", exclude={"outputs": {"__all__": {"data"}}})
    for entry in (tree, *tree["outputs"]):
        if "parameters" in entry:  # may have values of any type
            entry["parameters"] = orjson.Fragment(encode_to_json_bytes(entry["parameters"]))
    try:
        for entry, output in zip(tree["outputs"], response.outputs, strict=True):
            entry["data"] = json_data(output)
        text: bytes = orjson.dumps(tree, option=orjson.OPT_SERIALIZE_NUMPY)
        return text
    except (TensorwireError, TypeError):
        return None


def json_data(output: ResponseOutput) -> Any:
    """Return the data of an output for orjson, which writes NaN and infinities as null.

    Raises ElementError for BYTES that are not valid UTF-8.
    """
    data = array_of(output.data) if has_json_writer(output.data) else None
    if isinstance(data, tw.BytesArray):
        return data.as_strings().reshape(-1).tolist()
    if data is not None:
        return flat_numbers(data)
    dumped = output.model_dump(mode="json", include={"data"})
    return orjson.Fragment(encode_to_json_bytes(dumped["data"]))


def has_json_writer(data: Any) -> bool:
    """Return whether ``json_data`` is the same for the data as in MLServer, but takes less time."""
    found = array_of(data)
    if isinstance(found, tw.BytesArray):
        return text_of(data) is None
    return has_numbers(found)
