"""Install Triton, without a container or GPU, in a folder: `python3 triton_setup.py [FOLDER]`.

FOLDER/site             the wheel that contains the server, and numpy for its Python backend
FOLDER/backends/python  that backend, with the stub process for this interpreter's version
FOLDER/ready.json       written last; records the interpreter that the stub embeds
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TypedDict

# The stub's numpy bindings are older than numpy 2: with it they return empty tensors and no error.
PACKAGES = ["nvidia-pytriton==0.7.0", "numpy==1.26.4"]
PYTHONS = ("3.11", "3.12")  # those that have a stub in the first package and a wheel of the second
GLIBC = (2, 35)
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


class SetupError(Exception):
    """The folder cannot be set up here; the message has the reason."""


def main() -> None:
    arguments = sys.argv[1:]
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.exit("usage: triton_setup.py [FOLDER]")
    folder = Path(arguments[0]).resolve() if arguments else DEFAULT_FOLDER
    try:
        set_up(folder)
    except SetupError as error:
        sys.exit(f"triton_setup: {error}")
    print(f"Triton is ready in {folder}")


def set_up(folder: Path) -> None:
    """Create the folder, unless this interpreter has already created it."""
    check_platform()
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
    check_programs(folder, recipe)
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


def check_platform() -> None:
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise SetupError(f"the wheel is for Linux on x86_64, not {system} on {machine}")
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split(".")[:2])) < GLIBC:
        found = f"{libc} {version}".strip() or "another C library"
        raise SetupError(f"the server needs glibc {GLIBC[0]}.{GLIBC[1]} or newer, not {found}")
    if sys.implementation.name != "cpython" or python_version() not in PYTHONS:
        raise SetupError(
            f"run this with CPython {' or '.join(PYTHONS)}, not {platform.python_implementation()} "
            f"{python_version()}: the server embeds the interpreter that sets it up "
            "(the tests may run on another)"
        )


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
    if code := subprocess.run(command, check=False).returncode:
        raise SetupError(f"pip failed with exit code {code}; its output is above")


def assemble_backend(server: Path, backend: Path) -> None:
    """Copy the backend and the stub for this Python into one folder, as the server requires."""
    shutil.rmtree(backend, ignore_errors=True)
    shutil.copytree(server / "backends" / "python", backend)
    shutil.copy2(server / "python_backend_stubs" / python_version() / STUB, backend)


def check_programs(folder: Path, recipe: Recipe) -> None:
    """Start both programs, so that a missing library is reported now and not in a server log."""
    stub = folder / "backends" / "python" / STUB
    check_starts([str(server_program(folder)), "--help"], "--model-repository", folder, recipe)
    check_starts([str(stub)], "Expected 9 arguments", folder, recipe)


def check_starts(command: list[str], expected: str, folder: Path, recipe: Recipe) -> None:
    environment = {"LD_LIBRARY_PATH": library_path(folder, recipe)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if expected not in run.stdout + run.stderr:
        raise SetupError(
            f"{command[0]} does not start (exit code {run.returncode}):\n{run.stderr.strip()}\n"
            "If libpython is missing: use an interpreter that was built with --enable-shared."
        )


if __name__ == "__main__":
    main()
