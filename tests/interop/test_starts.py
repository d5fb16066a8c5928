"""The manual's first programs (docs/start/*.md) run as the pages say.

A page is followed from top to bottom. A block after "Save this as `NAME`" becomes a file. A block
of shell commands is run; if a block of text follows, it is the exact output, and a block of output
is an example of it. Other commands start servers, each of which runs until the next one starts. The
servers listen on a free port.

On every change, the pages are followed in the environments of the tests. The nightly tests run the
commands that install packages as well, with a wheel of the checkout in place of `PATH`, and get the
versions that pip chooses on that day. They leave out those that install from the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from interop import environment, programs
from interop.triton_server import free_ports
from support.requirements import package, skip_or_fail

pytestmark = [
    pytest.mark.no_sanitizers(reason="it runs other programs"),
    pytest.mark.thread_unsafe(reason="it runs servers"),
]

PAGES = Path(__file__).resolve().parents[2] / "docs" / "start"
REPOSITORY_ROOT = PAGES.parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"Save this as `([\w.-]+)`")
PORT = re.compile(r"\b80[08]0\b")  # of tensorwire serve; of KServe and MLServer
TAKES_PORT = ("tensorwire serve ", "uvicorn ")
START_SECONDS = 60.0
COMMAND_SECONDS = 60.0
INSTALL_SECONDS = 600.0


class Start(NamedTuple):
    """A page, or a section of a page, and a package that its commands need."""

    page: str
    section: str | None
    program: str | None
    """The environment of environment.py; None for the environment of the tests."""
    model: str
    package: str = "tensorwire"


STARTS = [
    Start("tritonclient.md", None, None, "echo", "tritonclient"),
    Start("asgi.md", None, None, "mean", "uvicorn"),
    Start("kserve-mlserver.md", "KServe", "kserve", "mean"),
    Start("kserve-mlserver.md", "MLServer", "mlserver", "mean"),
]


class Block(NamedTuple):
    language: str
    text: str
    file: str | None
    """The name under which the reader saves the block."""


def blocks(start: Start) -> list[Block]:
    page = (PAGES / start.page).read_text()
    if start.section is not None:
        [page] = [p for p in re.split("^## ", page, flags=re.M) if p.startswith(start.section)]
    found, end = [], 0
    for match in BLOCK.finditer(page):
        names = SAVED.findall(page, end, match.start())
        found.append(Block(match[1], match[2], names[-1] if names else None))
        end = match.end()
    return found


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.section or start.page)
def test_start(start: Start, tmp_path: Path) -> None:
    python = Path(sys.executable) if start.program is None else programs.interpreter(start.program)
    follow(start, Reader(python.parent, tmp_path, start.model))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder)]
    subprocess.run([*command, str(REPOSITORY_ROOT)], check=True, timeout=INSTALL_SECONDS)
    [built] = folder.glob("*.whl")
    return built


@pytest.mark.nightly(reason="it compiles tensorwire and installs packages")
@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.section or start.page)
def test_start_with_the_newest_packages(start: Start, wheel: Path, tmp_path: Path) -> None:
    follow(start, Reader(tmp_path / "venv" / "bin", tmp_path, start.model), wheel)


def follow(start: Start, reader: Reader, wheel: Path | None = None) -> None:
    """Follow a page. Without a wheel, leave out the commands that install packages."""
    if shutil.which("curl") is None:
        skip_or_fail("curl", "curl is not installed")
    if wheel is None and start.program is None:
        package(start.package)
    n_compared = 0
    steps = blocks(start)
    with reader.servers:
        for block, following in zip(steps, [*steps[1:], Block("", "", None)], strict=True):
            if block.file is not None:
                (reader.folder / block.file).write_text(reader.localised(block.text))
            elif block.language == "sh" and "pip install" in block.text:
                if wheel is not None and "git+https:" not in block.text:
                    reader.run(re.sub(r"\bPATH\b", str(wheel), block.text), INSTALL_SECONDS)
            elif block.language != "sh":
                continue
            elif following.language in ("text", "output"):
                output = reader.run(block.text)
                if following.language == "text":
                    assert output == following.text
                    n_compared += 1
            else:
                for command in block.text.splitlines():
                    reader.serve(command)
    assert n_compared > 0


class Reader:
    """Somebody who follows a page in a folder."""

    def __init__(self, programs: Path, folder: Path, model: str) -> None:
        self.folder = folder
        self.model = model
        self.servers = ExitStack()
        self.port, grpc, metrics = free_ports(3)
        self.environ = environment.clean_environ() | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "MLSERVER_HTTP_PORT": str(self.port),
            "MLSERVER_GRPC_PORT": str(grpc),
            "MLSERVER_METRICS_PORT": str(metrics),
        }

    def localised(self, text: str) -> str:
        return PORT.sub(str(self.port), text)

    def run(self, commands: str, seconds: float = COMMAND_SECONDS) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", self.localised(commands)],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout if done.stdout.endswith("\n") else f"{done.stdout}\n"

    def serve(self, command: str) -> None:
        """Stop the previous server, and start another."""
        self.servers.close()
        self.servers.enter_context(self.server(self.localised(command)))

    @contextmanager
    def server(self, command: str) -> Iterator[None]:
        if command.startswith(TAKES_PORT):
            command += f" --port {self.port}"
        shell, log = ["bash", "-c", f"exec {command}"], self.folder / "log"
        with programs.started(shell, log, cwd=self.folder, env=self.environ) as process:
            url = f"127.0.0.1:{self.port}"
            programs.wait_until_ready([url], process, START_SECONDS, [self.model])
            yield
