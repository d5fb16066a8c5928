"""Memory: the peaks of encoding, decoding and requests over HTTP; buffers for received bodies.

``python -m benchmarks.bench_memory DIRECTION WORKLOAD CONTENDER [PORT PID ...]`` measures one peak,
or that of a client and of the processes of a server, and prints them as JSON. Each peak is measured
in a separate process. The kernel records the peak, which therefore includes all allocators.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import tensorwire as tw

from .bench_http import Echo, by_our_async_client, by_our_client, by_tritonclient
from .contenders import CONTENDERS, ENVIRONMENTS, Missing, Unchanged, Unsupported, contenders_in
from .measure import marked, measure, measuring, require_memory
from .servers import SERVERS, processes
from .workloads import message_of

ROOT = Path(__file__).resolve().parent.parent
MODULE = "benchmarks.bench_memory"

# --- the peak memory of encoding and decoding ---

QUICK = {"100 MB FP32", "BYTES 300k x 0-40 B"}
WORKLOADS = [
    *("128 B FP32", "100 MB FP32", "logits FP16 [8,128,32000]"),
    *("BYTES 300k x 0-40 B", "BYTES 8 x 8 MB"),
]
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
        arguments = (MODULE, direction, workload, contender)
        found = benchmark.pedantic(run_in_subprocess, arguments)  # type: ignore[no-untyped-call]
        benchmark.extra_info.update(found)


def run_in_subprocess(module: str, *arguments: str) -> dict[str, int]:
    """Run a module that calls ``print_peaks`` in another process, and return what it prints."""
    command = [sys.executable, "-m", module, *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError((run.stderr.splitlines() or [f"exit code {run.returncode}"])[-1])
    answer: dict[str, Any] = json.loads(run.stdout)
    for reason in (Missing, Unchanged, Unsupported):
        if reason.__name__ in answer:
            raise reason(answer[reason.__name__])
    return answer


def print_peaks(measured: Callable[..., dict[str, int]], *arguments: str) -> None:
    """Print the peaks that a function measures, or why it cannot measure them, as JSON."""
    try:
        answer: dict[str, Any] = measured(*arguments)
    except (Missing, Unsupported) as reason:
        answer = {type(reason).__name__: str(reason)}
    print(json.dumps(answer))


def codec_peaks(direction: str, workload: str, contender: str) -> dict[str, int]:
    with CONTENDERS[contender].context():
        with suppress(Unchanged):
            job(direction, WARM_UP, contender)()
        return {"peak_nbytes": peak_of(job(direction, workload, contender))}


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
    return peaks_of(run, ["self"])[0]


def peaks_of(run: Callable[[], Any], pids: Sequence[str]) -> list[int]:
    """Return the largest growth of the memory of each process, in bytes, while ``run`` runs."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        for pid in pids:
            Path("/proc", pid, "clear_refs").write_text("5")
    except OSError as error:
        raise Missing(f"the kernel does not let a process reset its peak: {error}") from None
    before = [status(pid, "VmRSS") for pid in pids]
    kept = run()
    peaks = [status(pid, "VmHWM") for pid in pids]
    del kept
    return [max(0, peak - rss) for peak, rss in zip(peaks, before, strict=True)]


def status(pid: str, field: str) -> int:
    """Return VmRSS or VmHWM in bytes."""
    lines = Path("/proc", pid, "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


# --- the peak memory of a request over HTTP ---

TRANSFER = "peak memory over HTTP"
SIZES = {"16 MB": 4_000_000, "1 GB": 250_000_000}  # the number of elements of FP32
TRANSFERS: dict[
    str, tuple[Callable[..., AbstractContextManager[Echo]], str]
] = {  # the client and the name of the server
    "tensorwire, tensorwire serve": (by_our_client, "tensorwire serve"),
    "tensorwire async, tensorwire serve": (by_our_async_client, "tensorwire serve"),
    "tensorwire, tensorwire serve, ASGI": (by_our_client, "tensorwire serve, ASGI"),
    "tensorwire, granian RSGI": (by_our_client, "granian RSGI"),
    "tritonclient, tensorwire serve": (by_tritonclient, "tensorwire serve"),
}
MAX_MULTIPLE = 6  # of the tensor, for both processes; for the check of the available memory


@pytest.mark.parametrize("contender", TRANSFERS)
@pytest.mark.parametrize("size", marked(SIZES, quick={"16 MB"}))
@pytest.mark.parametrize("direction", ["request", "response"])
def test_transfer(benchmark: BenchmarkFixture, direction: str, size: str, contender: str) -> None:
    """Measure client and server, each in a process of its own that has transferred nothing large.

    The tensor that is sent is created during the measurement, and counts.
    """
    workload, nbytes = f"{direction} of {size}: {contender}", 4 * SIZES[size]
    with measuring(benchmark, TRANSFER, workload, "client"):
        require_memory(MAX_MULTIPLE * nbytes)
        with SERVERS[TRANSFERS[contender][1]]() as server:
            pids = map(str, processes(server))
            arguments = (MODULE, direction, size, contender, str(server.port), *pids)
            peaks = benchmark.pedantic(run_in_subprocess, arguments)  # type: ignore[no-untyped-call]
        benchmark.extra_info["contenders"] = {
            name: {"per_byte": peaks[name] / nbytes} for name in ("client", "server")
        }


def transfer_peaks(
    direction: str, size: str, contender: str, port: str, *pids: str
) -> dict[str, int]:
    transfer(direction, 1, contender, int(port))()
    run = transfer(direction, SIZES[size], contender, int(port))
    client, *server = peaks_of(run, ["self", *pids])
    return {"client": client, "server": sum(server)}


def transfer(direction: str, n_floats: int, contender: str, port: int) -> Callable[[], Any]:
    """Return a call that sends or receives a tensor with a new client."""
    client, _ = TRANSFERS[contender]
    is_request = direction == "request"
    model = "last" if is_request else "ones"

    def run() -> Any:
        sent = np.ones(n_floats, np.float32) if is_request else np.array([n_floats], np.float32)
        with client(port, sent, model) as infer:
            received = infer()
        assert received.shape == ((1,) if is_request else (n_floats,)) and received[-1] == 1
        return sent, received

    return run


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
    print_peaks(transfer_peaks if len(sys.argv) > 4 else codec_peaks, *sys.argv[1:])
