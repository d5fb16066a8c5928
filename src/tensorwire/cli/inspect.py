"""``tensorwire inspect FILE``: print the tensors or the error of a captured body."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import tensorwire as tw

from .._codec.datatypes import bf16_dtype
from .output import UsageError, escape, print_error, print_line

N_VALUES = 6  # number of values to print of each tensor
DETAILS = ("tensor", "element", "offset", "expected", "actual")  # attributes of an error


def run(options: argparse.Namespace) -> int:
    """Print the message in a file. Return the exit status, which is 1 for an invalid message.

    Raises UsageError.
    """
    file, header_length = options.file, options.header_length
    try:
        body = Path(file).read_bytes()
    except OSError as error:
        raise UsageError(str(error)) from None
    try:
        message = decode(body, header_length)
    except tw.DecodeError as error:
        print_error(f"{file}: {type(error).__name__}: {error}")
        hints = guess_header_length(body) if header_length is None else []
        details = {name: getattr(error, name) for name in DETAILS}
        lines = [f"{name}: {value}" for name, value in details.items() if value is not None]
        for line in lines + hints:
            print_error(f"  {line}")
        return 1
    kind = "request" if isinstance(message, tw.InferRequest) else "response"
    print_line(f"{file}: {kind} of {len(body):,} bytes, {format_fields(message)}")
    print_line(f"{'name':<20} {'datatype':<9} {'shape':<16} {'bytes':>12}  first values")
    for tensor in message.values():
        nbytes = "-" if tensor.data is None else f"{tensor.data.nbytes:,}"
        name, shape, values = escape(tensor.name), str(list(tensor.shape)), format_values(tensor)
        print_line(f"{name:<20} {tensor.datatype:<9} {shape:<16} {nbytes:>12}  {values}")
    return 0


def decode(body: bytes, header_length: str | None) -> tw.InferRequest | tw.InferResponse:
    """Decode a request, or a response if the JSON has no ``inputs``."""
    limits = tw.Limits(bf16_as_uint16=bf16_dtype() is None)
    try:
        return tw.decode_request(body, header_length, limits=limits)
    except tw.DecodeError as error:
        if 'the JSON header has no "inputs"' not in str(error):
            raise
    return tw.decode_response(body, header_length, limits=limits)


def guess_header_length(body: bytes) -> list[str]:
    """Return a line that suggests a header length, or no line if no JSON is found."""
    text = body.decode("latin-1")  # one character per byte
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return []
    padded = end + len(text[end:]) - len(text[end:].lstrip(" "))
    length = f"{end}" if end == padded else f"{padded} (or {end} if the tensors begin with spaces)"
    return [f"the JSON ends at byte {end}: try --header-length {length}"]


def format_fields(message: tw.InferRequest | tw.InferResponse) -> str:
    fields = {"id": message.id, "model": message.model_name, "version": message.model_version}
    parts = [f"{key} {value!r}" for key, value in fields.items() if value is not None]
    if message.parameters:
        parts.append(f"parameters {json.dumps(dict(message.parameters))}")
    if isinstance(message, tw.InferRequest) and message.outputs is not None:
        parts.append(f"outputs {[output.name for output in message.outputs]}")
    return ", ".join(parts) or "no id, model or parameters"


def format_values(tensor: tw.Tensor) -> str:
    """Return the first values in row-major order as text."""
    if tensor.data is None:
        return "(in shared memory)"
    flat: Any = tensor.data.reshape((int(np.prod(tensor.shape, dtype=object)),))
    first = flat[:N_VALUES].tolist()
    text = ", ".join(format_element(value) for value in first)
    how = "" if tensor.binary else "  (as JSON)"
    return f"{text}{', ...' if len(flat) > N_VALUES else ''}{how}"


def format_element(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
