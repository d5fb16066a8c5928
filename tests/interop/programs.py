"""Run scripts in the environment of another program."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from interop import environment
from support.requirements import skip_or_fail

STOP_SECONDS = 20.0


def interpreter(name: str) -> Path:
    """Return the interpreter of an environment. Without it, skip the test, or fail in CI."""
    folder = environment.folder_of(name)
    if not environment.is_ready(name, folder):
        command = shlex.join([sys.executable, environment.__file__, name, str(folder)])
        skip_or_fail(
            name, f"{name} is not installed, or with an older tensorwire; to install: {command}"
        )
    return environment.interpreter(folder)


def run(command: list[str], folder: Path, seconds: float) -> str:
    """Run a command in `folder` to its end, and return its output.

    The command and its children are stopped afterwards. A nonzero exit code fails the test.
    """
    log = folder / "log"
    with log.open("w") as output:
        program = subprocess.Popen(
            command,
            cwd=folder,
            env=environment.clean_environ(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        program.wait(seconds)
    finally:
        stop(program)
    text = log.read_text()
    assert program.returncode == 0, text
    return text


def stop(program: subprocess.Popen[bytes]) -> None:
    """Terminate the process, then kill the rest of its process group."""
    if program.poll() is None:
        program.terminate()
        with suppress(subprocess.TimeoutExpired):
            program.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait(STOP_SECONDS)
