"""Make NVIDIA's tritonclient use this codec: the same calls and results, with fewer copies.

    import tensorwire.integrations.tritonclient
    tensorwire.integrations.tritonclient.install()

Tested with tritonclient 2.60, 2.66, 2.69, 2.71 and 2.73.

What changes:

- BYTES tensors are serialized and deserialized by the compiled codec. Values that the codec would
  handle differently are passed on to tritonclient, with its own results and errors.
- An ``InferInput`` refers to an array of 256 KiB or more instead of copying it. Each request sends
  the values that the array has then. If you modify the array before that, pass a copy.
- Requests over gRPC are serialized with one copy of each tensor, and responses are parsed without
  their tensors: ``infer``, ``async_infer`` and streams of ``tritonclient.grpc`` and its ``aio``.
- ``infer`` over HTTP sends such arrays without copying them. Over ``tritonclient.http``, it
  receives the binary data of a response directly into separate memory.
- ``as_numpy`` of a binary output of numbers returns a view of the response. The view keeps the
  whole response in memory, and it may be misaligned.
- BYTES inputs can also be a ``BytesArray``, or numpy arrays of kind ``U`` or StringDType.

Unchanged: the values, types and errors of all results; JSON tensors, and CUDA shared memory.
"""

from __future__ import annotations

from pathlib import Path

from ..patching import Patch, Replacement, Untested
from .convert import REFER_FROM_NBYTES
from .sources import RELIES_ON

__all__ = ["REFER_FROM_NBYTES", "install", "is_installed", "uninstall"]

_PATCH = Patch(
    "tritonclient", ("2.60", "2.73"), Path(__file__).with_name("sources.json"), RELIES_ON
)


def install(*, untested: Untested = "known") -> None:
    """Make tritonclient use this codec in the whole process. A second call has no effect.

    Imports ``tritonclient.utils`` and, as far as they are installed, ``tritonclient.http``,
    ``tritonclient.grpc`` and ``tritonclient.utils.shared_memory``. Functions that other modules
    import from there, before or after this call, are replaced as well.

    ``InferInput.set_data_from_numpy`` then keeps a reference to a C-contiguous array of 256 KiB or
    more until the input gets other data. If you modify the array, the next request with this input
    sends the modified values: pass a copy to prevent this. ``infer``, ``async_infer``,
    ``async_stream_infer`` and ``generate_request_body`` have read the array when they return.

    ``as_numpy`` of a binary output then returns a view, which keeps the whole response in memory
    and may be misaligned. The view is read-only, as without the codec. A response that is not
    ``bytes``, which a program can pass to ``parse_response_body``, is copied, as without the codec.

    This function is thread-safe.

    Parameters
    ----------
    untested
        What to do about functions that differ from those that the integration was tested with. This
        concerns functions that it replaces, and those that it relies on. A function differs if its
        source is another one, or if other code has wrapped or replaced it. ``"known"`` does not
        replace such functions, and logs a warning that names them (logger
        ``tensorwire.integrations``). ``"allow"`` does the same, but does not compare sources.
        ``"error"`` raises IntegrationError. The sources of tritonclient itself are compared if its
        version is newer than the tested ones.

    Raises
    ------
    IntegrationError
        tritonclient is missing, its version is older than the tested ones, or it does not have the
        modules and classes that the integration uses. Also if its version is a tested one and a
        function is missing or has other parameters, and as described for ``untested``. Nothing was
        changed.
    ValueError
        ``untested`` has another value.

    Examples
    --------
    >>> import tensorwire.integrations.tritonclient
    >>> tensorwire.integrations.tritonclient.install()
    >>> tensorwire.integrations.tritonclient.is_installed()
    True
    >>> tensorwire.integrations.tritonclient.uninstall()
    """
    _PATCH.install(_replacements, untested)


def uninstall() -> None:
    """Restore tritonclient's own functions. Existing inputs and results remain usable.

    Raises
    ------
    IntegrationError
        Other code has wrapped a replaced function since ``install``. The wrapper has to be removed
        first. Nothing was changed.
    """
    _PATCH.uninstall()


def is_installed() -> bool:
    """Return whether tritonclient uses this codec."""
    return _PATCH.installed


def _replacements() -> list[Replacement]:
    from .patches import replacements  # noqa: PLC0415 - imports tritonclient

    return replacements()


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
