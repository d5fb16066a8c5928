"""``tensorwire serve``: run an application on uvicorn, and its models on a gRPC server."""

from __future__ import annotations

import inspect
import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import extract_tb
from typing import Any, NamedTuple

import tensorwire as tw

from .app import App, create_app
from .model import Model

FAST_PROTOCOL = "tensorwire.server:InferProtocol"
# The environment variable that passes the options to the processes of the server.
_OPTIONS_VARIABLE = "_TENSORWIRE_SERVE"
# The variable of prometheus_client that names the folder in which the processes of a server add up
# their metrics.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class InvalidArgumentsError(Exception):
    """The command-line arguments are invalid, or a package is not installed."""


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


def run(
    options: Options, *, http: str, grpc_port: int | None = None, **uvicorn_options: Any
) -> int:
    """Run the server until it is interrupted, and return the exit status.

    Parameters
    ----------
    options : Options
        What to serve.
    http : {"fast", "asgi"}
        Whether inference requests are answered by ``InferProtocol`` or through ASGI.
    grpc_port : int, optional
        The port for gRPC at the same host. By default, there is no gRPC.
    **uvicorn_options
        Arguments of ``uvicorn.run``.

    Raises
    ------
    InvalidArgumentsError
        There are no models, they cannot be loaded, a file of TLS is invalid, the server cannot
        listen at the Unix socket or the port for gRPC, or a package is not installed.
    """
    try:
        uvicorn: Any = import_module("uvicorn")
    except ImportError:
        raise InvalidArgumentsError(
            "uvicorn is not installed: pip install 'tensorwire[serve]'"
        ) from None
    check_certificate(uvicorn_options.get("ssl_certfile"), uvicorn_options.get("ssl_keyfile"))
    check_unix_socket(uvicorn_options.get("uds"))
    app = load(options)
    reserved = None
    if grpc_port is not None:
        if not isinstance(app, App):
            raise InvalidArgumentsError(
                f"{options.models} was not created by create_app, which --grpc-port requires"
            )
        if grpc_port == uvicorn_options["port"] != 0 and uvicorn_options.get("uds") is None:
            raise InvalidArgumentsError(f"--port and --grpc-port must differ: both are {grpc_port}")
        reserved = reserve(uvicorn_options["host"], grpc_port)
        options = options._replace(grpc=grpc_arguments(reserved, uvicorn_options))
    reason = why_not_fast(app) if http == "fast" else "as requested"
    interface = "InferProtocol" if reason is None else f"ASGI ({reason})"
    workers = uvicorn_options.get("workers") or 1
    print(
        f"tensorwire {tw.__version__} serves {format_models(app, options)} at "
        f"{format_addresses(options, uvicorn_options)} with {interface} on uvicorn "
        f"{uvicorn.__version__}, "
        f"{'1 process' if workers == 1 else f'{workers} processes'}",
        flush=True,
    )
    os.environ[_OPTIONS_VARIABLE] = json.dumps(options)
    has_folder = isinstance(app, App) and app.has_metrics and workers > 1
    with reserved or nullcontext(), metrics_folder() if has_folder else nullcontext():
        uvicorn.run(
            f"{__name__}:create",
            factory=True,
            # h11, because uvicorn's httptools protocol does not read the body of a request with an
            # Upgrade header, and takes it for the next request.
            http="h11" if reason else FAST_PROTOCOL,
            ws="none",
            **uvicorn_options,
        )
    return 0


def create() -> Any:
    """Return the application. uvicorn calls this function in each process of the server."""
    options = Options(*json.loads(os.environ[_OPTIONS_VARIABLE]))
    app = load(options)
    if options.grpc is not None:
        from .grpc import serving  # noqa: PLC0415 - grpcio is optional

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
        raise InvalidArgumentsError(
            "grpcio is not installed: pip install 'tensorwire[grpc]'"
        ) from None
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
        raise InvalidArgumentsError(
            f"--grpc-port: cannot listen at {format_host(host)}:{port}: {error.strerror}"
        ) from None
    return reserved


def grpc_arguments(
    reserved: socket.socket, uvicorn_options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return ``Options.grpc``."""
    return {
        "address": f"{format_host(uvicorn_options['host'])}:{reserved.getsockname()[1]}",
        "certfile": uvicorn_options.get("ssl_certfile"),
        "keyfile": uvicorn_options.get("ssl_keyfile"),
        "max_rpcs": uvicorn_options.get("limit_concurrency"),
    }


def why_not_fast(app: Any) -> str | None:
    """Return the reason why InferProtocol cannot be used; None if it can."""
    if not isinstance(app, App):
        return "the application was not created by create_app"
    try:
        import_module("tensorwire.server.uvicorn")
    except ImportError as error:  # httptools is missing, or the version of uvicorn is not tested
        return str(error)
    return None


def check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """Raise InvalidArgumentsError unless the files have a certificate and its private key.

    The errors of uvicorn and grpcio do not name the file.
    """
    if certfile is None:
        if keyfile is not None:
            raise InvalidArgumentsError("--ssl-keyfile requires --ssl-certfile")
        return
    check_pem("--ssl-certfile", certfile, "CERTIFICATE-----")
    key_option = "--ssl-certfile" if keyfile is None else "--ssl-keyfile"
    check_pem(key_option, keyfile or certfile, "PRIVATE KEY-----")

    def ask_for_password() -> str:
        raise InvalidArgumentsError(f"{key_option}: the private key is encrypted")

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certfile, keyfile, ask_for_password)
    except ssl.SSLError as error:
        problem = f"the certificate and the private key cannot be used: {error.reason or error}"
        raise InvalidArgumentsError(f"--ssl-certfile: {problem}") from None


def check_pem(option: str, path: str, ending: str) -> None:
    """Raise InvalidArgumentsError unless a file has a line with this ending, as PEM has."""
    try:
        with open(path, "rb") as file:
            lines = [line.rstrip() for line in file.read().splitlines()]
    except OSError as error:
        raise InvalidArgumentsError(f"{option}: cannot read {path}: {error.strerror}") from None
    if not any(line.startswith(b"-----BEGIN") and line.endswith(ending.encode()) for line in lines):
        name = ending.strip("-").lower()
        raise InvalidArgumentsError(f"{option}: {path} does not contain a {name} in PEM format")


def check_unix_socket(path: str | None) -> None:
    """Raise InvalidArgumentsError if a socket cannot be created. uvicorn replaces an old one."""
    if path is None:
        return
    try:
        if Path(path).is_socket():
            return
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(path)
        os.unlink(path)
    except OSError as error:
        problem = error.strerror or error
        raise InvalidArgumentsError(f"--uds: cannot listen at {path}: {problem}") from None


def format_models(app: Any, options: Options) -> str:
    """Return the names of the models; for an application of another kind, its own name."""
    if not isinstance(app, App):
        return str(options.models)
    return ", ".join(sorted(app.models))


def format_addresses(options: Options, uvicorn_options: Mapping[str, Any]) -> str:
    s = "s" if uvicorn_options.get("ssl_certfile") else ""
    if uvicorn_options.get("uds"):
        address = f"unix:{uvicorn_options['uds']}"
    else:
        address = f"http{s}://{format_host(uvicorn_options['host'])}:{uvicorn_options['port']}"
    return address if options.grpc is None else f"{address} and grpc{s}://{options.grpc['address']}"


def format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def load(options: Options) -> Any:
    """Return the ASGI application to serve.

    Raises
    ------
    InvalidArgumentsError
        There are no models, the module cannot be imported, or the object that ``models`` names is
        neither a mapping nor a model nor an application.
    """
    models = options.models
    found: Any = {} if models is None else find(models)
    if isinstance(found, Model) or is_function_of_a_request(found):
        found = {name_in(str(models)): found}
    if not isinstance(found, Mapping):
        if not callable(found):
            kind = type(found).__name__
            raise InvalidArgumentsError(
                f"{models} must be a mapping of models, a model or an application, not {kind}"
            )
        if not takes_arguments(found, 3):
            raise InvalidArgumentsError(
                f"{models} is neither a model, which takes one argument, nor an ASGI application, "
                "which takes three"
            )
        for name in ("echo", *options.app) if options.with_echo else options.app:
            option = f"--{name.replace('_', '-')}"
            raise InvalidArgumentsError(
                f"{models} is an application: {option} requires a mapping of models"
            )
        return found
    served = {"echo": Model(echo, in_event_loop=True), **found} if options.with_echo else found
    if not served:
        problem = "no models" if models is None else f"{models} is an empty mapping"
        raise InvalidArgumentsError(f"{problem}: pass module:name of a mapping, or --echo")
    try:
        return create_app(served, zero_copy=True, **options.app)  # uvicorn accepts memoryviews
    except ImportError as error:
        raise InvalidArgumentsError(f"--metrics: {error}") from None
    except (TypeError, ValueError) as error:  # an invalid model, name or limit
        raise InvalidArgumentsError(f"cannot serve {models or 'echo'}: {error}") from error


def is_function_of_a_request(found: Any) -> bool:
    """Return whether an object is a function that requires exactly one argument, as a model."""
    if not callable(found) or takes_arguments(found, 0) or takes_arguments(found, 3):
        return False
    return takes_arguments(found, 1)


def takes_arguments(function: Callable[..., Any], n: int) -> bool:
    """Return whether a function accepts n arguments. It is True if its signature is unknown."""
    try:
        inspect.signature(function).bind(*range(n))
    except TypeError:
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
        raise InvalidArgumentsError(f"{module} is a file: pass {file[:-3]}:{name}{where}")
    try:
        found = import_module(module)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}{format_failed_lines(error)}"
        raise InvalidArgumentsError(f"cannot load {models}: {problem}") from None
    try:
        return getattr(found, name)
    except AttributeError as error:
        raise InvalidArgumentsError(f"cannot load {models}: {error}") from None


def name_in(models: str) -> str:
    """Return the name in ``module:name``."""
    return models.partition(":")[2] or "models"


def format_failed_lines(error: Exception) -> str:
    """Return the lines of the imported modules that raised the exception, each on its own line.

    The text of a SyntaxError contains its line already.
    """
    return "".join(
        f"\n  {frame.filename}, line {frame.lineno}: {frame.line}"
        for frame in extract_tb(error.__traceback__)
        if frame.filename not in (__file__, import_module.__code__.co_filename)
        and not frame.filename.startswith("<frozen ")
    )
