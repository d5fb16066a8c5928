"""Fixtures for tests of both clients: a server, and a response for scripted servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.servers import http, uvicorn_server
from tensorwire.asgi import Model, create_app
from tensorwire.client import AsyncClient, Client

MiB = 1 << 20
X = np.arange(1000, dtype=np.float32)
FRAME = tw.encode_response(tw.InferResponse([tw.Tensor("x", X)]))
BODY = bytes(FRAME)
HEADERS = {k: v for k, v in FRAME.headers.items() if k != "Content-Length"}
GOOD = http(BODY, HEADERS)


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(
        request.inputs, id=request.id, parameters={"saw": sorted(request.parameters)}
    )


async def slow(request: tw.InferRequest) -> tw.InferResponse:
    await asyncio.sleep(0.2)
    return tw.InferResponse(request.inputs)


def fail(request: tw.InferRequest) -> Any:
    raise RuntimeError("no")


SPEC = tw.TensorSpec("x", "FP32", [-1])
seen: list[dict[str, Any]] = []
_app = create_app(
    {
        "echo": echo,
        "a b/ü": echo,
        "slow": slow,
        "declared": Model(lambda r: {"y": r["x"].as_numpy() * 2}, [SPEC]),
        "half": lambda r: {"y": r["x"].as_numpy().astype("f2")},
        "fail": fail,
    },
    max_body=128 * MiB,
)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        seen.append({"peer": scope["client"], "path": scope["path"], **headers})
    await _app(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with uvicorn_server(app) as address:
        yield address


class Awaited:
    """An AsyncClient with blocking methods, so that a test can run with both clients."""

    def __init__(self, url: str, **options: Any) -> None:
        self.runner = asyncio.Runner()
        self.client = AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            return self.runner.run(getattr(self.client, name)(*arguments, **named))

        return call

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.client.close())
        self.runner.run(asyncio.sleep(0.01))  # asyncio closes the sockets in this time
        self.runner.close()


Connect = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Connect:
    return Client if request.param == "sync" else Awaited


@pytest.fixture
def client(connect: Connect, server: str) -> Iterator[Any]:
    with connect(server, timeout=20) as found:
        yield found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
