"""The endpoints of models beyond metadata and inference: configuration, statistics, index."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import ask, echo, exchange, infer, inference, rejects_every_second
from support.requirements import optional
from support.servers import uvicorn_server
from tensorwire.server import InferProtocol, Model, RequestError, create_app

tritonclient_http = optional("tritonclient.http")
tritonclient_utils = optional("tritonclient.utils")


SPECS = [tw.TensorSpec("x", "FP32", [-1, 3]), tw.TensorSpec("text", "BYTES", [2])]
OUTPUT = tw.TensorSpec("y", "BF16", [5])
MODELS: dict[str, Any] = {
    "plain": echo,
    "declared": Model(echo, SPECS, [OUTPUT]),
    "batching": Model(echo, SPECS, [OUTPUT], batching=True),
    "partly": Model(echo, [SPECS[0], tw.TensorSpec("b", "INT8", [2], batching=True)]),
}
APP = create_app(MODELS)


def get(path: str, app: Any = APP, method: str = "GET") -> Any:
    answer = ask(app, path, method)
    assert answer.status == 200
    return json.loads(answer.body)


# --- configuration -------------------------------------------------------------------------------


def test_config_without_declarations() -> None:
    assert get("/v2/models/plain/config") == {
        "name": "plain",
        "platform": "tensorwire",
        "backend": "tensorwire",
        "max_batch_size": 0,
        "input": [],
        "output": [],
    }


@pytest.mark.parametrize("path", ["/config", "/versions/1/config"])
@pytest.mark.parametrize(("name", "batch_size"), [("declared", 0), ("batching", 2**31 - 1)])
def test_config(name: str, path: str, batch_size: int) -> None:
    """The dimensions of a model with a maximum batch size are those behind the batch dimension."""
    found = get(f"/v2/models/{name}{path}")
    assert found["max_batch_size"] == batch_size
    assert found["input"] == [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3], "optional": False},
        {"name": "text", "data_type": "TYPE_STRING", "dims": [2], "optional": False},
    ]
    assert found["output"] == [{"name": "y", "data_type": "TYPE_BF16", "dims": [5]}]


def test_config_of_a_model_with_one_batched_input() -> None:
    found = get("/v2/models/partly/config")
    assert found["max_batch_size"] == 0
    assert [each["dims"] for each in found["input"]] == [[-1, 3], [-1, 2]]


# --- statistics ----------------------------------------------------------------------------------


def async_model(function: Any) -> Any:
    async def model(request: tw.InferRequest) -> Any:
        await asyncio.sleep(0)
        return function(request)

    return model


def call(function: Any, request: tw.InferRequest) -> Any:
    return function(request)


def wrapped(function: Any) -> Any:
    return partial(call, async_model(function))


def counts(app: Any, name: str = "m") -> tuple[int, int]:
    [found] = get(f"/v2/models/{name}/stats", app)["model_stats"]
    assert found["inference_count"] == found["execution_count"]
    stats = found["inference_stats"]
    assert found["inference_count"] == stats["success"]["count"]
    return stats["success"]["count"], stats["fail"]["count"]


@pytest.mark.parametrize("nbytes", [8, 3 << 20], ids=["small", "large"])
@pytest.mark.parametrize("how", ["thread", "event loop", "async", "wrapped", "awaitable"])
def test_requests_are_counted(how: str, nbytes: int) -> None:
    models: dict[str, Callable[[Any], Any]] = {
        "thread": lambda model: model,
        "event loop": lambda model: Model(model, in_event_loop=True),
        "async": async_model,
        "wrapped": wrapped,
        "awaitable": lambda model: Model(wrapped(model), in_event_loop=True),
    }
    app = create_app({"m": models[how](rejects_every_second()), "other": echo})
    assert counts(app) == (0, 0)
    frame = tw.encode_request(tw.InferRequest({"x": np.zeros(nbytes, np.uint8)}))
    for i in range(4):
        assert infer(app, "m", frame).status == (400 if i % 2 else 200)
        assert counts(app) == (i // 2 + 1, (i + 1) // 2)
    assert infer(app, "m").status == 200
    headers = {"Inference-Header-Content-Length": str(frame.header_length)}
    chunks = [bytes(frame)[:-1]]
    assert ask(app, "/v2/models/m/versions/1/infer", "POST", chunks, headers).status == 400
    assert counts(app) == (3, 3)
    assert counts(app, "other") == (0, 0)


def test_durations() -> None:
    def sleep(request: tw.InferRequest) -> Any:
        time.sleep(0.05)
        if "x" not in request:
            raise RequestError("no")
        return echo(request)

    app = create_app({"m": sleep})
    before = time.time_ns() // 1_000_000
    assert get("/v2/models/m/stats", app)["model_stats"][0]["last_inference"] == 0
    for name in ("x", "x", "z"):
        infer(app, "m", tw.encode_request(tw.InferRequest({name: np.zeros(3)})))
    [found] = get("/v2/models/m/stats", app)["model_stats"]
    assert before <= found["last_inference"] <= time.time_ns() // 1_000_000 + 1
    stats = found["inference_stats"]
    assert 100e6 <= stats["success"]["ns"] < 2e9
    assert 50e6 <= stats["fail"]["ns"] < 2e9


def test_rejected_requests_are_counted() -> None:
    """A request beyond max_concurrency fails, and a cancelled one."""
    proceed = asyncio.Event()

    async def wait(_: tw.InferRequest) -> Any:
        await proceed.wait()
        return {"y": 1}

    app = create_app(
        {"m": wait, "at once": Model(partial(call, wait), in_event_loop=True)}, max_concurrency=1
    )

    async def post(name: str) -> int:
        return (await exchange(app, **inference(name), disconnected=asyncio.Event())).status

    async def main() -> None:
        first = asyncio.create_task(post("m"))
        await asyncio.sleep(0.01)
        assert await post("m") == 503
        assert await post("at once") == 503
        proceed.set()
        assert await first == 200
        proceed.clear()
        cancelled = asyncio.create_task(post("m"))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        await asyncio.wait({cancelled})

    asyncio.run(main())
    assert counts(app) == (1, 2)
    assert counts(app, "at once") == (0, 1)


def test_statistics_of_all_models() -> None:
    app = create_app({"a": echo, "b": echo})
    infer(app, "b")
    found = get("/v2/models/stats", app)["model_stats"]
    assert [(each["name"], each["version"]) for each in found] == [("a", "1"), ("b", "1")]
    assert [each["inference_count"] for each in found] == [0, 1]
    assert found == [get(f"/v2/models/{name}/stats", app)["model_stats"][0] for name in "ab"]
    app = create_app({"stats": echo})  # a model has precedence
    assert get("/v2/models/stats", app)["versions"] == ["1"]
    assert counts(app, "stats") == (0, 0)


def test_statistics_of_several_threads() -> None:
    """An application may run in several event loops."""
    app = create_app({"m": Model(echo, in_event_loop=True)})

    def post() -> None:
        for _ in range(50):
            infer(app, "m")

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts(app) == (200, 0)


# --- index ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b'{"ready": true}', b"not JSON"])
def test_index(body: bytes) -> None:
    app = create_app({"a": echo, "b c": echo})
    answer = ask(app, "/v2/repository/index", "POST", [body])
    assert json.loads(answer.body) == [
        {"name": name, "version": "1", "state": "READY", "reason": ""} for name in ("a", "b c")
    ]


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v1/models/echo", 404, "not found: /v1/models/echo"),
        ("POST", "/v2/models//infer", 404, "not found: /v2/models//infer"),
        ("POST", "/v2/models/nobody/infer", 404, "model 'nobody' is not known"),
        ("GET", "/v2/models/nobody/ready", 404, "model 'nobody' is not known"),
        ("PUT", "/v2/models/plain/infer", 405, "PUT is not allowed for /v2/models/plain/infer"),
        ("HEAD", "/v2/models/plain/infer", 405, "HEAD is not allowed for /v2/models/plain/infer"),
        ("POST", "/v2", 405, "POST is not allowed for /v2"),
        ("DELETE", "/v2/models/plain", 405, "DELETE is not allowed for /v2/models/plain"),
        ("GET", "/v2/repository/index", 405, "GET is not allowed for /v2/repository/index"),
        ("POST", "/v2/models/plain/config", 405, "POST is not allowed for /v2/models/plain/config"),
        ("POST", "/v2/models/plain/stats", 405, "POST is not allowed for /v2/models/plain/stats"),
        ("GET", "/v2/models/nobody/config", 404, "model 'nobody' is not known"),
        ("GET", "/v2/models/nobody/stats", 404, "model 'nobody' is not known"),
        (
            "POST",
            "/v2/models/plain/versions/99/infer",
            404,
            "model 'plain' has no version '99', only '1'",
        ),
    ],
)
def test_wrong_paths_and_methods(method: str, path: str, status: int, error: str) -> None:
    answer = ask(APP, path, method)
    assert (answer.status, answer.error) == (status, error)
    assert ("allow" in answer.headers) == (status == 405)


# --- a client of Triton --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"http": InferProtocol}, {"http": "h11"}], ids=["fast", "asgi"]
)
def test_tritonclient(options: dict[str, Any]) -> None:
    app = create_app(MODELS)
    with (
        uvicorn_server(app, **options) as address,
        tritonclient_http.InferenceServerClient(address) as client,
    ):
        x = tritonclient_http.InferInput("x", [3], "FP32")
        x.set_data_from_numpy(np.zeros(3, np.float32))
        client.infer("plain", [x], model_version="1")
        classes = tritonclient_http.InferRequestedOutput("x", class_count=2)
        with pytest.raises(tritonclient_utils.InferenceServerException, match="classification"):
            client.infer("plain", [x], outputs=[classes])
        assert client.get_model_config("declared")["input"][0]["data_type"] == "TYPE_FP32"
        assert client.get_model_config("declared", "1") == client.get_model_config("declared")
        [found] = client.get_inference_statistics("plain", "1")["model_stats"]
        assert found["inference_stats"]["success"]["count"] == 1
        assert len(client.get_inference_statistics()["model_stats"]) == len(MODELS)
        index = client.get_model_repository_index()
        assert [(each["name"], each["state"]) for each in index] == [
            (name, "READY") for name in MODELS
        ]
