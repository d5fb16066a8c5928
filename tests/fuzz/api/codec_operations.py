"""Operations that create objects, decode bodies and encode messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorwire as tw
from fuzz import hostile
from fuzz.api.values import (
    DTYPES,
    NAMES,
    NUMBERS,
    PUBLIC,
    TEXTS,
    Message,
    array,
    body,
    buffer_of,
    datatype,
    flag,
    junk,
    name,
    number,
    parameters,
    part_of,
    shape,
    small,
    values,
)
from fuzz.api.world import World, operation, read
from support import reference

BOUNDS = (
    *("max_header_nbytes", "max_tensors", "max_rank", "max_name_nbytes", "max_nesting"),
    "max_elements",
)
# Accepts every raw request that the encoder can write.
ANYTHING = tw.Limits(
    max_tensors=2**60,
    max_name_nbytes=2**60,
    max_nesting=1000,
    max_parameters=2**60,
    check_bool=False,
)

# --- make ---


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
def make_valid_tensor(world: World) -> Any:
    called = world.choices.of(NAMES[:3])
    if world.choices.one_in(2):
        return tw.Tensor(called, list(TEXTS[: world.choices.below(9)]), datatype="BYTES")
    made = np.ones((2, 3), world.choices.of(DTYPES[:12]))
    return tw.Tensor(called, made, binary=world.choices.one_in(2))


@operation
def make_absent_tensor(world: World) -> Any:
    made = {"shared_memory_region": "r"}
    return world.call(
        tw.Tensor, name(world), None, datatype=datatype(world), shape=shape(world), parameters=made
    )


def tensors(world: World) -> Any:
    """Return a list of tensors with unique names, as a message needs, or any list."""
    made = [world.pick(tw.Tensor) for _ in range(world.choices.of((1, 1, 2, 3)))]
    if not world.choices.one_in(6):
        made = list({tensor.name: tensor for tensor in made}.values())
    forms: tuple[Callable[[Any], Any], ...] = (
        *(list, tuple, iter, hostile.List, by_name),
        lambda made: hostile.Dict(by_name(made)),
        lambda made: {world.choices.of(NAMES): values(world), **by_name(made)},
    )
    return world.or_junk(lambda: world.choices.of(forms)(made))


def by_name(made: list[tw.Tensor]) -> dict[str, tw.Tensor]:
    return {tensor.name: tensor for tensor in made}


def outputs(world: World) -> Any:
    if world.choices.one_in(2):
        return None
    made = [world.pick(tw.RequestedOutput) for _ in range(world.choices.of((1, 2, 0)))]
    unique = list({output.name: output for output in made}.values())
    if world.choices.one_in(3):
        return [output.name for output in unique]
    return world.or_junk(lambda: unique)


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
    keys = (*BOUNDS, "max_parameters")
    options = {world.choices.of(keys): number(world) for _ in range(small(world))}
    if world.choices.one_in(3):
        options[world.choices.of(("check_bool", "bf16_as_uint16"))] = flag(world)
    return world.call(tw.Limits, **options)


@operation
def make_argument(world: World) -> Any:
    return world.choices.of((body, array, junk))(world)


@operation
def make_uninitialized(world: World) -> Any:
    """Create an object without calling its constructor, as `copy` and subclasses may do."""
    kind = world.choices.of(PUBLIC)
    return world.call(kind.__new__, kind)


@operation
def make_frame(world: World) -> Any:
    made = [world.pick(memoryview, bytes) for _ in range(small(world))]
    if world.choices.one_in(6):
        made.append(junk(world))
    return world.call(
        tw.Frame, world.or_junk(lambda: tuple(made)), world.or_junk(lambda: small(world))
    )


@operation
def initialize_again(world: World) -> None:
    """Call the constructor of an object that is in use."""
    item = world.pick(*PUBLIC)
    arguments = [junk(world) for _ in range(world.choices.below(3))]
    if isinstance(item, tw.Tensor) and world.choices.one_in(2):
        arguments = [name(world), values(world)]
    world.call(item.__init__, *arguments)


# --- decode ---


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
        for tensor in made.values():
            read(world, tensor)
            world.keep(tensor)
    return made


def in_bounds(decode: Any, source: Any, *arguments: Any, **options: Any) -> Any:
    """Call `decode`, and check the offset of its error."""
    try:
        return decode(source, *arguments, **options)
    except tw.DecodeError as error:
        nbytes = memoryview(source).nbytes
        assert type(error) in (tw.HeaderError, tw.LayoutError, tw.ElementError)
        assert error.offset is None or 0 <= error.offset <= nbytes, (error.offset, nbytes)
        raise


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


# --- encode ---


def options_of(world: World) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if world.choices.one_in(4):
        made["align"] = world.or_junk(lambda: world.choices.of((1, 64, 3, *NUMBERS)))
    if world.choices.one_in(4):
        made["nonfinite"] = world.or_junk(lambda: world.choices.of(("null", "literal", "error")))
    return made | limits(world)


def receiver_of(options: dict[str, Any]) -> tw.Limits:
    """Return the limits of an encode call for the decoder, which must accept what it returned.

    The encoder does not check the bytes of BOOL arrays.
    """
    given = options.get("limits", tw.Limits())
    bounds = {name: getattr(given, name) for name in BOUNDS}
    return tw.Limits(check_bool=False, **bounds)


@operation
def encode_request(world: World) -> Any:
    request = world.or_junk(lambda: world.pick(tw.InferRequest))
    options, before = options_of(world), world.n_side_effects
    frame = world.call(tw.encode_request, request, **options)
    if frame is not None and world.n_side_effects == before:
        check_encoded(world, frame, list(request.inputs), "request", options)
    return frame


def check_encoded(
    world: World, frame: tw.Frame, sent: list[tw.Tensor], kind: str, options: dict[str, Any]
) -> None:
    """Check a frame, and keep it, unless a program has changed the memory of a tensor."""
    if all(map(is_unchanged, sent)):
        decode = tw.decode_request if kind == "request" else tw.decode_response
        limits = receiver_of(options)
        unless_side_effects(world, check_frame, frame, sent, decode, kind, limits)
        if world.choices.one_in(2):
            world.keep(Message(bytearray(bytes(frame)), frame.header_length, kind))


def is_unchanged(item: Any) -> bool:
    """Return whether the prefixes of a BytesArray are still those that were scanned.

    If `write_memory` has changed them, the wire bytes are sent as they are.
    """
    data = item.data if isinstance(item, tw.Tensor) else item
    if not isinstance(data, tw.BytesArray):
        return True
    return bytes(data.wire) == reference.elements(
        [bytes(data.element(i)) for i in range(data.size)]
    )


def unless_side_effects(world: World, check: Callable[..., None], *arguments: Any) -> None:
    """Run a check, unless a hostile object has acted meanwhile, such as during a collection."""
    before = world.n_side_effects
    try:
        check(*arguments)
    except Exception:
        if world.n_side_effects == before:
            raise


@operation
def encode_response(world: World) -> Any:
    response = world.or_junk(lambda: world.pick(tw.InferResponse))
    options, before = options_of(world), world.n_side_effects
    request = None
    if world.choices.one_in(2):
        request = world.or_junk(lambda: world.pick(tw.InferRequest))
    if world.choices.one_in(4):
        options["selection"] = world.or_junk(lambda: world.choices.of(("spec", "triton")))
    frame = world.call(tw.encode_response, response, request, **options)
    if frame is not None and world.n_side_effects == before:
        sent = list(response.outputs)
        if request is not None and request.outputs:
            listed = {output.name for output in request.outputs}
            sent = [tensor for tensor in sent if tensor.name in listed]
        check_encoded(world, frame, sent, "response", options)
    return frame


@operation
def encode_raw_request(world: World) -> Any:
    before = world.n_side_effects
    item = world.pick(tw.Tensor) if world.choices.one_in(2) else values(world)
    frame = world.call(tw.encode_raw_request, item)
    if frame is None or world.n_side_effects != before:
        return frame
    assert frame.header_length == 0
    if isinstance(item, tw.Tensor):
        spec = tw.TensorSpec("raw", item.datatype, item.shape)
        back = tw.decode_request(bytes(frame), 0, raw_input=spec, limits=ANYTHING)
        assert back.inputs[0].shape == item.shape
        assert payload(back.inputs[0]) == payload(item)
    return frame


def payload(tensor: Any) -> bytes | None:
    """Return the bytes of a tensor in a body."""
    data = tensor.data
    if isinstance(data, tw.BytesArray):
        return bytes(data.wire)
    return None if data is None else bytes(data.tobytes())


def check_frame(
    frame: tw.Frame, sent: list[tw.Tensor], decode: Any, kind: str, limits: tw.Limits
) -> None:
    """Check that tensorwire and the reference decode the frame to the encoded message."""
    joined = bytes(frame)
    assert len(joined) == len(frame) == int(frame.headers["Content-Length"])
    assert joined == b"".join(frame.chunks(7))
    back = list(decode(joined, frame.header_length, limits=limits).values())
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
    expected = reference.decode(joined, frame.header_length, kind)
    assert [(t["name"], t["datatype"], t["shape"]) for t in expected["tensors"]] == [
        (t.name, t.datatype, t.shape) for t in back
    ]


@operation
def encode_bytes(world: World) -> Any:
    item, before = values(world), world.n_side_effects
    made = world.call(tw.encode_bytes, item)
    if made is None:
        return None
    assert type(made) is bytes
    if world.n_side_effects == before and is_unchanged(item):
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
