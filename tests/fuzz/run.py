"""Fuzz: `python tests/fuzz/run.py [TARGET ...] [--seconds 60] [--jobs 2]`; all targets by default.

The first run creates the folder .fuzz, which takes a minute: an environment with atheris, and the
package compiled by clang with AddressSanitizer and UndefinedBehaviorSanitizer. A run starts from
the seeds (seeds.py), including the saved inputs, and from the inputs of earlier runs in
.fuzz/corpus. A finding ends the run with exit code 1 and is written to .fuzz/findings. To
reproduce it: `run.py TARGET --again FILE`. `base64 -w0 FILE` is its line for saved/TARGET.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "src" / "tensorwire"
FOLDER = ROOT / ".fuzz"
VENV = FOLDER / "venv"
LIBRARY = FOLDER / "sanitized"
PYTHON = VENV / "bin" / "python"
BUILD = ["setuptools>=77.0.1", "Cython>=3.1.2", "numpy>=2.1"]
PACKAGES = ["atheris==3.0.0", *BUILD, "hypothesis>=6.100", "pytest>=8", "msgspec>=0.19"]
PACKAGES += ["ml_dtypes>=0.5", "pyarrow>=18", "tritonclient[grpc]>=2.73,<2.74"]
# A process that is suspended for 30 seconds also reports a timeout of its current input.
OPTIONS = ["-timeout=30", "-rss_limit_mb=4096", "-print_final_stats=1", "-max_len=4096"]
# The largest single allocation of an input. Importing numpy and Arrow needs less.
MALLOC_LIMIT = "-malloc_limit_mb=32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="see targets.py")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time")
    parser.add_argument("--again", type=Path, action="append", help="run only this input")
    arguments = parser.parse_args()
    set_up()
    names = sorted(path.name for path in (FOLDER / "seeds").iterdir() if path.is_dir())
    targets = arguments.targets or names
    if unknown := set(targets) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: the targets are {', '.join(names)}")
    if arguments.again:
        inputs = ["--show", *(str(path.resolve()) for path in arguments.again)]
        codes = [run(target, inputs) for target in targets]
        sys.exit(any(codes))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = [*pool.map(lambda name: campaign(name, arguments.seconds), targets)]
    sys.exit(any(codes))


# --- the environment -----------------------------------------------------------------------------


def do(*arguments: object, env: Mapping[str, str] = os.environ, cwd: Path = ROOT) -> str:
    """Run a program and return its output. If it fails, exit with its output."""
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, arguments))}:\n{done.stdout}")
    return done.stdout


def set_up() -> None:
    """Create or update everything that is missing or older than the sources."""
    if shutil.which("clang") is None:
        sys.exit("run.py: clang is missing; on Debian: apt-get install clang libclang-rt-dev llvm")
    marker, recipe = FOLDER / "ready.json", [sysconfig.get_python_version(), *PACKAGES]
    if not marker.exists() or json.loads(marker.read_text()) != recipe:
        do(sys.executable, "-m", "venv", "--clear", VENV)
        do(PYTHON, "-m", "pip", "install", "-q", *PACKAGES)
        marker.write_text(json.dumps(recipe))
    symbolizer = FOLDER / "llvm-symbolizer"  # without preloaded libraries
    symbolizer.write_text('#!/bin/sh\nunset LD_PRELOAD\nexec llvm-symbolizer "$@"\n')
    symbolizer.chmod(0o755)
    build_package()
    shutil.rmtree(FOLDER / "seeds", ignore_errors=True)
    do(PYTHON, "-m", "fuzz.seeds", FOLDER / "seeds", cwd=TESTS, env=environment())


def build_package() -> None:
    """Build the package in a separate folder; only changed files are compiled."""
    switches = {"TENSORWIRE_FUZZ": "1", "TENSORWIRE_SANITIZE": "1"}
    compiler = {"CC": "clang", "CXX": "clang++", "LDSHARED": "clang -shared"}
    compiler["LDCXXSHARED"] = "clang++ -shared"
    folders = ["--build-lib", LIBRARY, "--build-temp", f"{LIBRARY}-objects"]
    parallel = f"--parallel={os.cpu_count()}"
    do(PYTHON, "setup.py", "-q", "build", parallel, *folders, env=os.environ | switches | compiler)


def environment(again: bool = False) -> dict[str, str]:
    """Return the environment variables for the sanitizers.

    The sanitizer runtime must be loaded first, and memory must come from malloc. The allocation
    stack is recorded only when an input is run again, because it costs a third of the executions.
    """
    site = VENV / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    symbolizer = f"external_symbolizer_path={FOLDER}/llvm-symbolizer"
    return os.environ | {
        "PYTHONPATH": f"{LIBRARY}:{TESTS}",
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": f"malloc_context_size={30 if again else 1}:detect_leaks=0"
        f":allocator_may_return_null=1:{symbolizer}",
        "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:{symbolizer}",
        "LD_PRELOAD": f"{site}/asan_with_fuzzer.so",
    }


# --- running -------------------------------------------------------------------------------------


def run(target: str, arguments: list[str], log: IO[str] | None = None) -> int:
    """Run libFuzzer and return its exit code. Its output is written to the log, if there is one."""
    command = [str(PYTHON), "-m", "fuzz.libfuzzer", target, *arguments]
    variables = environment(again=log is None)
    return subprocess.run(
        command, cwd=TESTS, env=variables, stdout=log, stderr=log, check=False
    ).returncode


def campaign(target: str, seconds: int) -> int:
    """Run one target, keep its log, and return its exit code."""
    corpus, findings = FOLDER / "corpus" / target, FOLDER / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    bounds = [f"-max_total_time={seconds}", MALLOC_LIMIT, f"-dict={FOLDER}/seeds/dictionary"]
    places = [f"-artifact_prefix={findings}/{target}-", str(corpus), str(FOLDER / "seeds" / target)]
    log = FOLDER / f"{target}.log"
    with log.open("w") as written:
        code = run(target, [*OPTIONS, *bounds, *places], written)
    text = log.read_text(errors="replace")
    print(
        target, *re.findall(r"stat::number_of_executed_units: .*|cov: \d+", text)[-2:], flush=True
    )
    if code:
        print(f"{target}: a finding; the end of {log}:\n{text[-4000:]}", flush=True)
    return code


if __name__ == "__main__":
    main()
