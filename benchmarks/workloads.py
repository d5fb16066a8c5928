"""WORKLOADS: the messages that are measured, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def floats(n: int) -> NDArray[np.float32]:
    return np.arange(n, dtype=np.float32)


def texts(n: int, low: int, high: int) -> NDArray[np.object_]:
    """Elements of ``low`` to ``high`` bytes, all lengths alike often, in no order."""
    rng = np.random.default_rng(7)
    letters = rng.integers(97, 123, high, np.uint8).tobytes()
    array = np.empty(n, object)
    array[:] = [letters[:length] for length in rng.integers(low, high, n, endpoint=True)]
    return array


# Made when asked for: some are large.
WORKLOADS: dict[str, Callable[[], Arrays]] = {
    "128 B FP32": lambda: {"x": floats(32)},
    "100 MB FP32": lambda: {"x": floats(25_000_000)},
    "50 x 128 B FP32": lambda: {f"x{i}": floats(32) for i in range(50)},
    "BYTES 300k x 0-40 B": lambda: {"x": texts(300_000, 0, 40)},
    "BYTES 100k x 100-300 B": lambda: {"x": texts(100_000, 100, 300)},
}
