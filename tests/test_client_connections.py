"""Connections of the clients: reuse, threads, TLS; servers that are slow, silent or absent."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import client_fixtures
from support.client_fixtures import BODY, GOOD, HEADERS, Connect, MiB, X, app, free_port, seen
from support.servers import Scripted, http, uvicorn_server
from tensorwire.client import AsyncClient, Client, InferenceServerError

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client


def test_connection_is_reused(client: Any) -> None:
    before = len(seen)
    for _ in range(5):
        client.infer("echo", {"x": X})
        client.server_metadata()
        with pytest.raises(InferenceServerError):
            client.infer("fail", {"x": X})
    assert len({call["peer"] for call in seen[before:]}) == 1


def test_connection_closed_by_the_server_is_replaced(connect: Connect) -> None:
    with Scripted([GOOD, GOOD]) as server, connect(server.address, connections=1) as client:
        for _ in range(5):
            client.infer("m", {"x": X})
            time.sleep(0.05)  # until the client notices that the connection was closed
        assert server.n_connections == 3


def test_threads_share_a_client(server: str) -> None:
    with Client(server, connections=4) as client, ThreadPoolExecutor(16) as threads:
        before = len(seen)
        sizes = [1, 1000, 300_000] * 20
        answers = threads.map(lambda n: client.infer("echo", {"x": np.full(n, n)}), sizes)
        for n, answer in zip(sizes, answers, strict=True):
            assert (answer["x"].as_numpy() == n).all()
            assert answer["x"].shape == (n,)
    assert len({call["peer"] for call in seen[before:]}) <= 4


def test_tasks_run_concurrently(server: str) -> None:
    async def main() -> float:
        async with AsyncClient(server) as client:
            await client.infer("echo", {"x": X})
            start = time.perf_counter()
            answers = await asyncio.gather(
                *(client.infer("slow", {"x": np.full(1000 * i, i)}) for i in range(20))
            )
            for i, answer in enumerate(answers):
                assert answer["x"].as_numpy().tolist() == [i] * 1000 * i
            return time.perf_counter() - start

    assert asyncio.run(main()) < 2  # one after another, they would take 4 seconds


def test_client_is_usable_after_a_cancelled_call(server: str) -> None:
    async def main() -> None:
        async with AsyncClient(server, connections=1) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.infer("slow", {"x": X}), 0.05)
            answer = await client.infer("echo", {"x": X[:3]})
            assert answer["x"].shape == (3,)

    asyncio.run(main())


def test_closed_client_raises(connect: Connect, server: str) -> None:
    with connect(server) as client:
        assert client.is_ready()
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.infer("echo", {"x": X})


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://u:p@x", "http://x?q", "http://x#f", "http://x:99999"]
)
def test_invalid_urls_are_rejected(connect: Connect, url: str) -> None:
    with pytest.raises(ValueError):
        (Client if connect is Client else AsyncClient)(url)


def test_tls(connect: Connect, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test"
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    out = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *name, *out], check=True, capture_output=True)
    options = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}
    with uvicorn_server(app, **options) as address:
        trusting = ssl.create_default_context(cafile=str(certificate))
        with connect(f"https://{address}", ssl_context=trusting) as client:
            assert np.array_equal(client.infer("echo", {"x": X})["x"].as_numpy(), X)
        fails = pytest.raises(ConnectionError, match=r"(?i)certificate")
        with connect(f"https://{address}") as client, fails:
            client.infer("echo", {"x": X})


def test_inference_requests_are_not_retried(connect: Connect) -> None:
    with Scripted([b""]) as server, connect(server.address) as client:
        with pytest.raises(ConnectionError):
            client.infer("m", {"x": X})
        assert server.n_connections == 1
        with pytest.raises(ConnectionError):
            client.server_metadata()
        assert server.n_connections == (2 if connect is Client else 3)  # aiohttp repeats a GET


def test_cookies_are_not_kept(connect: Connect) -> None:
    answer = http(BODY, HEADERS | {"Set-Cookie": "a=b; Path=/"})
    server = Scripted([answer] * 2)
    # With an IP address, no client would keep cookies.
    named = server.address.replace("127.0.0.1", "localhost")
    with server, connect(named) as client:
        for _ in range(2):
            client.infer("m", {"x": X})
    assert len(server.heads) == 2
    assert "cookie" not in server.heads[1]


# --- servers that are slow, silent or absent ---


def test_connection_refused(connect: Connect) -> None:
    port = free_port()
    with connect(f"127.0.0.1:{port}") as client:
        with pytest.raises(ConnectionError, match=f"POST http://127.0.0.1:{port}/v2") as caught:
            client.infer("m", {"x": X})
        assert caught.value.__cause__ is not None


def silent(_: socket.socket) -> None:
    time.sleep(1)


def stalling(connection: socket.socket) -> None:
    connection.sendall(GOOD[:-10])
    time.sleep(1)


@pytest.mark.parametrize("answer", [silent, stalling])
def test_timeouts(connect: Connect, answer: Any) -> None:
    times_out = pytest.raises(TimeoutError, match="POST http://")
    with Scripted([answer]) as server, connect(server.address, timeout=0.2) as client, times_out:
        client.infer("m", {"x": X})
    times_out = pytest.raises(TimeoutError)
    with Scripted([answer]) as server, connect(server.address) as client, times_out:
        client.infer("m", {"x": X}, timeout=0.2)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_timeout_must_be_positive(connect: Connect, seconds: float) -> None:
    """aiohttp interprets 0 as no timeout."""
    message = f"a positive number of seconds or None, not {seconds}"
    with pytest.raises(ValueError, match=message), connect("127.0.0.1:1", timeout=seconds):
        pass
    with connect("127.0.0.1:1") as client, pytest.raises(ValueError, match=message):
        client.infer("m", {"x": X}, timeout=seconds)


def test_number_of_connections_must_be_positive(connect: Connect) -> None:
    """urllib3 would wait for a connection forever."""
    fails = pytest.raises(ValueError, match="connections must be 1 or more, not 0")
    with fails, connect("127.0.0.1:1", connections=0):
        pass


def test_timeout_applies_to_each_read(connect: Connect) -> None:
    """The whole response may take longer, also after a request in several chunks."""

    def drip(connection: socket.socket) -> None:
        for start in range(0, len(GOOD), len(GOOD) // 5 + 1):
            time.sleep(0.25)
            connection.sendall(GOOD[start : start + len(GOOD) // 5 + 1])

    with Scripted([drip]) as server, connect(server.address, timeout=0.8) as client:
        assert client.infer("m", {"x": np.zeros(MiB, np.float32)})["x"].shape == X.shape


def test_server_that_does_not_read_the_request(connect: Connect) -> None:
    done = threading.Event()

    class NeverReads(Scripted):
        def read(self, connection: socket.socket) -> bool:
            return not done.wait(5)

    with NeverReads([b""]) as server, connect(server.address, timeout=0.3) as client:
        started = time.perf_counter()
        with pytest.raises(TimeoutError):
            client.infer("m", {"x": np.zeros(8 * MiB, np.float32)})
        assert time.perf_counter() - started < 3
        done.set()
        time.sleep(0.1)  # until the client notices that the connection was closed
