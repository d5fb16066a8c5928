"""Thousands of messages to tensorwire and to a live Triton: alike, or as differences.py says."""

from __future__ import annotations

import pytest

from interop import triton_setup
from interop.differences import DIFFERENCES
from interop.differential import Campaign, LiveTriton, described, installed
from interop.message_generator import messages
from support.requirements import skip_or_fail

SEED, N = 0, 3000


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    """A server of its own, because some messages end it."""
    folder = installed()
    if folder is None:
        skip_or_fail(
            "triton", f"no Triton server is installed: {triton_setup.__file__} installs one"
        )
    campaign = Campaign()
    with LiveTriton(folder) as triton:
        for message in messages(SEED, N):
            campaign.add(message, triton)
    return campaign


def test_no_new_difference(campaign: Campaign) -> None:
    assert not campaign.new, "\n".join(described(*new) for new in campaign.new[:5])


def test_every_difference_is_met(campaign: Campaign) -> None:
    """A row that explains nothing any more has to go."""
    assert sorted(row.id for row in DIFFERENCES if not campaign.explained[row.id]) == []
