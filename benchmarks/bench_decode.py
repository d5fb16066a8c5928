"""A response's bytes become arrays: every workload, every contender."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .conftest import check
from .contenders import CONTENDERS
from .workloads import WORKLOADS


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_decode(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    arrays = WORKLOADS[workload]()
    tensors = [tw.Tensor(name, array) for name, array in arrays.items()]
    frame = tw.encode_response(tw.InferResponse(tensors))
    decode = CONTENDERS[contender].decode
    body, header_length = bytes(frame), frame.header_length
    names = list(arrays)
    check(decode(body, header_length, names), arrays)
    benchmark.extra_info.update(table="decode", workload=workload, contender=contender)
    benchmark(decode, body, header_length, names)
