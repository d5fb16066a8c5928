"""Whatever a caller has, made ready for the wire: an array or a BytesTensor, with its datatype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._datatypes import DATATYPES, Datatype, bf16_dtype, datatype_of
from ._numbers import numbers
from ._pack import pack as pack_source
from .bytes_tensor import (
    MAX_RANK,
    WIDEST_ITEMSIZE,
    BytesTensor,
    Shape,
    as_dims,
    check_not_masked,
    is_addressable,
    is_arrow,
    leaves,
    pack,
    source,
)
from .errors import EncodeError, shape_text

Data = NDArray[Any] | BytesTensor | None


def wire_ready(
    name: str, data: Any, datatype: str | None, shape: Sequence[int] | None
) -> tuple[str, Shape, Data]:
    """Datatype, shape and data of a tensor as the wire wants it.

    A C-contiguous little-endian array is returned as it is, and a BytesTensor too; other arrays
    are converted, and text or bytes packed, which is the one copy. Raises EncodeError where data,
    datatype and shape disagree, TypeError for data that is no tensor.
    """
    if datatype is not None and datatype not in DATATYPES:
        raise EncodeError(f"tensor {name!r} has an unknown datatype: {datatype!r}", tensor=name)
    wanted = None if shape is None else _shape(name, shape)
    check_not_masked(data, name)
    if data is None:
        return _elsewhere(name, datatype, wanted)
    ready = _bytes_tensor(name, data, datatype)
    if ready is not None:
        return "BYTES", *_in_shape(name, ready, DATATYPES["BYTES"], wanted)
    row, array = _array(name, data, datatype)
    return row.name, *_in_shape(name, array, row, wanted)


def _shape(name: str, shape: Sequence[int]) -> Shape:
    dims = as_dims(shape)
    if any(dim < 0 for dim in dims):
        raise EncodeError(
            f"tensor {name!r} has a negative dimension: {shape_text(dims)}", tensor=name
        )
    if len(dims) > MAX_RANK:
        raise EncodeError(
            f"tensor {name!r} has {len(dims)} dimensions, numpy has {MAX_RANK}",
            tensor=name,
            expected=MAX_RANK,
            actual=len(dims),
        )
    return dims


def _elsewhere(name: str, datatype: str | None, shape: Shape | None) -> tuple[str, Shape, None]:
    if datatype is None or shape is None:
        raise EncodeError(
            f"tensor {name!r} has no data: one in shared memory needs datatype= and shape=",
            tensor=name,
        )
    _check_addressable(name, DATATYPES[datatype], shape)
    return DATATYPES[datatype].name, shape, None


def _check_addressable(name: str, row: Datatype, shape: Shape) -> None:
    if not is_addressable(shape, row.itemsize or WIDEST_ITEMSIZE):
        raise EncodeError(
            f"tensor {name!r} is too large to address: {row.name} {shape_text(shape)} passes "
            f"2^63 - 1 bytes",
            tensor=name,
            expected=2**63 - 1,
        )


def _in_shape(
    name: str, data: NDArray[Any] | BytesTensor, row: Datatype, shape: Shape | None
) -> tuple[Shape, NDArray[Any] | BytesTensor]:
    if shape is None or shape == data.shape:
        return data.shape, data
    _check_addressable(name, row, shape)
    try:
        return shape, data.reshape(shape)
    except ValueError:
        raise EncodeError(
            f"tensor {name!r} does not match its shape: {shape_text(shape)} is given, the data has "
            f"shape {list(data.shape)}",
            tensor=name,
        ) from None


def _bytes_tensor(name: str, data: Any, datatype: str | None) -> BytesTensor | None:
    """The data as BYTES, or ``None`` when it is something else."""
    if isinstance(data, BytesTensor):
        _agree(name, "BYTES", datatype)
        return data
    if isinstance(data, list | tuple):
        return _from_lists(name, data, datatype)
    if is_arrow(data) and not isinstance(data, np.ndarray):
        return _from_arrow(name, data, datatype)
    if getattr(getattr(data, "dtype", None), "kind", None) not in ("O", "S", "U", "T"):
        return None
    _agree(name, "BYTES", datatype)
    return BytesTensor.packed(*pack(np.asarray(data), name))


def _from_lists(name: str, data: Any, datatype: str | None) -> BytesTensor | None:
    is_text = isinstance(_first_leaf(data), bytes | str | bytearray | memoryview)
    if datatype == "BYTES" or (datatype is None and is_text):
        return BytesTensor.packed(*pack(data, name))
    return None


def _from_arrow(name: str, data: Any, datatype: str | None) -> BytesTensor | None:
    """BYTES of an Arrow array of bytes or text; ``None`` for one that numpy can read instead."""
    try:
        arrow, shape = source(data, name)
    except EncodeError:
        if datatype != "BYTES" and hasattr(data, "__array__"):
            return None
        raise
    _agree(name, "BYTES", datatype)
    return BytesTensor.packed(pack_source(arrow), shape)


def _first_leaf(data: Any) -> Any:
    for _ in range(MAX_RANK + 1):  # a list may contain itself
        if not isinstance(data, list | tuple) or not data:
            break
        data = data[0]
    return data


def _agree(name: str, actual: str, datatype: str | None) -> None:
    if datatype is not None and datatype != actual:
        raise EncodeError(
            f"tensor {name!r} is given as {datatype}, its data is {actual}", tensor=name
        )


def _array(name: str, data: Any, datatype: str | None) -> tuple[Datatype, NDArray[Any]]:
    if isinstance(data, list | tuple):
        return _array_of_numbers(name, data, datatype)
    array = _as_ndarray(name, data)
    row = datatype_of(array.dtype)
    if row is None:
        raise EncodeError(f"tensor {name!r} has no datatype for {array.dtype} arrays", tensor=name)
    if datatype == "BF16" and row.name == "UINT16":
        row = DATATYPES["BF16"]
    _agree(name, row.name, datatype)
    return row, np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _as_ndarray(name: str, data: Any) -> NDArray[Any]:
    if type(data) is np.ndarray:
        return data
    if not hasattr(data, "__array__"):
        raise TypeError(
            f"the data of tensor {name!r} is an array, a list or a BytesTensor, not "
            f"{type(data).__name__}"
        )
    return np.asarray(data)


def _array_of_numbers(
    name: str, data: list[Any] | tuple[Any, ...], datatype: str | None
) -> tuple[Datatype, NDArray[Any]]:
    """Convert nested lists of Python numbers; the datatype must be given."""
    if datatype is None:
        raise EncodeError(f"tensor {name!r} is a list of numbers: give datatype=", tensor=name)
    row = DATATYPES[datatype]
    shape, scalars = leaves(data, name)
    plain = [value.item() if isinstance(value, np.generic) else value for value in scalars]
    array = numbers(plain, row if row.in_json else DATATYPES["FP64"], name).reshape(shape)
    return row, array if row.in_json else _half(name, array, row)


def _half(name: str, array: NDArray[np.float64], row: Datatype) -> NDArray[Any]:
    """FP64 numbers as FP16 or BF16, none of which may become infinite."""
    dtype = row.dtype or bf16_dtype()
    if dtype is None:
        raise EncodeError(
            f"tensor {name!r} is a list of BF16, for which numpy needs the ml_dtypes package; an "
            f"array of uint16 words goes without",
            tensor=name,
        )
    with np.errstate(over="ignore"):
        half = array.astype(dtype)
    lost = np.flatnonzero(np.isinf(half.astype(np.float64)) & ~np.isinf(array))
    if lost.size:
        element = int(lost[0])
        raise EncodeError(
            f"element {element} of tensor {name!r} is beyond {row.name}: {array.flat[element]}",
            tensor=name,
            element=element,
        )
    return half
