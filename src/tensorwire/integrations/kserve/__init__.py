"""Make KServe's Python SDK use this codec. Servers and clients need no other changes.

Models that modify their inputs in place need ``install(writable=True)``.

    import tensorwire.integrations.kserve
    tensorwire.integrations.kserve.install()

Tested with KServe 0.17.0, 0.17.1, 0.18.1, 0.19.0, 0.20.0 and 0.21.0.

What changes:

- The data of a binary tensor remains in the request body, and ``as_numpy()`` returns a view of it.
  The view is read-only and may be misaligned; see the parameters of ``install``.
- JSON data is read from the body into an array, and JSON responses are written from arrays.
- A response has the outputs and the format that the request asks for, whatever the model passes to
  ``InferResponse``, and an id.
- Malformed bodies are rejected with status 400.
- BYTES that are not UTF-8 are delivered as ``bytes``; BF16 is supported.
- The server metadata lists the extension ``binary_tensor_data``.

Unchanged: ``data`` is still a list. It is built on first access; after that, the list is
authoritative. JSON responses have the same members and values.

``BinaryDataPlane`` does the same for the REST API of a single server, without replacing functions
of KServe. In this case, KServe still reads and writes JSON itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..patching import Patch, Replacement, Untested
from .sources import DATA_PLANE, RELIES_ON

if TYPE_CHECKING:
    from .server import BinaryDataPlane

__all__ = ["BinaryDataPlane", "install", "is_installed", "uninstall"]

_PATCH = Patch("kserve", ("0.17", "0.21"), Path(__file__).with_name("sources.json"), RELIES_ON)


def install(
    *,
    writable: bool = False,
    aligned: bool = False,
    bf16_as_uint16: bool = False,
    follow_request: bool = True,
    untested: Untested = "known",
) -> None:
    """Make KServe use this codec, in the whole process and in the workers that its server starts.

    Call it before the server is started: KServe itself reads and writes the JSON of servers that
    run already. Functions that other modules import from KServe, before or after this call, are
    replaced as well. This function is thread-safe. If KServe already uses the codec, only the
    options change.

    Parameters
    ----------
    writable
        Whether ``as_numpy()`` returns a writable array. Read-only views are then copied. All views
        of the ``bytes`` that KServe's server and client receive are read-only.
    aligned
        Whether ``as_numpy()`` returns an aligned array. Misaligned views are then copied. In the
        requests of most clients, views are misaligned.
    bf16_as_uint16
        Whether BF16 tensors are arrays of dtype ``uint16``, which do not require the ml_dtypes
        package.
    follow_request
        Whether a response has the outputs and the format that the request asks for, whatever the
        model passes to ``InferResponse``. It then also has an id. If False, a model has to pass
        ``use_binary_outputs``, ``requested_outputs`` and an id, as in KServe itself.
    untested
        What to do about functions that differ from those that the integration was tested with. This
        concerns functions that it replaces, and those that it relies on. A function differs if its
        source is another one, or if other code has wrapped or replaced it. ``"known"`` does not
        replace such functions, and logs a warning that names them (logger
        ``tensorwire.integrations``). ``"allow"`` does the same, but does not compare sources.
        ``"error"`` raises IntegrationError. The sources of KServe itself are compared if its
        version is newer than the tested ones.

    Raises
    ------
    IntegrationError
        KServe is missing, its version is older than the tested ones, or it does not have the
        modules and classes that the integration uses. Also if its version is a tested one and a
        function is missing or has other parameters, and as described for ``untested``. Nothing was
        changed.
    ValueError
        ``untested`` has another value.
    """
    _PATCH.install(partial(_replacements, untested), untested)
    from .convert import Options  # noqa: PLC0415 - imports KServe
    from .patches import set_options  # noqa: PLC0415

    set_options(Options(writable, aligned, bf16_as_uint16, follow_request))


def uninstall() -> None:
    """Restore KServe's own functions. Existing requests and responses remain usable.

    Raises
    ------
    IntegrationError
        Other code has wrapped a replaced function since ``install``. The wrapper has to be removed
        first. Nothing was changed.
    """
    _PATCH.uninstall()


def is_installed() -> bool:
    """Return whether KServe uses this codec."""
    return _PATCH.installed


def _replacements(untested: Untested = "known") -> list[Replacement]:
    from .patches import replacements  # noqa: PLC0415 - imports KServe

    return replacements(partial(install, untested=untested), is_installed)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> Any:
    if name != "BinaryDataPlane":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _PATCH.check(DATA_PLANE)
    from .server import BinaryDataPlane  # noqa: PLC0415 - imports KServe

    return BinaryDataPlane
