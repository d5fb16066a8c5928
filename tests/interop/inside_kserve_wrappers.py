"""KServe with wrappers of other code, and with other applications in the same process.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from importlib import import_module
from inspect import getattr_static
from types import SimpleNamespace
from typing import Any

import fastapi.routing
import numpy as np
import pytest
from fastapi import FastAPI, Request
from kserve import InferInput, InferOutput, InferRequest, InferResponse
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc
from kserve.protocol.grpc.servicer import InferenceServicer
from kserve.protocol.rest import v2_endpoints
from kserve.protocol.rest.multiprocess.server import RESTServerProcess
from kserve.protocol.rest.v2_datamodels import InferenceRequest
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils import utils
from starlette import requests
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route

import tensorwire as tw
import tensorwire.grpc
from interop import grpc_calls
from interop.inside_kserve_json import PATH, Server, application, made, plane_with_model
from interop.json_requests import READ_AS_ARRAYS, assert_same_answer, installed, post
from interop.kserve_bodies import ONE
from interop.recorded_sources import replaced
from support.wrappers import Proxy, functools_wrapper, two_wrappers, wrapped
from tensorwire.digests import source_of_imported
from tensorwire.integrations import kserve as integration
from tensorwire.integrations import patching
from tensorwire.integrations.kserve import convert
from tensorwire.integrations.kserve.convert import LazyTensor
from tensorwire.integrations.kserve.sources import PLANE, REQUEST_JSON

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
    servicer = InferenceServicer(plane, None)
    add = grpc_predict_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server
    grpc_calls.infer(add, servicer, GRPC_REQUEST)


def owner_of(name: str) -> tuple[Any, str]:
    """Return the module or class that defines a function, and the name of the function there."""
    module, _, path = name.partition(":")
    owner: Any = import_module(module)
    *classes, function = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, function


IN_ANOTHER_PROCESS = "kserve.protocol.rest.multiprocess.server:RESTServerProcess.target"


def compared_functions() -> list[str]:
    names = set(json.loads(integration._PATCH.digests.read_text())) - {IN_ANOTHER_PROCESS}
    values = {name: getattr_static(*owner_of(name)) for name in names}
    kinds = (type(workload), classmethod, staticmethod, property)
    return sorted(name for name, value in values.items() if type(value) in kinds)


def part_of_property(wrap: Any) -> Any:
    """Return a function that wraps functions, and the getters of properties."""

    def wrap_part(value: Any, count: Callable[[], None]) -> Any:
        if type(value) is property:
            return property(wrap(value.fget, count), value.fset)
        return wrap(value, count)

    return wrap_part


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize("name", compared_functions())
def test_wrapper_is_called_as_often_as_without_the_integration(name: str, wrap: Any) -> None:
    """This holds for each function that the integration replaces or relies on."""
    n_calls: list[int] = []

    def count() -> None:
        n_calls[-1] += 1

    with wrapped(*owner_of(name), part_of_property(wrap), count):
        for is_installed in (False, True, False):
            n_calls.append(0)
            if is_installed:
                integration.install()
            workload()
            integration.uninstall()
    assert n_calls[0] > 0
    assert n_calls == [n_calls[0]] * 3


def is_lazy(app: Any, model: Any) -> bool:
    """Return whether the model gets tensors that have no lists yet."""
    kinds: list[bool] = []

    def predict(payload: Any, headers: Any = None) -> Any:
        kinds.extend(isinstance(t, LazyTensor) and t._tensor is not None for t in payload.inputs)
        return InferResponse("1", "recorder", [])

    model.predict = predict
    try:
        assert post(app, PATH, BODY, "application/json")[0] == 200
    finally:
        del model.predict
    return kinds == [True]


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy, two_wrappers])
@pytest.mark.parametrize("is_first", [True, False], ids=["wrapped first", "wrapped later"])
def test_wrapper_around_the_endpoint_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, wrap: Any, is_first: bool
) -> None:
    """JSON responses are written from arrays, whatever function calls the endpoint."""
    n_calls = 0

    def count() -> None:
        nonlocal n_calls
        n_calls += 1

    def infer_while_wrapped() -> Any:
        plane, model = plane_with_model()
        app = application(plane)
        expected = post(app, PATH, BODY, "application/json")
        model.answer = lambda payload: InferResponse("1", "recorder", [made(X)])
        with monkeypatch.context() as patch:
            patch.setattr(convert, "to_json_list", None)  # fails if the response needs lists
            found = post(app, PATH, BODY, "application/json")
        assert json.loads(found[2])["outputs"][0]["data"] == X.ravel().tolist()
        return expected

    plain = post(application(plane_with_model()[0]), PATH, BODY, "application/json")
    if is_first:
        with wrapped(V2Endpoints, "infer", wrap, count), installed(integration):
            found = infer_while_wrapped()
    else:
        with installed(integration), wrapped(V2Endpoints, "infer", wrap, count):
            found = infer_while_wrapped()
    assert_same_answer(plain, found)
    assert n_calls == 2


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize(
    "name", [REQUEST_JSON, f"{PLANE}.encode", f"{PLANE}.decode", f"{PLANE}.infer"]
)
@pytest.mark.parametrize("is_running", [True, False])
def test_wrapper_that_is_added_later(
    server: Server, name: str, wrap: Any, is_running: bool
) -> None:
    """It is added after the installation, and after or before the start of the server."""
    n_calls = 0

    def count() -> None:
        nonlocal n_calls
        n_calls += 1

    plain = server.infer(BODY)
    with installed(integration), wrapped(*owner_of(name), wrap, count):
        app = server.ours if is_running else application(server.dataplane)
        assert_same_answer(plain, post(app, PATH, BODY, "application/json"))
    assert n_calls == 1


def test_encode_of_one_data_plane_may_be_replaced() -> None:
    server, seen = Server(), []
    plain = server.infer(BODY)
    original = server.dataplane.encode

    def encode(*arguments: Any, **more: Any) -> Any:
        found = original(*arguments, **more)
        seen.append(found[0]["outputs"])
        return found

    server.dataplane.encode = encode
    with installed(integration):
        assert_same_answer(plain, server.infer(BODY))
    assert len(seen) == 1


def test_request_class_of_other_code_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Own(Request):
        async def json(self) -> Any:
            seen.append(type(self))
            return await super().json()

    plane, _ = plane_with_model()
    plain = post(application(plane), PATH, BODY, "application/json")
    with installed(integration):
        app = application(plane)
        monkeypatch.setattr(fastapi.routing, "Request", Own)
        assert_same_answer(plain, post(app, PATH, BODY, "application/json"))
    assert seen == [Own]


def test_only_the_infer_routes_are_changed() -> None:
    def classes() -> dict[str, type]:
        routers: list[Any] = []
        app = SimpleNamespace(include_router=routers.append)
        v2_endpoints.register_v2_endpoints(app, plane_with_model()[0], None)
        return {route.path: type(route) for router in routers for route in router.routes}

    plain = classes()
    with installed(integration):
        ours = classes()
    assert plain.keys() == ours.keys()
    assert {path for path in plain if ours[path] is not plain[path]} == {
        PATH.replace("recorder", name)
        for name in ("{model_name}", "{model_name}/versions/{model_version}")
    }


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


# --- other applications in the process ------------------------------------------------------------


async def show(request: Request) -> Any:
    """Return what an application sees of its request: the types of the request and the body."""
    body = await request.json()
    return JSONResponse([f"{type(request).__module__}.{type(request).__name__}", body])


def fastapi_app() -> FastAPI:
    app = FastAPI()

    @app.post(PATH)
    async def model(request: Request, message: InferenceRequest) -> Any:
        return [type(message).__name__, message.inputs[0].data, type(request).__name__]

    return app


def test_other_applications_are_untouched(server: Server) -> None:
    """They use the same paths, bodies and classes as KServe."""
    apps: dict[str, Any] = {
        "Starlette": Starlette(routes=[Route(PATH, show, methods=["POST"])]),
        "FastAPI": fastapi_app(),
        "a route in the application of KServe": application(plane_with_model()[0]),
    }
    apps["a route in the application of KServe"].add_route("/show", show, methods=["POST"])

    def answers() -> list[Any]:
        paths = [PATH, PATH, "/show"]
        return [
            post(app, path, BODY, "application/json")[::2]
            for app, path in zip(apps.values(), paths, strict=True)
        ]

    before = dict(vars(requests.Request))
    plain = answers()
    assert [status for status, _ in plain] == [200] * 3
    with installed(integration):
        assert dict(vars(requests.Request)) == before
        added = application(plane_with_model()[0])
        added.add_route("/show", show, methods=["POST"])
        assert answers() == plain
        assert post(added, "/show", BODY, "application/json")[::2] == plain[2]


def test_endpoint_of_the_program_gets_the_json_tree() -> None:
    """A program may call the data plane as KServe's endpoint does."""
    plane, _ = plane_with_model()
    trees: list[Any] = []

    async def predict(request: Request) -> Any:
        headers = dict(request.headers)
        decoded, attributes = plane.decode(await request.body(), headers, "v2", "recorder")
        answer, _ = await plane.infer("recorder", decoded, headers)
        tree, _ = plane.encode("recorder", answer, headers, attributes)
        trees.append(tree)
        return JSONResponse(tree)

    app = Starlette(routes=[Route(PATH, predict, methods=["POST"])])
    with installed(integration):
        assert post(app, PATH, BODY, "application/json")[0] == 200
    assert trees[0]["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]


# --- Starlette ------------------------------------------------------------------------------------


def test_source_of_starlette_is_compared_in_tested_versions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """KServe then reads JSON requests itself, and a warning says so."""

    def changed_source(name: str) -> str | None:
        source = source_of_imported(name)
        if name == "starlette.requests":
            assert source
            assert "json.loads(body)" in source
            return source.replace("json.loads(body)", "json.loads(bytes(body))")
        return source

    monkeypatch.setattr(patching, "source_of_imported", changed_source)
    logging.disable(logging.NOTSET)
    with pytest.raises(tw.IntegrationError, match=r"relies on the source of starlette\.requests"):
        integration.install(untested="error")
    plane, model = plane_with_model()
    with installed(integration):
        app = application(plane)
        assert not is_lazy(app, model)
        infer(app)
        assert {"DataPlane.infer", "V2Endpoints.infer"} <= replaced(integration)
    [record] = caplog.records
    assert "relies on the source of starlette.requests.Request.json" in record.getMessage()
    integration.install(untested="allow")
    try:
        assert is_lazy(application(plane), model)
    finally:
        integration.uninstall()
