"""Instruction counts under valgrind: independent of tensor size, and at most 10 % above the
baseline.
"""

from __future__ import annotations

import pytest

from benchmarks import counts
from support.requirements import skip_or_fail

pytestmark = [
    pytest.mark.no_sanitizers(reason="it counts instructions"),
    pytest.mark.slow(reason="valgrind takes long"),
]

TOLERANCE = 0.1


@pytest.fixture(scope="module")
def counted() -> dict[str, float]:
    try:
        return counts.counted()
    except counts.Missing as reason:
        skip_or_fail("valgrind", reason)


@pytest.mark.parametrize("way", ["decode", "encode"])
def test_count_is_independent_of_tensor_size(counted: dict[str, float], way: str) -> None:
    small, large = counted[f"{way} 1 KB"], counted[f"{way} 16 MB"]
    assert large == pytest.approx(small, rel=TOLERANCE)


@pytest.mark.parametrize("case", [*counts.CASES, *counts.PER_ELEMENT])
def test_count_is_at_most_10_percent_above_baseline(counted: dict[str, float], case: str) -> None:
    try:
        before = counts.baseline()[case]
    except counts.Missing as reason:
        pytest.skip(f"this machine has no counts to compare with: {reason}")
    assert counted[case] <= before * (1 + TOLERANCE), "python -m benchmarks.counts"
