"""``python -m benchmarks.throughput [--seconds N]``: requests per second of one identity model.

``wrk`` sends one FP32 tensor, binary both ways, over 1, 8 and 32 connections. Every contender gets
a turn in every round, so that what else the machine does meets all of them. The rates are medians;
a ratio is the median of those to the bare app in the same round.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

import tensorwire as tw

from .missing import Missing
from .servers import LOOPBACK, Servers
from .workloads import floats

BASE = "bare app, uvicorn"
CONTENDERS = (BASE, "uvicorn", "bare app, granian", "granian", "Triton")
SIZES = (32, 250_000)
CONCURRENCIES = (1, 8, 32)
PATH = "/v2/models/identity_fp32/infer"

SCRIPT = """\
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
"""
RATE = re.compile(r"^Requests/sec:\s+([\d.]+)$", re.MULTILINE)
TROUBLE = re.compile(r"^ *(?:Non-2xx or 3xx responses|Socket errors):.*$", re.MULTILINE)


class WrongAnswer(Exception):
    """A server does not return what it was sent."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2, help="of one measurement (2)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (3)")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed, and nothing else here is fast enough to measure with")
    with Servers() as servers, TemporaryDirectory(prefix="tensorwire-wrk-") as scratch:
        ports = dict(available(servers))
        print(heading(ports), flush=True)
        for n_floats in SIZES:
            frame = frame_of(n_floats)
            for contender, port in ports.items():
                check(contender, port, frame, n_floats)
            options = wrk_options(frame, Path(scratch))
            for concurrency in CONCURRENCIES:
                command = ["wrk", "-t1", f"-c{concurrency}", f"-d{arguments.seconds:g}s", *options]
                rates = [
                    {name: rate(command, port) for name, port in ports.items()}
                    for _ in range(arguments.rounds)
                ]
                print(row(f"{n_floats:,} floats, {concurrency}", rates), flush=True)


def available(servers: Servers) -> Iterator[tuple[str, int]]:
    """The contenders that are installed, and where they listen."""
    for contender in CONTENDERS:
        try:
            yield contender, servers.port(contender)
        except Missing as reason:
            print(f"{contender} is left out: {reason}", file=sys.stderr)


def frame_of(n_floats: int) -> tw.Frame:
    tensor = tw.Tensor("INPUT0", floats(n_floats))
    return tw.encode_request(tw.InferRequest([tensor], parameters={"binary_data_output": True}))


def check(contender: str, port: int, frame: tw.Frame, n_floats: int) -> None:
    """One exchange: the bare app returns the request, the others the tensor."""
    connection = HTTPConnection(LOOPBACK, port, timeout=30)
    connection.request("POST", PATH, body=frame, headers=frame.headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    if contender.startswith("bare"):
        is_right = body == bytes(frame)
    else:
        response = tw.decode_response(body, tw.header_length(reply.headers))
        is_right = np.array_equal(response["OUTPUT0"].as_numpy(), floats(n_floats))
    if reply.status != 200 or not is_right:
        raise WrongAnswer(f"{contender} answers {reply.status}: {body[:200]!r}")


def wrk_options(frame: tw.Frame, folder: Path) -> list[str]:
    """The frame as wrk takes it; Content-Length it adds itself."""
    body, script = folder / "body", folder / "post.lua"
    body.write_bytes(bytes(frame))
    script.write_text(SCRIPT.format(body=body))
    headers = [(k, v) for k, v in frame.headers.items() if k != "Content-Length"]
    return ["-s", str(script), *(word for k, v in headers for word in ("-H", f"{k}: {v}"))]


def rate(command: list[str], port: int) -> float:
    """Requests per second, all of which were answered with success."""
    url = f"http://{LOOPBACK}:{port}{PATH}"
    run = subprocess.run([*command, url], capture_output=True, text=True, check=True)
    if trouble := TROUBLE.search(run.stdout):
        raise WrongAnswer(f"{url}: {trouble[0].strip()}")
    found = RATE.search(run.stdout)
    assert found is not None, run.stdout
    return float(found[1])


def heading(contenders: Iterable[str]) -> str:
    names = [name if name not in ("uvicorn", "granian") else f"ours, {name}" for name in contenders]
    return f"| requests/s, connections | {' | '.join(names)} |\n" + "|---" * (len(names) + 1) + "|"


def row(title: str, rounds: list[dict[str, float]]) -> str:
    """Medians over the rounds, with the ratio to the bare app."""
    cells = []
    for contender in rounds[0]:
        text = f"{median(rates[contender] for rates in rounds):,.0f}"
        if contender != BASE:
            ratio = median(rates[contender] / rates[BASE] for rates in rounds)
            text += f" ({ratio:.2f})"
        cells.append(text)
    return f"| {title} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
