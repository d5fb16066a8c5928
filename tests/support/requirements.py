"""Optional programs and packages that tests need, and the tests that CI may skip."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, NoReturn

import pytest

Report = pytest.TestReport | pytest.CollectReport
LEFT_OUT = "left out: "
# How the reasons begin for which CI accepts that a test is skipped. The others depend on where the
# tests run.
EXPECTED = (LEFT_OUT, "this machine ", "this Python ", "this checkout ")


def skip_or_fail(program: str, reason: object) -> NoReturn:
    """Skip the test; in CI fail it, unless TENSORWIRE_LEFT_OUT names the program.

    If a module calls this function while it is imported, it applies to all of its tests.
    """
    if program in os.environ.get("TENSORWIRE_LEFT_OUT", "").split():
        pytest.skip(f"{LEFT_OUT}{reason}", allow_module_level=True)
    if os.environ.get("CI"):
        pytest.fail(str(reason))
    pytest.skip(str(reason), allow_module_level=True)


def package(name: str) -> Any:
    """Import a package. If it is not installed, skip or fail the test or the module."""
    try:
        return import_module(name)
    except ImportError as error:
        skip_or_fail(name.partition(".")[0], f"{name} cannot be imported: {error}")


def optional(name: str) -> Any:
    """Import a package that only some of the tests of a module need."""
    try:
        return import_module(name)
    except ImportError:
        return _NotInstalled(name)


class _NotInstalled:
    """Stands for a package that is not installed. The tests that use it are skipped or fail."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        if not attribute.startswith("_"):  # pytest looks for such attributes in a module's globals
            package(self._name)
        raise AttributeError(attribute)


def fail_if_unexpected(report: Report) -> None:
    """In CI, change the outcome of a skipped test to a failure, unless the reason is expected."""
    if not (os.environ.get("CI") and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(EXPECTED):
        report.outcome = "failed"
        report.longrepr = f"CI does not skip tests for this reason: {reason}"


def list_skipped(report: Report) -> None:
    """Append the id of a skipped test or module to the file TENSORWIRE_SKIPPED.

    .ci/run runs these tests afterwards, with everything that they need.
    """
    if (name := os.environ.get("TENSORWIRE_SKIPPED")) and report.skipped:
        with open(name, "a") as file:
            file.write(f"{report.nodeid}\n")
