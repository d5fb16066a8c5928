"""Install Triton, without a container or GPU, in a folder: `python3 triton_setup.py [FOLDER]`.

This takes Linux on x86_64 with glibc 2.35.

FOLDER/site             the wheel that contains the server, and numpy for its Python backend
FOLDER/backends/python  that backend, with the stub process for this interpreter's version
FOLDER/ready.json       written last; records the interpreter that the stub embeds
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TypedDict

# The stub's numpy bindings are older than numpy 2: with it they return empty tensors and no error.
PACKAGES = ["nvidia-pytriton==0.7.0", "numpy==1.26.4"]
PYTHONS = ("3.11", "3.12")  # those that have a stub in the first package and a wheel of the second
STUB = "triton_python_backend_stub"

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = REPOSITORY_ROOT / ".triton"


class Recipe(TypedDict):
    """What a folder was made from; the content of ready.json.

    The stub embeds the interpreter that ran this program. It finds the standard library through
    PATH, in which `programs` is the first folder. The loader finds libpython in `libraries`.
    """

    packages: list[str]
    python: str
    programs: str
    libraries: str


def main() -> None:
    folder = Path(*sys.argv[1:2]).resolve() if sys.argv[1:] else DEFAULT_FOLDER
    set_up(folder)
    print(f"Triton is ready in {folder}")


def set_up(folder: Path) -> None:
    """Create the folder, unless this interpreter has already created it."""
    if python_version() not in PYTHONS:
        sys.exit(f"run this with Python {' or '.join(PYTHONS)}, which the server embeds")
    recipe = Recipe(
        packages=PACKAGES,
        python=python_version(),
        programs=str(Path(sys.base_prefix, "bin")),
        libraries=libpython_folder(),
    )
    if read_marker(folder) == recipe:
        return
    marker(folder).unlink(missing_ok=True)
    install_packages(folder / "site")
    assemble_backend(folder / "site" / "pytriton" / "tritonserver", folder / "backends" / "python")
    marker(folder).write_text(json.dumps(recipe, indent=1))


def read_marker(folder: Path) -> Recipe | None:
    """Return what the folder was made from, or None if it is missing or incomplete."""
    try:
        recipe: Recipe = json.loads(marker(folder).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return recipe


def folder_in_use() -> Path:
    """Return the folder in the variable TENSORWIRE_TRITON, or the one in the checkout."""
    return Path(os.environ.get("TENSORWIRE_TRITON") or DEFAULT_FOLDER).resolve()


def marker(folder: Path) -> Path:
    return folder / "ready.json"


def server_program(folder: Path) -> Path:
    return folder / "site" / "pytriton" / "tritonserver" / "bin" / "tritonserver"


def library_path(folder: Path, recipe: Recipe) -> str:
    """Return LD_LIBRARY_PATH. A stub outside its folder in the wheel needs it for its libraries."""
    return f"{folder / 'site' / 'nvidia_pytriton.libs'}:{recipe['libraries']}"


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def libpython_folder() -> str:
    """Return the folder of libpython. The loader searches its own folders in any case."""
    candidates = [str(sysconfig.get_config_var("LIBDIR")), str(Path(sys.base_prefix, "lib"))]
    for candidate in candidates:
        if Path(candidate, f"libpython{python_version()}.so.1.0").exists():
            return candidate
    return candidates[-1]


def install_packages(site: Path) -> None:
    shutil.rmtree(site, ignore_errors=True)
    # Without dependencies: only the wheel's Python API needs them, and it is not used here.
    options = ["--quiet", "--no-input", "--no-deps", "--no-compile", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), *PACKAGES]
    subprocess.run(command, check=True)


def assemble_backend(server: Path, backend: Path) -> None:
    """Copy the backend and the stub for this Python into one folder, as the server requires."""
    shutil.rmtree(backend, ignore_errors=True)
    shutil.copytree(server / "backends" / "python", backend)
    shutil.copy2(server / "python_backend_stubs" / python_version() / STUB, backend)


if __name__ == "__main__":
    main()
