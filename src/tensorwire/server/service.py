"""Models by name: the endpoints and their replies. It knows no transport."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NamedTuple
from urllib.parse import quote

import tensorwire as tw

from .._codec.messages import Frame
from ..arguments import check_integer, check_seconds, check_type
from ..errors import TensorwireError, format_subject, format_text, format_value
from ..http import EXTENSION, JSON_TYPE
from .framing import frame_headers
from .http import HttpFormat, HttpMessage, Selection
from .model import Function, Model, ServedModel
from .workers import Workers

log = logging.getLogger("tensorwire.server")

VERSION = "1"  # the version of every model
SERVER_ENDPOINTS = {"/v2": "server", "/v2/health/live": "live", "/v2/health/ready": "ready"}
MODEL_ENDPOINTS = {"": "model", "/ready": "ready", "/infer": "infer"}
MODEL_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/(infer|ready))?"
)

RawHeaders = Iterable[tuple[bytes, bytes]]
CLOSE = (b"connection", b"close")  # the server closes the connection after the reply
HttpModel = ServedModel[HttpMessage, Frame]
Route = tuple[str, HttpModel | None]


class Reply(NamedTuple):
    """A complete HTTP response."""

    status: int
    body: bytes | Frame
    """A frame, or JSON."""
    extra_headers: tuple[tuple[bytes, bytes], ...] = ()

    def headers(self) -> list[tuple[bytes, bytes]]:
        if isinstance(self.body, Frame):
            return [*frame_headers(self.body), *self.extra_headers]
        content_length = (b"content-length", b"%d" % len(self.body))
        return [(b"content-type", JSON_TYPE.encode()), content_length, *self.extra_headers]

    def closing(self) -> Reply:
        """Return this reply with the header ``Connection: close``."""
        return self._replace(extra_headers=(*self.extra_headers, CLOSE))


def json_reply(value: Any, status: int = 200, headers: RawHeaders = ()) -> Reply:
    """Return a reply whose body is ``value`` as JSON."""
    return Reply(status, json.dumps(value).encode(), tuple(headers))


def error_reply(message: str, status: int, headers: RawHeaders = ()) -> Reply:
    """Return a reply with the JSON body ``{"error": message}``."""
    return json_reply({"error": message}, status, headers)


def describe_failure(error: BaseException) -> tuple[str, int]:
    """Return the text and the status that a client receives. Log an unexpected exception."""
    if isinstance(error, TensorwireError):
        return str(error), error.status
    log.error("an inference request failed", exc_info=error)
    return "internal server error", 500


class Service:
    """Models by name, and the options they are served with.

    Attributes
    ----------
    lifespan : callable
        Returns an asynchronous context manager, in which the server of the application runs.
    """

    lifespan: Callable[[], AbstractAsyncContextManager[None]] = nullcontext

    def __init__(
        self,
        models: Mapping[str, Function | Model],
        *,
        max_body: int,
        limits: tw.Limits,
        selection: Selection,
        receive_timeout: float | None,
        max_concurrency: int,
        zero_copy: bool,
    ) -> None:
        if selection not in ("spec", "triton"):
            raise ValueError(f"selection must be 'spec' or 'triton', not {format_value(selection)}")
        check_type("models", models, Mapping, "a mapping of names to functions or Models")
        check_type("limits", limits, tw.Limits, "a Limits object")
        self.max_body: int = check_integer("max_body", max_body, minimum=1)
        self.limits: tw.Limits = limits
        self.workers: Workers = Workers(max_concurrency)
        self.receive_timeout: float | None = check_seconds("receive_timeout", receive_timeout)
        self.zero_copy = zero_copy
        self.routes: dict[str, Route] = {
            path: (endpoint, None) for path, endpoint in SERVER_ENDPOINTS.items()
        }
        self.models: dict[str, Model] = {}
        http = HttpFormat(self.max_body, limits, selection)
        for name, model in models.items():
            self._add(name, model if isinstance(model, Model) else Model(model), http)
        # The models by the usual form of the request target, which needs no parsing.
        self.infer_targets: dict[bytes, HttpModel] = {
            quote(path).encode(): model
            for path, (endpoint, model) in self.routes.items()
            if endpoint == "infer" and model is not None
        }

    def _add(self, name: str, model: Model, http: HttpFormat) -> None:
        check_type("the name of a model", name, str, "a str")
        if not name or name.startswith("/") or name.endswith("/"):
            raise ValueError(
                f"a model name must not be empty, or begin or end with /: {format_value(name)}"
            )
        for version in (VERSION, None):
            served = ServedModel(name, version, model, http, self.workers)
            prefix = f"/v2/models/{name}" + (f"/versions/{version}" if version else "")
            for suffix, endpoint in MODEL_ENDPOINTS.items():
                path = prefix + suffix
                if path in self.routes:
                    raise ValueError(
                        f"the name of {format_subject('model', name)} makes {format_text(path)} "
                        "ambiguous"
                    )
                self.routes[path] = endpoint, served
        self.models[name] = model

    def route(self, method: str, path: str) -> HttpModel | Reply:
        """Return the model of an inference request, or the reply to any other request."""
        found = self.routes.get(path) or self.routes.get(path.rstrip("/"))
        if found is None:
            return error_reply(self._not_found(path), 404)
        endpoint, model = found
        methods = ("POST",) if endpoint == "infer" else ("GET", "HEAD")
        if method not in methods:
            allowed = [(b"allow", ", ".join(methods).encode())]
            return error_reply(
                f"{format_text(method)} is not allowed for {format_text(path)}", 405, allowed
            )
        if endpoint == "infer" and model is not None:
            return model
        return json_reply(self.metadata(endpoint, model))

    def _not_found(self, path: str) -> str:
        found = MODEL_PATH.fullmatch(path.rstrip("/"))
        if found is None:
            return f"not found: {format_text(path)}"
        return self.unknown_model(found["model"], found["version"])

    def unknown_model(self, name: str, version: str) -> str:
        """Return the text of the error about a model or a version that does not exist."""
        if name not in self.models:
            return f"{format_subject('model', name)} is not known"
        return (
            f"{format_subject('model', name)} has no version {format_value(version)}, "
            f"only {VERSION!r}"
        )

    @staticmethod
    def metadata(endpoint: str, model: ServedModel[Any, Any] | None) -> dict[str, Any]:
        """Return the value of a metadata or health endpoint."""
        if model is None:
            if endpoint == "server":
                return {"name": "tensorwire", "version": tw.__version__, "extensions": [EXTENSION]}
            return {endpoint: True}
        if endpoint == "ready":
            return {"name": model.name, "ready": True}
        return {
            "name": model.name,
            "versions": [VERSION],
            "platform": "tensorwire",
            "inputs": [_spec_metadata(spec) for spec in model.model.inputs.values()],
            "outputs": [_spec_metadata(spec) for spec in model.model.outputs.values()],
        }


def _spec_metadata(spec: tw.TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}
