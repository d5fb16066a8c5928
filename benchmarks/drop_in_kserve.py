"""What programs do with KServe's messages, step by step."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import cache
from threading import Thread
from typing import Any

import numpy as np

from .contender import module
from .drop_in import Case
from .servers import LOOPBACK, triton_tools
from .workloads import floats, texts

Body = tuple[bytes, int]  # and the length of its JSON

NUMBERS, WORDS = "4 MB FP32", "BYTES 100k x 0-40 B"
ARRAYS: dict[str, Callable[[], Any]] = {
    NUMBERS: lambda: floats(1 << 20),
    WORDS: lambda: texts(100_000, 0, 40),
}


def datatype_of(array: Any) -> str:
    return "BYTES" if array.dtype == np.object_ else "FP32"


def request(array: Any) -> Body:
    kserve = module("kserve")
    tensor = kserve.InferInput("x", list(array.shape), datatype_of(array))
    tensor.set_data_from_numpy(array)
    body, json_length = kserve.InferRequest("m", [tensor]).to_rest()
    return body, json_length


def decoded(body: Body) -> Any:
    return module("kserve").InferRequest.from_bytes(*body, "m").inputs[0]


def response(array: Any, *, is_binary: bool = True) -> Any:
    """What a model's answer becomes: a tensor made of an array, and its body."""
    kserve = module("kserve")
    tensor = kserve.InferOutput("x", list(array.shape), datatype_of(array))
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    return kserve.InferResponse("1", "m", [tensor], use_binary_outputs=is_binary).to_rest()[0]


# --- JSON, through KServe's REST application, without a network ---

JSON_BODIES: dict[str, Callable[[], list[Any]]] = {  # the arrays of the inputs
    "1 FP32": lambda: [floats(1)],
    "50 x 32 FP32": lambda: [floats(32) for _ in range(50)],
    NUMBERS: lambda: [floats(1 << 20)],
    "BYTES 100k x 16 B": lambda: [
        np.array([f"text number {i:04}" for i in range(100_000)], object)
    ],
}


class Endpoint:
    """The application with one model, which reads all inputs and answers with ``answer``."""

    def __init__(self) -> None:
        self.model = reading_model()
        kserve, fastapi = module("kserve"), module("fastapi")
        registry = kserve.ModelRepository()
        registry.update(self.model)
        self.app = fastapi.FastAPI()
        plane = module("kserve.protocol.dataplane").DataPlane(registry)
        module("kserve.protocol.rest.v2_endpoints").register_v2_endpoints(self.app, plane, registry)
        self.loop = asyncio.new_event_loop()

    def infer(self, body: bytes, answer: Any) -> int:
        """The status of the answer, whose body is dropped."""
        self.model.answer = answer
        return self.loop.run_until_complete(self._call(body))

    async def _call(self, body: bytes) -> int:
        path = "/v2/models/m/infer"
        scope = {
            **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1"},
            **{"method": "POST", "scheme": "http", "path": path, "raw_path": path.encode()},
            **{"query_string": b"", "root_path": "", "client": ("", 1), "server": ("", 80)},
            "headers": [(b"content-type", b"application/json")],
        }
        statuses: list[int] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        await self.app(scope, receive, send)
        return statuses[0]


@cache
def endpoint() -> Endpoint:
    return Endpoint()


def reading_model() -> Any:
    kserve = module("kserve")

    class Reading(kserve.Model):  # type: ignore[misc, name-defined]
        answer: Any = None
        arrays: Any = None

        def predict(self, payload: Any, headers: Any = None) -> Any:
            self.arrays = [tensor.as_numpy() for tensor in payload.inputs]
            tensor = kserve.InferOutput("y", list(self.answer.shape), "FP32")
            tensor.set_data_from_numpy(self.answer)
            return kserve.InferResponse("1", "m", [tensor])

    model = Reading("m")
    model.ready = True
    return model


def json_body(arrays: list[Any]) -> bytes:
    inputs = [
        {"name": f"x{i}", "shape": [a.size], "datatype": datatype_of(a), "data": a.tolist()}
        for i, a in enumerate(arrays)
    ]
    return json.dumps({"inputs": inputs}).encode()


def json_request(body: bytes) -> Any:
    """The arrays that the model gets."""
    assert endpoint().infer(body, floats(1)) == 200
    return endpoint().model.arrays


def json_response(array: Any) -> int:
    return endpoint().infer(json_body([floats(1)]), array)


# --- JSON, over the loopback interface ---

START_SECONDS = 30.0


@cache
def url_of_server() -> str:
    """KServe's REST application under uvicorn, in a thread that ends with the process."""
    uvicorn, port = module("uvicorn"), triton_tools().free_port()
    config = uvicorn.Config(endpoint().app, host=LOOPBACK, port=port, log_level="warning")
    server = uvicorn.Server(config)
    Thread(target=server.run, daemon=True).start()
    deadline = time.monotonic() + START_SECONDS
    while not server.started:
        if time.monotonic() > deadline:
            raise RuntimeError("KServe's application did not start")
        time.sleep(0.05)
    return f"http://{LOOPBACK}:{port}/v2/models/m/infer"


def body_pool_and_url(arrays: list[Any]) -> tuple[bytes, Any, str]:
    endpoint().model.answer = floats(1)
    return json_body(arrays), module("urllib3").PoolManager(), url_of_server()


def post_body(sent: tuple[bytes, Any, str]) -> Any:
    """The arrays that the model gets."""
    body, pool, url = sent
    response = pool.request("POST", url, body=body, headers={"Content-Type": "application/json"})
    assert response.status == 200, response.data[:200]
    return endpoint().model.arrays


CASES = {
    f"{step}, {name}": Case(lambda make=make, prepare=prepare: prepare(make()), run)  # type: ignore[misc]
    for step, prepare, run in (
        ("request", request, lambda body: decoded(body).shape),
        ("request, as_numpy", request, lambda body: decoded(body).as_numpy()),
        ("request, data", request, lambda body: list(decoded(body).data)),
        ("response", lambda array: array, response),
    )
    for name, make in ARRAYS.items()
}
CASES[f"response as JSON, {NUMBERS}"] = Case(
    ARRAYS[NUMBERS], lambda array: response(array, is_binary=False)
)
CASES |= {
    f"JSON request, as_numpy, {name}": Case(lambda make=make: json_body(make()), json_request)  # type: ignore[misc]
    for name, make in JSON_BODIES.items()
}
CASES |= {
    f"REST JSON body, {name}": Case(lambda make=make: body_pool_and_url(make()), post_body)  # type: ignore[misc]
    for name, make in JSON_BODIES.items()
}
CASES[f"JSON response, {NUMBERS}"] = Case(ARRAYS[NUMBERS], json_response)
