"""Messages as dicts of arrays, strings and JSON values, for web frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import tensorwire as tw

from ..arguments import check_type
from ..errors import HeaderError, format_subject, format_value
from ..http import HEADER_LENGTH
from .model import check_requested_outputs

# Of the request itself: it says how the client wants the outputs, and not what the model computes.
_FRAMING_PARAMETER = "binary_data_output"
_JSON_TYPES = (str, bool, int, float, type(None), Mapping, list, tuple, np.generic)

# The headers of a frame, which those of the caller do not replace.
FRAME_HEADERS = ("content-type", "content-length", HEADER_LENGTH.lower())

Content = Mapping[str, Any] | tw.InferResponse | tw.Frame


def values_of(request: tw.InferRequest) -> dict[str, Any]:
    """Return the parameters and the inputs of a request by name.

    An input is an ``ndarray``, or a ``BytesArray`` for BYTES. Raises HeaderError if an input and a
    parameter have the same name, an input is in shared memory, or an output is requested in a way
    that is not supported.
    """
    check_requested_outputs(request)
    parameters = request.parameters.items()
    values = {name: _plain(value) for name, value in parameters if name != _FRAMING_PARAMETER}
    for name, tensor in request.items():
        if name in values:
            raise HeaderError(
                f"the request has an input and a parameter with the name {format_value(name)}",
                tensor=name,
            )
        if tensor.data is None:
            raise HeaderError(
                f"{format_subject('input', name)} is in shared memory, which is not supported",
                tensor=name,
            )
        values[name] = tensor.data
    return values


def _plain(value: Any) -> Any:
    """Return a JSON value with new lists and dicts in place of tuples and read-only mappings.

    It is not recursive, because a value may have more levels than Python's stack.
    """
    result: list[Any] = [None]
    pending: list[tuple[Any, Any, Any]] = [(value, result, 0)]
    while pending:
        source, target, key = pending.pop()
        if isinstance(source, Mapping):
            target[key] = dict.fromkeys(source)
            pending.extend((item, target[key], name) for name, item in source.items())
        elif isinstance(source, tuple):
            target[key] = [None] * len(source)
            pending.extend((item, target[key], i) for i, item in enumerate(source))
        else:
            target[key] = source
    return result[0]


def frame_of(content: Content) -> tw.Frame:
    """Return the frame of a response. Its tensors are binary."""
    if isinstance(content, tw.Frame):
        return content
    if not isinstance(content, tw.InferResponse):
        check_type("content", content, Mapping, "a mapping, an InferResponse or a Frame")
        parameters = {k: value for k, value in content.items() if isinstance(value, _JSON_TYPES)}
        outputs = {k: value for k, value in content.items() if k not in parameters}
        content = tw.InferResponse(outputs, parameters=parameters)
    return tw.encode_response(content)
