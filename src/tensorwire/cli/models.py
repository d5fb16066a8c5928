"""The models that ``tensorwire serve`` serves: ``module:name`` to an application."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from traceback import extract_tb
from typing import Any

import tensorwire as tw

from ..server import Model
from ..server.asgi import App
from ..server.model import signature_of, takes_context
from .output import UsageError

# Arguments of the command that are passed to `create_app`, and their names there.
APP_OPTIONS = {
    "max_body": "max_body_nbytes",
    "max_body_memory": "max_body_memory_nbytes",
    "receive_timeout": "receive_timeout",
    "max_concurrency": "max_concurrency",
    "compress_responses": "compress_responses",
    "metrics": "metrics",
}


def create(chosen: argparse.Namespace) -> tuple[Any, str, str | None]:
    """Return the application, the names of its models, and why InferProtocol cannot serve them.

    The reason is None for an application of ``create_app``. Raises UsageError, also for errors of
    the module.
    """
    try:
        app = make_app(chosen)
    except UsageError:
        raise
    except BaseException as error:  # a module may raise SystemExit
        problem = f"{describe(error)}{format_failed_lines(error)}"
        raise UsageError(f"cannot load {chosen.models or 'echo'}: {problem}") from None
    if type(app) is App:  # InferProtocol and gRPC do not call it, so it must not be a subclass
        return app, ", ".join(sorted(app.models)), None
    problem = "was not created by create_app"
    if chosen.grpc_port is not None:
        raise UsageError(f"{chosen.models} {problem}, which --grpc-port requires")
    return app, chosen.models, f"the application {problem}"


def echo(request: tw.InferRequest) -> tw.InferResponse:
    """Return the inputs as outputs, without a copy. This is the model that ``--echo`` adds."""
    return tw.InferResponse(request.inputs)


def make_app(chosen: argparse.Namespace) -> Any:
    """Return the ASGI application to serve. Raises UsageError, and any other exception."""
    models = chosen.models
    options = {n: value for n in APP_OPTIONS if (value := getattr(chosen, n)) is not None}
    found: Any = {} if models is None else find(models)
    takes = partial(takes_arguments, found)
    is_model = isinstance(found, Model) or takes_context(found)
    if is_model or (takes(1) and not takes(0) and not takes(3)):
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
        arguments = {APP_OPTIONS[name]: value for name, value in options.items()}
        return App(served, zero_copy=True, **arguments)  # uvicorn accepts memoryviews
    except ImportError as error:
        raise UsageError(f"--metrics: {error}") from None
    except (TypeError, ValueError) as error:  # an invalid model, name or limit
        raise UsageError(f"cannot serve {models or 'echo'}: {error}") from error


def takes_arguments(function: Any, n: int) -> bool:
    """Return whether a function accepts n arguments. It is True if its signature is unknown."""
    try:
        signature_of(function).bind(*range(n))
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
