"""Convert between the arrays and responses of tritonclient and those of tensorwire."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._codec.bytes_array import BytesArray, decode_bytes
from ..._codec.bytes_reader import elements_nbytes
from ..._codec.bytes_writer import all_plain
from ..._codec.conversion import encode_bytes
from ..._codec.datatypes import BY_DTYPE
from ..._codec.memory import Body
from ...errors import EncodeError

# A copy of a smaller array takes less time than a reference (benchmarks/bench_integrations.py).
REFER_FROM_NBYTES = 256 * 1024
"""The minimum size in bytes of input arrays that are kept by reference instead of copied."""

SHARED_MEMORY_KEYS = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")

# --- BYTES ---------------------------------------------------------------------------------------


class PackedArray(np.ndarray[Any, Any]):
    """A placeholder for an array of BYTES whose serialized form, ``wire``, is known.

    It has the shape and dtype that tritonclient checks. Its elements are None.
    """

    wire: bytes


def packed_array(values: Any) -> PackedArray:
    """Serialize a BytesArray, or an array of kind ``U`` or StringDType, and keep its shape."""
    packed = np.broadcast_to(np.array(None, object), values.shape).view(PackedArray)
    packed.wire = encode_bytes(values)
    return packed


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
    if isinstance(values, PackedArray):
        return values.wire
    if is_extra_bytes(values) or (type(values) is np.ndarray and values.dtype.kind == "S"):
        return encode_bytes(values)
    if type(values) is not np.ndarray or values.dtype != object:
        return None
    elements = np.ascontiguousarray(values)
    if not all_plain(elements):
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
    body = Body(region[offset:])
    n_elements = prod(dims)
    nbytes = elements_nbytes(body, n_elements)
    return decode_bytes(body.view(0, nbytes), n_elements).as_numpy().reshape(dims)


# --- inputs --------------------------------------------------------------------------------------


def numeric_data(values: Any, datatype: Any, shape: Any) -> bytes | NDArray[np.uint8] | None:
    """Return the data of an input, for an array of numbers with this datatype and shape.

    A large C-contiguous array is not copied: the result is a flat, read-only view of its memory.
    Returns None for everything that tritonclient has to convert, check or reject.
    """
    # A masked array has its own method.
    if getattr(type(values), "tobytes", None) is not np.ndarray.tobytes:
        return None
    row = BY_DTYPE.get(values.dtype)
    if row is None or row.name != datatype or shape != list(values.shape):
        return None
    if values.nbytes < REFER_FROM_NBYTES or not values.flags.c_contiguous:
        data: bytes = values.tobytes()
        return data
    view = np.frombuffer(values, np.uint8)
    view.flags.writeable = False
    return view


def refer_to_arrays(inputs: Any, input_class: Any) -> bool:
    """Return whether an input in a list or tuple keeps an array by reference.

    Inputs of other classes do not count: their methods return the data.
    """
    return isinstance(inputs, list | tuple) and any(
        type(each) is input_class and type(each._raw_data) is np.ndarray for each in inputs
    )


class HeaderInput:
    """An input for tritonclient's request builders, which then leave out the binary data."""

    def __init__(self, infer_input: Any) -> None:
        self._get_tensor = infer_input._get_tensor

    def _get_binary_data(self) -> None:
        return None

    _get_content = _get_binary_data


def binary_data(inputs: Iterable[Any], input_class: type[Any]) -> list[Any]:
    """Return the binary data of the inputs that have any. Referenced arrays are not copied.

    Subclasses may override ``_get_binary_data``.
    """
    found = [
        each._raw_data if type(each) is input_class else each._get_binary_data() for each in inputs
    ]
    return [raw for raw in found if raw is not None]


# --- responses -----------------------------------------------------------------------------------


def byte_array(body: bytes) -> NDArray[np.uint8]:
    """Return a view of a body as an array, because arrays can be pickled and memoryviews cannot."""
    return np.frombuffer(body, np.uint8)
