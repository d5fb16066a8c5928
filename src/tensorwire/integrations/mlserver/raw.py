"""Raw gRPC contents: views of them in, the arrays' bytes out."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from mlserver import raw as mlserver_raw
from mlserver.types import Datatype

import tensorwire as tw

from ...errors import LayoutError, TensorwireError, shape_text, subject
from ..patching import Replacement
from .data import (
    Array,
    ArrayData,
    array_of,
    as_list,
    datatype_of,
    from_list,
    numeric_array,
    refusal,
)


def replacements() -> list[Replacement]:
    makers = {"inject_raw": inject, "unpack": unpacker, "pack": packer}
    return [Replacement(mlserver_raw, name, make) for name, make in makers.items()]


# --- in --------------------------------------------------------------------------------------


def inject(old: Callable[..., Any]) -> Callable[..., Any]:
    def inject_raw(elems: Any, raw_contents: Any) -> Any:
        """Every tensor without contents gets the next buffer, and all buffers are for one."""
        empty = [elem for elem in elems if not elem.data]
        if len(empty) != len(raw_contents):
            raise refusal(
                LayoutError(
                    f"{len(empty)} tensors are without contents, and there are raw contents for "
                    f"{len(raw_contents)}",
                    expected=len(empty),
                    actual=len(raw_contents),
                )
            )
        for elem, raw in zip(empty, raw_contents, strict=True):
            elem.data = ArrayData.over(view(elem, raw))
        return elems

    return inject_raw


def unpacker(old: Callable[..., Any]) -> Callable[..., Any]:
    def unpack(elem: Any, raw: Any) -> Any:
        return as_list(view(elem, raw), is_encoded=False)

    return unpack


def view(elem: Any, raw: bytes) -> Array | tw.BytesTensor:
    """The tensor that the bytes are, as a read-only view of them; MLServerError, status 400.

    How many elements BYTES are is not held against the shape: MLServer's "np" sends them in one.
    """
    try:
        datatype = _known_datatype(elem)
        if datatype == "BYTES":
            return tw.decode_bytes(raw)
        if min(elem.shape, default=0) < 0:
            raise LayoutError(
                f"{subject('tensor', elem.name)} has a negative dimension: "
                f"{shape_text(elem.shape)}",
                tensor=elem.name,
            )
        spec = tw.TensorSpec(elem.name, datatype, elem.shape)
        data = tw.decode_request(raw, 0, raw_input=spec).inputs[0].data
    except TensorwireError as error:
        raise refusal(error) from error
    assert data is not None
    return data


def _known_datatype(elem: Any) -> str:
    try:
        return datatype_of(elem)
    except ValueError:
        raise LayoutError(
            f"{subject('tensor', elem.name)} is {str(elem.datatype)[:40]!r}: MLServer has "
            f"{', '.join(Datatype.__members__)}",
            tensor=elem.name,
        ) from None


# --- out -------------------------------------------------------------------------------------


def packer(old: Callable[..., Any]) -> Callable[..., Any]:
    def pack(elem: Any) -> bytes:
        data = array_of(elem.data)
        if isinstance(data, tw.BytesTensor):
            return bytes(data.wire)
        array = numeric_array(elem)
        if array is not None and array.size == prod(elem.shape):
            return array.tobytes()
        packed = _packed_list(elem)
        return old(elem) if packed is None else packed

    return pack


def _packed_list(elem: Any) -> bytes | None:
    values, datatype = getattr(elem.data, "root", elem.data), datatype_of(elem)
    if datatype != "BYTES":
        numbers = from_list(values, datatype, elem.shape)
        return None if numbers is None else numbers.tobytes()
    try:
        return tw.encode_bytes(values) if type(values) is list else None
    except (TensorwireError, TypeError):
        return None  # MLServer says what is wrong
