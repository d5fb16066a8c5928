"""The application as two replicas of Ray Serve, run in the environment "ray" of environment.py.

`python ray_driver.py RESULT` writes its observations to that file as JSON; test_ray.py checks them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

# Ray reads these when it is imported, and passes them on to its processes.
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # no cluster: Ray listens only on the loopback
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # otherwise Ray leaves one in the home folder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns about a changed default
}

import numpy as np
import ray  # type: ignore[import-not-found]
from ray import serve
from ray.serve._private import replica  # type: ignore[import-not-found]

import tensorwire as tw
from tensorwire.client import Client, InferenceServerError
from tensorwire.server import Model, create_app

LOOPBACK = "127.0.0.1"
ALARM_SECONDS = 150
REPLY_SECONDS = 20.0
BOTH_SECONDS = 30.0
STORE_NBYTES = 256 << 20
BIG = 1 << 20  # elements: Ray does not store small objects


def main() -> None:
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(ALARM_SECONDS)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: for paths of sockets
        try:
            start(port, folder, Ingress)
            result = {
                "served": served(port),
                "stored": stored(),
                "manual": manual(),
                "routes": routes(port),
                "exposed": exposed(),
            }
        finally:
            if ray.is_initialized():
                serve.shutdown()
            ray.shutdown()
    Path(sys.argv[1]).write_text(json.dumps(result))


def give_up(signum: int, frame: object) -> None:
    raise TimeoutError(f"not done within {ALARM_SECONDS} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def start(port: int, folder: str, deployment: Any) -> None:
    """Start replicas behind one HTTP proxy, on the loopback interface only."""
    ray.init(
        num_cpus=3,
        include_dashboard=False,
        object_store_memory=STORE_NBYTES,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": listen_on_the_loopback},
        _node_ip_address=LOOPBACK,
        _temp_dir=folder,
    )
    serve.start(http_options={"host": LOOPBACK, "port": port})
    serve.run(deployment.bind(), route_prefix="/")


# --- the application --------------------------------------------------------------------------


def echo(request: tw.InferRequest) -> Mapping[str, Any]:
    return {tensor.name: tensor.data for tensor in request.inputs}


def fail(request: tw.InferRequest) -> Mapping[str, Any]:
    raise RuntimeError("secret")


async def who(request: tw.InferRequest) -> Mapping[str, Any]:
    return {"pid": np.array([os.getpid()])}


APP = create_app(
    {"echo": echo, "fail": fail, "who": Model(who, inputs=[tw.TensorSpec("x", "FP32", [-1])])}
)


def listen_on_the_loopback() -> None:
    """Prepare a process of Ray: the internal server of a replica listens only on the loopback.

    Replicas communicate through this server. Ray always binds it to every interface.
    """
    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, _: add_port(server, f"{LOOPBACK}:0")


Ingress = serve.deployment(num_replicas=2)(serve.ingress(APP)())


# --- the manual ---------------------------------------------------------------------------------

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"


def example(page: str) -> Any:
    """Return the application that the example of a page passes to serve.run."""
    examples = re.findall(r"```py\n(.*?)```", (GUIDE / page).read_text(), re.DOTALL)
    [code] = [code for code in examples if "from ray" in code]
    run = serve.run
    seen: list[Any] = []
    serve.run = seen.append  # serve.run would replace our deployment by the one of the manual
    try:
        # FastAPI reads the annotations, which are strings in this module.
        exec(compile(code, page, "exec", dont_inherit=True), {"__name__": "__main__"})
    finally:
        serve.run = run
    [application] = seen
    return application


def manual() -> tuple[str, int]:
    """Return the class of the manual's deployment, and its number of replicas."""
    sys.modules["module"] = types.ModuleType("module")
    sys.modules["module"].models = {"echo": echo}  # type: ignore[attr-defined]
    deployment = example("servers.md")._bound_deployment
    return deployment.name, deployment.num_replicas


def routes(port: int) -> dict[str, Any]:
    """Return the responses of the deployment with routes of FastAPI."""
    serve.run(example("frameworks.md"), name="scale", route_prefix="/scale")
    with Client(f"http://{LOOPBACK}:{port}/scale", timeout=REPLY_SECONDS) as client:
        x = np.arange(BIG, dtype=np.float32).reshape(-1, 2)
        y = client.infer("scale", {"x": x}, request_compression_algorithm="gzip")["y"]
        try:
            client.infer("scale", {"x": x}, parameters={"x": 1})
        except InferenceServerError as error:
            return {
                "equal": bool(np.array_equal(y.as_numpy(), x * [1, 10])),
                "binary": y.binary,
                "error": [error.status, str(error)],
            }
    raise AssertionError("an invalid request was accepted")


# --- over HTTP --------------------------------------------------------------------------------


def served(port: int) -> dict[str, Any]:
    """Return the responses of the models."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    echoed = tw.decode_response(*infer(port, "echo", [tw.Tensor("x", x), WORDS])[1:])
    return {
        "FP32": echoed["x"].as_numpy().tolist(),
        "BYTES": [text.decode() for text in echoed["words"].as_numpy()],
        "binary": [tensor.binary for tensor in echoed.outputs],
        "errors": {
            model: (status, json.loads(body))
            for model in ("fail", "who", "nothing")
            for status, body, _ in [infer(port, model, [WORDS])]
        },
        "pids": sorted(pids(port)),
        "own pid": os.getpid(),
    }


WORDS = tw.Tensor("words", ["a cat", "ein Hündchen", ""])


def pids(port: int) -> set[int]:
    """Send requests until two processes have responded or the time is up."""
    seen: set[int] = set()
    deadline = time.monotonic() + BOTH_SECONDS
    while len(seen) < 2 and time.monotonic() < deadline:
        _, body, length = infer(port, "who", [tw.Tensor("x", np.zeros(1, np.float32))])
        seen.add(int(tw.decode_response(body, length)["pid"].as_numpy()[0]))
    return seen


def infer(port: int, model: str, inputs: list[tw.Tensor]) -> tuple[int, bytes, int | None]:
    """Return status, body and header length of the response."""
    request = tw.InferRequest(inputs, parameters={"binary_data_output": True})
    frame = tw.encode_request(request)
    connection = HTTPConnection(LOOPBACK, port, timeout=REPLY_SECONDS)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", frame, frame.headers)
        reply = connection.getresponse()
        return reply.status, reply.read(), tw.header_length(reply.getheaders())
    finally:
        connection.close()


# --- on the loopback only --------------------------------------------------------------------

HERE = ("0100007F", f"{0:024}01000000", f"{0:016}FFFF00000100007F")  # in the format of /proc/net


def exposed() -> list[str]:
    """Return addresses outside the loopback that this process and its children listen on."""
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    sockets = own_sockets()
    return [
        local
        for _, local, _, state, _, _, _, _, _, inode, *_ in rows
        if state == "0A" and f"socket:[{inode}]" in sockets and local.split(":")[0] not in HERE
    ]


def own_sockets() -> set[str]:
    """Return the sockets of all processes of this session."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # the process has ended, or has another owner
            if os.getsid(int(descriptor.parts[2])) == os.getsid(0):
                found.add(os.readlink(descriptor))
    return found


# --- through the object store -----------------------------------------------------------------


def stored() -> dict[str, Any]:
    """Return how a decoded request appears to a task and to an actor."""
    inputs = [tw.Tensor("x", np.arange(BIG, dtype=np.float32)), tw.Tensor("text", [b"a" * BIG])]
    frame = tw.encode_request(tw.InferRequest(inputs))
    request = tw.decode_request(bytearray(bytes(frame)), frame.header_length)
    reference = ray.put(request)
    task = ray.remote(num_cpus=0)(describe)
    actor = ray.remote(num_cpus=0)(Receiver).remote()
    references = {
        "task": task.remote(reference),
        "actor": actor.describe.remote(reference),
        "argument": task.remote(request),
    }
    return {how: ray.get(seen, timeout=REPLY_SECONDS) for how, seen in references.items()}


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


if __name__ == "__main__":
    main()
