"""Serve an application over gRPC in a thread, and call it with serialized messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

import tensorwire as tw
import tensorwire.grpc
from support.requirements import package
from support.serve_process import HOST, free_port
from tensorwire._codec.grpc.reader import read_fields
from tensorwire._codec.grpc.writer import write_fields
from tensorwire.grpc_messages import SERVICE, Fields
from tensorwire.server.asgi import App
from tensorwire.server.grpc import HEALTH_REQUEST, HEALTH_SERVICE
from tensorwire.server.grpc_server import serving

grpc = package("grpc")

SMALL = np.arange(4, dtype=np.float32)
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class ServedApp:
    """An application with its gRPC server, and a channel to it."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self.app, self.loop = app, loop
        self.port = free_port()
        self.address = f"{HOST}:{self.port}"
        self.ending = asyncio.Event()
        self.channel = grpc.insecure_channel(self.address, options=UNLIMITED)
        self.method = self.channel.unary_unary(f"/{SERVICE}/ModelInfer")

    async def serve(self, started: Callable[[], None]) -> None:
        async with serving(self.app, self.address):
            started()
            await self.ending.wait()

    def stop(self) -> None:
        """Begin to shut down."""
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.ending.set)

    # --- calls ---

    def infer(self, model: str = "echo", x: Any = SMALL, **options: Any) -> tw.InferResponse:
        return tw.grpc.decode_response(self.method(message(model, x), **options))

    def start(self, model: str, x: Any = SMALL, **options: Any) -> Any:
        """Begin a call, and return its future."""
        return self.method.future(message(model, x), **options)

    def stream(self, messages: Any) -> Any:
        return self.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(messages, timeout=20)

    def small(self, method: str, fields: Fields, sent: bytes = b"") -> dict[str, Any]:
        """Call a method without inference."""
        return read_fields(self.channel.unary_unary(f"/{SERVICE}/{method}")(sent), fields)

    def check_health(self, service: str = "") -> bytes:
        sent = write_fields({"service": service}, HEALTH_REQUEST)
        return bytes(self.channel.unary_unary(f"/{HEALTH_SERVICE}/Check")(sent, timeout=10))

    def watch_health(self, service: str = "") -> Any:
        sent = write_fields({"service": service}, HEALTH_REQUEST)
        return self.channel.unary_stream(f"/{HEALTH_SERVICE}/Watch")(sent, timeout=10)


def message(model: str = "echo", x: Any = SMALL, **options: Any) -> bytes:
    """Return a ModelInferRequest with the input `x`."""
    return tw.grpc.encode_request(tw.InferRequest({"x": x}, model_name=model, **options))


@contextmanager
def served_app(app: App, is_uvloop: bool = False) -> Iterator[ServedApp]:
    """Serve an application in a thread. At the end, no task may be left."""
    found: Future[ServedApp] = Future()
    left: list[Any] = []

    async def serve() -> None:
        server = ServedApp(app, asyncio.get_running_loop())
        await server.serve(lambda: found.set_result(server))
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # they have been cancelled
            left.extend((await asyncio.wait(tasks, timeout=2))[1])

    def run() -> None:
        factory = package("uvloop").new_event_loop if is_uvloop else None
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(serve())
        except BaseException as error:
            if found.done():
                raise
            found.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    server = found.result(20)
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        server.channel.close()
    assert not thread.is_alive()
    assert left == []
