"""Convert between the messages and tensors of KServe and those of tensorwire.

Messages are read into lazy tensors, which keep the received array until their list is used.
Messages are written from received arrays, from arrays that a model has set, or from lists. Arrays
are converted to lists only for JSON that KServe itself writes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, ClassVar

import numpy as np
import orjson
from kserve import InferInput, InferOutput
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol.infer_type import RequestedOutput, to_http_parameters
from kserve.utils.numpy_codec import from_np_dtype
from numpy.typing import NDArray

from ..._codec.bytes_array import BytesArray, decode_bytes
from ..._codec.bytes_writer import all_plain
from ..._codec.conversion import encode_bytes
from ..._codec.datatypes import BY_DTYPE, RAW_BF16, Limits, bf16_dtype
from ..._codec.decoder import decode_request, decode_response
from ..._codec.json_reader import read_json
from ..._codec.messages import InferRequest, Tensor
from ..._codec.views import view_tensor
from ...errors import DecodeError, ElementError, EncodeError, name_tensor
from ..json_data import MAX_NESTING, DataText, Header, flat_numbers, has_numbers, plain

Array = NDArray[Any]
Buffer = bytes | memoryview
Parameters = dict[str, Any] | None
RestMessage = tuple[bytes | dict[str, Any], int | None]
"""The result of KServe's ``to_rest``: the body and its header length, or the JSON tree and None."""

NO_LIMIT = 2**63 - 1
FEW_ELEMENTS = 4  # the compiled writer takes longer for this many, because of its fixed cost
NOT_IN_JSON = ("FP16", "BF16")
SCALARS = (str, bool, int, float)


@dataclass(frozen=True)
class Options:
    """The options of ``install``."""

    writable: bool = False
    aligned: bool = False
    bf16_as_uint16: bool = False
    follow_request: bool = True

    @cached_property
    def limits(self) -> Limits:
        """Return the limits for bodies with a header length."""
        return Limits(max_parameters=NO_LIMIT, bf16_as_uint16=self.bf16_as_uint16)

    @cached_property
    def json_limits(self) -> Limits:
        """Return the limits for bodies that are entirely JSON. KServe does not limit their size.

        KServe itself reads a body that exceeds one of the other limits.
        """
        return Limits(
            max_header_nbytes=NO_LIMIT,
            max_parameters=NO_LIMIT,
            max_tensors=NO_LIMIT,
            max_name_nbytes=NO_LIMIT,
            bf16_as_uint16=self.bf16_as_uint16,
        )


# --- lazy tensors --------------------------------------------------------------------------------


class LazyTensor:
    """An InferInput or InferOutput that keeps the received array until its list is used.

    The first access to ``data`` builds the list, and releases the array and the body. After that,
    the list is authoritative. Assigning ``data`` also releases the array.
    """

    kind: ClassVar[str]  # "input" or "output"
    kserve_class: ClassVar[Any]

    _tensor: Tensor | None = None
    _text: DataText | None = None  # the JSON text of the data; None for binary data
    _list: Any = None
    _options: Options

    @classmethod
    def from_tensor(
        cls, tensor: Tensor, text: DataText | None, parameters: Parameters, options: Options
    ) -> Any:
        """Create a lazy tensor. ``text`` is that of JSON data, or None for binary data."""
        lazy: Any = cls(tensor.name, list(tensor.shape), tensor.datatype, parameters=parameters)  # type: ignore[call-arg]
        lazy._tensor = tensor
        lazy._text = text
        lazy._options = options
        return lazy

    # KServe's classes, and other code that accesses their attributes, keep the data in `_data`.
    @property
    def _data(self) -> Any:
        # Read the text before the tensor, and release it after the tensor: if another thread builds
        # the list at the same time, this thread sees either both of them or no tensor.
        text, tensor = self._text, self._tensor
        if tensor is not None:
            self._list = build_list(tensor, text)
            self._tensor = None
            self._text = None
        return self._list

    @_data.setter
    def _data(self, data: Any) -> None:
        self._list = data
        self._tensor = None
        self._text = None

    def as_numpy(self) -> Array:
        """Return the data as an array in ``shape``.

        For numeric binary data, this is a view of the body, or a copy if the options require one.
        For JSON data and BYTES, each call returns a new array.
        """
        text, tensor = self._text, self._tensor  # in this order, as in `_data`
        if tensor is None:
            from_list: Array = super().as_numpy()  # type: ignore[misc]
            return from_list
        if isinstance(tensor.data, BytesArray):
            array = text_array(tensor.data)
        elif text is not None:
            array = tensor.as_numpy().copy()
        else:
            array = tensor.as_numpy(aligned=self._options.aligned, writable=self._options.writable)
        shaped: Array = reshape(array, self._shape)  # type: ignore[attr-defined]
        return shaped


class LazyInput(LazyTensor, InferInput):  # type: ignore[misc]
    """An input of a request."""

    kind = "input"
    kserve_class = InferInput


class LazyOutput(LazyTensor, InferOutput):  # type: ignore[misc]
    """An output of a response."""

    kind = "output"
    kserve_class = InferOutput


def received_tensor(tensor: Any) -> Tensor | None:
    """Return the received Tensor of a lazy tensor whose list is not built, otherwise None."""
    return tensor._tensor if isinstance(tensor, LazyTensor) else None


def build_list(tensor: Tensor, text: DataText | None) -> Any:
    """Build the list that KServe itself would build.

    For binary data it is flat, and its BYTES are ``str``, or all ``bytes`` if one is not UTF-8. For
    JSON data it has the nesting that was sent.
    """
    if text is not None:
        return parse_list(text)
    data = tensor.data
    return flat_list(text_array(data) if isinstance(data, BytesArray) else tensor.as_numpy())


def parse_list(text: DataText) -> Any:
    """Return the value of JSON text that was validated as the data of a tensor."""
    try:
        return read_json(bytes(text), MAX_NESTING)
    except DecodeError:  # NaN or Infinity, which are accepted only in the data of FP32 and FP64
        return json.loads(bytes(text))


# --- read a message ------------------------------------------------------------------------------


def read_request(
    cls: type[Any], body: Any, header_length: int, model_name: str, options: Options
) -> Any:
    """Create an InferRequest with lazy inputs from a body. Raises InvalidInput."""
    try:
        request = decode_request(body, header_length, limits=options.limits)
    except DecodeError as error:
        raise InvalidInput(str(error)) from error
    return cls(
        model_name=model_name,
        request_id=request.id,
        parameters=plain(request.parameters) or None,
        infer_inputs=lazy_tensors(
            LazyInput, request.inputs, body, header_length, model_name, options
        ),
        request_outputs=requested_outputs(request),
        model_version=request.model_version,
    )


def read_response(cls: type[Any], body: Any, header_length: int, options: Options) -> Any:
    """Create an InferResponse with lazy outputs from a body. Raises InvalidInput."""
    try:
        response = decode_response(body, header_length, limits=options.limits)
    except DecodeError as error:
        raise InvalidInput(str(error)) from error
    name = response.model_name
    return cls(
        model_name=name,
        model_version=response.model_version,
        response_id=response.id,
        parameters=plain(response.parameters) or None,
        infer_outputs=lazy_tensors(
            LazyOutput, response.outputs, body, header_length, name, options
        ),
    )


def lazy_tensors(
    lazy_class: type[LazyTensor],
    tensors: tuple[Tensor, ...],
    body: Any,
    header_length: int,
    model_name: str | None,
    options: Options,
) -> list[Any]:
    """Create the lazy tensors of a message. Raises InvalidInput for a tensor in shared memory."""
    for tensor in tensors:
        if tensor.data is None:
            raise missing_data(lazy_class.kind, tensor.name, model_name)
    header = Header(body, header_length, lazy_class.kind.encode() + b"s")
    return [
        lazy_class.from_tensor(
            tensor,
            None if tensor.binary else DataText(header, index),
            plain(tensor.parameters) or ({} if tensor.binary else None),  # as in KServe
            options,
        )
        for index, tensor in enumerate(tensors)
    ]


def requested_outputs(request: InferRequest) -> list[RequestedOutput] | None:
    """Convert requested outputs to KServe's, whose parameters include ``binary_data``."""
    if request.outputs is None:
        return None
    converted = []
    for output in request.outputs:
        parameters = plain(output.parameters)
        if output.binary is not None:
            parameters["binary_data"] = output.binary
        converted.append(RequestedOutput(output.name, parameters or None))
    return converted


def read_json_request(body: bytes, options: Options) -> InferRequest | None:
    """Read a request that is entirely JSON. Returns None if KServe has to read it.

    KServe reads all requests that it may interpret differently or reject with its own error. These
    are malformed requests, and requests whose JSON data does not match its datatype and shape:
    KServe lets numpy convert such data.
    """
    try:
        request = decode_request(body, limits=options.json_limits)
    except DecodeError:
        return None
    for tensor in request.inputs:
        if tensor.data is None or tensor.binary or not are_scalars(tensor.parameters):
            return None
    found = [request.parameters, *(output.parameters for output in request.outputs or ())]
    return request if all(map(are_scalars, found)) else None


def are_scalars(parameters: Mapping[str, Any]) -> bool:
    """Return whether KServe accepts these parameters in JSON: no list, object or null."""
    return all(type(value) in SCALARS for value in parameters.values())


def to_infer_request(
    cls: type[Any], request: InferRequest, body: bytes, model_name: str, options: Options
) -> Any:
    """Create an InferRequest with lazy inputs, as KServe's ``from_inference_request`` does."""
    inputs = lazy_tensors(LazyInput, request.inputs, body, len(body), model_name, options)
    outputs = requested_outputs(request) or None
    for each in (*inputs, *(outputs or ())):
        each.parameters = each.parameters or {}
    return cls(
        request_id=request.id,
        model_name=model_name,
        infer_inputs=inputs,
        parameters=plain(request.parameters) or None,
        request_outputs=outputs,
    )


# --- write a message -----------------------------------------------------------------------------


def write_request(request: Any) -> RestMessage:
    """Write a request as ``InferRequest.to_rest`` does. Raises InvalidInput.

    Inputs whose data was set in binary form are sent as binary data.
    """
    entries, buffers = [], []
    for tensor in request.inputs:
        raw = tensor._raw_data
        data = tensor._data if type(tensor) is InferInput else list_to_send(tensor)
        if isinstance(data, np.ndarray):
            set_data(tensor, data, False)
            data, raw = tensor._data, None
        if data:
            if raw:
                raise InvalidInput(
                    f"Both 'data' and 'raw_data' fields are set for input '{tensor.name}' for "
                    f"model '{request.model_name}'"
                )
            if tensor._datatype in NOT_IN_JSON:
                raise not_in_json("input", tensor)
        elif raw is not None:
            buffers.append(raw)
            entries.append(tensor_entry(tensor, len(raw), None))
            continue
        elif data is None:
            raise missing_data("input", tensor.name, request.model_name)
        entries.append(tensor_entry(tensor, None, data))
    tree: dict[str, Any] = {
        "id": request.id or str(uuid.uuid4()),
        "model_name": request.model_name,
        "inputs": entries,
    }
    if request.request_outputs:
        tree["outputs"] = [requested_output_entry(output) for output in request.request_outputs]
    if request.parameters:
        tree["parameters"] = to_http_parameters(request.parameters)
    return join(tree, buffers)


def write_response(response: Any, options: Options) -> RestMessage:
    """Write a response as ``InferResponse.to_rest`` does. The request determines what is binary.

    Data that was received or set in binary form is not converted. Raises InvalidInput, and
    InferenceError for an output whose data does not match its datatype and shape.
    """
    entries, buffers = [], []
    for tensor, is_binary in select_outputs(response, options):
        check_has_data(tensor, response)
        if is_binary:
            buffer = output_buffer(tensor, options)
            buffers.append(buffer)
            entries.append(tensor_entry(tensor, len(buffer), None))
            continue
        data = to_json_list(output_array(tensor))
        if data and tensor.datatype in NOT_IN_JSON:
            raise not_in_json("output", tensor)
        entries.append(tensor_entry(tensor, None, data))
    tree = {
        "id": response.id,
        "model_name": response.model_name,
        "model_version": response.model_version,
        "outputs": entries,
    }
    if response.parameters:
        tree["parameters"] = to_http_parameters(response.parameters)
    return join(tree, buffers)


def write_json_response(response: Any, options: Options) -> bytes | None:
    """Write the JSON text that KServe's REST endpoint sends if no output is binary.

    Returns None if an output is binary, or if the endpoint would convert or reject a part of the
    response, such as NaN or an infinity. Raises the same errors as ``write_response``.
    """
    entries = []
    for tensor, is_binary in select_outputs(response, options):
        if is_binary:
            return None
        check_has_data(tensor, response)
        array = output_array(tensor)
        if array.size and tensor.datatype in NOT_IN_JSON:
            raise not_in_json("output", tensor)
        data = flat_numbers(array) if has_numbers(array) else to_json_list(array)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return None
        parameters = to_http_parameters(tensor.parameters) if tensor.parameters else {}
        parameters.pop("binary_data_size", None)
        if not (type(tensor.name) is str and are_ints(tensor.shape) and are_sent_as_is(parameters)):
            return None
        entries.append(
            {
                "name": tensor.name,
                "shape": tensor.shape,
                "datatype": tensor.datatype,
                "parameters": parameters or None,
                "data": data,
            }
        )
    parameters = to_http_parameters(response.parameters) if response.parameters else None
    version = response.model_version
    if not (
        type(response.id) is str
        and type(response.model_name) is str
        and (version is None or type(version) is str)
        and are_sent_as_is(parameters)
    ):
        return None
    tree = {
        "model_name": response.model_name,
        "model_version": version,
        "id": response.id,
        "parameters": parameters,
        "outputs": entries,
    }
    try:
        text: bytes = orjson.dumps(tree, option=orjson.OPT_SERIALIZE_NUMPY)
        return text
    except TypeError:
        return None


def are_ints(shape: Any) -> bool:
    """Return whether a shape is a list of int."""
    return type(shape) is list and all(type(dim) is int for dim in shape)


def are_sent_as_is(parameters: Parameters) -> bool:
    """Return whether KServe's endpoint sends these parameters without converting them."""
    return not parameters or all(
        type(key) is str
        and type(value) in SCALARS
        and not (type(value) is float and not isfinite(value))
        for key, value in parameters.items()
    )


def select_outputs(response: Any, options: Options) -> list[tuple[Any, bool]]:
    """Return the outputs to send, each with a flag: whether it is binary.

    A listed output without ``binary_data`` follows ``binary_data_output`` (WIRE.md 7). In KServe
    itself, and without the option ``follow_request``, it is JSON.
    """
    default = response._use_binary_outputs
    if not response._requested_outputs:
        return [(output, default) for output in response.outputs]
    if not options.follow_request:
        default = False
    found = []
    for requested in response._requested_outputs:
        output = response.get_output_by_name(requested.name)
        if output is None:
            raise InvalidInput(
                f"Unexpected inference output '{requested.name}' for model '{response.model_name}'"
            )
        is_binary = requested.binary_data
        found.append((output, default if is_binary is None else is_binary))
    return found


def check_has_data(tensor: Any, response: Any) -> None:
    """Raise InvalidInput for an output without data."""
    if tensor._raw_data is None and received_tensor(tensor) is None and tensor.data is None:
        raise missing_data("output", tensor.name, response.model_name)


def tensor_entry(tensor: Any, nbytes: int | None, data: Any) -> dict[str, Any]:
    """Return the JSON entry of a tensor: with ``data`` if ``nbytes`` is None, else binary."""
    name, shape, datatype = tensor._name, tensor._shape, tensor._datatype
    parameters = tensor._parameters
    if not parameters:
        if nbytes is None:
            return {"name": name, "shape": shape, "datatype": datatype, "data": data}
        parameters = {"binary_data_size": nbytes}
    else:
        parameters = to_http_parameters(parameters)
        if nbytes is None:
            parameters.pop("binary_data_size", None)
        else:
            parameters["binary_data_size"] = nbytes
    entry = {"name": name, "shape": shape, "datatype": datatype}
    if parameters:
        entry["parameters"] = parameters
    if nbytes is None:
        entry["data"] = data
    return entry


def requested_output_entry(output: Any) -> dict[str, Any]:
    """Return the JSON entry of a requested output."""
    if not output.parameters:
        return {"name": output.name}
    return {"name": output.name, "parameters": to_http_parameters(output.parameters)}


def join(tree: dict[str, Any], buffers: list[Buffer]) -> RestMessage:
    """Join the JSON and the buffers of the binary tensors, if there are any."""
    if not buffers:
        return tree, None
    text = orjson.dumps(tree)
    return b"".join([text, *buffers]), len(text)


def missing_data(kind: str, name: str, model_name: str | None) -> Exception:
    """Return KServe's error for a tensor without data."""
    error: Exception = InvalidInput(
        f"'data' field is missing for {kind} '{name}' for model '{model_name}'"
    )
    return error


def not_in_json(kind: str, tensor: Any) -> Exception:
    """Return KServe's error for a tensor whose datatype has no JSON form."""
    error: Exception = InvalidInput(
        f"Sending {tensor.datatype} data via JSON is not supported. Please use the binary data "
        f"format for {kind} {tensor.name}"
    )
    return error


# --- the data of any tensor ----------------------------------------------------------------------


def list_to_send(tensor: Any) -> Any:
    """Return the ``data`` of a tensor, without releasing the array of a lazy tensor.

    Raises InferenceError if binary BYTES that are to be sent as JSON are not UTF-8.
    """
    received = received_tensor(tensor)
    if received is None:
        return tensor.data
    if tensor._text is None:
        return to_json_list(received.as_numpy())
    return parse_list(tensor._text)


def output_array(tensor: Any) -> Array:
    """Return the array of an output, in its shape.

    Raises InferenceError if an array that the model has set does not match the datatype and shape.
    """
    received = received_tensor(tensor)
    if received is not None:
        shaped: Array = reshape(received.as_numpy(), tensor.shape)
        return shaped
    array = tensor.data
    if isinstance(array, np.ndarray):
        check_array(tensor, array)
        return array
    converted: Array = tensor.as_numpy()
    return converted


def output_buffer(tensor: Any, options: Options) -> Buffer:
    """Return the bytes of an output that is sent binary, copied only if necessary.

    Raises InferenceError if its data does not match its datatype and shape.
    """
    received = received_tensor(tensor)
    if received is not None:
        data = reshape(received.data, tensor.shape)
        return data.wire if isinstance(data, BytesArray) else array_buffer(data)
    array = tensor.data
    if isinstance(array, np.ndarray):
        check_array(tensor, array)
        return array_buffer(array)
    if tensor._raw_data is not None:
        check_raw_data(tensor, options)
        raw_data: Buffer = tensor._raw_data
        return raw_data
    return array_buffer(tensor.as_numpy())


def view_raw_data(tensor: Any, options: Options) -> Tensor:
    """Return a view of ``_raw_data``: raw gRPC contents, or the bytes of a binary tensor.

    Raises DecodeError if datatype, shape and bytes do not match.
    """
    try:
        return view_tensor(
            tensor._raw_data, tensor.name, tensor.datatype, tuple(tensor.shape), options.limits
        )
    except DecodeError as error:
        name_tensor(error, "input" if isinstance(tensor, InferInput) else "output", tensor.name)
        raise


def check_raw_data(tensor: Any, options: Options) -> None:
    """Raise InferenceError if datatype, shape and ``_raw_data`` do not match."""
    try:
        view_raw_data(tensor, options)
    except DecodeError as error:
        raise InferenceError(str(error)) from error


def raw_data_array(tensor: Any, options: Options) -> Array:
    """Return ``_raw_data`` as an array. BYTES elements are ``bytes``, as in KServe over gRPC.

    Raises DecodeError if datatype, shape and bytes do not match.
    """
    found = view_raw_data(tensor, options)
    if isinstance(found.data, BytesArray):
        return found.data.as_numpy()
    return found.as_numpy(aligned=options.aligned, writable=options.writable)


def shallow_copy(value: Any) -> Any:
    """Do what `copy.copy` does for an object of KServe, in a fifth of its time."""
    made = object.__new__(type(value))
    made.__dict__.update(value.__dict__)
    return made


def set_data(tensor: Any, array: Any, binary_data: bool) -> None:
    """Set the data of a tensor to the bytes of an array or, if not ``binary_data``, to a list.

    Raises InferenceError if the array does not match the datatype and shape of the tensor.
    """
    if not isinstance(array, np.ndarray):
        raise InferenceError("input_tensor must be a numpy array")
    check_array(tensor, array)
    if not binary_data:
        if tensor.parameters:
            tensor.parameters.pop("binary_data_size", None)
        tensor._raw_data = None
        tensor._data = to_json_list(array)
        return
    tensor._data = None
    tensor._raw_data = pack_bytes(array) if array.dtype.kind in "OSUM" else array.tobytes()
    if tensor.parameters is None:
        tensor.parameters = {}
    tensor.parameters["binary_data_size"] = len(tensor._raw_data)


def check_array(tensor: Any, array: Array) -> None:
    """Raise KServe's InferenceError if an array does not match the tensor's datatype and shape."""
    datatype = datatype_of(array.dtype)
    is_raw_bf16 = tensor.datatype == "BF16" and array.dtype == RAW_BF16
    if tensor.datatype != datatype and not is_raw_bf16:
        raise InferenceError(
            f"got unexpected datatype {datatype} from numpy array, expected {tensor.datatype}"
        )
    if list(array.shape) != list(tensor.shape):
        raise InferenceError(
            f"got unexpected numpy array shape [{str(array.shape)[1:-1]}], "
            f"expected [{str(tensor.shape)[1:-1]}]"
        )


# --- arrays --------------------------------------------------------------------------------------


def reshape(data: Any, shape: list[int]) -> Any:
    """Return an array or BytesArray in a shape, which a program may have changed.

    Raises ValueError if the number of elements differs.
    """
    wanted = tuple(shape)
    return data if data.shape == wanted else data.reshape(wanted)


def text_array(elements: BytesArray) -> Array:
    """Return BYTES as an array of ``str``, or of ``bytes`` if any element is not UTF-8."""
    try:
        return elements.as_strings()
    except ElementError:
        return elements.as_numpy()


def flat_list(array: Array) -> list[Any]:
    """Return the elements as Python objects, in row-major order."""
    if array.dtype.kind == "V":  # bfloat16 of ml_dtypes, whose tolist() does not return floats
        array = array.astype(np.float32)
    elements: list[Any] = array.ravel().tolist()
    return elements


def to_json_list(array: Array) -> list[Any]:
    """Return the elements as JSON values. Raises InferenceError for BYTES that are not UTF-8."""
    if array.dtype.kind == "M":
        array = array.astype(object)
    is_bytes = array.dtype.kind in "OSU"
    if isinstance(array, np.ma.MaskedArray):  # masked elements are written as KServe writes them
        array = array.data if is_bytes else array.filled(0)
    if not is_bytes:
        return flat_list(array)
    elements = array.ravel().tolist()
    try:
        return [v.decode() if isinstance(v, bytes) else str(v) for v in elements]
    except UnicodeDecodeError as error:
        raise InferenceError(
            f'Failed to encode "{error.object!r}" using UTF-8. Please use binary_data=True, if'
            " you want to pass a byte array."
        ) from error


def array_buffer(array: Array) -> Buffer:
    """Return the elements in binary form, as a view of the array if it is contiguous."""
    if array.dtype.kind in "OSUM":
        return pack_bytes(array)
    if type(array).tobytes is not np.ndarray.tobytes:  # masked arrays have their own
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def pack_bytes(array: Array) -> bytes:
    """Serialize BYTES. Elements that are neither bytes nor text are converted with ``str()``."""
    if array.size <= FEW_ELEMENTS and type(array) is np.ndarray and array.dtype.kind == "O":
        parts: list[bytes] = []
        try:
            for element in array.ravel().tolist():
                text = element if isinstance(element, bytes) else str(element).encode()
                parts += (len(text).to_bytes(4, "little"), text)
            return b"".join(parts)
        except OverflowError:  # an element of 4 GiB: the error is raised below
            del parts
    if array.dtype.kind not in "MO":
        return encode_bytes(array)
    elements = np.require(array, object, ["C", "A", "E"])
    with suppress(EncodeError):  # an unpaired surrogate: Python's own error is raised below
        if all_plain(elements):
            return encode_bytes(elements)
    return encode_bytes(
        [v if isinstance(v, bytes) else str(v).encode() for v in elements.ravel().tolist()]
    )


def serialize_byte_tensor(array: Array) -> Array:
    """Serialize BYTES to an object array without dimensions, as KServe does."""
    if array.size == 0:
        return np.empty([0], dtype=object)
    if array.dtype.kind not in "OSU":
        raise InferenceError("cannot serialize bytes tensor: invalid datatype")
    scalar = np.empty((), dtype=object)
    scalar[()] = pack_bytes(array)
    return scalar


def deserialize_bytes_tensor(encoded: Any) -> Array:
    """Return the elements as ``bytes`` in a new flat object array. Raises InvalidInput."""
    try:
        return decode_bytes(encoded).as_numpy()
    except DecodeError as error:
        raise InvalidInput(str(error)) from error


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """Return the datatype of a dtype, or None if it has none."""
    if (row := BY_DTYPE.get(dtype)) is not None:
        return row.name
    found: str | None = extra_datatype_of(dtype) or from_np_dtype(dtype)
    return found


def extra_datatype_of(dtype: Any) -> str | None:
    """Return the datatype of a dtype that KServe itself does not support, otherwise None.

    These are the dtypes of BF16 and, in versions before 0.21, of kind ``U`` (BYTES).
    """
    kind = getattr(dtype, "kind", None)
    if kind == "V" and dtype == bf16_dtype():
        return "BF16"
    return "BYTES" if kind == "U" else None
