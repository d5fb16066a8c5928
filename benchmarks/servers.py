"""The servers that the benchmarks and the interop tests speak to, each in processes of its own.

``Servers`` starts them by name, on free ports of the loopback, and stops all it has started.
``python -m benchmarks.servers PORT`` is the one in plain sockets.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import cache, partial
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorwire as tw
from tensorwire.asgi import Model, create_app

from .environments import interpreter
from .missing import Missing

__all__ = ["LOOPBACK", "Missing", "Servers", "receive_into"]

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0


# --- what they serve -------------------------------------------------------------------------


async def identity(request: tw.InferRequest) -> tw.InferResponse:
    """INPUT0 as OUTPUT0 and so on, like the models that the tests give to Triton."""
    outputs = [
        tw.Tensor(t.name.replace("INPUT", "OUTPUT"), t.data, datatype=t.datatype, shape=t.shape)
        for t in request.inputs
    ]
    return tw.InferResponse(outputs)


def model(*datatypes: str) -> Model:
    """``identity``, declared for vectors of these datatypes."""
    inputs, outputs = (
        [tw.TensorSpec(f"{name}{i}", datatype, [-1]) for i, datatype in enumerate(datatypes)]
        for name in ("INPUT", "OUTPUT")
    )
    return Model(identity, inputs, outputs)


app = create_app(
    {
        **{f"identity_{name.lower()}": model(name) for name in ("FP32", "FP16", "BYTES")},
        "two": model("FP32", "BYTES"),
    }
)


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The least that any app does: read the body, return it. It parses and checks nothing."""
    if scope["type"] != "http":
        return
    chunks, more = [], True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(chunks)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_raw(port: int) -> None:
    """Return what follows a length of 8 bytes, one connection after another, in kept memory."""
    memory = memoryview(bytearray())
    with socket.create_server((LOOPBACK, port)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, connection.makefile("rb", 0) as stream:
                while prefix := stream.read(8):
                    nbytes = int.from_bytes(prefix, "little")
                    if nbytes > len(memory):
                        memory = memoryview(bytearray(nbytes))
                    receive_into(connection, memory[:nbytes])
                    connection.sendall(memory[:nbytes])


def receive_into(connection: socket.socket, memory: memoryview) -> None:
    """Fill the memory."""
    while memory:
        n = connection.recv_into(memory)
        if n == 0:
            raise ConnectionError("the connection was closed too early")
        memory = memory[n:]


# --- starting and stopping -------------------------------------------------------------------


class Servers:
    """Servers by name, each started when first asked for; all are stopped at the end."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}
        self._failures: dict[str, Exception] = {}
        self._running = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()

    def port(self, name: str) -> int:
        """Where the server listens. Raises Missing; a failure to start is not tried again."""
        if name in self._failures:
            raise self._failures[name]
        if name not in self._ports:
            try:
                self._ports[name] = self._running.enter_context(SERVERS[name]())
            except Exception as error:
                self._failures[name] = error
                raise
        return self._ports[name]

    def versions(self) -> dict[str, str]:
        """Of the servers that no package here tells the version of."""
        return {"Triton": version_of(self._ports["Triton"])} if "Triton" in self._ports else {}


def asgi_command(server: str, name: str, port: int) -> list[str]:
    """One worker that serves ``name`` of this module."""
    options = {
        "uvicorn": ["--no-access-log", "--log-level=warning"],
        "granian": ["--interface=asgi", "--http=1", "--no-ws", "--log-level=warning"],
    }[server]
    if find_spec(server) is None:
        raise Missing(f"{server} is not installed")
    target = f"benchmarks.servers:{name}"
    return [sys.executable, "-m", server, *options, "--host", LOOPBACK, "--port", str(port), target]


def kserve_command(mode: str, port: int) -> list[str]:
    """By the interpreter of its environment, which may be the one at hand."""
    program = ["-m", "benchmarks.kserve_server", mode, str(port)]
    if find_spec("kserve"):
        return [sys.executable, *program]
    by = interpreter("kserve", make=False)
    return [
        "env",
        *(f"{name}={value}" for name, value in by.variables.items()),
        by.python,
        *program,
    ]


def raw_command(port: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.servers", str(port)]


@contextmanager
def running(command: Callable[[int], list[str]], is_up: Callable[[int], bool]) -> Iterator[int]:
    """The port of a server that ``command`` starts on it."""
    tools = triton_tools()
    with TemporaryDirectory(prefix="tensorwire-server-") as scratch:
        port, log = tools.free_port(), Path(scratch, "server.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(port),
                cwd=ROOT,  # where `benchmarks` is found
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that workers end with their parent
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not is_up(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{process.args!r} did not start:\n{tools.tail(log)}")
                time.sleep(0.05)
            yield port
        finally:
            tools.stop(process)


def accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1).close()
    except OSError:
        return False
    return True


def answers(port: int) -> bool:
    """A server may accept before its worker can answer."""
    connection = HTTPConnection(LOOPBACK, port, timeout=1)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def version_of(port: int) -> str:
    """What the server says of itself."""
    with closing(HTTPConnection(LOOPBACK, port, timeout=5)) as connection:
        connection.request("GET", "/v2")
        return str(json.load(connection.getresponse())["version"])


@contextmanager
def running_triton() -> Iterator[int]:
    """The port of a real Triton, in the folder that triton_setup.py has made."""
    tools, setup = triton_tools(), import_module("interop.triton_setup")
    folder = Path(os.environ.get("TENSORWIRE_TRITON") or setup.DEFAULT_FOLDER)
    if setup.read_marker(folder) is None:
        raise Missing(f"no Triton is installed; to install one: python {setup.__file__}")
    with tools.running_triton(folder) as triton:
        yield triton.port


@cache
def triton_tools() -> Any:
    """The tests' own module for servers, which pytest finds by itself."""
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module("interop.triton_server")


def asgi(server: str, name: str) -> AbstractContextManager[int]:
    return running(partial(asgi_command, server, name), answers)


SERVERS: dict[str, Callable[[], AbstractContextManager[int]]] = {
    "raw sockets": partial(running, raw_command, accepts),
    "bare app, uvicorn": partial(asgi, "uvicorn", "bare"),
    "bare app, granian": partial(asgi, "granian", "bare"),
    "uvicorn": partial(asgi, "uvicorn", "app"),
    "granian": partial(asgi, "granian", "app"),
    "Triton": running_triton,
    "KServe": partial(running, partial(kserve_command, "plain"), answers),
    "KServe on tensorwire": partial(running, partial(kserve_command, "installed"), answers),
}


if __name__ == "__main__":
    serve_raw(int(sys.argv[1]))
