"""``python -m tensorwire serve``: run an application on uvicorn."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import tensorwire as tw

from .app import create_app


class NoModels(Exception):
    """The command-line arguments do not name an application, or uvicorn is not installed."""


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    """Return the inputs as outputs, without a copy. This is the model that ``--echo`` adds."""
    return tw.InferResponse(request.inputs)


def run(models: str | None, with_echo: bool, host: str, port: int) -> int:
    """Run the server until it is interrupted, and return the exit status. Raises NoModels."""
    app = load(models, with_echo)
    try:
        uvicorn: Any = import_module("uvicorn")
    except ImportError:
        raise NoModels("uvicorn is not installed: pip install 'tensorwire[serve]'") from None
    uvicorn.run(app, host=host, port=port, access_log=False)
    return 0


def load(models: str | None, with_echo: bool) -> Any:
    """Return the ASGI application to serve.

    Parameters
    ----------
    models : str or None
        ``module:name`` of a mapping of models or of an ASGI application. The default name is
        ``models``.
    with_echo : bool
        Whether to add the model ``echo``.

    Raises
    ------
    NoModels
        There are no models, the module cannot be imported, or the object that ``models`` names is
        neither a mapping nor an application.
    """
    found: Any = {} if models is None else find(models)
    if not isinstance(found, Mapping):
        if with_echo:
            raise NoModels(f"{models} is an application: --echo needs a mapping of models")
        if not callable(found):
            kind = type(found).__name__
            raise NoModels(f"{models} must be a mapping of models or an application, not {kind}")
        return found
    served = {"echo": echo, **found} if with_echo else found
    if not served:
        raise NoModels("no models: pass module:name of a mapping, or --echo")
    try:
        return create_app(served, zero_copy=True)  # uvicorn accepts memoryviews
    except (TypeError, ValueError) as error:  # an invalid model, or an invalid name
        raise NoModels(f"cannot serve {models}: {error}") from error


def find(models: str) -> Any:
    """Import the object that ``module:name`` names."""
    module, _, name = models.partition(":")
    sys.path.insert(0, "")  # find modules in the working directory, as `python -m` does
    try:
        return getattr(import_module(module), name or "models")
    except (ImportError, AttributeError) as error:
        raise NoModels(f"cannot load {models}: {error}") from None
