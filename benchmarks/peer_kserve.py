"""KServe's messages before and after `install()`: run it in the environment "kserve".

`python peer_kserve.py [RESULT]` prints a table, and writes the numbers as JSON to RESULT: the best
of several runs of each, the two side by side, in seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from kserve import InferInput, InferOutput, InferRequest, InferResponse

from tensorwire.integrations import kserve as backend

ROUNDS = 3
SECONDS = 0.2  # at least so long each time

X = np.arange(1 << 20, dtype=np.float32)  # 4 MB
WORDS = np.array([b"%016d" % i for i in range(100_000)], object)


def request(array: Any, datatype: str) -> tuple[bytes, int]:
    tensor = InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    body, json_length = InferRequest("m", [tensor]).to_rest()
    return body, json_length


def response(array: Any, datatype: str, *, is_binary: bool = True) -> Any:
    tensor = InferOutput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return InferResponse("1", "m", [tensor], use_binary_outputs=is_binary)


NUMBERS, TEXT = request(X, "FP32"), request(WORDS, "BYTES")
TENSOR = InferInput("x", list(WORDS.shape), "BYTES")


def decoded(message: tuple[bytes, int]) -> Any:
    return InferRequest.from_bytes(*message, "m").inputs[0]


ROWS: dict[str, Callable[[], Callable[[], Any]]] = {  # what is measured, made ready
    "decode, as_numpy: 4 MB FP32": lambda: lambda: decoded(NUMBERS).as_numpy(),
    "decode, data: 4 MB FP32": lambda: lambda: decoded(NUMBERS).data,
    "decode: BYTES 100k x 16 B": lambda: lambda: decoded(TEXT),
    "decode, data: BYTES 100k x 16 B": lambda: lambda: decoded(TEXT).data,
    "decode, as_numpy: BYTES 100k x 16 B": lambda: lambda: decoded(TEXT).as_numpy(),
    "set_data_from_numpy: BYTES 100k x 16 B": lambda: lambda: TENSOR.set_data_from_numpy(WORDS),
    "to_rest: 4 MB FP32, encoded": lambda: response(X, "FP32").to_rest,
    "to_rest: BYTES 100k x 16 B, encoded": lambda: response(WORDS, "BYTES").to_rest,
    "to_rest: 4 MB FP32 as JSON": lambda: response(X, "FP32", is_binary=False).to_rest,
}


def best(function: Callable[[], Any]) -> float:
    n_calls, lowest = 0, float("inf")
    end = perf_counter() + SECONDS
    while n_calls < 2 or perf_counter() < end:
        begin = perf_counter()
        function()
        lowest = min(lowest, perf_counter() - begin)
        n_calls += 1
    return lowest


def measured(name: str) -> dict[str, float]:
    before, after = [], []
    for _ in range(ROUNDS):
        before.append(best(ROWS[name]()))
        backend.install()
        after.append(best(ROWS[name]()))
        backend.uninstall()
    return {"before": min(before), "after": min(after)}


def main() -> None:
    rows = {}
    for name in ROWS:
        rows[name] = times = measured(name)
        before, after = times["before"] * 1e3, times["after"] * 1e3
        print(f"{name:40} {before:10.3f} ms {after:10.4f} ms {before / after:10.0f}x", flush=True)
    result = {"kserve": version("kserve"), "python": sys.version, "rows": rows}
    for path in sys.argv[1:]:
        Path(path).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
