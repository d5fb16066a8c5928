"""Serve the Open Inference Protocol from any ASGI or RSGI server.

``create_app`` returns an application that serves models by name. To serve inference requests in a
route of another framework, use ``read_request`` and ``send_frame``.
"""

from .server.app import App, create_app
from .server.asgi import read_request, send_error, send_frame
from .server.body import (
    DEFAULT_MAX_BODY,
    DEFAULT_RECEIVE_TIMEOUT,
    ClientDisconnectedError,
    ReceiveTimeoutError,
    UnsupportedEncodingError,
)
from .server.model import Model
from .server.workers import DEFAULT_MAX_CONCURRENCY

__all__ = [
    "DEFAULT_MAX_BODY",
    "DEFAULT_MAX_CONCURRENCY",
    "DEFAULT_RECEIVE_TIMEOUT",
    "App",
    "ClientDisconnectedError",
    "Model",
    "ReceiveTimeoutError",
    "UnsupportedEncodingError",
    "create_app",
    "read_request",
    "send_error",
    "send_frame",
]
