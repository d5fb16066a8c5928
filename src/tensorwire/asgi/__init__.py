"""HTTP's edge for any ASGI server: read a request, send a frame, or serve whole models."""

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
