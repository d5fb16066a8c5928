"""The public API, called in any order and with any objects, by a state machine of hypothesis.

The machine has a pool of live objects, from which most arguments come. (The bundles of hypothesis
would keep all of their objects alive.) Others are arrays, objects of Arrow and DLPack, and hostile
objects, whose methods do what the machine has planned: they raise, answer with another object, or
use, change and drop the objects of the pool within the running call.

These properties are checked:

- A call returns, or raises a documented exception, or passes on that of a hostile object.
- A message, a tensor, or another object that cannot change has the same attributes in each step.
- A decoded tensor has the bytes at its place in the body, also if the caller writes to the body.
  It is writable if the body is. Decoding does not change the body.
- A decoded message is that of the reference codec, and a frame is decoded to the message that was
  encoded, by tensorwire and by the reference codec.
- The caller can resize a body if no result refers to it, and only then.
- AddressSanitizer, in a build with it, finds no access to other memory.

Some inputs have no defined result: Arrow arrays with wrong pointers or sizes of buffers,
`ndarray.data = ...`, and `ndarray.resize(refcheck=False)`. An object that was made by `__new__`
without `__init__` may have any value: it must not crash the interpreter.

TENSORWIRE_TEST_SCALE multiplies the number of programs, and --hypothesis-seed selects others:

    TENSORWIRE_TEST_SCALE=100 pytest -s --hypothesis-seed=1 tests/test_api_state_machine.py

Each run of PROGRAMS programs has the next seed, which is printed before it. If the process
crashes, `--hypothesis-seed` with this seed and the scale 1 repeats the run.
"""

from __future__ import annotations

import copy
import faulthandler
import gc
import os
import pickle
import re
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from inspect import Parameter
from itertools import chain, islice
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

import tensorwire
import tensorwire.grpc
from support import hostile, invalid_arrow, invalid_dlpack, reference
from support.hostile import Cached, Hostile
from support.requirements import package
from support.scale import scaled

pa = package("pyarrow")
tw: Any = tensorwire  # untyped, because many calls violate the types

X: Any = np.arange(4, dtype="f4")
PROGRAMS, STEPS = 60, 50  # programs of a run, and steps of a program
N_RUNS = scaled(3)
WATCHDOG_SECONDS = 300  # for a run, which takes seconds
MAX_POOL = 24
MAX_DEPTH = 4  # of calls that hostile objects make within calls
MAX_TEXT = 2_000  # characters of the text of an error
READABLE = 2**20  # larger results are not read
DOCUMENTED = (
    *(TypeError, ValueError, BufferError, IndexError, KeyError, MemoryError),
    np.ma.MaskError,  # of np.ma.masked, which has neither a bool nor an int
)
PUBLIC = (
    *(tw.Tensor, tw.InferRequest, tw.InferResponse, tw.RequestedOutput, tw.TensorSpec),
    *(tw.Limits, tw.Frame, tw.BytesArray, tw.BodyBuffer),
)
MESSAGES = tw.InferRequest | tw.InferResponse

# --- arguments: constants, and functions that return a new object, which may be one of the pool ---

STRINGS = np.dtypes.StringDType()
NUMBERS = (
    *(0, 1, 2, 3, 4, 5, 8, 13, 64, 65, 255, -1, -2, -5, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64),
    *(2**70, -(2**62), -(2**63), -(2**63) - 1, -(2**64), 10**30),
)  # either small, or so large that no allocation succeeds
TEXTS = (
    *(b"", b"a", "b", "é", "\U0001f642", b"\xff\xfe", b"\0\0", b"twelve bytes", b"thirteen byte"),
    *("z" * 40, b"z" * 300, b"a" * 20, None, 1, "\ud800"),
)
NAMES = ("x", "y", "é", "a" * 200, "", "a\0b", "\ud800", 'x\n"\\', "z" * 5000)
DATATYPES = sorted(reference.DATATYPES)


def itself(container: Any) -> Any:
    container.append(container)
    return container


def nested(depth: int) -> Any:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0.5, float("nan"), float("inf"), 1e300, 3 + 4j, "x", "a\0b", "\ud800"),
    *(b"x", (), ..., NotImplemented, slice(None, None, -1), range(3), int, np.uint8(200)),
    *(np.int64(-5), np.uint64(2**64 - 1), np.float32(1.5), np.bool_(True), np.str_("x")),
    *(np.datetime64("2020-01-01"), np.ma.masked, *NUMBERS, *TEXTS, *hostile.KINDS),
    *(lambda _: [None], lambda _: [5], lambda _: set("ab"), lambda _: iter([1, 2])),
    *(lambda _: itself([]), lambda _: nested(100), lambda _: nested(3000), lambda _: object()),
    *(lambda _: {"k": [1, {"a": None}]}, lambda _: {1: 2}, lambda _: {"a": 2**70, "b": b"x"}),
    *(lambda _: bytearray(b"bytes"), lambda _: np.array(3), lambda _: memoryview(b"abcd")[::2]),
    *(lambda api, at=at: api.some(at) for at in range(20)),
)
INDEX = st.integers(0, 99)  # of an object in the pool


def mostly(*sensible: Any) -> st.SearchStrategy[Any]:
    """Return one of the arguments in seven of eight cases, and junk in the others."""
    n_times = 7 * len(JUNK) // len(sensible)
    table = [each for each in sensible for _ in range(n_times)] + list(JUNK)
    return chosen(table)


def chosen(table: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Return an item of a table. Without `deferred`, hypothesis would format the whole table."""
    return st.deferred(lambda: st.sampled_from(table))


ABSENT = Parameter.empty
FLAG = mostly(True, False, None, ABSENT)
PARAMETERS = mostly(
    *(ABSENT, ABSENT, None, lambda _: {"k": 1}, lambda _: {"k": [1, {"a": None}], "é": 0.1}),
    *(lambda _: {"binary_data_size": 4}, lambda _: {"shared_memory_region": "r"}),
    *(lambda _: {"binary_data_output": True}, lambda _: {"binary_data": "yes"}, hostile.Keys),
)
SHAPES: tuple[Any, ...] = (
    *((), (0,), (1,), (2,), (3,), (4,), (2, 3), (3, 2), [2, 3], (4, 1), (0, 5), (1,) * 64),
    *((1,) * 65, (-1,), (0, 2**62), (2**62, 4), hostile.EqualIndex),
    *(lambda _: (hostile.Index(4),), lambda _: [2, hostile.EqualIndex(3)]),
    *(lambda _: (hostile.Int(4),), lambda _: hostile.Tuple((2, 3))),
)
SHAPE = mostly(ABSENT, ABSENT, ABSENT, *SHAPES)
DATATYPE = mostly(
    *(ABSENT, ABSENT, None, *DATATYPES, "fp32", partial(hostile.Str, "FP32")),
    *(partial(hostile.EqualStr, "INT32"), partial(hostile.UnequalStr, "BYTES")),
)
LIMITS = mostly(
    *(*(ABSENT,) * 3, tw.Limits(bf16_as_uint16=True), tw.Limits(max_rank=1, max_elements=4)),
    *(tw.Limits(max_tensors=1, check_bool=False), lambda api: api.pick(tw.Limits, 1)),
)

DTYPES: list[Any] = [
    *("?", "u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", ">u2"),
    *(">i4", ">f8", "c8", "g", "V3", "M8[s]", "O", "O", "S1", "S5", "U3", ">U3", "V0", "S0"),
    np.dtype([("a", "<f4"), ("b", "u1")], align=True),
    *(STRINGS, np.dtypes.StringDType(na_object=np.nan), np.dtypes.StringDType(coerce=False)),
]
try:
    import ml_dtypes
except ImportError:
    pass
else:
    DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4]
DIMS = ((3,), (4,), (2, 3), (), (0,), (1,) * 64, (0, 5), (100,), (2, 2, 2))


def misaligned(array: Any) -> Any:
    memory = bytearray(array.nbytes + 1)
    memory[1:] = array.tobytes()
    return np.frombuffer(memory, array.dtype, offset=1).reshape(array.shape)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def mapped(array: Any) -> Any:
    if array.dtype.kind in "OT":  # its memory has pointers
        return array
    with tempfile.NamedTemporaryFile() as file:
        file.write(array.tobytes())
        file.flush()
        return np.memmap(file.name, array.dtype, "r+", shape=array.shape)


LAYOUTS: tuple[Callable[[Any], Any], ...] = (
    *((lambda array: array),) * 6,
    *(read_only, misaligned, mapped, np.asfortranarray, list, np.ma.array),
    *(lambda array: array[::-1], lambda array: array[::2], lambda array: array[..., None]),
    *(lambda array: array.T, lambda array: array.tolist(), lambda array: array[0]),
    lambda array: np.broadcast_to(array, (3, *array.shape)),
    lambda array: np.broadcast_to(array.reshape(-1)[:1], (2**62,)),
    lambda array: array.view(hostile.Array),
)


def made_array(dtype: Any, dims: tuple[int, ...], layout: Callable[[Any], Any]) -> Any:
    """Return an array, or what else the layout makes of it, if numpy and the layout allow it."""
    dtype, size = np.dtype(dtype), int(np.prod(dims))
    if dtype.kind in "OT":
        texts = TEXTS if dtype.kind == "O" else ["", "a", "é", "longer than a slot of an arena" * 2]
        array = np.empty(dims, dtype)
        array.reshape(-1)[:] = [texts[i % len(texts)] for i in range(size)]
    else:
        array = np.zeros(dims, dtype)
        if dtype.kind == "U":
            array[...] = "\ud800a\U0001f642"
        elif array.size and dtype.itemsize:
            contents = np.arange(array.nbytes) * 37 % (2 if dtype.kind == "b" else 251)
            array = np.frombuffer(bytearray(contents.astype("u1")), dtype).reshape(dims)
    try:
        return layout(array)
    except (TypeError, ValueError, IndexError):
        return array


ARROW: tuple[Callable[[], Any], ...] = (
    lambda: pa.array([b"a", b"", b"longer than twelve bytes"]),
    lambda: pa.array(["x" * 13, "é"], pa.string_view()),
    lambda: pa.array([b"x" * 13, b"y"], pa.large_binary())[1:],
    lambda: pa.array([], pa.binary_view()),
    lambda: pa.array([b"a", None]),
    lambda: pa.array(["a", "a"]).dictionary_encode(),
    lambda: pa.chunked_array([["a"], [], ["b", "c"]], pa.string()),
    lambda: pa.array([1.5, 2.5, 3.5])[1:],
    lambda: pa.array([True, False, True] * 5)[3:12],
    lambda: pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2))[1:],
    lambda: pa.array([[1, 2], None, [3, None]], pa.list_(pa.uint8(), 2)),
    lambda: pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string_view(), 2)),
    lambda: pa.chunked_array([[1, 2], [], [3]], pa.uint32()),
    lambda: pa.array([1], pa.timestamp("us")),
)
ARROW_TYPES = (
    *(pa.string_view(), pa.string(), pa.large_string(), pa.binary_view(), pa.large_binary()),
    pa.int64(),
)


def from_arrow(make: Callable[[], Any], is_cached: bool) -> Any:
    producer = make()
    if not is_cached:
        return producer
    is_array = hasattr(producer, "__arrow_c_array__")
    return Cached(producer, "__arrow_c_array__" if is_array else "__arrow_c_stream__")


OWNERS: list[Any] = []  # of the memory of structs, which outlives them


def invalid_struct(kind: int, change: int) -> Any:
    """Return a producer of Arrow or DLPack with a wrong field; see the imported modules."""
    formats = invalid_arrow.FORMATS
    producer: Any = invalid_dlpack.producer(change, is_cached=True)
    if kind < len(formats):
        producer = invalid_arrow.InvalidProducer(formats[kind], change, change // 7)
    elif kind < len(formats) + 6:
        producer = invalid_arrow.invalid_numbers(kind, change // 5, change, change // 3)
    OWNERS.append(producer)
    return producer


DATA: st.SearchStrategy[Any] = st.one_of(
    st.builds(made_array, chosen(DTYPES), chosen(DIMS), chosen(LAYOUTS)),
    mostly(
        *(lambda _: ["a", b"bc"], lambda _: [[1, 2], [3, 4]], lambda _: [["a"], ["b"]], None),
        *(lambda _: np.arange(4, dtype="f4"), lambda _: hostile.List([b"a", "b"])),
        *(lambda api, at=at: api.pick((np.ndarray, tw.BytesArray), at) for at in range(6)),
        *(lambda api, at=at: api.pick((tw.Tensor, pa.Array, Cached), at) for at in range(6)),
    ),
    st.builds(from_arrow, chosen(ARROW), st.booleans()),
    st.builds(invalid_struct, st.integers(0, 19), st.integers(0, 250)),
)


# --- bodies ---


class Body(NamedTuple):
    """A body, the memory that it is a view of, and where it begins there."""

    source: Any
    memory: Any
    begin: int
    header_length: Any
    kind: str


ENTRIES = [
    reference.entry("x", "FP32", [2, 3], [0.5] * 6),
    reference.entry("words", "BYTES", [3], [b"a", b"", b"longer than twelve bytes"]),
    reference.entry("b", "BOOL", [3], [True, False, True]),
    reference.entry("h", "BF16", [2], [1.0, 2.0]),
    reference.entry("j", "INT8", [2], [1, -1], binary=False),
    reference.entry("s", "BYTES", [], [b"s"], binary=False),
    reference.entry("e", "FP64", [0, 2], []),
]
PARTS = (ENTRIES, ENTRIES[:1], ENTRIES[1:2], ENTRIES[4:6], ENTRIES[1:4])
ASKED = [{"name": "y", "parameters": {"binary_data": True}}, {"name": "x"}]
BODIES: list[tuple[bytes, int | None, str]] = [
    *((*reference.request(part, outputs=ASKED), "request") for part in PARTS),
    *((*reference.response(part, model_name="m", align=64), "response") for part in PARTS),
    (reference.elements([b"a", b"", b"long" * 5, b"\xc3\xa9"]), 0, "request"),
    (reference.elements([reference.elements([b"abc", b"", b"de"]), b"x"]), 0, "request"),
    *(
        (tw.grpc.encode_request(tw.decode_request(*reference.request(part))), None, "grpc request")
        for part in PARTS
    ),
]
DECODERS = {
    "request": tw.decode_request,
    "response": tw.decode_response,
    "grpc request": lambda body, _, **options: tw.grpc.decode_request(body, **options),
    "grpc response": lambda body, _, **options: tw.grpc.decode_response(body, **options),
}
SPECS = tuple(
    tw.TensorSpec("raw", datatype, dims)
    for datatype in ("BYTES", "UINT8", "FP32")
    for dims in ([-1], [4], [2, -1])
)
MEMORIES: tuple[Callable[[Any], Any], ...] = (
    *(lambda view: view, lambda view: np.frombuffer(view, "u1")),
    *(lambda view: view.toreadonly(), lambda view: view[:].cast("B")),
)


# --- what objects show ---


def state(value: Any) -> Any:
    """Return the attributes of an object that cannot change. Contents of arrays are not included.

    The attributes of a tensor agree with each other.
    """
    if type(value) is tw.Tensor:
        data, shape = value.data, value.shape
        assert type(shape) is tuple and all(type(dim) is int for dim in shape)
        assert data is None or (data.shape, data.nbytes) == (shape, value.nbytes)
        address = data.ctypes.data if isinstance(data, np.ndarray) and data.size else None
        return repr((value, value.binary, dict(value.parameters), value.nbytes, address))
    if isinstance(value, MESSAGES):
        outputs = value.outputs and [id(each) for each in value.outputs]
        texts = value.id, value.model_name, value.model_version
        assert list(value) == [each.name for each in value.values()]
        return repr((value, [id(each) for each in value.values()], outputs, texts))
    if isinstance(value, tw.RequestedOutput):
        return repr((value, value.binary, dict(value.parameters)))
    if isinstance(value, tw.Frame):
        return value.header_length, len(value), len(value.buffers)
    if isinstance(value, tw.BytesArray):
        assert all(type(dim) is int for dim in value.shape)
        assert value.size == int(np.prod(value.shape, dtype=object))
        return value.shape, value.nbytes
    return repr(value) if isinstance(value, tw.TensorSpec | tw.Limits) else None


def payload(item: Any) -> bytes | None:
    """Return the bytes of a tensor in a body."""
    data = item.data if isinstance(item, tw.Tensor) else item
    if isinstance(data, tw.BytesArray):
        return bytes(data.wire)
    return None if data is None else bytes(data.tobytes())


def read(item: Any) -> None:
    """Read every byte of a result."""
    data = item.data if isinstance(item, tw.Tensor) else item
    if isinstance(data, tw.BytesArray):
        assert len(bytes(data.wire)) == data.nbytes
        elements = data.as_numpy()
        assert (elements.shape, elements.size) == (data.shape, data.size)
        views = [bytes(data.element(i)) for i in range(min(data.size, 20))]
        assert views == elements.reshape(-1)[:20].tolist()
    elif isinstance(data, np.ndarray | pa.Array | memoryview) and data.nbytes < READABLE:
        if isinstance(data, np.ndarray):
            np.asarray(data).tobytes()
        elif isinstance(data, memoryview):
            bytes(data)
        else:
            data.validate(full=True)
            data.to_pylist()


class Live(NamedTuple):
    """An object of the pool, what it showed at first, and the body and offset of its bytes."""

    value: Any
    state: Any
    memory: Any
    offset: int

    def check(self) -> None:
        assert self.state is None or state(self.value) == self.state
        if self.memory is not None:
            found = payload(self.value) or b""
            assert found == bytes(memoryview(self.memory)[self.offset :])[: len(found)]


# --- what the machine does with an object `o` and another argument `x` ---


class Assigns:
    """`==` of a MappingProxyType passes the dict behind it to the other object."""

    def __eq__(self, other: Any) -> bool:
        other["assigned"] = self
        return True

    __hash__ = None  # type: ignore[assignment]


def assign(item: Any, value: Any) -> None:
    """Assign and delete each attribute. Cython raises NotImplementedError for some of them."""
    for name in [*(name for name in dir(item) if not name.startswith("_")), "another"]:
        with pytest.raises((AttributeError, NotImplementedError)):
            setattr(item, name, value)
        with pytest.raises((AttributeError, NotImplementedError)):
            delattr(item, name)


def sent_raw(tensor: Any) -> Any:
    spec = tw.TensorSpec("raw", tensor.datatype, tensor.shape)
    body = bytes(tw.encode_raw_request(tensor))
    return tw.decode_request(body, 0, raw_input=spec, limits=ANYTHING)["raw"]


def imported(item: Any, capsules: Any) -> Any:
    found = pa.Array._import_from_c_capsule(*capsules)
    assert len(found) == item.size
    return found


def out_of_band(item: Any) -> Any:
    buffers: list[Any] = []
    data = pickle.dumps(item, 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytearray(buffer) for buffer in buffers])


def altered_pickle(item: Any, at: int, value: Any) -> Any:
    """Call the function of tensorwire that a pickle calls, with another argument."""
    function, arguments = item.__reduce_ex__(5)[:2]
    if not getattr(function, "__module__", "").startswith("tensorwire") or at >= len(arguments):
        return None
    made = function(*arguments[:at], value, *arguments[at + 1 :])
    if isinstance(made, tw.Limits):  # a larger rank would write beyond the end of an array
        assert (made.max_rank <= 64, made.max_nesting <= 1000) == (True, True)
    return made


def make_cycle(item: Any, other: Any) -> None:
    cycle: Any = hostile.Cycle()
    cycle.members = [item, other]


Use = Callable[[Any, Any], Any]
USES: dict[Any, tuple[Use, ...]] = {
    tw.Tensor: (
        *(lambda o, _: o.data, lambda o, _: o.as_numpy(), lambda o, _: o.elements),
        *(lambda o, x: o.as_numpy(aligned=x), lambda o, x: o.as_numpy(writable=x)),
        *(lambda o, x: o.__array__(x), lambda o, x: o.__array__(None, x), lambda o, _: len(o)),
        *(lambda o, _: o.tolist(), lambda o, _: list(o), lambda o, _: o.as_strings()),
        *(lambda o, _: np.from_dlpack(o), lambda o, _: Cached(o, "__dlpack__")),
        *(lambda o, _: pa.array(o), lambda o, _: Cached(o, "__arrow_c_array__")),
        *(lambda o, x: o.__dlpack__(max_version=x), lambda o, x: o.__dlpack__(stream=x)),
        lambda o, x: o.__dlpack__(max_version=(1, 0), dl_device=x, copy=x),
        *(lambda o, x: o.__arrow_c_array__(x), lambda o, _: o.__arrow_c_schema__()),
        lambda o, _: is_equal(payload(sent_raw(o)), payload(o)),
    ),
    tw.BytesArray: (
        *(lambda o, x: o[x], lambda o, x: o.element(x), lambda o, x: o.reshape(x)),
        *(lambda o, x: o.as_numpy(x), lambda o, x: o.__array__(x, x), lambda o, _: o.as_strings()),
        *(lambda o, _: o.copy(), lambda o, _: o.wire, lambda o, _: [*o]),
        lambda o, _: is_equal([*o.reshape((o.size,))], o.as_numpy().reshape(-1).tolist()),
        *(lambda o, _: np.asarray(o), lambda o, _: pa.array(o)),
        lambda o, x: imported(o, o.__arrow_c_array__(x)),
        lambda o, _: o.reshape((hostile.Index(o.size),)),
    ),
    MESSAGES: (
        *(lambda o, x: o[x], lambda o, x: (x in o, o.get(x)), lambda o, _: o.outputs),
        lambda o, _: is_equal(dict(o), dict(zip(o.keys(), o.values(), strict=True))),
    ),
    tw.Frame: (
        *(lambda o, _: is_equal(bytes(o), b"".join(o)), lambda o, _: o.headers),
        lambda o, x: list(islice(o.chunks(x), 9))[-1],
        lambda o, _: memoryview(o.buffers[-1]).toreadonly(),
        lambda o, _: list(map(memoryview.release, o.buffers[1:])),
    ),
    tw.TensorSpec: (lambda o, x: o.accepts(x), lambda o, _: o.shape),
    tw.BodyBuffer: (
        *(lambda o, x: o.write(x), lambda o, _: o.write(bytes(7_000)), lambda o, x: o.advance(x)),
        *(lambda o, _: memoryview(o), lambda o, _: o.write(memoryview(o)[1:])),
        *(lambda o, _: o.remaining().__setitem__(slice(1), b"r"), lambda o, _: o.remaining()),
    ),
    Cached: (
        *(lambda o, _: pa.array(o), lambda o, _: np.from_dlpack(o)),
        lambda o, _: pa.chunked_array(o),
    ),
}
ARGUMENTS = {  # those of which a kind needs many
    tw.Tensor: mostly(True, False, None, (1, 0), (0, 8), (2, 5), *DTYPES, hostile.Index),
    tw.BytesArray: mostly(
        *(0, 1, -1, -3, slice(1), slice(1, None), slice(None, None, -1)),
        *(..., None, (0, 0), [0, -1]),
        *(lambda _: np.array([True, False]), *(hostile.Index,) * 6, *SHAPES, (4, 1), (1, 4)),
        *(lambda _: slice(hostile.Index(), hostile.Index()), lambda _: (..., hostile.Index())),
        *("O", "S", "U", "i4", STRINGS, np.dtypes.StringDType(na_object=None)),
        *(partial(kind.__arrow_c_schema__) for kind in ARROW_TYPES),
    ),
}
ARGUMENT = mostly(*NAMES, *NUMBERS, b"chunk", hostile.Index, lambda api: api.pick(tw.Tensor, 1))
OF_ALL: tuple[Use, ...] = (
    *(lambda o, _: repr(o), lambda o, _: hash(o), lambda o, x: (o == x, o != x)),
    *(lambda o, _: copy.copy(o), lambda o, _: copy.deepcopy(o), lambda o, _: bool(o)),
    *(lambda o, _: weakref.finalize(o, gc.collect), make_cycle),
    *(lambda o, _, n=n: pickle.loads(pickle.dumps(o, n)) for n in (2, 4)),
    lambda o, _: out_of_band(o),
    *(lambda o, x, n=n: altered_pickle(o, n, x) for n in range(7)),
    *(lambda o, x, name=name: o.replace(**{name: x}) for name in ("data", "shape", "inputs", "id")),
)
# An object that cannot change has the same attributes after each of these calls.
CHANGES: tuple[Use, ...] = (
    *(lambda o, x: o.__init__(x), lambda o, x: o.__init__("y", x), lambda o, x: o.__init__([x])),
    *(lambda o, x: o.__init__((b"ab", x), 0), lambda o, _: o.__init__("z", np.zeros(9))),
    *(lambda o, _: o.__init__("z", "INT8", [5]), lambda o, _: o.__init__()),
    *(lambda o, _: o.__init__("z"), lambda o, _: o.__init__([tw.Tensor("z", np.zeros(9))])),
    *(lambda o, x: o.parameters.__setitem__("k", x), lambda o, _: o.parameters.pop("k")),
    *(lambda o, x: o.parameters.update(k=x), lambda o, _: o.parameters == Assigns()),
    *(lambda o, _: list.append(o.parameters["k"], 1), assign),
)
FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    *(lambda x: tw.Tensor("x", x), lambda x: tw.Tensor(x, [x], datatype=x, shape=x, binary=x)),
    *(lambda x: tw.Tensor("x", X, datatype=x), lambda x: tw.Tensor("x", X, shape=x)),
    *(lambda x: tw.Tensor("x", X, parameters=x), lambda x: tw.RequestedOutput(x, parameters=x)),
    *(tw.InferRequest, lambda x: tw.InferRequest([x]), tw.InferResponse),
    *(lambda x: tw.InferRequest({"x": X}, x), lambda x: tw.InferRequest({"x": X}, ["y", x])),
    *(lambda x: tw.InferRequest({"x": x}), lambda x: tw.InferRequest({"x": X}, parameters=x)),
    lambda x: tw.ResponseOptions(x, id=x),
    *(lambda x: tw.InferResponse([x], id=x), lambda x: tw.InferResponse({"x": X}, model_name=x)),
    *(lambda x: tw.TensorSpec("x", "FP32", x), lambda x: tw.TensorSpec(x, x, [x], x)),
    *(lambda x: tw.Frame((x,), None), lambda x: tw.Frame(x, x), lambda x: tw.Frame((b"a",), x)),
    *(lambda x: tw.Limits(max_rank=x), lambda x: tw.Limits(max_elements=x, check_bool=x)),
    *(tw.BodyBuffer, lambda x: tw.BodyBuffer(None, x, max_nbytes=x)),
    *(tw.decode_bytes, lambda x: tw.decode_bytes(reference.elements([b"a"]), x)),
    *(tw.encode_bytes, lambda x: tw.encode_bytes([[x], [x]])),
    *(tw.encode_raw_request, tw.encode_request, lambda x: tw.encode_response(x, x)),
    *(tw.grpc.encode_request, tw.grpc.encode_response),
    *(tw.decode_request, lambda x: tw.decode_request(b"{}", x, limits=x, raw_input=x)),
    *(tw.grpc.decode_request, lambda x: tw.decode_response(x, 0)),
    *(tw.header_length, lambda x: tw.header_length([(x, x)])),
    lambda x: tw.header_length({"Inference-Header-Content-Length": x}),
)
# What refers to the memory of an object, by its class.
VIEWS: dict[Any, tuple[Callable[[Any], Any], ...]] = {
    tw.Tensor: (
        *(lambda o: o, lambda o: o.data, np.asarray, lambda o: o.as_numpy()[..., None]),
        *(lambda o: Cached(o, "__dlpack__"), lambda o: Cached(o, "__arrow_c_array__"), pa.array),
        *(lambda o: tw.encode_request(tw.InferRequest([o])), lambda o: tw.Tensor("y", o)),
        *(lambda o: tw.encode_raw_request(o).buffers[0], lambda o: o.replace(name="y")),
        *(lambda o: np.asarray(o).data, np.from_dlpack),
    ),
    tw.BytesArray: (
        *(lambda o: o, lambda o: o.wire, lambda o: o.element(0), lambda o: o[:1]),
        *(lambda o: o.reshape((o.size, 1)), lambda o: tw.Tensor("y", o)),
        *(lambda o: Cached(o, "__arrow_c_array__"), pa.array),
        lambda o: tw.decode_bytes(o.wire).element(-1),
    ),
}


def is_equal(one: Any, other: Any) -> None:
    assert one == other


# --- the machine ---

FIRST: dict[Any, Callable[[Any], Any]] = {
    tw.Tensor: lambda api: tw.Tensor("x", np.arange(4, dtype="f4"), parameters={"k": [1]}),
    tw.RequestedOutput: lambda api: tw.RequestedOutput("x", binary=True, parameters={"k": [1]}),
    tw.InferRequest: lambda api: tw.InferRequest([api.pick(tw.Tensor, 0)], ["y"], id="1"),
    tw.InferResponse: lambda api: tw.InferResponse({"y": ["a", "é"]}, parameters={"k": [1]}),
    MESSAGES: lambda api: api.pick(tw.InferRequest, 0),
    tw.TensorSpec: lambda api: SPECS[0],
    tw.Limits: lambda api: tw.Limits(bf16_as_uint16=True),
    tw.Frame: lambda api: tw.encode_request(api.pick(tw.InferRequest, 0)),
    tw.BytesArray: lambda api: tw.decode_bytes(FIRST[bytearray](api)),
    tw.BodyBuffer: lambda api: tw.BodyBuffer(None),
    Cached: lambda api: Cached(pa.array([b"a", b"longer than twelve bytes"]), "__arrow_c_array__"),
    Body: lambda api: api.add_body(*BODIES[0], bytearray, memoryview),
    bytearray: lambda api: api.memory(reference.elements([b"a", b"bc"])),
    np.ndarray: lambda api: np.arange(4, dtype="f4"),
    memoryview: lambda api: memoryview(api.pick(bytearray, 0)),
}
Act = Callable[[Any], Any]
ACTS: tuple[Act, ...] = (  # of hostile objects
    *(lambda api: None, lambda api: None, lambda api: api.fail(), lambda api: gc.collect()),
    *(lambda api: api.pool.clear(), lambda api: api.change_arrays(0, "<f4", (4,))),
    *(lambda api: api.change_arrays(0, "c16", (1, -1)), lambda api: api.change_lists()),
    *(lambda api: api.change_arrays(1, "O", (2,)), lambda api: api.change_memory(0, "resize", 3)),
    lambda api: api.change_memory(1, "release", 3),
    lambda api: api.decode(0, ABSENT, ABSENT, None),
    *(lambda api: api.encode(0, 64, ABSENT, False), lambda api: api.encode(1, 64, ABSENT, True)),
    *(lambda api: api.use(tw.Tensor, 0, 0, 1), lambda api: api.use(tw.BytesArray, 0, 0, 1)),
    *(lambda api: api.use_any(0, 0, None), lambda api: api.call_with_anything(None)),
)
ANSWERS = (*(ABSENT,) * 40, *NUMBERS, *JUNK[::5])


class Api(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        gc.freeze()  # only what the program makes is traversed in a collection
        gc.disable()  # collections are steps; automatic ones would not be reproducible
        self.pool: list[Live] = []
        self.bodies: list[bytearray] = []
        self.plan: list[tuple[Act, Any]] = []  # of hostile objects
        self.next_answer: Any = ABSENT
        self.n_steps = self.n_acts = self.depth = self.n_collections = 0
        hostile.connect(self.act, self.answer)

    def teardown(self) -> None:
        hostile.connect()
        try:
            if sys.exc_info()[0] is None:  # the traceback of a failed step refers to its objects
                self.drop_everything(None, 0)
        finally:
            self.pool.clear()
            gc.unfreeze()
            gc.enable()

    # --- the pool ---

    def keep(self, value: Any, memory: Any = None, offset: int = 0) -> Any:
        """Put an object into the pool, instead of the oldest one if the pool is full."""
        self.pool.append(Live(value, state(value), memory, offset))
        if len(self.pool) > MAX_POOL:
            self.pool.pop(0).check()
        return value

    def keep_unfinished(self, value: Any) -> None:
        """Keep an object that was made by a damaged pickle."""
        self.pool.append(Live(value, None, None, 0))

    def pick(self, kinds: Any, at: int) -> Any:
        """Return an object of the pool that has one of the types, or a new one of the first."""
        found = [live.value for live in self.pool if isinstance(live.value, kinds)]
        first = kinds[0] if isinstance(kinds, tuple) else kinds
        return found[at % len(found)] if found else self.keep(FIRST[first](self))

    def some(self, at: int) -> Any:
        return self.pool[at % len(self.pool)].value if self.pool else None

    def made(self, argument: Any) -> Any:
        """Return a constant, or what a function of the tables of arguments returns."""
        if type(argument) is FunctionType:
            return argument(self)
        is_hostile = isinstance(argument, type) and argument.__module__ == hostile.__name__
        return argument() if is_hostile or isinstance(argument, partial) else argument

    def options(self, **options: Any) -> dict[str, Any]:
        return {key: self.made(each) for key, each in options.items() if each is not ABSENT}

    def memory(self, content: bytes) -> bytearray:
        self.bodies.append(bytearray(content))
        return self.bodies[-1]

    # --- calls and hostile objects ---

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function of tensorwire. Return None after a documented exception."""
        self.depth += 1
        try:
            with self.collecting():
                return function(*arguments, **options)
        except Hostile:
            pass
        except tw.TensorwireError as error:
            self.check_error(error)
        except DOCUMENTED:
            pass
        finally:
            self.depth -= 1
        return None

    def check_error(self, error: Any) -> None:
        assert len(str(error)) <= MAX_TEXT and error.status in (400, 413, 500, 503)
        assert error.tensor is None or type(error.tensor) is str
        for number in (error.element, error.offset, error.expected, error.actual):
            assert number is None or type(number) is int
        assert (error.element or 0) >= 0 and (error.offset or 0) >= 0
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.offset) == (type(error), str(error), error.offset)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect garbage at nearly each allocation if `collect_often` was the last step.

        In each collection, use the objects that it finds, which may be unfinished, and do what is
        planned for hostile objects.
        """
        if not self.n_collections:
            yield
            return

        def look(phase: str, _: Any) -> None:
            if phase == "stop" and self.n_collections:
                self.n_collections -= 1
                is_traced = sys.gettrace() is not None  # builds that measure coverage crash here
                for found in [] if is_traced else gc.get_objects():
                    if type(found) in PUBLIC:
                        repr(found)
                with suppress(Hostile):
                    self.act()

        thresholds = gc.get_threshold()
        gc.callbacks.append(look)
        gc.set_threshold(1, 1, 1)
        gc.enable()
        try:
            yield
        finally:
            gc.disable()
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(look)
            self.n_collections = 0

    def act(self) -> None:
        """Do what is planned next, in each method of a hostile object that a call uses."""
        self.n_acts += 1
        if self.plan and 0 < self.depth < MAX_DEPTH:
            act, self.next_answer = self.plan.pop()
            act(self)

    def answer(self, sensible: Any) -> Any:
        answer, self.next_answer = self.next_answer, ABSENT
        return sensible if answer is ABSENT else self.made(answer)

    def fail(self) -> None:
        raise Hostile

    @rule(
        acts=st.lists(chosen(ACTS), min_size=1, max_size=6),
        answers=st.lists(chosen(ANSWERS), min_size=6, max_size=6),
    )
    def plan_acts(self, acts: list[Act], answers: list[Any]) -> None:
        self.plan = list(zip(acts, answers, strict=False))

    # --- make objects ---

    @rule(
        name=mostly("x", "x", "y", "y", *NAMES),
        data=DATA,
        datatype=DATATYPE,
        shape=SHAPE,
        binary=FLAG,
        parameters=PARAMETERS,
    )
    def make_tensor(self, name: Any, data: Any, **options: Any) -> None:
        made, before = self.made(data), self.n_acts
        self.keep(made)
        tensor = self.call(tw.Tensor, self.made(name), made, **self.options(**options))
        if tensor is None:
            return
        read(self.keep(tensor))
        is_plain = type(made) is np.ndarray and made.dtype.kind in "biuf"
        if is_plain and self.n_acts == before and tensor.datatype != "BYTES":
            assert payload(tensor) == made.astype(made.dtype.newbyteorder("<")).tobytes()

    @rule(
        at=INDEX,
        n=chosen((1, 1, 2, 3)),
        form=mostly(list, tuple, iter, hostile.List, dict, hostile.Dict, hostile.Iterates),
        outputs=mostly(
            *(ABSENT, None, lambda _: ["y", "x"], lambda _: ["y", None], hostile.Iterates),
            lambda api: [api.pick(tw.RequestedOutput, 0)],
        ),
        parameters=PARAMETERS,
        id=mostly(ABSENT, ABSENT, "1", None),
    )
    def make_messages(self, at: int, n: int, form: Any, outputs: Any, **options: Any) -> None:
        tensors = {each.name: each for each in (self.pick(tw.Tensor, at + i) for i in range(n))}
        for kind, more in ((tw.InferRequest, {"outputs": outputs}), (tw.InferResponse, {})):
            items = self.made(form)
            if form in (list, tuple, iter, hostile.List):
                items = form(tensors.values())
            elif form in (dict, hostile.Dict):
                items = form(tensors)
            message = self.call(kind, items, **self.options(**options, **more))
            if message is not None:
                self.keep(message)

    @rule(argument=st.one_of(chosen(JUNK), DATA))
    def call_with_anything(self, argument: Any) -> None:
        for function in FUNCTIONS:
            made = self.made(argument)
            if isinstance(made, np.ndarray) and made.size > READABLE:  # its items would be dims
                return
            found = self.call(function, made)
            if isinstance(found, PUBLIC):
                self.keep(found)

    # --- bodies ---

    @rule(
        body=chosen(BODIES),
        memory=chosen((bytes, bytearray, bytearray, tw.BodyBuffer)),
        view=chosen(MEMORIES),
        begin=st.integers(0, 1),
        damage=st.one_of(st.none(), st.none(), st.tuples(st.integers(0, 999), st.integers(0, 255))),
    )
    def make_body(self, body: Any, memory: Any, view: Any, begin: int, damage: Any) -> None:
        content, length, kind = body
        if damage is not None:
            at = damage[0] % len(content)
            content = content[:at] + bytes([damage[1]]) + content[at + 1 :]
        self.add_body(content, length, kind, memory, view, begin)

    def add_body(
        self, content: bytes, length: Any, kind: str, memory: Any, view: Any, begin: int = 0
    ) -> Body:
        """Keep a view of new memory with the content at an offset."""
        content = bytes(begin) + content
        if memory is tw.BodyBuffer:
            whole = tw.BodyBuffer(len(content))
            whole.write(content)
        else:
            whole = self.memory(content) if memory is bytearray else content
        source = view(memoryview(whole)[begin:])
        self.keep(source)
        body = Body(source, whole, begin, length, kind)
        self.keep(body)
        return body

    @rule(
        at=INDEX,
        length=mostly(*(ABSENT,) * 8, 0, None, 5, hostile.Index),
        limits=LIMITS,
        spec=chosen((*(None,) * 3, *SPECS)),
    )
    def decode(self, at: int, length: Any, limits: Any, spec: Any) -> None:
        body = self.pick(Body, at)
        content = bytes(memoryview(body.memory))[body.begin :]
        options, before = self.options(limits=limits), self.n_acts
        length = body.header_length if length is ABSENT else self.made(length)
        if spec is not None and body.kind == "request":
            options["raw_input"] = spec
        message = self.call(in_bounds, DECODERS[body.kind], body.source, length, **options)
        if self.n_acts != before:
            return
        assert bytes(memoryview(body.memory))[body.begin :] == content
        if message is None:
            return
        self.keep(message)
        if not body.kind.startswith("grpc") and (length is None or type(length) is int):
            self.keep_views(body, message, len(content) if length is None else length)
            if length != 0 and not options:
                expected = reference.decode(content, length, body.kind)
                assert [(each.name, each.datatype, each.shape) for each in message.values()] == [
                    (each["name"], each["datatype"], each["shape"]) for each in expected["tensors"]
                ]

    def keep_views(self, body: Body, message: Any, at: int) -> None:
        """Keep the tensors that are views of a body, which follow each other from an offset."""
        for tensor in message.values():
            read(tensor)
            if tensor.binary and tensor.data is not None:
                self.keep(tensor, body.memory, body.begin + at)
                self.keep(tensor.data, body.memory, body.begin + at)
                at += tensor.nbytes
                if isinstance(tensor.data, np.ndarray):
                    is_read_only = memoryview(body.source).readonly
                    assert tensor.data.flags.writeable is not is_read_only

    @rule(at=INDEX, count=mostly(None, None, 0, 1, 2, hostile.Index))
    def decode_elements(self, at: int, count: Any) -> None:
        source = self.pick((bytearray, memoryview, bytes, np.ndarray, tw.BodyBuffer), at)
        found = self.call(in_bounds, tw.decode_bytes, source, self.made(count))
        if found is not None:
            read(found)
            is_whole = isinstance(source, bytearray)
            self.keep(found, *([source] if is_whole else []))

    # --- encode ---

    @rule(
        at=INDEX,
        align=mostly(ABSENT, ABSENT, 1, 64, 3, hostile.Index, partial(hostile.Int, 8)),
        nonfinite=mostly(ABSENT, "null", "literal", "error"),
        is_grpc=st.booleans(),
    )
    def encode(self, at: int, align: Any, nonfinite: Any, is_grpc: bool) -> None:
        message, before = self.pick(MESSAGES, at), self.n_acts
        kind = "request" if isinstance(message, tw.InferRequest) else "response"
        encode = getattr(tw.grpc if is_grpc else tw, f"encode_{kind}")
        options = {} if is_grpc else self.options(align=align, nonfinite=nonfinite)
        frame = self.call(encode, message, **options)
        if frame is None or len(frame) > READABLE:  # because of `align`
            return
        self.keep(frame)
        if self.n_acts != before or not all(map(is_unchanged, message.values())):
            return
        body, length = bytes(frame), None if is_grpc else frame.header_length
        kind = f"grpc {kind}" if is_grpc else kind
        back = DECODERS[kind](body, length, limits=ANYTHING)
        bools = b""
        for one, other in zip(back.values(), message.values(), strict=True):
            names = (one.name, one.datatype, one.shape)
            assert names == (other.name, other.datatype, other.shape)
            if one.binary or one.datatype not in ("FP32", "FP64"):  # JSON has no NaN
                assert payload(one) == payload(other)
            bools += payload(one) or b"" if one.datatype == "BOOL" else b""
        if not is_grpc and max(bools, default=0) <= 1 and max(map(len, back), default=0) <= 4096:
            reference.decode(body, length, kind)
        self.add_body(body, length, kind, bytearray, memoryview)

    @rule(data=DATA)
    def encode_elements(self, data: Any) -> None:
        made, before = self.made(data), self.n_acts
        found = self.call(tw.encode_bytes, made)
        if found is not None and self.n_acts == before and is_unchanged(made):
            tw.decode_bytes(found)

    # --- use, change and drop objects ---

    @rule(at=INDEX, first=INDEX, argument=ARGUMENTS[tw.Tensor])
    def use_tensor(self, at: int, first: int, argument: Any) -> None:
        self.use(tw.Tensor, at, first, argument)

    @rule(at=INDEX, first=INDEX, argument=ARGUMENTS[tw.BytesArray])
    def use_elements(self, at: int, first: int, argument: Any) -> None:
        self.use(tw.BytesArray, at, first, argument)

    @rule(kind=chosen(list(USES)), at=INDEX, first=INDEX, argument=ARGUMENT)
    def use(self, kind: Any, at: int, first: int, argument: Any) -> None:
        """Use an object in all ways, and keep the result of the first of them."""
        item, uses = self.pick(kind, at), USES[kind]
        for i in range(len(uses)):
            use = uses[(first + i) % len(uses)]
            found = self.call(attempt, use, item, self.made(argument))
            if found is not None:
                self.call(read, found)
                if i == 0:
                    self.keep(found)

    @rule(at=INDEX, first=INDEX, argument=ARGUMENT)
    def use_any(self, at: int, first: int, argument: Any) -> None:
        item = self.pick(PUBLIC, at)
        for i in range(len(OF_ALL)):
            use = OF_ALL[(first + i) % len(OF_ALL)]
            found = self.call(attempt, use, item, self.made(argument))
            if isinstance(found, PUBLIC) and i == 0:
                self.keep_unfinished(found)

    @rule(at=INDEX, argument=mostly(None, "y", 5))
    def try_to_change(self, at: int, argument: Any) -> None:
        """Try to change an object. What it shows is compared later."""
        item = self.pick(PUBLIC, at)
        for change in CHANGES:
            self.call(attempt, change, item, self.made(argument))

    @rule(at=INDEX, dtype=chosen(("u1", "<f4", "c16", "O")), dims=chosen(((4,), (2, 2), (1, -1))))
    def change_arrays(self, at: int, dtype: str, dims: Any) -> None:
        """Change attributes and elements of an array in use, as far as numpy allows it."""
        array = self.pick(np.ndarray, at)
        with ignored_errors():
            if array.nbytes < READABLE:
                array[...] = 1
        with ignored_errors():
            array.resize(100)
        for name, value in (("shape", dims), ("dtype", dtype), ("shape", dims)):
            with ignored_errors():
                setattr(array, name, value)

    @rule()
    def change_lists(self) -> None:
        for live in self.pool:
            if type(live.value) in (list, dict):
                live.value.clear()

    @rule(at=INDEX, change=chosen(("write", "resize", "release")), byte=st.integers(0, 255))
    def change_memory(self, at: int, change: str, byte: int) -> None:
        if change == "release":
            with ignored_errors():
                self.pick(memoryview, at).release()
            self.pool = [live for live in self.pool if not is_released(live.value)]
        elif change == "resize":
            with ignored_errors():
                self.pick(bytearray, at).extend(b"more" * byte)
        elif memory := self.pick(bytearray, at):
            memory[byte % len(memory)] = at

    @rule(generation=st.integers(0, 2))
    def collect(self, generation: int) -> None:
        gc.collect(generation)

    @rule(n=st.integers(5, 50))
    def collect_often(self, n: int) -> None:
        self.n_collections = n

    @rule(at=INDEX)
    def drop(self, at: int) -> None:
        if self.pool:
            self.pool.pop(at % len(self.pool)).check()

    @rule(at=INDEX, view=INDEX)
    def drop_everything(self, at: int | None, view: int) -> None:
        """Drop the pool, at first without a view of a body, which the caller cannot resize then."""
        self.plan.clear()
        found, memory = self.view_of_a_body(at, view)
        self.pool.clear()
        gc.collect()
        if memory is not None:
            with pytest.raises(BufferError):
                memory.append(0)
        del found
        gc.collect()
        for body in self.bodies:
            body.append(0)  # raises BufferError if a view remains
        self.bodies.clear()

    def view_of_a_body(self, at: int | None, view: int) -> tuple[Any, bytearray | None]:
        """Check all objects of the pool, and return a view made from one of them, and its body."""
        for live in self.pool:
            live.check()
        owned = [live for live in self.pool if isinstance(live.memory, bytearray)]
        if not owned or at is None:
            return None, None
        last = owned[at % len(owned)]
        found = self.call(view_of, last.value, view)
        return found, None if found is None else last.memory

    @invariant()
    def objects_do_not_change(self) -> None:
        self.n_steps += 1
        if self.pool:
            self.pool[self.n_steps % len(self.pool)].check()


# Accepts what the encoder can write.
ANYTHING = tw.Limits(
    max_tensors=2**60,
    max_name_nbytes=2**60,
    max_nesting=1000,
    max_parameters=2**60,
    check_bool=False,
)


def in_bounds(decode: Any, source: Any, *arguments: Any, **options: Any) -> Any:
    """Call `decode`, and check the offset of its error."""
    try:
        return decode(source, *arguments, **options)
    except tw.DecodeError as error:
        assert type(error) in (
            *(tw.HeaderError, tw.LayoutError, tw.ElementError, tw.ErrorResponseError),
        )
        assert error.offset is None or error.offset <= memoryview(source).nbytes
        raise


def view_of(item: Any, at: int) -> Any:
    """Return an object that must keep the memory of the item alive; None if it is empty."""
    if not payload(item):
        return None
    data = item.data if isinstance(item, tw.Tensor) else item
    if isinstance(data, tw.BytesArray):
        item = data
    if type(item) not in VIEWS or getattr(item, "datatype", "") in ("BOOL", "BF16"):
        return item  # Arrow has a bit for each BOOL, and no type for BF16
    views = VIEWS[type(item)]
    return views[at % len(views)](item)


def attempt(use: Use, item: Any, argument: Any) -> Any:
    """Call a function of the tables above. The methods that an object lacks are not an error."""
    try:
        return use(item, argument)
    except AttributeError as error:
        if type(error.obj) not in (*PUBLIC, Cached, MappingProxyType):
            raise
    except (pa.ArrowException, pickle.PicklingError):
        return None
    except RuntimeError as error:
        if not re.search("DLTensor|string cast|getting the repr", str(error)):  # of numpy
            raise
    return None


def is_unchanged(item: Any) -> bool:
    """Return whether the prefixes of a BytesArray are still those that were scanned."""
    data = item.data if isinstance(item, tw.Tensor) else item
    if not isinstance(data, tw.BytesArray):
        return True
    return payload(data) == reference.elements([bytes(data.element(i)) for i in range(data.size)])


def is_released(value: Any) -> bool:
    try:
        return isinstance(value, memoryview) and value.nbytes < 0
    except ValueError:
        return True


@contextmanager
def ignored_errors() -> Iterator[None]:
    """Ignore the errors of numpy and of Python's own objects."""
    try:
        yield
    except (AttributeError, BufferError, TypeError, ValueError):
        return


SETTINGS = settings(
    max_examples=PROGRAMS,
    stateful_step_count=STEPS,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.thread_unsafe(reason="it uses the garbage collector of the process")
def test_programs(pytestconfig: pytest.Config) -> None:
    first = int(pytestconfig.getoption("--hypothesis-seed", None) or 0)
    capture: Any = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        stderr = os.dup(2)  # what pytest captures is lost if the watchdog ends the process
    try:
        for seed in range(first, first + N_RUNS):
            print(f"--hypothesis-seed={seed}", flush=True)
            faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True, file=stderr)
            machine = hypothesis.seed(seed)(type("Programs", (Api,), {}))
            run_state_machine_as_test(machine, settings=SETTINGS)
            gc.collect()
            OWNERS.clear()
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.close(stderr)


@pytest.mark.thread_unsafe(reason="it uses the garbage collector of the process")
@pytest.mark.parametrize("kind", PUBLIC)
def test_object_made_by_new_alone(kind: Any) -> None:
    """It may have any value, and a call may raise any documented error."""
    api = Api()
    try:
        made = api.call(kind.__new__, kind)
        if made is not None:  # the arguments of TensorSpec are those of `__new__`
            for function in FUNCTIONS:
                api.call(function, made)
            for use in (*chain(*USES.values()), *OF_ALL, *CHANGES):
                api.call(attempt, use, made, made)
    finally:
        api.teardown()
