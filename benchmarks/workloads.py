"""WORKLOADS: the messages that are measured, by name. To add one, add a line.

Made when asked for, since some are large; the last one is kept. Nobody writes into its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Part = tuple[str, NDArray[Any], str, list[int], bool]

DATATYPES = {
    **{"|b1": "BOOL", "|O": "BYTES", "<f2": "FP16", "<f4": "FP32", "<f8": "FP64"},
    **{"|i1": "INT8", "<i2": "INT16", "<i4": "INT32", "<i8": "INT64"},
    **{"|u1": "UINT8", "<u2": "UINT16", "<u4": "UINT32", "<u8": "UINT64"},
}


@dataclass(frozen=True)
class Message:
    """Arrays by name, and which of them travel in the JSON."""

    arrays: Arrays
    as_json: frozenset[str] = frozenset()

    @cached_property
    def parts(self) -> list[Part]:
        """Name, array, datatype, shape and whether it is binary, of each array.

        They are computed before the measurement, because a user would write them as literals.
        """
        return [
            (name, array, DATATYPES[array.dtype.str], list(array.shape), name not in self.as_json)
            for name, array in self.arrays.items()
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; of BYTES their elements."""
        return sum(
            sum(map(len, array.flat)) if array.dtype.kind == "O" else array.nbytes
            for array in self.arrays.values()
        )


def floats(*shape: int, dtype: str = "<f4") -> NDArray[Any]:
    """0, 1, 2 ... 2047, 0, 1 ...: exact in every float."""
    return (np.arange(np.prod(shape), dtype=np.int64) % 2048).astype(dtype).reshape(shape)


def texts(n: int, low: int, high: int) -> NDArray[np.object_]:
    """Elements of ``low`` to ``high`` bytes, all lengths alike often, in no order."""
    rng = np.random.default_rng(7)
    letters = rng.integers(97, 123, high, np.uint8).tobytes()
    return objects([letters[:length] for length in rng.integers(low, high, n, endpoint=True)])


def sentences(n: int) -> NDArray[np.object_]:
    """UTF-8 of one, two, three and four bytes a character, 1 to 12 words an element."""
    words = ["the", "quick", "brown", "Füchse", "прыгают", "über", "東京", "🙂", "café", "ελληνικά"]
    rng = np.random.default_rng(7)
    picks = rng.integers(0, len(words), (n, 12)).tolist()
    counts = rng.integers(1, 13, n).tolist()
    return objects(
        [
            " ".join([words[i] for i in pick[:count]]).encode()
            for pick, count in zip(picks, counts, strict=True)
        ]
    )


def objects(elements: list[bytes]) -> NDArray[np.object_]:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def one(array: NDArray[Any]) -> Message:
    return Message({"x": array})


def mixed() -> Message:
    """A picture in binary; its label, its numbers and its threshold in the JSON."""
    arrays = {
        "image": floats(3, 224, 224),
        "label": objects([b"a cat", "ein Hündchen".encode()]),
        "ids": np.arange(64, dtype=np.int64).reshape(4, 16),
        "threshold": np.array([0.5], np.float32),
    }
    return Message(arrays, frozenset(arrays) - {"image"})


def tiny_json() -> Message:
    return Message({"x": floats(4)}, frozenset({"x"}))


def masks() -> Message:
    return one(np.arange(64 * 2048).reshape(64, 2048) % 3 == 0)


BYTES: dict[str, Callable[[], Message]] = {
    "BYTES 300k x 0-40 B": lambda: one(texts(300_000, 0, 40)),
    "BYTES 100k x 100-300 B": lambda: one(texts(100_000, 100, 300)),
    "BYTES 8 x 8 MB": lambda: one(texts(8, 8_000_000, 8_000_000)),
    "BYTES 100k UTF-8 texts": lambda: one(sentences(100_000)),
}
WORKLOADS: dict[str, Callable[[], Message]] = {
    "128 B FP32": lambda: one(floats(32)),
    "100 MB FP32": lambda: one(floats(25_000_000)),
    "50 x 128 B FP32": lambda: Message({f"x{i}": floats(32) for i in range(50)}),
    "4 FP32 as JSON": tiny_json,
    "images FP32 [32,3,224,224]": lambda: one(floats(32, 3, 224, 224)),
    "logits FP16 [8,128,32000]": lambda: one(floats(8, 128, 32000, dtype="<f2")),
    "embeddings FP32 [1000,1536]": lambda: one(floats(1000, 1536)),
    "tokens INT64 [64,2048]": lambda: one(floats(64, 2048, dtype="<i8")),
    "masks BOOL [64,2048]": masks,
    "image and JSON": mixed,
    **BYTES,
}

# One FP32 tensor of 1 KB, 4 KB ... 1 GB.
UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
SIZES: dict[str, Callable[[], Message]] = {
    f"{(1 << power) // unit} {name}": lambda n=1 << (power - 2): one(floats(n))  # type: ignore[misc]
    for power in range(10, 31, 2)
    for name, unit in UNITS.items()
    if unit <= 1 << power < 1024 * unit
}

# What `--quick` keeps.
QUICK = {
    *("128 B FP32", "100 MB FP32", "50 x 128 B FP32", "4 FP32 as JSON", "BYTES 300k x 0-40 B"),
    *("tokens INT64 [64,2048]", "1 KB", "16 KB", "256 KB", "4 MB", "16 MB"),
}
LARGE = {"100 MB FP32", "16 MB"}  # of those, what takes some peers seconds


@lru_cache(1)
def message_of(workload: str) -> Message:
    """The message. KeyError for a name that nobody has."""
    return {**WORKLOADS, **SIZES}[workload]()


def size_of(workload: str) -> int:
    """The bytes of one of SIZES."""
    number, unit = workload.split()
    return int(number) * UNITS[unit]
