"""The interpreters that measure: this one, and those of peers with pins of their own.

A peer's environment is the one that ``tests/interop/environment.py`` makes, and stays as that left
it: our codec, the very one that this interpreter has, and pytest with its plugin come to it by
``PYTHONPATH``, from a folder of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import tensorwire as tw

from .contenders import CONTENDERS
from .missing import Missing

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".benchmarks" / f"tools-{sys.version_info.major}.{sys.version_info.minor}"
REQUIREMENTS = ["msgspec", "pytest", "pytest-benchmark"]


@dataclass(frozen=True)
class Interpreter:
    """One that can import this package; ``name`` is empty for the one at hand."""

    name: str
    python: str
    variables: dict[str, str] = field(default_factory=dict)


HERE = Interpreter("", sys.executable)


def peers() -> list[str]:
    """The environments that contenders ask for."""
    return sorted({way.environment for way in CONTENDERS.values()} - {""})


def interpreter(name: str, *, make: bool) -> Interpreter:
    """The peer's, made if need be and allowed. Raises Missing."""
    setup = environment()
    if name not in setup.PROGRAMS:
        raise Missing(f"nothing in {Path(setup.__file__).relative_to(ROOT)} makes its environment")
    folder = setup.folder_of(name)
    if setup.read_marker(folder) is None:
        if not make:
            script = Path(setup.__file__).relative_to(ROOT)
            raise Missing(f"it has no environment yet (`python {script} {name}` makes it)")
        try:
            setup.set_up(name, folder)
        except (setup.SetupError, OSError) as error:
            raise Missing(f"its environment could not be made: {error}") from None
    add_tools()
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", TOOLS)))
    return Interpreter(name, str(setup.interpreter(folder)), {"PYTHONPATH": path})


def environment() -> Any:
    """The tests' own module for environments, which pytest finds by itself."""
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module("interop.environment")


def add_tools() -> None:
    """What a peer's interpreter needs beside the peer. Raises Missing."""
    if not (TOOLS / "pytest_benchmark").is_dir():
        options = ["--quiet", "--no-input", "--disable-pip-version-check", "--target", str(TOOLS)]
        command = [sys.executable, "-m", "pip", "install", *options, *REQUIREMENTS]
        if subprocess.run(command, check=False).returncode:
            raise Missing(f"pip could not install {', '.join(REQUIREMENTS)}")
    package, link = Path(tw.__file__).parent, TOOLS / "tensorwire"
    link.unlink(missing_ok=True)
    link.symlink_to(package, target_is_directory=True)


def all_interpreters(*, make: bool, left_out: dict[str, str]) -> Iterator[Interpreter]:
    """This one, then the peers'; the reasons of those that are not there go to ``left_out``."""
    yield HERE
    for name in peers():
        try:
            yield interpreter(name, make=make)
        except Missing as reason:
            left_out[name] = str(reason)
