"""Make KServe's Python SDK use this codec. Servers and clients need no other changes.

    import tensorwire.integrations.kserve
    tensorwire.integrations.kserve.install()

Call it before the server is started: a REST server that runs already keeps KServe's own route, and
a gRPC server its own handler. The worker processes that the server starts call it themselves.
Tested with KServe 0.17.0, 0.17.1, 0.18.1, 0.19.0, 0.20.0 and 0.21.0.

The integration adds a route to KServe's REST server, before KServe's own route for ``infer``. It
reads the request, calls KServe's data plane, and writes the response. JSON that it does not read
goes on to KServe's own route. The gRPC server gets another handler for ``ModelInfer``, which does
not copy raw contents. What changes:

- ``as_numpy()`` returns a writable view of the request body, or an array that was read from JSON.
  ``data`` is still a list, which is built on first access. After that, the list is authoritative.
- A response has the outputs and the format that the request asks for, whatever the model passes to
  ``InferResponse``, and an id.
- BYTES that are not UTF-8 are delivered as ``bytes``; BF16 is supported.
- Malformed binary requests and raw contents are rejected with status 400, and bodies longer than
  ``max_body_nbytes`` with 413.
- The server metadata lists the extension ``binary_tensor_data``.
- KServe's REST client reads binary responses in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..rest import InstallRest, RestPatch

__all__ = ["install", "is_installed", "uninstall"]

_PATCH = RestPatch("kserve", ("0.17", "0.21"), __name__)
install: InstallRest = _PATCH.install
uninstall: Callable[[], None] = _PATCH.uninstall
is_installed: Callable[[], bool] = _PATCH.is_installed


def _install_and_run(options: dict[str, Any], target: Any, **arguments: Any) -> Any:
    """Run the target of a worker process, in which the integration is not installed yet.

    ``options`` are the arguments of `install`.

    KServe's server stops a worker that does not answer within 5 s. The worker imports what its
    target refers to before it can answer, so this function is not in a module that imports KServe.
    """
    install(**options)
    return target(**arguments)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
