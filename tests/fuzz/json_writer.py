"""Checks of the JSON writer: arrays, BYTES, strings and parameters of any content."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import tensorwire as tw
from support.bytes_elements import is_utf8
from tensorwire._codec.limits import UNLIMITED

NONFINITE: tuple[Any, ...] = ("null", "literal", "error", None)
MAX_DEPTH = 128
EMPTY = np.zeros(0, np.int8)


def written(message: Any, **options: Any) -> Any:
    """Encode a message, and return its parsed header."""
    encode: Any = tw.encode_request
    if isinstance(message, tw.InferResponse):
        encode = tw.encode_response
    frame = encode(message, limits=UNLIMITED, **options)
    text = bytes(frame.buffers[0])
    assert frame.header_length in (None, len(text))
    return json.loads(text)


def check_numbers(array: Any, nonfinite: Any) -> None:
    """The standard library reads the same numbers, or the encoder names the first it rejects."""
    tensor = tw.Tensor("x", array, binary=False)
    finite = np.isfinite(array)
    is_written = {"error": finite, None: ~np.isinf(array)}.get(nonfinite, np.ones(len(array), bool))
    try:
        request = tw.InferRequest([tensor])
        parsed = written(request, nonfinite=nonfinite)["inputs"][0]["data"]
    except tw.EncodeError as error:
        assert error.element == int(is_written.argmin())
        assert not is_written.all()
        return
    assert is_written.all()
    assert len(parsed) == len(array)
    if array.dtype.kind != "f":
        values = array.view(np.uint8) != 0 if array.dtype == bool else array
        assert parsed == values.tolist()
        return
    if nonfinite in ("null", None):
        assert [value is None for value in parsed] == (~finite).tolist()
        parsed, array = [value for value in parsed if value is not None], array[finite]
    assert all(type(value) is float for value in parsed)
    with np.errstate(over="ignore"):
        again = np.array(parsed, np.float64).astype(array.dtype)
    nan = np.isnan(array)
    assert (np.isnan(again) == nan).all()
    assert again[~nan].tobytes() == array[~nan].tobytes()


def check_elements(elements: list[bytes]) -> None:
    tensor = tw.Tensor("x", elements, datatype="BYTES", binary=False)
    wrong = [i for i, element in enumerate(elements) if not is_utf8(element)]
    try:
        parsed = written(tw.InferResponse([tensor]))["outputs"][0]["data"]
    except tw.EncodeError as error:
        assert (error.element, error.status) == (wrong[0], 400)
        return
    assert not wrong
    assert parsed == [element.decode() for element in elements]


def check_names(text: str) -> None:
    """A text is written as each name and value, unless it has no UTF-8 form."""
    text = text.replace("\0", "")  # not allowed in names
    has_surrogate = any("\ud800" <= character <= "\udfff" for character in text)
    try:
        tensors, outputs = [tw.Tensor(text, EMPTY)], [tw.RequestedOutput(text)]
        parsed = written(tw.InferRequest(tensors, outputs, id=text, parameters={text: text}))
    except tw.EncodeError:
        assert has_surrogate
        return
    assert not has_surrogate
    size = {"binary_data_size": 0}
    assert parsed == {
        "inputs": [{"name": text, "datatype": "INT8", "shape": [0], "parameters": size}],
        "id": text,
        "parameters": {text: text},
        "outputs": [{"name": text}],
    }


def check_parameters(value: Any) -> None:
    """Any value of JSON is read back, unless it is nested too deeply."""
    request = tw.InferRequest([tw.Tensor("x", EMPTY)], parameters={"k": value})
    try:
        parsed = written(request)
    except tw.EncodeError:
        assert 2 + depth(value) > MAX_DEPTH
        return
    assert 2 + depth(value) <= MAX_DEPTH
    # repr distinguishes 1 from 1.0 and True, and 0.0 from -0.0.
    assert repr(parsed["parameters"]["k"]) == repr(value)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0
