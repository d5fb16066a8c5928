"""Models: functions with declared inputs and outputs, and the checks of what they return."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

import numpy as np

import tensorwire as tw

from .._codec.datatypes import UNLIMITED
from ..errors import TensorNotFoundError, format_names, shape_text, subject

log = logging.getLogger("tensorwire.server")

Result = tw.InferResponse | Mapping[str, Any]
SpecsByName = dict[str, tw.TensorSpec]
Function = Callable[[tw.InferRequest], Result | Awaitable[Result]]


class Model:
    """A function with its declared inputs and outputs.

    Parameters
    ----------
    function : callable
        Takes an ``InferRequest``, and returns an ``InferResponse`` or a mapping of output names to
        arrays, lists or numbers. An async function is awaited. Any other function is called in a
        thread pool, unless ``in_event_loop`` is true.
    inputs : sequence of TensorSpec, default ()
        The declared inputs. A request with other inputs is rejected with status 400. If empty, any
        inputs are accepted, and a request is rejected with status 400 if it lacks an input that the
        function reads with ``request[name]``. Raw binary requests require exactly one declared
        input (WIRE.md 5).
    outputs : sequence of TensorSpec, default ()
        The declared outputs. If the function returns an output that is not declared, the response
        has status 500. If empty, any outputs are accepted.
    batching : bool, default False
        Whether every declared shape has a batch dimension before its ``dims``.
    in_event_loop : bool, default False
        Whether to call a synchronous function in the thread of the event loop, which saves the cost
        of the thread pool. All other requests wait until the function returns, so use it only for
        functions that take microseconds.

    Raises
    ------
    TypeError
        ``function`` is not callable.
    ValueError
        A tensor is declared twice, or ``in_event_loop`` is true for an async function.

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
        *,
        in_event_loop: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(f"a model must be a function or a Model, not {type(function).__name__}")
        self.function = function
        self.inputs = _specs_by_name(inputs, batching)
        self.outputs = _specs_by_name(outputs, batching)
        self.raw_input = next(iter(self.inputs.values())) if len(self.inputs) == 1 else None
        call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        if in_event_loop and self.is_async:
            raise ValueError("in_event_loop is only for synchronous functions")
        self.in_event_loop = in_event_loop


def _specs_by_name(specs: Sequence[tw.TensorSpec], batching: bool) -> SpecsByName:
    by_name: SpecsByName = {}
    for spec in specs:
        if spec.name in by_name:
            raise ValueError(f"{subject('tensor', spec.name)} is declared twice")
        is_batched = spec.batching or batching
        by_name[spec.name] = tw.TensorSpec(spec.name, spec.datatype, spec.dims, is_batched)
    return by_name


class InvalidInput(tw.TensorwireError):
    """A valid request does not match the inputs that the model declares."""

    status = 400


class InvalidOutput(tw.TensorwireError):
    """A model failed, or returned something other than the outputs that it declares."""


class ServedModel:
    """A model with the name and the options that an application serves it with.

    ``infer`` turns the body of a request into the frame of the response. It raises TensorwireError
    with the HTTP status of an error response.
    """

    def __init__(self, name: str, model: Model, limits: tw.Limits, selection: Any) -> None:
        self.name = name
        self.model = model
        self.limits = limits
        self.selection = selection
        self._call: Function = model.function if model.is_async else self._call_in_thread

    def infer(
        self, body: tw.BodyBuffer, header_length: int | None
    ) -> tw.Frame | Awaitable[tw.Frame]:
        """Decode a request, and run the model.

        Return an awaitable of the frame. If the model has ``in_event_loop``, and its function does
        not return an awaitable, return the frame itself.
        """
        model = self.model
        request = tw.decode_request(
            body, header_length, raw_input=model.raw_input, limits=self.limits
        )
        request.model_name = self.name
        if model.inputs:
            check_inputs(request.inputs, model.inputs)
        if not model.in_event_loop:
            return self._await(self._call, request)
        try:
            result = model.function(request)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # including SystemExit and the panics of Rust extensions
            raise self.failure(error, request) from None
        if isinstance(result, tw.InferResponse) or not inspect.isawaitable(result):
            return self.encode(result, request)
        return self._await(lambda _: result, request)

    async def _await(self, call: Function, request: tw.InferRequest) -> tw.Frame:
        """Await the result of ``call``, and encode it."""
        try:
            result = await call(request)  # type: ignore[misc]
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling() > 0:  # the server cancels the request
                raise
            raise self.failure(error, request) from None
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit would stop the server
            raise self.failure(error, request) from None
        return self.encode(result, request)

    async def _call_in_thread(self, request: tw.InferRequest) -> Any:
        # The context variables that a middleware has set are visible to the function.
        run = copy_context().run
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(None, run, _call, self.model.function, request)
        # A decorator may wrap an async function in a synchronous one.
        return await result if inspect.isawaitable(result) else result

    def encode(self, result: Any, request: tw.InferRequest) -> tw.Frame:
        """Encode what the model returned, with the outputs that the request asks for."""
        declared = self.model.outputs
        try:
            if isinstance(result, tw.InferResponse):
                # A new response, because a model may return the same object for several requests.
                response = tw.InferResponse(
                    result.outputs,
                    model_name=self.name,
                    model_version=result.model_version,
                    id=request.id,
                    parameters=result.parameters,
                )
            elif isinstance(result, Mapping):
                outputs = [as_tensor(name, value, declared) for name, value in result.items()]
                response = tw.InferResponse(outputs, model_name=self.name, id=request.id)
            else:
                raise InvalidOutput(
                    f"a model must return an InferResponse or a mapping of arrays, not "
                    f"{type(result).__name__}"
                )
            if declared:
                check_outputs(response.outputs, declared)
            return tw.encode_response(response, request, selection=self.selection, limits=UNLIMITED)
        except Exception as error:
            # 400: the request asks for an output that does not exist, or that cannot be JSON
            if isinstance(error, tw.EncodeError) and error.status == 400:
                raise
            raise self.failure(error, request) from None

    def failure(self, error: BaseException, request: tw.InferRequest) -> tw.TensorwireError:
        """Return the error that the client receives. Log it unless the request is the cause."""
        if (
            isinstance(error, TensorNotFoundError)
            and error.tensors is request.inputs
            and not self.model.inputs
        ):
            return InvalidInput(f"an input is missing: {error}")
        if (
            isinstance(error, tw.TensorwireError)
            and error.status == 400
            and error.tensor in names_without_data(request)
        ):
            return InvalidInput(str(error))
        if isinstance(error, InvalidOutput):
            log.error("model %r: %s", self.name, error)
            return error
        log.error("model %r failed", self.name, exc_info=error)
        return InvalidOutput(f"{subject('model', self.name)} failed")


def names_without_data(request: tw.InferRequest) -> list[str]:
    """Return the names of the inputs that are in shared memory."""
    return [tensor.name for tensor in request.inputs if tensor.data is None]


def _call(function: Function, request: tw.InferRequest) -> Any:
    try:
        return function(request)
    except StopIteration as error:  # a future cannot store it, and would never complete
        raise RuntimeError("the model raised StopIteration") from error


def as_tensor(name: str, value: Any, declared: SpecsByName) -> tw.Tensor:
    """Convert an item of the mapping that a model returned to a Tensor.

    Numbers and lists of numbers are converted to the declared datatype, or to the one that numpy
    chooses if the output is not declared.
    """
    if isinstance(value, tw.Tensor):
        return value
    if value is None:
        raise InvalidOutput(f"the model returned None for {subject('output', name)}")
    if isinstance(value, bool | int | float | str | bytes | list | tuple):
        spec = declared.get(name)
        is_scalar = not isinstance(value, list | tuple)
        items = [value] if is_scalar else value
        shape = () if is_scalar else None
        if spec is not None:
            return tw.Tensor(name, items, datatype=spec.datatype, shape=shape)
        array = np.asarray(items)
        # numpy removes trailing NUL bytes of text, so lists of text are not passed as arrays.
        return tw.Tensor(name, array if array.dtype.kind in "biuf" else items, shape=shape)
    return tw.Tensor(name, value)


def check_inputs(tensors: Sequence[tw.Tensor], declared: SpecsByName) -> None:
    """Raise InvalidInput unless the inputs are exactly the declared ones, in any order.

    The decoder has already rejected duplicate names.
    """
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            raise InvalidInput(
                f"unexpected {subject('input', tensor.name)}: the model takes "
                f"{format_names(list(declared))}"
            )
        if not spec.accepts(tensor):
            raise InvalidInput(f"{subject('input', tensor.name)} is {mismatch_text(tensor, spec)}")
    if len(tensors) < len(declared):
        missing = declared.keys() - {tensor.name for tensor in tensors}
        raise InvalidInput(f"{subject('input', min(missing))} is missing")


def check_outputs(tensors: Sequence[tw.Tensor], declared: SpecsByName) -> None:
    """Raise InvalidOutput unless all outputs are declared. Declared outputs may be absent."""
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            raise InvalidOutput(
                f"the model returned {subject('output', tensor.name)}, which is not declared"
            )
        if not spec.accepts(tensor):
            raise InvalidOutput(
                f"{subject('output', tensor.name)} is {mismatch_text(tensor, spec)}"
            )


def mismatch_text(tensor: tw.Tensor, spec: tw.TensorSpec) -> str:
    return (
        f"{tensor.datatype} {shape_text(tensor.shape)}, but the model declares {spec.datatype} "
        f"{shape_text(spec.shape)}"
    )
