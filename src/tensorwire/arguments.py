"""The arguments of servers and clients: types, and checks whose errors name argument and value."""

from __future__ import annotations

from contextlib import suppress
from types import UnionType
from typing import Any, Literal, get_args

import numpy as np

from .errors import MAX_TEXT, format_number, format_value

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
]
"""The name of a datatype of the protocol."""

Nonfinite = Literal["null", "literal", "error"]
"""How to write numbers that are not finite as JSON."""

Selection = Literal["spec", "triton"]
"""Which outputs of a response are binary: see ``encode_response``."""

_MAX_RANK = 64  # dimensions of an array of numpy
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


def is_list_of_numbers(value: Any) -> bool:
    """Return whether a value is a list, or nested lists, that is empty or begins with a number."""
    if not isinstance(value, list | tuple):
        return False
    for _ in range(_MAX_RANK):  # a list may contain itself
        if not (isinstance(value, list | tuple) and value):
            break
        value = value[0]
    return isinstance(value, list | tuple | int | float | np.number | np.bool_)


def format_cast(name: str, datatype: str, wanted: Any) -> str:
    """Return the expression that casts an array of numbers to another datatype, or ""."""
    is_known = wanted not in (datatype, "BF16", "BYTES") and wanted in get_args(Datatype)
    if datatype == "BYTES" or not is_known:
        return ""
    array = name if name.isidentifier() and len(name) <= MAX_TEXT else "array"
    return f'{array}.astype("{wanted.lower().replace("fp", "float")}")'


def choose_datatype(values: Any) -> tuple[Any, Datatype | None]:
    """Return the data and the datatype for a Tensor of a list of numbers, or of nested lists.

    The data is an array of the dtype that numpy chooses, unless that rounds integers. Otherwise, it
    is the list, for which Tensor reports the first mistake.
    """
    with suppress(ValueError):  # the lists have different sizes
        array = np.asarray(values)
        is_float64 = array.dtype == np.float64
        # numpy makes floats or objects of integers if only some of them exceed INT64.
        if (array.dtype.kind == "O" or (is_float64 and (array >= 2**63).any())) and all(
            isinstance(item, int | np.integer) for item in np.asarray(values, object).flat
        ):
            return values, "UINT64"
        if array.dtype.kind in "biuf":
            return array, None
    return values, "FP64"
