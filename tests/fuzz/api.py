"""The target "api": tensorwire's public API, called in any order with any objects.

One input is one *episode*: a program that is written while it runs. `World` keeps a pool of live
objects. Each step takes bytes from the input, chooses one of `OPERATIONS` and its arguments, mostly
from the pool and sometimes junk or an object of hostile.py, and puts the result into the pool.
An episode ends with its input. The same input gives the same episode, but for the moments at which
`collect_always` lets the garbage collector run.

Hostile objects use the same input: a method of theirs may run further steps, and so it changes,
empties or drops what the call below it works on.

What has to hold after each call into tensorwire (`World.call`):

- The exception, if there is one, is documented (`is_documented`), or comes from a hostile object.
- A DecodeError has numbers of the right types, and an offset within the body.
- A frame decodes again, by tensorwire and by support/reference.py, and has the names, datatypes,
  shapes and bytes of the message that was encoded (`check_frame`); a call in which a hostile
  object acted is exempt, because there the message may have changed on the way.
- Every byte of a result can be read. AddressSanitizer sees a read out of bounds.

Not generated, because no consumer can check it: Arrow arrays with wrong pointers or buffer sizes,
`ndarray.data = ...` and `ndarray.resize(refcheck=False)`, which free memory that views refer to,
and the `str` objects, invalid in CPython itself, that numpy makes of `U` elements beyond U+10FFFF.
Pickles are altered by calling what the pickle would call with other arguments; the bytes of a
pickle can call anything.

`python -m fuzz.api --seed 1 --steps 100000` runs episodes of random bytes, and says how to see one
of them again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import gc
import pickle
import random
import tempfile
import warnings
import weakref
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tensorwire as tw
from fuzz import hostile
from fuzz.comparison import MAX_TEXT
from fuzz.hostile import Hostile
from fuzz.invalid_arrow import FORMATS, LIES, OFFSETS, VIEWS, Liar
from support import reference

EXTENDED: list[Any]
try:
    import ml_dtypes
except ImportError:
    EXTENDED = []
else:
    EXTENDED = [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4]

MAX_POOL = 24
MAX_DEPTH = 3  # of operations that hostile objects run within operations
EPISODE_NBYTES = 600
ANYTHING = tw.Limits(
    max_tensors=2**60, max_name_nbytes=2**60, max_nesting=1000, check_bool=False
)  # so that decoding accepts all that encoding may write
STRINGS = np.dtypes.StringDType()
Operation = Callable[["World"], Any]
OPERATIONS: list[Operation] = []


def operation(function: Operation) -> Operation:
    OPERATIONS.append(function)
    return function


class Choices:
    """A stream of bytes, read as choices. At its end every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.data)

    def below(self, n: int) -> int:
        if self.is_over:
            return 0
        self.at += 1
        return self.data[self.at - 1] % n

    def of(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]

    def one_in(self, n: int) -> bool:
        return not self.is_over and self.below(n) == n - 1


class World:
    """The objects of one episode, and the choices that are left."""

    def __init__(self, data: bytes) -> None:
        self.choices = Choices(data)
        self.pool: list[Any] = []
        self.kept: list[Any] = []  # owners of memory that capsules refer to
        self.depth = 0
        self.n_steps = 0
        self.n_meddled = 0
        self.trace: Callable[[str], None] | None = None

    # --- steps ---

    def run(self) -> None:
        hostile.connect(self.meddle, self.answer)
        try:
            while not self.choices.is_over:
                self.step()
        finally:
            hostile.disconnect()

    def step(self) -> None:
        function = self.choices.of(OPERATIONS)
        self.n_steps += 1
        if self.trace is not None:
            self.trace(f"{'  ' * self.depth}{self.n_steps} {function.__name__}")
        with contextlib.suppress(Hostile):
            self.keep(function(self))

    def keep(self, value: Any) -> Any:
        """Put a result into the pool, in place of another when that is full."""
        if value is None:
            return None
        if len(self.pool) < MAX_POOL:
            self.pool.append(value)
        else:
            at = self.choices.below(MAX_POOL)
            dropped = self.pool[at]
            self.pool[at] = value
            del dropped  # after the pool is whole again: its __del__ may use that
        return value

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What the function returns; None, and the exception is checked, when it raises one."""
        if self.trace is not None:
            said = [type(argument).__name__ for argument in (*arguments, *options.values())]
            self.trace(f"{'  ' * self.depth}  {getattr(function, '__name__', function)} {said}")
        try:
            return function(*arguments, **options)
        except Hostile:
            raise
        except tw.TensorwireError as error:
            self.check_error(error)
        except Exception as error:
            if not is_documented(error):
                raise
        return None

    def check_error(self, error: tw.TensorwireError) -> None:
        text = str(error)
        assert len(text) <= MAX_TEXT or not isinstance(error, tw.DecodeError), len(text)
        assert error.tensor is None or isinstance(error.tensor, str)
        for number in (error.element, error.offset, error.expected, error.actual):
            assert number is None or isinstance(number, int), (text, type(number))
        assert error.status in (400, 413, 500)
        assert error.element is None or error.element >= 0
        assert error.offset is None or error.offset >= 0
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.offset) == (type(error), text, error.offset)

    # --- what hostile objects do ---

    def meddle(self) -> None:
        """Nothing, an exception, or steps within the step."""
        self.n_meddled += 1
        if self.depth >= MAX_DEPTH or self.choices.is_over:
            return
        action = self.choices.below(8)
        if action == 1:
            raise Hostile
        if action == 2:
            self.pool.clear()
        elif action == 3:
            gc.collect()
        elif action >= 4:
            self.depth += 1
            try:
                self.step()
            finally:
                self.depth -= 1

    def answer(self, sensible: Any) -> Any:
        if self.choices.one_in(2):
            return junk(self)
        return sensible

    # --- arguments ---

    def pick(self, *kinds: type) -> Any:
        """An object of the pool that is of one of these types, or a new one of the first."""
        found = [item for item in self.pool if isinstance(item, kinds)]
        if found:
            return self.choices.of(found)
        return self.keep(MAKERS[kinds[0]](self))

    def or_junk(self, make: Callable[[], Any]) -> Any:
        """A sensible argument, or, one time in eight, junk."""
        if self.choices.one_in(8):
            return junk(self)
        return make()


def is_documented(error: Exception) -> bool:
    """Whether this may leave a call into tensorwire.

    A RecursionError of a structure that contains itself is CPython's own, and so is what a
    hostile number brings about in Python's formatting.
    """
    documented = (TypeError, ValueError, BufferError, IndexError, KeyError, MemoryError)
    if isinstance(error, np.ma.MaskError):  # a masked constant is no number and no bool
        return True
    return isinstance(error, documented) and not isinstance(error, Warning)


# --- values --------------------------------------------------------------------------------------

# Either small or so large that no allocation of it can succeed.
NUMBERS: tuple[int, ...] = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 12, 13, 63, 64, 65, 100, 255, 256, -1, -2, -5, -64),
    *(2**62, 2**62 + 1, 2**63 - 64, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**70),
    *(-(2**62), -(2**63), -(2**63) - 1, -(2**64), 10**30),
)
NAMES = (
    "x",
    "y",
    "image",
    "",
    "é",
    "a" * 200,
    "\U0001f642",
    "a\0b",
    "\ud800",
    'x\n"\\',
    "z" * 5000,
)
TEXTS: tuple[Any, ...] = (
    *(b"", b"a", "b", "é", "\U0001f642", b"\xff\xfe", b"\0\0", b"twelve bytes", b"thirteen byte"),
    *("z" * 40, b"z" * 300, bytearray(b"bytearray"), memoryview(b"view"), memoryview(b"abcd")[::2]),
    *(None, 1, "\ud800", b"a" * 20),
)
DATATYPES = (*sorted(reference.DATATYPES), "fp32", "", "STRING")
SCALARS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: False,
    lambda: 0.5,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: 1e300,
    lambda: "x",
    lambda: "a\0b",
    lambda: "\ud800",
    lambda: b"x",
    lambda: bytearray(b"bytes"),
    lambda: [],
    lambda: {},
    lambda: (),
    lambda: set("ab"),
    lambda: range(3),
    lambda: iter([1, 2]),
    lambda: (item for item in [b"a", b"b"]),
    object,
    lambda: int,
    lambda: ...,
    lambda: NotImplemented,
    lambda: slice(None, None, -1),
    lambda: 3 + 4j,
    lambda: np.uint8(200),
    lambda: np.int64(-5),
    lambda: np.uint64(2**64 - 1),
    lambda: np.float32(1.5),
    lambda: np.bool_(True),
    lambda: np.str_("x"),
    lambda: np.bytes_(b"x"),
    lambda: np.datetime64("2020-01-01"),
    lambda: np.ma.masked,
    lambda: np.array(3),
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
    """Anything: a scalar, a number, an object of the pool, or a hostile one."""
    kind = world.choices.below(5)
    if kind == 0:
        return world.choices.of(SCALARS)()
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


# --- arrays --------------------------------------------------------------------------------------

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
    """An array of any kind: its dtype, its contents and how it lies in memory are chosen."""
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
    """Something to make a tensor of."""
    kind = world.choices.below(8)
    if kind <= 2:
        return array(world)
    if kind == 3:
        n = small(world)
        return [TEXTS[world.choices.below(9)] for _ in range(n)]
    if kind == 4:
        return arrow(world)
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
)


class Cached:
    """A producer that returns the same capsules each time."""

    def __init__(self, producer: Any) -> None:
        if hasattr(producer, "__arrow_c_stream__"):
            self.stream = producer.__arrow_c_stream__()
            self.__class__ = CachedStream  # type: ignore[assignment]
        else:
            self.pair = producer.__arrow_c_array__()

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        hostile.meddle()
        return self.pair


class CachedStream:
    stream: Any

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        hostile.meddle()
        return self.stream


def arrow(world: World) -> Any:
    kind = world.choices.below(4)
    if kind == 0:
        liar = Liar(
            world.choices.of(FORMATS),
            world.choices.below(len(LIES)),
            world.choices.below(len(OFFSETS) * len(VIEWS)),
        )
        world.kept.append(liar)
        return liar
    producer = world.choices.of(ARROW)()
    return world.keep(Cached(producer)) if kind == 1 else producer


# --- bodies --------------------------------------------------------------------------------------


class Message:
    """Bytes that were a valid body when they were made, and its header length."""

    def __init__(self, body: Any, header_length: Any, kind: str) -> None:
        self.body, self.header_length, self.kind = body, header_length, kind


MESSAGES: list[tuple[bytes, int | None, str]] = []


def message_seeds() -> list[tuple[bytes, int | None, str]]:
    """Valid bodies, written by the oracle."""
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
        (bytes, bytearray, memoryview, lambda d: np.frombuffer(d, "u1"), buffered, misplaced)
    )
    return Message(memory(data), length, kind)


def buffered(data: bytes) -> tw.BodyBuffer:
    buffer = tw.BodyBuffer(len(data), 3)
    buffer.write(data)
    return buffer


def misplaced(data: bytes) -> memoryview:
    return memoryview(bytearray(b"x" + data))[1:]


# --- operations: make ----------------------------------------------------------------------------


@operation
def make_tensor(world: World) -> Any:
    options: dict[str, Any] = {}
    if world.choices.one_in(2):
        options["datatype"] = datatype(world)
    if world.choices.one_in(3):
        options["shape"] = shape(world)
    if world.choices.one_in(3):
        options["binary"] = flag(world)
    return world.call(
        tw.Tensor, name(world), values(world), parameters=parameters(world), **options
    )


@operation
def make_numeric_tensor(world: World) -> Any:
    made = np.ones((2, 3), world.choices.of(DTYPES[:12]))
    return tw.Tensor(world.choices.of(NAMES[:3]), made, binary=world.choices.one_in(2))


@operation
def make_words_tensor(world: World) -> Any:
    n = world.choices.below(9)
    return tw.Tensor(world.choices.of(NAMES[:3]), list(TEXTS[:n]), datatype="BYTES")


@operation
def make_absent_tensor(world: World) -> Any:
    made = {"shared_memory_region": "r"}
    return world.call(
        tw.Tensor, name(world), None, datatype=datatype(world), shape=shape(world), parameters=made
    )


def tensors(world: World) -> Any:
    """A list of tensors with different names, as a message needs, or with any."""
    made = [world.pick(tw.Tensor) for _ in range(world.choices.of((1, 1, 2, 3)))]
    if not world.choices.one_in(6):
        made = list({tensor.name: tensor for tensor in made}.values())
    return world.or_junk(lambda: world.choices.of((list, tuple, iter, hostile.List))(made))


def outputs(world: World) -> Any:
    if world.choices.one_in(2):
        return None
    made = [world.pick(tw.RequestedOutput) for _ in range(world.choices.of((1, 2, 0)))]
    return world.or_junk(lambda: list({output.name: output for output in made}.values()))


def texts(world: World) -> dict[str, Any]:
    return {
        key: world.or_junk(lambda: world.choices.of(("1", None, "é")))
        for key in ("id", "model_name", "model_version")
        if world.choices.one_in(5)
    }


@operation
def make_request(world: World) -> Any:
    return world.call(
        tw.InferRequest,
        tensors(world),
        outputs(world),
        parameters=parameters(world),
        **texts(world),
    )


@operation
def make_response(world: World) -> Any:
    return world.call(
        tw.InferResponse, tensors(world), parameters=parameters(world), **texts(world)
    )


@operation
def make_requested_output(world: World) -> Any:
    return world.call(
        tw.RequestedOutput, name(world), binary=flag(world), parameters=parameters(world)
    )


@operation
def make_spec(world: World) -> Any:
    called = world.or_junk(lambda: world.choices.of(NAMES[:-1]))
    return world.call(tw.TensorSpec, called, datatype(world), shape(world), flag(world))


@operation
def make_limits(world: World) -> Any:
    keys = ("max_header_nbytes", "max_tensors", "max_rank", "max_name_nbytes", "max_nesting")
    options = {
        world.choices.of((*keys, "max_elements")): number(world) for _ in range(small(world))
    }
    if world.choices.one_in(3):
        options[world.choices.of(("check_bool", "bf16_as_uint16"))] = flag(world)
    return world.call(tw.Limits, **options)


@operation
def make_body(world: World) -> Any:
    return body(world)


@operation
def make_array(world: World) -> Any:
    return array(world)


@operation
def make_junk(world: World) -> Any:
    return junk(world)


@operation
def make_uninitialized(world: World) -> Any:
    """An object whose constructor did not run, as `copy` and subclasses may make one."""
    kind = world.choices.of(PUBLIC)
    return world.call(kind.__new__, kind)


@operation
def make_frame(world: World) -> Any:
    made = [world.pick(memoryview, bytes) for _ in range(small(world))]
    if world.choices.one_in(6):
        made.append(junk(world))
    frame = world.call(
        tw.Frame, world.or_junk(lambda: tuple(made)), world.or_junk(lambda: small(world))
    )
    return frame


@operation
def initialize_again(world: World) -> None:
    """Call the constructor of an object that is in use."""
    item = world.pick(*PUBLIC)
    arguments = [junk(world) for _ in range(world.choices.below(3))]
    if isinstance(item, tw.Tensor) and world.choices.one_in(2):
        arguments = [name(world), values(world)]
    world.call(item.__init__, *arguments)


# --- operations: decode --------------------------------------------------------------------------


def header_length_of(world: World, message: Message) -> Any:
    length = message.header_length
    forms = (
        *((lambda: length),) * 6,
        lambda: str(length),
        lambda: str(length).encode(),
        lambda: None,
        lambda: 0,
        lambda: number(world),
        lambda: junk(world),
    )
    return world.choices.of(forms)()


def limits(world: World) -> dict[str, Any]:
    if world.choices.below(3):
        return {}
    return {"limits": world.or_junk(lambda: world.pick(tw.Limits))}


@operation
def decode_request(world: World) -> Any:
    message = world.pick(Message)
    length, options = header_length_of(world, message), limits(world)
    if world.choices.one_in(4):
        options["raw_input"] = world.or_junk(lambda: world.pick(tw.TensorSpec))
    return decoded(world, tw.decode_request, message, length, options)


@operation
def decode_response(world: World) -> Any:
    message = world.pick(Message)
    length, options = header_length_of(world, message), limits(world)
    return decoded(world, tw.decode_response, message, length, options)


def decoded(
    world: World, decode: Any, message: Message, length: Any, options: dict[str, Any]
) -> Any:
    source = message.body if not world.choices.one_in(8) else buffer_of(world)
    made = world.call(in_bounds, decode, source, length, **options)
    if made is not None:
        for tensor in made:
            read(world, tensor)
            world.keep(tensor)
    return made


def in_bounds(decode: Any, source: Any, *arguments: Any, **options: Any) -> Any:
    """The call, and a look at the offset of its error."""
    try:
        return decode(source, *arguments, **options)
    except tw.DecodeError as error:
        nbytes = memoryview(source).nbytes
        assert type(error) in (tw.HeaderError, tw.LayoutError, tw.ElementError)
        assert error.offset is None or 0 <= error.offset <= nbytes, (error.offset, nbytes)
        raise


def buffer_of(world: World) -> Any:
    """A buffer from the pool, or something that is none."""
    kinds = (bytearray, memoryview, bytes, np.ndarray, tw.BodyBuffer)
    return world.or_junk(lambda: world.pick(*kinds))


@operation
def decode_bytes(world: World) -> Any:
    source = buffer_of(world)
    if world.choices.one_in(2):
        n = world.choices.below(6)
        source = world.choices.of((bytes, bytearray))(
            reference.elements([b"a" * i for i in range(n)])
        )
    count = world.or_junk(lambda: world.choices.of((None, None, 0, 1, 2, 3)))
    made = world.call(in_bounds, tw.decode_bytes, source, count)
    if made is not None:
        read(world, made)
    return made


@operation
def decode_own_frame(world: World) -> Any:
    frame = world.pick(tw.Frame)
    joined = world.call(bytes, frame)
    if joined is None:
        return None
    return Message(bytearray(joined), frame.header_length, "request")


@operation
def header_length(world: World) -> None:
    key = world.choices.of(("Inference-Header-Content-Length", b"content-type", "x"))
    value = world.or_junk(lambda: world.choices.of((b"5", "0", "+3")))
    pairs = [(key, value), (world.or_junk(lambda: "a"), b"b")]
    form = world.choices.of((list, dict, iter, lambda p: p[0], lambda p: junk(world)))
    try:
        headers = form(pairs)
    except (TypeError, ValueError):  # an unhashable key
        return
    if isinstance(headers, np.ndarray) and headers.dtype.kind == "U":
        return
    found = world.call(tw.header_length, headers)
    assert found is None or (type(found) is int and found >= 0)


# --- operations: encode --------------------------------------------------------------------------


def options_of(world: World) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if world.choices.one_in(4):
        made["align"] = world.or_junk(lambda: world.choices.of((1, 64, 3, *NUMBERS)))
    if world.choices.one_in(4):
        made["nonfinite"] = world.or_junk(lambda: world.choices.of(("null", "literal", "error")))
    return made


@operation
def encode_request(world: World) -> Any:
    request = world.or_junk(lambda: world.pick(tw.InferRequest))
    options, before = options_of(world), world.n_meddled
    frame = world.call(tw.encode_request, request, **options)
    if frame is not None and world.n_meddled == before and all(map(is_unchanged, request.inputs)):
        sent = list(request.inputs)
        unless_meddled(world, check_frame, frame, sent, tw.decode_request, "request")
        keep_frame(world, frame, "request")
    return frame


def is_unchanged(item: Any) -> bool:
    """Whether the prefixes below a BytesTensor are still those that were scanned.

    Where `write_memory` has changed them, its wire bytes are sent as they are.
    """
    data = item.data if isinstance(item, tw.Tensor) else item
    if not isinstance(data, tw.BytesTensor):
        return True
    return bytes(data.wire) == reference.elements([bytes(data.view(i)) for i in range(data.size)])


def unless_meddled(world: World, check: Callable[..., None], *arguments: Any) -> None:
    """A check, which does not count when a hostile object has acted meanwhile: in a collection."""
    before = world.n_meddled
    try:
        check(*arguments)
    except Exception:
        if world.n_meddled == before:
            raise


@operation
def encode_response(world: World) -> Any:
    response = world.or_junk(lambda: world.pick(tw.InferResponse))
    options, before = options_of(world), world.n_meddled
    request = None
    if world.choices.one_in(2):
        request = world.or_junk(lambda: world.pick(tw.InferRequest))
    if world.choices.one_in(4):
        options["selection"] = world.or_junk(lambda: world.choices.of(("spec", "triton")))
    frame = world.call(tw.encode_response, response, request, **options)
    if frame is not None and world.n_meddled == before and all(map(is_unchanged, response.outputs)):
        sent = list(response.outputs)
        if request is not None and request.outputs:
            listed = {output.name for output in request.outputs}
            sent = [tensor for tensor in sent if tensor.name in listed]
        unless_meddled(world, check_frame, frame, sent, tw.decode_response, "response")
        keep_frame(world, frame, "response")
    return frame


def keep_frame(world: World, frame: tw.Frame, kind: str) -> None:
    if world.choices.one_in(2):
        world.keep(Message(bytearray(bytes(frame)), frame.header_length, kind))


@operation
def encode_raw_request(world: World) -> Any:
    before = world.n_meddled
    item = world.pick(tw.Tensor) if world.choices.one_in(2) else values(world)
    frame = world.call(tw.encode_raw_request, item)
    if frame is None or world.n_meddled != before:
        return frame
    assert frame.header_length == 0
    if isinstance(item, tw.Tensor):
        spec = tw.TensorSpec("raw", item.datatype, item.shape)
        back = tw.decode_request(bytes(frame), 0, raw_input=spec, limits=ANYTHING)
        assert back.inputs[0].shape == item.shape
        assert payload(back.inputs[0]) == payload(item)
    return frame


def payload(tensor: Any) -> bytes | None:
    """A tensor's bytes on the wire."""
    data = tensor.data
    if isinstance(data, tw.BytesTensor):
        return bytes(data.wire)
    return None if data is None else bytes(data.tobytes())


def check_frame(frame: tw.Frame, sent: list[tw.Tensor], decode: Any, kind: str) -> None:
    """The frame is read as what was sent, by tensorwire and by the oracle."""
    joined = bytes(frame)
    assert len(joined) == len(frame) == int(frame.headers["Content-Length"])
    assert joined == b"".join(frame.pieces(7))
    back = list(decode(joined, frame.header_length, limits=ANYTHING))
    assert [(t.name, t.datatype, t.shape) for t in back] == [
        (t.name, t.datatype, tuple(t.shape)) for t in sent
    ]
    has_wrong_bool = False
    for one, other in zip(back, sent, strict=True):
        if one.binary or one.datatype not in ("FP32", "FP64"):  # JSON has no NaN
            assert payload(one) == payload(other), one
        has_wrong_bool |= one.datatype == "BOOL" and max(payload(one) or b"\0") > 1
    if has_wrong_bool or max(map(len, (t.name for t in sent)), default=0) > 4096:
        return
    said = reference.decode(joined, frame.header_length, kind)
    assert [(t["name"], t["datatype"], t["shape"]) for t in said["tensors"]] == [
        (t.name, t.datatype, t.shape) for t in back
    ]


@operation
def encode_bytes(world: World) -> Any:
    item, before = values(world), world.n_meddled
    made = world.call(tw.encode_bytes, item)
    if made is None:
        return None
    assert type(made) is bytes
    if world.n_meddled == before and is_unchanged(item):
        tw.decode_bytes(made)
        reference.unpack("BYTES", made, len(tw.decode_bytes(made)))
    return made


@operation
def encode_bytes_into(world: World) -> None:
    target = world.or_junk(lambda: world.pick(bytearray, memoryview, np.ndarray, tw.BodyBuffer))
    item = values(world)
    if world.choices.one_in(3):
        item = [target]
    if world.choices.one_in(4):
        item = [part_of(world, target)]
    world.call(tw.encode_bytes_into, item, target)


def part_of(world: World, target: Any) -> Any:
    try:
        view = memoryview(target)
        return view[world.choices.below(9) : world.choices.below(20)]
    except (TypeError, ValueError, BufferError, NotImplementedError):
        return target


# --- operations: BytesTensor ---------------------------------------------------------------------


def read(world: World, item: Any) -> None:
    """Read every byte of a tensor."""
    data = item.data if isinstance(item, tw.Tensor) else item
    if isinstance(data, tw.BytesTensor):
        joined = world.call(bytes, data.wire)
        if joined is not None:
            assert len(joined) == data.nbytes or data._begin < 0
        elements = world.call(data.as_numpy)
        if elements is not None:
            assert elements.shape == data.shape
            assert elements.size == data.size
    elif isinstance(data, np.ndarray) and data.size < 2**20:
        np.asarray(data).tobytes()


def index_of(world: World) -> Any:
    parts = (
        lambda: world.choices.below(7) - 3,
        lambda: slice(world.choices.below(5) - 2, None, world.choices.below(5) - 2 or None),
        lambda: slice(number(world), number(world), number(world)),
        lambda: ...,
        lambda: None,
        lambda: [0, -1, 0],
        lambda: np.array([True, False]),
        lambda: np.int64(0),
        lambda: number(world),
        lambda: junk(world),
        hostile.Index,
        lambda: slice(hostile.Index(), hostile.Index()),
    )
    made = [world.choices.of(parts)() for _ in range(world.choices.of((1, 1, 2, 3)))]
    return made[0] if len(made) == 1 else tuple(made)


@operation
def index_bytes(world: World) -> Any:
    tensor = world.pick(tw.BytesTensor)
    found = world.call(tensor.__getitem__, index_of(world))
    if isinstance(found, tw.BytesTensor):
        read(world, found)
    return found


@operation
def slice_bytes(world: World) -> Any:
    tensor = world.pick(tw.BytesTensor)
    part = slice(small(world), 2 + small(world))
    found = world.call(tensor.__getitem__, part)
    if found is not None:
        read(world, found)
    return found


@operation
def view_bytes(world: World) -> Any:
    tensor = world.pick(tw.BytesTensor)
    found = world.call(tensor.view, index_of(world))
    if found is not None:
        bytes(found)
    return found


@operation
def reshape_bytes(world: World) -> Any:
    tensor = world.pick(tw.BytesTensor)
    n = tensor.size
    dims = world.choices.of(((n,), (1, n), (n, 1), (-1,), (0, -5), (n, 0)))
    made = world.call(tensor.reshape, dims if world.choices.one_in(2) else shape(world))
    if made is not None:
        assert type(made.shape) is tuple
        assert made.size == n
        read(world, made)
    return made


@operation
def export_bytes(world: World) -> Any:
    tensor = world.pick(tw.BytesTensor)
    kinds: tuple[Any, ...] = (
        object,
        "S",
        STRINGS,
        np.dtypes.StringDType(na_object=None),
        "U",
        "i4",
    )
    form = world.choices.below(8)
    if form == 0:
        return world.call(tensor.as_strings)
    if form == 1:
        return world.call(tensor.tolist)
    if form == 2:
        return world.call(tensor.copy)
    if form == 3:
        return world.call(np.asarray, tensor)
    if form == 4:
        return world.call(tensor.__array__, world.or_junk(lambda: None), flag(world))
    return world.call(tensor.as_numpy, world.or_junk(lambda: world.choices.of(kinds)))


@operation
def iterate(world: World) -> Any:
    item = world.pick(tw.BytesTensor, tw.InferRequest, tw.InferResponse, tw.Frame)

    def walk() -> list[Any]:
        found = []
        for part in item:
            found.append(part)
            if len(found) > 50:
                break
        return found

    parts = world.call(walk)
    return world.choices.of(parts) if parts else None


@operation
def arrow_out(world: World) -> Any:
    tensor = world.pick(tw.BytesTensor)
    form = world.choices.below(6)
    if form == 0:
        return world.call(Cached, tensor)
    if form == 1:
        requested = world.or_junk(lambda: pa.string_view().__arrow_c_schema__())
        return world.call(tensor.__arrow_c_array__, requested)
    if form == 2:
        liar = Liar(world.choices.of(FORMATS), world.choices.below(len(LIES)), 0)
        world.kept.append(liar)
        return world.call(tensor.__arrow_c_array__, liar.__arrow_c_array__()[0])
    if form == 3:
        return world.call(tensor.__arrow_c_schema__)
    text = pa.string_view() if form == 4 else None
    made = world.call(pa.array, tensor, text)
    if made is not None:
        made.validate(full=True)
        assert len(made.to_pylist()) == tensor.size
    return made


@operation
def consume_arrow(world: World) -> Any:
    """Let pyarrow take over a producer's capsules; what a second consumer gets then is released."""
    producer = world.pick(Cached, CachedStream)
    try:
        if isinstance(producer, Cached):
            return pa.array(producer)
        return pa.chunked_array(producer)
    except (Hostile, pa.ArrowException, TypeError, ValueError):
        return None


# --- operations: messages and tensors ------------------------------------------------------------


@operation
def tensor_as_numpy(world: World) -> Any:
    tensor = world.pick(tw.Tensor)
    options = {}
    if world.choices.one_in(2):
        options = {world.choices.of(("aligned", "writable")): flag(world)}
    made = world.call(tensor.as_numpy, **options)
    if isinstance(made, np.ndarray) and 0 < made.nbytes < 2**20:
        made.tobytes()
    return made


@operation
def write_array(world: World) -> None:
    """Change the elements, and sometimes the shape or the dtype, of an array in use."""
    made = world.pick(np.ndarray)
    changes: tuple[Callable[[], Any], ...] = (
        lambda: made.fill(1),
        lambda: made.__setitem__(..., junk(world)),
        lambda: setattr(made, "shape", shape(world)),
        lambda: setattr(made, "dtype", world.choices.of(DTYPES[:12])),
        lambda: setattr(made.flags, "writeable", False),
    )
    change = world.choices.of(changes)
    if made.size < 2**20:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                change()
        except Exception:  # numpy's own
            return


@operation
def find_tensor(world: World) -> Any:
    message = world.pick(tw.InferRequest, tw.InferResponse)
    key = name(world)
    world.call(message.__contains__, key)
    return world.call(message.__getitem__, key)


@operation
def spec_accepts(world: World) -> None:
    spec = world.pick(tw.TensorSpec)
    world.call(spec.accepts, world.or_junk(lambda: world.pick(tw.Tensor)))
    world.call(getattr, spec, "shape")


@operation
def use_frame(world: World) -> Any:
    frame = world.pick(tw.Frame)
    form = world.choices.below(6)
    if form == 0:
        return world.call(bytes, frame)
    if form == 1:
        most = world.or_junk(lambda: number(world))
        parts = world.call(lambda: list(islice(frame.pieces(most), 9)))
        return world.choices.of(parts) if parts else None
    if form == 2:
        headers = world.call(lambda: frame.headers)
        return headers
    if form == 3:
        world.call(len, frame)
        return None
    if form == 4:
        world.call(bool, frame)
        return None
    return frame.buffers


ATTRIBUTES: dict[type, tuple[str, ...]] = {
    tw.Tensor: ("name", "datatype", "shape", "parameters", "binary", "data"),
    tw.RequestedOutput: ("name", "binary", "parameters"),
    tw.InferRequest: ("inputs", "outputs", "id", "model_name", "model_version", "parameters"),
    tw.InferResponse: ("outputs", "model_name", "model_version", "id", "parameters"),
    tw.TensorSpec: ("name", "datatype", "dims", "batching", "shape"),
    tw.Limits: ("max_rank", "max_elements", "check_bool"),
    tw.Frame: ("buffers", "header_length", "headers"),
    tw.BytesTensor: ("shape", "ndim", "size", "nbytes", "wire"),
    tw.BodyBuffer: ("nbytes", "content_length", "max_nbytes", "complete"),
}
PUBLIC = tuple(ATTRIBUTES)


@operation
def set_attribute(world: World) -> None:
    item = world.pick(*PUBLIC)
    kind = next(kind for kind in PUBLIC if isinstance(item, kind))
    key = world.choices.of((*ATTRIBUTES[kind], "another"))
    value = world.choices.of(
        (
            lambda: junk(world),
            lambda: junk(world),
            lambda: None,
            lambda: item,
            lambda: shape(world),
            lambda: {"k": junk(world)},
            lambda: [junk(world)],
            lambda: array(world),
            lambda: world.choices.of(DATATYPES),
            lambda: world.choices.of(NAMES),
        )
    )()
    try:
        world.call(setattr, item, key, value)
    except AttributeError:
        assert kind not in (tw.Tensor, tw.InferRequest) or key == "another", key


@operation
def delete_attribute(world: World) -> None:
    item = world.pick(*PUBLIC)
    kind = next(kind for kind in PUBLIC if isinstance(item, kind))
    try:
        world.call(delattr, item, world.choices.of((*ATTRIBUTES[kind], "another")))
    except (AttributeError, NotImplementedError):  # the latter: Cython's, of a number or a bool
        return


@operation
def get_attribute(world: World) -> Any:
    item = world.pick(*PUBLIC)
    kind = next(kind for kind in PUBLIC if isinstance(item, kind))
    return world.call(getattr, item, world.choices.of(ATTRIBUTES[kind]))


@operation
def change_list(world: World) -> None:
    """Append, insert, remove or exchange items of a message's lists."""
    message = world.pick(tw.InferRequest, tw.InferResponse)
    found = message.outputs if world.choices.one_in(2) else next(iter(lists_of(message)), None)
    if not isinstance(found, list):
        return
    item = junk(world)
    if world.choices.one_in(2):
        item = world.pick(tw.Tensor)
    change = world.choices.below(6)
    if change == 0:
        found.clear()
    elif change == 1 and found:
        found.pop()
    elif change == 2 and found:
        found[world.choices.below(len(found))] = item
    elif change == 3:
        found.append(None)
    elif change == 4:
        found.reverse()
    else:
        found.insert(0, item)


def lists_of(message: Any) -> list[list[Any]]:
    lists = [getattr(message, key, None) for key in ("inputs", "outputs")]
    return [found for found in lists if isinstance(found, list)]


@operation
def change_parameters(world: World) -> None:
    item = world.pick(tw.Tensor, tw.RequestedOutput, tw.InferRequest, tw.InferResponse)
    found = item.parameters
    if not isinstance(found, dict):
        return
    keys = (
        *("k", "binary_data", "binary_data_size", "binary_data_output", "shared_memory_region"),
        *("\ud800", 1, None, hostile.Str("binary_data_size")),
    )
    key = world.choices.of(keys)
    value = world.choices.of((lambda: junk(world), lambda: found, lambda: item, lambda: 1))()
    found[key] = value


# --- operations: BodyBuffer ----------------------------------------------------------------------


@operation
def make_buffer(world: World) -> Any:
    sizes = (None, None, 0, 1, 100, 70_000, *NUMBERS)

    def size() -> Any:
        return world.or_junk(lambda: world.choices.of(sizes))

    options = {"max_nbytes": size()} if world.choices.one_in(3) else {}
    return world.call(tw.BodyBuffer, size(), size(), **options)


@operation
def write_buffer(world: World) -> None:
    buffer = world.pick(tw.BodyBuffer)
    before = len(buffer)
    chunk = buffer_of(world)
    if world.choices.one_in(2):
        chunk = bytes(world.choices.of((1, 10, 90, 70_000)))
    if world.choices.one_in(6):
        chunk = part_of(world, buffer)
    world.call(buffer.write, chunk)
    assert len(buffer) >= before


@operation
def receive(world: World) -> Any:
    buffer = world.pick(tw.BodyBuffer)
    room = world.call(buffer.remaining)
    if room is None:
        return None
    nbytes = min(len(room), 1 + world.choices.below(200))
    room[:nbytes] = b"r" * nbytes
    world.call(buffer.advance, world.or_junk(lambda: nbytes))
    if world.choices.one_in(4):
        room[: len(room)] = bytes(len(room)) if len(room) < 2**20 else room
    return room if world.choices.one_in(3) else None


@operation
def advance(world: World) -> None:
    buffer = world.pick(tw.BodyBuffer)
    world.call(buffer.advance, world.or_junk(lambda: number(world)))


@operation
def view_of_buffer(world: World) -> Any:
    kinds = (tw.BodyBuffer, bytearray, bytes, memoryview)
    try:
        view = memoryview(world.pick(*kinds))
    except ValueError:  # a memoryview that has been released
        return None
    assert view.ndim == 1 or view.nbytes >= 0
    if view.contiguous:
        bytes(view[-100:]) if view.ndim == 1 else view.tobytes()
    return view[1:] if world.choices.one_in(3) and view.ndim == 1 else view


@operation
def release_view(world: World) -> None:
    view = world.pick(memoryview)
    try:
        view.release()
    except BufferError:
        return
    world.pool = [item for item in world.pool if item is not view]


@operation
def resize_bytearray(world: World) -> None:
    memory = world.pick(bytearray)
    try:
        if world.choices.one_in(2):
            memory.clear()
        else:
            memory.extend(b"more" * small(world))
    except BufferError:
        return


@operation
def write_memory(world: World) -> None:
    """Change bytes below the views of a body."""
    memory = world.pick(bytearray)
    for _ in range(min(len(memory), 4)):
        memory[world.choices.below(256) % len(memory)] = world.choices.below(256)


# --- operations: objects in general --------------------------------------------------------------


@operation
def compare(world: World) -> None:
    item = world.pick(*PUBLIC)
    other = world.or_junk(lambda: world.choices.of(world.pool))
    world.call(lambda: item == other)
    world.call(lambda: item != other)
    if isinstance(item, tw.BytesTensor):
        assert world.call(item.__eq__, item) in (True, None)


@operation
def show(world: World) -> None:
    item = world.pick(*PUBLIC)
    if isinstance(item, tw.Limits | tw.BytesTensor | tw.Frame | tw.BodyBuffer):
        world.call(repr, item)
        return
    try:
        world.call(repr, item)
    except RecursionError:  # of a structure that contains itself
        return


@operation
def hash_item(world: World) -> None:
    world.call(hash, world.pick(*PUBLIC))


@operation
def pickle_item(world: World) -> Any:
    item = world.pick(*PUBLIC)
    protocol = world.choices.of((2, 4, 5, 5))
    buffers: list[Any] = []
    options = {"buffer_callback": buffers.append} if protocol == 5 else {}

    def there_and_back() -> Any:
        data = pickle.dumps(item, protocol, **options)  # type: ignore[arg-type]
        return pickle.loads(data, buffers=[bytearray(b) for b in buffers])

    return apart(world, there_and_back)


@operation
def copy_item(world: World) -> Any:
    item = world.pick(*PUBLIC)
    return apart(world, lambda: world.choices.of((copy.copy, copy.deepcopy))(item))


def apart(world: World, function: Callable[[], Any]) -> Any:
    """A pickle or a copy. What else is in it may have no pickle, each in its own words."""
    try:
        made = world.call(function)
    except (AttributeError, RuntimeError, pickle.PicklingError, AssertionError):
        return None
    if isinstance(made, tw.BytesTensor | tw.Tensor):
        read(world, made)
    return made


@operation
def alter_pickle(world: World) -> Any:
    """Call what a pickle calls, with one of its arguments, or of its state, exchanged."""
    item = world.pick(*PUBLIC)
    reduced = world.call(item.__reduce_ex__, world.choices.of((2, 4, 5)))
    if not isinstance(reduced, tuple) or len(reduced) < 2:
        return None
    function, arguments = reduced[0], list(reduced[1])
    if len(arguments) == 3 and isinstance(arguments[2], tuple) and world.choices.one_in(2):
        arguments[2] = altered(world, arguments[2])  # the state that Cython stores there
    elif arguments:
        arguments = list(altered(world, tuple(arguments)))
    if not callable(function):
        return None
    try:
        made = world.call(function, *arguments)
        if len(reduced) > 2 and isinstance(reduced[2], tuple) and made is not None:
            world.call(made.__setstate__, altered(world, reduced[2]))
    except (AttributeError, pickle.PickleError):
        return None
    if isinstance(made, tw.BytesTensor | tw.Tensor):
        read(world, made)
    return made if isinstance(made, PUBLIC) else None


def altered(world: World, state: tuple[Any, ...]) -> tuple[Any, ...]:
    made = list(state)
    if made:
        at = world.choices.below(len(made))
        made[at] = number(world) if world.choices.one_in(2) else junk(world)
    return tuple(made)


@operation
def refer_weakly(world: World) -> Any:
    item = world.pick(tw.Tensor, tw.InferRequest, tw.InferResponse, tw.BytesTensor)
    reference = weakref.ref(item)
    if world.choices.one_in(2):
        weakref.finalize(item, gc.collect)
    assert reference() is item
    return reference


@operation
def collect(world: World) -> None:
    gc.collect(world.choices.below(3))


@operation
def collect_always(world: World) -> None:
    """Collect at (nearly) every allocation of the next step."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    gc.enable()
    try:
        world.step()
    finally:
        gc.disable()
        gc.set_threshold(*before)


@operation
def drop(world: World) -> None:
    if world.pool:
        del world.pool[world.choices.below(len(world.pool))]


@operation
def drop_garbage(world: World) -> None:
    """A cycle of objects in use with one that calls back when it is collected."""
    cycle: Any = hostile.Cycle()
    cycle.held = world.pick(tw.Tensor, tw.InferRequest)
    if isinstance(cycle.held, tw.InferRequest) and isinstance(cycle.held.parameters, dict):
        cycle.held.parameters["k"] = cycle


# --- what an episode starts from -----------------------------------------------------------------


def some_bytes_tensor(world: World) -> tw.BytesTensor:
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
    tw.BytesTensor: some_bytes_tensor,
    tw.BodyBuffer: some_buffer,
    Message: body,
    Cached: lambda world: Cached(pa.array([b"a", b"longer than twelve bytes"])),
    bytes: lambda world: reference.elements([b"a", b"bc"]),
    bytearray: lambda world: bytearray(reference.elements([b"a", b"bc"])),
    memoryview: lambda world: memoryview(bytearray(reference.elements([b"a", b"bc"]))),
    np.ndarray: lambda world: np.arange(4, dtype="f4"),
}


# --- running -------------------------------------------------------------------------------------


def api(data: bytes) -> None:
    """Whatever the program: results that keep the rules, or exceptions that are documented."""
    episode(data)


def episode(data: bytes, trace: Callable[[str], None] | None = None) -> int:
    """Run one input; returns how many steps it had."""
    world = World(data)
    world.trace = trace
    is_enabled = gc.isenabled()
    gc.collect()
    gc.disable()  # collections are steps; others would come at another step each time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        try:
            world.run()
        finally:
            if is_enabled:
                gc.enable()
    return world.n_steps


def episode_bytes(seed: int, number: int) -> bytes:
    return random.Random(f"{seed}:{number}").randbytes(EPISODE_NBYTES)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.api", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000, help="at least")
    parser.add_argument("--episode", type=int, help="run only this one, and say what it does")
    parser.add_argument("--file", type=Path, help="run this input, and say what it does")
    parser.add_argument("--first", type=int, default=0, help="the first episode")
    parser.add_argument("--progress", type=Path, help="a file for the number of the episode")
    asked = parser.parse_args()
    faulthandler.enable()
    if asked.episode is not None or asked.file is not None:
        data = asked.file.read_bytes() if asked.file else episode_bytes(asked.seed, asked.episode)
        print(episode(data, lambda text: print(text, flush=True)), "steps")
        return
    gc.collect()
    gc.freeze()  # what was imported is not looked through again
    n_steps, number = 0, asked.first
    while n_steps < asked.steps:
        if asked.progress:
            asked.progress.write_text(f"--seed {asked.seed} --episode {number}\n")
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            n_steps += episode(episode_bytes(asked.seed, number))
        except BaseException:
            print(f"a finding: --seed {asked.seed} --episode {number}", flush=True)
            raise
        number += 1
    print(f"{n_steps} steps in {number - asked.first} episodes: no finding")


if __name__ == "__main__":
    main()
