"""What the REST servers of KServe and MLServer share: request bodies, and values in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..server.asgi import Message, Receive


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


def receive_again(first: Message, receive: Receive) -> Receive:
    """Return an ASGI receive callable that repeats a message before it continues."""
    pending = [first]

    async def receive_first() -> Message:
        return pending.pop() if pending else await receive()

    return receive_first
