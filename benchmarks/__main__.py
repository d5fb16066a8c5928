"""Measure, and print each row of the tables when it is done.

The results are written to .benchmarks/results, which git ignores. `python -m benchmarks.publish`
creates the tables and plots of the manual from them.

To measure a server of your own, use `tensorwire infer URL MODEL --random --repeat 1000
--concurrency 8`, which prints latencies and requests per second (`tensorwire infer --help`).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

from . import machine, report
from .contenders import ENVIRONMENTS, Missing
from .measure import MISSING
from .servers import interpreter

# Each subject is a file `bench_*.py`, which pytest runs in a separate process, once in each
# environment that the subject needs: in ours, and in these.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "codec": ENVIRONMENTS,
    "bytes": (),
    "json": (),
    "http": ("kserve",),
    "integrations": ("kserve", "mlserver"),
    "memory": ("kserve", "mlserver"),
    "grpc": (),
    "alternatives": (),
    "scale": (),
}
QUICK_SUBJECTS = ("codec", "bytes", "json", "http")  # of a quick run without arguments
HERE = Path(__file__).resolve().parent
MEASURED = HERE.parent / ".benchmarks" / "results"
TIMEOUT_SECONDS = 3600.0  # for one subject in one environment
STOP_SECONDS = 30.0
NO_TESTS = 5  # the exit code of pytest if no benchmark is selected

# A round takes at least 1 ms, because reading the clock adds 0.2 us, 4 % of a round of 5 us.
FULL = ["--benchmark-max-time=0.25", "--benchmark-min-rounds=5", "--benchmark-min-time=0.001"]
QUICK = ["--benchmark-max-time=0.03", "--benchmark-min-rounds=1"]
# Warnings of other packages are not errors, and `Progress` prints the tables.
OPTIONS = ["-q", "--no-header", "-W", "default", "--disable-warnings", "--benchmark-quiet"]
# Environments may have plugins that do not work with this version of pytest.
OPTIONS += ["-p", "pytest_benchmark.plugin"]
VARIABLES = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--quick", action="store_true", help="few workloads, few rounds")
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(SUBJECTS):
        parser.error(f"unknown subject: {', '.join(sorted(unknown))}")
    if not arguments.subjects:
        arguments.subjects = QUICK_SUBJECTS if arguments.quick else tuple(SUBJECTS)
    return arguments


class Progress:
    """Collects what a process of pytest measures, and prints each row when it is done."""

    def __init__(self, results: report.Results, environment: str) -> None:
        self.results = results
        self.environment = environment
        self.n_done = self.n_tests = 0
        self.row: tuple[str, str] | None = None  # the table and the workload
        self.cells: dict[str, str] = {}  # of the row: the text of each contender
        self.bases: dict[tuple[str, str], report.Row] = {}  # the first contender of each row
        for row in results.rows:
            self.bases.setdefault((row["table"], row["workload"]), row)

    def take(self, message: dict[str, Any]) -> None:
        """Take a line that `conftest.py` has written."""
        if "n_tests" in message:
            self.n_tests = message["n_tests"]
        elif "versions" in message:
            self.results.versions[self.environment] = message["versions"]
        else:
            for row in message["rows"]:
                self.results.rows.append(row)
                place = (row["table"], row["workload"])
                self.start(place)
                self.cells[row["contender"]] = report.cell(row, self.bases.setdefault(place, row))
            for note in message["notes"]:
                self.take_note(note)
            self.n_done += 1

    def take_note(self, note: dict[str, Any]) -> None:
        contender, reason = note["contender"], f"{note['kind']}: {note['text']}"
        if note["kind"] != MISSING:
            self.results.notes.append(note)
            self.start((note["table"], note["workload"]))
            self.cells[contender] = reason
        elif (problem := f"{contender} is {reason}") not in self.results.problems:
            self.results.problems.append(problem)
            print(problem)

    def start(self, place: tuple[str, str]) -> None:
        """Print the last row, unless this one is the same."""
        if place != self.row:
            self.finish()
        self.row = place

    def finish(self) -> None:
        if self.row is None:
            return
        print(f"{', '.join(self.row)}  [{self.n_done}/{self.n_tests}]")
        width = max(map(len, self.cells)) + 2
        for contender, text in self.cells.items():
            print(f"    {contender:{width}}{text}", flush=True)
        self.row, self.cells = None, {}


def measure(subject: str, results: report.Results, *, is_quick: bool) -> None:
    """Measure a subject in all environments, and add what is found to the results."""
    for environment in ("", *SUBJECTS[subject]):
        where = environment and f", in the environment of {environment}"
        print(f"\n== {subject}{where} ==", flush=True)
        try:
            python = interpreter(environment)
        except Missing as reason:
            results.problems.append(f"{environment} is {MISSING}: {reason}")
            print(results.problems[-1])
            continue
        if problem := run_pytest(subject, environment, python, results, is_quick=is_quick):
            results.problems.append(f"{problem}{where}")


def run_pytest(
    subject: str,
    environment: str,
    python: list[str],
    results: report.Results,
    *,
    is_quick: bool,
) -> str:
    """Run the benchmarks of a subject in an environment. Returns what went wrong."""
    selected = [environment] if environment else [f"not {name}" for name in ENVIRONMENTS]
    selected += ["quick"] * is_quick + ["not large"] * (is_quick and bool(environment))
    reader, writer = os.pipe()
    options = [*OPTIONS, *(QUICK if is_quick else FULL), f"--measured=/dev/fd/{writer}"]
    options += ["-m", " and ".join(selected), str(HERE / f"bench_{subject}.py")]
    progress = Progress(results, environment)
    with TemporaryFile() as log, open(reader) as lines:
        process = subprocess.Popen(
            [*python, "-m", "pytest", *options],
            cwd=HERE.parent,
            env={**os.environ, **VARIABLES},
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[writer],
        )
        os.close(writer)
        timeout = Timer(TIMEOUT_SECONDS, process.send_signal, [signal.SIGINT])
        timeout.start()
        try:
            for line in lines:
                progress.take(json.loads(line))
            code = process.wait(STOP_SECONDS)
        finally:
            timeout.cancel()
            stop(process)
        progress.finish()
        if code in (0, NO_TESTS):
            return ""
        log.seek(0)
        print(log.read().decode(errors="replace"), file=sys.stderr)
        return f"pytest exits with {code}"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt pytest if it still runs. It then stops its servers."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    problems = ["it is a quick run"] if arguments.quick else machine.problems()
    for problem in problems:
        print(f"these results cannot be published: {problem}")
    has_failed = False
    for subject in SUBJECTS:
        if subject not in arguments.subjects:
            continue
        date = datetime.now(UTC).date().isoformat()
        results = report.Results(command, date, machine.description(), problems=list(problems))
        try:
            measure(subject, results, is_quick=arguments.quick)
        except KeyboardInterrupt:
            sys.exit(f"\ninterrupted: {subject} is not written")
        has_failed |= any("pytest exits" in problem for problem in results.problems)
        path = MEASURED / f"{subject}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(results.text())
        print(f"\nwrote {path.relative_to(HERE.parent)}")
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
