"""Run the tests of InferProtocol with several versions of uvicorn.

`python uvicorn_versions.py [VERSION ...]` tests the given versions.
Without arguments, these are the oldest and the newest tested version, and the newest of all. If its
tests pass, change TESTED_UVICORN in src/tensorwire/server/uvicorn_check.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorwire.server.uvicorn_check import TESTED_UVICORN

ROOT = Path(__file__).resolve().parents[2]
TESTS = ["test_server_uvicorn.py", "test_http_conformance.py", "test_serve_command.py"]

# Old versions have warnings, and their protocol for httptools answers some cases differently.
OPTIONS = ["-k", "not (test_case and asgi-httptools)", "-W", "default::DeprecationWarning"]


def main() -> None:
    tested = [f"=={major}.{minor}.*" for major, minor in TESTED_UVICORN]
    versions = [f"=={version}" for version in sys.argv[1:]] or [*tested, ""]
    failed = [version for version in versions if not passes(version)]
    sys.exit(f"failed with uvicorn {', '.join(failed)}" if failed else 0)


def passes(version: str) -> bool:
    """Install a version in a folder on PYTHONPATH, and return whether the tests pass."""
    with TemporaryDirectory(prefix="tensorwire-uvicorn-") as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*pip, f"uvicorn{version}"], check=True)
        print(f"uvicorn{version}", flush=True)
        tests = [str(ROOT / "tests" / name) for name in TESTS]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *OPTIONS, *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folder},
            check=False,
        )
        return run.returncode == 0


if __name__ == "__main__":
    main()
