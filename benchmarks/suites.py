"""Suites: each is a `bench_*.py` that pytest runs in a process of its own, and is listened to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .environments import Interpreter

HERE = Path(__file__).resolve().parent
SUITES = {name: HERE / f"bench_{name}.py" for name in ("decode", "encode", "bytes", "http")}
SUITES |= {name: HERE / f"bench_{name}.py" for name in ("throughput", "integrations")}
SUITES |= {name: HERE / f"bench_{name}.py" for name in ("memory", "body", "gil", "json")}
SLOW = {"gil", "integrations", "memory", "throughput"}  # not among the quick, unless named
WITH_PEERS = {"decode", "encode", "http", "integrations", "memory"}
QUICK_PEERS = {"decode", "encode", "integrations"}

FULL = ["--benchmark-max-time=0.25", "--benchmark-min-rounds=5"]
QUICK = ["--quick", "--benchmark-max-time=0.03", "--benchmark-min-rounds=3"]
# Whatever a peer warns of is not our business; the tables are ours to print.
ALWAYS = ["-q", "-W", "default", "--no-header", "--benchmark-columns=median"]
# A peer's environment may have plugins that are older than this pytest.
ALWAYS += ["-p", "pytest_benchmark.plugin"]
VARIABLES = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

STALL_SECONDS = 180.0
STOP_SECONDS = 20.0
CRASHES = 3  # after so many, the rest of the suite is left out

Place = dict[str, str]
Progress = Callable[[int, int, str], None]  # done, of, what


@dataclass
class Outcome:
    """What a suite has found."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


@dataclass
class Run:
    """One process of pytest, and what it has told."""

    outcome: Outcome
    progress: Progress
    started: list[str]
    total: int = 0
    place: Place | None = None

    def hear(self, event: dict[str, Any]) -> None:
        if "row" in event:
            self.outcome.rows.append(event["row"])
        elif "note" in event:
            self.outcome.notes.append(event["note"])
        elif "trying" in event:
            self.place = event["trying"]
        elif "start" in event:
            self.started.append(event["start"])
            self.progress(len(self.started) - 1, self.total, event["start"].partition("::")[2])
        else:
            self.outcome.versions |= event["versions"]
            if "total" in event:
                self.total = len(self.started) + event["total"]


def run_suite(suite: str, by: Interpreter, *, is_quick: bool, progress: Progress) -> Outcome:
    """Run it. A crash or a hang becomes a note, and the rest is run again without that row."""
    outcome, started = Outcome(), list[str]()
    for _ in range(CRASHES):
        run = Run(outcome, progress, started)
        code, tail = run_once(suite, by, run, is_quick=is_quick)
        if code in (0, 5):  # 5: nothing to run
            break
        if code == 1:
            outcome.troubles.append(f"{suite}: tensorwire itself fails:\n{tail}")
            break
        if run.place is None:
            outcome.troubles.append(f"{suite}: pytest ends with {code}:\n{tail}")
            break
        outcome.notes.append({**run.place, "kind": "crashes", "text": f"exit code {code}"})
    else:
        outcome.troubles.append(f"{suite}: the rest is left out after {CRASHES} crashes")
    progress(len(started), len(started), suite)
    return outcome


def run_once(suite: str, by: Interpreter, run: Run, *, is_quick: bool) -> tuple[int, str]:
    """The exit code, and the end of what pytest printed."""
    ear, mouth = os.pipe()
    options = [*ALWAYS, *(QUICK if is_quick else FULL), "--environment", by.name]
    options += [f"--deselect={nodeid}" for nodeid in run.started]
    command = [by.python, "-m", "pytest", *options, f"--listener={mouth}", str(SUITES[suite])]
    with tempfile.TemporaryFile("w+") as log:
        with os.fdopen(ear) as stream:
            process = subprocess.Popen(
                command,
                cwd=HERE.parent,
                env={**os.environ, **VARIABLES, **by.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[mouth],
            )
            os.close(mouth)
            try:
                listen(stream, process, run)
            finally:
                stop(process)
        log.seek(0)
        return process.returncode, "\n".join(log.read().splitlines()[-12:])


def listen(stream: IO[str], process: subprocess.Popen[bytes], run: Run) -> None:
    """Until the process ends; one that says nothing for long is stopped."""
    for line in iter(watched(stream, process), ""):
        run.hear(json.loads(line))
    process.wait(STALL_SECONDS)


def watched(stream: IO[str], process: subprocess.Popen[bytes]) -> Callable[[], str]:
    def readline() -> str:
        timer = threading.Timer(STALL_SECONDS, stop, [process])
        timer.daemon = True  # so that an interrupted run ends at once
        timer.start()
        try:
            return stream.readline()
        finally:
            timer.cancel()

    return readline


def stop(process: subprocess.Popen[bytes]) -> None:
    """Let pytest stop the servers that it has started."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
