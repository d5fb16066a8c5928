"""`Connection`, driven as a machine in virtual time: any bytes, times, replies and memory.

The invariants are those of the class: each complete request gets one reply, in order; a model runs
at most once, and only for a complete request; the memory charged is that of what has arrived; after
a shutdown, the connection ends by a time that can be computed.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import tensorwire as tw
from support import http_models
from support.http_cases import CASES, Case
from support.scale import scaled
from tensorwire.server import Model, body_memory, create_app
from tensorwire.server.body import MAX_GROWTH, RequestBody
from tensorwire.server.body_memory import (
    TICK_SECONDS,
    UNCOUNTED_NBYTES,
    BodyMemory,
    Reservation,
)
from tensorwire.server.connection import Connection, Options
from tensorwire.server.errors import OverloadedError
from tensorwire.server.http_exchange import Exchange
from tensorwire.server.receiver import SCRATCH_NBYTES
from tensorwire.server.service import Reply
from tensorwire.server.states import (
    ABORTED,
    BODY,
    CLOSED,
    CLOSING,
    HEAD,
    IDLE,
    IGNORED,
    LINGERING,
    READY,
    RECEIVING,
    RUNNING,
    SENDING,
    STALLED,
    WAITING,
)

pytestmark = pytest.mark.no_sanitizers(reason="it tests Python code")

Rule = TypeVar("Rule", bound=Callable[..., None])

KiB = 1 << 10
GRACE, TIMEOUT, KEEP_ALIVE = 5.0, 30.0, 4.0
LIMIT = 1 << 20  # of the memory for bodies
N_UNWANTED = 6  # chunks that a TLS connection may receive although it does not want to
ALL = 3 * [4 << 20]
LINES = (
    "Connection: close\r\n",
    "Expect: 100-continue\r\n",
    "Connection: Upgrade\r\nUpgrade: x\r\n",
)
# What is rejected in the event loop.
INVALID = [
    case.sent
    for case in CASES
    if case.is_for("fast")
    and case.method != "HEAD"  # `responses` does not know that they have no body
    and case.outcome.statuses[-1:] != (200,)
    and b"content-encoding" not in case.sent.lower()
]
HEADER = (
    b'{"id":"%d","inputs":[{"name":"x","datatype":"UINT8","shape":[%d],'
    b'"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}'
)


def echo(request: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(request.inputs)


def body_of(n: int, number: int) -> tuple[int, bytes]:
    """Return the header length and the body of a request with n bytes of data, and an id."""
    header = HEADER % (number, n, n)
    return len(header), header + bytes(n)


def request_bytes(number: int, n: int = 3, *, chunk: int = 0, lines: str = "") -> bytes:
    header_length, body = body_of(n, number)
    head = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
    head += f"Inference-Header-Content-Length: {header_length}\r\n{lines}"
    if not chunk:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    chunks = [body[i : i + chunk] for i in range(0, len(body), chunk)]
    sent = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + sent + b"0\r\n\r\n"


class Client:
    """A client, its connection and the transport between them, without I/O and without a clock."""

    def __init__(self, app: Any, now: float, *, is_tls: bool = False) -> None:
        self.app = app
        self.now = now
        self.has_woken = False
        options = Options(keep_alive_seconds=KEEP_ALIVE, grace_seconds=GRACE, is_tls=is_tls)
        self.connection = Connection(app, options, now, self.wake)
        self.to_send = b""
        self.received = b""
        self.reads = True  # what the server sends
        self.n_kept = 0  # bytes that the client has not read
        self.has_room = False  # its system, for all of them
        self.read_at = now  # when it has read, or something was sent
        # Chunks that have arrived with the end of a handshake, and are passed on in any case.
        self.n_unwanted = N_UNWANTED if is_tls else 0
        self.ended_at = math.inf
        self.running: Any = None
        # For the machine: what the client sends, when the shutdown began, and how long models ran.
        self.expected: list[str] = []
        self.shut_down_at = math.inf
        self.run_seconds = 0.0

    def wake(self) -> None:
        self.has_woken = True

    def send(self, n: int) -> None:
        """Let the server receive up to n bytes, as an event loop does."""
        while n and self.to_send and self.is_open:
            if not self.connection.may_receive:
                if self.n_unwanted == 0:
                    break
                self.n_unwanted -= 1
            buffer = self.connection.receiver.buffer()
            k = min(n, len(self.to_send), len(buffer))
            assert k > 0
            buffer[:k] = self.to_send[:k]
            self.to_send, n = self.to_send[k:], n - k
            self.connection.receive(k, self.now)
            del buffer
            self.settle()

    @property
    def is_open(self) -> bool:
        return self.connection.state not in (CLOSING, ABORTED)

    def settle(self) -> None:
        """Do what the connection wants, except to reply."""
        connection = self.connection
        for each in connection.output:
            self.take(each)
        connection.output.clear()
        while connection.state is SENDING and (self.reads or self.has_room):
            piece = connection.next_piece(self.now)
            if piece is not None:
                self.take(bytes(piece))
        if not (self.reads or self.has_room) and self.n_kept:
            connection.blocked(self.n_kept, self.now)
        if self.ended_at == math.inf and connection.state in (CLOSING, ABORTED):
            self.ended_at = self.now

    def take(self, data: bytes) -> None:
        self.received += data
        self.read_at = self.now
        if not self.reads:
            self.n_kept += len(data)

    def start(self) -> None:
        """Run the next request. Its reply is kept until `reply` is called."""
        if self.running is None and self.connection.state is READY:
            self.running = self.connection.start().reply()

    def reply(self) -> None:
        reply, self.running = self.running, None
        assert isinstance(reply, Reply)
        self.connection.reply(reply, self.now)
        self.settle()

    def serve(self) -> None:
        """Run what is ready."""
        self.start()
        while self.running is not None:
            self.reply()
            self.start()

    def tick(self, now: float) -> None:
        self.now = now
        self.connection.tick(now, self.n_kept, len(self.to_send))
        self.settle()

    def wait(self, seconds: float) -> None:
        """Time passes, and what is due is done in time."""
        end = self.now + seconds
        while self.now < end:
            self.tick(min(end, max(self.now, self.connection.deadline)))

    def memory_changed(self) -> None:
        if self.has_woken:
            self.has_woken = False
            self.connection.memory_changed(self.now)
            self.settle()


def responses(data: bytes, method: str = "POST") -> list[tuple[int, dict[str, str], bytes]]:
    """Return status, headers and body of each complete response, without 100 Continue."""
    found = []
    while b"\r\n\r\n" in data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        status = int(first.split()[1])
        if status == 100:
            continue
        n = 0 if method == "HEAD" else int(headers["content-length"])
        if len(data) < n:
            break
        found.append((status, headers, data[:n]))
        data = data[n:]
    return found


def id_of(headers: dict[str, str], body: bytes) -> str:
    length = int(headers.get("inference-header-content-length", len(body)))
    return str(json.loads(body[:length])["id"])


def if_any(condition: Callable[[Client], object]) -> Callable[[Rule], Rule]:
    """Return a precondition of a rule that does nothing for other clients."""
    return precondition(lambda machine: any(condition(client) for client in machine.clients))


class ConnectionMachine(RuleBasedStateMachine):
    """Two connections of one application, whose bodies share a small memory."""

    @initialize(is_tls=st.booleans(), step_nbytes=st.sampled_from([64 * KiB, 512 * KiB]))
    def begin(self, is_tls: bool, step_nbytes: int) -> None:
        self.calls: list[str] = []
        app = create_app(
            {"echo": Model(self.model, in_event_loop=True)},
            max_body_nbytes=http_models.MAX_BODY,  # as in the tables
            max_body_memory_nbytes=LIMIT,
            receive_timeout=TIMEOUT,
        )
        app.body_memory.step_nbytes = step_nbytes
        self.app = app
        self.is_tls = is_tls
        self.number = 0
        self.is_shutting_down = False
        self.clients = [Client(app, 0.0, is_tls=is_tls) for _ in range(2)]
        self.decompressed = Reservation(app.body_memory)  # of a third client

    def client(self, who: int, *, is_open: bool = False) -> Client:
        """Return a client. There is a new connection for each that is lost, or must be open."""
        for i, client in enumerate(self.clients):
            if client.connection.state is ABORTED or (is_open and i == who and not client.is_open):
                client.connection.lost()
                self.clients[i] = Client(self.app, client.now, is_tls=self.is_tls)
                if self.is_shutting_down:  # its TLS handshake has ended late
                    self.shut_down_one(self.clients[i])
        return self.clients[who]

    def shut_down_one(self, client: Client) -> None:
        client.shut_down_at = client.now
        client.connection.shut_down(client.now)
        client.settle()

    def model(self, request: tw.InferRequest) -> tw.InferResponse:
        if request.id != "one":  # the id in the tables
            self.calls.append(str(request.id))
        return echo(request)

    @rule(
        who=st.integers(0, 1),
        n=st.sampled_from([0, 3, 30 * KiB, 70 * KiB, 300 * KiB, 300 * KiB, 700 * KiB, 1500 * KiB]),
        chunk=st.sampled_from([0, 0, 1000, 100_000]),
        lines=st.sampled_from(["", "", "", *LINES]),
        n_sent=st.sampled_from([0, 1, 5000, 70 * KiB, *ALL]),
    )
    def request(self, who: int, n: int, chunk: int, lines: str, n_sent: int) -> None:
        self.number += 1
        client = self.client(who, is_open=True)
        client.to_send += request_bytes(self.number, n, chunk=chunk, lines=lines)
        client.expected.append(str(self.number))
        client.send(n_sent)

    @precondition(lambda self: self.number % 4 == 3)  # the connection ends
    @rule(
        who=st.integers(0, 1),
        data=st.sampled_from(INVALID) | st.binary(max_size=20),
        n_sent=st.sampled_from([0, 100, *ALL]),
    )
    def garbage(self, who: int, data: bytes, n_sent: int) -> None:
        self.number += 1
        client = self.client(who, is_open=True)
        client.to_send += data
        client.expected.append("garbage")
        client.send(n_sent)

    @if_any(lambda client: client.to_send)
    @rule(who=st.integers(0, 1), n=st.sampled_from([1, 100, 5000, 70 * KiB, *ALL]))
    def send(self, who: int, n: int) -> None:
        self.client(who).send(n)

    @if_any(lambda client: client.connection.state is READY)
    @rule(who=st.integers(0, 1))
    def start(self, who: int) -> None:
        self.client(who).start()

    @if_any(lambda client: client.running is not None)
    @rule(who=st.integers(0, 1))
    def reply(self, who: int) -> None:
        if self.client(who).running is not None:
            self.client(who).reply()

    @if_any(lambda client: client.connection.state is READY)
    @rule(who=st.integers(0, 1))
    def serve(self, who: int) -> None:
        self.client(who).serve()

    @if_any(lambda client: client.connection.requests or client.n_kept)
    @rule(who=st.integers(0, 1), part=st.sampled_from([0, 0.5, 1]), has_room=st.booleans())
    def read(self, who: int, part: float, has_room: bool) -> None:
        """Read a part of what the server has sent and, if it is 1, what it will send."""
        client = self.client(who)
        client.reads, client.has_room = part == 1, has_room
        n_left = math.ceil(client.n_kept * (1 - part))
        if n_left < client.n_kept and client.ended_at < math.inf:
            client.ended_at = client.now + TICK_SECONDS  # it has more time from the next tick on
        if n_left < client.n_kept:
            client.read_at = client.now
        client.n_kept = n_left
        client.settle()

    @if_any(lambda client: client.to_send or client.connection.state is not WAITING)
    @rule(who=st.integers(0, 1), is_lost=st.booleans())
    def end(self, who: int, is_lost: bool) -> None:
        """Close the connection, or the sending direction of the client."""
        client = self.client(who)
        client.to_send = b""
        if is_lost:
            client.running = None
            client.connection.lost()
        else:
            client.connection.end_of_input(client.now)
        client.settle()

    @if_any(lambda client: client.has_woken)
    @rule()
    def wake(self) -> None:
        for client in self.clients:
            client.memory_changed()

    @rule(n=st.sampled_from([100, 100 * KiB, 500 * KiB]))
    def decompress(self, n: int) -> None:
        with suppress(OverloadedError):
            self.decompressed.extend(n)

    @precondition(lambda self: self.decompressed.nbytes)
    @rule(gives_back=st.booleans())
    def end_decompressed(self, gives_back: bool) -> None:
        if gives_back:
            self.decompressed.keep(self.decompressed.nbytes // 2, 0)
            return
        self.decompressed.release()
        self.decompressed = Reservation(self.app.body_memory)

    @if_any(lambda client: client.connection.state is not ABORTED)
    @rule(seconds=st.sampled_from([0.1, 0.1, 1.0, 1.0, 3.0, 3.0, 40.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, and what is due is done in time."""
        now = self.clients[0].now
        end = now + seconds
        while True:
            due = min([end, *(each.connection.deadline for each in self.clients)])
            due = max(due, now)
            for client in self.clients:
                if client.running is not None or client.connection.state is READY:
                    client.run_seconds += due - max(now, min(due, client.shut_down_at))
                was_unread = client.connection.may_be_unread and client.connection.state is WAITING
                client.tick(due)
                if was_unread and not (client.is_open or self.is_shutting_down):
                    assert client.n_kept and due >= client.read_at + TIMEOUT
                client.memory_changed()
            if due >= end:
                return
            now = due

    @precondition(lambda self: self.is_shutting_down)
    @rule(seconds=st.sampled_from([0.5, 3.0, 40.0]))
    def block(self, seconds: float) -> None:
        """The event loop does nothing. What is due is late, also after what happens next."""
        for client in self.clients:
            client.run_seconds += seconds
            client.ended_at += seconds
            client.now += seconds

    @precondition(lambda self: self.number > 4 and not self.is_shutting_down)
    @rule()
    def shut_down(self) -> None:
        self.is_shutting_down = True
        for client in self.clients:
            self.shut_down_one(client)

    # --- invariants ---

    @invariant()
    def replies_are_those_of_the_requests_in_order(self) -> None:
        for client in getattr(self, "clients", ()):
            expected, found = client.expected, responses(client.received)
            for i, (status, headers, body) in enumerate(found):
                if status == 200 and "garbage" not in expected[: i + 1]:  # it may be empty lines
                    assert id_of(headers, body) == expected[i]
                if headers.get("connection") == "close":
                    assert i == len(found) - 1
        calls = getattr(self, "calls", [])
        assert len(calls) == len(set(calls))

    @invariant()
    def memory_is_that_of_what_has_arrived(self) -> None:
        if not hasattr(self, "clients"):
            return
        memory: BodyMemory = self.app.body_memory
        n_decompressed = self.decompressed.nbytes
        assert memory.decompressed_nbytes == n_decompressed <= LIMIT + LIMIT // 8
        if all(not client.connection.requests for client in self.clients):
            assert memory.nbytes == n_decompressed
        reserved = [
            request._reserved.nbytes
            for client in self.clients
            for request in client.connection.requests
            if request._reserved is not None
        ]
        # One body, and those that are decompressed, may exceed the limit.
        assert memory.nbytes - max(reserved, default=0) <= LIMIT + LIMIT // 8

    @invariant()
    def bodies_have_only_what_is_counted(self) -> None:
        for client in getattr(self, "clients", ()):
            for request in client.connection.requests:
                if (body := request.body) is not None:
                    memory = request._reserved
                    counted = UNCOUNTED_NBYTES if memory is None else memory.nbytes
                    assert body.n_arrived - body._n_held <= max(counted, UNCOUNTED_NBYTES)
                    assert counted <= max(MAX_GROWTH * body.n_arrived, UNCOUNTED_NBYTES)
                    n_unwanted = N_UNWANTED if self.is_tls else 0
                    assert body._n_held <= (2 + n_unwanted) * SCRATCH_NBYTES

    @invariant()
    def somebody_can_go_on(self) -> None:
        """A body waits only while another one has memory and can continue.

        The oldest one waits only while the others exceed the limit.
        """
        if hasattr(self, "clients"):
            stalled = [c for c in self.clients if c.connection.state is STALLED and not c.has_woken]
            assert len(stalled) < 2
            memory = self.app.body_memory
            oldest = next(iter(memory._arriving), None)
            if oldest is not None and oldest.missing_nbytes:
                spare = min(memory.decompressed_nbytes, LIMIT // 8)
                assert memory.nbytes - oldest.nbytes - spare > LIMIT

    @invariant()
    def connection_ends_after_the_shutdown(self) -> None:
        for client in getattr(self, "clients", ()):
            connection = client.connection
            if client.shut_down_at == math.inf:
                continue
            if connection.state is not ABORTED and client.running is None:
                assert client.now <= client.shut_down_at + GRACE + client.run_seconds + 1e-6
                assert connection.deadline < math.inf or connection.state is READY

    @invariant()
    def states_agree(self) -> None:
        for client in getattr(self, "clients", ()):
            connection, receiver = client.connection, client.connection.receiver
            if connection.state is WAITING:
                assert (receiver.state, len(connection.requests)) == (IDLE, 0)
            if connection.state in (LINGERING, CLOSING, ABORTED):
                assert receiver.state in (IGNORED, CLOSED)
            if connection.state in (READY, RUNNING):
                first = connection.requests[0]
                assert first.is_received or first.is_rejected
                assert len(connection.requests) == 1 or connection.deadline < math.inf
            if connection.state is CLOSING:
                assert client.running or not any(x.has_memory for x in connection.requests)
                assert client.now <= client.ended_at + TIMEOUT + 1e-6
            if connection.state is LINGERING:
                assert responses(client.received)[-1][1]["connection"] == "close"
            if receiver.state is CLOSED:
                assert all(x.is_received or x.is_rejected for x in connection.requests)
            if receiver.state is BODY:
                assert not connection.requests[-1].is_received
            if receiver.state in (IDLE, HEAD):
                assert all(request.is_received for request in connection.requests)

    def teardown(self) -> None:
        """When the clients send and read everything, each complete request gets its reply."""
        clients = getattr(self, "clients", ())
        for client in clients:
            if not client.is_open:
                client.connection.lost()
        for _ in range(200):  # rounds of at most two requests
            for client in clients:
                client.reads, client.n_kept = True, 0
                client.settle()
                client.send(1 << 24)
                if client.running is not None:
                    client.reply()
                client.serve()
                client.memory_changed()
        for client in clients:
            connection, expected = client.connection, client.expected
            if connection.state is STALLED:
                # The body of an invalid request may never arrive, and hold memory for some time.
                assert any("garbage" in each.expected for each in clients)
            elif connection.state is WAITING:
                assert not client.to_send
                assert "garbage" in expected or len(responses(client.received)) == len(expected)
            elif client.is_open and connection.receiver.state in (BODY, HEAD):
                assert "garbage" in expected
        if clients:
            self.wait(20.0)
        assert all(client.connection.state is not STALLED for client in clients)


async def statuses_of(case: Case, n: int) -> tuple[tuple[int, ...], bool, str]:
    """Send n bytes of a case at once. Return the statuses, and whether the connection stays open.

    The third item is the text of the last error.
    """
    client = Client(http_models.app, 0.0)
    client.to_send = case.sent
    while client.to_send and client.is_open:
        client.send(n)
        while client.connection.state is READY:
            request = client.connection.start()
            try:
                reply = request.reply()
                reply = reply if isinstance(reply, Reply) else await reply
            except asyncio.CancelledError as cancelled:  # by the model
                reply = http_models.app.failure_reply(cancelled)
                client.connection.end_after_reply()
            client.connection.reply(reply, client.now)
            client.settle()
    found = responses(client.received, case.method)
    is_error = bool(found) and found[-1][0] >= 400 and case.method != "HEAD"
    error = json.loads(found[-1][2])["error"] if is_error else case.outcome.error
    return tuple(status for status, *_ in found), client.connection.state is WAITING, error


@pytest.mark.parametrize("n", [1, 1 << 20])
@pytest.mark.parametrize("case", [x for x in CASES if x.is_for("fast")], ids=lambda x: x.id)
def test_cases(case: Case, n: int) -> None:
    """The cases of `test_http_conformance`, one byte or all bytes at once."""
    statuses, stays_open, error = asyncio.run(statuses_of(case, n))
    assert statuses == case.outcome.statuses
    assert case.outcome.stays_open in (None, stays_open)
    assert case.outcome.error in error


def connected(receive_timeout: float = TIMEOUT, **options: Any) -> Client:
    models = {"echo": Model(echo, in_event_loop=True)}
    return Client(create_app(models, receive_timeout=receive_timeout, **options), 0.0)


def connected_with_little_memory() -> tuple[Client, Client]:
    """Return two clients of one application. The body of the second one waits for memory."""
    first = connected(max_body_memory_nbytes=LIMIT)
    second = Client(first.app, 0.0)
    for number, client in enumerate((first, second)):
        client.to_send = request_bytes(number, 1500 * KiB)
        client.send(900 * KiB)
    assert second.connection.state is STALLED
    return first, second


def connected_behind_a_model(nbytes: int) -> tuple[Client, Client]:
    """Return two clients of one application. A model has the body of the first one, and runs."""
    first = connected(max_body_memory_nbytes=LIMIT)
    first.to_send = request_bytes(1, nbytes)
    first.send(1 << 24)
    first.start()
    return first, Client(first.app, 0.0)


def with_unread_reply(**options: Any) -> Client:
    """Return a client that has sent a large request, and reads nothing of the reply."""
    client = connected(**options)
    client.to_send = request_bytes(1, 1500 * KiB)
    client.send(2 << 20)
    client.reads = False
    client.serve()
    return client


def statuses(client: Client) -> list[int]:
    return [status for status, *_ in responses(client.received)]


def test_receive_timeout_begins_with_each_request() -> None:
    """A client that is always in the middle of a request is in time."""
    client, sent = connected(), request_bytes(1)
    client.to_send = sent[:100]
    client.send(100)
    for n in (1, 2, 3):
        client.tick(n * 0.6 * TIMEOUT)
        client.to_send = sent[100:] + sent[:100]
        client.send(KiB)
        client.serve()
        assert statuses(client) == n * [200]


@pytest.mark.parametrize("n", [3, 1500 * KiB])
def test_time_of_a_model_does_not_count(n: int) -> None:
    """The next request, whose rest the server does not receive in this time, is not late."""
    client = connected()
    client.to_send = 2 * request_bytes(1) + request_bytes(2, n)
    client.send(1 << 24)
    for now in (0, KEEP_ALIVE + TIMEOUT):
        client.start()
        assert client.connection.state is RUNNING
        client.tick(now)
        client.reply()
    client.tick(client.now + TIMEOUT - 1)
    client.send(1 << 24)
    client.serve()
    assert statuses(client) == [200, 200, 200]


@pytest.mark.parametrize("timeout", [1, TIMEOUT])
def test_slow_body_after_an_early_response(timeout: float) -> None:
    client = connected(receive_timeout=timeout)
    client.to_send = b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n"
    client.to_send += bytes(17 << 20)
    client.send(1 << 25)
    client.serve()
    while client.is_open:
        client.tick(client.now + 0.5)
        client.to_send = b"a"
        client.send(1)
    assert statuses(client) == [404]
    assert client.ended_at == min(timeout, 10)


def test_grace_period_is_that_of_all_states_together() -> None:
    """A client sends the rest of a request late, and does not read the reply."""
    client = connected()
    client.to_send = request_bytes(1, 300 * KiB)
    client.send(1000)
    client.connection.shut_down(client.now)
    client.wait(GRACE - 2)
    client.send(1 << 20)
    client.start()
    client.wait(100)  # the model takes this time
    client.reads = False
    client.reply()
    client.wait(1.9)
    assert client.connection.state is SENDING
    client.wait(0.1)
    assert client.connection.state is ABORTED


def test_blocked_event_loop_during_a_shutdown() -> None:
    """The time of the clients does not go on, but for a second. Both end in time."""
    reader, sender = with_unread_reply(), connected()
    sender.to_send = request_bytes(1, 300 * KiB)
    sender.send(1000)
    for client in (reader, sender):
        client.connection.shut_down(client.now)
        client.wait(GRACE - 3)
        client.n_kept //= 2
        client.tick(client.now + 2 * GRACE)
        assert client.is_open
    reader.reads = True
    reader.settle()
    sender.send(1 << 20)
    sender.serve()
    assert statuses(reader) == statuses(sender) == [200]


def test_body_that_gets_memory_while_the_event_loop_is_blocked_during_a_shutdown() -> None:
    first, second = connected_with_little_memory()
    second.connection.shut_down(second.now)
    second.wait(0.5)
    assert second.connection.state is STALLED
    second.now += 2 * GRACE
    first.connection.lost()
    second.memory_changed()
    second.tick(second.now)
    second.send(1 << 24)
    second.serve()
    assert statuses(second) == [200]


@pytest.mark.parametrize("n_read", [0, 1])
def test_blocked_event_loop_does_not_prolong_the_time_of_slow_clients(n_read: int) -> None:
    client = with_unread_reply()
    client.connection.shut_down(client.now)
    for _ in range(round(GRACE)):
        assert client.is_open
        client.n_kept -= n_read
        client.tick(client.now + 2 * GRACE)
    assert client.connection.state is ABORTED


def test_late_request_during_a_shutdown() -> None:
    """Its client has time to read the response: to close the connection now would reset it."""
    client = connected()
    client.to_send = request_bytes(1, 300 * KiB)
    client.send(1000)
    client.connection.shut_down(client.now)
    client.wait(GRACE - 1)
    client.serve()
    assert (statuses(client), client.connection.state) == ([503], LINGERING)
    client.wait(0.9)
    assert client.is_open
    client.wait(0.1)
    assert not client.is_open


def test_request_after_a_large_reply_during_a_shutdown() -> None:
    """The head of the reply was sent before, and did not say that the connection ends."""
    client = with_unread_reply()
    client.connection.shut_down(0.0)
    client.reads = True
    client.settle()
    client.to_send = request_bytes(2)
    client.send(KiB)
    client.serve()
    connection_headers = [headers.get("connection") for _, headers, _ in responses(client.received)]
    assert connection_headers == [None, "close"]


@pytest.mark.parametrize("is_tls", [False, True])
def test_part_of_a_request_during_a_shutdown(is_tls: bool) -> None:
    """If the connection was closed at once, the client might not get the reply."""
    client = Client(connected().app, 0.0, is_tls=is_tls)
    client.to_send = request_bytes(1) + b"POST /"
    client.send(1 << 20)
    client.connection.shut_down(0.0)
    client.serve()
    assert (statuses(client), client.connection.state) == ([200], LINGERING)


def test_slow_reader_during_a_shutdown() -> None:
    """It reads a little all the time, but its time is limited."""
    client = with_unread_reply()
    client.connection.shut_down(0.0)
    while client.is_open and client.now < 2 * GRACE:
        client.n_kept -= 1
        client.tick(client.now + 1)
    assert client.ended_at == GRACE


def test_client_that_does_not_close_a_tls_connection() -> None:
    """It is not waited for as soon as it has received everything."""
    connection = Client(create_app({}), 0.0, is_tls=True).connection
    for now, n_unsent, state in ((4.0, 0, CLOSING), (5.0, 9, CLOSING), (6.0, 0, ABORTED)):
        connection.tick(now, n_unsent)
        assert connection.state is state


def test_tls_client_that_makes_tls_respond() -> None:
    """That it reads the responses does not give it more time again and again."""
    client = shut_down_while_running(is_tls=True)
    client.connection.grace_left = math.inf
    for client.n_kept in [50, 0] * 10:
        client.tick(client.now + 1)
    assert not client.is_open
    assert client.ended_at <= 5


def test_system_that_does_not_tell_whether_the_client_has_read() -> None:
    client = Client(create_app({}), 0.0, is_tls=True)
    client.n_kept = 1
    client.connection.close(0.0)
    while client.connection.state is not ABORTED and client.now < 100:
        client.tick(client.now + 1)
    assert client.now == 10


def test_client_of_a_tls_connection_that_closes_reads_nothing() -> None:
    """That it sends nothing more, or what TLS itself responds to, does not give it more time."""
    client = Client(connected().app, 0.0, is_tls=True)
    while client.connection.state is not ABORTED and client.now < 100:
        client.tick(client.now + 1)
        client.n_kept += 9
        client.connection.end_of_input(client.now)
    assert client.now == 1 + TIMEOUT


def test_client_that_reads_the_rest_of_a_connection_that_closes_slowly() -> None:
    client = Client(connected().app, 0.0, is_tls=True)
    client.connection.close(0.0)
    for client.n_kept in range(100, 0, -1):
        client.tick(client.now + TIMEOUT / 2)
        assert client.connection.state is CLOSING
    client.n_kept = 0
    client.tick(client.now + 1)
    assert client.connection.state is ABORTED


@pytest.mark.parametrize("is_tls", [False, True])
def test_last_reply_that_is_read_slowly(is_tls: bool) -> None:
    """The client sends another request before it has read that there will be no reply.

    If the transport was closed then, it would discard the rest of the first reply.
    """
    client = shut_down_while_running(is_tls=is_tls)
    for client.n_kept in range(1003, 1000, -1):
        client.tick(client.now + 1)
        client.to_send = request_bytes(2)
        client.send(KiB)
        assert (client.connection.state, client.to_send) == (LINGERING, b"")
    client.n_kept = 0
    client.tick(client.now + 1)
    assert client.connection.state is LINGERING
    client.tick(client.now + 1)
    assert client.connection.state is CLOSING


@pytest.mark.parametrize("is_last", [False, True])
def test_last_reply_over_tls(is_last: bool) -> None:
    """The client may wait for the end of the connection if it has asked for that."""
    lines = "Connection: close\r\n" * is_last
    client = shut_down_while_running(is_tls=True, lines=lines)
    assert client.connection.state is (CLOSING if is_last else LINGERING)


def shut_down_while_running(*, is_tls: bool, lines: str = "") -> Client:
    client = Client(connected().app, 0.0, is_tls=is_tls)
    client.to_send = request_bytes(1, lines=lines)
    client.send(KiB)
    client.start()
    client.connection.shut_down(0.0)
    client.reply()
    return client


def test_body_without_progress_is_given_up_if_others_wait() -> None:
    first, second = connected_with_little_memory()
    for now in range(1, 6):
        assert second.connection.deadline == now
        second.tick(now)
        first.now = now
        first.memory_changed()
        second.memory_changed()
    first.serve()
    second.send(1 << 24)
    second.serve()
    assert statuses(first) == [408]
    assert statuses(second) == [200]


def test_silent_clients_that_fill_the_memory_are_given_up_together() -> None:
    """Seven have memory, and thirteen wait. Each is gone after three periods and 2 ticks."""
    first = connected(max_body_memory_nbytes=LIMIT)
    silent = [first, *(Client(first.app, 0.0) for _ in range(19))]
    honest = Client(first.app, 0.0)
    for client in silent:
        client.to_send = request_bytes(1, 1500 * KiB)
    for _ in range(6):
        for client in silent:
            client.send(40 * KiB)
    for client in silent:
        client.to_send = b""
    honest.to_send = request_bytes(2, 300 * KiB)
    honest.send(1 << 20)
    assert {each.connection.state for each in (*silent[1:], honest)} == {STALLED}
    assert first.app.body_memory.nbytes >= LIMIT
    for now in range(1, 18):
        for client in (*silent, honest):
            client.tick(now)
            client.memory_changed()
            client.serve()
        honest.send(1 << 20)
    honest.serve()
    assert statuses(honest) == [200]


@pytest.mark.parametrize("n_read", [0, 1000, 100_000])
def test_reply_that_is_not_read_if_others_wait(n_read: int) -> None:
    """It has the memory of its request. A client must read 64 KiB in 5 s while a body waits."""
    reader = with_unread_reply(max_body_memory_nbytes=LIMIT)
    waiting = Client(reader.app, 0.0)
    for now in range(5, 20, 5):
        reader.n_kept -= n_read
        reader.tick(now)
        assert reader.is_open
    waiting.to_send = request_bytes(2, 300 * KiB)
    waiting.send(1 << 20)
    assert waiting.connection.state is STALLED
    reader.n_kept -= n_read
    reader.tick(20)
    assert reader.is_open is (n_read > 64 << 10)


def with_reply_in_the_system(is_tls: bool = False) -> Client:
    """Return a client that has not read a large reply, all of which the server has sent."""
    client = Client(connected().app, 0.0, is_tls=is_tls)
    client.to_send = request_bytes(1, 1500 * KiB)
    client.send(2 << 20)
    client.serve()
    assert client.connection.state is WAITING
    client.n_kept = 500_000
    return client


@pytest.mark.parametrize("is_tls", [True, False])
def test_keep_alive_begins_when_the_client_has_read_a_large_reply(is_tls: bool) -> None:
    """To close the connection while the next request arrives would destroy the reply."""
    client = with_reply_in_the_system(is_tls)
    for _ in range(20):
        client.n_kept -= 20_000
        client.wait(1)
        assert client.is_open
    client.to_send = request_bytes(2)  # a small one
    client.send(1 << 10)
    client.serve()
    client.wait(TIMEOUT - 1)
    assert client.is_open
    client.n_kept = 0
    client.wait(1)
    client.wait(KEEP_ALIVE - 0.1)
    assert client.is_open
    client.wait(0.2)
    assert not client.is_open


def test_client_that_stops_reading_a_large_reply_that_was_sent() -> None:
    client = with_reply_in_the_system()
    client.wait(1)
    client.n_kept -= 1
    client.wait(2 * TIMEOUT)
    assert client.ended_at == 2 + TIMEOUT


@pytest.mark.parametrize("now", [0.0, 20.0])
def test_client_that_reads_a_large_reply_that_was_sent_during_a_shutdown(now: float) -> None:
    """Before it began, the event loop may have been blocked."""
    client = with_reply_in_the_system()
    client.now = now
    client.connection.shut_down(now)
    while client.is_open and client.now < now + 2 * GRACE:
        client.n_kept -= 1000
        client.wait(0.5)
    assert client.ended_at == now + GRACE


@pytest.mark.parametrize("others_wait", [True, False])
@pytest.mark.parametrize("has_tick", [True, False])
def test_reply_that_is_read_for_too_long(has_tick: bool, others_wait: bool) -> None:
    """As a request must arrive within the same time. A client may also read before each tick."""
    reader = with_unread_reply(max_body_memory_nbytes=LIMIT)
    if others_wait:
        waiting = Client(reader.app, 0.0)
        waiting.to_send = request_bytes(2, 300 * KiB)
        waiting.send(1 << 20)
    for now in range(4, 40, 4):
        reader.n_kept -= 70_000
        if has_tick:
            reader.wait(4)
        else:
            reader.now = now
            reader.settle()
        assert reader.is_open is (now < TIMEOUT or not others_wait)


def test_slow_reader_during_a_shutdown_if_others_wait() -> None:
    """It has the same time as without them."""
    reader = with_unread_reply(max_body_memory_nbytes=LIMIT)
    waiting = Client(reader.app, 0.0)
    waiting.to_send = request_bytes(2, 300 * KiB)
    waiting.send(1 << 20)
    assert waiting.connection.state is STALLED
    reader.connection.shut_down(0.0)
    while reader.is_open and reader.now < 2 * GRACE:
        reader.n_kept -= 1000
        reader.wait(1)
    assert reader.ended_at == GRACE


def test_reply_that_is_not_read_if_a_body_cannot_be_decompressed() -> None:
    """That body is rejected at once. It counts as one that waits until the period ends."""
    reader = with_unread_reply(max_body_memory_nbytes=LIMIT)
    other = Client(reader.app, 0.0)
    other.to_send = request_bytes(2, 1500 * KiB)
    other.send(2 << 20)
    with pytest.raises(OverloadedError):
        Reservation(reader.app.body_memory).extend(LIMIT)
    other.reads = False
    other.serve()
    for now in range(5, 15, 5):
        reader.tick(now)
        other.tick(now)
        assert (reader.is_open, other.is_open) == (False, True)


def test_body_is_not_received_behind_replies_that_are_not_read() -> None:
    first, second = connected_behind_a_model(1100 * KiB)
    second.reads = False
    for n in (3, 1400 * KiB):
        second.to_send += request_bytes(n, n)
        second.send(1 << 24)
        second.serve()
    assert second.connection.state is SENDING
    second.reads, second.n_kept = True, 0
    second.settle()
    second.send(1 << 24)
    assert second.connection.state is STALLED
    assert first.app.body_memory.nbytes < 1200 * KiB
    first.reply()
    second.memory_changed()
    second.send(1 << 24)
    second.serve()
    assert statuses(second) == [200, 200]


def test_part_of_a_request_behind_a_body_that_waits_too_long_for_memory() -> None:
    """The rejection is the last reply: the rest of the part is not received."""
    _, second = connected_behind_a_model(1500 * KiB)
    second.to_send = request_bytes(2, 65 * KiB, chunk=1000) + request_bytes(3, 3000)[:-10]
    second.send(1 << 24)
    assert (second.connection.state, second.connection.receiver.state) == (STALLED, BODY)
    second.to_send = b"the rest"
    second.connection.since -= TIMEOUT
    second.tick(1.0)
    second.serve()
    assert [(status, x["connection"]) for status, x, _ in responses(second.received)] == [
        (503, "close")
    ]
    assert second.connection.state is LINGERING


@pytest.mark.parametrize("n", [48 * KiB, 64 * KiB, 80 * KiB])
def test_body_of_which_a_part_arrives_while_the_request_before_runs(n: int) -> None:
    """After a TLS handshake, it is more than the first step. There is room for the next bytes."""
    client = Client(connected().app, 0.0, is_tls=True)
    client.to_send = request_bytes(1)
    client.send(KiB)
    client.start()
    sent = request_bytes(2, 500 * KiB)
    client.to_send = sent[: sent.index(b"\r\n\r\n") + 4 + n]
    client.send(1 << 20)
    assert client.to_send == b""
    client.reply()
    client.to_send = sent[sent.index(b"\r\n\r\n") + 4 + n :]
    client.send(1 << 20)
    client.serve()
    assert statuses(client) == [200, 200]


def test_memory_of_a_closed_connection() -> None:
    """It is released before the transport has sent what it has."""
    client = Client(connected().app, 0.0, is_tls=True)
    client.to_send = request_bytes(1, 1500 * KiB)
    client.send(1 << 24)
    assert client.app.body_memory.nbytes > 0
    running = Client(client.app, 0.0, is_tls=True)
    running.to_send = request_bytes(2, 100 * KiB)
    running.send(1 << 24)
    n_before = client.app.body_memory.nbytes
    running.start()
    for each in (client, running):
        each.connection.end_of_input(0.0)
        assert each.connection.state is CLOSING
    assert 0 < client.app.body_memory.nbytes < n_before
    running.reply()
    assert client.app.body_memory.nbytes == 0


def test_body_that_asks_again_for_memory() -> None:
    """The ASGI application asks after each tick."""
    memory = BodyMemory(LIMIT)
    silent, waiting = Reservation(memory), Reservation(memory)
    silent.request(LIMIT)
    for now in range(11):
        waiting.request(100_000)
        memory.tick(now)
    assert silent.is_given_up


def test_body_that_has_just_got_memory_is_not_given_up() -> None:
    memory = BodyMemory(LIMIT)
    running, first, second = (Reservation(memory) for _ in range(3))
    running.request(LIMIT + 1)
    running.complete()
    assert [first.request(600_000), second.request(900_000)] == [False, False]
    for now in range(1, 5):
        memory.tick(now)
    running.release()
    for now in range(5, 11):
        assert not first.is_given_up
        memory.tick(now)
    assert first.is_given_up  # one period later


@pytest.mark.parametrize("end", ["end_of_input", "lost", "garbage"])
@pytest.mark.parametrize("chunk", [0, 70_000])
def test_memory_of_a_body_that_ends_early(end: str, chunk: int) -> None:
    client = connected(max_body_memory_nbytes=LIMIT)
    client.to_send = request_bytes(1, 500 * KiB, chunk=chunk)
    client.send(210 * KiB)
    assert client.app.body_memory.nbytes > 0
    if end == "lost":
        client.connection.lost()
    elif end == "end_of_input":
        client.connection.end_of_input(client.now)
    client.to_send = b"x" * (400 * KiB)
    client.send(400 * KiB)
    client.serve()
    assert client.app.body_memory.nbytes == 0
    assert not client.app.body_memory._arriving


def test_younger_bodies_wait_behind_an_older_one() -> None:
    memory = BodyMemory(LIMIT)
    running, first, second = (Reservation(memory) for _ in range(3))
    running.request(LIMIT + 1)
    running.complete()
    assert [first.request(LIMIT), second.request(100_000)] == [False, False]
    running.release()
    assert (first.missing_nbytes, second.missing_nbytes) == (0, 100_000)


@pytest.mark.parametrize(("n", "n_counted"), [(64 * KiB, 0), (64 * KiB + 1, 64 * KiB + 1)])
def test_small_body_is_not_counted_when_it_is_decompressed(n: int, n_counted: int) -> None:
    memory = BodyMemory(LIMIT)
    reservation = Reservation(memory)
    body = RequestBody([(b"content-encoding", b"gzip")], LIMIT, lambda: reservation)
    body.write(gzip.compress(bytes(n)))
    with pytest.raises(tw.DecodeError):
        body.decode(tw.Limits())
    assert memory.nbytes == n_counted


def test_memory_of_a_body_that_is_decompressed() -> None:
    memory = BodyMemory(LIMIT)
    reservation = Reservation(memory)
    reservation.request(100_000)
    reservation.complete()
    reservation.extend(200_000)
    assert memory.nbytes == 300_000
    with pytest.raises(OverloadedError):
        reservation.extend(LIMIT)  # although no other body has memory
    reservation.release()
    assert memory.nbytes == 0


@pytest.mark.parametrize("n", [4 * LIMIT, 5 * LIMIT, 6 * LIMIT])
def test_body_that_fits_when_it_is_decompressed(n: int) -> None:
    """Its memory doubles, but not beyond the limit, and the rest is released."""
    reservation = Reservation(BodyMemory(6 * LIMIT))
    reservation.request(100)  # for the compressed body
    body = RequestBody([(b"content-encoding", b"gzip")], 1 << 30, lambda: reservation)
    body.write(gzip.compress(bytes(n)))
    with pytest.raises(tw.HeaderError):
        body.decode(tw.Limits())
    assert body.buffer.nbytes == n == reservation.nbytes == reservation._memory.nbytes
    reservation.release()
    assert reservation._memory.nbytes == 0


def test_oldest_body_does_not_wait_for_a_small_one_whose_model_runs() -> None:
    """Nor for decompressed ones. Two bodies never exceed the limit at the same time."""
    memory = BodyMemory(LIMIT)
    running, oldest, second = (Reservation(memory) for _ in range(3))
    running.request(100_000)
    running.complete()
    assert [oldest.request(400_000), second.request(400_000)] == [True, True]
    assert not second.request(900_000)
    assert oldest.request(LIMIT)
    with pytest.raises(OverloadedError):
        running.extend(LIMIT // 8 + 1)
    oldest.complete()
    assert second.missing_nbytes == 500_000
    oldest.release()
    assert (second.missing_nbytes, memory.nbytes) == (0, 1_000_000)


def test_body_is_decompressed_while_others_fill_the_memory() -> None:
    """An eighth of the limit is free for it. What the others have does not change."""
    memory = BodyMemory(LIMIT)
    running, oldest, younger, compressed = (Reservation(memory) for _ in range(4))
    assert running.request(700_000)
    running.complete()
    assert oldest.request(2 * LIMIT)
    assert not younger.request(100_000)
    compressed.extend(LIMIT // 8)
    with pytest.raises(OverloadedError):
        compressed.extend(1)
    oldest.release()
    assert not younger.missing_nbytes
    assert younger.request(LIMIT - 700_000)
    compressed.release()
    compressed = Reservation(memory)
    compressed.extend(LIMIT // 8)


@pytest.mark.parametrize("n_before", [0, LIMIT // 2])
def test_bodies_that_are_decompressed_do_not_stop_the_oldest_one(n_before: int) -> None:
    memory = BodyMemory(LIMIT)
    oldest, other, first, second = (Reservation(memory) for _ in range(4))
    assert oldest.request(50_000)
    assert other.request(100_000)
    first.extend(n_before)
    assert other.request(LIMIT - n_before - 50_000)
    second.extend(LIMIT // 8)
    with pytest.raises(OverloadedError):
        second.extend(1)
    assert not other.request(LIMIT)
    assert oldest.request(60_000)


def test_timeout_of_a_body_that_waits_for_memory_in_between() -> None:
    """It begins with the request, and not with each step."""
    first, second = connected_with_little_memory()
    second.now = 10.0
    first.connection.lost()
    second.memory_changed()
    assert second.connection.deadline == TIMEOUT


def test_nothing_of_a_body_is_missing_while_the_next_head_arrives() -> None:
    """A transport asks for this number when it looks whether the client is gone."""
    client = connected()
    client.to_send = request_bytes(1) + b"POST /"
    client.send(1 << 20)
    assert client.connection.receiver.state is HEAD
    assert client.connection.receiver.n_missing == 0


@pytest.mark.parametrize("n_sent", [200, 1000, 60 * KiB, 100 * KiB])
def test_memory_of_a_body_that_has_hardly_begun(n_sent: int) -> None:
    client = connected(max_body_memory_nbytes=256 * LIMIT)
    client.to_send = request_bytes(1, 3 * LIMIT)[:n_sent]
    client.send(n_sent)
    assert client.connection.state is RECEIVING
    assert client.app.body_memory.nbytes <= (MAX_GROWTH * n_sent if n_sent > 64 * KiB else 0)


def test_memory_of_a_head_with_many_short_headers() -> None:
    """Each takes many times its length. The request is rejected at the end of the head."""
    client = connected()
    client.to_send = b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 3000
    client.send(1 << 20)
    _, headers = client.connection.receiver._head.end()
    assert len(headers) == 257


def test_memory_of_small_chunked_bodies_that_wait() -> None:
    client = connected()
    chunked = b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n\r\n"
    client.to_send = (b"POST /v2/models/echo/infer HTTP/1.1\r\n" + chunked) * 50
    client.send(1 << 14)
    bodies = [each.body for each in client.connection.requests]
    assert [body.buffer.capacity for body in bodies if body is not None] == [1] * 50


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/", "memory.max"),
        ("0::/service", "service/memory.high"),
        ("1:net_cls,net_prio:/a\n0::/slice/service", "slice/service/memory.max"),
        ("2:name=systemd:/a\n0::/slice/service", "slice/memory.max"),
        ("4:cpu,memory:/docker/abc\n0::/", "memory/memory.limit_in_bytes"),
        ("4:memory:/slice/a:b\n0::/slice/a:b", "memory/slice/a:b/memory.limit_in_bytes"),
    ],
)
def test_limit_of_a_control_group(
    groups: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_text = Path.read_text

    def read(path: Path, **options: Any) -> str:
        return groups + "\n" if path == Path("/proc/self/cgroup") else read_text(path, **options)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(body_memory, "_CGROUPS", tmp_path)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / file).write_text("300000000\n")
    assert body_memory.available_nbytes() == 300_000_000


@pytest.mark.parametrize("limited", [None, resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_memory_that_a_body_does_not_use(
    monkeypatch: pytest.MonkeyPatch, limited: int | None
) -> None:
    """It is allocated at once for some bodies, to save copies, but not with `ulimit -v` or `-d`."""
    limits = {limited: (1 << 33, 1 << 33)}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda number: limits.get(number, unlimited))
    app = connected(max_body_memory_nbytes=256 * LIMIT).app
    for _ in range(2):
        clients = [Client(app, 0.0) for _ in range(20)]
        n_ahead = 0
        for client in clients:
            client.to_send = request_bytes(1, 1500 * KiB)
            client.send(10 * KiB)
            body = client.connection.requests[0].body
            assert body is not None
            n_ahead += body.buffer.capacity > UNCOUNTED_NBYTES
        # Those of many bodies would divide the heap.
        assert n_ahead == (16 if limited is None else 0)
        for client in clients:
            client.send(1 << 23)
            client.serve()
            assert statuses(client) == [200]


def test_time_of_a_client_that_reads_nothing_begins_once() -> None:
    """A timer of the transport may expire early."""
    client = with_unread_reply()
    assert (client.connection.state, client.connection.since) == (SENDING, 0.0)
    client.connection.blocked(client.n_kept, 10.0)
    assert client.connection.since == 0.0
    client.connection.blocked(client.n_kept - 1, 10.0)
    assert client.connection.since == 10.0
    client.connection.next_piece(20.0)  # the client has read, and as much is kept as before
    client.connection.blocked(client.n_kept - 1, 20.0)
    assert client.connection.since == 20.0
    client.n_kept -= 1
    while client.is_open:
        client.tick(client.connection.deadline)
    assert client.ended_at == 20 + TIMEOUT


async def test_memory_of_a_reply_that_is_never_awaited() -> None:
    """A task may be cancelled before it begins."""

    async def model(_: tw.InferRequest) -> dict[str, Any]:
        return {}

    app = create_app({"m": model})
    route = app.route("POST", "/v2/models/m/infer")
    exchange = Exchange(app, route, [(b"content-length", b"%d" % (1024 * KiB))])
    exchange.write(bytes(1024 * KiB))
    assert exchange.take_step()
    reply: Any = exchange.reply()
    reply.close()
    exchange.close()
    assert app.body_memory.nbytes == 0


def run_machine(n_examples: int, seed: int) -> None:
    machine = hypothesis.seed(seed)(type("Machine", (ConnectionMachine,), {}))
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=n_examples, stateful_step_count=50, deadline=None),
    )


def test_machine() -> None:
    run_machine(max(20, scaled(100)), 0)


@pytest.mark.slow(reason="it makes 100,000 steps")
def test_machine_for_long(pytestconfig: pytest.Config) -> None:
    """Each run of 100,000 steps has the next seed. Hypothesis remembers all steps of a run."""
    first = int(pytestconfig.getoption("--hypothesis-seed", None) or 1)
    for seed in range(first, first + scaled(1)):
        run_machine(2000, seed)
