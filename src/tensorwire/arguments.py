"""The arguments of servers and clients: checks whose errors name argument and value."""

from __future__ import annotations

from types import UnionType
from typing import Any, get_args

import numpy as np

from ._codec.signatures import Datatype
from .errors import MAX_TEXT, format_number, format_value

_MAX_SECONDS = 1e15  # 30 million years: times of a clock in float64 remain exact to 0.1 s


def check_type(name: str, value: Any, kind: type | UnionType, description: str) -> None:
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


def check_seconds(name: str, value: Any, *, or_none: bool = True) -> Any:
    """Return an argument that is a positive, finite number of seconds, or None.

    A number of numpy becomes one of Python, because a time in float32 is not exact. Raises
    TypeError and ValueError.
    """
    if value is None and or_none:
        return None
    wanted = f"{name} must be a positive number of seconds{' or None' if or_none else ''}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{wanted}, not {type(value).__name__}")
    if not 0 < value < _MAX_SECONDS:
        raise ValueError(f"{wanted}, not {format_value(value)}")
    return value if type(value) is int else float(value)


def format_cast(name: str, datatype: str, wanted: Any) -> str:
    """Return the expression that casts an array of numbers to another datatype, or ""."""
    is_known = wanted not in (datatype, "BF16", "BYTES") and wanted in get_args(Datatype)
    if datatype == "BYTES" or not is_known:
        return ""
    array = name if name.isidentifier() and len(name) <= MAX_TEXT else "array"
    return f'{array}.astype("{wanted.lower().replace("fp", "float")}")'
