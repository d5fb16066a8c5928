"""MLServer on this codec: binary REST, and JSON, codecs and raw gRPC that make no lists.

Nothing of MLServer is imported before ``install()``. ``python -m tensorwire.integrations.mlserver
start FOLDER`` is ``mlserver start FOLDER`` with it.
"""

from __future__ import annotations

from ..patching import Patch, Replacement

__all__ = ["install", "is_installed", "uninstall"]

_PATCH = Patch("mlserver", ("1.6.1", "1.7.1"))


def install() -> None:
    """Let MLServer speak binary REST, and carry tensors as arrays instead of lists.

    Servers that run already change with it, in the parallel workers that they start from now on,
    too; in the module of a runtime it takes effect in the workers that load the runtime. May be
    called again, and from any thread. Raises IntegrationError, with nothing changed, when MLServer
    is missing, of a version that was not tested, or not laid out as expected.
    """
    _PATCH.install(_replacements)


def uninstall() -> None:
    """Put everything back; workers that run already keep what they have."""
    _PATCH.uninstall()


def is_installed() -> bool:
    """Whether the codec is in."""
    return _PATCH.installed


def _replacements() -> list[Replacement]:
    from . import codecs, raw, rest, serving  # noqa: PLC0415 - they import mlserver

    return [
        *codecs.replacements(),
        *raw.replacements(),
        *rest.replacements(),
        *serving.replacements(install),
    ]
