"""Tensors of torch and pandas: the tests of `inside_torch.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop import programs

TESTS = Path(__file__).with_name("inside_torch.py")
SECONDS = 600.0


@pytest.fixture(scope="module")
def python() -> Path:
    return programs.interpreter("torch")


def test_torch_and_pandas(python: Path, tmp_path: Path) -> None:
    command = [str(python), "-m", "pytest", "-q", "--import-mode=importlib", "--noconftest"]
    programs.run([*command, "-p", "no:cacheprovider", str(TESTS)], tmp_path, SECONDS)
