"""Arrays become a request's bytes, or buffers: every workload, every contender."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from .contender import Contender
from .contenders import CONTENDERS, PREPARED
from .measure import check, measure, measuring
from .memory import require
from .workloads import SIZES, WORKLOADS, message_of, size_of


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_encode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    with measuring(benchmark, "encode", workload, contender):
        run(benchmark, workload, CONTENDERS[contender])


@pytest.mark.parametrize("contender", PREPARED)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_encode_prepared(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    with measuring(benchmark, "encode again", workload, contender):
        run(benchmark, workload, PREPARED[contender])


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("workload", SIZES)
def test_encode_by_size(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    nbytes = size_of(workload)
    with measuring(benchmark, "by size: encode", workload, contender, nbytes=nbytes):
        require(6 * nbytes)
        run(benchmark, workload, CONTENDERS[contender])


def run(benchmark: BenchmarkFixture, workload: str, way: Contender) -> None:
    """Check what it encodes, then measure."""
    encode = way.encoder()
    message = message_of(workload)
    way.accept(message)
    with way.setting():
        names = list(message.arrays)

        def right(encoded: Any) -> None:
            check(way.read_back(way.join(encoded), names), message)

        measure(benchmark, right, encode, way.prepare(message))
