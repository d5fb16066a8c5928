"""The server's side of an HTTP/1.1 connection: its states, deadlines and replies, without I/O.

A transport passes on what happens, with the time at which it happens, and then does what the
connection wants: it sends ``output`` and, in the state SENDING, calls ``next_piece`` or
``blocked``; it runs the request that ``start`` returns, receives only while ``may_receive`` is
true, and calls ``tick`` at the ``deadline``. It closes its sending direction if it can (LINGERING),
closes when everything is sent (CLOSING), or aborts (ABORTED). The connection reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain

from ..errors import TensorwireError, format_seconds
from ..sizes import MAX_JOINED_NBYTES, PIECE_NBYTES
from .body import DEFAULT_RECEIVE_TIMEOUT
from .body_memory import (
    PERIOD_SECONDS,
    TICK_SECONDS,
    UNCOUNTED_NBYTES,
    is_silent,
    outstanding_nbytes,
)
from .errors import SHUTTING_DOWN, OverloadedError
from .framing import expects_continue, joined_headers
from .receiver import Receiver, Request
from .service import GRACE_SECONDS, Reply, Service
from .states import (
    ABORTED,
    ARRIVING,
    BETWEEN_REPLIES,
    CLOSED,
    CLOSING,
    HEAD,
    IDLE,
    INPUT_OVER,
    LINGERING,
    READY,
    RECEIVING,
    RUNNING,
    SENDING,
    STALLED,
    UNTIMED,
    WAITING,
    ServerState,
)

# After the last reply, the connection stays open until the client closes it, at most for this time
# after it has read the reply, and what arrives is discarded. To close it while data arrives would
# reset it, and the client might lose the reply. The time is longer if the client is probably still
# sending.
_LINGER_SECONDS = 1.0
_LONG_LINGER_SECONDS = 10.0
# During a shutdown, idle connections stay open for this time, because a request may be on its way.
LAST_REQUEST_SECONDS = 1.0
# A tick this much after its deadline: the event loop was blocked, which is not the client's time.
_BLOCKED_SECONDS = 0.1
RECEIVE_SECONDS = 0.001  # in which the event loop receives what has arrived
FIRST_REQUEST_SECONDS = 5.0  # until the first request begins, if keep_alive_seconds is 0
# A piece is sent when the transport has sent enough of the previous one. A TLS transport encrypts a
# piece at once, and does not count it as unsent: so its pieces are small.
_TLS_PIECE_NBYTES = 64 << 10
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


@dataclass(frozen=True)
class Options:
    """The options of the connections of a server. Times are in seconds."""

    keep_alive_seconds: float = 5.0
    grace_seconds: float = GRACE_SECONDS
    """How long a client may keep the connection open after ``shut_down``, in all states together.

    The connection ends within this time plus that in which its requests run or the event loop is
    blocked.
    """
    is_tls: bool = False
    """Whether the transport has TLS: it cannot close its sending direction alone."""


class Connection:
    """One HTTP/1.1 connection of a client, from the time at which it was made.

    A request is closed, which releases its memory, when its reply has been sent, or when the
    connection is closed or lost. The memory of one that runs is released when its model ends.

    Parameters
    ----------
    service : Service
        The models, and the limits.
    options : Options
        The options of all connections.
    now : float
        The time in seconds. Methods that may set the deadline take it, from the same clock.
    wake : callable
        Called in any thread if the first request has got memory, or is given up. The transport then
        calls ``memory_changed``.
    find_overload : callable, optional
        Called for each request; see ``Receiver``.

    Attributes
    ----------
    output : list of bytes
        What must be sent now. The transport takes it, and leaves an empty list.
    deadline : float
        When to call ``tick``.
    state, receiver.state
        What the server waits for, and what the client is doing.
    """

    def __init__(
        self,
        service: Service,
        options: Options,
        now: float,
        wake: Callable[[], object],
        find_overload: Callable[[], OverloadedError | None] | None = None,
    ) -> None:
        self.service = service
        self.options = options
        self.receiver = Receiver(service, wake, find_overload)
        self.requests = self.receiver.requests
        self.output: list[bytes] = []
        self.state = WAITING
        self.since = now  # from when the deadline counts
        self.deadline = now + (options.keep_alive_seconds or FIRST_REQUEST_SECONDS)
        self.grace_left = math.inf  # seconds that are left to the client, during a shutdown
        self.pieces: Iterator[memoryview] | None = None  # the rest of the first reply
        self.sending_since = now  # when the last state SENDING began
        # Bytes that were not sent at the last `blocked`, or the fewest at the ticks of WAITING,
        # LINGERING or CLOSING: if there are fewer now, the client has read. It is infinite if
        # nothing was counted since a piece was sent, or since the state was entered.
        self.n_unsent: float = 0
        self.may_be_unread = False  # a large reply that was sent, until a tick of WAITING
        self.n_refused = 0  # `BodyMemory.n_refused` when the period of SENDING began

    # --- what happens ----------------------------------------------------------------------------

    def receive(self, nbytes: int, now: float) -> None:
        """Take the bytes that have arrived in the memory of ``receiver.buffer()``."""
        self.receiver.receive(nbytes)
        if self.state in BETWEEN_REPLIES:
            self._enter_next(now)
        if len(self.requests) > 1 and self.state in UNTIMED:
            self._set_deadline(now)  # from now on, there are ticks

    def end_of_input(self, now: float) -> bool:
        """The client has closed the connection, or its sending direction.

        Return whether the transport stays open, because the client may still read replies. But
        probably it has closed the connection, so calls that wait for a thread are soon dropped.
        """
        self.receiver.end_of_input()
        self.disconnect()
        if not self.requests or self.options.is_tls:  # TLS has no sending direction of its own
            self.close(now)
            return False
        if self.state in BETWEEN_REPLIES:
            self._enter_next(now)
        return True

    def disconnect(self) -> None:
        """The client has gone, or sends nothing more; the transport may not have received all."""
        for request in self.requests:
            request.disconnect()

    def memory_changed(self, now: float) -> None:
        """The first request may have got memory for its body, or has been given up."""
        if self.requests and (self.state is SENDING or self.state in BETWEEN_REPLIES):
            self.receiver.continue_body()
            if self.state is not SENDING:
                self._enter_next(now)

    def tick(self, now: float, n_unsent: int = 0, n_unreceived: float = math.inf) -> None:
        """Do what is due.

        ``n_unsent`` is the number of bytes that the transport and the operating system have not
        sent, of which 1 may stand for an unknown number, and ``n_unreceived`` that of bytes that
        the operating system has received, and the transport has not.
        """
        if now < self.deadline:
            return
        self._skip_blocked_time(now)
        if self.state is SENDING:
            self._tick_sending(now, n_unsent)
        elif self.state in (LINGERING, CLOSING):
            self._tick_ending(now, n_unsent)
        elif self.state is WAITING:
            self._tick_waiting(now, n_unsent)
        elif self.state in ARRIVING:
            self._set_deadline(now)
            if now >= self.deadline:
                self._reject_late()
                self._enter_next(now)
            elif self.state is STALLED:
                self.requests[0].tick(now, is_silent(n_unreceived, self.n_outstanding))
                if self.requests[0].is_given_up:
                    self.memory_changed(now)
        else:
            self._set_deadline(now)

    def _tick_sending(self, now: float, n_unsent: int) -> None:
        """Abort if the client reads nothing in time, or slowly while others need its memory."""
        is_slow = self.n_unsent - n_unsent < UNCOUNTED_NBYTES
        if self._must_release_memory(now, is_slow):
            self._abort()
        elif n_unsent < self.n_unsent and now < self.since + self.grace_left:
            self.blocked(n_unsent, now)
        else:
            self._set_deadline(now)
            if now >= self.deadline:
                self._abort()

    def _tick_waiting(self, now: float, n_unsent: int) -> None:
        """Close if no request has arrived in time, which begins when the client has read."""
        if self.may_be_unread and n_unsent < self.n_unsent:
            self._spend_grace(now)
            self.since = now
            self.n_unsent, self.may_be_unread = n_unsent, n_unsent > 1
        self._set_deadline(now)
        if now >= self.deadline:
            self.close(now)

    def _must_release_memory(self, now: float, is_slow: bool = False) -> bool:
        """Whether others need the memory of a reply that is read slowly, or for too long.

        During a shutdown, only the time of the client is limited.
        """
        timeout = self.service.receive_timeout
        is_late = timeout is not None and now >= self.sending_since + timeout
        has_memory = bool(self.requests) and self.requests[0].has_memory
        if not ((is_slow or is_late) and has_memory and self.grace_left == math.inf):
            return False
        return self.service.body_memory.is_needed(self.n_refused)

    def _tick_ending(self, now: float, n_unsent: int) -> None:
        """Close, or abort, when the client has read everything, or reads nothing in time."""
        if n_unsent < self.n_unsent < math.inf:  # the client reads
            self._enter(self.state, now)
        self.n_unsent = min(self.n_unsent, n_unsent)
        self._set_deadline(now)
        is_lingering, is_read = self.state is LINGERING, n_unsent <= 1
        is_short = is_lingering and self.receiver.is_message_complete
        seconds = _LINGER_SECONDS if is_short else _LONG_LINGER_SECONDS
        is_over = now >= self.deadline or (is_read and now >= self.since + seconds)
        if is_over and is_lingering and is_read:
            self.close(now)
        elif is_over or (n_unsent == 0 and not is_lingering):
            self._abort()

    def shut_down(self, now: float) -> None:
        """Close the connection after the replies to the requests whose head has arrived.

        One more request is accepted on an idle connection, and behind a large reply whose head has
        been sent without `Connection: close`.
        """
        self._skip_blocked_time(now)
        self._spend_grace(now)
        self.since = now
        self.grace_left = min(self.grace_left, self.options.grace_seconds)
        receiver = self.receiver
        receiver.server_closes = True
        n_to_reply = len(self.requests) - (self.pieces is not None)
        if n_to_reply and receiver.state in (IDLE, HEAD):
            receiver.ignore_rest()
        self._enter(self.state, now)

    def lost(self) -> None:
        """Forget the requests. The transport has closed the connection, or will drop it."""
        self._abort()
        self.receiver.forget()
        for request in self.requests:
            request.cancel()
            request.close()
        self.requests.clear()
        self.pieces = None

    # --- what the transport does -----------------------------------------------------------------

    @property
    def may_receive(self) -> bool:
        """Whether the transport may receive.

        Not while a body waits for memory, the client must read first, or there are two requests or
        more: these have arrived in one read.
        """
        return len(self.requests) < 2 and self.state not in (STALLED, SENDING)

    @property
    def n_outstanding(self) -> int:
        """A lower bound of the bytes of the body that the transport has not received."""
        if len(self.requests) != 1:
            return 0
        return outstanding_nbytes(self.receiver.n_missing, self.options.is_tls)

    @property
    def may_be_closed(self) -> bool:
        """Whether the connection waits for a request, or for the rest of its head."""
        return not self.requests and self.state in (WAITING, RECEIVING)

    def start(self) -> Request:
        """Return the request to run in the state READY. ``reply`` takes its reply."""
        self.state = RUNNING  # READY has the same deadline
        return self.requests[0]

    def reply(self, reply: Reply, now: float, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the reply to the request that runs. A large one is not copied."""
        if self.state is not RUNNING:  # the connection has been closed since
            self._close_requests()
            return
        request, body = self.requests[0], reply.body
        if self.receiver.state in INPUT_OVER and len(self.requests) == 1:  # it is the last one
            reply = reply.closing()
        lines = joined_headers((*headers, *reply.headers()))
        head = b"%b%b\r\n" % (_STATUS_LINES[reply.status], lines)
        if request.method == b"HEAD":
            self.output.append(head)
        elif len(body) > MAX_JOINED_NBYTES:
            pieces = reply.chunks(_TLS_PIECE_NBYTES if self.options.is_tls else PIECE_NBYTES)
            first = next(pieces)  # usually the header of a frame, which needs no write of its own
            if len(first) <= MAX_JOINED_NBYTES:
                head += first
            else:
                pieces = chain((first,), pieces)
            self.output.append(head)
            self.pieces = pieces
            self._enter(SENDING, now)
            return
        else:
            self.output.append(head + bytes(body))
        self._end_request(now)

    def end_after_reply(self) -> None:
        """Drop the requests behind the first one, and accept no more."""
        while len(self.requests) > 1:
            self.requests.pop().close()
        self.receiver.ignore_rest()

    def next_piece(self, now: float) -> memoryview | None:
        """Return the next piece in the state SENDING. At the end, return None and leave the state.

        The transport calls ``blocked`` instead if the client has not read enough.
        """
        if self.pieces is None:
            self._enter_next(now)
            return None
        self.n_unsent = math.inf  # the next call of `blocked` is progress of the client
        piece = next(self.pieces, None)
        if piece is None:
            self.pieces = None
            self._end_request(now)
        return piece

    def blocked(self, n_unsent: int, now: float) -> None:
        """The client has not read enough: the next piece or reply waits. This bounds the memory."""
        if self.state is SENDING:
            if n_unsent >= self.n_unsent:  # it has read nothing since
                return
            self._skip_blocked_time(now)
            if self._must_release_memory(now):
                self._abort()
                return
        if self.state is SENDING or self.state in BETWEEN_REPLIES:
            self._enter(SENDING, now)
        self.n_unsent = n_unsent

    def close(self, now: float) -> None:
        """Close the connection when the transport has sent what it has."""
        self.receiver.ignore_rest()
        if self.state is not RUNNING:
            self._close_requests()
        if self.state not in (CLOSING, ABORTED):
            self._enter(CLOSING, now)

    # --- states and deadlines --------------------------------------------------------------------

    def _enter_next(self, now: float) -> None:
        """Enter the state in which the next request is."""
        request = self.requests[0] if self.requests else None
        if request is None:
            state = WAITING if self.receiver.state is IDLE else RECEIVING
        elif request.is_rejected:
            self.end_after_reply()
            state = READY
        elif (body := request.body) is not None and body.is_waiting:
            state = STALLED
        elif request.is_received:
            state = READY
        else:
            state = RECEIVING
            if not request.may_send_body:
                request.may_send_body = True
                if request.http_version != "1.0" and expects_continue(request.headers):
                    self.output.append(b"HTTP/1.1 100 Continue\r\n\r\n")
        if state is not self.state:
            self._enter(state, now)

    def _enter(self, state: ServerState, now: float) -> None:
        if self.grace_left < math.inf:
            self._skip_blocked_time(now)
        # The time in which a request must arrive includes that in which it waits for memory.
        if not (state in ARRIVING and self.state in ARRIVING):
            if self.grace_left < math.inf:
                self._spend_grace(now)
            self.since = now
        if state is SENDING and self.state is not SENDING:
            self.sending_since = now
            self.may_be_unread = True
        self.state, self.n_unsent = state, math.inf
        self._set_deadline(now)

    def _set_deadline(self, now: float) -> None:
        """Set the deadline: the end of the time of the state, or the next tick if it is earlier."""
        state = self.state
        if state in UNTIMED:
            # A transport that does not receive must look whether the client has gone.
            has_ticks = len(self.requests) > 1 and state is not ABORTED
            self.deadline = now + TICK_SECONDS if has_ticks else math.inf
            return
        timeout = self.service.receive_timeout
        seconds = math.inf if timeout is None else timeout
        if state is WAITING and not self.may_be_unread:
            seconds = self.options.keep_alive_seconds
            if self.grace_left < math.inf:
                seconds = LAST_REQUEST_SECONDS
        elif state in (WAITING, LINGERING, CLOSING) and timeout is None:
            seconds = DEFAULT_RECEIVE_TIMEOUT
        grace_left = self.grace_left
        if state in ARRIVING and grace_left < math.inf:  # the client has time to read the 503
            grace_left -= self.options.grace_seconds / 5
        self.deadline = self.since + max(0.0, min(seconds, grace_left))
        # During a shutdown, all states have ticks, which show that the event loop was blocked.
        looks = state in (STALLED, LINGERING, CLOSING) or (state is WAITING and self.may_be_unread)
        if looks or grace_left < math.inf:
            self.deadline = min(self.deadline, now + TICK_SECONDS)
        if state is SENDING:
            self.deadline = min(self.deadline, now + PERIOD_SECONDS)
            self.n_refused = self.service.body_memory.n_refused

    def _skip_blocked_time(self, now: float) -> None:
        """Do not count the time after the deadline, in which the event loop was blocked."""
        if now > self.deadline + _BLOCKED_SECONDS:
            blocked_seconds, self.deadline = now - self.deadline, now
            self.since += blocked_seconds
            self.sending_since += blocked_seconds

    def _spend_grace(self, now: float) -> None:
        if self.state not in UNTIMED:
            self.grace_left = max(0.0, self.grace_left - (now - self.since))

    def _reject_late(self) -> None:
        request = self.requests[0] if self.requests else None
        if self.grace_left < math.inf:
            (request or self.receiver).reject(SHUTTING_DOWN)
        elif request is not None:
            request.reject_late()
        else:
            timeout = self.service.receive_timeout
            assert timeout is not None
            text = f"the headers did not arrive within {format_seconds(timeout)}"
            self.receiver.reject(TensorwireError(text, status=408))

    def _end_request(self, now: float) -> None:
        """The reply to the first request has been sent: end the connection if it is the last."""
        request = self.requests.popleft()
        request.close()
        if self.requests:
            self.receiver.continue_body()
            self._enter_next(now)
        elif self.receiver.state not in INPUT_OVER:
            self._enter_next(now)
        elif self.receiver.state is CLOSED or (
            # The client may wait for the end, and TLS cannot close its sending direction alone.
            self.options.is_tls
            and self.receiver.client_closes
            and self.receiver.is_message_complete
        ):
            self.close(now)
        else:
            self._enter(LINGERING, now)

    def _close_requests(self) -> None:
        """Release the memory of the requests."""
        for request in self.requests:
            request.close()

    def _abort(self) -> None:
        self.receiver.ignore_rest()
        self.state, self.deadline = ABORTED, math.inf
