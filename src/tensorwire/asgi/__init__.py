"""Serve the Open Inference Protocol from any ASGI server.

``create_app`` returns an application that serves models by name. To serve inference requests in a
route of another framework, use ``read_request`` and ``send_frame``.
"""

from .app import Model, create_app
from .exchange import (
    DEFAULT_MAX_BODY,
    ClientDisconnected,
    UnsupportedEncoding,
    read_request,
    send_error,
    send_frame,
)

__all__ = [
    "DEFAULT_MAX_BODY",
    "ClientDisconnected",
    "Model",
    "UnsupportedEncoding",
    "create_app",
    "read_request",
    "send_error",
    "send_frame",
]
