"""The README's recipes for HTTP libraries, each against a real server."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.requirements import package
from support.servers import uvicorn_server
from tensorwire.server import create_app

for name in ("aiohttp", "httpx", "requests", "urllib3"):
    package(name)

import aiohttp  # noqa: E402
import httpx  # noqa: E402
import requests  # noqa: E402
import urllib3  # noqa: E402

pytestmark = pytest.mark.thread_unsafe(reason="all tests share one server")

# The frame, not iter(frame): requests uses chunked encoding for iterators without length.
IDENTITY = {"Accept-Encoding": "identity"}


def with_requests(url: str, request: tw.InferRequest, session: requests.Session) -> Any:
    frame = tw.encode_request(request)
    headers = frame.headers | IDENTITY
    answer = session.post(url, data=frame, headers=headers)  # type: ignore[arg-type]
    answer.raise_for_status()
    return tw.decode_response(answer.content, tw.header_length(answer.headers))


def with_httpx(url: str, request: tw.InferRequest, client: httpx.Client) -> Any:
    frame = tw.encode_request(request)
    headers = frame.headers | IDENTITY
    answer = client.post(url, content=frame, headers=headers)  # type: ignore[arg-type]
    answer.raise_for_status()
    return tw.decode_response(answer.content, tw.header_length(answer.headers))


def with_urllib3(url: str, request: tw.InferRequest, pool: urllib3.PoolManager) -> Any:
    frame = tw.encode_request(request)
    headers = frame.headers | IDENTITY
    answer = pool.request("POST", url, body=frame, headers=headers)  # type: ignore[arg-type]
    if answer.status != 200:
        raise OSError(answer.data[:500])
    return tw.decode_response(answer.data, tw.header_length(answer.headers))


async def with_aiohttp(url: str, request: tw.InferRequest, session: aiohttp.ClientSession) -> Any:
    frame = tw.encode_request(request)

    async def buffers() -> Any:
        for buffer in frame:
            yield buffer

    headers = frame.headers | IDENTITY
    async with session.post(url, data=buffers(), headers=headers) as answer:
        answer.raise_for_status()
        return tw.decode_response(await answer.read(), tw.header_length(answer.headers))


def with_http_client(
    path: str, request: tw.InferRequest, connection: http.client.HTTPConnection
) -> Any:
    frame = tw.encode_request(request)
    connection.request("POST", path, iter(frame), frame.headers | IDENTITY)
    answer = connection.getresponse()
    if answer.status != 200:
        raise OSError(answer.read()[:500])
    header_length = tw.header_length(answer.headers)
    body = tw.BodyBuffer(answer.length, header_length)  # aligned, and received without a copy
    while nbytes := answer.readinto(body.remaining()):
        body.advance(nbytes)
    if not body.complete:
        raise OSError(f"the response is truncated: {body}")
    return tw.decode_response(body, header_length)


# --- each of them ---


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    assert "transfer-encoding" not in seen[-1]
    assert seen[-1]["accept-encoding"] == "identity"
    return tw.InferResponse(request.inputs)


seen: list[dict[str, str]] = []
_app = create_app({"echo": echo})


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        seen.append({k.decode(): v.decode() for k, v in scope["headers"]})
    await _app(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with uvicorn_server(app) as address:
        yield address


def by_requests(server: str, path: str, request: tw.InferRequest) -> Any:
    with requests.Session() as session:
        return with_requests(f"http://{server}{path}", request, session)


def by_httpx(server: str, path: str, request: tw.InferRequest) -> Any:
    with httpx.Client() as client:
        return with_httpx(f"http://{server}{path}", request, client)


def by_urllib3(server: str, path: str, request: tw.InferRequest) -> Any:
    with urllib3.PoolManager() as pool:
        return with_urllib3(f"http://{server}{path}", request, pool)


def by_aiohttp(server: str, path: str, request: tw.InferRequest) -> Any:
    async def main() -> Any:
        async with aiohttp.ClientSession() as session:
            return await with_aiohttp(f"http://{server}{path}", request, session)

    return asyncio.run(main())


def by_http_client(server: str, path: str, request: tw.InferRequest) -> Any:
    connection = http.client.HTTPConnection(server)
    try:
        return with_http_client(path, request, connection)
    finally:
        connection.close()


RECIPES = [by_requests, by_httpx, by_urllib3, by_aiohttp, by_http_client]


@pytest.mark.parametrize("n", [0, 3, 1 << 20])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(server: str, recipe: Any, n: int) -> None:
    tensors = [tw.Tensor("x", np.arange(n, dtype=np.float32)), tw.Tensor("words", ["a", "bc"])]
    request = tw.InferRequest(tensors, parameters={"binary_data_output": True})
    response = recipe(server, "/v2/models/echo/infer", request)
    assert np.array_equal(response["x"].as_numpy(), tensors[0].as_numpy())
    assert response["words"].as_numpy().tolist() == [b"a", b"bc"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_error_response(server: str, recipe: Any) -> None:
    request = tw.InferRequest([tw.Tensor("x", np.zeros(3))])
    with pytest.raises((OSError, httpx.HTTPStatusError, aiohttp.ClientResponseError)):
        recipe(server, "/v2/models/nobody/infer", request)
