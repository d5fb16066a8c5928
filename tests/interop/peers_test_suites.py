"""Run the test suites of other packages with and without the integrations.

`python3 peers_test_suites.py [PACKAGE ...]` takes the tests of each release in PEERS from its
source archive or repository, and runs them in the environment of the package (environment.py). They
pass if no test passes without the integration and fails with it, except those in EXPECTED. The exit
code is 1 otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import environment  # type: ignore[import-not-found]  # next to this script

MINUTES = 20  # after which a run is stopped

Outcomes = dict[str, str]  # pytest id: passed, skipped or failed


@dataclass(frozen=True)
class Peer:
    """A package and where its tests are."""

    name: str  # of the module in tensorwire.integrations
    environment: str
    requirement: str  # without the version
    releases: Mapping[str, str]  # the branch or tag of each, or "" for its source archive
    repository: str
    folder: str  # of the tests in the repository or archive; its last part is a package
    tests: tuple[str, ...]  # in the last part of `folder`
    files: Mapping[str, str] = field(default_factory=dict)  # to add
    setup: str = ""  # Python code to run before the tests, also without the integration


# KServe's published archive lacks this file. It has an application with KServe's routes for the
# whole session. It also stops the servers of failed tests, which would block their port and pytest.
KSERVE_CONFTEST = """\
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

# A plugin that writes the outcomes. A test with an error at its end has two reports.
OUTCOMES = """\
import json

found = {}


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        if found.get(report.nodeid, "passed") == "passed":
            found[report.nodeid] = report.outcome


def pytest_sessionfinish():
    with open("outcomes.json", "w") as file:
        json.dump(found, file)
"""

PEERS = {
    peer.name: peer
    for peer in [
        Peer(
            name="tritonclient",
            environment="tritonclient_tests",
            requirement="tritonclient[all]",
            releases={"2.60.0": "r25.08", "2.73.0": "r26.04"},
            repository="https://github.com/triton-inference-server/client",
            folder="src/python/library/tests",
            tests=("test_inference_server_client.py", "test_shared_memory.py"),
        ),
        Peer(
            name="kserve",
            environment="kserve_tests",
            requirement="kserve[ray]",
            releases={"0.17.0": "", "0.21.0": ""},
            repository="",
            folder="test",
            tests=tuple(
                f"test_{name}.py"
                for name in (
                    *("infer_type", "server", "grpc_server", "inference_client"),
                    *("inference_client_factory", "rest_server", "numpy_codec", "model_server"),
                    *("model_repository_extension", "header_forwarding"),
                )
            ),
            files={"__init__.py": "", "conftest.py": KSERVE_CONFTEST},
        ),
        Peer(
            name="mlserver",
            environment="mlserver",
            requirement="mlserver",
            releases={"1.6.1": "1.6.1", "1.7.0": "1.7.0", "1.7.1": "1.7.1"},
            repository="https://github.com/SeldonIO/MLServer",
            folder="tests",
            tests=(
                *("batching", "codecs", "test_raw.py", "test_types.py"),
                *("rest/test_codecs.py", "rest/test_endpoints.py", "rest/test_responses.py"),
                *("grpc/test_codecs.py", "grpc/test_converters.py", "grpc/test_servicers.py"),
            ),
            setup="import numpy; numpy.NaN = numpy.nan  # the tests were written for numpy 1\n",
        ),
    ]
}
METADATA = "the server metadata lists `binary_tensor_data`"
EXPECTED = {
    "mlserver": {
        "tests/grpc/test_servicers.py::test_server_metadata": METADATA,
        "tests/rest/test_endpoints.py::test_metadata": METADATA,
    }
}
"""The tests that fail with the integration, and the reason."""


def main() -> None:
    results = [
        is_agreeing for name in sys.argv[1:] or PEERS for is_agreeing in run_peer(PEERS[name])
    ]
    sys.exit(0 if all(results) else 1)


# --- run -----------------------------------------------------------------------------------------


def run_peer(peer: Peer) -> list[bool]:
    """Run the tests of all releases. Afterwards, the environment is as it was."""
    folder = environment.folder_of(peer.environment)
    environment.set_up(peer.environment, folder)
    marker = environment.marker(folder)
    recipe = marker.read_text()
    marker.unlink()  # other releases are installed now
    results = []
    try:
        for release, branch in peer.releases.items():
            environment.pip(folder, f"{peer.requirement}=={release}")
            with TemporaryDirectory() as name:
                python, work = environment.interpreter(folder), Path(name)
                copy_tests(peer, release, branch, work, python)
                results.append(run_release(peer, release, python, work))
    finally:
        packages = environment.PROGRAMS[peer.environment].packages
        environment.pip(folder, *[text for text in packages if peer.requirement in text])
        marker.write_text(recipe)
    return results


def copy_tests(peer: Peer, release: str, branch: str, work: Path, python: Path) -> None:
    """Copy the tests of a release to ``work``, and add files."""
    sources = work / "sources"
    if branch:
        options = ["--quiet", "--depth=1", "--bare", "-c", "advice.detachedHead=false"]
        clone = work / "clone.git"
        environment.run(["git", "clone", *options, "--branch", branch, peer.repository, str(clone)])
        git, archive = ["git", "-C", str(clone)], work / "tests.tar"
        root = subprocess.check_output([*git, "ls-tree", "--name-only", "HEAD"], text=True)
        paths = [peer.folder, *{"pyproject.toml"}.intersection(root.split())]
        environment.run([*git, "archive", f"--output={archive}", "HEAD", *paths])
        unpack(archive, sources)
    else:
        options = ["--quiet", "--no-binary=:all:", "--no-deps"]
        name = peer.requirement.partition("[")[0]
        pip = [str(python), "-m", "pip", "download", *options]
        environment.run([*pip, f"{name}=={release}", "--dest", str(work)])
        [archive] = work.glob(f"{name}-*.tar.gz")
        unpack(archive, work)
        (work / f"{name}-{release}").rename(sources)
    # Without the package itself, because it would be imported instead of the installed one.
    tests = work / Path(peer.folder).name
    (sources / peer.folder).rename(tests)
    if (settings := sources / "pyproject.toml").exists():
        settings.rename(work / "pyproject.toml")
    for file, text in peer.files.items():
        (tests / file).write_text(text)
    (work / "outcomes.py").write_text(OUTCOMES)
    (work / "without.py").write_text(peer.setup)
    install = f"from tensorwire.integrations import {peer.name} as integration\n"
    install += "integration.install()\nassert integration.is_installed()\n"
    (work / "integration.py").write_text(peer.setup + install)


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")


def run_release(peer: Peer, release: str, python: Path, work: Path) -> bool:
    """Run the tests twice. Return whether only expected ones pass without the integration alone.

    Files with different outcomes run again, because some tests use time.
    """
    paths = [f"{Path(peer.folder).name}/{test}" for test in peer.tests]
    paths = [path for path in paths if (work / path).exists()]
    expected, without, found = EXPECTED.get(peer.name, {}), Outcomes(), Outcomes()
    for _ in range(2):
        without |= run(python, work, "without", paths)
        found |= run(python, work, "integration", paths)
        passed = [test for test, outcome in without.items() if outcome == "passed"]
        failing = [test for test in passed if found.get(test) != "passed"]
        paths = sorted({test.partition("::")[0] for test in failing if test not in expected})
        if not paths:
            break
        print(f"again: {paths}", flush=True)
    for title, outcomes in ("without", without), ("with", found):
        print(f"{peer.name} {release} {title} tensorwire: {dict(Counter(outcomes.values()))}")
    for test in failing:
        print(f"  {test} fails with tensorwire: {expected.get(test, 'unexpected')}")
    return "passed" in found.values() and not paths


def run(python: Path, work: Path, plugin: str, paths: list[str]) -> Outcomes:
    """Run tests with a plugin, and return the outcome of each."""
    options = ["-q", "--tb=short", "-p", plugin, "-p", "outcomes", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [str(python), "-m", "pytest", *options, "-W", "ignore", f"--rootdir={work}", *paths],
        cwd=work,
        env={**environment.clean_environ(), "PYTHONPATH": str(work)},
        start_new_session=True,
    ) as process:
        try:
            process.wait(60 * MINUTES)
        finally:
            if process.poll() is None:  # stop pytest and the servers that it has started
                os.killpg(process.pid, 9)
    file = work / "outcomes.json"
    outcomes: Outcomes = json.loads(file.read_text())
    file.unlink()
    return outcomes


if __name__ == "__main__":
    main()
