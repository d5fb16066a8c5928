"""MLServer's codecs, types and raw contents, with and without the integration.

`test_mlserver_integration.py` runs this file in the environment of MLServer.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from mlserver import ModelSettings, Settings, codecs, errors, raw, types
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, PandasCodec, StringCodec
from mlserver.grpc import converters, dataplane_pb2_grpc
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc import server as grpc_server
from mlserver.grpc.servicers import InferenceServicer
from mlserver.handlers import DataPlane
from mlserver.parallel import worker
from mlserver.rest.app import APIRoute

import tensorwire as tw
from interop.json_requests import installed
from interop.recorded_sources import (
    check_next_release,
    check_recorded,
    replaced,
    simulate_next_release,
)
from tensorwire._codec.protobuf_writer import append_fields
from tensorwire.integrations import mlserver
from tensorwire.integrations.mlserver import patches
from tensorwire.integrations.mlserver.convert import (
    ArrayData,
    array_of,
    to_inference_request,
    to_tensor,
)
from tensorwire.integrations.split import SplitMessage

WITH_AND_WITHOUT = pytest.mark.parametrize("integration", [False, True], indirect=True)
NUMBERS = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


@pytest.fixture
def integration(request: pytest.FixtureRequest) -> Iterator[bool]:
    is_installed = getattr(request, "param", True)
    if is_installed:
        mlserver.install()
    yield is_installed
    mlserver.uninstall()


def output(data: Any, datatype: str, shape: list[int], **parameters: Any) -> Any:
    made = types.ResponseOutput(name="y", datatype=datatype, shape=shape, data=[])
    made.data = data
    if parameters:
        made.parameters = types.Parameters(**parameters)
    return made


# --- install and uninstall ---

ADD = "add_GRPCInferenceServiceServicer_to_server"


def state() -> list[Any]:
    owners = [
        *(NumpyCodec, APIRoute, raw, codecs.string, grpc_server, dataplane_pb2_grpc),
        *(converters.ModelInferRequestConverter, converters.ModelInferResponseConverter),
    ]
    return [dict(vars(owner)) for owner in owners]


def test_uninstall_restores_everything() -> None:
    before = state()
    for _ in range(2):
        mlserver.install()
        mlserver.install()
        now = state()
        assert now[4][ADD] is now[5][ADD] is not before[5][ADD]
        assert "handle" in vars(APIRoute)
        mlserver.uninstall()
        mlserver.uninstall()
        assert state() == before


@pytest.mark.parametrize("module", ["mlserver", "mlserver.server", "mlserver.grpc.server"])
@pytest.mark.parametrize("is_first", [False, True])
def test_install_before_or_after_imports(module: str, is_first: bool) -> None:
    lines = [f"import {module}", "from tensorwire.integrations import mlserver as m; m.install()"]
    lines = lines if is_first else lines[::-1]
    lines.append("from mlserver.grpc import dataplane_pb2_grpc, server")
    lines.append(f"assert server.{ADD} is dataplane_pb2_grpc.{ADD}")
    lines.append(f"assert 'tensorwire' in server.{ADD}.__code__.co_filename")
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_digests_are_recorded() -> None:
    check_recorded(mlserver)


def test_parallel_worker_installs_the_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the integration was uninstalled before."""
    mlserver.install()
    mlserver.uninstall()
    options: Any = {"untested": "error", "max_body": 1000}
    mlserver.install(**options)
    called: list[Any] = []
    ours: Any = worker.Worker
    monkeypatch.setattr(ours.__base__, "__init__", lambda *arguments: None)
    monkeypatch.setattr(ours.__base__, "run", lambda _: called.append("run"))
    monkeypatch.setattr(patches, "install", lambda **options: called.append(options))
    ours(None, None).run()
    mlserver.uninstall()
    assert called == [options, "run"]


NUMPY, WORKER = {"NumpyCodec.encode_output"}, {"worker.Worker"}
SERVER = {"APIRoute.handle", "DataPlane.metadata"}


@pytest.mark.parametrize(
    ("left_out", "changed"),
    [
        (SERVER, ("mlserver.rest.endpoints", "insert_headers(payload", "add_headers(payload")),
        (SERVER, ("starlette.routing", "await self.app(scope", "await self.other(scope")),
        (NUMPY, ("mlserver.codecs.numpy", "def convert_nan(val)", "def convert_nan(x)")),
        (WORKER, ("mlserver.parallel.worker", "super().__init__()", "super().__init__(1)")),
    ],
)
def test_next_release_with_another_source(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    left_out: set[str],
    changed: tuple[str, str, str],
) -> None:
    check_next_release(mlserver, state, monkeypatch, caplog, changed, left_out)


def test_next_release_without_a_function(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Replacements that rely on the function are left out as well."""
    mlserver.install()
    everything = replaced(mlserver)
    mlserver.uninstall()
    simulate_next_release(monkeypatch)
    monkeypatch.delattr(raw, "inject_raw")
    mlserver.install(untested="allow")
    assert replaced(mlserver) == everything - {"raw.inject_raw", f"dataplane_pb2_grpc.{ADD}"}
    assert r"mlserver.raw.inject_raw (is missing)" in caplog.records[0].getMessage()
    mlserver.uninstall()


# --- NumpyCodec ---


@WITH_AND_WITHOUT
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 2, 2), (0,), (2, 0), ()])
def test_numeric_arrays(integration: bool, dtype: str, shape: tuple[int, ...]) -> None:
    """The encoded tensor has the same type, shape and data with and without the integration."""
    array = np.arange(np.prod(shape), dtype=np.int8).astype(dtype).reshape(shape)
    made = NumpyCodec.encode_output("y", array)
    expected = [*array.shape] if array.ndim > 1 else [*array.shape, 1]
    assert (made.name, made.shape) == ("y", expected)
    assert made.parameters.content_type == "np"
    assert type(made.data.root) is list
    assert made.data.root == array.ravel().tolist()
    assert [type(x) for x in made.data] == [type(x) for x in array.ravel().tolist()]
    decoded = NumpyCodec.decode_output(made)
    assert (decoded.dtype, decoded.tolist()) == (array.dtype, array.reshape(expected).tolist())
    assert decoded.flags.writeable


@WITH_AND_WITHOUT
@pytest.mark.parametrize("n", [1, 1000])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_nan_in_lists_and_json(integration: bool, dtype: str, n: int) -> None:
    made = NumpyCodec.encode_output("y", np.array([1, np.nan, np.inf] * n, dtype))
    assert made.model_dump()["data"] == [1, None, np.inf] * n
    assert made.data[1] is None
    infinities = np.array([-np.inf, np.inf] * n, dtype)
    assert NumpyCodec.encode_output("y", infinities).data.root == [-np.inf, np.inf] * n


ENCODED = {
    "numbers": lambda: NumpyCodec.encode_output("y", np.arange(3, dtype=np.int16)),
    "many numbers": lambda: NumpyCodec.encode_output("y", np.arange(3000.0)),
    "an unusual name": lambda: NumpyCodec.encode_output(type("Name", (str,), {})("y"), np.ones(1)),
    "U": lambda: NumpyCodec.encode_output("y", np.array(["a", "\xe9"])),
    "S": lambda: NumpyCodec.encode_output("y", np.array([b"a", b"bc"])),
    "empty S": lambda: NumpyCodec.encode_output("y", np.array([b"", b""])),
    "S0": lambda: NumpyCodec.encode_output("y", np.ndarray(2, "S0")),
    "texts": lambda: StringCodec.encode_output("y", ["a", "\xe9"]),
    "many texts": lambda: StringCodec.encode_output("y", ["a", "\xe9"] * 1000),
    "input": lambda: NumpyCodec.encode_input("y", np.arange(3)),
}


@pytest.mark.parametrize("case", ENCODED)
def test_encoded_tensors_are_equal_to_those_without_the_integration(case: str) -> None:
    """The integration creates them without validation: all attributes of pydantic are equal."""
    plain = ENCODED[case]()
    with installed(mlserver):
        ours = ENCODED[case]()
        assert ours == plain
        assert repr(ours.model_dump()) == repr(plain.model_dump())
        assert ours.model_dump_json() == plain.model_dump_json()
        assert list(ours.__dict__) == list(plain.__dict__)
        for one, other in [(ours, plain), (ours.parameters, plain.parameters)]:
            assert one.model_fields_set == other.model_fields_set
            assert one.model_extra == other.model_extra
            assert one.__pydantic_private__ == other.__pydantic_private__
        assert ours.model_copy(deep=True) == plain


def test_output_is_copied_once_for_raw_contents(integration: bool) -> None:
    """The bytes that the codec makes are the raw contents."""
    made = NumpyCodec.encode_output("y", np.arange(6, dtype=np.float32).reshape(2, 3).T)
    base: Any = array_of(made.data).base  # type: ignore[union-attr]
    assert raw.pack(made) is base
    assert np.frombuffer(base, np.float32).tolist() == [0, 3, 1, 4, 2, 5]


def test_array_in_fortran_order_as_raw_contents(integration: bool) -> None:
    numbers = np.arange(100, dtype=np.float32).reshape(10, 10)
    array = np.ndarray((10, 10), np.float32, buffer=numbers.tobytes("F"), order="F")
    tensor = output(ArrayData.from_array(array), "FP32", [10, 10])
    assert raw.pack(tensor) == numbers.tobytes()


def test_array_in_a_part_of_a_bytes_object_as_raw_contents(integration: bool) -> None:
    array = np.frombuffer(bytes(range(12)), np.float32, offset=4)
    assert raw.pack(output(ArrayData.from_array(array), "FP32", [2])) == array.tobytes()


@pytest.mark.parametrize("values", [[2], ["a"], [None], [0.5]])
def test_binary_output_with_other_values_than_bool_is_rejected(values: list[Any]) -> None:
    """The struct module would convert them to BOOL."""
    with pytest.raises((tw.EncodeError, TypeError)):
        to_tensor(output(types.TensorData(values), "BOOL", [1]), is_binary=True)


@WITH_AND_WITHOUT
@pytest.mark.parametrize(
    ("array", "data"),
    [
        (np.array([b"ab", b"c"]), [b"ab" + b"c\0"]),
        (np.array(["ab", "\xe9"]), [b"ab", b"\xc3\xa9"]),
        (np.array([b"ab", b"c"], object), [b"ab", b"c"]),
        (np.array([["a", "b"]], object), ["a", "b"]),
    ],
)
def test_text_arrays(integration: bool, array: Any, data: list[Any]) -> None:
    made = NumpyCodec.encode_output("y", array)
    assert len(made.data) == len(data)
    assert made.data.root == data


@WITH_AND_WITHOUT
def test_arrays_without_datatype_are_rejected(integration: bool) -> None:
    for array in (np.array([1j]), np.array([1], ">i4"), np.array(["2020"], "M8[D]")):
        with pytest.raises(KeyError):
            NumpyCodec.encode_output("y", array)


@WITH_AND_WITHOUT
def test_encoding_copies_the_array(integration: bool) -> None:
    array = np.ones(3, np.float32)
    made = NumpyCodec.encode_output("y", array)
    array[:] = 0
    assert NumpyCodec.decode_output(made).ravel().tolist() == [1, 1, 1]


@WITH_AND_WITHOUT
def test_encoded_tensors_are_read_by_other_codecs(integration: bool) -> None:
    response = NumpyRequestCodec.encode_response("m", np.arange(3, dtype=np.int32))
    assert NumpyRequestCodec.decode_response(response).ravel().tolist() == [0, 1, 2]
    column = NumpyCodec.encode_input("a", np.arange(3, dtype=np.int32))
    frame = PandasCodec.decode_request(types.InferenceRequest(inputs=[column]))
    assert frame["a"].tolist() == [0, 1, 2]


def test_decoded_array_is_a_view_of_the_body(integration: bool) -> None:
    body = np.arange(4, dtype=np.float32)
    tensor = output(ArrayData.from_array(body), "FP32", [2, 2])
    assert np.shares_memory(NumpyCodec.decode_output(tensor), body)
    body.flags.writeable = False
    decoded = NumpyCodec.decode_output(tensor)
    assert decoded.flags.writeable
    assert decoded.tolist() == [[0, 1], [2, 3]]
    odd = np.zeros(9, np.uint8)[1:].view(np.float32)
    assert NumpyCodec.decode_output(output(ArrayData.from_array(odd), "FP32", [2])).flags.aligned


def test_modified_list_becomes_the_data(integration: bool) -> None:
    made = NumpyCodec.encode_output("y", np.arange(3, dtype=np.int32))
    assert array_of(made.data) is not None
    made.data.root[0] = 7
    assert array_of(made.data) is None
    assert made.data.root == [7, 1, 2]
    assert NumpyCodec.decode_output(made).ravel().tolist() == [7, 1, 2]
    assert raw.pack(made) == np.array([7, 1, 2], np.int32).tobytes()
    made.data.root = [1, 2, 3]
    assert list(made.data) == [1, 2, 3]


def test_bytes_as_a_fixed_width_array(integration: bool) -> None:
    words = tw.decode_bytes(tw.encode_bytes([b"ab", b"c"]))
    decoded = NumpyCodec.decode_output(output(ArrayData.from_array(words), "BYTES", [2, 1]))
    assert (decoded.dtype, decoded.tolist()) == (np.dtype("S2"), [[b"ab"], [b"c"]])


@pytest.mark.parametrize("is_listed", [False, True])
def test_pickle_copy_and_compare(integration: bool, is_listed: bool) -> None:
    """MLServer pickles the data for its workers. It equals a plain TensorData."""
    for data in (np.array([1, np.nan], np.float32), tw.decode_bytes(tw.encode_bytes([b"a"]))):
        made = ArrayData.from_array(data, nan_as_none=True)
        plain = types.TensorData(list(ArrayData.from_array(data, nan_as_none=True)))
        assert not is_listed or made.root
        copies = [pickle.loads(pickle.dumps(made, protocol)) for protocol in (2, 4, 5)]
        shallow = copy.copy(made)
        shallow.root[0] = 5
        for copied in [made, copy.copy(made), copy.deepcopy(made), *copies]:
            assert copied == plain
            assert plain == copied
            assert copied.root == plain.root
            assert copied.model_dump() == plain.model_dump()
    assert "ArrayData" in repr(ArrayData.from_array(np.ones(1)))


# --- StringCodec ---


@WITH_AND_WITHOUT
@pytest.mark.parametrize("texts", [[], ["a"], ["", "\xe9\u20ac", "a\0"]])
@pytest.mark.parametrize("use_bytes", [False, True])
def test_texts(integration: bool, texts: list[str], use_bytes: bool) -> None:
    made = StringCodec.encode_output("y", texts, use_bytes=use_bytes)
    assert (made.datatype, made.shape) == ("BYTES", [len(texts), 1])
    assert made.data.root == ([text.encode() for text in texts] if use_bytes else texts)
    assert StringCodec.decode_output(made) == texts
    assert StringCodec.decode_input(StringCodec.encode_input("y", texts)) == texts


@WITH_AND_WITHOUT
@pytest.mark.parametrize("n", [1, 1000])
@pytest.mark.parametrize("texts", [[None], [5], [["a"]], ["\ud800"]])
def test_invalid_texts_are_rejected(integration: bool, texts: list[Any], n: int) -> None:
    with pytest.raises((AttributeError, UnicodeEncodeError)):
        StringCodec.encode_output("y", texts * n)


def test_bytes_that_are_not_utf8_are_rejected(integration: bool) -> None:
    words = ArrayData.from_array(tw.decode_bytes(tw.encode_bytes([b"a", b"\xff"])))
    with pytest.raises(
        errors.MLServerError, match=r"tensor 'y': element 1 of the array is not valid UTF-8"
    ) as caught:
        StringCodec.decode_output(output(words, "BYTES", [2]))
    assert caught.value.status_code == 400


# --- raw contents ---


def request_of(tensors: list[tuple[str, str, list[int]]], contents: list[bytes]) -> Any:
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=contents)
    for name, datatype, shape in tensors:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
    return converters.ModelInferRequestConverter.to_types(message)


@pytest.mark.parametrize("texts", [[b"hello"], [b"a", b"b c"], [b"x" * 200]])
def test_raw_contents_beside_a_message(integration: bool, texts: list[bytes]) -> None:
    """They are views, but what a model gets can be pickled, and the message can be copied."""
    head = pb.ModelInferRequest(model_name="m")
    head.inputs.add(name="x", datatype="BYTES", shape=[len(texts)])
    split = SplitMessage(head, [memoryview(bytes(tw.encode_bytes(texts)))])
    for message in (split, copy.copy(split)):
        request = converters.ModelInferRequestConverter.to_types(message)
        assert list(request.inputs[0].data) == texts
        assert StringCodec.decode_input(request.inputs[0]) == [text.decode() for text in texts]
        assert pickle.loads(pickle.dumps(request)) == request


@WITH_AND_WITHOUT
@pytest.mark.parametrize("dtype", NUMBERS)
def test_raw_numbers(integration: bool, dtype: str) -> None:
    array = np.arange(4, dtype=np.int8).astype(dtype).reshape(2, 2)
    made = NumpyCodec.encode_output("y", array)
    response = types.InferenceResponse(model_name="m", outputs=[made])
    message = converters.ModelInferResponseConverter.from_types(response, use_raw=True)
    assert list(message.raw_output_contents) == [array.tobytes()]
    request = request_of([("x", made.datatype, [2, 2])], list(message.raw_output_contents))
    decoded = NumpyCodec.decode_input(request.inputs[0])
    assert (decoded.dtype, decoded.tolist()) == (array.dtype, array.tolist())
    assert decoded.flags.writeable
    assert request.inputs[0].data.root == array.ravel().tolist()
    assert raw.unpack(request.inputs[0], array.tobytes()) == array.ravel().tolist()


@WITH_AND_WITHOUT
@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("FP32", [1.5, 2]),
        ("FP64", [1e300, float("inf")]),
        ("FP16", [1.5, 2.0]),
        ("INT64", [-(2**63), 1]),
        ("UINT8", [True, 255]),
        ("BOOL", [1, 0]),
        ("BYTES", ["\xe9", b"\xff"]),
        ("BYTES", []),
    ],
)
def test_raw_lists(integration: bool, datatype: str, values: list[Any]) -> None:
    """A runtime without a codec returns such lists."""
    made = output(types.TensorData(values), datatype, [len(values)])
    [packed] = raw.extract_raw([made])[1]
    found = raw.unpack(made, packed)
    assert found == [x.encode() if isinstance(x, str) else x for x in values]


@WITH_AND_WITHOUT
@pytest.mark.parametrize(
    ("datatype", "values"),
    [("FP32", [None]), ("INT8", [128]), ("INT8", [1.0]), ("INT8", [1, 2]), ("INT8", ["a"])],
)
def test_raw_lists_of_invalid_values_are_rejected(
    integration: bool, datatype: str, values: list[Any]
) -> None:
    with pytest.raises(struct.error):
        raw.pack(output(types.TensorData(values), datatype, [1]))


@WITH_AND_WITHOUT
def test_raw_contents_beside_a_tensor_with_contents(integration: bool) -> None:
    """Everything else in the request is as MLServer converts it."""
    message = pb.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"\x07"])
    message.parameters["a"].int64_param = 1
    for name, values in (("x", [5]), ("y", [])):
        tensor = message.inputs.add(name=name, datatype="INT8", shape=[1])
        tensor.parameters["content_type"].string_param = "np"
        tensor.contents.int_contents.extend(values)
    message.outputs.add(name="z").parameters["b"].bool_param = True
    request = converters.ModelInferRequestConverter.to_types(message)
    parameters = {"content_type": "np"}
    entry = {"shape": [1], "datatype": "INT8", "parameters": parameters}
    assert request.model_dump() == {
        "id": "7",
        "parameters": {"a": 1},
        "inputs": [{"name": "x", **entry, "data": [5]}, {"name": "y", **entry, "data": [7]}],
        "outputs": [{"name": "z", "parameters": {"b": True}}],
    }


@WITH_AND_WITHOUT
def test_array_of_another_size_than_the_shape_has_no_raw_contents(integration: bool) -> None:
    made = NumpyCodec.encode_output("y", np.arange(3))
    made.shape = [2]
    with pytest.raises(struct.error):
        raw.pack(made)


@WITH_AND_WITHOUT
@pytest.mark.parametrize("n", [1, 100])
def test_raw_bytes_in_one_element(integration: bool, n: int) -> None:
    """MLServer sends S arrays over gRPC as one element."""
    array = np.array([[b"ab", b"cd"], [b"ef", b"gh"]] * n)
    made = NumpyCodec.encode_output("y", array)
    [packed] = raw.extract_raw([made])[1]
    assert packed == (8 * n).to_bytes(4, "little") + array.tobytes()
    [received] = request_of([("x", "BYTES", [2 * n, 2])], [packed]).inputs
    assert NumpyCodec.decode_input(received).tolist() == array.tolist()


@WITH_AND_WITHOUT
@pytest.mark.parametrize("n", [1, 1000])
def test_nan_in_the_list_of_a_raw_request(integration: bool, n: int) -> None:
    array = np.array([1, np.nan] * n, np.float32)
    [received] = request_of([("x", "FP32", [2 * n])], [array.tobytes()]).inputs
    assert repr(received.data.root) == repr(array.tolist())


def test_raw_nan(integration: bool) -> None:
    """Without the integration this raises struct.error, because the lists contain None."""
    array = np.array([1, np.nan], np.float32)
    assert raw.pack(NumpyCodec.encode_output("y", array)) == array.tobytes()


@pytest.mark.parametrize(
    ("tensors", "contents", "message"),
    [
        (
            [("x", "FP32", [3])],
            [b"1234"],
            "FP32 .3. requires 12 bytes, but its binary data has 4",
        ),
        (
            [("x", "FP32", [1])],
            [bytes(200)],
            "FP32 .1. requires 4 bytes, but its binary data has 200",
        ),
        ([("x", "FP32", [-1])], [b"1234"], "negative dimension"),
        ([("x", "FP32", [-1, -1])], [b"1234"], "negative dimension"),
        ([("x", "FP32", [-2, -2])], [b"1234" * 4], "negative dimension"),
        ([("x", "FP33", [1])], [b"1234"], "FP33"),
        ([("x", "BYTES", [1])], [b"\x05\0\0\0a"], "truncated"),
        ([("x", "BOOL", [1])], [b"\x02"], "must be 0 or 1"),
        ([("x", "INT8", [1]), ("y", "INT8", [1])], [b"1"], "2 tensors .* contents for 1"),
        ([("x", "INT8", [1])], [b"1", b"2"], "1 tensor .* contents for 2"),
    ],
)
def test_invalid_raw_contents_are_rejected(
    integration: bool, tensors: list[Any], contents: list[bytes], message: str
) -> None:
    with pytest.raises(errors.MLServerError, match=message) as caught:
        request_of(tensors, contents)
    assert caught.value.status_code == 400


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (tw.Tensor("x", np.zeros(1, np.uint16), datatype="BF16"), "has the datatype BF16, which"),
        (
            tw.decode_request(
                b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":'
                b'{"shared_memory_region":"r","shared_memory_byte_size":4}}]}'
            ).inputs[0],
            "is in shared memory, which MLServer does not support",
        ),
    ],
    ids=["BF16", "shared memory"],
)
def test_inputs_that_mlserver_does_not_support(tensor: tw.Tensor, message: str) -> None:
    with pytest.raises(tw.DecodeError, match=f"input 'x' {message}") as caught:
        to_inference_request(tw.InferRequest([tensor]))
    assert caught.value.status == 400


def test_texts_in_the_json_of_a_binary_request() -> None:
    """The model gets `str`, as from a request that is entirely JSON, and otherwise `bytes`."""
    for is_binary, expected in ((False, ["a", "\xe9"]), (True, [b"a", b"\xc3\xa9"])):
        sent = tw.InferRequest([tw.Tensor("x", ["a", "\xe9"], binary=is_binary)])
        frame = tw.encode_request(sent)
        request = tw.decode_request(bytes(frame), frame.header_length)
        assert to_inference_request(request).inputs[0].data.root == expected


@WITH_AND_WITHOUT
def test_typed_contents(integration: bool) -> None:
    made = NumpyCodec.encode_output("y", np.array([1, 2], np.float32))
    response = types.InferenceResponse(model_name="m", outputs=[made])
    message = converters.ModelInferResponseConverter.from_types(response)
    assert list(message.outputs[0].contents.fp32_contents) == [1, 2]


# --- gRPC server ---


class Model:
    """A model registry with one model."""

    ready, settings = True, ModelSettings(name="m", implementation="mlserver.MLModel")

    async def get_model(self, *_: Any) -> Model:
        return self

    async def predict(self, payload: Any) -> Any:
        array = NumpyCodec.decode_input(payload.inputs[0])
        array += 1
        return types.InferenceResponse(
            model_name="m", outputs=[NumpyCodec.encode_output("y", array)]
        )


def test_grpc_server(integration: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw contents in both directions. An error has MLServer's status, and the server continues."""
    appended: list[list[bytes]] = []

    def append(head: bytes, number: int, contents: list[bytes]) -> bytes:
        appended.append(contents)
        return append_fields(head, number, contents)

    monkeypatch.setattr("tensorwire.integrations.split.append_fields", append)

    def message(contents: bytes) -> Any:
        made = pb.ModelInferRequest(model_name="m", raw_input_contents=[contents])
        made.inputs.add(name="x", datatype="FP32", shape=[2])
        return made

    async def talk(steps: Callable[..., Any]) -> None:
        server = grpc.aio.server()
        servicer = InferenceServicer(DataPlane(Settings(), Model()), None)
        dataplane_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await steps(dataplane_pb2_grpc.GRPCInferenceServiceStub(channel))
        finally:
            await server.stop(0)

    async def steps(stub: Any) -> None:
        sent = np.array([1, np.nan], np.float32)
        for _ in range(2):
            answer = await stub.ModelInfer(message(sent.tobytes()))
            assert answer.raw_output_contents[0] == (sent + 1).tobytes()
            assert appended.pop() == [(sent + 1).tobytes()]
            with pytest.raises(grpc.aio.AioRpcError, match="its binary data has 4") as caught:
                await stub.ModelInfer(message(b"1234"))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        typed = message(b"")
        typed.ClearField("raw_input_contents")
        typed.inputs[0].contents.fp32_contents.extend([1, 2])
        answer = await stub.ModelInfer(typed)
        assert list(answer.outputs[0].contents.fp32_contents) == [2, 3]
        assert not answer.raw_output_contents
        found = await stub.ServerMetadata(pb.ServerMetadataRequest())
        assert list(found.extensions) == ["binary_tensor_data"]

    asyncio.run(talk(steps))
