"""Our gRPC messages against a live Triton, without a generated class; and what Triton rejects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from interop.samples import DTYPES, JSON_DATATYPES, binary_sample, bits, json_sample
from interop.triton_models import identity
from interop.triton_server import TritonServer
from support.grpc_cases import tensor
from support.protobuf_wire import delimited
from support.requirements import package
from tensorwire.grpc import decode_request, decode_response, decode_stream_response, encode_request

grpc = package("grpc")

SERVICE = "/inference.GRPCInferenceService"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
SECONDS = 20
F2 = np.array([0.5, -1], np.float32)


@pytest.fixture(scope="module")
def channel(triton: TritonServer) -> Iterator[Any]:
    with grpc.insecure_channel(f"{triton.host}:{triton.grpc_port}", options=UNLIMITED) as opened:
        yield opened


def infer(channel: Any, message: bytes) -> tw.InferResponse:
    call = channel.unary_unary(f"{SERVICE}/ModelInfer")
    response: tw.InferResponse = decode_response(call(message, timeout=SECONDS))
    return response


def request_of(array: Any, model: str, is_binary: bool = True, **members: Any) -> tw.InferRequest:
    tensor = tw.Tensor("INPUT0", array, binary=is_binary)
    return tw.InferRequest([tensor], model_name=model, **members)


@pytest.mark.parametrize("datatype", DTYPES)
def test_raw_contents(channel: Any, datatype: str) -> None:
    sent = binary_sample(datatype)
    for array in (sent, sent[:0]):
        response = infer(channel, encode_request(request_of(array, identity(datatype), id="7")))
        assert (response.id, response.model_name) == ("7", identity(datatype))
        [output] = response.outputs
        assert (output.name, output.datatype) == ("OUTPUT0", datatype)
        assert bits(output.as_numpy()) == bits(array)


CONTENTS = {"BOOL": "bool", "BYTES": "bytes", "FP32": "fp32", "FP64": "fp64"}
CONTENTS |= {"INT64": "int64", "UINT64": "uint64"}
CONTENTS |= dict.fromkeys(("INT8", "INT16", "INT32"), "int")
CONTENTS |= dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint")


@pytest.mark.parametrize("datatype", JSON_DATATYPES)
def test_typed_contents(channel: Any, datatype: str) -> None:
    """We and Triton read the same elements of a message of the generated class."""
    sent = json_sample(datatype)
    request = package("tritonclient.grpc.service_pb2").ModelInferRequest()
    request.model_name = identity(datatype)
    tensor = request.inputs.add(name="INPUT0", datatype=datatype, shape=sent.shape)
    getattr(tensor.contents, f"{CONTENTS[datatype]}_contents").extend(sent.tolist())
    message = request.SerializeToString()
    assert bits(decode_request(message)["INPUT0"].as_numpy()) == bits(sent)
    [output] = infer(channel, message).outputs
    assert output.binary
    assert bits(output.as_numpy()) == bits(sent)


def test_stream(channel: Any) -> None:
    """An error is a response, and the stream continues. Only errors have no `id`."""
    requests = [
        request_of(F2, "identity_fp32", id="1"),
        request_of(F2, "none such", id="2"),
        request_of(F2.reshape(2, 1), "identity_fp32", id="3"),
        request_of(F2 + 1, "identity_fp32", id="4"),
    ]
    call = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
    replies = list(call(map(encode_request, requests), timeout=SECONDS))
    first = decode_stream_response(replies[0])
    assert (first.id, first.parameters) == ("1", {"triton_final_response": True})
    assert bits(first["OUTPUT0"].as_numpy()) == bits(F2)
    with pytest.raises(tw.ErrorResponseError, match="unknown model: 'none such' is not found"):
        decode_stream_response(replies[1])
    with pytest.raises(tw.ErrorResponseError, match="unexpected shape for input 'INPUT0'"):
        decode_stream_response(replies[2])
    assert bits(decode_stream_response(replies[3])["OUTPUT0"].as_numpy()) == bits(F2 + 1)
    assert len(replies) == 4


# --- what Triton rejects -----------------------------------------------------------------------


def entry(
    name: str = "INPUT0",
    datatype: str = "FP32",
    shape: tuple[int, ...] = (2,),
    contents: bytes = b"",
) -> bytes:
    """Return an input."""
    return tensor(name, datatype, shape, *([delimited(5, contents)] if contents else []))


def message(*parts: bytes, model: str = "identity_fp32") -> bytes:
    return delimited(1, model.encode()) + b"".join(parts)


RAW = delimited(7, F2.tobytes())
FLOATS = delimited(6, F2.tobytes())  # fp32_contents
TWO = entry() + entry("INPUT1", "BYTES", (1,))
BYTES = entry(datatype="BYTES")
OUTPUT = delimited(6, delimited(1, b"OUTPUT0"))

INVALID = "INVALID_ARGUMENT"
INTERNAL = "INTERNAL", "Unable to parse"
NO_CONTENTS = INVALID, "contents field must not be specified"
I8 = entry(datatype="INT8", contents=delimited(2, b"\1\xac\2"))
PARAMETER = delimited(4, delimited(1, b"p") + delimited(2, b""))
BOTH = entry("INPUT1", "BYTES", (1,), delimited(8, b"a"))

Header, Layout, Element = tw.HeaderError, tw.LayoutError, tw.ElementError
# The message, the error of Triton with a part of its details, or the output; and our error.
DIFFERENT: dict[str, tuple[bytes, tuple[str, str] | list[float], type[Exception] | None]] = {
    "no data": (message(entry()), (INVALID, "unable to find data"), Header),
    "raw contents and contents": (message(entry(contents=FLOATS), RAW), NO_CONTENTS, Header),
    "fewer raw contents": (message(TWO, RAW, model="two"),
        (INVALID, "unable to find data for input tensor 'INPUT1'"), Layout),
    "raw contents for one input, contents for another": (
        message(entry() + BOTH, RAW, model="two"), NO_CONTENTS, Layout),
    "7 bytes": (message(entry(), delimited(7, bytes(7))), (INVALID, "Expected 8, got 7"), Layout),
    "9 bytes": (message(entry(), delimited(7, bytes(9))), (INVALID, "Expected 8, got 9"), Layout),
    "too few typed contents": (message(entry(contents=delimited(6, b"1234"))),
        (INVALID, "Expected 8, got 4"), Layout),
    "contents of another field": (message(entry(contents=delimited(2, b"\1\2"))),
        (INVALID, "of type 'INT32', expected datatype 'FP32'"), Header),
    "unknown datatype": (message(entry(datatype="fp32"), RAW),
        (INVALID, "data-type is '<invalid>'"), Header),
    "negative dimension": (message(entry(shape=(-2,)), RAW),
        (INVALID, "Expected -8, got 8"), Layout),
    "input twice": (message(entry(), entry(), RAW, RAW),
        (INVALID, "'INPUT0' already exists"), Header),
    "truncated BYTES": (message(BYTES, delimited(7, b"\1\0\0\0a\0\0\0"), model="identity_bytes"),
        (INVALID, "incomplete string length indicator"), Element),
    "few elements of BYTES": (message(BYTES, delimited(7, b"\4\0\0\0abcd"), model="identity_bytes"),
        (INVALID, "expected 2 string elements"), Layout),
    "FP16 contents": (message(entry(datatype="FP16", contents=FLOATS), model="identity_fp16"),
        (INVALID, "of type 'FP32', expected datatype 'FP16'"), Header),
    "malformed": (message(entry(), RAW)[:-1], INTERNAL, Header),
    "end of a group": (message(entry(), RAW, b"\x34"), INTERNAL, Header),
    "not UTF-8": (message(delimited(3, b"\xff"), entry(), RAW), INTERNAL, Header),
    # Triton ignores what we call an error; of 300 as INT8, it ignores the upper bits.
    "more raw contents": (message(entry(), RAW, RAW), F2.tolist(), Layout),
    "INT8 out of range": (message(I8, model="identity_int8"), [1, 44], Element),
    "requested output twice": (message(entry(), OUTPUT, OUTPUT, RAW), F2.tolist(), Header),
    # Triton rejects these, also if the model has nothing to do with it.
    "no raw contents for an empty tensor": (message(entry(shape=(0,))),
        (INVALID, "unable to find data"), None),
    "parameter without a value": (message(PARAMETER, entry(), RAW),
        (INVALID, "invalid value type for 'p' parameter"), None),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_rejected_messages(channel: Any, name: str) -> None:
    """By Triton and by us, or by one of them."""
    sent, theirs, error_class = DIFFERENT[name]
    if isinstance(theirs, list):
        assert infer(channel, sent)["OUTPUT0"].as_numpy().tolist() == theirs
    else:
        with pytest.raises(grpc.RpcError) as caught:
            infer(channel, sent)
        assert caught.value.code() is grpc.StatusCode[theirs[0]]
        assert theirs[1] in caught.value.details()
    with nullcontext() if error_class is None else pytest.raises(error_class):
        decode_request(sent)
