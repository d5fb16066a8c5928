"""KServe with wrappers of other code, and with other applications in the same process.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from importlib import import_module
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from kserve import InferInput, InferOutput, InferRequest, InferResponse
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc
from kserve.protocol.grpc.servicer import InferenceServicer
from kserve.protocol.rest.multiprocess.server import RESTServerProcess
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils import utils
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse

import tensorwire as tw
import tensorwire.grpc
from interop import grpc_calls
from interop.inside_kserve_json import (
    PATH,
    Server,
    application,
    is_lazy,
    plane_with_model,
    register,
)
from interop.json_requests import READ_AS_ARRAYS, assert_same_answer, installed, post
from interop.kserve_bodies import ONE
from interop.recorded_sources import (
    check_calls_of_wrapper,
    owner_of,
    replaced,
    wrappable_functions,
)
from support.wrappers import Proxy, functools_wrapper, two_wrappers, wrapped
from tensorwire.digests import source_of_imported
from tensorwire.integrations import kserve as integration
from tensorwire.integrations import patching
from tensorwire.integrations.kserve.sources import PLANE

pytestmark = pytest.mark.usefixtures("no_logging")

BODY = READ_AS_ARRAYS["nested"]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
WORDS = np.array([b"a", b"b c"], object)
GRPC_REQUEST = tw.grpc.encode_request(tw.InferRequest({"x": X}, model_name="recorder"))


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


# --- wrappers -----------------------------------------------------------------------------------


def infer(app: Any) -> None:
    """Send a JSON request and a binary one."""
    assert post(app, PATH, BODY, "application/json")[0] == 200
    length = {"inference_header_content_length": str(ONE[1])}
    assert post(app, PATH, ONE[0], "application/octet-stream", **length)[0] == 200


def workload() -> None:
    """Call everything that the integration replaces or relies on."""
    plane, _ = plane_with_model()
    infer(application(plane))
    asyncio.run(V2Endpoints(plane).metadata())
    RESTServerProcess([], print)
    utils.generate_uuid()
    tensor, output = InferInput("t", [2], "BYTES"), InferOutput("t", [2], "BYTES")
    tensor.set_data_from_numpy(WORDS)
    output.set_data_from_numpy(WORDS)
    request = InferRequest("m", [tensor], "1", parameters={"a": 1})
    answer = InferResponse("1", "m", [output], use_binary_outputs=True)
    received = InferRequest.from_bytes(*request.to_rest(), "m")
    received.use_binary_outputs  # noqa: B018 - a property
    outputs = InferResponse.from_bytes(*answer.to_rest()).outputs
    for each in (*received.inputs, *outputs):
        each.as_numpy()
        each.data  # noqa: B018
    InferRequest.from_grpc(request.to_grpc()).inputs[0].as_numpy()
    InferResponse.from_grpc(answer.to_grpc()).outputs[0].as_numpy()
    answer.get_output_by_name("t")
    numbers = InferOutput("y", [2, 3], "FP32", X.ravel().tolist())
    InferRequest.from_grpc(InferRequest("m", [InferInput("x", [1], "FP32", [1.5])]).to_grpc())
    InferResponse("1", "m", [numbers]).to_grpc()
    infer_over_grpc(plane)


def infer_over_grpc(plane: Any) -> None:
    servicer = InferenceServicer(plane, None)
    add = grpc_predict_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server
    grpc_calls.infer(add, servicer, GRPC_REQUEST)


IN_ANOTHER_PROCESS = "kserve.protocol.rest.multiprocess.server:RESTServerProcess.target"
CALLED = [name for name in wrappable_functions(integration, property) if name != IN_ANOTHER_PROCESS]


def part_of_property(wrap: Any) -> Any:
    """Return a function that wraps functions, and the getters of properties."""

    def wrap_part(value: Any, count: Callable[[], None]) -> Any:
        if type(value) is property:
            return property(wrap(value.fget, count), value.fset)
        return wrap(value, count)

    return wrap_part


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize("name", CALLED)
def test_wrapper_is_called_as_often_as_without_the_integration(name: str, wrap: Any) -> None:
    """This holds for each function that the integration replaces or relies on."""
    check_calls_of_wrapper(integration, name, part_of_property(wrap), workload)


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy, two_wrappers])
@pytest.mark.parametrize("is_first", [True, False], ids=["wrapped first", "wrapped later"])
def test_wrapper_around_the_endpoint_is_called(wrap: Any, is_first: bool) -> None:
    """KServe's own route then handles the requests."""
    count = Mock()
    plain = post(application(plane_with_model()[0]), PATH, BODY, "application/json")
    contexts = [wrapped(V2Endpoints, "infer", wrap, count), installed(integration)]
    with ExitStack() as stack:
        for context in contexts if is_first else contexts[::-1]:
            stack.enter_context(context)
        plane, model = plane_with_model()
        app = application(plane)
        assert_same_answer(plain, post(app, PATH, BODY, "application/json"))
        assert not is_lazy(app, model)
    assert count.call_count == 2


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
def test_wrapper_around_the_servicer_that_is_added_later(wrap: Any) -> None:
    """KServe's own handler then handles gRPC requests."""
    count = Mock()
    with installed(integration), wrapped(InferenceServicer, "ModelInfer", wrap, count):
        infer_over_grpc(plane_with_model()[0])
    assert count.call_count == 1


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize("name", [f"{PLANE}.{name}" for name in ("encode", "decode", "infer")])
@pytest.mark.parametrize("is_running", [True, False])
def test_wrapper_that_is_added_later(
    server: Server, name: str, wrap: Any, is_running: bool
) -> None:
    """It is added after the installation, and after or before the start of the server."""
    count = Mock()
    plain = server.infer(BODY)
    with installed(integration), wrapped(*owner_of(name), wrap, count):
        app = server.ours if is_running else application(server.dataplane)
        assert_same_answer(plain, post(app, PATH, BODY, "application/json"))
    assert count.call_count == 1


class Refusing:
    """A dependency of FastAPI that counts its calls."""

    def __init__(self) -> None:
        self.n_calls = 0

    def __call__(self) -> None:
        self.n_calls += 1
        raise HTTPException(401)


def test_dependencies_of_the_application_are_called() -> None:
    """KServe's own route then handles the requests."""
    refuse = Refusing()
    with installed(integration):
        app = application(plane_with_model()[0], dependencies=[Depends(refuse)])
        assert post(app, PATH, BODY, "application/json")[0] == 401
    assert refuse.n_calls == 1


def test_limit_for_bodies_of_the_application() -> None:
    with installed(integration):
        app = application(plane_with_model()[0], max_body_size=10)
        assert post(app, PATH, BODY, "application/json")[0] == 413


def test_first_of_several_headers_applies(server: Server) -> None:
    async def doubled(scope: Any, receive: Any, send: Any) -> None:
        scope["headers"].append((b"x-b3-traceid", b"second"))
        await server.ours(scope, receive, send)

    seen = []
    for context in (nullcontext(), installed(integration)):
        with context:
            assert post(doubled, PATH, BODY, "application/json", x_b3_traceid="first")[0] == 200
        seen.append(server.model.headers)
    assert seen[0] == seen[1]
    assert seen[0]["x-b3-traceid"] == "first"


async def show(request: Request) -> Any:
    return JSONResponse(await request.json())


def test_routes_of_the_program_come_first() -> None:
    """Those that it has added before KServe's are registered. KServe's first data plane is used."""
    app = FastAPI()
    app.add_route(PATH, show, methods=["POST"])
    plane, model = plane_with_model()
    with installed(integration):
        register(app, plane)
        assert json.loads(post(app, PATH, BODY, "application/json")[2]) == json.loads(BODY)
        assert model.seen is None
        app = FastAPI()
        for each in (plane, plane_with_model()[0]):
            register(app, each)
        assert post(app, PATH, BODY, "application/json")[0] == 200
    assert model.seen is not None


def test_other_methods_and_versions_are_left_to_kserve(server: Server) -> None:
    versioned = PATH.replace("/infer", "/versions/1/infer")
    for path, method in (
        (PATH, "GET"),
        (PATH, "OPTIONS"),
        (versioned, "POST"),
        (PATH[:-6], "POST"),
    ):
        plain = post(server.plain, path, BODY, "application/json", method=method)
        assert plain[0] >= 400
        with installed(integration):
            assert_same_answer(
                plain, post(server.ours, path, BODY, "application/json", method=method)
            )


def test_scope_and_metric_have_the_names_of_the_endpoint() -> None:
    """Instrumentation uses the path of the route, and the module and name of the endpoint."""
    seen: list[Any] = []

    async def dispatch(request: Request, call_next: Any) -> Any:
        seen.append(name_metric(request.scope))
        response = await call_next(request)
        seen.append((request.scope["route"].path, request.scope["endpoint"].__qualname__))
        return response

    with installed(integration):
        app = application(plane_with_model()[0])
        name_metric = import_module("timing_asgi.integrations").StarletteScopeToName(
            "kserve.io", app
        )
        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
        assert post(app, PATH, BODY, "application/json")[0] == 200
    path = PATH.replace("recorder", "{model_name}")
    metric = "kserve.io.kserve.protocol.rest.v2_endpoints.infer"
    assert seen == [metric, (path, "V2Endpoints.infer")]


# --- servers that are registered before and after -------------------------------------------------


def test_server_that_was_registered_before_the_installation() -> None:
    plane, model = plane_with_model()
    app = application(plane)
    plain = post(app, PATH, BODY, "application/json")
    with installed(integration):
        assert_same_answer(plain, post(app, PATH, BODY, "application/json"))
        assert not is_lazy(app, model)
        infer(app)


def test_server_after_uninstall(server: Server) -> None:
    """It is KServe's own again, and uses the codec after the next installation."""
    for _ in range(2):
        with installed(integration):
            assert is_lazy(server.ours, server.model)
        assert not is_lazy(server.ours, server.model)
        plain = post(server.plain, PATH, BODY, "application/json")
        assert_same_answer(plain, post(server.ours, PATH, BODY, "application/json"))
        for bad in (b"{", b"[1]", b""):
            plain = post(server.plain, PATH, bad, "application/json")
            assert_same_answer(plain, post(server.ours, PATH, bad, "application/json"))


def test_openapi_page_is_the_same(server: Server) -> None:
    with installed(integration):
        assert server.ours.openapi() == server.plain.openapi()
        paths = server.ours.openapi()["paths"]
    assert paths["/v2/models/{model_name}/infer"]["post"]["requestBody"]


@pytest.mark.parametrize("method", ["body", "json"])
def test_middleware_that_reads_the_body(method: str) -> None:
    seen: list[Any] = []

    async def dispatch(request: Request, call_next: Any) -> Any:
        seen.append(await getattr(request, method)())
        return await call_next(request)

    plane, model = plane_with_model()
    with installed(integration):
        app = application(plane)
        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
        ours = post(app, PATH, BODY, "application/json")
        assert is_lazy(app, model)
    assert_same_answer(post(application(plane), PATH, BODY, "application/json"), ours)
    assert_same_answer(post(app, PATH, BODY, "application/json"), ours)
    assert seen == [BODY if method == "body" else json.loads(BODY)] * 3


# --- Starlette ------------------------------------------------------------------------------------


def test_source_of_starlette_is_compared_in_tested_versions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """KServe then handles REST requests itself, and a warning says so."""

    def changed_source(name: str) -> str | None:
        source = source_of_imported(name)
        if name == "starlette.routing":
            assert source
            old = "return Match.FULL, child_scope"
            assert old in source
            return source.replace(old, "return Match.FULL, dict(child_scope)")
        return source

    monkeypatch.setattr(patching, "source_of_imported", changed_source)
    logging.disable(logging.NOTSET)
    with pytest.raises(tw.IntegrationError, match=r"the source of starlette\.routing"):
        integration.install(untested="error")
    plane, model = plane_with_model()
    with installed(integration):
        app = application(plane)
        assert not is_lazy(app, model)
        infer(app)
        assert "InferResponse.from_bytes" in replaced(integration)
    [record] = caplog.records
    assert "the source of starlette.routing.Route.matches is not known" in record.getMessage()
    integration.install(untested="allow")
    try:
        assert is_lazy(application(plane), model)
    finally:
        integration.uninstall()
