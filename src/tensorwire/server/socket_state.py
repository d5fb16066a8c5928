"""What a transport of asyncio does not tell: its socket is asked."""

from __future__ import annotations

import fcntl
import math
import select
import socket
import termios
from contextlib import suppress
from typing import Any

_TCP_CLOSE = 7  # of Linux, in tcp_states.h


def unsent_nbytes(transport: Any) -> int:
    """Return how many bytes the transport and the operating system have that are not sent.

    1 stands for those of the operating system if it does not tell. A connection that the client has
    reset has none: they will never be sent, although Linux still counts them.
    """
    nbytes = memoryview(bytearray(4)).cast("i")
    nbytes[0] = 1
    found = transport.get_extra_info("socket")
    with suppress(AttributeError, OSError, TypeError, ValueError):  # it is lost, or not Linux
        if found.family != socket.AF_UNIX:
            (state,) = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            if state == _TCP_CLOSE:
                return 0
        fcntl.ioctl(found, termios.TIOCOUTQ, nbytes)
    return int(transport.get_write_buffer_size()) + nbytes[0]


def unread_nbytes(transport: Any) -> float:
    """Return how many bytes the operating system has received that the event loop has not."""
    nbytes = memoryview(bytearray(4)).cast("i")
    try:
        fcntl.ioctl(transport.get_extra_info("socket"), termios.FIONREAD, nbytes)
    except (OSError, TypeError, ValueError):  # it is closed
        return math.inf
    return nbytes[0]


def has_client_closed(transport: Any) -> bool:
    """Return whether the client has closed the connection, or its sending direction.

    A transport tells that only while it receives.
    """
    return bool(_events(transport))


def has_client_reset(transport: Any) -> bool:
    """Return whether the client cannot read any longer, before the server has closed anything.

    It has reset the connection, or has closed a Unix socket.
    """
    return bool(_events(transport) & (select.POLLHUP | select.POLLERR))


def _events(transport: Any) -> int:
    found = transport.get_extra_info("socket")
    if found is None or not hasattr(select, "POLLRDHUP"):  # it is lost, or this is not Linux
        return 0
    poll = select.poll()
    poll.register(found, select.POLLRDHUP)
    return sum(events for _, events in poll.poll(0))
