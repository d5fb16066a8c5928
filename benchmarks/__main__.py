"""``python -m benchmarks``: measure, then write results/*.json, the plots and the READMEs' tables.

Nothing is written before everything is measured. What is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

from . import plots, report
from .environments import HERE, all_interpreters
from .missing import Missing
from .results import FOLDER, Results, empty, read
from .suites import QUICK_PEERS, SLOW, SUITES, WITH_PEERS, run_suite


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all")
    parser.add_argument(
        "--quick", action="store_true", help="few workloads, few rounds; about 1.5 min"
    )
    parser.add_argument("--no-peers", action="store_true", help="this interpreter alone")
    parser.add_argument("--render", action="store_true", help="measure nothing: pages from results")
    parser.add_argument("--no-pages", action="store_true", help="leave the READMEs as they are")
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    found = parser.parse_args()
    if unknown := set(found.suites) - set(SUITES):
        parser.error(f"no suite is called {', '.join(sorted(unknown))}")
    return found


class Bar:
    """What runs, on one line of a terminal; elsewhere a line when a suite begins and ends."""

    def __init__(self, title: str) -> None:
        self.title, self.began = title, time.monotonic()
        if not sys.stderr.isatty():
            print(f"{title} ...", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int, what: str) -> None:
        if sys.stderr.isatty():
            width = 24
            full = width * done // total if total else 0
            bar = f"{self.title} [{'#' * full}{'.' * (width - full)}] {done}/{total} {what}"
            columns = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{bar[:columns]}", end="", file=sys.stderr, flush=True)

    def end(self, n_rows: int, n_notes: int) -> None:
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""
        seconds = time.monotonic() - self.began
        text = f"{self.title}: {n_rows} measured, {n_notes} not, {seconds:.0f} s"
        print(f"{clear}{text}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> tuple[dict[str, Results], list[str]]:
    """Results by suite, and what went wrong."""
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    chosen = options.suites or [name for name in SUITES if not (options.quick and name in SLOW)]
    names = [name for name in SUITES if name in chosen]
    left_out: dict[str, str] = {}
    interpreters = [HERE]
    if not options.no_peers and WITH_PEERS & set(names):
        interpreters = list(all_interpreters(make=not options.quick, left_out=left_out))
    with_peers = QUICK_PEERS if options.quick else WITH_PEERS
    jobs = [(name, by) for name in names for by in interpreters if by == HERE or name in with_peers]
    measured: dict[str, Results] = {}
    troubles: list[str] = []
    for n, (name, by) in enumerate(jobs, 1):
        bar = Bar(f"[{n}/{len(jobs)}] {name}{f' by {by.name}' if by.name else ''}")
        outcome = run_suite(name, by, is_quick=options.quick, progress=bar)
        bar.end(len(outcome.rows), len(outcome.notes))
        results = measured.setdefault(name, empty(command))
        results.rows += outcome.rows
        results.notes += [note for note in outcome.notes if note["kind"] != "missing"]
        results.versions[by.name] = outcome.versions
        troubles += outcome.troubles
        missing = {n["contender"]: n["text"] for n in outcome.notes if n["kind"] == "missing"}
        results.left_out |= (left_out if name in WITH_PEERS else {}) | missing
    return measured, troubles


def main() -> None:
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(number, signal.default_int_handler)
    try:
        measured, troubles = ({}, []) if options.render else measure(options)
    except KeyboardInterrupt:
        sys.exit("\ninterrupted: nothing was written")
    left_out = {who: why for r in measured.values() for who, why in r.left_out.items()}
    measured = {name: results for name, results in measured.items() if results.rows}
    texts = {options.results / f"{name}.json": r.text() for name, r in measured.items()}
    known = {**read(options.results), **measured}
    if known and not options.no_pages:
        texts |= report.written(known)
        try:
            texts |= plots.drawn(known)
        except Missing as reason:
            left_out["plots"] = str(reason)
    report.replace(texts)
    for path in texts:
        print(f"written: {path}")
    for who, why in left_out.items():
        print(f"left out: {who}: {why}")
    for trouble in troubles:
        print(f"trouble: {trouble}", file=sys.stderr)
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
