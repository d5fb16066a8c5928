"""Requests to MLServer's REST application: same results with and without the integration.

`test_mlserver_integration.py` runs this file in the environment of MLServer.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import tracemalloc
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import wraps
from typing import Any

import numpy as np
import pytest
from mlserver import ModelSettings, Settings, types
from mlserver.codecs import NumpyCodec, PandasCodec, StringCodec
from mlserver.handlers import DataPlane
from mlserver.rest.app import create_app
from mlserver.rest.endpoints import Endpoints
from mlserver.rest.requests import Request
from mlserver.types import InferenceResponse, Parameters, ResponseOutput, TensorData
from starlette.applications import Starlette
from starlette.routing import Mount

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
    installed,
    message,
    outcome,
    post,
)
from interop.json_requests import entry as json_entry
from support.case_types import Malformed
from support.malformed import MALFORMED
from tensorwire.integrations import mlserver as integration
from tensorwire.integrations.mlserver.server import is_json
from tensorwire.integrations.rest import flat_numbers, receive_again, receive_body
from tensorwire.server.body import ClientDisconnectedError

pytestmark = pytest.mark.usefixtures("no_logging")

PATH = "/v2/models/recorder/infer"
IDS = ("ce-id", "ce-requestid")
# Cases of the binary extension, which MLServer alone does not support.
BINARY = {"binary output", "binary outputs"}


class Recorder:
    """A model and its registry. It records its request and returns a given answer."""

    ready, settings = True, ModelSettings(name="recorder", implementation="mlserver.MLModel")

    def __init__(self) -> None:
        self.seen: Any = None
        self.answer: Any = echo
        self.payload: Any = None

    async def get_model(self, *_: Any) -> Recorder:
        return self

    async def predict(self, payload: Any) -> Any:
        self.payload = payload
        self.seen = described(payload)
        return self.answer(payload)


def described(payload: Any) -> Any:
    """Return everything that a model can see of a request, through codecs and lists."""
    before = [decoded(tensor) for tensor in payload.inputs]
    lists = [repr(tensor.data.root) for tensor in payload.inputs]
    after = [decoded(tensor) for tensor in payload.inputs]
    parameters = payload.parameters.model_dump()
    parameters.pop("headers")
    return (
        before,
        lists,
        after,
        [(len(t.data) if isinstance(t.data.root, list) else 0) for t in payload.inputs],
        [(t.name, t.shape, t.datatype, dumped_parameters(t)) for t in payload.inputs],
        payload.id if payload.id == "7" else None,
        parameters,
        payload.outputs and [(o.name, dumped_parameters(o)) for o in payload.outputs],
        repr(outcome(lambda: PandasCodec.decode_request(payload).to_dict())),
        repr([tensor.model_dump(exclude={"parameters"}) for tensor in payload.inputs]),
    )


def dumped_parameters(payload: Any) -> Any:
    return payload.parameters and payload.parameters.model_dump()


def decoded(tensor: Any) -> Any:
    return (
        array_properties(lambda: NumpyCodec.decode_input(tensor)),
        outcome(lambda: StringCodec.decode_input(tensor)) if tensor.datatype == "BYTES" else None,
        len(tensor.data) if isinstance(tensor.data, list) else None,
    )


def echo(payload: Any) -> Any:
    outputs = []
    for tensor in payload.inputs:
        if tensor.datatype == "BYTES":
            texts = StringCodec.decode_input(tensor)
            outputs.append(StringCodec.encode_output(tensor.name, texts))
        else:
            outputs.append(NumpyCodec.encode_output(tensor.name, NumpyCodec.decode_input(tensor)))
    return InferenceResponse(model_name="recorder", outputs=outputs)


class Server:
    """MLServer's REST application with one model, called without a network."""

    def __init__(self, plane: Any = None) -> None:
        settings = Settings(debug=False, gzip_enabled=False, metrics_endpoint=None)
        self.model = Recorder() if plane is None else plane._model_registry
        self.plane = DataPlane(settings, self.model) if plane is None else plane
        self.app = create_app(settings, self.plane, None)

    def infer(
        self,
        body: bytes,
        content_type: str | None = "application/json",
        *,
        path: str = PATH,
        **more: str,
    ) -> Answer:
        self.model.seen = None
        return post(self.app, path, body, content_type, **more)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def with_id(answer: Answer) -> Answer:
    """Return the answer without an id that MLServer generated."""
    status, headers, body = answer
    try:
        found = json.loads(body)
    except ValueError:
        return answer
    if not isinstance(found, dict) or found.get("id") == "7":
        return answer
    found.pop("id", None)
    headers = {name: value for name, value in headers.items() if name not in IDS}
    text = json.dumps(found).encode()
    return status, headers | {"content-length": str(len(text))}, text


def both(server: Server, body: bytes, *of_type: str | None, **more: str) -> Answer:
    """Check that the answers with and without the integration are equal, and return ours."""
    plain = server.infer(body, *of_type, **more)
    seen = server.model.seen
    with installed(integration):
        ours = server.infer(body, *of_type, **more)
    assert server.model.seen == seen
    assert_same_answer(with_id(plain), with_id(ours))
    return ours


BODIES = READ_AS_ARRAYS | LEFT_TO_SERVER


@pytest.mark.parametrize("case", sorted(BODIES.keys() - BINARY))
def test_json_bodies_give_the_same_request(server: Server, case: str) -> None:
    both(server, BODIES[case])


MODEL = "/v2/models/recorder"


@pytest.mark.parametrize("path", ["/infer", "/generate"])
@pytest.mark.parametrize("version", ["", "/versions/v2"])
@pytest.mark.parametrize("case", ["flat", "truncated"])
def test_paths(server: Server, version: str, path: str, case: str) -> None:
    """The integration does not change the arguments that the data plane gets."""
    names: list[Any] = []

    async def get_model(*arguments: Any) -> Any:
        names.append(arguments)
        return server.model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.model, "get_model", get_model)
        both(server, BODIES[case], path=f"{MODEL}{version}{path}")
    expected = ("recorder", version.rpartition("/")[2] or None)
    assert names == [expected] * (2 if case == "flat" else 0)


def test_application_inside_another_one(server: Server) -> None:
    """The path may have further parameters."""
    outer = Starlette(routes=[Mount("/{tenant}", server.app)])
    with installed(integration):
        assert post(outer, f"/a{PATH}", BODIES["flat"], "application/json")[0] == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/docs/dataplane.json", "/v2/health/live", "/nothing"])
def test_other_endpoints(server: Server, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.plane._settings, "extensions", ["binary_tensor_data"])
    assert both(server, b"", path=path, method="GET")[0] == (404 if path == "/nothing" else 200)


def test_streams_are_left_to_mlserver(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of an output is built for them."""

    async def predict_stream(payloads: Any) -> Any:
        async for payload in payloads:
            yield echo(payload)

    monkeypatch.setattr(server.model, "predict_stream", predict_stream, raising=False)
    body = message(json_entry([1.5, 2.5]))
    status, headers, _ = both(server, body, path=f"{MODEL}/infer_stream")
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")


class Reading:
    """A middleware that reads the body, and passes it on."""

    def __init__(self, app: Any, seen: list[bytes]) -> None:
        self.app, self.seen = app, seen

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = bytes((await receive_body(scope, receive, 10_000))[1])
        self.seen.append(body)
        again = receive_again(body, receive)
        await self.app(scope, again, send)


def test_middleware_that_reads_the_body(server: Server) -> None:
    seen: list[bytes] = []
    other = Server(server.plane)
    other.app.add_middleware(Reading, seen=seen)
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.ones(3, np.float32))]))
    both(other, BODIES["flat"])
    with installed(integration):
        length = str(frame.header_length)
        headers = {"inference_header_content_length": length}
        status, _, answer = other.infer(bytes(frame), "application/octet-stream", **headers)
    assert seen == [BODIES["flat"], BODIES["flat"], bytes(frame)]
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [1, 1, 1])


def test_endpoint_that_other_code_has_wrapped_since(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is created later uses the wrapper, which gets what FastAPI passes to it."""
    original, seen = Endpoints.infer, []

    @wraps(original)
    async def infer(self: Any, *arguments: Any, **more: Any) -> Any:
        seen.append(type(more["raw_request"]))
        return await original(self, *arguments, **more)

    with installed(integration):
        monkeypatch.setattr(Endpoints, "infer", infer)
        assert Server(server.plane).infer(BODIES["flat"])[0] == 200
        monkeypatch.undo()
    assert seen == [Request]


@pytest.mark.parametrize("content_type", CONTENT_TYPES, ids=str)
def test_content_types(server: Server, content_type: str | None) -> None:
    if content_type == "application/octet-stream":
        return  # a binary request without a header length
    both(server, READ_AS_ARRAYS["flat"], content_type)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_other_methods(server: Server, method: str) -> None:
    both(server, READ_AS_ARRAYS["flat"], method=method)
    assert server.model.seen is None


@pytest.mark.parametrize("case", ["flat", "truncated"])
def test_gzip(server: Server, case: str) -> None:
    body = gzip.compress((READ_AS_ARRAYS | LEFT_TO_SERVER)[case])
    both(server, body, "application/json", content_encoding="gzip")
    assert (server.model.seen is not None) == (case == "flat")
    both(server, body[:-9], "application/json", content_encoding="gzip")


FLAT = READ_AS_ARRAYS["flat"]
GZIPPED: dict[str, bytes] = {
    "two members": gzip.compress(FLAT[:20]) + gzip.compress(FLAT[20:]),
    "zeros at the end": gzip.compress(FLAT) + bytes(9),
    "other bytes at the end": gzip.compress(FLAT) + b"more",
    "a wrong checksum": gzip.compress(FLAT)[:-5] + b"12345",
    "not gzip": FLAT,
    "deflate": zlib.compress(FLAT),
    "empty": b"",
}


@pytest.mark.parametrize("case", GZIPPED)
def test_unusual_gzip(server: Server, case: str) -> None:
    """MLServer decompresses with gzip.decompress."""
    both(server, GZIPPED[case], "application/json", content_encoding="gzip")
    assert (server.model.seen is not None) == (case in ("two members", "zeros at the end"))


LONG = message(json_entry([1.5] * 100))
LENGTH = {"inference_header_content_length": str(len(LONG))}


@pytest.mark.parametrize("encoding", [None, "gzip", "br"])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
@pytest.mark.parametrize("headers", [{}, LENGTH], ids=["JSON", "binary"])
def test_body_that_is_too_long(
    server: Server, headers: dict[str, str], content_type: str, encoding: str | None
) -> None:
    """A body with Content-Length is rejected before it is read. The next request is answered."""
    if headers and encoding == "br":
        return  # status 415
    n = len(LONG)
    sent = headers if encoding is None else {**headers, "content_encoding": encoding}
    body = gzip.compress(LONG) if encoding == "gzip" else LONG
    error = {"error": f"the body is {n} bytes long; the limit is {n - 1}"}
    with installed(integration, max_body=n - 1):
        for content, more in ((body, {}), (b"", {"content_length": str(n)})):
            status, _, answer = server.infer(content, content_type, **sent, **more)
            assert (status, json.loads(answer)) == (413, error)
            assert server.model.seen is None
        assert server.infer(FLAT)[0] == 200
        integration.install(max_body=n)
        assert server.infer(LONG)[0] == 200
    with installed(integration):
        assert server.infer(LONG)[0] == 200


BOMB = gzip.compress(bytes(1 << 26))
BOMBS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "JSON": (BOMB, {}),
    "two members": (gzip.compress(FLAT) + BOMB, {}),
    "a wrong checksum": (BOMB[:-5] + b"12345", {}),
    "truncated": (BOMB[:-5], {}),
    "not JSON": (BOMB, {"content_type": "text/plain"}),
    "binary": (BOMB, {"inference_header_content_length": "9"}),
}


@pytest.mark.parametrize("case", BOMBS)
def test_gzip_bomb(server: Server, case: str) -> None:
    """It is not decompressed further than to the limit. Of two encodings, MLServer reads both."""
    limit = 1 << 22
    body, more = BOMBS[case]
    sent: dict[str, Any] = {"content_type": "application/json", **more}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-encoding", b"identity"), *scope["headers"]]
        await server.app({**scope, "headers": headers}, receive, send)

    with installed(integration, max_body=limit):
        tracemalloc.start()
        try:
            status = post(app, PATH, body, content_encoding="gzip", **sent)[0]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert status == 413
        assert peak < 4 * limit
        assert server.infer(FLAT)[0] == 200


def test_several_headers_of_a_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model gets one of them, the same as without the integration."""
    seen: list[Any] = []

    async def predict(payload: Any) -> Any:
        seen.append({**payload.parameters.headers, "Ce-Id": "", "Ce-Requestid": ""})
        return echo(payload)

    monkeypatch.setattr(server.model, "predict", predict)
    headers = [(b"x-a", b"1"), (b"x-a", b"2"), (b"x-b", b"\xe9"), (b"content-type", b"")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await server.app({**scope, "headers": headers}, receive, send)

    for is_installed in (False, True):
        with installed(integration) if is_installed else nullcontext():
            assert post(app, PATH, BODIES["flat"], None)[0] == 200
    assert seen[0] == seen[1]
    assert seen[0]["x-a"] == "1"


@pytest.mark.parametrize("encoding", ["br", "GZIP", "identity", ""])
def test_other_encodings(server: Server, encoding: str) -> None:
    """MLServer ignores them."""
    both(server, READ_AS_ARRAYS["flat"], "application/json", content_encoding=encoding)
    assert server.model.seen is not None


def out(data: Any, datatype: str = "FP64", shape: Any = None, **more: Any) -> Any:
    return ResponseOutput(name="y", datatype=datatype, shape=shape or [2], data=data, **more)


def response(*outputs: Any, **members: Any) -> Any:
    return lambda: (
        lambda payload: InferenceResponse(
            model_name="recorder", outputs=[make() for make in outputs], **copy.deepcopy(members)
        )
    )


def encoded(array: Any) -> Any:
    return lambda: NumpyCodec.encode_output("y", array)


class Text(str):
    """A class that orjson would write as well."""

    __slots__ = ()


@dataclass
class Point:
    x: int
    y: int


RANDOM = np.random.default_rng(2).standard_normal((20, 25))
RESPONSES: dict[str, Any] = {
    **{
        dtype: response(encoded(RANDOM.astype(dtype)))
        for dtype in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
    },
    "limits": response(encoded(np.array([2**64 - 1, 0], "u8")), encoded(np.array([-(2**63)]))),
    "odd FP64": response(encoded(ODD_FLOATS)),
    "odd FP32": response(encoded(np.array([0.1, 3e38, 1e-45, 16777216], "f4"))),
    "NaN and infinity": response(encoded(np.array([1, np.nan, np.inf, -np.inf]))),
    "infinity": response(encoded(np.array([1, np.inf, -np.inf]))),
    "empty": response(encoded(np.zeros((0, 3)))),
    "strided": response(encoded(RANDOM.T[::2])),
    "S": response(encoded(np.array([b"ab", b"c"]))),
    "U": response(encoded(np.array(["ab", "\u20ac\n"]))),
    "texts": response(lambda: StringCodec.encode_output("y", ["a", "\u20ac"])),
    "invalid UTF-8": response(lambda: out(TensorData([b"\xff", b"a"]), "BYTES")),
    "a list": response(lambda: out([1, 2.5])),
    "a list and an array": response(lambda: out([1, None, "a", [2]]), encoded(RANDOM)),
    "bytes and an array": response(lambda: out([b"ab", b"\xc3\xa9"]), encoded(RANDOM)),
    "invalid UTF-8 and an array": response(lambda: out([b"\xff"], "BYTES"), encoded(RANDOM)),
    "a number": response(lambda: out(5)),
    **{
        type(value).__name__: response(lambda value=value: out([value]), encoded(RANDOM))
        for value in (
            *(datetime(2020, 1, 2, tzinfo=UTC), Decimal("1.50"), (1, b"a"), {3: "a"}, {"a"}),
            *(types.Datatype.FP32, Text("a"), Point(1, 2), np.float64(0.1), 2**64, object()),
        )
    },
    "parameters": response(
        lambda: out([1.0], parameters=Parameters(content_type="np", a=[1, {"b": None}], c=0.5)),
        encoded(RANDOM),
        parameters=Parameters(headers={"x-mine": "1"}, b=2),
        model_version="3",
        id="5",
    ),
    "a huge parameter": response(encoded(RANDOM), parameters=Parameters(a=2**70)),
    "a parameter that is NaN": response(encoded(RANDOM), parameters=Parameters(a=float("nan"))),
    "a parameter without JSON form": response(encoded(RANDOM), parameters=Parameters(a=object())),
    "no outputs": response(),
    "no response": lambda: lambda payload: None,
    "an error": lambda: lambda payload: 1 / 0,
}


@pytest.mark.parametrize("case", RESPONSES)
def test_responses_are_equal(server: Server, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON values, headers and errors are equal."""
    monkeypatch.setattr(server.model, "answer", RESPONSES[case]())
    both(server, message(json_entry([1.5, 2.5], "FP64")))


def test_response_needs_no_lists(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is written from the array."""
    monkeypatch.setattr("tensorwire.integrations.mlserver.convert.flat_list", None)
    with installed(integration):
        status, _, body = server.infer(message(json_entry([1.5, 2.5])))
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == [1.5, 2.5]


def test_texts_of_the_input_that_a_model_returns(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the form in which they were sent."""

    async def predict(payload: Any) -> Any:
        return InferenceResponse(
            model_name="recorder", outputs=[out(payload.inputs[0].data, "BYTES", [2, 2])]
        )

    monkeypatch.setattr(server.model, "predict", predict)
    body = message(json_entry([["a", "b"], ["c", "d"]], "BYTES", [2, 2]))
    plain = server.infer(body)
    with installed(integration):
        assert_same_answer(with_id(plain), with_id(server.infer(body)))


def test_client_that_disconnects_within_a_body() -> None:
    messages = [
        {"type": "http.request", "body": b"{}", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    with pytest.raises(ClientDisconnectedError):
        asyncio.run(receive_body({"headers": []}, receive, 10))


def test_messages_after_a_body_that_is_received_again() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def types() -> list[str]:
        again = receive_again(b"{}", receive)
        return [(await again())["type"] for _ in range(3)]

    assert asyncio.run(types()) == ["http.request", "http.disconnect", "http.disconnect"]


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (None, True),
        ("application/json; charset=utf-8", True),
        ("Application/X+JSON", True),
        ("text/json", False),
        ("application/octet-stream", False),
    ],
)
def test_content_types_that_fastapi_reads_as_json(content_type: str, expected: bool) -> None:
    assert is_json(content_type) == expected


def test_request_whose_binary_tensors_are_all_empty(server: Server) -> None:
    """It has no header length."""
    with installed(integration):
        status, _, answer = server.infer(EMPTY_BINARY)
    assert status == 200
    assert json.loads(answer)["outputs"][0]["data"] == []


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("case", INVALID_BINARY)
def test_binary_tensors_without_a_header_length(server: Server, case: str, encoding: str) -> None:
    """MLServer alone reads JSON data of a tensor that also has a size."""
    body = INVALID_BINARY[case]
    sent = gzip.compress(body) if encoding == "gzip" else body
    with installed(integration):
        assert_rejected(server.infer(sent, content_encoding=encoding), body)
    assert server.model.seen is None


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize(
    "row",
    [row for row in MALFORMED if row.kind == "request" and row.header_length is not None],
    ids=lambda row: row.id,
)
def test_malformed_binary_request(server: Server, row: Malformed, encoding: str) -> None:
    length = row.header_length
    header = length.decode("latin-1") if isinstance(length, bytes) else str(length)
    sent = gzip.compress(row.body) if encoding == "gzip" else row.body
    headers = {"content_encoding": encoding, "inference_header_content_length": header}
    with installed(integration):
        assert_rejected(server.infer(sent, **headers), row.body, header.encode())
    assert server.model.seen is None


FORMS: list[Any] = [
    # binary_data_output, the outputs with binary_data, and whether x and t are binary
    (None, {}, [False, False]),
    (True, {}, [True, True]),
    (None, {"x": True}, [True, False]),
    (True, {"x": False}, [False, True]),
    (True, {"x": None}, [True, True]),
    (False, {"t": True}, [False, True]),
]


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize(("default", "listed", "forms"), FORMS)
def test_requested_form_of_outputs(
    server: Server, default: bool | None, listed: Any, forms: list[bool], is_binary: bool
) -> None:
    """WIRE.md 7 applies to JSON and binary requests. Outputs that are not listed are returned."""
    values = {"x": np.array([1.5, 2.5], np.float32), "t": np.array(["a", "b"], object)}
    request = tw.InferRequest(
        [tw.Tensor(name, value, binary=is_binary) for name, value in values.items()],
        [tw.RequestedOutput(name, binary=form) for name, form in listed.items()] or None,
        parameters={} if default is None else {"binary_data_output": default},
    )
    frame = tw.encode_request(request)
    sent = {name.lower().replace("-", "_"): value for name, value in frame.headers.items()}
    content_type = sent.pop("content_type", "application/json")
    with installed(integration):
        status, headers, answer = server.infer(bytes(frame), content_type, **sent)
    assert status == 200
    length = tw.header_length(headers)
    assert (length is not None) == any(forms)
    assert headers.keys() >= set(IDS)
    found = tw.decode_response(answer, length)
    assert [tensor.binary for tensor in found.outputs] == forms
    assert found["x"].as_numpy().ravel().tolist() == [1.5, 2.5]
    assert found["t"].as_numpy().ravel().tolist() == [b"a", b"b"]


# --- server metadata ---


@pytest.mark.parametrize("extensions", [[], ["a"], ["binary_tensor_data", "a"]], ids=str)
def test_extension_is_announced_once(
    server: Server, extensions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.plane._settings, "extensions", extensions)
    with installed(integration):
        found = asyncio.run(server.plane.metadata()).extensions
    assert sorted(found) == sorted({*extensions, "binary_tensor_data"})


@pytest.mark.parametrize("dtype", ["i4", "f2", "f4", "f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_are_written_in_row_major_order(dtype: str, order: Any) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype, order=order)
    assert flat_numbers(array).tolist() == [0, 1, 1, 1, 0, 1]
