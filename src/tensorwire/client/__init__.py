"""Clients for servers of the Open Inference Protocol.

``Client`` uses urllib3, and ``AsyncClient`` uses aiohttp. Each library is imported when its client
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calls import DEFAULT_MAX_BODY, DEFAULT_TIMEOUT, InferenceServerError

if TYPE_CHECKING:
    from .aio import AsyncClient
    from .sync import Client

__all__ = [
    "DEFAULT_MAX_BODY",
    "DEFAULT_TIMEOUT",
    "AsyncClient",
    "Client",
    "InferenceServerError",
]


def __getattr__(name: str) -> Any:
    # Imported on demand, so that programs that use only Client never load aiohttp.
    if name == "Client":
        from .sync import Client  # noqa: PLC0415

        return Client
    if name == "AsyncClient":
        from .aio import AsyncClient  # noqa: PLC0415

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
