"""``tensorwire serve``: run an application on uvicorn, and its models on a gRPC server."""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
import re
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import extract_tb
from typing import Any, NamedTuple

import tensorwire as tw

from ..errors import format_value
from .output import UsageError, escape_record, flush_output, print_line

FAST_PROTOCOL = "tensorwire.server:InferProtocol"
# Arguments of the command that are passed to `create_app` and to uvicorn, under the same names.
APP_OPTIONS = ("max_body", "receive_timeout", "max_concurrency", "compress_responses", "metrics")
UVICORN_OPTIONS = (
    *("host", "port", "uds", "workers", "ssl_certfile", "ssl_keyfile"),
    *("limit_concurrency", "access_log", "log_level"),
)
# The environment variable that passes the options to the processes of the server.
OPTIONS_VARIABLE = "_TENSORWIRE_SERVE"
# The one that names the folder in which prometheus_client adds up the metrics of the processes.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def add_parser(commands: Any) -> None:
    """Add the command. Options of uvicorn have the names that they have in uvicorn."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve", help="serve models over HTTP with uvicorn, and over gRPC"
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
    add("--workers", type=_positive, metavar="N", help="number of processes (default: 1)")
    add("--ssl-certfile", metavar="FILE", help="serve with TLS and this certificate chain (PEM)")
    add("--ssl-keyfile", metavar="FILE", help="private key (default: in the --ssl-certfile)")
    add("--http", choices=("fast", "asgi"), default="fast", help="fast (the default): inference "
        "requests do not pass through ASGI and its middleware; asgi: all requests pass through "
        "ASGI")  # fmt: skip
    add("--max-body", type=int, metavar="N", help="maximum size of a request body in bytes "
        "(default: 2147483647)")  # fmt: skip
    add("--receive-timeout", type=float, metavar="SECONDS", help="time in which a request must "
        "arrive (default: 300)")  # fmt: skip
    add("--max-concurrency", type=int, metavar="N", help="maximum number of requests in progress "
        "in each process; further ones get status 503, or UNAVAILABLE (default: 1000)")  # fmt: skip
    add("--limit-concurrency", type=_positive, metavar="N", help="reply with status 503 while "
        "there are N connections or requests, or more; reply with RESOURCE_EXHAUSTED to more than "
        "N gRPC calls; close more than N gRPC connections")  # fmt: skip
    add("--compress-responses", action="store_true", default=None, help="compress responses for "
        "clients that ask for it with Accept-Encoding")  # fmt: skip
    add("--metrics", action="store_true", default=None, help="serve metrics for Prometheus at "
        "/metrics")  # fmt: skip
    add("--access-log", action="store_true", help="log every HTTP request")
    add("--log-level", choices=("critical", "error", "warning", "info", "debug"), default="info",
        help="lowest level of the messages that are logged (default: %(default)s)")  # fmt: skip


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


class Options(NamedTuple):
    """What to serve."""

    models: str | None
    """``module:name`` of models, a model or an ASGI application. The default name is ``models``."""
    with_echo: bool
    """Whether to add the model ``echo``."""
    app: Mapping[str, Any] = {}
    """The arguments of ``create_app`` that were passed. They require a mapping of models."""
    grpc: Mapping[str, Any] | None = None
    """The arguments of ``grpc.serving`` except for the application; None without gRPC."""


def echo(request: tw.InferRequest) -> tw.InferResponse:
    """Return the inputs as outputs, without a copy. This is the model that ``--echo`` adds."""
    return tw.InferResponse(request.inputs)


def run(chosen: argparse.Namespace) -> int:
    """Run the server until it is interrupted, and return the exit status. Raises UsageError."""
    try:
        uvicorn: Any = import_module("uvicorn")
    except ImportError:
        raise UsageError("uvicorn is not installed: pip install 'tensorwire[serve]'") from None
    # Models are imported from the working directory, too. `python -m` has put it there.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    check_certificate(chosen.ssl_certfile, chosen.ssl_keyfile)
    check_unix_socket(chosen.uds)
    passed = {name: getattr(chosen, name) for name in APP_OPTIONS}
    passed = {name: value for name, value in passed.items() if value is not None}
    options = Options(chosen.models, chosen.echo, passed)
    app = load(options)
    reserved = None
    if chosen.grpc_port is not None:
        if not is_ours(app):
            problem = "was not created by create_app, which --grpc-port requires"
            raise UsageError(f"{chosen.models} {problem}")
        if chosen.grpc_port == chosen.port != 0 and chosen.uds is None:
            raise UsageError(f"--port and --grpc-port must differ: both are {chosen.port}")
        reserved = reserve(chosen.host, chosen.grpc_port)
        grpc = {
            "address": f"{format_host(chosen.host)}:{reserved.getsockname()[1]}",
            "certfile": chosen.ssl_certfile,
            "keyfile": chosen.ssl_keyfile,
            "limit_concurrency": chosen.limit_concurrency,
        }
        options = options._replace(grpc=grpc)
    names = ", ".join(sorted(app.models)) if is_ours(app) else chosen.models
    reason = why_not_fast(app) if chosen.http == "fast" else "as requested"
    interface = "InferProtocol" if reason is None else f"ASGI ({reason})"
    workers = chosen.workers or 1
    print_line(
        f"tensorwire {tw.__version__} serves {names} at {format_addresses(options, chosen)} with "
        f"{interface} on uvicorn {uvicorn.__version__}, "
        f"{workers} process{'' if workers == 1 else 'es'}"
    )
    flush_output()
    os.environ[OPTIONS_VARIABLE] = json.dumps(options)
    has_folder = is_ours(app) and app.has_metrics and workers > 1
    with reserved or nullcontext(), metrics_folder() if has_folder else nullcontext():
        uvicorn.run(
            f"{__name__}:create",
            factory=True,
            # h11, because uvicorn's httptools protocol does not read the body of a request with an
            # Upgrade header, and takes it for the next request.
            http="h11" if reason else FAST_PROTOCOL,
            ws="none",
            **{name: getattr(chosen, name) for name in UVICORN_OPTIONS},
        )
    return 0


def create() -> Any:
    """Return the application. uvicorn calls this function in each process of the server."""
    for logger in ("tensorwire.server", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(logger).addFilter(escape_record)
    options = Options(*json.loads(os.environ[OPTIONS_VARIABLE]))
    app = load(options)
    if options.grpc is not None:
        from ..server.grpc import serving  # noqa: PLC0415 - grpcio is optional

        app.lifespan = partial(serving, app, **options.grpc)
    return app


@contextmanager
def metrics_folder() -> Iterator[None]:
    """Create the folder in which the processes add up their metrics, unless there is one."""
    if os.environ.get(FOLDER_VARIABLE):  # an empty value names no folder
        yield
        return
    with TemporaryDirectory(prefix="tensorwire-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


def reserve(host: str, port: int) -> socket.socket:
    """Bind a port for the gRPC servers of all processes, and return the socket.

    The servers listen at the port with SO_REUSEPORT, so they would not notice that it is in use.
    While the socket exists, only processes of the same user that set this option can listen.
    """
    try:
        import_module("grpc.aio")
    except ImportError:
        raise UsageError("grpcio is not installed: pip install 'tensorwire[grpc]'") from None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()  # the port was 0, or the same
        reserved = socket.socket(family, kind)
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(address)
        except OSError:
            reserved.close()
            raise
    except OSError as error:
        raise UsageError(
            f"--grpc-port: cannot listen at {format_host(host)}:{port}: {error.strerror}"
        ) from None
    return reserved


def is_ours(app: Any) -> bool:
    """Return whether an application was created by ``create_app``."""
    from ..server import App  # noqa: PLC0415 - the other commands do not need it

    return isinstance(app, App)


def why_not_fast(app: Any) -> str | None:
    """Return the reason why InferProtocol cannot be used; None if it can."""
    if not is_ours(app):
        return "the application was not created by create_app"
    try:
        import_module("tensorwire.server.uvicorn")
    except ImportError as error:  # httptools is missing, or the version of uvicorn is not tested
        return str(error)
    return None


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


def check_unix_socket(path: str | None) -> None:
    """Raise UsageError if a socket cannot be created. uvicorn replaces an old one."""
    try:
        if path is None or Path(path).is_socket():
            return
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(path)
        os.unlink(path)
    except OSError as error:
        raise UsageError(f"--uds: cannot listen at {path}: {error.strerror or error}") from None


def format_addresses(options: Options, chosen: argparse.Namespace) -> str:
    s = "s" if chosen.ssl_certfile else ""
    http = f"http{s}://{format_host(chosen.host)}:{chosen.port}"
    address = f"unix:{chosen.uds}" if chosen.uds else http
    return address if options.grpc is None else f"{address} and grpc{s}://{options.grpc['address']}"


def format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def load(options: Options) -> Any:
    """Return the ASGI application to serve. Raises UsageError, also for errors of the module."""
    try:
        return make_app(options)
    except UsageError:
        raise
    except BaseException as error:  # a module may raise SystemExit
        problem = f"{describe(error)}{format_failed_lines(error)}"
        raise UsageError(f"cannot load {options.models or 'echo'}: {problem}") from None


def make_app(options: Options) -> Any:
    """Return the ASGI application to serve. Raises UsageError, and any other exception."""
    from ..server import Model, create_app  # noqa: PLC0415

    models = options.models
    found: Any = {} if models is None else find(models)
    takes = partial(takes_arguments, found)
    if isinstance(found, Model) or (takes(1) and not takes(0) and not takes(3)):
        found = {name_in(str(models)): found}
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
        for name in ("echo", *options.app) if options.with_echo else options.app:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{models} is an application: {option} requires a mapping of models")
        return found
    served = {"echo": Model(echo, in_event_loop=True), **found} if options.with_echo else found
    if not served:
        problem = "no models" if models is None else f"{models} is an empty mapping"
        raise UsageError(f"{problem}: pass module:name of a mapping, or --echo")
    try:
        return create_app(served, zero_copy=True, **options.app)  # uvicorn accepts memoryviews
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
