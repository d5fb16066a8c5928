"""The connections of a client: reuse, waiting for one, idle connections, closing the client."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import GOOD, Connect, MiB, X, seen
from support.memory import takes
from support.servers import Scripted, http
from support.threads import in_thread, wait_for
from tensorwire.client import AsyncClient, Client, InferenceServerError, Timeout
from tensorwire.client import pool as client_pool
from tensorwire.client.aio import LoopBackend, LoopWatcher
from tensorwire.client.connection import Connection, Connector
from tensorwire.client.options import Deadline
from tensorwire.client.pool import Pool
from tensorwire.client.sync import Backend, PollWatcher, complete

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client

UNLIMITED = Deadline(Timeout())
LATE = (0.2, GOOD)
both_backends = pytest.mark.parametrize("backend", [Backend, LoopBackend])


def pool_of(client: Any) -> Any:
    (pool,) = getattr(client, "client", client)._pools.values()
    return pool


# --- reuse ---


def test_connection_is_reused(client: Any) -> None:
    before = len(seen)
    for _ in range(5):
        client.infer("echo", {"x": X})
        client.server_metadata()
        with pytest.raises(InferenceServerError):
            client.infer("unknown", {"x": X})
    assert len({call["peer"] for call in seen[before:]}) == 1
    # Small pieces are sent without delay.
    assert pool_of(client).idle[0].socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_calls_share_4_connections(server: str, kind: type[Client | AsyncClient]) -> None:
    sizes = [1, 1000, 100_000, 300_000] * 16
    inputs = [{"x": np.full(n, n)} for n in sizes]

    async def main() -> list[tw.InferResponse]:
        async with AsyncClient(server, connections=4) as client:
            return await asyncio.gather(*(client.infer("echo", x) for x in inputs))

    before = len(seen)
    if kind is AsyncClient:
        answers = asyncio.run(main())
    else:
        with Client(server, connections=4) as client, ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(lambda x: client.infer("echo", x), inputs))
    for n, answer in zip(sizes, answers, strict=True):
        assert np.array_equal(answer["x"].as_numpy(), np.full(n, n))
    assert 1 < len({call["peer"] for call in seen[before:]}) <= 4


def test_bytes_on_an_idle_connection_are_not_taken_for_a_response(connect: Connect) -> None:
    timeout = http(b"", status="408 Request Timeout")
    both = threading.Barrier(2, timeout=5)  # the server and the test

    def late(connection: socket.socket) -> None:
        connection.sendall(GOOD)
        both.wait()
        connection.sendall(timeout)
        both.wait()

    for answer in (GOOD + timeout, late):
        with Scripted([answer, GOOD]) as server, connect(server.address) as client:
            for _ in range(4):
                assert client.infer("m", {"x": X})["x"].shape == X.shape
                for _ in range(2 if answer is late else 0):
                    both.wait()
            assert server.n_connections == 4


SERVER_ERROR = http(b'{"error": "no"}', status="500 Internal Server Error")
KEEPING = http(b'{"error": "no"}', {"Connection": "Keep-Alive"}, "500 Internal Server Error")
SWITCHING = b"HTTP/1.1 101 no\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"


@pytest.mark.parametrize(("answer", "is_kept"), [(SERVER_ERROR, 0), (KEEPING, 1), (SWITCHING, 0)])
def test_connection_after_an_error(connect: Connect, answer: bytes, is_kept: bool) -> None:
    """It is not used again after an error of the server, unless the server says so."""
    with Scripted([answer] * 2) as server, connect(server.address) as client:
        for _ in range(2):
            with pytest.raises(InferenceServerError, match="no"):
                client.infer("m", {"x": X})
        assert server.n_connections == (1 if is_kept else 2)


# --- idle connections ---


@pytest.mark.parametrize(("idle_timeout", "n_connections"), [(0.2, 2), (None, 1)])
def test_idle_connections_are_closed_at_the_next_call(
    connect: Connect, idle_timeout: float | None, n_connections: int
) -> None:
    options = {"idle_timeout": idle_timeout}
    with Scripted([GOOD] * 2) as server, connect(server.address, **options) as client:
        client.infer("m", {"x": X})
        time.sleep(0.1)
        assert not server.client_has_closed.is_set()
        time.sleep(0.15)
        client.infer("m", {"x": X})
        assert idle_timeout is None or server.client_has_closed.wait(2)
        assert server.n_connections == n_connections


def test_connection_that_expires_during_another_call() -> None:
    """It is closed when that call ends."""
    ours, theirs = socket.socketpair()
    pool = Pool(Backend(), 2, 0.05)
    first, second = (complete(pool.acquire(UNLIMITED)) for _ in range(2))
    pool.release(first, Connection(ours, pool.backend, None, UNLIMITED))
    time.sleep(0.1)
    pool.release(second, None)
    with theirs:
        theirs.settimeout(5)
        assert theirs.recv(1) == b""
    assert (len(pool.leases), len(pool.idle)) == (0, 0)


def test_connections_closed_by_the_server_are_replaced_and_released(connect: Connect) -> None:
    """Also if a timeout of the last call has not expired yet."""
    may_close, is_closed = threading.Event(), threading.Event()

    def answer(connection: socket.socket) -> None:
        may_close.clear()
        connection.sendall(GOOD)
        may_close.wait(5)
        connection.shutdown(socket.SHUT_RDWR)
        is_closed.set()

    with Scripted([answer]) as server, connect(server.address) as client:
        found = []
        for _ in range(3):
            client.infer("m", {"x": X})
            found.append(weakref.ref(pool_of(client).idle[0]))
            is_closed.clear()
            may_close.set()
            assert is_closed.wait(5)
        assert len({id(ref) for ref in found}) == 3
        assert sum(ref() is not None for ref in found) <= 1
        may_close.set()


# --- waiting for a connection ---


@both_backends
def test_long_wait_for_a_connection(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call looks for lost leases again and again, and sleeps in between."""
    monkeypatch.setattr(client_pool, "_LOST_SECONDS", 0.02)

    async def main() -> float:
        pool = Pool(backend(), 1, None)
        first = await pool.acquire(UNLIMITED)
        if backend is Backend:
            threading.Timer(0.3, pool.release, (first, None)).start()
        else:
            asyncio.get_running_loop().call_later(0.3, pool.release, first, None)
        started = time.process_time()
        await pool.acquire(Deadline(Timeout(total=5)))
        return time.process_time() - started

    assert asyncio.run(main()) < 0.1


@both_backends
async def test_total_timeout_ends_the_wait_for_a_connection(backend: Any) -> None:
    """Not only the steps that follow when the call has got one."""
    pool = Pool(backend(), 1, None)
    lease = await pool.acquire(UNLIMITED)
    with pytest.raises(TimeoutError, match="total timeout"):
        await asyncio.wait_for(pool.acquire(Deadline(Timeout(total=0.05))), 5)
    pool.release(lease, None)
    assert await pool.acquire(Deadline(Timeout(total=5)))


async def test_cancelled_calls_release_their_connections(server: str) -> None:
    """Calls are cancelled while they send, receive, and wait for a connection."""
    large = np.zeros(4 * MiB, np.float32)
    async with AsyncClient(server, connections=2) as client:
        for delay in (0, 0.0005, 0.002, 0.01, 0.03):
            calls = [asyncio.ensure_future(client.infer("echo", {"x": large})) for _ in range(6)]
            await asyncio.sleep(delay)
            for call in calls:
                call.cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            kinds = {type(result) for result in done}
            assert asyncio.CancelledError in kinds
            assert kinds <= {asyncio.CancelledError, tw.InferResponse}
        answers = await asyncio.gather(
            *(client.infer("echo", {"x": np.full(1000, i)}) for i in range(6))
        )
        for i, answer in enumerate(answers):
            assert (answer["x"].as_numpy() == i).all()


@both_backends
@pytest.mark.parametrize("has_got_it", [False, True])
def test_wait_that_is_aborted_releases_its_slot(backend: Any, has_got_it: bool) -> None:
    """A signal handler may raise an exception before or after the call gets the slot."""

    class Aborts(Deadline):
        def limit(self, *arguments: Any) -> Any:
            if has_got_it:
                pool.release(first, None)
            raise KeyboardInterrupt

    async def main() -> tuple[Pool, Any]:
        pool = Pool(backend(), 1, None)
        return pool, await pool.acquire(UNLIMITED)

    async def wait() -> None:
        with pytest.raises(KeyboardInterrupt):
            await pool.acquire(Aborts(Timeout()))

    with asyncio.Runner() as runner:
        pool, first = runner.run(main())
        runner.run(wait())
    if not has_got_it:
        pool.release(first, None)
    assert (len(pool.leases), len(pool.waiting)) == (0, 0)


@pytest.mark.slow(reason="it waits for timeouts")
def test_lease_that_a_call_could_not_keep() -> None:
    """A signal handler may raise an exception before the call can store it or use it."""
    pool = Pool(Backend(), 1, None)
    lease = complete(pool.acquire(UNLIMITED))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            lambda: complete(pool.acquire(Deadline(Timeout(total=5)))).connection
        )
        wait_for(lambda: len(pool.waiting) == 1)
        del lease
        assert waiting.result() is None
    assert pool._has_free()


def test_child_process_does_not_wait_for_a_lock_of_its_parent() -> None:
    """Another thread of the parent process had it when the child process was made."""
    pool = Pool(Backend(), 1, None)
    lease = complete(pool.acquire(UNLIMITED))
    pool.pid += 1  # that of another process
    thread = threading.Thread(target=pool.release, args=(lease, None), daemon=True)
    with pool.lock:
        thread.start()
        thread.join(5)
        assert not thread.is_alive()


def test_call_sleeps_while_nothing_happens(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a call waits, and when the server has closed an idle connection."""
    n_events = 0
    happened, wait = LoopWatcher._happened, PollWatcher.wait

    def count_event(self: LoopWatcher, events: int) -> None:
        nonlocal n_events
        n_events += 1
        happened(self, events)

    async def count_wait(self: PollWatcher, *arguments: Any) -> int:
        nonlocal n_events
        n_events += 1
        return await wait(self, *arguments)

    monkeypatch.setattr(LoopWatcher, "_happened", count_event)
    monkeypatch.setattr(PollWatcher, "wait", count_wait)
    with Scripted([LATE]) as server, connect(server.address, timeout=5) as client:
        assert client.infer("m", {"x": X})["x"].shape == X.shape
        if connect is not Client:
            client.runner.run(asyncio.sleep(0.2))
    assert 0 < n_events < 10


async def test_timers_end_with_their_calls(server: str) -> None:
    """Otherwise they would stay in the event loop until the timeout, which may be a minute."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def call_later(*arguments: Any) -> asyncio.TimerHandle:
        timers.append(real(*arguments))
        return timers[-1]

    real = loop.call_later
    loop.call_later = call_later  # type: ignore[assignment]
    async with AsyncClient(server, connections=1) as client:
        await asyncio.gather(*(client.infer("echo", {"x": X}) for _ in range(3)))
    assert len(timers) >= 5  # of three calls, two of which had to wait for a connection
    assert all(timer.cancelled() for timer in timers)


# --- closing the client ---


async def test_closing_an_async_client_ends_its_calls(server: str) -> None:
    client = AsyncClient(server, connections=1)
    calls = [asyncio.ensure_future(client.infer("slow", {"x": X})) for _ in range(2)]
    await asyncio.sleep(0.1)
    await client.close()
    assert all(call.done() for call in calls)
    sending, waiting = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(sending, ConnectionError)
    assert "the client was closed" in str(sending)
    assert isinstance(waiting, RuntimeError)


async def test_closing_an_async_client_when_bytes_have_just_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call does not wait for the rest of the response."""

    with Scripted([(GOOD[:100], 0.1, GOOD[100:])]) as scripted:
        client = AsyncClient(scripted.address)
        happened = LoopWatcher._happened

        def close(self: LoopWatcher, events: int) -> None:
            happened(self, events)
            if events & select.POLLIN:
                client._open_pool().close().send(None)

        monkeypatch.setattr(LoopWatcher, "_happened", close)
        with pytest.raises(ConnectionError, match="the client was closed"):
            await client.infer("m", {"x": X})
        await client.close()


async def test_closing_an_async_client_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = Connector.connect
    with Scripted([GOOD]) as scripted:
        client = AsyncClient(scripted.address)

        async def connect_and_close(*arguments: Any) -> Any:
            connection = await connect(*arguments)
            await client.close()
            return connection

        monkeypatch.setattr(Connector, "connect", connect_and_close)
        with pytest.raises(RuntimeError, match="the client is closed"):
            await client.infer("m", {"x": X})
        await asyncio.sleep(0)
        assert await asyncio.to_thread(scripted.client_has_closed.wait, 2)


async def test_closed_async_client_does_not_send_a_request_again() -> None:
    with Scripted([http(b"{}"), LATE]) as scripted:
        client = AsyncClient(scripted.address)
        await client.server_metadata()
        call = asyncio.ensure_future(client.server_metadata())
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(ConnectionError, match="the client was closed"):
            await call
        assert scripted.n_connections == 1


def test_closing_a_client_ends_the_wait_for_a_connection(server: str) -> None:
    client = Client(server, connections=1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(client.infer, "slow", {"x": X})
        time.sleep(0.1)
        second = threads.submit(client.infer, "slow", {"x": X})
        wait_for(lambda: len(pool_of(client).waiting) == 1)
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            second.result(0.1)
        assert first.result()["x"].shape == X.shape


@pytest.mark.parametrize(
    ("name", "arguments"), [("infer", ("m", {"x": X})), ("wait_until_ready", (None, 30))]
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_closing_a_client_ends_the_pause_before_a_retry(
    kind: type[Client | AsyncClient], name: str, arguments: Any
) -> None:
    busy = http(b"", {"Retry-After": "20"}, "503 Service Unavailable")

    async def call_and_close(client: Any) -> None:
        call = asyncio.ensure_future(getattr(client, name)(*arguments))
        await asyncio.sleep(0.2)
        await client.close()
        await call

    def close_soon(client: Any) -> None:
        time.sleep(0.2)
        client.close()

    with Scripted([busy] * 20) as scripted:
        client: Any = kind(scripted.address, retries=3)
        fails = pytest.raises(ConnectionError, match="the client was closed during the call")
        with takes(0.2, 5), fails:
            if kind is AsyncClient:
                asyncio.run(call_and_close(client))
            else:
                with in_thread(lambda: close_soon(client)):
                    getattr(client, name)(*arguments)


def test_connection_of_a_call_is_closed_after_its_client() -> None:
    """The call that uses it returns first."""
    with Scripted([LATE, GOOD]) as server:
        client = Client(server.address)

        def close() -> None:
            time.sleep(0.1)
            client.close()

        with in_thread(close):
            assert client.infer("m", {"x": X})["x"].shape == X.shape
        assert server.client_has_closed.wait(2)


def test_signal_handler_may_close_a_client_that_its_thread_uses(server: str) -> None:
    with Client(server) as client:
        client.is_ready()
        pool = pool_of(client)
        with pool.lock:  # the handler interrupts `acquire`
            client.close()
        assert not pool.idle
