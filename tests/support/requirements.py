"""What a test does without the program that it needs."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(program: str, reason: object) -> NoReturn:
    """A skip with the reason; in CI a failure, but for what TENSORWIRE_LEFT_OUT names."""
    is_left_out = program in os.environ.get("TENSORWIRE_LEFT_OUT", "").split()
    if os.environ.get("CI") and not is_left_out:
        pytest.fail(str(reason))
    pytest.skip(str(reason))
