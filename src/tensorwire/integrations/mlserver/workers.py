"""Parallel workers, processes that MLServer spawns, install the integration as they start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mlserver.parallel import worker

from ..patching import Replacement


class Worker(worker.Worker):  # type: ignore[misc]  # mlserver has no types
    """MLServer's worker; pickled for its process, it brings along what is to be called there."""

    install: ClassVar[Callable[[], None]]

    def __init__(self, settings: Any, responses: Any, env: Any = None) -> None:
        super().__init__(settings, responses, env)
        self._install = type(self).install

    def run(self) -> None:
        self._install()
        super().run()


def replacements(install: Callable[[], None]) -> list[Replacement]:
    Worker.install = staticmethod(install)
    return [Replacement(worker, "Worker", lambda old: Worker)]
