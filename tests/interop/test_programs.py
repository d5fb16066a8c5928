"""Tests with other programs, each of which has a file and an environment.

The interpreter of the environment (environment.py) runs the file with pytest.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from interop import programs
from support.requirements import skip_or_fail

pytestmark = pytest.mark.thread_unsafe(reason="it runs other programs")

HERE = Path(__file__).parent
SECONDS = 900.0


@pytest.mark.parametrize("name", ["kserve", "mlserver", "ray", "torch", "jax"])
def test_program(name: str, tmp_path: Path) -> None:
    """Run its tests. JAX is in the environment of the tests, but warns about each later fork."""
    if name != "jax":
        python = programs.interpreter(name)
    elif find_spec("jax") is None:
        skip_or_fail("jax", "JAX is not installed")
    else:
        python = Path(sys.executable)
    # What is skipped inside cannot be named in this process.
    variables = {"PYTHONPATH": f"{HERE.parent}:{HERE.parents[1]}", "TENSORWIRE_SKIPPED": ""}
    # The settings of the checkout do not apply: other programs cause warnings.
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={tmp_path}"]
    command = [str(python), "-m", "pytest", *options, str(HERE / f"inside_{name}.py")]
    programs.run(command, tmp_path, SECONDS, variables)
