"""Put Ray Serve, and this checkout, into an environment: `python3 ray_setup.py [FOLDER]`.

FOLDER/venv        ray[serve], and tensorwire built from the checkout (not a link to it)
FOLDER/.gitignore  all of it
FOLDER/ready.json  written last; says what it was made from
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

PACKAGES = ["ray[serve]==2.60.0"]
SOURCES = ["src", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"]
BUILT = shutil.ignore_patterns("*.so", "*.c", "*.pyc", "__pycache__", "*.egg-info")

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = REPOSITORY_ROOT / ".ray"


class Recipe(TypedDict):
    """What a folder was made from; the marker's content."""

    packages: list[str]
    python: str
    sources: str


class SetupError(Exception):
    """The folder cannot be set up here; the text says why."""


def main() -> None:
    arguments = sys.argv[1:]
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.exit("usage: ray_setup.py [FOLDER]")
    folder = Path(arguments[0]).resolve() if arguments else DEFAULT_FOLDER
    try:
        set_up(folder)
    except SetupError as error:
        sys.exit(f"ray_setup: {error}")
    print(f"Ray is ready in {folder}")


def set_up(folder: Path) -> None:
    """Make the environment, or what is out of date in it: Ray, or tensorwire alone."""
    with TemporaryDirectory() as copy:
        copy_sources(Path(copy))
        wanted = recipe(Path(copy))
        found = read_marker(folder)
        if found == wanted:
            return
        marker(folder).unlink(missing_ok=True)
        if found is None or {**found, "sources": ""} != {**wanted, "sources": ""}:
            make_environment(folder)
        # Out of a copy: a build in the checkout would leave its files there, or pick up old ones.
        pip(folder, copy)
    marker(folder).write_text(json.dumps(wanted, indent=1))


def is_ready(folder: Path) -> bool:
    """Whether the folder was made from what the checkout is now."""
    with TemporaryDirectory() as copy:
        copy_sources(Path(copy))
        found, wanted = read_marker(folder), recipe(Path(copy))
    # The tests may run on another interpreter than the one that made it.
    return found is not None and {**found, "python": ""} == {**wanted, "python": ""}


def read_marker(folder: Path) -> Recipe | None:
    """What the folder was made from, or None when it is absent or half made."""
    try:
        found: Recipe = json.loads(marker(folder).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found


def marker(folder: Path) -> Path:
    return folder / "ready.json"


def interpreter(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def copy_sources(target: Path) -> None:
    for name in SOURCES:
        source = REPOSITORY_ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=BUILT)
        else:
            shutil.copy2(source, target)


def recipe(sources: Path) -> Recipe:
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*")):
        if path.is_file() and path.suffix != ".md":
            digest.update(f"{path.relative_to(sources)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Recipe(packages=PACKAGES, python=python, sources=digest.hexdigest())


def make_environment(folder: Path) -> None:
    shutil.rmtree(folder / "venv", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    command = [sys.executable, "-m", "venv", str(folder / "venv")]
    if code := subprocess.run(command, check=False).returncode:
        raise SetupError(f"venv failed with exit code {code}; its output is above")
    pip(folder, *PACKAGES)


def pip(folder: Path, *arguments: str) -> None:
    command = [str(interpreter(folder)), "-m", "pip", "install", "--quiet", "--no-input"]
    # Not the environment that calls: its packages are no part of this one.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    if code := subprocess.run([*command, *arguments], check=False, env=environment).returncode:
        raise SetupError(f"pip failed with exit code {code}; its output is above")


if __name__ == "__main__":
    main()
