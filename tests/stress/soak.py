"""Call `tensorwire serve` over HTTP and gRPC from several processes, and check every response.

`PYTHONPATH=tests python -m stress.soak [CALLS [PROCESSES]]` makes 1,000,000 calls from 4 processes,
which use HTTP and gRPC in turn: valid ones with `Client` and `AsyncClient`, streams, HTTP in parts
and pipelined; malformed messages and HTTP, unknown models, expired deadlines, cancelled calls, and
connections that are closed or kept at any time. Each inference has its own payload, which its
response must contain. After each fifth of the calls, the server must have closed all HTTP
connections, and its memory must not grow after the first one. The exit code is 1 if a check failed.

The memory is measured while the server is idle, after it has collected garbage and called
`malloc_trim`. Otherwise, the resident memory depends on chance: after glibc has freed a block of
8 MB, it keeps up to 16 MB of free memory instead of returning it to the operating system
(M_MMAP_THRESHOLD in mallopt(3)).
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple

import grpc
import numpy as np

import tensorwire as tw
import tensorwire.grpc
from support import cases, grpc_cases, http_cases
from support.http_exchange import Closed, Connection, Echo, InvalidResponse, echo, head, post
from support.http_servers import BY_NAME, Server, running
from support.serve_process import HOST, free_port
from tensorwire.client import AsyncClient, Client
from tensorwire.grpc_messages import SERVICE

N_CALLS, N_PROCESSES, N_ROUNDS = 1_000_000, 4, 5
# In seconds, for a call. The timeouts of the tests would be too short on a busy machine.
TIMEOUT = 60.0
MAX_WRONG = 20  # descriptions that a process collects before it stops
MAX_SILENT = 50  # connections that a process keeps open in a round
LENGTHS = [1, 1, 1, 10, 10, 100, 1000, 20_000]
START = "POST /v2/models/echo/infer HTTP/1.1"
MALFORMED_GRPC = [
    *(b"\x2a\xff", b"\x0a\x05echo", b"\x00\x01", grpc_cases.REQUEST[:-1]),
    tw.grpc.encode_request(tw.InferRequest({"x": np.zeros(1)}, model_name="unknown")),
]


def malformed_messages() -> Iterator[http_cases.Case]:
    """Yield malformed messages in valid HTTP requests."""
    for case in cases.MALFORMED:
        length = "" if case.header_length is None else str(case.header_length)
        if case.kind == "request" and len(case.body) < 5000 and re.fullmatch("[0-9]*", length):
            lines = [f"Content-Length: {len(case.body)}"]
            lines += [f"Inference-Header-Content-Length: {length}"] if length else []
            try:
                tw.decode_request(case.body, length or None)
            except tw.DecodeError as error:
                outcome = http_cases.error(error.status, str(error))
                yield http_cases.Case(case.id, head(START, lines) + case.body, outcome)


# Without models that fail, because they write to the log, and without cases after which a
# connection may be open or closed.
EXCHANGES = [
    case
    for case in (*http_cases.CASES, *malformed_messages())
    if case.is_for("fast")
    and case.outcome.stays_open is not None
    and 500 not in case.outcome.statuses
]
silent_connections: list[Connection] = []  # of this process; closed in the next round


class Memory(NamedTuple):
    """The memory of an idle server."""

    n_blocks: int  # of Python, which include all objects
    malloc_nbytes: int  # in use
    resident_nbytes: int  # of all processes


# How much more the server may use after the last round than after the first one: a constant, for
# caches, an amount per call, and one per gRPC call that the client cancelled or whose deadline
# expired. grpcio leaks the operations of such calls, up to 480 bytes of a call and 10 to 140 on
# average, whatever the method does (grpc/grpc#43360).
ALLOWED_GROWTH = Memory(1000, 50_000, 4 << 20)
ALLOWED_PER_CALL = (0.02, 5, 0)
ALLOWED_PER_CANCELLED = (0, 200, 200)
Check = Callable[[tw.InferResponse], None]


@dataclass
class Tally:
    """The numbers of calls by kind, and descriptions of wrong responses."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    n_cancelled: int = 0  # by the client, or because a deadline expired


class Calls:
    """Makes the calls of one process in one round, and checks the responses."""

    WEIGHTS: ClassVar[dict[str, int]]  # how often each method is called, which returns its calls
    ERRORS = (AssertionError, Closed, InvalidResponse, OSError, tw.TensorwireError, grpc.RpcError)

    def __init__(self, url: str, name: str) -> None:
        self.name, self.rng = name, random.Random(name)
        self.n_made = self.n_cancelled = 0
        self.client = Client(url, timeout=TIMEOUT)
        self.async_client = AsyncClient(url, timeout=TIMEOUT)
        self.runner = asyncio.Runner()

    def close(self) -> None:
        self.client.close()
        self.runner.run(self.async_client.close())
        self.runner.close()

    def recover(self) -> None:
        """Prepare the next call after a wrong one."""

    def numbers(self) -> tuple[str, range]:
        """Return an id and the numbers of a request. Both are different for each request."""
        self.n_made += 1
        first = self.rng.getrandbits(40)
        numbers = range(first, first + self.rng.choice(LENGTHS))
        return f"{self.name}, request {self.n_made}", numbers

    def made(self, model: str | None = None) -> tuple[tw.InferRequest, Check]:
        """Return a request, and a function that checks its response."""
        id, numbers = self.numbers()
        x, words = np.array(numbers), [id.encode(), b"\xff" * (self.n_made % 7)]

        def check(response: tw.InferResponse) -> None:
            assert response.id == id, (response.id, id)
            assert np.array_equal(response["x"].as_numpy(), x), id
            assert response["words"].as_numpy().tolist() == words, id

        tensors = [tw.Tensor("x", x, binary=self.rng.random() < 0.5), tw.Tensor("words", words)]
        return tw.InferRequest(tensors, id=id, model_name=model), check

    def valid(self) -> int:
        request, check = self.made()
        check(self.client.infer("echo", request))
        return 1

    def concurrent(self) -> int:
        made = [self.made() for _ in range(self.rng.randrange(1, 9))]

        async def infer() -> list[tw.InferResponse]:
            calls = [self.async_client.infer("echo", request) for request, _ in made]
            return await asyncio.gather(*calls)

        for response, (_, check) in zip(self.runner.run(infer()), made, strict=True):
            check(response)
        return len(made)

    def run(self, n_calls: int) -> Tally:
        tally = Tally()
        while tally.counts.total() < n_calls and len(tally.wrong) < MAX_WRONG:
            [kind] = self.rng.choices([*self.WEIGHTS], [*self.WEIGHTS.values()])
            try:
                n = getattr(self, kind)()
            except self.ERRORS as error:
                tally.wrong.append(f"{self.name} after {tally.counts.total()}: {error!r}"[:1000])
                kind, n = "wrong", 1
                self.recover()
            tally.counts[kind] += n
        self.close()
        tally.n_cancelled = self.n_cancelled
        return tally


# --- HTTP ----------------------------------------------------------------------------------------


class HttpCalls(Calls):
    """Sends most requests over one connection, and opens another one when it is closed."""

    WEIGHTS: ClassVar = {
        **{"valid": 10, "concurrent": 5, "pipelined": 30, "exchange": 50, "vanishing": 3},
        "silent": 3,
    }

    def __init__(self, port: int, name: str) -> None:
        super().__init__(f"http://{HOST}:{port}", name)
        while silent_connections:
            silent_connections.pop().socket.close()
        self.port = port
        self.connection = Connection(port, TIMEOUT)

    def close(self) -> None:
        super().close()
        self.connection.socket.close()

    def recover(self) -> None:
        self.connection.socket.close()
        self.connection = Connection(self.port, TIMEOUT)

    def request(self) -> Echo:
        id, numbers = self.numbers()
        return echo(id, tuple(numbers))

    def send_in_parts(self, sent: bytes) -> None:
        cuts = [0, *sorted(self.rng.choices(range(len(sent)), k=self.rng.randrange(4))), len(sent)]
        self.connection.send_in_parts([sent[a:b] for a, b in pairwise(cuts)], 0.0005)

    def pipelined(self) -> int:
        """Send one or several requests, of which some are for an unknown model."""
        n = self.rng.choice([1, 1, self.rng.randrange(2, 20)])
        requests = [self.request() if self.rng.random() < 0.9 else None for _ in range(n)]
        path = f"/v2/models/unknown-{self.n_made}"
        other = http_cases.get(path)
        sent = [other if request is None else post("echo", request) for request in requests]
        if sum(map(len, sent)) > 100_000:  # the server may stop reading, and send would block
            sent, requests = sent[:1], requests[:1]
        self.send_in_parts(b"".join(sent))
        for request in requests:
            response = self.connection.read()
            if request is not None:
                request.check(response)
            else:
                assert response.status == 404, response
                assert path.rpartition("/")[2] in response.error, response
        return len(requests)

    def exchange(self) -> int:
        """Send a case of support/http_cases.py, or a malformed message."""
        case = self.rng.choice(EXCHANGES)
        self.send_in_parts(case.sent)
        responses = [self.connection.read(case.method) for _ in case.outcome.statuses]
        statuses = tuple(response.status for response in responses)
        assert statuses == case.outcome.statuses, (case.id, responses)
        if case.outcome.error and b"{" in responses[-1].body:
            assert case.outcome.error in responses[-1].error, (case.id, responses)
        if not case.outcome.stays_open:
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

        Usually the client closes its sending direction. The server also closes a connection on
        which no request begins.
        """
        if len(silent_connections) < MAX_SILENT:
            connection = Connection(self.port, TIMEOUT)
            sent = self.rng.choice([b"", b"\r\n", post("echo", self.request())[:-1]])
            connection.send(sent)
            if len(sent) > 2 or self.rng.random() < 0.5:
                connection.shut_down()
            silent_connections.append(connection)
        return 1


# --- gRPC ----------------------------------------------------------------------------------------


class GrpcCalls(Calls):
    WEIGHTS: ClassVar = {
        **{"valid": 35, "concurrent": 10, "streamed": 20, "malformed": 25, "late": 5},
        "cancelled": 5,
    }

    def __init__(self, port: int, name: str) -> None:
        super().__init__(f"grpc://{HOST}:{port}", name)
        self.channel = grpc.insecure_channel(f"{HOST}:{port}")
        self.method = self.channel.unary_unary(f"/{SERVICE}/ModelInfer")

    def close(self) -> None:
        super().close()
        self.channel.close()

    def streamed(self) -> int:
        made = [self.made() for _ in range(self.rng.randrange(1, 9))]
        with self.client.stream("echo", [request for request, _ in made]) as responses:
            for _, check in made:
                check(next(responses))
                if self.rng.random() < 0.02:
                    self.n_cancelled += 1
                    break
        return len(made)

    def malformed(self) -> int:
        try:
            self.method(self.rng.choice(MALFORMED_GRPC), timeout=TIMEOUT)
        except grpc.RpcError as error:
            code = error.code()
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), code
        else:
            raise AssertionError("a malformed message was accepted")
        return 1

    def late(self) -> int:
        """Make a call whose deadline may expire at any time."""
        request, check = self.made("echo_in_thread")
        seconds = self.rng.choice([0.0001, 0.0003, 0.001])
        try:
            answer = self.method(tw.grpc.encode_request(request), timeout=seconds)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
            self.n_cancelled += 1
        else:
            check(tw.grpc.decode_response(answer))
        return 1

    def cancelled(self) -> int:
        request, _ = self.made("echo_in_thread")
        future = self.method.future(tw.grpc.encode_request(request), timeout=TIMEOUT)
        time.sleep(self.rng.random() * 0.0005)
        future.cancel()
        self.n_cancelled += 1
        return 1


# --- rounds --------------------------------------------------------------------------------------


def run_process(make: Callable[[str], Calls], name: str, n_calls: int) -> Tally:
    return make(name).run(n_calls)


def measure(server: Server) -> Memory:
    """Wait until the server has closed all connections, and return its memory."""
    deadline = time.monotonic() + TIMEOUT
    while n_open := server.n_connections():
        assert time.monotonic() < deadline, f"the server has not closed {n_open} connections"
        time.sleep(0.05)
    with Connection(server.port, TIMEOUT) as connection:
        in_use = connection.ask(post("memory", echo())).message["in_use"].tolist()
    return Memory(in_use[0], in_use[1], server.resident_nbytes())


def growth(samples: list[Memory], n_calls: int, n_cancelled: int) -> Iterator[str]:
    """Describe which sizes have grown too much from the first to the last sample."""
    amounts = zip(ALLOWED_GROWTH, ALLOWED_PER_CALL, ALLOWED_PER_CANCELLED, strict=True)
    for name, each, (constant, per_call, per_cancelled) in zip(
        Memory._fields, zip(*samples, strict=True), amounts, strict=True
    ):
        if each[-1] - each[0] > constant + per_call * n_calls + per_cancelled * n_cancelled:
            yield f"{name} grows by {each[-1] - each[0]} in {n_calls} calls: {each}"


def run(n_calls: int, n_processes: int, server: Server, grpc_port: int) -> list[str]:
    """Make the calls, and return what was wrong. A round with a wrong response is the last one."""
    makes = [partial(HttpCalls, server.port), partial(GrpcCalls, grpc_port)]
    share = math.ceil(n_calls / n_processes / N_ROUNDS)
    counts, samples, n_cancelled_later = Counter[str](), list[Memory](), 0
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool:
        for number in range(N_ROUNDS):
            work = [(makes[i % 2], f"client {number}.{i}", share) for i in range(n_processes)]
            tallies = pool.starmap(run_process, work)
            if wrong := [text for tally in tallies for text in tally.wrong]:
                return wrong
            for tally in tallies:
                counts += tally.counts
                n_cancelled_later += tally.n_cancelled if number else 0
            samples.append(measure(server))
    rate = counts.total() / (time.perf_counter() - started)
    print(f"{counts.total()} calls, {rate:.0f}/s; after each round:")
    for name, sizes in zip(Memory._fields, zip(*samples, strict=True), strict=True):
        print(f"  {name}: " + ", ".join(f"{size:,}" for size in sizes))
    print("  " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())), flush=True)
    return [*growth(samples, share * n_processes * (N_ROUNDS - 1), n_cancelled_later)]


def main() -> None:
    """Start a server, make the calls, stop it, and count its error output as wrong."""
    n_calls, n_processes = [*map(int, sys.argv[1:3]), *(N_CALLS, N_PROCESSES)[len(sys.argv) - 1 :]]
    grpc_port, http = free_port(), BY_NAME["fast"]
    both = replace(http, arguments=f"{http.arguments} --grpc-port {grpc_port}")
    with running(both, TIMEOUT) as server:
        Client(f"grpc://{HOST}:{grpc_port}").wait_until_ready(timeout=TIMEOUT)
        wrong = run(n_calls, n_processes, server, grpc_port)
        printed = server.new_log()
    if "Traceback" in printed:
        wrong.append(printed[printed.index("Traceback") :][:2000])
    sys.exit("\n".join(wrong[:20]) or None)


if __name__ == "__main__":
    main()
