"""The server itself, in struct and json alone: what the other tests here stand on."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from interop.triton_models import DATATYPES
from interop.triton_server import Reply, TritonServer

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY = {"binary_data_output": True}
ITEM_NBYTES = {
    **{"UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4},
    **{"INT64": 8, "FP16": 2, "FP32": 4, "FP64": 8, "BF16": 2},
}


def tensor(i: int, datatype: str, shape: list[int], blob: bytes) -> dict[str, Any]:
    parameters = {"binary_data_size": len(blob)}
    return {"name": f"INPUT{i}", "datatype": datatype, "shape": shape, "parameters": parameters}


def infer(triton: TritonServer, model: str, inputs: list[dict[str, Any]], *blobs: bytes) -> Reply:
    header = json.dumps({"inputs": inputs, "parameters": BINARY}).encode()
    headers = {HEADER_LENGTH: str(len(header))}
    return triton.post(f"/v2/models/{model}/infer", [header, *blobs], headers)


def outputs_and_tail(reply: Reply) -> tuple[list[dict[str, Any]], bytes]:
    """The outputs the header declares, and the bytes after the header."""
    assert reply.status == 200, reply.body
    header_length = int(reply.headers.get(HEADER_LENGTH.lower(), len(reply.body)))
    header = json.loads(reply.body[:header_length])
    return header["outputs"], reply.body[header_length:]


def length_prefixed(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


# Any bits are a value of any datatype, except that BOOL is 0 or 1 and BYTES has its lengths.
PAYLOADS = {
    **{
        datatype: (bytes(range(240, 256)), 16 // nbytes) for datatype, nbytes in ITEM_NBYTES.items()
    },
    "BOOL": (bytes([0, 1, 1]), 3),
    "BYTES": (length_prefixed(b"ab", b"", b"\0\xff\0"), 3),
}


def test_every_datatype_has_a_payload() -> None:
    assert set(PAYLOADS) == set(DATATYPES)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_comes_back_unchanged(triton: TritonServer, datatype: str) -> None:
    blob, n_elements = PAYLOADS[datatype]
    inputs = [tensor(0, datatype, [n_elements], blob)]
    [output], tail = outputs_and_tail(infer(triton, f"identity_{datatype.lower()}", inputs, blob))
    assert output == {**inputs[0], "name": "OUTPUT0"}
    assert tail == blob


@pytest.mark.parametrize("datatype", DATATYPES)
def test_an_empty_tensor_comes_back_empty(triton: TritonServer, datatype: str) -> None:
    inputs = [tensor(0, datatype, [0], b"")]
    [output], tail = outputs_and_tail(infer(triton, f"identity_{datatype.lower()}", inputs))
    assert output == {**inputs[0], "name": "OUTPUT0"}
    assert tail == b""


@pytest.mark.parametrize("model", ["batching", "matrix"])
def test_two_dimensions(triton: TritonServer, model: str) -> None:
    blob = struct.pack("<6f", *range(6))
    [output], tail = outputs_and_tail(infer(triton, model, [tensor(0, "FP32", [2, 3], blob)], blob))
    assert (output["shape"], tail) == ([2, 3], blob)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_tensors_come_back_in_the_order_sent(
    triton: TritonServer, order: tuple[int, int]
) -> None:
    blobs = [struct.pack("<2f", 1, 2), length_prefixed(b"a", b"bc")]
    tensors = [tensor(0, "FP32", [2], blobs[0]), tensor(1, "BYTES", [2], blobs[1])]
    sent = [blobs[i] for i in order]
    outputs, tail = outputs_and_tail(infer(triton, "two", [tensors[i] for i in order], *sent))
    assert [output["name"] for output in outputs] == [f"OUTPUT{i}" for i in order]
    assert tail == b"".join(sent)


def test_a_raw_request_is_one_element_without_its_length(triton: TritonServer) -> None:
    reply = triton.post("/v2/models/raw_bytes/infer", [b"4", b"27"], {HEADER_LENGTH: "0"})
    [output], tail = outputs_and_tail(reply)
    assert (output["datatype"], output["shape"]) == ("BYTES", [1])
    assert tail == length_prefixed(b"427")


def test_a_short_body_is_refused(triton: TritonServer) -> None:
    blob = struct.pack("<2f", 1, 2)
    reply = infer(triton, "identity_fp32", [tensor(0, "FP32", [2], blob)], blob[:-3])
    assert reply.status == 400
    assert "expecting 3 additional bytes" in json.loads(reply.body)["error"]
