"""tritonclient with and without the codec: every test passes both ways, or compares the two."""

from __future__ import annotations

import copy
import gzip
import pickle
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tensorwire as tw
from interop.missing import refuse
from interop.samples import DTYPES, NOT_TEXT, TEXTS, Array, binary_sample, bits, bytes_array
from tensorwire.integrations import patching, tritonclient

FEW = settings(deadline=None, max_examples=30)  # each puts the codec in, and out
LARGE = tritonclient.REFER_FROM_NBYTES
FLOATS = np.arange(LARGE // 4, dtype=np.float32)


def module(name: str, extra: str) -> ModuleType:
    """A module of the client; without it a skip, or in CI a failure."""
    try:
        return import_module(f"tritonclient.{name}")
    except (ImportError, RuntimeError) as error:
        refuse(f"tritonclient[{extra}]", f"tritonclient.{name} cannot be imported: {error}")


@pytest.fixture(scope="module")
def http() -> ModuleType:
    return module("http", "http")


@pytest.fixture(scope="module")
def grpc() -> ModuleType:
    return module("grpc", "grpc")


@pytest.fixture(scope="module")
def utils() -> ModuleType:
    return module("utils", "http")


@pytest.fixture(params=["tritonclient", "tritonclient with tensorwire"])
def either(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Every test that takes this runs without the codec, and with it."""
    is_ours = request.param != "tritonclient"
    if is_ours:
        tritonclient.install()
    yield is_ours
    tritonclient.uninstall()


@pytest.fixture
def installed() -> Iterator[None]:
    tritonclient.install()
    yield
    tritonclient.uninstall()


# --- what it is to be the same ---------------------------------------------------------------


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns or raises, with every type, in a form that compares."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = described(call())
        except Exception as error:
            found = type(error), str(error)
    return found, [str(warning.message) for warning in caught]


def described(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        flags = value.flags
        items = value.ravel().tolist() if value.dtype == object else None
        values = [(type(item), item) for item in items] if items is not None else value.tobytes()
        return type(value), value.dtype, value.shape, flags.writeable, flags.c_contiguous, values
    if isinstance(value, tuple | list):
        return type(value), [described(item) for item in value]
    return type(value), value


def both(call: Callable[..., Any], *arguments: Any) -> Any:
    """The outcome, which is the same without the codec and with it."""
    call = partial(call, *arguments)
    without = outcome(call)
    tritonclient.install()
    try:
        assert outcome(call) == without
    finally:
        tritonclient.uninstall()
    assert outcome(call) == without
    return without[0]


# --- BYTES: serialize ------------------------------------------------------------------------


class Text(str):
    def __str__(self) -> str:
        return "a text"


class Octets(bytes):
    pass


class Sub(np.ndarray[Any, Any]):
    pass


class Unprintable:
    def __str__(self) -> str:
        raise LookupError("has no text")


ODD: list[Any] = [
    *(1, 2.5, None, True, 10**30, float("nan"), (1, "a"), {"a": 1}, bytearray(b"ab"), print),
    *(Text("b"), Octets(b"c"), np.str_("n"), np.bytes_(b"m"), np.float32(0.1), np.int8(-1)),
    *("\ud800", "a\udfffb", Unprintable(), np.zeros(0), np.array([1, 2])),
]


def object_array(values: list[Any], shape: tuple[int, ...] = (-1,)) -> Array:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):  # one by one: numpy would look into sequences
        array[i] = value
    return array.reshape(shape)


def char_array(values: list[bytes]) -> Array:
    """A subclass whose elements lose their blanks when read; numpy 2.5 warns of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array: Array = np.char.array(values)
    return array


ARRAYS: dict[str, Array] = {
    "bytes": bytes_array([*TEXTS, NOT_TEXT]),
    "str": object_array(["", "a", "\xe9", "\u20ac", "\U0001f600", "a\0"]),
    "mixed": object_array(["a", b"b", "\xe9", NOT_TEXT]),
    "0-d": np.array(b"ab", object),
    "one": object_array(["x"], (1, 1, 1)),
    "row-major": object_array(["a", "b", "c", "d", "e", "f"], (2, 3)),
    "column-major": np.asfortranarray(object_array(["a", "b", "c", "d", "e", "f"], (2, 3))),
    "transposed": object_array(["a", b"b", "c", "d", "e", "f"], (2, 3)).T,
    "strided": object_array(["a", b"b", "c", "d", "e", "f"])[::-2],
    "repeated": np.broadcast_to(np.array(b"x", object), (3, 2)),
    "read-only": np.broadcast_to(object_array(["x", 1]), (2,)),
    "S": np.array([[b"ab", b""], [b"a\0b\0", b"\xff"]]),
    "S, transposed": np.array([[b"ab", b""], [b"a\0b\0", b"\xff"]]).T,
    "S0": np.zeros(3, "S0"),
    "no value yet": np.empty(3, object),
    "empty object": np.empty((2, 0), object),
    "empty S": np.empty(0, "S3"),
    "empty float": np.empty((0, 2), np.float32),
    "float": np.ones(2, np.float32),
    "bool": np.array(True),
    "void": np.zeros(2, "V4"),
    "record": np.zeros(2, [("a", object)]),
    "masked": np.ma.masked_array(object_array(["a", "b"]), [False, True]),
    "subclass": object_array(["a", b"b"]).view(Sub),
    "char": char_array([b"ab ", b"c"]),
    "unaligned": np.zeros(2, [("x", "u1"), ("y", "S3")])["y"],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_serialize(utils: ModuleType, name: str) -> None:
    both(lambda: utils.serialize_byte_tensor(ARRAYS[name]))


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("before", [[], [b"a", "b"]], ids=["alone", "after others"])
def test_serialize_odd_elements(utils: ModuleType, before: list[Any], value: Any) -> None:
    array = object_array([*before, value, "c"])
    both(lambda: utils.serialize_byte_tensor(array))


@pytest.mark.parametrize("value", [b"ab", [b"a"], None, np.bytes_(b"a"), np.float32(1), 5])
def test_serialize_no_array(utils: ModuleType, value: Any) -> None:
    both(lambda: utils.serialize_byte_tensor(value))


def test_serialized_form(utils: ModuleType, either: bool) -> None:
    """One `bytes` in a 0-d array; 0 elements are an array of none; str() of what is no text."""
    held = utils.serialize_byte_tensor(object_array([b"ab", "\xe9", 7, None]))
    assert (held.dtype, held.shape) == (np.dtype(object), ())
    wire = b"\2\0\0\0ab\2\0\0\0\xc3\xa9\1\0\0\0007\4\0\0\0None"
    assert (type(held.item()), held.item()) == (bytes, wire)
    empty = utils.serialize_byte_tensor(np.empty((3, 0), object))
    assert (empty.dtype, empty.shape) == (np.dtype(object), (0,))
    with pytest.raises(
        utils.InferenceServerException, match=r"^cannot serialize bytes tensor: inv"
    ):
        utils.serialize_byte_tensor(FLOATS)


def test_serialize_a_lone_surrogate(utils: ModuleType, either: bool) -> None:
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        utils.serialize_byte_tensor(object_array(["a", "\ud800"]))


element = st.one_of(
    st.binary(max_size=9),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=5),
    st.sampled_from(ODD[:12]),
)


@given(values=st.lists(element, max_size=8), step=st.sampled_from([1, -1, 2]))
@FEW
def test_serialize_anything(values: list[Any], step: int) -> None:
    utils = module("utils", "http")
    array = object_array(values)[::step]
    both(lambda: utils.serialize_byte_tensor(array))


@given(
    array=npst.arrays(
        st.one_of(npst.scalar_dtypes(), npst.byte_string_dtypes(max_len=5)),
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    )
)
@FEW
def test_serialize_any_array(array: Array) -> None:
    utils = module("utils", "http")
    if array.dtype.kind != "U":
        both(lambda: utils.serialize_byte_tensor(array))
        both(lambda: utils.serialize_byte_tensor(array.T))


# --- BYTES: deserialize ----------------------------------------------------------------------

WIRE = tw.encode_bytes([*TEXTS, NOT_TEXT, b"x" * 300])
BUFFERS: dict[str, Any] = {
    "bytes": WIRE,
    "bytearray": bytearray(WIRE),
    "memoryview": memoryview(WIRE),
    "slice": memoryview(b"?" + WIRE + b"?")[1:-1],
    "array": np.frombuffer(WIRE, np.uint8),
    "empty": b"",
    "empty memoryview": memoryview(b""),
    "empty array": np.empty(0, np.uint8),
    "int8": np.frombuffer(WIRE, np.int8),
    "chars": memoryview(WIRE).cast("c"),
    "words": np.frombuffer(WIRE[:16], np.uint32),
    "0-d": np.array(5, np.uint8),
    "2-d": np.frombuffer(WIRE[:16], np.uint8).reshape(4, 4),
    "strided": memoryview(WIRE)[::2],
    "str": "abcd",
    "list": [1, 0, 0, 0, 65],
    "None": None,
    "object array": np.array([b"\1\0\0\0a"], object),
    "S array": np.array([b"\1\0\0\0a"]),
    "subclass": Octets(WIRE),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_deserialize(utils: ModuleType, name: str) -> None:
    both(lambda: utils.deserialize_bytes_tensor(BUFFERS[name]))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_deserialize_truncated(utils: ModuleType, kind: Callable[[bytes], Any]) -> None:
    cuts = [kind(WIRE[:n]) for n in range(len(WIRE))]
    both(lambda: [outcome(partial(utils.deserialize_bytes_tensor, cut)) for cut in cuts])


def test_deserialized_form(utils: ModuleType, either: bool) -> None:
    found = utils.deserialize_bytes_tensor(b"\2\0\0\0a\0\0\0\0\0")
    assert (found.dtype, found.shape, found.tolist()) == (np.dtype(object), (2,), [b"a\0", b""])
    assert found.flags.writeable
    assert utils.deserialize_bytes_tensor(b"").shape == (0,)
    with pytest.raises(struct.error, match="requires a buffer of at least"):
        utils.deserialize_bytes_tensor(b"\2\0\0\0a")


@given(wire=st.binary(max_size=20))
@FEW
def test_deserialize_anything(wire: bytes) -> None:
    utils = module("utils", "http")
    both(lambda: utils.deserialize_bytes_tensor(wire))


@given(values=st.lists(st.binary(max_size=9)))
@FEW
def test_round_trip(values: list[bytes]) -> None:
    utils = module("utils", "http")
    call = utils.deserialize_bytes_tensor, utils.serialize_byte_tensor
    assert not values or both(lambda: call[0](call[1](bytes_array(values)).item()))[5] == [
        (bytes, value) for value in values
    ]


# --- shared memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "shape", "offset"),
    [
        *((datatype, [2, 2], 3) for datatype in (np.object_, np.dtype(object), np.bytes_)),
        *((np.object_, shape, 3) for shape in ((4,), [1], [7], [2, np.int64(2)], np.array([4]))),
        *((np.object_, shape, 3) for shape in ([8], [1 << 40], [1 << 62, 4], [])),
        *((np.object_, shape, 3) for shape in ([0], [2, 0], [-1], [-2, -2], [4.0], 4, "4")),
        *((np.object_, [1], offset) for offset in (0, 7, 40, 1 << 40, -1, -8, 3.0, None)),
        (np.uint8, [4], 3),
        (np.float32, [2], 4),
    ],
)
def test_shared_memory(datatype: Any, shape: Any, offset: Any) -> None:
    """The region has more than the elements; they begin at its byte 3."""
    shm = module("utils.shared_memory", "http")
    wire = tw.encode_bytes([b"a", b"", b"b\0", b"\xff", b"", b"", b""])
    region = bytearray(b"???" + wire + b"\xff\xff\xff\xff")
    handle = SimpleNamespace(_mpsm_handle=SimpleNamespace(buf=memoryview(region)))
    both(lambda: shm.get_contents_as_numpy(handle, datatype, shape, offset))


def test_shared_memory_before_its_beginning() -> None:
    """Where a slice would take the beginning for it."""
    shm = module("utils.shared_memory", "http")
    region = memoryview(bytearray(tw.encode_bytes([b"a", b"b"])))
    handle = SimpleNamespace(_mpsm_handle=SimpleNamespace(buf=region))
    both(lambda: shm.get_contents_as_numpy(handle, np.object_, [1], -100))


def test_shared_memory_there_and_back(either: bool) -> None:
    shm, utils = module("utils.shared_memory", "http"), module("utils", "http")
    handle = shm.create_shared_memory_region("tensorwire", "tensorwire_test", 4096)
    try:
        sent = object_array([*TEXTS, NOT_TEXT], (2, 3))
        shm.set_shared_memory_region(handle, [utils.serialize_byte_tensor(sent), FLOATS[:4]])
        found = shm.get_contents_as_numpy(handle, np.object_, (2, 3))
        assert bits(found) == bits(sent)
        assert found.flags.writeable
    finally:
        shm.destroy_shared_memory_region(handle)


# --- requests --------------------------------------------------------------------------------


def large(datatype: str) -> Array:
    """Every value of the sample, in more bytes than are copied."""
    sample = binary_sample(datatype)
    return np.tile(sample, LARGE // sample.itemsize // len(sample) + 1)


def body_of(http: ModuleType, array: Any, datatype: str, **options: Any) -> Any:
    """The body and header length of a request with this input, and what the input says of it."""
    tensor = http.InferInput("INPUT0", list(array.shape), datatype)
    same = tensor.set_data_from_numpy(array, **options)
    assert same is tensor
    found = http.InferenceServerClient.generate_request_body([tensor], request_id="7")
    return *found, tensor._get_tensor()


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
def test_request_of_odd_arrays(http: ModuleType, array: Array) -> None:
    both(lambda: body_of(http, array, "FP32"))
    both(lambda: body_of(http, array, "BF16"))  # which older clients make of float32


@pytest.mark.parametrize("value", [None, [1.0], b"abcd", memoryview(b"abcd"), np.float32(1)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BF16", "none such"])
def test_request_of_no_array(http: ModuleType, datatype: str, value: Any) -> None:
    both(lambda: http.InferInput("x", [1], datatype).set_data_from_numpy(value))
    both(lambda: http.InferInput("x", [1], datatype).set_data_from_numpy(value, False))


@pytest.mark.parametrize("shape", [[2], [len(FLOATS) + 1], [1, len(FLOATS)], []])
def test_request_of_another_shape(http: ModuleType, shape: list[int]) -> None:
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


def test_request_with_everything(http: ModuleType) -> None:
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


def test_data_given_again(http: ModuleType, either: bool) -> None:
    """The last counts, whatever kind it is of."""
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


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_inputs_and_results_are_copied(
    http: ModuleType, either: bool, copied: Callable[[Any], Any]
) -> None:
    generate = http.InferenceServerClient.generate_request_body
    tensor = http.InferInput("x", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)
    assert generate([copied(tensor)]) == generate([tensor])
    result = parsed(http, *response(FLOATS))
    assert bits(copied(result).as_numpy("OUTPUT0")) == bits(FLOATS)


def test_a_large_array_is_referred_to(http: ModuleType, installed: None) -> None:
    """Until the body is built: then it is copied, once, and may change."""
    array = FLOATS.copy()
    tensor = http.InferInput("x", [len(array)], "FP32").set_data_from_numpy(array)
    assert np.shares_memory(tensor._raw_data, array)
    assert not tensor._raw_data.flags.writeable
    array[0] = 42
    body, length = http.InferenceServerClient.generate_request_body([tensor])
    assert body[length:] == array.tobytes()
    array[0] = 0
    assert body[length:] != array.tobytes()
    mapped = np.memmap.__new__(np.memmap, __file__, np.uint8, "r", shape=(1000,))
    assert type(tensor.set_shape([1000])) is http.InferInput
    assert body_of(http, mapped, "UINT8")[0].endswith(mapped.tobytes())


def test_a_subclass_packs_its_own(http: ModuleType) -> None:
    class Reversed(http.InferInput):  # type: ignore[misc, name-defined]
        def _get_binary_data(self) -> bytes:
            return bytes(super()._get_binary_data()[::-1])

    def body() -> Any:
        tensor = Reversed("x", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)
        return http.InferenceServerClient.generate_request_body([tensor])

    both(body)
    assert body()[0].endswith(FLOATS.tobytes()[::-1])


# --- the extras ------------------------------------------------------------------------------

TEXT_ARRAYS = {
    "U": np.array([["a", "\xe9"], ["", "\U0001f600"]]),
    "U, big-endian": np.array([["a", "\xe9"], ["", "\U0001f600"]], ">U3"),
    "U, transposed": np.array([["a", "\xe9"], ["", "\U0001f600"]]).T,
    "StringDType": np.array([["a", "\xe9"], ["", "\U0001f600"]], np.dtypes.StringDType()),
    "BytesTensor": tw.Tensor("x", [["a", "\xe9"], ["", "\U0001f600"]]).data,
}


@pytest.mark.parametrize("name", TEXT_ARRAYS)
@pytest.mark.parametrize("is_binary", [True, False])
def test_more_kinds_of_bytes(
    http: ModuleType, utils: ModuleType, installed: None, name: str, is_binary: bool
) -> None:
    """Where the client alone has an error, the same as an object array of the elements."""
    values: Any = TEXT_ARRAYS[name]
    plain = values.as_numpy() if isinstance(values, tw.BytesTensor) else values.astype(object)
    found = body_of(http, values, "BYTES", binary_data=is_binary)
    assert found == body_of(http, plain, "BYTES", binary_data=is_binary)
    assert bits(utils.serialize_byte_tensor(values)) == bits(utils.serialize_byte_tensor(plain))
    with pytest.raises(utils.InferenceServerException, match=r"shape \[2, 2\], expected \[3\]"):
        http.InferInput("x", [3], "BYTES").set_data_from_numpy(values)


@pytest.mark.parametrize("name", TEXT_ARRAYS)
def test_more_kinds_of_bytes_over_grpc(grpc: ModuleType, installed: None, name: str) -> None:
    values: Any = TEXT_ARRAYS[name]
    tensor = grpc.InferInput("x", [2, 2], "BYTES").set_data_from_numpy(values)
    assert tensor._get_content() == tw.encode_bytes(values)
    assert type(tensor._get_content()) is bytes


def test_an_extra_with_a_bad_element(utils: ModuleType, installed: None) -> None:
    with pytest.raises(tw.EncodeError, match="element 1 "):
        utils.serialize_byte_tensor(np.array(["a", "\ud800"]))


def test_no_elements_of_more_kinds(http: ModuleType, installed: None) -> None:
    empty: list[Any] = [np.empty((2, 0), "U1"), tw.decode_bytes(b"").reshape((2, 0))]
    for values in empty:
        assert body_of(http, values, "BYTES") == body_of(http, np.empty((2, 0), object), "BYTES")


# --- responses -------------------------------------------------------------------------------


def response(*arrays: Array, **options: Any) -> tuple[bytes, int | None]:
    outputs = [tw.Tensor(f"OUTPUT{i}", array) for i, array in enumerate(arrays)]
    frame = tw.encode_response(tw.InferResponse(outputs), **options)
    return bytes(frame), frame.header_length


def parsed(http: ModuleType, body: Any, length: Any, encoding: str | None = None) -> Any:
    parse = http.InferenceServerClient.parse_response_body
    return parse(body, header_length=length, content_encoding=encoding)


def output(
    http: ModuleType, body: Any, length: Any, name: str, encoding: str | None = None
) -> Array | None:
    """An output, read as programs read it."""
    array: Array | None = parsed(http, body, length, encoding).as_numpy(name)
    return array


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("datatype", DTYPES)
def test_response(http: ModuleType, datatype: str, is_large: bool) -> None:
    array = large(datatype) if is_large else binary_sample(datatype)
    body, length = response(array, array[::-1], align=1)
    for received in (body, bytearray(body)):
        for name in ("OUTPUT0", "OUTPUT1", "none such"):
            both(output, http, received, length, name)
    found = both(lambda: parsed(http, body, str(length)).as_numpy("OUTPUT0"))
    assert found[:3:2] == (np.ndarray, array.shape)
    assert found[1] == array.dtype or datatype == "BF16"  # which older clients make float32


@pytest.mark.parametrize("cut", [1, 3, 4, LARGE, LARGE + 50, 2 * LARGE + 20, 2 * LARGE + 150])
@pytest.mark.parametrize("is_late", [False, True])
def test_damaged_response(http: ModuleType, cut: int, is_late: bool) -> None:
    body, length = response(FLOATS, bytes_array([b"abc"] * (LARGE // 7)))
    damaged = body[cut:] if is_late else body[:-cut]
    for name in ("OUTPUT0", "OUTPUT1"):
        both(output, http, damaged, length, name)


@pytest.mark.parametrize("length", [None, 0, -1, -5, 5, 10**9, "64", "abc", "", b"64", 64.0])
@pytest.mark.parametrize("array", [FLOATS, FLOATS[:4]], ids=["large", "small"])
def test_wrong_header_length(http: ModuleType, array: Array, length: Any) -> None:
    body, _ = response(array)
    both(lambda: parsed(http, body, length).as_numpy("OUTPUT0"))


@pytest.mark.parametrize("kind", [bytearray, memoryview, np.array, str, lambda body: None])
def test_a_body_of_another_type(http: ModuleType, kind: Callable[[Any], Any]) -> None:
    body, length = response(FLOATS)
    both(lambda: parsed(http, kind(body), length).as_numpy("OUTPUT0"))


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", bytes), ("gzip", bytes)],
)
def test_compressed_response(
    http: ModuleType, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    for array in (FLOATS, FLOATS[:4]):
        body, length = response(array, array)
        both(output, http, pack(body), length, "OUTPUT1", encoding)


def test_json_response(http: ModuleType) -> None:
    outputs = [tw.Tensor("a", FLOATS, binary=False), tw.Tensor("b", ["x", "\xe9"], binary=False)]
    body = bytes(tw.encode_response(tw.InferResponse(outputs)))
    for name in "ab":
        both(output, http, body, None, name)
    both(lambda: parsed(http, body, None).get_response())
    both(lambda: parsed(http, b'{"outputs": [{"name": "\xff"}]}', None))


def test_verbose(http: ModuleType, either: bool, capsys: pytest.CaptureFixture[str]) -> None:
    body, length = response(FLOATS)
    assert length is not None
    http.InferResult.from_response_body(body, True, length)
    assert capsys.readouterr().out == f"{body[:length]!r}\n"


def test_a_response_is_viewed(http: ModuleType, installed: None) -> None:
    """Nothing is copied: not by parsing, nor by reading, nor by reading again."""
    body, length = response(FLOATS, FLOATS + 1, bytes_array([b"x"]))
    whole = np.frombuffer(body, np.uint8)
    result = parsed(http, body, length)
    for name in ("OUTPUT0", "OUTPUT1"):
        found = result.as_numpy(name)
        assert np.shares_memory(found, whole)
        assert np.shares_memory(found, result.as_numpy(name))
        assert not found.flags.writeable


def test_a_writable_body_is_copied(http: ModuleType, either: bool) -> None:
    """As ever: a buffer may be received into again, and each array is the caller's own."""
    body, length = response(FLOATS, FLOATS)
    received = bytearray(body)
    result = parsed(http, received, length)
    received[:] = bytes(len(received))
    first = result.as_numpy("OUTPUT0")
    first[:] = 0
    assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)


class Reply:
    """A transport's response, as the client reads it: once, and from the front."""

    def __init__(self, body: bytes, length: int | None, kind: Callable[[bytes], Any]) -> None:
        self.rest, self.kind = body, kind
        self.headers = {"Inference-Header-Content-Length": length and str(length)}

    def get(self, name: str) -> Any:
        return self.headers.get(name)

    def read(self, length: int | None = None) -> Any:
        n = len(self.rest) if length is None else length
        taken, self.rest = self.rest[:n], self.rest[n:]
        return self.kind(taken)


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("array", [FLOATS, FLOATS[:4]], ids=["large", "small"])
def test_a_transports_response(
    http: ModuleType, array: Array, kind: Callable[[bytes], Any]
) -> None:
    body, length = response(array, array + 1)
    for name in ("OUTPUT0", "OUTPUT1"):
        found = both(
            lambda name: http.InferResult(Reply(body, length, kind), False).as_numpy(name), name
        )
        assert found[3] == (kind is bytearray)


@given(
    array=npst.arrays(
        st.sampled_from([dtype for dtype in DTYPES.values() if dtype.kind in "?uif"]),
        npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=40),
    ),
    is_transposed=st.booleans(),
)
@FEW
def test_any_array_there_and_back(array: Array, is_transposed: bool) -> None:
    http = module("http", "http")
    array = np.tile(array, 40).T if is_transposed else np.tile(array, 40)
    datatype = tw.Tensor("x", array).datatype
    both(lambda: body_of(http, array, datatype))
    body, length = response(array)
    both(lambda: parsed(http, body, length).as_numpy("OUTPUT0"))


def peak_nbytes(call: Callable[[], Any]) -> int:
    """The most memory that a call has taken at any time, and its result still takes."""
    call()  # whatever is made once
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.thread_unsafe(reason="it measures the process")
def test_one_copy_of_a_request_and_none_of_a_response(http: ModuleType, either: bool) -> None:
    array = np.ones(1 << 22, np.float32)
    body, length = response(array, array)
    n_copies = peak_nbytes(lambda: body_of(http, array, "FP32")) / array.nbytes
    assert n_copies == pytest.approx(1 if either else 2, abs=0.01)
    n_copies = peak_nbytes(lambda: output(http, body, length, "OUTPUT1")) / array.nbytes
    assert n_copies == pytest.approx(0 if either else 3, abs=0.01)


# --- gRPC ------------------------------------------------------------------------------------


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
def test_grpc_of_odd_values(grpc: ModuleType, datatype: str, value: Any) -> None:
    if datatype == "BYTES" and isinstance(value, np.ndarray) and value.dtype.kind == "U":
        value = value.astype("S")  # U is an extra
    both(lambda: grpc.InferInput("x", [2], datatype).set_data_from_numpy(value)._get_content())


# --- in and out ------------------------------------------------------------------------------


def functions() -> list[Any]:
    """Everything that is exchanged, where programs find it."""
    http, utils = module("http", "http"), module("utils", "http")
    return [
        *(utils.serialize_byte_tensor, utils.deserialize_bytes_tensor),
        import_module("tritonclient.http._infer_input").serialize_byte_tensor,
        import_module("tritonclient.http._infer_result").deserialize_bytes_tensor,
        import_module("tritonclient.utils.shared_memory").get_contents_as_numpy,
        http.InferInput.set_data_from_numpy,
        http.InferInput._get_binary_data,
        import_module("tritonclient.http.aio")._get_inference_request,
        http.InferResult.__init__,
        http.InferResult.from_response_body.__func__,
    ]


@pytest.mark.thread_unsafe(reason="it changes the client for the process")
def test_everything_is_put_back(http: ModuleType) -> None:
    before = functions()
    for _ in range(2):
        tritonclient.install()
        tritonclient.install()
        assert tritonclient.is_installed()
        changed = functions()
        assert not any(now is then for now, then in zip(changed, before, strict=True))
        assert [f.__doc__ for f in changed] == [f.__doc__ for f in before]
        assert [f.__qualname__ for f in changed] == [f.__qualname__ for f in before]
        tritonclient.uninstall()
        tritonclient.uninstall()
        assert all(now is then for now, then in zip(functions(), before, strict=True))
    assert not tritonclient.is_installed()


def test_what_was_made_meanwhile_stays_usable(http: ModuleType) -> None:
    body, length = response(FLOATS, bytes_array([b"x", b"\0"] * LARGE))
    tritonclient.install()
    tensor = http.InferInput("x", [len(FLOATS)], "FP32").set_data_from_numpy(FLOATS)
    result = parsed(http, body, length)
    tritonclient.uninstall()
    sent, sent_length = http.InferenceServerClient.generate_request_body([tensor])
    assert sent[sent_length:] == FLOATS.tobytes()
    assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)
    assert result.as_numpy("OUTPUT1").tolist() == [b"x", b"\0"] * LARGE


def test_put_in_and_out_while_programs_run(http: ModuleType, utils: ModuleType) -> None:
    words, done = bytes_array([*TEXTS, NOT_TEXT] * 100), Event()
    wire = tw.encode_bytes(words)
    body, length = response(FLOATS, words)

    def work() -> int:
        n_rounds = 0
        while not done.is_set():
            assert utils.serialize_byte_tensor(words).item() == wire
            assert utils.deserialize_bytes_tensor(wire).tolist() == words.tolist()
            sent, sent_length, _ = body_of(http, FLOATS, "FP32")
            assert sent[sent_length:] == FLOATS.tobytes()
            result = parsed(http, body, length)
            assert bits(result.as_numpy("OUTPUT0")) == bits(FLOATS)
            assert bits(result.as_numpy("OUTPUT1")) == bits(words)
            n_rounds += 1
        return n_rounds

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(work) for _ in range(3)]
        try:
            for _ in range(30):
                tritonclient.install()
                tritonclient.uninstall()
        finally:
            done.set()
        assert all(worker.result() for worker in workers)


def test_an_unknown_version(http: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = functions()
    monkeypatch.setattr(patching, "version", lambda name: "3.1.4")
    with pytest.raises(
        tw.IntegrationError,
        match=r"^tritonclient 3\.1\.4 is installed; tensorwire was tested with tritonclient 2\.\d+ "
        r"to 2\.\d+, and has changed nothing$",
    ):
        tritonclient.install()
    assert all(now is then for now, then in zip(functions(), before, strict=True))


def test_an_unknown_layout(http: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missed comes last, and what comes before it is left as it was."""
    before = functions()
    monkeypatch.delattr(http.InferResult, "from_response_body")
    with pytest.raises(tw.IntegrationError, match=r"has no tritonclient\.\S+\.from_response_body;"):
        tritonclient.install()
    monkeypatch.undo()
    assert all(now is then for now, then in zip(functions(), before, strict=True))


ORDERS = {
    "before": "from tensorwire.integrations import tritonclient as t; t.install(); {imports}",
    "after": "{imports}; from tensorwire.integrations import tritonclient as t; t.install()",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "imports",
    [
        "from tritonclient.utils import serialize_byte_tensor as f",
        "import tritonclient.utils; f = tritonclient.utils.serialize_byte_tensor",
        "from tritonclient.http._infer_input import serialize_byte_tensor as f",
        "import tritonclient.http.aio, tritonclient.utils.shared_memory; "
        "from tritonclient.utils import *; f = serialize_byte_tensor",
    ],
)
def test_in_any_order_of_imports(http: ModuleType, order: str, imports: str) -> None:
    """In a fresh process: nothing of the client is loaded yet."""
    script = ORDERS[order].format(imports=imports) + (
        "; import numpy, tensorwire; a = numpy.array(['a']); r = f(a).item()"
        "; assert r == bytes([1, 0, 0, 0, 97]), r"
        "; t.uninstall(); import tritonclient.utils as u; assert f is u.serialize_byte_tensor"
        "\ntry: f(a)\nexcept u.InferenceServerException as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "cannot serialize bytes tensor: invalid datatype\n", done.stderr
