"""``InferProtocol``: an HTTP/1.1 protocol for uvicorn that serves an application without ASGI.

Pass it to uvicorn's ``http`` option. It owns the transport of a connection, and does what its
``Connection`` says: there is no scope, no event and, for a model that returns at once in the event
loop, no task.

uvicorn, or ``tensorwire serve``, manages processes, sockets, TLS, signals and logs. From uvicorn's
``Server``, a protocol gets the configuration and the state: the sets of open connections and of
running tasks, for which a graceful shutdown waits, the default headers and the number of requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, cast

if os.name != "posix":
    raise ImportError("InferProtocol requires Linux or macOS")

from .context import Address
from .errors import SHUTTING_DOWN, ClientDisconnectedError
from .service import GRACE_SECONDS, Reply
from .socket_state import PeerState, peer_state, unreceived_nbytes, unsent_nbytes
from .states import ABORTED, CLOSING, ENDING, READY, RUNNING, SENDING, STALLED

try:
    from .asgi import App
    from .connection import RECEIVE_SECONDS, Connection, Options
    from .receiver import MAX_PARTS_PER_READ, Request
    from .uvicorn_asgi import AsgiProtocol, limit_unsent, service_of
    from .uvicorn_connections import access_logger, connections_of
except ModuleNotFoundError as error:
    raise ImportError(
        f"InferProtocol requires {error.name}: pip install 'tensorwire[serve]'"
    ) from None

_MAX_REPLIES_PER_TURN = 50  # then other connections have their turn
_MAX_JOINED_REPLIES = 16  # in one write

logger = logging.getLogger("uvicorn.error")


class InferProtocol(asyncio.BufferedProtocol):
    """An HTTP protocol for uvicorn that serves the application of ``create_app`` without ASGI.

    uvicorn creates an instance for each connection. ASGI middleware does not see the requests.
    Connections are never upgraded: a request with an ``Upgrade`` header is answered like any other,
    and there are no WebSockets. For any other application, uvicorn's own protocol for httptools is
    used, with a limit for headers.

    Examples
    --------
    >>> import uvicorn
    >>> from tensorwire.server import InferProtocol
    >>> uvicorn.run("module:app", http=InferProtocol)                    # doctest: +SKIP
    """

    def __new__(cls, config: Any, *args: Any, **options: Any) -> Any:
        if not config.loaded:
            config.load()
        if type(service_of(config.loaded_app)) is not App:  # a subclass may respond in another way
            return AsgiProtocol(config, *args, **options)
        return super().__new__(cls)

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        service = service_of(config.loaded_app)
        assert service is not None
        self.service = service
        self.config = config
        self.server_state = server_state
        self.loop: asyncio.AbstractEventLoop = _loop or asyncio.get_running_loop()
        # Each request has a copy: it does not see the variables that another one has set.
        is_reset = getattr(config, "reset_contextvars", False)  # not in all versions
        self.context = Context() if is_reset else copy_context()
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.client: Address | None = None
        self.connection: Connection = cast("Connection", None)
        self.is_excess = False
        self.advancing: asyncio.Handle | None = None  # the next call of `_advance`
        self.is_reading_paused = False
        self.is_writing_paused = False
        # The timer is not moved when the deadline becomes later: if it expires early, it starts
        # again.
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = math.inf
        self.all_connections = connections_of(server_state, config)
        self.all_connections.add(self)

    # --- callbacks of the transport --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # those of uvloop are not subclasses
        limit_unsent(transport)
        config, connections, now = self.config, self.all_connections, self.loop.time()
        graceful = config.timeout_graceful_shutdown
        self.connection = Connection(
            self.service,
            Options(
                keep_alive_seconds=config.timeout_keep_alive,
                # Before uvicorn stops the event loop, clients get a response.
                grace_seconds=GRACE_SECONDS if graceful is None else min(GRACE_SECONDS, graceful),
                is_tls=transport.get_extra_info("sslcontext") is not None,
            ),
            now,
            self._wake,
            None if config.limit_concurrency is None else partial(connections.find_overload, self),
        )
        connections.handshaking.discard(self)
        connections.open.add(self)
        self.server_state.connections.add(self)
        if connections.is_shutting_down:
            self.connection.shut_down(now)
        if not connections.admit(self, now):
            self.connection.lost()
        peer = transport.get_extra_info("peername")
        self.client = peer[:2] if isinstance(peer, tuple) else None  # a Unix socket has none
        self.settle()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(self)
        self.all_connections.discard(self)
        self.connection.lost()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        connection = self.connection
        connection.receive(nbytes, self.loop.time())
        if connection.receiver.n_parts > MAX_PARTS_PER_READ:
            # Receive nothing more in this turn of the event loop.
            if not (self.is_reading_paused or self.transport.is_closing()):
                self.is_reading_paused = True
                self.transport.pause_reading()
            self._advance_later()
        elif (
            connection.state is READY
            and (len(self.all_connections.open) > 1 or connection.options.is_tls)
            and connection.requests[0].is_immediate
        ):
            # First, other connections receive what has arrived. Clients that get several replies at
            # once send several requests at once, so that there are fewer system calls. With TLS,
            # the time of a model is not measured as that of TLS.
            self._advance_later()
            if len(connection.requests) > 1:
                self.settle()
        else:
            self._advance()

    def eof_received(self) -> bool:
        """Return whether to keep the transport open, because a reply has not been sent yet."""
        self._advance()
        stays_open = self.connection.end_of_input(self.loop.time())
        self._advance()
        return stays_open

    def pause_writing(self) -> None:
        self.is_writing_paused = True
        if self.connection.options.is_tls:
            self.loop.call_soon(self.settle)

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        # Not at once: asyncio does not expect that this closes the transport.
        self._advance_later()

    def shutdown(self) -> None:
        """Close the connection after the replies to the requests whose head has arrived.

        uvicorn calls this when it shuts down.
        """
        self.connection.shut_down(self.loop.time())
        self.settle()

    # --- what the connection wants ---------------------------------------------------------------

    def _advance_later(self) -> None:
        if self.advancing is None:
            self.advancing = self.loop.call_soon(self._advance)

    def _advance(self) -> None:
        """Run the requests in their order, as far as possible."""
        connection = self.connection
        if self.advancing is not None:
            self.advancing.cancel()
            self.advancing = None
        try:
            if connection.state is SENDING:
                self._send()
            for _ in range(_MAX_REPLIES_PER_TURN):
                if connection.state is not READY:
                    break
                request = connection.start()
                if request.takes_context:
                    request.client = self._client_of(request)
                context = self.context.copy()
                reply = context.run(request.reply)
                if type(reply) is Reply:
                    self._reply(reply)
                    if connection.state is SENDING or len(connection.output) > _MAX_JOINED_REPLIES:
                        self._send()
                    continue
                # A graceful shutdown waits for the task.
                later = self._reply_later(request, reply)
                task = self.loop.create_task(later, context=context)
                if not task.done():  # with an eager task factory
                    self.server_state.tasks.add(task)
                    if self.all_connections.is_shutting_down:
                        task.add_done_callback(partial(self._task_ended, reply))
            else:
                self._advance_later()
        except BaseException:
            self.transport.abort()
            raise
        self.settle()

    async def _reply_later(self, request: Request, awaitable: Awaitable[Reply]) -> None:
        connection = self.connection
        reply = None
        try:
            try:
                reply = await awaitable
            except ClientDisconnectedError:
                request.close()
                connection.close(self.loop.time())
            except asyncio.CancelledError as error:
                # A graceful shutdown takes too long, or a model has cancelled its own task.
                is_shutting_down = self.all_connections.is_shutting_down
                if connection.state is not ABORTED:
                    if is_shutting_down:
                        notes = getattr(error, "__notes__", ())
                        subject = "; ".join(notes) or request.url.decode()
                        logger.warning("the shutdown has cancelled a request: %s", subject)
                    reply = self.service.failure_reply(SHUTTING_DOWN if is_shutting_down else error)
                    connection.end_after_reply()
            if reply is not None:
                self._reply(reply)
        except BaseException:  # of a handler of the log, for example
            request.close()
            with suppress(RuntimeError):  # if the event loop is closed, which raises GeneratorExit
                self.transport.abort()
            raise
        finally:
            # A callback of the task would need another turn of the event loop.
            self.server_state.tasks.discard(asyncio.current_task(self.loop))
        self._advance()

    def _task_ended(self, awaitable: Any, task: asyncio.Task[None]) -> None:
        """Reply if a graceful shutdown has cancelled a task before it began."""
        if task.cancelled():
            awaitable.close()
            self.server_state.tasks.discard(task)
            self.connection.end_after_reply()
            self._reply(self.service.failure_reply(SHUTTING_DOWN))
            self._advance()

    def _reply(self, reply: Reply) -> None:
        connection, state = self.connection, self.server_state
        if connection.state is RUNNING:  # otherwise, it has been closed since
            if self.all_connections.has_access_log:
                self._log(connection.requests[0], reply)
            state.total_requests += 1
        connection.reply(reply, self.loop.time(), state.default_headers)

    def _send(self) -> None:
        """Send what the client may read. The transport refers to a large piece until it is sent."""
        connection, transport = self.connection, self.transport
        is_tls = connection.options.is_tls
        if (output := connection.output) and not (is_tls and self._end_closed_tls()):
            connection.output = []
            transport.write(b"".join(output))
        while connection.state is SENDING and not self.is_writing_paused:
            if is_tls and self._end_closed_tls():
                break
            piece = connection.next_piece(self.loop.time())
            if piece is not None and not transport.is_closing():
                transport.write(piece)
        if self.is_writing_paused:
            connection.blocked(unsent_nbytes(transport), self.loop.time())

    def _end_closed_tls(self) -> bool:
        """Close a TLS connection that the client has closed, and return whether it has.

        asyncio tells that only while it receives. It would discard what is sent, and log that.
        """
        connection = self.connection
        if connection.may_receive and not self.is_writing_paused:
            return False
        if not peer_state(self.transport):
            return False
        connection.output.clear()
        connection.end_of_input(self.loop.time())
        return True

    def settle(self) -> None:
        """Make the transport and the timer follow the connection."""
        connection = self.connection
        if connection.output:
            self._send()
        if connection.state in ENDING:
            self._end()
        may_receive = connection.may_receive
        if self.is_writing_paused and connection.options.is_tls:
            may_receive = False  # TLS itself would respond to some messages
        if self.is_reading_paused is may_receive and not self.transport.is_closing():
            self.is_reading_paused = not may_receive
            if may_receive:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()
        if connection.deadline < self.timer_at:
            if self.timer is not None:
                self.timer.cancel()
            self.timer_at = connection.deadline
            self.timer = self.loop.call_at(self.timer_at, self._tick_after_receiving)

    def _end(self) -> None:
        state, transport = self.connection.state, self.transport
        if state is ABORTED:
            if self in self.server_state.connections:  # asyncio cannot abort what is lost
                transport.abort()
        elif transport.is_closing():  # asyncio cannot abort TLS that was closed twice
            pass
        elif state is CLOSING:
            transport.close()
        elif not self.connection.options.is_tls:
            with suppress(OSError):  # the client has reset the connection, which is not known yet
                transport.write_eof()

    def _tick_after_receiving(self) -> None:
        # After the process was suspended, the event loop runs what is due before it receives.
        self.timer = self.loop.call_later(RECEIVE_SECONDS, self._tick)

    def _tick(self) -> None:
        self.timer, self.timer_at = None, math.inf
        connection, transport, n_unreceived = self.connection, self.transport, math.inf
        now, client = self.loop.time(), peer_state(transport)
        if connection.state not in ENDING and client is PeerState.GONE:
            transport.abort()  # a transport that does not receive does not tell
            return
        if connection.state is STALLED:
            n_unreceived = unreceived_nbytes(transport)
            if client and connection.n_outstanding > n_unreceived:
                connection.end_of_input(now)
        elif connection.state is RUNNING and connection.options.is_tls:
            self._end_closed_tls()
        elif connection.state is RUNNING and client:
            connection.disconnect()
        connection.tick(now, unsent_nbytes(transport), n_unreceived)
        self._advance()

    def _wake(self) -> None:
        """There may be memory for a body. This is called in any thread."""
        with suppress(RuntimeError):  # the event loop is closed
            self.loop.call_soon_threadsafe(self._memory_changed)

    def _memory_changed(self) -> None:
        self.connection.memory_changed(self.loop.time())
        self._advance()

    def _log(self, request: Request, reply: Reply) -> None:
        if not request.method:  # the head was invalid or late
            return
        client = ":".join(map(str, self._client_of(request) or ()))
        target, version = request.url.decode("ascii"), request.http_version
        access_logger.info(
            '%s - "%s %s HTTP/%s" %d',
            *(client, request.method.decode(), target, version, reply.status),
            extra={"nbytes": 0 if request.method == b"HEAD" else len(reply.body)},
        )

    def _client_of(self, request: Request) -> Address | None:
        """Return the address of the client, or the one that a proxy has forwarded."""
        scope: Any = {"type": "http", "client": self.client, "headers": request.headers}
        if self.all_connections.proxy_headers is not None:
            with suppress(StopIteration):
                self.all_connections.proxy_headers(scope, None, None).send(None)
        client: Address | None = scope["client"]
        return client
