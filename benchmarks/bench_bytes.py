"""BYTES, step by step: every step, every contender, four kinds of elements."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .bytes_steps import BYTES_STEPS, Elements
from .measure import measure, measuring
from .workloads import BYTES, message_of

ROWS = [(step, contender) for step, ways in BYTES_STEPS.items() for contender in ways]


@lru_cache(1)
def elements_of(workload: str) -> Elements:
    (array,) = message_of(workload).arrays.values()
    return Elements(tw.encode_bytes(array), array)


def check(found: Any, elements: Elements) -> None:
    """The right wire bytes, offsets or elements, whatever they stand in."""
    if isinstance(found, bytes):
        assert found == elements.wire
    elif isinstance(found, np.ndarray) and found.dtype == np.int64:
        assert found.tolist() == elements.offsets.tolist()
    else:
        values = found.to_pylist() if hasattr(found, "to_pylist") else list(found)
        as_bytes = [value.encode() if isinstance(value, str) else value for value in values]
        assert as_bytes == elements.objects.tolist()


@pytest.mark.parametrize(("step", "contender"), ROWS)
@pytest.mark.parametrize("workload", BYTES)
def test_bytes(benchmark: BenchmarkFixture, workload: str, step: str, contender: str) -> None:
    elements, run = elements_of(workload), BYTES_STEPS[step][contender]
    with measuring(benchmark, workload, step, contender, n_elements=len(elements.objects)):
        measure(benchmark, lambda found: check(found, elements), run, elements)
