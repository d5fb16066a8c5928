"""Clients and servers of other projects, with the released packages.

Clients run in their environments, against the command `tensorwire serve` with the models of
served_models.py. omle-server, and the service for BentoML in the manual, are called with
tensorwire's clients.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

import tensorwire as tw
from interop import programs
from interop.triton_server import LOOPBACK, free_ports
from support.requirements import package
from tensorwire.client import AsyncClient, Client, InferenceServerError

package("grpc")

pytestmark = [
    pytest.mark.nightly(reason="it needs the environments of other programs"),
    pytest.mark.thread_unsafe(reason="it runs other programs"),
]

HERE = Path(__file__).parent
START_SECONDS = 60.0
CLIENT_SECONDS = 300.0
EXPECTED = "all calls are as expected"


@contextmanager
def running(command: list[Any], folder: Path, ports: list[int]) -> Iterator[list[str]]:
    """Run a server with these ports for HTTP and gRPC; yield its addresses."""
    with programs.started(list(map(str, command)), folder / "server.log", cwd=HERE) as program:
        http, grpc = (f"{LOOPBACK}:{port}" for port in ports)
        urls = [f"http://{http}", f"grpc://{grpc}"]
        programs.wait_until_ready(urls, program, START_SECONDS)
        yield [http, grpc]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    ports = free_ports(2)
    command = [sys.executable, "-m", "tensorwire", "serve", "served_models"]
    command += ["--port", str(ports[0]), "--grpc-port", str(ports[1])]
    with running(command, tmp_path_factory.mktemp("served"), ports) as addresses:
        yield addresses


# --- clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["tritony", "pytriton"])
def test_clients_of_triton(client: str, served: list[str], tmp_path: Path) -> None:
    python = programs.interpreter("triton_clients")
    command = [str(python), str(HERE / f"{client}_client.py"), *served]
    assert EXPECTED in programs.run(command, tmp_path, CLIENT_SECONDS)


def test_docling(served: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run inside_docling.py."""
    python = programs.interpreter("docling")
    monkeypatch.setenv("TENSORWIRE_SERVED", " ".join(served))
    programs.run_tests(python, "inside_docling.py", tmp_path, CLIENT_SECONDS)


# --- omle-server ---------------------------------------------------------------------------------

# omle-server has no option for its host. It listens at all addresses while these tests run.

X = np.array([[1, 2, 3], [0, -4, 0.25]], np.float32)
SUM = X @ np.array([[1], [10], [100]], np.float32) + np.float32(0.5)


@pytest.fixture(scope="module")
def omle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    python = programs.interpreter("omle")
    folder = tmp_path_factory.mktemp("omle")
    model = folder / "linear.omle"
    programs.run([str(python), str(HERE / "omle_model.py"), str(model)], folder, CLIENT_SECONDS)
    ports = free_ports(2)
    command = [python.parent / "omle-server", "--model", model]
    command += ["--rest-port", ports[0], "--grpc-port", ports[1]]
    with running(command, folder, ports) as addresses:
        yield addresses


def check(response: tw.InferResponse) -> None:
    """omle-server writes the labels as 0.0 and 1.0 in JSON."""
    assert np.array_equal(response["sum"].as_numpy(), SUM)
    assert response["label"].datatype == "INT64"
    assert response["label"].tolist() == [[0], [1]]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_omle_server(omle: list[str], scheme: str) -> None:
    url = f"{scheme}://{omle[scheme == 'grpc']}"
    with Client(url, binary_inputs=False) as client:
        assert client.server_metadata()["name"] == "omle-server"
        [described] = client.model_metadata("linear")["inputs"]
        assert described == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
        check(client.infer("linear", {"x": X}))
        check(client.infer("linear", {"x": X.tolist()}))
        check(client.infer("linear", {"x": X}, ["sum", "label"], version="1"))
        with pytest.raises(InferenceServerError, match="model 'none' not found") as caught:
            client.infer("none", {"x": X})
        assert caught.value.status == 404

    async def call() -> list[tw.InferResponse]:  # it rejects calls while all threads are busy
        async with AsyncClient(url, binary_inputs=False, retries=5) as client:
            calls = [client.infer("linear", {"x": X}) for _ in range(8)]
            return await asyncio.gather(*calls)

    for response in asyncio.run(call()):
        check(response)


def test_omle_server_reads_only_json(omle: list[str]) -> None:
    """The error says what to pass."""
    with Client(omle[0]) as client, pytest.raises(InferenceServerError) as caught:
        client.infer("linear", {"x": X})
    assert caught.value.status == 400
    assert "call infer with binary_inputs=False" in str(caught.value)


# --- BentoML -------------------------------------------------------------------------------------

PAGE = HERE.parents[1] / "docs" / "guide" / "frameworks.md"


@pytest.fixture
def bentoml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the service of the manual; yield its address."""
    python = programs.interpreter("bentoml")
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [service] = [block for block in blocks if "import bentoml" in block]
    (tmp_path / "service.py").write_text(service)
    monkeypatch.setenv("BENTOML_DO_NOT_TRACK", "True")
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "home"))
    port = str(free_ports(1)[0])
    command = [str(python.parent / "bentoml"), "serve", "service:Scale"]
    command += ["--host", LOOPBACK, "--port", port]
    with programs.started(command, tmp_path / "server.log", cwd=tmp_path) as program:
        url = f"http://{LOOPBACK}:{port}/readyz"
        programs.wait_until(lambda: is_ready(url), program, START_SECONDS)
        yield f"{LOOPBACK}:{port}"


def is_ready(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_bentoml(bentoml: str) -> None:
    large = np.arange(1 << 20, dtype=np.float32).reshape(-1, 2)
    weights = np.array([1, 10], np.float32)
    with Client(bentoml) as client:
        for compression in (None, "gzip"):
            response = client.infer(
                "scale", {"x": large}, request_compression_algorithm=compression
            )
            assert np.array_equal(response["y"].as_numpy(), large * weights)
            assert response["y"].binary
        with pytest.raises(InferenceServerError, match="an input and a parameter") as caught:
            client.infer("scale", {"x": large}, parameters={"x": 1})
        assert caught.value.status == 400
        assert client.infer("scale", {"x": large[:0]})["y"].shape == (0, 2)

    async def call() -> list[tw.InferResponse]:
        async with AsyncClient(bentoml) as client:
            rows = [{"x": np.full((1, 2), i, np.float32)} for i in range(8)]
            calls = [client.infer("scale", row, binary_inputs=False) for row in rows]
            return await asyncio.gather(*calls)

    for i, response in enumerate(asyncio.run(call())):
        assert response["y"].tolist() == [[i, 10 * i]]
