"""The sockets that ``tensorwire serve`` listens on."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from .output import UsageError

WILDCARDS = ("", "0.0.0.0", "::")


def bind_unix_socket(path: str, mode: int) -> socket.socket:
    """Return a socket at a path, where no other server may listen. Raises UsageError."""
    bound = socket.socket(socket.AF_UNIX)
    try:
        if Path(path).is_socket():
            with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
                probe.connect(path)
                raise UsageError(f"--uds: cannot listen at {path}: another server listens there")
            os.unlink(path)  # of a server that was killed
        bound.bind(path)
        os.chmod(path, mode)
    except (OSError, UsageError) as error:
        bound.close()
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"--uds: cannot listen at {path}: {error.strerror or error}") from None
    return bound


def bind_port(option: str, host: str, port: int, sharing: int) -> list[socket.socket]:
    """Return a socket for each address of a host, which are all if it is a wildcard.

    ``sharing`` is SO_REUSEADDR or SO_REUSEPORT. Raises UsageError.
    """
    bound: list[socket.socket] = []
    is_wildcard = host in WILDCARDS
    if is_wildcard:  # as grpcio listens
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            bound.append(sock := socket.socket(family, kind))
            sock.setsockopt(socket.SOL_SOCKET, sharing, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_wildcard)
            # With port 0, all get the port of the first one.
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]
    except OSError as error:
        for each in bound:
            each.close()
        where = f"{format_host(host)}:{port}"
        problem = error.strerror or error
        if isinstance(error, socket.gaierror):
            option = "--host"
        raise UsageError(f"{option}: cannot listen at {where}: {problem}") from None
    return bound


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


def format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
