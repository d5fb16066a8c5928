"""Programs of other packages with and without the drop-in replacement, measured in turns.

For tritonclient, it is installed and removed in this process. KServe and MLServer run as servers,
one with it and one without; the client of both is the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .arrays import Array, as_bytes, check, floats, objects, texts
from .bench_calls import by_our_client, by_tritonclient, calling, model_of
from .contenders import parts_of, triton_decode, triton_encode
from .measuring import in_turns, integration, module
from .servers import LOOPBACK, Server, Servers

large = pytest.mark.large


# --- tritonclient: functions, of which each round has several calls ---


def requests_of(*arrays: Array) -> Callable[[], Any]:
    parts = parts_of({f"x{i}": array for i, array in enumerate(arrays)})
    return lambda: triton_encode(parts)


def responses_of(*arrays: Array) -> Callable[[], Any]:
    named = {f"x{i}": array for i, array in enumerate(arrays)}
    frame = tw.encode_response(tw.InferResponse(named, model_name="m"))
    return partial(triton_decode, bytes(frame), frame.header_length, list(named))


def words() -> Array:
    return texts(300_000, 0, 40)


FUNCTIONS: dict[str, tuple[Callable[[], Callable[[], Any]], int, int]] = {  # calls and rounds
    "request, 128 B": (lambda: requests_of(floats(32)), 100, 50),
    "request, 50 x 128 B": (lambda: requests_of(*[floats(32)] * 50), 10, 50),
    "request, 1 MB": (lambda: requests_of(floats(250_000)), 20, 30),
    "request, 40 MB": (lambda: requests_of(floats(10_000_000)), 1, 10),
    "request, 300k strings": (lambda: requests_of(words()), 1, 5),
    "response, 128 B": (lambda: responses_of(floats(32)), 100, 50),
    "response, 50 x 128 B": (lambda: responses_of(*[floats(32)] * 50), 10, 50),
    "response, 1 MB": (lambda: responses_of(floats(250_000)), 20, 30),
    "response, 100 MB": (lambda: responses_of(floats(25_000_000)), 1, 10),
    "response, 300k strings": (lambda: responses_of(words()), 1, 5),
}


def marked(names: Any) -> list[Any]:
    sizes = ("40 MB", "100 MB", "strings", "4 MB", "16 MB")
    return [
        pytest.param(name, id=name, marks=[large] if name.endswith(sizes) else []) for name in names
    ]


@contextmanager
def repeated(make: Callable[[], Callable[[], Any]], n_calls: int) -> Iterator[Callable[[], Any]]:
    module("tritonclient.http")
    call = make()

    def run() -> Any:
        for _ in range(n_calls - 1):
            call()
        return call()

    yield run


def plain(result: Any) -> Any:
    """Return a result of tritonclient so that it can be compared."""
    if isinstance(result, tuple):
        return bytes(result[0]), result[1]
    return [as_bytes(a) if a.dtype.kind == "O" else a.tobytes() for a in result]


@pytest.mark.parametrize("name", marked(FUNCTIONS))
def test_tritonclient(benchmark: BenchmarkFixture, name: str) -> None:
    make, n_calls, rounds = FUNCTIONS[name]
    benchmark.group, benchmark.extra_info["calls"] = f"drop-in tritonclient: {name}", n_calls
    contenders = ("tritonclient, drop-in", "tritonclient")
    results: list[Any] = []

    def same(result: Any) -> None:
        results.append(plain(result))
        assert results[0] == results[-1]

    run = partial(repeated, make, n_calls)
    in_turns(benchmark, dict.fromkeys(contenders, run), rounds, same, integration("tritonclient"))


@contextmanager
def by_tritonclient_aio(server: Server, array: Array) -> Iterator[Callable[[], Array]]:
    aio = module("tritonclient.http.aio")
    with asyncio.Runner() as loop:

        async def connect() -> Any:
            return aio.InferenceServerClient(f"{LOOPBACK}:{server.port}")

        client = loop.run(connect())

        async def infer() -> Any:
            tensor = module("tritonclient.http").InferInput("INPUT0", list(array.shape), "FP32")
            tensor.set_data_from_numpy(array)
            # Otherwise aiohttp requests a compressed response.
            headers = {"Accept-Encoding": "identity"}
            return await client.infer("identity_fp32", [tensor], headers=headers)

        def call() -> Array:
            found: Array = loop.run(infer()).as_numpy("OUTPUT0")
            return found

        try:
            yield call
        finally:
            loop.run(client.close())


CALLS: dict[str, tuple[Any, int, int]] = {  # the client, the number of floats and of rounds
    "call, 128 B": (by_tritonclient, 32, 100),
    "call, 1 MB": (by_tritonclient, 250_000, 40),
    "call, 40 MB": (by_tritonclient, 10_000_000, 10),
    "aio call, 128 B": (by_tritonclient_aio, 32, 100),
    "aio call, 1 MB": (by_tritonclient_aio, 250_000, 40),
    "aio call, 40 MB": (by_tritonclient_aio, 10_000_000, 10),
}


# aiohttp warns when tritonclient alone sends a large body.
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.parametrize("name", marked(CALLS))
def test_calls_of_tritonclient(benchmark: BenchmarkFixture, servers: Servers, name: str) -> None:
    client, n_floats, rounds = CALLS[name]
    array, benchmark.group = floats(n_floats), f"drop-in tritonclient: {name}"
    call = partial(calling, servers, client, "tensorwire serve", array)
    contenders = ("tritonclient, drop-in", "tritonclient")
    checked = partial(check, sent=array)
    in_turns(
        benchmark, dict.fromkeys(contenders, call), rounds, checked, integration("tritonclient")
    )


# --- servers of KServe and MLServer ---


@contextmanager
def by_json(server: Server, array: Array) -> Iterator[Callable[[], Array]]:
    """Send and receive lists in JSON, as clients without the binary extension do."""
    path = f"http://{LOOPBACK}:{server.port}/v2/models/{model_of(array)}/infer"
    pool = module("urllib3").PoolManager()
    datatype = "BYTES" if array.dtype.kind == "O" else "FP32"
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [array.size]}
    values = [e.decode() for e in array] if datatype == "BYTES" else array.tolist()
    text = json.dumps({"inputs": [{**tensor, "data": values}]})

    def call() -> Array:
        answer = pool.request("POST", path, body=text, headers={"Content-Type": "application/json"})
        assert answer.status == 200, answer.data[:200]
        return tw.decode_response(answer.data).outputs[0].as_numpy()

    yield call


by_grpc = partial(by_our_client, scheme="grpc")
SERVED: dict[str, tuple[Any, Any, int]] = {  # the client, the array and the rounds
    "KServe: binary, 128 B": (by_our_client, partial(floats, 32), 100),
    "KServe: binary, 64 KB": (by_our_client, partial(floats, 16_000), 20),
    "KServe: binary, 1 MB": (by_our_client, partial(floats, 250_000), 7),
    "KServe: JSON, 4 FP32": (by_json, partial(floats, 4), 100),
    "KServe: JSON, 4 MB": (by_json, partial(floats, 1_000_000), 7),
    "KServe: JSON, 100k strings": (
        by_json,
        lambda: objects([b"text number %04d" % i for i in range(100_000)]),
        7,
    ),
    "MLServer: JSON, 4 FP32": (by_json, partial(floats, 4), 100),
    "MLServer: JSON, 4 MB": (by_json, partial(floats, 1_000_000), 7),
    "MLServer: raw gRPC, 128 B": (by_grpc, partial(floats, 32), 100),
    "MLServer: raw gRPC, 4 MB": (by_grpc, partial(floats, 1_000_000), 7),
    "MLServer: JSON or binary, 4 MB": (by_json, partial(floats, 1_000_000), 7),
}


@pytest.mark.parametrize("name", marked(SERVED))
def test_server(benchmark: BenchmarkFixture, servers: Servers, name: str) -> None:
    client, make, rounds = SERVED[name]
    package, _, call = name.partition(": ")
    array, benchmark.group = make(), f"drop-in {package}: {call}"
    alone, on_tensorwire = package, f"{package}, drop-in"
    servers.start([alone, on_tensorwire])
    # A program can use binary tensors if MLServer can: only with the drop-in replacement.
    best = by_our_client if "or binary" in call else client
    contenders = {
        on_tensorwire: partial(calling, servers, best, on_tensorwire, array),
        alone: partial(calling, servers, client, alone, array),
    }
    in_turns(benchmark, contenders, rounds, partial(check, sent=array))
