"""Make MLServer use this codec: for binary REST requests, JSON, its codecs and raw gRPC contents.

    import tensorwire.integrations.mlserver
    tensorwire.integrations.mlserver.install()

``python -m tensorwire.integrations.mlserver start FOLDER`` runs ``mlserver start FOLDER`` with the
integration installed. Running servers use the codec from their next request on. Parallel workers
use it if they are started after ``install()``, or if the module of a runtime that they load calls
it; ``uninstall()`` does not affect them. Tested with MLServer 1.6.1, 1.7.0 and 1.7.1.

The integration hooks the class of MLServer's REST routes: there it reads the requests to the
endpoint ``infer``, calls MLServer's endpoint, and writes the response. It also hooks the converters
and the handler of gRPC's ``ModelInfer``, for raw contents, and the codecs, for arrays.

What changes:

- The REST endpoint ``infer`` accepts requests with a header length, and raw binary requests if the
  settings of the model declare one input. Outputs are binary if the request asks for it. The
  server metadata lists the extension ``binary_tensor_data``.
- Models get writable and aligned arrays. Binary tensors are views of the request body, except that
  misaligned tensors and raw gRPC contents are copied once.
- Malformed binary requests are rejected with status 400 or 415, and bodies longer than
  ``max_body_nbytes`` with 413. Malformed raw contents are rejected with status 400.

Unchanged: ``tensor.data`` is still a list. For binary data, it is built on first access; after
that, the list is authoritative. JSON requests become the same lists, and get responses with the
same members and values. The details are in docs/integrations/mlserver.md.
"""

from __future__ import annotations

from collections.abc import Callable

from ..rest import InstallRest, RestPatch

__all__ = ["install", "is_installed", "uninstall"]

_PATCH = RestPatch("mlserver", ("1.6.1", "1.7.1"), __name__)
install: InstallRest = _PATCH.install
uninstall: Callable[[], None] = _PATCH.uninstall
is_installed: Callable[[], bool] = _PATCH.is_installed


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
