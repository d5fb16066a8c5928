"""Copies and peak memory of one call, for each byte of a tensor of 16 MB (see `memory.py`).

The times of these rows have no meaning: the call runs in a process of its own.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from .contenders import CODECS
from .measuring import counted

COLUMNS = {  # module, operation and array
    "decode": ("bench_codec", "decode", "FP32"),
    "encode": ("bench_codec", "encode", "FP32"),
    "decode BYTES": ("bench_codec", "decode", "BYTES"),
    "HTTP call": ("bench_calls", "call", "FP32"),
    "gRPC: encode": ("bench_grpc", "encode", "FP32"),
    "gRPC: decode": ("bench_grpc", "decode", "FP32"),
}
OF_GRPC = ["tensorwire", "tritonclient", "generated classes"]
CONTENDERS = {
    **{column: [*CODECS] for column in ("decode", "encode", "decode BYTES")},
    "HTTP call": ["tensorwire", "tritonclient", "tritonclient, drop-in", "raw sockets"],
    "gRPC: encode": OF_GRPC,
    "gRPC: decode": OF_GRPC,
}
ROWS = [(column, name) for column, names in CONTENDERS.items() for name in names]
# The copies of a client in a whole call: it sends and receives a tensor of the same size.
CALL_COPIES = {"tensorwire": 1, "tritonclient": 5, "tritonclient, drop-in": 2, "raw sockets": 0}


@pytest.mark.large
@pytest.mark.parametrize(("column", "contender"), ROWS)
def test_memory(benchmark: BenchmarkFixture, column: str, contender: str) -> None:
    benchmark.group = f"memory: {column}"
    benchmark.extra_info["contender"] = contender
    source, operation, kind = COLUMNS[column]
    found = counted(source, operation, contender, kind)  # skips the test if it has to
    benchmark.pedantic(lambda: found)  # type: ignore[no-untyped-call]
    benchmark.extra_info.update(found)
    if column == "HTTP call":
        assert found["copied"] == pytest.approx(CALL_COPIES[contender], rel=0.1, abs=0.05)
