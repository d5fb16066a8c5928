"""Calls of a servicer with generated classes, through a server of grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc


def ask(
    add_to_server: Callable[[Any, Any], None],
    servicer: Any,
    stub: Callable[[Any], Any],
    *requests: Any,
    **options: Any,
) -> list[Any]:
    """Return the responses to ModelInfer requests, with name and details of the status of errors.

    Functions among the requests are called. The options are those of the server.
    """

    async def run() -> list[Any]:
        server = grpc.aio.server(**options)
        add_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        found: list[Any] = []
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                for request in requests:
                    if callable(request):
                        request()
                        continue
                    try:
                        found.append(await stub(channel).ModelInfer(request))
                    except grpc.aio.AioRpcError as error:
                        found.append((error.code().name, error.details()))
        finally:
            await server.stop(0)
        return found

    return asyncio.run(run())
