"""An HTTP/2 client of single steps, for tests that begin calls and do not finish them.

It sends frames (RFC 9113) over a socket. A thread answers SETTINGS and PING, as a client must, and
stores what arrives; without `answers`, nothing is read.
"""

from __future__ import annotations

import socket
import threading

from support.serve_process import HOST
from support.threads import wait_for

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_NBYTES = 16384


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header field in HPACK, as a literal that is not indexed and not compressed."""
    assert max(len(name), len(value)) < 127
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def grpc_message(message: bytes) -> bytes:
    """Return a message with its gRPC prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Http2Client:
    """A connection. `received` has the kind, the flags and the payload of each frame."""

    def __init__(self, port: int, answers: bool = True, window: int | None = None) -> None:
        self.socket = socket.create_connection((HOST, port), 10)
        self.socket.settimeout(None)
        self.lock = threading.Lock()
        self.received: list[tuple[int, int, bytes]] = []
        self.is_closed = False
        self.last_stream = -1
        settings = b""
        if window is not None:
            settings = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + window.to_bytes(4, "big")
        self.send(PREFACE + frame(SETTINGS, payload=settings))
        if answers:
            threading.Thread(target=self._answer, daemon=True).start()

    def send(self, data: bytes) -> None:
        with self.lock:
            self.socket.sendall(data)

    def begin(self, method: str, end: bool = False) -> Http2Client:
        """Begin a call, and end its request if `end` is true."""
        self.last_stream += 2
        fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "test"}
        fields |= {"te": "trailers", "content-type": "application/grpc"}
        block = b"".join(
            literal(name.encode(), value.encode(errors="surrogateescape"))
            for name, value in fields.items()
        )
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.send(frame(HEADERS, flags, self.last_stream, block))
        return self

    def data(self, data: bytes) -> Http2Client:
        """Send a part of the messages of the last call."""
        for i in range(0, len(data), MAX_FRAME_NBYTES):
            piece = data[i : i + MAX_FRAME_NBYTES]
            self.send(frame(DATA, 0, self.last_stream, piece))
        return self

    def has(self, kind: int) -> bool:
        return any(each[0] == kind for each in self.received)

    def wait(self, kind: int) -> Http2Client:
        """Wait for a frame of a kind."""
        wait_for(lambda: self.has(kind))
        return self

    def close(self) -> None:
        self.socket.close()

    def _answer(self) -> None:
        with self.socket.makefile("rb") as file:
            try:
                while len(head := file.read(9)) == 9:
                    self._answer_frame(head[3], head[4], file.read(int.from_bytes(head[:3], "big")))
            except OSError:
                pass
        self.is_closed = True

    def _answer_frame(self, kind: int, flags: int, payload: bytes) -> None:
        self.received.append((kind, flags, payload))
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.send(frame(kind, ACK, payload=payload if kind == PING else b""))
