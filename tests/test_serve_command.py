"""`tensorwire serve` as a subprocess."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import uvicorn
from uvicorn import Config, Server
from uvicorn.lifespan.off import LifespanOff
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

import tensorwire as tw
from support import client_fixtures
from support.asgi_requests import infer
from support.client_fixtures import Certificate
from support.console_script import programs
from support.http_exchange import connect
from support.memory import status_nbytes, takes
from support.requirements import package
from support.scripts import run_script
from support.serve_process import parse, serving
from tensorwire.cli import main, models, processes, sockets
from tensorwire.cli import serve as serve_module
from tensorwire.cli.models import create, echo
from tensorwire.cli.output import UsageError
from tensorwire.cli.serve import ASGI_PROTOCOL, FAST_PROTOCOL
from tensorwire.cli.sockets import Listener, bind_port, bind_unix_socket, listen
from tensorwire.client import Client, InferenceServerError
from tensorwire.server import InferProtocol, create_app, uvicorn_check
from tensorwire.server.asgi import App
from tensorwire.server.errors import log
from tensorwire.server.uvicorn_asgi import AsgiProtocol, service_of

pytestmark = pytest.mark.thread_unsafe(reason="all tests share one server")
certificate = client_fixtures.certificate

MODELS = """
import numpy as np

def mean(request):
    return {"mean": request["x"].as_numpy().mean(keepdims=True)}

models = {"mean": mean}
"""


@pytest.fixture(autouse=True)
def _restored_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())  # `serve` adds the working directory


def started_configs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the configurations with which a server would have been started."""
    started: list[Any] = []

    def run(server: uvicorn.Server, **_: Any) -> None:
        server.started = True
        started.append(server.config)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    return started


def infer_mean(url: str, n: int = 4, **options: Any) -> Any:
    """Return the mean of the first n numbers, from the model of a server that may still start."""
    with Client(url, timeout=10, **options) as client:
        client.wait_until_ready(timeout=20)
        return client.infer("mean", {"x": np.arange(n, dtype=np.float32)})["mean"].tolist()


OBJECTS = """
from tensorwire.server import Model

def model(request):
    return {"y": 1}

def with_option(request, scale=1):
    return {"y": scale}

async def waits(request):
    return {"y": 1}

def with_context(request, context, scale=1):
    return {"y": scale if context.headers else 0}

class Class:
    def __call__(self, request):
        return {"y": 1}

instance = Class()
declared = Model(model, in_event_loop=True)

def factory():
    return None

def optional(debug=False):
    return None

def wsgi(environ, start_response):
    return []

async def app(scope, receive, send):
    pass

empty = {}
wrong = {"right": model, "a": 5}
named = {5: model}
nothing = None
"""


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory has a module `objects_here`."""
    (tmp_path / "objects_here.py").write_text(OBJECTS)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other.py").write_text(OBJECTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("objects_here", None)


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize(
    "name", ["model", "with_option", "with_context", "waits", "instance", "declared"]
)
def test_one_model(name: str) -> None:
    """A model has the name of the object."""
    app, _, _ = create(parse(f"objects_here:{name}", "--echo"))
    assert sorted(app.models) == sorted(["echo", name])
    frame = tw.encode_request(tw.InferRequest({"x": np.zeros(1)}))
    assert infer(app, name, frame).response()["y"].as_numpy() == 1
    assert app.models[name].in_event_loop == (name == "declared")


def test_standard_streams_that_are_closed() -> None:
    """What is written to their numbers would be sent to a client, or to another process."""
    done = run_script("""
import os
from tensorwire import cli
from tensorwire.cli import serve

are_open = lambda: all(map(os.get_inheritable, range(3)))
serve.serve = lambda chosen, sockets, released: os._exit(7 if are_open() else 1)
os.closerange(0, 3)
cli.main(["serve", "--echo", "--port", "0"])
""")
    assert done.returncode == 7


def test_sigterm_as_soon_as_a_socket_has_a_file(tmp_path: Path) -> None:
    """The file is removed, also if there is a second signal meanwhile."""
    done = run_script(
        """
import os, sys
from tensorwire import cli
from tensorwire.cli import serve

stop, unlink = lambda *_: os.kill(os.getpid(), 15), os.unlink
os.unlink = lambda path: unlink(path) if stop() is None else None
serve.serve = stop
cli.main(["serve", "--echo", "--uds", sys.argv[1]])
""",
        str(tmp_path / "socket"),
    )
    assert (done.returncode, [*tmp_path.iterdir()]) == (-signal.SIGTERM, []), done.stderr


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what the command prints if it does not start."""
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])
    assert caught.value.code == 2
    return capsys.readouterr().err


NEITHER = "is neither a model, which takes one argument, nor an ASGI application, which takes three"


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "no models: pass module:name of a mapping, or --echo"),
        ("no_such_module:x", "no_such_module:x: ModuleNotFoundError: No module named 'no_such_mod"),
        ("json:nothing", "cannot load json:nothing: module 'json' has no attribute"),
        ("json", "cannot load json: module 'json' has no attribute 'models'"),
        ("--port 99999", "argument --port: must be 0 to 65535, not '99999'"),
        ("--port http", "argument --port: must be 0 to 65535, not 'http'"),
        ("--echo --grpc-port x", "argument --grpc-port: must be 0 to 65535, not 'x'"),
        ("--echo --grpc-port 1 --port 1", "--port and --grpc-port must differ: both are 1"),
        ("objects_here:app --grpc-port 0", "not created by create_app, which --grpc-port requires"),
        *(
            (f"objects_here:app {option}", f"is an application: {option.split()[0]} requires a ")
            for option in (
                *("--echo", "--metrics", "--compress-responses", "--max-body 9", "--max-body 0"),
                *("--max-concurrency 9", "--receive-timeout 9"),
            )
        ),
        ("--echo --max-body 0", "cannot serve echo: max_body_nbytes must be 1 or more, not 0"),
        ("objects_here:factory", f"objects_here:factory {NEITHER}"),
        ("objects_here:optional", f"objects_here:optional {NEITHER}"),
        ("objects_here:wsgi", f"objects_here:wsgi {NEITHER}"),
        ("objects_here:Class", f"objects_here:Class {NEITHER}"),
        ("objects_here:empty", "objects_here:empty is an empty mapping: pass module:name of a"),
        ("objects_here:wrong", "model 'a' must be a function or a Model, not int"),
        ("objects_here:named", "the name of a model must be a str, not int"),
        ("objects_here:nothing", "must be a mapping of models, a model or an application, not "),
        ("objects_here.py", "objects_here.py is a file: pass objects_here:models"),
        ("objects_here.py:model", "objects_here.py is a file: pass objects_here:model"),
        ("folder/other.py:model", "is a file: pass other:model in the folder folder"),
        ("./objects_here:model", "'./objects_here' is not the name of a module"),
        (":model", ":model must be module:name; '' is not the name of a module"),
        ("no.py", "cannot load no.py: ModuleNotFoundError: No module named 'no'"),
        ("--echo --workers 0", "argument --workers: '0' is not a positive integer"),
        ("--echo --workers two", "argument --workers: 'two' is not a positive integer"),
        ("--echo --timeout-keep-alive -1", "alive: must be 0 or more seconds, not '-1'"),
        ("--echo --limit-concurrency 0", "argument --limit-concurrency: '0' is not a positive int"),
        (f"--echo --host {'a' * 64}", "--host: cannot listen at aaa"),
        (f"--echo --port {'9' * 5000}", "argument --port: must be 0 to 65535, not '999"),
        ("--echo --uds no/socket", "--uds: cannot listen at no/socket: No such file or directory"),
        ("--echo --uds folder", "--uds: cannot listen at folder: Address already in use"),
        ("--echo --uds objects_here.py", "cannot listen at objects_here.py: Address already"),
        (f"--echo --uds {'a' * 120}", "AF_UNIX path too long"),
        ("--echo --log-config missing.json", "--log-config: "),
        ("--echo --log-config broken.json", "--log-config: "),
        ("--echo --uds-mode 999", "argument --uds-mode: "),
        ("--echo --ssl-keyfile objects_here.py", "--ssl-keyfile requires --ssl-certfile"),
        ("--echo --ssl-certfile no", "--ssl-certfile: cannot read no: No such file or directory"),
        ("--echo --ssl-certfile folder", "--ssl-certfile: cannot read folder: Is a directory"),
        ("--echo --ssl-certfile objects_here.py", "objects_here.py does not contain a certificate"),
    ],
)
def test_one_line_names_the_cause(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "which --grpc-port requires" in message:
        package("grpc")
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: pytest.fail("the server starts"))
    printed = error_of(capsys, *name.split())
    assert message in printed.splitlines()[-1]
    assert "Traceback" not in printed


def test_number_of_processes_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    assert parse().workers == 3
    started_configs(monkeypatch)
    assert main(["serve", "--echo", "--port", "0", "--workers", "1"]) == 0
    assert os.environ["WEB_CONCURRENCY"] == "1"  # for the memory of bodies
    monkeypatch.setenv("WEB_CONCURRENCY", "two")
    assert "argument --workers: 'two' is not a positive integer" in error_of(capsys, "--echo")


def test_files_of_tls(
    objects: Path,
    certificate: Certificate,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = started_configs(monkeypatch)
    key, chain = Path(certificate.key).read_text(), Path(certificate.file).read_text()
    (objects / "both.pem").write_text(f"{key}\n{chain}")
    (objects / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----")
    make = ["genpkey -algorithm RSA -out key.pem"]
    make.append(f"pkcs8 -topk8 -in {certificate.key} -out encrypted.pem -passout pass:secret")
    for arguments in make:
        subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True)
    for files, problem in (
        ([certificate.file, certificate.key], None),
        (["both.pem"], None),
        ([certificate.file], f"--ssl-certfile: {certificate.file} does not contain a private key"),
        ([certificate.file, certificate.file], "--ssl-keyfile: "),
        ([certificate.key], f"{certificate.key} does not contain a certificate in PEM format"),
        (["broken.pem", certificate.key], "--ssl-certfile: the certificate and the private key"),
        ([certificate.file, "key.pem"], "cannot be used: KEY_VALUES_MISMATCH"),
        ([certificate.file, "encrypted.pem"], "--ssl-keyfile: the private key is encrypted"),
    ):
        options = ["--ssl-certfile", files[0]]
        options += ["--ssl-keyfile", files[1]] if len(files) == 2 else []
        if problem is None:
            assert main(["serve", "--echo", "--port", "0", *options]) == 0
            config = started.pop()  # a model may change the folder
            assert config.ssl_certfile == os.path.abspath(files[0])
            assert config.ssl_keyfile == os.path.abspath(files[-1])
        else:
            assert problem in error_of(capsys, "--echo", *options).splitlines()[-1]
            assert started == []


def test_socket_of_another_server_is_not_removed(
    objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as other:

        def replace(*_: Any, **__: Any) -> None:
            (objects / "socket").unlink()
            other.bind("socket")

        monkeypatch.setattr(uvicorn.Server, "run", replace)
        main(["serve", "--echo", "--uds", "socket"])
        assert (objects / "socket").is_socket()


def test_socket_whose_queue_is_full(objects: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its server is suspended, for example."""
    with socket.socket(socket.AF_UNIX) as other, ExitStack() as stack:
        other.bind("socket")
        other.listen(0)
        with suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect("socket")
        problem = "--uds: cannot listen at socket: another server listens there"
        assert problem in error_of(capsys, "--echo", "--uds", "socket")


def test_server_that_listens_while_this_one_loads() -> None:
    first = bind_port("--port", "127.0.0.1", 0, socket.SO_REUSEADDR)
    port = first[0].getsockname()[1]
    second = bind_port("--port", "127.0.0.1", port, socket.SO_REUSEADDR)
    with first[0], second[0]:
        listen(first, "127.0.0.1", port)
        text = f"^--port: cannot listen at 127.0.0.1:{port}: Address already in use$"
        with pytest.raises(UsageError, match=text):
            listen(second, "127.0.0.1", port)


def test_socket_of_a_killed_server_is_replaced(
    objects: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started_configs(monkeypatch)
    with socket.socket(socket.AF_UNIX) as old:
        old.bind("socket")
        old.listen()
        printed = error_of(capsys, "--echo", "--uds", "socket")
        assert "--uds: cannot listen at socket: another server listens there" in printed
        assert (objects / "socket").is_socket()
    assert main(["serve", "--echo", "--uds", "socket"]) == 0
    assert not (objects / "socket").exists()


def test_servers_that_start_at_once(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them replaces the socket of a killed server. The other one finds that."""
    unlink = os.unlink

    def unlink_late(path: str) -> None:
        time.sleep(0.1)
        unlink(path)

    monkeypatch.setattr(os, "unlink", unlink_late)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind("socket")
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(bind_unix_socket, "socket", 0o600) for _ in range(2)]
    bound = [each.result()[0] for each in found if each.exception() is None]
    with bound.pop():
        assert bound == []


def test_listener_when_no_file_descriptor_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio logs it once, and tries again after a second."""
    errors: list[Any] = []

    def accept(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async def connect_to(listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        async with await loop.create_server(asyncio.Protocol, sock=listener, backlog=9):
            with socket.create_connection(listener.getsockname()):
                while not errors:
                    await asyncio.sleep(0.001)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with Listener() as listener:
        listener.bind(("127.0.0.1", 0))
        asyncio.run(connect_to(listener))
    assert len(errors) == 1


@pytest.mark.skipif(sys.platform == "darwin", reason="the last process to close it refuses them")
def test_connections_are_refused_for_all_processes() -> None:
    """One of them may be blocked, and has the socket open."""
    with Listener() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with Listener(fileno=os.dup(listener.fileno())) as other:
            other.setblocking(False)
            assert other.accept_rest() == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_busy_event_loop_accepts_connections_no_longer_than_others() -> None:
    """A model that runs in each turn, for a new client, does not prolong a shutdown."""
    server = processes.Server(parse("--echo"), ExitStack())
    loop = asyncio.get_running_loop()
    running: list[asyncio.Handle] = []

    def run_model() -> None:
        time.sleep(0.2)
        server.server_state.connections.add(Mock())
        running.append(loop.call_soon(run_model))

    running.append(loop.call_soon(run_model))
    with takes(0.5, 2):
        await server._accept_what_has_arrived()
    running[-1].cancel()


def test_server_when_no_file_descriptor_is_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is logged when it begins: uvloop and grpcio do not tell."""
    server = processes.Server(parse("--echo"), ExitStack())

    def fail(_: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def look(n: int) -> None:
        for _ in range(n):
            server.last_notified = 0
            await server.on_tick(0)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", fail)
            asyncio.run(look(3))
        asyncio.run(look(3))
    problem = "ERROR tensorwire.server: new connections fail: Too many open files\n"
    assert capsys.readouterr().err.count(problem) == 2
    monkeypatch.setattr(os, "dup", fail)
    monkeypatch.setattr(log, "error", lambda *_: fail(0))  # it opens a file
    asyncio.run(look(1))


@pytest.mark.parametrize("n_turns", [10, 11])  # there is something to accept in every second one
@pytest.mark.parametrize("all_stop", [True, False])
async def test_connections_that_are_accepted_until_a_server_stops_to_listen(
    n_turns: int, all_stop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio drops those that are accepted in the turn before the listener is closed.

    If other processes go on, the rest is left to them, and no connection is refused.
    """
    monkeypatch.setattr(processes, "_N_ACCEPT_TURNS", n_turns)
    accepted: list[Any] = []
    clients: list[socket.socket] = []

    class Counting(Listener):
        def accept(self) -> tuple[socket.socket, Any]:
            accepted.append(found := super().accept())
            return found

        def accept_rest(self) -> list[socket.socket]:
            accepted.extend(found := super().accept_rest())
            return found

    def connect() -> None:
        try:
            clients.append(client := socket.create_connection(address))
        except ConnectionRefusedError:
            refused.append(address)
            return
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        if listener.fileno() < 0:
            late.append(client)
        if len(late) < 10:  # these are not accepted
            connecting.append(loop.call_soon(connect))

    loop = asyncio.get_running_loop()
    connecting: list[asyncio.Handle] = []
    late: list[socket.socket] = []
    refused: list[Any] = []
    chosen = parse("--echo", "--timeout-graceful-shutdown", "10")
    chosen.http = FAST_PROTOCOL
    server = processes.Server(chosen, ExitStack())
    server.all_stop = lambda: all_stop
    server.config.app = lambda: create_app({})
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    with Counting() as listener, ExitStack() as opened:
        listener.bind(("127.0.0.1", 0))
        address = listener.getsockname()
        listener.listen(1000)
        listener.setblocking(False)
        opened.enter_context(listener.dup())  # as that of another process
        await server.startup([listener])
        connect()
        await server.shutdown([listener])
        connecting[-1].cancel()
        n_replies = 0
        for client in clients:
            opened.enter_context(client).setblocking(False)
            with suppress(BlockingIOError):  # nobody has accepted it
                n_replies += client.recv(100).startswith(b"HTTP/1.1 200")
    assert 10 < n_replies == len(accepted)
    # If no connection was refused, the last ones wait in the queue, which would be that of another
    # process.
    assert bool(refused) is (all_stop and sys.platform == "linux")
    assert n_replies == len(clients) if refused else n_replies < len(clients)


def test_client_that_connects_to_a_unix_socket_at_the_last_moment(tmp_path: Path) -> None:
    """Another process, which is blocked, would accept it late, or never."""
    path = str(tmp_path / "socket")

    class LateListener(Listener):
        def shutdown(self, how: int) -> None:
            late.connect(path)
            super().shutdown(how)

    with LateListener(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as late:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        [accepted] = listener.accept_rest()
        accepted.close()


def test_folder_that_is_locked(
    objects: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sockets, "_LOCK_SECONDS", 0.1)
    folder = os.open(".", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    printed = error_of(capsys, "--echo", "--uds", "socket")
    os.close(folder)
    assert "--uds: cannot listen at socket: another process has locked the folder" in printed
    assert not (objects / "socket").exists()


WITHOUT_TEXT = "raise type('Error', (Exception,), {'__str__': lambda self: exit()})\n"
DIVISION = "ZeroDivisionError: division by zero\n"


def raising(base: str, members: str) -> str:
    """Return a line of a module: an object whose methods or properties raise an exception."""
    return (
        "from collections import *; fail = lambda *_: 1 / 0; "
        f"models = type('C', ({base},), dict({members}))()\n"
    )


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("models = undefined\n", "NameError: name 'undefined' is not defined\n", "undefined"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named", "no_such_module"),
        ("import json\njson.loads('{')\n", "JSONDecodeError: Expecting pro", "json.loads('{')"),
        ("models = {\n", "SyntaxError: '{' was never closed (failing.py, line 1)", ""),
        ("raise SystemExit\n", "SystemExit\n", "raise SystemExit"),
        ("import sys\nsys.exit('no GPU')\n", "SystemExit: no GPU\n", "sys.exit('no GPU')"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt\n", "raise KeyboardInterrupt"),
        ("raise BaseException(1)\n", "BaseException: 1\n", "raise BaseException(1)"),
        (WITHOUT_TEXT, "Error: its text cannot be read\n", ""),
        ("__getattr__ = lambda name: 1 / 0\n", DIVISION, "1 / 0"),
        (raising("UserDict", "__iter__=fail, __len__=lambda _: 1"), DIVISION, "()"),
        (raising("UserDict", "__len__=fail"), DIVISION, "()"),
        (raising("UserDict", "__class__=property(fail)"), DIVISION, "()"),
        (raising("object", "__class__=property(fail)"), DIVISION, "()"),
        (raising("object", "__call__=fail, __signature__=property(fail)"), DIVISION, "()"),
    ],
)
def test_line_of_a_module_that_fails(
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
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    message = error_of(capsys, "failing:models")
    assert f"cannot load failing:models: {problem}" in message
    assert "importlib" not in message
    if line:
        assert f"\n  {module}, line {text.count(chr(10))}: " in message
        assert f"{line}\n" in message


@pytest.mark.parametrize("interface", ["fast", "asgi"])
def test_options_reach_uvicorn_and_the_application(
    interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = started_configs(monkeypatch)
    options = ["--max-body", "1000", "--receive-timeout", "2.5", "--limit-concurrency", "7"]
    options += ["--max-concurrency", "3", "--compress-responses", "--max-body-memory", "2000"]
    options += ["--timeout-keep-alive", "8", "--timeout-graceful-shutdown", "9"]
    assert main(["serve", "--echo", "--port", "0", "--http", interface, *options]) == 0
    [config] = started
    config.load()
    app = service_of(config.loaded_app)
    assert app is not None
    assert (app.max_body_nbytes, app.receive_timeout) == (1000, 2.5)
    assert app.concurrency.max_concurrency == 3
    assert app.compress_responses
    assert app.zero_copy
    assert app.body_memory.max_nbytes == 2000
    assert config.http == (FAST_PROTOCOL if interface == "fast" else ASGI_PROTOCOL)
    assert (config.ws, config.limit_concurrency) == ("none", 7)
    assert (config.timeout_keep_alive, config.timeout_graceful_shutdown) == (8, 9)
    assert sys.getswitchinterval() == pytest.approx(0.001)


def test_model_of_the_user_with_the_name_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find", lambda _: {"echo": infer_mean})
    model = create(parse("module:models", "--echo"))[0].routes["/v2/models/echo/infer"][1]
    assert model.model.function is infer_mean


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ipv6_address_in_the_start_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started_configs(monkeypatch)
    assert main(["serve", "--echo", "--host", "::1", "--port", "0"]) == 0
    assert re.search(r"serves echo at http://\[::1\]:[1-9]", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("program", "arguments", "path"),
    [
        ("tensorwire", "--echo", "InferProtocol on uvicorn"),
        ("tensorwire", "--workers 2", "InferProtocol on uvicorn"),
        ("python -m tensorwire", "--http asgi", "ASGI (as requested) on uvicorn"),
        (
            *("python -m tensorwire", "--workers 2 --access-log --max-body 1000"),
            "InferProtocol on uvicorn",
        ),
    ],
)
def test_start_message_and_options(tmp_path: Path, program: str, arguments: str, path: str) -> None:
    """The module of the models is in the working directory."""
    command = programs(tmp_path / "bin")[program]
    options = ["served_here:models", *arguments.split()]
    with serving(tmp_path, *options, models=MODELS, program=command) as server:
        assert infer_mean(server.address) == [1.5]
        if "--max-body" in arguments:
            with pytest.raises(InferenceServerError, match=r"413: the body is .* is 1000$"):
                infer_mean(server.address, n=300)
        log = server.stop()
    names = "echo, mean" if "--echo" in arguments else "mean"
    processes = "2 processes" if "--workers" in arguments else "1 process"
    first = f"tensorwire {tw.__version__} serves {names} at http://{server.address} with {path}"
    assert re.search(rf"^{re.escape(first)}.*{processes}$", log, re.MULTILINE), log
    assert ("POST /v2/models/mean/infer HTTP/1.1" in log) == ("--access-log" in arguments)


@pytest.mark.parametrize("kind", ["Unix socket", "TLS"])
def test_other_addresses(tmp_path: Path, certificate: Certificate, kind: str) -> None:
    options = ["--ssl-keyfile", certificate.key, "--ssl-certfile", certificate.file]
    options += ["--limit-concurrency", "1"]
    if kind == "Unix socket":
        options = ["--uds", str(tmp_path / "socket"), "--uds-mode", "600"]
    context = certificate.trusting() if kind == "TLS" else None
    with serving(tmp_path, "served_here:models", *options, models=MODELS) as server:
        url = f"https://{server.address}" if kind == "TLS" else f"unix:{tmp_path}/socket"
        with connect(server.address) if kind == "TLS" else nullcontext() as silent:
            assert infer_mean(url, ssl_context=context) == [1.5]
            assert silent is None or silent.socket.recv(1) == b""  # the next handshake has ended it
        if kind == "Unix socket":
            assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
        assert f"serves mean at {url} with InferProtocol" in server.stop()


@pytest.mark.slow(reason="it starts processes")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this machine has no /proc")
@pytest.mark.no_sanitizers(reason="it measures the memory of processes")
@pytest.mark.parametrize("interface", ["fast", "asgi"])
def test_memory_of_a_64_mb_echo(tmp_path: Path, interface: str) -> None:
    """The server needs memory for one body and at most 8 MB. The response refers to the body."""
    sent = np.arange(16 << 20, dtype=np.float32)
    with (
        serving(tmp_path, "--echo", "--http", interface) as server,
        Client(server.address) as client,
    ):
        client.infer("echo", {"x": sent[:1000]})
        before = status_nbytes("VmHWM", server.process.pid)
        for _ in range(3):
            found = client.infer("echo", {"x": sent})["x"].as_numpy()
            assert found.ctypes.data % 64 == 0
            assert np.array_equal(found, sent)
        assert status_nbytes("VmHWM", server.process.pid) - before < sent.nbytes + (8 << 20)


def test_application_for_which_asgi_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the application was not created by create_app"
    for app, expected in (
        (create_app({"a": echo, "b": echo}), ["a, b", None]),
        (GuardedApp({"a": echo}), ["module:app", reason]),
        (lambda scope, receive, send: None, ["module:app", reason]),
    ):
        monkeypatch.setattr(models, "find", lambda _, app=app: app)
        assert create(parse("module:app")) == (app, *expected)


def hide(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Make objects look as if an attribute had another name."""

    def missing(_: object) -> None:
        raise AttributeError(f"{owner.__name__} has no {name}")

    monkeypatch.setattr(owner, name, property(missing, lambda *_: None), raising=False)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (owner, name)
        for owner in (Config, Server, ServerState, LifespanOff, HttpToolsProtocol)
        for name in uvicorn_check.USED[owner.__name__]
    ]
    + [(ServerState, "default_headers"), (ServerState, "total_requests"), (Config, "loaded_app")],
)
def test_uvicorn_whose_private_parts_are_renamed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "")
    protocol = ASGI_PROTOCOL if owner is HttpToolsProtocol else FAST_PROTOCOL
    assert uvicorn_check.problem_with_uvicorn(protocol) is None
    hide(monkeypatch, owner, name)
    problem = uvicorn_check.problem_with_uvicorn(protocol)
    assert problem is not None and f"AttributeError: {owner.__name__} has no {name} (" in problem


@pytest.mark.parametrize(
    ("owner", "options"),
    [(ServerState, []), (HttpToolsProtocol, ["--http", "asgi"])],
    ids=["all", "AsgiProtocol"],
)
def test_uvicorn_with_which_nothing_works(
    owner: type,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server would fail at its end, or clients could smuggle requests."""
    hide(monkeypatch, owner, uvicorn_check.USED[owner.__name__][-1])
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: pytest.fail("the server starts"))
    last_line = error_of(capsys, "--echo", "--port", "0", *options).splitlines()[-1]
    assert f" does not work: AttributeError: {owner.__name__} has no " in last_line


def test_uvicorn_whose_requests_have_other_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(uvicorn_check.USED, "RequestResponseCycle", ("renamed",))
    problem = uvicorn_check.problem_with_uvicorn(ASGI_PROTOCOL)
    assert problem is not None and "has no attribute 'renamed'" in problem


def test_uvicorn_that_responds_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(App, "__call__", GuardedApp.__call__)
    problem = uvicorn_check.problem_with_uvicorn(ASGI_PROTOCOL)
    assert problem is not None and "b'HTTP/1.1 500 Internal Server Error" in problem


def test_uvicorn_with_which_the_protocol_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = started_configs(monkeypatch)
    monkeypatch.setattr(
        InferProtocol, "buffer_updated", Mock(side_effect=AttributeError("renamed"))
    )
    monkeypatch.setattr(uvicorn, "__version__", "9.8.7")
    assert main(["serve", "--echo", "--port", "0"]) == 0
    assert started[0].http == ASGI_PROTOCOL
    printed, logged = capsys.readouterr()
    assert "with ASGI (InferProtocol does not work with uvicorn 9.8.7) on uvicorn 9.8.7" in printed
    assert re.search(r"work with uvicorn 9\.8\.7: .* \(tested with uvicorn 0\.\d+ to 0\.", logged)


def test_required_version_of_uvicorn_is_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    oldest = ".".join(map(str, uvicorn_check.TESTED_UVICORN[0]))
    assert f"uvicorn[standard]>={oldest}" in project["optional-dependencies"]["serve"]


async def guard(scope: Any, receive: Any, send: Any) -> None:
    raise PermissionError


class GuardedApp(App):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise PermissionError


@pytest.mark.parametrize("app", [guard, GuardedApp({"a": echo})])
def test_protocol_of_another_application(app: Any) -> None:
    config = uvicorn.Config(app, ws="none", log_config=None)
    state: Any = uvicorn.server.ServerState()
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        protocol: Any = InferProtocol(config, state, {}, loop)
        assert isinstance(protocol, AsgiProtocol)
        assert (protocol.service is None) is (app is guard)  # it has the limits of time


def test_signals_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ignores SIGTERM for the first process of a container until there is a handler.

    SIGHUP would end the first of several processes.
    """
    handled: list[int] = []

    def import_module(_: str) -> None:
        assert handled == [signal.SIGTERM, signal.SIGHUP]
        raise ImportError

    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(signal, "signal", lambda number, _: handled.append(number))
    monkeypatch.setattr(serve_module, "import_module", import_module)
    with pytest.raises(UsageError):
        serve_module.run(parse("--workers", "2"))


@pytest.mark.parametrize("n_late", [0, 20, 10**6])
@pytest.mark.parametrize("is_grpc", [True, False])
async def test_what_has_arrived_is_accepted_before_a_shutdown(
    is_grpc: bool, n_late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until nothing is left, but not for ever if others arrive all the time."""
    monkeypatch.setattr(processes, "_ACCEPT_SECONDS", 0)
    monkeypatch.setattr(processes, "_MAX_ACCEPT_SECONDS", 20 if n_late == 20 else 0.1)
    server: Any = Mock(server_state=Mock(connections={1}), calls=Mock(n_begun=1))
    accepted: list[object] = []

    async def accept() -> None:
        while len(accepted) < n_late:
            accepted.append(object())
            if is_grpc:
                server.calls.n_begun += 1
            else:
                server.server_state.connections.add(accepted[-1])
            await asyncio.sleep(0)

    accepting = asyncio.ensure_future(accept())
    async with asyncio.timeout(10):
        await processes.Server._accept_what_has_arrived(server)
    assert accepting.done() is (n_late != 10**6)
    accepting.cancel()


async def test_connections_that_are_made_during_a_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn does not tell them."""
    monkeypatch.setattr(processes, "_TELL_SECONDS", 0.001)
    first, late = Mock(), Mock()
    server: Any = Mock(server_state=Mock(connections={first, late}))
    telling = asyncio.ensure_future(processes.Server._tell_late_connections(server, {first}))
    await asyncio.sleep(0.1)
    telling.cancel()
    first.shutdown.assert_not_called()
    late.shutdown.assert_called_once()
