"""The servers of the benchmarks, each in a process of its own on the loopback interface.

``Servers`` starts them by name on first use, and stops them at the end. ``python -m
benchmarks.servers NAME MODE PORT GRPC_PORT`` runs one that has no command: KServe, for example.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorwire as tw
from interop import environment, programs, triton_server, triton_setup
from tensorwire.cli.serve import FAST_PROTOCOL
from tensorwire.server import Model, create_app
from tensorwire.server.uvicorn_check import problem_with_uvicorn

from .measuring import ENVIRON

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0


class Server(NamedTuple):
    """A running server; some listen on one of the ports only."""

    port: int
    grpc_port: int


# --- the applications ---


def copied(request: tw.InferRequest) -> tw.InferResponse:
    """Return INPUT0 as OUTPUT0 and so on, like the models of the tests for Triton."""
    outputs = [
        tw.Tensor(t.name.replace("INPUT", "OUTPUT"), t.data, datatype=t.datatype, shape=t.shape)
        for t in request.inputs
    ]
    return tw.InferResponse(outputs)


async def identity(request: tw.InferRequest) -> tw.InferResponse:
    return copied(request)


def model(*datatypes: Any, function: Any = identity, in_event_loop: bool = False) -> Model:
    """Declare a function that returns its inputs, which are vectors of these datatypes."""
    inputs, outputs = (
        [tw.TensorSpec(f"{name}{i}", datatype, [-1]) for i, datatype in enumerate(datatypes)]
        for name in ("INPUT", "OUTPUT")
    )
    return Model(function, inputs, outputs, in_event_loop=in_event_loop)


MODELS = {
    **{f"identity_{name.lower()}": model(name) for name in ("FP32", "FP16", "BYTES")},
    "two": model("FP32", "BYTES"),
}
IN_EVENT_LOOP = {"identity_fp32": model("FP32", function=copied, in_event_loop=True)}
IN_THREADS = {"identity_fp32": model("FP32", function=copied)}
app = create_app(MODELS)
uvicorn_app = create_app(MODELS, zero_copy=True)


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Return the body without parsing it."""
    if scope["type"] == "http":
        body = await read_body(receive)
        await respond(send, body, [(b"content-length", str(len(body)).encode())])


async def twenty_lines(scope: Any, receive: Any, send: Any) -> None:
    """Call a model with nothing but the codec: what a program needs at least."""
    if scope["type"] == "http":
        body = await read_body(receive)
        request = tw.decode_request(body, tw.header_length(scope["headers"]))
        frame = tw.encode_response(copied(request), request)
        headers = [(name.lower().encode(), x.encode()) for name, x in frame.headers.items()]
        await respond(send, bytes(frame), headers)


async def read_body(receive: Any) -> bytes:
    chunks, more = [], True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


async def respond(send: Any, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# --- servers without a command of their own ---


def serve_sockets(mode: str, port: int, grpc_port: int) -> None:
    """Echo bodies that follow a length of 8 bytes, one connection after another."""
    with socket.create_server((LOOPBACK, port)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            memory = memoryview(b"")
            with connection, connection.makefile("rb", 0) as stream:
                while prefix := stream.read(8):
                    nbytes = int.from_bytes(prefix, "little")
                    if nbytes > len(memory):
                        memory = np.ones(nbytes, np.uint8).data
                    receive_into(connection, memory[:nbytes])
                    connection.sendall(memory[:nbytes])


def receive_into(connection: socket.socket, memory: memoryview) -> None:
    while memory:
        n = connection.recv_into(memory)
        if n == 0:
            raise ConnectionError("the connection was closed too early")
        memory = memory[n:]


def serve_kserve(mode: str, port: int, grpc_port: int) -> None:
    """Serve the identity models with KServe, in one process."""
    # KServe reads these options when it is imported.
    sys.argv += ["--grpc_max_send_message_length=-1", "--grpc_max_receive_message_length=-1"]
    kserve, uvicorn = import_module("kserve"), import_module("uvicorn")
    # KServe binds to every interface, and has no setting for it.
    config, aio = uvicorn.Config, import_module("grpc.aio._server").Server
    vars(uvicorn)["Config"] = lambda *args, **options: config(
        *args, **{**options, "host": LOOPBACK}
    )
    add_port = aio.add_insecure_port
    aio.add_insecure_port = lambda self, at: add_port(self, at.replace("[::]", LOOPBACK))
    if mode == "installed":
        import_module("tensorwire.integrations.kserve").install()

    class Identity(kserve.Model):  # type: ignore[misc, name-defined]
        def predict(self, payload: Any, headers: Any = None) -> Any:
            outputs = []
            for tensor in payload.inputs:
                name = tensor.name.replace("INPUT", "OUTPUT")
                output = kserve.InferOutput(name, tensor.shape, tensor.datatype)
                output.set_data_from_numpy(tensor.as_numpy())
                outputs.append(output)
            return kserve.InferResponse(
                payload.id or "1",  # KServe does not send JSON without one
                self.name,
                outputs,
                use_binary_outputs=payload.use_binary_outputs,
                requested_outputs=payload.request_outputs,
            )

    models = [Identity(f"identity_{datatype}") for datatype in ("fp32", "bytes")]
    for each in models:
        each.load()
    kserve.ModelServer(http_port=port, grpc_port=grpc_port).start(models)


def serve_mlserver(mode: str, port: int, grpc_port: int) -> None:
    """Serve an identity model with MLServer, in one process."""
    mlserver = import_module("mlserver")
    if mode == "installed":
        import_module("tensorwire.integrations.mlserver").install()
    settings = mlserver.Settings(
        host=LOOPBACK,
        http_port=port,
        grpc_port=grpc_port,
        metrics_endpoint=None,
        parallel_workers=0,
        debug=False,
    )
    model = import_module("benchmarks.mlserver_model").Echo
    models = [mlserver.ModelSettings(name="identity_fp32", implementation=model)]
    asyncio.run(mlserver.MLServer(settings).start(models))


def serve_generated(mode: str, port: int, grpc_port: int) -> None:
    """Serve the identity models with grpc.aio and the generated classes of tritonclient."""
    grpc = import_module("grpc")
    messages = import_module("tritonclient.grpc.service_pb2")
    services = import_module("tritonclient.grpc.service_pb2_grpc")

    class Identity(services.GRPCInferenceServiceServicer):  # type: ignore[misc, name-defined]
        async def ModelInfer(self, request: Any, context: Any) -> Any:
            response = messages.ModelInferResponse(model_name=request.model_name)
            for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True):
                name = tensor.name.replace("INPUT", "OUTPUT")
                kind = "S1" if tensor.datatype == "BYTES" else "<f4"
                array = np.frombuffer(content, kind)  # a model reads the array
                response.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
                response.raw_output_contents.append(array.tobytes())
            return response

    async def serve() -> None:
        names = ("grpc.max_send_message_length", "grpc.max_receive_message_length")
        server = grpc.aio.server(options=[(name, -1) for name in names])
        services.add_GRPCInferenceServiceServicer_to_server(Identity(), server)
        server.add_insecure_port(f"{LOOPBACK}:{grpc_port}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


# --- commands ---


def serve_command(models: str, server: Server) -> list[str]:
    """Return the command that serves models of this module over HTTP and gRPC."""
    require("uvicorn")
    if reason := problem_with_uvicorn(FAST_PROTOCOL):
        pytest.skip(f"`tensorwire serve` would serve with ASGI: {reason}")
    options = ["--log-level=warning", "--grpc-port", str(server.grpc_port)]
    return [*program("tensorwire", server, "serve", *options), models_of(models)]


def asgi_command(package: str, name: str, options: list[str], server: Server) -> list[str]:
    require(package)
    return [*program(package, server, *options), models_of(name)]


def own_command(name: str, mode: str, server: Server) -> list[str]:
    """Return the command of a server of this module, which may need another environment."""
    python = [sys.executable]
    if name in environment.PROGRAMS and find_spec(name) is None:
        folder = environment.folder_of(name)
        if environment.read_marker(folder) is None:
            pytest.skip(f"{name} has no environment (python tests/interop/environment.py {name})")
        python = [str(environment.interpreter(folder))]
    return [*python, "-m", "benchmarks.servers", name, mode, *map(str, server)]


def program(package: str, server: Server, *options: str) -> list[str]:
    address = ["--host", LOOPBACK, "--port", str(server.port)]
    return [sys.executable, "-m", package, *options, *address]


def models_of(name: str) -> str:
    return f"benchmarks.servers:{name}"


def require(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


UVICORN = ["--no-access-log", "--log-level=warning"]


# --- starting and stopping ---


def accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1).close()
    except OSError:
        return False
    return True


def is_ready(server: Server) -> bool:
    """Return whether the model of a server of HTTP is ready."""
    connection = HTTPConnection(LOOPBACK, server.port, timeout=1)
    try:
        connection.request("GET", "/v2/models/identity_fp32/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def running(
    command: Callable[[Server], list[str]], is_up: Callable[[Server], bool] = is_ready
) -> Iterator[Server]:
    """Start a server and yield it."""
    server = Server(*triton_server.free_ports(2))
    with TemporaryDirectory(prefix="tensorwire-server-") as scratch:
        log = Path(scratch, "server.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(server),
                env=ENVIRON,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its processes can be found and stopped
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not is_up(server):
                if process.poll() is not None or time.monotonic() > deadline:
                    text = log.read_text(errors="replace")[-4000:]
                    raise RuntimeError(f"{process.args!r} did not start:\n{text}")
                time.sleep(0.05)
            yield server
        finally:
            programs.stop(process)


@contextmanager
def running_triton() -> Iterator[Server]:
    folder = triton_setup.folder_in_use()
    if triton_setup.read_marker(folder) is None:
        pytest.skip("Triton is not installed (python tests/interop/triton_setup.py)")
    with triton_server.running_triton(folder) as triton:
        yield Server(triton.port, triton.grpc_port)


def own(name: str, mode: str = "plain") -> Callable[[], AbstractContextManager[Server]]:
    return partial(running, partial(own_command, name, mode))


SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "raw sockets": partial(
        running, partial(own_command, "sockets", ""), lambda server: accepts(server.port)
    ),
    "generated classes": partial(
        running, partial(own_command, "generated", ""), lambda server: accepts(server.grpc_port)
    ),
    "bare ASGI application": partial(running, partial(asgi_command, "uvicorn", "bare", UVICORN)),
    "20 lines of ASGI": partial(
        running,
        partial(asgi_command, "uvicorn", "twenty_lines", UVICORN),
        lambda server: accepts(server.port),
    ),
    "tensorwire serve": partial(running, partial(serve_command, "MODELS")),
    "tensorwire serve, in_event_loop": partial(running, partial(serve_command, "IN_EVENT_LOOP")),
    "tensorwire serve, in a thread": partial(running, partial(serve_command, "IN_THREADS")),
    "uvicorn": partial(running, partial(asgi_command, "uvicorn", "uvicorn_app", UVICORN)),
    "KServe": own("kserve"),
    "KServe, drop-in": own("kserve", "installed"),
    "MLServer": own("mlserver"),
    "MLServer, drop-in": own("mlserver", "installed"),
    "Triton": running_triton,
}


class Servers:
    """Servers by name. Each is started on first use, and all are stopped at the end."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}
        self._running = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()

    def get(self, name: str) -> Server:
        """Return the server, or skip the test if something that it needs is missing."""
        if name not in self._servers:
            self._servers[name] = self._running.enter_context(SERVERS[name]())
        return self._servers[name]

    def start(self, names: Iterable[str]) -> None:
        """Start those that can be started, so that no connection is idle until another is up."""
        for name in names:
            with suppress(pytest.skip.Exception):
                self.get(name)


def main() -> None:
    name, mode, port, grpc_port = sys.argv[1:5]
    serve: Callable[..., None] = globals()[f"serve_{name}"]
    serve(mode, int(port), int(grpc_port))


if __name__ == "__main__":
    main()
