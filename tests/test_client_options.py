"""The options of the clients, and the limits of a call: timeouts, retries, waiting for a server."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from support import client_fixtures
from support.client_fixtures import Connect, X
from tensorwire.client import Client, InferenceServerError, Timeout
from tensorwire.client.http import HttpAdapter
from tensorwire.client.options import Call, ConnectDeadline, Deadline
from tensorwire.client.sync import Backend

connect = client_fixtures.connect


# --- options ---


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("url", 8801, TypeError, "url must be a str, not int"),
        ("max_body_nbytes", 2.5, TypeError, "max_body_nbytes must be an int, not float"),
        ("max_body_nbytes", -1, ValueError, "max_body_nbytes must be 0 or more, not -1"),
        ("connections", "9", TypeError, "connections must be an int, not str"),
        ("connections", 0, ValueError, "connections must be 1 or more, not 0"),
        ("retries", None, TypeError, "retries must be an int, not NoneType"),
        ("retries", -1, ValueError, "retries must be 0 or more, not -1"),
        ("limits", 3, TypeError, "limits must be a Limits object, not int"),
    ],
)
def test_invalid_options(connect: Connect, name: str, value: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        connect(**{"url": "127.0.0.1:1", name: value})


@pytest.mark.parametrize(
    ("seconds", "error", "shown"),
    [
        *((value, ValueError, str(value)) for value in (0, -1, float("nan"), float("inf"))),
        (10**400, ValueError, "more"),
        ("3", TypeError, "str"),
        (True, TypeError, "bool"),
    ],
)
def test_timeout_must_be_positive(connect: Connect, seconds: Any, error: Any, shown: str) -> None:
    message = f"must be a positive number of seconds or None, not {shown}"
    with pytest.raises(error, match=f"^timeout {message}"):
        connect("127.0.0.1:1", timeout=seconds)
    with pytest.raises(error, match=f"^idle_timeout {message}"):
        connect("127.0.0.1:1", idle_timeout=seconds)
    with connect("127.0.0.1:1") as client, pytest.raises(error, match=f"^timeout {message}"):
        client.infer("m", {"x": X}, timeout=seconds)
    for name in ("connect", "read", "total"):
        with pytest.raises(error, match=f"^{name} {message}"):
            Timeout(**{name: seconds})


def test_timeouts_of_numpy_become_python_numbers() -> None:
    """In float32, the clock of a machine that runs for months is not exact."""
    seconds: Any = np.float32(0.3)
    timeout = Timeout(connect=seconds, read=cast("Any", np.int64(2)), total=seconds)
    assert [type(value) for value in (timeout.connect, timeout.read, timeout.total)] == [float] * 3
    assert type(Client("localhost", timeout=seconds).timeout.read) is float


# --- timeouts ---


class Clock:
    """Replaces ``time.monotonic`` in the client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.mark.parametrize(
    ("timeout", "step", "expected"),
    [
        (Timeout(read=3), "read", (3, "read")),
        (Timeout(read=3, total=15), "read", (3, "read")),
        (Timeout(read=3, total=7), "read", (2, "total")),
        (Timeout(read=2, total=7), "read", (2, "total")),
        (Timeout(read=None, total=7), "read", (2, "total")),
        (Timeout(read=3, total=5), "read", "total timeout"),
        (Timeout(read=3, total=4), "total", "total timeout"),
        (Timeout(connect=1), "total", (None, "total")),
        (Timeout(connect=1), "connect", (1, "connect")),
        (Timeout(connect=3, read=1), "connecting", (1, "connect")),
        (Timeout(connect=3, total=7), "connecting", (1, "connect")),
        (Timeout(connect=3, total=6), "connecting", (1, "total")),
        (Timeout(connect=None, total=6), "connecting", (1, "total")),
        (Timeout(connect=None), "connecting", (None, "connect")),
        (Timeout(connect=2), "connecting", "connect timeout"),
    ],
)
def test_limit_of_a_step(
    timeout: Timeout, step: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 seconds after the call began, and 2 seconds after it began to connect.

    A timeout that expires in this moment has expired.
    """
    clock = Clock(monkeypatch)
    deadline = Deadline(timeout)
    clock.now += 3
    connecting = ConnectDeadline(deadline)
    clock.now += 2
    limit = partial(deadline.limit, step)
    if step == "connecting":
        limit = partial(connecting.limit, "read")
    if isinstance(expected, str):
        with pytest.raises(TimeoutError, match=expected):
            limit()
    else:
        assert limit() == expected


# --- retries ---


@pytest.mark.parametrize(
    ("attempt", "longest"), [(0, 0.1), (1, 0.2), (4, 1.6), (7, 10), (20, 10), (100_000, 10)]
)
def test_delay_of_a_retry(attempt: int, longest: float) -> None:
    """It is random, and becomes longer with each retry up to a limit."""
    delays = []
    for _ in range(100):
        call = Call(Deadline(Timeout()), 1)
        call.n_pauses = attempt
        delays.append(call.retry_delay(ConnectionError("x")) or 0)
        assert call.retry_delay(ConnectionError("x")) is None
    assert longest / 2 <= min(delays) < 0.6 * longest
    assert 0.9 * longest < max(delays) <= longest


@pytest.mark.parametrize(
    ("seconds", "delay"), [(0.0, 0.0), (59.0, 59.0), (60.0, 60.0), (61.0, None)]
)
def test_longest_retry_after(seconds: float, delay: float | None) -> None:
    error = InferenceServerError("busy", status=503)
    error.retry_after = seconds
    assert Call(Deadline(Timeout()), 1).retry_delay(error) == delay


# --- wait_until_ready ---

LOADING = InferenceServerError("loading", status=503)


class NotReady:
    """Fails the attempts of ``wait_until_ready``, each of which takes some seconds."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, errors: Iterable[Exception], seconds: float
    ) -> None:
        self.clock = Clock(monkeypatch)
        self.errors = iter(errors)
        self.seconds = seconds
        self.timeouts: list[Timeout] = []
        self.pauses: list[float] = []
        monkeypatch.setattr(HttpAdapter, "attempt", self.attempt)
        monkeypatch.setattr(Backend, "sleep", self.sleep)

    async def attempt(self, pool: Any, request: Any, call: Any) -> None:
        self.timeouts.append(call.deadline.timeout)
        self.clock.now += self.seconds
        raise next(self.errors)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.now += seconds


@pytest.mark.parametrize(
    ("timeout", "first"),
    [(Timeout(total=3), Timeout(total=3)), (Timeout(read=5), Timeout(read=5, total=100))],
)
def test_attempts_of_wait_until_ready(
    timeout: Timeout, first: Timeout, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = NotReady(monkeypatch, itertools.repeat(LOADING), 0.0)
    with Client("localhost", timeout=timeout) as client, pytest.raises(TimeoutError, match="100 s"):
        client.wait_until_ready(timeout=100)
    assert server.timeouts[0] == first
    assert 0.01 <= (server.timeouts[-1].total or 0) <= 0.021
    assert 0.01 <= server.pauses[0] <= 0.02
    assert all(0.5 <= pause <= 1 for pause in server.pauses[6:-1])
    assert server.clock.now == pytest.approx(1000 + 100 - 0.02)


@pytest.mark.parametrize(
    ("errors", "seen"),
    [
        ([ConnectionError("refused"), LOADING], "loading"),
        ([LOADING, ConnectionError("refused")], "refused"),
        ([LOADING, TimeoutError("late")], "loading"),
        ([TimeoutError("late"), LOADING, TimeoutError("later")], "loading"),
        ([TimeoutError("late"), TimeoutError("later")], "late"),
    ],
)
def test_what_wait_until_ready_has_last_seen(
    errors: list[Exception], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of the last attempt, which was cut short, does not hide an error."""
    NotReady(monkeypatch, errors, 5 / len(errors))
    fails = pytest.raises(TimeoutError, match=rf"last seen: {seen} \(at port 80: ")
    with Client("localhost") as client, fails as caught:
        client.wait_until_ready(timeout=5)
    assert str(caught.value).startswith("GET http://localhost/v2/health/ready: the server is not")
    assert str(caught.value.__cause__) == seen
