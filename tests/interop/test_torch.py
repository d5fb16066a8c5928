"""Tensors of torch and pandas: the tests of `inside_torch.py`."""

from __future__ import annotations

from pathlib import Path

from interop import programs

SECONDS = 600.0


def test_torch_and_pandas(tmp_path: Path) -> None:
    programs.run_tests(programs.interpreter("torch"), "inside_torch.py", tmp_path, SECONDS)
