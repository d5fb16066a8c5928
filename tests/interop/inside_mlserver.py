"""MLServer: its servers, codecs and types with and without the integration.

`test_programs.py` runs this file in the environment of MLServer. The tests of `rest_servers.py`,
which KServe has as well, run here, too.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from mlserver import ModelSettings, Settings, errors, raw, types
from mlserver.batching.requests import BatchedRequests
from mlserver.codecs import NumpyCodec, PandasCodec, StringCodec
from mlserver.codecs.string import decode_str
from mlserver.grpc import converters, dataplane_pb2_grpc
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc.servicers import InferenceServicer
from mlserver.handlers import DataPlane
from mlserver.parallel import worker
from mlserver.rest.app import create_app
from mlserver.rest.endpoints import Endpoints
from mlserver.rest.requests import Request
from mlserver.types import InferenceResponse, Parameters, ResponseOutput, TensorData
from starlette.applications import Starlette
from starlette.routing import Mount

import tensorwire as tw
from interop import grpc_calls
from interop import rest_servers as rest
from interop.recorded_sources import (
    check_calls_of_wrapper,
    installed,
    replaced,
    simulate_next_release,
    wrappable_functions,
)
from interop.rest_servers import (
    FLAT,
    PATH,
    READ_AS_ARRAYS,
    Answer,
    both,
    entry,
    message,
    outcome,
    post,
)
from interop.samples import TEXTS, binary_sample, bits, bytes_array, json_sample
from support.servers import uvicorn_server
from support.wrappers import Proxy, functools_wrapper
from tensorwire._codec.grpc.writer import append_fields
from tensorwire.client import Client, InferenceServerError
from tensorwire.grpc_messages import RAW_INPUT_CONTENTS
from tensorwire.integrations import mlserver as integration
from tensorwire.integrations.mlserver import patches
from tensorwire.integrations.mlserver.convert import (
    ArrayData,
    array_of,
    to_inference_request,
    to_tensor,
)
from tensorwire.integrations.rest import receive_again
from tensorwire.integrations.split import SplitMessage

pytestmark = pytest.mark.usefixtures("no_logging")

IDS = ("ce-id", "ce-requestid")
WITH_AND_WITHOUT = pytest.mark.parametrize("is_installed", [False, True], indirect=True)


@pytest.fixture
def is_installed(request: pytest.FixtureRequest) -> Iterator[bool]:
    is_ours = getattr(request, "param", True)
    with installed(integration) if is_ours else nullcontext():
        yield is_ours


def output(data: Any, datatype: str = "FP64", shape: Any = None, **parameters: Any) -> Any:
    made = ResponseOutput(name="y", datatype=datatype, shape=shape or [2], data=[])
    made.data = data
    if parameters:
        made.parameters = Parameters(**parameters)
    return made


# --- MLServer's REST application ------------------------------------------------------------------


class Recorder:
    """A model and its registry. It records its request and returns a given answer."""

    ready, settings = True, ModelSettings(name="recorder", implementation="mlserver.MLModel")
    inputs: Any = None

    def __init__(self) -> None:
        self.seen: Any = None
        self.answer: Any = echo

    async def get_model(self, *_: Any) -> Recorder:
        return self

    async def metadata(self) -> Any:
        return types.MetadataModelResponse(name="recorder", platform="", inputs=self.inputs)

    async def predict(self, payload: Any) -> Any:
        self.seen = described(payload)
        return self.answer(payload)


def described(payload: Any) -> Any:
    """Return everything that a model can see of a request, through codecs and lists."""
    before = [decoded(tensor) for tensor in payload.inputs]
    lists = [repr(tensor.data.root) for tensor in payload.inputs]
    after = [decoded(tensor) for tensor in payload.inputs]
    parameters = payload.parameters.model_dump()
    headers = {k: v for k, v in parameters.pop("headers", {}).items() if k.lower() not in IDS}
    return (
        before,
        lists,
        after,
        [(len(t.data) if isinstance(t.data.root, list) else 0) for t in payload.inputs],
        [(t.name, t.shape, t.datatype, dumped_parameters(t)) for t in payload.inputs],
        payload.id if payload.id == "7" else None,
        parameters,
        headers,
        payload.outputs and [(o.name, dumped_parameters(o)) for o in payload.outputs],
        repr(outcome(lambda: PandasCodec.decode_request(payload).to_dict())),
        repr([tensor.model_dump(exclude={"parameters"}) for tensor in payload.inputs]),
    )


def dumped_parameters(payload: Any) -> Any:
    return payload.parameters and payload.parameters.model_dump()


def decoded(tensor: Any) -> Any:
    """Return what codecs make of an input or output."""
    return (
        rest.array_properties(lambda: NumpyCodec.decode_input(tensor)),
        outcome(lambda: StringCodec.decode_input(tensor)) if tensor.datatype == "BYTES" else None,
        len(tensor.data) if isinstance(tensor.data, list) else None,
    )


def echo(payload: Any) -> Any:
    outputs = []
    for tensor in payload.inputs:
        codec = StringCodec if tensor.datatype == "BYTES" else NumpyCodec
        outputs.append(codec.encode_output(tensor.name, codec.decode_input(tensor)))
    return InferenceResponse(model_name="recorder", outputs=outputs)


ADD = "add_GRPCInferenceServiceServicer_to_server"
NUMPY, WORKER = {"codecs.numpy.NumpyCodec.encode_output"}, {"parallel.worker.Worker"}
REST = {"rest.app.APIRoute.handle", "handlers.dataplane.DataPlane.metadata"}


class Server:
    """MLServer's REST application with one model, called without a network."""

    integration = integration
    encodings = ("identity", "gzip")
    changes = (
        (REST, ("mlserver.rest.endpoints", "insert_headers(payload", "add_headers(payload")),
        (REST, ("starlette.routing", "await self.app(scope", "await self.other(scope")),
        (NUMPY, ("mlserver.codecs.numpy", "def convert_nan(val)", "def convert_nan(x)")),
        (WORKER, ("mlserver.parallel.worker", "super().__init__()", "super().__init__(1)")),
    )
    servicer = InferenceServicer

    def __init__(self) -> None:
        settings = Settings(debug=False, gzip_enabled=False, metrics_endpoint=None)
        self.model = Recorder()
        self.plane = DataPlane(settings, self.model)
        self.app = create_app(settings, self.plane, None)

    def another(self) -> Server:
        metrics = import_module("prometheus_client").REGISTRY
        for collector in list(metrics._collector_to_names):
            metrics.unregister(collector)  # each server registers its own
        return Server()

    def infer(self, body: bytes, *content_type: str | None, path: str = PATH, **more: Any) -> Any:
        self.model.seen = None
        return post(self.app, path, body, *content_type, **more)

    def ask(self) -> Any:
        return ask(self, GRPC_REQUEST)

    def normalised(self, answer: Answer) -> Answer:
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


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


class TestRest(rest.RestTests):
    pass


BODIES = READ_AS_ARRAYS | rest.LEFT_TO_SERVER
# Cases of the binary extension, which MLServer alone does not support.
BINARY = {"binary output", "binary outputs"}


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
        assert post(outer, f"/a{PATH}", FLAT)[0] == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/docs/dataplane.json", "/v2/health/live", "/nothing"])
def test_other_endpoints(server: Server, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.plane._settings, "extensions", ["binary_tensor_data"])
    assert both(server, b"", path=path, method="GET")[0] == (404 if path == "/nothing" else 200)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_other_methods(server: Server, method: str) -> None:
    both(server, FLAT, method=method)
    assert server.model.seen is None


def test_streams_are_left_to_mlserver(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of an output is built for them."""

    async def predict_stream(payloads: Any) -> Any:
        async for payload in payloads:
            yield echo(payload)

    monkeypatch.setattr(server.model, "predict_stream", predict_stream, raising=False)
    status, headers, _ = both(server, FLAT, path=f"{MODEL}/infer_stream")
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")


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
        assert server.another().infer(FLAT)[0] == 200
        monkeypatch.undo()
    assert seen == [Request]


@pytest.mark.parametrize("content_type", rest.CONTENT_TYPES)
def test_content_types(server: Server, content_type: str | None) -> None:
    both(server, FLAT, content_type)


GZIPPED: dict[str, tuple[bytes, bool]] = {  # and whether the model is called
    "one member": (gzip.compress(FLAT), True),
    "two members": (gzip.compress(FLAT[:20]) + gzip.compress(FLAT[20:]), True),
    "zeros at the end": (gzip.compress(FLAT) + bytes(9), True),
    "other bytes at the end": (gzip.compress(FLAT) + b"more", False),
    "a wrong checksum": (gzip.compress(FLAT)[:-5] + b"12345", False),
    "truncated": (gzip.compress(FLAT)[:-9], False),
    "truncated JSON": (gzip.compress(BODIES["truncated"]), False),
    "not gzip": (FLAT, False),
    "deflate": (zlib.compress(FLAT), False),
    "empty": (b"", False),
}


@pytest.mark.parametrize("case", GZIPPED)
def test_gzip(server: Server, case: str) -> None:
    """MLServer decompresses with gzip.decompress."""
    body, is_valid = GZIPPED[case]
    both(server, body, content_encoding="gzip")
    assert (server.model.seen is not None) == is_valid


@pytest.mark.parametrize("encoding", ["br", "GZIP", "identity", ""])
def test_other_encodings(server: Server, encoding: str) -> None:
    """MLServer ignores them in a JSON request."""
    both(server, FLAT, content_encoding=encoding)
    assert server.model.seen is not None


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

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-encoding", b"identity"), *scope["headers"]]
        await server.app({**scope, "headers": headers}, receive, send)

    with installed(integration, max_body_nbytes=limit):
        tracemalloc.start()
        try:
            status = post(app, PATH, body, content_encoding="gzip", **more)[0]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert status == 413
        assert peak < 4 * limit
        assert server.infer(FLAT)[0] == 200


def test_messages_after_a_body_that_is_received_again() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    again: Any = receive_again(b"{}", receive)
    found = [asyncio.run(again())["type"] for _ in range(3)]
    assert found == ["http.request", "http.disconnect", "http.disconnect"]


def test_no_content_type_for_a_binary_request(server: Server) -> None:
    """The header length may be in the media type, in upper or lower case."""
    frame = tw.encode_request(tw.InferRequest({"x": np.array([1, 2], np.float32)}))
    kind = "application/vnd.sagemaker-triton.binary+json; json-header-size="
    for spelled in (kind, kind.upper()):
        with installed(integration):
            status, _, answer = server.infer(bytes(frame), f"{spelled}{frame.header_length}")
        assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [1, 2])
    with installed(integration):
        status, _, answer = server.infer(bytes(frame), rest.BINARY_TYPE)
    assert status == 400
    assert "Content-Length missing" in json.loads(answer)["error"]


# --- responses ------------------------------------------------------------------------------------


def response(*outputs: Any, **members: Any) -> Callable[[Any], Any]:
    """Return a model with outputs that are made for each request."""
    return lambda payload: InferenceResponse(
        model_name="recorder", outputs=[make() for make in outputs], **copy.deepcopy(members)
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


RANDOM = encoded(rest.RANDOM)
RESPONSES: dict[str, Any] = {
    **{name: response(encoded(array)) for name, array in rest.ARRAYS.items()},
    "NaN and infinity": response(encoded(np.array([1, np.nan, np.inf, -np.inf]))),
    "S": response(encoded(np.array([b"ab", b"c"]))),
    "U": response(encoded(np.array(["ab", "\u20ac\n"]))),
    "texts": response(lambda: StringCodec.encode_output("y", ["a", "\u20ac"])),
    "invalid UTF-8": response(lambda: output(TensorData([b"\xff", b"a"]), "BYTES")),
    "a list": response(lambda: output([1, 2.5])),
    "a list and an array": response(lambda: output([1, None, "a", [2]]), RANDOM),
    "bytes and an array": response(lambda: output([b"ab", b"\xc3\xa9"]), RANDOM),
    "invalid UTF-8 and an array": response(lambda: output([b"\xff"], "BYTES"), RANDOM),
    "a number": response(lambda: output(5)),
    **{
        type(value).__name__: response(lambda value=value: output([value]), RANDOM)
        for value in (
            *(datetime(2020, 1, 2, tzinfo=UTC), Decimal("1.50"), (1, b"a"), {3: "a"}, {"a"}),
            *(types.Datatype.FP32, Text("a"), Point(1, 2), np.float64(0.1), 2**64, object()),
        )
    },
    "parameters": response(
        lambda: output([1.0], content_type="np", a=[1, {"b": None}], c=0.5),
        RANDOM,
        parameters=Parameters(headers={"x-mine": "1"}, b=2),
        model_version="3",
        id="5",
    ),
    "a huge parameter": response(RANDOM, parameters=Parameters(a=2**70)),
    "a parameter that is NaN": response(RANDOM, parameters=Parameters(a=float("nan"))),
    "a parameter without JSON form": response(RANDOM, parameters=Parameters(a=object())),
    "no outputs": response(),
    "no response": lambda payload: None,
    "an error": lambda payload: 1 / 0,
    "the data of an input": lambda payload: InferenceResponse(  # nested, as it was sent
        model_name="recorder", outputs=[output(payload.inputs[0].data, "BYTES", [2, 2])]
    ),
}


@pytest.mark.parametrize("case", RESPONSES)
def test_responses_are_equal(server: Server, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON values, headers and errors are equal."""
    monkeypatch.setattr(server.model, "answer", RESPONSES[case])
    both(server, READ_AS_ARRAYS["BYTES, nested"])


def test_response_needs_no_lists(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is written from the array."""
    monkeypatch.setattr("tensorwire.integrations.mlserver.convert.list_of", None)
    with installed(integration):
        status, _, body = server.infer(FLAT)
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"][:2] == [1.5, -2.25]


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
    with installed(integration):
        status, headers, answer = server.infer(bytes(frame), **sent)
    assert status == 200
    length = tw.header_length(headers)
    assert (length is not None) == any(forms)
    assert headers.keys() >= set(IDS)
    found = tw.decode_response(answer, length)
    assert [tensor.binary for tensor in found.outputs] == forms
    assert found["x"].as_numpy().ravel().tolist() == [1.5, 2.5]
    assert found["t"].as_numpy().ravel().tolist() == [b"a", b"b"]


def test_listed_output_without_a_form(server: Server) -> None:
    """It has the default of the request."""
    parameters = {"binary_data_output": True}
    with installed(integration):
        _, headers, _ = server.infer(
            message(entry([1.5]), parameters=parameters, outputs=[{"name": "x"}])
        )
    assert tw.header_length(headers) is not None


def test_outputs_that_cannot_be_sent_as_json(server: Server, monkeypatch: Any) -> None:
    """The error says what to ask for."""
    monkeypatch.setattr(server.model, "answer", RESPONSES["invalid UTF-8"])
    frame = tw.encode_request(tw.InferRequest({"x": np.zeros(1)}))
    length = {"inference_header_content_length": str(frame.header_length)}
    with installed(integration):
        status, _, answer = server.infer(bytes(frame), rest.BINARY_TYPE, **length)
    assert status == 400
    assert "set the parameter binary_data_output" in json.loads(answer)["error"]


@pytest.mark.parametrize("extensions", [[], ["a"], ["binary_tensor_data", "a"]], ids=str)
def test_extension_is_announced_once(
    server: Server, extensions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.plane._settings, "extensions", extensions)
    with installed(integration):
        found = asyncio.run(server.plane.metadata()).extensions
    assert sorted(found) == sorted({*extensions, "binary_tensor_data"})


# --- NumpyCodec and ArrayData ---------------------------------------------------------------------


SHAPES: list[tuple[int, ...]] = [(4,), (2, 2), (1, 2, 2), (0,), (2, 0), ()]
ENCODED: dict[str, Callable[[], Any]] = {
    **{
        f"{dtype} {shape}": encoded(
            np.arange(np.prod(shape), dtype="i1").astype(dtype).reshape(shape)
        )
        for dtype in rest.NUMBERS
        for shape in SHAPES
    },
    **{
        f"NaN {dtype} {n}": encoded(np.array([1, np.nan, np.inf, -np.inf] * n, dtype))
        for dtype in ("f2", "f4", "f8")
        for n in (1, 1000)
    },
    "many numbers": encoded(np.arange(3000.0)),
    "an unusual name": lambda: NumpyCodec.encode_output(type("Name", (str,), {})("y"), np.ones(1)),
    "U": encoded(np.array(["a", "\xe9"])),
    "S": encoded(np.array([b"a", b"bc"])),
    "empty S": encoded(np.array([b"", b""])),
    "S0": encoded(np.ndarray(2, "S0")),
    "object": encoded(np.array([[b"ab", "c"]], object)),
    "texts": lambda: StringCodec.encode_output("y", ["a", "\xe9"]),
    "many texts": lambda: StringCodec.encode_output("y", ["a", "\xe9"] * 1000),
    "bytes": lambda: StringCodec.encode_output("y", ["", "\u20ac", "a\0"], use_bytes=True),
    "no texts": lambda: StringCodec.encode_output("y", []),
    "input": lambda: NumpyCodec.encode_input("y", np.arange(3)),
}


@pytest.mark.parametrize("case", ENCODED)
def test_encoded_tensors_are_equal_to_those_without_the_integration(case: str) -> None:
    """The integration creates them without validation: all attributes of pydantic are equal."""
    plain = ENCODED[case]()
    with installed(integration):
        ours = ENCODED[case]()
        assert len(ours.data) == len(plain.data)
        assert decoded(ours) == decoded(plain)  # before there is a list
        assert ours == plain
        assert [type(x) for x in ours.data] == [type(x) for x in plain.data]
        assert repr(ours.model_dump()) == repr(plain.model_dump())
        assert ours.model_dump_json() == plain.model_dump_json()
        assert list(ours.__dict__) == list(plain.__dict__)
        for one, other in [(ours, plain), (ours.parameters, plain.parameters)]:
            assert one.model_fields_set == other.model_fields_set
            assert one.model_extra == other.model_extra
            assert one.__pydantic_private__ == other.__pydantic_private__
        assert ours.model_copy(deep=True) == plain


@WITH_AND_WITHOUT
def test_arrays_without_datatype_are_rejected(is_installed: bool) -> None:
    for array in (np.array([1j]), np.array([1], ">i4"), np.array(["2020"], "M8[D]")):
        with pytest.raises(KeyError):
            NumpyCodec.encode_output("y", array)


@WITH_AND_WITHOUT
def test_encoding_copies_the_array(is_installed: bool) -> None:
    array = np.ones(3, np.float32)
    made = NumpyCodec.encode_output("y", array)
    array[:] = 0
    assert NumpyCodec.decode_output(made).ravel().tolist() == [1, 1, 1]


def test_decoded_array_is_a_view_of_the_body(is_installed: bool) -> None:
    body = np.arange(4, dtype=np.float32)
    tensor = output(ArrayData.from_array(body), "FP32", [2, 2])
    assert np.shares_memory(NumpyCodec.decode_output(tensor), body)
    body.flags.writeable = False
    decoded = NumpyCodec.decode_output(tensor)
    assert decoded.flags.writeable
    assert decoded.tolist() == [[0, 1], [2, 3]]
    odd = np.zeros(9, np.uint8)[1:].view(np.float32)
    assert NumpyCodec.decode_output(output(ArrayData.from_array(odd), "FP32", [2])).flags.aligned


def test_modified_list_becomes_the_data(is_installed: bool) -> None:
    made = NumpyCodec.encode_output("y", np.arange(3, dtype=np.int32))
    assert array_of(made.data) is not None
    made.data.root[0] = 7
    assert array_of(made.data) is None
    assert made.data.root == [7, 1, 2]
    assert NumpyCodec.decode_output(made).ravel().tolist() == [7, 1, 2]
    assert raw.pack(made) == np.array([7, 1, 2], np.int32).tobytes()
    made.data.root = [1, 2, 3]
    assert list(made.data) == [1, 2, 3]


def test_bytes_as_a_fixed_width_array(is_installed: bool) -> None:
    words = tw.decode_bytes(tw.encode_bytes([b"ab", b"c"]))
    decoded = NumpyCodec.decode_output(output(ArrayData.from_array(words), "BYTES", [2, 1]))
    assert (decoded.dtype, decoded.tolist()) == (np.dtype("S2"), [[b"ab"], [b"c"]])


@pytest.mark.parametrize("is_listed", [False, True])
def test_pickle_copy_and_compare(is_installed: bool, is_listed: bool) -> None:
    """MLServer pickles the data for its workers. It equals a plain TensorData."""
    for data in (np.array([1, np.nan], np.float32), tw.decode_bytes(tw.encode_bytes([b"a"]))):
        made = ArrayData.from_array(data, nan_as_none=True)
        plain = TensorData(list(ArrayData.from_array(data, nan_as_none=True)))
        assert not is_listed or made.root
        copies = [pickle.loads(pickle.dumps(made, protocol)) for protocol in (2, 4, 5)]
        shallow = copy.copy(made)
        shallow.root[0] = 5
        for copied in [made, copy.copy(made), copy.deepcopy(made), *copies]:
            assert copied == plain
            assert plain == copied
            assert copied.root == plain.root
            assert copied.model_dump() == plain.model_dump()
    assert "ArrayData" in repr(ArrayData.from_array(np.ones(1)))


# --- StringCodec ----------------------------------------------------------------------------------


def test_bytes_that_are_not_utf8_are_rejected(is_installed: bool) -> None:
    words = ArrayData.from_array(tw.decode_bytes(tw.encode_bytes([b"a", b"\xff"])))
    with pytest.raises(
        errors.MLServerError, match=r"tensor 'y': element 1 of the array is not valid UTF-8"
    ) as caught:
        StringCodec.decode_output(output(words, "BYTES", [2]))
    assert caught.value.status_code == 400


# --- raw gRPC contents ----------------------------------------------------------------------------


def raw_message(tensors: list[tuple[str, str, list[int]]], contents: list[bytes]) -> Any:
    made = pb.ModelInferRequest(model_name="m", raw_input_contents=contents)
    for name, datatype, shape in tensors:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    return made


def request_of(tensors: list[tuple[str, str, list[int]]], contents: list[bytes]) -> Any:
    return converters.ModelInferRequestConverter.to_types(raw_message(tensors, contents))


@pytest.mark.parametrize("texts", [[b"hello"], [b"a", b"b c"], [b"x" * 200]])
def test_raw_contents_beside_a_message(is_installed: bool, texts: list[bytes]) -> None:
    """They are views, but what a model gets can be pickled, and the message can be copied."""
    head = raw_message([("x", "BYTES", [len(texts)])], [])
    split = SplitMessage(head, [memoryview(bytes(tw.encode_bytes(texts)))], RAW_INPUT_CONTENTS)
    for sent in (split, copy.copy(split)):
        request = converters.ModelInferRequestConverter.to_types(sent)
        assert list(request.inputs[0].data) == texts
        assert StringCodec.decode_input(request.inputs[0]) == [text.decode() for text in texts]
        assert pickle.loads(pickle.dumps(request)) == request


@WITH_AND_WITHOUT
@pytest.mark.parametrize("dtype", rest.NUMBERS)
def test_raw_numbers(is_installed: bool, dtype: str) -> None:
    array = np.arange(4, dtype=np.int8).astype(dtype).reshape(2, 2)
    made = NumpyCodec.encode_output("y", array)
    response = InferenceResponse(model_name="m", outputs=[made])
    found = converters.ModelInferResponseConverter.from_types(response, use_raw=True)
    assert list(found.raw_output_contents) == [array.tobytes()]
    request = request_of([("x", made.datatype, [2, 2])], list(found.raw_output_contents))
    decoded = NumpyCodec.decode_input(request.inputs[0])
    assert (decoded.dtype, decoded.tolist()) == (array.dtype, array.tolist())
    assert decoded.flags.writeable
    assert request.inputs[0].data.root == array.ravel().tolist()
    assert raw.unpack(request.inputs[0], array.tobytes()) == array.ravel().tolist()


def test_output_is_copied_once_for_raw_contents(is_installed: bool) -> None:
    """The bytes that the codec makes are the raw contents."""
    made = NumpyCodec.encode_output("y", np.arange(6, dtype=np.float32).reshape(2, 3).T)
    base: Any = array_of(made.data).base  # type: ignore[union-attr]
    assert raw.pack(made) is base
    assert np.frombuffer(base, np.float32).tolist() == [0, 3, 1, 4, 2, 5]


def test_arrays_that_are_copied_for_raw_contents(is_installed: bool) -> None:
    numbers = np.arange(100, dtype=np.float32).reshape(10, 10)
    in_columns = np.ndarray((10, 10), np.float32, buffer=numbers.tobytes("F"), order="F")
    part = np.frombuffer(bytes(range(12)), np.float32, offset=4)
    for array in (in_columns, part):
        tensor = output(ArrayData.from_array(array), "FP32", list(array.shape))
        assert raw.pack(tensor) == array.tobytes()


@WITH_AND_WITHOUT
@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        *(("FP32", [1.5, 2]), ("FP64", [1e300, float("inf")]), ("FP16", [1.5, 2.0])),
        *(("INT64", [-(2**63), 1]), ("UINT8", [True, 255]), ("BOOL", [1, 0])),
        *(("BYTES", ["\xe9", b"\xff"]), ("BYTES", [])),
    ],
)
def test_raw_lists(is_installed: bool, datatype: str, values: list[Any]) -> None:
    """A runtime without a codec returns such lists."""
    made = output(TensorData(values), datatype, [len(values)])
    [packed] = raw.extract_raw([made])[1]
    found = raw.unpack(made, packed)
    assert found == [x.encode() if isinstance(x, str) else x for x in values]


@WITH_AND_WITHOUT
@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        *(("FP32", [None]), ("INT8", [128]), ("INT8", [1.0]), ("INT8", [1, 2]), ("INT8", ["a"])),
        ("INT64", np.arange(3)),
    ],
)
def test_invalid_data_has_no_raw_contents(is_installed: bool, datatype: str, data: Any) -> None:
    if isinstance(data, np.ndarray):
        made = NumpyCodec.encode_output("y", data)
        made.shape = [2]
    else:
        made = output(TensorData(data), datatype, [1])
    with pytest.raises(struct.error):
        raw.pack(made)


@pytest.mark.parametrize("values", [[2], ["a"], [None], [0.5]])
def test_binary_output_with_other_values_than_bool_is_rejected(values: list[Any]) -> None:
    """The struct module would convert them to BOOL."""
    with pytest.raises((tw.EncodeError, TypeError)):
        to_tensor(output(TensorData(values), "BOOL", [1]), is_binary=True)


@WITH_AND_WITHOUT
def test_raw_contents_beside_a_tensor_with_contents(is_installed: bool) -> None:
    """Everything else in the request is as MLServer converts it."""
    sent = pb.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"\x07"])
    sent.parameters["a"].int64_param = 1
    for name, values in (("x", [5]), ("y", [])):
        tensor = sent.inputs.add(name=name, datatype="INT8", shape=[1])
        tensor.parameters["content_type"].string_param = "np"
        tensor.contents.int_contents.extend(values)
    sent.outputs.add(name="z").parameters["b"].bool_param = True
    request = converters.ModelInferRequestConverter.to_types(sent)
    members = {"shape": [1], "datatype": "INT8", "parameters": {"content_type": "np"}}
    assert request.model_dump() == {
        "id": "7",
        "parameters": {"a": 1},
        "inputs": [{"name": "x", **members, "data": [5]}, {"name": "y", **members, "data": [7]}],
        "outputs": [{"name": "z", "parameters": {"b": True}}],
    }


@WITH_AND_WITHOUT
@pytest.mark.parametrize("n", [1, 100])
def test_raw_bytes_in_one_element(is_installed: bool, n: int) -> None:
    """MLServer sends S arrays over gRPC as one element."""
    array = np.array([[b"ab", b"cd"], [b"ef", b"gh"]] * n)
    made = NumpyCodec.encode_output("y", array)
    [packed] = raw.extract_raw([made])[1]
    assert packed == (8 * n).to_bytes(4, "little") + array.tobytes()
    [received] = request_of([("x", "BYTES", [2 * n, 2])], [packed]).inputs
    assert NumpyCodec.decode_input(received).tolist() == array.tolist()


@WITH_AND_WITHOUT
@pytest.mark.parametrize("n", [1, 1000])
def test_nan_in_raw_contents(is_installed: bool, n: int) -> None:
    """Without the integration, an output fails with struct.error, because lists contain None."""
    array = np.array([1, np.nan] * n, np.float32)
    [received] = request_of([("x", "FP32", [2 * n])], [array.tobytes()]).inputs
    assert repr(received.data.root) == repr(array.tolist())
    if is_installed:
        assert raw.pack(NumpyCodec.encode_output("y", array)) == array.tobytes()


@pytest.mark.parametrize(
    ("tensors", "contents", "text"),
    [
        ([("x", "FP32", [3])], [b"1234"], "FP32 .3. requires 12 bytes, but its binary data has 4"),
        ([("x", "FP32", [1])], [bytes(200)], "requires 4 bytes, but its binary data has 200"),
        *(
            ([("x", "FP32", shape)], [b"1234" * len(shape) ** 2], "negative dimension")
            for shape in ([-1], [-1, -1], [-2, -2])
        ),
        ([("x", "FP33", [1])], [b"1234"], "FP33"),
        ([("x", "BYTES", [1])], [b"\x05\0\0\0a"], "truncated"),
        ([("x", "BOOL", [1])], [b"\x02"], "must be 0 or 1"),
        ([("x", "INT8", [1]), ("y", "INT8", [1])], [b"1"], "2 tensors .* contents for 1"),
        ([("x", "INT8", [1])], [b"1", b"2"], "1 tensor .* contents for 2"),
    ],
)
def test_invalid_raw_contents_are_rejected(
    is_installed: bool, tensors: list[Any], contents: list[bytes], text: str
) -> None:
    with pytest.raises(errors.MLServerError, match=text) as caught:
        request_of(tensors, contents)
    assert caught.value.status_code == 400


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (tw.Tensor("x", np.zeros(1, np.uint16), datatype="BF16"), "has the datatype BF16, which"),
        (
            tw.decode_request(
                b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":'
                b'{"shared_memory_region":"r","shared_memory_byte_size":4}}]}'
            ).inputs[0],
            "is in shared memory, which MLServer does not support",
        ),
    ],
    ids=["BF16", "shared memory"],
)
def test_inputs_that_mlserver_does_not_support(tensor: tw.Tensor, text: str) -> None:
    with pytest.raises(tw.DecodeError, match=f"input 'x' {text}") as caught:
        to_inference_request(tw.InferRequest([tensor]))
    assert caught.value.status == 400


def test_parameter_that_mlserver_does_not_accept() -> None:
    tensor = tw.Tensor("x", np.zeros(1), parameters={"content_type": 5})
    with pytest.raises(errors.MLServerError, match="content_type of the request"):
        to_inference_request(tw.InferRequest([tensor]))


def test_texts_in_the_json_of_a_binary_request() -> None:
    """The model gets `str`, as from a request that is entirely JSON, and otherwise `bytes`."""
    for is_binary, expected in ((False, ["a", "\xe9"]), (True, [b"a", b"\xc3\xa9"])):
        sent = tw.InferRequest([tw.Tensor("x", ["a", "\xe9"], binary=is_binary)])
        frame = tw.encode_request(sent)
        request = tw.decode_request(bytes(frame), frame.header_length)
        assert to_inference_request(request).inputs[0].data.root == expected


def ask(server: Server, *requests: Any) -> list[Any]:
    return grpc_calls.ask(
        dataplane_pb2_grpc.add_GRPCInferenceServiceServicer_to_server,
        InferenceServicer(server.plane, None),
        dataplane_pb2_grpc.GRPCInferenceServiceStub,
        *requests,
    )


def test_grpc_server(server: Server, is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw contents in both directions. An error has MLServer's status, and the server continues."""
    appended: list[list[bytes]] = []

    def append(head: bytes, number: int, contents: list[bytes]) -> bytes:
        appended.append(contents)
        return append_fields(head, number, contents)

    def increment(payload: Any) -> Any:
        array = NumpyCodec.decode_input(payload.inputs[0])
        array += 1
        return InferenceResponse(model_name="m", outputs=[NumpyCodec.encode_output("y", array)])

    monkeypatch.setattr("tensorwire.integrations.split.append_fields", append)
    monkeypatch.setattr(server.model, "answer", increment)
    sent, tensors = np.array([1, np.nan], np.float32), [("x", "FP32", [2])]
    valid, wrong = (raw_message(tensors, [data]) for data in (sent.tobytes(), b"1234"))
    typed = raw_message(tensors, [])
    typed.inputs[0].contents.fp32_contents.extend([1, 2])
    first, error, second, third = ask(server, valid, wrong, valid, typed)
    for found in (first, second):
        assert found.raw_output_contents[0] == (sent + 1).tobytes()
    assert appended == [[(sent + 1).tobytes()]] * 2
    assert error[0] == "INVALID_ARGUMENT"
    assert "its binary data has 4" in error[1]
    assert list(third.outputs[0].contents.fp32_contents) == [2, 3]
    assert not third.raw_output_contents


F16 = np.array([1.5, 2], np.float16)


@pytest.mark.parametrize(
    "output", [NumpyCodec.encode_output("y", F16), output(TensorData([1.5, 2]), "FP16")]
)
def test_fp16_output_of_a_typed_grpc_request(
    server: Server, is_installed: bool, monkeypatch: pytest.MonkeyPatch, output: Any
) -> None:
    """It has raw contents, as typed contents cannot have FP16. So have the other outputs then."""
    words = StringCodec.encode_output("words", ["a"])
    answer = InferenceResponse(model_name="m", outputs=[output, words])
    monkeypatch.setattr(server.model, "answer", lambda payload: answer)
    typed = raw_message([("x", "FP32", [1])], [])
    typed.inputs[0].contents.fp32_contents.append(1)
    [found] = ask(server, typed)
    assert list(found.raw_output_contents) == [F16.tobytes(), b"\1\0\0\0a"]
    assert not any(each.contents.ByteSize() for each in found.outputs)


# --- install and uninstall ------------------------------------------------------------------------


def test_parallel_worker_installs_the_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the integration was uninstalled before."""
    with installed(integration):
        pass
    options: Any = {"untested": "error", "max_body_nbytes": 1000}
    called: list[Any] = []
    with installed(integration, **options):
        ours: Any = worker.Worker
        monkeypatch.setattr(ours.__base__, "__init__", lambda *arguments: None)
        monkeypatch.setattr(ours.__base__, "run", lambda _: called.append("run"))
        monkeypatch.setattr(patches, "install", lambda **options: called.append(options))
        ours(None, None).run()
    assert called == [options, "run"]


def test_next_release_without_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacements that rely on the function are left out as well."""
    with installed(integration):
        everything = replaced(integration)
    simulate_next_release(monkeypatch)
    monkeypatch.delattr(raw, "inject_raw")
    with installed(integration, untested="allow"):
        left_out = {"raw.inject_raw", f"grpc.dataplane_pb2_grpc.{ADD}"}
        assert replaced(integration) == everything - left_out


# --- wrappers of other code -----------------------------------------------------------------------

NOT_IN_WORKLOAD = {
    "mlserver.codecs.json:decode_from_bytelike_json_to_dict",
    "mlserver.codecs.numpy:convert_nan",
    "mlserver.rest.endpoints:Endpoints.model_metadata",
    "pydantic.root_model:RootModel.__setstate__",
}
GRPC_REQUEST = raw_message([("x", "FP32", [2])], [bytes(8)])


def workload(server: Server) -> None:
    """Call everything that the integration replaces or relies on."""
    server = server.another()
    for case in ("nested", "BYTES", "long"):
        assert server.infer(READ_AS_ARRAYS[case])[0] == 200
    asyncio.run(server.plane.metadata())
    for datatype, values in (("FP32", [1.5, 2.5] * 50), ("BYTES", [b"a", b"b c"] * 50)):
        tensor = types.RequestInput(name="x", shape=[100], datatype=datatype, data=values)
        packed = raw.pack(tensor)
        raw.unpack(tensor, packed)
        empty = types.RequestInput(name="x", shape=[100], datatype=datatype, data=[])
        raw.inject_raw([empty], [packed])
        list(tensor.data)
        tensor.data[0], len(tensor.data)
    decode_str(b"a")
    ask(server, GRPC_REQUEST)


CALLED = [name for name in wrappable_functions(integration) if name not in NOT_IN_WORKLOAD]


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize("name", CALLED)
def test_wrapper_is_called_as_often_as_without_the_integration(
    server: Server, name: str, wrap: Any
) -> None:
    """This holds for each function that the integration replaces or relies on."""
    check_calls_of_wrapper(integration, name, wrap, lambda: workload(server))


# --- clients --------------------------------------------------------------------------------------

F2 = np.array([1, 2], np.float32)
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def address(server: Server, is_installed: bool) -> Iterator[str]:
    with uvicorn_server(server.app) as found:
        yield found


def lists(payload: Any) -> Any:
    """Return the list of every input, as a runtime without codecs does."""
    outputs = [output(list(t.data.root), t.datatype, t.shape) for t in payload.inputs]
    for made, tensor in zip(outputs, payload.inputs, strict=True):
        made.name = tensor.name
    return InferenceResponse(model_name="recorder", outputs=outputs)


@pytest.mark.parametrize("answer", [echo, lists])
def test_client(server: Server, address: str, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Arrays are equal bit for bit. A model may declare the input of raw requests."""

    async def predict(payload: Any) -> Any:  # without the lists, which lose the payloads of NaNs
        return answer(payload)

    monkeypatch.setattr(server.model, "predict", predict)
    sample = binary_sample if answer is echo else json_sample
    with Client(address) as client:
        assert client.server_metadata()["extensions"] == ["binary_tensor_data"]
        for member in types.Datatype:
            sent = bytes_array(TEXTS) if member.value == "BYTES" else sample(member.value)
            found = client.infer("recorder", {"x": sent}, request_compression_algorithm="gzip")
            assert found["x"].binary
            assert bits(found["x"].as_numpy().ravel()) == bits(sent)  # a codec adds a dimension
        declared = types.MetadataTensor(name="x", datatype="FP32", shape=[-1])
        for inputs in (None, [declared] * 2):
            monkeypatch.setattr(server.model, "inputs", inputs)
            with pytest.raises(InferenceServerError, match="no raw_input is declared") as caught:
                client.infer_raw("recorder", F2)
            assert caught.value.status == 400
        monkeypatch.setattr(server.model, "inputs", [declared])
        assert client.infer_raw("recorder", F2)["x"].as_numpy().ravel().tolist() == [1, 2]


def test_tritonclient(address: str) -> None:
    texts = bytes_array(TEXTS)
    with triton.InferenceServerClient(address) as client:
        for are_binary in (True, False):
            inputs = [triton.InferInput("x", [2, 3], "FP32"), triton.InferInput("t", [5], "BYTES")]
            for tensor, array in zip(inputs, [ROWS, texts], strict=True):
                tensor.set_data_from_numpy(array, binary_data=are_binary)
            for outputs in (None, [triton.InferRequestedOutput(name) for name in "xt"]):
                result = client.infer("recorder", inputs, outputs=outputs)
                assert bits(result.as_numpy("x")) == bits(ROWS)
                assert result.as_numpy("t").ravel().tolist() == TEXTS
                assert "data" not in result.get_output("x")


def test_adaptive_batching(is_installed: bool) -> None:
    """MLServer joins the lists of two requests into one for the model."""
    sent = [to_inference_request(tw.InferRequest({"x": np.full((1, 3), i)})) for i in range(2)]
    joined = BatchedRequests(dict(zip("ab", sent, strict=True))).merged_request
    assert NumpyCodec.decode_input(joined.inputs[0]).tolist() == [[0] * 3, [1] * 3]
