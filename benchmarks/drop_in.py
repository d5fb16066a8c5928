"""The form of the cases of bench_integrations.py, and what makes two results the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """``run`` is measured, on what ``prepare`` made; it calls the package as programs do.

    ``run_on_tensorwire`` is what a program does with the same where the codec is, when it can do
    better there; its result is the same.
    """

    prepare: Callable[[], Any]
    run: Callable[[Any], Any]
    run_on_tensorwire: Callable[[Any], Any] | None = None


def is_same(one: Any, other: Any) -> bool:
    """Equal, with equal types, also within."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
