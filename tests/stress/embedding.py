"""Release exported structs in a C program that embeds Python, also after Py_Finalize.

`PYTHONPATH=tests python -m stress.embedding [RUNS]` takes about half a second for each of 50 runs.
It needs a C compiler and the library of this Python. The exit code is 1 if a run fails. Python's
allocator checks the memory that is released.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
SCRIPT = """
import ctypes
from support.foreign_owner import EXPORTS

program = ctypes.CDLL(None)

def take(address, callback):
    assert program.take(ctypes.c_void_p(address), ctypes.c_void_p(callback)) == 0

for export in EXPORTS.values():
    for _ in range(100):
        export(take)
"""


def compile_program(folder: Path) -> Path:
    """Compile the program for the Python that runs this module."""

    def config(name: str) -> str:
        return str(sysconfig.get_config_var(name) or "")

    program = folder / "embedding"
    libraries = f"{config('LINKFORSHARED')} {config('LIBS')} {config('SYSLIBS')}".split()
    command = [
        *("cc", "-O1", "-g", "-pthread", "-I", sysconfig.get_paths()["include"], str(SOURCE)),
        *("-o", str(program), "-rdynamic", "-L", config("LIBDIR"), "-L", config("LIBPL")),
        *(f"-Wl,-rpath,{config('LIBDIR')}", f"-lpython{config('LDVERSION')}", *libraries),
    ]
    subprocess.run(command, check=True)
    return program


def run(program: Path) -> str:
    """Run the program once, and return what it printed."""
    paths = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONMALLOC": "debug", "PYTHONPATH": paths}
    command = [str(program), sys.executable, SCRIPT]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        sys.exit(f"embedding: the program ended with {done.returncode}\n{done.stderr}")
    return done.stdout.strip()


def main() -> None:
    n_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program(Path(folder))
        [found] = {run(program) for _ in range(n_runs)}
    print(f"{n_runs} runs of a program that embeds Python: {found} in each")


if __name__ == "__main__":
    main()
