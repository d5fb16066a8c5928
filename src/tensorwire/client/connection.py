"""One connection to a server, for both clients.

The socket never blocks. Everything that may have to wait is a coroutine, which waits only in the
``Backend`` of the client: with ``poll`` in the blocking client, and in the event loop in the
asynchronous one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import time
from typing import Any, NamedTuple

from ..sizes import PIECE_NBYTES
from .addresses import ProxyAddress, ServerAddress, authority
from .errors import Operation
from .options import Call, ConnectDeadline, Deadline
from .requests import NO_PROGRESS, HttpRequest
from .responses import ResponseReader
from .sync import POLLIN, POLLOUT, Backend

_TLS_PIECE_NBYTES = 256 << 10  # OpenSSL encrypts a whole piece before it returns
_BUSY_SECONDS = 0.01  # the pause before connecting again to a Unix socket whose queue is full
_HAS_SENDMSG = hasattr(socket.socket, "sendmsg")  # not on Windows
_SEND_ERRORS = (BrokenPipeError, ConnectionAbortedError, ConnectionResetError, ssl.SSLError)
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """A connection to the server. It is used by one call at a time.

    It must be closed if a method raises an exception, or if a response is not ``reusable``.
    """

    def __init__(
        self, sock: socket.socket, backend: Backend, max_body_nbytes: int | None, deadline: Deadline
    ) -> None:
        self.socket = sock
        sock.setblocking(False)
        self.is_tls = False
        self.reader = ResponseReader(max_body_nbytes)
        self.deadline = deadline  # of the call that uses the connection
        self.progress = NO_PROGRESS
        self.n_sent = 0  # bytes of the request that the kernel has taken, including the head
        self.send_error: OSError | None = None  # with which sending has failed
        self.idle_since = 0.0
        self.transferred_at = 0.0  # when bytes of a request or a response were last transferred
        self.wanted = 0  # the event that OpenSSL waits for; 0: that of the operation
        self.pid = os.getpid()
        self.watcher = backend.watch(sock, self)

    def close(self) -> None:
        if self.pid == os.getpid():  # otherwise the parent process continues to use it
            self.watcher.close()
            self.reader.close()
            with contextlib.suppress(OSError):
                # The connection also ends if a child process has inherited the socket.
                self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def __del__(self) -> None:
        # The client was not closed, or a signal handler raised before a call could close it.
        self.socket.close()

    def is_open(self) -> bool:
        """Return whether an idle connection can be used: it is open and no bytes have arrived."""
        try:
            # With TLS, it also processes messages of TLS, such as session tickets.
            self.socket.recv(1, 0 if self.is_tls else socket.MSG_PEEK)
        except _WOULD_BLOCK:
            return True
        except OSError:
            pass
        return False

    # --- establishing the connection ---

    async def connect(self, address: Any, backend: Backend) -> None:
        code = self.socket.connect_ex(address)
        while code == errno.EAGAIN:
            await backend.sleep(_BUSY_SECONDS)
            self.deadline.limit("connect")
            code = self.socket.connect_ex(address)
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):  # the latter on Windows
            await self._wait(POLLOUT)
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code != 0:
            # On Windows, strerror does not know the codes of sockets.
            raise OSError(code, getattr(socket, "errorTab", {}).get(code) or os.strerror(code))
        if self.socket.family in (socket.AF_INET, socket.AF_INET6):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def open_tunnel(self, server: ServerAddress, proxy: ProxyAddress) -> None:
        """Connect to the server through a proxy (RFC 9110 9.3.6)."""
        target = authority(server)
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        head = "\r\n".join((*lines, "", "")).encode()
        reader = self.reader
        reader.start(has_only_head=True)
        await self._send(HttpRequest(Operation("CONNECT", target), head))
        while not reader.complete:
            await self._receive()
        if not 200 <= reader.status < 300:
            raise OSError(f"the proxy responded with status {reader.status} to CONNECT {target}")

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        self.socket = sock = context.wrap_socket(
            self.socket,
            server_hostname=host,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        self.is_tls = True
        while True:
            try:
                sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                events = POLLIN
            except ssl.SSLWantWriteError:
                events = POLLOUT
            except ssl.SSLError as error:
                if error.reason == "WRONG_VERSION_NUMBER":
                    error.strerror = "the server does not use TLS: use an http:// URL"
                raise
            await self._wait(events)

    # --- a request and its response ---

    async def exchange(self, request: HttpRequest, call: Call) -> ResponseReader:
        reader = self.reader
        reader.start()
        self.deadline, self.progress = call.deadline, call.progress
        self.transferred_at = time.monotonic()
        self.progress.start(request.nbytes)
        is_sent = False
        try:
            is_sent = await self._send(request)
        except _SEND_ERRORS as failure:
            # The server may have responded before it closed the connection.
            self.send_error = failure
        try:
            while not reader.complete:
                await self._receive()
        except TimeoutError:
            if self.send_error is None:
                raise
            raise self.send_error from None
        finally:
            self.send_error = None  # its traceback refers to this frame, which refers to the body
            self.progress = NO_PROGRESS
        if not is_sent:
            reader.reusable = False
        return reader

    def may_repeat(self, request: HttpRequest, error: OSError, call: Call) -> bool:
        """Return whether a request that has failed on this kept connection is sent once more.

        The server may have closed the connection before the request arrived, but the client cannot
        know. A GET can be repeated (RFC 9110 9.2.2), and so can a request of which nothing was
        sent. Any other request may have run its model, and takes one of the retries.
        """
        if isinstance(error, TimeoutError) or self.reader.n_received > 0:
            return False
        return request.operation.method == "GET" or self.n_sent == 0 or call.take_retry()

    async def _send(self, request: HttpRequest) -> bool:
        """Send a request. Returns False if the server has responded before its end."""
        reader = self.reader
        self.n_sent = 0
        is_first = True  # the kernel has room for the first piece, without waiting for it
        # The read timeout applies to sending each window, not to a whole tensor.
        for window in request.windows(_TLS_PIECE_NBYTES if self.is_tls else PIECE_NBYTES):
            while window:
                if not is_first and await self._wait(POLLIN | POLLOUT) & ~POLLOUT:
                    self._receive_available()
                    # A server that rejects the request does not read the rest of it.
                    if reader.complete or reader.status >= 300:
                        return False
                is_first = False
                n_sent = self._send_window(window)
                self.n_sent += n_sent
                self.progress.sent(max(self.n_sent - len(request.head), 0))
                if n_sent > 0:
                    self.transferred_at = time.monotonic()
        return True

    def _send_window(self, window: list[Any]) -> int:
        """Send as much as possible, and remove it from the window. Returns the number of bytes."""
        try:
            if self.is_tls or len(window) == 1 or not _HAS_SENDMSG:
                n_sent = self.socket.send(window[0])
            else:
                n_sent = self.socket.sendmsg(window)
        except ssl.SSLWantReadError:
            self.wanted = POLLIN  # polling for POLLOUT would return at once, again and again
            return 0
        except _WOULD_BLOCK:
            return 0
        n_left = n_sent
        while window and n_left >= len(window[0]):
            n_left -= len(window.pop(0))
        if n_left > 0:
            window[0] = memoryview(window[0])[n_left:]
        return n_sent

    async def _receive(self) -> None:
        """Wait for bytes of the response, and process at least those that have arrived.

        With TLS, it processes about 1 MiB before it waits again: each record has at most 16 KiB.
        OpenSSL may have decrypted bytes, of which the kernel does not know.
        """
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            self.deadline.limit("total")
        else:
            await self._wait(POLLIN)
        reader = self.reader
        end = reader.n_received + PIECE_NBYTES
        while self._receive_available() and self.is_tls:
            # What is parsed and decompressed may become much larger: other tasks run in between.
            if reader.complete or reader.n_received >= end or not reader.is_direct:
                return

    def _receive_available(self) -> bool:
        """Process bytes that have arrived. Returns False if there are none."""
        reader = self.reader
        try:
            if n_received := self.socket.recv_into(reader.get_buffer()):
                reader.received(n_received)
            else:
                reader.eof(is_truncated=self.send_error is not None)
        except ssl.SSLWantWriteError:
            self.wanted = POLLOUT
            return False
        except _WOULD_BLOCK:
            return False
        except ssl.SSLEOFError:
            reader.eof(is_truncated=True)
        if reader.status:
            self.progress.received(reader.body_nbytes, reader.content_length, reader.complete)
        self.transferred_at = time.monotonic()
        return True

    async def _wait(self, events: int) -> int:
        """Return the events that have happened. Raises TimeoutError.

        The read timeout begins with the last transfer, not with each event: TLS may exchange
        messages without end.
        """
        happened = 0
        while not happened:
            seconds, _ = self.deadline.limit("read", self.transferred_at)
            happened = await self.watcher.wait(self.wanted or events, seconds)
        self.wanted = 0
        return happened


class Connector(NamedTuple):
    """Opens connections to a server, directly or through a proxy."""

    server: ServerAddress
    proxy: ProxyAddress | None
    context: ssl.SSLContext | None
    max_body_nbytes: int | None

    async def connect(self, backend: Backend, deadline: Deadline) -> Connection:
        error: OSError | None = None
        for family, kind, protocol, _, address in await self._addresses(backend, deadline):
            backend.check()
            sock = socket.socket(family, kind, protocol)
            connection = Connection(sock, backend, self.max_body_nbytes, ConnectDeadline(deadline))
            try:
                await connection.connect(address, backend)
                if self.context is not None:
                    if self.proxy is not None:
                        await connection.open_tunnel(self.server, self.proxy)
                    await connection.start_tls(self.context, self.server.host)
                return connection
            except OSError as failure:
                error = failure
                connection.close()
            except BaseException:
                connection.close()
                raise
        try:
            raise error or OSError("the host has no address")
        finally:
            error = None  # its traceback refers to this frame

    async def _addresses(self, backend: Backend, deadline: Deadline) -> list[Any]:
        if self.server.socket_path is not None:
            return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", self.server.socket_path)]
        peer = self.proxy or self.server
        try:
            return socket.getaddrinfo(
                peer.host, peer.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except socket.gaierror:  # a name, and not an address
            return await backend.look_up(peer.host, peer.port, deadline)
