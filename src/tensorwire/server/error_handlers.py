"""Error responses of routes of web frameworks, as clients of the protocol read them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import EncodeError, TensorwireError
from .errors import RequestError, log

Application = TypeVar("Application")


def install_error_handlers(app: Application) -> Application:
    """Answer the errors of tensorwire in the routes of an application.

    The response is JSON, ``{"error": text}``, which clients of the protocol read. It has the text
    and the ``status`` of a ``RequestError``, and of an error in the request: an invalid message, a
    missing input, elements that are not UTF-8 when they are read as text. Any other error of
    tensorwire, such as an ``EncodeError`` or the failed call of a client, is logged with its
    traceback, and its response has status 500 without details. Other exceptions are left to the
    framework.

    Parameters
    ----------
    app : Starlette, FastAPI, Flask or callable
        The application, or a Flask blueprint. In Django, this function is a middleware:
        ``MIDDLEWARE = [..., "tensorwire.server.install_error_handlers"]``.

    Returns
    -------
    object
        The application; in Django, the next middleware with a hook for exceptions.

    Raises
    ------
    TypeError
        ``app`` is none of these.

    Examples
    --------
    >>> from fastapi import FastAPI
    >>> from tensorwire.server import install_error_handlers
    >>> app = install_error_handlers(FastAPI())
    """
    if hasattr(app, "add_exception_handler"):  # Starlette and FastAPI
        from .starlette import InvalidRequestError  # noqa: PLC0415 - optional

        for kind in (TensorwireError, InvalidRequestError):
            app.add_exception_handler(kind, _respond_in_starlette)
        return app
    if hasattr(app, "register_error_handler"):  # Flask
        app.register_error_handler(TensorwireError, describe_error)
        return app
    if inspect.isroutine(app) and "django.core.handlers" in sys.modules:
        middleware: Application = _django_middleware(app)
        return middleware
    raise TypeError(
        f"app must be an application of Starlette, FastAPI or Flask, not {type(app).__name__}; in "
        f"Django, install_error_handlers is a middleware"
    )


def describe_error(error: TensorwireError) -> tuple[dict[str, str], int]:
    """Return the JSON value and the status that a client receives. Log a mistake of the server."""
    is_in_request = error.status < 500 and error.url is None and not isinstance(error, EncodeError)
    if is_in_request or isinstance(error, RequestError):
        return {"error": str(error)}, error.status
    log.error("a request failed", exc_info=error)
    return {"error": "internal server error"}, 500


def _respond_in_starlette(request: Any, error: Any) -> Any:
    from starlette.responses import JSONResponse  # noqa: PLC0415 - optional

    if isinstance(error, TensorwireError):
        return JSONResponse(*describe_error(error))
    return JSONResponse({"error": error.detail}, error.status_code)  # an InvalidRequestError


def _django_middleware(get_response: Callable[..., Any]) -> Any:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction  # noqa: PLC0415 - Django's
    from django.http import JsonResponse  # noqa: PLC0415 - optional

    def process_exception(request: Any, error: Exception) -> Any:
        if isinstance(error, TensorwireError):
            content, status = describe_error(error)
            return JsonResponse(content, status=status)
        return None

    def middleware(request: Any) -> Any:
        return get_response(request)  # a coroutine if Django runs asynchronously

    if iscoroutinefunction(get_response):
        markcoroutinefunction(middleware)
    vars(middleware)["process_exception"] = process_exception
    return middleware


# Django reads these attributes of a middleware.
vars(install_error_handlers).update(sync_capable=True, async_capable=True)
