"""``tensorwire serve``: run an application on uvicorn, and its models on a gRPC server."""

from __future__ import annotations

import inspect
import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from traceback import extract_tb
from typing import Any, NamedTuple

import tensorwire as tw

from .app import App, create_app
from .model import Model

FAST_PROTOCOL = "tensorwire.server:InferProtocol"
# The environment variable that passes the options to the processes of the server.
_OPTIONS_VARIABLE = "_TENSORWIRE_SERVE"


class InvalidArgumentsError(Exception):
    """The command-line arguments are invalid, or a package is not installed."""


class Options(NamedTuple):
    """What to serve."""

    models: str | None
    """``module:name`` of a mapping of models or of an ASGI application, by default ``models``."""
    with_echo: bool
    """Whether to add the model ``echo``."""
    max_body: int | None = None
    """Maximum length of a request body in bytes, if the application is created from a mapping."""
    receive_timeout: float | None = None
    """Time in seconds in which a body must arrive, if the application is created."""
    max_concurrency: int | None = None
    """Maximum number of requests in progress, if the application is created."""
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
        There are no models, they cannot be loaded, a file of TLS cannot be read, the port for gRPC
        is in use, or a package is not installed.
    """
    try:
        uvicorn: Any = import_module("uvicorn")
    except ImportError:
        raise InvalidArgumentsError(
            "uvicorn is not installed: pip install 'tensorwire[serve]'"
        ) from None
    for file in ("ssl_certfile", "ssl_keyfile"):
        check_readable(f"--{file.replace('_', '-')}", uvicorn_options.get(file))
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
    with reserved or nullcontext():
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


def check_readable(option: str, path: str | None) -> None:
    """Raise InvalidArgumentsError if a file cannot be read.

    The error of uvicorn does not name the file.
    """
    if path is None:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InvalidArgumentsError(f"{option}: cannot read {path}: {error.strerror}") from None


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
        neither a mapping nor an application.
    """
    models = options.models
    found: Any = {} if models is None else find(models)
    if not isinstance(found, Mapping):
        if not callable(found):
            kind = type(found).__name__
            raise InvalidArgumentsError(
                f"{models} must be a mapping of models or an application, not {kind}"
            )
        for option, value in (
            ("--echo", options.with_echo or None),
            ("--max-body", options.max_body),
            ("--receive-timeout", options.receive_timeout),
            ("--max-concurrency", options.max_concurrency),
        ):
            if value is not None:
                raise InvalidArgumentsError(
                    f"{models} is an application: {option} requires a mapping of models"
                )
        if not takes_three_arguments(found):
            raise InvalidArgumentsError(
                f"{models} is not an application: it does not take three arguments. If it is a "
                "model, pass a mapping of names to models"
            )
        return found
    served = {"echo": Model(echo, in_event_loop=True), **found} if options.with_echo else found
    if not served:
        raise InvalidArgumentsError("no models: pass module:name of a mapping, or --echo")
    limits = {
        "max_body": options.max_body,
        "receive_timeout": options.receive_timeout,
        "max_concurrency": options.max_concurrency,
    }
    given: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    try:
        return create_app(served, zero_copy=True, **given)  # uvicorn accepts memoryviews
    except (TypeError, ValueError) as error:  # an invalid model, name or limit
        raise InvalidArgumentsError(f"cannot serve {models or 'echo'}: {error}") from error


def takes_three_arguments(application: Callable[..., Any]) -> bool:
    """Return whether an object accepts three arguments, as ASGI applications do.

    The result is True if its signature is unknown.
    """
    try:
        inspect.signature(application).bind("scope", "receive", "send")
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def find(models: str) -> Any:
    """Import the object that ``module:name`` names."""
    module, _, name = models.partition(":")
    try:
        found = import_module(module)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}{format_failed_lines(error)}"
        raise InvalidArgumentsError(f"cannot load {models}: {problem}") from None
    try:
        return getattr(found, name or "models")
    except AttributeError as error:
        raise InvalidArgumentsError(f"cannot load {models}: {error}") from None


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
