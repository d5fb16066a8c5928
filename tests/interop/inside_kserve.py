"""Run by pytest inside the environment "kserve": KServe's classes on our codec, and off it."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from kserve import (
    InferInput,
    InferOutput,
    InferRequest,
    InferResponse,
    Model,
    ModelRepository,
    ModelServer,
)
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol import infer_type
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.infer_type import RequestedOutput
from kserve.utils import numpy_codec, utils

import tensorwire as tw
from tensorwire.integrations import kserve as backend
from tensorwire.integrations import patching
from tensorwire.integrations.kserve import patches, tensors

ml_dtypes = pytest.importorskip("ml_dtypes")
LENGTH = "inference-header-content-length"


@pytest.fixture
def installed() -> Iterator[None]:
    backend.install()
    yield
    backend.uninstall()


def wire(*inputs: dict[str, Any], tail: bytes = b"", **members: Any) -> tuple[bytes, int]:
    """A body, and the length of its JSON."""
    text = json.dumps({"inputs": inputs, **members}).encode()
    return text + tail, len(text)


def entry(name: str, shape: list[int], datatype: str, nbytes: int, **more: Any) -> dict[str, Any]:
    parameters = {"binary_data_size": nbytes, **more}
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": parameters}


def decoded(body: bytes | bytearray, json_length: int) -> Any:
    return InferRequest.from_bytes(body, json_length, "m")


X = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE = wire(entry("x", [2, 3], "FP32", 24), tail=X.tobytes())
WORDS = b"\x05\0\0\0a cat" + b"\3\0\0\0\xe2\x82\xac" + b"\0\0\0\0"
TEXT = wire(entry("t", [3], "BYTES", len(WORDS)), tail=WORDS)
IMAGE = b"\2\0\0\0\xff\xd8" + b"\1\0\0\0a"
NO_TEXT = wire(entry("t", [2], "BYTES", len(IMAGE)), tail=IMAGE)

# --- what KServe's own code accepts means the same -------------------------------------------

RAW = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 1, 255], np.uint8),
    "UINT64": np.array([0, 1, 2**64 - 1], np.uint64),
    "INT16": np.array([-(2**15), 0, 5], np.int16),
    "INT64": np.array([-(2**63), 0, 5]),
    "FP16": np.array([1.5, 65504, -0.0], np.float16),
    "FP32": np.array([0.1, 3e38, -0.0], np.float32),
    "FP64": np.array([0.1, 1e300, -0.0]),
}
ACCEPTED: dict[str, tuple[bytes, int]] = {
    name: wire(entry("x", [3], name, array.nbytes), tail=array.tobytes())
    for name, array in RAW.items()
} | {
    "BYTES": TEXT,
    "2-D": ONE,
    "scalar": wire(entry("x", [], "INT32", 4), tail=b"\1\0\0\0"),
    "empty": wire(entry("x", [0, 3], "FP32", 0)),
    "empty BYTES": wire(entry("t", [0], "BYTES", 0)),
    "lower case": wire(entry("x", [1], "fp32", 4), tail=b"\0\0\x80\x3f"),
    "parameters": wire(
        entry("x", [1], "INT8", 1, a="b", c=1), tail=b"\7", id="1", parameters={"p": True}
    ),
    "JSON": wire({"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]}),
    "JSON and binary": wire(
        {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "b"], "parameters": {}},
        entry("x", [2], "UINT16", 4),
        {"name": "y", "shape": [1], "datatype": "INT64", "data": [5]},
        tail=b"\1\0\2\0",
    ),
    "outputs": wire(
        entry("x", [1], "INT8", 1),
        tail=b"\7",
        outputs=[{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}],
    ),
    "null data": wire(entry("x", [1], "INT8", 1) | {"data": None}, tail=b"\7"),
}


def result(function: Callable[[], Any]) -> Any:
    """What it returns, or the type of what it raises."""
    try:
        return function()
    except Exception as error:
        return type(error)


def encoded(message: Any) -> Any:
    return result(message.to_rest)


def seen(request: Any) -> Any:
    """All that a model can see of a request, in the order that disturbs least."""
    arrays = [tensor.as_numpy() for tensor in request.inputs]
    return (
        [(array.dtype, array.shape, array.tolist()) for array in arrays],
        [(t.name, t.shape, t.datatype, t.parameters, t.data, t._raw_data) for t in request.inputs],
        [array.tolist() for array in (tensor.as_numpy() for tensor in request.inputs)],
        request.id,
        request.model_name,
        request.parameters,
        request.request_outputs,
        request.use_binary_outputs,
        result(lambda: repr(request.as_dataframe())),
        request.to_dict(),
        repr(request),
    )


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_model_sees_what_it_saw(case: str) -> None:
    plain = decoded(*ACCEPTED[case])
    backend.install()
    try:
        ours = decoded(*ACCEPTED[case])
        assert ours == decoded(*ACCEPTED[case])
        assert ours == plain
        assert plain == ours
        assert seen(decoded(*ACCEPTED[case])) == seen(plain)
    finally:
        backend.uninstall()
    assert ours == plain


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_request_is_passed_on_as_it_was(case: str) -> None:
    """JSON, as a transformer has always sent it; what JSON cannot hold is refused."""
    body = wire(*json.loads(ACCEPTED[case][0][: ACCEPTED[case][1]])["inputs"], id="1")
    tail = ACCEPTED[case][0][ACCEPTED[case][1] :]
    plain = encoded(decoded(body[0] + tail, body[1]))
    backend.install()
    try:
        assert encoded(decoded(body[0] + tail, body[1])) == plain
    finally:
        backend.uninstall()


class Text(str):
    """Not what it prints."""

    __slots__ = ()

    def __str__(self) -> str:
        return "printed"


ODD: dict[str, Any] = {
    "a subclass of str": np.array([Text("held"), b"a"], object),
    "mutable bytes": np.array([bytearray(b"a"), [b"b"]], object),
    "a lone surrogate": np.array(["\udc80", "a"], object),
    "masked BYTES": np.ma.array(np.array([b"a", b"b"], object), mask=[False, True]),
    "masked INT64": np.ma.array([1, 2], mask=[False, True]),
}


def outputs() -> list[Any]:
    """Data given in every way that there is; whether it can be JSON is seen by its datatype."""
    made = []
    for datatype, array in RAW.items():
        for how in ("array", "list", "binary", "JSON"):
            output = InferOutput(f"{datatype} {how}", [3], datatype)
            if how == "array":
                output.data = array
            elif how == "list":
                output.data = array.tolist()
            else:
                output.set_data_from_numpy(array, binary_data=how == "binary")
            made.append(output)
    words = np.array([b"a", "\u20ac", 5, None], object)
    for how in ("array", "list", "binary", "JSON"):
        output = InferOutput(f"BYTES {how}", [2, 2], "BYTES", parameters={"user": 1})
        if how == "array":
            output.data = words.reshape(2, 2)
        elif how == "list":
            output.data = ["a", "b", "c", "d"]
        else:
            output.set_data_from_numpy(words.reshape(2, 2), binary_data=how == "binary")
        made.append(output)
    dates = InferOutput("dates", [2], "BYTES")
    dates.set_data_from_numpy(np.array(["2020-01-01", "2021-02-03"], "datetime64[D]"))
    padded = InferOutput("S", [2], "BYTES")
    padded.set_data_from_numpy(np.array([b"a", b"bcd"]))
    for name, array in ODD.items():
        datatype = "BYTES" if array.dtype == object else "INT64"
        made.append(InferOutput(name, [2], datatype, array))
    return [*made, dates, padded]


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("i", range(len(outputs())))
def test_an_output_is_sent_as_it_was(i: int, is_binary: bool) -> None:
    def response() -> InferResponse:
        return InferResponse("1", "m", [outputs()[i]], "2", use_binary_outputs=is_binary)

    plain = encoded(response())
    backend.install()
    try:
        ours = response()
        assert encoded(ours) == plain
        assert encoded(ours) == plain  # and again
    finally:
        backend.uninstall()


def test_responses_mean_the_same() -> None:
    text = {
        "model_name": "m",
        "id": "1",
        "parameters": {"p": 1},
        "outputs": [
            entry("x", [2, 3], "FP32", 24),
            {"name": "y", "shape": [1], "datatype": "FP64", "data": [1.5]},
            entry("t", [3], "BYTES", len(WORDS), user=1),
        ],
    }
    header = orjson.dumps(text)
    body = header + X.tobytes() + WORDS
    plain = InferResponse.from_bytes(body, len(header))
    backend.install()
    try:
        ours = InferResponse.from_bytes(body, len(header))
        arrays = [output.as_numpy() for output in ours.outputs]
        assert [a.tolist() for a in arrays] == [o.as_numpy().tolist() for o in plain.outputs]
        assert np.shares_memory(arrays[0], np.frombuffer(body, np.uint8))
        assert ours == plain
        assert ours.to_rest() == plain.to_rest()
        ours = InferResponse.from_bytes(body, len(header))
        ours._use_binary_outputs = True  # a gateway's: the bytes go on as they came
        assert ours.to_rest()[0].endswith(X.tobytes() + np.float64(1.5).tobytes() + WORDS)
    finally:
        backend.uninstall()


# --- lazy ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
class TestLazy:
    def test_as_numpy_is_a_view(self) -> None:
        body, json_length = ONE
        array = decoded(body, json_length).inputs[0].as_numpy()
        assert np.shares_memory(array, np.frombuffer(body, np.uint8))
        assert not array.flags.writeable
        writable = decoded(bytearray(body), json_length).inputs[0].as_numpy()
        assert writable.flags.writeable

    def test_the_list_takes_over(self) -> None:
        body = bytearray(ONE[0])
        tensor = decoded(body, ONE[1]).inputs[0]
        with pytest.raises(BufferError):
            body.append(0)  # held
        tensor.data[0] = 7
        body.append(0)  # let go of
        assert tensor.data == [7, 1, 2, 3, 4, 5]
        assert tensor.as_numpy().tolist() == [[7, 1, 2], [3, 4, 5]]

    def test_what_is_set_is_the_data(self) -> None:
        tensor = decoded(*ONE).inputs[0]
        tensor.data = [1, 2, 3, 4, 5, 6]
        assert tensor.as_numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
        tensor = decoded(*ONE).inputs[0]
        tensor.set_data_from_numpy(X + 1)
        assert tensor.data is None
        assert tensor.as_numpy().tolist() == (X + 1).tolist()
        assert tensor.parameters == {"binary_data_size": 24}

    def test_another_shape(self) -> None:
        tensor = decoded(*ONE).inputs[0]
        tensor.shape = [3, 2]
        assert tensor.as_numpy().shape == (3, 2)

    @pytest.mark.parametrize("message", [ONE, TEXT, NO_TEXT], ids=["FP32", "BYTES", "no text"])
    @pytest.mark.parametrize("is_listed", [False, True])
    def test_it_pickles(self, message: tuple[bytes, int], is_listed: bool) -> None:
        request = decoded(*message)
        if is_listed:
            assert request.inputs[0].data
        copies = [
            copy.copy(request),
            copy.deepcopy(request),
            *(pickle.loads(pickle.dumps(request, n)) for n in range(2, 6)),
        ]
        expected = request.inputs[0].as_numpy().tolist()
        for made in copies:
            assert made.inputs[0].as_numpy().tolist() == expected
            assert made == request

    def test_it_pickles_without_the_rest_of_the_body(self) -> None:
        body, json_length = wire(
            entry("x", [1 << 20], "UINT8", 1 << 20), entry("y", [1], "INT8", 1), tail=bytes(1 << 20)
        )
        request = decoded(body + b"\7", json_length)
        assert len(pickle.dumps(request.inputs[1])) < 1000

    def test_it_is_read_where_nothing_is_installed(self) -> None:
        script = (
            "import pickle, sys; request = pickle.load(sys.stdin.buffer);"
            "print(request.inputs[0].as_numpy().tolist(), request.inputs[0].data)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=pickle.dumps(decoded(*ONE)),
            capture_output=True,
            check=True,
        )
        assert done.stdout == f"{X.tolist()} {X.ravel().tolist()}\n".encode()

    def test_it_outlives_the_backend(self) -> None:
        request = decoded(*ONE)
        backend.uninstall()
        assert request.inputs[0].as_numpy().tolist() == X.tolist()
        assert request.inputs[0].data == X.ravel().tolist()

    def test_threads_read_the_same(self) -> None:
        body, json_length = wire(entry("x", [1 << 16], "UINT8", 1 << 16), tail=bytes(1 << 16))
        tensor = decoded(body, json_length).inputs[0]
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(tensor.data)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(data == [0] * (1 << 16) for data in found)
        assert len(found) == 8


def test_arrays_to_write_in() -> None:
    backend.install(writable=True)
    try:
        tensor = decoded(*ONE).inputs[0]
        array = tensor.as_numpy()
        array += 1
        assert tensor.as_numpy().tolist() == X.tolist()
        raw = InferInput("x", [2, 3], "FP32")
        raw._raw_data = X.tobytes()  # as from_grpc does
        raw.as_numpy()[0] = 5
        backend.install()  # again: other options
        assert not decoded(*ONE).inputs[0].as_numpy().flags.writeable
    finally:
        backend.uninstall()


def test_aligned_arrays() -> None:
    backend.install(aligned=True)
    try:
        for blanks in range(8):
            body = ONE[0][: ONE[1]] + b" " * blanks + X.tobytes()
            array = decoded(body, ONE[1] + blanks).inputs[0].as_numpy()
            assert array.flags.aligned
            assert array.tolist() == X.tolist()
    finally:
        backend.uninstall()


# --- what was wrong --------------------------------------------------------------------------

NAMED = {"name": "x", "shape": [1], "datatype": "FP32"}
REFUSED: dict[str, tuple[Any, int]] = {
    "too short": (ONE[0][:-1], ONE[1]),
    "left over": (ONE[0] + b"\0", ONE[1]),
    "size too small": wire(entry("x", [2], "FP32", 7), tail=bytes(7)),
    "size beyond 64 bits": wire(entry("x", [2], "FP32", 1 << 70), tail=bytes(8)),
    "size negative": wire(entry("x", [0], "FP32", -4)),
    "size a float": wire({**NAMED, "parameters": {"binary_data_size": 4.0}}, tail=bytes(4)),
    "size a bool": wire({**NAMED, "parameters": {"binary_data_size": True}}, tail=bytes(1)),
    "size null": wire({**NAMED, "parameters": {"binary_data_size": None}}, tail=bytes(4)),
    "no data": wire(NAMED),
    "shape huge": wire(entry("x", [1 << 62, 4, 0], "FP32", 0)),
    "shape text": wire({**NAMED, "shape": ["1"], "data": [1]}),
    "datatype unknown": wire(entry("x", [1], "FP8", 1), tail=b"\0"),
    "FP16 in JSON": wire({**NAMED, "datatype": "FP16", "data": [1]}),
    "BF16 in JSON": wire({**NAMED, "datatype": "BF16", "data": [1]}),
    "BOOL of 2": wire(entry("x", [1], "BOOL", 1), tail=b"\2"),
    "twice the name": wire(entry("x", [1], "INT8", 1), entry("x", [1], "INT8", 1), tail=b"ab"),
    "BYTES truncated": wire(entry("t", [1], "BYTES", 6), tail=b"\3\0\0\0ab"),
    "BYTES prefix truncated": wire(entry("t", [1], "BYTES", 3), tail=b"\0\0\0"),
    "BYTES one too few": wire(entry("t", [2], "BYTES", 5), tail=b"\1\0\0\0a"),
    "BYTES one too many": wire(entry("t", [1], "BYTES", 8), tail=bytes(8)),
    "length negative": (ONE[0], -1),
    "length beyond": (ONE[0], len(ONE[0]) + 1),
    "length 0": (ONE[0], 0),
    "length short": (ONE[0], ONE[1] - 1),
    "inputs absent": (b'{"id": "1"}', 11),
    "inputs no list": (b'{"inputs": 5}', 13),
    "no object": (b"[]", 2),
    "empty": (b"", 0),
    "not UTF-8": (b'{"inputs": [], "id": "\xff"}', 25),
    "nested too deep": wire({**NAMED, "data": json.loads("[" * 128 + "1" + "]" * 128)}),
    "parameters no object": wire({**NAMED, "data": [1]}, parameters=[1]),
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("case", REFUSED)
def test_bad_bodies(case: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        decoded(*REFUSED[case])
    assert str(refused.value)
    body = REFUSED[case][0].replace(b'"inputs"', b'"outputs"')
    header_length = REFUSED[case][1] + len(body) - len(REFUSED[case][0])
    if "FP16" not in case and "BF16" not in case:
        with pytest.raises(InvalidInput):
            InferResponse.from_bytes(body, header_length)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("data", [[1, 2], ["a"], [None, 1, 2], [1 << 40] * 3], ids=str)
def test_json_that_does_not_fit(data: list[Any]) -> None:
    """It came as JSON, and reaches the model; as_numpy says whose fault it is."""
    body = wire({"name": "x", "shape": [3], "datatype": "INT32", "data": data})
    with pytest.raises(InvalidInput, match="input 'x'"):
        decoded(*body).inputs[0].as_numpy()


@pytest.mark.usefixtures("installed")
def test_bytes_that_are_not_text() -> None:
    tensor = decoded(*NO_TEXT).inputs[0]
    assert tensor.as_numpy().tolist() == [b"\xff\xd8", b"a"]
    with pytest.raises(InferenceError, match="UTF-8"):
        InferRequest("m", [tensor]).to_rest()
    assert tensor.data == [b"\xff\xd8", b"a"]
    assert utils.get_predict_input(decoded(*NO_TEXT)).tolist() == [b"\xff\xd8", b"a"]


@pytest.mark.usefixtures("installed")
def test_model_version_survives() -> None:
    body, json_length = wire(entry("x", [1], "INT8", 1), tail=b"\7", model_version="3")
    assert decoded(body, json_length).model_version == "3"
    text = b'{"model_name":"m","model_version":"4","outputs":[]}'
    assert InferResponse.from_bytes(text, len(text)).model_version == "4"


@pytest.mark.usefixtures("installed")
def test_empty_tensors_stay_binary() -> None:
    """Where KServe wrote `"data": null`, or failed."""
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


@pytest.mark.usefixtures("installed")
class TestBf16:
    X = np.array([1.5, -2.0], ml_dtypes.bfloat16)

    def test_in_and_out(self) -> None:
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

    def test_words(self) -> None:
        backend.install(bf16_as_uint16=True)
        body = wire(entry("x", [2], "BF16", 4), tail=self.X.tobytes())
        words = decoded(*body).inputs[0].as_numpy()
        assert words.tolist() == self.X.view(np.uint16).tolist()
        output = InferOutput("y", [2], "BF16")
        output.set_data_from_numpy(words)
        assert output._raw_data == self.X.tobytes()


# --- bytes -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
class TestBytes:
    def test_the_functions(self) -> None:
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

    def test_what_is_encoded_is_not_encoded_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        output = InferOutput("t", [3], "BYTES")
        output.set_data_from_numpy(np.array([b"a cat", b"\xff", b""], object))
        response = InferResponse("1", "m", [output], use_binary_outputs=True)
        monkeypatch.setattr(tensors, "pack_bytes", None)
        monkeypatch.setattr(InferOutput, "as_numpy", None)
        body, json_length = response.to_rest()
        assert body[json_length:] == output._raw_data

    @pytest.mark.parametrize("shape", [[2], [4], [2, 2]])
    def test_but_it_is_checked(self, shape: list[int]) -> None:
        output = InferOutput("t", shape, "BYTES")
        output._raw_data = WORDS
        with pytest.raises(InferenceError, match="output 't'"):
            InferResponse("1", "m", [output], use_binary_outputs=True).to_rest()


@pytest.mark.usefixtures("installed")
def test_data_of_another_datatype_or_shape() -> None:
    for tensor in (InferInput("x", [2], "FP32"), InferOutput("x", [2], "FP32")):
        for wrong in (np.zeros(2), np.zeros(3, np.float32), np.zeros(2, ">f4"), [1, 2]):
            with pytest.raises(InferenceError):
                tensor.set_data_from_numpy(wrong)
    made = InferResponse("1", "m", [InferOutput("x", [2], "FP32", np.zeros(3, np.float32))])
    with pytest.raises(InferenceError, match="shape"):
        made.to_rest()


# --- the data plane --------------------------------------------------------------------------


def test_the_data_plane_patches_nothing() -> None:
    before = vars(InferRequest)["from_bytes"]
    plane = backend.BinaryDataPlane(ModelRepository(), writable=True)
    assert isinstance(plane, DataPlane)
    request, _ = plane.decode(ONE[0], {LENGTH: str(ONE[1])}, "v2", "m")
    array = request.inputs[0].as_numpy()
    array += 1
    output = InferOutput("y", [2, 3], "FP32", data=array)
    wanted = [RequestedOutput("y", {"binary_data": True})]
    response = InferResponse("1", "m", [output], requested_outputs=wanted)
    body, headers = plane.encode("m", response, {}, {})
    found = tw.decode_response(body, headers[LENGTH])
    assert found["y"].as_numpy().tolist() == (X + 1).tolist()
    assert plane.metadata()["extensions"].count("binary_tensor_data") == 1
    text = ACCEPTED["JSON"][0]
    assert plane.decode(text, {}, "v2", "m")[0].inputs[0].data == [[1, 2], [3, 4]]
    with pytest.raises(InvalidInput, match="is Inference-Header-Content-Length missing"):
        plane.decode(ONE[0], {}, "v2", "m")
    for bad in ({LENGTH: "abc"}, {LENGTH: "9999"}, {LENGTH: "-1"}, {}):
        with pytest.raises(InvalidInput):
            plane.decode(ONE[0], bad, "v2", "m")
    assert vars(InferRequest)["from_bytes"] is before
    assert not backend.is_installed()


# --- the README ------------------------------------------------------------------------------

README = Path(__file__).resolve().parents[2] / "README.md"
EXAMPLES = re.findall(r"```py\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_readmes_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the only ones in its `py` blocks; those in `python` blocks run without KServe."""
    install, serve = (compile(code, "README.md", "exec") for code in EXAMPLES)
    exec(install, {})
    assert backend.is_installed()
    backend.uninstall()
    planes = []
    monkeypatch.setattr(ModelServer, "start", lambda self, models: planes.append(self.dataplane))
    exec(serve, {"model": Model("m")})
    assert [type(plane) for plane in planes] == [backend.BinaryDataPlane]


# --- in and out ------------------------------------------------------------------------------


def state() -> list[Any]:
    modules = (infer_type, numpy_codec, utils)
    classes = (InferInput, InferOutput, InferRequest, InferResponse, DataPlane)
    return [dict(vars(owner)) for owner in (*modules, *classes)]


def test_installed_twice_and_put_back() -> None:
    before = state()
    backend.install()
    once = state()
    assert utils.from_np_dtype is numpy_codec.from_np_dtype is infer_type.from_np_dtype
    assert once != before
    backend.install()
    assert state() == once
    backend.uninstall()
    assert state() == before
    backend.uninstall()
    assert state() == before


def test_threads() -> None:
    before = state()

    def work() -> None:
        for _ in range(5):
            backend.install()
            assert decoded(*ONE).inputs[0].data == X.ravel().tolist()
            backend.uninstall()

    failures: list[Any] = []
    hook = threading.excepthook
    threading.excepthook = failures.append
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = hook
    assert not failures
    assert state() == before


@pytest.mark.parametrize("version", ["0.16.9", "0.22.0", "1.0"])
def test_an_unknown_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    before = state()
    monkeypatch.setattr(patching, "version", lambda name: version)
    for attempt in (backend.install, lambda: backend.BinaryDataPlane):
        with pytest.raises(tw.IntegrationError, match=rf"kserve {version}.*0\.17.*0\.21"):
            attempt()
    assert state() == before
    assert not backend.is_installed()


@pytest.mark.parametrize("method", ["from_bytes", "to_rest"])
def test_an_unknown_layout(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(InferResponse, method, lambda self, something: None)
    before = state()
    with pytest.raises(tw.IntegrationError, match=f"InferResponse.{method}"):
        backend.install()
    assert state() == before
    monkeypatch.delattr(InferResponse, method)
    with pytest.raises(tw.IntegrationError, match=f"InferResponse.{method}"):
        backend.install()


def test_a_module_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, patches.__name__)
    monkeypatch.setitem(sys.modules, "kserve.protocol.rest.multiprocess.server", None)
    with pytest.raises(tw.IntegrationError, match="not laid out as expected"):
        backend.install()


@pytest.mark.parametrize(
    "order",
    [
        "import tensorwire.integrations.kserve as ours; ours.install(); from kserve import *",
        "from kserve import *; import tensorwire.integrations.kserve as ours; ours.install()",
        "from kserve.utils.utils import *; from tensorwire.integrations import kserve as ours;"
        "ours.install(); from kserve import *",
    ],
)
def test_any_order_of_imports(order: str) -> None:
    script = (
        f"{order}; import sys; from kserve import InferRequest; from kserve.utils import utils;"
        "body = sys.stdin.buffer.read();"
        f"view = InferRequest.from_bytes(body, {ONE[1]}, 'm').inputs[0].as_numpy();"
        "print(view.flags.owndata,"
        "utils.from_np_dtype.__code__.co_filename.count('tensorwire'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=ONE[0], capture_output=True, check=True
    )
    assert done.stdout == b"False 1\n"
