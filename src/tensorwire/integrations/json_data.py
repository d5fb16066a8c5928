"""JSON in messages of KServe and MLServer: the text of data, parameters, and arrays of numbers.

The integrations of both packages read messages with this package's decoder, and keep the arrays.
Requests that are entirely JSON, and that the decoder rejects, are left to the other package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._codec.datatypes import Limits
from .._codec.json_reader import find_data

MAX_NESTING = Limits().max_nesting


class Header:
    """The JSON header of a decoded message.

    The text of the data is searched for when it is first needed: most programs only use arrays.
    """

    def __init__(self, body: Any, nbytes: int, member: bytes) -> None:
        # A copy, unless the body is a bytes object that is entirely JSON: the program may change
        # other bodies, and a binary body is not kept alive.
        self._text = bytes(body[:nbytes])
        self._member = member  # the name of the list of tensors
        self._texts: list[memoryview | None] | None = None

    def data_text(self, index: int) -> bytes:
        """Return the text of the data of a tensor, which has JSON data."""
        if self._texts is None:
            self._texts = find_data(self._text, self._member, MAX_NESTING)
        text = self._texts[index]
        assert text is not None
        return bytes(text)


class DataText:
    """The JSON text of the data of a tensor. ``bytes`` returns it."""

    def __init__(self, header: Header, index: int) -> None:
        self._header = header
        self._index = index

    def __bytes__(self) -> bytes:
        return self._header.data_text(self._index)

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)


def plain(value: Any) -> Any:
    """Return parameters, which are read-only in messages, with dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def has_numbers(data: Any) -> bool:
    """Return whether data is an array that ``flat_numbers`` accepts."""
    return type(data) is np.ndarray and data.dtype.kind in "biuf" and data.dtype.isnative


def flat_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of an array for orjson, which writes them as a flat list.

    FP16 and FP32 are converted to FP64, as Python does: 0.1 becomes 0.10000000149011612.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(np.float64) if flat.dtype.kind == "f" else flat
