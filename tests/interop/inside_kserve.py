"""KServe: its servers, clients and messages with and without the integration.

`test_programs.py` runs this file in the environment of KServe. The tests of `rest_servers.py`,
which MLServer has as well, run here, too.
"""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import grpc
import ml_dtypes
import numpy as np
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model, ModelRepository
from kserve.errors import InferenceError, InvalidInput
from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig
from kserve.protocol import infer_type
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc
from kserve.protocol.grpc.interceptors import ExceptionToStatusInterceptor
from kserve.protocol.grpc.servicer import InferenceServicer
from kserve.protocol.infer_type import RequestedOutput
from kserve.protocol.rest.multiprocess.server import RESTServerProcess
from kserve.protocol.rest.server import RESTServer
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from kserve.utils import numpy_codec, utils
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse

import tensorwire as tw
from interop import grpc_calls
from interop import rest_servers as rest
from interop.recorded_sources import check_calls_of_wrapper, installed, wrappable_functions
from interop.rest_servers import FLAT, PATH, READ_AS_ARRAYS, Answer, both, message, outcome, post
from interop.samples import JSON_DATATYPES, json_sample
from support.wrappers import Proxy, functools_wrapper, two_wrappers, wrapped
from tensorwire.integrations import kserve as integration
from tensorwire.integrations.kserve.convert import ReceivedTensor, read_request, write_response

pytestmark = pytest.mark.usefixtures("no_logging")

HERE = Path(__file__).parent


# --- messages -------------------------------------------------------------------------------------


def wire(*inputs: dict[str, Any], tail: bytes = b"", **members: Any) -> tuple[bytes, int]:
    """Return a body and the length of its JSON."""
    text = json.dumps({"id": "1", "inputs": inputs, **members}).encode()
    return text + tail, len(text)


def entry(name: str, shape: list[int], datatype: str, nbytes: int, **more: Any) -> dict[str, Any]:
    parameters = {"binary_data_size": nbytes, **more}
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": parameters}


def received(body: bytes, json_length: int | None) -> Any:
    """Return the request that the route reads."""
    buffer = tw.BodyBuffer(len(body), json_length)
    buffer.write(body)
    return read_request(buffer, json_length, "m")[1]


def tensor_of(array: Any, name: str = "x", kind: type = InferInput, **options: Any) -> Any:
    """Return an input or output of KServe with the data of an array."""
    datatype = options.pop("datatype", None) or numpy_codec.from_np_dtype(array.dtype)
    tensor = kind(name, list(array.shape), datatype, **options.pop("members", {}))
    tensor.set_data_from_numpy(array, **options)
    return tensor


X = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE = wire(entry("x", [2, 3], "FP32", 24), tail=X.tobytes())
WORDS = b"\x05\0\0\0a cat" + b"\3\0\0\0\xe2\x82\xac" + b"\0\0\0\0"
TEXT = wire(entry("t", [3], "BYTES", len(WORDS)), tail=WORDS)
IMAGE = b"\2\0\0\0\xff\xd8" + b"\1\0\0\0a"
NO_TEXT = wire(entry("t", [2], "BYTES", len(IMAGE)), tail=IMAGE)
BINARY = tw.InferRequest({"x": np.zeros(1)}, parameters={"binary_data_output": True})
AS_JSON = tw.InferRequest({"x": np.zeros(1)})


# --- KServe's REST application --------------------------------------------------------------------


class Recorder(Model):  # type: ignore[misc]
    """A model that records its request and returns a given answer."""

    def __init__(self) -> None:
        super().__init__("recorder")
        self.ready = True
        self.seen: Any = None
        self.answer: Any = answer_of

    def predict(self, payload: Any, headers: Any = None) -> Any:
        kept = {k: v for k, v in headers.items() if k not in ("request-id", "x-request-id")}
        self.seen = described(payload), kept
        return self.answer(payload)


def described(payload: Any) -> Any:
    """Return everything that a model can see of a request: arrays, then lists, then arrays."""

    def to_rest() -> str:
        return json.dumps(payload.to_rest(), sort_keys=True, default=repr)

    arrays = [rest.array_properties(tensor.as_numpy) for tensor in payload.inputs]
    lists = [
        (t.name, t.shape, t.datatype, t.parameters or {}, repr(t.data), t._raw_data)
        for t in payload.inputs
    ]
    return (
        arrays,
        lists,
        [rest.array_properties(tensor.as_numpy) for tensor in payload.inputs],
        (payload.id, payload.model_name, payload.model_version),
        payload.parameters or None,  # tensorwire does not distinguish {} and None
        payload.request_outputs and [(o.name, o.parameters or {}) for o in payload.request_outputs],
        payload.use_binary_outputs,
        payload.from_grpc,
        payload.id and (outcome(to_rest), outcome(lambda: repr(payload.to_grpc()))),
        outcome(lambda: repr(payload.as_dataframe())),
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


ENDPOINT, TYPES = "kserve.protocol.rest.v2_endpoints", "kserve.protocol.infer_type"
ROUTE = {"protocol.rest.server.RESTServer._register_endpoints"}
GRPC = {"protocol.grpc.grpc_predict_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"}


class Server:
    """KServe's REST application with one model, called without a network.

    There is a second application, which is registered while the integration is installed. It gets
    the requests that are sent while the integration is installed.
    """

    integration = integration
    encodings = ("",)
    changes = (
        (ROUTE, (ENDPOINT, "if isinstance(response, bytes)", "if type(response) is bytes")),
        (ROUTE, (TYPES, "get_output_by_name(self, name: str)", "get_output_by_name(self, name)")),
        (GRPC, (TYPES, "use_binary_outputs(self) -> bool", "use_binary_outputs(self)")),
        (ROUTE, ("starlette.routing", "return Match.PARTIAL,", "return Match.NONE,")),
    )
    servicer = InferenceServicer

    def __init__(self, plane: type[DataPlane] = DataPlane) -> None:
        self.model, registry = Recorder(), ModelRepository()
        registry.update(self.model)
        self.plane = plane(registry)
        self.plain = application(self.plane)
        with installed(integration):
            self.app = application(self.plane)

    def another(self) -> Server:
        return Server()

    def infer(self, body: bytes, *content_type: str | None, path: str = PATH, **more: Any) -> Any:
        self.model.seen = None
        app = self.app if integration.is_installed() else self.plain
        return post(app, path, body, *content_type, **more)

    def ask(self) -> Any:
        return ask_plane(self.plane, GRPC_REQUEST)

    def normalised(self, answer: Answer) -> Answer:
        return answer


def binary(length: int) -> dict[str, Any]:
    """Return the options of `infer` for a body with binary data."""
    given = {"inference_header_content_length": str(length)}
    return {"content_type": rest.BINARY_TYPE, **given}


@pytest.fixture(scope="module")
def shared_server() -> Server:
    return Server()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    yield shared_server
    shared_server.model.__dict__.pop("predict", None)
    shared_server.model.answer, shared_server.model.ready = answer_of, True


def is_lazy(server: Server, app: Any = None, body: bytes = FLAT, *content_type: str | None) -> bool:
    """Return whether the model gets tensors that have no lists yet."""
    kinds: list[bool] = []

    def predict(payload: Any, headers: Any = None) -> Any:
        kinds.extend(
            isinstance(t, ReceivedTensor) and t._tensor is not None for t in payload.inputs
        )
        return answer_of(payload)

    server.model.predict = predict  # type: ignore[method-assign]
    try:
        post(app or server.app, PATH, body, *content_type)
    finally:
        del server.model.predict
    return bool(kinds) and all(kinds)


class TestRest(rest.RestTests):
    pass


# --- requests -------------------------------------------------------------------------------------

BODIES = {
    **{case: (body, True) for case, body in READ_AS_ARRAYS.items()},
    **{case: (body, False) for case, body in rest.LEFT_TO_SERVER.items()},
}


@pytest.mark.parametrize("case", BODIES)
def test_json_bodies_give_the_same_request(server: Server, case: str) -> None:
    body, is_read = BODIES[case]
    both(server, body)
    assert server.model.seen is not None or not is_read
    with installed(integration):
        assert is_lazy(server, body=body) == is_read


NUMBERS = {name: json_sample(name) for name in ("FP16", *JSON_DATATYPES) if name != "BYTES"}
INT8 = entry("x", [1], "INT8", 1)
BINARY_BODIES: dict[str, tuple[bytes, int]] = {
    **{
        name: wire(entry("x", list(array.shape), name, array.nbytes), tail=array.tobytes())
        for name, array in NUMBERS.items()
    },
    "BYTES": TEXT,
    "2-D": ONE,
    "scalar": wire(entry("x", [], "INT32", 4), tail=b"\1\0\0\0"),
    "empty": wire(entry("x", [0, 3], "FP32", 0)),
    "empty BYTES": wire(entry("t", [0], "BYTES", 0)),
    "JSON": wire({"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]}),
    "JSON and binary": wire(
        {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]},
        entry("x", [2], "UINT16", 4),
        {"name": "y", "shape": [1], "datatype": "INT64", "data": [5]},
        tail=b"\1\0\2\0",
    ),
    "null data": wire(INT8 | {"data": None}, tail=b"\7"),
    "misaligned": wire(INT8 | {"name": "a"}, entry("x", [6], "FP32", 24), tail=b"\1" + X.tobytes()),
    "outputs": wire(INT8, tail=b"\7", outputs=[{"name": "x", "parameters": {"binary_data": True}}]),
    **{  # KServe validates the parameters only of JSON
        f"parameter {value}": wire(
            entry("x", [1], "INT8", 1, p=value),
            tail=b"\7",
            parameters={"p": value},
            outputs=[{"name": "x", "parameters": {"p": value, "binary_data": True}}],
        )
        for value in ("a", True, None, [1, "a"], {"b": [None]})
    },
}


@pytest.mark.parametrize("case", BINARY_BODIES)
def test_binary_bodies_give_the_same_request(server: Server, case: str) -> None:
    body, length = BINARY_BODIES[case]
    both(server, body, **binary(length))
    assert server.model.seen is not None


@pytest.mark.parametrize("content_type", [*rest.CONTENT_TYPES, rest.BINARY_TYPE], ids=str)
def test_content_types(server: Server, content_type: str | None) -> None:
    """FastAPI decides which types are JSON. Without the integration, others lack a header length.

    tensorwire reads them as JSON, like Triton. tritonclient sends them.
    """
    plain = server.infer(FLAT, content_type)
    seen = server.model.seen
    with installed(integration):
        ours = server.infer(FLAT, content_type)
        if plain[0] == 200:
            assert server.model.seen == seen
        if b"header is missing" not in plain[2]:
            rest.assert_same_answer(plain, ours)
        assert is_lazy(server, None, FLAT, content_type) == (ours[0] == 200)


def test_binary_requests_have_the_default_limits(server: Server) -> None:
    """JSON has no limit besides its size, because KServe itself would read it."""
    tensors = [rest.entry([1], name=f"x{i}") for i in range(tw.Limits().max_tensors + 1)]
    body = message(*tensors)
    with installed(integration):
        assert server.infer(body, **binary(len(body)))[0] == 400
        assert server.model.seen is None
        assert is_lazy(server, body=body)


def test_shared_memory_is_rejected(server: Server) -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32"}
    body, length = wire({**tensor, "parameters": {"shared_memory_region": "r"}})
    with installed(integration):
        status, _, content = server.infer(body, **binary(length))
    assert status == 400
    assert json.loads(content)["error"].startswith("tensor 'x' is in shared memory")


FAILURES: list[Exception] = [
    *(InvalidInput("bad"), InferenceError("broken"), NotImplementedError("later")),
    *(ValueError("other"), HTTPException(418, "tea")),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_exceptions_of_a_model_reach_the_handlers_of_kserve(
    server: Server, error: Exception
) -> None:
    def fail(payload: Any) -> Any:
        raise error

    server.model.answer = fail
    assert both(server, FLAT)[0] >= 400


@pytest.mark.parametrize(("model", "status"), [("recorder", 503), ("unknown", 404)])
def test_models_that_are_not_ready_or_not_known(server: Server, model: str, status: int) -> None:
    """Also if the request is malformed."""
    path = PATH.replace("recorder", model)
    server.model.ready = False
    assert both(server, FLAT, path=path)[0] == status
    assert both(server, ONE[0][:-1], path=path, **binary(ONE[1]))[0] == status


JUST_ABOVE_HALF = "1.00000005960464477539062500001"  # of the way from 1 to the next FP32 number
DIFFERENCES: dict[str, tuple[bytes, Any, Any]] = {  # the body, and the array without and with
    "rounded once": (rest.data_text(f"[{JUST_ABOVE_HALF}, 1]"), [1, 1], [1.0000001192092896, 1]),
    "a negative zero": (rest.data_text("[-0, -0.0]"), "[0.0, -0.0]", "[-0.0, -0.0]"),
    "different depths": (rest.data_text('["a", ["b"]]', "BYTES"), ["a", ["b"]], ["a", "b"]),
    "different lengths": (rest.data_text("[[1], [2, 3]]", shape="[3]"), None, [1, 2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENCES)
def test_documented_differences(server: Server, case: str) -> None:
    """docs/integrations/kserve.md lists them."""
    body, plain, ours = DIFFERENCES[case]
    found: list[Any] = []

    def predict(payload: Any, headers: Any = None) -> Any:
        array = outcome(payload.inputs[0].as_numpy)
        found.append(array.tolist() if isinstance(array, np.ndarray) else None)
        return answer_of(payload)

    server.model.predict = predict  # type: ignore[method-assign]
    for context in (nullcontext(), installed(integration)):
        with context:
            server.infer(body)
    for value, expected in zip(found, (plain, ours), strict=True):
        assert (repr(value) if isinstance(expected, str) else value) == expected


# --- the data of a request ------------------------------------------------------------------------


def test_as_numpy_is_a_writable_view() -> None:
    """Every call returns the same memory."""
    tensor = received(*ONE).inputs[0]
    array = tensor.as_numpy()
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0
    array += 1
    assert tensor.as_numpy().tolist() == (X + 1).tolist()
    assert tensor.data == (X + 1).ravel().tolist()


def test_modified_list_becomes_the_data() -> None:
    tensor = received(*ONE).inputs[0]
    tensor.data[0] = 7
    assert tensor.data == [7, 1, 2, 3, 4, 5]
    assert tensor.as_numpy().tolist() == [[7, 1, 2], [3, 4, 5]]


def test_list_of_json_data_has_what_was_sent() -> None:
    """Numbers and nesting, also if the array was changed."""
    body = b'{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":[[1],[2.5,NaN]]}]}'
    tensor = received(body, None).inputs[0]
    tensor.as_numpy()[:] = 0
    assert repr(tensor.as_numpy().tolist()) == "[1.0, 2.5, nan]"
    assert repr(tensor.data) == "[[1], [2.5, nan]]"


def test_assigned_data_and_shape_replace_those_of_the_body() -> None:
    tensor = received(*ONE).inputs[0]
    tensor.shape = [3, 2]
    assert tensor.as_numpy().shape == (3, 2)
    tensor.data = [1, 2, 3, 4, 5, 6]
    assert tensor.as_numpy().tolist() == [[1, 2], [3, 4], [5, 6]]
    tensor = received(*ONE).inputs[0]
    tensor.set_data_from_numpy(X + 1)
    assert tensor.data is None
    assert tensor.as_numpy().tolist() == (X + 1).tolist()
    assert tensor.parameters == {"binary_data_size": 24}


@pytest.mark.parametrize(
    "sent",
    [ONE, TEXT, NO_TEXT, (READ_AS_ARRAYS["nested"], None)],
    ids=["FP32", "BYTES", "BYTES that are not UTF-8", "JSON"],
)
@pytest.mark.parametrize("is_listed", [False, True])
def test_pickle_copy_and_compare(sent: tuple[bytes, int | None], is_listed: bool) -> None:
    request = received(*sent)
    if is_listed:
        assert request.inputs[0].data
    copies = [copy.copy(request), copy.deepcopy(request)]
    copies += [pickle.loads(pickle.dumps(request, n)) for n in range(2, 6)]
    expected = request.inputs[0].as_numpy().tolist()
    for made in copies:
        assert made.inputs[0].as_numpy().tolist() == expected
        assert made == request
        assert made.inputs[0].data == request.inputs[0].data


def test_pickle_contains_only_the_tensors_own_bytes() -> None:
    tensors = entry("x", [1 << 20], "UINT8", 1 << 20), entry("y", [1], "INT8", 1)
    request = received(*wire(*tensors, tail=bytes((1 << 20) + 1)))
    assert len(pickle.dumps(request.inputs[1])) < 1000


def test_pickle_loads_without_the_integration() -> None:
    script = (
        "import pickle, sys; request = pickle.load(sys.stdin.buffer);"
        "print(request.inputs[0].as_numpy().tolist(), request.inputs[0].data)"
    )
    pickled = pickle.dumps(received(*ONE))
    found = subprocess.check_output([sys.executable, "-c", script], input=pickled)
    assert found == f"{X.tolist()} {X.ravel().tolist()}\n".encode()


# --- responses ------------------------------------------------------------------------------------


def response(*outputs: InferOutput, id: Any = "1", **members: Any) -> Any:
    """Return a model that answers with these outputs, in the form that the request asks for."""
    return lambda payload: InferResponse(
        id, "recorder", list(outputs), use_binary_outputs=payload.use_binary_outputs, **members
    )


def made(array: Any, how: str = "binary", **options: Any) -> InferOutput:
    """Return an output whose data is set in one of four ways."""
    if how in ("binary", "JSON"):
        return tensor_of(array, "y", InferOutput, binary_data=how == "binary", **options)
    datatype = options.get("datatype") or numpy_codec.from_np_dtype(array.dtype)
    data = array if how == "array" else array.tolist()
    return InferOutput("y", list(array.shape), datatype, data, **options.get("members", {}))


def answering(array: Any, how: str = "binary", **options: Any) -> Callable[[], Any]:
    """Return a function that creates a model with one such output."""
    return lambda: response(made(array, how, **options))


def output(shape: Any, datatype: str, data: Any, name: Any = "y") -> InferOutput:
    return InferOutput(name, shape, datatype, data)


class Text(str):
    """A str subclass whose `__str__` differs from its content."""

    __slots__ = ()

    def __str__(self) -> str:
        return "printed"


HOW = ("array", "list", "binary", "JSON")
MIXED = np.array([[b"a", "\u20ac"], [5, None]], object)
RESPONSES: dict[str, Callable[[], Any]] = {
    **{
        f"{name} {how}": answering(array, how)
        for name, array in rest.ARRAYS.items()
        for how in (HOW if array.size else ("array",))
    },
    **{f"BYTES {how}": answering(MIXED, how) for how in HOW},
    "a scalar": answering(np.array(5.5), "array"),
    "masked": lambda: response(made(np.ma.array([1.0, 2.0], mask=[False, True]), "array")),
    "masked BYTES": lambda: response(
        made(np.ma.array(np.array([b"a", b"b"], object), mask=[False, True]), "array")
    ),
    "a list": lambda: response(output([2], "FP64", [1, 2.5])),
    "text": answering(np.array(["a", "\u20ac\n", b"b"], object)),
    "text in JSON": answering(np.array(["a", "\u20ac\n"], object), "JSON"),
    "a subclass of str": answering(np.array([Text("held"), b"a"], object), "array"),
    "mutable bytes": answering(np.array([bytearray(b"a"), [b"b"]], object), "array"),
    "bytes that are not UTF-8": answering(np.array([b"\xff"], object)),
    "S": answering(np.array([b"a", b"bcd"]), datatype="BYTES"),
    "dates": answering(np.array(["2020-01-01"], "M8[D]"), datatype="BYTES"),
    "NaN": answering(np.array([1, np.nan])),
    "parameters": lambda: response(
        made(rest.RANDOM, members={"parameters": {"a": 1, "b": True, "c": "\u20ac", "d": 0.1}}),
        parameters={"p": 1},
    ),
    "parameters of other types": lambda: response(
        made(rest.RANDOM, members={"parameters": {"a": [1], "b": None}})
    ),
    "model version": lambda: response(made(rest.RANDOM), model_version="3"),
    "no outputs": response,
    "no data": lambda: response(InferOutput("y", [1], "FP32")),
    "another datatype": lambda: response(output([2], "FP32", np.zeros(2))),
    "another byte order": lambda: response(output([2], "FP32", np.zeros(2, ">f4"))),
    "another shape": lambda: response(output([3], "FP64", np.zeros(2))),
    "a shape that is a tuple": lambda: response(output((2,), "FP64", np.zeros(2))),
    "numpy's integers": lambda: response(output([np.int64(2)], "FP64", np.zeros(2))),
    "a number for the name": lambda: response(output([2], "FP64", np.zeros(2), name=5)),
    "a lone surrogate": lambda: response(output([2], "FP64", np.zeros(2), name="\ud800")),
    "a number for the id": lambda: response(made(rest.RANDOM), id=5),
    "a dict that KServe rejects": lambda: (
        lambda payload: {"id": 5, "model_name": "m", "outputs": []}
    ),
    "a dict": lambda: lambda payload: {"model_name": "m", "id": "1", "outputs": []},
    "the helper's": lambda: (
        lambda payload: utils.get_predict_response(
            payload, utils.get_predict_input(payload), "recorder"
        )
    ),
}


CASES = [(case, is_binary) for case in RESPONSES for is_binary in (False, True)]
CASES.remove(("numpy's integers", True))  # which KServe alone cannot write beside binary data


@pytest.mark.parametrize(("case", "is_binary"), CASES)
def test_responses_are_equal(server: Server, case: str, is_binary: bool) -> None:
    """JSON values, binary data, headers, and errors by KServe."""

    def answer(payload: Any) -> Any:
        return RESPONSES[case]()(payload)  # new outputs each time

    server.model.answer = answer
    body = message(rest.entry([1.5, 2.5], "FP64"), parameters={"binary_data_output": is_binary})
    plain = server.infer(body)
    with installed(integration):
        ours = server.infer(body)
    if b"UnicodeEncodeError" in plain[2]:  # another library reports it
        assert ours[0] == plain[0] == 500
    else:
        rest.assert_same_answer(plain, ours)


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("how", ["array", "binary", "JSON"])
def test_array_of_text_is_sent_like_objects(server: Server, how: str, is_binary: bool) -> None:
    text = np.array([["a", "\u20ac"]])
    body = message(rest.entry([1.5]), parameters={"binary_data_output": is_binary})
    with installed(integration):
        answers = []
        for array in (text, text.astype(object)):
            server.model.answer = response(made(array, how))
            answers.append(server.infer(body))
        assert tensor_of(text).as_numpy().tolist() == [[b"a", b"\xe2\x82\xac"]]
    assert answers[0][0] == 200
    rest.assert_same_answer(*answers)


class OwnResponse(InferResponse):  # type: ignore[misc]
    """A response that a program writes itself."""

    def to_rest(self) -> Any:
        tree, length = super().to_rest()
        return {**tree, "model_version": "of the program"}, length


def test_response_class_of_the_program(server: Server) -> None:
    server.model.answer = lambda payload: OwnResponse("1", "recorder", [made(rest.RANDOM)])
    assert b"of the program" in both(server, FLAT)[2]


@pytest.mark.parametrize("is_binary", [False, True])
def test_response_headers_of_a_model(server: Server, is_binary: bool) -> None:
    """A transformer passes on those of its predictor, apart from those of the body."""

    def predict(payload: Any, headers: Any, response_headers: Any) -> Any:
        lengths = {"content-length": "7", "content-type": "text/plain"}
        response_headers.update({"X-Of-Predictor": "a", **lengths})
        return answer_of(payload)

    body = message(rest.entry([1.5]), parameters={"binary_data_output": is_binary}, id="1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.model, "predict", predict)
        patch.setattr(server.model, "required_response_headers", True)
        _, headers, _ = both(server, body)
    assert headers["x-of-predictor"] == "a"
    assert ("inference-header-content-length" in headers) == is_binary


BINARY_EVENT = {"ce_id": "1", "ce_source": "s", "ce_specversion": "1.0", "ce_type": "t"}


@pytest.mark.parametrize(
    ("content_type", "headers"),
    [(rest.JSON_TYPE, BINARY_EVENT), ("application/cloudevents+json", {})],
    ids=["binary", "structured"],
)
def test_response_to_a_cloudevent(
    server: Server, content_type: str, headers: dict[str, str]
) -> None:
    """It is a CloudEvent, too. Its id and time differ each time."""
    plain = server.infer(FLAT, content_type, **headers)
    with installed(integration):
        ours = server.infer(FLAT, content_type, **headers)
    assert plain[0] == 200
    assert b"io.kserve.inference.response" in plain[2] or "ce-type" in plain[1]
    changing = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9-]{10}T[0-9:.]+")
    assert changing.sub("", str(ours)) == changing.sub("", str(plain))


# --- a response has the outputs and the format that the request asks for --------------------------

F2 = np.array([1.5, 2.5], np.float32)
Options = dict[str, bool]


def outputs(*names: str) -> list[InferOutput]:
    return [tensor_of(F2, name, InferOutput) for name in names]


def listed(**binary: bool | None) -> list[dict[str, Any]]:
    """Return the entries of requested outputs."""
    return [
        {"name": name} | ({} if flag is None else {"parameters": {"binary_data": flag}})
        for name, flag in binary.items()
    ]


def model_list(**binary: bool | None) -> list[RequestedOutput]:
    return [RequestedOutput(entry["name"], entry.get("parameters")) for entry in listed(**binary)]


def asking(binary_output: bool | None = None, wanted: Any = None, **members: Any) -> bytes:
    """Return a request."""
    tree: dict[str, Any] = {"inputs": [rest.entry(F2.tolist())], **members}
    if binary_output is not None:
        tree["parameters"] = {"binary_data_output": binary_output}
    if wanted is not None:
        tree["outputs"] = wanted
    return json.dumps(tree).encode()


def header_of(answer: Answer) -> Any:
    """Return the JSON of an answer."""
    status, headers, content = answer
    assert status == 200, content
    length = headers.get("inference-header-content-length")
    return json.loads(content[: int(length)] if length else content)


def formats(answer: Answer) -> Options:
    """Return the names of the outputs in their order, and whether each is binary."""
    header, length = header_of(answer), answer[1].get("inference-header-content-length")
    for tensor in tw.decode_response(answer[2], length).outputs:
        assert tensor.as_numpy().tolist() == F2.tolist()
    return {entry["name"]: "data" not in entry for entry in header["outputs"]}


YES: Options = {"y": True, "z": True}
NO: Options = {"y": False, "z": False}
FORMATS: list[tuple[bytes, dict[str, Any], Options]] = [
    # the request, the arguments that the model passes, the outputs and whether they are binary
    (asking(), {}, NO),
    (asking(True), {}, YES),
    (asking(wanted=listed(z=True)), {}, {"z": True}),
    (asking(wanted=listed(z=False, y=True)), {}, {"z": False, "y": True}),
    (asking(True, listed(z=None)), {}, {"z": True}),
    (asking(False, listed(z=None)), {}, {"z": False}),
    (asking(wanted=listed(z=None)), {}, {"z": False}),
    (asking(True, listed(z=None, y=False)), {}, {"z": True, "y": False}),
    (asking(True, []), {}, YES),
    (asking(), {"use_binary_outputs": True}, YES),
    (asking(), {"requested_outputs": model_list(y=True)}, {"y": True}),
    (asking(False), {"use_binary_outputs": True}, NO),
    (asking(True), {"requested_outputs": model_list(y=False)}, {"y": True}),
    (asking(False), {"requested_outputs": model_list(y=True)}, {"y": False}),
    (asking(wanted=listed(z=True)), {"requested_outputs": model_list(y=True)}, {"z": True}),
    (asking(wanted=listed(z=None)), {"use_binary_outputs": True}, {"z": True}),
]


@pytest.mark.parametrize(
    ("request_body", "arguments", "expected"), FORMATS, ids=range(len(FORMATS))
)
def test_response_has_the_format_of_the_request(
    server: Server, request_body: bytes, arguments: dict[str, Any], expected: Options
) -> None:
    server.model.answer = lambda payload: InferResponse("1", "m", outputs("y", "z"), **arguments)
    with installed(integration):
        assert list(formats(server.infer(request_body)).items()) == list(expected.items())


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("binary_output", [False, True])
@pytest.mark.parametrize("given", [None, "", "theirs"])
@pytest.mark.parametrize("sent", [None, "ours"])
def test_ids(
    server: Server, sent: str | None, given: str | None, binary_output: bool, as_dict: bool
) -> None:
    """The model's id, else that of the request, else a new one."""

    def answer(payload: Any) -> Any:
        response = InferResponse(given, "m", outputs("y"))
        return response.to_rest()[0] if as_dict else response

    server.model.answer = answer
    with installed(integration):
        found = server.infer(asking(binary_output, **({} if sent is None else {"id": sent})))
    assert ("inference-header-content-length" in found[1]) == (binary_output and not as_dict)
    id = header_of(found)["id"]
    assert id == (given or sent or str(UUID(id)))


def test_model_returns_one_object_for_all_requests(server: Server) -> None:
    kept = InferResponse("1", "m", outputs("y", "z"))
    server.model.answer = lambda payload: kept
    with installed(integration):
        assert formats(server.infer(asking(True))) == YES
        assert formats(server.infer(asking(wanted=listed(z=True)))) == {"z": True}
        assert formats(server.infer(asking())) == NO
    assert (kept._requested_outputs, kept._use_binary_outputs) == (None, False)


def test_transformer_that_changes_the_request(server: Server) -> None:
    """A transformer asks its predictor for other outputs than its client asked for."""

    def answer(payload: Any) -> InferResponse:
        payload.parameters["binary_data_output"] = False
        payload.request_outputs[0].parameters = {"binary_data": False}
        payload.request_outputs.append(RequestedOutput("y"))
        payload.id = "changed"
        return InferResponse(None, "m", outputs("y", "z"))

    server.model.answer = answer
    with installed(integration):
        found = server.infer(asking(True, listed(z=True), id="7"))
    assert formats(found) == {"z": True}
    assert header_of(found)["id"] == "7"


# --- what KServe alone does not support, and responses that its client reads ----------------------


def test_encoded_data_of_another_shape_is_rejected() -> None:
    for shape in ([2], [4], [2, 2]):
        words = InferOutput("t", shape, "BYTES")
        words._raw_data = WORDS
        with pytest.raises(InferenceError, match="output 't'"):
            write_response(InferResponse("1", "m", [words]), BINARY)


def test_encoded_data_is_sent_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    words = made(np.array([b"a cat", b"\xff", b""], object))
    monkeypatch.setattr(InferOutput, "as_numpy", None)
    content, headers = write_response(InferResponse("1", "m", [words]), BINARY)
    assert content[int(*headers.values()) :] == words._raw_data


def test_empty_tensors_are_sent_as_binary() -> None:
    """KServe alone fails."""
    empty = [output([0], "BYTES", [], name="t"), output([0, 2], "FP32", [])]
    with installed(integration):
        content, headers = write_response(InferResponse("1", "m", empty), BINARY)
    assert headers == {"Inference-Header-Content-Length": str(len(content))}
    found = tw.decode_response(content, len(content))
    assert [(t.shape, t.binary) for t in found.values()] == [((0,), True), ((0, 2), True)]


def test_bytes_that_are_not_utf8(server: Server) -> None:
    assert received(*NO_TEXT).inputs[0].as_numpy().tolist() == [b"\xff\xd8", b"a"]
    assert received(*NO_TEXT).inputs[0].data == [b"\xff\xd8", b"a"]
    with installed(integration):
        assert utils.get_predict_input(received(*NO_TEXT)).tolist() == [b"\xff\xd8", b"a"]
        assert server.infer(NO_TEXT[0], **binary(NO_TEXT[1]))[0] == 200


BF16 = np.array([1.5, -2.0], ml_dtypes.bfloat16)


def test_bf16() -> None:
    body = wire(entry("x", [2], "BF16", 4), tail=BF16.tobytes())
    with installed(integration):
        data = received(*body).inputs[0].data
        assert (data, [type(value) for value in data]) == ([1.5, -2.0], [float, float])
        array = received(*body).inputs[0].as_numpy()
        assert array.dtype == BF16.dtype
        answer = utils.get_predict_response(received(*body), array, "m")
        with pytest.raises(InvalidInput, match="BF16 data via JSON"):
            write_response(answer, AS_JSON)
        for each in (*answer.outputs, output([2], "BF16", BF16)):
            content, _ = write_response(InferResponse("1", "m", [each]), BINARY)
            assert content.endswith(BF16.tobytes())


def test_bf16_over_grpc() -> None:
    with installed(integration):
        sent = InferRequest("m", [tensor_of(BF16)]).to_grpc()
        assert InferRequest.from_grpc(sent).inputs[0].as_numpy().tolist() == [1.5, -2.0]
        answer = InferResponse("1", "m", [output([2], "BF16", [1.5, -2.0])])
        assert answer.to_grpc().raw_output_contents == [BF16.tobytes()]


def test_deserialize_bytes() -> None:
    raw = b"\1\0\0\0a" + b"\3\0\0\0\xe2\x82\xac" + b"\1\0\0\0\xff" + bytes(4)
    with installed(integration):
        elements = infer_type.deserialize_bytes_tensor(raw).tolist()
        assert elements == [b"a", b"\xe2\x82\xac", b"\xff", b""]
        with pytest.raises(InvalidInput, match="element 1"):
            infer_type.deserialize_bytes_tensor(raw[:10])


def with_and_without(function: Callable[[], Any]) -> tuple[Any, Any]:
    """Call a function without and with the integration; return the results or error types."""
    plain = outcome(function)
    with installed(integration):
        return plain, outcome(function)


def serialized(array: Any) -> Any:
    found: Any = infer_type.serialize_byte_tensor(array)
    return found.item() if found.size else found.shape


ELEMENTS: list[Any] = [b"a", "\u20ac", b"", 5, None, np.bytes_(b"b\0"), np.str_("c"), True, 1.5]


@pytest.mark.parametrize("n_elements", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("first", range(len(ELEMENTS)))
def test_few_bytes_elements_are_serialized_identically(first: int, n_elements: int) -> None:
    array = np.empty(n_elements, object)
    array[:] = [ELEMENTS[(first + i) % len(ELEMENTS)] for i in range(n_elements)]
    masked = np.ma.masked_array(array, True)
    surrogate = np.array(["\ud800"], object)
    for view in (array, array[::-1], array.reshape(1, n_elements), masked, surrogate):
        plain, ours = with_and_without(partial(serialized, view))
        assert plain == ours


def test_response_has_the_same_values() -> None:
    """KServe's REST client reads it."""
    members = {"model_name": "m", "id": "1", "parameters": {"p": 1}}
    tensors = [
        entry("x", [2, 3], "FP32", 24),
        {"name": "y", "shape": [1], "datatype": "FP64", "data": [1.5]},
        entry("t", [3], "BYTES", len(WORDS), user=1),
    ]
    header = json.dumps({**members, "outputs": tensors}).encode()
    body = header + X.tobytes() + WORDS
    plain, ours = with_and_without(lambda: InferResponse.from_bytes(body, len(header)))
    wanted = tw.InferRequest({"x": X}, parameters={"binary_data_output": True})
    content, _ = write_response(ours, wanted)  # as in a transformer
    assert content.endswith(X.tobytes() + np.float64(1.5).tobytes() + WORDS)
    assert type(ours.outputs[0]).__name__ == "ReceivedOutput"
    for _ in range(2):  # the second time with lists
        for found, expected in zip(ours.outputs, plain.outputs, strict=True):
            array = found.as_numpy()
            assert array.tolist() == expected.as_numpy().tolist()
            assert array.flags.writeable
        assert [found.data for found in ours.outputs] == [o.data for o in plain.outputs]
    assert (ours.id, ours.model_name, ours.parameters) == ("1", "m", {"p": 1})
    assert ours.to_rest() == plain.to_rest()


def test_response_without_binary_data() -> None:
    """KServe's own function reads it."""
    text = b'{"model_name":"m","outputs":[{"name":"y","shape":[1],"datatype":"INT8","data":[5]}]}'
    plain, ours = with_and_without(lambda: InferResponse.from_bytes(text, len(text)))
    assert plain == ours
    assert type(ours.outputs[0]) is InferOutput


def test_malformed_response() -> None:
    """The error is that of the codec, as one of KServe."""
    body, length = wire(entry("x", [2], "FP32", 8), tail=bytes(7))
    body = body.replace(b"inputs", b"outputs")
    with pytest.raises(tw.DecodeError) as expected:
        tw.decode_response(body, length + 1)
    with installed(integration), pytest.raises(InvalidInput) as caught:
        InferResponse.from_bytes(body, length + 1)
    assert str(caught.value) == str(expected.value)


# --- the gRPC server ------------------------------------------------------------------------------

SENT: dict[str, Any] = {
    "FP32": np.array([[1.5, 3e38, -0.0]], np.float32),
    "FP16": np.array([1.5, 2.5], np.float16),
    "INT64": np.array([-1, 2**62]),
    "BOOL": np.array([True, False]),
    "BYTES": np.array([b"a cat", "ein Hündchen".encode(), b""], object),
}
ARRAYS = SENT | {"BYTES": np.array([b"a", b"", b"\xff\x00"], object), "FP64": np.zeros((2, 0))}


@pytest.fixture(params=["plain", "installed"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with installed(integration) if request.param == "installed" else nullcontext():
        yield request.param


def ask(answer: Callable[[InferRequest], Any], *requests: Any) -> list[Any]:
    """Return the responses of a server with one model. Functions among the requests are called."""
    model = Model("m")
    model.ready = True
    model.predict = lambda payload, headers=None: answer(payload)
    registry = ModelRepository()
    registry.update(model)
    return ask_plane(DataPlane(registry), *requests)


def ask_plane(plane: Any, *requests: Any) -> list[Any]:
    return grpc_calls.ask(
        grpc_predict_v2_pb2_grpc.add_GRPCInferenceServiceServicer_to_server,
        InferenceServicer(plane, SimpleNamespace(load=None, unload=None)),
        grpc_predict_v2_pb2_grpc.GRPCInferenceServiceStub,
        *requests,
        interceptors=[ExceptionToStatusInterceptor()],
    )


def raw_request(**arrays: Any) -> Any:
    inputs = [tensor_of(array, name, datatype=name) for name, array in arrays.items()]
    return InferRequest("m", inputs, "7", parameters={"p": 5, "q": "text"}).to_grpc()


ALL = raw_request(**ARRAYS)
FP32 = raw_request(FP32=ARRAYS["FP32"])
TYPED = InferRequest("m", [InferInput("x", [2], "FP32", [1.5, 2.5])], "8").to_grpc()


def echo(request: InferRequest) -> InferResponse:
    """Return the inputs as arrays, after a check that a program sees the types of KServe."""
    assert isinstance(request, InferRequest)
    assert request.from_grpc
    assert request.parameters["p"].int64_param == 5
    outputs = []
    for tensor in request.inputs:
        output = InferOutput(tensor.name, tensor.shape, tensor.datatype, parameters={"o": 1})
        output.set_data_from_numpy(tensor.as_numpy())
        outputs.append(output)
    return InferResponse("7", "m", outputs, parameters={"done": True})


def test_raw_contents_are_the_same(mode: str) -> None:
    """Also the parameters, the id and the model."""
    for found in ask(echo, ALL, ALL):
        assert (found.id, found.model_name) == ("7", "m")
        assert found.parameters["done"].bool_param
        assert list(found.raw_output_contents) == list(ALL.raw_input_contents)
        for output, (name, array) in zip(found.outputs, ARRAYS.items(), strict=True):
            assert (output.name, output.datatype) == (name, name)
            assert tuple(output.shape) == array.shape
            assert set(output.parameters) == {"o", "binary_data_size"}
            assert not output.HasField("contents")


def test_typed_contents_are_the_same(mode: str) -> None:
    """The response to typed contents has typed contents, and raw ones if FP16 requires them."""

    def answer(payload: InferRequest) -> InferResponse:
        assert payload.inputs[0].data == [1.5, 2.5]
        return InferResponse("1", "m", [output([2], "INT32", [1, 2])])

    [found] = ask(answer, TYPED)
    assert list(found.outputs[0].contents.int_contents) == [1, 2]
    assert not found.raw_output_contents
    half = InferResponse("1", "m", [output([2], "FP16", [1.5, 2.5])])
    [found] = ask(lambda payload: half, TYPED)
    assert list(found.raw_output_contents) == [ARRAYS["FP16"].tobytes()]


def test_generated_responses_and_dicts_are_sent(mode: str) -> None:
    message = pb.ModelInferResponse(model_name="m", id="9", raw_output_contents=[b"1234"])
    message.outputs.add(name="y", datatype="FP32", shape=[1])
    assert ask(lambda payload: message, FP32) == [message]
    contents = pb.InferTensorContents(int_contents=[3])
    entry = {"name": "y", "datatype": "INT32", "shape": [1], "contents": contents}
    tree = {"id": "9", "model_name": "m", "outputs": [entry]}
    [found] = ask(lambda payload: tree, FP32)
    assert list(found.outputs[0].contents.int_contents) == [3]


def test_invalid_requests_are_rejected(mode: str) -> None:
    """The next request is answered."""
    too_few = raw_request(FP32=ARRAYS["FP32"], INT64=ARRAYS["INT64"])
    del too_few.raw_input_contents[1:]
    both = raw_request(FP32=ARRAYS["FP32"])
    both.inputs[0].contents.fp32_contents.append(1)
    *errors, found = ask(echo, too_few, both, ALL)
    texts = "number of inputs", "contents field must not"
    for (code, details), text in zip(errors, texts, strict=True):
        assert code == "INVALID_ARGUMENT"
        assert text in details
    assert len(found.raw_output_contents) == len(ARRAYS)


def test_malformed_raw_contents_are_rejected() -> None:
    """The model does not get them. The next request is answered."""
    wrong: list[tuple[str, bytes, list[int], str]] = [
        ("FP32", bytes(7), [2], "requires 8 bytes, but its binary data has 7"),
        ("FP32", bytes(9), [2], "requires 8 bytes, but its binary data has 9"),
        ("BOOL", b"\2", [1], "element 0"),
        ("BYTES", b"\3\0\0\0ab", [1], "element 0"),
        ("BYTES", bytes(8), [1], "1 element"),
        ("FP32", bytes(8), [-1], "has a negative dimension"),
    ]
    requests = []
    for datatype, raw, shape, _ in wrong:
        request = pb.ModelInferRequest(model_name="m", raw_input_contents=[raw])
        request.inputs.add(name="x", datatype=datatype, shape=shape)
        requests.append(request)
    with installed(integration):
        *errors, found = ask(echo, *requests, ALL)
    for (code, details), (*_, text) in zip(errors, wrong, strict=True):
        assert code == "INVALID_ARGUMENT"
        assert "input 'x'" in details
        assert text in details
    assert len(found.raw_output_contents) == len(ARRAYS)


def test_arrays_are_views_of_the_message() -> None:
    """The memory of a request is that of the received message; of a response, that of the model."""
    kept: list[Any] = []

    def answer(payload: InferRequest) -> InferResponse:
        kept.append(payload.inputs[0].as_numpy())
        assert isinstance(payload.inputs[0]._raw_data, memoryview)
        return InferResponse("1", "m", [output([3], "FP32", np.arange(3, dtype="f4"))])

    with installed(integration):
        [found] = ask(answer, FP32)
    assert np.frombuffer(found.raw_output_contents[0], np.float32).tolist() == [0, 1, 2]
    assert found.outputs[0].parameters["binary_data_size"].int64_param == 12  # as in KServe
    assert kept[0].tolist() == ARRAYS["FP32"].tolist()  # it keeps the message alive


def test_grpc_response_has_the_format_of_the_request() -> None:
    """To raw contents, a list is sent as raw contents. The request's id is used if there is none.

    A response of the model is not changed, because a model may return the same one several times.
    """
    kept = InferResponse("", "m", [output([2], "FP32", [1.5, 2.5])])

    def answer(payload: InferRequest) -> InferResponse:
        payload.id = "changed"
        return kept

    with installed(integration):
        for raw, typed in zip(*[iter(ask(answer, FP32, TYPED, FP32, TYPED))] * 2, strict=True):
            assert raw.id == "7"
            assert list(raw.raw_output_contents) == [F2.tobytes()]
            assert typed.id == "8"
            assert list(typed.outputs[0].contents.fp32_contents) == [1.5, 2.5]
            assert not typed.raw_output_contents
    assert (kept.id, kept.outputs[0].data) == ("", [1.5, 2.5])


def test_uninstalled_grpc_servers_continue() -> None:
    with installed(integration):
        for found in ask(echo, ALL, integration.uninstall, ALL):
            assert list(found.raw_output_contents) == list(ALL.raw_input_contents)


# --- install and uninstall ------------------------------------------------------------------------


def test_worker_processes_install_the_integration() -> None:
    """They get the same arguments, and install it before they do anything else."""
    options: dict[str, Any] = {"untested": "error", "max_body_nbytes": 1000}
    target = Mock(side_effect=integration._PATCH.options)
    with installed(integration, **options):
        process = RESTServerProcess([], target)
    assert process._real_target() == options
    assert integration.is_installed()
    integration.uninstall()


def test_extension_is_announced_once() -> None:
    """Also if the data plane announces it already."""
    plane = DataPlane(ModelRepository())
    with installed(integration):
        for _ in range(2):
            metadata = asyncio.run(V2Endpoints(plane).metadata())
            assert metadata.extensions == ["model_repository_extension", "binary_tensor_data"]
            plane.metadata = lambda found=metadata: found.model_dump()


@pytest.mark.parametrize("page", ["README.md", "docs/integrations/kserve.md"])
def test_example(page: str) -> None:
    """The `py` block that uses KServe. `python` blocks run without KServe."""
    text = (HERE.parents[1] / page).read_text()
    [code] = [c for c in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if "kserve" in c]
    exec(code, {})
    assert integration.is_installed()
    integration.uninstall()


# --- applications: routes, registrations and wrappers of other code -------------------------------

GRPC_REQUEST = InferRequest("recorder", [tensor_of(X)], "1").to_grpc()


def infer(app: Any) -> None:
    """Send a JSON request and a binary one."""
    assert post(app, PATH, FLAT)[0] == 200
    assert post(app, PATH, ONE[0], **binary(ONE[1]))[0] == 200


def workload() -> None:
    """Call everything that the integration replaces or relies on."""
    registry = ModelRepository()
    registry.update(Recorder())
    plane = DataPlane(registry)
    infer(application(plane))
    asyncio.run(V2Endpoints(plane).metadata())
    RESTServerProcess([], print)
    utils.generate_uuid()
    words = np.array([b"a", b"b c"], object)
    request = InferRequest("m", [tensor_of(words, "t")], "1", parameters={"a": 1})
    answer = InferResponse("1", "m", [tensor_of(words, "t", InferOutput)], use_binary_outputs=True)
    found = InferRequest.from_bytes(*request.to_rest(), "m")
    found.use_binary_outputs  # noqa: B018 - a property
    for each in (*found.inputs, *InferResponse.from_bytes(*answer.to_rest()).outputs):
        each.as_numpy()
        each.data  # noqa: B018
    InferRequest.from_grpc(request.to_grpc()).inputs[0].as_numpy()
    InferResponse.from_grpc(answer.to_grpc()).outputs[0].as_numpy()
    answer.get_output_by_name("t")
    InferRequest.from_grpc(TYPED)
    InferResponse("1", "m", [output([2, 3], "FP32", X.ravel().tolist())]).to_grpc()
    ask_plane(plane, GRPC_REQUEST)


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
def test_wrapper_around_the_endpoint_is_called(server: Server, wrap: Any, is_first: bool) -> None:
    """KServe's own route then handles the requests."""
    count = Mock()
    plain = server.infer(FLAT)
    contexts = [wrapped(V2Endpoints, "infer", wrap, count), installed(integration)]
    with ExitStack() as stack:
        for context in contexts if is_first else contexts[::-1]:
            stack.enter_context(context)
        app = application(server.plane)
        rest.assert_same_answer(plain, post(app, PATH, FLAT))
        assert not is_lazy(server, app)
    assert count.call_count == 2


@pytest.mark.parametrize("wrap", [functools_wrapper, Proxy])
@pytest.mark.parametrize("name", ["encode", "decode", "infer"])
@pytest.mark.parametrize("is_running", [True, False])
def test_wrapper_that_is_added_later(
    server: Server, name: str, wrap: Any, is_running: bool
) -> None:
    """It is added after the installation, and after or before the start of the server."""
    count = Mock()
    plain = server.infer(FLAT)
    with installed(integration), wrapped(DataPlane, name, wrap, count):
        app = server.app if is_running else application(server.plane)
        rest.assert_same_answer(plain, post(app, PATH, FLAT))
    assert count.call_count == 1


def test_custom_data_plane_gets_the_validated_request() -> None:
    """A subclass of DataPlane gets the same request. The limit of the size applies to it, too."""

    class Curious(DataPlane):  # type: ignore[misc]
        def decode_inference_request(self, body: Any, headers: Any, model_name: str) -> Any:
            found.append((body.id, body.inputs[0].data, body.model_dump()))
            return super().decode_inference_request(body, headers, model_name)

    found: list[Any] = []
    server = Server(Curious)
    both(server, READ_AS_ARRAYS["nested"])
    assert found[0] == found[1]
    with installed(integration, max_body_nbytes=len(rest.LONG) - 1):
        assert server.infer(rest.LONG)[0] == 413


def test_dependencies_and_limits_of_the_application(server: Server) -> None:
    """KServe's own route then handles the requests."""

    def refuse() -> None:
        raise HTTPException(401)

    with installed(integration):
        app = application(server.plane, dependencies=[Depends(refuse)])
        assert post(app, PATH, FLAT)[0] == 401
        app = application(server.plane, max_body_size=10)
        assert post(app, PATH, FLAT)[0] == 413


async def show(request: Request) -> Any:
    return JSONResponse(await request.json())


def test_routes_of_the_program_come_first() -> None:
    """Those that it has added before KServe's are registered. KServe's first data plane is used."""
    first, second = Server(), Server()
    with installed(integration):
        app = FastAPI()
        app.add_route(PATH, show, methods=["POST"])
        register(app, first.plane)
        assert json.loads(post(app, PATH, FLAT)[2]) == json.loads(FLAT)
        assert first.model.seen is None
        app = FastAPI()
        for each in (first, second):
            register(app, each.plane)
        assert post(app, PATH, FLAT)[0] == 200
    assert first.model.seen is not None


def test_other_methods_and_versions_are_left_to_kserve(server: Server) -> None:
    versioned = PATH.replace("/infer", "/versions/1/infer")
    for path, method in ((PATH, "GET"), (PATH, "OPTIONS"), (versioned, "POST")):
        assert both(server, FLAT, path=path, method=method)[0] >= 400


def test_scope_and_metric_have_the_names_of_the_endpoint(server: Server) -> None:
    """Instrumentation uses the path of the route, and the module and name of the endpoint."""
    seen: list[Any] = []

    async def dispatch(request: Request, call_next: Any) -> Any:
        seen.append(name_metric(request.scope))
        response = await call_next(request)
        seen.append((request.scope["route"].path, request.scope["endpoint"].__qualname__))
        return response

    timing = import_module("timing_asgi.integrations")
    with installed(integration):
        app = application(server.plane)
        name_metric = timing.StarletteScopeToName("kserve.io", app)
        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
        assert post(app, PATH, FLAT)[0] == 200
    path = PATH.replace("recorder", "{model_name}")
    metric = "kserve.io.kserve.protocol.rest.v2_endpoints.infer"
    assert seen == [metric, (path, "V2Endpoints.infer")]


def test_server_that_was_registered_before_the_installation(server: Server) -> None:
    plain = server.infer(FLAT)
    with installed(integration):
        rest.assert_same_answer(plain, post(server.plain, PATH, FLAT))
        assert not is_lazy(server, server.plain)
        infer(server.plain)


def test_server_after_uninstall(server: Server) -> None:
    """It is KServe's own again, and uses the codec after the next installation."""
    for _ in range(2):
        with installed(integration):
            assert is_lazy(server)
        assert not is_lazy(server)
        for body in (FLAT, b"{", b"[1]", b""):
            plain = post(server.plain, PATH, body)
            rest.assert_same_answer(plain, post(server.app, PATH, body))


def test_openapi_page_is_the_same(server: Server) -> None:
    with installed(integration):
        assert server.app.openapi() == server.plain.openapi()
        paths = server.app.openapi()["paths"]
    assert paths["/v2/models/{model_name}/infer"]["post"]["requestBody"]


# --- KServe's clients -----------------------------------------------------------------------------

IN_JSON = ("FP32", "INT64", "BYTES")


def request_of(binary: Any, in_json: Any, **parameters: bool) -> InferRequest:
    inputs = [
        tensor_of(SENT[name], name, datatype=name, binary_data=name in binary)
        for name in (*binary, *in_json)
    ]
    return InferRequest("echo", inputs, parameters=parameters)


def check_echo(response: Any) -> None:
    for output in response.outputs:
        values = [v.encode() if isinstance(v, str) else v for v in output.as_numpy().ravel()]
        assert values == SENT[output.name].ravel().tolist()
        assert tuple(output.shape) == SENT[output.name].shape


def test_clients_and_the_server_of_tensorwire(mode: str) -> None:
    """Binary, JSON and mixed tensors over REST, and raw and typed contents over gRPC."""
    from support.grpc_served_app import served_app  # noqa: PLC0415
    from support.servers import uvicorn_server  # noqa: PLC0415
    from tensorwire.server import create_app  # noqa: PLC0415

    async def call(http: str, address: str) -> None:
        client = InferenceRESTClient(RESTConfig(protocol="v2"))
        for binary, in_json, is_binary in (
            *((SENT, (), True), (IN_JSON, (), False), ((), IN_JSON, True)),
            *(((), IN_JSON, False), (["FP16"], ["BYTES"], True)),
        ):
            request = request_of(binary, in_json, binary_data_output=is_binary)
            response = await client.infer(f"http://{http}", request, model_name="echo")
            assert {o.name for o in response.outputs} == {*binary, *in_json}
            check_echo(response)
        await client.close()
        over_grpc = InferenceGRPCClient(address)
        assert await over_grpc.is_server_live()
        assert await over_grpc.is_server_ready()
        assert await over_grpc.is_model_ready("echo")
        typed = InferRequest("echo", [InferInput("FP32", [1, 3], "FP32", SENT["FP32"][0].tolist())])
        for request in (request_of(SENT, ()), typed):
            check_echo(await over_grpc.infer(request))
        with pytest.raises(grpc.RpcError, match="model 'none' is not known") as caught:
            await over_grpc.infer(InferRequest("none", request.inputs))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await over_grpc.close()

    app = create_app({"echo": lambda request: tw.InferResponse(request.inputs)})
    with uvicorn_server(app) as http, served_app(app) as server:
        asyncio.run(call(http, server.address))
