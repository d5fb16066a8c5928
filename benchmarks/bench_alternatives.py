"""Formats in which programs send arrays and strings to services of their own, over HTTP.

The HTTP calls of all formats have the same client, ``http.client``, and the same server, which
decodes the values and encodes them again: Starlette on uvicorn. Frames of tensorwire are sent in
buffers, without joining them, except by one contender. Arrow Flight has a transport of its own. All
contenders of a row are measured in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw
from tensorwire.http import HEADER_LENGTH

from .bench_grpc import exchange
from .bench_http import TIMEOUT_SECONDS, by_sockets
from .contenders import FORMATS, ONE_BODY, arrow_batch, arrow_values, module
from .measure import OURS, has_copies, is_same_array, marked, measure_turns, read_elements
from .servers import LOOPBACK, SOCKETS, Servers
from .workloads import VALUES, Values

QUICK = {name for name in VALUES if "embeddings" not in name}
every_workload = pytest.mark.parametrize("workload", marked(VALUES, quick=QUICK))
Start = Callable[[], AbstractContextManager[Callable[[], Any]]]


def check_values(found: Values, sent: Values) -> None:
    """Raise AssertionError unless the values are equal to those that were sent."""
    assert found.keys() == sent.keys()
    for name, value in sent.items():
        if isinstance(value, list):
            assert list(found[name]) == value, f"strings {name!r} differ from what was sent"
        else:
            assert is_same_array(np.asarray(found[name]), value), f"array {name!r} differs"


def read(values: Values) -> None:
    """Read every element once."""
    for value in values.values():
        if isinstance(value, list):
            sum(map(len, value))
        else:
            read_elements([value])


@every_workload
def test_encode(benchmark: BenchmarkFixture, workload: str) -> None:
    values = VALUES[workload]()

    @contextmanager
    def start(name: str) -> Iterator[Callable[[], Any]]:
        codec = FORMATS[name]
        codec.require()
        yield lambda: (name, *codec.encode(values))

    def check(encoded: Any) -> None:
        name, body, header_length = encoded
        check_values(FORMATS[name].decode(bytes(body), header_length), values)

    contenders = {name: partial(start, name) for name in FORMATS}
    measure_turns(benchmark, "alternatives: encode", workload, contenders, check)


@every_workload
def test_read(benchmark: BenchmarkFixture, workload: str) -> None:
    values = VALUES[workload]()
    bodies: dict[str, tuple[bytes, int | None]] = {}
    copied: dict[str, bool] = {}

    @contextmanager
    def start(name: str) -> Iterator[Callable[[], Any]]:
        codec = FORMATS[name]
        codec.require()
        if name not in bodies:
            body, header_length = codec.encode(values)
            bodies[name] = bytes(body), header_length
        given = bodies[name]

        def decode_and_read() -> tuple[str, Values]:
            found = codec.decode(*given)
            read(found)
            return name, found

        yield decode_and_read

    def check(result: Any) -> None:
        name, found = result
        check_values(found, values)
        copied[name] = has_copies(map(np.asarray, found.values()), bodies[name][0])

    contenders = {name: partial(start, name) for name in FORMATS if name != ONE_BODY}
    measure_turns(benchmark, "alternatives: decode and read", workload, contenders, check)
    for name, row in benchmark.extra_info.get("contenders", {}).items():
        row["is_copied"] = copied[name]


# --- HTTP calls ---


@contextmanager
def by_format(servers: Servers, name: str, values: Values) -> Iterator[Callable[[], Values]]:
    """Encode the values and send them, and decode those that the server returns."""
    codec = FORMATS[name]
    codec.require()
    module("starlette.requests")
    connection = HTTPConnection(LOOPBACK, servers.port("formats"), timeout=TIMEOUT_SECONDS)

    def call() -> Values:
        body, header_length = codec.encode(values)
        headers = {"Content-Length": str(len(body))}
        if header_length is not None:
            headers[HEADER_LENGTH] = str(header_length)
        connection.request("POST", f"/{quote(name)}", body, headers)
        reply = connection.getresponse()
        found = reply.read()
        assert reply.status == 200, found[:200]
        return codec.decode(found, tw.header_length(reply.headers))

    with closing(connection):
        yield call


@contextmanager
def by_flight(servers: Servers, values: Values) -> Iterator[Callable[[], Values]]:
    url = f"grpc://{LOOPBACK}:{servers.port('Arrow Flight')}"
    with closing(module("pyarrow.flight").connect(url)) as client:
        yield lambda: arrow_values(exchange(client, arrow_batch(values), b"values"))


@contextmanager
def by_raw_sockets(servers: Servers, body: bytes, way: str) -> Iterator[Callable[[], Any]]:
    with by_sockets(servers.port(way), np.frombuffer(body, np.uint8), way=way) as echo:
        yield echo


@every_workload
def test_call(benchmark: BenchmarkFixture, servers: Servers, workload: str) -> None:
    """The limit transfers the body of tensorwire with plain sockets."""
    values = VALUES[workload]()
    body, header_length = FORMATS[ONE_BODY].encode(values)
    contenders: dict[str, Start] = {
        **{name: partial(by_format, servers, name, values) for name in FORMATS},
        "Arrow Flight": partial(by_flight, servers, values),
        **{f"limit ({way})": partial(by_raw_sockets, servers, body, way) for way in SOCKETS},
    }

    def check(found: Any) -> None:
        is_body = isinstance(found, np.ndarray)
        check_values(FORMATS[OURS].decode(found, header_length) if is_body else found, values)

    measure_turns(benchmark, "alternatives: HTTP call", workload, contenders, check)
