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

``install()`` imports ``tritonclient.utils`` and, as far as they are installed,
``tritonclient.http``, ``tritonclient.grpc`` and ``tritonclient.utils.shared_memory``. An
``InferInput`` then keeps a reference to a large C-contiguous array until it gets other data;
``infer``, ``async_infer``, ``async_stream_infer`` and ``generate_request_body`` have read the array
when they return. A response that is not ``bytes``, which a program can pass to
``parse_response_body``, is copied, as without the codec.

Unchanged: the values, types and errors of all results; JSON tensors, and CUDA shared memory.
"""

from __future__ import annotations

from collections.abc import Callable

from ..patching import Install, Patch
from .convert import REFER_FROM_NBYTES

__all__ = ["REFER_FROM_NBYTES", "install", "is_installed", "uninstall"]

_PATCH = Patch("tritonclient", ("2.60", "2.73"), __name__)
install: Install = _PATCH.install
uninstall: Callable[[], None] = _PATCH.uninstall
is_installed: Callable[[], bool] = _PATCH.is_installed


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
