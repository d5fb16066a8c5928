"""`tensorwire serve --grpc-port` as a subprocess."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import Certificate
from support.requirements import package
from tensorwire.cli import main
from tensorwire.client import Client

grpc = package("grpc")

import tensorwire.grpc  # noqa: E402
from support.grpc_served_app import HOST, UNLIMITED, free_port, message  # noqa: E402
from tensorwire.grpc_messages import SERVICE  # noqa: E402
from tensorwire.server import serve  # noqa: E402

pytestmark = pytest.mark.no_sanitizers(reason="it runs other programs")
certificate = client_fixtures.certificate

MODELS = """
import asyncio, os, time
import numpy as np
import tensorwire as tw
from tensorwire.server import create_app

def slow(request):
    time.sleep(float(request["x"].as_numpy()[0]))
    return tw.InferResponse(request.inputs)

async def hang(request):
    await asyncio.sleep(1000)

async def gate(request):
    while not os.path.exists(request.id):
        await asyncio.sleep(0.01)
    return tw.InferResponse(request.inputs)

def process(request):
    return {"process": os.getpid()}

models = {"echo": lambda request: tw.InferResponse(request.inputs), "slow": slow, "hang": hang,
          "gate": gate, "process": process}
app = create_app(models, max_body=5000)

async def other(scope, receive, send):
    pass
"""


class Serve:
    """A process of the command, and its ports."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        (folder / "served_here.py").write_text(MODELS)
        self.port, self.grpc_port = free_port(), free_port()
        self.log = folder / "log"
        command = [sys.executable, "-m", "tensorwire", "serve", *arguments]
        command += ["--port", str(self.port), "--grpc-port", str(self.grpc_port)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def wait_until_listening(self) -> None:
        deadline = time.monotonic() + 20
        for port in (self.grpc_port, self.port):
            while True:
                try:
                    socket.create_connection((HOST, port), 1).close()
                    break
                except OSError:
                    assert self.process.poll() is None, self.log.read_text()
                    assert time.monotonic() < deadline
                    time.sleep(0.05)

    def signal(self, number: int) -> None:
        """Send a signal to all processes, as a terminal does."""
        os.killpg(self.process.pid, number)

    def call(self, model: str, x: Any, **options: Any) -> Any:
        """Begin a call on a connection of its own, and return its future."""
        channel = grpc.insecure_channel(f"{HOST}:{self.grpc_port}", options=OPTIONS)
        sent = message(model, x, id=options.pop("id", ""))
        return channel.unary_unary(f"/{SERVICE}/ModelInfer").future(sent, **options)

    def infer(self, model: str, x: Any) -> tw.InferResponse:
        return tw.grpc.decode_response(self.call(model, x).result(20))


OPTIONS = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Serve]:
    found = Serve(folder, list(arguments))
    try:
        found.wait_until_listening()
        yield found
    finally:
        with suppress(ProcessLookupError):
            found.signal(signal.SIGKILL)
        found.process.wait(10)


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.slow(reason="two processes start"))]
)
def test_both_transports_and_graceful_shutdown(tmp_path: Path, workers: int) -> None:
    x = np.full(1, 1.0, np.float32)
    with serving(tmp_path, "served_here", "--workers", str(workers)) as server:
        with Client(f"{HOST}:{server.port}") as client:
            assert client.infer("echo", {"x": x})["x"].as_numpy().tolist() == [1]
        large = np.zeros(6 << 20, np.uint8)  # more than grpcio accepts by default
        assert server.infer("echo", large)["x"].as_numpy().nbytes == large.nbytes
        found = {int(server.infer("process", x)["process"].as_numpy()) for _ in range(30)}
        assert len(found) == workers
        calls = [server.call("slow", x) for _ in range(4)]
        over_http: list[Any] = []

        def infer() -> None:
            with Client(f"{HOST}:{server.port}") as client:
                over_http.append(client.infer("slow", {"x": x}))

        thread = threading.Thread(target=infer)
        thread.start()
        time.sleep(0.4)
        server.process.send_signal(signal.SIGTERM)
        for call in calls:
            assert tw.grpc.decode_response(call.result(20))["x"].as_numpy().tolist() == [1]
        thread.join(20)
        assert len(over_http) == 1
        assert server.process.wait(20) in (-signal.SIGTERM, 0)  # uvicorn decides
        log = server.log.read_text()
    processes = "1 process" if workers == 1 else "2 processes"
    addresses = f"http://{HOST}:{server.port} and grpc://{HOST}:{server.grpc_port}"
    assert f"serves echo, gate, hang, process, slow at {addresses} with InferProtocol" in log
    assert log.splitlines()[0].endswith(processes)
    assert "Traceback" not in log


@pytest.mark.thread_unsafe(reason="it measures time")
@pytest.mark.parametrize(
    ("workers", "number"),
    [
        (1, signal.SIGTERM),
        (1, signal.SIGINT),
        pytest.param(2, signal.SIGTERM, marks=pytest.mark.slow(reason="two processes start")),
        pytest.param(2, signal.SIGINT, marks=pytest.mark.slow(reason="two processes start")),
    ],
)
def test_both_transports_shut_down_at_once(tmp_path: Path, workers: int, number: int) -> None:
    """gRPC refuses calls, and finishes the ones in progress, before the HTTP requests end."""
    x = np.full(1, 1.0, np.float32)
    with serving(tmp_path, "served_here", "--workers", str(workers)) as server:
        over_http: list[Any] = []

        def infer() -> None:
            with Client(f"{HOST}:{server.port}") as client:
                over_http.append(client.infer("gate", {"x": x}, id="http"))

        thread = threading.Thread(target=infer)
        thread.start()
        calls = [server.call("gate", x, id="grpc") for _ in range(8)]
        time.sleep(0.3)
        server.signal(number)
        deadline = time.monotonic() + 10
        codes = [None]
        while codes[-1] is not grpc.StatusCode.UNAVAILABLE:
            error = server.call("echo", x, timeout=5).exception(10)
            codes.append(error and error.code())
            assert time.monotonic() < deadline
        # grpcio cancels a call that arrives while the server stops.
        assert {*codes} <= {None, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        assert not any(call.done() for call in calls)
        (tmp_path / "grpc").touch()
        for call in calls:
            assert tw.grpc.decode_response(call.result(20))["x"].as_numpy().tolist() == [1]
        time.sleep(0.3)
        assert thread.is_alive()
        assert server.process.poll() is None
        (tmp_path / "http").touch()
        thread.join(20)
        assert over_http[0]["x"].as_numpy().tolist() == [1]
        server.process.wait(20)
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.slow(reason="two processes start"))]
)
def test_interrupt_after_sigterm_ends_both_transports(tmp_path: Path, workers: int) -> None:
    x = np.zeros(1, np.float32)
    with serving(tmp_path, "served_here", "--workers", str(workers)) as server:
        errors: list[Any] = []

        def infer() -> None:
            with Client(f"{HOST}:{server.port}", retries=0) as client:
                with pytest.raises(Exception) as caught:
                    client.infer("hang", {"x": x})
                errors.append(caught.value)

        thread = threading.Thread(target=infer)
        thread.start()
        call = server.call("hang", x)
        time.sleep(0.3)
        server.signal(signal.SIGTERM)
        time.sleep(0.7)
        server.signal(signal.SIGTERM)  # only an interrupt does not wait
        time.sleep(0.3)
        assert server.process.poll() is None
        assert not call.done()
        server.signal(signal.SIGINT)
        server.process.wait(10)
        assert call.exception(10).code() == grpc.StatusCode.UNAVAILABLE
        thread.join(10)
        assert len(errors) == 1


def test_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    with serving(tmp_path, "served_here") as server:
        call = server.call("hang", np.zeros(1, np.float32))
        time.sleep(0.3)
        server.signal(signal.SIGINT)
        time.sleep(0.7)
        assert server.process.poll() is None
        server.signal(signal.SIGINT)
        server.process.wait(10)
        assert call.exception(10).code() == grpc.StatusCode.UNAVAILABLE
        assert "Traceback" not in server.log.read_text()


def test_limits(tmp_path: Path) -> None:
    with serving(tmp_path, "served_here:app", "--limit-concurrency", "1") as server:
        assert server.infer("echo", np.zeros(4000, np.uint8))["x"].as_numpy().nbytes == 4000
        error = server.call("echo", np.zeros(5000, np.uint8)).exception(10)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        hanging = server.call("hang", np.zeros(1))
        time.sleep(0.2)
        error = server.call("echo", np.zeros(1)).exception(10)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not hanging.done()


@pytest.mark.parametrize("is_joined", [False, True])
def test_certificate(tmp_path: Path, certificate: Certificate, is_joined: bool) -> None:
    """The key may be in the file of the certificate."""
    if is_joined:
        joined = tmp_path / "joined.pem"
        joined.write_text(Path(certificate.key).read_text() + Path(certificate.file).read_text())
        options = ["--ssl-certfile", str(joined)]
    else:
        options = ["--ssl-certfile", certificate.file, "--ssl-keyfile", certificate.key]
    with serving(tmp_path, "served_here", *options) as server:
        trusted = grpc.ssl_channel_credentials(Path(certificate.file).read_bytes())
        with grpc.secure_channel(f"{HOST}:{server.grpc_port}", trusted) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            response = tw.grpc.decode_response(call(message("echo"), timeout=10))
            assert response["x"].as_numpy().shape == (4,)
        error = server.call("echo", np.zeros(1), timeout=10).exception(10)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert f"grpcs://{HOST}:{server.grpc_port}" in server.log.read_text()


def test_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SystemExit):
            main(["serve", "--echo", "--grpc-port", str(port)])
    expected = f"--grpc-port: cannot listen at {HOST}:{port}: Address already in use\n"
    assert capsys.readouterr().err.endswith(expected)


def test_port_is_reserved_for_one_server() -> None:
    """Its processes can listen, another server cannot."""
    reserved = serve.reserve(HOST, 0)
    with reserved:
        port = reserved.getsockname()[1]
        with pytest.raises(serve.InvalidArgumentsError, match="Address already in use"):
            serve.reserve(HOST, port)
        for _ in range(2):
            with socket.socket() as worker:
                worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                worker.bind((HOST, port))
                worker.listen()
    serve.reserve(HOST, port).close()


def test_socket_that_cannot_be_bound_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port may be taken between the probe and the reservation."""
    opened: list[Any] = []

    class Socket(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self)

        def bind(self, address: Any) -> None:
            if len(opened) == 2:
                raise OSError(errno.EADDRINUSE, "Address already in use")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Socket)
    with pytest.raises(serve.InvalidArgumentsError, match="Address already in use"):
        serve.reserve(HOST, 0)
    assert [each.fileno() for each in opened] == [-1, -1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["served_here:other", "--grpc-port", "0"],
            "served_here:other was not created by create_app, which --grpc-port requires",
        ),
        (
            ["--echo", "--grpc-port", "8001", "--port", "8001"],
            "--port and --grpc-port must differ: both are 8001",
        ),
        (["--echo", "--grpc-port", "x"], "argument --grpc-port: must be 0 to 65535, not 'x'"),
        (
            ["--echo", "--grpc-port", "1", "--host", "no.such.host.invalid"],
            "--grpc-port: cannot listen at no.such.host.invalid:1: ",
        ),
    ],
)
def test_invalid_arguments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    (tmp_path / "served_here.py").write_text(MODELS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(SystemExit):
        main(["serve", *arguments])
    assert text in capsys.readouterr().err
    sys.modules.pop("served_here", None)


def test_without_grpcio(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "grpc.aio", None)
    with pytest.raises(SystemExit):
        main(["serve", "--echo", "--grpc-port", "0"])
    assert "grpcio is not installed: pip install 'tensorwire[grpc]'" in capsys.readouterr().err


def test_server_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of the event ends the process of uvicorn."""
    options = serve.Options(None, True, grpc={"address": "192.0.2.1:5"})
    monkeypatch.setenv("_TENSORWIRE_SERVE", json.dumps(options))
    port = free_port()
    script = f"""
import uvicorn
uvicorn.run("tensorwire.server.serve:create", factory=True, port={port})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 3
    assert "gRPC cannot listen at 192.0.2.1:5" in done.stderr
    assert "Traceback" not in done.stderr
