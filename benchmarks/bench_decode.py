"""A response's bytes become arrays: every workload and contender, read and unread."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from .contenders import CONTENDERS
from .measure import check, measuring, touch
from .memory import require
from .workloads import SIZES, WORKLOADS, message_of, size_of


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("then", ["", " + touch"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_decode(benchmark: BenchmarkFixture, workload: str, then: str, contender: str) -> None:
    with measuring(benchmark, f"decode{then}", workload, contender):
        run(benchmark, workload, contender, bool(then))


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("then", ["", " + touch"])
@pytest.mark.parametrize("workload", SIZES)
def test_decode_by_size(
    benchmark: BenchmarkFixture, workload: str, then: str, contender: str
) -> None:
    table, nbytes = f"by size: decode{then}", size_of(workload)
    with measuring(benchmark, table, workload, contender, nbytes=nbytes):
        require(6 * nbytes)
        run(benchmark, workload, contender, bool(then))


def run(benchmark: BenchmarkFixture, workload: str, contender: str, is_read: bool) -> None:
    """Check what it decodes, then measure."""
    way = CONTENDERS[contender]
    decode = way.decoder()
    message = message_of(workload)
    way.accept(message)
    body, header_length = way.body_of(message)
    names = list(message.arrays)
    with way.setting():
        check(decode(body, header_length, names), message)
        if is_read:
            benchmark(lambda: touch(decode(body, header_length, names)))
        else:
            benchmark(decode, body, header_length, names)
