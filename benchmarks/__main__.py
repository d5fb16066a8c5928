"""``python -m benchmarks``: measure, then write results/*.json, the tables and the plots.

Each subject is a file `bench_*.py`, which pytest runs in a separate process, once in each
environment that the subject needs. Files are written after all subjects are measured. A run that is
interrupted writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import report
from .contenders import ENVIRONMENTS, Missing
from .servers import interpreter

HERE = Path(__file__).resolve().parent
SUBJECTS: dict[str, tuple[str, ...]] = {  # and the additional environments of their contenders
    "codec": ENVIRONMENTS,
    "bytes": (),
    "json": (),
    "http": ("kserve",),
    "integrations": ("kserve", "mlserver"),
    "memory": ("kserve", "mlserver"),
    "grpc": (),
}
QUICK_SUBJECTS = ("codec", "bytes", "json", "http")  # of a quick run without arguments
TIMEOUT_SECONDS = 3600.0  # for one subject in one environment
STOP_SECONDS = 30.0

# A round takes at least 1 ms, because reading the clock adds 0.2 us, 4 % of a round of 5 us.
FULL = ["--benchmark-max-time=0.25", "--benchmark-min-rounds=5", "--benchmark-min-time=0.001"]
QUICK = ["--benchmark-max-time=0.03", "--benchmark-min-rounds=1"]
# Warnings of other packages are not errors, and `report.py` writes the tables.
OPTIONS = ["-q", "--no-header", "-W", "default", "--disable-warnings", "--benchmark-quiet"]
# Environments may have plugins that do not work with this version of pytest.
OPTIONS += ["-p", "pytest_benchmark.plugin"]
VARIABLES = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--quick", action="store_true", help="few workloads, few rounds")
    parser.add_argument("--here", action="store_true", help="use no other environments")
    parser.add_argument("--render", action="store_true", help="write the pages, measure nothing")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="write only results")
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(SUBJECTS):
        parser.error(f"unknown subject: {', '.join(sorted(unknown))}")
    if not arguments.subjects:
        arguments.subjects = QUICK_SUBJECTS if arguments.quick else tuple(SUBJECTS)
    return arguments


def measure(arguments: argparse.Namespace) -> tuple[dict[str, report.Results], bool]:
    """Return the results by subject, and whether pytest succeeded for all of them."""
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    measured: dict[str, report.Results] = {}
    succeeded = True
    for subject, environments in SUBJECTS.items():
        if subject not in arguments.subjects:
            continue
        outputs: dict[str, Any] = {}
        left_out: dict[str, str] = {}
        for environment in ("", *([] if arguments.here else environments)):
            print(f"{subject}{environment and f' in the environment of {environment}'}", flush=True)
            try:
                python = interpreter(environment, create=not arguments.quick)
            except Missing as reason:
                left_out[environment] = str(reason)
                continue
            code, output = run_pytest(subject, environment, python, is_quick=arguments.quick)
            if code not in (0, NO_TESTS):
                print(f"{subject}: pytest exits with {code}", file=sys.stderr)
                succeeded = False
            if output:
                outputs[environment] = output
        if outputs:
            measured[subject] = report.merge(outputs, command, left_out)
    return measured, succeeded


NO_TESTS = 5  # the exit code of pytest if no benchmark is selected


def run_pytest(
    subject: str, environment: str, python: list[str], *, is_quick: bool
) -> tuple[int, Any]:
    """Run the benchmarks of a subject in an environment.

    Returns the exit code and the JSON of pytest-benchmark, which is None if nothing was measured.
    After a timeout pytest is interrupted, and writes the results that it has until then.
    """
    selected = [environment] if environment else [f"not {name}" for name in ENVIRONMENTS]
    selected += ["quick"] * is_quick + ["not large"] * (is_quick and bool(environment))
    with TemporaryDirectory(prefix="tensorwire-benchmark-") as scratch:
        path = Path(scratch, "benchmark.json")
        options = [*OPTIONS, *(QUICK if is_quick else FULL), f"--benchmark-json={path}"]
        options += ["-m", " and ".join(selected)]
        process = subprocess.Popen(
            [*python, "-m", "pytest", *options, str(HERE / f"bench_{subject}.py")],
            cwd=HERE.parent,
            env={**os.environ, **VARIABLES},
        )
        try:
            code = process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{subject}: stopped after {TIMEOUT_SECONDS:.0f} s", file=sys.stderr)
            code = stop(process)
        except BaseException:
            stop(process)
            raise
        text = path.read_text() if path.exists() else ""
    return code, json.loads(text) if text else None


def stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt pytest, which then stops its servers. Returns the exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def main() -> None:
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    measured: dict[str, report.Results] = {}
    succeeded = True
    if not arguments.render:
        try:
            measured, succeeded = measure(arguments)
        except KeyboardInterrupt:
            sys.exit("\ninterrupted: nothing was written")
    folder = arguments.results or report.RESULTS
    files = {
        folder / f"{subject}.json": results.text().encode() for subject, results in measured.items()
    }
    if not arguments.results:
        files |= report.rendered({**report.read_results(), **measured})
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        print(f"wrote {path}")
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
