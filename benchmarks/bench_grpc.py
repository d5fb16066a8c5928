"""gRPC: messages alone, their peak memory, and echoes over the loopback interface.

The contenders use the same grpcio. *Generated classes* are those of tritonclient, without the rest
of tritonclient. ``python -m benchmarks.bench_grpc DIRECTION CONTENDER`` measures the peak memory of
encoding or decoding the largest message, and prints it as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw
import tensorwire.grpc

from .bench_http import ECHOES as HTTP_ECHOES
from .bench_http import (
    OURS_HTTP,
    Client,
    by_our_client,
    by_tritonclient,
    check_echo,
    datatype_of,
)
from .bench_memory import peak_of, print_peaks, run_in_subprocess
from .contenders import TRITON_INTEGRATION, Unsupported, installed, module
from .measure import is_same_array, marked, measure, measure_turns, measuring
from .servers import LOOPBACK, Servers
from .workloads import floats, texts

Array = NDArray[Any]
Echo = Callable[[], Array]
TRITON_GRPC, MESSAGES = "tritonclient.grpc", "tritonclient.grpc.service_pb2"


# --- messages ---


def encode_ours(array: Array) -> Any:
    return tw.grpc.encode_request(tw.InferRequest({"x": array}, model_name="m"))


def encode_generated(array: Array) -> Any:
    """Build a request, and serialize it, as a program without tritonclient does."""
    messages = module(MESSAGES)
    request = messages.ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype=datatype_of(array), shape=array.shape)
    request.raw_input_contents.append(wire_of(array))
    return request.SerializeToString()


def encode_triton(array: Array) -> Any:
    """Do what ``infer`` of tritonclient does before it calls grpcio."""
    client = module(TRITON_GRPC)
    tensor = client.InferInput("x", list(array.shape), datatype_of(array))
    tensor.set_data_from_numpy(array)
    arguments = {"model_name": "m", "inputs": [tensor], "model_version": "", "request_id": ""}
    more = {"outputs": None, "sequence_id": 0, "sequence_start": False, "sequence_end": False}
    request = module("tritonclient.grpc._utils")._get_inference_request(
        **arguments, **more, priority=0, timeout=None, parameters=None
    )
    return request.SerializeToString()


def wire_of(array: Array) -> bytes:
    return bytes(tw.encode_bytes(array)) if array.dtype.kind == "O" else array.tobytes()


def decode_ours(message: bytes) -> Array:
    return tw.grpc.decode_response(message)["x"].as_numpy()


def decode_generated(message: bytes) -> Array:
    response = module(MESSAGES).ModelInferResponse.FromString(message)
    output, content = response.outputs[0], response.raw_output_contents[0]
    if output.datatype == "BYTES":
        found: Array = module("tritonclient.utils").deserialize_bytes_tensor(content)
        return found.reshape(output.shape)
    return np.frombuffer(content, "<f4").reshape(output.shape)


def decode_triton(message: bytes) -> Array:
    """Do what ``infer`` of tritonclient does after grpcio, and read the array."""
    response = module(MESSAGES).ModelInferResponse.FromString(message)
    found: Array = module(TRITON_GRPC).InferResult(response).as_numpy("x")
    return found


CODECS: dict[str, tuple[Callable[[Array], bytes], Callable[[bytes], Array]]] = {
    "tensorwire": (encode_ours, decode_ours),
    "generated classes": (encode_generated, decode_generated),
    "tritonclient": (encode_triton, decode_triton),
}
ARRAYS: dict[str, Callable[[], Array]] = {
    "128 B FP32": lambda: floats(32),
    "4 KB FP32": lambda: floats(1024),
    "1 MB FP32": lambda: floats(250_000),
    "100 MB FP32": lambda: floats(25_000_000),
    "1 GB FP32": lambda: floats(250_000_000),
    "BYTES 200k x 0-40 B": lambda: texts(200_000, 0, 40),
}
QUICK_ARRAYS = {"128 B FP32", "1 MB FP32"}
every_codec = pytest.mark.parametrize("contender", CODECS)
every_array = pytest.mark.parametrize(
    "workload", marked(ARRAYS, quick=QUICK_ARRAYS, large={"1 GB FP32"})
)


@every_codec
@every_array
def test_encode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    array = ARRAYS[workload]()
    with measuring(benchmark, "gRPC: encode a request", workload, contender):

        def check(message: bytes) -> None:
            assert is_same_array(tw.grpc.decode_request(message)["x"].as_numpy(), array)

        measure(benchmark, check, CODECS[contender][0], array)


@every_codec
@every_array
def test_decode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    array = ARRAYS[workload]()
    with measuring(benchmark, "gRPC: decode a response and read it", workload, contender):
        message = tw.grpc.encode_response(tw.InferResponse({"x": array}, model_name="m"))
        check = partial(check_echo, sent=array)
        measure(benchmark, check, CODECS[contender][1], message)


# --- the peak memory of messages ---

PEAK = "100 MB FP32"


@every_codec
@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_peak(benchmark: BenchmarkFixture, direction: str, contender: str) -> None:
    with measuring(benchmark, "gRPC: peak memory", f"{direction} {PEAK}", contender):
        module(MESSAGES)
        arguments = ("benchmarks.bench_grpc", direction, contender)
        found = benchmark.pedantic(run_in_subprocess, arguments)  # type: ignore[no-untyped-call]
        benchmark.extra_info.update(found)


def codec_peak(direction: str, contender: str) -> dict[str, int]:
    encode, decode = CODECS[contender]
    small, array = ARRAYS["128 B FP32"](), ARRAYS[PEAK]()
    if direction == "encode":
        encode(small)  # imports and caches of the first call are not counted
        return {"peak_nbytes": peak_of(lambda: encode(array))}
    messages = [tw.grpc.encode_response(tw.InferResponse({"x": x})) for x in (small, array)]
    decode(messages[0])
    return {"peak_nbytes": peak_of(lambda: decode(messages[1]))}


# --- echoes: each client yields the function that is measured, which returns the echoed array ---

by_our_grpc = partial(by_our_client, scheme="grpc")
by_triton_grpc = partial(by_tritonclient, api=TRITON_GRPC)


@contextmanager
def by_tritonclient_on_tensorwire(port: int, array: Array) -> Iterator[Echo]:
    with installed(TRITON_INTEGRATION), by_triton_grpc(port, array) as echo:
        yield echo


@contextmanager
def by_flight(port: int, array: Array) -> Iterator[Echo]:
    """Exchange a record batch with Arrow Flight, which is gRPC in C++."""
    arrow, flight = module("pyarrow"), module("pyarrow.flight")
    kind = arrow.binary() if array.dtype.kind == "O" else None
    batch = arrow.record_batch({"x": arrow.array(array, kind)})
    with closing(flight.connect(f"grpc://{LOOPBACK}:{port}")) as client:

        def echo() -> Array:
            found = exchange(client, batch, b"echo").column(0)
            echoed: Array = found.to_numpy(zero_copy_only=array.dtype.kind != "O")
            return echoed

        yield echo


def exchange(client: Any, batch: Any, command: bytes) -> Any:
    """Send a record batch with Arrow Flight, and return the one that is received."""
    descriptor = module("pyarrow.flight").FlightDescriptor.for_command(command)
    writer, reader = client.do_exchange(descriptor)
    with writer:
        writer.begin(batch.schema)
        writer.write_batch(batch)
        writer.done_writing()
        return reader.read_chunk().data


ECHOES: dict[str, tuple[Client, str]] = {  # the client and the name of the server
    "tensorwire, tensorwire serve": (by_our_grpc, "tensorwire serve, gRPC"),
    "tritonclient, generated classes": (by_triton_grpc, "generated classes"),
    "tritonclient, tensorwire serve": (by_triton_grpc, "tensorwire serve, gRPC"),
    "tritonclient, Triton": (by_triton_grpc, "Triton, gRPC"),
    "tritonclient on tensorwire, Triton": (by_tritonclient_on_tensorwire, "Triton, gRPC"),
    "tensorwire, Triton": (by_our_grpc, "Triton, gRPC"),
    "tritonclient, KServe": (by_triton_grpc, "KServe, gRPC"),
    "tritonclient, KServe on tensorwire": (by_triton_grpc, "KServe on tensorwire, gRPC"),
    "Arrow Flight": (by_flight, "Arrow Flight"),
    "tensorwire over HTTP": HTTP_ECHOES[OURS_HTTP],
    **{name: echo for name, echo in HTTP_ECHOES.items() if name.startswith("limit")},
}
ECHOED = ["128 B FP32", "4 KB FP32", "1 MB FP32", "64 MB FP32", "1 GB FP32", "BYTES 200k x 0-40 B"]
QUICK_ECHOED = {"128 B FP32", "1 MB FP32"}
# Above, Triton's Python model does not fit its shared memory, and KServe takes a minute.
MAX_NBYTES = {"Triton, gRPC": 64_000_000, "KServe, gRPC": 64_000_000}


@pytest.mark.parametrize("workload", marked(ECHOED, quick=QUICK_ECHOED, large={"1 GB FP32"}))
def test_echo(benchmark: BenchmarkFixture, servers: Servers, workload: str) -> None:
    array = floats(16_000_000) if workload == "64 MB FP32" else ARRAYS[workload]()
    contenders = {name: partial(start_echo, servers, name, array) for name in ECHOES}
    measure_turns(benchmark, "gRPC echo", workload, contenders, partial(check_echo, sent=array))


@contextmanager
def start_echo(servers: Servers, contender: str, array: Array) -> Iterator[Echo]:
    client, server = ECHOES[contender]
    if array.nbytes > MAX_NBYTES.get(server, array.nbytes):
        raise Unsupported(f"not measured above {MAX_NBYTES[server] // 10**6} MB")
    with client(servers.port(server), array) as echo:
        yield echo


if __name__ == "__main__":
    print_peaks(codec_peak, *sys.argv[1:])
