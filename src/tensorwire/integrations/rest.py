"""What the REST servers of KServe and MLServer share: request bodies, and values in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..server.asgi import Message, Receive, Scope


def plain(value: Any) -> Any:
    """Return parameters, which are read-only in messages, with dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def flat_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of an array for orjson, which writes them as a flat list.

    FP16 and FP32 are converted to FP64, as Python does: 0.1 becomes 0.10000000149011612.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(np.float64) if flat.dtype.kind == "f" else flat


def text_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request with lower-case names: of several, the first value."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return headers


def receive_again(first: Message, receive: Receive) -> Receive:
    """Return an ASGI receive callable that repeats a message before it continues."""
    pending = [first]

    async def receive_first() -> Message:
        return pending.pop() if pending else await receive()

    return receive_first
