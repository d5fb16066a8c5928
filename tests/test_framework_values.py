"""Web frameworks over real sockets: dicts of arrays and JSON values in routes, and mounts."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.validate import validator

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import ask, echo
from support.requirements import optional, package
from support.serve_process import free_port
from support.servers import uvicorn_server
from support.threads import in_thread, wait_for
from tensorwire.client import Client, InferenceServerError
from tensorwire.client.errors import Operation, server_error
from tensorwire.server import (
    ClientDisconnectedError,
    InputError,
    RequestError,
    create_app,
    install_error_handlers,
    wsgi,
)
from tensorwire.server.values import frame_of, values_of

aiohttp_web = optional("aiohttp.web")
fastapi = optional("fastapi")
litestar = optional("litestar")
starlette = optional("starlette.applications")
cors = optional("starlette.middleware.cors")
exceptions = optional("starlette.exceptions")
starlette_requests = optional("starlette.requests")
routing = optional("starlette.routing")
pair = optional("tensorwire.server.starlette")  # requires starlette

pytestmark = pytest.mark.thread_unsafe(reason="the tests start servers")

MAX_BODY = 1 << 30  # as in the manual
X = np.arange(300_000, dtype=np.float32)
PARAMETERS = {
    "factor": 2,
    "label": "Katze \N{CAT}",
    "options": {"top_k": [1, 2.5, None], "deep": {"a": True}},
    "nothing": None,
}
INPUTS = [tw.TensorSpec("x", "FP32", [-1])]
REQUEST = tw.InferRequest({"x": X}, parameters=PARAMETERS)
FRAME = tw.encode_request(REQUEST)
LENGTH = {
    "Inference-Header-Content-Length": str(FRAME.header_length),
    "Content-Type": "application/octet-stream",
}


PAGE = (Path(__file__).parents[1] / "docs" / "guide" / "frameworks.md").read_text()


def recipe(text: str) -> str:
    """Return the code of the manual that contains a text."""
    (found,) = [
        code
        for code in re.findall(r"```(?:py|python|js)\n(.*?)```", PAGE, re.DOTALL)
        if text in code
    ]
    return str(found)


def execute(code: str, **names: Any) -> dict[str, Any]:
    names["__name__"] = "recipe"
    exec(code, names)
    return names


def scaled(values: dict[str, Any]) -> dict[str, Any]:
    """The program of each route."""
    return {"y": values["x"] * values["factor"], "unit": "cm"}


def raise_(error: Exception) -> Any:
    raise error


CALL = Operation("POST", "http://secret.internal/v2")
# What a route does, and the status and the text of the response.
FAILURES: dict[str, tuple[Callable[[], Any], int, str]] = {
    "text": (lambda: tw.decode_bytes(b"\1\0\0\0\xff").as_strings(), 400, "is not valid UTF-8"),
    "input": (lambda: REQUEST["secret"], 400, "no tensor 'secret': there are ['x']"),
    "number": (REQUEST["x"].as_strings, 400, "tensor 'x' is FP32, not BYTES"),
    "busy": (lambda: raise_(RequestError("the queue is full", 503)), 503, "the queue is full"),
    "output": (lambda: tw.Tensor("secret", ["a", None]), 500, "internal server error"),
    "upstream": (lambda: tw.InferResponse({})["secret"], 500, "internal server error"),
    "call": (lambda: raise_(CALL.named(server_error(404, "-"))), 500, "internal server error"),
    "reply": (lambda: raise_(CALL.named(tw.HeaderError("-"))), 500, "internal server error"),
}


def fail(name: str) -> Any:
    return FAILURES[name][0]()


# --- applications ---


def fastapi_app() -> Any:
    package("fastapi")  # skip the test without it
    app = execute(recipe("TestClient(app)"))["app"]
    app.post("/fail/{name}")(fail)
    return app


def wsgi_app() -> Any:
    def app(environ: Any, start_response: Any) -> Any:
        try:
            values = wsgi.read_tensors(environ, inputs=INPUTS, max_body_nbytes=MAX_BODY)
            response = wsgi.TensorResponse(scaled(values), environ)
        except tw.TensorwireError as error:
            start_response(f"{error.status} Error", [("Content-Type", "application/json")])
            return [json.dumps({"error": str(error)}).encode()]
        return response(environ, start_response)

    return validator(app)


def flask_app() -> Any:
    package("flask")  # skip the test without it
    code = recipe('app = flask.Flask("service")')
    called = "install_error_handlers(app)\n"
    return execute(code.replace(called, f"{called}app.post('/fail/<name>')(fail)\n"), fail=fail)[
        "app"
    ]


def django_app() -> Any:
    django, conf = package("django"), package("django.conf")
    if not conf.settings.configured:
        names = execute(recipe("from django.urls import path"))
        failing = names["csrf_exempt"](lambda _, name: fail(name))
        names["urlpatterns"].append(names["path"]("fail/<name>", failing))
        options = {"ALLOWED_HOSTS": ["*"], "LOGGING_CONFIG": None}
        common = "django.middleware.common.CommonMiddleware"  # asks whether the next one is async
        options["MIDDLEWARE"] = [common, "tensorwire.server.install_error_handlers"]
        conf.settings.configure(ROOT_URLCONF=type("Urls", (), names), **options)
        django.setup()
    return package("django.core.wsgi").get_wsgi_application()


def aiohttp_app() -> Any:
    async def route(request: Any) -> Any:
        try:
            header_length = tw.header_length(request.headers)
            # aiohttp decompresses the body, so that Content-Length is not its length.
            is_compressed = "Content-Encoding" in request.headers
            content_length = None if is_compressed else request.content_length
            body = tw.BodyBuffer(content_length, header_length, max_nbytes=MAX_BODY)
            async for chunk in request.content.iter_any():
                body.write(chunk)
            scope: dict[str, Any] = {}
            values = values_of(tw.decode_request(body, header_length), INPUTS, scope)
            frame = frame_of(scaled(values), scope)
        except tw.TensorwireError as error:
            return aiohttp_web.json_response({"error": str(error)}, status=error.status)
        response = aiohttp_web.StreamResponse(headers=frame.headers)
        await response.prepare(request)
        for chunk in frame.chunks(1 << 20):
            await response.write(chunk)
        return response

    app = aiohttp_web.Application()
    app.router.add_post("/scale", route)
    return app


# --- servers ---


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def wsgi_server(app: Any) -> Iterator[str]:
    with (
        make_server("127.0.0.1", 0, app, WSGIServer, QuietHandler) as server,
        in_thread(server.serve_forever, 0.01),
    ):
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def aiohttp_server(app: Any) -> Iterator[str]:
    runner = aiohttp_web.AppRunner(app)
    with asyncio.Runner() as events:
        events.run(runner.setup())
        events.run(aiohttp_web.TCPSite(runner, "127.0.0.1", 0).start())
        loop = events.get_loop()
        with in_thread(loop.run_forever):
            try:
                yield f"127.0.0.1:{runner.addresses[0][1]}"
            finally:
                loop.call_soon_threadsafe(loop.stop)
        events.run(runner.cleanup())


APPLICATIONS: dict[str, tuple[Callable[[], Any], Callable[..., AbstractContextManager[str]]]] = {
    "fastapi": (fastapi_app, uvicorn_server),
    "wsgi": (wsgi_app, wsgi_server),
    "flask": (flask_app, wsgi_server),
    "django": (django_app, wsgi_server),
    "aiohttp": (aiohttp_app, aiohttp_server),
}


@pytest.fixture(scope="module", params=APPLICATIONS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    make, serve = APPLICATIONS[request.param]
    with serve(make()) as address:
        yield address


def post(address: str, body: Any, headers: dict[str, str], path: str = "/scale") -> Any:
    connection = http.client.HTTPConnection(address, timeout=20)
    with closing(connection):
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer, answer.read()


def check(address: str, body: bytes, headers: dict[str, str]) -> None:
    answer, content = post(address, body, headers)
    assert answer.status == 200, content[:300]
    assert answer.headers.get_all("Content-Type") == ["application/octet-stream"]
    response = tw.decode_response(content, tw.header_length(answer.headers))
    assert np.array_equal(response["y"].as_numpy(), X * 2)


# --- each of them ---


def test_request(address: str) -> None:
    check(address, bytes(FRAME), FRAME.headers)
    check(address, gzip.compress(bytes(FRAME)), LENGTH | {"Content-Encoding": "gzip"})


def json_body(*inputs: tuple[str, str], **members: Any) -> bytes:
    """Return a JSON request whose inputs have these names and datatypes."""
    entries = [{"name": a, "datatype": b, "shape": [2], "data": [1, 2]} for a, b in inputs]
    return json.dumps({"inputs": entries, "parameters": {"factor": 3}, **members}).encode()


JSON_BODY = json_body(("x", "FP32"))
JSON = {"Content-Type": "application/json"}


def test_json_request(address: str) -> None:
    answer, content = post(address, JSON_BODY, JSON)
    assert answer.headers.get_all("Content-Type") == ["application/json"]
    y = {"name": "y", "datatype": "FP32", "shape": [2], "data": [3, 6]}
    assert json.loads(content)["outputs"] == [y]


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (bytes(FRAME)[:-1], LENGTH, 400, "the body ends inside input 'x'"),
        (bytes(FRAME) + b"x", LENGTH, 400, "1 byte after the last tensor"),
        (b"", JSON, 400, "the JSON header is empty"),
        (json_body(("x", "INT8")), JSON, 400, r"'x' is INT8 \[2\], but the route declares FP32 \["),
        (json_body(("y", "FP32")), JSON, 400, r"unexpected input 'y': the route takes \['x'\]"),
        (json_body(("x", "FP32"), outputs=[{"name": "z"}]), JSON, 400, "asks for output 'z'"),
        (b"{}", {**LENGTH, "Inference-Header-Content-Length": "x"}, 400, "not a number"),
        (b"{}", {**LENGTH, "Inference-Header-Content-Length": "0"}, 400, "raw binary"),
        # The servers respond before the body has arrived.
        (b"x", {**LENGTH, "Content-Length": str(MAX_BODY + 1)}, 413, f"the limit is {MAX_BODY}"),
    ],
)
def test_invalid_request(
    address: str, body: bytes, headers: dict[str, str], status: int, message: str
) -> None:
    answer, content = post(address, body, headers)
    assert answer.status == status, content[:300]
    assert re.search(message, json.loads(content)["error"])
    check(address, bytes(FRAME), FRAME.headers)  # the next request works


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("address", ["fastapi", "flask", "django"], indirect=True)
def test_error_of_a_route(address: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    _, status, text = FAILURES[name]
    answer, content = post(address, b"", {}, f"/fail/{name}")
    error = json.loads(content)
    assert (answer.status, error.keys()) == (status, {"error"})
    assert text in error["error"]
    assert ("a request failed" in caplog.messages) == (status == 500)


def test_error_of_a_route_of_asynchronous_django() -> None:
    django_app()
    client = package("django.test").AsyncClient()
    response = asyncio.run(client.post("/fail/busy"))
    assert (response.status_code, response.content) == (503, b'{"error": "the queue is full"}')


def test_error_handlers_of_other_applications() -> None:
    for app in (create_app({"echo": echo}), aiohttp_web.Application(), None):
        with pytest.raises(TypeError, match="app must be an application of Starlette, FastAPI or"):
            install_error_handlers(app)


# --- values ---


REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
SHARED = tw.Tensor("x", None, datatype="FP32", shape=[1], parameters=REGION)
CLASSES = tw.RequestedOutput("x", parameters={"classification": 2})


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (tw.InferRequest({"x": X}, parameters={"x": 1}), InputError, "an input and a parameter wi"),
        (tw.InferRequest([SHARED]), InputError, "input 'x' is in shared memory"),
        (tw.InferRequest({"x": X[:2] > 0}), InputError, "input 'x' is BOOL"),
        (tw.InferRequest({"y": X}), InputError, "unexpected input 'y'"),
        (tw.InferRequest({"x": X}, [CLASSES]), RequestError, "requested output 'x' has the param"),
    ],
)
def test_request_that_has_no_values(request_: tw.InferRequest, kind: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        values_of(request_, INPUTS if kind is InputError else (), {})
    found = (type(caught.value), caught.value.tensor, caught.value.status)
    assert found == (kind, request_.inputs[0].name, 400)


@pytest.mark.parametrize("n_lists", [0, 1, 996])
def test_json_values_are_plain(n_lists: int) -> None:
    """They can be pickled and written as JSON, and have any depth that the decoder accepts."""
    value: Any = {"b": [1, 2.5, "c", None, True], "a": {}, "e": []}
    text = "[" * n_lists + json.dumps(value) + "]" * n_lists
    inputs = '[{"name": "x", "datatype": "INT8", "shape": [0], "data": []}]'
    header = f'{{"inputs": {inputs}, "parameters": {{"p": {text}}}}}'
    limits = tw.Limits(max_nesting=1000)
    found = values_of(tw.decode_request(header.encode(), limits=limits), (), {})["p"]
    for _ in range(n_lists):
        assert type(found) is list
        (found,) = found
    assert (found, list(found)) == (value, list(value))
    assert (type(found), type(found["a"]), type(found["b"])) == (dict, dict, list)
    assert pickle.loads(pickle.dumps(found)) == value


def test_what_becomes_an_output() -> None:
    values = {
        "array": np.zeros(()),
        "tensor": tw.Tensor("tensor", [1], datatype="INT8"),
        "bytes": tw.decode_bytes(b"\1\0\0\0a"),
        "text": "a",
        "number": np.float32(1.5),
        "list": [1, "a"],
        "tuple": (1,),
        "true": True,
    }
    frame = frame_of(values)
    response = tw.decode_response(bytes(frame), frame.header_length)
    assert list(response) == ["array", "tensor", "bytes"]
    assert response.parameters == {
        "text": "a", "number": 1.5, "list": [1, "a"], "tuple": [1], "true": True,
    }  # fmt: skip
    assert frame_of(frame) is frame
    assert bytes(frame_of(response)) == bytes(frame)
    assert frame_of({"only": "text"}).headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a", "é"], [b"a", "é".encode()]),
        (("a", b"\xff"), [b"a", b"\xff"]),
        ([X[:2], X[2:4]], [[0, 1], [2, 3]]),
        ([["a"], ["b"]], [[b"a"], [b"b"]]),
        ([], None),
        ([[]], None),
    ],
)
def test_lists_of_text_or_arrays_are_outputs(value: Any, expected: Any) -> None:
    frame = frame_of({"a": value})
    response = tw.decode_response(bytes(frame), frame.header_length)
    assert [tensor.tolist() for tensor in response.outputs] == (
        [] if expected is None else [expected]
    )
    assert list(response.parameters) == (["a"] if expected is None else [])


def asked(binary: bool, parameter: Any = (), output: bool | None = None) -> Any:
    """Return a scope of a request which asks for outputs in these ways."""
    parameters = {} if parameter == () else {"binary_data_output": parameter}
    outputs = None if output is None else [tw.RequestedOutput("y", binary=output)]
    x = tw.Tensor("x", X[:2], binary=binary)
    scope: dict[str, Any] = {}
    values_of(tw.InferRequest([x], outputs, id="7", parameters=parameters), (), scope)
    return scope


@pytest.mark.parametrize(
    ("scope", "is_binary"),
    [
        (asked(False), False),
        (asked(False, True), True),
        (asked(False, None, True), True),
        (asked(False, True, False), False),
        (asked(True), True),
        (asked(True, False), False),
        (asked(True, None, False), False),
        (asked(True, None), True),
    ],
)
def test_responses_are_as_the_request_asks(scope: Any, is_binary: bool) -> None:
    for content in ({"y": X[:3]}, tw.InferResponse({"y": X[:3]})):
        frame = frame_of(content, scope)
        response = tw.decode_response(bytes(frame), frame.header_length)
        assert (response["y"].binary, response["y"].tolist()) == (is_binary, [0, 1, 2])
        assert response.id == "7"


@pytest.mark.parametrize(
    ("value", "message"),
    [(X[:1].astype("f2"), "output 'y'.*FP16"), ([b"\xff"], "output 'y'.*not valid UTF-8")],
)
def test_values_that_json_cannot_represent(value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        frame_of({"y": value}, asked(False))
    assert (caught.value.tensor, caught.value.status) == ("y", 400)
    infinite = json.loads(bytes(frame_of({"y": X[1:2] * np.inf}, asked(False))))
    assert infinite["outputs"][0]["data"] == [None]


def test_the_request_of_a_response() -> None:
    with pytest.raises(ValueError, match="read_tensors has not read the request"):
        frame_of({"y": X}, {})
    with pytest.raises(TypeError, match="environ must be a WSGI environment, not int"):
        wsgi.TensorResponse({"y": X}, 201)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="request must be a Request of Starlette, not int"):
        pair.TensorResponse({"y": X}, 201)


@pytest.mark.parametrize("value", [object(), {1}, b"bytes", np.datetime64("2026"), 1j])
def test_values_that_cannot_be_sent(value: Any) -> None:
    with pytest.raises((TypeError, tw.EncodeError)):
        frame_of({"a": value})
    with pytest.raises(TypeError, match="content must be a mapping, an InferResponse or a Frame"):
        frame_of(value)


# --- Starlette and FastAPI ---


def test_openapi_describes_the_bodies() -> None:
    operation = fastapi_app().openapi()["paths"]["/scale"]["post"]
    binary = "application/octet-stream"
    content = operation["requestBody"]["content"]
    assert content.keys() == {binary, "application/json"}
    example = json.dumps(content["application/json"]["example"]).encode()
    assert values_of(tw.decode_request(example), INPUTS, {})["factor"] == 3
    assert operation["responses"].keys() >= {"400", "413", "415"}
    assert operation["requestBody"]["required"]
    assert operation["parameters"][0]["name"] == "Inference-Header-Content-Length"
    assert operation["parameters"][0]["schema"]["minimum"] == 1
    assert operation["responses"]["200"]["content"].keys() == {binary}


@pytest.mark.parametrize("outputs", [[], [{"name": "z"}]])
def test_errors_without_handlers(outputs: list[Any]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = starlette_requests.Request(scope, receive)
        pair.TensorResponse(await pair.read_tensors(request, inputs=INPUTS), request)

    body = json_body(("x" if outputs else "y", "FP32"), outputs=outputs)
    with pytest.raises(exceptions.HTTPException) as caught:
        ask(app, "/", "POST", [body], JSON)
    text = "asks for output 'z'" if outputs else "unexpected input 'y'"
    assert (caught.value.status_code, text in caught.value.detail) == (400, True)


def test_body_that_was_read_before() -> None:
    """The receive callable of ASGI would wait for ever."""
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = starlette_requests.Request(scope, receive)
        await request.body()
        found.append(await pair.read_tensors(request))

    frame = tw.encode_request(REQUEST.replace(inputs={"x": X, "words": ["a", "bcd"]}))
    ask(app, "/", "POST", [bytes(frame)], frame.headers)
    assert np.array_equal(found[0]["x"], X)
    assert found[0]["words"].as_strings().tolist() == ["a", "bcd"]
    parsed = json.loads(json.dumps(found[0], default=lambda _: None))
    assert parsed == PARAMETERS | {"x": None, "words": None}


def test_client_that_disconnects() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await pair.read_tensors(starlette_requests.Request(scope, receive))

    with pytest.raises(starlette_requests.ClientDisconnect):
        ask(app, "/", "POST", [None], {"Content-Length": "5"})


def test_headers_and_background_of_a_response() -> None:
    background: list[int] = []
    sent: list[Any] = []

    async def task() -> None:
        background.append(len(sent))

    async def send(message: Any) -> None:
        sent.append(message)

    others = {"X-Kind": "a", "Content-Type": "text/html"}
    response = pair.TensorResponse({"x": X}, None, 201, others, background=task)
    assert response.headers["content-length"] == str(len(response.frame))
    response.set_cookie("a", "b")
    response.headers["content-length"] = "5"
    asyncio.run(response({"type": "http"}, None, send))
    headers = dict(sent[0]["headers"])
    assert len(headers) == len(sent[0]["headers"])
    assert (sent[0]["status"], headers[b"x-kind"]) == (201, b"a")
    assert headers[b"content-type"] == b"application/octet-stream"
    assert headers[b"content-length"] == b"%d" % len(response.frame)
    assert headers[b"set-cookie"].startswith(b"a=b")
    assert b"".join(message["body"] for message in sent[1:]) == bytes(response.frame)
    assert background == [len(sent)]


def test_the_limit_does_not_become_a_query_parameter() -> None:
    """A client could otherwise choose it, if read_tensors is used as a dependency."""
    app = fastapi.FastAPI()

    reads = fastapi.Depends(pair.read_tensors)

    def route(values: Any = reads) -> None: ...

    with pytest.raises(fastapi.exceptions.FastAPIError):
        app.post("/")(route)


def test_response_class_of_a_route_that_returns_values() -> None:
    """FastAPI calls the class with the content and keyword arguments."""
    app = fastapi.FastAPI()
    route = app.post("/scale", response_class=pair.TensorResponse, status_code=201)
    route(lambda: {"label": "cat"})
    with uvicorn_server(app) as address:
        answer, content = post(address, b"", {})
    assert (answer.status, tw.decode_response(content).parameters) == (201, {"label": "cat"})


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.no_sanitizers(reason="it starts another program")
def test_javascript() -> None:
    """The program of the manual. Without node, test_json_request sends the same request."""
    program = recipe("await fetch")
    with uvicorn_server(fastapi_app()) as address:
        here = program.replace("localhost:8000", address)
        command = ["node", "--input-type=module", "--eval", here]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert f"// {done.stdout}" == program.splitlines(keepends=True)[-1]


# --- mounts of the application ---


MOUNTS: dict[str, Callable[[Any], Any]] = {
    "starlette": lambda models: starlette.Starlette(routes=[routing.Mount("/models", models)]),
    "litestar": lambda models: litestar.Litestar(
        [litestar.asgi("/models", is_mount=True, copy_scope=False)(models)]
    ),
}


@pytest.mark.parametrize("mount", MOUNTS.values(), ids=MOUNTS)
def test_mounted_application(mount: Callable[[Any], Any]) -> None:
    app = mount(create_app({"echo": echo}))
    with uvicorn_server(app) as address, Client(f"http://{address}/models") as client:
        assert np.array_equal(client.infer("echo", {"x": X})["x"].as_numpy(), X)
        with pytest.raises(InferenceServerError, match="model 'unknown' is not known") as caught:
            client.infer("unknown", {"x": X})
        assert caught.value.status == 404


def test_cors_middleware() -> None:
    """A page of another origin may send a request, and read the header length of the response."""
    page, length = "https://app.example", tw.http.HEADER_LENGTH
    options = {"allow_methods": ["POST"], "allow_headers": [length], "expose_headers": [length]}
    app = cors.CORSMiddleware(create_app({"echo": echo}), allow_origins=[page], **options)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": length}
    path = "/v2/models/echo/infer"
    preflight = ask(app, path, "OPTIONS", headers={"Origin": page, **asked})
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == page
    assert length in preflight.headers["access-control-allow-headers"]
    reply = ask(app, path, "POST", [bytes(FRAME)], {"Origin": page, **FRAME.headers})
    assert reply.headers["access-control-allow-origin"] == page
    assert reply.headers["access-control-expose-headers"] == length
    assert np.array_equal(reply.response()["x"].as_numpy(), X)


# --- WSGI ---


def environ_of(body: bytes, **changes: Any) -> dict[str, Any]:
    environ = {
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_INFERENCE_HEADER_CONTENT_LENGTH": str(FRAME.header_length),
        "wsgi.input": io.BytesIO(body),
        "HTTP_HOST": "",
    }
    return {key: value for key, value in (environ | changes).items() if value is not None}


def test_wsgi_reads_only_the_body() -> None:
    environ = environ_of(bytes(FRAME) + b"next", CONTENT_LENGTH=str(len(FRAME)))
    x = wsgi.read_tensors(environ)["x"]
    assert np.array_equal(x, X)
    assert x.ctypes.data % 64 == 0
    assert environ["wsgi.input"].read() == b"next"
    environ = environ_of(bytes(FRAME)[:-5], CONTENT_LENGTH=str(len(FRAME)))
    with pytest.raises(tw.LayoutError, match="shorter than Content-Length"):
        wsgi.read_tensors(environ)
    for error in (ConnectionResetError, ValueError):
        environ["wsgi.input"] = Mock(read=Mock(side_effect=[b"{", error]))
        with pytest.raises(ClientDisconnectedError):
            wsgi.read_tensors(environ)


@pytest.mark.parametrize("length", [None, ""])
def test_wsgi_without_content_length(length: str | None) -> None:
    environ = environ_of(bytes(FRAME), CONTENT_LENGTH=length)
    with pytest.raises(tw.HeaderError, match="the body has 0 bytes"):
        wsgi.read_tensors(environ)
    assert environ["wsgi.input"].tell() == 0
    environ["wsgi.input_terminated"] = True
    assert np.array_equal(wsgi.read_tensors(environ)["x"], X)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"CONTENT_LENGTH": "-1"}, 400, "Content-Length is not a number"),
        ({"CONTENT_LENGTH": "\N{ARABIC-INDIC DIGIT THREE}"}, 400, "Content-Length is not a number"),
        ({"CONTENT_LENGTH": "5, 6"}, 400, "Content-Length is not a number"),
        ({"CONTENT_LENGTH": str(2**40)}, 413, "the limit is"),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, 400, "both Content-Length and Transfer-Encoding"),
        ({"HTTP_CONTENT_ENCODING": "br"}, 415, "'br' is not supported"),
        ({"HTTP_INFERENCE_HEADER_CONTENT_LENGTH": "5,6"}, 400, "two header lengths"),
    ],
)
def test_wsgi_rejects_before_it_reads(changes: Any, status: int, message: str) -> None:
    environ = environ_of(bytes(FRAME), **changes)
    with pytest.raises(tw.DecodeError, match=message) as caught:
        wsgi.read_tensors(environ)
    assert caught.value.status == status
    assert environ["wsgi.input"].tell() == 0


def test_wsgi_response() -> None:
    others = [("X-Kind", "a"), ("content-Length", "5"), (tw.http.HEADER_LENGTH, "6")]
    response = wsgi.TensorResponse({"x": X}, None, 201, others)
    started: list[Any] = []
    chunks = list(response({}, lambda *arguments: started.append(arguments)))
    assert {type(chunk) for chunk in chunks} == {bytes}
    assert b"".join(chunks) == bytes(response.frame)
    assert started == [("201 Created", [*response.frame.headers.items(), ("X-Kind", "a")])]


# --- LitServe ---


@pytest.mark.slow("LitServe starts several processes")
def test_litserve(tmp_path: Path) -> None:
    """The recipe of the manual. The values and the response pass through pickle."""
    package("litserve")
    script, port = tmp_path / "service.py", free_port()
    script.write_text(f"""{recipe("class Scale(litserve.LitAPI)")}
if __name__ == "__main__":
    server = litserve.LitServer(Scale(api_path="/scale"), accelerator="cpu")
    server.run(host="127.0.0.1", port={port}, generate_client_file=False)
""")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment, start_new_session=True, **options
    )
    try:
        wait_for(lambda: process.poll() is not None or is_healthy(port), 60)
        address = f"127.0.0.1:{port}"
        check(address, bytes(FRAME), FRAME.headers)
        answer, content = post(address, bytes(FRAME)[:-1], LENGTH)
        assert (answer.status, b"the body ends inside" in content) == (400, True)
        check(address, bytes(FRAME), FRAME.headers)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_healthy(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


def test_client_of_django() -> None:
    """The call that the manual shows for tests of a view."""
    django_app()
    client = package("django.test").Client()
    arguments = "/scale", bytes(FRAME), FRAME.headers["Content-Type"]
    reply = client.post(*arguments, headers=FRAME.headers)
    response = tw.decode_response(reply.getvalue(), tw.header_length(reply.headers))
    assert list(response) == ["y"]
