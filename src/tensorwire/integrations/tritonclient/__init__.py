"""Make NVIDIA's tritonclient use this codec: the same calls and results, with fewer copies.

    import tensorwire.integrations.tritonclient
    tensorwire.integrations.tritonclient.install()

Tested with tritonclient 2.60, 2.66, 2.69, 2.71 and 2.73.

The integration hooks ``set_data_from_numpy`` of ``InferInput``, which then keeps numbers in an
array, and the function that creates requests, which then leaves the data out of the JSON header or
the gRPC message. It hooks the methods of the clients that send requests: there, the data follow the
header or the message, if only geventhttpclient, aiohttp or grpcio handle them. It hooks
``InferResult``, which reads the outputs from views of the response, and the functions for BYTES.

What changes:

- BYTES tensors are serialized and deserialized by the compiled codec. Values that the codec would
  handle differently are passed on to tritonclient, with its own results and errors.
- An ``InferInput`` copies numbers once, into memory of numpy. ``install(refer_to_arrays=True)``
  makes it refer to arrays of 2 MiB or more instead.
- ``infer`` and ``async_infer`` over HTTP send inputs of 2 MiB or more without copying them again.
  Over ``tritonclient.http``, ``infer`` receives the binary data of a response directly into
  separate memory.
- Requests over gRPC are serialized with one copy of each tensor, and responses are parsed without
  their tensors: ``infer``, ``async_infer`` and streams of ``tritonclient.grpc`` and its ``aio``.
- ``as_numpy`` of a binary output of numbers returns a view of the response. The view keeps the
  whole response in memory, and it may be misaligned.
- BYTES inputs can also be a ``BytesArray``, or numpy arrays of kind ``U`` or StringDType.

``install()`` imports ``tritonclient.utils`` and, as far as they are installed,
``tritonclient.http``, ``tritonclient.grpc`` and ``tritonclient.utils.shared_memory``. A response
that is not ``bytes``, which a program can pass to ``parse_response_body``, is copied, as without
the codec.

Unchanged: the values, types and errors of all results; JSON tensors, and CUDA shared memory.
"""

from __future__ import annotations

from collections.abc import Callable

from ..patching import Patch, Untested
from .convert import options

__all__ = ["install", "is_installed", "uninstall"]

_PATCH = Patch("tritonclient", ("2.60", "2.73"), __name__)
uninstall: Callable[[], None] = _PATCH.uninstall
is_installed: Callable[[], bool] = _PATCH.is_installed


def install(*, untested: Untested = "known", refer_to_arrays: bool = False) -> None:
    """Make tritonclient use this codec in the whole process.

    Functions that other modules import from tritonclient, before or after this call, are replaced
    as well. A second call only sets ``refer_to_arrays``. This function is thread-safe.

    Parameters
    ----------
    untested
        What to do about functions that differ from those that the integration was tested with. This
        concerns functions that it replaces, and those that it relies on. A function differs if its
        source is another one, if other code has wrapped or replaced it, if it is missing, or if it
        has other parameters. ``"known"`` does not replace such functions, and logs a warning that
        names them (logger ``tensorwire.integrations``). ``"allow"`` does the same, but does not
        compare sources. ``"error"`` raises IntegrationError. The sources of tritonclient itself are
        compared if its version is newer than the tested ones, and those of other packages always.
    refer_to_arrays
        Whether ``set_data_from_numpy`` refers to a C-contiguous array of 2 MiB or more instead of
        copying it. This saves the copy, but a request then sends the values that the array has when
        the request is sent: if a program fills one buffer with the data of several inputs, all of
        them send what it contains last, and if it modifies the array while ``infer`` runs, the
        server may receive a mixture. ``async_infer``, ``async_stream_infer`` and
        ``generate_request_body`` have read the array when they return. A stream of
        ``tritonclient.grpc.aio`` reads it when it asks the program for the next request. Inputs
        whose data are already set do not change.

    Raises
    ------
    IntegrationError
        tritonclient is missing, its version is older than the tested ones, or it does not have the
        modules and classes that the integration uses. Also as described for ``untested``. Nothing
        was changed.
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
    with _PATCH.lock:
        if not is_installed():
            options.refer_to_arrays = False  # until all functions are replaced
        _PATCH.install(untested=untested)
        options.refer_to_arrays = bool(refer_to_arrays)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
