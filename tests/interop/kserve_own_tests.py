"""Run KServe's published tests with and without the integration: `python3 kserve_own_tests.py`.

They run in the environment "kserve_tests" of environment.py, which is set up if needed. The exit
code is 1 if the outcome of a test differs. `--version V` uses another version of KServe and of its
tests; the environment is then created anew for the next run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import environment  # type: ignore[import-not-found]  # next to this script

NAME = "kserve_tests"
FILES = [
    "infer_type",
    "server",
    "grpc_server",
    "inference_client",
    "inference_client_factory",
    "rest_server",
    "numpy_codec",
    "model_server",
    "model_repository_extension",
    "header_forwarding",
]
# The published archive lacks this file. It has an application with KServe's routes for the whole
# session. It also stops the servers of failed tests, which would block their port and pytest.
CONFTEST = """\
import multiprocessing

import pytest
from kserve import ModelRepository, ModelServer
from kserve.protocol.rest.server import RESTServer


@pytest.fixture(scope="session")
def server():
    made = ModelServer(registered_models=ModelRepository())
    RESTServer("kserve.model_server:app", made.dataplane, made.model_repository_extension,
               http_port=8080).create_application()
    yield made


def pytest_unconfigure():
    for process in multiprocessing.active_children():
        process.kill()
"""
PLUGIN = (
    "from tensorwire.integrations import kserve\nkserve.install()\nassert kserve.is_installed()\n"
)

Outcomes = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--version", help="test this version of KServe instead")
    version = parser.parse_args().version
    folder = environment.folder_of(NAME)
    environment.set_up(NAME, folder)
    python = environment.interpreter(folder)
    if version:
        environment.marker(folder).unlink()
        environment.pip(folder, f"kserve[ray]=={version}")
    with TemporaryDirectory() as work:
        unpack_tests(python, Path(work))
        tests = [f"test/test_{name}.py" for name in FILES]
        plain, ours = both(python, Path(work), tests)
        if differing := different(plain, ours):  # one of the tests waits 30 s for four workers
            print(f"again: {differing}")
            again = both(python, Path(work), differing)
            plain, ours = plain | again[0], ours | again[1]
    sys.exit(report(plain, ours))


def both(python: Path, work: Path, tests: list[str]) -> tuple[Outcomes, Outcomes]:
    return run(python, work, tests), run(python, work, ["-p", "integration", *tests])


def different(plain: Outcomes, ours: Outcomes) -> list[str]:
    return [test for test in {**plain, **ours} if plain.get(test) != ours.get(test)]


def unpack_tests(python: Path, work: Path) -> None:
    """Download the source archive of the installed version and unpack its tests."""
    script = "from importlib.metadata import version; print(version('kserve'))"
    version = subprocess.check_output([str(python), "-c", script], text=True).strip()
    command = [str(python), "-m", "pip", "download", "--quiet", "--no-binary=:all:", "--no-deps"]
    environment.run([*command, f"kserve=={version}", "--dest", str(work)])
    [archive] = work.glob("kserve-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(work, filter="data")
    tests = work / "test"
    (work / f"kserve-{version}" / "test").rename(tests)
    (tests / "__init__.py").touch()  # the tests import one another from the package `test`
    (tests / "conftest.py").write_text(CONFTEST)
    (work / "integration.py").write_text(PLUGIN)


def run(python: Path, work: Path, arguments: list[str]) -> Outcomes:
    """Run the tests, and return the outcome of each by its pytest id."""
    result = work / "result.xml"
    quiet = ["-q", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore"]
    subprocess.run(
        [str(python), "-m", "pytest", *quiet, f"--junit-xml={result}", *arguments],
        cwd=work,
        env=environment.clean_environ(),
        check=False,
    )
    outcomes = {}
    for case in ElementTree.parse(result).iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        package, module, *classes = str(case.get("classname")).split(".")
        test = "::".join([f"{package}/{module}.py", *classes, str(case.get("name"))])
        outcomes[test] = kinds[0] if kinds else "passed"
    return outcomes


def report(plain: Outcomes, ours: Outcomes) -> int:
    """Print the differences. Return 1 if there are any, or no tests."""
    differing = different(plain, ours)
    for test in differing:
        print(f"{test}: {plain.get(test)} without, {ours.get(test)} with the integration")
    for name, outcomes in (("without", plain), ("with", ours)):
        kinds = sorted(set(outcomes.values()))
        counted = ", ".join(f"{list(outcomes.values()).count(kind)} {kind}" for kind in kinds)
        print(f"{name}: {counted}")
    return 1 if differing or not plain else 0


if __name__ == "__main__":
    main()
