"""Connections of the clients: reuse, threads, TLS; servers that are slow, silent or absent."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import uvloop

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import GOOD, Certificate, Connect, MiB, X, app, free_port, seen
from support.memory import takes
from support.servers import Scripted, http, uvicorn_server
from tensorwire.client import AsyncClient, Client, InferenceServerError, Timeout
from tensorwire.client import pool as client_pool
from tensorwire.client.aio import LoopBackend, LoopWatcher
from tensorwire.client.calls import complete
from tensorwire.client.connection import Connection, Connector
from tensorwire.client.limits import Deadline
from tensorwire.client.pool import Pool
from tensorwire.client.sync import BlockingBackend, PollWatcher, blocking

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server")
connect = client_fixtures.connect
server, client = client_fixtures.server, client_fixtures.client
certificate = client_fixtures.certificate

acquire = blocking(Pool.acquire)(None)


def answer_late(connection: socket.socket) -> None:
    time.sleep(0.2)
    connection.sendall(GOOD)


def silent(_: socket.socket) -> None:
    time.sleep(1)


def test_connection_is_reused(client: Any) -> None:
    before = len(seen)
    for _ in range(5):
        client.infer("echo", {"x": X})
        client.server_metadata()
        with pytest.raises(InferenceServerError):
            client.infer("nobody", {"x": X})
    assert len({call["peer"] for call in seen[before:]}) == 1


def test_connection_closed_by_the_server_is_replaced(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"connections": 1, "retries": 1}
    with Scripted([GOOD, GOOD]) as server, connect(server.address, **options) as client:
        for _ in range(101):  # at once, so that the client has not noticed it in most cases
            client.infer("m", {"x": X})
        assert server.n_connections == 51

    is_open = Connection.is_open

    def wait(connection: Connection) -> bool:
        select.select([connection.socket], [], [], 5)
        return is_open(connection)

    monkeypatch.setattr(Connection, "is_open", wait)
    with Scripted([GOOD]) as server, connect(server.address) as client:
        for _ in range(5):
            client.infer("m", {"x": X})
        assert server.n_connections == 5


def test_bytes_on_an_idle_connection_are_not_taken_for_a_response(connect: Connect) -> None:
    timeout = GOOD + http(b"", status="408 Request Timeout")
    separate = threading.Event()

    def late(connection: socket.socket) -> None:
        connection.sendall(GOOD)
        separate.wait(5)
        connection.sendall(http(b"", status="408 Request Timeout"))

    for answer in (timeout, late):
        with Scripted([answer, GOOD]) as server, connect(server.address) as client:
            for _ in range(4):
                assert client.infer("m", {"x": X})["x"].shape == X.shape
                separate.set()
                time.sleep(0.03)
                separate.clear()
            assert server.n_connections == 4


SERVER_ERROR = http(b'{"error": "no"}', status="500 Internal Server Error")
KEEPING = http(b'{"error": "no"}', {"Connection": "Keep-Alive"}, "500 Internal Server Error")


@pytest.mark.parametrize(("answer", "n_connections"), [(SERVER_ERROR, 2), (KEEPING, 1)])
def test_connection_after_a_server_error(
    connect: Connect, answer: bytes, n_connections: int
) -> None:
    """It is not used again, unless the server says so."""
    with Scripted([answer, GOOD]) as server, connect(server.address) as client:
        for _ in range(2):
            with pytest.raises(InferenceServerError, match="no"):
                client.infer("m", {"x": X})
            if n_connections == 1:
                assert client.infer("m", {"x": X})["x"].shape == X.shape
                break
        assert server.n_connections == n_connections


@pytest.mark.parametrize(("answer", "retries"), [(SERVER_ERROR, 0), (KEEPING, 1)])
def test_server_that_closes_the_connection_after_an_error(
    connect: Connect, answer: bytes, retries: int
) -> None:
    """As uvicorn does after an exception of the application, whatever the response says."""

    def fail_and_close(connection: socket.socket) -> None:
        connection.sendall(answer)
        time.sleep(0.0005)  # the next call may begin before or after the connection is closed

    server = Scripted([fail_and_close])
    with server, connect(server.address, retries=retries) as client:
        for _ in range(200):
            with pytest.raises(InferenceServerError, match="no"):
                client.infer("m", {"x": X})


def test_16_threads_share_4_connections(server: str) -> None:
    with Client(server, connections=4) as client, ThreadPoolExecutor(16) as threads:
        before = len(seen)
        sizes = [1, 1000, 300_000] * 40
        answers = threads.map(lambda n: client.infer("echo", {"x": np.full(n, n)}), sizes)
        for n, answer in zip(sizes, answers, strict=True):
            assert (answer["x"].as_numpy() == n).all()
            assert answer["x"].shape == (n,)
    assert len({call["peer"] for call in seen[before:]}) <= 4


def test_64_tasks_share_4_connections(server: str) -> None:
    async def main() -> None:
        async with AsyncClient(server, connections=4) as client:
            sizes = [1, 1000, 100_000, 300_000] * 16
            answers = await asyncio.gather(
                *(client.infer("echo", {"x": np.full(n, n)}) for n in sizes)
            )
            for n, answer in zip(sizes, answers, strict=True):
                assert answer["x"].shape == (n,)
                assert (answer["x"].as_numpy() == n).all()

    before = len(seen)
    asyncio.run(main())
    assert 1 < len({call["peer"] for call in seen[before:]}) <= 4


def test_long_wait_for_a_connection(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call looks for lost leases again and again, and sleeps in between."""
    monkeypatch.setattr(client_pool, "_LOST_SECONDS", 0.02)

    async def main(limited: Pool) -> float:
        first = await limited.acquire(Deadline(Timeout()))
        waits = limited.acquire(Deadline(Timeout(total=5)))
        if connect is Client:
            threading.Timer(0.3, limited.release, (first, None)).start()
        else:
            asyncio.get_running_loop().call_later(0.3, limited.release, first, None)
        started = time.process_time()
        await waits
        return time.process_time() - started

    async def main_of_a_loop() -> float:
        return await main(Pool(LoopBackend(), 1, None))

    if connect is Client:
        seconds = complete(main(Pool(BlockingBackend(), 1, None)))
    else:
        with asyncio.Runner(loop_factory=connect.loop_factory) as runner:  # type: ignore[attr-defined]
            seconds = runner.run(main_of_a_loop())
    assert seconds < 0.1


def test_client_is_usable_after_a_cancelled_call(server: str) -> None:
    """The next call does not get the response of the cancelled one."""

    async def main() -> None:
        async with AsyncClient(server, connections=1) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.infer("slow", {"x": X}), 0.05)
            answer = await client.infer("echo", {"x": X[:3]})
            assert answer["x"].shape == (3,)

    asyncio.run(main())


def test_cancelled_calls_release_their_connections(server: str) -> None:
    """Calls are cancelled while they send, receive, and wait for a connection."""
    large = np.zeros(4 * MiB, np.float32)

    async def main() -> None:
        async with AsyncClient(server, connections=2) as client:
            for delay in (0, 0.0005, 0.002, 0.01, 0.03):
                calls = [
                    asyncio.ensure_future(client.infer("echo", {"x": large})) for _ in range(6)
                ]
                await asyncio.sleep(delay)
                for call in calls:
                    call.cancel()
                done = await asyncio.gather(*calls, return_exceptions=True)
                assert any(isinstance(result, asyncio.CancelledError) for result in done)
                assert all(
                    isinstance(result, asyncio.CancelledError | tw.InferResponse) for result in done
                )
            answers = await asyncio.gather(
                *(client.infer("echo", {"x": np.full(1000, i)}) for i in range(6))
            )
            for i, answer in enumerate(answers):
                assert (answer["x"].as_numpy() == i).all()

    asyncio.run(main())


@pytest.mark.parametrize("is_cancelled_first", [False, True])
def test_cancelled_wait_releases_its_slot(is_cancelled_first: bool) -> None:
    """It has just got the slot, or was cancelled and has not noticed it yet."""

    async def main() -> None:
        pool = Pool(LoopBackend(), 1, None)
        deadline = Deadline(Timeout())
        lease = await pool.acquire(deadline)
        waiting = asyncio.ensure_future(pool.acquire(deadline))
        await asyncio.sleep(0)
        if is_cancelled_first:
            waiting.cancel()
            pool.release(lease, None)
        else:
            pool.release(lease, None)
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(pool.leases) == 0

    asyncio.run(main())


def test_closing_an_async_client_ends_its_calls(server: str) -> None:
    async def main() -> None:
        client = AsyncClient(server, connections=1)
        calls = [asyncio.ensure_future(client.infer("slow", {"x": X})) for _ in range(2)]
        await asyncio.sleep(0.1)
        await client.close()
        assert all(call.done() for call in calls)
        sending, waiting = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(sending, ConnectionError)
        assert "the client was closed" in str(sending)
        assert isinstance(waiting, RuntimeError)

    asyncio.run(main())


def test_closing_an_async_client_when_bytes_have_just_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call does not wait for the rest of the response."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(GOOD[:100])
        time.sleep(0.1)
        connection.sendall(GOOD[100:])

    async def main() -> None:
        client = AsyncClient(scripted.address)
        happened = LoopWatcher._happened

        def close(self: LoopWatcher, events: int) -> None:
            happened(self, events)
            if events & select.POLLIN:
                client._close_pool()

        monkeypatch.setattr(LoopWatcher, "_happened", close)
        with pytest.raises(ConnectionError, match="the client was closed"):
            await client.infer("m", {"x": X})
        await client.close()

    with Scripted([answer]) as scripted:
        asyncio.run(main())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_event_loop_sleeps_while_nothing_happens(
    loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a call waits, and when the server has closed an idle connection."""
    n_events = 0
    happened = LoopWatcher._happened

    def count(self: LoopWatcher, events: int) -> None:
        nonlocal n_events
        n_events += 1
        happened(self, events)

    async def main() -> None:
        async with AsyncClient(scripted.address) as client:
            assert (await client.infer("m", {"x": X}))["x"].shape == X.shape
            await asyncio.sleep(0.2)

    monkeypatch.setattr(LoopWatcher, "_happened", count)
    with Scripted([answer_late]) as scripted, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert n_events < 20


def test_blocking_call_sleeps_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wake up long before its timeout."""
    n_waits = 0
    wait = PollWatcher.wait

    async def count(self: PollWatcher, *arguments: Any) -> int:
        nonlocal n_waits
        n_waits += 1
        return await wait(self, *arguments)

    monkeypatch.setattr(PollWatcher, "wait", count)
    with Scripted([answer_late]) as server, Client(server.address, timeout=5) as client:
        assert client.infer("m", {"x": X})["x"].shape == X.shape
    assert 0 < n_waits < 10


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_closing_a_client_whose_event_loop_is_closed(server: str, loop: Any) -> None:
    client = AsyncClient(server)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(client.is_ready())
    asyncio.run(client.close())


def test_closing_a_client_ends_the_wait_for_a_connection(server: str) -> None:
    client = Client(server, connections=1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(client.infer, "slow", {"x": X})
        time.sleep(0.1)
        second = threads.submit(client.infer, "slow", {"x": X})
        time.sleep(0.05)
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            second.result(0.1)
        assert first.result()["x"].shape == X.shape


def test_connection_of_a_call_is_closed_after_its_client() -> None:
    """The call that uses it returns first."""
    with Scripted([answer_late, GOOD]) as server, ThreadPoolExecutor(1) as threads:
        client = Client(server.address)
        call = threads.submit(client.infer, "m", {"x": X})
        time.sleep(0.1)
        client.close()
        assert call.result()["x"].shape == X.shape
        assert server.client_has_closed.wait(2)


def test_closing_an_async_client_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = Connector.connect

    async def main() -> None:
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

    with Scripted([GOOD]) as scripted:
        asyncio.run(main())


@pytest.mark.slow(reason="it waits for timeouts")
def test_closed_async_client_does_not_send_a_request_again() -> None:
    async def main() -> None:
        client = AsyncClient(scripted.address)
        await client.server_metadata()
        call = asyncio.ensure_future(client.server_metadata())
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(ConnectionError, match="the client was closed"):
            await call

    with Scripted([http(b"{}"), silent]) as scripted:
        asyncio.run(main())
        assert scripted.n_connections == 1


def test_timers_end_with_their_calls(server: str) -> None:
    """Otherwise they would stay in the event loop until the timeout, which may be a minute."""

    async def main() -> None:
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

    asyncio.run(main())


def test_closed_connections_are_released(connect: Connect) -> None:
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
            (pool,) = getattr(client, "client", client)._pools.values()
            found.append(weakref.ref(pool.idle[0]))
            is_closed.clear()
            may_close.set()
            assert is_closed.wait(5)
        assert len({id(ref) for ref in found}) == 3
        del pool
        assert sum(ref() is not None for ref in found) <= 1
        may_close.set()


def test_small_pieces_are_sent_without_delay(connect: Connect) -> None:
    with Scripted([GOOD] * 2) as server, connect(server.address) as client:
        client.infer("m", {"x": X})
        (pool,) = getattr(client, "client", client)._pools.values()
        assert pool.idle[0].socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_connection_that_expires_during_another_call() -> None:
    """It is closed when that call ends."""
    ours, theirs = socket.socketpair()
    pool = Pool(BlockingBackend(), 2, 0.05)
    first, second = (acquire(pool, Deadline(Timeout())) for _ in range(2))
    pool.release(first, Connection(ours, pool.backend, None))
    time.sleep(0.1)
    pool.release(second, None)
    with theirs:
        theirs.settimeout(5)
        assert theirs.recv(1) == b""
    assert (len(pool.leases), len(pool.idle)) == (0, 0)


def test_calls_get_a_connection_in_their_order() -> None:
    order: list[int] = []
    pool = Pool(BlockingBackend(), 1, None)
    first = acquire(pool, Deadline(Timeout()))

    def wait(i: int) -> None:
        lease = acquire(pool, Deadline(Timeout()))
        order.append(i)
        pool.release(lease, None)

    threads = []
    for i in range(5):
        threads.append(threading.Thread(target=wait, args=(i,)))
        threads[-1].start()
        while len(pool.waiting) <= i:
            time.sleep(0.001)
    pool.release(first, None)
    for thread in threads:
        thread.join()
    assert order == list(range(5))


@pytest.mark.parametrize("has_got_it", [False, True])
def test_wait_that_is_aborted_releases_its_slot(has_got_it: bool) -> None:
    """A signal handler may raise an exception before or after the thread gets the slot."""
    pool = Pool(BlockingBackend(), 1, None)
    first = acquire(pool, Deadline(Timeout()))

    class Aborts(Deadline):
        def limit(self, *arguments: Any) -> Any:
            if has_got_it:
                pool.release(first, None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        acquire(pool, Aborts(Timeout()))
    if not has_got_it:
        pool.release(first, None)
    assert (len(pool.leases), len(pool.waiting)) == (0, 0)


def test_child_process_does_not_wait_for_a_lock_of_its_parent() -> None:
    """Another thread of the parent process had it when the child process was made."""
    pool = Pool(BlockingBackend(), 1, None)
    lease = acquire(pool, Deadline(Timeout()))
    pool.pid += 1  # that of another process
    thread = threading.Thread(target=pool.release, args=(lease, None), daemon=True)
    with pool.lock:
        thread.start()
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.slow(reason="it waits for timeouts")
def test_lease_that_a_call_could_not_keep() -> None:
    """A signal handler may raise an exception before the call can store it or use it."""
    pool = Pool(BlockingBackend(), 1, None)
    lease = acquire(pool, Deadline(Timeout()))
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(acquire(pool, Deadline(Timeout(total=5))).connection)
    )
    thread.start()
    while not pool.waiting:
        time.sleep(0.001)
    del lease
    thread.join()
    assert found == [None]
    assert pool._has_free()


def test_async_client_belongs_to_one_event_loop(server: str) -> None:
    client = AsyncClient(server)

    async def call() -> None:
        await client.infer("echo", {"x": X})

    with asyncio.Runner() as runner:
        runner.run(call())
        with asyncio.Runner() as other, pytest.raises(RuntimeError, match="another event loop"):
            other.run(call())
        runner.run(client.close())


def test_closed_client_raises(connect: Connect) -> None:
    for n_calls in (0, 1):  # a client that has not been used does not connect any more
        with Scripted([GOOD]) as server, connect(server.address) as client:
            for _ in range(n_calls):
                client.infer("m", {"x": X})
            client.close()
            with pytest.raises(RuntimeError, match="the client is closed"):
                client.infer("m", {"x": X})
            assert server.n_connections == n_calls


def test_tls(connect: Connect, certificate: Certificate) -> None:
    options = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    with uvicorn_server(app, **options) as address:
        before = len(seen)
        large = np.arange(3 * MiB, dtype=np.float32)
        with connect(f"https://{address}", ssl_context=certificate.trusting()) as client:
            for array in (X, large, X):
                assert np.array_equal(client.infer("echo", {"x": array})["x"].as_numpy(), array)
        assert len({call["peer"] for call in seen[before:]}) == 1
        fails = pytest.raises(ConnectionError, match=r"(?i)certificate")
        with connect(f"https://{address}") as client, fails:
            client.infer("echo", {"x": X})


@pytest.mark.parametrize(
    ("received", "is_open"),
    [(ssl.SSLWantReadError(), True), (ssl.SSLZeroReturnError(), False), (b"a", False)],
    ids=["session ticket", "end", "data"],
)
def test_tls_bytes_on_an_idle_connection(received: Any, is_open: bool) -> None:
    class Tls(socket.socket):
        """A socket that has received a session ticket, the end of the stream, or data."""

        def recv(self, *_: Any) -> bytes:
            if isinstance(received, Exception):
                raise received
            return bytes(received)

    ours, theirs = socket.socketpair()
    with theirs, Tls(fileno=ours.detach()) as tls:
        connection = Connection(tls, BlockingBackend(), None)
        connection.is_tls = True
        assert connection.is_open() == is_open


# --- servers that are slow, silent or absent ---


def test_refused_connections_release_their_slots(connect: Connect) -> None:
    address = f"127.0.0.1:{free_port()}"
    with connect(address, connections=1) as client:
        for _ in range(3):
            with pytest.raises(ConnectionError, match=f"POST http://{address}/v2") as caught:
                client.infer("m", {"x": X}, timeout=Timeout(total=5))
            assert caught.value.__cause__ is not None


@pytest.mark.slow(reason="it waits for timeouts")
def test_timeouts_of_calls_on_the_same_connection(connect: Connect) -> None:
    """Each call has its own timeout, which begins with the call."""
    with Scripted([GOOD, answer_late, silent]) as server, connect(server.address) as client:
        client.infer("m", {"x": X}, timeout=0.4)
        time.sleep(0.5)
        client.infer("m", {"x": X}, timeout=0.4)
        with takes(0, 0.8), pytest.raises(TimeoutError, match=r"for 0.3 seconds \(read timeout\)"):
            client.infer("m", {"x": X}, timeout=0.3)
        assert server.n_connections == 1


@pytest.mark.slow(reason="it waits for timeouts")
def test_read_timeout_applies_to_each_piece(connect: Connect) -> None:
    """The whole request and the whole response may take longer."""

    class Slow(Scripted):
        def read(self, connection: socket.socket) -> bool:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
            n_read = 0
            while n_read < 24 * MiB:
                n = len(connection.recv(1 << 20))
                n_read += n
                time.sleep(1.2 * n / (24 * MiB))
            return True

    def drip(connection: socket.socket) -> None:
        for start in range(0, len(GOOD), len(GOOD) // 5 + 1):
            time.sleep(0.2)
            connection.sendall(GOOD[start : start + len(GOOD) // 5 + 1])

    started = time.perf_counter()
    with Slow([drip]) as server, connect(server.address, timeout=0.6) as client:
        assert client.infer("m", {"x": np.zeros(24 * MiB, np.int8)})["x"].shape == X.shape
    assert time.perf_counter() - started > 1.8


@pytest.mark.parametrize(
    ("seconds", "error", "shown"),
    [
        (0, ValueError, "0"),
        (-1, ValueError, "-1"),
        (float("nan"), ValueError, "nan"),
        (float("inf"), ValueError, "inf"),
        ("3", TypeError, "str"),
        (True, TypeError, "bool"),
    ],
)
def test_timeout_must_be_positive(connect: Connect, seconds: Any, error: Any, shown: str) -> None:
    message = f"must be a positive number of seconds or None, not {shown}"
    fails = pytest.raises(error, match=f"^timeout {message}$")
    with fails, connect("127.0.0.1:1", timeout=seconds):
        pass
    with pytest.raises(error, match=f"^idle_timeout {message}$"):
        connect("127.0.0.1:1", idle_timeout=seconds)
    with connect("127.0.0.1:1") as client, fails:
        client.infer("m", {"x": X}, timeout=seconds)
    for name in ("connect", "read", "total"):
        with pytest.raises(error, match=f"^{name} {message}$"):
            Timeout(**{name: seconds})


@pytest.mark.parametrize(
    ("name", "value"), [("connections", -1), ("connections", 0), ("retries", -1), ("max_body", -1)]
)
def test_invalid_options_are_rejected(connect: Connect, name: str, value: int) -> None:
    fails = pytest.raises(ValueError, match=f"{name} must be [01] or more, not {value}")
    with fails, connect("127.0.0.1:1", **{name: value}):
        pass


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("url", 8801, "url must be a str, not int"),
        ("max_body", 2.5, "max_body must be an int, not float"),
        ("connections", "9", "connections must be an int, not str"),
        ("retries", None, "retries must be an int, not NoneType"),
        ("limits", 3, "limits must be a Limits object, not int"),
        ("headers", 3, "headers must be a mapping of str to str, not int"),
        ("headers", 0, "headers must be a mapping of str to str, not int"),
        ("headers", {3: "a"}, "the name of an HTTP header must be a str, not int"),
        ("headers", {"X": 3}, "the value of the HTTP header 'X' must be a str, not int"),
    ],
)
def test_options_of_wrong_types_are_rejected(
    connect: Connect, name: str, value: Any, message: str
) -> None:
    options = {"url": "127.0.0.1:1", name: value}
    with pytest.raises(TypeError, match=f"^{message}$"), connect(**options):
        pass
    if name == "headers":
        with connect("127.0.0.1:1") as client, pytest.raises(TypeError, match=f"^{message}$"):
            client.infer("m", {"x": X}, headers=value)


def test_timeouts_of_numpy_become_python_numbers() -> None:
    """In float32, the clock of a machine that runs for months is not exact."""
    seconds: Any = np.float32(0.3)
    timeout = Timeout(connect=seconds, read=cast("Any", np.int64(2)), total=seconds)
    assert [type(value) for value in (timeout.connect, timeout.read, timeout.total)] == [float] * 3
    assert type(Client("localhost", timeout=seconds).timeout.read) is float
    with pytest.raises(ValueError, match="must be a positive number of seconds or None, not more"):
        Timeout(total=10**400)


def test_signal_handler_may_close_a_client_that_its_thread_uses(server: str) -> None:
    with Client(server) as client:
        client.is_ready()
        pool: Any = next(iter(client._pools.values()))
        with pool.lock:  # the handler interrupts `acquire`
            client.close()
        assert not pool.idle


@pytest.mark.parametrize("seconds", [3e6, 1e12])
def test_timeout_of_months(connect: Connect, seconds: float) -> None:
    """System calls have limits that are shorter."""
    timeout = Timeout(connect=seconds, read=seconds, total=seconds)
    with Scripted([GOOD]) as server, connect(server.address, timeout=timeout) as client:
        assert client.infer("m", {"x": X})["x"].shape == X.shape


def test_total_timeout_includes_the_wait_for_a_connection(server: str) -> None:
    with Client(server, connections=1) as client, ThreadPoolExecutor(1) as threads:
        slow = threads.submit(client.infer, "slow", {"x": X})
        time.sleep(0.2)  # the slow call has the connection now, for 0.3 seconds more
        with pytest.raises(TimeoutError, match=r"POST http://.*\(total timeout\)"):
            client.infer("echo", {"x": X}, timeout=Timeout(total=0.1))
        assert slow.result()["x"].shape == X.shape
        assert client.infer("echo", {"x": X})["x"].shape == X.shape


def test_total_timeout_ends_the_wait_for_a_connection() -> None:
    """Not only the steps that follow when the call has got one."""
    deadline = Deadline(Timeout(total=0.05))

    async def main() -> None:
        pool = Pool(LoopBackend(), 1, None)
        lease = await pool.acquire(deadline)
        async with asyncio.timeout(5):
            with pytest.raises(TimeoutError, match="total timeout"):
                await pool.acquire(deadline)
        assert lease.connection is None

    asyncio.run(main())
