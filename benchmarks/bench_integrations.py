"""Other packages with the codec in them, and alone: every package, every case."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from . import drop_in_kserve, drop_in_mlserver, drop_in_tritonclient
from .contender import installed
from .drop_in import Case, is_same
from .measure import measure, measuring

# Each name is the package's, that of its module in tensorwire.integrations, and, where it has one
# of its own, that of its environment.
PACKAGES: Mapping[str, Mapping[str, Case]] = {
    "tritonclient": drop_in_tritonclient.CASES,
    "kserve": drop_in_kserve.CASES,
    "mlserver": drop_in_mlserver.CASES,
}
ENVIRONMENTS = {"kserve", "mlserver"}
ROWS = [(package, case) for package, cases in PACKAGES.items() for case in cases]
QUICK = {case for _, case in ROWS if "128 B" in case or "300k" in case or "4 MB" in case}


def environment_of(parameters: Mapping[str, object]) -> str:
    package = str(parameters["package"])
    return package if package in ENVIRONMENTS else ""


@pytest.mark.parametrize("with_tensorwire", [True, False], ids=["with tensorwire", "alone"])
@pytest.mark.parametrize(("package", "workload"), ROWS)
def test_drop_in(
    benchmark: BenchmarkFixture, package: str, workload: str, with_tensorwire: bool
) -> None:
    case = PACKAGES[package][workload]
    contender = f"{package} on tensorwire" if with_tensorwire else package
    with measuring(benchmark, f"drop in: {package}", workload, contender):
        made = case.prepare()
        expected = case.run(made)

        def right(found: object) -> None:
            assert is_same(found, expected)

        if not with_tensorwire:
            measure(benchmark, right, case.run, made)
            return
        with installed(f"tensorwire.integrations.{package}"):
            measure(benchmark, right, case.run_on_tensorwire or case.run, made)
