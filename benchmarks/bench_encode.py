"""Arrays become a request's bytes, or buffers: every workload, every contender."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .conftest import check
from .contenders import ENCODERS
from .workloads import WORKLOADS


@pytest.mark.parametrize("contender", ENCODERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_encode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    arrays = WORKLOADS[workload]()
    way = ENCODERS[contender]
    prepared = way.prepare(arrays)
    request = tw.decode_request(*way.join(way.encode(prepared)))
    check([request[name].as_numpy() for name in arrays], arrays)
    del request
    benchmark.extra_info.update(workload=workload, contender=contender)
    benchmark(way.encode, prepared)
