"""MLServer without our backend and with it, side by side: for an interpreter that has both.

``python benchmarks/peer_mlserver.py`` prints JSON: seconds, the least of several runs. REST is
end to end on loopback, as a client sees it, with 4 MB of FP32 each way; JSON is what MLServer
speaks without the backend, and its rows are measured with and without, too.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import urllib3
from mlserver import MLModel, ModelSettings, Settings, raw, types
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.handlers import DataPlane, ModelRepositoryHandlers
from mlserver.registry import MultiModelRegistry
from mlserver.rest import RESTServer

from tensorwire.client import Client
from tensorwire.integrations import mlserver

N_ELEMENTS = 1 << 20  # of FP32: 4 MiB
N_TEXTS = 100_000
N_RUNS = 5


def main() -> None:
    image = np.random.default_rng(1).random(N_ELEMENTS, np.float32)
    url = serve(Echo(ModelSettings(name="echo", implementation=Echo)))
    steps: dict[str, Callable[[], Callable[[], Any]]] = {
        "REST JSON, 4 MB FP32": lambda: rest_json(url, image),
        "NumpyCodec.decode_input, raw 4 MB FP32": lambda: decode(image),
        "NumpyCodec.encode_output, 4 MB FP32": lambda: lambda: NumpyCodec.encode_output("y", image),
        "gRPC raw in, 4 MB FP32": lambda: unpack(image),
        "gRPC raw out, 4 MB FP32": lambda: pack(NumpyCodec.encode_output, image),
        "gRPC raw in, BYTES 100k x 16 B": lambda: unpack_texts(texts()),
        "gRPC raw out, BYTES 100k x 16 B": lambda: pack(StringCodec.encode_output, texts()),
    }
    rows = {name: {"without": least(make())} for name, make in steps.items()}
    mlserver.install()
    for name, make in steps.items():
        rows[name]["with"] = least(make())
    rows["REST binary, 4 MB FP32"] = {
        "without": rows["REST JSON, 4 MB FP32"]["without"],
        "with": least(rest_binary(url, image)),
    }
    for row in rows.values():
        row["times"] = row["without"] / row["with"]
    print(json.dumps(rows, indent=1))


def least(run: Callable[[], Any]) -> float:
    """Seconds of the fastest run."""
    run()
    seconds = []
    for _ in range(N_RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


class Echo(MLModel):  # type: ignore[misc]
    """``x`` again, decoded and encoded by the codec."""

    async def predict(self, payload: Any) -> Any:
        array = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        return types.InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("y", array)]
        )


def serve(model: MLModel) -> str:
    """The model behind MLServer's REST server, in a thread that ends with the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Settings(host="127.0.0.1", http_port=port, parallel_workers=0, debug=False)

    async def run() -> None:
        registry = MultiModelRegistry(model_initialiser=lambda settings: model)
        await registry.load(model.settings)
        handlers = ModelRepositoryHandlers(repository=None, model_registry=registry)
        await RESTServer(settings, DataPlane(settings, registry), handlers).start()

    threading.Thread(target=lambda: asyncio.run(run()), daemon=True).start()
    url = f"http://127.0.0.1:{port}"
    with Client(url) as client:
        while not is_ready(client):
            time.sleep(0.05)
    return url


def is_ready(client: Client) -> bool:
    try:
        return client.is_ready("echo")
    except OSError:
        return False


# --- what is measured ------------------------------------------------------------------------


def rest_json(url: str, image: Any) -> Callable[[], Any]:
    """Lists and JSON are made and read, as clients without the extension do."""
    pool = urllib3.PoolManager()

    def run() -> Any:
        tensor = {"name": "x", "datatype": "FP32", "shape": [image.size], "data": image.tolist()}
        answer = pool.request("POST", f"{url}/v2/models/echo/infer", json={"inputs": [tensor]})
        assert answer.status == 200, answer.data
        return np.array(answer.json()["outputs"][0]["data"], np.float32)

    return run


def rest_binary(url: str, image: Any) -> Callable[[], Any]:
    client = Client(url)

    def run() -> Any:
        return client.infer("echo", {"x": image})["y"].as_numpy()

    return run


def tensor(datatype: str, shape: list[int], data: Any) -> Any:
    return types.RequestInput(name="x", datatype=datatype, shape=shape, data=data)


def unpack(image: Any) -> Callable[[], Any]:
    """From the contents to the array that a model gets."""
    contents = image.tobytes()

    def run() -> Any:
        [there] = raw.inject_raw([tensor("FP32", [image.size], [])], [contents])
        return NumpyCodec.decode_input(there)

    return run


def decode(image: Any) -> Callable[[], Any]:
    [there] = raw.inject_raw([tensor("FP32", [image.size], [])], [image.tobytes()])
    return lambda: NumpyCodec.decode_input(there)


def texts() -> list[str]:
    return [f"text number {i:04}" for i in range(N_TEXTS)]


def unpack_texts(values: list[str]) -> Callable[[], Any]:
    [contents] = raw.extract_raw([StringCodec.encode_output("t", values)])[1]

    def run() -> Any:
        [there] = raw.inject_raw([tensor("BYTES", [len(values)], [])], [contents])
        return StringCodec.decode_input(there)

    return run


def pack(encode: Callable[..., Any], values: Any) -> Callable[[], Any]:
    """From what a model returns to the contents."""
    return lambda: raw.extract_raw([encode("y", values)])[1]


if __name__ == "__main__":
    main()
