"""Arrays become a request's bytes, or buffers: every workload, every contender."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .conftest import check
from .contenders import CONTENDERS, PREPARED, Contender
from .workloads import WORKLOADS, Arrays


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_encode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    benchmark.extra_info.update(table="encode", workload=workload, contender=contender)
    run(benchmark, WORKLOADS[workload](), CONTENDERS[contender])


@pytest.mark.parametrize("contender", PREPARED)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_encode_prepared(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    benchmark.extra_info.update(table="encode again", workload=workload, contender=contender)
    run(benchmark, WORKLOADS[workload](), PREPARED[contender])


def run(benchmark: BenchmarkFixture, arrays: Arrays, way: Contender) -> None:
    """Check what it encodes, then measure."""
    prepared = way.prepare(arrays)
    request = tw.decode_request(*way.join(way.encode(prepared)))
    check([request[name].as_numpy() for name in arrays], arrays)
    del request
    benchmark(way.encode, prepared)
