"""Python code that runs in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tensorwire as tw


def run_script(
    script: str, *arguments: str, timeout: float = 30
) -> subprocess.CompletedProcess[str]:
    """Run Python code in another process, with the same modules as here."""
    path = os.pathsep.join([str(Path(tw.__file__).parent.parent), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
