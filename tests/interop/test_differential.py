"""Thousands of messages to tensorwire and a live Triton: equal results, except documented
differences.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.differences import DIFFERENCES
from interop.differential import Campaign, LiveTriton

pytestmark = pytest.mark.nightly(reason="it compares thousands of messages")


@pytest.fixture(scope="module")
def campaign(triton_folder: Path) -> Campaign:
    """Compare with a separate server, because some messages stop it."""
    with LiveTriton(triton_folder) as triton:
        campaign = Campaign(triton)
        campaign.run(n=3000, seed=0)
    return campaign


def test_no_undocumented_difference(campaign: Campaign) -> None:
    assert not campaign.new, "\n".join(campaign.new[:5])


def test_every_documented_difference_occurs(campaign: Campaign) -> None:
    """A row that no longer explains a difference must be removed."""
    assert sorted(row.id for row in DIFFERENCES if not campaign.explained[row.id]) == []
