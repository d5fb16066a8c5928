"""What programs do with MLServer: its codecs, raw gRPC contents, and requests to its REST server.

The server is in a thread of this process, as `install` works on the process; MLServer alone
speaks JSON, and with the codec binary, too.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import cache
from threading import Thread
from typing import Any

import numpy as np

from tensorwire.client import Client

from .contender import module
from .drop_in import Case
from .servers import LOOPBACK, triton_tools
from .workloads import floats

NUMBERS, WORDS = "4 MB FP32", "BYTES 100k x 16 B"
START_SECONDS = 30.0


def image() -> Any:
    return floats(1 << 20)


def texts() -> list[str]:
    return [f"text number {i:04}" for i in range(100_000)]


# --- codecs, and the raw contents of gRPC ---


def number_codec() -> Any:
    return module("mlserver.codecs").NumpyCodec


def text_codec() -> Any:
    return module("mlserver.codecs").StringCodec


def contents_of(codec: Any, values: Any) -> bytes:
    """What a client sends."""
    tensors = [codec.encode_output("x", values)]
    contents: bytes = module("mlserver.raw").extract_raw(tensors)[1][0]
    return contents


def unpacked(codec: Any, datatype: str, shape: list[int], contents: bytes) -> Any:
    """What a model gets from the contents."""
    tensor = module("mlserver.types").RequestInput(
        name="x", datatype=datatype, shape=shape, data=[]
    )
    [there] = module("mlserver.raw").inject_raw([tensor], [contents])
    return codec.decode_input(there)


# --- its REST server ---


@cache
def url_of_server() -> str:
    """MLServer with an identity model, in a thread that ends with the process."""
    mlserver, registry = module("mlserver"), module("mlserver.registry")
    handlers, rest = module("mlserver.handlers"), module("mlserver.rest")
    model = identity_model()
    port = triton_tools().free_port()
    settings = mlserver.Settings(host=LOOPBACK, http_port=port, parallel_workers=0, debug=False)

    async def serve() -> None:
        models = registry.MultiModelRegistry(model_initialiser=lambda settings: model)
        await models.load(model.settings)
        repository = handlers.ModelRepositoryHandlers(repository=None, model_registry=models)
        plane = handlers.DataPlane(settings, models)
        await rest.RESTServer(settings, plane, repository).start()

    Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    url, deadline = f"http://{LOOPBACK}:{port}", time.monotonic() + START_SECONDS
    with Client(url) as client:
        while not is_ready(client):
            if time.monotonic() > deadline:
                raise RuntimeError("MLServer did not start")
            time.sleep(0.05)
    return url


def is_ready(client: Client) -> bool:
    try:
        return client.is_ready("identity")
    except OSError:
        return False


def identity_model() -> Any:
    mlserver, codec, types = module("mlserver"), number_codec(), module("mlserver.types")

    class Identity(mlserver.MLModel):  # type: ignore[misc, name-defined]
        async def predict(self, payload: Any) -> Any:
            array = self.decode(payload.inputs[0], default_codec=codec)
            outputs = [codec.encode_output("y", array)]
            return types.InferenceResponse(model_name=self.name, outputs=outputs)

    return Identity(mlserver.ModelSettings(name="identity", implementation=Identity))


Sent = tuple[Client, Any, str, Any]  # our client, a pool of urllib3, the server's URL, an array


def client_and_image() -> Sent:
    url = url_of_server()
    return Client(url), module("urllib3").PoolManager(), url, image()


def infer_json(sent: Sent) -> Any:
    """Lists and JSON are made and read, as clients without the extension do."""
    _, pool, url, array = sent
    tensor = {"name": "x", "datatype": "FP32", "shape": [array.size], "data": array.tolist()}
    path = f"{url}/v2/models/identity/infer"
    answer = pool.request("POST", path, json={"inputs": [tensor]})
    assert answer.status == 200, answer.data[:200]
    return np.array(answer.json()["outputs"][0]["data"], np.float32)


JSON_BODIES: dict[str, Callable[[], list[Any]]] = {  # the arrays of the inputs
    "1 FP32": lambda: [floats(1)],
    "50 x 32 FP32": lambda: [floats(32) for _ in range(50)],
    NUMBERS: lambda: [image()],
}


def body_and_url(arrays: list[Any]) -> tuple[bytes, Any, str]:
    inputs = [
        {"name": f"x{i}", "datatype": "FP32", "shape": [a.size], "data": a.tolist()}
        for i, a in enumerate(arrays)
    ]
    path = f"{url_of_server()}/v2/models/identity/infer"
    return json.dumps({"inputs": inputs}).encode(), module("urllib3").PoolManager(), path


def infer_body(sent: tuple[bytes, Any, str]) -> int:
    """A body that is JSON already, for an answer that is not read."""
    body, pool, path = sent
    answer = pool.request("POST", path, body=body, headers={"Content-Type": "application/json"})
    status: int = answer.status
    return status


def infer_binary(sent: Sent) -> Any:
    client, _, _, array = sent
    column = client.infer("identity", {"x": array})["y"].as_numpy()
    return column.reshape(-1)  # MLServer's codec makes a column of a vector


def codec_case(codec: Callable[[], Any], values: Callable[[], Any], datatype: str) -> list[Case]:
    """From raw contents to what a model gets, and from what it returns to raw contents."""
    return [
        Case(
            lambda: (contents_of(codec(), values()), [len(values())]),
            lambda sent: unpacked(codec(), datatype, sent[1], sent[0]),
        ),
        Case(values, lambda made: contents_of(codec(), made)),
    ]


NUMBERS_IN, NUMBERS_OUT = codec_case(number_codec, image, "FP32")
WORDS_IN, WORDS_OUT = codec_case(text_codec, texts, "BYTES")
CASES = {
    f"REST JSON; binary, {NUMBERS}": Case(client_and_image, infer_json, infer_binary),
    f"REST JSON, {NUMBERS}": Case(client_and_image, infer_json),
    f"NumpyCodec.encode_output, {NUMBERS}": Case(
        image, lambda array: number_codec().encode_output("y", array).shape
    ),
    f"raw gRPC contents to an array, {NUMBERS}": NUMBERS_IN,
    f"array to raw gRPC contents, {NUMBERS}": NUMBERS_OUT,
    f"raw gRPC contents to str, {WORDS}": WORDS_IN,
    f"str to raw gRPC contents, {WORDS}": WORDS_OUT,
}
CASES |= {
    f"REST JSON body, {name}": Case(lambda make=make: body_and_url(make()), infer_body)  # type: ignore[misc]
    for name, make in JSON_BODIES.items()
}
