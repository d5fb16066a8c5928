"""Bodies that tritonclient.http creates and reads, with and without the integration."""

from __future__ import annotations

import copy
import gzip
import pickle
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example
from hypothesis import given as given_by_hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tensorwire as tw
from interop.samples import DTYPES, Array, binary_sample, bits, bytes_array
from support import tritonclient_comparison as comparison
from support.memory import peak_nbytes
from support.tritonclient_calls import given, grpc, http
from support.tritonclient_comparison import (
    BYTES_ARRAYS,
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

pytestmark = comparison.MARKS
either, installed, any_data = comparison.either, comparison.installed, comparison.any_data

generate = http.InferenceServerClient.generate_request_body
with_datatype = pytest.mark.parametrize("datatype", DTYPES)
with_size = pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])


# --- requests ------------------------------------------------------------------------------------


@with_size
@with_datatype
def test_request(datatype: str, is_large: bool) -> None:
    array = large(datatype) if is_large else binary_sample(datatype)
    for each in (array, array[::-1], array[:0].reshape(2, 0), array[:, None].T):
        both(body_of, each, datatype)
    both(lambda: body_of(array[:7], datatype, binary_data=False))


OTHER_ARRAYS = {
    "big-endian": FLOATS.astype(">f4"),
    "another datatype": FLOATS.astype(np.float64),
    "masked": np.ma.masked_array(FLOATS, FLOATS > 3, fill_value=7),
    "subclass": FLOATS.view(Sub),
    "0-d": np.array(1, np.float32),
    "repeated": np.broadcast_to(np.float32(1), LARGE),
    "U": FLOATS.astype("U"),
}


@pytest.mark.parametrize("name", OTHER_ARRAYS)
def test_request_of_other_arrays(name: str) -> None:
    both(body_of, OTHER_ARRAYS[name], "FP32")
    both(body_of, OTHER_ARRAYS[name], "BF16")  # which older clients create from float32


@pytest.mark.parametrize("value", [None, [1.0], b"abcd", memoryview(b"abcd"), np.float32(1)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16", "none such"])
@pytest.mark.parametrize("is_binary", [True, False])
def test_request_of_objects_that_are_not_arrays(datatype: str, value: Any, is_binary: bool) -> None:
    both(lambda: http.InferInput("x", [1], datatype).set_data_from_numpy(value, is_binary))


@pytest.mark.parametrize("name", BYTES_ARRAYS)
@pytest.mark.parametrize("is_binary", [True, False])
def test_request_of_bytes(name: str, is_binary: bool) -> None:
    both(lambda: body_of(BYTES_ARRAYS[name], "BYTES", binary_data=is_binary))


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


@given_by_hypothesis(arrays=st.lists(random_arrays, min_size=1, max_size=3))
@example(arrays=[np.array([1e16, 1e-7, -0.0, 5e-324, np.nan]), np.array([np.inf, -np.inf])])
@FEW
def test_random_json_requests(arrays: list[Array]) -> None:
    """Numbers and texts are written as by tritonclient, including those that JSON does not have."""

    def body() -> Any:
        inputs = []
        for array in arrays:
            datatype = "BYTES" if array.dtype == object else tw.Tensor("x", array).datatype
            tensor = http.InferInput("x", list(array.shape), datatype)
            inputs.append(tensor.set_data_from_numpy(array, binary_data=False))
        return generate(inputs)

    both(body)


@pytest.mark.parametrize("shape", [[4], (4,), [np.int64(4)], [4.0], [True], ["4"], [4, 1], 4, None])
@pytest.mark.parametrize(("api", "data"), [(http, "_raw_data"), (grpc, "_raw_content")])
def test_shapes_and_parameters_when_data_is_set(api: Any, data: str, shape: Any) -> None:
    """The parameters of shared memory are removed, and others are kept in their order."""

    def set_data(datatype: str, array: Array) -> Any:
        tensor = api.InferInput("x", [1], datatype)
        tensor.set_shared_memory("region", 4, 8)
        tensor.set_shape(shape)
        try:
            tensor.set_data_from_numpy(array)
        finally:
            found = outcome(tensor._get_tensor)
        return str(found), getattr(tensor, data)

    for array in (FLOATS[:4], FLOATS[:4].astype(">f4"), FLOATS[:1], FLOATS[:1].astype(bool)):
        both(set_data, "FP32", array)
        both(set_data, "BOOL", array)
    both(set_data, "BYTES", object_array(["a", "b", "c", "d"]))
    both(set_data, "BYTES", object_array(["a", 1, None, 2.5]))


def test_data_set_repeatedly(either: bool) -> None:
    """The last call determines the data, in binary or JSON form."""
    tensor = given(http)
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
def test_inputs_and_results_can_be_copied(any_data: None, copied: Callable[[Any], Any]) -> None:
    tensor = given(http)
    assert generate([copied(tensor)]) == generate([tensor])
    result = parsed(*response(FLOATS))
    assert bits(copied(result).as_numpy("OUTPUT0")) == bits(FLOATS)


def test_data_of_a_large_input(any_data: None) -> None:
    """They are read-only, and `bytes` for programs that create the body themselves."""
    tensor = given(http)
    assert not tensor._raw_data.flags.writeable
    assert tensor._raw_data.tobytes() == FLOATS.tobytes()
    assert type(tensor._get_binary_data()) is bytes
    assert tensor._get_binary_data() == FLOATS.tobytes()
    assert type(body_of(FLOATS, "FP32")[0]) is bytes


# --- additional types ----------------------------------------------------------------------------

VALUES = [["a", "\xe9"], ["", "\U0001f600"]]
TEXT_ARRAYS: dict[str, Any] = {
    "U": np.array(VALUES),
    "U, big-endian": np.array(VALUES, ">U3"),
    "U, transposed": np.array(VALUES).T,
    "U, empty": np.empty((2, 0), "U1"),
    "StringDType": np.array(VALUES, np.dtypes.StringDType()),
    "BytesArray": tw.Tensor("x", VALUES).data,
    "BytesArray, empty": tw.decode_bytes(b"").reshape((2, 0)),
}


@pytest.mark.parametrize("name", TEXT_ARRAYS)
def test_additional_bytes_types(installed: None, name: str) -> None:
    """The result is the same as for an object array of the elements."""
    utils, values = module("utils", "http"), TEXT_ARRAYS[name]
    plain = values.as_numpy() if isinstance(values, tw.BytesArray) else values.astype(object)
    for is_binary in (True, False):
        found = body_of(values, "BYTES", binary_data=is_binary)
        assert found == body_of(plain, "BYTES", binary_data=is_binary)
    assert bits(utils.serialize_byte_tensor(values)) == bits(utils.serialize_byte_tensor(plain))
    content = given(grpc, values, "x", "BYTES")._get_content()
    assert (type(content), content) == (bytes, tw.encode_bytes(values))
    for api in (http, grpc):
        with pytest.raises(utils.InferenceServerException, match=r"shape \[2, \d\], expected \[3"):
            given(api, values, "x", "BYTES", [3])


def test_additional_bytes_type_with_invalid_element(installed: None) -> None:
    with pytest.raises(tw.EncodeError, match="element 1 "):
        module("utils", "http").serialize_byte_tensor(np.array(["a", "\ud800"]))


# --- responses -----------------------------------------------------------------------------------


def output(body: Any, length: Any, name: str = "OUTPUT0", encoding: str | None = None) -> Any:
    """Return an output, read as programs read it."""
    return parsed(body, length, encoding).as_numpy(name)


@with_size
@with_datatype
def test_response(datatype: str, is_large: bool) -> None:
    array = large(datatype) if is_large else binary_sample(datatype)
    body, length = response(array, array[::-1], align=1)
    for received in (body, bytearray(body)):
        for name in ("OUTPUT0", "OUTPUT1", "none such"):
            both(output, received, length, name)
    found = both(output, body, str(length))
    assert found[:3:2] == (np.ndarray, array.shape)
    assert found[1] == array.dtype or datatype == "BF16"  # which older clients convert to float32


@pytest.mark.parametrize("cut", [1, 3, 4, LARGE, LARGE + 50, 2 * LARGE + 20, 2 * LARGE + 150])
@pytest.mark.parametrize("is_late", [False, True])
def test_malformed_response(cut: int, is_late: bool) -> None:
    body, length = response(FLOATS, bytes_array([b"abc"] * (LARGE // 7)))
    damaged = body[cut:] if is_late else body[:-cut]
    for name in ("OUTPUT0", "OUTPUT1"):
        both(output, damaged, length, name)


@pytest.mark.parametrize("length", [None, 0, -1, -5, 5, 10**9, "64", "abc", "", b"64", 64.0])
@pytest.mark.parametrize("array", [FLOATS, FLOATS[:4]], ids=["large", "small"])
def test_wrong_header_length(array: Array, length: Any) -> None:
    both(output, response(array)[0], length)


@pytest.mark.parametrize("kind", [bytearray, memoryview, np.array, str, lambda body: None])
def test_body_of_other_buffer_types(kind: Callable[[Any], Any]) -> None:
    body, length = response(FLOATS)
    both(output, kind(body), length)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", bytes), ("gzip", bytes)],
)
def test_compressed_response(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    for array in (FLOATS, FLOATS[:4]):
        body, length = response(array, array)
        both(output, pack(body), length, "OUTPUT1", encoding)


def test_subclass_with_its_own_constructor() -> None:
    """It reads `bytes` from the response."""

    class Result(http.InferResult):  # type: ignore[misc, name-defined]
        def __init__(self, response: Any, verbose: bool) -> None:
            length = int(response.get("Inference-Header-Content-Length"))
            self.parts = response.read(length=length), response.read()

    body, length = response(FLOATS)
    both(lambda: Result.from_response_body(body, False, length).parts)


def test_arrays_of_a_writable_body_are_copies(either: bool) -> None:
    """As without the integration, the caller may reuse the buffer and owns each array."""
    body, length = response(FLOATS, FLOATS)
    received = bytearray(body)
    result = parsed(received, length)
    received[:] = bytes(len(received))
    first = result.as_numpy("OUTPUT0")
    first[:] = 0
    assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)


@given_by_hypothesis(
    array=npst.arrays(
        st.sampled_from([dtype for dtype in DTYPES.values() if dtype.kind in "?uif"]),
        npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=40),
    ),
    is_transposed=st.booleans(),
)
@FEW
def test_round_trip_of_random_arrays(array: Array, is_transposed: bool) -> None:
    array = np.tile(array, 40).T if is_transposed else np.tile(array, 40)
    both(body_of, array, tw.Tensor("x", array).datatype)
    both(output, *response(array))


def test_response_is_not_copied(either: bool) -> None:
    array = np.ones(1 << 22, np.float32)
    read = partial(output, *response(array, array), "OUTPUT1")
    read()  # fill caches
    assert peak_nbytes(read) / array.nbytes == pytest.approx(0 if either else 3, abs=0.01)
