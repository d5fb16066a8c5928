"""The processes of ``tensorwire serve --workers N``. This module requires uvicorn."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from .output import OutputError, UsageError

# In this time, a process of uvicorn stops accepting connections.
_STOP_SECONDS = 0.15


class Processes(Multiprocess):
    """Starts the processes side by side, and stops them all if one cannot load the models.

    Each process sends what ``announce`` prints, or a text that describes an error. The models are
    not imported by the first process, so that they do not need its memory, too.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: list[socket.socket],
        reports: Connection,
        announce: Callable[[Any], None],
    ) -> None:
        options: dict[str, Any] = {"sockets": sockets}
        if "target" in inspect.signature(Multiprocess).parameters:  # until uvicorn 0.50
            options["target"] = uvicorn.Server(config).run
        super().__init__(config, **options)
        self.failure = ""
        self.loaded: set[int] = set()  # the processes that have loaded the models
        self.has_report = threading.Event()
        threading.Thread(target=self.receive, args=(reports, announce), daemon=True).start()

    def receive(self, reports: Connection, announce: Callable[[Any], None]) -> None:
        while True:
            process, report = reports.recv()
            if isinstance(report, str):
                self.fail(report)
            elif not self.has_report.is_set():
                try:
                    announce(report)
                except UsageError as error:
                    self.fail(str(error))
                except OutputError as error:
                    self.fail(f"the standard output cannot be written: {error.__cause__}")
            self.loaded.add(process)
            self.has_report.set()

    def fail(self, problem: str) -> None:
        """Stop all processes because of the first problem."""
        self.failure = self.failure or problem
        self.should_exit.set()

    def keep_subprocess_alive(self) -> None:
        codes = [each.process.exitcode for each in self.processes]
        if any(code is not None for code in codes) and not self.has_report.wait(1):
            self.fail(f"a process ended before it had loaded the models: exit codes {codes}")
        # uvicorn would kill a process that does not answer within 5 seconds, because it loads them.
        loading = [
            each
            for each in self.processes
            if each.process.exitcode is None and each.pid not in self.loaded
        ]
        if self.failure or not loading:
            super().keep_subprocess_alive()

    def terminate_all(self) -> None:
        # One after another, so that clients whose connections are closed find the next process.
        # The queue of the sockets is lost with the last one, and so it should be empty then.
        for each in self.processes:
            each.terminate()
            time.sleep(_STOP_SECONDS)

    def handle_int(self) -> None:
        self.close_sockets()
        super().handle_int()

    def handle_term(self) -> None:
        self.close_sockets()
        super().handle_term()

    def close_sockets(self) -> None:
        # Otherwise, connections would be accepted by these sockets when no process serves them.
        for each in self.sockets:
            each.close()


def end_with_parent(folder: str | None) -> None:
    """Stop this process when the first process has been killed, and remove its folder."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    threading.Thread(target=watch, daemon=True).start()
