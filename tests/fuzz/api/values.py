"""Objects that the operations pass to tensorwire: scalars, arrays, Arrow data, messages."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import tensorwire as tw
from fuzz import hostile, invalid_dlpack
from fuzz.invalid_arrow import (
    FIELD_CHANGES,
    FORMATS,
    LIST_FORMATS,
    LIST_SIZES,
    NUMBER_FORMATS,
    OFFSETS,
    VIEWS,
    InvalidProducer,
    invalid_numbers,
)
from support import reference

if TYPE_CHECKING:
    from fuzz.api.world import World

EXTENDED: list[Any]
try:
    import ml_dtypes
except ImportError:
    EXTENDED = []
else:
    EXTENDED = [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4]

STRINGS = np.dtypes.StringDType()


# Either small, or so large that no allocation can succeed.
NUMBERS: tuple[int, ...] = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 12, 13, 63, 64, 65, 100, 255, 256, -1, -2, -5, -64),
    *(2**62, 2**62 + 1, 2**63 - 64, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**70),
    *(-(2**62), -(2**63), -(2**63) - 1, -(2**64), 10**30),
)
NAMES = (
    *("x", "y", "image", "", "é", "a" * 200, "\U0001f642", "a\0b", "\ud800", 'x\n"\\'),
    "z" * 5000,
)
TEXTS: tuple[Any, ...] = (
    *(b"", b"a", "b", "é", "\U0001f642", b"\xff\xfe", b"\0\0", b"twelve bytes", b"thirteen byte"),
    *("z" * 40, b"z" * 300, bytearray(b"bytearray"), memoryview(b"view"), memoryview(b"abcd")[::2]),
    *(None, 1, "\ud800", b"a" * 20),
)
DATATYPES = (*sorted(reference.DATATYPES), "fp32", "", "STRING")
CONSTANTS: tuple[Any, ...] = (
    *(None, True, False, 0.5, float("nan"), float("inf"), 1e300, 3 + 4j),
    *("x", "a\0b", "\ud800", b"x"),
    *((), int, ..., NotImplemented, slice(None, None, -1), range(3), np.uint8(200), np.int64(-5)),
    *(np.uint64(2**64 - 1), np.float32(1.5), np.bool_(True), np.str_("x"), np.bytes_(b"x")),
    *(np.datetime64("2020-01-01"), np.ma.masked),
)
# Objects that a program can change, and iterators, are new each time.
SCALARS: tuple[Callable[[], Any], ...] = (
    *(lambda: bytearray(b"bytes"), list, dict, object, lambda: set("ab"), lambda: iter([1, 2])),
    *(lambda: (item for item in [b"a", b"b"]), lambda: np.array(3)),
    lambda: itself([]),
    lambda: itself({}),
    lambda: nested(100),
    lambda: nested(3000),
    lambda: {"k": [1, {"a": None}], "é": 0.1},
    lambda: {1: 2, None: 3, (1, 2): 4},
    lambda: {"binary_data": 1},
    lambda: {"binary_data_size": 4},
    lambda: {"binary_data_output": True},
    lambda: {"binary_data_output": "yes"},
    lambda: {"shared_memory_region": "r"},
    lambda: {"shared_memory_region": 5},
    lambda: {"a": 2**70, "b": -(2**63)},
    lambda: {"a": float("nan"), "b": b"bytes", "c": {1, 2}},
    lambda: [("Content-Type", "x"), (b"Inference-Header-Content-Length", b"5")],
)


def itself(container: Any) -> Any:
    """Return a container that contains itself."""
    if isinstance(container, dict):
        container["itself"] = container
    else:
        container.append(container)
    return container


def nested(depth: int) -> Any:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def junk(world: World) -> Any:
    """Return anything: a scalar, a number, an object of the pool, or a hostile object."""
    kind = world.choices.below(5)
    if kind == 0:
        return (
            world.choices.of(SCALARS)() if world.choices.one_in(2) else world.choices.of(CONSTANTS)
        )
    if kind == 1:
        return number(world)
    if kind == 2 and world.pool:
        return world.choices.of(world.pool)
    if kind == 3:
        return hostile_object(world)
    return array(world) if world.choices.one_in(2) else world.choices.of(TEXTS)


def hostile_object(world: World) -> Any:
    made = world.choices.of(HOSTILE)()
    if world.choices.one_in(4):
        made = [made]
    return made


HOSTILE = hostile.plain()


def number(world: World) -> Any:
    value = world.choices.of(NUMBERS)
    kind = world.choices.below(8)
    if kind == 6 and 0 <= value < 2**62:
        return np.uint8(value % 256)
    if kind == 7:
        return hostile.Int(value)
    return value


def name(world: World) -> Any:
    return world.or_junk(lambda: world.choices.of(NAMES[: world.choices.of((2, len(NAMES)))]))


def flag(world: World) -> Any:
    return world.or_junk(lambda: world.choices.of((True, False, None)))


def small(world: World) -> int:
    return world.choices.below(6)


def shape(world: World) -> Any:
    def make() -> Any:
        n = world.choices.of((0, 1, 1, 2, 3, 64, 65))
        dims = [small(world) if n < 64 else 1 for _ in range(n)]
        if dims and world.choices.one_in(6):
            dims[world.choices.below(len(dims))] = number(world)
        if dims and world.choices.one_in(12):
            dims[0] = hostile_object(world)
        return world.choices.of((tuple, tuple, list, hostile.Tuple))(dims)

    return world.or_junk(make)


def parameters(world: World) -> Any:
    if world.choices.below(3):
        return None
    keys = ("k", "binary_data", "binary_data_output", "binary_data_size", "shared_memory_region")
    made = {world.choices.of(keys): world.or_junk(lambda: world.choices.of((True, "r", 4)))}
    return world.or_junk(lambda: made)


def datatype(world: World) -> Any:
    return world.or_junk(lambda: world.choices.of((None, None, *DATATYPES)))


# --- arrays ---

DTYPES: list[Any] = [
    *("?", "u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8"),
    *(">u2", ">i4", ">f8", ">f4", "c8", "c16", "g", "V3", "M8[s]", "m8", "O", "S1", "S5", "U3"),
    *(">U3", "V0", "S0"),
    np.dtype([("a", "<f4"), ("b", "u1")]),
    np.dtype([("a", "<f4"), ("b", "u1")], align=True),
    np.dtype([("a", "<f4", (2,))]),
    STRINGS,
    np.dtypes.StringDType(na_object=np.nan),
    np.dtypes.StringDType(na_object=None),
    np.dtypes.StringDType(coerce=False),
]
DTYPES += EXTENDED
SHAPES: tuple[tuple[int, ...], ...] = (
    *((3,), (2, 3), (), (0,), (1,), (1,) * 64, (0, 5), (5, 0, 2), (100,), (2, 2, 2), (4, 1)),
)


def array(world: World) -> Any:
    """Return an array of any kind. The input chooses its dtype, contents and memory layout."""
    dtype, dims = np.dtype(world.choices.of(DTYPES)), world.choices.of(SHAPES)
    made = filled(world, dtype, dims)
    return world.choices.of(LAYOUTS)(made)


def filled(world: World, dtype: np.dtype[Any], dims: tuple[int, ...]) -> Any:
    size = int(np.prod(dims))
    if dtype.kind == "T":
        texts = ["", "a", "é", "short", "longer than what fits into an arena slot " * 2]
        made = np.array([texts[i % len(texts)] for i in range(size)], dtype).reshape(dims)
        if size and hasattr(dtype, "na_object") and world.choices.one_in(3):
            made.reshape(-1)[world.choices.below(size)] = dtype.na_object
        return made
    if dtype.kind == "O":
        made = np.empty_like(np.zeros(dims, object))  # the slots are NULL
        flat = made.reshape(-1)
        for i in range(size if world.choices.one_in(2) or size <= 8 else 0):
            flat[i] = hostile_object(world) if world.choices.one_in(12) else TEXTS[i % 9]
        return made
    if dtype.kind == "U" and dtype.isnative and world.choices.one_in(3):
        words = np.array([0xD800, 0x110000, 0x41, 0, 0xFFFFFFFF, 0x1F642], "<u4")
        n_words = size * dtype.itemsize // 4
        return np.resize(words, n_words).view(dtype).reshape(dims) if size else np.zeros(0, dtype)
    contents = (np.arange(size * dtype.itemsize) * 37 % 251).astype("u1")
    if dtype == np.dtype("?"):
        contents = contents % (3 if world.choices.one_in(8) else 2)
        contents = contents.astype("u1")
    if not size or not dtype.itemsize or dtype.hasobject:
        return np.zeros(dims, dtype)
    return np.frombuffer(bytearray(contents.tobytes()), dtype).reshape(dims)


def misaligned(made: Any) -> Any:
    if made.dtype.hasobject or made.dtype.kind == "T" or not made.nbytes:
        return made
    memory = bytearray(made.nbytes + 1)
    memory[1:] = made.tobytes()
    return np.frombuffer(memory, made.dtype, offset=1).reshape(made.shape)


def read_only(made: Any) -> Any:
    made = made.copy()
    made.flags.writeable = False
    return made


def memmap(made: Any) -> Any:
    if made.dtype.hasobject or made.dtype.kind == "T" or not made.nbytes:
        return made
    with tempfile.NamedTemporaryFile() as file:
        file.write(made.tobytes())
        file.flush()
        return np.memmap(file.name, made.dtype, "r+", shape=made.shape)


def matrix(made: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.matrix(made) if made.ndim <= 2 and made.dtype.kind in "uif" else made


def recarray(made: Any) -> Any:
    return made.view(np.recarray) if made.dtype.names else made


def masked(made: Any) -> Any:
    if made.dtype.kind not in "uifb":
        return made
    return np.ma.array(made, mask=np.arange(made.size).reshape(made.shape) % 2 == 1)


LAYOUTS: tuple[Callable[[Any], Any], ...] = (
    *((lambda made: made),) * 6,
    lambda made: made.T,
    lambda made: made[::-1] if made.ndim else made,
    lambda made: made[::2] if made.ndim else made,
    lambda made: made[..., None] if made.ndim < 64 else made,
    lambda made: np.broadcast_to(made, (3, *made.shape)) if made.ndim < 60 else made,
    lambda made: np.broadcast_to(made.reshape(-1)[:1], (2**62,)) if made.nbytes == 1 else made,
    np.asfortranarray,
    *(misaligned, read_only, memmap, matrix, recarray, masked),
    lambda made: made.view(hostile.Array),
    lambda made: made.reshape(-1)[:1] if made.size else made,
    lambda made: list(made) if made.ndim and made.dtype.kind != "U" else made,
    lambda made: made.tolist() if made.dtype.kind != "U" else made,
    lambda made: made[()] if made.ndim == 0 and made.dtype.kind != "U" else made,
)


def values(world: World) -> Any:
    """Return something to create a tensor from."""
    kind = world.choices.below(9)
    if kind <= 2:
        return array(world)
    if kind == 3:
        n = small(world)
        return [TEXTS[world.choices.below(9)] for _ in range(n)]
    if kind in (4, 8):
        return (arrow if kind == 4 else dlpack)(world)
    if kind == 5:
        return [[1, 2], [3, world.or_junk(lambda: 4)]]
    if kind == 6 and world.pool:
        return world.choices.of(world.pool)
    return junk(world)


ARROW: tuple[Callable[[], Any], ...] = (
    lambda: pa.array([b"a", b"", b"longer than twelve bytes"]),
    lambda: pa.array(["a", "é", "longer than twelve bytes"]),
    lambda: pa.array([b"a", None]),
    lambda: pa.array([b"x" * 13, b"y"], pa.binary_view()),
    lambda: pa.array(["x" * 13, "y"], pa.string_view()),
    lambda: pa.array([b"x" * 13, b"y"], pa.large_binary())[1:],
    lambda: pa.array(["x", "y"], pa.large_string())[:0],
    lambda: pa.array([], pa.binary()),
    lambda: pa.array([], pa.string_view()),
    lambda: pa.array([b"ab", b"cd"], pa.binary(2)),
    lambda: pa.array([1, 2]),
    lambda: pa.array(["a", "a"]).dictionary_encode(),
    lambda: pa.chunked_array([["a"], [], ["b", "c"]], pa.string()),
    lambda: pa.chunked_array([], pa.binary()),
    lambda: pa.table({"a": [1]}),
    lambda: pa.nulls(3),
    lambda: pa.array([1.5, 2.5, 3.5])[1:],
    lambda: pa.array([True, False, True] * 5)[3:12],
    lambda: pa.array([1, None, 3], pa.int8()),
    lambda: pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2))[1:],
    lambda: pa.array([[1, 2], None, [3, None]], pa.list_(pa.uint8(), 2)),
    lambda: pa.array([[[True], [False]]], pa.list_(pa.list_(pa.bool_(), 1), 2)),
    lambda: pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string_view(), 2)),
    lambda: pa.array([[], []], pa.list_(pa.float16(), 0)),
    lambda: pa.chunked_array([[1, 2], [], [3]], pa.uint32()),
    lambda: pa.array([1], pa.timestamp("us")),
)


class Cached:
    """A producer of an array that returns the same capsules each time."""

    def __init__(self, producer: Any) -> None:
        self.pair = producer.__arrow_c_array__()

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        hostile.side_effect()
        return self.pair


class CachedStream:
    """A producer of a stream that returns the same capsule each time."""

    def __init__(self, producer: Any) -> None:
        self.stream = producer.__arrow_c_stream__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        hostile.side_effect()
        return self.stream


def arrow(world: World) -> Any:
    kind = world.choices.below(4)
    if kind == 0:
        producer: Any = InvalidProducer(
            world.choices.of(FORMATS),
            world.choices.below(len(FIELD_CHANGES)),
            world.choices.below(len(OFFSETS) * len(VIEWS)),
        )
        if world.choices.one_in(2):
            producer = invalid_numbers(
                world.choices.below(len(NUMBER_FORMATS)),
                world.choices.below(len(LIST_SIZES)),
                world.choices.below(len(FIELD_CHANGES)),
                world.choices.below(len(LIST_FORMATS)),
            )
        world.kept.append(producer)
        return producer
    producer = world.choices.of(ARROW)()
    if kind == 1:
        is_stream = hasattr(producer, "__arrow_c_stream__")
        return world.keep(CachedStream(producer) if is_stream else Cached(producer))
    return producer


class CachedCapsule:
    """A producer that returns the same capsule each time, or another object."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        hostile.side_effect()
        return hostile.answer(self.capsule)

    def __dlpack_device__(self) -> Any:
        hostile.side_effect()
        return hostile.answer((1, 0))


class ExportedCapsule(CachedCapsule):
    """A capsule that tensorwire has exported, and that other packages can therefore consume."""


def dlpack(world: World) -> Any:
    change = world.choices.below(len(invalid_dlpack.FIELD_CHANGES))
    producer = invalid_dlpack.producer(change, is_cached=world.choices.one_in(2))
    world.kept.append(producer)  # it owns the structs
    if world.choices.one_in(3):
        return world.keep(CachedCapsule(producer.__dlpack__()))
    return producer


# --- bodies ---


class Message:
    """A body that was valid when it was created, and its header length."""

    def __init__(self, body: Any, header_length: Any, kind: str) -> None:
        self.body, self.header_length, self.kind = body, header_length, kind


MESSAGES: list[tuple[bytes, int | None, str]] = []


def message_seeds() -> list[tuple[bytes, int | None, str]]:
    """Return valid bodies, written by the reference encoder."""
    if not MESSAGES:
        entries = [
            reference.entry("x", "FP32", [2, 3], [0.5] * 6),
            reference.entry("words", "BYTES", [3], [b"a", b"", b"longer than twelve bytes"]),
            reference.entry("b", "BOOL", [3], [True, False, True]),
            reference.entry("h", "BF16", [2], [1.0, 2.0]),
            reference.entry("j", "INT8", [2], [1, -1], binary=False),
            reference.entry("s", "BYTES", [], [b"s"], binary=False),
            reference.entry("e", "FP64", [0, 2], []),
        ]
        requested = [{"name": "y", "parameters": {"binary_data": True}}, {"name": "x"}]
        for some in (entries, entries[:1], entries[1:2], entries[4:6], entries[1:4]):
            MESSAGES.append((*reference.request(some, outputs=requested), "request"))
            MESSAGES.append((*reference.response(some, model_name="m", align=64), "response"))
    return MESSAGES


def body(world: World) -> Message:
    data, length, kind = world.choices.of(message_seeds())
    if world.choices.one_in(3) and data:
        at = world.choices.below(256) * len(data) // 256
        data = data[:at] + bytes([world.choices.below(256)]) + data[at + 1 :]
    memory = world.choices.of(
        (bytes, bytearray, memoryview, lambda d: np.frombuffer(d, "u1"), buffered, at_odd_address)
    )
    return Message(memory(data), length, kind)


def buffered(data: bytes) -> tw.BodyBuffer:
    buffer = tw.BodyBuffer(len(data), 3)
    buffer.write(data)
    return buffer


def at_odd_address(data: bytes) -> memoryview:
    return memoryview(bytearray(b"x" + data))[1:]


# --- first objects of an episode ---


def some_bytes_array(world: World) -> tw.BytesArray:
    source = world.choices.of((bytes, bytearray))(
        reference.elements([b"a", b"", b"long" * 5, b"\xc3\xa9"])
    )
    return tw.decode_bytes(source)


def some_buffer(world: World) -> tw.BodyBuffer:
    buffer = tw.BodyBuffer(world.choices.of((None, 100)))
    buffer.write(reference.elements([b"a", b"bc"]))
    return buffer


def some_frame(world: World) -> tw.Frame:
    return tw.encode_request(tw.InferRequest([some_tensor(world)]))


def some_tensor(world: World) -> tw.Tensor:
    if world.choices.one_in(3):
        return tw.Tensor("words", [b"a", "é"])
    return tw.Tensor("x", np.arange(4, dtype="f4"))


MAKERS: dict[Any, Callable[[World], Any]] = {
    tw.Tensor: some_tensor,
    tw.RequestedOutput: lambda world: tw.RequestedOutput("x", binary=True),
    tw.InferRequest: lambda world: tw.InferRequest([some_tensor(world)]),
    tw.InferResponse: lambda world: tw.InferResponse([some_tensor(world)]),
    tw.TensorSpec: lambda world: tw.TensorSpec("raw", world.choices.of(DATATYPES[:14]), (-1,)),
    tw.Limits: lambda world: tw.Limits(bf16_as_uint16=True),
    tw.Frame: some_frame,
    tw.BytesArray: some_bytes_array,
    tw.BodyBuffer: some_buffer,
    Message: body,
    Cached: lambda world: Cached(pa.array([b"a", b"longer than twelve bytes"])),
    bytes: lambda world: reference.elements([b"a", b"bc"]),
    bytearray: lambda world: bytearray(reference.elements([b"a", b"bc"])),
    memoryview: lambda world: memoryview(bytearray(reference.elements([b"a", b"bc"]))),
    np.ndarray: lambda world: np.arange(4, dtype="f4"),
}


ATTRIBUTES: dict[type, tuple[str, ...]] = {
    tw.Tensor: ("name", "datatype", "shape", "parameters", "binary", "data"),
    tw.RequestedOutput: ("name", "binary", "parameters"),
    tw.InferRequest: ("inputs", "outputs", "id", "model_name", "model_version", "parameters"),
    tw.InferResponse: ("outputs", "model_name", "model_version", "id", "parameters"),
    tw.TensorSpec: ("name", "datatype", "dims", "batching", "shape"),
    tw.Limits: ("max_rank", "max_elements", "check_bool"),
    tw.Frame: ("buffers", "header_length", "headers"),
    tw.BytesArray: ("shape", "ndim", "size", "nbytes", "wire"),
    tw.BodyBuffer: ("nbytes", "content_length", "max_nbytes", "complete"),
}
PUBLIC = tuple(ATTRIBUTES)


def buffer_of(world: World) -> Any:
    """Return a buffer from the pool, or an object that is not a buffer."""
    kinds = (bytearray, memoryview, bytes, np.ndarray, tw.BodyBuffer)
    return world.or_junk(lambda: world.pick(*kinds))


def part_of(world: World, target: Any) -> Any:
    try:
        view = memoryview(target)
        return view[world.choices.below(9) : world.choices.below(20)]
    except (TypeError, ValueError, BufferError, NotImplementedError):
        return target
