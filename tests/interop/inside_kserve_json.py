"""JSON requests to KServe's REST endpoint: same results with and without the integration.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, HTTPException
from kserve import InferOutput, InferResponse, Model, ModelRepository
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.rest.server import RESTServer
from kserve.utils.numpy_codec import from_np_dtype
from kserve.utils.utils import get_predict_input, get_predict_response

import tensorwire as tw
from interop.json_requests import (
    CONTENT_TYPES,
    EMPTY_BINARY,
    INVALID_BINARY,
    LEFT_TO_SERVER,
    ODD_FLOATS,
    READ_AS_ARRAYS,
    Answer,
    array_properties,
    assert_rejected,
    assert_same_answer,
    data_text,
    installed,
    message,
    outcome,
    post,
)
from interop.json_requests import entry as json_entry
from interop.kserve_bodies import entry, wire
from tensorwire.integrations import kserve as integration
from tensorwire.integrations.kserve.convert import ReceivedTensor

pytestmark = pytest.mark.usefixtures("no_logging")


PATH = "/v2/models/recorder/infer"
JSON_TYPE = "application/json"


class Recorder(Model):  # type: ignore[misc]
    """A model that records its request and returns a given answer."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ready = True
        self.seen: Any = None
        self.answer: Any = None
        self.headers: Any = None

    def predict(self, payload: Any, headers: Any = None) -> Any:
        self.headers = {k: v for k, v in headers.items() if k not in ("request-id", "x-request-id")}
        self.seen = described(payload)
        return self.answer(payload) if self.answer else answer_of(payload)


def described(payload: Any) -> Any:
    """Return everything that a model can see of a request: arrays, then lists, then arrays."""
    arrays = [array_properties(tensor.as_numpy) for tensor in payload.inputs]
    lists = [
        (t.name, t.shape, t.datatype, t.parameters, repr(t.data), t._raw_data)
        for t in payload.inputs
    ]
    return (
        arrays,
        lists,
        [array_properties(tensor.as_numpy) for tensor in payload.inputs],
        payload.id,
        payload.model_name,
        payload.model_version,
        payload.parameters or None,  # tensorwire does not distinguish {} and None
        payload.request_outputs and [(o.name, o.parameters) for o in payload.request_outputs],
        payload.use_binary_outputs,
        payload.from_grpc,
        outcome(lambda: json.dumps(payload.to_rest(), sort_keys=True)) if payload.id else None,
    )


def answer_of(payload: Any) -> InferResponse:
    """Return the inputs as outputs, as a model's author would."""
    outputs = []
    for tensor in payload.inputs:
        array = outcome(tensor.as_numpy)
        if isinstance(array, np.ndarray) and tensor.datatype != "BYTES":
            output = InferOutput(tensor.name, list(array.shape), tensor.datatype, array)
            if array.size:  # KServe fails to send an empty output with binary data
                output.set_data_from_numpy(array)
            outputs.append(output)
    return InferResponse(
        payload.id or "1",
        "recorder",
        outputs,
        use_binary_outputs=payload.use_binary_outputs,
        requested_outputs=payload.request_outputs,
    )


def application(dataplane: DataPlane, **options: Any) -> FastAPI:
    """Return KServe's REST application for a data plane."""
    app = FastAPI(**options)
    register(app, dataplane)
    return app


def register(app: FastAPI, dataplane: DataPlane) -> None:
    extension = SimpleNamespace(load=None, unload=None)
    server = RESTServer("", dataplane, extension, http_port=0)
    server._register_endpoints(app)
    server._add_exception_handlers(app)


def plane_with_model(plane: type[DataPlane] = DataPlane) -> tuple[DataPlane, Recorder]:
    model, registry = Recorder("recorder"), ModelRepository()
    registry.update(model)
    return plane(registry), model


class Server:
    """KServe's REST application with one model, called without a network.

    There is a second application, which is registered while the integration is installed. It gets
    the requests that are sent while the integration is installed.
    """

    def __init__(self, plane: type[DataPlane] = DataPlane) -> None:
        self.dataplane, self.model = plane_with_model(plane)
        self.plain = application(self.dataplane)
        with installed(integration):
            self.ours = application(self.dataplane)

    def infer(self, body: bytes, content_type: str | None = "application/json") -> Answer:
        self.model.seen = self.model.headers = None
        app = self.ours if integration.is_installed() else self.plain
        return post(app, PATH, body, content_type)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def both(server: Server, body: bytes) -> Answer:
    """Check that the answers with and without the integration are equal. Return the latter."""
    plain = server.infer(body)
    with installed(integration):
        assert_same_answer(plain, server.infer(body))
    return plain


def is_lazy(
    app: Any, model: Any, body: bytes = READ_AS_ARRAYS["nested"], content_type: Any = JSON_TYPE
) -> bool:
    """Return whether the model gets tensors that have no lists yet."""
    kinds: list[bool] = []

    def predict(payload: Any, headers: Any = None) -> Any:
        kinds.extend(
            isinstance(t, ReceivedTensor) and t._tensor is not None for t in payload.inputs
        )
        return answer_of(payload)

    model.predict = predict
    try:
        post(app, PATH, body, content_type)
    finally:
        del model.predict
    return bool(kinds) and all(kinds)


BODIES = {
    **{case: (body, True) for case, body in READ_AS_ARRAYS.items()},
    **{case: (body, False) for case, body in LEFT_TO_SERVER.items()},
}


@pytest.mark.parametrize("case", BODIES)
def test_bodies_give_the_same_request(server: Server, case: str) -> None:
    body, is_read = BODIES[case]
    plain = server.infer(body)
    seen, headers = server.model.seen, server.model.headers
    with installed(integration):
        ours = server.infer(body)
        assert (server.model.seen, server.model.headers) == (seen, headers)
        assert_same_answer(plain, ours)
        assert seen is not None or not is_read
        assert is_lazy(server.ours, server.model, body) == is_read


def test_empty_binary_tensors_need_no_header_length(server: Server) -> None:
    """The whole body is JSON (WIRE.md 1). KServe itself requires ``data``."""
    assert server.infer(EMPTY_BINARY)[0] == 422
    with installed(integration):
        assert server.infer(EMPTY_BINARY)[0] == 200


@pytest.mark.parametrize("case", INVALID_BINARY)
def test_binary_tensors_without_a_header_length(server: Server, case: str) -> None:
    """KServe alone reads JSON data of a tensor that also has a size."""
    body = INVALID_BINARY[case]
    with installed(integration):
        assert_rejected(server.infer(body), body)
    assert server.model.seen is None


@pytest.mark.parametrize("content_type", CONTENT_TYPES, ids=str)
def test_content_types(server: Server, content_type: str | None) -> None:
    """FastAPI decides which types are JSON. Without the integration, other types lack a header
    length.
    """
    body = READ_AS_ARRAYS["flat"]
    plain = server.infer(body, content_type)
    seen = server.model.seen
    with installed(integration):
        ours = server.infer(body, content_type)
        if plain[0] == 200:
            assert server.model.seen == seen
        if b"header is missing" not in plain[2]:  # tensorwire reads it as JSON, like Triton
            assert_same_answer(plain, ours)
        assert is_lazy(server.ours, server.model, body, content_type) == (ours[0] == 200)


# --- headers, bodies and failures that are unusual ---

BINARY_BODY, BINARY_LENGTH = wire(entry("x", [2], "FP32", 8), tail=np.ones(2, "f4").tobytes())
HEADERS: dict[str, tuple[int, dict[str, str]]] = {
    "Content-Length": (200, {"content_length": str(len(BINARY_BODY))}),
    "Content-Length too small": (400, {"content_length": "5"}),
    "Content-Length too large": (400, {"content_length": "5000"}),
    "Content-Length beyond the memory": (413, {"content_length": str(2**63)}),
    "Content-Length is not a number": (400, {"content_length": "abc"}),
    "two framings": (400, {"content_length": "5", "transfer_encoding": "chunked"}),
    "Content-Encoding": (415, {"content_encoding": "gzip"}),
}


@pytest.mark.parametrize("case", HEADERS)
def test_unusual_headers(server: Server, case: str) -> None:
    """The answer and what the model sees are those of KServe, unless a header is wrong."""
    status, more = HEADERS[case]
    headers = {"inference_header_content_length": str(BINARY_LENGTH), **more}
    found = []
    for app in (server.plain, server.ours):
        server.model.seen = None
        with installed(integration) if app is server.ours else nullcontext():
            answer = post(app, PATH, BINARY_BODY, "application/octet-stream", **headers)
        found.append((answer, server.model.seen))
    if status == 200:
        assert_same_answer(found[0][0], found[1][0])
        assert found[0][1] == found[1][1]
    else:
        assert (found[1][0][0], found[1][1]) == (status, None)


LONG = message(json_entry([1.5] * 100))
KINDS: dict[str, dict[str, str]] = {
    "JSON": {},
    "invalid JSON": {"content_type": "text/plain"},
    "binary": {"inference_header_content_length": str(len(LONG))},
    "CloudEvent": {"ce_id": "1"},
    "an encoding": {"content_encoding": "br"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_body_that_is_too_long(server: Server, kind: str) -> None:
    """A body with Content-Length is rejected before it is read. The next request is answered."""
    headers = {"content_type": JSON_TYPE, **KINDS[kind]}
    content_type = headers.pop("content_type")
    n = len(LONG)
    error = {"error": f"the body is {n} bytes long; the limit is {n - 1}"}
    with installed(integration, max_body=n - 1):
        for body, more in ((LONG, {}), (b"", {"content_length": str(n)})):
            server.model.seen = None
            answer = post(server.ours, PATH, body, content_type, **headers, **more)
            assert (answer[0], json.loads(answer[2])) == (413, error)
            assert server.model.seen is None
        assert server.infer(READ_AS_ARRAYS["flat"])[0] == 200
        integration.install(max_body=n)
        assert server.infer(LONG)[0] == 200
    with installed(integration):
        assert server.infer(LONG)[0] == 200


def test_body_for_another_data_plane_is_too_long() -> None:
    """KServe's own endpoint would read it."""

    class Curious(DataPlane):  # type: ignore[misc]
        def decode_inference_request(self, body: Any, headers: Any, model_name: str) -> Any:
            return super().decode_inference_request(body, headers, model_name)

    server = Server(Curious)
    with installed(integration, max_body=len(LONG) - 1):
        assert server.infer(LONG)[0] == 413


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), ("5", TypeError), (True, TypeError)]
)
def test_invalid_max_body_changes_nothing(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_body must be"):
        integration.install(max_body=value)
    assert not integration.is_installed()


def test_binary_requests_have_the_default_limits(server: Server) -> None:
    """JSON has no limit besides its size, because KServe itself would read it."""
    tensors = [json_entry([1], name=f"x{i}") for i in range(tw.Limits().max_tensors + 1)]
    body = message(*tensors)
    with installed(integration):
        length = {"inference_header_content_length": str(len(body))}
        assert_rejected(post(server.ours, PATH, body, None, **length), body, len(body))
        assert is_lazy(server.ours, server.model, body)


@pytest.mark.parametrize("value", [None, [1, "a"], {"b": [None]}], ids=str)
def test_binary_requests_with_any_parameters(server: Server, value: Any) -> None:
    """KServe validates the parameters only of JSON."""
    tensor = entry("x", [2], "FP32", 8, p=value)
    wanted = {"name": "x", "parameters": {"p": value, "binary_data": True}}
    body, length = wire(tensor, tail=bytes(8), id="1", parameters={"p": value}, outputs=[wanted])
    sent = {"inference_header_content_length": str(length)}
    seen, answers = [], []
    for app in (server.plain, server.ours):
        with installed(integration) if app is server.ours else nullcontext():
            answers.append(post(app, PATH, body, "application/octet-stream", **sent)[0])
        seen.append(server.model.seen)
    assert answers == [200, 200]
    assert seen[0] == seen[1]


def test_client_that_disconnects(server: Server) -> None:
    """It has sent a part of the body. The model is not called."""

    async def send_part(app: Any) -> Any:
        messages = [{"type": "http.request", "body": BINARY_BODY[:9], "more_body": True}]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-length", b"%d" % len(BINARY_BODY))]
        scope = {
            **{"type": "http", "method": "POST", "scheme": "http", "path": PATH},
            **{"query_string": b"", "root_path": "", "headers": headers},
        }
        with suppress(Exception):
            await app(scope, receive, send)
        return sent

    server.model.seen = None
    with installed(integration):
        assert asyncio.run(send_part(server.ours)) == []
    assert server.model.seen is None


FAILURES: dict[str, Any] = {
    "InvalidInput": InvalidInput("bad"),
    "InferenceError": InferenceError("broken"),
    "NotImplementedError": NotImplementedError("later"),
    "ValueError": ValueError("other"),
    "HTTPException": HTTPException(418, "tea"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_exceptions_of_a_model_reach_the_handlers_of_kserve(
    server: Server, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(payload: Any) -> Any:
        raise FAILURES[case]

    monkeypatch.setattr(server.model, "answer", fail)
    assert both(server, READ_AS_ARRAYS["flat"])[0] >= 400


@pytest.mark.parametrize("model", ["recorder", "unknown"])
def test_models_that_are_not_ready_or_not_known(
    server: Server, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PATH.replace("recorder", model)
    monkeypatch.setattr(server.model, "ready", False)
    plain = post(server.plain, path, READ_AS_ARRAYS["flat"], "application/json")
    with installed(integration):
        ours = post(server.ours, path, READ_AS_ARRAYS["flat"], "application/json")
    assert plain[0] == (404 if model == "unknown" else 503)
    assert_same_answer(plain, ours)


@pytest.mark.parametrize(("model", "status"), [("recorder", 503), ("unknown", 404)])
def test_malformed_request_to_a_model_that_is_not_ready_or_not_known(
    server: Server, model: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PATH.replace("recorder", model)
    monkeypatch.setattr(server.model, "ready", False)
    length = {"inference_header_content_length": str(BINARY_LENGTH)}
    plain = post(server.plain, path, BINARY_BODY[:-1], None, **length)
    with installed(integration):
        ours = post(server.ours, path, BINARY_BODY[:-1], None, **length)
    assert plain[0] == status
    assert_same_answer(plain, ours)


@pytest.mark.parametrize("is_binary", [False, True])
def test_response_headers_of_a_model(
    server: Server, is_binary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transformer passes on those of its predictor, apart from those of the body."""

    def predict(payload: Any, headers: Any, response_headers: Any) -> Any:
        lengths = {"content-length": "7", "content-type": "text/plain"}
        response_headers.update({"X-Of-Predictor": "a", **lengths})
        return answer_of(payload)

    monkeypatch.setattr(server.model, "predict", predict)
    monkeypatch.setattr(server.model, "required_response_headers", True)
    body = message(json_entry([1.5]), parameters={"binary_data_output": is_binary}, id="1")
    _, headers, _ = both(server, body)
    assert headers["x-of-predictor"] == "a"
    assert ("inference-header-content-length" in headers) == is_binary


def response(*outputs: InferOutput, **members: Any) -> Any:
    return lambda payload: InferResponse("1", "recorder", list(outputs), **members)


def made(array: Any, binary_data: bool | None = True, **more: Any) -> InferOutput:
    """Return an output with an array; `binary_data=None` assigns the array itself."""
    datatype = more.pop("datatype", None) or from_np_dtype(array.dtype)
    output = InferOutput("y", list(array.shape), datatype, **more)
    if binary_data is None:
        output.data = array
    else:
        output.set_data_from_numpy(array, binary_data=binary_data)
    return output


RANDOM = np.random.default_rng(2).standard_normal(500)
RESPONSES: dict[str, Any] = {
    **{
        f"{dtype} {how}": (lambda d=dtype, h=how: response(made(RANDOM.astype(d), h)))
        for dtype in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8")
        for how in (True, False, None)
    },
    "limits": lambda: response(made(np.array([2**64 - 1, 0], "u8")), made(np.array([-(2**63)]))),
    "odd FP64": lambda: response(made(ODD_FLOATS)),
    "odd FP32": lambda: response(made(np.array([0.1, 3e38, 1e-45, 16777216], "f4"))),
    "a scalar": lambda: response(made(np.array(5.5), None)),
    "strided": lambda: response(made(np.arange(12.0).reshape(3, 4).T[::2], None)),
    "masked": lambda: response(made(np.ma.array([1.0, 2.0], mask=[False, True]), None)),
    "empty": lambda: response(made(np.zeros((0, 3)), None)),
    "a list": lambda: response(InferOutput("y", [2], "FP64", [1, 2.5])),
    "text": lambda: response(made(np.array(["a", "\u20ac\n", b"b"], object))),
    "text in JSON": lambda: response(made(np.array(["a", "\u20ac\n"], object), False)),
    "bytes that are not UTF-8": lambda: response(made(np.array([b"\xff"], object))),
    "dates": lambda: response(made(np.array(["2020-01-01"], "M8[D]"), datatype="BYTES")),
    "NaN": lambda: response(made(np.array([1, np.nan]))),
    "infinity": lambda: response(made(np.array([np.inf], "f4"), None)),
    "FP16": lambda: response(made(np.array([1.5], "f2"))),
    "parameters": lambda: response(
        made(RANDOM, parameters={"a": 1, "b": True, "c": "\u20ac", "d": 0.1}), parameters={"p": 1}
    ),
    "parameters of other types": lambda: response(made(RANDOM, parameters={"a": [1], "b": None})),
    "model version": lambda: response(made(RANDOM), model_version="3"),
    "no outputs": response,
    "no data": lambda: response(InferOutput("y", [1], "FP32")),
    "another datatype": lambda: response(InferOutput("y", [2], "FP32", np.zeros(2))),
    "another shape": lambda: response(InferOutput("y", [3], "FP64", np.zeros(2))),
    "a shape that is a tuple": lambda: response(InferOutput("y", (2,), "FP64", np.zeros(2))),
    "numpy's integers": lambda: response(InferOutput("y", [np.int64(2)], "FP64", np.zeros(2))),
    "a number for the name": lambda: response(InferOutput(5, [2], "FP64", np.zeros(2))),
    "a lone surrogate": lambda: response(InferOutput("\ud800", [2], "FP64", np.zeros(2))),
    "a number for the id": lambda: lambda payload: InferResponse(5, "recorder", [made(RANDOM)]),
    "a dict that KServe rejects": lambda: (
        lambda payload: {"id": 5, "model_name": "m", "outputs": []}
    ),
    "a dict": lambda: lambda payload: {"model_name": "m", "id": "1", "outputs": []},
    "the helper's": lambda: (
        lambda payload: get_predict_response(payload, get_predict_input(payload), "recorder")
    ),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_responses_are_equal(case: str) -> None:
    """JSON values and headers are equal, and errors by KServe."""
    body = message(json_entry([1.5, 2.5], "FP64"))
    server = Server()
    server.model.answer = RESPONSES[case]()
    plain = server.infer(body)
    server.model.answer = RESPONSES[case]()
    with installed(integration):
        ours = server.infer(body)
    if b"UnicodeEncodeError" in plain[2]:  # another library reports it
        assert ours[0] == plain[0] == 500
    else:
        assert_same_answer(plain, ours)


class OwnResponse(InferResponse):  # type: ignore[misc]
    """A response that a program writes itself."""

    def to_rest(self) -> Any:
        tree, length = super().to_rest()
        return {**tree, "model_version": "of the program"}, length


def test_response_class_of_the_program(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(payload: Any) -> Any:
        return OwnResponse("1", "recorder", [made(RANDOM)])

    monkeypatch.setattr(server.model, "answer", answer)
    assert b"of the program" in both(server, READ_AS_ARRAYS["flat"])[2]


BINARY_EVENT = {"ce_id": "1", "ce_source": "s", "ce_specversion": "1.0", "ce_type": "t"}


@pytest.mark.parametrize(
    ("content_type", "headers"),
    [("application/json", BINARY_EVENT), ("application/cloudevents+json", {})],
    ids=["binary", "structured"],
)
def test_response_to_a_cloudevent(
    server: Server, content_type: str, headers: dict[str, str]
) -> None:
    """It is a CloudEvent, too. Its id and time differ each time."""
    plain = post(server.plain, PATH, READ_AS_ARRAYS["flat"], content_type, **headers)
    with installed(integration):
        ours = post(server.ours, PATH, READ_AS_ARRAYS["flat"], content_type, **headers)
    assert plain[0] == 200
    assert b"io.kserve.inference.response" in plain[2] or "ce-type" in plain[1]
    changing = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9-]{10}T[0-9:.]+")
    assert changing.sub("", str(ours)) == changing.sub("", str(plain))


def test_custom_data_plane_gets_the_validated_request() -> None:
    """A subclass of DataPlane gets the same request with and without the integration."""

    class Curious(DataPlane):  # type: ignore[misc]
        def decode_inference_request(self, body: Any, headers: Any, model_name: str) -> Any:
            found.append((body.id, body.inputs[0].data, body.model_dump()))
            return super().decode_inference_request(body, headers, model_name)

    found: list[Any] = []
    both(Server(Curious), READ_AS_ARRAYS["nested"])
    assert found[0] == found[1]


def test_lazy_request_can_be_pickled_copied_and_compared() -> None:
    """This works before and after its lists are created."""
    kept: list[Any] = []

    def keep(payload: Any, headers: Any = None) -> Any:
        kept.append(payload)
        return answer_of(payload)

    server = Server()
    server.model.predict = keep  # type: ignore[method-assign]
    server.infer(READ_AS_ARRAYS["nested"])
    with installed(integration):
        server.infer(READ_AS_ARRAYS["nested"])
        server.infer(READ_AS_ARRAYS["nested"])
        plain, listed, lazy = kept
        array = lazy.inputs[0].as_numpy()
        array[:] = 0
        assert lazy.inputs[0].as_numpy().tolist() == [[1, 2], [3, 4]]
        assert listed.inputs[0].data == [[1, 2], [3, 4]]
        for request in (listed, lazy):
            copies = [pickle.loads(pickle.dumps(request)), copy.copy(request)]
            for copied in [*copies, copy.deepcopy(request)]:
                assert copied.inputs[0].as_numpy().tolist() == [[1, 2], [3, 4]]
                assert copied.inputs[0].data == plain.inputs[0].data
        assert lazy == plain


JUST_ABOVE_HALF = "1.00000005960464477539062500001"  # of the way from 1 to the next FP32 number
DIFFERENCES: dict[str, tuple[bytes, Any, Any]] = {  # the body, and the array without and with
    "rounded once": (data_text(f"[{JUST_ABOVE_HALF}, 1]"), [1, 1], [1.0000001192092896, 1]),
    "a negative zero": (data_text("[-0, -0.0]"), "[0.0, -0.0]", "[-0.0, -0.0]"),
    "lists of different depths": (data_text('["a", ["b"]]', "BYTES"), ["a", ["b"]], ["a", "b"]),
    "lists of different lengths": (data_text("[[1], [2, 3]]", shape="[3]"), None, [1, 2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENCES)
def test_documented_differences(server: Server, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/integrations/kserve.md lists them."""
    body, plain, ours = DIFFERENCES[case]
    found: list[Any] = []

    def predict(payload: Any, headers: Any = None) -> Any:
        array = outcome(payload.inputs[0].as_numpy)
        found.append(array.tolist() if isinstance(array, np.ndarray) else None)
        return answer_of(payload)

    monkeypatch.setattr(server.model, "predict", predict)
    server.infer(body)
    with installed(integration):
        server.infer(body)
    for value, expected in zip(found, (plain, ours), strict=True):
        assert (repr(value) if isinstance(expected, str) else value) == expected
