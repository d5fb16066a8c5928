"""Measure functions of other packages, alone and with tensorwire's integration installed.

To add a case, add an entry to the table of its package.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from http.client import HTTPConnection
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw
from tensorwire.client import Client
from tensorwire.grpc_messages import SERVICE

from .bench_grpc import encode_triton
from .bench_http import datatype_of
from .contenders import ENVIRONMENTS, installed, module, triton_decode, triton_encode, triton_inputs
from .measure import OURS, measure, measure_pairs, measure_turns, measuring
from .report import ALONE, ON_TENSORWIRE, SMALL
from .servers import LOOPBACK, SERVERS, free_port
from .workloads import Message, Part, floats, numbered_texts, objects, one, texts

START_SECONDS = 30.0


@dataclass(frozen=True)
class Case:
    """One measurement: ``run`` is called with the result of ``prepare``, and calls the package.

    ``run_on_tensorwire`` is called instead if a program can use a faster function when the
    integration is installed. Its result is the same. ``finish`` is called with the result of
    ``prepare`` after the measurement.

    ``in_turns`` is for whole requests, whose time depends on the state of the machine more than on
    the integration: both contenders are then measured in one benchmark, on the same server and
    connection.
    """

    prepare: Callable[[], Any]
    run: Callable[[Any], Any]
    run_on_tensorwire: Callable[[Any], Any] | None = None
    finish: Callable[[Any], None] | None = None
    in_turns: bool = False


def is_same(one: Any, other: Any) -> bool:
    """Return whether values and types are equal, including those of elements."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


# --- tritonclient ---


def triton_response(*arrays: Any, is_binary: bool = True) -> tuple[bytes, int | None, list[str]]:
    """Return the body of a response, its header length and the names of its outputs."""
    tensors = [tw.Tensor(f"y{i}", a, binary=is_binary) for i, a in enumerate(arrays)]
    frame = tw.encode_response(tw.InferResponse(tensors))
    return bytes(frame), frame.header_length, [tensor.name for tensor in tensors]


def shared_memory(elements: Any) -> tuple[Any, tuple[int, ...]]:
    """Return a handle of shared memory with the elements and unused space, and their shape."""
    memory = memoryview(tw.encode_bytes(elements) + bytes(4096))
    return SimpleNamespace(_mpsm_handle=SimpleNamespace(buf=memory)), elements.shape


def serialize(elements: Any) -> Any:
    return module("tritonclient.utils").serialize_byte_tensor(elements).item()


def deserialize(wire: bytes) -> Any:
    return module("tritonclient.utils").deserialize_bytes_tensor(wire)


def read_shared_memory(handle_and_shape: tuple[Any, tuple[int, ...]]) -> Any:
    utils = module("tritonclient.utils.shared_memory")
    handle, shape = handle_and_shape
    return utils.get_contents_as_numpy(handle, np.object_, shape)


def triton_request_body(message: Message) -> Any:
    """Create InferInputs with their data, and the body of a request."""
    return triton_encode(triton_inputs(message.parts))


def triton_result(response: tuple[bytes, int | None, list[str]]) -> Any:
    """Create the InferResult of a body, and the array of each output."""
    return triton_decode(*response)


@cache
def serve_port() -> int:
    """Start `tensorwire serve`, which is stopped when the process ends."""
    running = ExitStack()
    atexit.register(running.close)
    return running.enter_context(SERVERS["tensorwire serve"]()).port


def triton_client(array: Any) -> tuple[Any, Any]:
    address = f"{LOOPBACK}:{serve_port()}"
    return module("tritonclient.http").InferenceServerClient(address), array


def echo_input(array: Any) -> list[Any]:
    return triton_inputs([("INPUT0", array, "FP32", list(array.shape), True)])


def infer_by_http(client_and_array: tuple[Any, Any]) -> Any:
    client, array = client_and_array
    return client.infer("identity_fp32", echo_input(array)).as_numpy("OUTPUT0")


def triton_aio_client(array: Any) -> tuple[Any, Any, Any]:
    address, loop = f"{LOOPBACK}:{serve_port()}", asyncio.new_event_loop()

    async def connect() -> Any:
        return module("tritonclient.http.aio").InferenceServerClient(address)

    return loop, loop.run_until_complete(connect()), array


def infer_by_aio(loop_and_client: tuple[Any, Any, Any]) -> Any:
    loop, client, array = loop_and_client
    # Otherwise aiohttp requests a compressed response, which Triton then sends.
    headers = {"Accept-Encoding": "identity"}
    call = client.infer("identity_fp32", echo_input(array), headers=headers)
    return loop.run_until_complete(call).as_numpy("OUTPUT0")


def close_http(client_and_array: tuple[Any, Any]) -> None:
    client_and_array[0].close()


def close_aio(loop_and_client: tuple[Any, Any, Any]) -> None:
    loop, client, _ = loop_and_client
    loop.run_until_complete(client.close())
    loop.close()


WHOLE_CALLS = {
    "128 B FP32": 32,
    "64 KB FP32": 16_000,
    "1 MB FP32": 250_000,
    "4 MB FP32": 1 << 20,
    "64 MB FP32": 16_000_000,
}
SHORT, LONG = "300k x 0-40 B", "100k x 100-300 B"
TRITONCLIENT = {
    f"serialize {SHORT}": Case(lambda: texts(300_000, 0, 40), serialize),
    f"serialize {LONG}": Case(lambda: texts(100_000, 100, 300), serialize),
    f"serialize str {SHORT}": Case(
        lambda: tw.decode_bytes(tw.encode_bytes(texts(300_000, 0, 40))).as_strings(), serialize
    ),
    f"deserialize {SHORT}": Case(lambda: tw.encode_bytes(texts(300_000, 0, 40)), deserialize),
    f"deserialize {LONG}": Case(lambda: tw.encode_bytes(texts(100_000, 100, 300)), deserialize),
    f"shared memory {SHORT}": Case(
        lambda: shared_memory(texts(300_000, 0, 40)), read_shared_memory
    ),
    "request body 128 B FP32": Case(lambda: one(floats(32)), triton_request_body),
    "request body 1 MB FP32": Case(lambda: one(floats(250_000)), triton_request_body),
    "request body 40 MB FP32": Case(lambda: one(floats(10_000_000)), triton_request_body),
    f"request body BYTES {SHORT}": Case(lambda: one(texts(300_000, 0, 40)), triton_request_body),
    "response 128 B FP32": Case(lambda: triton_response(floats(32)), triton_result),
    "response 1 MB FP32": Case(lambda: triton_response(floats(250_000)), triton_result),
    "response 100 MB FP32": Case(lambda: triton_response(floats(25_000_000)), triton_result),
    "response 2 x 40 MB FP32": Case(
        lambda: triton_response(*[floats(10_000_000)] * 2), triton_result
    ),
    f"response BYTES {SHORT}": Case(lambda: triton_response(texts(300_000, 0, 40)), triton_result),
    "gRPC request 40 MB FP32": Case(lambda: floats(10_000_000), encode_triton),
    f"gRPC request BYTES {SHORT}": Case(lambda: texts(300_000, 0, 40), encode_triton),
    f"gRPC response BYTES {SHORT}": Case(
        lambda: triton_grpc_result(texts(300_000, 0, 40)), lambda result: result.as_numpy("y")
    ),
}
for size, n in WHOLE_CALLS.items():
    TRITONCLIENT[f"infer {size}"] = Case(
        lambda n=n: triton_client(floats(n)),  # type: ignore[misc]
        infer_by_http,
        finish=close_http,
        in_turns=True,
    )
    TRITONCLIENT[f"aio infer {size}"] = Case(
        lambda n=n: triton_aio_client(floats(n)),  # type: ignore[misc]
        infer_by_aio,
        finish=close_aio,
        in_turns=True,
    )


# --- tritonclient: small messages ---

N_ELEMENTS, N_TENSORS, SIZES = (1, 16, 256), (1, 16, 50), {"4 B": 4, "4 KB": 4096}


def short_elements(text: Any, n_elements: int) -> Any:
    return objects([text % i for i in range(n_elements)])


def several_floats(n_arrays: int, nbytes: int) -> list[Any]:
    return [floats(nbytes // 4) for _ in range(n_arrays)]


def one_array(make: Callable[[], Any]) -> list[Any]:
    return [make()]


Arrays = Mapping[str, Callable[[], Any]]
SMALL_BYTES: Arrays = {
    f"BYTES, {n} {name}": partial(short_elements, text, n)
    for name, text in {"bytes": b"text %d", "str": "text %d"}.items()
    for n in N_ELEMENTS
}
SMALL_ARRAYS: Arrays = {
    **{f"FP32, {size}": partial(floats, nbytes // 4) for size, nbytes in SIZES.items()},
    **SMALL_BYTES,
}
SMALL_LISTS: Arrays = {
    f"{n} x {size}": partial(several_floats, n, nbytes)
    for n in N_TENSORS
    for size, nbytes in SIZES.items()
}
SMALL_JSON: Arrays = {f"{n} x 4 B": partial(several_floats, n, 4) for n in N_TENSORS}
SMALL_RESPONSES: Arrays = {
    **SMALL_LISTS,
    **{name: partial(one_array, make) for name, make in SMALL_BYTES.items()},
}


class TritonReply:
    """A response of the HTTP transport of tritonclient, which can be read repeatedly."""

    def __init__(self, body: bytes, header_length: int | None, names: list[str]) -> None:
        self.parts = {header_length: body[:header_length], None: body[header_length:]}
        self.headers = {"Inference-Header-Content-Length": str(header_length)}

    def get(self, name: str) -> str | None:
        return self.headers.get(name)

    def read(self, length: int | None = None) -> bytes:
        return self.parts[length]


def triton_input(transport: str, array: Any) -> tuple[Any, Any]:
    """Return an InferInput and the array to set."""
    api = module(f"tritonclient.{transport}")
    return api.InferInput("x", list(array.shape), datatype_of(array)), array


def set_data(input_and_array: tuple[Any, Any]) -> Any:
    tensor, array = input_and_array
    tensor.set_data_from_numpy(array)
    return list(tensor.shape())


def triton_parts(arrays: list[Any]) -> list[Part]:
    return [(f"x{i}", array, "FP32", [array.size], True) for i, array in enumerate(arrays)]


def triton_grpc_result(array: Any) -> Any:
    contents = tw.encode_bytes(array) if array.dtype == np.object_ else array.tobytes()
    reply = module("tritonclient.grpc.service_pb2").ModelInferResponse()
    reply.raw_output_contents.append(contents)
    reply.outputs.add(name="y", datatype=datatype_of(array), shape=array.shape)
    return module("tritonclient.grpc").InferResult(reply)


def small_cases(
    function: str,
    arrays: Arrays,
    prepare: Callable[[Any], Any],
    run: Callable[[Any], Any],
    *,
    in_turns: bool = False,
) -> dict[str, Case]:
    """Return a case for each entry of ``arrays``, whose result is the argument of ``prepare``."""

    def case(make: Callable[[], Any]) -> Case:
        return Case(lambda: prepare(make()), run, in_turns=in_turns)

    return {f"{function}, {name}": case(make) for name, make in arrays.items()}


def parse_body(response: tuple[bytes, int | None, list[str]]) -> Any:
    body, header_length, _ = response
    client = module("tritonclient.http").InferenceServerClient
    return client.parse_response_body(body, header_length=header_length).get_response()


def parse_reply(reply: TritonReply) -> Any:
    return module("tritonclient.http").InferResult(reply, False).get_response()


TRITONCLIENT_SMALL: Mapping[str, Case] = {
    **small_cases("serialize_byte_tensor", SMALL_BYTES, lambda array: array, serialize),
    **small_cases("deserialize_bytes_tensor", SMALL_BYTES, tw.encode_bytes, deserialize),
    **small_cases("get_contents_as_numpy", SMALL_BYTES, shared_memory, read_shared_memory),
    **small_cases(
        "http set_data_from_numpy", SMALL_ARRAYS, partial(triton_input, "http"), set_data
    ),
    **small_cases(
        "grpc set_data_from_numpy", SMALL_ARRAYS, partial(triton_input, "grpc"), set_data
    ),
    **small_cases(
        "grpc as_numpy", SMALL_ARRAYS, triton_grpc_result, lambda result: result.as_numpy("y")
    ),
    **small_cases(
        "InferResult.__init__",
        SMALL_LISTS,
        lambda arrays: TritonReply(*triton_response(*arrays)),
        parse_reply,
    ),
    **small_cases(
        "parse_response_body", SMALL_LISTS, lambda arrays: triton_response(*arrays), parse_body
    ),
    **small_cases(
        "whole request",
        SMALL_LISTS,
        triton_parts,
        lambda parts: triton_encode(triton_inputs(parts)),
    ),
    **small_cases(
        "whole response", SMALL_RESPONSES, lambda arrays: triton_response(*arrays), triton_result
    ),
    **small_cases(
        "whole response in JSON",
        SMALL_JSON,
        lambda arrays: triton_response(*arrays, is_binary=False),
        triton_result,
    ),
}


# --- JSON requests to the REST servers of KServe and MLServer ---

NUMBERS = "4 MB FP32"


def numbers() -> Any:
    return floats(1 << 20)


def inputs_as_json(arrays: list[Any]) -> bytes:
    inputs = [
        {"name": f"x{i}", "shape": [a.size], "datatype": datatype_of(a), "data": a.tolist()}
        for i, a in enumerate(arrays)
    ]
    return json.dumps({"inputs": inputs}).encode()


async def asgi_post(app: Any, path: str, body: bytes) -> int:
    """Send JSON to an ASGI application, and return the status of the response."""
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

    await app(scope, receive, send)
    return statuses[0]


def wait_until(is_ready: Callable[[], bool], server: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{server} did not start")
        time.sleep(0.05)


JSON_INPUTS: dict[str, Callable[[], list[Any]]] = {
    "1 FP32": lambda: [floats(1)],
    "50 x 32 FP32": lambda: [floats(32) for _ in range(50)],
    NUMBERS: lambda: [numbers()],
}
KSERVE_JSON_INPUTS = JSON_INPUTS | {
    "BYTES 100k x 16 B": lambda: [objects(numbered_texts(100_000))],
}
KSERVE_ARRAYS: dict[str, Callable[[], Any]] = {
    "128 B FP32": lambda: floats(32),
    "4 KB FP32": lambda: floats(1_000),
    "64 KB FP32": lambda: floats(16_000),
    "1 MB FP32": lambda: floats(250_000),
    "BYTES 100k x 0-40 B": lambda: texts(100_000, 0, 40),
}


# --- KServe: its REST application, called directly or over the loopback interface ---


KSERVE_PATH = "/v2/models/m/infer"


class KServeApp:
    """KServe's application with one model, which reads all inputs and returns ``answer``.

    Its route for tensorwire has effect only while the integration is installed.
    """

    def __init__(self) -> None:
        self.model = kserve_model()
        registry = module("kserve").ModelRepository()
        registry.update(self.model)
        configure_kserve_logging()
        plane = module("kserve.protocol.dataplane").DataPlane(registry)
        extension = module("kserve.protocol.model_repository_extension").ModelRepositoryExtension
        rest = module("kserve.protocol.rest.server").RESTServer
        with installed("tensorwire.integrations.kserve"):
            server = rest("kserve.model_server:app", plane, extension(registry), http_port=0)
            server.create_application()
        self.app = module("kserve.model_server").app
        self.loop = asyncio.new_event_loop()

    def infer(self, body: bytes, answer: Any) -> int:
        """Return the status of the response."""
        self.model.answer = answer
        return self.loop.run_until_complete(asgi_post(self.app, KSERVE_PATH, body))


def configure_kserve_logging() -> None:
    """Let KServe log as its server does, but to the null device."""
    logging = module("kserve.logging")
    settings = deepcopy(logging.KSERVE_LOG_CONFIG)
    for handler in settings["handlers"].values():
        handler.pop("stream")
        handler |= {"class": "logging.FileHandler", "filename": os.devnull}
    logging.configure_logging(settings)


def kserve_model() -> Any:
    kserve = module("kserve")

    class Reading(kserve.Model):  # type: ignore[misc, name-defined]
        answer: Any = None
        arrays: Any = None

        def read(self, tensor: Any) -> Any:
            return tensor.as_numpy()

        def predict(self, payload: Any, headers: Any = None) -> Any:
            self.arrays = [self.read(tensor) for tensor in payload.inputs]
            tensor = kserve.InferOutput("y", list(self.answer.shape), datatype_of(self.answer))
            tensor.set_data_from_numpy(self.answer)
            return kserve.InferResponse("1", "m", [tensor])

    model = Reading("m")
    model.ready = True
    return model


@cache
def kserve_app() -> KServeApp:
    return KServeApp()


def kserve_json_request(body: bytes) -> Any:
    """Return the arrays that the model reads."""
    assert kserve_app().infer(body, floats(1)) == 200
    return kserve_app().model.arrays


def kserve_json_lists(body: bytes) -> Any:
    """Return the lists that the model reads."""
    app = kserve_app()
    app.model.read = lambda tensor: tensor.data
    try:
        return kserve_json_request(body)
    finally:
        del app.model.read


def kserve_json_response(array: Any) -> int:
    return kserve_app().infer(inputs_as_json([floats(1)]), array)


@cache
def kserve_port() -> int:
    """Start KServe's application under uvicorn, in a thread that ends with the process."""
    uvicorn, port = module("uvicorn"), free_port()
    config = uvicorn.Config(kserve_app().app, host=LOOPBACK, port=port, log_config=None)
    server = uvicorn.Server(config)
    Thread(target=server.run, daemon=True).start()
    wait_until(lambda: bool(server.started), "KServe's application")
    return port


def kserve_post(arrays: list[Any]) -> tuple[bytes, HTTPConnection]:
    """Return the body of a request, and a connection."""
    kserve_app().model.answer = floats(1)
    return inputs_as_json(arrays), HTTPConnection(LOOPBACK, kserve_port())


def post_to_kserve(sent: tuple[bytes, HTTPConnection]) -> Any:
    """Return the arrays that the model reads."""
    body, connection = sent
    connection.request("POST", KSERVE_PATH, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    assert response.status == 200, text[:200]
    return kserve_app().model.arrays


# --- KServe: whole REST requests ---


def clients_of_kserve(array: Any) -> tuple[Client, Any]:
    """Return a client, and the array that it sends and the model returns."""
    kserve_app().model.answer = array
    return Client(f"{LOOPBACK}:{kserve_port()}"), array


def binary_answer(sent: tuple[Client, Any]) -> Any:
    """Ask for a binary response; the model passes no arguments to InferResponse."""
    client, array = sent
    return client.infer("m", {"x": array})["y"].as_numpy()


KSERVE: dict[str, Case] = {
    f"REST request, binary, {name}": Case(
        lambda make=make: clients_of_kserve(make()),  # type: ignore[misc]
        binary_answer,
        in_turns=True,
    )
    for name, make in KSERVE_ARRAYS.items()
}
KSERVE |= {
    f"REST request, JSON, {name}": Case(
        lambda make=make: kserve_post(make()),  # type: ignore[misc]
        post_to_kserve,
        in_turns=True,
    )
    for name, make in KSERVE_JSON_INPUTS.items()
}
KSERVE[f"JSON response, {NUMBERS}"] = Case(numbers, kserve_json_response)

# Whole requests as well, but without a network.
KSERVE_SMALL: Mapping[str, Case] = {
    **small_cases("JSON request, as_numpy", SMALL_LISTS, inputs_as_json, kserve_json_request),
    **small_cases("JSON request, data", SMALL_LISTS, inputs_as_json, kserve_json_lists),
}


# --- MLServer: its REST server ---


def number_codec() -> Any:
    return module("mlserver.codecs").NumpyCodec


def text_codec() -> Any:
    return module("mlserver.codecs").StringCodec


@cache
def mlserver_url() -> str:
    """Start MLServer with an identity model, in a thread that ends with the process.

    It runs in this process, because the integration is installed here.
    """
    mlserver, registry = module("mlserver"), module("mlserver.registry")
    handlers, rest = module("mlserver.handlers"), module("mlserver.rest")
    model = identity_model()
    port = free_port()
    settings = mlserver.Settings(host=LOOPBACK, http_port=port, parallel_workers=0, debug=False)

    async def serve() -> None:
        models = registry.MultiModelRegistry(model_initialiser=lambda settings: model)
        await models.load(model.settings)
        repository = handlers.ModelRepositoryHandlers(repository=None, model_registry=models)
        plane = data_plane(settings, models)
        await rest.RESTServer(settings, plane, repository).start()

    Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    url = f"http://{LOOPBACK}:{port}"
    with Client(url) as client:
        wait_until(lambda: is_model_ready(client), "MLServer")
    return url


def data_plane(settings: Any, models: Any) -> Any:
    """Return a DataPlane without its metrics, because only one can register them in a process."""
    plane = module("mlserver.handlers").DataPlane(settings, models)
    for what in ("Success", "Failure", "Duration"):
        module("prometheus_client").REGISTRY.unregister(getattr(plane, f"_ModelInferRequest{what}"))
    return plane


def is_model_ready(client: Client) -> bool:
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


def clients_and_numbers(n_elements: int) -> Sent:
    url = mlserver_url()
    return Client(url), module("urllib3").PoolManager(), url, floats(n_elements)


def infer_json(sent: Sent) -> Any:
    """Create and read lists and JSON, as clients without the binary extension do."""
    _, pool, url, array = sent
    tensor = {"name": "x", "datatype": "FP32", "shape": [array.size], "data": array.tolist()}
    path = f"{url}/v2/models/identity/infer"
    answer = pool.request("POST", path, json={"inputs": [tensor]})
    assert answer.status == 200, answer.data[:200]
    return np.array(answer.json()["outputs"][0]["data"], np.float32)


def infer_binary(sent: Sent) -> Any:
    client, _, _, array = sent
    column = client.infer("identity", {"x": array})["y"].as_numpy()
    return column.reshape(-1)  # NumpyCodec converts a vector to a column


def mlserver_post(arrays: list[Any]) -> tuple[bytes, Any, str]:
    """Return the body of a request, a connection pool and the URL."""
    path = f"{mlserver_url()}/v2/models/identity/infer"
    return inputs_as_json(arrays), module("urllib3").PoolManager(), path


def post_to_mlserver(sent: tuple[bytes, Any, str]) -> memoryview:
    """Return the end of the response, from its outputs on. Its beginning has a new id."""
    body, pool, path = sent
    answer = pool.request("POST", path, body=body, headers={"Content-Type": "application/json"})
    assert answer.status == 200, answer.data[:200]
    return memoryview(answer.data)[answer.data.index(b'"outputs"') :]


WORDS = "BYTES 100k x 16 B"
MLSERVER = {
    f"REST echo, JSON or binary, {size} FP32": Case(
        partial(clients_and_numbers, n_elements), infer_json, infer_binary, in_turns=True
    )
    for size, n_elements in {"1 MB": 250_000, "4 MB": 1 << 20}.items()
}
MLSERVER |= {
    f"REST echo, JSON, {NUMBERS}": Case(
        partial(clients_and_numbers, 1 << 20), infer_json, in_turns=True
    ),
}
MLSERVER |= {
    f"REST request, JSON, {name}": Case(
        lambda make=make: mlserver_post(make()),  # type: ignore[misc]
        post_to_mlserver,
        in_turns=True,
    )
    for name, make in JSON_INPUTS.items()
}


# --- MLServer: its REST application, called directly, and its gRPC service ---


class MLServerApp:
    """MLServer's application with one model, which calls ``use`` and returns ``outputs``.

    There are two gRPC servers on the loopback interface, the second for calls while the integration
    is installed: it has effect only on services that are added to a server later.
    """

    def __init__(self) -> None:
        mlserver, app = module("mlserver"), module("mlserver.rest.app")
        self.settings = mlserver.ModelSettings(name="m", implementation=mlserver.MLModel)
        self.ready = True
        self.use: Callable[[Any], Any] = list
        self.outputs: Callable[[], Any] = list
        settings = mlserver.Settings(debug=False, metrics_endpoint=None)
        self.plane = data_plane(settings, self)
        self.app = app.create_app(settings, self.plane, None)
        self.is_installed = module("tensorwire.integrations.mlserver").is_installed
        self.loop = asyncio.new_event_loop()
        self.servers: list[Any] = []
        self.calls: list[Callable[[bytes], bytes]] = []

    def start_grpc(self) -> None:
        """Start the gRPC servers, in a thread that ends with the process."""
        grpc, ports = module("grpc"), []
        servicer = module("mlserver.grpc.servicers").InferenceServicer(self.plane, None)
        service = module("mlserver.grpc.dataplane_pb2_grpc")
        options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]

        async def start() -> None:
            server = grpc.aio.server(options=options)
            service.add_GRPCInferenceServiceServicer_to_server(servicer, server)
            ports.append(server.add_insecure_port(f"{LOOPBACK}:0"))
            self.servers.append(server)
            await server.start()

        loop = asyncio.new_event_loop()
        Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(start(), loop).result()
        with installed("tensorwire.integrations.mlserver"):
            asyncio.run_coroutine_threadsafe(start(), loop).result()
        channels = [grpc.insecure_channel(f"{LOOPBACK}:{port}", options) for port in ports]
        self.calls = [channel.unary_unary(f"/{SERVICE}/ModelInfer") for channel in channels]

    async def get_model(self, *_: Any) -> Any:
        return self

    async def predict(self, payload: Any) -> Any:
        for tensor in payload.inputs:
            self.use(tensor)
        response = module("mlserver.types").InferenceResponse
        return response(model_name="m", outputs=self.outputs())

    def infer(self, body: bytes, use: Callable[[Any], Any], outputs: Callable[[], Any]) -> int:
        """Return the status of the response."""
        self.use, self.outputs = use, outputs
        return self.loop.run_until_complete(asgi_post(self.app, "/v2/models/m/infer", body))

    def infer_grpc(
        self, message: bytes, use: Callable[[Any], Any], outputs: Callable[[], Any]
    ) -> int:
        """Return the length of the response."""
        self.use, self.outputs = use, outputs
        if not self.calls:
            self.start_grpc()
        return len(self.calls[self.is_installed()](message))


@cache
def mlserver_app() -> MLServerApp:
    return MLServerApp()


def array_output(array: Any) -> Any:
    return number_codec().encode_output("y", array)


def list_output(values: list[Any]) -> Any:
    output = module("mlserver.types").ResponseOutput
    return output(name="y", datatype="FP32", shape=[len(values)], data=values)


def text_output(texts: list[str]) -> Any:
    return text_codec().encode_output("y", texts)


def array_of(tensor: Any) -> Any:
    return number_codec().decode_input(tensor)


def list_of(tensor: Any) -> list[Any]:
    return list(tensor.data)


def text_list(tensor: Any) -> list[str]:
    decoded: list[str] = text_codec().decode_input(tensor)
    return decoded


Echo = tuple[bytes, Callable[[Any], Any], Callable[[], Any]]
# How a model reads an input, and makes an output of the same data.
Use = tuple[Callable[[Any], Any], Callable[[Any], Any]]
ARRAYS: Use = (array_of, array_output)
LISTS: Use = (list_of, list_output)
TEXTS: Use = (text_list, text_output)


def echo_of(body: bytes, arrays: list[Any], use: Use) -> Echo:
    """Return a body with the arrays, and functions of a model that returns the same data."""
    read, make_output = use
    values = arrays if use is ARRAYS else [array.tolist() for array in arrays]
    return body, read, lambda: [make_output(value) for value in values]


def json_echo(arrays: list[Any], use: Use) -> Echo:
    return echo_of(inputs_as_json(arrays), arrays, use)


def grpc_echo(arrays: list[Any], use: Use, *, is_raw: bool) -> Echo:
    """Return a gRPC request with the arrays, as raw or as typed contents, and the functions."""
    request = module("mlserver.grpc.dataplane_pb2").ModelInferRequest(model_name="m")
    for i, array in enumerate(arrays):
        datatype = datatype_of(array)
        tensor = request.inputs.add(name=f"x{i}", datatype=datatype, shape=array.shape)
        if is_raw:
            packed = tw.encode_bytes(array) if datatype == "BYTES" else array.tobytes()
            request.raw_input_contents.append(packed)
        elif datatype == "BYTES":
            tensor.contents.bytes_contents.extend(element.encode() for element in array)
        else:
            tensor.contents.fp32_contents.extend(array.tolist())
    return echo_of(request.SerializeToString(), arrays, use)


def call_rest(echo: Echo) -> int:
    return mlserver_app().infer(*echo)


def call_grpc(echo: Echo) -> int:
    return mlserver_app().infer_grpc(*echo)


def words() -> Any:
    return objects(numbered_texts(100_000))


for workload, make, form, use in (
    (NUMBERS, numbers, "arrays", ARRAYS),
    (NUMBERS, numbers, "lists", LISTS),
    (WORDS, words, "str", TEXTS),
):
    arrays = lambda make=make: [make()]  # noqa: E731
    MLSERVER[f"JSON echo without a network, {workload}, {form}"] = Case(
        lambda arrays=arrays, use=use: json_echo(arrays(), use),  # type: ignore[misc]
        call_rest,
        in_turns=True,
    )
    MLSERVER[f"raw gRPC echo, {workload}, {form}"] = Case(
        lambda arrays=arrays, use=use: grpc_echo(arrays(), use, is_raw=True),  # type: ignore[misc]
        call_grpc,
        in_turns=True,
    )


# --- MLServer: small messages ---


def several_texts(n_tensors: int, n_elements: int) -> list[Any]:
    return [short_elements("text %d", n_elements) for _ in range(n_tensors)]


SMALL_TEXTS: Arrays = {
    f"{n_tensors} x {n_elements} str": partial(several_texts, n_tensors, n_elements)
    for n_tensors in N_TENSORS
    for n_elements in N_ELEMENTS
}


def mlserver_small_cases(name: str, arrays: Arrays, use: Use) -> dict[str, Case]:
    """Return the cases of whole requests whose model uses a codec or lists."""
    return {
        **small_cases(f"JSON request, {name}", arrays, partial(json_echo, use=use), call_rest),
        **small_cases(
            f"gRPC request, raw, {name}",
            arrays,
            partial(grpc_echo, use=use, is_raw=True),
            call_grpc,
            in_turns=True,
        ),
        **small_cases(
            f"gRPC request, typed, {name}",
            arrays,
            partial(grpc_echo, use=use, is_raw=False),
            call_grpc,
            in_turns=True,
        ),
    }


MLSERVER_SMALL: Mapping[str, Case] = {
    **mlserver_small_cases("NumpyCodec", SMALL_LISTS, ARRAYS),
    **mlserver_small_cases("StringCodec", SMALL_TEXTS, TEXTS),
    **mlserver_small_cases("lists", SMALL_LISTS, LISTS),
}


# --- the benchmarks ---

# The keys are the names of modules in tensorwire.integrations, and of environments.
PACKAGES: Mapping[str, Mapping[str, Case]] = {
    "tritonclient": TRITONCLIENT,
    "kserve": KSERVE,
    "mlserver": MLSERVER,
}

# Every function that is replaced, on small messages. `run_on_tensorwire` is not used here.
SMALL_MESSAGES: Mapping[str, Mapping[str, Case]] = {
    "tritonclient": TRITONCLIENT_SMALL,
    "kserve": KSERVE_SMALL,
    "mlserver": MLSERVER_SMALL,
}


def markers(package: str, workload: str) -> list[pytest.MarkDecorator]:
    is_quick = any(size in workload for size in ("128 B", "300k", "4 MB"))
    names = [*["quick"] * is_quick, *[package] * (package in ENVIRONMENTS)]
    return [getattr(pytest.mark, name) for name in names]


BOTH = "in turns"
CASES = [
    pytest.param(package, workload, measured, marks=markers(package, workload))
    for package, cases in PACKAGES.items()
    for workload, case in cases.items()
    for measured in ([BOTH] if case.in_turns else [ON_TENSORWIRE, ALONE])
]
SMALL_CASES = [
    pytest.param(package, workload, marks=markers(package, workload))
    for package, cases in SMALL_MESSAGES.items()
    for workload in cases
]
# For the cases that are measured in turns. A call over HTTP is interrupted by the scheduler more
# often than a function, so its rounds are longer.
ROUND_SECONDS, HTTP_ROUND_SECONDS = 0.002, 0.05


# aiohttp warns when tritonclient alone sends a large body.
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.parametrize(("package", "workload", "measured"), CASES)
def test_integration(
    benchmark: BenchmarkFixture, package: str, workload: str, measured: str
) -> None:
    case = PACKAGES[package][workload]
    table, on_tensorwire = f"integration: {package}", f"{package} on tensorwire"
    contender = package if measured == ALONE else on_tensorwire
    with measuring(benchmark, table, workload, contender), ExitStack() as stack:
        argument = case.prepare()
        if case.finish is not None:
            stack.callback(case.finish, argument)
        expected = case.run(argument)

        def check(found: object) -> None:
            assert is_same(found, expected)

        starts = {
            on_tensorwire: partial(
                start,
                case.run_on_tensorwire or case.run,
                argument,
                f"tensorwire.integrations.{package}",
            ),
            package: partial(start, case.run, argument),
        }
        if measured == BOTH:
            measure_turns(benchmark, table, workload, starts, check)
            return
        with starts[contender]() as function:
            measure(benchmark, check, function)


@contextmanager
def start(
    run: Callable[[Any], Any], argument: Any, *integrations: str
) -> Iterator[Callable[[], Any]]:
    with installed(*integrations):
        yield partial(run, argument)


@pytest.mark.parametrize(("package", "workload"), SMALL_CASES)
def test_small_messages(benchmark: BenchmarkFixture, package: str, workload: str) -> None:
    case = SMALL_MESSAGES[package][workload]
    with measuring(benchmark, SMALL, f"{package}: {workload}", OURS):
        argument = case.prepare()
        expected = case.run(argument)
        with installed(f"tensorwire.integrations.{package}"):
            assert is_same(case.run(argument), expected)
            measure_in_turns(benchmark, package, case, argument)


def measure_in_turns(benchmark: BenchmarkFixture, package: str, case: Case, argument: Any) -> None:
    """Measure a case with and without the integration, which are the two contenders."""
    if benchmark.disabled:
        benchmark(lambda: None)
        return
    integration = module(f"tensorwire.integrations.{package}")

    def switch(with_tensorwire: bool) -> None:
        (integration.install if with_tensorwire else integration.uninstall)()

    round_seconds = HTTP_ROUND_SECONDS if case.in_turns else ROUND_SECONDS
    alone, on_tensorwire = benchmark.pedantic(  # type: ignore[no-untyped-call]
        measure_pairs, (case.run, argument, switch, round_seconds)
    )
    benchmark.extra_info.update(contenders={ON_TENSORWIRE: on_tensorwire, ALONE: alone})
