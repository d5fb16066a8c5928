"""Requests to a live Triton, and how the tests read its responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tensorwire as tw
from interop.samples import Array
from interop.triton_server import Reply, TritonServer

HEADER_LENGTH = "Inference-Header-Content-Length"


def identity(datatype: str) -> str:
    """Return the name of the model that echoes one tensor of this datatype."""
    return f"identity_{datatype.lower()}"


def send(triton: TritonServer, model: str, frame: tw.Frame) -> Reply:
    """Send a frame with its headers and buffers."""
    return triton.post(f"/v2/models/{model}/infer", frame.buffers, frame.headers)


def header(inputs: Sequence[dict[str, Any]], **members: Any) -> bytes:
    """Return the JSON of a request."""
    return json.dumps({"inputs": inputs, **members}).encode()


def entry(datatype: str, shape: Sequence[int], nbytes: int, name: str = "INPUT0") -> dict[str, Any]:
    """Return a binary input of a request."""
    parameters = {"binary_data_size": nbytes}
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


def request_of(
    array: Array, is_binary: bool = True, is_output_binary: bool = True
) -> tw.InferRequest:
    """Return a request for one tensor, in the given forms."""
    tensor = tw.Tensor("INPUT0", array, binary=is_binary)
    return tw.InferRequest([tensor], [tw.RequestedOutput("OUTPUT0", binary=is_output_binary)])


def answer(reply: Reply) -> tw.InferResponse:
    """Decode the response, of any status."""
    response: tw.InferResponse = tw.decode_response(reply.body, tw.header_length(reply.headers))
    return response


def output(reply: Reply) -> tw.Tensor:
    """Return the only output of a response."""
    assert reply.status == 200, reply.body
    [tensor] = answer(reply).outputs
    assert tensor.name == "OUTPUT0"
    return tensor


def server_message(reply: Reply) -> str:
    """Return the error message of a rejected request."""
    assert reply.status >= 400, reply.body
    message: str = json.loads(reply.body)["error"]
    return message
