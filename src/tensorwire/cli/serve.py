"""``tensorwire serve``: serve models over HTTP with uvicorn, and over gRPC."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command. Options of uvicorn have the names that they have in uvicorn."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve", help="serve models over HTTP with uvicorn, and over gRPC"
    )
    parser.add_argument(
        "models",
        nargs="?",
        help="module:name of a mapping of models, of a model or of an ASGI application (default "
        "name: models)",
    )
    parser.add_argument(
        "--echo", action="store_true", help="also serve a model 'echo', which returns its inputs"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=_port, default=8000, help="port to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--grpc-port",
        type=_port,
        metavar="PORT",
        help="serve the models over gRPC, too, at this port",
    )
    parser.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead of --port")
    parser.add_argument(
        "--workers", type=_positive, metavar="N", help="number of processes (default: 1)"
    )
    parser.add_argument(
        "--ssl-certfile", metavar="FILE", help="serve with TLS and this certificate chain (PEM)"
    )
    parser.add_argument(
        "--ssl-keyfile", metavar="FILE", help="private key (default: in the --ssl-certfile)"
    )
    parser.add_argument(
        "--http",
        choices=("fast", "asgi"),
        default="fast",
        help="fast (the default): inference requests do not pass through ASGI and its middleware; "
        "asgi: all requests pass through ASGI",
    )
    parser.add_argument(
        "--max-body",
        type=int,
        metavar="N",
        help="maximum size of a request body in bytes (default: 2147483647)",
    )
    parser.add_argument(
        "--receive-timeout",
        type=float,
        metavar="SECONDS",
        help="time in which a request must arrive (default: 300)",
    )
    parser.add_argument(
        "--max-concurrency",
        type=int,
        metavar="N",
        help="maximum number of requests in progress in each process; further ones get status 503, "
        "or UNAVAILABLE (default: 1000)",
    )
    parser.add_argument(
        "--limit-concurrency",
        type=_positive,
        metavar="N",
        help="reply with status 503 when there are N connections or requests, or more; and with "
        "RESOURCE_EXHAUSTED when there are more than N gRPC calls",
    )
    parser.add_argument(
        "--compress-responses",
        action="store_true",
        default=None,
        help="compress responses for clients that ask for it with Accept-Encoding",
    )
    parser.add_argument(
        "--metrics",
        action="store_true",
        default=None,
        help="serve metrics for Prometheus at /metrics",
    )
    parser.add_argument("--access-log", action="store_true", help="log every HTTP request")
    parser.add_argument(
        "--log-level",
        choices=("critical", "error", "warning", "info", "debug"),
        default="info",
        help="lowest level of the messages that are logged (default: %(default)s)",
    )
    return parser


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be 0 to 65535, not {text!r}")


def _positive(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")


def run(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the server until it is interrupted, and return the exit status.

    Invalid arguments raise SystemExit.
    """
    from ..server import serve  # noqa: PLC0415 - the other commands do not need it

    # Models are imported from the working directory, too. `python -m` has put it there.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())

    names = ("max_body", "receive_timeout", "max_concurrency", "compress_responses", "metrics")
    app = {name: getattr(chosen, name) for name in names}
    app = {name: value for name, value in app.items() if value is not None}
    try:
        return serve.run(
            serve.Options(chosen.models, chosen.echo, app),
            http=chosen.http,
            grpc_port=chosen.grpc_port,
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
    except serve.InvalidArgumentsError as error:
        parser.error(str(error))
