"""Checks of the decoders of messages and BYTES: results, views and errors as of reference.py."""

from __future__ import annotations

from typing import Any

import tensorwire as tw
from fuzz.comparison import by_reference, check_error, check_views, exact, message_read, values_of
from support import reference

LIMITS = (tw.Limits(), tw.Limits(bf16_as_uint16=True))


def check_message(kind: str, body: bytes, length: Any, options: int = 0) -> None:
    """A message decodes into views of the body, or is rejected; both like the reference codec."""
    source, view = prepared(body, options)
    expected = by_reference(reference.decode, body, length, kind)
    decode = tw.decode_request if kind == "request" else tw.decode_response
    read: Any = None
    try:
        read = decode(view, length, limits=LIMITS[options >> 1 & 1])
    except tw.DecodeError as error:
        check_error(error, len(body))
        assert isinstance(expected, reference.WireError), expected
    else:
        assert repr(message_read(read)) == repr(expected)
        check_views(read, view, header_nbytes(length, body))
    del read, view
    source.append(0)  # raises BufferError if any view of the body remains


def header_nbytes(length: Any, body: bytes) -> int:
    """Return a valid header length as a number."""
    text = length.decode() if isinstance(length, bytes) else str(length)
    return len(body) if length is None else int(text.split(",")[0])


def check_raw_request(spec: tw.TensorSpec, body: bytes, length: Any, options: int = 0) -> None:
    """A body without a header is the input that a specification describes."""
    source, view = prepared(body, options)
    declared = (spec.datatype, spec.dims, spec.batching)
    expected = by_reference(reference.decode_raw, body, *declared)
    read = None
    try:
        read = tw.decode_request(view, length, raw_input=spec, limits=LIMITS[options >> 1 & 1])
    except tw.DecodeError as error:
        check_error(error, len(body))
        assert isinstance(expected, reference.WireError), expected
    else:
        [tensor] = read.inputs
        assert repr((tensor.shape, values_of(tensor))) == repr(expected)
        assert (tensor.name, tensor.datatype, tensor.binary) == ("raw", spec.datatype, True)
        assert (read.parameters, read.outputs) == ({"binary_data_output": True}, None)
        del tensor
    del read, view
    source.append(0)


def prepared(body: bytes, options: int) -> tuple[Any, Any]:
    """Return the body in separate memory, and the object that is decoded."""
    source = exact(body)
    return source, memoryview(source).toreadonly() if options & 1 else source


def check_elements(wire: bytes, count: int | None) -> None:
    """Elements decode into views of the buffer, or the first invalid one is named."""
    n_elements = n_whole(wire) if count is None else count
    expected = by_reference(reference.unpack, "BYTES", wire, n_elements)
    source = exact(wire)
    read = None
    try:
        read = tw.decode_bytes(source, count)
    except tw.DecodeError as error:
        check_error(error, len(wire))
        assert isinstance(expected, reference.WireError), expected
        if isinstance(error, tw.ElementError):
            assert isinstance(expected, reference.ElementError)
            assert error.element == n_whole(wire)
    else:
        assert read.tolist() == expected
        assert (read.shape, read.nbytes) == ((len(expected),), len(wire))
        assert bytes(read.wire) == wire
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
