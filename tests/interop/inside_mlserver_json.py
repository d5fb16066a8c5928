"""JSON requests to MLServer's REST endpoint: same results with and without the integration.

`test_mlserver_integration.py` runs this file in the environment of MLServer.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mlserver import ModelSettings, Settings
from mlserver.codecs import NumpyCodec, PandasCodec, StringCodec
from mlserver.handlers import DataPlane
from mlserver.rest.app import create_app
from mlserver.types import InferenceResponse, Parameters, ResponseOutput, TensorData

import tensorwire as tw
from interop.json_requests import (
    CONTENT_TYPES,
    LEFT_TO_SERVER,
    ODD_FLOATS,
    READ_AS_ARRAYS,
    Answer,
    array_properties,
    assert_same_answer,
    data_text,
    installed,
    message,
    outcome,
    post,
)
from interop.json_requests import entry as json_entry
from tensorwire.integrations import mlserver as integration
from tensorwire.integrations.json_data import flat_numbers
from tensorwire.integrations.mlserver import server as integration_server
from tensorwire.integrations.mlserver.convert import (
    SHORT_BODY_NBYTES,
    ArrayData,
    array_of,
    read_json_request,
)

pytestmark = pytest.mark.usefixtures("no_logging")

PATH = "/v2/models/recorder/infer"
IDS = ("ce-id", "ce-requestid")
# Cases of READ_AS_ARRAYS that MLServer reads differently or rejects.
READ_DIFFERENTLY = {"NaN and infinities", "parameters"}
# Cases of LEFT_TO_SERVER that MLServer accepts; tensorwire then reads them as arrays.
ACCEPTED = {"nested parameters", "null parameter"}
# Cases of the binary extension, which MLServer alone does not support.
BINARY = {"binary output", "binary outputs", "binary data"}


class Recorder:
    """A model and its registry. It records its request and returns a given answer."""

    ready, settings = True, ModelSettings(name="recorder", implementation="mlserver.MLModel")

    def __init__(self) -> None:
        self.seen: Any = None
        self.lazy: list[bool] = []
        self.answer: Any = echo
        self.payload: Any = None

    async def get_model(self, *_: Any) -> Recorder:
        return self

    async def predict(self, payload: Any) -> Any:
        self.payload = payload
        self.lazy = [array_of(tensor.data) is not None for tensor in payload.inputs]
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
    """Return the parameters of an input or output. tensorwire does not distinguish {} and None."""
    return (payload.parameters and payload.parameters.model_dump()) or None


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

    def __init__(self) -> None:
        self.model = Recorder()
        settings = Settings(debug=False, gzip_enabled=False, metrics_endpoint=None)
        self.plane = DataPlane(settings, self.model)
        self.app = create_app(settings, self.plane, None)

    def infer(
        self, body: bytes, content_type: str | None = "application/json", **more: str
    ) -> Answer:
        self.model.seen, self.model.lazy = None, []
        return post(self.app, PATH, body, content_type, **more)


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


def both(server: Server, body: bytes, *of_type: str | None, **more: str) -> None:
    """Check that the answers with and without the integration are equal.

    With the integration, the request is first read as one that is too short for arrays, and then as
    a long one.
    """
    plain = server.infer(body, *of_type, **more)
    seen = server.model.seen
    for short_nbytes in (1 << 30, 0):
        with installed(integration), threshold(short_nbytes):
            ours = server.infer(body, *of_type, **more)
        assert server.model.seen == seen
        assert_same_answer(with_id(plain), with_id(ours))
        assert not (short_nbytes and any(server.model.lazy))


@contextmanager
def threshold(short_nbytes: int) -> Iterator[None]:
    """Read bodies into arrays if they are longer, also for models that have used lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integration_server, "SHORT_JSON_NBYTES", short_nbytes)
        patch.setattr(integration_server, "requests_as_lists", {})
        yield


@pytest.mark.parametrize("case", sorted(READ_AS_ARRAYS.keys() - BINARY))
def test_bodies_read_as_arrays_give_the_same_request(server: Server, case: str) -> None:
    both(server, READ_AS_ARRAYS[case])
    n_inputs = READ_AS_ARRAYS[case].count(b'"datatype"')
    if case not in READ_DIFFERENTLY and server.model.seen is not None:
        assert server.model.lazy == [True] * n_inputs


@pytest.mark.parametrize("case", sorted(LEFT_TO_SERVER.keys() - BINARY))
def test_bodies_left_to_mlserver_give_the_same_request(server: Server, case: str) -> None:
    both(server, LEFT_TO_SERVER[case])
    assert any(server.model.lazy) == (case in ACCEPTED)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "null"])
def test_long_body_with_a_number_that_is_not_finite(server: Server, number: str) -> None:
    """MLServer accepts only null."""
    n = SHORT_BODY_NBYTES // 4
    both(server, data_text(f"[{'1.5,' * n}{number}]", shape=f"[{n + 1}]"))
    assert (server.model.seen is not None) == (number == "null")


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
    assert server.model.lazy == ([True] if case == "flat" else [])
    both(server, body[:-9], "application/json", content_encoding="gzip")


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
def test_responses_are_equal(server: Server, case: str) -> None:
    """JSON values, headers and errors are equal."""
    server.model.answer = RESPONSES[case]()
    try:
        both(server, message(json_entry([1.5, 2.5], "FP64")))
    finally:
        server.model.answer = echo


def test_request_and_response_need_no_lists(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body is read into the array, and the text is written from the array."""
    monkeypatch.setattr("tensorwire.integrations.mlserver.convert.flat_list", None)
    monkeypatch.setattr(server.model, "predict", None)

    async def predict(payload: Any) -> Any:
        return echo(payload)

    monkeypatch.setattr(server.model, "predict", predict)
    with installed(integration), threshold(0):
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
    with installed(integration), threshold(0):
        assert_same_answer(with_id(plain), with_id(server.infer(body)))


def array_of_input(payload: Any) -> Any:
    NumpyCodec.decode_input(payload.inputs[0])
    return echo(payload)


def list_of_input(payload: Any) -> Any:
    return list(payload.inputs[0].data) and echo(payload)


def list_of_short_input(payload: Any) -> Any:
    return list(payload.inputs[1].data) and echo(payload)


@pytest.mark.parametrize(
    ("use", "is_read_as_list"),
    [(array_of_input, False), (list_of_input, True), (list_of_short_input, False)],
)
def test_models_that_use_lists_get_lists(
    server: Server, monkeypatch: pytest.MonkeyPatch, use: Any, is_read_as_list: bool
) -> None:
    """The lists of an input that is read as an array would need another reader pass."""
    seen = []

    async def predict(payload: Any) -> Any:
        seen.append(array_of(payload.inputs[0].data) is not None)
        return use(payload)

    monkeypatch.setattr(server.model, "predict", predict)
    monkeypatch.setattr(integration_server, "N_AS_LISTS", 2)
    body = message(json_entry([1.5, 2.5, 3.5]), json_entry([1.5], name="y"))
    with installed(integration), threshold(0):
        for _ in range(5):
            assert server.infer(body)[0] == 200
    assert seen == [True, not is_read_as_list, not is_read_as_list, True, not is_read_as_list]


def test_client_that_disconnects_within_a_body() -> None:
    messages = [
        {"type": "http.request", "body": b"{}", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    assert asyncio.run(integration_server.receive_body(receive)) is None


def test_messages_after_a_body_that_is_received_again() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def types() -> list[str]:
        again = integration_server.receive_again(b"{}", receive)
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
    assert integration_server.is_json(content_type) == expected


def test_request_whose_binary_tensors_are_all_empty(server: Server) -> None:
    """It has no header length."""
    with installed(integration):
        status, _, answer = server.infer(LEFT_TO_SERVER["binary data"])
    assert status == 200
    assert json.loads(answer)["outputs"][0]["data"] == []


def test_lazy_data_can_be_pickled_and_copied(server: Server) -> None:
    """MLServer pickles the data for its workers."""
    body = message(json_entry([[1, 2.5], [3, 4]], shape=[2, 2]))
    with installed(integration):
        found = read_json_request(body)
        assert found is not None
        data = found.inputs[0].data
        for copied in [
            data,
            copy.copy(data),
            copy.deepcopy(data),
            pickle.loads(pickle.dumps(data)),
        ]:
            assert isinstance(copied, ArrayData)
            assert array_of(copied) is not None
            assert copy.copy(copied).root == [[1, 2.5], [3, 4]]
            tensor = found.inputs[0]
            tensor.data = copied
            first = NumpyCodec.decode_input(tensor)
            first[:] = 0
            assert NumpyCodec.decode_input(tensor).tolist() == [[1, 2.5], [3, 4]]
            assert len(copied) == 2  # builds the list


@pytest.mark.parametrize(
    ("default", "listed", "is_binary"),
    [
        (True, None, True),
        (False, None, False),
        (True, True, True),
        (True, False, False),
        (False, True, True),
    ],
)
def test_binary_outputs_of_a_json_request(
    server: Server, default: bool, listed: bool | None, is_binary: bool
) -> None:
    more: dict[str, Any] = {"parameters": {"binary_data_output": default}}
    if listed is not None:
        more["outputs"] = [{"name": "x", "parameters": {"binary_data": listed}}]
    with installed(integration):
        status, headers, answer = server.infer(message(json_entry([1.5, 2.5]), **more))
    assert status == 200
    length = tw.header_length(headers)
    assert (length is not None) == is_binary
    assert headers.keys() >= set(IDS)
    found = tw.decode_response(answer, length)
    assert found["x"].as_numpy().ravel().tolist() == [1.5, 2.5]


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
