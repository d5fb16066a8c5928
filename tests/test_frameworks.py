"""Starlette and FastAPI: a route that decodes the ASGI request and returns a frame."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from tensorwire.asgi import read_request, send_frame

pytestmark = pytest.mark.thread_unsafe(reason="all tests share one server")

MISSING = "pip install '.[test]' for fastapi and httpx"
if os.environ.get("CI"):
    import fastapi
    import httpx
    import starlette.applications
    import starlette.requests
    import starlette.responses
    import starlette.routing
else:
    fastapi = pytest.importorskip("fastapi", reason=MISSING)
    httpx = pytest.importorskip("httpx", reason=MISSING)
    starlette = pytest.importorskip("starlette", reason=MISSING)
    pytest.importorskip("starlette.applications", reason=MISSING)


class FrameResponse(starlette.responses.Response):
    """A response that sends a frame buffer by buffer."""

    def __init__(self, frame: tw.Frame) -> None:
        super().__init__()
        self.frame = frame

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send_frame(send, self.frame)


async def double(request: starlette.requests.Request) -> Any:
    try:
        infer_request = await read_request(request.scope, request.receive, max_body=1 << 20)
    except tw.DecodeError as error:
        answer = {"error": str(error)}
        return starlette.responses.JSONResponse(answer, status_code=error.status)
    outputs = [tw.Tensor("y", infer_request["x"].as_numpy() * 2)]
    return FrameResponse(tw.encode_response(tw.InferResponse(outputs), infer_request))


def starlette_app() -> Any:
    route = starlette.routing.Route("/double", double, methods=["POST"])
    return starlette.applications.Starlette(routes=[route])


def fastapi_app() -> Any:
    app = fastapi.FastAPI()

    @app.post("/double", response_class=FrameResponse)
    async def route(request: fastapi.Request) -> Any:
        return await double(request)

    return app


async def post(app: Any, body: bytes, headers: dict[str, str]) -> Any:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post("/double", content=body, headers=headers)


@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
def test_route_decodes_request_and_sends_frame(make: Any) -> None:
    app = make()
    frame = tw.encode_request(
        tw.InferRequest(
            [tw.Tensor("x", np.arange(30_000, dtype=np.float32))],
            parameters={"binary_data_output": True},
        )
    )
    reply = asyncio.run(post(app, bytes(frame), frame.headers))
    assert reply.status_code == 200
    response = tw.decode_response(reply.content, tw.header_length(reply.headers))
    assert np.array_equal(response["y"].as_numpy(), np.arange(30_000) * 2)
    broken = asyncio.run(post(app, bytes(frame)[:-4], frame.headers | {"Content-Length": "120188"}))
    assert (broken.status_code, "error" in broken.json()) == (400, True)
