"""Serve the Open Inference Protocol over HTTP and gRPC.

``create_app`` returns an application that serves models by name, with any ASGI server. uvicorn
serves it without ASGI if its option ``http`` is ``InferProtocol``.
``add_to_grpc_server`` serves the same models with gRPC. To serve inference requests in a route of
another framework, use ``read_request`` and ``send_frame``, and ``install_error_handlers``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .asgi import App as create_app
from .asgi import read_request, send_error, send_frame
from .context import RequestContext
from .error_handlers import install_error_handlers
from .errors import (
    ClientDisconnectedError,
    InputError,
    ReceiveTimeoutError,
    RequestError,
    UnsupportedEncodingError,
)
from .model import Model, Models

if TYPE_CHECKING:
    from .grpc import add_to_grpc_server
    from .uvicorn import InferProtocol

__all__ = [
    "ClientDisconnectedError",
    "InferProtocol",
    "InputError",
    "Model",
    "Models",
    "ReceiveTimeoutError",
    "RequestContext",
    "RequestError",
    "UnsupportedEncodingError",
    "add_to_grpc_server",
    "create_app",
    "install_error_handlers",
    "read_request",
    "send_error",
    "send_frame",
]

# Imported on demand, because they require optional packages: uvicorn and httptools, and grpcio.
_OPTIONAL = {"InferProtocol": ".uvicorn", "add_to_grpc_server": ".grpc"}


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        return getattr(import_module(_OPTIONAL[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
