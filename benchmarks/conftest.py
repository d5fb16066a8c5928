"""Options, markers and fixtures of the benchmarks."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

import tensorwire as tw

from .contenders import ENVIRONMENTS
from .measure import NOTES, Pairs, Slow, Turns
from .servers import Servers

MARKERS = {
    "quick": "measured by `python -m benchmarks --quick`",
    "large": "some packages need seconds for it",
    **{name: f"needs the environment of {name}" for name in ENVIRONMENTS},
}
PACKAGES = ["numpy", "tritonclient", "kserve", "mlserver", "torch", "pyarrow", "safetensors"]
PACKAGES += ["uvicorn", "granian", "starlette", "urllib3", "orjson", "msgspec"]
PACKAGES += ["msgpack", "msgpack-numpy", "tenso", "multipart"]
SERVER_VERSIONS: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measured", help="a file for what is measured, in lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    Slow.seconds = 2 * float(config.getoption("benchmark_max_time"))
    Slow.rounds = min(3, config.getoption("benchmark_min_rounds"))
    Pairs.n_pairs = 5 * max(2, config.getoption("benchmark_min_rounds"))
    Turns.max_turns = 3 * config.getoption("benchmark_min_rounds")
    Turns.turn_seconds = float(config.getoption("benchmark_max_time")) / Turns.max_turns
    if path := config.getoption("measured"):
        config.pluginmanager.register(Reporter(path))


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started
        SERVER_VERSIONS.update(started.versions())


class Reporter:
    """Writes a line for the number of tests, one for each test, and one for the versions."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "w")  # noqa: SIM115 (closed when the process ends)
        self.n_notes = 0

    def write(self, **message: Any) -> None:
        print(json.dumps(message), file=self.file, flush=True)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.write(n_tests=len(session.items))

    def pytest_runtest_makereport(self, item: pytest.Function, call: pytest.CallInfo[None]) -> None:
        if call.when == "call":
            notes, self.n_notes = NOTES[self.n_notes :], len(NOTES)
            self.write(rows=rows_of(item.funcargs["benchmark"]), notes=notes)

    def pytest_sessionfinish(self) -> None:
        self.write(versions=versions())


def rows_of(benchmark: Any) -> list[dict[str, Any]]:
    """Return the row of a benchmark, or several rows if it measured several contenders."""
    if benchmark.stats is None or benchmark.has_error:
        return []
    info, stats = dict(benchmark.extra_info), benchmark.stats.stats
    contenders = info.pop("contenders", None)
    if contenders is None:
        rows = [{"median": stats.median, "iqr": stats.iqr, "rounds": stats.rounds, **info}]
    else:
        rows = [{**row, **info, "contender": name} for name, row in contenders.items()]
    # No more than four digits are reproducible.
    return [
        {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]


def versions() -> dict[str, str]:
    """Return the versions of Python, tensorwire and all installed packages that are measured."""
    found = {"python": platform.python_version(), "tensorwire": tw.__version__}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found | SERVER_VERSIONS
