"""`python -m tensorwire serve` as a subprocess."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorwire as tw
from tensorwire.cli import main
from tensorwire.server.serve import Options, load

pytestmark = pytest.mark.thread_unsafe(reason="its server is one for all")

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


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "served_here.py").write_text(MODELS)
    number = free_port()
    command = [sys.executable, "-m", "tensorwire", "serve", "served_here:models", "--echo"]
    server = subprocess.Popen([*command, "--port", str(number)], cwd=tmp_path)
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
        (["no_such_module:x"], "cannot load no_such_module:x: No module named"),
        (["json:nothing"], "cannot load json:nothing: module 'json' has no attribute"),
        (["json:__name__"], "json:__name__ must be a mapping of models or an application, not str"),
        (
            ["json:__dict__"],
            "cannot serve json:__dict__: a model must be a function or a Model, not str",
        ),
        (["json:loads", "--echo"], "json:loads is an application: --echo needs a mapping"),
    ],
)
def test_invalid_models_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_uvicorn_gets_memoryviews() -> None:
    assert load(Options(None, with_echo=True)).zero_copy


def test_without_uvicorn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit):
        main(["serve", "--echo"])
    assert "pip install 'tensorwire[serve]'" in capsys.readouterr().err
