"""The asynchronous client: a pool of connections for asyncio and uvloop."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
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
    Compressed,
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

_UNLIMITED_SECONDS = 1e6  # asyncio limits a TLS handshake to 60 seconds by default


class Connection(asyncio.BufferedProtocol):
    """An open connection to the server. It is used by one task at a time.

    The event loop receives into the memory that the ResponseReader provides.
    """

    def __init__(
        self, pool: Pool, sock: socket.socket, is_tls: bool, reader: ResponseReader
    ) -> None:
        self.pool = pool
        self.loop = pool.loop
        self.socket = sock
        self.transport: Any = None  # an asyncio.Transport, after the TLS handshake
        self.is_tls = is_tls
        self.reader = reader
        self.readable = select.poll()
        self.readable.register(sock, select.POLLIN)
        self.lost = self.loop.create_future()
        # Whether the server has sent the end of the stream, or bytes that belong to no response.
        self.has_ended = False
        # The state of a call. `done` has a result when the response is complete or `error` is set.
        self.is_active = False
        self.is_sent = False  # whether the transport has all of the request
        self.error: BaseException | None = None
        self.done: asyncio.Future[None] = self.lost
        self.progress: ProgressReporter | None = None
        # Sending: `drained` is set while a task waits until the transport has sent everything.
        self.is_paused = False
        self.drained: asyncio.Future[None] | None = None
        # The timer is not moved at every transfer. When it fires, it compares the time of the last
        # transfer with the timeouts. All times are those of time.monotonic.
        self.deadline: Deadline | None = None
        self.last_transfer = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0

    async def is_open(self) -> bool:
        """Return whether an idle connection can be used: it is open and no bytes have arrived."""
        if self.has_ended or self.lost.done() or self.transport.is_closing():
            return False
        if self.readable.poll(0):
            if not self.is_tls:
                return False
            # TLS messages, such as session tickets, may have arrived. The event loop notices in its
            # next iteration whether the connection was closed.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return not (self.has_ended or self.lost.done() or self.transport.is_closing())
        return True

    def close(self) -> None:
        if not self.lost.done():
            self.transport.abort()

    def _close_soon(self) -> None:
        """Close the connection from a callback.

        The event loop may be in the middle of processing TLS, and fails if it is closed at once.
        """
        self.has_ended = True
        self.loop.call_soon(self.close)

    async def exchange(
        self, request: Request, deadline: Deadline, progress: ProgressReporter | None
    ) -> ResponseReader:
        """Send a request, and receive the response. Raises OSError and DecodeError.

        The connection must be closed if an exception is raised, or if the response is not
        ``reusable``.
        """
        reader = self.reader
        reader.start()
        if progress is not None:
            progress.restart()
        self.is_sent = False
        # It may have ended since it was established, or found to be open.
        if self.has_ended or self.lost.done():
            read_eof(reader, self.socket, is_sent=False, is_truncated=False)
        self.progress = progress
        self.error = None
        self.done = self.loop.create_future()
        self._start_timer(deadline)
        self.is_active = True
        try:
            self.is_sent = await self._send(request, progress)
            await self.done
        finally:
            self.is_active = False
            self.progress = None
        if self.error is not None:
            raise self.error
        if not self.is_sent:
            reader.reusable = False
        return reader

    async def _send(self, request: Request, progress: ProgressReporter | None) -> bool:
        """Send a request. Returns False if the server has responded before its end."""
        if request.nbytes <= MAX_JOINED_NBYTES:
            self.transport.write(request.joined())
            self.is_sent = True
            if progress is not None:
                progress.sent(request.nbytes)
            return True
        n_sent = -len(request.head)
        for window in request.windows(PIECE_NBYTES):
            if len(window) <= 2:
                for piece in window:
                    self.transport.write(piece)
            else:
                self.transport.write(b"".join(window))
            await self._drain()
            # A server that rejects the request does not read the rest of it.
            if self.done.done() or self.reader.status >= 300:
                return False
            self.last_transfer = time.monotonic()
            n_sent += sum(len(piece) for piece in window)
            if progress is not None:
                progress.sent(n_sent)
        return True

    async def _drain(self) -> None:
        """Wait until everything was sent, or the call ends, or the connection fails."""
        if not self.is_paused:
            await asyncio.sleep(0)  # the event loop receives, so that a response is noticed
            return
        self.drained = self.loop.create_future()
        try:
            await self.drained
        finally:
            self.drained = None

    def _wake_sender(self) -> None:
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)

    def _finish(self, error: BaseException | None = None) -> None:
        """End the call: its response is complete, or it fails with ``error``.

        The task of the call closes the connection.
        """
        self.is_active = False
        self.error = error
        if not self.done.done():
            self.done.set_result(None)
        self._wake_sender()

    def _read_eof(self, is_truncated: bool) -> None:
        """Process the end of the stream."""
        try:
            read_eof(self.reader, self.socket, self.is_sent, is_truncated)
        except (ConnectionError, tw.DecodeError) as error:
            self._finish(error)
        else:
            self._finish()

    # --- timeouts ---

    def _start_timer(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.last_transfer = now = time.monotonic()
        seconds, _ = deadline.limit("read")
        if self.timer is not None and (seconds is None or self.timer_at > now + seconds):
            self.timer.cancel()
            self.timer = None
        if self.timer is None and seconds is not None:
            self._set_timer(seconds)

    def _set_timer(self, seconds: float) -> None:
        self.timer = self.loop.call_later(seconds, self._check_timeouts)
        self.timer_at = time.monotonic() + seconds

    def _check_timeouts(self) -> None:
        self.timer = None
        if not self.is_active or self.deadline is None:
            return
        try:
            seconds, _ = self.deadline.limit("read", self.last_transfer)
        except TimeoutError as error:
            self._finish(error)
        else:
            if seconds is not None:
                self._set_timer(seconds)

    # --- callbacks of the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if not self.is_tls:
            # 0: the call continues when the kernel has everything, so that pieces are not copied
            # more than once. With TLS, some of the encrypted data is buffered.
            self.transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_active:  # bytes that belong to no response
            self._close_soon()
            return
        self.last_transfer = time.monotonic()
        reader = self.reader
        try:
            reader.received(nbytes)
            if self.progress is not None and reader.status:
                self.progress.received(reader.body_nbytes, reader.content_length, reader.complete)
        except BaseException as error:  # also those of signal handlers: the call raises them
            self._finish(error)
            return
        if reader.complete:
            self._finish()

    def eof_received(self) -> bool:
        if self.is_active:
            self._read_eof(self.is_tls and not self._is_tls_closed())
        self._close_soon()
        return False

    def _is_tls_closed(self) -> bool:
        """Return whether the server has closed TLS. asyncio also reports the end of its stream."""
        try:
            return not self.transport.get_extra_info("ssl_object").read(1)
        except ssl.SSLError:  # it waits for more
            return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_active and error is None:
            self._read_eof(self.is_tls)  # with TLS, eof_received was not called
        elif self.is_active:
            self._receive_last_bytes()
            if self.is_active and self.reader.n_received > 0:
                self._read_eof(is_truncated=True)
            elif self.is_active:
                self._finish(error)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._wake_sender()
        if not self.lost.done():
            self.lost.set_result(None)
        self.reader.close()
        self.pool.opened.discard(self)

    def _receive_last_bytes(self) -> None:
        """Receive what the server sent before it closed the connection.

        If sending fails, the event loop does not receive any more. The server may have responded.
        """
        if self.is_tls:
            return
        try:
            while self.is_active and (n_received := self.socket.recv_into(self.get_buffer(-1))):
                self.buffer_updated(n_received)
        except OSError:
            pass

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._wake_sender()


class Pool:
    """Up to ``size`` connections. The idle connection that was used last is used first.

    A task that calls ``acquire`` gets a slot, with or without a connection. If all slots are in
    use, it waits in a queue.
    """

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle: list[Connection] = []
        self.n_free = size  # number of slots that are neither in use nor have an idle connection
        self.waiting: deque[asyncio.Future[Connection | None]] = deque()
        self.opened: set[Connection] = set()

    async def acquire(self, deadline: Deadline) -> Connection | None:
        """Take a slot. Returns its idle connection, or None if the caller must connect."""
        if self.idle:
            return self.idle.pop()
        if self.n_free > 0:
            self.n_free -= 1
            return None
        seconds, step = deadline.limit("total")
        slot: asyncio.Future[Connection | None] = self.loop.create_future()
        self.waiting.append(slot)
        try:
            async with asyncio.timeout(seconds):
                return await slot
        except BaseException as error:
            if not slot.done() or slot.cancelled():
                if slot in self.waiting:
                    self.waiting.remove(slot)
            elif slot.exception() is None:
                self.release(slot.result())
            if isinstance(error, TimeoutError):
                raise deadline.timeout_error(step) from None
            raise

    def release(self, connection: Connection | None) -> None:
        """Return a slot with its connection, or without one if it was closed."""
        while self.waiting:
            slot = self.waiting.popleft()
            if not slot.done():
                slot.set_result(connection)
                return
        if connection is None:
            self.n_free += 1
        else:
            self.idle.append(connection)

    async def close(self) -> None:
        while self.waiting:
            slot = self.waiting.popleft()
            if not slot.done():
                slot.set_exception(RuntimeError("the client is closed"))
        opened = list(self.opened)
        for connection in opened:
            if connection.is_active:
                connection._finish(ConnectionError("the client was closed during the call"))
            connection.close()
        for connection in opened:
            await connection.lost

    def forget(self) -> None:
        """Close all sockets in a child process, which does not affect those of its parent."""
        # The transports and the epoll object of the event loop, which is shared with the parent,
        # still refer to the file descriptors. They stay valid, but refer to another file.
        null = os.open(os.devnull, os.O_RDWR)
        for connection in self.opened:
            if connection.socket.fileno() >= 0:
                os.dup2(null, connection.socket.fileno())
        os.close(null)


class AsyncClient(BaseClient):
    """An asynchronous client for a server of the Open Inference Protocol.

    It has the same parameters and methods as ``Client``, and raises the same exceptions. It runs on
    asyncio and uvloop. A client belongs to the event loop in which it is first used. It connects on
    the first call. If a call is cancelled, its connection is closed.

    Parameters
    ----------
    url, timeout, max_body, limits, headers, connections, retries, ssl_context
        See ``Client``.

    Raises
    ------
    ValueError
        The URL, ``timeout``, ``max_body``, ``connections``, ``retries`` or a header is invalid.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> from tensorwire.client import AsyncClient
    >>> async def classify(url, image):
    ...     async with AsyncClient(url) as client:
    ...         response = await client.infer("resnet", {"image": image})
    ...         return response["scores"].as_numpy()
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
        self._pool: Pool | None = None
        self._closed = False
        clients.add(self)

    async def infer(
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

        The parameters, the result and the exceptions are those of ``Client.infer``. The memory of
        the inputs must not change until the call returns. ``on_progress`` is a function that does
        not block, and not a coroutine function.

        Examples
        --------
        >>> async def add(client, x, y):
        ...     response = await client.infer("add", {"x": x, "y": y}, ["sum"])
        ...     return response["sum"].as_numpy()
        """
        check_algorithm(request_compression_algorithm)
        check_algorithm(response_compression_algorithm)
        deadline = self._deadline(timeout)
        found = normalize_inputs(inputs)
        specs = None
        if isinstance(found, Positional):
            specs = await self._input_specs(model, version, headers, deadline)
        frame = self._encode(found, specs, outputs, binary_outputs, id, parameters)
        compressed: Compressed | None = None
        if request_compression_algorithm:
            if len(frame) <= PIECE_NBYTES:
                compressed = compress(frame, request_compression_algorithm)
            else:
                compressed = await asyncio.to_thread(compress, frame, request_compression_algorithm)
        request = self._infer_request(
            model, version, headers, frame, compressed, response_compression_algorithm
        )
        return (await self._exchange(request, deadline, on_progress)).decode(self.limits)

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

        The parameters, the result and the exceptions are those of ``Client.infer_raw``. The memory
        of the array must not change until the call returns.

        Examples
        --------
        >>> async def mean(client, array):
        ...     response = await client.infer_raw("mean", array)
        ...     return response["mean"].as_numpy()
        """
        deadline = self._deadline(timeout)
        request = self._infer_request(model, version, headers, tw.encode_raw_request(array))
        return (await self._exchange(request, deadline, on_progress)).decode(self.limits)

    async def server_metadata(self) -> dict[str, Any]:
        """Return the metadata of the server.

        The result and the exceptions are those of ``Client.server_metadata``.

        Examples
        --------
        >>> async def accepts_binary_tensors(client):
        ...     return "binary_tensor_data" in (await client.server_metadata())["extensions"]
        """
        body = await self._exchange(self._request("/v2"), self._deadline(None))
        return body.parse_metadata(self.limits)

    async def model_metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return the metadata of a model.

        The parameters, the result and the exceptions are those of ``Client.model_metadata``.

        Examples
        --------
        >>> async def input_names(client, model):
        ...     return [tensor["name"] for tensor in (await client.model_metadata(model))["inputs"]]
        """
        request = self._request(model_path(model, version))
        body = await self._exchange(request, self._deadline(None))
        return body.parse_metadata(self.limits)

    async def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Return whether the server, or one of its models, is ready.

        The parameters, the result and the exceptions are those of ``Client.is_ready``.

        Examples
        --------
        >>> async def is_any_ready(client, models):
        ...     return any([await client.is_ready(model) for model in models])
        """
        try:
            await self._exchange(self._readiness_request(model, version), self._deadline(None))
        except (InferenceServerError, ConnectionError, TimeoutError):
            return False
        return True

    async def wait_until_ready(
        self, timeout: float, model: str | None = None, version: str | None = None
    ) -> None:
        """Wait until the server, or one of its models, is ready.

        The parameters and the exceptions are those of ``Client.wait_until_ready``.

        Examples
        --------
        >>> async def start(client):
        ...     await client.wait_until_ready(30, "resnet")
        """
        request = self._readiness_request(model, version)
        wait = ReadinessWait(model, timeout)
        while True:
            try:
                await self._attempt(request, Deadline(wait.timeout(self.timeout)), None)
                return
            except (InferenceServerError, ConnectionError, TimeoutError) as error:
                delay = wait.next_delay(error)
            await asyncio.sleep(delay)

    async def close(self) -> None:
        """Close all connections, including those of calls that have not returned.

        These calls raise ConnectionError or RuntimeError.

        Examples
        --------
        >>> import asyncio
        >>> from tensorwire.client import AsyncClient
        >>> asyncio.run(AsyncClient("localhost:8000").close())
        """
        self._closed = True
        if self._pool is not None:
            await self._pool.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _open_pool(self) -> Pool:
        """Return the pool. The first call creates it, which requires a running event loop."""
        if self._closed:
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool = Pool(self._options["connections"], loop)
        elif self._pool.loop is not loop:
            raise RuntimeError("the client belongs to another event loop, which used it first")
        return self._pool

    async def _input_specs(
        self, model: str, version: str | None, headers: Headers | None, deadline: Deadline
    ) -> InputSpecs:
        specs = self._specs.get((model, version))
        if specs is None:
            request = self._request(model_path(model, version), headers)
            metadata = (await self._exchange(request, deadline)).parse_metadata(self.limits)
            specs = self._cache_specs(model, version, metadata)
        return specs

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
            await asyncio.sleep(delay)

    async def _attempt(
        self, request: Request, deadline: Deadline, progress: ProgressReporter | None
    ) -> ResponseBody:
        """Send a request on a connection of the pool, or on a new one; see ``may_resend``."""
        pool = self._open_pool()
        try:
            connection = await pool.acquire(deadline)
        except TimeoutError as error:
            raise connection_error(request, self.server, error) from error
        is_reusable = False
        try:
            reader = None
            if connection is not None and await connection.is_open():
                reader = await self._exchange_on_kept(connection, request, deadline, progress)
            if reader is None:
                if connection is not None:
                    connection.close()
                    connection = None
                connection = await self._connect(pool, deadline)
                reader = await connection.exchange(request, deadline, progress)
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

    async def _exchange_on_kept(
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
            return await connection.exchange(request, deadline, progress)
        except OSError as error:
            if self._closed or (progress is not None and progress.error is not None):
                raise
            if not may_resend(request, connection.reader, error, started):
                raise
            return None

    async def _connect(self, pool: Pool, deadline: Deadline) -> Connection:
        server = self.server
        error: OSError | None = None
        seconds, step = deadline.limit("connect")
        try:
            async with asyncio.timeout(seconds):
                addresses = await pool.loop.getaddrinfo(
                    server.host, server.port, type=socket.SOCK_STREAM
                )
        except TimeoutError:
            raise deadline.timeout_error(step) from None
        for family, kind, protocol, _, address in addresses:
            seconds, step = deadline.limit("connect")
            sock = None
            try:
                async with asyncio.timeout(seconds):
                    sock = socket.socket(family, kind, protocol)
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await pool.loop.sock_connect(sock, address)
                    reader = ResponseReader(self.max_body)
                    connection = Connection(pool, sock, server.is_tls, reader)
                    sock = None  # the event loop closes it
                    await _create_transport(connection, server, self._ssl_context, seconds)
                if self._closed:
                    connection.close()
                    raise RuntimeError("the client is closed")
                pool.opened.add(connection)
                return connection
            except OSError as failure:
                # The error of the kernel, ETIMEDOUT, has a number.
                is_ours = isinstance(failure, TimeoutError) and failure.errno is None
                error = deadline.timeout_error(step) if is_ours else failure
            except BaseException:
                if sock is not None:
                    sock.close()
                raise
            if sock is not None:
                sock.close()
        raise error or OSError("the host has no address")

    def _forget_connections(self) -> None:
        if self._pool is not None:
            _abandoned.append(self._pool)
            self._pool.forget()
            self._pool = None


# The pools of the parent process. In a child process, their transports must not be closed, because
# that would change the event loop of the parent process, with which it shares the epoll object.
_abandoned: list[Pool] = []


async def _create_transport(
    connection: Connection, server: Server, context: ssl.SSLContext | None, seconds: float | None
) -> None:
    """Pass the socket of a connection to the event loop, and perform the TLS handshake."""
    options: dict[str, Any] = {}
    if context is not None:
        options["ssl"] = context
        options["server_hostname"] = server.host
        # The caller's timeout expires first.
        options["ssl_handshake_timeout"] = _UNLIMITED_SECONDS if seconds is None else seconds + 1
    create = connection.loop.create_connection
    try:
        await create(lambda: connection, sock=connection.socket, **options)
    except BaseException:
        # The event loop closes the socket, at once if TLS was not established. Otherwise it would
        # wait for the server to end TLS.
        if connection.transport is not None:
            connection.transport.abort()
        raise
