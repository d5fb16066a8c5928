"""`tensorwire serve` as a subprocess."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

import tensorwire as tw
from support import client_fixtures
from support.client_fixtures import Certificate
from support.console_script import PROGRAMS, programs
from tensorwire import digests
from tensorwire.cli import main
from tensorwire.digests import source_of_imported
from tensorwire.server import create_app, serve
from tensorwire.server.serve import FAST_PROTOCOL, Options, create, echo, load, why_not_fast

pytestmark = pytest.mark.thread_unsafe(reason="all tests share one server")
certificate = client_fixtures.certificate

MODELS = """
import numpy as np

def mean(request):
    return {"mean": request["x"].as_numpy().mean(keepdims=True)}

models = {"mean": mean}
broken = None
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def _restored_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())  # `serve` adds the working directory


@pytest.fixture(params=[[], ["--workers", "2"]], ids=["one process", "two processes"])
def options(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


@pytest.fixture(params=PROGRAMS)
def port(request: pytest.FixtureRequest, options: list[str], tmp_path: Path) -> Iterator[int]:
    """The port of a server of models in the working directory."""
    (tmp_path / "served_here.py").write_text(MODELS)
    number = free_port()
    program = programs(tmp_path / "bin")[request.param]
    command = [*program, "serve", "served_here:models", "--echo", "--port", str(number), *options]
    server = subprocess.Popen(command, cwd=tmp_path)
    try:
        wait_until_ready(number, server)
        yield number
        server.send_signal(signal.SIGINT)
        server.wait(10)
    finally:
        server.kill()


def wait_until_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"the server did not start: exit status {server.poll()}")


def test_models_and_echo(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for model, output, expected in (("mean", "mean", [1.5]), ("echo", "x", [0, 1, 2, 3])):
        frame = tw.encode_request(
            tw.InferRequest(
                [tw.Tensor("x", np.arange(4, dtype=np.float32))],
                parameters={"binary_data_output": True},
            )
        )
        path = f"/v2/models/{model}/infer"
        connection.request("POST", path, body=frame, headers=frame.headers)
        reply = connection.getresponse()
        response = tw.decode_response(reply.read(), tw.header_length(reply.headers))
        assert response[output].as_numpy().tolist() == expected
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no models: pass module:name of a mapping, or --echo"),
        (
            ["no_such_module:x"],
            "cannot load no_such_module:x: ModuleNotFoundError: No module named 'no_such_module'\n",
        ),
        (["json:nothing"], "cannot load json:nothing: module 'json' has no attribute"),
        (
            ["json:detect_encoding"],
            "json:detect_encoding is not an application: it does not take three arguments. If it",
        ),
        (["json:__name__"], "json:__name__ must be a mapping of models or an application, not str"),
        (
            ["json:__dict__"],
            "cannot serve json:__dict__: a model must be a function or a Model, not str",
        ),
        (["--port", "99999"], "argument --port: must be 0 to 65535, not '99999'"),
        (["--port", "http"], "argument --port: must be 0 to 65535, not 'http'"),
        (["json:loads", "--echo"], "json:loads is an application: --echo requires a mapping"),
        (["json:loads", "--max-body", "9"], "application: --max-body requires a mapping"),
        (["json:loads", "--max-concurrency", "9"], "application: --max-concurrency requires a"),
        (["json:loads", "--receive-timeout", "9"], "application: --receive-timeout requires a"),
        (["json:loads", "--max-body", "0"], "application: --max-body requires a mapping"),
        (["--echo", "--max-body", "0"], "cannot serve echo: max_body must be 1 or more, not 0"),
        (["--echo", "--receive-timeout", "0"], "echo: receive_timeout must be a positive number"),
        (["--echo", "--max-concurrency", "0"], "max_concurrency must be 1 or more, not 0"),
        (
            ["--echo", "--ssl-certfile", "/no/file"],
            "--ssl-certfile: cannot read /no/file: No such file or directory\n",
        ),
        (
            ["--echo", "--ssl-certfile", "/dev/null", "--ssl-keyfile", "/no/file"],
            "--ssl-keyfile: cannot read /no/file: No such file or directory\n",
        ),
        (["json"], "cannot load json: module 'json' has no attribute 'models'"),
    ],
)
def test_invalid_models_are_rejected(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: pytest.fail("the server starts"))
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("models = undefined\n", "NameError: name 'undefined' is not defined\n", "undefined"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named", "no_such_module"),
        (
            "import json\njson.loads('{')\n",
            "JSONDecodeError: Expecting property",
            "json.loads('{')",
        ),
        ("models = {\n", "SyntaxError: '{' was never closed (failing.py, line 1)", ""),
    ],
)
def test_line_of_a_module_that_cannot_be_imported(
    text: str,
    problem: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = tmp_path / "failing.py"
    module.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit):
        main(["serve", "failing:models"])
    message = capsys.readouterr().err
    assert f"cannot load failing:models: {problem}" in message
    assert "importlib" not in message
    if line:
        assert f"\n  {module}, line {text.count(chr(10))}: " in message
        assert f"{line}\n" in message


def test_uvicorn_gets_memoryviews() -> None:
    assert load(Options(None, with_echo=True)).zero_copy


@pytest.mark.parametrize("interface", ["fast", "asgi"])
def test_options_reach_uvicorn_and_the_application(
    interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: found.update(options))
    monkeypatch.setenv("_TENSORWIRE_SERVE", "")
    options = ["--max-body", "1000", "--receive-timeout", "2.5", "--limit-concurrency", "7"]
    options += ["--max-concurrency", "3"]
    assert main(["serve", "--echo", "--http", interface, *options]) == 0
    app = create()
    assert (app.max_body, app.receive_timeout) == (1000, 2.5)
    assert app.workers.max_concurrency == 3
    assert found == {
        "factory": True,
        "http": FAST_PROTOCOL if interface == "fast" else "h11",
        "ws": "none",
        "host": "127.0.0.1",
        "port": 8000,
        "uds": None,
        "workers": None,
        "ssl_certfile": None,
        "ssl_keyfile": None,
        "limit_concurrency": 7,
        "access_log": False,
        "log_level": "info",
    }


def test_model_of_the_user_with_the_name_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find", lambda _: {"echo": create})
    model = load(Options("module:models", with_echo=True)).routes["/v2/models/echo/infer"][1]
    assert model.model.function is create


@pytest.mark.parametrize(
    ("host", "expected"), [("::1", "http://[::1]:80"), ("127.0.0.1", "http://127.0.0.1:80")]
)
def test_address_in_the_start_message(host: str, expected: str) -> None:
    assert serve.format_addresses(Options(None, True), {"host": host, "port": 80}) == expected


def test_without_uvicorn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit):
        main(["serve", "--echo"])
    assert "pip install 'tensorwire[serve]'" in capsys.readouterr().err


def serve_and_ask(
    tmp_path: Path, arguments: list[str], ask: Callable[[subprocess.Popen[bytes]], Any]
) -> str:
    """Run `serve` while `ask` uses it, and return what it prints."""
    (tmp_path / "served_here.py").write_text(MODELS)
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tensorwire", "serve", *arguments],
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            ask(server)
            server.send_signal(signal.SIGTERM)
            server.wait(20)
        finally:
            server.kill()
    return (tmp_path / "log").read_text()


def infer_mean(connection: http.client.HTTPConnection) -> list[Any]:
    frame = tw.encode_request(tw.InferRequest([tw.Tensor("x", np.arange(4, dtype=np.float32))]))
    connection.request("POST", "/v2/models/mean/infer", body=bytes(frame), headers=frame.headers)
    reply = connection.getresponse()
    response = tw.decode_response(reply.read(), tw.header_length(reply.headers))
    connection.close()
    return list(response["mean"].as_numpy().tolist())


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ([], "InferProtocol on uvicorn"),
        (["--http", "asgi"], "ASGI (as requested) on uvicorn"),
        (["--workers", "2", "--access-log", "--max-body", "1000"], "InferProtocol on uvicorn"),
    ],
)
def test_start_message_and_options(tmp_path: Path, arguments: list[str], path: str) -> None:
    number = free_port()

    def ask(server: subprocess.Popen[bytes]) -> None:
        wait_until_ready(number, server)
        address = f"127.0.0.1:{number}"
        assert infer_mean(http.client.HTTPConnection(address, timeout=10)) == [1.5]
        if "--max-body" in arguments:
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("POST", "/v2/models/mean/infer", body=bytes(1001))
            assert connection.getresponse().status == 413
            connection.close()

    log = serve_and_ask(tmp_path, ["served_here:models", "--port", str(number), *arguments], ask)
    processes = "2 processes" if "--workers" in arguments else "1 process"
    first = f"tensorwire {tw.__version__} serves mean at http://127.0.0.1:{number} with {path}"
    assert any(line.startswith(first) and line.endswith(processes) for line in log.splitlines()), (
        log
    )
    assert ("POST /v2/models/mean/infer HTTP/1.1" in log) == ("--access-log" in arguments)


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a Unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self.host)


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    def ask(server: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        connection = UnixConnection("x")
        connection.host = str(path)
        assert infer_mean(connection) == [1.5]

    log = serve_and_ask(tmp_path, ["served_here:models", "--uds", str(path)], ask)
    assert f"serves mean at unix:{path} with InferProtocol" in log


def test_certificate(tmp_path: Path, certificate: Certificate) -> None:
    number = free_port()

    def ask(server: subprocess.Popen[bytes]) -> None:
        wait_until_ready(number, server)
        address, context = f"127.0.0.1:{number}", certificate.trusting()
        connection = http.client.HTTPSConnection(address, timeout=10, context=context)
        assert infer_mean(connection) == [1.5]

    options = ["--ssl-keyfile", certificate.key, "--ssl-certfile", certificate.file]
    log = serve_and_ask(tmp_path, ["served_here:models", "--port", str(number), *options], ask)
    assert f"serves mean at https://127.0.0.1:{number} with InferProtocol" in log


def test_application_for_which_asgi_is_used() -> None:
    assert why_not_fast(create_app({"echo": echo})) is None
    assert "not created by create_app" in str(why_not_fast(lambda scope, receive, send: None))


@pytest.mark.parametrize("change", [None, "on_tick", "shutdown"])
def test_other_versions_of_uvicorn(monkeypatch: pytest.MonkeyPatch, change: str | None) -> None:
    """A version is accepted unless a function has changed that InferProtocol relies on."""

    def source(module: str) -> str | None:
        found = source_of_imported(module)
        if found is not None and change is not None:
            found = found.replace(f"async def {change}(self", f"async def {change}(self, new=1")
        return found

    monkeypatch.setattr(uvicorn, "__version__", "9.0")
    monkeypatch.setattr(digests, "source_of_imported", source)
    monkeypatch.delitem(sys.modules, "tensorwire.server.uvicorn", raising=False)
    found = why_not_fast(create_app({"echo": echo}))
    if change is None:
        assert found is None
        return
    assert str(found) == (
        "InferProtocol was tested with uvicorn 0.46 to 0.54. In version 9.0, "
        f"uvicorn.server:Server.{change} is different"
    )


@pytest.mark.parametrize("package", ["httptools", "uvicorn"])
def test_without_a_package(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.delitem(sys.modules, "tensorwire.server.uvicorn", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    reason = f"InferProtocol requires {package}: pip install 'tensorwire[serve]'"
    assert why_not_fast(create_app({"echo": echo})) == reason
    with pytest.raises(ImportError, match="requires") as caught:
        from tensorwire.server import InferProtocol  # noqa: F401, PLC0415
    assert str(caught.value) == reason
