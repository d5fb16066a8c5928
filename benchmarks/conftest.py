"""What the benchmarks share: a contender that is wrong, or missing, is not measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .workloads import Arrays


def check(found: dict[str, NDArray[Any]], arrays: Arrays) -> None:
    """The contender got it right, before anybody asks how fast."""
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
