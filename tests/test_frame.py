"""Frame: sending it with http.client and sendmsg, and its properties."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

import tensorwire as tw

FRAME = tw.encode_request(
    tw.InferRequest([tw.Tensor("x", np.arange(70_000, dtype=np.int32)), tw.Tensor("y", ["a"])])
)


class Echo(BaseHTTPRequestHandler):
    """Returns the request body, and its header length."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        for name in ("Inference-Header-Content-Length", "Content-Type", "Content-Length"):
            self.send_header(name, self.headers[name])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_frame_is_sent_by_http_client(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/", body=FRAME, headers=FRAME.headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert body == bytes(FRAME)
    request = tw.decode_request(body, tw.header_length(response.headers))
    assert request["x"].as_numpy()[-1] == 69_999


def test_buffers_are_sent_by_sendmsg() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        n_sent = near.sendmsg(FRAME.buffers)
        assert far.recv(n_sent, socket.MSG_WAITALL) == bytes(FRAME)[:n_sent]


def test_frame_is_a_container_of_buffers() -> None:
    assert list(FRAME) == list(FRAME.buffers)
    assert len(FRAME) == sum(map(len, FRAME))
    assert b"".join(FRAME) == bytes(FRAME)
    assert repr(FRAME) == f"<Frame of {len(FRAME)} bytes in 3 buffers, header_length=192>"
    empty = tw.encode_raw_request(np.zeros(0, np.int8))
    assert (len(empty), bool(empty)) == (0, True)


def test_chunks() -> None:
    for most in (1000, 280_000, 1 << 30):
        chunks = list(FRAME.chunks(most))
        assert b"".join(chunks) == bytes(FRAME)
        assert max(map(len, chunks)) <= most
    memory = [np.frombuffer(chunk, np.uint8) for chunk in FRAME.chunks(1000)]
    assert np.shares_memory(memory[1], np.frombuffer(FRAME.buffers[1], np.uint8))
    assert list(tw.encode_raw_request(np.zeros(0, np.int8)).chunks(10)) == []


def test_buffers_are_read_only() -> None:
    for buffer in FRAME.buffers[1:]:
        assert isinstance(buffer, memoryview)
        assert (buffer.readonly, buffer.format, buffer.ndim) == (True, "B", 1)
