"""One measurement: a contender is first found right; what it cannot do becomes a note."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TextIO

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from .missing import Missing, Unsupported
from .workloads import Message

OURS = "tensorwire"


class Listener:
    """Who is told, line by line, what is measured: `python -m benchmarks`, or nobody."""

    stream: TextIO | None = None

    @classmethod
    def tell(cls, **event: Any) -> None:
        if cls.stream is not None:
            print(json.dumps(event), file=cls.stream, flush=True)


@contextmanager
def measuring(
    benchmark: BenchmarkFixture, table: str, workload: str, contender: str, **info: Any
) -> Iterator[None]:
    """Name the row that is measured within.

    Missing, Unsupported, and in a real run any failure of a peer, skip it with a note. With
    ``--benchmark-disable``, and for ourselves, a failure stays one.
    """
    place = {"table": table, "workload": workload, "contender": contender}
    benchmark.extra_info.update(place, **info)
    Listener.tell(trying=place)
    try:
        yield
    except Missing as reason:
        Listener.tell(note={**place, "kind": "missing", "text": str(reason)})
        pytest.skip(str(reason))
    except Unsupported as reason:
        Listener.tell(note={**place, "kind": "cannot", "text": str(reason)})
        pytest.skip(str(reason))
    except Exception as error:
        kind = "wrong" if isinstance(error, AssertionError) else "fails"
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        Listener.tell(note={**place, "kind": kind, "text": text})
        if contender == OURS or benchmark.disabled:
            raise
        pytest.skip(f"{kind}: {text}")
    if benchmark.stats is not None:
        stats = benchmark.stats.stats
        times = {"median": stats.median, "iqr": stats.iqr, "rounds": stats.rounds}
        Listener.tell(row={**times, **benchmark.extra_info})


class Slow:
    """From when on a call is slow, and how often it is measured then (``--quick``: sooner, once).

    Once is enough, too, for what takes long.
    """

    seconds = 0.5
    long_seconds = 3.0
    rounds = 3


def measure(
    benchmark: BenchmarkFixture,
    right: Callable[[Any], None],
    function: Callable[..., Any],
    *args: Any,
) -> None:
    """Check what it returns with ``right``, then measure it."""
    began = perf_counter()
    found = function(*args)
    seconds = perf_counter() - began
    right(found)
    del found
    if Slow.seconds < seconds < Slow.long_seconds:  # or the first call alone was
        began = perf_counter()
        function(*args)
        seconds = perf_counter() - began
    if seconds > Slow.seconds:
        rounds = Slow.rounds if seconds < Slow.long_seconds else 1
        benchmark.pedantic(function, args, rounds=rounds)  # type: ignore[no-untyped-call]
    else:
        benchmark(function, *args)


def check(found: list[NDArray[Any]], message: Message) -> None:
    """The contender got it right, before anybody asks how fast."""
    for array, (name, expected) in zip(found, message.arrays.items(), strict=True):
        assert is_same(array, expected), f"{name} is not what was sent"


def is_same(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Equal in dtype, shape and elements; a text may come as ``str``."""
    if expected.dtype.kind == "O":
        elements = [e.encode() if isinstance(e, str) else e for e in found.ravel().tolist()]
        return found.shape == expected.shape and elements == expected.ravel().tolist()
    return found.dtype == expected.dtype and np.array_equal(found, expected)


def touch(found: list[NDArray[Any]]) -> None:
    """Read every element once."""
    for array in found:
        if array.dtype.kind == "O":
            sum(map(len, array.ravel().tolist()))
        else:
            np.bitwise_xor.reduce(array.view(f"u{array.itemsize}"), axis=None)
