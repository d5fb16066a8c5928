"""`python -m benchmarks.publish [EXPRESSION]`: measure, and write the tables and the plots.

EXPRESSION is that of ``pytest -k``: only the rows of these benchmarks are replaced. What runs in
the process of KServe or MLServer is measured by the interpreter of its environment
(`tests/interop/environment.py`). Without it, these rows stay as they are.
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
    FOLDER.mkdir(exist_ok=True)
    (expression,) = sys.argv[1:] or [""]
    pythons = {package: ROOT / f".{package}/venv/bin/python" for package in ("kserve", "mlserver")}
    missing = [package for package, python in pythons.items() if not python.exists()]
    if missing:
        print(f"no environment for {' and '.join(missing)}: their rows stay as they are")
    paths = [RESULTS] if expression or missing else []
    for package, python in {"": Path(sys.executable), **pythons}.items():
        if package in missing:
            continue
        path = FOLDER / f"{package or 'main'}.json"
        chosen = " and ".join(f"({part})" for part in (package, expression) if part)
        command = [str(python), "-m", "pytest", *(FILES if package else ["benchmarks"])]
        command += ["-k", chosen, "--benchmark-json", str(path)]
        code = subprocess.run(command, cwd=ROOT, env=ENVIRON, check=False).returncode
        if code == 0:
            paths.append(path)
        elif code != NOTHING_SELECTED:
            sys.exit(f"nothing is published; what was measured is in {FOLDER}")
    publish(paths)


if __name__ == "__main__":
    main()
