"""Build and test with other Pythons: `python3 pythons.py [PYTHON ...] [-- PYTEST ...]`.

PYTHON is a name of the table below, or the path of an interpreter that has its headers, pip and
venv. Without arguments, the Pythons of the table are tested one after another.

| name           | Python                                                               |
|----------------|----------------------------------------------------------------------|
| `trixie`       | CPython 3.13 of Debian trixie                                        |
| `sid`          | CPython 3.14 of Debian sid                                           |
| `trixie-nogil` | free-threaded CPython 3.13, compiled from the source in Debian trixie |

These need root and debootstrap. The systems are installed in `.pythons` and reused in later runs.
The Debian archive and the settings of pip are those of this machine. Compiling an interpreter takes
about ten minutes on two cores.

The files that git tracks are copied, built with TENSORWIRE_STRICT=1, and tested. All tests run,
except those of packages that have no wheel for the Python. The packages and the test files that are
left out for that reason are printed. The arguments after `--` are passed to pytest.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY_ROOT / ".pythons"
PACKAGES = "ca-certificates,gcc,g++,git,libc6-dev,python3,python3-dev,python3-venv"
# What the modules of the standard library need that the tests use.
PACKAGES_TO_COMPILE_PYTHON = (
    "libbz2-dev libffi-dev liblzma-dev libsqlite3-dev libssl-dev make pkg-config uuid-dev "
    "xz-utils zlib1g-dev"
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
FREE_THREADED = "/opt/free-threaded"


class Debian(NamedTuple):
    suite: str
    version: str  # of its Python
    is_free_threaded: bool


DEBIAN = {
    "trixie": Debian("trixie", "3.13", False),
    "sid": Debian("sid", "3.14", False),
    "trixie-nogil": Debian("trixie", "3.13", True),
}

# Arguments: version, prefix, number of processors, Debian archive, suite.
COMPILE_PYTHON = f"""
test ! -e "$2/ready" || exit 0
echo "deb-src $4 $5 main" >/etc/apt/sources.list.d/source.list
apt-get -q update
apt-get -q install -y --no-install-recommends {PACKAGES_TO_COMPILE_PYTHON}
rm -rf /build/python
mkdir -p /build/python
cd /build/python
apt-get -q source --download-only "python$1"
tar -xf *.orig.tar.xz --strip-components=1
./configure -q --disable-gil --disable-test-modules --prefix="$2" --with-ensurepip=install
make -s -j "$3"
make -s install
touch "$2/ready"
"""

# Arguments: the interpreter.
INSTALL = """
test -e venv/ready || "$1" -m venv --clear venv
venv/bin/pip install --quiet --upgrade pip
touch venv/ready
bin="$PWD/venv/bin"  # Python 3.14 warns if the path of a venv contains `..`
cd checkout
export PIP_ONLY_BINARY=numpy  # the newest numpy may have no wheel for this Python
TENSORWIRE_STRICT=1 "$bin/pip" install --quiet --force-reinstall --no-deps .
"$bin/pip" install --quiet 'numpy>=2.0'
"$bin/python" -VV
"""

# Prints the requirements of the tests.
REQUIREMENTS = """
import pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
print(*project["optional-dependencies"]["test"], sep="\\n")
"""

# A file that cannot be collected, and the module that it needs. The second form of the message is
# that of tensorwire.
MISSING_MODULE = re.compile(
    r"^_+ ERROR collecting (\S+) _+\n(?:(?!_+ ERROR ).*\n)*?"
    r"E +(?:ModuleNotFoundError: No module named '|ImportError: .* requires? )([\w.]+)",
    re.MULTILINE,
)

# For test files that can be imported without this module, although most of their tests need it.
NEEDED_MODULES = {
    "tests/interop/test_matrix.py": "httptools",
    "tests/test_http_conformance.py": "uvicorn",
    "tests/test_readme.py": "tritonclient",
}

# Runs a shell script with arguments in the folder that contains `checkout` and `venv`.
Run = Callable[..., "subprocess.CompletedProcess[str]"]


class SetupError(Exception):
    """The Python cannot be set up here; the message has the reason."""


def main() -> None:
    arguments, pytest_arguments = sys.argv[1:], ["-q"]
    if "--" in arguments:
        at = arguments.index("--")
        arguments, pytest_arguments = arguments[:at], arguments[at + 1 :]
    if any(name not in DEBIAN and not shutil.which(name) for name in arguments):
        sys.exit(f"usage: pythons.py [{' | '.join(DEBIAN)} | INTERPRETER ...] [-- PYTEST ...]")
    failed = []
    for name in arguments or DEBIAN:
        print(f"=== {name}", flush=True)
        try:
            run, interpreter = set_up(name)
            is_passed = test(run, interpreter, pytest_arguments)
        except SetupError as error:
            print(f"{name}: {error}")
            is_passed = False
        if not is_passed:
            failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


# --- interpreters ---


def set_up(name: str) -> tuple[Run, str]:
    """Provide a Python and a copy of the checkout. Returns how to run scripts, and the Python."""
    if name in DEBIAN:
        return set_up_debian(name)
    interpreter = str(shutil.which(name))
    version = subprocess.run(
        [
            interpreter,
            "-c",
            "import sys; print(sys.version.split()[0], end=getattr(sys, 'abiflags'))",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    folder = FOLDER / f"python{version}"
    copy_checkout(folder / "checkout")

    def run(
        script: str, *arguments: str, capture: bool = False
    ) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-euc", script, "sh", *arguments]
        return run_command(command, dict(os.environ), capture, folder)

    return run, interpreter


def set_up_debian(name: str) -> tuple[Run, str]:
    debian = DEBIAN[name]
    root = FOLDER / debian.suite
    install_debian(root, debian.suite)
    folder = f"/build/{name}"
    copy_checkout(root / folder.lstrip("/") / "checkout")

    def run(
        script: str, *arguments: str, capture: bool = False
    ) -> subprocess.CompletedProcess[str]:
        kept = ("PIP_", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "TENSORWIRE_")
        environment = {k: v for k, v in os.environ.items() if k.upper().startswith(kept)}
        environment |= {"HOME": str(Path.home()), "LANG": "C.UTF-8", "PATH": PATH}
        # A mount namespace, which ends with the script.
        mount = 'mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; exec chroot "$@"'
        inside = ["sh", "-euc", f"cd {folder}; {script}", "sh", *arguments]
        command = ["unshare", "--mount", "sh", "-euc", mount, "sh", str(root), *inside]
        return run_command(command, environment, capture, root)

    if not debian.is_free_threaded:
        return run, "python3"
    n_processors = str(os.cpu_count() or 1)
    done = run(COMPILE_PYTHON, debian.version, FREE_THREADED, n_processors, archive(), debian.suite)
    if done.returncode:
        raise SetupError("the interpreter could not be compiled")
    return run, f"{FREE_THREADED}/bin/python{debian.version}t"


def run_command(
    command: list[str], environment: dict[str, str], capture: bool, folder: Path
) -> subprocess.CompletedProcess[str]:
    stdout = subprocess.PIPE if capture else None
    return subprocess.run(
        command, env=environment, cwd=folder, stdout=stdout, text=True, check=False
    )


def install_debian(root: Path, suite: str) -> None:
    """Install a suite, unless it is already installed, with this machine's network settings."""
    if os.geteuid() != 0:
        raise SetupError("only root can make a system and change into it")
    if shutil.which("debootstrap") is None:
        raise SetupError("debootstrap is not installed")
    marker = root / "ready"
    if not marker.exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        options = ["--variant=minbase", f"--include={PACKAGES}"]
        done = subprocess.run(["debootstrap", *options, suite, root, archive()], check=False)
        if done.returncode:
            raise SetupError(f"debootstrap failed with exit code {done.returncode}")
        marker.touch()
    for file in ["/etc/resolv.conf", "/etc/hosts", CERTIFICATES, *pip_files()]:
        if Path(file).exists():
            target = root / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def archive() -> str:
    """Return the Debian archive of the apt sources: the first with the component `main`."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(COMPONENT) $(LABEL)"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in listed.stdout.splitlines():
        uri, _, rest = line.partition(" ")
        if rest == "Debian main Debian":
            return uri
    raise SetupError("apt has no Debian archive here, or was never updated")


def pip_files() -> list[str]:
    """Return the existing configuration files of pip."""
    candidates = [
        "/etc/pip.conf",
        "/etc/xdg/pip/pip.conf",
        os.environ.get("PIP_CONFIG_FILE", ""),
        str(Path.home() / ".pip/pip.conf"),
        str(Path.home() / ".config/pip/pip.conf"),
    ]
    return [file for file in candidates if file and Path(file).is_file()]


def copy_checkout(target: Path) -> None:
    """Copy the files that git tracks, in their current state."""
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached"], cwd=REPOSITORY_ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (REPOSITORY_ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY_ROOT / name, target / name)
    # Some tests list the files with git.
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", target, *command], check=True)


# --- tests ---


def test(run: Run, interpreter: str, arguments: list[str]) -> bool:
    """Build, install what the tests need, and run them. Returns whether they passed."""
    if run(INSTALL, interpreter).returncode:
        raise SetupError("tensorwire could not be built")
    left_out = install_requirements(run)
    ignored = []
    if left_out:
        for file, module in NEEDED_MODULES.items():
            if run(in_checkout(f"-c 'import {module}' 2>/dev/null")).returncode:
                print(f"left out: {file}: it needs {module}", flush=True)
                ignored.append(f"--ignore={file}")
        collect = in_checkout("-m pytest -q --collect-only")
        for file, module in MISSING_MODULE.findall(run(collect, capture=True).stdout):
            print(f"left out: {file}: it needs {module}", flush=True)
            ignored.append(f"--ignore={file}")
    return run(in_checkout('-m pytest "$@"'), *ignored, *arguments).returncode == 0


def install_requirements(run: Run) -> list[str]:
    """Install the requirements of the tests. Returns those that have no wheel for this Python."""
    listed = run(in_checkout(f"-c {shlex.quote(REQUIREMENTS)}"), capture=True)
    requirements = listed.stdout.splitlines()
    install = 'venv/bin/pip install --quiet --only-binary :all: "$@"'
    if run(install, *requirements).returncode == 0:
        return []
    left_out = []
    for requirement in requirements:
        if run(f"{install} 2>/dev/null", requirement).returncode:
            print(f"left out: {requirement}: it has no wheel for this Python", flush=True)
            left_out.append(requirement)
    return left_out


def in_checkout(arguments: str) -> str:
    """Return a script that runs the Python of the venv in the checkout.

    PYTHON_GIL=0 keeps the GIL of a free-threaded Python disabled, even if a package asks for it.
    Other Pythons do not accept the variable.
    """
    is_free_threaded = (
        "import sysconfig, sys; sys.exit(not sysconfig.get_config_var('Py_GIL_DISABLED'))"
    )
    return f"""
        python="$PWD/venv/bin/python"
        cd checkout
        if "$python" -c "{is_free_threaded}"; then export PYTHON_GIL=0; fi
        exec "$python" {arguments}
    """


if __name__ == "__main__":
    main()
