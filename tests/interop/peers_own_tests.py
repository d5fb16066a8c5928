"""Run a package's own tests with and without its integration.

`python tests/interop/peers_own_tests.py PACKAGE PATH...` runs the tests in PATH (a checkout or an
unpacked source archive) without the integration, and with `tensorwire.integrations.PACKAGE`
installed before they are imported. All outcomes must be equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

PACKAGE_VARIABLE = "TENSORWIRE_INTEGRATION"
Outcomes = dict[str, str]


def pytest_configure() -> None:
    """Install the integration if the environment variable is set; this file is a pytest plugin."""
    if package := os.environ.get(PACKAGE_VARIABLE):
        import_module(f"tensorwire.integrations.{package}").install()


def outcomes(paths: list[str], package: str) -> Outcomes:
    """Return the outcome of each test, with the message of failures and errors."""
    with TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        options = ["-q", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
        options += ["-p", Path(__file__).stem, "-o", "addopts="]
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *paths],
            env={
                **os.environ,
                PACKAGE_VARIABLE: package,
                "PYTHONPATH": os.pathsep.join(
                    [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
                ),
            },
            check=False,
        )
        return {
            f"{case.get('classname')}::{case.get('name')}": ", ".join(
                f"{child.tag}: {child.get('message')}"
                for child in case
                if child.tag != "system-out"
            )
            or "passed"
            for case in ElementTree.parse(report).iter("testcase")
        }


def main(package: str, paths: list[str]) -> int:
    without, found = outcomes(paths, ""), outcomes(paths, package)
    names = sorted(without.keys() | found.keys())
    different = [name for name in names if without.get(name) != found.get(name)]
    for name in different:
        print(f"{name}\n    without: {without.get(name)}\n    with: {found.get(name)}")
    n_passed = sum(outcome == "passed" for outcome in found.values())
    print(f"{package}: {n_passed} of {len(found)} tests pass with tensorwire")
    print(f"{len(different)} of {len(names)} tests have a different outcome without tensorwire")
    return int(bool(different) or not n_passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
