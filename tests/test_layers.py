"""What each part of the package imports."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tensorwire

pytestmark = pytest.mark.no_sanitizers(reason="it reads the repository")

PACKAGE = Path(tensorwire.__file__).parent
# A part of the package, and what it may import besides itself. The codec knows no other part; the
# public names are imported as `tensorwire`.
CODEC = {"errors", "http", "versions"}
PUBLIC = {"tensorwire", "_codec", "arguments", "digests", "grpc", "grpc_messages", *CODEC}
ALLOWED = {
    "_codec": CODEC,
    "client": {*PUBLIC, "compression"},
    "server": {*PUBLIC, "compression"},
    "integrations": {*PUBLIC, "server"},
    "cli": {*PUBLIC, "client", "server"},
}
IMPORTS = re.compile(
    r"^\s*(?:from (\.+)(\w*)[\w.]* c?import (\w+(?:, \w+)*|\()|(?:import|from) (tensorwire))",
    re.MULTILINE,
)


@pytest.mark.parametrize("part", ALLOWED)
def test_parts_import_only_what_they_may(part: str) -> None:
    for source in (PACKAGE / part).rglob("*.p[yx]*"):
        if source.suffix not in (".py", ".pyx", ".pxd"):
            continue
        n_folders = len(source.relative_to(PACKAGE).parts) - 1
        for dots, module, names, *absolute in IMPORTS.findall(source.read_text()):
            if any(absolute):
                found = {"tensorwire"}
            elif len(dots) <= n_folders:
                continue  # within the part
            else:
                found = {module} if module else set(names.split(", "))
            assert found <= ALLOWED[part], source


def test_import_tensorwire_loads_only_numpy() -> None:
    script = (
        "import sys; before = set(sys.modules); import numpy; import tensorwire;"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & "
        "{'ml_dtypes', 'msgspec', 'pyarrow', 'http', 'asyncio', 'urllib', 'tritonclient'}))"
    )
    # Optional packages and modules that perform I/O are not loaded.
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    baseline = subprocess.run(
        [sys.executable, "-I", "-c", script.replace("import tensorwire;", "")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded == set(baseline.stdout.split())


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("tensorwire", ["tensorwire.server", "tensorwire.client", "tensorwire.integrations"]),
        ("tensorwire.server", ["uvicorn", "httptools", "granian", "grpc", "starlette"]),
        ("tensorwire.client", ["httptools", "asyncio", "tensorwire.server"]),
    ],
)
def test_import_does_not_load(name: str, others: list[str]) -> None:
    script = f"import sys, {name}; print(*sorted(set({others}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_numpy_is_the_only_dependency() -> None:
    required = metadata.requires("tensorwire") or []
    assert [name for name in required if "extra ==" not in name] == ["numpy>=2.0"]


@pytest.mark.parametrize("other", ["byteorder = 'big'", "maxsize = 2**31 - 1"])
def test_import_fails_on_other_machines(other: str) -> None:
    script = f"import sys; sys.path = {sys.path!r}; sys.{other}; import tensorwire"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError: tensorwire requires a 64-bit little-endian machine" in done.stderr
