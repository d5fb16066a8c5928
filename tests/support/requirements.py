"""Optional programs and packages that tests need."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(program: str, reason: object) -> NoReturn:
    """Skip the test; in CI fail it, unless TENSORWIRE_LEFT_OUT names the program."""
    is_left_out = program in os.environ.get("TENSORWIRE_LEFT_OUT", "").split()
    if os.environ.get("CI") and not is_left_out:
        pytest.fail(str(reason))
    pytest.skip(str(reason))
