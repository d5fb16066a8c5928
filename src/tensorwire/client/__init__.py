"""Clients of any OIP v2 server: ``Client`` on urllib3, ``AsyncClient`` on aiohttp.

Each library is imported when its client is asked for, and not before.
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
    # `from .sync import Client` stands in a function, so that sync programs never load aiohttp.
    if name == "Client":
        from .sync import Client  # noqa: PLC0415

        return Client
    if name == "AsyncClient":
        from .aio import AsyncClient  # noqa: PLC0415

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
