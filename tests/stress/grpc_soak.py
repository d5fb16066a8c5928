"""Call `tensorwire serve --grpc-port` from several processes, and check every response.

`PYTHONPATH=tests python -m stress.grpc_soak [CALLS [PROCESSES]]` makes 1,000,000 calls from 4
processes: valid ones with `Client`, `AsyncClient`, tritonclient with and without the integration,
and streams; malformed messages, unknown models, expired deadlines and cancelled calls.
Each inference has its own payload, which its response must contain. After each fifth of the calls,
the memory of the idle server is measured, and must not grow (stress/rounds.py). The exit code is 1
if a check failed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np
from tritonclient import grpc as tritonclient
from tritonclient.utils import InferenceServerException

import tensorwire as tw
from support import grpc_cases
from support.serve_process import HOST, free_port
from tensorwire.client import AsyncClient, Client, InferenceServerError
from tensorwire.grpc import encode_request
from tensorwire.grpc_messages import SERVICE
from tensorwire.integrations import tritonclient as integration

from .rounds import TIMEOUT, Calls, Memory, run

MALFORMED = [b"\x2a\xff", b"\x0a\x05echo", b"\x00\x01", grpc_cases.REQUEST[:-1]]


Check = Callable[[tw.InferResponse], None]


class GrpcCalls(Calls):
    WEIGHTS = {  # noqa: RUF012
        **{"valid": 30, "concurrent": 10, "streamed": 15, "by_tritonclient": 15, "malformed": 15},
        **{"unknown": 5, "late": 5, "cancelled": 5},
    }
    ERRORS = (
        *(AssertionError, OSError, tw.TensorwireError, grpc.RpcError),
        InferenceServerException,
    )

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name)
        address = f"{HOST}:{port}"
        self.client = Client(f"grpc://{address}", timeout=TIMEOUT)
        self.async_client = AsyncClient(f"grpc://{address}", timeout=TIMEOUT)
        self.runner = asyncio.Runner()
        self.channel = grpc.insecure_channel(address)
        self.method = self.channel.unary_unary(f"/{SERVICE}/ModelInfer")
        self.triton = tritonclient.InferenceServerClient(address)
        if self.rng.random() < 0.5:
            integration.install()

    def close(self) -> None:
        integration.uninstall()
        self.client.close()
        self.channel.close()
        self.triton.close()
        self.runner.run(self.async_client.close())
        self.runner.close()

    def made(self, model: str | None = None) -> tuple[tw.InferRequest, Check]:
        """Return a request, and a function that checks its response."""
        id, numbers = self.numbers()
        x, words = np.array(numbers), [id.encode(), b"\xff" * (self.n_made % 7)]

        def check(response: tw.InferResponse) -> None:
            assert response.id == id, (response.id, id)
            assert np.array_equal(response["x"].as_numpy(), x), id
            assert response["words"].as_numpy().tolist() == words, id

        return tw.InferRequest({"x": x, "words": words}, id=id, model_name=model), check

    def valid(self) -> int:
        request, check = self.made()
        check(self.client.infer("echo", request))
        return 1

    def concurrent(self) -> int:
        made = [self.made() for _ in range(self.rng.randrange(1, 9))]

        async def infer() -> list[tw.InferResponse]:
            calls = [self.async_client.infer("echo", request) for request, _ in made]
            return await asyncio.gather(*calls)

        for response, (_, check) in zip(self.runner.run(infer()), made, strict=True):
            check(response)
        return len(made)

    def streamed(self) -> int:
        made = [self.made() for _ in range(self.rng.randrange(1, 9))]
        with self.client.stream("echo", [request for request, _ in made]) as responses:
            for _, check in made:
                check(next(responses))
                if self.rng.random() < 0.02:
                    self.n_cancelled += 1
                    break
        return len(made)

    def by_tritonclient(self) -> int:
        x = np.array(self.numbers()[1])
        tensor = tritonclient.InferInput("x", list(x.shape), "INT64")
        tensor.set_data_from_numpy(x)
        assert np.array_equal(self.triton.infer("echo", [tensor]).as_numpy("x"), x)
        return 1

    def malformed(self) -> int:
        try:
            self.method(self.rng.choice(MALFORMED), timeout=TIMEOUT)
        except grpc.RpcError as error:
            code = error.code()
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), code
        else:
            raise AssertionError("a malformed message was accepted")
        return 1

    def unknown(self) -> int:
        try:
            self.client.infer("unknown", {"x": np.zeros(1)})
        except InferenceServerError as error:
            assert error.status == 404, error
        else:
            raise AssertionError("an unknown model has answered")
        return 1

    def late(self) -> int:
        """Make a call whose deadline may expire at any time."""
        request, check = self.made("echo_in_thread")
        seconds = self.rng.choice([0.0001, 0.0003, 0.001])
        try:
            answer = self.method(encode_request(request), timeout=seconds)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
            self.n_cancelled += 1
        else:
            check(tw.grpc.decode_response(answer))
        return 1

    def cancelled(self) -> int:
        request, _ = self.made("echo_in_thread")
        future = self.method.future(encode_request(request), timeout=TIMEOUT)
        time.sleep(self.rng.random() * 0.0005)
        future.cancel()
        self.n_cancelled += 1
        return 1


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """Run the server, and yield its gRPC port and its process id."""
    port = free_port()
    command = [sys.executable, "-m", "tensorwire", "serve", "support.http_models:models"]
    options = ["--port", "0", "--grpc-port", str(port), "--log-level", "warning"]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as process:
        try:
            Client(f"grpc://{HOST}:{port}").wait_until_ready(timeout=TIMEOUT)
            yield port, process.pid
        finally:
            process.terminate()


def measure(port: int, pid: int) -> Memory:
    """Return the memory of the server."""
    with Client(f"grpc://{HOST}:{port}") as client:
        in_use = client.infer("memory", {"x": [b""]})["in_use"].tolist()
    n_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Memory(in_use[0], in_use[1], n_pages * 4096)


def main() -> None:
    with serving() as (port, pid):
        wrong = run("serve --grpc-port", partial(GrpcCalls, port), partial(measure, port, pid))
    sys.exit("\n".join(wrong[:20]) or None)


if __name__ == "__main__":
    main()
