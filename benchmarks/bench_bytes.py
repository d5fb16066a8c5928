"""BYTES, step by step: every step, every contender, two sizes of elements."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .contenders import BYTES_STEPS, Elements
from .workloads import WORKLOADS

SIZES = [name for name in WORKLOADS if name.startswith("BYTES")]
ROWS = [(step, contender) for step, ways in BYTES_STEPS.items() for contender in ways]


@cache
def elements_of(workload: str) -> Elements:
    (array,) = WORKLOADS[workload]().values()
    return Elements(tw.encode_bytes(array), array)


def is_right(found: Any, elements: Elements) -> bool:
    """The right wire bytes, offsets or elements, whatever they stand in."""
    if isinstance(found, bytes):
        return found == elements.wire
    if isinstance(found, np.ndarray) and found.dtype == np.int64:
        return len(found) == len(elements.objects)
    values = found.to_pylist() if hasattr(found, "to_pylist") else list(found)
    as_bytes = [value.encode() if isinstance(value, str) else value for value in values]
    expected: list[bytes] = elements.objects.tolist()
    return as_bytes == expected


@pytest.mark.parametrize(("step", "contender"), ROWS)
@pytest.mark.parametrize("workload", SIZES)
def test_bytes(benchmark: BenchmarkFixture, workload: str, step: str, contender: str) -> None:
    elements, run = elements_of(workload), BYTES_STEPS[step][contender]
    assert is_right(run(elements), elements)
    benchmark.extra_info.update(
        table=workload, workload=step, contender=contender, n_elements=len(elements.objects)
    )
    benchmark(run, elements)
