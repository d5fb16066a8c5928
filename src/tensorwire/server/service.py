"""Models by name: the endpoints and their replies. It knows no transport."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import tensorwire as tw

from ..errors import format_text, format_value, subject
from ..http import EXTENSION
from .body import ReceiveTimeouts
from .model import Function, Model, ServedModel

VERSION = "1"  # the version of every model
SERVER_ENDPOINTS = {"/v2": "server", "/v2/health/live": "live", "/v2/health/ready": "ready"}
MODEL_ENDPOINTS = {"": "model", "/ready": "ready", "/infer": "infer"}
MODEL_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/(infer|ready))?"
)

RawHeaders = Iterable[tuple[bytes, bytes]]
CLOSE = (b"connection", b"close")  # the server closes the connection after the reply
Route = tuple[str, ServedModel | None]


class Reply(NamedTuple):
    """A complete HTTP response with a small body."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def json_reply(value: Any, status: int = 200, headers: RawHeaders = ()) -> Reply:
    """Return a reply whose body is ``value`` as JSON."""
    body = json.dumps(value).encode()
    content_length = (b"content-length", b"%d" % len(body))
    return Reply(status, [(b"content-type", b"application/json"), content_length, *headers], body)


def error_reply(message: str, status: int, headers: RawHeaders = ()) -> Reply:
    """Return a reply with the JSON body ``{"error": message}``."""
    return json_reply({"error": message}, status, headers)


class Service:
    """Models by name, and the options they are served with."""

    def __init__(
        self,
        models: Mapping[str, Function | Model],
        *,
        max_body: int | None,
        limits: tw.Limits,
        selection: str,
        receive_timeout: float | None,
        zero_copy: bool,
    ) -> None:
        if selection not in ("spec", "triton"):
            raise ValueError(f"selection must be 'spec' or 'triton', not {format_value(selection)}")
        self.max_body = max_body
        self.receive_timeouts = ReceiveTimeouts(receive_timeout)
        self.zero_copy = zero_copy
        self.routes: dict[str, Route] = {
            path: (endpoint, None) for path, endpoint in SERVER_ENDPOINTS.items()
        }
        for name, model in models.items():
            served = model if isinstance(model, Model) else Model(model)
            self._add(ServedModel(name, served, limits, selection))
        self._infer_paths = {
            path: model for path, (endpoint, model) in self.routes.items() if endpoint == "infer"
        }
        # The models by the usual form of the request target, which needs no parsing.
        self.infer_targets = {quote(path).encode(): m for path, m in self._infer_paths.items()}

    def _add(self, model: ServedModel) -> None:
        name = model.name
        if not name or name.startswith("/") or name.endswith("/"):
            raise ValueError(
                f"a model name must not be empty, or begin or end with /: {format_value(name)}"
            )
        for version in ("", f"/versions/{VERSION}"):
            for suffix, endpoint in MODEL_ENDPOINTS.items():
                path = f"/v2/models/{name}{version}{suffix}"
                if path in self.routes:
                    raise ValueError(
                        f"the name of {subject('model', name)} makes {format_text(path)} ambiguous"
                    )
                self.routes[path] = endpoint, model

    def infer_model(self, method: str, path: str) -> ServedModel | None:
        """Return the model of an inference request; None for any other request."""
        if method != "POST":
            return None
        return self._infer_paths.get(path) or self._infer_paths.get(path.rstrip("/"))

    def reply(self, method: str, path: str) -> Reply:
        """Return the reply to a request that is not an inference request."""
        route = self.routes.get(path.rstrip("/"))
        if route is None:
            return error_reply(self._not_found(path), 404)
        endpoint, model = route
        methods = ("POST",) if endpoint == "infer" else ("GET", "HEAD")
        if method not in methods:
            allowed = [(b"allow", ", ".join(methods).encode())]
            return error_reply(
                f"{format_text(method)} is not allowed for {format_text(path)}", 405, allowed
            )
        return json_reply(self._metadata(endpoint, model))

    def _not_found(self, path: str) -> str:
        found = MODEL_PATH.fullmatch(path.rstrip("/"))
        if found is None:
            return f"not found: {format_text(path)}"
        name, version = found["model"], found["version"]
        if f"/v2/models/{name}" not in self.routes:
            return f"{subject('model', name)} is not known"
        return f"{subject('model', name)} has no version {format_value(version)}, only {VERSION!r}"

    @staticmethod
    def _metadata(endpoint: str, model: ServedModel | None) -> dict[str, Any]:
        """Return the JSON value of a metadata or health endpoint."""
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
