"""The messages and arrays that are measured, by name.

To add a message, add a line to ``WORKLOADS``. Messages are created on demand, because some are
large, and the last one is cached. Benchmarks must not write to the arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Values = Mapping[str, Array | list[str]]
Part = tuple[str, Array, str, list[int], bool]

DATATYPES = {
    **{"|b1": "BOOL", "|O": "BYTES", "<f2": "FP16", "<f4": "FP32", "<f8": "FP64"},
    **{"|i1": "INT8", "<i2": "INT16", "<i4": "INT32", "<i8": "INT64"},
    **{"|u1": "UINT8", "<u2": "UINT16", "<u4": "UINT32", "<u8": "UINT64"},
}
DTYPES = {datatype: np.dtype(dtype) for dtype, datatype in DATATYPES.items()}


# --- arrays ---


def floats(*shape: int, dtype: str = "<f4") -> Array:
    """Return 0, 1, 2 ... 2047, 0, 1 ...: integers that FP16, FP32 and FP64 represent exactly."""
    return (np.arange(np.prod(shape), dtype=np.int64) % 2048).astype(dtype).reshape(shape)


def texts(n: int, low: int, high: int) -> NDArray[np.object_]:
    """Return ``n`` elements of ``low`` to ``high`` bytes, with uniformly distributed lengths."""
    rng = np.random.default_rng(7)
    letters = rng.integers(97, 123, high, np.uint8).tobytes()
    return objects([letters[:length] for length in rng.integers(low, high, n, endpoint=True)])


def sentences(n: int) -> NDArray[np.object_]:
    """Return ``n`` elements of 1 to 12 words in UTF-8, with characters of 1 to 4 bytes."""
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


def numbered_texts(n: int) -> list[str]:
    """Return ``n`` strings of 16 characters."""
    return [f"text number {i:04}" for i in range(n)]


def objects(elements: list[Any]) -> NDArray[np.object_]:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


# --- messages ---


@dataclass(frozen=True, eq=False)
class Message:
    """Arrays by name, and the names of those that are sent as JSON."""

    arrays: Arrays
    as_json: frozenset[str] = frozenset()

    @cached_property
    def parts(self) -> list[Part]:
        """Return the name, array, datatype, shape and whether it is binary, for each array.

        They are computed before the measurement, because a program would have them as literals.
        """
        return [
            (name, array, DATATYPES[array.dtype.str], list(array.shape), name not in self.as_json)
            for name, array in self.arrays.items()
        ]

    @property
    def nbytes(self) -> int:
        """Return the size of all arrays. For BYTES, length prefixes are not counted."""
        return sum(
            sum(map(len, array.flat)) if array.dtype.kind == "O" else array.nbytes
            for array in self.arrays.values()
        )


def one(array: Array) -> Message:
    return Message({"x": array})


def image_and_json() -> Message:
    """Return a message of a binary image, and its label, ids and threshold as JSON."""
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
    "BYTES 100k UTF-8 sentences": lambda: one(sentences(100_000)),
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
    "binary image and JSON": image_and_json,
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

# The workloads of a quick run, and those of them for which some contenders need seconds.
QUICK = {
    *("128 B FP32", "100 MB FP32", "50 x 128 B FP32", "4 FP32 as JSON", "BYTES 300k x 0-40 B"),
    *("tokens INT64 [64,2048]", "1 KB", "16 KB", "256 KB", "4 MB", "16 MB"),
}
LARGE = {"100 MB FP32", "16 MB"}


# Arrays and strings by name, as programs send them to services of their own.
VALUES: dict[str, Callable[[], Values]] = {
    "10k embeddings FP32 [1024] and ids": lambda: {
        "embeddings": floats(10_000, 1024),
        "ids": [f"document-{i:05}" for i in range(10_000)],
    },
    "3 camera images UINT8 [480,640,3] and a state": lambda: {
        **{f"image_{i}": floats(480, 640, 3, dtype="|u1") for i in range(3)},
        "state": floats(14),
    },
    "300k strings of 0-40 B": lambda: {
        "texts": [element.decode() for element in texts(300_000, 0, 40)]
    },
}


@lru_cache(1)
def message_of(workload: str) -> Message:
    """Return the message of this name. Raises KeyError for an unknown name."""
    return {**WORKLOADS, **SIZES}[workload]()


def nbytes_of_size(workload: str) -> int:
    """Return the number of bytes of one of ``SIZES``."""
    number, unit = workload.split()
    return int(number) * UNITS[unit]


# --- JSON tensors ---

INTEGERS = [f"{kind}{8 * n}" for kind in ("INT", "UINT") for n in (1, 2, 4, 8)]
JSON_DATATYPES = ["FP32", "FP64", *INTEGERS, "BOOL", "BYTES"]


def json_elements(datatype: str, n: int) -> Array:
    """Return random elements for a JSON tensor.

    Floats need all their digits, and integers cover the whole range of the datatype. Elements of
    BYTES are ``str``.
    """
    rng, dtype = np.random.default_rng(7), DTYPES[datatype]
    if datatype == "BYTES":
        return objects([text.decode() for text in texts(n, 0, 40).tolist()])
    if datatype == "BOOL":
        return rng.integers(0, 2, n).astype(bool)
    if dtype.kind == "f":
        return rng.standard_normal(n).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, n, dtype, endpoint=True)


def json_response(array: Array, datatype: str, *, ensure_ascii: bool = False) -> bytes:
    """Return a response whose only tensor is JSON; non-ASCII is escaped if ``ensure_ascii``."""
    values = array.tolist()
    if datatype == "FP32":  # servers write the shortest text that reads back as this float
        values = [float(str(value)) for value in array]
    entry = {"name": "x", "datatype": datatype, "shape": [len(array)], "data": values}
    header = {"model_name": "m", "outputs": [entry]}
    return json.dumps(header, separators=(",", ":"), ensure_ascii=ensure_ascii).encode()


# --- JSON strings ---

# Words, and what is between them. The characters take 1 byte of UTF-8; 1 and few 2; 3; 4 and 1; 1,
# and some of them are escaped.
VOCABULARIES = {
    "ASCII": ("the quick brown fox jumps over a lazy dog while it rains in the city", " "),
    "German": ("Füchse springen über den trägen Hund und schlafen danach größtenteils", " "),
    "Chinese": ("今天 天气 很好 我们 一起 去 公园 散步 然后 回家 做饭", "\N{FULLWIDTH COMMA}"),
    "emoji": ("🙂 👍 🎉 🚀 nice work 🦊 party 🌧 sun", " "),
    "escapes": ('she said "hello" to all and left without another word.\n\n', " "),
}


def strings(kind: str, mean_nbytes: int, n: int) -> list[str]:
    """Return ``n`` strings of words, whose lengths in UTF-8 vary around their mean.

    The lengths are distributed uniformly, from half to one and a half times the mean.
    """
    rng = np.random.default_rng(7)
    sentence, separator = VOCABULARIES[kind]
    words = sentence.split(" ")
    pool = separator.join(words[i] for i in rng.integers(0, len(words), 20_000))
    length = mean_nbytes * len(pool) / len(pool.encode())
    low = max(1, round(length / 2))
    lengths = rng.integers(low, max(low, round(1.5 * length)), n, endpoint=True)
    begins = rng.integers(0, len(pool) - 2 * round(length), n)
    ranges = zip(begins.tolist(), lengths.tolist(), strict=True)
    return [pool[begin : begin + length] for begin, length in ranges]


# --- headers ---


@dataclass(frozen=True)
class Envelope:
    """The fields of a message other than its tensors."""

    id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        """Return the id and the parameters, if there are any."""
        found: dict[str, Any] = {} if self.id is None else {"id": self.id}
        return {**found, "parameters": self.parameters} if self.parameters else found


def header_message(n_tensors: int, *, has_all_fields: bool) -> tuple[Message, Envelope]:
    """Return a message of binary tensors of 128 bytes, and its envelope.

    With all fields, the envelope has an id, parameters and requested outputs.
    """
    message = Message({f"x{i}": floats(32) for i in range(n_tensors)})
    if not has_all_fields:
        return message, Envelope()
    parameters = {"weight": 2, "temperature": 0.7, "user": "somebody", "stream": False}
    return message, Envelope("request-1234", parameters, [f"y{i}" for i in range(n_tensors)])
