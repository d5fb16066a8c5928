"""Recipes for HTTP libraries, each against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import tensorwire as tw
from support.examples import ROOT
from support.requirements import optional, package
from support.servers import recording, uvicorn_server
from tensorwire.client import Client
from tensorwire.server import RequestError, create_app

aiohttp, requests, urllib3 = optional("aiohttp"), optional("requests"), optional("urllib3")

pytestmark = pytest.mark.thread_unsafe(reason="all tests share one server")

# The frame, not iter(frame): requests uses chunked encoding for iterators without length.
IDENTITY = {"Accept-Encoding": "identity"}


def with_requests(url: str, frame: tw.Frame, headers: dict[str, str]) -> tw.InferResponse:
    answer = requests.post(url, data=frame, headers=headers)
    answer.raise_for_status()
    return tw.decode_response(answer.content, tw.header_length(answer.headers))


def with_httpx(url: str, frame: tw.Frame, headers: dict[str, str], httpx: Any) -> tw.InferResponse:
    answer = httpx.post(url, content=frame, headers=headers)
    answer.raise_for_status()
    return tw.decode_response(answer.content, tw.header_length(answer.headers))


def with_async_httpx(
    url: str, frame: tw.Frame, headers: dict[str, str], httpx: Any
) -> tw.InferResponse:
    async def send() -> tw.InferResponse:
        async with httpx.AsyncClient() as client:
            answer = await client.post(url, content=aiter(frame), headers=headers)
            answer.raise_for_status()
            return tw.decode_response(answer.content, tw.header_length(answer.headers))

    return asyncio.run(send())


def with_urllib3(url: str, frame: tw.Frame, headers: dict[str, str]) -> tw.InferResponse:
    answer = urllib3.request("POST", url, body=frame, headers=headers)
    if answer.status != 200:
        raise OSError(answer.data[:500])
    return tw.decode_response(answer.data, tw.header_length(answer.headers))


def with_aiohttp(url: str, frame: tw.Frame, headers: dict[str, str]) -> tw.InferResponse:
    async def send() -> tw.InferResponse:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=frame, headers=headers) as answer,
        ):
            answer.raise_for_status()
            return tw.decode_response(await answer.read(), tw.header_length(answer.headers))

    return asyncio.run(send())


def with_http_client(url: str, frame: tw.Frame, headers: dict[str, str]) -> tw.InferResponse:
    parts = urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(parts.netloc)) as connection:
        connection.request("POST", parts.path, frame, headers)
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


seen: list[dict[str, Any]] = []


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with uvicorn_server(recording(create_app({"echo": echo}), seen)) as address:
        yield address


RECIPES: dict[str, Callable[..., tw.InferResponse]] = {
    "requests": with_requests,
    "httpx": partial(with_httpx, httpx=optional("httpx")),
    "httpx2": partial(with_httpx, httpx=optional("httpx2")),
    "httpx.AsyncClient": partial(with_async_httpx, httpx=optional("httpx")),
    "httpx2.AsyncClient": partial(with_async_httpx, httpx=optional("httpx2")),
    "urllib3": with_urllib3,
    "aiohttp": with_aiohttp,
    "http.client": with_http_client,
}


def infer(server: str, library: str, model: str, request: tw.InferRequest) -> tw.InferResponse:
    frame, url = tw.encode_request(request), f"http://{server}/v2/models/{model}/infer"
    return RECIPES[library](url, frame, frame.headers | IDENTITY)


@pytest.mark.parametrize("n", [0, 3, 1 << 20])
@pytest.mark.parametrize("library", RECIPES)
def test_recipe(server: str, library: str, n: int) -> None:
    tensors = [tw.Tensor("x", np.arange(n, dtype=np.float32)), tw.Tensor("words", ["a", "bc"])]
    request = tw.InferRequest(tensors, parameters={"binary_data_output": True})
    response = infer(server, library, "echo", request)
    assert np.array_equal(response["x"].as_numpy(), tensors[0].as_numpy())
    assert response["words"].as_numpy().tolist() == [b"a", b"bc"]


@pytest.mark.parametrize("library", RECIPES)
def test_error_response(server: str, library: str) -> None:
    request = tw.InferRequest([tw.Tensor("x", np.zeros(3))])
    with pytest.raises(Exception, match=r"404|unknown.* is not known"):
        infer(server, library, "unknown", request)


# --- the programs of the guide that need a client or a region ---


def program(page: str, text: str) -> dict[str, Any]:
    """Return the names of the block of a page that contains a text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide" / page).read_text(), re.DOTALL)
    [code] = [block for block in blocks if text in block]
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_progress_with_tqdm(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    package("tqdm")
    with Client(server) as client:
        infer = program("notebook.md", "tqdm")["infer_with_bar"]
        assert infer(client, "echo", {"x": np.zeros(1 << 22, np.uint8)})["x"].nbytes == 1 << 22
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["mode", "size", "name", "gone"])
def test_region_that_is_rejected(change: str) -> None:
    names = program("one-machine.md", "mmap")
    _, tensor = names["shared"]("x", (2, 3), "float32")
    path = Path(names["FOLDER"], tensor.parameters["shared_memory_region"])
    try:
        if change == "mode":
            path.chmod(0o644)
        if change == "size":
            path.write_bytes(bytes(23))
        if change == "name":
            tensor = tensor.replace(parameters={"shared_memory_region": "../etc/passwd"})
        if change == "gone":
            path.rename(path.with_suffix(".gone"))
            path = path.with_suffix(".gone")
        with pytest.raises(RequestError):
            names["mapped"](tensor)
    finally:
        path.unlink()
