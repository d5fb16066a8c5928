"""The app on a real uvicorn server: concurrent clients, clients that disconnect, memory."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorwire as tw
from support.servers import HOST, uvicorn_server
from tensorwire.client import AsyncClient, Client, InferenceServerError
from tensorwire.server import create_app

pytestmark = [
    pytest.mark.thread_unsafe(reason="the tests share a server"),
    pytest.mark.no_sanitizers(reason="it measures the memory of processes"),
]


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(request.inputs)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with uvicorn_server(create_app({"echo": echo})) as address:
        yield address


def test_200_concurrent_requests_of_mixed_sizes(address: str) -> None:
    """Every client gets the response to its own request."""

    async def call(client: AsyncClient, i: int) -> bool:
        if i % 5 == 4:
            with pytest.raises(InferenceServerError) as caught:
                await client.infer(f"nobody-{i}", {"x": np.full(i, i, np.int32)})
            return f"nobody-{i}" in str(caught.value)
        sent = np.full(1 << (i % 17), i, np.int32)
        found = (await client.infer("echo", {"x": sent}))["x"].as_numpy()
        return np.array_equal(found, sent)

    async def call_all() -> list[bool]:
        async with AsyncClient(address) as client:
            return await asyncio.gather(*(call(client, i) for i in range(200)))

    assert asyncio.run(call_all()) == [True] * 200


def request_text(frame: tw.Frame) -> bytes:
    lines = [f"{key}: {value}" for key, value in frame.headers.items()]
    head = ["POST /v2/models/echo/infer HTTP/1.1", "Host: x", *lines, "", ""]
    return "\r\n".join(head).encode() + bytes(frame)


BIG = tw.encode_request(
    tw.InferRequest(
        [tw.Tensor("x", np.zeros(4 << 20, np.float32))], parameters={"binary_data_output": True}
    )
)


@pytest.mark.parametrize(
    ("nbytes", "answers"), [(len(BIG), [b"100 Continue", b"200 OK"]), (1 << 32, [b"413 "])]
)
def test_expect_100_continue(address: str, nbytes: int, answers: list[bytes]) -> None:
    """The server sends 100 Continue, unless the announced body is too long."""
    host, port = address.split(":")
    head, _, body = request_text(BIG).partition(b"\r\n\r\n")
    head = head.replace(
        f"Content-Length: {len(BIG)}".encode(), f"Content-Length: {nbytes}".encode()
    )
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        for answer in answers:
            assert connection.recv(1000).startswith(b"HTTP/1.1 " + answer)
            if answer == b"100 Continue":
                connection.sendall(body)


@pytest.mark.parametrize("n_sent", [10, 1000, len(BIG) // 2, None])
def test_clients_that_disconnect(address: str, n_sent: int | None) -> None:
    """Clients disconnect during the request, or without reading the response."""
    host, port = address.split(":")
    text = request_text(BIG)
    for _ in range(5):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(text[:n_sent])
            if n_sent is None:
                assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    with Client(address) as client:
        assert client.infer("echo", {"x": np.arange(3)})["x"].as_numpy().tolist() == [0, 1, 2]


def peak_nbytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this machine has no /proc")
@pytest.mark.parametrize("interface", ["fast", "asgi"])
def test_memory_of_a_64_mb_echo(interface: str) -> None:
    """The server needs memory for one body and at most 8 MB. The response refers to the body."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorwire", "serve", "--echo", "--port", str(port)]
    server = subprocess.Popen([*command, "--http", interface])
    try:
        with Client(f"{HOST}:{port}") as client:
            deadline = time.monotonic() + 20
            while not client.is_ready() and time.monotonic() < deadline:
                time.sleep(0.05)
            client.infer("echo", {"x": np.zeros(1000, np.float32)})
            before = peak_nbytes(server.pid)
            sent = np.arange(16 << 20, dtype=np.float32)
            for _ in range(3):
                found = client.infer("echo", {"x": sent})["x"].as_numpy()
                assert found.ctypes.data % 64 == 0
                assert np.array_equal(found, sent)
            assert peak_nbytes(server.pid) - before < sent.nbytes + (8 << 20)
        server.send_signal(signal.SIGINT)
        server.wait(10)
    finally:
        os.kill(server.pid, signal.SIGKILL) if server.poll() is None else None
