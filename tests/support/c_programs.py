"""C libraries and programs that tests compile."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from support.requirements import skip_or_fail

FOLDER = Path(__file__).parent


@cache
def library(name: str) -> ctypes.CDLL:
    """Return the library that is compiled from the source `name` in this folder."""
    compiler = shutil.which("cc")
    if compiler is None:
        skip_or_fail("cc", "there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        source = str(FOLDER / name)
        command = [compiler, "-shared", "-fPIC", "-pthread", "-o", str(path), source]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(path))
