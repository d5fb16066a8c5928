"""tritonclient's requests with and without the integration, and the additional types it accepts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tensorwire as tw
from interop.samples import DTYPES, Array, binary_sample, bits, bytes_array
from support import tritonclient_comparison
from support.tritonclient_comparison import (
    ARRAYS,
    FEW,
    FLOATS,
    LARGE,
    Sub,
    body_of,
    both,
    large,
    module,
    object_array,
    outcome,
    parsed,
    response,
)

pytestmark = tritonclient_comparison.MARKS

http, grpc, utils = (
    tritonclient_comparison.http,
    tritonclient_comparison.grpc,
    tritonclient_comparison.utils,
)  # fixtures
either, installed, any_data = (
    tritonclient_comparison.either,
    tritonclient_comparison.installed,
    tritonclient_comparison.any_data,
)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("datatype", DTYPES)
def test_request(http: ModuleType, datatype: str, is_large: bool) -> None:
    array = large(datatype) if is_large else binary_sample(datatype)
    both(lambda: body_of(http, array, datatype))
    both(lambda: body_of(http, array[::-1], datatype))
    both(lambda: body_of(http, array[:0].reshape(2, 0), datatype))
    both(lambda: body_of(http, array[:, None].T, datatype))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("datatype", ["FP32", "UINT8", "BYTES"])
def test_request_of_many_dimensions(http: ModuleType, datatype: str, order: Any) -> None:
    values = np.arange(40 * 50 * 60).reshape(40, 50, 60, order=order)
    array = values.astype(DTYPES[datatype], order="K")
    both(lambda: body_of(http, array, datatype))
    both(lambda: body_of(http, array[3:, :, ::2], datatype))


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(FLOATS.astype(">f4"), id="big-endian"),
        pytest.param(FLOATS.astype(np.float64), id="another datatype"),
        pytest.param(np.ma.masked_array(FLOATS, FLOATS > 3, fill_value=7), id="masked"),
        pytest.param(FLOATS.view(Sub), id="subclass"),
        pytest.param(FLOATS[:5], id="small"),
        pytest.param(np.array(1, np.float32), id="0-d"),
        pytest.param(np.broadcast_to(np.float32(1), LARGE), id="repeated"),
        pytest.param(FLOATS.astype("U"), id="U"),
    ],
)
def test_request_of_other_arrays(http: ModuleType, array: Array) -> None:
    both(lambda: body_of(http, array, "FP32"))
    both(lambda: body_of(http, array, "BF16"))  # which older clients create from float32


@pytest.mark.parametrize("value", [None, [1.0], b"abcd", memoryview(b"abcd"), np.float32(1)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16", "none such"])
def test_request_of_objects_that_are_not_arrays(
    http: ModuleType, datatype: str, value: Any
) -> None:
    both(lambda: http.InferInput("x", [1], datatype).set_data_from_numpy(value))
    both(lambda: http.InferInput("x", [1], datatype).set_data_from_numpy(value, False))


@pytest.mark.parametrize("shape", [[2], [len(FLOATS) + 1], [1, len(FLOATS)], []])
def test_request_of_wrong_shape(http: ModuleType, shape: list[int]) -> None:
    both(lambda: http.InferInput("x", shape, "FP32").set_data_from_numpy(FLOATS))
    both(lambda: http.InferInput("x", shape, "FP16").set_data_from_numpy(FLOATS))


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("is_binary", [True, False])
def test_request_of_bytes(http: ModuleType, name: str, is_binary: bool) -> None:
    both(lambda: body_of(http, ARRAYS[name], "BYTES", binary_data=is_binary))


@pytest.mark.parametrize("datatype", DTYPES)
def test_json_request(http: ModuleType, datatype: str) -> None:
    array = binary_sample(datatype)[:7]
    both(lambda: body_of(http, array, datatype, binary_data=False))


def test_request_with_all_kinds_of_inputs_and_outputs(http: ModuleType) -> None:
    def body() -> Any:
        inputs = [http.InferInput(name, [len(FLOATS)], "FP32") for name in "abc"]
        inputs[0].set_data_from_numpy(FLOATS)
        inputs[1].set_data_from_numpy(FLOATS, binary_data=False)
        inputs[2].set_data_from_numpy(FLOATS).set_shared_memory("region", 8, 4)
        last = http.InferInput("d", [2], "BYTES").set_data_from_numpy(bytes_array([b"x", b""]))
        outputs = [http.InferRequestedOutput("o", binary_data=False)]
        generate = http.InferenceServerClient.generate_request_body
        return generate([*inputs, last], outputs, "7\xe9", 3, True, priority=2, parameters={"p": 1})

    both(body)


names = st.one_of(
    st.sampled_from(["", "INPUT__0", "a b", 'a"b', "\\", "/", "\x7f", "\0", "\xe9", "\ud800"]),
    st.text(max_size=4),
)
numbers = st.sampled_from([0, 1, -1, 2**63 - 1, 2**63, -(2**63), 2**64, True, False, 1.0, None])
random_arrays = st.one_of(
    npst.arrays(
        st.sampled_from([np.dtype(name) for name in ("?", "i1", "i8", "u8", "f2", "f4", "f8")]),
        npst.array_shapes(max_dims=2, min_side=0, max_side=4),
    ),
    st.lists(st.one_of(names, st.binary(max_size=3), numbers), max_size=4).map(object_array),
)


@given(
    arrays=st.lists(
        random_arrays,
        min_size=1,
        max_size=3,
    )
)
@example(arrays=[np.array([1e16, 1e-7, -0.0, 5e-324, np.nan]), np.array([np.inf, -np.inf])])
@FEW
def test_random_json_requests(arrays: list[Array]) -> None:
    """Numbers and texts are written as by tritonclient, including those that JSON does not have."""
    http = module("http", "http")

    def body() -> Any:
        inputs = []
        for array in arrays:
            datatype = "BYTES" if array.dtype == object else tw.Tensor("x", array).datatype
            tensor = http.InferInput("x", list(array.shape), datatype)
            inputs.append(tensor.set_data_from_numpy(array, binary_data=False))
        return http.InferenceServerClient.generate_request_body(inputs)

    both(body)


def test_request_of_an_iterator_or_a_list_with_its_own_order(http: ModuleType) -> None:
    class Backwards(list[Any]):
        def __iter__(self) -> Any:
            return reversed(self)

    def inputs() -> list[Any]:
        return [http.InferInput(x, [4], "FP32").set_data_from_numpy(FLOATS[:4]) for x in "ab"]

    generate = http.InferenceServerClient.generate_request_body
    both(lambda: generate(Backwards(inputs())))
    both(lambda: generate(iter(inputs())))


@pytest.mark.parametrize("shape", [[4], (4,), [np.int64(4)], [4.0], [True], ["4"], [4, 1], 4, None])
@pytest.mark.parametrize("api", ["http", "grpc"])
def test_shapes_and_parameters_when_data_is_set(http: ModuleType, api: str, shape: Any) -> None:
    """The parameters of shared memory are removed, and others are kept in their order."""

    def set_data(datatype: str, array: Array) -> Any:
        tensor = module(api, api).InferInput("x", [1], datatype)
        tensor.set_shared_memory("region", 4, 8)
        tensor.set_shape(shape)
        try:
            tensor.set_data_from_numpy(array)
        finally:
            found = outcome(tensor._get_tensor)
        return str(found), getattr(tensor, "_raw_content" if api == "grpc" else "_raw_data")

    for array in (FLOATS[:4], FLOATS[:4].astype(">f4"), FLOATS[:1], FLOATS[:1].astype(bool)):
        both(set_data, "FP32", array)
        both(set_data, "BOOL", array)
    both(set_data, "BYTES", object_array(["a", "b", "c", "d"]))
    both(set_data, "BYTES", object_array(["a", 1, None, 2.5]))


def test_data_set_repeatedly(http: ModuleType, either: bool) -> None:
    """The last call determines the data, in binary or JSON form."""
    generate = http.InferenceServerClient.generate_request_body
    tensor = http.InferInput("x", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)
    tensor.set_data_from_numpy(FLOATS + 1)
    body, length = generate([tensor])
    assert body[length:] == (FLOATS + 1).tobytes()
    assert type(body) is bytes
    tensor.set_data_from_numpy(FLOATS, binary_data=False)
    assert generate([tensor])[1] is None
    tensor.set_shape([2]).set_data_from_numpy(FLOATS[:2])
    body, length = generate([tensor])
    assert body[length:] == FLOATS[:2].tobytes()
    assert tensor._data is None  # the list of the JSON form is released


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_inputs_and_results_can_be_copied(
    http: ModuleType, any_data: None, copied: Callable[[Any], Any]
) -> None:
    generate = http.InferenceServerClient.generate_request_body
    tensor = http.InferInput("x", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)
    assert generate([copied(tensor)]) == generate([tensor])
    result = parsed(http, *response(FLOATS))
    assert bits(copied(result).as_numpy("OUTPUT0")) == bits(FLOATS)


def test_data_of_a_large_input(http: ModuleType, any_data: None) -> None:
    """They are read-only, and `bytes` for programs that create the body themselves."""
    tensor = http.InferInput("x", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)
    assert not tensor._raw_data.flags.writeable
    assert np.frombuffer(tensor._raw_data, np.float32).tolist() == FLOATS.tolist()
    assert type(tensor._get_binary_data()) is bytes
    assert tensor._get_binary_data() == FLOATS.tobytes()
    assert type(body_of(http, FLOATS, "FP32")[0]) is bytes


# --- gRPC ------------------------------------------------------------------------------------


def test_grpc_inputs_can_be_pickled(grpc: ModuleType, any_data: None) -> None:
    """Also for a process without the integration."""
    tensor = grpc.InferInput("x", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)
    pickled = pickle.dumps(tensor)
    assert b"tensorwire" not in pickled
    copied = pickle.loads(pickled)
    assert type(copied) is grpc.InferInput
    assert copied._get_content() == FLOATS.tobytes()


@pytest.mark.parametrize("datatype", DTYPES)
def test_grpc(grpc: ModuleType, datatype: str) -> None:
    service = import_module("tritonclient.grpc.service_pb2")

    def echo(array: Array) -> Any:
        tensor = grpc.InferInput("x", list(array.shape), datatype).set_data_from_numpy(array)
        content = tensor._get_content()
        reply = service.ModelInferResponse(raw_output_contents=[content])
        reply.outputs.add(name="y", datatype=datatype, shape=array.shape)
        return content, grpc.InferResult(reply).as_numpy("y")

    for array in (binary_sample(datatype), large(datatype)[::-1], binary_sample(datatype)[:0]):
        both(echo, array)


@pytest.mark.parametrize("value", [None, b"a", FLOATS, np.array(["a"]), object_array([1, None])])
@pytest.mark.parametrize("datatype", ["FP16", "BYTES"])
def test_grpc_of_other_arrays(grpc: ModuleType, datatype: str, value: Any) -> None:
    if datatype == "BYTES" and isinstance(value, np.ndarray) and value.dtype.kind == "U":
        value = value.astype("S")  # only the integration accepts U
    both(lambda: grpc.InferInput("x", [2], datatype).set_data_from_numpy(value)._get_content())


# --- additional types ------------------------------------------------------------------------

TEXT_ARRAYS = {
    "U": np.array([["a", "\xe9"], ["", "\U0001f600"]]),
    "U, big-endian": np.array([["a", "\xe9"], ["", "\U0001f600"]], ">U3"),
    "U, transposed": np.array([["a", "\xe9"], ["", "\U0001f600"]]).T,
    "StringDType": np.array([["a", "\xe9"], ["", "\U0001f600"]], np.dtypes.StringDType()),
    "BytesArray": tw.Tensor("x", [["a", "\xe9"], ["", "\U0001f600"]]).data,
}


@pytest.mark.parametrize("name", TEXT_ARRAYS)
@pytest.mark.parametrize("is_binary", [True, False])
def test_additional_bytes_types(
    http: ModuleType, utils: ModuleType, installed: None, name: str, is_binary: bool
) -> None:
    """The result is the same as for an object array of the elements."""
    values: Any = TEXT_ARRAYS[name]
    plain = values.as_numpy() if isinstance(values, tw.BytesArray) else values.astype(object)
    found = body_of(http, values, "BYTES", binary_data=is_binary)
    assert found == body_of(http, plain, "BYTES", binary_data=is_binary)
    assert bits(utils.serialize_byte_tensor(values)) == bits(utils.serialize_byte_tensor(plain))
    with pytest.raises(utils.InferenceServerException, match=r"shape \[2, 2\], expected \[3\]"):
        http.InferInput("x", [3], "BYTES").set_data_from_numpy(values)


@pytest.mark.parametrize("name", TEXT_ARRAYS)
def test_additional_bytes_types_over_grpc(grpc: ModuleType, installed: None, name: str) -> None:
    values: Any = TEXT_ARRAYS[name]
    tensor = grpc.InferInput("x", [2, 2], "BYTES").set_data_from_numpy(values)
    assert tensor._get_content() == tw.encode_bytes(values)
    assert type(tensor._get_content()) is bytes


def test_additional_bytes_type_with_invalid_element(utils: ModuleType, installed: None) -> None:
    with pytest.raises(tw.EncodeError, match="element 1 "):
        utils.serialize_byte_tensor(np.array(["a", "\ud800"]))


def test_empty_arrays_of_additional_bytes_types(http: ModuleType, installed: None) -> None:
    empty: list[Any] = [np.empty((2, 0), "U1"), tw.decode_bytes(b"").reshape((2, 0))]
    for values in empty:
        assert body_of(http, values, "BYTES") == body_of(http, np.empty((2, 0), object), "BYTES")
