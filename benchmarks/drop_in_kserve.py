"""What programs do with KServe's messages, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .contender import module
from .drop_in import Case
from .workloads import floats, texts

Body = tuple[bytes, int]  # and the length of its JSON

NUMBERS, WORDS = "4 MB FP32", "BYTES 100k x 0-40 B"
ARRAYS: dict[str, Callable[[], Any]] = {
    NUMBERS: lambda: floats(1 << 20),
    WORDS: lambda: texts(100_000, 0, 40),
}


def datatype_of(array: Any) -> str:
    return "BYTES" if array.dtype == np.object_ else "FP32"


def request(array: Any) -> Body:
    kserve = module("kserve")
    tensor = kserve.InferInput("x", list(array.shape), datatype_of(array))
    tensor.set_data_from_numpy(array)
    body, json_length = kserve.InferRequest("m", [tensor]).to_rest()
    return body, json_length


def decoded(body: Body) -> Any:
    return module("kserve").InferRequest.from_bytes(*body, "m").inputs[0]


def response(array: Any, *, is_binary: bool = True) -> Any:
    """What a model's answer becomes: a tensor made of an array, and its body."""
    kserve = module("kserve")
    tensor = kserve.InferOutput("x", list(array.shape), datatype_of(array))
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    return kserve.InferResponse("1", "m", [tensor], use_binary_outputs=is_binary).to_rest()[0]


CASES = {
    f"{step}, {name}": Case(lambda make=make, prepare=prepare: prepare(make()), run)  # type: ignore[misc]
    for step, prepare, run in (
        ("request", request, lambda body: decoded(body).shape),
        ("request, as_numpy", request, lambda body: decoded(body).as_numpy()),
        ("request, data", request, lambda body: list(decoded(body).data)),
        ("response", lambda array: array, response),
    )
    for name, make in ARRAYS.items()
}
CASES[f"response as JSON, {NUMBERS}"] = Case(
    ARRAYS[NUMBERS], lambda array: response(array, is_binary=False)
)
