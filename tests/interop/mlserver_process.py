"""An MLServer process with models and with the integration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop import environment, programs
from interop.triton_server import free_ports

RUNTIME = Path(__file__).with_name("mlserver_runtime.py")
START_SECONDS = 120.0

COMMANDS = {
    "command": (["bin/python", "-m", "tensorwire.integrations.mlserver"], {}),
    "runtime": (["bin/mlserver"], {"TENSORWIRE_INSTALL": "1"}),
}
"""How the integration is installed: by our command, or by the module of the runtime."""

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


@contextmanager
def mlserver(python: Path, folder: Path, how: str, n_workers: int = 0) -> Iterator[str]:
    """Run MLServer on the loopback interface; `how` is one of COMMANDS. Yield its address."""
    ports = free_ports(3)
    write_models(folder, ports, n_workers)
    (program, *arguments), variables = COMMANDS[how]
    command = [str(python.parents[1] / program), *arguments, "start", "."]
    environ = environment.clean_environ() | variables
    with programs.started(command, folder / "log", cwd=folder, env=environ) as process:
        http = f"127.0.0.1:{ports[0]}"
        # A server also reports that it is ready before it begins to load its models.
        programs.wait_until_ready([http], process, START_SECONDS, list(MODELS))
        yield http


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
