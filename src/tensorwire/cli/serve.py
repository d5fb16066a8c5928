"""``tensorwire serve``: its options, and the addresses at which it listens."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import socket
import sys
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import tensorwire as tw

from ..errors import format_value
from .certificate import check_certificate
from .output import UsageError, flush_output, print_line
from .sockets import bind_port, bind_unix_socket, format_address, listen, reserve

FAST_PROTOCOL = "tensorwire.server:InferProtocol"
ASGI_PROTOCOL = "tensorwire.server.uvicorn_asgi:AsgiProtocol"


def add_parser(commands: Any) -> None:
    """Add the command. Options of uvicorn have the names that they have in uvicorn."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        usage="%(prog)s [MODELS] [options]",
        help="serve models over HTTP with uvicorn, and over gRPC",
    )
    add = parser.add_argument
    add("models", nargs="?", help="module:name of a mapping of models, of a model or of an ASGI "
        "application (default name: models)")  # fmt: skip
    add("--echo", action="store_true", help="also serve a model 'echo', which returns its inputs")
    add("--host", default="127.0.0.1", help="address to listen on (default: "
        "%(default)s)")  # fmt: skip
    add("--port", type=_port, default=8000, help="port to listen on (default: %(default)s)")
    add("--grpc-port", type=_port, metavar="PORT", help="serve the models over gRPC, too, at this "
        "port")  # fmt: skip
    add("--uds", metavar="PATH", help="listen on a Unix socket instead of --port")
    add("--uds-mode", type=_mode, default=0o666, metavar="MODE", help="permissions of the Unix "
        "socket (default: 666)")  # fmt: skip
    add("--workers", type=_positive, metavar="N", default=os.environ.get("WEB_CONCURRENCY") or "1",
        help="number of processes (default: WEB_CONCURRENCY of the environment, or 1)")  # fmt: skip
    add("--timeout-worker-start", type=_positive, metavar="SECONDS", default=300, help="time for a "
        "new process to serve after SIGHUP (default: %(default)s)")  # fmt: skip
    add("--ssl-certfile", metavar="FILE", help="serve with TLS and this certificate chain (PEM)")
    add("--ssl-keyfile", metavar="FILE", help="private key (default: in the --ssl-certfile)")
    add("--http", choices=("fast", "asgi"), default="fast", help="asgi passes inference "
        "requests through ASGI and its middleware, fast (the default) does not")  # fmt: skip
    add("--max-body", type=int, metavar="N", help="maximum size of a request body in bytes "
        "(default: 2147483647)")  # fmt: skip
    add("--max-body-memory", type=int, metavar="N", help="maximum size in bytes of all request "
        "bodies in each process; further ones wait (default: half of the memory, divided by "
        "--workers)")  # fmt: skip
    add("--receive-timeout", type=float, metavar="SECONDS", help="time in which a request must "
        "arrive (default: 300)")  # fmt: skip
    add("--max-concurrency", type=int, metavar="N", help="maximum number of requests in progress "
        "in each process; further ones get status 503, or UNAVAILABLE (default: 1000)")  # fmt: skip
    add("--limit-concurrency", type=_positive, metavar="N", help="maximum number of connections of "
        "each process, and of gRPC calls with inference; further ones get status 503, or "
        "RESOURCE_EXHAUSTED (default: no limit)")  # fmt: skip
    add("--timeout-keep-alive", type=_seconds, metavar="SECONDS", default=5, help="time after "
        "which an idle connection is closed (default: %(default)s)")  # fmt: skip
    add("--timeout-graceful-shutdown", type=_positive, metavar="SECONDS", help="time for requests "
        "in progress to end after SIGTERM; others get status 503 (default: no limit)")  # fmt: skip
    add("--compress-responses", action="store_true", default=None, help="compress responses for "
        "clients that ask for it with Accept-Encoding")  # fmt: skip
    add("--metrics", action="store_true", default=None, help="serve metrics for Prometheus at "
        "/metrics")  # fmt: skip
    add("--access-log", action="store_true", help="log every HTTP request in the common log "
        "format, to the standard output")  # fmt: skip
    add("--log-level", choices=("critical", "error", "warning", "info", "debug"),
        help="lowest level of the messages that are logged (default: info)")  # fmt: skip
    add("--log-config", metavar="FILE", help="configuration of the log for logging.config, in "
        "JSON, YAML or the format of fileConfig")  # fmt: skip


def _port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be 0 to 65535, not {format_value(text)}")
    return int(text)


def _positive(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{format_value(text)} is not a positive integer")
    return int(text)


def _seconds(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text):
        raise argparse.ArgumentTypeError(f"must be 0 or more seconds, not {format_value(text)}")
    return int(text)


def _mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{3}", text):
        raise argparse.ArgumentTypeError(f"{format_value(text)} is not an octal mode, such as 660")
    return int(text, 8)


def run(chosen: argparse.Namespace) -> int:
    """Run the server until it is interrupted, and return the exit status. Raises UsageError."""
    if os.name != "posix":
        raise UsageError("the server requires Linux or macOS")
    if os.getpid() == 1:  # without a handler, the signal does not end it until uvicorn runs
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if chosen.workers > 1:  # until there are processes that it replaces
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    open_standard_streams()
    # By default, the core of grpcio writes text of clients to the standard error, as it is. With
    # ERROR, it still writes the server names of TLS clients, and a line for each invalid header.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for package in ("uvicorn", "httptools"):
        try:
            import_module(package)
        except ImportError:
            problem = f"{package} is not installed: pip install 'tensorwire[serve]'"
            raise UsageError(problem) from None
    # Models are imported from the working directory, too. `python -m` has put it there.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    check_certificate(chosen)
    if chosen.grpc_port == chosen.port != 0 and chosen.uds is None:
        raise UsageError(f"--port and --grpc-port must differ: both are {chosen.port}")

    def end(number: int, _: Any) -> None:
        """End the process by a signal, without waiting for the threads of models."""
        for each in (signal.SIGINT, signal.SIGTERM):  # another one would end it before the release
            signal.signal(each, signal.SIG_IGN)
        released.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(0)  # the signal does not end the first process of a container

    # What others may use when the server stops listening is released before it has ended.
    with ExitStack() as stack, ExitStack() as released:
        # While models are loaded, and at the end of uvicorn. A KeyboardInterrupt would be taken for
        # their error, and asyncio and the interpreter would wait for threads of models or grpcio.
        signal.signal(signal.SIGINT, end)
        if chosen.uds is None:
            sockets = bind_port("--port", chosen.host, chosen.port, socket.SO_REUSEADDR)
            chosen.port = sockets[0].getsockname()[1]  # another one if it was 0
        else:
            signal.signal(signal.SIGTERM, end)  # until the server handles it
            bound, remove = bind_unix_socket(chosen.uds, chosen.uds_mode)
            sockets = [bound]
            released.callback(remove)
        for each in sockets:
            stack.enter_context(each)
        if chosen.grpc_port is not None:
            for each in reserve(chosen.host, chosen.grpc_port):
                released.enter_context(each)
                chosen.grpc_port = each.getsockname()[1]
        return serve(chosen, sockets, released)


def open_standard_streams() -> None:
    """Open those that are closed: a socket or a pipe would get their number, and the log."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number


def serve(chosen: argparse.Namespace, sockets: list[socket.socket], released: ExitStack) -> int:
    """Run the server with these sockets, and return the exit status. Raises UsageError."""
    from ..server.uvicorn_check import problem_with_uvicorn  # noqa: PLC0415
    from .processes import Processes, Server, serve_here  # noqa: PLC0415

    uvicorn: Any = import_module("uvicorn")
    reason = None if chosen.http == "fast" else "as requested"
    failure = None if reason else problem_with_uvicorn(FAST_PROTOCOL)
    asgi_failure = problem_with_uvicorn(ASGI_PROTOCOL)  # now: later, the request would be logged
    unusable = UsageError(f"uvicorn {uvicorn.__version__} does not work: {asgi_failure}")
    if asgi_failure and (reason or failure):
        raise unusable
    chosen.http = ASGI_PROTOCOL if reason or failure else FAST_PROTOCOL
    server = Server(chosen, released)  # it configures the log
    if failure:
        reason = f"InferProtocol does not work with uvicorn {uvicorn.__version__}"
        logging.getLogger("tensorwire.server").warning(
            "%s: %s. Requests pass through ASGI, and need twice the CPU time.", reason, failure
        )
    addresses, n = format_addresses(chosen), chosen.workers
    os.environ["WEB_CONCURRENCY"] = str(n)  # they share the memory of bodies

    def announce(names: str, problem: str | None) -> None:
        why = reason or problem
        if asgi_failure and problem:
            raise unusable
        listen(sockets, chosen.host, chosen.port)
        print_line(
            f"tensorwire {tw.__version__} serves {names} at {addresses} with "
            f"{'InferProtocol' if why is None else f'ASGI ({why})'} on uvicorn "
            f"{uvicorn.__version__}, {n} process{'' if n == 1 else 'es'}"
        )
        flush_output()

    if n > 1:
        return Processes(chosen, sockets, announce, released).run()
    return serve_here(chosen, server, sockets, announce)


def format_addresses(chosen: argparse.Namespace) -> str:
    s = "s" if chosen.ssl_certfile else ""
    address = f"http{s}://{format_address(chosen.host, chosen.port)}"
    if chosen.uds is not None:
        address = f"unix:{chosen.uds}"
    if chosen.grpc_port is None:
        return address
    return f"{address} and grpc{s}://{format_address(chosen.host, chosen.grpc_port)}"
