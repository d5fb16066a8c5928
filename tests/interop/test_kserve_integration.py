"""KServe with the integration: its server with and without it, and several clients.

The server listens on the loopback interface.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorwire as tw
from interop import environment, hostile_bodies, programs
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


@pytest.fixture(scope="module")
def python() -> Path:
    return programs.interpreter("kserve")


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def ports(mode: str, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """The ports of KServe's server in this mode."""
    ports = Ports(*free_ports(2))
    arguments = [*map(str, MODES[mode]), *map(str, ports)]
    command = [str(python), str(HERE / "kserve_server.py"), *arguments]
    log, environ = tmp_path_factory.mktemp("kserve") / "log", environment.clean_environ()
    with programs.started(command, log, env=environ) as program:
        urls = [f"http://{LOOPBACK}:{ports.http}", f"grpc://{LOOPBACK}:{ports.grpc}"]
        programs.wait_until_ready(urls, program, START_SECONDS)
        yield ports


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
def test_kserve_clients(ports: Ports, python: Path, tmp_path: Path, client: str) -> None:
    """REST and gRPC, with binary, JSON and mixed tensors: the response equals the request."""
    command = [str(python), str(HERE / "kserve_client.py"), client, *map(str, ports)]
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
def test_other_clients(ports: Ports, mode: str, client: str, call: Call) -> None:
    is_json = call.json_inputs == set(call.inputs)
    if is_json and (mode, client) == ("plain", "tritonclient"):
        with pytest.raises(Rejected, match="header is missing"):  # the client sends no Content-Type
            CLIENTS[client](ports.http, call)
        return
    found = CLIENTS[client](ports.http, call)
    if call.model == "helped":  # the name that KServe's helper gives to its only output
        assert set(found) == {"output-0"}
        found = {"x": found["output-0"]}
    assert set(found) == set(call.inputs)
    for name, array in call.inputs.items():
        assert found[name].tolist() == array.tolist()
        assert found[name].dtype == array.dtype


# --- hostile bodies ---


def test_malformed_and_long_bodies(ports: Ports, mode: str) -> None:
    """The server answers the next request. KServe alone decompresses nothing."""
    if mode == "plain":
        return
    with hostile_bodies.sender(f"http://{LOOPBACK}:{ports.http}/v2/models/echo/infer") as send:
        for body, headers in hostile_bodies.malformed():
            status, error = send(body, headers)
            assert (status, bool(error)) == (400, True), (body, headers)
            assert send(gzip.compress(body), {**headers, **hostile_bodies.GZIP})[0] in (400, 415)
        for body, headers in hostile_bodies.too_long():
            status, error = send(body, headers)
            assert status == 413, error
            assert f"the limit is {hostile_bodies.MAX_BODY}" in error


# --- what the integration adds ---


def test_model_gets_writable_views_in_every_worker(ports: Ports, mode: str) -> None:
    """The model returns its process, whether the array is a view and writable, and a type."""
    expected = [mode != "plain", True, "list"]
    pids: set[str] = set()
    deadline = time.monotonic() + START_SECONDS
    while len(pids) < MODES[mode][1] and time.monotonic() < deadline:
        answer = infer(ports.http, "probe", np.arange(1000, dtype=np.float32))
        pid, *facts = answer["seen"].as_strings().tolist()
        assert facts == [str(value) for value in expected]
        pids.add(pid)
    assert len(pids) == MODES[mode][1]


def test_server_metadata_announces_binary_data(ports: Ports, mode: str) -> None:
    with Client(f"{LOOPBACK}:{ports.http}") as client:
        metadata = client.server_metadata()
    assert ("binary_tensor_data" in metadata["extensions"]) == (mode != "plain")
    assert "model_repository_extension" in metadata["extensions"]


def test_model_that_modifies_its_input(ports: Ports) -> None:
    x = np.arange(3, dtype=np.float32)
    assert infer(ports.http, "increment", x)["x"].as_numpy().tolist() == [1, 2, 3]
