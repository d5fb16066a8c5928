"""Models: what they receive and may return, their errors, and the checks of declared tensors."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import numpy as np
import pytest

import tensorwire as tw
from support.array_samples import OnlyDlpack
from support.asgi_requests import ALL, OUT, SPEC, WORDS, X, async_echo, double, infer
from tensorwire.server import InputError, Model, RequestError, create_app


def request_of(*tensors: tw.Tensor, outputs: Any = None, **options: Any) -> tw.Frame:
    return tw.encode_request(tw.InferRequest(tensors, outputs, **options))


ONE = request_of(X, parameters=ALL)


def serve(model: Any, frame: tw.Frame = ONE) -> Any:
    """Return what an application with this model replies."""
    return infer(create_app({"m": model}), "m", frame)


# --- the arguments of Model ---


@pytest.mark.parametrize("model", ["echo", None, {}])
def test_model_that_is_not_callable(model: Any) -> None:
    kind = type(model).__name__
    with pytest.raises(TypeError, match=f"model 'm' must be a function or a Model, not {kind}"):
        create_app({"m": model})
    with pytest.raises(TypeError, match=f"a model must be a function or a Model, not {kind}"):
        Model(model)


class AsyncObject:
    async def __call__(self, request: tw.InferRequest) -> Any:
        return {}


@pytest.mark.parametrize("model", [async_echo, AsyncObject()], ids=["function", "object"])
def test_async_model_does_not_run_in_the_event_loop_at_once(model: Any) -> None:
    with pytest.raises(ValueError, match="in_event_loop is only for synchronous functions"):
        Model(model, in_event_loop=True)


@pytest.mark.parametrize("argument", ["inputs", "outputs"])
@pytest.mark.parametrize(
    ("declared", "error", "message"),
    [
        (3, TypeError, "{} must be a sequence of TensorSpecs, not int"),
        (None, TypeError, "{} must be a sequence of TensorSpecs, not NoneType"),
        ("x", TypeError, "{}[0] must be a TensorSpec, not str"),
        ([SPEC, 1], TypeError, "{}[1] must be a TensorSpec, not int"),
        ([SPEC, tw.TensorSpec("x", "FP64", [-1])], ValueError, "tensor 'x' is declared twice"),
    ],
)
def test_invalid_declarations(argument: str, declared: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as caught:
        Model(double, **{argument: declared})
    assert str(caught.value) == message.format(argument)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"parameters": [("a", "b")]}, TypeError, "parameters must be a mapping of str to str"),
        ({"parameters": {1: "b"}}, TypeError, "a key of parameters must be a str, not int"),
        ({"parameters": {"a": ["b"]}}, TypeError, r"parameters\['a'\] must be a str, such as the"),
        ({"parameters": {"a": "\ud800"}}, ValueError, "surrogates not allowed"),
        ({"max_batch_size": -1}, ValueError, "max_batch_size must be 0 or more, not -1"),
        ({"max_batch_size": True}, TypeError, "max_batch_size must be an int, not bool"),
    ],
)  # fmt: skip
def test_invalid_configurations(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        Model(double, **options)


# --- what models receive ---


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
    response = serve(model, frame).response()
    assert response["y"].tolist() == [[0, 2, 4], [3, 4, 5]]
    assert found == expected


def test_parameters_that_only_models_read() -> None:
    """The application does nothing with them."""
    parameters = {"sequence_id": 5, "sequence_start": True, "priority": 1, "timeout": 1, "a": "b"}
    of_output = {"shared_memory_byte_size": 8, "shared_memory_offset": 1}
    output = tw.RequestedOutput("y", binary=True, parameters=of_output)
    found: list[tw.InferRequest] = []

    def function(request: tw.InferRequest) -> dict[str, Any]:
        found.append(request)
        return {"y": X}

    frame = tw.encode_request(tw.InferRequest([X], [output], parameters=parameters))
    response = serve(function, frame).response()
    assert response["y"].nbytes == X.nbytes
    assert found[0].parameters == parameters
    assert [each.parameters for each in found[0].outputs or ()] == [of_output]


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


@pytest.mark.parametrize(("batching", "shape"), [(False, (2,)), (True, (1, 2))])
def test_raw_requests(batching: bool, shape: tuple[int, ...]) -> None:
    frame = tw.encode_raw_request(np.array([1, 2], np.float32))
    y = serve(Model(double, [SPEC], [OUT], batching=batching), frame).response()["y"]
    assert (y.shape, y.as_numpy().ravel().tolist()) == (shape, [2, 4])
    for other in (double, Model(double, [SPEC, tw.TensorSpec("z", "BYTES", [1])])):
        answer = serve(other, frame)
        assert answer.status == 400
        assert answer.error == (
            "Inference-Header-Content-Length is 0, which means a raw binary request, but the model "
            "does not declare exactly one input"
        )


def test_single_declared_tensor_with_a_batch_dimension() -> None:
    inputs = [tw.TensorSpec("x", "FP32", [-1], batching=True), tw.TensorSpec("words", "BYTES", [2])]
    model = Model(async_echo, inputs)
    assert serve(model, request_of(tw.Tensor("x", X.data, shape=[10, 100]), WORDS)).status == 200
    assert serve(model, request_of(X, WORDS)).status == 400


# --- what models return ---


@pytest.mark.parametrize("is_async", [False, True])
def test_responses_of_a_model_are_not_limited(is_async: bool) -> None:
    """The limits apply only to received messages."""
    n = tw.Limits().max_tensors + 1
    outputs = [tw.Tensor(f"{i}", np.zeros(1, np.int8)) for i in range(n)]
    many = tw.InferResponse(outputs, parameters={"of": "the model"})

    async def return_later(_: tw.InferRequest) -> tw.InferResponse:
        return many

    answer = serve(return_later if is_async else lambda _: many)
    assert answer.status == 200
    limits = tw.Limits(max_tensors=n)
    response = tw.decode_response(answer.body, tw.header_length(answer.headers), limits=limits)
    assert (len(response.outputs), response.parameters) == (n, {"of": "the model"})


def test_model_names() -> None:
    """The client gets the name in the path and the version, not those that the model returns."""
    seen: list[str | None] = []

    def model(request: tw.InferRequest) -> tw.InferResponse:
        seen.append(request.model_name)
        return tw.InferResponse([X], model_name="its own", model_version="3")

    response = serve(model, request_of(X, model_name="body's")).response()
    assert (seen, response.model_name, response.model_version) == (["m"], "m", "1")


def test_response_object_that_a_model_returns_again_is_not_modified() -> None:
    """Each response has the id of its request and the name of the served model."""
    shared = tw.InferResponse([X], model_name="other server", id="other id")
    app = create_app({"a": lambda _: shared, "b": lambda _: shared})
    for name, id in (("a", "1"), ("b", "2"), ("a", None)):
        response = infer(app, name, tw.encode_request(tw.InferRequest([X], id=id))).response()
        assert (response.model_name, response.id) == (name, id)
    assert (shared.model_name, shared.id) == ("other server", "other id")


@pytest.mark.parametrize(
    ("value", "declared", "datatype", "expected"),
    [
        ([1.5, 2], None, "FP64", [1.5, 2]),
        ([1.5, 2], "FP32", "FP32", [1.5, 2]),
        ([[1, 2], [3, 4]], None, "INT64", [[1, 2], [3, 4]]),
        ((1, 2), "UINT8", "UINT8", [1, 2]),
        ([True, False], None, "BOOL", [True, False]),
        ([np.float32(2**60), np.float32(1)], None, "FP32", [2.0**60, 1]),
        ([2**63, 1], None, "UINT64", [2**63, 1]),
        ([True, 2.0**63], None, "FP64", [1, 2.0**63]),
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


# --- errors of the client ---


@pytest.mark.parametrize("parameter", ["classification", "shared_memory_region"])
@pytest.mark.parametrize("value", [2, -1, "2", 2.5, True, [2], None, 0, False])
def test_parameters_of_outputs_that_are_not_supported(value: Any, parameter: str) -> None:
    """If they were ignored, the client would find another output, or none in its region."""
    called: list[tw.InferRequest] = []
    output = tw.RequestedOutput("x", parameters={parameter: value})
    frame = tw.encode_request(tw.InferRequest([X], ["y", output]))

    def function(request: tw.InferRequest) -> dict[str, Any]:
        called.append(request)
        return {"x": X, "y": X}

    answer = serve(function, frame)
    if value:
        expected = (
            f"requested output 'x' has the parameter {parameter}, which is not supported: without "
            "it, the whole output is in the response"
        )
        assert (answer.status, answer.error, called) == (400, expected, [])
    else:  # as in Triton
        assert answer.response()["x"].datatype == "FP32"


def reads(function: Callable[[tw.InferRequest], Any]) -> Callable[[tw.InferRequest], Any]:
    """Return a model that returns what a function reads from the request."""
    return lambda request: {"y": function(request)}


def returning(value: Any) -> Callable[[tw.InferRequest], Any]:
    return lambda _: {"y": value}


def without_name(request: tw.InferRequest) -> Any:
    return request["x"].data


async def async_item(request: tw.InferRequest) -> Any:
    return {"y": request["absent"]}


absent = reads(lambda r: r["absent"])
elements = reads(lambda r: r["x"].elements)
strings = reads(lambda r: r["x"].as_strings())
half = reads(lambda r: r["x"].as_numpy().astype("f2"))
BYTES = tw.TensorSpec("x", "BYTES", [-1])
NOT_UTF8 = request_of(tw.Tensor("x", [b"a", b"\xff"]))
REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
SHARED = request_of(tw.Tensor("x", None, datatype="FP32", shape=[2], parameters=REGION))
COLUMN = np.zeros((2, 1), np.float32)
ROWS, BATCH_OF_3 = tw.TensorSpec("x", "FP32", []), tw.Tensor("x", np.zeros(3, np.float32))
TAKES_X = Model(double, [SPEC])
TAKES_X_AND_Z = Model(double, [SPEC, tw.TensorSpec("z", "BYTES", [1])])
BUT = "but the model declares FP32 [-1]"
CAST = 'use x.astype("float32")'
DATATYPES: dict[str, tw.Datatype] = {
    "x": "FP32",
    "a b": "UINT8",
    "c": "BOOL",
    "d": "BF16",
    "e": "BYTES",
    "f": "FP64",
}
TAKES_ALL = Model(double, [tw.TensorSpec(*each, [-1]) for each in DATATYPES.items()])
DOUBLES = [tw.Tensor(name, np.zeros(2)) for name in DATATYPES]
ALL_CASTS = (
    f"input 'x' is FP64 [2], {BUT}: {CAST}; "
    "input 'a b' is FP64 [2], but the model declares UINT8 [-1]: use array.astype(\"uint8\"); "
    "input 'c' is FP64 [2], but the model declares BOOL [-1]: use c.astype(\"bool\"); "
    "input 'd' is FP64 [2], but the model declares BF16 [-1]; "
    "input 'e' is FP64 [2], but the model declares BYTES [-1]"
)
MISSING = "an input is missing: no tensor 'absent': there are ['x']"


@pytest.mark.parametrize(
    ("model", "frame", "error"),
    [
        # inputs that are not those that the model declares
        (TAKES_X, request_of(X, WORDS), "unexpected input 'words': the model takes ['x']"),
        (TAKES_X, request_of(WORDS), "unexpected input 'words': the model takes ['x']"),
        (TAKES_X, request_of(tw.Tensor("x", np.zeros(2))), f"input 'x' is FP64 [2], {BUT}: {CAST}"),
        (TAKES_ALL, request_of(*DOUBLES), ALL_CASTS),
        (TAKES_X, request_of(tw.Tensor("x", COLUMN)), f"input 'x' is FP32 [2, 1], {BUT}"),
        (TAKES_X_AND_Z, ONE, "input 'z' is missing"),
        (Model(double, max_batch_size=2), ONE, "input 'x' has a batch of 1000, but the maximum"),
        (Model(double, [ROWS], max_batch_size=2), request_of(BATCH_OF_3), "input 'x' has a batch"),
        # inputs that the model reads
        (absent, ONE, MISSING),
        (Model(absent, in_event_loop=True), ONE, MISSING),
        (async_item, ONE, MISSING),
        (elements, ONE, "tensor 'x' is FP32, not BYTES"),
        (strings, ONE, "tensor 'x' is FP32, not BYTES"),
        (strings, NOT_UTF8, "element 1 of tensor 'x' is not "),
        (Model(strings, [BYTES]), NOT_UTF8, "element 1 of tensor 'x' is not "),
        (double, SHARED, "tensor 'x' is in shared memory: the message does not have its data"),
        # outputs that the request asks for
        (half, request_of(X), "output 'y' is FP16, which can only be sent as binary data"),
        (double, request_of(X, outputs=[tw.RequestedOutput("q")]), "the request asks for output"),
    ],
)  # fmt: skip
@pytest.mark.thread_unsafe(reason="it reads the log")
def test_request_that_does_not_fit_the_model(
    model: Any, frame: tw.Frame, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = serve(model, frame)
    assert answer.status == 400
    assert answer.error.startswith(error)
    assert not caplog.records


def raising(error: Any) -> Callable[[tw.InferRequest], Any]:
    def model(*_: Any, **__: Any) -> Any:
        raise error

    return model


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


def call(function: Any, request: tw.InferRequest) -> Any:
    return function(request)


class LateMapping(Mapping[str, Any]):
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
        (lambda _: LateMapping(), 400, "late"),
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
    answer = serve(models[how])
    assert (answer.status, answer.error) == (status, text)
    assert not caplog.records


def test_request_error() -> None:
    for kind in (RequestError, InputError):
        error = kind("text", 404, tensor="x")
        assert isinstance(error, tw.TensorwireError)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.status, copy.tensor) == (kind, "text", 404, "x")
        assert (kind("text").status, kind("text").tensor) == (400, None)


# --- errors of the model ---


class Secretive:
    """An object whose conversion to an array fails."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a secret")


class Lazy:
    """An object that finds out its class when it is asked, and fails."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise self.error


def failing_results(error: type[BaseException]) -> list[Any]:
    """Return models whose results raise an error when they are examined."""
    return [
        lambda _: Lazy(error),
        returning(Lazy(error)),
        returning(type("Array", (), {"__array__": raising(error)})()),
        lambda _: type("Items", (dict,), {"items": raising(error)})(),
    ]


def stop(_: tw.InferRequest) -> Any:
    return next(iter(()))


async def stop_later(_: tw.InferRequest) -> Any:
    return next(iter(()))


def declared(function: Callable[[Any], dict[str, Any]]) -> Model:
    """Return a model with declared tensors, whose output is computed from the array `x`."""
    return Model(lambda request: function(request["x"].as_numpy()), [SPEC], [OUT])


OTHER = tw.InferRequest([X])
NUMBER = tw.Tensor("x", [5], datatype="INT8")
EMPTY: dict[str, Any] = {}
FAILED = "model 'm' failed"
LOGGED = "model 'm' (version 1) failed"
UNSENT = "an output of model 'm' cannot be sent:"
RETURNED = "the model returned"


@pytest.mark.parametrize(
    "row",  # the model, the error, what is logged, and the request if it is another one
    [
        (raising(RuntimeError("a secret")), FAILED, "a secret"),
        (stop, FAILED, "StopIteration"),
        (stop_later, FAILED, "StopIteration"),
        (raising(tw.DecodeError("of another message")), FAILED, "of another message"),
        # objects that raise when they are examined
        (lambda _: Lazy(KeyboardInterrupt), FAILED, "KeyboardInterrupt"),  # in a thread
        *(
            (Model(cast("Any", model), in_event_loop=in_event_loop), FAILED, error.__name__)
            for error in (StopIteration, SystemExit)
            for in_event_loop in (False, True)
            for model in failing_results(error)
        ),
        # errors that RequestError does not accept
        (rejecting(5), FAILED, "text must be a str"),
        *((rejecting("wrong", n), FAILED, "status must be ") for n in (200, 399, 600, 499, "400")),
        (rejecting("wrong", [400]), FAILED, "unhashable"),
        (raising(UnusualError(200)), FAILED, "status must be "),
        (raising(UnusualError(None)), FAILED, "status must be "),
        (raising(SilentError("wrong")), FAILED, "RuntimeError"),
        (raising(EndingError("wrong")), FAILED, "SystemExit"),
        # errors about something else than the inputs that the client has chosen
        (Model(async_item, [SPEC]), FAILED, "absent"),
        (lambda _: OTHER["absent"], FAILED, "absent"),
        (lambda _: EMPTY["absent"], FAILED, "absent"),
        (Model(elements, [SPEC]), FAILED, "not BYTES"),
        (reads(lambda _: tw.Tensor("z", [5], datatype="INT8").elements), FAILED, "'z' is INT8"),
        (reads(lambda _: tw.Tensor("x", [b"\xff"]).as_strings()), FAILED, "'x' is not"),
        # also if the request has a tensor of the same name, or with the same mistake
        (reads(lambda _: tw.Tensor("z", [b"\xff"]).as_strings()), FAILED, "'z' is not", NOT_UTF8),
        (reads(lambda _: NUMBER.elements), FAILED, "not BYTES", NOT_UTF8),
        (reads(lambda r: without_name(r).as_strings()), FAILED, "UTF-8", NOT_UTF8),
        (lambda _: {"x": np.zeros(1, "F")}, UNSENT, "'x' is an array of complex64", SHARED),
        # responses
        (lambda _: tw.InferResponse([X], parameters={"k": object()}), FAILED, "type object"),
        (lambda _: tw.InferResponse([X, X]), FAILED, "output 'x' appears twice"),
        (lambda _: None, "model 'm' must return an InferResponse or a mapping of arrays", ""),
        (declared(lambda x: {"z": x}), f"{RETURNED} output 'z', which is not declared: the mo", ""),
        (declared(lambda x: {"y": x[None]}), f"output 'y' is FP32 [1, 1000], {BUT}", ""),
        (declared(lambda x: {"y": x.astype("f8")}), f"output 'y' is FP64 [1000], {BUT}: use", ""),
        # outputs
        *(
            (Model(returning(value), in_event_loop=True), error, error.replace(FAILED, LOGGED))
            for value, error in (
                (np.zeros(1, complex), f"{UNSENT} tensor 'y' is an array of complex128"),
                ([object()], f"{UNSENT} tensor 'y' is a list of object, not of numbers"),
                ([10**30], f"{UNSENT} element 0 of tensor 'y' is an integer of 100 bits, which"),
                (["a", None], f"{UNSENT} element 1 of tensor 'y' is None"),
                (["\ud800"], f"{UNSENT} element 0 of tensor 'y' cannot be encoded as UTF-8"),
                ([[1], [2, 3]], f"{UNSENT} tensor 'y' is a ragged list: item 1 has shape [2]"),
                ({"a": 1}, f"{RETURNED} dict for output 'y', which is not an array, a list or"),
                (range(3), f"{RETURNED} range for output 'y', which is not an array, a list or"),
                (None, f"{RETURNED} None for output 'y'"),
                (Secretive(), FAILED),
            )
        ),
    ],
)  # fmt: skip
@pytest.mark.thread_unsafe(reason="it reads the log")
def test_model_that_fails(row: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The reason is in the log, and in the response unless it is an exception of other code."""
    model, error, logged, *sent = row
    answer = serve(model, *sent)
    assert answer.status == 500
    assert answer.error == error if error == FAILED else answer.error.startswith(error)
    assert logged in caplog.text
    assert caplog.records


async def leave_later(error: type[BaseException]) -> Any:
    raise error


def leave(error: type[BaseException]) -> Any:
    raise error


@pytest.mark.thread_unsafe(reason="asyncio handles a KeyboardInterrupt of the main thread")
@pytest.mark.parametrize(
    "function",
    [
        lambda _: leave(KeyboardInterrupt),
        lambda _: leave_later(KeyboardInterrupt),
        lambda _: leave(type("Stop", (KeyboardInterrupt,), {})),
    ],
)
def test_keyboard_interrupt_in_the_event_loop_reaches_the_server(function: Any) -> None:
    app = create_app({"m": Model(function, in_event_loop=True)})
    with pytest.raises(KeyboardInterrupt):
        infer(app, "m")


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_model_that_raises_an_exception_of_the_interpreter(error: type[BaseException]) -> None:
    models: dict[str, Any] = {
        "thread": lambda _: leave(error),
        "event loop": Model(lambda _: leave(error), in_event_loop=True),
        "async": lambda _: leave_later(error),
        "interrupt in a thread": lambda _: leave(KeyboardInterrupt),  # signals use the main thread
    }
    for name in models:
        answer = infer(create_app(models), name)
        assert (answer.status, answer.error) == (500, f"model {name!r} failed")
