"""Memory: the peak while a message is encoded or decoded, and buffers for received bodies.

``python -m benchmarks.bench_memory DIRECTION WORKLOAD CONTENDER`` measures one peak and prints it
as JSON. Each peak is measured in a separate process. The kernel records the peak, which therefore
includes all allocators.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .contenders import CONTENDERS, ENVIRONMENTS, Missing, Unchanged, Unsupported, contenders_in
from .measure import marked, measure, measuring
from .workloads import message_of

ROOT = Path(__file__).resolve().parent.parent

# --- the peak memory of encoding and decoding ---

QUICK = {"100 MB FP32", "BYTES 300k x 0-40 B"}
WORKLOADS = [
    *("128 B FP32", "100 MB FP32", "logits FP16 [8,128,32000]"),
    *("BYTES 300k x 0-40 B", "BYTES 8 x 8 MB"),
]
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WARM_UP = "128 B FP32"  # imports and caches of the first call are not counted


@pytest.mark.parametrize(
    "contender", marked(CONTENDERS, **{name: contenders_in(name) for name in ENVIRONMENTS})
)
@pytest.mark.parametrize("workload", marked(WORKLOADS, quick=QUICK))
@pytest.mark.parametrize("direction", ["decode", "encode"])
def test_peak(benchmark: BenchmarkFixture, direction: str, workload: str, contender: str) -> None:
    nbytes = message_of(workload).nbytes
    with measuring(benchmark, f"peak memory: {direction}", workload, contender, nbytes=nbytes):
        CONTENDERS[contender].require()
        arguments = (direction, workload, contender)
        peak = benchmark.pedantic(peak_in_subprocess, arguments)  # type: ignore[no-untyped-call]
        benchmark.extra_info["peak_nbytes"] = peak


def peak_in_subprocess(direction: str, workload: str, contender: str) -> int:
    command = [sys.executable, "-m", "benchmarks.bench_memory", direction, workload, contender]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError((run.stderr.splitlines() or [f"exit code {run.returncode}"])[-1])
    answer = json.loads(run.stdout)
    for reason in (Missing, Unchanged, Unsupported):
        if reason.__name__ in answer:
            raise reason(answer[reason.__name__])
    return int(answer["peak_nbytes"])


def main(direction: str, workload: str, contender: str) -> None:
    try:
        with CONTENDERS[contender].context():
            with suppress(Unchanged):
                job(direction, WARM_UP, contender)()
            answer: dict[str, Any] = {"peak_nbytes": peak_of(job(direction, workload, contender))}
    except (Missing, Unsupported) as reason:
        answer = {type(reason).__name__: str(reason)}
    print(json.dumps(answer))


def job(direction: str, workload: str, contender: str) -> Callable[[], Any]:
    """Return the call that is measured."""
    codec, message = CONTENDERS[contender], message_of(workload)
    codec.require(message)
    if direction == "encode":
        encode, prepared = codec.encode, codec.prepare(message)
        return lambda: encode(prepared)
    decode, (body, header_length) = codec.decode, codec.body_of(message)
    names = list(message.arrays)
    return lambda: decode(body, header_length, names)


def peak_of(run: Callable[[], Any]) -> int:
    """Return the largest growth of the memory of this process, in bytes, while ``run`` runs."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        RESET.write_text("5")
    except OSError as error:
        raise Missing(f"the kernel does not let a process reset its peak: {error}") from None
    before = status("VmRSS")
    kept = run()
    peak = status("VmHWM")
    del kept
    return max(0, peak - before)


def status(field: str) -> int:
    """Return VmRSS or VmHWM in bytes."""
    lines = STATUS.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


# --- receiving a body in chunks ---

CHUNK_NBYTES = 1 << 16
BODIES = {"1 MB": 1_000_000, "16 MB": 16_000_000, "100 MB": 100_000_000}
HEADER_NBYTES = 200

Chunks = Sequence[bytes]
Receive = Callable[[Chunks], Any]


def known_length(body: bytes) -> Receive:
    return lambda chunks: written(tw.BodyBuffer(len(body), HEADER_NBYTES), chunks)


def unknown_length(_: bytes) -> Receive:
    return lambda chunks: written(tw.BodyBuffer(None, HEADER_NBYTES), chunks)


def written(body: tw.BodyBuffer, chunks: Chunks) -> tw.BodyBuffer:
    for chunk in chunks:
        body.write(chunk)
    return body


def joined_list(_: bytes) -> Receive:
    """Append chunks to a list and join it at the end, as ASGI frameworks do."""

    def receive(chunks: Chunks) -> bytes:
        kept = []
        for chunk in chunks:
            kept.append(chunk)
        return b"".join(kept)

    return receive


def extended_bytearray(_: bytes) -> Receive:
    def receive(chunks: Chunks) -> bytearray:
        body = bytearray()
        for chunk in chunks:
            body += chunk
        return body

    return receive


# memcpy copies a large body in a different way than a chunk, which may be slower.


def one_copy(body: bytes) -> Receive:
    """Copy the body, which is not in chunks, to memory that was written before."""
    memory = memoryview(bytearray(body))

    def receive(_: Chunks) -> memoryview:
        memory[:] = body
        return memory

    return receive


def copied_chunks(body: bytes) -> Receive:
    """Copy each chunk to memory that was written before."""
    memory = memoryview(bytearray(body))
    targets = [memory[i : i + CHUNK_NBYTES] for i in range(0, len(body), CHUNK_NBYTES)]

    def receive(chunks: Chunks) -> memoryview:
        for target, chunk in zip(targets, chunks, strict=True):
            target[:] = chunk
        return memory

    return receive


BUFFERS: dict[str, Callable[[bytes], Receive]] = {
    "tensorwire": known_length,
    "tensorwire, length unknown": unknown_length,
    "list, join": joined_list,
    "bytearray +=": extended_bytearray,
    "limit (one copy)": one_copy,
    "limit (a copy of each chunk)": copied_chunks,
}


@pytest.mark.parametrize("contender", BUFFERS)
@pytest.mark.parametrize("workload", marked(BODIES, quick={"16 MB"}))
def test_receive(benchmark: BenchmarkFixture, workload: str, contender: str) -> None:
    nbytes = BODIES[workload]
    sent = (bytes(range(256)) * (nbytes // 256 + 1))[:nbytes]
    chunks = [sent[i : i + CHUNK_NBYTES] for i in range(0, nbytes, CHUNK_NBYTES)]
    receive = BUFFERS[contender](sent)

    def check(found: Any) -> None:
        assert bytes(found) == sent

    with measuring(benchmark, "receive a body", workload, contender, nbytes=nbytes):
        measure(benchmark, check, receive, chunks)


if __name__ == "__main__":
    main(*sys.argv[1:])
