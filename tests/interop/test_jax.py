"""Tensors of JAX: the tests of `inside_jax.py`, in a separate process."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from interop import programs
from support.requirements import skip_or_fail

TESTS = Path(__file__).with_name("inside_jax.py")
SECONDS = 300.0


def test_jax(tmp_path: Path) -> None:
    if find_spec("jax") is None:
        skip_or_fail("jax", "JAX is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "--noconftest"]
    programs.run([*command, "-p", "no:cacheprovider", str(TESTS)], tmp_path, SECONDS)
