"""Run the tests on small bugs: `python tests/mutation/run.py [TABLE[/MUTANT] ...] [--jobs 2]`.

Each mutant of the tables (`tests/mutation/tables`, one for each source file) is a bug that the
tests must notice. In a copy of the checkout, the program inserts the bug, compiles the changed
extensions without optimisation, and runs the tests that are named in the table, and then those of
the other tables in the same folder, until one of them fails. This test is run without the bug, too,
where it must pass.

The exit code is 1 if a mutant survives without an explanation in its table, or if a mutant with an
explanation is killed. Mutants with an explanation only run if they are named. `--record` writes the
tests that failed to `killers.json`, and they run first the next time. The copies and the results
are in the folder .mutation.

The Python that runs this program needs what setup.py and the tests need. The tests of a table with
an `environment` run in that of another program; see tests/interop/environment.py. If it is missing,
these mutants do not run, which is an error in CI, unless TENSORWIRE_LEFT_OUT names the program.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interop import environment
from mutation.table import Mutant, TableError, read_tables

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".mutation"
RESULTS = FOLDER / "results.json"
LAST_RUN = FOLDER / "last_run.json"  # the score of the last complete run, for stress.evidence
KILLERS = HERE / "killers.json"
TEST_SECONDS = 60  # of one test; it takes a few seconds without a bug
BUILD_SECONDS = 900
ERROR = re.compile("Sanitizer: |runtime error: |Error")
ON_IMPORT = " (on import)"
NO_TESTS = (4, 5)  # exit codes of pytest: a named test does not exist, or none was selected


@dataclass
class Result:
    """What happened to a mutant."""

    status: str  # "killed", "survived" or "build failed"
    killer: str | None = None  # the test that failed
    how: str = ""  # how it failed, or the output of the compiler
    seconds: float = 0
    digest: str = ""  # of the mutated source file


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="TABLE[/MUTANT]", help="by default all tables")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time")
    parser.add_argument("--minutes", type=float, help="begin no other mutant after this time")
    parser.add_argument(
        "--resume", action="store_true", help="skip mutants that were killed before"
    )
    parser.add_argument("--record", action="store_true", help="write killers.json")
    parser.add_argument("--quick", action="store_true", help="only the tests that a table names")
    parser.add_argument("--check", action="store_true", help="only check that the texts are found")
    arguments = parser.parse_args()
    try:
        tables = read_tables()
        mutants = select(tables, arguments.names)
        for mutant in mutants:
            mutant.apply((ROOT / mutant.file).read_text())
    except TableError as error:
        sys.exit(str(error))
    if arguments.check:
        return
    FOLDER.mkdir(exist_ok=True)
    begin = time.monotonic()
    results = load(RESULTS)
    if not arguments.resume:
        for mutant in mutants:
            results.pop(mutant.name, None)
    missing = missing_environments(mutants)
    begun = [
        m for m in mutants if m.environment not in missing and not is_known(m, results.get(m.name))
    ]
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    run = Run(tables, results, deadline, arguments.quick)
    for sanitizers in (False, True):
        chosen = [mutant for mutant in begun if mutant.sanitizers == sanitizers]
        if chosen:
            run.run(chosen, min(arguments.jobs, len(chosen)), sanitizers)
    if arguments.record:
        record(tables, results)
    code, score = summarise(tables, mutants, results)
    if not (arguments.names or arguments.quick or arguments.minutes or missing):
        commit = subprocess.check_output(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True
        ).strip()
        seconds = round(time.monotonic() - begin)
        row = {"date": time.strftime("%Y-%m-%d"), "commit": commit, "seconds": seconds, **score}
        LAST_RUN.write_text(json.dumps(row) + "\n")
    for name in missing:
        print(f"The mutants of {name} did not run: run tests/interop/environment.py {name}")
    left_out = os.environ.get("TENSORWIRE_LEFT_OUT", "").split()
    sys.exit(code or (1 if os.environ.get("CI") and set(missing) - set(left_out) else 0))


def select(tables: dict[str, list[Mutant]], names: list[str]) -> list[Mutant]:
    """Return the named mutants. Those that are explained must be named one by one."""
    found = []
    for name in names or tables:
        table, _, key = name.partition("/")
        rows = [m for m in tables.get(table, ()) if m.name == name or not (key or m.explained)]
        if not rows and table in tables:
            keys = (mutant.name.partition("/")[2] for mutant in tables[table])
            sys.exit(f"there is no mutant {name}; the mutants of {table} are: {', '.join(keys)}")
        if not rows:
            sys.exit(f"there is no table {table}; the tables are: {', '.join(tables)}")
        found += rows
    return found


def missing_environments(mutants: list[Mutant]) -> list[str]:
    names = sorted({mutant.environment for mutant in mutants if mutant.environment})
    return [name for name in names if environment_python(name) is None]


class Run:
    """Runs mutants in copies of the checkout, several at once."""

    def __init__(
        self,
        tables: dict[str, list[Mutant]],
        results: dict[str, Result],
        deadline: float | None,
        is_quick: bool,
    ) -> None:
        self.results = results
        self.deadline = deadline
        self.is_quick = is_quick
        self.killers = json.loads(KILLERS.read_text()) if KILLERS.exists() else {}
        self.wider: dict[str, list[str]] = {}  # the tests of each area
        for mutant in (m for rows in tables.values() for m in rows if not m.environment):
            tests = self.wider.setdefault(mutant.area, [])
            tests += [test for test in mutant.tests if test not in tests]
        self.pythons = {name: environment_python(name) for name in environment.PROGRAMS}
        self.verified: set[str] = set()
        self.lock = threading.Lock()

    def run(self, mutants: list[Mutant], n_jobs: int, sanitizers: bool) -> None:
        prefix = "sanitized" if sanitizers else "plain"
        self.original = Tree(FOLDER / prefix, sanitizers)
        copy_checkout(self.original.path)
        print(f"compiling {self.original.path}", flush=True)
        if output := self.original.build():
            sys.exit(output)
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(n_jobs):
            tree = Tree(FOLDER / f"{prefix}-{number + 1}", sanitizers)
            tree.restore(self.original)
            trees.put(tree)

        def one(mutant: Mutant) -> None:
            if self.deadline is not None and time.monotonic() > self.deadline:
                return
            tree = trees.get()
            try:
                result = self.mutate(mutant, tree)
            finally:
                tree.restore(self.original)
                trees.put(tree)
            with self.lock:
                self.results[mutant.name] = result
                save(self.results)
                word = result.status.ljust(12)
                killer = result.killer or result.how[-1000:]
                print(f"{word} {mutant.name} ({result.seconds:.0f} s) {killer}", flush=True)

        with ThreadPoolExecutor(n_jobs) as pool:
            try:
                for _ in pool.map(one, mutants):
                    pass
            except KeyboardInterrupt:
                print("finishing the mutants that have begun", flush=True)
                self.deadline = 0

    def mutate(self, mutant: Mutant, tree: Tree) -> Result:
        """Insert the bug, compile, and run tests until one fails."""
        start = time.monotonic()
        path = tree.path / mutant.file
        path.write_text(mutant.apply(path.read_text()))
        result = Result("survived")
        output = tree.build() if path.suffix in (".h", ".pyx", ".pxd") else ""
        if output:
            result = Result("build failed", how=output)
        else:
            stages = [list(mutant.tests)]
            if killer := self.killers.get(mutant.name):
                stages.insert(0, [killer])
            if mutant.environment:  # one process for each file, as in tests/interop
                stages = [[test] for tests in stages for test in tests]
            elif not self.is_quick and not mutant.sanitizers:
                stages.append([test for test in self.wider[mutant.area] if test not in stages[-1]])
            python = self.pythons[mutant.environment] if mutant.environment else None
            for tests in stages:
                if tests and (failed := tree.test(tests, python)):
                    self.verify(*failed, python)
                    result = Result("killed", *failed)
                    result.digest = digest(mutant)
                    break
        result.seconds = time.monotonic() - start
        return result

    def verify(self, killer: str, how: str, python: Path | None) -> None:
        """Exit unless the test passes without a bug."""
        with self.lock:
            if killer not in self.verified:
                if self.original.test([killer.removesuffix(ON_IMPORT)], python):
                    print(f"{killer} fails without a bug, too ({how})", flush=True)
                    os._exit(2)
                self.verified.add(killer)


class Tree:
    """A compiled copy of the checkout."""

    def __init__(self, path: Path, sanitizers: bool) -> None:
        self.path = path
        switch = "TENSORWIRE_SANITIZE" if sanitizers else "TENSORWIRE_DEBUG"
        self.env = {**os.environ, switch: "1"}
        self.test_env = {
            **os.environ,
            "PYTHONPATH": f"{path / 'src'}:{path / 'tests'}",
            "CI": "1",  # no test is skipped, and hypothesis always generates the same examples
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing them takes longer than most tests
            "TENSORWIRE_RUNNING_TEST": str(path.with_suffix(".running")),
            "TENSORWIRE_TEST_SECONDS": str(TEST_SECONDS * (5 if sanitizers else 1)),
        }
        self.marks = "not nightly"
        if sanitizers:
            self.marks += " and not no_sanitizers"
            library = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True)
            self.test_env |= {
                "LD_PRELOAD": library.strip(),
                "PYTHONMALLOC": "malloc",
                "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
                "UBSAN_OPTIONS": "halt_on_error=1",
            }

    def build(self) -> str:
        """Compile what has changed. Return the output of the compiler if it failed, else ''."""
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        code, output = call(command, self.path, self.env, BUILD_SECONDS)
        return output if code else ""

    def test(self, tests: Iterable[str], python: Path | None = None) -> tuple[str, str] | None:
        """Run tests until one fails. Return its id and how it failed; None if all passed.

        ``python`` is that of another program, where the settings of the checkout do not apply.
        """
        note = Path(self.test_env["TENSORWIRE_RUNNING_TEST"])
        note.unlink(missing_ok=True)
        command = [str(python or sys.executable), "-m", "pytest", "-x", "-q", "--no-header"]
        command += ["--tb=line", "-p", "mutation.watch", "-m", self.marks]
        if python:
            command += ["-c", os.devnull, f"--rootdir={self.path}", "-p", "no:cacheprovider"]
        command += [test if test.startswith("tests/") else f"tests/{test}" for test in tests]
        code, output = call(command, self.path, self.test_env, 60 * TEST_SECONDS)
        if code == 0 or code in NO_TESTS:
            return None
        lines = output.splitlines()
        if "Timeout (" in output:
            how = "timeout"
        elif code < 0:
            how = signal.Signals(-code).name
        else:
            how = next((line for line in lines if ERROR.search(line)), "".join(lines[-1:]))[:300]
        return note.read_text() if note.exists() else command[-1] + ON_IMPORT, how

    def restore(self, original: Tree) -> None:
        """Make all files equal to those of another tree, including what was compiled."""
        wanted = set(files_of(original.path))
        for name in set(files_of(self.path)) - wanted:
            (self.path / name).unlink()
        for name in wanted:
            copy(original.path / name, self.path / name)


def environment_python(name: str) -> Path | None:
    """Return the Python of the environment of a program, or None if the environment is missing.

    It need not have been made from this checkout, because the tests use the compiled copy.
    """
    folder = environment.folder_of(name)
    found = environment.read_marker(folder)
    wanted = environment.PROGRAMS[name].packages
    is_ready = found is not None and tuple(found.packages) == wanted
    return environment.interpreter(folder) if is_ready else None


def call(command: list[str], cwd: Path, env: dict[str, str], seconds: float) -> tuple[int, str]:
    """Run a program in a process group, which ends with it. Return its exit code and output."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL, "Timeout (of the whole program)"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- files ---------------------------------------------------------------------------------------


def files_of(folder: Path) -> Iterable[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]  # Python checks the times
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), folder)


def copy(source: Path, target: Path) -> None:
    """Copy a file and its time, unless the target has both already."""
    wanted = source.stat()
    if target.exists():
        present = target.stat()
        if (present.st_mtime_ns, present.st_size) == (wanted.st_mtime_ns, wanted.st_size):
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def copy_checkout(folder: Path) -> None:
    """Copy all files that git does not ignore. What was compiled in the folder before is kept."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=ROOT, text=True).split("\0")
    wanted = {name for name in names if name and (ROOT / name).is_file()}
    for name in set(files_of(folder)) - wanted:
        if Path(name).suffix in (".h", ".py", ".pyx", ".pxd", ".txt") and not name.startswith(
            "build"
        ):
            (folder / name).unlink()
    for name in wanted:
        copy(ROOT / name, folder / name)


def digest(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.apply((ROOT / mutant.file).read_text()).encode()).hexdigest()


def is_known(mutant: Mutant, result: Result | None) -> bool:
    """Return whether a test has killed exactly this bug before."""
    return result is not None and result.status == "killed" and result.digest == digest(mutant)


def load(path: Path) -> dict[str, Result]:
    rows = json.loads(path.read_text()) if path.exists() else {}
    return {name: Result(**row) for name, row in rows.items()}


def save(results: dict[str, Result]) -> None:
    rows = {name: vars(result) for name, result in sorted(results.items())}
    RESULTS.with_suffix(".new").write_text(json.dumps(rows, indent=1) + "\n")
    RESULTS.with_suffix(".new").rename(RESULTS)


def record(tables: dict[str, list[Mutant]], results: dict[str, Result]) -> None:
    """Write the tests that killed mutants. Those of mutants that no longer exist are removed."""
    names = {mutant.name for rows in tables.values() for mutant in rows}
    killers = json.loads(KILLERS.read_text()) if KILLERS.exists() else {}
    killers |= {name: result.killer for name, result in results.items() if result.killer}
    kept = {name: killer for name, killer in sorted(killers.items()) if name in names}
    KILLERS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def summarise(
    tables: dict[str, list[Mutant]], mutants: list[Mutant], results: dict[str, Result]
) -> tuple[int, dict[str, int]]:
    """Print and write the score of each table. Return the exit code and the total score."""
    lines = ["| table | mutants | killed | survived | explained | equivalent | not run |"]
    lines.append("|" + "---|" * 7)
    problems = []
    total = Counter[str]()
    for table, rows in tables.items():
        counts = Counter[str]()
        chosen = [mutant for mutant in rows if mutant in mutants]
        is_whole = all(mutant in mutants or mutant.explained for mutant in rows)
        for mutant in rows if is_whole else chosen:
            result = results.get(mutant.name) if mutant in mutants else None
            is_killed = result is not None and result.status == "killed"
            if result is None:
                counts[mutant.explained or "not run"] += 1
            elif is_killed and not mutant.explained:
                counts["killed"] += 1
            elif is_killed:
                problems.append(f"{mutant.name} was killed, although the table explains why not")
            elif mutant.explained:
                counts[mutant.explained] += 1
            else:
                counts["survived"] += 1
                problems.append(f"{mutant.name} {result.status}: {mutant.breaks} {result.how}")
        if chosen:
            total += counts
            names = ("killed", "survived", "explained", "equivalent", "not run")
            numbers = " | ".join(str(counts[name]) for name in names)
            lines.append(f"| {table} | {counts.total()} | {numbers} |")
    n = total["killed"] + total["survived"] + total["explained"]
    share = 100 * total["killed"] / max(1, n)
    lines += ["", f"{total['killed']} of {n} mutants were killed ({share:.1f} %).", *problems]
    text = "\n".join(lines) + "\n"
    (FOLDER / "summary.md").write_text(text)
    print(f"\n{text}", end="")
    score = {"mutants": total.total(), "killed": total["killed"], "not_equivalent": n}
    return 1 if problems else 0, score


if __name__ == "__main__":
    main()
