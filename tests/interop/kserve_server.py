"""KServe's server with a few models on the loopback interface, run in the environment of KServe.

`python kserve_server.py MODE WORKERS HTTP_PORT GRPC_PORT`, where MODE is "plain" or "installed".
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import uvicorn
from grpc.aio import _server
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.protocol.rest.multiprocess.server import RESTServerProcess

from tensorwire.integrations import kserve as backend

LOOPBACK = "127.0.0.1"
MAX_BODY = 1 << 22


class Echo(Model):  # type: ignore[misc]
    """Return the inputs as outputs."""

    def predict(self, payload: Any, headers: Any = None) -> InferResponse:
        return answer(self, payload, {i.name: (i.datatype, i.as_numpy()) for i in payload.inputs})


class Probe(Model):  # type: ignore[misc]
    """Return the process id, whether the array is a view, and the type of the data.

    The input is modified in place.
    """

    def predict(self, payload: Any, headers: Any = None) -> InferResponse:
        tensor = payload.inputs[0]
        array = tensor.as_numpy()
        array += 1
        seen = [os.getpid(), is_view(array), array.flags.writeable, type(tensor.data).__name__]
        text = np.array([str(value).encode() for value in seen], object)
        return answer(self, payload, {"seen": ("BYTES", text), "x": ("FP32", array)})


def is_view(array: Any) -> bool:
    """Return whether the array refers to memory that numpy does not own."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is not None


def answer(model: Any, payload: InferRequest, arrays: dict[str, tuple[str, Any]]) -> InferResponse:
    outputs = []
    for name, (datatype, array) in arrays.items():
        output = InferOutput(name, list(array.shape), datatype)
        output.set_data_from_numpy(array)
        outputs.append(output)
    return InferResponse(
        payload.id or "1",  # KServe does not send JSON without one
        model.name,
        outputs,
        use_binary_outputs=payload.use_binary_outputs,
        requested_outputs=payload.request_outputs,
    )


MODELS: dict[str, Any] = {"echo": Echo, "probe": Probe}


def bind_to_loopback() -> None:
    """Bind to the loopback only. KServe binds to every interface, and has no setting for it."""
    config, server = uvicorn.Config, _server.Server
    add_port = server.add_insecure_port
    uvicorn.Config = lambda *args, **kwargs: config(*args, **{**kwargs, "host": LOOPBACK})  # type: ignore[assignment, misc]
    server.add_insecure_port = lambda self, address: add_port(
        self, address.replace("[::]", LOOPBACK)
    )


def allow_slow_workers() -> None:
    """Wait longer for workers. KServe kills those that take 5 s to start, as on a busy machine."""
    RESTServerProcess.is_alive.__defaults__ = (60,)


def main() -> None:
    mode, workers, http_port, grpc_port = sys.argv[1:]
    bind_to_loopback()
    allow_slow_workers()
    models = [made(name) for name, made in MODELS.items()]
    for model in models:
        model.load()
    if mode == "installed":
        # Spawned workers do not run this line: they install the integration by themselves.
        backend.install(max_body_nbytes=MAX_BODY)
    server = ModelServer(http_port=int(http_port), grpc_port=int(grpc_port), workers=int(workers))
    server.start(models)


if __name__ == "__main__":
    main()
