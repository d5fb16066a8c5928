"""The models of `create_app` over gRPC."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import numpy as np
import pytest

import tensorwire as tw
from support import http_models
from support.asgi_requests import echo, infer, rejects_every_second
from support.grpc_cases import typed
from support.lifetimes import without_gc
from support.protobuf_wire import delimited, group, integer
from support.requirements import optional, package
from support.serve_process import HOST, free_port
from support.threads import Places, wait_for

grpc = package("grpc")

import tensorwire.grpc  # noqa: E402
from support.grpc_served_app import (  # noqa: E402
    SMALL,
    UNLIMITED,
    ServedApp,
    message,
    served_app,
)
from support.http2_client import (  # noqa: E402
    DATA,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Client,
    frame,
    grpc_message,
)
from tensorwire import threads  # noqa: E402
from tensorwire._codec.datatypes import DATATYPES  # noqa: E402
from tensorwire._codec.grpc.reader import nbytes_besides_raw, read_fields, read_names  # noqa: E402
from tensorwire._codec.grpc.writer import write_fields  # noqa: E402
from tensorwire.errors import format_names  # noqa: E402
from tensorwire.grpc_messages import (  # noqa: E402
    LIVE_RESPONSE,
    MODEL_METADATA_RESPONSE,
    MODEL_REQUEST,
    READY_RESPONSE,
    SERVER_METADATA_RESPONSE,
    SERVICE,
    STREAM_ERROR,
    Fields,
)
from tensorwire.server import (  # noqa: E402
    Model,
    RequestError,
    add_to_grpc_server,
    create_app,
    grpc_server,
)
from tensorwire.server import grpc as served  # noqa: E402
from tensorwire.server.errors import OverloadedError  # noqa: E402
from tensorwire.server.grpc_calls import MAX_SMALL_NBYTES, OpenCalls, end_now  # noqa: E402
from tensorwire.server.grpc_server import serving  # noqa: E402
from tensorwire.server.inference import Inference  # noqa: E402
from tensorwire.sizes import (  # noqa: E402
    MAX_QUICK_JSON_NBYTES,
    MAX_QUICK_MESSAGE_NBYTES,
    MAX_SHARED_JSON_NBYTES,
)
from tensorwire.threads import N_THREADS  # noqa: E402

json_format = optional("google.protobuf.json_format")
tritonclient = optional("tritonclient.grpc")

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
Code = grpc.StatusCode
LARGE = np.arange(MAX_QUICK_MESSAGE_NBYTES, dtype=np.float32)  # its message is read in a thread


def call(function: Any, request: tw.InferRequest) -> Any:
    return function(request)


async def async_echo(request: tw.InferRequest) -> tw.InferResponse:
    await asyncio.sleep(0)
    return tw.InferResponse(request.inputs)


def as_async(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def model(request: tw.InferRequest) -> Any:
        return function(request)

    return model


def fail(request: tw.InferRequest) -> Any:
    raise RuntimeError("a secret")


def reject(request: tw.InferRequest) -> Any:
    raise RequestError(request.parameters["text"], request.parameters["status"])


def wrong_output(request: tw.InferRequest) -> Any:
    return {"z": 1.5}


X = tw.TensorSpec("x", "FP32", [-1])
MODELS: dict[str, Any] = {
    "echo": Model(echo, in_event_loop=True),
    "thread": echo,
    "async": async_echo,
    "wrapped": partial(call, async_echo),
    "declared": Model(echo, [X], [X], in_event_loop=True),
    "list": Model(lambda request: {"y": request["x"].as_numpy().tolist()}, in_event_loop=True),
    "a b/ü": Model(echo, in_event_loop=True),
    "fail": fail,
    "fail in event loop": Model(fail, in_event_loop=True),
    "fail async": as_async(fail),
    "cancel": http_models.cancelled,
    "cancel task": http_models.cancels_itself,
    "wrong": Model(wrong_output, [], [X]),
    "reject": reject,
    "reject async": as_async(reject),
    "version": lambda request: {"y": [str(request.model_version)]},
}
MAX_BODY = 64 << 20
NOT_KNOWN = f" is not known: the models are {format_names(list(MODELS))}"


def not_known(name: str) -> str:
    return f"model {name!r}{NOT_KNOWN}"


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def server(request: pytest.FixtureRequest) -> Iterator[ServedApp]:
    app = create_app(MODELS, max_body_nbytes=MAX_BODY)
    with served_app(app, is_uvloop=request.param == "uvloop") as found:
        yield found


def error_of(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return the code and the details of the error that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def is_malformed(error: tuple[Any, str]) -> bool:
    code, details = error
    return code == Code.INVALID_ARGUMENT and details.startswith("the gRPC message is malformed")


# --- health and metadata -------------------------------------------------------------------------


def test_methods_without_inference(server: ServedApp) -> None:
    assert server.small("ServerLive", LIVE_RESPONSE) == {"live": True}
    assert server.small("ServerReady", READY_RESPONSE) == {"ready": True}
    assert server.small("ServerMetadata", SERVER_METADATA_RESPONSE) == {
        "name": "tensorwire",
        "version": tw.__version__,
        "extensions": ["binary_tensor_data", "statistics"],
    }
    for version in ("", "1"):
        sent = write_fields({"name": "declared", "version": version}, MODEL_REQUEST)
        assert server.small("ModelReady", READY_RESPONSE, sent) == {"ready": True}
        x = {"name": "x", "datatype": "FP32", "shape": [-1]}
        assert server.small("ModelMetadata", MODEL_METADATA_RESPONSE, sent) == {
            "name": "declared",
            "versions": ["1"],
            "platform": "tensorwire",
            "inputs": [x],
            "outputs": [x],
        }


@pytest.mark.parametrize(("name", "version"), [("none", ""), ("", ""), ("echo", "2")])
def test_unknown_model(server: ServedApp, name: str, version: str) -> None:
    """It is not ready, as for Triton. Its metadata does not exist."""
    sent = write_fields({"name": name, "version": version}, MODEL_REQUEST)
    assert server.small("ModelReady", READY_RESPONSE, sent) == {"ready": False}
    text = "model 'echo' has no version '2', only '1'" if version else not_known(name)
    for call in (
        lambda: server.small("ModelMetadata", MODEL_METADATA_RESPONSE, sent),
        lambda: server.method(message(name, model_version=version or None)),
    ):
        assert error_of(call) == (Code.NOT_FOUND, text)


SMALL_PATHS = [f"{SERVICE}/{method}" for method in served.SMALL_METHODS]
SMALL_PATHS += [f"{served.HEALTH_SERVICE}/{method}" for method in ("Check", "Watch")]


def begin(server: ServedApp, path: str, messages: Iterator[bytes]) -> Any:
    """Begin a call of any method, and return its responses."""
    return server.channel.stream_stream(f"/{path}")(messages, timeout=20)


@pytest.mark.parametrize("path", SMALL_PATHS)
def test_small_messages_have_a_limit(server: ServedApp, path: str) -> None:
    """A message that is too long is not read: it would be malformed."""
    limit = MAX_SMALL_NBYTES + len("fail in event loop")
    assert is_malformed(error_of(lambda: list(begin(server, path, iter([b"\xff" * limit])))))
    for n in (limit + 1, 3 << 20):
        error = error_of(lambda n=n: list(begin(server, path, iter([b"\xff" * n]))))  # type: ignore[misc]
        text = f"SERVER: Received message larger than max ({n} vs. {limit})"
        assert error == (Code.RESOURCE_EXHAUSTED, text)
    assert server.check_health() == served.SERVING


@pytest.mark.parametrize("path", SMALL_PATHS)
def test_limits_of_small_messages(path: str) -> None:
    limits = tw.Limits(max_header_nbytes=10)
    with served_app(create_app(MODELS, limits=limits)) as server:
        sent = b"\x78\0" * 6  # a field that is not known
        code, details = error_of(lambda: list(begin(server, path, iter([sent]))))
        assert code == Code.INVALID_ARGUMENT
        assert "more than 10 bytes besides its tensors" in details


def test_health_service() -> None:
    with served_app(create_app(MODELS)) as server:
        for service in ("", SERVICE):
            assert server.check_health(service) == served.SERVING
        assert error_of(lambda: server.check_health("other"))[0] == Code.NOT_FOUND
        watched, other = server.watch_health(SERVICE), server.watch_health("other")
        assert next(watched) == served.SERVING
        assert next(other) == served.SERVICE_UNKNOWN
        server.stop()
        assert list(watched) == [served.NOT_SERVING]
        assert list(other) == []


# --- inference -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["echo", "thread", "async", "wrapped", "declared", "a b/ü"])
@pytest.mark.parametrize("x", [SMALL, LARGE], ids=["small", "large"])
def test_models(server: ServedApp, model: str, x: Any) -> None:
    response = tw.grpc.decode_response(server.method(message(model, x, id="7")))
    assert (response.model_name, response.id) == (model, "7")
    assert np.array_equal(response["x"].as_numpy(), x)


def test_arrays_of_the_model_are_views_of_the_message() -> None:
    """Unless it needs arrays that are writable and aligned."""
    found: list[Any] = []

    def model(request: tw.InferRequest) -> dict[str, Any]:
        assert request.model_name in ("views", "writable")
        arrays = [request[name].as_numpy() for name in ("a", "ab", "abc", "abcd")]
        is_writable = {array.flags.writeable for array in arrays}
        found.append((is_writable, all(array.flags.aligned for array in arrays)))
        if is_writable == {True}:
            for array in arrays:
                array[0] = 5
        return {"y": request["abcd"]}

    app = create_app({"views": model, "writable": Model(model, writable_inputs=True)})
    inputs = {name: np.arange(3.0) for name in ("a", "ab", "abc", "abcd")}
    with served_app(app) as server:
        for name, expected in (("views", [0, 1, 2]), ("writable", [5, 1, 2])):
            sent = tw.grpc.encode_request(tw.InferRequest(inputs, model_name=name))
            (in_stream,) = server.stream(iter([sent]))
            assert tw.grpc.decode_stream_response(in_stream)["y"].tolist() == expected
            assert tw.grpc.decode_response(server.method(sent))["y"].tolist() == expected
    assert found == [({False}, False)] * 2 + [({True}, True)] * 2


_PARAMETER: Fields = {1: ("key", str), 2: ("value", [{1: ("bool_param", bool)}])}
FINAL_ERROR: Fields = {
    1: ("error_message", str),
    2: ("infer_response", [{3: ("id", str), 4: ("parameters", [_PARAMETER])}]),
}
FINAL = [{"key": "triton_final_response", "value": [{"bool_param": True}]}]
WITH_EMPTY = {"triton_enable_empty_final_response": True}
CLASSES = tw.RequestedOutput("x", parameters={"classification": 1})
INVALID, UNKNOWN, INTERNAL = Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.INTERNAL


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        (message(model="none"), UNKNOWN, not_known("none")),
        (message("none", parameters=WITH_EMPTY), UNKNOWN, not_known("none")),
        (b"", UNKNOWN, not_known("")),
        (message("n" * 10_000), UNKNOWN, f"model '{'n' * 80}'..." + NOT_KNOWN),
        (message("\U0001f600" * 900), UNKNOWN, "model '\U0001f600"),
        (message("a\0\r\n%\u2028"), UNKNOWN, r"model 'a\x00\r\n%\u2028'" + NOT_KNOWN),
        (b"\xff" * 20, INVALID, "the gRPC message is malformed"),
        (message()[:-1], INVALID, "the gRPC message is malformed"),
        (message() + b"\x3a\x00", INVALID, "raw"),
        (message("declared", np.zeros(3)), INVALID, "input 'x' is FP64 [3], but"),
        (message(outputs=[tw.RequestedOutput("y")]), INVALID, "the request asks for output 'y'"),
        (message(outputs=[CLASSES]), INVALID, "output 'x' has the parameter classification"),
        (message("fail"), INTERNAL, "model 'fail' failed"),
        (message("fail", parameters=WITH_EMPTY), INTERNAL, "model 'fail' failed"),
        (message("fail in event loop"), INTERNAL, "model 'fail in event loop' failed"),
        (message("cancel"), INTERNAL, "model 'cancel' failed"),
        (message("cancel task"), INTERNAL, "internal server error"),
        (message("wrong"), INTERNAL, "the model returned output 'z', which is not declared"),
    ],
)
def test_errors(server: ServedApp, sent: bytes, code: Any, text: str) -> None:
    """The same text as over HTTP, in a call and in a stream, where it is the final response."""
    found, details = error_of(lambda: server.method(sent))
    assert (found, text in details) == (code, True)
    first, second = server.stream(iter([sent, message()]))
    expected = {"error_message": details, "infer_response": [{"id": "", "parameters": FINAL}]}
    assert read_fields(first, FINAL_ERROR) == expected
    assert np.array_equal(tw.grpc.decode_stream_response(second)["x"].as_numpy(), SMALL)
    assert np.array_equal(server.infer()["x"].as_numpy(), SMALL)


@pytest.mark.parametrize("model", ["reject", "reject async"])
def test_model_rejects_a_request(server: ServedApp, model: str) -> None:
    codes = {
        400: Code.INVALID_ARGUMENT,
        401: Code.UNAUTHENTICATED,
        403: Code.PERMISSION_DENIED,
        404: Code.NOT_FOUND,
        409: Code.ABORTED,
        413: Code.RESOURCE_EXHAUSTED,
        422: Code.INVALID_ARGUMENT,
        429: Code.RESOURCE_EXHAUSTED,
        500: Code.INTERNAL,
        501: Code.UNIMPLEMENTED,
        503: Code.UNAVAILABLE,
        504: Code.DEADLINE_EXCEEDED,
        507: Code.INTERNAL,
    }
    for status, code in codes.items():
        sent = message(model, parameters={"text": "wrong %", "status": status})
        assert error_of(partial(server.method, sent)) == (code, "wrong %")


@pytest.mark.parametrize("text", ["", "\0\r\n\U0001f600", "\U0001f600 is long " * 1000])
def test_text_of_a_rejection(server: ServedApp, text: str) -> None:
    """Clients accept 8 KiB of metadata, where each byte may take three, and streams any text."""
    sent = message("reject", parameters={"text": text, "status": 404}, id="5")
    expected = text or "Not Found"
    details = expected.encode()[:2000].decode(errors="ignore")
    assert error_of(lambda: server.method(sent)) == (Code.NOT_FOUND, details)
    first, second = server.stream(iter([sent, message()]))
    found = read_fields(first, STREAM_ERROR)
    assert (found["error_message"], found["infer_response"]) == (expected, [{"id": "5"}])
    assert np.array_equal(tw.grpc.decode_stream_response(second)["x"].as_numpy(), SMALL)


def test_statistics() -> None:
    """The requests of all transports are counted together."""
    app = create_app({"m": rejects_every_second()})
    with served_app(app) as server:
        for _ in range(2):
            server.infer("m")
            error_of(lambda: server.infer("m"))
        assert len(list(server.stream(iter([message("m")] * 2)))) == 2
        error_of(lambda: server.infer("none"))
    assert infer(app, "m", tw.encode_request(tw.InferRequest({"x": SMALL}))).status == 200
    stats = app.served["m", ""].statistics.describe()["inference_stats"]
    assert (stats["success"]["count"], stats["fail"]["count"]) == (4, 3)


def test_statistics_of_tritonclient() -> None:
    app = create_app({"m": echo, "other": echo})
    with served_app(app) as server, tritonclient.InferenceServerClient(server.address) as client:
        assert server.infer("m").model_version == "1"
        for name, version, n_models in (("", "", 2), ("m", "", 1), ("m", "1", 1)):
            found = client.get_inference_statistics(name, version, as_json=True)["model_stats"]
            assert len(found) == n_models
            assert (found[0]["name"], found[0]["version"]) == ("m", "1")
            assert found[0]["inference_count"] == found[0]["execution_count"] == "1"
            assert found[0]["inference_stats"]["success"]["count"] == "1"
            assert abs(int(found[0]["last_inference"]) / 1000 - time.time()) < 60
        with pytest.raises(Exception, match="model 'none' is not known"):
            client.get_inference_statistics("none")
        assert "statistics" in client.get_server_metadata().extensions


def test_version_of_a_request(server: ServedApp) -> None:
    for version, expected in ((None, b"None"), ("1", b"1")):
        response = tw.grpc.decode_response(server.method(message("version", model_version=version)))
        assert response["y"].elements[0] == expected


INTERNAL_ERROR = (Code.INTERNAL, "internal server error")


def test_id_of_a_request_in_its_metadata(caplog: pytest.LogCaptureFixture) -> None:
    def model(request: tw.InferRequest) -> Any:
        raise ValueError

    with served_app(create_app({"m": model})) as server:
        call = partial(server.infer, "m", metadata=[("x-request-id", "r9")])
        assert error_of(call)[0] is Code.INTERNAL
    assert "model 'm' (version 1, request 'r9') failed" in caplog.text


def test_id_of_a_request_whose_call_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """grpcio frees the metadata when the call ends. Those of other calls get the memory."""
    released = threading.Event()
    running = []

    def model(request: tw.InferRequest) -> Any:
        running.append(request)
        assert released.wait(20)
        raise ValueError

    ids = [f"{i:060}" for i in range(N_THREADS)]
    models: dict[str, Any] = {"m": model, "echo": Model(echo, in_event_loop=True)}
    with served_app(create_app(models)) as server:
        calls = [server.start("m", metadata=[("x-request-id", each)]) for each in ids]
        wait_for(lambda: len(running) == len(ids))
        for each in calls:
            each.cancel()
        for i in range(100):
            server.infer("echo", metadata=[("authorization", f"{i:<060}")])
        released.set()
        wait_for(lambda: caplog.text.count(" failed") == len(ids))
    assert [each for each in ids if f"request '{each}') failed" not in caplog.text] == []


def test_unexpected_exceptions(
    server: ServedApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret")

    monkeypatch.setattr(served, "decode_request", broken)
    for x in (SMALL, LARGE):
        assert error_of(partial(server.infer, "echo", x)) == INTERNAL_ERROR
    monkeypatch.setattr(served, "read_fields", broken)
    assert error_of(lambda: server.small("ServerLive", {})) == INTERNAL_ERROR
    assert [record.message for record in caplog.records] == ["an inference request failed"] * 3


def test_messages_above_max_body() -> None:
    with served_app(create_app({"echo": echo}, max_body_nbytes=1000)) as server:
        code, details = error_of(lambda: server.infer(x=np.zeros(1000, np.uint8)))
        assert (code, "1000" in details) == (Code.RESOURCE_EXHAUSTED, True)
        with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as gzipped:
            call = gzipped.unary_unary(f"/{SERVICE}/ModelInfer")
            assert len(call(message(x=np.zeros(900, np.uint8)))) > 900
            sent = message(x=np.zeros(1 << 20, np.uint8))
            assert error_of(lambda: call(sent))[0] == Code.RESOURCE_EXHAUSTED
        assert len(server.infer(x=np.zeros(900, np.uint8))["x"].as_numpy()) == 900


def test_limits_of_the_application() -> None:
    with served_app(create_app(MODELS, limits=tw.Limits(max_tensors=1))) as server:
        sent = tw.InferRequest({"x": SMALL, "y": SMALL}, model_name="echo")
        text = "the message has more than 1 input, which is the limit"
        error = error_of(lambda: server.method(tw.grpc.encode_request(sent)))
        assert error == (Code.INVALID_ARGUMENT, text)
        assert len(server.infer().outputs) == 1


# --- clients with generated classes --------------------------------------------------------------


def generated_input(client: Any, x: Any) -> Any:
    found = client.InferInput("x", list(x.shape), "BYTES" if x.dtype == object else "FP32")
    found.set_data_from_numpy(x)
    return found


def test_tritonclient(server: ServedApp) -> None:
    with tritonclient.InferenceServerClient(server.address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("echo")
        assert not client.is_model_ready("none")
        assert client.get_server_metadata().extensions == ["binary_tensor_data", "statistics"]
        assert client.get_model_metadata("declared").inputs[0].shape == [-1]
        index = client.get_model_repository_index().models
        assert [(each.name, each.version, each.state) for each in index] == [
            (name, "1", "READY") for name in MODELS
        ]
        words = np.array([b"a", b"", b"\xff\x00"], object)
        for x in (SMALL, words, LARGE):
            inputs = [generated_input(tritonclient, x)]
            outputs = [tritonclient.InferRequestedOutput("x")]
            result = client.infer("echo", inputs, outputs=outputs, request_id="7")
            assert np.array_equal(result.as_numpy("x"), x)
            assert result.get_response().id == "7"
        with pytest.raises(tritonclient.InferenceServerException, match="NOT_FOUND"):
            client.infer("none", inputs)


def test_config() -> None:
    """The configuration is that of HTTP, except the backend."""
    datatypes: Any = DATATYPES
    specs = [tw.TensorSpec(datatype, datatype, [-1, 3], batching=True) for datatype in datatypes]
    batching = Model(echo, specs, specs, parameters={"names": "ä,b", "": ""}, max_batch_size=2**40)
    app = create_app({"batching": batching, "plain": echo})
    with served_app(app) as server, tritonclient.InferenceServerClient(server.address) as client:
        for name in app.models:
            found = client.get_model_config(name, "1").config
            config = {**app.describe("config", app.served[name, ""]), "backend": ""}
            assert found == json_format.ParseDict(config, type(found)())
        with pytest.raises(tritonclient.InferenceServerException, match="NOT_FOUND"):
            client.get_model_config("none")


def test_stream_of_tritonclient(server: ServedApp) -> None:
    found: list[Any] = []
    with tritonclient.InferenceServerClient(server.address) as client:
        client.start_stream(lambda result, error: found.append((result, error)))
        for i in range(50):
            model = "none" if i == 20 else ("async", "thread", "echo")[i % 3]
            x = LARGE if i % 16 == 0 else np.full(2, i, np.float32)
            inputs = [generated_input(tritonclient, x)]
            client.async_stream_infer(
                model, inputs, request_id=str(i), enable_empty_final_response=i % 2 == 0
            )
        client.stop_stream()
    assert len(found) == 50
    for i, (result, error) in enumerate(found):
        if i == 20:
            assert error.message() == not_known("none")
        else:
            assert error is None
            assert result.get_response().id == str(i)
            assert result.get_response().parameters["triton_final_response"].bool_param
            assert result.as_numpy("x")[0] == (0 if i % 16 == 0 else i)


# --- threads, deadlines and cancellation ---------------------------------------------------------


LOOP, THREAD, TURN = "the loop", "a thread", "a turn"


@pytest.fixture
def places(server: ServedApp, monkeypatch: pytest.MonkeyPatch) -> Places:
    found = Places(monkeypatch)
    found.loop = server.loop
    found.note(served, "read_names")
    found.note(served, "decode_request")
    return found


@pytest.mark.parametrize(
    ("model", "n_elements", "decoding", "encoding"),
    [
        ("echo", 4, LOOP, LOOP),
        ("async", 4, LOOP, LOOP),
        ("thread", 4, LOOP, THREAD),
        *((model, len(LARGE), THREAD, THREAD) for model in ("echo", "async", "thread")),
        ("list", MAX_QUICK_JSON_NBYTES // 8, LOOP, THREAD),
        ("list", 4, LOOP, LOOP),
    ],
)
def test_what_is_done_in_threads(
    server: ServedApp, places: Places, model: str, n_elements: int, decoding: str, encoding: str
) -> None:
    places.note(Inference, "_encode")
    response = server.infer(model, np.zeros(n_elements, np.float32))
    assert response.outputs[0].as_numpy().tolist() == [0] * n_elements
    decoded = [f"read_names in {decoding}", f"decode_request in {decoding}"]
    assert places.noted == [*decoded, f"_encode in {encoding}"]
    places.noted.clear()
    sent = message(model, np.zeros(n_elements, np.float32), id="7") + delimited(5)
    [response] = server.stream(iter([sent]))
    assert read_fields(response, STREAM_ERROR)["infer_response"] == [{"id": "7"}]
    assert places.noted == decoded


MANY = MAX_QUICK_JSON_NBYTES // 2 + 1
ENTRY = [delimited(1, "x"), delimited(2, "UINT8"), integer(3, 1)]
# What follows the name of the model in a request, and where it is read.
REQUESTS = {
    "raw contents": (tw.Tensor("x", np.zeros(MAX_QUICK_MESSAGE_NBYTES - 1000, np.uint8)), LOOP),
    "many raw contents": (delimited(7) * MANY, THREAD),
    "unknown fields": (integer(15, 1) * MANY, THREAD),
    "a group": (group(15, integer(15, 1) * MANY), THREAD),
    "names": (delimited(2, "1") * MANY, THREAD),
    "typed contents": (typed("x", "BOOL", (MANY,), integer(1, 1) * MANY), THREAD),
    "dimensions": (delimited(5, *ENTRY, delimited(3, b"\1" * 2 * MANY)), THREAD),
    "less than that": (integer(15, 1) * (MANY - 100), TURN),
    "a few fields": (integer(15, 1) * (MAX_SHARED_JSON_NBYTES // 2 - 100), LOOP),
}


@pytest.mark.parametrize(("rest", "place"), REQUESTS.values(), ids=REQUESTS)
def test_where_a_request_with_many_fields_is_read(
    server: ServedApp, places: Places, rest: Any, place: str
) -> None:
    places.note(threads, "in_turn")
    sent = message(x=rest) if isinstance(rest, tw.Tensor) else delimited(1, "echo") + rest
    assert len(sent) < MAX_QUICK_MESSAGE_NBYTES
    list(server.stream(iter([sent])))
    steps = ["read_names", "decode_request"]
    if place is TURN:
        place, steps = LOOP, ["in_turn", "read_names", "in_turn", "decode_request"]
    assert places.noted == [f"{step} in {place}" for step in steps]


def test_few_bytes_are_read_to_decide_where_a_request_is_read() -> None:
    fields, content = integer(15, 1) * 1000, delimited(7, bytes(1000))
    assert nbytes_besides_raw(content * 3 + fields, 5000) == 3 * 3 + len(fields)
    assert nbytes_besides_raw(fields + content, 50) == 52
    assert nbytes_besides_raw(group(15, fields), 50) == 51
    assert nbytes_besides_raw(fields[:-1], 5000) == len(fields) - 2


class Gate:
    """A model that waits until it is released, in a thread or in the event loop."""

    def __init__(self, is_async: bool = False, **options: Any) -> None:
        self.n_called = self.n_returned = 0
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.inputs: list[Any] = []
        model = self.wait_async if is_async else self.wait
        self.app = create_app({"m": model, **MODELS}, **options)

    def wait(self, request: tw.InferRequest) -> tw.InferResponse:
        with self.lock:
            self.n_called += 1
            self.inputs.append(weakref.ref(request["x"]))
        assert self.released.wait(20)
        with self.lock:
            self.n_returned += 1
        return tw.InferResponse(request.inputs)

    async def wait_async(self, request: tw.InferRequest) -> tw.InferResponse:
        self.n_called += 1
        while not self.released.is_set():
            await asyncio.sleep(0.005)
        self.n_returned += 1
        return tw.InferResponse(request.inputs)

    @property
    def n_requests(self) -> int:
        return len(self.app.concurrency.requests)


@pytest.mark.parametrize(("limit", "window"), [(None, 4 << 20), (10, 64 << 10)])
def test_messages_that_are_received_before_they_are_read(limit: int | None, window: int) -> None:
    """By default, grpcio receives all messages of a stream if the connection is fast."""
    options = dict(grpc_server.server_options(create_app(MODELS), False, limit))
    assert options["grpc.http2.bdp_probe"] == 0
    assert options["grpc.http2.lookahead_bytes"] == window


async def test_start_again_that_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again."""
    monkeypatch.setattr(grpc_server, "_RETRY_SECONDS", 0.01)
    inference = served.InferenceService(create_app(MODELS))
    server = grpc_server._Server(inference, f"{HOST}:none", [], None)
    server.current = AsyncMock(wait_for_termination=AsyncMock(side_effect=UnicodeDecodeError))
    restarting = asyncio.create_task(server.restart_if_it_fails())
    async with asyncio.timeout(10):
        while caplog.text.count("gRPC cannot listen") < 2:
            await asyncio.sleep(0.01)
        server.address = f"{HOST}:{free_port()}"
        async with grpc.aio.insecure_channel(server.address) as channel:
            live = channel.unary_unary(f"/{SERVICE}/ServerLive")
            assert read_fields(await live(b"", wait_for_ready=True), LIVE_RESPONSE)["live"]
    restarting.cancel()
    await server.current.stop(None)


async def test_message_that_is_late_at_the_end_of_the_grace_time() -> None:
    """Its time cannot be changed any more. The other calls end."""
    calls = OpenCalls(create_app(MODELS))
    context = Mock(read=Mock(side_effect=lambda: asyncio.sleep(60)))
    times = [0.01, *[60] * 20]
    waiting = [asyncio.create_task(calls.receive(context, seconds)) for seconds in times]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.02, end_now, calls.arriving)
    time.sleep(0.1)
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in errors] == [tw.TensorwireError] * 21


async def test_calls_without_inference_are_limited_until_their_message_has_arrived() -> None:
    """One that is beyond the limit is not read: its message may have any length."""
    calls = OpenCalls(create_app(MODELS), limit_concurrency=1)
    context = Mock(read=Mock(side_effect=lambda: asyncio.sleep(60)))
    waiting = [asyncio.create_task(calls.receive_small(context)) for _ in range(17)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await calls.receive_small(context)
    assert context.read.call_count == 17
    waiting.pop().cancel()
    await asyncio.sleep(0.01)
    waiting.append(asyncio.create_task(calls.receive_small(context)))
    await asyncio.sleep(0)
    assert context.read.call_count == 18
    for each in waiting:
        each.cancel()


async def test_response_whose_client_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """grpcio raises an error of its own, which is not one of the application."""
    service = served.InferenceService(create_app(MODELS))
    context = MagicMock(
        read=AsyncMock(return_value=message()), write=AsyncMock(side_effect=grpc.aio.InternalError)
    )
    with pytest.raises(asyncio.CancelledError):
        await service.calls.method(service._model_stream_infer)(None, context)
    assert (context.write.call_count, caplog.records) == (1, [])


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_requests_that_wait_for_a_thread_are_dropped(how: str) -> None:
    gate = Gate()
    with served_app(gate.app) as server:
        running = [server.start("m") for _ in range(N_THREADS)]
        wait_for(lambda: gate.n_called == N_THREADS)
        dropped = [server.start("m", timeout=0.5 if how == "deadline" else 20) for _ in range(20)]
        last = server.start("m")
        if how == "cancel":
            wait_for(lambda: gate.n_requests == N_THREADS + 21)
            for call in dropped:
                call.cancel()
        for call in dropped:
            assert call.code() == (Code.CANCELLED if how == "cancel" else Code.DEADLINE_EXCEEDED)
        wait_for(lambda: gate.n_requests == N_THREADS + 1)
        gate.released.set()
        for call in [*running, last]:
            assert len(call.result()) > 16
        assert gate.n_called == N_THREADS + 1


@pytest.mark.parametrize("is_async", [False, True])
def test_models_are_not_interrupted(is_async: bool) -> None:
    """A call that the client cancels counts until the model returns."""
    gate = Gate(is_async, max_concurrency=2)
    limit = "the server is overloaded: the limit is 2 requests in progress"
    with served_app(gate.app) as server:
        call = server.start("m", LARGE)
        wait_for(lambda: gate.n_called == 1)
        call.cancel()
        second = server.start("m")
        wait_for(lambda: gate.n_called == 2)
        assert error_of(lambda: server.infer("thread")) == (Code.UNAVAILABLE, limit)
        over_http = infer(gate.app, "thread", tw.encode_request(tw.InferRequest({"x": SMALL})))
        assert (over_http.status, over_http.error) == (503, limit)  # one limit for both
        assert len(server.infer("echo").outputs) == 1  # is not counted
        gate.released.set()
        second.result()
        wait_for(lambda: gate.n_requests == 0)
        assert gate.n_returned == 2
        assert len(server.infer("thread").outputs) == 1


class SlowReader:
    """Replaces a function that reads messages in a thread. It waits until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.function = getattr(served, name)
        monkeypatch.setattr(served, name, self.read)

    def read(self, *arguments: Any, **options: Any) -> Any:
        self.begun.set()
        assert self.released.wait(10)
        return self.function(*arguments, **options)


def test_metadata_up_to_the_limit_are_accepted(server: ServedApp) -> None:
    """grpcio would reject some of more than 8 KiB."""
    for _ in range(40):
        server.infer(metadata=[("x", "a" * 15_000)])
    error = error_of(lambda: server.infer(metadata=[("x", "a" * 17_000)]))
    assert error[0] == Code.RESOURCE_EXHAUSTED


async def test_metadata_of_a_client_that_does_not_acknowledge_the_limit() -> None:
    """grpcio accepts up to 16 MiB from it."""
    calls = served.InferenceService(create_app({})).calls
    respond = AsyncMock(return_value=b"response")
    context = Mock(**{"invocation_metadata.return_value": (("a", "b" * 9000), ("c", "d" * 7318))})
    assert await calls.method(respond)(None, context) == b"response"
    context.invocation_metadata.return_value += (("e", b""),)
    assert await calls.method(respond)(None, context) == b""
    respond.assert_awaited_once()
    context.set_code.assert_called_once_with(grpc.StatusCode.RESOURCE_EXHAUSTED)
    text = "the metadata of the call have 16417 bytes; the limit is 16384"
    context.set_details.assert_called_once_with(text)


def test_burst_of_calls_while_the_event_loop_is_blocked() -> None:
    """grpcio would cancel some of more than 1000 calls."""
    released = threading.Event()
    started = threading.Event()

    def block(request: tw.InferRequest) -> Any:
        started.set()
        assert released.wait(20)
        return {}

    models = {"block": Model(block, in_event_loop=True), "echo": Model(echo, in_event_loop=True)}
    with served_app(create_app(models)) as server:
        calls = [server.start("block")]
        assert started.wait(10)
        calls += [server.start("echo") for _ in range(1500)]
        time.sleep(0.5)  # while they arrive
        released.set()
        assert {each.code() for each in calls} == {Code.OK}


async def test_message_of_a_read_that_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """It is received and dropped: grpcio would not free it. Nor is the end of the call logged."""
    arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    received = []

    class Context:
        async def read(self) -> bytes:
            received.append(await arrived)
            raise RuntimeError("the call has ended")

    calls = OpenCalls(create_app({}))
    with pytest.raises(tw.TensorwireError, match="did not arrive within"):
        await calls.receive(Context(), 0.01)
    arrived.set_result(b"late")
    await asyncio.sleep(0.01)
    gc.collect()
    assert (received, caplog.records) == ([b"late"], [])


@pytest.mark.parametrize("step", ["read_names", "decode_request"])
@pytest.mark.parametrize("model", ["m", "async", "echo"])
def test_request_that_is_cancelled_while_it_is_read(
    model: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, reader = Gate(), SlowReader(monkeypatch, step)
    n_called = 0

    def count(self: Model, request: tw.InferRequest) -> Any:
        nonlocal n_called
        n_called += 1
        return tw.InferResponse([])

    for name in ("m", "async", "echo"):
        monkeypatch.setattr(gate.app.models[name], "function", count)
    with served_app(gate.app) as server:
        call = server.start(model, LARGE)
        assert reader.begun.wait(10)
        call.cancel()
        time.sleep(0.05)
        assert gate.n_requests == 1
        reader.released.set()
        wait_for(lambda: gate.n_requests == 0)
    assert n_called == 0


async def test_call_that_ends_while_its_message_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then grpcio crashes if it is asked for the peer. An interceptor may shield the task."""
    clients: list[Any] = []
    call: Any = Mock()

    async def model(request: tw.InferRequest, *, context: Any) -> Any:
        clients.append(context.client)
        return {"y": 1}

    def read(*arguments: Any) -> Any:
        call.peer.side_effect = AssertionError
        return read_names(*arguments)

    monkeypatch.setattr(served, "read_names", read)
    call.time_remaining.return_value = None
    call.invocation_metadata.return_value = ()
    call.peer.return_value = "ipv4:192.0.2.1:5"
    service = served.InferenceService(create_app({"m": model}))
    failed = Mock()
    await service._infer(service._unary, message("m", LARGE), call, failed)
    failed.assert_not_called()
    assert clients == [("192.0.2.1", 5)]


@pytest.mark.parametrize("method", ["_model_infer", "_model_stream_infer"])
async def test_request_whose_deadline_has_expired(method: str) -> None:
    """As if grpcio has not reported it yet. It ends the call, also that of a stream."""
    called: list[Any] = []

    def model(request: tw.InferRequest) -> Any:
        called.append(request)

    context = AsyncMock(**{"read.side_effect": [message("m"), grpc.aio.EOF]})
    context.time_remaining = Mock(return_value=0.0)
    context.invocation_metadata = Mock(return_value=())
    context.set_code, context.set_details = Mock(), Mock()
    service = served.InferenceService(create_app({"m": Model(model, in_event_loop=True)}))
    respond = service.calls.method(getattr(service, method))
    assert await respond(None, context) == b""
    context.set_code.assert_called_once_with(grpc.StatusCode.DEADLINE_EXCEEDED)
    context.set_details.assert_called_once_with("the deadline has expired")
    context.write.assert_not_called()
    assert called == []


@contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Return a function of the current and the greatest size of the memory of Python objects."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


@without_gc()
def test_messages_are_released() -> None:
    """After a call, in a stream, and after a call that the client cancels; without the GC."""
    gate = Gate()
    gate.released.set()
    with served_app(gate.app) as server:
        for x in (SMALL, LARGE):
            server.infer("m", x)
            stream = server.stream(iter([message("m", x)]))
            next(stream)
            list(stream)
            gate.released.clear()
            call = server.start("m", x)
            wait_for(lambda: gate.n_called % 3 == 0)
            call.cancel()
            time.sleep(0.05)
            gate.released.set()
            wait_for(lambda: gate.n_requests == 0)
            wait_for(lambda: not any(ref() for ref in gate.inputs))


@without_gc()
@pytest.mark.parametrize(
    "kind",
    ["unknown model", "malformed", "fail", "fail in event loop", "fail async", "other method"],
)
def test_messages_that_are_rejected_are_released(
    server: ServedApp, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest keeps what is logged, and with it the frame of the model.
    monkeypatch.setattr(logging.getLogger("tensorwire.server"), "disabled", True)
    sent = message(kind if kind.startswith("fail") else "none", np.zeros(3 << 20, np.uint8))
    if kind == "malformed":
        sent = sent[:-1]
    method = "ModelMetadata" if kind == "other method" else "ModelInfer"
    call = server.channel.unary_unary(f"/{SERVICE}/{method}")
    with traced() as sizes:
        for _ in range(5):
            error_of(lambda: call(sent))
        wait_for(lambda: sizes()[0] < 2 * len(sent))
        assert sizes()[1] > len(sent)  # the message is traced


@without_gc()
def test_idle_stream_keeps_no_message(server: ServedApp) -> None:
    """Neither the request nor the response."""
    sent = message("thread", LARGE)
    proceed = threading.Event()

    def messages() -> Iterator[bytes]:
        yield sent
        proceed.wait(30)

    with traced() as sizes:
        stream = server.stream(messages())
        next(stream)
        # The client keeps the response while it waits for the next one.
        wait_for(lambda: sizes()[0] < 3 * len(sent) // 2)
        assert sizes()[1] > 2 * len(sent)
    proceed.set()
    list(stream)


@pytest.mark.parametrize("is_async", [False, True])
def test_context_variables_of_a_request_of_a_stream(is_async: bool) -> None:
    """The next request does not see them."""
    variable: ContextVar[int] = ContextVar("variable", default=0)
    seen = []

    def model(request: tw.InferRequest) -> Any:
        seen.append(variable.get())
        variable.set(7)
        return later() if is_async else {}

    async def later() -> Any:
        seen.append(variable.get())
        return {}

    with served_app(create_app({"m": Model(model, in_event_loop=True)})) as server:
        list(server.stream(iter([message("m")] * 2)))
    assert seen == ([0, 7, 0, 7] if is_async else [0, 0])


# --- shutdown ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_shutdown_with_requests_in_progress(is_async: bool) -> None:
    """Requests in progress are finished, also in streams. Others are rejected."""
    gate = Gate(is_async)
    proceed = threading.Event()
    shutting_down = (Code.UNAVAILABLE, "the server is shutting down")

    def messages(sent: list[bytes]) -> Iterator[bytes]:
        yield from sent
        proceed.wait(10)

    with served_app(gate.app) as server:
        idle = server.stream(messages([message()]))
        next(idle)
        busy = server.stream(messages([message("m")] * 2))
        complete = server.stream(iter([message("m")]))
        call = server.start("m")
        wait_for(lambda: gate.n_called == 3)
        server.stop()
        assert error_of(lambda: list(idle)) == shutting_down
        with grpc.insecure_channel(server.address) as channel:
            late = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            assert error_of(lambda: late(message()))[0] == Code.UNAVAILABLE
        gate.released.set()
        assert len(call.result()) > 16
        assert np.array_equal(tw.grpc.decode_stream_response(next(busy))["x"].as_numpy(), SMALL)
        assert error_of(lambda: next(busy)) == shutting_down
        assert len(list(complete)) == 1
        proceed.set()
    assert gate.n_called == gate.n_returned == 3


def test_shutdown_waits_for_a_model_whose_client_is_gone() -> None:
    gate = Gate(is_async=True)
    with served_app(gate.app) as server:
        call = server.start("m")
        wait_for(lambda: gate.n_called == 1)
        call.cancel()
        server.stop()
        time.sleep(0.1)
        gate.released.set()
    assert gate.n_returned == 1


async def test_shutdown_waits_for_a_model_that_is_called_at_the_last_moment() -> None:
    """Its client is gone, so that only the model is in progress."""
    inference = served.InferenceService(create_app(MODELS))

    async def model() -> bytes:
        await asyncio.sleep(0.1)
        return b""

    class Server:
        task: asyncio.Future[bytes]

        async def stop(self, _: float) -> None:
            await asyncio.sleep(0.05)
            self.task = asyncio.ensure_future(model())
            inference.tasks.add(self.task)
            self.task.add_done_callback(inference.tasks.discard)

    server = Server()
    await grpc_server.finish_calls(server, inference)
    assert server.task.done()


# --- clients that do not finish what they begin ---------------------------------------------------


@pytest.mark.parametrize("path", [*SMALL_PATHS, f"{SERVICE}/ModelInfer"])
def test_message_that_does_not_arrive(path: str) -> None:
    """The call ends. Streams may wait."""
    proceed = threading.Event()

    def nothing() -> Iterator[bytes]:
        proceed.wait(20)
        yield from ()

    with served_app(create_app(MODELS, receive_timeout=0.2)) as server:
        stream = begin(server, f"{SERVICE}/ModelStreamInfer", nothing())
        error = error_of(lambda: list(begin(server, path, nothing())))
        assert error == (Code.DEADLINE_EXCEEDED, "the message did not arrive within 0.2 seconds")
        server.infer()
        proceed.set()
        assert list(stream) == []


@pytest.mark.parametrize("path", [*SMALL_PATHS, f"{SERVICE}/ModelInfer"])
def test_call_without_a_message(server: ServedApp, path: str) -> None:
    error = error_of(lambda: list(begin(server, path, iter(()))))
    assert error == (Code.INVALID_ARGUMENT, "the call has no message")


INFER, STREAM = f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"
LIVE, WATCH = f"/{SERVICE}/ServerLive", f"/{served.HEALTH_SERVICE}/Watch"
HALF = grpc_message(message())[:20]
WHOLE = grpc_message(message("thread", np.zeros(1000, np.uint8)))


def connection(port: int, sent: bytes = b"") -> socket.socket:
    found = socket.create_connection((HOST, port), 10)
    found.sendall(sent)
    return found


def sends_pings(port: int) -> Http2Client:
    client = Http2Client(port).begin(INFER)
    for i in range(20):
        client.send(frame(PING, payload=i.to_bytes(8, "big")))
    return client


CLIENTS: dict[str, Callable[[int], Any]] = {
    "sends nothing": connection,
    "sends half of the preface": lambda port: connection(port, PREFACE[:10]),
    "sends the preface": lambda port: connection(port, PREFACE),
    "makes no call": lambda port: Http2Client(port).wait(SETTINGS),
    "makes no call, and does not read": lambda port: Http2Client(port, answers=False),
    "sends no message": lambda port: Http2Client(port).begin(INFER),
    "sends no message, and does not read": lambda port: Http2Client(port, False).begin(INFER),
    "sends half of a message": lambda port: Http2Client(port).begin(INFER).data(HALF),
    "sends pings": sends_pings,
    "sends no message to ServerLive": lambda port: Http2Client(port).begin(LIVE),
    "sends no message to Watch": lambda port: Http2Client(port).begin(WATCH),
    "watches, and does not read": lambda port: (
        Http2Client(port, window=0).begin(WATCH).data(grpc_message(b"")).wait(HEADERS)
    ),
    "does not read a response": lambda port: (
        Http2Client(port, window=0).begin(INFER).data(WHOLE).wait(HEADERS)
    ),
    "begins a stream": lambda port: Http2Client(port).begin(STREAM),
    "sends half of a message in a stream": lambda port: Http2Client(port).begin(STREAM).data(HALF),
    "reads a part of a stream": lambda port: (
        Http2Client(port, window=1500).begin(STREAM).data(WHOLE * 20).wait(DATA)
    ),
    "reads nothing of a stream": lambda port: (
        Http2Client(port, False).begin(STREAM).data(WHOLE * 20)
    ),
}


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRACE_SECONDS", "_LINGER_SECONDS"):
        monkeypatch.setattr(grpc_server, name, 0.2)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_path_that_is_not_utf_8(
    client: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It ends the server of grpcio, which waits for the calls of other clients."""
    with served_app(create_app(MODELS)) as server, closing(client(server.port)):
        assert len(server.infer("echo").outputs) == 1
        with closing(Http2Client(server.port)) as other:
            other.begin("/\udcff")
            wait_for(lambda: "is started again" in caplog.text)
            assert len(server.infer("echo", wait_for_ready=True, timeout=10).outputs) == 1
    assert "UnicodeDecodeError" in caplog.text


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.usefixtures("short_grace")
def test_shutdown_does_not_wait_for_a_client(client: Callable[[int], Any]) -> None:
    with served_app(create_app(MODELS)) as server:
        found = client(server.port)
        server.infer()
    found.close()  # ``served_app`` has waited for the end of the server


@pytest.mark.usefixtures("short_grace")
def test_late_messages_do_not_prolong_a_shutdown() -> None:
    """The model of another call runs when the time for messages is over."""
    gate, proceed = Gate(is_async=True), threading.Event()

    def late() -> Iterator[bytes]:
        proceed.wait(20)
        yield message("m")

    with served_app(gate.app) as server:
        waiting = server.channel.stream_unary(INFER).future(late())
        call = server.start("m")
        wait_for(lambda: gate.n_called == 1)
        server.stop()
        error = error_of(lambda: waiting.result(timeout=10))
        assert error == (Code.UNAVAILABLE, "the server is shutting down")
        gate.released.set()
        assert len(call.result()) > 16
        proceed.set()
    assert gate.n_called == 1


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("step", ["read_names", "decode_request"])
def test_shutdown_waits_for_a_message_that_is_read(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SlowReader(monkeypatch, step)
    with served_app(create_app(MODELS)) as server:
        call = server.start("thread", LARGE)
        assert reader.begun.wait(10)
        server.stop()
        time.sleep(0.6)  # three times the grace period
        # The client has time to read the response.
        for name in ("GRACE_SECONDS", "_LINGER_SECONDS"):
            monkeypatch.setattr(grpc_server, name, 10)
        reader.released.set()
        assert len(call.result()) > LARGE.nbytes


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("step", ["read_names", "decode_request"])
async def test_end_of_a_shutdown_while_a_message_is_read(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SlowReader(monkeypatch, step)
    address = f"{HOST}:{free_port()}"
    app = create_app(MODELS)
    async with grpc.aio.insecure_channel(address, options=UNLIMITED) as channel:
        async with serving(app, address, timeout_graceful_shutdown=0.2):
            call = channel.unary_unary(INFER)(message("thread", LARGE))
            while not reader.begun.is_set():
                await asyncio.sleep(0.01)
        assert await call.code() == Code.UNAVAILABLE
        assert await call.details() == "the server is shutting down"
    reader.released.set()
    async with asyncio.timeout(10):
        while app.concurrency.requests:
            await asyncio.sleep(0.01)


def test_shutdown_waits_for_a_message_that_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It also waits until the client has read the response."""
    begun = threading.Event()
    receive = OpenCalls.receive

    async def receive_and_tell(*arguments: Any) -> Any:
        begun.set()
        return await receive(*arguments)

    monkeypatch.setattr(OpenCalls, "receive", receive_and_tell)
    with (
        served_app(create_app(MODELS)) as server,
        closing(Http2Client(server.port, window=10)) as client,
    ):
        client.begin(INFER).data(WHOLE[:100])
        assert begun.wait(10)
        server.stop()
        time.sleep(0.2)
        client.data(WHOLE[100:]).wait(DATA)
        window = (1 << 20).to_bytes(4, "big")
        client.send(frame(WINDOW_UPDATE, 0, client.last_stream, window))
        wait_for(lambda: client.is_closed)
    sent = b"".join(payload for kind, _, payload in client.received if kind == DATA)
    response = tw.grpc.decode_response(sent[5:])
    assert response["x"].as_numpy().nbytes == 1000


@pytest.mark.parametrize("client", ["sends nothing", "sends the preface", "makes no call"])
def test_silent_connections_are_closed(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_HTTP2_SECONDS", 0.2)
    monkeypatch.setattr(grpc_server, "_IDLE_SECONDS", 0.2)
    with served_app(create_app(MODELS, receive_timeout=0.2)) as server:
        found = CLIENTS[client](server.port)
        if isinstance(found, Http2Client):
            wait_for(lambda: found.is_closed)
        else:
            while found.recv(1000):
                pass
        found.close()
        server.infer()


def test_response_that_is_read_slowly() -> None:
    """For grpcio, the call ends when the response is in its buffers."""
    nbytes = 32 << 20
    window = (1 << 31) - 1
    models = {"large": lambda request: {"y": np.zeros(nbytes, np.uint8)}}
    with (
        served_app(create_app(models, receive_timeout=0.5)) as server,
        closing(Http2Client(server.port, answers=False, window=window)) as client,
    ):
        client.send(frame(WINDOW_UPDATE, payload=(window - 65535).to_bytes(4, "big")))
        client.begin(INFER).data(grpc_message(message("large")))
        client.socket.settimeout(20)
        n_read = 0
        for _ in range(20):
            n_read += len(client.socket.recv(1 << 16))
            time.sleep(0.1)
        while n_read <= nbytes and (part := client.socket.recv(1 << 20)):
            n_read += len(part)
        assert n_read > nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is that of Linux")
def test_time_in_which_a_client_may_read_nothing() -> None:
    """grpcio sets it to 20 seconds by default."""
    with served_app(create_app(MODELS, receive_timeout=40)) as server:
        server.infer()
        found = []
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError), socket.socket(fileno=int(path.name)) as each:
                try:
                    is_tcp = each.family in (socket.AF_INET, socket.AF_INET6)
                    if is_tcp and each.getsockname()[1] == server.port:
                        each.getpeername()  # it is not the one that listens
                        found.append(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
                finally:
                    each.detach()
        assert found == [40_000]


# --- servers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_app", [False, True])
async def test_server_of_the_user(is_app: bool) -> None:
    server = grpc.aio.server(options=UNLIMITED)
    add_to_grpc_server(server, create_app(MODELS, max_body_nbytes=1000) if is_app else MODELS)
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        response = tw.grpc.decode_response(await call(message()))
        assert np.array_equal(response["x"].as_numpy(), SMALL)
        if is_app:  # the server accepts more than the application
            sent = message(x=np.zeros(1001, np.uint8))
            with pytest.raises(grpc.RpcError) as caught:
                await call(sent)
            assert caught.value.code() == Code.RESOURCE_EXHAUSTED
            text = f"SERVER: Received message larger than max ({len(sent)} vs. 1000)"
            assert caught.value.details() == text
    await server.stop(1)


async def test_arguments_of_add_to_grpc_server() -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with pytest.raises(TypeError, match=r"server must be a server of grpc\.aio, not _Server"):
        add_to_grpc_server(grpc.server(ThreadPoolExecutor(1)), MODELS)
    server: Any = grpc.aio.server()
    with pytest.raises(TypeError, match="models must be a mapping"):
        add_to_grpc_server(server, [echo])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model 'm' must be a function or a Model, not int"):
        add_to_grpc_server(server, {"m": 5})  # type: ignore[dict-item]
