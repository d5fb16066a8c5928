"""What KServe answers itself, and additions: empty tensors, BF16, BYTES that are not UTF-8.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kserve import InferInput, InferOutput, InferRequest, InferResponse
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol import infer_type
from kserve.utils import utils

import tensorwire as tw
from interop.inside_kserve_json import PATH, Server
from interop.json_requests import Answer, installed, post
from interop.kserve_bodies import NO_TEXT, ONE, WORDS, entry, received, wire
from tensorwire.integrations import kserve as integration
from tensorwire.integrations.kserve.convert import write_response

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.usefixtures("no_logging")

with_integration = pytest.mark.usefixtures("integration_is_installed")
BINARY = tw.InferRequest({"x": np.zeros(1)}, parameters={"binary_data_output": True})
AS_JSON = tw.InferRequest({"x": np.zeros(1)})


@pytest.fixture
def integration_is_installed() -> Iterator[None]:
    with installed(integration):
        yield


# --- invalid bodies --------------------------------------------------------------------------

NAMED = {"name": "x", "shape": [1], "datatype": "FP32"}
INVALID: dict[str, tuple[Any, int]] = {
    "too short": (ONE[0][:-1], ONE[1]),
    "trailing bytes": (ONE[0] + b"\0", ONE[1]),
    "size too small": wire(entry("x", [2], "FP32", 7), tail=bytes(7)),
    "size beyond 64 bits": wire(entry("x", [2], "FP32", 1 << 70), tail=bytes(8)),
    "size negative": wire(entry("x", [0], "FP32", -4)),
    "size is a float": wire({**NAMED, "parameters": {"binary_data_size": 4.0}}, tail=bytes(4)),
    "size is a bool": wire({**NAMED, "parameters": {"binary_data_size": True}}, tail=bytes(1)),
    "size is null": wire({**NAMED, "parameters": {"binary_data_size": None}}, tail=bytes(4)),
    "no data": wire(NAMED),
    "shared memory": wire({**NAMED, "parameters": {"shared_memory_region": "r"}}),
    "shape too large": wire(entry("x", [1 << 62, 4, 0], "FP32", 0)),
    "shape of strings": wire({**NAMED, "shape": ["1"], "data": [1]}),
    "datatype unknown": wire(entry("x", [1], "FP8", 1), tail=b"\0"),
    "datatype in lower case": wire(entry("x", [1], "fp32", 4), tail=bytes(4)),
    "FP16 in JSON": wire({**NAMED, "datatype": "FP16", "data": [1]}),
    "BOOL of 2": wire(entry("x", [1], "BOOL", 1), tail=b"\2"),
    "duplicate name": wire(entry("x", [1], "INT8", 1), entry("x", [1], "INT8", 1), tail=b"ab"),
    "BYTES truncated": wire(entry("t", [1], "BYTES", 6), tail=b"\3\0\0\0ab"),
    "BYTES prefix truncated": wire(entry("t", [1], "BYTES", 3), tail=b"\0\0\0"),
    "BYTES one too few": wire(entry("t", [2], "BYTES", 5), tail=b"\1\0\0\0a"),
    "BYTES one too many": wire(entry("t", [1], "BYTES", 8), tail=bytes(8)),
    "header length negative": (ONE[0], -1),
    "header length beyond the body": (ONE[0], len(ONE[0]) + 1),
    "header length 0": (ONE[0], 0),
    "header length too small": (ONE[0], ONE[1] - 1),
    "inputs absent": (b'{"id": "1"}', 11),
    "inputs is not a list": (b'{"inputs": 5}', 13),
    "not an object": (b"[]", 2),
    "empty": (b"", 0),
    "not UTF-8": (b'{"inputs": [], "id": "\xff"}', 25),
    "nested too deeply": wire({**NAMED, "data": json.loads("[" * 128 + "1" + "]" * 128)}),
    "parameters is not an object": wire({**NAMED, "data": [1]}, parameters=[1]),
}


def infer(server: Server, body: bytes, header_length: int) -> Answer:
    server.model.seen = None
    app = server.ours if integration.is_installed() else server.plain
    length = {"inference_header_content_length": str(header_length)}
    return post(app, PATH, body, "application/octet-stream", **length)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.mark.parametrize("case", INVALID)
def test_kserve_answers_what_the_codec_rejects(server: Server, case: str) -> None:
    """Status, headers and body are those of KServe, whose own code reads the request."""
    body, header_length = INVALID[case]
    with pytest.raises(tw.DecodeError):
        received(body, header_length)
    plain, seen = infer(server, body, header_length), server.model.seen
    with installed(integration):
        assert infer(server, body, header_length) == plain
    assert repr(server.model.seen) == repr(seen)


@with_integration
def test_data_of_wrong_datatype_or_shape_is_rejected() -> None:
    for wrong in (np.zeros(2), np.zeros(3, np.float32), np.zeros(2, ">f4")):
        output = InferOutput("x", [2], "FP32", wrong)
        for request in (BINARY, AS_JSON):
            with pytest.raises(InferenceError, match="got unexpected"):
                write_response(InferResponse("1", "m", [output]), request)


@with_integration
def test_bytes_that_are_not_utf8(server: Server) -> None:
    assert received(*NO_TEXT).inputs[0].as_numpy().tolist() == [b"\xff\xd8", b"a"]
    assert received(*NO_TEXT).inputs[0].data == [b"\xff\xd8", b"a"]
    assert utils.get_predict_input(received(*NO_TEXT)).tolist() == [b"\xff\xd8", b"a"]
    assert infer(server, *NO_TEXT)[0] == 200


@with_integration
def test_empty_tensors_are_sent_as_binary() -> None:
    """KServe alone fails."""
    outputs = [InferOutput("t", [0], "BYTES", []), InferOutput("x", [0, 2], "FP32", [])]
    content, headers = write_response(InferResponse("1", "m", outputs), BINARY)
    assert headers == {"Inference-Header-Content-Length": str(len(content))}
    found = tw.decode_response(content, len(content))
    assert [(t.shape, t.binary) for t in found.values()] == [((0,), True), ((0, 2), True)]


# --- BF16 ---


@with_integration
class TestBf16:
    X = np.array([1.5, -2.0], ml_dtypes.bfloat16)

    def test_decode_and_encode(self) -> None:
        body = wire(entry("x", [2], "BF16", 4), tail=self.X.tobytes())
        data = received(*body).inputs[0].data
        assert (data, [type(value) for value in data]) == ([1.5, -2.0], [float, float])
        array = received(*body).inputs[0].as_numpy()
        assert array.dtype == self.X.dtype
        made = utils.get_predict_response(received(*body), array, "m")
        with pytest.raises(InvalidInput, match="BF16 data via JSON"):
            write_response(made, AS_JSON)
        for output in (*made.outputs, InferOutput("y", [2], "BF16", self.X)):
            content, _ = write_response(InferResponse("1", "m", [output]), BINARY)
            assert content.endswith(self.X.tobytes())

    def test_over_grpc(self) -> None:
        tensor = InferInput("x", [2], "BF16")
        tensor.set_data_from_numpy(self.X)
        message = InferRequest("m", [tensor]).to_grpc()
        arrived = InferRequest.from_grpc(message).inputs[0]
        assert arrived.as_numpy().tolist() == [1.5, -2.0]
        output = InferOutput("y", [2], "BF16", data=[1.5, -2.0])
        assert InferResponse("1", "m", [output]).to_grpc().raw_output_contents == [self.X.tobytes()]


# --- BYTES ---


@with_integration
class TestBytes:
    def test_serialize_and_deserialize(self) -> None:
        array = np.array([["a", b"\xff"], ["\u20ac", b""]], object)
        whole = infer_type.serialize_byte_tensor(array.T)
        assert (whole.shape, whole.dtype) == ((), object)
        raw = b"\1\0\0\0a" + b"\3\0\0\0\xe2\x82\xac" + b"\1\0\0\0\xff" + bytes(4)
        assert whole.item() == raw
        elements = infer_type.deserialize_bytes_tensor(raw).tolist()
        assert elements == [b"a", b"\xe2\x82\xac", b"\xff", b""]

    def test_encoded_data_is_sent_unchanged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        output = InferOutput("t", [3], "BYTES")
        output.set_data_from_numpy(np.array([b"a cat", b"\xff", b""], object))
        monkeypatch.setattr(InferOutput, "as_numpy", None)
        content, headers = write_response(InferResponse("1", "m", [output]), BINARY)
        assert content[int(*headers.values()) :] == output._raw_data

    @pytest.mark.parametrize("shape", [[2], [4], [2, 2]])
    def test_encoded_data_is_checked_against_the_shape(self, shape: list[int]) -> None:
        output = InferOutput("t", shape, "BYTES")
        output._raw_data = WORDS
        with pytest.raises(InferenceError, match="output 't'"):
            write_response(InferResponse("1", "m", [output]), BINARY)
