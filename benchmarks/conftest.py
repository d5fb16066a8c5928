"""Options, markers and fixtures of the benchmarks, and additions to pytest-benchmark's JSON."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

import tensorwire as tw

from .contenders import ENVIRONMENTS
from .measure import NOTES, Pairs, Slow
from .servers import Servers

MARKERS = {
    "quick": "measured by `python -m benchmarks --quick`",
    "large": "some packages need seconds for it",
    **{name: f"needs the environment of {name}" for name in ENVIRONMENTS},
}
PACKAGES = ["numpy", "tritonclient", "kserve", "mlserver", "torch", "pyarrow", "safetensors"]
PACKAGES += ["uvicorn", "granian", "urllib3", "orjson", "msgspec"]
SERVER_VERSIONS: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    Slow.seconds = 2 * float(config.getoption("benchmark_max_time"))
    Slow.rounds = min(3, config.getoption("benchmark_min_rounds"))
    Pairs.n_pairs = 5 * max(2, config.getoption("benchmark_min_rounds"))


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started
        SERVER_VERSIONS.update(started.versions())


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    output_json["notes"] = NOTES
    output_json["versions"] = versions()


def versions() -> dict[str, str]:
    """Return the versions of Python, tensorwire and all installed packages that are measured."""
    found = {"python": platform.python_version(), "tensorwire": tw.__version__}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found | SERVER_VERSIONS
