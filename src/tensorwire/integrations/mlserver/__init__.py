"""Make MLServer use this codec: for binary REST requests, JSON, its codecs and raw gRPC contents.

    import tensorwire.integrations.mlserver
    tensorwire.integrations.mlserver.install()

``python -m tensorwire.integrations.mlserver start FOLDER`` runs ``mlserver start FOLDER`` with the
integration installed. Tested with MLServer 1.6.1, 1.7.0 and 1.7.1.

The integration hooks the class of MLServer's REST routes: there it reads the requests to the
endpoint ``infer``, calls MLServer's endpoint, and writes the response. It also hooks the converters
and the handler of gRPC's ``ModelInfer``, for raw contents, and the codecs, for arrays.

What changes:

- The REST endpoint ``infer`` accepts requests with a header length, and raw binary requests if the
  settings of the model declare one input. Outputs are binary if the request asks for it. The
  server metadata lists the extension ``binary_tensor_data``.
- Models get writable and aligned arrays. Binary tensors are views of the request body, except that
  misaligned tensors and raw gRPC contents are copied once.
- Malformed binary requests are rejected with status 400, 413 or 415. Malformed raw contents are
  rejected with status 400.

Unchanged: ``tensor.data`` is still a list. For binary data, it is built on first access; after
that, the list is authoritative. JSON requests become the same lists, and get responses with the
same members and values. The details are in docs/integrations/mlserver.md.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..patching import Patch, Replacement, Untested
from .sources import RELIES_ON

__all__ = ["install", "is_installed", "uninstall"]

_PATCH = Patch("mlserver", ("1.6.1", "1.7.1"), Path(__file__).with_name("sources.json"), RELIES_ON)


def install(*, untested: Untested = "known") -> None:
    """Make MLServer use this codec in the whole process. A second call has no effect.

    Running servers use the codec from their next request on. Parallel workers use it if they are
    started after this call, or if the module of a runtime that they load calls this function.
    MLServer is imported by this call, not before it. This function is thread-safe.

    Parameters
    ----------
    untested
        What to do about functions that differ from those that the integration was tested with. This
        concerns functions that it replaces, and those that it relies on. A function differs if its
        source is another one, or if other code has wrapped or replaced it. ``"known"`` does not
        replace such functions, and logs a warning that names them (logger
        ``tensorwire.integrations``). ``"allow"`` does the same, but does not compare sources.
        ``"error"`` raises IntegrationError. The sources of MLServer itself are compared if its
        version is newer than the tested ones.

    Raises
    ------
    IntegrationError
        MLServer is missing, its version is older than the tested ones, or it does not have the
        modules and classes that the integration uses. Also if its version is a tested one and a
        function is missing or has other parameters, and as described for ``untested``. Nothing was
        changed.
    ValueError
        ``untested`` has another value.
    """
    _PATCH.install(partial(_replacements, untested), untested)


def uninstall() -> None:
    """Restore MLServer's own functions. Running parallel workers are not affected.

    Raises
    ------
    IntegrationError
        Other code has wrapped a replaced function since ``install``. The wrapper has to be removed
        first. Nothing was changed.
    """
    _PATCH.uninstall()


def is_installed() -> bool:
    """Return whether MLServer uses this codec."""
    return _PATCH.installed


def _replacements(untested: Untested = "known") -> list[Replacement]:
    from .patches import replacements  # noqa: PLC0415 - imports MLServer

    return replacements(partial(install, untested=untested))


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
