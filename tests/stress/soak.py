"""Send valid and malformed HTTP requests from several processes, and check every response.

`PYTHONPATH=tests python -m stress.soak [REQUESTS [PROCESSES [TRANSPORT ...]]]` sends 1,000,000
requests from 4 processes to each server; the default servers are `fast` and `granian-rsgi`
(support/http_servers.py). Each request has its own payload, which its response must contain. After
each fifth of the requests, the server must have closed all connections, including those on which
clients send nothing, and its memory is measured. It must not grow after the first fifth. The exit
code is 1 if a check failed.

The memory is measured while the server is idle, after it has collected garbage and called
`malloc_trim`. Otherwise, the resident memory depends on chance: after glibc has freed a block of
8 MB, it keeps up to 16 MB of free memory instead of returning it to the operating system
(M_MMAP_THRESHOLD in mallopt(3)).
"""

from __future__ import annotations

import gzip
import json
import math
import multiprocessing
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

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

N_REQUESTS, N_PROCESSES = 1_000_000, 4
N_ROUNDS = 5
DEFAULT_TRANSPORTS = ("fast", "granian-rsgi")
# In seconds, for a request and a response. The timeouts of the tests would be too short on a busy
# machine, where granian takes more than a second to receive 200 chunks.
TIMEOUT = 60.0
MAX_WRONG = 20  # descriptions that a process collects before it stops
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


class Memory(NamedTuple):
    """The memory of an idle server."""

    n_blocks: int  # of Python, which include all objects
    malloc_nbytes: int  # in use
    resident_nbytes: int  # of all processes; this includes memory that granian allocates


# How much more the server may use after the last round than after the first one: a constant, for
# caches, an amount per request, and one per gRPC call that the client cancelled or whose deadline
# expired. grpcio leaks the operations of such calls, up to 480 bytes of a call and 10 to 140 on
# average, whatever the method does (grpc/grpc#43360).
ALLOWED_GROWTH = Memory(1000, 50_000, 4 << 20)
ALLOWED_PER_REQUEST = (0.02, 5, 0)
ALLOWED_PER_CANCELLED = (0, 200, 200)


@dataclass
class Tally:
    """The numbers of requests by kind, and descriptions of wrong responses."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    n_cancelled: int = 0  # by the client, or because a deadline expired

    @property
    def n_all(self) -> int:
        return self.counts.total()


class Client:
    """Sends random requests over one connection, and opens another one when it is closed."""

    def __init__(self, transport: str, port: int, name: str) -> None:
        self.transport, self.port, self.name = transport, port, name
        self.rng = random.Random(name)
        self.n_sent = 0
        self.connection = Connection(port, TIMEOUT)
        # Without models that fail, because they write to the log, and without cases after which a
        # connection may be open or closed.
        self.exchanges = [
            (case, expected)
            for case in http_cases.CASES
            for expected in [case.expected(transport)]
            if expected.stays_open is not None and max(case.outcome.statuses) < 500
        ]
        self.kinds: list[tuple[int, Callable[[], int]]] = [
            (20, self.valid),
            (10, self.json_and_bytes),
            (8, self.in_chunks),
            (5, self.compressed),
            (5, self.in_parts),
            (12, self.pipelined),
            (25, self.malformed_message),
            (12, self.exchange),
            (3, self.vanishing),
            (3, self.silent),
        ]

    def reconnect(self) -> None:
        self.connection.socket.close()
        self.connection = Connection(self.port, TIMEOUT)

    def run(self) -> tuple[str, int]:
        """Send one or more requests, and check the responses. Return their kind and number."""
        weights = [weight for weight, _ in self.kinds]
        kind = self.rng.choices(self.kinds, weights)[0][1]
        return kind.__name__, kind()

    def request(self) -> Echo:
        self.n_sent += 1
        n = self.rng.choice([1, 1, 1, 10, 10, 100, 1000, 20_000])
        first = self.rng.getrandbits(40)
        return echo(f"{self.name}, request {self.n_sent}", tuple(range(first, first + n)))

    def valid(self) -> int:
        request = self.request()
        self.connection.send(post("echo", request))
        request.check(self.connection.read())
        return 1

    def json_and_bytes(self) -> int:
        """Send numbers, as JSON or as binary data, and a BYTES tensor."""
        self.n_sent += 1
        id = f"{self.name}, request {self.n_sent}"
        n, number = self.rng.choice([0, 1, 10, 1000, 30_000]), self.rng.getrandbits(31)
        x, words = np.full(n, number, np.int32), [id.encode(), b"\xff" * (n % 7)]
        is_binary = self.rng.random() < 0.5
        tensors = [tw.Tensor("x", x, binary=is_binary), tw.Tensor("words", words)]
        requested = [tw.RequestedOutput("words", binary=True)]
        requested.append(tw.RequestedOutput("x", binary=is_binary))
        frame = tw.encode_request(tw.InferRequest(tensors, requested, id=id))
        lines = [f"{name}: {value}" for name, value in frame.headers.items()]
        self.connection.send(head(START, lines) + bytes(frame))
        response = self.connection.read()
        assert response.status == 200, (id, response)
        found = tw.decode_response(response.body, tw.header_length(response.headers))
        assert found.id == id, (id, found.id)
        assert np.array_equal(found["x"].as_numpy(), x), id
        assert found["words"].as_numpy().tolist() == words, id
        assert found["x"].binary == is_binary, id
        return 1

    def in_chunks(self) -> int:
        request = self.request()
        sizes = tuple(self.rng.choices(range(1, 40), k=3))
        lines = [request.length_header, http_cases.CHUNKED]
        self.connection.send(head(START, lines) + chunked(request.body, sizes))
        request.check(self.connection.read())
        return 1

    def compressed(self) -> int:
        request = self.request()
        body = gzip.compress(request.body, 1)
        lines = [request.length_header, "Content-Encoding: gzip", f"Content-Length: {len(body)}"]
        self.connection.send(head(START, lines) + body)
        request.check(self.connection.read())
        return 1

    def in_parts(self) -> int:
        request = self.request()
        sent = post("echo", request)
        cuts = sorted(self.rng.choices(range(len(sent)), k=4))
        parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
        self.connection.send_in_parts(parts, 0.0005)
        request.check(self.connection.read())
        return 1

    def pipelined(self) -> int:
        n = self.rng.randrange(2, 20)
        requests = [self.request() if self.rng.random() < 0.8 else None for _ in range(n)]
        path = f"/v2/models/unknown-{self.n_sent}"
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
                assert path.rpartition("/")[2] in json.loads(response.body)["error"], response
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
            assert json.loads(response.body)["error"] == str(error), (case.id, response)
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
            self.reconnect()
        return 1

    def vanishing(self) -> int:
        """Send a part of a request, or read no response, and close the connection."""
        sent = post("echo", self.request())
        self.connection.send(sent[: self.rng.randrange(len(sent) + 1)])
        if self.rng.random() < 0.5:
            self.connection.reset()
        self.reconnect()
        return 1

    def silent(self) -> int:
        """Open a connection, send no request or only a part of it, and keep it open.

        Usually the client closes its sending direction. InferProtocol also closes a connection on
        which no request begins; granian does not.
        """
        if len(silent_connections) < MAX_SILENT:
            connection = Connection(self.port, TIMEOUT)
            sent = self.rng.choice([b"", b"\r\n", post("echo", self.request())[:-1]])
            connection.send(sent)
            if len(sent) > 2 or self.transport != "fast" or self.rng.random() < 0.5:
                connection.shut_down()
            silent_connections.append(connection)
        return 1


def run_client(transport: str, port: int, name: str, n_requests: int) -> Tally:
    """Send the requests of one process in one round."""
    while silent_connections:
        silent_connections.pop().socket.close()
    tally = Tally()
    client = Client(transport, port, name)
    while tally.n_all < n_requests and len(tally.wrong) < MAX_WRONG:
        try:
            kind, n = client.run()
        except (AssertionError, Closed, InvalidResponse, OSError, tw.TensorwireError) as error:
            tally.wrong.append(f"{client.name} after {tally.n_all}: {error!r}"[:1000])
            kind, n = "wrong", 1
            client.reconnect()
        tally.counts[kind] += n
    client.connection.socket.close()
    return tally


def measure(server: Server) -> Memory:
    """Wait until the server has closed all connections, and return its memory."""
    deadline = time.monotonic() + TIMEOUT
    while n_open := server.n_connections():
        assert time.monotonic() < deadline, f"the server has not closed {n_open} connections"
        time.sleep(0.05)
    with Connection(server.port, TIMEOUT) as connection:
        connection.send(post("memory", echo()))
        response = connection.read()
    found = tw.decode_response(response.body, tw.header_length(response.headers))
    n_blocks, malloc_nbytes = found["in_use"].as_numpy().tolist()
    return Memory(n_blocks, malloc_nbytes, server.resident_nbytes())


def growth(samples: list[Memory], n_requests: int, n_cancelled: int = 0) -> Iterator[str]:
    """Describe which sizes have grown too much from the first to the last sample."""
    amounts = zip(ALLOWED_GROWTH, ALLOWED_PER_REQUEST, ALLOWED_PER_CANCELLED, strict=True)
    allowed = [
        constant + per_request * n_requests + per_cancelled * n_cancelled
        for constant, per_request, per_cancelled in amounts
    ]
    sizes = zip(*samples, strict=True)
    for name, each, limit in zip(Memory._fields, sizes, allowed, strict=True):
        if each[-1] - each[0] > limit:
            yield f"{name} grows by {each[-1] - each[0]} in {n_requests} requests: {each}"


def run(
    title: str,
    work: Callable[..., Tally],
    arguments: tuple[Any, ...],
    measure: Callable[[], Memory],
    n_requests: int,
    n_processes: int,
) -> Tally:
    """Send requests in rounds, from several processes, and check the memory of the server.

    In each process, `work` gets the arguments, a name and a number of requests. Stop after a round
    with a wrong response.
    """
    share = math.ceil(n_requests / n_processes / N_ROUNDS)
    tally = Tally()
    samples: list[Memory] = []
    n_cancelled_later = 0  # after the first round
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool:
        for number in range(N_ROUNDS):
            names = [f"client {number}.{i}" for i in range(n_processes)]
            for part in pool.starmap(work, [(*arguments, name, share) for name in names]):
                tally.counts += part.counts
                tally.wrong += part.wrong
                n_cancelled_later += part.n_cancelled if number else 0
            if tally.wrong:
                return tally
            samples.append(measure())
    rate = tally.n_all / (time.perf_counter() - started)
    tally.wrong += growth(samples, share * n_processes * (N_ROUNDS - 1), n_cancelled_later)
    print(f"{title}: {tally.n_all} requests, {rate:.0f}/s; after each round:")
    for name, sizes in zip(Memory._fields, zip(*samples, strict=True), strict=True):
        print(f"  {name}: " + ", ".join(f"{size:,}" for size in sizes))
    print("  " + ", ".join(f"{n} {kind}" for kind, n in sorted(tally.counts.items())), flush=True)
    return tally


def soak(transport: str, n_requests: int, n_processes: int) -> Tally:
    """Start a server, send the requests, stop it, and count its error output as wrong."""
    with running(BY_NAME[transport], TIMEOUT) as server:
        arguments = server.name, server.port
        measured = partial(measure, server)
        tally = run(server.name, run_client, arguments, measured, n_requests, n_processes)
        printed = server.new_log()
    if "Traceback" in printed:
        tally.wrong.append(printed[printed.index("Traceback") :][:2000])
    return tally


def numbers_of_command() -> list[int]:
    """Return the number of requests and of processes."""
    numbers = [int(argument) for argument in sys.argv[1:3]]
    return numbers + [N_REQUESTS, N_PROCESSES][len(numbers) :]


def main() -> None:
    n_requests, n_processes = numbers_of_command()
    wrong = []
    for transport in sys.argv[3:] or DEFAULT_TRANSPORTS:
        tally = soak(transport, n_requests, n_processes)
        wrong += [f"{transport}: {text}" for text in tally.wrong]
    sys.exit("\n".join(wrong[:20]) or None)


if __name__ == "__main__":
    main()
