"""``tensorwire serve``: run an application on uvicorn, and its models on a gRPC server."""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import FrameType
from typing import Any, NoReturn

import tensorwire as tw

from ..errors import format_value
from .output import AccessFormatter, UsageError, escape_record, flush_output, print_line
from .sockets import bind_port, bind_unix_socket, format_host, listen, reserve

FAST_PROTOCOL = "tensorwire.server:InferProtocol"
ASGI_PROTOCOL = "tensorwire.server.uvicorn_asgi:AsgiProtocol"
# Arguments of the command that are passed to `create_app` and to uvicorn, under the same names.
APP_OPTIONS = (
    *("max_body", "max_body_memory", "receive_timeout", "max_concurrency"),
    *("compress_responses", "metrics"),
)
UVICORN_OPTIONS = (
    *("ssl_certfile", "ssl_keyfile", "limit_concurrency", "access_log"),
    *("timeout_graceful_shutdown", "timeout_keep_alive"),
)


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
    add("--host", type=_host, default="127.0.0.1", help="address to listen on (default: "
        "%(default)s)")  # fmt: skip
    add("--port", type=_port, default=8000, help="port to listen on (default: %(default)s)")
    add("--grpc-port", type=_port, metavar="PORT", help="serve the models over gRPC, too, at this "
        "port")  # fmt: skip
    add("--uds", metavar="PATH", help="listen on a Unix socket instead of --port")
    add("--uds-mode", type=_mode, default=0o666, metavar="MODE", help="permissions of the Unix "
        "socket (default: 666)")  # fmt: skip
    add("--workers", type=_positive, metavar="N", help="number of processes (default: 1)")
    add("--ssl-certfile", metavar="FILE", help="serve with TLS and this certificate chain (PEM)")
    add("--ssl-keyfile", metavar="FILE", help="private key (default: in the --ssl-certfile)")
    add("--http", choices=("fast", "asgi"), default="fast", help="fast (the default): inference "
        "requests do not pass through ASGI and its middleware; asgi: all requests pass through "
        "ASGI")  # fmt: skip
    add("--max-body", type=int, metavar="N", help="maximum size of a request body in bytes "
        "(default: 2147483647)")  # fmt: skip
    add("--max-body-memory", type=int, metavar="N", help="maximum size in bytes of all request "
        "bodies in each process together; further ones wait (default: half of the memory of the "
        "machine or its cgroup, divided by --workers)")  # fmt: skip
    add("--receive-timeout", type=float, metavar="SECONDS", help="time in which a request must "
        "arrive (default: 300)")  # fmt: skip
    add("--max-concurrency", type=int, metavar="N", help="maximum number of requests in progress "
        "in each process; further ones get status 503, or UNAVAILABLE (default: 1000)")  # fmt: skip
    add("--limit-concurrency", type=_positive, metavar="N", help="maximum number of "
        "connections of each process, and of gRPC calls with inference; idle connections are "
        "closed first, further requests get status 503, or RESOURCE_EXHAUSTED; health checks are "
        "still answered (default: no limit)")  # fmt: skip
    add("--timeout-keep-alive", type=int, metavar="SECONDS", default=5, help="time after which an "
        "idle connection is closed (default: %(default)s)")  # fmt: skip
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


def _host(text: str) -> str:
    try:
        text.encode("idna")  # as socket.getaddrinfo does
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{format_value(text)} is invalid: {error}") from None
    return text


def _port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be 0 to 65535, not {format_value(text)}")
    return int(text)


def _positive(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{format_value(text)} is not a positive integer")
    return int(text)


def _mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{3}", text):
        raise argparse.ArgumentTypeError(f"{format_value(text)} is not an octal mode, such as 660")
    return int(text, 8)


def echo(request: tw.InferRequest) -> tw.InferResponse:
    """Return the inputs as outputs, without a copy. This is the model that ``--echo`` adds."""
    return tw.InferResponse(request.inputs)


def run(chosen: argparse.Namespace) -> int:
    """Run the server until it is interrupted, and return the exit status. Raises UsageError."""
    for package in ("uvicorn", "httptools"):
        try:
            import_module(package)
        except ImportError:
            problem = f"{package} is not installed: pip install 'tensorwire[serve]'"
            raise UsageError(problem) from None
    if os.getpid() == 1:  # without a handler, the signal does not end it while the models load
        signal.signal(signal.SIGTERM, end_process)
    # Models are imported from the working directory, too. `python -m` has put it there.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    check_certificate(chosen.ssl_certfile, chosen.ssl_keyfile)
    if chosen.grpc_port == chosen.port != 0 and chosen.uds is None:
        raise UsageError(f"--port and --grpc-port must differ: both are {chosen.port}")
    try:
        with ExitStack() as stack:
            if chosen.uds is None:
                sockets = bind_port("--port", chosen.host, chosen.port, socket.SO_REUSEADDR)
                chosen.port = sockets[0].getsockname()[1]  # another one if it was 0
            else:
                sockets = [bind_unix_socket(chosen.uds, chosen.uds_mode)]
                stack.callback(Path(chosen.uds).unlink, missing_ok=True)
            for each in sockets:
                stack.enter_context(each)
            if chosen.grpc_port is not None:
                for each in reserve(chosen.host, chosen.grpc_port):
                    stack.enter_context(each)
                    chosen.grpc_port = each.getsockname()[1]
            return serve(chosen, sockets)
    except Terminated as error:
        end_process(*error.args)


def serve(chosen: argparse.Namespace, sockets: list[socket.socket]) -> int:
    """Run the server with these sockets, and return the exit status. Raises UsageError."""
    uvicorn: Any = import_module("uvicorn")
    workers = chosen.workers or count_of_processes()
    try:
        config = uvicorn.Config(
            partial(create, chosen),
            factory=True,
            http=ASGI_PROTOCOL,
            ws="none",
            workers=workers,
            log_level=chosen.log_level or ("info" if chosen.log_config is None else None),
            log_config=chosen.log_config or log_config(chosen.log_level or "info"),
            # Only a proxy of this machine can connect to a Unix socket.
            forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "*") if chosen.uds else None,
            **{name: getattr(chosen, name) for name in UVICORN_OPTIONS},
        )
    except Exception as error:
        if chosen.log_config is None:
            raise
        cause = " ".join(describe(error.__cause__ or error).split())
        raise UsageError(f"--log-config: cannot use {chosen.log_config}: {cause}") from None

    reason = slow_reason() if chosen.http == "fast" else "as requested"
    if reason is None:
        config.http = FAST_PROTOCOL
    addresses = format_addresses(chosen)
    n = config.workers

    def announce(names: str, problem: str | None) -> None:
        why = reason or problem
        listen(sockets, chosen.host, chosen.port)
        print_line(
            f"tensorwire {tw.__version__} serves {names} at {addresses} with "
            f"{'InferProtocol' if why is None else f'ASGI ({why})'} on uvicorn "
            f"{uvicorn.__version__}, {n} process{'' if n == 1 else 'es'}"
        )
        flush_output()

    if config.workers > 1:
        from .processes import serve_processes  # noqa: PLC0415 - uvicorn is optional

        return serve_processes(config, partial(create, chosen), sockets, announce)
    app, names, problem = create(chosen)
    announce(names, problem)
    config.app = lambda: app
    server = uvicorn.Server(config)
    original = signal.getsignal(signal.SIGTERM)
    if original in (signal.SIG_DFL, end_process):  # otherwise, it is that of the models
        signal.signal(signal.SIGTERM, terminate)
    try:
        server.run(sockets=sockets)
    except KeyboardInterrupt:
        if problem is None and app.workers.has_calls:
            raise Terminated(signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, original)
    return 0 if server.started else 3  # as uvicorn


class Terminated(BaseException):
    """A signal has ended the server. uvicorn raises it again then. The argument is its number."""


def terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def end_process(number: int, frame: FrameType | None = None) -> NoReturn:
    """End the process by a signal, without waiting for the threads of models."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(0)  # the signal does not end the first process of a container


def count_of_processes() -> int:
    """Return the value of the variable that uvicorn and others read. Raises UsageError."""
    text = os.environ.get("WEB_CONCURRENCY") or "1"
    try:
        return _positive(text.strip())
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"WEB_CONCURRENCY: {error}") from None


def create(chosen: argparse.Namespace) -> tuple[Any, str, str | None]:
    """Return the application, the names of its models, and why InferProtocol cannot serve them.

    The reason is None for an application of ``create_app``. Raises UsageError.
    """
    from ..server import App  # noqa: PLC0415 - the other commands do not need it

    for logger in ("tensorwire.server", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(logger).addFilter(escape_record)
    app = load(chosen)
    if not isinstance(app, App):
        problem = "was not created by create_app"
        if chosen.grpc_port is not None:
            raise UsageError(f"{chosen.models} {problem}, which --grpc-port requires")
        return app, chosen.models, f"the application {problem}"
    if chosen.grpc_port is not None:
        from ..server.grpc import serving  # noqa: PLC0415 - grpcio is optional

        app.lifespan = partial(
            serving,
            app,
            f"{format_host(chosen.host)}:{chosen.grpc_port}",
            certfile=chosen.ssl_certfile,
            keyfile=chosen.ssl_keyfile,
            limit_concurrency=chosen.limit_concurrency,
            timeout_graceful_shutdown=chosen.timeout_graceful_shutdown,
        )
    return app, ", ".join(sorted(app.models)), None


def log_config(level: str) -> dict[str, Any]:
    """Return the configuration of the log: each line has its time, level and logger."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "default": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
            "access": {"()": AccessFormatter},
        },
        "handlers": {
            "default": {"class": "logging.StreamHandler", "formatter": "default"},
            "access": {
                "class": "logging.StreamHandler",
                "formatter": "access",
                "stream": "ext://sys.stdout",
            },
        },
        "loggers": {
            "tensorwire": {"level": level.upper()},
            "uvicorn": {"level": level.upper()},
            "uvicorn.access": {"handlers": ["access"], "propagate": False},
        },
        "root": {"handlers": ["default"], "level": "WARNING"},
    }


def slow_reason() -> str | None:
    """Return why InferProtocol cannot be used, and log a warning; None if it can be used."""
    from ..server import uvicorn_check as check  # noqa: PLC0415 - uvicorn is optional

    if (problem := check.problem_with_uvicorn()) is None:
        return None
    oldest, newest = (".".join(map(str, version)) for version in check.TESTED_UVICORN)
    version = import_module("uvicorn").__version__
    logging.getLogger("tensorwire.server").warning(
        f"InferProtocol was tested with uvicorn {oldest} to {newest}, and does not work with "
        f"{version} ({problem}). Requests pass through ASGI, and take up to 3 times as long."
    )
    return f"InferProtocol does not work with uvicorn {version}"


def check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """Raise UsageError unless the files have a certificate and its private key.

    The errors of uvicorn and grpcio do not name the file.
    """
    if certfile is None:
        if keyfile is not None:
            raise UsageError("--ssl-keyfile requires --ssl-certfile")
        return
    key_option = "--ssl-certfile" if keyfile is None else "--ssl-keyfile"
    for option, path, content in (
        ("--ssl-certfile", certfile, "certificate"),
        (key_option, keyfile or certfile, "private key"),
    ):
        try:
            text = Path(path).read_text("latin-1")
        except OSError as error:
            raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from None
        if not re.search(rf"^-----BEGIN.* {content.upper()}-----\s*$", text, re.MULTILINE):
            raise UsageError(f"{option}: {path} does not contain a {content} in PEM format")

    def ask_for_password() -> str:
        raise UsageError(f"{key_option}: the private key is encrypted")

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certfile, keyfile, ask_for_password)
    except ssl.SSLError as error:
        problem = f"the certificate and the private key cannot be used: {error.reason or error}"
        raise UsageError(f"--ssl-certfile: {problem}") from None


def format_addresses(chosen: argparse.Namespace) -> str:
    s = "s" if chosen.ssl_certfile else ""
    host = format_host(chosen.host)
    address = f"http{s}://{host}:{chosen.port}" if chosen.uds is None else f"unix:{chosen.uds}"
    if chosen.grpc_port is None:
        return address
    return f"{address} and grpc{s}://{host}:{chosen.grpc_port}"


def load(chosen: argparse.Namespace) -> Any:
    """Return the ASGI application to serve. Raises UsageError, also for errors of the module."""
    try:
        return make_app(chosen)
    except UsageError:
        raise
    except BaseException as error:  # a module may raise SystemExit
        problem = f"{describe(error)}{format_failed_lines(error)}"
        raise UsageError(f"cannot load {chosen.models or 'echo'}: {problem}") from None


def make_app(chosen: argparse.Namespace) -> Any:
    """Return the ASGI application to serve. Raises UsageError, and any other exception."""
    from ..server import Model, create_app  # noqa: PLC0415

    models = chosen.models
    options = {n: value for n in APP_OPTIONS if (value := getattr(chosen, n)) is not None}
    found: Any = {} if models is None else find(models)
    takes = partial(takes_arguments, found)
    if isinstance(found, Model) or (takes(1) and not takes(0) and not takes(3)):
        found = {name_in(models): found}
    if not isinstance(found, Mapping):
        if not callable(found):
            kind = type(found).__name__
            raise UsageError(
                f"{models} must be a mapping of models, a model or an application, not {kind}"
            )
        if not takes(3):
            raise UsageError(
                f"{models} is neither a model, which takes one argument, nor an ASGI application, "
                "which takes three"
            )
        for name in ("echo", *options) if chosen.echo else options:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{models} is an application: {option} requires a mapping of models")
        return found
    served = {"echo": Model(echo, in_event_loop=True), **found} if chosen.echo else found
    if not served:
        problem = "no models" if models is None else f"{models} is an empty mapping"
        raise UsageError(f"{problem}: pass module:name of a mapping, or --echo")
    try:
        return create_app(served, zero_copy=True, **options)  # uvicorn accepts memoryviews
    except ImportError as error:
        raise UsageError(f"--metrics: {error}") from None
    except (TypeError, ValueError) as error:  # an invalid model, name or limit
        raise UsageError(f"cannot serve {models or 'echo'}: {error}") from error


def takes_arguments(function: Any, n: int) -> bool:
    """Return whether a function accepts n arguments. It is True if its signature is unknown."""
    try:
        inspect.signature(function).bind(*range(n))
    except TypeError:  # also for objects that are not callable
        return False
    except ValueError:
        pass
    return True


def find(models: str) -> Any:
    """Import the object that ``module:name`` names."""
    module, _, _ = models.partition(":")
    name = name_in(models)
    if module.endswith(".py") and os.path.isfile(module):
        folder, file = os.path.split(module)
        where = f" in the folder {folder}" if folder else ""
        raise UsageError(f"{module} is a file: pass {file[:-3]}:{name}{where}")
    if not module or module.startswith(".") or "/" in module:
        raise UsageError(f"{models} must be module:name; {module!r} is not the name of a module")
    found = import_module(module)
    try:
        return getattr(found, name)
    except AttributeError as error:
        raise UsageError(f"cannot load {models}: {error}") from None


def name_in(models: str) -> str:
    """Return the name in ``module:name``."""
    return models.partition(":")[2] or "models"


def describe(error: BaseException) -> str:
    """Return the type and the text of an exception of the user's code."""
    try:
        text = str(error)
    except BaseException:
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def format_failed_lines(error: BaseException) -> str:
    """Return the lines of the imported modules that raised the exception, each on its own line.

    The text of a SyntaxError contains its line already.
    """
    ours = os.path.join(os.path.dirname(tw.__file__), "")
    return "".join(
        f"\n  {frame.filename}, line {frame.lineno}: {frame.line}"
        for frame in extract_tb(error.__traceback__)
        if frame.filename != import_module.__code__.co_filename
        and not frame.filename.startswith(("<frozen ", ours))
    )
