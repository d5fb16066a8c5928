"""Send valid and malformed requests from several clients to a server, and check all responses.

`PYTHONPATH=tests python -m stress.soak [REQUESTS [CLIENTS]]` sends 100,000 requests from 8 clients
by default. Each response must belong to its own request, and the server's memory must not grow
after the first tenth. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import tensorwire as tw
from support import cases
from support.servers import HOST

N_REQUESTS, N_CLIENTS = 100_000, 8
GROWTH_NBYTES = 8 << 20
MALFORMED = [case for case in cases.MALFORMED if case.kind == "request" and len(case.body) < 5000]


class Tally:
    """The numbers of responses by kind, and descriptions of wrong ones."""

    def __init__(self) -> None:
        self.n_valid = self.n_rejected = self.n_disconnected = 0
        self.wrong: list[str] = []

    @property
    def n_all(self) -> int:
        return self.n_valid + self.n_rejected + self.n_disconnected


class Connection:
    """HTTP over one socket. A client library would not send malformed requests."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(HOST, self.port, limit=1 << 24)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def post(self, body: bytes, header_length: object, cut: int | None = None) -> bytes:
        """Send a request, or only the bytes before `cut`, and read the response."""
        lines = ["POST /v2/models/echo/infer HTTP/1.1", "Host: soak"]
        if header_length is not None:
            lines.append(f"Inference-Header-Content-Length: {header_length}")
        lines += [f"Content-Length: {len(body)}", "", ""]
        self.writer.write(("\r\n".join(lines).encode() + body)[:cut])
        await self.writer.drain()
        if cut is not None:
            return b""
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1])
        self.headers = {}
        for line in head.decode().split("\r\n")[1:-2]:
            key, _, value = line.partition(":")
            self.headers[key.lower()] = value.strip()
        return await self.reader.readexactly(int(self.headers["content-length"]))


async def valid(connection: Connection, name: str, rng: random.Random) -> str:
    """Send an echo request with unique id and numbers, and check the response."""
    n, number = rng.choice([0, 1, 10, 1000, 30_000]), rng.getrandbits(31)
    x, words = np.full(n, number, np.int32), [name.encode(), b"\xff" * (n % 7)]
    is_binary = rng.random() < 0.8
    tensors = [tw.Tensor("x", x, binary=is_binary), tw.Tensor("w", words)]
    requested_outputs = [
        tw.RequestedOutput("w", binary=True),
        tw.RequestedOutput("x", binary=is_binary),
    ]
    frame = tw.encode_request(tw.InferRequest(tensors, requested_outputs, id=name))
    answer = await connection.post(bytes(frame), frame.header_length)
    if connection.status != 200:
        return f"{name}: status {connection.status}, {answer[:200]!r}"
    response = tw.decode_response(answer, tw.header_length(connection.headers))
    same = response.id == name and np.array_equal(response["x"].as_numpy(), x)
    if not same or response["w"].as_numpy().tolist() != words:
        return f"{name}: an answer of {response.id!r}"
    return ""


async def malformed(connection: Connection, rng: random.Random) -> str:
    case = rng.choice(MALFORMED)
    length = case.header_length
    text = length.decode("latin-1") if isinstance(length, bytes) else length
    if text is not None:
        text = str(text)
        if not (text.isascii() and text.isprintable() and text == text.strip()):
            text = "no header's value"
    answer = await connection.post(case.body, text)
    try:
        tw.decode_request(case.body, text)
    except tw.DecodeError as error:
        expected = str(error)
    else:
        return f"{case.id}: it is valid"
    if connection.status != 400 or json.loads(answer)["error"] != expected:
        return f"{case.id}: status {connection.status}, {answer[:200]!r} instead of {expected!r}"
    return ""


async def client(port: int, number: int, n_requests: int, tally: Tally) -> None:
    rng = random.Random(number)
    connection = Connection(port)
    await connection.open()
    for i in range(n_requests):
        kind, wrong = rng.random(), ""
        if kind < 0.6:
            wrong = await valid(connection, f"client {number}, request {i}", rng)
            tally.n_valid += 1
        elif kind < 0.98:
            wrong = await malformed(connection, rng)
            tally.n_rejected += 1
        else:  # a client that disconnects
            await connection.post(bytes(1000), 10, cut=rng.randrange(1, 1000))
            await connection.close()
            await connection.open()
            tally.n_disconnected += 1
        if wrong:
            tally.wrong.append(wrong)
    await connection.close()


def resident_nbytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


async def run(port: int, process: int, n_requests: int, n_clients: int) -> Tally:
    """Send the requests in ten parts, and print the server's memory after each."""
    tally, first = Tally(), 0
    for part in range(10):
        share = n_requests // (10 * n_clients)
        clients = (client(port, part * n_clients + i, share, tally) for i in range(n_clients))
        started = time.perf_counter()
        await asyncio.gather(*clients)
        resident = resident_nbytes(process)
        first = first or resident
        rate = share * n_clients / (time.perf_counter() - started)
        print(f"{tally.n_all} requests, {rate:.0f}/s, {resident / 1e6:.1f} MB", flush=True)
    if resident - first > GROWTH_NBYTES:
        tally.wrong.append(f"the server has grown by {resident - first} bytes")
    return tally


def soak(n_requests: int, n_clients: int) -> Tally:
    """Start a server, send the requests, stop it, and count its error output as wrong."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    serve = ["-m", "tensorwire", "serve", "--echo", "--port", str(port)]
    server = subprocess.Popen([sys.executable, *serve], stderr=subprocess.PIPE, text=True)
    try:
        wait_for(port)
        tally = asyncio.run(run(port, server.pid, n_requests, n_clients))
    finally:
        server.terminate()
        printed = server.communicate(timeout=30)[1]
    if "Traceback" in printed or "Error" in printed:
        tally.wrong.append(printed[-2000:])
    return tally


def wait_for(port: int) -> None:
    for _ in range(400):
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the server does not start")


def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:]]
    tally = soak(*(numbers + [N_REQUESTS, N_CLIENTS][len(numbers) :]))
    print(
        f"{tally.n_valid} valid, {tally.n_rejected} rejected, {tally.n_disconnected} disconnected"
    )
    sys.exit("\n".join(tally.wrong[:20]) or None)


if __name__ == "__main__":
    main()
