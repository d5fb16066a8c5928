"""The first of several processes of `tensorwire serve`, with workers that are not processes."""

from __future__ import annotations

import math
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.serve_process import parse
from tensorwire.cli import processes
from tensorwire.cli.output import UsageError
from tensorwire.cli.processes import SERVING, STARTING, STARTUP_FAILURE, Processes, Worker, work

LOADED = ("mean", None)
pytestmark = pytest.mark.thread_unsafe(reason="it replaces a class")


class FakeWorker(Worker):
    """A worker whose process and pipe are this object."""

    def __init__(self, *_: Any) -> None:
        self.process: Any = self
        self.pipe: Any = self
        self.messages: list[Any] = []
        self.silent_seconds = 0.0
        self.started_at = time.monotonic()
        self.exitcode: int | None = None
        self.pid = 1
        self.received: list[str] = []

    def poll(self) -> bool:
        return bool(self.messages)

    def recv(self) -> Any:
        return self.messages.pop(0)

    def send(self, _: None) -> None:
        self.received.append("all stop")

    def terminate(self) -> None:
        self.received.append("SIGTERM")

    def kill(self) -> None:
        self.received.append("SIGKILL")


class Started(Processes):
    """Two processes, which serve unless the test changes it."""

    workers: Any

    def __init__(self, *options: str) -> None:
        self.announced: list[Any] = []
        chosen = parse("--workers", "2", *options)
        super().__init__(chosen, [], lambda *found: self.announced.append(found), ExitStack())

    def turn(self) -> Any:
        self.step()
        return self.workers

    def serve(self) -> Any:
        for each in self.turn():
            each.messages += [LOADED, True]
        return self.turn()


TURNS = st.sampled_from([0, 1, 1, 2])  # of the first process, after an event


class Simulated(FakeWorker):
    """A process that loads models, serves, and ends, as a test says. It may be suspended."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.is_suspended = False
        self.ignores_sigterm = False
        self.is_loaded = False

    @property
    def is_alive(self) -> bool:
        return self.exitcode is None

    def turn(self) -> None:
        """Do what a process does in each turn of the first one."""
        if not self.is_alive or self.is_suspended:
            return
        if "SIGTERM" in self.received and not (self.ignores_sigterm or self.is_loaded):
            self.exitcode = -15
        elif self.is_loaded:
            self.messages.append(True)

    def kill(self) -> None:
        super().kill()
        self.exitcode = -9


class ProcessesMachine(RuleBasedStateMachine):
    """The first process and two others, with all signals and failures in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        clock = Mock(monotonic=lambda: self.now, sleep=lambda _: None)
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(processes, "time", clock)
        self.patches.setattr(sys.modules[__name__], "time", clock)
        self.patches.setattr(processes, "Worker", Simulated)
        self.server = Started("--timeout-worker-start", "60")
        self.restart_at = 0.0  # the last SIGHUP, after which no process has failed
        self.is_told_to_stop = self.has_failed = False

    def turn(self, seconds: float = 0.1) -> None:
        server = self.server
        for _ in range(math.ceil(seconds * 10)):
            self.now += 0.1
            for each in server.workers:
                each.turn()
            serving = [each for each in server.workers if self.serves(each)]
            was_stopping = server.is_stopping
            server.step()
            if server.is_stopping and not (was_stopping or self.is_told_to_stop):
                assert server.failure is not None
                assert not serving
                assert not self.restart_at
                assert self.has_failed or not server.is_announced
            ended = [each for each in serving if each.is_ending and each.is_alive]
            if ended and not server.is_stopping:
                assert sum(map(self.serves, server.workers)) >= 2

    def serves(self, worker: Any) -> bool:
        return worker.state is SERVING and worker.is_alive

    def find(self, i: int, is_loaded: bool | None = None) -> Any:
        found = [
            each
            for each in self.server.workers
            if each.is_alive and not each.is_suspended and is_loaded in (None, each.is_loaded)
        ]
        return found[i % len(found)] if found else Simulated()

    @initialize(n_loaded=st.sampled_from([0, 1, 2, 2, 2]))
    def start(self, n_loaded: int) -> None:
        self.turn()
        for _ in range(n_loaded):
            self.load(0, 1)

    @rule(i=st.integers(0, 2), n_turns=TURNS)
    def load(self, i: int, n_turns: int) -> None:
        worker = self.find(i, is_loaded=False)
        worker.is_loaded = True
        worker.messages += [LOADED, True]
        self.turn(n_turns / 10)

    @rule(i=st.integers(0, 2), is_known=st.booleans(), n_turns=TURNS)
    def fail(self, i: int, is_known: bool, n_turns: int) -> None:
        worker = self.find(i, is_loaded=False)
        worker.messages += [UsageError("of the models")] * is_known
        self.end(worker, STARTUP_FAILURE)
        self.has_failed = True
        self.turn(n_turns / 10)

    @rule(i=st.integers(0, 2), n_turns=TURNS)
    def die(self, i: int, n_turns: int) -> None:
        self.end(self.find(i), -9)
        self.turn(n_turns / 10)

    def end(self, worker: Any, code: int) -> None:
        worker.exitcode = code
        if worker.started_at >= self.restart_at:  # otherwise, it may load the old models
            self.restart_at = 0.0

    @rule(i=st.integers(0, 2))
    def finish(self, i: int) -> None:
        worker = self.find(i, is_loaded=True)
        if "SIGTERM" in worker.received:
            worker.exitcode = 0

    @rule(i=st.integers(0, 2), is_loaded=st.booleans(), ignores_sigterm=st.booleans())
    def hang(self, i: int, is_loaded: bool, ignores_sigterm: bool) -> None:
        worker = self.find(i, is_loaded)
        worker.is_suspended, worker.ignores_sigterm = not ignores_sigterm, ignores_sigterm
        if not worker.is_loaded and worker.started_at >= self.restart_at:
            self.restart_at = 0.0  # it may take too long

    @rule(
        number=st.sampled_from([signal.SIGHUP] * 9 + [signal.SIGTERM, signal.SIGINT]), n_turns=TURNS
    )
    def signal(self, number: int, n_turns: int) -> None:
        self.now += 0.01
        self.server.signals.append(number)
        self.is_told_to_stop |= number != signal.SIGHUP
        self.restart_at = self.now if number == signal.SIGHUP else 0.0
        self.turn(n_turns / 10)

    @rule(seconds=st.sampled_from([0.1, 0.1, 1.0, 6.0, 70.0]))
    def wait(self, seconds: float) -> None:
        if seconds > 60:  # a process that loads its models takes too long
            self.restart_at = 0.0
        self.turn(seconds)

    @invariant()
    def there_are_not_too_many(self) -> None:
        assert len([each for each in self.server.workers if not each.is_ending]) <= 3

    def teardown(self) -> None:
        """When all processes load and end as they should, there are two new ones, or none."""
        server = self.server
        for _ in range(30):
            for each in server.workers:
                if not (each.is_ending or (each.is_old and server.is_serving)):
                    each.is_suspended = False  # the time of a first start has no limit
                if not each.is_loaded and not each.is_suspended:
                    each.is_loaded = True
                    each.messages += [LOADED, True]
                if each.is_loaded and "SIGTERM" in each.received and not each.is_suspended:
                    each.exitcode = 0
            self.turn(3.0)
        if server.is_stopping:
            assert server.workers == []
        else:
            assert [self.serves(each) and not each.is_old for each in server.workers] == [True] * 2
            if self.restart_at:
                assert all(each.started_at >= self.restart_at for each in server.workers)
        self.patches.undo()


TestProcesses = ProcessesMachine.TestCase
TestProcesses.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "Worker", FakeWorker)


def test_process_that_ends_is_replaced() -> None:
    server = Started()
    first, second = server.serve()
    assert server.announced == [LOADED]
    first.exitcode = -9
    assert server.turn() == [second, server.workers[1]] != [second, first]
    server.workers[1].exitcode = -9  # while it loads: the next one might be killed at once, too
    assert server.turn() == [second]
    server.start_at = server.now
    assert len(server.turn()) == 2


def test_processes_know_whether_all_of_them_stop() -> None:
    """Any of them may accept the rest of the queue then: another one may be blocked."""
    server = Started()
    server.serve()
    server.signals.append(signal.SIGHUP)
    *_, new = server.turn()
    new.messages.append(True)
    old = server.turn()[0]
    assert old.received == ["SIGTERM"]
    server.stop()
    assert all(each.received[-2:] == ["all stop", "SIGTERM"] for each in server.workers)


def fail_to_start(*_: Any) -> None:
    raise BlockingIOError("no more processes")


@pytest.mark.parametrize("kind", ["no process", "no models", "end"])
@pytest.mark.parametrize("is_restarting", [False, True])
def test_process_that_cannot_be_replaced(
    kind: str,
    is_restarting: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others serve. It is tried again after a pause."""
    server = Started()
    first, second = server.serve()
    if is_restarting:
        server.signals.append(signal.SIGHUP)
    else:
        first.exitcode = STARTUP_FAILURE  # of the model
    with monkeypatch.context() as patched:
        if kind == "no process":
            patched.setattr(processes, "Worker", fail_to_start)
        server.turn()
    if kind != "no process":
        server.workers[-1].exitcode = STARTUP_FAILURE
        server.workers[-1].messages = [UsageError("no models")] if kind == "no models" else []
    n_working = 1 + is_restarting
    for _ in range(3):
        assert server.turn()[:2] == [first, second][-n_working:]
        assert second.received == []
    assert caplog.text.count("a new process cannot serve") == 1
    assert server.failure is None
    server.start_at = server.now
    assert len(server.turn()) == 2


def test_process_that_does_not_respond_is_killed() -> None:
    """A process may take longer to load the models. All of them may be suspended for some time."""
    server = Started()
    first, second = server.serve()
    second.state, server.now = STARTING, server.now - 100
    server.turn()
    assert first.received == []
    for _ in range(15):
        server.now -= 100
        server.turn()
    assert (first.received, second.received) == (["SIGKILL"], [])  # once, while it ends


@pytest.mark.parametrize(
    ("message", "code", "failure"),
    [
        (UsageError("no models"), None, UsageError("no models")),
        (None, 9, UsageError("a process ended before it had loaded the models: exit code 9")),
        (LOADED, STARTUP_FAILURE, SystemExit(STARTUP_FAILURE)),
    ],
)
def test_process_that_does_not_start(message: Any, code: Any, failure: BaseException) -> None:
    server = Started()
    first, second = server.turn()
    first.messages = [] if message is None else [message]
    first.exitcode = code
    server.turn()
    assert second.received == ["all stop", "SIGTERM"]
    assert repr(server.failure) == repr(failure)


def test_restart_one_after_another() -> None:
    server = Started()
    old = server.serve().copy()
    server.signals.append(signal.SIGHUP)
    for ended, remaining in ((old[0], old[1]), (old[1], None)):
        new = server.turn()[-1]
        assert len(server.turn()) == 3
        assert ended.received == []
        new.messages = [LOADED, True]
        server.turn()
        assert (ended.received, remaining and remaining.received) == (["SIGTERM"], remaining and [])
        assert len(server.turn()) == 3  # until the requests in progress have ended
        ended.exitcode = 0
    assert len(server.turn()) == 2
    assert len(server.turn()) == 2
    assert all(each.received == [] for each in server.workers)


@pytest.mark.parametrize("kind", ["error", "end", "late"])
def test_restart_that_is_given_up(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The old processes remain, and the next restart begins from the start."""
    server = Started("--timeout-worker-start", "60")
    old = server.serve().copy()
    for _ in range(2):
        server.signals.append(signal.SIGHUP)
        new = server.turn()[-1]
        if kind == "error":
            new.messages = [UsageError("no weights")]
        elif kind == "late":
            new.started_at -= 61
        new.exitcode = STARTUP_FAILURE if kind == "end" else None
        server.turn()
        new.exitcode = STARTUP_FAILURE
        assert server.turn() == old
        assert [each.received for each in old] == [[], []]
    text = {"error": "no weights", "end": "exit code 3", "late": "not ready within 60 seconds"}
    assert text[kind] in caplog.text


@pytest.mark.parametrize("is_shutdown", [False, True])
def test_starting_process_that_ignores_its_end(
    is_shutdown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is killed: it would delay the shutdown, or the next restart."""
    server = Started()
    server.serve()
    server.signals.append(signal.SIGHUP)
    new = server.turn()[-1]
    if is_shutdown:
        server.signals.append(signal.SIGTERM)
    else:
        new.messages = [UsageError("no weights")]
    server.turn()
    server.signals.append(signal.SIGHUP)
    new.started_at -= 1000  # it is not given up a second time
    server.turn()
    assert caplog.text.count("so the old ones") == (not is_shutdown)
    assert new.received == ["all stop", "SIGTERM"][not is_shutdown :]
    new.ended_at -= 6
    server.turn()
    assert new.received[-2:] == ["SIGTERM", "SIGKILL"]


@pytest.mark.parametrize("n_serving", [0, 1])
def test_restart_while_a_process_starts(n_serving: int) -> None:
    """It may load the old models, so its failure does not end the restart."""
    server = Started()
    old = server.turn().copy()
    for each in old[:n_serving]:
        each.messages = [LOADED, True]
        server.turn()
    server.signals.append(signal.SIGHUP)
    new = server.turn()[2:]
    assert (old[0].received, old[1].received) == ([], ["SIGTERM"] * n_serving)
    assert len(new) == n_serving
    old[1].started_at -= 1000
    server.turn()
    old[1].messages = [UsageError("of the old models")]
    old[1].exitcode = STARTUP_FAILURE
    server.turn()
    assert (server.is_stopping, old[0].is_old) == (False, True)
    assert (server.workers[0], len(server.workers)) == (old[0], 2)
    assert not server.workers[1].is_old


def test_process_that_cannot_configure_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may have changed since the start. Programs do not inherit the sockets."""
    monkeypatch.setattr(processes, "signal", Mock())
    pipe = Mock()
    chosen = parse("--log-config", str(tmp_path / "none.json"))
    with socket.socket() as bound, pytest.raises(SystemExit, match="3"):
        bound.set_inheritable(True)
        try:
            work(chosen, [bound], None, pipe)
        finally:
            assert not bound.get_inheritable()
    assert isinstance(pipe.send.call_args.args[0], UsageError)


def test_process_that_has_loaded_its_models_after_the_shutdown() -> None:
    """It is not announced: the sockets are closed. Its model has ignored the first signal."""
    server = Started()
    first, _ = server.turn()
    server.signals.append(signal.SIGTERM)
    server.turn()
    first.messages = [LOADED, True, True]
    server.turn()
    assert (first.received, server.announced) == (["all stop", "SIGTERM", "SIGTERM"], [])


def test_signals_during_a_restart() -> None:
    """SIGTERM ends it. A further SIGINT kills what remains."""
    server = Started()
    server.serve()
    server.signals += [signal.SIGHUP, signal.SIGTERM, signal.SIGINT]
    server.turn()
    assert [each.received for each in server.workers] == [["all stop", "SIGTERM", "SIGKILL"]] * 2
    server.signals.append(signal.SIGHUP)
    server.workers[0].exitcode = -9
    assert len(server.turn()) == 1
