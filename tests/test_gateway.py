"""The gateway of the manual, between a client and a server of models."""

from __future__ import annotations

import http.client
import json
import logging
import re
from collections.abc import Iterator
from contextlib import closing
from types import ModuleType
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import tensorwire as tw
from support.examples import ROOT
from support.requirements import package
from support.servers import uvicorn_server
from tensorwire.client import Client, InferenceServerError
from tensorwire.server import RequestError, create_app

pytestmark = [
    pytest.mark.no_sanitizers(reason="it reads the repository"),
    pytest.mark.thread_unsafe(reason="all tests share one gateway"),
]

PAGE = (ROOT / "docs" / "guide" / "gateways.md").read_text()
[PROGRAM] = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
INFER = "/v2/models/resnet/infer"


def resnet(request: tw.InferRequest) -> dict[str, Any]:
    if request["image"].nbytes == 0:
        raise RequestError("the image is empty", 422)
    received.append(request)
    return {"scores": request["image"].as_numpy() * 2, "embedding": np.zeros(2)}


received: list[tw.InferRequest] = []


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with uvicorn_server(create_app({"resnet_v2": resnet})) as address:
        yield f"http://{address}"


@pytest.fixture(scope="module")
def program(server: str) -> Iterator[ModuleType]:
    package("httpx2")
    module = ModuleType("gateway")
    exec(PROGRAM, module.__dict__)
    module.SERVER = server  # type: ignore[attr-defined]
    yield module


@pytest.fixture(scope="module")
def url(program: Any) -> Iterator[str]:
    with uvicorn_server(program.app) as address:
        yield f"http://{address}"


def test_images_are_forwarded(url: str) -> None:
    image = np.arange(1 << 19, dtype=np.float32)
    with Client(url) as client:
        response = client.infer("resnet", {"image": image}, parameters={"tags": {"a": [1]}})
        assert response.model_name == "resnet" and list(response) == ["scores"]
        assert response["scores"].binary
        assert np.array_equal(response["scores"].as_numpy(), image * 2)
        with pytest.raises(InferenceServerError, match="the image is empty") as error:
            client.infer("resnet", {"image": image[:0]})
        assert error.value.status == 422


def post(url: str, body: bytes, path: str = INFER) -> tuple[int, Any]:
    address = url.removeprefix("http://")
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_what_is_logged_and_forwarded(url: str, caplog: pytest.LogCaptureFixture) -> None:
    image = {"name": "image", "datatype": "FP32", "shape": [2], "data": [1, 2], "new": 0}
    parameters = {"tags": {"a": [1, "b"]}}
    body = {"id": "7", "unknown": 1, "parameters": parameters, "outputs": [], "inputs": [image]}
    with caplog.at_level(logging.INFO, "gateway"):
        status, answer = post(url, json.dumps(body).encode())
    assert status == 200
    assert [output["name"] for output in answer["outputs"]] == ["scores"]
    assert answer["id"] == "7"
    [line] = [record.message for record in caplog.records if record.name == "gateway"]
    inputs = {"image": ["FP32", 2]}
    assert json.loads(line) == {"model": "resnet", "inputs": inputs, "parameters": parameters}
    assert received[-1].parameters["tags"]["a"] == [1, "b"]
    assert b"unknown" not in bytes(tw.encode_request(received[-1]))


def test_errors(program: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_received = len(received)
    inputs = [{"name": f"x{i}", "datatype": "FP32", "shape": [0], "data": []} for i in range(65)]
    status, answer = post(url, json.dumps({"inputs": inputs}).encode())
    assert status == 400
    assert answer["error"] == "the message has more than 64 inputs, which is the limit"
    monkeypatch.setattr(program, "SERVER", "http://127.0.0.1:9")
    status, answer = post(url, json.dumps({"inputs": inputs[:1]}).encode())
    assert (status, answer) == (502, {"error": "the server 'resnet' failed: ConnectError"})
    assert len(received) == n_received


@pytest.mark.parametrize("name", ["resnet_v2?", "resnet_v2#", "a\r\nb", "ä b"])
def test_name_that_is_not_known(url: str, name: str) -> None:
    """It is sent as one segment of the path, as it was received."""
    image = {"name": "image", "datatype": "FP32", "shape": [1], "data": [1]}
    path = f"/v2/models/{quote(name)}/infer"
    status, answer = post(url, json.dumps({"inputs": [image]}).encode(), path)
    error = f"model {name!r} is not known: the models are ['resnet_v2']"
    assert (status, answer) == (404, {"error": error})
