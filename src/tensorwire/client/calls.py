"""The calls of both clients, as coroutines. The ``Backend`` of a client waits for them.

The scheme of the URL chooses the transport, which is imported when it is first used. Those of
HTTP and gRPC have the same methods, but each has its own kinds of pools, messages and requests.
"""

from __future__ import annotations

import itertools
import os
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import tensorwire as tw

from ..arguments import Nonfinite, check_integer, check_seconds, check_type, is_list_of_numbers
from ..errors import format_value
from .addresses import Server, parse_url
from .errors import InferenceServerError
from .limits import (
    DEFAULT_MAX_BODY,
    DEFAULT_TIMEOUT,
    RESPONSE_LIMITS,
    Deadline,
    ReadinessWait,
    Retries,
    Timeout,
    as_timeout,
)
from .requests import (
    AUTO_ID,
    Algorithm,
    Headers,
    Id,
    OnProgress,
    ProgressReporter,
    Target,
    check_algorithm,
    check_headers,
    remember,
)

if TYPE_CHECKING:
    import grpc

    from .grpc import GrpcTransport
    from .grpc_channels import Channel, GrpcBody
    from .grpc_streams import Stream
    from .http import HttpTransport
    from .pool import Pool
    from .responses import ResponseBody

    GrpcChannel: TypeAlias = grpc.Channel | grpc.aio.Channel
else:
    GrpcChannel = Any  # annotations can be evaluated without grpcio

_ENCODED = (tw.Frame, bytes)
_LIST_HINT = "pass an array, or a Tensor with a datatype"
Inputs = tw.Frame | bytes | tw.InferRequest | Mapping[str, Any] | Iterable[tw.Tensor]
Outputs = Iterable[str | tw.RequestedOutput]
Result = TypeVar("Result")


class Options(NamedTuple):
    """The arguments of a client, after they were checked."""

    url: str
    timeout: Timeout
    max_body: int | None
    limits: tw.Limits
    headers: dict[str, str]
    connections: int
    idle_timeout: float | None
    retries: int
    ssl_context: ssl.SSLContext | None
    trust_env: bool
    binary_inputs: bool
    channel: GrpcChannel | None


def complete(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that is never suspended, such as those of the blocking client."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("the coroutine was suspended")


class BaseClient:
    """Stores the options of a client, builds its requests and sends them."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float | Timeout | None = DEFAULT_TIMEOUT,
        max_body: int | None = DEFAULT_MAX_BODY,
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
        if max_body is not None:
            max_body = check_integer("max_body", max_body, minimum=0)
        if limits is None:
            limits = RESPONSE_LIMITS
        check_type("limits", limits, tw.Limits, "a Limits object")
        self.server: Server = parse_url(url)
        self.timeout: Timeout = as_timeout(timeout)
        self._options = Options(
            url,
            self.timeout,
            max_body,
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
        self._transport: HttpTransport | GrpcTransport
        if self.server.is_grpc:
            from .grpc import GrpcTransport  # noqa: PLC0415 - requires grpcio

            self._transport = GrpcTransport(self.server, self._options)
        else:
            from .http import HttpTransport  # noqa: PLC0415 - requires httptools

            self._transport = HttpTransport(self.server, self._options)
        self._default_deadline = Deadline(self.timeout) if self.timeout.total is None else None
        self._ids = itertools.count(1)
        self._datatypes: dict[Any, dict[str, Any]] = {}
        self._pools: dict[int, Pool | Channel] = {}  # by the id of the process: see _open_pool
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.server.origin}{self.server.prefix}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._options.channel is not None:
            raise TypeError("a client with a channel of the caller cannot be pickled")
        return partial(type(self), **self._options._asdict()), ()

    # --- connections ---

    _new_backend: Callable[[], Any]  # the class BlockingBackend or LoopBackend

    def _open_pool(self) -> Any:
        """Return the pool of this process, which is of the kind that the transport takes.

        After a fork, the child process has its own, because it must not use the connections of its
        parent. No lock is used, because a thread of the parent may have had it.
        """
        pid = os.getpid()
        pool = self._pools.get(pid)
        if pool is None:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            for other in [key for key in self._pools if key != pid]:
                if inherited := self._pools.pop(other, None):
                    inherited.forget()
            made = self._transport.new_pool(self._new_backend())
            pool = self._pools.setdefault(pid, made)
        return pool

    def _close_pool(self) -> Awaitable[None] | None:
        self._is_closed = True
        pool = self._pools.get(os.getpid())
        return None if pool is None else pool.close()

    # --- sending requests ---

    def _deadline(self, timeout: float | Timeout | None) -> Deadline:
        if timeout is not None:
            return Deadline(as_timeout(timeout))
        return self._default_deadline or Deadline(self.timeout)

    async def _exchange(
        self, request: Any, deadline: Deadline, on_progress: OnProgress | None = None
    ) -> ResponseBody | GrpcBody:
        """Send a request, and repeat it up to ``retries`` times if that may help."""
        progress = None if on_progress is None else ProgressReporter(on_progress, request.nbytes)
        attempt = self._transport.attempt
        retries = Retries(self._options.retries)
        while True:
            try:
                return await attempt(self._open_pool(), request, deadline, progress, retries)
            except (ConnectionError, InferenceServerError) as error:
                if progress and progress.error is error:
                    raise
                delay = retries.delay(error, deadline)
                if delay is None:
                    raise
            await self._open_pool().backend.sleep(delay)

    async def _metadata(self, target: Target, deadline: Deadline) -> dict[str, Any]:
        request = self._transport.metadata_request(target)
        body = await self._exchange(request, deadline)
        return await self._run(body.is_slow_to_decode, body.parse_metadata, self._options.limits)

    async def _infer(
        self, request: Any, deadline: Deadline, on_progress: OnProgress | None
    ) -> tw.InferResponse:
        """Send a request for inference, and return the response."""
        body = await self._exchange(request, deadline, on_progress)
        return await self._run(body.is_slow_to_decode, body.decode, self._options.limits)

    async def _run(self, is_slow: bool, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function, in a thread if it would block the event loop of an AsyncClient."""
        if is_slow:
            result: Result = await self._open_pool().backend.run(function, *arguments)
            return result
        return function(*arguments)

    def _open_stream(
        self, target: Target, requests: Any, timeout: float | Timeout | None
    ) -> Stream:
        deadline = self._deadline(timeout)
        encode = partial(self._encode, target, deadline)
        return self._transport.open_stream(self._open_pool(), target, deadline, requests, encode)

    # --- encoding ---

    async def _encode(
        self,
        target: Target,
        deadline: Deadline,
        inputs: Inputs,
        outputs: Outputs | None = None,
        id: Id = AUTO_ID,
        parameters: Mapping[str, Any] | None = None,
        binary_inputs: bool | None = None,
        binary_outputs: bool | None = None,
        nonfinite: Nonfinite | None = None,
    ) -> Any:
        """Encode the arguments of ``infer``."""
        if isinstance(inputs, _ENCODED):
            if outputs is not None or parameters is not None or isinstance(id, str):
                raise TypeError(
                    f"the inputs are an encoded {type(inputs).__name__}: outputs, id and "
                    "parameters must be passed to encode_request"
                )
            return self._transport.check_encoded(target, inputs)
        if binary_inputs is None:
            binary_inputs = self._options.binary_inputs
        if binary_outputs is None:
            binary_outputs = binary_inputs
        defaults = self._transport.binary_outputs if binary_outputs else {}
        if isinstance(inputs, tw.InferRequest):
            defaults = {**defaults, **inputs.parameters}
            outputs = inputs.outputs if outputs is None else outputs
            id = inputs.id if id is AUTO_ID and inputs.id is not None else id
            tensors: Any = inputs.inputs
        elif isinstance(inputs, Mapping):
            tensors = dict(inputs)  # the caller may change it while the metadata is requested
            lists = {name: value for name, value in tensors.items() if is_list_of_numbers(value)}
            if lists:
                datatypes = await self._input_datatypes(target, deadline)
            for name, value in lists.items():
                tensors[name] = _tensor_of(target.model, name, value, datatypes)
        else:
            tensors = _tensors(inputs)
        id = str(next(self._ids)) if id is AUTO_ID else id
        parameters = {**defaults, **(parameters or {})}
        request = tw.InferRequest(tensors, outputs, id=id, parameters=parameters)
        if not binary_inputs:
            request = request.replace(inputs=[t.replace(binary=False) for t in request.inputs])
        is_slow = self._transport.is_slow_to_encode(request)
        return await self._run(is_slow, self._transport.encode, target, request, nonfinite)

    async def _input_datatypes(self, target: Target, deadline: Deadline) -> dict[str, Any]:
        """Return the datatypes of the inputs that the metadata of a model declares."""
        key = target.key
        found = self._datatypes.get(key)
        if found is None:
            try:
                metadata = await self._metadata(target, deadline)
            except InferenceServerError as error:
                error.args = (f"{error} (for the datatype of a list of numbers: {_LIST_HINT})",)
                raise
            try:
                found = {entry["name"]: entry["datatype"] for entry in metadata["inputs"]}
            except (TypeError, LookupError):
                found = {}
            remember(self._datatypes, key, found)
        return found


class Calls(BaseClient):
    """The public methods of the clients."""

    async def infer(
        self,
        model: str,
        inputs: Inputs,
        outputs: Outputs | None = None,
        *,
        binary_inputs: bool | None = None,
        binary_outputs: bool | None = None,
        nonfinite: Nonfinite | None = None,
        version: str | None = None,
        id: Id = AUTO_ID,
        parameters: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
        request_compression_algorithm: Algorithm | None = None,
        response_compression_algorithm: Algorithm | None = None,
        on_progress: OnProgress | None = None,
    ) -> tw.InferResponse:
        """Run inference.

        Parameters
        ----------
        model : str
            The name of the model.
        inputs : mapping of str to array or list, iterable of Tensor, InferRequest, Frame or bytes
            The inputs. Large inputs are not copied over HTTP. Their memory must not change until
            the call returns. A list of numbers gets the datatype that the metadata of the model
            declares. The client requests the metadata once per model and version.

            The outputs, id and parameters of an InferRequest are those of the call, unless they are
            passed. Its model name and version are not used.

            A Frame is a request that ``encode_request`` returned. It can be sent any number of
            times, and is not encoded again. ``outputs``, ``id``, ``parameters``, ``binary_inputs``,
            ``binary_outputs`` and ``nonfinite`` do not apply: set them in the InferRequest, and
            ``nonfinite`` in the call of ``encode_request``. (To receive all outputs as binary data,
            set the parameter ``binary_data_output``.)

            Over gRPC, an encoded request is the ``bytes`` that ``tensorwire.grpc.encode_request``
            returned for an InferRequest with the ``model_name`` and ``model_version`` of the call.
        outputs : iterable of str or RequestedOutput, optional
            The outputs to return. By default, the server returns all outputs.
        binary_inputs : bool, optional
            Whether to send the inputs as binary data, except those whose ``binary`` is False. By
            default, that of the client. It has no effect over gRPC.
        binary_outputs : bool, optional
            Whether to request all outputs as binary data. The ``binary`` of a RequestedOutput and
            a ``binary_data_output`` in ``parameters`` take precedence. By default, it is
            ``binary_inputs``.
        nonfinite : {"null", "literal", "error"}, optional
            How to write NaN and infinities in inputs that are sent as JSON; see ``encode_request``.
            By default, NaN is sent as ``null``, and an infinity raises EncodeError. It has no
            effect on binary data and over gRPC, which has no JSON.
        version : str, optional
            The version of the model. By default, the server chooses one.
        id : str or None, default AUTO_ID
            The id of the request. The server returns it in the response. By default, the client
            numbers its requests: the ids are "1", "2" and so on. If it is None, the request has no
            id; models that copy the id to the response then fail on some servers.
        parameters : mapping, optional
            The parameters of the request.
        headers : mapping of str to str, optional
            Additional headers for this request, which are metadata over gRPC.
        timeout : float or Timeout, optional
            Timeouts for this call. By default, the timeouts of the client apply.
        request_compression_algorithm : {"gzip", "deflate", "zstd"}, optional
            Compress the request. By default, it is not compressed. zstd is only for HTTP, and
            requires Python 3.14 or ``tensorwire[zstd]``.
        response_compression_algorithm : {"gzip", "deflate", "zstd"}, optional
            Ask the server to compress the response, which is then decompressed. By default, the
            server is asked not to compress it. Over gRPC, the server decides.
        on_progress : callable, optional
            A function that is called with a ``Progress`` about once per MiB, and at the end of each
            direction. If it raises an exception, the call is aborted: the connection is closed and
            the exception is raised. If the request is sent again, the numbers begin at 0 again.
            Over gRPC, it is only called when the response has arrived.

        Returns
        -------
        InferResponse
            Its binary tensors are writable views of the response body, which is kept until the last
            of them is released. The first one is aligned to 64 bytes (WIRE.md 6). Over gRPC, they
            are read-only, and not aligned.

        Raises
        ------
        InferenceServerError, DecodeError, ConnectionError, TimeoutError, RuntimeError
            See ``Client``.
        EncodeError
            The request cannot be encoded. For example, JSON cannot represent FP16 and infinities.
        ValueError
            ``model``, ``version``, ``timeout``, ``nonfinite``, a header or a compression algorithm
            is invalid, or an input is a list of numbers, and the metadata of the model does not
            declare it.
        TypeError
            An argument has the wrong type.
        ImportError
            zstd is not installed.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     response = client.infer("add", {"x": np.ones(2), "y": np.ones(2)}, ["sum"])
        >>> response["sum"].as_numpy()                                   # doctest: +SKIP
        array([2., 2.])

        A request that is encoded once and sent twice:

        >>> import tensorwire as tw
        >>> inputs = [tw.Tensor("x", np.ones(2)), tw.Tensor("y", np.ones(2))]
        >>> request = tw.InferRequest(inputs, parameters={"binary_data_output": True})
        >>> frame = tw.encode_request(request)
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     responses = [client.infer("add", frame) for _ in range(2)]
        """
        check_algorithm(request_compression_algorithm)
        check_algorithm(response_compression_algorithm)
        deadline = self._deadline(timeout)
        target = Target(model, version, headers)
        message = await self._encode(
            target,
            deadline,
            inputs,
            outputs,
            id,
            parameters,
            binary_inputs,
            binary_outputs,
            nonfinite,
        )
        if request_compression_algorithm:
            message = await self._transport.compress(
                message, request_compression_algorithm, self._open_pool().backend
            )
        request = self._transport.infer_request(target, message, response_compression_algorithm)
        return await self._infer(request, deadline, on_progress)

    async def infer_raw(
        self,
        model: str,
        array: Any,
        *,
        version: str | None = None,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
        on_progress: OnProgress | None = None,
    ) -> tw.InferResponse:
        """Run inference with a raw binary request, on a model with one input (HTTP; WIRE.md 5).

        The body of the request is the data of the array. The model defines the name, the datatype
        and the shape of the input. The server returns all outputs as binary data.

        Parameters
        ----------
        array : array_like, bytes or str
            The input; see ``encode_raw_request``. Its memory must not change until the call
            returns.
        model, version, headers, timeout, on_progress
            See ``infer``.

        Returns
        -------
        InferResponse
            See ``infer``.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     response = client.infer_raw("mean", np.ones(1000, np.float32))
        """
        deadline = self._deadline(timeout)
        frame: Any = self._transport.encode_raw(array)
        request = self._transport.infer_request(Target(model, version, headers), frame)
        return await self._infer(request, deadline, on_progress)

    async def server_metadata(
        self, *, headers: Headers | None = None, timeout: float | Timeout | None = None
    ) -> dict[str, Any]:
        """Return the metadata of the server.

        Parameters
        ----------
        headers, timeout
            See ``infer``.

        Returns
        -------
        dict
            The JSON object of the server, usually with ``name``, ``version`` and ``extensions``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.server_metadata()["extensions"]
        ['binary_tensor_data']
        """
        return await self._metadata(Target(None, None, headers), self._deadline(timeout))

    async def model_metadata(
        self,
        model: str,
        version: str | None = None,
        *,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> dict[str, Any]:
        """Return the metadata of a model.

        Parameters
        ----------
        model, version, headers, timeout
            See ``infer``.

        Returns
        -------
        dict
            The JSON object of the server, usually with ``name``, ``versions``, ``platform``,
            ``inputs`` and ``outputs``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.model_metadata("resnet")["inputs"]
        [{'name': 'image', 'datatype': 'FP32', 'shape': [-1, 3, 224, 224]}]
        """
        return await self._metadata(Target(model, version, headers), self._deadline(timeout))

    async def is_ready(
        self,
        model: str | None = None,
        version: str | None = None,
        *,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> bool:
        """Return whether the server, or one of its models, is ready.

        Parameters
        ----------
        model : str, optional
            The name of a model. By default, the server as a whole is checked.
        version, headers, timeout
            See ``infer``.

        Returns
        -------
        bool
            False if the server responds with an error, the connection fails or a timeout expires.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.is_ready("resnet")
        True
        """
        request = self._transport.readiness_request(Target(model, version, headers))
        try:
            await self._exchange(request, self._deadline(timeout))
        except (InferenceServerError, ConnectionError, TimeoutError):
            return False
        return True

    async def wait_until_ready(
        self,
        timeout: float,
        model: str | None = None,
        version: str | None = None,
        *,
        headers: Headers | None = None,
    ) -> None:
        """Wait until the server, or one of its models, is ready.

        Parameters
        ----------
        timeout : float
            Maximum duration of the wait in seconds.
        model, version, headers
            See ``is_ready``.

        Raises
        ------
        TimeoutError
            The server or the model is not ready in time. The message contains the last error.
        DecodeError, RuntimeError, ValueError, TypeError
            See ``Client``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.wait_until_ready(30, "resnet")
        """
        request: Any = self._transport.readiness_request(Target(model, version, headers))
        wait = ReadinessWait(model, timeout)
        while True:
            try:
                deadline = Deadline(wait.timeout(self.timeout))
                await self._transport.attempt(
                    self._open_pool(), request, deadline, None, Retries(0)
                )
                return
            except (InferenceServerError, ConnectionError, TimeoutError) as error:
                delay = wait.next_delay(error)
            await self._open_pool().backend.sleep(delay)


def _tensors(inputs: Any) -> list[tw.Tensor]:
    """Return the inputs of a request that are not a mapping. Raises TypeError."""
    kind = type(inputs)
    is_single = isinstance(inputs, str | tw.BytesArray) or hasattr(kind, "__array__")
    if hasattr(kind, "columns"):  # a data frame, or a table of pyarrow
        hint = "pass tensors_from_dataframe(inputs)"
    elif is_single or not isinstance(inputs, Iterable):
        hint = "pass a single input as {name: array} or [Tensor]"
    else:
        found = list(inputs)
        wrong = next((item for item in found if not isinstance(item, tw.Tensor)), None)
        if wrong is None:
            return found
        raise TypeError(
            f"inputs must be a mapping of names to arrays, or contain only Tensors, not "
            f"{type(wrong).__name__}"
        )
    raise TypeError(
        f"inputs must be a mapping of names to arrays, Tensors or a Frame, not "
        f"{kind.__name__}: {hint}"
    )


def _tensor_of(model: str | None, name: str, value: Any, datatypes: dict[str, Any]) -> tw.Tensor:
    """Return the tensor of a list of numbers. Raises ValueError."""
    datatype: Any = datatypes.get(name)
    if not isinstance(datatype, str):
        raise ValueError(
            f"input {format_value(name)} is a list of numbers, but the metadata of model "
            f"{format_value(model)} does not declare its datatype: {_LIST_HINT}"
        )
    return tw.Tensor(name, value, datatype=cast("Any", datatype))
