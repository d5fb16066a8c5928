"""The blocking client: it waits with ``poll``."""

from __future__ import annotations

import functools
import select
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import tensorwire as tw

from .calls import BaseClient, Calls, Inputs, complete
from .limits import Deadline, Timeout
from .requests import Headers, Target

if TYPE_CHECKING:
    from .connection import Connection
    from .grpc_streams import Stream

_MAX_SECONDS = 2_000_000  # poll accepts at most 2^31 milliseconds

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class PollWatcher:
    """Waits with ``poll``, which Python repeats with the remaining time after a signal."""

    __slots__ = ("events", "fd", "poller")

    def __init__(self, sock: socket.socket) -> None:
        self.fd = sock.fileno()
        self.events = select.POLLIN
        self.poller = select.poll()
        self.poller.register(self.fd, self.events)

    async def wait(self, events: int, seconds: float | None) -> int:
        """Return the events (POLLIN, POLLOUT) that have happened, or 0 after about ``seconds``."""
        if events != self.events:
            self.poller.modify(self.fd, events)
            self.events = events
        found = self.poller.poll(None if seconds is None else min(seconds, _MAX_SECONDS) * 1000)
        return found[0][1] if found else 0

    def close(self) -> None:
        """Release the socket, before it is closed."""


class BlockingBackend:
    """How the blocking client waits: it blocks the thread of a call.

    ``LoopBackend`` has the same methods.
    """

    is_async = False

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lookup: Future[list[Any]] | None = None

    def check(self) -> None:
        """Raise RuntimeError if the caller cannot use this backend."""

    def end_calls(self) -> None:
        """Let the calls fail that the closing of the client ends."""

    def watch(self, connection: Connection) -> PollWatcher:
        return PollWatcher(connection.socket)

    def new_future(self) -> Future[None]:
        return Future()

    async def wait_for(self, future: Future[None], seconds: float) -> bool:
        """Return whether a future is done, at the latest after ``seconds``."""
        with suppress(TimeoutError):
            future.result(seconds)
        return future.done()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function that computes for a long time."""
        return function(*arguments)

    async def look_up(self, host: str, port: int, deadline: Deadline) -> list[Any]:
        """Return the results of ``getaddrinfo``, which has no timeout. Raises OSError.

        It is called in a thread. A call that needs the addresses while this thread runs waits for
        it. A client therefore has at most one such thread, also if the name servers do not respond.
        """
        seconds, step = deadline.limit("connect")
        if seconds is None:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with self.lock:
            lookup = self.lookup
            if lookup is None or lookup.done():
                lookup = Future()
                threading.Thread(target=_look_up, args=(lookup, host, port), daemon=True).start()
                self.lookup = lookup  # not before: the thread may be impossible to start
        try:
            error = lookup.exception(min(seconds, _MAX_SECONDS))
        except TimeoutError:
            raise deadline.timeout_error(step) from None
        if error is not None:
            raise type(error)(*error.args)  # an exception belongs to one thread
        return lookup.result()


def _look_up(lookup: Future[list[Any]], host: str, port: int) -> None:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except Exception as error:
        lookup.set_exception(error.with_traceback(None))  # it would refer to the future
    else:
        lookup.set_result(addresses)


def blocking(
    method: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[[object], Callable[Concatenate[Any, Arguments], Result]]:
    """Replace a function by one that runs a coroutine function to its end.

    As a decorator of a ``def``, it declares a type that all type checkers see.
    """

    @functools.wraps(method)
    def call(self: Any, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return complete(method(self, *arguments, **named))

    return lambda _: call


class Closing:
    """Is closed at the end of a ``with`` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    max_body : int or None, default 2**31 - 1
        Maximum length of a response body in bytes, after decompression. None means no limit. Over
        gRPC, it is the limit of each message that is received.
    limits : Limits, optional
        The limits for ``decode_response``. They also apply to metadata. By default, the size of the
        JSON header, the length of names, the values of parameters and the number of tensors are
        only limited by ``max_body``.
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
      is longer than ``max_body``;
    - ``ConnectionError`` if the connection fails or is closed before the response is complete;
    - ``TimeoutError`` if the server does not respond in time;
    - ``RuntimeError`` if the client is closed;
    - ``ValueError`` and ``TypeError`` if an argument is invalid, such as the name or version of a
      model that is empty, "." or "..", which no URL can contain.

    For an InferenceServerError, ConnectionError or TimeoutError, ``is_ready`` returns False instead
    of raising the exception. The ``__cause__`` of a ConnectionError or TimeoutError is the
    exception of the socket.

    With ``retries=0``, an inference request is not sent again after any part of it was sent. If the
    server closes an idle connection while the client begins to use it, the call therefore raises
    ConnectionError. Pass ``retries=1`` if the model may run twice.

    A connection is not used again after a response with status 500 or higher, unless the response
    has the header ``Connection: keep-alive``.

    After a fork, the client of the child process opens new connections. A pickled client has
    the same options and no connections.

    Over gRPC, grpcio makes and keeps the connection: ``connections`` and ``idle_timeout`` have no
    effect. The ``status`` of an InferenceServerError is the HTTP status that corresponds to the
    status code, and ``__cause__`` is the RpcError. The ``connect`` timeout of the client limits an
    attempt to connect, and the ``read`` timeout limits an attempt of a call. The status code does
    not tell a failed connection (ConnectionError) from an error of the server with status 503: the
    text of grpcio does.

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

    _new_backend = BlockingBackend

    @blocking(Calls.infer)
    def infer(self) -> None: ...

    @blocking(Calls.infer_raw)
    def infer_raw(self) -> None: ...

    @blocking(Calls.server_metadata)
    def server_metadata(self) -> None: ...

    @blocking(Calls.model_metadata)
    def model_metadata(self) -> None: ...

    @blocking(Calls.is_ready)
    def is_ready(self) -> None: ...

    @blocking(Calls.wait_until_ready)
    def wait_until_ready(self) -> None: ...

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
        model : str
            The name of the model.
        requests : iterable
            The inputs of each request; see ``infer``. Outputs, ids and parameters are those of an
            InferRequest. A thread iterates, so that responses arrive between the requests. An
            exception of the iterable ends the call, and is raised by the iterator of the responses.
            ``AsyncClient`` also takes an asynchronous iterable.
        version, headers
            See ``infer``.
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
            The URL is not one of gRPC, or ``model``, ``version`` or a header is invalid.
        TypeError
            An argument has the wrong type.
        RuntimeError
            The client is closed.

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
        return ResponseStream(self._open_stream(Target(model, version, headers), requests, timeout))

    def close(self) -> None:
        """Close the idle connections. The other connections are closed when their calls return.

        Over gRPC, the channel is closed, and calls that have not returned raise ConnectionError. A
        ``channel`` of the caller stays open: calls return as usual, and only streams end.
        """
        self._close_pool()


class ResponseStream(Closing):
    """The responses of ``Client.stream``: an iterator of InferResponse.

    The call is cancelled by ``close``, at the end of a ``with`` block, and when the last reference
    to the stream is gone.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorwire.client import Client
    >>> with Client("grpc://localhost:8001") as client:                  # doctest: +SKIP
    ...     with client.stream("camera", [{"fps": np.array([5])}]) as responses:
    ...         first = next(responses)
    """

    def __init__(self, call: Any) -> None:  # made by the client: its type is not public
        self._call: Stream = call

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

    def __del__(self) -> None:
        self._call.close()
