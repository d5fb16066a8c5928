"""Ray Serve: the application as two replicas, and requests in Ray's object store.

`test_programs.py` runs this file in the environment of Ray.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Ray reads these when it is imported, and passes them on to its processes.
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # no cluster: Ray listens only on the loopback
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # otherwise Ray leaves one in the home folder
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # 5 s are too few on a busy machine
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns about a changed default
}

import numpy as np
import pytest
import ray  # type: ignore[import-not-found]
from ray import serve
from ray.serve._private import replica  # type: ignore[import-not-found]

import tensorwire as tw
from interop.triton_server import LOOPBACK, free_ports
from tensorwire.client import Client, InferenceServerError
from tensorwire.server import Model, create_app

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
REPLY_SECONDS = 60.0
BOTH_SECONDS = 30.0
BIG = 1 << 20  # elements: Ray does not store small objects
WORDS = ["a cat", "ein Hündchen", ""]


def echo(request: tw.InferRequest) -> Mapping[str, Any]:
    return {tensor.name: tensor.data for tensor in request.inputs}


async def who(request: tw.InferRequest) -> Mapping[str, Any]:
    return {"pid": np.array([os.getpid()])}


def listen_on_the_loopback() -> None:
    """Prepare a process of Ray: the internal server of a replica listens only on the loopback.

    Replicas communicate through this server. Ray always binds it to every interface.
    """
    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, _: add_port(server, f"{LOOPBACK}:0")


@pytest.fixture(scope="module", autouse=True)
def url() -> Iterator[str]:
    """Two replicas behind one HTTP proxy, on the loopback interface only."""
    app = create_app({"echo": echo, "who": Model(who, inputs=[tw.TensorSpec("x", "FP32", [-1])])})
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray cannot import this file
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: for paths of sockets
        try:
            ray.init(
                num_cpus=3,
                include_dashboard=False,
                object_store_memory=256 << 20,
                log_to_driver=False,
                runtime_env={"worker_process_setup_hook": listen_on_the_loopback},
                _node_ip_address=LOOPBACK,
                _temp_dir=folder,
            )
            serve.start(http_options={"host": LOOPBACK, "port": port})
            deployment = serve.deployment(num_replicas=2)(serve.ingress(app)())
            serve.run(deployment.bind(), route_prefix="/")
            yield f"http://{LOOPBACK}:{port}"
        finally:
            if ray.is_initialized():
                serve.shutdown()
            ray.shutdown()


# --- over HTTP ------------------------------------------------------------------------------------


def test_numeric_and_bytes_arrays(url: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with Client(url, timeout=REPLY_SECONDS) as client:
        found = client.infer("echo", {"x": x, "words": WORDS})
    assert found["x"].tolist() == x.tolist()
    assert found["words"].as_strings().tolist() == WORDS
    assert [tensor.binary for tensor in found.outputs] == [True, True]


def test_both_replicas_answer(url: str) -> None:
    seen: set[int] = set()
    deadline = time.monotonic() + BOTH_SECONDS
    while len(seen) < 2 and time.monotonic() < deadline:
        with Client(url, timeout=REPLY_SECONDS) as client:
            found = client.infer("who", {"x": np.zeros(1, np.float32)})
        seen.add(int(found["pid"].as_numpy()[0]))
    assert len(seen) == 2
    assert os.getpid() not in seen


# --- the manual -----------------------------------------------------------------------------------


def example(page: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the application that the example of a page passes to serve.run."""
    blocks = re.findall(r"```py\n(.*?)```", (GUIDE / page).read_text(), re.DOTALL)
    [code] = [code for code in blocks if "from ray" in code]
    seen: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(serve, "run", seen.append)  # it would replace our deployment
        # FastAPI reads the annotations, which are strings in this module.
        exec(compile(code, page, "exec", dont_inherit=True), {"__name__": "__main__"})
    [application] = seen
    return application


def test_manual_example(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("module")
    module.models = {"echo": echo}
    monkeypatch.setitem(sys.modules, "module", module)
    deployment = example("endpoints.md", monkeypatch)._bound_deployment
    assert (deployment.name, deployment.num_replicas) == ("ASGIIngressDeployment", 2)


def test_manual_example_with_routes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deployment with routes of FastAPI."""
    serve.run(example("frameworks.md", monkeypatch), name="scale", route_prefix="/scale")
    with Client(f"{url}/scale", timeout=REPLY_SECONDS) as client:
        x = np.arange(BIG, dtype=np.float32).reshape(-1, 2)
        y = client.infer("scale", {"x": x}, request_compression_algorithm="gzip")["y"]
        assert np.array_equal(y.as_numpy(), x * [1, 10])
        assert y.binary
        message = "an input and a parameter with the name 'x'"
        with pytest.raises(InferenceServerError, match=message) as caught:
            client.infer("scale", {"x": x}, parameters={"x": 1})
    assert caught.value.status == 400


# --- the object store -----------------------------------------------------------------------------


class Receiver:
    """An actor that receives requests."""

    def describe(self, request: tw.InferRequest) -> dict[str, Any]:
        return describe(request)


def describe(request: tw.InferRequest) -> dict[str, Any]:
    """Return where the tensors of a request are in the memory of this process."""
    x, words = request["x"].as_numpy(), request["text"].data
    assert isinstance(words, tw.BytesArray)
    text = words.element(0)
    return {
        "sum": float(x.sum(dtype=np.float64)),
        "length": len(text),
        "writable": [x.flags.writeable, not text.readonly],
        "aligned": x.ctypes.data % 64 == 0,
        "memory": [mapped(x.ctypes.data), mapped(np.frombuffer(text, np.uint8).ctypes.data)],
    }


def mapped(address: int) -> str:
    """Return the file that is mapped at an address, or an empty string."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, _, _, _, _, *path = line.split(maxsplit=5)
        begin, end = (int(part, 16) for part in extent.split("-"))
        if begin <= address < end:
            return "".join(path)
    return ""


@pytest.mark.parametrize("how", ["task", "actor", "argument"])
def test_request_in_the_object_store_is_not_copied(how: str) -> None:
    """Tasks and actors read the shared memory of the store."""
    inputs = [tw.Tensor("x", np.arange(BIG, dtype=np.float32)), tw.Tensor("text", [b"a" * BIG])]
    frame = tw.encode_request(tw.InferRequest(inputs))
    request = tw.decode_request(bytearray(bytes(frame)), frame.header_length)
    if how == "actor":
        actor = ray.remote(num_cpus=0)(Receiver).remote()
        reference = actor.describe.remote(ray.put(request))
    else:
        task = ray.remote(num_cpus=0)(describe)
        reference = task.remote(ray.put(request) if how == "task" else request)
    stored = ray.get(reference, timeout=REPLY_SECONDS)
    assert all("plasma" in file for file in stored["memory"]), stored["memory"]
    assert stored["writable"] == [False, False]
    assert stored["aligned"]
    assert (stored["sum"], stored["length"]) == (sum(range(BIG)), BIG)
