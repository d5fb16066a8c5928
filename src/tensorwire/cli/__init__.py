"""Zero-copy codec for the Open Inference Protocol: demo, message inspector and small server."""

from __future__ import annotations

import argparse
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit status. Invalid arguments raise SystemExit."""
    parser = argparse.ArgumentParser(prog="python -m tensorwire", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="encode and decode 64 MiB, compared with plain Python code")
    inspect = commands.add_parser("inspect", help="print the tensors of a captured body")
    inspect.add_argument("file", help="file with the HTTP body of a request or response")
    inspect.add_argument(
        "--header-length",
        metavar="N",
        help="value of Inference-Header-Content-Length (default: the whole body is JSON)",
    )
    add_serve_options(commands.add_parser("serve", help="serve models over HTTP with uvicorn"))
    chosen = parser.parse_args(arguments)
    if chosen.command == "demo":
        from . import demo  # noqa: PLC0415 - each command loads what it needs

        demo.run()
        return 0
    if chosen.command == "serve":
        from ..server import serve as server  # noqa: PLC0415

        try:
            return run_server(server, chosen)
        except server.InvalidArguments as error:
            parser.error(str(error))
    from .inspect import run  # noqa: PLC0415

    try:
        return run(chosen.file, chosen.header_length)
    except OSError as error:
        parser.error(str(error))


def add_serve_options(serve: argparse.ArgumentParser) -> None:
    """Add the options of ``serve``. Those of uvicorn have the names that they have in uvicorn."""
    serve.add_argument(
        "models", nargs="?", help="module:name of a mapping of models or of an ASGI application"
    )
    serve.add_argument("--echo", action="store_true", help="also serve a model 'echo'")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead of a port")
    serve.add_argument("--workers", type=int, metavar="N", help="number of processes (default: 1)")
    serve.add_argument("--ssl-certfile", metavar="FILE")
    serve.add_argument("--ssl-keyfile", metavar="FILE")
    serve.add_argument(
        "--http",
        choices=("fast", "asgi"),
        default="fast",
        help="fast: inference requests do not pass through ASGI, nor through its middleware",
    )
    serve.add_argument(
        "--max-body", type=int, metavar="N", help="maximum size of a request body in bytes"
    )
    serve.add_argument(
        "--receive-timeout",
        type=float,
        metavar="SECONDS",
        help="time in which a request must arrive (default: 300)",
    )
    serve.add_argument(
        "--limit-concurrency",
        type=int,
        metavar="N",
        help="reply with status 503 if there are more connections or requests",
    )
    serve.add_argument("--access-log", action="store_true", help="log every request")
    serve.add_argument(
        "--log-level", choices=("critical", "error", "warning", "info", "debug"), default="info"
    )


def run_server(server: Any, chosen: argparse.Namespace) -> int:
    """Run ``serve`` with the given arguments."""
    options = server.Options(chosen.models, chosen.echo, chosen.max_body, chosen.receive_timeout)
    return int(
        server.run(
            options,
            http=chosen.http,
            host=chosen.host,
            port=chosen.port,
            uds=chosen.uds,
            workers=chosen.workers,
            ssl_certfile=chosen.ssl_certfile,
            ssl_keyfile=chosen.ssl_keyfile,
            limit_concurrency=chosen.limit_concurrency,
            access_log=chosen.access_log,
            log_level=chosen.log_level,
        )
    )
