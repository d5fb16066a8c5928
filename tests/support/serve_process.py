"""`tensorwire serve` as a process."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tensorwire.cli import serve

HOST = "127.0.0.1"
PROGRAM = (sys.executable, "-m", "tensorwire")


def parse(*arguments: str) -> argparse.Namespace:
    """Return the options of `tensorwire serve`. Raises SystemExit if they are wrong."""
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", *arguments])


def free_port() -> int:
    """Return a free port below those that the system gives to other sockets meanwhile."""
    for _ in range(100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, 10_000 + secrets.randbelow(20_000)))
            return int(probe.getsockname()[1])
    raise OSError("no port is free")


def is_listening(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a process accepts connections. Returns False if it ends, or after 30 seconds."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


class Serve:
    """A running process, whose working directory has the module of models `served_here`."""

    def __init__(
        self, folder: Path, models: str, arguments: Sequence[str], program: Sequence[str]
    ) -> None:
        (folder / "served_here.py").write_text(models)
        self.port, self.grpc_port = free_port(), free_port()
        self.address = f"{HOST}:{self.port}"
        self.ports: list[int] = []
        command = [*program, "serve", *arguments]
        if "--uds" not in arguments:
            command += ["--port", str(self.port)]
            self.ports.append(self.port)
        if "--grpc-port" in arguments:
            command.insert(command.index("--grpc-port") + 1, str(self.grpc_port))
            self.ports.append(self.grpc_port)
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def signal_all(self, number: int) -> None:
        """Send a signal to all processes, as a terminal does."""
        os.killpg(self.process.pid, number)

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Send a signal to the first process, wait for the end, and return what was printed."""
        self.process.send_signal(number)
        self.process.wait(20)
        return self.log.read_text()


@contextmanager
def serving(
    folder: Path, *arguments: str, models: str = "", program: Sequence[str] = PROGRAM
) -> Iterator[Serve]:
    """Run `tensorwire serve` with a free port, and another for `--grpc-port`."""
    found = Serve(folder, models, arguments, program)
    try:
        for port in found.ports:
            assert is_listening(port, found.process), found.log.read_text()
        yield found
    finally:
        with suppress(ProcessLookupError):
            found.signal_all(signal.SIGKILL)
        found.process.wait(10)
