"""The target for the JSON writer: arrays, BYTES, strings and parameters of any content."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorwire as tw
from fuzz.comparison import exact
from tensorwire._codec.datatypes import UNLIMITED

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
NONFINITE: Any = ("null", "literal", "error", None)
MAX_DEPTH = 128
X = np.zeros(0, np.int8)


def json_writer(data: bytes) -> None:
    """The standard library reads the written values back, or the encoder raises an EncodeError.

    The input has a byte that chooses what is written, a byte of options, and the content.
    """
    what, options, content = data[0] if data else 0, data[1] if len(data) > 1 else 0, data[2:]
    if what % 16 < len(DTYPES):
        numbers(DTYPES[what % 16], options, content)
    else:
        OTHERS[what % 16 - len(DTYPES)](options, content)


def written(message: Any, **options: Any) -> Any:
    """Encode a message, and return its parsed header."""
    encode: Any = tw.encode_request
    if isinstance(message, tw.InferResponse):
        encode = tw.encode_response
    frame = encode(message, limits=UNLIMITED, **options)
    text = bytes(frame.buffers[0])
    assert frame.header_length in (None, len(text))
    return json.loads(text)


def numbers(code: str, options: int, content: bytes) -> None:
    dtype = np.dtype(code)
    offset = min(options & 1, len(content))  # 1: misaligned
    n = (len(content) - offset) // dtype.itemsize
    memory = exact(content[: offset + n * dtype.itemsize])
    array = np.frombuffer(memory, dtype, n, offset) if n else np.zeros(0, dtype)
    if options & 2:  # repeated, to cross the ends of batches
        array = np.tile(array, 1 + options * 20 // max(n, 1))
    nonfinite = NONFINITE[options >> 2 & 3]
    tensor = tw.Tensor("x", array, binary=False)
    finite = np.isfinite(array)
    is_written = {"error": finite, None: ~np.isinf(array)}.get(nonfinite, np.ones(len(array), bool))
    message = tw.InferRequest([tensor])
    try:
        parsed = written(message, nonfinite=nonfinite)["inputs"][0]["data"]
    except tw.EncodeError as error:
        assert error.element == int(is_written.argmin())
        assert not is_written.all()
        return
    assert is_written.all()
    assert len(parsed) == len(array)
    if dtype.kind != "f":
        values = array.view(np.uint8) != 0 if code == "?" else array
        assert parsed == values.tolist()
        return
    if nonfinite in ("null", None):
        assert [value is None for value in parsed] == (~finite).tolist()
        parsed, array = [value for value in parsed if value is not None], array[finite]
    assert all(type(value) is float for value in parsed)
    with np.errstate(over="ignore"):
        again = np.array(parsed, np.float64).astype(dtype)
    nan = np.isnan(array)
    assert (np.isnan(again) == nan).all()
    assert again[~nan].tobytes() == array[~nan].tobytes()


def split(content: bytes) -> list[bytes]:
    """Split the content into elements. A byte before each element is its length."""
    elements, at = [], 0
    while at < len(content):
        end = at + 1 + content[at]
        elements.append(content[at + 1 : end])
        at = end
    return elements


def elements(options: int, content: bytes) -> None:
    found = split(content)
    if options & 1:  # repeated, to cross the ends of pieces
        found = [element * (options // 2) for element in found]
    tensor = tw.Tensor("x", found, datatype="BYTES", binary=False)
    wrong = [i for i, element in enumerate(found) if not is_utf8(element)]
    try:
        parsed = written(tw.InferResponse([tensor]))["outputs"][0]["data"]
    except tw.EncodeError as error:
        assert (error.element, error.status) == (wrong[0], 400)
        return
    assert not wrong
    assert parsed == [element.decode() for element in found]


def is_utf8(element: bytes) -> bool:
    try:
        element.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of(options: int, content: bytes) -> str:
    """Return text of each width in which Python stores characters."""
    encoding = ("latin-1", "utf-16-le", "utf-32-le", "utf-8")[options & 3]
    width = (1, 2, 4, 1)[options & 3]
    content = content[: len(content) // width * width]
    if width == 4:  # not above the largest code point
        code_points = np.frombuffer(content, np.uint32) % 0x110000
        return "".join(map(chr, code_points.tolist()))
    return content.decode(encoding, "surrogatepass" if width == 2 else "replace")


def has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def names(options: int, content: bytes) -> None:
    text = text_of(options, content).replace("\0", "") * (1 + (options >> 2))
    try:
        message = tw.InferRequest(
            [tw.Tensor(text, X)], [tw.RequestedOutput(text)], id=text, parameters={text: text}
        )
        parsed = written(message)
    except tw.EncodeError:
        assert has_surrogate(text)
        return
    assert not has_surrogate(text)
    assert parsed == {
        "inputs": [
            {
                "name": text,
                "datatype": "INT8",
                "shape": [0],
                "parameters": {"binary_data_size": 0},
            }
        ],
        "id": text,
        "parameters": {text: text},
        "outputs": [{"name": text}],
    }


def parameters(options: int, content: bytes) -> None:
    value = built(iter(content), 0)
    for _ in range(options if options & 1 else 0):
        value = [value] if options & 2 else {"k": value}
    message = tw.InferRequest([tw.Tensor("x", X)], parameters={"k": value})
    try:
        parsed = written(message)
    except tw.EncodeError:
        assert 2 + depth(value) > MAX_DEPTH
        return
    assert 2 + depth(value) <= MAX_DEPTH
    # repr distinguishes 1 from 1.0 and True, and 0.0 from -0.0.
    assert repr(parsed["parameters"]["k"]) == repr(value)


def built(content: Any, level: int) -> Any:
    """Return a value of JSON types that is chosen by the bytes."""
    kind = next(content, 0) % 8
    if kind < 3:
        return (None, True, False)[kind]
    if kind == 3:
        nbytes = next(content, 0) % 20
        return int.from_bytes(bytes(next(content, 0) for _ in range(nbytes)), "little", signed=True)
    if kind == 4:
        number = np.frombuffer(bytes(next(content, 0) for _ in range(8)), np.float64)[0].item()
        return number if math.isfinite(number) else 0.5
    if kind == 5:
        return bytes(next(content, 0) for _ in range(next(content, 0) % 20)).decode("latin-1")
    n = next(content, 0) % 4 if level < 20 else 0
    if kind == 6:
        return [built(content, level + 1) for _ in range(n)]
    return {chr(next(content, 0)): built(content, level + 1) for _ in range(n)}


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 0
    return 1 + max(map(depth, value), default=0)


OTHERS: list[Callable[[int, bytes], None]] = [elements, elements, names, names, parameters]
