"""What all commands print: text of others is escaped, and outputs that cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorwire as tw
from support.requirements import package
from support.serve_process import serving
from support.servers import Scripted, http
from tensorwire.cli import main
from tensorwire.client import Client, InferenceServerError

pytestmark = pytest.mark.thread_unsafe(reason="the tests read sys.stdout and sys.stderr")

# Begins with a label, and then has what controls a terminal or changes the order of characters.
HOSTILE = (
    "label \x1b[31m \x1b]0;title\x07 \r \n \b \x7f \x85 \x9b2J \x9d0;t\x9c "
    "\u200b \u200f \u202e \u2066 \u2028 \ufeff \U000e0041"
)
IN_HEADER = "".join(char for char in HOSTILE if char == " " or char >= "\x80" or char.isprintable())


def check(printed: str, n_labels: int, n_lines: int | None = None) -> None:
    """Check that there are no control characters, and that texts and lines are complete."""
    assert {char for char in printed if not char.isprintable()} <= {"\n"}, ascii(printed)
    assert printed.count("label") >= n_labels, printed
    assert n_lines is None or printed.count("\n") == n_lines, printed


BODIES = {
    "request": bytes(
        tw.encode_request(
            tw.InferRequest(
                [tw.Tensor(HOSTILE, [HOSTILE], binary=False)],
                [tw.RequestedOutput(HOSTILE)],
                id=HOSTILE,
                parameters={HOSTILE: HOSTILE},
            )
        )
    ),
    "response": bytes(
        tw.encode_response(
            tw.InferResponse(
                [tw.Tensor(HOSTILE, [HOSTILE], binary=False)],
                model_name=HOSTILE,
                model_version=HOSTILE,
            )
        )
    ),
    "error": json.dumps({"error": HOSTILE}).encode(),
    "malformed": json.dumps(
        {"inputs": [{"name": HOSTILE, "datatype": HOSTILE, "shape": [1], "data": [1]}]}
    ).encode(),
    "text": HOSTILE.encode(),
}


@pytest.mark.parametrize(
    ("kind", "n_labels", "n_lines"),
    [("request", 7, 3), ("response", 5, 3), ("error", 2, None), ("malformed", 3, None)],
)
def test_inspect_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, n_labels: int, n_lines: Any
) -> None:
    path = tmp_path / HOSTILE
    path.write_bytes(BODIES[kind])
    assert main(["inspect", str(path)]) == (n_lines is None)
    printed = capsys.readouterr()
    check(printed.out + printed.err, n_labels, n_lines)


def metadata(name: str) -> bytes:
    inputs = [{"name": name, "datatype": "FP32", "shape": [1]}]
    return http(json.dumps({"name": "m", "inputs": inputs}).encode())


@pytest.mark.parametrize("options", [[], ["--repeat", "1"], ["--save", "folder"]], ids=str)
@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ([metadata(HOSTILE)], 2),
        ([http(BODIES["error"], status="500 No")], 1),
        ([http(BODIES["text"], status="500 No")], 1),
        ([metadata("x"), http(b"{}", {"Content-Encoding": IN_HEADER})], 1),
        ([metadata("x"), http(BODIES["error"], status="500 No")], 1),
        ([metadata("x"), http(BODIES["malformed"].replace(b"inputs", b"outputs"))], 1),
        ([metadata("x"), http(BODIES["response"])], 0),
    ],
)
def test_infer_escapes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: list[bytes],
    status: int,
    options: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with Scripted(answers) as server:
        try:
            found = main(["infer", server.address, "m", "--input", "x=[1]", *options])
        except SystemExit as error:
            found = int(error.code or 0)
    assert found == status
    printed = capsys.readouterr()
    check(printed.out + printed.err, "--repeat" not in options or status != 0)


def test_infer_escapes_errors_of_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    grpc = package("grpc")
    from support.grpc_scripted_servers import ScriptedServer  # noqa: PLC0415

    def fail(_: Any, context: Any) -> None:
        context.abort(grpc.StatusCode.INTERNAL, HOSTILE)

    with ScriptedServer({"ModelInfer": fail}) as server:
        assert main(["infer", server.url, "declared", "--input", "x=[1]"]) == 1
    check(capsys.readouterr().err, 1, 1)


FAILING = """
def model(request):
    raise ValueError("text of the request: " + request["x"].as_strings().item())

models = {"model": model, "a\\x1b[31m": model}
"""


def test_serve_escapes(tmp_path: Path) -> None:
    """The names of models, exceptions of models, and what a proxy says of the client."""
    headers = {"X-Forwarded-For": "label \x9b31m"}
    with serving(tmp_path, "served_here", "--access-log", models=FAILING) as server:
        with Client(server.address, headers=headers) as client:
            for name in ("model", "a\x1b[31m"):
                with pytest.raises(InferenceServerError, match="failed"):
                    client.infer(name, {"x": [HOSTILE]})
        log = server.stop()
    check(log, 4)
    assert log.count(r"ValueError: text of the request: label \x1b[31m") == 2
    assert r"serves a\x1b[31m, model at" in log
    assert r"label \x9b31m:0" in log


def test_serve_escapes_errors_of_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module_with_text.py").write_text(f"raise ValueError({HOSTILE!a})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit):
        main(["serve", "module_with_text"])
    check(capsys.readouterr().err, 2)


# --- outputs that cannot be written ---


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


NO_SPACE = ": the output cannot be written: [Errno 28] No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this machine has no /dev/full")
@pytest.mark.parametrize(
    ("output", "status", "expected"), [(full, 1, NO_SPACE), (closed_pipe, 141, "")]
)
@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "inspect small",
        "inspect large",
        "infer SERVER m --input x=[1]",
        "infer SERVER m --input x=[1] --repeat 1",
        "infer SERVER m --input x=[1] --save folder",
        "serve --echo",
        pytest.param("demo", marks=pytest.mark.slow(reason="it encodes 64 MiB")),
    ],
)
def test_output_that_cannot_be_written(
    tmp_path: Path, arguments: str, output: Callable[[], int], status: int, expected: str
) -> None:
    """The exit status is 1 with one line, or that of a program which SIGPIPE ends."""
    for name, n_inputs in (("small", 1), ("large", 1000)):  # without and with a full buffer
        inputs = [tw.Tensor(f"x{i}", [1], datatype="INT8", binary=False) for i in range(n_inputs)]
        (tmp_path / name).write_bytes(bytes(tw.encode_request(tw.InferRequest(inputs))))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    stdout = output()
    with Scripted([metadata("x"), http(BODIES["response"])]) as server:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tensorwire",
                 *arguments.replace("SERVER", server.address).split()],
                cwd=tmp_path, env=variables, stdout=stdout, stderr=subprocess.PIPE, text=True,
                check=False, timeout=60,
            )  # fmt: skip
        finally:
            os.close(stdout)
    assert done.returncode == status
    command = arguments.split(maxsplit=1)[0].replace("--help", "")
    program = f"python -m tensorwire {command}".rstrip()
    assert done.stderr == (program + expected if expected else "")


def test_stdout_and_stderr_that_are_closed(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(BODIES["request"])
    command = f"{sys.executable} -m tensorwire inspect body >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False).returncode == 0
