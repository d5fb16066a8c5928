"""Run MLServer's own tests with and without the integration.

`python3 mlserver_own_tests.py CHECKOUT [PATH...]`. CHECKOUT is its repository at the tag of the
release that environment.py installs, because neither its archive nor its wheel has tests: `git
clone --branch 1.7.1 https://github.com/SeldonIO/MLServer`. They run in the environment "mlserver".
The exit code is 1 if the outcome of a test differs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import environment  # type: ignore[import-not-found]  # next to this script

PATHS = [
    *("tests/codecs", "tests/test_raw.py", "tests/test_types.py", "tests/batching"),
    *("tests/rest/test_codecs.py", "tests/rest/test_endpoints.py", "tests/rest/test_responses.py"),
    *("tests/grpc/test_codecs.py", "tests/grpc/test_converters.py", "tests/grpc/test_servicers.py"),
]
EXPECTED = {
    "tests.grpc.test_servicers::test_server_metadata": "the metadata announces the extension",
    "tests.rest.test_endpoints::test_metadata": "the metadata announces the extension",
}
"""The tests whose outcome differs, and the reason."""

# Its tests were written for numpy 1.
PLAIN = "import numpy\n\nnumpy.NaN = numpy.nan\n"
INTEGRATION = "import plain\nfrom tensorwire.integrations import mlserver\n\nmlserver.install()\n"

Outcomes = dict[str, str]


def main() -> None:
    if len(sys.argv) < 2 or not Path(sys.argv[1], "tests").is_dir():
        sys.exit("usage: mlserver_own_tests.py CHECKOUT [PATH...]")
    folder = environment.folder_of("mlserver")
    environment.set_up("mlserver", folder)
    with TemporaryDirectory() as name:
        work = Path(name)
        # Without the package itself, because it would be imported instead of the installed one.
        shutil.copytree(Path(sys.argv[1], "tests"), work / "tests")
        shutil.copy2(Path(sys.argv[1], "pyproject.toml"), work)
        (work / "plain.py").write_text(PLAIN)
        (work / "integration.py").write_text(INTEGRATION)
        python = environment.interpreter(folder)
        outcomes = [run(python, work, plugin, sys.argv[2:] or PATHS) for plugin in PLUGINS]
    sys.exit(report(*outcomes))


PLUGINS = ("plain", "integration")


def run(python: Path, work: Path, plugin: str, paths: list[str]) -> Outcomes:
    """Run the tests, and return the outcome of each."""
    result = work / f"{plugin}.xml"
    options = ["-q", "-p", plugin, "-p", "no:cacheprovider", "-W", "ignore", f"--junitxml={result}"]
    subprocess.run(
        [str(python), "-m", "pytest", *options, *paths],
        cwd=work,
        env={**environment.clean_environ(), "PYTHONPATH": str(work)},
        check=False,
    )
    return {
        f"{case.get('classname')}::{case.get('name')}": next(
            (child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed"
        )
        for case in ElementTree.parse(result).iter("testcase")
    }


def report(without: Outcomes, found: Outcomes) -> int:
    """Print the differences, and return the exit code."""
    names = sorted(without.keys() | found.keys())
    different = [name for name in names if without.get(name) != found.get(name)]
    for name in different:
        why = EXPECTED.get(name, "unexpected")
        print(f"{name}: {without.get(name)} without, {found.get(name)} with: {why}")
    n_passed = sum(outcome == "passed" for outcome in found.values())
    print(f"{n_passed} of {len(found)} pass with tensorwire")
    return int(not n_passed or any(name not in EXPECTED for name in different))


if __name__ == "__main__":
    main()
