"""The stubs of the compiled modules are complete, and agree with the modules."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys
from pathlib import Path

import pytest

import tensorwire
from support.requirements import package

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

PACKAGE = Path(tensorwire.__file__).parent
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
COMPILED = sorted(
    ".".join(path.relative_to(PACKAGE).parts).removesuffix(SUFFIX)
    for path in PACKAGE.rglob(f"*{SUFFIX}")
)
WITHOUT_PYTHON_NAMES = {"_codec.dlpack", "_codec.json_writer", "_codec.parameters"}


def stub(module: str) -> Path:
    return PACKAGE / f"{module.replace('.', '/')}.pyi"


def test_each_compiled_module_has_a_stub() -> None:
    assert {"_codec.decoder", "server.framing"} < set(COMPILED)
    missing = {name for name in COMPILED if not stub(name).exists()}
    assert missing == WITHOUT_PYTHON_NAMES
    assert (PACKAGE / "py.typed").exists()


def test_stubs_agree_with_the_run_time(tmp_path: Path) -> None:
    package("mypy")
    modules = [f"tensorwire.{name}" for name in COMPILED if name not in WITHOUT_PYTHON_NAMES]
    allowed = Path(__file__).parent / "support" / "stubtest_allowlist.txt"
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-unused-allowlist"]
    done = subprocess.run(
        [*command, "--allowlist", str(allowed), *modules],
        cwd=tmp_path,  # outside the sources, to test the installed package
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
