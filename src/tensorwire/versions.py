"""Versions of other packages."""

from __future__ import annotations

import re


def release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: ``2.73.0rc1`` gives (2, 73, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()
