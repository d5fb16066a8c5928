"""Servers on the loopback interface: uvicorn in a thread, and a server with scripted responses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

HOST = "127.0.0.1"


@contextmanager
def uvicorn_server(app: Any, **options: Any) -> Iterator[str]:
    """Run `app` on uvicorn in a thread; yield its `host:port`."""
    listening = socket.create_server((HOST, 0))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=5
    )
    for name, value in options.items():
        setattr(config, name, value)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    for _ in range(1000):
        if server.started:
            break
        time.sleep(0.01)
    assert server.started
    try:
        yield f"{HOST}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def recording(app: Any, requests: list[dict[str, Any]]) -> Any:
    """Return an ASGI app that calls `app`, and lists the peer, path and headers of requests."""

    async def recorded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {k.decode(): v.decode() for k, v in scope["headers"]}
            requests.append({"peer": scope["client"], "path": scope["path"], **headers})
        await app(scope, receive, send)

    return recorded


def play(connection: socket.socket, answer: Any) -> None:
    """Send bytes, wait for some seconds, or call a function; a tuple has several such steps."""
    for step in answer if isinstance(answer, tuple) else (answer,):
        if callable(step):
            step(connection)
        elif isinstance(step, float):
            time.sleep(step)
        else:
            connection.sendall(step)


class Scripted:
    """A server that reads requests and plays the given answers for each connection.

    `answers` has the answer to the first request of a connection, to the second, and so on; the
    connection is closed after the last. `heads` has the received request headers.
    `client_has_closed` is set when a client closes a connection, and the server waits for a request
    on it. `has_closed` is set when a connection is closed.
    """

    def __init__(self, answers: Sequence[Any], port: int = 0) -> None:
        self.answers = answers
        self.heads: list[str] = []
        self.body_nbytes: list[int] = []
        self.n_connections = 0
        self.client_has_closed = threading.Event()
        self.has_closed = threading.Event()
        self.listening = socket.create_server((HOST, port))
        self.address = f"{HOST}:{self.listening.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> Scripted:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # Windows, where closing is enough
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.thread.join(5)

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.n_connections += 1
            with connection, suppress(OSError):  # if the client has closed the connection
                self.serve(connection)
            self.has_closed.set()

    def serve(self, connection: socket.socket) -> None:
        for answer in self.answers:
            if not self.read(connection):
                self.client_has_closed.set()
                return
            play(connection, answer)

    def read(self, connection: socket.socket) -> bool:
        """Read one request without keeping its body."""
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = connection.recv(4096)
            if not chunk:
                return False
            head += chunk
        head, _, body = head.partition(b"\r\n\r\n")
        self.heads.append(head.decode().lower())
        length = 0
        for line in self.heads[-1].splitlines():
            if line.startswith("content-length:"):
                length = int(line.partition(":")[2])
        scratch, n_read = bytearray(1 << 16), len(body)
        while n_read < length:
            n_read += connection.recv_into(scratch) or length
        self.body_nbytes.append(n_read)
        return True


def http(
    body: bytes, headers: dict[str, str] | None = None, status: str = "200 OK", length: Any = None
) -> bytes:
    """Return an HTTP response. `length` replaces Content-Length, and "" omits it."""
    lines = [f"HTTP/1.1 {status}", *(f"{k}: {v}" for k, v in (headers or {}).items())]
    if length != "":
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body
