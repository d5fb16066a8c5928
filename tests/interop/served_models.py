"""Models for clients of other projects, which test_programs.py serves with the command."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorwire as tw
from tensorwire.server import Model, RequestError


def double(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse({"y": request["x"].as_numpy() * 2})


def upper(request: tw.InferRequest) -> tw.InferResponse:
    texts = request["text"].as_strings()
    found = np.array([text.upper() for text in texts.ravel()], object).reshape(texts.shape)
    return tw.InferResponse({"upper": found})


def reject(request: tw.InferRequest) -> tw.InferResponse:
    raise RequestError("there are no cats in the image", status=409)


def spec(name: str, datatype: Any, *dims: int) -> tw.TensorSpec:
    return tw.TensorSpec(name, datatype, list(dims))


X, Y = (tw.TensorSpec(name, "FP32", [3], batching=True) for name in "xy")
TEXT, UPPER = (tw.TensorSpec(name, "BYTES", [1], batching=True) for name in ("text", "upper"))

models = {
    "double": Model(double, [X], [Y]),
    "rows": Model(double, [spec("x", "FP32", 3)], [spec("y", "FP32", 3)]),
    "upper": Model(upper, [TEXT], [UPPER]),
    "reject": Model(reject, [X], [Y]),
}
