"""Fixtures for tests of both clients over both transports, and responses of scripted servers."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorwire as tw
from support.grpc_scripted_servers import ScriptedServer
from support.requirements import package, skip_or_fail
from support.servers import Scripted, http, recording, uvicorn_server
from tensorwire.client import AsyncClient, AsyncResponseStream, Client
from tensorwire.server import Model, create_app

MiB = 1 << 20
X = np.arange(1000, dtype=np.float32)
FRAME = tw.encode_response(tw.InferResponse([tw.Tensor("x", X)]))
BODY = bytes(FRAME)
HEADERS = {k: v for k, v in FRAME.headers.items() if k != "Content-Length"}
GOOD = http(BODY, HEADERS)


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    saw = ",".join(sorted(request.parameters))
    return tw.InferResponse(request.inputs, id=request.id, parameters={"saw": saw})


async def slow(request: tw.InferRequest) -> tw.InferResponse:
    await asyncio.sleep(0.5)
    return tw.InferResponse(request.inputs)


declared = Model(lambda r: {"y": r["x"].as_numpy() * 2}, [tw.TensorSpec("x", "FP32", [-1])])
MODELS: dict[str, Any] = {"echo": echo, "slow": slow, "declared": declared}
seen: list[dict[str, Any]] = []
app = recording(create_app(MODELS, max_body_nbytes=128 * MiB), seen)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with uvicorn_server(app) as address:
        yield address


class Awaited:
    """An AsyncClient with blocking methods, so that a test can run with both clients.

    Its ``channel`` is a function that is called in the event loop. At the end, the event loop must
    not have reported errors, such as exceptions in callbacks.
    """

    loop_factory: Any = asyncio.SelectorEventLoop

    def __init__(
        self, url: str, *, channel: Callable[[], Any] | None = None, **options: Any
    ) -> None:
        async def make() -> AsyncClient:
            return AsyncClient(url, channel=channel and channel(), **options)

        self.runner = asyncio.Runner(loop_factory=self.loop_factory)
        self.client = self.runner.run(make()) if channel else AsyncClient(url, **options)
        self.reported: list[dict[str, Any]] = []
        self.runner.get_loop().set_exception_handler(self.report)

    def report(self, _: object, error: dict[str, Any]) -> None:
        # grpcio processes the events of all event loops in each, also those of closed ones.
        if "PollerCompletionQueue" not in error["message"]:
            self.reported.append(error)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            return self.runner.run(getattr(self.client, name)(*arguments, **named))

        return call

    def stream(self, *arguments: Any, **named: Any) -> AwaitedStream:
        async def begin() -> Any:
            return self.client.stream(*arguments, **named)

        return AwaitedStream(self.runner, self.runner.run(begin()))

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.runner.run(self.client.close())
        self.runner.close()
        assert kind is not None or not self.reported, self.reported


class AwaitedStream:
    """An AsyncResponseStream with blocking methods."""

    def __init__(self, runner: asyncio.Runner, stream: AsyncResponseStream) -> None:
        self.runner = runner
        self.stream = stream

    def __iter__(self) -> AwaitedStream:
        return self

    def __next__(self) -> Any:
        try:
            return self.runner.run(self.stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        self.runner.run(self.stream.close())


class AwaitedOnUvloop(Awaited):
    @staticmethod
    def loop_factory() -> Any:
        return package("uvloop").new_event_loop()


LOOPS = [Awaited.loop_factory, AwaitedOnUvloop.loop_factory]
Connect = Callable[..., Any]
CONNECT: dict[str, Connect] = {"sync": Client, "asyncio": Awaited, "uvloop": AwaitedOnUvloop}


@pytest.fixture(params=CONNECT)
def connect(request: pytest.FixtureRequest) -> Connect:
    return CONNECT[request.param]


@pytest.fixture
def client(connect: Connect, server: str) -> Iterator[Any]:
    with connect(server, timeout=20) as found:
        yield found


class Served(NamedTuple):
    """A server of one of the transports, and the requests that it has received."""

    url: str
    requests: list[dict[str, Any]]
    is_grpc: bool


@pytest.fixture(scope="module")
def grpc_server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def served(request: pytest.FixtureRequest) -> Served:
    if request.param == "http":
        return Served(f"http://{request.getfixturevalue('server')}", seen, False)
    server = request.getfixturevalue("grpc_server")
    return Served(server.url, server.calls, True)


class Certificate:
    """A self-signed certificate for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.key, self.file = str(folder / "key.pem"), str(folder / "cert.pem")
        make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test"
        name = ["-addext", "subjectAltName=IP:127.0.0.1"]
        out = ["-keyout", self.key, "-out", self.file]
        subprocess.run([*make.split(), *name, *out], check=True, capture_output=True)

    def trusting(self) -> ssl.SSLContext:
        """Return a context for a client that trusts the certificate."""
        return ssl.create_default_context(cafile=self.file)

    def serving(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if shutil.which("openssl") is None:
        skip_or_fail("openssl", "openssl is not installed")
    return Certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> Certificate | None:
    """The certificate of a server, or None for a server without TLS."""
    if request.param == "plain":
        return None
    found: Certificate = request.getfixturevalue("certificate")
    return found


class OnUnixSocket(Scripted):
    """A scripted server on a Unix socket."""

    def __init__(self, answers: Any, path: Path, backlog: int = 5) -> None:
        super().__init__(answers)
        self.listening.close()
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen(backlog)


class TlsScripted(Scripted):
    """A scripted server, with TLS if it has a certificate."""

    def __init__(self, answers: Any, certificate: Certificate | None) -> None:
        super().__init__(answers)
        self.certificate = certificate
        if certificate is not None:
            # The handshake is part of the first operation, so that its errors are those of serve.
            self.listening = certificate.serving().wrap_socket(
                self.listening, server_side=True, do_handshake_on_connect=False
            )


@contextmanager
def connect_to(server: TlsScripted, connect: Connect, **options: Any) -> Iterator[Any]:
    """Run a server, and yield a client of it."""
    scheme = "http"
    if server.certificate is not None:
        scheme = "https"
        options["ssl_context"] = server.certificate.trusting()
    with server, connect(f"{scheme}://{server.address}", **options) as client:
        yield client


def chunked(body: bytes, n_chunk: int = 100, end: bytes = b"0\r\n\r\n") -> bytes:
    """Return a body in the chunked transfer coding."""
    parts = [body[i : i + n_chunk] for i in range(0, len(body), n_chunk)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end
