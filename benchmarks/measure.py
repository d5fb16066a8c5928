"""Measure one table cell: first check the result of a contender, then measure it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from .contenders import Missing, Unchanged, Unsupported
from .workloads import Message

OURS = "tensorwire"

# The cells that were not measured: table, workload, contender, kind and text of the reason.
# `conftest.py` passes them on with the results.
NOTES: list[dict[str, str]] = []
MISSING = "not installed"
KINDS = {
    Missing: MISSING,
    Unchanged: "unchanged",
    Unsupported: "unsupported",
    AssertionError: "wrong result",
}


def marked(names: Iterable[str], **markers: Container[str]) -> list[Any]:
    """Return parameters for ``pytest.mark.parametrize``.

    A name gets each marker whose container includes it: ``marked(WORKLOADS, quick=QUICK)``.
    """
    return [
        pytest.param(
            name,
            id=name,
            marks=[getattr(pytest.mark, m) for m, chosen in markers.items() if name in chosen],
        )
        for name in names
    ]


@contextmanager
def noting(
    benchmark: BenchmarkFixture, table: str, workload: str, contender: str
) -> Iterator[None]:
    """Note why this table cell cannot be measured, and continue after the context.

    Errors of tensorwire are raised. With ``--benchmark-disable``, those of other packages are
    raised as well.
    """
    try:
        yield
    except Exception as error:
        kind = next((kind for t, kind in KINDS.items() if isinstance(error, t)), "error")
        is_failure = not isinstance(error, Missing | Unsupported)
        text = (str(error).splitlines() or [""])[0]
        if is_failure:
            text = f"{type(error).__name__}: {text}"
        place = {"table": table, "workload": workload, "contender": contender}
        NOTES.append({**place, "kind": kind, "text": text})
        if is_failure and (benchmark.disabled or contender.startswith(OURS)):
            raise


@contextmanager
def measuring(
    benchmark: BenchmarkFixture, table: str, workload: str, contender: str, **info: Any
) -> Iterator[None]:
    """Name the table cell that the test measures. If that is not possible, note it and skip."""
    benchmark.extra_info.update(table=table, workload=workload, contender=contender, **info)
    n_notes = len(NOTES)
    with noting(benchmark, table, workload, contender):
        yield
    if len(NOTES) > n_notes:
        pytest.skip(f"{NOTES[-1]['kind']}: {NOTES[-1]['text']}")


class Slow:
    """Settings for slow calls, which `conftest.py` derives from pytest-benchmark's options.

    A call that takes longer than ``seconds`` is measured in a fixed number of rounds, and one that
    takes longer than ``long_seconds`` is measured once.
    """

    seconds = 0.5
    long_seconds = 3.0
    rounds = 3


def measure(
    benchmark: BenchmarkFixture,
    check: Callable[[Any], None],
    function: Callable[..., Any],
    *args: Any,
) -> None:
    """Call ``check`` with the result of ``function(*args)``, then measure ``function(*args)``."""
    start = perf_counter()
    found = function(*args)
    seconds = perf_counter() - start
    check(found)
    del found
    if Slow.seconds < seconds < Slow.long_seconds:  # perhaps only the first call is slow
        start = perf_counter()
        function(*args)
        seconds = perf_counter() - start
    if seconds > Slow.seconds:
        rounds = Slow.rounds if seconds < Slow.long_seconds else 1
        benchmark.pedantic(function, args, rounds=rounds)  # type: ignore[no-untyped-call]
    else:
        benchmark(function, *args)


def measure_with_new(
    benchmark: BenchmarkFixture,
    check: Callable[[Any], None],
    function: Callable[[Any], Any],
    make: Callable[[], Any],
) -> None:
    """Check and measure ``function(make())``, where each round has an argument of its own.

    The time to make it does not count.
    """
    check(function(make()))
    rounds = 3 if benchmark.disabled else 10 * Slow.rounds
    benchmark.pedantic(function, setup=lambda: ((make(),), {}), rounds=rounds)  # type: ignore[no-untyped-call]


class Pairs:
    """The setting for `measure_pairs`, which `conftest.py` derives from pytest-benchmark's options.

    More pairs are not more accurate, because CPython optimizes code less after many switches.
    """

    n_pairs = 25


def measure_pairs(
    function: Callable[..., Any],
    argument: Any,
    switch: Callable[[bool], None],
    round_seconds: float,
) -> tuple[dict[str, float], dict[str, float]]:
    """Measure ``function(argument)`` in two states, in turns, and return the row of each state.

    ``switch(False)`` and ``switch(True)`` change the state. A round in either state takes at least
    half of ``round_seconds``. The second row has the ``ratio`` of the speeds, which is the median
    over pairs of rounds that follow each other. It is therefore accurate even if the speed of the
    machine changes during the measurement.
    """
    n_calls: dict[bool, int] = {}
    for is_second in (False, True):
        switch(is_second)
        n_calls[is_second] = calls_per_round(function, argument, round_seconds)
    rounds: dict[bool, list[float]] = {False: [], True: []}
    for i in range(Pairs.n_pairs):
        for is_second in ((False, True), (True, False))[i % 2]:
            switch(is_second)
            n = n_calls[is_second]
            seconds_of(function, argument, n // 10 + 3)  # CPython specializes the code again
            rounds[is_second].append(seconds_of(function, argument, n) / n)
    switch(False)
    first, second = (summary(rounds[is_second]) for is_second in (False, True))
    second["ratio"] = median(a / b for a, b in zip(rounds[False], rounds[True], strict=True))
    return first, second


@dataclass
class Turns:
    """The turns of one contender: how many there are, their calls, and the times of a call."""

    n_turns: int
    n_calls: int
    seconds: list[float] = field(default_factory=list)

    # The settings for a call that is not slow, which `conftest.py` derives from the options.
    max_turns: ClassVar[int] = 15
    turn_seconds: ClassVar[float] = 0.01

    @classmethod
    def of(cls, seconds: float) -> Turns:
        """Plan the turns for a call that takes this time."""
        if seconds > Slow.long_seconds:
            return cls(1, 1)
        if seconds > Slow.seconds:
            return cls(Slow.rounds, 1)
        return cls(cls.max_turns, max(1, round(cls.turn_seconds / seconds)))


def measure_turns(
    benchmark: BenchmarkFixture,
    table: str,
    workload: str,
    contenders: Mapping[str, Callable[[], AbstractContextManager[Callable[[], Any]]]],
    check: Callable[[Any], None],
    *,
    base_only: bool = False,
) -> None:
    """Measure all contenders of a row in turns, so that changes of the machine affect all of them.

    A contender yields the function that is measured. What it needs exists only during its turn: a
    connection, for example, or the replaced functions of a package. The ``relative_time`` of a row
    is the median of the ratios to the first contender in the same round. With ``base_only``, the
    first one has no row, because another environment measures it.
    """
    running: dict[str, Turns] = {}
    for name, start in contenders.items():
        with noting(benchmark, table, workload, name), start() as function:
            check(function())
            running[name] = Turns.of(seconds_of(lambda _: function(), None, 1))
    if not running:
        pytest.skip(f"{NOTES[-1]['kind']}: {NOTES[-1]['text']}")
    if benchmark.disabled:
        benchmark(lambda: None)
        return

    def take_turns() -> None:
        for i in range(max(turns.n_turns for turns in running.values())):
            # The caches have what the last contender has read, which should not always be the same.
            for name in Random(i).sample(list(running), len(running)):
                if i < running[name].n_turns:
                    take_turn(name, running[name])

    def take_turn(name: str, turns: Turns) -> None:
        del running[name]  # a contender that fails has no other turn
        with noting(benchmark, table, workload, name), contenders[name]() as function:
            seconds_of(lambda _: function(), None, 1 + turns.n_calls // 2)  # slower than others
            seconds = seconds_of(lambda _: function(), None, turns.n_calls)
            turns.seconds.append(seconds / turns.n_calls)
            running[name] = turns

    benchmark.pedantic(take_turns)  # type: ignore[no-untyped-call]
    base = running.get(next(iter(contenders)))
    rows = {}
    for name in list(contenders)[base_only:]:
        if name in running:
            rows[name] = summary(running[name].seconds)
            if base is not None:
                pairs = zip(running[name].seconds, base.seconds, strict=False)
                rows[name]["relative_time"] = median(a / b for a, b in pairs)
    benchmark.extra_info.update(table=table, workload=workload, contenders=rows)


def calls_per_round(function: Callable[..., Any], argument: Any, round_seconds: float) -> int:
    """Return a number of calls that take at least half of ``round_seconds``."""
    n_calls = 1
    # The shorter of two times, because the first call may be slow, or interrupted.
    while min(seconds_of(function, argument, n_calls) for _ in range(2)) < round_seconds / 2:
        n_calls *= 2
    return n_calls


def seconds_of(function: Callable[..., Any], argument: Any, n_calls: int) -> float:
    start = perf_counter()
    for _ in range(n_calls):
        function(argument)
    return perf_counter() - start


def summary(seconds: list[float]) -> dict[str, float]:
    quarters = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [0.0] * 3
    return {"median": median(seconds), "iqr": quarters[2] - quarters[0], "rounds": len(seconds)}


def check_arrays(found: list[NDArray[Any]], message: Message) -> None:
    """Raise AssertionError unless the arrays are equal to those of the message."""
    for array, (name, expected) in zip(found, message.arrays.items(), strict=True):
        assert is_same_array(array, expected), f"array {name!r} differs from what was sent"


def is_same_array(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Compare dtype, shape and elements. ``str`` elements equal their UTF-8 bytes."""
    if expected.dtype.kind == "O":
        return found.shape == expected.shape and as_bytes(found) == as_bytes(expected)
    return found.dtype == expected.dtype and np.array_equal(found, expected)


def as_bytes(array: NDArray[Any]) -> list[bytes]:
    return [e.encode() if isinstance(e, str) else e for e in array.ravel().tolist()]


def has_copies(arrays: Iterable[NDArray[Any]], body: bytes) -> bool:
    """Return whether an array of numbers does not share its memory with the body."""
    whole = np.frombuffer(body, np.uint8)
    return not all(np.shares_memory(array, whole) for array in arrays if array.dtype.kind in "fiu")


def read_elements(arrays: list[NDArray[Any]]) -> None:
    """Read every element once."""
    for array in arrays:
        if array.dtype.kind == "O":
            sum(map(len, array.ravel().tolist()))
        else:
            np.bitwise_xor.reduce(array.view(f"u{array.itemsize}"), axis=None)


def require_memory(nbytes: int) -> None:
    """Raise Unsupported unless ``nbytes`` of memory are available without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = 1024 * next(int(line.split()[1]) for line in lines if "MemAvailable" in line)
    if nbytes > available:
        raise Unsupported(f"needs {nbytes >> 20} MB of memory, {available >> 20} MB are available")
