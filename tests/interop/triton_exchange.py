"""What the tests against a live Triton say to it, and how they read its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tensorwire as tw
from interop.samples import Array
from interop.triton_server import Reply, TritonServer

HEADER_LENGTH = "Inference-Header-Content-Length"


def identity(datatype: str) -> str:
    """The model that returns one tensor of this datatype."""
    return f"identity_{datatype.lower()}"


def send(triton: TritonServer, model: str, frame: tw.Frame) -> Reply:
    """The frame's own headers, and its buffers one after the other."""
    return triton.post(f"/v2/models/{model}/infer", frame.buffers, frame.headers)


def send_text(
    triton: TritonServer, model: str, text: bytes, blob: bytes = b"", length: str | None = None
) -> Reply:
    """A message that our encoder would not write; `length` when it is not that of the text."""
    headers = {HEADER_LENGTH: str(len(text)) if length is None else length}
    return triton.post(f"/v2/models/{model}/infer", [text, blob], headers)


def header(inputs: Sequence[dict[str, Any]], **members: Any) -> bytes:
    """The JSON of a request."""
    return json.dumps({"inputs": inputs, **members}).encode()


def entry(
    datatype: str, shape: Sequence[Any], nbytes: Any = None, **members: Any
) -> dict[str, Any]:
    """An input of a request, binary when `nbytes` is given."""
    parameters = {} if nbytes is None else {"parameters": {"binary_data_size": nbytes}}
    return {"name": "INPUT0", "datatype": datatype, "shape": shape, **parameters, **members}


def request_of(
    array: Array, is_binary: bool = True, is_output_binary: bool = True
) -> tw.InferRequest:
    """One tensor there and back, each way in the form given."""
    tensor = tw.Tensor("INPUT0", array, binary=is_binary)
    return tw.InferRequest([tensor], [tw.RequestedOutput("OUTPUT0", binary=is_output_binary)])


def answer(reply: Reply) -> tw.InferResponse:
    """The answer decoded, of whatever status."""
    response: tw.InferResponse = tw.decode_response(reply.body, tw.header_length(reply.headers))
    return response


def output(reply: Reply) -> tw.Tensor:
    """The only output of an answer."""
    assert reply.status == 200, reply.body
    [tensor] = answer(reply).outputs
    assert tensor.name == "OUTPUT0"
    return tensor


def server_message(reply: Reply) -> str:
    """What the server says of a request that it refused."""
    assert reply.status >= 400, reply.body
    message: str = json.loads(reply.body)["error"]
    return message
