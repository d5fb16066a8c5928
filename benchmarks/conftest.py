"""What the benchmarks share: a contender that is wrong, or missing, is not measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .workloads import Arrays


def check(found: list[NDArray[Any]], arrays: Arrays) -> None:
    """The contender got it right, before anybody asks how fast."""
    for array, expected in zip(found, arrays.values(), strict=True):
        assert np.array_equal(array, expected)
