"""The commands of `tensorwire`: demo and inspect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorwire as tw
from support.console_script import PROGRAMS, programs
from support.requirements import package
from tensorwire.cli import main

FRAME = tw.encode_request(
    tw.InferRequest(
        [
            tw.Tensor("scores", [[0.5, 1.25], [2, 3]], datatype="FP32"),
            tw.Tensor("a\x1b[31mb", ["\x1b[2J"]),  # what a terminal would execute
            tw.Tensor("text", ["hello", b"\xff", "x" * 99]),
            tw.Tensor("t", [7] * 9, datatype="INT8", binary=False),
            tw.Tensor(
                "shared", None, datatype="FP32", shape=[2], parameters={"shared_memory_region": "r"}
            ),
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
        (b"1234", ["--header-length", "0"], ["HeaderError: Inference-Header-Content-Length is 0"]),
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
