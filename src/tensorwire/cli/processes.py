"""The processes of ``tensorwire serve``: the servers of each, and ``--workers N``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.util import find_spec
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from typing import Any, cast

import uvicorn

from ..errors import format_seconds
from ..server.errors import log
from ..server.uvicorn_handshakes import accept_tls
from .certificate import check_certificate
from .models import create, describe
from .output import OutputError, UsageError, escape_record, log_config
from .sockets import Listener, format_address

STARTUP_FAILURE = 3  # the exit code of a process that cannot serve, as in uvicorn
UVICORN_OPTIONS = (  # arguments of the command that are passed to uvicorn, under the same names
    *("http", "ssl_certfile", "ssl_keyfile", "limit_concurrency", "access_log"),
    *("timeout_graceful_shutdown", "timeout_keep_alive"),
)
# The variable that names the folder in which prometheus_client adds up the metrics of processes.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# Connections and calls that have arrived are accepted until there are no new ones in this time, and
# in these turns of the event loop; and no longer than the last time.
_ACCEPT_SECONDS = 0.05
_N_ACCEPT_TURNS = 10
_MAX_ACCEPT_SECONDS = 0.5
_CANCEL_SECONDS = 1.0  # in which requests that were cancelled end
_TELL_SECONDS = 0.1  # until new connections are told of a shutdown
_BEAT_SECONDS = 0.5  # between two messages of a process
_SWITCH_SECONDS = 0.001  # Python's default is 0.005
_HUNG_SECONDS = 5.0  # without a message, or since SIGTERM before it has served
_BLOCKED_SIGNALS = (signal.SIGINT, signal.SIGHUP)  # while a process starts
_RETRY_SECONDS = 1.0  # between attempts to replace a process

spawn = multiprocessing.get_context("spawn")
Announce = Callable[[str, str | None], None]


class Server(uvicorn.Server):
    """uvicorn's server for HTTP, with which another one for gRPC starts and stops."""

    end_handshakes: Callable[[], object] = staticmethod(lambda: None)
    on_startup: Callable[[], object] = staticmethod(lambda: None)
    grpc: AbstractAsyncContextManager[Any] = nullcontext()
    calls: Any = None
    """The ``OpenCalls`` of the gRPC server."""
    has_free_file = True
    all_stop: Callable[[], bool] = staticmethod(lambda: True)
    """Whether the other processes with the same sockets stop, too, if there are any."""

    def __init__(self, chosen: argparse.Namespace, released: ExitStack) -> None:
        super().__init__(make_config(chosen))
        self.config.callback_notify = self.look_for_free_file
        self.config.timeout_notify = 1
        self.released = released

    async def look_for_free_file(self) -> None:
        """Log that no file descriptor is free: uvloop and grpcio do not tell."""
        had_one, self.has_free_file = self.has_free_file, True
        try:
            os.close(os.dup(2))
        except OSError as error:
            self.has_free_file = False
            if had_one:
                with suppress(OSError):  # a handler of the log may have to open a file
                    log.error("new connections fail: %s", error.strerror)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            self.calls = await self.grpc.__aenter__()
        except OSError as error:
            log.error(str(error))
            sys.exit(STARTUP_FAILURE)
        if self.config.ssl is not None:
            self.end_handshakes = accept_tls(self.config)
        await super().startup(sockets)
        self.on_startup()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        await self._accept_what_has_arrived()
        await self._stop_listening(cast("list[Listener]", sockets or []))
        finishing = asyncio.ensure_future(self.grpc.__aexit__(None, None, None))
        self.end_handshakes()
        told = set(self.server_state.connections)  # by uvicorn
        telling = asyncio.ensure_future(self._tell_late_connections(told))
        await super().shutdown(sockets)
        # When the time is over, uvicorn cancels the requests. An async model may need a while to
        # end.
        if (tasks := self.server_state.tasks) and not self.force_exit:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        telling.cancel()
        while not (finishing.done() or self.force_exit):
            await asyncio.wait({finishing}, timeout=0.1)
        finishing.cancel()
        [ended] = await asyncio.gather(finishing, return_exceptions=True)
        if isinstance(ended, Exception):
            log.warning("the gRPC server has not ended: %s", describe(ended))

    async def _accept_what_has_arrived(self) -> None:
        """Accept what has arrived before the signal, while the event loop was busy or blocked."""
        end_at = time.monotonic() + _MAX_ACCEPT_SECONDS
        connections: set[Any] = set()

        def n_accepted() -> int:
            connections.update(self.server_state.connections)
            return len(connections) + (0 if self.calls is None else self.calls.n_begun)

        n_before, n = -1, n_accepted()
        while n_before < n and time.monotonic() < end_at:
            await asyncio.sleep(_ACCEPT_SECONDS)
            for _ in range(_N_ACCEPT_TURNS):
                await asyncio.sleep(0)
                if time.monotonic() >= end_at:  # each turn may run models
                    break
            n_before, n = n, n_accepted()

    async def _stop_listening(self, listeners: list[Listener]) -> None:
        """Accept the rest, of which uvloop accepts one in each turn, and refuse others.

        A process that is replaced leaves the rest to the others.
        """
        for each in listeners:
            each.is_stopped = True
        await asyncio.sleep(0)  # in this turn, what has been accepted gets a transport
        accepting = listeners if self.all_stop() else ()
        accepted = [found for each in accepting for found in each.accept_rest()]
        self.released.close()
        for server in self.servers:
            server.close()
        for each in listeners:
            each.close()
        connect = asyncio.get_running_loop().connect_accepted_socket
        making = (connect(self._make_protocol, found) for found in accepted)
        await asyncio.gather(*making, return_exceptions=True)

    def _make_protocol(self) -> Any:
        """Make a protocol for a connection, as uvicorn does."""
        make: Any = self.config.http_protocol_class
        state = self.server_state
        return make(config=self.config, server_state=state, app_state=self.lifespan.state)

    async def _tell_late_connections(self, told: set[Any]) -> None:
        """Shut down connections that are made late, at the end of a TLS handshake for example."""
        while True:
            await asyncio.sleep(_TELL_SECONDS)
            late = self.server_state.connections - told
            for each in late:
                each.shutdown()
            told |= late


def make_config(chosen: argparse.Namespace) -> uvicorn.Config:
    """Return the configuration of uvicorn, which configures the log. Raises UsageError."""
    for name in ("tensorwire.server", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).addFilter(escape_record)
    # grpcio writes a traceback for each response that it cannot send, because a client is gone, and
    # for metadata that are not UTF-8.
    logging.getLogger("grpc._cython.cygrpc").addFilter(
        lambda record: not str(record.msg).startswith(("ExecuteBatchError", "Invalid encoding on"))
    )
    try:
        return uvicorn.Config(
            "",
            factory=True,
            ws="none",
            workers=1,
            log_level=chosen.log_level or ("info" if chosen.log_config is None else None),
            log_config=chosen.log_config or log_config(chosen.log_level or "info"),
            # Only a proxy of this machine can connect to a Unix socket.
            forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "*") if chosen.uds else None,
            **{name: getattr(chosen, name) for name in UVICORN_OPTIONS},
        )
    except Exception as error:
        if chosen.log_config is None:
            raise
        cause = " ".join(describe(error.__cause__ or error).split())
        raise UsageError(f"--log-config: cannot use {chosen.log_config}: {cause}") from None


def serve_here(
    chosen: argparse.Namespace, server: Server, sockets: list[socket.socket], announce: Announce
) -> int:
    """Load the models, serve them in this process, and return the status. Raises UsageError."""
    # The event loop waits for this time, several times for a request, if a thread has the GIL.
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))
    app, names, problem = create(chosen)
    announce(names, problem)
    server.config.app = lambda: app
    if chosen.grpc_port is not None:
        from ..server.grpc_server import serving  # noqa: PLC0415 - grpcio is optional

        server.grpc = serving(
            app,
            format_address(chosen.host, chosen.grpc_port),
            certfile=chosen.ssl_certfile,
            keyfile=chosen.ssl_keyfile,
            limit_concurrency=chosen.limit_concurrency,
            timeout_graceful_shutdown=chosen.timeout_graceful_shutdown,
        )
    with ExitStack() as stack:
        listeners: list[Any] = [
            stack.enter_context(Listener(fileno=each.detach())) for each in sockets
        ]
        server.run(sockets=listeners)  # at its end, the signal ends the process
    return 0 if server.started else STARTUP_FAILURE


# --- several processes ---------------------------------------------------------------------------


def work(
    chosen: argparse.Namespace, sockets: list[socket.socket], folder: str | None, pipe: Connection
) -> None:
    """Serve in one of several processes.

    It sends what `serve_here` announces, or an error, and whether the server has started: then, and
    regularly. It receives a message if all processes stop.
    """
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock, suppress(OSError):  # the first process has been killed
            pipe.send(message)
            return
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)

    def beat() -> None:
        while True:
            send(server.started)
            time.sleep(_BEAT_SECONDS)

    def started() -> None:
        # uvicorn would not wait for requests if an interrupt is the second signal. Programs that a
        # model starts do not inherit the handler.
        signal.signal(signal.SIGINT, lambda *_: None)
        send(server.started)  # a model may hold the GIL from now on

    # A terminal sends SIGINT, or SIGHUP when it closes, to all processes, but they are for the
    # first one. While this one loads the models, an interrupt ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_SIGNALS)
    for each in sockets:  # a program that a model starts would keep them open
        each.set_inheritable(False)
    try:
        server = Server(chosen, ExitStack())
        server.all_stop = pipe.poll  # also if the first process has been killed
        server.on_startup = started
        threading.Thread(target=beat, daemon=True).start()
        check_certificate(chosen)  # it may have changed
        status = serve_here(chosen, server, sockets, lambda *found: send(found))
    except UsageError as error:
        send(error)
        status = STARTUP_FAILURE
    sys.exit(status)


class WorkerState(Enum):
    """What a process does."""

    STARTING = auto()  # it loads the models
    SERVING = auto()
    CANCELLED = auto()  # it was told to end before it has served, and is killed if it does not
    FINISHING = auto()  # it was told to end, and finishes the requests in progress


STARTING, SERVING, CANCELLED, FINISHING = WorkerState


class Worker:
    """A process, as the first one sees it."""

    state = STARTING
    is_old = False  # to be replaced
    ended_at: float  # when it was told to end

    def __init__(self, *arguments: Any) -> None:
        self.pipe, other_end = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(*arguments, other_end))
        # A terminal sends signals to all processes, also while they import. `work` unblocks them.
        # `ensure_running` unblocks SIGINT, hence the second call. SIGHUP, which would end the
        # tracker, stays blocked in it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
        try:
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_SIGNALS)
        other_end.close()
        self.started_at = time.monotonic()
        self.silent_seconds = 0.0  # since its last message

    @property
    def is_ending(self) -> bool:
        return self.state in (CANCELLED, FINISHING)

    def end(self) -> None:
        self.state = CANCELLED if self.state in (STARTING, CANCELLED) else FINISHING
        self.ended_at = time.monotonic()
        self.process.terminate()


@dataclass(eq=False)
class Processes:
    """Starts the processes side by side, and replaces those that end.

    The first process does not load the models, so that it does not need the memory for them.
    """

    chosen: argparse.Namespace
    sockets: list[socket.socket]
    announce: Announce
    released: ExitStack
    folder: str | None = None  # in which the processes add up their metrics
    failure: UsageError | OutputError | SystemExit | None = None
    is_announced: bool = False
    is_stopping: bool = False
    workers: list[Worker] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    now: float = field(default_factory=time.monotonic)
    start_at: float = 0.0  # when the next process may be started

    def run(self) -> int:
        """Return the exit status, or raise what has ended the processes."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: self.signals.append(number))
        # If SIGCHLD is ignored, which is inherited from the parent, exit codes are lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with ExitStack() as stack:
            # A signal interrupts the wait. Others may have got it, too, and ask soon what to do.
            woken, waking = socket.socketpair()
            for end in (woken, waking):
                stack.enter_context(end).setblocking(False)
            stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(waking.fileno()))
            if not os.environ.get(FOLDER_VARIABLE) and find_spec("prometheus_client") is not None:
                self._make_folder(stack)
            try:
                while self.workers or not self.is_stopping:
                    self.step()
                    wait([woken, *(each.pipe for each in self.workers)], timeout=0.1)
                    with suppress(BlockingIOError):
                        woken.recv(100)
            finally:  # if one cannot be started, for example
                for each in self.workers:
                    each.end()
        if self.failure is not None:
            raise self.failure
        return 0

    def _make_folder(self, stack: ExitStack) -> None:
        """Make a folder for ``--metrics``, and for metrics that models keep themselves."""
        try:
            made = TemporaryDirectory(prefix="tensorwire-metrics-", ignore_cleanup_errors=True)
        except OSError as error:  # no folder is writable, as in a container
            if self.chosen.metrics:
                raise UsageError(f"--metrics with several processes: {error}") from None
            return
        self.folder = os.environ[FOLDER_VARIABLE] = stack.enter_context(made)
        stack.callback(os.environ.pop, FOLDER_VARIABLE)

    def step(self) -> None:
        passed, self.now = time.monotonic() - self.now, time.monotonic()
        while self.signals:  # before the processes that the same signal has ended
            self.handle(self.signals.pop(0))
        for each in self.workers.copy():
            each.silent_seconds += min(passed, _BEAT_SECONDS)  # all may have been suspended
            self.check(each)
        if self.is_stopping:
            return
        for each in self.workers if self.is_serving else ():
            if each.is_old and each.state is STARTING:
                each.end()  # it may load the old models
        active = [each for each in self.workers if not each.is_ending]
        old = [each for each in active if each.is_old]
        is_changing = any(each.state is not SERVING for each in self.workers)
        n_missing = self.chosen.workers - len(active)
        if old and not is_changing:
            n_missing += 1
            if n_missing == 0:
                old[0].end()
        try:
            for _ in range(n_missing if self.now >= self.start_at else 0):
                self.workers.append(Worker(self.chosen, self.sockets, self.folder))
        except OSError as error:  # no memory, or too many processes or files
            if not self.is_announced:
                raise
            self.give_up(error)

    def check(self, worker: Worker) -> None:
        process, code = worker.process, worker.process.exitcode
        with suppress(EOFError, OSError):  # it has ended
            while worker.pipe.poll():
                worker.silent_seconds = 0
                self.receive(worker, worker.pipe.recv())
        was_serving = worker.state is SERVING
        is_starting = worker.state is STARTING and not worker.is_old  # others may load old models
        is_restart = self.is_serving and any(each.is_old for each in self.workers)
        limit = self.chosen.timeout_worker_start
        if code is not None:
            self.workers.remove(worker)
            is_failure = is_restart or not self.is_announced or code == STARTUP_FAILURE
            if self.is_stopping or not (was_serving or is_starting):
                return
            if was_serving or not is_failure:
                log.error("process %d ended with exit code %d", process.pid, code)
                if is_starting:  # the next one may end in the same way
                    self.start_at = self.now + _RETRY_SECONDS
            elif code == STARTUP_FAILURE and not self.is_serving:
                self.stop(SystemExit(code))
            else:
                text = "a process ended before it had loaded the models: exit code"
                self.fail(worker, UsageError(f"{text} {code}"))
        elif worker.state in (SERVING, FINISHING) and worker.silent_seconds > _HUNG_SECONDS:
            log.error("process %d does not respond", process.pid)
            process.kill()
            worker.silent_seconds = 0  # its end may take a while
        elif worker.state is CANCELLED and self.now - worker.ended_at > _HUNG_SECONDS:
            process.kill()  # it ignores the signal, or is stopped
        elif is_restart and is_starting and self.now - worker.started_at > limit:
            text = f"a process was not ready within {format_seconds(limit)}"
            self.fail(worker, UsageError(text))

    @property
    def is_serving(self) -> bool:
        serving = (each for each in self.workers if each.state is SERVING)
        return any(each.process.exitcode is None for each in serving)

    def receive(self, worker: Worker, message: Any) -> None:
        if isinstance(message, UsageError):
            if not (worker.is_ending or worker.is_old):
                self.fail(worker, message)
        elif isinstance(message, bool):
            if message and worker.state is STARTING:
                worker.state = SERVING
            elif message and worker.state is CANCELLED:  # its model has ignored the first signal
                worker.state = FINISHING
                worker.end()
        elif not (self.is_announced or self.is_stopping):
            self.is_announced = True
            try:
                self.announce(*message)
            except (UsageError, OutputError) as error:
                self.stop(error)

    def handle(self, number: int) -> None:
        if number == signal.SIGHUP:
            self.start_at = 0.0
            for each in self.workers:
                each.is_old = True
        elif not self.is_stopping:
            self.stop()
        elif number == signal.SIGINT:
            for each in self.workers:
                each.process.kill()

    def fail(self, worker: Worker, error: UsageError) -> None:
        """Give up a process that does not start, or stop if no other one serves."""
        if self.is_serving:
            worker.end()
            self.give_up(error)
        else:
            self.stop(error)

    def give_up(self, error: Exception) -> None:
        """Give up a restart. A process that is missing is started later."""
        log.error("a new process cannot serve, so the old ones remain: %s", error)
        self.start_at = self.now + _RETRY_SECONDS
        for each in self.workers:
            each.is_old = False

    def stop(self, failure: UsageError | OutputError | SystemExit | None = None) -> None:
        """Stop all processes, unless they are stopped already."""
        if self.is_stopping:
            return
        self.is_stopping, self.failure = True, failure
        self.released.close()
        # Otherwise, connections would be accepted by these sockets when no process serves them.
        for bound in self.sockets:
            bound.close()
        for each in self.workers:
            with suppress(OSError):  # it has ended
                each.pipe.send(None)
            each.end()
