"""Models by name: the endpoints of HTTP and their replies, without I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, final
from urllib.parse import quote

import numpy as np

import tensorwire as tw

from .._codec.limits import UNLIMITED
from .._codec.messages.frame import Frame
from .._codec.signatures import Nonfinite, Selection
from ..arguments import check_integer, check_seconds, check_type
from ..errors import TensorwireError, format_names, format_subject, format_text, format_value
from ..http import EXTENSION, HEADER_LENGTH, JSON_TYPE
from ..sizes import DEFAULT_MAX_BODY_NBYTES
from ..threads import N_THREADS, InThread, Threads
from .body import DEFAULT_RECEIVE_TIMEOUT, RequestBody
from .body_memory import BodyMemory, default_nbytes
from .concurrency import DEFAULT_MAX_CONCURRENCY, Concurrency
from .errors import RequestError, log
from .framing import frame_headers
from .inference import MessageFormat, ServedModel
from .model import VERSION, Model, ModelFunction, Models
from .statistics import Statistics

SERVER_ENDPOINTS = {
    "/v2": "server",
    "/v2/health/live": "live",
    "/v2/health/ready": "ready",
    "/v2/models/stats": "stats",
    "/v2/repository/index": "index",
}
MODEL_ENDPOINTS = {
    "": "model",
    "/ready": "ready",
    "/infer": "infer",
    "/config": "config",
    "/stats": "stats",
}
POST_ENDPOINTS = ("infer", "index")
ALL_MODELS = (("stats", None), ("index", None), ("metrics", None))
MODEL_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?(/(infer|ready|config|stats))?"
)
# The limits of a request besides those of OverloadedError.
LIMITS_BY_STATUS = {408: "receive_timeout", 413: "max_body_nbytes", 414: "headers", 431: "headers"}
MAX_BATCH_SIZE = 2**31 - 1  # the largest that Triton's ModelConfig can have
# Freed blocks of less than this size are kept for later requests. By default, glibc returns blocks
# of 128 KiB or more to the kernel. To clear and map new pages for each request of 1 MB would take
# longer than everything else. Larger blocks have huge pages, which take less time.
_KEPT_NBYTES = 4 << 20

RawHeaders = Iterable[tuple[bytes, bytes]]
CLOSE = (b"connection", b"close")  # the server closes the connection after the reply
HANDSHAKE_SECONDS = 10.0  # in which a TLS handshake must end
FOREVER_SECONDS = 1e9  # for libraries that require a limit
GRACE_SECONDS = 5.0
"""Time that a client has during a shutdown to send the rest of a request, or to read a response."""


class HttpFormat(MessageFormat[RequestBody, tw.Frame]):
    """The messages of HTTP."""

    reading_nbytes: Callable[..., int] = staticmethod(RequestBody.reading_nbytes)

    async def read_slowly(
        self, received: RequestBody, decode: Callable[[], None], run: InThread
    ) -> None:
        await received.read_slowly(decode, run=run)

    def decode(self, received: RequestBody, model: Model) -> tw.InferRequest:
        if received.framing.header_length == 0 and model.raw_input is None:
            raise RequestError(
                f"{HEADER_LENGTH} is 0, which means a raw binary request, but the model does not "
                "declare exactly one input"
            )
        return received.decode(self.limits, model.raw_input)

    def request_id(self, source: RawHeaders) -> str:
        found = (value for name, value in source if name == b"x-request-id")
        return next(found, b"").decode("latin-1")

    def is_slow_to_encode(self, nbytes: int, request: tw.InferRequest) -> bool:
        """Writing JSON is slow. Binary data is sent from the memory of the arrays."""
        if request.outputs:
            return not all(output.binary for output in request.outputs)
        return request.parameters.get("binary_data_output") is not True


@final
@dataclass(slots=True, eq=False)
class Reply:
    """A complete HTTP response."""

    status: int
    body: bytes | Frame
    """A frame, or bytes, which are usually JSON or a compressed frame."""
    extra_headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: str = JSON_TYPE

    def headers(self) -> list[tuple[bytes, bytes]]:
        if type(self.body) is Frame:
            return [*frame_headers(self.body), *self.extra_headers]
        content_length = (b"content-length", b"%d" % len(self.body))
        content_type = (b"content-type", self.content_type.encode())
        return [content_type, content_length, *self.extra_headers]

    def chunks(self, max_nbytes: int) -> Iterator[memoryview]:
        if isinstance(self.body, Frame):
            return self.body.chunks(max_nbytes)
        view = memoryview(self.body)
        return (view[i : i + max_nbytes] for i in range(0, len(view), max_nbytes))

    def closing(self) -> Reply:
        return replace(self, extra_headers=(*self.extra_headers, CLOSE))


class DeferredReply(NamedTuple):
    """A reply without inference, which is large or takes long.

    It is made after the replies to earlier requests of the connection were sent, because a client
    may send thousands of requests at once.
    """

    make: Callable[[], Reply]
    is_slow: bool
    """Whether it takes up to 1 ms for each model, and is made in a thread."""


Route = ServedModel | Reply | DeferredReply
"""What answers a request: a model, or a reply without inference."""


def json_reply(value: Any, status: int = 200, headers: RawHeaders = ()) -> Reply:
    return Reply(status, json.dumps(value).encode(), tuple(headers))


def error_reply(message: str, status: int, headers: RawHeaders = ()) -> Reply:
    """Return a reply with the JSON body ``{"error": message}``."""
    return json_reply({"error": message}, status, headers)


class Service:
    """Models by name, and the options they are served with: the parameters of ``App``.

    All transports share one object. Those with the messages of HTTP make an ``Exchange`` for each
    request, and others an ``Inference`` with a ``MessageFormat`` of their own.
    """

    def __init__(
        self,
        models: Models,
        *,
        max_body_nbytes: int = DEFAULT_MAX_BODY_NBYTES,
        limits: tw.Limits | None = None,
        selection: Selection = "spec",
        nonfinite: Nonfinite = "null",
        receive_timeout: float | None = DEFAULT_RECEIVE_TIMEOUT,
        max_concurrency: int = DEFAULT_MAX_CONCURRENCY,
        zero_copy: bool = False,
        compress_responses: bool = False,
        metrics: bool = False,
        max_body_memory_nbytes: int | None = None,
    ) -> None:
        # Otherwise, an invalid option would be an error of every response.
        tw.encode_response(tw.InferResponse([]), selection=selection, nonfinite=nonfinite)
        check_type("models", models, Mapping, "a mapping of names to functions or Models")
        limits = tw.Limits() if limits is None else limits
        check_type("limits", limits, tw.Limits, "a Limits object")
        self.max_body_nbytes: int = check_integer("max_body_nbytes", max_body_nbytes, minimum=1)
        self.limits: tw.Limits = limits
        self.threads: Threads = Threads(N_THREADS)
        self.concurrency: Concurrency = Concurrency(max_concurrency)
        if max_body_memory_nbytes is None:
            max_body_memory_nbytes = default_nbytes()
        check_integer("max_body_memory_nbytes", max_body_memory_nbytes, minimum=1)
        self.body_memory: BodyMemory = BodyMemory(max_body_memory_nbytes)
        self.receive_timeout: float | None = check_seconds("receive_timeout", receive_timeout)
        self.zero_copy = zero_copy
        self.compress_responses = compress_responses
        self.metrics: ModuleType | None = None
        if metrics:
            self.metrics = import_module(".metrics", __package__)  # prometheus_client is optional
        self.http_format: HttpFormat = HttpFormat(
            self.threads,
            self.concurrency,
            limits,
            # A partial object would make a dict for each call.
            lambda response, request: tw.encode_response(
                response, request, selection=selection, nonfinite=nonfinite, limits=UNLIMITED
            ),
        )
        self.routes: dict[str, tuple[str, ServedModel | None]] = {}  # endpoints and models
        self.served: dict[tuple[str, str], ServedModel] = {}  # by name and version, or ""
        self.models: dict[str, Model] = {}
        # The models by the usual form of the request target, which needs no parsing.
        self.infer_routes: dict[bytes, ServedModel] = {}
        for name, model in models.items():
            self._add(name, model)
        for path, endpoint in SERVER_ENDPOINTS.items():
            self.routes.setdefault(path, (endpoint, None))  # a model may have the name "stats"
        if metrics:
            self.routes["/metrics"] = "metrics", None
        np.empty(_KEPT_NBYTES, np.uint8)  # glibc keeps blocks smaller than the largest freed one

    def _add(self, name: str, function: ModelFunction | Model) -> None:
        check_type("the name of a model", name, str, "a str")
        if not isinstance(function, Model) and not callable(function):
            raise TypeError(
                f"{format_subject('model', name)} must be a function or a Model, not "
                f"{type(function).__name__}"
            )
        model = function if isinstance(function, Model) else Model(function)
        if not name or name.startswith("/") or name.endswith("/"):
            raise ValueError(
                f"a model name must not be empty, or begin or end with /: {format_value(name)}"
            )
        observe = None
        if self.metrics is not None:
            self.metrics.add_model(name)
            observe = partial(self.metrics.observe, name)
        statistics = Statistics(observe)
        for version in (VERSION, None):
            served = ServedModel(name, version, model, statistics)
            self.served[name, version or ""] = served
            prefix = f"/v2/models/{name}" + (f"/versions/{version}" if version else "")
            for suffix, endpoint in MODEL_ENDPOINTS.items():
                path = prefix + suffix
                if path in self.routes:
                    raise ValueError(
                        f"the name of {format_subject('model', name)} makes {format_text(path)} "
                        "ambiguous"
                    )
                self.routes[path] = endpoint, served
            self.infer_routes[quote(f"{prefix}/infer").encode()] = served
        self.models[name] = model

    def route(self, method: str, path: str) -> Route:
        """Return the model of an inference request, or the reply to any other request.

        The path is percent-decoded, and has no query.
        """
        found = self.routes.get(path) or self.routes.get(path.rstrip("/"))
        if found is None:
            return error_reply(self._not_found(path), 404)
        endpoint, served = found
        methods = ("POST",) if endpoint in POST_ENDPOINTS else ("GET", "HEAD")
        if method not in methods:
            allowed = [(b"allow", ", ".join(methods).encode())]
            return error_reply(
                f"{format_text(method)} is not allowed for {format_text(path)}", 405, allowed
            )
        if endpoint == "infer" and served is not None:
            return served

        def make() -> Reply:
            if endpoint == "metrics":
                return self._metrics_reply()
            return json_reply(self.describe(endpoint, served))

        return DeferredReply(make, is_slow=found in ALL_MODELS)

    def failure_reply(self, error: BaseException) -> Reply:
        return error_reply(*self.describe_failure(error))

    def describe_failure(self, error: BaseException) -> tuple[str, int]:
        """Return the text and the status that a client receives.

        Log an unexpected exception, and count a request that a limit has rejected.
        """
        if not isinstance(error, TensorwireError):
            log.error("an inference request failed", exc_info=error)
            return "internal server error", 500
        limit = getattr(error, "limit", None) or LIMITS_BY_STATUS.get(error.status)
        if limit and self.metrics is not None and not isinstance(error, RequestError):
            self.metrics.count_rejection(limit)
        return str(error), error.status

    def _metrics_reply(self) -> Reply:
        assert self.metrics is not None
        try:
            text, content_type = self.metrics.exposition()
        except Exception:  # of a metric of the program, or of the folder of several processes
            log.exception("the metrics cannot be read")
            return error_reply("internal server error", 500)
        return Reply(200, text, content_type=content_type)

    def _not_found(self, path: str) -> str:
        found = MODEL_PATH.fullmatch(path.rstrip("/"))
        if found is None:
            return f"not found: {format_text(path)}"
        return self.unknown_model(found["model"], found["version"])

    def unknown_model(self, name: str, version: str) -> str:
        """Return the text of the error about a model or a version that does not exist."""
        if name not in self.models:
            names = format_names(list(self.models))
            return f"{format_subject('model', name)} is not known: the models are {names}"
        return (
            f"{format_subject('model', name)} has no version {format_value(version)}, "
            f"only {VERSION!r}"
        )

    def describe(self, endpoint: str, served: ServedModel | None) -> Any:
        """Return the value of an endpoint without inference, of the server or of a model."""
        if endpoint == "stats":
            models = [self.served[name, ""] for name in self.models] if served is None else [served]
            return {
                "model_stats": [
                    {"name": each.name, "version": VERSION, **each.statistics.describe()}
                    for each in models
                ]
            }
        if served is not None:
            return _describe_model(endpoint, served.name, served.model)
        if endpoint == "server":
            extensions = [EXTENSION, "statistics"]
            return {"name": "tensorwire", "version": tw.__version__, "extensions": extensions}
        if endpoint == "index":
            state = {"version": VERSION, "state": "READY", "reason": ""}
            return [{"name": each, **state} for each in self.models]
        return {endpoint: True}


def _describe_model(endpoint: str, name: str, model: Model) -> dict[str, Any]:
    if endpoint == "ready":
        return {"name": name, "ready": True}
    if endpoint == "config":
        return _describe_config(name, model)
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "tensorwire",
        "inputs": [_describe_tensor(spec) for spec in model.inputs.values()],
        "outputs": [_describe_tensor(spec) for spec in model.outputs.values()],
    }


def _describe_tensor(spec: tw.TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _describe_config(name: str, model: Model) -> dict[str, Any]:
    """Return the fields of Triton's ModelConfig that are declared.

    There, the shapes of a model with a maximum batch size do not contain the batch dimension.
    """
    specs = [*model.inputs.values(), *model.outputs.values()]
    is_batched = bool(specs) and all(spec.batching for spec in specs)
    max_batch_size = model.max_batch_size or (MAX_BATCH_SIZE if is_batched else 0)

    def describe(spec: tw.TensorSpec) -> dict[str, Any]:
        datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
        dims = spec.dims if is_batched else spec.shape
        return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": list(dims)}

    return {
        "name": name,
        "platform": "tensorwire",
        "backend": "tensorwire",
        "max_batch_size": min(max_batch_size, MAX_BATCH_SIZE),
        "input": [{**describe(spec), "optional": False} for spec in model.inputs.values()],
        "output": [describe(spec) for spec in model.outputs.values()],
        "parameters": {key: {"string_value": text} for key, text in model.parameters.items()},
    }
