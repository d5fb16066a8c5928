"""The fuzz targets: each takes any bytes. Its docstring begins with the property it checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorwire as tw
from fuzz.api import api
from fuzz.bodybuffer import bodybuffer
from fuzz.comparison import (
    by_reference,
    check_error,
    check_views,
    exact,
    message_read,
    values_of,
)
from fuzz.exports import exports
from fuzz.grpc_judge import grpc
from fuzz.headers import header_length
from fuzz.json_writer import json_writer
from support import reference

LENGTHS: tuple[Callable[[int], Any], ...] = (  # valid and invalid forms of a header length
    lambda n: None,
    lambda n: n,
    str,
    lambda n: str(n).encode(),
    lambda n: f"{n:020}",
    lambda n: f"+{n}",
    lambda n: f"{n} ".encode(),
    lambda n: -n,
)
DIMS: tuple[tuple[int, ...], ...] = (
    *((), (-1,), (1,), (4,), (-1, 3), (2, -1, 2), (1, 1)),
    *((0,), (-1, 0), (-1, -1), (-1, 2**32, 2**32), (2**61, -1)),
)
DATATYPES: list[Any] = sorted(reference.DATATYPES)
SPECS = [
    tw.TensorSpec("raw", datatype, dims, batching)
    for datatype in DATATYPES
    for dims in DIMS
    for batching in (False, True)
]
DEFAULT_LIMITS, BF16_LIMITS = tw.Limits(), tw.Limits(bf16_as_uint16=True)
N_CHOICES = 4  # bytes before a body: form of the header length, its value (2 bytes), the spec


def split(data: bytes) -> tuple[int, Any, tw.TensorSpec, bytes]:
    """Return the choices before a body, and the body."""
    prefix = data[:N_CHOICES].ljust(N_CHOICES, b"\0")
    length = int.from_bytes(prefix[1:3], "little")
    return (
        prefix[0],
        LENGTHS[prefix[0] % 8](length),
        SPECS[prefix[3] % len(SPECS)],
        data[N_CHOICES:],
    )


def request(data: bytes) -> None:
    """A request decodes as with reference.py, into views of the body, or is rejected by both.

    A header length of 0 is a raw request of one of SPECS.
    """
    choices, length, spec, body = split(data)
    if length in (0, "0", b"0", "0" * 20):
        raw_request(choices, length, spec, body)
    else:
        message(tw.decode_request, "request", choices, length, body)


def response(data: bytes) -> None:
    """A response decodes as with reference.py, into views of the body, or is rejected by both."""
    choices, length, _, body = split(data)
    message(tw.decode_response, "response", choices, length, body)


def message(decode: Any, kind: str, choices: int, length: Any, body: bytes) -> None:
    source, view, limits = prepared(choices, body)
    read = None
    try:
        read = decode(view, length, limits=limits)
    except tw.DecodeError as error:
        check_error(error, len(body))
    expected = by_reference(reference.decode, body, length, kind)
    if read is None:
        assert isinstance(expected, reference.WireError), expected
    else:
        assert repr(message_read(read)) == repr(expected)
        check_views(read, view, len(body) if length is None else int(length))
    del read, view
    source.append(0)  # raises BufferError if any view of the body remains


def raw_request(choices: int, length: Any, spec: tw.TensorSpec, body: bytes) -> None:
    source, view, limits = prepared(choices, body)
    declared = (spec.datatype, spec.dims, spec.batching)
    expected = by_reference(reference.decode_raw, body, *declared)
    read = None
    try:
        read = tw.decode_request(view, length, raw_input=spec, limits=limits)
    except tw.DecodeError as error:
        check_error(error, len(body))
        assert isinstance(expected, reference.WireError), expected
    if read is not None:
        [tensor] = read.inputs
        assert repr((tensor.shape, values_of(tensor))) == repr(expected)
        assert (tensor.name, tensor.datatype, tensor.binary) == ("raw", spec.datatype, True)
        assert read.parameters == {"binary_data_output": True}
        assert read.outputs is None
        del tensor
    del read, view
    source.append(0)


def prepared(choices: int, body: bytes) -> tuple[Any, Any, tw.Limits]:
    """Return the body in separate memory, the object that is decoded, and the limits."""
    source = exact(body)
    view = memoryview(source).toreadonly() if choices & 8 else source
    return source, view, BF16_LIMITS if choices & 16 else DEFAULT_LIMITS


def decode_bytes(data: bytes) -> None:
    """Elements decode as with reference.py, into views of the buffer, or both raise an error."""
    choices, wire_bytes = data[:1].ljust(1, b"\0")[0], data[3:]
    count: int | None = int.from_bytes(data[1:3], "little")
    if choices & 1:
        count = None
    elif choices & 2:
        count = (count or 0) << 40
    n_elements = n_whole(wire_bytes) if count is None else count
    expected = by_reference(reference.unpack, "BYTES", wire_bytes, n_elements)
    source = exact(wire_bytes)
    read = None
    try:
        read = tw.decode_bytes(source, count)
    except tw.DecodeError as error:
        check_error(error, len(wire_bytes))
        assert isinstance(expected, reference.WireError), expected
        if isinstance(error, tw.ElementError):
            assert isinstance(expected, reference.ElementError)
            assert error.element == n_whole(wire_bytes)
    if read is not None:
        assert read.tolist() == expected
        assert (read.shape, read.nbytes) == ((len(expected),), len(wire_bytes))
        assert bytes(read.wire) == wire_bytes
    del read
    source.append(0)


def n_whole(data: bytes) -> int:
    """Return the number of elements before the end or before the first truncated one."""
    n, position = 0, 0
    while position + 4 <= len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        if position > len(data):
            break
        n += 1
    return n


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        request,
        response,
        decode_bytes,
        exports,
        header_length,
        bodybuffer,
        json_writer,
        grpc,
        api,
    )
}
