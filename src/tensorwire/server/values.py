"""Messages as dicts of arrays, strings and JSON values, for web frameworks."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

import tensorwire as tw

from .._codec.limits import UNLIMITED
from ..arguments import check_type
from ..errors import format_subject, format_value
from ..http import HEADER_LENGTH
from .errors import InputError, RequestError
from .model import check_inputs, check_requested_outputs, specs_by_name

# Of the request itself: it says how the client wants the outputs, and not what the model computes.
_FRAMING_PARAMETER = "binary_data_output"
# In an ASGI scope or a WSGI environment: what the request says about the response.
_OPTIONS_KEY = "tensorwire.response_options"
# JSON responses have any size, as those of `create_app`.
_LIMITS = tw.Limits(max_header_nbytes=UNLIMITED.max_header_nbytes)
_JSON_TYPES = (str, bool, int, float, type(None), Mapping, list, tuple, np.generic)

# The headers of a frame, which those of the caller do not replace.
FRAME_HEADERS = ("content-type", "content-length", HEADER_LENGTH.lower())

Content = Mapping[str, Any] | tw.InferResponse | tw.Frame


def values_of(
    request: tw.InferRequest,
    inputs: Sequence[tw.TensorSpec],
    scope: MutableMapping[str, Any],
) -> dict[str, Any]:
    """Return the parameters and the inputs of a request by name.

    An input is an ``ndarray``, or a ``BytesArray`` for BYTES. What the request asks for is kept in
    the scope. Raises RequestError if the inputs are not the declared ones, an input and a parameter
    have the same name, an input is in shared memory, or an output is requested in a way that is not
    supported.
    """
    binary = request.parameters.get(_FRAMING_PARAMETER)
    if binary is None:
        binary = any(tensor.binary for tensor in request.inputs)
    scope[_OPTIONS_KEY] = tw.ResponseOptions(request.outputs, binary=binary, id=request.id)
    if inputs:
        check_inputs(request.inputs, specs_by_name("inputs", inputs), "the route")
    check_requested_outputs(request)
    parameters = request.parameters.items()
    values = {name: value for name, value in parameters if name != _FRAMING_PARAMETER}
    for name, tensor in request.items():
        if name in values:
            raise InputError(
                f"the request has an input and a parameter with the name {format_value(name)}",
                tensor=name,
            )
        if tensor.data is None:
            raise InputError(
                f"{format_subject('input', name)} is in shared memory, which is not supported: "
                "send its data in the request",
                tensor=name,
            )
        values[name] = tensor.data
    return values


def frame_of(content: Content, scope: Mapping[str, Any] | None = None) -> tw.Frame:
    """Return the frame of a response. Without the scope of the request, its tensors are binary.

    Raises RequestError if the response cannot be what the request asks for.
    """
    if isinstance(content, tw.Frame):
        return content
    if not isinstance(content, tw.InferResponse):
        check_type("content", content, Mapping, "a mapping, an InferResponse or a Frame")
        parameters = {k: value for k, value in content.items() if _is_parameter(value)}
        outputs = {k: value for k, value in content.items() if k not in parameters}
        content = tw.InferResponse(outputs, parameters=parameters)
    if scope is None:
        return tw.encode_response(content)
    if _OPTIONS_KEY not in scope:
        raise ValueError("read_tensors has not read the request of this response")
    try:
        return tw.encode_response(content, scope[_OPTIONS_KEY], limits=_LIMITS)
    except tw.EncodeError as error:
        if error.status != 400:
            raise
        raise RequestError(str(error), tensor=error.tensor) from error


def _is_parameter(value: Any) -> bool:
    """Return whether a value of a response is a parameter. Lists of text or arrays are outputs."""
    if isinstance(value, list | tuple) and value:
        return any(not isinstance(item, str) and _is_parameter(item) for item in value)
    return isinstance(value, _JSON_TYPES)
