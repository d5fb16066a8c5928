"""The most memory that encoding or decoding takes beside the message, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from .contenders import CONTENDERS
from .measure import measuring
from .missing import Missing, Unsupported
from .workloads import message_of

QUICK = {"100 MB FP32", "BYTES 300k x 0-40 B"}
WORKLOADS = [
    *("128 B FP32", "100 MB FP32", "logits FP16 [8,128,32000]"),
    *("BYTES 300k x 0-40 B", "BYTES 8 x 8 MB"),
]
ROOT = Path(__file__).resolve().parent.parent


def peak_nbytes(direction: str, workload: str, contender: str) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", direction, workload, contender]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError((run.stderr.splitlines() or [f"exit code {run.returncode}"])[-1])
    answer = json.loads(run.stdout)
    if "missing" in answer:
        raise Missing(answer["missing"])
    if "cannot" in answer:
        raise Unsupported(answer["cannot"])
    return int(answer["peak_nbytes"])


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("direction", ["decode", "encode"])
def test_memory(benchmark: BenchmarkFixture, direction: str, workload: str, contender: str) -> None:
    nbytes = message_of(workload).nbytes
    with measuring(benchmark, f"memory: {direction}", workload, contender, nbytes=nbytes):
        CONTENDERS[contender].available()
        arguments = (direction, workload, contender)
        peak = benchmark.pedantic(peak_nbytes, arguments)  # type: ignore[no-untyped-call]
        benchmark.extra_info["peak_nbytes"] = peak
