"""Starlette, FastAPI and Litestar: routes with frames, and mounts of the application."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from tensorwire.server import create_app, read_request, send_frame

pytestmark = pytest.mark.thread_unsafe(reason="all tests share one server")

MISSING = "pip install '.[dev]' for fastapi, httpx and litestar"
if os.environ.get("CI"):
    import fastapi
    import httpx
    import litestar
    import starlette.applications
    import starlette.middleware.cors
    import starlette.requests
    import starlette.responses
    import starlette.routing
else:
    fastapi = pytest.importorskip("fastapi", reason=MISSING)
    httpx = pytest.importorskip("httpx", reason=MISSING)
    litestar = pytest.importorskip("litestar", reason=MISSING)
    starlette = pytest.importorskip("starlette", reason=MISSING)
    pytest.importorskip("starlette.applications", reason=MISSING)
    pytest.importorskip("starlette.middleware.cors", reason=MISSING)


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


async def post(app: Any, body: bytes, headers: dict[str, str], path: str = "/double") -> Any:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(path, content=body, headers=headers)


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


def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(request.inputs)


def starlette_mount(models: Any) -> Any:
    return starlette.applications.Starlette(routes=[starlette.routing.Mount("/models", models)])


def fastapi_mount(models: Any) -> Any:
    app = fastapi.FastAPI()
    app.mount("/models", models)
    return app


def litestar_mount(models: Any) -> Any:
    return litestar.Litestar([litestar.asgi("/models", is_mount=True, copy_scope=False)(models)])


@pytest.mark.parametrize("mount", [starlette_mount, fastapi_mount, litestar_mount])
def test_mounted_application(mount: Any) -> None:
    app = mount(create_app({"echo": echo}))
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.arange(3))]))
    path = "/models/v2/models/echo/infer"
    reply = asyncio.run(post(app, bytes(frame), frame.headers, path))
    response = tw.decode_response(reply.content, tw.header_length(reply.headers))
    assert response["x"].as_numpy().tolist() == [0, 1, 2]
    reply = asyncio.run(post(app, bytes(frame), frame.headers, path.replace("echo", "nobody")))
    assert (reply.status_code, reply.json()["error"]) == (404, "model 'nobody' is not known")


def test_cors_middleware() -> None:
    """A page of another origin may send a request, and read the header length of the response."""
    app = starlette.middleware.cors.CORSMiddleware(
        create_app({"echo": echo}),
        allow_origins=["https://app.example"],
        allow_methods=["GET", "POST"],
        allow_headers=["Inference-Header-Content-Length"],
        expose_headers=["Inference-Header-Content-Length"],
    )
    parameters = {"binary_data_output": True}
    x = tw.Tensor("x", np.arange(3))
    frame = tw.encode_request(tw.InferRequest([x], parameters=parameters))
    path = "/v2/models/echo/infer"

    async def ask() -> tuple[Any, Any]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://models") as client:
            origin = {"Origin": "https://app.example"}
            preflight = {
                **origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "inference-header-content-length",
            }
            return (
                await client.options(path, headers=preflight),
                await client.post(path, content=bytes(frame), headers=origin | frame.headers),
            )

    allowed, reply = asyncio.run(ask())
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert (
        "inference-header-content-length" in allowed.headers["access-control-allow-headers"].lower()
    )
    assert reply.headers["access-control-allow-origin"] == "https://app.example"
    exposed = reply.headers["access-control-expose-headers"].lower()
    assert "inference-header-content-length" in exposed
    response = tw.decode_response(reply.content, tw.header_length(reply.headers))
    assert response["x"].as_numpy().tolist() == [0, 1, 2]
