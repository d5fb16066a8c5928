"""The connections of a server of uvicorn: ``limit_concurrency``, and its shutdown."""

from __future__ import annotations

import asyncio
import logging
import math
from itertools import chain
from typing import Any, Protocol
from weakref import WeakSet

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from .connection import LAST_REQUEST_SECONDS, Connection
from .errors import OverloadedError
from .service import GRACE_SECONDS, Service
from .socket_state import unreceived_nbytes, unsent_nbytes
from .states import CLOSING, ENDING, LINGERING, RECEIVING

# For a connection beyond limit_concurrency, the one that is idle for the longest time is closed. If
# none is idle, this many more are accepted, which get replies to requests without inference.
N_RESERVED_CONNECTIONS = 16
_LITTLE_NBYTES = 4096  # what an ending connection sends, such as the end of TLS, is on its way
_PROGRESS_SECONDS = 2.5  # in which a connection shows that its client reads
_POLL_SECONDS = 0.1  # to see that no TLS handshake is in progress any longer

access_logger = logging.getLogger("uvicorn.access")


class Member(Protocol):
    """What ``Connections`` needs of an ``InferProtocol``."""

    service: Service
    connection: Connection
    transport: asyncio.Transport
    is_excess: bool  # there were more than limit_concurrency connections

    def settle(self) -> None:
        """Make the transport and the timer follow the connection."""


class Connections:
    """The connections of a server, their limit, and whether the server shuts down.

    uvicorn calls ``shutdown`` of the objects in its set of connections. While there are connections
    or TLS handshakes, this object is in the set. Connections that are made afterwards, because
    their handshake ends late, find that it ``is_shutting_down``.
    """

    def __init__(self, server_state: Any, config: Any) -> None:
        self.open: set[Member] = set()
        # The protocols whose connection has not been made. They are released if it never will be:
        # asyncio does not tell.
        self.handshaking: WeakSet[Member] = WeakSet()
        self.is_shutting_down = False
        self.has_access_log = access_logger.hasHandlers() and access_logger.isEnabledFor(
            logging.INFO
        )
        self.proxy_headers: Any = None
        if config.proxy_headers:
            self.proxy_headers = ProxyHeadersMiddleware(_no_app, config.forwarded_allow_ips)
        self._limit: int | None = config.limit_concurrency
        self._of_uvicorn: set[Any] = server_state.connections
        self._tasks: set[Any] = server_state.tasks

    def add(self, new: Member) -> None:
        """Add a protocol, whose connection may be made now, or after a TLS handshake."""
        self.handshaking.add(new)
        if not self.is_shutting_down:
            self._of_uvicorn.add(self)

    def discard(self, lost: Member) -> None:
        self.open.discard(lost)
        if not (self.open or self.handshaking):
            self._of_uvicorn.discard(self)

    def shutdown(self) -> None:
        self.is_shutting_down = True
        loop = asyncio.get_running_loop()
        self._poll_handshakes(loop, loop.time() + GRACE_SECONDS)

    def _poll_handshakes(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Make uvicorn wait for handshakes in progress."""
        if self.handshaking and loop.time() < deadline:
            loop.call_later(_POLL_SECONDS, self._poll_handshakes, loop, deadline)
        else:
            self._of_uvicorn.discard(self)

    def admit(self, new: Member, now: float) -> bool:
        """Make room for a new connection if there are too many, and return whether it may stay."""
        limit = self._limit
        if limit is None or len(self.open) <= limit:
            return True
        self._close_idle(new, now)
        # The one that was closed may have been beyond the limit, too.
        ordinary = (each for each in self.open if each is not new and not each.is_excess)
        new.is_excess = sum(map(_is_busy, ordinary)) >= limit
        # `open` has closed connections, too, until their clients have read the rest.
        while len(self.open) > limit + N_RESERVED_CONNECTIONS:
            if not self._abort_one(new, now):
                # For the metrics.
                new.service.describe_failure(OverloadedError.by_limit_concurrency(limit))
                return False
        return True

    def find_overload(self, of: Member) -> OverloadedError | None:
        """Return the error of the next request if there are too many connections or tasks.

        It is called only if there is a limit.
        """
        limit = self._limit
        assert limit is not None
        of.is_excess = of.is_excess and len(self.open) > limit
        if of.is_excess or len(self._tasks) >= limit:
            return OverloadedError.by_limit_concurrency(limit)
        return None

    def _idle(self, new: Member) -> list[Member]:
        """Return the idle connections, without the new one, the oldest first."""
        idle = [
            each
            for each in self.open
            if each is not new
            # A connection beyond the limit gets no inference, and need not send a body.
            and (
                each.connection.may_be_closed
                or (each.is_excess and each.connection.state is RECEIVING)
            )
        ]
        return sorted(idle, key=lambda each: each.connection.since)

    def _close_idle(self, new: Member, now: float) -> None:
        """Close a connection that has been idle for some time, if there is one.

        One within the limit comes first, so that the new one is within the limit.
        """
        for each in sorted(self._idle(new), key=lambda each: each.is_excess):
            idle_seconds = now - each.connection.since  # since the client has read, if it reads
            if idle_seconds < LAST_REQUEST_SECONDS or _has_unreceived(each):
                continue
            if idle_seconds < _PROGRESS_SECONDS and _unsent_nbytes(each) > 1:
                continue
            each.connection.close(now)
            each.settle()
            break

    def _abort_one(self, new: Member, now: float) -> bool:
        """Abort one connection to make room, and return whether there was one.

        Connections that end or are idle, and whose clients have read everything, come first: of the
        idle ones, those beyond the limit. Then come those that end, and whose clients have stopped
        reading. While a client reads a reply, its connection stays, because a TLS transport would
        drop the rest.
        """
        ending = [each for each in self.open if each.connection.state in (LINGERING, CLOSING)]
        ending.sort(key=lambda each: each.connection.since)
        idle = sorted(self._idle(new), key=lambda each: not each.is_excess)
        waiting = (each for each in idle if not _has_unreceived(each))
        read = (each for each in chain(ending, waiting) if _unsent_nbytes(each) <= 1)
        stopped = (each for each in ending if each.connection.since <= now - _PROGRESS_SECONDS)
        for each in chain(read, stopped):
            self.open.discard(each)
            each.connection.lost()
            each.settle()
            return True
        return False


def _is_busy(member: Member) -> bool:
    """Whether a connection does not end, or its client has much to read: it stays open for that."""
    return member.connection.state not in ENDING or _unsent_nbytes(member) > _LITTLE_NBYTES


def _unsent_nbytes(member: Member) -> float:
    """Return how many bytes are not sent: for a connection that ends, at its last tick."""
    connection = member.connection
    is_known = connection.state in (LINGERING, CLOSING) and connection.n_unsent < math.inf
    return connection.n_unsent if is_known else unsent_nbytes(member.transport)


def _has_unreceived(member: Member) -> bool:
    """Whether something has arrived that the event loop has not received yet."""
    return 0 < unreceived_nbytes(member.transport) < math.inf


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    """Do nothing. The middleware for proxy headers needs an application to call."""


def connections_of(server_state: Any, config: Any) -> Connections:
    """Return the connections of a server of uvicorn."""
    found: Connections | None = getattr(server_state, "tensorwire_connections", None)
    if found is None:
        found = server_state.tensorwire_connections = Connections(server_state, config)
    return found
