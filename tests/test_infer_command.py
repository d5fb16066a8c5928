"""The command `tensorwire infer`, against a server on the loopback interface."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import Certificate
from support.servers import Scripted, http, recording, uvicorn_server
from tensorwire import TensorSpec
from tensorwire._codec.limits import UNLIMITED
from tensorwire.cli import infer, main
from tensorwire.server import Model, create_app

pytestmark = pytest.mark.thread_unsafe(reason="the tests share a server, sys.stdout and sys.stderr")

certificate = client_fixtures.certificate

COMMAND = [sys.executable, "-m", "tensorwire", "infer"]
DATATYPES: list[Any] = [
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BF16", "BYTES"),
]
MB = 1_000_000
SHARED = {"shared_memory_region": "r"}

requests: list[tw.InferRequest] = []
headers: list[dict[str, Any]] = []  # of all requests
responses: list[tw.Tensor] = []  # of the model "outputs"


def echo(request: tw.InferRequest) -> tw.InferResponse:
    requests.append(request)
    return tw.InferResponse(request.inputs)


def outputs(_: tw.InferRequest) -> tw.InferResponse:
    return tw.InferResponse(responses)


def slow(request: tw.InferRequest) -> tw.InferResponse:
    time.sleep(1.2)
    return tw.InferResponse(request.inputs)


MODELS: dict[str, Any] = {
    "echo": echo,
    "outputs": outputs,
    "slow": slow,
    "two": Model(echo, [TensorSpec("x", "FP32", [-1, 2]), TensorSpec("y", "INT64", [1])]),
    "text": Model(echo, [TensorSpec("text", "BYTES", [-1, 1])]),
    "input:0": Model(echo, [TensorSpec("input:0", "FP16", [-1])]),
    "all": Model(echo, [TensorSpec(name, name, [-1, 3]) for name in DATATYPES]),
}
app = recording(create_app(MODELS), headers)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with uvicorn_server(app) as address:
        yield address


@pytest.fixture(autouse=True)
def _nothing_received() -> None:
    requests.clear()
    headers.clear()
    responses.clear()


Call = Callable[..., str]


PREFIXES = {1: "tensorwire infer: ", 2: "tensorwire infer: error: "}


@pytest.fixture
def call(server: str, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs the command in this process.

    It returns what is printed, or the error if the exit status is expected to be 1 or 2.
    """

    def run(*arguments: str, url: str = server, status: int = 0) -> str:
        try:
            found: Any = main(["infer", url, *arguments])
        except SystemExit as caught:
            found = caught.code
        printed = capsys.readouterr()
        assert found == status, printed
        if status == 0:
            assert printed.err == ""
            return printed.out
        assert printed.out == ""
        *usage, error = printed.err.splitlines()
        assert "".join(usage).startswith("usage: tensorwire infer URL MODEL" if status == 2 else "")
        assert len(usage) == status - 1
        assert len(error) < 500
        assert error.startswith(PREFIXES[status])
        return error.removeprefix(PREFIXES[status])

    return run


@pytest.fixture
def call_for(call: Call) -> Call:
    """Return a function that calls a model with this output."""

    def run(tensor: tw.Tensor, *arguments: str, **options: Any) -> str:
        responses.append(tensor)
        return call("outputs", "--input", "x:FP32=1", *arguments, **options)

    return run


def received() -> dict[str, tuple[str, tuple[int, ...], Any]]:
    """Return the name, datatype, shape and values of the inputs of the only request."""
    (request,) = requests
    return {
        tensor.name: (tensor.datatype, tensor.shape, tensor.data.tolist())
        for tensor in request.inputs
        if tensor.data is not None
    }


def save_array(folder: Path, array: Any) -> str:
    """Write a .npy file, and return its path."""
    path = folder / "array.npy"
    np.save(path, array)
    return str(path)


def test_examples_of_the_help_are_valid() -> None:
    parser = infer.add_parser(argparse.ArgumentParser().add_subparsers())
    examples = infer.EPILOG.replace("\\\n", "").split("exit status:")[0]
    commands = re.findall(r"%\(prog\)s ([^|\n]*)", examples)
    assert len(commands) == 5
    for command in commands:
        assert parser.parse_args(shlex.split(command)).model


# --- inputs ---


JSON_X = b"[[1, 2]]"
WITHOUT_FILES = [
    ("input:0", "input:0=[1, 2.5]", ("FP16", (2,), [1, 2.5])),  # the declared datatype
    ("input:0", "input:0:FP16=1", ("FP16", (1,), [1])),
    ("echo", "x:UINT8=[[1], [2]]", ("UINT8", (2, 1), [[1], [2]])),
    ("echo", "BOOL:BOOL=[true, false]", ("BOOL", (2,), [True, False])),
    ("echo", 'BOOL="a"', ("BYTES", (1,), [b"a"])),
    ("echo", "x:FP32=[]", ("FP32", (0,), [])),
    ("echo", "x:FP32=3", ("FP32", (1,), [3])),
    ("echo", "x:FP32=[Infinity]", ("FP32", (1,), [np.inf])),
    ("echo", 'x=["a", "ü"]', ("BYTES", (2,), [b"a", "ü".encode()])),
    ("echo", 'x="a=b"', ("BYTES", (1,), [b"a=b"])),
    ("text", 'text="a"', ("BYTES", (1, 1), [[b"a"]])),  # as many dimensions as declared
    ("text", 'text=[["a"], ["b"]]', ("BYTES", (2, 1), [[b"a"], [b"b"]])),
]
ARRAYS = [
    ("echo", "x", np.array([[1, 2]], ">i2"), ("INT16", (1, 2), [[1, 2]])),
    ("echo", "x", np.array(["a", "ü"]), ("BYTES", (2,), [b"a", "ü".encode()])),
    ("echo", "x", np.array([b"a", b"bc"]), ("BYTES", (2,), [b"a", b"bc"])),
    ("echo", "x:FP32", np.array([0.1]), ("FP32", (1,), [np.float32(0.1)])),
    ("echo", "x:FP32", np.array([1, 2]), ("FP32", (2,), [1, 2])),
    ("echo", "x:INT8", np.array([1.0, -2]), ("INT8", (2,), [1, -2])),
    ("echo", "x:BF16", np.array([0x3FC0], "u2"), ("BF16", (1,), [1.5])),
    ("echo", "x:BF16", np.array([0x3FC0], "u2").view("V2"), ("BF16", (1,), [1.5])),
    ("echo", "x:BF16", np.array([1.5]), ("BF16", (1,), [1.5])),
    ("input:0", "input:0", np.array([2], "f2"), ("FP16", (1,), [2])),
]


@pytest.mark.parametrize(
    ("model", "argument", "content", "expected"),
    [
        *((model, argument, b"", expected) for model, argument, expected in WITHOUT_FILES),
        *((model, f"{name}=FOLDER/array.npy", *row) for model, name, *row in ARRAYS),
        ("echo", "x:INT8=FOLDER/x.json", JSON_X, ("INT8", (1, 2), [[1, 2]])),
        ("echo", "x:INT8=-", JSON_X, ("INT8", (1, 2), [[1, 2]])),
        ("echo", "x=-", b'"a"', ("BYTES", (1,), [b"a"])),
        ("echo", "x=@-", b"a\n\0", ("BYTES", (1,), [b"a\n\0"])),
        ("echo", "x=@FOLDER/x.json", JSON_X, ("BYTES", (1,), [JSON_X])),
        ("echo", "x=@FOLDER/x.npy", b"\xff\0", ("BYTES", (1,), [b"\xff\0"])),  # as the @ says
    ],
)
def test_input(
    call: Call, stdin: Any, tmp_path: Path, model: str, argument: str, content: Any, expected: Any
) -> None:
    """The content is that of a file or of the standard input."""
    if isinstance(content, np.ndarray):
        save_array(tmp_path, content)
    else:
        stdin(content)
        (tmp_path / Path(argument).name).write_bytes(content)
    call(model, "--input", argument.replace("FOLDER", str(tmp_path)))
    assert [*received().values()] == [expected]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes | None], None]:
    """Return a function that replaces the standard input; by None, it is closed."""

    def replace(content: bytes | None) -> None:
        stream = None if content is None else io.TextIOWrapper(io.BytesIO(content))
        monkeypatch.setattr(sys, "stdin", stream)

    return replace


REQUEST = {
    "inputs": [{"name": "x", "datatype": "INT8", "shape": [1, 2], "data": [1, 2]}],
    "outputs": [{"name": "x"}],
    "parameters": {"top_k": 3},
    "id": "7",
}


@pytest.mark.parametrize("arrays", [{"a": [1, 2]}, {}, {"a": [1], "b": [2]}])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_input(call: Call, tmp_path: Path, save: Any, arrays: Any) -> None:
    """It has exactly one array."""
    path = tmp_path / "x.npz"
    save(path, **arrays)
    printed = call("echo", "--input", f"x={path}", status=0 if len(arrays) == 1 else 2)
    if len(arrays) == 1:
        assert received() == {"x": ("INT64", (2,), [1, 2])}
    else:
        names = [f"{name}.npy" for name in arrays]
        assert printed == f"--input x={path}: the file must have one array, not {names}"


@pytest.mark.parametrize("path", ["FOLDER/request", "-"])
def test_whole_request(call: Call, stdin: Any, tmp_path: Path, path: str) -> None:
    stdin(json.dumps(REQUEST).encode())
    (tmp_path / "request").write_text(json.dumps(REQUEST))
    printed = call("echo", "--request", path.replace("FOLDER", str(tmp_path)))
    assert printed == "x  INT8  [1, 2]\n[[1 2]]\n"
    assert received() == {"x": ("INT8", (1, 2), [[1, 2]])}
    (request,) = requests
    assert (request.id, request.parameters["top_k"]) == ("7", 3)
    assert [output.name for output in request.outputs or ()] == ["x"]
    assert len(headers) == 1  # the metadata is not needed


@pytest.mark.parametrize("option", [["--input", "x=@-"], ["--request", "-"]])
def test_standard_input_that_is_closed(call: Call, stdin: Any, option: list[str]) -> None:
    stdin(None)
    assert "the standard input is closed" in call("echo", *option, status=2)


def test_optional_input_is_left_out(call: Call) -> None:
    """This model has no optional inputs."""
    error = call("two", "--input", "y=null", "--input", "x=[[1, 2]]", status=1)
    assert "status 400: input 'y' is missing" in error


def test_request_is_binary_and_has_an_id(call: Call) -> None:
    call("echo", "--input", "x:FP32=[1]")
    (request,) = requests
    assert request["x"].binary
    assert request.id
    assert request.outputs is None
    assert request.parameters == {"binary_data_output": True}


def test_json_request(call: Call) -> None:
    printed = call("echo", "--json", "--input", "x:FP32=[-Infinity, 1]")
    (request,) = requests
    assert not request["x"].binary
    assert request.parameters == {}
    assert "inference-header-content-length" not in headers[-1]
    assert received() == {"x": ("FP32", (2,), [-np.inf, 1])}
    x = {"name": "x", "datatype": "FP32", "shape": [2], "data": [None, 1]}
    assert json.loads(printed)["outputs"] == [x]  # the server does not send infinities as JSON


TEXT = "ü \x1b \x9b \u202e \N{CAT}"


@pytest.mark.parametrize("arguments", [["--json"], ["--json", "--output", "y"]])
def test_json_output(call_for: Call, arguments: list[str]) -> None:
    """A program can read it, and a terminal does not execute it."""
    printed = call_for(tw.Tensor("y", [TEXT, "a"]), *arguments)
    assert re.fullmatch("[ -~]+\n", printed)
    (y,) = json.loads(printed)["outputs"]
    assert y == {"name": "y", "datatype": "BYTES", "shape": [2], "data": [TEXT, "a"]}


JSON_HINT = """--input x=a: it is not JSON; write text as x='"..."', and"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["two"], "missing input 'x' (FP32 [-1, 2]), input 'y' (INT64 [1]): use --input"),
        (["two", "--input", "x=[]"], "missing input 'y' (INT64 [1]): use"),
        (["all"], "input 'FP16' (FP16 [-1, 3]) and 4 more: use --input"),
        (["text", "--input", "t=1"], "the model has no input 't'; it has input 'text' (BYTES [-1,"),
        (["echo"], "the model declares no inputs: use --input"),
        (["echo", "--input", "x=1"], "--input x=1: the model does not declare it: use --input x:D"),
        (["echo", "--input", "x=[]"], "the model does not declare it: use --input x:DATATYPE="),
        (["echo", "--input", "x=null"], "a request must have at least one input"),
        (["echo", "--input", "x=a"], JSON_HINT),
        (["echo", "--input", f"x={'[' * 99_999}"], "--input x: it is not JSON"),
        (["echo", "--input", "x={}"], "--input x={}: a JSON object is not a tensor; --request"),
        (["echo", "--input", "x=-"], "--input x=-: it is not JSON: Expecting value: line 1"),
        (["echo", "--input", "x=-", "--input", "y=@-"], "only one --input can be the standard"),
        (["echo", "--request", "-"], "--request -: the JSON header is empty"),
        (["echo", "--request", "/no/file"], "--request /no/file: [Errno 2] No such file"),
        (["echo", "--request", "/x", "--input", "x=1"], "--input: not allowed with argument --req"),
        (["echo", "--input", "x=/no.json"], "--input x=/no.json: [Errno 2] No such file"),
        (["echo", "--input", "x:INT8=[300]"], "is 300, which is out of range for INT8"),
        (["echo", "--input", "x:INT9=[3]"], "does not declare it: use --input x:INT9:DATATYPE="),
        (["echo", "--input", 'x=["\\ud800"]'], "cannot be encoded as UTF-8"),
        (["echo", "--input", "\udcff:FP32=1"], "UTF-8"),
        (["\udcff"], "can't encode character '\\udcff'"),
        (["echo", "--input", "x:FP16=1", "--json"], "which can only be sent as binary data"),
        (["echo", "--input", "x"], "argument --input: 'x' is not NAME=VALUE"),
        (["echo", "--input", "=1"], "argument --input: '=1' is not NAME=VALUE"),
        (["echo", "--input", f"x:FP32=@{__file__}"], "must be a number (FP32), not bytes"),
        (["echo", "--input", "x=1", "--input", "x=2"], "--input x is given twice"),
        (["echo", "--input", "x=@/no/file"], "No such file or directory: '/no/file'"),
        (["echo", "--input", "x=/no/file.npy"], "No such file or directory: '/no/file.npy'"),
    ],
)
def test_invalid_inputs(call: Call, stdin: Any, arguments: list[str], message: str) -> None:
    stdin(b"")
    assert message in call(*arguments, status=2)
    assert not requests


@pytest.mark.parametrize(
    ("array", "target", "message"),
    [
        (np.array([1.5]), "input:0", "the array is FP64, but the model declares FP16; to convert"),
        (np.array([1.5]), "input:0:INT8", "array.npy: the array has values that INT8 cannot rep"),
        (np.array([300]), "input:0:UINT8", "has values that UINT8 cannot represent"),
        (np.array([1]), "input:0:BYTES", "has datatype BYTES, but its data is INT64"),
        (np.array(["1"]), "input:0", "has datatype FP16"),
        (np.array([1j]), "input:0", "complex128, which has no datatype"),
        (np.array([None]), "input:0", "Object arrays cannot be loaded"),
    ],
)
def test_invalid_arrays(call: Call, tmp_path: Path, array: Any, target: str, message: str) -> None:
    value = f"{target}={save_array(tmp_path, array)}"
    assert message in call("input:0", "--input", value, status=2)


def npy_file(members: str) -> bytes:
    header = f"{{'fortran_order': False, {members}}}".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(16)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"what?", b"PK\3\4" + bytes(100)),
        npy_file("'descr': '<f4', 'shape': (99999999999999,)"),
        npy_file("'descr': '<f4', 'shape': (4, 99999999999999999999)"),
        npy_file("'descr': '<f4', 'shape': (4,"),
        npy_file("'descr': ',f4', 'shape': (4,)"),
    ],
)
def test_invalid_npy_file(call: Call, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "array.npy"
    path.write_bytes(content)
    assert call("echo", "--input", f"x={path}", status=2).startswith(f"--input x={path}: ")


# --- outputs ---


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (tw.Tensor("y", np.array([[1, 2], [3, 4]], "f4")), "y  FP32  [2, 2]\n[[1. 2.]\n [3. 4.]]"),
        (tw.Tensor("y", np.arange(999)), "y  INT64  [999]\n[  0   1   2 ... 996 997 998]"),
        (tw.Tensor("y", np.zeros((1, 3, 9, 9), "u1")), "y  UINT8  [1, 3, 9, 9]\n[[[[0 ... 0]"),
        (tw.Tensor("y", np.zeros([3] * 9, "u1")), f"y  UINT8  {[3] * 9}\n[0 0 0 ... 0 0 0]"),
        (tw.Tensor("y", np.array([0x3FC0], "u2"), datatype="BF16"), "y  BF16  [1]\n[1.5]"),
        (tw.Tensor("y", ["a", b"\xff", "\x1b"]), "y  BYTES  [3]\n['a' b'\\xff' '\\x1b']"),
        (tw.Tensor("y", ["x" * 61, "é"]), f"y  BYTES  [2]\n['{'x' * 60}'... 'é']"),
        (tw.Tensor("y", ["é " * 99 + "\x1b"]), "y  BYTES  [1]\n['" + "é " * 99 + "\\x1b']"),
        (tw.Tensor("y", ["z" * 10_001]), f"y  BYTES  [1]\n['{'z' * 10_000}'...]"),
        (tw.Tensor("\x1b[2J", [b"a"]), "\\x1b[2J  BYTES  [1]\n['a']"),
        (
            tw.Tensor("y", None, datatype="FP32", shape=[2], parameters=SHARED),
            "y  FP32  [2]\n(in shared memory)",
        ),
    ],
)  # fmt: skip
def test_printed_output(call_for: Call, tensor: tw.Tensor, expected: str) -> None:
    printed = call_for(tensor)
    assert printed.startswith(expected)
    assert len(printed) < 500 + len(expected)
    assert "\x1b" not in printed


def test_selected_outputs(call_for: Call) -> None:
    responses.extend(tw.Tensor(name, [1], datatype="INT8") for name in ("a", "b"))
    printed = call_for(tw.Tensor("c", [1], datatype="INT8"), "--output", "c", "--output", "a")
    assert re.findall(r"(\w)  INT8", printed) in (["a", "c"], ["c", "a"])


BF16 = np.array([0x3FC0], "u2")
ENDS_WITH_NUL = [b"ends with NUL\0", b""]
ONE_LONG = [b"x" * 1000, *[b""] * 1000]  # 1 MB as an S array


@pytest.mark.parametrize(
    ("tensor", "expected", "form"),
    [
        (tw.Tensor("y", np.array([[1, 2]], "f4")), np.array([[1, 2]], "f4"), ""),
        (tw.Tensor("y", [["a", b"\xff\0b"]]), np.array([["a", b"\xff\0b"]], "S"), ""),
        (tw.Tensor("y", [], datatype="BYTES"), np.array([], "S1"), ""),
        (tw.Tensor("y", BF16, datatype="BF16"), BF16, "  (as uint16)"),
        *(
            (
                tw.Tensor("y", elements),
                np.frombuffer(tw.encode_bytes(elements), np.uint8),
                "  (for tensorwire.decode_bytes)",
            )
            for elements in (ENDS_WITH_NUL, ONE_LONG)
        ),
    ],
)
def test_saved_output(
    call_for: Call, tmp_path: Path, tensor: tw.Tensor, expected: Any, form: str
) -> None:
    folder = tmp_path / "new" / "folder"
    printed = call_for(tensor, "--save", str(folder))
    assert printed == f"{folder}/y.npy  {tensor.datatype}  {list(tensor.shape)}{form}\n"
    saved = np.load(folder / "y.npy")  # without pickle
    assert saved.dtype == expected.dtype
    assert np.array_equal(saved, expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("../../up", "..%2F..%2Fup.npy"), ("..", "...npy"), ("a:0", "a:0.npy"), ("\x1b", "%1B.npy")],
)
def test_saved_output_stays_in_the_folder(
    call_for: Call, tmp_path: Path, name: str, expected: str
) -> None:
    folder = tmp_path / "a" / "b" / "c"
    call_for(tw.Tensor(name, [1], datatype="INT8"), "--save", str(folder))
    assert [str(p.relative_to(folder)) for p in tmp_path.rglob("*.npy")] == [expected]


def test_output_in_shared_memory_is_not_saved(call_for: Call, tmp_path: Path) -> None:
    tensor = tw.Tensor("y", None, datatype="FP32", shape=[2], parameters=SHARED)
    assert call_for(tensor, "--save", str(tmp_path)) == "y  FP32  [2]\n(in shared memory)\n"
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_created(call: Call, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    arguments = ["--input", "x:FP32=1", "--save", str(tmp_path / "taken")]
    assert "File exists" in call("echo", *arguments, status=2)
    assert not requests


def test_output_that_cannot_be_saved(call_for: Call, tmp_path: Path) -> None:
    (tmp_path / "y.npy").mkdir()
    tensor = tw.Tensor("y", [1], datatype="INT8")
    assert "Is a directory" in call_for(tensor, "--save", str(tmp_path), status=1)


# --- connection ---


def test_headers(call: Call) -> None:
    options = ["--header", "Authorization: Bearer a:b", "--header", "x-y:1"]
    call("echo", "--input", "x:FP32=1", *options)
    for sent in headers:  # also with the metadata
        assert sent["authorization"] == "Bearer a:b"
        assert sent["x-y"] == "1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--header", "abc"], "argument --header: it must be 'NAME: VALUE', and has no colon"),
        (["--header", "a b: c"], "an HTTP header is invalid: character ' ' at position 1"),
        (["--header", "a: b\r\nc: d"], "the value of the HTTP header a is invalid"),
        (["--header", "a: 1", "--header", "a: 2"], "--header a is given twice"),
        (["--header", "Content-Length: 3"], "the HTTP header Content-Length cannot be passed"),
        (["--timeout", "0"], "timeout must be a positive number of seconds"),
        (["--insecure"], "--insecure and --ca-file require an https:// or grpcs:// URL"),
        (["--insecure", "--ca-file", "x"], "--ca-file: not allowed with argument --insecure"),
        ("ftp://x echo", "the URL of a server must be http, https, grpc, grpcs, unix or"),
        ("localhost:abc echo", "the URL of a server is invalid: 'localhost:abc' (Port "),
        ("x ..", "the name of a model must not be '..'"),
        ("grpc://x echo --json", "--json requires HTTP"),
        ("grpcs://x echo --insecure", "--insecure requires an https:// URL: grpcio always"),
        ("grpc://x echo --ca-file x", "require an https:// or grpcs:// URL"),
        ("https://x echo --ca-file /no/file", "--ca-file /no/file: [Errno 2]"),
    ],
)
def test_invalid_options(call: Call, server: str, arguments: Any, message: str) -> None:
    """Arguments of a call to the server of the tests, or another URL and its arguments."""
    url, *others = arguments.split() if isinstance(arguments, str) else (server, "echo", *arguments)
    assert message in call(*others, "--input", "x:FP32=1", url=url, status=2)
    assert not headers


def test_tls(call: Call, certificate: Certificate, tmp_path: Path) -> None:
    options = {"ssl_keyfile": certificate.key, "ssl_certfile": certificate.file}
    with uvicorn_server(app, **options) as address:
        call_tls = partial(call, "echo", "--input", "x:FP32=1", url=f"https://{address}")
        assert "certificate" in call_tls(status=1).lower()
        for arguments in (["--insecure"], ["--ca-file", certificate.file]):
            assert call_tls(*arguments) == "x  FP32  [1]\n[1.]\n"
        other = Certificate(tmp_path).file
        assert "certificate" in call_tls("--ca-file", other, status=1).lower()


def test_server_errors(call: Call, server: str) -> None:
    error = call("unknown", status=1)
    assert (
        f"GET http://{server}/v2/models/unknown: status 404: "
        "model 'unknown' is not known: the models are ['"
    ) in error
    error = call("echo", "--input", "x:FP32=1", "--output", "y", status=1)
    assert ": status 400: the request asks for output 'y'" in error
    assert "GET http://127.0.0.1:1/v2/models/echo: " in call("echo", url="127.0.0.1:1", status=1)


METADATA = http(b'{"inputs": []}')
HALF = tw.encode_response(tw.InferResponse({"y": np.zeros(1, np.float16)}))
NOT_JSON = "the response cannot be printed as JSON: output 'y'"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([lambda _: time.sleep(0.5)], "GET http://"),
        ([http(b"{")], "/v2/models/m: the metadata is invalid: "),
        ([http(b'{"inputs": [{}]}')], "the response is invalid: the inputs in the metadata"),
        ([http(b'{"inputs": 3}')], "the response is invalid: the inputs in the metadata"),
        ([http(b"a\n\x1b[2Jb", status="500 No")], "status 500: a \\x1b[2Jb"),
        # binary data, although the request asks for JSON
        ([METADATA, http(bytes(HALF), HALF.headers, length="")], NOT_JSON),
        (
            [METADATA, http(b"what?", status="415 No")],
            "status 415: what? (if the server reads only JSON, use --json)",
        ),
    ],
)
def test_invalid_answers(call: Call, answers: Any, message: str) -> None:
    options = ["--input", "x:FP32=1", "--timeout", "0.2", *["--json"] * (message == NOT_JSON)]
    with Scripted(answers) as server:
        error = call("m", *options, url=server.address, status=1)
    assert message in error


def test_limits_are_those_of_the_client() -> None:
    for name in (name for name in dir(tw.Limits) if not name.startswith("_")):
        expected = True if name == "bf16_as_uint16" else getattr(UNLIMITED, name)
        assert getattr(infer.LIMITS, name) == expected, name


# --- in a separate process ---


@pytest.mark.slow(reason="it waits for timeouts")
def test_interrupted_call() -> None:
    received_call = threading.Event()

    def silent(_: Any) -> None:
        received_call.set()
        time.sleep(30)

    with Scripted([METADATA, silent]) as server:
        command = [*COMMAND, server.address, "m", "--input", "x:FP32=1"]
        process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True)
        assert received_call.wait(20)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 130


def on_terminal(*arguments: str) -> str:
    """Return what a successful call writes to stderr, if that is a terminal."""
    main_end, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=terminal
        )
        os.close(terminal)
        written = b""
        while True:
            try:
                written += os.read(main_end, 4096)
            except OSError:  # the process has ended
                break
        assert process.wait(20) == 0
    finally:
        os.close(main_end)
    return written.decode()


def test_progress_of_a_large_or_slow_call(server: str, tmp_path: Path) -> None:
    array = save_array(tmp_path, np.zeros(5 * MB, np.float32))
    written = on_terminal(server, "echo", "--input", f"x={array}")
    assert re.search(r"\rsending \[#* *\] \d+\.\d of 20\.0 MB", written)
    assert re.search(r"\rreceiving \[#{30}\] 20\.0 of 20\.0 MB", written)
    assert written.endswith("\r\x1b[K")  # it is removed
    assert on_terminal(server, "echo", "--input", "x:FP32=1") == ""
    written = on_terminal(server, "slow", "--input", "x:FP32=1")
    assert re.search(r"^\rwaiting for the response", written)
    assert written.endswith("\r\x1b[K")
