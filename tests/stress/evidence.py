"""Run the sanitizers, search for leaks, and write the results to docs/evidence.md.

`PYTHONPATH=tests python -m stress.evidence` takes about 20 minutes on two cores. It needs gcc and
valgrind. The page also has the last run of each fuzz target (`python tests/fuzz/run.py`), and the
last complete run of `python tests/mutation/run.py`. If a check fails or a target has a finding, the
reason is printed, the exit code is 1, and the page is not written.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorwire as tw
from fuzz import run

PAGE = run.ROOT / "docs" / "evidence.md"
BUILD = run.FOLDER / "tests-sanitized"
BEGIN, END = "<!-- begin fuzzing -->\n", "<!-- end fuzzing -->"
N_CALLS = 100_000  # of each entry point, for leaks
N_STEPS = 200_000  # of the API in random order
TEST_SCALE = "0.3"  # of the tests with sanitizers


class Check(NamedTuple):
    """A command, and a pattern of the part of its output that is the result."""

    title: str
    command: list[str]
    result: str
    environ: Mapping[str, str] = {}
    suffix: str = ""


def main() -> None:
    fuzzed, mutated = list(last_campaigns()), last_mutants()
    build_for_tests()
    checked = [mutated, *((check.title, *passed(check)) for check in checks())]
    lines = [*fuzz_table(fuzzed), "", *check_table(checked), "", versions(), ""]
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + END + rest.split(END)[1])


def last_campaigns() -> Iterator[dict[str, Any]]:
    """Yield the statistics of the last run of each fuzz target."""
    rows = [json.loads(line) for line in (run.FOLDER / "counts.jsonl").read_text().splitlines()]
    last = {row["target"]: row for row in rows}
    for target in (*run.TARGETS, *run.KERNELS):
        if target not in last or last[target]["exit_code"]:
            sys.exit(f"the fuzz target {target} has not been run, or has a finding")
        yield last[target]


def last_mutants() -> tuple[str, str, int]:
    """Return the row about the last complete run of the mutants."""
    path = run.ROOT / ".mutation" / "last_run.json"
    if not path.exists():
        sys.exit("the mutants have not been run: python tests/mutation/run.py --jobs 2")
    row = json.loads(path.read_text())
    share = 100 * row["killed"] / row["not_equivalent"]
    return (
        "small bugs that were inserted in a copy of the source, one at a time, and that a test "
        f"must notice (`tests/mutation/run.py`, {row['date']}, commit {row['commit']})",
        f"{row['mutants']:,} mutants: {row['killed']:,} of the {row['not_equivalent']:,} that are "
        f"not equivalent were noticed ({share:.1f} %)",
        row["seconds"],
    )


def build_for_tests() -> None:
    """Build the package with gcc and its sanitizers, for the Python that runs this program."""
    switches = {"TENSORWIRE_SANITIZE": "1"}
    folders = ["--build-lib", BUILD, "--build-temp", f"{BUILD}-objects"]
    run.do(run.PYTHON, "setup.py", "-q", "build", *folders, env=os.environ | switches)


def checks() -> Iterator[Check]:
    python = sys.executable
    runtime = run.do("gcc", "-print-file-name=libasan.so").strip()
    yield Check(
        "tests under AddressSanitizer and UndefinedBehaviorSanitizer",
        [python, "-m", "pytest", "-q", "-m", "not no_sanitizers"],
        r"(\d+ passed.*?) in .*",
        {
            "PYTHONPATH": f"{BUILD}:{run.TESTS}",
            "LD_PRELOAD": runtime,
            "PYTHONMALLOC": "malloc",
            "TENSORWIRE_TEST_SCALE": TEST_SCALE,
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "halt_on_error=1",
        },
    )
    yield Check(
        "all entry points under valgrind's memcheck (`stress.memcheck`)",
        [python, "-m", "stress.memcheck"],
        r"(\d+ calls), (?:.|\n)*; 0 of them in a call of this package",
        suffix=": no error in this package",
    )
    yield Check(
        f"memory, objects and references, {N_CALLS:,} calls of each entry point (`stress.leaks`)",
        [python, "-m", "stress.leaks", str(N_CALLS)],
        r"^([^:]+): \d+ cases",
    )
    seed = time.strftime("%Y%m%d")
    yield Check(
        f"the API in random order with hostile objects (`fuzz.api --seed {seed}`)",
        [python, "-m", "fuzz.api", "--seed", seed, "--steps", str(N_STEPS)],
        r"(\d+ steps in \d+ episodes: no finding)",
    )


def passed(check: Check) -> tuple[str, int]:
    """Run a check, and return its result and its duration. If it fails, print its output."""
    begun = time.monotonic()
    output = run.do(*check.command, env=os.environ | check.environ)
    seconds = round(time.monotonic() - begun)
    found = re.findall(check.result, output, re.MULTILINE)
    assert found, output
    if check.command[2] == "stress.leaks":
        result = f"{len(found)} entry points: no leak"
    else:
        result = found[-1] + check.suffix
    print(f"{check.title}: {result}, {seconds} s", flush=True)
    return result, seconds


def fuzz_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| fuzz target | date | executions | seconds | executions per second | edges reached |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        n, seconds = row["executions"], row["seconds"]
        yield (
            f"| `{row['target']}` | {row['date']} | {n:,} | {seconds} | {n // max(seconds, 1):,} "
            f"| {row['coverage']:,} |"
        )


def check_table(rows: list[tuple[str, str, int]]) -> Iterator[str]:
    yield "| check | result | seconds |"
    yield "|---|---|---|"
    for title, result, seconds in rows:
        yield f"| {title} | {result} | {seconds} |"


def versions() -> str:
    clang = run.do("clang", "--version").splitlines()[0]
    gcc = run.do("gcc", "-dumpfullversion").strip()
    found = re.search(r"[\d.]+", clang)
    return (
        f"`python -m stress.evidence`, {time.strftime('%Y-%m-%d')}: tensorwire {tw.__version__}, "
        f"Python {platform.python_version()}, clang {found[0] if found else clang}, gcc {gcc}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs."
    )


if __name__ == "__main__":
    main()
