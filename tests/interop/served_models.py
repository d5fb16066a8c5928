"""Models for clients of other projects, which test_programs.py serves with the command.

The last three take and return what docling sends to models for pages: they look at the pixels.
"""

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


def read_text(request: tw.InferRequest) -> tw.InferResponse:
    """Return the box of the dark pixels, and the language as its text."""
    [image] = request["image"].as_numpy()
    rows, columns = np.nonzero(image.max(axis=2) < 128)
    left, right, top, bottom = columns.min(), columns.max() + 1, rows.min(), rows.max() + 1
    box = [[left, top], [right, top], [right, bottom], [left, bottom]]
    [language] = request["lang_type"].as_strings().ravel()
    scale = request.parameters.get("confidence", 1.0)
    return tw.InferResponse(
        {
            "boxes": np.array([box], np.float32),
            "txts": np.array([f"text «{language}»"], object),
            "scores": np.array([scale], np.float32),
        }
    )


def detect(request: tw.InferRequest) -> tw.InferResponse:
    """Return two objects for each image: the whole image, and an unlikely one."""
    sizes = request["orig_target_sizes"].as_numpy().astype(np.float32)
    brightness = request["images"].as_numpy().mean(axis=(1, 2, 3))
    boxes = np.zeros((len(sizes), 2, 4), np.float32)
    boxes[:, 0, 2:] = sizes
    scores = np.stack([brightness, np.zeros_like(brightness)], axis=1)
    labels = np.tile(np.array([1, 0], np.int64), (len(sizes), 1))
    return tw.InferResponse({"labels": labels, "boxes": boxes, "scores": scores})


def classify(request: tw.InferRequest) -> tw.InferResponse:
    """Return logits: the more light, the more probable is the second class."""
    brightness = request["pixel_values"].as_numpy().mean(axis=(1, 2, 3))
    logits = np.stack([np.zeros_like(brightness), brightness * 10 - 5], axis=1)
    return tw.InferResponse({"logits": logits})


def spec(name: str, datatype: Any, *dims: int) -> tw.TensorSpec:
    return tw.TensorSpec(name, datatype, list(dims))


X, Y = (tw.TensorSpec(name, "FP32", [3], batching=True) for name in "xy")
TEXT, UPPER = (tw.TensorSpec(name, "BYTES", [1], batching=True) for name in ("text", "upper"))

models = {
    "double": Model(double, [X], [Y]),
    "rows": Model(double, [spec("x", "FP32", 3)], [spec("y", "FP32", 3)]),
    "upper": Model(upper, [TEXT], [UPPER]),
    "reject": Model(reject, [X], [Y]),
    "ocr": Model(
        read_text,
        [spec("image", "UINT8", 1, -1, -1, 3), spec("lang_type", "BYTES", 1, 1)],
        [*(spec("boxes", "FP32", -1, 4, 2), spec("txts", "BYTES", -1)), spec("scores", "FP32", -1)],
    ),
    "detector": Model(
        detect,
        [spec("images", "FP32", -1, 3, -1, -1), spec("orig_target_sizes", "INT64", -1, 2)],
        [
            *(spec("labels", "INT64", -1, 2), spec("boxes", "FP32", -1, 2, 4)),
            spec("scores", "FP32", -1, 2),
        ],
    ),
    "classifier": Model(
        classify, [spec("pixel_values", "FP32", -1, 3, -1, -1)], [spec("logits", "FP32", -1, 2)]
    ),
}
