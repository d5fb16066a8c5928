"""Run ``wrk`` against a server, and read what it prints."""

from __future__ import annotations

import re
import subprocess
from math import ceil
from pathlib import Path
from typing import NamedTuple

import tensorwire as tw

from .servers import LOOPBACK, Server, cpu_seconds

TIMEOUT_SECONDS = 60
SCRIPT = """\
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
"""
RATE = re.compile(r"^Requests/sec:\s+([\d.]+)$", re.MULTILINE)
N_RESPONSES = re.compile(r"^\s*(\d+) requests in ", re.MULTILINE)
PERCENTILE = re.compile(r"^\s*(50|99)%\s+([\d.]+)(us|ms|s|m) *$", re.MULTILINE)
UNIT_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
WRK_ERROR = re.compile(r"^ *(?:Non-2xx or 3xx responses|Socket errors):.*$", re.MULTILINE)


class WrongResponse(Exception):
    """A server does not return the tensor that it has received."""


class Turn(NamedTuple):
    """What a turn measured: requests per second, percentiles of the latency, and CPU time.

    The CPU time is that of the server, divided by the number of responses that wrk received. It
    includes the requests that were not finished at the end of the turn.
    """

    rate: float
    p50_seconds: float
    p99_seconds: float
    cpu_seconds: float


def options_of(frame: tw.Frame, folder: Path) -> list[str]:
    """Return the options that make wrk send the frame. wrk adds Content-Length itself."""
    body, script = folder / "body", folder / "post.lua"
    body.write_bytes(bytes(frame))
    script.write_text(SCRIPT.format(body=body))
    headers = [(k, v) for k, v in frame.headers.items() if k != "Content-Length"]
    return ["-s", str(script), *(word for k, v in headers for word in ("-H", f"{k}: {v}"))]


def take_turn(server: Server, path: str, seconds: float, options: list[str]) -> Turn:
    """Run wrk with these options. Raises WrongResponse unless all requests succeeded."""
    url = f"http://{LOOPBACK}:{server.port}{path}"
    limits = [f"-d{ceil(seconds)}s", f"--timeout={TIMEOUT_SECONDS}s"]
    command = ["wrk", "-t1", "--latency", *limits, *options, url]
    cpu_before = cpu_seconds(server)
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return finished_turn(run.stdout, cpu_seconds(server) - cpu_before)


def finished_turn(output: str, cpu: float) -> Turn:
    """Return what wrk printed, with the server's CPU time in seconds. Raises WrongResponse."""
    if errors := WRK_ERROR.search(output):
        raise WrongResponse(errors[0].strip())
    rate, n_responses = RATE.search(output), N_RESPONSES.search(output)
    latencies = {
        percent: float(number) * UNIT_SECONDS[unit]
        for percent, number, unit in PERCENTILE.findall(output)
    }
    assert rate and n_responses and set(latencies) == {"50", "99"}, output
    if n_responses[1] == "0":
        raise WrongResponse("there was no response within the turn")
    return Turn(float(rate[1]), latencies["50"], latencies["99"], cpu / int(n_responses[1]))
