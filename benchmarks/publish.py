"""`python -m benchmarks.publish [EXPRESSION]`: measure, and write the tables and the plots.

EXPRESSION is that of ``pytest -k``. Rows that are not measured stay as they are: those of other
benchmarks, and of programs that are missing. What runs in the process of KServe or MLServer is
measured by the interpreter of its environment (`tests/interop/environment.py`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .measuring import ENVIRON, ROOT
from .tables import RESULTS, publish

FILES = [f"benchmarks/bench_{name}.py" for name in ("codec", "calls", "memory")]
FOLDER = ROOT / ".benchmarks"
NOTHING_SELECTED = 5  # the exit code of pytest


def main() -> None:
    (expression,) = sys.argv[1:] or [""]
    FOLDER.mkdir(exist_ok=True)
    pythons = {package: ROOT / f".{package}/venv/bin/python" for package in ("kserve", "mlserver")}
    paths = [RESULTS]
    for package, python in {**pythons, "": Path(sys.executable)}.items():
        if not python.exists():
            print(f"{python} does not exist: the rows of {package} stay as they are")
            continue
        path = FOLDER / f"{package or 'main'}.json"
        chosen = " and ".join(f"({part})" for part in (package, expression) if part)
        command = [str(python), "-m", "pytest", *(FILES if package else ["benchmarks"])]
        command += ["-k", chosen, "--benchmark-json", str(path)]
        command += ["-W", "ignore:Not saving anything"]  # if nothing is selected
        code = subprocess.run(command, cwd=ROOT, env=ENVIRON, check=False).returncode
        if code == 0:
            paths.append(path)
        elif code != NOTHING_SELECTED:
            sys.exit(f"nothing is published; what was measured is in {FOLDER}")
    publish(paths)


if __name__ == "__main__":
    main()
