"""A small server of the protocol: models behind one ASGI application."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

import tensorwire as tw

from ..http import EXTENSION
from .exchange import (
    DEFAULT_MAX_BODY,
    ClientDisconnected,
    RawHeaders,
    Receive,
    Scope,
    Send,
    drain,
    read_request,
    send_error,
    send_frame,
    send_json,
)

log = logging.getLogger("tensorwire.asgi")

Result = tw.InferResponse | Mapping[str, Any]
Declared = dict[str, tw.TensorSpec]
Function = Callable[[tw.InferRequest], Result | Awaitable[Result]]

SERVER_PATHS = {"/v2": "server", "/v2/health/live": "live", "/v2/health/ready": "ready"}
MODEL_PATH = re.compile(r"/v2/models/(?P<name>.+?)(/versions/[^/]+)?(/(?P<wanted>infer|ready))?")


class Model:
    """A function, and what it declares of its inputs and outputs.

    ``function``: ``InferRequest -> InferResponse`` or ``{output name: array}``. An async one is
    awaited, any other runs in a thread. ``inputs`` and ``outputs``: what is declared is checked, of
    a request with an answer of 400, of a response with one of 500; empty means anything goes.
    ``batching``: every declared shape has a batch dimension in front of its dims.
    One declared input is what a raw binary request needs. Raises TypeError for what is no function,
    ValueError for a name that is declared twice.
    """

    def __init__(
        self,
        function: Function,
        inputs: Sequence[tw.TensorSpec] = (),
        outputs: Sequence[tw.TensorSpec] = (),
        batching: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(f"a model is a function or a Model, not {type(function).__name__}")
        self.function = function
        self.inputs = _declared(inputs, batching)
        self.outputs = _declared(outputs, batching)
        self.raw_input = next(iter(self.inputs.values())) if len(self.inputs) == 1 else None
        call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def check(self, request: tw.InferRequest) -> None:
        """Raise WrongInput when the request is not what is declared."""
        if self.inputs:
            check_inputs(request.inputs, self.inputs)

    def start(self, request: tw.InferRequest) -> Awaitable[Any]:
        """Call the function; what it returns is to be awaited."""
        if self.is_async:
            return self.function(request)  # type: ignore[return-value]
        return self.in_thread(request)

    async def in_thread(self, request: tw.InferRequest) -> Any:
        """Call a function that is not async; one around an async one returns what is to await."""
        run = copy_context().run  # so that the thread sees what a middleware has set
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(None, run, self.run, request)
        return await result if inspect.isawaitable(result) else result

    def run(self, request: tw.InferRequest) -> Any:
        """Call a function that is not async, in its thread."""
        try:
            return self.function(request)
        except StopIteration as error:  # which no future can hold: nobody would be told
            raise RuntimeError("the model raised StopIteration") from error

    def finish(self, result: Any) -> tw.InferResponse:
        """The response of what the function returned. Raises WrongOutput."""
        response = as_response(result)
        if self.outputs:
            check_outputs(response.outputs, self.outputs)
        return response


def _declared(specs: Sequence[tw.TensorSpec], batching: bool) -> Declared:
    declared: Declared = {}
    for spec in specs:
        if spec.name in declared:
            raise ValueError(f"tensor {spec.name!r} is declared twice")
        is_batched = spec.batching or batching
        declared[spec.name] = tw.TensorSpec(spec.name, spec.datatype, spec.dims, is_batched)
    return declared


class WrongInput(tw.TensorwireError):
    """A request that is well-formed, but not what the model declares."""

    status = 400


class WrongOutput(tw.TensorwireError):
    """A model that returned what it does not declare, or nothing of the kind."""


def as_response(result: Any) -> tw.InferResponse:
    if isinstance(result, tw.InferResponse):
        return result
    if not isinstance(result, Mapping):
        raise WrongOutput(
            f"a model returns an InferResponse or a mapping of arrays, not {type(result).__name__}"
        )
    return tw.InferResponse(
        value if isinstance(value, tw.Tensor) else tw.Tensor(name, value)
        for name, value in result.items()
    )


def check_inputs(tensors: Sequence[tw.Tensor], declared: Declared) -> None:
    """Every declared input once, as declared, and no other."""
    for tensor in tensors:  # whose names differ: the decoder has seen to it
        spec = declared.get(tensor.name)
        if spec is None:
            raise WrongInput(f"unexpected input {tensor.name!r}: the model takes {list(declared)}")
        if not spec.accepts(tensor):
            raise WrongInput(f"input {tensor.name!r} is {mismatch(tensor, spec)}")
    if len(tensors) < len(declared):
        missing = declared.keys() - {tensor.name for tensor in tensors}
        raise WrongInput(f"input {min(missing)!r} is missing")


def check_outputs(tensors: Sequence[tw.Tensor], declared: Declared) -> None:
    """Only declared outputs, as declared; not all of them need be there."""
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None or not spec.accepts(tensor):
            problem = "not declared" if spec is None else mismatch(tensor, spec)
            raise WrongOutput(f"output {tensor.name!r} of the model is {problem}")


def mismatch(tensor: tw.Tensor, spec: tw.TensorSpec) -> str:
    """In words that follow the tensor's name."""
    return f"{tensor.datatype} {list(tensor.shape)}, {spec.datatype} {list(spec.shape)} is declared"


class App:
    """The ASGI application; see ``create_app``."""

    def __init__(
        self,
        models: Mapping[str, Function | Model],
        *,
        max_body: int,
        limits: tw.Limits,
        selection: str,
    ) -> None:
        if selection not in ("spec", "triton"):  # which encode_response would refuse every time
            raise ValueError(f"selection is 'spec' or 'triton', not {selection!r}")
        self.models = {
            name: model if isinstance(model, Model) else Model(model)
            for name, model in models.items()
        }
        for name in self.models:
            if self.route(f"/v2/models/{name}") != ("model", name):
                raise ValueError(f"no path reaches a model called {name!r}")
        self.infer_paths = {f"/v2/models/{name}/infer": name for name in self.models}
        self.max_body = max_body
        self.limits = limits
        self.selection: Any = selection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            name = self.infer_paths.get(scope["path"])
            if name is None or scope["method"] != "POST":
                name = await self.others(scope, receive, send)
            if name is not None:
                await self.infer(name, scope, receive, send)
        elif scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def infer(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an inference request, or say why not."""
        model = self.models[name]
        try:
            request = await read_request(
                scope,
                receive,
                max_body=self.max_body,
                limits=self.limits,
                raw_input=model.raw_input,
            )
            request.model_name = name
            model.check(request)
            try:
                response = model.finish(await model.start(request))
            except Exception as error:
                raise failure(name, error) from None
            frame = self.encode(name, response, request)
        except ClientDisconnected:
            return
        except tw.TensorwireError as error:
            await send_error(send, str(error), error.status)
        else:
            await send_frame(send, frame)

    def encode(self, name: str, response: tw.InferResponse, request: tw.InferRequest) -> tw.Frame:
        """What the model answers, as the request wants it."""
        if response.model_name is None:
            response.model_name = name
        try:
            return tw.encode_response(response, request, selection=self.selection)
        except Exception as error:
            if isinstance(error, tw.EncodeError) and error.status == 400:  # the client's choice
                raise
            raise failure(name, error) from None

    async def others(self, scope: Scope, receive: Receive, send: Send) -> str | None:
        """Answer whatever is not an inference request; else the name of its model."""
        method, path = scope["method"], scope["path"].removeprefix(scope.get("root_path", ""))
        route = self.route(path)
        if route is None:
            await refuse(receive, send, f"there is nothing at {scope['path']}", 404)
            return None
        wanted, name = route
        if name is not None and name not in self.models:
            await refuse(receive, send, f"model {name!r} is not known", 404)
            return None
        methods = ("POST",) if wanted == "infer" else ("GET", "HEAD")
        if method not in methods:
            allowed = [(b"allow", ", ".join(methods).encode())]
            await refuse(receive, send, f"{method} is not for {scope['path']}", 405, allowed)
            return None
        if wanted == "infer":
            return name
        await send_json(send, self.about(wanted, name))
        return None

    @staticmethod
    def route(path: str) -> tuple[str, str | None] | None:
        """What a path asks for, and of which model."""
        path = path.rstrip("/")
        if path in SERVER_PATHS:
            return SERVER_PATHS[path], None
        found = MODEL_PATH.fullmatch(path)
        if found is None:
            return None
        return found["wanted"] or "model", found["name"]

    def about(self, wanted: str, name: str | None) -> dict[str, Any]:
        """The JSON that answers a GET."""
        if name is None:
            about = {"name": "tensorwire", "version": tw.__version__, "extensions": [EXTENSION]}
            return about if wanted == "server" else {wanted: True}
        return (
            metadata(name, self.models[name]) if wanted == "model" else {"name": name, wanted: True}
        )


def failure(name: str, error: Exception) -> WrongOutput:
    """What the client is told of a model that failed; the log has the rest."""
    if isinstance(error, WrongOutput):
        log.error("model %r: %s", name, error)
        return error
    log.error("model %r failed", name, exc_info=error)
    return WrongOutput(f"model {name!r} failed")


async def refuse(
    receive: Receive, send: Send, message: str, status: int, headers: RawHeaders = ()
) -> None:
    """Answer with an error before the body was looked at."""
    await drain(receive)
    await send_error(send, message, status, headers)


async def lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def metadata(name: str, model: Model) -> dict[str, Any]:
    return {
        "name": name,
        "versions": ["1"],
        "platform": "tensorwire",
        "inputs": [described(spec) for spec in model.inputs.values()],
        "outputs": [described(spec) for spec in model.outputs.values()],
    }


def described(spec: tw.TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def create_app(
    models: Mapping[str, Function | Model],
    *,
    max_body: int = DEFAULT_MAX_BODY,
    limits: tw.Limits | None = None,
    selection: str = "spec",
) -> App:
    """An ASGI application that serves ``models`` by name, for uvicorn, granian and the like.

    A model is a callable (sync, run in a thread; or async) ``InferRequest -> InferResponse`` or
    ``{output name: array}``, or a ``Model`` that declares inputs and outputs as well.

    It answers ``GET /v2``, ``/v2/health/live`` and ``/ready``, ``/v2/models/{name}`` and its
    ``/ready``, and ``POST /v2/models/{name}/infer``, each with ``/versions/{v}`` too. Errors are
    ``{"error": ...}``: 400 for a bad request, 404, 405, 413, 415, and 500 for a model that fails,
    whose exception goes to the log ``tensorwire.asgi`` and not to the client.
    What a model returns is sent from its own memory: it must not change it afterwards.
    """
    return App(models, max_body=max_body, limits=limits or tw.Limits(), selection=selection)
