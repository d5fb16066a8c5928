"""An MLServer process with models, with or without the integration."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from interop import environment, programs
from support.requirements import optional

urllib3 = optional("urllib3")

RUNTIME = Path(__file__).with_name("mlserver_runtime.py")
START_SECONDS = 120.0

COMMANDS = {
    "without": (["bin/mlserver"], {}),
    "command": (["bin/python", "-m", "tensorwire.integrations.mlserver"], {}),
    "runtime": (["bin/mlserver"], {"TENSORWIRE_INSTALL": "1"}),
}
"""How the integration is installed: not at all, by our command, or by the module of the runtime."""

MODELS: dict[str, dict[str, Any]] = {
    "echo": {"implementation": "mlserver_runtime.Echo"},
    "raw": {"implementation": "mlserver_runtime.Raw"},
    "negate": {
        "implementation": "mlserver_runtime.Negate",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    },
    "batched": {
        "implementation": "mlserver_runtime.Echo",
        "max_batch_size": 2,
        "max_batch_time": 0.2,
    },
}


class Server(NamedTuple):
    """The addresses of the server."""

    http: str
    grpc: str


@contextmanager
def mlserver(python: Path, folder: Path, how: str, n_workers: int = 0) -> Iterator[Server]:
    """Run MLServer on the loopback interface; `how` is one of COMMANDS."""
    ports = free_ports(3)
    write_models(folder, ports, n_workers)
    (program, *arguments), variables = COMMANDS[how]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(python.parents[1] / program), *arguments, "start", "."],
            cwd=folder,
            env={**environment.clean_environ(), **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(f"http://127.0.0.1:{ports[0]}", process, folder / "log")
        yield Server(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}")
    finally:
        programs.stop(process)


def free_ports(n: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def write_models(folder: Path, ports: list[int], n_workers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(RUNTIME, folder)
    names = ("http_port", "grpc_port", "metrics_port")
    # With debug, which is the default, the response to a failure would be a traceback.
    settings = {"host": "127.0.0.1", "parallel_workers": n_workers, "debug": False}
    settings.update(zip(names, ports, strict=True))
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, model in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "model-settings.json").write_text(json.dumps({"name": name, **model}))


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    pool = urllib3.PoolManager(retries=False, timeout=5)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            # A server also reports that it is ready before it begins to load its models.
            answers = [
                pool.request("GET", f"{url}/v2/models/{name}/ready").status for name in MODELS
            ]
            if set(answers) == {200}:
                return
        except urllib3.exceptions.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text())
