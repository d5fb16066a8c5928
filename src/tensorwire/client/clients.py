"""The two clients: ``Client`` blocks, and ``AsyncClient`` is for asyncio and uvloop.

Their calls are the coroutines of ``BaseClient``.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self

import tensorwire as tw

from .._codec.signatures import Nonfinite
from ..arguments import check_type
from ..parameters import forwarder
from .calls import BaseClient
from .options import Timeout
from .requests import (
    AUTO_ID,
    Algorithm,
    Encoding,
    Headers,
    Id,
    Inputs,
    Method,
    OnProgress,
    Outputs,
    Target,
    with_options,
)
from .sync import Backend, Result, complete

if TYPE_CHECKING:
    from .grpc_streams import StreamCall

P = ParamSpec("P")


class Closing:
    """Is closed at the end of a ``with`` block."""

    close: Callable[[], None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing:
    """Is closed at the end of an ``async with`` block."""

    close: Callable[[], Coroutine[Any, Any, None]]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Client(BaseClient, Closing):
    """A client for a server of the Open Inference Protocol.

    It keeps a pool of connections, and is thread-safe. Large requests are sent without being
    joined, and responses are received into the memory that their arrays refer to. Redirects are not
    followed. The scheme of the URL chooses between HTTP and gRPC.

    Parameters
    ----------
    url : str
        The address of the server: ``http://host:8000``, ``https://host``, ``host:8000``, or
        ``unix:/path`` for a Unix socket. If it has a path, the path is inserted before ``/v2``.
        For gRPC, it is ``grpc://host:8001``, ``grpcs://host:8001`` (TLS) or ``grpc+unix:/path``.
    timeout : float, Timeout or None, default 60.0
        Timeout in seconds for connecting, and for each single send or receive operation. It does
        not limit the duration of a whole call. A ``Timeout`` sets each timeout, including one for
        the whole call. None means no timeout.
    max_body_nbytes : int or None, default 2**31 - 1
        Maximum length of a response body in bytes, after decompression. None means no limit. Over
        gRPC, it is the limit of each message that is received.
    limits : Limits, optional
        The limits for ``decode_response``. They also apply to metadata. By default,
        ``max_header_nbytes``, ``max_tensors``, ``max_name_nbytes`` and ``max_parameters`` are
        2**31 - 1, so that they do not limit a response further than ``max_body_nbytes`` does.
    headers : mapping of str to str, optional
        Headers that are sent with every request. Over gRPC, they are metadata.
    connections : int, default 32
        Maximum number of open connections. If all of them are in use, further calls wait.
    idle_timeout : float or None, default 30.0
        Connections that were not used for so many seconds are closed at the next call. None means
        that they are kept.
    retries : int, default 0
        How often a call is repeated after a ConnectionError or a response with status 429, 502, 503
        or 504. Its model may then run more than once. The guide lists the failures after which a
        request is sent again, and the pauses.
    ssl_context : ssl.SSLContext, optional
        The TLS settings for an ``https`` URL. Certificates are verified by default.
    trust_env : bool, default True
        Whether to use the HTTP proxy that the environment variables HTTP_PROXY, HTTPS_PROXY,
        ALL_PROXY and NO_PROXY define. They are read by the constructor. Over gRPC, whether grpcio
        may use the proxy that it finds in the environment.
    binary_inputs : bool, default True
        Whether to send inputs, and to request outputs, as binary data. Pass False for a server that
        reads only JSON. It has no effect over gRPC.
    channel : grpc.Channel or grpc.aio.Channel, optional
        A channel of grpcio for calls over gRPC, which is not closed. Its options and credentials
        apply, also its limit for messages, which is 4 MB by default. The URL is then only used in
        the messages of errors.

    Raises
    ------
    ImportError
        httptools is not installed, or grpcio for a URL of gRPC.
    ValueError
        The URL, the proxy or an option is invalid, or an option cannot be used with the URL:
        ``ssl_context`` over gRPC, ``channel`` over HTTP.
    TypeError
        An argument has the wrong type.

    Notes
    -----
    The methods that send a request raise these exceptions:

    - ``InferenceServerError`` if the server responds with an error;
    - ``DecodeError`` if the response is not a valid message; its ``status`` is 413 if the response
      is longer than ``max_body_nbytes``;
    - ``ConnectionError`` if the connection fails or is closed before the response is complete;
    - ``TimeoutError`` if the server does not respond in time;
    - ``RuntimeError`` if the client is closed;
    - ``ValueError`` and ``TypeError`` if an argument is invalid, such as the name or version "." or
      ".." of a model, which no URL can contain.

    The text of the first four begins with the method, such as POST or ModelInfer, and the URL. The
    ``__cause__`` of a ConnectionError or TimeoutError is the exception of the socket.

    With ``retries=0``, an inference request is not sent again after any part of it was sent. If the
    server closes an idle connection while the client begins to use it, the call therefore raises
    ConnectionError. Pass ``retries=1`` if the model may run twice.

    A connection is not used again after a response with status 500 or higher, unless the response
    has the header ``Connection: keep-alive``. The client of a child process opens new connections.
    A pickled client has the same options and no connections.

    Over gRPC, grpcio makes and keeps the connection: ``connections`` and ``idle_timeout`` have no
    effect. The ``__cause__`` of an InferenceServerError is the RpcError. Only the text of grpcio
    tells a failed connection (ConnectionError) from an error of the server with status 503.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorwire.client import Client
    >>> client = Client("localhost:8000", timeout=10)
    >>> client
    <Client of http://localhost:8000>
    >>> image = np.zeros((1, 3, 224, 224), np.float32)
    >>> client.infer("resnet", {"image": image})["scores"].as_numpy()    # doctest: +SKIP
    array([[0.1, 0.9]], dtype=float32)
    >>> client.close()
    """

    _new_backend = Backend
    _complete = staticmethod(complete)

    def infer(
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
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
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
        inputs : mapping of str to array or list, Tensors, data frame, InferRequest, Frame or bytes
            The inputs. Large inputs are not copied over HTTP. Their memory must not change until
            the call returns. A list of numbers gets the datatype that the metadata of the model
            declares, which the client requests once per model and version. Tensors are an iterable.
            The columns of a data frame of pandas or polars, or of a table of pyarrow, are inputs
            (``tensors_from_dataframe``).

            The outputs, id and parameters of an InferRequest are those of the call, unless they are
            passed. Its model name and version are not used.

            A Frame of ``encode_request`` can be sent any number of times, and is not encoded again.
            Outputs, id, parameters and the form of the data are those of the Frame; for binary
            outputs, its request has the parameter ``binary_data_output``. Over gRPC, an encoded
            request is the ``bytes`` of ``tensorwire.grpc.encode_request``, for an InferRequest
            with the ``model_name`` and ``model_version`` of the call.
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
            By default, NaN is sent as ``null``, and an infinity raises EncodeError.
        version : str, optional
            The version of the model. By default, or if it is empty, the server chooses one.
        id : str or None, optional
            The id of the request. The server returns it in the response. By default, the client
            numbers its requests: the ids are "1", "2" and so on. If it is None, the request has no
            id; models that copy the id to the response then fail on some servers.
        sequence_id, sequence_start, sequence_end, priority : int, str or bool, optional
            Parameters of the request for Triton, which are sent unless they are 0, "" or False: the
            sequence that it belongs to, whether it is the first or the last one of it, and its
            priority (1 is the highest). ``parameters`` must not contain the same key.
        parameters : mapping, optional
            The parameters of the request. In Triton, ``{"timeout": 1000}`` is the time in
            microseconds after which a request that waits is rejected.
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
        EncodeError
            The request cannot be encoded. For example, JSON cannot represent FP16 and infinities.
        ValueError
            An argument is invalid, or an input is a list of numbers, and the metadata of the model
            does not declare it.
        ImportError
            zstd is not installed. The other exceptions are those of ``Client``.

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
        >>> responses = [client.infer("add", frame) for _ in range(2)]   # doctest: +SKIP
        """
        parameters = with_options(
            parameters,
            sequence_id=sequence_id,
            sequence_start=sequence_start,
            sequence_end=sequence_end,
            priority=priority,
        )
        algorithms = request_compression_algorithm, response_compression_algorithm
        encoding = Encoding(
            outputs, id, parameters, binary_inputs, binary_outputs, nonfinite, algorithms
        )
        call = self._call(Target(model, version, headers), timeout, on_progress)
        return self._complete(self._infer(call, inputs, encoding))

    def infer_raw(
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
        >>> response = client.infer_raw("mean", np.ones(1000, np.float32))    # doctest: +SKIP
        """
        call = self._call(Target(model, version, headers), timeout, on_progress)
        return self._complete(self._infer_raw(call, array))

    def server_metadata(
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
        >>> client.server_metadata()["extensions"]                       # doctest: +SKIP
        ['binary_tensor_data']
        """
        return self._complete(self._metadata(self._call(Target(None, None, headers), timeout)))

    def model_metadata(
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
        >>> client.model_metadata("resnet")["inputs"]                    # doctest: +SKIP
        [{'name': 'image', 'datatype': 'FP32', 'shape': [-1, 3, 224, 224]}]
        """
        check_type("the name of a model", model, str, "a str")
        return self._complete(self._metadata(self._call(Target(model, version, headers), timeout)))

    def model_config(
        self,
        model: str,
        version: str | None = None,
        *,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> dict[str, Any]:
        """Return the configuration of a model.

        Parameters
        ----------
        model, version, headers, timeout
            See ``infer``.

        Returns
        -------
        dict
            The ModelConfig of Triton. Over gRPC, it has only ``name``, ``platform``, ``backend``,
            ``max_batch_size``, ``input``, ``output`` and ``parameters``.

        Examples
        --------
        >>> client.model_config("resnet")["max_batch_size"]              # doctest: +SKIP
        8
        """
        call = self._call(Target(model, version, headers), timeout)
        return self._complete(self._endpoint(call, "config"))

    def statistics(
        self,
        model: str | None = None,
        version: str | None = None,
        *,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> dict[str, Any]:
        """Return the statistics of a model, or of all models.

        Parameters
        ----------
        model : str, optional
            The name of a model. By default, the statistics of all models are returned.
        version, headers, timeout
            See ``infer``.

        Returns
        -------
        dict
            The JSON object of the server: ``model_stats`` is a list with an item for each model.
            Over gRPC, the statistics of batches and of memory are absent.

        Examples
        --------
        >>> client.statistics("resnet")["model_stats"][0]["inference_count"]    # doctest: +SKIP
        27
        """
        call = self._call(Target(model, version, headers), timeout)
        return self._complete(self._endpoint(call, "stats"))

    def repository_index(
        self, *, headers: Headers | None = None, timeout: float | Timeout | None = None
    ) -> list[dict[str, Any]]:
        """Return the models that the server has, or can load.

        Parameters
        ----------
        headers, timeout
            See ``infer``.

        Returns
        -------
        list of dict
            An item for each model, usually with ``name``, ``version``, ``state`` and ``reason``.

        Examples
        --------
        >>> [each["name"] for each in client.repository_index()]         # doctest: +SKIP
        ['resnet']
        """
        call = self._call(Target(None, None, headers), timeout)
        return self._complete(self._endpoint(call, "index"))

    def load_model(
        self,
        model: str,
        *,
        config: Mapping[str, Any] | str | None = None,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> None:
        """Load a model, or load it again (Triton with ``--model-control-mode=explicit``).

        Parameters
        ----------
        model, headers
            See ``infer``.
        config : mapping or str, optional
            A ModelConfig, or its JSON, which is used instead of the file in the repository.
        timeout : float or Timeout, optional
            See ``infer``. The server responds when the model is loaded.

        Examples
        --------
        >>> client.load_model("resnet", timeout=300)                     # doctest: +SKIP
        """
        check_type("config", config, Mapping | str | None, "a mapping, or its JSON as a str")
        call = self._call(Target(model, None, headers), timeout)
        return self._complete(self._control(call, "load", config=config))

    def unload_model(
        self,
        model: str,
        *,
        unload_dependents: bool = False,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> None:
        """Unload a model (Triton with ``--model-control-mode=explicit``).

        Parameters
        ----------
        model, headers, timeout
            See ``infer``.
        unload_dependents : bool, default False
            Whether to unload the models of an ensemble, too.

        Examples
        --------
        >>> client.unload_model("resnet")                                # doctest: +SKIP
        """
        check_type("unload_dependents", unload_dependents, bool, "a bool")
        call = self._call(Target(model, None, headers), timeout)
        return self._complete(self._control(call, "unload", unload_dependents=unload_dependents))

    def request_json(
        self,
        method: Method,
        path: str,
        body: Any = None,
        *,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> Any:
        """Send JSON to any path of the server, and return the JSON of the response (HTTP only).

        Parameters
        ----------
        method : {"GET", "POST", "PUT", "PATCH", "DELETE"}
            The HTTP method.
        path : str
            The path, which is appended to that of the client's URL: it begins with "/", and is
            percent-encoded. It may have a query.
        body : object, optional
            What ``json.dumps`` accepts, and any mapping. By default, and if it is None, the
            request has no body.
        headers, timeout
            See ``infer``.

        Returns
        -------
        object
            The JSON value, of dict, list, str, int, float, bool and None. None if there is no body.

        Raises
        ------
        EncodeError
            The body cannot be written as JSON.
        DecodeError
            The response is not JSON. The other exceptions are those of ``Client``.
        ValueError
            The method or the path is invalid, or the URL is one of gRPC.

        Examples
        --------
        >>> client.request_json("GET", "/v2/logging")["log_verbose_level"]    # doctest: +SKIP
        0
        >>> client.request_json("POST", "/v2/logging", {"log_verbose_level": 1})    # doctest: +SKIP
        """
        call = self._call(Target(None, None, headers), timeout)
        return self._complete(self._request_json(call, method, path, body))

    def is_ready(
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
            False if the server responds with an error, the connection fails or a timeout expires:
            no InferenceServerError, ConnectionError or TimeoutError is raised.

        Examples
        --------
        >>> client.is_ready("resnet")                                    # doctest: +SKIP
        True
        """
        return self._complete(self._is_ready(self._call(Target(model, version, headers), timeout)))

    def wait_until_ready(
        self,
        model: str | None = None,
        timeout: float = 60.0,
        *,
        version: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Wait until the server, or one of its models, is ready.

        Parameters
        ----------
        model : str, optional
            See ``is_ready``.
        timeout : float, default 60.0
            Maximum duration of the wait in seconds.
        version, headers
            See ``is_ready``.

        Raises
        ------
        TimeoutError
            The server or the model is not ready in time. The message contains the last error.

        Examples
        --------
        >>> client.wait_until_ready("resnet", 30)                        # doctest: +SKIP
        """
        call = self._call(Target(model, version, headers))
        return self._complete(self._wait_until_ready(call, timeout))

    def stream(
        self,
        model: str,
        requests: Iterable[Inputs],
        *,
        version: str | None = None,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> ResponseStream:
        """Send several requests in one call, and return an iterator of the responses (gRPC only).

        A model may send any number of responses to each request, and at any time.

        Parameters
        ----------
        model, version, headers
            See ``infer``.
        requests : iterable
            The inputs of each request; see ``infer``. Outputs, ids and parameters are those of an
            InferRequest. A thread iterates, so that responses arrive between the requests. An
            exception of the iterable ends the call, and is raised by the iterator of the responses.
            ``AsyncClient`` also takes an asynchronous iterable.
        timeout : float or Timeout, optional
            Only the ``total`` timeout applies: the maximum duration of the whole call, from now on
            until its last response. By default, that of the client.

        Returns
        -------
        ResponseStream
            An iterator of InferResponse. ``AsyncClient`` returns an AsyncResponseStream.

        Raises
        ------
        ValueError
            The URL is not one of gRPC, or an argument is invalid.

        Notes
        -----
        The iterator raises the exceptions of ``Client``. The call is not repeated, whatever
        ``retries`` is. An InferenceServerError may be the error of one request: if the server
        continues, so does the iterator. To continue after such an error, call ``next`` again.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> prompts = [{"prompt": ["What is a tensor?"]}, {"prompt": ["And a view?"]}]
        >>> with Client("grpc://localhost:8001") as client:              # doctest: +SKIP
        ...     for response in client.stream("llm", prompts):
        ...         print(response.id, response["text"].as_strings())
        """
        call = self._call(Target(model, version, headers), timeout)
        return ResponseStream(self._open_stream(call, requests))

    def close(self) -> None:
        """Close the idle connections. The other connections are closed when their calls return.

        Over gRPC, the channel is closed, and calls that have not returned raise ConnectionError. A
        ``channel`` of the caller stays open: calls return as usual, and only streams end.
        """
        complete(self._close())


class BaseStream:
    """Refers to a call, whose requests do not refer to it: it is closed when it is released."""

    def __init__(self, call: Any) -> None:  # made by the client: its type is not public
        self._call: StreamCall = call

    def __del__(self) -> None:
        self._call.close()


class ResponseStream(BaseStream, Closing):
    """The responses of ``Client.stream``: an iterator of InferResponse.

    The call is cancelled by ``close``, at the end of a ``with`` block, and when the last reference
    to the stream is gone.

    Examples
    --------
    >>> from tensorwire.client import Client
    >>> with Client("grpc://localhost:8001") as client:                  # doctest: +SKIP
    ...     with client.stream("camera", [{"fps": [5]}]) as responses:
    ...         first = next(responses)
    """

    def __iter__(self) -> ResponseStream:
        return self

    def __next__(self) -> tw.InferResponse:
        response = complete(self._call.read())
        if response is None:
            raise StopIteration
        return response

    def close(self) -> None:
        """Cancel the call, unless it has ended. The iterator then ends."""
        self._call.close()


def _as_coroutine(
    method: Callable[Concatenate[Client, P], Result],
) -> Callable[[Any], Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Result]]]:
    """Replace a function by a method of ``Client`` with an asynchronous ``_complete``.

    Type checkers ask for a function: they may infer the type of an attribute differently.
    """
    function: Any = method
    call = forwarder(function, function, is_async=True)
    call.__qualname__ = f"AsyncClient.{function.__name__}"
    return lambda _: call


class AsyncClient(BaseClient, AsyncClosing):
    """An asynchronous client for a server of the Open Inference Protocol.

    It has the same parameters and methods as ``Client``, and raises the same exceptions. It runs on
    asyncio and uvloop. An event loop may use it after another one has ended, as with one call of
    ``asyncio.run`` after another, but two may not use it at once (RuntimeError). It connects on the
    first call. If a call is cancelled, its connection is closed. ``on_progress`` is a function that
    does not block, and not a coroutine function. Large messages are read and written in a thread.

    Examples
    --------
    >>> from tensorwire.client import AsyncClient
    >>> async def classify(url, image):
    ...     async with AsyncClient(url) as client:
    ...         response = await client.infer("resnet", {"image": image})
    ...         return response["scores"].as_numpy()
    """

    def _new_backend(self) -> Backend:
        from .aio import LoopBackend  # noqa: PLC0415 - requires asyncio

        return LoopBackend()

    def _complete(self, coroutine: Coroutine[Any, Any, Result]) -> Coroutine[Any, Any, Result]:
        return coroutine  # the caller awaits it

    @_as_coroutine(Client.infer)
    def infer(self) -> Any: ...

    @_as_coroutine(Client.infer_raw)
    def infer_raw(self) -> Any: ...

    @_as_coroutine(Client.server_metadata)
    def server_metadata(self) -> Any: ...

    @_as_coroutine(Client.model_metadata)
    def model_metadata(self) -> Any: ...

    @_as_coroutine(Client.model_config)
    def model_config(self) -> Any: ...

    @_as_coroutine(Client.statistics)
    def statistics(self) -> Any: ...

    @_as_coroutine(Client.repository_index)
    def repository_index(self) -> Any: ...

    @_as_coroutine(Client.load_model)
    def load_model(self) -> Any: ...

    @_as_coroutine(Client.unload_model)
    def unload_model(self) -> Any: ...

    @_as_coroutine(Client.request_json)
    def request_json(self) -> Any: ...

    @_as_coroutine(Client.is_ready)
    def is_ready(self) -> Any: ...

    @_as_coroutine(Client.wait_until_ready)
    def wait_until_ready(self) -> Any: ...

    def stream(
        self,
        model: str,
        requests: Iterable[Inputs] | AsyncIterable[Inputs],
        *,
        version: str | None = None,
        headers: Headers | None = None,
        timeout: float | Timeout | None = None,
    ) -> AsyncResponseStream:
        call = self._call(Target(model, version, headers), timeout)
        return AsyncResponseStream(self._open_stream(call, requests))

    stream.__doc__ = Client.stream.__doc__

    async def close(self) -> None:
        """Close all connections. Calls that have not returned end with an exception.

        It is a ConnectionError or RuntimeError. A ``channel`` of the caller stays open, but the
        calls of this client on it end, too.
        """
        await self._close()


class AsyncResponseStream(BaseStream, AsyncClosing):
    """The responses of ``AsyncClient.stream``: an asynchronous iterator of InferResponse.

    It is like a ``ResponseStream``, but the call is also cancelled if the task that waits for a
    response is cancelled.

    Examples
    --------
    >>> from tensorwire.client import AsyncClient
    >>> async def answers(url, prompts):
    ...     async with AsyncClient(url) as client:
    ...         async for response in client.stream("llm", prompts):
    ...             print(response.id, response["text"].as_strings())
    """

    def __aiter__(self) -> AsyncResponseStream:
        return self

    async def __anext__(self) -> tw.InferResponse:
        response = await self._call.read()
        if response is None:
            raise StopAsyncIteration
        return response

    async def close(self) -> None:
        """Cancel the call, unless it has ended. The iterator then ends."""
        self._call.close()
