"""Messages and tensors as tables of HTML, which notebooks show."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import escape
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...errors import format_shape, format_value
from ..bytes.array import BytesArray, values_to_encode

if TYPE_CHECKING:
    from .tensor import Tensor

_MAX_TENSORS = 20
_MAX_VALUES = 8  # of a tensor
_MAX_LENGTH = 40  # bytes or characters of an element


def tensors_as_html(tensors: Sequence[Tensor]) -> str:
    """Return a table of the first tensors with their first values."""
    rows: list[tuple[str, ...]] = [
        (format_value(each.name), each.datatype, format_shape(each.shape), _first_values(each))
        for each in tensors[:_MAX_TENSORS]
    ]
    if len(tensors) > _MAX_TENSORS:
        rows.append((f"... {len(tensors)} tensors", "", "", ""))
    head = "<th>name</th><th>datatype</th><th>shape</th><th>values</th>"
    body = [
        f"<td>{'</td><td>'.join(escape(cell, quote=False) for cell in row)}</td>" for row in rows
    ]
    return f"<table><tr>{'</tr><tr>'.join([head, *body])}</tr></table>"


def _first_values(tensor: Tensor) -> str:
    data = tensor.data
    if data is None:
        return "in shared memory"
    if isinstance(data, BytesArray):
        shown = list(_elements(data))
    else:
        numbers = data.reshape(-1)[:_MAX_VALUES]  # a view: the data are C-contiguous
        if tensor.datatype == "BF16" and numbers.dtype == np.uint16:
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        shown = [str(number) for number in numbers]
    if prod(tensor.shape) > len(shown):
        shown.append("...")
    return ", ".join(shown)


def _elements(array: BytesArray) -> Iterator[str]:
    """Iterate over the first elements as they are shown. Nothing is encoded for this."""
    values = values_to_encode(array)
    for i in range(min(array.size, _MAX_VALUES)):
        value = array.element(i) if values is None else values[i]
        is_cut = len(value) > _MAX_LENGTH
        head = value[:_MAX_LENGTH]
        if not isinstance(head, str):
            head = bytes(head)
            with suppress(UnicodeDecodeError):
                head = utf_8_decode(head, "strict", not is_cut)[0]
        yield repr(head) + "..." * is_cut
