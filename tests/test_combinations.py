"""Tensors of every origin, copied and sent in every way: the elements are always the same.

The expected bytes and values are those of the reference codec.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

import tensorwire as tw
import tensorwire.grpc
from support import reference
from support.array_samples import DTYPES
from support.requirements import package


class Expected(NamedTuple):
    """The flat values of a tensor."""

    datatype: str
    shape: tuple[int, ...]
    values: list[Any]

    @property
    def dtype(self) -> Any:
        return np.dtype(object if self.datatype == "BYTES" else DTYPES[self.datatype])

    @property
    def wire(self) -> bytes:
        return reference.pack(self.datatype, self.values)


TEXTS = [b"", b"a", "\xe9\U0001f600".encode(), b"ends with NUL\0", b"long" * 300]
NUMBERS: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "INT64": [-(2**63), 2**63 - 1, 5],
    "FP16": [0.5, -2.0],
    "BF16": [1.0, -0.5, 3.0],
    "FP64": [0.1, -1e300],
}
SHAPES = [(), (1,), (1, 1), (5,), (2, 3), (0,), (2, 0, 3)]


def expected(datatype: str, shape: tuple[int, ...], first: int = 0) -> Expected:
    values = TEXTS if datatype == "BYTES" else NUMBERS[datatype]
    flat = [values[(first + i) % len(values)] for i in range(prod(shape))]
    return Expected(datatype, shape, flat)


EVERY = [
    *(expected(datatype, shape) for datatype in (*NUMBERS, "BYTES") for shape in SHAPES),
    *(expected("BYTES", (1,), first) for first in range(1, len(TEXTS))),
]


# --- origins: None if a tensor cannot have it ---


def array(want: Expected) -> tw.Tensor:
    made = np.empty(prod(want.shape), want.dtype)
    made[:] = want.values
    return tw.Tensor("x", made.reshape(want.shape))


def binary(want: Expected, buffer: Callable[[bytes], Any] = bytes) -> tw.Tensor:
    entry = reference.entry("x", want.datatype, want.shape, want.values)
    body, header_length = reference.request([entry])
    return tw.decode_request(buffer(body), header_length)["x"]


def body_buffer(want: Expected) -> tw.Tensor:
    def buffer(body: bytes) -> tw.BodyBuffer:
        made = tw.BodyBuffer(len(body))
        made.write(body)
        return made

    return binary(want, buffer)


def json(want: Expected) -> tw.Tensor | None:
    if want.datatype in ("FP16", "BF16"):
        return None
    entry = reference.entry("x", want.datatype, want.shape, want.values, binary=False)
    return tw.decode_request(*reference.request([entry]))["x"].replace(binary=True)


def grpc(want: Expected) -> tw.Tensor:
    request = tw.InferRequest([binary(want)])
    return tw.grpc.decode_request(tw.grpc.encode_request(request))["x"]


def raw(want: Expected) -> tw.Tensor | None:
    """A raw binary request: an element of BYTES has no length prefix in its body."""
    if want.datatype == "BYTES" and (prod(want.shape) != 1 or not want.shape):
        return None
    body = want.values[0] if want.datatype == "BYTES" else want.wire
    spec = tw.TensorSpec("x", cast("Any", want.datatype), want.shape)
    return tw.decode_request(body, 0, raw_input=spec)["x"]


def selection_of_raw(want: Expected) -> tw.Tensor | None:
    """A part of a raw BYTES tensor: the element, or none."""
    if want.datatype != "BYTES" or len(want.values) > 1:
        return None
    found = raw(Expected("BYTES", (1,), want.values or [b"other"]))
    assert found is not None
    return tw.Tensor("x", found.elements[: len(want.values)].reshape(want.shape))


def part(want: Expected) -> tw.Tensor:
    """The middle of a longer tensor."""
    n = len(want.values)
    first, second, *_ = NUMBERS.get(want.datatype, TEXTS)
    longer = binary(Expected(want.datatype, (n + 3,), [first, second, *want.values, first])).data
    return tw.Tensor("x", longer[2 : 2 + n].reshape(want.shape))  # type: ignore[index]


def reversed_twice(want: Expected) -> tw.Tensor:
    backwards = Expected(want.datatype, (len(want.values),), want.values[::-1])
    return tw.Tensor("x", binary(backwards).data[::-1].reshape(want.shape))  # type: ignore[index]


ORIGINS = (*(array, binary, body_buffer, json, grpc, raw, selection_of_raw, part, reversed_twice),)


# --- copies ---


def out_of_band(tensor: tw.Tensor) -> tw.Tensor:
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(tensor, 5, buffer_callback=buffers.append)
    copied: tw.Tensor = pickle.loads(pickled, buffers=[bytearray(each) for each in buffers])
    return copied


def pickled(tensor: tw.Tensor) -> tw.Tensor:
    copied: tw.Tensor = pickle.loads(pickle.dumps(tensor, 2))
    return copied


COPIES: Sequence[Callable[[tw.Tensor], tw.Tensor]] = (
    lambda tensor: tensor,
    pickled,
    out_of_band,
    copy.deepcopy,
    lambda tensor: tensor.replace(name="y").replace(name="x"),
    lambda tensor: tensor.replace(shape=(1, *tensor.shape)).replace(shape=tensor.shape),
    lambda tensor: tw.Tensor("x", tensor.data, datatype=tensor.datatype),
)


# --- forms ---


def check_array(tensor: tw.Tensor, want: Expected) -> None:
    assert (tensor.datatype, tensor.shape) == (want.datatype, want.shape)
    assert tensor.nbytes == len(want.wire)
    found = tensor.as_numpy()
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    assert found.reshape(-1).tolist() == want.values


def check_http(tensor: tw.Tensor, want: Expected) -> None:
    for binary in (True, False):
        response = tw.InferResponse([tensor.replace(binary=binary)])
        if not binary and want.datatype in ("FP16", "BF16"):
            with pytest.raises(tw.EncodeError):
                tw.encode_response(response)
            continue
        frame = tw.encode_response(response)
        message = reference.decode(bytes(frame), frame.header_length, "response")
        [found] = message["tensors"]
        assert (found["datatype"], found["binary"]) == (want.datatype, binary)
        values = [each.encode() if isinstance(each, str) else each for each in found["values"]]
        assert (tuple(found["shape"]), values) == (want.shape, want.values)


def check_grpc(tensor: tw.Tensor, want: Expected) -> None:
    message = tw.grpc.encode_request(tw.InferRequest([tensor]))
    assert message.endswith(want.wire)
    check_array(tw.grpc.decode_request(message)["x"], want)


def check_raw(tensor: tw.Tensor, want: Expected) -> None:
    if want.datatype != "BYTES":
        assert bytes(tw.encode_raw_request(tensor)) == want.wire
    elif len(want.values) == 1:
        assert bytes(tw.encode_raw_request(tensor)) == want.values[0]


def check_arrow(tensor: tw.Tensor, want: Expected) -> None:
    def flat(item: Any) -> list[Any]:
        return [value for each in item for value in flat(each)] if type(item) is list else [item]

    if want.datatype != "BF16":  # Arrow has no such type
        found = package("pyarrow").array(tensor)
        found.validate(full=True)
        assert flat(found.to_pylist()) == want.values


def check_dlpack(tensor: tw.Tensor, want: Expected) -> None:
    if want.datatype not in ("BF16", "BYTES"):  # numpy does not import bfloat16
        found = np.from_dlpack(tensor)
        assert (found.shape, found.tobytes()) == (want.shape, want.wire)


def check_bytes(tensor: tw.Tensor, want: Expected) -> None:
    if want.datatype == "BYTES":
        elements = tensor.elements
        assert bytes(elements.wire) == tw.encode_bytes(elements) == want.wire
        assert elements == elements.copy() == tw.decode_bytes(want.wire).reshape(want.shape)
        assert tensor.as_strings().reshape(-1).tolist() == [each.decode() for each in want.values]


FORMS = (*(check_array, check_http, check_grpc, check_raw, check_arrow, check_dlpack, check_bytes),)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("origin", ORIGINS)
def test_tensor_of_every_origin_in_every_form(
    origin: Callable[[Expected], tw.Tensor | None],
    form: Callable[[tw.Tensor, Expected], None],
) -> None:
    for want in EVERY:
        tensor = origin(want)
        if tensor is not None:
            for copied in COPIES:
                form(copied(tensor), want)
