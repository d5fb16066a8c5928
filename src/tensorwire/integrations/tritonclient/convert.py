"""Convert between the arrays and responses of tritonclient and those of tensorwire."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod
from operator import index
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._codec.bytes.array import BytesArray, decode_bytes
from ..._codec.bytes.reader import elements_nbytes
from ..._codec.bytes.writer import are_exact
from ..._codec.datatypes import BY_DTYPE
from ..._codec.held_buffer import HeldBuffer
from ..._codec.messages.convert import encode_bytes
from ...errors import EncodeError

# Joining smaller data takes less time than sending them on their own: each send wakes up the
# server, and the socket may wait for the acknowledgement of what was sent before.
MIN_SEPARATE_NBYTES = 2 << 20
"""The minimum size in bytes of the data of an input that are sent without joining them."""


options = SimpleNamespace(refer_to_arrays=False)
"""What `install` was called with."""

SHARED_MEMORY_KEYS = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")

# --- BYTES ---------------------------------------------------------------------------------------


def object_array(values: Any) -> NDArray[np.object_]:
    """Convert a BytesArray, or an array of kind ``U`` or StringDType, to Python objects."""
    array: NDArray[np.object_] = (
        values.as_numpy() if isinstance(values, BytesArray) else values.astype(object)
    )
    return array


def is_extra_bytes(values: Any) -> bool:
    """Return whether the values are BYTES of a type that tritonclient itself does not accept."""
    if type(values) is np.ndarray:
        return values.dtype.kind in "UT"
    return isinstance(values, BytesArray)


def serialized(values: Any) -> bytes | None:
    """Serialize BYTES. Returns None for values that tritonclient has to convert or reject."""
    if is_extra_bytes(values) or (type(values) is np.ndarray and values.dtype.kind == "S"):
        return encode_bytes(values)
    if type(values) is not np.ndarray or values.dtype != object:
        return None
    elements = np.ascontiguousarray(values)
    if not are_exact(elements):
        return None  # tritonclient calls str() for numbers, None, subclasses and so on
    try:
        return encode_bytes(elements)
    except EncodeError:  # an unpaired surrogate, or an element of 4 GiB or more
        return None


def object_scalar(wire: bytes) -> NDArray[np.object_]:
    """Return what `serialize_byte_tensor` returns: the bytes in an object array without dimensions.

    The array is empty if there are no bytes.
    """
    return np.array(wire or [], object)


def elements_at(region: memoryview, shape: Any, offset: int) -> NDArray[np.object_]:
    """Read BYTES of a shape at an offset of a shared memory region, as an object array.

    Bytes after the elements are ignored. Raises DecodeError for malformed BYTES, and ValueError or
    TypeError for shapes and offsets that tritonclient handles itself.
    """
    dims = tuple(index(dim) for dim in shape)
    if min(dims, default=1) <= 0 or offset < 0:
        raise ValueError("the shape is empty or negative, or the offset is negative")
    body = HeldBuffer(region[offset:])
    n_elements = prod(dims)
    nbytes = elements_nbytes(body, n_elements)
    return decode_bytes(body.view(0, nbytes), n_elements).as_numpy().reshape(dims)


# --- inputs --------------------------------------------------------------------------------------


@cache
def array_input_class(input_class: type, attribute: str, method: str) -> Any:
    """Return a subclass for inputs whose data, in ``attribute``, may be a flat array of bytes.

    ``method`` returns the data as `bytes`, for programs that create requests themselves. It is a
    method of the input's own class, so that it also works when the integration was uninstalled.
    """

    def data(self: Any) -> Any:
        kept = vars(self)[attribute]
        return kept.tobytes() if type(kept) is np.ndarray else kept

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return object.__new__, (input_class,), {**vars(self), attribute: data(self)}

    shown = {name: getattr(input_class, name) for name in ("__module__", "__qualname__", "__doc__")}
    members = {method: data, "__reduce_ex__": __reduce_ex__, **shown}
    return type(input_class.__name__, (input_class,), members)


def tensor_data(
    infer_input: Any, array_class: type[Any], values: Any, datatype: Any, shape: Any
) -> bytes | NDArray[np.uint8] | None:
    """Return the data of an input, for numbers or additional BYTES of this datatype and shape.

    Large data are an array, and the input becomes an instance of ``array_class``. Inputs of other
    subclasses get `bytes`. Returns None for everything that tritonclient has to convert, check or
    reject.
    """
    # A masked array has its own method.
    if getattr(type(values), "tobytes", None) is np.ndarray.tobytes:
        found = BY_DTYPE.get(values.dtype)
        if found is not None and found.name == datatype and is_shape(shape, values.shape):
            may_be_array = type(infer_input) in (array_class, array_class.__base__)
            if not may_be_array or values.nbytes < MIN_SEPARATE_NBYTES:
                data: bytes = values.tobytes()
                return data
            array = flat_array(values)
            infer_input.__class__ = array_class
            return array
    if datatype == "BYTES" and is_extra_bytes(values) and is_shape(shape, values.shape):
        return encode_bytes(values)
    return None


def json_data(values: Any, datatype: Any, shape: Any) -> list[Any] | None:
    """Return the numbers of an input in JSON form. Returns None as `tensor_data` does."""
    if type(values) not in (np.ndarray, np.memmap) or datatype == "BF16":
        return None
    found = BY_DTYPE.get(values.dtype)
    if found is None or found.name != datatype or not is_shape(shape, values.shape):
        return None
    numbers: list[Any] = values.ravel().tolist()
    return numbers


def is_shape(given: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a shape of any type is that of an array, compared as tritonclient does."""
    return len(given) == len(shape) and not any(given[i] != n for i, n in enumerate(shape))


def flat_array(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array: a copy, or a view of its memory if the program asked for it.

    The copy is in memory of numpy, which takes less time to allocate than a large `bytes` object.
    """
    if options.refer_to_arrays and values.flags.c_contiguous:
        flat = np.frombuffer(values, np.uint8)
    else:
        flat = np.empty(values.nbytes, np.uint8)
        flat.view(values.dtype).reshape(values.shape)[...] = values
    flat.flags.writeable = False
    return flat


def is_reference(data: Any) -> bool:
    """Return whether data are a view of an array of the program."""
    return type(data) is np.ndarray and not data.flags.owndata


def is_large(data: Any) -> bool:
    """Return whether the data of an input are sent without joining them."""
    return type(data) in (np.ndarray, bytes) and len(data) >= MIN_SEPARATE_NBYTES


def large_data(inputs: Any, array_class: type[Any]) -> list[Any]:
    """Return the large data in a list or tuple of inputs."""
    if not isinstance(inputs, (list, tuple)):
        return []
    classes = (array_class, array_class.__base__)
    return [each._raw_data for each in inputs if type(each) in classes and is_large(each._raw_data)]


class HeaderInput:
    """An input for tritonclient's request builders, which then leave out the binary data."""

    def __init__(self, infer_input: Any) -> None:
        self._get_tensor = infer_input._get_tensor

    def _get_binary_data(self) -> None:
        return None

    _get_content = _get_binary_data


def binary_data(inputs: Iterable[Any], array_class: type[Any]) -> list[Any]:
    """Return the binary data of the inputs that have any. Arrays are not copied."""
    found = [
        each._raw_data if type(each) is array_class else each._get_binary_data() for each in inputs
    ]
    return [raw for raw in found if raw is not None]


# --- responses -----------------------------------------------------------------------------------


def byte_array(body: bytes) -> NDArray[np.uint8]:
    """Return a view of a body as an array, because arrays can be pickled and memoryviews cannot."""
    return np.frombuffer(body, np.uint8)
