"""MLServer's server on this codec: what it announces, and the processes that it spawns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mlserver.handlers import DataPlane
from mlserver.parallel import worker

from ...http import EXTENSION
from ..patching import Replacement


def replacements(install: Callable[[], None]) -> list[Replacement]:
    """``install``: what a parallel worker calls as it starts."""
    Worker.install = staticmethod(install)
    return [
        Replacement(DataPlane, "metadata", announcing),
        Replacement(worker, "Worker", lambda old: Worker),
    ]


def announcing(old: Callable[..., Any]) -> Callable[..., Any]:
    async def metadata(self: Any) -> Any:
        found = await old(self)
        if EXTENSION not in found.extensions:
            found.extensions = [*found.extensions, EXTENSION]
        return found

    return metadata


class Worker(worker.Worker):  # type: ignore[misc]  # mlserver has no types
    """MLServer's worker; pickled for its process, it brings along what is to be called there."""

    install: ClassVar[Callable[[], None]]

    def __init__(self, settings: Any, responses: Any, env: Any = None) -> None:
        super().__init__(settings, responses, env)
        self._install = type(self).install

    def run(self) -> None:
        self._install()
        super().run()
