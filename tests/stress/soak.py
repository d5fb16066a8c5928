"""Send valid and malformed HTTP requests from several processes, and check every response.

`PYTHONPATH=tests python -m stress.soak [REQUESTS [PROCESSES [TRANSPORT ...]]]` sends 1,000,000
requests from 4 processes to each server of support/http_servers.py that is named, by default to
`fast`, which is `tensorwire serve`. Each request has its own payload, which its response must
contain. After each fifth of the requests, the server must have closed all connections, including
those on which clients send nothing, and its memory must not grow (stress/rounds.py). The exit code
is 1 if a check failed.

The memory is measured while the server is idle, after it has collected garbage and called
`malloc_trim`. Otherwise, the resident memory depends on chance: after glibc has freed a block of
8 MB, it keeps up to 16 MB of free memory instead of returning it to the operating system
(M_MMAP_THRESHOLD in mallopt(3)).
"""

from __future__ import annotations

import gzip
import re
import sys
import time
from functools import partial
from itertools import pairwise

import numpy as np

import tensorwire as tw
from support import cases, http_cases
from support.http_exchange import (
    Closed,
    Connection,
    Echo,
    InvalidResponse,
    chunked,
    echo,
    head,
    post,
)
from support.http_servers import BY_NAME, Server, running

from .rounds import TIMEOUT, Calls, Memory, run

MAX_SILENT = 50  # connections that a process keeps open in a round
silent_connections: list[Connection] = []  # of this process; closed in the next round

START = "POST /v2/models/echo/infer HTTP/1.1"
MALFORMED = [
    case
    for case in cases.MALFORMED
    if case.kind == "request"
    and len(case.body) < 5000
    and (case.header_length is None or re.fullmatch("[0-9]+", str(case.header_length)))
]


class HttpCalls(Calls):
    """Sends requests over one connection, and opens another one when it is closed."""

    WEIGHTS = {  # noqa: RUF012
        **{"valid": 20, "json_and_bytes": 10, "in_chunks": 8, "compressed": 5, "in_parts": 5},
        **{"pipelined": 12, "malformed_message": 25, "exchange": 12, "vanishing": 3, "silent": 3},
    }
    ERRORS = (AssertionError, Closed, InvalidResponse, OSError, tw.TensorwireError)

    def __init__(self, transport: str, port: int, name: str) -> None:
        super().__init__(name)
        while silent_connections:
            silent_connections.pop().socket.close()
        self.transport, self.port = transport, port
        self.connection = Connection(port, TIMEOUT)
        # Without models that fail, because they write to the log, and without cases after which a
        # connection may be open or closed.
        self.exchanges = [
            (case, expected)
            for case in http_cases.CASES
            for expected in [case.expected(transport)]
            if expected.stays_open is not None and max(case.outcome.statuses) < 500
        ]

    def close(self) -> None:
        self.connection.socket.close()

    def recover(self) -> None:
        self.close()
        self.connection = Connection(self.port, TIMEOUT)

    def infer(self, request: Echo, *parts: bytes) -> int:
        self.connection.send_in_parts([*parts], 0.0005)
        request.check(self.connection.read())
        return 1

    def valid(self) -> int:
        request = self.request()
        return self.infer(request, post("echo", request))

    def in_parts(self) -> int:
        request = self.request()
        sent = post("echo", request)
        cuts = [0, *sorted(self.rng.choices(range(len(sent)), k=4)), len(sent)]
        return self.infer(request, *(sent[a:b] for a, b in pairwise(cuts)))

    def in_chunks(self) -> int:
        request = self.request()
        lines = [request.length_header, http_cases.CHUNKED]
        sizes = tuple(self.rng.choices(range(1, 40), k=3))
        return self.infer(request, head(START, lines) + chunked(request.body, sizes))

    def compressed(self) -> int:
        request = self.request()
        body = gzip.compress(request.body, 1)
        lines = [request.length_header, "Content-Encoding: gzip", f"Content-Length: {len(body)}"]
        return self.infer(request, head(START, lines) + body)

    def json_and_bytes(self) -> int:
        """Send numbers, as JSON or as binary data, and a BYTES tensor."""
        id, numbers = self.numbers()
        x, words = np.array(numbers), [id.encode(), b"\xff" * (len(numbers) % 7)]
        is_binary = self.rng.random() < 0.5
        tensors = [tw.Tensor("x", x, binary=is_binary), tw.Tensor("words", words)]
        requested = [tw.RequestedOutput(t.name, binary=t.binary) for t in tensors]
        frame = tw.encode_request(tw.InferRequest(tensors, requested, id=id))
        lines = [f"{name}: {value}" for name, value in frame.headers.items()]
        self.connection.send(head(START, lines) + bytes(frame))
        found = self.connection.read().message
        assert (found.id, found["x"].binary) == (id, is_binary), (id, found.id)
        assert np.array_equal(found["x"].as_numpy(), x), id
        assert found["words"].as_numpy().tolist() == words, id
        return 1

    def pipelined(self) -> int:
        n = self.rng.randrange(2, 20)
        requests = [self.request() if self.rng.random() < 0.8 else None for _ in range(n)]
        path = f"/v2/models/unknown-{self.n_made}"
        other = http_cases.get(path)
        sent = [other if request is None else post("echo", request) for request in requests]
        if sum(map(len, sent)) > 100_000:  # the server may stop reading, and send would block
            sent, requests = sent[:1], requests[:1]
        self.connection.send(b"".join(sent))
        for request in requests:
            response = self.connection.read()
            if request is not None:
                request.check(response)
            else:
                assert response.status == 404, response
                assert path.rpartition("/")[2] in response.error, response
        return len(requests)

    def malformed_message(self) -> int:
        """Send a malformed message in a valid HTTP request."""
        case = self.rng.choice(MALFORMED)
        lines = [f"Content-Length: {len(case.body)}"]
        length = None if case.header_length is None else str(case.header_length)
        if length is not None:
            lines.append(f"Inference-Header-Content-Length: {length}")
        self.connection.send(head(START, lines) + case.body)
        response = self.connection.read()
        try:
            tw.decode_request(case.body, length)
        except tw.DecodeError as error:
            assert response.status == error.status, (case.id, response)
            assert response.error == str(error), (case.id, response)
        else:
            raise AssertionError(f"{case.id} is valid")
        return 1

    def exchange(self) -> int:
        """Send a case of support/http_cases.py."""
        case, expected = self.rng.choice(self.exchanges)
        self.connection.send(case.sent)
        responses = [self.connection.read(case.method) for _ in expected.statuses]
        statuses = tuple(response.status for response in responses)
        assert statuses == expected.statuses, (case.id, responses)
        if not expected.stays_open:
            assert self.connection.is_closed(TIMEOUT), case.id
            self.recover()
        return 1

    def vanishing(self) -> int:
        """Send a part of a request, or read no response, and close the connection."""
        sent = post("echo", self.request())
        self.connection.send(sent[: self.rng.randrange(len(sent) + 1)])
        if self.rng.random() < 0.5:
            self.connection.reset()
        self.recover()
        return 1

    def silent(self) -> int:
        """Open a connection, send no request or only a part of it, and keep it open.

        Usually the client closes its sending direction. InferProtocol also closes a connection on
        which no request begins; other servers do not.
        """
        if len(silent_connections) < MAX_SILENT:
            connection = Connection(self.port, TIMEOUT)
            sent = self.rng.choice([b"", b"\r\n", post("echo", self.request())[:-1]])
            connection.send(sent)
            if len(sent) > 2 or self.transport != "fast" or self.rng.random() < 0.5:
                connection.shut_down()
            silent_connections.append(connection)
        return 1


def measure(server: Server) -> Memory:
    """Wait until the server has closed all connections, and return its memory."""
    deadline = time.monotonic() + TIMEOUT
    while n_open := server.n_connections():
        assert time.monotonic() < deadline, f"the server has not closed {n_open} connections"
        time.sleep(0.05)
    with Connection(server.port, TIMEOUT) as connection:
        connection.send(post("memory", echo()))
        in_use = connection.read().message["in_use"].tolist()
    return Memory(in_use[0], in_use[1], server.resident_nbytes())


def soak(transport: str) -> list[str]:
    """Start a server, send the requests, stop it, and count its error output as wrong."""
    with running(BY_NAME[transport], TIMEOUT) as server:
        calls = partial(HttpCalls, transport, server.port)
        wrong = run(transport, calls, partial(measure, server))
        printed = server.new_log()
    if "Traceback" in printed:
        wrong.append(printed[printed.index("Traceback") :][:2000])
    return [f"{transport}: {text}" for text in wrong]


def main() -> None:
    wrong = [text for transport in sys.argv[3:] or ["fast"] for text in soak(transport)]
    sys.exit("\n".join(wrong[:20]) or None)


if __name__ == "__main__":
    main()
