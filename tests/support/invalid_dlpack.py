"""DLPack producers with invalid structs: an array of numbers with some fields changed.

Only fields that a consumer can check are changed. Wrong pointers are not among them. A shape or
strides beyond the memory are so large that no memory has them, because the interface does not carry
the size of the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from support.dlpack_structs import IS_COPIED, READ_ONLY, USED, Producer

if TYPE_CHECKING:
    from support.strategies import Choices

LARGE = (2**61, 2**62, 2**63 - 1, -(2**63), -(2**62), -(2**61))  # too large for any memory

# The changed fields of the structs. The first producers are valid.
FIELD_CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"is_versioned": False},
    {"strides": None},
    {"deleter": None},
    {"byte_offset": 4, "shape": (1, 2)},
    {"shape": (2, 1), "strides": (1, 2**63 - 1)},
    {"shape": (2, 2), "strides": (0, 1)},
    {"shape": (2, 2), "strides": (2, 0)},
    {"shape": (2, 0, 2**62), "strides": (-(2**63), 2**63 - 1, 5), "ndim": 3},
    {"shape": (0,), "ndim": 1, "data": None},
    {"ndim": 0},
    {"ndim": 0, "shape": None, "strides": None},
    *({"ndim": ndim} for ndim in (-1, 65, 2**31 - 1, -(2**31))),
    {"shape": None},
    *({"shape": (2, n)} for n in (-1, *LARGE)),
    *({"shape": (n, 2), "strides": (1, 1)} for n in LARGE),
    *({"strides": (n, 1)} for n in LARGE),
    *({"strides": (2**60, n)} for n in LARGE),
    {"data": None},
    *({"byte_offset": n} for n in (2**63, 2**64 - 1)),
    *({"code": code} for code in (0, 1, 2, 4, 5, 6, 7, 17, 18, 255)),
    *({"bits": bits} for bits in (0, 1, 4, 64, 255)),
    *({"lanes": lanes} for lanes in (0, 2, 65535)),
    {"code": 6, "bits": 8},
    {"code": 4, "bits": 16},
    *({"device_type": kind} for kind in (0, 2, 3, 11, 13, -1, 2**31 - 1)),
    *({"major": major} for major in (0, 2, 2**32 - 1)),
    {"minor": 2**32 - 1},
    *({"flags": flags} for flags in (READ_ONLY, IS_COPIED, 4, 2**64 - 1)),
    *({"name": name} for name in (*USED.values(), b"arrow_array", b"", b"dltensor\xff")),
)


def producer(change: int, is_cached: bool) -> Producer:
    """Return the producer with one of FIELD_CHANGES. Its array is large enough for each of them."""
    array = np.arange(64, dtype="<i4")[:6].reshape(2, 3)
    changes = FIELD_CHANGES[change % len(FIELD_CHANGES)]
    return Producer(array, is_cached=is_cached, **changes)


def any_producer(c: Choices) -> Producer:
    return producer(c.below(len(FIELD_CHANGES)), is_cached=c.chance(50))
