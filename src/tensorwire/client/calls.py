"""The calls of both clients, as coroutines. The ``Backend`` of a client waits for them."""

from __future__ import annotations

import os
import random
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any, cast

import tensorwire as tw

from .._codec.limits import UNLIMITED
from .._codec.messages.lists import is_list_of_numbers
from ..arguments import check_integer, check_seconds, check_type, format_cast
from ..errors import MAX_ITEMS, InferenceServerError, format_seconds, format_value
from ..sizes import DEFAULT_MAX_BODY_NBYTES
from .adapters import Adapter, adapter_of
from .addresses import ServerAddress, parse_url
from .options import (
    DEFAULT_TIMEOUT,
    Call,
    ClientOptions,
    Deadline,
    GrpcChannel,
    Timeout,
    as_timeout,
)
from .requests import (
    AUTO_ID,
    CallbackError,
    Encoding,
    Endpoint,
    Headers,
    Inputs,
    OnProgress,
    ProgressReporter,
    Target,
    check_algorithms,
    check_headers,
    regions_of,
    remember,
)
from .sync import Backend

_LAST_ATTEMPT_SECONDS = 0.02  # minimum duration of an attempt of wait_until_ready
_LIST_HINT = "pass an array, or a Tensor with a datatype"


class BaseClient:
    """Stores the options of a client, builds its requests and sends them."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float | Timeout | None = DEFAULT_TIMEOUT,
        max_body_nbytes: int | None = DEFAULT_MAX_BODY_NBYTES,
        limits: tw.Limits | None = None,
        headers: Headers | None = None,
        connections: int = 32,
        idle_timeout: float | None = 30.0,
        retries: int = 0,
        ssl_context: ssl.SSLContext | None = None,
        trust_env: bool = True,
        binary_inputs: bool = True,
        channel: GrpcChannel | None = None,
    ) -> None:
        limits = UNLIMITED if limits is None else limits
        check_type("limits", limits, tw.Limits, "a Limits object")
        self.server: ServerAddress = parse_url(url)
        self.timeout: Timeout = as_timeout(timeout)
        self._options = ClientOptions(
            url,
            self.timeout,
            None
            if max_body_nbytes is None
            else check_integer("max_body_nbytes", max_body_nbytes, minimum=0),
            limits,
            check_headers(headers),
            check_integer("connections", connections, minimum=1),
            check_seconds("idle_timeout", idle_timeout),
            check_integer("retries", retries, minimum=0),
            ssl_context,
            trust_env,
            binary_inputs,
            channel,
        )
        self._adapter: Adapter = adapter_of(self.server, self._options)
        self._ids = count(1)
        self._datatypes: dict[Any, dict[str, Any]] = {}
        self._pools: dict[int, Any] = {}  # by the id of the process: see _open_pool
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.server.origin}{self.server.prefix}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._options.channel is not None:
            raise TypeError("a client with a channel of the caller cannot be pickled")
        return partial(type(self), **self._options._asdict()), ()

    # --- connections ---

    _new_backend: Callable[[], Backend]

    def _open_pool(self) -> Any:
        """Return the pool of this process, which is of the kind that the adapter takes.

        After a fork, the child process has its own, because it must not use the connections of its
        parent. No lock is used, because a thread of the parent may have had it. When its event loop
        has ended, the next one gets a new pool.
        """
        pid = os.getpid()
        pool = self._pools.get(pid)
        if pool is not None and not (pool.backend.is_async and pool.backend.is_lost()):
            return pool
        if self._is_closed:
            raise RuntimeError("the client is closed")
        if pool is not None and self._options.channel is not None:
            raise RuntimeError("the channel of the caller belongs to another event loop")
        for key, other in list(self._pools.items()):
            if key != pid or other is pool:
                self._pools.pop(key, None)
                other.forget()
        if pool is not None:
            # grpcio keeps every event loop until no channel is left: before the next one is made.
            pool = other = None
        return self._pools.setdefault(pid, self._adapter.new_pool(self._new_backend()))

    async def _close(self) -> None:
        pool = self._pools.get(os.getpid())
        if pool is not None and pool.backend.is_lost():
            self._pools.pop(os.getpid(), None)
            pool.forget()
            pool = None
        self._is_closed = True
        if pool is not None:
            await pool.close()

    # --- calls ---

    async def _infer(self, call: Call, inputs: Inputs, encoding: Encoding) -> tw.InferResponse:
        check_algorithms(encoding.algorithms)
        return await self._infer_encoded(call, await self._encode(call, inputs, encoding), encoding)

    async def _infer_raw(self, call: Call, array: Any) -> tw.InferResponse:
        return await self._infer_encoded(call, self._adapter.encode_raw(array), Encoding())

    async def _infer_encoded(
        self, call: Call, message: Any, encoding: Encoding
    ) -> tw.InferResponse:
        backend = self._open_pool().backend
        request = await self._adapter.infer_request(call.target, message, encoding, backend)
        if call.regions:
            request = request._replace(regions=call.regions)
        response: tw.InferResponse = await self._exchange(request, call)
        return response

    def _open_stream(self, call: Call, requests: Any) -> Any:
        encode = partial(self._encode, call, encoding=Encoding())
        return self._adapter.open_stream(self._open_pool, call, requests, encode)

    async def _metadata(self, call: Call) -> dict[str, Any]:
        request = self._adapter.metadata_request(call.target)
        metadata: dict[str, Any] = await self._exchange(request, call)
        remember(self._datatypes, call.target.key, _datatypes_of(metadata))
        return metadata

    async def _request_json(self, call: Call, method: str, path: str, body: Any) -> Any:
        request = self._adapter.json_request(call.target, method, path, body)
        return await self._exchange(request, call)

    async def _endpoint(self, call: Call, endpoint: Endpoint, **parameters: Any) -> Any:
        given = {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in parameters.items()
            if value not in (None, False)
        }
        request = self._adapter.endpoint_request(endpoint, call.target, given)
        return await self._exchange(request, call)

    async def _control(self, call: Call, endpoint: Endpoint, **parameters: Any) -> None:
        await self._endpoint(call, endpoint, **parameters)

    async def _is_ready(self, call: Call) -> bool:
        request = self._adapter.readiness_request(call.target)
        try:
            await self._exchange(request, call)
        except (InferenceServerError, ConnectionError, TimeoutError):
            return False
        return True

    async def _wait_until_ready(self, call: Call, timeout: Any) -> None:
        request = self._adapter.readiness_request(call.target)
        seconds: float = check_seconds("timeout", timeout, or_none=False)
        model = call.target.model
        subject = "the server" if model is None else f"model {model[:80]!r}"
        text = f"{subject} is not ready after {format_seconds(seconds)}"
        await self._exchange(request, call, self._wait(request, seconds, text))

    async def _wait(self, request: Any, seconds: float, text: str) -> None:
        end = time.monotonic() + seconds
        pause = 0.02
        last_seen: Exception | None = None
        pool = self._open_pool()
        while True:
            remaining = max(end - time.monotonic(), 0.001)
            total = min(self.timeout.total or remaining, remaining)
            try:
                await self._attempts(request, Call(Deadline(replace(self.timeout, total=total))))
                return
            except (InferenceServerError, OSError) as error:
                # The timeout of the last attempt, which is cut short, does not hide an error.
                if last_seen is None or not isinstance(error, TimeoutError):
                    last_seen = error
            remaining = end - time.monotonic() - _LAST_ATTEMPT_SECONDS
            if remaining <= 0:
                raise TimeoutError(f"{text}; last seen: {last_seen}") from last_seen
            await pool.backend.sleep(min(pause * random.uniform(0.5, 1.0), remaining))
            pause = min(pause * 2, 1.0)

    def _call(
        self,
        target: Target,
        timeout: float | Timeout | None = None,
        on_progress: OnProgress | None = None,
    ) -> Call:
        if target.model is None and target.key[1] is not None:
            raise ValueError("a version requires the name of a model")
        deadline = Deadline(self.timeout if timeout is None else as_timeout(timeout))
        call = Call(deadline, self._options.retries, target)
        if on_progress is not None:
            call.progress = ProgressReporter(on_progress)
        return call

    async def _encode(self, call: Call, inputs: Inputs, encoding: Encoding) -> Any:
        outputs, id, parameters, binary_inputs, binary_outputs, nonfinite, _ = encoding
        if isinstance(inputs, tw.Frame | bytes):
            if outputs is not None or parameters is not None or isinstance(id, str):
                raise TypeError(
                    f"the inputs are an encoded {type(inputs).__name__}: outputs, id, parameters, "
                    "sequence_id, sequence_start, sequence_end and priority must be passed to "
                    "encode_request"
                )
            return self._adapter.check_encoded(call.target, inputs)
        if binary_inputs is None:
            binary_inputs = self._options.binary_inputs
        if binary_outputs is None:
            binary_outputs = binary_inputs
        defaults = self._adapter.binary_parameters if binary_outputs else {}
        if isinstance(inputs, tw.InferRequest):
            defaults = {**defaults, **inputs.parameters}
            outputs = inputs.outputs if outputs is None else outputs
            id = inputs.id if id is AUTO_ID and inputs.id is not None else id
            tensors: Any = inputs.inputs
        elif isinstance(inputs, Mapping):
            tensors = dict(inputs)  # the caller may change it while the metadata is requested
            lists = {name: value for name, value in tensors.items() if is_list_of_numbers(value)}
            if lists:
                datatypes = await self._input_datatypes(call)
            for name, value in lists.items():
                tensors[name] = _tensor_of(call.target.model, name, value, datatypes)
        else:
            tensors = _tensors(inputs)
        id = str(next(self._ids)) if id is AUTO_ID else id
        parameters = {**defaults, **(parameters or {})}
        request = tw.InferRequest(tensors, outputs, id=id, parameters=parameters)
        if not binary_inputs:
            request = request.replace(inputs=[t.replace(binary=False) for t in request.inputs])
        call.regions = regions_of(request.outputs)
        call.inputs = [(each.name, each.datatype) for each in request.inputs]
        backend = self._open_pool().backend
        return await self._adapter.encode(call.target, request, nonfinite, backend)

    async def _input_datatypes(self, call: Call) -> dict[str, Any]:
        """Return the datatypes of the inputs that the metadata of a model declares."""
        key = call.target.key
        found = self._datatypes.get(key)
        if found is None:
            try:
                metadata = await self._metadata(
                    Call(call.deadline, self._options.retries, call.target)
                )
            except InferenceServerError as error:
                error.args = (f"{error} (for the datatype of a list of numbers: {_LIST_HINT})",)
                raise
            found = _datatypes_of(metadata)
        return found

    async def _exchange(
        self, request: Any, call: Call, attempts: Coroutine[Any, Any, Any] | None = None
    ) -> Any:
        """Make the attempts of a call. Only here, and in streams, do errors get their subject."""
        try:
            return await (attempts or self._attempts(request, call))
        except CallbackError as failure:
            raised = failure.error
        except (OSError, tw.TensorwireError) as error:
            # No local variable has the error: a cycle of references would keep the inputs.
            raise self._advised(request.operation.named(error), call)  # noqa: B904 - it has a cause
        try:
            raise raised
        finally:
            del raised

    def _advised(self, error: Exception, call: Call) -> Exception:
        """Add to an error how to cast inputs to the datatypes of the metadata, if it is known."""
        if isinstance(error, InferenceServerError) and error.status == 400:
            declared = self._datatypes.get(call.target.key, {})
            found = (format_cast(*each, declared.get(each[0])) for each in call.inputs)
            casts = ", ".join(islice(filter(None, found), MAX_ITEMS))
            if casts and ".astype(" not in error.message:
                error.args = (f"{error} (to send what the model declares: {casts})",)
        return error

    async def _attempts(self, request: Any, call: Call) -> Any:
        """Send a request, up to ``retries`` times more if that may help, and read the response."""
        pool = self._open_pool()
        while True:
            try:
                body = await self._adapter.attempt(pool, request, call)
                return await self._adapter.read(request, body, pool.backend)
            except (OSError, InferenceServerError) as error:
                delay = call.retry_delay(error)
                if delay is None or self._is_closed:
                    raise
            await pool.backend.sleep(delay)


def _datatypes_of(metadata: Any) -> dict[str, Any]:
    """Return the datatypes of the inputs, if the metadata are those of a model."""
    try:
        return {entry["name"]: entry["datatype"] for entry in metadata["inputs"]}
    except (TypeError, LookupError):
        return {}


def _tensors(inputs: Any) -> Any:
    """Return the tensors of inputs that are not a mapping. InferRequest checks them."""
    kind = type(inputs)
    if hasattr(kind, "columns"):
        return tw.tensors_from_dataframe(inputs)
    is_single = isinstance(inputs, str | tw.BytesArray) or hasattr(kind, "__array__")
    if isinstance(inputs, Iterable) and not is_single:
        return inputs
    raise TypeError(
        f"inputs must be a mapping of names to arrays, Tensors or a Frame, not {kind.__name__}: "
        "pass a single input as {name: array} or [Tensor]"
    )


def _tensor_of(model: str | None, name: str, value: Any, datatypes: dict[str, Any]) -> tw.Tensor:
    datatype: Any = datatypes.get(name)
    if not isinstance(datatype, str):
        raise ValueError(
            f"input {format_value(name)} is a list of numbers, but the metadata of model "
            f"{format_value(model)} does not declare its datatype: {_LIST_HINT}"
        )
    return tw.Tensor(name, value, datatype=cast("Any", datatype))
