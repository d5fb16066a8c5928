"""The marker and the fixture of the benchmarks, and what the JSON file says about the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from .servers import Servers

PACKAGES = ["numpy", "tritonclient", "kserve", "mlserver", "pyarrow", "safetensors", "protobuf"]
PACKAGES += ["uvicorn", "grpcio", "orjson", "msgspec"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "large: takes seconds; `-m 'not large'` leaves it out")
    # As outside of pytest: MLServer calls deprecated methods of pydantic.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    machine_info["is_virtual"] = "hypervisor" in Path("/proc/cpuinfo").read_text()
    machine_info["packages"] = found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started
