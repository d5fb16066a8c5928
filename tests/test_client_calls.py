"""The methods of both clients, over HTTP and gRPC: arguments, responses, retries, processes."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import pickle
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc
from support import client_fixtures
from support.client_fixtures import (
    GOOD,
    LOOPS,
    Awaited,
    Connect,
    MiB,
    OnUnixSocket,
    Served,
    TlsScripted,
    X,
    app,
    seen,
)
from support.grpc_cases import tensor
from support.grpc_scripted_servers import ScriptedServer
from support.lifetimes import without_gc
from support.memory import takes
from support.protobuf_wire import delimited
from support.requirements import package
from support.scripts import run_script
from support.serve_process import free_port
from support.servers import Scripted, http, uvicorn_server
from support.threads import Places, forbid_threads, in_thread, wait_for
from tensorwire.client import AsyncClient, Client, InferenceServerError, Timeout
from tensorwire.client import http as client_http
from tensorwire.client import requests as client_requests
from tensorwire.server import create_app

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect, server = client_fixtures.connect, client_fixtures.server
served, grpc_server = client_fixtures.served, client_fixtures.grpc_server
certificate = client_fixtures.certificate


@pytest.fixture
def client(connect: Connect, served: Served) -> Iterator[Any]:
    with connect(served.url, timeout=20) as found:
        yield found


# --- requests and responses ---


def test_infer(client: Any, served: Served) -> None:
    inputs = [tw.Tensor("x", X), tw.Tensor("words", ["a", "bc"]), tw.Tensor("none", X[:0])]
    response = client.infer("echo", inputs, id="7", parameters={"more": 1})
    assert np.array_equal(response["x"].as_numpy(), X)
    assert response["words"].as_numpy().tolist() == [b"a", b"bc"]
    assert response["none"].shape == (0,)
    assert (response.id, response.model_name) == ("7", "echo")
    saw = "more" if served.is_grpc else "binary_data_output,more"
    assert response.parameters["saw"] == saw


def test_fields_of_an_infer_request_are_sent(client: Any) -> None:
    request = tw.InferRequest({"x": X, "y": X}, ["y"], id="mine", parameters={"a": 1})
    response = client.infer("echo", request)
    assert (list(response), response.id) == (["y"], "mine")
    assert response.parameters["saw"].startswith("a")
    response = client.infer("echo", request, ["x"], id="other", parameters={"more": 1})
    assert (list(response), response.id) == (["x"], "other")
    assert response.parameters["saw"].endswith("more")
    assert client.infer("echo", request.replace(id=None)).id.isdigit()
    typed: Client = client
    with pytest.raises(TypeError, match="outputs must be an iterable of names"):
        typed.infer("echo", request, "y")  # type: ignore[arg-type]


def test_binary_data_is_exact_whatever_is_chosen_for_json(client: Any, served: Served) -> None:
    array = np.array([np.inf, -np.inf, np.nan, 1])
    json = {"binary_inputs": False} if served.is_grpc else {}  # it has no effect over gRPC
    for options in ({}, {"nonfinite": "null"}, {"nonfinite": "error", **json}):
        received = client.infer("echo", {"x": array}, **options)["x"].as_numpy()
        assert np.array_equal(received, array, equal_nan=True)


def test_requests_are_numbered(client: Any) -> None:
    ids = [client.infer("echo", {"x": X}).id for _ in range(3)]
    assert ids == ["1", "2", "3"]
    assert client.infer("echo", {"x": X}, id="mine").id == "mine"
    assert client.infer("echo", {"x": X}, id=None).id is None
    assert client.infer("echo", {"x": X}).id == "4"


def test_options_of_triton(client: Any, grpc_server: ScriptedServer, served: Served) -> None:
    """Those that are 0 or False are not sent, as in tritonclient."""
    chosen: dict[str, Any] = {"sequence_id": "a", "sequence_start": True, "priority": 2}
    saw = client.infer("echo", {"x": X}, **chosen, sequence_end=False, parameters={"timeout": 9})
    names = [*sorted(chosen), "timeout"]
    assert saw.parameters["saw"].removeprefix("binary_data_output,").split(",") == names
    if served.is_grpc:
        sent = tw.grpc.decode_request(grpc_server.messages[-1])
        assert sent.parameters == {**chosen, "timeout": 9}


def test_encoded_request_is_sent_repeatedly(client: Any, served: Served) -> None:
    encode: Any = tw.grpc.encode_request if served.is_grpc else tw.encode_request
    parameters = {"binary_data_output": True}
    encoded = encode(tw.InferRequest({"x": X}, id="7", model_name="echo", parameters=parameters))
    for _ in range(3):
        response = client.infer("echo", encoded)
        assert np.array_equal(response["x"].data, X)
        assert response.id == "7"
    invalid: list[dict[str, Any]] = [{"id": "8"}, {"outputs": ["x"]}, {"parameters": {}}]
    invalid += [{"priority": 1}]
    invalid += [{"sequence_id": 1}, {"sequence_start": True}, {"sequence_end": True}]
    for options in invalid:
        [name] = options
        with pytest.raises(TypeError, match=rf"encoded .* {name}\b.* must be passed to encode_"):
            client.infer("echo", encoded, **options)


def test_metadata(client: Any) -> None:
    assert client.server_metadata()["extensions"]
    metadata = client.model_metadata("declared", "1")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]


def test_headers_and_timeouts_of_all_methods(connect: Connect, served: Served) -> None:
    headers = {"X-Tenant": "9", "User-Agent": "mine", "Authorization": "Bearer a"}
    with connect(served.url, headers=headers) as client:
        client.infer("echo", {"x": X}, headers={"x-tenant": "10", "X-B.c_d": "a b"})
        client.is_ready()
        first, second = served.requests[-2:]
        assert (first["x-tenant"], first["x-b.c_d"]) == ("10", "a b")
        assert (first["authorization"], second["x-tenant"]) == ("Bearer a", "9")
        assert first["user-agent"].startswith("mine")
    before = len(served.requests)
    with connect(served.url) as client:
        calls: list[Any] = [
            partial(client.infer, "echo", {"x": X}),
            partial(client.infer, "declared", {"x": [1]}),  # also requests the metadata
            client.server_metadata,
            partial(client.model_metadata, "declared"),
        ]
        if not served.is_grpc:
            calls.append(partial(client.infer_raw, "declared", X))
            calls.append(partial(client.request_json, "GET", "/v2"))
            calls.append(partial(client.model_config, "declared"))
        for call in calls:
            call(headers={"Authorization": "Bearer 7"})
        assert client.is_ready("declared", headers={"Authorization": "Bearer 7"})
        client.wait_until_ready("declared", 5, headers={"Authorization": "Bearer 7"})
        sent = served.requests[before:]
        assert {request.get("authorization") for request in sent} == {"Bearer 7"}
        assert len(sent) == len(calls) + 3
        assert sent[0]["user-agent"].split()[0] == f"tensorwire/{tw.__version__}"
        for call in calls:
            with pytest.raises(TimeoutError, match=r"\(total timeout\)"):
                call(timeout=Timeout(total=1e-9))
        assert not client.is_ready("declared", timeout=Timeout(total=1e-9))


@pytest.mark.parametrize("is_grpc", [False, True])
def test_endpoints_without_inference(connect: Connect, is_grpc: bool) -> None:
    app = create_app({"declared": client_fixtures.declared})
    with ExitStack() as stack:
        if is_grpc:
            served_app = package("support.grpc_served_app").served_app
            url = f"grpc://{stack.enter_context(served_app(app)).address}"
        else:
            url = stack.enter_context(uvicorn_server(app))
        client = stack.enter_context(connect(url, timeout=20))
        client.infer("declared", {"x": X})
        item = {"name": "declared", "version": "1", "state": "READY", "reason": ""}
        assert client.repository_index() == [item]
        [found] = client.statistics("declared", "1")["model_stats"]
        assert client.statistics()["model_stats"] == [found]
        assert (found["name"], found["inference_count"]) == ("declared", 1)
        assert found["inference_stats"]["success"]["count"] == 1
        config = client.model_config("declared")
        [x] = config["input"]
        assert (x["name"], x["data_type"], x["dims"]) == ("x", "TYPE_FP32", [-1])
        for control in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerError) as caught:
                control("declared")
            assert (caught.value.status, caught.value.model) == (
                501 if is_grpc else 404,
                "declared",
            )


def test_endpoints_over_grpc(connect: Connect) -> None:
    """What is sent, and what another server may send: unknown numbers, empty and joined fields."""
    sent: list[bytes] = []
    x = delimited(5, delimited(1, b"x") + b"\x10\x63")
    parameters = delimited(14, delimited(1, b"k")) + delimited(14, b"")
    statistics = delimited(1, delimited(1, b"m") + delimited(6, delimited(1, b"\x08\x05")) * 2)
    answers = {
        "ModelConfig": delimited(1, x + parameters),
        "ModelStatistics": statistics + delimited(1, b""),
        "RepositoryModelLoad": b"",
        "RepositoryModelUnload": b"",
    }

    def answer(name: str, message: bytes, _: Any) -> bytes:
        sent.append(message)
        return answers[name]

    scripted: dict[str, Any] = {name: partial(answer, name) for name in answers}
    with ScriptedServer(scripted) as server, connect(server.url) as client:
        config = client.model_config("m")
        assert config["input"] == [{"name": "x", "data_type": 99, "dims": []}]
        assert config["parameters"] == {"k": {}, "": {}}
        first, second = client.statistics()["model_stats"]
        assert first["inference_stats"]["success"] == {"count": 5, "ns": 0}
        assert second["inference_stats"] == {}
        for config in (MappingProxyType({"a": MappingProxyType({"b": 1})}), '{"a": {"b": 1}}'):
            assert client.load_model("m", config=config) is None
        assert client.unload_model("m", unload_dependents=True) is None
        assert client.load_model("m") is None
        key, value = b"unload_dependents", delimited(2, b"\x08\x01")
        config_value = delimited(1, b"config") + delimited(2, delimited(3, b'{"a": {"b": 1}}'))
        assert sent[2:] == [
            *[delimited(2, b"m") + delimited(3, config_value)] * 2,
            delimited(2, b"m") + delimited(3, delimited(1, key) + value),
            delimited(2, b"m"),
        ]
        with pytest.raises(tw.EncodeError, match=rf"^RepositoryModelLoad {server.url}: the body"):
            client.load_model("m", config={"a": {1}})
        with pytest.raises(ValueError, match="request_json requires an HTTP URL"):
            client.request_json("GET", "/v2")


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("method", "path", "body", "error", "text"),
    [
        *(("GET", path, None, ValueError, f"the path {path!r} is not under the URL: it must begin")
          for path in ("", "v2", "//host/v2", "http://host/v2", "/v2/../x", "/v2/%2e%2E", "/.")),
        ("POST", "/a b", None, ValueError, "the path is invalid: character ' ' at position 2"),
        ("PUT", "/a\r\nb: c", None, ValueError, r"the path is invalid: character '\r' at "),
        ("DELETE", "/ü#", None, ValueError, "the path is invalid: character 'ü' at position 1"),
        ("GET", "/x#y", None, ValueError, "the path is invalid: character '#' at position 2"),
        ("GET", "x?secret", None, ValueError, "the path 'x' is not under the URL"),
        ("POST", "/v2", {1}, tw.EncodeError, "the body cannot be written as JSON: Object of type"),
        ("POST", "/v2", [np.nan], tw.EncodeError, "the body cannot be written as JSON: Out of"),
        ("POST", "/v2", DEEP, tw.EncodeError, "the body cannot be written as JSON: "),
    ],
)  # fmt: skip
def test_json_that_cannot_be_sent(
    connect: Connect, method: str, path: str, body: Any, error: Any, text: str
) -> None:
    with Scripted([]) as server, connect(f"http://{server.address}/p") as client:
        with pytest.raises(error) as caught:
            client.request_json(method, path, body)
        url = f"http://{server.address}/p"
        begin = f"{method} {url}{'' if body is None else path}: {text}"
        assert str(caught.value).startswith(begin)
        assert "secret" not in str(caught.value)
        assert server.n_connections == 0


def test_json_of_any_path(connect: Connect) -> None:
    """A body may be absent, and an empty response is None. A failed request is sent again."""
    busy = http(b"", status="503 Busy")
    answers = [http(b'{"a": [1, 2.5]}'), http(b""), http(b"null"), http(b'"b"')]
    with Scripted([*answers, busy, answers[0]]) as server:
        server.answers = [*answers, busy]
        with connect(f"{server.address}/p", retries=1, headers={"X-Key": "7"}) as client:
            assert client.request_json("POST", "/v2/x?y=%20", {"b": None}) == {"a": [1, 2.5]}
            assert client.request_json("POST", "/v2/x") is None
            assert client.request_json("GET", "/v2/x") is None
            assert client.request_json("PATCH", "/v2/x", [], headers={"x-key": "8"}) == "b"
            heads = [head.lower().splitlines() for head in server.heads]
            assert [head[0].split()[1] for head in heads] == ["/p/v2/x?y=%20", *["/p/v2/x"] * 3]
            lengths = [[line for line in head if "content-" in line] for head in heads]
            assert lengths[0] == ["content-type: application/json", "content-length: 11"]
            assert lengths[1:3] == [["content-length: 0"], []]
            assert ("x-key: 7" in heads[0], "x-key: 8" in heads[3]) == (True, True)
            server.answers = answers
            assert client.request_json("POST", "/v2/x", {}) == {"a": [1, 2.5]}
            assert len(server.heads) == 6
            with pytest.raises(ValueError, match=r"'HEAD' http://.*: the method must be one of"):
                client.request_json("HEAD", "/v2/x")


@pytest.mark.parametrize("body", [b"<html>", b"[1", b"\xff", b"NaN", b"[" * 200, b"{} {}"])
def test_response_that_is_not_json(connect: Connect, body: bytes) -> None:
    with Scripted([http(body)]) as server, connect(server.address) as client:
        with pytest.raises(tw.DecodeError) as caught:
            client.request_json("GET", "/v2/x?secret=1")
        url = f"http://{server.address}/v2/x"
        assert str(caught.value).startswith(f"GET {url}: the response is invalid: ")
        assert "(status 200, no Content-Type, text " in str(caught.value)
        assert (caught.value.url, "secret" in str(caught.value)) == (url, False)
    fails = pytest.raises(tw.DecodeError, match="the response is invalid: it is not a JSON array")
    with Scripted([http(b"{}")]) as server, connect(server.address) as client, fails:
        client.repository_index()


NO_MODEL = TypeError("the name of a model must be a str, not NoneType")
NO_MODEL_WITH_VERSION = ValueError("a version requires the name of a model")
CONFIG = "config must be a mapping, or its JSON as a str, not"
TWICE = ValueError("sequence_id must not be passed both as an argument and in parameters")
INVALID_ARGUMENTS: list[tuple[Any, dict[str, Any], Exception]] = [
    (Client.load_model, {"model": "m", "config": 5}, TypeError(f"{CONFIG} int")),
    (Client.load_model, {"model": "m", "config": 0}, TypeError(f"{CONFIG} int")),
    (Client.load_model, {"model": "m", "config": b"{}"}, TypeError(f"{CONFIG} bytes")),
    (Client.unload_model, {"model": "m", "unload_dependents": 1},
     TypeError("unload_dependents must be a bool, not int")),
    *((method, {"model": None}, NO_MODEL) for method in (
        Client.model_metadata, Client.model_config, Client.load_model, Client.unload_model)),
    *((method, {"model": None, "version": "2"}, NO_MODEL_WITH_VERSION) for method in (
        Client.statistics, Client.is_ready, Client.wait_until_ready)),
    (Client.infer, {"model": "echo", "inputs": {"x": X}, "parameters": 5},
     TypeError("parameters must be a mapping, not int")),
    (Client.infer, {"model": "echo", "inputs": {"x": X}, "sequence_id": 1,
                    "parameters": {"sequence_id": 2}}, TWICE),
]  # fmt: skip


def test_invalid_arguments(client: Any, served: Served) -> None:
    before = len(served.requests)
    for method, arguments, error in INVALID_ARGUMENTS:
        with pytest.raises(type(error), match=f"^{error}$"):
            getattr(client, method.__name__)(**arguments)
    assert len(served.requests) == before


def test_names_and_versions_that_cannot_be_sent(client: Any, served: Served) -> None:
    """Servers and proxies remove "." and ".." from a path, also if the dots are quoted."""
    before = len(served.requests)
    calls = [
        lambda m, v: client.infer(m, {"x": X}, version=v),
        lambda m, v: client.infer(m, {"x": [1.0]}, version=v),
        client.model_metadata,
        client.is_ready,
        lambda m, v: client.wait_until_ready(m, 1, version=v),
    ]
    if not served.is_grpc:
        calls.append(lambda m, v: client.infer_raw(m, X, version=v))
    for call in calls:
        for name in [""] if served.is_grpc else ["", ".", ".."]:
            # An empty version is none.
            for model, version in ((name, None), (name, "1"), ("echo" if name else "", name)):
                with pytest.raises(ValueError, match=f"of a model must not be '{name}'"):
                    call(model, version)
        with pytest.raises(TypeError, match=r"^the name of a model must be a str, not int$"):
            call(3, None)
    assert len(served.requests) == before
    for accepted in ("...", ".a", "a.", " "):
        client.is_ready(accepted)
    assert len(served.requests) == before + 4


# --- lists of numbers ---


def test_datatypes_of_lists_are_those_of_the_metadata(client: Any, served: Served) -> None:
    inputs = {"x": [1, 2, 3]}
    for version, n_requests in ((None, 2), (None, 1), ("", 1), ("1", 2), (1, 1)):
        before = len(served.requests)
        response = client.infer("declared", inputs, version=version)  # declares FP32
        assert response["y"].as_numpy().tolist() == [2, 4, 6]
        assert len(served.requests) == before + n_requests
    assert inputs == {"x": [1, 2, 3]}
    client.infer("echo", {"words": [["a", "b"]], "more": (b"c",), "x": [X, X]})
    assert len(served.requests) == before + 2


def test_caches_of_a_client_are_limited(
    connect: Connect, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "MAX_CACHED", 1)
    with connect(server) as client:
        made = getattr(client, "client", client)
        for version in (None, "1", None):
            assert client.infer("declared", {"x": [1]}, version=version)["y"].shape == (1,)
            assert (len(made._adapter.heads), len(made._datatypes)) == (1, 1)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
SINGLE = "not {}: pass a single input as"
UNDECLARED = "^input 'x' is a list of numbers, but the metadata of model '{}' does not declare its"
NOT_KNOWN = r": model 'unknown' is not known.* \(.* numbers: pass an array, or a Tensor with a "


@pytest.mark.parametrize(
    ("model", "inputs", "error", "message"),
    [
        ("declared", {"x": ENDLESS}, tw.EncodeError, "is a list that is nested too deeply"),
        ("declared", [tw.Tensor("x", X), X], TypeError, r"inputs\[1\] must be a Tensor, not nd"),
        ("declared", [[1, 2], [3, 4]], TypeError, r"inputs\[0\] must be a Tensor, not list"),
        *(
            ("declared", single, TypeError, SINGLE.format(kind))
            for single, kind in [
                *(
                    (X, "ndarray"),
                    (X[0], "float32"),
                    ("abc", "str"),
                    (3, "int"),
                    (None, "NoneType"),
                ),
                *((tw.Tensor("x", X), "Tensor"), (tw.Tensor("x", ["a"]).data, "BytesArray")),
            ]
        ),
        ("echo", {"x": [1]}, ValueError, UNDECLARED.format("echo")),
        ("declared", {"y": X, "x": [0.5], "z": []}, ValueError, "^input 'z' is a list"),
        ("unknown", {"x": [1]}, InferenceServerError, NOT_KNOWN),
    ],
)
def test_inputs_that_do_not_fit(
    client: Any, model: str, inputs: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        client.infer(model, inputs)


@pytest.mark.parametrize("name", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.table"])
def test_data_frame_as_inputs(client: Any, name: str) -> None:
    module, _, function = name.partition(".")
    frame = getattr(package(module), function)({"x": [1, 2], "text": ["a", "b"]})
    found = client.infer("echo", frame)
    assert {key: tensor.tolist() for key, tensor in found.items()} == {
        "x": [1, 2],
        "text": [b"a", b"b"],
    }
    with pytest.raises(TypeError, match=SINGLE.format(r"\w+")):
        client.infer("echo", frame["x"])


@pytest.mark.parametrize(
    "metadata",
    [
        *(b"{}", b'{"inputs":3}', b'{"inputs":[{"name":"x"}]}', b'{"inputs":[[]]}'),
        b'{"inputs":[{"name":"x","datatype":{"a":1}}]}',
        b'{"inputs":[{"name":["x"],"datatype":"FP32"}]}',
    ],
)
def test_metadata_without_inputs(connect: Connect, metadata: bytes) -> None:
    fails = pytest.raises(ValueError, match=UNDECLARED.format("m"))
    with Scripted([http(metadata)]) as server, connect(server.address) as client, fails:
        client.infer("m", {"x": [1]})


def test_advice_after_metadata_was_requested(connect: Connect) -> None:
    """An error of a server that gives no advice of its own, such as Triton, names all casts."""
    metadata = b'{"inputs":[{"name":"x","datatype":"FP32"},{"name":"2","datatype":"INT64"}]}'
    error = http(b'{"error":"wrong datatype"}', status="400 Bad Request")
    inputs = {"x": np.zeros(1), "2": np.zeros(1), "y": np.zeros(1)}
    casts = r'wrong datatype .*: x.astype\("float32"\), array.astype\("int64"\)\)$'
    with Scripted([error, http(metadata), error]) as server, connect(server.address) as client:
        with pytest.raises(InferenceServerError, match=r"wrong datatype[^:]*$"):
            client.infer("m", inputs)
        client.model_metadata("m")
        with pytest.raises(InferenceServerError, match=casts):
            client.infer("m", inputs)


async def test_inputs_that_change_while_the_metadata_is_requested(served: Served) -> None:
    """The request has the inputs of the moment of the call."""
    async with AsyncClient(served.url) as client:
        inputs: dict[str, Any] = {"x": [1.0]}
        call = asyncio.ensure_future(client.infer("declared", inputs))
        await asyncio.sleep(0)
        inputs["y"] = [2.0]
        assert (await call)["y"].tolist() == [2.0]


# --- the event loop ---

LOOP, THREAD = "the loop", "a thread"


@pytest.mark.parametrize(
    ("is_grpc", "nbytes", "is_binary", "encoding", "decoding"),
    [
        (False, 4000, False, LOOP, LOOP),
        (False, 400_000, False, THREAD, THREAD),
        (False, 400_000, True, LOOP, LOOP),
        (False, 4_000_000, True, LOOP, THREAD),  # its BYTES, if any, are checked one by one
        (True, 1 << 20, True, LOOP, LOOP),
        (True, 4 << 20, True, THREAD, THREAD),
    ],
)
def test_large_messages_are_processed_in_a_thread(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    is_grpc: bool,
    nbytes: int,
    is_binary: bool,
    encoding: str,
    decoding: str,
) -> None:
    """Not in the threads of the event loop, which may be waiting for the client themselves."""
    places = Places(monkeypatch)
    encoder, decoder, url = tw, tw, request.getfixturevalue("server")
    if is_grpc:
        encoder = decoder = package("tensorwire.client.grpc")
        url = request.getfixturevalue("grpc_server").url
    places.note(encoder, "encode_request")
    places.note(decoder, "decode_response")
    has_returned = threading.Event()
    with Awaited(url, binary_inputs=is_binary) as client, ThreadPoolExecutor(1) as executor:
        places.loop = client.runner.get_loop()
        places.loop.set_default_executor(executor)
        executor.submit(has_returned.wait, 30)
        inputs = {"x": np.zeros(nbytes // 4, np.float32)}
        assert client.infer("echo", inputs)["x"].nbytes == nbytes
        has_returned.set()
    assert places.noted == [f"encode_request in {encoding}", f"decode_response in {decoding}"]


def test_large_metadata_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(monkeypatch)
    places.note(client_http, "read_json")
    answer = http(b'{"name": "%b"}' % (b"a" * 100_000))
    with Scripted([answer]) as server, Awaited(server.address) as client:
        places.loop = client.runner.get_loop()
        assert len(client.server_metadata()) == 1
    assert places.noted == ["read_json in a thread"]


def test_large_response_is_decoded_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is decoded in the event loop: the model has run already."""

    frame = tw.encode_response(tw.InferResponse([tw.Tensor("y", np.zeros(50_000), binary=False)]))
    with Scripted([http(bytes(frame))]) as server, Awaited(server.address) as client:
        forbid_threads(monkeypatch)
        assert client.infer("m", {"x": X})["y"].shape == (50_000,)
        monkeypatch.undo()


# --- errors ---


def test_error_of_the_server(client: Any, served: Served) -> None:
    client.infer("echo", {"x": X})  # the server reads binary data: there is no hint
    with pytest.raises(InferenceServerError) as caught:
        client.infer("unknown", {"x": X})
    error, message = caught.value, caught.value.message
    assert message.startswith("model 'unknown' is not known")
    call, url = "ModelInfer", served.url
    if not served.is_grpc:
        call, url = "POST", f"{url}/v2/models/unknown/infer"
    assert (error.status, error.retry_after) == (404, None)
    assert (error.url, error.model) == (url, "unknown")
    assert str(error) == f"{call} {url}: status 404: {message}"
    assert isinstance(error, tw.TensorwireError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.status, again.message, again.url, again.model) == (404, message, url, "unknown")
    assert str(again) == str(error)
    assert client.infer("echo", {"x": X})["x"].shape == X.shape


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_connections_that_are_refused(connect: Connect, scheme: str) -> None:
    """The calls release the only slot for a connection."""
    if scheme == "grpc":
        package("grpc")
    url = f"{scheme}://127.0.0.1:{free_port()}"
    with connect(url, connections=1) as client:
        assert client.is_ready() is False
        for _ in range(3):
            with pytest.raises(ConnectionError, match=f"^(POST|ModelInfer) {url}.*refused") as e:
                client.infer("m", {"x": X}, timeout=Timeout(total=5))
            assert e.value.__cause__ is not None


def test_limits_apply_to_responses(connect: Connect, served: Served) -> None:
    with connect(served.url, limits=tw.Limits(max_tensors=1)) as client:
        with pytest.raises(tw.HeaderError, match="more than 1 output"):
            client.infer("echo", {"x": X, "y": X})
        assert client.infer("echo", {"x": X})["x"].shape == X.shape
    with Scripted([GOOD]) as server, connect(server.address) as client:  # but not to requests
        client.infer("m", {"x" * (tw.Limits().max_name_nbytes + 1): X})


@pytest.mark.parametrize("end", ["http refused", "grpc refused", "http closed"])
def test_failed_call_does_not_keep_its_input(end: str) -> None:
    """Not even until the next garbage collection."""

    class Input(np.ndarray[Any, Any]):
        pass

    with Scripted([]) as server:
        scheme, _, kind = end.partition(" ")
        if scheme == "grpc":
            package("grpc")
        address = server.address if kind == "closed" else f"127.0.0.1:{free_port()}"
        array = np.zeros(8 * MiB, np.int8).view(Input)
        kept = weakref.ref(array)
        with Client(f"{scheme}://{address}") as client, without_gc():
            with pytest.raises(ConnectionError):
                client.infer("m", {"x": array})
            del array
            assert kept() is None


@pytest.mark.parametrize(
    "options",
    [
        *({"timeout": seconds} for seconds in (None, 3e6, 1e12)),
        *({"timeout": Timeout(connect=s, read=s, total=s)} for s in (3e6, 1e12)),
        *({"max_body_nbytes": nbytes} for nbytes in (None, (1 << 31) - 1, 1 << 31, 1 << 70)),
    ],
)
def test_options_that_are_no_limit(
    connect: Connect, served: Served, options: dict[str, Any]
) -> None:
    """System calls and grpcio have limits that are smaller."""
    with connect(served.url, **options) as client:
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


# --- retries ---


def failing(status: str, headers: dict[str, str] | None = None) -> bytes:
    return http(b'{"error": "try again"}', headers, status)


@pytest.mark.parametrize(
    ("answer", "is_retried"),
    [
        *((failing(status), True) for status in ("429 Busy", "502 Bad", "503 Busy", "504 Late")),
        *((failing(status), False) for status in ("400 Bad", "404 Not Found", "500 No")),
        (b"", True),
        (0.3, False),
    ],
)
def test_retries(connect: Connect, answer: Any, is_retried: bool) -> None:
    class FailsTwice(Scripted):
        def serve(self, connection: Any) -> None:
            self.answers = [answer if self.n_connections <= 2 else GOOD]
            super().serve(connection)

    for retries in (1, 2):
        options = {"timeout": 0.2, "retries": retries}
        with FailsTwice([]) as server, connect(server.address, **options) as client:
            if is_retried and retries == 2:
                with takes(0.1, 3):  # the pauses: 0.05 to 0.1, 0.1 to 0.2 s
                    assert client.infer("m", {"x": X})["x"].shape == X.shape
            else:
                with pytest.raises((InferenceServerError, ConnectionError, TimeoutError)):
                    client.infer("m", {"x": X})
            n_sent = len([head for head in server.heads if head.startswith("post")])
            assert n_sent == (1 + retries if is_retried else 1)


@pytest.mark.slow(reason="it waits for timeouts")
def test_retry_after(connect: Connect) -> None:
    def answers(value: str) -> list[Any]:
        answer = failing("503 Busy", {"Connection": "keep-alive", "Retry-After": value})
        return [answer.decode().encode("latin-1"), GOOD]

    server = Scripted(answers("1"))
    with server, connect(server.address, retries=1) as client, takes(0.95, 5):
        assert client.infer("m", {"x": X})["x"].shape == X.shape
    for ignored in ("Sat, 21 Nov 2026 21:00:00 GMT", "soon", "9" * 10, "9" * 400, "1.5", "\xb2"):
        with Scripted(answers(ignored)) as server, connect(server.address, retries=1) as client:
            assert client.infer("m", {"x": X})["x"].shape == X.shape
    with Scripted(answers("61")) as server, connect(server.address, retries=1) as client:
        with pytest.raises(InferenceServerError) as caught:
            client.infer("m", {"x": X})
        assert caught.value.retry_after == 61.0
        assert pickle.loads(pickle.dumps(caught.value)).retry_after == 61.0


@pytest.mark.slow(reason="it waits for timeouts")
def test_total_timeout_limits_retries(connect: Connect) -> None:
    options = {"timeout": Timeout(total=1), "retries": 1000}
    with Scripted([failing("503 Busy")]) as server, connect(server.address, **options) as client:
        with takes(0, 1.2), pytest.raises(InferenceServerError, match="try again"):
            client.infer("m", {"x": X})
        assert 2 <= len(server.heads) <= 6


# --- outputs in shared memory ---

REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 16}
ENTRIES = [{"name": name, "datatype": "UINT8", "shape": [2]} for name in "abc"]


@pytest.mark.parametrize("is_grpc", [False, True])
def test_outputs_in_shared_memory(connect: Connect, is_grpc: bool) -> None:
    """Triton's responses do not say where they are. Data that is sent nevertheless is read."""
    entries = [ENTRIES[0], {**ENTRIES[1], "data": [1, 2]}, {**ENTRIES[2], "data": [3, 4]}]
    raw = b"".join(delimited(6, content) for content in (b"", b"\1\2", b"\3\4"))
    message = b"".join(map(tensor, "abc")) + raw
    http_server = Scripted([http(json.dumps({"outputs": entries}).encode())] * 2)
    with http_server, ScriptedServer({"ModelInfer": lambda *_: message}) as grpc_server:
        url = grpc_server.url if is_grpc else http_server.address
        outputs = [tw.RequestedOutput(name, parameters={**REGION, "k": 1}) for name in "ab"]
        with connect(url) as client:
            found = client.infer("m", {"x": X}, [*outputs, "c"])
            assert (found["a"].data, found["a"].parameters) == (None, REGION)
            assert [found[name].as_numpy().tolist() for name in "bc"] == [[1, 2], [3, 4]]
            assert not found["b"].parameters
            with pytest.raises(tw.DecodeError, match="output 'a'"):  # it was not requested there
                client.infer("m", {"x": X})


# --- readiness ---


def test_readiness(client: Any) -> None:
    assert client.is_ready()
    assert client.is_ready("echo")
    assert client.is_ready("echo", "1")
    assert not client.is_ready("unknown")
    client.wait_until_ready("echo", 5)
    for seconds in (0, float("inf")):
        message = f"^timeout must be a positive number of seconds, not {seconds}$"
        with pytest.raises(ValueError, match=message):
            client.wait_until_ready(timeout=seconds)
    with pytest.raises(TypeError, match=r"^timeout must be .*, not NoneType$"):
        client.wait_until_ready(timeout=None)
    with pytest.raises(TypeError, match="the name of a model must be a str, not int"):
        client.wait_until_ready(5)


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_wait_for_a_server_that_starts(connect: Connect, scheme: str) -> None:
    port = free_port()

    def start() -> None:
        time.sleep(0.3)
        if scheme == "http":
            stack.enter_context(Scripted([http(b"{}")], port))
        else:
            stack.enter_context(ScriptedServer(address=f"127.0.0.1:{port}"))

    with ExitStack() as stack, connect(f"{scheme}://127.0.0.1:{port}") as client, in_thread(start):
        client.wait_until_ready(timeout=10)


def test_wait_until_ready_reports_what_was_last_seen(connect: Connect) -> None:
    with Scripted([0.3]) as http_server, ScriptedServer() as grpc_server:
        for url, model, subject, last_seen in (
            (f"127.0.0.1:{free_port()}", None, "GET .*: the server", ".*Errno 111"),
            (http_server.address, None, "GET .*: the server", "the call took longer than"),
            (grpc_server.url, "loading", "ModelReady .*: model 'loading'", "status 503: not ready"),
        ):
            message = f"^{subject} is not ready after 0.2 seconds; last seen: {last_seen}"
            with connect(url) as client, pytest.raises(TimeoutError, match=message):
                client.wait_until_ready(model, 0.2)


# --- closing ---


def test_closed_client(connect: Connect, served: Served) -> None:
    for n_calls in (0, 1):  # a client that has not been used does not connect any more
        with connect(served.url) as client:
            for _ in range(n_calls):
                client.infer("echo", {"x": X})
            client.close()
            before = len(served.requests)
            calls = [partial(client.infer, "echo", {"x": X}), client.is_ready]
            if served.is_grpc:
                calls.append(partial(client.stream, "repeat", []))
            for call in calls:
                with pytest.raises(RuntimeError, match=r"^the client is closed$"):
                    call()
            client.close()
            assert len(served.requests) == before


def test_closed_client_stays_closed_in_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("localhost:1")
    client.close()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.is_ready()


def test_client_that_is_not_closed() -> None:
    """Its connections are closed without a warning when it is released."""
    with uvicorn_server(app) as address:
        client = Client(address)
        client.infer("echo", {"x": X})
        del client


def test_async_client_belongs_to_one_event_loop(served: Served) -> None:
    """As long as that runs, here in another thread."""
    client = AsyncClient(served.url)
    may_end = threading.Event()

    async def use() -> None:
        assert await client.is_ready()
        await asyncio.to_thread(may_end.wait, 10)
        assert await client.is_ready()

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(asyncio.run, use())
        wait_for(lambda: bool(client._pools))
        with pytest.raises(RuntimeError, match=r"another event loop.*: make an AsyncClient for"):
            asyncio.run(client.is_ready())
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(client.close())
        may_end.set()
        first.result()
    assert asyncio.run(client.is_ready())  # the close that failed has not closed it
    asyncio.run(client.close())


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "grpc"])
@pytest.mark.parametrize("loop", LOOPS)
def test_async_client_of_tasks_that_have_an_event_loop_each(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, loop: Any
) -> None:
    """The connections of a closed event loop are dropped without a warning."""
    options: dict[str, Any] = {}
    with ExitStack() as stack:
        if kind == "unix":
            stack.enter_context(OnUnixSocket([GOOD], tmp_path / "s"))
            url = f"unix:{tmp_path}/s"
        elif kind == "grpc":
            url = request.getfixturevalue("grpc_server").url
        else:
            certificate = request.getfixturevalue("certificate") if kind == "tls" else None
            url = stack.enter_context(TlsScripted([GOOD], certificate)).address
            if certificate is not None:
                url, options = f"https://{url}", {"ssl_context": certificate.trusting()}
        client = AsyncClient(url, **options)
        errors: list[Any] = []
        for _ in range(3):
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.get_loop().set_exception_handler(lambda _, error: errors.append(error))
                assert runner.run(client.infer("echo", {"x": X}))["x"].shape == X.shape
            gc.collect()  # a socket that was not closed causes a warning, which is an error
        with asyncio.Runner() as first, asyncio.Runner() as second:
            for runner in (first, second, first):  # none of them is closed
                assert runner.run(client.infer("echo", {"x": X}))["x"].shape == X.shape
        asyncio.run(client.close())
        assert not client._pools  # a channel of grpcio is closed when it is released
        with pytest.raises(RuntimeError, match="the client is closed"):
            asyncio.run(client.is_ready())
    assert errors == []


# --- processes ---

MAKE = """
import asyncio, os, sys
import numpy as np
from tensorwire.client import AsyncClient, Client

url, kind, option = sys.argv[1:]
x = np.zeros(3, np.float32)
channel = None
if option == "channel of the caller":
    import grpc
    channel = grpc.insecure_channel(url.removeprefix("grpc://"))
client = (Client if kind == "sync" else AsyncClient)(url, channel=channel)
"""
# Calls before a fork, in the child process, and in the parent process afterwards.
FORK = """
def call(runner):
    if kind == "sync":
        client.infer("echo", {"x": x})
    else:
        runner.run(client.infer("echo", {"x": x}))

runner = asyncio.Runner()
call(runner)
if option == "another client":
    runner.run(client.close())
    closed, client = client, AsyncClient(url)
child = os.fork()
if child == 0:
    inherited = [c.socket for pool in client._pools.values() for c in getattr(pool, "idle", ())]
    try:
        call(asyncio.Runner())
    except RuntimeError as error:
        os._exit(7 if "parent process" in str(error) else 8)
    os._exit(0 if all(sock.fileno() == -1 for sock in inherited) else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
call(runner)
os._exit(status)
"""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_fork(server: str, kind: str) -> None:
    """The child process opens its own connection, and the parent process keeps its connection.

    The child process closes its copy of the connection of the parent process.
    """
    before = len(seen)
    done = run_script(MAKE + FORK, server, kind, "")
    assert done.returncode == 0, done.stderr
    parent, child, parent_again = (call["peer"] for call in seen[before:])
    assert parent == parent_again != child


@pytest.mark.parametrize(
    ("kind", "option", "status", "n_calls"),
    [
        ("sync", "", 0, 3),
        ("async", "", 7, 2),
        ("sync", "channel of the caller", 7, 2),
        ("async", "another client", 7, 2),
    ],
)
def test_fork_over_grpc(kind: str, option: str, status: int, n_calls: int) -> None:
    """The child process has a channel of its own, and the parent process keeps its channel.

    It cannot use gRPC if a channel of grpc.aio was opened before, even if it is closed. The channel
    of the caller is not its own.
    """
    with ScriptedServer() as server:
        done = run_script(MAKE + FORK, server.url, kind, option)
        assert done.returncode == status, done.stderr
        assert len(server.calls) == n_calls


def test_child_process_closes_the_connections_of_its_parent(connect: Connect) -> None:
    """Otherwise the server would not notice that the parent process has closed them."""
    with Scripted([GOOD] * 2) as server:
        with connect(server.address) as client:
            client.infer("m", {"x": X})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
                child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
        try:
            assert server.client_has_closed.wait(10)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


EXIT = """
def end_child(progress):
    if not progress.received_nbytes and os.fork() == 0:
        sys.exit()

client.infer("m", {"x": x}, on_progress=end_child)
"""


def test_child_process_that_ends_during_a_call_of_its_parent() -> None:
    """It unwinds the frames of the call, and leaves the connection to its parent."""
    with Scripted([(0.5, GOOD)]) as server:
        done = run_script(MAKE + EXIT, server.address, "sync", "")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_pickled_client_has_the_same_options(kind: type[Client | AsyncClient]) -> None:
    options: Any = {"timeout": Timeout(total=9), "headers": {"X-A": "1"}, "max_body_nbytes": 10_000}
    client = pickle.loads(pickle.dumps(kind("localhost:8000/x/", **options)))
    assert (client.timeout, client._options.max_body_nbytes) == (Timeout(total=9), 10_000)
    assert client._options.headers == {"X-A": "1"}
    assert repr(client) == f"<{kind.__name__} of http://localhost:8000/x>"


# --- the module ---


def test_client_does_not_import_asyncio() -> None:
    done = run_script(
        "import sys, types, tensorwire.client as c; print('httptools' in sys.modules);"
        "names = 'HttpParserCallbackError HttpParserError HttpParserUpgrade HttpResponseParser';"
        # httptools imports asyncio itself
        "sys.modules['httptools'] = types.SimpleNamespace(**dict.fromkeys(names.split()));"
        "c.Client('localhost').close(); print('asyncio' in sys.modules)"
    )
    assert done.stdout.split() == ["False", "False"]


def test_both_clients_have_the_same_signatures() -> None:
    names = [name for name in dir(Client) if not name.startswith("_")]
    assert names == [name for name in dir(AsyncClient) if not name.startswith("_")]
    for name in ("__init__", *names):
        sync, asynchronous = (
            inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient)
        )
        assert list(sync.parameters) == list(asynchronous.parameters)
        found = inspect.getfullargspec(getattr(AsyncClient, name))
        assert list(sync.parameters) == found.args + found.kwonlyargs
        if name not in ("close", "stream"):  # the types of the requests and responses differ
            assert sync == asynchronous
