"""Calls of a gRPC servicer with serialized messages, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Context:
    """The context of a call without metadata."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def set_trailing_metadata(self, metadata: Any) -> None:
        pass


class Server:
    """Takes the handlers of a servicer, of which those that are added last count."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        pass

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.handlers.update(handlers)


def infer(add_to_server: Callable[[Any, Any], None], servicer: Any, message: bytes) -> bytes:
    """Add the servicer to a server, and return the response to a ModelInfer call."""
    server = Server()
    add_to_server(servicer, server)
    handler = server.handlers["ModelInfer"]
    request = handler.request_deserializer(message)
    response = asyncio.run(handler.unary_unary(request, Context()))
    sent: bytes = handler.response_serializer(response)
    return sent
