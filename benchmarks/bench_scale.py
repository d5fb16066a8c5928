"""Scale: kinds of models, idle connections, 1,000 active ones, and servers with two processes.

``wrk`` needs CPU time as well. On a machine with two CPUs, two processes can therefore only be
twice as fast as one if a request takes much less time in ``wrk`` than in the server.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from .bench_http import BASE, PATH, TIMEOUT_SECONDS, frame_of, measure_rates
from .bench_memory import status
from .measure import measuring
from .servers import LOOPBACK, SERVERS, Server, Servers, processes

OURS = "tensorwire serve"
N_CONNECTIONS = 1000
TURN_SECONDS = 3.0  # so that the time to open the connections matters little


@pytest.fixture(scope="module", autouse=True)
def _descriptors() -> None:
    """Let this process and its servers open enough connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(4 * N_CONNECTIONS, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- kinds of models ---

KINDS = {
    "async function": OURS,
    "in_event_loop": f"{OURS}, in_event_loop",
    "function in a thread": f"{OURS}, threads",
    BASE: BASE,
    "bare app, in a thread": "bare app, in a thread",
}


@pytest.mark.parametrize("n_connections", [1, 8, 64])
def test_kinds_of_models(benchmark: BenchmarkFixture, servers: Servers, n_connections: int) -> None:
    place = ("kinds of models", f"32 floats, {n_connections} connection{'s' * (n_connections > 1)}")
    measure_rates(benchmark, servers, place, KINDS, 32, n_connections)


# --- idle connections ---

# `tensorwire serve` closes an idle connection after 5 seconds. These servers keep them for longer,
# and are otherwise the same.
KEEPING = {OURS: "InferProtocol, kept", BASE: "bare app, uvicorn, kept"}


@contextmanager
def idle_connections(server: Server, n: int) -> Iterator[None]:
    """Open connections, and send one request on each of them. Raises unless they remain open."""
    frame = frame_of(32)
    with ExitStack() as stack:
        connections = [
            stack.enter_context(
                closing(HTTPConnection(LOOPBACK, server.port, timeout=TIMEOUT_SECONDS))
            )
            for _ in range(n)
        ]
        for connection in connections:
            connection.request("POST", PATH, body=frame, headers=frame.headers)
            connection.getresponse().read()
        yield
        for connection in connections:
            connection.sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.sock.recv(1)


@pytest.mark.parametrize("contender", KEEPING)
def test_memory_per_idle_connection(benchmark: BenchmarkFixture, contender: str) -> None:
    """Measure the resident memory of the server process, and not that of the kernel.

    The first 1,000 connections use memory that the process has freed, and are not measured.
    """
    workload = f"{N_CONNECTIONS:,} connections"
    with (
        measuring(benchmark, "memory per idle connection", workload, contender),
        SERVERS[KEEPING[contender]]() as server,
        idle_connections(server, N_CONNECTIONS),
    ):
        before = resident_nbytes(server)

        def growth() -> int:
            with idle_connections(server, N_CONNECTIONS):
                return resident_nbytes(server) - before

        found = benchmark.pedantic(growth)  # type: ignore[no-untyped-call]
        benchmark.extra_info["peak_nbytes"] = found // N_CONNECTIONS


def resident_nbytes(server: Server) -> int:
    return sum(status(str(pid), "VmRSS") for pid in processes(server))


@pytest.mark.parametrize("n_idle", [0, N_CONNECTIONS])
def test_latency_beside_idle(benchmark: BenchmarkFixture, servers: Servers, n_idle: int) -> None:
    place = ("idle connections", f"{n_idle:,} idle connections, 1 active")
    beside = partial(idle_connections, n=n_idle)
    measure_rates(benchmark, servers, place, KEEPING, 32, 1, beside=beside)


# --- active connections ---


@pytest.mark.parametrize("n_floats", [32, 25_000])
def test_active(benchmark: BenchmarkFixture, servers: Servers, n_floats: int) -> None:
    place = ("active connections", f"{n_floats:,} floats, {N_CONNECTIONS:,} connections")
    contenders = {OURS: OURS, BASE: BASE}
    measure_rates(
        *(benchmark, servers, place, contenders, n_floats, N_CONNECTIONS), min_seconds=TURN_SECONDS
    )


# --- processes ---

ONE_AND_TWO = {name: name for name in (OURS, f"{OURS}, 2 processes")}
BARE = {name: name for name in (BASE, f"{BASE}, 2 processes")}
RAY = {name: name for name in ("Ray Serve", "Ray Serve, 2 replicas")}
PROCESSES = {  # contenders, the number of floats, the number of connections and the model
    "32 floats, 64 connections": (ONE_AND_TWO | BARE | RAY, 32, 64, "identity_fp32"),
    "250,000 floats, 64 connections": (ONE_AND_TWO | BARE, 250_000, 64, "identity_fp32"),
    "1 ms of Python, 64 connections": (ONE_AND_TWO | RAY, 32, 64, "busy"),
}


@pytest.mark.parametrize("workload", PROCESSES)
def test_processes(benchmark: BenchmarkFixture, servers: Servers, workload: str) -> None:
    contenders, n_floats, n_connections, model = PROCESSES[workload]
    place, path = ("processes", workload), f"/v2/models/{model}/infer"
    measure_rates(
        *(benchmark, servers, place, contenders, n_floats, n_connections), base=OURS, path=path
    )
