"""Models: functions with declared inputs and outputs, and the checks of what they return."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

import tensorwire as tw

from .._codec.datatypes import UNLIMITED
from ..arguments import check_type
from ..errors import (
    TensorNotFoundError,
    TensorwireError,
    format_names,
    format_shape,
    format_subject,
)
from ..http import HEADER_LENGTH
from .body import decompress
from .framing import Framing
from .workers import ThreadCall, Workers, in_thread

log = logging.getLogger("tensorwire.server")

Result = tw.InferResponse | Mapping[str, Any]
# Larger JSON is read and written in a thread. Larger bodies are read in a thread, because their
# BYTES and BOOL elements are checked one by one. Up to these sizes, this takes up to about 2 ms.
MAX_JSON_NBYTES = 64 << 10
MAX_BODY_NBYTES = 2 << 20
SpecsByName = dict[str, tw.TensorSpec]
Selection = Literal["spec", "triton"]
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
        function reads with ``request[name]``, or if that input has numbers and the function reads
        text. Raw binary requests require exactly one declared input (WIRE.md 5).
    outputs : sequence of TensorSpec, default ()
        The declared outputs. If the function returns an output that is not declared, the response
        has status 500. The function may omit declared outputs. If empty, any outputs are accepted.
    batching : bool, default False
        Whether every declared shape has a batch dimension before its ``dims``.
    in_event_loop : bool, default False
        Whether to call a synchronous function in the thread of the event loop, which saves the cost
        of the thread pool. All other requests wait until the function returns, so use it only for
        functions that take microseconds.

    Raises
    ------
    TypeError
        ``function`` is not callable, or ``inputs`` or ``outputs`` is not a sequence of TensorSpecs.
    ValueError
        A tensor is declared twice, or ``in_event_loop`` is true for an async function.

    Examples
    --------
    >>> from tensorwire import TensorSpec
    >>> from tensorwire.server import Model
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
        self.inputs: SpecsByName = _specs_by_name("inputs", inputs, batching)
        self.outputs: SpecsByName = _specs_by_name("outputs", outputs, batching)
        specs = list(self.inputs.values())
        self.raw_input: tw.TensorSpec | None = specs[0] if len(specs) == 1 else None
        call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        self.is_async: bool = any(map(inspect.iscoroutinefunction, (function, call)))
        if in_event_loop and self.is_async:
            raise ValueError("in_event_loop is only for synchronous functions")
        self.in_event_loop = in_event_loop


def _specs_by_name(argument: str, specs: Sequence[tw.TensorSpec], batching: bool) -> SpecsByName:
    check_type(argument, specs, Iterable, "a sequence of TensorSpecs")
    by_name: SpecsByName = {}
    for i, spec in enumerate(specs):
        check_type(f"{argument}[{i}]", spec, tw.TensorSpec, "a TensorSpec")
        if spec.name in by_name:
            raise ValueError(f"{format_subject('tensor', spec.name)} is declared twice")
        is_batched = spec.batching or batching
        by_name[spec.name] = tw.TensorSpec(spec.name, spec.datatype, spec.dims, is_batched)
    return by_name


class InvalidInputError(tw.TensorwireError):
    """A valid request does not match the inputs that the model declares."""

    status = 400


class InvalidOutputError(tw.TensorwireError):
    """A model failed, or returned something other than the outputs that it declares."""


class Options(NamedTuple):
    """What an application serves all its models with; see ``create_app``."""

    max_body: int
    limits: tw.Limits
    selection: Selection
    workers: Workers


class ServedModel:
    """A model with its name and the options of the application.

    ``infer`` turns the body of a request into the frame of the response. It raises TensorwireError
    with the HTTP status of an error response.
    """

    def __init__(self, name: str, model: Model, options: Options) -> None:
        self.name = name
        self.model = model
        self.options = options

    def infer(
        self, body: tw.BodyBuffer, framing: Framing, call: ThreadCall
    ) -> tw.Frame | Awaitable[tw.Frame]:
        """Decode a request, run the model, and encode the response.

        What may take more than about two milliseconds is done in a thread. Return the frame itself
        if the model has ``in_event_loop``, its function does not return an awaitable, and nothing
        has to be done in a thread; otherwise an awaitable of the frame.
        """
        if is_slow_to_decode(body, framing):
            return self._decode_and_infer(body, framing, call)
        request = self._decode(body, framing)
        if not self.model.in_event_loop:
            return self._infer(request, call)
        result = self._call(request)
        if is_slow_to_encode(result, request) or is_awaitable(result):
            return self._finish_later(result, request)
        return self._encode(result, request)

    async def _decode_and_infer(
        self, body: tw.BodyBuffer, framing: Framing, call: ThreadCall
    ) -> tw.Frame:
        workers = self.options.workers
        workers.begin_request()
        try:
            request = await in_thread(self._decode, body, framing)
            del body
            return await self._run(request, call)
        finally:
            workers.end_request()

    async def _infer(self, request: tw.InferRequest, call: ThreadCall) -> tw.Frame:
        workers = self.options.workers
        workers.begin_request()
        try:
            return await self._run(request, call)
        finally:
            workers.end_request()

    async def _run(self, request: tw.InferRequest, call: ThreadCall) -> tw.Frame:
        """Run the model, and encode the response."""
        model = self.model
        if model.is_async or model.in_event_loop:
            result = self._call(request)
        else:
            result = await call.run(self.options.workers, self._call_and_encode, request)
            if isinstance(result, tw.Frame):
                return result
        return await self._finish(result, request)

    async def _finish_later(self, result: Any, request: tw.InferRequest) -> tw.Frame:
        try:
            self.options.workers.begin_request()
        except TensorwireError:
            if inspect.iscoroutine(result):
                result.close()
            raise
        try:
            return await self._finish(result, request)
        finally:
            self.options.workers.end_request()

    async def _finish(self, result: Any, request: tw.InferRequest) -> tw.Frame:
        """Await the result of a model if it is an awaitable, and encode the response."""
        try:
            if is_awaitable(result):
                result = await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling() > 0:  # the server cancels the request
                raise
            raise self._model_error(error, request) from None
        except GeneratorExit as error:
            if not is_in_task():  # this coroutine is closed
                raise
            raise self._model_error(error, request) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit would stop the server
            raise self._model_error(error, request) from None
        if is_slow_to_encode(result, request):
            frame: tw.Frame = await in_thread(self._encode, result, request)
            return frame
        return self._encode(result, request)

    def _decode(self, body: tw.BodyBuffer, framing: Framing) -> tw.InferRequest:
        """Decompress, decode and check a request."""
        model = self.model
        if framing.header_length == 0 and model.raw_input is None:
            raise InvalidInputError(
                f"{HEADER_LENGTH} is 0, which means a raw binary request, but the model does not "
                "declare exactly one input"
            )
        request = tw.decode_request(
            decompress(body, framing, self.options.max_body),
            framing.header_length,
            raw_input=model.raw_input,
            limits=self.options.limits,
        )
        if model.inputs:
            check_inputs(request.inputs, model.inputs)
        return request.replace(model_name=self.name)

    def _call(self, request: tw.InferRequest) -> Any:
        try:
            return self.model.function(request)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # including SystemExit and the panics of Rust extensions
            raise self._model_error(error, request) from None

    def _call_and_encode(self, request: tw.InferRequest) -> Any:
        """Run in a thread: return the frame, or what an async function returned that was wrapped.

        Raises TensorwireError.
        """
        try:
            result = self.model.function(request)
        except BaseException as error:
            raise self._model_error(error, request) from None
        return result if is_awaitable(result) else self._encode(result, request)

    def _encode(self, result: Any, request: tw.InferRequest) -> tw.Frame:
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
                raise InvalidOutputError(
                    f"a model must return an InferResponse or a mapping of arrays, not "
                    f"{type(result).__name__}"
                )
            if declared:
                check_outputs(response.outputs, declared)
            return tw.encode_response(
                response, request, selection=self.options.selection, limits=UNLIMITED
            )
        except Exception as error:
            # 400: the request asks for an output that does not exist, or that cannot be JSON
            if isinstance(error, tw.EncodeError) and error.status == 400:
                raise
            raise self._model_error(error, request) from None

    def _model_error(self, error: BaseException, request: tw.InferRequest) -> tw.TensorwireError:
        """Return the error that the client receives. Log it unless the request is the cause."""
        if (
            isinstance(error, TensorNotFoundError)
            and error.tensors is request.inputs
            and error.tensor is not None  # a number, for example, is a mistake of the model
            and not self.model.inputs
        ):
            return InvalidInputError(f"an input is missing: {error}")
        if isinstance(error, tw.TensorwireError) and self._is_about_data(error, request):
            return InvalidInputError(str(error))
        if isinstance(error, InvalidOutputError):
            log.error("model %r: %s", self.name, error)
            return error
        log.error("model %r failed", self.name, exc_info=error)
        return InvalidOutputError(f"{format_subject('model', self.name)} failed")

    def _is_about_data(self, error: tw.TensorwireError, request: tw.InferRequest) -> bool:
        """Return whether an input does not have the data that the model reads.

        It is in shared memory, or numbers although the model does not declare them, or BYTES that
        are not UTF-8.
        """
        tensor = request.get(error.tensor) if error.tensor is not None else None
        if tensor is None or error.status != 400:
            return False
        if isinstance(error, tw.ElementError):
            return tensor.datatype == "BYTES"
        if isinstance(error, tw.DatatypeError) and not self.model.inputs:
            return tensor.datatype != "BYTES"
        return tensor.data is None


def is_slow_to_decode(body: tw.BodyBuffer, framing: Framing) -> bool:
    """Return whether decoding a body may take more than about two milliseconds."""
    nbytes = len(body)
    json_nbytes = nbytes if framing.header_length is None else framing.header_length
    return bool(framing.encoding) or json_nbytes > MAX_JSON_NBYTES or nbytes > MAX_BODY_NBYTES


_NOT_AWAITABLE = (tw.InferResponse, dict)


def is_awaitable(result: Any) -> bool:
    # isawaitable is slow for objects that are not awaitable.
    return not isinstance(result, _NOT_AWAITABLE) and inspect.isawaitable(result)


def is_in_task() -> bool:
    """Return whether an event loop runs this code in a task."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no event loop is running
        return False


def is_slow_to_encode(result: Any, request: tw.InferRequest) -> bool:
    """Return whether encoding what a model returned may take more than about two milliseconds.

    Writing JSON and converting lists and objects takes longer the larger the outputs are. Writing
    arrays as binary data does not.
    """
    left = MAX_JSON_NBYTES
    is_converted = False
    if isinstance(result, tw.InferResponse):
        for tensor in result.outputs:
            left -= tensor.nbytes
    elif isinstance(result, Mapping):
        for value in result.values():
            left = subtract_nbytes(left, value)
            is_converted |= not (
                isinstance(value, tw.Tensor)
                or getattr(getattr(value, "dtype", None), "kind", "O") in "biuf"
            )
    return left < 0 and (is_converted or not is_all_binary(request))


def subtract_nbytes(left: int, value: Any) -> int:
    """Return ``left`` minus the size of a value, or any negative number if the value is larger.

    An item of a list counts as 64 bytes more than it has, because it is an object.
    """
    if isinstance(value, tw.Tensor):
        value = value.data
    if isinstance(value, str | bytes):
        return left - len(value)
    items: Iterable[Any]
    if isinstance(value, list | tuple):
        items = value
    elif isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        items = value.flat
    else:
        nbytes = getattr(value, "nbytes", 0)
        return left - (nbytes if isinstance(nbytes, int) else 0)
    for item in items:
        if left < 0:
            break
        left = subtract_nbytes(left - 64, item)
    return left


def is_all_binary(request: tw.InferRequest) -> bool:
    """Return whether a request asks for all its outputs as binary data."""
    if request.outputs:
        return all(output.binary for output in request.outputs)
    return request.parameters.get("binary_data_output") is True


def as_tensor(name: str, value: Any, declared: SpecsByName) -> tw.Tensor:
    """Convert an item of the mapping that a model returned to a Tensor.

    Numbers and lists of numbers are converted to the declared datatype, or to the one that numpy
    chooses if the output is not declared.
    """
    if isinstance(value, tw.Tensor):
        return value if value.name == name else value.replace(name=name)
    if value is None:
        raise InvalidOutputError(f"the model returned None for {format_subject('output', name)}")
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
    """Raise InvalidInputError unless the inputs are exactly the declared ones, in any order.

    The decoder has already rejected duplicate names.
    """
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            raise InvalidInputError(
                f"unexpected {format_subject('input', tensor.name)}: the model takes "
                f"{format_names(list(declared))}"
            )
        if not spec.accepts(tensor):
            raise InvalidInputError(
                f"{format_subject('input', tensor.name)} is {format_mismatch(tensor, spec)}"
            )
    if len(tensors) < len(declared):
        missing = declared.keys() - {tensor.name for tensor in tensors}
        raise InvalidInputError(f"{format_subject('input', min(missing))} is missing")


def check_outputs(tensors: Sequence[tw.Tensor], declared: SpecsByName) -> None:
    """Raise InvalidOutputError unless all outputs are declared. Declared outputs may be absent."""
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            raise InvalidOutputError(
                f"the model returned {format_subject('output', tensor.name)}, which is not "
                f"declared: the model declares {format_names(list(declared))}"
            )
        if not spec.accepts(tensor):
            raise InvalidOutputError(
                f"{format_subject('output', tensor.name)} is {format_mismatch(tensor, spec)}"
            )


def format_mismatch(tensor: tw.Tensor, spec: tw.TensorSpec) -> str:
    return (
        f"{tensor.datatype} {format_shape(tensor.shape)}, but the model declares {spec.datatype} "
        f"{format_shape(spec.shape)}"
    )
