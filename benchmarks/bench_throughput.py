"""Requests per second of one identity model: every server, small and large, few and many at once.

``wrk`` sends one FP32 tensor, binary both ways. Every server gets a turn in every round, so that
what else the machine does meets all of them: the rates are medians, and a ratio is the median of
those to the bare app in the same round.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pytest

import tensorwire as tw

from .measure import Listener, Slow
from .missing import Missing, Unsupported
from .servers import LOOPBACK, Servers
from .workloads import floats

TABLE = "requests per second"
BASE = "bare app, uvicorn"
CONTENDERS = {  # and the names of their servers
    **{name: name for name in ("KServe", "KServe on tensorwire", "Triton", BASE)},
    "tensorwire, uvicorn": "uvicorn",
    "bare app, granian": "bare app, granian",
    "tensorwire, granian": "granian",
}
WORKLOADS = {
    f"{n_floats:,} floats, {n_connections} at once": (n_floats, n_connections)
    for n_floats in (32, 250_000)
    for n_connections in (1, 8, 32)
}
QUICK = {name for name, (_, n_connections) in WORKLOADS.items() if n_connections == 8}
SECONDS = 1.0  # of one turn, at least; wrk takes whole ones alone
N_ANSWERS = 3  # for each connection in a turn, at least
MOST_SECONDS = 10.0  # of one turn
TIMEOUT_SECONDS = 60.0
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


@dataclass
class Turns:
    """One contender: its server, the seconds of a turn, and the rate of each."""

    port: int
    seconds: float
    rates: list[float] = field(default_factory=list)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_throughput(pytestconfig: pytest.Config, servers: Servers, workload: str) -> None:
    n_floats, n_connections = WORKLOADS[workload]
    is_measured = not pytestconfig.getoption("benchmark_disable")
    if is_measured and shutil.which("wrk") is None:
        reason = "wrk is not installed, and nothing else here is fast enough to measure with"
        tell_note(workload, "throughput", "missing", reason)
        pytest.skip(reason)
    frame = frame_of(n_floats)
    running: dict[str, Turns] = {}
    for contender, server in CONTENDERS.items():
        with noting(workload, contender):
            port = servers.port(server)
            seconds = N_ANSWERS * n_connections * seconds_of_one(contender, port, frame, n_floats)
            if seconds > MOST_SECONDS:
                raise Unsupported(f"{seconds / N_ANSWERS:.0f} s until all are answered once")
            running[contender] = Turns(port, max(seconds, SECONDS))
    if is_measured:
        with TemporaryDirectory(prefix="tensorwire-wrk-") as scratch:
            options = [f"-c{n_connections}", *wrk_options(frame, Path(scratch))]
            for _ in range(Slow.rounds):
                take_turns(workload, running, options)
        tell_rates(workload, running)


def take_turns(workload: str, running: dict[str, Turns], options: list[str]) -> None:
    """One round; who fails is no longer running."""
    for contender, turns in list(running.items()):
        Listener.tell(trying=place(workload, contender))
        with noting(workload, contender):
            del running[contender]
            turns.rates.append(rate(options, turns))
            running[contender] = turns


def tell_rates(workload: str, running: dict[str, Turns]) -> None:
    base = running[BASE].rates if BASE in running else []
    for contender, turns in running.items():
        row = {"rate": median(turns.rates), "rounds": len(turns.rates)}
        if base:
            row["ratio"] = median(r / b for r, b in zip(turns.rates, base, strict=True))
        Listener.tell(row={**row, **place(workload, contender)})


def place(workload: str, contender: str) -> dict[str, str]:
    return {"table": TABLE, "workload": workload, "contender": contender}


def tell_note(workload: str, contender: str, kind: str, text: str) -> None:
    Listener.tell(note={**place(workload, contender), "kind": kind, "text": text})


@contextmanager
def noting(workload: str, contender: str) -> Iterator[None]:
    """One failure does not stop the others, but ours does; any does when nobody listens."""
    try:
        yield
    except Missing as reason:
        tell_note(workload, contender, "missing", str(reason))
    except Unsupported as reason:
        tell_note(workload, contender, "cannot", str(reason))
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        tell_note(workload, contender, "fails", text)
        if contender.startswith("tensorwire") or Listener.stream is None:
            raise


def frame_of(n_floats: int) -> tw.Frame:
    tensor = tw.Tensor("INPUT0", floats(n_floats))
    return tw.encode_request(tw.InferRequest([tensor], parameters={"binary_data_output": True}))


def seconds_of_one(contender: str, port: int, frame: tw.Frame, n_floats: int) -> float:
    """The second of two exchanges; both are right: the bare app returns the request."""
    with closing(HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS)) as connection:
        for _ in range(2):
            began = perf_counter()
            connection.request("POST", PATH, body=frame, headers=frame.headers)
            reply = connection.getresponse()
            body = reply.read()
            seconds = perf_counter() - began
            if reply.status != 200:
                raise WrongAnswer(f"{contender} answers {reply.status}: {body[:200]!r}")
            if contender.startswith("bare"):
                is_right = body == bytes(frame)
            else:
                response = tw.decode_response(body, tw.header_length(reply.headers))
                is_right = np.array_equal(response["OUTPUT0"].as_numpy(), floats(n_floats))
            if not is_right:
                raise WrongAnswer(f"{contender} does not return what it was sent")
    return seconds


def wrk_options(frame: tw.Frame, folder: Path) -> list[str]:
    """The frame as wrk takes it; Content-Length it adds itself."""
    body, script = folder / "body", folder / "post.lua"
    body.write_bytes(bytes(frame))
    script.write_text(SCRIPT.format(body=body))
    headers = [(k, v) for k, v in frame.headers.items() if k != "Content-Length"]
    return ["-s", str(script), *(word for k, v in headers for word in ("-H", f"{k}: {v}"))]


def rate(options: list[str], turns: Turns) -> float:
    """Requests per second, all of which were answered with success."""
    url = f"http://{LOOPBACK}:{turns.port}{PATH}"
    limits = [f"-d{turns.seconds:.0f}s", f"--timeout={TIMEOUT_SECONDS:.0f}s"]
    command = ["wrk", "-t1", *limits, *options, url]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    if trouble := TROUBLE.search(run.stdout):
        raise WrongAnswer(trouble[0].strip())
    found = RATE.search(run.stdout)
    assert found is not None, run.stdout
    return float(found[1])
