"""Put KServe's client into an environment of its own: `python3 kserve_setup.py [FOLDER]`.

FOLDER/venv        kserve, whose pins are no business of this project
FOLDER/ready.json  written last
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TypedDict

PACKAGES = ["kserve==0.21.0"]

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = REPOSITORY_ROOT / ".kserve"


class Recipe(TypedDict):
    """What a folder was made from; the marker's content."""

    packages: list[str]
    python: str
    folder: str  # an environment does not survive being moved


class SetupError(Exception):
    """The folder cannot be set up here; the text says why."""


def main() -> None:
    arguments = sys.argv[1:]
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.exit("usage: kserve_setup.py [FOLDER]")
    folder = Path(arguments[0]).resolve() if arguments else DEFAULT_FOLDER
    try:
        set_up(folder)
    except SetupError as error:
        sys.exit(f"kserve_setup: {error}")
    print(f"KServe's client is ready in {folder}")


def set_up(folder: Path) -> None:
    """Make the folder, unless this interpreter has made it before."""
    recipe = Recipe(packages=PACKAGES, python=sys.version, folder=str(folder))
    if read_marker(folder) == recipe:
        return
    marker(folder).unlink(missing_ok=True)
    shutil.rmtree(folder / "venv", ignore_errors=True)
    venv.create(folder / "venv", with_pip=True)
    options = ["--quiet", "--no-input", "--disable-pip-version-check"]
    run([str(python(folder)), "-m", "pip", "install", *options, *PACKAGES])
    run([str(python(folder)), "-c", "from kserve import InferenceRESTClient"])
    marker(folder).write_text(json.dumps(recipe, indent=1))


def run(command: list[str]) -> None:
    if code := subprocess.run(command, check=False).returncode:
        raise SetupError(f"exit code {code} of {command[1:]}; the output is above")


def read_marker(folder: Path) -> Recipe | None:
    """What the folder was made from, or None when it is absent or half made."""
    try:
        recipe: Recipe = json.loads(marker(folder).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return recipe


def marker(folder: Path) -> Path:
    return folder / "ready.json"


def python(folder: Path) -> Path:
    """The environment's interpreter."""
    return folder / "venv" / "bin" / "python"


if __name__ == "__main__":
    main()
