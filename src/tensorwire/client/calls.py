"""The calls of both clients, as coroutines. Only the ``Backend`` of a client differs."""

from __future__ import annotations

import contextlib
import itertools
import os
import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

import tensorwire as tw

from .._codec.datatypes import UNLIMITED
from ..arguments import check_integer, check_seconds, check_type, is_list_of_numbers
from ..errors import format_value
from ..http import EXTENSION
from .addresses import Server, find_proxy, parse_url
from .connection import Backend, Connection, Connector, may_resend
from .errors import InferenceServerError, connection_error, server_error
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
from .pool import Pool
from .requests import (
    AUTO_ID,
    PIECE_NBYTES,
    Algorithm,
    Compressed,
    Headers,
    Id,
    OnProgress,
    ProgressReporter,
    Request,
    body_headers,
    check_algorithm,
    check_headers,
    compress,
    model_path,
)
from .responses import ResponseBody, ResponseReader

_MAX_CACHED = 1000  # entries of each cache of a client
_HINT_TIMEOUT = Timeout(connect=1, read=1, total=1)
_REJECTED = (400, 415, 422)  # the statuses of a server that may not read binary data


Inputs = tw.Frame | tw.InferRequest | Mapping[str, Any] | Iterable[tw.Tensor]
Outputs = Iterable[str | tw.RequestedOutput]


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
    ) -> None:
        self._options = {name: value for name, value in locals().items() if name != "self"}
        self._connections = check_integer("connections", connections, minimum=1)
        self._idle_timeout = check_seconds("idle_timeout", idle_timeout)
        self.retries: int = check_integer("retries", retries, minimum=0)
        if max_body is not None:
            max_body = check_integer("max_body", max_body, minimum=0)
        if limits is not None:
            check_type("limits", limits, tw.Limits, "a Limits object")
        self.server: Server = parse_url(url)
        self.timeout: Timeout = as_timeout(timeout)
        self.max_body: int | None = max_body
        self.limits: tw.Limits = RESPONSE_LIMITS if limits is None else limits
        self.headers: dict[str, str] = {
            "User-Agent": f"tensorwire/{tw.__version__}",
            **check_headers(headers),
        }
        self._options["headers"] = check_headers(headers)
        self.binary_inputs: bool = binary_inputs
        context = None
        if self.server.is_tls:
            context = ssl_context or ssl.create_default_context()
        proxy = find_proxy(self.server) if trust_env else None
        self._connector = Connector(self.server, proxy, context, max_body)
        self._target_prefix = ""
        if proxy is not None and context is None:  # it only passes TLS on
            self._target_prefix = self.server.origin
            names = {name.lower() for name in self.headers}
            if proxy.authorization is not None and "proxy-authorization" not in names:
                self.headers["Proxy-Authorization"] = proxy.authorization
        self._default_deadline = Deadline(self.timeout) if self.timeout.total is None else None
        self._ids = itertools.count(1)
        self._heads: dict[tuple[str, str | None], tuple[str, bytes]] = {}
        self._datatypes: dict[tuple[str, str | None], dict[str, Any]] = {}
        self._announces_binary: bool | None = None  # None: not known yet
        self._pools: dict[int, Pool] = {}  # by the id of the process: see _open_pool
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.server.origin}{self.server.prefix}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_client, (type(self), self._options)

    # --- connections ---

    def _new_backend(self) -> Backend:
        raise NotImplementedError

    def _open_pool(self) -> Pool:
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
            made = Pool(self._new_backend(), self._connections, self._idle_timeout)
            pool = self._pools.setdefault(pid, made)
        return pool

    def _close_pool(self) -> None:
        self._is_closed = True
        if pool := self._pools.get(os.getpid()):
            pool.close()

    # --- requests ---

    def _deadline(self, timeout: float | Timeout | None) -> Deadline:
        if timeout is not None:
            return Deadline(as_timeout(timeout))
        return self._default_deadline or Deadline(self.timeout)

    def _head(self, method: str, path: str, headers: Headers | None, accept: str) -> bytes:
        """Return the head of a request without the headers of the body."""
        by_name = {"host": ("Host", self.server.host_header)}
        for name, value in (*self.headers.items(), *check_headers(headers).items()):
            by_name[name.lower()] = (name, value)
        by_name["accept-encoding"] = ("Accept-Encoding", accept)
        target = f"{self._target_prefix}{self.server.prefix}{path}"
        lines = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in by_name.values()), ""]
        return "\r\n".join(lines).encode("latin-1")

    def _url(self, path: str) -> str:
        return f"{self.server.origin}{self.server.prefix}{path}"

    def _get(self, path: str, headers: Headers | None, model: str | None = None) -> Request:
        head = self._head("GET", path, headers, "identity") + b"\r\n"
        return Request("GET", self._url(path), head, model=model)

    def _readiness_request(
        self, model: str | None, version: str | None, headers: Headers | None
    ) -> Request:
        path = "/v2/health" if model is None else model_path(model, version)
        return self._get(f"{path}/ready", headers, model)

    def _infer_request(
        self,
        model: str,
        version: str | None,
        headers: Headers | None,
        frame: tw.Frame,
        compressed: Compressed | None = None,
        accept: Algorithm | None = None,
    ) -> Request:
        key = _key(model, version)
        cached = self._heads.get(key)
        if cached is None:
            path = f"{model_path(model, version)}/infer"
            # identity: compressing a response takes Triton more time than it saves (WIRE.md 8)
            cached = path, self._head("POST", path, None, "identity")
            if len(self._heads) >= _MAX_CACHED:
                self._heads.clear()
            self._heads[key] = cached
        path, head = cached
        if headers is not None or accept:
            head = self._head("POST", path, headers, accept or "identity")
        # Unlike those of frame.buffers, these memoryviews are not shared with other threads.
        # tuple(frame) would first allocate len(frame) items, one for each byte.
        buffers = tuple(iter(frame))
        nbytes = len(frame)
        if compressed is not None:
            buffers = (compressed.body,)
            nbytes = len(compressed.body)
            head += b"Content-Encoding: %b\r\n" % compressed.algorithm.encode()
        head += body_headers(frame.header_length, nbytes)
        return Request("POST", self._url(path), head, buffers, nbytes, model)

    async def _compress(self, frame: tw.Frame, algorithm: Algorithm) -> Compressed:
        if len(frame) <= PIECE_NBYTES:
            return compress(frame, algorithm)
        return await self._open_pool().backend.run(compress, frame, algorithm)

    # --- sending requests ---

    async def _exchange(
        self, request: Request, deadline: Deadline, on_progress: OnProgress | None = None
    ) -> ResponseBody:
        """Send a request, and repeat it up to ``retries`` times if that may help."""
        progress = None if on_progress is None else ProgressReporter(on_progress, request.nbytes)
        n_retries = 0
        while True:
            try:
                return await self._attempt(request, deadline, progress)
            except (ConnectionError, InferenceServerError) as error:
                if n_retries >= self.retries or (progress and progress.error is error):
                    raise
                delay = retry_delay(error, n_retries, deadline)
                if delay is None:
                    raise
            n_retries += 1
            await self._open_pool().backend.sleep(delay)

    async def _attempt(
        self, request: Request, deadline: Deadline, progress: ProgressReporter | None
    ) -> ResponseBody:
        """Send a request on a connection of the pool, or on a new one; see ``may_resend``."""
        pool = self._open_pool()
        try:
            lease = await pool.acquire(deadline)
        except TimeoutError as error:
            raise connection_error(request, error) from error
        connection, kept = lease.connection, None
        try:
            if connection is not None and not connection.is_open():
                connection.close()
                connection = None
            reader: ResponseReader | None = None
            if connection is not None:
                reader = await self._exchange_on_kept(pool, connection, request, deadline, progress)
                if reader is None:
                    connection.close()
            if connection is None or reader is None:
                connection = await self._connector.connect(pool.backend, deadline)
                pool.backend.check()
                reader = await connection.exchange(request, deadline, progress)
            if reader.reusable:
                kept = connection
            if reader.buffer is None:
                raise server_error(request, reader)
            return ResponseBody(reader.take_buffer(), reader.header_length)
        except OSError as error:
            if progress is not None and progress.error is error:
                raise
            raise connection_error(request, error) from error
        finally:
            if connection is not None and kept is None:
                connection.close()
            pool.release(lease, kept)

    async def _exchange_on_kept(
        self,
        pool: Pool,
        connection: Connection,
        request: Request,
        deadline: Deadline,
        progress: ProgressReporter | None,
    ) -> ResponseReader | None:
        """Send a request on a connection that was used before, and receive the response.

        Returns None if the connection has failed, and the request must be sent on a new one.
        """
        started = time.monotonic()
        try:
            return await connection.exchange(request, deadline, progress)
        except OSError as error:
            if pool.is_closed or (progress is not None and progress.error is not None):
                raise
            if not may_resend(request, connection.reader, error, started):
                raise
            return None

    async def _get_json(self, request: Request, deadline: Deadline) -> dict[str, Any]:
        return (await self._exchange(request, deadline)).parse_metadata(self.limits)

    async def _infer(
        self, request: Request, deadline: Deadline, on_progress: OnProgress | None, is_binary: bool
    ) -> tw.InferResponse:
        try:
            body = await self._exchange(request, deadline, on_progress)
        except InferenceServerError as error:
            if is_binary and error.status in _REJECTED:
                await self._add_hint(error)
            raise
        return body.decode(self.limits)

    async def _add_hint(self, error: InferenceServerError) -> None:
        """Say in an error that the server does not announce that it reads binary data.

        The metadata is requested once, at most for a second, and its own errors are ignored.
        """
        if self._announces_binary is None:
            self._announces_binary = True
            with contextlib.suppress(Exception):
                deadline = Deadline(_HINT_TIMEOUT)
                body = await self._attempt(self._get("/v2", None), deadline, None)
                extensions = body.parse_metadata(self.limits)["extensions"]
                self._announces_binary = EXTENSION in extensions
        if not self._announces_binary:
            hint = f"the server does not announce {EXTENSION}: binary_inputs=False sends JSON"
            error.args = (f"{error} ({hint})",)

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
    ) -> tw.Frame:
        """Encode the arguments of ``infer``."""
        if isinstance(inputs, tw.Frame):
            if outputs is not None or parameters is not None or isinstance(id, str):
                raise TypeError(
                    "the inputs are an encoded Frame: outputs, id and parameters must be passed "
                    "to encode_request"
                )
            return inputs
        if binary_inputs is None:
            binary_inputs = self.binary_inputs
        if binary_outputs is None:
            binary_outputs = binary_inputs
        all_parameters: dict[str, Any] = {"binary_data_output": True} if binary_outputs else {}
        if isinstance(inputs, tw.InferRequest):
            all_parameters.update(inputs.parameters)
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
        request = tw.InferRequest(
            tensors,
            outputs,
            id=str(next(self._ids)) if id is AUTO_ID else id,
            parameters={**all_parameters, **(parameters or {})},
        )
        if not binary_inputs:
            request = request.replace(inputs=[t.replace(binary=False) for t in request.inputs])
        return tw.encode_request(request, limits=UNLIMITED)

    async def _input_datatypes(
        self, model: str, version: str | None, headers: Headers | None, deadline: Deadline
    ) -> dict[str, Any]:
        """Return the datatypes of the inputs that the metadata of a model declares."""
        key = _key(model, version)
        found = self._datatypes.get(key)
        if found is None:
            request = self._get(model_path(model, version), headers, model)
            metadata = await self._get_json(request, deadline)
            try:
                found = {entry["name"]: entry["datatype"] for entry in metadata["inputs"]}
            except (TypeError, LookupError):
                found = {}
            if len(self._datatypes) >= _MAX_CACHED:
                self._datatypes.clear()
            self._datatypes[key] = found
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
        inputs : mapping of str to array or list, iterable of Tensor, InferRequest or Frame
            The inputs. Large inputs are not copied. Their memory must not change until the call
            returns. A list of numbers gets the datatype that the metadata of the model declares.
            The client requests the metadata once per model and version.

            The outputs, id and parameters of an InferRequest are those of the call, unless they are
            passed. Its model name and version are not used.

            A Frame is a request that ``encode_request`` returned. It can be sent any number of
            times, and is not encoded again. ``outputs``, ``id``, ``parameters``, ``binary_inputs``
            and ``binary_outputs`` do not apply: set them in the InferRequest. (To receive all
            outputs as binary data, set its parameter ``binary_data_output``.)
        outputs : iterable of str or RequestedOutput, optional
            The outputs to return. By default, the server returns all outputs.
        binary_inputs : bool, optional
            Whether to send the inputs as binary data, except those whose ``binary`` is False. By
            default, that of the client.
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
            Additional headers for this request.
        timeout : float or Timeout, optional
            Timeouts for this call. By default, the timeouts of the client apply.
        request_compression_algorithm : {"gzip", "deflate"}, optional
            Compress the request. By default, it is not compressed.
        response_compression_algorithm : {"gzip", "deflate"}, optional
            Ask the server to compress the response, which is then decompressed. By default, the
            server is asked not to compress it.
        on_progress : callable, optional
            A function that is called with a ``Progress`` about once per MiB, and at the end of each
            direction. If it raises an exception, the call is aborted: the connection is closed and
            the exception is raised. If the request is sent again, the numbers begin at 0 again.

        Returns
        -------
        InferResponse
            Its binary tensors are writable views of the response body, which is kept until the last
            of them is released. The first one is aligned to 64 bytes (WIRE.md 6).

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
        frame = await self._encode(
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
        compressed = None
        if request_compression_algorithm:
            compressed = await self._compress(frame, request_compression_algorithm)
        request = self._infer_request(
            model, version, headers, frame, compressed, response_compression_algorithm
        )
        return await self._infer(request, deadline, on_progress, frame.header_length is not None)

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
        """Run inference with a raw binary request, on a model with one input (WIRE.md 5).

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
        deadline = self._deadline(timeout)
        frame = tw.encode_raw_request(array)
        request = self._infer_request(model, version, headers, frame)
        return await self._infer(request, deadline, on_progress, is_binary=True)

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
        return await self._get_json(self._get("/v2", headers), self._deadline(timeout))

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
        request = self._get(model_path(model, version), headers, model)
        return await self._get_json(request, self._deadline(timeout))

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
        request = self._readiness_request(model, version, headers)
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
        request = self._readiness_request(model, version, headers)
        wait = ReadinessWait(model, timeout)
        while True:
            try:
                await self._attempt(request, Deadline(wait.timeout(self.timeout)), None)
                return
            except (InferenceServerError, ConnectionError, TimeoutError) as error:
                delay = wait.next_delay(error)
            await self._open_pool().backend.sleep(delay)


def _key(model: str, version: str | None) -> tuple[str, str | None]:
    """Return the key of a model in a cache. The versions 1 and "1" are the same."""
    return model, None if version is None else str(version)


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
