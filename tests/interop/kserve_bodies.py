"""Bodies for KServe's classes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from kserve import InferRequest

import tensorwire as tw
from tensorwire.integrations.kserve.convert import read_request


def wire(*inputs: dict[str, Any], tail: bytes = b"", **members: Any) -> tuple[bytes, int]:
    """Return a body and the length of its JSON."""
    text = json.dumps({"inputs": inputs, **members}).encode()
    return text + tail, len(text)


def entry(name: str, shape: list[int], datatype: str, nbytes: int, **more: Any) -> dict[str, Any]:
    parameters = {"binary_data_size": nbytes, **more}
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": parameters}


def decoded(body: bytes, json_length: int) -> Any:
    """Return the request that KServe's own code reads."""
    return InferRequest.from_bytes(body, json_length, "m")


def received(body: bytes, json_length: int | None) -> Any:
    """Return the request that the route reads."""
    buffer = tw.BodyBuffer(len(body), json_length)
    buffer.write(body)
    return read_request(buffer, json_length, "m")[1]


X = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE = wire(entry("x", [2, 3], "FP32", 24), tail=X.tobytes())
WORDS = b"\x05\0\0\0a cat" + b"\3\0\0\0\xe2\x82\xac" + b"\0\0\0\0"
TEXT = wire(entry("t", [3], "BYTES", len(WORDS)), tail=WORDS)
IMAGE = b"\2\0\0\0\xff\xd8" + b"\1\0\0\0a"
NO_TEXT = wire(entry("t", [2], "BYTES", len(IMAGE)), tail=IMAGE)
AS_JSON = wire({"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]})
