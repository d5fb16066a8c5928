"""A body arrives in chunks of 64 KiB: what BodyBuffer costs, and what kept memory would save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .measure import measure, measuring

CHUNK_NBYTES = 1 << 16
WORKLOADS = {"1 MB": 1_000_000, "16 MB": 16_000_000, "100 MB": 100_000_000}
HEADER_NBYTES = 200

Chunks = Sequence[bytes]
Arrive = Callable[[Chunks], Any]
Way = Callable[[int], Arrive]  # for bodies of so many bytes


def announced(nbytes: int) -> Arrive:
    def arrive(chunks: Chunks) -> tw.BodyBuffer:
        return written(tw.BodyBuffer(nbytes, HEADER_NBYTES), chunks)

    return arrive


def growing(_: int) -> Arrive:
    return lambda chunks: written(tw.BodyBuffer(None, HEADER_NBYTES), chunks)


def written(body: tw.BodyBuffer, chunks: Chunks) -> tw.BodyBuffer:
    for chunk in chunks:
        body.write(chunk)
    return body


def joined(_: int) -> Arrive:
    """As ASGI frameworks do: a list that is joined at the end."""

    def arrive(chunks: Chunks) -> bytes:
        kept = []
        for chunk in chunks:
            kept.append(chunk)
        return b"".join(kept)

    return arrive


def extended(_: int) -> Arrive:
    def arrive(chunks: Chunks) -> bytearray:
        body = bytearray()
        for chunk in chunks:
            body += chunk
        return body

    return arrive


def kept(nbytes: int) -> Arrive:
    """The same memory for every body: what a pool would give once no view is left of the last."""
    memory = memoryview(bytearray(nbytes))

    def arrive(chunks: Chunks) -> memoryview:
        position = 0
        for chunk in chunks:
            memory[position : position + len(chunk)] = chunk
            position += len(chunk)
        return memory

    return arrive


CONTENDERS: dict[str, Way] = {
    "tensorwire": announced,
    "tensorwire, length unknown": growing,
    "list, join": joined,
    "bytearray +=": extended,
    "limit (kept memory)": kept,
}
QUICK = {"16 MB"}


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_arrival(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    nbytes = WORKLOADS[workload]
    sent = bytes(range(256)) * (nbytes // 256 + 1)
    chunks = [sent[i : min(i + CHUNK_NBYTES, nbytes)] for i in range(0, nbytes, CHUNK_NBYTES)]
    arrive = CONTENDERS[contender](nbytes)

    def check(found: Any) -> None:
        assert bytes(found) == sent[:nbytes]

    with measuring(benchmark, "a body arrives", workload, contender, nbytes=nbytes):
        measure(benchmark, check, arrive, chunks)
