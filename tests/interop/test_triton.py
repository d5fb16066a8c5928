"""tensorwire against a live Triton: what we send it takes, what it answers we read.

Ids such as A3 or R10 are rows of the conformance table in reference/triton.md, section 5.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorwire as tw

from interop.samples import (
    BINARY_ONLY,
    DTYPES,
    JSON_DATATYPES,
    NOT_TEXT,
    TEXTS,
    Array,
    binary_sample,
    bits,
    bytes_array,
    json_sample,
)
from interop.triton_models import DATATYPES
from interop.triton_server import Reply, TritonServer

HEADER_LENGTH = "Inference-Header-Content-Length"
F2 = np.array([1, 2], np.float32)
B2 = bytes_array([b"ab", NOT_TEXT])


def path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def identity(datatype: str) -> str:
    return f"identity_{datatype.lower()}"


def send(triton: TritonServer, model: str, frame: tw.Frame) -> Reply:
    """The frame's own headers, and its buffers one after the other."""
    return triton.post(path(model), frame.buffers, frame.headers)


def send_text(triton: TritonServer, model: str, text: bytes, blob: bytes = b"") -> Reply:
    """A message that our encoder would not write."""
    return triton.post(path(model), [text, blob], {HEADER_LENGTH: str(len(text))})


def answer(reply: Reply) -> tw.InferResponse:
    assert reply.status == 200, reply.body
    response: tw.InferResponse = tw.decode_response(reply.body, tw.header_length(reply.headers))
    return response


def output(reply: Reply) -> tw.Tensor:
    """The only output of an answer."""
    [tensor] = answer(reply).outputs
    assert tensor.name == "OUTPUT0"
    return tensor


def request_of(
    array: Array, is_binary: bool = True, is_output_binary: bool = True
) -> tw.InferRequest:
    tensor = tw.Tensor("INPUT0", array, binary=is_binary)
    return tw.InferRequest([tensor], [tw.RequestedOutput("OUTPUT0", binary=is_output_binary)])


def server_message(reply: Reply) -> str:
    assert reply.status >= 400, reply.body
    message: str = json.loads(reply.body)["error"]
    return message


# --- datatypes -------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", DATATYPES)
def test_binary(triton: TritonServer, datatype: str) -> None:
    sent = binary_sample(datatype)
    request = request_of(sent)
    assert request.inputs[0].datatype == datatype
    received = output(send(triton, identity(datatype), tw.encode_request(request)))
    assert received.binary
    assert (received.datatype, received.shape) == (datatype, sent.shape)
    assert bits(received.as_numpy()) == bits(sent)


@pytest.mark.parametrize(
    ("is_binary", "is_output_binary"), [(False, False), (False, True), (True, False)]
)
@pytest.mark.parametrize("datatype", JSON_DATATYPES)
def test_json(
    triton: TritonServer, datatype: str, is_binary: bool, is_output_binary: bool
) -> None:
    sent = json_sample(datatype)
    request = request_of(sent, is_binary, is_output_binary)
    frame = tw.encode_request(request, nonfinite="literal")
    assert (frame.header_length is None) == (not is_binary)
    received = output(send(triton, identity(datatype), frame))
    assert received.binary == is_output_binary
    assert (received.datatype, received.shape) == (datatype, sent.shape)
    assert bits(received.as_numpy()) == bits(sent)
