"""The HTTP servers that serve ``support.http_models``, each as a process on the loopback interface.

To test another server, add a row to ``TRANSPORTS``.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .http_exchange import HOST
from .http_models import MAX_BODY, RECEIVE_TIMEOUT, RECEIVE_TIMEOUT_VARIABLE
from .requirements import skip_or_fail
from .serve_process import free_port, is_listening

TESTS = Path(__file__).parent.parent
_LISTEN = "0A"  # a state in /proc/net/tcp


@dataclass(frozen=True)
class Transport:
    """A server, and how it is started."""

    name: str
    package: str  # skip the tests if it is not installed
    arguments: str  # of python; {port} and {receive_timeout} are replaced

    def command(self, **values: float) -> list[str]:
        return [sys.executable, *self.arguments.format(**values).split()]


# Without WebSockets, as the manual recommends.
_UVICORN = "-m uvicorn support.http_models:app --no-access-log --ws none --port {port}"
ASGI_PROTOCOL = "tensorwire.server.uvicorn_asgi:AsgiProtocol"
_GRANIAN = "-m granian --interface asgi support.http_models:app --port {port}"
_SERVE = (
    "-m tensorwire serve support.http_models:models --port {port} "
    f"--max-body {MAX_BODY} --receive-timeout {{receive_timeout}} --compress-responses"
)

TRANSPORTS = (
    Transport("asgi-h11", "uvicorn", f"{_UVICORN} --http h11"),
    Transport("asgi-httptools", "uvicorn", f"{_UVICORN} --http {ASGI_PROTOCOL}"),
    Transport("fast", "uvicorn", _SERVE),
    Transport("granian", "granian", _GRANIAN),
    Transport(
        "hypercorn",
        "hypercorn",
        f"-m hypercorn support.http_models:app --keep-alive 1 --bind {HOST}:{{port}}",
    ),
)
BY_NAME = {transport.name: transport for transport in TRANSPORTS}


class Server:
    """A running server process."""

    def __init__(
        self, transport: Transport, process: subprocess.Popen[bytes], port: int, log: BinaryIO
    ) -> None:
        self.transport, self.process, self.port, self.log = transport, process, port, log
        self.n_logged = 0

    @property
    def name(self) -> str:
        return self.transport.name

    def processes(self) -> list[int]:
        """Return the ids of the process and of its worker processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [self.process.pid, *map(int, children.read_text().split())]

    def resident_nbytes(self) -> int:
        pages = (Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in self.processes())
        return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")

    def n_connections(self) -> int:
        """Return the number of connections that the server has not closed."""
        found = 0
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            port, state, inode = int(fields[1].partition(":")[2], 16), fields[3], fields[9]
            found += port == self.port and state != _LISTEN and inode != "0"
        return found

    def new_log(self) -> str:
        """Return what the server has printed since the last call."""
        data = os.pread(self.log.fileno(), 1 << 24, self.n_logged)
        self.n_logged += len(data)
        return data.decode(errors="replace")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:  # a model that never returns
            for pid in reversed(self.processes()):
                os.kill(pid, signal.SIGKILL)
            self.process.wait(10)


@contextmanager
def running(transport: Transport, receive_timeout: float = RECEIVE_TIMEOUT) -> Iterator[Server]:
    """Start a server, and stop it at the end."""
    if importlib.util.find_spec(transport.package) is None:
        skip_or_fail(transport.package, f"{transport.package} is not installed")
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        **os.environ,
        RECEIVE_TIMEOUT_VARIABLE: str(receive_timeout),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    with tempfile.TemporaryFile() as log:
        port = free_port()
        process = subprocess.Popen(
            transport.command(port=port, receive_timeout=receive_timeout),
            env=variables,
            cwd=TESTS,
            stdout=log,
            stderr=log,
        )
        server = Server(transport, process, port, log)
        try:
            if not is_listening(port, process):
                raise AssertionError(f"{transport.name} does not start: {server.new_log()}")
            yield server
        finally:
            server.stop()
