"""KServe's Python SDK on this codec: the same servers, models and clients, without the lists.

    from tensorwire.integrations import kserve
    kserve.install()

A binary tensor stays in the body that it came in, and ``as_numpy()`` is a view of it. JSON data is
read from the body into an array. ``data`` is the list that it was, built on first access. JSON
answers are written from arrays. ``BinaryDataPlane`` does the same for one server's REST side,
without changing KServe; JSON requests are read by KServe then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..patching import Patch, Replacement
from .options import Options

if TYPE_CHECKING:
    from .serving import BinaryDataPlane

__all__ = ["BinaryDataPlane", "install", "is_installed", "uninstall"]

_VERSIONS = ("0.17", "0.21")
_PATCH = Patch("kserve", _VERSIONS)
_options = Options()


def install(*, writable: bool = False, aligned: bool = False, bf16_as_uint16: bool = False) -> None:
    """Put the codec into KServe, in the whole process and in the workers that its server spawns.

    ``writable``: ``as_numpy()`` gives models an array to write in, at the cost of a copy where the
    view is read-only (it is, of the ``bytes`` that KServe's server and client receive).
    ``aligned``: a copy where the view is misaligned, which most clients' bodies make it.
    ``bf16_as_uint16``: BF16 arrives as its 16-bit words, without the ml_dtypes package.
    Called again, it only changes these options.

    Names that other modules, imported before or after, took from KServe change with it.
    Raises IntegrationError, with nothing changed, when KServe is missing, of a version that was not
    tested, or not laid out as expected.
    """
    _install(Options(writable, aligned, bf16_as_uint16))


def _install(options: Options) -> None:
    global _options  # noqa: PLW0603
    _PATCH.install(_replacements)
    _options = options


def _replacements() -> list[Replacement]:
    from .patches import replacements  # noqa: PLC0415

    return replacements(lambda: _options, _install)


def uninstall() -> None:
    """Put back what ``install`` changed. Requests and responses made meanwhile stay usable."""
    _PATCH.uninstall()


def is_installed() -> bool:
    """Whether the codec is in."""
    return _PATCH.installed


def __getattr__(name: str) -> Any:
    if name != "BinaryDataPlane":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    Patch("kserve", _VERSIONS).install(list)  # which is to refuse other versions
    from .serving import BinaryDataPlane  # noqa: PLC0415

    return BinaryDataPlane
