"""What all benchmarks share: rows, packages that may be missing, copies, and turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from threading import Condition
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # servers run where it is not installed
    from pytest_benchmark.fixture import BenchmarkFixture

ROOT = Path(__file__).resolve().parent.parent
# For processes that import `benchmarks` and `interop`.
PATHS = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
WARM_UP_SECONDS = 0.005
OURS, DROP_IN = "tensorwire", ", drop-in"
NONE = SimpleNamespace(install=lambda: None, uninstall=lambda: None)  # no drop-in replacement
# A contender is a context manager that yields the function that is measured.
Contender = Callable[[], AbstractContextManager[Callable[[], Any]]]


def module(name: str) -> Any:
    """Import an optional module, or skip the test."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient without its extra
        pytest.skip(f"{name} cannot be imported: {str(error).splitlines()[0]}")


def integration(package: str) -> Any:
    module(package)
    return module(f"tensorwire.integrations.{package}")


@contextmanager
def installed(package: str) -> Iterator[None]:
    """Install the drop-in replacement for a package in this context."""
    integration(package).install()
    try:
        yield
    finally:
        integration(package).uninstall()


@contextmanager
def row(benchmark: BenchmarkFixture, group: str, contender: str) -> Iterator[None]:
    """Name what the test measures. If another package fails, skip the test with the reason."""
    benchmark.group = group
    benchmark.extra_info["contender"] = contender
    try:
        yield
    except Exception as error:
        if is_ours(contender):
            raise
        pytest.skip(f"{contender}: {type(error).__name__}: {error}"[:200])


def is_ours(contender: str) -> bool:
    return contender.startswith(OURS) or contender.endswith(DROP_IN)


def in_turns(
    benchmark: BenchmarkFixture,
    contenders: Mapping[str, Contender],
    rounds: int,
    check: Callable[[Any], None],
    drop_in: Any = NONE,
) -> None:
    """Measure contenders in turns: each has one round, then each has its second, and so on.

    Each has a thread, in which `benchmark.pedantic` waits for its turn before each round.
    ``drop_in`` is an integration that is installed in the turns of those that are named so.
    """
    turns, changed = deque(contenders), Condition()

    def begin(name: str, function: Callable[[], Any] | None = None) -> None:
        with changed:
            changed.wait_for(lambda: turns[0] == name)
        (drop_in.install if name.endswith(DROP_IN) else drop_in.uninstall)()
        # The first calls of a turn are slower: Python adapts its bytecode to replaced functions.
        end_of_warm_up = time.perf_counter() + WARM_UP_SECONDS
        while function is not None:
            function()
            if time.perf_counter() > end_of_warm_up:
                break

    def end(action: Callable[..., None], *arguments: Any) -> None:
        drop_in.uninstall()
        with changed:
            action(*arguments)
            changed.notify_all()

    def run(name: str, each: BenchmarkFixture) -> None:
        try:
            begin(name)
            with row(each, str(benchmark.group), name), contenders[name]() as function:
                check(function())
                pass_on, setup = partial(end, turns.rotate, -1), partial(begin, name, function)
                pass_on()
                each.pedantic(function, setup=setup, teardown=pass_on, rounds=rounds)  # type: ignore[no-untyped-call]
                begin(name)  # so that nothing is closed during the turn of another contender
        finally:
            end(turns.remove, name)

    with ThreadPoolExecutor(len(contenders)) as pool:
        raise_first(pool.submit(run, *each) for each in fixtures(benchmark, contenders).items())


def fixtures(benchmark: BenchmarkFixture, names: Iterable[str]) -> dict[str, BenchmarkFixture]:
    """Return the fixture for the first name, and copies of it, which have rows of their own."""
    found = {name: copy(benchmark) if i else benchmark for i, name in enumerate(names)}
    for name, fixture in found.items():
        fixture.name, fixture.fullname = (f"{n} {name}" for n in (fixture.name, fixture.fullname))
        fixture.extra_info = dict(benchmark.extra_info)
    return found


def raise_first(futures: Iterable[Future[None]]) -> None:
    """Wait for all. Raise the first error, or else the reason why the first one was skipped."""
    errors = [error for error in [each.exception() for each in list(futures)] if error]
    for error in sorted(errors, key=lambda error: isinstance(error, pytest.skip.Exception)):
        raise error


@cache
def counted(source: str, operation: str, contender: str, kind: str = "FP32") -> dict[str, float]:
    """Count the copies of a contender, and its peak memory, in a process of its own.

    ``source`` is the benchmark module whose ``OPERATIONS`` has the operation. Skips the test if the
    contender cannot do it.
    """
    command = [sys.executable, "-m", "benchmarks.memory", source, operation, contender, kind]
    run = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(run.stderr[-1000:])
    found: dict[str, Any] = json.loads(run.stdout)
    if "skipped" in found:
        pytest.skip(str(found["skipped"]))
    return found


def copies(
    contender: str, source: str, operation: str, expected: float, kind: str = "FP32"
) -> float:
    """Count the copies of a contender, and check that their number is the expected one."""
    found = counted(source, operation, contender, kind)["copied"]
    assert found == pytest.approx(expected, rel=0.1, abs=0.05), f"{contender} copies {found} bytes"
    return found
