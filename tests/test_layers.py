"""Each file knows only the floors below it, and nothing below the edges imports them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorwire

PACKAGE = Path(tensorwire.__file__).parent

# From the ground up. A module may import those of the lines above its own.
FLOORS = [
    ["errors", "_wire", "_utf8", "_npystring", "_arrow_abi"],
    ["_limits", "_datatypes"],
    ["_layout"],
    ["_body"],
    ["_elements", "_pack", "_jsondata"],
    ["_arrow_out", "_arrow_in"],
    ["bytes_tensor"],
    ["payload", "header"],
    ["_messages", "_frame", "_bodybuffer"],
    ["_decode", "_encode"],
    ["__init__"],
    ["demo", "inspect"],
    ["__main__"],
]
FLOOR = {module: n for n, floor in enumerate(FLOORS) for module in floor}
SOURCES = [p for p in PACKAGE.rglob("*.p[yx]*") if p.suffix in (".py", ".pyx", ".pxd")]
IMPORTS = re.compile(
    r"^\s*(?:from \.(\w*) c?import (\w+(?:, \w+)*|\()|import tensorwire\.(\w+)"
    r"|from tensorwire\.?(\w*) c?import)",
    re.MULTILINE,
)


def imported(source: Path) -> set[str]:
    """The package's own modules that a source imports, anywhere in it."""
    found = set()
    for relative, names, absolute, package in IMPORTS.findall(source.read_text()):
        if relative or absolute or package:
            found.add(relative or absolute or package)
        elif names:  # from . import a, b
            found.update(names.split(", "))
        else:
            found.add("__init__")
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_imports_point_down(source: Path) -> None:
    assert source.stem in FLOOR, f"{source.stem} stands on no floor: give it one"
    above = {name for name in imported(source) - {source.stem} if FLOOR[name] >= FLOOR[source.stem]}
    assert not above


def test_the_rule_can_fail(tmp_path: Path) -> None:
    source = tmp_path / "errors.py"
    source.write_text("from ._decode import decode_request\nfrom . import _body, _pack\n")
    assert imported(source) == {"_decode", "_body", "_pack"}


def test_the_core_imports_only_its_dependencies() -> None:
    script = (
        "import sys; before = set(sys.modules); import numpy, msgspec; import tensorwire;"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & "
        "{'ml_dtypes', 'pyarrow', 'http', 'asyncio', 'urllib', 'tritonclient', 'kserve'}))"
    )
    # Not even the optional packages, and nothing that does I/O.
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


def test_files_stay_short() -> None:
    long = {p.name: n for p in SOURCES if (n := len(p.read_text().splitlines())) > 500}
    assert not long
