"""Whole calls over HTTP: send an array to a model that returns its input, and decode the response.

The contenders of a row are measured in turns.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw
from tensorwire.client import AsyncClient, Client

from .arrays import Array, check, datatype_of, floats, texts
from .contenders import parts_of, triton_inputs
from .measuring import in_turns, installed, integration, module
from .servers import LOOPBACK, SERVERS, Server, Servers, receive_into

Call = Callable[[], Array]
Caller = Callable[[Server, Array], AbstractContextManager[Call]]
TIMEOUT_SECONDS = 60.0


def model_of(array: Array) -> str:
    return f"identity_{datatype_of(array).lower()}"


# --- the clients: each yields the function that is measured, which returns the array ---


@contextmanager
def by_sockets(server: Server, array: Array) -> Iterator[Call]:
    """Send and receive only the bytes, with the same memory each time."""
    is_text = array.dtype.kind == "O"
    wire = np.frombuffer(tw.encode_bytes(array), np.uint8) if is_text else array
    head, received = wire.nbytes.to_bytes(8, "little"), np.ones_like(wire)
    with socket.create_connection((LOOPBACK, server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def call() -> Array:
            connection.sendall(head)
            connection.sendall(wire.data.cast("B"))
            receive_into(connection, received.data.cast("B"))
            return received

        yield call


@contextmanager
def by_our_client(server: Server, array: Array, *, scheme: str = "http") -> Iterator[Call]:
    port = server.grpc_port if scheme == "grpc" else server.port
    with Client(f"{scheme}://{LOOPBACK}:{port}") as client:

        def call() -> Array:
            return client.infer(model_of(array), {"INPUT0": array}).outputs[0].as_numpy()

        yield call


@contextmanager
def by_our_async_client(server: Server, array: Array) -> Iterator[Call]:
    """Use one event loop. The time to start a task is included."""
    with asyncio.Runner() as loop:
        client = AsyncClient(f"http://{LOOPBACK}:{server.port}")

        def call() -> Array:
            response = loop.run(client.infer(model_of(array), {"INPUT0": array}))
            return response["OUTPUT0"].as_numpy()

        try:
            yield call
        finally:
            loop.run(client.close())


@contextmanager
def by_tritonclient(server: Server, array: Array, *, api: str = "http") -> Iterator[Call]:
    port = server.grpc_port if api == "grpc" else server.port
    client = module(f"tritonclient.{api}").InferenceServerClient(f"{LOOPBACK}:{port}")
    parts = parts_of({"INPUT0": array})
    with closing(client):

        def call() -> Array:
            inputs = triton_inputs(parts, api)
            found: Array = client.infer(model_of(array), inputs).as_numpy("OUTPUT0")
            return found

        yield call


@contextmanager
def by_kserve(server: Server, array: Array) -> Iterator[Call]:
    """Use KServe's own client with one event loop."""
    kserve, url = module("kserve"), f"http://{LOOPBACK}:{server.port}"
    config = kserve.RESTConfig(protocol="v2", timeout=TIMEOUT_SECONDS)
    with asyncio.Runner() as loop:
        client = kserve.InferenceRESTClient(config)

        async def infer() -> Any:
            tensor = kserve.InferInput("INPUT0", list(array.shape), datatype_of(array))
            tensor.set_data_from_numpy(array)
            binary = {"binary_data_output": True}
            request = kserve.InferRequest(model_of(array), [tensor], parameters=binary)
            return await client.infer(url, request, model_name=model_of(array))

        def call() -> Array:
            found: Array = loop.run(infer()).get_output_by_name("OUTPUT0").as_numpy()
            return found

        try:
            yield call
        finally:
            loop.run(client.close())


# --- the calls ---

CALLS: dict[str, tuple[Caller, str]] = {  # the client and the name of the server
    "tensorwire": (by_our_client, "tensorwire serve"),
    "tensorwire, AsyncClient": (by_our_async_client, "tensorwire serve"),
    "raw sockets": (by_sockets, "raw sockets"),
    "tritonclient": (by_tritonclient, "tensorwire serve"),
    "tritonclient, drop-in": (by_tritonclient, "tensorwire serve"),
    "Triton: tensorwire": (by_our_client, "Triton"),
    "Triton: tritonclient": (by_tritonclient, "Triton"),
    "Triton: tritonclient, drop-in": (by_tritonclient, "Triton"),
}
KSERVE_CALLS: dict[str, tuple[Caller, str]] = {
    "KServe: kserve": (by_kserve, "KServe"),
    "KServe: kserve, drop-in": (by_kserve, "KServe, drop-in"),
}
ARRAYS: dict[str, tuple[Callable[[], Array], int]] = {  # the array and the number of rounds
    "128 B": (partial(floats, 32), 100),
    "4 KB": (partial(floats, 1_000), 100),
    "64 KB": (partial(floats, 16_000), 100),
    "1 MB": (partial(floats, 250_000), 40),
    "16 MB": (partial(floats, 4_000_000), 15),
    "64 MB": (partial(floats, 16_000_000), 7),
    "200k x 0-40 B": (partial(texts, 200_000, 0, 40), 7),
}
KSERVE_ROUNDS = {"128 B": 50, "4 KB": 50, "64 KB": 20, "1 MB": 10, "16 MB": 4}
LARGE = ("16 MB", "64 MB", "200k x 0-40 B")


def marked(sizes: list[str]) -> list[Any]:
    marks = {size: [pytest.mark.large] if size in LARGE else [] for size in sizes}
    return [pytest.param(size, id=size, marks=marks[size]) for size in sizes]


@contextmanager
def calling(servers: Servers, caller: Caller, server: str, array: Array) -> Iterator[Call]:
    with caller(servers.get(server), array) as call:
        yield call


def check_call(found: Array, sent: Array) -> None:
    """Check the array, or the wire format of BYTES."""
    check(tw.decode_bytes(found).as_numpy() if found.dtype == np.uint8 else found, sent)


@pytest.mark.parametrize("size", marked(list(ARRAYS)))
def test_call(benchmark: BenchmarkFixture, servers: Servers, size: str) -> None:
    make, rounds = ARRAYS[size]
    array, benchmark.group = make(), f"call: {size}"
    servers.start({server for _, server in CALLS.values()})
    calls = {name: partial(calling, servers, *CALLS[name], array) for name in CALLS}
    checked = partial(check_call, sent=array)
    in_turns(benchmark, calls, rounds, checked, integration("tritonclient"))


@pytest.mark.parametrize("size", marked(list(KSERVE_ROUNDS)))
def test_call_of_kserve(benchmark: BenchmarkFixture, servers: Servers, size: str) -> None:
    """KServe's client takes a minute for a larger array."""
    array, benchmark.group = ARRAYS[size][0](), f"call: {size}"
    calls = {name: partial(calling, servers, *KSERVE_CALLS[name], array) for name in KSERVE_CALLS}
    checked = partial(check, sent=array)
    in_turns(benchmark, calls, KSERVE_ROUNDS[size], checked, integration("kserve"))


# --- copies and peak memory: of clients, with the same server ---


@contextmanager
def client_of(contender: str, array: Array) -> Iterator[Call]:
    caller, server = CALLS[contender]
    change = installed("tritonclient") if contender.endswith("drop-in") else nullcontext()
    with SERVERS[server]() as started, change, caller(started, array) as call:
        yield call


OPERATIONS = {"call": client_of}
