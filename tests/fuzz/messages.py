"""Checks of the decoders of messages and BYTES: results, views and errors as of reference.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorwire as tw
from fuzz.comparison import by_reference, check_error, check_views, exact, message_read, values_of
from support import reference

LIMITS = (tw.Limits(), tw.Limits(bf16_as_uint16=True))


def check_message(kind: str, body: bytes, length: Any, options: int = 0) -> None:
    """A message decodes into views of the body, or is rejected; both like the reference codec."""
    expected = by_reference(reference.decode, body, length, kind)
    decode = tw.decode_request if kind == "request" else tw.decode_response

    def check(read: Any, view: Any) -> None:
        assert repr(message_read(read)) == repr(expected)
        check_views(read, view, header_nbytes(length, body))

    limits = LIMITS[options >> 1 & 1]
    compare(body, options, expected, lambda view: decode(view, length, limits=limits), check)


def compare(
    body: bytes, options: int, expected: Any, decode: Callable[[Any], Any], check: Any
) -> tw.DecodeError | None:
    """Check what is decoded, or return the error, which the reference codec has, too."""
    source = exact(body)
    view = memoryview(source).toreadonly() if options & 1 else source
    found = None
    try:
        check(decode(view), view)
    except tw.DecodeError as error:
        check_error(error, len(body))
        assert isinstance(expected, reference.WireError), expected
        found = error.with_traceback(None)
    del view
    source.append(0)  # raises BufferError if any view of the body remains
    return found


def header_nbytes(length: Any, body: bytes) -> int:
    """Return a valid header length as a number."""
    text = length.decode() if isinstance(length, bytes) else str(length)
    return len(body) if length is None else int(text.split(",")[0])


def check_raw_request(spec: tw.TensorSpec, body: bytes, length: Any, options: int = 0) -> None:
    """A body without a header is the input that a specification describes."""
    expected = by_reference(reference.decode_raw, body, spec.datatype, spec.dims, spec.batching)
    limits = LIMITS[options >> 1 & 1]

    def check(read: Any, _: Any) -> None:
        [tensor] = read.inputs
        assert repr((tensor.shape, values_of(tensor))) == repr(expected)
        assert (tensor.name, tensor.datatype, tensor.binary) == ("raw", spec.datatype, True)
        assert (read.parameters, read.outputs) == ({"binary_data_output": True}, None)

    compare(
        body, options, expected,
        lambda view: tw.decode_request(view, length, raw_input=spec, limits=limits), check,
    )  # fmt: skip


def check_elements(wire: bytes, count: int | None) -> None:
    """Elements decode into views of the buffer, or the first invalid one is named."""
    n_elements = n_whole(wire) if count is None else count
    expected = by_reference(reference.unpack, "BYTES", wire, n_elements)

    def check(read: Any, _: Any) -> None:
        assert read.tolist() == expected
        assert (read.shape, read.nbytes) == ((len(expected),), len(wire))
        assert bytes(read.wire) == wire

    error = compare(wire, 0, expected, lambda view: tw.decode_bytes(view, count), check)
    if isinstance(error, tw.ElementError):
        assert isinstance(expected, reference.ElementError)
        assert error.element == n_whole(wire)


def n_whole(data: bytes) -> int:
    """Return the number of elements before the end or before the first truncated one."""
    n, position = 0, 0
    while position + 4 <= len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        if position > len(data):
            break
        n += 1
    return n
