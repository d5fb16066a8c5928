"""``python -m tensorwire serve``: the app on uvicorn."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import tensorwire as tw

from .app import create_app


class NoModels(Exception):
    """There is nothing to serve, or no server to do it."""


async def echo(request: tw.InferRequest) -> tw.InferResponse:
    """The built-in model: returns its inputs as outputs, without a copy."""
    return tw.InferResponse(request.inputs)


def run(models: str | None, with_echo: bool, host: str, port: int) -> int:
    """Serve until interrupted; returns the exit status. Raises NoModels."""
    app = load(models, with_echo)
    try:
        uvicorn: Any = import_module("uvicorn")
    except ImportError:
        raise NoModels("uvicorn is not installed: pip install 'tensorwire[serve]'") from None
    uvicorn.run(app, host=host, port=port, access_log=False)
    return 0


def load(models: str | None, with_echo: bool) -> Any:
    """The app for ``module:name``, a mapping of models or an ASGI app, and the echo model.

    Raises NoModels.
    """
    found: Any = {} if models is None else find(models)
    if not isinstance(found, Mapping):
        if with_echo:
            raise NoModels(f"{models} is an app: --echo goes with a mapping of models")
        if not callable(found):
            kind = type(found).__name__
            raise NoModels(f"{models} is neither a mapping of models nor an app, but {kind}")
        return found
    served = {"echo": echo, **found} if with_echo else found
    if not served:
        raise NoModels("no models: give module:name of a mapping, or --echo")
    try:
        return create_app(served)
    except (TypeError, ValueError) as error:  # of a model, or of its name
        raise NoModels(f"cannot serve {models}: {error}") from error


def find(models: str) -> Any:
    module, _, name = models.partition(":")
    sys.path.insert(0, "")  # as `python -m` does for the module that it runs
    try:
        return getattr(import_module(module), name or "models")
    except (ImportError, AttributeError) as error:
        raise NoModels(f"cannot load {models}: {error}") from None
