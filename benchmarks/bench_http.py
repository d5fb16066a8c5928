"""HTTP over the loopback interface: echoes of tensors, and requests per second.

An echo sends an array to a model that returns its input, and decodes the response. The time of one
echo is measured for every size, client and server. ``wrk`` measures requests per second.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .contenders import (
    HTTP,
    KSERVE,
    KSERVE_INTEGRATION,
    Missing,
    Unsupported,
    installed,
    module,
)
from .measure import Slow, is_same_array, marked, measure_turns, noting
from .servers import LOOPBACK, SOCKETS, Server, Servers, receive_into, send_whole
from .workloads import floats, texts
from .wrk import Turn, WrongResponse, options_of, take_turn

Array = NDArray[Any]
Echo = Callable[[], Array]
TIMEOUT_SECONDS = 60.0


def datatype_of(array: Array) -> str:
    return "BYTES" if array.dtype.kind == "O" else "FP32"


def model_of(array: Array) -> str:
    return f"identity_{datatype_of(array).lower()}"


# --- the clients: each yields the function that is measured, which returns the echoed array ---


@contextmanager
def by_sockets(port: int, array: Array, *, way: str) -> Iterator[Echo]:
    """Send and receive only the bytes. BYTES are in their wire format."""
    is_text = array.dtype.kind == "O"
    wire = np.frombuffer(tw.encode_bytes(array), np.uint8) if is_text else array
    head = wire.nbytes.to_bytes(8, "little")
    sockets, sent = SOCKETS[way], wire.data.cast("B")
    written = sockets.memory(wire.nbytes)
    with socket.create_connection((LOOPBACK, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def echo() -> Array:
            send_whole(connection, sent, way, head)
            memory = sockets.memory(wire.nbytes) if sockets.is_memory_new else written
            receive_into(connection, memory, way)
            return np.frombuffer(memory, wire.dtype)

        yield echo


@contextmanager
def by_http_client(port: int, array: Array) -> Iterator[Echo]:
    """Use the codec with the standard library: send buffers, receive into a BodyBuffer."""
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
            reply.read()  # http.client has to read the end of the body
            return tw.decode_response(body, header_length)["OUTPUT0"].as_numpy()

        yield echo


@contextmanager
def by_our_client(
    port: int, array: Array, model: str | None = None, *, scheme: str = "http"
) -> Iterator[Echo]:
    model, url = model or model_of(array), f"{scheme}://{LOOPBACK}:{port}"
    with closing(module("tensorwire.client").Client(url)) as client:

        def echo() -> Array:
            found: Array = client.infer(model, {"INPUT0": array})["OUTPUT0"].as_numpy()
            return found

        yield echo


@contextmanager
def by_our_async_client(port: int, array: Array, model: str | None = None) -> Iterator[Echo]:
    """Use ``AsyncClient`` with one event loop. The time to start a task is included."""
    model, url = model or model_of(array), f"http://{LOOPBACK}:{port}"
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
def by_tritonclient(
    port: int, array: Array, model: str | None = None, *, api: str = HTTP
) -> Iterator[Echo]:
    triton, model = module(api), model or model_of(array)
    with closing(triton.InferenceServerClient(f"{LOOPBACK}:{port}")) as client:

        def echo() -> Array:
            tensor = triton.InferInput("INPUT0", list(array.shape), datatype_of(array))
            tensor.set_data_from_numpy(array)
            found: Array = client.infer(model, [tensor]).as_numpy("OUTPUT0")
            return found

        yield echo


@contextmanager
def by_kserve(port: int, array: Array) -> Iterator[Echo]:
    """Use KServe's own client with one event loop."""
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
def by_kserve_on_tensorwire(port: int, array: Array) -> Iterator[Echo]:
    with installed(KSERVE_INTEGRATION), by_kserve(port, array) as echo:
        yield echo


Client = Callable[[int, Array], AbstractContextManager[Echo]]


# --- echoes ---

ECHOES: dict[str, tuple[Client, str]] = {  # the client and the name of the server
    "tensorwire, tensorwire serve": (by_our_client, "tensorwire serve"),
    "tensorwire async, tensorwire serve": (by_our_async_client, "tensorwire serve"),
    "http.client, tensorwire serve": (by_http_client, "tensorwire serve"),
    "tritonclient, tensorwire serve": (by_tritonclient, "tensorwire serve"),
    "tensorwire, uvicorn": (by_our_client, "uvicorn"),
    "tensorwire, granian": (by_our_client, "granian"),
    "tensorwire, Triton": (by_our_client, "Triton"),
    "tritonclient, Triton": (by_tritonclient, "Triton"),
    "tensorwire, KServe on tensorwire": (by_our_client, "KServe on tensorwire"),
    "kserve, KServe": (by_kserve, "KServe"),
    "kserve on tensorwire, KServe on tensorwire": (by_kserve_on_tensorwire, "KServe on tensorwire"),
    **{f"limit ({way})": (partial(by_sockets, way=way), way) for way in SOCKETS},
}
OURS_HTTP = "tensorwire, tensorwire serve"
KSERVE_CLIENTS = {name for name in ECHOES if name.startswith("kserve")}
ARRAYS: dict[str, Callable[[], Array]] = {
    "128 B FP32": lambda: floats(32),
    "1 MB FP32": lambda: floats(250_000),
    "16 MB FP32": lambda: floats(4_000_000),
    "64 MB FP32": lambda: floats(16_000_000),
    "BYTES 200k x 0-40 B": lambda: texts(200_000, 0, 40),
}
QUICK_ARRAYS = {"128 B FP32", "16 MB FP32", "BYTES 200k x 0-40 B"}
# KServe takes 20 s or more to create lists of 64 MB. Its client on tensorwire still takes seconds.
KSERVE_MAX_NBYTES = 16_000_000


@pytest.mark.parametrize("workload", marked(ARRAYS, quick=QUICK_ARRAYS, large={"16 MB FP32"}))
@pytest.mark.parametrize("clients", marked(["ours", "kserve"], kserve={"kserve"}))
def test_echo(benchmark: BenchmarkFixture, servers: Servers, workload: str, clients: str) -> None:
    """Measure all clients that one environment has in turns: those of KServe, or the others."""
    array = ARRAYS[workload]()
    chosen = KSERVE_CLIENTS if clients == "kserve" else set(ECHOES) - KSERVE_CLIENTS
    contenders = {
        name: partial(start_echo, servers, name, array)
        for name in ECHOES  # the first one is ours
        if name in chosen | {OURS_HTTP}
    }
    measure_turns(
        benchmark,
        "HTTP echo",
        workload,
        contenders,
        partial(check_echo, sent=array),
        base_only=clients == "kserve",
    )


@contextmanager
def start_echo(servers: Servers, contender: str, array: Array) -> Iterator[Echo]:
    client, server = ECHOES[contender]
    if server == "KServe" or contender in KSERVE_CLIENTS:
        require_kserve_size(array.nbytes)
    with client(servers.port(server), array) as echo:
        yield echo


def require_kserve_size(nbytes: int) -> None:
    """Raise Unsupported if a tensor is too large to be measured with KServe."""
    if nbytes > KSERVE_MAX_NBYTES:
        raise Unsupported(f"not measured above {KSERVE_MAX_NBYTES // 10**6} MB")


def check_echo(found: Array, sent: Array) -> None:
    """Check that the echo is the array that was sent, or its wire format."""
    is_wire = found.dtype == np.uint8
    array = tw.decode_bytes(found).as_numpy() if is_wire else found
    assert is_same_array(array, sent), "the array differs from what was sent"


# --- requests per second ---

# ``wrk`` sends one FP32 tensor, which is binary in both directions. In each round every server has
# a turn, so that changes in the load of the machine affect all of them. Rates, latencies and CPU
# times are medians of the rounds. A ratio is the median of the ratios to the bare app in the same
# round.
TABLE = "requests per second"
BASE = "bare app, uvicorn"
RATED = {  # the contenders and the names of their servers
    **{name: name for name in ("KServe", "KServe on tensorwire", "Triton", BASE)},
    "tensorwire serve": "tensorwire serve",
    "tensorwire, uvicorn": "uvicorn",
    "bare app, granian": "bare app, granian",
    "tensorwire, granian": "granian",
    "bare app, granian RSGI": "bare app, granian RSGI",
    "tensorwire, granian RSGI": "granian RSGI",
}
LOADS = {
    f"{n_floats:,} floats, {n} connection{'s' * (n > 1)}": (n_floats, n)
    for n_floats, connections in ((32, (1, 8, 64)), (250_000, (1, 8, 64)), (16_000_000, (1, 8)))
    for n in connections
}
QUICK_LOADS = {name for name in LOADS if name.endswith(" 8 connections")}
FLOAT_NBYTES = 4
TURN_SECONDS, MAX_TURN_SECONDS = 1.0, 15.0  # wrk takes whole seconds
MIN_RESPONSES = 5  # on each connection in a turn
PATH = "/v2/models/identity_fp32/infer"


@dataclass
class Turns:
    """The server of one contender, the duration of a turn, and the finished turns."""

    server: Server
    seconds: float
    finished: list[Turn] = field(default_factory=list)


@pytest.mark.parametrize("workload", marked(LOADS, quick=QUICK_LOADS))
def test_requests_per_second(benchmark: BenchmarkFixture, servers: Servers, workload: str) -> None:
    n_floats, n_connections = LOADS[workload]
    measure_rates(benchmark, servers, (TABLE, workload), RATED, n_floats, n_connections)


def measure_rates(
    benchmark: BenchmarkFixture,
    servers: Servers,
    place: tuple[str, str],
    rated: Mapping[str, str],
    n_floats: int,
    n_connections: int,
    *,
    base: str = BASE,
    path: str = PATH,
    min_seconds: float = TURN_SECONDS,
    beside: Callable[[Server], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Measure all contenders in one benchmark. A round has one turn of each server.

    ``place`` is the table and the workload. A turn takes at least ``min_seconds``. The context that
    ``beside`` returns for each server is open during all turns.
    """
    table, workload = place
    if not benchmark.disabled and shutil.which("wrk") is None:
        with noting(benchmark, table, workload, "requests per second"):
            raise Missing("wrk cannot be found")
        pytest.skip("wrk cannot be found")
    frame = frame_of(n_floats)
    running: dict[str, Turns] = {}
    with ExitStack() as stack:
        for contender, server in rated.items():
            with noting(benchmark, table, workload, contender):
                if server == "KServe":
                    require_kserve_size(FLOAT_NBYTES * n_floats)
                started = servers.get(server)
                stack.enter_context(beside(started))
                latency = seconds_per_request(contender, started.port, path, frame, n_floats)
                seconds = MIN_RESPONSES * n_connections * latency
                if seconds > MAX_TURN_SECONDS:
                    wait = f"{n_connections * latency:.0f} s"
                    raise Unsupported(f"{wait} until each connection has a response")
                running[contender] = Turns(started, max(seconds, min_seconds))
        if benchmark.disabled:  # the check above does not need wrk
            benchmark(lambda: None)
            return
        scratch = stack.enter_context(TemporaryDirectory(prefix="tensorwire-wrk-"))
        options = [f"-c{n_connections}", *options_of(frame, Path(scratch))]

        def take_turns() -> None:
            for contender, turns in list(running.items()):
                with noting(benchmark, table, workload, contender):
                    del running[contender]  # a server that fails has no turn in the next rounds
                    turns.finished.append(take_turn(turns.server, path, turns.seconds, options))
                    running[contender] = turns

        benchmark.pedantic(take_turns, rounds=Slow.rounds)  # type: ignore[no-untyped-call]
    rows = {name: rate_row(running, name, base) for name in rated if name in running}
    benchmark.extra_info.update(table=table, workload=workload, contenders=rows)


def rate_row(running: dict[str, Turns], contender: str, base: str) -> dict[str, float]:
    turns = running[contender].finished
    row: dict[str, float] = {
        name: median(getattr(turn, name) for turn in turns) for name in Turn._fields
    }
    row["rounds"] = len(turns)
    if base in running:
        pairs = zip(turns, running[base].finished, strict=True)
        row["ratio"] = median(turn.rate / other.rate for turn, other in pairs)
    return row


def frame_of(n_floats: int) -> tw.Frame:
    tensor = tw.Tensor("INPUT0", floats(n_floats))
    return tw.encode_request(tw.InferRequest([tensor], parameters={"binary_data_output": True}))


def seconds_per_request(
    contender: str, port: int, path: str, frame: tw.Frame, n_floats: int
) -> float:
    """Return the shortest time of several requests. The bare app returns the request."""
    seconds = []
    with closing(HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS)) as connection:
        for _ in range(5):
            start = perf_counter()
            connection.request("POST", path, body=frame, headers=frame.headers)
            reply = connection.getresponse()
            body = reply.read()
            seconds.append(perf_counter() - start)
            if reply.status != 200:
                raise WrongResponse(f"{contender} responds with {reply.status}: {body[:200]!r}")
            if contender.startswith("bare"):
                is_right = body == bytes(frame)
            else:
                response = tw.decode_response(body, tw.header_length(reply.headers))
                is_right = np.array_equal(response["OUTPUT0"].as_numpy(), floats(n_floats))
            if not is_right:
                raise WrongResponse(f"{contender} does not return what it was sent")
    return min(seconds)
