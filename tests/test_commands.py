"""The commands of `tensorwire`: demo, inspect, and what all commands print.

Text of others is escaped. An output that cannot be written is an error.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorwire as tw
from support.console_script import PROGRAMS, programs
from support.requirements import package
from support.serve_process import serving
from support.servers import Scripted, http
from tensorwire.cli import main
from tensorwire.client import Client, InferenceServerError

pytestmark = pytest.mark.thread_unsafe(reason="the tests read sys.stdout and sys.stderr")

SHARED = {"shared_memory_region": "r"}
FRAME = tw.encode_request(
    tw.InferRequest(
        [
            tw.Tensor("scores", [[0.5, 1.25], [2, 3]], datatype="FP32"),
            tw.Tensor("a\x1b[31mb", ["\x1b[2J"]),  # what a terminal would execute
            tw.Tensor("text", ["hello", b"\xff", "x" * 99]),
            tw.Tensor("t", [7] * 9, datatype="INT8", binary=False),
            tw.Tensor("shared", None, datatype="FP32", shape=[2], parameters=SHARED),
        ],
        [tw.RequestedOutput("y")],
        id="7",
    )
)


def test_demo() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tensorwire", "demo"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""  # no progress line, because stderr is not a terminal
    assert "\x1b" not in done.stdout
    assert "both implementations returned all tensors unchanged" in done.stdout
    (row,) = re.findall(
        r"decode request +([\d.]+) ms +([\d.]+) MiB +([\d.]+) ms +([\d.]+) MiB", done.stdout
    )
    assert row[1] == "0.0"  # nothing is copied
    assert float(row[3]) > 64


def capture(tmp_path: Path, body: bytes) -> str:
    path = tmp_path / "body"
    path.write_bytes(body)
    return str(path)


def test_inspect_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(tmp_path, bytes(FRAME))
    assert main(["inspect", path, "--header-length", str(FRAME.header_length)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: request of {len(FRAME)} bytes, id '7', outputs ['y']",
        "name                 datatype  shape                   bytes  first values",
        "scores               FP32      [2, 2]                     16  0.5, 1.25, 2, 3",
        r"a\x1b[31mb           BYTES     [1]                         8  b'\x1b[2J'",
        "text                 BYTES     [3]                       117  "
        "b'hello', b'\\xff', b'xxxxxxxxxxxxxxxxxxxxxxxxx...",
        "t                    INT8      [9]                         9  "
        "7, 7, 7, 7, 7, 7, ...  (as JSON)",
        "shared               FP32      [2]                         -  (in shared memory)",
    ]


def test_inspect_response(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = {"a\x1b": [{"b": True}, None]}
    outputs = [tw.Tensor("y", [], datatype="INT8")]
    frame = tw.encode_response(tw.InferResponse(outputs, model_name="m", parameters=parameters))
    path = capture(tmp_path, bytes(frame))
    assert main(["inspect", path]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        f"{path}: response of {len(frame)} bytes, model 'm', "
        r'parameters {"a\u001b": [{"b": true}, null]}'
    )


@pytest.mark.parametrize(
    ("body", "arguments", "lines"),
    [
        (
            bytes(FRAME)[:-1],
            ["--header-length", str(FRAME.header_length)],
            ["LayoutError: the body ends inside input 'text': it requires 117 bytes, but 116",
             "  tensor: text", "  expected: 117"],
        ),
        (
            bytes(FRAME),
            [],
            ["HeaderError: the JSON header is malformed: it is followed by",
             f"try --header-length {FRAME.header_length}"],
        ),
        (b"what?", [], ["HeaderError: the JSON header is malformed"]),
        (b"1234", ["--header-length", "0"], ["LayoutError: Inference-Header-Content-Length is 0"]),
        (
            rb'{"inputs":[{"name":"a\u001b[31m","datatype":"FP32","shape":[1],"data":[]}]}',
            [],
            [r"input 'a\x1b[31m' does", r"  tensor: a\x1b[31m", "  expected: 1"],
        ),
        (b"{}", ["--header-length", "x"], ["HeaderError: Inference-Header-Content-Length is not"]),
    ],
)  # fmt: skip
def test_inspect_malformed_body(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    body: bytes,
    arguments: list[str],
    lines: list[str],
) -> None:
    assert main(["inspect", capture(tmp_path, body), *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    for line in lines:
        assert line in printed.err


@pytest.mark.slow(reason="it starts processes")
@pytest.mark.no_sanitizers(reason="it reads the repository")
@pytest.mark.parametrize("name", PROGRAMS)
def test_usage_is_what_the_user_has_written(name: str, tmp_path: Path) -> None:
    program = programs(tmp_path / "bin")[name]
    package("httptools")
    package("uvicorn")

    def printed(*arguments: str) -> str:
        done = subprocess.run(
            [*program, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        return done.stdout + done.stderr

    assert printed("--help").startswith(f"usage: {name} [-h] [--version] {{demo,")
    assert printed("--version") == f"tensorwire {tw.__version__}\n"
    assert printed("infer", "--help").startswith(f"usage: {name} infer URL MODEL")
    assert f"\n  {name} infer localhost:8000 add --input" in printed("infer", "--help")
    assert printed("infer", "127.0.0.1:1", "m").startswith(f"{name} infer: GET http")
    assert f"\n{name} serve: error: no models" in printed("serve")


@pytest.mark.parametrize("arguments", [[], ["inspect"], ["inspect", "/no/such/file"], ["dance"]])
def test_invalid_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["body", "body\udcff"])
def test_inspect_with_an_output_that_cannot_represent_a_character(
    tmp_path: Path, file: str
) -> None:
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("\u20ac", [5], datatype="INT8")], id="é"))
    path = tmp_path / file
    try:
        path.write_bytes(bytes(frame))
    except (OSError, UnicodeError):
        pytest.skip("the file system does not support the name")
    done = subprocess.run(
        [sys.executable, "-m", "tensorwire", "inspect", path,
         "--header-length", str(frame.header_length)],
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"}, capture_output=True, check=True,
    )  # fmt: skip
    assert rb"id '\xe9'" in done.stdout
    assert rb"\u20ac " in done.stdout
    assert done.stdout.count(rb"\udcff") == (file != "body")


# --- text of others ------------------------------------------------------------------------------

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


TENSORS = [tw.Tensor(HOSTILE, [HOSTILE], binary=False)]
REQUEST = tw.InferRequest(
    TENSORS, [tw.RequestedOutput(HOSTILE)], id=HOSTILE, parameters={HOSTILE: HOSTILE}
)
RESPONSE = tw.InferResponse(TENSORS, model_name=HOSTILE, model_version=HOSTILE)
MALFORMED = {"name": HOSTILE, "datatype": HOSTILE, "shape": [1], "data": [1]}
BODIES = {
    "request": bytes(tw.encode_request(REQUEST)),
    "response": bytes(tw.encode_response(RESPONSE)),
    "error": json.dumps({"error": HOSTILE}).encode(),
    "malformed": json.dumps({"inputs": [MALFORMED]}).encode(),
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


@pytest.mark.parametrize("options", [[], ["--save", "folder"]], ids=str)
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
    check(printed.out + printed.err, 1)


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
    assert r"label%20\x9b31m - - [" in log


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
        "infer SERVER m --input x=[1] --save folder",
        "serve --echo",
        pytest.param(
            "serve --echo --workers 2 --log-level warning",
            marks=pytest.mark.slow(reason="it starts processes"),
        ),
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
