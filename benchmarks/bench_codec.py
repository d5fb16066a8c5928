"""Decode responses to arrays and encode arrays to requests, for every workload and contender."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .contenders import (
    CONTENDERS,
    ENVIRONMENTS,
    HTTP,
    PREPARED,
    Contender,
    Encoded,
    Found,
    contenders_in,
    joined,
    module,
    response_of,
)
from .measure import (
    OURS,
    check_arrays,
    marked,
    measure,
    measure_turns,
    measuring,
    read_elements,
    require_memory,
)
from .workloads import LARGE, QUICK, SIZES, WORKLOADS, floats, message_of, nbytes_of_size

every_contender = pytest.mark.parametrize(
    "contender", marked(CONTENDERS, **{name: contenders_in(name) for name in ENVIRONMENTS})
)
every_workload = pytest.mark.parametrize("workload", marked(WORKLOADS, quick=QUICK, large=LARGE))
every_size = pytest.mark.parametrize("workload", marked(SIZES, quick=QUICK, large=LARGE))
every_environment = pytest.mark.parametrize(
    "environment", marked(["ours", *ENVIRONMENTS[:2]], **{name: {name} for name in ENVIRONMENTS})
)


@every_contender
@every_workload
def test_decode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    with measuring(benchmark, "decode", workload, contender):
        decode(benchmark, workload, contender)


@every_environment
@every_workload
def test_read(benchmark: BenchmarkFixture, workload: str, environment: str) -> None:
    decode_and_read(benchmark, "decode and read", workload, environment)


@pytest.mark.parametrize("contender", marked(["tensorwire", "tritonclient"]))
def test_decode_in_one_expression(benchmark: BenchmarkFixture, contender: str) -> None:
    """The other benchmarks collect arrays in a list, which takes a quarter of a microsecond."""
    with measuring(benchmark, "decode", "128 B FP32, one expression", contender):
        message = message_of("128 B FP32")
        body, header_length = response_of(message)
        [name] = message.arrays
        decode_one: Any
        if contender == "tensorwire":

            def decode_one() -> Any:
                return tw.decode_response(body, header_length)[name].as_numpy()
        else:
            client = module(HTTP).InferenceServerClient

            def decode_one() -> Any:
                return client.parse_response_body(body, header_length=header_length).as_numpy(name)

        measure(benchmark, lambda found: check_arrays([found], message), decode_one)


@every_contender
@every_size
def test_decode_by_size(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    nbytes = nbytes_of_size(workload)
    with measuring(benchmark, "by size: decode", workload, contender, nbytes=nbytes):
        require_memory(6 * nbytes)
        decode(benchmark, workload, contender)


@every_environment
@every_size
def test_read_by_size(benchmark: BenchmarkFixture, workload: str, environment: str) -> None:
    benchmark.extra_info["nbytes"] = nbytes_of_size(workload)
    decode_and_read(benchmark, "by size: decode and read", workload, environment)


@every_contender
@every_workload
def test_encode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    with measuring(benchmark, "encode", workload, contender):
        encode(benchmark, workload, CONTENDERS[contender])


@pytest.mark.parametrize("contender", PREPARED)
@every_workload
def test_encode_prepared(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    with measuring(benchmark, "encode prepared tensors", workload, contender):
        encode(benchmark, workload, PREPARED[contender])


@every_contender
@every_size
def test_encode_by_size(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    nbytes = nbytes_of_size(workload)
    with measuring(benchmark, "by size: encode", workload, contender, nbytes=nbytes):
        require_memory(6 * nbytes)
        encode(benchmark, workload, CONTENDERS[contender])


def decode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    codec, message = CONTENDERS[contender], message_of(workload)
    codec.require(message)
    given = (*codec.body_of(message), list(message.arrays))
    check = partial(check_arrays, message=message)
    with codec.context():
        measure(benchmark, check, codec.decode, *given)


def decode_and_read(
    benchmark: BenchmarkFixture, table: str, workload: str, environment: str
) -> None:
    """Measure all contenders of an environment in turns.

    The time to read many megabytes depends on the memory pages that the body has, more than on the
    contender. Therefore, a contender reads another copy of the body in each turn.
    """
    message = message_of(workload)
    bodies: dict[str, Encoded] = {}

    @contextmanager
    def start(contender: str) -> Iterator[Callable[[], Found]]:
        codec = CONTENDERS[contender]
        codec.require(message)
        require_memory(6 * message.nbytes - sum(len(body) for body, _ in bodies.values()))
        if contender not in bodies:
            bodies[contender] = codec.body_of(message)
        body, header_length = bodies[contender]
        given = (bytes(memoryview(body)), header_length, list(message.arrays))

        def decode_and_read() -> Found:
            found = codec.decode(*given)
            read_elements(found)
            return found

        with codec.context():
            yield decode_and_read

    chosen = contenders_in("" if environment == "ours" else environment)
    measure_turns(
        benchmark,
        table,
        workload,
        {name: partial(start, name) for name in CONTENDERS if name in {OURS, *chosen}},
        partial(check_arrays, message=message),
        base_only=environment != "ours",
    )


def encode(benchmark: BenchmarkFixture, workload: str, codec: Contender) -> None:
    message = message_of(workload)
    codec.require(message)
    names = list(message.arrays)

    def check(encoded: Any) -> None:
        check_arrays(codec.read_back(codec.join(encoded), names), message)

    with codec.context():
        measure(benchmark, check, codec.encode, codec.prepare(message))


# --- torch ---

# tritonclient has no functions for torch: its users convert with numpy.
TORCH_WORKLOADS = {"1 KB FP32": 256, "100 MB FP32": 25_000_000}
every_torch_workload = pytest.mark.parametrize("workload", TORCH_WORKLOADS)
every_torch_contender = pytest.mark.parametrize("contender", ["tensorwire", "tritonclient"])


@pytest.mark.torch
@every_torch_contender
@every_torch_workload
def test_decode_to_torch(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    """Decode a writable body, as servers and clients receive it, to a torch tensor."""
    with measuring(benchmark, "decode to torch", workload, contender):
        torch = module("torch")
        array = floats(TORCH_WORKLOADS[workload])
        given = tw.encode_response(tw.InferResponse([tw.Tensor("x", array)]))
        body, header_length = bytearray(bytes(given)), given.header_length
        decode_one: Any
        if contender == "tensorwire":

            def decode_one() -> Any:
                return torch.from_dlpack(tw.decode_response(body, header_length)["x"])
        else:
            client = module(HTTP).InferenceServerClient

            def decode_one() -> Any:
                response = client.parse_response_body(body, header_length=header_length)
                return torch.from_numpy(response.as_numpy("x"))

        def check(found: Any) -> None:
            assert found.dtype == torch.float32
            assert np.array_equal(found.numpy(), array)

        measure(benchmark, check, decode_one)


@pytest.mark.torch
@every_torch_contender
@every_torch_workload
def test_encode_from_torch(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    with measuring(benchmark, "encode from torch", workload, contender):
        source = module("torch").from_numpy(floats(TORCH_WORKLOADS[workload]))
        encode_one: Any
        if contender == "tensorwire":

            def encode_one() -> Any:
                return joined(tw.encode_request(tw.InferRequest([tw.Tensor("x", source)])))
        else:
            client = module(HTTP)

            def encode_one() -> Any:
                made = client.InferInput("x", list(source.shape), "FP32")
                made.set_data_from_numpy(source.numpy())
                return client.InferenceServerClient.generate_request_body([made])

        def check(found: Any) -> None:
            assert np.array_equal(tw.decode_request(*found)["x"].as_numpy(), source.numpy())

        measure(benchmark, check, encode_one)


@pytest.mark.torch
@every_torch_workload
def test_tensor_from_torch(benchmark: BenchmarkFixture, workload: str) -> None:
    """Create a Tensor, whose time does not depend on the size."""
    with measuring(benchmark, "Tensor from torch", workload, "tensorwire"):
        source = module("torch").from_numpy(floats(TORCH_WORKLOADS[workload]))

        def check(found: tw.Tensor) -> None:
            assert found.as_numpy().ctypes.data == source.data_ptr()

        measure(benchmark, check, tw.Tensor, "x", source)
