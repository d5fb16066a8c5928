"""Build and test on CPython 3.13 of Debian trixie: `python3 trixie.py [FOLDER [PYTEST ...]]`.

Needs root and debootstrap. The system is installed in FOLDER/root and reused in later runs. The
files that git tracks are copied into it, built and tested. The Debian archive and the settings of
pip are those of this machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = REPOSITORY_ROOT / ".trixie"
PACKAGES = "ca-certificates,gcc,git,libc6-dev,python3,python3-dev,python3-venv"
CHECKOUT = "/build/checkout"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
TEST = """
cd /build
test -d venv || python3 -m venv venv
venv/bin/pip install --quiet --upgrade pip
cd checkout
TENSORWIRE_STRICT=1 ../venv/bin/pip install --quiet --force-reinstall --no-deps .
../venv/bin/pip install --quiet '.[test]'
../venv/bin/python -VV
exec ../venv/bin/python -m pytest "$@"
"""


class SetupError(Exception):
    """The system cannot be set up here; the message has the reason."""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[0].startswith("-"):
        sys.exit("usage: trixie.py [FOLDER [PYTEST ...]]")
    folder = Path(arguments[0]).resolve() if arguments else DEFAULT_FOLDER
    root = folder / "root"
    try:
        set_up(root)
    except SetupError as error:
        sys.exit(f"trixie: {error}")
    copy_checkout(root / CHECKOUT.lstrip("/"))
    sys.exit(test(root, arguments[1:] or ["-q"]))


def set_up(root: Path) -> None:
    """Install the system, unless it is already installed, with this machine's network settings."""
    if os.geteuid() != 0:
        raise SetupError("only root can make a system and change into it")
    if shutil.which("debootstrap") is None:
        raise SetupError("debootstrap is not installed")
    marker = root / "ready"
    if not marker.exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        options = ["--variant=minbase", f"--include={PACKAGES}"]
        done = subprocess.run(["debootstrap", *options, "trixie", root, archive()], check=False)
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


def test(root: Path, arguments: list[str]) -> int:
    """Run the tests in a mount namespace that ends with them. Return pytest's exit code."""
    kept = ("PIP_", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "TENSORWIRE_")
    environment = {k: v for k, v in os.environ.items() if k.upper().startswith(kept)}
    environment |= {"HOME": str(Path.home()), "LANG": "C.UTF-8", "PATH": PATH}
    inside = ["chroot", str(root), "sh", "-euc", TEST, "sh", *arguments]
    place = shlex.quote(str(root))
    script = f"""
        mount -t proc proc {place}/proc
        mount --rbind /dev {place}/dev
        exec {shlex.join(inside)}
    """
    command = ["unshare", "--mount", "sh", "-euc", script]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    main()
