"""Sizes and example counts of tests, which CI reduces where tests run several times slower.

The environment variable TENSORWIRE_TEST_SCALE is the factor, 1 by default. `noxfile.py` sets it
for the tests under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import os

SCALE = float(os.environ.get("TENSORWIRE_TEST_SCALE", "1"))


def scaled(n: int) -> int:
    """Return the size or count `n` times the scale, and at least 1."""
    return max(1, round(n * SCALE))
