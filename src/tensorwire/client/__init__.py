"""Clients for servers of the Open Inference Protocol.

``Client`` is blocking, and ``AsyncClient`` is for asyncio and uvloop. HTTP requires httptools, and
gRPC requires grpcio. Each client is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import InferenceServerError
from .limits import DEFAULT_MAX_BODY, DEFAULT_TIMEOUT, RESPONSE_LIMITS, Timeout
from .requests import AUTO_ID, Progress

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncResponseStream
    from .sync import Client, ResponseStream

__all__ = [
    "AUTO_ID",
    "DEFAULT_MAX_BODY",
    "DEFAULT_TIMEOUT",
    "RESPONSE_LIMITS",
    "AsyncClient",
    "AsyncResponseStream",
    "Client",
    "InferenceServerError",
    "Progress",
    "ResponseStream",
    "Timeout",
]


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> Any:
    # Imported on demand, so that programs that use only Client never load asyncio.
    if name in ("Client", "ResponseStream"):
        from . import sync  # noqa: PLC0415

        return getattr(sync, name)
    if name in ("AsyncClient", "AsyncResponseStream"):
        from . import aio  # noqa: PLC0415

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
