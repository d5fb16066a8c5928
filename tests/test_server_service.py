"""The service of `create_app`: its options, its endpoints without inference, and statistics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import (
    ALL,
    BODY,
    FRAME,
    X,
    ask,
    async_echo,
    double,
    echo,
    exchange,
    infer,
    inference,
    rejects_every_second,
)
from tensorwire._codec.signatures import Selection
from tensorwire.errors import format_names
from tensorwire.server import Model, RequestError, create_app

SPECS = [tw.TensorSpec("x", "FP32", [-1, 3]), tw.TensorSpec("text", "BYTES", [2])]
OUTPUT = tw.TensorSpec("y", "BF16", [5])
MODELS: dict[str, Any] = {
    "plain": echo,
    "declared": Model(echo, SPECS, [OUTPUT]),
    "batching": Model(echo, SPECS, [OUTPUT], batching=True),
    "limited": Model(echo, SPECS, [OUTPUT], parameters={"names": "a,b"}, max_batch_size=2),
    "partly": Model(echo, [SPECS[0], tw.TensorSpec("b", "INT8", [2], batching=True)]),
}
APP = create_app(MODELS)
NOT_KNOWN = f"model 'unknown' is not known: the models are {format_names(list(MODELS))}"


def get(path: str, app: Any = APP, method: str = "GET") -> Any:
    answer = ask(app, path, method)
    assert answer.status == 200
    return json.loads(answer.body)


# --- options -------------------------------------------------------------------------------------


def test_limits_of_the_app() -> None:
    app = create_app({"echo": async_echo}, limits=tw.Limits(max_tensors=1))
    answer = infer(app)
    assert (answer.status, "has more than 1 input," in answer.error) == (400, True)


@pytest.mark.parametrize(("selection", "binary"), [("spec", True), ("triton", False)])
def test_selection_of_the_app(selection: Selection, binary: bool) -> None:
    request = tw.InferRequest([X], [tw.RequestedOutput("x")], parameters=ALL)
    frame = tw.encode_request(request)
    n = frame.header_length or 0
    # As other clients write it. The encoder of tensorwire repeats binary_data for each output.
    text = bytes(frame)[:n].replace(b',"parameters":{"binary_data":true}', b" " * 34)
    app = create_app({"echo": async_echo}, selection=selection)
    answer = infer(app, chunks=[text + bytes(frame)[n:]], headers=frame.headers)
    assert answer.response()["x"].binary is binary


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        ({}, 200, '"data":[null,null,1.0]'),
        ({"nonfinite": "literal"}, 200, '"data":[NaN,-Infinity,1.0]'),
        ({"nonfinite": "error"}, 500, "element 0 of output 'y' is nan, which JSON cannot repre"),
    ],
)
def test_nonfinite_outputs_of_the_app(options: Any, status: int, text: str) -> None:
    array = np.array([np.nan, -np.inf, 1])
    app = create_app({"echo": lambda _: {"y": array}}, **options)
    plain = tw.encode_request(tw.InferRequest([X.replace(binary=False)]))
    answer = infer(app, chunks=[bytes(plain)], headers=plain.headers)
    assert (answer.status, text in answer.body.decode()) == (status, True)
    binary = tw.encode_request(tw.InferRequest([X], parameters=ALL))
    answer = infer(app, chunks=[bytes(binary)], headers=binary.headers)
    assert np.array_equal(answer.response()["y"].as_numpy(), array, equal_nan=True)


SECONDS = "must be a positive number of seconds or None, not"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_body_nbytes", 0, "must be 1 or more, not 0"),
        ("max_body_nbytes", -1, "must be 1 or more, not -1"),
        ("max_concurrency", 0, "must be 1 or more, not 0"),
        ("max_concurrency", -1, "must be 1 or more, not -1"),
        *(("receive_timeout", n, f"{SECONDS} {n}") for n in (0, -1, float("nan"), float("inf"))),
        ("nonfinite", "Null", "must be 'null', 'literal' or 'error', not 'Null'"),
        ("selection", "Triton", "must be 'spec' or 'triton', not 'Triton'"),
        ("max_body_nbytes", "1", "must be an int, not str"),
        ("max_body_nbytes", 2.5, "must be an int, not float"),
        ("max_body_nbytes", True, "must be an int, not bool"),
        ("max_concurrency", 2.5, "must be an int, not float"),
        ("max_concurrency", None, "must be an int, not NoneType"),
        ("receive_timeout", "3", f"{SECONDS} str"),
        ("receive_timeout", True, f"{SECONDS} bool"),
        ("limits", 3, "must be a Limits object, not int"),
        ("limits", 0, "must be a Limits object, not int"),
        ("models", [double], "must be a mapping of names to functions or Models, not list"),
        ("models", None, "must be a mapping of names to functions or Models, not NoneType"),
    ],
)
def test_invalid_options_of_create_app(option: str, value: Any, message: str) -> None:
    options: dict[str, Any] = {"models": {}, option: value}
    is_of_a_wrong_type = f"not {type(value).__name__}" in message
    with pytest.raises(TypeError if is_of_a_wrong_type else ValueError) as caught:
        create_app(**options)
    assert str(caught.value) == f"{option} {message}"


@pytest.mark.parametrize("option", ["nonfinite", "selection"])
def test_option_that_the_codec_rejects(option: str) -> None:
    """Otherwise, each response would be an error."""
    text = type("Text", (str,), {})({"nonfinite": "null", "selection": "spec"}[option])
    with pytest.raises(TypeError, match=option):
        create_app({}, **{option: text})


def test_numbers_of_numpy_are_accepted_by_create_app() -> None:
    options: dict[str, Any] = {
        "max_body_nbytes": np.int64(10_000),
        "max_concurrency": np.uint8(3),
        "receive_timeout": np.float32(9),
    }
    assert infer(create_app({"echo": async_echo}, **options)).status == 200


# --- paths and methods ---------------------------------------------------------------------------


def test_model_name_with_a_slash() -> None:
    app = create_app({"team/model": async_echo})
    for path in ("/v2/models/team/model", "/v2/models/team/model/versions/1/ready"):
        assert json.loads(ask(app, path).body)["name"] == "team/model"
    answer = ask(app, "/v2/models/team/model/infer", "POST", [BODY], FRAME.headers)
    assert answer.response().model_name == "team/model"
    for name in ("", "/a", "a/"):
        with pytest.raises(ValueError, match="a model name must not be empty"):
            create_app({name: async_echo})
    invalid: Any = {1: async_echo}
    with pytest.raises(TypeError, match=r"^the name of a model must be a str, not int$"):
        create_app(invalid)
    for name in ("a/ready", "a/versions/1"):
        with pytest.raises(ValueError, match=r"makes /v2/models/a/.* ambiguous"):
            create_app({"a": async_echo, name: async_echo})


@pytest.mark.parametrize(("path", "expected"), [("", "None"), ("/versions/1", "1")])
def test_model_version_in_the_path(path: str, expected: str) -> None:
    app = create_app({"m": lambda request: {"version": [str(request.model_version)]}})
    for x in (X, X.replace(binary=False)):
        sent = tw.InferRequest([x], model_name="m", id="7", model_version="5")
        frame = tw.encode_request(sent)
        chunks, headers = [bytes(frame)], frame.headers
        answer = ask(app, f"/v2/models/m{path}/infer", "POST", chunks, headers).response()
        assert answer["version"].elements[0].decode() == expected
        assert answer.id == "7"


def get_in_all_ways(path: str) -> Any:
    """HEAD has the same headers, and a slash at the end does not matter."""
    answer, head, slash = ask(APP, path), ask(APP, path, "HEAD"), ask(APP, f"{path}/")
    assert answer.status == 200
    assert (answer.headers, answer.body) == (head.headers, slash.body)
    return json.loads(answer.body)


EXTENSIONS = ["binary_tensor_data", "statistics"]
SERVER = {"name": "tensorwire", "version": tw.__version__, "extensions": EXTENSIONS}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2", SERVER),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/plain/ready", {"name": "plain", "ready": True}),
        ("/v2/models/plain/versions/1/ready", {"name": "plain", "ready": True}),
    ],
)
def test_health_and_metadata_of_the_server(path: str, expected: dict[str, Any]) -> None:
    assert get_in_all_ways(path) == expected


@pytest.mark.parametrize("path", ["", "/versions/1"])
@pytest.mark.parametrize(("name", "batch"), [("declared", []), ("batching", [-1])])
def test_metadata_of_a_model(name: str, batch: list[int], path: str) -> None:
    assert get_in_all_ways(f"/v2/models/{name}{path}") == {
        "name": name,
        "versions": ["1"],
        "platform": "tensorwire",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [*batch, -1, 3]},
            {"name": "text", "datatype": "BYTES", "shape": [*batch, 2]},
        ],
        "outputs": [{"name": "y", "datatype": "BF16", "shape": [*batch, 5]}],
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        *(
            ("GET", f"/v2/models/unknown/{endpoint}", 404, NOT_KNOWN)
            for endpoint in ("infer", "ready", "config", "stats")
        ),
        *(
            (method, path, 405, f"{method} is not allowed for {path}")
            for method, path in (
                ("DELETE", "/v2/models/plain"),
                ("GET", "/v2/repository/index"),
                ("POST", "/v2/models/plain/config"),
                ("POST", "/v2/models/plain/stats"),
            )
        ),
    ],
)  # fmt: skip
def test_wrong_paths_and_methods(method: str, path: str, status: int, error: str) -> None:
    """The requests that need more of HTTP are in support/http_cases.py."""
    answer = ask(APP, path, method)
    assert (answer.status, answer.error) == (status, error)
    assert ("allow" in answer.headers) == (status == 405)


# --- configuration -------------------------------------------------------------------------------


CONFIG_X = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3], "optional": False}
CONFIG_TEXT = {"name": "text", "data_type": "TYPE_STRING", "dims": [2], "optional": False}
CONFIG_B = {"name": "b", "data_type": "TYPE_INT8", "dims": [-1, 2], "optional": False}
CONFIG_Y = {"name": "y", "data_type": "TYPE_BF16", "dims": [5]}


@pytest.mark.parametrize("path", ["/config", "/versions/1/config"])
@pytest.mark.parametrize(
    ("name", "max_batch_size", "inputs", "parameters"),
    [
        ("plain", 0, [], {}),
        ("declared", 0, [CONFIG_X, CONFIG_TEXT], {}),
        ("batching", 2**31 - 1, [CONFIG_X, CONFIG_TEXT], {}),
        ("limited", 2, [CONFIG_X, CONFIG_TEXT], {"names": {"string_value": "a,b"}}),
        ("partly", 0, [CONFIG_X, CONFIG_B], {}),  # one input has a batch dimension
    ],
)
def test_config(
    name: str, path: str, max_batch_size: int, inputs: list[Any], parameters: dict[str, Any]
) -> None:
    """The dimensions of a model with a maximum batch size are those behind the batch dimension."""
    assert get(f"/v2/models/{name}{path}") == {
        "name": name,
        "platform": "tensorwire",
        "backend": "tensorwire",
        "max_batch_size": max_batch_size,
        "input": inputs,
        "output": [CONFIG_Y] if CONFIG_TEXT in inputs else [],
        "parameters": parameters,
    }


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

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: infer(app, "m"), range(200)))
    assert counts(app) == (200, 0)


# --- index ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b'{"ready": true}', b"not JSON"])
def test_index(body: bytes) -> None:
    app = create_app({"a": echo, "b c": echo})
    answer = ask(app, "/v2/repository/index", "POST", [body])
    assert json.loads(answer.body) == [
        {"name": name, "version": "1", "state": "READY", "reason": ""} for name in ("a", "b c")
    ]
