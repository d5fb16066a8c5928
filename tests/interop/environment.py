"""Environments for other programs: `python3 environment.py NAME [FOLDER]`.

FOLDER/venv has the program and tensorwire, built from the checkout (not a link to it). Programs
whose requirements conflict with those of tensorwire are alone.
FOLDER/.gitignore excludes everything. FOLDER/ready.json is written last, and records what the
environment was made from.
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
from typing import Any, NamedTuple

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]


class Program(NamedTuple):
    """The packages to install, and a module that must be importable afterwards."""

    packages: tuple[str, ...]
    imported: str


PROGRAMS = {
    # The pinned versions do not restrict the dependencies of tensorwire.
    "kserve": Program(
        ("kserve==0.21.0", "ml_dtypes>=0.5", "pytest>=8.2", "pytest-benchmark>=5.2"), "kserve"
    ),
    "kserve_tests": Program(  # also has what the tests of KServe import
        (
            *("kserve[ray]==0.21.0", "avro==1.12.2", "grpcio-testing==1.81.1"),
            *("httpx-retries==0.6.0", "pytest==9.2.0", "pytest-asyncio==1.5.0"),
            *("pytest-httpx==0.36.2", "tomlkit==0.15.2"),
        ),
        "kserve",
    ),
    "mlserver": Program(
        # The versions that the integration was developed with, and what its test suite requires.
        (
            *("mlserver==1.7.1", "fastapi==0.115.14", "pandas==2.3.3", "uvloop==0.21.0"),
            *("pytest==7.4.4", "pytest-asyncio==0.21.1", "pytest-cases==3.8.5"),
            *("pytest-lazy-fixture==0.6.3", "pytest-mock==3.12.0", "httpx==0.27.0"),
            *("httpx-sse==0.4.3", "httptools>=0.6", "aiohttp-retry==2.9.1", "filelock", "pyyaml"),
            "pytest-benchmark==4.0.0",
        ),
        "mlserver",
    ),
    "tritonclient_tests": Program(
        ("tritonclient[all]==2.73.0", "pytest==9.2.0"), "tritonclient.http"
    ),
    "ray": Program(("ray[serve]==2.60.0", "httptools>=0.6", "pytest>=8"), "ray.serve"),
    "torch": Program(("torch==2.13.0", "pandas>=3", "ml_dtypes>=0.5", "pytest>=8"), "torch"),
}

SOURCES = ("src", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
BUILT = shutil.ignore_patterns("*.so", "*.c", "*.cpp", "*.pyc", "__pycache__", "*.egg-info")


Recipe = dict[str, Any]  # what a folder was made from; the content of ready.json


def main() -> None:
    name, *folders = sys.argv[1:]
    folder = Path(folders[0]).resolve() if folders else default_folder(name)
    set_up(name, folder)
    print(f"{name} is ready in {folder}")


def set_up(name: str, folder: Path) -> None:
    """Create the environment, or update what is out of date."""
    with TemporaryDirectory() as copy:
        copy_sources(Path(copy))
        wanted = recipe(name, folder, Path(copy))
        program = PROGRAMS[name]
        found = read_marker(folder)
        if found == wanted:
            return
        marker(folder).unlink(missing_ok=True)
        # An environment does not work in another folder.
        if found is None or any(found[key] != wanted[key] for key in ("packages", "folder")):
            make_environment(folder)
            pip(folder, *program.packages)
        # Built from a copy: a build in the checkout would leave files there, or use old ones.
        pip(folder, copy)
    run([str(interpreter(folder)), "-c", f"import tensorwire, {program.imported}"])
    marker(folder).write_text(json.dumps(wanted, indent=1))


def is_ready(name: str, folder: Path) -> bool:
    """Return whether the environment was made from the current checkout."""
    with TemporaryDirectory() as copy:
        copy_sources(Path(copy))
        return read_marker(folder) == recipe(name, folder, Path(copy))


def folder_of(name: str) -> Path:
    """Return the folder in the variable TENSORWIRE_<NAME>, or the one in the checkout."""
    named = os.environ.get(f"TENSORWIRE_{name.upper()}")
    return Path(named).resolve() if named else default_folder(name)


def default_folder(name: str) -> Path:
    return REPOSITORY_ROOT / f".{name}"


def interpreter(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def marker(folder: Path) -> Path:
    return folder / "ready.json"


def read_marker(folder: Path) -> Recipe | None:
    """Return what the folder was made from, or None if it is missing or incomplete."""
    try:
        recipe: Recipe = json.loads(marker(folder).read_text())
    except (OSError, ValueError):
        return None
    return recipe


def recipe(name: str, folder: Path, sources: Path) -> Recipe:
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*")):
        if path.is_file() and path.suffix != ".md":
            digest.update(f"{path.relative_to(sources)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    packages = list(PROGRAMS[name].packages)
    return {"packages": packages, "folder": str(folder), "sources": digest.hexdigest()}


def copy_sources(target: Path) -> None:
    for name in SOURCES:
        source = REPOSITORY_ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=BUILT)
        else:
            shutil.copy2(source, target)


def make_environment(folder: Path) -> None:
    shutil.rmtree(folder / "venv", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    run([sys.executable, "-m", "venv", str(folder / "venv")])


def pip(folder: Path, *packages: str) -> None:
    options = ["--quiet", "--no-input", "--disable-pip-version-check"]
    run([str(interpreter(folder)), "-m", "pip", "install", *options, *packages])


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, env=clean_environ())


def clean_environ() -> dict[str, str]:
    """Return the environment variables without the caller's Python paths."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


if __name__ == "__main__":
    main()
