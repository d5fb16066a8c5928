"""Call `tensorwire serve --grpc-port` from several processes, and check every response.

`PYTHONPATH=tests python -m stress.grpc_soak [CALLS [PROCESSES]]` makes 1,000,000 calls from 4
processes: valid ones with `Client`, `AsyncClient`, tritonclient with and without the integration,
and streams; reflection, malformed messages, unknown models, expired deadlines and cancelled calls.
Each inference has its own payload, which its response must contain. After each fifth of the calls,
the memory of the idle server is measured. It must not grow after the first fifth. The exit code is
1 if a check failed.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import grpc
import numpy as np
from tritonclient import grpc as tritonclient
from tritonclient.utils import InferenceServerException

import tensorwire as tw
from support import grpc_cases
from support.protobuf_wire import delimited
from support.servers import HOST
from tensorwire.client import AsyncClient, Client, InferenceServerError
from tensorwire.grpc import encode_request
from tensorwire.grpc_messages import SERVICE
from tensorwire.integrations import tritonclient as integration
from tensorwire.server.reflection import SERVICES as REFLECTION_SERVICES

from .soak import MAX_WRONG, Memory, Tally, numbers_of_command, run

SECONDS = 60.0
LENGTHS = [1, 1, 1, 10, 100, 1000, 20_000]
ERRORS = (AssertionError, OSError, grpc.RpcError, tw.TensorwireError)
MALFORMED = [b"\x2a\xff", b"\x0a\x05echo", b"\x00\x01", grpc_cases.REQUEST[:-1]]


class Calls:
    """Makes random calls of one process."""

    def __init__(self, port: int, name: str) -> None:
        self.name, self.rng, self.n_made = name, random.Random(name), 0
        self.n_cancelled = 0  # calls and streams that were cancelled, or whose deadline expired
        self.url = f"grpc://{HOST}:{port}"
        self.client = Client(self.url, timeout=SECONDS)
        self.channel = grpc.insecure_channel(f"{HOST}:{port}")
        self.method = self.channel.unary_unary(f"/{SERVICE}/ModelInfer")
        self.reflection = self.channel.stream_stream(
            f"/{REFLECTION_SERVICES[0]}/ServerReflectionInfo"
        )
        self.triton = tritonclient.InferenceServerClient(f"{HOST}:{port}")
        if self.rng.random() < 0.5:
            integration.install()
        self.runner = asyncio.Runner()
        self.async_client = AsyncClient(self.url, timeout=SECONDS)
        self.kinds: list[tuple[int, Callable[[], int]]] = [
            (30, self.valid),
            (10, self.concurrent),
            (15, self.streamed),
            (15, self.by_tritonclient),
            (15, self.malformed),
            (5, self.reflected),
            (5, self.unknown),
            (5, self.late),
            (5, self.cancelled),
        ]

    def close(self) -> None:
        integration.uninstall()
        self.client.close()
        self.channel.close()
        self.triton.close()
        self.runner.run(self.async_client.close())
        self.runner.close()

    def run(self) -> tuple[str, int]:
        """Make one or more calls, and check the responses. Return their kind and number."""
        chosen = self.rng.choices(self.kinds, [weight for weight, _ in self.kinds])[0][1]
        return chosen.__name__, chosen()

    def array(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        first, n = self.rng.getrandbits(40), self.rng.choice(LENGTHS)
        return np.arange(first, first + n)

    def request(self) -> tuple[tw.InferRequest, Callable[[tw.InferResponse], None]]:
        self.n_made += 1
        x, words = self.array(), [self.name.encode(), b"\xff" * (self.n_made % 7)]
        sent = tw.InferRequest({"x": x, "words": words}, id=f"{self.name}.{self.n_made}")

        def check(response: tw.InferResponse) -> None:
            assert response.id == sent.id, (response.id, sent.id)
            assert np.array_equal(response["x"].as_numpy(), x), sent.id
            assert response["words"].as_numpy().tolist() == words, sent.id

        return sent, check

    def valid(self) -> int:
        request, check = self.request()
        check(self.client.infer("echo", request))
        return 1

    def concurrent(self) -> int:
        made = [self.request() for _ in range(self.rng.randrange(1, 9))]

        async def infer() -> list[tw.InferResponse]:
            calls = [self.async_client.infer("echo", request) for request, _ in made]
            return await asyncio.gather(*calls)

        for response, (_, check) in zip(self.runner.run(infer()), made, strict=True):
            check(response)
        return len(made)

    def streamed(self) -> int:
        made = [self.request() for _ in range(self.rng.randrange(1, 9))]
        with self.client.stream("echo", [request for request, _ in made]) as responses:
            for _, check in made:
                check(next(responses))
                if self.rng.random() < 0.02:
                    self.n_cancelled += 1
                    break
        return len(made)

    def by_tritonclient(self) -> int:
        x = self.array()
        tensor = tritonclient.InferInput("x", list(x.shape), "INT64")
        tensor.set_data_from_numpy(x)
        found = self.triton.infer("echo", [tensor]).as_numpy("x")
        assert np.array_equal(found, x)
        return 1

    def malformed(self) -> int:
        try:
            self.method(self.rng.choice(MALFORMED), timeout=SECONDS)
        except grpc.RpcError as error:
            code = error.code()
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), code
        else:
            raise AssertionError("a malformed message was accepted")
        return 1

    def reflected(self) -> int:
        """Ask for the descriptors of a service and for an unknown one in a stream."""
        asked = [delimited(4, SERVICE), delimited(4, self.name)] * self.rng.randrange(1, 4)
        answers = self.reflection(iter(asked), timeout=SECONDS)
        for sent, answer in zip(asked, answers, strict=True):
            assert answer.startswith(delimited(2, sent)), answer
            assert (b"ModelInferRequest" in answer) == (SERVICE.encode() in sent), answer
        return len(asked)

    def unknown(self) -> int:
        try:
            self.client.infer("unknown", {"x": self.array()})
        except InferenceServerError as error:
            assert error.status == 404, error
        else:
            raise AssertionError("an unknown model has answered")
        return 1

    def late(self) -> int:
        """Make calls whose deadline may expire at any time."""
        request, check = self.request()
        message = encode_request(request.replace(model_name="echo_in_thread"))
        try:
            answer = self.method(message, timeout=self.rng.choice([0.0001, 0.0003, 0.001]))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
            self.n_cancelled += 1
        else:
            check(tw.grpc.decode_response(answer))
        return 1

    def cancelled(self) -> int:
        request, _ = self.request()
        message = encode_request(request.replace(model_name="echo_in_thread"))
        future = self.method.future(message, timeout=SECONDS)
        time.sleep(self.rng.random() * 0.0005)
        future.cancel()
        self.n_cancelled += 1
        return 1


def run_process(port: int, name: str, n_calls: int) -> Tally:
    """Make the calls of one process in one round."""
    tally = Tally()
    calls = Calls(port, name)
    while tally.n_all < n_calls and len(tally.wrong) < MAX_WRONG:
        try:
            kind, n = calls.run()
        except (*ERRORS, InferenceServerException) as error:
            tally.wrong.append(f"{name} after {tally.n_all}: {error!r}"[:1000])
            kind, n = "wrong", 1
        tally.counts[kind] += n
    calls.close()
    tally.n_cancelled = calls.n_cancelled
    return tally


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """Run the server, and yield its gRPC port and its process id."""
    command = [sys.executable, "-m", "tensorwire", "serve", "support.http_models:models"]
    options = ["--port", "0", "--grpc-port", "0", "--log-level", "warning"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(line.partition("grpc://")[2].partition(":")[2].split()[0].rstrip(","))
            Client(f"grpc://{HOST}:{port}").wait_until_ready(SECONDS)
            yield port, process.pid
        finally:
            process.terminate()


def measure(port: int, pid: int) -> Memory:
    """Return the memory of the server."""
    with Client(f"grpc://{HOST}:{port}") as client:
        n_blocks, malloc_nbytes = client.infer("memory", {"x": [b""]})["in_use"].tolist()
    with open(f"/proc/{pid}/statm") as status:
        resident_nbytes = int(status.read().split()[1]) * 4096
    return Memory(n_blocks, malloc_nbytes, resident_nbytes)


def main() -> None:
    n_calls, n_processes = numbers_of_command()
    with serving() as (port, pid):
        measured = partial(measure, port, pid)
        tally = run("serve --grpc-port", run_process, (port,), measured, n_calls, n_processes)
    sys.exit("\n".join(tally.wrong[:20]) or None)


if __name__ == "__main__":
    main()
