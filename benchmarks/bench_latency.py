"""The time of a health check while the server reads and writes a message that takes it long.

``pytest benchmarks/bench_latency.py``: ``Max`` is the longest delay, of which 20 ms are the goal.
Another process sends the message to ``tensorwire serve`` again and again, over HTTP or gRPC, one at
a time or on 8 connections or streams. Most gRPC messages are small, because grpcio copies them in
the event loop, which takes about 3 ms for each MB: this is all that the check waits for beside a
message of 60 MiB.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from itertools import repeat
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
AT_ONCE = 8
NEARLY_2_MIB = (2 << 20) - 100
N, SHAPE = 490_000, b"\xbc\x05\xbc\x05"  # the number of elements, and [700, 700] as packed varints
FIELDS = b"\x78\x01" * (5 << 20)  # that no message of gRPC has
COUNT = b"\x0a\x05count"  # the name of the model
TENSOR = '{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]}]'
MEMBERS = ",".join(f'"{i}":0' for i in range(200_000))  # about 2 MB


def count(request: tw.InferRequest) -> dict[str, Any]:
    return {"n_inputs": np.array([len(request)])}


def zeros(request: tw.InferRequest) -> dict[str, Any]:
    return {f"y{i}": np.zeros(1_000_000, np.uint8) for i in range(50)}


models = {function.__name__: Model(function) for function in (count, zeros)}


class Message(NamedTuple):
    body: bytes
    headers: dict[str, str]
    name: str  # of the method of gRPC, or of the model
    at_once: int = 1


def request_of(array: Any, n_tensors: int, model: str, **options: Any) -> tw.InferRequest:
    tensor = tw.Tensor("x", array, **options)
    tensors = [tensor.replace(name=f"x{i}") for i in range(n_tensors)]
    return tw.InferRequest(tensors, model_name=model)


def http(request: tw.InferRequest) -> Message:
    frame = tw.encode_request(request)
    body = gzip.compress(bytes(frame), 1)
    coded = {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
    return Message(body, frame.headers | coded, request.model_name or "")


def json(body: str, at_once: int = 1) -> Message:
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return Message(body.encode(), headers, "count", at_once)


def typed(
    datatype: bytes, contents: bytes, n_tensors: int = 10, shape: bytes = SHAPE, at_once: int = 1
) -> Message:
    """Return a gRPC request of tensors with typed contents."""
    rest = b""
    for number, value in ((2, datatype), (3, shape), (5, contents)):
        rest = append_fields(rest, number, [value])
    entries = [append_fields(b"", 1, [b"x%d" % i]) + rest for i in range(n_tensors)]
    return Message(append_fields(COUNT, 5, entries), {}, "ModelInfer", at_once)


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
    "gRPC, 8 with 2 MiB of fields": lambda: Message(
        (COUNT + FIELDS)[:NEARLY_2_MIB], {}, "ModelInfer", AT_ONCE
    ),
    "gRPC, 8 with 2 MiB of BOOL": lambda: typed(
        b"BOOL", b"\x08\1" * (NEARLY_2_MIB // 2), 1, b"\x01", AT_ONCE
    ),
    "gRPC, 8 with 2 MiB of raw BYTES": lambda: Message(
        tw.grpc.encode_request(request_of([b""] * (NEARLY_2_MIB // 4), 1, "count")),
        {},
        "ModelInfer",
        AT_ONCE,
    ),
    "gRPC, 60 MiB of dimensions": lambda: typed(b"BOOL", b"", 1, b"\1" * (60 << 20)),
    "gRPC, 60 MiB of raw contents": lambda: Message(
        tw.grpc.encode_request(request_of(np.zeros(60 << 20, np.uint8), 1, "count")),
        {},
        "ModelInfer",
    ),
    "HTTP, 8 with 64 KiB of JSON": lambda: json(
        f"{TENSOR},{MEMBERS[: MEMBERS.index(',', 64_000)]}}}", AT_ONCE
    ),
    "HTTP, 8 with 2 MB of members": lambda: json(f"{TENSOR},{MEMBERS}}}", AT_ONCE),
    "HTTP, 60 MiB of white space": lambda: json(TENSOR + " " * (60 << 20) + "}"),
    "gRPC, 10 MiB of fields to ServerLive": lambda: Message(FIELDS, {}, "ServerLive"),
    "gRPC, 10 MiB of fields to ModelMetadata": lambda: Message(FIELDS, {}, "ModelMetadata"),
}


def send_again_and_again(name: str, port: int, grpc_port: int) -> None:
    """Send a message until the process is stopped. The server may reject it."""
    message = MESSAGES[name]()
    with ThreadPoolExecutor(message.at_once) as threads:
        list(threads.map(send, *map(repeat, (message, port, grpc_port)), range(message.at_once)))


def send(message: Message, port: int, grpc_port: int, _: int) -> None:
    import grpc  # noqa: PLC0415 (it may not be installed)

    body, headers, called, _ = message
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


@pytest.mark.parametrize("way", ["HTTP", "gRPC"])
@pytest.mark.parametrize("name", MESSAGES)
def test_health_check(benchmark: BenchmarkFixture, name: str, way: str) -> None:
    grpc = pytest.importorskip("grpc")
    with running(serve_command, lambda server: accepts(server.port)) as server:
        arguments = name, *server
        sender = get_context("spawn").Process(target=send_again_and_again, args=arguments)
        connection = HTTPConnection(LOOPBACK, server.port, timeout=TIMEOUT_SECONDS)
        with (
            closing(connection),
            grpc.insecure_channel(f"{LOOPBACK}:{server.grpc_port}") as channel,
        ):
            is_live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")

            def check() -> None:
                if way == "gRPC":
                    assert is_live(b"", wait_for_ready=True)
                    return
                connection.request("GET", "/v2/health/live")
                assert connection.getresponse().read()

            sender.start()
            time.sleep(0 if benchmark.disabled else 5)  # until it has sent a message
            pause = partial(time.sleep, PAUSE_SECONDS)
            benchmark.pedantic(check, setup=pause, rounds=ROUNDS)  # type: ignore[no-untyped-call]
            assert sender.is_alive()
            sender.kill()
            sender.join()
