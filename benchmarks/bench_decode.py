"""A response's bytes become arrays: every workload and contender, read and unread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from .contender import Found
from .contenders import CONTENDERS
from .measure import check, measure, measuring, touch
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
    function = read if is_read else decode
    given = (decode,) if is_read else ()
    with way.setting():
        right = partial(check, message=message)
        measure(benchmark, right, function, *given, body, header_length, list(message.arrays))


def read(decode: Callable[..., Found], *args: Any) -> Found:
    """Decode, and read every element."""
    found = decode(*args)
    touch(found)
    return found
