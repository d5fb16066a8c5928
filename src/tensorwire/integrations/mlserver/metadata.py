"""The server's metadata announces the extension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlserver.handlers import DataPlane

from ..patching import Replacement

EXTENSION = "binary_tensor_data"


def replacements() -> list[Replacement]:
    return [Replacement(DataPlane, "metadata", announcing)]


def announcing(old: Callable[..., Any]) -> Callable[..., Any]:
    async def metadata(self: Any) -> Any:
        found = await old(self)
        if EXTENSION not in found.extensions:
            found.extensions = [*found.extensions, EXTENSION]
        return found

    return metadata
