"""Run the tests on generated mutants. A mutant that no test notices may be a gap in the tests.

    python tests/mutation/run.py --since main           # all mutants of the lines of a change
    python tests/mutation/run.py --sample 200 --whole   # one mutant of each of 200 random lines

Each mutant (`generate.py`) is inserted in a copy of the checkout. What depends on it is compiled
without optimisation, and the tests of the module run (`tests.toml`) until one fails; with --whole,
those that survive also meet all other unit tests, and the slow ones. A survivor
is read in review. The copies and the results are in the folder .mutation.

The Python that runs this program needs what setup.py and the tests need. The mutants of the KServe
and MLServer integrations run in the environments of tests/interop/environment.py, and are left out
where these are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interop import environment
from mutation.generate import Mutant, generate

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".mutation"
PACKAGE = "src/tensorwire"
SUFFIXES = (".py", ".pyx", ".pxd", ".h")
TEST_SECONDS = 60  # of one test; it takes a few seconds without a bug
MODULE_SECONDS = 600  # of the tests of a module
WHOLE_SECONDS = 900  # of all tests
BUILD_SECONDS = 900
ERROR = re.compile("Sanitizer: |runtime error: |Error")
# Of the lines of a sample, this share is code of these files.
SHARES = {"_codec/*": 0.6, "server/*": 0.15, "client/*": 0.15, "integrations/*": 0.05, "*": 0.05}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", default="HEAD", help="the lines that differ from a commit")
    parser.add_argument("--sample", type=int, metavar="N", help="one mutant of each of N lines")
    parser.add_argument("--seed", default=time.strftime("%Y%m%d"), help="of --sample; the date")
    parser.add_argument("--whole", action="store_true", help="run all tests on survivors")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at the same time")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    arguments = parser.parse_args()
    mutants = choose(arguments)
    if arguments.list or not mutants:
        print(*mutants, sep="\n")
        return
    FOLDER.mkdir(exist_ok=True)
    run = Run(arguments.whole, arguments.jobs)
    run.run(mutants)
    summarise(run.results)


# --- which mutants -------------------------------------------------------------------------------


def choose(arguments: argparse.Namespace) -> list[Mutant]:
    listed = subprocess.check_output(["git", "ls-files", PACKAGE], cwd=ROOT, text=True)
    names = [name for name in listed.split() if name.endswith(SUFFIXES) and runs_here(name)]
    everything = {name: generate(name, (ROOT / name).read_text()) for name in names}
    if arguments.sample:
        return sample(everything, arguments.sample, arguments.seed)
    found = []
    for name, lines in changed_lines(arguments.since):
        found += [mutant for mutant in everything.get(name, ()) if mutant.line in lines]
    return list(dict.fromkeys(found))


def runs_here(name: str) -> bool:
    program = program_of(name)
    return program is None or environment_python(program) is not None


def program_of(name: str) -> str | None:
    """Return the program in whose environment the tests of a file run."""
    if name.endswith(("integrations/rest.py", "integrations/split.py")):  # of both servers
        return "kserve"
    found = re.search(r"integrations/(kserve|mlserver)/", name)
    return found[1] if found else None


def sample(everything: dict[str, list[Mutant]], n: int, seed: str) -> list[Mutant]:
    lines: dict[str, dict[tuple[str, int], list[Mutant]]] = {pattern: {} for pattern in SHARES}
    for name, mutants in everything.items():
        inner = name.removeprefix(f"{PACKAGE}/")
        pattern = next(each for each in SHARES if fnmatch.fnmatch(inner, each))
        for mutant in mutants:
            lines[pattern].setdefault((name, mutant.line), []).append(mutant)
    chosen = []
    for pattern, share in SHARES.items():
        generator = random.Random(f"{seed} {pattern}")
        keys = sorted(lines[pattern])
        for key in generator.sample(keys, min(len(keys), round(share * n))):
            chosen.append(generator.choice(lines[pattern][key]))
    random.Random(seed).shuffle(chosen)
    return chosen


def changed_lines(revision: str) -> Iterator[tuple[str, range]]:
    command = ["git", "diff", "-U0", "--no-color", "--no-ext-diff", revision, "--", PACKAGE]
    name = ""
    for line in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if line.startswith("+++ b/"):
            name = line.removeprefix("+++ b/")
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            begin = int(found[1])
            yield name, range(begin, begin + int(found[2] or 1))


# --- running them --------------------------------------------------------------------------------


class Run:
    """Runs mutants in copies of the checkout, several at once."""

    def __init__(self, is_whole: bool, n_jobs: int) -> None:
        self.is_whole = is_whole
        self.n_jobs = n_jobs
        self.tests = tomllib.loads((HERE / "tests.toml").read_text())
        self.results: list[tuple[Mutant, str, str]] = []  # the status, and the killer or the reason
        self.verified: dict[str, bool] = {}
        self.lock = threading.Lock()

    def run(self, mutants: list[Mutant]) -> None:
        self.original = Tree(FOLDER / "original")
        copy_checkout(self.original.path)
        print(f"compiling; {len(mutants)} mutants", flush=True)
        if output := self.original.build():
            sys.exit(output)
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(self.n_jobs):
            tree = Tree(FOLDER / f"copy-{number + 1}")
            tree.restore(self.original)
            trees.put(tree)

        def one(mutant: Mutant) -> None:
            tree = trees.get()
            start = time.monotonic()
            try:
                status, reason = self.mutate(mutant, tree)
            finally:
                tree.restore(self.original)
                trees.put(tree)
            with self.lock:
                self.results.append((mutant, status, reason))
                with (FOLDER / "results.jsonl").open("a") as file:
                    row = {**asdict(mutant), "status": status, "reason": reason}
                    file.write(json.dumps(row) + "\n")
                seconds = f"({time.monotonic() - start:.0f} s)"
                print(status.ljust(12), mutant, seconds, reason[-300:], flush=True)

        with ThreadPoolExecutor(self.n_jobs) as pool:
            list(pool.map(one, mutants))

    def mutate(self, mutant: Mutant, tree: Tree) -> tuple[str, str]:
        """Insert the bug, compile, and run tests until one fails."""
        path = tree.path / mutant.file
        path.write_text(mutant.apply(path.read_text()))
        if path.suffix != ".py" and (output := tree.build()):
            return "build failed", output
        program = program_of(mutant.file)
        first = self.tests_of(mutant.file)
        stages = [(first, MODULE_SECONDS, "not slow and not nightly")]
        if self.is_whole and program is None:
            others = sorted(p.name for p in (ROOT / "tests").glob("test_*.py"))
            stages.append(([n for n in others if n not in first], WHOLE_SECONDS, stages[0][2]))
            stages.append((others, WHOLE_SECONDS, "slow and not nightly"))
        for tests, seconds, marks in stages:
            if failed := tree.test(tests, seconds, program, marks):
                killer, how = failed
                return ("killed" if self.is_killer(killer, program) else "flaky"), f"{killer} {how}"
        return "survived", ""

    def tests_of(self, file: str) -> list[str]:
        """Return the tests of a module: those of the first pattern in tests.toml that matches."""
        inner = file.removeprefix(f"{PACKAGE}/")
        pattern = next(each for each in self.tests if fnmatch.fnmatch(inner, each))
        return [f"{name}.py" for name in self.tests[pattern]]

    def is_killer(self, killer: str, program: str | None) -> bool:
        """Return whether a test passes without a bug."""
        if "::" not in killer:
            return True
        with self.lock:
            if killer not in self.verified:
                name = killer.removeprefix("tests/")
                failed = self.original.test([name], MODULE_SECONDS, program, "")
                self.verified[killer] = failed is None
            return self.verified[killer]


class Tree:
    """A compiled copy of the checkout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {
            **os.environ,
            "TENSORWIRE_DEBUG": "1",
            "PYTHONPATH": f"{path / 'src'}:{path / 'tests'}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing them takes longer than most tests
            "TENSORWIRE_RUNNING_TEST": str(path.with_suffix(".running")),
            "TENSORWIRE_TEST_SECONDS": str(TEST_SECONDS),
        }

    def build(self) -> str:
        """Compile what has changed. Return the output of the compiler if it failed, else ''."""
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        code, output = call(command, self.path, self.env, BUILD_SECONDS)
        return output if code else ""

    def test(
        self, tests: list[str], seconds: float, program: str | None, marks: str
    ) -> tuple[str, str] | None:
        """Run tests until one fails. Return its id and how it failed; None if all passed."""
        note = Path(self.env["TENSORWIRE_RUNNING_TEST"])
        note.unlink(missing_ok=True)
        python = environment_python(program) if program else sys.executable
        command = [str(python), "-m", "pytest", "-x", "-q", "--no-header", "--tb=line"]
        command += ["-p", "mutation.watch", "-p", "no:cacheprovider", "-m", marks]
        if program:  # the settings of the checkout do not apply
            command += ["-c", os.devnull, f"--rootdir={self.path}"]
        command += [f"tests/{test}" for test in tests]
        code, output = call(command, self.path, self.env, seconds)
        if code in (0, 5):  # 5: all tests were deselected
            return None
        if "Timeout (" in output:
            how = "timeout"
        elif code < 0:
            how = signal.Signals(-code).name
        else:
            lines = output.splitlines()
            how = next((line for line in lines if ERROR.search(line)), "".join(lines[-1:]))[:300]
        return note.read_text() if note.exists() else "on import", how

    def restore(self, original: Tree) -> None:
        """Make all files equal to those of another tree, including what was compiled."""
        wanted = set(files_of(original.path))
        for name in set(files_of(self.path)) - wanted:
            (self.path / name).unlink()
        for name in wanted:
            copy(original.path / name, self.path / name)


def environment_python(program: str) -> Path | None:
    """Return the Python of the environment of a program, or None if the environment is missing."""
    folder = environment.folder_of(program)
    found = environment.read_marker(folder)
    wanted = environment.PROGRAMS[program].packages
    is_ready = found is not None and tuple(found.packages) == wanted
    return environment.interpreter(folder) if is_ready else None


def call(command: list[str], cwd: Path, env: dict[str, str], seconds: float) -> tuple[int, str]:
    """Run a program in a process group, which ends with it. Return its exit code and output."""
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "stdout": subprocess.PIPE}
    options: Any = {**pipes, "text": True, "errors": "replace", "start_new_session": True}
    process = subprocess.Popen(command, cwd=cwd, env=env, **options)
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
        if name.endswith(SUFFIXES) and not name.startswith("build"):
            (folder / name).unlink()
    for name in wanted:
        copy(ROOT / name, folder / name)


# --- the result ----------------------------------------------------------------------------------


def summarise(results: list[tuple[Mutant, str, str]]) -> None:
    counts = Counter(status for _, status, _ in results)
    print(f"\n{dict(counts)}")
    for mutant, status, _ in results:
        if status == "survived":
            print(f"survived: {mutant}")
    n_valid = counts["killed"] + counts["survived"]
    print(f"{100 * counts['killed'] / max(1, n_valid):.1f} % of {n_valid} mutants were killed")


if __name__ == "__main__":
    main()
