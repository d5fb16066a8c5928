"""What a transport of asyncio does not tell: its socket is asked."""

from __future__ import annotations

import fcntl
import math
import select
import socket
import termios
from contextlib import suppress
from enum import IntEnum
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
    # Below the TLS transport of asyncio is another one, whose bytes it does not count.
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    n_below = 0 if below is None else below.get_write_buffer_size()
    return int(transport.get_write_buffer_size()) + int(n_below) + nbytes[0]


def unreceived_nbytes(transport: Any) -> float:
    """Return how many bytes the operating system has received that the event loop has not."""
    nbytes = memoryview(bytearray(4)).cast("i")
    try:
        fcntl.ioctl(transport.get_extra_info("socket"), termios.FIONREAD, nbytes)
    except (OSError, TypeError, ValueError):  # it is closed
        return math.inf
    return nbytes[0]


class PeerState(IntEnum):
    """What the client has done with its side of a connection.

    A transport tells that only while it receives.
    """

    OPEN = 0
    CLOSED = 1
    """It has closed the connection, or its sending direction."""
    GONE = 2
    """It cannot read any longer: it has reset the connection, or closed a Unix socket."""


def peer_state(transport: Any) -> PeerState:
    """Return the state of the client, before the server has closed anything."""
    found = transport.get_extra_info("socket")
    # It is lost, or this is not Linux.
    if found is None or found.fileno() < 0 or not hasattr(select, "POLLRDHUP"):
        return PeerState.OPEN
    poll = select.poll()
    poll.register(found, select.POLLRDHUP)
    events = sum(events for _, events in poll.poll(0))
    if events & (select.POLLHUP | select.POLLERR):
        return PeerState.GONE
    return PeerState.CLOSED if events else PeerState.OPEN
