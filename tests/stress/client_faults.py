"""Call a server that breaks its connections at random: ``python -m stress.client_faults [CALLS]``.

Each client makes CALLS calls (3000 by default), in several threads or tasks, with and without TLS.
Each request has a number, and the response repeats it. Checks that no response belongs to another
request, and that the server reads the head of each request at most once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

import tensorwire as tw
from support.client_fixtures import Certificate
from support.servers import http
from tensorwire.client import AsyncClient, Client, InferenceServerError

N_CONCURRENT = 8
LARGE = np.zeros(3 << 20, np.int8)
ERRORS = (ConnectionError, TimeoutError, InferenceServerError, tw.DecodeError)


class Server:
    """Reads requests, and answers them or breaks the connection, as a random number says."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.read: Counter[int] = Counter()  # how often the head of each request was read
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            while self.exchange(connection):
                pass
            if isinstance(connection, ssl.SSLSocket) and random.random() < 0.5:
                connection.setblocking(False)
                connection.unwrap()
        with contextlib.suppress(OSError):
            if random.random() < 0.2:
                connection.shutdown(socket.SHUT_WR)
                time.sleep(random.random() * 0.002)
            connection.close()

    def exchange(self, connection: socket.socket) -> bool:
        """Process a request. Returns whether to continue."""
        if random.random() < 0.1:
            time.sleep(random.random() * 0.002)
            return False
        received = b""
        while b"\r\n\r\n" not in received:
            chunk = connection.recv(random.choice([1, 100, 1 << 16]))
            if not chunk:
                return False
            received += chunk
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.partition(b"\r\nContent-Length: ")[2].split()[0])
        number = int(head.partition(b"X-Number: ")[2].split()[0])
        self.read[number] += 1
        n_read, n_wanted = len(body), length if random.random() < 0.9 else length // 2
        while n_read < n_wanted:
            chunk = connection.recv(min(n_wanted - n_read, 1 << 20))
            if not chunk:
                return False
            n_read += len(chunk)
        if n_read < length:
            return False
        return self.answer(connection, number)

    def answer(self, connection: socket.socket, number: int) -> bool:
        output = tw.Tensor("x", np.full(random.choice([1, 100_000]), number))
        frame = tw.encode_response(tw.InferResponse([output]))
        headers = {k: v for k, v in frame.headers.items() if k != "Content-Length"}
        action = random.random()
        response = http(bytes(frame), headers, length="" if action < 0.05 else None)
        if action < 0.2:
            connection.sendall(response)
        elif action < 0.3:
            connection.sendall(response[: random.randrange(len(response))])
        elif action < 0.35:  # reset the connection
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif action < 0.45:
            time.sleep(random.random() * 0.008)
        elif action < 0.5:
            connection.sendall(http(b'{"error":"no"}', status="500 Internal Server Error"))
        else:
            connection.sendall(response)
            return True
        if not 0.2 <= action < 0.35:
            time.sleep(random.random() * 0.002)
        return False


class Calls:
    """Makes calls, and checks the responses."""

    def __init__(self, n_calls: int) -> None:
        self.numbers = iter(range(n_calls))
        self.lock = threading.Lock()
        self.results: Counter[str] = Counter()
        self.wrong: list[str] = []

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """Return a number and the arguments of its call, or None at the end."""
        with self.lock:
            number = next(self.numbers, None)
        if number is None:
            return None
        data = LARGE if random.random() < 0.1 else LARGE[:100]
        return number, {"inputs": {"x": data}, "headers": {"X-Number": str(number)}}

    def note(self, result: str) -> None:
        with self.lock:
            self.results[result] += 1

    def check(self, number: int, response: tw.InferResponse) -> None:
        found = response["x"].as_numpy()
        if not (found == number).all():
            self.wrong.append(f"call {number} got the response to {found[0]}")
        self.note("ok")

    def run_threads(self, url: str, **options: Any) -> None:
        with Client(url, **options) as client, ThreadPoolExecutor(N_CONCURRENT) as pool:
            futures = [pool.submit(self.work, client) for _ in range(N_CONCURRENT)]
            self.work(client)  # signals only interrupt the main thread
            for future in futures:
                future.result()

    def work(self, client: Client) -> None:
        while (call := self.next()) is not None:
            try:
                self.check(call[0], client.infer("m", **call[1]))
            except ERRORS as error:
                self.note(type(error).__name__)

    def run_tasks(self, url: str, factory: Callable[[], Any], **options: Any) -> None:
        def report(_: Any, error: dict[str, Any]) -> None:
            self.wrong.append(f"the event loop reports {error}")

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(report)
            async with AsyncClient(url, **options) as client:
                await asyncio.gather(*(self.work_async(client) for _ in range(N_CONCURRENT)))

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    async def work_async(self, client: AsyncClient) -> None:
        while (call := self.next()) is not None:
            seconds = random.random() * 0.005 if random.random() < 0.02 else None
            try:
                async with asyncio.timeout(seconds):
                    self.check(call[0], await client.infer("m", **call[1]))
            except ERRORS as error:
                self.note(type(error).__name__)


def main() -> None:
    n_calls = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    random.seed(1)
    n_wrong = 0
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    with tempfile.TemporaryDirectory() as folder:
        certificate = Certificate(Path(folder))
        for is_tls, name in itertools.product((False, True), ("sync", "asyncio", "uvloop")):
            server = Server(certificate.serving() if is_tls else None)
            url = f"{'https' if is_tls else 'http'}://{server.address}"
            options = {"ssl_context": certificate.trusting()} if is_tls else {}
            calls = Calls(n_calls)
            if name == "sync":
                calls.run_threads(url, timeout=5, **options)
            else:
                factory = uvloop.new_event_loop if name == "uvloop" else asyncio.new_event_loop
                calls.run_tasks(url, factory, timeout=5, **options)
            server.listening.close()
            twice = sorted(number for number, n in server.read.items() if n > 1)
            n_wrong += len(calls.wrong) + len(twice)
            print(name, "TLS" if is_tls else "plain", dict(calls.results))
            print("".join(f"  {text}\n" for text in calls.wrong[:10]), end="")
            if twice:
                print(f"  read twice: {twice[:10]}")
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
