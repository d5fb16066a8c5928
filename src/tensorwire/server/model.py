"""Models: functions with declared inputs and outputs, and the checks of what they return."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import CoroutineType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

import tensorwire as tw

from ..arguments import check_type
from ..errors import (
    TensorNotFoundError,
    format_names,
    format_shape,
    format_subject,
    format_value,
)
from ..threads import in_thread
from .body import ClientDisconnectedError
from .statistics import Statistics
from .values import check_requested_outputs
from .workers import ThreadCall, Workers

log = logging.getLogger("tensorwire.server")

Result = tw.InferResponse | Mapping[str, Any]
# Larger JSON is read and written in a thread, and larger lists are converted there. Larger messages
# are read in a thread, because their BYTES and BOOL elements are checked one by one. Larger gRPC
# responses are written in a thread, because they are copied. Up to these sizes, this takes up to
# about 2 ms.
MAX_JSON_NBYTES = 64 << 10
MAX_BODY_NBYTES = 2 << 20
ERROR_STATUSES = frozenset(status for status in HTTPStatus if status >= 400)
SpecsByName = dict[str, tw.TensorSpec]
Function = Callable[[tw.InferRequest], Result | Awaitable[Result]]


class Model:
    """A function with its declared inputs and outputs.

    The arrays that the function reads depend on the transport. Those of binary data are views of
    the request: over HTTP, they are writable, and only the first one is certain to be aligned; over
    gRPC, they are read-only and may all be misaligned. Arrays of JSON data and of typed contents
    are writable and aligned. With ``writable_inputs``, all arrays are.

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
    writable_inputs : bool, default False
        Whether the arrays of all inputs of numbers are writable and aligned, over every transport.
        Those that are not so in the request are copied before the function is called.

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
        writable_inputs: bool = False,
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
        self.writable_inputs = writable_inputs


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


class RequestError(tw.TensorwireError):
    """A model cannot answer a request, and the client receives the reason.

    A model raises it. It is not logged.

    Parameters
    ----------
    text : str
        The text of the error. If it is empty, it is the phrase of the status.
    status : int, default 400
        The HTTP status, 400 to 599. gRPC clients receive the code for it.

    Raises
    ------
    TypeError
        ``text`` is not a str, or ``status`` is not an integer.
    ValueError
        ``status`` is not the status of an error.

    Examples
    --------
    >>> from tensorwire.server import RequestError
    >>> def classify(request):
    ...     image = request["image"]
    ...     if image.shape[0] < 32:
    ...         raise RequestError(f"the image has {image.shape[0]} rows: 32 are required", 422)
    ...     return {"label": 0}
    """

    status = 400

    def __init__(self, text: str, status: int = 400) -> None:
        check_type("text", text, str, "a str")
        if status not in ERROR_STATUSES:
            raise ValueError(f"status must be that of an error, not {format_value(status)}")
        # gRPC and JSON in UTF-8 cannot contain lone surrogates. In a stream of gRPC, an empty text
        # would not be an error.
        sent = text.encode(errors="backslashreplace").decode() or HTTPStatus(status).phrase
        super().__init__(sent, status=int(status))


class InvalidOutputError(tw.TensorwireError):
    """A model failed, or returned something other than the outputs that it declares."""


Received = TypeVar("Received")
Received_contra = TypeVar("Received_contra", contravariant=True)
Encoded = TypeVar("Encoded")
Encoded_co = TypeVar("Encoded_co", covariant=True)


class Format(Protocol[Received_contra, Encoded_co]):
    """The messages of a transport: how requests are decoded, and responses encoded."""

    def is_slow_to_decode(self, message: Received_contra) -> bool:
        """Return whether decoding a request may take more than about two milliseconds."""

    def decode(self, message: Received_contra, model: Model) -> tw.InferRequest:
        """Decode a request. Raises TensorwireError."""

    def is_slow_to_encode(self, nbytes: int, request: tw.InferRequest) -> bool:
        """Return whether encoding tensors of this size may take more than two milliseconds."""

    def encode(self, response: tw.InferResponse, request: tw.InferRequest) -> Encoded_co:
        """Encode a response. Raises EncodeError; its status is 400 if the request is the cause."""


class Pending(NamedTuple):
    """What a model returned, if it has to be awaited, or encoded in a thread.

    ``isinstance`` is not used for what a model returned: it may run code of another object.
    """

    result: Any


@dataclass(eq=False)
class ServedModel(Generic[Received, Encoded]):
    """A model with its name, as one transport serves it.

    ``infer`` turns a received request into the encoded response. It raises TensorwireError with the
    HTTP status of an error response.
    """

    name: str
    version: str | None
    """The version that the requests ask for."""
    model: Model
    statistics: Statistics
    """The statistics of the model, which its versions and transports share."""
    format: Format[Received, Encoded]
    """The messages of the transport."""
    workers: Workers
    """The threads and the limit of the application, which all models and transports share."""

    def infer(self, message: Received, call: ThreadCall) -> Encoded | Awaitable[Encoded]:
        """Decode a request, run the model, and encode the response.

        What may take more than about two milliseconds is done in a thread. Return the response
        itself if the model has ``in_event_loop``, its function does not return an awaitable, and
        nothing has to be done in a thread; otherwise an awaitable of the response. It raises
        ClientDisconnectedError if ``call`` is cancelled before the model runs.
        """
        started_ns = time.perf_counter_ns()
        try:
            if self.format.is_slow_to_decode(message):
                return self._infer(message, call, started_ns)
            request = self._decode(message)
            if not self.model.in_event_loop:
                return self._infer(request, call, started_ns)
            result = self._call(request)
            if type(result) is not Pending and self._is_slow_to_encode(result, request):
                result = Pending(result)
            if type(result) is Pending:
                return self._infer(request, call, started_ns, result)
            encoded = self._encode(result, request)
        except BaseException as error:
            self.statistics.add(started_ns, error)
            raise
        self.statistics.add(started_ns)
        return encoded

    async def _infer(
        self, received: Any, call: ThreadCall, started_ns: int, pending: Pending | None = None
    ) -> Encoded:
        """Do what ``infer`` has not done with a message or a request that it has decoded."""
        try:
            with self.workers:
                if not isinstance(received, tw.InferRequest):
                    received = await in_thread(self._decode, received)
                found = pending or self._start(received, call)
                encoded = found if isinstance(found, Pending) else await found
                if isinstance(encoded, Pending):
                    encoded = await self._finish(encoded.result, received)
        except BaseException as error:
            self.statistics.add(started_ns, error)
            raise
        finally:
            if pending is not None and type(pending.result) is CoroutineType:
                pending.result.close()  # if there are too many requests
        self.statistics.add(started_ns)
        return encoded

    def _start(
        self, request: tw.InferRequest, call: ThreadCall
    ) -> Pending | Awaitable[Encoded | Pending]:
        """Call the model, or let a thread call it. The thread may encode the response, too."""
        if call.is_cancelled:  # while the request was decoded
            raise ClientDisconnectedError("the client cancelled the request")
        if self.model.is_async or self.model.in_event_loop:
            result = self._call(request)
            return result if type(result) is Pending else Pending(result)
        return call.run(self.workers, self._call_and_encode, request)

    async def _finish(self, result: Any, request: tw.InferRequest) -> Encoded:
        """Await the result of a model if it is an awaitable, and encode the response."""
        try:
            if is_awaitable(result):
                result = await result
        except BaseException as error:  # SystemExit would stop the server
            if is_ended_by_server(error):
                raise
            raise self._model_error(error, request) from None
        if self._is_slow_to_encode(result, request):
            encoded: Encoded = await in_thread(self._encode, result, request)
            return encoded
        return self._encode(result, request)

    def _decode(self, message: Received) -> tw.InferRequest:
        """Decode and check a request."""
        request = self.format.decode(message, self.model)
        if self.model.inputs:
            check_inputs(request.inputs, self.model.inputs)
        check_requested_outputs(request)
        if self.model.writable_inputs:
            request = request.replace(inputs=[as_writable(tensor) for tensor in request.inputs])
        if request.model_name == self.name and request.model_version == self.version:
            return request
        return request.replace(model_name=self.name, model_version=self.version)

    def _call(self, request: tw.InferRequest) -> Any:
        """Return what the model returns, or Pending if it has to be awaited."""
        try:
            result = self.model.function(request)
            return Pending(result) if is_awaitable(result) else result
        except BaseException as error:  # including SystemExit and the panics of Rust extensions
            raise self._model_error(error, request) from None

    def _call_and_encode(self, request: tw.InferRequest) -> Encoded | Pending:
        """Run in a thread: return the response, or Pending if an async function was wrapped.

        Raises TensorwireError.
        """
        result = self._call(request)
        return result if type(result) is Pending else self._encode(result, request)

    def _is_slow_to_encode(self, result: Any, request: tw.InferRequest) -> bool:
        """Return whether encoding what a model returned may take more than two milliseconds."""
        try:
            nbytes, is_converted = measure(result)
        except BaseException as error:  # of an object that the model returned
            raise self._model_error(error, request) from None
        return nbytes > MAX_JSON_NBYTES and (
            is_converted or self.format.is_slow_to_encode(nbytes, request)
        )

    def _encode(self, result: Any, request: tw.InferRequest) -> Encoded:
        """Encode what the model returned, with the outputs that the request asks for."""
        declared = self.model.outputs
        try:
            if isinstance(result, tw.InferResponse):
                response = result.replace(model_name=self.name, id=request.id)
            elif isinstance(result, Mapping):
                outputs = [as_tensor(name, value, declared) for name, value in result.items()]
                response = tw.InferResponse(outputs, model_name=self.name, id=request.id)
            else:
                raise InvalidOutputError(
                    f"{format_subject('model', self.name)} must return an InferResponse or a "
                    f"mapping of arrays, not {type(result).__name__}"
                )
            if declared:
                check_outputs(response.outputs, declared)
            return self.format.encode(response, request)
        except BaseException as error:  # see _call: objects of the model run code, too
            if type(error) is tw.EncodeError:  # attributes of another class may run code
                # 400: the request asks for an output that does not exist, or that cannot be JSON
                if error.status == 400:
                    raise
                name = format_subject("model", self.name)
                error = InvalidOutputError(f"an output of {name} cannot be sent: {error}")
            raise self._model_error(error, request) from None

    def _model_error(self, error: BaseException, request: tw.InferRequest) -> tw.TensorwireError:
        """Return the error that the client receives. Log it unless the request is the cause.

        A KeyboardInterrupt of the main thread is raised again: a signal handler has raised it.
        """
        if issubclass(type(error), KeyboardInterrupt) and is_main_thread():
            raise error
        try:
            known = self._known_error(error, request)
        except BaseException as invalid:  # of a class with a property or another text, for example
            error, known = invalid, None
        if known is not None:
            return known
        log.error("model %r failed", self.name, exc_info=error)
        return InvalidOutputError(f"{format_subject('model', self.name)} failed")

    def _known_error(
        self, error: BaseException, request: tw.InferRequest
    ) -> tw.TensorwireError | None:
        """Return the error whose text the client receives; None if it must not receive it."""
        if isinstance(error, RequestError):
            return RequestError(str(error), error.status)
        if (
            isinstance(error, TensorNotFoundError)
            and error.tensors is request.inputs
            and error.tensor is not None  # a number, for example, is a mistake of the model
            and not self.model.inputs
        ):
            return RequestError(f"an input is missing: {error}")
        if isinstance(error, tw.TensorwireError) and self._is_about_data(error, request):
            return RequestError(str(error))
        if isinstance(error, InvalidOutputError):
            log.error("model %r: %s", self.name, error)
            return error
        return None

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


_NOT_AWAITABLE = (tw.InferResponse, dict)


def is_awaitable(result: Any) -> bool:
    # isawaitable is slow for objects that are not awaitable.
    return not isinstance(result, _NOT_AWAITABLE) and inspect.isawaitable(result)


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def is_ended_by_server(error: BaseException) -> bool:
    """Return whether the server has cancelled a task or closed a coroutine, and not the model."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop is running
        task = None
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit) and task is None


def measure(result: Any) -> tuple[int, bool]:
    """Return the size of what a model returned, and whether lists or objects must be converted.

    If lists are larger than MAX_JSON_NBYTES, the size may be any number above this limit.
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
    return MAX_JSON_NBYTES - left, is_converted


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
        # An object that does not tell its size, such as an image, may be large.
        nbytes = 0 if isinstance(value, int | float) else getattr(value, "nbytes", None)
        return left - nbytes if isinstance(nbytes, int) else -1
    for item in items:
        if left < 0:
            break
        left = subtract_nbytes(left - 64, item)
    return left


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
        try:
            array = np.asarray(items)
        except ValueError:
            text = f"the model returned a ragged list for {format_subject('output', name)}"
            raise InvalidOutputError(text) from None
        # numpy removes trailing NUL bytes of text, so lists of text are not passed as arrays.
        return tw.Tensor(name, array if array.dtype.kind in "biuf" else items, shape=shape)
    try:
        return tw.Tensor(name, value)
    except TypeError:
        if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
            raise
        raise InvalidOutputError(
            f"the model returned {type(value).__name__} for {format_subject('output', name)}, "
            "which is not an array, a list or a number"
        ) from None


def as_writable(tensor: tw.Tensor) -> tw.Tensor:
    """Return a tensor whose array, if it has one, is writable and aligned."""
    array = tensor.data
    if not isinstance(array, np.ndarray) or (array.flags.writeable and array.flags.aligned):
        return tensor
    return tensor.replace(data=array.copy(), datatype=tensor.datatype)


def check_inputs(tensors: Sequence[tw.Tensor], declared: SpecsByName) -> None:
    """Raise RequestError unless the inputs are exactly the declared ones, in any order.

    The decoder has already rejected duplicate names.
    """
    for tensor in tensors:
        spec = declared.get(tensor.name)
        if spec is None:
            raise RequestError(
                f"unexpected {format_subject('input', tensor.name)}: the model takes "
                f"{format_names(list(declared))}"
            )
        if not spec.accepts(tensor):
            raise RequestError(
                f"{format_subject('input', tensor.name)} is {format_mismatch(tensor, spec)}"
            )
    if len(tensors) < len(declared):
        missing = declared.keys() - {tensor.name for tensor in tensors}
        raise RequestError(f"{format_subject('input', min(missing))} is missing")


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
