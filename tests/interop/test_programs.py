"""Tests with other programs, each of which has a file and an environment.

The interpreter of the environment (environment.py) runs the file with pytest. Clients of Triton
call `tensorwire serve` with the models of served_models.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from interop import programs
from interop.triton_server import LOOPBACK, free_ports
from support.requirements import package, skip_or_fail

pytestmark = pytest.mark.thread_unsafe(reason="it runs other programs")

HERE = Path(__file__).parent
SECONDS = 900.0
START_SECONDS = 60.0


class Program(NamedTuple):
    environment: str
    file: str
    is_client: bool = False  # of `tensorwire serve`
    is_nightly: bool = False


PROGRAMS = [
    Program("kserve", "inside_kserve.py"),
    Program("mlserver", "inside_mlserver.py"),
    Program("ray", "inside_ray.py"),
    Program("torch", "inside_torch.py"),
    Program("jax", "inside_jax.py"),
    Program("triton_clients", "inside_triton_clients.py", is_client=True, is_nightly=True),
    Program("bentoml", "inside_bentoml.py", is_nightly=True),
]
NIGHTLY = pytest.mark.nightly(reason="it needs the environments of other programs")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The addresses of `tensorwire serve` for HTTP and gRPC."""
    package("grpc")
    ports = free_ports(2)
    command = [sys.executable, "-m", "tensorwire", "serve", "served_models"]
    command += ["--port", str(ports[0]), "--grpc-port", str(ports[1])]
    log = tmp_path_factory.mktemp("served") / "log"
    with programs.started(command, log, cwd=HERE) as program:
        http, grpc = (f"{LOOPBACK}:{port}" for port in ports)
        programs.wait_until_ready([f"http://{http}", f"grpc://{grpc}"], program, START_SECONDS)
        yield f"{http} {grpc}"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, marks=[NIGHTLY] if each.is_nightly else [], id=Path(each.file).stem)
        for each in PROGRAMS
    ],
)
def test_program(program: Program, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Run its tests. JAX is in the environment of the tests, but warns about each later fork."""
    if program.environment != "jax":
        python = programs.interpreter(program.environment)
    elif find_spec("jax") is None:
        skip_or_fail("jax", "JAX is not installed")
    else:
        python = Path(sys.executable)
    # What is skipped inside cannot be named in this process.
    variables = {"PYTHONPATH": f"{HERE.parent}:{HERE.parents[1]}", "TENSORWIRE_SKIPPED": ""}
    if program.is_client:
        variables["TENSORWIRE_SERVED"] = request.getfixturevalue("served")
    # The settings of the checkout do not apply: other programs cause warnings.
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={tmp_path}"]
    command = [str(python), "-m", "pytest", *options, str(HERE / program.file)]
    programs.run(command, tmp_path, SECONDS, variables)
