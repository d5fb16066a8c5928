"""Build and test on other platforms: `python3 platforms.py [NAME ...] [-- PYTEST ...]`.

- `macos`: the C files are compiled for both processors of macOS; nothing is linked or run.
- `lowest`: the lowest versions that pyproject.toml allows, also with a wheel built with the newest.
- `3.15`: CPython 3.15 of Debian sid. It needs root and debootstrap.
- `3.13t`: a free-threaded CPython, compiled from the source of Debian trixie in the same system;
  only the tests of the codec.
- the path of a Python that has its headers, pip and venv.

Without names, the first four. The files that git tracks are copied to `.platforms`, built, and
tested. Other Pythons get the packages of the extra `test` that have a wheel for them; the tests of
the others are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".platforms"
SYSTEM = FOLDER / "debian"
CODEC = "decode|encode|limits|header_length|ownership|bytes|json"
FREE_THREADED = "api|arr|body|comb|data|dlpack|err|foreign|frame$|gil|grpc_.*code|leaks|mess|pick"
OTHERS = "client|commands|compress|grpc|http|infer|metrics|serve"
ARCHIVE = os.environ.get("TENSORWIRE_DEBIAN", "http://deb.debian.org/debian")
PACKAGES = (
    "ca-certificates,g++,gcc,git,make,libc6-dev,python3.15-dev,python3.15-venv,"
    "libbz2-dev,libffi-dev,liblzma-dev,libsqlite3-dev,libssl-dev,uuid-dev,zlib1g-dev"
)
SOURCE = "pool/main/p/python3.13/python3.13_3.13.5.orig.tar.xz"
COMPILE = """
test -x /opt/3.13t/bin/python3.13t || {
    cd /opt/source && ./configure -q --disable-gil --disable-test-modules --prefix=/opt/3.13t
    make -s -j "$(nproc)" install >/dev/null
}
"""
# Arguments: the folder with `checkout`, the interpreter, arguments of pytest. PYTHON_GIL=0 keeps
# the GIL disabled even if a package asks for it; other Pythons do not accept the variable.
TEST = """
cd "$1"; interpreter=$2; shift 2
"$interpreter" -m venv --clear venv
python=$PWD/venv/bin/python
cd checkout
"$python" -VV
TENSORWIRE_STRICT=1 "$python" -m pip install -q --prefer-binary .
"$python" -c '
import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*extras["test"], sep="\\n")' | while read -r requirement; do
    "$python" -m pip install -q --only-binary :all: "$requirement" 2>/dev/null ||
        echo "left out: $requirement has no wheel for this Python"
done
if "$python" -c 'import sysconfig as s; exit(not s.get_config_var("Py_GIL_DISABLED"))'; then
    export PYTHON_GIL=0
fi
exec "$python" -m pytest -q "$@"
"""


def main() -> None:
    names, arguments = sys.argv[1:], []
    if "--" in names:
        at = names.index("--")
        names, arguments = names[:at], names[at + 1 :]
    failed = []
    for name in names or ("macos", "lowest", "3.15", "3.13t"):
        print(f"=== {name}", flush=True)
        folder = (SYSTEM / "build" if name in ("3.15", "3.13t") else FOLDER) / Path(name).name
        if name in ("3.15", "3.13t"):
            install_debian()
        copy_checkout(folder / "checkout")
        try:
            if name == "macos":
                compile_for_macos(folder)
            elif name == "lowest":
                test_lowest(folder, arguments)
            elif name == "3.15":
                inside(TEST, f"/build/{name}", "/usr/bin/python3.15", *arguments)
            elif name == "3.13t":
                install_source()
                inside(COMPILE)
                # Servers need packages that have no wheel for this Python.
                tests = [
                    f"tests/{path.name}"
                    for path in sorted((folder / "checkout/tests").glob("test_*.py"))
                    if re.fullmatch(f"({CODEC}|{FREE_THREADED}).*", path.stem[5:])
                ]
                python = "/opt/3.13t/bin/python3.13t"
                inside(TEST, f"/build/{name}", python, *(arguments or tests))
            else:
                interpreter = shutil.which(name) or name
                call(folder, "sh", "-euc", TEST, "sh", folder, interpreter, *arguments)
        except subprocess.CalledProcessError as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def call(folder: Path, *command: str | Path, **variables: str) -> None:
    subprocess.check_call([*map(str, command)], cwd=folder, env={**os.environ, **variables})


# --- macOS ---------------------------------------------------------------------------------------


def compile_for_macos(folder: Path) -> None:
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
        for machine in ("aarch64", "x86_64") if compiler else ():
            target = ["-target", f"{machine}-macos", "-c", str(source), "-o", "object"]
            call(folder, python, "-m", "ziglang", str(compiler), "-w", *flags, *target)


# --- lowest versions -----------------------------------------------------------------------------


def test_lowest(folder: Path, arguments: list[str]) -> None:
    checkout = folder / "checkout"
    call(checkout, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "newest", ".")
    [newest] = (checkout / "newest").glob("*.whl")
    settings = tomllib.loads((checkout / "pyproject.toml").read_text())
    required = settings["build-system"]["requires"] + settings["project"]["dependencies"]
    for extra in ("bf16", "serve", "client", "grpc", "metrics", "zstd", "test"):
        required += settings["project"]["optional-dependencies"][extra]
    python = make_venv(folder, *(text.replace(">=", "==") for text in required))
    # The first one is for old versions of uvicorn, see uvicorn_versions.py.
    options = ["-q", "-k", "not (test_case and asgi-httptools)"]
    options += ["-W", "default::DeprecationWarning", *arguments]
    for built, subjects in ((".", CODEC), (newest, f"{CODEC}|{OTHERS}")):
        how = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--force-reinstall"]
        call(checkout, python, "-m", "pip", "install", "-q", *how, built)
        tests = [
            path for path in checkout.glob("tests/test_*.py") if re.match(subjects, path.stem[5:])
        ]
        # Without CI, tests that need other packages are skipped.
        call(checkout, python, "-m", "pytest", *options, *tests, CI="")


def make_venv(folder: Path, *packages: str) -> Path:
    call(folder, sys.executable, "-m", "venv", "--clear", "venv")
    python = folder / "venv/bin/python"
    call(folder, python, "-m", "pip", "install", "-q", "--upgrade", *packages)
    return python


# --- Debian --------------------------------------------------------------------------------------


def install_debian() -> None:
    """Install the Debian system with this machine's network settings, unless it is there."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("platforms.py: 3.15 and 3.13t need root and debootstrap")
    if not (SYSTEM / "ready").exists():
        shutil.rmtree(SYSTEM, ignore_errors=True)
        SYSTEM.mkdir(parents=True)
        options = ["--variant=minbase", f"--include={PACKAGES}", "sid", str(SYSTEM), ARCHIVE]
        subprocess.check_call(["debootstrap", *options], stdout=subprocess.DEVNULL)
        (SYSTEM / "ready").touch()
    pip = ["/etc/pip.conf", "/etc/xdg/pip", f"{Path.home()}/.pip", f"{Path.home()}/.config/pip"]
    network = ["/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"]
    for name in [*network, *pip, os.environ.get("PIP_CONFIG_FILE", "")]:
        paths = [Path(name), *Path(name).rglob("*")] if name else []
        for path in filter(Path.is_file, paths):
            target = SYSTEM / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def install_source() -> None:
    folder = SYSTEM / "opt" / "source"
    if not folder.exists():
        archive = SYSTEM / "opt" / "source.tar.xz"
        subprocess.check_call(["curl", "-fsSL", "-o", archive, f"{ARCHIVE}/{SOURCE}"])
        folder.mkdir()
        subprocess.check_call(["tar", "-xf", archive, "-C", folder, "--strip-components=1"])


def inside(script: str, *arguments: str) -> None:
    """Run a script in the Debian system, in a mount namespace that ends with it."""
    kept = ("PIP_", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "TENSORWIRE_")
    environment = {k: v for k, v in os.environ.items() if k.upper().startswith(kept)}
    environment |= {
        "HOME": str(Path.home()),
        "LANG": "C.UTF-8",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    mount = 'mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; exec chroot "$@"'
    command = ["unshare", "--mount", "sh", "-euc", mount, "sh", str(SYSTEM)]
    subprocess.check_call([*command, "sh", "-euc", script, "sh", *arguments], env=environment)


def copy_checkout(target: Path) -> None:
    """Copy the files that git tracks, in their current state."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in listed:
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for command in (["init", "-q"], ["add", "-A"]):  # some tests list the files with git
        subprocess.check_call(["git", "-C", str(target), *command])


if __name__ == "__main__":
    main()
