"""The servers of the benchmarks and of the interop tests, each in separate processes.

``Servers`` starts them by name, on free ports of the loopback interface, and stops them at the end.
``python -m benchmarks.servers kserve plain|installed PORT`` runs KServe, alone or with tensorwire;
there are others.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import tensorwire as tw
from tensorwire.cli.serve import why_not_fast
from tensorwire.http import HEADER_LENGTH
from tensorwire.server import Model, create_app

from .contenders import FORMATS, Missing, arrow_batch, arrow_values
from .machine import process_stats

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0


# --- environments of packages whose pinned dependencies conflict with ours ---

# Additional packages that the benchmarks need in an environment. They are installed in a folder on
# PYTHONPATH, because `tests/interop/environment.py` manages the environment itself.
TOOLS = ROOT / ".benchmarks" / f"tools-{sys.version_info.major}.{sys.version_info.minor}"
REQUIREMENTS = ["msgspec", "pytest", "pytest-benchmark"]


def interpreter(environment: str) -> list[str]:
    """Return the command that starts Python in this environment; "" means the running one.

    It imports the tensorwire that this process imports. Raises Missing without the environment.
    """
    if not environment:
        return [sys.executable]
    setup = interop("environment")
    folder = setup.folder_of(environment)
    if setup.read_marker(folder) is None:
        script = Path(setup.__file__).relative_to(ROOT)
        raise Missing(f"it has no environment (`python {script} {environment}` creates it)")
    install_tools()
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", TOOLS)))
    return ["env", f"PYTHONPATH={path}", str(setup.interpreter(folder))]


def install_tools() -> None:
    """Install REQUIREMENTS and a link to tensorwire in TOOLS. Raises Missing."""
    if not (TOOLS / "pytest_benchmark").is_dir():
        options = ["--quiet", "--no-input", "--disable-pip-version-check", "--target", str(TOOLS)]
        command = [sys.executable, "-m", "pip", "install", *options, *REQUIREMENTS]
        if subprocess.run(command, check=False).returncode:
            raise Missing(f"pip cannot install {', '.join(REQUIREMENTS)}")
    package, link = Path(tw.__file__).parent, TOOLS / "tensorwire"
    link.unlink(missing_ok=True)
    link.symlink_to(package, target_is_directory=True)


@cache
def interop(name: str) -> Any:
    """Import a module of tests/interop."""
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(f"interop.{name}")


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


async def busy(request: tw.InferRequest) -> tw.InferResponse:
    """Return the inputs after computing for about 1 ms in Python."""
    assert sum(i & 1 for i in range(20_000)) == 10_000
    return await identity(request)


async def last(request: tw.InferRequest) -> dict[str, Any]:
    """Return the last element of INPUT0, so that only the request is large."""
    return {"OUTPUT0": request["INPUT0"].as_numpy()[-1:]}


async def ones(request: tw.InferRequest) -> dict[str, Any]:
    """Return as many ones as INPUT0 says, so that only the response is large."""
    return {"OUTPUT0": np.ones(int(request["INPUT0"].as_numpy()[0]), np.float32)}


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
    "busy": Model(busy),
    "last": Model(last),
    "ones": Model(ones),
}
IN_EVENT_LOOP = {"identity_fp32": model("FP32", function=copied, in_event_loop=True)}
IN_THREADS = {"identity_fp32": model("FP32", function=copied)}
app = create_app(MODELS)
uvicorn_app = create_app(MODELS, zero_copy=True)


class BareApp:
    """Returns the body without parsing it, which is the minimum work of an application."""

    def __init__(self, in_thread: bool = False) -> None:
        self.in_thread = in_thread

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        chunks, more = [], True
        while more:
            message = await receive()
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(chunks)
        if self.in_thread:
            body = await asyncio.to_thread(bytes, body)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        body = await protocol()
        protocol.response_bytes(200, [("content-length", str(len(body)))], body)


bare = BareApp()
bare_in_thread = BareApp(in_thread=True)


async def formats(scope: Any, receive: Any, send: Any) -> None:
    """Decode a body in the format that the path names, and respond with the encoded values.

    The values are the same in every format: arrays and strings.
    """
    if scope["type"] != "http":
        return
    request = import_module("starlette.requests").Request(scope, receive)
    make_response = import_module("starlette.responses").Response
    name = scope["path"].removeprefix("/")
    if name == "tensorwire":
        tensors = import_module("tensorwire.server.starlette")
        found = await tensors.read_tensors(request)
        for key, value in found.items():
            if isinstance(value, tw.BytesArray):
                found[key] = value.as_strings()
        response = tensors.TensorResponse(FORMATS[name].encode(found)[0])
    elif name in FORMATS:
        codec = FORMATS[name]
        values = codec.decode(await request.body(), tw.header_length(request.headers))
        body, header_length = codec.encode(values)
        more = {} if header_length is None else {HEADER_LENGTH: str(header_length)}
        response = make_response(body, headers=more)
    else:  # whether the server is ready
        response = make_response()
    await response(scope, receive, send)


class Sockets(NamedTuple):
    """A way to use plain sockets.

    Memory that is used again has been written before, but may not be in a cache of the processor
    any more, after other contenders had their turns. The kernel and the C library often return
    memory that was freed just before, and is still in a cache.
    """

    max_nbytes: int = 1 << 30  # the greatest number that a call sends or receives
    flags: int = 0  # for receiving
    is_memory_new: bool = False  # for each body

    def memory(self, nbytes: int) -> memoryview:
        """Return memory of an array: numpy asks for huge pages, as a BodyBuffer does."""
        return (np.empty if self.is_memory_new else np.ones)(nbytes, np.uint8).data


# Which one is the fastest depends on the size of the body and on the machine.
SOCKETS = {
    "raw sockets": Sockets(),
    "raw sockets, new memory": Sockets(is_memory_new=True),
    "raw sockets, 1 MB, MSG_WAITALL": Sockets(1 << 20, socket.MSG_WAITALL),
}


def serve_sockets(way: str, port: int) -> None:
    """Echo bodies that follow a length of 8 bytes, one connection after another."""
    sockets, memory = SOCKETS[way], memoryview(b"")
    with socket.create_server((LOOPBACK, port)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, connection.makefile("rb", 0) as stream:
                while prefix := stream.read(8):
                    nbytes = int.from_bytes(prefix, "little")
                    if sockets.is_memory_new or nbytes > len(memory):
                        memory = memoryview(b"")  # frees the former memory
                        memory = sockets.memory(nbytes)
                    receive_into(connection, memory[:nbytes], way)
                    send_whole(connection, memory[:nbytes], way)


def send_whole(connection: socket.socket, memory: memoryview, way: str, head: bytes = b"") -> None:
    """Send all bytes. Each call sends what it gets, because the socket has no timeout."""
    max_nbytes = SOCKETS[way].max_nbytes
    n_sent = connection.sendmsg([head, memory[:max_nbytes]]) - len(head)
    while n_sent < len(memory):
        n_sent += connection.send(memory[n_sent : n_sent + max_nbytes])


def receive_into(connection: socket.socket, memory: memoryview, way: str) -> None:
    """Receive as many bytes as the memory has."""
    max_nbytes, flags, _ = SOCKETS[way]
    while memory:
        n = connection.recv_into(memory[:max_nbytes], 0, flags)
        if n == 0:
            raise ConnectionError("the connection was closed too early")
        memory = memory[n:]


def serve_kserve(mode: str, port: int) -> None:
    """Serve the identity models with KServe, in one process: REST, or gRPC if the mode has it."""
    # KServe reads these options when it is imported.
    sys.argv += ["--grpc_max_send_message_length=-1", "--grpc_max_receive_message_length=-1"]
    kserve, helpers = import_module("kserve"), interop("kserve_server")
    helpers.bind_to_loopback()
    if mode.startswith("installed"):
        import_module("tensorwire.integrations.kserve").install()

    class Identity(kserve.Model):  # type: ignore[misc, name-defined]
        """A model that returns INPUT0 as OUTPUT0, as an author of models would write it."""

        def predict(self, payload: Any, headers: Any = None) -> Any:
            arrays = {
                tensor.name.replace("INPUT", "OUTPUT"): (tensor.datatype, tensor.as_numpy())
                for tensor in payload.inputs
            }
            return helpers.answer(self, payload, arrays)

    models = [Identity(f"identity_{datatype}") for datatype in ("fp32", "bytes")]
    for each in models:
        each.load()
    ports: dict[str, Any] = {"http_port": port, "enable_grpc": False}
    if mode.endswith("gRPC"):
        ports = {"http_port": free_port(), "grpc_port": port}
    kserve.ModelServer(**ports).start(models)


def serve_generated(port: int) -> None:
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
        server.add_insecure_port(f"{LOOPBACK}:{port}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


def serve_flight(port: int) -> None:
    """Echo the record batches of Arrow Flight, or convert them to values and back."""
    flight = import_module("pyarrow.flight")

    class Echo(flight.FlightServerBase):  # type: ignore[misc, name-defined]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            writer.begin(reader.schema)
            for chunk in reader:
                is_converted = descriptor.command == b"values"
                batch = arrow_batch(arrow_values(chunk.data)) if is_converted else chunk.data
                writer.write_batch(batch)

    Echo(f"grpc://{LOOPBACK}:{port}").serve()


# --- starting and stopping ---


class Server(NamedTuple):
    """A running server. ``pid`` is the id of its process, and of the session of all its processes.

    The session is known because `running` and `running_triton` start each server in a new one.
    """

    port: int
    pid: int


class Servers:
    """Servers by name. Each is started on first use, and all are stopped at the end."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}
        self._failures: dict[str, Exception] = {}
        self._running = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()

    def get(self, name: str) -> Server:
        """Return the server. Raises Missing; a failed start is not tried again."""
        if name in self._failures:
            raise self._failures[name]
        if name not in self._servers:
            try:
                self._servers[name] = self._running.enter_context(SERVERS[name]())
            except Exception as error:
                self._failures[name] = error
                raise
        return self._servers[name]

    def port(self, name: str) -> int:
        """Return the port of the server. Raises Missing, like ``get``."""
        return self.get(name).port

    def versions(self) -> dict[str, str]:
        """Return the versions of the running servers that are not Python packages."""
        triton = self._servers.get("Triton")
        return {} if triton is None else {"Triton": version_of(triton.port)}


def processes(server: Server) -> dict[int, list[str]]:
    """Return the fields of ``/proc/PID/stat`` after the name, for each process of the server."""
    return {
        pid: fields
        for pid, _, fields in process_stats()
        if int(fields[3]) == server.pid  # the session
    }


def cpu_seconds(server: Server) -> float:
    """Return the CPU time that all processes of the server have used, including ended ones."""
    # utime, stime, cutime, cstime
    n_ticks = sum(int(n) for fields in processes(server).values() for n in fields[11:15])
    return n_ticks / os.sysconf("SC_CLK_TCK")


TENSORWIRE = ["tensorwire", "serve", "--log-level=warning"]
GRANIAN = ["granian", "--http=1", "--no-ws", "--log-level=warning"]
UVICORN = ["uvicorn", "--no-access-log", "--log-level=warning"]
# Idle connections remain open. `tensorwire serve` has no such option.
KEPT = "--timeout-keep-alive=600"
PROGRAMS = {  # Python modules with their arguments; each runs one worker, or the given number
    "tensorwire serve": TENSORWIRE,
    "tensorwire serve, ASGI": [*TENSORWIRE, "--http=asgi"],
    "tensorwire serve, 2 processes": [*TENSORWIRE, "--workers=2"],
    "uvicorn": UVICORN,
    "uvicorn, 2 processes": [*UVICORN, "--workers=2"],
    "uvicorn, kept": [*UVICORN, KEPT],
    "InferProtocol, kept": [*UVICORN, KEPT, "--http=tensorwire.server:InferProtocol"],
    "granian": [*GRANIAN, "--interface=asgi"],
    "granian RSGI": [*GRANIAN, "--interface=rsgi"],
}


def serve_command(program: str, name: str, port: int) -> list[str]:
    """Return the command that serves ``name`` of this module."""
    module, *options = PROGRAMS[program]
    package = "uvicorn" if module == "tensorwire" else module
    if find_spec(package) is None:
        raise Missing(f"{package} is not installed")
    if module == "tensorwire" and (reason := why_not_fast(app)):
        raise Missing(f"it would serve with ASGI: {reason}")
    target = f"benchmarks.servers:{name}"
    return [sys.executable, "-m", module, *options, "--host", LOOPBACK, "--port", str(port), target]


def grpc_command(port: int) -> list[str]:
    """Return the command that serves the models over gRPC on this port, and HTTP on another."""
    command = serve_command("tensorwire serve", "MODELS", free_port())
    return [*command, "--grpc-port", str(port)]


def kserve_command(mode: str, port: int) -> list[str]:
    python = interpreter("" if find_spec("kserve") else "kserve")
    return [*python, "-m", "benchmarks.servers", "kserve", mode, str(port)]


def ray_command(n_replicas: int, port: int) -> list[str]:
    script = str(ROOT / "tests" / "interop" / "ray_driver.py")
    return [*interpreter("ray"), script, "serve", str(n_replicas), str(port)]


def own_command(package: str, program: str, *modes: str | int) -> list[str]:
    """Return the command that runs a server of this module. The last mode is the port."""
    if find_spec(package) is None:
        raise Missing(f"{package} is not installed")
    return [sys.executable, "-m", "benchmarks.servers", program, *map(str, modes)]


@contextmanager
def running(command: Callable[[int], list[str]], is_up: Callable[[int], bool]) -> Iterator[Server]:
    """Start a server and yield it."""
    tools = interop("triton_server")
    with TemporaryDirectory(prefix="tensorwire-server-") as scratch:
        port, log = free_port(), Path(scratch, "server.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(port),
                cwd=ROOT,  # so that `benchmarks` can be imported
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its processes can be found and stopped
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not is_up(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{process.args!r} did not start:\n{tools.tail(log)}")
                time.sleep(0.05)
            yield Server(port, process.pid)
        finally:
            tools.stop(process)


def free_port() -> int:
    port: int = interop("triton_server").free_port()
    return port


def accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1).close()
    except OSError:
        return False
    return True


def is_ready(port: int) -> bool:
    """Return whether the server is ready. It may accept connections before its worker is."""
    connection = HTTPConnection(LOOPBACK, port, timeout=1)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def version_of(port: int) -> str:
    """Return the version in the server's metadata."""
    with closing(HTTPConnection(LOOPBACK, port, timeout=5)) as connection:
        connection.request("GET", "/v2")
        return str(json.load(connection.getresponse())["version"])


@contextmanager
def running_triton(port: str) -> Iterator[Server]:
    """Start Triton from the folder that triton_setup.py has created, and yield it.

    ``port`` is the attribute of Triton with the port to use.
    """
    setup = interop("triton_setup")
    folder = setup.folder_in_use()
    if setup.read_marker(folder) is None:
        raise Missing(f"Triton is not installed; to install it: python {setup.__file__}")
    with interop("triton_server").running_triton(folder) as triton:
        yield Server(getattr(triton, port), triton.pid)


def serving(program: str, name: str) -> AbstractContextManager[Server]:
    return running(partial(serve_command, program, name), is_ready)


@contextmanager
def serving_with(n_processes: int, program: str, name: str) -> Iterator[Server]:
    """Start a server, and yield it when this number of processes accept connections."""
    with serving(program, name) as server:
        deadline = time.monotonic() + START_SECONDS
        while n_accepting(server) < n_processes:
            if time.monotonic() > deadline:
                raise RuntimeError(f"fewer than {n_processes} processes accept connections")
        yield server


def n_accepting(server: Server) -> int:
    """Open connections at once, and return how many processes of the server have accepted some."""
    before = {pid: n_sockets(pid) for pid in processes(server)}
    with ExitStack() as connections:
        for _ in range(64):
            connections.enter_context(socket.create_connection((LOOPBACK, server.port)))
        time.sleep(0.2)
        return sum(n_sockets(pid) > n for pid, n in before.items())


def n_sockets(pid: int) -> int:
    n = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it has been closed
            n += os.readlink(descriptor).startswith("socket:")
    return n


SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    **{
        way: partial(running, partial(own_command, "socket", "sockets", way), accepts)
        for way in SOCKETS
    },
    "generated classes": partial(
        running, partial(own_command, "tritonclient", "generated"), accepts
    ),
    "Arrow Flight": partial(running, partial(own_command, "pyarrow", "flight"), accepts),
    "tensorwire serve, gRPC": partial(running, grpc_command, accepts),
    "KServe, gRPC": partial(running, partial(kserve_command, "plain gRPC"), accepts),
    "KServe on tensorwire, gRPC": partial(
        running, partial(kserve_command, "installed gRPC"), accepts
    ),
    "Triton, gRPC": partial(running_triton, "grpc_port"),
    "formats": partial(serving, "uvicorn", "formats"),
    "bare app, uvicorn": partial(serving, "uvicorn", "bare"),
    "bare app, in a thread": partial(serving, "uvicorn", "bare_in_thread"),
    "bare app, granian": partial(serving, "granian", "bare"),
    "bare app, granian RSGI": partial(serving, "granian RSGI", "bare"),
    "tensorwire serve": partial(serving, "tensorwire serve", "MODELS"),
    "tensorwire serve, in_event_loop": partial(serving, "tensorwire serve", "IN_EVENT_LOOP"),
    "tensorwire serve, threads": partial(serving, "tensorwire serve", "IN_THREADS"),
    "tensorwire serve, ASGI": partial(serving, "tensorwire serve, ASGI", "MODELS"),
    "uvicorn": partial(serving, "uvicorn", "uvicorn_app"),
    "granian": partial(serving, "granian", "app"),
    "granian RSGI": partial(serving, "granian RSGI", "app"),
    "tensorwire serve, 2 processes": partial(
        serving_with, 2, "tensorwire serve, 2 processes", "MODELS"
    ),
    "bare app, uvicorn, 2 processes": partial(serving_with, 2, "uvicorn, 2 processes", "bare"),
    "Ray Serve": partial(running, partial(ray_command, 1), is_ready),
    "Ray Serve, 2 replicas": partial(running, partial(ray_command, 2), is_ready),
    "bare app, uvicorn, kept": partial(serving, "uvicorn, kept", "bare"),
    "InferProtocol, kept": partial(serving, "InferProtocol, kept", "uvicorn_app"),
    "Triton": partial(running_triton, "port"),
    "KServe": partial(running, partial(kserve_command, "plain"), is_ready),
    "KServe on tensorwire": partial(running, partial(kserve_command, "installed"), is_ready),
}


def main() -> None:
    program, *mode, port = sys.argv[1:]
    serve: Callable[..., None] = globals()[f"serve_{program}"]
    serve(*mode, int(port))


if __name__ == "__main__":
    main()
