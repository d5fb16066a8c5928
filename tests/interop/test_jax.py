"""Tensors of JAX: the tests of `inside_jax.py`, in a separate process."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from interop import programs
from support.requirements import skip_or_fail

SECONDS = 300.0


def test_jax(tmp_path: Path) -> None:
    if find_spec("jax") is None:
        skip_or_fail("jax", "JAX is not installed")
    programs.run_tests(Path(sys.executable), "inside_jax.py", tmp_path, SECONDS)
