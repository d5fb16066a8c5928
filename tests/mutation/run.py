"""Run the tests on generated mutants. A mutant that no test notices may be a gap in the tests.

    python tests/mutation/run.py --since main           # all mutants of the lines of a change
    python tests/mutation/run.py --sample 200 --whole   # one mutant of each of 200 random lines

Each mutant (`generate.py`) is inserted in a copy of the checkout. What depends on it is compiled
without optimisation, and the tests of the module run (`tests.toml`) until one fails; with --whole,
those that survive also meet all other unit tests, and the slow ones. A survivor is read in review.
The copies are in the folder .mutation.

The Python that runs this program needs what setup.py and the tests need. The integrations of KServe
and MLServer are left out: their tests run in other environments.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutation.generate import Mutant, generate

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".mutation"
PACKAGE = "src/tensorwire"
SUFFIXES = (".py", ".pyx", ".pxd", ".h")
LEFT_OUT = re.compile(r"integrations/(kserve|mlserver|rest|split)\b")
N_JOBS = 2  # mutants at the same time
SECONDS = 900  # of a build, or of tests
TESTS = tomllib.loads((HERE / "tests.toml").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", default="HEAD", help="the lines that differ from a commit")
    parser.add_argument("--sample", type=int, metavar="N", help="one mutant of each of N lines")
    parser.add_argument("--seed", default=time.strftime("%Y%m%d"), help="of --sample; the date")
    parser.add_argument("--whole", action="store_true", help="run all tests on survivors")
    arguments = parser.parse_args()
    if mutants := choose(arguments):
        run(mutants, arguments.whole)


def choose(arguments: argparse.Namespace) -> list[Mutant]:
    listed = subprocess.check_output(["git", "ls-files", PACKAGE], cwd=ROOT, text=True)
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for name in listed.split():
        if name.endswith(SUFFIXES) and not LEFT_OUT.search(name):
            for mutant in generate(name, (ROOT / name).read_text()):
                lines.setdefault((name, mutant.line), []).append(mutant)
    if arguments.sample:
        chooser = random.Random(arguments.seed)
        keys = chooser.sample(sorted(lines), min(arguments.sample, len(lines)))
        return [chooser.choice(lines[key]) for key in keys]
    return [each for key in changed_lines(arguments.since) for each in lines.get(key, ())]


def changed_lines(revision: str) -> Iterator[tuple[str, int]]:
    command = ["git", "diff", "-U0", "--no-color", "--no-ext-diff", revision, "--", PACKAGE]
    name = ""
    for line in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if line.startswith("+++ b/"):
            name = line.removeprefix("+++ b/")
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            yield from ((name, int(found[1]) + i) for i in range(int(found[2] or 1)))


def run(mutants: list[Mutant], is_whole: bool) -> None:
    """Run mutants in copies of the checkout, several at once."""
    original = FOLDER / "original"
    copy_checkout(original)
    print(f"compiling; {len(mutants)} mutants", flush=True)
    if output := build(original):
        sys.exit(output)
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for number in range(N_JOBS):
        trees.put(FOLDER / f"copy-{number + 1}")
    counts: Counter[str] = Counter()

    def run_one(mutant: Mutant) -> None:
        tree, begun = trees.get(), time.monotonic()
        try:
            # Everything that differs is copied, including what was compiled.
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(original, tree, copy_function=copy, dirs_exist_ok=True, ignore=skipped)
            status, reason = outcome(mutant, tree, is_whole)
        finally:
            trees.put(tree)
        counts[status] += 1
        seconds = f"({time.monotonic() - begun:.0f} s)"
        print(status.ljust(12), mutant, seconds, reason, flush=True)

    with ThreadPoolExecutor(N_JOBS) as pool:
        list(pool.map(run_one, mutants))
    n_valid = counts["killed"] + counts["survived"]
    print(f"{100 * counts['killed'] / max(1, n_valid):.1f} % of {n_valid} mutants were killed")


def outcome(mutant: Mutant, tree: Path, is_whole: bool) -> tuple[str, str]:
    """Insert the bug, compile, and run tests until one fails."""
    path = tree / mutant.file
    path.write_text(mutant.apply(path.read_text()))
    if path.suffix != ".py" and (output := build(tree)):
        return "build failed", output[-300:]
    # The tests of a module are those of the first pattern that matches.
    inner = mutant.file.removeprefix(f"{PACKAGE}/")
    first = next(
        TESTS[each] for each in TESTS if any(fnmatch.fnmatch(inner, p) for p in each.split())
    )
    stages = [(first, "not slow and not nightly")]
    if is_whole:
        others = sorted(each.stem for each in (ROOT / "tests").glob("test_*.py"))
        stages.append(([each for each in others if each not in first], stages[0][1]))
        stages.append((others, "slow and not nightly"))
    for tests, marks in stages:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line"]
        command += ["-p", "mutation.watch", "-p", "no:cacheprovider", "-m", marks]
        code, output = call([*command, *(f"tests/{test}.py" for test in tests)], tree)
        if code not in (0, 5):  # 5: all tests were deselected
            lines = [
                line for line in output.splitlines() if re.search("Error|Timeout|FAILED", line)
            ]
            return "killed", (lines or [signal.Signals(-code).name if code < 0 else ""])[-1][:300]
    return "survived", ""


def build(tree: Path) -> str:
    """Compile what has changed. Return the output of the compiler if it failed, else ''."""
    code, output = call([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], tree)
    return output if code else ""


def call(command: list[str], tree: Path) -> tuple[int, str]:
    """Run a program in a process group, which ends with it. Return its exit code and output."""
    variables = {
        "TENSORWIRE_DEBUG": "1",
        "PYTHONPATH": f"{tree / 'src'}:{tree / 'tests'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing them takes longer than most tests
    }
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL, "Timeout of the whole program"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def copy(source: str | Path, target: str | Path) -> None:
    """Copy a file and its time, unless the target has both already."""
    wanted, target = os.stat(source), Path(target)
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
    wanted = {folder / name: ROOT / name for name in names if name and (ROOT / name).is_file()}
    for path in folder.glob("[st]*/**/*"):
        if path.suffix in SUFFIXES and path not in wanted:
            path.unlink()
    for path, source in wanted.items():
        copy(source, path)


if __name__ == "__main__":
    main()
