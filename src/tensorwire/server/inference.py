"""Inference: a request to a model, from its message to the encoded response."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, Generic, TypeVar

import numpy as np

import tensorwire as tw

from ..errors import TensorNotFoundError, format_subject, format_value
from ..sizes import MAX_QUICK_JSON_NBYTES, MAX_QUICK_MESSAGE_NBYTES, MAX_SHARED_JSON_NBYTES
from ..threads import WRITING, InThread, Threads
from .client_calls import ClientCall
from .concurrency import Concurrency
from .context import RequestContext
from .errors import ClientDisconnectedError, InvalidOutputError, OverloadedError, RequestError, log
from .model import (
    VERSION,
    Model,
    as_tensor,
    as_writable,
    check_batch_size,
    check_inputs,
    check_outputs,
    check_requested_outputs,
)
from .statistics import Statistics

_MAPPINGS = (tw.InferResponse, Mapping)  # isinstance is slow for the second one
Undecoded = TypeVar("Undecoded")
Encoded = TypeVar("Encoded")


@dataclass(eq=False)
class ServedModel:
    """A model with the name and version of its URL."""

    name: str
    version: str | None
    """The version that the requests ask for; None if they do not ask for one."""
    model: Model
    statistics: Statistics
    """The statistics of the model, which its versions and transports share."""


@dataclass(eq=False)
class MessageFormat(ABC, Generic[Undecoded, Encoded]):
    """How a transport reads and writes messages. It keeps nothing of a request.

    The first three fields are those of the ``Service``.
    """

    threads: Threads
    concurrency: Concurrency
    limits: tw.Limits
    encode: Callable[[tw.InferResponse, tw.InferRequest], Encoded]
    """Encode a response. Raises EncodeError; its status is 400 if the request is the cause."""

    @abstractmethod
    def reading_nbytes(self, received: Undecoded) -> int:
        """Return how many bytes take time to decode, or any number above the limits for that."""

    @abstractmethod
    async def read_slowly(
        self, received: Undecoded, decode: Callable[[], None], run: InThread
    ) -> None:
        """Decode a request with a function, with ``run`` in a thread if that is slow."""

    @abstractmethod
    def decode(self, received: Undecoded, model: Model) -> tw.InferRequest:
        """Decode a request. Raises TensorwireError."""

    @abstractmethod
    def request_id(self, source: Any) -> str:
        """Return the id in the headers of a request, or an empty string. It is only logged."""

    @abstractmethod
    def is_slow_to_encode(self, nbytes: int, request: tw.InferRequest) -> bool:
        """Return whether encoding tensors of this size may take more than two milliseconds."""


@dataclass(slots=True, eq=False)
class Inference(Generic[Undecoded, Encoded]):
    """A request to a model: decode the message, call the function, and encode the response.

    ``now`` is the immediate path, and ``later`` does the rest. Both raise TensorwireError, whose
    status is that of the response; ``Service.describe_failure`` returns what the client gets. What
    may take more than about two milliseconds is done in a thread.
    """

    message_format: MessageFormat[Undecoded, Encoded]
    served: ServedModel
    received: Undecoded | None
    """What has been received, until it is decoded."""
    source: Any = None
    """Where the transport finds the id of a request that its message does not have."""
    context: RequestContext | None = None
    """What the function gets if it takes a context."""
    request: Any = None
    result: Any = None
    """What the model has returned."""
    is_awaitable: bool = False
    """Whether the result has to be awaited."""
    task_id: int = 0
    """The ``id`` of the task that awaits ``later``. The task refers to this object."""
    started_ns: int = field(default_factory=time.perf_counter_ns)

    def now(self) -> Encoded | None:
        """Return the response of a model with ``in_event_loop`` if it returns it at once.

        Return None if an awaitable, a thread or a turn of the event loop is needed.
        """
        served = self.served
        assert self.received is not None
        if self.message_format.reading_nbytes(self.received) > MAX_SHARED_JSON_NBYTES:
            return None
        try:
            self._decode()
            self._call()
            if self.is_awaitable or self._is_slow_to_encode():
                return None
            encoded = self._encode()
        except BaseException as error:
            served.statistics.add(self.started_ns, error)
            raise
        served.statistics.add(self.started_ns)
        return encoded

    async def later(self, call: ClientCall) -> Encoded:
        """Do what ``now`` has not done, and return the response.

        Raises ClientDisconnectedError if ``call`` is cancelled, or dropped, before it ends.
        """
        concurrency = self.message_format.concurrency
        counted = object()  # and not `self`, which would keep this coroutine in memory
        self.task_id = id(asyncio.current_task())
        try:
            concurrency.add(counted)
            encoded = await self._run(call)
        except BaseException as error:
            if self._is_closed():  # see ThreadCall: the log, statistics and metrics have locks
                raise GeneratorExit from None
            self.served.statistics.add(self.started_ns, error)
            if isinstance(error, asyncio.CancelledError) and self.request is not None:
                error.add_note(self._subject())
            if isinstance(error, OverloadedError) and isinstance(self.result, asyncio.Future):
                self.result.cancel()
            raise
        finally:
            concurrency.remove(counted, call)
            if type(self.result) is CoroutineType:
                self.result.close()  # it was not awaited, because there are too many requests
        self.served.statistics.add(self.started_ns)
        return encoded

    async def _run(self, call: ClientCall) -> Encoded:
        served = self.served
        if self.received is not None:
            if self.message_format.reading_nbytes(self.received) <= MAX_SHARED_JSON_NBYTES:
                self._decode()
            else:
                await self.message_format.read_slowly(self.received, self._decode, call.in_thread)
            if call.is_cancelled:  # while the request was decoded
                raise ClientDisconnectedError("the client cancelled the request")
            if served.model.is_async or served.model.in_event_loop:
                self._call()
            else:
                in_time: Encoded | None = await call.run(
                    self.message_format.threads, self._call_and_encode
                )
                if in_time is not None:
                    return in_time
        if self.is_awaitable:
            try:
                self.result = await self.result
            except BaseException as error:  # SystemExit would stop the server
                if self._is_closed() or is_cancelled(error):
                    raise
                raise self._model_error(error) from None
        if self._is_slow_to_encode():
            encoded: Encoded = await call.in_thread(self._encode, threads=WRITING)
            return encoded
        return self._encode()

    def _is_closed(self) -> bool:
        """Return whether the coroutine is closed, by a garbage collection in any task or thread."""
        return id(current_task()) != self.task_id

    def _decode(self) -> None:
        """Decode and check the request. Its message is released with the last tensor."""
        served, received = self.served, self.received
        assert received is not None
        request = self.message_format.decode(received, served.model)
        self.received = None
        if served.model.inputs:
            check_inputs(request.inputs, served.model.inputs)
        if served.model.max_batch_size:
            check_batch_size(request.inputs, served.model.max_batch_size)
        if request.outputs:
            check_requested_outputs(request)
        if served.model.writable_inputs:
            request = request.replace(inputs=[as_writable(tensor) for tensor in request.inputs])
        if request.model_name != served.name or request.model_version != served.version:
            request = request.replace(model_name=served.name, model_version=served.version)
        self.request = request

    def _call(self) -> None:
        try:
            function: Any = self.served.model.function
            self.result = result = (
                function(self.request)
                if self.context is None
                else function(self.request, context=self.context)
            )
            kind = type(result)  # isawaitable is slow for objects that are not awaitable
            self.is_awaitable = kind is CoroutineType or (
                kind is not tw.InferResponse and kind is not dict and inspect.isawaitable(result)
            )
        except BaseException as error:  # including SystemExit and the panics of Rust extensions
            raise self._model_error(error) from None

    def _call_and_encode(self) -> Encoded | None:
        """Run in a thread: return the response, or None if an async function was wrapped."""
        self._call()
        return None if self.is_awaitable else self._encode()

    def _is_slow_to_encode(self) -> bool:
        """Return whether a large result is converted, copied or written as JSON."""
        result, nbytes = self.result, 0
        try:
            for value in result.values() if isinstance(result, _MAPPINGS) else ():
                if isinstance(value, tw.Tensor):
                    nbytes += value.nbytes
                    continue
                size = nbytes_of(value)
                if size > MAX_QUICK_JSON_NBYTES and is_converted(value):
                    return True
                nbytes += size
        except BaseException as error:  # of an object that the model returned
            raise self._model_error(error) from None
        return nbytes > MAX_QUICK_JSON_NBYTES and self.message_format.is_slow_to_encode(
            nbytes, self.request
        )

    def _encode(self) -> Encoded:
        name, declared = self.served.name, self.served.model.outputs
        result, request = self.result, self.request
        try:
            if isinstance(result, tw.InferResponse):
                response = result.replace(model_name=name, model_version=VERSION, id=request.id)
            elif isinstance(result, Mapping):
                outputs = [as_tensor(key, value, declared) for key, value in result.items()]
                response = tw.InferResponse(
                    outputs, model_name=name, model_version=VERSION, id=request.id
                )
            else:
                raise InvalidOutputError(
                    f"{format_subject('model', name)} must return an InferResponse or a "
                    f"mapping of arrays, not {type(result).__name__}"
                )
            if declared:
                check_outputs(response.outputs, declared)
            return self.message_format.encode(response, request)
        except BaseException as error:  # see _call: objects of the model run code, too
            if type(error) is tw.EncodeError:  # attributes of another class may run code
                # 400: the request asks for an output that does not exist, or that cannot be JSON
                if error.status == 400:
                    raise
                model = format_subject("model", name)
                error = InvalidOutputError(f"an output of {model} cannot be sent: {error}")
            raise self._model_error(error) from None

    def _model_error(self, error: BaseException) -> tw.TensorwireError:
        """Return the error that the client receives. Log it unless the request is the cause.

        A KeyboardInterrupt of the main thread is raised again: a signal handler has raised it.
        """
        is_main_thread = threading.current_thread() is threading.main_thread()
        if issubclass(type(error), KeyboardInterrupt) and is_main_thread:
            raise error
        subject = self._subject()
        try:
            if isinstance(error, RequestError):
                return RequestError(str(error), error.status)
            if isinstance(error, tw.TensorwireError) and (reason := self._reason_for_client(error)):
                return RequestError(reason)
            if isinstance(error, InvalidOutputError):
                log.error("%s: %s", subject, error)
                return error
        except BaseException as invalid:  # of a class with a property or another text, for example
            error = invalid
        log.error("%s failed", subject, exc_info=error)
        return InvalidOutputError(f"{format_subject('model', self.served.name)} failed")

    def _subject(self) -> str:
        """Name the model and the request, for the log."""
        request_id = self.request.id or self.message_format.request_id(self.source)
        request = f", request {format_value(request_id)}" if request_id else ""
        return f"{format_subject('model', self.served.name)} (version {VERSION}{request})"

    def _reason_for_client(self, error: tw.TensorwireError) -> str | None:
        """Return the text of an error of the model that the request has caused.

        An input that the model does not declare is missing, or does not have the data that the
        model reads: it is in shared memory, or numbers, or BYTES that are not UTF-8.
        """
        request, declared = self.request, self.served.model.inputs
        name = error.tensor
        if name is None:  # a number, for example, is a mistake of the model
            return None
        if isinstance(error, TensorNotFoundError) and error.tensors is request.inputs:
            return None if declared else f"an input is missing: {error}"
        tensor = request.get(name)
        if tensor is None or error.status != 400:
            return None
        if isinstance(error, tw.ElementError):
            is_about_data = tensor.datatype == "BYTES"
        elif isinstance(error, tw.DatatypeError) and not declared:
            is_about_data = tensor.datatype != "BYTES"
        else:
            is_about_data = tensor.data is None
        return str(error) if is_about_data else None


def current_task() -> asyncio.Task[Any] | None:
    """Return the running task, or None without a task or an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def is_cancelled(error: BaseException) -> bool:
    """Return whether the server has cancelled the task, and not the model."""
    task = current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


def is_converted(value: Any) -> bool:
    """Return whether a large output is converted or copied, which takes long."""
    if getattr(getattr(value, "dtype", None), "kind", "O") not in "biuf":
        return True
    return (
        isinstance(value, np.ndarray)
        and value.nbytes > MAX_QUICK_MESSAGE_NBYTES
        and not (value.flags.c_contiguous and value.dtype.isnative)
    )


def nbytes_of(value: Any) -> int:
    """Return about the size of what a model returned, or any larger number if it is large.

    All items of a list count as the first one. Numbers have one shape, and to convert longer text
    takes less time than to make it: 2 ns for each character, and less than 0.1 ns if it is ASCII.
    """
    n_items = 1
    while isinstance(value, list | tuple) and value and n_items <= MAX_QUICK_JSON_NBYTES:
        n_items = n_items * len(value) + 1  # it grows if a list contains itself
        value = value[0]
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        n_items, value = n_items * value.size, next(value.flat, 0)
    if isinstance(value, str | bytes):
        return n_items * max(4, len(value))
    # An object that does not tell its size, such as an image, may be large.
    is_number = isinstance(value, int | float | list | tuple)  # or an empty list
    nbytes = 8 if is_number else getattr(value, "nbytes", None)
    return n_items * nbytes if isinstance(nbytes, int) else sys.maxsize
