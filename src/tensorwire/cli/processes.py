"""The processes of ``tensorwire serve --workers N``. This module requires uvicorn."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from .output import OutputError, UsageError

STARTUP_FAILURE = 3  # the exit code with which uvicorn does not replace a process
# The variable that names the folder in which prometheus_client adds up the metrics of processes.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# In this time, a process of uvicorn stops accepting connections.
_STOP_SECONDS = 0.15


def serve_processes(
    config: uvicorn.Config,
    create: Callable[[], tuple[Any, ...]],
    sockets: list[socket.socket],
    announce: Callable[..., None],
) -> int:
    """Serve with several processes, and return the exit status.

    Each process calls ``create``, which returns its application and what ``announce`` prints. The
    first process does not, so that it does not need the memory of the models, too. Raises
    UsageError, and OutputError if ``announce`` does.
    """
    os.environ["WEB_CONCURRENCY"] = str(config.workers)  # they share the memory for bodies
    receiving, sending = multiprocessing.Pipe(duplex=False)
    with metrics_folder() as folder:
        config.app = partial(create_in_process, create, sending, folder)
        processes = Processes(config, sockets)
        threading.Thread(target=processes.receive, args=(receiving, announce), daemon=True).start()
        try:
            processes.run()
        finally:  # if one cannot be started, for example
            for each in processes.processes:
                each.process.terminate()
    if processes.failure is not None:
        raise processes.failure
    codes = [each.process.exitcode for each in processes.processes]
    return STARTUP_FAILURE if STARTUP_FAILURE in codes else 0


def create_in_process(
    create: Callable[[], tuple[Any, ...]], reports: Connection, folder: str | None
) -> Any:
    """Return the application of one of several processes. Report what it serves, or an error."""
    threading.Thread(target=end_with_parent, args=(folder,), daemon=True).start()
    # The handler of uvicorn would wait until the models are loaded.
    original = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        app, *report = create()
    except UsageError as error:
        reports.send((os.getpid(), error))
        sys.exit(STARTUP_FAILURE)
    finally:
        signal.signal(signal.SIGTERM, original)
    with suppress(OSError):  # the first process has been killed
        reports.send((os.getpid(), report))
    return app


@contextmanager
def metrics_folder() -> Iterator[str | None]:
    """Create the folder in which the processes add up their metrics, unless there is one."""
    if os.environ.get(FOLDER_VARIABLE) or find_spec("prometheus_client") is None:
        yield None
        return
    with TemporaryDirectory(prefix="tensorwire-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield folder
        finally:
            del os.environ[FOLDER_VARIABLE]


class Processes(Multiprocess):
    """Starts the processes side by side, and stops them all if one cannot load the models."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        options: dict[str, Any] = {"sockets": sockets}
        if "target" in inspect.signature(Multiprocess).parameters:  # until uvicorn 0.50
            options["target"] = uvicorn.Server(config).run
        super().__init__(config, **options)
        self.failure: UsageError | OutputError | None = None
        self.loaded: set[int] = set()  # the processes that have loaded the models
        self.has_report = threading.Event()

    def receive(self, reports: Connection, announce: Callable[..., None]) -> None:
        while True:
            process, report = reports.recv()
            if isinstance(report, UsageError):
                self.fail(report)
            elif not (self.has_report.is_set() or self.should_exit.is_set()):
                try:
                    announce(*report)
                except (UsageError, OutputError) as error:
                    self.fail(error)
            self.loaded.add(process)
            self.has_report.set()

    def fail(self, error: UsageError | OutputError) -> None:
        """Stop all processes because of the first error, unless they are stopped already."""
        if not self.should_exit.is_set():
            self.failure = error
            self.should_exit.set()

    def keep_subprocess_alive(self) -> None:
        codes = [each.process.exitcode for each in self.processes]
        if any(code is not None for code in codes) and not self.has_report.wait(1):
            problem = f"a process ended before it had loaded the models: exit codes {codes}"
            self.fail(UsageError(problem))
        # uvicorn would kill a process that does not answer within 5 seconds, because it loads them.
        loading = [
            each
            for each in self.processes
            if each.process.exitcode is None and each.pid not in self.loaded
        ]
        if not loading:
            super().keep_subprocess_alive()

    def terminate_all(self) -> None:
        # Otherwise, connections would be accepted by these sockets when no process serves them.
        for bound in self.sockets:
            bound.close()
        # One after another, so that clients whose connections are closed find the next process.
        # The queue of the sockets is lost with the last one, and so it should be empty then.
        for each in self.processes:
            each.terminate()
            time.sleep(_STOP_SECONDS)

    def join_all(self) -> None:
        """Wait for the processes, which a further SIGINT ends at once."""
        processes = [each.process for each in self.processes]
        while running := [each for each in processes if each.exitcode is None]:
            wait([each.sentinel for each in running], timeout=0.1)
            if signal.SIGINT in self.signal_queue:
                self.signal_queue.clear()
                for each in running:
                    each.kill()


def end_with_parent(folder: str | None) -> None:
    """Wait until the first process is killed. Then remove its folder, and stop this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
