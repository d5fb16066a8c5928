"""TLS of ``tensorwire serve``: its handshakes are limited, and slow clients wait.

asyncio does not tell a server that listens with TLS which connections are in a handshake.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from .service import FOREVER_SECONDS, GRACE_SECONDS, HANDSHAKE_SECONDS

_SLOW_SECONDS = 0.005  # of CPU time for what is received at once
_HANDSHAKE_NBYTES = 4096  # each message of a handshake is smaller, and may be slow
# What is received at once for some time after a client was slow: of others that are fast, and of
# those that are not, or not yet.
_FAST_CLIENT_NBYTES, _SLOW_CLIENT_NBYTES = 64 << 10, 16 << 10
_UNREAD_NBYTES = 64 << 10  # what TLS collects while its protocol does not read
_SLOW_CLIENTS_SECONDS = 1.0


def accept_tls(config: Any) -> Callable[[], object]:
    """Let uvicorn listen without the TLS of a loaded configuration. `TlsHandshake` adds it.

    Return a function for a shutdown, which ends the handshakes in progress after some time. Since
    Python 3.12.1, asyncio waits for their connections.
    """
    pending: dict[TlsHandshake, None] = {}
    make_protocol, context = config.http_protocol_class, config.ssl
    accept = partial(TlsHandshake, make_protocol, context, pending, _SlowClients())
    config.http_protocol_class, config.ssl = accept, None

    def abort() -> None:
        for each in tuple(pending):
            each.abort()

    return lambda: asyncio.get_running_loop().call_later(GRACE_SECONDS, abort)


class TlsHandshake(asyncio.Protocol):
    """Accepts a connection, and passes it to uvicorn's protocol after the handshake.

    ``pending`` are the handshakes in progress, the oldest first. With ``limit_concurrency``, there
    are at most as many: a new one ends the oldest.
    """

    def __init__(
        self,
        make_protocol: Callable[..., Any],
        context: ssl.SSLContext,
        pending: dict[TlsHandshake, None],
        slow_clients: _SlowClients,
        config: Any,
        **options: Any,
    ) -> None:
        self._protocol: Any = make_protocol(config=config, **options)
        self._context = context
        self._pending = pending
        self._slow_clients = slow_clients
        self._limit: int | None = config.limit_concurrency
        # What arrives before the handshake begins, and with its end.
        self._received: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._limit is not None and len(self._pending) >= self._limit:
            next(iter(self._pending)).abort()
        self._pending[self] = None
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._shake_hands())
        # uvloop may receive before the task begins. `start_tls` schedules the handshake in its
        # first step, and `_begin` must run after that.
        loop.call_soon(loop.call_soon, self._begin)

    def data_received(self, data: bytes) -> None:
        self._received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def _begin(self) -> None:
        transport = self._transport
        if not transport.is_closing():
            self._tls = _MeasuredTls(transport, self._slow_clients)
            transport.set_protocol(self._tls)
            self._pass_received_to(self._tls)

    def abort(self) -> None:
        self._forget()
        self._task.cancel()
        del self._task  # which keeps the error, whose traceback refers to this object
        self._transport.abort()

    def _forget(self) -> None:
        self._pending.pop(self, None)
        # A shutdown waits for a protocol while something refers to it, such as a traceback.
        self._protocol = None

    async def _shake_hands(self) -> None:
        if self._protocol is None:
            return
        try:
            transport: Any = await asyncio.get_running_loop().start_tls(
                *(self._transport, self, self._context),
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                # The protocols limit the time in which a client must read the rest of a reply and
                # end TLS. By default, asyncio drops the rest after 30 seconds, also while the
                # client reads.
                ssl_shutdown_timeout=FOREVER_SECONDS,
            )
        except BaseException as error:
            self._transport.abort()
            # The handshake has failed, or the connection is lost.
            if not isinstance(error, OSError | RuntimeError):
                raise
            error.__traceback__ = None  # which refers to the connection, and to this error
        else:
            if transport is not None and self._protocol is not None:
                transport.set_read_buffer_limits(_UNREAD_NBYTES)
                self._tls.plain_transport = transport
                transport.set_protocol(self._protocol)
                self._protocol.connection_made(transport)
                self._pass_received_to(self._protocol)
        finally:
            self._forget()

    def _pass_received_to(self, protocol: Any) -> None:
        rest, self._received = memoryview(b"".join(self._received)), []
        while rest:
            if not hasattr(protocol, "get_buffer"):
                protocol.data_received(bytes(rest))
                return
            buffer = protocol.get_buffer(len(rest))
            n = min(len(buffer), len(rest))
            buffer[:n], rest = rest[:n], rest[n:]
            del buffer  # a body cannot grow while views of it exist
            protocol.buffer_updated(n)


class _SlowClients:
    """The clients of a server whose TLS is slow. They wait, one after the other, for other clients.

    Together, they take at most half of the time.

    OpenSSL takes long for messages that are small, of which key updates (27 bytes, 15 to 40 us) are
    the slowest. uvloop receives up to 8 MiB of a connection in a turn.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Transport, float]] = deque()
        self._slow_until = 0.0

    @property
    def were_seen(self) -> bool:
        """Whether a client was slow a short time ago."""
        return time.monotonic() < self._slow_until

    def wait(self, transport: asyncio.Transport, seconds: float) -> None:
        """Let a slow client wait until others have had as much time as it has taken."""
        self._slow_until = time.monotonic() + _SLOW_CLIENTS_SECONDS
        if transport.is_reading():  # otherwise, TLS has paused it, and resumes it
            transport.pause_reading()
            self._waiting.append((transport, seconds))
            if len(self._waiting) == 1:
                asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._waiting.popleft()[0].resume_reading()
        if self._waiting:
            asyncio.get_running_loop().call_later(self._waiting[0][1], self._resume)


class _MeasuredTls(asyncio.BufferedProtocol):
    """Passes what a transport receives to its protocol of TLS, and measures how long that takes."""

    is_fast = False
    plain_transport: Any = None  # after the handshake

    def __init__(self, transport: asyncio.Transport, slow_clients: _SlowClients) -> None:
        self._transport = transport
        self._slow_clients = slow_clients
        self._tls: Any = transport.get_protocol()

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer: memoryview = self._tls.get_buffer(sizehint)
        if self._slow_clients.were_seen:
            return buffer[: _FAST_CLIENT_NBYTES if self.is_fast else _SLOW_CLIENT_NBYTES]
        if self.plain_transport is not None and not self.plain_transport.is_reading():
            # When the protocol reads again, TLS decrypts all of it at once, which is not measured.
            return buffer[:_UNREAD_NBYTES]
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        began = time.thread_time()  # without that of models in other threads, which have the GIL
        self._tls.buffer_updated(nbytes)
        if nbytes > _HANDSHAKE_NBYTES:
            seconds = time.thread_time() - began
            self.is_fast = seconds <= _SLOW_SECONDS
            if not self.is_fast:
                self._slow_clients.wait(self._transport, seconds)

    def eof_received(self) -> bool | None:
        stays_open: bool | None = self._tls.eof_received()
        return stays_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._tls.connection_lost(exc)
        if self.plain_transport is not None:
            # Otherwise, it and its protocol refer to each other, and all memory of the connection
            # stays until a garbage collection. TLS also keeps the methods of a buffered protocol,
            # which only another one replaces.
            self.plain_transport.set_protocol(asyncio.BufferedProtocol())

    def pause_writing(self) -> None:
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        self._tls.resume_writing()
