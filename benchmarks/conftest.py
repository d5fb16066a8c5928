"""Which of the benchmarks run, and who is told."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import pytest

import tensorwire as tw

from .contenders import CONTENDERS
from .measure import Listener, Slow
from .servers import Servers
from .workloads import LARGE, QUICK

PACKAGES = ["numpy", "tritonclient", "kserve", "mlserver", "pyarrow", "safetensors"]
PACKAGES += ["uvicorn", "granian", "urllib3", "orjson", "msgspec"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tensorwire's benchmarks")
    group.addoption("--quick", action="store_true", help="the workloads in QUICK alone")
    group.addoption("--environment", default="", help="the peers of this environment alone")
    group.addoption("--listener", type=int, help="a file descriptor that is told what happens")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        Slow.seconds, Slow.rounds = 0.1, 1
    if (descriptor := config.getoption("--listener")) is not None:
        Listener.stream = os.fdopen(descriptor, "w", buffering=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        (kept if is_wanted(item, config) else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


def is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    assert isinstance(item, pytest.Function)
    parameters = item.callspec.params
    environment_of = getattr(item.module, "environment_of", environment_of_contender)
    environment = environment_of(parameters)
    if environment != config.getoption("--environment"):
        return False
    quick = getattr(item.module, "QUICK", QUICK) - (LARGE if environment else set())
    return not config.getoption("--quick") or parameters.get("workload", "") in {*quick, ""}


def environment_of_contender(parameters: Mapping[str, object]) -> str:
    contender = CONTENDERS.get(str(parameters.get("contender")))
    return contender.environment if contender is not None else ""


def pytest_collection_finish(session: pytest.Session) -> None:
    Listener.tell(total=len(session.items), versions=versions())


def pytest_runtest_logstart(nodeid: str) -> None:
    Listener.tell(start=nodeid)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started
        Listener.tell(versions=started.versions())


def versions() -> dict[str, str]:
    """Of what is measured, as far as it is installed here."""
    found = {"python": platform.python_version(), "tensorwire": tw.__version__}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
