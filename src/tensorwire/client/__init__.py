"""Clients for servers of the Open Inference Protocol.

``Client`` is blocking, and ``AsyncClient`` is for asyncio and uvloop. HTTP requires httptools, and
gRPC requires grpcio.
"""

from __future__ import annotations

from ..errors import InferenceServerError
from .clients import AsyncClient, AsyncResponseStream, Client, ResponseStream
from .options import Timeout
from .requests import Progress

__all__ = [
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
