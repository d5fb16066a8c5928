"""Make NVIDIA's tritonclient use this codec: the same calls and results, with fewer copies.

    from tensorwire.integrations import tritonclient
    tritonclient.install()

Tested with tritonclient 2.60, 2.66, 2.69, 2.71 and 2.73.

What changes:

- BYTES tensors are serialized and deserialized by the compiled codec. Values that the codec would
  handle differently are passed on to tritonclient, with its own results and errors.
- ``http.InferInput.set_data_from_numpy`` keeps a reference to an array of 256 KiB or more until
  the request body is built. If you modify the array before then, pass a copy.
- ``as_numpy`` of a binary output returns a view of the response. The view keeps the whole response
  in memory, and it may be misaligned.
- BYTES inputs can also be a ``BytesTensor``, or numpy arrays of kind ``U`` or StringDType.

Unchanged: the values, types and errors of all results; JSON tensors, numeric tensors over gRPC, and
CUDA shared memory.
"""

from __future__ import annotations

from ..patching import Patch, Replacement
from .convert import VIEW_FROM_NBYTES
from .fast import REFER_FROM_NBYTES

__all__ = ["REFER_FROM_NBYTES", "VIEW_FROM_NBYTES", "install", "is_installed", "uninstall"]

_PATCH = Patch("tritonclient", ("2.60", "2.73"))


def install() -> None:
    """Make tritonclient use this codec in the whole process. A second call has no effect.

    Imports ``tritonclient.utils`` and, as far as they are installed, ``tritonclient.http``,
    ``tritonclient.grpc`` and ``tritonclient.utils.shared_memory``. Functions that other modules
    import from there, before or after this call, are replaced as well.

    ``http.InferInput.set_data_from_numpy`` then keeps a reference to a C-contiguous array of
    256 KiB or more until ``infer`` builds the request body (in the asyncio client, when the
    coroutine runs). If you modify the array before then, the modified values are sent: pass a copy
    to prevent this.

    ``as_numpy`` of a binary output then returns a view, which keeps the whole response in memory
    and may be misaligned. The view is read-only, as without the codec. All transports of
    tritonclient return responses as ``bytes``. Responses of other types, which a program can pass
    to ``parse_response_body``, are copied, as without the codec.

    This function is thread-safe.

    Raises
    ------
    IntegrationError
        tritonclient is missing, its version is outside the tested range, or it does not have the
        functions that the integration replaces. Nothing was changed.

    Examples
    --------
    >>> from tensorwire.integrations import tritonclient
    >>> tritonclient.install()
    >>> tritonclient.is_installed()
    True
    >>> tritonclient.uninstall()
    """
    _PATCH.install(_replacements)


def uninstall() -> None:
    """Restore tritonclient's own functions. Existing inputs and results remain usable."""
    _PATCH.uninstall()


def is_installed() -> bool:
    """Return whether tritonclient uses this codec."""
    return _PATCH.installed


def _replacements() -> list[Replacement]:
    from .patches import replacements  # noqa: PLC0415 - imports tritonclient

    return replacements()
