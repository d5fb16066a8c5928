"""Other packages with the codec in them, and alone: every package, every case."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from . import drop_in_tritonclient
from .drop_in import Case, is_same

# Each name is the package's, and that of its module in tensorwire.integrations.
PACKAGES: Mapping[str, Mapping[str, Case]] = {
    "tritonclient": drop_in_tritonclient.CASES,
}
ROWS = [(package, case) for package, cases in PACKAGES.items() for case in cases]


@pytest.mark.parametrize("with_tensorwire", [True, False], ids=["with tensorwire", "alone"])
@pytest.mark.parametrize(("package", "case"), ROWS)
def test_drop_in(
    benchmark: BenchmarkFixture, package: str, case: str, with_tensorwire: bool
) -> None:
    integration = import_module(f"tensorwire.integrations.{package}")
    made, run = PACKAGES[package][case].prepare(), PACKAGES[package][case].run
    expected = run(made)
    contender = f"{package} with tensorwire" if with_tensorwire else package
    benchmark.extra_info.update(table=f"drop in: {package}", workload=case, contender=contender)
    if with_tensorwire:
        integration.install()
    try:
        assert is_same(run(made), expected)
        del expected
        benchmark(run, made)
    finally:
        integration.uninstall()
