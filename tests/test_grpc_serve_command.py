"""`tensorwire serve --grpc-port` as a subprocess."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures, serve_process
from support.client_fixtures import Certificate
from support.requirements import package
from support.serve_process import HOST, Serve
from support.threads import wait_for
from tensorwire.cli import main, serve
from tensorwire.cli.output import UsageError
from tensorwire.cli.sockets import reserve
from tensorwire.client import Client

grpc = package("grpc")

import tensorwire.grpc  # noqa: E402
from support.grpc_served_app import UNLIMITED, message  # noqa: E402
from support.http2_client import (  # noqa: E402
    DATA,
    END_STREAM,
    GOAWAY,
    PING,
    WINDOW_UPDATE,
    Http2Client,
    frame,
    grpc_message,
)
from tensorwire.grpc_messages import SERVICE  # noqa: E402

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
          "gate": gate, "process": process,
          "big": lambda request: {"y": np.zeros(1 << 24, np.uint8)}}
app = create_app(models, max_body_nbytes=5000)
"""


OPTIONS = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
serving = partial(serve_process.serving, models=MODELS)
GRPC = ("--grpc-port",)  # followed by a port that is free
ONE = np.ones(1, np.float32)


def call(server: Serve, model: str, x: Any = ONE, **options: Any) -> Any:
    """Begin a call on a connection of its own, and return its future."""
    channel = grpc.insecure_channel(f"{HOST}:{server.grpc_port}", options=OPTIONS)
    sent = message(model, x, id=options.pop("id", ""))
    return channel.unary_unary(f"/{SERVICE}/ModelInfer").future(sent, **options)


def infer(server: Serve, model: str, x: Any = ONE) -> tw.InferResponse:
    return tw.grpc.decode_response(call(server, model, x).result(20))


def call_over_http(server: Serve, model: str, id: str | None = None) -> Future[tw.InferResponse]:
    """Begin a call in a thread."""

    def infer() -> tw.InferResponse:
        with Client(server.address, retries=0) as client:
            return client.infer(model, {"x": ONE}, id=id)

    return ThreadPoolExecutor(1).submit(infer)


async def test_calls_up_to_the_limit_of_connections(tmp_path: Path) -> None:
    """grpcio would count calls that have just ended, and refuse others."""

    async def call_often(method: Any) -> None:
        for _ in range(200):
            await method(b"", timeout=10)

    with serving(tmp_path, *GRPC, "served_here", "--limit-concurrency", "4") as server:
        async with grpc.aio.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
            is_live = channel.unary_unary(f"/{SERVICE}/ServerLive")
            await asyncio.gather(*(call_often(is_live) for _ in range(20)))


def test_text_of_a_client_that_ends_its_connection(tmp_path: Path) -> None:
    """By default, the core of grpcio writes this text to the standard error without escaping it."""
    with serving(tmp_path, *GRPC, "served_here") as server:
        assert server.grpc_port is not None
        with contextlib.closing(Http2Client(server.grpc_port)) as client:
            error_code = (2).to_bytes(4, "big")
            client.send(frame(GOAWAY, payload=bytes(4) + error_code + b"\nERROR forged"))
            client.send(frame(PING, payload=bytes(8)))
            client.wait(PING)
    assert "forged" not in server.log.read_text()


def test_server_name_that_a_tls_client_sends(tmp_path: Path, certificate: Certificate) -> None:
    """grpcio would log it without escaping it, also with GRPC_VERBOSITY=ERROR."""
    context = ssl.create_default_context(cafile=certificate.file)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    tls = "--ssl-certfile", certificate.file, "--ssl-keyfile", certificate.key
    with serving(tmp_path, *GRPC, "served_here", *tls) as server:
        assert server.grpc_port is not None
        with socket.create_connection((HOST, server.grpc_port)) as sock:
            context.wrap_socket(sock, server_hostname="forged.example").close()
    assert "forged" not in server.log.read_text()


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.slow(reason="two processes start"))]
)
def test_both_transports_and_graceful_shutdown(tmp_path: Path, workers: int) -> None:
    with serving(tmp_path, *GRPC, "served_here", "--workers", str(workers)) as server:
        large = np.zeros(6 << 20, np.uint8)  # more than grpcio accepts by default
        assert infer(server, "echo", large)["x"].as_numpy().nbytes == large.nbytes
        found: set[int] = set()

        def all_have_replied() -> bool:
            found.add(int(infer(server, "process")["process"].as_numpy()))
            return len(found) >= workers

        wait_for(all_have_replied, 20)  # the second process may start later than the first
        found |= {int(infer(server, "process")["process"].as_numpy()) for _ in range(30)}
        assert len(found) == workers
        calls = [call(server, "slow") for _ in range(4)]
        over_http = call_over_http(server, "slow")
        time.sleep(0.4)
        server.process.send_signal(signal.SIGTERM)
        for each in calls:
            assert tw.grpc.decode_response(each.result(20))["x"].as_numpy().tolist() == [1]
        assert over_http.result(20)["x"].as_numpy().tolist() == [1]
        assert server.process.wait(20) in (-signal.SIGTERM, 0)  # uvicorn decides
        log = server.log.read_text()
    processes = "1 process" if workers == 1 else "2 processes"
    addresses = f"http://{HOST}:{server.port} and grpc://{HOST}:{server.grpc_port}"
    assert f"serves big, echo, gate, hang, process, slow at {addresses} with InferProtocol" in log
    assert f", {processes}\n" in log
    assert "Traceback" not in log


@pytest.mark.slow(reason="it waits for a timeout")
@pytest.mark.thread_unsafe(reason="it measures time")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_does_not_wait_for_a_client_that_does_not_read_a_large_response(
    tmp_path: Path, number: int
) -> None:
    """grpcio would wait for 20 seconds."""
    options = ("served_here", "--timeout-graceful-shutdown", "1")
    with serving(tmp_path, *GRPC, *options) as server:
        window = 2**31 - 1
        client = Http2Client(server.grpc_port, answers=False, window=window)
        client.send(frame(WINDOW_UPDATE, payload=(window - 65535).to_bytes(4, "big")))
        client.begin(f"/{SERVICE}/ModelInfer")
        client.send(frame(DATA, END_STREAM, client.last_stream, grpc_message(message("big"))))
        wait_for(lambda: len(client.socket.recv(1 << 20, socket.MSG_PEEK)) > 10_000)
        began_at = time.monotonic()
        server.process.send_signal(number)
        server.process.wait(30)
        assert time.monotonic() - began_at < 8
        client.close()
        log = server.log.read_text()
    assert "does not read the response of a gRPC call" in log
    assert "Traceback" not in log


@pytest.mark.slow(reason="it starts and stops servers")
@pytest.mark.thread_unsafe(reason="it measures time")
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_both_transports_shut_down_at_once(tmp_path: Path, workers: int, number: int) -> None:
    """gRPC refuses calls, and finishes the ones in progress, before the HTTP requests end."""
    with serving(tmp_path, *GRPC, "served_here", "--workers", str(workers)) as server:
        over_http = call_over_http(server, "gate", "http")
        calls = [call(server, "gate", id="grpc") for _ in range(8)]
        time.sleep(0.3)
        server.signal_all(number)
        deadline = time.monotonic() + 10
        codes = [None]
        while codes[-1] is not grpc.StatusCode.UNAVAILABLE:
            error = call(server, "echo", timeout=5).exception(10)
            codes.append(error and error.code())
            assert time.monotonic() < deadline
        # grpcio cancels a call that arrives while the server stops.
        assert {*codes} <= {None, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        assert not any(each.done() for each in calls)
        (tmp_path / "grpc").touch()
        for each in calls:
            assert tw.grpc.decode_response(each.result(20))["x"].as_numpy().tolist() == [1]
        time.sleep(0.3)
        assert not over_http.done()
        assert server.process.poll() is None
        (tmp_path / "http").touch()
        assert over_http.result(20)["x"].as_numpy().tolist() == [1]
        server.process.wait(20)
        assert "Traceback" not in server.log.read_text()


@pytest.mark.slow(reason="it waits for timeouts")
@pytest.mark.parametrize(("first", "workers"), [(signal.SIGTERM, 2), (signal.SIGINT, 1)])
def test_interrupt_after_a_signal_does_not_wait(
    tmp_path: Path, first: signal.Signals, workers: int
) -> None:
    with serving(tmp_path, *GRPC, "served_here", "--workers", str(workers)) as server:
        over_http = call_over_http(server, "hang")
        hanging = call(server, "hang")
        time.sleep(0.3)
        server.signal_all(first)
        time.sleep(0.7)
        if first is signal.SIGTERM:
            server.signal_all(first)  # only an interrupt does not wait
            time.sleep(0.3)
        assert server.process.poll() is None
        assert not hanging.done()
        server.signal_all(signal.SIGINT)
        server.process.wait(10)
        assert hanging.exception(10).code() == grpc.StatusCode.UNAVAILABLE
        assert over_http.exception(10) is not None


def test_limits(tmp_path: Path) -> None:
    with serving(tmp_path, *GRPC, "served_here:app", "--limit-concurrency", "2") as server:
        address = f"{HOST}:{server.grpc_port}"
        with grpc.insecure_channel(address, OPTIONS) as channel:
            method = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            assert len(method(message("echo", np.zeros(4000, np.uint8)), timeout=10)) > 4000
            error = method.future(message("echo", np.zeros(5000, np.uint8))).exception(10)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            unread = channel.unary_stream(f"/{SERVICE}/ModelInfer")
            open_calls = [unread(message("hang")), unread(message("big"))]
            time.sleep(0.2)
            error = method.future(message("echo")).exception(10)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not any(each.done() for each in open_calls)
            open_calls[1].cancel()
            wait_for(lambda: method.future(message("echo")).exception(10) is None)
            open_calls.append(unread(message("hang")))
            time.sleep(0.2)
            for each in open_calls:
                each.cancel()
            time.sleep(0.2)
            error = method.future(message("echo")).exception(10)  # the models run
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            with contextlib.ExitStack() as stack:
                # With the channel, 16 more than the limit, for health checks.
                others = [
                    stack.enter_context(socket.create_connection((HOST, server.grpc_port), 10))
                    for _ in range(18)
                ]
                assert others[-1].recv(1) == b""  # closed
                assert others[-2].recv(1) != b""
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("is_joined", [False, True])
def test_certificate(tmp_path: Path, certificate: Certificate, is_joined: bool) -> None:
    """The key may be in the file of the certificate."""
    options = ["--ssl-certfile", certificate.file, "--ssl-keyfile", certificate.key]
    if is_joined:
        options = ["--ssl-certfile", str(tmp_path / "joined.pem")]
        files = Path(certificate.key).read_text() + Path(certificate.file).read_text()
        (tmp_path / "joined.pem").write_text(files)
    with serving(tmp_path, *GRPC, "served_here", *options) as server:
        trusted = grpc.ssl_channel_credentials(Path(certificate.file).read_bytes())
        with grpc.secure_channel(f"{HOST}:{server.grpc_port}", trusted) as channel:
            method = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            response = tw.grpc.decode_response(method(message("echo"), timeout=10))
            assert response["x"].as_numpy().shape == (4,)
        error = call(server, "echo", timeout=10).exception(10)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert f"grpcs://{HOST}:{server.grpc_port}" in server.log.read_text()


def test_one_line_names_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    def error_of(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["serve", "--echo", "--grpc-port", *arguments])
        return capsys.readouterr().err

    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        expected = f"--grpc-port: cannot listen at {HOST}:{port}: Address already in use\n"
        assert error_of(str(port)).endswith(expected)
    expected = "--host: cannot listen at no.such.host.invalid:"
    assert expected in error_of("1", "--host", "no.such.host.invalid")


def test_port_is_reserved_for_one_server() -> None:
    """Its processes can listen, another server cannot."""
    [reserved] = reserve(HOST, 0)
    with reserved:
        port = reserved.getsockname()[1]
        with pytest.raises(UsageError, match="Address already in use"):
            reserve(HOST, port)
        for _ in range(2):
            with socket.socket() as worker:
                worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                worker.bind((HOST, port))
                worker.listen()
    reserve(HOST, port)[0].close()


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
    with pytest.raises(UsageError, match="Address already in use"):
        reserve(HOST, 0)
    assert [each.fileno() for each in opened] == [-1, -1]


def test_server_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process has taken the port from the reservation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "reserve", lambda *_: [])
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--echo", "--uds", "socket", "--host", "192.0.2.1", "--grpc-port", "5"])
    assert (caught.value.code, [*tmp_path.iterdir()]) == (3, [])
    printed = capsys.readouterr().err
    assert "ERROR tensorwire.server: gRPC cannot listen at 192.0.2.1:5" in printed
    assert "Traceback" not in printed
