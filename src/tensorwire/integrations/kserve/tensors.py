"""KServe's tensors on the wire's own bytes: lazy ones; any of them as arrays, lists, bytes."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
from kserve import InferInput, InferOutput
from kserve.errors import InferenceError, InvalidInput
from kserve.utils.numpy_codec import from_np_dtype
from numpy.typing import NDArray

from ..._codec.bytes_tensor import BytesTensor, decode_bytes
from ..._codec.bytes_writer import all_plain
from ..._codec.conversion import encode_bytes
from ..._codec.datatypes import BY_DTYPE, RAW_BF16, bf16_dtype
from ..._codec.decoder import PeerTensor, view_tensor
from ..._codec.json_reader import read_json
from ..._codec.messages import Tensor
from ...errors import DecodeError, ElementError, EncodeError
from .options import Options

Array = NDArray[Any]
Buffer = bytes | memoryview
AS_IT_IS = Options()


# --- lazy tensors ----------------------------------------------------------------------------


class OnWire:
    """An InferInput or InferOutput whose data still lies in the body that it came in.

    Binary data: ``as_numpy()`` is a view, which keeps the whole body (a copy where the options ask
    for what the view is not; a new object array for BYTES). JSON data: ``as_numpy()`` is a new
    array in each call, as in KServe. The first use of ``data`` makes the list, and releases the
    body: from then on the list is the data, and may be changed. So does setting it.
    """

    _tensor: Tensor | None = None
    _text: memoryview | bytes | None = None  # the JSON of the data
    _list: Any = None
    _options: Options

    @classmethod
    def over(cls, entry: PeerTensor, parameters: dict[str, Any] | None, options: Options) -> Any:
        """The tensor of an entry that has one."""
        made: Any = cls(entry.name, list(entry.shape), entry.datatype, parameters=parameters)  # type: ignore[call-arg]
        made._tensor = entry.tensor
        made._text = entry.text
        made._options = options
        return made

    # Where KServe's classes keep the data. They, and other code that knows of it, use this name.
    @property
    def _data(self) -> Any:
        # The text is read before the tensor, and released after it: where another thread makes the
        # list at the same time, this one has both of them, or no tensor.
        text, tensor = self._text, self._tensor
        if tensor is not None:
            self._list = self._listed(tensor, text)
            self._tensor = None
            self._text = None
        return self._list

    @_data.setter
    def _data(self, data: Any) -> None:
        self._list = data
        self._tensor = None
        self._text = None

    def _listed(self, tensor: Tensor, text: Any) -> Any:
        """The data as KServe has it: JSON as it was sent, which may be nested; else a flat list."""
        if text is None:
            return flat_list(array_of(tensor, AS_IT_IS))
        return read_list(bytes(text), self._options)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._text is not None:  # a memoryview cannot be pickled
            state["_text"] = bytes(self._text)
        return state

    def as_numpy(self) -> Array:
        """The data as an array in ``shape``; see the class for what memory it refers to."""
        tensor = self._tensor
        if tensor is None:
            listed: Array = super().as_numpy()  # type: ignore[misc]
            return listed
        array = array_of(tensor, self._options)
        if self._text is not None and array is tensor.data:
            array = array.copy()  # writable, as KServe's is, and not the next call's
        shaped: Array = reshaped(array, self._shape)  # type: ignore[attr-defined]
        return shaped


class InputOnWire(OnWire, InferInput):  # type: ignore[misc]
    """An input of a request."""


class OutputOnWire(OnWire, InferOutput):  # type: ignore[misc]
    """An output of a response."""


def read_list(text: bytes, options: Options) -> Any:
    """The value of a text that was validated: lists, numbers, strings."""
    try:
        return read_json(text, options.limits.max_nesting)
    except (
        DecodeError
    ):  # it has NaN or infinities, which only arrays of FP32 and FP64 are read with
        return json.loads(text)


def array_of(tensor: Tensor, options: Options) -> Array:
    """BYTES as ``str``, as KServe's REST has them, but ``bytes`` when one is not UTF-8."""
    if isinstance(tensor.data, BytesTensor):
        return texts(tensor.data)
    return tensor.as_numpy(aligned=options.aligned, writable=options.writable)


def flat_list(array: Array) -> list[Any]:
    """The elements as Python objects, in row-major order."""
    if array.dtype.kind == "V":  # ml_dtypes' bfloat16 would stay what it is
        array = array.astype(np.float32)
    elements: list[Any] = array.ravel().tolist()
    return elements


def texts(elements: BytesTensor) -> Array:
    """``str`` when all elements are UTF-8, else ``bytes``."""
    try:
        return elements.as_strings()
    except ElementError:
        return elements.as_numpy()


def reshaped(data: Any, shape: list[int]) -> Any:
    """An array or BytesTensor in the shape that the user may have changed; ValueError."""
    wanted = tuple(shape)
    return data if data.shape == wanted else data.reshape(wanted)


# --- any tensor of KServe --------------------------------------------------------------------


def raw_array(tensor: Any, kind: str, options: Options) -> Array:
    """The array over ``_raw_data``: gRPC raw contents, or what is to be sent.

    BYTES become ``bytes``, as gRPC has them. Raises DecodeError where datatype, shape and bytes
    disagree.
    """
    found = read_raw(tensor, kind, options)
    if isinstance(found.data, BytesTensor):
        return found.data.as_numpy()
    return found.as_numpy(aligned=options.aligned, writable=options.writable)


def read_raw(tensor: Any, kind: str, options: Options) -> Tensor:
    """``_raw_data``, checked; DecodeError."""
    raw = tensor._raw_data
    return view_tensor(raw, tensor.name, tensor.datatype, tuple(tensor.shape), kind, options.limits)


def wire_bytes(tensor: Any, options: Options) -> Buffer:
    """What stands in the body for an output that is sent binary, copied only if it must be.

    Raises InferenceError for data that is not of its datatype and shape.
    """
    if (found := on_wire(tensor)) is not None:
        data = reshaped(found.data, tensor.shape)
        return data.wire if isinstance(data, BytesTensor) else packed(data)
    array = tensor.data
    if isinstance(array, np.ndarray):
        check_array(tensor, array)
        return packed(array)
    if tensor._raw_data is not None:
        try:
            read_raw(tensor, "output", options)
        except DecodeError as error:
            raise InferenceError(str(error)) from error
        raw: Buffer = tensor._raw_data
        return raw
    return packed(tensor.as_numpy())


def json_list(tensor: Any) -> list[Any]:
    """The flat list for a tensor that is sent as JSON; InferenceError as in ``wire_bytes``."""
    return plain_list(json_array(tensor))


def json_array(tensor: Any) -> Array:
    """The array whose elements are sent as JSON; InferenceError as in ``wire_bytes``."""
    if (found := on_wire(tensor)) is not None:
        shaped: Array = reshaped(found.as_numpy(), tensor.shape)
        return shaped
    array = tensor.data
    if isinstance(array, np.ndarray):
        check_array(tensor, array)
        return array
    made: Array = tensor.as_numpy()
    return made


def listed(tensor: Any) -> Any:
    """The data of a tensor as its own KServe class has it, which a lazy one does not keep."""
    if (found := on_wire(tensor)) is None:
        return tensor.data
    if tensor._text is None:
        return plain_list(found.as_numpy())
    return tensor._listed(found, tensor._text)


def on_wire(tensor: Any) -> Tensor | None:
    """What a lazy tensor still holds of its body."""
    return tensor._tensor if isinstance(tensor, OnWire) else None


def plain_list(array: Array) -> list[Any]:
    """The elements as JSON has them; InferenceError for a BYTES element that is not UTF-8."""
    if array.dtype.kind == "M":
        array = array.astype(object)
    is_bytes = array.dtype.kind in "OSU"
    if isinstance(array, np.ma.MaskedArray):  # as KServe reads them, element by element
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


def packed(array: Array) -> Buffer:
    """The elements as the wire has them: the array's own memory if that is contiguous."""
    if array.dtype.kind in "OSUM":
        return pack_bytes(array)
    if type(array).tobytes is not np.ndarray.tobytes:  # a masked array fills in
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def check_array(tensor: Any, array: Any) -> None:
    """Refuse what KServe refuses, in its words: InferenceError."""
    if not isinstance(array, np.ndarray):
        raise InferenceError("input_tensor must be a numpy array")
    datatype = datatype_of(array.dtype)
    is_bf16 = tensor.datatype == "BF16" and array.dtype == RAW_BF16
    if tensor.datatype != datatype and not is_bf16:
        raise InferenceError(
            f"got unexpected datatype {datatype} from numpy array, expected {tensor.datatype}"
        )
    if list(array.shape) != list(tensor.shape):
        raise InferenceError(
            f"got unexpected numpy array shape [{str(array.shape)[1:-1]}], "
            f"expected [{str(tensor.shape)[1:-1]}]"
        )


def set_data(tensor: Any, array: Any, binary_data: bool) -> None:
    """Give a tensor its data, as bytes of its own or as a flat list."""
    check_array(tensor, array)
    if not binary_data:
        if tensor.parameters:
            tensor.parameters.pop("binary_data_size", None)
        tensor._raw_data = None
        tensor._data = plain_list(array)
        return
    tensor._data = None
    tensor._raw_data = pack_bytes(array) if array.dtype.kind in "OSUM" else array.tobytes()
    if tensor.parameters is None:
        tensor.parameters = {}
    tensor.parameters["binary_data_size"] = len(tensor._raw_data)


# --- the BYTES functions, and BF16 -----------------------------------------------------------


def pack_bytes(array: Array) -> bytes:
    """Elements with their lengths; what is neither bytes nor text goes as its ``str()``."""
    if array.dtype.kind not in "MO":
        return encode_bytes(array)
    elements = np.require(array, object, ["C", "A", "E"])
    with suppress(EncodeError):  # a lone surrogate: below, Python's own error
        if all_plain(elements):
            return encode_bytes(elements)
    return encode_bytes(
        [v if isinstance(v, bytes) else str(v).encode() for v in elements.ravel().tolist()]
    )


def serialize(array: Array) -> Array:
    """``pack_bytes`` as KServe returns it: an object array without dimensions around the bytes."""
    if array.size == 0:
        return np.empty([0], dtype=object)
    if array.dtype.kind not in "OSU":
        raise InferenceError("cannot serialize bytes tensor: invalid datatype")
    whole = np.empty((), dtype=object)
    whole[()] = pack_bytes(array)
    return whole


def deserialize(encoded: Any) -> Array:
    """Elements as ``bytes`` in a new object array of one dimension; InvalidInput."""
    try:
        return decode_bytes(encoded).as_numpy()
    except DecodeError as error:
        raise InvalidInput(str(error)) from error


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """KServe's name for it, or ours; most of them are the same, and found at once."""
    if (row := BY_DTYPE.get(dtype)) is not None:
        return row.name
    found: str | None = our_datatype_of(dtype) or from_np_dtype(dtype)
    return found


def our_datatype_of(dtype: Any) -> str | None:
    """The names that KServe lacks: BF16, and before 0.21 text."""
    kind = getattr(dtype, "kind", None)
    if kind == "V" and dtype == bf16_dtype():
        return "BF16"
    return "BYTES" if kind == "U" else None
