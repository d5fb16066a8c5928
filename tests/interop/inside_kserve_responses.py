"""Responses of KServe's server have the outputs and the format that the request asks for.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from kserve import InferOutput, InferResponse
from kserve.protocol.infer_type import RequestedOutput

import tensorwire as tw
from interop.inside_kserve_json import PATH, application, plane_with_model
from interop.json_requests import Answer, installed, post
from tensorwire.integrations import kserve as integration

pytestmark = pytest.mark.usefixtures("no_logging")

X = np.array([1.5, 2.5], np.float32)
Options = dict[str, bool]
Infer = Callable[[bytes], Answer]
Serve = Callable[[Any], Infer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A function that takes a model, and returns a function that sends requests to it.

    KServe's REST application has the integration, and is called without a network.
    """

    def start(answer: Any) -> Infer:
        plane, model = plane_with_model()
        model.predict = lambda payload, headers=None: answer(payload)  # type: ignore[method-assign]
        app = application(plane)
        return lambda body: post(app, PATH, body, "application/json")

    with installed(integration):
        yield start


def outputs(*names: str) -> list[InferOutput]:
    found = []
    for name in names:
        output = InferOutput(name, [2], "FP32")
        output.set_data_from_numpy(X)
        found.append(output)
    return found


def answering(*names: str, **arguments: Any) -> Any:
    """Return a model that answers with these outputs, and passes arguments to InferResponse."""
    return lambda payload: InferResponse("1", "m", outputs(*names), **arguments)


def listed(**binary: bool | None) -> list[dict[str, Any]]:
    """Return the entries of requested outputs."""
    return [
        {"name": name} | ({} if flag is None else {"parameters": {"binary_data": flag}})
        for name, flag in binary.items()
    ]


def model_list(**binary: bool | None) -> list[RequestedOutput]:
    return [RequestedOutput(entry["name"], entry.get("parameters")) for entry in listed(**binary)]


def body(binary_output: bool | None = None, wanted: Any = None, **members: Any) -> bytes:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": X.tolist()}
    message = {"inputs": [tensor], **members}
    if binary_output is not None:
        message["parameters"] = {"binary_data_output": binary_output}
    if wanted is not None:
        message["outputs"] = wanted
    return json.dumps(message).encode()


def formats(answer: Answer) -> dict[str, bool]:
    """Return the names of the outputs in their order, and whether each is binary."""
    status, headers, content = answer
    assert status == 200, content
    length = headers.get("inference-header-content-length")
    response = tw.decode_response(content, length)
    header = json.loads(content[: int(length)] if length else content)
    for tensor in response.outputs:
        assert tensor.as_numpy().tolist() == X.tolist()
    return {entry["name"]: "data" not in entry for entry in header["outputs"]}


BINARY: Options = {"y": True, "z": True}
AS_JSON: Options = {"y": False, "z": False}
NO_ARGUMENTS: dict[str, Any] = {}
FORMATS: dict[str, tuple[bytes, dict[str, Any], Options]] = {
    # the request, the arguments that the model passes, the outputs and whether they are binary
    "nothing": (body(), NO_ARGUMENTS, AS_JSON),
    "binary": (body(True), NO_ARGUMENTS, BINARY),
    "listed, binary": (body(wanted=listed(z=True)), NO_ARGUMENTS, {"z": True}),
    "listed, both": (body(wanted=listed(z=False, y=True)), NO_ARGUMENTS, {"z": False, "y": True}),
    "listed, default binary": (body(True, listed(z=None)), NO_ARGUMENTS, {"z": True}),
    "listed, default JSON": (body(False, listed(z=None)), NO_ARGUMENTS, {"z": False}),
    "listed, no default": (body(wanted=listed(z=None)), NO_ARGUMENTS, {"z": False}),
    "listed against the default": (
        body(True, listed(z=None, y=False)), NO_ARGUMENTS, {"z": True, "y": False},
    ),
    "an empty list": (body(True, []), NO_ARGUMENTS, BINARY),
    "the model's flag": (body(), {"use_binary_outputs": True}, BINARY),
    "the model's list": (body(), {"requested_outputs": model_list(y=True)}, {"y": True}),
    "JSON against the model's flag": (body(False), {"use_binary_outputs": True}, AS_JSON),
    "binary against the model's list": (
        body(True), {"requested_outputs": model_list(y=False)}, {"y": True},
    ),
    "JSON against the model's list": (
        body(False), {"requested_outputs": model_list(y=True)}, {"y": False},
    ),
    "a list against the model's list": (
        body(wanted=listed(z=True)), {"requested_outputs": model_list(y=True)}, {"z": True},
    ),
    "a list without flags and the model's flag": (
        body(wanted=listed(z=None)), {"use_binary_outputs": True}, {"z": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMATS)
def test_response_has_the_format_of_the_request(serve: Serve, case: str) -> None:
    request, arguments, expected = FORMATS[case]
    infer = serve(answering("y", "z", **arguments))
    found = formats(infer(request))
    assert list(found.items()) == list(expected.items())


def test_output_that_the_model_does_not_return(serve: Serve) -> None:
    infer = serve(answering("y"))
    status, _, content = infer(body(wanted=listed(other=True)))
    assert status == 400
    assert json.loads(content)["error"] == "Unexpected inference output 'other' for model 'm'"


# --- ids ---


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("binary_output", [False, True])
@pytest.mark.parametrize("given", [None, "", "theirs"])
@pytest.mark.parametrize("sent", [None, "ours"])
def test_ids(
    serve: Serve, sent: str | None, given: str | None, binary_output: bool, as_dict: bool
) -> None:
    """The model's id, else that of the request, else a new one."""

    def answer(payload: Any) -> Any:
        response = InferResponse(given, "m", outputs("y"))
        return response.to_rest()[0] if as_dict else response

    member = {} if sent is None else {"id": sent}
    status, headers, content = serve(answer)(body(binary_output, **member))
    assert status == 200, content
    length = headers.get("inference-header-content-length")
    assert (length is not None) == (binary_output and not as_dict)
    found = json.loads(content[: int(length)] if length else content)["id"]
    if given or sent:
        assert found == (given or sent)
    else:
        assert str(UUID(found)) == found


# --- the arguments of the model stay its own ---


def test_model_returns_one_object_for_all_requests(serve: Serve) -> None:
    shared = InferResponse("1", "m", outputs("y", "z"))
    infer = serve(lambda payload: shared)
    for wanted, expected in (
        (body(True), BINARY),
        (body(wanted=listed(z=True)), {"z": True}),
        (body(), AS_JSON),
    ):
        assert formats(infer(wanted)) == expected
    assert (shared._requested_outputs, shared._use_binary_outputs) == (None, False)


def test_transformer_that_changes_the_request(serve: Serve) -> None:
    """A transformer asks its predictor for other outputs than its client asked for."""

    def answer(payload: Any) -> InferResponse:
        payload.parameters["binary_data_output"] = False
        payload.request_outputs[0].parameters = {"binary_data": False}
        payload.request_outputs.append(RequestedOutput("y"))
        payload.id = "changed"
        return InferResponse(None, "m", outputs("y", "z"))

    answered = serve(answer)(body(True, listed(z=True), id="7"))
    assert formats(answered) == {"z": True}
    length = int(answered[1]["inference-header-content-length"])
    assert json.loads(answered[2][:length])["id"] == "7"
