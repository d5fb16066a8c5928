"""create_app: routes and methods, options, and what models receive and may return."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support.asgi_requests import (
    ALL,
    BODY,
    FRAME,
    OUT,
    SPEC,
    WORDS,
    X,
    ask,
    async_echo,
    double,
    infer,
)
from tensorwire.arguments import Selection
from tensorwire.server import Model, RequestError, create_app

APP = create_app({"echo": async_echo, "batching": Model(double, [SPEC], [OUT], batching=True)})


# --- other routes ---


def test_metadata() -> None:
    about = json.loads(ask(APP, "/v2").body)
    assert about["extensions"] == ["binary_tensor_data"]
    assert about["version"] == tw.__version__
    for path in ("/v2/models/batching", "/v2/models/batching/versions/1"):
        assert json.loads(ask(APP, path).body) == {
            "name": "batching",
            "versions": ["1"],
            "platform": "tensorwire",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}],
        }


@pytest.mark.parametrize(
    ("path", "about"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/echo/ready", {"name": "echo", "ready": True}),
        ("/v2/models/echo/versions/1/ready", {"name": "echo", "ready": True}),
    ],
)
def test_health(path: str, about: dict[str, Any]) -> None:
    answer = ask(APP, path)
    assert (answer.status, json.loads(answer.body)) == (200, about)


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
    frame = tw.encode_request(tw.InferRequest([X], model_name="m", id="7", model_version="5"))
    for chunks, headers in (
        ([bytes(frame)], frame.headers),
        (
            [
                b'{"model_name": "m", "model_version": "5", "id": "7", "inputs": '
                b'[{"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}]}'
            ],
            None,
        ),
    ):
        answer = ask(app, f"/v2/models/m{path}/infer", "POST", chunks, headers).response()
        assert answer["version"].elements[0].decode() == expected
        assert answer.id == "7"


def test_lifespan_and_websocket() -> None:
    sent: list[str] = []
    pending = ["lifespan.startup", "lifespan.shutdown"]

    async def receive() -> Any:
        return {"type": pending.pop(0)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(APP({"type": "lifespan"}, receive, send))
    asyncio.run(APP({"type": "websocket"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def test_head_requests_and_trailing_slashes() -> None:
    for path in ("/v2", "/v2/health/live", "/v2/models/echo", "/v2/models/echo/ready"):
        (get, head), slash = (
            (ask(APP, path, method) for method in ("GET", "HEAD")),
            ask(APP, f"{path}/"),
        )
        assert (get.status, get.headers, get.body) == (200, head.headers, slash.body)
    answer = ask(APP, "/v2/models/echo/infer/", "POST", [BODY], FRAME.headers)
    assert answer.response().id == "7"


# --- options; what models receive and return ---


def test_limits_of_the_app() -> None:
    app = create_app({"echo": async_echo}, limits=tw.Limits(max_tensors=1))
    answer = infer(app)
    assert (answer.status, "has more than 1 input," in answer.error) == (400, True)


@pytest.mark.parametrize("in_event_loop", [False, True])
@pytest.mark.parametrize(
    ("binary", "writable_inputs", "expected"),
    [
        (True, False, [(True, True), (True, False)]),  # the first one begins at a multiple of 64
        (True, True, [(True, True), (True, True)]),
        (False, False, [(True, True), (True, True)]),
        (False, True, [(True, True), (True, True)]),
    ],
)
def test_arrays_are_writable_and_aligned(
    binary: bool, writable_inputs: bool, expected: Any, in_event_loop: bool
) -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    inputs = [
        tw.Tensor("bytes", np.arange(5, dtype=np.int8), binary=binary),
        tw.Tensor("x", np.arange(6, dtype=np.float64).reshape(2, 3), binary=binary),
        tw.Tensor("words", ["a", "bc"], binary=binary, parameters={"a": 1}),
        tw.Tensor("shared", None, datatype="FP32", shape=[2], parameters=region),
    ]
    found: list[Any] = []

    def function(request: tw.InferRequest) -> Any:
        assert (request.id, request.parameters) == ("7", ALL)
        assert request["words"].parameters == {"a": 1}
        assert request["words"].tolist() == [b"a", b"bc"]
        assert request["shared"].data is None
        arrays = [request[name].as_numpy() for name in ("bytes", "x")]
        found.extend((array.flags.writeable, array.flags.aligned) for array in arrays)
        request["x"].as_numpy()[0] *= 2
        return {"y": request["x"]}

    model = Model(function, in_event_loop=in_event_loop, writable_inputs=writable_inputs)
    frame = tw.encode_request(tw.InferRequest(inputs, id="7", parameters=ALL))
    response = infer(create_app({"m": model}), "m", frame).response()
    assert response["y"].tolist() == [[0, 2, 4], [3, 4, 5]]
    assert found == expected


@pytest.mark.parametrize("value", [2, -1, "2", 2.5, True, [2], None, 0, False])
def test_classification_is_not_supported(value: Any) -> None:
    """Without it, the client would get all elements instead of the highest ones as text."""
    called: list[tw.InferRequest] = []
    output = tw.RequestedOutput("x", parameters={"classification": value})
    frame = tw.encode_request(tw.InferRequest([X], ["y", output]))

    def function(request: tw.InferRequest) -> dict[str, Any]:
        called.append(request)
        return {"x": X, "y": X}

    answer = infer(create_app({"m": function}), "m", frame)
    if value:
        expected = "requested output 'x' has the parameter classification, which is not supported"
        assert (answer.status, answer.error, called) == (400, expected, [])
    else:  # as in Triton
        assert answer.response()["x"].datatype == "FP32"


def test_parameters_that_only_models_read() -> None:
    """The application does nothing with them: an output is sent also if it has a region."""
    parameters = {"sequence_id": 5, "sequence_start": True, "priority": 1, "timeout": 1, "a": "b"}
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 1}
    output = tw.RequestedOutput("y", binary=True, parameters=region)
    found: list[tw.InferRequest] = []

    def function(request: tw.InferRequest) -> dict[str, Any]:
        found.append(request)
        return {"y": X}

    frame = tw.encode_request(tw.InferRequest([X], [output], parameters=parameters))
    response = infer(create_app({"m": function}), "m", frame).response()
    assert response["y"].nbytes == X.nbytes
    assert found[0].parameters == parameters
    assert [each.parameters for each in found[0].outputs or ()] == [region]


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
    ("options", "data"),
    [({}, "[null,null,1.0]"), ({"nonfinite": "literal"}, "[NaN,-Infinity,1.0]")],
)
def test_nonfinite_outputs_of_the_app(options: Any, data: str) -> None:
    array = np.array([np.nan, -np.inf, 1])
    app = create_app({"echo": lambda _: {"y": array}}, **options)
    plain = tw.encode_request(tw.InferRequest([X.replace(binary=False)]))
    answer = infer(app, chunks=[bytes(plain)], headers=plain.headers)
    assert f'"data":{data}' in answer.body.decode()
    binary = tw.encode_request(tw.InferRequest([X], parameters=ALL))
    answer = infer(app, chunks=[bytes(binary)], headers=binary.headers)
    assert np.array_equal(answer.response()["y"].as_numpy(), array, equal_nan=True)


def test_nonfinite_outputs_as_errors() -> None:
    app = create_app({"echo": lambda _: {"y": np.array([1, np.inf])}}, nonfinite="error")
    plain = tw.encode_request(tw.InferRequest([X.replace(binary=False)]))
    answer = infer(app, chunks=[bytes(plain)], headers=plain.headers)
    assert answer.status == 500
    assert answer.error.endswith("element 1 of output 'y' is inf, which JSON cannot represent")


SECONDS = "must be a positive number of seconds or None, not"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_body", 0, "must be 1 or more, not 0"),
        ("max_body", -1, "must be 1 or more, not -1"),
        ("max_concurrency", 0, "must be 1 or more, not 0"),
        ("max_concurrency", -1, "must be 1 or more, not -1"),
        *(("receive_timeout", n, f"{SECONDS} {n}") for n in (0, -1, float("nan"), float("inf"))),
        ("nonfinite", "Null", "must be 'null', 'literal' or 'error', not 'Null'"),
        ("selection", "Triton", "must be 'spec' or 'triton', not 'Triton'"),
        ("max_body", "1", "must be an int, not str"),
        ("max_body", 2.5, "must be an int, not float"),
        ("max_body", True, "must be an int, not bool"),
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


def test_numbers_of_numpy_are_accepted_by_create_app() -> None:
    options: dict[str, Any] = {
        "max_body": np.int64(10_000),
        "max_concurrency": np.uint8(3),
        "receive_timeout": np.float32(9),
    }
    assert infer(create_app({"echo": async_echo}, **options)).status == 200


@pytest.mark.parametrize("model", ["thread", "async"])
def test_responses_of_a_model_are_not_limited(model: str) -> None:
    """The limits apply only to received messages."""
    n = tw.Limits().max_tensors + 1

    def many(request: tw.InferRequest) -> tw.InferResponse:
        outputs = [tw.Tensor(f"{i}", np.zeros(1, np.int8)) for i in range(n)]
        return tw.InferResponse(outputs, parameters={"of": "the model"})

    async def many_later(request: tw.InferRequest) -> tw.InferResponse:
        return many(request)

    answer = infer(create_app({"m": many if model == "thread" else many_later}), "m")
    assert answer.status == 200
    limits = tw.Limits(max_tensors=n)
    response = tw.decode_response(answer.body, tw.header_length(answer.headers), limits=limits)
    assert (len(response.outputs), response.parameters) == (n, {"of": "the model"})


def test_model_names() -> None:
    """The model and the client get the name in the path, not one that the model returns."""
    seen: list[str | None] = []

    def model(request: tw.InferRequest) -> tw.InferResponse:
        seen.append(request.model_name)
        return tw.InferResponse([X], model_name="its own", model_version="3")

    frame = tw.encode_request(tw.InferRequest([X], model_name="body's"))
    response = infer(create_app({"m": model}), "m", frame).response()
    assert (seen, response.model_name, response.model_version) == (["m"], "m", "3")


def test_single_declared_tensor_with_a_batch_dimension() -> None:
    inputs = [tw.TensorSpec("x", "FP32", [-1], batching=True), tw.TensorSpec("words", "BYTES", [2])]
    app = create_app({"m": Model(async_echo, inputs)})
    assert [t["shape"] for t in json.loads(ask(app, "/v2/models/m").body)["inputs"]] == [
        [-1, -1],
        [2],
    ]
    fits = tw.InferRequest([tw.Tensor("x", X.as_numpy(), shape=[10, 100]), WORDS])
    assert infer(app, "m", tw.encode_request(fits)).status == 200
    assert infer(app, "m").status == 400


def test_sync_model_runs_in_the_context_of_its_request() -> None:
    who = ContextVar("who", default="nobody")

    def model(request: tw.InferRequest) -> dict[str, Any]:
        return {"y": [who.get()]}

    app = create_app({"m": model})

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        who.set("somebody")
        await app(scope, receive, send)

    answer = infer(middleware, "m").response()
    assert answer["y"].as_numpy().tolist() == [b"somebody"]


@pytest.mark.parametrize("model", ["echo", None, {}])
def test_model_that_is_not_callable_is_rejected_by_create_app(model: Any) -> None:
    with pytest.raises(
        TypeError, match=f"model 'm' must be a function or .*not {type(model).__name__}"
    ):
        create_app({"m": model})
    with pytest.raises(TypeError, match=f"a model must be a function .*not {type(model).__name__}"):
        Model(model)


class AsyncObject:
    async def __call__(self, request: tw.InferRequest) -> Any:
        return {}


@pytest.mark.parametrize("model", [async_echo, AsyncObject()], ids=["function", "object"])
def test_async_model_does_not_run_in_the_event_loop_at_once(model: Any) -> None:
    with pytest.raises(ValueError, match="in_event_loop is only for synchronous functions"):
        Model(model, in_event_loop=True)


def test_tensor_declared_twice_is_rejected() -> None:
    with pytest.raises(ValueError, match="tensor 'x' is declared twice"):
        Model(double, [SPEC, tw.TensorSpec("x", "FP64", [-1])])
    with pytest.raises(ValueError, match="tensor 'y' is declared twice"):
        Model(double, [SPEC], [OUT, OUT])


@pytest.mark.parametrize("argument", ["inputs", "outputs"])
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (3, " must be a sequence of TensorSpecs, not int"),
        (None, " must be a sequence of TensorSpecs, not NoneType"),
        ("x", r"\[0\] must be a TensorSpec, not str"),
        ([SPEC, 1], r"\[1\] must be a TensorSpec, not int"),
    ],
)
def test_declarations_that_are_not_specs_are_rejected(
    argument: str, declared: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{argument}{message}$"):
        Model(double, **{argument: declared})


def test_response_object_that_a_model_returns_again_is_not_modified() -> None:
    """Each response has the id of its request and the name of the served model."""
    shared = tw.InferResponse([X], model_name="other server", id="other id")
    app = create_app({"a": lambda _: shared, "b": lambda _: shared})
    for name, id in (("a", "1"), ("b", "2"), ("a", None)):
        response = infer(app, name, tw.encode_request(tw.InferRequest([X], id=id))).response()
        assert (response.model_name, response.id) == (name, id)
    assert (shared.model_name, shared.id) == ("other server", "other id")


class OnlyDlpack:
    """An array that numpy only accepts with from_dlpack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    ("value", "declared", "datatype", "expected"),
    [
        ([1.5, 2], None, "FP64", [1.5, 2]),
        ([1.5, 2], "FP32", "FP32", [1.5, 2]),
        ([[1, 2], [3, 4]], None, "INT64", [[1, 2], [3, 4]]),
        ((1, 2), "UINT8", "UINT8", [1, 2]),
        ([True, False], None, "BOOL", [True, False]),
        (3, None, "INT64", 3),
        (2.5, "FP32", "FP32", 2.5),
        (True, None, "BOOL", True),
        ("text", None, "BYTES", b"text"),
        ([b"a\0"], None, "BYTES", [b"a\0"]),
        ([], "FP32", "FP32", []),
        (np.float32(2), None, "FP32", 2),
        (OnlyDlpack(np.arange(3, dtype=np.int16)), None, "INT16", [0, 1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_outputs_that_are_not_arrays(
    value: Any, declared: Any, datatype: str, expected: Any
) -> None:
    shape = [-1] * np.ndim(np.asarray(expected, object))
    outputs = [tw.TensorSpec("y", declared, shape)] if declared else []
    app = create_app({"m": Model(lambda _: {"y": value}, outputs=outputs)})
    y = infer(app, "m", tw.encode_request(tw.InferRequest([X]))).response()["y"]
    assert (y.datatype, y.as_numpy().tolist()) == (datatype, expected)


class Secretive:
    """An object whose conversion to an array fails."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a secret")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros(1, complex), "cannot be sent: tensor 'y' is an array of complex128, which has"),
        ([[1], [2, 3]], "the model returned a ragged list for output 'y'"),
        ([object()], "cannot be sent: tensor 'y' is a list of object, not of numbers"),
        ([10**30], "cannot be sent: tensor 'y' is a list of numbers: pass an array"),
        (["a", None], "cannot be sent: element 1 of tensor 'y' is None"),
        (["\ud800"], "cannot be sent: element 0 of tensor 'y' cannot be encoded as UTF-8"),
        ({"a": 1}, "the model returned dict for output 'y', which is not an array, a list or a"),
        (None, "the model returned None for output 'y'"),
        (range(3), "the model returned range for output 'y', which is not an array, a list or a"),
        (Secretive(), "model 'm' failed"),
    ],
)
@pytest.mark.thread_unsafe(reason="it reads the log")
def test_output_that_cannot_be_sent(
    value: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is in the response and in the log, unless it is an exception of other code."""
    app = create_app({"m": Model(lambda _: {"y": value}, in_event_loop=True)})
    answer = infer(app, "m", FRAME)
    assert (answer.status, text in answer.error) == (500, True)
    assert text in caplog.text
    assert "secret" not in answer.error


def rejecting(*arguments: Any) -> Callable[[tw.InferRequest], Any]:
    def model(_: tw.InferRequest) -> Any:
        raise RequestError(*arguments)

    return model


class UnusualError(RequestError):
    """A subclass with its own text."""

    def __init__(self, status: Any) -> None:
        super().__init__("unusual")
        self.status = status

    def __str__(self) -> str:
        return f"unusual {self.status}"


class SilentError(RequestError):
    error: type[BaseException] = RuntimeError

    def __str__(self) -> str:
        raise self.error("a secret")


class EndingError(SilentError):
    error = SystemExit


def raising(error: Exception) -> Callable[[tw.InferRequest], Any]:
    def model(_: tw.InferRequest) -> Any:
        raise error

    return model


def call(function: Any, request: tw.InferRequest) -> Any:
    return function(request)


class Lazy(Mapping[str, Any]):
    """A result that finds out late that the request is wrong."""

    def __getitem__(self, name: str) -> Any:
        raise RequestError("late")

    def __iter__(self) -> Iterator[str]:
        return iter("y")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("model", "status", "text"),
    [
        (rejecting("wrong"), 400, "wrong"),
        (rejecting("wrong", 422), 422, "wrong"),
        (rejecting("later", np.int64(503)), 503, "later"),
        (rejecting("", HTTPStatus.NOT_FOUND), 404, "Not Found"),
        (rejecting("\ud800\0\n\U0001f600"), 400, "\\ud800\0\n\U0001f600"),
        (raising(UnusualError(409)), 409, "unusual 409"),
        (lambda _: Lazy(), 400, "late"),
    ],
)
@pytest.mark.parametrize("how", ["thread", "event loop", "async", "awaitable"])
@pytest.mark.thread_unsafe(reason="it reads the log")
def test_model_rejects_a_request(
    model: Any, status: int, text: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(request: tw.InferRequest) -> Any:
        await asyncio.sleep(0)
        return model(request)

    models: dict[str, Any] = {
        "thread": model,
        "event loop": Model(model, in_event_loop=True),
        "async": run,
        "awaitable": Model(partial(call, run), in_event_loop=True),
    }
    answer = infer(create_app({"m": models[how]}), "m", FRAME)
    assert (answer.status, answer.error) == (status, text)
    assert not caplog.records


@pytest.mark.parametrize(
    "model",
    [
        rejecting(5),
        rejecting("wrong", 200),
        rejecting("wrong", 399),
        rejecting("wrong", 600),
        rejecting("wrong", 499),
        rejecting("wrong", "400"),
        rejecting("wrong", [400]),
        raising(UnusualError(200)),
        raising(UnusualError(None)),
        raising(SilentError("wrong")),
        raising(EndingError("wrong")),
        raising(tw.DecodeError("of another message")),
    ],
)
@pytest.mark.thread_unsafe(reason="it reads the log")
def test_model_that_fails_to_reject(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    answer = infer(create_app({"m": model}), "m", FRAME)
    assert (answer.status, answer.error) == (500, "model 'm' failed")
    assert caplog.records


def test_request_error() -> None:
    error = RequestError("text", 404)
    assert isinstance(error, tw.TensorwireError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.status) == (RequestError, "text", 404)
    assert RequestError("text").status == 400


async def async_item(request: tw.InferRequest) -> Any:
    return {"y": request["absent"].as_numpy()}


OTHER = tw.InferRequest([X])
EMPTY: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("model", "status"),
    [
        (lambda request: {"y": request["absent"].as_numpy()}, 400),
        (Model(lambda request: {"y": request["absent"].as_numpy()}, in_event_loop=True), 400),
        (async_item, 400),
        (Model(async_item, [tw.TensorSpec("x", "FP32", [-1])]), 500),
        (lambda _: OTHER["absent"], 500),
        (lambda _: EMPTY["absent"], 500),
    ],
    ids=["thread", "event loop", "async", "declared", "other request", "dict"],
)
def test_input_that_a_model_needs_is_missing(
    model: Any, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the KeyError about the inputs of the request itself is an error of the client."""
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.zeros(2, np.float32))]))
    answer = infer(create_app({"m": model}), "m", frame)
    assert answer.status == status
    if status == 400:
        assert answer.error == "an input is missing: no tensor 'absent': there are ['x']"
        assert not caplog.records
    else:
        assert answer.error == "model 'm' failed"
        assert "absent" in caplog.text


FLOATS = tw.Tensor("x", np.zeros(2, np.float32))
NOT_UTF8 = tw.Tensor("x", [b"a", b"\xff"])


@pytest.mark.parametrize(
    ("tensor", "model", "error"),
    [
        (FLOATS, lambda r: {"y": r["x"].elements}, "tensor 'x' is FP32, not BYTES"),
        (FLOATS, lambda r: {"y": r["x"].as_strings()}, "tensor 'x' is FP32, not BYTES"),
        (NOT_UTF8, lambda r: {"y": r["x"].as_strings()}, "element 1 of tensor 'x' is not "),
        (
            NOT_UTF8,
            Model(lambda r: {"y": r["x"].as_strings()}, [tw.TensorSpec("x", "BYTES", [-1])]),
            "element 1 of tensor 'x' is not ",
        ),
        (FLOATS, Model(lambda r: {"y": r["x"].elements}, [tw.TensorSpec("x", "FP32", [-1])]), None),
        (FLOATS, lambda r: {"y": tw.Tensor("z", [5], datatype="INT8").elements}, None),
        (NOT_UTF8, lambda r: {"y": tw.Tensor("z", [b"\xff"]).as_strings()}, None),
        (NOT_UTF8, lambda r: {"y": tw.Tensor("x", [5], datatype="INT8").elements}, None),
        (NOT_UTF8, lambda r: {"y": r["x"].data.as_strings()}, None),
    ],
    ids=[
        "elements", "strings", "UTF-8", "UTF-8, declared", "declared", "other tensor",
        "UTF-8 of another tensor", "another tensor of the same name", "without the name",
    ],
)  # fmt: skip
def test_input_does_not_have_the_text_that_a_model_reads(
    tensor: tw.Tensor, model: Any, error: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The client of a model without declared inputs chooses the datatype, and always the text."""
    answer = infer(create_app({"m": model}), "m", tw.encode_request(tw.InferRequest([tensor])))
    if error is None:
        assert (answer.status, answer.error) == (500, "model 'm' failed")
        assert caplog.records
    else:
        assert (answer.status, bool(re.search(error, answer.error or ""))) == (400, True)
        assert not caplog.records


@pytest.mark.thread_unsafe(reason="it reads the log")
def test_input_that_a_model_reads_is_in_shared_memory(caplog: pytest.LogCaptureFixture) -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    tensor = tw.Tensor("x", None, datatype="FP32", shape=[2], parameters=region)
    frame = tw.encode_request(tw.InferRequest([tensor]))
    models = {
        "m": lambda request: {"y": request["x"].as_numpy()},
        "other error": lambda request: {"x": np.zeros(1, np.complex64)},
    }
    app = create_app(models)
    answer = infer(app, "m", frame)
    assert answer.status == 400
    assert answer.error == "tensor 'x' is in shared memory: the message does not have its data"
    assert not caplog.records
    answer = infer(app, "other error", frame)  # about the output of the same name
    assert answer.status == 500
    assert answer.error == (
        "an output of model 'other error' cannot be sent: tensor 'x' is an array of complex64, "
        "which has no datatype"
    )
