"""Requests to whole servers: the model returns its input, one FP32 tensor, binary in both ways.

A round sends the same request on each connection before it reads the responses, with plain sockets.
The servers of a row have their rounds in turns.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .arrays import check, floats
from .measuring import in_turns
from .servers import LOOPBACK, Server, Servers

NAMES = {  # the contenders and the names of their servers
    "bare ASGI application": "bare ASGI application",
    "20 lines of ASGI": "20 lines of ASGI",
    "tensorwire serve": "tensorwire serve",
    "tensorwire serve, in_event_loop": "tensorwire serve, in_event_loop",
    "tensorwire serve, in a thread": "tensorwire serve, in a thread",
    "tensorwire, ASGI on uvicorn": "uvicorn",
    "Triton": "Triton",
    "KServe": "KServe",
    "KServe, drop-in": "KServe, drop-in",
    "MLServer": "MLServer",
    "MLServer, drop-in": "MLServer, drop-in",
}
# They take seconds for each: lists of Python numbers.
NOT_LARGE = {"KServe", "MLServer"}
LOADS = {  # the number of floats, connections, requests of a round on each, and rounds
    "128 B, 1 connection": (32, 1, 50, 30),
    "128 B, 8 connections": (32, 8, 10, 30),
    "1 MB, 1 connection": (250_000, 1, 1, 15),
    "1 MB, 8 connections": (250_000, 8, 1, 15),
    "16 MB, 1 connection": (4_000_000, 1, 1, 7),
}
LAST_CHUNK = b"0\r\n\r\n"
PATH = "/v2/models/identity_fp32/infer"


def request_bytes(n_floats: int, *, binary: bool) -> bytes:
    """Return a whole HTTP request: binary, or JSON in both ways."""
    tensor = tw.Tensor("INPUT0", floats(n_floats), binary=binary)
    frame = tw.encode_request(
        tw.InferRequest([tensor], parameters={"binary_data_output": True} if binary else {})
    )
    headers = {"Host": LOOPBACK, "Content-Length": str(len(frame)), **frame.headers}
    lines = [f"POST {PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + bytes(frame)


def read_response(connection: socket.socket, memory: bytearray) -> tuple[bytes, memoryview]:
    """Return the headers and the body, which is in the memory, and may be in chunks."""
    n, head = 0, -1
    while head < 0:
        n += received(connection, memoryview(memory)[n:])
        head = memory.find(b"\r\n\r\n", 0, n)
    headers = bytes(memory[:head]).lower()
    assert b" 200" in headers[:16], bytes(memory[:n])[:500]
    length = re.search(rb"\ncontent-length: (\d+)", headers)
    end = head + 4 + int(length[1]) if length else len(memory)
    while n < end and (length or not memory.endswith(LAST_CHUNK, head, n)):
        n += received(connection, memoryview(memory)[n:end])
    return headers, memoryview(memory)[head + 4 : n]


def joined_chunks(body: bytes) -> bytes:
    found = []
    while not body.startswith(LAST_CHUNK):
        size, _, body = body.partition(b"\r\n")
        found.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(found)


def received(connection: socket.socket, memory: memoryview) -> int:
    n = connection.recv_into(memory)
    if n == 0:
        raise ConnectionError("the server has closed the connection")
    return n


@contextmanager
def requesting(
    servers: Servers, name: str, n_floats: int, n_connections: int, n_requests: int
) -> Iterator[Callable[[], Any]]:
    """Yield a function that returns the last body of each connection, and its header length."""
    server: Server = servers.get(NAMES[name])
    request = request_bytes(n_floats, binary=name != "MLServer")
    memories = [bytearray(2 * len(request) + 4096) for _ in range(n_connections)]
    connections: list[socket.socket] = []

    def connect() -> None:
        while connections:
            connections.pop().close()
        for _ in memories:
            connections.append(socket.create_connection((LOOPBACK, server.port)))
            connections[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange() -> list[tuple[bytes, memoryview]]:
        for _ in range(n_requests):
            for connection in connections:
                connection.sendall(request)
            found = list(map(read_response, connections, memories))
        return found

    def run() -> list[tuple[bytes, memoryview]]:
        try:
            return exchange()
        except ConnectionError:  # closed while others had their turns; the next call is measured
            connect()
            return exchange()

    connect()
    try:
        yield run
    finally:
        for connection in connections:
            connection.close()


def check_response(found: list[tuple[bytes, memoryview]], n_floats: int) -> None:
    for headers, body in found:
        length = re.search(rb"inference-header-content-length: (\d+)", headers)
        sent = request_bytes(n_floats, binary=True)
        if sent.endswith(bytes(body)):  # of the bare application
            continue
        whole = joined_chunks(bytes(body)) if b"chunked" in headers else bytes(body)
        response = tw.decode_response(whole, int(length[1]) if length else None)
        check(response.outputs[0].as_numpy(), floats(n_floats))


def loads() -> list[Any]:
    large = {name for name in LOADS if "16 MB" in name or "8 connections" in name}
    marks = {name: [pytest.mark.large] if name in large else [] for name in LOADS}
    return [pytest.param(name, id=name, marks=marks[name]) for name in LOADS]


@pytest.mark.parametrize("load", loads())
def test_requests(benchmark: BenchmarkFixture, servers: Servers, load: str) -> None:
    n_floats, n_connections, n_requests, rounds = LOADS[load]
    benchmark.group = f"servers: {load}"
    benchmark.extra_info["calls"] = n_connections * n_requests  # the table has the time of one
    is_large = n_floats * n_connections > 250_000
    names = [name for name in NAMES if not (is_large and name in NOT_LARGE)]
    servers.start(NAMES[name] for name in names)
    contenders = {
        name: partial(requesting, servers, name, n_floats, n_connections, n_requests)
        for name in names
    }
    in_turns(benchmark, contenders, rounds, partial(check_response, n_floats=n_floats))
