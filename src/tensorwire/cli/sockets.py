"""The sockets that ``tensorwire serve`` listens on."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from .output import UsageError

BACKLOG = 2048  # as in uvicorn
WILDCARDS = ("", "0.0.0.0", "::")
_LOCK_SECONDS = 2.0


class Listener(socket.socket):
    """A socket for the event loop of asyncio; that of uvloop does not call ``accept``.

    It reports once that no file descriptor is free: asyncio would try to accept connections as many
    times as the queue is long, and log each error. And it can stop accepting connections before it
    is closed: asyncio loses those that were accepted in the turn before.
    """

    is_exhausted = False
    is_stopped = False

    def accept(self) -> tuple[socket.socket, Any]:
        if self.is_stopped:
            raise BlockingIOError
        if self.is_exhausted:
            self.is_exhausted = False
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            if error.errno == errno.EINVAL:  # another process has called `accept_rest`
                raise BlockingIOError from None
            self.is_exhausted = not isinstance(error, BlockingIOError)
            raise

    def accept_rest(self) -> list[socket.socket]:
        """Accept the connections of the queue, without waiting, and refuse further ones.

        Except on macOS, they are refused even while other processes, which may be blocked, have the
        socket open.
        """
        accepted = []
        if self.family == socket.AF_UNIX:  # whose queue can be accepted afterwards
            self._refuse()
        try:
            for _ in range(BACKLOG):  # others may arrive at the same time
                with suppress(ConnectionAbortedError):
                    accepted.append(super().accept()[0])
        except BlockingIOError:
            pass
        except OSError:  # no file is free, or another process was first: it accepts the rest
            return accepted
        self._refuse()
        return accepted

    def _refuse(self) -> None:
        with suppress(OSError):  # not on macOS
            self.shutdown(socket.SHUT_RDWR)


def lock(folder: int) -> None:
    """Lock a folder. Raises OSError if another process does not release it.

    Any user who can read the folder can lock it, but servers do that only for a moment.
    """
    import fcntl  # noqa: PLC0415 - not on Windows

    end_at = time.monotonic() + _LOCK_SECONDS
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() >= end_at:
            raise OSError(errno.EWOULDBLOCK, "another process has locked the folder")
        time.sleep(_LOCK_SECONDS / 100)


def bind_unix_socket(path: str, mode: int) -> tuple[socket.socket, Callable[[], None]]:
    """Return a socket at a path, where no other server may listen, and what removes its file.

    Call it while the socket is open, and once: afterwards, the file is that of another server, or
    its inode may be. Raises UsageError.
    """
    bound = socket.socket(socket.AF_UNIX)
    try:
        with ExitStack() as stack:
            folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
            stack.callback(os.close, folder)
            lock(folder)  # another server may begin at the same time
            if Path(path).is_socket():
                with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
                    probe.setblocking(False)
                    with suppress(BlockingIOError):  # its queue is full
                        probe.connect(path)
                    raise OSError(errno.EADDRINUSE, "another server listens there")
                os.unlink(path)  # of a server that was killed
            bound.bind(path)
            os.chmod(path, mode)
            bound.listen()  # so that another server finds it while the models are loaded
            made = os.stat(path)
            absolute = os.path.abspath(path)  # a model may change the folder
    except OSError as error:
        bound.close()
        raise listen_error("--uds", path, error) from None

    def remove() -> None:
        with suppress(OSError):
            if os.path.samestat(made, os.stat(absolute)):
                os.unlink(absolute)

    return bound, remove


def bind_port(option: str, host: str, port: int, sharing: int) -> list[socket.socket]:
    """Return a socket for each address of a host, which are all if it is a wildcard.

    ``sharing`` is SO_REUSEADDR or SO_REUSEPORT. Raises UsageError.
    """
    bound: list[socket.socket] = []
    hosts = [host]
    if host in WILDCARDS:  # as grpcio listens
        hosts = ["0.0.0.0", "::"] if socket.has_dualstack_ipv6() else ["0.0.0.0"]
    try:
        for each in hosts:
            for family, kind, _, _, address in socket.getaddrinfo(each, 0, type=socket.SOCK_STREAM):
                bound.append(sock := socket.socket(family, kind))
                sock.setsockopt(socket.SOL_SOCKET, sharing, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # With port 0, all get the port of the first one.
                sock.bind((address[0], port, *address[2:]))
                port = sock.getsockname()[1]
    except (OSError, UnicodeError) as error:  # UnicodeError: the host cannot be encoded
        for sock in bound:
            sock.close()
        option = "--host" if isinstance(error, socket.gaierror | UnicodeError) else option
        raise listen_error(option, format_address(host, port), error) from None
    return bound


def listen(sockets: list[socket.socket], host: str, port: int) -> None:
    """Begin to listen. Raises UsageError if another server has begun while models were loaded."""
    for each in sockets:
        try:
            each.listen(BACKLOG)
        except OSError as error:
            raise listen_error("--port", format_address(host, port), error) from None


def listen_error(option: str, where: str, error: Exception) -> UsageError:
    problem = getattr(error, "strerror", None) or error
    return UsageError(f"{option}: cannot listen at {where}: {problem}")


def reserve(host: str, port: int) -> list[socket.socket]:
    """Bind a port for the gRPC servers of all processes.

    The servers listen at the port with SO_REUSEPORT, so they would not notice that it is in use.
    While the sockets exist, only processes of the same user that set this option can listen.
    """
    try:
        import_module("grpc.aio")
    except ImportError:
        raise UsageError("grpcio is not installed: pip install 'tensorwire[grpc]'") from None
    probes = bind_port("--grpc-port", host, port, socket.SO_REUSEADDR)
    port = probes[0].getsockname()[1]  # the port was 0, or the same
    for probe in probes:
        probe.close()
    return bind_port("--grpc-port", host, port, socket.SO_REUSEPORT)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
