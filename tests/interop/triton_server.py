"""Run the server that triton_setup.py installed, and send plain HTTP to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from interop.programs import started, wait_until
from interop.triton_models import MODELS, Model, write_models
from interop.triton_setup import library_path, read_marker, server_program

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
REPLY_SECONDS = 30.0


class Reply(NamedTuple):
    """An HTTP response; the names of the headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class TritonServer:
    """A running server: ``port`` for HTTP, ``grpc_port`` for gRPC."""

    host: str
    port: int
    grpc_port: int

    def post(self, path: str, body_buffers: Iterable[Buffer], headers: Mapping[str, str]) -> Reply:
        """Send the buffers one after the other; Content-Length is added unless it is given."""
        return self._exchange("POST", path, b"".join(body_buffers), headers)

    def is_ready(self) -> bool:
        """Return whether the server responds and has loaded all its models."""
        try:
            return self._exchange("GET", "/v2/health/ready", b"", {}).status == HTTPStatus.OK
        except OSError:
            return False

    def _exchange(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        with closing(HTTPConnection(self.host, self.port, timeout=REPLY_SECONDS)) as connection:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, received, response.read())


@contextmanager
def running_triton(
    folder: Path,
    models: Iterable[Model] = MODELS,
    stop_seconds: float = 20,
    more_options: Iterable[str] = (),
) -> Iterator[TritonServer]:
    """Run the server of this folder, with these models and `any`, on a free port.

    At the end, it has `stop_seconds` to stop by itself before it is killed.
    """
    folder = folder.resolve()  # the server runs in another folder
    recipe = read_marker(folder)
    if recipe is None:
        raise RuntimeError(f"no Triton in {folder}: run triton_setup.py first")
    with (
        TemporaryDirectory(prefix="tensorwire-triton-") as scratch,
        shared_memory_prefix() as shared_memory,
    ):
        repository, log = Path(scratch, "models"), Path(scratch, "server.log")
        write_models(repository, models)
        ports = free_ports(2)
        program = str(server_program(folder))
        command = [program, *options(folder, ports, repository, shared_memory), *more_options]
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": library_path(folder, recipe),
            "PATH": f"{recipe['programs']}:{os.environ.get('PATH', os.defpath)}",
        }
        # The stub's interpreter is isolated: it ignores PYTHONPATH, but looks first in the current
        # folder, which must therefore have the numpy that the stub was built for.
        site = folder / "site"
        with started(command, log, stop_seconds, cwd=site, env=environment) as process:
            server = TritonServer(LOOPBACK, ports[0], ports[1])
            wait_until(server.is_ready, process, START_SECONDS)
            yield server


@contextmanager
def shared_memory_prefix() -> Iterator[str]:
    """Yield a prefix for names of shared memory; at the end, remove what the server has left."""
    prefix = f"tensorwire-{uuid4().hex}-"
    try:
        yield prefix
    finally:
        for region in Path("/dev/shm").glob(f"{prefix}*"):
            region.unlink(missing_ok=True)


def free_ports(n_ports: int) -> list[int]:
    """Return different free ports: each is bound until all are found."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(n_ports)]
        for listener in listeners:
            listener.bind((LOOPBACK, 0))
        return [listener.getsockname()[1] for listener in listeners]


def options(folder: Path, ports: list[int], repository: Path, shared_memory: str) -> list[str]:
    """Return the command line: HTTP and gRPC on loopback, little shared memory per model."""
    port, grpc_port = ports
    return [
        f"--model-repository={repository}",
        f"--backend-directory={folder / 'backends'}",
        f"--http-address={LOOPBACK}",
        f"--http-port={port}",
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={grpc_port}",
        "--allow-metrics=false",
        # The configurations are complete. Autocompletion would start every stub once more.
        "--disable-auto-complete-config",
        "--backend-config=python,shm-default-byte-size=1048576",
        f"--backend-config=python,shm-region-prefix-name={shared_memory}",
    ]
