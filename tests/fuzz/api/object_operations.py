"""Operations on existing objects: BytesArray, messages, BodyBuffer; copies, pickles, garbage."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

import tensorwire as tw
from fuzz import hostile
from fuzz.api.values import (
    ATTRIBUTES,
    DATATYPES,
    DTYPES,
    NAMES,
    NUMBERS,
    PUBLIC,
    STRINGS,
    Cached,
    CachedStream,
    ExportedCapsule,
    array,
    buffer_of,
    flag,
    junk,
    name,
    number,
    part_of,
    shape,
    small,
)
from fuzz.api.world import World, operation, read
from fuzz.hostile import Hostile
from fuzz.invalid_arrow import FIELD_CHANGES, FORMATS, InvalidProducer

# --- BytesArray ---


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
    tensor = world.pick(tw.BytesArray)
    found = world.call(tensor.__getitem__, index_of(world))
    if isinstance(found, tw.BytesArray):
        read(world, found)
    return found


@operation
def view_bytes(world: World) -> Any:
    tensor = world.pick(tw.BytesArray)
    found = world.call(tensor.element, index_of(world))
    if found is not None:
        bytes(found)
    return found


@operation
def reshape_bytes(world: World) -> Any:
    tensor = world.pick(tw.BytesArray)
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
    tensor = world.pick(tw.BytesArray)
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
    item = world.pick(tw.BytesArray, tw.InferRequest, tw.InferResponse, tw.Frame, tw.Tensor)

    def walk() -> list[Any]:
        found = []
        for part in item:
            found.append(part)
            if len(found) > 50:
                break
        return found

    parts = world.call(walk)
    return world.choices.of(parts) if parts else None


TYPES_OF_BYTES = (
    *(pa.string_view(), pa.string(), pa.large_string()),
    *(pa.binary_view(), pa.binary(), pa.large_binary(), pa.int64()),
)


@operation
def arrow_out(world: World) -> Any:
    tensor = world.pick(tw.BytesArray)
    form = world.choices.below(6)
    if form == 0:
        return world.call(Cached, tensor)
    if form == 1:
        requested = world.or_junk(lambda: world.choices.of(TYPES_OF_BYTES).__arrow_c_schema__())
        return world.call(tensor.__arrow_c_array__, requested)
    if form == 2:
        producer = InvalidProducer(
            world.choices.of(FORMATS), world.choices.below(len(FIELD_CHANGES)), 0
        )
        world.kept.append(producer)
        return world.call(tensor.__arrow_c_array__, producer.__arrow_c_array__()[0])
    if form == 3:
        return world.call(tensor.__arrow_c_schema__)
    if form == 4:
        schema = world.choices.of(TYPES_OF_BYTES).__arrow_c_schema__()
        capsules = world.call(tensor.__arrow_c_array__, schema)
        made = None if capsules is None else pa.Array._import_from_c_capsule(*capsules)
    else:
        made = world.call(pa.array, tensor)
    if made is not None:
        made.validate(full=True)
        assert len(made.to_pylist()) == tensor.size
    return made


@operation
def consume_arrow(world: World) -> Any:
    """Let pyarrow consume a producer's capsules; a second consumer finds them released."""
    producer = world.pick(Cached, CachedStream)
    try:
        if isinstance(producer, Cached):
            return pa.array(producer)
        return pa.chunked_array(producer)
    except (Hostile, pa.ArrowException, TypeError, ValueError):
        return None


# --- DLPack ---


@operation
def dlpack_out(world: World) -> Any:
    tensor = world.pick(tw.Tensor)
    options: dict[str, Any] = {}
    if world.choices.one_in(2):
        options["max_version"] = world.or_junk(lambda: world.choices.of(((1, 0), (0, 8), (2, 5))))
    if world.choices.one_in(4):
        options["dl_device"] = world.or_junk(lambda: world.choices.of(((1, 0), (2, 0), None)))
    if world.choices.one_in(4):
        options["copy"] = flag(world)
    if world.choices.one_in(8):
        options["stream"] = junk(world)
    capsule = world.call(tensor.__dlpack__, **options)
    return None if capsule is None else ExportedCapsule(capsule)


@operation
def consume_dlpack(world: World) -> Any:
    """Let numpy consume a tensor or a capsule; a second consumer finds the capsule used."""
    try:
        made = np.from_dlpack(world.pick(tw.Tensor, ExportedCapsule))
    except (Hostile, BufferError, TypeError, ValueError, RuntimeError, AttributeError):
        return None
    if made.size < 2**20:
        made.tobytes()
    return made


@operation
def tensor_as_array(world: World) -> Any:
    tensor = world.pick(tw.Tensor)
    with np.errstate(all="ignore"):  # numpy warns about casts that overflow
        try:
            return world.call(tensor.__array__, world.choices.of((None, *DTYPES)), flag(world))
        except RuntimeError as error:
            # numpy: a BOOL byte other than 0 and 1, which the program has written, to StringDType
            if "bool to string cast" not in str(error):
                raise
            return None


# --- messages and tensors ---


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
def tensor_arrow_out(world: World) -> Any:
    tensor = world.pick(tw.Tensor)
    form = world.choices.below(4)
    if form == 0:
        return world.call(Cached, tensor)
    if form == 1:
        return world.call(tensor.__arrow_c_array__, junk(world))
    if form == 2:
        return world.call(tensor.__arrow_c_schema__)
    made = world.call(pa.array, tensor)
    if made is not None and len(made) < 2**10:
        made.validate(full=True)
        made.to_pylist()
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
        except Exception:  # any error of numpy itself
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
        parts = world.call(lambda: list(islice(frame.chunks(most), 9)))
        return world.choices.of(parts) if parts else None
    if form == 2:
        return world.call(lambda: frame.headers)
    if form == 3:
        world.call(len, frame)
        return None
    if form == 4:
        world.call(bool, frame)
        return None
    return frame.buffers


@operation
def change_attribute(world: World) -> None:
    """Try to set or to delete an attribute. None can be changed."""
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
    before = world.n_side_effects
    try:
        if world.choices.one_in(4):
            delattr(item, key)
        else:
            setattr(item, key, value)
    except (AttributeError, NotImplementedError):  # Cython raises the latter for del of a number
        return
    except Hostile:
        assert world.n_side_effects > before
        return
    raise AssertionError((item, key))


@operation
def get_attribute(world: World) -> Any:
    item = world.pick(*PUBLIC)
    kind = next(kind for kind in PUBLIC if isinstance(item, kind))
    return world.call(getattr, item, world.choices.of(ATTRIBUTES[kind]))


@operation
def change_parameters(world: World) -> None:
    """Try to change the parameters of a message, also through the dict that `==` may pass on."""
    item = world.pick(tw.Tensor, tw.RequestedOutput, tw.InferRequest, tw.InferResponse)
    before, found = repr(item.parameters), item.parameters
    changes: tuple[Callable[[], Any], ...] = (
        lambda: found.__setitem__("k", 1),
        lambda: found.update({"k": junk(world)}),
        lambda: found.pop("k"),
    )
    for change in changes:
        with contextlib.suppress(AttributeError, TypeError, Hostile):
            change()
    world.call(lambda: found == Assigns())
    assert repr(item.parameters) == before


class Assigns:
    def __eq__(self, other: Any) -> bool:
        other["k"] = self
        return True

    __hash__ = None  # type: ignore[assignment]


@operation
def replace(world: World) -> Any:
    """Change arguments of a message or tensor, or give one that its constructor does not have."""
    item = world.pick(tw.Tensor, tw.RequestedOutput, tw.InferRequest, tw.InferResponse)
    kind = next(kind for kind in PUBLIC if isinstance(item, kind))
    values: tuple[Callable[[], Any], ...] = (
        lambda: junk(world),
        lambda: shape(world),
        lambda: array(world),
        lambda: world.choices.of(DATATYPES),
        lambda: world.choices.of(NAMES),
        lambda: [world.pick(tw.Tensor)],
        lambda: None,
    )
    keys = (*ATTRIBUTES[kind], "another")
    changes = {world.choices.of(keys): world.choices.of(values)() for _ in range(small(world))}
    return world.call(item.replace, **changes)


@operation
def read_mapping(world: World) -> None:
    message = world.pick(tw.InferRequest, tw.InferResponse)
    names = list(message)
    assert len(message) == len(names) == len(set(names))
    assert [message[name] for name in names] == list(message.values())
    assert dict(message).keys() == message.keys()
    world.call(message.get, name(world), None)


# --- BodyBuffer ---


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
    """Modify bytes that views of a body refer to."""
    memory = world.pick(bytearray)
    for _ in range(min(len(memory), 4)):
        memory[world.choices.below(256) % len(memory)] = world.choices.below(256)


# --- objects in general ---


@operation
def compare(world: World) -> None:
    item = world.pick(*PUBLIC)
    other = world.or_junk(lambda: world.choices.of(world.pool))
    world.call(lambda: item == other)
    world.call(lambda: item != other)
    if isinstance(item, tw.BytesArray):
        assert world.call(item.__eq__, item) in (True, None)


@operation
def show(world: World) -> None:
    item = world.pick(*PUBLIC)
    world.call(hash, item)
    try:
        world.call(repr, item)
    except RecursionError:  # a structure that contains itself
        assert not isinstance(item, tw.Limits | tw.BytesArray | tw.Frame | tw.BodyBuffer)


@operation
def pickle_item(world: World) -> Any:
    item = world.pick(*PUBLIC)
    protocol = world.choices.of((2, 4, 5, 5))
    buffers: list[Any] = []
    options = {"buffer_callback": buffers.append} if protocol == 5 else {}

    def round_trip() -> Any:
        data = pickle.dumps(item, protocol, **options)  # type: ignore[arg-type]
        return pickle.loads(data, buffers=[bytearray(b) for b in buffers])

    return call_if_supported(world, round_trip)


@operation
def copy_item(world: World) -> Any:
    item = world.pick(*PUBLIC)
    return call_if_supported(world, lambda: world.choices.of((copy.copy, copy.deepcopy))(item))


def call_if_supported(world: World, function: Callable[[], Any]) -> Any:
    """Call a function that pickles or copies. Return None if an object does not support this."""
    try:
        made = world.call(function)
    except (AttributeError, RuntimeError, pickle.PicklingError, AssertionError):
        return None
    if isinstance(made, tw.BytesArray | tw.Tensor):
        read(world, made)
    return made


@operation
def alter_pickle(world: World) -> Any:
    """Call the function of a pickle with one of its arguments replaced."""
    item = world.pick(*PUBLIC)
    reduced = world.call(item.__reduce_ex__, world.choices.of((2, 4, 5)))
    if not isinstance(reduced, tuple) or len(reduced) < 2:
        return None
    function, arguments = reduced[0], list(reduced[1])
    if arguments:
        at = world.choices.below(len(arguments))
        arguments[at] = number(world) if world.choices.one_in(2) else junk(world)
    if not callable(function):
        return None
    try:
        made = world.call(function, *arguments)
    except (AttributeError, pickle.PickleError):
        return None
    if isinstance(made, tw.BytesArray | tw.Tensor):
        read(world, made)
    return made if isinstance(made, PUBLIC) else None


@operation
def refer_weakly(world: World) -> Any:
    item = world.pick(tw.Tensor, tw.InferRequest, tw.InferResponse, tw.BytesArray)
    weak = weakref.ref(item)
    if world.choices.one_in(2):
        weakref.finalize(item, gc.collect)
    assert weak() is item
    return weak


@operation
def collect(world: World) -> None:
    gc.collect(world.choices.below(3))


@operation
def collect_always(world: World) -> None:
    """Collect garbage at nearly every allocation of the next step."""
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
    """Create a cycle of an object in use and one that calls back when it is collected."""
    cycle: Any = hostile.Cycle()
    cycle.member = world.pick(tw.Tensor, tw.InferRequest)
