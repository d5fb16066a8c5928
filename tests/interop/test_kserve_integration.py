"""KServe with the integration: its server with and without it, and several clients.

The server listens on the loopback interface.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorwire as tw
from interop import environment, programs
from interop.test_matrix import CLIENTS, Call, Rejected
from interop.triton_server import free_ports
from tensorwire.client import Client

HERE = Path(__file__).parent
LOOPBACK = "127.0.0.1"
START_SECONDS = 180.0
CLIENT_SECONDS = 600.0

MODES = {  # mode and workers of kserve_server.py
    "plain": ("plain", 1),
    "installed": ("installed", 1),
    "installed, 2 workers": ("installed", 2),
}


class Ports(NamedTuple):
    http: int
    grpc: int


class Running:
    """KServe's servers, each started on first use."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python = python
        self.folder = folder
        self.stack = ExitStack()
        self.ports: dict[str, Ports] = {}

    def __getitem__(self, mode: str) -> Ports:
        if mode not in self.ports:
            self.ports[mode] = self.stack.enter_context(self.server(mode))
        return self.ports[mode]

    @contextmanager
    def server(self, mode: str) -> Iterator[Ports]:
        ports = Ports(*free_ports(2))
        arguments = [*map(str, MODES[mode]), *map(str, ports)]
        command = [str(self.python), str(HERE / "kserve_server.py"), *arguments]
        log, environ = self.folder / f"{mode}.log", environment.clean_environ()
        with programs.started(command, log, env=environ) as program:
            urls = [f"http://{LOOPBACK}:{ports.http}", f"grpc://{LOOPBACK}:{ports.grpc}"]
            programs.wait_until_ready(urls, program, START_SECONDS)
            yield ports


@pytest.fixture(scope="module")
def python() -> Path:
    return programs.interpreter("kserve")


@pytest.fixture(scope="module")
def running(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    started = Running(python, tmp_path_factory.mktemp("kserve"))
    with started.stack:
        yield started


def infer(port: int, model: str, x: Any) -> tw.InferResponse:
    with Client(f"{LOOPBACK}:{port}") as client:
        return client.infer(model, {"x": x})


# --- in KServe's process ---


def test_in_the_process_of_kserve(python: Path, tmp_path: Path) -> None:
    """Run the tests inside_kserve_*.py, which use KServe's classes directly."""
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tmp_path}"]
    files = map(str, sorted(HERE.glob("inside_kserve_*.py")))
    programs.run([str(python), "-m", "pytest", *options, *files], tmp_path, CLIENT_SECONDS)


# --- KServe's clients ---


@pytest.mark.parametrize("client", ["plain", "installed"])
@pytest.mark.parametrize("mode", MODES)
def test_kserve_clients(
    running: Running, python: Path, tmp_path: Path, mode: str, client: str
) -> None:
    """REST and gRPC, with binary, JSON and mixed tensors: the response equals the request."""
    ports = map(str, running[mode])
    command = [str(python), str(HERE / "kserve_client.py"), client, *ports]
    seen = json.loads(programs.run(command, tmp_path, CLIENT_SECONDS).splitlines()[-1])
    sent, found = seen["sent"], seen["found"]
    assert set(found) == {"binary", "binary in", "JSON in", "JSON", "mixed", "raw"}
    for how, outputs in found.items():
        assert outputs == {name: sent[name] for name in outputs}, how
    assert set(found["binary"]) == set(found["raw"]) == set(sent)


# --- other clients ---

TEXT = np.array([b"a cat", "ein Hündchen".encode(), b""], object)
CALLS = {
    "binary": Call("echo", {"x": np.arange(6, dtype="f4").reshape(2, 3), "words": TEXT}),
    "JSON": Call(
        "echo",
        {"x": np.arange(6, dtype="f4").reshape(2, 3), "words": TEXT},
        json_inputs=frozenset(["x", "words"]),
        outputs=(("x", False), ("words", False)),
    ),
    "mixed": Call(
        "echo",
        {"x": np.arange(6, dtype="f4"), "words": TEXT},
        json_inputs=frozenset(["words"]),
        outputs=(("words", True), ("x", False)),
    ),
    "FP16": Call("echo", {"x": np.array([1.5, 65504], "f2")}),
    "helped FP64": Call("helped", {"x": np.arange(3.0)}),
    "helped BYTES": Call("helped", {"x": TEXT}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("client", ["tensorwire", "tritonclient"])
@pytest.mark.parametrize("mode", MODES)
def test_other_clients(running: Running, mode: str, client: str, call: Call) -> None:
    is_json = call.json_inputs == set(call.inputs)
    if is_json and (mode, client) == ("plain", "tritonclient"):
        with pytest.raises(Rejected, match="header is missing"):  # the client sends no Content-Type
            CLIENTS[client](running[mode].http, call)
        return
    found = CLIENTS[client](running[mode].http, call)
    if call.model == "helped":  # the name that KServe's helper gives to its only output
        assert set(found) == {"output-0"}
        found = {"x": found["output-0"]}
    assert set(found) == set(call.inputs)
    for name, array in call.inputs.items():
        assert found[name].tolist() == array.tolist()
        assert found[name].dtype == array.dtype


# --- what the integration adds ---


def seen(port: int) -> list[bytes]:
    """Return the process id, whether as_numpy is a view and writable, and the type of data."""
    answer = infer(port, "probe", np.arange(1000, dtype=np.float32))
    elements: list[bytes] = answer["seen"].as_numpy().tolist()
    return elements


@pytest.mark.parametrize("mode", MODES)
def test_model_gets_writable_views(running: Running, mode: str) -> None:
    expected = [mode != "plain", True, "list"]
    assert seen(running[mode].http)[1:] == [str(value).encode() for value in expected]


def test_integration_is_active_in_every_worker(running: Running) -> None:
    """Both worker processes give the model a view."""
    pids: set[int] = set()
    deadline = time.monotonic() + START_SECONDS
    while len(pids) < 2 and time.monotonic() < deadline:
        pid, is_view, *_ = seen(running["installed, 2 workers"].http)
        assert is_view == b"True"
        pids.add(int(pid))
    assert len(pids) == 2


@pytest.mark.parametrize("mode", MODES)
def test_server_metadata_announces_binary_data(running: Running, mode: str) -> None:
    with Client(f"{LOOPBACK}:{running[mode].http}") as client:
        metadata = client.server_metadata()
    assert ("binary_tensor_data" in metadata["extensions"]) == (mode != "plain")
    assert "model_repository_extension" in metadata["extensions"]


@pytest.mark.parametrize("mode", MODES)
def test_model_that_modifies_its_input(running: Running, mode: str) -> None:
    x = np.arange(3, dtype=np.float32)
    assert infer(running[mode].http, "increment", x)["x"].as_numpy().tolist() == [1, 2, 3]
