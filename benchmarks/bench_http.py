"""A tensor over HTTP loopback, there and back: every size, every client with every server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .contender import installed, module
from .contenders import HTTP, TRITON_BACKEND
from .measure import is_same, measure, measuring
from .missing import Unsupported
from .peers import KSERVE, KSERVE_BACKEND
from .servers import LOOPBACK, Servers, receive_into
from .workloads import floats, texts

Array = NDArray[Any]
Echo = Callable[[], Array]

WORKLOADS: dict[str, Callable[[], Array]] = {
    "1 KB FP32": lambda: floats(256),
    "1 MB FP32": lambda: floats(250_000),
    "16 MB FP32": lambda: floats(4_000_000),
    "64 MB FP32": lambda: floats(16_000_000),
    "100 MB FP32": lambda: floats(25_000_000),
    "BYTES 200k x 0-40 B": lambda: texts(200_000, 0, 40),
}
QUICK = {"1 KB FP32", "16 MB FP32", "BYTES 200k x 0-40 B"}
TIMEOUT_SECONDS = 60.0
# Of 64 MB KServe makes lists for 20 s and more; with our codec, too, its client takes seconds.
KSERVE_MOST_NBYTES = 16_000_000


def datatype_of(array: Array) -> str:
    return "BYTES" if array.dtype.kind == "O" else "FP32"


def model_of(array: Array) -> str:
    return f"identity_{datatype_of(array).lower()}"


# --- the clients: each makes what is measured, which returns the array that came back ---


@contextmanager
def by_sockets(port: int, array: Array) -> Iterator[Echo]:
    """The bytes alone, into kept memory; BYTES come back as they are on the wire."""
    is_text = array.dtype.kind == "O"
    wire = np.frombuffer(tw.encode_bytes(array), np.uint8) if is_text else array
    found = np.empty_like(wire)
    header = wire.nbytes.to_bytes(8, "little")
    sent, received = wire.data.cast("B"), found.data.cast("B")
    with socket.create_connection((LOOPBACK, port), TIMEOUT_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def echo() -> Array:
            connection.sendall(header)
            connection.sendall(sent)
            receive_into(connection, received)
            return found

        yield echo


@contextmanager
def by_http_client(port: int, array: Array) -> Iterator[Echo]:
    """The codec on the standard library: buffer by buffer out, straight into a BodyBuffer in."""
    path = f"/v2/models/{model_of(array)}/infer"
    with closing(HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS)) as connection:

        def echo() -> Array:
            inputs = [tw.Tensor("INPUT0", array)]
            request = tw.InferRequest(inputs, parameters={"binary_data_output": True})
            frame = tw.encode_request(request)
            connection.request("POST", path, body=frame, headers=frame.headers)
            reply = connection.getresponse()
            header_length = tw.header_length(reply.headers)
            body = tw.BodyBuffer(int(reply.headers["Content-Length"]), header_length)
            while not body.complete:
                n = reply.readinto(body.remaining())
                assert n, "the response is too short"
                body.advance(n)
            reply.read()  # nothing is left, and http.client has to see that
            return tw.decode_response(body, header_length)["OUTPUT0"].as_numpy()

        yield echo


@contextmanager
def by_our_client(port: int, array: Array) -> Iterator[Echo]:
    model, url = model_of(array), f"http://{LOOPBACK}:{port}"
    with closing(module("tensorwire.client").Client(url)) as client:

        def echo() -> Array:
            found: Array = client.infer(model, {"INPUT0": array})["OUTPUT0"].as_numpy()
            return found

        yield echo


@contextmanager
def by_our_async_client(port: int, array: Array) -> Iterator[Echo]:
    """In a loop that is kept; what starting a task costs is measured, too."""
    model, url = model_of(array), f"http://{LOOPBACK}:{port}"
    with asyncio.Runner() as loop:
        client = module("tensorwire.client").AsyncClient(url)

        def echo() -> Array:
            response = loop.run(client.infer(model, {"INPUT0": array}))
            found: Array = response["OUTPUT0"].as_numpy()
            return found

        try:
            yield echo
        finally:
            loop.run(client.close())


@contextmanager
def by_tritonclient(port: int, array: Array) -> Iterator[Echo]:
    http, model = module(HTTP), model_of(array)
    url = f"{LOOPBACK}:{port}"
    with closing(http.InferenceServerClient(url, network_timeout=TIMEOUT_SECONDS)) as client:

        def echo() -> Array:
            tensor = http.InferInput("INPUT0", list(array.shape), datatype_of(array))
            tensor.set_data_from_numpy(array)
            found: Array = client.infer(model, [tensor]).as_numpy("OUTPUT0")
            return found

        yield echo


@contextmanager
def by_tritonclient_on_ours(port: int, array: Array) -> Iterator[Echo]:
    with installed(TRITON_BACKEND), by_tritonclient(port, array) as echo:
        yield echo


@contextmanager
def by_kserve(port: int, array: Array) -> Iterator[Echo]:
    """KServe's own client, in a loop that is kept."""
    kserve, model, url = module(KSERVE), model_of(array), f"http://{LOOPBACK}:{port}"
    config = kserve.RESTConfig(protocol="v2", timeout=TIMEOUT_SECONDS)
    with asyncio.Runner() as loop:
        client = kserve.InferenceRESTClient(config)

        async def infer() -> Any:
            tensor = kserve.InferInput("INPUT0", list(array.shape), datatype_of(array))
            tensor.set_data_from_numpy(array)
            binary = {"binary_data_output": True}
            request = kserve.InferRequest(model, [tensor], parameters=binary)
            return await client.infer(url, request, model_name=model)

        def echo() -> Array:
            found: Array = loop.run(infer()).get_output_by_name("OUTPUT0").as_numpy()
            return found

        try:
            yield echo
        finally:
            loop.run(client.close())


@contextmanager
def by_kserve_on_ours(port: int, array: Array) -> Iterator[Echo]:
    with installed(KSERVE_BACKEND), by_kserve(port, array) as echo:
        yield echo


Client = Callable[[int, Array], AbstractContextManager[Echo]]

CONTENDERS: dict[str, tuple[Client, str]] = {
    "tensorwire, uvicorn": (by_our_client, "uvicorn"),
    "tensorwire, granian": (by_our_client, "granian"),
    "tensorwire async, uvicorn": (by_our_async_client, "uvicorn"),
    "http.client, uvicorn": (by_http_client, "uvicorn"),
    "http.client, granian": (by_http_client, "granian"),
    "tritonclient, uvicorn": (by_tritonclient, "uvicorn"),
    "tritonclient on tensorwire, uvicorn": (by_tritonclient_on_ours, "uvicorn"),
    "tensorwire, Triton": (by_our_client, "Triton"),
    "http.client, Triton": (by_http_client, "Triton"),
    "tritonclient, Triton": (by_tritonclient, "Triton"),
    "tritonclient on tensorwire, Triton": (by_tritonclient_on_ours, "Triton"),
    "tensorwire, KServe": (by_our_client, "KServe"),
    "tensorwire, KServe on tensorwire": (by_our_client, "KServe on tensorwire"),
    "kserve, KServe": (by_kserve, "KServe"),
    "kserve on tensorwire, KServe on tensorwire": (by_kserve_on_ours, "KServe on tensorwire"),
    "limit (raw sockets)": (by_sockets, "raw sockets"),
}


def environment_of(parameters: Mapping[str, object]) -> str:
    return "kserve" if str(parameters["contender"]).startswith("kserve") else ""


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_echo(benchmark: BenchmarkFixture, servers: Servers, workload: str, contender: str) -> None:
    array, (client, server) = WORKLOADS[workload](), CONTENDERS[contender]
    with measuring(benchmark, "HTTP echo", workload, contender):
        is_slow = server == "KServe" or contender.startswith("kserve")
        if is_slow and array.nbytes > KSERVE_MOST_NBYTES:
            raise Unsupported(f"not tried above {KSERVE_MOST_NBYTES // 10**6} MB")
        with client(servers.port(server), array) as echo:
            measure(benchmark, lambda found: check(found, array), echo)


def check(found: Array, sent: Array) -> None:
    """It is the array that was sent, or its wire bytes."""
    is_wire = found.dtype == np.uint8
    assert is_same(tw.decode_bytes(found).as_numpy() if is_wire else found, sent), (
        "it is not as sent"
    )
