"""An ASGI application that serves models with the Open Inference Protocol."""

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
    discard_body,
    read_request,
    send_error,
    send_frame,
    send_json,
)

log = logging.getLogger("tensorwire.asgi")

Result = tw.InferResponse | Mapping[str, Any]
SpecsByName = dict[str, tw.TensorSpec]
Function = Callable[[tw.InferRequest], Result | Awaitable[Result]]

SERVER_ENDPOINTS = {"/v2": "server", "/v2/health/live": "live", "/v2/health/ready": "ready"}
MODEL_PATH = re.compile(r"/v2/models/(?P<model>.+?)(/versions/[^/]+)?(/(?P<endpoint>infer|ready))?")


class Model:
    """A function with its declared inputs and outputs.

    Parameters
    ----------
    function : callable
        Takes an ``InferRequest``, and returns an ``InferResponse`` or a mapping of output names to
        arrays. An async function is awaited. Any other function is called in a thread pool.
    inputs : sequence of TensorSpec, default ()
        The declared inputs. A request with other inputs is rejected with status 400. If empty, any
        inputs are accepted. Raw binary requests require exactly one declared input (WIRE.md 5).
    outputs : sequence of TensorSpec, default ()
        The declared outputs. If the function returns an output that is not declared, the response
        has status 500. If empty, any outputs are accepted.
    batching : bool, default False
        Whether every declared shape has a batch dimension before its ``dims``.

    Raises
    ------
    TypeError
        ``function`` is not callable.
    ValueError
        A tensor is declared twice.

    Examples
    --------
    >>> from tensorwire import TensorSpec
    >>> from tensorwire.asgi import Model
    >>> def double(request):
    ...     return {"y": request["x"].as_numpy() * 2}
    >>> model = Model(double, [TensorSpec("x", "FP32", [-1])], [TensorSpec("y", "FP32", [-1])])
    """

    def __init__(
        self,
        function: Function,
        inputs: Sequence[tw.TensorSpec] = (),
        outputs: Sequence[tw.TensorSpec] = (),
        batching: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(f"a model must be a function or a Model, not {type(function).__name__}")
        self.function = function
        self.inputs = _specs_by_name(inputs, batching)
        self.outputs = _specs_by_name(outputs, batching)
        self.raw_input = next(iter(self.inputs.values())) if len(self.inputs) == 1 else None
        call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def check(self, request: tw.InferRequest) -> None:
        """Raise InvalidInput if the request does not match the declared inputs."""
        if self.inputs:
            check_inputs(request.inputs, self.inputs)

    def start(self, request: tw.InferRequest) -> Awaitable[Any]:
        """Call the function, and return an awaitable of its result."""
        if self.is_async:
            return self.function(request)  # type: ignore[return-value]
        return self.in_thread(request)

    async def in_thread(self, request: tw.InferRequest) -> Any:
        """Call a synchronous function in the thread pool.

        A decorator may wrap an async function in a synchronous one. The awaitable that it returns
        is awaited here.
        """
        run = copy_context().run  # context variables that a middleware has set are visible
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(None, run, self.run, request)
        return await result if inspect.isawaitable(result) else result

    def run(self, request: tw.InferRequest) -> Any:
        """Call a synchronous function in the current thread."""
        try:
            return self.function(request)
        except StopIteration as error:  # a future cannot store it, and would never complete
            raise RuntimeError("the model raised StopIteration") from error

    def finish(self, result: Any) -> tw.InferResponse:
        """Convert the result of the function to a response. Raises InvalidOutput."""
        response = as_response(result)
        if self.outputs:
            check_outputs(response.outputs, self.outputs)
        return response


def _specs_by_name(specs: Sequence[tw.TensorSpec], batching: bool) -> SpecsByName:
    by_name: SpecsByName = {}
    for spec in specs:
        if spec.name in by_name:
            raise ValueError(f"tensor {spec.name!r} is declared twice")
        is_batched = spec.batching or batching
        by_name[spec.name] = tw.TensorSpec(spec.name, spec.datatype, spec.dims, is_batched)
    return by_name


class InvalidInput(tw.TensorwireError):
    """A valid request does not match the inputs that the model declares."""

    status = 400


class InvalidOutput(tw.TensorwireError):
    """A model failed, or returned something other than the outputs that it declares."""


def as_response(result: Any) -> tw.InferResponse:
    if isinstance(result, tw.InferResponse):
        return result
    if not isinstance(result, Mapping):
        raise InvalidOutput(
            f"a model must return an InferResponse or a mapping of arrays, not "
            f"{type(result).__name__}"
        )
    return tw.InferResponse(
        value if isinstance(value, tw.Tensor) else tw.Tensor(name, value)
        for name, value in result.items()
    )


def check_inputs(tensors: Sequence[tw.Tensor], declared: SpecsByName) -> None:
    """Raise InvalidInput unless the inputs are exactly the declared ones, in any order.

    The decoder has already rejected duplicate names.
    """
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            raise InvalidInput(
                f"unexpected input {tensor.name!r}: the model takes {list(declared)}"
            )
        if not spec.accepts(tensor):
            raise InvalidInput(f"input {tensor.name!r} is {mismatch_text(tensor, spec)}")
    if len(tensors) < len(declared):
        missing = declared.keys() - {tensor.name for tensor in tensors}
        raise InvalidInput(f"input {min(missing)!r} is missing")


def check_outputs(tensors: Sequence[tw.Tensor], declared: SpecsByName) -> None:
    """Raise InvalidOutput unless all outputs are declared. Declared outputs may be absent."""
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            raise InvalidOutput(f"the model returned output {tensor.name!r}, which is not declared")
        if not spec.accepts(tensor):
            raise InvalidOutput(f"output {tensor.name!r} is {mismatch_text(tensor, spec)}")


def mismatch_text(tensor: tw.Tensor, spec: tw.TensorSpec) -> str:
    return (
        f"{tensor.datatype} {list(tensor.shape)}, but the model declares {spec.datatype} "
        f"{list(spec.shape)}"
    )


class App:
    """The ASGI application that ``create_app`` returns."""

    def __init__(
        self,
        models: Mapping[str, Function | Model],
        *,
        max_body: int,
        limits: tw.Limits,
        selection: str,
        zero_copy: bool,
    ) -> None:
        if selection not in ("spec", "triton"):
            raise ValueError(f"selection must be 'spec' or 'triton', not {selection!r}")
        self.models = {
            name: model if isinstance(model, Model) else Model(model)
            for name, model in models.items()
        }
        for name in self.models:
            if self.route(f"/v2/models/{name}") != ("model", name):
                raise ValueError(f"invalid model name {name!r}: its path names something else")
        self.infer_paths = {f"/v2/models/{name}/infer": name for name in self.models}
        self.max_body = max_body
        self.limits = limits
        self.selection: Any = selection
        self.zero_copy = zero_copy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            name = self.infer_paths.get(scope["path"])
            if name is None or scope["method"] != "POST":
                name = await self.dispatch(scope, receive, send)
            if name is not None:
                await self.infer(name, scope, receive, send)
        elif scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def infer(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to an inference request."""
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
                raise model_failure(name, error) from None
            frame = self.encode(name, response, request)
        except ClientDisconnected:
            return
        except tw.TensorwireError as error:
            await send_error(send, str(error), error.status)
        else:
            await send_frame(send, frame, zero_copy=self.zero_copy)

    def encode(self, name: str, response: tw.InferResponse, request: tw.InferRequest) -> tw.Frame:
        """Encode the response with the outputs that the request asks for."""
        if response.model_name is None:
            response.model_name = name
        try:
            return tw.encode_response(response, request, selection=self.selection)
        except Exception as error:
            # 400: the request asks for an output that does not exist, or that cannot be JSON
            if isinstance(error, tw.EncodeError) and error.status == 400:
                raise
            raise model_failure(name, error) from None

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> str | None:
        """Return the model name of an inference request.

        Responds to any other request, and returns None.
        """
        method, path = scope["method"], scope["path"].removeprefix(scope.get("root_path", ""))
        route = self.route(path)
        if route is None:
            await reject(receive, send, f"not found: {scope['path']}", 404)
            return None
        endpoint, name = route
        if name is not None and name not in self.models:
            await reject(receive, send, f"model {name!r} is not known", 404)
            return None
        methods = ("POST",) if endpoint == "infer" else ("GET", "HEAD")
        if method not in methods:
            allowed = [(b"allow", ", ".join(methods).encode())]
            message = f"{method} is not allowed for {scope['path']}"
            await reject(receive, send, message, 405, allowed)
            return None
        if endpoint == "infer":
            return name
        await send_json(send, self.metadata(endpoint, name))
        return None

    @staticmethod
    def route(path: str) -> tuple[str, str | None] | None:
        """Return the endpoint and the model name of a path; None if there is no such endpoint."""
        path = path.rstrip("/")
        if path in SERVER_ENDPOINTS:
            return SERVER_ENDPOINTS[path], None
        found = MODEL_PATH.fullmatch(path)
        if found is None:
            return None
        return found["endpoint"] or "model", found["model"]

    def metadata(self, endpoint: str, name: str | None) -> dict[str, Any]:
        """Return the JSON value of a metadata or health endpoint."""
        if name is None:
            if endpoint == "server":
                return {"name": "tensorwire", "version": tw.__version__, "extensions": [EXTENSION]}
            return {endpoint: True}
        if endpoint == "model":
            return model_metadata(name, self.models[name])
        return {"name": name, endpoint: True}


def model_failure(name: str, error: Exception) -> InvalidOutput:
    """Log the exception of a model, and return the error whose message is sent to the client."""
    if isinstance(error, InvalidOutput):
        log.error("model %r: %s", name, error)
        return error
    log.error("model %r failed", name, exc_info=error)
    return InvalidOutput(f"model {name!r} failed")


async def reject(
    receive: Receive, send: Send, message: str, status: int, headers: RawHeaders = ()
) -> None:
    """Send an error response to a request whose body has not been read."""
    await discard_body(receive)
    await send_error(send, message, status, headers)


async def lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def model_metadata(name: str, model: Model) -> dict[str, Any]:
    return {
        "name": name,
        "versions": ["1"],
        "platform": "tensorwire",
        "inputs": [spec_metadata(spec) for spec in model.inputs.values()],
        "outputs": [spec_metadata(spec) for spec in model.outputs.values()],
    }


def spec_metadata(spec: tw.TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def create_app(
    models: Mapping[str, Function | Model],
    *,
    max_body: int = DEFAULT_MAX_BODY,
    limits: tw.Limits | None = None,
    selection: str = "spec",
    zero_copy: bool = False,
) -> App:
    """Return an ASGI application that serves models by name.

    The endpoints are ``GET /v2``, ``GET /v2/health/live``, ``GET /v2/health/ready``,
    ``GET /v2/models/{name}``, ``GET /v2/models/{name}/ready`` and
    ``POST /v2/models/{name}/infer``. The paths of a model may contain ``/versions/{version}`` after
    the name. The version is ignored.

    Errors are responses with a JSON body ``{"error": ...}`` and one of these statuses: 400 (invalid
    request), 404 (unknown path or model), 405 (wrong method), 413 (body too long), 415 (unknown
    Content-Encoding) and 500 (the model failed). The exception of a model is logged by the logger
    ``tensorwire.asgi`` and is not sent to the client.

    Parameters
    ----------
    models : mapping of str to callable or Model
        A callable takes an ``InferRequest``, and returns an ``InferResponse`` or a mapping of
        output names to arrays. An async function is awaited. Any other function is called in a
        thread pool. A ``Model`` is a function with declared inputs and outputs.
    max_body : int, default 2**31 - 1
        Maximum length of a request body in bytes, after decompression.
    limits : Limits, optional
        The limits for ``decode_request``.
    selection : {"spec", "triton"}, default "spec"
        The rule that determines which outputs are binary; see ``encode_response``.
    zero_copy : bool, default False
        Whether to send large responses as memoryviews of the arrays, which saves a copy. uvicorn
        accepts memoryviews. ASGI only requires ``bytes``, so other servers may not.

    Returns
    -------
    App
        The application. It sends responses from the memory of the arrays that the models return,
        so a model must not modify an array after returning it.

    Raises
    ------
    TypeError
        A model is neither callable nor a ``Model``.
    ValueError
        ``selection`` or the name of a model is invalid.

    Examples
    --------
    >>> from tensorwire import TensorSpec
    >>> from tensorwire.asgi import Model, create_app
    >>> def double(request):
    ...     return {"y": request["x"].as_numpy() * 2}
    >>> app = create_app({"double": Model(double, [TensorSpec("x", "FP32", [-1])])})

    Serve it with any ASGI server, for example ``uvicorn module:app``.
    """
    return App(
        models,
        max_body=max_body,
        limits=limits or tw.Limits(),
        selection=selection,
        zero_copy=zero_copy,
    )
