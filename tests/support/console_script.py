"""The console script `tensorwire`, and the same program as `python -m tensorwire`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What an installer writes. sys.path has the folder of the script, but not the working directory.
SCRIPT = """\
import sys
from {module} import {function}
if __name__ == "__main__":
    sys.argv[0] = "tensorwire"
    sys.exit({function}())
"""


def programs(folder: Path) -> dict[str, list[str]]:
    """Return both commands by what a user writes. The console script is created in `folder`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["tensorwire"].partition(":")
    folder.mkdir()
    path = folder / "tensorwire"
    path.write_text(SCRIPT.format(module=module, function=function))
    return {
        "tensorwire": [sys.executable, str(path)],
        "python -m tensorwire": [sys.executable, "-m", "tensorwire"],
    }


PROGRAMS = ("tensorwire", "python -m tensorwire")
