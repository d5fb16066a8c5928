"""A short run of `stress/soak.py`: correct responses, bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from stress import soak

pytestmark = [
    pytest.mark.thread_unsafe(reason="it starts servers"),
    pytest.mark.no_sanitizers(reason="it measures the memory of processes"),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this machine has no /proc"),
]


@pytest.mark.parametrize("transport", ["fast", "granian-rsgi"])
def test_short_soak(transport: str) -> None:
    tally = soak.soak(transport, 2000, 2)
    assert tally.wrong == []
    assert tally.n_all >= 2000
    assert min(tally.counts.values()) > 20
