"""The calls of both clients, as coroutines. The ``Backend`` of a client waits for them.

The scheme of the URL chooses the ``Transport``, which is imported when it is first used.
"""

from __future__ import annotations

import itertools
import os
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

import tensorwire as tw

from ..arguments import check_integer, check_type, is_list_of_numbers
from ..errors import format_value
from .addresses import Server, parse_url
from .errors import InferenceServerError
from .limits import (
    DEFAULT_MAX_BODY,
    DEFAULT_TIMEOUT,
    RESPONSE_LIMITS,
    Deadline,
    ReadinessWait,
    Timeout,
    as_timeout,
    retry_delay,
)
from .requests import (
    AUTO_ID,
    Algorithm,
    Headers,
    Id,
    OnProgress,
    ProgressReporter,
    check_algorithm,
    check_headers,
    remember,
)

if TYPE_CHECKING:
    import grpc

    from .connection import Backend

_ENCODED = (tw.Frame, bytes)
Inputs = tw.Frame | bytes | tw.InferRequest | Mapping[str, Any] | Iterable[tw.Tensor]
Outputs = Iterable[str | tw.RequestedOutput]


class Body(Protocol):
    """The body of a successful response."""

    def decode(self, limits: tw.Limits) -> tw.InferResponse: ...

    def parse_metadata(self, limits: tw.Limits) -> dict[str, Any]: ...


class OpenStream(Protocol):
    """A call with several requests and responses."""

    async def read(self) -> tw.InferResponse | None:
        """Return the next response, or None at the end."""

    def close(self) -> None:
        """Cancel the call, unless it has ended."""


class ConnectionPool(Protocol):
    """The connections of a client in one process."""

    backend: Backend

    def close(self) -> Awaitable[None] | None: ...

    def forget(self) -> None:
        """Release what a child process has inherited."""


class Transport(Protocol):
    """Builds the requests of a client, and sends them."""

    has_raw_requests: bool

    def new_pool(self, backend: Backend) -> ConnectionPool: ...

    def metadata_request(
        self, model: str | None, version: str | None, headers: Headers | None
    ) -> Any: ...

    def readiness_request(
        self, model: str | None, version: str | None, headers: Headers | None
    ) -> Any: ...

    def encode(
        self,
        model: str,
        version: str | None,
        tensors: Any,
        outputs: Any,
        id: str | None,
        parameters: Mapping[str, Any],
        binary_inputs: bool,
        binary_outputs: bool,
    ) -> Any: ...

    def check_encoded(self, model: str, version: str | None, message: tw.Frame | bytes) -> Any:
        """Return a request that the caller has encoded. Raises TypeError and ValueError."""

    async def compress(self, message: Any, algorithm: Algorithm, backend: Backend) -> Any: ...

    def infer_request(
        self,
        model: str,
        version: str | None,
        headers: Headers | None,
        message: Any,
        accept: Algorithm | None = None,
    ) -> Any: ...

    def open_stream(
        self,
        pool: Any,
        model: str,
        headers: Headers | None,
        deadline: Deadline,
        requests: Any,
        encode: Callable[[Any], Coroutine[Any, Any, bytes]],
    ) -> OpenStream: ...

    async def attempt(
        self, pool: Any, request: Any, deadline: Deadline, progress: ProgressReporter | None
    ) -> Body:
        """Send a request, and return the body of the response."""
        raise NotImplementedError

    async def explain(self, pool: Any, request: Any, error: InferenceServerError) -> None:
        """Add to the error of an inference request what may help."""


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
        channel: grpc.Channel | grpc.aio.Channel | None = None,
    ) -> None:
        self._options = {name: value for name, value in locals().items() if name != "self"}
        self.retries: int = check_integer("retries", retries, minimum=0)
        if max_body is not None:
            max_body = check_integer("max_body", max_body, minimum=0)
        if limits is not None:
            check_type("limits", limits, tw.Limits, "a Limits object")
        self.server: Server = parse_url(url)
        self.timeout: Timeout = as_timeout(timeout)
        self.max_body: int | None = max_body
        self.limits: tw.Limits = RESPONSE_LIMITS if limits is None else limits
        self.headers: dict[str, str] = check_headers(headers)
        self._options["headers"] = self.headers
        self.binary_inputs: bool = binary_inputs
        self._transport = _new_transport(
            self.server,
            self.headers,
            self.timeout,
            max_body,
            self.limits,
            connections=connections,
            idle_timeout=idle_timeout,
            ssl_context=ssl_context,
            trust_env=trust_env,
            channel=channel,
        )
        self._default_deadline = Deadline(self.timeout) if self.timeout.total is None else None
        self._ids = itertools.count(1)
        self._datatypes: dict[tuple[str, str | None], dict[str, Any]] = {}
        self._pools: dict[int, ConnectionPool] = {}  # by the id of the process: see _open_pool
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.server.origin}{self.server.prefix}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._options["channel"] is not None:
            raise TypeError("a client with a channel of the caller cannot be pickled")
        return _new_client, (type(self), self._options)

    # --- connections ---

    def _new_backend(self) -> Backend:
        raise NotImplementedError

    def _open_pool(self) -> ConnectionPool:
        """Return the pool of this process.

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
    ) -> Body:
        """Send a request, and repeat it up to ``retries`` times if that may help."""
        progress = None if on_progress is None else ProgressReporter(on_progress, request.nbytes)
        attempt = self._transport.attempt
        n_retries = 0
        while True:
            try:
                return await attempt(self._open_pool(), request, deadline, progress)
            except (ConnectionError, InferenceServerError) as error:
                if n_retries >= self.retries or (progress and progress.error is error):
                    raise
                delay = retry_delay(error, n_retries, deadline)
                if delay is None:
                    raise
            n_retries += 1
            await self._open_pool().backend.sleep(delay)

    async def _get_metadata(self, request: Any, deadline: Deadline) -> dict[str, Any]:
        return (await self._exchange(request, deadline)).parse_metadata(self.limits)

    async def _infer(
        self, request: Any, deadline: Deadline, on_progress: OnProgress | None
    ) -> tw.InferResponse:
        try:
            body = await self._exchange(request, deadline, on_progress)
        except InferenceServerError as error:
            await self._transport.explain(self._open_pool(), request, error)
            raise
        return body.decode(self.limits)

    def _open_stream(
        self,
        model: str,
        requests: Any,
        version: str | None,
        headers: Headers | None,
        timeout: float | Timeout | None,
    ) -> OpenStream:
        deadline = self._deadline(timeout)

        async def encode(inputs: Any) -> bytes:
            message: bytes = await self._encode(
                model, version, headers, deadline, inputs, None, None, None, AUTO_ID, None
            )
            return message

        return self._transport.open_stream(
            self._open_pool(), model, headers, deadline, requests, encode
        )

    # --- encoding ---

    async def _encode(
        self,
        model: str,
        version: str | None,
        headers: Headers | None,
        deadline: Deadline,
        inputs: Inputs,
        outputs: Outputs | None,
        binary_inputs: bool | None,
        binary_outputs: bool | None,
        id: Id,
        parameters: Mapping[str, Any] | None,
    ) -> Any:
        """Encode the arguments of ``infer``."""
        if isinstance(inputs, _ENCODED):
            if outputs is not None or parameters is not None or isinstance(id, str):
                raise TypeError(
                    f"the inputs are an encoded {type(inputs).__name__}: outputs, id and "
                    "parameters must be passed to encode_request"
                )
            return self._transport.check_encoded(model, version, inputs)
        if binary_inputs is None:
            binary_inputs = self.binary_inputs
        if binary_outputs is None:
            binary_outputs = binary_inputs
        if parameters is None:
            parameters = {}
        if isinstance(inputs, tw.InferRequest):
            parameters = {**inputs.parameters, **parameters}
            outputs = inputs.outputs if outputs is None else outputs
            id = inputs.id if id is AUTO_ID and inputs.id is not None else id
            tensors: Any = inputs.inputs
        elif isinstance(inputs, Mapping):
            tensors = dict(inputs)  # the caller may change it while the metadata is requested
            lists = {name: value for name, value in tensors.items() if is_list_of_numbers(value)}
            if lists:
                datatypes = await self._input_datatypes(model, version, headers, deadline)
            for name, value in lists.items():
                tensors[name] = _tensor_of(model, name, value, datatypes)
        else:
            tensors = _tensors(inputs)
        return self._transport.encode(
            model,
            version,
            tensors,
            outputs,
            str(next(self._ids)) if id is AUTO_ID else id,
            parameters,
            binary_inputs,
            binary_outputs,
        )

    async def _input_datatypes(
        self, model: str, version: str | None, headers: Headers | None, deadline: Deadline
    ) -> dict[str, Any]:
        """Return the datatypes of the inputs that the metadata of a model declares."""
        key = (
            model,
            None if version is None else str(version),
        )  # the versions 1 and "1" are the same
        found = self._datatypes.get(key)
        if found is None:
            request = self._transport.metadata_request(model, version, headers)
            metadata = await self._get_metadata(request, deadline)
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
            times, and is not encoded again. ``outputs``, ``id``, ``parameters``, ``binary_inputs``
            and ``binary_outputs`` do not apply: set them in the InferRequest. (To receive all
            outputs as binary data, set its parameter ``binary_data_output``.)

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
        request_compression_algorithm : {"gzip", "deflate"}, optional
            Compress the request. By default, it is not compressed.
        response_compression_algorithm : {"gzip", "deflate"}, optional
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
            The request cannot be encoded.
        ValueError
            ``model``, ``version``, ``timeout``, a header or a compression algorithm is invalid, or
            an input is a list of numbers, and the metadata of the model does not declare it.
        TypeError
            An argument has the wrong type.

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
        message = await self._encode(
            model,
            version,
            headers,
            deadline,
            inputs,
            outputs,
            binary_inputs,
            binary_outputs,
            id,
            parameters,
        )
        if request_compression_algorithm:
            message = await self._transport.compress(
                message, request_compression_algorithm, self._open_pool().backend
            )
        request = self._transport.infer_request(
            model, version, headers, message, response_compression_algorithm
        )
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
        model : str
            The name of the model.
        array : array_like, bytes or str
            The input; see ``encode_raw_request``. Its memory must not change until the call
            returns.
        version, headers, timeout, on_progress
            See ``infer``.

        Returns
        -------
        InferResponse
            See ``infer``.

        Raises
        ------
        InferenceServerError, DecodeError, ConnectionError, TimeoutError, RuntimeError
            See ``Client``.
        EncodeError, ValueError, TypeError
            See ``infer``.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     response = client.infer_raw("mean", np.ones(1000, np.float32))
        """
        if not self._transport.has_raw_requests:
            raise ValueError("infer_raw requires HTTP: gRPC has no raw binary requests")
        deadline = self._deadline(timeout)
        frame = tw.encode_raw_request(array)
        request = self._transport.infer_request(model, version, headers, frame)
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

        Raises
        ------
        InferenceServerError, DecodeError, ConnectionError, TimeoutError, RuntimeError
            See ``Client``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.server_metadata()["extensions"]
        ['binary_tensor_data']
        """
        request = self._transport.metadata_request(None, None, headers)
        return await self._get_metadata(request, self._deadline(timeout))

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
        model : str
            The name of the model.
        version : str, optional
            The version of the model. By default, the server chooses one.
        headers, timeout
            See ``infer``.

        Returns
        -------
        dict
            The JSON object of the server, usually with ``name``, ``versions``, ``platform``,
            ``inputs`` and ``outputs``.

        Raises
        ------
        InferenceServerError, DecodeError, ConnectionError, TimeoutError, RuntimeError, ValueError
            See ``Client``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.model_metadata("resnet")["inputs"]
        [{'name': 'image', 'datatype': 'FP32', 'shape': [-1, 3, 224, 224]}]
        """
        request = self._transport.metadata_request(model, version, headers)
        return await self._get_metadata(request, self._deadline(timeout))

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
        version : str, optional
            The version of the model. By default, the server chooses one.
        headers, timeout
            See ``infer``.

        Returns
        -------
        bool
            False if the server responds with an error, the connection fails or a timeout expires.

        Raises
        ------
        DecodeError, RuntimeError, ValueError
            See ``Client``.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.is_ready("resnet")
        True
        """
        request = self._transport.readiness_request(model, version, headers)
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
        DecodeError, RuntimeError
            See ``Client``.
        ValueError
            ``timeout`` is not a positive number, or ``model`` or ``version`` is invalid.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.wait_until_ready(30, "resnet")
        """
        request = self._transport.readiness_request(model, version, headers)
        wait = ReadinessWait(model, timeout)
        while True:
            try:
                deadline = Deadline(wait.timeout(self.timeout))
                await self._transport.attempt(self._open_pool(), request, deadline, None)
                return
            except (InferenceServerError, ConnectionError, TimeoutError) as error:
                delay = wait.next_delay(error)
            await self._open_pool().backend.sleep(delay)


def _new_transport(server: Server, *arguments: Any, **options: Any) -> Transport:
    if server.is_grpc:
        from .grpc import GrpcTransport  # noqa: PLC0415 - requires grpcio

        return GrpcTransport(server, *arguments, **options)
    from .http import HttpTransport  # noqa: PLC0415 - requires httptools

    return HttpTransport(server, *arguments, **options)


def _new_client(kind: type[BaseClient], options: dict[str, Any]) -> BaseClient:
    return kind(**options)


def _tensors(inputs: Iterable[Any]) -> list[tw.Tensor]:
    """Return the inputs of a request that are not a mapping. Raises TypeError."""
    if not isinstance(inputs, np.ndarray | str | bytes | tw.Tensor | tw.BytesArray):
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
        f"{type(inputs).__name__}: pass a single input as {{name: array}}"
    )


def _tensor_of(model: str, name: str, value: Any, datatypes: dict[str, Any]) -> tw.Tensor:
    """Return the tensor of a list of numbers. Raises ValueError."""
    datatype: Any = datatypes.get(name)
    if not isinstance(datatype, str):
        raise ValueError(
            f"input {format_value(name)} is a list of numbers, but the metadata of model "
            f"{format_value(model)} does not declare its datatype: pass an array, or a Tensor with "
            "a datatype"
        )
    return tw.Tensor(name, value, datatype=cast("Any", datatype))
