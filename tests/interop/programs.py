"""Run scripts and servers, in the environments of other programs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from interop import environment
from support.requirements import package, skip_or_fail

REPLY_SECONDS = 5.0
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


def run(
    command: list[str], folder: Path, seconds: float, variables: dict[str, str] | None = None
) -> str:
    """Run a command in `folder` to its end, and return its output.

    The command and its children are stopped afterwards. A nonzero exit code fails the test.
    """
    log = folder / "log"
    environ = environment.clean_environ() | (variables or {})
    with started(command, log, cwd=folder, env=environ) as program:
        program.wait(seconds)
    assert program.returncode == 0
    return log.read_text()


@contextmanager
def started(
    command: list[str], log: Path, stop_seconds: float = STOP_SECONDS, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, such as a server. It and its children are stopped afterwards.

    Its log is printed, so that pytest shows it if a test fails. `options` are those of Popen.
    """
    with log.open("w") as output:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only pytest, which then stops the whole group
            **options,
        )
    try:
        yield program
    finally:
        stop(program, stop_seconds)
        print(log.read_text(errors="replace"))


def wait_until(
    is_ready: Callable[[], bool], program: subprocess.Popen[bytes], seconds: float
) -> None:
    """Wait until a server is ready. Fail if it ends before, or takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and program.poll() is None:
        if is_ready():
            return
        time.sleep(0.1)
    pytest.fail(f"not ready: {program.args!r}")


def wait_until_ready(
    urls: Sequence[str],
    program: subprocess.Popen[bytes],
    seconds: float,
    models: Sequence[str | None] = (None,),
) -> None:
    """Wait until the models, or the server as a whole, are ready at all URLs of a server."""
    client = package("tensorwire.client").Client
    with ExitStack() as stack:
        clients = [stack.enter_context(client(url, timeout=REPLY_SECONDS)) for url in urls]
        wait_until(
            lambda: all(client.is_ready(model) for client in clients for model in models),
            program,
            seconds,
        )


def stop(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> None:
    """Terminate a process, then kill the rest of its process group, such as Triton's stubs."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
    finally:  # also if a second Ctrl-C interrupts the wait
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
