"""Lists of numbers for which no datatype is given."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from ..signatures import Datatype

_MAX_RANK = 64  # dimensions of an array of numpy


def is_list_of_numbers(value: Any) -> bool:
    """Return whether a value is a list, or nested lists, that is empty or begins with a number."""
    if not isinstance(value, list | tuple):
        return False
    for _ in range(_MAX_RANK):  # a list may contain itself
        if not (isinstance(value, list | tuple) and value):
            break
        value = value[0]
    return isinstance(value, list | tuple | int | float | np.number | np.bool_)


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
