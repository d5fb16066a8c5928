"""All ways of calling a model with tritonclient, and servers that record the requests.

If tritonclient is not installed, all tests of a module that imports this one are skipped.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing
from http.client import parse_headers
from importlib import import_module
from inspect import isawaitable
from queue import Queue
from typing import Any, NamedTuple

import tensorwire as tw
from interop.samples import Array, bytes_array
from support.grpc_scripted_servers import RecordingServer
from support.servers import HOST, Scripted
from support.servers import http as http_response
from support.tritonclient_comparison import FLOATS, described, module, response
from tensorwire.grpc import encode_response, encode_stream_response

http, http_aio = module("http", "http"), module("http.aio", "http")
grpc, grpc_aio = module("grpc", "grpc"), module("grpc.aio", "grpc")
service = import_module("tritonclient.grpc.service_pb2")

SECONDS = 10
MODEL = {"model_name": "m"}  # of a call without another one
LENGTH = "Inference-Header-Content-Length"
ARRAYS = [FLOATS, FLOATS + 1, bytes_array([b"x", b"\0" * 99]), FLOATS[:2], FLOATS[:0]]

# Takes tritonclient.http or tritonclient.grpc, and returns the arguments of each call.
Calls = Callable[[Any], Iterable[dict[str, Any]]]


# --- inputs ---


def given(
    api: Any, array: Any = FLOATS, name: str = "x", datatype: str = "FP32", shape: Any = None
) -> Any:
    """Return an input of tritonclient.http or tritonclient.grpc with the data of an array."""
    tensor = api.InferInput(name, list(array.shape) if shape is None else shape, datatype)
    return tensor.set_data_from_numpy(array)


def one(api: Any) -> list[dict[str, Any]]:
    """Return the arguments of a call with one input."""
    return [{"inputs": [given(api)]}]


# --- clients ---


def infer(client: Any, call: dict[str, Any]) -> Any:
    return client.infer(**MODEL | call)


def http_async_infer(client: Any, call: dict[str, Any]) -> Any:
    return client.async_infer(**MODEL | call).get_result()


def grpc_async_infer(client: Any, call: dict[str, Any]) -> Any:
    done = Queue[Any]()
    client.async_infer(callback=lambda result, error: done.put((result, error)), **MODEL | call)
    return result_of(*done.get(timeout=SECONDS))


def grpc_stream(client: Any, call: dict[str, Any]) -> Any:
    done = Queue[Any]()
    client.start_stream(lambda result, error: done.put((result, error)), **of_stream(call))
    try:
        try:
            client.async_stream_infer(**MODEL | call)
        except Exception as error:
            # Invalid metadata ends the stream, perhaps before the request. The callback gets why.
            if "error detail is reported through provided callback" not in str(error):
                raise
        return result_of(*done.get(timeout=SECONDS))
    finally:
        client.stop_stream()


async def grpc_aio_stream(client: Any, call: dict[str, Any]) -> Any:
    async def requests() -> AsyncIterator[Any]:
        yield MODEL | call

    async for result, error in client.stream_infer(requests(), **of_stream(call)):
        return result_of(result, error)
    raise AssertionError("the stream has no response")


def of_stream(call: dict[str, Any]) -> dict[str, Any]:
    """Remove the arguments from a call that belong to the stream, and return them."""
    names = ("headers", "compression_algorithm", "stream_timeout")
    return {name: call.pop(name) for name in names if name in call}


def result_of(result: Any, error: Any) -> Any:
    if error is not None:
        raise error
    return result


CLIENTS: dict[str, tuple[Any, Callable[[Any, dict[str, Any]], Any]]] = {
    "http infer": (http, infer),
    "http async_infer": (http, http_async_infer),
    "http aio": (http_aio, infer),
    "grpc infer": (grpc, infer),
    "grpc async_infer": (grpc, grpc_async_infer),
    "grpc stream": (grpc, grpc_stream),
    "grpc aio": (grpc_aio, infer),
    "grpc aio stream": (grpc_aio, grpc_aio_stream),
}
HTTP = [name for name in CLIENTS if name.startswith("http")]
GRPC = [name for name in CLIENTS if name.startswith("grpc")]
STREAMS = [name for name in CLIENTS if name.endswith("stream")]


def connect(api: Any, address: str, **options: Any) -> Any:
    """Return a client for a ``with`` block, which closes it."""
    return closing(api.InferenceServerClient(address, **options))


def arrays(result: Any) -> list[Array | None]:
    return [result.as_numpy(f"OUTPUT{i}") for i in range(6)]


def outcomes(
    client: str, address: str, calls: Calls, read: Any = arrays, prepare: Any = None, **options: Any
) -> list[Any]:
    """Make calls with a new client. Return what is read from each result, or the exception."""
    api, call_model = CLIENTS[client]
    arguments = calls(http if client in HTTP else grpc)

    async def complete(value: Any) -> Any:
        """Return a value, or the result of a coroutine of an asynchronous client."""
        return await value if isawaitable(value) else value

    async def made() -> list[Any]:
        found = []
        opened = api.InferenceServerClient(address, **options)
        try:
            if prepare:
                prepare(opened)
            for call in arguments:
                try:
                    found.append(read(await complete(call_model(opened, call))))
                except (Exception, asyncio.CancelledError) as error:
                    found.append(failure(error))
        finally:
            await complete(opened.close())
        return found

    with warnings.catch_warnings():
        # aiohttp warns about the large bodies of the client without the integration.
        warnings.simplefilter("ignore")
        return asyncio.run(made())


def failure(error: BaseException) -> Any:
    """Return an exception in a form that can be compared."""
    return type(error), re.sub("0x[0-9a-f]+", "ADDRESS", str(error))


# --- servers ---


class Recording(Scripted):
    """A scripted server that keeps the requests: the first line, the headers and the body.

    Bodies in gzip are decompressed, because they contain the time.
    """

    def __init__(self, answers: Any) -> None:
        super().__init__(answers)
        self.requests: list[tuple[bytes, list[tuple[str, str]], bytes]] = []

    def __enter__(self) -> Recording:
        super().__enter__()
        return self

    def read(self, connection: socket.socket) -> bool:
        with connection.makefile("rb") as file:
            line = file.readline()
            if not line:
                return False
            headers = parse_headers(file)
            body = file.read(int(headers["content-length"] or 0))
        fields = [(name, value.replace(self.address, HOST)) for name, value in headers.items()]
        is_gzip = body.startswith(b"\x1f\x8b")
        self.requests.append((line, fields, gzip.decompress(body) if is_gzip else body))
        return True


def http_answer(*arrays: Array, **options: Any) -> bytes:
    body, length = response(*arrays, **options)
    return http_response(body, {LENGTH: str(length)} if length is not None else None)


def grpc_answer(*arrays: Array, client: str = "grpc infer") -> bytes:
    outputs = [tw.Tensor(f"OUTPUT{i}", array) for i, array in enumerate(arrays)]
    response = tw.InferResponse(outputs, model_name="m", id="7", parameters={"p": 1})
    return (encode_stream_response if client in STREAMS else encode_response)(response)


def canonical(request: bytes) -> bytes:
    """Return a request with its parameters sorted. The order of a protobuf map is arbitrary."""
    message = service.ModelInferRequest.FromString(request)
    return bytes(message.SerializeToString(deterministic=True))


class Exchange(NamedTuple):
    results: Any  # what is read from each result, as `described`
    requests: list[Any]
    n_connections: int = 1


def exchange(client: str, calls: Calls = one, answer: Any = None, **options: Any) -> Exchange:
    """Make calls of a server with this answer to each request, or these answers over HTTP."""
    if client in HTTP:
        answers = [http_answer(*ARRAYS) if answer is None else answer] * 3
        with Recording(answer if isinstance(answer, list) else answers) as server:
            found = outcomes(client, server.address, calls, **options)
            return Exchange(described(found), server.requests, server.n_connections)
    with RecordingServer(
        grpc_answer(*ARRAYS, client=client) if answer is None else answer
    ) as grpc_server:
        found = outcomes(client, grpc_server.address, calls, **options)
        sent = zip(grpc_server.requests, grpc_server.metadata, strict=True)
        requests = [
            (canonical(request), {k: v for k, v in metadata.items() if k != "user-agent"})
            for request, metadata in sent
        ]
        return Exchange(described(found), requests)
