"""Malformed binary requests, and additions: empty tensors, BF16, BYTES that are not UTF-8.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from kserve import InferInput, InferOutput, InferRequest, InferResponse
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol import infer_type
from kserve.utils import utils

import tensorwire as tw
from interop.inside_kserve_json import PATH, Server
from interop.json_requests import Answer, assert_rejected, installed, post
from interop.kserve_bodies import NO_TEXT, WORDS, entry, received, wire
from support.case_types import Malformed
from support.malformed import MALFORMED
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

INVALID = [row for row in MALFORMED if row.kind == "request" and row.header_length is not None]


def infer(server: Server, body: bytes, header_length: int | str) -> Answer:
    server.model.seen = None
    app = server.ours if integration.is_installed() else server.plain
    length = {"inference_header_content_length": str(header_length)}
    return post(app, PATH, body, "application/octet-stream", **length)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@with_integration
@pytest.mark.parametrize("row", INVALID, ids=lambda row: row.id)
def test_malformed_binary_request(server: Server, row: Malformed) -> None:
    """The model does not get it. KServe's own code would accept some of them."""
    length = row.header_length
    sent = length.decode("latin-1") if isinstance(length, bytes) else str(length)
    assert_rejected(infer(server, row.body, sent), row.body, sent.encode())
    assert server.model.seen is None


@with_integration
def test_shared_memory_is_rejected(server: Server) -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32"}
    body = wire({**tensor, "parameters": {"shared_memory_region": "r"}})
    status, _, content = infer(server, *body)
    assert status == 400
    assert json.loads(content)["error"].startswith("tensor 'x' is in shared memory")


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
        with pytest.raises(InvalidInput, match="element 1"):
            infer_type.deserialize_bytes_tensor(raw[:10])

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
