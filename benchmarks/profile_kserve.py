"""Profile KServe's REST server, alone and with tensorwire: `python -m benchmarks.profile_kserve`.

Run it in an environment with kserve. Prints a table of the server's CPU time per request. The
server is KServe's whole application with its middlewares and its logging, under uvicorn. It is
sampled by a timer of CPU time, which does not slow down calls and ignores other processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from threading import Thread
from time import process_time
from types import FrameType

from tensorwire.client import Client

from .bench_integrations import kserve_app, wait_until
from .contenders import installed, module
from .servers import LOOPBACK, free_port
from .workloads import floats

N_REQUESTS = 10_000
N_ELEMENTS = 32
SAMPLE_SECONDS = 0.001
UVICORN = "uvicorn, its HTTP parser, asyncio"
KSERVE = "KServe: endpoint, data plane, model"
PARTS = {  # a part of the path of a source file, and the name in the table
    "/tensorwire/": "tensorwire",
    "/fastapi/": "FastAPI: routes, arguments of the endpoint",
    "/starlette/": "Starlette: routes, middlewares, request, response",
    "/pydantic/": "pydantic",
    "/timing_asgi/": "timing middleware",
    "/prometheus_client/": "metrics (prometheus_client)",
    "/logging/": "logging of each request",
    "/uvicorn/": UVICORN,
    "/asyncio/": UVICORN,
    "/h11/": UVICORN,
    "/site-packages/kserve/": KSERVE,
    "bench_integrations": KSERVE,
}
OTHER = "other"


def main() -> None:
    kserve_app().model.answer = floats(N_ELEMENTS)
    alone = profile()
    with installed("tensorwire.integrations.kserve"):
        ours = profile()
    print("| part of the server | KServe | KServe on tensorwire |\n|---|---|---|")
    for part in sorted({*alone, *ours}, key=lambda part: -ours[part]):
        print(f"| {part} | {cell(alone, part)} | {cell(ours, part)} |")
    print(f"| sum | {alone.total():.0f} us | {ours.total():.0f} us |")


def send_requests(port: int) -> None:
    with Client(f"http://{LOOPBACK}:{port}") as client:
        for _ in range(N_REQUESTS):
            client.infer("m", {"x": floats(N_ELEMENTS)})


def cell(times: Counter[str], part: str) -> str:
    return f"{times[part]:.0f} us ({times[part] / times.total():.0%})"


def profile() -> Counter[str]:
    """Return the microseconds of CPU time per request that each part of the server takes."""
    uvicorn, port = module("uvicorn"), free_port()
    config = uvicorn.Config(kserve_app().app, host=LOOPBACK, port=port, log_config=None)
    server = uvicorn.Server(config)
    command = [sys.executable, "-m", "benchmarks.profile_kserve", str(port)]
    samples: Counter[str] = Counter()
    seconds = 0.0

    def send() -> None:
        nonlocal seconds
        wait_until(lambda: bool(server.started), "KServe's application")
        started = process_time()
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        try:
            subprocess.run(command, check=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            seconds = process_time() - started
            server.should_exit = True

    signal.signal(signal.SIGPROF, lambda number, frame: samples.update([part_of(frame)]))
    sender = Thread(target=send)
    sender.start()
    server.run()
    sender.join()
    per_sample = seconds / samples.total() / N_REQUESTS * 1e6
    return Counter({part: n_samples * per_sample for part, n_samples in samples.items()})


def part_of(frame: FrameType | None) -> str:
    """Return the part of the innermost function that belongs to one."""
    while frame is not None:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        if part := next((part for text, part in PARTS.items() if text in path), None):
            return part
        frame = frame.f_back
    return OTHER


if __name__ == "__main__":
    send_requests(int(sys.argv[1])) if sys.argv[1:] else main()
