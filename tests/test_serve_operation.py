"""`tensorwire serve` as an operator runs it: probes, processes, shutdown, logs, memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import Certificate
from support.http_exchange import connect
from support.memory import status_nbytes
from support.requirements import optional
from support.serve_process import HOST, PROGRAM, Serve, serving
from support.threads import wait_for
from tensorwire.client import Client, InferenceServerError

grpc = optional("grpc")

certificate = client_fixtures.certificate
pytestmark = [
    pytest.mark.thread_unsafe(reason="the tests start processes"),
    pytest.mark.slow(reason="they wait for processes"),
]

MODELS = """
import asyncio, os, time
import numpy as np
from tensorwire.server import Model

def mean(request):
    return {"mean": request["x"].as_numpy().mean(keepdims=True)}

async def hang(request):
    await asyncio.sleep(60)

async def hang_and_end(request):
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.2)

def fail(request):
    raise ValueError("a secret\\n2026-01-01 00:00:00,000 INFO uvicorn: forged")

def sleep(request):
    time.sleep(60)

async def sleep_in_thread(request):
    await asyncio.to_thread(sleep, request)

async def leave_in_thread(request):
    asyncio.ensure_future(sleep_in_thread(request))
    await asyncio.sleep(0.1)
    return echo(request)

def echo(request):
    return {"x": request["x"].as_numpy()}

def block(request):
    time.sleep(1.5)
    return echo(request)

block = Model(block, in_event_loop=True)

def wait(request):
    while not os.path.exists("opened"):
        time.sleep(0.01)
    return echo(request)

def pause(request):
    time.sleep(0.1)
    return echo(request)

pause = Model(pause, in_event_loop=True)

models = {"mean": mean, "hang": hang, "hang_and_end": hang_and_end, "fail": fail,
    "sleep": sleep, "echo": echo, "wait": wait,
    "sleep_in_thread": sleep_in_thread, "leave_in_thread": leave_in_thread, "block": block,
    "pause": pause}
"""
X = {"x": np.arange(4, dtype=np.float32)}
MEAN = b"POST /v2/models/mean/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n%b"
BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[2]}]}'
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [a-z.]+: ")


def request(model: str = "mean", headers: bytes = b"", body: bytes = BODY) -> bytes:
    return MEAN.replace(b"mean", model.encode()) % (len(body), headers, body)


def status_of(address: str, sent: bytes) -> int:
    with connect(address) as connection:
        return connection.ask(sent).status


# --- probes ---


def test_probes_are_answered_at_the_limit(tmp_path: Path) -> None:
    options = ["--limit-concurrency", "5", "--metrics"]
    with (
        serving(tmp_path, "served_here:models", *options, models=MODELS) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(5):
            stack.enter_context(connect(server.address)).send(request("hang"))
        time.sleep(0.3)
        for path in (b"/v2/health/live", b"/v2/health/ready", b"/metrics"):
            assert status_of(server.address, LIVE.replace(b"/v2/health/live", path)) == 200
        assert status_of(server.address, request()) == 503
        connection = stack.enter_context(connect(server.address))
        metrics = connection.ask(LIVE.replace(b"/v2/health/live", b"/metrics")).body.decode()
        assert 'tensorwire_rejected_requests_total{limit="limit_concurrency"} 1.0' in metrics


def test_idle_connections_make_room(tmp_path: Path) -> None:
    """As many connections are admitted as the limit says, and the oldest is closed for another."""
    options = ["--limit-concurrency", "5"]
    with (
        serving(tmp_path, "served_here:models", *options, models=MODELS) as server,
        contextlib.ExitStack() as stack,
    ):
        idle = [stack.enter_context(connect(server.address)) for _ in range(5)]
        assert [each.ask(request()).status for each in idle] == [200] * 5
        time.sleep(1.2)
        assert [each.ask(request()).status for each in idle[1:]] == [200] * 4
        assert status_of(server.address, request()) == 200
        assert idle[0].at_end()
        assert idle[1].ask(request()).status == 200


@pytest.mark.skipif(grpc is None, reason="grpcio is not installed")
def test_health_checks_beside_idle_grpc_streams(tmp_path: Path) -> None:
    options = ["--limit-concurrency", "20", "--grpc-port"]
    with (
        serving(tmp_path, "served_here:models", *options, models=MODELS) as server,
        grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel,
    ):
        infer = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        never = threading.Event()
        streams = [infer(iter(never.wait, True)) for _ in range(20)]
        time.sleep(0.5)
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=5) == b"\x08\x01"
        with pytest.raises(grpc.RpcError, match="limit_concurrency is 20") as caught:
            next(infer(iter(never.wait, True)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        never.set()
        for each in streams:
            each.cancel()


# --- processes ---


@pytest.mark.no_sanitizers(reason="it measures the memory of a process")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this machine has no /proc")
def test_only_workers_load_the_models(tmp_path: Path) -> None:
    loads = (
        MODELS
        + """
with open("loaded", "a") as file:
    file.write(f"{os.getpid()} {time.monotonic()}\\n")
array = np.ones(50_000_000)
time.sleep(1)
"""
    )
    options = ["served_here:models", "--workers", "2"]
    with serving(tmp_path, *options, models=loads) as server:
        wait_for(lambda: "serves" in server.log.read_text(), 20)
        wait_for(lambda: len((tmp_path / "loaded").read_text().splitlines()) == 2, 20)
        lines = [line.split() for line in (tmp_path / "loaded").read_text().splitlines()]
        assert str(server.process.pid) not in [process for process, _ in lines]
        assert abs(float(lines[0][1]) - float(lines[1][1])) < 1  # side by side
        assert status_nbytes("VmRSS", server.process.pid) < 150e6


def test_process_that_cannot_load_the_models(tmp_path: Path) -> None:
    server = Serve(tmp_path, "import missing_module", ["served_here", "--workers", "2"], PROGRAM)
    assert server.process.wait(20) == 2
    log = server.log.read_text()
    assert "ModuleNotFoundError: No module named 'missing_module'" in log
    assert "Traceback" not in log
    assert " serves " not in log


def children_of(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this machine has no /proc")
def test_processes_that_are_killed(tmp_path: Path) -> None:
    """One of several is replaced. They end with the first one.

    The parent ignores SIGCHLD, as some do, and so the first process would not get their exit codes.
    """
    program = ("bash", "-c", """trap "" CHLD; exec "$0" "$@" """, *PROGRAM)
    folders = tmp_path / "folders"
    folders.mkdir()
    options = ["served_here:models", "--workers", "2", "--metrics"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folders))
        with serving(tmp_path, *options, models=MODELS, program=program) as server:
            wait_for(lambda: "serves" in server.log.read_text(), 20)
            assert list(folders.glob("tensorwire-metrics-*"))
            workers = children_of(server.process.pid)
            assert len(workers) >= 2
            started = "Application startup complete"
            wait_for(lambda: server.log.read_text().count(started) == 2, 20)
            [killed, *_] = re.findall(r"Started server process \[(\d+)\]", server.log.read_text())
            os.kill(int(killed), signal.SIGKILL)
            wait_for(lambda: server.log.read_text().count(started) == 3, 20)
            workers = children_of(server.process.pid)
            server.process.kill()
            server.process.wait(10)
            wait_for(lambda: not any(Path(f"/proc/{each}").exists() for each in workers), 20)
            assert not list(folders.glob("tensorwire-metrics-*"))


# --- shutdown ---


def call_repeatedly(
    address: str, n: int, is_over: Callable[[], bool], **options: Any
) -> list[Exception]:
    """Return the errors of n calls or more, one after another."""
    errors: list[Exception] = []
    with Client(address, retries=0, timeout=20, **options) as client:
        while n > 0 or not is_over():
            n -= 1
            try:
                assert client.infer("mean", X)["mean"].tolist() == [1.5]
            except (ConnectionError, InferenceServerError) as error:
                errors.append(error)
                time.sleep(0.01)
    return errors


def test_restart_by_sighup(tmp_path: Path) -> None:
    """No call fails, also if the new models cannot be loaded.

    All processes get the signal, as from a terminal that closes.
    """
    options = ["served_here:models", "--workers", "2"]
    with serving(tmp_path, *options, models=MODELS) as server, ThreadPoolExecutor(8) as pool:
        over = threading.Event()
        calls = [pool.submit(call_repeatedly, server.address, 10, over.is_set) for _ in range(8)]

        def restart(models: str, is_over: Callable[[str], bool]) -> None:
            (tmp_path / "served_here.py").write_text(models)
            server.signal_all(signal.SIGHUP)
            wait_for(lambda: is_over(server.log.read_text()), 30)

        try:
            wait_for(lambda: server.log.read_text().count("startup complete") == 2, 20)
            restart("1 / 0", lambda log: "so the old ones remain: cannot load served_here" in log)
            restart(MODELS, lambda log: log.count("Finished server process") == 2)
        finally:
            over.set()
        assert [error for each in calls for error in each.result(60)] == []
        assert server.log.read_text().count("startup complete") == 4
        assert "resource_tracker" not in server.log.read_text()


def test_first_interrupt_waits_for_the_requests_of_processes_that_end(tmp_path: Path) -> None:
    """All processes get it from a terminal, for these as the second signal."""
    options = ["served_here:models", "--workers", "2"]
    with (
        serving(tmp_path, *options, models=MODELS) as server,
        Client(server.address, timeout=20) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        wait_for(lambda: server.log.read_text().count("startup complete") == 2, 20)
        waiting = pool.submit(client.infer, "wait", X)
        time.sleep(0.5)
        for pid in re.findall(r"Started server process \[([0-9]+)\]", server.log.read_text()):
            os.kill(int(pid), signal.SIGTERM)
        wait_for(lambda: server.log.read_text().count("Shutting down") == 2, 20)
        server.signal_all(signal.SIGINT)
        time.sleep(0.5)
        (tmp_path / "opened").touch()
        assert waiting.result(20)["x"].tolist() == X["x"].tolist()
        assert server.process.wait(20) == 0


@pytest.mark.skipif(grpc is None, reason="grpcio is not installed")
def test_restart_by_sighup_with_tls_and_grpc(tmp_path: Path, certificate: Certificate) -> None:
    """Over gRPC, calls that begin or connect while a process stops may fail."""
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(certificate.file).read_text())
    options = ["served_here:models", "--workers", "2", "--grpc-port"]
    options += ["--ssl-certfile", str(chain), "--ssl-keyfile", certificate.key]
    trusted = grpc.ssl_channel_credentials(Path(certificate.file).read_bytes())
    with (
        serving(tmp_path, *options, models=MODELS) as server,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(8) as pool,
    ):
        over = threading.Event()
        address = f"{HOST}:{server.grpc_port}"
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.secure_channel(address, trusted, own) for _ in range(4)]
        clients = [(f"grpcs://{address}", {"channel": stack.enter_context(c)}) for c in channels]
        clients += [(f"https://{server.address}", {"ssl_context": certificate.trusting()})] * 4
        calls = [
            pool.submit(call_repeatedly, url, 10, over.is_set, **option) for url, option in clients
        ]
        try:
            wait_for(lambda: server.log.read_text().count("startup complete") == 2, 20)
            chain.write_text("renewed badly")
            server.process.send_signal(signal.SIGHUP)
            problem = f"so the old ones remain: --ssl-certfile: {chain} does not contain"
            wait_for(lambda: problem in server.log.read_text(), 30)
            chain.write_text(Path(certificate.file).read_text())
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: server.log.read_text().count("Finished server process") == 2, 30)
        finally:
            over.set()
        errors = [each.result(60) for each in calls]
        assert errors[4:] == [[]] * 4
        assert {getattr(e, "status", 503) for each in errors for e in each} <= {499, 503}
        for url, option in clients:
            with Client(url, **option) as client:
                client.wait_until_ready("mean", 20)
                assert client.infer("mean", X)["mean"].tolist() == [1.5]
        assert "Traceback" not in server.log.read_text()


def test_socket_of_the_next_server(tmp_path: Path) -> None:
    """It starts while the first one works on its last request, and has the same path."""
    (tmp_path / "b").mkdir()
    with contextlib.ExitStack() as stack:
        path = Path(stack.enter_context(TemporaryDirectory()), "socket")
        options = ["served_here:models", "--uds", str(path)]
        pool = stack.enter_context(ThreadPoolExecutor(1))
        client = stack.enter_context(Client(f"unix:{path}", timeout=20))
        first = stack.enter_context(serving(tmp_path, *options, models=MODELS))
        client.wait_until_ready(timeout=20)
        call = pool.submit(client.infer, "wait", X)
        time.sleep(0.3)
        first.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not path.exists(), 10)
        stack.enter_context(serving(tmp_path / "b", *options, models=MODELS))
        client.wait_until_ready(timeout=20)
        assert not call.done()
        (tmp_path / "opened").touch()
        assert call.result(20)["x"].tolist() == X["x"].tolist()
        first.process.wait(20)
        assert client.infer("mean", X)["mean"].tolist() == [1.5]


@pytest.mark.parametrize("workers", [1, 2])
def test_shutdown_refuses_connections_that_are_not_served(tmp_path: Path, workers: int) -> None:
    options = ["served_here:models", "--workers", str(workers)]
    with serving(tmp_path, *options, models=MODELS) as server, ThreadPoolExecutor(8) as pool:
        over = threading.Event()
        calls = [pool.submit(call_repeatedly, server.address, 10, over.is_set) for _ in range(8)]
        time.sleep(0.5)
        server.stop()
        over.set()
        errors = [str(error) for each in calls for error in each.result(20)]
        assert [each for each in errors if "refused" not in each] == []


@pytest.mark.parametrize("http", ["fast", "asgi"])
@pytest.mark.parametrize("n_workers", [1, 2])
def test_requests_that_arrive_while_the_event_loop_is_blocked(
    tmp_path: Path, http: str, n_workers: int
) -> None:
    """They get replies if they arrive before SIGTERM."""
    options = ["served_here:models", "--http", http, "--workers", str(n_workers)]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, *options, models=MODELS))
        connections = [stack.enter_context(connect(server.address))]
        connections[0].send(request("block"))
        time.sleep(0.3)
        # uvloop accepts one connection in each turn, which runs a model.
        for _ in range(20):
            connections.append(stack.enter_context(connect(server.address)))
            connections[-1].send(request("pause"))
        server.stop()
        assert [each.read().status for each in connections] == [200] * 21


@pytest.mark.parametrize("http", ["fast", "asgi"])
def test_requests_that_arrive_while_the_process_is_suspended(tmp_path: Path, http: str) -> None:
    """Afterwards, the event loop runs what is due, such as the end of idle connections, first."""
    options = ["served_here:models", "--http", http, "--timeout-keep-alive", "2"]
    with (
        serving(tmp_path, *options, models=MODELS) as server,
        connect(server.address) as new,
        connect(server.address) as idle,
    ):
        idle.send(request())
        assert idle.read().status == 200
        server.process.send_signal(signal.SIGSTOP)
        for each in (new, idle):
            each.send(request())
        time.sleep(2.2)
        server.process.send_signal(signal.SIGCONT)
        assert [each.read().status for each in (new, idle)] == [200, 200]


def test_process_that_stops_with_its_first_request(tmp_path: Path) -> None:
    """It has told the first process that it serves."""
    models = "import os, signal\n\ndef stop(request):\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
    with (
        serving(tmp_path, "served_here:stop", "--workers", "2", models=models) as server,
        connect(server.address) as connection,
    ):
        connection.send(request("stop"))
        wait_for(lambda: "does not respond" in server.log.read_text(), 15)


@pytest.mark.parametrize("model", ["hang", "hang_and_end"])
@pytest.mark.parametrize("http", ["fast", "asgi"])
def test_request_that_the_shutdown_cuts_off(tmp_path: Path, http: str, model: str) -> None:
    options = ["served_here:models", "--timeout-graceful-shutdown", "1", "--http", http]
    with (
        serving(tmp_path, *options, models=MODELS) as server,
        connect(server.address) as connection,
    ):
        connection.send(request(model, headers=b"X-Request-Id: r9\r\n"))
        time.sleep(0.3)
        log = server.stop()
        answer = connection.read()
    assert (answer.status, answer.error) == (503, "the server is shutting down")
    assert "Traceback" not in log
    line = f"the shutdown has cancelled a request: model '{model}' (version 1, request 'r9')\n"
    assert f" WARNING {'uvicorn.error' if http == 'fast' else 'tensorwire.server'}: {line}" in log


# The kernel does not end the first process of a container by a signal without a handler.
FIRST_PROCESS = (
    "import os, tensorwire.cli; os.getpid = lambda: 1; os.kill = lambda *_: None; "
    "tensorwire.cli.main()"
)


@pytest.mark.parametrize(
    ("number", "model", "script", "status"),
    [
        (signal.SIGTERM, "sleep", "", -signal.SIGTERM),
        (signal.SIGINT, "sleep", "", -signal.SIGINT),
        (signal.SIGINT, "sleep_in_thread", "", -signal.SIGINT),
        (signal.SIGTERM, "sleep", FIRST_PROCESS, 0),
    ],
)
def test_shutdown_does_not_wait_for_threads(
    tmp_path: Path, number: int, model: str, script: str, status: int
) -> None:
    """The threads of models cannot be stopped. The file of the Unix socket is removed."""
    program = (sys.executable, "-c", script) if script else PROGRAM
    with TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        options = ["served_here:models", "--timeout-graceful-shutdown", "1", "--uds", path]
        with serving(tmp_path, *options, models=MODELS, program=program) as server:
            with Client(f"unix:{path}", timeout=20) as client, ThreadPoolExecutor(1) as pool:
                client.wait_until_ready(timeout=20)
                call = pool.submit(client.infer, model, X)
                time.sleep(0.3)
                server.stop(number)
                with pytest.raises(InferenceServerError, match="shutting down"):
                    call.result(10)
            assert server.process.returncode == status
            assert not Path(path).exists()


LOADING = "import time; print('loading', flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("number", "options", "script", "status"),
    [
        (signal.SIGTERM, [], "", -signal.SIGTERM),
        (signal.SIGTERM, [], FIRST_PROCESS, 0),
        (signal.SIGTERM, ["--uds", "socket"], "", -signal.SIGTERM),
        (signal.SIGINT, [], "", -signal.SIGINT),
        (signal.SIGINT, ["--uds", "socket"], "", -signal.SIGINT),
        (signal.SIGTERM, ["--workers", "2"], "", 0),
        (signal.SIGINT, ["--workers", "2"], "", 0),
    ],
)
def test_shutdown_while_models_are_loaded(
    tmp_path: Path, number: int, options: list[str], script: str, status: int
) -> None:
    program = (sys.executable, "-c", script) if script else PROGRAM
    server = Serve(tmp_path, LOADING, ["served_here:models", *options], program)
    try:
        n_loading = 2 if "--workers" in options else 1
        wait_for(lambda: server.log.read_text().count("loading") == n_loading, 30)
        if number == signal.SIGINT:
            server.signal_all(number)
            server.process.wait(20)
        log = server.stop(number)
        assert server.process.returncode == status
        assert "serve: error:" not in log
        assert "Traceback" not in log
        assert not (tmp_path / "socket").exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.signal_all(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_does_not_wait_for_a_thread_without_a_request(tmp_path: Path, number: int) -> None:
    with serving(tmp_path, "served_here:models", models=MODELS) as server:
        assert status_of(server.address, request("leave_in_thread")) == 200
        server.stop(number)
        assert server.process.returncode == -number


# --- logs, addresses ---


def test_lines_of_the_log(tmp_path: Path) -> None:
    with serving(tmp_path, "served_here:models", models=MODELS) as server:
        body = BODY.replace(b"{", b'{"id":"of the body",', 1)
        assert status_of(server.address, request("fail", body=body)) == 500
        header = b"X-Request-Id: of the header\r\n"
        assert status_of(server.address, request("fail", headers=header)) == 500
        log = server.stop()
    for name in ("of the body", "of the header"):
        line = f" ERROR tensorwire.server: model 'fail' (version 1, request '{name}') failed\n"
        assert f"{line}  Traceback (most recent call last):" in log
    assert "  ValueError: a secret\n  2026-01-01 00:00:00,000 INFO uvicorn: forged\n" in log
    others = [line for line in log.splitlines() if not LOG_LINE.match(line) and line[:2] != "  "]
    assert [line.split()[0] for line in others] == ["tensorwire"]  # it serves ...


def test_log_config(tmp_path: Path) -> None:
    handler = {"class": "logging.FileHandler", "filename": "file.log"}
    config = {"version": 1, "handlers": {"file": handler}, "root": {"handlers": ["file"]}}
    config["disable_existing_loggers"] = False
    (tmp_path / "log.json").write_text(json.dumps(config))
    options = ["served_here:models", "--log-config", "log.json"]
    with serving(tmp_path, *options, models=MODELS) as server:
        assert status_of(server.address, request("fail")) == 500
        server.stop()
    assert "model 'fail' (version 1) failed" in (tmp_path / "file.log").read_text()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.skipif(grpc is None, reason="grpcio is not installed")
@pytest.mark.parametrize("host", ["::", "0.0.0.0"])
def test_wildcards_are_all_addresses(tmp_path: Path, host: str) -> None:
    options = ["served_here:models", "--host", host, "--grpc-port"]
    with serving(tmp_path, *options, models=MODELS) as server:
        for address in ("127.0.0.1", "[::1]"):
            for url in (f"{address}:{server.port}", f"grpc://{address}:{server.grpc_port}"):
                with Client(url) as client:
                    client.wait_until_ready(timeout=20)
                    assert client.infer("mean", X)["mean"].tolist() == [1.5]


# --- memory ---


LIMITED = ("bash", "-c", 'ulimit -v 2097152; exec "$0" "$@"', sys.executable, "-m", "tensorwire")
LAST = """
def last(request):
    return {"y": request["x"].as_numpy()[-1:]}

models = {"last": last}
"""


@pytest.mark.no_sanitizers(reason="it limits the address space")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
@pytest.mark.parametrize(
    "http",
    ["fast", pytest.param("asgi", marks=pytest.mark.nightly(reason="it takes 15 seconds"))],
)
def test_large_uploads_wait_for_memory(tmp_path: Path, http: str) -> None:
    """Uploads of 200 MB to a process with an address space of 2 GB."""
    n = 30
    x = np.ones(200_000_000, np.uint8)
    options = ["served_here:models", "--http", http]
    with serving(tmp_path, *options, models=LAST, program=LIMITED) as server:

        def upload() -> Any:
            with Client(server.address, timeout=120) as client:
                return client.infer("last", {"x": x})["y"].tolist()

        with ThreadPoolExecutor(n) as pool:
            uploads = [pool.submit(upload) for _ in range(n)]
            slowest = 0.0
            while not all(each.done() for each in uploads):
                begin = time.monotonic()
                assert status_of(server.address, LIVE) == 200
                slowest = max(slowest, time.monotonic() - begin)
                time.sleep(0.1)
            assert [each.result() for each in uploads] == [[1]] * n
        assert slowest < 5  # the timeout of the probe in the manual


@pytest.mark.parametrize("http", ["fast", "asgi"])
def test_upload_that_waits_too_long(tmp_path: Path, http: str) -> None:
    options = ["served_here:models", "--max-body-memory", "800000", "--receive-timeout", "1"]
    with (
        serving(tmp_path, *options, "--metrics", "--http", http, models=MODELS) as server,
        connect(server.address) as first,
        connect(server.address) as second,
    ):
        x = np.zeros(900_000, np.uint8)
        frame = tw.encode_request(tw.InferRequest({"x": x}))
        header = f"Inference-Header-Content-Length: {frame.header_length}\r\n".encode()
        first.send(request("hang", headers=header, body=bytes(frame)))
        time.sleep(0.2)
        second.send(request("mean", body=bytes(400_000)))
        answer = second.read()
        assert answer.status == 503
        text = "the server is overloaded: the limit is 800000 bytes of requests in progress"
        assert answer.error == text
        with Client(server.address) as client:
            assert client.infer("mean", X)["mean"].tolist() == [1.5]
