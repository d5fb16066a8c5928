"""The time of a health check while the server reads and writes a message that takes it long.

``pytest benchmarks/bench_latency.py``: ``Max`` is the longest delay. Another process sends the
message to ``tensorwire serve`` again and again, over HTTP or gRPC. The gRPC messages are small,
because grpcio copies them in the event loop, which takes about 3 ms for each MB.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw
import tensorwire.grpc
from tensorwire._codec.grpc.writer import append_fields
from tensorwire.server import Model

from .servers import LOOPBACK, Server, accepts, program, running

ROUNDS, PAUSE_SECONDS, TIMEOUT_SECONDS = 1000, 0.005, 60
N, SHAPE = 490_000, b"\xbc\x05\xbc\x05"  # the number of elements, and [700, 700] as packed varints
FIELDS = b"\x78\x01" * (5 << 20)  # that no message of gRPC has


def count(request: tw.InferRequest) -> dict[str, Any]:
    return {"n_inputs": np.array([len(request)])}


def zeros(request: tw.InferRequest) -> dict[str, Any]:
    return {f"y{i}": np.zeros(1_000_000, np.uint8) for i in range(50)}


models = {function.__name__: Model(function) for function in (count, zeros)}


class Message(NamedTuple):
    body: bytes
    headers: dict[str, str]
    name: str  # of the method of gRPC, or of the model


def request_of(array: Any, n_tensors: int, model: str, **options: Any) -> tw.InferRequest:
    tensor = tw.Tensor("x", array, **options)
    tensors = [tensor.replace(name=f"x{i}") for i in range(n_tensors)]
    return tw.InferRequest(tensors, model_name=model)


def http(request: tw.InferRequest) -> Message:
    frame = tw.encode_request(request)
    body = gzip.compress(bytes(frame), 1)
    coded = {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
    return Message(body, frame.headers | coded, request.model_name or "")


def typed(datatype: bytes, contents: bytes) -> Message:
    """Return a gRPC request of 10 tensors with typed contents."""
    rest = b""
    for number, value in ((2, datatype), (3, SHAPE), (5, contents)):
        rest = append_fields(rest, number, [value])
    entries = [append_fields(b"", 1, [b"x%d" % i]) + rest for i in range(10)]
    return Message(append_fields(b"\x0a\x05count", 5, entries), {}, "ModelInfer")


MESSAGES: dict[str, Callable[[], Message]] = {
    "none": lambda: Message(b"", {}, "ServerLive"),
    "HTTP, 100 BYTES of empty elements": lambda: http(request_of([b""] * 499_999, 100, "count")),
    "HTTP, 500 INT32 as JSON": lambda: http(
        request_of(np.full(49_000, 7, np.int32), 500, "echo", binary=False)
    ),
    "gRPC, 10 INT32 that are not packed": lambda: typed(b"INT32", b"\x10\1" * N),
    "gRPC, 10 BYTES": lambda: typed(b"BYTES", b"\x42\0" * N),
    "gRPC, a response of 50 MB": lambda: Message(
        tw.grpc.encode_request(request_of(np.zeros(1), 1, "zeros")), {}, "ModelInfer"
    ),
    "gRPC, 10 MiB of fields": lambda: Message(FIELDS, {}, "ModelInfer"),
    "gRPC, 10 MiB of fields to ServerLive": lambda: Message(FIELDS, {}, "ServerLive"),
    "gRPC, 10 MiB of fields to ModelMetadata": lambda: Message(FIELDS, {}, "ModelMetadata"),
}


def send_again_and_again(name: str, port: int, grpc_port: int) -> None:
    """Send a message until the process is stopped. The server may reject it."""
    import grpc  # noqa: PLC0415 (it may not be installed)

    body, headers, called = MESSAGES[name]()
    connection = HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS)
    sizes = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    channel = grpc.insecure_channel(f"{LOOPBACK}:{grpc_port}", sizes, grpc.Compression.Gzip)
    call = channel.unary_unary(f"/inference.GRPCInferenceService/{called}")
    while True:
        if headers:
            connection.request("POST", f"/v2/models/{called}/infer", body, headers)
            connection.getresponse().read()
        else:
            call.future(body, timeout=TIMEOUT_SECONDS).exception()


def serve_command(server: Server) -> list[str]:
    options = ["--echo", "--log-level=warning", f"--grpc-port={server.grpc_port}"]
    return [*program("tensorwire", server, "serve", *options), "benchmarks.bench_latency"]


@pytest.mark.parametrize("name", MESSAGES)
def test_health_check(benchmark: BenchmarkFixture, name: str) -> None:
    pytest.importorskip("grpc")
    with running(serve_command, lambda server: accepts(server.port)) as server:
        arguments = name, *server
        sender = get_context("spawn").Process(target=send_again_and_again, args=arguments)
        with closing(HTTPConnection(LOOPBACK, server.port, timeout=TIMEOUT_SECONDS)) as connection:

            def check() -> None:
                connection.request("GET", "/v2/health/live")
                assert connection.getresponse().read()

            sender.start()
            time.sleep(0 if benchmark.disabled else 5)  # until it has sent a message
            pause = partial(time.sleep, PAUSE_SECONDS)
            benchmark.pedantic(check, setup=pause, rounds=ROUNDS)  # type: ignore[no-untyped-call]
            assert sender.is_alive()
            sender.kill()
            sender.join()
