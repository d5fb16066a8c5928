"""The blocking client: a pool of sockets."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import tensorwire as tw

from .calls import (
    AUTO_ID,
    DEFAULT_MAX_BODY,
    DEFAULT_TIMEOUT,
    MAX_JOINED_NBYTES,
    PIECE_NBYTES,
    Algorithm,
    BaseClient,
    Deadline,
    Headers,
    Id,
    InferenceServerError,
    Inputs,
    InputSpecs,
    OnProgress,
    Outputs,
    Positional,
    ProgressReporter,
    ReadinessWait,
    Request,
    ResponseBody,
    Server,
    Timeout,
    check_algorithm,
    clients,
    compress,
    connection_error,
    may_resend,
    model_path,
    normalize_inputs,
    read_eof,
    retry_delay,
)
from .responses import ResponseReader

_IN, _OUT = select.POLLIN, select.POLLOUT
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_MAX_SECONDS = 2_000_000  # poll accepts at most 2^31 milliseconds
_TLS_PIECE_NBYTES = 256 << 10  # OpenSSL encrypts a whole piece before it returns


class Connection:
    """An open connection to the server. It is used by one thread at a time.

    The socket never blocks. Every wait is a ``poll`` with the remaining time of its timeout, which
    Python repeats with what then remains if a signal interrupts it.
    """

    __slots__ = (
        "__weakref__",
        "has_failed",
        "is_sent",
        "is_tls",
        "readable",
        "readable_or_writable",
        "reader",
        "socket",
    )

    def __init__(self, sock: socket.socket, is_tls: bool, reader: ResponseReader) -> None:
        self.socket = sock
        self.is_tls = is_tls
        self.reader = reader
        self.is_sent = False  # whether the kernel has all of the request
        self.has_failed = False  # whether sending has failed
        self.readable = poller_of(sock, _IN)
        self.readable_or_writable = poller_of(sock, _IN | _OUT)

    def close(self) -> None:
        self.reader.close()
        self.socket.close()

    def is_open(self) -> bool:
        """Return whether an idle connection can be used: it is open and no bytes have arrived."""
        if not self.readable.poll(0):
            return True
        if not self.is_tls:
            return False
        try:  # TLS messages, such as session tickets, may have arrived
            self.socket.recv(1)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            pass
        return False

    def exchange(
        self, request: Request, deadline: Deadline, progress: ProgressReporter | None
    ) -> ResponseReader:
        """Send a request, and receive the response. Raises OSError and DecodeError.

        The connection must be closed if an exception is raised, or if the response is not
        ``reusable``.
        """
        reader = self.reader
        reader.start()
        self.is_sent = self.has_failed = False
        if progress is not None:
            progress.restart()
        error: OSError | None = None
        try:
            if request.nbytes <= MAX_JOINED_NBYTES:
                windows: Iterable[list[Any]] = [[request.joined()]]
            else:
                windows = request.windows(_TLS_PIECE_NBYTES if self.is_tls else PIECE_NBYTES)
            self.is_sent = self._send(windows, request, deadline, progress)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError) as failure:
            if progress is not None and progress.error is not None:
                raise
            error = failure  # the server may have responded before it closed the connection
            self.has_failed = True
        try:
            while not reader.complete:
                self._receive(deadline, progress)
        except OSError as failure:
            if error is None or (progress is not None and progress.error is not None):
                raise
            raise (failure if isinstance(failure, ConnectionResetError) else error) from None
        if not self.is_sent:
            reader.reusable = False
        return reader

    def _send(
        self,
        windows: Iterable[list[Any]],
        request: Request,
        deadline: Deadline,
        progress: ProgressReporter | None,
    ) -> bool:
        """Send a request. Returns False if the server has responded before its end."""
        reader = self.reader
        n_sent = 0
        is_first = True  # the kernel has room for the first piece, without waiting for it
        for window in windows:
            while window:
                if not is_first and self._wait(self.readable_or_writable, deadline) & ~_OUT:
                    self._receive_available(progress)
                    # A server that rejects the request does not read the rest of it.
                    if reader.complete or reader.status >= 300:
                        return False
                is_first = False
                n_sent += self._send_window(window)
                if progress is not None:
                    progress.sent(max(n_sent - len(request.head), 0))
        return True

    def _send_window(self, window: list[Any]) -> int:
        """Send as much as possible, and remove it from the window. Returns the number of bytes."""
        try:
            if self.is_tls or len(window) == 1:
                n_sent = self.socket.send(window[0])
            else:
                n_sent = self.socket.sendmsg(window)
        except _WOULD_BLOCK:
            return 0
        n_left = n_sent
        while window and n_left >= len(window[0]):
            n_left -= len(window.pop(0))
        if n_left > 0:
            window[0] = memoryview(window[0])[n_left:]
        return n_sent

    def _receive(self, deadline: Deadline, progress: ProgressReporter | None) -> None:
        """Wait for bytes of the response, and process them. Raises TimeoutError."""
        if self.is_tls and self._receive_available(progress):
            deadline.limit("total")  # TLS may have bytes that poll does not know of, so it is first
            return
        self._wait(self.readable, deadline)
        self._receive_available(progress)

    def _receive_available(self, progress: ProgressReporter | None) -> bool:
        """Process the bytes that have arrived. Returns False if there are none."""
        reader = self.reader
        try:
            if self.is_tls and reader.n_received == 0 and self._is_tls_truncated():
                read_eof(reader, self.socket, self.is_sent, is_truncated=True)
            elif n_received := self.socket.recv_into(reader.get_buffer()):
                reader.received(n_received)
            else:
                read_eof(reader, self.socket, self.is_sent, is_truncated=self.has_failed)
        except _WOULD_BLOCK:
            return False
        except ssl.SSLEOFError:
            reader.eof(is_truncated=True)
        if progress is not None and reader.status:
            progress.received(reader.body_nbytes, reader.content_length, reader.complete)
        return True

    def _is_tls_truncated(self) -> bool:
        """Return whether the stream of the socket has ended, before OpenSSL notices it.

        OpenSSL then sends an alert, which the server does not acknowledge. Whether the server has
        acknowledged the request is not known any more.
        """
        return not socket.socket.recv(self.socket, 1, socket.MSG_PEEK)

    def _wait(self, poller: select.poll, deadline: Deadline) -> int:
        """Return the events that ``poller`` waited for. Raises TimeoutError."""
        seconds, step = deadline.limit("read")
        events = poll(poller, seconds)
        if not events:
            raise deadline.timeout_error(step)
        return events


def poller_of(sock: socket.socket, events: int) -> select.poll:
    poller = select.poll()
    poller.register(sock, events)
    return poller


def poll(poller: select.poll, seconds: float | None) -> int:
    """Return the events that a poller of one socket waited for, or 0 after ``seconds``."""
    found = poller.poll(None if seconds is None else min(seconds, _MAX_SECONDS) * 1000)
    return found[0][1] if found else 0


def connect(
    server: Server, resolver: Resolver, context: ssl.SSLContext | None, deadline: Deadline
) -> socket.socket:
    """Return a connected socket that does not block. Raises OSError."""
    error: OSError | None = None
    for family, kind, protocol, _, address in resolver.addresses(deadline):
        seconds, step = deadline.limit("connect")
        end = None if seconds is None else time.monotonic() + seconds
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            if _connect(sock, address, end):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is None:
                    return sock
                sock = context.wrap_socket(
                    sock,
                    server_hostname=server.host,
                    do_handshake_on_connect=False,
                    suppress_ragged_eofs=False,
                )
                if _perform_handshake(sock, end):
                    return sock
            error = deadline.timeout_error(step)
        except OSError as failure:
            error = failure
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        if sock is not None:
            sock.close()
    raise error or OSError("the host has no address")


def _poll_until(sock: socket.socket, event: int, end: float | None) -> bool:
    """Return whether the event has happened before ``end``, a time of ``time.monotonic``."""
    seconds = None if end is None else max(end - time.monotonic(), 0)
    return poll(poller_of(sock, event), seconds) != 0


def _connect(sock: socket.socket, address: Any, end: float | None) -> bool:
    """Return whether the connection was established before ``end``. Raises OSError."""
    code = sock.connect_ex(address)
    if code == errno.EINPROGRESS:
        if not _poll_until(sock, _OUT, end):
            return False
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code != 0:
        raise OSError(code, os.strerror(code))
    return True


def _perform_handshake(sock: ssl.SSLSocket, end: float | None) -> bool:
    """Return whether the TLS handshake was complete before ``end``. Raises OSError."""
    while True:
        try:
            sock.do_handshake()
            return True
        except ssl.SSLWantReadError:
            event = _IN
        except ssl.SSLWantWriteError:
            event = _OUT
        if not _poll_until(sock, event, end):
            return False


class Resolver:
    """Looks up the addresses of a host in a thread, because ``getaddrinfo`` has no timeout.

    A call that needs them while a thread runs waits for this thread. A client therefore has at most
    one such thread, also if the name servers do not respond.
    """

    def __init__(self, server: Server) -> None:
        self.arguments = server.host, server.port
        self.lock = threading.Lock()
        self.lookup: _Lookup | None = None

    def addresses(self, deadline: Deadline) -> list[Any]:
        """Return the results of ``getaddrinfo``. Raises OSError."""
        seconds, step = deadline.limit("connect")
        try:
            flags = 0 if seconds is None else socket.AI_NUMERICHOST  # an address, and not a name
            return socket.getaddrinfo(*self.arguments, type=socket.SOCK_STREAM, flags=flags)
        except socket.gaierror:
            if seconds is None:
                raise
        with self.lock:
            lookup = self.lookup
            if lookup is None or lookup.done.is_set():
                lookup = _Lookup(self.arguments)
                threading.Thread(target=lookup.run, daemon=True).start()
                self.lookup = lookup
        if not lookup.done.wait(min(seconds, _MAX_SECONDS)):
            raise deadline.timeout_error(step)
        if lookup.error is not None:
            raise type(lookup.error)(*lookup.error.args)  # an exception belongs to one thread
        return lookup.addresses


class _Lookup:
    def __init__(self, arguments: tuple[str, int]) -> None:
        self.arguments = arguments
        self.addresses: list[Any] = []
        self.error: OSError | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self.addresses = socket.getaddrinfo(*self.arguments, type=socket.SOCK_STREAM)
        except OSError as error:
            self.error = error
        finally:
            self.done.set()


class Pool:
    """Up to ``size`` connections. The idle connection that was used last is used first.

    A thread that calls ``acquire`` gets a slot, with or without a connection. If all slots are in
    use, it waits in a queue.
    """

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.idle: list[Connection] = []
        self.n_free = size  # number of slots that are neither in use nor have an idle connection
        self.waiting: deque[_Waiter] = deque()
        self.is_closed = False
        self.opened: weakref.WeakSet[Connection] = weakref.WeakSet()

    def acquire(self, deadline: Deadline) -> Connection | None:
        """Take a slot. Returns its idle connection, or None if the caller must connect."""
        with self.lock:
            if self.is_closed:
                raise RuntimeError("the client is closed")
            if self.idle:
                return self.idle.pop()
            if self.n_free > 0:
                self.n_free -= 1
                return None
            waiter = _Waiter()
            self.waiting.append(waiter)
        try:
            seconds, step = deadline.limit("total")
            if not waiter.ready.acquire(
                timeout=-1 if seconds is None else min(seconds, _MAX_SECONDS)
            ):
                raise deadline.timeout_error(step)
            if self.is_closed:
                raise RuntimeError("the client is closed")
        except BaseException:
            self._leave(waiter)
            raise
        return waiter.connection

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a thread from the queue, or release the slot that it has already got."""
        with self.lock:
            if waiter in self.waiting:
                self.waiting.remove(waiter)
                return
        self.release(waiter.connection)

    def release(self, connection: Connection | None) -> None:
        """Return a slot with its connection, or without one if it was closed."""
        with self.lock:
            if connection is not None and self.is_closed:
                connection.close()
                connection = None
            if self.waiting:
                waiter = self.waiting.popleft()
                waiter.connection = connection
                waiter.ready.release()
            elif connection is None:
                self.n_free += 1
            else:
                self.idle.append(connection)

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            while self.idle:
                self.idle.pop().close()
                self.n_free += 1
            while self.waiting:
                self.n_free -= 1  # the waiting thread releases a slot
                self.waiting.popleft().ready.release()

    def forget(self) -> None:
        """Close all sockets in a child process, which does not affect those of its parent."""
        # Another thread of the parent process may have had the lock, so it cannot be used here.
        for connection in list(self.opened):
            connection.close()

    def __del__(self) -> None:
        for connection in self.idle:
            connection.close()


class _Waiter:
    __slots__ = ("connection", "ready")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.ready = threading.Lock()
        self.ready.acquire()


class Client(BaseClient):
    """A client for a server of the Open Inference Protocol.

    It keeps a pool of connections, and is thread-safe. Large requests are sent without being
    joined, and responses are received into the memory that their arrays refer to. Redirects are not
    followed. There is no support for proxies: the environment variables for proxies are ignored.

    Parameters
    ----------
    url : str
        The address of the server: ``http://host:8000``, ``https://host`` or ``host:8000``. If it
        has a path, the path is inserted before ``/v2``.
    timeout : float, Timeout or None, default 60.0
        Timeout in seconds for connecting, and for each single send or receive operation. It does
        not limit the duration of a whole call. A ``Timeout`` sets each timeout, including one for
        the whole call. None means no timeout.
    max_body : int or None, default 2**31 - 1
        Maximum length of a response body in bytes, after decompression. None means no limit.
    limits : Limits, optional
        The limits for ``decode_response``. They also apply to metadata. By default, the size of the
        JSON header, the length of names, the values of parameters and the number of tensors are
        only limited by ``max_body``.
    headers : mapping of str to str, optional
        Headers that are sent with every request.
    connections : int, default 32
        Maximum number of open connections. If all of them are in use, further calls wait.
    retries : int, default 0
        How often a call is repeated after a ConnectionError or a response with status 429, 502, 503
        or 504. The pause before each retry is random and becomes longer, from 0.1 to at most 10
        seconds. If the response has a Retry-After header with a number of seconds, the pause has
        this length; if it is more than 60 seconds, the error is raised at once. A model may run
        more than once for a call.
    ssl_context : ssl.SSLContext, optional
        The TLS settings for an ``https`` URL. Certificates are verified by default.

    Raises
    ------
    ValueError
        The URL, ``timeout``, ``max_body``, ``connections``, ``retries`` or a header is invalid.
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
    - ``ValueError`` if the name or the version of a model is empty, "." or "..", which no URL can
      contain.

    For an InferenceServerError, ConnectionError or TimeoutError, ``is_ready`` returns False instead
    of raising the exception. The ``__cause__`` of a ConnectionError or TimeoutError is the
    exception of the socket.

    A server may close an idle connection at any time. If this happens when a call has just begun to
    use the connection, the call sends its request once more on a new connection. This is
    independent of ``retries``. An inference request is only sent again if no byte of a response has
    arrived, and the server has, within a second, reset the connection, or closed it without
    acknowledging the request. Otherwise a ConnectionError is raised, because the model may have
    run. A server that reads a whole request, and resets the connection within a second, causes a
    second run of the model: the client cannot see that the request was read. A request for metadata
    or readiness is sent again if no byte of a response has arrived.

    A connection is not used again after a response with status 500 or higher, unless the response
    has the header ``Connection: keep-alive``.

    After a fork, the client of the child process opens new connections. A pickled client has
    the same options and no connections.

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

    def __init__(
        self,
        url: str,
        *,
        timeout: float | Timeout | None = DEFAULT_TIMEOUT,
        max_body: int | None = DEFAULT_MAX_BODY,
        limits: tw.Limits | None = None,
        headers: Headers | None = None,
        connections: int = 32,
        retries: int = 0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            url,
            timeout=timeout,
            max_body=max_body,
            limits=limits,
            headers=headers,
            connections=connections,
            retries=retries,
            ssl_context=ssl_context,
        )
        self._ssl_context: ssl.SSLContext | None = None
        if self.server.is_tls:
            self._ssl_context = ssl_context or ssl.create_default_context()
        self._pool = Pool(connections)
        self._resolver = Resolver(self.server)
        clients.add(self)

    def infer(
        self,
        model: str,
        inputs: Inputs,
        outputs: Outputs | None = None,
        *,
        binary_outputs: bool = True,
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
        inputs : mapping of str to array, iterable of Tensor or of arrays, InferRequest or Frame
            The inputs. Large inputs are not copied. Their memory must not change until the call
            returns. Arrays without names have the names and datatypes, in order, that the metadata
            of the model declares. The client requests the metadata once per model and version. A
            list of numbers is converted to the declared datatype.

            The outputs, id and parameters of an InferRequest are those of the call, unless they are
            passed. Its model name and version are not used.

            A Frame is a request that ``encode_request`` returned. It can be sent any number of
            times, and is not encoded again. ``outputs``, ``id``, ``parameters`` and
            ``binary_outputs`` do not apply: set them in the InferRequest. (To receive all outputs
            as binary data, set its parameter ``binary_data_output``.)
        outputs : iterable of str or RequestedOutput, optional
            The outputs to return. By default, the server returns all outputs.
        binary_outputs : bool, default True
            Whether to request all outputs as binary data. The ``binary`` of a RequestedOutput and
            a ``binary_data_output`` in ``parameters`` take precedence.
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
            the number of arrays without names is not that of the inputs that the model declares.
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

        Arrays without names, and a request that is encoded once and sent twice:

        >>> with Client("localhost:8000") as client:                     # doctest: +SKIP
        ...     client.infer("add", [[1, 2], [3, 4]])["sum"].as_numpy()
        array([4., 6.])
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
        found = normalize_inputs(inputs)
        specs = None
        if isinstance(found, Positional):
            specs = self._input_specs(model, version, headers, deadline)
        frame = self._encode(found, specs, outputs, binary_outputs, id, parameters)
        compressed = None
        if request_compression_algorithm:
            compressed = compress(frame, request_compression_algorithm)
        request = self._infer_request(
            model, version, headers, frame, compressed, response_compression_algorithm
        )
        return self._exchange(request, deadline, on_progress).decode(self.limits)

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
        request = self._infer_request(model, version, headers, tw.encode_raw_request(array))
        return self._exchange(request, deadline, on_progress).decode(self.limits)

    def server_metadata(self) -> dict[str, Any]:
        """Return the metadata of the server.

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
        body = self._exchange(self._request("/v2"), self._deadline(None))
        return body.parse_metadata(self.limits)

    def model_metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return the metadata of a model.

        Parameters
        ----------
        model : str
            The name of the model.
        version : str, optional
            The version of the model. By default, the server chooses one.

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
        body = self._exchange(self._request(model_path(model, version)), self._deadline(None))
        return body.parse_metadata(self.limits)

    def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Return whether the server, or one of its models, is ready.

        Parameters
        ----------
        model : str, optional
            The name of a model. By default, the server as a whole is checked.
        version : str, optional
            The version of the model. By default, the server chooses one.

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
        try:
            self._exchange(self._readiness_request(model, version), self._deadline(None))
        except (InferenceServerError, ConnectionError, TimeoutError):
            return False
        return True

    def wait_until_ready(
        self, timeout: float, model: str | None = None, version: str | None = None
    ) -> None:
        """Wait until the server, or one of its models, is ready.

        Parameters
        ----------
        timeout : float
            Maximum duration of the wait in seconds.
        model, version
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
        request = self._readiness_request(model, version)
        wait = ReadinessWait(model, timeout)
        while True:
            try:
                self._attempt(request, Deadline(wait.timeout(self.timeout)), None)
                return
            except (InferenceServerError, ConnectionError, TimeoutError) as error:
                delay = wait.next_delay(error)
            time.sleep(delay)

    def close(self) -> None:
        """Close the idle connections. The other connections are closed when their calls return.

        Examples
        --------
        >>> from tensorwire.client import Client
        >>> client = Client("localhost:8000")
        >>> client.close()
        """
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _input_specs(
        self, model: str, version: str | None, headers: Headers | None, deadline: Deadline
    ) -> InputSpecs:
        specs = self._specs.get((model, version))
        if specs is None:
            request = self._request(model_path(model, version), headers)
            metadata = self._exchange(request, deadline).parse_metadata(self.limits)
            specs = self._cache_specs(model, version, metadata)
        return specs

    def _exchange(
        self, request: Request, deadline: Deadline, on_progress: OnProgress | None = None
    ) -> ResponseBody:
        """Send a request, and repeat it up to ``retries`` times if that may help."""
        progress = None if on_progress is None else ProgressReporter(on_progress, request.nbytes)
        n_retries = 0
        while True:
            try:
                return self._attempt(request, deadline, progress)
            except (ConnectionError, InferenceServerError) as error:
                if n_retries >= self.retries or (progress and progress.error is error):
                    raise
                delay = retry_delay(error, n_retries, deadline)
                if delay is None:
                    raise
            n_retries += 1
            time.sleep(delay)

    def _attempt(
        self, request: Request, deadline: Deadline, progress: ProgressReporter | None
    ) -> ResponseBody:
        """Send a request on a connection of the pool, or on a new one; see ``may_resend``."""
        pool = self._pool
        try:
            connection = pool.acquire(deadline)
        except TimeoutError as error:
            raise connection_error(request, self.server, error) from error
        is_reusable = False
        try:
            if connection is not None and not connection.is_open():
                connection.close()
                connection = None
            reader = None
            if connection is not None:
                reader = self._exchange_on_kept(connection, request, deadline, progress)
            if reader is None:
                if connection is not None:
                    connection.close()
                connection = self._connect(deadline)
                reader = connection.exchange(request, deadline, progress)
            is_reusable = reader.reusable
            if reader.buffer is None:
                raise self._response_error(reader)
            return ResponseBody(reader.take_buffer(), reader.header_length)
        except OSError as error:
            if progress is not None and progress.error is error:
                raise
            raise connection_error(request, self.server, error) from error
        finally:
            if connection is not None and not is_reusable:
                connection.close()
                connection = None
            pool.release(connection)

    def _exchange_on_kept(
        self,
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
            return connection.exchange(request, deadline, progress)
        except OSError as error:
            if progress is not None and progress.error is not None:
                raise
            if not may_resend(request, connection.reader, error, started):
                raise
            return None

    def _connect(self, deadline: Deadline) -> Connection:
        sock = connect(self.server, self._resolver, self._ssl_context, deadline)
        connection = Connection(sock, self.server.is_tls, ResponseReader(self.max_body))
        self._pool.opened.add(connection)
        return connection

    def _forget_connections(self) -> None:
        """Start without connections in a child process, which must not use those of its parent."""
        is_closed = self._pool.is_closed
        self._pool.forget()
        self._pool = Pool(self._options["connections"])
        self._pool.is_closed = is_closed
        self._resolver = Resolver(self.server)
