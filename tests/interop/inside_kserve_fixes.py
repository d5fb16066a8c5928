"""Fixes and additions to KServe: invalid bodies, empty tensors, BF16, BYTES.

`test_kserve_integration.py` runs this file in the environment of KServe.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from kserve import InferInput, InferOutput, InferRequest, InferResponse, ModelRepository
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol import infer_type
from kserve.protocol.dataplane import DataPlane
from kserve.utils import utils

from interop import kserve_bodies as bodies
from interop.kserve_bodies import NO_TEXT, ONE, WORDS, decoded, entry, wire
from tensorwire.integrations import kserve as integration
from tensorwire.integrations.kserve import convert

ml_dtypes = pytest.importorskip("ml_dtypes")
installed = bodies.installed  # the fixture


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
    "BF16 in JSON": wire({**NAMED, "datatype": "BF16", "data": [1]}),
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


# KServe itself reads a message without binary data, except in its server.
READ_BY_KSERVE = {
    *("size negative", "shape of strings", "BF16 in JSON", "nested too deeply"),
    "parameters is not an object",
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("case", INVALID)
def test_invalid_bodies_are_rejected(case: str) -> None:
    body, header_length = INVALID[case]
    headers = {"inference-header-content-length": str(header_length)}
    with pytest.raises(InvalidInput) as caught:
        DataPlane(ModelRepository()).decode(body, headers, "v2", "m")
    assert str(caught.value)
    if case in READ_BY_KSERVE:
        assert decoded(body, header_length).model_name == "m"
        return
    with pytest.raises(InvalidInput) as caught:
        decoded(body, header_length)
    assert str(caught.value)
    if case == "FP16 in JSON":
        return
    header_length += len(b'"model_name": "m", "outputs"') - len(b'"inputs"')
    body = body.replace(b'"inputs"', b'"model_name": "m", "outputs"')
    with pytest.raises(InvalidInput):
        InferResponse.from_bytes(body, max(header_length, -1))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("data", [[1, 2], ["a"], [None, 1, 2], [1 << 40] * 3], ids=str)
def test_json_data_that_does_not_fit_the_datatype(data: list[Any]) -> None:
    """The request reaches the model, and as_numpy raises an error that names the input."""
    body = wire({"name": "x", "shape": [3], "datatype": "INT32", "data": data})
    with pytest.raises(InvalidInput, match="input 'x'"):
        decoded(*body).inputs[0].as_numpy()


@pytest.mark.usefixtures("installed")
def test_data_of_wrong_datatype_or_shape_is_rejected() -> None:
    for tensor in (InferInput("x", [2], "FP32"), InferOutput("x", [2], "FP32")):
        for wrong in (np.zeros(2), np.zeros(3, np.float32), np.zeros(2, ">f4"), [1, 2]):
            with pytest.raises(InferenceError):
                tensor.set_data_from_numpy(wrong)
    made = InferResponse("1", "m", [InferOutput("x", [2], "FP32", np.zeros(3, np.float32))])
    with pytest.raises(InferenceError, match="shape"):
        made.to_rest()


@pytest.mark.usefixtures("installed")
def test_bytes_that_are_not_utf8() -> None:
    tensor = decoded(*NO_TEXT).inputs[0]
    assert tensor.as_numpy().tolist() == [b"\xff\xd8", b"a"]
    with pytest.raises(InferenceError, match="UTF-8"):
        InferRequest("m", [tensor]).to_rest()
    assert tensor.data == [b"\xff\xd8", b"a"]
    assert utils.get_predict_input(decoded(*NO_TEXT)).tolist() == [b"\xff\xd8", b"a"]


@pytest.mark.usefixtures("installed")
def test_model_version_is_kept() -> None:
    body, _ = wire(entry("x", [1], "INT8", 1), tail=b"\7")
    with_version = b'{"model_version":"3",' + body[1:]
    assert decoded(with_version, len(with_version) - 1).model_version == "3"
    text = b'{"model_name":"m","model_version":"4",' + body[1:]
    text = text.replace(b'"inputs"', b'"outputs"')
    header_length = len(text) - 1
    assert InferResponse.from_bytes(text, header_length).model_version == "4"


@pytest.mark.usefixtures("installed")
def test_empty_tensors_are_sent_as_binary() -> None:
    """KServe alone writes `"data": null`, or fails."""
    tensor = InferInput("x", [0, 2], "FP32")
    tensor.set_data_from_numpy(np.empty((0, 2), np.float32))
    body, json_length = InferRequest("m", [tensor]).to_rest()
    assert len(body) == json_length
    assert "data" not in json.loads(body)["inputs"][0]
    assert decoded(body, json_length).inputs[0].as_numpy().shape == (0, 2)
    response = InferResponse(
        "1", "m", [InferOutput("t", [0], "BYTES", [])], use_binary_outputs=True
    )
    body, json_length = response.to_rest()
    assert InferResponse.from_bytes(body, json_length).outputs[0].data == []


# --- BF16 ---


@pytest.mark.usefixtures("installed")
class TestBf16:
    X = np.array([1.5, -2.0], ml_dtypes.bfloat16)

    def test_decode_and_encode(self) -> None:
        body = wire(entry("x", [2], "BF16", 4), tail=self.X.tobytes())
        tensor = decoded(*body).inputs[0]
        assert tensor.as_numpy().dtype == self.X.dtype
        assert tensor.data == [1.5, -2.0]
        made = utils.get_predict_response(decoded(*body), tensor.as_numpy(), "m")
        with pytest.raises(InvalidInput, match="BF16 data via JSON"):
            made.to_rest()
        made._use_binary_outputs = True
        made = utils.get_predict_response(decoded(*body), self.X, "m")
        made._use_binary_outputs = True
        assert made.to_rest()[0].endswith(self.X.tobytes())

    def test_over_grpc(self) -> None:
        tensor = InferInput("x", [2], "BF16")
        tensor.set_data_from_numpy(self.X)
        message = InferRequest("m", [tensor]).to_grpc()
        arrived = InferRequest.from_grpc(message).inputs[0]
        assert arrived.as_numpy().tolist() == [1.5, -2.0]
        output = InferOutput("y", [2], "BF16", data=[1.5, -2.0])
        assert InferResponse("1", "m", [output]).to_grpc().raw_output_contents == [self.X.tobytes()]

    def test_as_uint16(self) -> None:
        integration.install(bf16_as_uint16=True)
        body = wire(entry("x", [2], "BF16", 4), tail=self.X.tobytes())
        words = decoded(*body).inputs[0].as_numpy()
        assert words.tolist() == self.X.view(np.uint16).tolist()
        output = InferOutput("y", [2], "BF16")
        output.set_data_from_numpy(words)
        assert output._raw_data == self.X.tobytes()


# --- BYTES ---


@pytest.mark.usefixtures("installed")
class TestBytes:
    def test_serialize_and_deserialize(self) -> None:
        array = np.array([["a", b"\xff"], [5, None]], object)
        whole = infer_type.serialize_byte_tensor(array)
        assert (whole.shape, whole.dtype) == ((), object)
        raw = b"\1\0\0\0a" + b"\1\0\0\0\xff" + b"\1\0\0\x005" + b"\4\0\0\0None"
        assert whole.item() == raw
        assert infer_type.deserialize_bytes_tensor(raw).tolist() == [b"a", b"\xff", b"5", b"None"]
        assert infer_type.serialize_byte_tensor(np.array([], object)).size == 0
        assert infer_type.deserialize_bytes_tensor(b"").tolist() == []
        with pytest.raises(InferenceError, match="invalid datatype"):
            infer_type.serialize_byte_tensor(np.array([1]))
        with pytest.raises(InvalidInput, match="truncated"):
            infer_type.deserialize_bytes_tensor(raw[:-1])

    def test_text_arrays(self) -> None:
        tensor = InferInput("t", [2], "BYTES")
        tensor.set_data_from_numpy(np.array(["a", "\u20ac"]))
        assert tensor._raw_data == b"\1\0\0\0a\3\0\0\0\xe2\x82\xac"

    def test_raw_contents(self) -> None:
        tensor = InferInput("t", [2], "BYTES", data=[])
        tensor.set_data_from_numpy(np.array([b"\xff", b"a"], object))
        message = InferRequest("m", [tensor]).to_grpc()
        arrived = InferRequest.from_grpc(message).inputs[0]
        assert arrived.as_numpy().tolist() == [b"\xff", b"a"]
        arrived.shape = [3]
        with pytest.raises(InvalidInput, match="input 't'"):
            arrived.as_numpy()

    def test_encoded_data_is_sent_unchanged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        output = InferOutput("t", [3], "BYTES")
        output.set_data_from_numpy(np.array([b"a cat", b"\xff", b""], object))
        response = InferResponse("1", "m", [output], use_binary_outputs=True)
        monkeypatch.setattr(convert, "pack_bytes", None)
        monkeypatch.setattr(InferOutput, "as_numpy", None)
        body, json_length = response.to_rest()
        assert body[json_length:] == output._raw_data

    @pytest.mark.parametrize("shape", [[2], [4], [2, 2]])
    def test_encoded_data_is_checked_against_the_shape(self, shape: list[int]) -> None:
        output = InferOutput("t", shape, "BYTES")
        output._raw_data = WORDS
        with pytest.raises(InferenceError, match="output 't'"):
            InferResponse("1", "m", [output], use_binary_outputs=True).to_rest()
