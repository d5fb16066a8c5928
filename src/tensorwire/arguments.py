"""Checks of the arguments of servers and clients. Each error names the argument and its value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .errors import format_number, format_value


def check_type(name: str, value: Any, kind: type, description: str) -> None:
    """Raise TypeError unless an argument has the described type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {description}, not {type(value).__name__}")


def check_integer(name: str, value: Any, minimum: int) -> int:
    """Return an argument as an int. Raises TypeError, and ValueError if it is too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    number = int(value)
    if number < minimum:
        raise ValueError(f"{name} must be {minimum} or more, not {format_number(number)}")
    return number


def check_seconds(name: str, value: Any, *, or_none: bool = True) -> None:
    """Raise TypeError or ValueError unless an argument is a positive, finite number or None."""
    if value is None and or_none:
        return
    wanted = f"{name} must be a positive number of seconds{' or None' if or_none else ''}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{wanted}, not {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"{wanted}, not {format_value(value)}")
